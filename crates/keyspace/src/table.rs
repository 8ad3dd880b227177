//! All keys of one database, by slot.

use hashbrown::hash_table::Entry as Found;

use crate::lazy_free::{LazyFree, Position};
use crate::record::{Payload, Record};
use crate::segment::{KeyHasher, Segment, Slot};

/// Slots in a block. Blocks hold sums, so that sweeps and samples need not look at every slot.
const BLOCK_SLOTS: usize = 128;

/// A sweep of a segment removes up to so many fields, whatever it costs to look at the keys.
const FIELDS_SWEPT_MIN: usize = 256;

/// How long expired fields of a hash wait that a running checkpoint has not come to, in milliseconds.
const WAIT_FOR_CHECKPOINT_MS: i64 = 200;

/// Rank of a table that has nothing a running checkpoint wants.
pub(crate) const RANK_NONE: u32 = u32::MAX;

/// Where a key belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) slot: usize,
    pub(crate) hash: u64,
}

/// The keys of one database.
pub(crate) struct Table {
    /// Empty until the first key comes.
    slots: Vec<Slot>,
    blocks: Vec<Block>,
    slot_count: usize,
    pub(crate) count: usize,
    pub(crate) expiring: usize,
    /// Number of hashes of which a field has a deadline.
    pub(crate) expiring_hashes: usize,
    /// Sum of all deadlines.
    deadline_sum: i128,
    /// Bytes allocated for records, tables and directories.
    pub(crate) bytes: usize,
    /// Lower bound of the blocks' `wake`.
    pub(crate) wake: i64,
    /// This table's place in the order of the running checkpoint.
    pub(crate) rank: u32,
}

/// Sums over neighbouring slots.
#[derive(Clone)]
struct Block {
    count: u32,
    expiring: u32,
    /// No segment of these slots has anything to sweep before this; milliseconds since the epoch.
    wake: i64,
}

impl Block {
    const EMPTY: Self = Self { count: 0, expiring: 0, wake: i64::MAX };
}

/// What the sums need to know of a record.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Facts {
    bytes: usize,
    deadline: Option<i64>,
    /// The earliest deadline of a field.
    fields_due: Option<i64>,
}

impl Facts {
    #[inline]
    fn of(record: &Record) -> Self {
        Self { bytes: record.footprint(), deadline: record.deadline(), fields_due: record.fields_due() }
    }
}

/// What had expired when a key was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    /// The key.
    Key,
    /// Its last fields, so many, and the key with them.
    LastFields(usize),
    /// So many of its fields.
    Fields(usize),
}

impl Gone {
    /// Of a record that is not alive at `now`.
    pub(crate) fn of(record: &Record, now: i64) -> Self {
        match record.expiring_hash() {
            Some(hash) if record.deadline().is_none_or(|deadline| deadline > now) => Self::LastFields(hash.len()),
            _ => Self::Key,
        }
    }
}

/// What a store gives a record besides its value.
#[derive(Clone, Copy)]
pub(crate) struct Stamp {
    pub(crate) version: u64,
    /// The moment, in milliseconds since the epoch.
    pub(crate) now: i64,
}

/// Which deadline a store gives.
#[derive(Clone, Copy)]
pub(crate) enum Deadline {
    Keep,
    Is(Option<i64>),
}

impl Table {
    pub(crate) fn new(slot_count: usize) -> Self {
        Self {
            slots: Vec::new(),
            blocks: Vec::new(),
            slot_count,
            count: 0,
            expiring: 0,
            expiring_hashes: 0,
            deadline_sum: 0,
            bytes: 0,
            wake: i64::MAX,
            rank: RANK_NONE,
        }
    }

    fn open(&mut self) {
        if self.slots.is_empty() {
            self.slots = std::iter::repeat_with(Slot::new).take(self.slot_count).collect();
            self.blocks = vec![Block::EMPTY; self.slot_count.div_ceil(BLOCK_SLOTS)];
            self.bytes += self.slots.capacity() * size_of::<Slot>();
        }
    }

    /// The record of a key, whether it has expired or not.
    #[inline]
    pub(crate) fn find(&self, place: Place, key: &[u8]) -> Option<&Record> {
        self.slots.get(place.slot)?.segment(place.hash).find(place.hash, key)
    }

