//! The bounds of one replica. Each says what breaks without it.

/// Ticks without a leader before a follower campaigns; the drawn time-out lies in `(ELECTION_TICKS, 2 ×
/// ELECTION_TICKS)`.
pub const ELECTION_TICKS: u32 = 10;

/// Ticks between a leader's heartbeats.
pub const HEARTBEAT_TICKS: u32 = 2;

/// Bytes of entries in one append message; a single larger entry still travels alone.
/// Without it one lagging follower makes a message of the whole log.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 20;

/// Append messages in flight to one follower. The library counts messages, not bytes, so this times
/// [`MESSAGE_BYTES_MAX`] is what a slow follower may pin in the sender's buffers.
pub const MESSAGES_IN_FLIGHT_MAX: usize = 32;

/// Bytes proposed and not yet committed; beyond it proposals are refused and sockets wait. One larger entry is taken
/// when nothing else is waiting.
pub const UNCOMMITTED_BYTES_MAX: u64 = 32 << 20;

/// Bytes of committed entries handed out at once, so that catching up after a restart leaves turns for other work.
pub const COMMITTED_BYTES_MAX: u64 = 4 << 20;

/// Bytes of one entry's payload: the largest value of Redis (512 MiB), with its command around it.
pub const ENTRY_BYTES_MAX: usize = (512 << 20) + (64 << 20);

/// Entries in one message.
pub const MESSAGE_ENTRIES_MAX: usize = 65_536;

/// Read confirmations that may wait for a quorum at once. One is asked per turn, so this is a thousand turns.
pub const READS_WAITING_MAX: usize = 1_024;

/// Ended lives of a peer that are remembered. A message would have to be under way for longer than so many restarts.
pub const LIVES_MAX: usize = 16;

/// Largest term, index or node id taken from a peer. Far beyond any honest number, far below where adding overflows.
pub const NUMBER_MAX: u64 = 1 << 62;

const _: () = assert!(2 * HEARTBEAT_TICKS < ELECTION_TICKS, "one lost heartbeat must not cost an election");
const _: () = assert!(ENTRY_BYTES_MAX < u32::MAX as usize, "lengths travel as u32");
