//! Which entries producers have added under an id of their own, so that what is sent twice is added once.
//!
//! An id is remembered for as long as the stream says, counted from the moment at which the entry was added, and no
//! longer than the producer has added so many others. What has expired is passed over from then on, and goes in
//! small steps when entries are added.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::group::{Named, name_bytes, prefix, rank_of};
use super::id::Id;
use crate::tree::{self, Element, Tree};

/// For how many seconds an id is remembered, unless XCFGSET says otherwise.
pub(crate) const DURATION_S: u64 = 100;

/// How many ids of a producer are remembered, unless XCFGSET says otherwise.
pub(crate) const IDS_MAX: u64 = 100;

/// The numbers of seconds that may be said.
pub(crate) const DURATIONS_S: RangeInclusive<u64> = 1..=86_400;

/// How many ids of a producer may be said to be remembered.
pub(crate) const IDS_MAX_RANGE: RangeInclusive<u64> = 1..=10_000;

/// At most so many expired ids of a producer go at a time.
const SWEEP_IDS_MAX: usize = 16;

/// So many other producers are looked at whenever an entry is added: more than that can come, so that what has expired
/// never outweighs what is remembered.
const SWEEP_PRODUCERS: u64 = 2;

/// Makes numbers that follow each other lie far apart: 2⁶⁴ divided by the golden ratio.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// What a stream remembers of producers.
#[derive(Clone)]
pub(crate) struct Idempotence {
    /// For how many seconds an id is remembered.
    pub(crate) duration_s: u64,
    /// How many ids of a producer are.
    pub(crate) ids_max: u64,
    /// How many entries were ever added under an id.
    pub(crate) added: u64,
    /// How often an entry was not added, as it was there already.
    pub(crate) duplicates: u64,
    /// By name.
    producers: Tree<Producer>,
    /// Number of ids of all producers.
    id_count: usize,
    /// The last entry that came under an id was there already. Of use until the next one comes, and not saved.
    is_repeat: bool,
    /// Where the last walk through its parts was.
    mark: Mark,
}

/// A producer, and which part it is when all is written part by part, so that a walk that is made in many steps need
/// not start over each time. Nothing but time depends on it.
#[derive(Default)]
struct Mark(AtomicU64);

impl Mark {
    /// Bits of the part; the place of the producer is in those above.
    const PART_BITS: u32 = 38;

    fn get(&self) -> (usize, usize) {
        let both = self.0.load(Ordering::Relaxed);
        let (place, part) = (both >> Self::PART_BITS, both & ((1 << Self::PART_BITS) - 1));
        // The part before the first producer is the head.
        (place as usize, (part as usize).max(1))
    }

    fn set(&self, place: usize, part: usize) {
        let (place, part) = (place as u64, part as u64);
        if place < 1 << (64 - Self::PART_BITS) && part < 1 << Self::PART_BITS {
            self.0.store(place << Self::PART_BITS | part, Ordering::Relaxed);
        }
    }

    fn clear(&mut self) {
        *self.0.get_mut() = 0;
    }
}

impl Clone for Mark {
    fn clone(&self) -> Self {
        Self(AtomicU64::new(self.0.load(Ordering::Relaxed)))
    }
}

/// Who adds entries.
#[derive(Clone)]
struct Producer {
    name: Arc<[u8]>,
    /// By the producer's id.
    known: Tree<Known>,
    /// In the order in which they were added.
    order: Tree<Turn>,
}

/// An id of a producer, and where in the order it stands.
#[derive(Clone)]
struct Known {
    own: Arc<[u8]>,
    number: u64,
}

/// An id of a producer, and the entry that it stands for.
#[derive(Clone)]
struct Turn {
    number: u64,
    own: Arc<[u8]>,
    id: Id,
}

impl Element for Producer {
    type Key = u64;

    fn key(&self) -> u64 {
        prefix(&self.name)
    }

    fn heap_bytes(&self) -> usize {
        name_bytes(&self.name) + self.known.bytes() + self.order.bytes()
    }
}

impl Element for Known {
    type Key = u64;

    fn key(&self) -> u64 {
        prefix(&self.own)
    }

    fn heap_bytes(&self) -> usize {
        name_bytes(&self.own)
    }
}

