//! What operators ask of group 0: that a node leaves, and who leads where. What cannot go well is refused with the
//! reason; the rest is logged, and the leaders of all groups do their part of it.

use std::collections::{BTreeMap, BTreeSet};

use message::entry;
use message::roster::{GROUPS_MAX, Gone, Member, Roster};
use resp::Protocol;
use stdx::Duration;
use stdx::slot::{SLOT_COUNT, Slot, runs_of};

use super::{Group, LEVEL_OF_SPLITS, Observed, Waiter};
use crate::balance::{self, Split, Splitting, Spreading};
use crate::defect::Defect;
use crate::group_status::{GroupStatus, GroupStatuses};
use crate::ids::{GroupId, NodeId, Now};
use crate::limits;
use crate::output::NodeView;
use crate::output::Output;
use crate::requests::Origin;
use crate::timeline::Kind;

impl Group {
    /// Takes `HOLDFAST REMOVE`, `PREFER`, `PLACE`, `MOVE`, `SPLIT`, `MERGE`, `BALANCE`, `GROUPS`, `UPGRADE` or
    /// `REBALANCE`, or `CLUSTER FAILOVER`.
    pub(super) fn admin(
        &mut self,
        words: &[u8],
        origin: Origin,
        protocol: Protocol,
        now: Now,
        output: &mut impl Output,
    ) {
        let mut spans = Vec::new();
        let (_, args) = entry::Reader::new(words).words(&mut spans);
        let text = |place: usize| String::from_utf8_lossy(args.get(place).unwrap_or_default()).into_owned();
        let group_count = self.roster().group_count(output.view().group_count());
        let done = match text(1).to_ascii_lowercase().as_str() {
            "remove" => self.remove(&text(2), output.view().group_statuses(), group_count, now),
            "move" if !output.view().is_clustered() => Err(NO_CLUSTER.to_owned()),
            "move" => self.want([&text(2), &text(3), &text(4)], group_count),
            "split" => self.divide(&text(2), &text(3), now, output),
            "merge" => self.merge([&text(2), &text(3)], now, output),
            "balance" => self.switch_balancing(&text(2)),
            "upgrade" => self.upgrade(&text(2), output),
            "groups" => self.ask_for_groups(&text(2), now, output),
            "place" => {
                let nodes: Vec<String> = (3..args.len()).map(text).collect();
                self.place(&text(2), &nodes, output.view().replica_count(), group_count)
            }
            "prefer" => self.prefer(&text(2), &text(3), output.view().group_statuses(), group_count),
            "failover" => output
                .view()
                .groups_to_take_over(origin.node, args)
                .map_err(|refusal| refusal.text().to_owned())
                .and_then(|groups| self.fail_over(&groups, origin.node, output.view().group_statuses())),
            _ => self.rebalance(output.view(), group_count, now),
        };
        match done {
            // The client hears when the last of it is committed.
            Ok(true) => *self.leader.waiters.last_mut().expect("something will be logged") = Waiter::Write(origin),
            Ok(false) => output.reply_observed(&origin, protocol, Observed::of_state(), resp::Writer::ok),
            Err(reason) => output.refuse(&origin, protocol, &reason),
        }
    }

    /// Lets a node leave. `Ok(false)` if it does already.
    fn remove(
        &mut self,
        text: &str,
        group_statuses: &GroupStatuses,
        group_count: u32,
        now: Now,
    ) -> Result<bool, String> {
        let node = self.roster().find(text).ok_or_else(|| format!("ERR no node of this cluster is '{text}'"))?;
        let member = self.roster().get(node).cloned().unwrap_or_default();
        if member.is_removed || member.is_leaving {
            return Ok(false);
        }
        if self.roster().staying().all(|other| other == node) {
            return Err(format!("ERR node {} is the last one: with it the cluster would go", node.0));
        }
        for group in self.roster().groups(group_count) {
            check_removal(node, fresh(group_statuses, group, now)?, self.roster())?;
        }
        // What was checked must still be so when it is applied.
        let is_open = |number| number == self.batch.of_removal;
        if (!self.leader.builder.is_empty() && is_open(self.batch.number))
            || self.window.inflight.iter().any(|batch| is_open(batch.number))
        {
            return Err("TRYAGAIN another node is just being told to leave: ask again when it has been".to_owned());
        }
        self.batch.of_removal = self.batch.number;
        self.enlist(node, &Member { is_leaving: true, ..member });
        Ok(true)
    }

