//! COMMAND: the records of all commands, as clients read them.

use command::syntax::{Argument, ArgumentKind};
use command::{Access, Begin, Command, Find, Flag, Group, KeySpec, Refusal, history};
use resp::{Args, Writer};

use super::record::Record;
use super::{COMMANDS, ControlCommand, Outcome, container, find, local};
use crate::acl::used_notes;
use crate::known::Known;

const FLAGS: &[Flag] = &[Flag::Loading, Flag::Stale];
const TIPS: &[&str] = &["nondeterministic_output_order"];

pub(super) const COMMAND: ControlCommand = ControlCommand {
    since: "2.8.13",
    summary: "Describes all commands.",
    complexity: "O(N) where N is the total number of Redis commands",
    arity: -1,
    flags: FLAGS,
    categories: &["@connection"],
    tips: TIPS,
    subcommands: &[COUNT, INFO, LIST, DOCS, GETKEYS, GETKEYSANDFLAGS, HELP],
    body: super::Body::Local(|_, _, writer| {
        let all = all();
        writer.array(all.len());
        for known in all {
            write_info(known, writer);
        }
        Ok(())
    }),
    ..container("command")
};

const fn describe(name: &'static str, arity: i32, run: super::Run) -> ControlCommand {
    ControlCommand { since: "2.8.13", flags: FLAGS, categories: &["@connection"], ..local(name, arity, run) }
}

/// Every command of both kinds. MEMORY is of both, and is described once.
fn all() -> Vec<Known> {
    let is_described = |command: &&&keyspace::DataCommand| find(command.name.as_bytes()).is_none();
    let data = keyspace::COMMANDS.iter().filter(is_described).map(|command| Known::Data(command));
    data.chain(COMMANDS.iter().map(|command| Known::Control(*command))).collect()
}

/// Subcommands of a container of both kinds that are commands on data: MEMORY USAGE.
fn subcommands_on_data(name: &str) -> &'static [keyspace::DataCommand] {
    let of_both = find(name.as_bytes()).and(keyspace::find(name.as_bytes()));
    of_both.map_or(&[], |command| command.subcommands)
}

/// The command, or the subcommand `name|word`.
fn find_any(name: &[u8]) -> Option<Described> {
    let mut parts = name.splitn(2, |byte| *byte == b'|');
    let first = parts.next()?;
    let known =
        find(first).map(|command| Known::Control(command)).or_else(|| keyspace::find(first).map(Known::Data))?;
    let Some(word) = parts.next() else { return Some(Described { known, container: None }) };
    let is_it = |name: &str| name.as_bytes().eq_ignore_ascii_case(word);
    let (known, container) = match known {
        Known::Data(command) => (Known::Data(command.subcommands.iter().find(|sub| is_it(sub.name))?), command.name),
        Known::Control(command) => {
            let control = command.subcommand(word.as_ref()).map(Known::Control);
            let on_data = subcommands_on_data(command.name()).iter().find(|sub| is_it(sub.name)).map(Known::Data);
            (control.or(on_data)?, command.name())
        }
    };
    Some(Described { known, container: Some(container) })
}

struct Described {
    known: Known,
    container: Option<&'static str>,
}

const COUNT: ControlCommand = ControlCommand {
    summary: "Returns the number of commands.",
    ..describe("count", 2, |_, _, writer| {
        writer.count(all().len());
        Ok(())
    })
};

const INFO: ControlCommand = ControlCommand {
    summary: "Describes some commands.",
    complexity: "O(N) where N is the number of commands to look up",
    syntax: "[command-name [command-name ...]]",
    tips: TIPS,
    ..describe("info", -2, |_, args, writer| {
        if args.len() == 2 {
            let all = all();
            writer.array(all.len());
            for known in all {
                write_info(known, writer);
            }
            return Ok(());
        }
        writer.array(args.len() - 2);
        for name in args.iter().skip(2) {
            match find_any(name) {
                Some(described) => write_described(&described, writer),
                None => writer.null_array(),
            }
        }
        Ok(())
    })
};

fn write_info(known: Known, writer: &mut Writer) {
    write_described(&Described { known, container: None }, writer);
}

