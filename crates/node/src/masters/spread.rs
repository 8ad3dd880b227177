//! Which master a node that leads nothing is shown to replicate.
//!
//! In Redis every replica has one master. Here a node can hold the groups of several. Each node is shown at one of
//! these, so that as many masters as possible have a replica. The choice depends only on who leads what and on the
//! placements, so all nodes that know the same leaders show the same.

use std::collections::{BTreeMap, BTreeSet};

use group::ids::NodeId;

/// Gives every node one of the masters that are open to it. A node without one gets none.
pub(super) fn spread(open: &BTreeMap<NodeId, Vec<NodeId>>) -> BTreeMap<NodeId, NodeId> {
    let mut chosen = BTreeMap::new();
    let mut waiting: Vec<NodeId> =
        open.iter().filter(|(_, masters)| !masters.is_empty()).map(|(node, _)| *node).collect();
    // In each round a master gets one node at most.
    while !waiting.is_empty() {
        let mut round = Round { open, taken: BTreeMap::new() };
        for node in &waiting {
            round.find_place(*node, &mut BTreeSet::new());
        }
        chosen.extend(round.taken.into_iter().map(|(master, node)| (node, master)));
        waiting.retain(|node| !chosen.contains_key(node));
    }
    chosen
}

/// A maximum matching of nodes and masters, found by augmenting paths.
struct Round<'a> {
    open: &'a BTreeMap<NodeId, Vec<NodeId>>,
    taken: BTreeMap<NodeId, NodeId>,
}

impl Round<'_> {
    /// Gives the node a master: a free one, or one of which the node finds another. False if that cannot be.
    fn find_place(&mut self, node: NodeId, seen: &mut BTreeSet<NodeId>) -> bool {
        let open = self.open;
        let masters = &open[&node];
        let found = match masters.iter().find(|master| !self.taken.contains_key(master)) {
            Some(free) => Some(free),
            None => {
                let has_made_way =
                    |master: &&NodeId| seen.insert(**master) && self.find_place(self.taken[*master], seen);
                masters.iter().find(has_made_way)
            }
        };
        if let Some(master) = found {
            self.taken.insert(*master, node);
        }
        found.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread_of(open: &[(u64, &[u64])]) -> Vec<(u64, u64)> {
        let open = open.iter().map(|(node, masters)| (NodeId(*node), masters.iter().copied().map(NodeId).collect()));
        spread(&open.collect()).into_iter().map(|(node, master)| (node.0, master.0)).collect()
    }

    #[test]
    fn every_master_has_a_replica_if_that_can_be() {
        // Node 4 would take master 1, and nobody else can replicate master 2.
        assert_eq!(spread_of(&[(4, &[1, 2]), (5, &[1, 3]), (6, &[1, 3])]), [(4, 2), (5, 3), (6, 1)]);
        // Two others make way for node 6.
        assert_eq!(spread_of(&[(4, &[1, 2]), (5, &[2, 3]), (6, &[1])]), [(4, 2), (5, 3), (6, 1)]);
    }

    #[test]
    fn replicas_are_spread_evenly() {
        let all: &[u64] = &[1, 2];
        assert_eq!(
            spread_of(&[(3, all), (4, all), (5, all), (6, all), (7, all)]),
            [(3, 1), (4, 2), (5, 1), (6, 2), (7, 1)]
        );
        assert_eq!(spread_of(&[(2, &[1]), (3, &[1])]), [(2, 1), (3, 1)]);
        assert_eq!(spread_of(&[(2, &[]), (3, &[1])]), [(3, 1)]);
    }
}
