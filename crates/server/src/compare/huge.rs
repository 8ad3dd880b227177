//! `holdfast compare --huge`: what other clients wait while one collection of millions of elements is filled, saved,
//! changed while it is saved, removed and expired.
//!
//! A client asks for small keys all the while, at a fixed rate; what it waits is counted from the moment at which each
//! request was due, so that a stall counts for every request that fell into it. Where server and load share the
//! processors, part of that is waiting for a processor: so the server is asked, too, what has held it up for longest.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use resp::{Frame, FrameDecoder};
use serde_json::{Value, json};

use super::contender::{Contender, Durability, Folder, RunningServer};
use super::talk::Talk;
use crate::bench::{Latencies, Progress};

/// Requests for small keys, GET and SET by turns.
const PROBES_PER_SECOND: u64 = 500;
/// Elements that one request adds while a collection is filled.
const ELEMENTS_PER_REQUEST: u64 = 20;
/// Single elements changed while a snapshot is under way.
const CHANGES_MAX: u64 = 200_000;
/// How long is watched after a removal: what is taken apart in the background falls into it.
const REMOVAL_TIME: Duration = Duration::from_secs(3);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
const PROBE_TIMEOUT: Duration = Duration::from_secs(600);

/// A kind of collection.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Hash,
    SortedSet,
}

/// What is done to a collection while others are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Nothing,
    Fill,
    Save,
    ChangeWhileSaving,
    Delete,
    Expire,
}

const PHASES: [Phase; 6] =
    [Phase::Nothing, Phase::Fill, Phase::Save, Phase::ChangeWhileSaving, Phase::Delete, Phase::Expire];

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Fill => "fill",
            Self::Save => "save",
            Self::ChangeWhileSaving => "save while changing",
            Self::Delete => "DEL",
            Self::Expire => "expiry",
        }
    }
}

/// What other clients waited during one phase.
#[derive(Clone, Debug)]
struct Waits {
    seconds: f64,
    p50_ms: f64,
    p999_ms: f64,
    max_ms: f64,
    /// What held the server up for longest, as it says itself (`LATENCY LATEST`), in whole milliseconds. `None` if
    /// nothing took as long as one.
    held_up: Option<(u64, String)>,
}

/// One server's figures: for each kind, one for each of `PHASES`.
#[derive(Debug)]
pub struct HugeFigures {
    name: String,
    kinds: Vec<(Kind, Vec<Waits>)>,
}

/// Measures one server after the other, with those kinds of collection that have `only` in their name.
pub fn measure(
    contenders: &[Contender],
    elements: u64,
    only: &str,
    folder: &Folder,
    progress: &mut Progress,
) -> Result<Vec<HugeFigures>> {
    let wanted: Vec<Kind> =
        [Kind::Hash, Kind::SortedSet].into_iter().filter(|kind| kind.name().contains(only)).collect();
    ensure!(!wanted.is_empty(), "no collection's name contains '{only}'");
    let mut figures = Vec::new();
    for contender in contenders {
        let name = &contender.name;
        let mut kinds = Vec::new();
        for &kind in &wanted {
            let server = RunningServer::start(contender, Durability::Unsynced, folder)?;
            let mut study = Study::new(&server, kind, elements)?;
            let waits = study.run(|phase| progress.show(&format!("{name}: {}: {}", kind.name(), phase.name())));
            kinds.push((kind, waits.with_context(|| format!("{name}: {}", kind.name()))?));
            drop(study);
            server.stop()?;
        }
        figures.push(HugeFigures { name: name.clone(), kinds });
    }
    Ok(figures)
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::SortedSet => "sorted set",
        }
    }

    /// Words that set some elements, from the one with this number on.
    fn words(self, first: u64, count: u64, value: u64) -> Vec<String> {
        let mut words = match self {
            Self::Hash => vec!["HSET".to_owned(), KEY.to_owned()],
            Self::SortedSet => vec!["ZADD".to_owned(), KEY.to_owned()],
        };
        for number in first..first + count {
            match self {
                Self::Hash => words.extend([format!("field:{number:010}"), format!("value:{value:010}")]),
                // Scores in no order, as those of users are.
                Self::SortedSet => {
                    words.extend([scattered(number + value).to_string(), format!("member:{number:010}")])
                }
            }
        }
        words
    }

    fn count_words(self) -> [&'static str; 2] {
        match self {
            Self::Hash => ["HLEN", KEY],
            Self::SortedSet => ["ZCARD", KEY],
        }
    }
}

