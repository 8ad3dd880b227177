//! Who belongs to the cluster and where to find them: replicated by group 0.

use std::collections::{BTreeMap, BTreeSet};

use stdx::slot::{SLOT_COUNT, Slot, runs_of};
use stdx::{Level, leb128};

use crate::entry::{Reader, put_bytes};
use crate::id::{GroupId, NodeId};
use crate::slots::{Moved, SlotMap};

/// One node of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// `HOST:PORT` where other nodes reach it.
    pub cluster_address: String,
    /// `HOST:PORT` where clients reach it.
    pub client_address: String,
    /// The failure domain that it is in (`zone`): a rack, a building. Empty if nobody has said so.
    pub zone: String,
    /// It must go: its groups find others for what it does, and then do without it.
    pub is_leaving: bool,
    /// It has been removed for good: no group has it any more.
    pub is_removed: bool,
}

const REMOVED: u8 = 1;
const LEAVING: u8 = 2;
/// The zone follows behind the addresses. A version that knows only level 1 would take it for what comes next.
const ZONED: u8 = 4;

/// The level that brought zones.
const LEVEL_OF_ZONES: Level = Level(2);

/// The longest name of a zone, in bytes.
pub const ZONE_BYTES_MAX: usize = 64;

/// True if this may be the name of a zone: letters, digits, `-`, `_`, `.` and `/`; none at all is allowed as well.
pub fn is_zone(text: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    text.len() <= ZONE_BYTES_MAX && text.bytes().all(is_fit)
}

impl Member {
    /// Moves both addresses to another host; the ports stay. An IPv6 address stands in brackets.
    pub fn move_to(&mut self, host: &str) {
        for address in [&mut self.cluster_address, &mut self.client_address] {
            if let Some((_, port)) = address.rsplit_once(':') {
                *address = format!("{host}:{port}");
            }
        }
    }

    /// What may be said of it at a level: zones came with level 2.
    #[must_use]
    pub fn known_at(&self, level: Level) -> Self {
        let zone = if level < LEVEL_OF_ZONES { String::new() } else { self.zone.clone() };
        Self { zone, ..self.clone() }
    }

    /// Appends it to an entry or a message.
    pub fn put(&self, out: &mut Vec<u8>) {
        let zoned = u8::from(!self.zone.is_empty()) * ZONED;
        out.push((u8::from(self.is_removed) * REMOVED) | (u8::from(self.is_leaving) * LEAVING) | zoned);
        put_bytes(out, self.cluster_address.as_bytes());
        put_bytes(out, self.client_address.as_bytes());
        if zoned != 0 {
            put_bytes(out, self.zone.as_bytes());
        }
    }

    /// Reads it back.
    pub fn read(reader: &mut Reader<'_>) -> Self {
        let flags = reader.byte();
        let mut text = || String::from_utf8_lossy(reader.bytes()).into_owned();
        Self {
            cluster_address: text(),
            client_address: text(),
            zone: if flags & ZONED != 0 { text() } else { String::new() },
            is_leaving: flags & LEAVING != 0,
            is_removed: flags & REMOVED != 0,
        }
    }

    /// True if it is found at the same places, and in the same zone.
    pub fn is_found_as(&self, other: &Self) -> bool {
        let place = |of: &Self| [&of.cluster_address, &of.client_address, &of.zone].map(String::clone);
        place(self) == place(other)
    }
}

/// All nodes that ever belonged to the cluster, and which are preferred to lead. Nodes that were removed stay listed,
/// so that an old list never brings one of them back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    members: BTreeMap<u64, Member>,
    /// By group.
    preferred: BTreeMap<u32, u64>,
    /// Which group must hold which slots, by the first of them: the last, and the group.
    wanted: BTreeMap<u16, (u16, u32)>,
    /// Which nodes must hold a group, by group. One that is not named lives on all.
    placed: BTreeMap<u32, BTreeSet<u64>>,
    /// Groups stay where they are, but for those of nodes that leave.
    is_balancing_off: bool,
    /// Groups that have been founded since the cluster was, each with the nodes that voted in it first.
    founded: BTreeMap<u32, BTreeSet<u64>>,
    /// Groups of these that split off from another one, with that one. They have no founders: who holds the other one
    /// when it splits has them.
    parents: BTreeMap<u32, u32>,
    /// Groups that are to go, with those that get their slots.
    going: BTreeMap<u32, u32>,
    /// Groups that have gone. Their numbers are never given again.
    gone: BTreeMap<u32, Gone>,
}

