//! The waist: everything that can happen to a core, and everything a core can ask of the world.
//!
//! Both enums are closed on purpose. The real host (`edge`) and the false one (`simulation`) drive the same cores
//! through them, and nothing else passes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use journal::{Append, CheckpointMark, Span};
use keyspace::{Corrupt, Keyspace};
use message::entry::Born;
use state::SplitOff;
use state::{Position, State};
use stdx::log::{Entry, HardState, Membership};
use stdx::{Duration, Instant, Levels, UnixMillis};

pub use message::{CoreId, GroupId, NodeId};

use crate::acl::Users;
use crate::checkpoint::{CHUNK_KEYSPACE, CHUNK_STATE};
use crate::core_messages::Envelope;
use crate::roster::Member;
use crate::session::OwnTicket;
use crate::settings::Settings;
use crate::stalls::Stalls;

/// One client's connection. The host mints it: `serial` is unique while the node runs and is the client's id as
/// CLIENT ID tells it; `index` is small, and free again once the session is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId {
    /// Unique and growing over all cores of the node, from 1.
    pub serial: u64,
    /// Place in the tables of the host and of its core.
    pub index: u32,
}

/// What the clocks say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Monotonic clock: time-outs, durations.
    pub instant: Instant,
    /// Wall clock: expiry.
    pub unix: UnixMillis,
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

/// A replica of another kind, such as a stock Redis, that wants to be told what changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Follower {
    /// What it asks for; nothing yet while it only tells of itself.
    pub wish: Option<Wish>,
    /// Its end of the connection, `ADDRESS:PORT`.
    pub address: String,
    /// Where it is found, if it has said so; empty if not.
    pub host: String,
    /// The port on which it serves clients; 0 if it has not said so.
    pub port: u16,
    /// It takes a copy with a marked end (`capa eof`). Others want to know its length first.
    pub takes_marked: bool,
    /// Its version, if it has said so, which only Valkey does; empty if not.
    pub version: String,
    /// It wants nothing behind the copy.
    pub wants_copy_only: bool,
    /// What it wants to be in the copy.
    pub content: CopyContent,
}

/// What a copy for a replica of another kind holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyContent {
    /// Keys and libraries of functions.
    #[default]
    All,
    /// Libraries of functions, and no keys.
    Functions,
    /// Neither: it has them, or wants only what comes next.
    Nothing,
}

/// What a replica of another kind asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// What comes at this offset of this stream.
    Continue {
        /// The stream: 40 hexadecimal digits.
        id: String,
        /// The first byte that it lacks; the first of all has 1.
        offset: u64,
    },
    /// Everything (`PSYNC ? -1`).
    Copy,
    /// Everything, without a word on the stream before it (SYNC).
    OldCopy,
    /// All that all groups do, for another cluster.
    Site {
        /// Behind this place of each group's log, if it has that much of this cluster; otherwise a copy first.
        place: Option<(u128, Vec<u64>)>,
        /// It can go on with a copy: with the one of this name from this byte on, if that is still there.
        copy: Option<(u128, u64)>,
    },
}

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

/// What an archive needs to know of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveNews {
    /// Which.
    pub group: GroupId,
    /// True where it is led.
    pub is_leading: bool,
    /// The disk of the leader's node has no room.
    pub lacks_room: bool,
    /// Others vote: what the log of this node does not hold any more they may hold.
    pub has_others: bool,
    /// The last entry applied here: it is committed.
    pub index: u64,
    /// The terms of entries up to this one are not known.
    pub floor: u64,
    /// The terms of the entries behind it, where the group is led: each with the index from which it counts.
    pub terms: Vec<(u64, u64)>,
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

/// Which of the ways to another node a message takes. Order is kept within each; bulk never delays a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Who lives and who leads.
    Vital,
    /// The log, requests and replies.
    Log,
    /// Checkpoints.
    Bulk,
}

/// How loud a line in the operator's log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something ordinary happened.
    Notice,
    /// Something an operator should look at.
    Warning,
}

/// When an append counts as persisted; [`Event::Persisted`] says so, in the order of the appends of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persist {
    /// When it is on disk.
    Synced,
    /// When it has been handed to the operating system, and so outlives the process. The journal syncs it as
    /// `appendfsync` says.
    Written,
}

