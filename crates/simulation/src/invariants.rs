//! What must hold in every universe, by name. A failure begins with the name of what did not hold.

use std::fmt;

/// A promise that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// Whatever was asked of a register and answered could have happened at one moment between question and answer.
    /// Where acknowledgements do not wait for the disk, what a quorum had in its window when it stopped may be gone.
    Linearizable,
    /// Transfers between accounts make and lose nothing: anyone who looks at all of them at once, in a transaction, a
    /// script, an MGET or a backup, sees the same sum, during the trouble and after it.
    Conserved,
    /// Transactions on lists could have run one after the other, in an order that respects the clock: no lost update,
    /// no write skew, no half transaction.
    Serializable,
    /// EXEC answers nil only if somebody may have changed what was watched.
    TrueNil,
    /// Cut at any moment, the logs of all groups give a state that was: no transaction is torn, and whatever a session
    /// was told before it asked for what is there is there as well, however the clocks of the nodes differ.
    OneMoment,
    /// Replicas that have applied the same entries hold the same, and in the end all have.
    Converged,
    /// With a quorum there, nobody keeps a lock, and nothing stays prepared, for longer than a bound.
    LocksBounded,
    /// Windows, logs in memory and unread output stay within their bounds.
    MemoryBounded,
    /// One leader in a term, and no lease beside a leader of a later term.
    OneLeader,
    /// Replies are replies, to what was asked, and refusals say what became of the request.
    Honest,
    /// A start finds on its disk what it needs, and no process stops by itself.
    Recovers,
    /// In peace everybody is answered, members come and go, and the world comes to its end.
    Lives,
    /// Leaders are where they were before a node died, within a minute of its return, without a step too many and
    /// without an error for clients of the others.
    Returns,
    /// While two nodes do not hear each other, or a disk is full, no client of any node sees an error, and leaders are
    /// where they were, within a minute after it, without a step too many.
    Ailments,
    /// A group that has as many voters as it should never has fewer, however it moves, as long as no node leaves.
    Replicated,
    /// At rest a zone holds two copies of a group only if all others with nodes hold one.
    Zoned,
    /// A far site that follows never holds half a transaction, nor what a session did without what it was told before;
    /// and when all is quiet it holds what the near one holds, nothing twice.
    SecondSite,
    /// The balancer begins one split at a time, and none at a level at which groups do not split.
    OneSplit,
}

impl Invariant {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::Linearizable,
        Self::Conserved,
        Self::Serializable,
        Self::TrueNil,
        Self::OneMoment,
        Self::Converged,
        Self::LocksBounded,
        Self::MemoryBounded,
        Self::OneLeader,
        Self::Honest,
        Self::Recovers,
        Self::Lives,
        Self::Returns,
        Self::Ailments,
        Self::Replicated,
        Self::Zoned,
        Self::SecondSite,
        Self::OneSplit,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linearizable => "linearizable",
            Self::Conserved => "conserved",
            Self::Serializable => "serializable",
            Self::TrueNil => "true-nil",
            Self::OneMoment => "one-moment",
            Self::Converged => "converged",
            Self::LocksBounded => "locks-bounded",
            Self::MemoryBounded => "memory-bounded",
            Self::OneLeader => "one-leader",
            Self::Honest => "honest",
            Self::Recovers => "recovers",
            Self::Lives => "lives",
            Self::Returns => "returns",
            Self::Ailments => "ailments",
            Self::Replicated => "replicated",
            Self::Zoned => "zoned",
            Self::SecondSite => "second-site",
            Self::OneSplit => "one-split",
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
