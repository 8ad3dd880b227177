//! Stories: a sentence, then commands and the replies they must get.
//!
//! ```text
//! # A missing key may be created by NX, once.
//! SET k 1 NX => OK
//! SET k 2 NX => (nil)
//! ```
//!
//! Each `#` line begins a story in an empty keyspace. `wait 20ms` lets time pass. A reply is written as redis-cli shows
//! it, lists in brackets. A story with a title that begins with `Since` and a version after 7.0 is not told to the
//! reference, which is a Redis 7.0; it is told to a keyspace of the newest level, and others to one of level 1. With
//! `UPDATE_EXPECT=1` the files are written again from what the *reference* replies; commit that only when it is
//! understood.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::local::Local;
use crate::reference::Reference;
use crate::words;

fn files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/commands");
    let mut files = Vec::new();
    let groups = [
        "string",
        "bitmap",
        "hyperloglog",
        "hash",
        "list",
        "sorted_set",
        "geo",
        "set",
        "stream",
        "json",
        "sketch",
        "vector",
        "keys",
    ];
    for group in groups {
        let entries = std::fs::read_dir(root.join(group)).expect("a folder of stories");
        files.extend(entries.map(|entry| entry.expect("an entry of the folder").path()));
    }
    files.sort();
    assert!(!files.is_empty(), "there are no stories under {}", root.display());
    files
}

enum Line<'a> {
    Title {
        /// Redis 7.0 does not know what the story is about.
        is_newer: bool,
    },
    Blank,
    Wait(Duration),
    Call {
        command: &'a str,
        expected: &'a str,
    },
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Self {
        if line.starts_with('#') {
            return Self::Title { is_newer: line.starts_with("# Since ") };
        }
        if line.trim().is_empty() {
            return Self::Blank;
        }
        if let Some(time) = line.strip_prefix("wait ").and_then(|time| time.trim().strip_suffix("ms")) {
            return Self::Wait(Duration::from_millis(time.parse().expect("a number of milliseconds")));
        }
        let (command, expected) = line.split_once(" =>").unwrap_or((line, ""));
        Self::Call { command: command.trim_end(), expected: expected.trim() }
    }
}

#[test]
fn stories_hold_in_a_keyspace() {
    let mut failures = String::new();
    for path in files() {
        let text = std::fs::read_to_string(&path).expect("a story");
        let mut local = Local::new();
        for (number, line) in text.lines().enumerate() {
            match Line::parse(line) {
                Line::Title { is_newer } => local = if is_newer { Local::newer() } else { Local::new() },
                Line::Blank => {}
                Line::Wait(time) => local.now_ms += time.as_millis() as i64,
                Line::Call { command, expected } => {
                    let reply = local.call(&words::split(command)).to_string();
                    if reply != expected {
                        let place = format!("{}:{}", path.display(), number + 1);
                        failures += &format!("{place}: {command}\n  expected {expected}\n  replied  {reply}\n");
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn stories_hold_in_the_reference() {
    let Some(mut reference) = Reference::start() else { return };
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut failures = String::new();
    for path in files() {
        let text = std::fs::read_to_string(&path).expect("a story");
        let mut updated = String::new();
        let mut is_passed_over = false;
        for (number, line) in text.lines().enumerate() {
            match Line::parse(line) {
                Line::Title { is_newer } => {
                    is_passed_over = is_newer;
                    reference.call(&["FLUSHALL"]);
                }
                _ if is_passed_over => {}
                Line::Blank => {}
                // The reference lives in real time.
                Line::Wait(time) => std::thread::sleep(time),
                Line::Call { command, expected } => {
                    let reply = reference.call(&words::split(command)).to_string();
                    updated += &format!("{command} => {reply}\n");
                    if reply != expected && !update {
                        let place = format!("{}:{}", path.display(), number + 1);
                        failures += &format!("{place}: {command}\n  expected {expected}\n  replied  {reply}\n");
                    }
                    continue;
                }
            }
            updated += line;
            updated.push('\n');
        }
        if update {
            std::fs::write(&path, updated).expect("the story can be written");
        }
    }
    assert!(failures.is_empty(), "{failures}");
}
