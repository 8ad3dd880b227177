//! Keys and elements looked up ahead of their commands, so that the processor fetches several at a time.
//!
//! To find a key takes four reads from memory, each of which needs the one before: the slot, the control bytes of its
//! table, the place in the table, the record. With more data than the caches hold, a small command waits for them most
//! of its time. The reads of different keys do not need each other: done side by side, step by step, sixteen keys take
//! little longer than one. A member of a large collection is three more levels away, and is looked up in the same way.

use std::hint::black_box;

use crate::keyspace::Keyspace;
use crate::record::Record;
use crate::table::Place;

/// Most keys looked up side by side: more than a processor's reads under way at a time, and little enough that nothing
/// fetched is pushed out again before it is used.
pub const PREFETCH_MAX: usize = 16;

/// What the words of a command probably name.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrefetchTarget<'a> {
    /// The database.
    pub database: u16,
    /// The key.
    pub key: &'a [u8],
    /// A field or a member, if the key is a hash or a set; or anything.
    pub element: &'a [u8],
}

impl Keyspace {
    /// Brings near what commands with these words will look at. Only the first [`PREFETCH_MAX`] count. Nothing changes
    /// that anybody could see, and a key that does not exist does no harm.
    pub fn prefetch(&self, words: &[PrefetchTarget<'_>]) {
        let Some(first) = words.first() else { return };
        if words.iter().all(|ahead| ahead.key == first.key && ahead.database == first.database) {
            return self.look_into_one(words);
        }
        let mut places = [Place { slot: 0, hash: 0 }; PREFETCH_MAX];
        for (ahead, place) in words.iter().zip(&mut places) {
            *place = self.place(ahead.key);
        }
        // Each step by itself: the shorter the loop, the more of its turns the processor has under way at a time.
        for (ahead, place) in words.iter().zip(&places) {
            black_box(self.databases[usize::from(ahead.database)].touch(*place));
        }
        let mut records = [None; PREFETCH_MAX];
        for ((ahead, place), record) in words.iter().zip(&places).zip(&mut records) {
            *record = self.databases[usize::from(ahead.database)].candidate(*place);
        }
        for record in records.iter().flatten() {
            record.touch();
        }
        if records.iter().flatten().any(|record| record.collection().is_some()) {
            look_into(&records, words);
        }
    }

    /// The same if all words name one key, which need not be fetched more than once.
    fn look_into_one(&self, words: &[PrefetchTarget<'_>]) {
        let record = self.databases[usize::from(words[0].database)].candidate(self.place(words[0].key));
        let Some(found) = record else { return };
        found.touch();
        if found.collection().is_some() {
            look_into(&[record; PREFETCH_MAX], words);
        }
    }
}

/// The same for the elements of these records.
fn look_into(records: &[Option<&Record>; PREFETCH_MAX], words: &[PrefetchTarget<'_>]) {
    let mut prefetched_elements = [const { None }; PREFETCH_MAX];
    for ((record, ahead), prefetched_element) in records.iter().zip(words).zip(&mut prefetched_elements) {
        *prefetched_element =
            record.and_then(Record::collection).and_then(|collection| collection.prefetched_element(ahead.element));
    }
    while prefetched_elements
        .iter_mut()
        .flatten()
        .fold(false, |moved, prefetched_element| prefetched_element.step() | moved)
    {}
    for prefetched_element in prefetched_elements.iter().flatten() {
        black_box(prefetched_element.touch());
    }
}

#[cfg(test)]
mod tests {
    use super::{PREFETCH_MAX, PrefetchTarget};
    use crate::testing::Harness;

    #[test]
    fn looking_ahead_changes_nothing_whatever_the_keys() {
        let mut harness = Harness::new();
        let ahead = |database, key| PrefetchTarget { database, key, element: b"" };
        harness.keyspace.prefetch(&[ahead(0, b"in an empty database"), ahead(15, b"")]);
        harness.run("set integer 12");
        harness.run("set short x");
        harness.run_words(&[b"set", b"long", &[7; 1_000]]);
        harness.run_words(&[b"set", b"outside", &[7; 100_000]]);
        let (digest, sequence) = (harness.keyspace.digest(), harness.keyspace.sequence());
        let keys: [PrefetchTarget<'_>; 5] =
            [ahead(0, b"integer"), ahead(0, b"short"), ahead(0, b"long"), ahead(0, b"outside"), ahead(1, b"short")];
        harness.keyspace.prefetch(&keys);
        harness.keyspace.prefetch(&keys.repeat(PREFETCH_MAX));
        keys.iter().for_each(|key| harness.keyspace.prefetch(&[*key].repeat(PREFETCH_MAX)));
        harness.keyspace.prefetch(&[]);
        assert_eq!((harness.keyspace.digest(), harness.keyspace.sequence()), (digest, sequence));
        assert_eq!(harness.run("object idletime short"), ":0\r\n");
    }

    #[test]
    fn looking_ahead_for_elements_of_large_collections_changes_nothing() {
        let mut harness = Harness::new();
        for thousand in 0..20 {
            let names: Vec<String> = (0..1000).map(|member| format!("member:{}", thousand * 1000 + member)).collect();
            harness.run(&format!("sadd set {}", names.join(" ")));
            harness.run(&format!("hset hash {} v", names.join(" v ")));
            harness.run(&format!("zadd sorted 1 {}", names.join(" 1 ")));
        }
        let digest = harness.keyspace.digest();
        let keys: [&[u8]; 4] = [b"set", b"hash", b"sorted", b"absent"];
        for element in [&b"member:17"[..], b"member:19999", b"no member", b""] {
            let words = keys.map(|key| PrefetchTarget { database: 0, key, element });
            harness.keyspace.prefetch(&words.repeat(PREFETCH_MAX / words.len()));
            words.iter().for_each(|word| harness.keyspace.prefetch(&[*word].repeat(PREFETCH_MAX)));
        }
        assert_eq!(harness.keyspace.digest(), digest);
        assert_eq!(harness.run("sismember set member:17"), ":1\r\n");
    }
}
