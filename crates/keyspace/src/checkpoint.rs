//! The cut without a fork: writing out the data as it is at one sequence number while it goes on changing.
//!
//! Every record carries the sequence number of its last change. At the cut the current number is noted, and then a
//! *walk* goes through the keys in order of (database, slot, hash), a slice at a time, between other work. It writes
//! what it finds with a version up to the cut and passes over everything newer. Whatever is about to change, or to go,
//! has its old image saved first, if its version is not beyond the cut and the walk has not come to its place
//! yet; the change then gives the key a newer version, so that no image is saved twice and the walk passes it over.
//!
//! ```text
//!   walked, written │ not walked yet
//!   ────────────────┼──────────────────────────▶ (database, slot, hash)
//!                   │  version ≤ cut: image saved before a change
//!                   │  version > cut: not part of the checkpoint
//! ```
//!
//! The order by hash does not depend on how a slot is split into segments, so splits do not disturb the walk. A
//! database keeps the rank it had at the cut when SWAPDB moves it; one that FLUSHALL empties is only put aside, and
//! freed after the walk.
//!
//! Large values are shared, not copied, while they wait to be written, and written in parts, so that no slice is
//! longer than its budget by more than a part.
//!
//! # Records
//!
//! ```text
//! 1 head    sequence varint, moment i64
//! 2 key     flags, database varint, version varint, access clock u24, [deadline i64], key length varint, key,
//!           value: a string as in RDB, a collection exactly as it is kept
//! 3 large   as 2, but for the value its length varint; its parts follow
//! 4 part    length varint, bytes
//! 5 many    as 2, but for the value 0x80 | form u8 and the number of elements varint; parts with whole elements follow
//! 6 limits  each a varint: fields of a packed hash, bytes of one of its fields or values, members of a set of
//!           integers, members of a packed sorted set, bytes of one of them, bytes and entries of a stream's block,
//!           bytes of a sparse HyperLogLog
//! 7 keeps   nothing follows: no key expires (import-mode); behind 6, if at all
//! 8 names   three varints: members of a set that is called a listpack, bytes of one of them, and
//!           list-max-listpack-size as 64 bits; behind 6, only if they are not 128, 64 and -2, and from level 2 on
//! ```
//!
//! Numbers of fixed size are little-endian; a varint has seven bits a byte, the lowest first. Collections are not
//! written as in RDB because their form must come back with them: the order of their elements depends on it. Packed
//! forms are 1 hash, 2 set of integers, 3 set, 4 list, 5 sorted set, 6 hash with deadlines of fields, 7 document;
//! large ones are 1 hash, 2 set, 3 list, 4 sorted set, 5 stream, 6 hash with deadlines of fields, 7 document.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use command::Refusal;

use crate::collection::packed::{self, Items, put_number as write_varint};
use crate::collection::{self, Collection, Limits, SMALL_LEN_MAX};
use crate::lazy_free::{LazyFree, Position};
use crate::rdb::{self, Compression};
use crate::record::{Payload, Record, VERSION_END};
use crate::segment::KeyHasher;
use crate::table::{Deadline, RANK_NONE, Stamp, Table};
use crate::tombstones::Tombstones;
use crate::value::{Str, StringValue, Text, Value, ValueRef};
use crate::{Keyspace, Moment};

const HEAD: u8 = 1;
const KEY: u8 = 2;
const LARGE: u8 = 3;
const PART: u8 = 4;
const MANY: u8 = 5;
const LIMITS: u8 = 6;
const KEEPS_EXPIRED: u8 = 7;
const NAMES: u8 = 8;

const HAS_DEADLINE: u8 = 1;
/// Changed in place, so that its encoding is called `raw`.
const IS_RAW: u8 = 2;
/// Kept as a number.
const IS_INTEGER: u8 = 4;
/// No string.
const IS_COLLECTION: u8 = 8;

/// Values longer than this are written in parts of this size, in bytes.
const PART_BYTES: usize = 256 << 10;
/// As much of a large collection is in a part, unless a single element is longer.
const ELEMENTS_BYTES: usize = 16 << 10;
/// Old images are gathered in pieces of about this size.
const IMAGES_BYTES: usize = 64 << 10;
/// Longest value that is believed: what a Redis string can be, in bytes.
const VALUE_BYTES_MAX: usize = 512 << 20;

