//! The waist: everything that can happen to a core, and everything a core can ask of the world.
//!
//! Both enums are closed on purpose. The real host (`edge`) and the false one (`simulation`) drive the same cores
//! through them, and nothing else passes.

use std::net::IpAddr;
use std::sync::{Arc, Weak};

use group::group_seed::GroupSeed;
use group::host::{ArchiveNews, CheckpointNews, CheckpointStep, Persist};
use group::ids::{CoreId, GroupId, Lane, Level, NodeId, Room, SessionId};
use journal::{Append, CheckpointMark, Span};
use stdx::log::Entry;
use stdx::{Duration, Instant, Levels};

use crate::acl::Users;
use crate::core_messages::Envelope;
use crate::roster::Member;
use crate::session::ticket::OwnTicket;
use crate::settings::Settings;

pub use crate::followers::{CopyContent, Follower, Wish};
pub use crate::reports::*;

/// A client wants to know what has changed.
#[derive(Debug)]
pub struct ChangesRequest {
    /// Where it is answered.
    pub core: CoreId,
    /// The session that asks.
    pub session: SessionId,
    /// Which of its requests that is.
    pub ticket: OwnTicket,
    /// Dead when nobody waits for the answer any more.
    pub asker: Weak<()>,
    /// What is asked.
    pub wish: ChangesWish,
}

/// What is asked of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangesWish {
    /// How far back and up to when they are known here.
    Info,
    /// What comes behind a cursor.
    Read {
        /// The cursor, `0` or `$`, as the client says it.
        cursor: Vec<u8>,
        /// At most so many events.
        count: usize,
        /// If there is none, how long to wait for one; 0 means without limit.
        block_ms: Option<u64>,
        /// Only what concerns a key that matches one of these; everything if there is none.
        patterns: Vec<Vec<u8>>,
        /// Only what concerns values of one of these types; everything if there is none.
        types: Vec<&'static str>,
        /// Also keys that were swept away because their time had come.
        wants_expired: bool,
        /// How it is answered.
        form: ChangesForm,
    },
}

/// How what has changed is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangesForm {
    /// The next cursor, and events.
    Events,
    /// As entries of a stream of this name, in this protocol. The cursor is the id of an entry.
    Stream(Vec<u8>, resp::Protocol),
}

/// A client wants keys to go to another server.
#[derive(Debug)]
pub struct MigrateRequest {
    /// Where it is answered.
    pub core: CoreId,
    /// The session that asks.
    pub session: SessionId,
    /// Which of its requests that is.
    pub ticket: OwnTicket,
    /// What is asked.
    pub wish: MigrateWish,
}

/// A client wants this node to follow a Redis, or none any more (REPLICAOF).
#[derive(Debug)]
pub struct ReplicateRequest {
    /// Where it is answered.
    pub core: CoreId,
    /// The session that asks.
    pub session: SessionId,
    /// Which of its requests that is.
    pub ticket: OwnTicket,
    /// Where the Redis is, a host and a port; none for NO ONE.
    pub source: Option<(String, u16)>,
}

/// A client waits until replicas of other kinds have what was done before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowersRequest {
    /// Where it is answered.
    pub core: CoreId,
    /// The session that asks.
    pub session: SessionId,
    /// Which of its requests that is.
    pub ticket: OwnTicket,
    /// So many are waited for …
    pub wanted: u64,
    /// … until this time; without limit if there is none.
    pub until: Option<Instant>,
    /// The host answers within this time, whether or not there are so many by then.
    pub patience_ms: u64,
    /// Up to these places of the logs of groups; filled in by the host if what this node has done so far is meant.
    pub places: Vec<u64>,
    /// How it is answered.
    pub form: FollowersForm,
}

/// How a [`FollowersRequest`] is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowersForm {
    /// How many have it: WAIT.
    Count,
    /// How many nodes of this one have it on disk, and how many replicas do: WAITAOF.
    OnDisk(i64),
    /// Where the stream is behind it, and how many have it: HOLDFAST STREAM.
    Stream,
}

