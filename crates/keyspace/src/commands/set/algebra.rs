//! SINTER, SUNION, SDIFF and what stores or counts their results.

use command::{Access, Begin, Find, Flag, Group, KeySpec, Refusal, Span};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use resp::{Args, Writer};

use crate::collection::{order, set};
use crate::commands::arguments::{is, parse_integer};
use crate::commands::key_specs::{key_at, keys_from};
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, ItoaBuffer, Set, Str, Value, View};

pub(super) const SINTER: DataCommand = DataCommand {
    name: "sinter",
    since: "1.0.0",
    group: Group::Set,
    summary: "Returns the members that all sets have.",
    complexity: "O(N*M) at worst, where N is the size of the smallest set and M the number of sets.",
    syntax: "key [key ...]",
    arity: -2,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[keys_from(1, -1, Access::Read, &["access"])],
    tips: &["nondeterministic_output_order"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(sinter),
};
fn sinter(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let sets = sets(view, args.iter().skip(1))?;
    answer(&intersection(&sets).collect::<Vec<_>>(), writer);
    Ok(())
}

pub(super) const SINTERSTORE: DataCommand = DataCommand {
    name: "sinterstore",
    since: "1.0.0",
    group: Group::Set,
    summary: "Stores the members that all sets have.",
    complexity: "O(N*M) at worst, where N is the size of the smallest set and M the number of sets.",
    syntax: "destination key [key ...]",
    arity: -3,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["update"]), keys_from(2, -1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(sinterstore),
};
fn sinterstore(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    store(edit, args, writer, "sinterstore", |sets| intersection(sets).collect())
}

pub(super) const SINTERCARD: DataCommand = DataCommand {
    name: "sintercard",
    since: "7.0.0",
    group: Group::Set,
    summary: "Counts the members that all sets have, up to a limit.",
    complexity: "O(N*M) at worst, where N is the size of the smallest set and M the number of sets.",
    syntax: "numkeys key [key ...] [LIMIT limit]",
    arity: -3,
    flags: &[Flag::Readonly, Flag::MovableKeys],
    categories: &[],
    keys: &[KeySpec {
        access: Access::Read,
        begin: Begin::Index(1),
        find: Find::Counted { count: 0, first: 1, step: 1 },
        notes: &["access"],
    }],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(sintercard),
};
fn sintercard(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let counted = Counted::parse(args, false)?;
    let sets = sets(view, args.iter().skip(2).take(counted.key_count))?;
    writer.count(intersection(&sets).take(counted.limit).count());
    Ok(())
}

/// What a command that counts is told.
struct Counted {
    key_count: usize,
    /// Count no further.
    limit: usize,
}

impl Counted {
    fn parse(args: Args<'_>, may_approximate: bool) -> Result<Self, Refusal> {
        let number = parse_integer(args.at(1)).and_then(|count| usize::try_from(count).ok());
        let key_count = number.filter(|&count| count > 0);
        let key_count = key_count.ok_or_else(|| Refusal::new("ERR numkeys should be greater than 0"))?;
        if key_count > args.len() - 2 {
            return Err(Refusal::new("ERR Number of keys can't be greater than number of args"));
        }
        let mut limit = usize::MAX;
        let mut next = 2 + key_count;
        while let Some(option) = args.get(next) {
            match args.get(next + 1) {
                // An exact number is near enough.
                _ if may_approximate && is(option, "approx") => next += 1,
                Some(value) if is(option, "limit") => {
                    let number = parse_integer(value).and_then(|number| usize::try_from(number).ok());
                    let number = number.ok_or_else(|| Refusal::new("ERR LIMIT can't be negative"))?;
                    limit = if number == 0 { usize::MAX } else { number };
                    next += 2;
                }
                _ => return Err(Refusal::SYNTAX),
            }
        }
        Ok(Self { key_count, limit })
    }
}

pub(super) const SUNIONCARD: DataCommand = DataCommand {
    name: "sunioncard",
    since: "8.10.0",
    summary: "Counts the members that any of the sets has, up to a limit.",
    complexity: "O(N) where N is the number of members of all sets.",
    syntax: "numkeys key [key ...] [APPROX] [LIMIT limit]",
    body: Body::Query(sunioncard),
    ..SINTERCARD
};
fn sunioncard(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let counted = Counted::parse(args, true)?;
    let sets = sets(view, args.iter().skip(2).take(counted.key_count))?;
    writer.count(union_up_to(&sets, counted.limit).len());
    Ok(())
}

pub(super) const SDIFFCARD: DataCommand = DataCommand {
    name: "sdiffcard",
    since: "8.10.0",
    summary: "Counts the members of the first set that no other set has, up to a limit.",
    complexity: "O(N) where N is the number of members of all sets.",
    syntax: "numkeys key [key ...] [LIMIT limit]",
    body: Body::Query(sdiffcard),
    ..SINTERCARD
};
fn sdiffcard(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let counted = Counted::parse(args, false)?;
    let sets = sets(view, args.iter().skip(2).take(counted.key_count))?;
    writer.count(difference(&sets).take(counted.limit).count());
    Ok(())
}

pub(super) const SUNION: DataCommand = DataCommand {
    name: "sunion",
    since: "1.0.0",
    group: Group::Set,
    summary: "Returns the members that any of the sets has.",
    complexity: "O(N) where N is the number of members of all sets.",
    syntax: "key [key ...]",
    arity: -2,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[keys_from(1, -1, Access::Read, &["access"])],
    tips: &["nondeterministic_output_order"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(sunion),
};
fn sunion(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let sets = sets(view, args.iter().skip(1))?;
    answer(&union(&sets), writer);
    Ok(())
}

pub(super) const SUNIONSTORE: DataCommand = DataCommand {
    name: "sunionstore",
    since: "1.0.0",
    group: Group::Set,
    summary: "Stores the members that any of the sets has.",
    complexity: "O(N) where N is the number of members of all sets.",
    syntax: "destination key [key ...]",
    arity: -3,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[key_at(1, Access::Overwrite, &["update"]), keys_from(2, -1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(sunionstore),
};
fn sunionstore(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    store(edit, args, writer, "sunionstore", union)
}

pub(super) const SDIFF: DataCommand = DataCommand {
    name: "sdiff",
    since: "1.0.0",
    group: Group::Set,
    summary: "Returns the members of the first set that no other set has.",
    complexity: "O(N) where N is the number of members of all sets.",
    syntax: "key [key ...]",
    arity: -2,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[keys_from(1, -1, Access::Read, &["access"])],
    tips: &["nondeterministic_output_order"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(sdiff),
};
fn sdiff(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let sets = sets(view, args.iter().skip(1))?;
    answer(&difference(&sets).collect::<Vec<_>>(), writer);
    Ok(())
}

pub(super) const SDIFFSTORE: DataCommand = DataCommand {
    name: "sdiffstore",
    since: "1.0.0",
    group: Group::Set,
    summary: "Stores the members of the first set that no other set has.",
    complexity: "O(N) where N is the number of members of all sets.",
    syntax: "destination key [key ...]",
    arity: -3,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[key_at(1, Access::Overwrite, &["update"]), keys_from(2, -1, Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(sdiffstore),
};
fn sdiffstore(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    store(edit, args, writer, "sdiffstore", |sets| difference(sets).collect())
}

/// The sets under keys, an absent key being one without members.
fn sets<'a, 'k>(view: &View<'a>, keys: impl Iterator<Item = &'k [u8]>) -> Result<Vec<Option<Set<'a>>>, Refusal> {
    keys.map(|key| view.set(key)).collect()
}

/// Stores what `combine` makes of the sets under the keys from word 2 on, and reports it as `event`.
fn store(
    edit: &mut Edit<'_>,
    args: Args<'_>,
    writer: &mut Writer,
    event: &'static str,
    combine: impl for<'a> FnOnce(&[Option<Set<'a>>]) -> Vec<Str<'a>>,
) -> Result<(), Refusal> {
    let (destination, database) = (args.at(1), edit.database());
    let members = combine(&sets(&edit.reading(), args.iter().skip(2))?);
    let count = members.len();
    if members.is_empty() {
        if edit.remove(destination) {
            edit.notify(Class::Generic, "del", destination);
        }
    } else {
        let set = set::build(&members, &edit.keyspace().limits());
        edit.put(database, destination, Value::Collection(set), None, None);
        edit.notify(Class::Set, event, destination);
    }
    writer.count(count);
    Ok(())
}

/// The members of the smallest set that all the others have.
fn intersection<'a>(sets: &[Option<Set<'a>>]) -> impl Iterator<Item = Str<'a>> {
    // If one of them is absent they have nothing in common.
    let mut sets: Vec<Set<'a>> = sets.iter().copied().collect::<Option<_>>().unwrap_or_default();
    sets.sort_by_key(Set::len);
    let members = sets.first().copied().into_iter().flat_map(|set| set.iter());
    members.filter(move |&member| sets[1..].iter().all(|set| set.contains_text(member)))
}

/// The members of all sets, each once, where it comes first.
fn union<'a>(sets: &[Option<Set<'a>>]) -> Vec<Str<'a>> {
    union_up_to(sets, usize::MAX)
}

