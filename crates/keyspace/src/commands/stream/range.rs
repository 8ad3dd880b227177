//! XLEN, XRANGE and XREVRANGE: entries by their ids.

use command::{Access, Flag, Refusal};
use resp::{Args, Writer};

use super::{ON_STREAM, end_id, start_id, write_entries};
use crate::View;
use crate::collection::stream::Direction;
use crate::commands::arguments::{integer, is};
use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};

pub(super) const XLEN: DataCommand = DataCommand {
    name: "xlen",
    summary: "Returns the number of entries in a stream.",
    complexity: "O(1)",
    syntax: "key",
    arity: 2,
    flags: &[Flag::Readonly, Flag::Fast],
    keys: &[first_key(Access::Read, &[])],
    body: Body::Query(xlen),
    ..ON_STREAM
};

fn xlen(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let len = view.stream(args.at(1))?.map_or(0, |stream| stream.entry_count());
    writer.integer(len as i64);
    Ok(())
}

pub(super) const XRANGE: DataCommand = DataCommand {
    name: "xrange",
    summary: "Returns the entries between two ids.",
    complexity: "O(N) where N is the number of entries answered with.",
    syntax: "key start end [COUNT count]",
    arity: -4,
    flags: &[Flag::Readonly],
    keys: &[first_key(Access::Read, &["access"])],
    body: Body::Query(xrange),
    ..ON_STREAM
};

fn xrange(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    answer(view, args, Direction::Up, writer)
}

pub(super) const XREVRANGE: DataCommand = DataCommand {
    name: "xrevrange",
    summary: "Returns the entries between two ids, the last first.",
    syntax: "key end start [COUNT count]",
    body: Body::Query(xrevrange),
    ..XRANGE
};

fn xrevrange(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    answer(view, args, Direction::Down, writer)
}

fn answer(view: &View<'_>, args: Args<'_>, direction: Direction, writer: &mut Writer) -> Result<(), Refusal> {
    let (first, second) = if direction == Direction::Up { (2, 3) } else { (3, 2) };
    let range = (start_id(args.at(first))?, end_id(args.at(second))?);
    let mut count = usize::MAX;
    for index in (4..args.len()).step_by(2) {
        match args.get(index + 1) {
            Some(number) if is(args.at(index), "count") => count = usize::try_from(integer(number)?).unwrap_or(0),
            _ => return Err(Refusal::SYNTAX),
        }
    }
    match view.stream(args.at(1))? {
        None => writer.array(0),
        Some(_) if count == 0 => writer.null_array(),
        Some(stream) => _ = write_entries(writer, stream, range, direction, count),
    }
    Ok(())
}
