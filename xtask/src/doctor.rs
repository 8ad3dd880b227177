//! `doctor`: does `holdfast doctor` name the right cause? Faults are made on purpose, one after the other, on loopback
//! and in control groups and network namespaces of their own, and the first line of the report is compared with the
//! fault. Then a healthy server is examined, again and again, and must be found healthy.
//!
//! What this machine does not permit is said to be so, and counts as neither right nor wrong.

mod faults;
mod stage;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::interrupt;
use crate::process::words;
use faults::{FAULTS, Fault, healthy};
use stage::{Case, Ground, NotPossible};

/// Faults that may be named wrong.
const WRONG_MAX: usize = 1;

/// What the verb was told.
struct Options {
    binary: PathBuf,
    redis: bool,
    seconds: u32,
    healthy_count: u32,
    only: Vec<String>,
    directory: PathBuf,
}

/// Runs the verb.
pub fn run(words: &[String]) -> Result<()> {
    let options = read(words)?;
    let faults: Vec<&Fault> = FAULTS
        .iter()
        .filter(|fault| options.only.is_empty() || options.only.iter().any(|it| it == fault.name))
        .collect();
    if let Some(unknown) = options.only.iter().find(|it| !FAULTS.iter().any(|fault| fault.name == it.as_str())) {
        let known: Vec<&str> = FAULTS.iter().map(|fault| fault.name).collect();
        bail!("there is no fault '{unknown}': {}", known.join(", "));
    }
    // What faults have changed is undone where each of their things is dropped.
    interrupt::note()?;
    let mut rows = Vec::new();
    for fault in faults {
        rows.push(try_fault(&options, fault)?);
        eprintln!("{}", rows.last().expect("just pushed").line());
    }
    let mut out = String::new();
    if !rows.is_empty() {
        let product = if options.redis { "redis-server" } else { "holdfast" };
        let _ = writeln!(out, "\nfaults, {product}, {} s each, load average now {}\n", options.seconds, load_average());
        rows.iter().for_each(|row| out.push_str(&format!("{}\n", row.line())));
        let count = |outcome: Outcome| rows.iter().filter(|row| row.outcome == outcome).count();
        let (right, wrong, none) = (count(Outcome::Right), count(Outcome::Wrong), count(Outcome::NotPossible));
        let _ = writeln!(out, "\n{right} right, {wrong} wrong, {none} not possible here");
    }
    let sick = try_health(&options, &mut out)?;
    print!("{out}");
    let wrong = rows.iter().filter(|row| row.outcome == Outcome::Wrong).count();
    ensure!(wrong <= WRONG_MAX, "{wrong} faults were not named on the first line");
    ensure!(sick == 0, "{sick} of {} examinations of a healthy server found something", options.healthy_count);
    Ok(())
}

fn read(words: &[String]) -> Result<Options> {
    let mut binary = None;
    let mut options = Options {
        binary: PathBuf::new(),
        redis: false,
        seconds: 10,
        healthy_count: 20,
        only: Vec::new(),
        directory: std::env::temp_dir(),
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} wants a value"));
        match word.as_str() {
            "--binary" => binary = Some(PathBuf::from(value()?)),
            "--redis" => options.redis = true,
            "--seconds" => options.seconds = value()?.parse().context("--seconds: not a number")?,
            "--healthy" => options.healthy_count = value()?.parse().context("--healthy: not a number")?,
            "--only" => options.only = value()?.split(',').filter(|it| !it.is_empty()).map(str::to_owned).collect(),
            "--directory" => options.directory = PathBuf::from(value()?),
            _ => bail!("doctor takes no option '{word}'"),
        }
    }
    let binary = match binary {
        Some(binary) => binary,
        None => crate::build_release()?,
    };
    options.binary = std::fs::canonicalize(&binary).with_context(|| format!("no program {}", binary.display()))?;
    Ok(options)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Right,
    Wrong,
    NotPossible,
}

/// What became of a fault.
#[derive(Debug)]
struct Row {
    fault: &'static str,
    outcome: Outcome,
    /// What the first line accuses, or why there was none.
    named: String,
    seconds: f64,
    processor_percent: f64,
    /// What stock Redis tells of itself.
    redis: Option<String>,
}

impl Row {
    fn line(&self) -> String {
        let Self { fault, named, seconds, processor_percent, .. } = self;
        let redis = self.redis.as_ref().map_or(String::new(), |told| format!("; LATENCY LATEST: {told}"));
        match self.outcome {
            Outcome::NotPossible => format!("{fault:<16} not possible here: {named}"),
            outcome => {
                let outcome = if outcome == Outcome::Right { "right" } else { "WRONG" };
                format!("{fault:<16} {outcome}  {seconds:>5.1} s  {processor_percent:>4.1} % CPU  {named}{redis}")
            }
        }
    }
}

