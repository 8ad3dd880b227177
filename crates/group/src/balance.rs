//! Which node is to hold which group, and how many groups there are to be: one step after the other, so that every node
//! that stays holds its share, and has work for its cores.
//!
//! A pure function of the roster and of what leaders say of their groups. Nothing is remembered between two steps: the
//! roster says what is wanted, the statuses say how far it has come, and what is under way counts as done. So a new
//! leader of the metadata group goes on where the last one stopped, and an operator can ask beforehand what would come.
//!
//! ```text
//!   what comes first   a group without a placement gets one: where it lives already
//!          │           a node that leaves, or is missing to the number of replicas, is replaced
//!          │           a newcomer that has fallen silent before it voted is passed over
//!          │           a node that has been gone for long is replaced
//!          │           from a zone that holds several copies of a group to one that holds fewer
//!          ▼           from the fullest node to the emptiest: by groups, then by bytes
//! ```
//!
//! A group that is too large is split, where it is, before it moves: see [`next_split`].
//!
//! There are to be so many groups that every core of a node has a replica to look after, and the slots are divided
//! among them: what is missing is founded at once, and each gets its share when it has voters enough. More can be asked
//! for. The first group lives on every node, so where there are more nodes than replicas it is left fewer slots.
//!
//! Moves come one at a time, and only to nodes that are heard. Every step of the last kinds makes zones hold copies
//! more evenly, or leaves that as it is and makes the shares more even than they were, so that none is taken back. A
//! node that is merely away keeps what it holds. One of which nobody has named a zone is in one of its own.

use std::collections::{BTreeMap, BTreeSet};

use message::roster::{GROUPS_MAX, Roster};
use message::slots::SlotMap;
use stdx::slot::{SLOT_COUNT, Slot, runs_of};
use stdx::{Instant, Level};

use crate::group::LEVEL_OF_SPLITS;
use crate::group_status::{GroupStatus, Halves};
use crate::ids::{GroupId, NodeId, Room};
use crate::limits;
use crate::output::NodeView;

/// What the leader of a group says of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Who leads it.
    pub leader: u64,
    /// Who votes.
    pub voters: BTreeSet<u64>,
    /// Who receives everything and does not vote.
    pub learners: BTreeSet<u64>,
    /// Bytes that its keys take in memory.
    pub bytes: u64,
    /// Where it would be split, if it is too large.
    pub halves: Option<Halves>,
}

impl From<&GroupStatus> for Held {
    fn from(told: &GroupStatus) -> Self {
        Self {
            leader: told.leader.0,
            voters: told.voters.iter().copied().collect(),
            learners: told.learners.iter().copied().collect(),
            bytes: told.bytes,
            halves: told.halves,
        }
    }
}

/// What a step is chosen by.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// Who belongs to the cluster, and which group is to live where.
    pub roster: &'a Roster,
    /// How many nodes are to hold each group.
    pub replicas: usize,
    /// Groups of the cluster. The first, which holds the metadata, lives everywhere.
    pub group_count: u32,
    /// Groups over which the slots were divided when the cluster was founded.
    pub first_count: u32,
    /// Groups are founded without being asked for.
    pub founds_groups: bool,
    /// Cores of the nodes that are heard.
    pub cores: BTreeMap<u64, u16>,
    /// The groups with leaders that have been heard just now.
    pub groups: BTreeMap<u32, Held>,
    /// The nodes that are heard now and have room.
    pub heard: BTreeSet<u64>,
    /// The nodes of which that has not been so for a while.
    pub silent: BTreeSet<u64>,
    /// The nodes that nobody has heard for so long that others take their places.
    pub lost: BTreeSet<u64>,
}

/// From now on a group is to live on other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Which group.
    pub group: GroupId,
    /// The nodes that are to hold it.
    pub nodes: BTreeSet<u64>,
    /// Bytes that travel to nodes which do not have them.
    pub bytes: u64,
    /// Why, in one line.
    pub reason: String,
}

/// A group that is to come into being.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Founding {
    /// Which.
    pub group: GroupId,
    /// The nodes that vote in it first.
    pub voters: BTreeSet<u64>,
}

/// A group without slots is to get its share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filling {
    /// Which.
    pub group: GroupId,
    /// Which slots: first, last.
    pub slots: Vec<(u16, u16)>,
    /// Who gives them, and about how many bytes.
    pub givers: BTreeMap<u32, u64>,
    /// About so many bytes of keys.
    pub bytes: u64,
}

impl Filling {
    /// How many slots.
    pub fn slot_count(&self) -> usize {
        self.slots.iter().map(|(first, last)| usize::from(last - first) + 1).sum()
    }

    /// What is going to happen, in one line.
    pub fn text(&self) -> String {
        let givers: Vec<_> = self.givers.keys().map(u32::to_string).collect();
        format!("is to hold {} slots, which come from groups {}", self.slot_count(), givers.join(", "))
    }
}

/// By what groups are split.
#[derive(Clone, Copy, Debug)]
pub struct Splitting<'a> {
    /// Who holds which slots.
    pub slots: &'a SlotMap,
    /// A group that holds more is too large (`balance-split-bytes`); 0: none is.
    pub bytes_max: u64,
    /// Of the cluster.
    pub level: Level,
}

