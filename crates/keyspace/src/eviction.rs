//! What goes first when memory is full.

/// Which keys may be evicted, and which of them first (`maxmemory-policy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// None: writes are refused.
    #[default]
    NoEviction,
    /// The least recently used.
    AllkeysLru,
    /// The least often used.
    AllkeysLfu,
    /// Any.
    AllkeysRandom,
    /// Of those with a deadline, the least recently used.
    VolatileLru,
    /// Of those with a deadline, the least often used.
    VolatileLfu,
    /// Of those with a deadline, any.
    VolatileRandom,
    /// Of those with a deadline, the one that expires first.
    VolatileTtl,
}

impl Policy {
    /// True if uses are counted rather than dated.
    pub fn counts_uses(self) -> bool {
        matches!(self, Self::AllkeysLfu | Self::VolatileLfu)
    }
}

#[derive(Default)]
pub(crate) struct Pool {}
