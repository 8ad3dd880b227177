//! What nodes tell each other of themselves several times a second: whether they are fit to lead, and which nodes they
//! hear.
//!
//! A leader has no other way to know that another node would serve the cluster better. Which nodes *it* hears says
//! nothing of which nodes others hear: while two of three nodes are cut off from each other, only the third can serve
//! the clients of both. And where to go with leadership when the own disk is full is known only to those who have room.
//!
//! The first core hears and judges. All cores get what it has found whenever that changes. Nothing that is replicated
//! depends on it, so that a word that is late or lost costs a hand-over at most.

use std::collections::{BTreeMap, BTreeSet};

use group::ids::{CoreId, NodeId};
use stdx::{Duration, Instant, leb128};

use crate::limits;
use crate::stagger::{self, Stage};

/// A node's word on itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vitals {
    /// Its disk takes what may still be admitted, and its process is not about to stop.
    pub can_lead: bool,
    /// The nodes that it has heard within [`limits::VITALS_SILENCE`], itself left out; ascending.
    pub hears: Vec<NodeId>,
    /// Its cores.
    pub core_count: u16,
    /// Whether it writes a checkpoint, or wants to.
    pub checkpoint: Stage,
    /// For how long its host has stalled lately: see [`crate::guilt`].
    pub stalled_ms: u64,
}

impl Vitals {
    /// Appends it to a message.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.can_lead) | self.checkpoint.bits() << 1);
        leb128::put(out, self.hears.len() as u64);
        self.hears.iter().for_each(|node| leb128::put(out, node.0));
        leb128::put(out, u64::from(self.core_count));
        leb128::put(out, self.stalled_ms);
    }

    /// Reads it back; `None` if it is none.
    pub fn take(rest: &mut &[u8]) -> Option<Self> {
        let (flags, tail) = rest.split_first()?;
        *rest = tail;
        let hears = (0..leb128::take(rest)?).map(|_| leb128::take(rest).map(NodeId)).collect::<Option<_>>()?;
        let core_count = u16::try_from(leb128::take(rest)?).ok()?;
        let (can_lead, checkpoint) = (flags & 1 == 1, Stage::of_bits(flags >> 1)?);
        Some(Self { can_lead, hears, core_count, checkpoint, stalled_ms: leb128::take(rest)? })
    }

    /// True if it says the same of which node may lead.
    fn is_as_fit_as(&self, other: &Self) -> bool {
        (self.can_lead, &self.hears) == (other.can_lead, &other.hears)
    }
}

/// The other nodes that are heard at present, and those that are not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbours {
    /// What they say, and since when they have said it.
    pub(crate) heard: BTreeMap<NodeId, (Vitals, Instant)>,
    /// Those that have been heard, and when that was last.
    silent: BTreeMap<NodeId, Instant>,
    /// Those that nobody has heard for longer than `replace-after`: others take their places.
    pub(crate) lost: BTreeSet<NodeId>,
}

impl Neighbours {
    /// True if a node is heard, and has nothing to say against its leading.
    pub(crate) fn can_lead(&self, node: NodeId) -> bool {
        self.heard.get(&node).is_some_and(|(vitals, _)| vitals.can_lead)
    }

    /// The cores of a node, if it is heard.
    pub(crate) fn core_count(&self, node: NodeId) -> Option<u16> {
        self.heard.get(&node).map(|(vitals, _)| vitals.core_count)
    }

    /// What a node does about checkpoints, if it is heard.
    pub(crate) fn checkpoint_stage(&self, node: NodeId) -> Option<Stage> {
        self.heard.get(&node).map(|(vitals, _)| vitals.checkpoint)
    }

    /// For how long a node's host has stalled lately, if the node is heard.
    pub(crate) fn stalled_ms(&self, node: NodeId) -> Option<u64> {
        self.heard.get(&node).map(|(vitals, _)| vitals.stalled_ms)
    }

    /// The node that writes its checkpoint before one of this node, if there is one.
    pub(crate) fn checkpoints_first(&self, own: NodeId) -> Option<NodeId> {
        stagger::who_goes_first(own, self.heard.iter().map(|(node, (vitals, _))| (*node, vitals.checkpoint)))
    }

    /// True if a node is heard.
    pub(crate) fn hears(&self, node: NodeId) -> bool {
        self.heard.contains_key(&node)
    }