/// A group is to split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The one that splits off: it does not exist yet.
    pub group: GroupId,
    /// The one that splits.
    pub parent: GroupId,
    /// What splits off: first, last.
    pub slots: Vec<(Slot, Slot)>,
    /// Bytes of these slots.
    pub bytes: u64,
    /// Why, in one line.
    pub reason: String,
}

impl Split {
    /// How many slots.
    pub fn slot_count(&self) -> usize {
        self.slots.iter().map(|(first, last)| usize::from(last.0 - first.0) + 1).sum()
    }

    /// What is going to happen, in one line.
    pub fn text(&self) -> String {
        let (parent, count, size) = (self.parent.0, self.slot_count(), size_text(self.bytes));
        format!("will split off from group {parent}, with {count} slots and {size} of keys: {}", self.reason)
    }
}

/// Bytes for people.
fn size_text(bytes: u64) -> String {
    match bytes {
        0..0x1_0000 => format!("{bytes} bytes"),
        0x1_0000..0x100_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// A core of a node has so many replicas to look after, by the splits of the balancer, and no more.
const GROUPS_PER_CORE: u32 = 4;

/// A split that leaves less than this part of a group's bytes on either side is of no use: a single slot holds the
/// rest.
const HALF_PART: u64 = 4;

/// Shares of bytes that differ by less than this part of the larger are even enough.
const UNEVEN_PART: u64 = 5;

/// Bytes that are not worth a move.
const UNEVEN_BYTES_MIN: u64 = 16 << 20;

/// The most steps that a preview shows.
pub const PLAN_STEPS_MAX: usize = 1_000;

impl View<'_> {
    fn staying(&self) -> BTreeSet<u64> {
        self.roster.staying().map(|node| node.0).collect()
    }

    /// Groups that are placed, the first left out.
    fn others(&self) -> impl Iterator<Item = GroupId> {
        (1..self.group_count).map(GroupId).filter(|group| !self.roster.is_gone(*group))
    }

    /// How many groups have gone.
    fn gone_count(&self) -> u32 {
        self.roster.gone().count() as u32
    }

    /// True if all groups that there are have leaders that have been heard just now.
    fn is_led(&self) -> bool {
        (0..self.group_count).all(|group| self.groups.contains_key(&group) || self.roster.is_gone(GroupId(group)))
    }

    /// True if the group lives where it is to live.
    fn is_settled(&self, group: GroupId) -> bool {
        match (self.roster.placement(group), self.groups.get(&group.0)) {
            (Some(nodes), Some(held)) => held.voters == *nodes && held.learners.is_empty(),
            _ => false,
        }
    }

    /// How many groups, and how many bytes, each node that stays is to hold.
    fn shares(&self) -> BTreeMap<u64, (usize, u64)> {
        let mut shares: BTreeMap<u64, (usize, u64)> = self.staying().into_iter().map(|node| (node, (0, 0))).collect();
        for (group, nodes) in self.roster.placements() {
            let bytes = self.groups.get(&group.0).map_or(0, |held| held.bytes);
            for node in nodes {
                if let Some(share) = shares.get_mut(node) {
                    *share = (share.0 + 1, share.1 + bytes);
                }
            }
        }
        shares
    }

    fn bytes_of(&self, group: GroupId) -> u64 {
        self.groups.get(&group.0).map_or(0, |held| held.bytes)
    }

    /// Bytes that travel if these nodes are to hold the group.
    fn cost(&self, group: GroupId, nodes: &BTreeSet<u64>) -> u64 {
        let has = |node: &&u64| self.groups.get(&group.0).is_some_and(|held| held.voters.contains(node));
        nodes.iter().filter(|node| !has(node)).count() as u64 * self.bytes_of(group)
    }

    fn step(&self, group: GroupId, nodes: BTreeSet<u64>, reason: String) -> Step {
        Step { group, bytes: self.cost(group, &nodes), nodes, reason }
    }

    fn zone(&self, node: u64) -> Option<&str> {
        self.roster.zone(NodeId(node))
    }

    /// How many of these nodes are in the zone of another one, that one left out.
    fn mates(&self, node: u64, nodes: &BTreeSet<u64>) -> usize {
        let Some(zone) = self.zone(node) else { return 0 };
        nodes.iter().filter(|other| **other != node && self.zone(**other) == Some(zone)).count()
    }

    /// Grows with the number of nodes that share a zone: the less, the more evenly they are spread.
    fn crowding(&self, nodes: &BTreeSet<u64>) -> usize {
        nodes.iter().map(|node| self.mates(*node, nodes)).sum()
    }

    /// So many nodes that are heard, to hold a group beside these: one after the other in the zone that holds least,
    /// there those that have it, and then those that hold least.
    fn pick(&self, beside: &BTreeSet<u64>, has: impl Fn(u64) -> bool, count: usize) -> Vec<u64> {
        let candidates = self.candidates(beside);
        let mut chosen = beside.clone();
        let mut picked = Vec::new();
        while picked.len() < count {
            let free = candidates.iter().zip(0..).filter(|(node, _)| !chosen.contains(node));
            let next = free.min_by_key(|(node, place)| (self.mates(**node, &chosen), !has(**node), *place));
            let Some((next, _)) = next else { break };
            chosen.insert(*next);
            picked.push(*next);
        }
        picked
    }

    /// True if all voters of a group are heard, so that it bears a move.
    fn is_whole(&self, group: GroupId) -> bool {
        self.groups.get(&group.0).is_some_and(|held| held.voters.iter().all(|voter| self.heard.contains(voter)))
    }

    /// True if a group lives where it is to live, and all who vote in it are there: it can split.
    fn may_split_here(&self, group: GroupId) -> bool {
        let (staying, Some(held)) = (self.staying(), self.groups.get(&group.0)) else { return false };
        let is_at_home = match self.roster.placement(group) {
            Some(_) => self.is_settled(group),
            // It lives on all nodes. The first group has learners where there are more than vote.
            None => {
                held.voters.len() == self.replicas.min(staying.len())
                    && (&held.voters | &held.learners) == staying
                    && (group.0 == 0 || held.learners.is_empty())
            }
        };
        is_at_home && self.is_whole(group) && held.voters.is_subset(&staying)
    }

    /// True if a node that is heard is still being given a group.
    fn is_any_on_its_way(&self) -> bool {
        self.roster.placements().any(|(group, nodes)| {
            let lacks = |held: &Held| nodes.iter().any(|node| self.heard.contains(node) && !held.voters.contains(node));
            self.groups.get(&group.0).is_some_and(lacks)
        })
    }

    /// True if something may be moved for the sake of evenness: one move at a time, none on hearsay, and none of a
    /// group that is about to give slots to one that is new.
    fn is_at_rest(&self) -> bool {
        self.roster.is_balancing() && self.others().all(|group| self.is_settled(group)) && !self.grows()
    }

    /// True if groups can be founded or filled now.
    fn grows(&self) -> bool {
        match wanted_count(self) {
            wanted if wanted > self.group_count => !foundings(self, wanted).is_empty(),
            _ => next_filling(self).is_some(),
        }
    }

    /// The nodes that are heard and could hold the group beside these, the emptiest first.
    fn candidates(&self, beside: &BTreeSet<u64>) -> Vec<u64> {
        let mut found: Vec<_> = self.shares().into_iter().collect();
        found.retain(|(node, _)| self.heard.contains(node) && !beside.contains(node));
        found.sort_by_key(|(node, share)| (*share, *node));
        found.into_iter().map(|(node, _)| node).collect()
    }
}

/// What a core knows: statuses are kept by the first.
pub fn view_of<'a>(context: &impl NodeView, roster: &'a Roster, now: Instant) -> View<'a> {
    let is_fresh = |heard: Instant| now.since(heard) < limits::BULLETIN_STALE;
    let told = context.group_statuses().iter().filter(|(_, heard)| is_fresh(*heard)).map(|(told, _)| told);
    let groups = told.map(|told| (told.group.0, Held::from(told)));
    let neighbours = context;
    let is_fit = |node: NodeId| match node == context.node() {
        true => *context.room() == Room::Enough && !context.is_stopping(),
        false => neighbours.can_lead(node),
    };
    let is_long = |since: Option<Instant>| since.is_none_or(|since| now.since(since) >= limits::BALANCE_PATIENCE);
    let nodes = || roster.staying();
    let cores = |node: NodeId| match node == context.node() {
        true => Some(context.core_count()),
        false => neighbours.cores_of(node),
    };
    View {
        roster,
        replicas: context.replica_count(),
        group_count: roster.group_count(context.group_count()),
        first_count: context.slots().first_count(),
        founds_groups: context.founds_groups(),
        cores: nodes().filter_map(|node| Some((node.0, cores(node)?))).collect(),
        groups: groups.collect(),
        heard: nodes().filter(|node| is_fit(*node)).map(|node| node.0).collect(),
        silent: nodes()
            .filter(|node| !is_fit(*node) && is_long(neighbours.silent_since(*node)))
            .map(|node| node.0)
            .collect(),
        lost: neighbours.lost(),
    }
}

