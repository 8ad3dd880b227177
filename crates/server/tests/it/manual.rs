//! The manual tells the truth: its sessions are run, its command lines are known to the binary, and its table of
//! commands is what the server says it has.
//!
//! A block fenced as `redis` is a session as redis-cli shows it: requests behind `> `, replies beneath. Each page is
//! run against a server of its own. In blocks fenced as `sh`, every option of `holdfast` must be one that its help
//! knows. `UPDATE_EXPECT=1` writes the tables of commands again.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use resp::Frame;

use crate::harness::{Client, Folder, Server, ServerOptions, binary};

fn manual() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/manual")
}

fn pages() -> Vec<(String, String)> {
    let mut pages: Vec<(String, String)> = fs::read_dir(manual())
        .expect("the manual")
        .map(|entry| entry.expect("a page").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .map(|path| (path.display().to_string(), fs::read_to_string(&path).expect("a page that can be read")))
        .collect();
    pages.push(("README.md".to_owned(), fs::read_to_string(manual().join("../../README.md")).expect("the README")));
    pages.sort();
    pages
}

/// The text of every block fenced with this word, with the line it begins on.
fn blocks<'a>(text: &'a str, word: &str) -> Vec<(usize, Vec<&'a str>)> {
    let fence = format!("```{word}");
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if line == fence {
            let inside = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
            blocks.push((number + 2, inside));
        }
    }
    blocks
}

/// A reply as redis-cli prints it.
fn printed(frame: &Frame, indent: usize) -> String {
    match frame.elements() {
        Some([]) => "(empty array)".to_owned(),
        Some(elements) => {
            let width = elements.len().to_string().len();
            let mut text = String::new();
            for (index, element) in elements.iter().enumerate() {
                let label = format!("{:>width$}) ", index + 1);
                let before = if index == 0 { String::new() } else { " ".repeat(indent) };
                let inner = printed(element, indent + label.len());
                let _ = write!(text, "{}{before}{label}{inner}", if index == 0 { "" } else { "\n" });
            }
            text
        }
        None => frame.to_string(),
    }
}

