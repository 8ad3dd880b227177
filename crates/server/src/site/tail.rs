//! `holdfast site tail`: what the first site has done that the second one, when it was promoted, did not have.
//!
//! The record of the second site says which moment it shows. The first site keeps what changes, in the order of
//! moments: what is behind that moment is what was left behind.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail, ensure};
use resp::Frame;
use serde_json::{Value, json};

use super::{FarArguments, PATIENCE, Record, ask, at};
use crate::backup::{counted, grouped};
use crate::connection::Connection;

/// Events asked for at a time.
const PAGE: &str = "500";

/// Nothing more comes if nothing has come for so long: groups tell how far they are twice a second.
const QUIET_MS: &str = "2000";

#[derive(clap::Args, Clone, Debug)]
pub(super) struct TailArguments {
    /// A node of the second site, which was promoted
    #[command(flatten)]
    far: FarArguments,
    /// A node of the first site, with the same user and password
    #[arg(long, value_name = "HOST:PORT")]
    from: String,
    /// Write the result, a JSON object per line, to this file instead of the standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Clocks of nodes are no further apart, or the nodes are refused.
const CLOCKS_APART_MS: i64 = 60_000;

/// What was found.
#[derive(Default)]
struct Found {
    transactions: u64,
    effects: u64,
    bytes: u64,
    first_ms: i64,
    last_ms: i64,
}

pub(super) fn run(arguments: &TailArguments) -> Result<()> {
    let mut far = arguments.far.connect()?;
    let record = Record::read(&mut far)?;
    ensure!(record.text("phase") == "promoted", "the second site was not promoted: it lacks nothing for good");
    let shown_ms = record.number("moment-ms");
    let mut near = arguments.far.door.login.connect(&arguments.from, PATIENCE)?;
    must_reach_back(&mut near, &record, shown_ms)?;
    // Every group logs something behind all that was done: then all of it can be read.
    let (cut_ms, _) = super::cut(&mut near).context("the first site must have a majority of its nodes")?;
    let mut output: Box<dyn Write> = match &arguments.output {
        Some(path) => {
            let file = File::options().write(true).create_new(true).open(path);
            Box::new(BufWriter::new(file.with_context(|| format!("cannot make {}", path.display()))?))
        }
        None => Box::new(io::stdout().lock()),
    };
    let found = read(&mut near, (shown_ms, cut_ms), &mut output)?;
    output.flush().context("cannot write what was found")?;
    if found.transactions == 0 {
        eprintln!("nothing: the second site had all that the first one has done, up to {}", at(shown_ms));
    } else {
        eprintln!(
            "{} with {} ({} bytes), from {} to {}, are at the first site only; the second one was promoted with the \
             state of {}",
            counted(usize::try_from(found.transactions)?, "transaction"),
            counted(usize::try_from(found.effects)?, "change"),
            grouped(found.bytes),
            at(found.first_ms),
            at(found.last_ms),
            at(shown_ms)
        );
    }
    Ok(())
}

/// The first site must be the one that was followed, and still keep what comes behind the moment.
fn must_reach_back(near: &mut Connection, record: &Record, shown_ms: i64) -> Result<()> {
    let reply = ask(near, &["CHANGES", "INFO"])?;
    let words: Vec<String> = reply
        .elements()
        .unwrap_or_default()
        .iter()
        .map(|word| String::from_utf8_lossy(word.as_bytes().unwrap_or_default()).into_owned())
        .collect();
    let text = |name: &str| {
        let pair = words.chunks_exact(2).find(|pair| pair[0] == name);
        pair.map(|pair| pair[1].as_str()).ok_or_else(|| anyhow!("CHANGES INFO tells no {name}"))
    };
    ensure!(text("cluster")? == record.text("cluster"), "that is not the site that the second one has followed");
    let first_ms: i64 = text("first-moment-ms")?.parse().context("CHANGES INFO answers something strange")?;
    ensure!(
        first_ms <= shown_ms,
        "this node keeps changes from {} on, and the second site has those up to {}: ask another node of the first site",
        at(first_ms),
        at(shown_ms)
    );
    Ok(())
}

/// Reads what was done behind the first of these moments, and before the second by any clock.
fn read(near: &mut Connection, (shown_ms, cut_ms): (i64, i64), output: &mut dyn Write) -> Result<Found> {
    let (mut found, mut cursor) = (Found::default(), format!("@{shown_ms}").into_bytes());
    loop {
        let words: [&[u8]; 7] =
            [b"CHANGES", b"READ", &cursor, b"COUNT", PAGE.as_bytes(), b"BLOCK", QUIET_MS.as_bytes()];
        let reply = ask(near, &words)?;
        let Some([next, events]) = reply.elements() else { bail!("CHANGES READ answered {reply}") };
        let events = events.elements().unwrap_or_default();
        for event in events {
            if moment_of(event).is_some_and(|moment_ms| moment_ms < shown_ms) {
                // A node that has just started tells some of what came before as well.
                continue;
            }
            if moment_of(event).is_some_and(|moment_ms| moment_ms > cut_ms + CLOCKS_APART_MS) {
                // A client writes there by now.
                return Ok(found);
            }
            let line = in_json(event, &mut found).ok_or_else(|| anyhow!("CHANGES READ answered {event}"))?;
            writeln!(output, "{line}").context("cannot write what was found")?;
        }
        cursor = next.as_bytes().unwrap_or_default().to_vec();
        if events.is_empty() {
            return Ok(found);
        }
    }
}

/// The moment of an event, from its id; none if it is none.
fn moment_of(event: &Frame) -> Option<i64> {
    let id = std::str::from_utf8(event.elements()?.first()?.as_bytes()?).ok()?;
    id.split_once('-')?.0.parse().ok()
}

/// One event as an object; none if it is none.
fn in_json(event: &Frame, found: &mut Found) -> Option<Value> {
    let [id, _, effects] = event.elements()? else { return None };
    let id = std::str::from_utf8(id.as_bytes()?).ok()?;
    let moment_ms = moment_of(event)?;
    let effects = effects.elements()?.iter().map(|effect| {
        let [database, keys, words] = effect.elements()? else { return None };
        let Frame::Integer(database) = database else { return None };
        found.effects += 1;
        found.bytes += words.elements()?.iter().filter_map(Frame::as_bytes).map(|word| word.len() as u64).sum::<u64>();
        let all = |frame: &Frame| frame.elements()?.iter().map(|word| word.as_bytes().map(word_in_json)).collect();
        let (keys, words): (Option<Vec<Value>>, Option<Vec<Value>>) = (all(keys), all(words));
        Some(json!({ "db": database, "keys": keys?, "command": words? }))
    });
    let effects = effects.collect::<Option<Vec<_>>>()?;
    found.transactions += 1;
    found.last_ms = moment_ms;
    if found.transactions == 1 {
        found.first_ms = moment_ms;
    }
    Some(json!({ "id": id, "at": at(moment_ms), "effects": effects }))
}

/// Text as such, and other bytes in hexadecimal digits.
fn word_in_json(word: &[u8]) -> Value {
    match std::str::from_utf8(word) {
        Ok(text) => json!(text),
        Err(_) => json!({ "hex": word.iter().map(|byte| format!("{byte:02x}")).collect::<String>() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &[u8]) -> Frame {
        Frame::Bulk(text.to_vec())
    }

    #[test]
    fn an_event_becomes_an_object() {
        let words = Frame::Array(vec![bulk(b"SET"), bulk(b"k\"1"), bulk(b"\xff\x00")]);
        let effect = Frame::Array(vec![Frame::Integer(3), Frame::Array(vec![bulk(b"k\"1")]), words]);
        let event = Frame::Array(vec![bulk(b"1764009876123-2"), bulk(b"change"), Frame::Array(vec![effect])]);
        let mut found = Found::default();
        let object = in_json(&event, &mut found).expect("sound");
        let expected = json!({
            "id": "1764009876123-2",
            "at": "2025-11-24 18:44:36.123Z",
            "effects": [{ "db": 3, "keys": ["k\"1"], "command": ["SET", "k\"1", { "hex": "ff00" }] }],
        });
        assert_eq!(object, expected);
        assert_eq!((found.transactions, found.effects, found.bytes, found.first_ms), (1, 1, 8, 1_764_009_876_123));
        assert!(in_json(&bulk(b"x"), &mut found).is_none());
    }
}
