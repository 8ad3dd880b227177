//! What a replicated log is made of. Consensus orders these, the journal keeps them; neither looks inside `data`.

use bytes::Bytes;

/// What an entry is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Commands of the group, or nothing at all (a new leader's first entry).
    Normal,
    /// A change of membership.
    Membership,
}

/// One record of a group's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Raft's term in which a leader made it.
    pub term: u64,
    /// Place in the log; the first entry has index 1.
    pub index: u64,
    /// What it is for.
    pub kind: EntryKind,
    /// The commands, or the encoded change.
    pub data: Bytes,
}

/// What a Raft replica must never forget (Ongaro, Ousterhout: "In search of an understandable consensus algorithm",
/// 2014, figure 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// Latest term seen.
    pub term: u64,
    /// Node voted for in that term; 0 is none.
    pub vote: u64,
    /// Highest index known to be committed. May lag; never runs ahead of the log.
    pub commit: u64,
}

/// Who takes part in a group. The two `outgoing`/`next` lists are empty unless a joint change is under way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Nodes that vote.
    pub voters: Vec<u64>,
    /// Nodes that receive the log and do not vote.
    pub learners: Vec<u64>,
    /// Voters of the configuration being left.
    pub voters_outgoing: Vec<u64>,
    /// Nodes that become learners when the joint configuration is left.
    pub learners_next: Vec<u64>,
}
