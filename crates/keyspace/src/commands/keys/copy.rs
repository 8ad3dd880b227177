//! COPY and MOVE: the same value under another name, or in another database.

use command::{Access, Command, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::{access_of, database_number, key_at, same_object};
use crate::commands::arguments::is;
use crate::commands::{Body, DataCommand};
use crate::context::Edit;
use crate::notice::Class;

pub const COPY: DataCommand = Command {
    name: "copy",
    since: "6.2.0",
    group: Group::Generic,
    summary: "Copy a key.",
    complexity: "O(N) where N is the number of elements; O(1) for large strings, which are shared until one changes.",
    syntax: "source destination [DB destination-db] [REPLACE]",
    arity: -3,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &["keyspace"],
    keys: &[key_at(1, Access::Read, &["access"]), key_at(2, Access::Overwrite, &["update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(copy),
};

pub const MOVE: DataCommand = Command {
    name: "move",
    since: "1.0.0",
    group: Group::Generic,
    summary: "Move a key to another database.",
    complexity: "O(1)",
    syntax: "key db",
    arity: 3,
    flags: &[Flag::Write, Flag::Fast],
    categories: &["keyspace"],
    keys: &[key_at(1, Access::ReadWrite, &["access", "update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(move_key),
};

fn copy(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (from, to) = (args.at(1), args.at(2));
    let home = edit.database();
    let (mut database, mut replace) = (home, false);
    let mut next = 3;
    while let Some(word) = args.get(next) {
        if is(word, "replace") {
            replace = true;
        } else if is(word, "db") && next + 1 < args.len() {
            next += 1;
            database = database_number(args.at(next), edit.database_count())?;
        } else {
            return Err(Refusal::SYNTAX);
        }
        next += 1;
    }
    if database == home && from == to {
        return Err(same_object());
    }
    let copied = match edit.clone_value(from) {
        // Asked in this order: only where there is something to copy does the destination count as used.
        Some((value, expires_at)) if edit.view().at(database).entry(to).is_none() || replace => {
            edit.put(database, to, value, expires_at, None);
            edit.at(database).notify(Class::Generic, "copy_to", to);
            true
        }
        _ => false,
    };
    writer.integer(i64::from(copied));
    Ok(())
}

fn move_key(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    let home = edit.database();
    let database = database_number(args.at(2), edit.database_count())?;
    if database == home {
        return Err(same_object());
    }
    let moved = edit.entry(key).is_some() && edit.view().at(database).entry(key).is_none();
    if moved {
        let access = access_of(edit, key);
        let (value, expires_at) = edit.take(home, key).expect("looked at just now");
        edit.put(database, key, value, expires_at, access);
        edit.notify(Class::Generic, "move_from", key);
        edit.at(database).notify(Class::Generic, "move_to", key);
    }
    writer.integer(i64::from(moved));
    Ok(())
}