    /// Names the node that leads a group whenever it can.
    fn prefer(
        &mut self,
        group: &str,
        text: &str,
        group_statuses: &GroupStatuses,
        group_count: u32,
    ) -> Result<bool, String> {
        let number =
            group.parse().ok().filter(|group| *group < group_count && !self.roster().is_ending(GroupId(*group)));
        let group = number.map(GroupId).ok_or_else(|| format!("ERR no group of this cluster is '{group}'"))?;
        let node = if text.eq_ignore_ascii_case("none") {
            None
        } else {
            let node = self.roster().find(text).ok_or_else(|| format!("ERR no node of this cluster is '{text}'"))?;
            if self.roster().is_going(node) {
                return Err(format!("ERR node {} leaves the cluster", node.0));
            }
            if group_statuses.of(group).is_none_or(|told| !told.voters.contains(&node.0)) {
                return Err(format!("ERR node {} has no vote in group {}, so it cannot lead it", node.0, group.0));
            }
            Some(node)
        };
        if self.roster().preferred(group) == node {
            return Ok(false);
        }
        self.leader.builder.prefer(group, node);
        self.leader.waiters.push(Waiter::Silent);
        Ok(true)
    }

    /// Lets a node lead these groups whenever it can, as far as it votes in them.
    fn fail_over(&mut self, groups: &[GroupId], node: NodeId, group_statuses: &GroupStatuses) -> Result<bool, String> {
        if self.roster().is_going(node) {
            return Err(format!("ERR node {} leaves the cluster", node.0));
        }
        let votes = |group: &GroupId| group_statuses.of(*group).is_some_and(|told| told.voters.contains(&node.0));
        let groups: Vec<GroupId> = groups.iter().copied().filter(votes).collect();
        if groups.is_empty() {
            return Err(format!("ERR node {} has no vote in a group that its master leads", node.0));
        }
        let mut is_logged = false;
        for group in groups {
            if self.roster().preferred(group) != Some(node) {
                self.leader.builder.prefer(group, Some(node));
                self.leader.waiters.push(Waiter::Silent);
                is_logged = true;
            }
        }
        Ok(is_logged)
    }

    /// Names the group that must hold some slots. Their holders give them away when they hear of it.
    fn want(&mut self, [first, last, group]: [&str; 3], group_count: u32) -> Result<bool, String> {
        let slot = |text: &str| {
            let slot = text.parse().ok().filter(|slot| usize::from(*slot) < SLOT_COUNT).map(Slot);
            slot.ok_or_else(|| format!("ERR no slot is '{text}'"))
        };
        let slots = (slot(first)?, slot(last)?);
        if slots.0 > slots.1 {
            return Err(format!("ERR slot {first} is behind slot {last}"));
        }
        let number =
            group.parse().ok().filter(|group| *group < group_count && !self.roster().is_ending(GroupId(*group)));
        let group = number.map(GroupId).ok_or_else(|| format!("ERR no group of this cluster is '{group}'"))?;
        self.leader.builder.want(slots, group);
        self.leader.waiters.push(Waiter::Silent);
        Ok(true)
    }

