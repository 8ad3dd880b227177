//! Every bound of a core, by name, with the relations between them.

use stdx::Duration;

/// Bytes of output that a client may leave unread before its further requests wait.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// Bytes that a client which listens to nothing may be sent unasked and leave unread: what MONITOR shows, and keys that
/// are no longer as it has cached them. Those who listen have `client-output-buffer-limit`.
pub const PUSHED_BYTES_MAX: usize = 32 << 20;

/// Keys that clients have cached and that are forgotten in one turn, with word to the clients, because there are more
/// than `tracking-table-max-keys`.
pub const CACHED_KEYS_FORGOTTEN_PER_TURN: usize = 1_000;

/// Replies that may be owed to a client when it asks for one more to come from another core or behind a write. How long
/// such a reply will be is not known when it is asked for.
pub const OWED_COUNT_TO_READ_MAX: u64 = 64;

/// Bytes of a client's command up to which its words travel to another core among those of others.
pub const PLAIN_REQUEST_BYTES_MAX: usize = 16 << 10;

/// Letters between cores that have been read and are kept for the next ones, at most.
pub const ENVELOPES_KEPT_MAX: usize = 8;

/// Memory for the bytes of an envelope between cores that is kept for the next one, at most.
pub const ENVELOPE_BYTES_KEPT_MAX: usize = 64 << 10;

/// Pieces for which the memory of such an envelope is kept, at most.
pub const ENVELOPE_PIECES_KEPT_MAX: usize = 1 << 10;

/// Reads of one client that are remembered, answered ones among them, before these are sorted out.
pub const READS_NOTED_MAX: usize = 4 * OWED_COUNT_TO_READ_MAX as usize;

/// Bytes received from a client with waiting requests, beyond which its socket is no longer read.
pub const INPUT_BYTES_MAX: usize = 1 << 20;

/// Bytes of one client's requests sent on and not answered, beyond which it waits until all of them are.
pub const UNANSWERED_BYTES_MAX: usize = 32 << 20;

/// Bytes of commands that one MULTI may queue.
pub const MULTI_BYTES_MAX: usize = 1 << 30;

/// The longest time for which answers to requests with an id can be kept, in seconds: a week.
pub const REQUEST_ID_SECONDS_MAX: i64 = 7 * 86_400;

/// A reply to a request with an id is kept, and may have so many bytes.
pub const KEPT_REPLY_BYTES_MAX: usize = 1 << 20;

/// How much of a path that a client sends stands in the log.
pub const LOGGED_PATH_BYTES_MAX: usize = 256;

/// Keys and elements freed in one turn of what long work has left.
pub const FREED_PER_TURN: usize = 8_192;

/// Commands that a script which takes long may call before others have their turn.
pub const CALLS_PER_PART: u32 = 1_000;

/// Physical clean-up done in one turn, in keys.
pub const COLLECT_PER_TURN: usize = 64;

/// Keys evicted in one turn of one group.
pub const EVICTIONS_PER_TURN: usize = 64;

/// Requests of one session executed before others get their turn.
pub const REQUESTS_PER_RUN: usize = 4_096;

/// Rounds of parsing, committing and replying within one turn, for clients with requests that wait for one another.
pub const ROUNDS_PER_TURN: usize = 64;

/// A client that has not authenticated for so long gives way to others when few places are left.
pub const AUTHENTICATION_MAX: Duration = Duration::from_secs(10);

/// So many clients are near to `maxclients`: nine tenths.
pub const fn clients_near(clients_max: u64) -> u64 {
    clients_max - clients_max / 10
}

/// How often the log tells of clients that speak HTTP (Redis: once a minute).
pub const HTTP_INTERVAL: Duration = Duration::from_secs(60);

/// How old a client may let its reads be at most, in milliseconds: a day.
pub const READ_STALENESS_MS_MAX: u64 = 86_400_000;

/// How far a moment that is heard may be ahead of the own wall clock to be followed, in milliseconds. Clocks that are
/// looked after agree to well below a second; a minute leaves room for one that is being put right.
pub const MOMENT_LEAP_MAX_MS: i64 = 60_000;

/// How often it is told that one is further ahead.
pub const MOMENT_LEAP_TOLD_INTERVAL: Duration = Duration::from_secs(60);

/// How long a request waits for a leader to be known.
pub const LEADER_WAIT_MAX: Duration = Duration::from_secs(2);

/// How often a node tells the others how it is itself, and which nodes it hears.
pub const VITALS_INTERVAL: Duration = Duration::from_millis(140);

/// Between the moment at which a node says that it wants to write a checkpoint and the one at which it begins. Several
/// times [`VITALS_INTERVAL`].
pub const CHECKPOINT_NOTICE: Duration = Duration::from_millis(500);

/// A log that has grown so far beyond what calls for a checkpoint, in percent, waits for no other node's.
pub const CHECKPOINT_LATE_PERCENT: u64 = 50;

/// How far back stalls of a host are held against it.
pub const GUILT_WINDOW: Duration = Duration::from_secs(60);

/// A stall that is shorter is not: clients hardly notice it.
pub const GUILT_STALL: Duration = Duration::from_millis(50);

/// Fewer stalls than these say nothing: one may be a machine that was moved.
pub const GUILT_COUNT: u64 = 5;

/// Who has told nothing of itself for so long is not heard: an election time-out.
pub const VITALS_SILENCE: Duration = Duration::from_millis(700);

