//! The keys of one slot: small hash tables that split instead of growing without end.
//!
//! A hash table that doubles stalls for as long as it takes to move everything; one slot may hold millions of keys. So
//! a slot is an extendible hash (Fagin, Nievergelt, Pippenger, Strong: "Extendible hashing: a fast access method for
//! dynamic files", 1979): a directory, indexed by the high bits of a key's hash, of *segments*, each a table of at most
//! [`SEGMENT_KEYS_MAX`] keys. A full segment splits in two; only its own keys move. A slot of ordinary size is a single
//! segment without a directory.
//!
//! As the segments of a directory follow the hash's high bits, "the keys in order of their hash" can be walked whatever
//! splits meanwhile. SCAN's cursors and the checkpoint's walk rest on that.

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Place;
use std::hash::{BuildHasher, Hasher};

use crate::record::Record;

/// A segment that holds as many splits before it takes one more: what a table of 2,048 places holds at its load
/// limit. Moving that many takes about a tenth of a millisecond.
pub(crate) const SEGMENT_KEYS_MAX: usize = 1792;

/// The hash function: fixed for the life of a data directory, because cursors mean places in its order.
#[derive(Clone, Debug)]
pub(crate) struct KeyHasher(FixedState);

impl KeyHasher {
    pub(crate) fn new(seed: u64) -> Self {
        Self(FixedState::with_seed(seed))
    }

    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write(key);
        hasher.finish()
    }
}

/// The hash as the tables see it. Their tags are its top bits, which all keys of a deep segment share; so the halves
/// change places.
#[inline]
fn inner(hash: u64) -> u64 {
    hash.rotate_left(32)
}

/// Keys of one slot with hashes that begin with the same `depth` bits.
#[derive(Default)]
pub(crate) struct Segment {
    records: HashTable<Record>,
    /// Lower bound of the deadlines of keys and of their fields; `i64::MAX` if none has one.
    pub(crate) earliest: i64,
    /// Bytes of the records.
    bytes: usize,
    /// Sum of the deadlines of keys, its lower half first: a whole number of this size would be aligned to 16 bytes.
    deadlines: [u64; 2],
    /// Number of keys with a deadline.
    pub(crate) expiring: u32,
    depth: u8,
    /// How long the sweep for expired keys waits beyond `earliest`: see [`Segment::sweep_at`].
    pub(crate) patience: u8,
}

impl Segment {
    pub(crate) fn new() -> Self {
        Self { earliest: i64::MAX, ..Self::default() }
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, key: &[u8]) -> Option<&Record> {
        self.records.find(inner(hash), |record| record.key() == key)
    }

    /// The first record in a place that says that the record's hash may be this one.
    #[inline]
    pub(crate) fn candidate(&self, hash: u64) -> Option<&Record> {
        self.records.find(inner(hash), |_| true)
    }

    #[inline]
    pub(crate) fn find_mut(&mut self, hash: u64, key: &[u8]) -> Option<&mut Record> {
        self.records.find_mut(inner(hash), |record| record.key() == key)
    }