/// Bytes that are not what they should be: no record of a checkpoint, or no exported key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt {
    /// Where the bad record begins in the bytes given.
    pub offset: usize,
}

impl fmt::Display for Corrupt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "not a record of a key at byte {}", self.offset)
    }
}

impl std::error::Error for Corrupt {}

impl From<Corrupt> for Refusal {
    fn from(_: Corrupt) -> Self {
        Self::new("ERR Bad data format")
    }
}

/// A checkpoint under way.
pub(crate) struct Walk {
    /// Changes up to this sequence number belong to it.
    cut: u64,
    /// The moment of the last of them.
    now: i64,
    /// What had expired then, is left out: deadlines up to this one.
    expired_until: i64,
    head_written: bool,
    /// As they were at the cut.
    limits: Limits,
    /// Everything before this has been walked.
    position: Position,
    /// True if `position` is inside a segment.
    inside: bool,
    ranks: u32,
    /// Encoded images of keys that have changed since.
    images: VecDeque<Vec<u8>>,
    image_bytes: usize,
    /// Large values that wait to be written.
    large: VecDeque<LargeImage>,
    /// The one being written, and how much of it has been: bytes, or elements.
    parts: Option<(LargeValue, usize)>,
    /// Keys that have been walked, or changed before they were.
    passed: usize,
    total: usize,
    /// Slots that have come since, with keys as old as they were elsewhere.
    arrived: BTreeSet<u16>,
}

struct LargeImage {
    head: Vec<u8>,
    value: LargeValue,
}

impl LargeImage {
    /// The image of a record that is written in parts; `None` for one that is not.
    fn of(rank: u32, record: &Record) -> Option<Self> {
        let value = match (record.large(), record.collection()) {
            (Some(bytes), _) if bytes.len() > PART_BYTES => LargeValue::Bytes(Arc::clone(bytes)),
            (_, Some(collection)) if collection.len() > SMALL_LEN_MAX || collection.footprint() > PART_BYTES => {
                LargeValue::Many(collection.clone())
            }
            _ => return None,
        };
        let mut head = Vec::with_capacity(record.key().len() + 64);
        match &value {
            LargeValue::Bytes(bytes) => {
                write_head(&mut head, LARGE, rank, record);
                write_varint(&mut head, bytes.len() as u64);
            }
            LargeValue::Many(collection) => {
                write_head(&mut head, MANY, rank, record);
                collection::write_large_head(&mut head, collection);
            }
        }
        Some(Self { head, value })
    }
}

/// A value that is shared with the keyspace, as long as that does not change it.
enum LargeValue {
    Bytes(Arc<Vec<u8>>),
    Many(Collection),
}

impl LargeValue {
    /// Bytes that nobody else holds any more. What has become of a collection is not known; it counts for nothing.
    fn unshared_bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) if Arc::strong_count(bytes) == 1 => bytes.capacity(),
            Self::Bytes(_) | Self::Many(_) => 0,
        }
    }

    /// Appends a part from `from` on; where the next begins, or `None` if there is no more.
    fn write_part(&self, from: usize, out: &mut Vec<u8>) -> Option<usize> {
        out.push(PART);
        match self {
            Self::Bytes(bytes) => {
                let end = bytes.len().min(from + PART_BYTES);
                packed::put(out, &bytes[from..end]);
                (end < bytes.len()).then_some(end)
            }
            Self::Many(collection) => {
                let mut part = Vec::new();
                let end = collection.write_part(from, &mut part, ELEMENTS_BYTES);
                packed::put(out, &part);
                (end < collection.len()).then_some(end)
            }
        }
    }

    fn free_later(self, lazy_free: &mut LazyFree) {
        match self {
            Self::Bytes(bytes) => lazy_free.free_large_later(bytes),
            Self::Many(collection) => lazy_free.free_collection_later(collection),
        }
    }
}

