//! Which nodes are masters in the eyes of clients, and which follow them.

mod spread;

use std::collections::BTreeMap;

use command::Refusal;
use group::ids::{GroupId, Lane, NodeId};
use resp::Args;
use stdx::UnixMillis;
use stdx::slot::Slot;

use crate::context::Context;
use crate::reports::LinkReport;
use crate::roster::{Member, host_and_port, name_of};

/// Refused on a node that is no cluster.
pub(crate) fn check_enabled(core: &Context) -> Result<(), Refusal> {
    if core.settings.cluster_enabled {
        Ok(())
    } else {
        Err(Refusal::new("ERR This instance has cluster support disabled"))
    }
}

/// The node that this node, which leads nothing, follows in the eyes of clients; `None` if nobody is known to lead.
pub(crate) fn master_of_this(core: &Context) -> Option<NodeId> {
    Map::of(core).master_of(core.node)
}

/// The groups of which a node that leads nothing is to become the leader by `CLUSTER FAILOVER`: those of the node that
/// it follows in the eyes of clients. Refused if there is no such node.
pub(crate) fn groups_to_take_over(core: &Context, node: NodeId, words: Args<'_>) -> Result<Vec<GroupId>, Refusal> {
    check_enabled(core)?;
    let is_known = |word: &[u8]| word.eq_ignore_ascii_case(b"force") || word.eq_ignore_ascii_case(b"takeover");
    if words.len() > 3 || words.get(2).is_some_and(|word| !is_known(word)) {
        return Err(Refusal::SYNTAX);
    }
    let map = Map::of(core);
    if map.served.contains_key(&node) {
        return Err(Refusal::new("ERR You should send CLUSTER FAILOVER to a replica"));
    }
    let Some(master) = map.master_of(node) else {
        return Err(Refusal::new("ERR I'm a replica but my master is unknown to me"));
    };
    let is_to_change = |(group, leader): &(GroupId, NodeId)| *leader == master && core.roster.is_placed(*group, node);
    Ok(leaders(core).filter(is_to_change).map(|(group, _)| group).collect())
}

/// Who serves what, as this node knows it.
pub(crate) struct Map<'a> {
    core: &'a Context,
    /// Slots, first and last, by who leads them.
    pub(crate) served: BTreeMap<NodeId, Vec<(u32, u32)>>,
    /// The masters of nodes that lead nothing.
    masters: BTreeMap<NodeId, NodeId>,
}

impl<'a> Map<'a> {
    pub(crate) fn of(core: &'a Context) -> Self {
        let mut served: BTreeMap<NodeId, Vec<(u32, u32)>> = BTreeMap::new();
        let leaders: BTreeMap<_, _> = leaders(core).collect();
        let placement_at = |slot: u32| core.roster.placement(core.slots.group_of_slot(Slot(slot as u16)));
        for (first, last, group) in core.slots.runs() {
            let Some(leader) = leaders.get(&group) else { continue };
            let (first, last) = (u32::from(first), u32::from(last));
            let ranges = served.entry(*leader).or_default();
            match ranges.last_mut() {
                // A run is held by the same nodes.
                Some((_, end)) if *end + 1 == first && placement_at(*end) == placement_at(first) => *end = last,
                _ => ranges.push((first, last)),
            }
        }
        let mut this = Self { core, served, masters: BTreeMap::new() };
        let followers = this.nodes().into_iter().map(|(node, _)| node).filter(|node| !this.served.contains_key(node));
        this.masters = spread::spread(&followers.map(|node| (node, this.open_to(node))).collect());
        this
    }

    /// The masters of which this node holds most: as a rule all that they lead.
    fn open_to(&self, node: NodeId) -> Vec<NodeId> {
        let lacks = |ranges: &[(u32, u32)]| {
            let missing = ranges.iter().filter(|range| !self.is_holder(node, &[**range]));
            missing.map(|(first, last)| last - first + 1).sum::<u32>()
        };
        let lacking: Vec<_> = self.served.iter().map(|(master, ranges)| (*master, lacks(ranges))).collect();
        let fewest = lacking.iter().map(|(_, slots)| *slots).min();
        lacking.into_iter().filter(|(_, slots)| Some(*slots) == fewest).map(|(master, _)| master).collect()
    }

