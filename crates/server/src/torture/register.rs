//! Single writes and reads under as much load as the clients can make, over three kinds of keys.
//!
//! * *Entries*, `e:client:number`: each written once, read back while it lives, and taken out with GETDEL when the
//!   client's window is full. So every acknowledged write is looked at by itself, and memory stays bounded.
//! * *Counters*, `n:client:index`: only ever incremented, by one client. The reply to each INCR says whether one before
//!   it was lost or doubled.
//! * *Registers*, `r:index`: shared by all clients, with a value of its own for each write, and a full history for
//!   [`super::zones`].

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;

use resp::{Frame, encode_request};
use stdx::Prng;

use super::crew::{Pen, Player};
use super::findings::{Findings, seconds};
use super::values::{number_of, shown, value_of};
use super::zones::{self, Conflict, Operation};
use crate::connection::Connection;

/// Registers, shared by all clients.
const REGISTERS: u64 = 32;
/// Counters of each client.
const COUNTERS: usize = 4;
/// Bytes of values in all windows of entries together, about.
const ENTRY_BYTES: u64 = 64 << 20;
/// Fewest and most entries in a window.
const WINDOW: (u64, u64) = (16, 2_048);
/// Operations on registers of all clients together, spread over the whole run.
const HISTORY_MAX: u64 = 2_000_000;
/// Bytes that are sent before replies are awaited, about, and bytes of replies that are asked for at once.
const BATCH_BYTES: u64 = 512 << 10;
/// Acknowledged increments and removals with a time that is still known.
const TIMES_MAX: usize = 8_192;
/// One entry in so many has a deadline, far away.
const DEADLINE_EVERY: u64 = 8;
const DEADLINE_MS: i64 = 86_400_000;

/// How the clients behave.
#[derive(Clone, Debug)]
pub struct Plan {
    pub clients: u64,
    pub pipeline: u64,
    pub value_bytes: u64,
    pub read_ratio: f64,
    pub seed: u64,
    /// How long the run is meant to be.
    pub duration_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asked,
    Kept { at_ns: u64 },
    Taking { at_ns: u64 },
}

struct Entry {
    number: u64,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum Asked {
    SetEntry(u64),
    GetEntry(u64),
    TakeEntry(u64),
    Increment(usize),
    GetCounter(usize),
    SetRegister(u64, u64),
    GetRegister(u64),
}

/// What its one writer knows of a counter.
#[derive(Default)]
struct Counter {
    value: u64,
    /// Increments without an answer that have not been seen.
    doubts: u64,
    /// When the last increments were acknowledged.
    times: VecDeque<u64>,
}

/// One client.
pub struct RegisterPlayer {
    client: u64,
    plan: Plan,
    prng: Prng,
    out: Vec<u8>,
    asked: Vec<Asked>,
    next: u64,
    entries: VecDeque<Entry>,
    /// Entries with a SET or GETDEL that was not answered: they may be there or not.
    doubtful: Vec<u64>,
    /// Entries that were acknowledged and not found.
    missing: BTreeMap<u64, u64>,
    refused: HashSet<u64>,
    taken: VecDeque<(u64, u64)>,
    counters: Vec<Counter>,
    history: Vec<(u64, Operation)>,
    findings: Findings,
}

/// All clients of a run.
pub fn players(plan: &Plan) -> Vec<RegisterPlayer> {
    let mut prng = Prng::new(plan.seed);
    let player = |client| RegisterPlayer {
        client,
        plan: plan.clone(),
        prng: prng.fork(),
        out: Vec::new(),
        asked: Vec::new(),
        next: 1,
        entries: VecDeque::new(),
        doubtful: Vec::new(),
        missing: BTreeMap::new(),
        refused: HashSet::new(),
        taken: VecDeque::new(),
        counters: (0..COUNTERS).map(|_| Counter::default()).collect(),
        history: Vec::new(),
        findings: Findings::default(),
    };
    (0..plan.clients).map(player).collect()
}

impl Plan {
    fn window(&self) -> usize {
        (ENTRY_BYTES / (self.clients * self.value_bytes.max(1))).clamp(WINDOW.0, WINDOW.1) as usize
    }

    /// Operations in one exchange.
    fn depth(&self) -> u64 {
        self.pipeline.min(BATCH_BYTES / self.value_bytes.max(1)).max(1)
    }

