//! SADD and its kin: members come and go and are looked for.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use crate::commands::key_specs::key_at;
use crate::commands::scan::Step;
use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, ItoaBuffer, View};

pub(super) const SADD: DataCommand = DataCommand {
    name: "sadd",
    since: "1.0.0",
    group: Group::Set,
    summary: "Adds members to a set, and returns how many are new.",
    complexity: "O(N) where N is the number of members given.",
    syntax: "key member [member ...]",
    arity: -3,
    flags: &[Flag::Write, Flag::Denyoom, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["insert"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(sadd),
};
fn sadd(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let new_count = edit.modify_set(args.at(1), |set| args.iter().skip(2).filter(|member| set.add(member)).count())?;
    if new_count > 0 {
        edit.notify(Class::Set, "sadd", args.at(1));
    }
    writer.count(new_count);
    Ok(())
}

pub(super) const SREM: DataCommand = DataCommand {
    name: "srem",
    since: "1.0.0",
    group: Group::Set,
    summary: "Removes members of a set, and the key with the last one.",
    complexity: "O(N) where N is the number of members given.",
    syntax: "key member [member ...]",
    arity: -3,
    flags: &[Flag::Write, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(srem),
};
fn srem(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let removed_count =
        edit.modify_set(args.at(1), |set| args.iter().skip(2).filter(|member| set.remove(member)).count())?;
    if removed_count > 0 {
        edit.notify_taken(Class::Set, "srem", args.at(1));
    }
    writer.count(removed_count);
    Ok(())
}

pub(super) const SMOVE: DataCommand = DataCommand {
    name: "smove",
    since: "1.0.0",
    group: Group::Set,
    summary: "Moves a member from one set to another.",
    complexity: "O(1)",
    syntax: "source destination member",
    arity: 4,
    flags: &[Flag::Write, Flag::Fast],
    categories: &[],
    keys: &[key_at(1, Access::ReadWrite, &["access", "delete"]), key_at(2, Access::ReadWrite, &["insert"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(smove),
};
fn smove(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (source, destination, member) = (args.at(1), args.at(2), args.at(3));
    let Some(set) = edit.view().set(source)? else {
        // Then nobody asks what the destination is.
        writer.integer(0);
        return Ok(());
    };
    let is_member = set.contains(member);
    edit.view().set(destination)?;
    if is_member && source != destination {
        edit.modify_set(source, |set| set.remove(member))?;
        edit.notify_taken(Class::Set, "srem", source);
        if edit.modify_set(destination, |set| set.add(member))? {
            edit.notify(Class::Set, "sadd", destination);
        }
    }
    writer.integer(i64::from(is_member));
    Ok(())
}

pub(super) const SISMEMBER: DataCommand = DataCommand {
    name: "sismember",
    since: "1.0.0",
    group: Group::Set,
    summary: "Returns whether a set has a member.",
    complexity: "O(1)",
    syntax: "key member",
    arity: 3,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::Read, &[])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(sismember),
};
fn sismember(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let is_member = view.set(args.at(1))?.is_some_and(|set| set.contains(args.at(2)));
    writer.integer(i64::from(is_member));
    Ok(())
}

pub(super) const SMISMEMBER: DataCommand = DataCommand {
    name: "smismember",
    since: "6.2.0",
    group: Group::Set,
    summary: "Returns for each member whether a set has it.",
    complexity: "O(N) where N is the number of members given.",
    syntax: "key member [member ...]",
    arity: -3,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(smismember),
};
fn smismember(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let set = view.set(args.at(1))?;
    writer.array(args.len() - 2);
    for member in args.iter().skip(2) {
        writer.integer(i64::from(set.is_some_and(|set| set.contains(member))));
    }
    Ok(())
}

pub(super) const SCARD: DataCommand = DataCommand {
    name: "scard",
    since: "1.0.0",
    group: Group::Set,
    summary: "Returns how many members a set has.",
    complexity: "O(1)",
    syntax: "key",
    arity: 2,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::Read, &[])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(scard),
};
fn scard(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    writer.count(view.set(args.at(1))?.map_or(0, |set| set.len()));
    Ok(())
}

pub(super) const SMEMBERS: DataCommand = DataCommand {
    name: "smembers",
    since: "1.0.0",
    group: Group::Set,
    summary: "Returns all members of a set.",
    complexity: "O(N) where N is the size of the set.",
    syntax: "key",
    arity: 2,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &["nondeterministic_output_order"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(smembers),
};
fn smembers(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let set = view.set(args.at(1))?;
    writer.set(set.map_or(0, |set| set.len()));
    set.iter().flat_map(|set| set.iter()).for_each(|member| member.write_bulk(writer));
    Ok(())
}

pub(super) const SSCAN: DataCommand = DataCommand {
    name: "sscan",
    since: "2.8.0",
    group: Group::Set,
    summary: "Iterates over the members of a set, a step at a time.",
    complexity: "O(1) for every call, O(N) for a whole walk, where N is the size of the set.",
    syntax: "key cursor [MATCH pattern] [COUNT count]",
    arity: -3,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &["nondeterministic_output"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(sscan),
};
fn sscan(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let cursor = Step::cursor(args)?;
    let Some(set) = view.set(args.at(1))? else {
        Step::write_end(writer);
        return Ok(());
    };
    let mut step = Step::new(args, writer)?;
    let next = set.scan(cursor, step.count(), |member| {
        let mut buffer = ItoaBuffer::new();
        let member = member.to_bytes(&mut buffer);
        if step.selects(member) {
            step.push(member);
        }
    });
    step.write(next, writer);
    Ok(())
}
