//! Streams: entries in the order of their ids, and the groups of consumers that read them.
//!
//! Entries lie in [`block`]s, and blocks in a tree; groups, consumers and what is pending are trees too. So a stream is
//! cloned in one step, and a change while a clone lives copies one block or one leaf. A stream without entries is still
//! a stream: it knows its last id and its groups.

pub(crate) mod block;
pub(crate) mod group;
pub(crate) mod id;
pub(crate) mod idempotence;

use std::fmt;

use command::Refusal;
use stdx::Level;

pub use id::Id;

use self::block::{Block, Entry};
use self::group::{Consumer, GIVEN_UP, Group, Holder, Pending, UnfreedReleased, rank_of};
use self::idempotence::{Idempotence, UnfreedIdempotence};
use super::{Cell, Collection, Kind, Large, Limits, Shape, packed};
use crate::tree::{self, Tree};
use crate::value::ValueRef;
use crate::{Edit, View};

/// Entries by id, with the groups that read them.
#[derive(Clone)]
pub struct Stream {
    blocks: Tree<Block>,
    /// Number of entries.
    len: u64,
    /// The first entry; [`Id::MIN`] if there is none.
    first: Id,
    /// The last id that was ever given out.
    last: Id,
    /// The highest id that was ever deleted by itself.
    deleted_max: Id,
    /// How many entries were ever added.
    added: u64,
    /// By name.
    groups: Tree<Group>,
    /// What it remembers of producers, if it was ever told anything.
    idempotence: Option<Box<Idempotence>>,
    /// False only while the parts of a checkpoint come in.
    is_whole: bool,
}

/// How much of a stream stays when it is trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// So many entries, the newest.
    Newest(u64),
    /// Those from this id on.
    From(Id),
}

/// What becomes of what groups have pending when entries are deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum References {
    /// It stays pending.
    #[default]
    Kept,
    /// It is pending no longer.
    Dropped,
    /// Entries that are pending in a group, or that a group has not read, are not deleted.
    Heeded,
}

/// Which id an entry gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The time, or the next.
    Any,
    /// The next of this millisecond.
    Within(u64),
    /// This one.
    Exactly(Id),
}

/// What is said of a stream besides its entries and groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) last: Id,
    pub(crate) deleted_max: Id,
    pub(crate) added: u64,
}

impl Stream {
    /// One without entries.
    pub(crate) fn new() -> Self {
        Self { is_whole: true, ..Self::unfinished() }
    }

    /// A stream with parts that are yet to come in.
    pub(super) fn unfinished() -> Self {
        Self {
            blocks: Tree::new(),
            len: 0,
            first: Id::MIN,
            last: Id::MIN,
            deleted_max: Id::MIN,
            added: 0,
            groups: Tree::new(),
            idempotence: None,
            is_whole: false,
        }
    }

    /// One made of these parts. `None` if they do not fit together.
    pub(crate) fn of(blocks: Vec<Block>, head: Head, groups: Vec<Group>) -> Option<Self> {
        let mut stream = Self::unfinished();
        blocks.into_iter().try_for_each(|block| stream.push_block(block))?;
        groups.into_iter().try_for_each(|group| stream.push_group(group))?;
        stream.finish(head)?;
        Some(stream)
    }

    /// Number of entries.
    pub fn entry_count(&self) -> u64 {
        self.len
    }

    pub(crate) fn first(&self) -> Id {
        self.first
    }

    pub(crate) fn head(&self) -> Head {
        Head { last: self.last, deleted_max: self.deleted_max, added: self.added }
    }

    /// Says something else of the stream. The last id must not be below that of any entry.
    pub(crate) fn set_head(&mut self, head: Head) {
        Head { last: self.last, deleted_max: self.deleted_max, added: self.added } = head;
    }

    pub(crate) fn blocks(&self) -> &Tree<Block> {
        &self.blocks
    }

    pub(crate) fn groups(&self) -> &Tree<Group> {
        &self.groups
    }

    /// What it remembers of producers, if it was ever told anything.
    pub(crate) fn idempotence(&self) -> Option<&Idempotence> {
        self.idempotence.as_deref()
    }

    /// The same, to be changed.
    pub(crate) fn idempotence_mut(&mut self) -> &mut Idempotence {
        self.idempotence.get_or_insert_with(|| Box::new(Idempotence::new()))
    }

    /// Has it remember this of producers from now on. What it did before, as a stream of its own that has nothing else.
    pub(crate) fn set_idempotence(&mut self, idempotence: Idempotence) -> Self {
        let before = self.idempotence.replace(Box::new(idempotence));
        Self { idempotence: before, ..Self::unfinished() }
    }