/// What the host knows of replicas of other kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowersAnswer {
    /// So many have acknowledged it.
    pub count: u64,
    /// Where the stream is behind it, unless it is not in the stream yet, or there is none.
    pub offset: Option<u64>,
    /// There is a stream, or is about to be: there may be more of them later.
    pub is_led: bool,
}

/// Which keys must go to which server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigrateWish {
    /// The server's name or address.
    pub host: String,
    /// Its port, as the client says it.
    pub port: String,
    /// The password, or user and password; nothing if none is needed.
    pub login: Vec<Vec<u8>>,
    /// The database there.
    pub target_database: i64,
    /// The database here.
    pub database: u16,
    /// The keys.
    pub keys: Vec<Vec<u8>>,
    /// So long the server may be silent.
    pub timeout_ms: u64,
    /// The keys stay here, too.
    pub is_copy: bool,
    /// What the server has under these keys is replaced.
    pub replaces: bool,
    /// Its client wants what it changes to be on disk before it is told so (CLIENT DURABILITY).
    pub is_synced: bool,
}

/// Who is at the other end of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// `ADDRESS:PORT`, or the path of a Unix socket followed by `:0`.
    pub address: String,
    /// Our own end, in the same form.
    pub local_address: String,
    /// True for loopback addresses and Unix sockets: what protected mode trusts.
    pub is_local: bool,
    /// File descriptor number, which CLIENT LIST shows; -1 if there is none.
    pub descriptor: i64,
    /// The host itself asks: it may do everything, whatever is set for users.
    pub is_host: bool,
}

