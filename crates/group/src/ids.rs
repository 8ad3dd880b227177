//! Names and small facts that a group and all above it speak of.

use stdx::{Instant, UnixMillis};

pub use message::{CoreId, GroupId, NodeId};

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

/// Whether the disk can take what may still be admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Room {
    /// Yes.
    Enough,
    /// No, for this reason: writes are refused, reads go on.
    None(String),
}
