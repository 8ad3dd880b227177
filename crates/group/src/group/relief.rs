//! When a leader should not lead: its disk takes nothing, or it reaches fewer nodes than another voter does. Then it
//! hands over, at once, and does not wait to be told apart from others by how fast it is.
//!
//! The next leader is asked the same questions, so leadership could go round in circles. It does not: it goes only to
//! voters that have said that they are better off, and the spreading of leaders waits until a node has been well for
//! a while (see [`Group::may_lead_again`]).

use std::collections::BTreeMap;

use consensus::Progress;
use stdx::Instant;

use super::members::is_well;
use super::{Group, Proof, fail};
use crate::ids::{NodeId, Now, Room};
use crate::output::NodeView;
use crate::output::Output;
use crate::refusals::no_room;
use crate::requests::PrepareAnswer;
use crate::requests::{Origin, Request, RequestBody};
use crate::{hosts, limits};

/// What a leader remembers of its own troubles.
#[derive(Debug, Default)]
pub(super) struct Relief {
    /// Since when its disk has had no room.
    short_since: Option<Instant>,
    /// Since when another voter has reached more nodes.
    apart_since: Option<Instant>,
    /// When voters were asked to lead instead.
    asked: BTreeMap<u64, Instant>,
    /// What had been applied when that last grew, or when nothing was under way; and when that was.
    applied: (u64, Instant),
}

impl Group {
    /// The disk has room, or no longer has: the leader does not wait until it would look at that by itself.
    pub fn hear_of_room(&mut self) {
        self.due.reconcile = Instant::ZERO;
    }

    /// Notes at every tick whether this leader gets anywhere. One that waits for its disk alone looks at once who could
    /// lead instead.
    pub(super) fn watch_troubles(&mut self, now: Now, room: &Room) {
        let applied = self.applied();
        let relief = &mut self.leader.relief;
        if self.window.inflight.is_empty() || applied > relief.applied.0 || relief.applied.1 == Instant::ZERO {
            relief.applied = (applied, now.instant);
        }
        relief.note_room(now.instant, room);
        if self.lag(self.replica.persisted_index()) >= limits::BLOCKED_DISK {
            // All clients of the group wait meanwhile, and each write of a transaction may find the disk so.
            self.due.reconcile = Instant::ZERO;
        }
    }

    /// True if this leader has applied nothing for a while although something is under way: whether that will ever be
    /// carried out here is not known.
    pub(super) fn is_stuck(&self) -> bool {
        let since = self.leader.relief.applied.1;
        let byte_count = self.window.inflight.iter().map(|batch| batch.data.len()).sum();
        since > Instant::ZERO && self.last_tick.since(since) >= limits::STUCK_AFTER + limits::patience_for(byte_count)
    }

    /// True if another node may lead without a loss for anybody: it has room on its disk, and reaches as many nodes.
    pub(super) fn may_lead(&self, node: u64, context: &impl NodeView) -> bool {
        let (own, node) = (self.node, NodeId(node));
        let neighbours = context;
        neighbours.can_lead(node) && neighbours.reach(own, node).len() >= neighbours.reach(own, own).len()
    }

    /// The same, and it has been so for a while.
    pub(super) fn may_lead_again(&self, node: u64, now: Now, context: &impl NodeView) -> bool {
        let then = Instant::ZERO + now.instant.since(Instant::ZERO + limits::SETTLED_AFTER);
        self.may_lead(node, context)
            && context.is_steady_since(NodeId(node), then)
            && context.stalled_ms(NodeId(node)).is_some_and(hosts::is_innocent)
    }

    /// The node that should lead at once instead of this one, and why.
    pub(super) fn successor_in_trouble(
        &mut self,
        context: &impl NodeView,
        progress: &[Progress],
        seen: u64,
        now: Now,
    ) -> Option<(u64, String)> {
        let own = self.node;
        let neighbours = context;
        self.leader.relief.asked.retain(|_, asked| now.instant.since(*asked) < limits::HAND_OVER_REST);
        let is_willing = |other: &&Progress| {
            other.is_voter
                && is_well(other, seen)
                && !self.is_leaving_here(context.roster(), other.node)
                && neighbours.can_lead(NodeId(other.node))
                && !self.leader.relief.asked.contains_key(&other.node)
        };
        let reached = |node: u64| neighbours.reach(own, NodeId(node)).len();
        let best = |candidates: &mut dyn Iterator<Item = &Progress>| {
            let key = |other: &&Progress| (reached(other.node), !self.leader.pace.is_slow(other.node), other.matched);
            candidates.max_by_key(key).map(|other| other.node)
        };
        let own_reach = neighbours.reach(own, own);
        let further =
            best(&mut progress.iter().filter(is_willing).filter(|other| reached(other.node) > own_reach.len()));
        // Whether one of them could take over at this very look is another question, and may change with each.
        let is_apart = progress.iter().any(|other| other.is_voter && reached(other.node) > own_reach.len());
        let apart_since = is_apart.then(|| self.leader.relief.apart_since.unwrap_or(now.instant));
        let lag = self.lag(self.replica.persisted_index());
        // It holds what this node's disk has not taken, and has not lacked anything for nearly as long.
        let is_ahead =
            |other: &&Progress| other.matched > self.replica.persisted_index() && self.lag(other.matched) * 2 <= lag;
        // Of two that reach as many, the one with the better host is asked.
        let is_on_a_better_host = |other: &&Progress| {
            let its = neighbours.stalled_ms(NodeId(other.node));
            its.is_some_and(|its| hosts::outweighs(context.stalled_ms_here(), its))
                && reached(other.node) >= own_reach.len()
        };
        let found = if let Room::None(reason) = &context.room() {
            let next = best(&mut progress.iter().filter(is_willing));
            next.map(|next| (next, format!("the disk of node {} has no room: {reason}", own.0)))
        } else if lag >= limits::BLOCKED_DISK {
            let next = best(&mut progress.iter().filter(is_willing).filter(is_ahead));
            next.map(|next| (next, format!("the disk of node {} has taken nothing for {} ms", own.0, lag.as_millis())))
        } else if let Some(next) = best(&mut progress.iter().filter(is_willing).filter(is_on_a_better_host)) {
            Some((next, context.stalls_here()))
        } else {
            let is_due = |since: Instant| now.instant.since(since) >= limits::REACH_PATIENCE;
            further.filter(|_| apart_since.is_some_and(is_due)).map(|next| {
                let reached = neighbours.reach(own, NodeId(next));
                let missed: Vec<_> = reached.difference(&own_reach).map(|node| node.0.to_string()).collect();
                let missed = missed.join(", ");
                (next, format!("node {} does not reach node {missed}, and node {next} does", own.0))
            })
        };
        self.leader.relief.apart_since = apart_since;
        if let Some((next, _)) = &found {
            self.leader.relief.asked.insert(*next, now.instant);
        }
        found
    }

