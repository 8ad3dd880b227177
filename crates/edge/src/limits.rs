//! Every bound of the host, with its reason.

use std::time::Duration;

use group::ids::Lane;

/// One read takes at most this much, and a socket that gave less is taken as drained. Large enough that a pipeline of
/// hundreds of small commands is one system call; small enough to stay in the second-level cache.
pub const READ_BYTES_MAX: usize = 64 * 1024;

/// A turn stops reading after this much, so that the first client's reply never waits for gigabytes of the others'
/// requests.
pub const TURN_READ_BYTES_MAX: usize = 2 * 1024 * 1024;

/// An envelope of more pieces wakes the core it is for: by the time that is up, the work has not half been done.
pub const HELP_MAIL_MAX: usize = 256;

/// A core that goes on getting mail is stepped by another's thread for so many turns, and then by its own.
pub const HELP_TURNS_MAX: usize = 4;

/// A thread follows calls in so many batches before it looks at its own sockets again: two carry what many cores have
/// for each other, and what those bring about another two.
pub const CALL_BATCHES_MAX: usize = 6;

/// What finishing cores has brought about is followed so many times before other threads are woken for it: a thread's
/// own sockets are not read meanwhile.
pub const CALL_ROUNDS_MAX: usize = 4;

/// Sockets of another core of which a thread hears at once when it steps that core.
pub const HELP_EVENTS_MAX: usize = 128;

/// Stepping another core took longer than this, twice within [`HELP_SUSPECT`]: something takes long there, and
/// [`HELP_REST`] long its own thread does it, so that clients of one core do not wait for what keeps the other one.
pub const HELP_LONG: Duration = Duration::from_millis(1);

/// Where clients have been answered without the disk within this time, no core waits for it: others might wait with it.
pub const READ_MEMORY: Duration = Duration::from_millis(20);

/// The same where a thread steps a core and also waits for its sockets: many small requests that have come together
/// take as long as one that takes long.
pub const HELP_LONG_WATCHED: Duration = Duration::from_millis(4);

/// After a core has taken that long of the thread on which it keeps other cores, so long each core has its own.
pub const SPREAD_REST: Duration = Duration::from_secs(2);

/// See [`HELP_LONG`].
pub const HELP_SUSPECT: Duration = Duration::from_secs(1);

/// See [`HELP_LONG`].
pub const HELP_REST: Duration = Duration::from_millis(100);

/// Sockets told ready by one wait.
pub const EVENTS_PER_WAIT_MAX: usize = 1024;

/// Connections accepted before the acceptor looks at its other listeners again (Redis: 1000 a cron cycle).
pub const ACCEPTS_PER_TURN_MAX: usize = 256;

/// How long the acceptor rests when the process or the system has no descriptors or memory left for a connection. The
/// kernel keeps the callers in the backlog meanwhile.
pub const ACCEPT_REST: Duration = Duration::from_millis(100);

/// How long a client at the TLS port may take until keys are agreed.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// A client that cannot be let in at the TLS port has a line in the log, but no more than one in this time: anyone who
/// knocks on all ports must not fill a disk.
pub const STRANGER_INTERVAL: Duration = Duration::from_millis(200);

/// A connection that will be closed once its output is written is closed all the same when its client has taken none of
/// it for so long.
pub const LINGER_MAX: Duration = Duration::from_secs(5);

/// How often connections are looked over for idleness and lingering.
pub const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// How often the console's figures are measured.
pub const CONSOLE_SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// How long they are kept.
pub const HISTORY_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Bytes that they may take: a day in which half of them differ every second fits.
pub const HISTORY_BYTES_MAX: usize = 16 << 20;

/// Values of one figure in an answer: more than a screen has columns.
pub const HISTORY_POINTS_MAX: usize = 4_000;

/// Connections to the console at a time, each of which has a thread; others are turned away.
pub const CONSOLE_CONNECTIONS_MAX: usize = 32;

/// People who have logged in at a time; of more, those go that have asked for nothing for longest.
pub const CONSOLE_SESSIONS_MAX: usize = 32;

/// A browser that asks for nothing for so long has to log in again.
pub const CONSOLE_IDLE_MAX: Duration = Duration::from_secs(30 * 60);

/// How long a browser may take for a request, or leave its connection unused.
pub const CONSOLE_REQUEST_MAX: Duration = Duration::from_secs(10);

/// How long it may take for an answer.
pub const CONSOLE_ANSWER_MAX: Duration = Duration::from_secs(30);