const KEY: &str = "{huge}";
const COPY_KEY: &str = "{huge}:copy";

/// A number below 2^31 that looks like chance.
fn scattered(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33
}

/// One server, one kind.
struct Study {
    talk: Talk,
    probe: Probe,
    kind: Kind,
    elements: u64,
}

impl Study {
    fn new(server: &RunningServer, kind: Kind, elements: u64) -> Result<Self> {
        let mut talk = Talk::new(&server.address())?;
        talk.ask(&["CONFIG", "SET", "latency-monitor-threshold", "1"])?;
        Ok(Self { talk, probe: Probe::start(&server.address())?, kind, elements })
    }

    /// The waits in each of `PHASES`.
    fn run(&mut self, mut announce: impl FnMut(Phase)) -> Result<Vec<Waits>> {
        let mut waits = Vec::new();
        for phase in PHASES {
            announce(phase);
            if phase == Phase::Delete {
                // The original is kept, to expire afterwards. What the copy costs is not what is asked here.
                self.talk.ask(&["COPY", KEY, COPY_KEY])?;
            }
            self.probe.take()?;
            self.talk.ask(&["LATENCY", "RESET"])?;
            let started = Instant::now();
            match phase {
                Phase::Nothing => std::thread::sleep(REMOVAL_TIME),
                Phase::Fill => self.fill()?,
                Phase::Save => {
                    self.begin_snapshot()?;
                    while self.talk.is_saving()? {
                        std::thread::sleep(LOOK_INTERVAL);
                    }
                }
                Phase::ChangeWhileSaving => self.change_while_saving()?,
                Phase::Delete => {
                    self.talk.ask(&["DEL", COPY_KEY])?;
                    std::thread::sleep(REMOVAL_TIME);
                }
                Phase::Expire => {
                    self.talk.ask(&["PEXPIRE", KEY, "100"])?;
                    std::thread::sleep(REMOVAL_TIME);
                    ensure!(self.talk.ask(&["EXISTS", KEY])? == Frame::Integer(0), "it has not expired");
                }
            }
            let seconds = started.elapsed().as_secs_f64();
            let latencies = self.probe.take()?;
            waits.push(Waits {
                seconds,
                p50_ms: latencies.percentile_ms(50.0),
                p999_ms: latencies.percentile_ms(99.9),
                max_ms: latencies.max_ms(),
                held_up: self.longest_delay()?,
            });
        }
        Ok(waits)
    }

    /// The longest delay since the last reset, with its cause.
    fn longest_delay(&mut self) -> Result<Option<(u64, String)>> {
        let Frame::Array(causes) = self.talk.ask(&["LATENCY", "LATEST"])? else {
            bail!("LATENCY LATEST was not answered with an array");
        };
        let delay_of = |cause: &Frame| match cause {
            Frame::Array(fields) => match fields.as_slice() {
                [Frame::Bulk(name), _, _, Frame::Integer(longest_ms)] => {
                    Some((u64::try_from(*longest_ms).ok()?, String::from_utf8_lossy(name).into_owned()))
                }
                _ => None,
            },
            _ => None,
        };
        Ok(causes.iter().filter_map(delay_of).max())
    }

    fn fill(&mut self) -> Result<()> {
        let mut number = 0;
        while number < self.elements {
            let count = ELEMENTS_PER_REQUEST.min(self.elements - number);
            self.talk.ask(&self.kind.words(number, count, number))?;
            number += count;
        }
        let count = self.talk.ask(&self.kind.count_words())?;
        ensure!(count == Frame::Integer(self.elements as i64), "of {} elements it has {count:?}", self.elements);
        Ok(())
    }

    /// Begins a snapshot, after any that the server has begun by itself.
    fn begin_snapshot(&mut self) -> Result<()> {
        while self.talk.is_saving()? {
            std::thread::sleep(LOOK_INTERVAL);
        }
        self.talk.ask(&["BGSAVE"])?;
        Ok(())
    }

    fn change_while_saving(&mut self) -> Result<()> {
        self.begin_snapshot()?;
        for change in 0..CHANGES_MAX {
            let number = scattered(change) % self.elements;
            self.talk.ask(&self.kind.words(number, 1, change))?;
            if change % 1000 == 999 && !self.talk.is_saving()? {
                break;
            }
        }
        while self.talk.is_saving()? {
            std::thread::sleep(LOOK_INTERVAL);
        }
        Ok(())
    }
}

