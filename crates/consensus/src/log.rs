//! The part of a group's log that is held in memory.
//!
//! ```text
//!        checkpoint                                  last
//!   ─ ─ ─ ─ ─ ● ┌───────────────────────────────────┐
//!   compacted   │ entries, contiguous by index      │
//!   ─ ─ ─ ─ ─ ─ └───────────────────────────────────┘
//!             ▲ index and term are kept: the next entry must match them
//! ```

use std::cell::Cell;
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
    /// A checkpoint that can be given to members.
    pub(crate) offer: Option<Offer>,
    /// A member needs a checkpoint, and there is none to be given.
    pub(crate) asked: Cell<bool>,
    /// Who took part before the first entry stands in no entry: who is sent that one must know it already.
    pub(crate) begins_with_founder: bool,
}

/// A durable checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub index: u64,
    pub term: u64,
    pub membership: Membership,
}

pub(crate) fn membership_of(state: &ConfState) -> Membership {
    let mut membership = Membership {
        voters: state.get_voters().to_vec(),
        learners: state.get_learners().to_vec(),
        voters_outgoing: state.get_voters_outgoing().to_vec(),
        learners_next: state.get_learners_next().to_vec(),
    };
    // The library keeps them in hash tables.
    membership.voters.sort_unstable();
    membership.learners.sort_unstable();
    membership.voters_outgoing.sort_unstable();
    membership.learners_next.sort_unstable();
    membership
}

pub(crate) fn conf_state_of(membership: &Membership) -> ConfState {
    let mut state = ConfState::default();
    state.set_voters(membership.voters.clone());
    state.set_learners(membership.learners.clone());
    state.set_voters_outgoing(membership.voters_outgoing.clone());
    state.set_learners_next(membership.learners_next.clone());
    state
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
        let conf_state = conf_state_of(membership);
        let bytes = entries.iter().map(entry_bytes).sum();
        let log = Self {
            floor_index,
            floor_term,
            entries,
            bytes,
            hard_state,
            conf_state,
            offer: None,
            asked: Cell::new(false),
            begins_with_founder: false,
        };
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

    /// Bytes of the entries behind `index`.
    pub(crate) fn bytes_after(&self, index: u64) -> usize {
        let before = (index.saturating_sub(self.floor_index) as usize).min(self.entries.len());
        // Whichever part is shorter is counted.
        if before < self.entries.len() / 2 {
            self.bytes - self.entries.range(..before).map(entry_bytes).sum::<usize>()
        } else {
            self.entries.range(before..).map(entry_bytes).sum()
        }
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

    /// Forgets everything: the log goes on behind a checkpoint.
    pub(crate) fn reset(&mut self, index: u64, term: u64) {
        self.entries.clear();
        self.bytes = 0;
        (self.floor_index, self.floor_term) = (index, term);
        self.offer = None;
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
        context: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        // Only what is read to be sent may be read later.
        let is_hidden = self.begins_with_founder && low == 1 && context.can_async();
        if low <= self.floor_index || is_hidden {
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

    /// What is answered is only the name of a checkpoint, which travels by other ways. It must hold the member it is
    /// for, and the log must go on behind it.
    fn snapshot(&self, request_index: u64, to: u64) -> Result<Snapshot> {
        let fits = |offer: &&Offer| {
            let members = &offer.membership;
            offer.index >= self.floor_index
                && offer.index >= request_index
                && (members.voters.contains(&to) || members.learners.contains(&to))
        };
        let Some(offer) = self.offer.as_ref().filter(fits) else {
            self.asked.set(true);
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        };
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = offer.index;
        metadata.term = offer.term;
        metadata.set_conf_state(conf_state_of(&offer.membership));
        Ok(snapshot)
    }
}