fn write_described(described: &Described, writer: &mut Writer) {
    match described.known.record() {
        Record::Data(command) => write_command(command, described.container, &[], writer),
        Record::Control(command) => {
            let on_data = if described.container.is_none() { subcommands_on_data(command.name) } else { &[] };
            write_command(command, described.container, on_data, writer);
        }
    }
}

fn write_command<B>(
    command: &Command<B>,
    container: Option<&str>,
    on_data: &[keyspace::DataCommand],
    writer: &mut Writer,
) {
    writer.array(10);
    writer.bulk(full_name(command.name, container).as_bytes());
    writer.integer(i64::from(command.arity));
    let flags: Vec<_> = command.flags.iter().map(|flag| flag_name(*flag)).collect();
    writer.set(flags.len());
    for flag in flags {
        writer.simple(flag);
    }
    let (first, last, step) = simple_range(command.keys);
    writer.integer(first);
    writer.integer(last);
    writer.integer(step);
    let categories = categories(command);
    writer.set(categories.len());
    for category in categories {
        writer.simple(&format!("@{category}"));
    }
    writer.set(command.tips.len());
    for tip in command.tips {
        writer.bulk(tip.as_bytes());
    }
    writer.set(command.keys.len());
    for spec in command.keys {
        write_key_spec(spec, writer);
    }
    writer.set(command.subcommands.len() + on_data.len());
    for subcommand in command.subcommands {
        write_command(subcommand, Some(command.name), &[], writer);
    }
    for subcommand in on_data {
        write_command(subcommand, Some(command.name), &[], writer);
    }
}

fn full_name(name: &str, container: Option<&str>) -> String {
    container.map_or_else(|| name.to_owned(), |container| format!("{container}|{name}"))
}

/// The place of which clients are told.
fn told(begin: Begin) -> Begin {
    if let Begin::Found(told, _) = begin { *told } else { begin }
}

/// Redis derives the old three numbers from the first specification that is a range from a fixed word.
fn simple_range(keys: &[KeySpec]) -> (i64, i64, i64) {
    let ranges: Vec<_> = keys
        .iter()
        .filter_map(|spec| match (told(spec.begin), spec.find) {
            (Begin::Index(first), Find::Range { last, step, .. }) => {
                let first = first as i64;
                let last = i64::from(last);
                Some((first, if last >= 0 { first + last } else { last }, step as i64))
            }
            _ => None,
        })
        .collect();
    let Some(&(first, mut last, step)) = ranges.iter().min_by_key(|range| range.0) else { return (0, 0, 0) };
    // Specifications that follow one another without a gap are one range to old clients.
    for range in ranges.iter().skip(1) {
        if last >= 0 && range.0 == last + 1 && range.2 == step {
            last = range.1;
        }
    }
    (first, last, step)
}

fn flag_name(flag: Flag) -> &'static str {
    match flag {
        Flag::Write => "write",
        Flag::Readonly => "readonly",
        Flag::Denyoom => "denyoom",
        Flag::Admin => "admin",
        Flag::Pubsub => "pubsub",
        Flag::Noscript => "noscript",
        Flag::Blocking => "blocking",
        Flag::Loading => "loading",
        Flag::Stale => "stale",
        Flag::SkipMonitor => "skip_monitor",
        Flag::SkipSlowlog => "skip_slowlog",
        Flag::Fast => "fast",
        Flag::NoAuth => "no_auth",
        Flag::MayReplicate => "may_replicate",
        Flag::NoMulti => "no_multi",
        Flag::MovableKeys => "movablekeys",
        Flag::AllowBusy => "allow_busy",
        Flag::NoMandatoryKeys => "no_mandatory_keys",
        Flag::NoAsyncLoading => "no_async_loading",
    }
}

/// The categories of access control that a command is in.
pub(crate) fn categories_of(known: Known) -> Vec<&'static str> {
    match known.record() {
        Record::Data(command) => categories(command),
        Record::Control(command) => categories(command),
    }
}