/// A client that asks for small keys all the time.
struct Probe {
    latencies: Arc<Mutex<Latencies>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Probe {
    fn start(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        let latencies = Arc::new(Mutex::new(Latencies::new()));
        let over = Arc::new(AtomicBool::new(false));
        let thread = {
            let (latencies, over) = (Arc::clone(&latencies), Arc::clone(&over));
            std::thread::spawn(move || ask_small_keys(stream, &latencies, &over))
        };
        Ok(Self { latencies, over, thread: Some(thread) })
    }

    /// What has been waited since the last call. Fails if the client has lost its connection.
    fn take(&mut self) -> Result<Latencies> {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            let thread = self.thread.take().expect("looked at just now");
            thread.join().expect("the probe does not panic")?;
        }
        ensure!(self.thread.is_some(), "the client that asks for small keys has ended");
        Ok(std::mem::replace(&mut *self.latencies.lock().expect("nobody panics with it"), Latencies::new()))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // the study has failed for a better reason, or has its figures
        }
    }
}

/// Sends a request whenever one is due, and waits for its answer. A request that was due while an earlier one waited is
/// sent late, and its time counts from when it was due.
fn ask_small_keys(mut stream: TcpStream, latencies: &Mutex<Latencies>, over: &AtomicBool) -> Result<()> {
    stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
    let interval = Duration::from_nanos(1_000_000_000 / PROBES_PER_SECOND);
    let mut decoder = FrameDecoder::new();
    let mut chunk = [0; 4096];
    let mut due = Instant::now();
    for number in 0u64.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let mut request = Vec::new();
        let key = format!("small:{}", number / 2 % 1000);
        if number % 2 == 0 {
            resp::encode_request(&mut request, &["GET", &key]);
        } else {
            resp::encode_request(&mut request, &["SET", &key, "value"]);
        }
        stream.write_all(&request)?;
        let answer = loop {
            if let Some(frame) = decoder.next_frame()? {
                break frame;
            }
            match stream.read(&mut chunk) {
                Ok(0) => return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(len) => decoder.extend(&chunk[..len]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        };
        ensure!(!answer.is_error(), "a request for a small key was answered with {answer:?}");
        latencies.lock().expect("nobody panics with it").record(due.elapsed().as_nanos() as u64);
        due += interval;
    }
    Ok(())
}

/// The report that is printed.
pub fn text(figures: &[HugeFigures], elements: u64) -> String {
    use std::fmt::Write;
    let mut out = format!(
        "One collection of {elements} elements; waits of another client with {PROBES_PER_SECOND} small requests a \
         second, from when each was due, and the longest delay that the server names by itself; no fsync\n"
    );
    for server in figures {
        for (kind, waits) in &server.kinds {
            let _ = writeln!(
                out,
                "\n  {:<34}{:>11}{:>11}{:>11}{:>11}   by itself",
                format!("{}: {}", server.name, kind.name()),
                "seconds",
                "p50 ms",
                "p99.9 ms",
                "max ms"
            );
            for (phase, waits) in PHASES.iter().zip(waits) {
                let Waits { seconds, p50_ms, p999_ms, max_ms, held_up } = waits;
                let phase = phase.name();
                let held_up = held_up.as_ref().map_or("under 1 ms".into(), |(ms, cause)| format!("{ms} ms {cause}"));
                let _ = writeln!(
                    out,
                    "    {phase:<32}{seconds:>11.2}{p50_ms:>11.3}{p999_ms:>11.3}{max_ms:>11.3}   {held_up}"
                );
            }
        }
    }
    out
}

/// The report to be processed.
pub fn json(figures: &[HugeFigures], elements: u64) -> Value {
    let servers = figures.iter().map(|server| {
        let kinds = server.kinds.iter().map(|(kind, waits)| {
            let phases = PHASES.iter().zip(waits).map(|(phase, waits)| {
                json!({
                    "phase": phase.name(),
                    "s": waits.seconds,
                    "p50_ms": waits.p50_ms,
                    "p999_ms": waits.p999_ms,
                    "max_ms": waits.max_ms,
                    "held_up_ms": waits.held_up.as_ref().map(|(ms, _)| ms),
                    "held_up_by": waits.held_up.as_ref().map(|(_, cause)| cause),
                })
            });
            json!({ "kind": kind.name(), "phases": phases.collect::<Vec<_>>() })
        });
        json!({ "name": server.name, "kinds": kinds.collect::<Vec<_>>() })
    });
    json!({ "elements": elements, "probes_per_second": PROBES_PER_SECOND, "servers": servers.collect::<Vec<_>>() })
}
