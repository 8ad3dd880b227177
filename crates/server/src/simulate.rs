//! `holdfast simulate`: the server under a false net, false disks and false clocks, one universe a seed.

mod report;
mod work;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use simulation::coverage::Coverage;
use simulation::{Canary, Durability, Outcome, Plan, Probes, Universe, Wait};

/// Run the server in a deterministic simulation with faults, and check what its clients saw.
#[derive(Clone, Debug, Args)]
pub struct SimulateArguments {
    /// Seeds, from the first up to but without the last (`0..1000`), or a single one (`17`).
    #[arg(long, value_parser = parse_seeds, default_value = "0..1000")]
    seeds: SeedRange,
    /// Nodes of each world; with --work numbers of nodes with commas between them, one world for each.
    #[arg(long, default_value = "1", value_parser = parse_nodes)]
    nodes: NodeCounts,
    /// What an acknowledgement means (appendfsync).
    #[arg(long, value_enum, default_value_t = Policy::Always)]
    policy: Policy,
    /// Nodes join and are removed (with three nodes and more).
    #[arg(long)]
    changes: bool,
    /// Slots move between groups (with three nodes and more).
    #[arg(long)]
    moves: bool,
    /// Groups are founded, and get their share of the slots.
    #[arg(long)]
    growth: bool,
    /// Clients give some requests ids, and repeat them under the same id until they are answered (with `always`).
    #[arg(long)]
    repeats: bool,
    /// Clients change one register again and again, some of them by EXEC after WATCH, and the cluster is new.
    #[arg(long, conflicts_with = "levels")]
    optimists: bool,
    /// Nodes run one of two versions, change it when they start, and the level is raised (with three nodes and more).
    #[arg(long, conflicts_with = "changes")]
    levels: bool,
    /// One node lies to the others: about terms, places in logs, addresses, members, and answers to what it was not
    /// asked; and it repeats old messages (with three nodes and more).
    #[arg(long)]
    liars: bool,
    /// A second site follows over a slow link that is often interrupted (with one node or three, and `always`).
    #[arg(long, conflicts_with_all = ["changes", "liars", "calm", "returns", "ailments", "waits"])]
    site: bool,
    /// Clocks run at double and at half speed for a while, which leases do not bear: what reads are told meanwhile is
    /// not judged, and all else is.
    #[arg(long, conflicts_with_all = ["calm", "returns", "ailments", "waits", "canary"])]
    clocks: bool,
    /// Nothing goes wrong, every world has the same net and disks, and the report says how long transfers between two
    /// keys took, in virtual time, once all nodes have joined and leaders are spread.
    #[arg(long, conflicts_with_all = ["canary", "changes", "moves", "growth", "levels", "liars"])]
    calm: bool,
    /// Nodes die and return, ten times in each world, and nothing else goes wrong: leaders must be where they were
    /// within a minute, without a step too many and without an error for clients of the other nodes (with three nodes
    /// and more).
    #[arg(long, conflicts_with_all = ["canary", "changes", "moves", "growth", "levels", "liars", "calm"])]
    returns: bool,
    /// Two nodes do not hear each other although others hear both, or a disk is full, ten times in each world, and
    /// nothing else goes wrong: no client of any node may see an error (with three nodes and more).
    #[arg(long, conflicts_with_all = ["changes", "moves", "growth", "liars", "calm", "returns"])]
    ailments: bool,
    /// Something happens to one node after another, six times in each world, and nothing else goes wrong: the report
    /// says how long clients of unhurt nodes waited, in virtual time, and what that was made of (with three nodes and
    /// more).
    #[arg(long, conflicts_with_all = ["canary", "changes", "moves", "growth", "liars", "calm", "returns", "ailments"])]
    waits: bool,
    /// Insert a defect that must be caught; the exit code is then 0 if it was.
    #[arg(long, value_enum)]
    canary: Option<CanaryName>,
    /// Print every event of a single seed.
    #[arg(long)]
    trace: bool,
    /// Run every seed twice, and fail if anything differs.
    #[arg(long)]
    twice: bool,
    /// Report as JSON.
    #[arg(long, conflicts_with = "trace")]
    json: bool,
    /// Threads [default: one per processor]
    #[arg(long)]
    threads: Option<usize>,
    #[command(flatten)]
    work: work::WorkArguments,
}