/// The same until there are so many, at least one.
fn union_up_to<'a>(sets: &[Option<Set<'a>>], limit: usize) -> Vec<Str<'a>> {
    let place_of = |member: Str<'_>| u64::from(order::place_of(member.to_bytes(&mut ItoaBuffer::new()))) << 32;
    let mut members: Vec<Str<'a>> = Vec::new();
    let mut ranks: HashTable<usize> = HashTable::new();
    for member in sets.iter().flatten().flat_map(Set::iter) {
        let entry = ranks.entry(place_of(member), |&rank| members[rank] == member, |&rank| place_of(members[rank]));
        if let Entry::Vacant(entry) = entry {
            entry.insert(members.len());
            members.push(member);
            if members.len() == limit {
                break;
            }
        }
    }
    members
}

/// The members of the first set that none of the others has.
fn difference<'a>(sets: &[Option<Set<'a>>]) -> impl Iterator<Item = Str<'a>> {
    let (first, others) = sets.split_first().expect("there is a key");
    let mut others: Vec<Set<'a>> = others.iter().flatten().copied().collect();
    // The largest is the likeliest to have it.
    others.sort_by_key(|set| std::cmp::Reverse(set.len()));
    let members = (*first).into_iter().flat_map(|set| set.iter());
    members.filter(move |&member| !others.iter().any(|set| set.contains_text(member)))
}

fn answer(members: &[Str<'_>], writer: &mut Writer) {
    writer.set(members.len());
    members.iter().for_each(|member| member.write_bulk(writer));
}
