//! The keys of a slot on their way from one group to another.
//!
//! They travel as records of a checkpoint, each with its version, so that a watch which was taken in one group is
//! compared in the other with what it has seen. The sequence of the group that takes them goes on behind that of the
//! one that gives them: a later change has a later version than any that was ever seen.

use stdx::slot::{Slot, slot_of};

use super::*;
use crate::segment::Segment;

fn records_in(table: &Table, slot: Slot) -> impl Iterator<Item = &Record> {
    table.slot(usize::from(slot.0)).into_iter().flat_map(|slot| slot.segments()).flat_map(Segment::iter)
}

impl Keyspace {
    /// Bytes that the keys of a slot take. No key is looked at.
    pub fn slot_bytes(&self, slot: Slot) -> usize {
        let slots = self.databases.iter().filter_map(|table| table.slot(usize::from(slot.0)));
        slots.flat_map(crate::segment::Slot::segments).map(Segment::bytes).sum()
    }

    /// Number of keys of a slot in a database, among them those that have expired and not been swept away.
    pub fn slot_key_count(&self, database: u16, slot: Slot) -> usize {
        self.records_of(database, slot).count()
    }

    fn records_of(&self, database: u16, slot: Slot) -> impl Iterator<Item = &Record> {
        records_in(&self.databases[usize::from(database)], slot)
    }

    /// The latest version of a key that may have gone from a slot: what a watch of an absent key has to be later than.
    pub fn gone_from(&self, slot: Slot) -> u64 {
        let expired = (0..self.database_count()).flat_map(|database| self.records_of(database, slot));
        let expired = expired.filter(|record| !record.is_alive(self.expired_until(self.latest)));
        let flushed = self.graveyard.iter().flat_map(|table| records_in(table, slot));
        expired.chain(flushed).map(Record::version).fold(self.lazy_free.tombstones.gone_from(slot), u64::max)
    }

    /// The latest version of a key of a slot; 0 if there is none.
    pub fn slot_version(&self, slot: Slot) -> u64 {
        let records = (0..self.database_count()).flat_map(|database| self.records_of(database, slot));
        records.map(Record::version).max().unwrap_or_default()
    }

    /// The keys of a slot that exist at the moment of the latest change, as records of a checkpoint.
    pub fn export_slot(&self, slot: Slot) -> Vec<u8> {
        let mut out = Vec::new();
        let expired_until = self.expired_until(self.latest);
        for database in 0..self.database_count() {
            for record in self.records_of(database, slot).filter(|record| record.is_alive(expired_until)) {
                let Some(LargeImage { head, value }) = LargeImage::of(database.into(), record) else {
                    write_small(&mut out, database.into(), record);
                    continue;
                };
                out.extend_from_slice(&head);
                let mut from = Some(0);
                while let Some(start) = from {
                    from = value.write_part(start, &mut out);
                }
            }
        }
        out
    }

    /// Takes in what [`Keyspace::export_slot`] of another keyspace gave when its [sequence](Keyspace::sequence) was
    /// this, and the latest version of keys that had gone [that](Keyspace::gone_from). Whatever the slot held here
    /// goes.
    ///
    /// # Errors
    /// [`Corrupt`] at the first byte of a record that is none.
    pub fn import_slot(&mut self, slot: Slot, sequence: u64, gone: u64, records: &[u8]) -> Result<(), Corrupt> {
        self.drop_slot(slot);
        self.sequence = self.sequence.max(sequence);
        if let Some(walk) = &mut self.lazy_free.walk {
            walk.arrived.insert(slot.0);
        }
        self.lazy_free.tombstones.arrive(slot, self.sequence, gone);
        self.restore(records)?;
        let awaited: Vec<_> = self.notices.awaited.iter().filter(|(_, key)| slot_of(key) == slot).cloned().collect();
        awaited.iter().for_each(|(database, key)| self.notices.touch(*database, key));
        Ok(())
    }

    /// Hands the keys of these slots to a keyspace of their own, which goes on with the same sequence: their tables
    /// change hands, and no key is looked at unless hashes have fields with deadlines. A checkpoint that is under way
    /// is given up.
    #[must_use]
    pub fn split_off(&mut self, slots: &BTreeSet<Slot>) -> Self {
        self.cancel_checkpoint();
        let mut other = self.new_like();
        for (from, to) in self.databases.iter_mut().zip(&mut other.databases) {
            *to = from.split_off(slots.iter().map(|slot| usize::from(slot.0)));
        }
        (other.sequence, other.latest) = (self.sequence, self.latest);
        other.notices.awaited.clear();
        other.set_lookups(crate::Lookups::default());
        // What has gone from a slot is known where the slot is. What was flushed has gone, and is noted later.
        other.lazy_free.tombstones = self.lazy_free.tombstones.clone();
        for table in &self.graveyard {
            for slot in slots {
                for record in records_in(table, *slot) {
                    let place = self.place(record.key());
                    other.lazy_free.tombstones.note(place, record.version());
                }
            }
        }
        other
    }

    /// Removes the keys of a slot without a word: for clients they are where they were, in another group.
    pub fn drop_slot(&mut self, slot: Slot) {
        for database in 0..self.database_count() {
            let keys: Vec<_> = self.records_of(database, slot).map(|record| record.key().to_vec()).collect();
            for key in keys {
                let place = self.place(&key);
                let Self { databases, lazy_free, hasher, .. } = self;
                if let Some(record) = databases[usize::from(database)].remove(place, &key, hasher, lazy_free) {
                    lazy_free.free_later(record);
                }
            }
        }
    }
}