impl Walk {
    /// See [`LazyFree::before_change`].
    pub(crate) fn before_change(&mut self, position: Position, record: &Record) {
        if self.wants(position, record) {
            self.passed += 1;
            let mut images = match self.images.back_mut() {
                Some(last) if last.len() < IMAGES_BYTES => std::mem::take(last),
                _ => {
                    self.images.push_back(Vec::new());
                    Vec::new()
                }
            };
            let before = images.len();
            self.write(&mut images, position.rank, record);
            self.image_bytes += images.len() - before;
            *self.images.back_mut().expect("there is one") = images;
        }
    }

    /// True if the record belongs to the checkpoint and has not been written.
    pub(crate) fn wants(&self, position: Position, record: &Record) -> bool {
        record.version() <= self.cut
            && position >= self.position
            && position.rank != RANK_NONE
            && record.is_alive(self.expired_until)
            && !self.arrived.contains(&position.slot)
    }

    /// Bytes held beyond the data itself, large values that only the walk still holds included.
    pub(crate) fn held_bytes(&self) -> usize {
        let large = self.large.iter().map(|image| &image.value).chain(self.parts.iter().map(|(value, _)| value));
        self.image_bytes + large.map(LargeValue::unshared_bytes).sum::<usize>()
    }

    /// True if something of a table of this rank has not been walked.
    pub(crate) fn needs_table(&self, rank: u32) -> bool {
        rank != RANK_NONE && rank >= self.position.rank
    }

    /// Writes a record, or puts it into the queue of those that are written in parts.
    fn write(&mut self, out: &mut Vec<u8>, rank: u32, record: &Record) {
        match LargeImage::of(rank, record) {
            Some(image) => self.large.push_back(image),
            None => write_small(out, rank, record),
        }
    }

    /// Writes something of what waits; false if nothing does.
    fn write_waiting(&mut self, out: &mut Vec<u8>, lazy_free: &mut LazyFree) -> bool {
        if let Some((value, from)) = self.parts.take() {
            match value.write_part(from, out) {
                Some(next) => self.parts = Some((value, next)),
                None => value.free_later(lazy_free),
            }
        } else if let Some(images) = self.images.pop_front() {
            out.extend_from_slice(&images);
            self.image_bytes -= images.len();
        } else if let Some(LargeImage { head, value }) = self.large.pop_front() {
            out.extend_from_slice(&head);
            self.parts = Some((value, 0));
        } else {
            return false;
        }
        true
    }

    /// Walks on through one segment, or through as much of it as brings `out` to `end`.
    fn walk_segment(&mut self, table: &Table, hasher: &KeyHasher, out: &mut Vec<u8>, end: usize) {
        let Position { rank, slot: slot_index, hash } = self.position;
        let Some(slot) = table.slot(usize::from(slot_index)) else { return self.go_to_table(rank + 1) };
        if self.arrived.contains(&slot_index) {
            return self.go_behind_segment(table, None);
        }
        let segment = slot.segment(hash);
        let (cut, expired_until) = (self.cut, self.expired_until);
        let wanted = |record: &&Record| record.version() <= cut && record.is_alive(expired_until);

        // Small enough to be written as a whole? The common case needs no order within the segment.
        let room = end.saturating_sub(out.len()).max(IMAGES_BYTES);
        let mut size = 0;
        let fits = |record: &Record| {
            size += record.footprint();
            size <= room && record.footprint() < PART_BYTES
        };
        if !self.inside && segment.iter().all(fits) {
            for record in segment.iter().filter(wanted) {
                self.write(out, rank, record);
                self.passed += 1;
            }
            return self.go_behind_segment(table, slot.segment_end(hash));
        }

        let records = segment.iter().filter(wanted).map(|record| (hasher.hash(record.key()), record));
        let mut records: Vec<(u64, &Record)> = records.filter(|&(found, _)| found >= hash).collect();
        records.sort_unstable_by_key(|&(hash, _)| hash);
        let mut last = None;
        for (hash, record) in records {
            // Keys of one hash share a place, so they go together.
            if last.is_some_and(|last| last != hash) && (out.len() >= end || !self.large.is_empty()) {
                self.position.hash = hash;
                self.inside = true;
                return;
            }
            self.write(out, rank, record);
            self.passed += 1;
            last = Some(hash);
        }
        self.go_behind_segment(table, slot.segment_end(hash));
    }