    /// Operations on registers that one client may have made by now.
    fn allowance(&self, now_ns: u64) -> usize {
        let share = HISTORY_MAX / self.clients;
        let passed = (now_ns as f64 / self.duration_ns.max(1) as f64).min(1.0);
        (share as f64 * (0.01 + 0.99 * passed)) as usize
    }
}

impl Player for RegisterPlayer {
    fn play(&mut self, connection: &mut Connection, pen: &mut Pen) -> io::Result<()> {
        self.out.clear();
        self.asked.clear();
        let now_ns = pen.now_ns();
        for _ in 0..self.plan.depth() {
            self.ask(now_ns);
        }
        let called_ns = pen.now_ns();
        let asked = std::mem::take(&mut self.asked);
        let mut answered = 0;
        let mut outcome = connection.send(&self.out);
        while outcome.is_ok() && answered < asked.len() {
            match connection.receive() {
                Ok(reply) => {
                    self.take(asked[answered], asked.split_at(answered), &reply, called_ns, pen);
                    answered += 1;
                }
                Err(error) => outcome = Err(error),
            }
        }
        for asked in &asked[answered..] {
            self.doubt(*asked, called_ns);
        }
        self.asked = asked;
        outcome
    }
}

impl RegisterPlayer {
    fn ask(&mut self, now_ns: u64) {
        let is_read = self.prng.below(1 << 20) < (self.plan.read_ratio * f64::from(1 << 20)) as u64;
        let dice = self.prng.below(10);
        let bytes = self.plan.value_bytes as usize;
        let counter = self.prng.below(COUNTERS as u64) as usize;
        let register = self.prng.below(REGISTERS);
        let has_allowance = self.history.len() < self.plan.allowance(now_ns);
        let asked = match (is_read, dice) {
            (true, 0..4) if has_allowance => Asked::GetRegister(register),
            (false, 0..4) if has_allowance => Asked::SetRegister(register, self.next_number()),
            (true, 4) => Asked::GetCounter(counter),
            (false, 4) => Asked::Increment(counter),
            (true, _) => match self.some_kept_entry() {
                Some(number) => Asked::GetEntry(number),
                None => Asked::GetCounter(counter),
            },
            (false, _) => match self.oldest_entry_if_full() {
                Some(number) => Asked::TakeEntry(number),
                None => {
                    let number = self.next_number();
                    self.entries.push_back(Entry { number, state: State::Asked });
                    Asked::SetEntry(number)
                }
            },
        };
        let client = self.client;
        let out = &mut self.out;
        match asked {
            Asked::SetEntry(number) => {
                let key = entry_key(client, number);
                let value = value_of(&key, number, bytes);
                match has_deadline(number) {
                    true => {
                        let deadline = DEADLINE_MS.to_string();
                        encode_request(out, &[b"SET", key.as_bytes(), &value, b"PX", deadline.as_bytes()]);
                    }
                    false => encode_request(out, &[b"SET", key.as_bytes(), &value]),
                }
            }
            Asked::GetEntry(number) => encode_request(out, &["GET", &entry_key(client, number)]),
            Asked::TakeEntry(number) => encode_request(out, &["GETDEL", &entry_key(client, number)]),
            Asked::Increment(index) => encode_request(out, &["INCR", &counter_key(client, index)]),
            Asked::GetCounter(index) => encode_request(out, &["GET", &counter_key(client, index)]),
            Asked::SetRegister(register, number) => {
                let key = register_key(register);
                let value = value_of(&key, self.unique(number), bytes);
                encode_request(&mut self.out, &[b"SET", key.as_bytes(), &value]);
            }
            Asked::GetRegister(register) => encode_request(out, &["GET", &register_key(register)]),
        }
        self.asked.push(asked);
    }

    fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// A number that no other client has either.
    fn unique(&self, number: u64) -> u64 {
        number * self.plan.clients + self.client
    }

    fn some_kept_entry(&mut self) -> Option<u64> {
        if self.entries.is_empty() {
            return None;
        }
        let entry = &self.entries[self.prng.below(self.entries.len() as u64) as usize];
        matches!(entry.state, State::Kept { .. }).then_some(entry.number)
    }

    fn oldest_entry_if_full(&mut self) -> Option<u64> {
        if self.entries.len() < self.plan.window() {
            return None;
        }
        let entry = self.entries.iter_mut().find(|entry| matches!(entry.state, State::Kept { .. }))?;
        let State::Kept { at_ns } = entry.state else { return None };
        entry.state = State::Taking { at_ns };
        Some(entry.number)
    }

