//! Streams: blocks as listpacks, what is known of the whole, then groups with what is pending and their consumers.

use super::{Compression, Malformed, Reader, kind, read_text, write_length, write_string};
use crate::collection::Collection;
use crate::collection::stream::block::Block;
use crate::collection::stream::group::{Group, rank_of_id};
use crate::collection::stream::{Head, Id, Stream};
use crate::value::{CollectionValue, Kept};

/// How a count of entries that is not known is written.
const UNKNOWN: u64 = u64::MAX;

pub(super) fn write(out: &mut Vec<u8>, stream: &Stream, compression: Compression) {
    write_version(out, stream, compression, true);
}

/// Writes a stream as Redis 5.0 and 6 read it: without what is counted since 7.0, which they do not know.
pub(super) fn write_first_version(out: &mut Vec<u8>, stream: &Stream, compression: Compression) {
    write_version(out, stream, compression, false);
}

fn write_version(out: &mut Vec<u8>, stream: &Stream, compression: Compression, has_counts: bool) {
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
            out.extend_from_slice(&pending.time.to_le_bytes());
            write_length(out, pending.count);
        }
        write_length(out, group.consumers.len() as u64);
        for consumer in group.consumers.iter() {
            write_string(out, &consumer.name, compression);
            out.extend_from_slice(&consumer.seen.to_le_bytes());
            write_length(out, consumer.pending.len() as u64);
            consumer.pending.iter().for_each(|id| out.extend_from_slice(&id.to_bytes()));
        }
    }
}

/// Reads a stream of any version: the first knew neither the first entry nor counts, the third tells when consumers
/// were active.
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
        // The first entry is found anew.
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
        let active = if kind == kind::STREAM_LISTPACKS_3 { i64::from_le_bytes(reader.array()?) } else { seen };
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
    if group.pending.len() == unowned.len() { Ok(group) } else { Err(Malformed::Value) }
}

fn write_id(out: &mut Vec<u8>, id: Id) {
    write_length(out, id.ms);
    write_length(out, id.seq);
}

fn read_id(reader: &mut Reader<'_>) -> Result<Id, Malformed> {
    Ok(Id { ms: reader.length()?, seq: reader.length()? })
}