/// Categories that follow from flags and group, and the record's own.
///
/// Most groups are categories of the same name; `generic`, `server` and some others are not, so their records name
/// theirs.
fn categories<B>(command: &Command<B>) -> Vec<&'static str> {
    let mut categories: Vec<&'static str> = Vec::new();
    let mut add = |category| {
        if !categories.contains(&category) {
            categories.push(category);
        }
    };
    if command.has(Flag::Write) {
        add("@write");
    }
    // What a script reads is not known.
    if command.has(Flag::Readonly) && command.group != Group::Scripting {
        add("@read");
    }
    match command.group {
        // A container is in the categories of none of its subcommands.
        _ if !command.subcommands.is_empty() => {}
        Group::Bitmap => add("@bitmap"),
        Group::String => add("@string"),
        Group::Transactions => add("@transaction"),
        Group::Hash => add("@hash"),
        Group::List => add("@list"),
        Group::Set => add("@set"),
        Group::SortedSet => add("@sortedset"),
        Group::Stream => add("@stream"),
        Group::Hyperloglog => add("@hyperloglog"),
        Group::Geo => add("@geo"),
        Group::Json => add("@json"),
        Group::Bloom => add("@bloom"),
        Group::Cuckoo => add("@cuckoo"),
        Group::CountMin => add("@cms"),
        Group::TopK => add("@topk"),
        Group::Digest => add("@tdigest"),
        Group::Scripting => add("@scripting"),
        Group::Connection => add("@connection"),
        // Redis has no category for vector sets.
        Group::Generic | Group::Server | Group::Pubsub | Group::Cluster | Group::VectorSet => {}
    }
    if command.has(Flag::Admin) {
        add("@admin");
        add("@dangerous");
    }
    if command.has(Flag::Pubsub) {
        add("@pubsub");
    }
    add(if command.has(Flag::Fast) { "@fast" } else { "@slow" });
    if command.has(Flag::Blocking) {
        add("@blocking");
    }
    command.categories.iter().for_each(|category| add(category));
    categories.into_iter().map(|category| category.trim_start_matches('@')).collect()
}

fn write_key_spec(spec: &KeySpec, writer: &mut Writer) {
    let notes = spec.notes.iter().find(|note| note.contains(' '));
    let words: Vec<_> = spec.notes.iter().filter(|note| !note.contains(' ')).collect();
    writer.map(3 + usize::from(notes.is_some()));
    if let Some(notes) = notes {
        writer.bulk(b"notes");
        writer.bulk(notes.as_bytes());
    }
    writer.bulk(b"flags");
    writer.set(1 + words.len());
    writer.simple(access_name(spec.access));
    for word in words {
        writer.simple(word);
    }
    writer.bulk(b"begin_search");
    writer.map(2);
    writer.bulk(b"type");
    match told(spec.begin) {
        Begin::Index(index) | Begin::Cursor(index) => {
            writer.bulk(b"index");
            writer.bulk(b"spec");
            writer.map(1);
            writer.bulk(b"index");
            writer.count(index);
        }
        Begin::Keyword(keyword, from) => {
            writer.bulk(b"keyword");
            writer.bulk(b"spec");
            writer.map(2);
            writer.bulk(b"keyword");
            writer.bulk(keyword.as_bytes());
            writer.bulk(b"startfrom");
            writer.integer(i64::from(from));
        }
        Begin::Computed(_) | Begin::Found(..) | Begin::Unknown => {
            writer.bulk(b"unknown");
            writer.bulk(b"spec");
            writer.map(0);
        }
    }
    writer.bulk(b"find_keys");
    writer.map(2);
    writer.bulk(b"type");
    match spec.find {
        // A client that does not know where the first is cannot find the others.
        _ if matches!(spec.begin, Begin::Computed(_)) => {
            writer.bulk(b"unknown");
            writer.bulk(b"spec");
            writer.map(0);
        }
        Find::Range { last, step, limit } => {
            writer.bulk(b"range");
            writer.bulk(b"spec");
            writer.map(3);
            writer.bulk(b"lastkey");
            writer.integer(i64::from(last));
            writer.bulk(b"keystep");
            writer.count(step);
            writer.bulk(b"limit");
            writer.count(limit);
        }
        Find::Counted { count, first, step } => {
            writer.bulk(b"keynum");
            writer.bulk(b"spec");
            writer.map(3);
            writer.bulk(b"keynumidx");
            writer.count(count);
            writer.bulk(b"firstkey");
            writer.count(first);
            writer.bulk(b"keystep");
            writer.count(step);
        }
        Find::Unknown => {
            writer.bulk(b"unknown");
            writer.bulk(b"spec");
            writer.map(0);
        }
    }
}