    #[inline]
    pub(crate) fn place(&mut self, hash: u64, key: &[u8], hasher: &KeyHasher) -> Place<'_, Record> {
        self.records.entry(inner(hash), |record| record.key() == key, |record| inner(hasher.hash(record.key())))
    }

    pub(crate) fn remove(&mut self, hash: u64, key: &[u8]) -> Option<Record> {
        match self.records.find_entry(inner(hash), |record| record.key() == key) {
            Ok(found) => Some(found.remove().0),
            Err(_) => None,
        }
    }

    /// Takes all keys out, and keeps the table.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Record> {
        (self.earliest, self.expiring, self.patience) = (i64::MAX, 0, 0);
        (self.bytes, self.deadlines) = (0, [0, 0]);
        self.records.drain()
    }

    /// Gives memory back when nearly all keys have gone.
    pub(crate) fn shrink(&mut self, hasher: &KeyHasher) {
        if self.records.capacity() > 16 && self.records.len() * 8 < self.records.capacity() {
            self.records.shrink_to(self.records.len() * 2, |record| inner(hasher.hash(record.key())));
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// True if the next new key makes the table grow.
    #[inline]
    pub(crate) fn is_tight(&self) -> bool {
        self.records.len() == self.records.capacity()
    }

    /// Bytes of the table itself.
    #[inline]
    pub(crate) fn table_bytes(&self) -> usize {
        self.records.allocation_size()
    }

    /// Bytes of the records.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Records that had so many bytes have so many now.
    #[inline]
    pub(crate) fn weigh(&mut self, before: usize, after: usize) {
        self.bytes = self.bytes + after - before;
    }

    /// Sum of the deadlines of keys.
    pub(crate) fn deadlines(&self) -> i128 {
        let [low, high] = self.deadlines;
        (u128::from(high) << 64 | u128::from(low)) as i128
    }

    /// Deadlines of keys have come and gone.
    pub(crate) fn add_deadlines(&mut self, sum: i128) {
        let sum = (self.deadlines() + sum) as u128;
        self.deadlines = [sum as u64, (sum >> 64) as u64];
    }

    /// The keys, in the table's own order: the same for the same history.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Record> {
        self.records.iter()
    }

    /// The same, for changes that leave the keys and their deadlines.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Record> {
        self.records.iter_mut()
    }

    /// The keys from some place of the table on, going around. For sampling.
    pub(crate) fn sample(&self, from: u64) -> impl Iterator<Item = &Record> {
        let buckets = self.records.num_buckets();
        let start = if buckets == 0 { 0 } else { (from % buckets as u64) as usize };
        (start..buckets).chain(0..start).filter_map(|bucket| self.records.get_bucket(bucket))
    }

    /// The keys, and an end of the segment.
    pub(crate) fn into_records(self) -> impl Iterator<Item = Record> {
        self.records.into_iter()
    }

    /// Takes out what `leaves` selects.
    pub(crate) fn extract(&mut self, mut leaves: impl FnMut(&Record) -> bool) -> impl Iterator<Item = Record> {
        self.records.extract_if(move |record| leaves(record))
    }

    /// When a sweep for expired keys is worthwhile. A sweep looks at every key of the segment, so that one which found
    /// few to remove makes the next wait longer: expired keys then cost a little memory for a while instead of the
    /// processor's time. Nobody sees them meanwhile.
    #[inline]
    pub(crate) fn sweep_at(&self) -> i64 {
        let delay_ms = if self.patience == 0 { 0 } else { 64 << self.patience };
        self.earliest.saturating_add(delay_ms)
    }

    /// Sets the patience by what the last sweep found among `seen` keys.
    pub(crate) fn learn(&mut self, seen: usize, expired: usize) {
        if seen < 64 || expired * 8 > seen {
            self.patience = self.patience.saturating_sub(1);
        } else if expired * 32 < seen {
            self.patience = (self.patience + 1).min(10);
        }
    }
}

/// All keys of one slot.
pub(crate) enum Slot {
    One(Segment),
    Many(Box<Directory>),
}

/// Segments by the high bits of the hash.
pub(crate) struct Directory {
    /// How many high bits index `of_prefix`; at least one.
    bits: u8,
    /// The segment of each prefix; a segment of lesser depth appears several times in a row.
    of_prefix: Vec<u32>,
    segments: Vec<Segment>,
}

impl Slot {
    pub(crate) fn new() -> Self {
        Self::One(Segment::new())
    }

    #[inline]
    pub(crate) fn segment(&self, hash: u64) -> &Segment {
        match self {
            Self::One(segment) => segment,
            Self::Many(directory) => &directory.segments[directory.index(hash)],
        }
    }

    #[inline]
    pub(crate) fn segment_mut(&mut self, hash: u64) -> &mut Segment {
        match self {
            Self::One(segment) => segment,
            Self::Many(directory) => {
                let index = directory.index(hash);
                &mut directory.segments[index]
            }
        }
    }