/// What is known of a group that has gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// Index of the entry that ended its log.
    pub index: u64,
    /// What it said last of slots that it had held: who knows that it held one finds it by that.
    pub given: Vec<Given>,
}

/// Where a group says that slots are that it has given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// The first slot and the last.
    pub slots: (Slot, Slot),
    /// To whom it gave them.
    pub group: GroupId,
    /// The epoch of each of them then.
    pub epoch: u64,
}

impl Given {
    /// What there is to say of slots, in as few runs as possible.
    pub fn of(all: impl Iterator<Item = Moved>) -> Vec<Self> {
        let mut runs: Vec<Self> = Vec::new();
        for Moved { slot, group, epoch } in all {
            match runs.last_mut() {
                Some(last) if last.slots.1.0 + 1 == slot.0 && (last.group, last.epoch) == (group, epoch) => {
                    last.slots.1 = slot;
                }
                _ => runs.push(Self { slots: (slot, slot), group, epoch }),
            }
        }
        runs
    }

    /// Slot by slot.
    pub fn each(self) -> impl Iterator<Item = Moved> {
        let Self { slots: (first, last), group, epoch } = self;
        (first.0..=last.0.min(SLOT_COUNT as u16 - 1)).map(move |slot| Moved { slot: Slot(slot), group, epoch })
    }
}

impl Gone {
    /// Appends it to an entry or a message.
    pub fn put(&self, out: &mut Vec<u8>) {
        leb128::put(out, self.index);
        leb128::put(out, self.given.len() as u64);
        for Given { slots: (first, last), group, epoch } in &self.given {
            for number in [u64::from(first.0), u64::from(last.0), u64::from(group.0), *epoch] {
                leb128::put(out, number);
            }
        }
    }

    /// Reads it back.
    pub fn read(reader: &mut Reader<'_>) -> Self {
        let given = |reader: &mut Reader<'_>| Given {
            slots: (Slot(reader.number() as u16), Slot(reader.number() as u16)),
            group: GroupId(reader.number() as u32),
            epoch: reader.number(),
        };
        Self { index: reader.number(), given: (0..reader.number()).map(|_| given(reader)).collect() }
    }

    /// Reads it back from what another node says; `None` if it is none.
    pub fn take(rest: &mut &[u8]) -> Option<Self> {
        let slot = |rest: &mut &[u8]| {
            u16::try_from(leb128::take(rest)?).ok().filter(|slot| usize::from(*slot) < SLOT_COUNT).map(Slot)
        };
        let given = |rest: &mut &[u8]| {
            let given = Given {
                slots: (slot(rest)?, slot(rest)?),
                group: GroupId(u32::try_from(leb128::take(rest)?).ok().filter(|group| *group < GROUPS_MAX)?),
                epoch: leb128::take(rest)?,
            };
            (given.slots.0 <= given.slots.1).then_some(given)
        };
        let index = leb128::take(rest)?;
        let count = leb128::take(rest)?;
        if count > SLOT_COUNT as u64 {
            return None;
        }
        Some(Self { index, given: (0..count).map(|_| given(rest)).collect::<Option<_>>()? })
    }
}

/// The most groups of a cluster.
pub const GROUPS_MAX: u32 = 1024;

/// The most nodes that hold one group by a placement.
pub const PLACED_NODES_MAX: usize = 64;

/// In the number of members: preferred leaders follow.
const PREFERS: u64 = 1 << 32;

/// In the number of members: which groups must hold which slots follows, behind preferred leaders.
const WANTS: u64 = 1 << 33;

/// In the number of members: which nodes must hold which groups follows, behind which groups must hold which slots.
const PLACES: u64 = 1 << 34;

/// In the number of members: groups stay where they are.
const BALANCING_OFF: u64 = 1 << 35;

/// In the number of members: groups that have been founded follow, behind which nodes must hold which groups.
const FOUNDS: u64 = 1 << 36;

/// In the number of members: groups that split off from others follow, behind groups that have been founded.
const SPLITS: u64 = 1 << 37;

/// In the number of members: groups that are to go, and groups that have gone, follow behind all others.
const MERGES: u64 = 1 << 38;