    pub(crate) fn slot_count(&self) -> u32 {
        self.served.values().flatten().map(|(first, last)| last - first + 1).sum()
    }

    /// The node that one which leads nothing follows, in Redis's terms.
    pub(crate) fn master_of(&self, node: NodeId) -> Option<NodeId> {
        self.masters.get(&node).copied()
    }

    /// True if a node must hold the keys of these runs.
    fn is_holder(&self, node: NodeId, runs: &[(u32, u32)]) -> bool {
        let group = |first: u32| self.core.slots.group_of_slot(Slot(first as u16));
        runs.iter().all(|(first, _)| self.core.roster.is_placed(group(*first), node))
    }

    /// All nodes and where they are found.
    pub(crate) fn nodes(&self) -> Vec<(NodeId, &'a Member)> {
        let present = self.core.roster.present();
        let mut nodes: Vec<_> = present.filter(|(node, _)| *node != self.core.node).collect();
        nodes.push((self.core.node, &self.core.own));
        nodes.sort_by_key(|(node, _)| *node);
        nodes
    }

    /// Nodes that lead nothing, can be reached, and hold these slots of a master: its replicas, or if it has none that
    /// serves, those of others.
    pub(crate) fn readers_of(&self, master: NodeId, ranges: &[(u32, u32)]) -> Vec<(NodeId, &'a Member)> {
        let mut readers = self.nodes();
        readers.retain(|(node, _)| {
            self.masters.contains_key(node) && self.health(*node) == Health::Well && self.is_holder(*node, ranges)
        });
        let is_own = |(node, _): &(NodeId, _)| self.master_of(*node) == Some(master);
        if readers.iter().any(is_own) {
            readers.retain(is_own);
        }
        readers
    }

    pub(crate) fn health(&self, node: NodeId) -> Health {
        let is_linked = node == self.core.node || link_to(self.core, node).is_some_and(|link| link.is_up);
        match is_linked {
            true if self.core.is_expelled => Health::Failed,
            true => Health::Well,
            // The nodes that it leads hear it, as far as this node knows.
            false if self.served.contains_key(&node) => Health::Doubted,
            false => Health::Failed,
        }
    }

    /// What CLUSTER NODES says of a node.
    pub(crate) fn line(&self, node: NodeId, member: &Member, now: UnixMillis) -> String {
        let (host, port) = host_and_port(&member.client_address);
        let (_, cluster_port) = host_and_port(&member.cluster_address);
        let master = self.master_of(node);
        let is_own = node == self.core.node;
        let is_linked = is_own || link_to(self.core, node).is_some_and(|link| link.is_up);
        let flags = [
            is_own.then_some("myself"),
            Some(if master.is_some() { "slave" } else { "master" }),
            match self.health(node) {
                Health::Well => None,
                Health::Doubted => Some("fail?"),
                Health::Failed => Some("fail"),
            },
        ];
        let mut line = format!(
            "{} {host}:{port}@{cluster_port} {} {} 0 {} {} {}",
            name_of(node),
            flags.into_iter().flatten().collect::<Vec<_>>().join(","),
            master.map_or_else(|| "-".to_owned(), name_of),
            if is_own { 0 } else { now.0 },
            self.epoch(node),
            if is_linked { "connected" } else { "disconnected" },
        );
        for (first, last) in self.served.get(&node).into_iter().flatten() {
            line.push_str(&if first == last { format!(" {first}") } else { format!(" {first}-{last}") });
        }
        line
    }

    /// The largest term among the groups that a node leads.
    pub(crate) fn epoch(&self, node: NodeId) -> u64 {
        let terms = self.core.routes.iter().filter(|route| route.leader == Some(node)).map(|route| route.term);
        terms.max().unwrap_or(0)
    }
}

/// The groups that somebody leads. A node by itself leads all.
pub(crate) fn leaders(core: &Context) -> impl Iterator<Item = (GroupId, NodeId)> {
    let leader = |route: &group::requests::Route| if core.is_clustered { route.leader } else { Some(core.node) };
    (0..).map(GroupId).zip(&core.routes).filter_map(move |(group, route)| Some((group, leader(route)?)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Well,
    Doubted,
    Failed,
}

pub(crate) fn link_to(core: &Context, node: NodeId) -> Option<&LinkReport> {
    core.host.report.links.iter().find(|link| link.node == node && link.lane == Lane::Log)
}
