//! XGROUP and XACK: who reads a stream together.

use command::{Access, Begin, Find, Flag, KeySpec, Refusal, Span};
use resp::{Args, Writer};

use super::{ON_STREAM, no_group_of_key, open_id, strict_id, subcommand_syntax};
use crate::collection::stream::Id;
use crate::collection::stream::group::Group;
use crate::commands::arguments::{integer, is};
use crate::commands::keys::write_help;
use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, View};

pub(super) const XGROUP: DataCommand = DataCommand {
    name: "xgroup",
    summary: "A container for commands on groups of consumers.",
    complexity: "Depends on subcommand.",
    arity: -2,
    span: Span::Nothing,
    subcommands: &[CREATE, CREATECONSUMER, DELCONSUMER, DESTROY, HELP, SETID],
    ..ON_STREAM
};

pub(super) const fn key_of_subcommand(access: Access, notes: &'static [&'static str]) -> KeySpec {
    KeySpec { access, begin: Begin::Index(2), find: Find::Range { last: 0, step: 1, limit: 0 }, notes }
}

const CREATE: DataCommand = DataCommand {
    name: "create",
    summary: "Creates a group of consumers.",
    complexity: "O(log N) where N is the number of groups.",
    syntax: "key group <id | $> [MKSTREAM] [ENTRIESREAD entries-read]",
    arity: -5,
    flags: &[Flag::Write, Flag::Denyoom],
    keys: &[key_of_subcommand(Access::ReadWrite, &["insert"])],
    body: Body::Mutate(create),
    ..ON_STREAM
};

const SETID: DataCommand = DataCommand {
    name: "setid",
    summary: "Sets the id up to which a group has read.",
    syntax: "key group <id | $> [ENTRIESREAD entries-read]",
    flags: &[Flag::Write],
    keys: &[key_of_subcommand(Access::ReadWrite, &["update"])],
    body: Body::Mutate(set_id),
    ..CREATE
};

/// CREATE before it bounded what a group is told to have read.
pub(crate) const CREATE_OF_LEVEL_1: DataCommand =
    DataCommand { body: Body::Mutate(|edit, args, writer| create_with(edit, args, writer, |read, _| read)), ..CREATE };

/// SETID before it did.
pub(crate) const SETID_OF_LEVEL_1: DataCommand =
    DataCommand { body: Body::Mutate(|edit, args, writer| set_id_with(edit, args, writer, |read, _| read)), ..SETID };

const DESTROY: DataCommand = DataCommand {
    name: "destroy",
    summary: "Removes a group with its consumers.",
    syntax: "key group",
    arity: 4,
    flags: &[Flag::Write],
    keys: &[key_of_subcommand(Access::ReadWrite, &["delete"])],
    body: Body::Mutate(destroy),
    ..CREATE
};

const CREATECONSUMER: DataCommand = DataCommand {
    name: "createconsumer",
    since: "6.2.0",
    summary: "Creates a consumer in a group.",
    syntax: "key group consumer",
    arity: 5,
    body: Body::Mutate(create_consumer),
    ..CREATE
};

const DELCONSUMER: DataCommand = DataCommand {
    name: "delconsumer",
    summary: "Removes a consumer with its pending entries, and returns how many there were.",
    complexity: "O(N log M) where N is what is pending for the consumer, and M what is pending in the group.",
    syntax: "key group consumer",
    arity: 5,
    flags: &[Flag::Write],
    keys: &[key_of_subcommand(Access::ReadWrite, &["delete"])],
    body: Body::Mutate(delete_consumer),
    ..CREATE
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
    ..CREATE
};

fn help(_: &View<'_>, _: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    write_help(
        writer,
        "XGROUP",
        &[
            "CREATE <key> <groupname> <id|$> [option]",
            "    Create a new consumer group. Options are:",
            "    * MKSTREAM",
            "      Create the empty stream if it does not exist.",
            "    * ENTRIESREAD entries_read",
            "      Set the group's entries_read counter (internal use).",
            "CREATECONSUMER <key> <groupname> <consumer>",
            "    Create a new consumer in the specified group.",
            "DELCONSUMER <key> <groupname> <consumer>",
            "    Remove the specified consumer.",
            "DESTROY <key> <groupname>",
            "    Remove the specified group.",
            "SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
            "    Set the current group ID and entries_read counter.",
        ],
    );
    Ok(())
}

/// What stands behind the id of CREATE and SETID.
#[derive(Default)]
struct Options {
    makes_stream: bool,
    read: Option<u64>,
}

/// How many entries a group is to have read, of all that were ever added, by what was said.
type Bound = fn(Option<u64>, u64) -> Option<u64>;

/// No more than were added, as in Redis 8.
fn bounded(read: Option<u64>, added: u64) -> Option<u64> {
    read.map(|read| read.min(added))
}

impl Options {
    fn parse(args: Args<'_>, is_create: bool) -> Result<Self, Refusal> {
        let mut options = Self::default();
        let mut index = 5;
        while index < args.len() {
            if is_create && is(args.at(index), "mkstream") {
                options.makes_stream = true;
                index += 1;
            } else if is(args.at(index), "entriesread") && index + 1 < args.len() {
                options.read = match integer(args.at(index + 1))? {
                    -1 => None,
                    number => Some(
                        u64::try_from(number)
                            .map_err(|_| Refusal::new("ERR value for ENTRIESREAD must be positive or -1"))?,
                    ),
                };
                index += 2;
            } else {
                return Err(subcommand_syntax("XGROUP", args.at(1)));
            }
        }
        Ok(options)
    }
}

