//! Other nodes: where they are found, who joins, and what the roster says.

use group::ids::{CoreId, GroupId, Lane, Level, NodeId};
use group::{Group, Standing};
use std::collections::BTreeSet;
use std::sync::Arc;
use stdx::Instant;

use super::{Core, EXPELLED};
use crate::core_messages::CoreMessage;
use crate::event::Action;
use crate::roster::Member;
use crate::{libraries, limits, parameters, wire};

impl Core {
    /// From now on requests go where their group is led.
    pub(super) fn become_clustered(&mut self) {
        if std::mem::replace(&mut self.context.is_clustered, true) {
            return;
        }
        Arc::make_mut(&mut self.context.settings).adopt("cluster-enabled", "yes").expect("a parameter of ours");
        for (group, route) in (0..).map(GroupId).zip(&self.context.routes) {
            self.relay.set_route(group, *route, self.now.instant);
        }
    }

    /// The cluster does without this node from now on: it serves no data, and takes no part in elections.
    pub(super) fn be_expelled(&mut self, actions: &mut Vec<Action>) {
        if !std::mem::replace(&mut self.context.is_expelled, true) && self.context.core.0 == 0 {
            let line = EXPELLED.to_owned();
            actions.push(Action::Log { level: Level::Warning, line });
        }
    }

    /// A node has told where it is found. It is entered by the leader of group 0.
    pub(super) fn hear_announcement(&mut self, from: NodeId, node: NodeId, member: &Member, actions: &mut Vec<Action>) {
        let own = self.context.own_as_announced();
        let (own_node, is_alone, is_first_hand) = (self.context.node, self.context.roster.is_empty(), from == node);
        // A node that this one has heard of speaks for itself. Others may wish to be taken in by this one.
        if own_node != node && is_alone {
            let serves = self.group_mut(GroupId(0)).is_none_or(|group| group.standing() == Standing::Serving);
            if !is_first_hand || !serves && self.meeting.acquaintances.knows(node) {
                if !serves {
                    self.get_acquainted(from, node, member, actions);
                }
                return;
            }
        }
        let known = self.context.roster.get(node);
        if known.is_some_and(|known| known.is_found_as(member) || known.is_removed) {
            if is_first_hand {
                // It may have been elsewhere meanwhile.
                if self.meeting.found.remove(&node).is_some() {
                    self.meet_all(actions);
                }
                self.introduce_all_to(node, actions);
            }
            return;
        }
        // A node that is heard says itself where it is found.
        let is_heard = node == own_node || self.context.neighbours.hears(node);
        if known.is_some() && !is_first_hand {
            // It is heard, and may not be reached.
            self.take_hint(from, node, member.cluster_address.clone(), actions);
            if is_heard {
                return;
            }
        }
        let Some(group) = self.group_mut(GroupId(0)) else { return };
        match group.standing() {
            Standing::Serving => {
                if is_alone && node != own_node {
                    group.enlist(own_node, &own);
                }
                group.enlist(node, member);
            }
            Standing::Follower(leader) if is_first_hand => {
                let bytes = wire::encode_announce(node, member);
                actions.push(Action::Send { to: leader, group: GroupId(0), lane: Lane::Log, bytes });
            }
            _ => {}
        }
        if is_first_hand {
            self.call_elsewhere(node, member, actions);
        }
    }

    /// The operator has shown where a node is. It is looked for there, too; until this node knows its cluster, in the
    /// first place.
    pub(super) fn find(&mut self, node: NodeId, address: String, actions: &mut Vec<Action>) {
        if self.context.roster.is_empty() && node != self.context.node {
            let member = Member { cluster_address: address.clone(), ..Member::default() };
            if self.meeting.acquaintances.name(node, &member, self.now.instant) {
                actions.push(Action::Peers(self.meeting.acquaintances.places()));
            }
        }
        let is_news = self.context.roster.get(node).is_some_and(|known| known.cluster_address != address);
        self.take_hint(self.context.node, node, address, actions);
        if is_news {
            // It may not know where this node is, nor how to answer one who leads and is heard.
            self.introduce_all_to(node, actions);
        }
    }

    /// Somebody says that a node may be there, who need not know.
    fn take_hint(&mut self, from: NodeId, node: NodeId, address: String, actions: &mut Vec<Action>) {
        if node != self.context.node && self.meeting.hints.hear(from, node, address, self.now.instant) {
            self.meeting.hints.compare(&self.context.roster);
            actions.push(Action::AlsoAt(self.meeting.hints.places()));
        }
    }