    /// Lets a group split: another one comes into being, on the same nodes, with these slots.
    fn divide(&mut self, parent: &str, text: &str, now: Now, output: &mut impl Output) -> Result<bool, String> {
        let context = output.view();
        let group_count = self.roster().group_count(context.group_count());
        let number =
            parent.parse().ok().filter(|group| *group < group_count && !self.roster().is_ending(GroupId(*group)));
        let parent = number.map(GroupId).ok_or_else(|| format!("ERR no group of this cluster is '{parent}'"))?;
        let slots: BTreeSet<Slot> =
            runs_of_text(text)?.into_iter().flat_map(|(first, last)| first..=last).map(Slot).collect();
        let holder = |slot: Slot| context.slots().group_of_slot(slot);
        if let Some(slot) = slots.iter().find(|slot| holder(**slot) != parent) {
            return Err(format!(
                "ERR group {} does not hold slot {}: group {} does",
                parent.0,
                slot.0,
                holder(*slot).0
            ));
        }
        if (0..SLOT_COUNT as u16).map(Slot).filter(|slot| holder(*slot) == parent).count() == slots.len() {
            return Err(format!("ERR group {} would be left with no slot", parent.0));
        }
        if group_count >= GROUPS_MAX {
            return Err(format!("ERR there are {GROUPS_MAX} groups, and there cannot be more"));
        }
        let level = self.leader.builder.level();
        if level < LEVEL_OF_SPLITS {
            return Err(format!(
                "ERR groups split at level {LEVEL_OF_SPLITS}, and the cluster is at level {level}: see HOLDFAST UPGRADE"
            ));
        }
        if self.roster().is_empty() {
            // The node is by itself: the leaders of its groups tell how they are when it is a cluster of one.
            self.enlist(self.node, output.view().own());
            return Err("TRYAGAIN this server is becoming a cluster of one".to_owned());
        }
        // Of those that are about to split off nobody can tell yet where they are led.
        for group in self.roster().groups(group_count) {
            fresh(context.group_statuses(), group, now)?;
        }
        self.check_numbering()?;
        let group = GroupId(group_count);
        let text = format!("will split off from group {}, with {} slots, as was asked for", parent.0, slots.len());
        output.happened(Kind::Placement, Some(group), text);
        self.batch.of_numbering = self.batch.number;
        self.leader.builder.divide(group, parent, &runs_of(slots));
        self.leader.waiters.push(Waiter::Silent);
        Ok(true)
    }

    /// Merges a group into another one, which gets its slots.
    fn merge(&mut self, [group, into]: [&str; 2], now: Now, output: &mut impl Output) -> Result<bool, String> {
        let context = output.view();
        let group_count = self.roster().group_count(context.group_count());
        let find = |text: &str| match text.parse().ok().map(GroupId) {
            Some(group) if self.roster().is_gone(group) => Err(format!("ERR group {} has been merged", group.0)),
            Some(group) if group.0 < group_count => Ok(group),
            _ => Err(format!("ERR no group of this cluster is '{text}'")),
        };
        let (group, into) = (find(group)?, find(into)?);
        if group.0 == 0 {
            return Err("ERR group 0 holds what all nodes must know of the cluster: it cannot be merged".to_owned());
        }
        if group == into {
            return Err(format!("ERR group {} cannot merge into itself", group.0));
        }
        if let Some(known) = self.roster().merges_into(group) {
            return match known == into {
                true => Ok(false),
                false => Err(format!("ERR group {} merges into group {} already", group.0, known.0)),
            };
        }
        if let Some(other) = self.roster().merges_into(into) {
            return Err(format!("ERR group {} is being merged itself, into group {}", into.0, other.0));
        }
        if self.roster().merging().any(|(_, other)| other == group) {
            return Err(format!("TRYAGAIN another group is still merging into group {}", group.0));
        }
        let level = self.leader.builder.level();
        if level < LEVEL_OF_SPLITS {
            return Err(format!(
                "ERR groups merge at level {LEVEL_OF_SPLITS}, and the cluster is at level {level}: see HOLDFAST UPGRADE"
            ));
        }
        if self.roster().is_empty() {
            // See `divide`.
            self.enlist(self.node, output.view().own());
            return Err("TRYAGAIN this server is becoming a cluster of one".to_owned());
        }
        for other in [group, into] {
            fresh(context.group_statuses(), other, now)?;
        }
        self.check_numbering()?;
        self.batch.of_numbering = self.batch.number;
        let text = format!("merges into group {}, as requested: its slots move", into.0);
        output.happened(Kind::Placement, Some(group), text);
        self.leader.builder.merge(group, into);
        self.leader.waiters.push(Waiter::Silent);
        Ok(true)
    }

