//! What a leader does about who takes part in its group: it looks at what is, compares with the roster, and makes one
//! change at a time. Nothing of this is remembered, so a new leader simply goes on.

use consensus::{Change, Progress};
use stdx::Duration;

use super::Group;
use crate::bulletin::Bulletins;
use crate::core::Context;
use crate::event::{GroupId, NodeId, Now};
use crate::limits;
use crate::outlet::Outlet;
use crate::roster::Roster;
use crate::timeline::Kind;

impl Group {
    pub(super) fn reconcile(&mut self, now: Now, outlet: &mut Outlet<'_>) {
        if outlet.context.is_stopping {
            return self.leave_office(now, outlet);
        }
        let roster = &outlet.context.roster;
        if !self.is_serving || roster.is_empty() || now.instant < self.reconcile_at {
            return;
        }
        self.reconcile_at = now.instant + limits::RECONCILE_INTERVAL;
        let seen = std::mem::replace(&mut self.committed_seen, self.replica.committed_index());
        if self.replica.is_changing() || self.replica.is_handing_over() {
            return;
        }
        let progress = self.replica.progress();
        let replicas = outlet.context.settings.replica_count;
        if let Some(change) = self.wanted_change(roster, &outlet.context.bulletins, replicas, &progress, seen) {
            // Refused only if leadership is going: the next leader sees to it.
            let _ = self.replica.propose_change(change);
        } else if roster.is_going(self.node) {
            if let Some(successor) = self.successor(outlet.context, &progress, seen) {
                let text = format!("hands over to node {successor}, as this node leaves");
                outlet.happened(Kind::HandOver, Some(self.id), text);
                self.replica.transfer_leadership(successor);
            }
        } else if let Some((next, why)) = self.successor_in_trouble(outlet.context, &progress, seen, now) {
            outlet.happened(Kind::HandOver, Some(self.id), format!("hands over to node {next}: {why}"));
            self.replica.transfer_leadership(next);
        } else if now.instant.since(self.serving_since) >= limits::SETTLED_AFTER
            && let Some((faster, own, other)) = self.faster_leader(outlet.context, &progress, seen)
        {
            let text = format!(
                "hands over to node {faster}: writes take {} ms on the disk of node {}, and {} ms there",
                own.as_millis(),
                self.node.0,
                other.as_millis()
            );
            outlet.happened(Kind::HandOver, Some(self.id), text);
            self.replica.transfer_leadership(faster);
        } else if now.instant.since(self.serving_since) >= limits::SETTLED_AFTER
            && let Some(preferred) = self.preferred_leader(outlet.context, &progress, seen, now)
        {
            let why = match roster.preferred(self.id) {
                Some(_) => "which is preferred",
                None => "so that leaders are spread",
            };
            outlet.happened(Kind::HandOver, Some(self.id), format!("hands over to node {preferred}, {why}"));
            self.replica.transfer_leadership(preferred);
        }
    }

    /// Who should lead instead of this node: whom an operator prefers, or so that leaders are spread, each group
    /// another voter. Nobody while one of the voters is away or behind.
    fn preferred_leader(&self, context: &Context, progress: &[Progress], seen: u64, now: Now) -> Option<u64> {
        let roster = &context.roster;
        let is_going = |node: u64| roster.is_going(NodeId(node));
        let voters: Vec<u64> = self.membership().voters.iter().copied().filter(|voter| !is_going(*voter)).collect();
        let named = roster.preferred(self.id).map(|node| node.0).filter(|node| voters.contains(node));
        let by_turns = || voters.get(self.id.0 as usize % voters.len().max(1)).copied();
        let preferred = named.or_else(by_turns)?;
        let all_well =
            progress.iter().filter(|other| other.is_voter && !is_going(other.node)).all(|other| is_well(other, seen));
        let is_fit = || self.may_lead_again(preferred, now, context) && !self.leader.pace.is_slow(preferred);
        (all_well && preferred != self.node.0 && is_fit()).then_some(preferred)
    }

    /// A voter on whose host writes are much faster than on this one, if there is one: the fastest, with both times.
    fn faster_leader(&self, context: &Context, progress: &[Progress], seen: u64) -> Option<(u64, Duration, Duration)> {
        progress
            .iter()
            .filter(|other| other.is_voter && is_well(other, seen) && !context.roster.is_going(NodeId(other.node)))
            .filter(|other| self.may_lead(other.node, context))
            .filter_map(|other| self.leader.pace.is_slower_than(other.node).map(|(own, its)| (other.node, own, its)))
            .min_by_key(|(_, _, its)| *its)
    }

