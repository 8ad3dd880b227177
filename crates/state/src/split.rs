//! A group that splits off from another one: what becomes of each part of what replicas agree on.
//!
//! It is an item of the other one's log. At that place every replica hands the tables of the slots over, and the new
//! group's log begins with a state of that moment: a function of the other one's log up to there. The first entry of
//! the new log says where that is ([`Born`]), so that the beginning can be found again as long as the other log, or a
//! checkpoint before the split and the log behind it, is there.
//!
//! | part | on a split |
//! |---|---|
//! | keys, with versions, deadlines, what has gone from a slot | go with their slots; the sequence goes on in both |
//! | moment, level, forms of collections | both have them |
//! | slots | both know them: each slot that goes is one epoch further |
//! | answers to requests with an id | go with their slots |
//! | reply cache | stays: a request has its number in the stream to one group, and only that one says what became of it |
//! | prepared transactions | stay; none may touch the slots, or nothing splits |
//! | outcomes | stay: who asks for one asks a group that took part |
//! | groups that split off before | stay |
//! | that the group has ended | stays: it holds no slots, so nothing splits off |
//! | roster, libraries, parameters, echoes | stay: they are group 0's |
//!
//! What a leader has beside that divides by itself: its locks on the slots let go behind the split, and requests that
//! wait for them are sent on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use message::GroupId;
use message::entry::{Born, Effect};
use message::slots::Moved;
use stdx::slot::{SLOT_COUNT, Slot, slot_of};

use crate::apply::{Applied, Effects, Meter, What};
use crate::{DataCommand, Outcomes, Position, ReplyCache, State, Writer};
use resp::Args;

/// Index and term of the entry with which a group that has split off begins.
pub const FIRST: Position = Position { index: 1, term: 1 };

/// A group that has split off.
pub struct SplitOff {
    /// Where.
    pub born: Born,
    /// What it begins with.
    pub state: State,
    /// The slots that have gone with it.
    pub moved: Vec<Moved>,
}

impl SplitOff {
    /// Drops the keys of the slot that was changed last: a mistake that the simulator makes on purpose.
    pub fn lose_tail(&mut self) {
        let keyspace = &mut self.state.keyspace;
        let last = self.moved.iter().map(|moved| moved.slot).max_by_key(|slot| keyspace.slot_version(*slot));
        last.into_iter().for_each(|slot| keyspace.drop_slot(slot));
    }
}

impl std::fmt::Debug for SplitOff {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "SplitOff(group {} from {:?})", self.state.group.0, self.born)
    }
}

impl State {
    /// Index of the entry by which a group has split off from this one, if it has.
    pub fn split_index(&self, group: GroupId) -> Option<u64> {
        self.splits.get(&group.0).copied()
    }

    /// The groups that have split off from this one.
    pub fn split_groups(&self) -> impl Iterator<Item = GroupId> {
        self.splits.keys().copied().map(GroupId)
    }

    /// Index of the entry with which the group ended, if it has.
    pub fn ended(&self) -> Option<u64> {
        Some(self.ended).filter(|index| *index > 0)
    }

    /// True if the group holds any slot.
    pub fn holds_slots(&self) -> bool {
        (0..SLOT_COUNT as u16).any(|slot| self.slots.group_of_slot(Slot(slot)) == self.group)
    }

    /// Why the group cannot end now, if it cannot. The same on every replica. Nobody asks about transactions that it
    /// has forgotten: all who took part have ended them.
    pub fn end_obstacle(&self) -> Option<&'static str> {
        if self.group.0 == 0 {
            Some("it holds the metadata")
        } else if self.holds_slots() {
            Some("it holds slots")
        } else if !self.prepared.is_empty() {
            Some("it has prepared transactions")
        } else if self.outcomes.count() > 0 {
            Some("others may ask how transactions ended")
        } else {
            None
        }
    }

    /// Why a group cannot split off with these slots now, if it cannot. The same on every replica.
    pub fn split_obstacle(&self, group: GroupId, slots: &BTreeSet<Slot>) -> Option<&'static str> {
        let is_touched = |effect: &Effect| match effect {
            Effect::Key { key, .. } => slots.contains(&slot_of(key)),
            Effect::Answer(answered) => slots.contains(&answered.request.slot),
            Effect::Give(_) | Effect::Take(_) => effect.slot().is_some_and(|slot| slots.contains(&slot)),
            Effect::Flush { .. } | Effect::Swap { .. } => true,
        };
        if group.0 <= self.group.0 || self.splits.contains_key(&group.0) {
            Some("the group is there")
        } else if slots.iter().any(|slot| self.slots.group_of_slot(*slot) != self.group) {
            Some("a slot is held by another group")
        } else if self.prepared.values().flat_map(|prepared| prepared.effects()).any(is_touched) {
            Some("a prepared transaction changes keys of the slots")
        } else {
            None
        }
    }

    /// Lets a group split off with these slots. Nothing happens if [it cannot](State::split_obstacle).
    pub(crate) fn split_off(&mut self, group: GroupId, runs: &[(Slot, Slot)]) -> Option<SplitOff> {
        let runs = runs.iter().map(|(first, last)| first.0..=last.0.min(SLOT_COUNT as u16 - 1));
        let slots: BTreeSet<Slot> = runs.flatten().map(Slot).collect();
        if self.split_obstacle(group, &slots).is_some() {
            return None;
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.note_move();
        }
        let keyspace = self.keyspace.split_off(&slots);
        let mut moved = Vec::with_capacity(slots.len());
        for slot in &slots {
            let gone = Moved { slot: *slot, group, epoch: self.slots.epoch_of(*slot) + 1 };
            self.slots.learn(gone);
            self.keyspace.set_elsewhere(*slot, true);
            moved.push(gone);
        }
        self.splits.insert(group.0, self.applied.index);
        let mut state = Self {
            group,
            applied: FIRST,
            keyspace,
            moment: self.moment,
            prepared: BTreeMap::new(),
            outcomes: Outcomes::default(),
            roster: message::roster::Roster::default(),
            replies: ReplyCache::default(),
            libraries: Arc::default(),
            slots: self.slots.clone(),
            parameters: Arc::default(),
            echoes: crate::Echoes::default(),
            request_ids: self.request_ids.split_off(&slots),
            level: self.level,
            splits: BTreeMap::new(),
            ended: 0,
            scratch: Writer::default(),
            spans: Vec::new(),
            forgets_answers: self.forgets_answers,
            recorder: None,
        };
        state.prepare_keyspace();
        Some(SplitOff { born: Born { parent: self.group, index: self.applied.index }, state, moved })
    }
}

/// Keeps the groups that split off while a log is replayed, each as it began.
#[derive(Default)]
pub struct Beginnings(BTreeMap<u32, SplitOff>);

impl Beginnings {
    /// What a group began with that was born there.
    pub fn take(&mut self, group: GroupId, born: Born) -> Option<SplitOff> {
        self.0.remove(&group.0).filter(|found| found.born == born)
    }
}

impl Meter for Beginnings {
    type Watch = ();

    fn start(&mut self, _: &'static DataCommand, _: Args<'_>) -> Option<()> {
        None
    }

    fn stop(&mut self, _: Option<()>, _: Args<'_>) {}
}

impl Effects for Beginnings {
    fn applied(&mut self, _: &mut State, applied: Applied) {
        if let What::Split { split: Some(split), .. } = applied.what {
            self.0.insert(split.state.group.0, *split);
        }
    }
}