impl Element for Turn {
    type Key = u64;

    fn key(&self) -> u64 {
        self.number
    }

    // The id is that of `Known`.
    fn heap_bytes(&self) -> usize {
        0
    }
}

impl Named for Producer {
    fn name(&self) -> &[u8] {
        &self.name
    }
}

impl Named for Known {
    fn name(&self) -> &[u8] {
        &self.own
    }
}

impl Producer {
    fn new(name: &[u8]) -> Self {
        Self { name: name.into(), known: Tree::new(), order: Tree::new() }
    }

    fn find(&self, own: &[u8]) -> Option<Id> {
        let known = rank_of(&self.known, own).ok().and_then(|rank| self.known.get(rank))?;
        self.order.get(self.place_of(known.number)?).map(|turn| turn.id)
    }

    fn place_of(&self, number: u64) -> Option<usize> {
        self.order.search(|key| key.cmp(&number), |turn| turn.number.cmp(&number)).ok().map(|(rank, _)| rank)
    }

    /// Puts an id behind all others. False if there is one of this name.
    fn push(&mut self, own: &[u8], id: Id) -> bool {
        let Err(rank) = rank_of(&self.known, own) else { return false };
        let last = self.order.len().checked_sub(1).and_then(|rank| self.order.get(rank));
        let number = last.map_or(1, |last| last.number + 1);
        let own: Arc<[u8]> = own.into();
        self.known.insert(rank, Known { own: Arc::clone(&own), number });
        self.order.push(Turn { number, own, id });
        true
    }

    /// Takes the id at a place of the order out.
    fn remove(&mut self, place: usize) {
        let turn = self.order.remove(place);
        let rank = rank_of(&self.known, &turn.own).expect("what has a turn is known");
        self.known.remove(rank);
    }

    /// Takes out the first ids, as long as they have expired: how many.
    fn sweep(&mut self, expired_ms: u64, count_max: usize) -> usize {
        let is_expired = |turn: &Turn| turn.id.ms <= expired_ms;
        let count = self.order.iter().take(count_max).take_while(|turn| is_expired(turn)).count();
        (0..count).for_each(|_| self.remove(0));
        count
    }
}

impl Idempotence {
    /// What a stream remembers that has been told nothing.
    pub(crate) fn new() -> Self {
        Self {
            duration_s: DURATION_S,
            ids_max: IDS_MAX,
            added: 0,
            duplicates: 0,
            producers: Tree::new(),
            id_count: 0,
            is_repeat: false,
            mark: Mark::default(),
        }
    }

    /// Entries that were added up to this millisecond are remembered no longer, if there can be any.
    fn expired_ms(&self, now_ms: u64) -> Option<u64> {
        now_ms.checked_sub(self.duration_s.saturating_mul(1000))
    }

    fn producer(&self, name: &[u8]) -> Option<&Producer> {
        rank_of(&self.producers, name).ok().and_then(|rank| self.producers.get(rank))
    }

    /// The entry that a producer has added under this id, if that is remembered.
    pub(crate) fn find(&self, producer: &[u8], own: &[u8], now_ms: u64) -> Option<Id> {
        let expired_ms = self.expired_ms(now_ms);
        self.producer(producer)?.find(own).filter(|id| expired_ms.is_none_or(|expired_ms| id.ms > expired_ms))
    }

    /// Counts an entry that was there already.
    pub(crate) fn count_duplicate(&mut self) {
        self.duplicates = self.duplicates.saturating_add(1);
        self.is_repeat = true;
    }

    /// True if the last entry that came under an id was there already.
    pub(crate) fn is_repeat(&self) -> bool {
        self.is_repeat
    }

