//! MGET, MSET, MSETNX, MSETEX: several keys at once, all or none.

use command::{Access, Begin, Find, Flag, Group, KeySpec, Refusal, Span};
use resp::{Args, Writer};

use super::every_key;
use super::set::{Lifetime, store};
use crate::commands::arguments::{is, parse_integer};
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, Expiry, View};

pub(super) const MGET: DataCommand = DataCommand {
    name: "mget",
    since: "1.0.0",
    group: Group::String,
    summary: "Returns the strings under several keys.",
    complexity: "O(N) where N is the number of keys.",
    syntax: "key [key ...]",
    arity: -2,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[every_key(Access::Read, 1, &["access"])],
    tips: &["request_policy:multi_shard"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(mget),
};

fn mget(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    writer.array(args.len() - 1);
    for key in args.iter().skip(1) {
        // A key of another type is answered like one that is not there.
        match view.string(key) {
            Ok(Some(value)) => value.write_bulk(writer),
            Ok(None) | Err(_) => writer.null(),
        }
    }
    Ok(())
}

pub(super) const MSET: DataCommand = DataCommand {
    name: "mset",
    since: "1.0.1",
    group: Group::String,
    summary: "Sets the strings under several keys at once.",
    complexity: "O(N) where N is the number of keys.",
    syntax: "key value [key value ...]",
    arity: -3,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[every_key(Access::Overwrite, 2, &["update"])],
    tips: &["request_policy:multi_shard", "response_policy:all_succeeded"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(mset),
};

fn mset(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    check_pairs(args, "mset")?;
    set_pairs(edit, args);
    writer.ok();
    Ok(())
}

pub(super) const MSETNX: DataCommand = DataCommand {
    name: "msetnx",
    since: "1.0.1",
    group: Group::String,
    summary: "Sets the strings under several keys at once, if none of the keys exists.",
    complexity: "O(N) where N is the number of keys.",
    syntax: "key value [key value ...]",
    arity: -3,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[every_key(Access::Overwrite, 2, &["insert"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(msetnx),
};

fn msetnx(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    check_pairs(args, "msetnx")?;
    let allowed = !args.iter().skip(1).step_by(2).any(|key| edit.entry(key).is_some());
    if allowed {
        set_pairs(edit, args);
    }
    writer.integer(i64::from(allowed));
    Ok(())
}

fn check_pairs(args: Args<'_>, command: &str) -> Result<(), Refusal> {
    if args.len() % 2 == 1 { Ok(()) } else { Err(Refusal::wrong_arity(command)) }
}

fn set_pairs(edit: &mut Edit<'_>, args: Args<'_>) {
    for index in (1..args.len()).step_by(2) {
        edit.set_string(args.at(index), args.at(index + 1), Expiry::Clear);
        edit.notify(Class::String, "set", args.at(index));
    }
}

pub(super) const MSETEX: DataCommand = DataCommand {
    name: "msetex",
    since: "8.4.0",
    group: Group::String,
    summary: "Sets the strings under several keys at once, with one time to live, if all or none of the keys exist.",
    complexity: "O(N) where N is the number of keys.",
    syntax: "numkeys key value [key value ...] [NX | XX] [EX seconds | PX milliseconds | EXAT unix-time-seconds | \
             PXAT unix-time-milliseconds | KEEPTTL]",
    arity: -4,
    flags: &[Flag::Write, Flag::Denyoom, Flag::MovableKeys],
    categories: &[],
    keys: &[KeySpec {
        access: Access::Overwrite,
        begin: Begin::Index(1),
        find: Find::Counted { count: 0, first: 1, step: 2 },
        notes: &["update"],
    }],
    tips: &["request_policy:multi_shard", "response_policy:all_succeeded"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(msetex),
};

fn msetex(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let count = parse_integer(args.at(1)).and_then(|count| i32::try_from(count).ok()).filter(|&count| count > 0);
    let count = count.ok_or_else(|| Refusal::new("ERR invalid numkeys value"))? as usize;
    if count > (args.len() - 2) / 2 {
        return Err(Refusal::new("ERR wrong number of key-value pairs"));
    }
    let mut next = 2 + 2 * count;
    let (mut must_exist, mut lifetime) = (None, Lifetime::Unsaid);
    while let Some(word) = args.get(next) {
        if lifetime.take(args, &mut next, "keepttl") {
            continue;
        }
        must_exist = match must_exist {
            None | Some(false) if is(word, "nx") => Some(false),
            None | Some(true) if is(word, "xx") => Some(true),
            _ => return Err(Refusal::SYNTAX),
        };
        next += 1;
    }
    let expiry = lifetime.expiry(edit, "msetex")?;
    let keys = || (2..2 + 2 * count).step_by(2);
    let allowed = must_exist.is_none_or(|exists| keys().all(|at| edit.entry(args.at(at)).is_some() == exists));
    if allowed {
        keys().for_each(|at| store(edit, args.at(at), args.at(at + 1), expiry));
    }
    writer.integer(i64::from(allowed));
    Ok(())
}