/// A step in writing a checkpoint. Steps of one checkpoint come in order: `Begin`, chunks, then `Finish`; or for one of
/// a leader's `Keep` and `Install`; or `Abandon` at any time.
#[derive(Debug)]
pub enum CheckpointStep {
    /// Open a new file for it.
    Begin(CheckpointMark),
    /// Append a chunk; the host answers with [`CheckpointNews::Written`], and may take its time: that is the pacing.
    Chunk(Vec<u8>),
    /// All chunks have been given: make it durable and let it count. [`CheckpointNews::Finished`] follows.
    Finish,
    /// All chunks have been given, and they are a leader's: make it durable, without letting it count. Whatever may be
    /// lacking for it, as room, is found out here. [`CheckpointNews::Kept`] follows.
    Keep,
    /// Let what is kept count and take the place of the group's log, with this hard state, in one record, however long
    /// that takes: the group has no other log any more. [`CheckpointNews::Finished`] follows.
    Install(HardState),
    /// Throw it away.
    Abandon,
}

/// What a host tells of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointNews {
    /// So many bytes of its chunks have been written since the last such news.
    Written(usize),
    /// It is durable, and does not count yet.
    Kept,
    /// It is durable and counts; log before it may be dropped.
    Finished,
    /// It could not be written; it does not count, and the log is kept.
    Failed(String),
}

/// Whether the disk can take what may still be admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Room {
    /// Yes.
    Enough,
    /// No, for this reason: writes are refused, reads go on.
    None(String),
}

/// A group as found on disk, or a new one.
pub struct GroupSeed {
    /// Which.
    pub group: GroupId,
    /// State at `checkpoint_index`; empty for a new group.
    pub keyspace: Keyspace,
    /// What this replica promised.
    pub hard_state: HardState,
    /// Who takes part, as of the checkpoint or of the last applied change.
    pub membership: Membership,
    /// Log index of the checkpoint the keyspace was loaded from; 0 if none.
    pub checkpoint_index: u64,
    /// Term of the entry at that index.
    pub checkpoint_term: u64,
    /// The rest of the log.
    pub entries: Vec<Entry>,
    /// True if this replica may have lost the unsynced end of its log: it must not vote until it has caught up.
    pub is_recovering: bool,
    /// What the checkpoint holds of the group itself; filled by [`GroupSeed::restore`].
    pub state: Vec<u8>,
    /// What the group begins with, if it has split off from another one and has no checkpoint of its own yet.
    pub beginning: Option<Box<SplitOff>>,
    /// Groups that begin with what the log of this one makes of their slots: they have no checkpoint of their own here.
    pub unkept: BTreeSet<GroupId>,
    /// The replica has never been anything before.
    pub is_new: bool,
    /// The group has been given up here, and not been given a checkpoint since.
    pub was_given_up: bool,
}

impl GroupSeed {
    /// A group without data or log, with `node` as its only member.
    pub fn new(group: GroupId, node: NodeId, keyspace: Keyspace) -> Self {
        Self {
            group,
            keyspace,
            hard_state: HardState::default(),
            membership: Membership { voters: vec![node.0], ..Membership::default() },
            checkpoint_index: 0,
            checkpoint_term: 0,
            entries: Vec::new(),
            is_recovering: false,
            state: Vec::new(),
            beginning: None,
            unkept: BTreeSet::new(),
            is_new: false,
            was_given_up: false,
        }
    }

    /// Where the group has split off, if it needs [what it begins with](GroupSeed::beginning) and has not got it yet.
    pub fn born(&self) -> Option<Born> {
        let first = self.entries.first().filter(|first| first.index == state::FIRST.index)?;
        let is_needed = self.checkpoint_index == 0 && self.beginning.is_none();
        is_needed.then(|| Born::of_entry(&first.data)).flatten()
    }

    /// Takes one chunk of the group's checkpoint, as [`CheckpointStep::Chunk`] gave it. Chunks come in order.
    ///
    /// # Errors
    /// If the chunk is none.
    pub fn restore(&mut self, chunk: &[u8]) -> Result<(), Corrupt> {
        match chunk.split_first() {
            Some((&CHUNK_STATE, state)) => {
                self.state = state.to_vec();
                Ok(())
            }
            Some((&CHUNK_KEYSPACE, records)) => self.keyspace.restore(records),
            _ => Err(Corrupt { offset: 0 }),
        }
    }

    /// The group's state as its checkpoint has it, one of so many groups, and the log behind it: what is needed to look
    /// at a group, or to replay its log, without a node.
    pub fn into_state(self, group_count: u32) -> (State, Vec<Entry>) {
        if let Some(split) = self.beginning {
            let behind = self.entries.into_iter().filter(|entry| entry.index > state::FIRST.index);
            return (split.state, behind.collect());
        }
        let mut state = State::new(self.group, group_count, self.keyspace);
        state.load(&self.state, Position { index: self.checkpoint_index, term: self.checkpoint_term });
        (state, self.entries)
    }
}

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
