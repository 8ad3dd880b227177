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
//!          ▼           from the fullest node to the emptiest: by groups, then by bytes
//! ```
//!
//! There are to be so many groups that every core of a node has a replica to look after, and the slots are divided
//! among them: what is missing is founded at once, and each gets its share when it has voters enough. More can be asked
//! for.
//!
//! Moves come one at a time, and only to nodes that are heard. Every step of the last kind makes the shares more even
//! than they were, so that none is taken back. A node that is merely away keeps what it holds.

use std::collections::{BTreeMap, BTreeSet};

use stdx::Instant;
use stdx::slot::{SLOT_COUNT, Slot};

use crate::bulletin::Bulletin;
use crate::core::Context;
use crate::event::{GroupId, NodeId, Room};
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
}

impl From<&Bulletin> for Held {
    fn from(told: &Bulletin) -> Self {
        Self {
            leader: told.leader.0,
            voters: told.voters.iter().copied().collect(),
            learners: told.learners.iter().copied().collect(),
            bytes: told.bytes,
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
    }
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
    found.extend(view.candidates(&chosen));
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
        // Who votes already first: nothing travels.
        let has = |node: &u64| !held.voters.contains(node);
        let mut candidates = view.candidates(&nodes);
        candidates.sort_by_key(has);
        let gone: Vec<String> = placed.difference(staying).map(u64::to_string).collect();
        let missing = replicas - nodes.len();
        let added: Vec<u64> = candidates.into_iter().take(missing).collect();
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
            (!is_of_use, held.leader != **node, shares.get(node).copied(), **node)
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
    let still_votes = |node: &&u64| staying.contains(node) && !placed.contains(node);
    let next = held.voters.iter().find(still_votes).copied().or_else(|| view.candidates(placed).first().copied())?;
    nodes.insert(next);
    Some(view.step(group, nodes, format!("node {next} holds it, as node {silent} has fallen silent")))
}

/// From the fullest node to the emptiest.
fn spread(view: &View<'_>) -> Option<Step> {
    if !view.roster.is_balancing() || view.others().any(|group| view.roster.placement(group).is_none()) {
        return None;
    }
    // One move at a time, and none on hearsay.
    if !view.others().all(|group| view.is_settled(group)) {
        return None;
    }
    let shares = view.shares();
    let is_whole = |group: &GroupId| view.groups[&group.0].voters.iter().all(|voter| view.heard.contains(voter));
    let movable = |from: u64, to: u64| {
        let nodes = |group: &GroupId| view.roster.placement(*group).expect("all are placed");
        view.others()
            .filter(move |group| nodes(group).contains(&from) && !nodes(group).contains(&to) && is_whole(group))
    };
    let moved = |group: GroupId, from: u64, to: u64, reason: String| {
        let mut nodes = view.roster.placement(group).expect("all are placed").clone();
        nodes.remove(&from);
        nodes.insert(to);
        view.step(group, nodes, reason)
    };
    let mut pairs: Vec<(u64, u64)> = Vec::new();
    for from in shares.keys() {
        pairs.extend(shares.keys().filter(|to| view.heard.contains(to) && *to != from).map(|to| (*from, *to)));
    }
    // By groups: whoever is furthest from whom.
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
                view.candidates(&BTreeSet::new()).into_iter().take(view.replicas).collect()
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
    let mut slots: Vec<(u16, u16)> = Vec::new();
    for slot in taken {
        match slots.last_mut() {
            Some((_, last)) if *last + 1 == slot => *last = slot,
            _ => slots.push((slot, slot)),
        }
    }
    let group = GroupId(group);
    (!slots.is_empty()).then_some(Filling { group, slots, givers, bytes })
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

/// Who is to lead a group that is placed, so that every node leads as many as any other, as far as it holds them.
pub fn leader_of(group: GroupId, roster: &Roster) -> Option<u64> {
    roster.placement(group)?;
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    let mut found = None;
    for (other, nodes) in roster.placements().take_while(|(other, _)| *other <= group) {
        let stays = nodes.iter().filter(|node| !roster.is_going(NodeId(**node)));
        let fewest = stays.min_by_key(|node| (counts.get(node).copied().unwrap_or(0), **node)).copied();
        if let Some(fewest) = fewest {
            *counts.entry(fewest).or_default() += 1;
        }
        found = fewest.filter(|_| other == group);
    }
    found
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
    }

    impl World {
        fn new(nodes: u64, group_count: u32, replicas: usize, mut bytes: impl FnMut(u32) -> u64) -> Self {
            let mut roster = Roster::default();
            (1..=nodes).for_each(|node| _ = roster.enlist(NodeId(node), Member::default()));
            let voters: BTreeSet<u64> = (1..=nodes.min(replicas as u64)).collect();
            let learners = BTreeSet::new();
            let mut held =
                |group| Held { leader: 1, voters: voters.clone(), learners: learners.clone(), bytes: bytes(group) };
            let groups = (0..group_count).map(|group| (group, held(group))).collect();
            Self { roster, groups, heard: (1..=nodes).collect(), replicas, group_count, cores: 0 }
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
                let held = self.groups.get_mut(&group.0).unwrap();
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

    #[test]
    fn leaders_are_spread_over_those_who_hold_the_groups() {
        let mut world = World::new(5, 11, 3, |_| MIB);
        world.rest();
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for group in (1..11).map(GroupId) {
            let leader = leader_of(group, &world.roster).expect("it is placed");
            assert!(world.roster.is_placed(group, NodeId(leader)));
            *counts.entry(leader).or_default() += 1;
        }
        assert_eq!(counts.len(), 5, "{counts:?}");
        assert!(counts.values().all(|count| (1..=3).contains(count)), "{counts:?}");
        assert_eq!(leader_of(GroupId(0), &world.roster), None, "the metadata live everywhere");
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
            for _ in 0..8 {
                match prng.below(5) {
                    0 | 1 => {
                        last += 1;
                        world.join(last);
                    }
                    2 if world.roster.staying().count() > 1 => {
                        let staying: Vec<_> = world.roster.staying().collect();
                        world.leave(staying[prng.below(staying.len() as u64) as usize].0);
                    }
                    3 => _ = world.heard.remove(&(1 + prng.below(last))),
                    _ => world.heard = (1..=last).collect(),
                }
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
                if all_heard && has_placements && groups > 1 {
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
}
