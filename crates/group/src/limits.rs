//! Every bound of a group, by name, with the relations between them.

use stdx::Duration;

/// Bytes proposed or gathered and not yet applied, per group, beyond which no more writes are admitted. One more
/// request may pass, so the true bound is this plus the longest request.
pub const WINDOW_BYTES_MAX: usize = 32 << 20;

/// Bytes reserved for the next batch on the strength of the last one.
pub const BATCH_BYTES_RESERVED_MAX: usize = 256 << 10;

/// The same for those who wait for its items.
pub const BATCH_WAITERS_RESERVED_MAX: usize = 1_024;

/// Bytes of values that a transaction over groups may change in one of them: they travel in one entry.
pub const EFFECTS_BYTES_MAX: usize = consensus::limits::ENTRY_BYTES_MAX - (32 << 20);

/// Requests of one group that wait for locked keys.
pub const HELD_COUNT_MAX: usize = 100_000;

/// Bytes of log applied in one turn while a group catches up, so that other clients are served in between.
pub const APPLY_BYTES_PER_TURN: usize = 1 << 20;

/// Bytes that may be committed and wait behind an entry while its large values are being read in.
pub const BEHIND_LARGE_BYTES_MAX: usize = 64 << 20;

/// Values of transactions from this length on are read and written in steps of [`SLICE_BYTES`].
pub const SLICED_BYTES_MIN: usize = 512 << 10;

/// See above. One step a turn: a few thousand elements.
pub const SLICE_BYTES: usize = 128 << 10;

/// From which length on values come and go in steps, and how long a step is. Only the simulator has others than these.
#[derive(Clone, Copy, Debug)]
pub struct Slicing {
    /// See [`SLICED_BYTES_MIN`].
    pub bytes_min: usize,
    /// See [`SLICE_BYTES`].
    pub step_bytes: usize,
}

impl Default for Slicing {
    fn default() -> Self {
        Self { bytes_min: SLICED_BYTES_MIN, step_bytes: SLICE_BYTES }
    }
}

/// Bytes of checkpoint handed to the host and not yet written.
pub const CHECKPOINT_OUTSTANDING_BYTES_MAX: usize = 2 << 20;

/// Bytes of checkpoint made in one turn. A record may be longer.
pub const CHECKPOINT_BYTES_PER_TURN: usize = 32 << 10;

/// Bytes gathered before a chunk of a checkpoint is handed to the host.
pub const CHECKPOINT_CHUNK_BYTES: usize = 256 << 10;

/// How long the next checkpoint that nobody asked for waits after one that failed, for instance on a full disk.
pub const CHECKPOINT_REST: Duration = Duration::from_secs(5);

/// Raft's tick.
pub const TICK_INTERVAL: Duration = consensus::limits::TICK_INTERVAL;

/// How long a read waits for a quorum to confirm that this node leads.
pub const READ_CONFIRMATION_MAX: Duration = Duration::from_secs(2);

/// How often a replica that does not lead asks how far its group is while clients read from it (READONLY). That and the
/// way to the leader is how old an answer usually may be.
pub const SOUNDING_INTERVAL: Duration = TICK_INTERVAL;

/// The same while nobody does, so that the first one who does is answered.
pub const SOUNDING_INTERVAL_AT_REST: Duration = Duration::from_millis(350);

/// For so long after a client has read from a replica others are expected.
pub const SOUNDING_WANTED: Duration = Duration::from_secs(10);

/// Soundings that wait for an answer, and answers that wait until so much has been applied.
pub const SOUNDINGS_MAX: usize = 64;

/// Sessions for which a group remembers that one of their requests went back to its gateway. Beyond that, it forgets
/// those that their gateways have long known about.
pub const REDIRECTED_MAX: usize = 256;

/// A gateway that has not heard of it after so long is gone, or has asked again.
pub const REDIRECTED_AGE_MAX: Duration = Duration::from_secs(60);

/// Sessions of which a replica remembers that it has declined them, before those are looked at that are long past.
pub const DECLINED_MAX: usize = 256;

