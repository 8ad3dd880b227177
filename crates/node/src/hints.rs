//! Where nodes may be beside where they are called.
//!
//! A node that says itself where it is is called there. What others say of it, or what an operator has shown, may be so
//! or not; it is tried beside the rest, and costs an attempt if it is wrong. Each source has one word on each node, so
//! that a source which is wrong replaces no other one; it stands for [`limits::FORSAKEN_AFTER`], so that a source which
//! says something else all the time does not keep others from being tried.

use std::collections::BTreeMap;

use group::ids::NodeId;
use stdx::Instant;

use crate::limits;
use crate::roster::Roster;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// By node and source. The operator's word is that of this node.
    hints: BTreeMap<NodeId, BTreeMap<NodeId, Hint>>,
}

#[derive(Debug)]
struct Hint {
    address: String,
    since: Instant,
    /// Where the roster said that the node is, once that was known: what it says later counts more.
    instead_of: Option<String>,
}

impl Hints {
    /// A source says where a node may be. True if that is new.
    pub(crate) fn hear(&mut self, from: NodeId, node: NodeId, address: String, now: Instant) -> bool {
        let hints = self.hints.entry(node).or_default();
        let stands = |known: &Hint| known.address == address || now.since(known.since) < limits::FORSAKEN_AFTER;
        if hints.get(&from).is_some_and(stands) {
            return false;
        }
        hints.insert(from, Hint { address, since: now, instead_of: None });
        true
    }

    /// Drops what the roster has overtaken. An empty one says nothing.
    pub(crate) fn compare(&mut self, roster: &Roster) {
        if roster.is_empty() {
            return;
        }
        self.hints.retain(|node, hints| {
            let Some(member) = roster.get(*node).filter(|member| !member.is_removed) else { return false };
            hints.retain(|from, hint| {
                let address = &member.cluster_address;
                let known = hint.instead_of.get_or_insert_with(|| address.clone());
                // Who has been removed has no say.
                let has_say = roster.get(*from).is_some_and(|source| !source.is_removed);
                known == address && hint.address != *address && has_say
            });
            !hints.is_empty()
        });
    }

    /// All of them.
    pub(crate) fn places(&self) -> Vec<(NodeId, Vec<String>)> {
        let addresses = |hints: &BTreeMap<NodeId, Hint>| {
            let mut addresses: Vec<String> = hints.values().map(|hint| hint.address.clone()).collect();
            addresses.sort_unstable();
            addresses.dedup();
            addresses
        };
        self.hints.iter().map(|(node, hints)| (*node, addresses(hints))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roster::Member;

    fn roster_of(nodes: &[(u64, &str)]) -> Roster {
        let mut roster = Roster::default();
        for (node, address) in nodes {
            let member = Member { cluster_address: (*address).to_owned(), ..Member::default() };
            assert!(roster.enlist(NodeId(*node), member));
        }
        roster
    }

    fn places(hints: &Hints) -> Vec<(u64, Vec<String>)> {
        hints.places().into_iter().map(|(node, places)| (node.0, places)).collect()
    }

    #[test]
    fn each_source_has_one_word_until_the_roster_has_another() {
        let mut hints = Hints::default();
        let later = Instant::ZERO + limits::FORSAKEN_AFTER;
        let hear = |hints: &mut Hints, from, node, address: &str, now| {
            hints.hear(NodeId(from), NodeId(node), address.to_owned(), now)
        };
        // The operator speaks before the log has been read.
        assert!(hear(&mut hints, 1, 2, "new:2", Instant::ZERO));
        assert!(!hear(&mut hints, 1, 2, "new:2", later));
        hints.compare(&Roster::default());
        let roster = roster_of(&[(1, "old:1"), (2, "old:2"), (3, "old:3")]);
        hints.compare(&roster);
        // A node that is wrong replaces only itself, and nobody speaks of strangers or as one.
        let words = [("false:2", Instant::ZERO, true), ("false:3", Instant::ZERO, false), ("false:3", later, true)];
        for (word, now, is_new) in words {
            assert_eq!(hear(&mut hints, 3, 2, word, now), is_new, "{word}");
        }
        assert!(hear(&mut hints, 3, 9, "any:9", later));
        assert!(hear(&mut hints, 8, 3, "any:3", later));
        hints.compare(&roster);
        assert_eq!(places(&hints), [(2, vec!["false:3".to_owned(), "new:2".to_owned()])]);
        // What the roster says by now is no hint, and what it says newly is better than one.
        assert!(hear(&mut hints, 1, 3, "old:3", later));
        hints.compare(&roster);
        assert_eq!(places(&hints).len(), 1);
        hints.compare(&roster_of(&[(1, "old:1"), (2, "newer:2"), (3, "old:3")]));
        assert_eq!(places(&hints), []);
    }
}