    /// Reads what leads to the segment of a key, for [`crate::prefetch`].
    #[inline]
    pub(crate) fn touch(&self, place: Place) -> usize {
        self.slots.get(place.slot).map_or(0, |slot| slot.segment(place.hash).len())
    }

    /// The record that is probably that of a key with this hash: its key has not been compared.
    #[inline]
    pub(crate) fn candidate(&self, place: Place) -> Option<&Record> {
        self.slots.get(place.slot)?.segment(place.hash).candidate(place.hash)
    }

    /// Stores a value under a key. `clock` makes the access clock from the previous record's, if there is one.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "the one place where everything about a key comes together")]
    pub(crate) fn store(
        &mut self,
        place: Place,
        key: &[u8],
        payload: Payload<'_>,
        deadline: Deadline,
        stamp: Stamp,
        clock: impl FnOnce(Option<u32>) -> u32,
        hasher: &KeyHasher,
        lazy_free: &mut LazyFree,
    ) {
        self.open();
        let position = self.position(place);
        let slot = &mut self.slots[place.slot];
        let mut replace = |record: &mut Record, payload, clock: u32| {
            lazy_free.before_change(position, record);
            let before = Facts::of(record);
            let deadline = match deadline {
                Deadline::Is(deadline) => deadline,
                Deadline::Keep => before.deadline.filter(|_| record.is_alive(stamp.now)),
            };
            lazy_free.free_value_later(record);
            if let Err(payload) = record.overwrite(payload, deadline, stamp.version, clock) {
                *record = Record::new(key, payload, deadline, stamp.version, clock);
            }
            (before, Facts::of(record))
        };

        // A table that is full to its limit grows when asked for a place, also for a key that it holds.
        let mut growth = None;
        if slot.segment(place.hash).is_tight() {
            if let Some(record) = slot.segment_mut(place.hash).find_mut(place.hash, key) {
                let (before, after) = replace(record, payload, clock(Some(record.clock())));
                return self.account(place, Some(before), Some(after));
            }
            let bytes = slot.directory_bytes() + slot.segment(place.hash).table_bytes();
            growth = Some((bytes, slot.split(place.hash, hasher)));
        }
        match slot.segment_mut(place.hash).place(place.hash, key, hasher) {
            Found::Occupied(mut occupied) => {
                let record = occupied.get_mut();
                let (before, after) = replace(record, payload, clock(Some(record.clock())));
                if before != after {
                    self.account(place, Some(before), Some(after));
                }
            }
            Found::Vacant(vacant) => {
                let deadline = match deadline {
                    Deadline::Is(deadline) => deadline,
                    Deadline::Keep => None,
                };
                let record = Record::new(key, payload, deadline, stamp.version, clock(None));
                let after = Facts::of(&record);
                vacant.insert(record);
                if let Some((bytes, split)) = growth {
                    let segments =
                        if split { slot.split_bytes(place.hash) } else { slot.segment(place.hash).table_bytes() };
                    self.bytes = self.bytes + slot.directory_bytes() + segments - bytes;
                }
                self.account(place, None, Some(after));
            }
        }
    }

    /// Changes a record where it is. `change` may replace its value and its deadline.
    pub(crate) fn change<R>(
        &mut self,
        place: Place,
        key: &[u8],
        lazy_free: &mut LazyFree,
        change: impl FnOnce(&mut Record, &mut LazyFree) -> R,
    ) -> Option<R> {
        self.visit(place, key, |record, position| {
            lazy_free.before_change(position, record);
            change(record, lazy_free)
        })
    }

    /// Lets `visit` change a record where it is, after it has told the lazy free.
    pub(crate) fn visit<R>(
        &mut self,
        place: Place,
        key: &[u8],
        visit: impl FnOnce(&mut Record, Position) -> R,
    ) -> Option<R> {
        let position = self.position(place);
        let record = self.slots.get_mut(place.slot)?.segment_mut(place.hash).find_mut(place.hash, key)?;
        let before = Facts::of(record);
        let result = visit(record, position);
        let after = Facts::of(record);
        if before != after {
            self.account(place, Some(before), Some(after));
        }
        Some(result)
    }

