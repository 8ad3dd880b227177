//! HTTL and its kin: when fields expire.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::fields::Fields;
use crate::View;
use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};

pub(super) const HTTL: DataCommand = DataCommand {
    name: "httl",
    since: "7.4.0",
    group: Group::Hash,
    summary: "Returns how long fields have to live, in seconds.",
    complexity: "O(N) where N is the number of fields named.",
    syntax: "key FIELDS numfields field [field ...]",
    arity: -5,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &["nondeterministic_output"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(|view, args, writer| answer(view, args, writer, |deadline, now| in_seconds(deadline - now))),
};

pub(super) const HPTTL: DataCommand = DataCommand {
    name: "hpttl",
    summary: "Returns how long fields have to live, in milliseconds.",
    body: Body::Query(|view, args, writer| answer(view, args, writer, |deadline, now| deadline - now)),
    ..HTTL
};

pub(super) const HEXPIRETIME: DataCommand = DataCommand {
    name: "hexpiretime",
    summary: "Returns when fields expire, as a Unix time in seconds.",
    tips: &[],
    body: Body::Query(|view, args, writer| answer(view, args, writer, |deadline, _| in_seconds(deadline))),
    ..HTTL
};

pub(super) const HPEXPIRETIME: DataCommand = DataCommand {
    name: "hpexpiretime",
    summary: "Returns when fields expire, as a Unix time in milliseconds.",
    tips: &[],
    body: Body::Query(|view, args, writer| answer(view, args, writer, |deadline, _| deadline)),
    ..HTTL
};

/// Begun seconds count.
fn in_seconds(millis: i64) -> i64 {
    (millis + 999) / 1000
}

fn answer(
    view: &View<'_>,
    args: Args<'_>,
    writer: &mut Writer,
    number: impl Fn(i64, i64) -> i64,
) -> Result<(), Refusal> {
    const NO_FIELD: i64 = -2;
    const NO_DEADLINE: i64 = -1;
    let hash = view.hash(args.at(1))?;
    let fields = Fields::parse(args, 2, Fields::NOT_POSITIVE)?;
    let now = view.moment().unix.0;
    writer.array(fields.len());
    for field in fields.iter() {
        writer.integer(match hash.and_then(|hash| hash.get_with_deadline(field)) {
            None => NO_FIELD,
            Some((_, None)) => NO_DEADLINE,
            Some((_, Some(deadline))) => number(deadline, now).max(0),
        });
    }
    Ok(())
}
