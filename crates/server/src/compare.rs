//! `holdfast compare`: Holdfast beside the Redis and Valkey servers of this machine.
//!
//! Figures drift from hour to hour and from machine to machine, by more than the differences that matter. So both are
//! measured in one run, in turns, scenario by scenario, and only the ratios of medians are worth quoting. Holdfast is
//! started as `serve` starts it, and once more with one core. Servers of one core run
//! on one processor and the load on another, so that neither can hide behind the other's idle time. What counts most is
//! the server's CPU time per operation: throughput also depends on how the load was played.

mod commands;
mod contender;
mod footprint;
mod huge;
mod replicated;
mod report;
mod snapshot;
mod talk;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sched::sched_getaffinity;
use nix::unistd::Pid;

use crate::bench::{self, BenchArguments, Outcome, Workload};
use contender::{Durability, Folder, RunningServer};

/// Compare this Holdfast with the Redis and Valkey servers that are installed.
///
/// Starts each of them on free ports of the loopback address, with data in a temporary directory, and stops them
/// afterwards.
#[derive(clap::Args, Clone, Debug)]
pub struct CompareArguments {
    /// A short version: one round of one second each
    #[arg(long)]
    pub quick: bool,
    /// Rounds, of which the median counts [default: 5, or 1 with --quick]
    #[arg(long, short = 'n')]
    pub rounds: Option<usize>,
    /// Seconds to measure in each scenario of each round [default: 3, or 1 with --quick; with --snapshot 20, or
    /// 2; with --commands 2, or 0.5]
    #[arg(long, short)]
    pub seconds: Option<f64>,
    /// Only scenarios with this text in their name; with --huge, only such collections; with --commands, only such
    /// commands
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Instead of the scenarios: latency and memory with and without a snapshot in progress, at half of capacity
    #[arg(long, conflicts_with_all = ["only", "rounds", "html"])]
    pub snapshot: bool,
    /// Instead of the scenarios: memory per key, and the time of a restart
    #[arg(long, conflicts_with_all = ["only", "rounds", "html", "snapshot", "seconds"])]
    pub footprint: bool,
    /// Instead of the scenarios: what clients wait while a hash, then a sorted set, of many elements is filled, saved,
    /// removed and expired
    #[arg(long, conflicts_with_all = ["rounds", "html", "snapshot", "footprint", "seconds"])]
    pub huge: bool,
    /// Instead of the scenarios: three nodes beside a primary with two replicas, writes only
    #[arg(long, conflicts_with_all = ["only", "html", "snapshot", "footprint", "huge"])]
    pub replicated: bool,
    /// Instead of the scenarios: what commands on each type cost the server, sixteen at a time
    #[arg(long, conflicts_with_all = ["html", "snapshot", "footprint", "huge", "replicated"])]
    pub commands: bool,
    /// Elements for --huge [default: 10000000, or 100000 with --quick]
    #[arg(long, requires = "huge", value_parser = clap::value_parser!(u64).range(1..1_000_000_000))]
    pub elements: Option<u64>,
    /// Cores of Holdfast [default: as serve starts it; in the scenarios and with --commands
    /// one core is measured beside it]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub cores: Option<u16>,
    /// Megabytes of data for --snapshot [default: 4000, or 100 with --quick]
    #[arg(long, value_name = "MB", requires = "snapshot", value_parser = clap::value_parser!(u64).range(1..1_000_000))]
    pub data_mb: Option<u64>,
    /// Keys for --footprint [default: 10000000, or 100000 with --quick]
    #[arg(long, requires = "footprint", value_parser = clap::value_parser!(u64).range(1..1_000_000_000))]
    pub keys: Option<u64>,
    /// A server program to compare with, instead of those found in PATH; may be repeated
    #[arg(long, value_name = "PROGRAM")]
    pub peer: Vec<PathBuf>,
    /// The Holdfast program to measure, instead of this one
    #[arg(long, value_name = "PROGRAM")]
    pub holdfast: Option<PathBuf>,
    /// Where the temporary directory is made; for the scenarios with fsync, on a disk that matters
    #[arg(long, value_name = "DIRECTORY")]
    pub directory: Option<PathBuf>,
    /// Write the figures as JSON to a file, or to the standard output with -
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// Write tables and charts as one HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Show no progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// One thing that is measured.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    durability: Durability,
    workload: Workload,
    clients: u64,
    pipeline: u64,
}

const VALUE_BYTES: u64 = 128;
const KEYS: u64 = 100_000;
/// For so long the machine may give a load, or a server, no time.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);

