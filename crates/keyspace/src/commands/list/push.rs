//! LPUSH, RPUSH and those that want a list to be there.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use crate::commands::key_specs::key_at;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, End};

pub(super) const LPUSH: DataCommand = DataCommand {
    name: "lpush",
    since: "1.0.0",
    group: Group::List,
    summary: "Puts items at the head of a list, one after the other.",
    complexity: "O(N) with N the number of items put.",
    syntax: "key element [element ...]",
    arity: -3,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["insert"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(lpush),
};

pub(super) const RPUSH: DataCommand = DataCommand {
    name: "rpush",
    since: "1.0.0",
    group: Group::List,
    summary: "Puts items at the tail of a list, one after the other.",
    complexity: "O(N) with N the number of items put.",
    syntax: "key element [element ...]",
    arity: -3,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["insert"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(rpush),
};

pub(super) const LPUSHX: DataCommand = DataCommand {
    name: "lpushx",
    since: "2.2.0",
    group: Group::List,
    summary: "Puts items at the head of a list that exists.",
    complexity: "O(N) with N the number of items put.",
    syntax: "key element [element ...]",
    arity: -3,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["insert"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(lpushx),
};

pub(super) const RPUSHX: DataCommand = DataCommand {
    name: "rpushx",
    since: "2.2.0",
    group: Group::List,
    summary: "Puts items at the tail of a list that exists.",
    complexity: "O(N) with N the number of items put.",
    syntax: "key element [element ...]",
    arity: -3,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["insert"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(rpushx),
};

fn lpush(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    push(edit, args, End::Left, writer)
}

fn rpush(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    push(edit, args, End::Right, writer)
}

fn lpushx(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    push_if_there(edit, args, End::Left, writer)
}

fn rpushx(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    push_if_there(edit, args, End::Right, writer)
}

fn push_if_there(edit: &mut Edit<'_>, args: Args<'_>, end: End, writer: &mut Writer) -> Result<(), Refusal> {
    if edit.view().list(args.at(1))?.is_none() {
        writer.integer(0);
        return Ok(());
    }
    push(edit, args, end, writer)
}

fn push(edit: &mut Edit<'_>, args: Args<'_>, end: End, writer: &mut Writer) -> Result<(), Refusal> {
    let len = edit.modify_list(args.at(1), |list| {
        args.from(2).iter().for_each(|item| list.push(end, item));
        list.as_ref().len()
    })?;
    writer.count(len);
    edit.notify(Class::List, push_event(end), args.at(1));
    Ok(())
}

/// What is reported of a push.
pub(super) fn push_event(end: End) -> &'static str {
    match end {
        End::Left => "lpush",
        End::Right => "rpush",
    }
}
