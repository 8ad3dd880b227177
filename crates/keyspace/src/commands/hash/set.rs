//! HSET and its kin: fields come and go.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit};

pub(super) const HSET: DataCommand = DataCommand {
    name: "hset",
    since: "2.0.0",
    group: Group::Hash,
    summary: "Sets fields of a hash, and returns how many of them are new.",
    complexity: "O(N) where N is the number of fields.",
    syntax: "key field value [field value ...]",
    arity: -4,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(hset),
};
fn hset(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let new_count = set_all(edit, args, "hset")?;
    writer.count(new_count);
    Ok(())
}

pub(super) const HMSET: DataCommand = DataCommand {
    name: "hmset",
    since: "2.0.0",
    group: Group::Hash,
    summary: "Sets fields of a hash.",
    complexity: "O(N) where N is the number of fields.",
    syntax: "key field value [field value ...]",
    arity: -4,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(hmset),
};
fn hmset(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    set_all(edit, args, "hmset")?;
    writer.ok();
    Ok(())
}

/// Sets the pairs from word 2 on; how many fields are new.
fn set_all(edit: &mut Edit<'_>, args: Args<'_>, command: &str) -> Result<usize, Refusal> {
    if args.len() % 2 == 1 {
        return Err(Refusal::wrong_arity(command));
    }
    let new_count = edit.modify_hash(args.at(1), |hash| {
        (2..args.len()).step_by(2).filter(|&at| hash.set(args.at(at), args.at(at + 1))).count()
    })?;
    edit.notify(Class::Hash, "hset", args.at(1));
    Ok(new_count)
}

pub(super) const HSETNX: DataCommand = DataCommand {
    name: "hsetnx",
    since: "2.0.0",
    group: Group::Hash,
    summary: "Sets a field of a hash unless it exists.",
    complexity: "O(1)",
    syntax: "key field value",
    arity: 4,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["insert"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(hsetnx),
};
fn hsetnx(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let field = args.at(2);
    let is_set =
        edit.modify_hash(args.at(1), |hash| hash.as_ref().get(field).is_none() && hash.set(field, args.at(3)))?;
    if is_set {
        edit.notify(Class::Hash, "hset", args.at(1));
    }
    writer.integer(i64::from(is_set));
    Ok(())
}

pub(super) const HDEL: DataCommand = DataCommand {
    name: "hdel",
    since: "2.0.0",
    group: Group::Hash,
    summary: "Removes fields of a hash, and the key with the last one.",
    complexity: "O(N) where N is the number of fields.",
    syntax: "key field [field ...]",
    arity: -3,
    flags: &[Flag::Write, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(hdel),
};
fn hdel(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let removed_count =
        edit.modify_hash(args.at(1), |hash| args.iter().skip(2).filter(|field| hash.remove(field)).count())?;
    if removed_count > 0 {
        edit.notify_taken(Class::Hash, "hdel", args.at(1));
    }
    writer.count(removed_count);
    Ok(())
}
