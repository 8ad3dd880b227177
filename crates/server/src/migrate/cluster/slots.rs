//! Which stream a slot is taken from, and what becomes of slots that move between the nodes of a source.
//!
//! The streams of two nodes have no common order. So a slot is *settled* or not. What a settled slot holds at the
//! target is what it held at its node, at the place up to which that node's stream has been carried out; only that
//! stream may change it. As soon as anything hints at a move (a request from another node, another owner, a move
//! under way) the slot is unsettled: requests for it are passed over, and what it holds stays as it is. When the
//! cluster says again that one node has the slot, its keys are read there together with the place in that node's
//! stream at which they were so, and they replace what the target has when the stream is at this place. So it does
//! not matter in which order the streams are read, how far each is behind, or by which means the slot was moved.
//!
//! A node may still send old requests for a slot that it has given away. Up to a *fence*, its place at the time of the
//! reading, they are known to be old. A fence only spares readings: without it the slot would be read once more.

use std::collections::{BTreeMap, BTreeSet};

use stdx::slot::SLOT_COUNT;

/// A key, its deadline in milliseconds since the epoch (0 if it has none), and its value in RESTORE's form.
pub struct Kept {
    pub name: Vec<u8>,
    pub deadline_ms: i64,
    pub value: Vec<u8>,
}

/// What a slot holds at a place of a stream.
pub struct Reading {
    pub stream: u32,
    pub offset: u64,
    pub keys: Vec<Kept>,
}

impl Reading {
    /// Memory that it takes, about.
    pub fn bytes(&self) -> usize {
        self.keys.iter().map(|key| key.name.len() + key.value.len() + 64).sum()
    }
}

/// All slots.
pub struct Slots {
    /// The stream that each is taken from.
    owners: Vec<Option<u32>>,
    unsettled: BTreeSet<u16>,
    /// Unsettled slots that have been read, and wait for their streams.
    readings: BTreeMap<u16, Reading>,
    /// Places of streams up to which what they say of a slot is old.
    fences: BTreeMap<u16, BTreeMap<u32, u64>>,
}

impl Slots {
    pub fn new() -> Self {
        let (unsettled, readings, fences) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        Self { owners: vec![None; SLOT_COUNT], unsettled, readings, fences }
    }

    /// Takes a slot from a stream from its beginning on.
    pub fn assign(&mut self, slot: u16, stream: u32) {
        self.owners[usize::from(slot)] = Some(stream);
    }

    pub fn owner(&self, slot: u16) -> Option<u32> {
        self.owners[usize::from(slot)]
    }

    /// Slots of a stream, in order.
    pub fn of(&self, stream: u32) -> impl Iterator<Item = u16> {
        let is_its = move |(_, owner): &(usize, &Option<u32>)| **owner == Some(stream);
        self.owners.iter().enumerate().filter(is_its).map(|(slot, _)| slot as u16)
    }

    pub fn unsettled(&self) -> &BTreeSet<u16> {
        &self.unsettled
    }

    /// Those that have to be read.
    pub fn unread(&self) -> impl Iterator<Item = u16> {
        self.unsettled.iter().copied().filter(|slot| !self.readings.contains_key(slot))
    }

    /// Memory that readings take.
    pub fn reading_bytes(&self) -> usize {
        self.readings.values().map(Reading::bytes).sum()
    }

    /// Something hints at a move. True if nothing did before.
    pub fn unsettle(&mut self, slot: u16) -> bool {
        self.readings.remove(&slot);
        self.unsettled.insert(slot)
    }

    /// True if a request must be carried out: it reaches up to `end` of its stream, and is about these slots.
    pub fn admits(&mut self, stream: u32, end: u64, slots: &BTreeSet<u16>) -> bool {
        let refused: Vec<u16> = slots.iter().copied().filter(|slot| !self.admits_slot(stream, end, *slot)).collect();
        // A request that is passed over for one of its slots is missing in the others.
        if !refused.is_empty() {
            slots.iter().filter(|slot| !refused.contains(slot)).for_each(|slot| _ = self.unsettle(*slot));
        }
        refused.is_empty()
    }

    fn admits_slot(&mut self, stream: u32, end: u64, slot: u16) -> bool {
        if self.fences.get(&slot).and_then(|fences| fences.get(&stream)).is_some_and(|fence| end <= *fence) {
            return false;
        }
        if self.unsettled.contains(&slot) {
            // What its own node has said until the reading is in it; another node says that it has moved again.
            if self.readings.get(&slot).is_some_and(|reading| reading.stream != stream || reading.offset < end) {
                self.readings.remove(&slot);
            }
            return false;
        }
        if self.owner(slot) == Some(stream) {
            return true;
        }
        self.unsettle(slot);
        false
    }