/// Seconds of load before measuring that do for so many that are measured.
fn warmup(seconds: f64) -> f64 {
    (seconds / 4.0).min(1.0)
}

const SCENARIOS: [Scenario; 10] = {
    const fn scenario(durability: Durability, workload: Workload, clients: u64, pipeline: u64) -> Scenario {
        Scenario { durability, workload, clients, pipeline }
    }
    [
        scenario(Durability::Unsynced, Workload::Set, 50, 1),
        scenario(Durability::Unsynced, Workload::Get, 50, 1),
        scenario(Durability::Unsynced, Workload::Set, 50, 16),
        scenario(Durability::Unsynced, Workload::Get, 50, 16),
        scenario(Durability::Unsynced, Workload::Trans, 100, 1),
        scenario(Durability::Always, Workload::Set, 1, 1),
        scenario(Durability::Always, Workload::Set, 50, 1),
        scenario(Durability::Always, Workload::Set, 200, 1),
        scenario(Durability::Always, Workload::Set, 50, 16),
        scenario(Durability::Always, Workload::Trans, 100, 1),
    ]
};

impl Scenario {
    fn name(&self) -> String {
        let Self { durability, workload, clients, pipeline } = self;
        let word = match workload {
            Workload::Trans => "trans".to_owned(),
            other => other.name().to_uppercase(),
        };
        let clients = if *clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") };
        let pipeline = if *pipeline == 1 { String::new() } else { format!(" x pipeline {pipeline}") };
        let durability = match durability {
            Durability::Unsynced => "no fsync",
            Durability::EverySecond => "fsync every second",
            Durability::Always => "fsync always",
        };
        format!("{word}, {clients}{pipeline}, {durability}")
    }
}

/// What one run of one scenario gave, or the median of several.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    operations_per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    max_ms: f64,
    server_cpu_us: f64,
    errors: u64,
    aborts: u64,
}

impl Figures {
    fn of(outcome: &Outcome) -> Self {
        let all = outcome.total.all();
        Self {
            operations_per_second: outcome.rate(),
            p50_ms: all.percentile_ms(50.0),
            p99_ms: all.percentile_ms(99.0),
            p999_ms: all.percentile_ms(99.9),
            max_ms: all.max_ms(),
            server_cpu_us: outcome.server_cpu_us_per_operation().unwrap_or(0.0),
            errors: outcome.total.counts.errors + outcome.total.counts.connections_lost,
            aborts: outcome.total.counts.aborts,
        }
    }

    /// The median of each figure by itself; errors and aborts add up.
    fn median(runs: &[Self]) -> Self {
        let median = |figure: fn(&Self) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(figure).collect();
            values.sort_by(f64::total_cmp);
            match values.len() {
                0 => 0.0,
                len if len % 2 == 1 => values[len / 2],
                len => (values[len / 2 - 1] + values[len / 2]) / 2.0,
            }
        };
        Self {
            operations_per_second: median(|run| run.operations_per_second),
            p50_ms: median(|run| run.p50_ms),
            p99_ms: median(|run| run.p99_ms),
            p999_ms: median(|run| run.p999_ms),
            max_ms: median(|run| run.max_ms),
            server_cpu_us: median(|run| run.server_cpu_us),
            errors: runs.iter().map(|run| run.errors).sum(),
            aborts: runs.iter().map(|run| run.aborts).sum(),
        }
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "operations_per_s": self.operations_per_second,
            "p50_ms": self.p50_ms,
            "p99_ms": self.p99_ms,
            "p999_ms": self.p999_ms,
            "max_ms": self.max_ms,
            "server_cpu_us_per_operation": self.server_cpu_us,
            "errors": self.errors,
            "aborts": self.aborts,
        })
    }
}

/// All runs of one scenario: for each contender, one for each round.
struct Runs {
    scenario: Scenario,
    runs: Vec<Vec<Figures>>,
}