    /// A node says itself that it is found elsewhere than the roster says. That may be as it was told by somebody else,
    /// and put right only by a leader who may need this node's vote to be one: so it is called there from now on, until
    /// the roster says something new of it.
    pub(super) fn call_elsewhere(&mut self, node: NodeId, member: &Member, actions: &mut Vec<Action>) {
        let Some(known) = self.context.roster.get(node) else { return };
        let found = (known.cluster_address.clone(), Member { zone: known.zone.clone(), ..member.clone() });
        if known.cluster_address != member.cluster_address && self.meeting.found.get(&node) != Some(&found) {
            self.meeting.found.insert(node, found);
            self.meet_all(actions);
        }
    }

    /// The host is told where the nodes are found.
    pub(super) fn meet_all(&mut self, actions: &mut Vec<Action>) {
        let roster = Arc::clone(&self.context.roster);
        self.meeting.found.retain(|node, (known, _)| {
            roster.get(*node).is_some_and(|member| member.cluster_address == *known && !member.is_removed)
        });
        let place = |(node, member): (NodeId, &Member)| {
            (node, self.meeting.found.get(&node).map_or(member, |(_, member)| member).clone())
        };
        actions.push(Action::Peers(roster.all().map(place).collect()));
        self.meeting.hints.compare(&roster);
        actions.push(Action::AlsoAt(self.meeting.hints.places()));
    }

    /// A node does not know yet that it is known: it may not have been able to hear so, because it had nobody to talk
    /// to. What this node says of itself is the same word to that node, which may answer in the same way, and so on. So
    /// it is told once in [`limits::ANNOUNCE_INTERVAL`], and not where this node is if it speaks to this node anyway.
    pub(super) fn introduce_all_to(&mut self, node: NodeId, actions: &mut Vec<Action>) {
        let (own, now) = (self.context.node, self.now.instant);
        let is_told = |last: &Instant| now.since(*last) < limits::ANNOUNCE_INTERVAL;
        if self.meeting.introduced.get(&node).is_some_and(is_told) {
            return;
        }
        self.meeting.introduced.insert(node, now);
        let is_found = self.context.neighbours.hears(node);
        let is_news = |other: NodeId| other != node && !(is_found && other == own);
        for (other, member) in self.context.roster.present().filter(|(other, _)| is_news(*other)) {
            if other == own {
                // The roster here may say where this node was before.
                self.announce_to(node, actions);
                continue;
            }
            let bytes = wire::encode_announce(other, member);
            actions.push(Action::Send { to: node, group: GroupId(0), lane: Lane::Log, bytes });
        }
    }

    /// A node that joins hears of another one, which it can talk to from now on.
    pub(super) fn get_acquainted(&mut self, from: NodeId, node: NodeId, member: &Member, actions: &mut Vec<Action>) {
        let (is_forsaken, now) = (self.is_forsaken(), self.now.instant);
        if self.meeting.acquaintances.hear(from, (node, member), is_forsaken, now) {
            // A node that is not among them is linked no longer. The one that this node asked to join is among them
            // from the start.
            actions.push(Action::Peers(self.meeting.acquaintances.places()));
        }
    }