/// How many nodes worlds have.
#[derive(Clone, Debug)]
struct NodeCounts(Vec<usize>);

/// Seeds from the first up to but without the last.
#[derive(Clone, Debug)]
struct SeedRange(Range<u64>);

fn parse_nodes(text: &str) -> Result<NodeCounts, String> {
    let count = |word: &str| match word.parse() {
        Ok(nodes @ 1..=NODES_MAX) => Ok(nodes),
        _ => Err(format!("'{word}': a world has 1 to {NODES_MAX} nodes")),
    };
    Ok(NodeCounts(text.split(',').map(count).collect::<Result<_, _>>()?))
}

/// The most nodes of a world.
const NODES_MAX: usize = 128;

fn parse_seeds(text: &str) -> Result<SeedRange, String> {
    let number = |word: &str| word.parse::<u64>().map_err(|error| format!("'{word}': {error}"));
    let range = match text.split_once("..") {
        Some((first, last)) => number(first)?..number(last)?,
        None => number(text)?..number(text)?.saturating_add(1),
    };
    if range.is_empty() { Err("no seeds in this range".to_owned()) } else { Ok(SeedRange(range)) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Policy {
    Always,
    Everysec,
    No,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CanaryName {
    /// Acknowledge writes before they are on disk.
    EarlyAck,
    /// Commit a transaction over groups when the first of them has prepared it.
    EarlyCommit,
    /// Forget what a transaction over groups watches.
    ForgottenWatch,
    /// Neither lock nor look at what a transaction over groups watches and does not touch.
    ForgottenRead,
    /// Forget what has been answered, and carry out again what is asked again.
    ForgottenAnswer,
    /// Keep the locks of a node that is gone.
    ForgottenLock,
    /// Keep what is reserved for a client that has watched it until its EXEC comes: with --optimists.
    EndlessReservation,
    /// Forget that a transaction was committed without asking who may still ask: with --levels.
    ForgottenOutcome,
    /// Leave prepared transactions out of checkpoints.
    ForgottenPrepared,
    /// Leave the answers to requests with an id out of checkpoints: with --repeats.
    ForgottenRequestIds,
    /// Let leases outlast the promises that they rest on.
    LongLease,
    /// Vote right after a start, whatever was promised before.
    EarlyVote,
    /// Vote as if the end of the log had not been lost.
    ForgottenDoubt,
    /// Take a damaged record at the end of a log for one that nobody was promised.
    ForgottenTail,
    /// Read the keys of a slot that moves before the latest changes to them have been made.
    EarlyCopy,
    /// Forget what had been carried out of a slot that has been given away.
    ForgottenBook,
    /// Let a replica answer reads however old it is.
    BoundlessRead,
    /// Let nobody carry on what moment it has heard of.
    DeafMoments,
    /// Cut logs at a moment that not all of them have reached.
    OpenCut,
    /// Hear every process that says it is a node: with --ailments.
    CountedCopy,
    /// Let a replica go before another one has taken its place (with four nodes and more).
    EarlyRemoval,
    /// Take no notice of zones (with four nodes and more).
    ForgottenZones,
    /// Found groups once more at every start (with --growth).
    FoundedTwice,
    /// Let groups that have split off begin with nothing at a start (with --growth).
    ForgottenBeginning,
    /// Let groups that split off begin without what was changed last (with --growth).
    LostTail,
    /// Let the balancer split a group again before the first split has come about (with --growth).
    RepeatedSplit,
    /// Give up groups that are to go before their slots have moved (with --growth).
    EarlyEnd,
    /// Believe that a group that is to go has ended although slots of it have not moved (with --growth).
    FalseEnd,
    /// Let the balancer name one node less than are to hold a group (with four nodes and more).
    ThinPlacement,
    /// Let a group that goes answer reads of slots that it has given away (with --growth).
    KeptLease,
    /// Log what is new with a level before it has been raised: with --levels.
    EarlyLevel,
    /// Raise the level without asking which nodes know it: with --levels.
    BlindRise,
    /// Believe any term that a node says: with --liars.
    BelievedTerms,
    /// Take an answer from anyone who gives it: with --liars.
    BelievedAnswers,
    /// Tell a far site that moments are closed which are not: with --site.
    OpenMoment,
    /// Note the position of a far site before what leads there has been carried out: with --site.
    AheadPosition,
}

impl CanaryName {
    fn canary(self) -> Canary {
        match self {
            Self::EarlyAck => Canary::EarlyAcknowledgement,
            Self::EarlyCommit => Canary::EarlyCommit,
            Self::ForgottenWatch => Canary::ForgottenWatch,
            Self::ForgottenRead => Canary::ForgottenRead,
            Self::ForgottenAnswer => Canary::ForgottenAnswer,
            Self::ForgottenLock => Canary::ForgottenLock,
            Self::EndlessReservation => Canary::EndlessReservation,
            Self::ForgottenOutcome => Canary::ForgottenOutcome,
            Self::ForgottenPrepared => Canary::ForgottenPrepared,
            Self::ForgottenRequestIds => Canary::ForgottenRequestIds,
            Self::LongLease => Canary::LongLease,
            Self::EarlyVote => Canary::EarlyVote,
            Self::ForgottenDoubt => Canary::ForgottenDoubt,
            Self::ForgottenTail => Canary::ForgottenTail,
            Self::EarlyCopy => Canary::EarlyCopy,
            Self::ForgottenBook => Canary::ForgottenBook,
            Self::BoundlessRead => Canary::BoundlessRead,
            Self::DeafMoments => Canary::DeafMoments,
            Self::OpenCut => Canary::OpenCut,
            Self::CountedCopy => Canary::CountedCopy,
            Self::EarlyRemoval => Canary::EarlyRemoval,
            Self::ForgottenZones => Canary::ForgottenZones,
            Self::FoundedTwice => Canary::FoundedTwice,
            Self::ForgottenBeginning => Canary::ForgottenBeginning,
            Self::LostTail => Canary::LostTail,
            Self::RepeatedSplit => Canary::RepeatedSplit,
            Self::EarlyEnd => Canary::EarlyEnd,
            Self::FalseEnd => Canary::FalseEnd,
            Self::ThinPlacement => Canary::ThinPlacement,
            Self::KeptLease => Canary::KeptLease,
            Self::EarlyLevel => Canary::EarlyLevel,
            Self::BlindRise => Canary::BlindRise,
            Self::BelievedTerms => Canary::BelievedTerms,
            Self::BelievedAnswers => Canary::BelievedAnswers,
            Self::OpenMoment => Canary::OpenMoment,
            Self::AheadPosition => Canary::AheadPosition,
        }
    }
}

impl SimulateArguments {
    /// How many nodes each world has in which things go wrong.
    fn nodes(&self) -> usize {
        self.nodes.0[0]
    }

    fn plan(&self, seed: u64) -> Plan {
        Plan {
            seed,
            nodes: self.nodes(),
            calm: self.calm,
            returns: self.returns,
            ailments: self.ailments,
            waits: self.waits,
            durability: match self.policy {
                Policy::Always => Durability::Always,
                Policy::Everysec => Durability::EverySecond,
                Policy::No => Durability::No,
            },
            changes: self.changes && self.nodes() > 1,
            moves: self.moves && self.nodes() > 1,
            growth: self.growth,
            repeats: self.repeats && matches!(self.policy, Policy::Always),
            optimists: self.optimists,
            levels: self.levels && self.nodes() > 1,
            liars: self.liars && self.nodes() > 1,
            site: self.site,
            clocks: self.clocks,
            canary: self.canary.map(CanaryName::canary),
        }
    }

    /// The command that lives through one seed again.
    fn replay(&self, seed: u64) -> String {
        let policy = self.policy.to_possible_value().expect("every policy has a name").get_name().to_owned();
        let canary = self.canary.and_then(|canary| canary.to_possible_value());
        let canary = canary.map_or(String::new(), |canary| format!(" --canary {}", canary.get_name()));
        let changes = if self.changes { " --changes" } else { "" };
        let moves = if self.moves { " --moves" } else { "" };
        let growth = if self.growth { " --growth" } else { "" };
        let repeats = if self.repeats { " --repeats" } else { "" };
        let optimists = if self.optimists { " --optimists" } else { "" };
        let levels = if self.levels { " --levels" } else { "" };
        let liars = if self.liars { " --liars" } else { "" };
        let site = if self.site { " --site" } else { "" };
        let clocks = if self.clocks { " --clocks" } else { "" };
        let kind = if self.calm {
            " --calm"
        } else if self.returns {
            " --returns"
        } else if self.ailments {
            " --ailments"
        } else if self.waits {
            " --waits"
        } else {
            ""
        };
        let nodes = self.nodes();
        format!(
            "holdfast simulate --seeds {seed} --nodes {nodes} --policy {policy}{changes}{moves}{growth}{repeats}\
             {optimists}{levels}{liars}{site}{clocks}{kind}{canary} --trace"
        )
    }
}

/// What all threads share.
struct Tally {
    next: AtomicU64,
    done: AtomicU64,
    is_over: AtomicBool,
    totals: Mutex<Totals>,
}

#[derive(Default)]
struct Totals {
    probes: Probes,
    coverage: Coverage,
    failures: BTreeMap<u64, String>,
    step_count: u64,
    answered_count: u64,
    virtual_ns: u64,
    transfers_ns: Vec<u64>,
    returns_ns: Vec<u64>,
    waits: Vec<Wait>,
    judged_count: u64,
    undecided_count: u64,
}

thread_local! {
    /// The seed that this thread lives through.
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// An assertion that fails stops the process: says before in which seed.
fn name_seeds_of_panics(arguments: &SimulateArguments) {
    let (arguments, usual) = (arguments.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |info| {
        if let Some(seed) = SEED.get() {
            eprintln!("\nseed {seed} does not come to its end\n  replay: {}", arguments.replay(seed));
        }
        usual(info);
    }));
}

/// Failing seeds that are enough to stop at.
const FAILURES_MAX: usize = 10;

/// Runs the command.
///
/// # Errors
/// If a seed failed, or a canary survived.
pub fn run(arguments: SimulateArguments) -> Result<()> {
    let seeds = arguments.seeds.0.clone();
    let counts_copies = arguments.canary == Some(CanaryName::CountedCopy);
    if arguments.ailments && arguments.canary.is_some() && !counts_copies || counts_copies && !arguments.ailments {
        bail!("with --ailments there is the canary counted-copy, which is there with nothing else");
    }
    if (arguments.returns || arguments.ailments || arguments.waits) && arguments.nodes() == 1 {
        bail!("--returns, --ailments and --waits need three nodes or more: with one of two away there is no majority");
    }
    if arguments.work.work {
        let is_durable = match arguments.policy {
            Policy::Always => true,
            Policy::Everysec => false,
            Policy::No => bail!("--work knows the policies always and everysec"),
        };
        return work::run(&arguments.work, &arguments.nodes.0, is_durable, seeds.start, arguments.json);
    }
    if (arguments.changes || arguments.moves || arguments.levels || arguments.liars) && arguments.nodes() == 1 {
        bail!("--changes, --moves, --levels and --liars need three nodes or more: see --nodes");
    }
    let has_whole_nodes = matches!(arguments.nodes(), 1 | 3);
    if arguments.site && (!has_whole_nodes || !matches!(arguments.policy, Policy::Always)) {
        bail!("--site needs 1 or 3 nodes, which hold all groups, and the policy always");
    }
    if !matches!(arguments.nodes.0[..], [1 | 3..=7]) {
        bail!("a world has 1, or 3 to 7 nodes; several numbers, and other ones, are for --work");
    }
    name_seeds_of_panics(&arguments);
    if arguments.trace {
        return trace(&arguments, seeds);
    }
    let threads = arguments.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let tally = Tally {
        next: AtomicU64::new(seeds.start),
        done: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        totals: Mutex::default(),
    };
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(|| work(&arguments, &seeds, &tally))).collect();
        let progress = scope.spawn(|| show_progress(&tally, seeds.end - seeds.start, begun));
        for worker in workers {
            // A panic of a worker is a defect of the simulator's own; it has been printed.
            if worker.join().is_err() {
                tally.totals.lock().expect("no thread dies with it").failures.insert(u64::MAX, "a panic".into());
            }
        }
        tally.is_over.store(true, Ordering::Release);
        progress.thread().unpark();
    });
    let done = tally.done.load(Ordering::Relaxed);
    let mut totals = tally.totals.into_inner().expect("no thread dies with it");
    totals.transfers_ns.sort_unstable();
    totals.returns_ns.sort_unstable();
    totals.waits.sort_unstable_by_key(|wait| (wait.harm, wait.longest_ns));
    report::report(&arguments, &totals, done, begun.elapsed())
}