    fn go_behind_segment(&mut self, table: &Table, end: Option<u64>) {
        self.inside = false;
        match end {
            Some(end) => self.position.hash = end,
            None => {
                // What is passed over holds nothing: what comes there later is newer than the cut.
                let next = table.next_slot(usize::from(self.position.slot) + 1);
                self.position = Position { slot: next as u16, hash: 0, ..self.position };
            }
        }
    }

    fn go_to_table(&mut self, rank: u32) {
        self.position = Position { rank, slot: 0, hash: 0 };
    }
}

impl Keyspace {
    /// Begins a checkpoint of the data as it is now. One that was under way is given up.
    pub fn begin_checkpoint(&mut self) {
        self.cancel_checkpoint();
        for (rank, table) in self.databases.iter_mut().enumerate() {
            table.rank = rank as u32;
        }
        for table in &mut self.graveyard {
            table.rank = RANK_NONE;
        }
        self.lazy_free.walk = Some(Box::new(Walk {
            cut: self.sequence,
            now: self.latest,
            expired_until: self.expired_until(self.latest),
            head_written: false,
            limits: self.limits,
            position: Position { rank: 0, slot: 0, hash: 0 },
            inside: false,
            ranks: self.databases.len() as u32,
            images: VecDeque::new(),
            image_bytes: 0,
            large: VecDeque::new(),
            parts: None,
            passed: 0,
            total: self.databases.iter().map(|table| table.count).sum(),
            arrived: BTreeSet::new(),
        }));
    }

    /// Appends whole records to `out`, about `budget_bytes` of them. True if the checkpoint is complete, and none is
    /// under way any more.
    pub fn checkpoint_step(&mut self, budget_bytes: usize, out: &mut Vec<u8>) -> bool {
        let Some(mut walk) = self.lazy_free.walk.take() else { return true };
        let end = out.len() + budget_bytes.max(1);
        if !walk.head_written {
            out.push(HEAD);
            write_varint(out, walk.cut);
            out.extend_from_slice(&walk.now.to_le_bytes());
            out.push(LIMITS);
            walk.limits.write_forms(out);
            if walk.limits.keeps_expired {
                out.push(KEEPS_EXPIRED);
            }
            if !walk.limits.has_usual_names() {
                out.push(NAMES);
                walk.limits.write_names(out);
            }
            walk.head_written = true;
        }
        while out.len() < end {
            if walk.write_waiting(out, &mut self.lazy_free) {
                continue;
            }
            let rank = walk.position.rank;
            if rank == walk.ranks {
                return true;
            }
            match self.databases.iter().chain(&self.graveyard).find(|table| table.rank == rank) {
                Some(table) => walk.walk_segment(table, &self.hasher, out, end),
                None => walk.go_to_table(rank + 1),
            }
        }
        self.lazy_free.walk = Some(walk);
        false
    }

    /// Gives up a checkpoint that is under way, if there is one.
    pub fn cancel_checkpoint(&mut self) {
        if let Some(walk) = self.lazy_free.walk.take() {
            let waiting = walk.large.into_iter().map(|image| image.value).chain(walk.parts.map(|(value, _)| value));
            waiting.for_each(|value| value.free_later(&mut self.lazy_free));
        }
    }

    /// How many keys of the checkpoint under way have been dealt with, and how many there are; `None` if there is no
    /// checkpoint.
    pub fn checkpoint_progress(&self) -> Option<(usize, usize)> {
        self.lazy_free.walk.as_ref().map(|walk| (walk.passed.min(walk.total), walk.total))
    }

    /// Takes in records that [`Keyspace::checkpoint_step`] has written: any whole number of them, in their order.
    ///
    /// # Errors
    /// [`Corrupt`] at the first byte of a record that is none.
    pub fn restore(&mut self, chunk: &[u8]) -> Result<(), Corrupt> {
        let mut reader = Reader { bytes: chunk };
        while !reader.bytes.is_empty() {
            let offset = chunk.len() - reader.bytes.len();
            self.restore_record(&mut reader).ok_or(Corrupt { offset })?;
        }
        Ok(())
    }