/// A session has heard of a clock so much later than the replica's leader tells: the replica declines instead of
/// reading at a time at which keys have expired that live, in milliseconds.
pub const REPLICA_CLOCK_LEAP_MAX_MS: i64 = 1_000;

/// How often a group that is archived tells the host how far it is; and after so long without an entry it logs that
/// time has passed, if that closes what another group has logged. A fraction of the second that an archive may be
/// behind.
pub const ARCHIVE_INTERVAL: Duration = Duration::from_millis(250);

/// How often a leader looks at which nodes take part in its group.
pub const RECONCILE_INTERVAL: Duration = Duration::from_millis(200);

/// How often a leader tells all nodes how its group is.
pub const BULLETIN_INTERVAL: Duration = Duration::from_secs(1);

/// A host that has stalled for so long within [`GUILT_WINDOW`] does not lead, if another is much better.
pub const GUILT_STALLED: Duration = Duration::from_secs(1);

/// That many times better.
pub const GUILT_RATIO: u64 = 4;

/// How long a leader reaches fewer nodes than another could before it hands over: both hear of a silence, but not at
/// the same instant.
pub const REACH_PATIENCE: Duration = Duration::from_millis(250);

/// A leader hands over if its own disk has not taken an entry after so long, while another's has.
pub const BLOCKED_DISK: Duration = Duration::from_millis(600);

/// A leader without room on its disk sends requests back for so long, while another voter has room: then that one is to
/// lead. After that it refuses them.
pub const RELIEF_MAX: Duration = Duration::from_secs(2);

/// A leader that has applied nothing for so long although something is under way does not promise that it will.
pub const STUCK_AFTER: Duration = Duration::from_secs(1);

/// How long a voter that did not take leadership over is not asked to again.
pub const HAND_OVER_REST: Duration = Duration::from_secs(3);

/// A member that has been silent for so long is not waited for when another one must go.
pub const MEMBER_SILENCE_MAX: Duration = Duration::from_secs(3);

/// How many members are asked, of those that a leader names, whether this replica was let go. Most groups have fewer.
pub const WITNESSES_ASKED_MAX: usize = 8;

/// A leader that has told nothing for so long may be none any more.
pub const BULLETIN_STALE: Duration = Duration::from_secs(4);

/// A leader that was heard within this time is believed before any other node that says it leads. A replica that was
/// let go, as two members say, gives up what it has when it has heard no other leader for so long.
pub const LEADER_HEARD: Duration = Duration::from_secs(2);

/// A replica does not give up what it has, whatever one node says that claims to lead, before it has heard no other
/// leader for so long, and never while by the roster there is a second member that could be asked. Where such a one
/// says that it was let go, or the group is to live on a single other node, [`LEADER_HEARD`] is enough.
pub const LET_GO_SILENCE: Duration = Duration::from_secs(30);

/// How often the leader of the metadata looks whether a group should live elsewhere. Longer than it takes until what
/// it has said last is in its roster.
pub const BALANCE_INTERVAL: Duration = Duration::from_secs(1);

/// A node that has been silent, or without room, for so long is not waited for when it should be given a group.
pub const BALANCE_PATIENCE: Duration = Duration::from_secs(10);

/// A checkpoint that is given to another node waits while the leader's own disk has taken nothing for so long.
pub const GIVING_DISK_LAG: Duration = Duration::from_millis(50);

/// For a chunk of it no longer than that.
pub const GIVING_PAUSE_MAX: Duration = Duration::from_secs(1);

/// However low the pace is, a chunk is given after so long: the member waits [`TRANSFER_PATIENCE`] for it.
pub const GIVING_WAIT_MAX: Duration = Duration::from_secs(5);

/// What has not been given in so short a time may be made up for: leaders look at it at their ticks only.
pub const GIVING_BURST: Duration = Duration::from_millis(200);

/// Bytes of a group's log held in memory once they have been applied, for members that are behind. Those who lack more
/// are fed from the disk.
pub const LOG_BYTES_MAX: usize = 16 << 20;

/// Bytes of entries read from the disk at a time for a member that is behind. One more record may come on top.
pub const LOG_READ_BYTES: usize = 4 << 20;