const NO_STREAM: &str = "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the \
                         MKSTREAM option to create an empty stream automatically.";

/// The stream must exist, and the group in it.
fn check_group(edit: &Edit<'_>, key: &[u8], group: &[u8]) -> Result<(), Refusal> {
    let stream = edit.view().stream(key)?.ok_or(Refusal::new(NO_STREAM))?;
    if stream.group(group).is_some() { Ok(()) } else { Err(no_group_of_key(key, group)) }
}

fn create(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    create_with(edit, args, writer, bounded)
}

fn create_with(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer, bound: Bound) -> Result<(), Refusal> {
    /// MKSTREAM and ENTRIESREAD once each.
    const WORDS_MAX: usize = 8;
    let (key, name) = (args.at(2), args.at(3));
    let options = Options::parse(args, true)?;
    let stream = edit.view().stream(key)?;
    if stream.is_none() && !options.makes_stream {
        return Err(Refusal::new(NO_STREAM));
    }
    if args.len() > WORDS_MAX {
        return Err(subcommand_syntax("XGROUP", args.at(1)));
    }
    let last = match args.at(4) {
        b"$" => stream.map_or(Id::MIN, |stream| stream.head().last),
        word => strict_id(word, 0)?,
    };
    let added = stream.map_or(0, |stream| stream.head().added);
    if stream.is_some_and(|stream| stream.group(name).is_some()) {
        return Err(Refusal::new("BUSYGROUP Consumer Group name already exists"));
    }
    edit.modify_stream(key, |stream| stream.change().add_group(Group::new(name, last, bound(options.read, added))))?;
    edit.notify(Class::Stream, "xgroup-create", key);
    writer.ok();
    Ok(())
}

fn set_id(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    set_id_with(edit, args, writer, bounded)
}

fn set_id_with(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer, bound: Bound) -> Result<(), Refusal> {
    let (key, name) = (args.at(2), args.at(3));
    let options = Options::parse(args, false)?;
    check_group(edit, key, name)?;
    if !matches!(args.len(), 5 | 7) {
        return Err(subcommand_syntax("XGROUP", args.at(1)));
    }
    let last = match args.at(4) {
        b"$" => edit.view().stream(key)?.map_or(Id::MIN, |stream| stream.head().last),
        word => open_id(word, 0)?,
    };
    let read = bound(options.read, edit.view().stream(key)?.map_or(0, |stream| stream.head().added));
    edit.modify_stream(key, |stream| {
        stream.change().change_group(name, |group| (group.last, group.read) = (last, read))
    })?;
    edit.notify(Class::Stream, "xgroup-setid", key);
    writer.ok();
    Ok(())
}

fn destroy(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (key, name) = (args.at(2), args.at(3));
    let stream = edit.view().stream(key)?.ok_or(Refusal::new(NO_STREAM))?;
    let exists = stream.group(name).is_some();
    if exists {
        if let Some(part) = edit.modify_stream(key, |stream| stream.change().remove_group(name))? {
            edit.free_stream_later(part);
        }
        edit.notify(Class::Stream, "xgroup-destroy", key);
    }
    writer.integer(exists.into());
    Ok(())
}

fn create_consumer(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (key, name, consumer) = (args.at(2), args.at(3), args.at(4));
    check_group(edit, key, name)?;
    let now = edit.moment().unix.0;
    let is_new = edit.modify_stream(key, |stream| {
        let exists = stream.as_ref().group(name).is_some_and(|group| group.consumer(consumer).is_some());
        !exists && stream.change().change_group(name, |group| group.add_consumer(consumer, now)) == Some(true)
    })?;
    if is_new {
        edit.notify(Class::Stream, "xgroup-createconsumer", key);
    }
    writer.integer(is_new.into());
    Ok(())
}

fn delete_consumer(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (key, name, consumer) = (args.at(2), args.at(3), args.at(4));
    check_group(edit, key, name)?;
    let pending = edit.modify_stream(key, |stream| {
        stream.as_ref().group(name)?.consumer(consumer)?;
        stream.change().change_group(name, |group| group.remove_consumer(consumer)).flatten()
    })?;
    if pending.is_some() {
        edit.notify(Class::Stream, "xgroup-delconsumer", key);
    }
    writer.count(pending.unwrap_or(0));
    Ok(())
}

pub(super) const XACK: DataCommand = DataCommand {
    name: "xack",
    summary: "Acknowledges entries, and returns how many of them were pending in the group.",
    complexity: "O(log N) for each id, where N is the number of pending entries.",
    syntax: "key group id [id ...]",
    arity: -4,
    flags: &[Flag::Write, Flag::Fast],
    keys: &[first_key(Access::ReadWrite, &["update"])],
    body: Body::Mutate(acknowledge),
    ..ON_STREAM
};

fn acknowledge(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (key, name) = (args.at(1), args.at(2));
    if edit.reading().stream(key)?.is_none_or(|stream| stream.group(name).is_none()) {
        writer.integer(0);
        return Ok(());
    }
    let ids = args.iter().skip(3).map(|word| strict_id(word, 0)).collect::<Result<Vec<_>, _>>()?;
    let count = edit.modify_stream(key, |stream| {
        let is_pending = |id: &Id| stream.as_ref().group(name).is_some_and(|group| group.pending(*id).is_some());
        if !ids.iter().any(is_pending) {
            return 0;
        }
        let change = |group: &mut Group| ids.iter().filter(|&&id| group.acknowledge(id)).count();
        stream.change().change_group(name, change).unwrap_or(0)
    })?;
    writer.count(count);
    Ok(())
}