    /// Logs of groups that have ended that they are removed.
    fn retire_ended(&mut self, now: Now, output: &mut impl Output) {
        if self.check_numbering().is_err() {
            return;
        }
        let merging: Vec<GroupId> = self.roster().merging().map(|(group, _)| group).collect();
        // Where there is a replica, what it holds is known here, whatever others say.
        let slots = output.view().slots();
        let is_here = |group: GroupId| output.view().routes().get(group.0 as usize).is_some_and(|route| route.is_here);
        let holds_here = |group: GroupId| is_here(group) && slots.runs().iter().any(|(.., holder)| *holder == group);
        let is_early = matches!(self.defect, Some(Defect::EarlyEnd | Defect::FalseEnd));
        let ended: Vec<GroupId> = merging.into_iter().filter(|group| is_early || !holds_here(*group)).collect();
        for group in ended {
            let told = fresh(output.view().group_statuses(), group, now).ok();
            let early = |told: &GroupStatus| is_early.then(|| Gone { index: told.applied, ..Gone::default() });
            let told = told.and_then(|told| told.ended.clone().or_else(|| early(told)));
            let is_undisputed = is_early || output.view().group_statuses().is_undisputed(group, now.instant);
            if let Some(gone) = told.filter(|_| is_undisputed) {
                self.batch.of_numbering = self.batch.number;
                output.happened(Kind::Placement, Some(group), "has been merged".to_owned());
                self.leader.builder.retire(group, &gone);
                self.leader.waiters.push(Waiter::Silent);
            }
        }
    }

    /// No other group is being given the next number.
    fn check_numbering(&self) -> Result<(), String> {
        let is_open = |number| number == self.batch.of_numbering;
        if (!self.leader.builder.is_empty() && is_open(self.batch.number))
            || self.window.inflight.iter().any(|batch| is_open(batch.number))
        {
            return Err("TRYAGAIN another group is just coming into being: ask again when it is there".to_owned());
        }
        Ok(())
    }

    /// Lets groups move between nodes so that each has its share, or stay.
    fn switch_balancing(&mut self, text: &str) -> Result<bool, String> {
        let is_on = match text.to_ascii_lowercase().as_str() {
            "on" => true,
            "off" => false,
            _ => return Err(format!("ERR balancing is 'on' or 'off', and not '{text}'")),
        };
        if self.roster().is_balancing() == is_on {
            return Ok(false);
        }
        self.leader.builder.balance(is_on);
        self.leader.waiters.push(Waiter::Silent);
        Ok(true)
    }

    /// Founds groups until there are so many.
    fn ask_for_groups(&mut self, text: &str, now: Now, output: &mut impl Output) -> Result<bool, String> {
        let count = text.parse().ok().filter(|count| (1..=GROUPS_MAX).contains(count));
        let count: u32 = count.ok_or_else(|| format!("ERR there can be 1 to {GROUPS_MAX} groups, and not '{text}'"))?;
        let gone_count = self.roster().gone().count() as u32;
        let there = self.roster().group_count(output.view().group_count()) - gone_count;
        if count < there {
            return Err(format!("ERR there are {there} groups already: HOLDFAST MERGE lets one go"));
        }
        if count == there {
            return Ok(false);
        }
        self.check_numbering()?;
        let view = balance::view_of(output.view(), self.roster(), now.instant);
        let founded = balance::foundings(&view, count.saturating_add(gone_count));
        if founded.is_empty() {
            if self.roster().is_empty() {
                // The node is by itself: the leaders of its groups tell how they are when it is a cluster of one.
                self.enlist(self.node, output.view().own());
            }
            return Err("TRYAGAIN a group has no leader or no place at present: ask again when all have".to_owned());
        }
        self.found(founded, "as was asked for", output);
        Ok(true)
    }

    /// Logs that there are these groups.
    fn found(&mut self, founded: Vec<balance::Founding>, why: &str, output: &mut impl Output) {
        self.batch.of_numbering = self.batch.number;
        for balance::Founding { group, voters } in founded {
            let names: Vec<_> = voters.iter().map(u64::to_string).collect();
            let text = format!("is founded on nodes {}, {why}", names.join(", "));
            output.happened(Kind::Placement, Some(group), text);
            self.leader.builder.found(group, &voters);
            self.leader.waiters.push(Waiter::Silent);
        }
    }

