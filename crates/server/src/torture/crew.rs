//! The clients: threads that play, and what they note about time.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::stand::Directory;
use crate::bench::record::Latencies;
use crate::connection::Connection;

/// Width of a step of the timeline.
pub const STEP: Duration = Duration::from_millis(100);
/// Longest timeline; what comes later is added to its last step.
const STEPS_MAX: usize = 10 * 60 * 60 * 24;
/// Waiting between two attempts to connect: first and longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));
/// Pauses shorter than this are not told from ordinary ones.
const GAP_NS_MIN: u64 = 10_000_000;
/// Pauses that one client writes down.
const GAPS_MAX: usize = 100_000;
/// Error texts that are told apart.
const TEXTS_MAX: usize = 20;
/// Boundaries of latencies in a step: four to a doubling, from 16 µs.
const CLASSES: usize = 96;
const CLASS_NS_MIN: u64 = 16_384;

/// What all clients share.
pub struct Arena {
    pub epoch: Instant,
    pub directory: Arc<Directory>,
    /// The clients end after the exchange they are in.
    pub over: AtomicBool,
    /// A reply that takes longer is given up.
    pub patience: Duration,
    timeline: Mutex<Vec<Step>>,
}

/// What happened in one step of the timeline.
#[derive(Clone)]
pub struct Step {
    pub answered: u64,
    pub refused: u64,
    pub lost: u64,
    pub max_ns: u64,
    classes: [u32; CLASSES],
}

/// One who plays: sends, receives, and knows what should be there.
pub trait Player: Send + 'static {
    /// One exchange. On an error the connection is of no more use, and what was under way is noted as unknown.
    fn play(&mut self, connection: &mut Connection, pen: &mut Pen) -> io::Result<()>;
}

/// A time without any success of one client.
#[derive(Clone, Copy, Debug)]
pub struct Gap {
    pub from_ns: u64,
    pub until_ns: u64,
    /// The node that gave the last answer before it.
    pub node: usize,
}

/// What one client has noted.
#[derive(Clone)]
pub struct Notes {
    pub reads: Latencies,
    pub writes: Latencies,
    pub gaps: Vec<Gap>,
    /// Refusals and breaks by their text.
    pub texts: BTreeMap<String, u64>,
    pub refused: u64,
    pub aborted: u64,
    /// Connections lost.
    pub lost: u64,
    /// Refusals and lost connections at nodes that nobody was hurting.
    pub undeserved: u64,
}

impl Notes {
    pub fn new() -> Self {
        Self {
            reads: Latencies::new(),
            writes: Latencies::new(),
            gaps: Vec::new(),
            texts: BTreeMap::new(),
            refused: 0,
            aborted: 0,
            lost: 0,
            undeserved: 0,
        }
    }

    /// Adds another's, but for the gaps, which are one client's own.
    pub fn merge(&mut self, other: &Self) {
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
        for (text, count) in &other.texts {
            *self.texts.entry(text.clone()).or_default() += count;
        }
        self.refused += other.refused;
        self.aborted += other.aborted;
        self.lost += other.lost;
        self.undeserved += other.undeserved;
    }
}

/// Writes a client's notes.
pub struct Pen {
    arena: Arc<Arena>,
    pub notes: Notes,
    step: Step,
    step_index: usize,
    last_success_ns: Option<u64>,
    /// The node that it came from.
    last_node: usize,
    /// The node that it is connected to.
    node: usize,
    harm: u64,
}

impl Arena {
    pub fn new(epoch: Instant, directory: Arc<Directory>, patience: Duration) -> Arc<Self> {
        let timeline = Mutex::new(Vec::new());
        Arc::new(Self { epoch, directory, over: AtomicBool::new(false), patience, timeline })
    }

    pub fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// All steps so far.
    pub fn timeline(&self) -> Vec<Step> {
        self.timeline.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Answers in the last full step, for the user.
    pub fn answered_lately(&self) -> u64 {
        let timeline = self.timeline.lock().unwrap_or_else(PoisonError::into_inner);
        timeline.iter().rev().skip(1).take(10).map(|step| step.answered).sum()
    }
}

impl Step {
    pub fn new() -> Self {
        Self { answered: 0, refused: 0, lost: 0, max_ns: 0, classes: [0; CLASSES] }
    }