    /// When a node that is not heard was heard last, if it ever was.
    pub(crate) fn silent_since(&self, node: NodeId) -> Option<Instant> {
        self.silent.get(&node).copied()
    }

    /// The nodes that nobody has heard for so long that others take their places.
    pub(crate) fn lost(&self) -> BTreeSet<u64> {
        self.lost.iter().map(|node| node.0).collect()
    }

    /// True if a node is heard here, or by a node that is heard here.
    fn is_heard_by_any(&self, node: NodeId) -> bool {
        self.hears(node) || self.heard.values().any(|(vitals, _)| vitals.hears.contains(&node))
    }

    /// True if a node has said the same of itself since then.
    pub(crate) fn is_steady_since(&self, node: NodeId, then: Instant) -> bool {
        self.heard.get(&node).is_some_and(|(_, since)| *since <= then)
    }

    /// The nodes that a node can talk to, itself among them: both hear each other, as far as that is known at node
    /// `own`.
    pub(crate) fn reach(&self, own: NodeId, node: NodeId) -> BTreeSet<NodeId> {
        let said_by = |node: NodeId| self.heard.get(&node).map(|(vitals, _)| &vitals.hears);
        let hears = |one: NodeId, other: NodeId| match said_by(one) {
            _ if one == own => self.hears(other),
            Some(heard) => heard.contains(&other),
            // Nothing is known of it here; who hears it knows better.
            None => true,
        };
        let heard: Vec<NodeId> = match said_by(node) {
            _ if node == own => self.heard.keys().copied().collect(),
            Some(heard) => heard.clone(),
            None => Vec::new(),
        };
        heard.into_iter().filter(|other| hears(*other, node)).chain([node]).collect()
    }
}

/// What the first core has heard, and told.
#[derive(Debug, Default)]
pub(crate) struct Hearing {
    heard: BTreeMap<NodeId, (Vitals, Instant)>,
    pub(crate) told: Vitals,
    pub(crate) tell_at: Instant,
    /// What each core of this node does about checkpoints, where it is not nothing.
    checkpoints: BTreeMap<CoreId, Stage>,
    /// When to judge again: at once if a node has spoken, or else when one may have fallen silent.
    pub(crate) judge_at: Instant,
    pub(crate) absences: Absences,
}

/// For how long nodes have been heard by nobody, as far as this node could tell.
///
/// Time counts only while this node hears, or hears of, more than half of the nodes that will stay. So a node that is
/// cut off itself counts nothing against the others, nor does anybody when half of the cluster has fallen silent at
/// once: that is the net, or a mistake, and to copy everything would make it worse. Nor does time count for which the
/// process did not run. A node that is heard by a node that is heard here is not gone, though the two of us are cut
/// off. Every node keeps its own account, so that a change of leaders changes nothing.
#[derive(Debug, Default)]
pub(crate) struct Absences {
    gone: BTreeMap<NodeId, Duration>,
    looked: Instant,
}

impl Absences {
    /// Looks who is there. The nodes that have been gone for as long as `replace_after`, if that is not zero.
    pub(crate) fn look(
        &mut self,
        neighbours: &Neighbours,
        own: NodeId,
        staying: &BTreeSet<NodeId>,
        replace_after: Duration,
        now: Instant,
    ) -> BTreeSet<NodeId> {
        let passed = now.since(self.looked).min(limits::ABSENCE_LOOK_MAX);
        self.looked = now;
        let is_there = |node: &NodeId| *node == own || neighbours.is_heard_by_any(*node);
        self.gone.retain(|node, _| staying.contains(node) && !is_there(node));
        let present = staying.iter().filter(|node| is_there(node)).count();
        if 2 * present <= staying.len() {
            return BTreeSet::new();
        }
        for node in staying.iter().filter(|node| !is_there(node)) {
            let gone = self.gone.entry(*node).or_insert(Duration::ZERO);
            *gone += passed;
        }
        let is_lost = |gone: &Duration| replace_after > Duration::ZERO && *gone >= replace_after;
        self.gone.iter().filter(|(_, gone)| is_lost(gone)).map(|(node, _)| *node).collect()
    }
}

