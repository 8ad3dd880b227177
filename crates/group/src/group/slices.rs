//! Large values of transactions come and go in steps, one in each turn, so that nobody waits for ten million elements.
//!
//! What a transaction installs is read in before it is logged by the replica that leads, so that nothing stands still
//! behind its entry. A replica that follows reads it in before it applies the entry, and so does a leader with what it
//! has taken over from another.

use keyspace::{Corrupt, Exporting, Imported, Importing};
use state::Imports;

use super::*;
use crate::limits::Slicing;

/// A group's values on their way.
#[derive(Default)]
pub(super) struct Slices {
    slicing: Slicing,
    /// What has been asked to be logged.
    arriving: VecDeque<Arriving>,
    /// What the entry installs that is applied next.
    next: VecDeque<Unpacking>,
    /// That has been looked at.
    is_next_known: bool,
    /// Read in, and not yet applied.
    pub(super) unpacked: BTreeMap<TransactionId, Imports>,
    /// On their way to gateways.
    leaving: VecDeque<Leaving>,
}

/// What a transaction installs, while it is being read in.
struct Unpacking {
    transaction: TransactionId,
    effects: Vec<Effect>,
    /// Those that are not yet read in, by their places among the effects.
    coming: Vec<(usize, Importing)>,
    ready: Imports,
}

/// A request that is logged when its values have been read in.
struct Arriving {
    unpacking: Unpacking,
    token: FencingToken,
    participants: Vec<u32>,
    origin: Origin,
    floor: u64,
}

/// The answer to a lock, while its values are being written out.
struct Leaving {
    transaction: TransactionId,
    token: FencingToken,
    origin: Origin,
    values: Vec<Option<Exporting>>,
    /// Those before this one are done.
    at: usize,
    answers: Vec<(u64, Vec<u8>)>,
}

impl Unpacking {
    /// Begins to read in what is large of these effects; gives them back if nothing is.
    fn begin(
        transaction: TransactionId,
        effects: Vec<Effect>,
        bytes_min: usize,
    ) -> Result<Result<Self, Vec<Effect>>, Corrupt> {
        let large = effects.iter().enumerate().filter_map(|(place, effect)| {
            let bytes = effect.exported().filter(|bytes| bytes.len() >= bytes_min)?;
            Some(Importing::new(bytes).map(|importing| (place, importing)))
        });
        let coming: Vec<_> = large.collect::<Result<_, Corrupt>>()?;
        if coming.is_empty() {
            return Ok(Err(effects));
        }
        Ok(Ok(Self { transaction, effects, coming, ready: BTreeMap::new() }))
    }

    /// Reads one piece. True if that was all.
    fn step(&mut self, budget_bytes: usize) -> Result<bool, Corrupt> {
        if let Some((place, importing)) = self.coming.last_mut() {
            let Effect::Key { database, key, exported: Some(bytes) } = &self.effects[*place] else {
                unreachable!("only keys with values are read in")
            };
            if importing.step(bytes, budget_bytes)? {
                let (_, importing) = self.coming.pop().expect("just seen");
                self.ready.insert((*database, key.clone()), importing.into_imported());
            }
        }
        Ok(self.coming.is_empty())
    }

    /// All that has been read in, the whole of it or not.
    fn into_imported(self) -> impl Iterator<Item = Imported> {
        let coming = self.coming.into_iter().map(|(_, importing)| importing.into_imported());
        self.ready.into_values().chain(coming)
    }
}

impl Leaving {
    /// Writes one piece. True if that was all.
    fn step(&mut self, budget_bytes: usize) -> bool {
        let mut rest = budget_bytes;
        while let Some(value) = self.values.get_mut(self.at) {
            if rest == 0 {
                return false;
            }
            if let Some(value) = value {
                let before = value.byte_count();
                if !value.step(rest) {
                    return false;
                }
                rest = rest.saturating_sub((value.byte_count() - before).max(1));
            }
            self.at += 1;
        }
        true
    }