fn work(arguments: &SimulateArguments, seeds: &Range<u64>, tally: &Tally) {
    loop {
        let seed = tally.next.fetch_add(1, Ordering::Relaxed);
        if !seeds.contains(&seed) {
            return;
        }
        SEED.set(Some(seed));
        let mut outcome = live(&arguments.plan(seed));
        if arguments.twice && outcome.failure.is_none() {
            let again = live(&arguments.plan(seed));
            if again != outcome {
                let reason = format!("lived through twice, it ended as {:x} and as {:x}", outcome.digest, again.digest);
                outcome.failure = Some(reason);
            }
        }
        let mut totals = tally.totals.lock().expect("no thread dies with it");
        totals.probes.add(&outcome.probes);
        totals.coverage.add(&outcome.coverage);
        totals.step_count += outcome.step_count;
        totals.answered_count += outcome.answered_count;
        totals.virtual_ns += outcome.virtual_ns;
        totals.judged_count += outcome.judged_count;
        totals.undecided_count += outcome.undecided_count;
        totals.returns_ns.extend(&outcome.returns_ns);
        totals.waits.extend(outcome.waits);
        if arguments.calm {
            totals.transfers_ns.extend(&outcome.transfers_ns);
        }
        if let Some(failure) = outcome.failure {
            // A canary may die in every seed.
            if arguments.canary.is_none() && !arguments.json {
                clear_line();
                say_line!("seed {seed} failed: {failure}\n  replay: {}", arguments.replay(seed));
            }
            totals.failures.insert(seed, failure);
            if arguments.canary.is_none() && totals.failures.len() >= FAILURES_MAX {
                tally.next.store(seeds.end, Ordering::Relaxed);
            }
        }
        drop(totals);
        tally.done.fetch_add(1, Ordering::Relaxed);
    }
}

