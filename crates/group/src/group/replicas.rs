//! What others hold of the log, for WAIT, and whether enough of them are there to write at all.

use keyspace::Body;
use message::entry;
use resp::Protocol;
use stdx::leb128;

use super::{Group, Held, Observed, Proof, Waiter};
use crate::output::{NodeView, Output};
use crate::refusals::{NO_REPLICAS, READ_ONLY};
use crate::requests::PrepareAnswer;
use crate::requests::{COPIES_APPLIED, COPIES_LOGGED, Origin, Request, RequestBody};

impl Group {
    /// How many other nodes hold the log up to a place, or to one of [`COPIES_APPLIED`] and [`COPIES_LOGGED`], and
    /// which voters do not. An entry that is logged at the level `disk` is held by those that have it there.
    pub(super) fn tell_copy_count(&self, place: u64, origin: &Origin, output: &mut impl Output) {
        let place = match place {
            COPIES_APPLIED => self.applied(),
            COPIES_LOGGED => self.replica.last_index(),
            place => place,
        };
        let count = self.replica.progress().iter().filter(|other| other.matched >= place).count();
        let mut answer = Vec::new();
        leb128::put(&mut answer, place);
        leb128::put(&mut answer, count as u64);
        let lacking = self.replica.voters_without(place);
        leb128::put(&mut answer, lacking.len() as u64);
        lacking.iter().for_each(|node| leb128::put(&mut answer, *node));
        output.answer(origin, Observed::of_state(), answer);
    }

    /// True if fewer other nodes are heard than `min-replicas-to-write` asks for.
    pub fn lacks_replicas(&self, view: &impl NodeView) -> bool {
        if view.replicas_to_write() == 0 {
            return false;
        }
        let is_heard = |other: &u64| self.last_tick.since(self.last_heard(*other)) <= view.replica_lag_max();
        let members = self.membership().voters.iter().chain(&self.membership().learners);
        let heard = members.filter(|other| **other != self.node.0 && is_heard(other)).count();
        (heard as u64) < view.replicas_to_write()
    }

    /// Refuses a request that changes data while too few others are heard. True if it has.
    pub(super) fn refuses_alone(&mut self, request: &Request, output: &mut impl Output) -> bool {
        if !self.lacks_replicas(output.view()) || !self.is_change(request) {
            return false;
        }
        // One that has come again may be on its way through the log: it will be done, and must not be called refused.
        if self.is_under_way(&request.origin) {
            return false;
        }
        match request.body {
            RequestBody::Prepare { .. } => {
                output.answer(&request.origin, Proof::Refused, PrepareAnswer::LacksReplicas.put());
            }
            _ => output.refuse(&request.origin, request.protocol, NO_REPLICAS),
        }
        true
    }

    /// Refuses a request that changes data while this node follows a Redis, unless it comes from there. True if it has.
    /// Gateways refuse such requests as well; this is for those that they had let pass before, and that have waited for
    /// a lock, a turn, or another core since.
    pub(super) fn refuses_beside_source(&mut self, request: &Request, output: &mut impl Output) -> bool {
        if !output.view().follows_source() || request.origin.writes_for_source || !self.is_change(request) {
            return false;
        }
        // One that has come again may be on its way through the log: see `refuses_alone`.
        if self.is_under_way(&request.origin) {
            return false;
        }
        match request.body {
            RequestBody::Prepare { .. } => {
                output.answer(&request.origin, Proof::Refused, PrepareAnswer::ReadOnly.put());
            }
            _ => output.refuse(&request.origin, request.protocol, READ_ONLY),
        }
        true
    }

    pub(super) fn is_under_way(&self, origin: &Origin) -> bool {
        let is_it = |waiter: &Waiter| match waiter {
            Waiter::Write(other) | Waiter::Step(other) | Waiter::Script(other, _) | Waiter::Told(other, _) => {
                origin.claim.is_some() && (other.claim, other.gateway()) == (origin.claim, origin.gateway())
            }
            Waiter::Read(_) | Waiter::Fetch(..) | Waiter::Silent | Waiter::Eviction(..) => false,
        };
        // One that waits for locked keys is carried out when they are free.
        let is_held = |held: &Held| match held {
            Held::Request(Request { origin: other, .. }) => {
                origin.claim.is_some() && (other.claim, other.gateway()) == (origin.claim, origin.gateway())
            }
            Held::Lock(..) => false,
        };
        let under_way = self.window.inflight.iter().flat_map(|batch| &batch.waiters);
        under_way.chain(&self.leader.waiters).any(is_it) || self.leader.held.iter().any(is_held)
    }

    pub(super) fn is_change(&mut self, request: &Request) -> bool {
        let mut spans = Vec::new();
        let changes = |args: resp::Args<'_>| {
            keyspace::resolve(args).is_some_and(|command| matches!(command.body, Body::Mutate(_)))
        };
        match &request.body {
            // A read may have been given a place in the log.
            RequestBody::Write(words) => changes(entry::Reader::new(words).words(&mut spans).1),
            RequestBody::Exec(packed) => {
                let exec = entry::Reader::new(packed).exec(Protocol::Resp2, &mut spans);
                let mut any = false;
                exec.for_each(&mut spans, |_, args| any |= changes(args));
                any
            }
            // A script is refused where it writes: see `Core::run_here`.
            RequestBody::Libraries(_) => true,
            // Without participants it only asks whether locks are held.
            RequestBody::Prepare { participants, .. } => !participants.is_empty(),
            _ => false,
        }
    }
}
