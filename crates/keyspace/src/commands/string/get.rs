//! GET and its kin: read a string, and perhaps end or change its life.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::first_key;
use super::set::Lifetime;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, View};

pub(super) const GET: DataCommand = DataCommand {
    name: "get",
    since: "1.0.0",
    group: Group::String,
    summary: "Returns the string under a key.",
    complexity: "O(1)",
    syntax: "key",
    arity: 2,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(get),
};

fn get(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    match view.string(args.at(1))? {
        Some(value) => value.write_bulk(writer),
        None => writer.null(),
    }
    Ok(())
}

pub(super) const GETDEL: DataCommand = DataCommand {
    name: "getdel",
    since: "6.2.0",
    group: Group::String,
    summary: "Returns the string under a key and removes the key.",
    complexity: "O(1)",
    syntax: "key",
    arity: 2,
    flags: &[Flag::Write, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["access", "delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(getdel),
};

fn getdel(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    match edit.reading().string(key)? {
        Some(value) => {
            value.write_bulk(writer);
            edit.remove(key);
            edit.notify(Class::Generic, "del", key);
        }
        None => writer.null(),
    }
    Ok(())
}

pub(super) const GETEX: DataCommand = DataCommand {
    name: "getex",
    since: "6.2.0",
    group: Group::String,
    summary: "Returns the string under a key and may set or remove its time to live.",
    complexity: "O(1)",
    syntax: "key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST]",
    arity: -2,
    flags: &[Flag::Write, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["access", "update", "RW and UPDATE because it changes the TTL"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(getex),
};

fn getex(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    let mut lifetime = Lifetime::Unsaid;
    let mut index = 2;
    while index < args.len() {
        if !lifetime.take(args, &mut index, "persist") {
            return Err(Refusal::SYNTAX);
        }
    }
    let moment = edit.view().moment();
    let Some(value) = edit.reading().string(key)? else {
        writer.null();
        return Ok(());
    };
    // The time is looked at only now: on a missing key even an invalid one answers null.
    match lifetime {
        Lifetime::Unsaid => value.write_bulk(writer),
        Lifetime::Word => {
            value.write_bulk(writer);
            if edit.view().peek(key).is_some_and(|entry| entry.expires_at().is_some()) {
                edit.set_expiry(key, None);
                edit.notify(Class::Generic, "persist", key);
            }
        }
        Lifetime::Until(form, word) => {
            let deadline = form.deadline(word, moment, "getex")?;
            value.write_bulk(writer);
            if deadline.0 <= edit.expired_until() {
                edit.remove(key);
                edit.notify(Class::Generic, "del", key);
            } else {
                edit.set_expiry(key, Some(deadline));
                edit.notify(Class::Generic, "expire", key);
            }
        }
    }
    Ok(())
}

pub(super) const STRLEN: DataCommand = DataCommand {
    name: "strlen",
    since: "2.2.0",
    group: Group::String,
    summary: "Returns how many bytes the string under a key has.",
    complexity: "O(1)",
    syntax: "key",
    arity: 2,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::Read, &[])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(strlen),
};

fn strlen(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    writer.count(view.string(args.at(1))?.map_or(0, |value| value.len()));
    Ok(())
}
