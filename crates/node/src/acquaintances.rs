//! The nodes that a joining node can talk to before it knows the cluster, and their addresses.
//!
//! An operator names the nodes to join; others introduce the rest. Any of these may lie, and a joining node has no
//! roster to check them against. So each source of an address has a rank:
//!
//! | address of | sources, the highest rank first |
//! | --- | --- |
//! | a node that the operator named | the node itself; the operator; after a while of silence, and for a while, any other node |
//! | another node | the node itself; a node that the operator named; any other node |
//!
//! Nodes that neither the operator nor a named node vouches for are bounded: [`limits::ACQUAINTANCES_MAX`]. When there
//! are so many, a new one replaces one that another source introduced, if that source introduced more. So a source that
//! makes nodes up takes no room from others.
//!
//! An address stands for [`limits::FORSAKEN_AFTER`] against sources of a lower rank, and longer if it is repeated. So a
//! source that has fallen silent is overruled in the end.

use std::collections::BTreeMap;

use group::ids::NodeId;
use stdx::Instant;

use crate::limits;
use crate::roster::Member;

/// What a joining node knows of other nodes. It is not used any more once the roster is there.
#[derive(Debug)]
pub(crate) struct Acquaintances {
    /// Nodes that the operator named, with the addresses that it gave.
    named: BTreeMap<NodeId, Member>,
    known: BTreeMap<NodeId, Known>,
}

#[derive(Debug)]
struct Known {
    member: Member,
    rank: Rank,
    /// The source.
    by: NodeId,
    /// When this source gave this address first, and last.
    since: Instant,
    said: Instant,
}

/// The kinds of sources; the last has the highest rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Anybody,
    Named,
    Operator,
    Itself,
}

impl Known {
    fn of_operator(node: NodeId, member: &Member, now: Instant) -> Self {
        Self { member: member.clone(), rank: Rank::Operator, by: node, since: now, said: now }
    }
}

impl Acquaintances {
    pub(crate) fn new(named: BTreeMap<NodeId, Member>) -> Self {
        let known =
            named.iter().map(|(node, member)| (*node, Known::of_operator(*node, member, Instant::ZERO))).collect();
        Self { named, known }
    }

    /// The operator names a node, or names another address of it. True if something is new.
    pub(crate) fn name(&mut self, node: NodeId, member: &Member, now: Instant) -> bool {
        if self.named.get(&node) == Some(member) {
            return false;
        }
        self.named.insert(node, member.clone());
        // What it says itself counts more.
        let stands = self.known.get(&node).is_some_and(|known| known.rank == Rank::Itself);
        if !stands {
            self.known.insert(node, Known::of_operator(node, member, now));
        }
        !stands
    }

    /// True if this node is known.
    pub(crate) fn knows(&self, node: NodeId) -> bool {
        self.known.contains_key(&node)
    }

    /// True if the operator named a node.
    pub(crate) fn has_named(&self) -> bool {
        !self.named.is_empty()
    }

    /// The nodes that the operator named.
    pub(crate) fn named(&self) -> Vec<NodeId> {
        self.named.keys().copied().collect()
    }

    /// All nodes.
    pub(crate) fn nodes(&self) -> Vec<NodeId> {
        self.known.keys().copied().collect()
    }

    /// All nodes with their addresses.
    pub(crate) fn places(&self) -> Vec<(NodeId, Member)> {
        self.known.iter().map(|(node, known)| (*node, known.member.clone())).collect()
    }

    /// Takes the address of a node from the source `from`, if its rank allows. `is_forsaken` says that no node has
    /// admitted this one for a while. True if something is new.
    pub(crate) fn hear(
        &mut self,
        from: NodeId,
        (node, member): (NodeId, &Member),
        is_forsaken: bool,
        now: Instant,
    ) -> bool {
        let is_named = self.named.contains_key(&node);
        let rank = match from {
            _ if from == node => Rank::Itself,
            // About each other, the named nodes know no more than the operator.
            _ if !is_named && self.named.contains_key(&from) => Rank::Named,
            _ => Rank::Anybody,
        };
        if let Some(known) = self.known.get(&node) {
            let is_fresh = now.since(known.said) < limits::FORSAKEN_AFTER;
            let stands = is_fresh || known.rank == Rank::Operator && !is_forsaken;
            if rank < known.rank && stands || rank == Rank::Anybody && is_named && is_fresh {
                return false;
            }
            // Two sources of one rank that contradict each other take turns: each stands for a while, however often
            // the other one speaks.
            let is_recent = now.since(known.since) < limits::FORSAKEN_AFTER;
            if rank == known.rank && from != known.by && *member != known.member && is_recent {
                return false;
            }
        }
        if !self.known.contains_key(&node) && is_unvouched(rank) && !self.makes_room_for(from) {
            return false;
        }
        let same = self.known.get(&node).filter(|known| known.member == *member);
        let since = same.filter(|known| known.by == from).map_or(now, |known| known.since);
        let is_new = same.is_none();
        self.known.insert(node, Known { member: member.clone(), rank, by: from, since, said: now });
        is_new
    }