    /// All segments; their order means nothing.
    pub(crate) fn segments(&self) -> &[Segment] {
        match self {
            Self::One(segment) => std::slice::from_ref(segment),
            Self::Many(directory) => &directory.segments,
        }
    }

    pub(crate) fn segments_mut(&mut self) -> &mut [Segment] {
        match self {
            Self::One(segment) => std::slice::from_mut(segment),
            Self::Many(directory) => &mut directory.segments,
        }
    }

    /// Bytes of tables and directory.
    pub(crate) fn table_bytes(&self) -> usize {
        let directory = match self {
            Self::One(_) => 0,
            Self::Many(directory) => directory.bytes(),
        };
        directory + self.segments().iter().map(Segment::table_bytes).sum::<usize>()
    }

    /// Bytes of the directory, if there is one.
    pub(crate) fn directory_bytes(&self) -> usize {
        match self {
            Self::One(_) => 0,
            Self::Many(directory) => directory.bytes(),
        }
    }

    /// Bytes of the two tables that the split of a segment left, of which one now holds `hash`.
    pub(crate) fn split_bytes(&self, hash: u64) -> usize {
        match self {
            Self::One(segment) => segment.table_bytes(),
            Self::Many(directory) => {
                let segment = &directory.segments[directory.index(hash)];
                let twin = &directory.segments[directory.index(hash ^ 1 << (64 - segment.depth))];
                segment.table_bytes() + twin.table_bytes()
            }
        }
    }

    /// Takes a segment out of a slot that is being given up; its keys can no longer be found.
    pub(crate) fn pop_segment(&mut self) -> Option<Segment> {
        match self {
            Self::One(segment) if segment.len() == 0 => None,
            Self::One(segment) => Some(std::mem::replace(segment, Segment::new())),
            Self::Many(directory) => {
                directory.of_prefix = Vec::new();
                directory.segments.pop()
            }
        }
    }

    /// The first hash behind the segment in which `hash` belongs; `None` if it is the last.
    pub(crate) fn segment_end(&self, hash: u64) -> Option<u64> {
        match self {
            Self::One(_) => None,
            Self::Many(directory) => {
                let depth = u32::from(directory.segments[directory.index(hash)].depth);
                ((hash >> (64 - depth)) + 1).checked_shl(64 - depth).filter(|&end| end != 0)
            }
        }
    }

    /// Makes room for one more key of this hash by splitting its segment, if it is full and splitting is possible.
    /// Returns whether it did.
    pub(crate) fn split(&mut self, hash: u64, hasher: &KeyHasher) -> bool {
        if self.segment(hash).len() < SEGMENT_KEYS_MAX {
            return false;
        }
        if let Self::One(segment) = self {
            let segment = std::mem::replace(segment, Segment::new());
            *self = Self::Many(Box::new(Directory { bits: 1, of_prefix: vec![0, 0], segments: vec![segment] }));
        }
        match self {
            Self::One(_) => unreachable!("made many above"),
            Self::Many(directory) => directory.split(hash, hasher),
        }
    }
}

impl Directory {
    #[inline]
    fn index(&self, hash: u64) -> usize {
        self.of_prefix[(hash >> (64 - self.bits)) as usize] as usize
    }

    fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.of_prefix.capacity() * size_of::<u32>()
            + self.segments.capacity() * size_of::<Segment>()
    }

    fn split(&mut self, hash: u64, hasher: &KeyHasher) -> bool {
        let old = self.index(hash);
        let depth = self.segments[old].depth;
        if depth == self.bits {
            // Keys with equal hashes cannot be told apart by any number of bits, and anyone who could make many such
            // keys must not make the directory explode: it stays small against the number of segments, and a segment
            // that cannot split grows like any hash table.
            if self.of_prefix.len() > 32 * self.segments.len() {
                return false;
            }
            self.of_prefix = self.of_prefix.iter().flat_map(|&segment| [segment, segment]).collect();
            self.bits += 1;
        }
        let new_bit = 1 << (63 - depth);
        let count = self.segments[old].len();
        let new = self.segments.len();
        let mut lower = Segment { depth: depth + 1, patience: self.segments[old].patience, ..Segment::new() };
        let mut upper = Segment { depth: depth + 1, patience: self.segments[old].patience, ..Segment::new() };
        for half in [&mut lower, &mut upper] {
            half.records.reserve(count / 2 + count / 16, |_| unreachable!("an empty table has nothing to rehash"));
        }
        let earliest = self.segments[old].earliest;
        for record in std::mem::take(&mut self.segments[old].records) {
            let hash = hasher.hash(record.key());
            let half = if hash & new_bit == 0 { &mut lower } else { &mut upper };
            half.bytes += record.footprint();
            if let Some(deadline) = record.deadline() {
                half.expiring += 1;
                half.add_deadlines(i128::from(deadline));
            }
            if record.deadline().is_some() || record.fields_due().is_some() {
                half.earliest = earliest;
            }
            half.records.insert_unique(inner(hash), record, |record| inner(hasher.hash(record.key())));
        }
        self.segments[old] = lower;
        self.segments.push(upper);
        // All prefixes of the old segment share its `depth` bits and are neighbours; the upper half of them moves.
        let span = 1usize << (self.bits - depth);
        let first = (hash >> (64 - self.bits)) as usize & !(span - 1);
        self.of_prefix[first + span / 2..first + span].fill(new as u32);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Payload;

    fn insert(slot: &mut Slot, key: &[u8], hasher: &KeyHasher) {
        let hash = hasher.hash(key);
        if slot.segment(hash).is_tight() {
            slot.split(hash, hasher);
        }
        match slot.segment_mut(hash).place(hash, key, hasher) {
            Place::Occupied(_) => panic!("the key is there already"),
            Place::Vacant(vacant) => {
                vacant.insert(Record::new(key, Payload::Integer(1), None, 1, 0));
            }
        }
    }

    #[test]
    fn a_slot_of_many_keys_is_many_small_tables_and_loses_none() {
        let hasher = KeyHasher::new(7);
        let mut slot = Slot::new();
        for number in 0..200_000u32 {
            insert(&mut slot, &number.to_le_bytes(), &hasher);
        }
        assert!(slot.segments().iter().all(|segment| segment.len() <= SEGMENT_KEYS_MAX));
        assert_eq!(slot.segments().iter().map(Segment::len).sum::<usize>(), 200_000);
        for number in 0..200_000u32 {
            let key = number.to_le_bytes();
            assert_eq!(slot.segment(hasher.hash(&key)).find(hasher.hash(&key), &key).unwrap().key(), key);
        }
    }

    #[test]
    fn segments_follow_each_other_in_order_of_hash() {
        let hasher = KeyHasher::new(7);
        let mut slot = Slot::new();
        for number in 0..50_000u32 {
            insert(&mut slot, &number.to_le_bytes(), &hasher);
        }
        let (mut from, mut seen) = (Some(0), 0);
        while let Some(start) = from {
            let end = slot.segment_end(start);
            for record in slot.segment(start).iter() {
                let hash = hasher.hash(record.key());
                assert!(hash >= start && end.is_none_or(|end| hash < end));
                seen += 1;
            }
            from = end;
        }
        assert_eq!(seen, 50_000);
    }

    #[test]
    fn keys_of_one_hash_do_not_blow_up_the_directory() {
        // The directory is asked to split on a hash that puts all keys on one side.
        let hasher = KeyHasher::new(7);
        let mut slot = Slot::new();
        let mut candidates = 0u64..;
        let mut kept = 0;
        while kept < 2_500 {
            let key = candidates.next().unwrap().to_le_bytes();
            if hasher.hash(&key) >> 54 == 0 {
                insert(&mut slot, &key, &hasher);
                kept += 1;
            }
        }
        let Slot::Many(directory) = &slot else { panic!("it has split") };
        assert!(directory.of_prefix.len() <= 64 * directory.segments.len(), "{}", directory.of_prefix.len());
        assert_eq!(slot.segments().iter().map(Segment::len).sum::<usize>(), 2_500);
    }
}