/// By what groups are split, as a core knows it.
pub fn splitting_of(context: &impl NodeView) -> Splitting<'_> {
    Splitting { slots: context.slots(), bytes_max: context.balance_split_bytes(), level: context.levels().in_force }
}

/// What is to be done next, if anything is.
pub fn next_step(view: &View<'_>) -> Option<Step> {
    let staying = view.staying();
    let replicas = view.replicas.min(staying.len());
    if replicas == 0 {
        return None;
    }
    view.others()
        .find_map(|group| place_first(view, group, &staying, replicas))
        .or_else(|| view.others().find_map(|group| keep_number(view, group, &staying, replicas)))
        .or_else(|| view.others().find_map(|group| pass_over_silent(view, group)))
        .or_else(|| replace_lost(view))
        .or_else(|| respect_zones(view))
        .or_else(|| spread(view))
}

/// A group without a placement stays where it lives, if there are nodes to spare.
fn place_first(view: &View<'_>, group: GroupId, staying: &BTreeSet<u64>, replicas: usize) -> Option<Step> {
    if view.roster.placement(group).is_some() || staying.len() <= view.replicas || !view.roster.is_balancing() {
        return None;
    }
    let held = view.groups.get(&group.0)?;
    let mut found: Vec<u64> = held.voters.intersection(staying).copied().collect();
    found.sort_by_key(|node| (*node != held.leader, *node));
    let members = held.learners.intersection(staying).copied();
    let members: Vec<u64> = members.filter(|node| !found.contains(node)).collect();
    found.extend(members);
    let chosen: BTreeSet<u64> = found.iter().copied().collect();
    found.extend(view.pick(&chosen, |_| false, replicas.saturating_sub(chosen.len())));
    let nodes: BTreeSet<u64> = found.into_iter().take(replicas).collect();
    let reason = format!("there are more nodes than the {} that hold a group", view.replicas);
    (nodes.len() == replicas).then(|| view.step(group, nodes, reason))
}