    /// True if the last entry that came with an id of its producer was there already. To be asked right after it came.
    pub fn has_met_duplicate(&self) -> bool {
        self.idempotence().is_some_and(Idempotence::is_repeat)
    }

    /// How often an entry that is pending in a group was given out, if nobody has it. Its id is written `ms-seq` or
    /// `ms`.
    pub fn released_count_of(&self, group: &[u8], id: &[u8]) -> Option<i64> {
        let pending = self.group(group)?.pending(Id::parse(id, 0)?)?;
        pending.owner().is_none().then(|| pending.shown_count())
    }

    /// True if an entry that is pending for nobody was released as not worth another try.
    pub fn is_given_up(&self, group: &[u8], id: &[u8]) -> bool {
        let pending = self.group(group).and_then(|group| group.pending(Id::parse(id, 0)?));
        pending.is_some_and(|pending| pending.owner().is_none() && pending.count == GIVEN_UP)
    }

    /// From when on something that is pending in a group has been idle for so many milliseconds, in milliseconds since
    /// the epoch; `None` if nothing is pending that is still there.
    pub fn idle_from(&self, group: &[u8], idle_ms_min: u64) -> Option<i64> {
        let pending = self.group(group)?.pending.iter().filter(|pending| self.get(pending.id).is_some());
        let earliest = pending.map(Pending::time).min()?;
        Some(earliest.saturating_add(i64::try_from(idle_ms_min).unwrap_or(i64::MAX)))
    }

    /// True if something is pending in a group and nobody has it.
    pub(crate) fn has_released(&self) -> bool {
        self.groups.iter().any(|group| group.released_count() > 0)
    }

    pub(crate) fn group(&self, name: &[u8]) -> Option<&Group> {
        rank_of(&self.groups, name).ok().and_then(|rank| self.groups.get(rank))
    }