    /// The leader of the metadata sees to it that there are groups enough, that those without slots get some, and that
    /// none is too large.
    fn grow(&mut self, now: Now, output: &mut impl Output) {
        let is_by_itself = self.roster().is_empty();
        let mut roster = self.roster().clone();
        if is_by_itself {
            roster.enlist(self.node, output.view().own().clone());
        }
        let view = balance::view_of(output.view(), &roster, now.instant);
        let wanted = balance::wanted_count(&view);
        if wanted > view.group_count && self.check_numbering().is_err() {
            // It is looked at again soon.
        } else if wanted > view.group_count && is_by_itself {
            // It becomes a cluster of one: then leaders tell how their groups are.
            self.enlist(self.node, output.view().own());
        } else if wanted > view.group_count {
            let founded = balance::foundings(&view, wanted);
            let cores: u32 = view.cores.values().map(|cores| u32::from(*cores)).sum();
            self.found(founded, &format!("as the nodes have {cores} cores"), output);
        } else if let Some(filling) = balance::next_filling(&view) {
            output.happened(Kind::Placement, Some(filling.group), filling.text());
            for (first, last) in filling.slots {
                self.leader.builder.want((Slot(first), Slot(last)), filling.group);
                self.leader.waiters.push(Waiter::Silent);
            }
        } else if self.check_numbering().is_ok() {
            let by = Splitting { level: self.leader.builder.level(), ..balance::splitting_of(output.view()) };
            if let Some(split) = balance::next_split(&view, &by) {
                self.split_off(&split, output);
                if self.defect == Some(Defect::RepeatedSplit) {
                    self.split_off(&Split { group: GroupId(split.group.0 + 1), ..split }, output);
                }
            }
        }
    }

    /// Logs that a group is to split.
    fn split_off(&mut self, split: &Split, output: &mut impl Output) {
        output.happened(Kind::Placement, Some(split.group), split.text());
        self.batch.of_numbering = self.batch.number;
        self.leader.builder.divide(split.group, split.parent, &split.slots);
        self.leader.waiters.push(Waiter::Silent);
    }

    /// Names the nodes that must hold a group.
    fn place(&mut self, group: &str, names: &[String], replicas: usize, group_count: u32) -> Result<bool, String> {
        let number =
            group.parse().ok().filter(|group| *group < group_count && !self.roster().is_ending(GroupId(*group)));
        let group = number.map(GroupId).ok_or_else(|| format!("ERR no group of this cluster is '{group}'"))?;
        if group.0 == 0 {
            return Err("ERR group 0 holds what all nodes must know of the cluster: it lives on all of them".to_owned());
        }
        let mut nodes = BTreeSet::new();
        for text in names {
            let node = self.roster().find(text).ok_or_else(|| format!("ERR no node of this cluster is '{text}'"))?;
            if self.roster().is_going(node) {
                return Err(format!("ERR node {} leaves the cluster", node.0));
            }
            nodes.insert(node.0);
        }
        let wanted = replicas.min(self.roster().staying().count());
        if nodes.len() != wanted {
            return Err(format!("ERR {wanted} nodes must hold a group, and {} are named", nodes.len()));
        }
        if self.roster().placement(group) == Some(&nodes) {
            return Ok(false);
        }
        self.leader.builder.place(group, &nodes);
        self.leader.waiters.push(Waiter::Silent);
        Ok(true)
    }