    fn place_of(&self, number: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&number, |entry| entry.number).ok()
    }

    /// Takes the answer to one request; `around` are those sent together with it, before it and from it on.
    fn take(&mut self, asked: Asked, around: (&[Asked], &[Asked]), reply: &Frame, called_ns: u64, pen: &mut Pen) {
        let now_ns = pen.now_ns();
        if let Frame::Error(text) = reply {
            pen.refused(text);
            // Of the errors, those that do not know say so.
            if text.windows(7).any(|word| word == b"unknown") {
                self.doubt(asked, called_ns);
            } else {
                self.refuse(asked);
            }
            return;
        }
        let is_write = match asked {
            Asked::SetEntry(number) => {
                if let Some(place) = self.place_of(number) {
                    self.entries[place].state = State::Kept { at_ns: now_ns };
                }
                self.expect_ok(reply, || entry_key(0, number));
                true
            }
            Asked::GetEntry(number) => {
                self.take_entry_value(number, reply, now_ns);
                false
            }
            Asked::TakeEntry(number) => {
                self.take_entry_value(number, reply, now_ns);
                if let Some(place) = self.place_of(number) {
                    self.entries.remove(place);
                }
                push_bounded(&mut self.taken, (number, now_ns));
                true
            }
            Asked::Increment(index) => {
                match reply {
                    Frame::Integer(value) => self.observe_counter(index, *value as u64, true),
                    other => self.findings.altered(|| format!("INCR of {} answered {other}", counter_key(0, index))),
                }
                push_bounded(&mut self.counters[index].times, now_ns);
                true
            }
            Asked::GetCounter(index) => {
                let is_same = |it: &&Asked| matches!(it, Asked::Increment(other) if *other == index);
                let count = |asked: &[Asked]| asked.iter().filter(is_same).count() as u64;
                self.take_counter_value(index, reply, (count(around.0), count(around.1)));
                false
            }
            Asked::SetRegister(register, number) => {
                self.expect_ok(reply, || register_key(register));
                let operation =
                    Operation { called: called_ns, answered: now_ns, value: self.unique(number), is_write: true };
                self.history.push((register, operation));
                true
            }
            Asked::GetRegister(register) => {
                let found = register_value(register, reply, &self.plan, &mut self.findings);
                if let Some(value) = found {
                    let operation = Operation { called: called_ns, answered: now_ns, value, is_write: false };
                    self.history.push((register, operation));
                }
                false
            }
        };
        self.findings.acknowledged += u64::from(is_write);
        pen.success(is_write, called_ns, now_ns);
    }

    fn expect_ok(&mut self, reply: &Frame, key: impl FnOnce() -> String) {
        if *reply != Frame::Simple(b"OK".to_vec()) {
            self.findings.altered(|| format!("SET of {} answered {reply}", key()));
        }
    }

    fn take_entry_value(&mut self, number: u64, reply: &Frame, now_ns: u64) {
        let Some(place) = self.place_of(number) else { return };
        let at_ns = match self.entries[place].state {
            State::Kept { at_ns } | State::Taking { at_ns } => at_ns,
            State::Asked => return,
        };
        let key = entry_key(self.client, number);
        match reply {
            // Whether it is lost or only not seen is told in the end.
            Frame::Null => {
                self.missing.insert(number, at_ns);
                self.entries.remove(place);
            }
            Frame::Bulk(value) if number_of(&key, value, self.plan.value_bytes as usize) == Some(number) => {}
            Frame::Bulk(value) => {
                self.findings.altered(|| format!("{key} holds {} at {}", shown(value), seconds(now_ns)));
            }
            other => self.findings.altered(|| format!("{key} answered {other}")),
        }
    }