impl Roster {
    /// Enters a node, or what is new of it. A node that is leaving does not stay after all, and one that has been
    /// removed stays removed. True if that changed anything.
    pub fn enlist(&mut self, node: NodeId, mut member: Member) -> bool {
        let known = self.members.get(&node.0);
        member.is_leaving |= known.is_some_and(|known| known.is_leaving);
        if known == Some(&member) || known.is_some_and(|known| known.is_removed) {
            return false;
        }
        if member.is_leaving {
            self.preferred.retain(|_, preferred| *preferred != node.0);
        }
        self.members.insert(node.0, member);
        true
    }

    /// Every node that was ever entered has been removed, and nobody is preferred: the cluster starts over.
    pub fn remove_all(&mut self) {
        self.members.values_mut().for_each(|member| member.is_removed = true);
        self.preferred.clear();
        self.parents.clear();
    }

    /// From now on this node leads the group whenever it can; `None`: any node may. True if that changed anything.
    pub fn prefer(&mut self, group: GroupId, node: Option<NodeId>) -> bool {
        let before = match node {
            Some(node) if self.is_going(node) || self.is_gone(group) => return false,
            Some(node) => self.preferred.insert(group.0, node.0),
            None => self.preferred.remove(&group.0),
        };
        before != node.map(|node| node.0)
    }

    /// The node that should lead a group, if somebody has said so.
    pub fn preferred(&self, group: GroupId) -> Option<NodeId> {
        self.preferred.get(&group.0).copied().map(NodeId)
    }

    /// From now on this group must hold these slots. True if that changed anything.
    pub fn want(&mut self, (Slot(first), Slot(last)): (Slot, Slot), group: GroupId) -> bool {
        if self.is_ending(group) {
            return false;
        }
        let before = std::mem::take(&mut self.wanted);
        for (from, (to, of)) in &before {
            // What is left of a run before and behind these.
            if *from < first {
                self.wanted.insert(*from, ((*to).min(first - 1), *of));
            }
            if *to > last {
                self.wanted.insert((*from).max(last + 1), (*to, *of));
            }
        }
        self.wanted.insert(first, (last, group.0));
        self.wanted != before
    }

    /// Which groups must hold which slots, as far as somebody has said so: first, last, group.
    pub fn wanted(&self) -> impl Iterator<Item = (u16, u16, GroupId)> {
        self.wanted.iter().map(|(first, (last, group))| (*first, *last, GroupId(*group)))
    }

    /// From now on these nodes must hold the group, and no others; nobody: all. True if that changed anything.
    pub fn place(&mut self, group: GroupId, nodes: BTreeSet<u64>) -> bool {
        if self.is_gone(group) {
            return false;
        }
        if nodes.is_empty() {
            return self.placed.remove(&group.0).is_some();
        }
        let before = self.placed.insert(group.0, nodes);
        before.as_ref() != self.placed.get(&group.0)
    }

    /// The nodes that must hold a group; `None`: all.
    pub fn placement(&self, group: GroupId) -> Option<&BTreeSet<u64>> {
        self.placed.get(&group.0)
    }

    /// True if a node must hold a group.
    pub fn is_placed(&self, group: GroupId, node: NodeId) -> bool {
        self.placement(group).is_none_or(|nodes| nodes.contains(&node.0))
    }

    /// All placements, by group.
    pub fn placements(&self) -> impl Iterator<Item = (GroupId, &BTreeSet<u64>)> {
        self.placed.iter().map(|(group, nodes)| (GroupId(*group), nodes))
    }

    /// Whether groups are moved between nodes so that each has its share. True if that changed anything.
    pub fn balance(&mut self, is_on: bool) -> bool {
        std::mem::replace(&mut self.is_balancing_off, !is_on) == is_on
    }

    /// True if groups are moved between nodes so that each has its share.
    pub fn is_balancing(&self) -> bool {
        !self.is_balancing_off
    }

    /// Founds a group: the one behind all that there are, with these voters. A group is founded once. True if that
    /// changed anything.
    pub fn found(&mut self, group: GroupId, voters: BTreeSet<u64>) -> bool {
        let is_next = self.founded.last_key_value().is_none_or(|(last, _)| group.0 == last + 1);
        let is_new = is_next && group.0 < GROUPS_MAX && !voters.is_empty();
        if is_new {
            self.founded.insert(group.0, voters);
        }
        is_new
    }