/// As many nodes hold a group as are to hold it, of those that stay.
fn keep_number(view: &View<'_>, group: GroupId, staying: &BTreeSet<u64>, replicas: usize) -> Option<Step> {
    let placed = view.roster.placement(group)?;
    let held = view.groups.get(&group.0)?;
    let mut nodes: BTreeSet<u64> = placed.intersection(staying).copied().collect();
    if nodes.len() < replicas {
        let gone: Vec<String> = placed.difference(staying).map(u64::to_string).collect();
        let missing = replicas - nodes.len();
        // Who votes already first: nothing travels.
        let added: Vec<u64> = view.pick(&nodes, |node| held.voters.contains(&node), missing);
        if added.is_empty() {
            return None;
        }
        nodes.extend(&added);
        let added = added.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let reason = match gone.is_empty() {
            true => format!("node {added} comes to it: {} nodes are to hold a group", view.replicas),
            false => format!("node {added} takes the place of node {}, which leaves", gone.join(", ")),
        };
        return Some(view.step(group, nodes, reason));
    }
    if nodes.len() > replicas {
        let shares = view.shares();
        let fullest = |node: &&u64| {
            let is_of_use = view.heard.contains(node) && held.voters.contains(node);
            (!is_of_use, view.mates(**node, &nodes), held.leader != **node, shares.get(node).copied(), **node)
        };
        let surplus = nodes.iter().max_by_key(fullest).copied()?;
        nodes.remove(&surplus);
        let reason = format!("node {surplus} is more than the {} nodes that hold a group", view.replicas);
        return Some(view.step(group, nodes, reason));
    }
    (nodes != *placed).then(|| view.step(group, nodes, "a node that held it leaves".to_owned()))
}

/// A node that is to hold a group, does not vote yet and is not heard any more is not waited for.
fn pass_over_silent(view: &View<'_>, group: GroupId) -> Option<Step> {
    let placed = view.roster.placement(group)?;
    let held = view.groups.get(&group.0)?;
    let silent = placed.iter().copied().find(|node| !held.voters.contains(node) && view.silent.contains(node))?;
    let mut nodes = placed.clone();
    nodes.remove(&silent);
    let staying = view.staying();
    let still_votes = |node: &&u64| staying.contains(node) && !placed.contains(node) && !view.lost.contains(node);
    let another = || view.pick(&nodes, |_| false, usize::MAX).into_iter().find(|node| *node != silent);
    let next = held.voters.iter().find(still_votes).copied().or_else(another)?;
    nodes.insert(next);
    Some(view.step(group, nodes, format!("node {next} holds it, as node {silent} has fallen silent")))
}

/// Another node takes the place of one that nobody has heard for long: one group after the other, those first that have
/// lost most.
fn replace_lost(view: &View<'_>) -> Option<Step> {
    if view.lost.is_empty() || !view.roster.is_balancing() || view.is_any_on_its_way() {
        return None;
    }
    let lost_of = |group: &GroupId| view.roster.placement(*group).map_or(0, |nodes| (nodes & &view.lost).len());
    let mut groups: Vec<GroupId> = view.others().filter(|group| lost_of(group) > 0).collect();
    groups.sort_by_key(|group| (std::cmp::Reverse(lost_of(group)), *group));
    groups.into_iter().find_map(|group| {
        let placed = view.roster.placement(group)?;
        let held = view.groups.get(&group.0)?;
        let lost = placed.intersection(&view.lost).next()?;
        let there = placed - &view.lost;
        let next = view.pick(&there, |node| held.voters.contains(&node), 1).first().copied()?;
        let mut nodes = placed.clone();
        nodes.remove(lost);
        nodes.insert(next);
        let reason = format!("node {next} takes the place of node {lost}, which nobody has heard for replace-after");
        Some(view.step(group, nodes, reason))
    })
}

/// From a zone that holds several copies of a group to one that holds fewer, as far as there are zones with nodes.
fn respect_zones(view: &View<'_>) -> Option<Step> {
    if !view.is_at_rest() {
        return None;
    }
    let shares = view.shares();
    let mut best = None;
    for group in view.others().filter(|group| view.is_whole(*group)) {
        let placed = view.roster.placement(group)?;
        let before = view.crowding(placed);
        let receivers = || shares.keys().filter(|to| view.heard.contains(to) && !placed.contains(to));
        for (from, to) in placed.iter().flat_map(|from| receivers().map(move |to| (*from, *to))) {
            let nodes = exchanged(placed, from, to);
            let after = view.crowding(&nodes);
            let is_led = view.groups[&group.0].leader == from;
            let given = shares.get(&from).map(|share| std::cmp::Reverse(*share));
            let key = (after, is_led, given, shares[&to], group, from, to);
            if after < before && best.as_ref().is_none_or(|(known, _)| key < *known) {
                best = Some((key, nodes));
            }
        }
    }
    let ((.., group, from, to), nodes) = best?;
    let placed = view.roster.placement(group)?;
    let (crowded, copies) = (view.zone(from).unwrap_or_default(), view.mates(from, placed) + 1);
    let there = view.mates(to, placed);
    let group_number = group.0;
    let reason = match (view.zone(to), there) {
        (Some(zone), 0) => format!("zone {zone} has no copy of group {group_number}, and zone {crowded} has {copies}"),
        (Some(zone), _) => {
            format!("zone {crowded} has {copies} copies of group {group_number}, and zone {zone} {there}")
        }
        (None, _) => format!("zone {crowded} has {copies} copies of group {group_number}, and node {to} is in none"),
    };
    Some(view.step(group, nodes, reason))
}

