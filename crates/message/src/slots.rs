//! Which group holds which slot.
//!
//! At first slots are divided evenly, in order. Each move of a slot raises its *epoch*, and anyone who hears of two
//! holders believes the later one. The truth about a slot is the state of the two groups that it moved between: one
//! knows that it has given the slot, and which group it gave it to; the other knows that it has taken it. Every core
//! has a map of its own, learnt from the groups of its node, or from the answer of a group that was asked for a slot
//! that it no longer holds.

use std::collections::BTreeMap;

use stdx::leb128;
use stdx::slot::{self, SLOT_COUNT, Slot, slot_of};

use crate::entry::Reader;
use crate::id::GroupId;
use crate::roster::GROUPS_MAX;

/// That a slot has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Which slot.
    pub slot: Slot,
    /// Who holds it now.
    pub group: GroupId,
    /// How often it has moved.
    pub epoch: u64,
}

impl Moved {
    /// Appends it to an entry or a message.
    pub fn put(&self, out: &mut Vec<u8>) {
        leb128::put(out, u64::from(self.slot.0));
        leb128::put(out, u64::from(self.group.0));
        leb128::put(out, self.epoch);
    }
}

/// Who holds what, as far as its owner knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotMap {
    /// Groups over which the slots were divided at first.
    first_count: u32,
    group_count: u32,
    /// By slot.
    holders: Box<[u16]>,
    /// Slots that have ever moved, with their epochs.
    epochs: BTreeMap<u16, u64>,
    version: u64,
    /// Groups that have gone, as far as its owner knows, with the entries that ended their logs. No part of what
    /// replicas agree on.
    gone: BTreeMap<u32, u64>,
}

impl SlotMap {
    /// Slots divided evenly, in order.
    pub fn even(group_count: u32) -> Self {
        let holder = |slot: usize| (slot * group_count as usize / SLOT_COUNT) as u16;
        let first_count = group_count;
        Self {
            first_count,
            group_count,
            holders: (0..SLOT_COUNT).map(holder).collect(),
            epochs: BTreeMap::new(),
            version: 0,
            gone: BTreeMap::new(),
        }
    }

    /// Number of groups of which is known that they have come into being: at first all, and each that has been founded
    /// since once it has been led or has taken a slot.
    pub fn group_count(&self) -> u32 {
        self.group_count
    }

    /// The groups that have come into being, those left out that have gone.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> {
        (0..self.group_count).filter(|group| !self.gone.contains_key(group)).map(GroupId)
    }

    /// The entry that ended the log of a group that has gone.
    pub fn gone_at(&self, group: GroupId) -> Option<u64> {
        self.gone.get(&group.0).copied()
    }

    /// Hears that a group has gone, and which entry ended its log. True if that is news.
    pub fn retire(&mut self, group: GroupId, index: u64) -> bool {
        let is_news = self.gone.insert(group.0, index).is_none();
        self.version += u64::from(is_news);
        is_news
    }

    /// Number of groups over which the slots were divided at first.
    pub fn first_count(&self) -> u32 {
        self.first_count
    }

    /// The group that holds a slot.
    #[inline]
    pub fn group_of_slot(&self, slot: Slot) -> GroupId {
        GroupId(u32::from(self.holders[usize::from(slot.0)]))
    }

    /// The group that holds a key.
    #[inline]
    pub fn group_of(&self, key: &[u8]) -> GroupId {
        if self.group_count == 1 { GroupId(0) } else { self.group_of_slot(slot_of(key)) }
    }

    /// How often a slot has moved.
    pub fn epoch_of(&self, slot: Slot) -> u64 {
        self.epochs.get(&slot.0).copied().unwrap_or(0)
    }

    /// What is known of a slot.
    pub fn known(&self, slot: Slot) -> Moved {
        Moved { slot, group: self.group_of_slot(slot), epoch: self.epoch_of(slot) }
    }

    /// True while no slot has ever moved.
    #[inline]
    pub fn is_even(&self) -> bool {
        self.epochs.is_empty()
    }

    /// Goes up with every change.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Hears that there are at least so many groups.
    pub fn grow(&mut self, group_count: u32) {
        if self.group_count < group_count.min(GROUPS_MAX) {
            self.group_count = group_count.min(GROUPS_MAX);
            self.version += 1;
        }
    }

    /// A slot that this group has given to another.
    pub fn given_by(&self, group: GroupId) -> Option<Slot> {
        self.moved().find(|moved| moved.group != group).map(|moved| moved.slot)
    }

    /// A slot that is known to be held by none of the first so many groups.
    pub fn held_beyond(&self, group_count: u32) -> Option<Slot> {
        if self.group_count <= group_count {
            return None;
        }
        self.moved().find(|moved| moved.group.0 >= group_count).map(|moved| moved.slot)
    }

    /// Hears that a slot has moved. True if that is news.
    pub fn learn(&mut self, Moved { slot, group, epoch }: Moved) -> bool {
        let is_news = epoch > self.epoch_of(slot) && group.0 < GROUPS_MAX;
        if is_news {
            self.group_count = self.group_count.max(group.0 + 1);
            self.epochs.insert(slot.0, epoch);
            self.holders[usize::from(slot.0)] = group.0 as u16;
            self.version += 1;
        }
        is_news
    }

    /// All slots that have ever moved.
    pub fn moved(&self) -> impl Iterator<Item = Moved> {
        self.epochs.keys().map(|slot| self.known(Slot(*slot)))
    }

    /// Runs of neighbouring slots of one group, in order: first, last, group.
    pub fn runs(&self) -> Vec<(u16, u16, GroupId)> {
        let mut runs: Vec<(u16, u16, GroupId)> = Vec::new();
        for (slot, holder) in (0..).zip(&self.holders) {
            let group = GroupId(u32::from(*holder));
            match runs.last_mut() {
                Some((_, last, of)) if *of == group => *last = slot,
                _ => runs.push((slot, slot, group)),
            }
        }
        runs
    }

    /// The runs of one group, as they are written for people.
    pub fn text_of(&self, group: GroupId) -> String {
        let held = (0..).zip(&self.holders).filter(|(_, holder)| u32::from(**holder) == group.0);
        slot::text_of(held.map(|(slot, _)| Slot(slot)))
    }

    /// The first slot behind this one that is held by such a group.
    pub fn next_of(&self, slot: Slot, is_meant: impl Fn(GroupId) -> bool) -> Option<Slot> {
        (slot.0 + 1..SLOT_COUNT as u16).map(Slot).find(|slot| is_meant(self.group_of_slot(*slot)))
    }

    /// A sum over the slots of a group. Over all groups it makes [`SlotMap::whole_cover`] if each slot is held by one:
    /// then their answers together are about every key once.
    pub fn cover_of(&self, group: GroupId) -> u64 {
        let held = (0..SLOT_COUNT as u16).filter(|slot| self.group_of_slot(Slot(*slot)) == group);
        held.fold(0, |sum, slot| sum ^ weight(slot))
    }

    /// See [`SlotMap::cover_of`].
    pub fn whole_cover() -> u64 {
        (0..SLOT_COUNT as u16).fold(0, |sum, slot| sum ^ weight(slot))
    }

    /// Appends it to a checkpoint.
    pub fn put(&self, out: &mut Vec<u8>) {
        leb128::put(out, self.epochs.len() as u64);
        self.moved().for_each(|moved| moved.put(out));
    }

    /// Reads it back.
    pub fn read(reader: &mut Reader<'_>, first_count: u32) -> Self {
        let mut map = Self::even(first_count);
        for _ in 0..reader.number() {
            map.learn(reader.moved());
        }
        map
    }
}

