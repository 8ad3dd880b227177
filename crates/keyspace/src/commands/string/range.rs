//! APPEND, GETRANGE, SETRANGE: parts of a string.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::first_key;
use crate::commands::arguments::{STRING_BYTES_MAX, index_range, integer};
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, Expiry, ItoaBuffer, View};

pub(super) const APPEND: DataCommand = DataCommand {
    name: "append",
    since: "2.0.0",
    group: Group::String,
    summary: "Adds bytes to the end of the string under a key.",
    complexity: "O(N) where N is the number of bytes added, amortized: the room of a string that grows is doubled.",
    syntax: "key value",
    arity: 3,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["insert"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(append),
};

fn append(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (key, tail) = (args.at(1), args.at(2));
    let Some(length) = edit.string(key)?.map(|value| value.len()) else {
        edit.set_string(key, tail, Expiry::Clear);
        edit.notify(Class::String, "append", key);
        writer.count(tail.len());
        return Ok(());
    };
    check_length(length as u64, tail)?;
    edit.modify_string(key, |bytes| bytes.extend_from_slice(tail));
    edit.notify(Class::String, "append", key);
    writer.count(length + tail.len());
    Ok(())
}

pub(super) const SETRANGE: DataCommand = DataCommand {
    name: "setrange",
    since: "2.2.0",
    group: Group::String,
    summary: "Overwrites part of the string under a key, from an offset on.",
    complexity: "O(N) where N is the number of bytes written, plus those of the gap if the string has to grow.",
    syntax: "key offset value",
    arity: 4,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(setrange),
};

fn setrange(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (key, patch) = (args.at(1), args.at(3));
    let offset = u64::try_from(integer(args.at(2))?).map_err(|_| Refusal::new("ERR offset is out of range"))?;
    let length = edit.string(key)?.map_or(0, |value| value.len());
    if patch.is_empty() {
        writer.count(length);
        return Ok(());
    }
    check_length(offset, patch)?;
    let (start, end) = (offset as usize, offset as usize + patch.len());
    edit.modify_string(key, |bytes| {
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(patch);
    });
    edit.notify(Class::String, "setrange", key);
    writer.count(length.max(end));
    Ok(())
}

/// Refuses what would end more than [`STRING_BYTES_MAX`] bytes from the beginning.
fn check_length(offset: u64, addition: &[u8]) -> Result<(), Refusal> {
    match offset.checked_add(addition.len() as u64) {
        Some(end) if end <= STRING_BYTES_MAX => Ok(()),
        _ => Err(Refusal::STRING_TOO_LONG),
    }
}

pub(super) const GETRANGE: DataCommand = DataCommand {
    name: "getrange",
    since: "2.4.0",
    group: Group::String,
    summary: "Returns part of the string under a key.",
    complexity: "O(N) where N is the number of bytes answered with.",
    syntax: "key start end",
    arity: 4,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(getrange),
};

pub(super) const SUBSTR: DataCommand = DataCommand {
    name: "substr",
    since: "1.0.0",
    group: Group::String,
    summary: "Returns part of the string under a key; the older name of GETRANGE.",
    complexity: GETRANGE.complexity,
    syntax: "key start end",
    arity: 4,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(getrange),
};

fn getrange(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (start, end) = (integer(args.at(2))?, integer(args.at(3))?);
    let mut buffer = ItoaBuffer::new();
    let value = view.string(args.at(1))?;
    let bytes = value.as_ref().map_or(b"".as_slice(), |value| value.to_bytes(&mut buffer));
    // Ends that cross before the beginning are clamped to it and would meet there.
    let crossed = start < 0 && end < 0 && start > end;
    match index_range(start, end, bytes.len() as u64) {
        Some(range) if !crossed => writer.bulk(&bytes[*range.start() as usize..=*range.end() as usize]),
        _ => writer.bulk(b""),
    }
    Ok(())
}
