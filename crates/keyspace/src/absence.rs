//! What becomes of keys that were absent when somebody watched them.
//!
//! A key that exists has the version of its last change, and that is what a watch compares. An absent key has none: it
//! may have come and gone in the meantime. So from the first watch of an absent key on, records that go leave a note of
//! their version: if that is later than the watch, the key was there in between.
//!
//! The notes are few, found by hash, and the same key finds the same place. Where two keys share a place the older note
//! leaves only its version behind, so that a watch may be told of a change that there was not, never the other way.
//! Notes are no part of the replicated state: only a leader asks, of watches that it has taken itself.

use std::collections::BTreeMap;

use stdx::slot::Slot;

use crate::table::Place;

/// Places for notes; a few hundred KiB, once there is a watch.
const NOTES: usize = 16_384;

/// Added to the sequence number at which a key was seen absent; versions are far below.
const ABSENT: u64 = 1 << 63;

#[derive(Debug)]
pub(crate) struct Absences {
    /// Records that go are noted if their version is later than this.
    since: u64,
    notes: Vec<Note>,
    /// Slots that have come from elsewhere, and when: of what was before nothing is known here.
    slots: BTreeMap<u16, u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Note {
    hash: u64,
    version: u64,
    /// The latest version among notes that had to make room.
    lost: u64,
}

impl Default for Absences {
    fn default() -> Self {
        Self { since: u64::MAX, notes: Vec::new(), slots: BTreeMap::new() }
    }
}

impl Absences {
    /// What a watch of a key that is absent now remembers.
    pub(crate) fn watch(&mut self, sequence: u64) -> u64 {
        if self.notes.is_empty() {
            self.since = sequence;
            self.notes = vec![Note::default(); NOTES];
        }
        ABSENT | sequence
    }

    /// True if records that go must be noted.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.since != u64::MAX
    }

    /// Notes that a record has gone.
    #[inline]
    pub(crate) fn note(&mut self, hash: u64, version: u64) {
        if version > self.since {
            let note = &mut self.notes[hash as usize % NOTES];
            if note.hash == hash {
                note.version = note.version.max(version);
            } else {
                *note = Note { hash, version, lost: note.lost.max(note.version) };
            }
        }
    }

    /// From this point of the sequence on a slot is looked after here.
    pub(crate) fn begin_slot(&mut self, slot: Slot, sequence: u64) {
        self.slots.insert(slot.0, sequence);
    }

    /// True if a key of this place may have been there after `sequence`, and has gone.
    pub(crate) fn may_have_come(&self, Place { slot, hash }: Place, sequence: u64) -> bool {
        let began = self.slots.get(&(slot as u16)).copied().unwrap_or(0);
        if sequence < self.since || sequence <= began {
            return true; // somebody else took this watch
        }
        let note = &self.notes[hash as usize % NOTES];
        note.lost > sequence || (note.hash == hash && note.version > sequence)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.notes.capacity() * size_of::<Note>()
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
    fn of_a_slot_that_has_come_from_elsewhere_only_later_watches_are_known() {
        let mut absences = Absences::default();
        absences.watch(5);
        absences.begin_slot(Slot(3), 8);
        assert!(absences.may_have_come(at(7), 8) && !absences.may_have_come(at(7), 9));
        assert!(!absences.may_have_come(Place { slot: 4, hash: 7 }, 6));
    }

    #[test]
    fn a_key_that_came_and_went_is_known_and_no_other() {
        let mut absences = Absences::default();
        absences.note(7, 3);
        assert!(absences.may_have_come(at(7), 5), "nobody took this watch");
        assert_eq!(absent_since(absences.watch(5)), Some(5));
        absences.note(7, 5);
        assert!(!absences.may_have_come(at(7), 5), "it had gone before");
        absences.note(7, 6);
        assert!(
            absences.may_have_come(at(7), 5) && !absences.may_have_come(at(7), 6) && !absences.may_have_come(at(8), 5)
        );
    }

    #[test]
    fn a_note_that_made_room_is_not_forgotten() {
        let mut absences = Absences::default();
        absences.watch(0);
        let hashes = [1, 1 + NOTES as u64, 1 + 2 * NOTES as u64];
        for (hash, version) in hashes.into_iter().zip(1..) {
            absences.note(hash, version);
        }
        assert!(hashes.iter().all(|hash| absences.may_have_come(at(*hash), 0)));
        assert!(!absences.may_have_come(at(1), 2), "what came later was another key");
    }
}
