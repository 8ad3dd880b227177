//! What a leader does about who takes part in its group: it looks at what is, compares with the roster, and makes one
//! change at a time. Nothing of this is remembered, so a new leader simply goes on.

use std::collections::BTreeSet;

use consensus::{Change, Progress};
use message::roster::Roster;
use stdx::Duration;

use super::Group;
use crate::balance::{self, Spreading, VoteChange};
use crate::defect::Defect;
use crate::group_status::GroupStatuses;
use crate::ids::{NodeId, Now, Room};
use crate::limits;
use crate::output::NodeView;
use crate::output::Output;
use crate::timeline::Kind;

impl Group {
    pub(super) fn reconcile(&mut self, now: Now, output: &mut impl Output) {
        if output.view().is_stopping() {
            return self.leave_office(now, output);
        }
        let roster = &output.view().roster();
        if !self.is_serving || roster.is_empty() || now.instant < self.due.reconcile {
            return;
        }
        self.due.reconcile = now.instant + limits::RECONCILE_INTERVAL;
        let seen = std::mem::replace(&mut self.committed_seen, self.replica.committed_index());
        if self.replica.is_changing() || self.replica.is_handing_over() {
            return;
        }
        let progress = self.replica.progress();
        let replicas = output.view().replica_count();
        let is_moved_away = self.is_moved_away(roster, replicas);
        let group_count = output.view().group_count();
        let group_statuses = &output.view().group_statuses();
        let lost = output.view().lost();
        let wanted = self.wanted_change(roster, group_statuses, replicas, &progress, seen, group_count);
        if let Some(change) = wanted.or_else(|| self.change_of_votes(roster, replicas, &lost, &progress, seen)) {
            if let Change::AddVoter(newcomer) = change {
                let holds_log = |other: &Progress| other.node == newcomer && other.matched > 0;
                assert!(progress.iter().any(holds_log), "node {newcomer} should vote, and has no log that could count");
            }
            // Refused only if leadership is going: the next leader sees to it.
            let _ = self.replica.propose_change(change);
        } else if roster.is_going(self.node) || is_moved_away {
            if let Some(successor) = self.successor(output.view(), &progress, seen) {
                let why = if is_moved_away { "to which the group moves" } else { "as this node leaves" };
                let text = format!("hands over to node {successor}, {why}");
                output.happened(Kind::HandOver, Some(self.id), text);
                self.replica.transfer_leadership(successor);
            }
        } else if let Some((next, why)) = self.successor_in_trouble(output.view(), &progress, seen, now) {
            output.happened(Kind::HandOver, Some(self.id), format!("hands over to node {next}: {why}"));
            self.replica.transfer_leadership(next);
        } else if now.instant.since(self.leadership.since) >= limits::SETTLED_AFTER
            && let Some((faster, own, other)) = self.faster_leader(output.view(), &progress, seen)
        {
            let text = format!(
                "hands over to node {faster}: writes take {} ms on the disk of node {}, and {} ms there",
                own.as_millis(),
                self.node.0,
                other.as_millis()
            );
            output.happened(Kind::HandOver, Some(self.id), text);
            self.replica.transfer_leadership(faster);
        } else if now.instant.since(self.leadership.since) >= limits::SETTLED_AFTER
            && let Some(preferred) = self.preferred_leader(output.view(), &progress, seen, now)
        {
            let why = match roster.preferred(self.id) {
                Some(_) => "which is preferred",
                None if output.view().leader_zones().is_empty() => "so that leaders are spread",
                None => "so that leaders are spread over their zones",
            };
            output.happened(Kind::HandOver, Some(self.id), format!("hands over to node {preferred}, {why}"));
            self.replica.transfer_leadership(preferred);
        }
    }

    /// The node that should lead instead of this one: the one that an operator prefers, or, so that leaders are spread,
    /// each group another voter. None while one of the voters is away or behind.
    fn preferred_leader(&self, context: &impl NodeView, progress: &[Progress], seen: u64, now: Now) -> Option<u64> {
        let roster = &context.roster();
        let is_going = |node: u64| self.is_leaving_here(roster, node);
        let voters: Vec<u64> = self.membership().voters.iter().copied().filter(|voter| !is_going(*voter)).collect();
        let named = roster.preferred(self.id).map(|node| node.0).filter(|node| voters.contains(node));
        let spreading = Spreading {
            roster,
            replicas: context.replica_count(),
            group_count: context.group_count(),
            zones: context.leader_zones(),
        };
        let can_lead = |node: u64| match NodeId(node) == self.node {
            true => *context.room() == Room::Enough,
            false => context.can_lead(NodeId(node)),
        };
        let voters: BTreeSet<u64> = voters.into_iter().collect();
        // Without zones a node that is away is waited for: it returns, and should lead what it led.
        let is_fit = |node: u64| spreading.zones.is_empty() || can_lead(node);
        let preferred = named.or_else(|| spreading.leader_of(self.id, &voters, is_fit))?;
        // A group goes to a preferred zone although a voter is away: leaders should be there.
        let is_better_zone = named.is_none() && spreading.rank(preferred) < spreading.rank(self.node.0);
        let others = progress.iter().filter(|other| other.is_voter && !is_going(other.node));
        let mut awaited = others.filter(|other| !is_better_zone || other.node == preferred);
        let all_well = awaited.all(|other| is_well(other, seen));
        let is_fit = || self.may_lead_again(preferred, now, context) && !self.leader.pace.is_slow(preferred);
        (all_well && preferred != self.node.0 && is_fit()).then_some(preferred)
    }