/// Longest head of a request, and longest body.
pub const CONSOLE_HEAD_BYTES_MAX: usize = 16 << 10;
/// See above.
pub const CONSOLE_BODY_BYTES_MAX: usize = 4 << 10;

/// Longest body of a change: two values of [`CONSOLE_EDIT_BYTES_MAX`], of which each byte may be written as three.
pub const CONSOLE_CHANGE_BYTES_MAX: usize = 6 * CONSOLE_EDIT_BYTES_MAX + (64 << 10);

/// Longest string, field or element that can be changed.
pub const CONSOLE_EDIT_BYTES_MAX: usize = 64 << 10;

/// How long a change may take. It is longer than requests wait for a leader, so that it is known whether it was made.
pub const CONSOLE_CHANGE_PATIENCE: Duration = Duration::from_secs(7);

/// How long cores may take to answer the console.
pub const CONSOLE_PATIENCE: Duration = Duration::from_secs(3);

/// Longest reply that the console reads.
pub const CONSOLE_REPLY_BYTES_MAX: usize = 16 << 20;

/// A value of which the console shows no more than this; and of a collection no more than so many elements.
pub const CONSOLE_VALUE_BYTES_MAX: usize = 4 << 10;
/// See above.
pub const CONSOLE_ELEMENTS_MAX: usize = 100;

/// Collections that take more are not shown: their elements may be of any size.
pub const CONSOLE_COLLECTION_BYTES_MAX: i64 = 64 << 20;

/// After a login that failed the next failure takes so long: passwords are not tried out faster.
pub const CONSOLE_FAILURE_REST: Duration = Duration::from_millis(300);

/// A core that does not turn for so long has a stall, which the black box keeps.
pub const STALL_MIN: Duration = Duration::from_millis(5);

/// How often the kernel's counters are read, so that there is a reading from shortly before each stall.
pub const STALL_READ_INTERVAL: Duration = Duration::from_millis(250);

/// So many readings are kept: a stall of sixteen seconds still has one from before it.
pub const STALL_READINGS_MAX: usize = 64;

/// Pause after stalls have been looked at.
pub const STALL_READ_REST: Duration = Duration::from_millis(20);

/// Stalls that wait to be looked at; more are only counted.
pub const STALLS_WAITING_MAX: usize = 256;

/// How often cores are told of memory and CPU time.
pub const REPORT_INTERVAL: Duration = Duration::from_millis(250);

/// A core that is at one thing for longer is told of in the log.
pub const TURN_LONG: Duration = Duration::from_secs(5);

/// How often a long load tells how far it is.
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// How often cores are asked at a start whether they have applied the log.
pub const APPLY_INTERVAL: Duration = Duration::from_millis(5);

/// At an orderly end, how long cores may take to finish what is under way before the process ends without them. What
/// they have acknowledged is safe by then in any case: only replies not yet sent can be lost.
pub const FINISH_MAX: Duration = Duration::from_secs(10);

/// How often a node that has loaded its data looks whether it knows who leads each group.
pub const LEADER_INTERVAL: Duration = Duration::from_millis(100);

/// At an orderly end, how long other nodes may take to lead what is led here.
pub const HAND_OVER_MAX: Duration = Duration::from_millis(1_500);

/// How often it is looked whether they do.
pub const HAND_OVER_LOOK: Duration = Duration::from_millis(5);

/// At an orderly end, how many times the cores are asked to carry on what the disk has just confirmed. A transaction
/// over groups of several cores takes as many steps at most.
pub const FINISH_ROUNDS: usize = 4;

/// Descriptors wanted beside those of clients: logs, checkpoints, listeners; and for each core epoll and event
/// descriptors, and connections to and from a dozen other nodes.
pub const fn descriptors_reserved(core_count: usize) -> u64 {
    128 + 32 * core_count as u64
}

/// Bytes waiting to be sent to another node on a lane, beyond which messages are dropped and asked for again; one that
/// is larger than that comes on top. Raft has at most 33 messages of a mebibyte a group under way; heartbeats are
/// small; a chunk of a checkpoint comes when asked for.
pub const fn lane_bytes_max(lane: Lane) -> usize {
    match lane {
        Lane::Vital => 4 << 20,
        Lane::Log => 64 << 20,
        Lane::Bulk => 16 << 20,
    }
}