    /// Founds a group that splits off from another one, with slots of that one: the one behind all that there are. It
    /// lives where the other one lives. True if that changed anything.
    pub fn split(&mut self, group: GroupId, parent: GroupId, slots: &[(Slot, Slot)], first_count: u32) -> bool {
        let is_next = group.0 == self.group_count(first_count) && group.0 < GROUPS_MAX;
        if !is_next || parent.0 >= group.0 || slots.is_empty() || self.is_ending(parent) {
            return false;
        }
        self.founded.insert(group.0, BTreeSet::new());
        self.parents.insert(group.0, parent.0);
        if let Some(nodes) = self.placed.get(&parent.0).cloned() {
            self.placed.insert(group.0, nodes);
        }
        slots.iter().for_each(|slots| _ = self.want(*slots, group));
        true
    }

    /// The group from which another one splits off, or has.
    pub fn parent(&self, group: GroupId) -> Option<GroupId> {
        self.parents.get(&group.0).copied().map(GroupId)
    }

    /// The groups that split off from this one, or have.
    pub fn children(&self, group: GroupId) -> impl Iterator<Item = GroupId> {
        self.parents.iter().filter(move |(_, parent)| **parent == group.0).map(|(child, _)| GroupId(*child))
    }

    /// From now on a group is to go: another one is to hold all slots that it was to hold. The first group, which has
    /// the metadata, never goes. True if that changed anything.
    pub fn merge(&mut self, group: GroupId, into: GroupId, first_count: u32) -> bool {
        let is_there = |group: GroupId| group.0 < self.group_count(first_count) && !self.is_ending(group);
        if group.0 == 0 || group == into || !is_there(group) || !is_there(into) {
            return false;
        }
        let even = SlotMap::even(first_count);
        let mut wished: Vec<GroupId> = (0..SLOT_COUNT as u16).map(|slot| even.group_of_slot(Slot(slot))).collect();
        for (first, last, wanted) in self.wanted() {
            wished[usize::from(first)..=usize::from(last)].fill(wanted);
        }
        let slots = (0..SLOT_COUNT as u16).map(Slot).filter(|slot| wished[usize::from(slot.0)] == group);
        for run in runs_of(slots.collect::<BTreeSet<_>>()) {
            self.want(run, into);
        }
        self.going.insert(group.0, into.0);
        self.preferred.remove(&group.0);
        true
    }

    /// A group that was to go has ended its log, as it says there. True if that changed anything.
    pub fn retire(&mut self, group: GroupId, gone: Gone) -> bool {
        if self.going.remove(&group.0).is_none() {
            return false;
        }
        self.gone.insert(group.0, gone);
        self.placed.remove(&group.0);
        true
    }

    /// The groups that are to go and have not yet, with those that get their slots.
    pub fn merging(&self) -> impl Iterator<Item = (GroupId, GroupId)> {
        self.going.iter().map(|(group, into)| (GroupId(*group), GroupId(*into)))
    }

    /// The group that gets the slots of this one, which is to go.
    pub fn merges_into(&self, group: GroupId) -> Option<GroupId> {
        self.going.get(&group.0).copied().map(GroupId)
    }

    /// The groups that have gone, with what is known of them.
    pub fn gone(&self) -> impl Iterator<Item = (GroupId, &Gone)> {
        self.gone.iter().map(|(group, gone)| (GroupId(*group), gone))
    }

    /// The index of the entry that ended the log of a group that has gone.
    pub fn gone_at(&self, group: GroupId) -> Option<u64> {
        self.gone.get(&group.0).map(|gone| gone.index)
    }

    /// True if a group has gone.
    pub fn is_gone(&self, group: GroupId) -> bool {
        self.gone.contains_key(&group.0)
    }

    /// True if a group has gone, or is to go.
    pub fn is_ending(&self, group: GroupId) -> bool {
        self.is_gone(group) || self.going.contains_key(&group.0)
    }

    /// The groups that there are, if the cluster began with so many: those that have gone left out.
    pub fn groups(&self, first_count: u32) -> impl Iterator<Item = GroupId> {
        (0..self.group_count(first_count)).map(GroupId).filter(|group| !self.is_gone(*group))
    }

    /// The nodes that voted first in a group, if it has been founded since the cluster was.
    pub fn founders(&self, group: GroupId) -> Option<&BTreeSet<u64>> {
        self.founded.get(&group.0)
    }

    /// The number of groups that there have ever been, if the cluster began with so many.
    pub fn group_count(&self, first_count: u32) -> u32 {
        self.founded.last_key_value().map_or(first_count, |(last, _)| first_count.max(last + 1))
    }

    /// What is known of a node.
    pub fn get(&self, node: NodeId) -> Option<&Member> {
        self.members.get(&node.0)
    }

