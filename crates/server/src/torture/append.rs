//! Transactions that append to lists and read them, for [`simulation::cycles`].
//!
//! A list is a string that APPEND makes longer by one element of fixed width; few lists are in use at a time, and after
//! some elements others take their place, so that reads stay short. Transactions are of one to four steps, some of them
//! single commands, some with WATCH, some discarded on purpose: what they appended must never be seen.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use resp::{Frame, encode_request};
use stdx::Prng;

use super::crew::{Pen, Player};
use super::findings::Findings;
use crate::connection::Connection;
use simulation::cycles::{self, End, Step, Transaction};

/// Lists in use at a time.
const LISTS: u32 = 10;
/// Elements that a list gets, about.
const ELEMENTS: u32 = 40;
/// Steps of a transaction, at most.
const STEPS_MAX: u64 = 4;
/// Transactions that are written down, spread over the whole run; others only read.
const HISTORY_MAX: u64 = 400_000;
/// One transaction in so many is discarded, and one in so many watches a list.
const DISCARD_EVERY: u64 = 20;
const WATCH_EVERY: u64 = 8;

/// How the clients behave.
#[derive(Clone, Debug)]
pub struct Plan {
    pub clients: u64,
    pub pipeline: u64,
    pub seed: u64,
    /// How long the run is meant to be.
    pub duration_ns: u64,
}

/// How a transaction was sent, which says what its replies are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Alone,
    Multi { watches: bool, discards: bool },
}

struct Pending {
    form: Form,
    steps: Vec<Step>,
    /// Written down only if it is.
    counts: bool,
}

/// One client.
pub struct AppendPlayer {
    plan: Plan,
    prng: Prng,
    elements: Arc<AtomicU32>,
    history: Vec<Transaction>,
    findings: Findings,
}

/// All clients of a run.
pub fn players(plan: &Plan) -> Vec<AppendPlayer> {
    let mut prng = Prng::new(plan.seed);
    let elements = Arc::new(AtomicU32::new(0));
    let player = |_| AppendPlayer {
        plan: plan.clone(),
        prng: prng.fork(),
        elements: Arc::clone(&elements),
        history: Vec::new(),
        findings: Findings::default(),
    };
    (0..plan.clients).map(player).collect()
}

impl Plan {
    /// Transactions that one client may have written down by now.
    fn allowance(&self, now_ns: u64) -> usize {
        let passed = (now_ns as f64 / self.duration_ns.max(1) as f64).min(1.0);
        ((HISTORY_MAX / self.clients) as f64 * (0.01 + 0.99 * passed)) as usize
    }
}

impl Player for AppendPlayer {
    fn play(&mut self, connection: &mut Connection, pen: &mut Pen) -> io::Result<()> {
        let mut out = Vec::new();
        let mut room = self.plan.allowance(pen.now_ns()).saturating_sub(self.history.len());
        let batch: Vec<Pending> = (0..self.plan.pipeline)
            .map(|_| {
                let pending = self.draw(room > 0);
                room = room.saturating_sub(1);
                pending.encode(&mut out);
                pending
            })
            .collect();
        let called_ns = pen.now_ns();
        let mut outcome = connection.send(&out);
        for pending in batch {
            let reply = match outcome {
                Ok(()) => pending.receive(connection),
                Err(error) => Err(error),
            };
            outcome = match reply {
                Ok((reply, true)) => {
                    self.take(pending, &reply, called_ns, pen);
                    Ok(())
                }
                Ok((reply, false)) => {
                    pen.refused(reply.as_bytes().unwrap_or_default());
                    self.scatter(pending, called_ns);
                    Ok(())
                }
                Err(error) => {
                    self.doubt(pending, called_ns);
                    Err(error)
                }
            };
        }
        outcome
    }
}

impl Pending {
    fn encode(&self, out: &mut Vec<u8>) {
        if let Form::Multi { watches, .. } = self.form {
            if watches && let Some(step) = self.steps.first() {
                encode_request(out, &["WATCH", &list_key(list_of(step))]);
            }
            encode_request(out, &["MULTI"]);
        }
        for step in &self.steps {
            match step {
                Step::Append { list, element, .. } => {
                    encode_request(out, &["APPEND", &list_key(*list), &token(*element)]);
                }
                Step::Read { list, .. } => encode_request(out, &["GET", &list_key(*list)]),
            }
        }
        match self.form {
            Form::Alone => {}
            Form::Multi { discards: true, .. } => encode_request(out, &["DISCARD"]),
            Form::Multi { .. } => encode_request(out, &["EXEC"]),
        }
    }

