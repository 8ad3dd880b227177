//! When a command runs, as the leader stamped it.

use stdx::UnixMillis;

/// The only time and the only chance a command ever sees. Stamped by the leader when the command is proposed, logged
/// with it, and therefore the same on every replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The leader's wall clock.
    pub unix: UnixMillis,
    /// Entropy for commands that choose.
    pub seed: u64,
}

impl Moment {
    /// A moment at `unix_ms` milliseconds since the epoch.
    pub const fn at(unix_ms: i64, seed: u64) -> Self {
        Self { unix: UnixMillis(unix_ms), seed }
    }
}