    /// Takes a record out, whether it has expired or not.
    pub(crate) fn remove(
        &mut self,
        place: Place,
        key: &[u8],
        hasher: &KeyHasher,
        lazy_free: &mut LazyFree,
    ) -> Option<Record> {
        let position = self.position(place);
        let segment = self.slots.get_mut(place.slot)?.segment_mut(place.hash);
        let record = segment.remove(place.hash, key)?;
        lazy_free.before_change(position, &record);
        lazy_free.tombstones.note(place, record.version());
        let table_bytes = segment.table_bytes();
        segment.shrink(hasher);
        self.bytes = self.bytes + segment.table_bytes() - table_bytes;
        self.account(place, Some(Facts::of(&record)), None);
        Some(record)
    }

    /// Removes all keys, one segment after the other; the segments stay, and nobody is told.
    pub(crate) fn empty(&mut self, lazy_free: &mut LazyFree) {
        self.bytes = self.slots.capacity() * size_of::<Slot>();
        for slot in &mut self.slots {
            for segment in slot.segments_mut().iter_mut().filter(|segment| segment.len() > 0) {
                segment.drain().for_each(|record| lazy_free.free_later(record));
            }
            self.bytes += slot.table_bytes();
        }
        self.blocks.fill(Block::EMPTY);
        (self.count, self.expiring, self.expiring_hashes, self.deadline_sum) = (0, 0, 0, 0);
        self.wake = i64::MAX;
    }

    /// Hands these slots to a table of their own. No record is touched, but for those next to hashes with deadlines of
    /// fields: such hashes are counted.
    pub(crate) fn split_off(&mut self, slots: impl Iterator<Item = usize>) -> Self {
        let mut other = Self::new(self.slot_count);
        for index in slots {
            let Some(slot) = self.slots.get_mut(index) else { break };
            if slot.segments().iter().all(|segment| segment.len() == 0) {
                continue;
            }
            other.open();
            let slot = std::mem::replace(slot, Slot::new());
            let (from, to) = (&mut self.blocks[index / BLOCK_SLOTS], &mut other.blocks[index / BLOCK_SLOTS]);
            let (mut count, mut expiring, mut hashes, mut deadlines) = (0, 0, 0, 0);
            let mut bytes = slot.table_bytes();
            for segment in slot.segments() {
                count += segment.len();
                expiring += segment.expiring as usize;
                bytes += segment.bytes();
                deadlines += segment.deadlines();
                to.wake = to.wake.min(segment.sweep_at());
                if self.expiring_hashes > 0 && segment.earliest < i64::MAX {
                    hashes += segment.iter().filter(|record| record.fields_due().is_some()).count();
                }
            }
            other.wake = other.wake.min(to.wake);
            (from.count, to.count) = (from.count - count as u32, to.count + count as u32);
            (from.expiring, to.expiring) = (from.expiring - expiring as u32, to.expiring + expiring as u32);
            (self.count, other.count) = (self.count - count, other.count + count);
            (self.expiring, other.expiring) = (self.expiring - expiring, other.expiring + expiring);
            self.expiring_hashes -= hashes;
            other.expiring_hashes += hashes;
            self.deadline_sum -= deadlines;
            other.deadline_sum += deadlines;
            (self.bytes, other.bytes) = (self.bytes - bytes, other.bytes + bytes);
            other.slots[index] = slot;
        }
        other
    }

    /// Panics unless the sums are those of the records.
    #[cfg(test)]
    pub(crate) fn check_sums(&self) {
        let (mut count, mut expiring, mut hashes, mut deadlines) = (0, 0, 0, 0);
        let mut bytes = self.slots.capacity() * size_of::<Slot>();
        for slot in &self.slots {
            bytes += slot.table_bytes();
            for segment in slot.segments() {
                let facts: Vec<Facts> = segment.iter().map(Facts::of).collect();
                assert_eq!(segment.bytes(), facts.iter().map(|facts| facts.bytes).sum::<usize>());
                let sum: i128 = facts.iter().filter_map(|facts| facts.deadline).map(i128::from).sum();
                assert_eq!(segment.deadlines(), sum);
                let timed = facts.iter().filter(|facts| facts.deadline.is_some()).count();
                assert_eq!(segment.expiring as usize, timed);
                (count, expiring) = (count + facts.len(), expiring + timed);
                hashes += facts.iter().filter(|facts| facts.fields_due.is_some()).count();
                (bytes, deadlines) = (bytes + segment.bytes(), deadlines + sum);
            }
        }
        let found = (count, expiring, hashes, deadlines, bytes);
        assert_eq!((self.count, self.expiring, self.expiring_hashes, self.deadline_sum, self.bytes), found);
    }

