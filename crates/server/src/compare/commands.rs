//! `holdfast compare --commands`: what commands on each type cost the server.
//!
//! Sixteen at a time, the server on one processor and the load on another. A peer is measured twice: as it comes,
//! without a log, and with a log that it never syncs, which is what Holdfast writes here.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use resp::Frame;
use serde_json::{Value, json};

use super::contender::{Contender, Durability, Folder, RunningServer};
use super::talk::Talk;
use super::{Figures, time_left, warmup};
use crate::bench::{self, BenchArguments, Distribution, Outcome, Progress, Workload};
use crate::torture::cluster;

const VALUE_BYTES: u64 = 20;
const CLIENTS: u64 = 50;
const PIPELINE: u64 = 16;
const CLEAR_TIMEOUT: Duration = Duration::from_secs(60);

/// One command that is measured.
struct Case {
    name: &'static str,
    /// What is done before, once for each of some keys.
    before: Option<(&'static str, Stock)>,
    command: &'static str,
    /// Different keys.
    keys: u64,
}

/// How many keys.
#[derive(Clone, Copy)]
enum Stock {
    Keys(u64),
    /// So many for each second of load: more than any server gives away in the time.
    PerSecond(f64),
}

const MANY: u64 = 10_000_000;
const SOME: u64 = 100_000;
const FEW: u64 = 1_000;

const SCRIPT: &str = "EVAL \"redis.call('SET',KEYS[1],ARGV[1]) redis.call('INCR',KEYS[2]) \
    return redis.call('GET',KEYS[1])\" 2 a:{key} b:{key} {value}";

static CASES: [Case; 22] = {
    const fn case(name: &'static str, command: &'static str, keys: u64) -> Case {
        Case { name, before: None, command, keys }
    }
    const fn after(before: &'static str, stock: Stock, case: Case) -> Case {
        Case { before: Some((before, stock)), ..case }
    }
    let large_hash = "HSET hash f:{key} {value}";
    let small_hashes = "HSET hash:{key} f {value}";
    let list = "RPUSH list {value}";
    let document = r#"JSON.SET doc:{key} $ "{\"name\":\"{value}\",\"count\":1,\"tags\":[\"a\",\"b\"]}""#;
    [
        case("HSET, one large hash", large_hash, SOME),
        after(large_hash, Stock::Keys(SOME), case("HGET, one large hash", "HGET hash f:{key}", SOME)),
        case("HSET, small hashes", small_hashes, SOME),
        after(small_hashes, Stock::Keys(SOME), case("HGET, small hashes", "HGET hash:{key} f", SOME)),
        case("HSETEX, small hashes", "HSETEX hash:{key} EX 1000 FIELDS 1 f {value}", SOME),
        after(small_hashes, Stock::Keys(SOME), case("HEXPIRE", "HEXPIRE hash:{key} 1000 FIELDS 1 f", SOME)),
        case("LPUSH", "LPUSH list {value}", SOME),
        case("RPUSH", list, SOME),
        after(list, Stock::PerSecond(3e6), case("RPOP", "RPOP list", SOME)),
        after(list, Stock::Keys(FEW), case("LRANGE_100", "LRANGE list 0 99", SOME)),
        case("SADD, new members", "SADD set m:{key}", MANY),
        after("SADD set m:{key}", Stock::Keys(FEW), case("SADD, known members", "SADD set m:{key}", FEW)),
        after("SADD set m:{key}", Stock::PerSecond(2e6), case("SPOP", "SPOP set", SOME)),
        case("ZADD", "ZADD zset {key} m:{key}", SOME),
        after("ZADD zset {key} m:{key}", Stock::Keys(SOME), case("ZRANGE_10", "ZRANGE zset 0 9", SOME)),
        case("XADD", "XADD stream * f {value}", SOME),
        after(document, Stock::Keys(SOME), case("JSON.SET of a path", "JSON.SET doc:{key} $.count 2", SOME)),
        after(document, Stock::Keys(SOME), case("JSON.GET of a path", "JSON.GET doc:{key} $.name", SOME)),
        after("BF.RESERVE bloom 0.001 10000000", Stock::Keys(1), case("BF.ADD", "BF.ADD bloom m:{key}", MANY)),
        case("EVAL of three calls, new keys", SCRIPT, MANY),
        after("MSET a:{key} 1 b:{key} 1", Stock::Keys(FEW), case("EVAL, known keys", SCRIPT, FEW)),
        case("SET", "SET key:{key} {value}", SOME),
    ]
};

/// A server as it is run here.
struct Subject {
    /// Its name, and whether it keeps a log.
    name: String,
    contender: Contender,
    more: &'static [&'static str],
}

