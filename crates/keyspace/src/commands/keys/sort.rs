//! SORT and SORT_RO: the elements of a list or set in order.
//!
//! No type with elements exists yet, so there is nothing to compare: a string is refused, and an absent key is an empty
//! list, which is already in order.

use command::{Access, Begin, Command, Find, Flag, Group, KeySpec, Refusal, Span};
use resp::{Args, Writer};

use super::{key_at, unknown_keys};
use crate::commands::arguments::{integer, is};
use crate::commands::{Body, DataCommand};
use crate::context::{Edit, View};
use crate::notice::Class;

const BY_AND_GET: &str = "For the optional BY/GET keyword. It is marked 'unknown' because the key names derive from the \
                         content of the key we sort";
const STORE: &str = "For the optional STORE keyword. It is marked 'unknown' because the keyword can appear anywhere in \
                     the argument array";

pub const SORT: DataCommand = Command {
    name: "sort",
    since: "1.0.0",
    group: Group::Generic,
    summary: "Sort the elements in a list, set or sorted set.",
    complexity: "O(N+M*log(M)) where N is the number of elements and M the number of those returned.",
    syntax: "key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA] \
             [STORE destination]",
    arity: -2,
    flags: &[Flag::Write, Flag::Denyoom, Flag::MovableKeys],
    categories: &["set", "sortedset", "list", "dangerous"],
    keys: &[
        key_at(1, Access::Read, &["access"]),
        unknown_keys(Access::Read, &["access", BY_AND_GET]),
        KeySpec {
            access: Access::Overwrite,
            begin: Begin::Computed(destination_index),
            find: Find::Range { last: 0, step: 1, limit: 0 },
            notes: &["update", STORE],
        },
    ],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(sort),
};

pub const SORT_RO: DataCommand = Command {
    name: "sort_ro",
    since: "7.0.0",
    summary: "Sort the elements in a list, set or sorted set. Read-only variant of SORT.",
    syntax: "key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA]",
    flags: &[Flag::Readonly, Flag::MovableKeys],
    keys: &[key_at(1, Access::Read, &["access"]), unknown_keys(Access::Read, &["access", BY_AND_GET])],
    body: Body::Query(sort_read_only),
    ..SORT
};

/// Where the result is to go: the word behind the last STORE that is an option and not the argument of one.
fn destination_index(args: Args<'_>) -> Option<usize> {
    let mut found = None;
    let mut next = 2;
    while let Some(word) = args.get(next) {
        let arguments = match () {
            () if is(word, "limit") => 2,
            () if is(word, "get") || is(word, "by") => 1,
            () if is(word, "store") => {
                found = Some(next + 1).filter(|&index| index < args.len()).or(found);
                1
            }
            () => 0,
        };
        next += 1 + arguments;
    }
    found
}

/// Checks the options from word 2 on, as strictly as Redis; returns the destination, which `STORE` may name.
fn check_options(args: Args<'_>, may_store: bool) -> Result<Option<&[u8]>, Refusal> {
    let mut destination = None;
    let mut next = 2;
    while let Some(word) = args.get(next) {
        let left = args.len() - next - 1;
        if is(word, "asc") || is(word, "desc") || is(word, "alpha") {
            next += 1;
        } else if is(word, "limit") && left >= 2 {
            integer(args.at(next + 1))?;
            integer(args.at(next + 2))?;
            next += 3;
        } else if may_store && is(word, "store") && left >= 1 {
            destination = args.get(next + 1);
            next += 2;
        } else if (is(word, "by") || is(word, "get")) && left >= 1 {
            next += 2;
        } else {
            return Err(Refusal::SYNTAX);
        }
    }
    Ok(destination)
}

fn sort(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let destination = check_options(args, true)?;
    if edit.entry(args.at(1)).is_some() {
        return Err(Refusal::WRONG_TYPE);
    }
    match destination {
        Some(destination) => {
            if edit.remove(destination) {
                edit.notify(Class::Generic, "del", destination);
            }
            writer.integer(0);
        }
        None => writer.array(0),
    }
    Ok(())
}

fn sort_read_only(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    check_options(args, false)?;
    if view.entry(args.at(1)).is_some() {
        return Err(Refusal::WRONG_TYPE);
    }
    writer.array(0);
    Ok(())
}