    #[inline]
    fn position(&self, place: Place) -> Position {
        Position { rank: self.rank, slot: place.slot as u16, hash: place.hash }
    }

    /// Brings the sums up to date after one record changed from `before` to `after`.
    fn account(&mut self, place: Place, before: Option<Facts>, after: Option<Facts>) {
        let block = &mut self.blocks[place.slot / BLOCK_SLOTS];
        let [old_bytes, new_bytes] = [before, after].map(|facts| facts.map_or(0, |facts| facts.bytes));
        self.slots[place.slot].segment_mut(place.hash).weigh(old_bytes, new_bytes);
        self.bytes = self.bytes + new_bytes - old_bytes;
        let old = before.and_then(|facts| facts.deadline);
        let new = after.and_then(|facts| facts.deadline);
        let old_due = before.and_then(|facts| facts.fields_due);
        let new_due = after.and_then(|facts| facts.fields_due);
        if old_due != new_due {
            self.expiring_hashes =
                self.expiring_hashes + usize::from(new_due.is_some()) - usize::from(old_due.is_some());
            if let Some(due) = new_due {
                let segment = self.slots[place.slot].segment_mut(place.hash);
                segment.earliest = segment.earliest.min(due);
                block.wake = block.wake.min(segment.sweep_at());
                self.wake = self.wake.min(block.wake);
            }
        }
        if old != new {
            let segment = self.slots[place.slot].segment_mut(place.hash);
            segment.add_deadlines(new.map_or(0, i128::from) - old.map_or(0, i128::from));
            if let Some(deadline) = old {
                self.deadline_sum -= i128::from(deadline);
                self.expiring -= 1;
                block.expiring -= 1;
                segment.expiring -= 1;
            }
            if let Some(deadline) = new {
                self.deadline_sum += i128::from(deadline);
                self.expiring += 1;
                block.expiring += 1;
                segment.expiring += 1;
                segment.earliest = segment.earliest.min(deadline);
                block.wake = block.wake.min(segment.sweep_at());
                self.wake = self.wake.min(block.wake);
            } else if segment.expiring == 0 && self.expiring_hashes == 0 {
                segment.earliest = i64::MAX;
            }
        }
        match (before, after) {
            (None, Some(_)) => {
                self.count += 1;
                block.count += 1;
            }
            (Some(_), None) => {
                self.count -= 1;
                block.count -= 1;
            }
            _ => {}
        }
    }

    /// Removes expired keys, and expired fields of hashes, until `budget`, a number of keys looked at and of fields
    /// removed, is used up, and tells `expired` of each. True if there is more to do at `now`.
    pub(crate) fn sweep(
        &mut self,
        now: i64,
        budget: &mut usize,
        hasher: &KeyHasher,
        lazy_free: &mut LazyFree,
        expired: &mut impl FnMut(&[u8], Gone),
    ) -> bool {
        if self.wake > now {
            return false;
        }
        for block in 0..self.blocks.len() {
            if self.blocks[block].wake > now {
                continue;
            }
            let slots = block * BLOCK_SLOTS..self.slot_count.min((block + 1) * BLOCK_SLOTS);
            for slot in slots.clone() {
                for nth in 0..self.slots[slot].segments().len() {
                    let segment = &self.slots[slot].segments()[nth];
                    if segment.sweep_at() > now {
                        continue;
                    }
                    if *budget == 0 {
                        return true;
                    }
                    *budget = budget.saturating_sub(segment.len().max(16));
                    let (seen, mut removed) = self.sweep_segment(slot, nth, now, hasher, lazy_free, expired);
                    let mut is_done = true;
                    if self.expiring_hashes > 0 {
                        let purged;
                        (is_done, purged) = self.sweep_fields(slot, nth, now, budget, hasher, lazy_free, expired);
                        removed += purged;
                    }
                    if !is_done {
                        return true;
                    }
                    self.slots[slot].segments_mut()[nth].learn(seen, removed);
                }
            }
            let wakes = slots.flat_map(|slot| self.slots[slot].segments()).map(Segment::sweep_at);
            self.blocks[block].wake = wakes.min().unwrap_or(i64::MAX);
        }
        self.wake = self.blocks.iter().map(|block| block.wake).min().unwrap_or(i64::MAX);
        false
    }