    /// True if the last restored record was a large value of which parts are missing.
    pub fn is_restore_incomplete(&self) -> bool {
        self.restoring.is_some()
    }

    fn restore_record(&mut self, reader: &mut Reader<'_>) -> Option<()> {
        let tag = reader.byte()?;
        if (tag == PART) != self.restoring.is_some() {
            return None;
        }
        match tag {
            HEAD => {
                self.sequence = reader.varint().filter(|&sequence| sequence < VERSION_END)?;
                self.latest = reader.i64()?;
                if self.lazy_free.tombstones.are_noted() {
                    self.lazy_free.tombstones = Tombstones::since(self.sequence);
                }
            }
            KEY => {
                let head = KeyHead::read(reader, self.databases.len())?;
                let value = reader.value(head.flags)?;
                self.restore_key(head.into_owned(), Payload::of(&value));
            }
            LARGE => {
                let head = KeyHead::read(reader, self.databases.len())?.into_owned();
                let len = usize::try_from(reader.varint()?).ok().filter(|len| (1..=VALUE_BYTES_MAX).contains(len))?;
                let value = LargeValue::Bytes(Arc::new(Vec::with_capacity(len.min(64 << 20))));
                self.restoring = Some(Restoring { head, len, value });
            }
            MANY => {
                let head = KeyHead::read(reader, self.databases.len())?.into_owned();
                let tag = reader.byte()?;
                let (collection, len) = collection::read_large_head(tag, reader.varint()?)?;
                self.restoring = Some(Restoring { head, len, value: LargeValue::Many(collection) });
            }
            PART => {
                let len = reader.varint()?;
                let part = reader.take(len)?;
                let restoring = self.restoring.as_mut().expect("just checked");
                if restoring.take_part(part)? {
                    let Restoring { head, value, .. } = self.restoring.take().expect("just seen");
                    let payload = match value {
                        LargeValue::Bytes(bytes) => Payload::Large(bytes),
                        LargeValue::Many(collection) => Payload::Collection(Box::new(collection)),
                    };
                    self.restore_key(head, payload);
                }
            }
            LIMITS => self.limits = reader.items(Limits::read_from)?,
            KEEPS_EXPIRED => self.limits.keeps_expired = true,
            NAMES => reader.items(|items| self.limits.read_names(items))?,
            _ => return None,
        }
        Some(())
    }

    fn restore_key(&mut self, head: KeyHead<Vec<u8>>, payload: Payload<'_>) {
        let place = self.place(&head.key);
        let stamp = Stamp { version: head.version, now: self.latest };
        let deadline = Deadline::Is(head.deadline);
        let Self { databases, lazy_free, hasher, .. } = self;
        let table = &mut databases[usize::from(head.database)];
        table.store(place, &head.key, payload, deadline, stamp, |_| head.clock, hasher, lazy_free);
    }
}

/// A large value that is coming in, part by part.
pub(crate) struct Restoring {
    head: KeyHead<Vec<u8>>,
    /// Of the whole: bytes, or elements.
    len: usize,
    value: LargeValue,
}

impl Restoring {
    /// Takes in a part; true if it was the last.
    fn take_part(&mut self, part: &[u8]) -> Option<bool> {
        if part.is_empty() {
            return None;
        }
        match &mut self.value {
            LargeValue::Bytes(bytes) => {
                let bytes = Arc::get_mut(bytes).expect("not shared yet");
                if part.len() > self.len - bytes.len() {
                    return None;
                }
                bytes.extend_from_slice(part);
                Some(bytes.len() == self.len)
            }
            LargeValue::Many(collection) => {
                collection.read_part(part, self.len - collection.len())?;
                Some(collection.len() == self.len)
            }
        }
    }
}

/// What a record says of a key besides its value.
struct KeyHead<Key> {
    flags: u8,
    database: u16,
    version: u64,
    clock: u32,
    deadline: Option<i64>,
    key: Key,
}

