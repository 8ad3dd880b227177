//! Which node is to hold which group, and how many groups there are to be: one step after the other, so that every node
//! that stays holds its share, and has work for its cores.
//!
//! A pure function of the roster and of what leaders say of their groups. Nothing is remembered between two steps: the
//! roster says what is wanted, the bulletins say how far it has come, and what is under way counts as done. So a new
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
//! for.
//!
//! Moves come one at a time, and only to nodes that are heard. Every step of the last kinds makes zones hold copies
//! more evenly, or leaves that as it is and makes the shares more even than they were, so that none is taken back. A
//! node that is merely away keeps what it holds. One of which nobody has named a zone is in one of its own.

use std::collections::{BTreeMap, BTreeSet};

use stdx::slot::{SLOT_COUNT, Slot, runs_of};
use stdx::{Instant, Level};

use crate::bulletin::{Bulletin, Halves};
use crate::core::Context;
use crate::event::{GroupId, NodeId, Room};
use crate::group::LEVEL_OF_SPLITS;
use crate::limits;
use crate::roster::{GROUPS_MAX, Roster};
use crate::slots::SlotMap;

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

impl From<&Bulletin> for Held {
    fn from(told: &Bulletin) -> Self {
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
    /// The groups whose leaders have been heard just now.
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
    /// Who gives them.
    pub givers: BTreeSet<u32>,
    /// About so many bytes travel.
    pub bytes: u64,
}

impl Filling {
    /// How many slots.
    pub fn slot_count(&self) -> usize {
        self.slots.iter().map(|(first, last)| usize::from(last - first) + 1).sum()
    }