    /// Removes the expired keys of a segment. Tells how many keys there were, and how many of them were removed.
    fn sweep_segment(
        &mut self,
        slot: usize,
        nth: usize,
        now: i64,
        hasher: &KeyHasher,
        lazy_free: &mut LazyFree,
        tell: &mut impl FnMut(&[u8], Gone),
    ) -> (usize, usize) {
        let rank = self.rank;
        let segment = &mut self.slots[slot].segments_mut()[nth];
        let (seen, table_bytes) = (segment.len(), segment.table_bytes());
        let mut earliest = i64::MAX;
        let (mut expired, mut timed, mut hashes, mut bytes, mut deadline_sum) = (0, 0, 0, 0, 0);
        let due = |record: &Record| {
            if !record.is_alive(now) {
                return true;
            }
            // Fields that have expired are swept next.
            for deadline in record.deadline().into_iter().chain(record.fields_due()) {
                earliest = earliest.min(deadline);
            }
            false
        };
        for record in segment.extract(due) {
            if lazy_free.is_watched() {
                let position = Position { rank, slot: slot as u16, hash: hasher.hash(record.key()) };
                lazy_free.before_change(position, &record);
                lazy_free.tombstones.note(Place { slot, hash: position.hash }, record.version());
            }
            tell(record.key(), Gone::of(&record, now));
            expired += 1;
            bytes += record.footprint();
            hashes += usize::from(record.fields_due().is_some());
            if let Some(deadline) = record.deadline() {
                timed += 1;
                deadline_sum += i128::from(deadline);
            }
            lazy_free.free_later(record);
        }
        segment.earliest = earliest;
        segment.expiring -= timed as u32;
        segment.weigh(bytes, 0);
        segment.add_deadlines(-deadline_sum);
        segment.shrink(hasher);
        self.bytes = self.bytes + segment.table_bytes() - table_bytes - bytes;
        self.deadline_sum -= deadline_sum;
        self.count -= expired;
        self.expiring -= timed;
        self.expiring_hashes -= hashes;
        let block = &mut self.blocks[slot / BLOCK_SLOTS];
        block.count -= expired as u32;
        block.expiring -= timed as u32;
        (seen, expired)
    }

    /// Removes expired fields of the hashes of a segment that has just been swept. Tells whether that was all, or else
    /// the segment is still due, and of how many hashes.
    ///
    /// A checkpoint that has not come to a hash yet wants its fields as they were, and no version tells that they have
    /// changed: such a hash waits.
    #[expect(clippy::too_many_arguments, reason = "what a sweep of keys needs, and its budget")]
    fn sweep_fields(
        &mut self,
        slot: usize,
        nth: usize,
        now: i64,
        budget: &mut usize,
        hasher: &KeyHasher,
        lazy_free: &LazyFree,
        tell: &mut impl FnMut(&[u8], Gone),
    ) -> (bool, usize) {
        let rank = self.rank;
        let segment = &mut self.slots[slot].segments_mut()[nth];
        if segment.earliest > now {
            return (true, 0);
        }
        // To look at the keys may have cost more than that: something must come of it.
        let mut rest = (*budget).max(FIELDS_SWEPT_MIN);
        let mut purged = 0;
        let mut earliest = i64::MAX;
        let (mut before, mut after, mut is_done) = (0, 0, true);
        for record in segment.iter_mut() {
            let mut due = record.fields_due();
            if due.is_some_and(|due| due <= now) {
                let position = || Position { rank, slot: slot as u16, hash: hasher.hash(record.key()) };
                if lazy_free.is_wanted(position, record) {
                    due = Some(now.saturating_add(WAIT_FOR_CHECKPOINT_MS));
                } else if rest == 0 {
                    is_done = false;
                    break;
                } else {
                    before += record.footprint();
                    let count = record.purge_fields(now, rest);
                    rest = rest.saturating_sub(count);
                    *budget = budget.saturating_sub(count);
                    purged += 1;
                    tell(record.key(), Gone::Fields(count));
                    due = record.fields_due();
                    after += record.footprint();
                    self.expiring_hashes -= usize::from(due.is_none());
                }
            }
            for deadline in record.deadline().into_iter().chain(due) {
                earliest = earliest.min(deadline);
            }
            if due.is_some_and(|due| due <= now) {
                is_done = false;
                break;
            }
        }
        if is_done {
            segment.earliest = earliest;
        }
        segment.weigh(before, after);
        self.bytes = self.bytes + after - before;
        (is_done, purged)
    }