    /// True if this replica leads, and somebody is there who could.
    pub fn can_hand_over(&self) -> bool {
        self.is_leader() && self.replica.progress().iter().any(|other| other.is_voter && other.is_active)
    }

    /// The process is about to stop: one voter after the other is asked to lead, until one does.
    pub(super) fn leave_office(&mut self, now: Now, output: &mut impl Output) {
        if !self.is_serving || self.replica.is_changing() || self.replica.is_handing_over() {
            return;
        }
        let mut progress = self.replica.progress();
        progress.retain(|other| !self.leader.relief.asked.contains_key(&other.node));
        let Some(next) = self.successor(output.view(), &progress, self.committed_seen) else { return };
        self.leader.relief.asked.insert(next, now.instant);
        let text = format!("hands over to node {next}, as this process stops");
        output.happened(crate::timeline::Kind::HandOver, Some(self.id), text);
        self.replica.transfer_leadership(next);
    }

    /// True while another voter may be expected to lead soon, since this node's disk has no room and its has.
    pub(crate) fn awaits_relief(&mut self, now: Now, context: &impl NodeView) -> bool {
        self.leader.relief.note_room(now.instant, context.room());
        let Some(since) = self.leader.relief.short_since else { return false };
        let can_lead = |voter: &u64| context.can_lead(NodeId(*voter));
        now.instant.since(since) < limits::RELIEF_MAX
            && self.membership().voters.iter().any(|voter| *voter != self.node.0 && can_lead(voter))
            && !context.roster().is_empty()
    }

    /// Lets a gateway ask the next leader.
    pub(crate) fn leave_to_next(&mut self, origin: &Origin, protocol: resp::Protocol, output: &mut impl Output) {
        self.lose_place(origin);
        fail(origin, protocol, super::LEADER_LOST, output);
    }

    /// Refuses a request that changes data while this node's disk has no room, or lets the next leader carry it out.
    /// True if it has. Many of them come from other nodes, which know nothing of this disk: what is kept free on it is
    /// for what was admitted before, and for elections.
    pub(super) fn refuses_without_room(&mut self, request: &Request, now: Now, output: &mut impl Output) -> bool {
        let Room::None(reason) = &output.view().room() else { return false };
        if !self.is_change(request) || self.is_under_way(&request.origin) {
            return false;
        }
        let text = no_room(self.node, reason);
        let awaits = self.awaits_relief(now, output.view());
        match request.body {
            RequestBody::Prepare { .. } if awaits => {
                output.answer(&request.origin, Proof::Refused, PrepareAnswer::Refused.put());
            }
            RequestBody::Prepare { .. } => {
                output.answer(&request.origin, Proof::Refused, PrepareAnswer::NoRoom.put());
            }
            _ if awaits => self.leave_to_next(&request.origin, request.protocol, output),
            _ => output.refuse(&request.origin, request.protocol, &text),
        }
        true
    }

    /// The same for a script that came with a number: what becomes of it is logged even if it changes nothing.
    pub fn refuses_script_without_room(&mut self, request: &Request, now: Now, output: &mut impl Output) -> bool {
        let Room::None(reason) = &output.view().room() else { return false };
        let RequestBody::Script(script) = &request.body else { return false };
        if request.origin.claim.is_none() || self.is_under_way(&request.origin) {
            return false; // what comes without a number is refused where it writes
        }
        let text = no_room(self.node, reason);
        if self.awaits_relief(now, output.view()) {
            self.leave_to_next(&request.origin, request.protocol, output);
        } else if script.invocation.is_read_only {
            return false;
        } else {
            output.refuse(&request.origin, request.protocol, &text);
        }
        true
    }
}

impl Relief {
    fn note_room(&mut self, now: Instant, room: &Room) {
        self.short_since = match room {
            Room::Enough => None,
            Room::None(_) => Some(self.short_since.unwrap_or(now)),
        };
    }
}
