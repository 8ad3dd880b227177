//! Taking members out of sorted sets.

use std::ops::Range;

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::range::{name_cut, score_cut};
use crate::commands::arguments::{integer, ranks_between};
use crate::commands::key_specs::key_at;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, SortedSet};

pub(super) const ZREM: DataCommand = DataCommand {
    name: "zrem",
    since: "1.2.0",
    group: Group::SortedSet,
    summary: "Removes members of a sorted set.",
    complexity: "O(M log N) with M the number of members given.",
    syntax: "key member [member ...]",
    arity: -3,
    flags: &[Flag::Write, Flag::Fast],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(zrem),
};

pub(super) const ZREMRANGEBYRANK: DataCommand = DataCommand {
    name: "zremrangebyrank",
    since: "2.0.0",
    group: Group::SortedSet,
    summary: "Removes the members of a sorted set between two ranks.",
    complexity: "O(M log N) with M the number of members taken out.",
    syntax: "key start stop",
    arity: 4,
    flags: &[Flag::Write],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(zremrangebyrank),
};

pub(super) const ZREMRANGEBYSCORE: DataCommand = DataCommand {
    name: "zremrangebyscore",
    since: "1.2.0",
    group: Group::SortedSet,
    summary: "Removes the members of a sorted set between two scores.",
    complexity: "O(M log N) with M the number of members taken out.",
    syntax: "key min max",
    arity: 4,
    flags: &[Flag::Write],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(zremrangebyscore),
};

pub(super) const ZREMRANGEBYLEX: DataCommand = DataCommand {
    name: "zremrangebylex",
    since: "2.8.9",
    group: Group::SortedSet,
    summary: "Removes the members between two names of a sorted set with equal scores.",
    complexity: "O(M log N) with M the number of members taken out.",
    syntax: "key min max",
    arity: 4,
    flags: &[Flag::Write],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(zremrangebylex),
};

fn zrem(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    let (removed, is_empty) = edit.modify_sorted_set(key, |set| {
        let removed = args.from(2).iter().filter(|member| set.remove(member)).count();
        (removed, removed > 0 && set.as_ref().iter().next().is_none())
    })?;
    report(edit, key, removed, is_empty, "zrem", writer);
    Ok(())
}

fn zremrangebyrank(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (start, end) = (integer(args.at(2))?, integer(args.at(3))?);
    remove(edit, args.at(1), |set| ranks_between(start, end, set.len()), "zremrangebyrank", writer)
}

fn zremrangebyscore(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (low, high) = (score_cut(args.at(2), true)?, score_cut(args.at(3), false)?);
    remove(edit, args.at(1), |set| set.between(low, high), "zremrangebyscore", writer)
}

fn zremrangebylex(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (low, high) = (name_cut(args.at(2), true)?, name_cut(args.at(3), false)?);
    remove(edit, args.at(1), |set| set.between(low, high), "zremrangebylex", writer)
}

fn remove(
    edit: &mut Edit<'_>,
    key: &[u8],
    ranks: impl FnOnce(SortedSet<'_>) -> Range<usize>,
    event: &'static str,
    writer: &mut Writer,
) -> Result<(), Refusal> {
    let (removed, is_empty) = edit.modify_sorted_set(key, |set| {
        let ranks = ranks(set.as_ref());
        let removed = ranks.len();
        set.remove_range(ranks);
        (removed, removed > 0 && set.as_ref().iter().next().is_none())
    })?;
    report(edit, key, removed, is_empty, event, writer);
    Ok(())
}

fn report(edit: &mut Edit<'_>, key: &[u8], removed: usize, is_empty: bool, event: &'static str, writer: &mut Writer) {
    writer.count(removed);
    if removed > 0 {
        edit.notify(Class::SortedSet, event, key);
        if is_empty {
            edit.notify(Class::Generic, "del", key);
        }
    }
}
