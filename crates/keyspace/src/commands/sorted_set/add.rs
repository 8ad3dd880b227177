//! ZADD and ZINCRBY.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::write_score;
use crate::commands::arguments::is;
use crate::commands::key_specs::key_at;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, double};

pub(super) const ZADD: DataCommand = DataCommand {
    name: "zadd",
    since: "1.2.0",
    group: Group::SortedSet,
    summary: "Sets the scores of members of a sorted set.",
    complexity: "O(M log N) with M the number of members given.",
    syntax: "key [NX | XX] [GT | LT] [CH] [INCR] score member [score member ...]",
    arity: -4,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(zadd),
};

pub(super) const ZINCRBY: DataCommand = DataCommand {
    name: "zincrby",
    since: "1.2.0",
    group: Group::SortedSet,
    summary: "Adds to the score of a member of a sorted set.",
    complexity: "O(log N)",
    syntax: "key increment member",
    arity: 4,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["access", "update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(zincrby),
};

/// Which members ZADD touches, and how.
#[derive(Clone, Copy, Default)]
pub(in crate::commands) struct Conditions {
    pub(in crate::commands) if_new: bool,
    pub(in crate::commands) if_there: bool,
    if_greater: bool,
    if_less: bool,
    /// The score is added to the one that the member has.
    adds: bool,
}

impl Conditions {
    /// The score that a member gets, if any. NaN is one that no member can have.
    fn decide(self, old: Option<f64>, given: f64) -> Option<f64> {
        let Some(old) = old else { return (!self.if_there).then_some(given) };
        if self.if_new {
            return None;
        }
        let new = if self.adds { old + given } else { given };
        let fails = (self.if_less && new >= old) || (self.if_greater && new <= old);
        (!fails).then_some(new)
    }
}

fn zadd(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (mut conditions, mut counts_changes, mut first) = (Conditions::default(), false, 2);
    while let Some(word) = args.get(first) {
        match () {
            () if is(word, "nx") => conditions.if_new = true,
            () if is(word, "xx") => conditions.if_there = true,
            () if is(word, "gt") => conditions.if_greater = true,
            () if is(word, "lt") => conditions.if_less = true,
            () if is(word, "ch") => counts_changes = true,
            () if is(word, "incr") => conditions.adds = true,
            () => break,
        }
        first += 1;
    }
    let words = args.len() - first;
    if words == 0 || words % 2 == 1 {
        return Err(Refusal::SYNTAX);
    }
    let Conditions { if_new, if_there, if_greater, if_less, adds } = conditions;
    if if_new && if_there {
        return Err(Refusal::new("ERR XX and NX options at the same time are not compatible"));
    }
    if (if_new && (if_greater || if_less)) || (if_greater && if_less) {
        return Err(Refusal::new("ERR GT, LT, and/or NX options at the same time are not compatible"));
    }
    if adds && words > 2 {
        return Err(Refusal::new("ERR INCR option supports a single increment-element pair"));
    }
    // All scores are read before the first is used: nothing is added by a request that is refused.
    let score = |word| double::parse(word).ok_or(Refusal::NOT_A_FLOAT);
    if adds {
        return increase(edit, args.at(1), score(args.at(first))?, args.at(first + 1), conditions, writer);
    }
    if words == 2 {
        let member = (score(args.at(first))?, args.at(first + 1));
        return add_all(edit, args.at(1), std::iter::once(member), conditions, counts_changes, writer);
    }
    let scores = (first..args.len()).step_by(2).map(|at| score(args.at(at))).collect::<Result<Vec<_>, _>>()?;
    let members = scores.into_iter().zip(args.iter().skip(first + 1).step_by(2));
    add_all(edit, args.at(1), members, conditions, counts_changes, writer)
}

/// Gives members their scores, and answers with how many are new, or have changed, too, if that is wanted.
pub(in crate::commands) fn add_all<'m>(
    edit: &mut Edit<'_>,
    key: &[u8],
    members: impl Iterator<Item = (f64, &'m [u8])>,
    conditions: Conditions,
    counts_changes: bool,
    writer: &mut Writer,
) -> Result<(), Refusal> {
    let (mut added, mut updated) = (0, 0);
    edit.modify_sorted_set(key, |set| {
        for (score, member) in members {
            let mut new = None;
            let old = set.update(member, |old| {
                new = conditions.decide(old, score);
                new
            });
            added += usize::from(old.is_none() && new.is_some());
            updated += usize::from(old.is_some() && new.is_some() && old != new);
        }
    })?;
    writer.count(if counts_changes { added + updated } else { added });
    if added + updated > 0 {
        edit.notify(Class::SortedSet, "zadd", key);
    }
    Ok(())
}

/// Adds to a score, and answers with what it has become.
fn increase(
    edit: &mut Edit<'_>,
    key: &[u8],
    increment: f64,
    member: &[u8],
    conditions: Conditions,
    writer: &mut Writer,
) -> Result<(), Refusal> {
    let mut new = None;
    let old = edit.modify_sorted_set(key, |set| {
        set.update(member, |old| {
            new = conditions.decide(old, increment);
            new.filter(|new| !new.is_nan())
        })
    })?;
    match new {
        None => writer.null(),
        Some(new) if new.is_nan() => return Err(Refusal::new("ERR resulting score is not a number (NaN)")),
        Some(new) => {
            write_score(writer, new);
            if old != Some(new) {
                edit.notify(Class::SortedSet, "zincr", key);
            }
        }
    }
    Ok(())
}

fn zincrby(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let increment = double::parse(args.at(2)).ok_or(Refusal::NOT_A_FLOAT)?;
    let conditions = Conditions { adds: true, ..Conditions::default() };
    increase(edit, args.at(1), increment, args.at(3), conditions, writer)
}
