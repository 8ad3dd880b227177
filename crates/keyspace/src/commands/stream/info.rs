//! XINFO: what a stream, its groups and their consumers are like.

use command::{Access, Flag, Refusal, Span};
use resp::{Args, Writer};
use stdx::Level;

use super::group::key_of_subcommand;
use super::{ON_STREAM, no_group_of_key, subcommand_syntax, write_entries, write_entry, write_id};
use crate::View;
use crate::collection::stream::group::Group;
use crate::collection::stream::{Direction, Id, Stream};
use crate::commands::arguments::{integer, is};
use crate::commands::keys::write_help;
use crate::commands::{Body, DataCommand};

pub(super) const XINFO: DataCommand = DataCommand {
    name: "xinfo",
    summary: "A container for commands that describe a stream.",
    complexity: "Depends on subcommand.",
    arity: -2,
    span: Span::Nothing,
    subcommands: &[CONSUMERS, GROUPS, HELP, STREAM],
    ..ON_STREAM
};

const STREAM: DataCommand = DataCommand {
    name: "stream",
    summary: "Describes a stream.",
    complexity: "O(N) where N is the number of blocks in which the entries lie; with FULL, of what is shown.",
    syntax: "key [FULL [COUNT count]]",
    arity: -3,
    flags: &[Flag::Readonly],
    keys: &[key_of_subcommand(Access::Read, &["access"])],
    body: Body::Query(stream),
    ..ON_STREAM
};

const GROUPS: DataCommand = DataCommand {
    name: "groups",
    summary: "Lists the groups of a stream.",
    complexity: "O(N) where N is the number of groups.",
    syntax: "key",
    arity: 3,
    body: Body::Query(groups),
    ..STREAM
};

const CONSUMERS: DataCommand = DataCommand {
    name: "consumers",
    summary: "Lists the consumers of a group.",
    complexity: "O(N) where N is the number of consumers.",
    syntax: "key group",
    arity: 4,
    tips: &["nondeterministic_output"],
    body: Body::Query(consumers),
    ..STREAM
};

const HELP: DataCommand = DataCommand {
    name: "help",
    summary: "Shows what the subcommands do.",
    complexity: "O(1)",
    syntax: "",
    arity: 2,
    flags: &[Flag::Loading, Flag::Stale],
    keys: &[],
    span: Span::Nothing,
    body: Body::Query(help),
    ..STREAM
};

fn help(_: &View<'_>, _: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    write_help(
        writer,
        "XINFO",
        &[
            "CONSUMERS <key> <groupname>",
            "    Show consumers of <groupname>.",
            "GROUPS <key>",
            "    Show the stream consumer groups.",
            "STREAM <key> [FULL [COUNT <count>]",
            "    Show information about the stream.",
        ],
    );
    Ok(())
}

/// How much of each list is shown.
enum Detail {
    Brief,
    Full(usize),
}

impl Detail {
    fn parse(args: Args<'_>) -> Result<Self, Refusal> {
        const COUNT: usize = 10;
        let count = match args.len() {
            3 => return Ok(Self::Brief),
            4 if is(args.at(3), "full") => COUNT,
            6 if is(args.at(3), "full") && is(args.at(4), "count") => match usize::try_from(integer(args.at(5))?) {
                Ok(0) => usize::MAX,
                Ok(count) => count,
                Err(_) => COUNT,
            },
            _ => return Err(subcommand_syntax("XINFO", args.at(1))),
        };
        Ok(Self::Full(count))
    }
}

fn stream(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let stream = view.stream(args.at(2))?.ok_or(Refusal::NO_SUCH_KEY)?;
    let detail = Detail::parse(args)?;
    let head = stream.head();
    // What is remembered of producers is shown once there is anything to it.
    let memory = stream.idempotence();
    writer.map(if let Detail::Brief = detail { 10 } else { 9 } + if memory.is_some() { 6 } else { 0 });
    number(writer, "length", stream.entry_count());
    number(writer, "radix-tree-keys", stream.blocks().len() as u64);
    number(writer, "radix-tree-nodes", radix_tree_nodes(stream));
    id(writer, "last-generated-id", head.last);
    id(writer, "max-deleted-entry-id", head.deleted_max);
    number(writer, "entries-added", head.added);
    id(writer, "recorded-first-entry-id", stream.first());
    if let Some(memory) = memory {
        let (producers, ids) = memory.tracked(view.moment().unix.0.max(0) as u64);
        number(writer, "idmp-duration", memory.duration_s);
        number(writer, "idmp-maxsize", memory.ids_max);
        number(writer, "pids-tracked", producers);
        number(writer, "iids-tracked", ids);
        number(writer, "iids-added", memory.added);
        number(writer, "iids-duplicates", memory.duplicates);
    }
    match detail {
        Detail::Brief => {
            number(writer, "groups", stream.groups().len() as u64);
            for (name, direction) in [("first-entry", Direction::Up), ("last-entry", Direction::Down)] {
                writer.bulk(name.as_bytes());
                if stream.visit(Id::MIN, Id::MAX, direction, 1, |entry| write_entry(writer, &entry)) == 0 {
                    writer.null();
                }
            }
        }
        Detail::Full(count) => {
            writer.bulk(b"entries");
            write_entries(writer, stream, (Id::MIN, Id::MAX), Direction::Up, count);
            writer.bulk(b"groups");
            writer.array(stream.groups().len());
            let level = view.level();
            stream.groups().iter().for_each(|group| write_group_in_full(writer, stream, group, count, level));
        }
    }
    Ok(())
}