/// Runs the comparison and prints its report.
pub fn run(arguments: CompareArguments) -> Result<()> {
    let rounds = arguments.rounds.unwrap_or(if arguments.quick { 1 } else { 5 }).max(1);
    let mut contenders = contender::find(&arguments)?;
    let processors = allowed_processors()?;
    let is_study_of_all = !(arguments.snapshot || arguments.footprint || arguments.huge || arguments.replicated);
    if is_study_of_all && contenders[0].wants_all_processors() && processors.len() > 1 {
        contenders.push(contenders[0].with_one_core());
    }
    if arguments.snapshot || arguments.footprint || arguments.huge || arguments.replicated || arguments.commands {
        return run_study(&arguments, &contenders);
    }
    let seconds = arguments.seconds.unwrap_or(if arguments.quick { 1.0 } else { 3.0 });
    let only = arguments.only.as_deref().unwrap_or_default().to_lowercase();
    let scenarios: Vec<Scenario> =
        SCENARIOS.into_iter().filter(|scenario| scenario.name().to_lowercase().contains(&only)).collect();
    ensure!(!scenarios.is_empty(), "no scenario's name contains '{only}'");
    let (server_processor, load_processor) = two_of(&processors)?;
    let folder = Folder::new(arguments.directory.as_deref())?;
    contender::clean_up_on_signals()?;

    let mut results: Vec<Runs> =
        scenarios.iter().map(|&scenario| Runs { scenario, runs: vec![Vec::new(); contenders.len()] }).collect();
    let mut progress = bench::Progress::new(arguments.quiet);
    let (started, mut done) = (Instant::now(), 0);
    let wanted = rounds * contenders.len() * scenarios.len();
    for round in 0..rounds {
        for durability in [Durability::Unsynced, Durability::Always] {
            if !scenarios.iter().any(|scenario| scenario.durability == durability) {
                continue;
            }
            let mut servers = Vec::new();
            for contender in &contenders {
                pin_server(contender, server_processor, &processors)?;
                let server = RunningServer::start(contender, durability, &folder);
                bench::pin_this_thread(&[load_processor])?;
                servers.push(server.with_context(|| format!("cannot start {}", contender.name))?);
            }
            let mut loaded = vec![false; servers.len()];
            for result in results.iter_mut().filter(|result| result.scenario.durability == durability) {
                for turn in 0..servers.len() {
                    let index = (turn + round) % servers.len(); // another begins in each round
                    let (name, scenario) = (&contenders[index].name, &result.scenario);
                    progress.show(&format!(
                        "round {}/{rounds}   {:>3.0} %   {name}: {}{}",
                        round + 1,
                        done as f64 * 100.0 / wanted as f64,
                        scenario.name(),
                        time_left(started, done, wanted)
                    ));
                    let load = scenario.load(&servers[index], seconds, load_processor, loaded[index]);
                    let outcome =
                        measured(|| bench::measure(&load)).with_context(|| format!("{name}: {}", scenario.name()))?;
                    loaded[index] |= load.workload.reads();
                    result.runs[index].push(Figures::of(&outcome));
                    done += 1;
                }
            }
            for server in servers {
                server.stop()?;
            }
        }
    }
    progress.clear();

    let comparison = report::Comparison {
        contenders: &contenders,
        results: &results,
        rounds,
        seconds,
        shared_processor: server_processor == load_processor,
        on_memory_disk: folder.is_on_memory_disk(),
    };
    hand_out(&arguments, &comparison.text(), &comparison.json())?;
    if let Some(path) = &arguments.html {
        std::fs::write(path, comparison.html()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Measures, and again if no reply came: a busy machine may give the load no time at all within a fraction of a second,
/// or keep the server waiting for its disk, which says nothing of the server. Each attempt does all that it needs.
fn measured(mut attempt: impl FnMut() -> Result<Outcome>) -> Result<Outcome> {
    let started = Instant::now();
    loop {
        let outcome = attempt()?;
        if outcome.total.counts.requests > 0 {
            return Ok(outcome);
        }
        ensure!(started.elapsed() < BUSY_TIMEOUT, "no reply came within {} s", BUSY_TIMEOUT.as_secs());
    }
}

/// What is measured one server after the other: it takes long, or most of the memory.
fn run_study(arguments: &CompareArguments, contenders: &[contender::Contender]) -> Result<()> {
    let folder = Folder::new(arguments.directory.as_deref())?;
    contender::clean_up_on_signals()?;
    let mut progress = bench::Progress::new(arguments.quiet);
    let (text, json) = if arguments.snapshot {
        let data_bytes = arguments.data_mb.unwrap_or(if arguments.quick { 100 } else { 4000 }) * 1_000_000;
        let seconds = arguments.seconds.unwrap_or(if arguments.quick { 2.0 } else { 20.0 });
        let figures = snapshot::measure(contenders, data_bytes, seconds, &folder, &mut progress)?;
        (snapshot::text(&figures, data_bytes, seconds), snapshot::json(&figures, data_bytes, seconds))
    } else if arguments.huge {
        let elements = arguments.elements.unwrap_or(if arguments.quick { 100_000 } else { 10_000_000 });
        let only = arguments.only.as_deref().unwrap_or_default().to_lowercase();
        let figures = huge::measure(contenders, elements, &only, &folder, &mut progress)?;
        (huge::text(&figures, elements), huge::json(&figures, elements))
    } else if arguments.commands {
        let seconds = arguments.seconds.unwrap_or(if arguments.quick { 0.5 } else { 2.0 });
        let rounds = arguments.rounds.unwrap_or(if arguments.quick { 1 } else { 5 }).max(1);
        let only = arguments.only.as_deref().unwrap_or_default().to_lowercase();
        let figures =
            commands::measure(contenders, &only, (rounds, seconds), &allowed_processors()?, &folder, &mut progress)?;
        (figures.text(), figures.json())
    } else if arguments.replicated {
        let seconds = arguments.seconds.unwrap_or(if arguments.quick { 1.0 } else { 3.0 });
        let rounds = arguments.rounds.unwrap_or(if arguments.quick { 1 } else { 5 }).max(1);
        let results = replicated::measure(contenders, rounds, seconds, &folder, &mut progress)?;
        (replicated::text(&results, rounds, seconds), replicated::json(&results, rounds, seconds))
    } else {
        let keys = arguments.keys.unwrap_or(if arguments.quick { 100_000 } else { 10_000_000 });
        let figures = footprint::measure(contenders, keys, &folder, &mut progress)?;
        (footprint::text(&figures, keys), footprint::json(&figures, keys))
    };
    progress.clear();
    hand_out(arguments, &text, &json)
}

/// Prints a report as text or as JSON, and writes the JSON where it is wanted.
fn hand_out(arguments: &CompareArguments, text: &str, json: &serde_json::Value) -> Result<()> {
    match &arguments.json {
        Some(path) if path.as_os_str() == "-" => say_line!("{json:#}"),
        Some(path) => {
            say!("{text}");
            std::fs::write(path, format!("{json:#}\n")).with_context(|| format!("cannot write {}", path.display()))?;
        }
        None => say!("{text}"),
    }
    Ok(())
}

impl Scenario {
    fn load(&self, server: &RunningServer, seconds: f64, processor: usize, loaded: bool) -> BenchArguments {
        BenchArguments {
            clients: self.clients,
            workload: self.workload,
            pipeline: self.pipeline,
            seconds,
            warmup: warmup(seconds),
            value_bytes: VALUE_BYTES,
            keys: KEYS,
            threads: Some(1),
            no_load: loaded,
            server_pid: vec![server.pid()],
            processor: Some(processor),
            ..BenchArguments::for_host(server.address())
        }
    }
}

/// One for the server and one for the load; the same one twice if there is no other.
fn two_of(processors: &[usize]) -> Result<(usize, usize)> {
    Ok((*processors.first().context("no processor")?, *processors.last().context("no processor")?))
}

/// Keeps this thread, and the server with all its threads that it starts next, where that server is measured: on all
/// processors if it has a use for them, otherwise on one.
fn pin_server(contender: &contender::Contender, processor: usize, all: &[usize]) -> Result<()> {
    let one = [processor];
    Ok(bench::pin_this_thread(if contender.wants_all_processors() { all } else { &one })?)
}

fn allowed_processors() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    Ok((0..nix::sched::CpuSet::count()).filter(|&index| allowed.is_set(index).unwrap_or(false)).collect())
}

fn time_left(started: Instant, done: usize, wanted: usize) -> String {
    if done == 0 {
        return String::new();
    }
    let seconds = started.elapsed().as_secs_f64() / done as f64 * (wanted - done) as f64;
    format!("   {:.0}:{:02.0} left", (seconds / 60.0).floor(), seconds % 60.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_taken_of_each_figure() {
        let run = |rate, cpu, errors| Figures {
            operations_per_second: rate,
            server_cpu_us: cpu,
            errors,
            ..Figures::default()
        };
        let median = Figures::median(&[run(3.0, 1.0, 1), run(1.0, 2.0, 0), run(2.0, 9.0, 2)]);
        assert_eq!((median.operations_per_second, median.server_cpu_us, median.errors), (2.0, 2.0, 3));
        assert_eq!(Figures::median(&[run(1.0, 0.0, 0), run(2.0, 0.0, 0)]).operations_per_second, 1.5);
    }

    #[test]
    fn every_scenario_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<String> = SCENARIOS.iter().map(Scenario::name).collect();
        assert_eq!(names.len(), SCENARIOS.len());
    }
}
