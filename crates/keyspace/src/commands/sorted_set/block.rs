//! Taking members from the ends of sorted sets, and waiting for them. What waiting means here is said where lists are
//! waited for.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::pop::{Extreme, Shape, pop_arguments, pop_from_first, pop_several};
use crate::Edit;
use crate::commands::key_specs::{counted_keys, keys_from};
use crate::commands::{Body, DataCommand};

pub(super) const BZPOPMIN: DataCommand = DataCommand {
    name: "bzpopmin",
    since: "5.0.0",
    group: Group::SortedSet,
    summary: "Takes the member with the lowest score of the first sorted set that has any; waits for one if need be.",
    complexity: "O(log N) with N the size of the sorted set.",
    syntax: "key [key ...] timeout",
    arity: -3,
    flags: &[Flag::Write, Flag::Blocking, Flag::Fast],
    categories: &[],
    keys: &[keys_from(1, -2, Access::ReadWrite, &["access", "delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(bzpopmin),
};

pub(super) const BZPOPMAX: DataCommand = DataCommand {
    name: "bzpopmax",
    since: "5.0.0",
    group: Group::SortedSet,
    summary: "Takes the member with the highest score of the first sorted set that has any; waits for one if need be.",
    complexity: "O(log N) with N the size of the sorted set.",
    syntax: "key [key ...] timeout",
    arity: -3,
    flags: &[Flag::Write, Flag::Blocking, Flag::Fast],
    categories: &[],
    keys: &[keys_from(1, -2, Access::ReadWrite, &["access", "delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(bzpopmax),
};

pub(super) const BZMPOP: DataCommand = DataCommand {
    name: "bzmpop",
    since: "7.0.0",
    group: Group::SortedSet,
    summary: "Takes members from an end of the first of several sorted sets that has any; waits for one if need be.",
    complexity: "O(K+M log N) with K the number of keys and M that of the members taken.",
    syntax: "timeout numkeys key [key ...] <MIN | MAX> [COUNT count]",
    arity: -5,
    flags: &[Flag::Write, Flag::Blocking, Flag::MovableKeys],
    categories: &[],
    keys: &[counted_keys(2, Access::ReadWrite, &["access", "delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(bzmpop),
};

fn bzpopmin(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    pop(edit, args, Extreme::Lowest, writer)
}

fn bzpopmax(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    pop(edit, args, Extreme::Highest, writer)
}

fn pop(edit: &mut Edit<'_>, args: Args<'_>, extreme: Extreme, writer: &mut Writer) -> Result<(), Refusal> {
    crate::blocking_timeout(if extreme == Extreme::Lowest { &BZPOPMIN } else { &BZPOPMAX }, args)?;
    for key in args.iter().skip(1).take(args.len() - 2) {
        if edit.view().sorted_set(key)?.is_some() {
            writer.array(3);
            writer.bulk(key);
            pop_several(edit, key, extreme, 1, Shape::Bare, writer)?;
            return Ok(());
        }
    }
    writer.null_array();
    Ok(())
}

fn bzmpop(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    crate::blocking_timeout(&BZMPOP, args)?;
    let (key_count, extreme, count) = pop_arguments(args, 2)?;
    if !pop_from_first(edit, args.iter().skip(3).take(key_count), extreme, count, writer)? {
        writer.null_array();
    }
    Ok(())
}