    pub fn merge(&mut self, other: &Self) {
        self.answered += other.answered;
        self.refused += other.refused;
        self.lost += other.lost;
        self.max_ns = self.max_ns.max(other.max_ns);
        for (ours, theirs) in self.classes.iter_mut().zip(other.classes) {
            *ours += theirs;
        }
    }

    /// The upper end of the class of latencies that holds this share of all answers, in milliseconds.
    pub fn quantile_ms(&self, share: f64) -> f64 {
        let wanted = (self.answered as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (class, count) in self.classes.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= wanted.max(1) {
                return (class_end_ns(class).min(self.max_ns)) as f64 / 1e6;
            }
        }
        0.0
    }
}

fn class_of(latency_ns: u64) -> usize {
    let doublings = (latency_ns.max(1) as f64 / CLASS_NS_MIN as f64).log2();
    ((doublings * 4.0).ceil().max(0.0) as usize).min(CLASSES - 1)
}

fn class_end_ns(class: usize) -> u64 {
    (CLASS_NS_MIN as f64 * (class as f64 / 4.0).exp2()) as u64
}

impl Pen {
    fn new(arena: &Arc<Arena>) -> Self {
        Self {
            arena: Arc::clone(arena),
            notes: Notes::new(),
            step: Step::new(),
            step_index: 0,
            last_success_ns: None,
            last_node: 0,
            node: 0,
            harm: 0,
        }
    }

    pub fn now_ns(&self) -> u64 {
        self.arena.now_ns()
    }

    /// A request was answered with what it asked for.
    pub fn success(&mut self, is_write: bool, called_ns: u64, answered_ns: u64) {
        let latency_ns = answered_ns.saturating_sub(called_ns);
        let latencies = if is_write { &mut self.notes.writes } else { &mut self.notes.reads };
        latencies.record(latency_ns);
        self.turn_to(answered_ns);
        self.step.answered += 1;
        self.step.max_ns = self.step.max_ns.max(latency_ns);
        self.step.classes[class_of(latency_ns)] += 1;
        if let Some(last) = self.last_success_ns
            && answered_ns - last >= GAP_NS_MIN
            && self.notes.gaps.len() < GAPS_MAX
        {
            self.notes.gaps.push(Gap { from_ns: last, until_ns: answered_ns, node: self.last_node });
        }
        (self.last_success_ns, self.last_node) = (Some(answered_ns), self.node);
    }

    /// A request was refused, in these words.
    pub fn refused(&mut self, text: &[u8]) {
        self.notes.refused += 1;
        self.trouble(&String::from_utf8_lossy(text));
        self.step.refused += 1;
    }

    /// A transaction was given up because of what others did.
    pub fn aborted(&mut self) {
        self.notes.aborted += 1;
    }

    fn lost(&mut self, error: &io::Error) {
        self.notes.lost += 1;
        let text = match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "no answer in time".to_owned(),
            io::ErrorKind::UnexpectedEof => "connection closed".to_owned(),
            _ => error.to_string(),
        };
        self.trouble(&text);
        self.step.lost += 1;
    }

    fn trouble(&mut self, text: &str) {
        self.turn_to(self.now_ns());
        // Anyone who was connected to a node when it was well and finds it still well has reason to complain.
        let harm = self.arena.directory.harm_of(self.node);
        self.notes.undeserved += u64::from(harm == self.harm && harm.is_multiple_of(2));
        let texts = &mut self.notes.texts;
        if texts.len() < TEXTS_MAX || texts.contains_key(text) {
            *texts.entry(text.to_owned()).or_default() += 1;
        }
    }

    fn turn_to(&mut self, now_ns: u64) {
        let index = (now_ns as u128 / STEP.as_nanos()) as usize;
        if index != self.step_index {
            self.flush();
            self.step_index = index;
        }
    }

    fn flush(&mut self) {
        let index = self.step_index.min(STEPS_MAX);
        let mut timeline = self.arena.timeline.lock().unwrap_or_else(PoisonError::into_inner);
        if timeline.len() <= index {
            timeline.resize(index + 1, Step::new());
        }
        timeline[index].merge(&self.step);
        self.step = Step::new();
    }
}