fn access_name(access: Access) -> &'static str {
    match access {
        Access::Read => "RO",
        Access::ReadWrite => "RW",
        Access::Overwrite => "OW",
        Access::Remove => "RM",
        Access::NotKey => "not_key",
    }
}

const LIST: ControlCommand = ControlCommand {
    since: "7.0.0",
    summary: "Lists the names of commands.",
    complexity: "O(N) where N is the total number of Redis commands",
    syntax: "[FILTERBY <MODULE module-name | ACLCAT category | PATTERN pattern>]",
    tips: TIPS,
    ..describe("list", -2, list)
};

/// Whether a command of this name, in these categories, is listed.
type Passes = Box<dyn Fn(&str, &[&str]) -> bool>;

fn list(_: &mut super::Local<'_>, args: Args<'_>, writer: &mut Writer) -> Outcome {
    let passes: Passes = match args.len() {
        2 => Box::new(|_, _| true),
        5 if args.at(2).eq_ignore_ascii_case(b"filterby") => {
            let value = args.at(4).to_vec();
            match args.at(3).to_ascii_lowercase().as_slice() {
                b"module" => Box::new(|_, _| false),
                b"aclcat" => Box::new(move |_, categories| {
                    categories.iter().any(|category| category.as_bytes().eq_ignore_ascii_case(&value))
                }),
                b"pattern" => {
                    Box::new(move |name, _| keyspace::glob::matches(&value.to_ascii_lowercase(), name.as_bytes()))
                }
                _ => return Err(Refusal::SYNTAX),
            }
        }
        _ => return Err(Refusal::SYNTAX),
    };
    let mut names = Vec::new();
    for known in all() {
        match known.record() {
            Record::Data(command) => list_names(command, None, &passes, &mut names),
            Record::Control(command) => {
                list_names(command, None, &passes, &mut names);
                for subcommand in subcommands_on_data(command.name) {
                    list_names(subcommand, Some(command.name), &passes, &mut names);
                }
            }
        }
    }
    writer.array(names.len());
    for name in names {
        writer.bulk(name.as_bytes());
    }
    Ok(())
}

fn list_names<B>(command: &Command<B>, container: Option<&str>, passes: &Passes, names: &mut Vec<String>) {
    let name = full_name(command.name, container);
    if passes(&name, &categories(command)) {
        names.push(name);
    }
    for subcommand in command.subcommands {
        list_names(subcommand, Some(command.name), passes, names);
    }
}

const DOCS: ControlCommand = ControlCommand {
    since: "7.0.0",
    summary: "Documents commands.",
    complexity: "O(N) where N is the number of commands to look up",
    syntax: "[command-name [command-name ...]]",
    tips: TIPS,
    ..describe("docs", -2, |_, args, writer| {
        let described: Vec<Described> = if args.len() == 2 {
            all().into_iter().map(|known| Described { known, container: None }).collect()
        } else {
            args.iter().skip(2).filter_map(find_any).collect()
        };
        writer.map(described.len());
        for Described { known, container } in described {
            match known.record() {
                Record::Data(command) => write_docs(command, container, &[], writer),
                Record::Control(command) => {
                    let on_data = if container.is_none() { subcommands_on_data(command.name) } else { &[] };
                    write_docs(command, container, on_data, writer);
                }
            }
        }
        Ok(())
    })
};