/// Bytes of log kept on disk only because members lack them: a minute and more of what a disk takes. Beyond it, and
/// whenever the disk is full, the oldest go, and a member that lacks them is given a checkpoint.
pub const LOG_HELD_BYTES_MAX: u64 = 8 << 30;

/// Messages to one node that are handed in together travel in frames of this size. A longer message has its own.
pub const LINK_FRAME_BYTES: usize = 256 << 10;

/// A core writes to another node itself while no more than this waits there; beyond it the links' thread does.
pub const LINK_DIRECT_BYTES_MAX: usize = 256 << 10;

/// So much is compressed before others have their turn: by the links' thread, of all links together, since it hears all
/// nodes meanwhile; and by a core.
pub const LINK_PACK_BYTES_MAX: usize = 256 << 10;
/// See above.
pub const CORE_PACK_BYTES_MAX: usize = 16 << 10;

/// One read from another node.
pub const LINK_READ_BYTES: usize = 256 << 10;

/// Pause before another node is dialled again: it doubles with every failure.
pub const LINK_PAUSE_MIN: Duration = Duration::from_millis(50);

/// The longest such pause.
pub const LINK_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long another node may take to answer a greeting.
pub const LINK_CONNECT_MAX: Duration = Duration::from_secs(2);

/// Callers of the port for other nodes that have not said a byte: beyond it the oldest goes. A node speaks at once.
pub const LINK_CALLERS_SILENT_MAX: usize = 256;

/// Callers that have not been let in yet, and those that have been told to go: beyond it the oldest goes.
pub const LINK_CALLERS_MAX: usize = 2_048;

/// A link is left alone for so long while its node's name is being resolved, unless the answer comes.
pub const LINK_RESOLVE_MAX: Duration = Duration::from_secs(30);

/// A node that is not let in is given so long to read why. After that a line in the log about it is not repeated for
/// the same cause before [`LINK_REFUSAL_INTERVAL`] has passed.
pub const LINK_FAREWELL_MAX: Duration = Duration::from_secs(2);

/// See [`LINK_FAREWELL_MAX`].
pub const LINK_REFUSAL_INTERVAL: Duration = Duration::from_secs(60);

/// Silence on a connection of another node after which the system asks whether it is still there.
pub const LINK_KEEPALIVE: Duration = Duration::from_secs(30);

/// A link that takes nothing for so long is cut.
pub const LINK_STUCK_MAX: Duration = Duration::from_secs(4);

/// The same of the log's lane, which cores read: one may be busy for long, and then goes on where it was. A node that
/// is gone is known by its other lanes: with the lane of heartbeats those of the log are cut.
pub const LINK_BUSY_MAX: Duration = Duration::from_secs(30);

/// How old what is told of the links may be while they carry messages.
pub const LINK_REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// A node that is not linked for so long is looked for where `--join` says. One that restarts is back before.
pub const SEEK_AFTER: Duration = Duration::from_secs(1);

/// How often it is seen whether a node is not linked.
pub const SEEK_LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Pause before that is done again: it doubles each time.
pub const SEEK_PAUSE_MIN: Duration = Duration::from_secs(1);

/// The longest such pause. A node that is away for good, or an address that is of no use any more, costs a connection
/// in this time.
pub const SEEK_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Addresses that are asked: a name may stand for many.
pub const SEEK_PLACES_MAX: usize = 32;

/// A node to which no other one has been linked for so long since its start says what may be done.
pub const STRANDED_AFTER: Duration = Duration::from_secs(15);

/// How long it rests before it asks again.
pub const JOIN_REST: Duration = Duration::from_millis(500);

/// How often the log says why it cannot join while the reason stays the same.
pub const JOIN_SAID_AGAIN: Duration = Duration::from_secs(10);

/// How often it looks whether it must end.
pub const JOIN_LOOK: Duration = Duration::from_millis(20);

/// How long a port may take to answer as one for clients does.
pub const CLIENT_PORT_PATIENCE: Duration = Duration::from_secs(1);

/// How often clients and nodes are looked after that come while a node looks for its cluster.
pub const DOORMAN_INTERVAL: Duration = Duration::from_millis(20);

/// So many of them may be there at a time; others are turned away.
pub const DOORMAN_VISITORS_MAX: usize = 256;

/// Bytes that one of them may have sent at a time.
pub const DOORMAN_BYTES_MAX: usize = 64 << 10;

/// How long a fresh node tries to reach the cluster that it joins.
pub const JOIN_PATIENCE: Duration = Duration::from_secs(60);

