//! What requests that clients have given an id were answered: replicated state.
//!
//! A client that has lost its connection, or its node, sends the request again under the same id. If it has been
//! carried out, the answer is found here, and nothing happens twice. An answer lives beside the first key of its
//! request, moves with that key's slot, and is forgotten when its time is over by the log's clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use message::entry::{Answered, Reader, RequestId, put_answered};
use stdx::slot::Slot;
use stdx::{UnixMillis, leb128};

/// Answers forgotten with one entry, at most: what an entry costs has a bound.
const FORGOTTEN_PER_ENTRY_MAX: usize = 256;

/// Bytes that an answer takes beside its id, which stands in two trees but is held once, and its reply.
const OVERHEAD_BYTES: usize = 192;

/// Where an answer is found: an id is looked for in all slots of the group.
type Place = (Arc<[u8]>, Slot);

#[derive(Clone, Debug)]
struct Kept {
    digest: u64,
    until: UnixMillis,
    reply: Vec<u8>,
}

/// All answers that a group keeps.
#[derive(Clone, Debug, Default)]
pub struct RequestIds {
    kept: BTreeMap<Place, Kept>,
    /// The same by the moment at which they are forgotten.
    due: BTreeSet<(UnixMillis, Place)>,
    byte_count: usize,
}

/// What is known of a request with an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known<'a> {
    /// Nothing: it has not been carried out, or too long ago.
    Nothing,
    /// It has been, with this answer.
    Answered(&'a [u8]),
    /// Another request has been carried out under this id.
    Other,
}

impl RequestIds {
    /// Looks a request up.
    pub fn look(&self, request: &RequestId) -> Known<'_> {
        let place: Place = (request.id.as_slice().into(), request.slot);
        if let Some(kept) = self.kept.get(&place) {
            return if kept.digest == request.digest { Known::Answered(&kept.reply) } else { Known::Other };
        }
        let first: Place = (place.0.clone(), Slot(0));
        let is_elsewhere = self.kept.range(first..).next().is_some_and(|((id, _), _)| *id == place.0);
        if is_elsewhere { Known::Other } else { Known::Nothing }
    }

    /// A request has been carried out. What was answered first under an id stays.
    pub fn note(&mut self, answered: Answered, until: UnixMillis) {
        let Answered { request: RequestId { slot, id, digest }, reply, .. } = answered;
        let place: Place = (id.into(), slot);
        if self.kept.contains_key(&place) {
            return;
        }
        self.byte_count += bytes_of(&place, &reply);
        self.due.insert((until, place.clone()));
        self.kept.insert(place, Kept { digest, until, reply });
    }

    /// Forgets answers that have expired: those that were due first, and not too many at once.
    pub fn forget(&mut self, now: UnixMillis) {
        for _ in 0..FORGOTTEN_PER_ENTRY_MAX {
            match self.due.first() {
                Some((until, place)) if *until <= now => {
                    let place = place.clone();
                    self.remove(&place);
                }
                _ => break,
            }
        }
    }

    fn remove(&mut self, place: &Place) {
        if let Some(kept) = self.kept.remove(place) {
            self.byte_count -= bytes_of(place, &kept.reply);
            self.due.remove(&(kept.until, place.clone()));
        }
    }

    /// When the next answer is forgotten.
    pub fn next_due(&self) -> Option<UnixMillis> {
        self.due.first().map(|(until, _)| *until)
    }

    /// Answers kept.
    pub fn count(&self) -> usize {
        self.kept.len()
    }

    /// Bytes that they take.
    pub fn byte_count(&self) -> usize {
        self.byte_count
    }

    /// The answers of a slot, for the group that will hold it.
    pub fn export_slot(&self, slot: Slot) -> Vec<u8> {
        let mut out = Vec::new();
        for (place, kept) in self.kept.iter().filter(|(place, _)| place.1 == slot) {
            put(&mut out, place, kept);
        }
        out
    }

    /// Takes them over.
    pub fn import_slot(&mut self, exported: &[u8]) {
        let mut reader = Reader::new(exported);
        while !reader.is_done() {
            self.take(&mut reader);
        }
    }

    /// Another group keeps the answers of this slot.
    pub fn drop_slot(&mut self, slot: Slot) {
        let gone: Vec<Place> = self.kept.keys().filter(|place| place.1 == slot).cloned().collect();
        gone.iter().for_each(|place| self.remove(place));
    }

    /// Hands the answers of these slots over.
    #[must_use]
    pub fn split_off(&mut self, slots: &BTreeSet<Slot>) -> Self {
        let mut other = Self::default();
        let gone: Vec<Place> = self.kept.keys().filter(|place| slots.contains(&place.1)).cloned().collect();
        for place in gone {
            let kept = self.kept.get(&place).expect("just found").clone();
            self.remove(&place);
            other.byte_count += bytes_of(&place, &kept.reply);
            other.due.insert((kept.until, place.clone()));
            other.kept.insert(place, kept);
        }
        other
    }

    fn take(&mut self, reader: &mut Reader<'_>) {
        let answered = reader.answered();
        let until = UnixMillis(answered.ms.cast_signed());
        self.note(answered, until);
    }

    /// Appends it to a checkpoint.
    pub fn put(&self, out: &mut Vec<u8>) {
        leb128::put(out, self.kept.len() as u64);
        self.kept.iter().for_each(|(place, kept)| put(out, place, kept));
    }

    /// Reads it back.
    pub fn read(reader: &mut Reader<'_>) -> Self {
        let mut this = Self::default();
        for _ in 0..reader.number() {
            this.take(reader);
        }
        this
    }
}