fn write_docs<B>(
    command: &Command<B>,
    container: Option<&str>,
    on_data: &[keyspace::DataCommand],
    writer: &mut Writer,
) {
    let name = full_name(command.name, container);
    writer.bulk(name.as_bytes());
    let has_subcommands = !command.subcommands.is_empty();
    let arguments = command::syntax::arguments(command.syntax);
    let (changes, superseded) = (history::history(&name), history::superseded(&name));
    let flags = [(history::is_internal(&name), "syscmd"), (superseded.is_some(), "deprecated")];
    let flags: Vec<_> = flags.iter().filter(|(is_so, _)| *is_so).map(|(_, flag)| *flag).collect();
    let parts = [!flags.is_empty(), !changes.is_empty(), !arguments.is_empty(), has_subcommands];
    let part_count: usize = parts.map(usize::from).iter().sum();
    writer.map(4 + part_count + if superseded.is_some() { 2 } else { 0 });
    for (name, value) in [
        ("summary", command.summary.trim_end_matches('.')),
        ("since", command.since),
        ("group", group_name(command.group)),
        ("complexity", command.complexity),
    ] {
        writer.bulk(name.as_bytes());
        writer.bulk(value.as_bytes());
    }
    if !flags.is_empty() {
        writer.bulk(b"doc_flags");
        writer.set(flags.len());
        flags.iter().for_each(|flag| writer.simple(flag));
    }
    if let Some((since, instead)) = superseded {
        for (name, value) in [("deprecated_since", since), ("replaced_by", instead)] {
            writer.bulk(name.as_bytes());
            writer.bulk(value.as_bytes());
        }
    }
    if !changes.is_empty() {
        writer.bulk(b"history");
        writer.set(changes.len());
        for (since, change) in changes {
            writer.array(2);
            writer.bulk(since.as_bytes());
            writer.bulk(change.as_bytes());
        }
    }
    if !arguments.is_empty() {
        writer.bulk(b"arguments");
        let mut specs = KeySpecs { count: command.keys.len(), next: 0 };
        write_arguments(&arguments, &mut specs, writer);
    }
    if has_subcommands {
        writer.bulk(b"subcommands");
        writer.map(command.subcommands.len() + on_data.len());
        for subcommand in command.subcommands {
            write_docs(subcommand, Some(command.name), &[], writer);
        }
        for subcommand in on_data {
            write_docs(subcommand, Some(command.name), &[], writer);
        }
    }
}

/// Which key specification an argument that is a key belongs to: they are in the order of the syntax.
struct KeySpecs {
    count: usize,
    next: usize,
}

fn write_arguments(arguments: &[Argument], specs: &mut KeySpecs, writer: &mut Writer) {
    writer.array(arguments.len());
    for argument in arguments {
        write_argument(argument, specs, writer);
    }
}

fn write_argument(argument: &Argument, specs: &mut KeySpecs, writer: &mut Writer) {
    let (kind, parts) = match &argument.kind {
        ArgumentKind::Token => ("pure-token", None),
        // What is called a key, and is none, is a string.
        ArgumentKind::Value if argument.value_type() == "key" && specs.count == 0 => ("string", None),
        ArgumentKind::Value => (argument.value_type(), None),
        ArgumentKind::OneOf(choices) => ("oneof", Some(choices)),
        ArgumentKind::Block(parts) => ("block", Some(parts)),
    };
    let flags = [
        (argument.is_optional, "optional"),
        (argument.is_multiple, "multiple"),
        (argument.repeats_token, "multiple_token"),
    ];
    let flags: Vec<_> = flags.iter().filter(|(is_so, _)| *is_so).map(|(_, name)| *name).collect();
    let is_key = kind == "key";
    let fields = 2 + [is_key, argument.token.is_some(), !flags.is_empty(), parts.is_some()]
        .map(usize::from)
        .iter()
        .sum::<usize>();
    writer.map(fields);
    writer.bulk(b"name");
    writer.bulk(argument.name.as_bytes());
    writer.bulk(b"type");
    writer.bulk(kind.as_bytes());
    if is_key {
        writer.bulk(b"key_spec_index");
        writer.count(specs.next.min(specs.count - 1));
        specs.next += 1;
    }
    if let Some(token) = &argument.token {
        writer.bulk(b"token");
        writer.bulk(token.as_bytes());
    }
    if !flags.is_empty() {
        writer.bulk(b"flags");
        writer.set(flags.len());
        flags.iter().for_each(|flag| writer.simple(flag));
    }
    if let Some(parts) = parts {
        writer.bulk(b"arguments");
        write_arguments(parts, specs, writer);
    }
}