/// All runs of one command: for each subject, one for each round; none for one that lacks the command.
struct Runs {
    case: &'static Case,
    runs: Vec<Vec<Figures>>,
}

/// What stands where a figure would be of a server that does not know the command.
const LACKING: &str = "peer lacks it";

/// What came of it.
pub struct CommandFigures {
    /// Holdfast first; if it has several cores, Holdfast with one core last.
    subjects: Vec<Subject>,
    results: Vec<Runs>,
    rounds: usize,
    seconds: f64,
    /// There was but one processor: the load took the server's time.
    shared_processor: bool,
}

fn subjects(contenders: &[Contender]) -> Vec<Subject> {
    let subject = |contender: &Contender, log: &str, more| Subject {
        name: format!("{}{log}", contender.name),
        contender: contender.clone(),
        more,
    };
    contenders
        .iter()
        .flat_map(|contender| {
            if contender.is_holdfast {
                vec![subject(contender, "", [].as_slice())]
            } else {
                let log = ["--appendonly", "yes", "--appendfsync", "no"].as_slice();
                vec![subject(contender, ", no log", [].as_slice()), subject(contender, ", log", log)]
            }
        })
        .collect()
}

/// Measures all of them in turns.
pub fn measure(
    contenders: &[Contender],
    only: &str,
    (rounds, seconds): (usize, f64),
    processors: &[usize],
    folder: &Folder,
    progress: &mut Progress,
) -> Result<CommandFigures> {
    let subjects = subjects(contenders);
    let (server_processor, load_processor) = super::two_of(processors)?;
    let mut results: Vec<Runs> = CASES
        .iter()
        .filter(|case| case.name.to_lowercase().contains(only))
        .map(|case| Runs { case, runs: vec![Vec::new(); subjects.len()] })
        .collect();
    ensure!(!results.is_empty(), "no command's name contains '{only}'");
    let mut servers = Vec::new();
    for Subject { name, contender, more, .. } in &subjects {
        let more = more.iter().map(|word| (*word).to_owned()).collect();
        super::pin_server(contender, server_processor, processors)?;
        let port = cluster::some_free_port()?;
        let server = RunningServer::start_on(contender, Durability::Unsynced, port, more, folder);
        bench::pin_this_thread(&[load_processor])?;
        servers.push(server.with_context(|| format!("cannot start {name}"))?);
    }
    let mut known = Vec::new();
    for server in &servers {
        let mut talk = Talk::new(&server.address())?;
        let knows = results.iter().map(|result| knows(&mut talk, result.case.command));
        known.push(knows.collect::<Result<Vec<bool>>>()?);
    }
    let lacking = results.iter().zip(&known[0]).find(|(_, is_known)| !*is_known);
    ensure!(lacking.is_none(), "this Holdfast is older than its commands");
    let (started, mut done) = (Instant::now(), 0);
    let wanted = rounds * known.iter().flatten().filter(|is_known| **is_known).count();
    for round in 0..rounds {
        for (nth, result) in results.iter_mut().enumerate() {
            for turn in 0..servers.len() {
                let index = (turn + round) % servers.len(); // another begins in each round
                if !known[index][nth] {
                    continue;
                }
                let (name, case) = (&subjects[index].name, result.case);
                let line = format!("round {}/{rounds}   {name}: {}", round + 1, case.name);
                progress.show(&format!("{line}{}", time_left(started, done, wanted)));
                let figures = case.measure(&servers[index], seconds, load_processor);
                result.runs[index].push(figures.with_context(|| format!("{name}: {}", case.name))?);
                done += 1;
            }
        }
    }
    for server in servers {
        server.stop()?;
    }
    Ok(CommandFigures { subjects, results, rounds, seconds, shared_processor: server_processor == load_processor })
}

impl Case {
    fn measure(&self, server: &RunningServer, seconds: f64, processor: usize) -> Result<Figures> {
        let outcome = super::measured(|| self.measure_once(server, seconds, processor))?;
        let counts = &outcome.total.counts;
        ensure!(counts.misses == 0, "{} of {} requests found nothing", counts.misses, counts.requests);
        ensure!(counts.errors == 0, "{} errors, such as {:?}", counts.errors, outcome.error_texts.first());
        Ok(Figures::of(&outcome))
    }