fn try_fault(options: &Options, fault: &'static Fault) -> Result<Row> {
    let ground = Ground::new(&options.binary, options.redis, &options.directory)?;
    let none = |why: String| Row {
        fault: fault.name,
        outcome: Outcome::NotPossible,
        named: why,
        seconds: 0.0,
        processor_percent: 0.0,
        redis: None,
    };
    let injected = (fault.inject)(&ground);
    // It may have ended programs that the fault needs, which looks as if they were not possible.
    interrupt::check()?;
    let case = match injected {
        Ok(case) => case,
        Err(error) => match error.downcast::<NotPossible>() {
            Ok(NotPossible(why)) => return Ok(none(why)),
            Err(error) => return Err(error.context(format!("cannot make the fault '{}'", fault.name))),
        },
    };
    let report = examine(options, &case)?;
    let first = accused(&report);
    let is_right = first.as_ref().is_some_and(|(check, _)| fault.expected.contains(&check.as_str()));
    let named = match first {
        Some((check, value)) => format!("{check}: {value}"),
        None => report["verdict"].as_str().unwrap_or_default().to_owned(),
    };
    let expected = match is_right {
        true => String::new(),
        false => format!(" (expected: {}; all that are guilty: {})", fault.expected.join(" or "), guilty(&report)),
    };
    Ok(Row {
        fault: fault.name,
        outcome: if is_right { Outcome::Right } else { Outcome::Wrong },
        named: format!("{named}{expected}"),
        seconds: report["seconds"].as_f64().unwrap_or_default(),
        processor_percent: report["processor_share"].as_f64().unwrap_or_default() * 100.0,
        redis: if options.redis { Some(case.latency_events()) } else { None },
    })
}

/// The check that the first line accuses, with its value.
fn accused(report: &Value) -> Option<(String, String)> {
    let checks = report["checks"].as_array()?;
    let first = checks.iter().find(|check| check["rank"].as_u64() == Some(1))?;
    let text = |field: &str| first[field].as_str().unwrap_or_default().to_owned();
    Some((text("check"), text("value")))
}

/// All checks that are guilty, as they are ranked, with the share of the time that each has cost.
fn guilty(report: &Value) -> String {
    let checks = report["checks"].as_array().map_or(&[][..], Vec::as_slice);
    let mut guilty: Vec<&Value> = checks.iter().filter(|check| check["rank"].is_u64()).collect();
    guilty.sort_by_key(|check| check["rank"].as_u64());
    let told = |check: &&Value| {
        let share = check["stalled_share"].as_f64().unwrap_or_default() * 100.0;
        format!("{} {share:.1} %", check["check"].as_str().unwrap_or_default())
    };
    guilty.iter().map(told).collect::<Vec<_>>().join(", ")
}

/// Runs doctor as people do, where the case wants it.
fn examine(options: &Options, case: &Case) -> Result<Value> {
    let mut command = case.command(&options.binary);
    command.args(["doctor", "--json", "--alone", "--seconds", &options.seconds.to_string()]);
    command.args(["--server", &case.place, "--data-dir"]).arg(&case.data_folder).stdin(Stdio::null());
    let output = interrupt::output(&mut command)?;
    let told = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
    serde_json::from_slice(&output.stdout).with_context(|| format!("{}: {}", words(&command), told()))
}

/// Examines a healthy server again and again. Answers how often something was found.
fn try_health(options: &Options, out: &mut String) -> Result<u32> {
    if options.healthy_count == 0 {
        return Ok(0);
    }
    let before = load_average();
    let ground = Ground::new(&options.binary, options.redis, &options.directory)?;
    let case = healthy(&ground)?;
    let (mut sick, mut percent) = (0, 0.0);
    let begun = Instant::now();
    let _ = writeln!(out);
    for nth in 1..=options.healthy_count {
        let report = examine(options, &case)?;
        percent += report["processor_share"].as_f64().unwrap_or_default() * 100.0;
        if let Some((check, value)) = accused(&report) {
            sick += 1;
            let line = format!("healthy run {nth}: {check}: {value}; load average {}", load_average());
            eprintln!("{line}");
            let _ = writeln!(out, "{line}");
        }
    }
    let (count, seconds) = (options.healthy_count, begun.elapsed().as_secs());
    let _ = writeln!(
        out,
        "{} of {count} examinations of a healthy server found nothing; {:.1} % CPU each; {seconds} s in all; load \
         average {before} before, {} after",
        count - sick,
        percent / f64::from(count),
        load_average()
    );
    Ok(sick)
}

/// Of the last minute, of this host.
fn load_average() -> String {
    let text = std::fs::read_to_string(Path::new("/proc/loadavg")).unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

/// A script for the shell, in which `$1` is the first of the words.
pub(crate) fn shell(script: &str, words: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).args(words);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_what_has_the_first_rank() {
        let report: Value = serde_json::from_str(
            r#"{"verdict": "guilty: …", "checks": [
                {"check": "cpu.stolen", "value": "", "rank": null},
                {"check": "disk.sync", "value": "p50 9 ms", "rank": 2},
                {"check": "disk.writers", "value": "90 MB/s", "rank": 1}]}"#,
        )
        .expect("JSON");
        assert_eq!(accused(&report), Some(("disk.writers".to_owned(), "90 MB/s".to_owned())));
        assert_eq!(guilty(&report), "disk.writers 0.0 %, disk.sync 0.0 %");
        let healthy: Value =
            serde_json::from_str(r#"{"checks": [{"check": "disk.sync", "rank": null}]}"#).expect("JSON");
        assert_eq!(accused(&healthy), None);
    }

    #[test]
    fn what_was_not_possible_is_neither_right_nor_wrong() {
        let row = Row {
            fault: "delay",
            outcome: Outcome::NotPossible,
            named: "no rights".to_owned(),
            seconds: 0.0,
            processor_percent: 0.0,
            redis: None,
        };
        assert_eq!(row.line(), "delay            not possible here: no rights");
        let row = Row { outcome: Outcome::Wrong, named: "disk.sync: 9 ms".to_owned(), seconds: 10.0, ..row };
        assert_eq!(row.line(), "delay            WRONG   10.0 s   0.0 % CPU  disk.sync: 9 ms");
    }
}