    /// The id under which a producer adds these fields and values if it gives none: as Redis makes it, so that what a
    /// Redis has dumped is known here. Their order does not matter.
    pub fn own_id_of<'w>(words: impl Iterator<Item = &'w [u8]>) -> [u8; 16] {
        idempotence::own_id_of(words)
    }

    /// True if there is an entry of this id, which is written `ms-seq` or `ms`.
    pub fn has(&self, id: &[u8]) -> bool {
        Id::parse(id, 0).is_some_and(|id| self.get(id).is_some())
    }

    /// How far a group has read: the last id that it was given, and of how many entries that was the last, if known.
    pub fn place_of_group(&self, name: &[u8]) -> Option<(Id, Option<u64>)> {
        self.group(name).map(|group| (group.last, group.read))
    }

    /// How many entries were ever added.
    pub fn added_count(&self) -> u64 {
        self.added
    }

    /// Makes a group, unless there is one of this name. True if it did.
    pub(crate) fn add_group(&mut self, group: Group) -> bool {
        match rank_of(&self.groups, &group.name) {
            Ok(_) => false,
            Err(rank) => {
                self.groups.insert(rank, group);
                true
            }
        }
    }

    /// Changes a group, if there is one of this name.
    pub(crate) fn change_group<R>(&mut self, name: &[u8], change: impl FnOnce(&mut Group) -> R) -> Option<R> {
        let rank = rank_of(&self.groups, name).ok()?;
        Some(self.groups.update(rank, change))
    }

    /// Notes that a consumer of a group was heard of; makes it if there is none of this name. True if it did.
    pub(crate) fn hear_of(&mut self, group: &[u8], consumer: &[u8], now: i64) -> bool {
        self.change_group(group, |group| group.hear_of(consumer, now)) == Some(true)
    }

    /// Takes a group away: as a stream of its own, which has nothing else.
    pub(crate) fn remove_group(&mut self, name: &[u8]) -> Option<Self> {
        let rank = rank_of(&self.groups, name).ok()?;
        let groups = self.groups.take_range(rank..rank + 1);
        Some(Self { groups, ..Self::unfinished() })
    }

    /// The id that a new entry gets.
    ///
    /// # Errors
    /// If there is none, or it is not behind all others.
    pub(crate) fn next_id(&self, wanted: Wanted, now: u64) -> Result<Id, Refusal> {
        if self.last == Id::MAX {
            return Err(Refusal::STREAM_EXHAUSTED);
        }
        let id = match wanted {
            Wanted::Any if now > self.last.ms => Some(Id { ms: now, seq: 0 }),
            Wanted::Any => self.last.next(),
            Wanted::Within(ms) if ms == self.last.ms => self.last.seq.checked_add(1).map(|seq| Id { ms, seq }),
            Wanted::Within(ms) => Some(Id { ms, seq: 0 }),
            Wanted::Exactly(id) => Some(id),
        };
        id.filter(|&id| id > self.last).ok_or(Refusal::STREAM_ID_TOO_LOW)
    }

    /// Adds an entry. The id must be behind all others; `words` are fields and values in turn.
    pub(crate) fn push<'w>(
        &mut self,
        id: Id,
        words: impl ExactSizeIterator<Item = &'w [u8]> + Clone,
        bytes: u64,
        limits: &Limits,
    ) {
        assert!(id > self.last, "ids only rise");
        let count = self.blocks.len();
        let last = count.checked_sub(1).and_then(|rank| self.blocks.get(rank));
        match last.map(|block| block.is_full(bytes, limits)) {
            Some(false) => self.blocks.update(count - 1, |block| block.push(id, words)),
            is_full => {
                if is_full.is_some() {
                    self.blocks.update(count - 1, Block::close);
                }
                self.blocks.push(Block::new(id, words));
            }
        }
        self.len += 1;
        self.added = self.added.saturating_add(1);
        self.last = id;
        if self.len == 1 {
            self.first = id;
        }
    }

    /// The entry with this id.
    pub(crate) fn get(&self, id: Id) -> Option<Entry<'_>> {
        let (_, block) = self.block_of(id)?;
        block.entries().filter(|entry| !entry.is_deleted).find(|entry| entry.id >= id).filter(|entry| entry.id == id)
    }

    /// The block in which an entry with this id would be, and its rank.
    fn block_of(&self, id: Id) -> Option<(usize, &Block)> {
        let rank = match group::rank_of_id(&self.blocks, id) {
            Ok(rank) => rank,
            Err(behind) => behind.checked_sub(1)?,
        };
        self.blocks.get(rank).map(|block| (rank, block))
    }

    /// Deletes an entry. True if there was one with this id.
    pub(crate) fn delete(&mut self, id: Id) -> bool {
        let Some((rank, block)) = self.block_of(id) else { return false };
        // What is deleted may have a greater id than what comes behind it: XSETID lets ids start over below it.
        let found = block.entries().filter(|entry| !entry.is_deleted).find(|entry| entry.id >= id);
        let Some(place) = found.filter(|entry| entry.id == id).map(|entry| entry.place) else { return false };
        if block.live() == 1 {
            self.blocks.remove(rank);
        } else {
            self.blocks.update(rank, |block| block.delete(place));
        }
        self.len -= 1;
        self.deleted_max = self.deleted_max.max(id);
        if id == self.first {
            self.find_first();
        }
        true
    }

    /// True if a group has the entry of this id pending, or has not read as far.
    pub(crate) fn is_referenced(&self, id: Id) -> bool {
        self.groups.iter().any(|group| group.last < id || group.pending(id).is_some())
    }

    /// True if a group has the entry of this id pending.
    pub(crate) fn is_pending(&self, id: Id) -> bool {
        self.groups.iter().any(|group| group.pending(id).is_some())
    }

    /// Takes these entries out of what is pending in every group.
    pub(crate) fn drop_references(&mut self, ids: &[Id]) {
        for rank in 0..self.groups.len() {
            let is_in = |group: &Group| ids.iter().any(|&id| group.pending(id).is_some());
            if self.groups.get(rank).is_some_and(is_in) {
                self.groups.update(rank, |group| ids.iter().for_each(|&id| _ = group.acknowledge(id)));
            }
        }
    }

    fn find_first(&mut self) {
        let mut first = Id::MIN;
        self.visit(Id::MIN, Id::MAX, Direction::Up, 1, |entry| first = entry.id);
        self.first = first;
    }

    /// The last entry that has not been deleted.
    pub(crate) fn last_entry(&self) -> Option<Id> {
        let mut last = None;
        self.visit(Id::MIN, Id::MAX, Direction::Down, 1, |entry| last = Some(entry.id));
        last
    }

    /// Takes entries away from the front: whole blocks, and what is left to take of the next one unless `only_blocks`
    /// is set. With a `limit`, no more entries than that. Answers how many, and what was cut off, as a stream of its
    /// own.
    pub(crate) fn trim(
        &mut self,
        keep: Keep,
        only_blocks: bool,
        limit: Option<u64>,
        references: References,
    ) -> (u64, Self) {
        if references == References::Heeded && !self.groups.is_empty() {
            return (self.trim_unreferenced(keep, only_blocks, limit), Self::unfinished());
        }
        let (mut taken, mut block_count, mut is_done) = (0, 0, false);
        for block in self.blocks.iter() {
            let live = block.live();
            let is_enough = matches!(keep, Keep::Newest(len) if self.len - taken <= len);
            if is_enough || limit.is_some_and(|limit| taken + live > limit) {
                is_done = true;
                break;
            }
            let goes = match keep {
                Keep::Newest(len) => self.len - taken - live >= len,
                Keep::From(id) => block.last() < id,
            };
            if !goes {
                break;
            }
            taken += live;
            block_count += 1;
        }
        let blocks = self.blocks.take_range(0..block_count);
        self.len -= taken;
        let rest = if is_done || only_blocks { Vec::new() } else { self.trim_first_block(keep) };
        taken += rest.len() as u64;
        if references == References::Dropped {
            let live = blocks.iter().flat_map(Block::entries).filter(|entry| !entry.is_deleted);
            let ids: Vec<Id> = live.map(|entry| entry.id).chain(rest).collect();
            self.drop_references(&ids);
        }
        if self.len == 0 {
            self.first = Id::MIN;
        } else if taken > 0 {
            self.find_first();
        }
        (taken, Self { blocks, ..Self::unfinished() })
    }

    /// Takes entries away from the front of the first block, and answers which.
    fn trim_first_block(&mut self, keep: Keep) -> Vec<Id> {
        let Some(block) = self.blocks.get(0) else { return Vec::new() };
        let (mut places, mut ids) = (Vec::new(), Vec::new());
        for entry in block.entries().filter(|entry| !entry.is_deleted) {
            let stays = match keep {
                Keep::Newest(len) => self.len - places.len() as u64 <= len,
                Keep::From(id) => entry.id >= id,
            };
            if stays {
                break;
            }
            places.push(entry.place);
            ids.push(entry.id);
        }
        if !places.is_empty() {
            self.blocks.update(0, |block| places.iter().for_each(|&place| block.delete(place)));
        }
        self.len -= ids.len() as u64;
        ids
    }

    /// The same for entries that no group refers to: others stay, and are passed over.
    fn trim_unreferenced(&mut self, keep: Keep, only_blocks: bool, limit: Option<u64>) -> u64 {
        let mut ids = Vec::new();
        'blocks: for block in self.blocks.iter() {
            let (left, live) = (self.len - ids.len() as u64, block.live());
            let is_enough = matches!(keep, Keep::Newest(len) if left <= len);
            if is_enough || limit.is_some_and(|limit| ids.len() as u64 + live > limit) {
                break;
            }
            let is_whole = match keep {
                Keep::Newest(len) => left - live >= len,
                Keep::From(id) => block.last() < id,
            };
            if only_blocks && !is_whole {
                break;
            }
            for entry in block.entries().filter(|entry| !entry.is_deleted) {
                let stays = match keep {
                    Keep::Newest(len) => self.len - ids.len() as u64 <= len,
                    Keep::From(id) => entry.id >= id,
                };
                if stays {
                    break 'blocks;
                }
                if !self.is_referenced(entry.id) {
                    ids.push(entry.id);
                }
            }
        }
        ids.iter().for_each(|&id| _ = self.delete(id));
        ids.len() as u64
    }

    /// Calls `visit` with up to `count` entries of a range, and answers how many there were.
    pub(crate) fn visit<'a>(
        &'a self,
        start: Id,
        end: Id,
        direction: Direction,
        count: usize,
        mut visit: impl FnMut(Entry<'a>),
    ) -> usize {
        if start > end {
            return 0;
        }
        let mut left = count;
        let mut take = |entry: Entry<'a>| {
            if left > 0 {
                left -= 1;
                visit(entry);
            }
            left > 0
        };
        let first = self.block_of(start).map_or(0, |(rank, _)| rank);
        let Some((last, _)) = self.block_of(end) else { return 0 };
        let is_in = |entry: &Entry<'_>| (start..=end).contains(&entry.id) && !entry.is_deleted;
        let blocks = self.blocks.range(first..last + 1);
        match direction {
            Direction::Up => {
                let live = blocks.flat_map(Block::entries).filter(|entry| !entry.is_deleted);
                let entries = live.take_while(|entry| entry.id <= end);
                for entry in entries {
                    if is_in(&entry) && !take(entry) {
                        break;
                    }
                }
            }
            Direction::Down => {
                for block in blocks.rev() {
                    let entries: Vec<_> = block.entries().filter(is_in).collect();
                    if !entries.into_iter().rev().all(&mut take) {
                        break;
                    }
                }
            }
        }
        count - left
    }

    /// How many entries [`Stream::visit`] would visit. Looks into no more than two blocks.
    pub(crate) fn count(&self, start: Id, end: Id, count: usize) -> usize {
        if start > end || count == 0 {
            return 0;
        }
        let first = self.block_of(start).map_or(0, |(rank, _)| rank);
        let Some((last, _)) = self.block_of(end) else { return 0 };
        let is_in = |entry: &Entry<'_>| (start..=end).contains(&entry.id) && !entry.is_deleted;
        let mut found = 0;
        for (rank, block) in (first..=last).zip(self.blocks.range(first..last + 1)) {
            found += if rank == first || rank == last {
                block.entries().filter(is_in).count()
            } else {
                block.live() as usize
            };
            if found >= count {
                return count;
            }
        }
        found
    }

    /// True if an entry of a range may have been deleted by itself, so that its entries cannot be counted by numbers.
    fn has_gap(&self, start: Id) -> bool {
        self.len > 0 && self.deleted_max != Id::MIN && self.first <= self.deleted_max && start <= self.deleted_max
    }

    /// How many entries were added up to this one, if that can be told.
    pub(crate) fn added_up_to(&self, id: Id) -> Option<u64> {
        if self.added == 0 {
            return Some(0);
        }
        if id == self.last || (self.len == 0 && id < self.last) {
            return Some(self.added);
        }
        if id > self.last || (self.deleted_max != Id::MIN && self.deleted_max >= self.first) {
            return None;
        }
        match id.cmp(&self.first) {
            std::cmp::Ordering::Less => Some(self.added.wrapping_sub(self.len)),
            std::cmp::Ordering::Equal => Some(self.added.wrapping_sub(self.len).wrapping_add(1)),
            std::cmp::Ordering::Greater => None,
        }
    }

    /// What a group's count of entries becomes when it has read one more, that with this id, behind another.
    pub(crate) fn read_after(&self, read: Option<u64>, last: Id, id: Id, level: Level) -> Option<u64> {
        let is_next = if level == Level::FIRST {
            !self.has_gap(id)
        } else {
            // What was trimmed behind the entry read last was not read.
            last >= self.first && !self.has_gap(last)
        };
        match read {
            Some(read) if is_next => Some(read.saturating_add(1)),
            _ if self.added > 0 => self.added_up_to(id),
            _ => read,
        }
    }

    /// How many entries a group has not read, if that can be told. At level 1 as Redis 7.0 told it.
    pub(crate) fn lag(&self, group: &Group, level: Level) -> Option<i64> {
        if self.added == 0 {
            return Some(0);
        }
        if level > Level::FIRST {
            if self.len == 0 {
                return Some(0);
            }
            // It has all that is there before it, and none of that has been deleted by itself.
            if group.last < self.first && self.deleted_max < self.first {
                return Some(self.len as i64);
            }
        }
        let read = match group.read {
            Some(read) if !self.has_gap(group.last) => Some(read),
            _ => self.added_up_to(group.last),
        };
        read.map(|read| self.added.wrapping_sub(read) as i64)
    }

    fn push_block(&mut self, block: Block) -> Option<()> {
        let before = self.blocks.len().checked_sub(1).and_then(|rank| self.blocks.get(rank));
        if before.is_some_and(|before| before.last() >= block.first()) {
            return None;
        }
        self.len = self.len.checked_add(block.live())?;
        self.blocks.push(block);
        Some(())
    }

    /// Takes a group in; every pending entry must have an owner or be released.
    fn push_group(&mut self, group: Group) -> Option<()> {
        let owned: usize = group.consumers.iter().map(|consumer| consumer.pending.len()).sum();
        (owned + group.released_count() == group.pending.len() && self.add_group(group)).then_some(())
    }

    fn finish(&mut self, head: Head) -> Option<()> {
        let last = self.blocks.len().checked_sub(1).and_then(|rank| self.blocks.get(rank)).map(Block::last);
        if self.is_whole || last.is_some_and(|last| head.last < last) {
            return None;
        }
        self.set_head(head);
        self.find_first();
        self.is_whole = true;
        Some(())
    }
}