    /// Frees the segments of one slot of a table that nobody uses any more, from the back; the number of keys freed,
    /// or `None` if nothing is left.
    pub(crate) fn demolish(&mut self, hasher: &KeyHasher, lazy_free: &mut LazyFree) -> Option<usize> {
        let slot = self.slots.len().checked_sub(1)?;
        let last = &mut self.slots[slot];
        let table_bytes = last.table_bytes();
        let mut freed = 0;
        if let Some(segment) = last.pop_segment() {
            for record in segment.into_records() {
                self.bytes -= record.footprint();
                freed += 1;
                if lazy_free.tombstones.are_noted() {
                    lazy_free.tombstones.note(Place { slot, hash: hasher.hash(record.key()) }, record.version());
                }
                lazy_free.free_later(record);
            }
            self.count -= freed;
            self.bytes = self.bytes + last.table_bytes() - table_bytes;
        } else {
            self.bytes -= table_bytes;
            self.slots.pop();
        }
        Some(freed)
    }

    /// Mean of the deadlines, in milliseconds since the epoch; `None` if no key has one.
    pub(crate) fn mean_deadline(&self) -> Option<i64> {
        (self.expiring > 0).then(|| (self.deadline_sum / self.expiring as i128) as i64)
    }

    /// The slot at this index; `None` if the table has never held a key, or there are not that many.
    pub(crate) fn slot(&self, slot: usize) -> Option<&Slot> {
        self.slots.get(slot)
    }

    /// The first slot from `slot` on that may hold a key; the number of slots if there is none.
    pub(crate) fn next_slot(&self, slot: usize) -> usize {
        match self.blocks.get(slot / BLOCK_SLOTS) {
            Some(block) if block.count > 0 => slot,
            _ => {
                let behind = self.blocks.iter().enumerate().skip(slot / BLOCK_SLOTS + 1);
                let next = behind.into_iter().find(|(_, block)| block.count > 0);
                next.map_or(self.slot_count, |(index, _)| index * BLOCK_SLOTS)
            }
        }
    }

    /// Every record; the order means nothing.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Record> {
        // A table of few keys has thousands of empty slots: whole blocks of them are passed over.
        let blocks = self.slots.chunks(BLOCK_SLOTS).zip(&self.blocks).filter(|(_, block)| block.count > 0);
        blocks.flat_map(|(slots, _)| slots).flat_map(Slot::segments).flat_map(Segment::iter)
    }

    /// The segment that holds the `nth` key, or the `nth` key with a deadline, and how many are before it there.
    pub(crate) fn nth_segment(&self, mut nth: usize, expiring: bool) -> Option<(&Segment, usize)> {
        let of_block = |block: &Block| if expiring { block.expiring } else { block.count } as usize;
        let of_segment = |segment: &Segment| if expiring { segment.expiring as usize } else { segment.len() };
        let mut index = 0;
        while nth >= of_block(self.blocks.get(index)?) {
            nth -= of_block(&self.blocks[index]);
            index += 1;
        }
        let slots = index * BLOCK_SLOTS..self.slot_count.min((index + 1) * BLOCK_SLOTS);
        for segment in self.slots[slots].iter().flat_map(Slot::segments) {
            if nth < of_segment(segment) {
                return Some((segment, nth));
            }
            nth -= of_segment(segment);
        }
        unreachable!("a block's sum is that of its slots")
    }
}