    /// The core of group 0 sees to it that the cluster knows where this node is found, and that this node knows the
    /// cluster.
    pub(super) fn keep_roster(&mut self, actions: &mut Vec<Action>) {
        let libraries = self.group_mut(GroupId(libraries::HOME)).and_then(Group::take_libraries);
        if let Some(libraries) = libraries {
            let first = self.context.core;
            self.outbox.push(first, first, CoreMessage::Libraries { libraries, first, reply: None });
        }
        let parameters = self.group_mut(GroupId(parameters::HOME)).and_then(Group::take_parameters);
        if let Some(parameters) = parameters {
            for core in (0..self.context.core_count).map(CoreId) {
                self.outbox.push(self.context.core, core, CoreMessage::Parameters(Arc::clone(&parameters)));
            }
        }
        if let Some(level) = self.group_mut(group::levels::HOME).and_then(Group::take_level) {
            // The roster below is looked at with it.
            self.context.levels.in_force = self.context.levels.in_force.max(level);
            for core in (0..self.context.core_count).map(CoreId) {
                self.outbox.push(self.context.core, core, CoreMessage::Level(level));
            }
        }
        let news = self.group_mut(GroupId(0)).and_then(Group::take_roster);
        if let Some(roster) = news {
            let roster = Arc::new(roster);
            for core in (0..self.context.core_count).map(CoreId) {
                self.outbox.push(self.context.core, core, CoreMessage::Roster(Arc::clone(&roster)));
            }
            self.context.take_roster(roster);
            self.meet_all(actions);
        }
        if self.now.instant < self.meeting.announce_at {
            return;
        }
        self.meeting.announce_at = self.now.instant + limits::ANNOUNCE_INTERVAL;
        let neighbours = &self.context.neighbours;
        if self.context.roster.is_empty()
            && self.meeting.acquaintances.look(self.now.instant, |node| neighbours.hears(node))
        {
            actions.push(Action::Peers(self.meeting.acquaintances.places()));
        }
        let (node, own) = (self.context.node, self.context.own_as_announced());
        let roster = Arc::clone(&self.context.roster);
        let is_known = roster.get(node).is_some_and(|known| known.is_found_as(&own) || known.is_removed);
        let is_by_itself = roster.is_empty() && !self.meeting.acquaintances.has_named();
        let is_expelled = self.context.is_expelled;
        let Some(group) = self.group_mut(GroupId(0)) else { return };
        if group.standing() == Standing::Serving {
            let now = self.now;
            self.with_group(GroupId(0), actions, |group, output| {
                group.finish_removals(&output.context.group_statuses, output.context.group_count, now);
                group.take_balancing_step(now, output);
            });
        }
        let Some(group) = self.group_mut(GroupId(0)) else { return };
        let standing = group.standing();
        // The leader may look for it elsewhere: somebody may have told it so while this node was not heard. Then what
        // the others know is not what this node knows, and it does not hear that either. A learner does not forget a
        // leader that has fallen silent.
        let hears_leader = match standing {
            Standing::Serving | Standing::Loading => true,
            Standing::Follower(leader) => self.context.neighbours.hears(leader),
            Standing::Leaderless => false,
        };
        self.meeting.leaderless_since =
            if hears_leader { None } else { self.meeting.leaderless_since.or(Some(self.now.instant)) };
        let is_forsaken = self.is_forsaken();
        if is_known && !is_forsaken || is_by_itself || is_expelled {
            return;
        }
        if is_forsaken {
            // All who are there are told, by all who are.
            self.meeting.announce_at = self.now.instant + limits::FORSAKEN_INTERVAL;
        }
        match standing {
            Standing::Serving => {
                if let Some(group) = self.group_mut(GroupId(0)) {
                    group.enlist(node, &own);
                }
            }
            Standing::Follower(leader) if !is_forsaken => {
                self.announce_to(leader, actions);
                // There may be no link to it yet; those who are linked say where it is.
                let others = match roster.is_empty() {
                    true => self.meeting.acquaintances.nodes(),
                    false => roster.present().map(|(other, _)| other).filter(|other| *other != node).collect(),
                };
                others.into_iter().filter(|other| *other != leader).for_each(|other| self.announce_to(other, actions));
            }
            Standing::Loading => {}
            Standing::Follower(_) | Standing::Leaderless => {
                let known = roster.present().map(|(other, _)| other).filter(|other| *other != node);
                let heard_of = self.meeting.acquaintances.named();
                let heard_of = if roster.is_empty() { self.meeting.acquaintances.nodes() } else { heard_of };
                for other in known.chain(heard_of).collect::<BTreeSet<_>>() {
                    self.announce_to(other, actions);
                    if is_forsaken {
                        self.pass_on_to(other, actions);
                    }
                }
            }
        }
    }

    /// True if this node has heard no leader of the metadata for a while.
    pub(super) fn is_forsaken(&self) -> bool {
        let is_silence = |since: Instant| self.now.instant.since(since) >= limits::FORSAKEN_AFTER;
        self.meeting.leaderless_since.is_some_and(is_silence)
    }

    /// Nobody leads, and nodes that have said that they are elsewhere than the roster says may not find each other:
    /// those who need each other's votes may all know this node only.
    fn pass_on_to(&self, to: NodeId, actions: &mut Vec<Action>) {
        for (node, (_, member)) in self.meeting.found.iter().filter(|(node, _)| **node != to) {
            let bytes = wire::encode_announce(*node, member);
            actions.push(Action::Send { to, group: GroupId(0), lane: Lane::Log, bytes });
        }
    }

    pub(super) fn announce_to(&self, to: NodeId, actions: &mut Vec<Action>) {
        let bytes = wire::encode_announce(self.context.node, &self.context.own_as_announced());
        actions.push(Action::Send { to, group: GroupId(0), lane: Lane::Log, bytes });
    }
}