/// Which way entries are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the first on.
    Up,
    /// From the last on.
    Down,
}

/// Streams are equal if they answer alike, now and later.
impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        let same_blocks = || self.blocks.iter().zip(other.blocks.iter()).all(|(block, other)| block.is_same(other));
        let same_groups = || self.groups.iter().zip(other.groups.iter()).all(|(group, other)| group.is_same(other));
        self.head() == other.head()
            && (self.blocks.len(), self.groups.len()) == (other.blocks.len(), other.groups.len())
            && self.idempotence == other.idempotence
            && same_blocks()
            && same_groups()
    }
}

impl Eq for Stream {}

impl fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Stream").field("len", &self.len).field("head", &self.head()).finish_non_exhaustive()
    }
}

// Parts, as checkpoints have them: blocks, then each group with its consumers and what is pending, then the head. Each
// is an item.
//
//   1 block     id, entries, deleted entries, their elements
//   2 group     name, last id, entries read + 1 or 0
//   3 consumer  name, seen i64, active i64 or -1; active may be missing, and is then as seen
//   4 pending   id, time i64, count, owner's name
//   5 head      last id, highest deleted id, entries added
//   6 released  id, place, count: pending, and nobody has it
//   7 memory of producers, behind the groups: seconds, ids of each, entries added, duplicates
//   8 producer  name
//   9 producer's id, of the producer before it: the id, and the entry's
//
// Parts 6 to 9 come from commands of level 2, so a checkpoint of level 1 has none.
//
// An id is two numbers. Numbers without a width, and the lengths of names, have seven bits a byte.

