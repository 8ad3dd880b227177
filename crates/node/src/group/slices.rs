//! Large values of transactions come and go in steps, one in each turn, so that nobody waits for ten million elements.
//!
//! What a transaction installs is read in before it is logged by the replica that leads, so that nothing stands still
//! behind its entry. A replica that follows reads it in before it applies the entry, and so does a leader with what it
//! has taken over from another.

use keyspace::{Exporting, Imported, Importing};

use super::*;

/// Values that have been read in, with their keys.
pub(super) type Unpacked = BTreeMap<(u16, Vec<u8>), Imported>;

/// A group's values on their way.
#[derive(Default)]
pub(super) struct Slices {
    /// What has been asked to be logged.
    arriving: VecDeque<Arriving>,
    /// What the entry installs that is applied next.
    next: VecDeque<Unpacking>,
    /// That has been looked at.
    is_next_known: bool,
    /// Read in, and not yet applied.
    unpacked: BTreeMap<TransactionId, Unpacked>,
    /// On their way to gateways.
    leaving: VecDeque<Leaving>,
}

/// What a transaction installs, while it is being read in.
struct Unpacking {
    transaction: TransactionId,
    coming: Vec<((u16, Vec<u8>), Importing<Vec<u8>>)>,
    ready: Unpacked,
}

/// A request that is logged when its values have been read in.
struct Arriving {
    unpacking: Unpacking,
    participants: Vec<u32>,
    effects: Vec<Effect>,
    origin: Origin,
    floor: u64,
}

/// The answer to a lock, while its values are being written out.
struct Leaving {
    transaction: TransactionId,
    origin: Origin,
    values: Vec<Option<Exporting>>,
    /// Those before this one are done.
    at: usize,
    answers: Vec<(u64, Vec<u8>)>,
}

impl Unpacking {
    /// What of these effects takes long to read in; nothing if all is done in no time.
    fn of(transaction: TransactionId, effects: &[Effect]) -> Option<Self> {
        let large = effects.iter().filter_map(|effect| match effect {
            Effect::Key { database, key, exported: Some(exported) } if exported.len() >= limits::SLICED_BYTES_MIN => {
                let importing = Importing::new(exported.clone()).expect(EXPORTED);
                Some(((*database, key.clone()), importing))
            }
            _ => None,
        });
        let coming: Vec<_> = large.collect();
        (!coming.is_empty()).then(|| Self { transaction, coming, ready: BTreeMap::new() })
    }

    /// Reads one piece. True if that was all.
    fn step(&mut self) -> bool {
        if let Some((_, importing)) = self.coming.last_mut()
            && importing.step(limits::SLICE_BYTES).expect(EXPORTED)
        {
            let (place, importing) = self.coming.pop().expect("just seen");
            self.ready.insert(place, importing.into_imported());
        }
        self.coming.is_empty()
    }
}

impl Leaving {
    /// Writes one piece. True if that was all.
    fn step(&mut self) -> bool {
        while let Some(value) = self.values.get_mut(self.at) {
            if value.as_mut().is_some_and(|value| !value.step(limits::SLICE_BYTES)) {
                return false;
            }
            self.at += 1;
        }
        true
    }

    fn answer(self, outlet: &mut Outlet<'_>) {
        let values = self.values.into_iter().map(|value| value.map(Exporting::into_bytes)).collect();
        outlet.answer(&self.origin, put_locked(&Locked::Granted { values, answers: self.answers }));
    }
}

/// Bytes of values among these that are read in before they are logged.
pub(super) fn large_bytes(effects: &[Effect]) -> usize {
    let large = effects.iter().filter_map(|effect| match effect {
        Effect::Key { exported: Some(exported), .. } => Some(exported.len()),
        _ => None,
    });
    large.filter(|length| *length >= limits::SLICED_BYTES_MIN).sum()
}

const EXPORTED: &str = "a gateway exported it, and checksums hold";

impl Group {
    /// Goes on with what comes and goes. True if there is more of it.
    pub(super) fn turn_slices(&mut self, now: Now, outlet: &mut Outlet<'_>) -> bool {
        if let Some(leaving) = self.slices.leaving.front_mut()
            && leaving.step()
        {
            let leaving = self.slices.leaving.pop_front().expect("just seen");
            leaving.answer(outlet);
        }
        let arriving = self.slices.arriving.iter().map(|arriving| arriving.unpacking.transaction);
        for transaction in arriving.chain(self.slices.leaving.iter().map(|leaving| leaving.transaction)) {
            self.locks.renew(transaction, now.instant);
        }
        if let Some(arriving) = self.slices.arriving.front_mut()
            && arriving.unpacking.step()
        {
            let arriving = self.slices.arriving.pop_front().expect("just seen");
            let Arriving { unpacking, participants, effects, origin, floor } = arriving;
            self.slices.unpacked.insert(unpacking.transaction, unpacking.ready);
            self.prepare(unpacking.transaction, participants, effects, (origin, floor), outlet);
        }
        self.has_slices()
    }

