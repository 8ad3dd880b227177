//! Walking and drawing keys.
//!
//! A cursor is a place in the order of (slot, hash): the slot in its high bits, the first bits of the hash below. A
//! call goes through the keys from there on in that order, so that a key which exists during a whole walk is visited
//! once, whatever is added, removed or split meanwhile; and a cursor means the same on every replica and after a
//! restart. As slots belong to groups, a cursor also tells which group it goes on in.

use stdx::Prng;
use stdx::slot::SLOT_COUNT;

use crate::record::Record;
use crate::segment::{Segment, Slot};
use crate::{Entry, Keyspace, Moment};

/// Bits of the hash in a cursor. With 14 bits of slot a cursor stays below 2⁵², so that clients which read it as a
/// double-precision number lose nothing.
pub const CURSOR_HASH_BITS: u32 = 38;

/// How many keys RANDOMKEY draws in search of one that has not expired before it looks at all.
const DRAWS_MAX: usize = 100;

impl Keyspace {
    /// Visits about `count` keys of a database (more if many share a place, fewer at the end) that exist at `moment`,
    /// from `cursor` on, and returns the cursor to go on from; 0 begins and ends.
    pub fn scan<'a>(
        &'a self,
        database: u16,
        cursor: u64,
        count: usize,
        moment: Moment,
        visit: impl FnMut(Entry<'a>),
    ) -> u64 {
        self.scan_up_to(database, SLOT_COUNT, cursor, count, moment, visit)
    }

    /// The same, as if the slots from `end` on held nothing.
    pub(crate) fn scan_up_to<'a>(
        &'a self,
        database: u16,
        end: usize,
        cursor: u64,
        count: usize,
        moment: Moment,
        mut visit: impl FnMut(Entry<'a>),
    ) -> u64 {
        let now = self.view(database, moment).expired_until();
        let table = &self.databases[usize::from(database)];
        let mut rest = count.max(1);
        let mut slot_index = (cursor >> CURSOR_HASH_BITS) as usize;
        let mut from = Some(cursor << (64 - CURSOR_HASH_BITS));
        let mut visit = |record: &'a Record| {
            if record.is_alive(now) {
                visit(Entry::new(record, self, now));
            }
        };
        while slot_index < end
            && let Some(slot) = table.slot(slot_index)
        {
            while let Some(start) = from {
                let end = slot.segment_end(start);
                if rest == 0 {
                    // Where nothing is left the walk has ended: clients need no more step to learn that.
                    if self.has_keys_from(slot, start) {
                        return cursor_at(slot_index, start);
                    }
                    from = end;
                    continue;
                }
                if let Some(last) = self.scan_segment(slot, start, &mut rest, &mut visit) {
                    from = after(last);
                    rest = 0;
                } else {
                    from = end;
                }
            }
            slot_index = table.next_slot(slot_index + 1);
            from = Some(0);
        }
        0
    }

    /// What tells whether a cursor that another keyspace has made means the same here: the order of hashes.
    pub(crate) fn fingerprint(&self) -> u32 {
        (self.hasher.hash(b"") >> 32) as u32
    }

    /// Hears whether another group holds a slot. At first none does.
    pub fn set_elsewhere(&mut self, slot: stdx::slot::Slot, is_elsewhere: bool) {
        if is_elsewhere {
            self.elsewhere.resize(SLOT_COUNT / 64, 0);
        }
        if let Some(bits) = self.elsewhere.get_mut(usize::from(slot.0) / 64) {
            let bit = 1 << (slot.0 % 64);
            *bits = if is_elsewhere { *bits | bit } else { *bits & !bit };
        }
    }

    /// The first slot behind this one that another group holds; the number of slots if there is none.
    pub(crate) fn end_of_run(&self, slot: stdx::slot::Slot) -> usize {
        let first = usize::from(slot.0) + 1;
        let parts = self.elsewhere.iter().enumerate().skip(first / 64);
        let mut found = parts.map(|(part, bits)| {
            let bits = if part == first / 64 { bits & u64::MAX << (first % 64) } else { *bits };
            (bits != 0).then(|| part * 64 + bits.trailing_zeros() as usize)
        });
        found.find_map(|slot| slot).unwrap_or(SLOT_COUNT)
    }

    /// Visits the keys of a segment from hash `start` on. If `rest` does not suffice for all of them, stops behind a
    /// complete place of the cursor and returns a hash of that place.
    fn scan_segment<'a>(
        &'a self,
        slot: &'a Slot,
        start: u64,
        rest: &mut usize,
        visit: &mut impl FnMut(&'a Record),
    ) -> Option<u64> {
        let segment = slot.segment(start);
        if segment.len() == 0 {
            return None;
        }
        let records = segment.iter().map(|record| (self.hasher.hash(record.key()), record));
        let mut found: Vec<(u64, &Record)> = records.filter(|&(hash, _)| hash >= start).collect();
        if found.len() <= *rest {
            *rest -= found.len();
            found.into_iter().for_each(|(_, record)| visit(record));
            return None;
        }
        let (_, &mut (last, _), _) = found.select_nth_unstable_by_key(*rest - 1, |&(hash, _)| hash);
        let place = last >> (64 - CURSOR_HASH_BITS);
        found.retain(|(hash, _)| hash >> (64 - CURSOR_HASH_BITS) <= place);
        found.into_iter().for_each(|(_, record)| visit(record));
        Some(last)
    }

    /// True if a segment holds a key from hash `start` on.
    fn has_keys_from(&self, slot: &Slot, start: u64) -> bool {
        slot.segment(start).iter().any(|record| self.hasher.hash(record.key()) >= start)
    }

    /// A key that exists at `moment`, each with about the same chance; `None` if there is none.
    pub fn random_key(&self, database: u16, seed: u64, moment: Moment) -> Option<&[u8]> {
        let table = &self.databases[usize::from(database)];
        let now = self.view(database, moment).expired_until();
        let mut prng = Prng::new(seed);
        if table.count == 0 {
            return None;
        }
        for _ in 0..DRAWS_MAX {
            let (segment, nth) = table.nth_segment(prng.below(table.count as u64) as usize, false)?;
            let record = nth_record(segment, nth);
            if record.is_alive(now) {
                return Some(record.key());
            }
        }
        table.iter().find(|record| record.is_alive(now)).map(Record::key)
    }
}

fn nth_record(segment: &Segment, nth: usize) -> &Record {
    segment.iter().nth(nth).expect("a segment's length is that of its iterator")
}

fn cursor_at(slot: usize, hash: u64) -> u64 {
    (slot as u64) << CURSOR_HASH_BITS | hash >> (64 - CURSOR_HASH_BITS)
}

/// The first hash of the place behind that of `hash`; `None` if it is the last of the slot.
fn after(hash: u64) -> Option<u64> {
    let next = (hash >> (64 - CURSOR_HASH_BITS)) + 1;
    (next >> CURSOR_HASH_BITS == 0).then_some(next << (64 - CURSOR_HASH_BITS))
}

/// The slot in which a cursor goes on.
pub fn slot_of_cursor(cursor: u64) -> stdx::slot::Slot {
    let slot = (cursor >> CURSOR_HASH_BITS).min(SLOT_COUNT as u64 - 1);
    stdx::slot::Slot(slot as u16)
}

/// The cursor at the beginning of a slot.
pub fn cursor_at_slot(slot: u32) -> u64 {
    u64::from(slot) << CURSOR_HASH_BITS
}