fn flags_of(record: &Record) -> u8 {
    (if record.deadline().is_some() { HAS_DEADLINE } else { 0 })
        | (if record.is_raw() { IS_RAW } else { 0 })
        | (match record.string() {
            Some(Str::Integer(_)) => IS_INTEGER,
            Some(Str::Bytes(_)) => 0,
            None => IS_COLLECTION,
        })
}

fn write_value(out: &mut Vec<u8>, record: &Record) {
    match record.string() {
        Some(string) => rdb::write_object(out, ValueRef::String(string), Compression::None),
        None => collection::write_exact(out, record),
    }
}

fn write_small(out: &mut Vec<u8>, rank: u32, record: &Record) {
    write_head(out, KEY, rank, record);
    write_value(out, record);
}

fn write_head(out: &mut Vec<u8>, tag: u8, rank: u32, record: &Record) {
    out.push(tag);
    out.push(flags_of(record));
    write_varint(out, rank.into());
    write_varint(out, record.version());
    out.extend_from_slice(&record.clock().to_le_bytes()[..3]);
    if let Some(deadline) = record.deadline() {
        out.extend_from_slice(&deadline.to_le_bytes());
    }
    write_varint(out, record.key().len() as u64);
    out.extend_from_slice(record.key());
}

impl<'a> KeyHead<&'a [u8]> {
    fn read(reader: &mut Reader<'a>, databases: usize) -> Option<Self> {
        let flags = reader.byte()?;
        let database = u16::try_from(reader.varint()?).ok().filter(|&database| usize::from(database) < databases)?;
        let version = reader.varint().filter(|&version| version < VERSION_END)?;
        let &[low, middle, high] = reader.take(3)? else { unreachable!("three bytes were taken") };
        let deadline = if flags & HAS_DEADLINE == 0 { None } else { Some(reader.i64()?) };
        let key_len = reader.varint()?;
        let key = reader.take(key_len)?;
        Some(Self { flags, database, version, clock: u32::from_le_bytes([low, middle, high, 0]), deadline, key })
    }

    fn into_owned(self) -> KeyHead<Vec<u8>> {
        let Self { flags, database, version, clock, deadline, key } = self;
        KeyHead { flags, database, version, clock, deadline, key: key.to_vec() }
    }
}

/// Reads records. Every method answers `None` if there are too few bytes, or they make no sense.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(usize::try_from(len).ok()?)?;
        self.bytes = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|taken| taken[0])
    }

    fn i64(&mut self) -> Option<i64> {
        self.take(8).map(|taken| i64::from_le_bytes(taken.try_into().expect("eight bytes")))
    }

    fn varint(&mut self) -> Option<u64> {
        self.items(Items::number)
    }

    fn items<T>(&mut self, read: impl FnOnce(&mut Items<'a>) -> Option<T>) -> Option<T> {
        let mut items = Items::new(self.bytes);
        let found = read(&mut items)?;
        self.bytes = items.rest();
        Some(found)
    }

    fn value(&mut self, flags: u8) -> Option<Value> {
        if flags & IS_COLLECTION == 0 {
            self.object(flags).map(Value::String)
        } else {
            self.items(collection::read_exact).map(Value::Collection)
        }
    }

    /// A value in the form that `flags` tell of: what was text stays text even if it looks like a number.
    fn object(&mut self, flags: u8) -> Option<StringValue> {
        let mut reader = rdb::Reader::new(self.bytes);
        let Value::String(value) = rdb::read_object(&mut reader, &Limits::default()).ok()? else { return None };
        self.bytes = reader.rest();
        match (flags & IS_INTEGER != 0, value.0) {
            (true, Text::Integer(number)) => Some(StringValue::integer(number)),
            (true, _) => None,
            (false, Text::Bytes { bytes, .. }) => Some(StringValue(Text::Bytes { bytes, raw: flags & IS_RAW != 0 })),
            (false, text) => {
                let bytes = StringValue(text).as_str().to_vec();
                Some(StringValue(Text::Bytes { bytes, raw: flags & IS_RAW != 0 }))
            }
        }
    }
}

mod slots;
mod travel;

pub use travel::{Exporting, Imported, Importing, is_exported};

#[cfg(test)]
mod tests;
