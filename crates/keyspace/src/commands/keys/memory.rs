//! MEMORY USAGE: what a key costs. The other subcommands of MEMORY look at the whole process, of which a keyspace knows
//! nothing.

use command::{Access, Command, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use super::key_at;
use crate::commands::arguments::{integer, is};
use crate::commands::{Body, DataCommand};
use crate::context::View;

pub const MEMORY: DataCommand = Command {
    name: "memory",
    since: "4.0.0",
    group: Group::Server,
    summary: "A container for memory diagnostics commands.",
    complexity: "Depends on subcommand.",
    syntax: "",
    arity: -2,
    flags: &[],
    categories: &[],
    keys: &[],
    tips: &[],
    span: Span::Nothing,
    subcommands: &[USAGE],
    body: Body::Container,
};

const USAGE: DataCommand = Command {
    name: "usage",
    since: "4.0.0",
    group: Group::Server,
    summary: "Estimate the memory usage of a key.",
    complexity: "O(1)",
    syntax: "key [SAMPLES count]",
    arity: -3,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[key_at(2, Access::Read, &[])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(usage),
};

fn usage(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let mut next = 3;
    while let Some(word) = args.get(next) {
        // How many elements to look at matters to none of the types there are; it is read all the same.
        match args.get(next + 1) {
            Some(samples) if is(word, "samples") && integer(samples)? >= 0 => next += 2,
            _ => return Err(Refusal::SYNTAX),
        }
    }
    match view.aside().peek(args.at(2)) {
        Some(entry) => writer.count(entry.memory_bytes()),
        None => writer.null(),
    }
    Ok(())
}
