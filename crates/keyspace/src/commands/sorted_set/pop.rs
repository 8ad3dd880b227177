//! Taking the members with the lowest or highest scores.
//!
//! Whatever else takes members from the ends of sorted sets, such as a client that has waited for one, does it with the
//! functions here.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Protocol, Writer};

use super::write_score;
use crate::commands::arguments::{at_least, is};
use crate::commands::key_specs::{counted_keys, key_at};
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit};

pub(super) const ZPOPMIN: DataCommand = DataCommand {
    name: "zpopmin",
    since: "5.0.0",
    group: Group::SortedSet,
    summary: "Removes and returns the members of a sorted set with the lowest scores.",
    complexity: "O(M log N) with M the number of members taken.",
    syntax: "key [count]",
    arity: -2,
    flags: &[Flag::Write, Flag::Fast],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["access", "delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(zpopmin),
};

pub(super) const ZPOPMAX: DataCommand = DataCommand {
    name: "zpopmax",
    since: "5.0.0",
    group: Group::SortedSet,
    summary: "Removes and returns the members of a sorted set with the highest scores.",
    complexity: "O(M log N) with M the number of members taken.",
    syntax: "key [count]",
    arity: -2,
    flags: &[Flag::Write, Flag::Fast],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["access", "delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(zpopmax),
};

pub(super) const ZMPOP: DataCommand = DataCommand {
    name: "zmpop",
    since: "7.0.0",
    group: Group::SortedSet,
    summary: "Takes members from an end of the first of several sorted sets that has any.",
    complexity: "O(K+M log N) with K the number of keys and M that of the members taken.",
    syntax: "numkeys key [key ...] <MIN | MAX> [COUNT count]",
    arity: -4,
    flags: &[Flag::Write, Flag::MovableKeys],
    categories: &[],
    keys: &[counted_keys(1, Access::ReadWrite, &["access", "delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(zmpop),
};

/// An end of a sorted set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extreme {
    Lowest,
    Highest,
}

fn zpopmin(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    pop(edit, args, Extreme::Lowest, writer)
}

fn zpopmax(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    pop(edit, args, Extreme::Highest, writer)
}

fn pop(edit: &mut Edit<'_>, args: Args<'_>, extreme: Extreme, writer: &mut Writer) -> Result<(), Refusal> {
    if args.len() > 3 {
        return Err(Refusal::SYNTAX);
    }
    let count = match args.get(2) {
        Some(word) => Some(at_least(0, word, "ERR value is out of range, must be positive")?),
        None => None,
    };
    if edit.view().sorted_set(args.at(1))?.is_none() || count == Some(0) {
        writer.array(0);
        return Ok(());
    }
    let shape = if count.is_some() && writer.protocol() == Protocol::Resp3 { Shape::Pairs } else { Shape::Flat };
    pop_several(edit, args.at(1), extreme, count.unwrap_or(1), shape, writer)?;
    Ok(())
}

/// How members and their scores are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// By turns, in one array.
    Flat,
    /// As an array of pairs.
    Pairs,
    /// By turns, in an array that has been begun.
    Bare,
}

/// Takes up to `count` members, at least one, from an end of a sorted set, and writes them with their scores. False,
/// with nothing written, if there is no such set.
pub(super) fn pop_several(
    edit: &mut Edit<'_>,
    key: &[u8],
    extreme: Extreme,
    count: usize,
    shape: Shape,
    writer: &mut Writer,
) -> Result<bool, Refusal> {
    let left = edit.modify_sorted_set(key, |set| {
        let found = set.as_ref();
        let len = found.len();
        if len == 0 {
            return None;
        }
        let count = count.min(len);
        match shape {
            Shape::Flat => writer.array(count * 2),
            Shape::Pairs => writer.array(count),
            Shape::Bare => {}
        }
        let (ranks, members) = match extreme {
            Extreme::Lowest => (0..count, found.range(0..count)),
            Extreme::Highest => (len - count..len, found.range_back(len - count..len)),
        };
        for (member, score) in members {
            if shape == Shape::Pairs {
                writer.array(2);
            }
            writer.bulk(member);
            write_score(writer, score);
        }
        set.remove_range(ranks);
        Some(len - count)
    })?;
    let Some(left) = left else { return Ok(false) };
    let event = if extreme == Extreme::Lowest { "zpopmin" } else { "zpopmax" };
    edit.notify(Class::SortedSet, event, key);
    if left == 0 {
        edit.notify(Class::Generic, "del", key);
    }
    Ok(true)
}

/// Takes up to `count` members, at least one, from an end of the first of these sorted sets that there is, and writes
/// its key and the members. False, with nothing written, if there is none.
pub(super) fn pop_from_first<'k>(
    edit: &mut Edit<'_>,
    keys: impl Iterator<Item = &'k [u8]>,
    extreme: Extreme,
    count: usize,
    writer: &mut Writer,
) -> Result<bool, Refusal> {
    for key in keys {
        if edit.view().sorted_set(key)?.is_some() {
            writer.array(2);
            writer.bulk(key);
            return pop_several(edit, key, extreme, count, Shape::Pairs, writer);
        }
    }
    Ok(false)
}

fn zmpop(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (key_count, extreme, count) = pop_arguments(args, 1)?;
    if !pop_from_first(edit, args.iter().skip(2).take(key_count), extreme, count, writer)? {
        writer.null_array();
    }
    Ok(())
}

/// What ZMPOP is told from the word `first` on: how many keys there are, an end, and how many members to take.
pub(super) fn pop_arguments(args: Args<'_>, first: usize) -> Result<(usize, Extreme, usize), Refusal> {
    let key_count = at_least(1, args.at(first), "ERR numkeys should be greater than 0")?;
    let extreme_at = key_count.saturating_add(first + 1);
    let extreme = match args.get(extreme_at) {
        Some(word) if is(word, "min") => Extreme::Lowest,
        Some(word) if is(word, "max") => Extreme::Highest,
        _ => return Err(Refusal::SYNTAX),
    };
    let count = match (args.get(extreme_at + 1), args.get(extreme_at + 2), args.get(extreme_at + 3)) {
        (None, ..) => 1,
        (Some(word), Some(count), rest) if is(word, "count") => {
            let count = at_least(1, count, "ERR count should be greater than 0")?;
            if rest.is_some() {
                return Err(Refusal::SYNTAX);
            }
            count
        }
        _ => return Err(Refusal::SYNTAX),
    };
    Ok((key_count, extreme, count))
}