    /// Takes what a read of a counter found; so many increments were sent with it, before it and behind it.
    fn take_counter_value(&mut self, index: usize, reply: &Frame, around: (u64, u64)) {
        let value = match reply {
            Frame::Null => Some(0),
            Frame::Bulk(bytes) => std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()),
            _ => None,
        };
        match value {
            Some(value) => {
                let Counter { value: known, doubts, .. } = self.counters[index];
                let (key, late) = (counter_key(self.client, index), known + doubts);
                if value > late && value <= late + around.1 || value < known && value + around.0 >= known {
                    // The increments are all there, but the read has been overtaken by one, or has overtaken one.
                    let what = || format!("{key} was read as {value}, and was {known} at that place of the pipeline");
                    self.findings.anomaly("read out of its place", what);
                } else {
                    self.observe_counter(index, value, false);
                }
            }
            None => self.findings.altered(|| format!("{} holds {reply}", counter_key(self.client, index))),
        }
    }

    fn observe_counter(&mut self, index: usize, value: u64, was_incremented: bool) {
        let key = counter_key(self.client, index);
        let counter = &mut self.counters[index];
        let expected = counter.value + u64::from(was_incremented);
        if value < expected {
            for _ in value..expected {
                let at_ns = counter.times.pop_back().unwrap_or(0);
                self.findings.lost(at_ns, || format!("an increment of {key}: it is {value}, not {expected}"));
            }
        } else {
            // More than it should be: increments that lost their answer, or doubled ones.
            let surplus = value - expected;
            let late = surplus.min(counter.doubts);
            counter.doubts -= late;
            self.findings.unknown_in_effect += late;
            if surplus > late {
                self.findings.doubled(surplus - late, || format!("{key} is {value}, {} too many", surplus - late));
            }
        }
        counter.value = value;
    }

    /// It has not happened and will not.
    fn refuse(&mut self, asked: Asked) {
        match asked {
            Asked::SetEntry(number) => {
                if let Some(place) = self.place_of(number) {
                    self.entries.remove(place);
                }
                self.refused.insert(number);
            }
            Asked::TakeEntry(number) => {
                if let Some(place) = self.place_of(number)
                    && let State::Taking { at_ns } = self.entries[place].state
                {
                    self.entries[place].state = State::Kept { at_ns };
                }
            }
            _ => {}
        }
    }

    /// Nobody knows whether it has happened, or will.
    fn doubt(&mut self, asked: Asked, called_ns: u64) {
        match asked {
            Asked::SetEntry(number) | Asked::TakeEntry(number) => {
                if let Some(place) = self.place_of(number) {
                    self.entries.remove(place);
                    self.doubtful.push(number);
                }
            }
            Asked::Increment(index) => self.counters[index].doubts += 1,
            Asked::SetRegister(register, number) => {
                let operation =
                    Operation { called: called_ns, answered: u64::MAX, value: self.unique(number), is_write: true };
                self.history.push((register, operation));
            }
            Asked::GetEntry(_) | Asked::GetCounter(_) | Asked::GetRegister(_) => return,
        }
        self.findings.unknown += 1;
    }
}

/// Looks everything up and holds it against what was promised. Answers of writes in these spans bind nobody.
///
/// # Errors
/// If the connection does not hold.
pub fn audit(
    players: Vec<RegisterPlayer>,
    connection: &mut Connection,
    now_ns: impl Fn() -> u64,
    spans: &[(u64, u64)],
) -> io::Result<Findings> {
    let Some(plan) = players.first().map(|player| player.plan.clone()) else { return Ok(Findings::default()) };
    let mut all = Findings::default();
    let mut histories: HashMap<u64, Vec<Operation>> = HashMap::new();
    let mut known: HashMap<String, bool> = HashMap::new();
    let mut writers = Vec::new();
    let mut entry_count = 0;
    for mut player in players {
        entry_count += player.audit_entries(connection, &mut known)?;
        player.audit_counters(connection)?;
        for (register, operation) in player.history.drain(..) {
            histories.entry(register).or_default().push(operation);
        }
        all.merge(std::mem::take(&mut player.findings));
        writers.push(player);
    }
    audit_strangers(&writers, connection, &known, &mut all)?;
    let counters = writers.len() * COUNTERS;
    all.checks.push(format!("{entry_count} entries and {counters} counters read back at the end"));

    let keys: Vec<String> = (0..REGISTERS).map(register_key).collect();
    let called = now_ns();
    let replies = fetch(connection, "GET", &keys, plan.value_bytes)?;
    let answered = now_ns();
    for (register, reply) in (0..REGISTERS).zip(&replies) {
        if let Some(value) = register_value(register, reply, &plan, &mut all) {
            histories.entry(register).or_default().push(Operation { called, answered, value, is_write: false });
        }
    }
    judge_registers(histories, spans, &mut all);
    Ok(all)
}