fn group_name(group: Group) -> &'static str {
    match group {
        Group::Bitmap => "bitmap",
        Group::Connection => "connection",
        Group::Generic => "generic",
        Group::Server => "server",
        Group::String => "string",
        Group::Transactions => "transactions",
        Group::Scripting => "scripting",
        Group::Pubsub => "pubsub",
        Group::Cluster => "cluster",
        Group::Hash => "hash",
        Group::List => "list",
        Group::Set => "set",
        Group::SortedSet => "sorted-set",
        Group::Stream => "stream",
        Group::Hyperloglog => "hyperloglog",
        Group::Geo => "geo",
        Group::Json => "json",
        Group::Bloom => "bf",
        Group::Cuckoo => "cf",
        Group::CountMin => "cms",
        Group::TopK => "topk",
        Group::Digest => "tdigest",
        Group::VectorSet => "vector_set",
    }
}

const GETKEYS: ControlCommand = ControlCommand {
    summary: "Returns which words of a command are keys.",
    complexity: "O(N) where N is the number of arguments to the command",
    syntax: "command [arg [arg ...]]",
    ..describe("getkeys", -3, |_, args, writer| {
        let keys = keys_of(args.from(2))?;
        writer.array(keys.len());
        for (key, _) in keys {
            writer.bulk(&key);
        }
        Ok(())
    })
};

const GETKEYSANDFLAGS: ControlCommand = ControlCommand {
    since: "7.0.0",
    summary: "Returns which words of a command are keys, and what it does to them.",
    complexity: "O(N) where N is the number of arguments to the command",
    syntax: "command [arg [arg ...]]",
    ..describe("getkeysandflags", -3, |_, args, writer| {
        let keys = keys_of(args.from(2))?;
        writer.array(keys.len());
        for (key, flags) in keys {
            writer.array(2);
            writer.bulk(&key);
            writer.set(flags.len());
            for flag in flags {
                writer.simple(flag);
            }
        }
        Ok(())
    })
};

type KeysAndFlags = Vec<(Vec<u8>, Vec<&'static str>)>;

fn keys_of(args: Args<'_>) -> Result<KeysAndFlags, Refusal> {
    let known = crate::lookup::lookup(args).map_err(|_| Refusal::new("ERR Invalid command specified"))?;
    if !known.accepts(args.len()) {
        return Err(Refusal::new("ERR Invalid number of arguments specified for command"));
    }
    let specs = known.keys();
    let keys = collect_keys(known, specs, args);
    match keys {
        None => Err(Refusal::new("ERR The command has no key arguments")),
        Some(keys) if keys.is_empty() && known.has(Flag::NoMandatoryKeys) => Ok(keys),
        Some(keys) if keys.is_empty() => Err(Refusal::new("ERR Invalid arguments specified for command")),
        Some(keys) => Ok(keys),
    }
}

fn collect_keys(known: Known, specs: &[KeySpec], args: Args<'_>) -> Option<KeysAndFlags> {
    if specs.is_empty() {
        return None;
    }
    let mut keys = Vec::new();
    for spec in specs {
        let notes = used_notes(known, spec, args);
        let is_variable = spec.notes.contains(&"variable_flags");
        spec.for_each(args, &mut |index, access| {
            let access = match access {
                Access::ReadWrite if is_variable && !notes.contains(&"access") => Access::Overwrite,
                Access::ReadWrite if is_variable && !notes.contains(&"update") => Access::Read,
                access => access,
            };
            let mut flags = vec![access_name(access)];
            flags.extend(&notes);
            keys.push((args.at(index).to_vec(), flags));
        });
    }
    Some(keys)
}

const HELP: ControlCommand = ControlCommand {
    since: "5.0.0",
    summary: "Lists the subcommands.",
    ..describe("help", 2, |_, _, writer| {
        super::write_help(writer, "COMMAND", COMMAND.subcommands);
        Ok(())
    })
};
