//! What was promised, written down outside the server, and the audit that holds a server to it.
//!
//! For every key the ledger keeps the states it was given, in the order they were asked for, and when each was
//! acknowledged. After a crash a key may be in the last state acknowledged before the horizon, or in any state asked
//! for later: an answer that never arrived says nothing about its write. Any other state is a broken promise: an older
//! one is a loss, one that nobody asked for is an invention.
//!
//! ```text
//!   asked for       s0   s1   s2   s3   s4   s5
//!   acknowledged    ✓    ✓    ✓    ✓    –    –
//!   horizon                   │
//!   may be found              s2 · s3 · s4 · s5        (`always`: the horizon lies at the crash, so s3 · s4 · s5)
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use resp::Frame;

use super::Client;

/// What a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Absent,
    /// The text that [`text_of`] makes of the key and the number, unique for every write; with or without a deadline.
    Text {
        number: u64,
        expires: bool,
    },
    Count(u64),
}

struct Issue {
    number: u64,
    state: State,
    acknowledged: Option<Instant>,
}

/// The states one client asked for.
#[derive(Default)]
pub struct Ledger {
    issued: u64,
    keys: BTreeMap<String, Vec<Issue>>,
    /// Keys that are only ever written together, in one transaction.
    pairs: Vec<(String, String)>,
    /// Replies that no order of events can explain, found while the load ran.
    pub surprises: Vec<String>,
    /// Writes refused, and the last refusal's text.
    pub refused: u64,
    pub refusal: Option<String>,
}

/// What an audit found, over one or more ledgers.
#[derive(Debug, Default)]
pub struct Audit {
    pub acknowledged: u64,
    /// Acknowledged writes that are gone. Under `always` each is a violation.
    pub lost: u64,
    /// The oldest of them, before the crash.
    pub lost_before: Duration,
    pub violations: Vec<String>,
}

impl Ledger {
    /// An empty ledger that knows which keys belong together.
    pub fn new(pairs: Vec<(String, String)>) -> Self {
        Self { pairs, ..Self::default() }
    }

    /// The state that was asked for last.
    pub fn latest(&self, key: &str) -> State {
        self.keys.get(key).and_then(|issues| issues.last()).map_or(State::Absent, |issue| issue.state)
    }

    /// A number that no other write of this ledger has.
    pub fn next_number(&mut self) -> u64 {
        self.issued += 1;
        self.issued
    }

    /// Writes down that `state` is being asked for, and answers how to refer to it.
    pub fn issue(&mut self, key: &str, state: State) -> u64 {
        let number = self.next_number();
        self.keys.entry(key.to_owned()).or_default().push(Issue { number, state, acknowledged: None });
        number
    }

    /// The server has acknowledged a state.
    pub fn acknowledge(&mut self, key: &str, number: u64, now: Instant) {
        let issues = self.keys.get_mut(key).expect("a key that was issued");
        let issue = issues.iter_mut().rev().find(|issue| issue.number == number).expect("a state that was issued");
        issue.acknowledged = Some(now);
    }

    /// The server has refused a state: it must never be seen.
    pub fn refuse(&mut self, key: &str, number: u64, text: String) {
        self.keys.get_mut(key).expect("a key that was issued").retain(|issue| issue.number != number);
        self.refused += 1;
        self.refusal = Some(text);
    }

    /// Looks every key up and holds it against what was promised. What was acknowledged up to `horizon` must be there;
    /// `crash` is when the server went away. Afterwards the ledger starts from what was found.
    pub fn audit(&mut self, client: &mut Client, horizon: Instant, crash: Instant, audit: &mut Audit) {
        audit.violations.append(&mut self.surprises);
        let keys: Vec<String> = self.keys.keys().cloned().collect();
        for chunk in keys.chunks(64) {
            for key in chunk {
                client.send(&["GET", key]).and_then(|()| client.send(&["PTTL", key])).expect("a connection");
            }
            for key in chunk {
                let value = client.receive().expect("a value");
                let time_to_live = client.receive().expect("a time to live");
                let expires = matches!(time_to_live, Frame::Integer(milliseconds) if milliseconds >= 0);
                self.audit_key(key, &value, expires, horizon, crash, audit);
            }
        }
        for (one, other) in &self.pairs {
            let numbers = [one, other].map(|key| match self.latest(key) {
                State::Text { number, .. } => number,
                _ => 0,
            });
            if numbers[0] != numbers[1] {
                audit.violations.push(format!("a transaction is there by half: {one} has {numbers:?} with {other}"));
            }
        }
    }