    /// Notes what an unsettled slot holds, and up to where other streams say old things of it.
    pub fn read(&mut self, slot: u16, reading: Reading, fences: BTreeMap<u32, u64>) {
        if self.unsettled.contains(&slot) {
            self.readings.insert(slot, reading);
            self.fences.insert(slot, fences);
        }
    }

    /// True if a reading waits for this stream to be at this place, or before it.
    pub fn has_due(&self, stream: u32, offset: u64) -> bool {
        self.readings.values().any(|reading| reading.stream == stream && reading.offset <= offset)
    }

    /// Settles a slot that was read at this place of a stream, and answers what it holds; `None` if there is none. What
    /// was read at an earlier place is of no use.
    pub fn take_due(&mut self, stream: u32, offset: u64) -> Option<(u16, Reading)> {
        loop {
            let is_due = |reading: &Reading| reading.stream == stream && reading.offset <= offset;
            let slot = self.readings.iter().find(|(_, reading)| is_due(reading)).map(|(slot, _)| *slot)?;
            let reading = self.readings.remove(&slot)?;
            if reading.offset == offset {
                self.unsettled.remove(&slot);
                self.owners[usize::from(slot)] = Some(stream);
                return Some((slot, reading));
            }
        }
    }

    /// Forgets fences that a stream has passed.
    pub fn passed(&mut self, stream: u32, offset: u64) {
        for fences in self.fences.values_mut() {
            fences.retain(|of, fence| *of != stream || *fence > offset);
        }
        self.fences.retain(|_, fences| !fences.is_empty());
    }

    /// A stream goes on in another history: places noted in the one before mean nothing.
    pub fn restart(&mut self, stream: u32) {
        self.readings.retain(|_, reading| reading.stream != stream);
        self.passed(stream, u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: u16 = 7;

    fn new() -> Slots {
        let mut slots = Slots::new();
        slots.assign(SLOT, 0);
        slots.assign(8, 1);
        slots
    }

    fn admits(slots: &mut Slots, stream: u32, end: u64) -> bool {
        slots.admits(stream, end, &BTreeSet::from([SLOT]))
    }

    fn reading(stream: u32, offset: u64) -> Reading {
        Reading { stream, offset, keys: Vec::new() }
    }

    #[test]
    fn a_slot_is_taken_from_its_node_until_another_one_says_something_of_it() {
        let mut slots = new();
        assert!(admits(&mut slots, 0, 10));
        assert!(!admits(&mut slots, 1, 5));
        assert!(!admits(&mut slots, 0, 20), "it is unsettled");
        slots.read(SLOT, reading(1, 30), BTreeMap::from([(0, 100)]));
        assert!(!admits(&mut slots, 1, 30), "it is in the reading");
        assert!(!admits(&mut slots, 0, 100), "it is old");
        assert!(slots.take_due(1, 29).is_none() && slots.has_due(1, 30) && !slots.has_due(0, 1_000));
        assert_eq!(slots.take_due(1, 30).map(|(slot, _)| slot), Some(SLOT));
        assert_eq!((slots.owner(SLOT), slots.unsettled().len()), (Some(1), 0));
        assert!(admits(&mut slots, 1, 31));
        assert!(!admits(&mut slots, 0, 99), "it is old still");
        assert!(admits(&mut slots, 1, 32));
        // It goes back.
        assert!(!admits(&mut slots, 0, 101) && !admits(&mut slots, 1, 33));
        assert_eq!(slots.unread().collect::<Vec<_>>(), [SLOT]);
    }

    #[test]
    fn a_reading_is_of_no_use_once_the_slot_has_moved_again_or_its_place_has_gone_by() {
        let mut slots = new();
        slots.unsettle(SLOT);
        slots.read(SLOT, reading(1, 30), BTreeMap::from([(0, 100)]));
        assert!(!admits(&mut slots, 0, 101), "newer than the reading");
        assert_eq!(slots.unread().count(), 1);
        slots.read(SLOT, reading(1, 30), BTreeMap::new());
        assert!(slots.take_due(1, 31).is_none());
        assert_eq!(slots.unread().count(), 1);
        slots.read(SLOT, reading(1, 30), BTreeMap::from([(0, 100)]));
        slots.restart(1);
        assert_eq!(slots.unread().count(), 1);
        slots.passed(0, 100);
        assert!(slots.fences.is_empty());
        // Nothing is kept of a slot that is settled.
        slots.read(9, reading(1, 30), BTreeMap::from([(0, 100)]));
        assert!(slots.readings.is_empty() && slots.fences.is_empty());
    }

    #[test]
    fn a_request_over_two_slots_is_passed_over_for_both() {
        let mut slots = new();
        assert!(!slots.admits(0, 5, &BTreeSet::from([SLOT, 8])));
        assert_eq!(slots.unsettled(), &BTreeSet::from([SLOT, 8]));
        assert!(slots.admits(0, 5, &BTreeSet::new()));
    }
}