    fn wanted_change(
        &self,
        roster: &Roster,
        bulletins: &Bulletins,
        replicas: usize,
        progress: &[Progress],
        seen: u64,
    ) -> Option<Change> {
        let voters = &self.membership().voters;
        let is_member = |node: &u64| voters.contains(node) || self.membership().learners.contains(node);
        if let Some(newcomer) = roster.staying().find(|node| !is_member(&node.0)) {
            return Some(Change::AddLearner(newcomer.0));
        }
        // The roster is told in group 0. One that was let go there while it was silent, and leads another group by now,
        // would never hear that it is to leave.
        let leads = |node: NodeId| self.leads_elsewhere(node, bulletins);
        let is_lost = |node: &NodeId| roster.is_going(*node) && !is_member(&node.0) && leads(*node);
        if self.id.0 == 0
            && let Some(lost) = roster.present().map(|(node, _)| node).find(is_lost)
        {
            return Some(Change::AddLearner(lost.0));
        }
        let staying = voters.iter().filter(|voter| !roster.is_going(NodeId(**voter))).count();
        let is_ready = |other: &&Progress| {
            // It holds what was committed a moment ago: it will not hold up the others.
            !other.is_voter && is_well(other, seen) && !roster.is_going(NodeId(other.node))
        };
        if staying < replicas
            && let Some(ready) = progress.iter().find(is_ready)
        {
            return Some(Change::AddVoter(ready.node));
        }
        // One who is to go and still serves keeps its vote until somebody who is catching up can take it.
        let is_heard = |node: u64| self.last_tick.since(self.last_heard(node)) < limits::MEMBER_SILENCE_MAX;
        let is_awaited = |other: &Progress| {
            !other.is_voter && is_heard(other.node) && !roster.is_going(NodeId(other.node)) && staying < replicas
        };
        let awaits_successor = progress.iter().any(is_awaited);
        let may_go = |other: &&Progress| {
            let node = NodeId(other.node);
            // Whoever still takes part in another group must hear of the roster. A leader that has not been told of a
            // group takes it that the node does.
            let mut others = (0..self.state.slots().group_count()).map(GroupId).filter(|group| *group != self.id);
            let is_wanted = self.id.0 == 0
                && (is_heard(node.0) || leads(node))
                && !roster.is_removed(node)
                && others.any(|group| bulletins.of(group).is_none_or(|told| told.has(node)));
            let votes_on = awaits_successor && is_heard(node.0);
            roster.is_going(node)
                && !is_wanted
                && (!other.is_voter || !votes_on && self.can_do_without(other.node, progress))
        };
        progress.iter().find(may_go).map(|other| Change::Remove(other.node))
    }

    /// True if a node has said just now that it leads another group.
    fn leads_elsewhere(&self, node: NodeId, bulletins: &Bulletins) -> bool {
        bulletins.iter().any(|(told, heard)| {
            let is_recent = self.last_tick.since(heard) < limits::MEMBER_SILENCE_MAX;
            told.group != self.id && told.leader == node && is_recent
        })
    }

    /// True if those who are left make a quorum of their own without this voter.
    fn can_do_without(&self, node: u64, progress: &[Progress]) -> bool {
        let left = self.membership().voters.iter().filter(|voter| **voter != node).count();
        let active =
            1 + progress.iter().filter(|other| other.is_voter && other.node != node && other.is_active).count();
        2 * active > left
    }

    /// A voter that could lead as well as this node, or nearly so.
    pub(super) fn successor(&self, context: &Context, progress: &[Progress], seen: u64) -> Option<u64> {
        let could =
            |other: &&Progress| other.is_voter && is_well(other, seen) && !context.roster.is_going(NodeId(other.node));
        let fit = |other: &&Progress| (self.may_lead(other.node, context), !self.leader.pace.is_slow(other.node));
        progress.iter().filter(could).max_by_key(fit).map(|other| other.node)
    }
}

/// It is heard, and holds what was committed a moment ago. Whether entries are streamed to it says nothing: without
/// writes nothing is.
pub(super) fn is_well(member: &Progress, seen: u64) -> bool {
    member.is_active && !member.is_restoring && member.matched >= seen
}