/// How often the host is told which part of the log members lack.
pub const LOG_KEEP_INTERVAL: Duration = Duration::from_secs(1);

/// How long the log behind a checkpoint is kept for a member that has not asked for the next chunk.
pub const LOG_HOLD: Duration = Duration::from_secs(20);

/// How long the log is kept while a checkpoint that a member waits for is being written.
pub const LOG_HOLD_FOR_CHECKPOINT: Duration = Duration::from_secs(600);

/// How often a replica that may lack the end of its log, and that nobody leads, says what it waits for.
pub const DOUBT_TOLD_INTERVAL: Duration = Duration::from_secs(5);

/// How long either side of a checkpoint's transfer waits for the other before it gives up.
pub const TRANSFER_PATIENCE: Duration = Duration::from_secs(10);

/// After so long without an answer an offer or a chunk is asked for again.
pub const TRANSFER_RETRY: Duration = Duration::from_millis(500);

/// Happenings that a node remembers.
pub const TIMELINE_COUNT_MAX: usize = 1_000;

/// Places in a group's log that are remembered with when they were reached, to tell how late followers are.
pub const PACE_COUNT_MAX: usize = 1_024;

/// A leader hands over if its writes take so long on its own disk, and [`SLOW_LEADER_TIMES`] as long as on another's.
pub const SLOW_LEADER: Duration = Duration::from_millis(40);

/// See above.
pub const SLOW_LEADER_TIMES: u32 = 4;

/// Writes by which it is told whether a host is slow: half of them, over ten seconds, must have been.
pub const PACE_SAMPLES: usize = 20;

/// How often a write is followed on its way to the disks of all.
pub const PACE_INTERVAL: Duration = Duration::from_millis(500);

/// A write that a member does not have by then counts as having taken so long.
pub const PACE_PATIENCE: Duration = Duration::from_secs(2);

/// How often a client that waits for data takes its place again at groups that another node may lead.
pub const LINE_RENEWAL_INTERVAL: Duration = Duration::from_secs(1);

/// Who has found nothing to claim is not woken for that reason again before this.
pub const CLAIM_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Bytes of requests under way from one gateway to one group.
pub const STREAM_BYTES_MAX: usize = 8 << 20;

/// What is large takes its time on the way, on disks and in memory: for so many bytes a second more is waited.
pub const BYTES_PER_PATIENT_SECOND: usize = 4 << 20;

/// How long keys may be locked by a transaction that has not been prepared. Its gateway may be gone; if it is not, it
/// starts over.
pub const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// How often a gateway on another node that holds or wants locks is asked whether it lives.
pub const GATEWAY_ASK_INTERVAL: Duration = Duration::from_millis(250);

/// After so many questions without an answer it is taken for dead. It loses its locks, and starts over if it is not.
pub const GATEWAY_ASKS_MAX: u32 = 5;

/// How long a request for locks waits before its gateway has to ask again.
pub const LOCK_WAIT_RENEWAL: Duration = Duration::from_secs(2);

/// How long a reservation lasts at most once its client has been told what it watches looks like. Others wait so long.
pub const RESERVATION_MAX: Duration = Duration::from_millis(50);

/// How long a reservation waits for what came before it.
pub const RESERVATION_BEGIN_MAX: Duration = Duration::from_secs(1);

/// Clients that have something reserved in one group.
pub const RESERVATIONS_MAX: usize = 64;

/// Keys that one client has reserved in one group.
pub const RESERVED_KEYS_MAX: usize = 64;

/// How long a prepared transaction waits for its gateway before its group asks the others.
pub const PREPARED_PATIENCE: Duration = Duration::from_millis(700);

/// How long a group has been led by one node before another is preferred.
pub const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// How long no checkpoint begins in a group before a backup of it is made.
pub const CUT_WISH: Duration = Duration::from_secs(5);

/// How long a group keeps its part of a backup that nobody reads.
pub const CUT_PATIENCE: Duration = Duration::from_secs(60);

/// The same while a member waits for a checkpoint, which cannot be made as long as that part is kept.
pub const CUT_PATIENCE_OF_MEMBERS: Duration = Duration::from_secs(5);

