//! Taking items from lists, and waiting for them.
//!
//! Here is only what happens when there is something, or when waiting is out of the question, as inside MULTI: a client
//! that has to wait is told null, and the code that runs the command sees to the waiting. See
//! [`crate::blocking_timeout`].

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::pop::{Batch, move_item, move_items, pop_arguments, pop_from_first, pop_one};
use crate::commands::key_specs::{counted_keys, key_at, keys_from};
use crate::commands::{Body, DataCommand};
use crate::{Edit, End};

pub(super) const BLPOP: DataCommand = DataCommand {
    name: "blpop",
    since: "2.0.0",
    group: Group::List,
    summary: "Takes the item at the head of the first of several lists that has any; waits for one if need be.",
    complexity: "O(N) with N the number of keys.",
    syntax: "key [key ...] timeout",
    arity: -3,
    flags: &[Flag::Write, Flag::Blocking],
    categories: &[],
    keys: &[keys_from(1, -2, Access::ReadWrite, &["access", "delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(blpop),
};

pub(super) const BRPOP: DataCommand = DataCommand {
    name: "brpop",
    since: "2.0.0",
    group: Group::List,
    summary: "Takes the item at the tail of the first of several lists that has any; waits for one if need be.",
    complexity: "O(N) with N the number of keys.",
    syntax: "key [key ...] timeout",
    arity: -3,
    flags: &[Flag::Write, Flag::Blocking],
    categories: &[],
    keys: &[keys_from(1, -2, Access::ReadWrite, &["access", "delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(brpop),
};

pub(super) const BLMPOP: DataCommand = DataCommand {
    name: "blmpop",
    since: "7.0.0",
    group: Group::List,
    summary: "Takes items from an end of the first of several lists that has any; waits for one if need be.",
    complexity: "O(N+M) with N the number of keys and M that of the items taken.",
    syntax: "timeout numkeys key [key ...] <LEFT | RIGHT> [COUNT count]",
    arity: -5,
    flags: &[Flag::Write, Flag::Blocking, Flag::MovableKeys],
    categories: &[],
    keys: &[counted_keys(2, Access::ReadWrite, &["access", "delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(blmpop),
};

pub(super) const BLMOVE: DataCommand = DataCommand {
    name: "blmove",
    since: "6.2.0",
    group: Group::List,
    summary: "Moves an item from an end of a list to an end of another; waits for one if need be.",
    complexity: "O(1)",
    syntax: "source destination <LEFT | RIGHT> <LEFT | RIGHT> timeout",
    arity: 6,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Blocking],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["access", "delete"]), key_at(2, Access::ReadWrite, &["insert"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(blmove),
};

pub(super) const BLMOVEM: DataCommand = DataCommand {
    name: "blmovem",
    since: "8.10.0",
    summary: "Moves items from an end of a list to an end of another; waits for them if need be.",
    complexity: "O(N) with N the number of items moved.",
    syntax: "source destination <LEFT | RIGHT> <LEFT | RIGHT> timeout [<COUNT count | EXACTLY exactly> <OBO | BULK>]",
    arity: -6,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Blocking],
    body: Body::Mutate(blmovem),
    ..BLMOVE
};

pub(super) const BRPOPLPUSH: DataCommand = DataCommand {
    name: "brpoplpush",
    since: "2.2.0",
    group: Group::List,
    summary: "Moves the item at the tail of a list to the head of another; waits for one if need be.",
    complexity: "O(1)",
    syntax: "source destination timeout",
    arity: 4,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Blocking],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["access", "delete"]), key_at(2, Access::ReadWrite, &["insert"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(brpoplpush),
};

fn blpop(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    pop(edit, args, End::Left, writer)
}

fn brpop(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    pop(edit, args, End::Right, writer)
}

fn pop(edit: &mut Edit<'_>, args: Args<'_>, end: End, writer: &mut Writer) -> Result<(), Refusal> {
    crate::blocking_timeout(if end == End::Left { &BLPOP } else { &BRPOP }, args)?;
    for key in args.iter().skip(1).take(args.len() - 2) {
        if edit.view().list(key)?.is_some() {
            writer.array(2);
            writer.bulk(key);
            pop_one(edit, key, end, writer)?;
            return Ok(());
        }
    }
    writer.null_array();
    Ok(())
}

fn blmpop(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    crate::blocking_timeout(&BLMPOP, args)?;
    let (key_count, end, count) = pop_arguments(args, 2)?;
    if !pop_from_first(edit, args.iter().skip(3).take(key_count), end, count, writer)? {
        writer.null_array();
    }
    Ok(())
}

fn blmove(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (from, to) = (super::end(args.at(3))?, super::end(args.at(4))?);
    crate::blocking_timeout(&BLMOVE, args)?;
    if !move_item(edit, args.at(1), args.at(2), from, to, writer)? {
        writer.null();
    }
    Ok(())
}

fn blmovem(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (from, to) = (super::end(args.at(3))?, super::end(args.at(4))?);
    crate::blocking_timeout(&BLMOVEM, args)?;
    let batch = Batch::parse(args, 6)?;
    if !move_items(edit, args.at(1), args.at(2), (from, to), &batch, writer)? {
        writer.null_array();
    }
    Ok(())
}

fn brpoplpush(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    crate::blocking_timeout(&BRPOPLPUSH, args)?;
    if !move_item(edit, args.at(1), args.at(2), End::Right, End::Left, writer)? {
        writer.null();
    }
    Ok(())
}
