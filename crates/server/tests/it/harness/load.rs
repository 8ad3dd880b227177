//! Clients that write, each into keys of its own, and keep a ledger of what they were told.
//!
//! Single writes, pipelines, transactions over keys of different slots, counters, removals and deadlines, with reads in
//! between that must see what the same connection wrote before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use resp::{Frame, encode_request};
use stdx::Prng;

use super::ledger::{State, text_of};
use super::{Client, Ledger, wait_for};

/// Keys of one client that hold texts.
const KEYS: u64 = 60;
/// Pairs of keys of one client that are written by one transaction.
const PAIRS: u64 = 10;
/// Counters of one client.
const COUNTERS: u64 = 3;

/// How the clients behave.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    pub port: u16,
    /// Requests sent before their replies are awaited: 1 to this many.
    pub pipeline_max: u64,
    pub seed: u64,
}

/// Clients at work.
pub struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Ledger>>,
}

/// Ledgers of clients that have never written.
pub fn new_ledgers(clients: u64) -> Vec<Ledger> {
    let pairs = |client| (0..PAIRS).map(move |pair| (format!("p{client}:{pair}:a"), format!("p{client}:{pair}:b")));
    (0..clients).map(|client| Ledger::new(pairs(client).collect())).collect()
}

impl Load {
    /// Starts one client for each ledger. They end when told to, or when the server is gone.
    pub fn start(options: &LoadOptions, ledgers: Vec<Ledger>) -> Self {
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = ledgers.into_iter().enumerate().map(|(number, ledger)| {
            let mut worker = Worker {
                number,
                ledger,
                prng: Prng::new(options.seed.wrapping_mul(1_000).wrapping_add(number as u64)),
                stop: Arc::clone(&stop),
                acknowledged: Arc::clone(&acknowledged),
                options: options.clone(),
            };
            thread::spawn(move || {
                worker.work();
                worker.ledger
            })
        });
        let threads = threads.collect();
        Self { stop, acknowledged, threads }
    }

    /// Waits until so many states have been acknowledged.
    #[track_caller]
    pub fn wait_for(&self, count: u64) {
        wait_for("enough is acknowledged", || self.acknowledged.load(Ordering::Relaxed) >= count);
    }

    /// Waits until the clients have noticed that the server is gone.
    pub fn join(self) -> Vec<Ledger> {
        self.threads.into_iter().map(|thread| thread.join().expect("a client that did not panic")).collect()
    }

    /// Tells the clients to end after the reply they wait for, and waits.
    pub fn stop(self) -> Vec<Ledger> {
        self.stop.store(true, Ordering::Relaxed);
        self.join()
    }
}

/// What a reply must be, and what it means for the ledger.
enum Expected {
    /// Anything but an error; then these states are acknowledged.
    States(Vec<(String, u64)>),
    /// The same, and the reply is this number.
    Count(u64, Vec<(String, u64)>),
    /// The value of a key this very connection wrote before.
    Value(String, State),
    /// A line on the way to EXEC.
    Queued,
}

struct Worker {
    number: usize,
    ledger: Ledger,
    prng: Prng,
    stop: Arc<AtomicBool>,
    /// States of all clients.
    acknowledged: Arc<AtomicU64>,
    options: LoadOptions,
}

impl Worker {
    fn work(&mut self) {
        let Some(mut client) = Client::try_connect(self.options.port) else { return };
        while !self.stop.load(Ordering::Relaxed) {
            let mut bytes = Vec::new();
            let mut expected = Vec::new();
            // A key that is refused must not have been written again behind it, or the order of states is unclear.
            let mut touched = Vec::new();
            for _ in 0..1 + self.prng.draw() % self.options.pipeline_max {
                self.add_request(&mut bytes, &mut expected, &mut touched);
            }
            if client.send_bytes(&bytes).is_err() {
                return;
            }
            for expected in expected {
                let Ok(reply) = client.receive() else { return };
                self.take(expected, &reply);
            }
        }
    }

