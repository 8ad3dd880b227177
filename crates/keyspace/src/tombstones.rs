//! What becomes of keys that were absent when somebody watched them.
//!
//! A key that exists has the version of its last change, and that is what a watch compares. An absent key has none: it
//! may have come and gone in the meantime. So records that go leave a note of their version: if that is later than the
//! watch, the key was there in between.
//!
//! The notes are few, found by hash, and the same key finds the same place. Where two keys share a place the older note
//! leaves only its version behind, so that a watch may be told of a change that there was not, never the other way.
//! Notes are no part of the replicated state, but every replica takes them, so that anyone who comes to lead can tell
//! what has become of watches that another one took: unless it has been given a checkpoint since, which holds no notes.
//! When a slot moves, what goes with it is the version of the last key that has gone from it.

use std::collections::BTreeMap;

use stdx::slot::{SLOT_COUNT, Slot};

use crate::table::Place;

/// Places for notes; half a MiB with what is noted of slots, once a key has gone. That is not counted as data.
const NOTES: usize = 16_384;

/// Added to the sequence number at which a key was seen absent; versions are far below.
const ABSENT: u64 = 1 << 63;

#[derive(Clone, Debug)]
pub(crate) struct Tombstones {
    /// Records that go are noted if their version is later than this; before it nothing is known.
    since: u64,
    notes: Vec<Note>,
    /// Of each slot, the latest version among keys that have gone.
    gone: Vec<u64>,
    /// Slots that have come from elsewhere.
    arrivals: BTreeMap<u16, Arrival>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Note {
    hash: u64,
    version: u64,
    /// The latest version among notes that had to make room.
    lost: u64,
}

#[derive(Clone, Copy, Debug)]
struct Arrival {
    /// The latest version, given where the slot was, of a key that may have gone there or here.
    gone: u64,
    /// The sequence here when it came, which is behind all that was seen there.
    sequence: u64,
}

impl Tombstones {
    /// For keys that can be watched.
    pub(crate) fn new() -> Self {
        Self::since(0)
    }

    /// For keys that nobody watches: nothing is noted.
    pub(crate) fn none() -> Self {
        Self::since(u64::MAX)
    }

    /// For keys that have come from a checkpoint of this sequence: of what was before nothing is known.
    pub(crate) fn since(sequence: u64) -> Self {
        Self { since: sequence, notes: Vec::new(), gone: Vec::new(), arrivals: BTreeMap::new() }
    }

    /// What a watch of a key that is absent now remembers.
    pub(crate) fn watch(sequence: u64) -> u64 {
        ABSENT | sequence
    }

    /// True if records that go must be noted.
    #[inline]
    pub(crate) fn are_noted(&self) -> bool {
        self.since != u64::MAX
    }

    /// Notes that a record has gone.
    #[inline]
    pub(crate) fn note(&mut self, Place { slot, hash }: Place, version: u64) {
        if let Some(arrival) = self.arrivals.get_mut(&(slot as u16))
            && version <= arrival.sequence
        {
            // It has come with its slot, and its number is of there.
            arrival.gone = arrival.gone.max(version);
        }
        if version > self.since {
            if self.notes.is_empty() {
                self.notes = vec![Note::default(); NOTES];
                self.gone = vec![0; SLOT_COUNT];
            }
            self.gone[slot] = self.gone[slot].max(version);
            let note = &mut self.notes[hash as usize % NOTES];
            if note.hash == hash {
                note.version = note.version.max(version);
            } else {
                *note = Note { hash, version, lost: note.lost.max(note.version) };
            }
        }
    }

    /// The latest version of a key that may have gone from a slot.
    pub(crate) fn gone_from(&self, slot: Slot) -> u64 {
        let here = self.gone.get(usize::from(slot.0)).copied().unwrap_or(0);
        here.max(self.arrivals.get(&slot.0).map_or(self.since, |arrival| arrival.gone))
    }