const BLOCK: u8 = 1;
const GROUP: u8 = 2;
const CONSUMER: u8 = 3;
const PENDING: u8 = 4;
const HEAD: u8 = 5;
const RELEASED: u8 = 6;
const IDEMPOTENCE: u8 = 7;
const PRODUCER: u8 = 8;
const OWN_ID: u8 = 9;

/// Stands for a time that there was not.
const NEVER: i64 = -1;

fn put_id(out: &mut Vec<u8>, id: Id) {
    packed::put_number(out, id.ms);
    packed::put_number(out, id.seq);
}

fn read_id(items: &mut packed::Items<'_>) -> Option<Id> {
    Some(Id { ms: items.number()?, seq: items.number()? })
}

fn read_i64(items: &mut packed::Items<'_>) -> Option<i64> {
    Some(i64::from_le_bytes(items.take(8)?.try_into().ok()?))
}

impl Group {
    fn part_count(&self) -> usize {
        1 + self.consumers.len() + self.pending.len()
    }

    fn write_part(&self, nth: usize, out: &mut Vec<u8>) {
        let consumers = self.consumers.len();
        if nth == 0 {
            out.push(GROUP);
            packed::put(out, &self.name);
            put_id(out, self.last);
            packed::put_number(out, self.read.map_or(0, |read| read.saturating_add(1)));
        } else if let Some(consumer) = self.consumers.get(nth - 1) {
            out.push(CONSUMER);
            packed::put(out, &consumer.name);
            out.extend_from_slice(&consumer.seen.to_le_bytes());
            out.extend_from_slice(&consumer.active.unwrap_or(NEVER).to_le_bytes());
        } else if let Some(pending) = self.pending.get(nth - 1 - consumers) {
            match &pending.holder {
                Holder::Consumer(owner, time) => {
                    out.push(PENDING);
                    put_id(out, pending.id);
                    out.extend_from_slice(&time.to_le_bytes());
                    packed::put_number(out, pending.count);
                    packed::put(out, owner);
                }
                Holder::Nobody(place) => {
                    out.push(RELEASED);
                    put_id(out, pending.id);
                    packed::put_number(out, *place);
                    packed::put_number(out, pending.count);
                }
            }
        }
    }
}