    /// What is going to happen, in one line.
    pub fn text(&self) -> String {
        let givers: Vec<_> = self.givers.iter().map(u32::to_string).collect();
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
        (1..self.group_count).map(GroupId)
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

    /// True if something may be moved for the sake of evenness: one move at a time, and none on hearsay.
    fn is_at_rest(&self) -> bool {
        self.roster.is_balancing() && self.others().all(|group| self.is_settled(group))
    }

    /// The nodes that are heard and could hold the group beside these, the emptiest first.
    fn candidates(&self, beside: &BTreeSet<u64>) -> Vec<u64> {
        let mut found: Vec<_> = self.shares().into_iter().collect();
        found.retain(|(node, _)| self.heard.contains(node) && !beside.contains(node));
        found.sort_by_key(|(node, share)| (*share, *node));
        found.into_iter().map(|(node, _)| node).collect()
    }
}

/// What a core knows: bulletins are kept by the first.
pub(crate) fn view_of<'a>(context: &Context, roster: &'a Roster, now: Instant) -> View<'a> {
    let is_fresh = |heard: Instant| now.since(heard) < limits::BULLETIN_STALE;
    let told = context.bulletins.iter().filter(|(_, heard)| is_fresh(*heard)).map(|(told, _)| told);
    let groups = told.map(|told| (told.group.0, Held::from(told)));
    let neighbours = &context.neighbours;
    let is_fit = |node: NodeId| match node == context.node {
        true => context.room == Room::Enough && !context.is_stopping,
        false => neighbours.can_lead(node),
    };
    let is_long = |since: Option<Instant>| since.is_none_or(|since| now.since(since) >= limits::BALANCE_PATIENCE);
    let nodes = || roster.staying();
    let cores = |node: NodeId| match node == context.node {
        true => Some(context.core_count),
        false => neighbours.core_count(node),
    };
    View {
        roster,
        replicas: context.settings.replica_count,
        group_count: roster.group_count(context.group_count),
        first_count: context.slots.first_count(),
        founds_groups: context.founds_groups,
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
pub(crate) fn splitting_of(context: &Context) -> Splitting<'_> {
    Splitting { slots: &context.slots, bytes_max: context.settings.balance_split_bytes, level: context.level }
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
/// stay are heard. Never fewer than there are.
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
    let is_led = (0..view.group_count).all(|group| view.groups.contains_key(&group));
    if !is_led || !is_placed {
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
    let mut empty = (view.first_count..view.group_count).filter(|group| !named.contains(group)).peekable();
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
    let share = SLOT_COUNT / wanted_count(view) as usize;
    let (mut taken, mut givers, mut bytes) = (BTreeSet::new(), BTreeSet::new(), 0);
    while taken.len() < share {
        let (giver, slots) = held.iter_mut().max_by_key(|(giver, slots)| (slots.len(), std::cmp::Reverse(**giver)))?;
        if slots.len() <= share {
            break;
        }
        bytes += view.bytes_of(GroupId(*giver)) / slots.len() as u64;
        taken.insert(slots.pop()?);
        givers.insert(*giver);
    }
    let runs = runs_of(taken.into_iter().map(Slot));
    let slots: Vec<(u16, u16)> = runs.into_iter().map(|(first, last)| (first.0, last.0)).collect();
    let group = GroupId(group);
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
/// What is under way counts: a group whose new half has not been heard, or still has slots of it, splits no further,
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
    let is_led = (0..view.group_count).all(|group| view.groups.contains_key(&group));
    let grows = wanted_count(view) > view.group_count || next_filling(view).is_some();
    if !is_led || grows || view.is_any_on_its_way() || view.group_count >= split_count_max(view) {
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

/// What would come into being, and what would be filled, before anything moves between nodes.
pub fn growth(view: &View<'_>) -> Vec<Step> {
    let cores: u32 = view.cores.values().map(|cores| u32::from(*cores)).sum();
    let mut steps = Vec::new();
    let mut roster = view.roster.clone();
    let mut groups = view.groups.clone();
    for Founding { group, voters } in foundings(view, wanted_count(view)) {
        let reason = format!("is founded, as the nodes have {cores} cores");
        roster.found(group, voters.clone());
        groups.insert(group.0, Held { voters: voters.clone(), ..Held::default() });
        steps.push(Step { group, nodes: voters, bytes: 0, reason });
    }
    let group_count = roster.group_count(view.group_count);
    while let Some(filling) =
        next_filling(&View { roster: &roster, groups: groups.clone(), group_count, ..view.clone() })
    {
        filling.slots.iter().for_each(|(first, last)| _ = roster.want((Slot(*first), Slot(*last)), filling.group));
        let nodes = groups[&filling.group.0].voters.clone();
        steps.push(Step { group: filling.group, nodes, bytes: filling.bytes, reason: filling.text() });
    }
    steps
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
        for other in (0..=group.0).map(GroupId) {
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
mod tests {
    use stdx::Prng;

    use super::*;
    use crate::roster::Member;

    const MIB: u64 = 1 << 20;

    struct World {
        roster: Roster,
        groups: BTreeMap<u32, Held>,
        heard: BTreeSet<u64>,
        replicas: usize,
        group_count: u32,
        /// Of each node; none: nothing is founded.
        cores: u16,
        lost: BTreeSet<u64>,
    }

    impl World {
        fn new(nodes: u64, group_count: u32, replicas: usize, mut bytes: impl FnMut(u32) -> u64) -> Self {
            let mut roster = Roster::default();
            (1..=nodes).for_each(|node| _ = roster.enlist(NodeId(node), Member::default()));
            let voters: BTreeSet<u64> = (1..=nodes.min(replicas as u64)).collect();
            let learners = BTreeSet::new();
            let mut held = |group| {
                let (voters, learners) = (voters.clone(), learners.clone());
                Held { leader: 1, voters, learners, bytes: bytes(group), halves: None }
            };
            let groups = (0..group_count).map(|group| (group, held(group))).collect();
            let heard = (1..=nodes).collect();
            Self { roster, groups, heard, replicas, group_count, cores: 0, lost: BTreeSet::new() }
        }

        /// The nodes are in these zones, one after the other.
        fn zoned(mut self, zones: &[&str]) -> Self {
            let nodes: Vec<u64> = self.staying().into_iter().collect();
            nodes.iter().zip(zones.iter().cycle()).for_each(|(node, zone)| self.enter(*node, zone));
            self
        }

        fn enter(&mut self, node: u64, zone: &str) {
            self.roster.enlist(NodeId(node), Member { zone: zone.to_owned(), ..Member::default() });
        }

        /// How many copies of a group each zone holds.
        fn copies(&self, nodes: &BTreeSet<u64>) -> BTreeMap<String, usize> {
            let mut copies = BTreeMap::new();
            for node in nodes {
                let zone = self.roster.zone(NodeId(*node)).map_or_else(|| format!("of {node}"), str::to_owned);
                *copies.entry(zone).or_default() += 1;
            }
            copies
        }

        /// No zone with a node to spare holds two copies of a group less than another.
        fn assert_zones_respected(&self, what: &str) {
            for (group, nodes) in self.roster.placements() {
                let copies = self.copies(nodes);
                let most = copies.values().max().copied().unwrap_or(0);
                for node in self.heard.intersection(&self.staying()).filter(|node| !nodes.contains(node)) {
                    let zone = self.copies(&BTreeSet::from([*node])).into_keys().next().unwrap();
                    let here = copies.get(&zone).copied().unwrap_or(0);
                    assert!(here + 2 > most, "{what}: {group:?} has {copies:?}, and node {node} of {zone} is free");
                }
            }
        }

        fn view(&self) -> View<'_> {
            let Self { roster, groups, heard, replicas, group_count, .. } = self;
            let (groups, heard) = (groups.clone(), heard.clone());
            let silent = self.staying().difference(&heard).copied().collect();
            let cores = heard.iter().map(|node| (*node, self.cores)).collect();
            View {
                roster,
                replicas: *replicas,
                group_count: roster.group_count(*group_count),
                first_count: *group_count,
                founds_groups: self.cores > 0,
                cores,
                groups,
                heard,
                silent,
                lost: self.lost.clone(),
            }
        }

        fn staying(&self) -> BTreeSet<u64> {
            self.roster.staying().map(|node| node.0).collect()
        }

        fn join(&mut self, node: u64) {
            self.roster.enlist(NodeId(node), Member::default());
            self.heard.insert(node);
        }

        fn leave(&mut self, node: u64) {
            self.roster.enlist(NodeId(node), Member { is_leaving: true, ..Member::default() });
        }

        /// What is wanted has come about.
        fn settle(&mut self) {
            for (group, nodes) in self.roster.placements() {
                // One that is about to split off is nowhere yet.
                let Some(held) = self.groups.get_mut(&group.0) else { continue };
                held.voters.clone_from(nodes);
                held.learners.clear();
                held.leader = if nodes.contains(&held.leader) { held.leader } else { *nodes.first().unwrap() };
            }
        }

        /// Takes steps until there are none; every one must come to its end, and none may return to where it was.
        fn rest(&mut self) -> Vec<Step> {
            let mut steps = Vec::new();
            let mut seen = BTreeSet::new();
            self.settle();
            while let Some(step) = next_step(&self.view()) {
                assert!(self.roster.place(step.group, step.nodes.clone()), "nothing changes: {step:?}");
                let placements: Vec<_> = self.roster.placements().map(|(_, nodes)| nodes.clone()).collect();
                assert!(seen.insert(placements), "this has been so before: {step:?}");
                self.settle();
                steps.push(step);
            }
            steps
        }

        fn counts(&self) -> Vec<usize> {
            self.view().shares().values().map(|(count, _)| *count).collect()
        }
    }

    #[test]
    fn up_to_so_many_nodes_as_hold_a_group_nothing_is_placed() {
        for nodes in 1..=3 {
            assert_eq!(next_step(&World::new(nodes, 8, 3, |_| MIB).view()), None);
        }
    }

    #[test]
    fn newcomers_get_their_share_and_who_leaves_is_drained() {
        let mut world = World::new(3, 9, 3, |_| MIB);
        world.join(4);
        let steps = world.rest();
        assert_eq!(world.counts(), [6, 6, 6, 6]);
        // What has been placed where it was has cost nothing; each other step moves one replica.
        assert_eq!(steps.iter().map(|step| step.bytes).sum::<u64>(), 6 * MIB);
        world.join(5);
        world.rest();
        assert!(world.counts().iter().all(|count| (4..=5).contains(count)), "{:?}", world.counts());
        world.leave(1);
        world.leave(2);
        world.rest();
        assert_eq!(world.counts(), [8, 8, 8], "all on the three that stay");
        assert!(world.roster.placements().all(|(_, nodes)| nodes.iter().all(|node| *node > 2)));
    }

    #[test]
    fn one_move_is_under_way_at_a_time_and_counts_as_done() {
        let mut world = World::new(3, 5, 3, |_| MIB);
        world.join(4);
        while let Some(step) = next_step(&world.view()).filter(|step| step.bytes == 0) {
            world.roster.place(step.group, step.nodes);
        }
        let first = next_step(&world.view()).expect("node 4 holds nothing");
        world.roster.place(first.group, first.nodes.clone());
        assert_eq!(next_step(&world.view()), None, "the first has not come to its end");
        // Nor has it while the newcomer only listens.
        world.groups.get_mut(&first.group.0).unwrap().learners.insert(4);
        assert_eq!(next_step(&world.view()), None);
        world.settle();
        assert_ne!(next_step(&world.view()).expect("more is to come").group, first.group);
    }

    #[test]
    fn a_node_that_is_away_keeps_what_it_holds_and_gets_nothing() {
        let mut world = World::new(4, 9, 3, |_| MIB);
        world.rest();
        let before: Vec<_> = world.roster.placements().map(|(_, nodes)| nodes.clone()).collect();
        world.heard.remove(&2);
        assert_eq!(next_step(&world.view()), None);
        world.join(5);
        let steps = world.rest();
        assert!(steps.iter().all(|step| step.nodes.contains(&5)), "{steps:?}");
        let lost = before
            .iter()
            .zip(world.roster.placements())
            .filter(|(before, (_, after))| before.contains(&2) && !after.contains(&2));
        assert_eq!(lost.count(), 0, "nothing is taken from it");
    }

    #[test]
    fn a_newcomer_that_falls_silent_before_it_votes_is_passed_over() {
        let mut world = World::new(3, 3, 3, |_| MIB);
        world.join(4);
        while world.roster.placements().all(|(_, nodes)| !nodes.contains(&4)) {
            let step = next_step(&world.view()).unwrap();
            world.roster.place(step.group, step.nodes);
        }
        world.heard.remove(&4);
        let step = next_step(&world.view()).unwrap();
        assert_eq!(step.nodes, (1..=3).collect(), "who held it holds it on: {step:?}");
        assert_eq!(step.bytes, 0);
    }

    #[test]
    fn switched_off_nothing_moves_but_what_leaves() {
        let mut world = World::new(4, 6, 3, |_| MIB);
        world.rest();
        world.join(5);
        world.roster.balance(false);
        assert_eq!(next_step(&world.view()), None);
        world.leave(1);
        let steps = world.rest();
        assert!(!steps.is_empty());
        assert!(world.roster.placements().all(|(_, nodes)| nodes.len() == 3 && !nodes.contains(&1)));
    }

    #[test]
    fn more_or_fewer_replicas_are_made_where_there_is_room() {
        let mut world = World::new(5, 6, 3, |_| MIB);
        world.rest();
        world.replicas = 4;
        world.rest();
        assert!(world.roster.placements().all(|(_, nodes)| nodes.len() == 4));
        world.replicas = 1;
        world.rest();
        assert!(world.roster.placements().all(|(_, nodes)| nodes.len() == 1));
        assert_eq!(world.counts(), [1; 5]);
    }

    fn leader(world: &World, group: u32, zones: &[String], is_fit: impl Fn(u64) -> bool) -> u64 {
        let (roster, replicas, group_count) = (&world.roster, world.replicas, world.group_count);
        let spreading = Spreading { roster, replicas, group_count, zones };
        spreading.leader_of(GroupId(group), &world.groups[&group].voters, is_fit).expect("somebody can lead it")
    }

    #[test]
    fn leaders_are_spread_over_those_who_hold_the_groups() {
        let mut world = World::new(5, 11, 3, |_| MIB);
        world.rest();
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for group in 1..11 {
            let leader = leader(&world, group, &[], |_| true);
            assert!(world.roster.is_placed(GroupId(group), NodeId(leader)));
            *counts.entry(leader).or_default() += 1;
        }
        assert_eq!(counts.len(), 5, "{counts:?}");
        assert!(counts.values().all(|count| (1..=3).contains(count)), "{counts:?}");
    }

    /// Leaders were spread by an operator, so that each group prefers a node, and then one of these nodes leaves: the
    /// group that has lost the node it preferred goes to the one that leads nothing, and not to one that leads already.
    #[test]
    fn after_a_spreading_and_a_removal_no_node_leads_both_groups() {
        for (gone, preferred) in [(1, [1, 2]), (2, [2, 1]), (1, [2, 1]), (3, [3, 1]), (3, [2, 3]), (2, [1, 2])] {
            let mut world = World::new(3, 2, 3, |_| MIB);
            for (group, node) in (0..).zip(preferred) {
                world.roster.prefer(GroupId(group), Some(NodeId(node)));
            }
            world.leave(gone);
            for held in world.groups.values_mut() {
                held.voters.remove(&gone);
            }
            let leaders: BTreeSet<u64> = (0..2)
                .map(|group| match world.roster.preferred(GroupId(group)) {
                    Some(node) => node.0,
                    None => leader(&world, group, &[], |_| true),
                })
                .collect();
            assert_eq!(leaders.len(), 2, "node {gone} leaves of {preferred:?}: {leaders:?} leads both");
        }
    }

    #[test]
    fn leaders_are_in_the_zone_that_is_preferred_while_it_has_fit_nodes() {
        let mut world = World::new(6, 13, 3, |_| MIB).zoned(&["a", "b", "c"]);
        world.rest();
        let zones = ["b", "a"].map(str::to_owned);
        let zone_of = |node: u64| world.roster.zone(NodeId(node)).unwrap().to_owned();
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for group in 1..13 {
            let leader = leader(&world, group, &zones, |_| true);
            *counts.entry(leader).or_default() += 1;
            assert_eq!(zone_of(leader), "b");
        }
        assert_eq!(counts.len(), 2, "both nodes of the zone lead: {counts:?}");
        for group in 1..13 {
            assert_eq!(zone_of(leader(&world, group, &zones, |node| zone_of(node) != "b")), "a");
            assert_eq!(zone_of(leader(&world, group, &zones, |node| zone_of(node) == "c")), "c");
        }
    }

    #[test]
    fn copies_are_in_different_zones_as_far_as_there_are_zones() {
        let mut world = World::new(3, 9, 3, |_| MIB).zoned(&["a", "a", "b"]);
        assert_eq!(world.rest(), [], "each node holds everything");
        world.join(4);
        world.enter(4, "c");
        let steps = world.rest();
        world.assert_zones_respected("a node came to a third zone");
        assert!(steps.iter().any(|step| step.reason.starts_with("zone c has no copy of group")), "{steps:?}");
        assert_eq!(world.counts()[2..], [8, 8], "zones b and c have one node each: {:?}", world.counts());
        // Two zones for three copies: two and one, or one and two.
        let mut world = World::new(6, 9, 3, |_| MIB).zoned(&["a", "b"]);
        world.rest();
        world.assert_zones_respected("two zones");
        assert_eq!(world.counts(), [4; 6]);
        // A node that is carried to another zone.
        world.enter(1, "b");
        world.enter(2, "c");
        world.rest();
        world.assert_zones_respected("zones changed");
    }

    #[test]
    fn a_zone_that_is_gone_for_long_is_replaced_and_gets_its_copies_back() {
        let mut world = World::new(6, 7, 3, |_| MIB).zoned(&["a", "b", "c"]);
        world.rest();
        world.assert_zones_respected("at the start");
        let before = world.counts();
        for node in [3, 6] {
            world.heard.remove(&node);
        }
        assert_eq!(next_step(&world.view()), None, "they are away, and not gone");
        world.lost = [3, 6].into();
        world.roster.balance(false);
        assert_eq!(next_step(&world.view()), None, "switched off nothing is replaced");
        world.roster.balance(true);
        let steps = world.rest();
        assert_eq!(steps.len(), 6, "a copy of each group that is placed: {steps:?}");
        assert!(world.roster.placements().all(|(_, nodes)| nodes.len() == 3 && nodes.is_disjoint(&world.lost)));
        world.lost.clear();
        world.heard.extend([3, 6]);
        world.rest();
        world.assert_zones_respected("the zone has returned");
        assert_eq!(world.counts(), before);
    }

    #[test]
    fn one_group_after_the_other_is_replaced_and_only_where_there_is_room() {
        let mut world = World::new(4, 5, 3, |_| MIB);
        world.rest();
        world.heard.remove(&2);
        world.lost.insert(2);
        let step = next_step(&world.view()).expect("node 2 is gone");
        world.roster.place(step.group, step.nodes.clone());
        assert!(!step.nodes.contains(&2) && step.nodes.len() == 3, "{step:?}");
        assert_eq!(next_step(&world.view()), None, "the first is on its way");
        world.settle();
        world.rest();
        assert!(world.roster.placements().all(|(_, nodes)| nodes.len() == 3 && !nodes.contains(&2)));
        // Of three nodes each holds everything: nobody is there who could take the place of one.
        let mut world = World::new(3, 5, 3, |_| MIB);
        (world.heard, world.lost) = ([1, 3].into(), [2].into());
        assert_eq!(next_step(&world.view()), None);
    }

    #[test]
    fn votes_of_the_metadata_go_to_other_zones_and_from_who_is_gone() {
        let mut world = World::new(5, 1, 3, |_| MIB).zoned(&["a", "a", "a", "b", "c"]);
        let mut voters: BTreeSet<u64> = [1, 2, 3].into();
        let mut changes = Vec::new();
        let none = BTreeSet::new();
        for lost in [&none, &BTreeSet::from([4])] {
            let staying = world.staying();
            loop {
                let ready: BTreeSet<u64> = &(&staying - &voters) - lost;
                match vote_change(&world.roster, 3, (1, &voters), &ready, lost, lost.is_empty()) {
                    Some(VoteChange::Give(node)) => assert!(voters.insert(node), "{node} votes"),
                    Some(VoteChange::Take(node)) => assert!(voters.len() > 3 && voters.remove(&node)),
                    None => break,
                }
                changes.push(voters.clone());
                assert!(changes.len() < 20, "it goes round: {changes:?}");
            }
            assert_eq!(voters.len(), 3);
            assert!(voters.is_disjoint(lost) && voters.contains(&5) && voters.contains(&1), "{voters:?}");
            assert_eq!(voters.contains(&4), lost.is_empty(), "{voters:?}");
        }
        world.roster.balance(false);
        let (voters, ready) = ([1, 2, 3].into(), [4, 5].into());
        assert_eq!(vote_change(&world.roster, 3, (1, &voters), &ready, &none, true), None);
    }

    #[test]
    fn whatever_happens_every_group_keeps_its_nodes_and_all_comes_to_rest() {
        for seed in 0..400 {
            let mut prng = Prng::new(seed);
            let (nodes, groups) = (1 + prng.below(6), 1 + prng.below(24) as u32);
            let replicas = 1 + prng.below(4) as usize;
            let mut sizes = prng.fork();
            let mut world = World::new(nodes, groups, replicas, |_| sizes.below(600) * MIB);
            let mut last = nodes;
            let mut zones = prng.fork();
            let zone_count = zones.below(5);
            let mut zone = || {
                if zone_count > 0 && zones.chance(4, 5) { zones.below(zone_count).to_string() } else { String::new() }
            };
            (1..=nodes).for_each(|node| world.enter(node, &zone()));
            for _ in 0..8 {
                match prng.below(7) {
                    0 | 1 => {
                        last += 1;
                        world.join(last);
                        world.enter(last, &zone());
                    }
                    5 => {
                        let node = 1 + prng.below(last);
                        world.enter(node, &zone());
                    }
                    6 => world.lost = &world.staying() - &world.heard,
                    2 if world.roster.staying().count() > 1 => {
                        let staying: Vec<_> = world.roster.staying().collect();
                        world.leave(staying[prng.below(staying.len() as u64) as usize].0);
                    }
                    3 => _ = world.heard.remove(&(1 + prng.below(last))),
                    _ => world.heard = (1..=last).collect(),
                }
                world.lost = &world.lost - &world.heard;
                // Some of it is interrupted half-way.
                if prng.chance(1, 3)
                    && let Some(step) = next_step(&world.view())
                {
                    world.roster.place(step.group, step.nodes);
                    continue;
                }
                world.rest();
                let staying = world.view().staying();
                let all_heard = staying.iter().all(|node| world.heard.contains(node));
                for (group, placed) in world.roster.placements() {
                    assert_ne!(group.0, 0, "seed {seed}");
                    if all_heard {
                        assert_eq!(placed.len(), replicas.min(staying.len()), "seed {seed} group {group:?}");
                        assert!(placed.is_subset(&staying), "seed {seed}: {placed:?} of {staying:?}");
                    }
                }
                let counts = world.counts();
                let has_placements = world.roster.placements().next().is_some();
                if all_heard {
                    world.assert_zones_respected(&format!("seed {seed}"));
                }
                let is_gone_replaced = |nodes: &BTreeSet<u64>| nodes.is_disjoint(&world.lost);
                let has_room = staying.intersection(&world.heard).count() >= replicas;
                if has_room && 2 * world.heard.intersection(&staying).count() > staying.len() {
                    let placed = world.roster.placements().map(|(_, nodes)| nodes);
                    assert!(placed.into_iter().all(is_gone_replaced), "seed {seed}: {:?} is gone", world.lost);
                }
                if all_heard && has_placements && groups > 1 && zone_count == 0 {
                    let apart = counts.iter().max().unwrap() - counts.iter().min().unwrap();
                    assert!(apart <= 1, "seed {seed}: {counts:?}");
                }
            }
        }
    }

    /// Founds what is to be founded, and fills it.
    fn grow(world: &mut World) -> Vec<Step> {
        let planned = growth(&world.view());
        let (view, count) = (world.view(), wanted_count(&world.view()));
        let founded = foundings(&view, count);
        for Founding { group, voters } in founded {
            assert!(world.roster.found(group, voters.clone()));
            assert_eq!(next_filling(&world.view()).map(|filling| filling.group), None, "it has no leader yet");
            world.groups.insert(group.0, Held { leader: *voters.first().unwrap(), voters, ..Held::default() });
            let filling = next_filling(&world.view()).expect("it has voters");
            for (first, last) in filling.slots {
                assert!(world.roster.want((Slot(first), Slot(last)), filling.group));
            }
        }
        planned
    }

    fn slot_counts(world: &World) -> Vec<usize> {
        let wished = wished(&world.roster, world.group_count);
        let groups = world.roster.group_count(world.group_count);
        (0..groups).map(|group| wished.iter().filter(|of| **of == group).count()).collect()
    }

    #[test]
    fn every_core_gets_a_group_and_every_group_its_share_of_slots() {
        for (nodes, groups, replicas, cores, wanted) in
            [(1, 2, 3, 16, 16), (1, 2, 3, 2, 2), (3, 2, 3, 4, 4), (6, 3, 3, 4, 8), (1, 3, 3, 2, 3), (4, 2, 3, 2, 2)]
        {
            let mut world = World::new(nodes, groups, replicas, |_| MIB);
            world.cores = cores;
            world.rest();
            let planned = grow(&mut world);
            let counts = slot_counts(&world);
            assert_eq!(counts.len(), wanted, "{nodes} nodes of {cores} cores");
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= wanted, "{counts:?}");
            assert_eq!(counts.iter().sum::<usize>(), SLOT_COUNT);
            assert_eq!(planned.len(), 2 * (wanted - groups as usize), "{planned:?}");
            assert_eq!(growth(&world.view()), [], "and comes to rest");
            world.rest();
            assert!(world.roster.placements().all(|(_, nodes)| nodes.len() == replicas.min(world.heard.len())));
        }
    }

    #[test]
    fn nothing_is_founded_while_anybody_is_away_or_the_balancer_is_off() {
        let mut world = World::new(3, 2, 3, |_| MIB);
        world.cores = 8;
        world.heard.remove(&2);
        assert_eq!(growth(&world.view()), [], "nobody knows what cores node 2 has");
        world.heard.insert(2);
        world.groups.remove(&1);
        assert_eq!(growth(&world.view()), [], "a group has no leader");
        world.groups.insert(1, Held { leader: 1, voters: (1..=3).collect(), ..Held::default() });
        world.roster.balance(false);
        assert_eq!(growth(&world.view()), []);
        // An operator may ask for groups all the same; they get slots when the balancer may move them.
        assert_eq!(foundings(&world.view(), 4).len(), 2);
        world.roster.balance(true);
        assert_eq!(growth(&world.view()).len(), 12);
    }

    #[test]
    fn a_group_without_voters_enough_gets_no_slots() {
        let mut world = World::new(3, 2, 3, |_| MIB);
        world.roster.found(GroupId(2), (1..=3).collect());
        world.groups.insert(2, Held { leader: 1, voters: [1, 2].into(), ..Held::default() });
        assert_eq!(next_filling(&world.view()), None);
        world.groups.insert(2, Held { leader: 1, voters: (1..=3).collect(), ..Held::default() });
        let filling = next_filling(&world.view()).unwrap();
        assert_eq!((filling.slot_count(), filling.givers), (SLOT_COUNT / 3, [0, 1].into()));
    }

    #[test]
    fn a_plan_says_what_would_come() {
        let mut world = World::new(3, 9, 3, |_| MIB);
        world.join(4);
        let planned = plan(&world.view());
        assert_eq!(planned, world.rest());
        assert_eq!(plan(&world.view()), []);
    }

    const GIB: u64 = 1 << 30;

    /// What the leader of a group says that holds these slots, each of so many bytes.
    fn measure(world: &mut World, slots: &SlotMap, group: u32, bytes_of: impl Fn(u16) -> u64) {
        let held = (0..SLOT_COUNT as u16).filter(|slot| slots.group_of_slot(Slot(*slot)).0 == group);
        let sizes: Vec<_> = held.map(|slot| (Slot(slot), bytes_of(slot))).collect();
        let held = world.groups.get_mut(&group).unwrap();
        held.bytes = sizes.iter().map(|(_, bytes)| bytes).sum();
        held.halves = Halves::of(&sizes);
    }

    /// A cluster whose group 1 is too large, and who holds what.
    fn with_large_group(nodes: u64) -> (World, SlotMap) {
        let mut world = World::new(nodes, 3, 3, |_| GIB);
        world.cores = 1;
        if nodes > 3 {
            world.rest();
        }
        let slots = SlotMap::even(3);
        measure(&mut world, &slots, 1, |_| 2 << 20);
        (world, slots)
    }

    fn by(slots: &SlotMap) -> Splitting<'_> {
        Splitting { slots, bytes_max: 8 * GIB, level: LEVEL_OF_SPLITS }
    }

    /// The group has split off, is led, and nobody has measured anything since.
    fn come_about(world: &mut World, slots: &mut SlotMap, split: &Split) {
        let Split { group, parent, slots: runs, bytes, .. } = split;
        assert!(world.roster.split(*group, *parent, runs, world.group_count));
        for slot in runs.iter().flat_map(|(first, last)| first.0..=last.0).map(Slot) {
            slots.learn(crate::slots::Moved { slot, group: *group, epoch: slots.epoch_of(slot) + 1 });
        }
        let parent = world.groups.get_mut(&parent.0).unwrap();
        (parent.bytes, parent.halves) = (parent.bytes - bytes, None);
        let new = Held { bytes: *bytes, ..parent.clone() };
        world.groups.insert(group.0, new);
    }

    #[test]
    fn a_group_that_is_too_large_is_split_in_halves() {
        for nodes in [1, 3, 5] {
            let (mut world, mut slots) = with_large_group(nodes);
            let split = next_split(&world.view(), &by(&slots)).expect("group 1 holds 10.7 GiB");
            assert_eq!((split.group, split.parent), (GroupId(3), GroupId(1)));
            assert_eq!((split.slot_count(), split.slots.len()), (2_731, 1), "half of 5461, in a run");
            assert_eq!(split.bytes, 2_731 << 21);
            assert_eq!(
                split.text(),
                "will split off from group 1, with 2731 slots and 5462 MiB of keys: that one holds 10922 MiB, and \
                 balance-split-bytes is 8192 MiB"
            );
            let steps = splits(&world.view(), &by(&slots));
            assert_eq!(steps.len(), 1, "{steps:?}");
            assert_eq!((steps[0].group, steps[0].bytes), (GroupId(3), 0));
            assert_eq!(steps[0].nodes, world.groups[&1].voters);
            come_about(&mut world, &mut slots, &split);
            for group in [1, 3] {
                measure(&mut world, &slots, group, |_| 2 << 20);
            }
            assert_eq!(next_split(&world.view(), &by(&slots)), None, "and comes to rest");
            assert_eq!(next_filling(&world.view()), None, "the new group has its slots");
        }
    }

    #[test]
    fn halves_are_of_bytes_and_no_group_is_split_for_the_sake_of_one_slot() {
        let (mut world, slots) = with_large_group(3);
        let first = (0..SLOT_COUNT as u16).find(|slot| slots.group_of_slot(Slot(*slot)).0 == 1).unwrap();
        // Two slots hold nearly all, and one of them is the second of the group.
        let large = [first + 1, first + 3_000];
        measure(&mut world, &slots, 1, |slot| if large.contains(&slot) { 5 * GIB } else { 1_000 });
        let split = next_split(&world.view(), &by(&slots)).unwrap();
        let goes = |slot: u16| split.slots.iter().any(|(first, last)| (first.0..=last.0).contains(&slot));
        assert_eq!(large.map(goes), [false, true]);
        assert!((5 * GIB..6 * GIB).contains(&split.bytes), "{split:?}");
        measure(&mut world, &slots, 1, |slot| if slot == large[0] { 20 * GIB } else { 1_000 });
        assert_eq!(next_split(&world.view(), &by(&slots)), None, "it would be as large afterwards");
        // One slot is all that it holds.
        let mut alone = slots.clone();
        for slot in (first + 1..first + 5_461).map(Slot) {
            alone.learn(crate::slots::Moved { slot, group: GroupId(0), epoch: 1 });
        }
        measure(&mut world, &alone, 1, |_| 20 * GIB);
        assert_eq!(next_split(&world.view(), &by(&alone)), None);
    }

    #[test]
    fn no_group_is_split_unless_that_is_allowed() {
        let (mut world, slots) = with_large_group(3);
        assert!(next_split(&world.view(), &by(&slots)).is_some());
        assert_eq!(next_split(&world.view(), &Splitting { level: Level(1), ..by(&slots) }), None);
        assert_eq!(next_split(&world.view(), &Splitting { bytes_max: 0, ..by(&slots) }), None);
        assert_eq!(next_split(&world.view(), &Splitting { bytes_max: 11 * GIB, ..by(&slots) }), None);
        world.roster.balance(false);
        assert_eq!(next_split(&world.view(), &by(&slots)), None);
        world.roster.balance(true);
        // Its leader is of a version that measures nothing, or has something under way.
        world.groups.get_mut(&1).unwrap().halves = None;
        assert_eq!(next_split(&world.view(), &by(&slots)), None);
    }

    #[test]
    fn what_has_begun_is_not_begun_again() {
        let (mut world, mut slots) = with_large_group(3);
        let before = world.groups.clone();
        let split = next_split(&world.view(), &by(&slots)).unwrap();
        assert!(world.roster.split(split.group, split.parent, &split.slots, 3));
        assert_eq!(next_split(&world.view(), &by(&slots)), None, "the new group has not been heard");
        world.roster = Roster::default();
        (1..=3).for_each(|node| _ = world.roster.enlist(NodeId(node), Member::default()));
        come_about(&mut world, &mut slots, &split);
        // What the leader of the group said before it split is still there.
        world.groups.insert(1, before[&1].clone());
        assert_eq!(next_split(&world.view(), &by(&slots)), None, "it tells of more slots than it has");
        let old = SlotMap::even(3);
        assert_eq!(next_split(&world.view(), &by(&old)), None, "nobody here has heard that the slots have gone");
    }

    #[test]
    fn nothing_is_split_while_replicas_change_or_anybody_is_away() {
        let change: [fn(&mut World); 6] = [
            |world| _ = world.heard.remove(&2),
            |world| _ = world.groups.get_mut(&1).unwrap().learners.insert(5),
            |world| _ = world.groups.get_mut(&1).unwrap().voters.insert(5),
            |world| _ = world.groups.remove(&2),
            |world| world.leave(1),
            |world| _ = world.roster.place(GroupId(2), [3, 4, 5].into()),
        ];
        for (place, change) in change.into_iter().enumerate() {
            let (mut world, slots) = with_large_group(5);
            let nodes = [1, 2, 3];
            for group in 1..3 {
                world.roster.place(GroupId(group), nodes.into());
                world.groups.get_mut(&group).unwrap().voters = nodes.into();
            }
            world.groups.get_mut(&0).unwrap().learners = [4, 5].into();
            assert!(next_split(&world.view(), &by(&slots)).is_some());
            change(&mut world);
            assert_eq!(next_split(&world.view(), &by(&slots)), None, "change {place}");
        }
    }

    #[test]
    fn no_more_groups_come_of_splits_than_cores_can_look_after() {
        for (cores, count) in [(1, 4), (2, 8)] {
            let (mut world, mut slots) = with_large_group(3);
            world.cores = cores;
            let most = Splitting { bytes_max: 1, ..by(&slots) }.bytes_max;
            for round in 0.. {
                assert!(round < 20, "it goes on for ever");
                for group in world.groups.keys().copied().collect::<Vec<_>>() {
                    measure(&mut world, &slots, group, |_| MIB);
                }
                let by = Splitting { bytes_max: most, ..by(&slots) };
                let Some(split) = next_split(&world.view(), &by) else { break };
                assert_eq!(
                    split.parent,
                    GroupId(
                        (0..world.groups.len() as u32)
                            .max_by_key(|group| { (world.groups[group].bytes, std::cmp::Reverse(*group)) })
                            .unwrap()
                    ),
                    "the largest first"
                );
                come_about(&mut world, &mut slots, &split);
            }
            assert_eq!(world.groups.len(), count);
        }
    }

    /// What one node knows of the groups: as leaders have told it, and some of that a while ago.
    struct Hearsay {
        told: BTreeMap<u32, Held>,
        slots: SlotMap,
        /// Bytes of each group when its leader told of it.
        bytes: BTreeMap<u32, u64>,
    }

    /// A cluster in which anything may happen, and two nodes that lead the metadata by turns.
    struct Adversary {
        world: World,
        prng: Prng,
        slots: SlotMap,
        sizes: Vec<u64>,
        leaders: [Hearsay; 2],
        /// Groups that have split off.
        born: BTreeSet<u32>,
        bytes_max: u64,
    }

    impl Adversary {
        fn new(seed: u64) -> Self {
            let mut prng = Prng::new(seed);
            let (nodes, groups) = (1 + prng.below(6), 1 + prng.below(3) as u32);
            let mut world = World::new(nodes, groups, 3, |_| 0);
            world.cores = 1 + prng.below(3) as u16;
            let slots = SlotMap::even(groups);
            let leaders =
                [(); 2].map(|()| Hearsay { told: BTreeMap::new(), slots: slots.clone(), bytes: BTreeMap::new() });
            let bytes_max = 1_000 + prng.below(100_000);
            let sizes = vec![0; SLOT_COUNT];
            let mut all = Self { world, prng, slots, sizes, leaders, born: BTreeSet::new(), bytes_max };
            all.live_where_they_are_to_live();
            all
        }

        fn count(&self) -> u32 {
            self.world.roster.group_count(self.world.group_count)
        }

        fn held_by(&self, group: u32) -> Vec<(Slot, u64)> {
            let slots = (0..SLOT_COUNT as u16).map(Slot).filter(|slot| self.slots.group_of_slot(*slot).0 == group);
            slots.map(|slot| (slot, self.sizes[usize::from(slot.0)])).collect()
        }

        fn unborn(&self) -> Option<GroupId> {
            (0..self.count())
                .map(GroupId)
                .find(|group| self.world.roster.parent(*group).is_some() && !self.born.contains(&group.0))
        }

        /// Some are replaced, learn, and vote.
        fn live_where_they_are_to_live(&mut self) {
            self.world.settle();
            let staying = self.world.staying();
            let voters: BTreeSet<u64> = staying.iter().copied().take(3).collect();
            for (group, held) in &mut self.world.groups {
                if self.world.roster.placement(GroupId(*group)).is_none() {
                    held.learners = if *group == 0 { &staying - &voters } else { BTreeSet::new() };
                    held.voters.clone_from(&voters);
                    held.leader = *voters.first().unwrap();
                }
            }
        }

        /// The split that is under way comes about.
        fn split_off(&mut self) {
            let Some(group) = self.unborn() else { return };
            let parent = self.world.roster.parent(group).unwrap();
            let runs: Vec<_> = self.world.roster.wanted().filter(|(.., to)| *to == group).collect();
            for slot in runs.iter().flat_map(|(first, last, _)| *first..=*last).map(Slot) {
                assert_eq!(self.slots.group_of_slot(slot), parent, "slots of another group were to split off");
                let epoch = self.slots.epoch_of(slot) + 1;
                self.slots.learn(crate::slots::Moved { slot, group, epoch });
            }
            let new = self.world.groups[&parent.0].clone();
            self.world.groups.insert(group.0, new);
            self.born.insert(group.0);
        }

        /// A leader of the metadata hears of a group, or where the slots are.
        fn hear(&mut self, leader: usize, group: u32) {
            let sizes = self.held_by(group);
            let Some(held) = self.world.groups.get(&group) else { return };
            let bytes: u64 = sizes.iter().map(|(_, bytes)| bytes).sum();
            let is_splitting = self.unborn().and_then(|group| self.world.roster.parent(group)) == Some(GroupId(group));
            let halves = if bytes > self.bytes_max && !is_splitting { Halves::of(&sizes) } else { None };
            self.leaders[leader].told.insert(group, Held { bytes, halves, ..held.clone() });
            self.leaders[leader].bytes.insert(group, bytes);
        }

        /// Groups come into being by splits alone.
        fn view(&self, told: &BTreeMap<u32, Held>) -> View<'_> {
            View { groups: told.clone(), founds_groups: false, ..self.world.view() }
        }

        /// What this leader of the metadata would let split.
        fn decide(&self, leader: usize, level: Level) -> Option<Split> {
            let Hearsay { told, slots, .. } = &self.leaders[leader];
            let by = Splitting { slots, bytes_max: self.bytes_max, level };
            next_split(&self.view(told), &by)
        }

        /// It does. Whatever it has not heard, this is allowed.
        fn begin(&mut self, leader: usize, split: &Split) {
            assert_eq!(self.unborn(), None, "one at a time: {split:?}");
            assert_eq!(split.group.0, self.count());
            let told = self.leaders[leader].bytes[&split.parent.0];
            assert!(told > self.bytes_max, "{split:?} of {told}, of {}", self.bytes_max);
            assert!(split.bytes >= told / HALF_PART && split.bytes <= told - told / HALF_PART, "{split:?} of {told}");
            let staying = self.world.staying();
            let cores = u64::from(self.world.cores) * staying.len() as u64;
            let replicas = 3.min(staying.len() as u64);
            assert!(u64::from(split.group.0 + 1) * replicas <= cores * u64::from(GROUPS_PER_CORE), "{split:?}");
            let held = &self.leaders[leader].told[&split.parent.0];
            assert!(held.voters.is_subset(&staying) && held.voters.is_subset(&self.world.heard), "{held:?}");
            assert!(split.slot_count() < self.held_by(split.parent.0).len(), "it keeps no slot");
            let Split { group, parent, slots, .. } = split;
            assert!(self.world.roster.split(*group, *parent, slots, self.world.group_count));
        }

        /// Keys come and go: everywhere, in one slot, or not at all any more.
        fn change_keys(&mut self) {
            let most = 1 + self.prng.below(self.bytes_max);
            match self.prng.below(5) {
                0 => self.sizes.fill(0),
                1 => self.sizes.fill(most / 1_000),
                2 => self.sizes[self.prng.below(SLOT_COUNT as u64) as usize] = 3 * most,
                _ => {
                    let first = self.prng.below(SLOT_COUNT as u64) as usize;
                    let last = (first + self.prng.below(4_000) as usize).min(SLOT_COUNT);
                    self.sizes[first..last].fill(self.prng.below(2 + most / 1_000));
                }
            }
        }

        fn change_nodes(&mut self) {
            let last = self.world.roster.all().map(|(node, _)| node.0).max().unwrap();
            let node = 1 + self.prng.below(last);
            match self.prng.below(6) {
                0 if last < 8 => self.world.join(last + 1),
                1 if self.world.staying().len() > 1 && self.world.staying().contains(&node) => self.world.leave(node),
                2 => _ = self.world.heard.remove(&node),
                3 => self.world.cores = 1 + self.prng.below(3) as u16,
                _ => self.world.heard = (1..=last).collect(),
            }
        }

        fn step(&mut self, level: Level) {
            let leader = self.prng.below(2) as usize;
            let group = self.prng.below(u64::from(self.count())) as u32;
            match self.prng.below(16) {
                0 | 1 => self.change_keys(),
                2 => self.change_nodes(),
                3 => self.live_where_they_are_to_live(),
                4 | 5 => self.split_off(),
                6 => self.leaders[leader].slots = self.slots.clone(),
                // It has not been led, and nobody tells of it.
                7 => _ = self.leaders[leader].told.remove(&group),
                8..12 => self.hear(leader, group),
                12 => {
                    let told = self.leaders[leader].told.clone();
                    if let Some(step) = next_step(&self.view(&told)) {
                        self.world.roster.place(step.group, step.nodes);
                    }
                }
                _ => {
                    if let Some(split) = self.decide(leader, level) {
                        assert!(level >= LEVEL_OF_SPLITS, "{split:?}");
                        self.begin(leader, &split);
                    }
                }
            }
        }

        /// All is heard, and nothing changes any more: how many groups still split.
        fn rest(&mut self) -> usize {
            let last = self.world.roster.all().map(|(node, _)| node.0).max().unwrap();
            self.world.heard = (1..=last).collect();
            for split_count in 0.. {
                self.split_off();
                for leader in [0, 1] {
                    self.leaders[leader].slots = self.slots.clone();
                }
                loop {
                    self.live_where_they_are_to_live();
                    (0..self.count()).for_each(|group| self.hear(0, group));
                    let told = self.leaders[0].told.clone();
                    let Some(step) = next_step(&self.view(&told)) else { break };
                    self.world.roster.place(step.group, step.nodes);
                }
                let Some(split) = self.decide(0, LEVEL_OF_SPLITS) else { return split_count };
                self.begin(0, &split);
                assert_eq!(self.decide(0, LEVEL_OF_SPLITS), None, "it has only begun");
                assert_eq!(self.decide(1, LEVEL_OF_SPLITS), None, "either leader knows");
            }
            unreachable!("it comes to rest")
        }
    }

    #[test]
    fn whatever_leaders_have_heard_groups_split_one_at_a_time_and_come_to_rest() {
        let (mut begun, mut at_rest) = (0, 0);
        for seed in 0..80 {
            let mut all = Adversary::new(seed);
            for step in 0..400 {
                all.step(if step < 100 { Level(1) } else { LEVEL_OF_SPLITS });
            }
            begun += all.born.len();
            at_rest += all.rest();
            assert_eq!(all.rest(), 0, "seed {seed}");
            // What is too large now is so for want of cores, or because of a single slot.
            let is_full = all.count() >= split_count_max(&all.world.view());
            for group in 0..all.count() {
                let sizes = all.held_by(group);
                let bytes: u64 = sizes.iter().map(|(_, bytes)| bytes).sum();
                let is_even = Halves::of(&sizes).is_some_and(|of| of.bytes[0].min(of.bytes[1]) >= of.all() / HALF_PART);
                let holds = (bytes, all.bytes_max, is_even);
                assert!(is_full || !is_even || bytes <= all.bytes_max, "seed {seed} group {group}: {holds:?}");
            }
        }
        assert!(begun > 40 && at_rest > 40, "{begun} and {at_rest} splits: they try little");
    }
}