    /// Makes room for another node that no trusted source vouches for. False if there is none for one that `from`
    /// introduces.
    fn makes_room_for(&mut self, from: NodeId) -> bool {
        let is_counted = |(node, known): &(&NodeId, &Known)| !self.named.contains_key(node) && is_unvouched(known.rank);
        if self.known.iter().filter(is_counted).count() < limits::ACQUAINTANCES_MAX {
            return true;
        }
        let mut said: BTreeMap<NodeId, usize> = BTreeMap::new();
        let mut oldest: BTreeMap<NodeId, (Instant, NodeId)> = BTreeMap::new();
        for (node, known) in self.known.iter().filter(is_counted).filter(|(_, known)| known.rank == Rank::Anybody) {
            *said.entry(known.by).or_default() += 1;
            let first = oldest.entry(known.by).or_insert((known.said, *node));
            *first = (*first).min((known.said, *node));
        }
        let own = said.get(&from).copied().unwrap_or(0);
        let Some((most, count)) = said.into_iter().max_by_key(|(_, count)| *count) else { return false };
        // Otherwise the two sources would replace each other's nodes without end.
        if own + 1 >= count {
            return false;
        }
        self.known.remove(&oldest[&most].1);
        true
    }

    /// Time passes: a named node gets the operator's address again if no connection has come of another one. `hears`
    /// says which nodes are connected. True if something is new.
    pub(crate) fn look(&mut self, now: Instant, hears: impl Fn(NodeId) -> bool) -> bool {
        let mut is_new = false;
        for (node, member) in &self.named {
            let Some(known) = self.known.get_mut(node) else { continue };
            if known.rank == Rank::Itself && hears(*node) {
                known.said = now;
            }
            let is_on_trial = known.rank == Rank::Anybody || known.rank == Rank::Itself;
            if is_on_trial && now.since(known.said) >= limits::FORSAKEN_AFTER {
                is_new |= known.member != *member;
                *known = Known::of_operator(*node, member, now);
            }
        }
        is_new
    }
}

/// True if neither the operator nor a node that it named is the source. A node that introduces itself may be made up.
fn is_unvouched(rank: Rank) -> bool {
    matches!(rank, Rank::Anybody | Rank::Itself)
}

#[cfg(test)]
mod tests {
    use stdx::Duration;

    use super::*;

    fn at(address: &str) -> Member {
        Member { cluster_address: address.to_owned(), ..Member::default() }
    }

    fn second(number: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(number)
    }

    fn place(acquaintances: &Acquaintances, node: u64) -> Option<String> {
        let places = acquaintances.places();
        places.into_iter().find(|(known, _)| known.0 == node).map(|(_, member)| member.cluster_address)
    }

    #[test]
    fn a_node_that_an_operator_has_named_is_looked_for_there_again() {
        let mut joins = Acquaintances::new(BTreeMap::from([(NodeId(7), at("said"))]));
        let lie = at("lie");
        let mut lied_at = |time, is_forsaken| {
            joins.look(second(time), |_| false);
            joins.hear(NodeId(5), (NodeId(7), &lie), is_forsaken, second(time));
            place(&joins, 7).unwrap()
        };
        assert_eq!(lied_at(60, false), "said", "no node has fallen silent");
        // However often the lie is repeated, the operator's address is tried half of the time.
        let places: Vec<_> = (100..140).map(|time| lied_at(time, true)).collect();
        let times = places.iter().filter(|place| *place == "said").count();
        assert!((18..=22).contains(&times), "{times} of 40 s: {places:?}");
        // The node's own address stands as long as it is repeated.
        let own = at("own");
        for time in 150..200 {
            if time % 2 == 0 {
                joins.hear(NodeId(7), (NodeId(7), &own), true, second(time));
            }
            joins.look(second(time), |_| false);
            joins.hear(NodeId(5), (NodeId(7), &lie), true, second(time));
            assert_eq!(place(&joins, 7).unwrap(), "own");
        }
    }

