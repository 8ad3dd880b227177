//! `holdfast torture`: servers are hurt under load, and then asked for everything that they acknowledged.
//!
//! It knows the servers from outside only: real processes of this very binary, or of a stock Redis, real sockets, real
//! signals, real cables as far as one machine has them. What was acknowledged is written down here and nowhere else.
//! Suggested order of reading: [`schedule`], [`stand`], [`crew`], [`register`], [`zones`], [`append`].

mod append;
pub(crate) mod cluster;
mod crew;
mod findings;
mod network;
mod process;
mod register;
mod report;
mod schedule;
mod stand;
mod transfer;
mod values;
mod zones;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::bench::Progress;
use crate::connection::{self, Connection};
use crew::{Arena, Crew, Notes, Player, Step};
use findings::Findings;
use schedule::{Fault, Kind, Wishes};
use stand::{Event, Stand};

/// Kill and disturb servers under load, and audit what they acknowledged.
///
/// Starts servers of its own on this machine, with data in a temporary directory; writes values that are unique; kills,
/// stops, cuts off and slows down servers on a schedule that follows from the seed; then reads everything back. The
/// exit code is 1 if anything acknowledged is lost, altered or doubled, or if no order of events explains what was
/// read. Control-C ends the load early and audits; a second one ends at once.
#[derive(clap::Args, Clone, Debug)]
pub struct TortureArguments {
    /// What is tested: this program, or a stock redis-server with a replica that is promoted when its primary fails
    #[arg(long, value_enum, default_value_t = Against::Holdfast)]
    pub against: Against,
    /// What the clients do
    #[arg(long, short, value_enum, default_value_t = Workload::Register)]
    pub workload: Workload,
    /// Servers [default: 1, or 2 against redis]
    #[arg(long)]
    pub nodes: Option<usize>,
    /// Times that a server is killed (SIGKILL) and started again [default: 10 if no fault is asked for]
    #[arg(long)]
    pub kills: Option<u64>,
    /// Times that a server is stopped (SIGSTOP) for a while
    #[arg(long, default_value_t = 0)]
    pub stops: u64,
    /// Times that a server is cut off; needs root and network namespaces
    #[arg(long, default_value_t = 0)]
    pub partitions: u64,
    /// Times that a server's link becomes slow; needs root and network namespaces
    #[arg(long, default_value_t = 0)]
    pub slow_links: u64,
    /// How long stops, partitions and slow links last, in seconds: from, to
    #[arg(long, value_name = "MIN..MAX", default_value = "1..5", value_parser = parse_lengths)]
    pub lengths: Lengths,
    /// Seconds of load, over which the faults are spread; more if they take longer [default: 10, and 3 for each fault]
    #[arg(long, short)]
    pub seconds: Option<f64>,
    /// Seed of the schedule and of all choices [default: another one each time]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Connections
    #[arg(long, short, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub clients: u64,
    /// Requests that each client sends together before it waits for the replies; in the workload append, transactions
    #[arg(long, short = 'P', default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    pub pipeline: u64,
    /// Bytes of a value, in the workload register
    #[arg(long, short = 'd', default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=16 << 20))]
    pub value_bytes: u64,
    /// Share of reads, in the workload register
    #[arg(long, default_value_t = 0.75)]
    pub read_ratio: f64,
    /// Accounts, in the workload transfer
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(2..=10_000))]
    pub accounts: u64,
    /// What an acknowledgement means [default: always, or Redis's defaults against redis]
    #[arg(long, value_enum)]
    pub appendfsync: Option<Policy>,
    /// A loss of what was acknowledged less than so many seconds before a kill is counted, but does not fail the test
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pub window: f64,
    /// Seconds after which a client gives up on a reply and reconnects
    #[arg(long, default_value_t = 10.0)]
    pub timeout: f64,
    /// Another option for every server; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub option: Vec<String>,
    /// The server program, instead of this one or of redis-server
    #[arg(long, value_name = "PROGRAM")]
    pub program: Option<PathBuf>,
    /// Where the temporary directory is made; on a disk that matters
    #[arg(long, value_name = "DIRECTORY")]
    pub directory: Option<PathBuf>,
    /// Leave the servers' data and logs for inspection
    #[arg(long)]
    pub keep: bool,
    /// Write the report as JSON to a file, or to the standard output with -
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// Write a timeline of throughput, latency and faults as one HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Show no progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// Which program it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Against {
    /// This program.
    Holdfast,
    /// A stock redis-server, with its own defaults.
    Redis,
}

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Single reads and writes of values that are unique, and counters
    Register,
    /// Transactions between accounts; their total never changes
    Transfer,
    /// Transactions that append to lists and read them
    Append,
}