    fn measure_once(&self, server: &RunningServer, seconds: f64, processor: usize) -> Result<Outcome> {
        clear(server)?;
        let load = BenchArguments {
            clients: CLIENTS,
            workload: Workload::Command,
            pipeline: PIPELINE,
            seconds,
            warmup: warmup(seconds),
            value_bytes: VALUE_BYTES,
            keys: self.keys,
            distribution: Distribution::Uniform,
            threads: Some(1),
            server_pid: vec![server.pid()],
            processor: Some(processor),
            ..BenchArguments::for_host(server.address())
        };
        if let Some((before, stock)) = self.before {
            let keys = match stock {
                Stock::Keys(keys) => keys,
                Stock::PerSecond(rate) => ((seconds + warmup(seconds)) * rate) as u64,
            };
            bench::fill(&BenchArguments { command: Some(before.to_owned()), keys, ..load.clone() })?;
        }
        bench::measure(&BenchArguments { command: Some(self.command.to_owned()), ..load })
    }
}

/// True if a server has the command that a line begins with.
fn knows(talk: &mut Talk, line: &str) -> Result<bool> {
    let name = line.split(' ').next().unwrap_or_default();
    match talk.ask(&["COMMAND", "INFO", name])? {
        Frame::Array(told) => Ok(told.iter().any(|entry| matches!(entry, Frame::Array(words) if !words.is_empty()))),
        other => bail!("COMMAND INFO was answered with {other:?}"),
    }
}

/// Takes away what the case before has left, so that nobody pays for it in this one.
fn clear(server: &RunningServer) -> Result<()> {
    let mut talk = Talk::new(&server.address())?;
    talk.ask(&["FLUSHALL"])?;
    let asked = Instant::now();
    while talk.info("memory", "lazyfree_pending_objects")? != "0" {
        ensure!(asked.elapsed() < CLEAR_TIMEOUT, "what FLUSHALL has taken away is not freed");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

impl CommandFigures {
    fn medians(&self, result: &Runs) -> Vec<Option<Figures>> {
        result.runs.iter().map(|runs| (!runs.is_empty()).then(|| Figures::median(runs))).collect()
    }

    /// The report that is printed.
    pub fn text(&self) -> String {
        use std::fmt::Write;
        let mut out = format!(
            "Server CPU per command in µs; {CLIENTS} clients x pipeline {PIPELINE}, values of {VALUE_BYTES} bytes; {}; \
             nothing is synced; {}\n\n{:<32}",
            super::report::rounds_of(self.rounds, self.seconds),
            super::report::processors(self.shared_processor),
            ""
        );
        for (index, subject) in self.subjects.iter().enumerate() {
            let _ = write!(out, "{:>22}", subject.name);
            let _ = if index > 0 { write!(out, "{:>8}", "ratio") } else { Ok(()) };
        }
        out.push('\n');
        for result in &self.results {
            let medians = self.medians(result);
            let _ = write!(out, "{:<32}", result.case.name);
            let own = medians[0].as_ref().map_or(f64::NAN, |figures| figures.server_cpu_us);
            for (index, figures) in medians.iter().enumerate() {
                let _ = match figures.as_ref().map(|figures| figures.server_cpu_us) {
                    None => write!(out, "{LACKING:>22}{:>8}", "-"),
                    Some(cpu) if index > 0 => write!(out, "{cpu:>22.2}{:>7.2}x", own / cpu),
                    Some(cpu) => write!(out, "{cpu:>22.2}"),
                };
            }
            out.push('\n');
        }
        out
    }

    /// The report to be processed, with every run.
    pub fn json(&self) -> Value {
        let commands = self.results.iter().map(|result| {
            let medians = self.medians(result);
            let servers = self.subjects.iter().zip(&medians).zip(&result.runs).map(|((subject, median), runs)| {
                let Some(median) = median else {
                    return json!({ "name": subject.name, "lacks_command": true });
                };
                let mut value = json!({
                    "name": subject.name,
                    "median": median.json(),
                    "runs": runs.iter().map(Figures::json).collect::<Vec<_>>(),
                });
                if let Some(own) = medians[0].as_ref().filter(|_| subject.name != self.subjects[0].name) {
                    value["holdfast_to_this"] = json!({ "server_cpu": own.server_cpu_us / median.server_cpu_us });
                }
                value
            });
            json!({
                "name": result.case.name,
                "command": result.case.command,
                "servers": servers.collect::<Vec<_>>(),
            })
        });
        json!({
            "rounds": self.rounds,
            "seconds": self.seconds,
            "value_bytes": VALUE_BYTES,
            "clients": CLIENTS,
            "pipeline": PIPELINE,
            "shared_processor": self.shared_processor,
            "commands": commands.collect::<Vec<_>>(),
        })
    }
}
