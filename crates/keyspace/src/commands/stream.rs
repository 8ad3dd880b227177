//! Streams: entries in the order in which they were added, and groups of consumers that share the work on them.

mod add;
mod claim;
mod delete;
mod group;
mod info;
mod pending;
mod producers;
mod range;
pub(crate) mod read;
mod release;

use command::Refusal;
use resp::Writer;

pub(super) use add::XSETID_OF_LEVEL_1;
pub(super) use group::{CREATE_OF_LEVEL_1, SETID_OF_LEVEL_1};

use super::DataCommand;
use crate::collection::stream::block::Entry;
use crate::collection::stream::{Direction, Id, Stream};

/// Every stream command.
pub(super) const COMMANDS: &[&DataCommand] = &[
    &add::XADD,
    &add::XTRIM,
    &add::XDEL,
    &delete::XDELEX,
    &delete::XACKDEL,
    &add::XSETID,
    &producers::XCFGSET,
    &producers::XIDMPRECORD,
    &range::XLEN,
    &range::XRANGE,
    &range::XREVRANGE,
    &read::XREAD,
    &read::XREADGROUP,
    &group::XGROUP,
    &group::XACK,
    &release::XNACK,
    &pending::XPENDING,
    &claim::XCLAIM,
    &claim::XAUTOCLAIM,
    &info::XINFO,
];

/// What is common to commands that take the key of a stream as their first word.
const ON_STREAM: DataCommand = DataCommand { since: "5.0.0", group: command::Group::Stream, ..super::BLANK };

/// An id of which the second number may be missing; neither `-` nor `+`.
fn strict_id(word: &[u8], missing_seq: u64) -> Result<Id, Refusal> {
    Id::parse(word, missing_seq).ok_or(Refusal::STREAM_ID)
}

/// An id, `-` for the lowest or `+` for the highest.
fn open_id(word: &[u8], missing_seq: u64) -> Result<Id, Refusal> {
    match word {
        b"-" => Ok(Id::MIN),
        b"+" => Ok(Id::MAX),
        _ => strict_id(word, missing_seq),
    }
}

/// Where a range begins; behind the id if `(` stands before it.
fn start_id(word: &[u8]) -> Result<Id, Refusal> {
    match word {
        [b'(', id @ ..] if !id.is_empty() => {
            strict_id(id, 0)?.next().ok_or(Refusal::new("ERR invalid start ID for the interval"))
        }
        _ => open_id(word, 0),
    }
}

/// Where a range ends; before the id if `(` stands before it.
fn end_id(word: &[u8]) -> Result<Id, Refusal> {
    match word {
        [b'(', id @ ..] if !id.is_empty() => {
            strict_id(id, u64::MAX)?.previous().ok_or(Refusal::new("ERR invalid end ID for the interval"))
        }
        _ => open_id(word, u64::MAX),
    }
}

/// The group that a command names is not there.
fn no_group(key: &[u8], group: &[u8]) -> Refusal {
    let (key, group) = (String::from_utf8_lossy(key), String::from_utf8_lossy(group));
    Refusal::new(format!("NOGROUP No such key '{key}' or consumer group '{group}'"))
}

/// The same in the words of XGROUP and XINFO.
fn no_group_of_key(key: &[u8], group: &[u8]) -> Refusal {
    let (key, group) = (String::from_utf8_lossy(key), String::from_utf8_lossy(group));
    Refusal::new(format!("NOGROUP No such consumer group '{group}' for key name '{key}'"))
}

/// Words behind a subcommand make no sense.
fn subcommand_syntax(container: &str, word: &[u8]) -> Refusal {
    const SHOWN_BYTES_MAX: usize = 128;
    let word = String::from_utf8_lossy(&word[..word.len().min(SHOWN_BYTES_MAX)]);
    Refusal::new(format!("ERR unknown subcommand or wrong number of arguments for '{word}'. Try {container} HELP."))
}

fn write_id(writer: &mut Writer, id: Id) {
    writer.bulk(id.text().as_bytes());
}

fn write_entry(writer: &mut Writer, entry: &Entry<'_>) {
    writer.array(2);
    write_entry_parts(writer, entry);
}

/// Its id, and its fields and values.
fn write_entry_parts(writer: &mut Writer, entry: &Entry<'_>) {
    write_id(writer, entry.id);
    writer.array(2 * entry.len());
    for (field, value) in entry.pairs() {
        field.write_bulk(writer);
        value.write_bulk(writer);
    }
}

/// Up to `count` entries of a range, as an array. Answers how many there were.
fn write_entries(
    writer: &mut Writer,
    stream: &Stream,
    (start, end): (Id, Id),
    direction: Direction,
    count: usize,
) -> usize {
    let found = stream.count(start, end, count);
    writer.array(found);
    stream.visit(start, end, direction, found, |entry| write_entry(writer, &entry));
    found
}

#[cfg(test)]
mod tests;