/// Replicas of other kinds that may follow at a time. Each has a descriptor, of those that are reserved, and some
/// kilobytes.
pub const FOLLOWERS_MAX: usize = 64;

/// Bytes written to one of them before the next has its turn.
pub const FOLLOWER_TURN_BYTES_MAX: usize = 1 << 20;

/// Bytes that one of them may have said and not finished saying. They have little to say.
pub const FOLLOWER_INPUT_BYTES_MAX: usize = 16 << 10;

/// Bytes read at once of a copy or of the stream.
pub const FOLLOWER_PIECE_BYTES: usize = 256 << 10;

/// Bytes of what groups have done that may wait to be put into the stream, in memory. Beyond that the stream ends, and
/// anyone who follows takes a new copy: clients wait for nobody who follows.
pub const STREAM_WAITING_BYTES_MAX: usize = 128 << 20;

/// The same in time, for parts of a transaction while its other parts do not come.
pub const STREAM_WAITING_MAX: Duration = Duration::from_secs(60);

/// How long a checkpoint waits until the stream has what its log has done.
pub const STREAM_KEPT_PATIENCE: Duration = Duration::from_secs(5);

/// How long a core may take to answer a copy's question.
pub const COPY_PATIENCE: Duration = Duration::from_secs(30);

/// How often it is asked whether checkpoints are on disk.
pub const COPY_POLL: Duration = Duration::from_millis(20);

/// How long a stream goes on that nobody has followed since it began: copies were taken, and that was all.
pub const STREAM_UNFOLLOWED_MAX: Duration = Duration::from_secs(60);

/// How long a copy rests if groups cannot be cut now.
pub const COPY_RETRY: Duration = Duration::from_millis(300);

/// How often anyone who waits for a copy hears that somebody is here.
pub const FOLLOWER_CONSOLE: Duration = Duration::from_secs(1);

/// At the end, it is looked this often whether replicas have got everything.
pub const FOLLOWER_END_POLL: Duration = Duration::from_millis(20);

const _: () = {
    // One read of an acknowledgement fits the buffer of pieces.
    assert!(FOLLOWER_INPUT_BYTES_MAX <= FOLLOWER_PIECE_BYTES);
    // A turn must be able to hold at least one full read.
    assert!(TURN_READ_BYTES_MAX >= READ_BYTES_MAX);
};

/// How often what has been committed is written to the archive, which may be a second behind.
pub const ARCHIVE_FLUSH_INTERVAL: Duration = Duration::from_millis(250);

/// When an archive that could not be written is tried again.
pub const ARCHIVE_RETRY: Duration = Duration::from_secs(1);

/// So long the archive waits for another leader with what the log of this one has let go because the disk was full. A
/// leader with a full disk hands over within seconds.
pub const ARCHIVE_LET_GO_PATIENCE: Duration = Duration::from_secs(60);

/// So long an archive that does not answer may hold up the end of the process.
pub const ARCHIVE_STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// What has been committed and is not synced is archived after this time all the same: `appendfsync no` leaves it to
/// the system, which may take half a minute.
pub const ARCHIVE_SYNC_PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of entries that are read at a time for the archive; each time makes a frame.
pub const ARCHIVE_READ_BYTES: usize = 4 << 20;

/// So many bytes of the archive behind a base call for the next one, or as many as the base has: then a restore reads
/// at most about twice what it must.
pub const ARCHIVE_BASE_BYTES: u64 = 64 << 20;

/// How often a node looks how far the archive is of groups that others lead: what it has need not be kept.
pub const ARCHIVE_LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// The same where each look is a request that is paid for.
pub const ARCHIVE_LOOK_INTERVAL_REMOTE: Duration = Duration::from_secs(60);

/// How often what need not be kept is looked for.
pub const ARCHIVE_EXPIRY_INTERVAL: Duration = Duration::from_secs(60);

/// How often the sentinel port looks who leads, while somebody is connected to it.
pub const SENTINEL_LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// How long it waits for the first core to say so.
pub const SENTINEL_PATIENCE: Duration = Duration::from_secs(1);

/// Connections to the sentinel port at a time; others are turned away.
pub const SENTINEL_CONNECTIONS_MAX: usize = 4096;

/// Longest request there.
pub const SENTINEL_REQUEST_BYTES_MAX: usize = 16 << 10;

/// A client that leaves more than this unread is cut off.
pub const SENTINEL_OUTPUT_BYTES_MAX: usize = 256 << 10;

