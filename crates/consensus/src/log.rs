//! The part of a group's log that is held in memory.
//!
//! ```text
//!        checkpoint                                  last
//!   ─ ─ ─ ─ ─ ● ┌───────────────────────────────────┐
//!   compacted   │ entries, contiguous by index      │
//!   ─ ─ ─ ─ ─ ─ └───────────────────────────────────┘
//!             ▲ index and term are kept: the next entry must match them
//! ```

use std::collections::VecDeque;

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Result, Storage, StorageError};
use stdx::log::Membership;

/// Bytes an entry is counted as: its payload and a share of bookkeeping.
pub(crate) fn entry_bytes(entry: &Entry) -> usize {
    entry.data.len() + 64
}

/// Entries after a floor, in order, with what the library asks of a store.
#[derive(Debug)]
pub(crate) struct Log {
    floor_index: u64,
    floor_term: u64,
    entries: VecDeque<Entry>,
    bytes: usize,
    hard_state: HardState,
    conf_state: ConfState,
}

impl Log {
    /// `entries` must follow (`floor_index`, `floor_term`) without a gap.
    pub(crate) fn new(
        floor_index: u64,
        floor_term: u64,
        entries: VecDeque<Entry>,
        hard_state: HardState,
        membership: &Membership,
    ) -> Self {
        let mut conf_state = ConfState::default();
        conf_state.set_voters(membership.voters.clone());
        conf_state.set_learners(membership.learners.clone());
        conf_state.set_voters_outgoing(membership.voters_outgoing.clone());
        conf_state.set_learners_next(membership.learners_next.clone());
        let bytes = entries.iter().map(entry_bytes).sum();
        let log = Self { floor_index, floor_term, entries, bytes, hard_state, conf_state };
        for (offset, entry) in log.entries.iter().enumerate() {
            assert_eq!(entry.index, floor_index + 1 + offset as u64, "the log has a hole");
        }
        log
    }

    pub(crate) fn floor_index(&self) -> u64 {
        self.floor_index
    }

    pub(crate) fn last(&self) -> u64 {
        self.floor_index + self.entries.len() as u64
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds `entries`; those at or below the last index replace what is there and everything behind it.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(first.index > self.floor_index, "an entry under the floor {} would be replaced", self.floor_index);
        assert!(first.index <= self.last() + 1, "entry {} leaves a hole after {}", first.index, self.last());
        while self.last() >= first.index {
            let dropped = self.entries.pop_back().expect("an entry above the floor");
            self.bytes -= entry_bytes(&dropped);
        }
        self.bytes += entries.iter().map(entry_bytes).sum::<usize>();
        self.entries.extend(entries.iter().cloned());
    }

    /// Forgets entries up to and including `index`, which must be there.
    pub(crate) fn compact(&mut self, index: u64) {
        assert!(index <= self.last(), "compacting to {index} beyond the last entry {}", self.last());
        while self.floor_index < index {
            let dropped = self.entries.pop_front().expect("an entry above the floor");
            self.bytes -= entry_bytes(&dropped);
            self.floor_index = dropped.index;
            self.floor_term = dropped.term;
        }
    }
}

impl Storage for Log {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(RaftState { hard_state: self.hard_state.clone(), conf_state: self.conf_state.clone() })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        if low <= self.floor_index {
            return Err(Error::Store(StorageError::Compacted));
        }
        assert!(high <= self.last() + 1, "entries up to {high} were asked of a log that ends at {}", self.last());
        let budget = max_size.into().unwrap_or(u64::MAX);
        let (from, to) = ((low - self.floor_index - 1) as usize, (high - self.floor_index - 1) as usize);
        let mut taken = 0;
        let within = self.entries.range(from..to).take_while(|entry| {
            let first = taken == 0;
            taken += entry_bytes(entry) as u64;
            first || taken <= budget
        });
        Ok(within.cloned().collect())
    }

    fn term(&self, index: u64) -> Result<u64> {
        if index == self.floor_index {
            return Ok(self.floor_term);
        }
        if index < self.floor_index {
            return Err(Error::Store(StorageError::Compacted));
        }
        match self.entries.get((index - self.floor_index - 1) as usize) {
            Some(entry) => Ok(entry.term),
            None => Err(Error::Store(StorageError::Unavailable)),
        }
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.floor_index + 1)
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last())
    }

    /// Checkpoints do not travel through the log: a follower below the floor waits until one has been brought to it.
    fn snapshot(&self, _request_index: u64, _to: u64) -> Result<Snapshot> {
        Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}