    /// A voter with a host on which writes are much faster than on this one, if there is one: the fastest, with both
    /// times.
    fn faster_leader(
        &self,
        context: &impl NodeView,
        progress: &[Progress],
        seen: u64,
    ) -> Option<(u64, Duration, Duration)> {
        progress
            .iter()
            .filter(|other| other.is_voter && is_well(other, seen))
            .filter(|other| !self.is_leaving_here(context.roster(), other.node))
            .filter(|other| self.may_lead(other.node, context))
            .filter_map(|other| self.leader.pace.is_slower_than(other.node).map(|(own, its)| (other.node, own, its)))
            .min_by_key(|(_, _, its)| *its)
    }

    /// True while members change, or while a vote of the metadata group changes hands. A voter that leaves the cluster
    /// does not count. It keeps its vote until every group has a leader that says it has let it go, and a group that
    /// has not split off yet has no leader.
    pub(super) fn changes_votes(&self, roster: &Roster, replicas: usize) -> bool {
        let stays = |voter: &&u64| !roster.is_going(NodeId(**voter));
        let is_giving = || self.membership().voters.iter().filter(stays).count() > replicas;
        self.replica.is_changing() || (self.id.0 == 0 && is_giving())
    }

    /// A vote of the metadata group that must change hands: see [`balance::vote_change`].
    fn change_of_votes(
        &self,
        roster: &Roster,
        replicas: usize,
        lost: &BTreeSet<u64>,
        progress: &[Progress],
        seen: u64,
    ) -> Option<Change> {
        if self.id.0 != 0 {
            return None;
        }
        let voters: BTreeSet<u64> = self.membership().voters.iter().copied().collect();
        if voters.iter().any(|voter| roster.is_going(NodeId(*voter))) {
            return None;
        }
        let is_ready = |other: &&Progress| !other.is_voter && is_well(other, seen);
        let ready = progress.iter().filter(is_ready).map(|other| other.node);
        let ready = ready.filter(|node| !roster.is_going(NodeId(*node)) && !lost.contains(node)).collect();
        let is_whole = progress.iter().filter(|other| other.is_voter).all(|other| is_well(other, seen));
        match balance::vote_change(roster, replicas, (self.node.0, &voters), &ready, lost, is_whole)? {
            VoteChange::Give(node) => Some(Change::AddVoter(node)),
            // As a listener it comes back at once.
            VoteChange::Take(node) => self.can_do_without(node, progress).then_some(Change::Remove(node)),
        }
    }