/// Who holds a group when one node has given its copy to another.
fn exchanged(nodes: &BTreeSet<u64>, from: u64, to: u64) -> BTreeSet<u64> {
    let mut nodes = nodes.clone();
    nodes.remove(&from);
    nodes.insert(to);
    nodes
}

/// From the fullest node to the emptiest.
fn spread(view: &View<'_>) -> Option<Step> {
    if !view.is_at_rest() {
        return None;
    }
    let shares = view.shares();
    let movable = |from: u64, to: u64| {
        view.others().filter(move |group| {
            let nodes = view.roster.placement(*group).expect("all are placed");
            let is_free = nodes.contains(&from) && !nodes.contains(&to) && view.is_whole(*group);
            is_free && view.crowding(&exchanged(nodes, from, to)) <= view.crowding(nodes)
        })
    };
    let moved = |group: GroupId, from: u64, to: u64, reason: String| {
        let nodes = view.roster.placement(group).expect("all are placed");
        view.step(group, exchanged(nodes, from, to), reason)
    };
    let mut pairs: Vec<(u64, u64)> = Vec::new();
    for from in shares.keys() {
        pairs.extend(shares.keys().filter(|to| view.heard.contains(to) && *to != from).map(|to| (*from, *to)));
    }
    // By groups: who is furthest from whom.
    let apart = |(from, to): &(u64, u64)| shares[from].0.saturating_sub(shares[to].0);
    pairs.sort_by_key(|pair| (std::cmp::Reverse(apart(pair)), *pair));
    for (from, to) in pairs.iter().copied().filter(|pair| apart(pair) >= 2) {
        let (own, other) = (shares[&from].1, shares[&to].1);
        let evenness = |group: &GroupId| {
            let bytes = view.bytes_of(*group);
            let is_led = view.groups[&group.0].leader == from;
            ((own.saturating_sub(bytes)).abs_diff(other + bytes), is_led, group.0)
        };
        if let Some(group) = movable(from, to).min_by_key(evenness) {
            let reason = format!(
                "from node {from}, which holds {} groups, to node {to}, which holds {}",
                shares[&from].0, shares[&to].0
            );
            return Some(moved(group, from, to, reason));
        }
    }
    // By bytes: if the fuller one has a group more than the other, which it can give away without having too few.
    let apart = |(from, to): &(u64, u64)| shares[from].1.saturating_sub(shares[to].1);
    pairs.sort_by_key(|pair| (std::cmp::Reverse(apart(pair)), *pair));
    for (from, to) in pairs {
        let (count, difference) = (shares[&from].0, apart(&(from, to)));
        let is_uneven = difference > UNEVEN_BYTES_MIN && difference > shares[&from].1 / UNEVEN_PART;
        if !is_uneven || count <= shares[&to].0 {
            continue;
        }
        // It must be worth it, so that what is written meanwhile does not turn it round.
        let is_worth = |group: &GroupId| {
            let bytes = view.bytes_of(*group);
            bytes > 0 && difference.abs_diff(2 * bytes) < difference - difference / 4
        };
        let evenness = |group: &GroupId| difference.abs_diff(2 * view.bytes_of(*group));
        if let Some(group) = movable(from, to).filter(is_worth).min_by_key(|group| (evenness(group), group.0)) {
            let megabytes = |node: u64| shares[&node].1 >> 20;
            let reason = format!(
                "from node {from}, which holds {} MiB, to node {to}, which holds {}",
                megabytes(from),
                megabytes(to)
            );
            return Some(moved(group, from, to, reason));
        }
    }
    None
}

/// How many groups there are to be: so many that each core of a node has a replica to look after, if all nodes that
/// stay are heard. Never fewer than there have ever been: what an operator lets go is not founded again.
pub fn wanted_count(view: &View<'_>) -> u32 {
    let staying = view.staying();
    let is_known = staying.iter().all(|node| view.cores.contains_key(node)) && !staying.is_empty();
    if !is_known || !view.founds_groups || !view.roster.is_balancing() {
        return view.group_count;
    }
    let cores: u32 = staying.iter().map(|node| u32::from(view.cores[node])).sum();
    let replicas = view.replicas.min(staying.len()).max(1) as u32;
    (cores / replicas).clamp(view.group_count, GROUPS_MAX.max(view.group_count))
}

/// The groups that are missing to so many: each on as many nodes as are to hold a group, those that hold least first.
/// None while a group has no leader, or no placement where it is to have one: what was begun last comes first.
pub fn foundings(view: &View<'_>, count: u32) -> Vec<Founding> {
    let staying = view.staying();
    let is_placed = staying.len() <= view.replicas || view.others().all(|group| view.roster.placement(group).is_some());
    if !view.is_led() || !is_placed {
        return Vec::new();
    }
    let mut roster = view.roster.clone();
    let mut founded = Vec::new();
    for group in (view.group_count..count.min(GROUPS_MAX)).map(GroupId) {
        let voters: BTreeSet<u64> = match staying.len() <= view.replicas {
            true => staying.clone(),
            false => {
                let view = View { roster: &roster, ..view.clone() };
                view.pick(&BTreeSet::new(), |_| false, view.replicas).into_iter().collect()
            }
        };
        if voters.len() < view.replicas.min(staying.len()) || voters.is_empty() {
            break;
        }
        roster.place(group, voters.clone());
        founded.push(Founding { group, voters });
    }
    founded
}

