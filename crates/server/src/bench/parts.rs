//! One load from several processes, on several machines: each plays a part of it and writes what it saw, and the parts
//! are put together as if one process had seen all.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde_json::{Value, json};

use super::record::{Counts, Interval, Latencies, Outcome, Second};
use super::{BenchArguments, Distribution, Workload, report};

/// Parts that began further apart do not make one load.
const BEGIN_DIFFERENCE_MS_MAX: u64 = 1_000;
/// Different errors that a report shows.
const ERROR_TEXTS_MAX: usize = 5;

/// Which part of a load a process plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// From 0.
    pub index: u64,
    /// How many parts there are, at least 1.
    pub of: u64,
}

impl Part {
    /// All of a load.
    pub const WHOLE: Self = Self { index: 0, of: 1 };

    /// This part's share of so many things that cannot be divided.
    pub fn share_of(self, count: u64) -> u64 {
        count / self.of + u64::from(self.index < count % self.of)
    }

    /// The place of this part's thread `thread` among the threads of all parts, if each part had as many. Places of
    /// different parts are different, however many threads each has.
    pub fn place_of(self, thread: u64) -> u64 {
        self.index + self.of * thread
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(part, of)| Some((part.parse().ok()?, of.parse().ok()?)));
        match numbers {
            Some((part, of)) if (1..=of).contains(&part) => Ok(Self { index: part - 1, of }),
            _ => Err("not like 2/3, the second part of three".to_owned()),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index + 1, self.of)
    }
}

/// What one part saw: the report as JSON, and what it takes to add it to others.
pub fn json_of(arguments: &BenchArguments, part: Part, outcome: &Outcome) -> Value {
    let mut value = report::json(arguments, outcome);
    value["part"] = json!({
        "part": part.index + 1,
        "of": part.of,
        "begun_at_unix_ms": outcome.begun_at_unix_ms,
        "seconds": outcome.intervals.iter().map(interval_json).collect::<Vec<_>>(),
    });
    value
}

fn interval_json(interval: &Interval) -> Value {
    let Counts { requests, operations, aborts, misses, errors, connections_lost, unanswered } = interval.counts;
    json!({
        "reads": interval.reads.to_json(),
        "writes": interval.writes.to_json(),
        "counts": [requests, operations, aborts, misses, errors, connections_lost, unanswered],
    })
}

fn interval_of(value: &Value) -> Option<Interval> {
    let counts: Vec<u64> = value["counts"].as_array()?.iter().map(Value::as_u64).collect::<Option<_>>()?;
    let &[requests, operations, aborts, misses, errors, connections_lost, unanswered] = &counts[..] else {
        return None;
    };
    Some(Interval {
        reads: Latencies::from_json(&value["reads"])?,
        writes: Latencies::from_json(&value["writes"])?,
        counts: Counts { requests, operations, aborts, misses, errors, connections_lost, unanswered },
    })
}

/// Puts the parts of a load together: what was asked for, and what all of them saw.
///
/// # Errors
/// If a file cannot be read or is no part of a load, if the files are not each part of one load once, or if the parts
/// were not played at the same time.
pub fn merge(files: &[PathBuf]) -> Result<(BenchArguments, Outcome)> {
    let mut whole: Option<(BenchArguments, Value)> = None;
    let mut sum = Sum::default();
    for file in files {
        let value = read(file)?;
        let name = file.display();
        sum.add(&value).with_context(|| format!("{name}"))?;
        let asked = asked_for(&value);
        match &whole {
            None => {
                let arguments = arguments_of(&value).with_context(|| format!("{name} is not a report of bench"))?;
                whole = Some((arguments, asked));
            }
            Some((_, first)) => {
                for (field, wanted) in first.as_object().into_iter().flatten() {
                    let found = &asked[field];
                    ensure!(found == wanted, "{name} has {field} {found}, {} has {wanted}", files[0].display());
                }
            }
        }
    }
    let (arguments, _) = whole.context("--merge wants files")?;
    let outcome = sum.finish(arguments.seconds)?;
    Ok((arguments, outcome))
}

fn read(file: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not JSON", file.display()))
}

/// What all parts of one load have in common.
fn asked_for(value: &Value) -> Value {
    let fields = [
        "workload",
        "command",
        "clients_per_host",
        "pipeline",
        "value_bytes",
        "keys",
        "distribution",
        "read_ratio",
        "rate",
        "elapsed_s",
    ];
    let mut asked: Value = fields.iter().map(|&field| (field.to_owned(), value[field].clone())).collect();
    asked["parts"] = value["part"]["of"].clone();
    asked
}

/// What was asked for, as far as a report tells it.
fn arguments_of(value: &Value) -> Option<BenchArguments> {
    let number = |field: &str| value[field].as_u64();
    let command = value["command"].as_str().map(str::to_owned);
    let workload = match command {
        Some(_) => Workload::Command,
        None => Workload::from_str(value["workload"].as_str()?, false).ok()?,
    };
    let hosts = value["hosts"].as_array()?.iter().map(|host| host.as_str().map(str::to_owned));
    Some(BenchArguments {
        hosts: hosts.collect::<Option<_>>()?,
        workload,
        command,
        clients: number("clients_per_host")?,
        pipeline: number("pipeline")?,
        value_bytes: number("value_bytes")?,
        keys: number("keys")?,
        distribution: Distribution::from_str(value["distribution"].as_str()?, false).ok()?,
        read_ratio: value["read_ratio"].as_f64()?,
        rate: value["rate"].as_f64(),
        seconds: value["elapsed_s"].as_f64()?,
        ..BenchArguments::for_host(String::new())
    })
}