/// Bytes of keys that move to another group at once, as long as a single slot has not more: for so long as they take
/// to be logged by both groups, requests for them wait.
pub const MOVE_BYTES: usize = 1 << 20;

/// Slots that move at once.
pub const MOVE_SLOTS: usize = 64;

/// Bytes of keys of a slot, as they lie in memory, beyond which it is not moved: they travel in one entry.
pub const MOVE_BYTES_MAX: usize = 64 << 20;

/// How long a group that gives slots away rests before the next.
pub const MOVE_REST: Duration = Duration::from_millis(5);

/// How long a slot that must move waits for those who hold its keys before they have precedence.
pub const MOVE_DRAIN_MAX: Duration = Duration::from_millis(300);

/// How long both groups may take to prepare a move before it is given up.
pub const MOVE_PREPARE_MAX: Duration = Duration::from_secs(2);

/// A group that is to go does not end while the archive is further behind: until that knows the end, clients who work
/// on all groups wait.
pub const END_ARCHIVE_LAG: Duration = Duration::from_secs(2);

/// After how long it is told that a group that holds no slot any more does not end.
pub const END_TOLD_AFTER: Duration = Duration::from_secs(15);

/// For so long replicas of a group that has gone answer those who have asked it before: longer than a gateway waits.
pub const GONE_PATIENCE: Duration = Duration::from_secs(10);

/// After how long it is told that a split still waits.
pub const SPLIT_TOLD_AFTER: Duration = Duration::from_secs(5);

/// After how long a move that was given up is tried again.
pub const MOVE_RETRY: Duration = Duration::from_millis(500);

/// After how long it is looked again whether a slot is still too large.
pub const MOVE_LARGE_RETRY: Duration = Duration::from_secs(60);

/// How long a slot stays where it has come to. By then nobody asks its last holder any more for what he has asked this
/// one for.
pub const MOVE_AGAIN: Duration = Duration::from_secs(1);

/// How often a leader looks for transactions with an end that can be forgotten.
pub const ENDINGS_INTERVAL: Duration = Duration::from_secs(1);

/// How long a commit is known to a leader before the other participants are asked whether they have ended it, too: a
/// gateway that lives says so earlier.
pub const COMMIT_PATIENCE: Duration = Duration::from_secs(2);

/// How long a refusal is kept. Locks that were granted to the transaction have lapsed by then.
pub const REFUSAL_PATIENCE: Duration = Duration::from_secs(30);

/// Participants asked at a time whether they have ended a transaction.
pub const ENDINGS_ASKED_MAX: usize = 256;

/// Transactions that are looked at for that at a time, and that one item forgets at most.
pub const ENDINGS_LOOKED_AT_MAX: usize = 1024;

/// How often a leader asks about a prepared transaction without a gateway.
pub const INQUIRY_INTERVAL: Duration = Duration::from_millis(200);

/// How much longer than usual is waited for an answer to so many bytes.
pub fn patience_for(byte_count: usize) -> Duration {
    Duration::from_millis((byte_count as u64).saturating_mul(1_000) / BYTES_PER_PATIENT_SECOND as u64)
}

const _: () = assert!(MOVE_BYTES_MAX < EFFECTS_BYTES_MAX && MOVE_BYTES < MOVE_BYTES_MAX);
const _: () = assert!(SLICE_BYTES <= SLICED_BYTES_MIN && SLICED_BYTES_MIN < STREAM_BYTES_MAX);
const _: () = assert!(CHECKPOINT_CHUNK_BYTES <= CHECKPOINT_OUTSTANDING_BYTES_MAX);
const _: () = assert!(CHECKPOINT_BYTES_PER_TURN <= CHECKPOINT_CHUNK_BYTES);

/// How long a group remembers what is under way for the sake of scripts, after the last one.
pub const SCRIPT_MEMORY: Duration = Duration::from_secs(10);

/// A node that has been silent for less is not called away: its leader may have begun a moment ago.
pub const AWAY_MIN: Duration = Duration::from_secs(5);
