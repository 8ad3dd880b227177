//! Parts of a simulated world that belong together.

use std::collections::{BTreeMap, BTreeSet};

/// Who leads which group, and has led it.
pub(crate) struct Leading {
    pub(crate) leaders: BTreeMap<u32, (u64, u64)>,
    /// Terms in which groups had as many voters as they should have.
    pub(crate) whole_since: BTreeMap<u32, u64>,
    /// How often a group's leader was another than before.
    pub(crate) changes: BTreeMap<u32, u64>,
}

/// Links between machines.
pub(crate) struct Network {
    /// Pairs of machines that cannot hear each other, by (speaker, listener).
    pub(crate) cut: BTreeSet<(usize, usize)>,
    /// How much longer messages take, by (speaker, listener).
    pub(crate) slow: BTreeMap<(usize, usize), u64>,
    /// When the last message of a connection between two machines, and to a core, arrives.
    pub(crate) stream_at: BTreeMap<(usize, usize, u16, u16), u64>,
    /// How often all addresses have changed.
    pub(crate) generation: usize,
}

/// What has been counted.
pub(crate) struct Tally {
    pub(crate) steps: u64,
    pub(crate) judged: u64,
    pub(crate) undecided: u64,
}
