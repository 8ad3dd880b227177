//! `holdfast audit`: what an application was told is kept, against what is there.

mod record;
mod verdict;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use resp::Frame;
use serde_json::json;

use crate::cluster::door::Door;
use crate::connection::Connection;
use record::{History, Record};
use verdict::{Fault, Held, judge};

/// Exit code if something could not be looked at.
pub const CANNOT_RUN: u8 = 2;

/// Time between two lines about how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// Compare what an application recorded of its writes with what a server holds.
///
/// The record has a line of JSON for each request: {"op": "set", "key": "k", "value": "v", "outcome": "ok"}. The exit
/// code is 0 if everything acknowledged is there once, 1 if not, and 2 if the audit failed.
#[derive(Debug, Args)]
pub struct AuditArguments {
    /// The record; - for the standard input.
    #[arg(value_name = "FILE")]
    record: PathBuf,
    #[command(flatten)]
    door: Door,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
    /// Faults to print, at most.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    show: usize,
}

/// Runs `holdfast audit`.
///
/// # Errors
/// If the record cannot be read, or a key cannot be asked for.
pub fn run(arguments: &AuditArguments) -> Result<ExitCode> {
    let name = arguments.record.display();
    let record = if arguments.record.as_os_str() == "-" {
        Record::read(std::io::stdin().lock())
    } else {
        Record::read(BufReader::new(File::open(&arguments.record).with_context(|| format!("cannot open {name}"))?))
    };
    let record = record.with_context(|| format!("{name} is no record"))?;
    let mut connection = arguments.door.open()?;
    let mut faults: Vec<(Fault, &str, String)> = Vec::new();
    let mut told = Instant::now();
    for (index, (key, history)) in record.keys.iter().enumerate() {
        let held = ask(&mut connection, key, history).with_context(|| format!("cannot ask for {key}"))?;
        faults.extend(judge(history, &held).into_iter().map(|(fault, text)| (fault, key.as_str(), text)));
        if std::io::stderr().is_terminal() && told.elapsed() > PROGRESS_INTERVAL {
            eprintln!("{} of {} keys", index + 1, record.keys.len());
            told = Instant::now();
        }
    }
    faults.sort();
    let kinds = [Fault::Lost, Fault::Doubled, Fault::RefusedButThere, Fault::Altered];
    let counts: BTreeMap<&str, usize> =
        kinds.map(|kind| (kind.name(), faults.iter().filter(|(fault, ..)| *fault == kind).count())).into();
    let [acknowledged, refused, unknown] = record.counts;
    if arguments.json {
        let shown = faults.iter().map(|(fault, key, text)| json!({"fault": fault.name(), "key": key, "text": text}));
        let report = json!({
            "keys": record.keys.len(), "acknowledged": acknowledged, "refused": refused, "unknown": unknown,
            "faults": counts, "shown": shown.take(arguments.show).collect::<Vec<_>>(),
        });
        say_line!("{report:#}");
    } else {
        let keys = record.keys.len();
        say_line!("{acknowledged} acknowledged, {refused} refused, {unknown} unknown; {keys} keys");
        let counted = kinds.map(|kind| format!("{} {}", counts[kind.name()], kind.name()));
        say_line!("{}", counted.join(", "));
        for (fault, key, text) in faults.iter().take(arguments.show) {
            say_line!("{}: {key}: {text}", fault.name());
        }
        if faults.len() > arguments.show {
            say_line!("and {} more", faults.len() - arguments.show);
        }
    }
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What there is of a key. A refusal that can pass is waited for; a wrong type is an answer.
fn ask(connection: &mut Connection, key: &str, history: &History) -> Result<Held> {
    let kind = connection.insist(&["TYPE", key])?;
    let kind = String::from_utf8_lossy(kind.as_bytes().unwrap_or_default()).into_owned();
    let words: &[&str] = match (history, kind.as_str()) {
        (_, "none") => return Ok(Held::Nothing),
        (History::Register(_) | History::Counter { .. }, "string") => &["GET", key],
        (History::List(_), "list") => &["LRANGE", key, "0", "-1"],
        (History::Set(_), "set") => &["SMEMBERS", key],
        (_, other) => return Ok(Held::Other(format!("the key holds a {other}"))),
    };
    let text = |frame: &Frame| String::from_utf8_lossy(frame.as_bytes().unwrap_or_default()).into_owned();
    Ok(match connection.insist(words)? {
        // Its time came between the two questions.
        Frame::Null => Held::Nothing,
        reply => match reply.elements() {
            Some(elements) => Held::Elements(elements.iter().map(text).collect()),
            None => Held::Text(text(&reply)),
        },
    })
}
