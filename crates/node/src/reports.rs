//! What the host reports of itself: links, disks, sites, archives and backups.

use std::collections::BTreeMap;
use std::sync::Arc;

use group::ids::{Lane, NodeId};
use stdx::{Instant, UnixMillis};

use crate::stalls::Stalls;

/// What only the host can know.
#[derive(Clone, Debug, Default)]
pub struct HostReport {
    /// When this was measured.
    pub at: Instant,
    /// Bytes allocated by the whole process.
    pub used_memory_bytes: u64,
    /// Resident set of the process.
    pub resident_bytes: u64,
    /// Bytes the allocator holds in active pages, and has mapped.
    pub allocator_active_bytes: u64,
    /// See above.
    pub allocator_resident_bytes: u64,
    /// Memory of the machine.
    pub system_memory_bytes: u64,
    /// CPU time of the process in user mode and in the kernel, in microseconds.
    pub cpu_user_us: u64,
    /// See above.
    pub cpu_system_us: u64,
    /// The journal's counters.
    pub journal: JournalFigures,
    /// Connected clients over all cores.
    pub client_count: u64,
    /// Bytes that clients of all cores take, as the cores have told last.
    pub client_bytes: u64,
    /// Connections refused because of `maxclients`.
    pub rejected_count: u64,
    /// How often threads of cores have been woken by mail, and cores have been stepped by threads of others instead.
    pub core_wake_count: u64,
    /// See above.
    pub core_help_count: u64,
    /// Threads that wait for the sockets of cores.
    pub core_thread_count: u64,
    /// The links to other nodes.
    pub links: Vec<LinkReport>,
    /// Bytes that were sent to nodes which have been removed since.
    pub gone_link_bytes: u64,
    /// Connections to other servers that MIGRATE keeps for a while.
    pub migrate_line_count: usize,
    /// Replicas of other kinds.
    pub following: Following,
    /// The archive, if there is one.
    pub archive: Option<ArchiveFigures>,
    /// What is kept for a second site, and how the one is that this one follows.
    pub site: SiteFigures,
    /// Scheduled backups, if there are any.
    pub backups: Option<BackupFigures>,
    /// The latest times in which a core did not turn.
    pub stalls: Arc<Stalls>,
}

impl HostReport {
    /// Bytes sent to other nodes since the start of the process: it never falls, also if a node is removed.
    pub fn sent_to_nodes(&self) -> u64 {
        self.links.iter().map(|link| link.sent_bytes).sum::<u64>() + self.gone_link_bytes
    }
}

/// The stream for replicas of other kinds, and its followers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Following {
    /// Its name, 40 hexadecimal digits; empty if there is none.
    pub id: String,
    /// Bytes of it so far.
    pub offset: u64,
    /// The first byte that is still kept; the first of all has 1.
    pub first: u64,
    /// Most bytes that are kept.
    pub kept_bytes_max: u64,
    /// Who follows.
    pub followers: Vec<FollowerReport>,
    /// How often a copy was made, since the start.
    pub copy_count: u64,
    /// How often one who had been away went on where it was.
    pub continued_count: u64,
    /// How often one who wanted that got a copy: what it asked for is no longer kept, or is of another stream.
    pub refused_count: u64,
}

/// A replica of another kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FollowerReport {
    /// Where it is found.
    pub host: String,
    /// See above; 0 if it has not said so.
    pub port: u16,
    /// `wait_bgsave` while its copy is made, `send_bulk` while it is sent, `online` then.
    pub state: &'static str,
    /// What it has acknowledged.
    pub offset: u64,
    /// Seconds since it last acknowledged anything.
    pub lag_s: u64,
}

/// What is kept for a second site, and how the one is that this one follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteFigures {
    /// What changes is kept (`site-backlog-size`).
    pub keeps_backlog: bool,
    /// Bytes that are kept.
    pub backlog_bytes: u64,
    /// Bytes that were written since the start.
    pub written_bytes: u64,
    /// The moment up to which all is kept, and that from which on, in milliseconds since the epoch.
    pub moment_ms: i64,
    /// See above.
    pub oldest_ms: i64,
    /// Of each group: the index of its log up to which it is kept.
    pub places: Vec<u64>,
    /// Why it cannot be written; empty if it can.
    pub fault: String,
    /// The followers, by a number.
    pub followers: BTreeMap<u64, SiteFollower>,
    /// Copies that were sent, and followers who went on where they were, since the start.
    pub copy_count: u64,
    /// See above.
    pub continued_count: u64,
    /// The one that this one follows.
    pub following: Option<SiteFollowing>,
}