/// Words of a request, with double quotes around those that hold spaces or, as `\n`, ends of lines. The last may stand
/// in single quotes, as it is.
fn words(line: &str) -> Vec<String> {
    if let Some((line, last)) = line.strip_suffix('\'').and_then(|line| line.split_once('\'')) {
        return words(line).into_iter().chain([last.to_owned()]).collect();
    }
    let mut words = Vec::new();
    for (index, part) in line.split('"').enumerate() {
        if index % 2 == 1 {
            words.push(part.replace("\\n", "\n"));
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

fn run_session(place: &str, lines: &[&str], client: &mut Client) {
    let mut lines = lines.iter().peekable();
    while let Some(line) = lines.next() {
        let request = line.strip_prefix("> ").unwrap_or_else(|| panic!("{place}: no request: {line}"));
        let mut expected = Vec::new();
        while let Some(reply) = lines.next_if(|line| !line.starts_with("> ")) {
            expected.push(*reply);
        }
        let reply = printed(&client.call(&words(request)), 0);
        assert_eq!(reply, expected.join("\n"), "{place}: {request}");
    }
}

#[test]
fn the_sessions_of_the_manual_run_as_printed() {
    let mut sessions = 0;
    for (page, text) in pages() {
        let blocks = blocks(&text, "redis");
        if blocks.is_empty() {
            continue;
        }
        let folder = Folder::new();
        let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
        let mut client = server.client();
        for (line, block) in blocks {
            run_session(&format!("{page}:{line}"), &block, &mut client);
            sessions += 1;
        }
    }
    assert!(sessions > 0, "the manual shows no session");
}

#[test]
fn the_command_lines_of_the_manual_are_known_to_the_binary() {
    let folder = Folder::new();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    let mut checked = 0;
    for (page, text) in pages() {
        for (number, block) in blocks(&text, "sh") {
            for line in block.iter().filter(|line| !line.starts_with('#')) {
                // `holdfast VERB …`, or the same behind cargo's own words.
                let Some(command) = line
                    .strip_prefix("holdfast ")
                    .or_else(|| line.split_once("cargo run --release -- ").map(|it| it.1))
                else {
                    continue;
                };
                let words: Vec<&str> = command.split_whitespace().collect();
                let verb = words[0];
                let help_of = |path: &[&str]| {
                    let help = Command::new(binary()).args(path).arg("--help").output().expect("the binary runs");
                    String::from_utf8_lossy(&help.stdout).into_owned()
                };
                let mut help = help_of(&words[..1]);
                if help.contains("\nCommands:\n") {
                    help = help_of(&words[..2]);
                }
                for option in words.iter().filter_map(|word| word.strip_prefix("--")).filter(|word| !word.is_empty()) {
                    let parameter = || server.client().call(&["CONFIG", "GET", option]) != Frame::Array(Vec::new());
                    let known = help.contains(&format!("--{option}")) || verb == "serve" && parameter();
                    assert!(known, "{page}:{number}: holdfast {verb} knows no --{option}");
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 0, "the manual shows no command line");
}

#[test]
fn the_table_of_commands_is_what_the_server_has() {
    let folder = Folder::new();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    let mut text = String::from(
        "# Commands\n\n\
         All commands of this version by type, as `COMMAND DOCS` describes them. Replies and errors are those of Redis 7.0;\n\
         [Differences from Redis 7.0](differences.md) lists the exceptions. This page is generated: see\n\
         `crates/server/tests/it/manual.rs`.\n",
    );
    let docs = server.client().call(&["COMMAND", "DOCS"]);
    let mut groups = std::collections::BTreeMap::<String, Vec<String>>::new();
    for (name, facts) in pairs(&docs) {
        let fact = |wanted: &str| {
            let found = pairs(&facts).into_iter().find(|(name, _)| name == wanted);
            found.map(|(_, value)| String::from_utf8_lossy(value.as_bytes().unwrap_or_default()).into_owned())
        };
        let summary = fact("summary").unwrap_or_default();
        let group = fact("group").unwrap_or_default();
        let subcommands = pairs(&facts).into_iter().find(|(name, _)| name == "subcommands").map(|(_, value)| value);
        let names: Vec<String> = subcommands.iter().flat_map(pairs).map(|(name, _)| name).collect();
        let mut short: Vec<String> = names
            .iter()
            .map(|name| name.split_once('|').map_or(name.as_str(), |(_, sub)| sub).to_uppercase())
            .collect();
        short.sort();
        let more = if short.is_empty() { String::new() } else { format!("; subcommands: {}", short.join(", ")) };
        groups.entry(group).or_default().push(format!("| {} | {summary}{more} |", name.to_uppercase()));
    }
    for (group, mut rows) in groups {
        rows.sort();
        let _ = write!(text, "\n## {group}\n\n| command | what it does |\n| --- | --- |\n{}\n", rows.join("\n"));
    }
    let path = manual().join("commands.md");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, &text).expect("the page is written");
    }
    let page = fs::read_to_string(&path).unwrap_or_default();
    assert!(page == text, "docs/manual/commands.md is stale: run the tests once with UPDATE_EXPECT=1");
}

/// Every command of Redis 8.10 and Valkey 9.1, with the version of each that brought it, `-` if it has no such command.
/// From their documentation and command tables; commands that only name subcommands, and HELP, are left out.
const COMMANDS_OF_OTHERS: &str = include_str!("manual/versions.txt");

/// What answers, but only that it cannot be done.
const REFUSED: [&str; 3] = ["MODULE LOAD", "MODULE LOADEX", "MODULE UNLOAD"];

/// Why commands are not here, by how their names begin. Of several that fit, the first counts.
const REASONS: &[(&str, &str)] = &[
    ("AR", "There are no arrays."),
    ("BACKUP ", "`BACKUP` of Holdfast is another: see [backup](backup.md)."),
    ("CLIENT CAPA", "Clients are not redirected by capabilities."),
    ("CLIENT IMPORT-SOURCE", "Import needs no such client: see [import](import.md)."),
    ("CLUSTER SET-CONFIG-EPOCH", "There are no epochs that clients could set."),
    ("CLUSTER REPLICATE", "Groups are given replicas by themselves: see [nodes](cluster-nodes.md)."),
    ("CLUSTER FORGET", "`holdfast cluster remove`: see [nodes](cluster-nodes.md)."),
    ("CLUSTER MEET", "Nodes join with an invitation: see [nodes](cluster-nodes.md)."),
    ("CLUSTER RESET", "Nodes join and leave: see [nodes](cluster-nodes.md)."),
    ("CLUSTER ", "`holdfast cluster` moves slots: see [slots](cluster-slots.md)."),
    ("DEBUG", "Some of its subcommands are here, for tests."),
    ("FT.", "There is no search."),
    ("HIMPORT", "There are no templates of hashes."),
    ("MODULE ", "Modules of Redis are not loaded: it answers with that error."),
    ("RESTORE-ASKING", "Slots move inside the cluster."),
    ("TRIMSLOTS", "Slots move inside the cluster."),
    ("TS.", "There are no time series."),
];

/// The page of which commands are here and which are not, by what the server says it has.
fn commands_by_version(here: &[String]) -> String {
    let mut text = String::from(
        "# Commands by version\n\n\
         Every command of Redis 8.10 and Valkey 9.1, with the versions that brought it. Options that are newer than their\n\
         command are not listed. [Commands](commands.md) says what those that are here do.\n\
         \n\
         Commands whose names have a dot came as modules, which are part of Redis since version 8: their versions are those of\n\
         the modules. Valkey has modules for `BF.`, `JSON.` and `FT.` that are not part of it. Left out are `HELP`, commands\n\
         that Redis marks as experimental, commands of modules that are not documented, and those of Sentinels: see\n\
         [Sentinel](sentinel.md).\n\
         \n\
         This page is generated: see `crates/server/tests/it/manual.rs`.\n",
    );
    let (mut present, mut absent) = (String::new(), String::new());
    let (mut present_count, mut all_count) = (0, 0);
    let mut reasons_given = std::collections::BTreeSet::new();
    for line in COMMANDS_OF_OTHERS.lines() {
        let parts: Vec<&str> = line.split(" | ").collect();
        let [name, redis, valkey] = parts[..] else { panic!("not a name and two versions: {line}") };
        all_count += 1;
        if here.iter().any(|command| command == name) && !REFUSED.contains(&name) {
            let _ = writeln!(present, "| {name} | {redis} | {valkey} |");
            present_count += 1;
        } else {
            let reason = REASONS.iter().find(|(beginning, _)| name.starts_with(beginning));
            let (beginning, reason) = reason.unwrap_or_else(|| panic!("{name} is not here, and nothing says why"));
            reasons_given.insert(*beginning);
            let _ = writeln!(absent, "| {name} | {redis} | {valkey} | {reason} |");
        }
    }
    let idle: Vec<_> = REASONS.iter().filter(|(beginning, _)| !reasons_given.contains(beginning)).collect();
    assert!(idle.is_empty(), "what these say is missing is here: {idle:?}");
    let _ = write!(
        text,
        "\n{present_count} of {all_count} are here.\n\n## Here\n\n| command | Redis | Valkey |\n| --- | --- | --- |\n{present}\n\
         ## Not here\n\n| command | Redis | Valkey | why |\n| --- | --- | --- | --- |\n{absent}"
    );
    text
}

#[test]
fn the_table_of_versions_is_what_the_server_has() {
    let folder = Folder::new();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    let mut here = Vec::new();
    for (name, facts) in pairs(&server.client().call(&["COMMAND", "DOCS"])) {
        let subcommands = pairs(&facts).into_iter().find(|(name, _)| name == "subcommands").map(|(_, value)| value);
        match subcommands {
            Some(subcommands) => {
                here.extend(pairs(&subcommands).into_iter().map(|(name, _)| name.replace('|', " ").to_uppercase()));
            }
            None => here.push(name.to_uppercase()),
        }
    }
    let text = commands_by_version(&here);
    let path = manual().join("commands-by-version.md");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, &text).expect("the page is written");
    }
    let page = fs::read_to_string(&path).unwrap_or_default();
    assert!(page == text, "docs/manual/commands-by-version.md is stale: run the tests once with UPDATE_EXPECT=1");
}

/// A map, also in RESP2's form of a flat array.
fn pairs(frame: &Frame) -> Vec<(String, Frame)> {
    let name = |frame: &Frame| String::from_utf8_lossy(frame.as_bytes().unwrap_or_default()).into_owned();
    match frame {
        Frame::Map(pairs) => pairs.iter().map(|(key, value)| (name(key), value.clone())).collect(),
        Frame::Array(flat) => flat.chunks_exact(2).map(|pair| (name(&pair[0]), pair[1].clone())).collect(),
        _ => Vec::new(),
    }
}