/// `appendfsync`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// On disk before it is acknowledged
    Always,
    /// On disk within a second
    Everysec,
    /// When the operating system writes it
    No,
}

impl Policy {
    fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Everysec => "everysec",
            Self::No => "no",
        }
    }
}

/// Shortest and longest fault.
#[derive(Clone, Copy, Debug)]
pub struct Lengths(Duration, Duration);

fn parse_lengths(text: &str) -> Result<Lengths, String> {
    let number = |word: &str| match word.parse::<f64>() {
        Ok(seconds) if (0.0..=3_600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("'{word}' is no number of seconds")),
    };
    let (min, max) = text.split_once("..").unwrap_or((text, text));
    let (min, max) = (number(min)?, number(max)?);
    if min > max { Err("the shortest is longer than the longest".to_owned()) } else { Ok(Lengths(min, max)) }
}

/// Faults to be spread if none is asked for.
const KILLS_DEFAULT: u64 = 10;
/// Load without faults, and for each fault.
const SECONDS_BASE: f64 = 10.0;
const SECONDS_PER_FAULT: f64 = 3.0;
/// The servers are given so long to serve the audit after the last fault.
const AUDIT_PATIENCE: Duration = Duration::from_secs(60);

impl TortureArguments {
    fn validate(&self) -> Result<()> {
        let nodes = self.node_count();
        match self.against {
            Against::Holdfast => ensure!([1, 3, 5].contains(&nodes), "--nodes must be 1, 3 or 5"),
            Against::Redis => ensure!((1..=5).contains(&nodes), "--nodes must be from 1 to 5 against redis"),
        }
        ensure!((0.0..=1.0).contains(&self.read_ratio), "--read-ratio must be between 0 and 1");
        ensure!(self.seconds.is_none_or(|seconds| (0.1..=1e6).contains(&seconds)), "--seconds must be at least 0.1");
        ensure!((0.1..=600.0).contains(&self.timeout), "--timeout must be between 0.1 and 600");
        ensure!((0.0..=3_600.0).contains(&self.window), "--window must be between 0 and 3600");
        ensure!(self.fault_count() <= 100_000, "these are more faults than a run can have");
        Ok(())
    }

    /// How many servers there are.
    pub fn node_count(&self) -> usize {
        self.nodes.unwrap_or(if self.against == Against::Redis { 2 } else { 1 })
    }

    /// Whether the servers need hosts of their own.
    pub fn needs_network(&self) -> bool {
        self.partitions + self.slow_links > 0
    }

    fn kill_count(&self) -> u64 {
        let is_without = self.stops + self.partitions + self.slow_links == 0;
        self.kills.unwrap_or(if is_without { KILLS_DEFAULT } else { 0 })
    }

    fn fault_count(&self) -> u64 {
        self.kill_count().saturating_add(self.stops).saturating_add(self.partitions).saturating_add(self.slow_links)
    }

    fn wishes(&self) -> Wishes {
        let seconds = self.seconds.unwrap_or(SECONDS_BASE + SECONDS_PER_FAULT * self.fault_count() as f64);
        Wishes {
            kills: self.kill_count(),
            stops: self.stops,
            partitions: self.partitions,
            slow_links: self.slow_links,
            nodes: self.node_count() as u64,
            duration: Duration::from_secs_f64(seconds),
            lengths: (self.lengths.0, self.lengths.1),
        }
    }
}

