//! Mistakes that the simulator puts in on purpose: checkers that do not catch them are asleep.

/// A mistake in transactions over groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// They count as committed when the first group has prepared them.
    EarlyCommit,
    /// Groups do not look at what they watch.
    ForgottenWatch,
    /// Checkpoints leave out those that are prepared.
    ForgottenPrepared,
}