    fn answer(self, output: &mut impl Output) {
        let values = self.values.into_iter().map(|value| value.map(Exporting::into_bytes)).collect();
        let granted = Locked::Granted { token: self.token, values, answers: self.answers };
        output.answer(&self.origin, Observed::of_state(), put_locked(&granted));
    }
}

const EXPORTED: &str = "a leader has read it in, and checksums hold";

/// Participants of a transaction, and what it changes in one of them.
type Arrived = (Vec<u32>, Vec<Effect>);

impl Group {
    /// Has values come and go in smaller steps. Only the simulator has a use for it.
    pub fn narrow_slices(&mut self, slicing: Slicing) {
        self.slices.slicing = slicing;
    }

    /// Goes on with what comes and goes, one of each a turn and all in turn. True if there is more of it.
    pub(super) fn turn_slices(&mut self, now: Now, output: &mut impl Output) -> bool {
        let step_bytes = self.slices.slicing.step_bytes;
        if let Some(mut leaving) = self.slices.leaving.pop_front() {
            if leaving.step(step_bytes) {
                leaving.answer(output);
            } else {
                self.slices.leaving.push_back(leaving);
            }
        }
        if let Some(mut arriving) = self.slices.arriving.pop_front() {
            match arriving.unpacking.step(step_bytes) {
                Err(_) => output.answer(&arriving.origin, Proof::Refused, PrepareAnswer::Refused.put()),
                Ok(false) => self.slices.arriving.push_back(arriving),
                Ok(true) => {
                    let Arriving { unpacking, token, participants, origin, floor } = arriving;
                    let Unpacking { transaction, effects, ready, .. } = unpacking;
                    self.keep_unpacked(transaction, ready);
                    if self.may_prepare((transaction, token), &effects, &origin, output) {
                        self.log_prepared(transaction, &participants, &effects, (origin, floor));
                    }
                }
            }
        }
        let arriving = self.slices.arriving.iter().map(|arriving| arriving.unpacking.transaction);
        for transaction in arriving.chain(self.slices.leaving.iter().map(|leaving| leaving.transaction)) {
            self.leader.locks.renew(transaction, now.instant);
        }
        self.has_slices()
    }

    /// True if values are on their way.
    pub fn has_slices(&self) -> bool {
        !self.slices.leaving.is_empty() || !self.slices.arriving.is_empty()
    }

    /// True if a transaction's values are being read in, to be logged then.
    pub(super) fn is_arriving(&self, transaction: TransactionId) -> bool {
        self.slices.arriving.iter().any(|arriving| arriving.unpacking.transaction == transaction)
    }

    /// Takes a request with values that have to be read in first; gives it back if there is no need to. A request with
    /// invalid values is refused: once it was logged, no replica could go on.
    pub(super) fn let_arrive(
        &mut self,
        (transaction, token): (TransactionId, FencingToken),
        participants: Vec<u32>,
        effects: Vec<Effect>,
        (origin, floor): (Origin, u64),
    ) -> Result<Option<Arrived>, Corrupt> {
        // Its gateway may ask again. What has been read in is not applied yet; other values must not take its place.
        if self.is_arriving(transaction) || self.slices.unpacked.contains_key(&transaction) {
            return Ok(None);
        }
        Ok(match Unpacking::begin(transaction, effects, self.slices.slicing.bytes_min)? {
            Err(effects) => Some((participants, effects)),
            Ok(unpacking) => {
                self.slices.arriving.push_back(Arriving { unpacking, token, participants, origin, floor });
                None
            }
        })
    }

    /// Bytes of values among these that are read in before they are logged.
    pub(super) fn large_bytes(&self, effects: &[Effect]) -> usize {
        let lengths = effects.iter().filter_map(Effect::exported).map(<[u8]>::len);
        lengths.filter(|length| *length >= self.slices.slicing.bytes_min).sum()
    }

    /// True while large values of the next entry are being read in.
    pub(super) fn is_unpacking(&self) -> bool {
        self.slices.is_next_known
    }