/// Everything that can happen to a core.
pub enum Event<'a> {
    /// A client connected to this core.
    Opened {
        /// The new session.
        session: SessionId,
        /// Who it is.
        peer: Peer,
    },
    /// A client spoke.
    Bytes {
        /// Who.
        session: SessionId,
        /// What, as it came from the socket.
        bytes: &'a [u8],
    },
    /// The host could not write all of a session's output at once, or has now written more of it. Sent with zero when
    /// the last of it is gone.
    Backlog {
        /// The session with the output.
        session: SessionId,
        /// Bytes still waiting in the host.
        bytes: usize,
    },
    /// A client's connection is gone, from either side. The session's index may be reused after this.
    Closed {
        /// Who.
        session: SessionId,
        /// Bytes of replies that the host was given and the system was not.
        unsent_bytes: u64,
    },
    /// Another node spoke to this core.
    Peer {
        /// Who.
        from: NodeId,
        /// One whole message as [`Action::Send`] gave it.
        bytes: &'a [u8],
    },
    /// A sibling core spoke. Letters from one core arrive in the order in which they were posted.
    Envelope {
        /// Who.
        from: CoreId,
        /// What.
        envelope: Envelope,
    },
    /// A group of this core has been loaded from disk: until then its keys answer LOADING.
    Loaded(Box<GroupSeed>),
    /// What the host's data directory knows of. It comes before any group.
    Groups {
        /// The host brings so many groups.
        count: u32,
        /// Replicas of this node may have lost the end of what they had acknowledged.
        is_recovering: bool,
    },
    /// An [`Action::Append`] is as safe as it asked to be. Tickets of one group complete in order.
    Persisted {
        /// The group with the log.
        group: GroupId,
        /// The ticket of the append.
        ticket: u64,
    },
    /// The host has news of a checkpoint.
    Checkpoint {
        /// The group.
        group: GroupId,
        /// Which one.
        id: u64,
        /// What happened.
        news: CheckpointNews,
    },
    /// What an [`Action::ReadCheckpoint`] asked for.
    CheckpointRead {
        /// The group.
        group: GroupId,
        /// Which checkpoint.
        index: u64,
        /// Which chunk.
        chunk: u64,
        /// For which node.
        to: NodeId,
        /// The chunk; `None` behind the last; or why it cannot be read.
        read: Result<Option<Vec<u8>>, String>,
    },
    /// What an [`Action::ReadLog`] asked for.
    LogRead {
        /// The group.
        group: GroupId,
        /// Index of the first entry that was asked for.
        first: u64,
        /// The first of the entries, none if they are not written yet; or why there are none.
        read: Result<Vec<Entry>, String>,
    },
    /// A message to this node may have been lost: its link was cut, or is too slow.
    Unreachable {
        /// Which.
        node: NodeId,
    },
    /// Another node will have nothing to do with this one: the cluster has removed it for good.
    Expelled,
    /// Something has happened on a link of this node, for the timeline: said to the first core.
    Imposture {
        /// One line.
        text: String,
    },
    /// This node is linked to another one by way of this host. Said to all cores, if
    /// [`CoreOptions::is_own_host_unknown`].
    FoundAt {
        /// An address; one of IPv6 in brackets.
        host: String,
        /// The addresses of this machine now, as far as they are known.
        machine_addresses: Arc<[IpAddr]>,
    },
    /// A node has been found where the operator has said, and may be known elsewhere: said to the first core.
    Found {
        /// Which.
        node: NodeId,
        /// `HOST:PORT` for other nodes.
        address: String,
    },
    /// The link to this node is up.
    Reachable {
        /// Which.
        node: NodeId,
        /// The levels that it knows, as it has said.
        levels: Levels,
    },
    /// From now on tell what is done ([`Action::Tape`]), in the words of such a reader; or no longer.
    Record(Option<state::Reader>),
    /// Tapes of this group were thrown away: it begins to tell once more, with what is prepared there.
    RecordAgain(GroupId),
    /// The process is about to stop in good order: whatever is led here is handed over, if somebody can take it. See
    /// `Core::can_hand_over`.
    Leave,
    /// The disk has, or no longer has, room for what may still be admitted.
    Room(Room),
    /// An [`Action::UsersFile`] has been carried out: what the file holds, or nothing if it was written; or why not.
    UsersFile(Result<Vec<u8>, String>),
    /// What an [`Action::Changes`] asked for: one reply, or the text of a refusal.
    Changes {
        /// Who.
        session: SessionId,
        /// Which of its requests.
        ticket: OwnTicket,
        /// See above.
        answer: Result<Vec<u8>, String>,
    },
    /// This node follows a Redis, and that is how it is going; or it follows none. While it follows one, only sessions
    /// that write for it may change data.
    Source(Option<Arc<SourceFigures>>),
    /// An [`Action::Migrate`] or [`Action::Replicate`] has been carried out: a status, or the text of an error.
    Migrated {
        /// Who.
        session: SessionId,
        /// Which of its requests.
        ticket: OwnTicket,
        /// See above.
        answer: Result<&'static str, String>,
    },
    /// How many replicas of other kinds have what an [`Action::AwaitFollowers`] is about.
    FollowersHeard {
        /// As in the action, with places.
        request: Box<FollowersRequest>,
        /// See above.
        answer: FollowersAnswer,
    },
    /// An [`Action::Secure`] has been carried out; or why it cannot be, and then nothing has changed.
    Secured {
        /// As in the action.
        id: u64,
        /// See above.
        outcome: Result<(), String>,
    },
    /// What only the host can know, a few times a second.
    Report(Box<HostReport>),
    /// The end of a turn: all that was ready has been stepped. What was gathered is proposed now, and replies leave.
    /// Also sent when an instant asked for with [`Action::WakeAt`] has come.
    Turn,
}