/// The next group that is to get slots: one that was founded, holds none, and has voters enough. It gets them from
/// those that have most, from their ends, so that what stays and what goes are runs.
pub fn next_filling(view: &View<'_>) -> Option<Filling> {
    let named: BTreeSet<u32> = view.roster.wanted().map(|(.., group)| group.0).collect();
    let mut empty = (view.first_count..view.group_count)
        .filter(|group| !named.contains(group) && !view.roster.is_ending(GroupId(*group)))
        .peekable();
    if !view.roster.is_balancing() || empty.peek().is_none() {
        return None;
    }
    let wished = wished(view.roster, view.first_count);
    let mut held: BTreeMap<u32, Vec<u16>> = BTreeMap::new();
    (0..).zip(&wished).for_each(|(slot, group)| held.entry(*group).or_default().push(slot));
    let staying = view.staying();
    let is_ready = |group: &u32| {
        let voters = view.groups.get(group).map_or(0, |held| held.voters.intersection(&staying).count());
        voters >= view.replicas.min(staying.len()).max(1)
    };
    let group = empty.find(is_ready)?;
    let count = wanted_count(view).saturating_sub(view.gone_count()).max(1) as usize;
    let replicas = view.replicas.min(staying.len()).max(1);
    // Of the first group there are as many copies as nodes: it is to hold so much less than another one that all its
    // copies together are as large as those of another one.
    let copies = |group: u32| if group == 0 { staying.len().max(1) } else { replicas };
    let share = SLOT_COUNT * copies(0) / ((count - 1) * copies(0) + replicas);
    let (mut taken, mut givers): (BTreeSet<u16>, BTreeMap<u32, u64>) = (BTreeSet::new(), BTreeMap::new());
    while taken.len() < share {
        let weight = |giver: u32, slots: &Vec<u16>| slots.len() * copies(giver);
        let fullest = |(giver, slots): &(&u32, &mut Vec<u16>)| (weight(**giver, slots), std::cmp::Reverse(**giver));
        let (giver, slots) = held.iter_mut().max_by_key(fullest)?;
        if weight(*giver, slots) <= share * replicas {
            break;
        }
        taken.insert(slots.pop()?);
        *givers.entry(*giver).or_default() += 1;
    }
    let runs = runs_of(taken.into_iter().map(Slot));
    let slots: Vec<(u16, u16)> = runs.into_iter().map(|(first, last)| (first.0, last.0)).collect();
    let group = GroupId(group);
    let bytes_of = |(giver, count): (u32, u64)| {
        let left = held.get(&giver).map_or(0, |slots| slots.len() as u64);
        (giver, view.bytes_of(GroupId(giver)) * count / (left + count).max(1))
    };
    let givers: BTreeMap<u32, u64> = givers.into_iter().map(bytes_of).collect();
    let bytes = givers.values().sum();
    (!slots.is_empty()).then_some(Filling { group, slots, givers, bytes })
}

/// The most groups that the balancer makes by splits: as many as the cores of all nodes can look after. None while it
/// is not known of a node that stays what cores it has.
fn split_count_max(view: &View<'_>) -> u32 {
    let staying = view.staying();
    let cores: Option<u32> = staying.iter().map(|node| view.cores.get(node).copied().map(u32::from)).sum();
    let replicas = view.replicas.min(staying.len()).max(1) as u32;
    (cores.unwrap_or(0) * GROUPS_PER_CORE / replicas).min(GROUPS_MAX)
}

/// The group that is to split next, if any holds more than a group should, and the slots that split off: the largest
/// first, one at a time, and after all that is founded has its slots.
///
/// What is under way counts: a group with a new half that has not been heard, or lacks slots, splits no further,
/// and what its leader said before it split is known by the number of slots. A group is halved, so it must double
/// before it is split again.
pub fn next_split(view: &View<'_>, by: &Splitting<'_>) -> Option<Split> {
    let may_split = by.bytes_max > 0 && by.level >= LEVEL_OF_SPLITS && view.roster.is_balancing();
    let is_too_large = |held: &Held| held.bytes > by.bytes_max && held.halves.is_some_and(|of| of.all() > by.bytes_max);
    let mut large: Vec<(u32, u64)> =
        view.groups.iter().filter(|(_, held)| is_too_large(held)).map(|(group, held)| (*group, held.bytes)).collect();
    if !may_split || large.is_empty() {
        return None;
    }
    let grows = wanted_count(view) > view.group_count || next_filling(view).is_some();
    let is_full = view.group_count - view.gone_count() >= split_count_max(view) || view.group_count >= GROUPS_MAX;
    if !view.is_led() || grows || view.is_any_on_its_way() || is_full {
        return None;
    }
    let wished = wished(view.roster, view.first_count);
    large.sort_by_key(|(group, bytes)| (std::cmp::Reverse(*bytes), *group));
    large.into_iter().find_map(|(group, _)| split_of(view, by, GroupId(group), &wished))
}

