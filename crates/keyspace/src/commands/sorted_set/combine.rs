//! Unions, intersections and differences of sorted sets and sets.

use std::borrow::Cow;

use command::{Access, Flag, Group, Refusal, Span};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use resp::{Args, Writer};

use super::write_members;
use crate::collection::sorted_set;
use crate::commands::arguments::{at_least, integer, is};
use crate::commands::key_specs::{counted_keys, key_at};
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, ItoaBuffer, Set, SortedSet, Str, Value, ValueRef, View, double};

pub(super) const ZUNION: DataCommand = DataCommand {
    name: "zunion",
    since: "6.2.0",
    group: Group::SortedSet,
    summary: "Returns the members that any of several sorted sets has, with their combined scores.",
    complexity: "O(N+M log M) with N the size of all inputs and M that of the result.",
    syntax: "numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX | COUNT>] [WITHSCORES]",
    arity: -3,
    flags: &[Flag::Readonly, Flag::MovableKeys],
    categories: &[],
    keys: &[counted_keys(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(zunion),
};

pub(super) const ZINTER: DataCommand = DataCommand {
    name: "zinter",
    since: "6.2.0",
    group: Group::SortedSet,
    summary: "Returns the members that all of several sorted sets have, with their combined scores.",
    complexity: "O(N*K+M log M) with N the size of the smallest of K inputs and M that of the result.",
    syntax: "numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX | COUNT>] [WITHSCORES]",
    arity: -3,
    flags: &[Flag::Readonly, Flag::MovableKeys],
    categories: &[],
    keys: &[counted_keys(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(zinter),
};

pub(super) const ZDIFF: DataCommand = DataCommand {
    name: "zdiff",
    since: "6.2.0",
    group: Group::SortedSet,
    summary: "Returns the members of the first of several sorted sets that no other has.",
    complexity: "O(N*K+M log M) with N the size of the first of K inputs and M that of the result.",
    syntax: "numkeys key [key ...] [WITHSCORES]",
    arity: -3,
    flags: &[Flag::Readonly, Flag::MovableKeys],
    categories: &[],
    keys: &[counted_keys(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(zdiff),
};

pub(super) const ZINTERCARD: DataCommand = DataCommand {
    name: "zintercard",
    since: "7.0.0",
    group: Group::SortedSet,
    summary: "Counts the members that all of several sorted sets have, up to a limit.",
    complexity: "O(N*K) with N the size of the smallest of K inputs.",
    syntax: "numkeys key [key ...] [LIMIT limit]",
    arity: -3,
    flags: &[Flag::Readonly, Flag::MovableKeys],
    categories: &[],
    keys: &[counted_keys(1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(zintercard),
};

pub(super) const ZUNIONSTORE: DataCommand = DataCommand {
    name: "zunionstore",
    since: "2.0.0",
    group: Group::SortedSet,
    summary: "Stores the members that any of several sorted sets has under another key.",
    complexity: "O(N+M log M) with N the size of all inputs and M that of the result.",
    syntax: "destination numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX | COUNT>]",
    arity: -4,
    flags: &[Flag::Write, Flag::Denyoom, Flag::MovableKeys],
    categories: &[],
    keys: &[key_at(1, Access::Overwrite, &["update"]), counted_keys(2, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(zunionstore),
};

pub(super) const ZINTERSTORE: DataCommand = DataCommand {
    name: "zinterstore",
    since: "2.0.0",
    group: Group::SortedSet,
    summary: "Stores the members that all of several sorted sets have under another key.",
    complexity: "O(N*K+M log M) with N the size of the smallest of K inputs and M that of the result.",
    syntax: "destination numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX | COUNT>]",
    arity: -4,
    flags: &[Flag::Write, Flag::Denyoom, Flag::MovableKeys],
    categories: &[],
    keys: &[key_at(1, Access::Overwrite, &["update"]), counted_keys(2, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(zinterstore),
};

pub(super) const ZDIFFSTORE: DataCommand = DataCommand {
    name: "zdiffstore",
    since: "6.2.0",
    group: Group::SortedSet,
    summary: "Stores the members of the first of several sorted sets that no other has under another key.",
    complexity: "O(N*K+M log M) with N the size of the first of K inputs and M that of the result.",
    syntax: "destination numkeys key [key ...]",
    arity: -4,
    flags: &[Flag::Write, Flag::Denyoom, Flag::MovableKeys],
    categories: &[],
    keys: &[key_at(1, Access::Overwrite, &["update"]), counted_keys(2, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(zdiffstore),
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Union,
    Intersection,
    Difference,
}

#[derive(Clone, Copy)]
enum Aggregate {
    Sum,
    Least,
    Greatest,
    /// Of the weights, whatever the scores are.
    Count,
}

impl Aggregate {
    /// What a score in an input of this weight adds.
    fn share(self, weight: f64, score: f64) -> f64 {
        if let Self::Count = self { weight } else { weight * score }
    }

    /// Two scores put together; what is not a number becomes zero.
    fn join(self, left: f64, right: f64) -> f64 {
        match self {
            Self::Sum | Self::Count => or_zero(left + right),
            Self::Least => {
                if right < left {
                    right
                } else {
                    left
                }
            }
            Self::Greatest => {
                if right > left {
                    right
                } else {
                    left
                }
            }
        }
    }
}

fn or_zero(score: f64) -> f64 {
    if score.is_nan() { 0.0 } else { score }
}

/// A set, sorted or not, or nothing.
#[derive(Clone, Copy)]
enum Source<'a> {
    Sorted(SortedSet<'a>),
    Plain(Set<'a>),
    Absent,
}

impl<'a> Source<'a> {
    fn of(view: &View<'a>, key: &[u8]) -> Result<Self, Refusal> {
        match view.entry(key).map(|entry| entry.value()) {
            None => Ok(Self::Absent),
            Some(ValueRef::SortedSet(set)) => Ok(Self::Sorted(set)),
            Some(ValueRef::Set(set)) => Ok(Self::Plain(set)),
            Some(_) => Err(Refusal::WRONG_TYPE),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Sorted(set) => set.len(),
            Self::Plain(set) => set.len(),
            Self::Absent => 0,
        }
    }

    /// The score of a member; those of a plain set have 1.
    fn score(&self, member: &[u8]) -> Option<f64> {
        match self {
            Self::Sorted(set) => set.score(member),
            Self::Plain(set) => set.contains(member).then_some(1.0),
            Self::Absent => None,
        }
    }

    fn for_each(&self, mut visit: impl FnMut(Cow<'a, [u8]>, f64)) {
        match self {
            Self::Sorted(set) => set.iter().for_each(|(member, score)| visit(Cow::Borrowed(member), score)),
            Self::Plain(set) => set.iter().for_each(|member| match member {
                Str::Bytes(member) => visit(Cow::Borrowed(member), 1.0),
                Str::Integer(number) => visit(Cow::Owned(ItoaBuffer::new().format(number).to_vec()), 1.0),
            }),
            Self::Absent => {}
        }
    }
}

/// What is asked for.
struct Request<'a> {
    sources: Vec<(Source<'a>, f64)>,
    aggregate: Aggregate,
    with_scores: bool,
    /// Count no further; for ZINTERCARD.
    limit: usize,
}

/// What becomes of the result.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Returned,
    Stored,
    Counted,
}

type Members<'a> = Vec<(Cow<'a, [u8]>, f64)>;

impl<'a> Request<'a> {
    /// Reads everything from the number of keys, at the word `first`, on.
    fn parse(view: &View<'a>, args: Args<'_>, first: usize, operation: Operation, used: Use) -> Result<Self, Refusal> {
        let count = integer(args.at(first))?;
        if count < 1 {
            let name = String::from_utf8_lossy(args.at(0)).to_lowercase();
            return Err(Refusal::new(format!("ERR at least 1 input key is needed for '{name}' command")));
        }
        let count = usize::try_from(count).ok().filter(|&count| count < args.len() - first).ok_or(Refusal::SYNTAX)?;
        let keys = args.iter().skip(first + 1).take(count);
        let sources = keys.map(|key| Ok((Source::of(view, key)?, 1.0))).collect::<Result<_, Refusal>>()?;
        let mut request = Self { sources, aggregate: Aggregate::Sum, with_scores: false, limit: 0 };
        let combines = operation != Operation::Difference && used != Use::Counted;
        let mut next = first + 1 + count;
        while let Some(option) = args.get(next) {
            let left = args.len() - next - 1;
            match () {
                () if combines && left >= count && is(option, "weights") => {
                    for ((_, weight), word) in request.sources.iter_mut().zip(args.iter().skip(next + 1)) {
                        let complaint = || Refusal::new("ERR weight value is not a float");
                        *weight = double::parse(word).ok_or_else(complaint)?;
                    }
                    next += count;
                }
                () if combines && left >= 1 && is(option, "aggregate") => {
                    next += 1;
                    request.aggregate = match args.at(next) {
                        word if is(word, "sum") => Aggregate::Sum,
                        word if is(word, "min") => Aggregate::Least,
                        word if is(word, "max") => Aggregate::Greatest,
                        word if is(word, "count") => Aggregate::Count,
                        _ => return Err(Refusal::SYNTAX),
                    };
                }
                () if used == Use::Returned && is(option, "withscores") => request.with_scores = true,
                () if used == Use::Counted && left >= 1 && is(option, "limit") => {
                    next += 1;
                    request.limit = at_least(0, args.at(next), "ERR LIMIT can't be negative")?;
                }
                () => return Err(Refusal::SYNTAX),
            }
            next += 1;
        }
        if operation != Operation::Difference {
            request.sources.sort_by_key(|(source, _)| source.len());
        }
        Ok(request)
    }

    /// The result, in order.
    fn members(&self, operation: Operation) -> Members<'a> {
        let mut members = match operation {
            Operation::Union => self.union(),
            Operation::Intersection => self.intersection(),
            Operation::Difference => self.difference(),
        };
        members.sort_unstable_by(|left, right| sorted_set::compare((&left.0, left.1), (&right.0, right.1)));
        members
    }

    fn union(&self) -> Members<'a> {
        // The order in which this map has its members is of no account: they are sorted afterwards.
        let mut joined: HashMap<Cow<'a, [u8]>, f64, FixedState> = HashMap::with_hasher(FixedState::default());
        for (source, weight) in &self.sources {
            source.for_each(|member, score| {
                let score = or_zero(self.aggregate.share(*weight, score));
                match joined.entry(member) {
                    Entry::Occupied(mut found) => {
                        let joint = self.aggregate.join(*found.get(), score);
                        found.insert(joint);
                    }
                    Entry::Vacant(place) => _ = place.insert(score),
                }
            });
        }
        joined.into_iter().collect()
    }

    fn intersection(&self) -> Members<'a> {
        let mut members = Vec::new();
        let Some(((smallest, weight), others)) = self.sources.split_first() else { return members };
        smallest.for_each(|member, score| {
            if self.limit > 0 && members.len() >= self.limit {
                return;
            }
            let mut joint = or_zero(self.aggregate.share(*weight, score));
            for (other, weight) in others {
                let Some(score) = other.score(&member) else { return };
                joint = self.aggregate.join(joint, self.aggregate.share(*weight, score));
            }
            members.push((member, joint));
        });
        members
    }

    fn difference(&self) -> Members<'a> {
        let mut members = Vec::new();
        let Some(((first, _), others)) = self.sources.split_first() else { return members };
        first.for_each(|member, score| {
            if others.iter().all(|(other, _)| other.score(&member).is_none()) {
                members.push((member, score));
            }
        });
        members
    }
}

fn answer(view: &View<'_>, args: Args<'_>, operation: Operation, writer: &mut Writer) -> Result<(), Refusal> {
    let request = Request::parse(view, args, 1, operation, Use::Returned)?;
    let members = request.members(operation);
    let borrowed = members.iter().map(|(member, score)| (&**member, *score));
    write_members(writer, members.len(), borrowed, request.with_scores);
    Ok(())
}

fn zunion(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    answer(view, args, Operation::Union, writer)
}

fn zinter(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    answer(view, args, Operation::Intersection, writer)
}

fn zdiff(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    answer(view, args, Operation::Difference, writer)
}

fn zintercard(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let request = Request::parse(view, args, 1, Operation::Intersection, Use::Counted)?;
    writer.count(request.intersection().len());
    Ok(())
}

fn store_result(
    edit: &mut Edit<'_>,
    args: Args<'_>,
    operation: Operation,
    event: &'static str,
    writer: &mut Writer,
) -> Result<(), Refusal> {
    let request = Request::parse(&edit.reading(), args, 2, operation, Use::Stored)?;
    let members: Vec<(Vec<u8>, f64)> =
        request.members(operation).into_iter().map(|(member, score)| (member.into_owned(), score)).collect();
    store(edit, args.at(1), &members, event, writer);
    Ok(())
}

/// Stores members, each given once, under a key, whatever was there, and answers with their number.
pub(in crate::commands) fn store(
    edit: &mut Edit<'_>,
    key: &[u8],
    members: &[(Vec<u8>, f64)],
    event: &'static str,
    writer: &mut Writer,
) {
    writer.count(members.len());
    if members.is_empty() {
        if edit.remove(key) {
            edit.notify(Class::Generic, "del", key);
        }
        return;
    }
    let borrowed = members.iter().map(|(member, score)| (&**member, *score)).collect();
    let set = sorted_set::from_members(borrowed, &edit.keyspace().limits()).expect("members are given once");
    edit.put(edit.database(), key, Value::Collection(set), None, None);
    edit.notify(Class::SortedSet, event, key);
}

fn zunionstore(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    store_result(edit, args, Operation::Union, "zunionstore", writer)
}

fn zinterstore(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    store_result(edit, args, Operation::Intersection, "zinterstore", writer)
}

fn zdiffstore(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    store_result(edit, args, Operation::Difference, "zdiffstore", writer)
}