    /// The zone of a node; `None` if nobody has named it.
    pub fn zone(&self, node: NodeId) -> Option<&str> {
        self.get(node).map(|member| member.zone.as_str()).filter(|zone| !zone.is_empty())
    }

    /// All nodes, those that have been removed among them.
    pub fn all(&self) -> impl Iterator<Item = (NodeId, &Member)> {
        self.members.iter().map(|(node, member)| (NodeId(*node), member))
    }

    /// The nodes that belong to the cluster now, those that are leaving among them.
    pub fn present(&self) -> impl Iterator<Item = (NodeId, &Member)> {
        self.all().filter(|(_, member)| !member.is_removed)
    }

    /// The nodes that belong to the cluster and will stay in it.
    pub fn staying(&self) -> impl Iterator<Item = NodeId> {
        self.present().filter(|(_, member)| !member.is_leaving).map(|(node, _)| node)
    }

    /// True if the node has been removed.
    pub fn is_removed(&self, node: NodeId) -> bool {
        self.get(node).is_some_and(|member| member.is_removed)
    }

    /// True if the node is leaving or has been removed.
    pub fn is_going(&self, node: NodeId) -> bool {
        self.get(node).is_some_and(|member| member.is_leaving || member.is_removed)
    }

    /// True if nobody has been entered: a node by itself.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The node that an operator means: by its number, by the forty digits that clients know or the first of them, or
    /// by one of its addresses.
    pub fn find(&self, text: &str) -> Option<NodeId> {
        const DIGITS_MIN: usize = 6;
        if let Some(node) = text.parse().ok().map(NodeId).filter(|node| self.get(*node).is_some()) {
            return Some(node);
        }
        let is_meant = |(node, member): &(NodeId, &Member)| {
            let is_found_there = member.client_address == text || member.cluster_address == text;
            is_found_there && !member.is_removed || text.len() >= DIGITS_MIN && name_of(*node).starts_with(text)
        };
        let mut meant = self.all().filter(is_meant).map(|(node, _)| node);
        let node = meant.next()?;
        meant.next().is_none().then_some(node)
    }

    /// Appends it to a checkpoint.
    pub fn put(&self, out: &mut Vec<u8>) {
        let prefers = u64::from(!self.preferred.is_empty()) * PREFERS;
        let wants = u64::from(!self.wanted.is_empty()) * WANTS;
        let places = u64::from(!self.placed.is_empty()) * PLACES;
        let balancing_off = u64::from(self.is_balancing_off) * BALANCING_OFF;
        let founds = u64::from(!self.founded.is_empty()) * FOUNDS;
        let splits = u64::from(!self.parents.is_empty()) * SPLITS;
        let merges = u64::from(!self.going.is_empty() || !self.gone.is_empty()) * MERGES;
        let flags = prefers | wants | places | balancing_off | founds | splits | merges;
        leb128::put(out, self.members.len() as u64 | flags);
        for (node, member) in &self.members {
            leb128::put(out, *node);
            member.put(out);
        }
        if prefers != 0 {
            leb128::put(out, self.preferred.len() as u64);
            for (group, node) in &self.preferred {
                leb128::put(out, u64::from(*group));
                leb128::put(out, *node);
            }
        }
        if wants != 0 {
            leb128::put(out, self.wanted.len() as u64);
            for (first, (last, group)) in &self.wanted {
                leb128::put(out, u64::from(*first));
                leb128::put(out, u64::from(*last));
                leb128::put(out, u64::from(*group));
            }
        }
        if places != 0 {
            leb128::put(out, self.placed.len() as u64);
            for (group, nodes) in &self.placed {
                leb128::put(out, u64::from(*group));
                put_nodes(out, nodes);
            }
        }
        if founds != 0 {
            leb128::put(out, self.founded.len() as u64);
            for (group, voters) in &self.founded {
                leb128::put(out, u64::from(*group));
                put_nodes(out, voters);
            }
        }
        if splits != 0 {
            leb128::put(out, self.parents.len() as u64);
            for (group, parent) in &self.parents {
                leb128::put(out, u64::from(*group));
                leb128::put(out, u64::from(*parent));
            }
        }
        if merges != 0 {
            leb128::put(out, self.going.len() as u64);
            for (group, into) in &self.going {
                leb128::put(out, u64::from(*group));
                leb128::put(out, u64::from(*into));
            }
            leb128::put(out, self.gone.len() as u64);
            for (group, gone) in &self.gone {
                leb128::put(out, u64::from(*group));
                gone.put(out);
            }
        }
    }

