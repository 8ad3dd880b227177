//! A group's log as far as the replica knows it, and the part of it that is held in memory.
//!
//! ```text
//!           floor              memory                 last
//!   ─ ─ ─ ─ ─ ● ─ ─ ─ ─ ─ ─ ─ ─ ─ ┌─────────────────────┐
//!   compacted   forgotten: on the │ entries, contiguous │
//!   ─ ─ ─ ─ ─ ─ host's disk only ─└─────────────────────┘
//!             ▲ index and term are kept: the next entry must match them
//! ```
//!
//! Of what is forgotten the terms stay known, and roughly the bytes. Entries of it are read by the host when a member
//! needs them, a piece at a time.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Result, Storage, StorageError};
use stdx::log::Membership;

use crate::limits;

/// Bytes an entry is counted as: its payload and a share of bookkeeping.
pub(crate) fn entry_bytes(entry: &Entry) -> usize {
    entry.data.len() + 64
}

/// Entries after a floor, in order, with what the library asks of a store.
#[derive(Debug)]
pub(crate) struct Log {
    floor_index: u64,
    floor_term: u64,
    /// Entries up to here are not in memory.
    memory_index: u64,
    memory_term: u64,
    /// What is known of the entries between: ascending, each holds up to the next.
    past: VecDeque<Past>,
    /// Bytes of all entries ever forgotten.
    forgotten_bytes: u64,
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Forgotten entries that a member lacks begin here: the host must be asked for them.
    wanted: RefCell<BTreeSet<u64>>,
    /// The host has been asked.
    fetching: BTreeSet<u64>,
    /// Pieces that the host has read, by the index of the first entry, until all who need them have been sent them.
    fetched: BTreeMap<u64, Vec<Entry>>,
    hard_state: HardState,
    conf_state: ConfState,
    /// A checkpoint that can be given to members.
    pub(crate) offer: Option<Offer>,
    /// A member needs a checkpoint, and there is none to be given.
    pub(crate) asked: Cell<bool>,
    /// Who took part before the first entry stands in no entry: who is sent that one must know it already.
    pub(crate) begins_with_founder: bool,
    /// The entry by which each member became one, as far as the log says so. One that has been a member before holds
    /// nothing any more, and may have forgotten what it had acknowledged: it must not begin before that entry.
    pub(crate) joined: BTreeMap<u64, u64>,
}