fn judge_registers(histories: HashMap<u64, Vec<Operation>>, spans: &[(u64, u64)], all: &mut Findings) {
    let mut registers: Vec<(u64, Vec<Operation>)> = histories.into_iter().collect();
    registers.sort_by_key(|(register, _)| *register);
    let (mut operations, mut broken) = (0, 0);
    for (register, mut history) in registers.into_iter() {
        let is_binding = |it: &Operation| !spans.iter().any(|span| (span.0..=span.1).contains(&it.answered));
        history.retain_mut(|it| {
            let keeps = it.is_write || is_binding(it);
            if it.is_write && !is_binding(it) {
                it.answered = u64::MAX;
            }
            keeps
        });
        operations += history.len();
        if let Err(conflict) = zones::check(&history) {
            broken += 1;
            all.anomaly("not linearizable", || tell(register, &history, conflict));
        }
    }
    let verdict = if broken == 0 { "all linearizable".to_owned() } else { format!("{broken} NOT linearizable") };
    all.checks.push(format!("{REGISTERS} registers, {operations} operations in their histories: {verdict}"));
}

impl RegisterPlayer {
    fn audit_entries(&mut self, connection: &mut Connection, known: &mut HashMap<String, bool>) -> io::Result<usize> {
        let (client, bytes) = (self.client, self.plan.value_bytes);
        let kept = self.entries.iter().filter_map(|entry| match entry.state {
            State::Kept { at_ns } | State::Taking { at_ns } => Some((entry.number, Some(at_ns))),
            State::Asked => None,
        });
        let kept: Vec<(u64, Option<u64>)> = kept.collect();
        let missing = std::mem::take(&mut self.missing);
        let doubtful = self.doubtful.iter().map(|number| (*number, None));
        let looked_at: Vec<(u64, Option<u64>)> =
            kept.into_iter().chain(doubtful).chain(missing.keys().map(|number| (*number, None))).collect();
        let keys: Vec<String> = looked_at.iter().map(|(number, _)| entry_key(client, *number)).collect();
        let values = fetch(connection, "GET", &keys, bytes)?;
        let lifetimes = fetch(connection, "PTTL", &keys, 16)?;
        for (((number, at_ns), key), (value, lifetime)) in
            looked_at.iter().zip(&keys).zip(values.iter().zip(&lifetimes))
        {
            known.insert(key.clone(), true);
            match (value, at_ns, missing.get(number)) {
                (Frame::Null, Some(at_ns), _) | (Frame::Null, None, Some(at_ns)) => {
                    self.findings.lost(*at_ns, || key.clone());
                }
                (Frame::Null, None, None) => {}
                (Frame::Bulk(value), ..) if number_of(key, value, bytes as usize) != Some(*number) => {
                    self.findings.altered(|| format!("{key} holds {}", shown(value)));
                }
                (Frame::Bulk(_), _, missing) => {
                    if missing.is_some() {
                        self.findings.anomaly("stale read", || format!("{key} was not found, and is there"));
                    } else if at_ns.is_none() {
                        self.findings.unknown_in_effect += 1;
                    }
                    let expected = if has_deadline(*number) { 1..=DEADLINE_MS } else { -1..=-1 };
                    if !matches!(lifetime, Frame::Integer(ms) if expected.contains(ms)) {
                        self.findings.altered(|| format!("{key} has the lifetime {lifetime}"));
                    }
                }
                (other, ..) => self.findings.altered(|| format!("{key} answered {other}")),
            }
        }
        Ok(keys.len())
    }

    fn audit_counters(&mut self, connection: &mut Connection) -> io::Result<()> {
        let keys: Vec<String> = (0..COUNTERS).map(|index| counter_key(self.client, index)).collect();
        let replies = fetch(connection, "GET", &keys, 16)?;
        for (index, reply) in replies.iter().enumerate() {
            self.take_counter_value(index, reply, (0, 0));
        }
        Ok(())
    }

    /// An entry is there that nobody expects: refused, taken out, or never asked for.
    fn judge_stranger(&self, number: u64, findings: &mut Findings) {
        let key = entry_key(self.client, number);
        if self.refused.contains(&number) {
            findings.anomaly("refused, yet there", || key);
        } else if number < self.next {
            let at_ns = self.taken.iter().find(|(taken, _)| *taken == number).map_or(0, |(_, at_ns)| *at_ns);
            findings.lost(at_ns, || format!("the removal of {key}"));
        } else {
            findings.altered(|| format!("{key}, which nobody wrote"));
        }
    }
}

