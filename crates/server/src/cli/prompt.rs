//! The prompt: lines that can be edited, a history, names of commands at Tab.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use resp::Frame;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{Context, Editor, Helper};

use super::Session;
use crate::words::split_bytes;

/// A request that takes longer says how long.
const SLOW: Duration = Duration::from_millis(500);

/// An end of the input that comes sooner after the prompt was not typed there,
const TYPING_MIN: Duration = Duration::from_millis(20);

/// unless so many come one after the other: then the terminal has gone.
const HOLLOW_MAX: u32 = 3;

/// Commands after which a password may stand: their lines are not kept.
const SECRET: [&str; 5] = ["auth", "hello", "acl", "config", "migrate"];

/// Names of commands, in capitals.
struct Names(Vec<String>);

impl Completer for Names {
    type Candidate = String;

    fn complete(&self, line: &str, position: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let begun = line[..position].to_ascii_uppercase();
        let fitting = self.0.iter().filter(|name| name.starts_with(&begun));
        Ok((0, fitting.cloned().collect()))
    }
}

impl Hinter for Names {
    type Hint = String;
}
impl Highlighter for Names {}
impl Validator for Names {}
impl Helper for Names {}

/// Asks for lines until there is no more.
pub fn run(session: &mut Session<'_>) -> Result<()> {
    session.watch_interrupts()?;
    let mut editor: Editor<Names, FileHistory> = Editor::new().context("cannot use the terminal")?;
    editor.set_helper(Some(Names(names(session))));
    let history = history_path();
    if let Some(path) = &history {
        // There is none before the first session.
        let _ = editor.load_history(path);
    }
    let mut hollow_count = 0;
    loop {
        let begun = Instant::now();
        let line = match editor.readline(&prompt(session)) {
            Ok(line) => line,
            // A line that was typed before the prompt came can read as an end of the input. A person is slower.
            Err(ReadlineError::Eof) if begun.elapsed() < TYPING_MIN && hollow_count < HOLLOW_MAX => {
                hollow_count += 1;
                continue;
            }
            Err(ReadlineError::Interrupted | ReadlineError::Eof) => break,
            Err(error) => return Err(error).context("cannot read from the terminal"),
        };
        hollow_count = 0;
        let Some(words) = split_bytes(line.as_bytes()) else {
            say_line!("Invalid argument(s)");
            continue;
        };
        let Some(name) = words.first().map(|word| String::from_utf8_lossy(word).to_lowercase()) else { continue };
        if !SECRET.contains(&name.as_str()) {
            editor.add_history_entry(line.as_str())?;
        }
        match name.as_str() {
            "quit" | "exit" => break,
            "clear" => editor.clear_screen()?,
            _ => ask(session, &words),
        }
    }
    if let Some(path) = &history {
        editor.save_history(path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn ask(session: &mut Session<'_>, words: &[Vec<u8>]) {
    // A number in front repeats a request.
    let count = std::str::from_utf8(&words[0]).ok().and_then(|text| text.parse::<u32>().ok());
    let (count, words) = match count {
        Some(count) if words.len() > 1 => (count, &words[1..]),
        _ => (1, words),
    };
    for _ in 0..count {
        let begun = Instant::now();
        if let Err(error) = session.request(words) {
            say_line!("Error: {error:#}");
            return;
        }
        if begun.elapsed() > SLOW {
            say_line!("({:.2}s)", begun.elapsed().as_secs_f64());
        }
    }
}

fn prompt(session: &Session<'_>) -> String {
    if session.connection.is_none() {
        return "not connected> ".to_owned();
    }
    let database = if session.database == 0 { String::new() } else { format!("[{}]", session.database) };
    let queueing = if session.is_queueing { "(TX)" } else { "" };
    format!("{}{database}{queueing}> ", session.arguments.door.place())
}

/// Names that the server knows; none if it does not say.
fn names(session: &mut Session<'_>) -> Vec<String> {
    let Some(connection) = session.connection.as_mut() else { return Vec::new() };
    let _ = connection.wait_at_most(SLOW);
    let reply = connection.call(&["COMMAND", "LIST"]);
    let _ = connection.wait_at_most(super::LOOK_INTERVAL);
    let Ok(reply) = reply else {
        // Its answer may still come, and would be taken for another one's.
        session.connection = None;
        return Vec::new();
    };
    let text = |frame: &Frame| frame.as_bytes().map(|name| String::from_utf8_lossy(name).to_uppercase());
    let mut names: Vec<String> = reply.elements().unwrap_or_default().iter().filter_map(text).collect();
    names.iter_mut().for_each(|name| *name = name.replace('|', " "));
    names.sort();
    names
}

/// Where lines are kept between sessions: `HOLDFAST_CLI_HISTORY`, or a file in the home directory.
fn history_path() -> Option<PathBuf> {
    match std::env::var_os("HOLDFAST_CLI_HISTORY") {
        Some(path) if path.is_empty() => None,
        Some(path) => Some(path.into()),
        None => std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".holdfast_cli_history")),
    }
}
