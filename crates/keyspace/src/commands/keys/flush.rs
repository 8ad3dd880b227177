//! FLUSHDB, FLUSHALL and SWAPDB: whole databases at once.
//!
//! These are the steps of one group; the caller sees to it that all groups take them together, or none.

use command::{Command, Flag, Group, Join, Refusal, Span};
use resp::{Args, Writer};

use crate::commands::arguments::{is, parse_integer};
use crate::commands::{Body, DataCommand};
use crate::context::Edit;

pub const FLUSHDB: DataCommand = Command {
    name: "flushdb",
    since: "1.0.0",
    group: Group::Server,
    summary: "Remove all keys from the current database.",
    complexity: "O(1); memory is given back later, in slices.",
    syntax: "[ASYNC | SYNC]",
    arity: -1,
    flags: &[Flag::Write],
    categories: &["keyspace", "dangerous"],
    keys: &[],
    tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
    span: Span::Whole(Join::All),
    subcommands: &[],
    body: Body::Mutate(flush_database),
};

pub const FLUSHALL: DataCommand = Command {
    name: "flushall",
    summary: "Remove all keys from all databases.",
    body: Body::Mutate(flush_all),
    ..FLUSHDB
};

pub const SWAPDB: DataCommand = Command {
    name: "swapdb",
    since: "4.0.0",
    summary: "Swaps two Redis databases.",
    complexity: "O(1)",
    syntax: "index1 index2",
    arity: 3,
    flags: &[Flag::Write, Flag::Fast],
    tips: &[],
    body: Body::Mutate(swap_databases),
    ..FLUSHDB
};

fn flush_database(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    check_mode(args)?;
    edit.flush(edit.database());
    writer.ok();
    Ok(())
}

fn flush_all(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    check_mode(args)?;
    for database in 0..edit.database_count() {
        edit.flush(database);
    }
    writer.ok();
    Ok(())
}

/// SYNC or ASYNC: either way the keys are gone when the reply comes, and their memory soon after.
fn check_mode(args: Args<'_>) -> Result<(), Refusal> {
    match args.get(1) {
        None => Ok(()),
        Some(word) if args.len() == 2 && (is(word, "sync") || is(word, "async")) => Ok(()),
        Some(_) => Err(Refusal::SYNTAX),
    }
}

fn swap_databases(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let number = |index: usize, refusal: &'static str| {
        let number = parse_integer(args.at(index)).and_then(|number| i32::try_from(number).ok());
        number.ok_or_else(|| Refusal::new(refusal))
    };
    let first = number(1, "ERR invalid first DB index")?;
    let second = number(2, "ERR invalid second DB index")?;
    let count = edit.database_count();
    let database =
        |number: i32| u16::try_from(number).ok().filter(|&number| number < count).ok_or(Refusal::DATABASE_RANGE);
    let (first, second) = (database(first)?, database(second)?);
    if first != second {
        edit.swap(first, second);
    }
    writer.ok();
    Ok(())
}
