//! Who may rely on what, and for how long.
//!
//! A *promise* is a voter's: for one election time-out after it has heard its leader it helps nobody else to lead, not
//! even itself. It is not written down, so one that starts promises as if it had just heard a leader.
//!
//! A *lease* is the leader's: a quorum has answered a round of heartbeats, so each of that quorum has promised, at the
//! earliest when the round was sent. Until the first of these promises can end, nobody else leads, and what the leader
//! has applied is all that it has told anybody: it answers reads without asking. The lease is shorter than a promise
//! by a margin, because both are measured, each on a clock of its own:
//!
//! ```text
//!            sent          answered by a quorum
//!   leader    ├──────── lease ───────────────────┤ margin
//!   voter       ├────── promise ─────────────────────────┤
//!              heard
//! ```
//!
//! Leadership that is handed over breaks promises: the leader says when, and has no lease from then on in that term.

use std::collections::VecDeque;

use stdx::{Duration, Instant};

use crate::limits;

/// How long a promise holds.
pub fn promise_length(election_ticks: u32) -> Duration {
    limits::TICK_INTERVAL * election_ticks
}

/// How long a lease lasts from when its round was sent.
pub fn lease_length(election_ticks: u32) -> Duration {
    promise_length(election_ticks) * (100 - limits::LEASE_MARGIN_PERCENT) / 100
}

/// A voter's promise to its leader.
#[derive(Debug)]
pub struct Promise {
    length: Duration,
    /// When it began, as told at the first moment after.
    since: Option<Instant>,
    /// A leader has been heard since the time was last told: when exactly is known with the next time told, which is
    /// later than the message and so on the safe side.
    is_fresh: bool,
    now: Instant,
}

impl Promise {
    /// That of a voter that has just started, and may have promised anything; `is_free` for one with nobody to promise
    /// to.
    pub fn new(election_ticks: u32, is_free: bool) -> Self {
        Self { length: promise_length(election_ticks), since: None, is_fresh: !is_free, now: Instant::ZERO }
    }

    /// It is so late now.
    pub fn tell_time(&mut self, now: Instant) {
        self.now = self.now.max(now);
        if std::mem::take(&mut self.is_fresh) {
            self.since = Some(self.now);
        }
    }

    /// The leader has been heard.
    pub fn renew(&mut self) {
        self.is_fresh = true;
    }

    /// True while it holds.
    pub fn holds(&self) -> bool {
        self.is_fresh || self.since.is_some_and(|since| self.now.since(since) < self.length)
    }

    /// Forgets it, against all that is right.
    pub fn break_it(&mut self) {
        self.is_fresh = false;
        self.since = None;
    }
}

/// A leader's lease.
#[derive(Debug)]
pub struct Lease {
    length: Duration,
    /// Rounds that no quorum has answered yet: context, when they were sent, and in which term.
    rounds: VecDeque<(u64, Instant, u64)>,
    /// It is valid in this term before this instant.
    until: Option<(u64, Instant)>,
    /// There is no lease in this term any more: a hand-over of leadership has begun.
    surrendered_term: u64,
    round_count: u64,
}

/// Set in the contexts of rounds that are sent only for the lease.
const OWN_CONTEXT: u64 = 1 << 63;

impl Lease {
    /// None.
    pub fn new(election_ticks: u32) -> Self {
        Self {
            length: lease_length(election_ticks),
            rounds: VecDeque::new(),
            until: None,
            surrendered_term: 0,
            round_count: 0,
        }
    }

    /// A context for a round that is sent for the lease alone.
    pub fn next_context(&mut self) -> u64 {
        self.round_count += 1;
        OWN_CONTEXT | self.round_count
    }

    /// True if a round was sent for the lease alone.
    pub fn is_own(context: u64) -> bool {
        context & OWN_CONTEXT != 0
    }

    /// A round is about to be sent.
    pub fn ask(&mut self, context: u64, now: Instant, term: u64) {
        let last = self.rounds.back();
        assert!(last.is_none_or(|(_, sent, of)| *sent <= now && *of <= term), "rounds are sent one after the other");
        if self.rounds.len() == limits::READS_WAITING_MAX {
            self.rounds.pop_front();
        }
        self.rounds.push_back((context, now, term));
    }

    /// A quorum has answered a round, or a later one.
    pub fn grant(&mut self, context: u64) {
        let Some(place) = self.rounds.iter().position(|(asked, ..)| *asked == context) else { return };
        let (_, sent, term) = self.rounds[place];
        self.rounds.drain(..=place);
        let until = sent + self.length;
        if self.until.is_none_or(|(of, before)| of < term || (of == term && before < until)) {
            self.until = Some((term, until));
        }
    }

    /// True if it is valid in this term at this instant.
    pub fn is_valid(&self, term: u64, now: Instant) -> bool {
        term != self.surrendered_term && self.until.is_some_and(|(of, until)| of == term && now < until)
    }

    /// Nothing that was asked or granted so far counts any more.
    pub fn end(&mut self) {
        self.rounds.clear();
        self.until = None;
    }

    /// There will be none in this term: somebody may be told to lead, and that word may arrive at any time.
    pub fn surrender(&mut self, term: u64) {
        self.surrendered_term = term;
        self.end();
    }

    /// True if it was given up for this term.
    pub fn is_surrendered(&self, term: u64) -> bool {
        self.surrendered_term == term
    }

    /// Makes leases longer than promises.
    pub fn stretch(&mut self, election_ticks: u32) {
        self.length = promise_length(election_ticks) * 12 / 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKS: u32 = 10;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_lease_counts_from_when_its_round_was_sent() {
        let mut lease = Lease::new(TICKS);
        lease.ask(1, at(100), 3);
        lease.ask(2, at(200), 3);
        assert!(!lease.is_valid(3, at(200)), "nobody has answered");
        lease.grant(1);
        let end = at(100) + lease_length(TICKS);
        assert!(lease.is_valid(3, Instant::from_nanos(end.as_nanos() - 1)));
        assert!(!lease.is_valid(3, end));
        assert!(!lease.is_valid(4, at(101)), "another term is another leader's");
        lease.grant(1);
        lease.grant(2);
        assert!(lease.is_valid(3, end), "the later round was answered, too");
    }

    #[test]
    fn a_lease_given_up_does_not_come_back_in_its_term() {
        let mut lease = Lease::new(TICKS);
        lease.ask(1, at(100), 3);
        lease.surrender(3);
        lease.ask(2, at(101), 3);
        lease.grant(1);
        lease.grant(2);
        assert!(!lease.is_valid(3, at(102)));
        lease.ask(3, at(200), 4);
        lease.grant(3);
        assert!(lease.is_valid(4, at(201)));
    }

    #[test]
    fn a_promise_begins_not_before_the_time_is_told() {
        let mut promise = Promise::new(TICKS, false);
        assert!(promise.holds(), "it has just started");
        promise.tell_time(at(1_000));
        let length = promise_length(TICKS).as_millis() as u64;
        promise.tell_time(at(1_000 + length - 1));
        assert!(promise.holds());
        promise.tell_time(at(1_000 + length));
        assert!(!promise.holds());
        promise.renew();
        assert!(promise.holds());
        promise.tell_time(at(9_000));
        promise.tell_time(at(9_000 + length - 1));
        assert!(promise.holds(), "the process slept before it was told the time");
        assert!(!Promise::new(TICKS, true).holds());
    }
}
