//! The bounds of one replica. Each says what breaks without it.

use stdx::Duration;

/// Terms by which a message may be ahead of what a replica knows. A term is an election: this many take over a week
/// without a leader. A member that lies, and says a number near the end of all numbers, would otherwise leave the group
/// without a term in which it could elect anybody.
pub const TERM_JUMP_MAX: u64 = 1 << 20;

/// Ticks after which a replica without a leader goes [`TERM_JUMP_MAX`] terms towards one that is further ahead than
/// that. A member that lies may have led another one there while the two did not hear each other; without it they would
/// never agree on a term again.
pub const TERM_CLIMB_TICKS: u64 = ELECTION_TICKS as u64;

/// The same for one that leads or hears its leader: there the step costs an election.
pub const TERM_CLIMB_TICKS_LED: u64 = 10 * TERM_CLIMB_TICKS;

/// Time between two ticks.
pub const TICK_INTERVAL: Duration = Duration::from_millis(70);

/// Ticks for which a voter that has heard its leader helps nobody else to lead: the election time-out. Shorter, and a
/// stall of a leader costs it its place; longer, and clients wait longer for another when it is gone.
pub const ELECTION_TICKS: u32 = 10;

/// Ticks beyond the election time-out after which a follower campaigns at the earliest: the others have heard the
/// leader a little later, and must be free to answer.
pub const ELECTION_TICKS_BEHIND: u32 = 1;

/// Ticks over which followers are spread, so that seldom two campaign at once.
pub const ELECTION_TICKS_SPREAD: u32 = 6;

/// Ticks after which one that asks whether it would be elected asks again, at the earliest, and over which these are
/// spread. A node that was not free to answer is free soon, and asking costs nobody anything.
pub const PRE_CAMPAIGN_TICKS: (u32, u32) = (2, 3);

/// The same for one that asks for votes: they have to be written down before they are given.
pub const CAMPAIGN_TICKS: (u32, u32) = (4, 6);

/// Ticks between a leader's heartbeats. Each also asks for the leader's lease.
pub const HEARTBEAT_TICKS: u32 = 2;

/// What a lease is shorter than the election time-out, in hundredths of it. It makes up for clocks that do not run
/// alike: see [`CLOCK_DRIFT_MAX_MILLIONTHS`].
pub const LEASE_MARGIN_PERCENT: u32 = 10;

/// How much a monotonic clock may run too fast or too slow, in millionths, for leases to be sound. Real ones are off by
/// a few hundred at most.
pub const CLOCK_DRIFT_MAX_MILLIONTHS: u32 = 50_000;

/// Bytes of entries in one append message; a single larger entry still travels alone.
/// Without it one lagging follower makes a message of the whole log.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 20;

/// Append messages in flight to one follower. The library counts messages, not bytes, so this times
/// [`MESSAGE_BYTES_MAX`] is what a slow follower may pin in the sender's buffers.
pub const MESSAGES_IN_FLIGHT_MAX: usize = 32;

/// Bytes of forgotten entries that are told apart when the bytes are counted that a member lacks.
pub const PAST_BYTES: u64 = 1 << 20;

/// Stretches of forgotten entries of which something is known, each of one term and of at most [`PAST_BYTES`]. Members
/// that lack more are given a checkpoint, however much the disk may hold.
pub const PAST_COUNT_MAX: usize = 64 << 10;

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

/// Lowest bits of the number of a life that count the lives of one process: a replica that holds nothing begins one
/// with each news of its group. Those above tell processes apart. Once a process has counted through, its next life is
/// taken for one of another process.
pub const LIFE_COUNT_BITS: u32 = 20;

/// Largest term, index or node id taken from a peer. Far beyond any honest number, far below where adding overflows.
pub const NUMBER_MAX: u64 = 1 << 62;

// A lease on a slow leader's clock ends before the promise of a voter with a fast clock.
const _: () = assert!(
    (100 - LEASE_MARGIN_PERCENT as u64) * (1_000_000 + CLOCK_DRIFT_MAX_MILLIONTHS as u64)
        <= 100 * (1_000_000 - CLOCK_DRIFT_MAX_MILLIONTHS as u64)
);
const _: () = assert!(2 * HEARTBEAT_TICKS < ELECTION_TICKS, "one lost heartbeat must not cost an election");
const _: () = assert!(ENTRY_BYTES_MAX < u32::MAX as usize, "lengths travel as u32");
