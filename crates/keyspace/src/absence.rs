//! What becomes of keys that were absent when somebody watched them.
//!
//! A key that exists has the version of its last change, and that is what a watch compares. An absent key has none: it
//! may have come and gone in the meantime. So from the first watch of an absent key on, records that go leave a note of
//! their version: if that is later than the watch, the key was there in between.
//!
//! The notes are few, found by hash, and the same key finds the same place. Where two keys share a place the older note
//! leaves only its version behind, so that a watch may be told of a change that there was not, never the other way.
//! Notes are no part of the replicated state: only a leader asks, of watches that it has taken itself.

/// Places for notes; a few hundred KiB, once there is a watch.
const NOTES: usize = 16_384;

/// Added to the sequence number at which a key was seen absent; versions are far below.
const ABSENT: u64 = 1 << 63;

#[derive(Debug)]
pub(crate) struct Absences {
    /// Records that go are noted if their version is later than this.
    since: u64,
    notes: Vec<Note>,
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
        Self { since: u64::MAX, notes: Vec::new() }
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

    /// True if a key with this hash may have been there after `sequence`, and has gone.
    pub(crate) fn may_have_come(&self, hash: u64, sequence: u64) -> bool {
        if sequence < self.since {
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

    #[test]
    fn a_key_that_came_and_went_is_known_and_no_other() {
        let mut absences = Absences::default();
        absences.note(7, 3);
        assert!(absences.may_have_come(7, 5), "nobody took this watch");
        assert_eq!(absent_since(absences.watch(5)), Some(5));
        absences.note(7, 5);
        assert!(!absences.may_have_come(7, 5), "it had gone before");
        absences.note(7, 6);
        assert!(absences.may_have_come(7, 5) && !absences.may_have_come(7, 6) && !absences.may_have_come(8, 5));
    }

    #[test]
    fn a_note_that_made_room_is_not_forgotten() {
        let mut absences = Absences::default();
        absences.watch(0);
        let hashes = [1, 1 + NOTES as u64, 1 + 2 * NOTES as u64];
        for (hash, version) in hashes.into_iter().zip(1..) {
            absences.note(hash, version);
        }
        assert!(hashes.iter().all(|hash| absences.may_have_come(*hash, 0)));
        assert!(!absences.may_have_come(1, 2), "what came later was another key");
    }
}