/// Whether the promise was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Kept,
    Broken,
}

impl Verdict {
    /// 0 or 1.
    pub fn exit_code(self) -> ExitCode {
        if self == Self::Kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Everything that is known in the end.
pub struct Outcome {
    pub seed: u64,
    pub version: String,
    pub interrupted: bool,
    pub faults_planned: usize,
    pub elapsed: Duration,
    pub events: Vec<Event>,
    pub clients: Vec<Notes>,
    pub timeline: Vec<Step>,
    pub findings: Findings,
    pub mishaps: Vec<String>,
    pub kept_at: Option<PathBuf>,
}

/// Runs the torture and prints its report.
///
/// # Errors
/// If it could not be run at all; a broken promise is a verdict.
pub fn run(arguments: TortureArguments) -> Result<Verdict> {
    arguments.validate()?;
    let seed = arguments.seed.unwrap_or_else(|| {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |since| since.as_micros() as u64 % 1_000_000)
    });
    let over = Arc::new(AtomicBool::new(false));
    process::watch_signals(Arc::clone(&over))?;
    let wishes = arguments.wishes();
    let faults = schedule::draw(&wishes, seed);
    let narrator = Narrator::new(arguments.quiet);
    narrator.tell(&format!("seed {seed}: {}", report::description(&arguments)));
    let mut stand = Stand::raise(&arguments, &over)?;
    let version = stand.version();
    let trial =
        Trial { arguments: &arguments, wishes: &wishes, faults: &faults, narrator: &narrator, over: &over, seed };
    let mut outcome = trial.run(&mut stand)?;
    stand.end();
    outcome.version = version;
    outcome.mishaps.append(&mut stand.mishaps);
    narrator.clear();

    let verdict = report::judge(&arguments, &outcome);
    // What a server of ours has broken is evidence.
    if arguments.keep || verdict == Verdict::Broken && arguments.against == Against::Holdfast {
        outcome.kept_at = Some(stand.keep_files().to_owned());
    }
    report::publish(&arguments, &outcome, verdict)?;
    Ok(verdict)
}

/// One run, from the first request to the audit.
struct Trial<'a> {
    arguments: &'a TortureArguments,
    wishes: &'a Wishes,
    faults: &'a [Fault],
    narrator: &'a Narrator,
    over: &'a Arc<AtomicBool>,
    seed: u64,
}