    /// The leader of the metadata says which group moves where next, if that must change.
    pub fn take_balancing_step(&mut self, now: Now, output: &mut impl Output) {
        if now.instant < self.due.balance {
            return;
        }
        self.due.balance = now.instant + limits::BALANCE_INTERVAL;
        let since = now.instant.since(self.leadership.since);
        self.go_on_rising(output);
        self.retire_ended(now, output);
        self.grow(now, output);
        // A group that is about to come into being is not in the roster yet. One that splits off lives where the other
        // one does: that must not change in between.
        if self.roster().is_empty() || self.check_numbering().is_err() {
            return;
        }
        let mut view = balance::view_of(output.view(), self.roster(), now.instant);
        if since < limits::BALANCE_PATIENCE {
            view.silent.clear(); // it has not listened for long
        }
        // Steps for which nothing travels need not wait for one another.
        let mut roster = self.roster().clone();
        if self.defect == Some(Defect::ForgottenZones) {
            for (node, member) in self.roster().all() {
                roster.enlist(node, Member { zone: String::new(), ..member.clone() });
            }
        }
        let mut steps: Vec<balance::Step> = Vec::new();
        while steps.len() < view.group_count as usize && steps.last().is_none_or(|step| step.bytes == 0) {
            let Some(step) = balance::next_step(&balance::View { roster: &roster, ..view.clone() }) else { break };
            roster.place(step.group, step.nodes.clone());
            steps.push(step);
        }
        for balance::Step { group, mut nodes, reason, .. } in steps {
            if self.defect == Some(Defect::ThinPlacement) {
                nodes.pop_last();
            }
            let names: Vec<_> = nodes.iter().map(u64::to_string).collect();
            let text = format!("is assigned to nodes {}: {reason}", names.join(", "));
            output.happened(Kind::Placement, Some(group), text);
            self.leader.builder.place(group, &nodes);
            self.leader.waiters.push(Waiter::Silent);
        }
    }

    /// Spreads leaders over the nodes that vote.
    fn rebalance(&mut self, context: &impl NodeView, group_count: u32, now: Now) -> Result<bool, String> {
        let told = |group| fresh(context.group_statuses(), group, now);
        let groups = self.roster().groups(group_count).map(told).collect::<Result<Vec<_>, _>>()?;
        let (replicas, leader_zones) = (context.replica_count(), context.leader_zones());
        let spreading = Spreading { roster: self.roster(), replicas, group_count, zones: leader_zones };
        let mut any = false;
        for (group, node) in spread(&groups, &spreading) {
            if self.roster().preferred(group) != Some(node) {
                self.leader.builder.prefer(group, Some(node));
                self.leader.waiters.push(Waiter::Silent);
                any = true;
            }
        }
        Ok(any)
    }

    /// A node that leaves has gone when no group has it any more. Called on the core of group 0.
    pub fn finish_removals(&mut self, group_statuses: &GroupStatuses, group_count: u32, now: Now) {
        let group_count = self.roster().group_count(group_count);
        let leaving: Vec<_> = self.roster().present().filter(|(_, member)| member.is_leaving).collect();
        let mut gone = Vec::new();
        for (node, member) in leaving {
            let is_out =
                |group| fresh(group_statuses, group, now).is_ok_and(|told| told.leader != node && !told.has(node));
            if self.roster().groups(group_count).all(is_out) {
                gone.push((node, Member { is_removed: true, ..member.clone() }));
            }
        }
        gone.iter().for_each(|(node, member)| self.enlist(*node, member));
    }
}

/// The answer to a request to move slots in a server by itself.
const NO_CLUSTER: &str = "ERR This server is no cluster: let a second node join it, and slots can move";

/// Slots that a text such as `0-5,7` names: first and last of each run.
fn runs_of_text(text: &str) -> Result<Vec<(u16, u16)>, String> {
    let slot = |word: &str| word.parse::<u16>().ok().filter(|slot| usize::from(*slot) < SLOT_COUNT);
    let run = |word: &str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        let run = slot(first).zip(slot(last)).filter(|(first, last)| first <= last);
        run.ok_or_else(|| format!("ERR '{word}' names no slots: one, or FIRST-LAST, is expected"))
    };
    text.split(',').map(run).collect()
}

/// What a group's leader said a moment ago.
fn fresh(group_statuses: &GroupStatuses, group: GroupId, now: Now) -> Result<&GroupStatus, String> {
    let told = group_statuses.iter().find(|(told, _)| told.group == group);
    let is_fresh = |heard| now.instant.since(heard) < limits::BULLETIN_STALE;
    told.filter(|(_, heard)| is_fresh(*heard)).map(|(told, _)| told).ok_or_else(|| {
        format!("TRYAGAIN group {} has no leader at present, so it cannot be told what it can do without", group.0)
    })
}

