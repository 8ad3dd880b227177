//! What an application has recorded of its requests, line by line.

use std::collections::BTreeMap;
use std::io::BufRead;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// What the application was told of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was acknowledged: its effect must be there, once.
    Acknowledged,
    /// It was answered with an error that excludes an effect.
    Refused,
    /// Nothing was heard, or an error that leaves the effect open: it may be there, once.
    Unknown,
}

/// How often something was asked for, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Acknowledged.
    pub acknowledged: u64,
    /// With an unknown outcome.
    pub unknown: u64,
}

/// What requests have done to a key, as far as they were answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum History {
    /// `set` and `del`: a value, or nothing, with its outcome, in the order of the record.
    Register(Vec<(Option<String>, Outcome)>),
    /// `incr`: the sum of what was acknowledged, and how far what is unknown can take it down and up.
    Counter { acknowledged: i128, down: i128, up: i128, refused_count: u64 },
    /// `push`: how often each element was appended.
    List(BTreeMap<String, Count>),
    /// `add`: each member.
    Set(BTreeMap<String, Count>),
}

/// A record: each key with its history.
#[derive(Debug, Default)]
pub struct Record {
    /// By key.
    pub keys: BTreeMap<String, History>,
    /// Requests by outcome: acknowledged, refused, unknown.
    pub counts: [u64; 3],
}

impl Record {
    /// Reads lines of JSON: `{"op": "set", "key": "k", "value": "v", "outcome": "ok"}`. Empty lines are passed over.
    ///
    /// # Errors
    /// If a line is none, with its number.
    pub fn read(lines: impl BufRead) -> Result<Self> {
        let mut record = Self::default();
        for (index, line) in lines.lines().enumerate() {
            let line = line.context("cannot read the record")?;
            if !line.trim().is_empty() {
                record.take(&line).with_context(|| format!("line {}", index + 1))?;
            }
        }
        ensure!(!record.keys.is_empty(), "the record is empty");
        Ok(record)
    }

    fn take(&mut self, line: &str) -> Result<()> {
        let line: Value = serde_json::from_str(line).context("is not JSON")?;
        let text = |name: &str| match line.get(name) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(Value::Number(number)) => Ok(number.to_string()),
            _ => bail!("has no \"{name}\""),
        };
        let outcome = match text("outcome")?.as_str() {
            "ok" => Outcome::Acknowledged,
            "refused" => Outcome::Refused,
            "unknown" => Outcome::Unknown,
            other => bail!("\"outcome\" is ok, refused or unknown, not {other}"),
        };
        self.counts[outcome as usize] += 1;
        let (operation, key) = (text("op")?, text("key")?);
        let empty = match operation.as_str() {
            "set" | "del" => History::Register(Vec::new()),
            "incr" => History::Counter { acknowledged: 0, down: 0, up: 0, refused_count: 0 },
            "push" => History::List(BTreeMap::new()),
            "add" => History::Set(BTreeMap::new()),
            other => bail!("\"op\" is set, del, incr, push or add, not {other}"),
        };
        match (self.keys.entry(key).or_insert(empty), operation.as_str()) {
            (History::Register(values), "set") => values.push((Some(text("value")?), outcome)),
            (History::Register(values), "del") => values.push((None, outcome)),
            (History::Counter { acknowledged, down, up, refused_count }, "incr") => {
                let amount = line.get("value").map_or(Ok("1".to_owned()), |_| text("value"))?;
                let amount: i64 = amount.parse().context("\"value\" of incr is a number")?;
                match outcome {
                    Outcome::Acknowledged => *acknowledged += i128::from(amount),
                    Outcome::Unknown if amount < 0 => *down -= i128::from(amount),
                    Outcome::Unknown => *up += i128::from(amount),
                    Outcome::Refused => *refused_count += 1,
                }
            }
            (History::List(elements), "push") | (History::Set(elements), "add") => {
                let count = elements.entry(text("value")?).or_default();
                match outcome {
                    Outcome::Acknowledged => count.acknowledged += 1,
                    Outcome::Unknown => count.unknown += 1,
                    Outcome::Refused => {}
                }
            }
            (_, operation) => bail!("{operation} does not go with what the record did to the same key before"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_none_are_named() {
        let complaint = |text: &str| format!("{:#}", Record::read(text.as_bytes()).expect_err("not a record"));
        assert_eq!(complaint(""), "the record is empty");
        assert!(complaint("\n{").starts_with("line 2: is not JSON"));
        let line = |rest: &str| complaint(&format!("{{\"op\":\"set\",\"key\":\"k\",{rest}}}"));
        assert_eq!(line("\"outcome\":\"ok\""), "line 1: has no \"value\"");
        assert_eq!(line("\"outcome\":\"fine\""), "line 1: \"outcome\" is ok, refused or unknown, not fine");
        let mixed =
            "{\"op\":\"del\",\"key\":\"k\",\"outcome\":\"ok\"}\n{\"op\":\"incr\",\"key\":\"k\",\"outcome\":\"ok\"}";
        assert_eq!(complaint(mixed), "line 2: incr does not go with what the record did to the same key before");
    }
}