impl Hearing {
    /// A node speaks.
    pub(crate) fn hear(&mut self, node: NodeId, vitals: Vitals, now: Instant) {
        self.heard.insert(node, (vitals, now));
        self.judge_at = now;
    }

    /// A core of this node begins or ends something about checkpoints.
    pub(crate) fn note_checkpoint(&mut self, core: CoreId, stage: Stage) {
        self.checkpoints.insert(core, stage);
    }

    /// What this node does about checkpoints.
    pub(crate) fn own_checkpoint_stage(&self) -> Stage {
        self.checkpoints.values().copied().max().unwrap_or_default()
    }

    /// The nodes that are heard now: those that were already, as they were known, stay what they are since then. Nodes
    /// that are no members are heard by nobody.
    pub(crate) fn judge(
        &mut self,
        before: &Neighbours,
        is_member: impl Fn(NodeId) -> bool,
        now: Instant,
    ) -> Neighbours {
        self.heard.retain(|node, _| is_member(*node));
        let mut silent = before.silent.clone();
        self.heard.retain(|node, (_, heard)| {
            let is_heard = now.since(*heard) <= limits::VITALS_SILENCE;
            if !is_heard {
                silent.insert(*node, *heard);
            }
            is_heard
        });
        silent.retain(|node, _| !self.heard.contains_key(node) && is_member(*node));
        let silences = self.heard.values().map(|(_, heard)| *heard + limits::VITALS_SILENCE + Duration::from_nanos(1));
        // The members of the cluster change, too.
        self.judge_at = silences.fold(now + limits::VITALS_INTERVAL, Instant::min);
        let since = |node: &NodeId, vitals: &Vitals| match before.heard.get(node) {
            Some((known, since)) if known.is_as_fit_as(vitals) => *since,
            _ => now,
        };
        let judged = self.heard.iter().map(|(node, (vitals, _))| (*node, (vitals.clone(), since(node, vitals))));
        Neighbours { heard: judged.collect(), silent, lost: BTreeSet::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbours(said: &[(u64, &[u64])]) -> Neighbours {
        let vitals = |hears: &[u64]| Vitals {
            can_lead: true,
            hears: hears.iter().copied().map(NodeId).collect(),
            ..Vitals::default()
        };
        let heard = said.iter().map(|(node, hears)| (NodeId(*node), (vitals(hears), Instant::ZERO)));
        Neighbours { heard: heard.collect(), ..Neighbours::default() }
    }

    fn reach(neighbours: &Neighbours, own: u64, node: u64) -> Vec<u64> {
        neighbours.reach(NodeId(own), NodeId(node)).into_iter().map(|node| node.0).collect()
    }

    #[test]
    fn a_word_is_read_as_it_was_written() {
        let hears = vec![NodeId(2), NodeId(u64::MAX >> 2)];
        let vitals = Vitals { can_lead: true, hears, core_count: 300, checkpoint: Stage::Writing, stalled_ms: 1_700 };
        let mut bytes = Vec::new();
        vitals.put(&mut bytes);
        assert_eq!(Vitals::take(&mut &bytes[..]), Some(vitals));
        assert!((0..bytes.len()).all(|length| Vitals::take(&mut &bytes[..length]).is_none()));
    }

    #[test]
    fn who_is_cut_off_from_one_reaches_fewer_than_who_hears_both() {
        let whole = neighbours(&[(2, &[1, 3]), (3, &[1, 2])]);
        assert_eq!([1, 2, 3].map(|node| reach(&whole, 1, node)), [[1, 2, 3]; 3]);
        // 1 and 2 do not hear each other: as 1 sees it, and as 3 does.
        let cut = neighbours(&[(3, &[1, 2])]);
        assert_eq!((reach(&cut, 1, 1), reach(&cut, 1, 3)), (vec![1, 3], vec![1, 2, 3]));
        let between = neighbours(&[(1, &[3]), (2, &[3])]);
        assert_eq!((reach(&between, 3, 1), reach(&between, 3, 3)), (vec![1, 3], vec![1, 2, 3]));
        // One hears the other, and is not heard.
        let one_way = neighbours(&[(2, &[3]), (3, &[1, 2])]);
        assert_eq!((reach(&one_way, 1, 1), reach(&one_way, 1, 3)), (vec![1, 3], vec![1, 2, 3]));
        // A node that is gone is missed by all alike.
        let gone = neighbours(&[(3, &[1])]);
        assert_eq!((reach(&gone, 1, 1), reach(&gone, 1, 3)), (vec![1, 3], vec![1, 3]));
    }

    #[test]
    fn a_node_is_lost_when_nobody_has_heard_it_for_long_and_the_rest_is_there() {
        const NOBODY: [u64; 0] = [];
        let staying = |count: u64| (1..=count).map(NodeId).collect::<BTreeSet<_>>();
        let after = Duration::from_secs(5);
        // Node 1 looks every 100 ms from second `from` to second `to`.
        let look = |absences: &mut Absences, heard: &[(u64, &[u64])], count, from: u64, to: u64| {
            let mut lost = BTreeSet::new();
            for ms in (from * 1_000..to * 1_000).step_by(100) {
                let now = Instant::ZERO + Duration::from_millis(ms);
                lost = absences.look(&neighbours(heard), NodeId(1), &staying(count), after, now);
            }
            lost.into_iter().map(|node| node.0).collect::<Vec<u64>>()
        };
        let all_but_5: &[(u64, &[u64])] = &[(2, &[1, 3, 4]), (3, &[1, 2, 4]), (4, &[1, 2, 3])];
        let mut absences = Absences::default();
        assert_eq!(look(&mut absences, all_but_5, 5, 10, 14), NOBODY);
        assert_eq!(look(&mut absences, all_but_5, 5, 14, 17), [5]);
        // One that is heard by another is cut off from here, and not gone; it is when that one does not hear it either.
        assert_eq!(look(&mut absences, &[(2, &[1, 5]), (3, &[1]), (4, &[1])], 5, 17, 30), NOBODY);
        assert_eq!(look(&mut absences, all_but_5, 5, 30, 33), NOBODY);
        // While half of the cluster is silent nothing counts, however long that lasts: this node may be cut off.
        let mut absences = Absences::default();
        assert_eq!(look(&mut absences, &[], 5, 10, 3_000), NOBODY);
        assert_eq!(look(&mut absences, &[(2, &[1])], 4, 3_000, 6_000), NOBODY);
        assert_eq!(look(&mut absences, all_but_5, 5, 6_000, 6_003), NOBODY);
        // A process that did not run for an hour has not heard anybody, and that says nothing.
        assert_eq!(look(&mut absences, all_but_5, 5, 9_000, 9_001), NOBODY);
        assert_eq!(look(&mut absences, all_but_5, 5, 9_001, 9_003), [5]);
        // Never, unless it is asked for.
        let now = Instant::ZERO + Duration::from_secs(9_004);
        assert!(absences.look(&neighbours(all_but_5), NodeId(1), &staying(5), Duration::ZERO, now).is_empty());
    }

    #[test]
    fn who_says_the_same_of_itself_is_steady_and_who_is_silent_is_forgotten() {
        let at = |ms: u64| Instant::ZERO + Duration::from_millis(ms);
        let mut hearing = Hearing::default();
        let mut known = Neighbours::default();
        // That it writes a checkpoint now and then does not make it unsteady.
        let stage_at = |ms: u64| if ms.is_multiple_of(300) { Stage::Writing } else { Stage::Idle };
        for ms in (0..1_000).step_by(100) {
            hearing.hear(
                NodeId(2),
                Vitals { can_lead: ms < 500, checkpoint: stage_at(ms), ..Vitals::default() },
                at(ms),
            );
            known = hearing.judge(&known, |_| true, at(ms));
        }
        assert!(!known.can_lead(NodeId(2)) && known.hears(NodeId(2)));
        assert!(known.is_steady_since(NodeId(2), at(500)) && !known.is_steady_since(NodeId(2), at(499)));
        known = hearing.judge(&known, |_| true, at(900) + limits::VITALS_SILENCE * 2);
        assert!(!known.hears(NodeId(2)));
        assert_eq!(known.silent_since(NodeId(2)), Some(at(900)));
        hearing.hear(NodeId(2), Vitals::default(), at(9_000));
        assert_eq!(hearing.judge(&known, |_| true, at(9_000)).silent_since(NodeId(2)), None);
        assert!(!hearing.judge(&known, |_| false, at(9_000)).hears(NodeId(2)), "it has been removed");
    }
}