/// Whether a group keeps a quorum, and its data, without a node.
fn check_removal(node: NodeId, told: &GroupStatus, roster: &Roster) -> Result<(), String> {
    if !told.voters.contains(&node.0) {
        return Ok(());
    }
    let stays = |other: NodeId| other != node && !roster.is_going(other);
    let is_active = |other: NodeId| {
        other == told.leader || told.followers.iter().any(|follower| follower.node == other && follower.is_active)
    };
    let nodes = |nodes: &[u64]| nodes.iter().copied().map(NodeId).filter(|other| stays(*other)).collect::<Vec<_>>();
    let (voters, learners) = (nodes(&told.voters), nodes(&told.learners));
    let active = voters.iter().filter(|other| is_active(**other)).count();
    let group = told.group.0;
    if voters.is_empty() {
        // Somebody who is there gets its vote first.
        return if learners.iter().any(|other| is_active(*other)) {
            Ok(())
        } else {
            Err(format!("ERR group {group} would have nobody without node {}: no other node is there", node.0))
        };
    }
    if 2 * active > voters.len() {
        return Ok(());
    }
    let silent = |other: &NodeId| {
        let follower = told.followers.iter().find(|follower| follower.node == *other)?;
        (!is_active(*other)).then_some((other.0, Duration::from_millis(follower.silent_ms)))
    };
    let away: Vec<_> = voters.iter().filter_map(silent).collect();
    let named = away.iter().map(|(other, silence)| format!("{other} (silent for {:.1} s)", silence.as_secs_f64()));
    let (named, count) = (named.collect::<Vec<_>>().join(", "), voters.len());
    let why = format!(
        "group {group} would lose its quorum without node {}: of the {count} voters left only {active} would be there",
        node.0
    );
    // A leader that has just begun has not heard everybody: who names those as dead makes the operator remove them.
    Err(if away.iter().any(|(_, silence)| *silence < limits::AWAY_MIN) {
        format!("TRYAGAIN {why}. It is too early to tell whether these are away: {named}")
    } else {
        format!("ERR {why}. Remove those that are away for good first, or bring them back: {named}")
    })
}