fn split_of(view: &View<'_>, by: &Splitting<'_>, parent: GroupId, wished: &[u32]) -> Option<Split> {
    let held = view.groups.get(&parent.0)?;
    let halves = held.halves?;
    let wish = |slot: Slot| GroupId(wished[usize::from(slot.0)]);
    let slots: BTreeSet<Slot> =
        (0..SLOT_COUNT as u16).map(Slot).filter(|slot| by.slots.group_of_slot(*slot) == parent).collect();
    let is_splitting = slots.iter().any(|slot| view.roster.parent(wish(*slot)) == Some(parent));
    let is_told_before = slots.len() != usize::from(halves.slot_count);
    let is_uneven = halves.bytes[0].min(halves.bytes[1]) < halves.all() / HALF_PART;
    if is_splitting || is_told_before || is_uneven || !view.may_split_here(parent) {
        return None;
    }
    // Those that are to go elsewhere stay until they do.
    let goes: BTreeSet<Slot> = slots.range(halves.middle..).copied().filter(|slot| wish(*slot) == parent).collect();
    if goes.is_empty() || goes.len() == slots.len() {
        return None;
    }
    let (size, most) = (size_text(halves.all()), size_text(by.bytes_max));
    let reason = format!("that one holds {size}, and balance-split-bytes is {most}");
    let (group, bytes) = (GroupId(view.group_count), halves.bytes[1]);
    Some(Split { group, parent, slots: runs_of(goes), bytes, reason })
}

/// What would be split, each taken to be done before the next.
pub fn splits(view: &View<'_>, by: &Splitting<'_>) -> Vec<Step> {
    let mut roster = view.roster.clone();
    let mut groups = view.groups.clone();
    let mut steps = Vec::new();
    loop {
        let group_count = roster.group_count(view.group_count);
        let next = next_split(&View { roster: &roster, groups: groups.clone(), group_count, ..view.clone() }, by);
        let Some(split) = next else { return steps };
        let Some(parent) = groups.get_mut(&split.parent.0) else { return steps };
        parent.bytes = parent.bytes.saturating_sub(split.bytes);
        // Where halves of halves would be split nobody has measured.
        parent.halves = None;
        let new = Held { bytes: split.bytes, ..parent.clone() };
        let nodes = new.voters.clone();
        groups.insert(split.group.0, new);
        roster.split(split.group, split.parent, &split.slots, view.first_count);
        steps.push(Step { group: split.group, nodes, bytes: 0, reason: split.text() });
    }
}

/// Who is to hold each slot when all that has been asked for is done.
fn wished(roster: &Roster, first_count: u32) -> Vec<u32> {
    let even = SlotMap::even(first_count);
    let mut wished: Vec<u32> = (0..SLOT_COUNT as u16).map(|slot| even.group_of_slot(Slot(slot)).0).collect();
    for (first, last, group) in roster.wanted() {
        wished[usize::from(first)..=usize::from(last)].fill(group.0);
    }
    wished
}

/// All that would come, in its order: groups that are founded, filled and split, and then moves between nodes.
pub fn preview(view: &View<'_>, by: &Splitting<'_>) -> Vec<Step> {
    let (mut steps, roster, groups) = growth(view);
    steps.append(&mut splits(view, by));
    let group_count = roster.group_count(view.group_count);
    steps.append(&mut plan(&View { roster: &roster, groups, group_count, ..view.clone() }));
    steps.truncate(PLAN_STEPS_MAX);
    steps
}

/// What would come into being, and what would be filled, before anything moves between nodes; and what there is then.
fn growth(view: &View<'_>) -> (Vec<Step>, Roster, BTreeMap<u32, Held>) {
    let cores: u32 = view.cores.values().map(|cores| u32::from(*cores)).sum();
    let mut steps = Vec::new();
    let mut roster = view.roster.clone();
    let mut groups = view.groups.clone();
    for Founding { group, voters } in foundings(view, wanted_count(view)) {
        let reason = format!("is founded, as the nodes have {cores} cores");
        roster.found(group, voters.clone());
        let leader = voters.first().copied().unwrap_or(0);
        groups.insert(group.0, Held { leader, voters: voters.clone(), ..Held::default() });
        steps.push(Step { group, nodes: voters, bytes: 0, reason });
    }
    let group_count = roster.group_count(view.group_count);
    while let Some(filling) =
        next_filling(&View { roster: &roster, groups: groups.clone(), group_count, ..view.clone() })
    {
        filling.slots.iter().for_each(|(first, last)| _ = roster.want((Slot(*first), Slot(*last)), filling.group));
        for (giver, bytes) in &filling.givers {
            let Some(held) = groups.get_mut(giver) else { continue };
            held.bytes = held.bytes.saturating_sub(*bytes);
        }
        let Some(held) = groups.get_mut(&filling.group.0) else { break };
        held.bytes += filling.bytes;
        // Each of its replicas is given all of it.
        let bytes = filling.bytes * held.voters.len() as u64;
        steps.push(Step { group: filling.group, nodes: held.voters.clone(), bytes, reason: filling.text() });
    }
    (steps, roster, groups)
}

