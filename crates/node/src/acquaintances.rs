//! Whom a node that joins can talk to before it knows the cluster, and where they are found.
//!
//! An operator has named the nodes that it asks to take it in; others tell it of the rest. Any of these may lie, and it
//! has no roster to judge them by. So words have ranks:
//!
//! ```text
//!   of whom            whose word counts
//!   a node that was    its own; the operator's; anybody else's only after a while of silence, and only for a while:
//!   named              then it is looked for again where the operator has said
//!   another one        its own; that of a node that was named; anybody else's, until one of these has spoken of it
//! ```
//!
//! Of nodes that nobody vouches for, neither an operator nor one that was named, there are at most
//! [`limits::ACQUAINTANCES_MAX`]. When there are so many, a new one takes the place of one of those that another
//! speaker has named, if that one has named more: a speaker that makes nodes up takes no room from others.
//!
//! A word counts for [`limits::FORSAKEN_AFTER`] against those of a lower rank, and longer if it is said again. Who has
//! fallen silent does not speak for ever.

use std::collections::BTreeMap;

use stdx::Instant;

use crate::event::NodeId;
use crate::limits;
use crate::roster::Member;

/// The nodes that a node which joins has been told of; of no use once it has the roster.
#[derive(Debug)]
pub(crate) struct Acquaintances {
    /// Those that an operator has named, and where they are found.
    named: BTreeMap<NodeId, Member>,
    known: BTreeMap<NodeId, Known>,
}

#[derive(Debug)]
struct Known {
    member: Member,
    rank: Rank,
    /// Who has said so.
    by: NodeId,
    /// When that was said first, and last.
    since: Instant,
    said: Instant,
}

/// Who has said where a node is found; the last counts most.
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

    /// True if the node has been told of this one.
    pub(crate) fn knows(&self, node: NodeId) -> bool {
        self.known.contains_key(&node)
    }

    /// True if an operator has named anybody.
    pub(crate) fn has_named(&self) -> bool {
        !self.named.is_empty()
    }

    /// Those that an operator has named.
    pub(crate) fn named(&self) -> Vec<NodeId> {
        self.named.keys().copied().collect()
    }

    /// All of them.
    pub(crate) fn nodes(&self) -> Vec<NodeId> {
        self.known.keys().copied().collect()
    }

    /// All of them, and where they are found.
    pub(crate) fn places(&self) -> Vec<(NodeId, Member)> {
        self.known.iter().map(|(node, known)| (*node, known.member.clone())).collect()
    }

    /// Takes the word of `from` on a node, if it counts. `is_forsaken` says that nobody has taken this node in for a
    /// while. True if something is new.
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
            // On each other those that were named know no more than the operator.
            _ if !is_named && self.named.contains_key(&from) => Rank::Named,
            _ => Rank::Anybody,
        };
        if let Some(known) = self.known.get(&node) {
            let is_fresh = now.since(known.said) < limits::FORSAKEN_AFTER;
            let stands = is_fresh || known.rank == Rank::Operator && !is_forsaken;
            if rank < known.rank && stands || rank == Rank::Anybody && is_named && is_fresh {
                return false;
            }
            // Of two that say otherwise with the same right each is believed for a while, and not each time that it
            // says so.
            let is_recent = now.since(known.since) < limits::FORSAKEN_AFTER;
            if rank == known.rank && from != known.by && *member != known.member && is_recent {
                return false;
            }
        }
        if !self.known.contains_key(&node) && rank == Rank::Anybody && !self.makes_room_for(from) {
            return false;
        }
        let same = self.known.get(&node).filter(|known| known.member == *member);
        let since = same.filter(|known| known.by == from).map_or(now, |known| known.since);
        let is_new = same.is_none();
        self.known.insert(node, Known { member: member.clone(), rank, by: from, since, said: now });
        is_new
    }

    /// Sees to it that there is room for another node for which nobody vouches. False if there is none for one that
    /// `from` has named.
    fn makes_room_for(&mut self, from: NodeId) -> bool {
        let is_counted = |(node, known): &(&NodeId, &Known)| {
            !self.named.contains_key(node) && matches!(known.rank, Rank::Anybody | Rank::Itself)
        };
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
        // Else the two would take each other's place for ever.
        if own + 1 >= count {
            return false;
        }
        self.known.remove(&oldest[&most].1);
        true
    }

    /// Time passes: those that were named are looked for again where the operator has said if nothing has come of what
    /// somebody else says. `hears` says which nodes are heard where they are looked for. True if something is new.
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
        assert_eq!(lied_at(60, false), "said", "nobody has fallen silent");
        // However often the lie is told, half of the time the node is looked for where it was named.
        let places: Vec<_> = (100..140).map(|time| lied_at(time, true)).collect();
        let times = places.iter().filter(|place| *place == "said").count();
        assert!((18..=22).contains(&times), "{times} of 40 s: {places:?}");
        // Its own word counts as long as it is said.
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
        // Somebody else has room, and one who was named does not need any.
        for (from, node) in [(6, 20), (6, 21), (7, 22), (21, 21)] {
            let word = at(&format!("{from}"));
            assert!(joins.hear(NodeId(from), (NodeId(node), &word), false, second(9_000)), "{from} of {node}");
        }
        assert_eq!(made_up(&mut joins), 0, "none takes the place of another");
        assert_eq!(joins.nodes().len() as u64, max + 2);
        assert!([7, 20, 21, 22].iter().all(|node| joins.knows(NodeId(*node))));
        // Each of two that say much has half of it.
        for node in 5_000..5_000 + max {
            joins.hear(NodeId(6), (NodeId(node), &at("b")), false, second(9_000));
        }
        let of = |by| joins.known.values().filter(|known| known.by == NodeId(by)).count() as u64;
        assert!(of(5).abs_diff(of(6)) <= 1, "{} and {}", of(5), of(6));
    }
}