    /// The reply that counts, the last one, and whether the steps were one transaction at all.
    fn receive(&self, connection: &mut Connection) -> io::Result<(Frame, bool)> {
        let mut is_whole = true;
        if let Form::Multi { watches, .. } = self.form {
            if watches {
                connection.receive()?;
            }
            // If MULTI is refused, what follows it is done one by one, or not.
            is_whole = !connection.receive()?.is_error();
            for _ in &self.steps {
                connection.receive()?; // what is wrong with one of them, EXEC says as well
            }
        }
        Ok((connection.receive()?, is_whole))
    }

    /// Whether it would change anything.
    fn is_write(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Append { .. }))
    }
}

impl AppendPlayer {
    fn draw(&mut self, counts: bool) -> Pending {
        let newest = self.elements.load(Ordering::Relaxed);
        let steps: Vec<Step> = (0..1 + self.prng.below(STEPS_MAX))
            .map(|_| {
                let lists = newest / (LISTS * ELEMENTS) * LISTS;
                let list = lists + self.prng.below(u64::from(LISTS)) as u32;
                if counts && self.prng.chance(1, 2) {
                    let element = self.elements.fetch_add(1, Ordering::Relaxed);
                    Step::Append { list, element, length: None }
                } else {
                    Step::Read { list, found: Vec::new() }
                }
            })
            .collect();
        let form = match steps.len() == 1 && self.prng.chance(1, 2) {
            true => Form::Alone,
            false => {
                let watches = self.prng.chance(1, WATCH_EVERY);
                Form::Multi { watches, discards: self.prng.chance(1, DISCARD_EVERY) }
            }
        };
        Pending { form, steps, counts }
    }

    fn take(&mut self, pending: Pending, reply: &Frame, called_ns: u64, pen: &mut Pen) {
        let now_ns = pen.now_ns();
        let parts = match (pending.form, reply) {
            (_, Frame::Error(text)) => {
                pen.refused(text);
                let end = if text.windows(7).any(|word| word == b"unknown") { End::Unknown } else { End::Aborted };
                return self.note(pending, called_ns, end, None);
            }
            (Form::Multi { discards: true, .. }, _) => {
                pen.success(false, called_ns, now_ns);
                return self.note(pending, called_ns, End::Aborted, None);
            }
            (Form::Multi { .. }, Frame::Null) => {
                pen.aborted();
                pen.success(false, called_ns, now_ns);
                return self.note(pending, called_ns, End::Aborted, None);
            }
            (Form::Alone, reply) => std::slice::from_ref(reply),
            (Form::Multi { .. }, reply) => reply.elements().unwrap_or_default(),
        };
        self.findings.acknowledged += u64::from(pending.is_write());
        pen.success(pending.is_write(), called_ns, now_ns);
        self.note(pending, called_ns, End::Committed(now_ns), Some(parts));
    }

    fn doubt(&mut self, pending: Pending, called_ns: u64) {
        let is_discarded = matches!(pending.form, Form::Multi { discards: true, .. });
        let end = if is_discarded { End::Aborted } else { End::Unknown };
        self.findings.unknown += u64::from(pending.is_write() && !is_discarded);
        self.note(pending, called_ns, end, None);
    }

    /// Each step may have been taken by itself, or not.
    fn scatter(&mut self, pending: Pending, called_ns: u64) {
        let counts = pending.counts;
        for step in pending.steps.into_iter().filter(|step| matches!(step, Step::Append { .. })) {
            self.doubt(Pending { form: Form::Alone, steps: vec![step], counts }, called_ns);
        }
    }

    fn note(&mut self, pending: Pending, called: u64, end: End, replies: Option<&[Frame]>) {
        if !pending.counts {
            return;
        }
        let mut steps = pending.steps;
        match replies {
            Some(replies) if replies.len() == steps.len() => {
                let mut whole = true;
                for (step, reply) in steps.iter_mut().zip(replies) {
                    whole &= fill_in(step, reply);
                }
                if !whole {
                    self.findings.altered(|| format!("a transaction answered {}", shown(replies)));
                    steps.retain(|step| matches!(step, Step::Append { .. }));
                }
            }
            Some(replies) => {
                let count = steps.len();
                self.findings.altered(|| format!("a transaction of {count} steps answered {}", shown(replies)));
                return;
            }
            None => steps.retain(|step| matches!(step, Step::Append { .. })),
        }
        self.history.push(Transaction { called, end, steps });
    }
}

/// Puts the answer into a step; false if it is none.
fn fill_in(step: &mut Step, reply: &Frame) -> bool {
    match (step, reply) {
        (Step::Append { length, .. }, Frame::Integer(bytes)) => {
            *length = Some((*bytes / token(0).len() as i64) as u32);
            true
        }
        (Step::Read { found, .. }, reply) => elements(reply).map(|elements| *found = elements).is_some(),
        _ => false,
    }
}