    /// Reads in what the next entry installs. True if the entry can be applied.
    pub(super) fn unpack_next(&mut self) -> bool {
        let Some(entry) = self.window.committed.front() else { return true };
        let Slicing { bytes_min, step_bytes } = self.slices.slicing;
        if !self.slices.is_next_known {
            if entry.kind != EntryKind::Normal || entry.data.len() < bytes_min {
                return true;
            }
            let Some((_, mut reader)) = entry::open(&entry.data) else { return true };
            let mut spans = Vec::new();
            while let Some(item) = reader.item(&mut spans) {
                if let Item::Install { transaction, effects } | Item::Prepare { transaction, effects, .. } = item {
                    self.slices.next.extend(Unpacking::begin(transaction, effects, bytes_min).expect(EXPORTED));
                }
            }
            self.slices.is_next_known = true;
        }
        if let Some(unpacking) = self.slices.next.front_mut()
            && unpacking.step(step_bytes).expect(EXPORTED)
        {
            let Unpacking { transaction, ready, .. } = self.slices.next.pop_front().expect("just seen");
            self.keep_unpacked(transaction, ready);
        }
        self.slices.is_next_known = !self.slices.next.is_empty();
        self.slices.next.is_empty()
    }

    fn keep_unpacked(&mut self, transaction: TransactionId, unpacked: Imports) {
        if let Some(before) = self.slices.unpacked.insert(transaction, unpacked) {
            self.bury_unpacked(before);
        }
    }

    /// What has been read in is not wanted any more.
    pub(super) fn bury_unpacked(&mut self, unpacked: Imports) {
        unpacked.into_values().for_each(|imported| self.state.upkeep().free_imported_later(imported));
    }

    /// Answers a lock with these values, now or in some turns.
    pub(super) fn let_leave(
        &mut self,
        (transaction, token): (TransactionId, FencingToken),
        origin: &Origin,
        values: Vec<Option<Exporting>>,
        answers: Vec<(u64, Vec<u8>)>,
        output: &mut impl Output,
    ) {
        let mut leaving = Leaving { transaction, token, origin: *origin, values, at: 0, answers };
        if leaving.step(self.slices.slicing.step_bytes) {
            leaving.answer(output);
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

    /// Nor does this group vouch for them any more: the gateway has to ask again.
    pub(super) fn send_back_leaving(&mut self, transaction: TransactionId, output: &mut impl Output) {
        for leaving in self.slices.leaving.iter().filter(|leaving| leaving.transaction == transaction) {
            output.send_back(&leaving.origin);
        }
    }

    /// This replica does not lead any more. What has been logged may still be applied, and is read in then.
    pub(super) fn stop_slices(&mut self, output: &mut impl Output) {
        for Leaving { origin, .. } in std::mem::take(&mut self.slices.leaving) {
            output.send_back(&origin);
        }
        for Arriving { unpacking, origin, .. } in std::mem::take(&mut self.slices.arriving) {
            output.send_back(&origin);
            unpacking.into_imported().for_each(|imported| self.state.upkeep().free_imported_later(imported));
        }
        for unpacked in std::mem::take(&mut self.slices.unpacked).into_values() {
            self.bury_unpacked(unpacked);
        }
    }

    /// What is committed and not applied has come in another way.
    pub(super) fn forget_committed(&mut self) {
        self.window.committed.clear();
        self.window.committed_bytes = 0;
        self.slices.is_next_known = false;
        for unpacked in std::mem::take(&mut self.slices.unpacked).into_values() {
            self.bury_unpacked(unpacked);
        }
        for unpacking in std::mem::take(&mut self.slices.next) {
            unpacking.into_imported().for_each(|imported| self.state.upkeep().free_imported_later(imported));
        }
    }
}

#[cfg(test)]
mod tests {
    use message::GatewayId;

    use super::*;

    #[test]
    fn a_large_value_that_is_none_is_told_before_it_is_logged() {
        let gateway = GatewayId { node: 2, boot: 1, core: CoreId(0) };
        let effect = Effect::Key { database: 0, key: b"k".to_vec(), exported: Some(vec![0xFF; 20]) };
        let begun = Unpacking::begin(TransactionId { gateway, number: 1 }, vec![effect], 10);
        assert!(begun.is_err(), "it would stop every replica");
    }
}