/// The parts that were added so far.
#[derive(Default)]
struct Sum {
    /// The number and the beginning of each part, and of how many.
    parts: Vec<(u64, u64)>,
    of: u64,
    intervals: Vec<Interval>,
    servers: Vec<String>,
    unsent: u64,
    error_texts: Vec<String>,
    client_cpu_seconds: f64,
    server_cpu_seconds: Option<f64>,
}

impl Sum {
    fn add(&mut self, value: &Value) -> Result<()> {
        let part = &value["part"];
        let numbers = (part["part"].as_u64(), part["of"].as_u64(), part["begun_at_unix_ms"].as_u64());
        let (Some(number), Some(of), Some(begun_at_unix_ms)) = numbers else {
            bail!("this is not a part of a load: bench writes one with --part I/N and --json");
        };
        ensure!(self.parts.iter().all(|(other, _)| *other != number), "part {number}/{of} is given twice");
        self.parts.push((number, begun_at_unix_ms));
        self.of = of;
        let damaged = "this part of a load is damaged";
        for (second, interval) in part["seconds"].as_array().context(damaged)?.iter().enumerate() {
            let interval = interval_of(interval).context(damaged)?;
            if self.intervals.len() <= second {
                self.intervals.resize_with(second + 1, Interval::new);
            }
            self.intervals[second].merge(&interval);
        }
        let texts = |field: &str| {
            let texts = value[field].as_array().into_iter().flatten();
            texts.filter_map(|text| text.as_str().map(str::to_owned)).collect::<Vec<_>>()
        };
        for text in texts("servers") {
            if !self.servers.contains(&text) {
                self.servers.push(text);
            }
        }
        for text in texts("error_texts") {
            if self.error_texts.len() < ERROR_TEXTS_MAX && !self.error_texts.contains(&text) {
                self.error_texts.push(text);
            }
        }
        self.unsent += value["unsent"].as_u64().unwrap_or_default();
        self.client_cpu_seconds += value["client_cpu_s"].as_f64().unwrap_or_default();
        if let Some(seconds) = value["server_cpu_s"].as_f64() {
            *self.server_cpu_seconds.get_or_insert(0.0) += seconds;
        }
        Ok(())
    }

    fn finish(self, length_seconds: f64) -> Result<Outcome> {
        let of = self.of;
        let lacking = (1..=of).filter(|number| self.parts.iter().all(|(part, _)| part != number));
        let lacking: Vec<String> = lacking.map(|number| format!("{number}/{of}")).collect();
        ensure!(lacking.is_empty(), "a part is missing: {}", lacking.join(", "));
        let begun = self.parts.iter().map(|(_, begun_at_unix_ms)| *begun_at_unix_ms);
        let (first, last) = (begun.clone().min().unwrap_or_default(), begun.max().unwrap_or_default());
        ensure!(
            last - first <= BEGIN_DIFFERENCE_MS_MAX,
            "the parts began {:.1} s apart: start them with --at and the same time",
            (last - first) as f64 / 1_000.0
        );
        let mut total = Interval::new();
        for interval in &self.intervals {
            total.merge(interval);
        }
        let seconds = self.intervals.iter().enumerate();
        Ok(Outcome {
            servers: self.servers,
            begun_at_unix_ms: first,
            elapsed_seconds: length_seconds,
            total,
            seconds: seconds.map(|(second, interval)| Second::of(interval, second, length_seconds)).collect(),
            intervals: self.intervals,
            unsent: self.unsent,
            error_texts: self.error_texts,
            client_cpu_seconds: self.client_cpu_seconds,
            server_cpu_seconds: self.server_cpu_seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_divided_without_rest_and_without_overlap() {
        for count in [1, 7, 50, 100] {
            for of in 1..=5 {
                let shares: Vec<u64> = (0..of).map(|index| Part { index, of }.share_of(count)).collect();
                assert_eq!(shares.iter().sum::<u64>(), count, "{shares:?}");
            }
        }
        // Parts with different numbers of threads.
        let places: std::collections::BTreeSet<u64> = [(0, 1), (1, 4), (2, 2)]
            .into_iter()
            .flat_map(|(index, threads)| (0..threads).map(move |thread| Part { index, of: 3 }.place_of(thread)))
            .collect();
        assert_eq!(places.len(), 7);
        assert_eq!(Part::WHOLE.place_of(5), 5);
    }

    #[test]
    fn parts_are_read_as_they_are_written() {
        for text in ["1/1", "2/3", "3/3"] {
            assert_eq!(text.parse::<Part>().expect(text).to_string(), text);
        }
        for text in ["", "1", "0/3", "4/3", "1/0", "a/b", "1/2/3", "-1/2"] {
            assert!(text.parse::<Part>().is_err(), "{text}");
        }
    }
}
