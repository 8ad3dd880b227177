//! Streams: blocks as listpacks, what is known of the whole, then groups with what is pending and their consumers.

use super::{Compression, Malformed, Reader, kind, read_text, write_length, write_string};
use crate::collection::Collection;
use crate::collection::stream::block::Block;
use crate::collection::stream::group::{GIVEN_UP, Group, rank_of_id};
use crate::collection::stream::idempotence::{DURATIONS_S, IDS_MAX_RANGE, Idempotence};
use crate::collection::stream::{Head, Id, Stream};
use crate::value::{CollectionValue, Kept};

/// How a count of entries that is not known is written.
const UNKNOWN: u64 = u64::MAX;

/// A consumer of this name has in older versions what nobody has: XPENDING shows it with this name.
const NOBODY: &[u8] = b"";

/// The kind of a stream that says all: a later one only if it must be.
pub(super) fn kind_of(stream: &Stream) -> u8 {
    if stream.has_released() {
        kind::STREAM_LISTPACKS_5
    } else if stream.idempotence().is_some() {
        kind::STREAM_LISTPACKS_4
    } else {
        kind::STREAM_LISTPACKS_2
    }
}

/// Writes a stream as one of this kind. Older kinds lack what came with later ones: the first, which Redis 5.0 and 6
/// read, what is counted since 7.0; all before that of Redis 8.6 what is remembered of producers; and in all before
/// that of 8.8 a consumer without a name has what was released.
pub(super) fn write(kind: u8, out: &mut Vec<u8>, stream: &Stream, compression: Compression) {
    let has_counts = kind != kind::STREAM_LISTPACKS;
    write_length(out, stream.blocks().len() as u64);
    for block in stream.blocks().iter() {
        write_string(out, &block.first().to_bytes(), compression);
        write_string(out, &block.to_listpack(), compression);
    }
    write_length(out, stream.entry_count());
    let Head { last, deleted_max, added } = stream.head();
    write_id(out, last);
    if has_counts {
        write_id(out, stream.first());
        write_id(out, deleted_max);
        write_length(out, added);
    }
    write_length(out, stream.groups().len() as u64);
    for group in stream.groups().iter() {
        write_string(out, &group.name, compression);
        write_id(out, group.last);
        if has_counts {
            write_length(out, group.read.unwrap_or(UNKNOWN));
        }
        write_length(out, group.pending.len() as u64);
        for pending in group.pending.iter() {
            out.extend_from_slice(&pending.id.to_bytes());
            out.extend_from_slice(&pending.time().to_le_bytes());
            write_length(out, pending.shown_count() as u64);
        }
        write_consumers(kind, out, group, compression);
        if kind == kind::STREAM_LISTPACKS_5 {
            write_length(out, group.released_count() as u64);
            group.released().for_each(|id| out.extend_from_slice(&id.to_bytes()));
        }
    }
    if has_producers(kind) {
        write_idempotence(out, stream.idempotence().unwrap_or(&Idempotence::new()), compression);
    }
}

/// True for kinds that tell what is remembered of producers.
fn has_producers(kind: u8) -> bool {
    matches!(kind, kind::STREAM_LISTPACKS_4 | kind::STREAM_LISTPACKS_5)
}

/// True for kinds that tell when a consumer was last given anything.
fn has_active_time(kind: u8) -> bool {
    kind == kind::STREAM_LISTPACKS_3 || has_producers(kind)
}

fn write_consumers(kind: u8, out: &mut Vec<u8>, group: &Group, compression: Compression) {
    let stands_for_nobody = kind != kind::STREAM_LISTPACKS_5 && group.released_count() > 0;
    let makes_nobody = stands_for_nobody && group.consumer(NOBODY).is_none();
    write_length(out, group.consumers.len() as u64 + u64::from(makes_nobody));
    let mut write_one = |name: &[u8], seen: i64, active: Option<i64>, ids: Vec<Id>| {
        write_string(out, name, compression);
        out.extend_from_slice(&seen.to_le_bytes());
        if has_active_time(kind) {
            out.extend_from_slice(&active.unwrap_or(-1).to_le_bytes());
        }
        write_length(out, ids.len() as u64);
        ids.iter().for_each(|id| out.extend_from_slice(&id.to_bytes()));
    };
    if makes_nobody {
        write_one(NOBODY, 0, None, group.released().collect());
    }
    for consumer in group.consumers.iter() {
        let mut ids: Vec<Id> = consumer.pending.iter().copied().collect();
        if stands_for_nobody && &*consumer.name == NOBODY {
            ids.extend(group.released());
        }
        write_one(&consumer.name, consumer.seen, consumer.active, ids);
    }
}

fn write_idempotence(out: &mut Vec<u8>, idempotence: &Idempotence, compression: Compression) {
    write_length(out, idempotence.duration_s);
    write_length(out, idempotence.ids_max);
    let producers = idempotence.producers();
    write_length(out, producers.len() as u64);
    for (name, ids) in producers {
        write_string(out, name, compression);
        write_length(out, ids.len() as u64);
        for (own, id) in ids {
            write_string(out, own, compression);
            write_id(out, id);
        }
    }
    write_length(out, idempotence.added);
    write_length(out, idempotence.duplicates);
}