    #[test]
    fn of_two_that_were_named_each_is_believed_for_a_while() {
        let mut joins = Acquaintances::new(BTreeMap::from([(NodeId(7), at("a")), (NodeId(8), at("b"))]));
        let (truth, lie) = (at("truth"), at("lie"));
        let mut changes = Vec::new();
        for tenth in 0..200 {
            let now = Instant::ZERO + Duration::from_millis(100 * tenth);
            let is_new = joins.hear(NodeId(7), (NodeId(6), &truth), false, now);
            if is_new | joins.hear(NodeId(8), (NodeId(6), &lie), false, now) {
                changes.push(tenth / 10);
            }
        }
        assert_eq!(changes, [0, 4, 8, 12, 16]);
    }

    #[test]
    fn a_node_that_is_heard_stays_where_it_has_said() {
        let mut joins = Acquaintances::new(BTreeMap::from([(NodeId(7), at("said"))]));
        assert!(joins.hear(NodeId(7), (NodeId(7), &at("own")), false, second(1)));
        assert!((2..60).all(|time| !joins.look(second(time), |_| true)));
        assert!((60..70).any(|time| joins.look(second(time), |_| false)));
        assert_eq!(place(&joins, 7).unwrap(), "said");
    }

    #[test]
    fn of_others_a_node_that_was_named_knows_best_while_it_speaks() {
        let mut joins = Acquaintances::new(BTreeMap::from([(NodeId(7), at("said"))]));
        let (truth, lie, own) = (at("truth"), at("lie"), at("own"));
        assert!(joins.hear(NodeId(5), (NodeId(6), &lie), false, second(1)), "nobody has said anything else");
        assert!(joins.hear(NodeId(7), (NodeId(6), &truth), false, second(2)));
        assert!(!joins.hear(NodeId(5), (NodeId(6), &lie), true, second(3)));
        assert!(joins.hear(NodeId(5), (NodeId(6), &lie), true, second(9)), "the other one has fallen silent");
        assert!(joins.hear(NodeId(7), (NodeId(6), &truth), false, second(10)));
        assert!(joins.hear(NodeId(6), (NodeId(6), &own), false, second(11)));
        assert!(!joins.hear(NodeId(7), (NodeId(6), &truth), false, second(12)));
        assert_eq!(place(&joins, 6).unwrap(), "own");
    }

    #[test]
    fn nodes_that_somebody_makes_up_are_bounded_and_take_no_room_from_others() {
        let mut joins = Acquaintances::new(BTreeMap::from([(NodeId(7), at("said"))]));
        let max = limits::ACQUAINTANCES_MAX as u64;
        let made_up = |joins: &mut Acquaintances| {
            let mut is_new = |node| joins.hear(NodeId(5), (NodeId(node), &at("lie")), false, second(node));
            (1_000..1_000 + 2 * max).filter(|node| is_new(*node)).count() as u64
        };
        assert_eq!(made_up(&mut joins), max);
        assert_eq!(joins.nodes().len() as u64, max + 1);
        // Other sources have room, and a named node needs none.
        for (from, node) in [(6, 20), (6, 21), (7, 22), (21, 21)] {
            let word = at(&format!("{from}"));
            assert!(joins.hear(NodeId(from), (NodeId(node), &word), false, second(9_000)), "{from} of {node}");
        }
        assert_eq!(made_up(&mut joins), 0, "none takes the place of another");
        assert_eq!(joins.nodes().len() as u64, max + 2);
        assert!([7, 20, 21, 22].iter().all(|node| joins.knows(NodeId(*node))));
        // Two sources that introduce many share the room.
        for node in 5_000..5_000 + max {
            joins.hear(NodeId(6), (NodeId(node), &at("b")), false, second(9_000));
        }
        let of = |by| joins.known.values().filter(|known| known.by == NodeId(by)).count() as u64;
        assert!(of(5).abs_diff(of(6)) <= 1, "{} and {}", of(5), of(6));
        // Nodes that introduce themselves are bounded as well.
        for node in 20_000..20_000 + 2 * max {
            joins.hear(NodeId(node), (NodeId(node), &at("own")), false, second(9_001));
        }
        assert_eq!(joins.nodes().len() as u64, max + 2);
    }
}
