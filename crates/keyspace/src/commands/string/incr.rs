//! INCR and its kin: strings as numbers.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::first_key;
use crate::commands::arguments::integer;
use crate::commands::extended::Extended;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, Expiry, Str};

pub(super) const INCR: DataCommand = DataCommand {
    name: "incr",
    since: "1.0.0",
    group: Group::String,
    summary: "Adds one to the integer under a key.",
    complexity: "O(1)",
    syntax: "key",
    arity: 2,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["access", "update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(incr),
};

fn incr(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    add(edit, args.at(1), 1, writer)
}

pub(super) const DECR: DataCommand = DataCommand {
    name: "decr",
    since: "1.0.0",
    group: Group::String,
    summary: "Subtracts one from the integer under a key.",
    complexity: "O(1)",
    syntax: "key",
    arity: 2,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["access", "update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(decr),
};

fn decr(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    add(edit, args.at(1), -1, writer)
}

pub(super) const INCRBY: DataCommand = DataCommand {
    name: "incrby",
    since: "1.0.0",
    group: Group::String,
    summary: "Adds an integer to the one under a key.",
    complexity: "O(1)",
    syntax: "key increment",
    arity: 3,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["access", "update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(incrby),
};

fn incrby(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let increment = integer(args.at(2))?;
    add(edit, args.at(1), increment, writer)
}

pub(super) const DECRBY: DataCommand = DataCommand {
    name: "decrby",
    since: "1.0.0",
    group: Group::String,
    summary: "Subtracts an integer from the one under a key.",
    complexity: "O(1)",
    syntax: "key decrement",
    arity: 3,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["access", "update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(decrby),
};

fn decrby(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let decrement = integer(args.at(2))?;
    let increment = decrement.checked_neg().ok_or_else(|| Refusal::new("ERR decrement would overflow"))?;
    add(edit, args.at(1), increment, writer)
}

fn add(edit: &mut Edit<'_>, key: &[u8], increment: i64, writer: &mut Writer) -> Result<(), Refusal> {
    let new = edit.change_integer(key, |old| {
        let old = match old {
            Some(Str::Integer(number)) => number,
            // Text may be a number and yet be kept as bytes, after APPEND for one.
            Some(Str::Bytes(text)) => integer(text)?,
            None => 0,
        };
        old.checked_add(increment).ok_or(Refusal::OVERFLOW)
    })?;
    edit.notify(Class::String, "incrby", key);
    writer.integer(new);
    Ok(())
}

pub(super) const INCRBYFLOAT: DataCommand = DataCommand {
    name: "incrbyfloat",
    since: "2.6.0",
    group: Group::String,
    summary: "Adds a number to the one under a key.",
    complexity: "O(1)",
    syntax: "key increment",
    arity: 3,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["access", "update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(incrbyfloat),
};

fn incrbyfloat(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    let old = match edit.string(key)? {
        Some(Str::Integer(number)) => number.into(),
        Some(Str::Bytes(text)) => Extended::parse(text).ok_or(Refusal::NOT_A_FLOAT)?,
        None => 0.into(),
    };
    let increment = Extended::parse(args.at(2)).ok_or(Refusal::NOT_A_FLOAT)?;
    let text = old.checked_add(increment).ok_or(Refusal::NAN_OR_INFINITY)?.print();
    // Kept as text even if it looks like an integer: OBJECT ENCODING says embstr.
    edit.set_text(key, text.as_bytes(), Expiry::Keep);
    edit.notify(Class::String, "incrbyfloat", key);
    writer.bulk(text.as_bytes());
    Ok(())
}