/// Reads a stream of any version: the first knew neither the first entry nor counts, the third tells when consumers
/// were active, the fourth what producers have added, the fifth what was released.
pub(super) fn read(kind: u8, reader: &mut Reader<'_>) -> Result<CollectionValue, Malformed> {
    let has_counts = kind != kind::STREAM_LISTPACKS;
    let mut blocks = Vec::new();
    for _ in 0..reader.length()? {
        let first = read_text(reader)?;
        let first = Id::from_bytes(first.as_ref().try_into().map_err(|_| Malformed::Value)?);
        let listpack = read_text(reader)?;
        blocks.push(Block::from_listpack(first, &listpack).ok_or(Malformed::Value)?);
    }
    let len = reader.length()?;
    let mut head = Head { last: read_id(reader)?, deleted_max: Id::MIN, added: len };
    if has_counts {
        // The first entry is found again.
        read_id(reader)?;
        head.deleted_max = read_id(reader)?;
        head.added = reader.length()?;
    }
    let mut stream = Stream::of(blocks, head, Vec::new()).ok_or(Malformed::Value)?;
    if stream.entry_count() != len {
        return Err(Malformed::Value);
    }
    for _ in 0..reader.length()? {
        let mut group = read_group(kind, reader)?;
        if !has_counts {
            group.read = stream.added_up_to(group.last);
        }
        if !stream.add_group(group) {
            return Err(Malformed::Value);
        }
    }
    if has_producers(kind) {
        let (idempotence, is_of_use) = read_idempotence(reader)?;
        if is_of_use {
            stream.set_idempotence(idempotence);
        }
    }
    Ok(CollectionValue(Kept::Large(Box::new(Collection::Stream(Box::new(stream))))))
}

fn read_group(kind: u8, reader: &mut Reader<'_>) -> Result<Group, Malformed> {
    let mut group = Group::new(&read_text(reader)?, read_id(reader)?, None);
    if kind != kind::STREAM_LISTPACKS {
        group.read = Some(reader.length()?).filter(|&read| read != UNKNOWN);
    }
    let mut unowned = Vec::new();
    for _ in 0..reader.length()? {
        let (id, time) = (Id::from_bytes(reader.array()?), i64::from_le_bytes(reader.array()?));
        unowned.push((id, time, reader.length()?));
    }
    unowned.sort_unstable_by_key(|(id, ..)| *id);
    let is_twice = |pair: &[(Id, i64, u64)]| pair[0].0 == pair[1].0;
    if unowned.windows(2).any(is_twice) {
        return Err(Malformed::Value);
    }
    for _ in 0..reader.length()? {
        let name = read_text(reader)?;
        let seen = i64::from_le_bytes(reader.array()?);
        // Older versions do not tell the two times apart.
        let active = if has_active_time(kind) { i64::from_le_bytes(reader.array()?) } else { seen };
        if !group.add_consumer(&name, seen) {
            return Err(Malformed::Value);
        }
        group.set_active(&name, Some(active).filter(|&active| active >= 0));
        for _ in 0..reader.length()? {
            let id = Id::from_bytes(reader.array()?);
            let place = unowned.binary_search_by_key(&id, |(id, ..)| *id).map_err(|_| Malformed::Value)?;
            if rank_of_id(&group.pending, id).is_ok() {
                return Err(Malformed::Value);
            }
            let (_, time, count) = unowned[place];
            group.assign(id, &name, time, count);
        }
    }
    if kind == kind::STREAM_LISTPACKS_5 {
        for _ in 0..reader.length()? {
            let id = Id::from_bytes(reader.array()?);
            let place = unowned.binary_search_by_key(&id, |(id, ..)| *id).map_err(|_| Malformed::Value)?;
            if rank_of_id(&group.pending, id).is_ok() {
                return Err(Malformed::Value);
            }
            // The highest count that Redis has is its way to say that it is not worth another try.
            let (_, _, count) = unowned[place];
            group.release(id, if count >= i64::MAX as u64 { GIVEN_UP } else { count });
        }
    }
    if group.pending.len() == unowned.len() { Ok(group) } else { Err(Malformed::Value) }
}

/// What is remembered of producers, and whether it differs from what every stream begins with.
fn read_idempotence(reader: &mut Reader<'_>) -> Result<(Idempotence, bool), Malformed> {
    let mut idempotence = Idempotence::new();
    let usual = (idempotence.duration_s, idempotence.ids_max);
    (idempotence.duration_s, idempotence.ids_max) = (reader.length()?, reader.length()?);
    if !DURATIONS_S.contains(&idempotence.duration_s) || !IDS_MAX_RANGE.contains(&idempotence.ids_max) {
        return Err(Malformed::Value);
    }
    for _ in 0..reader.length()? {
        let name = read_text(reader)?;
        if name.is_empty() || !idempotence.put_producer(&name) {
            return Err(Malformed::Value);
        }
        // Those that would be forgotten with the next one are not taken in, so that no later entry has many to forget.
        let count = reader.length()?;
        let passed = count.saturating_sub(idempotence.ids_max);
        for nth in 0..count {
            let (own, id) = (read_text(reader)?, read_id(reader)?);
            if own.is_empty() || nth >= passed && !idempotence.put_id(&name, &own, id) {
                return Err(Malformed::Value);
            }
        }
    }
    (idempotence.added, idempotence.duplicates) = (reader.length()?, reader.length()?);
    let is_told = idempotence.part_count() > 0 || idempotence.added > 0 || idempotence.duplicates > 0;
    let is_of_use = is_told || usual != (idempotence.duration_s, idempotence.ids_max);
    Ok((idempotence, is_of_use))
}

fn write_id(out: &mut Vec<u8>, id: Id) {
    write_length(out, id.ms);
    write_length(out, id.seq);
}

fn read_id(reader: &mut Reader<'_>) -> Result<Id, Malformed> {
    Ok(Id { ms: reader.length()?, seq: reader.length()? })
}