/// Which node should lead each group, so that every node leads as many as any other that could, in the zones that
/// leaders should be in, and as few as possible change.
fn spread(groups: &[&GroupStatus], spreading: &Spreading<'_>) -> Vec<(GroupId, NodeId)> {
    let candidates = |told: &GroupStatus| -> Vec<NodeId> {
        let is_active = |node: NodeId| {
            node == told.leader || told.followers.iter().any(|other| other.node == node && other.is_active)
        };
        let voters = told.voters.iter().copied().map(NodeId);
        let fit = voters.filter(|node| !spreading.roster.is_going(*node) && is_active(*node));
        spreading.in_best_zone(fit.map(|node| node.0)).into_iter().map(NodeId).collect()
    };
    let mut counts: BTreeMap<NodeId, usize> = BTreeMap::new();
    groups.iter().flat_map(|told| candidates(told)).for_each(|node| _ = counts.entry(node).or_default());
    let share = groups.len() / counts.len().max(1);
    let mut leaders: BTreeMap<GroupId, NodeId> = BTreeMap::new();
    for told in groups {
        let count = counts.get_mut(&told.leader);
        let could = candidates(told).contains(&told.leader);
        if let Some(count) = count.filter(|count| could && **count < share) {
            *count += 1;
            leaders.insert(told.group, told.leader);
        }
    }
    for told in groups {
        if leaders.contains_key(&told.group) {
            continue;
        }
        let fewest = candidates(told).into_iter().min_by_key(|node| (counts[node], *node != told.leader));
        if let Some(node) = fewest {
            *counts.entry(node).or_default() += 1;
            leaders.insert(told.group, node);
        }
    }
    leaders.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group_status::{Feed, Follower};

    /// Groups of these voters. Some of the voters are heard; the first leads.
    fn told(group: u32, voters: &[u64], active: &[u64]) -> GroupStatus {
        let follower = |node: u64| Follower {
            node: NodeId(node),
            is_active: active.contains(&node),
            feed: Feed::Streaming,
            matched: 0,
            behind_bytes: 0,
            lag_ms: 0,
            resync_count: 0,
            silent_ms: limits::AWAY_MIN.as_millis() as u64,
        };
        GroupStatus {
            group: GroupId(group),
            leader: NodeId(voters[0]),
            voters: voters.to_vec(),
            followers: voters[1..].iter().map(|node| follower(*node)).collect(),
            ..GroupStatus::default()
        }
    }

    fn roster(leaving: &[u64]) -> Roster {
        let mut roster = Roster::default();
        for node in 1..=5 {
            roster.enlist(NodeId(node), Member { is_leaving: leaving.contains(&node), ..Member::default() });
        }
        roster
    }

    #[test]
    fn a_removal_that_would_cost_the_quorum_is_refused() {
        let cases: &[(u64, &[u64], &[u64], bool)] = &[
            (3, &[1, 2, 3], &[2, 3], true), // all are there
            (3, &[1, 2, 3], &[2], true),    // the dead one goes
            (2, &[1, 2, 3], &[2], false),   // one alive, one dead left
            (1, &[1, 2, 3], &[2], false),   // the leader, too
            (1, &[1, 2, 3], &[2, 3], true),
            (2, &[1, 2], &[2], true),
            (1, &[1, 2], &[2], true),
            (1, &[1], &[], false),      // it alone has the data
            (4, &[1, 2, 3], &[], true), // it has no vote
            (5, &[1, 2, 3, 4, 5], &[2, 3], true),
            (3, &[1, 2, 3, 4, 5], &[2, 3], false),
        ];
        for (node, voters, active, expected) in cases {
            let verdict = check_removal(NodeId(*node), &told(0, voters, active), &roster(&[]));
            assert_eq!(verdict.is_ok(), *expected, "node {node} of {voters:?}, with {active:?} there: {verdict:?}");
        }
        let verdict = check_removal(NodeId(2), &told(0, &[1, 2, 3], &[2]), &roster(&[])).expect_err("node 3 is dead");
        assert!(verdict.starts_with("ERR ") && verdict.ends_with("3 (silent for 5.0 s)"), "{verdict}");
        let mut early = told(0, &[1, 2, 3], &[]);
        early.followers[0].silent_ms = 40;
        let verdict = check_removal(NodeId(3), &early, &roster(&[])).expect_err("node 2 has not been heard");
        assert!(verdict.starts_with("TRYAGAIN ") && verdict.ends_with("2 (silent for 0.0 s)"), "{verdict}");
        assert!(check_removal(NodeId(3), &told(0, &[1, 2, 3], &[2, 3]), &roster(&[2])).is_ok());
        assert!(check_removal(NodeId(1), &told(0, &[1, 2], &[2]), &roster(&[2])).is_err(), "the other one leaves");
    }

    #[test]
    fn leaders_are_spread_evenly_and_stay_where_they_may() {
        let groups: Vec<_> = [[1, 2, 3], [1, 2, 3], [1, 3, 2], [2, 1, 3], [1, 2, 3], [1, 2, 3]]
            .iter()
            .zip(0..)
            .map(|(voters, group)| told(group, voters, &[1, 2, 3]))
            .collect();
        let groups: Vec<_> = groups.iter().collect();
        let spread_over = |roster: &Roster, zones: &[String]| {
            spread(&groups, &Spreading { roster, replicas: 3, group_count: 6, zones })
        };
        let leaders: Vec<u64> = spread_over(&roster(&[]), &[]).iter().map(|(_, node)| node.0).collect();
        for node in 1..=3 {
            assert_eq!(leaders.iter().filter(|leader| **leader == node).count(), 2, "{leaders:?}");
        }
        assert_eq!((leaders[0], leaders[1], leaders[3]), (1, 1, 2));
        let leaders = spread_over(&roster(&[3]), &[]);
        assert!(leaders.iter().all(|(_, node)| node.0 != 3));
        let mut zoned = roster(&[]);
        for node in [2, 3] {
            zoned.enlist(NodeId(node), Member { zone: "b".to_owned(), ..Member::default() });
        }
        let leaders: Vec<u64> = spread_over(&zoned, &["b".to_owned()]).iter().map(|(_, node)| node.0).collect();
        assert!(leaders.iter().all(|leader| [2, 3].contains(leader)), "{leaders:?}");
        assert_eq!(leaders.iter().filter(|leader| **leader == 2).count(), 3, "{leaders:?}");
    }
}
