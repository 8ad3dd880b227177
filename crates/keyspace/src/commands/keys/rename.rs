//! RENAME and RENAMENX: give what a key holds another name, its expiry with it.

use command::{Access, Command, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::{access_of, key_at};
use crate::commands::{Body, DataCommand};
use crate::context::Edit;
use crate::notice::Class;

pub const RENAME: DataCommand = Command {
    name: "rename",
    since: "1.0.0",
    group: Group::Generic,
    summary: "Rename a key.",
    complexity: "O(1)",
    syntax: "key newkey",
    arity: 3,
    flags: &[Flag::Write],
    categories: &["keyspace"],
    keys: &[key_at(1, Access::ReadWrite, &["access", "delete"]), key_at(2, Access::Overwrite, &["update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(rename),
};

pub const RENAMENX: DataCommand = Command {
    name: "renamenx",
    summary: "Rename a key, only if the new key does not exist.",
    flags: &[Flag::Write, Flag::Fast],
    keys: &[key_at(1, Access::ReadWrite, &["access", "delete"]), key_at(2, Access::Overwrite, &["insert"])],
    body: Body::Mutate(rename_unless_taken),
    ..RENAME
};

fn rename(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (from, to) = (args.at(1), args.at(2));
    if edit.entry(from).is_none() {
        return Err(Refusal::NO_SUCH_KEY);
    }
    if from != to {
        give_name(edit, from, to);
    }
    writer.ok();
    Ok(())
}

fn rename_unless_taken(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (from, to) = (args.at(1), args.at(2));
    if edit.entry(from).is_none() {
        return Err(Refusal::NO_SUCH_KEY);
    }
    // A key that would get its own name finds that taken.
    let free = edit.entry(to).is_none();
    if free {
        give_name(edit, from, to);
    }
    writer.integer(i64::from(free));
    Ok(())
}

fn give_name(edit: &mut Edit<'_>, from: &[u8], to: &[u8]) {
    let database = edit.database();
    let access = access_of(edit, from);
    let (value, expires_at) = edit.take(database, from).expect("looked at just now");
    edit.put(database, to, value, expires_at, access);
    edit.notify(Class::Generic, "rename_from", from);
    edit.notify(Class::Generic, "rename_to", to);
}