/// Everything a core can ask of the world.
#[derive(Debug)]
pub enum Action {
    /// Send to a client, behind what was sent before.
    Reply {
        /// The session that gets it.
        session: SessionId,
        /// What. After the write the buffer may be handed back with `Core::recycle`.
        bytes: Vec<u8>,
    },
    /// End a connection, after its output has been written. [`Event::Closed`] follows.
    Close {
        /// The session.
        session: SessionId,
    },
    /// End a connection at once; what has not been written is dropped. [`Event::Closed`] follows.
    Abort {
        /// The session.
        session: SessionId,
    },
    /// A client is no client any more, but wants to be told what changes. Its output has been handed over; its
    /// connection is taken from the core, and [`Event::Closed`] follows.
    Follow {
        /// Who.
        session: SessionId,
        /// What it wants.
        follower: Box<Follower>,
    },
    /// Read what has changed, on disk; [`Event::Changes`] follows, unless the one who asked has gone by then.
    Changes(Box<ChangesRequest>),
    /// Carry keys to another server; [`Event::Migrated`] follows.
    Migrate(Box<MigrateRequest>),
    /// Follow a Redis, or none any more; [`Event::Migrated`] follows.
    Replicate(Box<ReplicateRequest>),
    /// An [`Event::Source`] has taken effect on this core.
    SourceHeard {
        /// Elements that clients took are on their way to them, or back.
        owes: bool,
    },
    /// Wait until replicas of other kinds have something; [`Event::FollowersHeard`] follows.
    AwaitFollowers(Box<FollowersRequest>),
    /// What a group has done. Comes before the replies to the one who asked for it.
    Tape(Box<state::Tape>),
    /// Stop reading from a client's socket (its bytes stay in the kernel, and its sender feels it) …
    Pause {
        /// The session.
        session: SessionId,
    },
    /// … and go on.
    Resume {
        /// The session.
        session: SessionId,
    },
    /// Send to another node; may be lost.
    Send {
        /// The node that gets it.
        to: NodeId,
        /// The group it concerns: that group's core receives it there.
        group: GroupId,
        /// How urgent it is.
        lane: Lane,
        /// One whole message.
        bytes: Vec<u8>,
    },
    /// The nodes of the cluster and where they are found, this one among them, and those that were removed: they are
    /// not to be called, and told so when they call. Replaces what was told before.
    Peers(Vec<(NodeId, Member)>),
    /// Where nodes may be as well: to be tried in turn with where [`Action::Peers`] says that they are. Who is called
    /// there must show that it is that node. Replaces what was told before.
    AlsoAt(Vec<(NodeId, Vec<String>)>),
    /// Read a chunk of a checkpoint that is on disk; [`Event::CheckpointRead`] follows. Chunks are mostly asked for in
    /// order.
    ReadCheckpoint {
        /// The group.
        group: GroupId,
        /// Which checkpoint.
        mark: CheckpointMark,
        /// Which chunk, from 0.
        chunk: u64,
        /// Handed back in the event.
        to: NodeId,
    },
    /// Read entries back that are on disk; [`Event::LogRead`] follows.
    ReadLog(Span),
    /// Entries of a group behind `index` must stay on disk although a checkpoint covers them: members lack them. As far
    /// as the host's bound allows; replaces what was asked before.
    KeepLog {
        /// The group.
        group: GroupId,
        /// Up to here nobody lacks them.
        index: u64,
    },
    /// How far a group is that is archived.
    Archive(ArchiveNews),
    /// Hand to a sibling core; never lost, in order.
    Post {
        /// The core that gets it.
        to: CoreId,
        /// What.
        envelope: Envelope,
    },
    /// Something of this level is about to be written to a log of this node. What the directory says must be on disk
    /// before any later action is carried out, and no link may go on with a node that does not know the level.
    Floor(stdx::Level),
    /// Write to a group's log.
    Append {
        /// What.
        append: Append,
        /// When it counts as persisted.
        persist: Persist,
    },
    /// Work on a checkpoint's file.
    Checkpoint {
        /// The group.
        group: GroupId,
        /// Which one; unique per group while the process lives.
        id: u64,
        /// What to do.
        step: CheckpointStep,
    },
    /// Step [`Event::Turn`] at this instant at the latest. Only the earliest outstanding wish need be kept.
    WakeAt {
        /// When.
        instant: Instant,
    },
    /// A configuration parameter that the host carries out has been changed (`maxclients`, `appendfsync`, …).
    Configured {
        /// Name of the parameter.
        name: &'static str,
        /// Its new value as CONFIG GET shows it.
        value: String,
    },
    /// Read or write the file of users; [`Event::UsersFile`] follows.
    UsersFile {
        /// Its name, as configured.
        path: String,
        /// Which.
        step: UsersFile,
    },
    /// Obey these parameters of TLS, and the files they name as they are now, from the next connection on;
    /// [`Event::Secured`] follows.
    Secure {
        /// Handed back in the event.
        id: u64,
        /// All parameters.
        settings: Box<Settings>,
    },
    /// One line for the operator's log.
    Log {
        /// How bad.
        level: Level,
        /// The line.
        line: String,
    },
    /// The process cannot go on; this line says why and what to do. Exit code 1.
    Fatal {
        /// The line.
        line: String,
    },
    /// End the process in good order: no new clients, logs synced, exit code 0.
    Shutdown {
        /// Replicas of other kinds that lack something are waited for.
        waits: bool,
    },
    /// The same, and then start over as a node without data, which joins the cluster of this one. Not if any core
    /// [holds something](crate::Core::is_blank) by then, nor if nobody answers there: then go on as before.
    Join {
        /// Where that node is found by others, `HOST:PORT`.
        address: String,
        /// What lets it in there, as a token that the host reads.
        token: Option<String>,
    },
    /// Stop this core for a while (DEBUG SLEEP). The simulator may only note it.
    Sleep {
        /// How long.
        duration: Duration,
    },
}