/// A cluster that follows this one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteFollower {
    /// Its end of the connection, `ADDRESS:PORT`.
    pub address: String,
    /// `copying` or `online`.
    pub state: &'static str,
    /// Bytes sent, before compression and as they went over the line.
    pub raw_bytes: u64,
    /// See above.
    pub carried_bytes: u64,
    /// The moment that it has acknowledged, in milliseconds since the epoch.
    pub moment_ms: i64,
    /// Bytes of the backlog that have not been sent to it.
    pub pending_bytes: u64,
    /// For how long it has lacked something, in milliseconds.
    pub lag_ms: u64,
}

/// The cluster that this one follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteFollowing {
    /// Where it is asked.
    pub address: String,
    /// `connecting`, `copying`, `following`, `standing-by` if another node of this cluster follows, `promoted`,
    /// `refused`.
    pub state: &'static str,
    /// The moment of the state that is shown here, in milliseconds since the epoch.
    pub moment_ms: i64,
    /// Bytes received, before compression and as they came over the line.
    pub raw_bytes: u64,
    /// See above.
    pub carried_bytes: u64,
    /// Requests carried out.
    pub request_count: u64,
    /// Bytes of the near backlog that had not been sent when that was last heard.
    pub pending_bytes: u64,
    /// For how long something has been lacking, in milliseconds; 0 if nothing does.
    pub lag_ms: u64,
    /// Milliseconds until nothing is lacking, as it goes now; 0 if nothing is, -1 if it does not get less.
    pub catch_up_ms: i64,
    /// Copies taken since the start.
    pub copy_count: u64,
    /// How often the line was cut, and why it was last.
    pub cut_count: u64,
    /// See above.
    pub last_cut: String,
}

/// A Redis that this node follows (REPLICAOF).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFigures {
    /// Where it is.
    pub host: String,
    /// See above.
    pub port: u16,
    /// There is a link, on which it sends.
    pub is_linked: bool,
    /// This node does not have a whole copy of its data.
    pub is_copying: bool,
    /// Nothing is copied any more: REPLICAOF NO ONE came before the copy was whole.
    pub is_partial: bool,
    /// Bytes of its stream that were carried out here.
    pub offset: u64,
    /// Bytes of its copy, if it has told, and those of them that have come.
    pub copy_bytes: u64,
    /// See above.
    pub copied_bytes: u64,
    /// Seconds since it last sent something; none if it has not.
    pub silent_s: Option<u64>,
    /// Seconds since there was a link, if there is none.
    pub down_s: u64,
    /// Why it is not followed now; empty if it is.
    pub fault: String,
}

impl SourceFigures {
    /// What there is of its data here, in a word.
    pub fn copy_state(&self) -> &'static str {
        match (self.is_copying, self.is_partial) {
            (_, true) => "partial",
            (true, false) => "copying",
            (false, false) => "whole",
        }
    }
}

/// How scheduled backups are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupFigures {
    /// This node makes them: it leads the group of the metadata.
    pub is_own: bool,
    /// One is being made.
    pub is_running: bool,
    /// Moment of the newest whole one in the directory; 0 if there is none.
    pub newest_unix: UnixMillis,
    /// Whole ones in the directory.
    pub kept_count: u64,
    /// Those that this process has made.
    pub made_count: u64,
    /// Those that came to nothing, since the start of the process.
    pub failed_count: u64,
    /// What this process made last.
    pub last: String,
    /// Why the last one came to nothing; empty if it did not.
    pub fault: String,
}

/// How the archive is, for the groups that are led here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchiveFigures {
    /// Entries written since the start.
    pub entry_count: u64,
    /// Bytes of them, before compression.
    pub raw_bytes: u64,
    /// Bytes written since the start: of entries, compressed.
    pub written_bytes: u64,
    /// Bases written since the start.
    pub base_count: u64,
    /// Bytes of these.
    pub base_bytes: u64,
    /// Entries that are committed and not archived.
    pub lacking_count: u64,
    /// For how long the group that is furthest behind has lacked something, in milliseconds; 0 if none does.
    pub lag_ms: u64,
    /// Entries that never were archived since the log did not hold them any more, since the start.
    pub lost_count: u64,
    /// Why it cannot be written now; empty if it can.
    pub fault: String,
    /// How often it could not, since the start.
    pub fault_count: u64,
}