    /// Reads it back.
    pub fn read(reader: &mut Reader<'_>) -> Self {
        let count = reader.number();
        let flags = PREFERS | WANTS | PLACES | BALANCING_OFF | FOUNDS | SPLITS | MERGES;
        let members = (0..count & !flags).map(|_| (reader.number(), Member::read(reader))).collect();
        let preferred_count = if count & PREFERS == 0 { 0 } else { reader.number() };
        let preferred = (0..preferred_count).map(|_| (reader.number() as u32, reader.number())).collect();
        let wanted_count = if count & WANTS == 0 { 0 } else { reader.number() };
        let wanted = (0..wanted_count)
            .map(|_| (reader.number() as u16, (reader.number() as u16, reader.number() as u32)))
            .collect();
        let placed_count = if count & PLACES == 0 { 0 } else { reader.number() };
        let placed = (0..placed_count).map(|_| (reader.number() as u32, read_nodes(reader))).collect();
        let founded_count = if count & FOUNDS == 0 { 0 } else { reader.number() };
        let founded = (0..founded_count).map(|_| (reader.number() as u32, read_nodes(reader))).collect();
        let split_count = if count & SPLITS == 0 { 0 } else { reader.number() };
        let parents = (0..split_count).map(|_| (reader.number() as u32, reader.number() as u32)).collect();
        let going_count = if count & MERGES == 0 { 0 } else { reader.number() };
        let going = (0..going_count).map(|_| (reader.number() as u32, reader.number() as u32)).collect();
        let gone_count = if count & MERGES == 0 { 0 } else { reader.number() };
        let gone = (0..gone_count).map(|_| (reader.number() as u32, Gone::read(reader))).collect();
        let is_balancing_off = count & BALANCING_OFF != 0;
        Self { members, preferred, wanted, placed, is_balancing_off, founded, parents, going, gone }
    }
}

/// Appends a set of nodes to an entry or a checkpoint: how many, and each.
pub(crate) fn put_nodes(out: &mut Vec<u8>, nodes: &BTreeSet<u64>) {
    leb128::put(out, nodes.len() as u64);
    nodes.iter().for_each(|node| leb128::put(out, *node));
}

/// Reads it back.
pub(crate) fn read_nodes(reader: &mut Reader<'_>) -> BTreeSet<u64> {
    (0..reader.number()).map(|_| reader.number()).collect()
}

/// Forty hexadecimal digits by which clients of a Redis cluster know a node. They begin with its number.
pub fn name_of(node: NodeId) -> String {
    let more = stdx::Prng::new(node.0).draw();
    format!("{:016x}{more:016x}{:08x}", node.0, more >> 32)
}