/// What to do with the file of users (`aclfile`), or with that of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum UsersFile {
    /// Read it.
    Load,
    /// Put this in its place, whole or not at all.
    Save(Vec<u8>),
    /// Put in its place what [`crate::settings::rewritten`] makes of it; there may be none yet.
    Rewrite {
        /// The parameters that hold.
        settings: Arc<Settings>,
        /// The users, if they are kept in it.
        users: Option<Arc<Users>>,
    },
}

/// What every core of a node is told once, at its start.
#[derive(Clone, Debug)]
pub struct CoreOptions {
    /// This node.
    pub node: NodeId,
    /// This core.
    pub core: CoreId,
    /// Cores of this node.
    pub core_count: u16,
    /// Groups over which the slots were divided when the cluster was founded; group *g* lives on core *g* mod
    /// `core_count`. More may have been founded since: see [`Event::Groups`].
    pub group_count: u32,
    /// Where keyspaces put keys: the same everywhere in the cluster.
    pub hash_seed: u64,
    /// Groups are founded by themselves when the nodes have cores for more.
    pub founds_groups: bool,
    /// The levels that this program knows.
    pub levels: Levels,
    /// The highest level of anything in the logs of this node, as its directory says.
    pub floor: stdx::Level,
    /// Seed of all chance on this core.
    pub seed: u64,
    /// Configuration at the start.
    pub settings: Arc<Settings>,
    /// Facts about the process, for INFO.
    pub process: Arc<ProcessFacts>,
    /// Where this node is found.
    pub own: Member,
    /// At which host it is found by others is not known: what `own` says holds until the roster or another node knows
    /// better.
    pub is_own_host_unknown: bool,
    /// The addresses of this machine, as far as they are known. The roster is believed only if it names one of them.
    pub machine_addresses: Arc<[IpAddr]>,
    /// Nodes to be told of this one if it knows nobody yet.
    pub seeds: Vec<(NodeId, Member)>,
    /// A stopwatch for statistics only (SLOWLOG, INFO commandstats); the simulator's may stand still.
    pub stopwatch: fn() -> Instant,
}