fn live(plan: &Plan) -> Outcome {
    simulation::run(plan)
}

fn trace(arguments: &SimulateArguments, seeds: Range<u64>) -> Result<()> {
    if seeds.end - seeds.start != 1 {
        bail!("--trace takes a single seed");
    }
    let print = |line: String| say_line!("{line}");
    let outcome = Universe::new(&arguments.plan(seeds.start), Some(Box::new(print))).run();
    match outcome.failure {
        None => {
            say_line!("seed {} is green; digest {:016x}", outcome.seed, outcome.digest);
            Ok(())
        }
        Some(failure) => bail!("seed {} failed: {failure}", outcome.seed),
    }
}

fn clear_line() {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

/// A bar on a terminal, a line now and then elsewhere.
fn show_progress(tally: &Tally, total: u64, begun: Instant) {
    let is_terminal = std::io::stderr().is_terminal();
    let interval = if is_terminal { Duration::from_millis(200) } else { Duration::from_secs(10) };
    let mut shown = Instant::now();
    while !tally.is_over.load(Ordering::Acquire) {
        std::thread::park_timeout(interval);
        let done = tally.done.load(Ordering::Relaxed);
        let seconds = begun.elapsed().as_secs_f64();
        let pace = done as f64 / seconds;
        if is_terminal {
            let filled = (done * 30 / total) as usize;
            let rest = if pace > 0.0 { ((total - done) as f64 / pace) as u64 } else { 0 };
            eprint!("\r[{:<30}] {done}/{total} seeds, {pace:.0} a second, {rest} s left ", "#".repeat(filled));
        } else if shown.elapsed() >= interval && done < total {
            shown = Instant::now();
            eprintln!("{done} of {total} seeds, {pace:.0} a second");
        }
    }
    clear_line();
}