    /// True if values are on their way.
    pub(super) fn has_slices(&self) -> bool {
        !self.slices.leaving.is_empty() || !self.slices.arriving.is_empty()
    }

    /// True if a transaction's values are being read in, to be logged then.
    pub(super) fn is_arriving(&self, transaction: TransactionId) -> bool {
        self.slices.arriving.iter().any(|arriving| arriving.unpacking.transaction == transaction)
    }

    /// Takes a request whose values have to be read in first; gives it back if there is no need to.
    pub(super) fn let_arrive(
        &mut self,
        transaction: TransactionId,
        participants: Vec<u32>,
        effects: Vec<Effect>,
        (origin, floor): (Origin, u64),
    ) -> Option<(Vec<u32>, Vec<Effect>)> {
        // Its gateway may ask again.
        if self.is_arriving(transaction) {
            return None;
        }
        if self.slices.unpacked.contains_key(&transaction) {
            return Some((participants, effects));
        }
        match Unpacking::of(transaction, &effects) {
            None => Some((participants, effects)),
            Some(unpacking) => {
                self.slices.arriving.push_back(Arriving { unpacking, participants, effects, origin, floor });
                None
            }
        }
    }

    /// Reads in what the next entry installs. True if the entry can be applied.
    pub(super) fn unpack_next(&mut self) -> bool {
        // What a leader has logged itself was read in before.
        let Some(entry) = self.committed.front().filter(|_| !self.is_serving) else { return true };
        if !self.slices.is_next_known {
            if entry.kind != EntryKind::Normal || entry.data.len() < limits::SLICED_BYTES_MIN {
                return true;
            }
            let Some((_, mut reader)) = entry::open(&entry.data) else { return true };
            let mut spans = Vec::new();
            while let Some(item) = reader.item(&mut spans) {
                if let Item::Install { transaction, effects } | Item::Prepare { transaction, effects, .. } = item {
                    self.slices.next.extend(Unpacking::of(transaction, &effects));
                }
            }
            self.slices.is_next_known = true;
        }
        if let Some(unpacking) = self.slices.next.front_mut()
            && unpacking.step()
        {
            let unpacking = self.slices.next.pop_front().expect("just seen");
            self.slices.unpacked.insert(unpacking.transaction, unpacking.ready);
        }
        self.slices.is_next_known = !self.slices.next.is_empty();
        self.slices.next.is_empty()
    }

    /// What has been read in of what a transaction installs.
    pub(super) fn take_unpacked(&mut self, transaction: TransactionId) -> Unpacked {
        self.slices.unpacked.remove(&transaction).unwrap_or_default()
    }

    /// What has been read in is not wanted any more.
    pub(super) fn bury_unpacked(&mut self, unpacked: Unpacked) {
        unpacked.into_values().for_each(|imported| self.keyspace.bury_imported(imported));
    }

    /// Answers a lock with these values, now or in some turns.
    pub(super) fn let_leave(
        &mut self,
        transaction: TransactionId,
        origin: &Origin,
        values: Vec<Option<Exporting>>,
        answers: Vec<(u64, Vec<u8>)>,
        outlet: &mut Outlet<'_>,
    ) {
        let mut leaving = Leaving { transaction, origin: *origin, values, at: 0, answers };
        if leaving.step() {
            leaving.answer(outlet);
        } else {
            self.slices.leaving.push_back(leaving);
        }
    }

    /// True if the values under a transaction's locks are on their way to its gateway.
    pub(super) fn is_leaving(&self, transaction: TransactionId) -> bool {
        self.slices.leaving.iter().any(|leaving| leaving.transaction == transaction)
    }

    /// A transaction has let go of its locks: nobody waits for its values.
    pub(super) fn stop_leaving(&mut self, transaction: TransactionId) {
        self.slices.leaving.retain(|leaving| leaving.transaction != transaction);
    }

    /// This replica does not lead any more. What has been logged may still be applied, and is read in then.
    pub(super) fn stop_slices(&mut self, outlet: &mut Outlet<'_>) {
        let Slices { arriving, leaving, unpacked, .. } = std::mem::take(&mut self.slices);
        arriving.iter().for_each(|arriving| outlet.send_back(&arriving.origin));
        leaving.iter().for_each(|leaving| outlet.send_back(&leaving.origin));
        let arrived = arriving.into_iter().map(|arriving| arriving.unpacking.ready);
        for unpacked in unpacked.into_values().chain(arrived) {
            self.bury_unpacked(unpacked);
        }
    }
}
