//! Every bound of the host, with its reason.

use std::time::Duration;

use node::event::Lane;

/// One read takes at most this much, and a socket that gave less is taken as drained. Large enough that a pipeline of
/// hundreds of small commands is one system call; small enough to stay in the second-level cache.
pub const READ_BYTES_MAX: usize = 64 * 1024;

/// A turn stops reading after this much, so that the first client's reply never waits for gigabytes of the others'
/// requests.
pub const TURN_READ_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Sockets told ready by one wait.
pub const EVENTS_PER_WAIT_MAX: usize = 1024;

/// Connections accepted before the acceptor looks at its other listeners again (Redis: 1000 a cron cycle).
pub const ACCEPTS_PER_TURN_MAX: usize = 256;

/// How long the acceptor rests when the process or the system has no descriptors or memory left for a connection. The
/// kernel keeps the callers in the backlog meanwhile.
pub const ACCEPT_REST: Duration = Duration::from_millis(100);

/// How long a client at the TLS port may take until keys are agreed.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// A client that cannot be let in at the TLS port has a line in the log, but no more than one in this time: whoever
/// knocks on all ports must not fill a disk.
pub const STRANGER_INTERVAL: Duration = Duration::from_millis(200);

/// A connection that is to be closed once its output is written goes all the same when its client has taken none of it
/// for so long.
pub const LINGER_MAX: Duration = Duration::from_secs(5);

/// How often connections are looked over for idleness and lingering.
pub const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

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
/// whenever the disk is full, the oldest go, and who lacks them is given a checkpoint.
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

/// A link whose node's name is being resolved is left alone for so long, unless the answer comes.
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

/// How old what is told of the links may be while they carry messages.
pub const LINK_REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// How long it rests before it asks again.
pub const JOIN_REST: Duration = Duration::from_millis(500);

/// How often it looks whether it is to end.
pub const JOIN_LOOK: Duration = Duration::from_millis(20);

/// How long a port may take to answer as one for clients does.
pub const CLIENT_PORT_PATIENCE: Duration = Duration::from_secs(1);

/// How often clients and nodes are looked after that come while a node looks for its cluster.
pub const DOORMAN_INTERVAL: Duration = Duration::from_millis(20);

/// So many of them may be there at a time; others are turned away.
pub const DOORMAN_VISITORS_MAX: usize = 256;

/// Bytes that one of them may have sent at a time.
pub const DOORMAN_BYTES_MAX: usize = 64 << 10;

/// How long a fresh node tries to reach the cluster that it is to join.
pub const JOIN_PATIENCE: Duration = Duration::from_secs(60);

const _: () = {
    // A turn must be able to hold at least one full read.
    assert!(TURN_READ_BYTES_MAX >= READ_BYTES_MAX);
};
