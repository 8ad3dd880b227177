//! Mistakes that the simulator puts in on purpose: checkers that do not catch them are asleep.

/// A mistake in transactions over groups, in moves of slots, in reads of replicas, or in what is asked twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// They count as committed when the first group has prepared them.
    EarlyCommit,
    /// Groups do not look at what they watch.
    ForgottenWatch,
    /// What they watch and do not touch is neither locked nor looked at.
    ForgottenRead,
    /// A group does not look whether it has carried out what it is asked for.
    ForgottenAnswer,
    /// Locks of a gateway that is gone are kept.
    ForgottenLock,
    /// What is reserved for a client that has watched it stays reserved until its EXEC.
    EndlessReservation,
    /// It is forgotten that they were committed without asking who may still ask.
    ForgottenOutcome,
    /// Checkpoints leave out those that are prepared.
    ForgottenPrepared,
    /// Checkpoints leave out what requests with an id were answered.
    ForgottenRequestIds,
    /// The keys of a slot that moves are read before the latest changes to them have been made.
    EarlyCopy,
    /// A group that has given a slot away does not look whether it had carried out what it is asked for.
    ForgottenBook,
    /// A replica answers reads however old it is.
    BoundlessRead,
    /// A core takes no notice of moments of entries that others have heard of.
    DeafMoments,
    /// A group is moved by letting go first, and only then looking for somebody else.
    EarlyRemoval,
    /// Leaders log what is new with a level before it has been raised, and nobody notes that it comes.
    EarlyLevel,
    /// The level is raised without asking which nodes know it.
    BlindRise,
    /// The balancer takes no notice of zones.
    ForgottenZones,
    /// An answer is taken from anyone who gives it.
    BelievedAnswers,
    /// A group that splits off begins without what was changed last.
    LostTail,
    /// The balancer splits a group again before the first split has come about.
    RepeatedSplit,
    /// A group that is to go is believed to have ended although it holds slots yet.
    FalseEnd,
    /// The balancer names one node less than are to hold a group.
    ThinPlacement,
    /// A group is taken to have gone as soon as it is to go, and is given up at once with all that it holds.
    EarlyEnd,
    /// A group answers reads of slots that it has given away, as if its lease were about them still.
    KeptLease,
}