    /// Remembers that a producer has added an entry under an id that is not remembered yet, and forgets the oldest of
    /// its ids if they are too many.
    pub(crate) fn record(&mut self, producer: &[u8], own: &[u8], id: Id, now_ms: u64) {
        self.mark.clear();
        let (expired_ms, ids_max) = (self.expired_ms(now_ms), self.ids_max);
        let rank = rank_of(&self.producers, producer).unwrap_or_else(|rank| {
            self.producers.insert(rank, Producer::new(producer));
            rank
        });
        let (before, after) = self.producers.update(rank, |producer| {
            let before = producer.order.len();
            if let Ok(rank) = rank_of(&producer.known, own) {
                // It has expired.
                let number = producer.known.get(rank).map_or(0, |known| known.number);
                let place = producer.place_of(number).expect("what is known has a turn");
                producer.remove(place);
            }
            if let Some(expired_ms) = expired_ms {
                producer.sweep(expired_ms, SWEEP_IDS_MAX);
            }
            producer.push(own, id);
            while producer.order.len() as u64 > ids_max {
                producer.remove(0);
            }
            (before, producer.order.len())
        });
        self.id_count = self.id_count - before + after;
        self.added = self.added.saturating_add(1);
        self.is_repeat = false;
        self.sweep(now_ms);
    }

    /// Looks at a few producers, other ones each time, and takes out what has expired of them.
    fn sweep(&mut self, now_ms: u64) {
        let Some(expired_ms) = self.expired_ms(now_ms) else { return };
        for nth in 0..SWEEP_PRODUCERS {
            // Spread over all, however their number changes meanwhile; and the same on every replica.
            let turn = self.added.wrapping_mul(SWEEP_PRODUCERS).wrapping_add(nth).wrapping_mul(SPREAD) >> 32;
            let Some(rank) = turn.checked_rem(self.producers.len() as u64) else { return };
            let rank = rank as usize;
            let is_expired = |producer: &Producer| producer.order.get(0).is_none_or(|turn| turn.id.ms <= expired_ms);
            if !self.producers.get(rank).is_some_and(is_expired) {
                continue;
            }
            self.id_count -= self.producers.update(rank, |producer| producer.sweep(expired_ms, SWEEP_IDS_MAX));
            if self.producers.get(rank).is_some_and(|producer| producer.order.is_empty()) {
                self.producers.remove(rank);
            }
        }
    }

    /// How many producers are remembered, and how many ids of theirs.
    pub(crate) fn tracked(&self, now_ms: u64) -> (u64, u64) {
        let expired_ms = self.expired_ms(now_ms);
        let is_kept = |turn: &&Turn| expired_ms.is_none_or(|expired_ms| turn.id.ms > expired_ms);
        let counts = self.producers.iter().map(|producer| producer.order.iter().filter(is_kept).count() as u64);
        counts.filter(|&count| count > 0).fold((0, 0), |(producers, ids), count| (producers + 1, ids + count))
    }

    /// Each producer by name, with its ids and the entries that they stand for, in the order in which they were added.
    pub(crate) fn producers(
        &self,
    ) -> impl ExactSizeIterator<Item = (&[u8], impl ExactSizeIterator<Item = (&[u8], Id)>)> {
        self.producers_from(0)
    }

    /// The same from the producer at this place on.
    pub(super) fn producers_from(
        &self,
        first: usize,
    ) -> impl ExactSizeIterator<Item = (&[u8], impl ExactSizeIterator<Item = (&[u8], Id)>)> {
        (first..self.producers.len()).map(|rank| {
            let producer = self.producers.get(rank).expect("there are so many");
            let ids = (0..producer.order.len()).map(|place| {
                let turn = producer.order.get(place).expect("there are so many");
                (&*turn.own, turn.id)
            });
            (&*producer.name, ids)
        })
    }

    /// Takes a producer in that has been saved. False if there is one of this name.
    pub(crate) fn put_producer(&mut self, name: &[u8]) -> bool {
        self.mark.clear();
        let Err(rank) = rank_of(&self.producers, name) else { return false };
        self.producers.insert(rank, Producer::new(name));
        true
    }

    /// Takes an id of a producer in that has been saved, behind its others. False if there is no such producer, or it
    /// has one of this name.
    pub(crate) fn put_id(&mut self, producer: &[u8], own: &[u8], id: Id) -> bool {
        self.mark.clear();
        let Ok(rank) = rank_of(&self.producers, producer) else { return false };
        let is_new = self.producers.update(rank, |producer| producer.push(own, id));
        self.id_count += usize::from(is_new);
        is_new
    }