impl Idempotence {
    /// Calls `put` with each part from this one on, until it says that it is enough.
    fn write_parts(&self, from: usize, mut put: impl FnMut(&mut Vec<u8>) -> bool) {
        let mut part = Vec::new();
        if from == 0 {
            part.push(IDEMPOTENCE);
            for number in [self.duration_s, self.ids_max, self.added, self.duplicates] {
                packed::put_number(&mut part, number);
            }
            if put(&mut part) {
                return;
            }
        }
        let (first, mut rank) = self.producer_at_part(from);
        for (nth, (name, ids)) in (first..).zip(self.producers_from(first)) {
            let end = rank + 1 + ids.len();
            self.note_part(nth, rank);
            if rank >= from {
                part.push(PRODUCER);
                packed::put(&mut part, name);
                if put(&mut part) {
                    return;
                }
            }
            for (own, id) in ids.skip(from.saturating_sub(rank + 1)) {
                part.push(OWN_ID);
                packed::put(&mut part, own);
                put_id(&mut part, id);
                if put(&mut part) {
                    return;
                }
            }
            rank = end;
        }
    }
}

impl Large for Box<Stream> {
    /// Number of parts.
    fn len(&self) -> usize {
        self.blocks.len()
            + self.groups.iter().map(Group::part_count).sum::<usize>()
            + self.idempotence().map_or(0, |idempotence| 1 + idempotence.part_count())
            + usize::from(self.is_whole)
    }

    fn is_empty(&self) -> bool {
        !self.is_whole && self.blocks.is_empty() && self.groups.is_empty() && self.idempotence.is_none()
    }