fn number(writer: &mut Writer, name: &str, number: u64) {
    writer.bulk(name.as_bytes());
    writer.integer(number as i64);
}

fn id(writer: &mut Writer, name: &str, id: Id) {
    writer.bulk(name.as_bytes());
    write_id(writer, id);
}

/// How far a group has come.
fn write_progress(writer: &mut Writer, stream: &Stream, group: &Group, level: Level) {
    id(writer, "last-delivered-id", group.last);
    for (name, number) in [("entries-read", group.read.map(|read| read as i64)), ("lag", stream.lag(group, level))] {
        writer.bulk(name.as_bytes());
        match number {
            Some(number) => writer.integer(number),
            None => writer.null(),
        }
    }
}

fn write_group_in_full(writer: &mut Writer, stream: &Stream, group: &Group, count: usize, level: Level) {
    writer.map(8);
    writer.bulk(b"name");
    writer.bulk(&group.name);
    write_progress(writer, stream, group, level);
    number(writer, "pel-count", group.pending.len() as u64);
    number(writer, "nacked-count", group.released_count() as u64);
    writer.bulk(b"pending");
    writer.array(group.pending.len().min(count));
    for pending in group.pending.iter().take(count) {
        writer.array(4);
        write_id(writer, pending.id);
        writer.bulk(pending.owner().map_or(b"", |owner| owner));
        writer.integer(pending.time());
        writer.integer(pending.shown_count());
    }
    writer.bulk(b"consumers");
    writer.array(group.consumers.len());
    for consumer in group.consumers.iter() {
        writer.map(5);
        writer.bulk(b"name");
        writer.bulk(&consumer.name);
        writer.bulk(b"seen-time");
        writer.integer(consumer.seen);
        writer.bulk(b"active-time");
        writer.integer(consumer.active.unwrap_or(-1));
        number(writer, "pel-count", consumer.pending.len() as u64);
        writer.bulk(b"pending");
        writer.array(consumer.pending.len().min(count));
        for pending in group.pending_range(Id::MIN, Id::MAX, Some(consumer)).take(count) {
            writer.array(3);
            write_id(writer, pending.id);
            writer.integer(pending.time());
            writer.integer(pending.shown_count());
        }
    }
}

/// How many nodes Redis's radix tree of blocks would have: one for each leaf and each place where ids part, and one for
/// every run of bytes between these.
fn radix_tree_nodes(stream: &Stream) -> u64 {
    let keys: Vec<[u8; 16]> = stream.blocks().iter().map(|block| block.first().to_bytes()).collect();
    if keys.is_empty() { 1 } else { nodes_under(&keys, 0) }
}

fn nodes_under(keys: &[[u8; 16]], depth: usize) -> u64 {
    let (first, last) = (keys[0], keys[keys.len() - 1]);
    // Keys are in order: what the ends share, all share.
    let shared = first[depth..].iter().zip(&last[depth..]).take_while(|(left, right)| left == right).count();
    let run = u64::from(shared > 0);
    let parting = depth + shared;
    if parting == first.len() {
        return run + 1;
    }
    let children = keys.chunk_by(|left, right| left[parting] == right[parting]);
    run + 1 + children.map(|keys| nodes_under(keys, parting + 1)).sum::<u64>()
}

fn groups(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let stream = view.stream(args.at(2))?.ok_or(Refusal::NO_SUCH_KEY)?;
    writer.array(stream.groups().len());
    for group in stream.groups().iter() {
        writer.map(6);
        writer.bulk(b"name");
        writer.bulk(&group.name);
        number(writer, "consumers", group.consumers.len() as u64);
        number(writer, "pending", group.pending.len() as u64);
        write_progress(writer, stream, group, view.level());
    }
    Ok(())
}

fn consumers(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (key, name) = (args.at(2), args.at(3));
    let stream = view.stream(key)?.ok_or(Refusal::NO_SUCH_KEY)?;
    let group = stream.group(name).ok_or_else(|| no_group_of_key(key, name))?;
    let now = view.moment().unix.0;
    writer.array(group.consumers.len());
    for consumer in group.consumers.iter() {
        writer.map(4);
        writer.bulk(b"name");
        writer.bulk(&consumer.name);
        number(writer, "pending", consumer.pending.len() as u64);
        writer.bulk(b"idle");
        writer.integer(now.saturating_sub(consumer.seen).max(0));
        writer.bulk(b"inactive");
        writer.integer(consumer.active.map_or(-1, |active| now.saturating_sub(active).max(0)));
    }
    Ok(())
}