/// All steps that would come, each taken to be done before the next, if nothing else changes meanwhile.
pub fn plan(view: &View<'_>) -> Vec<Step> {
    let mut roster = view.roster.clone();
    let mut groups = view.groups.clone();
    let mut steps = Vec::new();
    while steps.len() < PLAN_STEPS_MAX {
        // What is under way is taken to be done.
        for (group, held) in &mut groups {
            if let Some(nodes) = roster.placement(GroupId(*group)).filter(|_| *group != 0) {
                held.voters.clone_from(nodes);
                held.learners.clear();
                held.leader = if nodes.contains(&held.leader) { held.leader } else { *nodes.first().unwrap_or(&0) };
            }
        }
        let (heard, silent) = (view.heard.clone(), view.silent.clone());
        let next = next_step(&View { roster: &roster, groups: groups.clone(), heard, silent, ..view.clone() });
        let Some(step) = next else { break };
        roster.place(step.group, step.nodes.clone());
        steps.push(step);
    }
    steps
}

/// A vote of the metadata group that is to change hands. It lives on all nodes, and some of them vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoteChange {
    /// This member gets a vote; another one is going to lose its own.
    Give(u64),
    /// There are more voters than there are to be: this one becomes a mere listener.
    Take(u64),
}

/// Which vote of the metadata group is to change hands, if any: nodes that nobody has heard for long give theirs to
/// others, and zones share them evenly. Never is a vote taken before another one has been given.
///
/// `ready` are the members without a vote that could have one, `is_whole` says that all voters are there.
pub fn vote_change(
    roster: &Roster,
    replicas: usize,
    (leader, voters): (u64, &BTreeSet<u64>),
    ready: &BTreeSet<u64>,
    lost: &BTreeSet<u64>,
    is_whole: bool,
) -> Option<VoteChange> {
    let (heard, silent) = (ready.clone(), BTreeSet::new());
    let view = View {
        roster,
        replicas,
        group_count: 0,
        first_count: 0,
        founds_groups: false,
        cores: BTreeMap::new(),
        groups: BTreeMap::new(),
        heard,
        silent,
        lost: lost.clone(),
    };
    if voters.len() > replicas {
        let givers = voters.iter().filter(|voter| **voter != leader);
        let surplus = givers.max_by_key(|voter| (lost.contains(voter), view.mates(**voter, voters), **voter))?;
        return Some(VoteChange::Take(*surplus));
    }
    if voters.len() < replicas || !roster.is_balancing() {
        return None;
    }
    let there = voters - lost;
    if there.len() < voters.len() {
        return view.pick(&there, |_| false, 1).first().copied().map(VoteChange::Give);
    }
    let before = view.crowding(voters);
    let others = || voters.iter().filter(|voter| **voter != leader);
    let after = |to: &u64| others().map(|from| view.crowding(&exchanged(voters, *from, *to))).min();
    let best = ready.iter().filter_map(|to| Some((after(to)?, *to))).min().filter(|(after, _)| *after < before);
    best.filter(|_| is_whole).map(|(_, to)| VoteChange::Give(to))
}

/// What leaders are spread by.
#[derive(Clone, Copy, Debug)]
pub struct Spreading<'a> {
    /// Who belongs to the cluster, which group is to live where, and whom operators prefer.
    pub roster: &'a Roster,
    /// How many nodes are to hold each group.
    pub replicas: usize,
    /// Groups of the cluster.
    pub group_count: u32,
    /// Zones in which leaders are to be, those that are preferred first (`leader-zones`).
    pub zones: &'a [String],
}

impl Spreading<'_> {
    /// The place of a node's zone among those in which leaders are to be; behind all if it is in none of them.
    pub fn rank(&self, node: u64) -> usize {
        let zone = self.roster.zone(NodeId(node));
        self.zones.iter().position(|name| Some(name.as_str()) == zone).unwrap_or(self.zones.len())
    }

    /// Of these nodes those in the zone that is preferred.
    pub fn in_best_zone(&self, nodes: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let nodes: Vec<u64> = nodes.into_iter().collect();
        let best = nodes.iter().map(|node| self.rank(*node)).min();
        nodes.into_iter().filter(|node| Some(self.rank(*node)) == best).collect()
    }

    /// Who is to lead a group with these voters, so that every node leads as many as any other, as far as it holds them
    /// and is fit. Groups for which operators prefer somebody count first: what was said of one of them once must not
    /// bring all others to the same node.
    pub fn leader_of(&self, group: GroupId, voters: &BTreeSet<u64>, is_fit: impl Fn(u64) -> bool) -> Option<u64> {
        let staying: BTreeSet<u64> = self.roster.staying().map(|node| node.0).collect();
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        let named = |group: GroupId| self.roster.preferred(group).map(|node| node.0);
        for node in (0..self.group_count).filter_map(|group| named(GroupId(group))) {
            *counts.entry(node).or_default() += 1;
        }
        for other in (0..=group.0).map(GroupId).filter(|other| !self.roster.is_gone(*other)) {
            let candidates: BTreeSet<u64> = match self.roster.placement(other) {
                _ if other == group => voters & &staying,
                _ if named(other).is_some() => continue,
                Some(nodes) => nodes & &staying,
                None if staying.len() <= self.replicas => staying.clone(),
                // Of so many nodes nobody knows here which of them vote.
                None => continue,
            };
            let candidates = self.in_best_zone(candidates.into_iter().filter(|node| is_fit(*node)));
            let fewest = candidates.into_iter().min_by_key(|node| (counts.get(node).copied().unwrap_or(0), *node));
            match fewest {
                _ if other == group => return fewest,
                Some(fewest) => *counts.entry(fewest).or_default() += 1,
                None => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