impl Trial<'_> {
    fn run(&self, stand: &mut Stand) -> Result<Outcome> {
        let TortureArguments { clients, pipeline, value_bytes, read_ratio, accounts, .. } = *self.arguments;
        let seed = self.seed ^ 0xC11E_7535; // clients and schedule draw apart
        let duration_ns = self.wishes.duration.as_nanos() as u64;
        match self.arguments.workload {
            Workload::Register => {
                let plan = register::Plan { clients, pipeline, value_bytes, read_ratio, seed, duration_ns };
                self.play(stand, register::players(&plan), |players, connection, epoch, spans| {
                    register::audit(players, connection, || epoch.elapsed().as_nanos() as u64, spans)
                })
            }
            Workload::Transfer => {
                let plan = transfer::Plan { clients, accounts, seed };
                let mut connection = self.auditor(stand).context("no server opens the accounts")?;
                transfer::prepare(&plan, &mut connection)?;
                self.play(stand, transfer::players(&plan), |players, connection, _, _| {
                    transfer::audit(players, connection)
                })
            }
            Workload::Append => {
                let plan = append::Plan { clients, pipeline, seed, duration_ns };
                self.play(stand, append::players(&plan), |players, connection, _, spans| {
                    append::audit(players, connection, spans)
                })
            }
        }
    }

    fn play<P: Player>(
        &self,
        stand: &mut Stand,
        players: Vec<P>,
        audit: impl FnOnce(Vec<P>, &mut Connection, Instant, &[(u64, u64)]) -> io::Result<Findings>,
    ) -> Result<Outcome> {
        let epoch = stand.start_clock();
        let patience = Duration::from_secs_f64(self.arguments.timeout);
        let arena = Arena::new(epoch, stand.directory(), patience);
        let crew = Crew::start(players, &arena)?;
        let events = self.inflict_all(stand, &arena);
        let interrupted = self.over.load(Ordering::Relaxed);
        arena.over.store(true, Ordering::Relaxed);
        let (players, clients) = crew.join();
        let elapsed = epoch.elapsed();
        stand.look_for_the_dead();

        self.narrator.show("audit");
        let window_ns = (self.arguments.window * 1e9) as u64;
        let kills = events.iter().filter(|event| event.kind == Kind::Kill);
        let spans: Vec<(u64, u64)> = match window_ns {
            0 => Vec::new(),
            _ => kills.map(|event| (event.from_ns.saturating_sub(window_ns), event.silent_ns)).collect(),
        };
        let audited =
            self.auditor(stand).and_then(|mut connection| Ok(audit(players, &mut connection, epoch, &spans)?));
        let findings = audited.unwrap_or_else(|error| {
            stand.mishaps.push(format!("the audit could not be made: {error:#}"));
            Findings::default()
        });
        Ok(Outcome {
            seed: self.seed,
            version: String::new(),
            interrupted,
            faults_planned: self.faults.len(),
            elapsed,
            events,
            clients,
            timeline: arena.timeline(),
            findings,
            mishaps: Vec::new(),
            kept_at: None,
        })
    }

    fn inflict_all(&self, stand: &mut Stand, arena: &Arena) -> Vec<Event> {
        let mut events = Vec::new();
        let (is_done, done) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            scope.spawn(|| self.show_progress(arena, &is_done, &done));
            for fault in self.faults {
                stand.pause(fault.at.saturating_sub(arena.epoch.elapsed()));
                if self.over.load(Ordering::Relaxed) {
                    break;
                }
                match stand.inflict(fault) {
                    Ok(event) => {
                        self.narrator.tell(&report::event_line(&event));
                        events.push(event);
                    }
                    Err(error) => {
                        let at = arena.epoch.elapsed().as_secs_f64();
                        stand.mishaps.push(format!("after '{}' at about {at:.1} s: {error:#}", fault.kind));
                        break;
                    }
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
            // Without a server there is nothing to wait for.
            if stand.mishaps.is_empty() {
                stand.pause(self.wishes.duration.saturating_sub(arena.epoch.elapsed()));
            }
            is_done.store(true, Ordering::Relaxed);
        });
        events
    }

    fn show_progress(&self, arena: &Arena, is_done: &AtomicBool, done: &AtomicUsize) {
        while !is_done.load(Ordering::Relaxed) {
            self.narrator.show(&format!(
                "{:>6.1}/{:.0} s   faults {}/{}   {}/s",
                arena.epoch.elapsed().as_secs_f64(),
                self.wishes.duration.as_secs_f64(),
                done.load(Ordering::Relaxed),
                self.faults.len(),
                crate::bench::grouped(arena.answered_lately() as f64, 0),
            ));
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// A connection to a server that serves.
    fn auditor(&self, stand: &Stand) -> Result<Connection> {
        let begun = Instant::now();
        let directory = stand.directory();
        let mut attempt = 0;
        while begun.elapsed() < AUDIT_PATIENCE {
            let (_, address) = directory.choose(0, attempt);
            if connection::serves(address, Duration::from_secs(2)) {
                return Ok(Connection::open(address, AUDIT_PATIENCE)?);
            }
            attempt += 1;
            thread::sleep(Duration::from_millis(20));
        }
        bail!("no server serves after {} s", AUDIT_PATIENCE.as_secs())
    }
}

/// Tells the user: lines that stay, and one that changes.
struct Narrator {
    progress: Mutex<Progress>,
    quiet: bool,
}

impl Narrator {
    fn new(quiet: bool) -> Self {
        Self { progress: Mutex::new(Progress::new(quiet)), quiet }
    }

    fn tell(&self, line: &str) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.clear();
        if !self.quiet {
            eprintln!("{line}");
        }
    }

    fn show(&self, line: &str) {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).show(line);
    }

    fn clear(&self) {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