fn bytes_of((id, _): &Place, reply: &[u8]) -> usize {
    OVERHEAD_BYTES + id.len() + reply.len()
}

fn put(out: &mut Vec<u8>, (id, slot): &Place, kept: &Kept) {
    let request = RequestId { slot: *slot, id: id.to_vec(), digest: kept.digest };
    let ms = kept.until.0.cast_unsigned();
    put_answered(out, &Answered { request, ms, reply: kept.reply.clone() });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(id: &str, slot: u16, digest: u64, reply: &str) -> Answered {
        let request = RequestId { slot: Slot(slot), id: id.into(), digest };
        Answered { request, ms: 0, reply: reply.into() }
    }

    fn noted(ids: &mut RequestIds, answer: &Answered, until: i64) {
        ids.note(answer.clone(), UnixMillis(until));
    }

    #[test]
    fn a_request_is_known_until_its_time_is_over_and_another_one_under_its_id_is_not_taken_for_it() {
        let mut ids = RequestIds::default();
        let first = answered("a", 5, 1, ":1");
        assert_eq!(ids.look(&first.request), Known::Nothing);
        noted(&mut ids, &first, 100);
        noted(&mut ids, &answered("a", 5, 1, ":2"), 200);
        assert_eq!(ids.look(&first.request), Known::Answered(b":1"), "what was answered first stays");
        assert_eq!(ids.look(&answered("a", 5, 2, "").request), Known::Other);
        assert_eq!(ids.look(&answered("a", 4, 1, "").request), Known::Other, "the id belongs to another key's slot");
        assert_eq!(ids.look(&answered("a", 6, 1, "").request), Known::Other);
        assert_eq!(ids.look(&answered("ab", 5, 1, "").request), Known::Nothing);
        ids.forget(UnixMillis(99));
        assert_eq!((ids.count(), ids.next_due()), (1, Some(UnixMillis(100))));
        ids.forget(UnixMillis(100));
        assert_eq!(ids.look(&first.request), Known::Nothing);
        assert_eq!((ids.count(), ids.byte_count(), ids.next_due()), (0, 0, None));
    }

    #[test]
    fn answers_go_with_their_slot_and_come_back_from_a_checkpoint() {
        let mut giver = RequestIds::default();
        noted(&mut giver, &answered("a", 5, 1, ":1"), 100);
        noted(&mut giver, &answered("b", 6, 2, ":2"), 300);
        noted(&mut giver, &answered("c", 5, 3, ":3"), 200);
        let exported = giver.export_slot(Slot(5));
        giver.drop_slot(Slot(5));
        assert_eq!((giver.count(), giver.next_due()), (1, Some(UnixMillis(300))));
        let mut taker = RequestIds::default();
        taker.import_slot(&exported);
        let mut saved = Vec::new();
        taker.put(&mut saved);
        let mut restored = RequestIds::read(&mut Reader::new(&saved));
        assert_eq!(restored.byte_count(), taker.byte_count());
        assert_eq!(restored.look(&answered("c", 5, 3, "").request), Known::Answered(b":3"));
        restored.forget(UnixMillis(150));
        assert_eq!(restored.look(&answered("a", 5, 1, "").request), Known::Nothing);
        assert_eq!(restored.look(&answered("c", 5, 3, "").request), Known::Answered(b":3"));
    }

    #[test]
    fn what_one_entry_forgets_has_a_bound() {
        let mut ids = RequestIds::default();
        for number in 0..=FORGOTTEN_PER_ENTRY_MAX {
            noted(&mut ids, &answered(&number.to_string(), 0, 0, ""), 1);
        }
        ids.forget(UnixMillis(1));
        assert_eq!(ids.count(), 1);
        ids.forget(UnixMillis(1));
        assert_eq!(ids.count(), 0);
    }
}
