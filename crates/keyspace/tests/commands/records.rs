//! What the records say of their commands is what Redis says of them.

use std::collections::BTreeMap;

use command::{Access, Begin, Find, KeySpec};
use keyspace::{Body, COMMANDS, DataCommand};
use resp::Frame;

use crate::reference::{Reference, is_in_reference};

/// What is compared, by name: one line a fact, so that a difference reads well.
type Facts = BTreeMap<&'static str, String>;

/// Facts that have changed with Redis 7.2: there are more options, scripts may ask for what others wait for, and
/// clients of a cluster are told more.
const NEWER_FACTS: &[(&str, &str)] = &[
    ("zrank", "arity"),
    ("zrevrank", "arity"),
    ("blpop", "flags"),
    ("brpop", "flags"),
    ("brpoplpush", "flags"),
    ("blmove", "flags"),
    ("bzpopmin", "flags"),
    ("bzpopmax", "flags"),
    ("msetnx", "tips"),
    ("randomkey", "tips"),
    ("scan", "tips"),
];

#[test]
fn records_say_what_command_info_and_command_docs_say() {
    let Some(mut reference) = Reference::start() else { return };
    let mut failures = String::new();
    for command in COMMANDS.iter().filter(|command| is_in_reference(command)) {
        let info = reference.call(&["COMMAND", "INFO", command.name]);
        let docs = reference.call(&["COMMAND", "DOCS", command.name]);
        let Some([info]) = info.elements().filter(|infos| infos[0] != Frame::Null) else {
            // Ours alone, and so documented by us alone.
            failures += &format!("{}: the reference knows no such command\n", command.name);
            continue;
        };
        let [_, docs] = docs.elements().expect("a name and its documentation") else {
            panic!("one command, one entry")
        };
        compare(command.name.into(), command, info, docs, &mut failures);
    }
    assert!(failures.is_empty(), "{failures}");
}

fn compare(name: String, command: &DataCommand, info: &Frame, docs: &Frame, failures: &mut String) {
    let theirs = facts_of_reference(info, docs);
    for (fact, ours) in facts_of_record(command) {
        if theirs[fact] != ours && !NEWER_FACTS.contains(&(name.as_str(), fact)) {
            *failures += &format!("{name}: {fact}\n  reference {}\n  record    {ours}\n", theirs[fact]);
        }
    }
    let infos = info.elements().expect("a list of facts")[9].elements().expect("a list of subcommands");
    let docs = map(docs);
    // Some of a container's subcommands may be declared elsewhere; those that are here must be known.
    for subcommand in command.subcommands {
        let full_name = format!("{name}|{}", subcommand.name);
        let is_it = |frame: &Frame| text(frame) == full_name;
        let info = infos.iter().find(|info| is_it(&info.elements().expect("a list of facts")[0]));
        let all_docs = docs["subcommands"].elements().expect("names and documentation");
        let docs = all_docs.chunks(2).find(|pair| is_it(&pair[0])).map(|pair| &pair[1]);
        match (info, docs) {
            (Some(info), Some(docs)) => compare(full_name, subcommand, info, docs, failures),
            _ => *failures += &format!("{full_name}: the reference knows no such command\n"),
        }
    }
}

fn facts_of_record(command: &DataCommand) -> Facts {
    // Redis keeps a container without properties of its own.
    let flags = command.flags.iter().map(|flag| flag_name(&format!("{flag:?}")));
    Facts::from([
        ("arity", command.arity.to_string()),
        ("flags", sorted(flags)),
        ("tips", sorted(command.tips.iter().map(ToString::to_string))),
        ("keys", if is_container(command) { String::new() } else { list(command.keys.iter().map(key_facts)) }),
        ("since", command.since.into()),
        ("group", flag_name(&format!("{:?}", command.group)).replace('_', "-")),
    ])
}

fn is_container(command: &DataCommand) -> bool {
    matches!(command.body, Body::Container)
}

/// `SkipMonitor` as `skip_monitor`.
fn flag_name(name: &str) -> String {
    if name == "MovableKeys" {
        return "movablekeys".into();
    }
    let mut text = String::new();
    for character in name.chars() {
        if character.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(character.to_ascii_lowercase());
    }
    text
}

fn key_facts(spec: &KeySpec) -> String {
    let access = match spec.access {
        Access::Read => "RO",
        Access::ReadWrite => "RW",
        Access::Overwrite => "OW",
        Access::Remove => "RM",
        Access::NotKey => "not_key",
    };
    let begin = match spec.begin {
        Begin::Index(index) | Begin::Cursor(index) => format!("index {index}"),
        Begin::Keyword(word, from) => format!("keyword {word} {from}"),
        Begin::Computed(_) | Begin::Found(..) | Begin::Unknown => "unknown".into(),
    };
    let find = match spec.find {
        // Where the first key is unknown, so are the others.
        _ if begin == "unknown" => "unknown".into(),
        Find::Range { last, step, limit } => format!("range {last} {step} {limit}"),
        Find::Counted { count, first, step } => format!("keynum {count} {first} {step}"),
        Find::Unknown => "unknown".into(),
    };
    // Those of several words are for people.
    let notes = spec.notes.iter().filter(|note| !note.contains(' ')).map(ToString::to_string);
    let flags = sorted([access.to_string()].into_iter().chain(notes));
    format!("({flags}; {begin}; {find})")
}

fn facts_of_reference(info: &Frame, docs: &Frame) -> Facts {
    let info = info.elements().expect("a list of facts");
    let docs = map(docs);
    let texts = |frame: &Frame| frame.elements().expect("a list").iter().map(text).collect::<Vec<_>>();
    let Frame::Integer(arity) = info[1] else { panic!("the arity is a number") };
    let documented = |name: &str| docs.get(name).map(text).unwrap_or_default();
    Facts::from([
        ("arity", arity.to_string()),
        ("flags", sorted(texts(&info[2]))),
        ("tips", sorted(texts(&info[7]))),
        ("keys", list(info[8].elements().expect("a list of specifications").iter().map(reference_key_facts))),
        ("since", documented("since")),
        ("group", documented("group")),
    ])
}

fn reference_key_facts(spec: &Frame) -> String {
    let spec = map(spec);
    let flags = sorted(spec["flags"].elements().expect("a list of flags").iter().map(text));
    let part = |name: &str, fields: &[&str]| {
        let part = map(&spec[name]);
        let details = if text(&part["type"]) == "unknown" { BTreeMap::new() } else { map(&part["spec"]) };
        let values = fields.iter().filter_map(|field| details.get(*field)).map(|value| match value {
            Frame::Integer(number) => format!(" {number}"),
            other => format!(" {}", text(other)),
        });
        format!("{}{}", text(&part["type"]), values.collect::<String>())
    };
    let begin = part("begin_search", &["index", "keyword", "startfrom"]);
    let find = part("find_keys", &["lastkey", "keynumidx", "firstkey", "keystep", "limit"]);
    format!("({flags}; {begin}; {find})")
}

/// A map as RESP2 sends it: names and values in turn.
fn map(frame: &Frame) -> BTreeMap<String, Frame> {
    let pairs = frame.elements().expect("names and values").chunks(2);
    pairs.map(|pair| (text(&pair[0]), pair[1].clone())).collect()
}

fn text(frame: &Frame) -> String {
    String::from_utf8_lossy(frame.as_bytes().unwrap_or_else(|| panic!("not a text: {frame}"))).into_owned()
}

fn sorted(words: impl IntoIterator<Item = String>) -> String {
    let mut words: Vec<String> = words.into_iter().collect();
    words.sort();
    words.join(" ")
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(" ")
}