    fn add_request(&mut self, bytes: &mut Vec<u8>, expected: &mut Vec<Expected>, touched: &mut Vec<String>) {
        let client = self.number;
        let dice = self.prng.draw() % 100;
        let key = match dice {
            0..70 | 90..100 => format!("k{client}:{}", self.prng.draw() % KEYS),
            70..80 => format!("n{client}:{}", self.prng.draw() % COUNTERS),
            _ => format!("p{client}:{}", self.prng.draw() % PAIRS),
        };
        if touched.contains(&key) {
            return;
        }
        match dice {
            0..60 => {
                let expires = dice < 10;
                let (text, state) = self.next_text(&key, expires);
                let issue = (key.clone(), self.ledger.issue(&key, state));
                match expires {
                    true => encode_request(bytes, &[b"SET", key.as_bytes(), &text, b"EX", b"100000"]),
                    false => encode_request(bytes, &[b"SET", key.as_bytes(), &text]),
                }
                expected.push(Expected::States(vec![issue]));
            }
            60..70 => {
                let issue = (key.clone(), self.ledger.issue(&key, State::Absent));
                encode_request(bytes, &["DEL", &key]);
                expected.push(Expected::States(vec![issue]));
            }
            70..80 => {
                let count = match self.ledger.latest(&key) {
                    State::Count(count) => count + 1,
                    _ => 1,
                };
                let issue = (key.clone(), self.ledger.issue(&key, State::Count(count)));
                encode_request(bytes, &["INCR", &key]);
                expected.push(Expected::Count(count, vec![issue]));
            }
            80..90 => {
                let number = self.ledger.next_number();
                let mut issues = Vec::new();
                encode_request(bytes, &["MULTI"]);
                expected.push(Expected::Queued);
                for half in ["a", "b"] {
                    let key = format!("{key}:{half}");
                    let state = State::Text { number, expires: false };
                    issues.push((key.clone(), self.ledger.issue(&key, state)));
                    encode_request(bytes, &[b"SET", key.as_bytes(), &text_of(&key, number)]);
                    expected.push(Expected::Queued);
                }
                encode_request(bytes, &["EXEC"]);
                expected.push(Expected::States(issues));
            }
            _ => {
                encode_request(bytes, &["GET", &key]);
                expected.push(Expected::Value(key.clone(), self.ledger.latest(&key)));
            }
        }
        touched.push(key);
    }

    fn next_text(&mut self, key: &str, expires: bool) -> (Vec<u8>, State) {
        let number = self.ledger.next_number();
        (text_of(key, number), State::Text { number, expires })
    }

    fn take(&mut self, expected: Expected, reply: &Frame) {
        let now = Instant::now();
        let refusal = match reply {
            Frame::Error(text) => Some(String::from_utf8_lossy(text).into_owned()),
            _ => None,
        };
        match expected {
            Expected::Queued => {}
            Expected::Value(key, state) => {
                let right = match (state, reply) {
                    (State::Text { number, .. }, Frame::Bulk(bytes)) => *bytes == text_of(&key, number),
                    (State::Absent, Frame::Null) => true,
                    _ => false,
                };
                if !right {
                    let mut shown = reply.to_string();
                    shown.truncate(80);
                    self.ledger.surprises.push(format!("{key} was read as {shown} right after {state:?}"));
                }
            }
            Expected::States(issues) | Expected::Count(_, issues) if refusal.is_some() => {
                for (key, number) in issues {
                    self.ledger.refuse(&key, number, refusal.clone().unwrap_or_default());
                }
            }
            Expected::States(issues) => self.acknowledge(issues, now),
            Expected::Count(count, issues) => {
                if *reply != Frame::Integer(count as i64) {
                    self.ledger.surprises.push(format!("INCR answered {reply} instead of {count}"));
                }
                self.acknowledge(issues, now);
            }
        }
    }

    fn acknowledge(&mut self, issues: Vec<(String, u64)>, now: Instant) {
        self.acknowledged.fetch_add(issues.len() as u64, Ordering::Relaxed);
        for (key, number) in issues {
            self.ledger.acknowledge(&key, number, now);
        }
    }
}