    fn bytes(&self) -> usize {
        let of_producers = |it: &Idempotence| crate::record::allocated_bytes(size_of::<Idempotence>()) + it.bytes();
        crate::record::allocated_bytes(size_of::<Stream>())
            + self.blocks.bytes()
            + self.groups.bytes()
            + self.idempotence().map_or(0, of_producers)
    }

    fn write_part(&self, from: usize, out: &mut Vec<u8>, end: usize) -> usize {
        let mut rank = from;
        let mut part = Vec::new();
        let mut put = |part: &mut Vec<u8>, rank: &mut usize| {
            packed::put(out, part);
            part.clear();
            *rank += 1;
            out.len() >= end
        };
        if rank < self.blocks.len() {
            for block in self.blocks.range(rank..self.blocks.len()) {
                part.push(BLOCK);
                block.write_exact(&mut part);
                if put(&mut part, &mut rank) {
                    return rank;
                }
            }
        }
        let mut before = self.blocks.len();
        for group in self.groups.iter() {
            let count = group.part_count();
            while rank < before + count {
                group.write_part(rank - before, &mut part);
                if put(&mut part, &mut rank) {
                    return rank;
                }
            }
            before += count;
        }
        if let Some(idempotence) = self.idempotence() {
            let end = before + 1 + idempotence.part_count();
            if rank < end {
                let mut is_enough = false;
                idempotence.write_parts(rank - before, |part| {
                    is_enough = put(part, &mut rank);
                    is_enough
                });
                if is_enough {
                    return rank;
                }
            }
            before = end;
        }
        if rank == before && self.is_whole {
            part.push(HEAD);
            put_id(&mut part, self.last);
            put_id(&mut part, self.deleted_max);
            packed::put_number(&mut part, self.added);
            put(&mut part, &mut rank);
        }
        rank
    }

    fn read_one(&mut self, items: &mut packed::Items<'_>) -> Option<()> {
        let mut part = packed::Items::new(items.next()?);
        if self.is_whole {
            return None;
        }
        let last_group = self.groups.len().checked_sub(1);
        match part.byte()? {
            BLOCK if last_group.is_none() => {
                let block = Block::read_exact(&mut part)?;
                self.push_block(block)?;
            }
            GROUP => {
                let (name, last, read) = (part.next()?, read_id(&mut part)?, part.number()?.checked_sub(1));
                self.push_group(Group::new(name, last, read))?;
            }
            CONSUMER => {
                let (name, seen) = (part.next()?, read_i64(&mut part)?);
                let active = if part.is_done() { seen } else { read_i64(&mut part)? };
                self.groups
                    .update(last_group?, |group| {
                        let is_new = group.add_consumer(name, seen);
                        group.set_active(name, Some(active).filter(|&active| active != NEVER));
                        is_new
                    })
                    .then_some(())?;
            }
            PENDING => {
                let (id, time, count) = (read_id(&mut part)?, read_i64(&mut part)?, part.number()?);
                let owner = part.next()?;
                self.groups.update(last_group?, |group| {
                    let is_new = group.pending(id).is_none() && group.consumer(owner).is_some();
                    is_new.then(|| group.assign(id, owner, time, count))
                })?;
            }
            RELEASED => {
                let (id, place, count) = (read_id(&mut part)?, part.number()?, part.number()?);
                self.groups.update(last_group?, |group| group.take_released(id, place, count)).then_some(())?;
            }
            IDEMPOTENCE if self.idempotence.is_none() => {
                let mut idempotence = Idempotence::new();
                idempotence.duration_s = part.number()?;
                idempotence.ids_max = part.number()?;
                idempotence.added = part.number()?;
                idempotence.duplicates = part.number()?;
                self.idempotence = Some(Box::new(idempotence));
            }
            PRODUCER => {
                let name = part.next()?;
                self.idempotence.as_mut()?.put_producer(name).then_some(())?;
            }
            OWN_ID => {
                let (own, id) = (part.next()?, read_id(&mut part)?);
                let idempotence = self.idempotence.as_mut()?;
                let producer = idempotence.last_producer()?;
                idempotence.put_id(&producer, own, id).then_some(())?;
            }
            HEAD => {
                let (last, deleted_max) = (read_id(&mut part)?, read_id(&mut part)?);
                self.finish(Head { last, deleted_max, added: part.number()? })?;
            }
            _ => return None,
        }
        part.is_done().then_some(())
    }
}

/// What is left of a stream: trees, the last to be freed first. Consumers lie behind what is pending for them, as they
/// hold on to it.
pub(crate) struct Unfreed(Vec<UnfreedTree>);