    /// The place of the producer to which a part belongs, and which part that producer itself is. The head is part 0,
    /// and each producer is followed by its ids.
    pub(crate) fn producer_at_part(&self, part: usize) -> (usize, usize) {
        let (mut place, mut own) = Some(self.mark.get()).filter(|(_, own)| *own <= part).unwrap_or((0, 1));
        while let Some(producer) = self.producers.get(place) {
            let end = own + 1 + producer.order.len();
            if part < end {
                break;
            }
            (place, own) = (place + 1, end);
        }
        (place, own)
    }

    /// A walk through the parts has come to a producer.
    pub(crate) fn note_part(&self, place: usize, part: usize) {
        self.mark.set(place, part);
    }

    /// Number of producers and of ids of theirs, whether they have expired or not.
    pub(crate) fn part_count(&self) -> usize {
        self.producers.len() + self.id_count
    }

    /// The name of the last producer.
    pub(crate) fn last_producer(&self) -> Option<Arc<[u8]>> {
        let last = self.producers.len().checked_sub(1)?;
        self.producers.get(last).map(|producer| Arc::clone(&producer.name))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.producers.bytes()
    }

    /// What must be freed of it in steps.
    pub(crate) fn into_unfreed(self) -> Vec<UnfreedIdempotence> {
        let mut unfreed = vec![UnfreedIdempotence(Trees::Producers(self.producers.clone().into_unfreed()))];
        for producer in self.producers.iter() {
            unfreed.push(UnfreedIdempotence(Trees::Known(producer.known.clone().into_unfreed())));
            unfreed.push(UnfreedIdempotence(Trees::Order(producer.order.clone().into_unfreed())));
        }
        unfreed
    }
}

/// See [`super::Stream::own_id_of`].
pub(super) fn own_id_of<'w>(mut words: impl Iterator<Item = &'w [u8]>) -> [u8; 16] {
    let (mut sums, mut differences) = ([0u64; 2], [0u64; 2]);
    let mut bytes = Vec::new();
    while let (Some(field), Some(value)) = (words.next(), words.next()) {
        bytes.clear();
        bytes.extend_from_slice(field);
        // The length stands between, so that no two pairs run into the same bytes.
        bytes.extend_from_slice(&(field.len() as u64).to_le_bytes());
        bytes.extend_from_slice(value);
        let hash = twox_hash::XxHash3_128::oneshot(&bytes);
        for (place, half) in [hash as u64, (hash >> 64) as u64].into_iter().enumerate() {
            sums[place] = sums[place].wrapping_add(half);
            differences[place] ^= half;
        }
    }
    let low = sums[0] ^ differences[1].rotate_left(1);
    let high = sums[1] ^ differences[0].rotate_left(1);
    (u128::from(low) | u128::from(high) << 64).to_le_bytes()
}

/// They are the same if they answer alike, now and later.
impl PartialEq for Idempotence {
    fn eq(&self, other: &Self) -> bool {
        let numbers = |it: &Self| (it.duration_s, it.ids_max, it.added, it.duplicates, it.id_count);
        numbers(self) == numbers(other)
            && self.producers.len() == other.producers.len()
            && self
                .producers()
                .zip(other.producers())
                .all(|((name, ids), (other_name, other_ids))| name == other_name && ids.eq(other_ids))
    }
}

/// What is left of it.
pub(crate) struct UnfreedIdempotence(Trees);

enum Trees {
    Producers(tree::Unfreed<Vec<Producer>>),
    Known(tree::Unfreed<Vec<Known>>),
    Order(tree::Unfreed<Vec<Turn>>),
}

impl UnfreedIdempotence {
    pub(crate) fn bytes(&self) -> usize {
        match &self.0 {
            // Their bytes include those of the trees in them, which stand by themselves.
            Trees::Producers(_) => 0,
            Trees::Known(unfreed) => unfreed.bytes(),
            Trees::Order(unfreed) => unfreed.bytes(),
        }
    }

    pub(crate) fn free(&mut self, budget: &mut usize) -> bool {
        match &mut self.0 {
            Trees::Producers(unfreed) => unfreed.free(budget),
            Trees::Known(unfreed) => unfreed.free(budget),
            Trees::Order(unfreed) => unfreed.free(budget),
        }
    }
}
