//! Rare situations, reported as reached or not: a universe in which nothing rare happens proves little.

use std::collections::BTreeMap;

/// How often each situation was reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probes(BTreeMap<&'static str, u64>);

/// Situations that a large enough number of universes must reach between them.
pub const EXPECTED: &[&str] = &[
    "a process was killed",
    "a node lost power",
    "all nodes lost power at once",
    "power failed inside a disk operation",
    "unsynced sectors were lost",
    "a log was recovered",
    "a checkpoint was recovered",
    "a checkpoint was finished",
    "a sync failed",
    "a core wrote the log itself",
    "a log rotted at its end",
    "the end of a log was in question",
    "the others made good for the end of a log",
    "a start was refused because of rot",
    "the disk was full",
    "a process paused",
    "a wall clock jumped",
    "a clock ran at a rate that leases do not bear",
    "clocks ran apart",
    "a client lost its connection",
    "a client gave up waiting",
    "a write was refused",
    "an outcome is unknown",
    "a transaction spanned groups",
    "a leader changed",
    "a node died at a step of a transaction",
    "a backup was read",
    "a watched list was changed by another",
    "a watch was broken",
    "a client waited for a window",
    "too much waited for the disk to read clients",
    "a value of a transaction went in steps",
    "a leader had a lease",
    "a partition began",
    "a message was lost",
    "a message came twice",
    "a segment was recycled",
    "a member was fed from the disk",
    "a replica answered a read",
    "a log was replayed without a node",
    "a replica of another kind followed",
    "logs were cut at a moment",
    "a cut found a transaction half-way",
];

impl Probes {
    /// It happened.
    pub fn reach(&mut self, name: &'static str) {
        *self.0.entry(name).or_insert(0) += 1;
    }

    /// Adds what another universe reached.
    pub fn add(&mut self, other: &Self) {
        for (name, count) in &other.0 {
            *self.0.entry(name).or_insert(0) += count;
        }
    }

    /// How often it happened.
    pub fn count(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// All that happened.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(name, count)| (*name, *count))
    }
}