/// Anyone who has not been heard for so long may be dead: another process that speaks under its number is the same node
/// again. Several times [`VITALS_INTERVAL`].
pub const LIFE_SILENCE: Duration = Duration::from_secs(1);

/// A process that is heard so long after another one greeted under its number lives beside that one. No word is under
/// way between two nodes for so long once its sender is dead, but for what waits to be read, which comes at once.
pub const LIFE_PROOF: Duration = Duration::from_secs(1);

/// The same for a process that is known for less than [`LIFE_YOUNG`].
pub const LIFE_PROOF_YOUNG: Duration = Duration::from_secs(3);

/// See [`LIFE_PROOF_YOUNG`].
pub const LIFE_YOUNG: Duration = Duration::from_secs(10);

/// Nodes that have their processes remembered, beside those that are heard.
pub const LIVES_MAX: usize = 1_000;

/// Copies of a node that are remembered while it is heard.
pub const LIVES_REFUSED_MAX: usize = 16;

/// How often the node tries to put back what a request took for a client that had gone.
pub const RETURN_RETRY: Duration = Duration::from_millis(250);

/// For how long that is tried.
pub const RETURN_MAX: Duration = Duration::from_secs(300);

/// The most time that one look at which nodes are there counts against those that are not: see `neighbours`.
pub const ABSENCE_LOOK_MAX: Duration = Duration::from_millis(300);

/// How often a node tells the cluster its address while the cluster does not know it.
pub const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(300);

/// A node that has heard no leader of the metadata for so long tells the others where it is found, although they should
/// know: somebody may have told them something else. Longer than elections take.
pub const FORSAKEN_AFTER: Duration = Duration::from_secs(4);

/// How often such a node tells them.
pub const FORSAKEN_INTERVAL: Duration = Duration::from_secs(2);

/// Nodes that a node which joins knows of though neither an operator nor a node that one has named has spoken of them.
/// Each is linked to, or tried. More than a cluster has; a liar could make up any number.
pub const ACQUAINTANCES_MAX: usize = 256;

/// Stalls of cores that a node remembers: at the rate of a bad night, some hours.
pub const STALL_COUNT_MAX: usize = 1_024;

/// Work of a core that took at least so long is remembered by name, so that a stall can be put down to it.
pub const HEAVY_WORK_MIN: Duration = Duration::from_millis(1);

/// So many of them, on each core.
pub const HEAVY_WORK_COUNT_MAX: usize = 16;

/// Happenings in one message to another node.
pub const TIMELINE_COUNT_PER_MESSAGE: usize = 100;

/// The same trouble is noted on the timeline no more often than this.
pub const TROUBLE_INTERVAL: Duration = Duration::from_secs(10);

/// Lines of the timeline about one link in [`LINK_LINES_INTERVAL`].
pub const LINK_LINES_MAX: usize = 4;

/// See above.
pub const LINK_LINES_INTERVAL: Duration = Duration::from_secs(60);

/// A sync of the log that takes so long is noted on the timeline.
pub const SLOW_SYNC: Duration = Duration::from_millis(500);

/// Longest wait for data that is told apart from longer ones.
pub const WAIT_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// How long a request waits for a group that nobody leads, or that says nothing, before it is refused.
pub const REQUEST_PATIENCE: Duration = Duration::from_secs(5);

/// How long a change that a majority has waits for the other voters, where its client wants all of them to have it.
pub const ALL_VOTERS_PATIENCE: Duration = Duration::from_secs(5);

/// After so long without a word all requests without an answer are sent again.
pub const RESEND_AFTER: Duration = Duration::from_secs(1);

/// What has been heard of requests is believed for so long: one that has waited for [`REQUEST_PATIENCE`] goes on
/// waiting, for locked keys, only as long as its leader says again and again that it has it.
pub const HEARD_LASTS: Duration = Duration::from_secs(2);

/// How long a gateway waits after a refusal before it asks again.
pub const REFUSED_REST: Duration = Duration::from_millis(20);

/// How often a script that takes long says that it still works on the keys that it has locked.
pub const LOCK_RENEWAL_INTERVAL: Duration = Duration::from_secs(2);

/// A client is given a reservation of what it watches after so many EXECs in a row that were refused since that had
/// changed.
pub const RESERVE_AFTER: u32 = 2;

/// A client that was faster the last time is given so long: the host may be busy with others.
pub const RESERVATION_MIN: Duration = Duration::from_millis(25);

/// A client that has let a reservation run out, or had no use for it, gets none for so long.
pub const RESERVATION_REST: Duration = Duration::from_millis(250);

/// How long a group may be without a leader, as far as a node knows, before its clients are told that their caches may
/// be stale.
pub const TOUCH_PATIENCE: Duration = Duration::from_millis(500);

/// How long the answer to a change waits for the replica of its client's node to apply it, while clients of that node
/// cache; then they are told to forget everything.
pub const UNTOLD_PATIENCE: Duration = Duration::from_secs(1);

/// Bytes of scripts that a core knows by name, with what it takes to find them.
pub const SCRIPT_BYTES_MAX: usize = 64 << 20;

/// Scripts known by name that only EVAL has brought.
pub const PASSING_SCRIPTS_MAX: usize = 500;

/// Times that a script may reach for keys that nobody has locked for it before it is given up.
pub const SCRIPT_ATTEMPTS_MAX: u32 = 100;

/// Attempts after which a script gets all keys locked, so that what it reaches for cannot change again.
pub const SCRIPT_ATTEMPTS_BY_KEY: u32 = 3;