/// How often the backlog for a second site is synced. What a crash of the machine takes with it is told again from the
/// log, unless a checkpoint has taken its place: that waits.
pub const SITE_SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// How long a checkpoint waits for that.
pub const SITE_KEPT_PATIENCE: Duration = Duration::from_secs(60);

/// A batch is sent to a second site at most so often, unless it is behind: fewer are compressed better.
pub const SITE_BATCH_INTERVAL: Duration = Duration::from_millis(50);

/// Steps that are read ahead so that batches become large where a second site is behind.
pub const SITE_STEPS_AHEAD: usize = 5_000;

/// So long a near site may be silent before what is shown of it counts as older: several times the interval below.
pub const SITE_SILENCE_MIN: Duration = Duration::from_secs(2);

/// How often a second site is told how far the near one is.
pub const SITE_STATE_INTERVAL: Duration = Duration::from_millis(500);

/// A line on which nothing moves for so long is cut.
pub const SITE_SILENCE_MAX: Duration = Duration::from_secs(30);

/// Clients that may wait for changes at one node. Each has a reader of its own.
pub const CHANGES_REQUESTS_MAX: usize = 256;

/// Bytes of events in one answer, beyond which no further one is added.
pub const CHANGES_ANSWER_BYTES: usize = 1 << 20;

/// Readers that are kept for clients that come back, and for how long.
pub const CHANGES_KEPT_MAX: usize = 16;
/// See above.
pub const CHANGES_KEPT_FOR: Duration = Duration::from_secs(10);

/// How long a client that asks what has changed waits for a server that has just started: until all groups have told
/// where they go on nobody knows what is kept. Longer than an election takes; a cluster without a majority is told.
pub const CHANGES_OPENING_PATIENCE: Duration = Duration::from_secs(5);

/// Files of the archive that may be on the disk at once for readers of changes.
pub const CHANGES_FETCHED_MAX: usize = 32;

/// So long a reader of changes waits for a file of the archive.
pub const CHANGES_FETCH_PATIENCE: Duration = Duration::from_secs(120);

/// What a reader may look at before the next one is served.
pub const CHANGES_TURN_BYTES: u64 = 4 << 20;
/// Tapes that are brought together at once.
pub const CHANGES_TURN_TAPES: usize = 256;

/// Bytes that all readers together keep of what some groups have done while they wait for another one. Each has its
/// share.
pub const CHANGES_HELD_BYTES_MAX: usize = 256 << 20;
/// The share of a reader, if there are few.
pub const CHANGES_HELD_BYTES_EACH: usize = 32 << 20;

/// Readers that wait look at what is new at most so often.
pub const CHANGES_INTERVAL: Duration = Duration::from_millis(5);

/// Requests of MIGRATE that are carried out at a time. More wait.
pub const CARRIERS_MAX: usize = 64;
/// A connection to another server is kept for so long after it was used, as in Redis.
pub const CARRIER_LINE_REST: Duration = Duration::from_secs(10);
/// So many of them are kept, as in Redis.
pub const CARRIER_LINES_MAX: usize = 64;
/// Bytes of one reply of another server.
pub const CARRIER_REPLY_BYTES_MAX: usize = 1 << 20;
/// How often keys that change while they are sent are sent again.
pub const CARRIER_ROUNDS_MAX: usize = 64;

/// Pauses between attempts to reach a near site.
pub const SITE_PAUSE_MIN: Duration = Duration::from_millis(100);
/// See above.
pub const SITE_PAUSE_MAX: Duration = Duration::from_secs(5);

/// Copies for second sites that are kept for lines that were cut, and for how long after the last was cut.
pub const SITE_COPIES_MAX: usize = 2;
/// See above.
pub const SITE_COPY_KEPT_FOR: Duration = Duration::from_secs(3_600);

/// So long a second site asks the same node for the rest of a copy, before another one is asked for one of its own.
pub const SITE_COPY_PATIENCE: Duration = Duration::from_secs(60);

/// So long a site must be silent before what follows it follows the cluster that it has followed itself.
pub const SITE_CHAIN_PATIENCE: Duration = Duration::from_secs(10);

/// Anyone who carries out what the near site does writes so often; another node takes over after some such times.
pub const SITE_RECORD_INTERVAL: Duration = Duration::from_secs(1);
/// See above.
pub const SITE_WRITER_SILENCE: Duration = Duration::from_secs(5);