/// The parts of `HOST:PORT`; brackets around an IPv6 address are no part of it.
pub fn host_and_port(address: &str) -> (&str, &str) {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "0"));
    (host.trim_start_matches('[').trim_end_matches(']'), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_removed_does_not_come_back() {
        let mut roster = Roster::default();
        let member = Member { cluster_address: "a:1".into(), client_address: "a:2".into(), ..Member::default() };
        assert!(roster.enlist(NodeId(7), member.clone()));
        assert!(!roster.enlist(NodeId(7), member.clone()));
        assert!(roster.prefer(GroupId(2), Some(NodeId(7))));
        assert!(roster.enlist(NodeId(7), Member { is_leaving: true, ..member.clone() }));
        assert_eq!(roster.preferred(GroupId(2)), None, "who leaves is not preferred");
        assert!(!roster.prefer(GroupId(2), Some(NodeId(7))));
        assert!(!roster.enlist(NodeId(7), member.clone()), "it leaves, whatever it says of itself");
        assert_eq!((roster.staying().count(), roster.present().count()), (0, 1));
        assert!(roster.enlist(NodeId(7), Member { is_removed: true, ..member.clone() }));
        assert!(!roster.enlist(NodeId(7), member.clone()));
        assert_eq!(roster.present().count(), 0);
        assert!(roster.enlist(NodeId(8), member));
        for preferred in [None, Some(NodeId(8))] {
            roster.prefer(GroupId(3), preferred);
            let mut bytes = Vec::new();
            roster.put(&mut bytes);
            assert_eq!(Roster::read(&mut Reader::new(&bytes)), roster);
        }
    }

    #[test]
    fn a_node_that_says_another_zone_is_in_that_one() {
        let mut roster = Roster::default();
        let of = |zone: &str| Member { client_address: "a:2".into(), zone: zone.to_owned(), ..Member::default() };
        roster.enlist(NodeId(7), of(""));
        assert_eq!(roster.zone(NodeId(7)), None);
        assert!(roster.enlist(NodeId(7), of("rack-1")) && !of("rack-1").is_found_as(&of("rack-2")));
        assert!(roster.enlist(NodeId(8), of("rack-2")));
        assert_eq!((roster.zone(NodeId(7)), roster.zone(NodeId(9))), (Some("rack-1"), None));
        let mut bytes = Vec::new();
        roster.put(&mut bytes);
        assert_eq!(Roster::read(&mut Reader::new(&bytes)), roster);
        assert_eq!(of("rack-1").known_at(Level(1)), of(""), "an older version reads no zone");
        assert_eq!(of("rack-1").known_at(Level(2)), of("rack-1"));
        assert!(is_zone("eu/west-1.b") && is_zone("") && !is_zone("a b") && !is_zone("a,b"));
        assert!(!is_zone(&"z".repeat(ZONE_BYTES_MAX + 1)));
    }

    #[test]
    fn a_later_wish_for_slots_takes_the_place_of_earlier_ones() {
        let mut roster = Roster::default();
        assert!(roster.want((Slot(10), Slot(20)), GroupId(1)));
        assert!(!roster.want((Slot(10), Slot(20)), GroupId(1)));
        assert!(roster.want((Slot(13), Slot(15)), GroupId(2)));
        assert!(roster.want((Slot(0), Slot(10)), GroupId(0)));
        let wanted: Vec<_> = roster.wanted().map(|(first, last, group)| (first, last, group.0)).collect();
        assert_eq!(wanted, [(0, 10, 0), (11, 12, 1), (13, 15, 2), (16, 20, 1)]);
        let mut bytes = Vec::new();
        roster.put(&mut bytes);
        assert_eq!(Roster::read(&mut Reader::new(&bytes)), roster);
    }

    #[test]
    fn a_group_lives_on_all_nodes_until_it_is_placed() {
        let mut roster = Roster::default();
        let nodes = |nodes: &[u64]| nodes.iter().copied().collect::<BTreeSet<u64>>();
        assert!(roster.is_placed(GroupId(1), NodeId(9)) && roster.is_balancing());
        assert!(roster.place(GroupId(1), nodes(&[7, 8])));
        assert!(!roster.place(GroupId(1), nodes(&[8, 7])));
        assert!(roster.is_placed(GroupId(1), NodeId(7)) && !roster.is_placed(GroupId(1), NodeId(9)));
        assert!(roster.balance(false) && !roster.balance(false));
        let mut bytes = Vec::new();
        roster.put(&mut bytes);
        assert_eq!(Roster::read(&mut Reader::new(&bytes)), roster);
        assert!(roster.balance(true) && roster.place(GroupId(1), nodes(&[])));
        assert_eq!(roster, Roster::default());
    }

    #[test]
    fn groups_are_founded_once_and_in_order() {
        let mut roster = Roster::default();
        let voters = |nodes: &[u64]| nodes.iter().copied().collect::<BTreeSet<u64>>();
        assert_eq!(roster.group_count(2), 2);
        assert!(roster.found(GroupId(2), voters(&[7, 8])));
        assert!(!roster.found(GroupId(2), voters(&[9])), "it has its voters");
        assert!(!roster.found(GroupId(4), voters(&[7])), "there is no group 3");
        assert!(!roster.found(GroupId(3), voters(&[])));
        assert!(roster.found(GroupId(3), voters(&[7])));
        assert_eq!(roster.group_count(2), 4);
        assert_eq!(roster.founders(GroupId(2)), Some(&voters(&[7, 8])));
        assert_eq!(roster.founders(GroupId(1)), None);
        let mut bytes = Vec::new();
        roster.put(&mut bytes);
        assert_eq!(Roster::read(&mut Reader::new(&bytes)), roster);
    }

    #[test]
    fn a_group_that_splits_off_lives_where_the_other_one_lives_and_is_to_hold_its_slots() {
        let mut roster = Roster::default();
        roster.place(GroupId(1), [7, 8].into());
        let slots = [(Slot(3), Slot(4)), (Slot(9), Slot(9))];
        assert!(!roster.split(GroupId(3), GroupId(1), &slots, 2), "there is no group 2");
        assert!(!roster.split(GroupId(2), GroupId(2), &slots, 2) && !roster.split(GroupId(2), GroupId(1), &[], 2));
        assert!(roster.split(GroupId(2), GroupId(1), &slots, 2));
        assert!(!roster.split(GroupId(2), GroupId(1), &slots, 2), "it has split off");
        assert_eq!((roster.group_count(2), roster.parent(GroupId(2))), (3, Some(GroupId(1))));
        assert_eq!((roster.parent(GroupId(1)), roster.children(GroupId(1)).collect()), (None, vec![GroupId(2)]));
        assert_eq!(roster.placement(GroupId(2)), roster.placement(GroupId(1)));
        assert_eq!(roster.wanted().collect::<Vec<_>>(), [(3, 4, GroupId(2)), (9, 9, GroupId(2))]);
        assert_eq!(roster.founders(GroupId(2)), Some(&BTreeSet::new()));
        assert!(roster.found(GroupId(3), [7].into()));
        let mut bytes = Vec::new();
        roster.put(&mut bytes);
        assert_eq!(Roster::read(&mut Reader::new(&bytes)), roster);
    }

    #[test]
    fn a_group_that_goes_is_to_hold_nothing_and_its_number_is_not_given_again() {
        let mut roster = Roster::default();
        let all = |roster: &Roster| roster.groups(3).map(|group| group.0).collect::<Vec<_>>();
        roster.want((Slot(0), Slot(9)), GroupId(2));
        assert!(!roster.merge(GroupId(0), GroupId(1), 3), "the metadata never goes");
        assert!(!roster.merge(GroupId(2), GroupId(2), 3) && !roster.merge(GroupId(2), GroupId(3), 3));
        assert!(roster.merge(GroupId(2), GroupId(1), 3));
        assert!(!roster.merge(GroupId(2), GroupId(1), 3) && !roster.merge(GroupId(1), GroupId(2), 3));
        assert_eq!(roster.wanted().collect::<Vec<_>>(), [(0, 9, GroupId(1)), (10_923, 16_383, GroupId(1))]);
        assert!(!roster.want((Slot(5), Slot(5)), GroupId(2)), "nothing comes to it any more");
        assert!(!roster.split(GroupId(3), GroupId(2), &[(Slot(0), Slot(1))], 3), "nor does it split");
        assert_eq!((roster.merges_into(GroupId(2)), all(&roster)), (Some(GroupId(1)), vec![0, 1, 2]));
        let read = |roster: &Roster| {
            let mut bytes = Vec::new();
            roster.put(&mut bytes);
            Roster::read(&mut Reader::new(&bytes))
        };
        assert_eq!(read(&roster), roster);
        let moved = |slot: u16| Moved { slot: Slot(slot), group: GroupId(1), epoch: 1 };
        let gone = Gone { index: 70, given: Given::of([3, 4, 6].map(moved).into_iter()) };
        assert_eq!(gone.given.iter().flat_map(|given| given.each()).collect::<Vec<_>>(), [3, 4, 6].map(moved));
        let mut bytes = Vec::new();
        gone.put(&mut bytes);
        assert_eq!(Gone::take(&mut &bytes[..]), Some(gone.clone()));
        assert!((0..bytes.len()).all(|length| Gone::take(&mut &bytes[..length]).is_none()));
        assert!(!roster.retire(GroupId(1), gone.clone()) && roster.retire(GroupId(2), gone.clone()));
        assert!(!roster.retire(GroupId(2), Gone::default()), "it has gone");
        assert!(!roster.place(GroupId(2), [7].into()));
        assert_eq!((all(&roster), roster.gone().collect::<Vec<_>>()), (vec![0, 1], vec![(GroupId(2), &gone)]));
        assert_eq!(read(&roster), roster);
        assert_eq!(roster.group_count(3), 3);
    }

    #[test]
    fn a_node_is_found_by_number_name_or_address() {
        let mut roster = Roster::default();
        for node in [7, 8] {
            let addresses = [1, 2].map(|place| format!("host{node}:{place}"));
            let [cluster_address, client_address] = addresses;
            roster.enlist(NodeId(node), Member { cluster_address, client_address, ..Member::default() });
        }
        let name = name_of(NodeId(8));
        assert_eq!(name.len(), 40);
        for text in ["8", &name, &name[..16], "host8:1", "host8:2"] {
            assert_eq!(roster.find(text), Some(NodeId(8)), "{text}");
        }
        for text in ["9", "", "000000", "host9:1"] {
            assert_eq!(roster.find(text), None, "{text}");
        }
    }
}