fn elements(reply: &Frame) -> Option<Vec<u32>> {
    let bytes = match reply {
        Frame::Null => return Some(Vec::new()),
        Frame::Bulk(bytes) => bytes,
        _ => return None,
    };
    let width = token(0).len();
    let whole = bytes.len().is_multiple_of(width);
    let words = bytes.chunks_exact(width).map(|word| {
        let digits = word.strip_suffix(b";").and_then(|digits| std::str::from_utf8(digits).ok())?;
        u32::from_str_radix(digits, 16).ok()
    });
    words.collect::<Option<Vec<u32>>>().filter(|_| whole)
}

fn shown(replies: &[Frame]) -> String {
    let mut text: Vec<String> = replies.iter().map(Frame::to_string).collect();
    text.iter_mut().for_each(|text| text.truncate(60));
    text.join(", ")
}

/// Reads all lists and judges the history. Answers in these spans bind nobody, but what is lost is counted.
///
/// # Errors
/// If the connection does not hold.
pub fn audit(players: Vec<AppendPlayer>, connection: &mut Connection, spans: &[(u64, u64)]) -> io::Result<Findings> {
    let mut all = Findings::default();
    let mut history = Vec::new();
    for mut player in players {
        history.append(&mut player.history);
        all.merge(player.findings);
    }
    let mut lists = BTreeMap::new();
    let mut wanted: Vec<u32> = history.iter().flat_map(|it| it.steps.iter().map(list_of)).collect();
    wanted.sort_unstable();
    wanted.dedup();
    for list in wanted {
        let reply = connection.insist(&["GET", &list_key(list)])?;
        match elements(&reply) {
            Some(elements) => _ = lists.insert(list, elements),
            None => all.altered(|| format!("{} holds {}", list_key(list), shown(std::slice::from_ref(&reply)))),
        }
    }
    let transactions = history.len();
    soften(&mut history, &lists, spans, &mut all);
    let anomalies = cycles::check(&history, &lists);
    let verdict = if anomalies.counts.is_empty() { "strictly serializable" } else { "NOT strictly serializable" };
    all.checks.push(format!("{transactions} transactions over {} lists: {verdict}", lists.len()));
    all.lost.extend(&anomalies.lost);
    all.doubled += anomalies.doubled;
    all.altered += anomalies.altered;
    all.unknown_in_effect += anomalies.unknown_in_effect;
    for (name, count) in anomalies.counts {
        if ![cycles::LOST, cycles::DOUBLED, cycles::ALTERED].contains(&name) {
            *all.anomalies.entry(name.to_owned()).or_default() += count;
        }
    }
    all.examples.extend(anomalies.examples);
    Ok(all)
}

/// What was answered in these spans may have been undone. Such losses are counted here, and nowhere else.
fn soften(history: &mut [Transaction], lists: &BTreeMap<u32, Vec<u32>>, spans: &[(u64, u64)], all: &mut Findings) {
    for transaction in history.iter_mut() {
        let End::Committed(answered) = transaction.end else { continue };
        if !spans.iter().any(|span| (span.0..=span.1).contains(&answered)) {
            continue;
        }
        transaction.end = End::Unknown;
        transaction.steps.retain(|step| matches!(step, Step::Append { .. }));
        for step in &mut transaction.steps {
            if let Step::Append { list, element, length } = step {
                *length = None;
                if !lists.get(list).is_some_and(|elements| elements.contains(element)) {
                    all.lost(answered, || format!("element {element:x} of list {list}"));
                }
            }
        }
    }
}

fn list_of(step: &Step) -> u32 {
    match step {
        Step::Append { list, .. } | Step::Read { list, .. } => *list,
    }
}

fn list_key(list: u32) -> String {
    format!("l:{list}")
}

fn token(element: u32) -> String {
    format!("{element:08x};")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_was_appended_and_nothing_else_is_a_list() {
        let text: String = [1, 0xabc, u32::MAX].map(token).concat();
        assert_eq!(elements(&Frame::Bulk(text.clone().into())), Some(vec![1, 0xabc, u32::MAX]));
        assert_eq!(elements(&Frame::Null), Some(Vec::new()));
        assert_eq!(elements(&Frame::Bulk(text[1..].into())), None);
        assert_eq!(elements(&Frame::Bulk(text[..20].into())), None);
        assert_eq!(elements(&Frame::Integer(1)), None);
    }

    #[test]
    fn what_was_answered_in_a_granted_window_is_lost_but_proves_nothing() {
        let append = |element| Step::Append { list: 1, element, length: Some(element) };
        let committed = |answered, steps| Transaction { called: 1, end: End::Committed(answered), steps };
        let lists = BTreeMap::from([(1, vec![1])]);
        let mut history = [committed(5, vec![append(1)]), committed(15, vec![append(2)])];
        let mut findings = Findings::default();
        soften(&mut history, &lists, &[(10, 20)], &mut findings);
        assert_eq!(findings.lost, [15]);
        assert!(cycles::check(&history, &lists).counts.is_empty());
    }
}
