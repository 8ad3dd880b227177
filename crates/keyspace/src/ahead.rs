//! Keys looked up ahead of their commands, so that the processor fetches several at a time.
//!
//! To find a key takes four reads from memory, each of which needs the one before: the slot, the control bytes of its
//! table, the place in the table, the record. With more data than the caches hold, a small command waits for them most
//! of its time. The reads of different keys do not need each other: done side by side, step by step, sixteen keys take
//! little longer than one.

use std::hint::black_box;

use crate::keyspace::Keyspace;
use crate::table::Place;

/// Most keys looked up side by side: more than a processor's reads under way at a time, and little enough that nothing
/// fetched is pushed out again before it is used.
pub const AHEAD_MAX: usize = 16;

impl Keyspace {
    /// Brings near what commands on these keys will look at, a key given with its database. Only the first
    /// [`AHEAD_MAX`] count. Nothing changes that anybody could see, and a key that does not exist does no harm.
    pub fn look_ahead(&self, keys: &[(u16, &[u8])]) {
        let mut places = [Place { slot: 0, hash: 0 }; AHEAD_MAX];
        for ((_, key), place) in keys.iter().zip(&mut places) {
            *place = self.place(key);
        }
        // Each step by itself: the shorter the loop, the more of its turns the processor has under way at a time.
        for ((database, _), place) in keys.iter().zip(&places) {
            black_box(self.databases[usize::from(*database)].touch(*place));
        }
        let mut records = [None; AHEAD_MAX];
        for (((database, _), place), record) in keys.iter().zip(&places).zip(&mut records) {
            *record = self.databases[usize::from(*database)].candidate(*place);
        }
        for record in records.iter().flatten() {
            record.touch();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::AHEAD_MAX;
    use crate::testing::Harness;

    #[test]
    fn looking_ahead_changes_nothing_whatever_the_keys() {
        let mut harness = Harness::new();
        harness.keyspace.look_ahead(&[(0, b"in an empty database"), (15, b"")]);
        harness.run("set integer 12");
        harness.run("set short x");
        harness.run_words(&[b"set", b"long", &[7; 1_000]]);
        harness.run_words(&[b"set", b"outside", &[7; 100_000]]);
        let (digest, sequence) = (harness.keyspace.digest(), harness.keyspace.sequence());
        let keys: [(u16, &[u8]); 5] = [(0, b"integer"), (0, b"short"), (0, b"long"), (0, b"outside"), (1, b"short")];
        harness.keyspace.look_ahead(&keys);
        harness.keyspace.look_ahead(&keys.repeat(AHEAD_MAX));
        assert_eq!((harness.keyspace.digest(), harness.keyspace.sequence()), (digest, sequence));
        assert_eq!(harness.run("object idletime short"), ":0\r\n");
    }
}