/// Walks all keys: nothing may be there that was taken out or never written.
fn audit_strangers(
    writers: &[RegisterPlayer],
    connection: &mut Connection,
    known: &HashMap<String, bool>,
    findings: &mut Findings,
) -> io::Result<()> {
    let mut cursor = b"0".to_vec();
    let mut seen = HashSet::new();
    loop {
        let reply = match connection.insist(&[b"SCAN", &cursor[..], b"COUNT", b"1000"]) {
            Ok(reply) => reply,
            Err(error) => {
                findings.anomaly("no list of all keys", || error.to_string());
                return Ok(());
            }
        };
        let Some([Frame::Bulk(next), Frame::Array(keys)]) = reply.elements() else {
            return Err(io::Error::other(format!("SCAN answered {reply}")));
        };
        for key in keys.iter().filter_map(Frame::as_bytes) {
            let text = String::from_utf8_lossy(key).into_owned();
            if known.contains_key(&text) || !seen.insert(text.clone()) {
                continue;
            }
            let parts: Vec<&str> = text.split(':').collect();
            let number = |at: usize| parts.get(at).and_then(|part| part.parse::<u64>().ok());
            match (parts[0], number(1), number(2)) {
                ("e", Some(client), Some(number)) if (client as usize) < writers.len() => {
                    writers[client as usize].judge_stranger(number, findings);
                }
                ("n" | "r", Some(_), _) => {}
                _ => findings.altered(|| format!("the key {text}, which nobody wrote")),
            }
        }
        cursor.clone_from(next);
        if cursor == b"0" {
            return Ok(());
        }
    }
}

/// One reply for each key, a bounded number of bytes at a time.
fn fetch(connection: &mut Connection, command: &str, keys: &[String], bytes_each: u64) -> io::Result<Vec<Frame>> {
    let chunk = (BATCH_BYTES / bytes_each.max(64)).clamp(1, 1_000) as usize;
    let mut replies = Vec::with_capacity(keys.len());
    for keys in keys.chunks(chunk) {
        let mut out = Vec::new();
        for key in keys {
            encode_request(&mut out, &[command, key]);
        }
        connection.send(&out)?;
        let asked = replies.len();
        for _ in keys {
            replies.push(connection.receive()?);
        }
        for (reply, key) in replies[asked..].iter_mut().zip(keys).filter(|(reply, _)| reply.is_error()) {
            *reply = connection.insist(&[command, key])?;
        }
    }
    Ok(replies)
}

/// What a register held; none if that says nothing about it.
fn register_value(register: u64, reply: &Frame, plan: &Plan, findings: &mut Findings) -> Option<u64> {
    let key = register_key(register);
    match reply {
        Frame::Null => Some(0),
        Frame::Bulk(value) => {
            let number = number_of(&key, value, plan.value_bytes as usize);
            if number.is_none() {
                findings.altered(|| format!("{key} holds {}", shown(value)));
            }
            number
        }
        other => {
            findings.altered(|| format!("{key} answered {other}"));
            None
        }
    }
}

fn tell(register: u64, history: &[Operation], conflict: Conflict) -> String {
    let key = register_key(register);
    let shown = |value: u64| {
        let of_value = || history.iter().filter(move |it| it.value == value);
        let write = of_value().find(|it| it.is_write);
        let written = match write {
            None if value == 0 => "never written".to_owned(),
            None => "written by nobody".to_owned(),
            Some(it) if it.answered == u64::MAX => format!("written from {}, answer unknown", seconds(it.called)),
            Some(it) => format!("written {} to {}", seconds(it.called), seconds(it.answered)),
        };
        let reads = || of_value().filter(|it| !it.is_write);
        let first = reads().map(|it| it.answered).min();
        let last = reads().map(|it| it.called).max();
        let read = match (first, last) {
            (Some(first), Some(last)) => format!("read from {} to {}", seconds(first), seconds(last)),
            _ => "never read".to_owned(),
        };
        format!("value {value} ({written}; {read})")
    };
    match conflict {
        Conflict::FromNowhere { value } => format!("{key}: {}", shown(value)),
        Conflict::FromTheFuture { value } => format!("{key}: read before it was written: {}", shown(value)),
        Conflict::Contradiction { one, other } => format!("{key}: {} against {}", shown(one), shown(other)),
    }
}

fn entry_key(client: u64, number: u64) -> String {
    format!("e:{client}:{number}")
}

fn counter_key(client: u64, index: usize) -> String {
    format!("n:{client}:{index}")
}