    /// A slot has come from elsewhere, when the sequence here was this; what [`Tombstones::gone_from`] said there.
    pub(crate) fn arrive(&mut self, slot: Slot, sequence: u64, gone: u64) {
        self.arrivals.insert(slot.0, Arrival { gone, sequence });
        if let Some(before) = self.gone.get_mut(usize::from(slot.0)) {
            *before = 0;
        }
    }

    /// True if a key of this place may have been there after `sequence`, and has gone.
    pub(crate) fn may_have_come(&self, Place { slot, hash }: Place, mut sequence: u64) -> bool {
        if let Some(arrival) = self.arrivals.get(&(slot as u16))
            && sequence < arrival.sequence
        {
            // The watch was taken where the slot was.
            if sequence < arrival.gone {
                return true;
            }
            sequence = arrival.sequence;
        }
        if sequence < self.since {
            return true;
        }
        let Some(note) = self.notes.get(hash as usize % NOTES) else { return false };
        note.lost > sequence || (note.hash == hash && note.version > sequence)
    }
}

/// The sequence number at which a watch saw its key absent; `None` if the key was there.
pub fn absent_since(version: u64) -> Option<u64> {
    (version & ABSENT != 0).then_some(version & !ABSENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hash: u64) -> Place {
        Place { slot: 3, hash }
    }

    #[test]
    fn of_a_slot_that_has_come_from_elsewhere_is_known_what_was_known_there() {
        // The taker's keys are from a checkpoint.
        let (mut giver, mut taker) = (Tombstones::new(), Tombstones::since(50));
        giver.note(at(7), 5);
        // What happens to other keys at the taker has higher numbers and says nothing of the slot that comes.
        taker.note(Place { slot: 9, hash: 8 + NOTES as u64 }, 90);
        taker.note(Place { slot: 9, hash: 8 }, 91);
        taker.arrive(Slot(3), 100, giver.gone_from(Slot(3)));
        assert!(taker.may_have_come(at(7), 4) && taker.may_have_come(at(8), 4), "a key of the slot had gone there");
        assert!(!taker.may_have_come(at(7), 5) && !taker.may_have_come(at(8), 6));
        // One that has come along goes.
        taker.note(at(9), 8);
        assert!(taker.may_have_come(at(9), 7) && !taker.may_have_come(at(9), 8));
        taker.note(at(8), 101);
        assert!(taker.may_have_come(at(8), 9) && !taker.may_have_come(at(7), 9));
        // It goes back.
        giver.arrive(Slot(3), 110, taker.gone_from(Slot(3)));
        assert!(giver.may_have_come(at(8), 9) && !giver.may_have_come(at(8), 101));
    }

    #[test]
    fn a_key_that_came_and_went_is_known_and_no_other() {
        let mut tombstones = Tombstones::since(4);
        tombstones.note(at(7), 3);
        assert!(tombstones.may_have_come(at(7), 3), "nobody knows what was then");
        assert_eq!(absent_since(Tombstones::watch(5)), Some(5));
        tombstones.note(at(7), 5);
        assert!(!tombstones.may_have_come(at(7), 5), "it had gone before");
        tombstones.note(at(7), 6);
        assert!(
            tombstones.may_have_come(at(7), 5)
                && !tombstones.may_have_come(at(7), 6)
                && !tombstones.may_have_come(at(8), 5)
        );
    }

    #[test]
    fn a_note_that_made_room_is_not_forgotten() {
        let mut tombstones = Tombstones::new();
        let hashes = [1, 1 + NOTES as u64, 1 + 2 * NOTES as u64];
        for (hash, version) in hashes.into_iter().zip(1..) {
            tombstones.note(at(hash), version);
        }
        assert!(hashes.iter().all(|hash| tombstones.may_have_come(at(*hash), 0)));
        assert!(!tombstones.may_have_come(at(1), 2), "what came later was another key");
    }
}
