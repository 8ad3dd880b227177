//! EXISTS, TYPE and TOUCH: whether keys are there, and what they hold.

use command::{Access, Command, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::{all_words, key_at};
use crate::commands::{Body, DataCommand};
use crate::context::View;

pub const EXISTS: DataCommand = Command {
    name: "exists",
    since: "1.0.0",
    group: Group::Generic,
    summary: "Determine if a key exists.",
    complexity: "O(N) where N is the number of keys.",
    syntax: "key [key ...]",
    arity: -2,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &["keyspace"],
    keys: &[all_words(Access::Read, &[])],
    tips: &["request_policy:multi_shard", "response_policy:agg_sum"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(exists),
};

pub const TOUCH: DataCommand = Command {
    name: "touch",
    since: "3.2.1",
    summary: "Alters the last access time of a key(s). Returns the number of existing keys specified.",
    body: Body::Query(touch),
    ..EXISTS
};

pub const TYPE: DataCommand = Command {
    name: "type",
    summary: "Determine the type stored at key.",
    complexity: "O(1)",
    syntax: "key",
    arity: 2,
    keys: &[key_at(1, Access::Read, &[])],
    tips: &[],
    body: Body::Query(type_of),
    ..EXISTS
};

fn exists(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    writer.count(args.iter().skip(1).filter(|key| view.peek(key).is_some()).count());
    Ok(())
}

fn touch(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    writer.count(args.iter().skip(1).filter(|key| view.entry(key).is_some()).count());
    Ok(())
}

fn type_of(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    writer.simple(view.peek(args.at(1)).map_or("none", |entry| entry.type_name()));
    Ok(())
}
