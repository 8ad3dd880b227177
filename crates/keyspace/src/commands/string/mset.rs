//! MGET, MSET, MSETNX: several keys at once, all or none.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::every_key;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, Expiry, View};

pub(super) const MGET: DataCommand = DataCommand {
    name: "mget",
    since: "1.0.0",
    group: Group::String,
    summary: "Answers with the strings under several keys.",
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
    summary: "Puts strings under several keys at once.",
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
    summary: "Puts strings under several keys at once, if none of them exists yet.",
    complexity: "O(N) where N is the number of keys.",
    syntax: "key value [key value ...]",
    arity: -3,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[every_key(Access::Overwrite, 2, &["insert"])],
    tips: &["request_policy:multi_shard", "response_policy:agg_min"],
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
