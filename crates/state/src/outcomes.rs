//! How transactions over several groups ended that others may still ask about: replicated state.
//!
//! A group that finds a transaction prepared without a gateway asks the other participants. One that has forgotten that
//! it was committed would promise never to prepare it, and the asker would abort. So a *commit* is kept until its
//! gateway says that all groups have ended it, or, if the gateway is gone, until the leader has heard so from each of
//! them and logs that it can be forgotten. A *refusal* is kept for those that come late and want to prepare.

use std::collections::BTreeMap;
use std::ops::Bound;

use message::entry::Reader;
use message::{GatewayId, TransactionId};
use stdx::leb128;

use crate::part::Part;

/// Something about transactions, by gateway and number.
type ByGateway<T> = BTreeMap<GatewayId, BTreeMap<u64, T>>;

/// What is known of transactions that have ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcomes {
    /// Whether they were committed.
    pub(crate) known: Known,
    /// Which groups took part in those that were committed since the group has been at level 2.
    pub(crate) participants: Participants,
}

/// Whether transactions were committed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known(ByGateway<bool>);

/// Which groups took part.
#[derive(Clone, Debug, Default)]
pub(crate) struct Participants(ByGateway<Vec<u32>>);

impl Outcomes {
    /// Whether a transaction was committed.
    pub(crate) fn look(&self, transaction: TransactionId) -> Option<bool> {
        self.known.0.get(&transaction.gateway)?.get(&transaction.number).copied()
    }

    /// A transaction has ended. Of one that was committed the participants are kept, if they are told.
    pub(crate) fn note(&mut self, transaction: TransactionId, is_committed: bool, participants: Option<Vec<u32>>) {
        let TransactionId { gateway, number } = transaction;
        self.known.0.entry(gateway).or_default().insert(number, is_committed);
        if let Some(participants) = participants.filter(|_| is_committed) {
            self.participants.0.entry(gateway).or_default().insert(number, participants);
        }
    }

    /// All groups have ended what this gateway has numbered below `low_water`.
    pub(crate) fn settle(&mut self, gateway: GatewayId, low_water: u64) {
        forget_below(&mut self.known.0, gateway, low_water);
        forget_below(&mut self.participants.0, gateway, low_water);
    }

    /// Nobody will ask about this transaction any more.
    pub(crate) fn forget(&mut self, transaction: TransactionId) {
        remove(&mut self.known.0, transaction);
        remove(&mut self.participants.0, transaction);
    }

    /// The transactions behind this one, or all, with whether they were committed and the groups that took part, none
    /// if that is not known.
    pub(crate) fn behind(&self, last: Option<TransactionId>) -> impl Iterator<Item = (TransactionId, bool, &[u32])> {
        let first = last.map_or(Bound::Unbounded, |last| Bound::Included(last.gateway));
        self.known.0.range((first, Bound::Unbounded)).flat_map(move |(gateway, known)| {
            let participants = self.participants.0.get(gateway);
            let last = last.filter(|last| last.gateway == *gateway);
            let first = last.map_or(Bound::Unbounded, |last| Bound::Excluded(last.number));
            known.range((first, Bound::Unbounded)).map(move |(number, is_committed)| {
                let participants = participants.and_then(|participants| participants.get(number));
                let transaction = TransactionId { gateway: *gateway, number: *number };
                (transaction, *is_committed, participants.map_or(&[][..], Vec::as_slice))
            })
        })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.known.0.values().map(BTreeMap::len).sum()
    }
}

fn forget_below<T>(map: &mut ByGateway<T>, gateway: GatewayId, low_water: u64) {
    let Some(known) = map.get_mut(&gateway) else { return };
    if known.first_key_value().is_some_and(|(number, _)| *number < low_water) {
        *known = known.split_off(&low_water);
    }
    if known.is_empty() {
        map.remove(&gateway);
    }
}

fn remove<T>(map: &mut ByGateway<T>, transaction: TransactionId) {
    let Some(known) = map.get_mut(&transaction.gateway) else { return };
    known.remove(&transaction.number);
    if known.is_empty() {
        map.remove(&transaction.gateway);
    }
}

/// Appends each transaction and what there is to it, behind their count.
fn put<T>(map: &ByGateway<T>, out: &mut Vec<u8>, put_one: impl Fn(&T, &mut Vec<u8>)) {
    leb128::put(out, map.values().map(|known| known.len() as u64).sum());
    for (gateway, known) in map {
        for (number, what) in known {
            TransactionId { gateway: *gateway, number: *number }.put(out);
            put_one(what, out);
        }
    }
}

/// Reads it back.
fn read<T>(map: &mut ByGateway<T>, reader: &mut Reader<'_>, read_one: impl Fn(&mut Reader<'_>) -> T) {
    for _ in 0..reader.number() {
        let TransactionId { gateway, number } = TransactionId::read(reader);
        let what = read_one(reader);
        map.entry(gateway).or_default().insert(number, what);
    }
}

impl Part for Known {
    fn save(&self, out: &mut Vec<u8>) {
        put(&self.0, out, |is_committed, out| out.push(u8::from(*is_committed)));
    }

    fn load(&mut self, reader: &mut Reader<'_>) {
        read(&mut self.0, reader, |reader| reader.byte() == 1);
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

impl Part for Participants {
    fn save(&self, out: &mut Vec<u8>) {
        put(&self.0, out, |participants, out| {
            leb128::put(out, participants.len() as u64);
            participants.iter().for_each(|group| leb128::put(out, u64::from(*group)));
        });
    }

    fn load(&mut self, reader: &mut Reader<'_>) {
        read(&mut self.0, reader, |reader| (0..reader.number()).map(|_| reader.number() as u32).collect());
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}