/// Entries that were forgotten.
#[derive(Clone, Copy, Debug)]
struct Past {
    first: u64,
    term: u64,
    /// Bytes of all entries forgotten before.
    before_bytes: u64,
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
            memory_index: floor_index,
            memory_term: floor_term,
            past: VecDeque::new(),
            forgotten_bytes: 0,
            entries,
            bytes,
            wanted: RefCell::default(),
            fetching: BTreeSet::new(),
            fetched: BTreeMap::new(),
            hard_state,
            conf_state,
            offer: None,
            asked: Cell::new(false),
            begins_with_founder: false,
            joined: BTreeMap::new(),
        };
        for (offset, entry) in log.entries.iter().enumerate() {
            assert_eq!(entry.index, floor_index + 1 + offset as u64, "the log has a hole");
        }
        log
    }

    pub(crate) fn floor_index(&self) -> u64 {
        self.floor_index
    }

    /// Index of the last entry that is not in memory.
    pub(crate) fn memory_index(&self) -> u64 {
        self.memory_index
    }

    pub(crate) fn last(&self) -> u64 {
        self.memory_index + self.entries.len() as u64
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the entries behind `index`; of those that are forgotten to [`limits::PAST_BYTES`], and of those under
    /// the floor nothing is known.
    pub(crate) fn bytes_after(&self, index: u64) -> u64 {
        if index < self.memory_index {
            let position = self.past.partition_point(|past| past.first <= index + 1);
            let before =
                self.past.get(position.saturating_sub(1)).map_or(self.forgotten_bytes, |past| past.before_bytes);
            return self.bytes as u64 + self.forgotten_bytes - before;
        }
        let before = ((index - self.memory_index) as usize).min(self.entries.len());
        // Whichever part is shorter is counted.
        let bytes = if before < self.entries.len() / 2 {
            self.bytes - self.entries.range(..before).map(entry_bytes).sum::<usize>()
        } else {
            self.entries.range(before..).map(entry_bytes).sum()
        };
        bytes as u64
    }

    /// Entries behind `index`, as far as they are in memory.
    pub(crate) fn entries_after(&self, index: u64) -> impl Iterator<Item = &Entry> {
        let before = (index.saturating_sub(self.memory_index) as usize).min(self.entries.len());
        self.entries.range(before..)
    }

    /// Adds `entries`; those at or below the last index replace what is there and everything behind it.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(first.index > self.memory_index, "an entry under {} would be replaced", self.memory_index);
        assert!(first.index <= self.last() + 1, "entry {} leaves a hole after {}", first.index, self.last());
        while self.last() >= first.index {
            let dropped = self.entries.pop_back().expect("an entry in memory");
            self.bytes -= entry_bytes(&dropped);
        }
        self.bytes += entries.iter().map(entry_bytes).sum::<usize>();
        self.entries.extend(entries.iter().cloned());
    }

    /// Forgets everything: the log goes on behind a checkpoint.
    pub(crate) fn reset(&mut self, index: u64, term: u64) {
        self.entries.clear();
        self.bytes = 0;
        self.past.clear();
        self.forgotten_bytes = 0;
        (self.floor_index, self.floor_term) = (index, term);
        (self.memory_index, self.memory_term) = (index, term);
        self.wanted.get_mut().clear();
        self.fetched.clear();
        self.offer = None;
        self.joined.clear();
    }

    /// Drops entries up to and including `index`, which must be there, from memory; the host keeps them.
    pub(crate) fn forget(&mut self, index: u64) {
        assert!(index <= self.last(), "forgetting up to {index} beyond the last entry {}", self.last());
        while self.memory_index < index {
            self.forget_first();
        }
    }

    /// Drops the oldest entries from memory while there are more bytes than this, but none behind `index`.
    pub(crate) fn forget_beyond(&mut self, bytes_max: usize, index: u64) {
        while self.bytes > bytes_max && self.memory_index < index {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        let dropped = self.entries.pop_front().expect("an entry in memory");
        let bytes = entry_bytes(&dropped);
        let continues = self.past.back().is_some_and(|past| {
            past.term == dropped.term && self.forgotten_bytes - past.before_bytes < limits::PAST_BYTES
        });
        if !continues {
            let before_bytes = self.forgotten_bytes;
            self.past.push_back(Past { first: dropped.index, term: dropped.term, before_bytes });
        }
        self.bytes -= bytes;
        self.forgotten_bytes += bytes as u64;
        (self.memory_index, self.memory_term) = (dropped.index, dropped.term);
        if self.past.len() > limits::PAST_COUNT_MAX {
            let floor = self.past[1].first - 1;
            self.compact(floor);
        }
    }

    /// Entries up to `index`, which must be there, are held by nobody any more.
    pub(crate) fn compact(&mut self, index: u64) {
        if index <= self.floor_index {
            return;
        }
        self.forget(index);
        self.floor_term = self.term(index).expect("an entry of the log");
        self.floor_index = index;
        while self.past.get(1).map_or(self.memory_index, |next| next.first - 1) <= index {
            if self.past.pop_front().is_none() {
                break;
            }
        }
    }

    /// What the host must be asked for.
    pub(crate) fn take_wanted(&mut self) -> Vec<u64> {
        let wanted = std::mem::take(self.wanted.get_mut());
        let new = wanted.into_iter().filter(|first| !self.fetching.contains(first)).collect::<Vec<_>>();
        self.fetching.extend(&new);
        new
    }

    /// The terms of the forgotten entries from `first` on: each with the index from which it counts.
    pub(crate) fn terms_from(&self, first: u64) -> Vec<(u64, u64)> {
        let position = self.past.partition_point(|past| past.first <= first).saturating_sub(1);
        let mut terms: Vec<(u64, u64)> = Vec::new();
        for past in self.past.range(position..) {
            if terms.last().is_none_or(|(_, term)| *term != past.term) {
                terms.push((past.first, past.term));
            }
        }
        terms
    }

    /// The index below which nothing is known, and the terms of all entries behind it: each with the index from which
    /// it counts.
    pub(crate) fn terms(&self) -> (u64, Vec<(u64, u64)>) {
        let mut terms = self.terms_from(self.floor_index + 1);
        if let Some(first) = terms.first_mut() {
            first.0 = first.0.max(self.floor_index + 1);
        }
        // Terms of a log never go back.
        let mut position = 0;
        while let Some(entry) = self.entries.get(position) {
            if terms.last().is_none_or(|(_, term)| *term != entry.term) {
                terms.push((entry.index, entry.term));
            }
            position = self.entries.partition_point(|other| other.term <= entry.term);
        }
        (self.floor_index, terms)
    }

    /// The host has read forgotten entries, or could not. Those that are none of this log count for nothing.
    pub(crate) fn take_fetched(&mut self, first: u64, entries: Vec<Entry>) {
        self.fetching.remove(&first);
        let fits = |(entry, index): (&Entry, u64)| {
            entry.index == index && index <= self.memory_index && self.term(index).is_ok_and(|term| term == entry.term)
        };
        let count = entries.iter().zip(first..).take_while(|pair| fits(*pair)).count();
        if count > 0 && first > self.floor_index {
            let end = first + count as u64;
            // Anyone who is within reach of an older piece is within reach of this one, or asks again.
            self.fetched.retain(|other, piece| other + piece.len() as u64 <= first || *other >= end);
            self.fetched.insert(first, entries.into_iter().take(count).collect());
        }
    }

    /// Keeps of what the host has read only pieces that one of those is within who are sent this entry next.
    pub(crate) fn keep_fetched(&mut self, next: &[u64]) {
        self.fetched.retain(|first, piece| next.iter().any(|next| next >= first && *next < first + piece.len() as u64));
    }

    /// True if the host has read something that has not been sent to all who need it.
    pub(crate) fn has_fetched(&self) -> bool {
        !self.fetched.is_empty()
    }

    fn forgotten(&self, low: u64, high: u64) -> Option<&[Entry]> {
        let (first, piece) = self.fetched.range(..=low).next_back()?;
        let rest = piece.get((low - first) as usize..).filter(|rest| !rest.is_empty())?;
        Some(&rest[..rest.len().min((high - low) as usize)])
    }
}