/// Clients at work.
pub struct Crew<P> {
    threads: Vec<JoinHandle<(P, Notes)>>,
}

impl<P: Player> Crew<P> {
    /// Starts one thread for each.
    pub fn start(players: Vec<P>, arena: &Arc<Arena>) -> io::Result<Self> {
        let threads = players.into_iter().enumerate().map(|(number, player)| {
            let arena = Arc::clone(arena);
            thread::Builder::new().name(format!("client {number}")).spawn(move || live(number, player, &arena))
        });
        Ok(Self { threads: threads.collect::<io::Result<_>>()? })
    }

    /// Waits for them to end.
    pub fn join(self) -> (Vec<P>, Vec<Notes>) {
        self.threads.into_iter().map(|thread| thread.join().expect("a client that did not panic")).unzip()
    }
}

fn live<P: Player>(number: usize, mut player: P, arena: &Arc<Arena>) -> (P, Notes) {
    let mut pen = Pen::new(arena);
    let (mut attempt, mut retry) = (0, RETRY.0);
    while !arena.over.load(Ordering::Relaxed) {
        let (node, address) = arena.directory.choose(number, attempt);
        let harm = arena.directory.harm_of(node);
        // A host that is away does not even refuse: the others should be asked soon.
        let patience = arena.patience.min(Duration::from_secs(1));
        let Ok(mut connection) = Connection::open(address, patience) else {
            attempt += 1;
            thread::sleep(retry);
            retry = (retry * 2).min(RETRY.1);
            continue;
        };
        if connection.wait_at_most(arena.patience).is_err() {
            continue;
        }
        (pen.node, pen.harm) = (node, harm);
        while !arena.over.load(Ordering::Relaxed) && !connection.misplaced {
            let successes = pen.last_success_ns;
            match player.play(&mut connection, &mut pen) {
                Ok(()) if pen.last_success_ns == successes => {
                    // Nothing but refusals: asking faster would not help.
                    thread::sleep(retry);
                    retry = (retry * 2).min(RETRY.1);
                }
                Ok(()) => (attempt, retry) = (0, RETRY.0),
                Err(error) => {
                    pen.lost(&error);
                    attempt += 1;
                    break;
                }
            }
        }
        if connection.misplaced {
            thread::sleep(retry);
            retry = (retry * 2).min(RETRY.1);
        }
    }
    pen.flush();
    (player, pen.notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_within_a_quarter_of_a_doubling_of_its_class() {
        for latency_ns in [1, 16_384, 16_385, 100_000, 1_234_567, 987_654_321, 59_000_000_000] {
            let end = class_end_ns(class_of(latency_ns));
            assert!(
                end + 1 >= latency_ns && (latency_ns < CLASS_NS_MIN || end < latency_ns / 4 * 5),
                "{latency_ns}: {end}"
            );
        }
    }

    #[test]
    fn a_gap_belongs_to_the_node_that_was_left() {
        let directory = Arc::new(Directory::new(std::iter::empty(), None));
        let mut pen = Pen::new(&Arena::new(Instant::now(), directory, Duration::from_secs(1)));
        pen.node = 1;
        pen.success(true, 0, 1_000);
        pen.node = 2;
        let late_ns = 1_000 + GAP_NS_MIN;
        pen.success(true, 2_000, late_ns);
        pen.success(true, late_ns, late_ns + GAP_NS_MIN);
        let gaps: Vec<(u64, usize)> = pen.notes.gaps.iter().map(|gap| (gap.from_ns, gap.node)).collect();
        assert_eq!(gaps, [(1_000, 1), (late_ns, 2)]);
    }

    #[test]
    fn quantiles_of_a_step_are_those_of_its_answers() {
        let mut step = Step::new();
        for latency_ns in (1..=100).map(|ms| ms * 1_000_000_u64) {
            step.answered += 1;
            step.max_ns = latency_ns;
            step.classes[class_of(latency_ns)] += 1;
        }
        assert!((50.0..60.0).contains(&step.quantile_ms(0.5)), "{}", step.quantile_ms(0.5));
        assert_eq!(step.quantile_ms(1.0), 100.0);
        assert_eq!(Step::new().quantile_ms(0.5), 0.0);
    }
}