    fn wanted_change(
        &self,
        roster: &Roster,
        group_statuses: &GroupStatuses,
        replicas: usize,
        progress: &[Progress],
        seen: u64,
        group_count: u32,
    ) -> Option<Change> {
        let voters = &self.membership().voters;
        let is_member = |node: &u64| voters.contains(node) || self.membership().learners.contains(node);
        let is_newcomer = |node: &NodeId| !is_member(&node.0) && self.may_come(roster, *node, replicas);
        if let Some(newcomer) = roster.staying().find(is_newcomer) {
            return Some(Change::AddLearner(newcomer.0));
        }
        // The roster is told in group 0. One that was let go there while it was silent, and leads another group by now,
        // would never hear that it must leave.
        let leads = |node: NodeId| self.leads_elsewhere(node, group_statuses);
        let is_lost = |node: &NodeId| roster.is_going(*node) && !is_member(&node.0) && leads(*node);
        if self.id.0 == 0
            && let Some(lost) = roster.present().map(|(node, _)| node).find(is_lost)
        {
            return Some(Change::AddLearner(lost.0));
        }
        let is_going = |node: u64| self.is_leaving_here(roster, node);
        let staying = voters.iter().filter(|voter| !is_going(**voter)).count();
        let is_ready = |other: &&Progress| {
            // It holds what was committed a moment ago: it will not hold up the others.
            !other.is_voter && is_well(other, seen) && !is_going(other.node)
        };
        if staying < replicas
            && let Some(ready) = progress.iter().find(is_ready)
        {
            return Some(Change::AddVoter(ready.node));
        }
        // One that must go and still serves keeps its vote until somebody that is catching up can take it.
        let is_heard = |node: u64| self.last_tick.since(self.last_heard(node)) < limits::MEMBER_SILENCE_MAX;
        let is_awaited =
            |other: &Progress| !other.is_voter && is_heard(other.node) && !is_going(other.node) && staying < replicas;
        // Nor is it let go while the balancer may yet name somebody who takes its place.
        let is_whole = staying >= self.voters_wanted(roster, replicas);
        let awaits_successor = progress.iter().any(is_awaited) || self.is_replaceable(roster, replicas);
        let may_go = |other: &&Progress| {
            let node = NodeId(other.node);
            // Anyone who still takes part in another group must hear of the roster. A leader that has not been told of
            // a group takes it that the node does.
            let mut others = roster.groups(group_count).filter(|group| *group != self.id);
            let is_wanted = self.id.0 == 0
                && (is_heard(node.0) || leads(node))
                && !roster.is_removed(node)
                && others.any(|group| group_statuses.of(group).is_none_or(|told| told.has(node)));
            let votes_on = match roster.is_going(node) {
                true => awaits_successor && is_heard(node.0),
                // Of those who stay in the cluster none is let go before its successors vote.
                false => !is_whole && self.defect != Some(Defect::EarlyRemoval),
            };
            is_going(node.0)
                && !is_wanted
                && (!other.is_voter || !votes_on && self.can_do_without(other.node, progress))
        };
        progress.iter().find(may_go).map(|other| Change::Remove(other.node))
    }

    /// True if a node must have no part in this group: it leaves the cluster, or the group does not live there.
    pub(super) fn is_leaving_here(&self, roster: &Roster, node: u64) -> bool {
        roster.is_going(NodeId(node)) || !roster.is_placed(self.id, NodeId(node))
    }

    /// True if a node that is no member should become one. It must have given up what it had as a member before.
    fn may_come(&self, roster: &Roster, node: NodeId, replicas: usize) -> bool {
        match roster.placement(self.id) {
            Some(nodes) => nodes.contains(&node.0) && self.is_known_vacant(node),
            // With more nodes than that the balancer says where the group lives.
            None => self.id.0 == 0 || !roster.is_balancing() || roster.staying().count() <= replicas,
        }
    }

    /// How many voters the group has when it is where it should be.
    fn voters_wanted(&self, roster: &Roster, replicas: usize) -> usize {
        let wanted = roster.staying().filter(|node| roster.is_placed(self.id, *node)).count();
        wanted.min(replicas).max(1)
    }

    /// True if a node that leaves still counts as one of those who hold the group, and there are others who could.
    fn is_replaceable(&self, roster: &Roster, replicas: usize) -> bool {
        let Some(nodes) = roster.placement(self.id) else { return false };
        let here = roster.staying().filter(|node| nodes.contains(&node.0)).count();
        here < replicas && roster.staying().count() > here || here > self.staying_voters(roster)
    }

    fn staying_voters(&self, roster: &Roster) -> usize {
        self.membership().voters.iter().filter(|voter| !self.is_leaving_here(roster, **voter)).count()
    }

    /// True if the group is to live on other nodes, and these are ready to go on without this one.
    fn is_moved_away(&self, roster: &Roster, replicas: usize) -> bool {
        !roster.is_placed(self.id, self.node) && self.staying_voters(roster) >= self.voters_wanted(roster, replicas)
    }

    /// True if a node has said just now that it leads another group.
    fn leads_elsewhere(&self, node: NodeId, group_statuses: &GroupStatuses) -> bool {
        group_statuses.iter().any(|(told, heard)| {
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

    /// A voter that could lead as well as this node, or nearly so. One that has not said anything of itself may not
    /// know yet who belongs to the cluster, and could finish nothing of what this leader has begun: it leads only if
    /// this process stops, when anybody is better than nobody.
    pub(super) fn successor(&self, context: &impl NodeView, progress: &[Progress], seen: u64) -> Option<u64> {
        let is_going = |node: u64| self.is_leaving_here(context.roster(), node);
        let knows = |node: u64| context.is_stopping() || context.hears(NodeId(node));
        let could =
            |other: &&Progress| other.is_voter && is_well(other, seen) && !is_going(other.node) && knows(other.node);
        let fit = |other: &&Progress| (self.may_lead(other.node, context), !self.leader.pace.is_slow(other.node));
        progress.iter().filter(could).max_by_key(fit).map(|other| other.node)
    }
}

/// It is heard, and holds what was committed a moment ago. Whether entries are streamed to it says nothing: without
/// writes nothing is.
pub(super) fn is_well(member: &Progress, seen: u64) -> bool {
    member.is_active && !member.is_restoring && member.matched >= seen
}