/// As many of the first entries as fit the budget; one at least.
fn within<'a>(entries: impl Iterator<Item = &'a Entry>, budget: u64) -> Vec<Entry> {
    let mut taken = 0;
    let fits = |entry: &&Entry| {
        let is_first = taken == 0;
        taken += entry_bytes(entry) as u64;
        is_first || taken <= budget
    };
    entries.take_while(fits).cloned().collect()
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
        if low <= self.memory_index {
            assert!(context.can_async(), "entry {low} is asked for to be applied, and has been");
            if let Some(entries) = self.forgotten(low, high) {
                return Ok(within(entries.iter(), budget));
            }
            self.wanted.borrow_mut().insert(low);
            return Err(Error::Store(StorageError::LogTemporarilyUnavailable));
        }
        let (from, to) = ((low - self.memory_index - 1) as usize, (high - self.memory_index - 1) as usize);
        Ok(within(self.entries.range(from..to), budget))
    }

    fn term(&self, index: u64) -> Result<u64> {
        if index == self.floor_index {
            return Ok(self.floor_term);
        }
        if index < self.floor_index {
            return Err(Error::Store(StorageError::Compacted));
        }
        if index == self.memory_index {
            return Ok(self.memory_term);
        }
        if index < self.memory_index {
            let position = self.past.partition_point(|past| past.first <= index);
            return Ok(self.past[position - 1].term);
        }
        match self.entries.get((index - self.memory_index - 1) as usize) {
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
                && self.joined.get(&to).is_none_or(|joined| offer.index >= *joined)
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