fn register_key(register: u64) -> String {
    format!("r:{register}")
}

fn has_deadline(number: u64) -> bool {
    number.is_multiple_of(DEADLINE_EVERY)
}

fn push_bounded<T>(queue: &mut VecDeque<T>, item: T) {
    if queue.len() == TIMES_MAX {
        queue.pop_front();
    }
    queue.push_back(item);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn player() -> RegisterPlayer {
        let plan = Plan { clients: 1, pipeline: 4, value_bytes: 64, read_ratio: 0.5, seed: 1, duration_ns: 1_000 };
        players(&plan).remove(0)
    }

    #[test]
    fn a_counter_tells_lost_doubled_and_late_increments_apart() {
        let mut player = player();
        player.observe_counter(0, 1, true);
        player.observe_counter(0, 2, true);
        assert_eq!((player.findings.lost.len(), player.findings.doubled), (0, 0));
        // Two without an answer; one of them has happened.
        player.doubt(Asked::Increment(0), 0);
        player.doubt(Asked::Increment(0), 0);
        player.observe_counter(0, 4, true);
        assert_eq!((player.findings.unknown, player.findings.unknown_in_effect), (2, 1));
        // The other one as well, and one of them twice.
        player.observe_counter(0, 6, false);
        assert_eq!((player.findings.unknown_in_effect, player.findings.doubled), (2, 1));
        player.observe_counter(0, 4, false);
        assert_eq!(player.findings.lost.len(), 2);
    }

    #[test]
    fn a_read_out_of_its_place_is_neither_a_lost_nor_a_doubled_write() {
        let mut player = player();
        player.observe_counter(0, 1, true);
        let two = Frame::Bulk(b"2".to_vec());
        player.take_counter_value(0, &two, (0, 1));
        player.observe_counter(0, 2, true);
        player.take_counter_value(0, &Frame::Bulk(b"1".to_vec()), (1, 0));
        assert_eq!(player.findings.anomalies["read out of its place"], 2);
        assert_eq!((player.findings.lost.len(), player.findings.doubled), (0, 0));
        player.take_counter_value(0, &Frame::Bulk(b"3".to_vec()), (1, 0));
        assert_eq!(player.findings.doubled, 1);
    }

    #[test]
    fn an_entry_is_judged_by_what_was_said_of_it() {
        let mut player = player();
        for number in 1..=4 {
            player.entries.push_back(Entry { number, state: State::Kept { at_ns: number * 10 } });
        }
        player.next = 5;
        let value = |number| Frame::Bulk(value_of(&entry_key(0, number), number, 64));
        player.take_entry_value(1, &value(1), 99);
        assert_eq!((player.findings.altered, player.missing.len()), (0, 0));
        player.take_entry_value(2, &value(3), 99);
        assert_eq!(player.findings.altered, 1, "the value of another key");
        player.take_entry_value(3, &Frame::Null, 99);
        assert_eq!(player.missing.get(&3), Some(&30));
        player.refuse(Asked::SetEntry(4));
        let mut findings = Findings::default();
        player.judge_stranger(4, &mut findings);
        assert_eq!(findings.anomalies["refused, yet there"], 1);
        player.taken.push_back((1, 77));
        player.judge_stranger(1, &mut findings);
        assert_eq!(findings.lost, [77]);
        player.judge_stranger(9, &mut findings);
        assert_eq!(findings.altered, 1, "nobody has asked for it yet");
    }

    #[test]
    fn what_was_answered_just_before_a_kill_binds_nobody_if_a_window_is_granted() {
        let history = || {
            let write = |called, answered, value| Operation { called, answered, value, is_write: true };
            let read = |called, answered, value| Operation { called, answered, value, is_write: false };
            HashMap::from([(0, vec![write(10, 20, 1), write(80, 90, 2), read(92, 95, 2), read(200, 210, 1)])])
        };
        let mut strict = Findings::default();
        judge_registers(history(), &[], &mut strict);
        assert_eq!(strict.anomalies["not linearizable"], 1);
        let mut lenient = Findings::default();
        judge_registers(history(), &[(60, 100)], &mut lenient);
        assert!(lenient.anomalies.is_empty(), "{lenient:?}");
        judge_registers(history(), &[(93, 100)], &mut lenient);
        assert_eq!(lenient.anomalies["not linearizable"], 1, "the write was answered before the window");
    }
}