enum UnfreedTree {
    Blocks(tree::Unfreed<Vec<Block>>),
    Groups(tree::Unfreed<Vec<Group>>),
    Consumers(tree::Unfreed<Vec<Consumer>>),
    Pending(tree::Unfreed<Vec<Pending>>),
    Released(UnfreedReleased),
    Ids(tree::Unfreed<Vec<Id>>),
    Idempotence(UnfreedIdempotence),
}

impl Unfreed {
    pub(super) fn of(stream: Stream) -> Self {
        let mut trees = Vec::new();
        for group in stream.groups.iter() {
            let ids = group.consumers.iter().map(|consumer| consumer.pending.clone().into_unfreed());
            trees.extend(ids.map(UnfreedTree::Ids));
            trees.push(UnfreedTree::Pending(group.pending.clone().into_unfreed()));
            trees.push(UnfreedTree::Released(group.unfreed_released()));
            trees.push(UnfreedTree::Consumers(group.consumers.clone().into_unfreed()));
        }
        if let Some(idempotence) = stream.idempotence {
            trees.extend(idempotence.into_unfreed().into_iter().map(UnfreedTree::Idempotence));
        }
        trees.push(UnfreedTree::Groups(stream.groups.into_unfreed()));
        trees.push(UnfreedTree::Blocks(stream.blocks.into_unfreed()));
        Self(trees)
    }

    pub(super) fn bytes(&self) -> usize {
        let bytes = |tree: &UnfreedTree| match tree {
            UnfreedTree::Blocks(unfreed) => unfreed.bytes(),
            UnfreedTree::Pending(unfreed) => unfreed.bytes(),
            UnfreedTree::Released(unfreed) => unfreed.bytes(),
            UnfreedTree::Ids(unfreed) => unfreed.bytes(),
            UnfreedTree::Idempotence(unfreed) => unfreed.bytes(),
            // Their bytes include those of the trees in them, which stand here by themselves.
            UnfreedTree::Groups(_) | UnfreedTree::Consumers(_) => 0,
        };
        self.0.iter().map(bytes).sum()
    }

    pub(super) fn free(&mut self, budget: &mut usize) -> bool {
        while *budget > 0
            && let Some(tree) = self.0.last_mut()
        {
            let is_left = match tree {
                UnfreedTree::Blocks(unfreed) => unfreed.free(budget),
                UnfreedTree::Groups(unfreed) => unfreed.free(budget),
                UnfreedTree::Consumers(unfreed) => unfreed.free(budget),
                UnfreedTree::Pending(unfreed) => unfreed.free(budget),
                UnfreedTree::Released(unfreed) => unfreed.free(budget),
                UnfreedTree::Ids(unfreed) => unfreed.free(budget),
                UnfreedTree::Idempotence(unfreed) => unfreed.free(budget),
            };
            if !is_left {
                self.0.pop();
            }
        }
        !self.0.is_empty()
    }
}

impl<'a> View<'a> {
    /// The stream under a key, if the key exists. Counts as a use.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is no stream.
    #[inline]
    pub fn stream(&self, key: &[u8]) -> Result<Option<&'a Stream>, Refusal> {
        match self.entry(key).map(|entry| entry.value()) {
            None => Ok(None),
            Some(ValueRef::Stream(stream)) => Ok(Some(stream)),
            Some(_) => Err(Refusal::WRONG_TYPE),
        }
    }
}

/// A stream that is being changed.
pub(crate) struct StreamMut<'c, 'a>(&'c mut Cell<'a>);

impl StreamMut<'_, '_> {
    /// The stream as it is now.
    pub(crate) fn as_ref(&self) -> &Stream {
        match self.0.shape() {
            Shape::Large(Collection::Stream(stream)) => stream,
            _ => unreachable!("the type was checked"),
        }
    }

    /// The stream, to be changed; what asks for it has changed it.
    pub(crate) fn change(&mut self) -> &mut Stream {
        match self.0.large_mut() {
            Some(Collection::Stream(stream)) => stream,
            _ => unreachable!("the type was checked"),
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        *self.0.limits()
    }
}

impl Edit<'_> {
    /// Changes the stream under a key, starting from an empty one if the key does not exist. Counts as a use.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is no stream.
    #[inline]
    pub(crate) fn modify_stream<R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut StreamMut<'_, '_>) -> R,
    ) -> Result<R, Refusal> {
        self.modify(key, Kind::Stream, |cell| change(&mut StreamMut(cell)))
    }

    /// Takes what was cut off a stream, to be freed in steps.
    pub(crate) fn free_stream_later(&mut self, part: Stream) {
        self.free_collection_later(Collection::Stream(Box::new(part)));
    }
}