/// How the link to another node is, for one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkReport {
    /// The node at the other end.
    pub node: NodeId,
    /// For what.
    pub lane: Lane,
    /// Where.
    pub address: String,
    /// Can it be used?
    pub is_up: bool,
    /// Did TLS protect it when it was up last?
    pub is_encrypted: bool,
    /// Was what it carried compressed when it was up last?
    pub is_compressed: bool,
    /// When it came up last, in seconds since the start of the process.
    pub since_s: u64,
    /// How often it came up.
    pub count: u64,
    /// Why it was cut, or could not be made, last.
    pub last_cause: String,
    /// Bytes sent since the start.
    pub sent_bytes: u64,
    /// The same before they were compressed.
    pub carried_bytes: u64,
    /// Messages taken since the start.
    pub message_count: u64,
    /// Messages dropped because it was down or full.
    pub dropped_count: u64,
    /// Bytes waiting to be sent.
    pub waiting_bytes: u64,
}

impl LinkReport {
    /// Another connection of the same lane to the same node. The lane is up if all its connections are.
    pub fn add(&mut self, other: &Self) {
        self.is_up &= other.is_up;
        self.is_encrypted &= other.is_encrypted;
        self.is_compressed &= other.is_compressed;
        self.since_s = self.since_s.max(other.since_s);
        self.count = self.count.max(other.count);
        if !other.is_up {
            self.last_cause.clone_from(&other.last_cause);
        }
        self.sent_bytes += other.sent_bytes;
        self.carried_bytes += other.carried_bytes;
        self.message_count += other.message_count;
        self.dropped_count += other.dropped_count;
        self.waiting_bytes += other.waiting_bytes;
    }
}

impl Default for LinkReport {
    fn default() -> Self {
        Self {
            node: NodeId(0),
            lane: Lane::Log,
            address: String::new(),
            is_up: false,
            is_encrypted: false,
            is_compressed: false,
            since_s: 0,
            count: 0,
            last_cause: String::new(),
            sent_bytes: 0,
            carried_bytes: 0,
            message_count: 0,
            dropped_count: 0,
            waiting_bytes: 0,
        }
    }
}

/// Facts about the process that never change, for INFO and CONFIG.
#[derive(Clone, Debug, Default)]
pub struct ProcessFacts {
    /// Process id.
    pub process_id: u32,
    /// The cluster, as its first node has drawn it.
    pub cluster: u128,
    /// 40 hexadecimal digits, new at every start.
    pub run_id: String,
    /// Operating system, release and machine.
    pub operating_system: String,
    /// Path of the executable.
    pub executable: String,
    /// Path of the configuration file; empty if there is none.
    pub config_file: String,
    /// TCP port.
    pub tcp_port: u16,
    /// Directory of the data.
    pub data_directory: String,
    /// Largest `maxclients` that the operating system allows; 0 if it sets no limit.
    pub client_count_max: u64,
    /// Wall clock at the start.
    pub started: UnixMillis,
    /// Monotonic clock at the start.
    pub started_instant: Instant,
    /// Random and known to nobody: what ACL GENPASS makes passwords of.
    pub secret: [u8; 32],
    /// Makes invitations, if the cluster has an authority of its own.
    pub inviter: Option<crate::invitation::Inviter>,
}

/// What the journal has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalFigures {
    /// Writes to the log; each holds all that was waiting.
    pub write_count: u64,
    /// Bytes written to the log.
    pub written_bytes: u64,
    /// Syncs of the log.
    pub sync_count: u64,
    /// Duration of the last sync in microseconds.
    pub sync_last_us: u64,
    /// Mean duration of a sync in microseconds.
    pub sync_mean_us: u64,
    /// Longest sync in microseconds.
    pub sync_max_us: u64,
    /// Appends waiting to be written.
    pub queue_count: u64,
    /// Bytes waiting to be written.
    pub queue_bytes: u64,
    /// Bytes of log kept on disk.
    pub kept_bytes: u64,
    /// Bytes of log kept on disk only for members that lack them.
    pub held_bytes: u64,
    /// Most of them that are kept.
    pub held_bytes_max: u64,
    /// Number of the segment being written.
    pub segment: u64,
    /// Microseconds since the last sync.
    pub unsynced_us: u64,
    /// Bytes of checkpoints written since the start.
    pub checkpoint_bytes: u64,
}
