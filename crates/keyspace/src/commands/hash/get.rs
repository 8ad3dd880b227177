//! HGET and its kin: look at a hash.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use crate::View;
use crate::commands::scan::Step;
use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};

pub(super) const HGET: DataCommand = DataCommand {
    name: "hget",
    since: "2.0.0",
    group: Group::Hash,
    summary: "Returns the value of a field.",
    complexity: "O(1)",
    syntax: "key field",
    arity: 3,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(hget),
};
fn hget(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    writer.bulk_or_null(view.hash(args.at(1))?.and_then(|hash| hash.get(args.at(2))));
    Ok(())
}

pub(super) const HMGET: DataCommand = DataCommand {
    name: "hmget",
    since: "2.0.0",
    group: Group::Hash,
    summary: "Returns the values of fields.",
    complexity: "O(N) where N is the number of fields.",
    syntax: "key field [field ...]",
    arity: -3,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(hmget),
};
fn hmget(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let hash = view.hash(args.at(1))?;
    writer.array(args.len() - 2);
    for field in args.iter().skip(2) {
        writer.bulk_or_null(hash.and_then(|hash| hash.get(field)));
    }
    Ok(())
}

pub(super) const HGETALL: DataCommand = DataCommand {
    name: "hgetall",
    since: "2.0.0",
    group: Group::Hash,
    summary: "Returns all fields and their values.",
    complexity: "O(N) where N is the size of the hash.",
    syntax: "key",
    arity: 2,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &["nondeterministic_output_order"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(hgetall),
};
fn hgetall(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let hash = view.hash(args.at(1))?;
    writer.map(hash.map_or(0, |hash| hash.len()));
    for (field, value) in hash.iter().flat_map(|hash| hash.iter()) {
        writer.bulk(field);
        writer.bulk(value);
    }
    Ok(())
}

pub(super) const HKEYS: DataCommand = DataCommand {
    name: "hkeys",
    since: "2.0.0",
    group: Group::Hash,
    summary: "Returns all fields.",
    complexity: "O(N) where N is the size of the hash.",
    syntax: "key",
    arity: 2,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &["nondeterministic_output_order"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(hkeys),
};
fn hkeys(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let hash = view.hash(args.at(1))?;
    writer.array(hash.map_or(0, |hash| hash.len()));
    hash.iter().flat_map(|hash| hash.iter()).for_each(|(field, _)| writer.bulk(field));
    Ok(())
}

pub(super) const HVALS: DataCommand = DataCommand {
    name: "hvals",
    since: "2.0.0",
    group: Group::Hash,
    summary: "Returns the values of all fields.",
    complexity: "O(N) where N is the size of the hash.",
    syntax: "key",
    arity: 2,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &["nondeterministic_output_order"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(hvals),
};
fn hvals(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let hash = view.hash(args.at(1))?;
    writer.array(hash.map_or(0, |hash| hash.len()));
    hash.iter().flat_map(|hash| hash.iter()).for_each(|(_, value)| writer.bulk(value));
    Ok(())
}

pub(super) const HLEN: DataCommand = DataCommand {
    name: "hlen",
    since: "2.0.0",
    group: Group::Hash,
    summary: "Returns how many fields a hash has.",
    complexity: "O(1)",
    syntax: "key",
    arity: 2,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::Read, &[])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(hlen),
};
fn hlen(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    writer.count(view.hash(args.at(1))?.map_or(0, |hash| hash.len()));
    Ok(())
}

pub(super) const HSTRLEN: DataCommand = DataCommand {
    name: "hstrlen",
    since: "3.2.0",
    group: Group::Hash,
    summary: "Returns how many bytes the value of a field has.",
    complexity: "O(1)",
    syntax: "key field",
    arity: 3,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::Read, &[])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(hstrlen),
};
fn hstrlen(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let value = view.hash(args.at(1))?.and_then(|hash| hash.get(args.at(2)));
    writer.count(value.map_or(0, <[u8]>::len));
    Ok(())
}

pub(super) const HEXISTS: DataCommand = DataCommand {
    name: "hexists",
    since: "2.0.0",
    group: Group::Hash,
    summary: "Returns whether a field exists.",
    complexity: "O(1)",
    syntax: "key field",
    arity: 3,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::Read, &[])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(hexists),
};
fn hexists(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let value = view.hash(args.at(1))?.and_then(|hash| hash.get(args.at(2)));
    writer.integer(i64::from(value.is_some()));
    Ok(())
}

pub(super) const HSCAN: DataCommand = DataCommand {
    name: "hscan",
    since: "2.8.0",
    group: Group::Hash,
    summary: "Iterates over the fields of a hash and their values, a step at a time.",
    complexity: "O(1) for every call, O(N) for a whole walk, where N is the size of the hash.",
    syntax: "key cursor [MATCH pattern] [COUNT count] [NOVALUES]",
    arity: -3,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &["nondeterministic_output"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(hscan),
};
fn hscan(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let cursor = Step::cursor(args)?;
    let Some(hash) = view.hash(args.at(1))? else {
        Step::write_end(writer);
        return Ok(());
    };
    let (mut step, has_no_values) = Step::with_flag(args, writer, Some("novalues"))?;
    let next = hash.scan(cursor, step.count(), |field, value| {
        if step.selects(field) {
            step.push(field);
            if !has_no_values {
                step.push(value);
            }
        }
    });
    step.write(next, writer);
    Ok(())
}