fn weight(slot: u16) -> u64 {
    stdx::Prng::new(u64::from(slot) + 1).draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_first_every_slot_has_one_group_and_groups_are_runs_of_slots() {
        for group_count in [1, 2, 3, 5, 8, 64] {
            let runs = SlotMap::even(group_count).runs();
            assert_eq!(runs.len(), group_count as usize);
            assert!(runs.iter().zip(0..).all(|((.., group), number)| group.0 == number));
            assert_eq!((runs[0].0, runs[runs.len() - 1].1), (0, SLOT_COUNT as u16 - 1));
        }
    }

    #[test]
    fn the_later_holder_is_believed_and_a_map_survives_a_checkpoint() {
        let mut map = SlotMap::even(3);
        let slot = Slot(7);
        assert!(map.learn(Moved { slot, group: GroupId(2), epoch: 2 }));
        assert!(!map.learn(Moved { slot, group: GroupId(1), epoch: 1 }), "that was before");
        assert!(!map.learn(Moved { slot, group: GroupId(GROUPS_MAX), epoch: 5 }), "there is no such group");
        assert_eq!((map.group_of_slot(slot), map.epoch_of(slot)), (GroupId(2), 2));
        assert_eq!(map.text_of(GroupId(0)), "0-6,8-5461");
        assert_eq!(map.next_of(Slot(0), |group| group != GroupId(0)), Some(slot));
        assert_eq!((0..3).fold(0, |sum, group| sum ^ map.cover_of(GroupId(group))), SlotMap::whole_cover());
        let mut bytes = Vec::new();
        map.put(&mut bytes);
        let read = SlotMap::read(&mut Reader::new(&bytes), 3);
        assert_eq!(read.moved().collect::<Vec<_>>(), map.moved().collect::<Vec<_>>());
        assert_eq!(read.runs(), map.runs());
    }

    #[test]
    fn a_group_is_known_once_it_is_led_or_has_taken_a_slot() {
        let mut map = SlotMap::even(1);
        assert_eq!(map.group_of(b"key"), GroupId(0));
        let slot = slot_of(b"key");
        assert!(map.learn(Moved { slot, group: GroupId(2), epoch: 1 }));
        assert_eq!((map.group_count(), map.group_of(b"key")), (3, GroupId(2)));
        assert_eq!((map.given_by(GroupId(0)), map.given_by(GroupId(2))), (Some(slot), None));
        assert_eq!((map.held_beyond(2), map.held_beyond(3)), (Some(slot), None));
        let before = map.version();
        map.grow(2);
        assert_eq!((map.group_count(), map.version()), (3, before));
        map.grow(4);
        assert_eq!(map.group_count(), 4);
    }
}
