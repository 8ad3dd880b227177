//! OBJECT: how a value is kept and how it has been used.

use command::{Access, Command, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::{key_at, write_help};
use crate::commands::{Body, DataCommand};
use crate::context::View;
use crate::debug;

pub const OBJECT: DataCommand = Command {
    name: "object",
    since: "2.2.3",
    group: Group::Generic,
    summary: "A container for object introspection commands.",
    complexity: "Depends on subcommand.",
    syntax: "",
    arity: -2,
    flags: &[],
    categories: &[],
    keys: &[],
    tips: &[],
    span: Span::Nothing,
    subcommands: &[ENCODING, FREQ, HELP, IDLETIME, REFCOUNT],
    body: Body::Container,
};

const ENCODING: DataCommand = Command {
    name: "encoding",
    since: "2.2.3",
    group: Group::Generic,
    summary: "Inspect the internal encoding of a Redis object.",
    complexity: "O(1)",
    syntax: "key",
    arity: 3,
    flags: &[Flag::Readonly],
    categories: &["keyspace"],
    keys: &[key_at(2, Access::Read, &[])],
    tips: &["nondeterministic_output"],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(encoding),
};

const FREQ: DataCommand = Command {
    name: "freq",
    since: "4.0.0",
    summary: "Get the logarithmic access frequency counter of a Redis object.",
    body: Body::Query(frequency),
    ..ENCODING
};

const IDLETIME: DataCommand = Command {
    name: "idletime",
    summary: "Get the time since a Redis object was last accessed.",
    body: Body::Query(idle_time),
    ..ENCODING
};

const REFCOUNT: DataCommand = Command {
    name: "refcount",
    summary: "Get the number of references to the value of the key.",
    body: Body::Query(reference_count),
    ..ENCODING
};

const HELP: DataCommand = Command {
    name: "help",
    since: "6.2.0",
    summary: "Show helpful text about the different subcommands.",
    syntax: "",
    arity: 2,
    flags: &[Flag::Loading, Flag::Stale],
    keys: &[],
    tips: &[],
    span: Span::Nothing,
    body: Body::Query(help),
    ..ENCODING
};

/// True for what tells how a key was used, which is each replica's own.
pub fn tells_use(command: &DataCommand) -> bool {
    [FREQ.name, IDLETIME.name].contains(&command.name)
}

fn encoding(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    writer.bulk_or_null(view.peek(args.at(2)).map(|entry| entry.encoding().as_bytes()));
    Ok(())
}

fn frequency(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let Some(entry) = view.peek(args.at(2)) else {
        writer.null();
        return Ok(());
    };
    if !view.keyspace().tuning().policy.counts_uses() {
        return Err(Refusal::new(
            "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching \
             between policies at runtime LRU and LFU data will take some time to adjust.",
        ));
    }
    writer.integer(i64::from(entry.frequency(view.moment())));
    Ok(())
}

fn idle_time(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let Some(entry) = view.peek(args.at(2)) else {
        writer.null();
        return Ok(());
    };
    if view.keyspace().tuning().policy.counts_uses() {
        return Err(Refusal::new(
            "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching between \
             policies at runtime LRU and LFU data will take some time to adjust.",
        ));
    }
    writer.count(entry.idle_seconds(view.moment()) as usize);
    Ok(())
}

fn reference_count(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    match view.peek(args.at(2)) {
        Some(entry) => writer.integer(debug::reference_count(view, &entry)),
        None => writer.null(),
    }
    Ok(())
}

fn help(_: &View<'_>, _: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    write_help(
        writer,
        "OBJECT",
        &[
            "ENCODING <key>",
            "    Return the kind of internal representation used in order to store the value",
            "    associated with a <key>.",
            "FREQ <key>",
            "    Return the access frequency index of the <key>. The returned integer is",
            "    proportional to the logarithm of the recent access frequency of the key.",
            "IDLETIME <key>",
            "    Return the idle time of the <key>, that is the approximated number of",
            "    seconds elapsed since the last access to the key.",
            "REFCOUNT <key>",
            "    Return the number of references of the value associated with the specified",
            "    <key>.",
        ],
    );
    Ok(())
}