    fn audit_key(
        &mut self,
        key: &str,
        value: &Frame,
        expires: bool,
        horizon: Instant,
        crash: Instant,
        audit: &mut Audit,
    ) {
        let issues = self.keys.get_mut(key).expect("a key of the ledger");
        audit.acknowledged += issues.iter().filter(|issue| issue.acknowledged.is_some()).count() as u64;
        let found = issues.iter().rposition(|issue| looks_like(key, issue.state, value, expires));
        let promised = issues.iter().rposition(|issue| issue.acknowledged.is_some_and(|when| when <= horizon));
        // Before its first write a key is absent, which nobody needs to have asked for.
        let first = if *value == Frame::Null { found.or(promised.is_none().then_some(0)) } else { found };
        match first {
            None if found.is_none() && *value == Frame::Null => {
                audit.violations.push(format!("{key} is lost; promised was {:?}", promised.map(|at| issues[at].state)));
            }
            None => {
                let mut shown = value.to_string();
                shown.truncate(80);
                audit.violations.push(format!("{key} holds what nobody asked for: {shown} (expires: {expires})"));
            }
            Some(at) if promised.is_some_and(|promised| at < promised) => {
                let promised = promised.map(|at| issues[at].state);
                audit.violations.push(format!("{key} went back to {:?}; promised was {promised:?}", issues[at].state));
            }
            Some(_) => {}
        }
        let behind = found.map_or(0, |at| at + 1);
        for when in issues[behind..].iter().filter_map(|issue| issue.acknowledged) {
            audit.lost += 1;
            audit.lost_before = audit.lost_before.max(crash.saturating_duration_since(when));
        }
        match found {
            Some(at) => {
                issues.truncate(at + 1);
                issues.drain(..at);
                issues[0].acknowledged = Some(horizon);
            }
            None => issues.clear(),
        }
    }
}

fn looks_like(key: &str, state: State, value: &Frame, expires: bool) -> bool {
    match (state, value) {
        (State::Absent, Frame::Null) => true,
        (State::Text { number, expires: promised }, Frame::Bulk(bytes)) => {
            *bytes == text_of(key, number) && expires == promised
        }
        (State::Count(count), Frame::Bulk(bytes)) => *bytes == count.to_string().into_bytes(),
        _ => false,
    }
}

/// The value that `key` is given by its `number`-th write: names both, so that a value in the wrong place is seen, and
/// has bytes up to its end that follow from them, so that a damaged one is. Sizes vary from a few bytes to some 20,000.
pub fn text_of(key: &str, number: u64) -> Vec<u8> {
    let length = match number {
        number if number % 97 == 0 => 20_000 + number % 1_000,
        number if number % 13 == 0 => 1_000 + number % 2_000,
        number => number % 150,
    };
    let mut text = format!("{key}:{number}:").into_bytes();
    let mut prng = stdx::Prng::new(number);
    text.extend((0..length).map(|_| b'a' + (prng.draw() % 26) as u8));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(states: &[(State, Option<u64>)], horizon_ms: u64, value: &Frame) -> (usize, u64) {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut ledger = Ledger::default();
        for (state, acknowledged) in states {
            let number = ledger.issue("k", *state);
            if let Some(when) = acknowledged {
                ledger.acknowledge("k", number, at(*when));
            }
        }
        let mut audit = Audit::default();
        ledger.audit_key("k", value, false, at(horizon_ms), at(1_000), &mut audit);
        (audit.violations.len(), audit.lost)
    }

    /// The table of what may be found after a crash, row by row.
    #[test]
    fn the_audit_tells_a_loss_from_an_answer_that_never_came() {
        let text = |number| State::Text { number, expires: false };
        let bulk = |number| Frame::Bulk(text_of("k", number));
        let history = [(text(1), Some(100)), (text(2), Some(200)), (text(3), Some(300)), (text(4), None)];
        assert_eq!(verdict(&history, 300, &bulk(3)), (0, 0), "the last promise");
        assert_eq!(verdict(&history, 300, &bulk(4)), (0, 0), "asked for, answer never came");
        assert_eq!(verdict(&history, 300, &bulk(2)), (1, 1), "one promise lost");
        assert_eq!(verdict(&history, 200, &bulk(2)), (0, 1), "lost within the window");
        assert_eq!(verdict(&history, 200, &bulk(1)), (1, 2), "lost beyond the window");
        assert_eq!(verdict(&history, 300, &bulk(9)), (1, 3), "nobody asked for it");
        assert_eq!(verdict(&history, 300, &Frame::Null), (1, 3), "gone");
        assert_eq!(verdict(&history[3..], 300, &Frame::Null), (0, 0), "never promised");
        let removed = [(text(1), Some(100)), (State::Absent, Some(200))];
        assert_eq!(verdict(&removed, 300, &Frame::Null), (0, 0), "removed, and promised so");
        assert_eq!(verdict(&removed, 300, &bulk(1)), (1, 1), "back from the dead");
        assert_eq!(verdict(&removed, 50, &Frame::Null), (0, 0), "removed within the window");
    }
}
