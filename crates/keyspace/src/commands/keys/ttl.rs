//! TTL and its kin: when a key will vanish.

use command::{Access, Command, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::key_at;
use crate::commands::{Body, DataCommand};
use crate::context::View;

pub const TTL: DataCommand = Command {
    name: "ttl",
    since: "1.0.0",
    group: Group::Generic,
    summary: "Get the time to live for a key in seconds.",
    complexity: "O(1)",
    syntax: "key",
    arity: 2,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &["keyspace"],
    keys: &[key_at(1, Access::Read, &["access"])],
    tips: &["nondeterministic_output"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(|view, args, writer| write_deadline(view, args, writer, |at, now| round_to_seconds(at - now))),
};

pub const PTTL: DataCommand = Command {
    name: "pttl",
    since: "2.6.0",
    summary: "Get the time to live for a key in milliseconds.",
    body: Body::Query(|view, args, writer| write_deadline(view, args, writer, |at, now| at - now)),
    ..TTL
};

pub const EXPIRETIME: DataCommand = Command {
    name: "expiretime",
    since: "7.0.0",
    summary: "Get the expiration Unix timestamp for a key.",
    tips: &[],
    body: Body::Query(|view, args, writer| write_deadline(view, args, writer, |at, _| round_to_seconds(at))),
    ..TTL
};

pub const PEXPIRETIME: DataCommand = Command {
    name: "pexpiretime",
    since: "7.0.0",
    summary: "Get the expiration Unix timestamp for a key in milliseconds.",
    tips: &[],
    body: Body::Query(|view, args, writer| write_deadline(view, args, writer, |at, _| at)),
    ..TTL
};

/// -2 for a key that is not there, -1 for one that will not vanish.
fn write_deadline(
    view: &View<'_>,
    args: Args<'_>,
    writer: &mut Writer,
    measure: fn(i64, i64) -> i64,
) -> Result<(), Refusal> {
    let now = view.moment().unix.0;
    writer.integer(match view.peek(args.at(1)).map(|entry| entry.expires_at()) {
        None => -2,
        Some(None) => -1,
        // A key that is there has its deadline before it, unless nothing expires.
        Some(Some(at)) => measure(at.0, now).max(0),
    });
    Ok(())
}

fn round_to_seconds(millis: i64) -> i64 {
    millis.saturating_add(500) / 1000
}
