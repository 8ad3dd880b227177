//! What a session knows of its attempts to change what it has watched, and when it asks for help: see
//! `docs/decisions/0063`.

use group::ids::GroupId;
use stdx::{Duration, Instant, Level};

use crate::limits;

/// Groups of older levels reserve nothing.
pub(crate) const SINCE: Level = Level(2);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Optimism {
    /// EXECs in a row that were refused since what they watched had changed.
    refused_count: u32,
    /// When it was told what it watches looks like.
    told: Option<Instant>,
    /// How long it took from there to its last EXEC.
    took: Duration,
    /// The groups that were asked to keep something for it, and for how long.
    reserved: Vec<GroupId>,
    bound: Duration,
    /// It has let the last reservation run out: until then it gets none.
    rests_until: Option<Instant>,
    /// The ticket of an EXEC that depends on what was watched.
    attempt: Option<u64>,
}

impl Optimism {
    /// For how long what it is about to watch should be kept for it.
    pub(crate) fn wish(&mut self, now: Instant) -> Option<Duration> {
        if self.refused_count < limits::RESERVE_AFTER || self.rests_until.is_some_and(|until| now < until) {
            return None;
        }
        self.bound = (self.took * 2).clamp(limits::RESERVATION_MIN, group::limits::RESERVATION_MAX);
        Some(self.bound)
    }

    /// It has asked a group to keep something for it.
    pub(crate) fn note_reserved(&mut self, group: GroupId) {
        if !self.reserved.contains(&group) {
            self.reserved.push(group);
        }
    }

    /// It is told what it watches looks like.
    pub(crate) fn note_told(&mut self, now: Instant) {
        self.told.get_or_insert(now);
    }

    /// It tries to change what it has watched. The groups that carry that out end what they have reserved.
    pub(crate) fn try_now(&mut self, ticket: u64, now: Instant) {
        let Some(told) = self.told.take() else { return };
        self.attempt = Some(ticket);
        self.took = now.since(told);
        if !self.reserved.is_empty() && self.took > self.bound {
            self.rest(now);
        }
        self.reserved.clear();
    }

    /// It does not try. These groups keep something for it in vain.
    pub(crate) fn abandon(&mut self, now: Instant) -> Vec<GroupId> {
        self.told = None;
        if !self.reserved.is_empty() {
            self.rest(now);
        }
        std::mem::take(&mut self.reserved)
    }

    fn rest(&mut self, now: Instant) {
        self.refused_count = 0;
        self.rests_until = Some(now + limits::RESERVATION_REST);
    }

    /// A transaction has been answered.
    pub(crate) fn note_reply(&mut self, ticket: u64, reply: &[u8]) {
        if self.attempt != Some(ticket) {
            return;
        }
        self.attempt = None;
        if reply.starts_with(b"*-1") || reply.starts_with(b"_") {
            self.refused_count = self.refused_count.saturating_add(1);
        } else if reply.starts_with(b"*") {
            self.refused_count = 0;
        }
    }
}
