//! Hashes of which fields have deadlines.
//!
//! A hash takes this form when a field gets the first deadline, and keeps it. Packed, the earliest deadline comes
//! first, and then a deadline, a field and a value in turn, in the order in which the fields were first set. Large, the
//! pairs lie as in any large hash, a deadline behind the value of those that have one, beside a tree of all deadlines
//! in order of time. So a large hash takes the form in one step, and fields without a deadline cost nothing more.
//!
//! A field that has reached its deadline at a command's moment does not exist for it, whether it has been removed
//! physically or not. What is removed, and when, decides nothing that replicas must agree on: the order and the form
//! follow from what commands have done to fields that existed.

use std::cmp::Ordering;
use std::ops::Range;

use super::{Pair, Pairs};
use crate::collection::order::{Wanted, place_of};
use crate::collection::packed::{self, Items};
use crate::collection::{Large, write_elements};
use crate::tree::{self, Element, Tree};

/// The deadline of a field that has none.
pub(crate) const NEVER: i64 = i64::MAX;

/// A moment at which every field exists.
pub(crate) const BEFORE_ALL: i64 = i64::MIN;

/// Bytes of a deadline in the packed form.
const DEADLINE_BYTES: usize = 8;

/// A packed field, and where it lies.
#[derive(Clone)]
pub(super) struct Triple<'a> {
    pub(super) deadline: i64,
    pub(super) field: &'a [u8],
    pub(super) value: &'a [u8],
    /// The whole of it, beginning with the deadline.
    pub(super) range: Range<usize>,
    /// The value with its length.
    pub(super) value_range: Range<usize>,
}

/// Reads packed fields.
#[derive(Clone)]
pub(super) struct Triples<'a>(Items<'a>);

impl<'a> Triples<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let mut items = Items::new(bytes);
        Items::take(&mut items, DEADLINE_BYTES);
        Self(items)
    }
}

impl<'a> Iterator for Triples<'a> {
    type Item = Triple<'a>;

    fn next(&mut self) -> Option<Triple<'a>> {
        let start = self.0.position();
        let deadline = i64::from_le_bytes(Items::take(&mut self.0, DEADLINE_BYTES)?.try_into().expect("eight bytes"));
        let field = self.0.next()?;
        let (value, value_range) = self.0.next_with_range()?;
        Some(Triple { deadline, field, value, range: start..self.0.position(), value_range })
    }
}

/// The earliest deadline of a packed hash; [`NEVER`] if there is none.
pub(super) fn packed_earliest(bytes: &[u8]) -> i64 {
    bytes.first_chunk().map_or(NEVER, |first| i64::from_le_bytes(*first))
}

/// True if these bytes are a hash in the packed form, with at least one field.
pub(crate) fn is_packed(bytes: &[u8]) -> bool {
    let mut triples = Triples::new(bytes);
    let earliest = triples.by_ref().map(|triple| triple.deadline).min();
    earliest == Some(packed_earliest(bytes)) && triples.0.is_done()
}

/// These fields, packed; no bytes if there are none.
pub(crate) fn pack<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8], i64)>) -> Vec<u8> {
    let mut out = NEVER.to_le_bytes().to_vec();
    let mut earliest = NEVER;
    for (field, value, deadline) in fields {
        earliest = earliest.min(deadline);
        out.extend_from_slice(&deadline.to_le_bytes());
        packed::put(&mut out, field);
        packed::put(&mut out, value);
    }
    if out.len() == DEADLINE_BYTES {
        return Vec::new();
    }
    out[..DEADLINE_BYTES].copy_from_slice(&earliest.to_le_bytes());
    out
}

/// The deadline of a field of a large hash. Fields of one place and one deadline may change places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Due {
    deadline: i64,
    place: u32,
}

impl Due {
    fn of(pair: &Pair) -> Self {
        Self { deadline: pair.deadline(), place: pair.place }
    }
}

impl Element for Due {
    type Key = i64;

    #[inline]
    fn key(&self) -> i64 {
        self.deadline
    }

    fn heap_bytes(&self) -> usize {
        0
    }
}

/// A large hash of which fields may have deadlines.
#[derive(Clone, Default)]
pub(crate) struct Expiring {
    pairs: Pairs,
    /// In order of deadlines, and then of places.
    schedule: Tree<Due>,
}

/// What is left of one.
pub(crate) struct Unfreed {
    pairs: tree::Unfreed<Vec<Pair>>,
    schedule: tree::Unfreed<Vec<Due>>,
}

impl Unfreed {
    pub(crate) fn bytes(&self) -> usize {
        self.pairs.bytes() + self.schedule.bytes()
    }

    pub(crate) fn free(&mut self, budget: &mut usize) -> bool {
        self.pairs.free(budget) || self.schedule.free(budget)
    }
}

/// Which deadline a field that is given a value gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// None.
    Nothing,
    /// The one that it has.
    Deadline,
    /// This one.
    Until(i64),
}

impl Keeping {
    pub(super) fn deadline(self, old: i64) -> i64 {
        match self {
            Self::Nothing => NEVER,
            Self::Deadline => old,
            Self::Until(deadline) => deadline,
        }
    }
}

impl Expiring {
    /// One of these pairs, of which none has a deadline.
    pub(super) fn lasting(pairs: Pairs) -> Self {
        Self { pairs, schedule: Tree::new() }
    }

    /// One of these fields, of which no two are the same.
    pub(crate) fn of<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8], i64)>) -> Self {
        let mut pairs: Vec<Pair> = fields.map(|(field, value, deadline)| Pair::timed(field, value, deadline)).collect();
        pairs.sort_unstable_by(|left, right| (left.place, left.field()).cmp(&(right.place, right.field())));
        let mut schedule: Vec<Due> = pairs.iter().filter(|pair| pair.is_timed()).map(Due::of).collect();
        schedule.sort_unstable_by_key(|due| (due.deadline, due.place));
        Self { pairs: pairs.into_iter().collect(), schedule: schedule.into_iter().collect() }
    }

    pub(crate) fn into_unfreed(self) -> Unfreed {
        Unfreed { pairs: self.pairs.into_unfreed(), schedule: self.schedule.into_unfreed() }
    }

    #[inline]
    pub(crate) fn pairs(&self) -> &Pairs {
        &self.pairs
    }

    /// The earliest deadline of all fields that have not been removed.
    pub(super) fn earliest(&self) -> i64 {
        self.schedule.get(0).map_or(NEVER, |due| due.deadline)
    }

    /// How many fields have expired at `now` and not been removed.
    pub(super) fn expired_count(&self, now: i64) -> usize {
        if self.earliest() > now {
            return 0;
        }
        // A bound: never equal to an element.
        let behind = |deadline: i64| if deadline <= now { Ordering::Less } else { Ordering::Greater };
        match self.schedule.search(behind, |due| behind(due.deadline)) {
            Ok((rank, _)) | Err(rank) => rank,
        }
    }

    /// The earliest deadline behind `now`; [`NEVER`] if there is none.
    pub(super) fn next_deadline(&self, now: i64) -> i64 {
        self.schedule.get(self.expired_count(now)).map_or(NEVER, |due| due.deadline)
    }

    /// True if a field exists at `now`.
    pub(super) fn is_living(&self, now: i64) -> bool {
        self.pairs.len() > self.schedule.len() || self.pairs.len() > self.expired_count(now)
    }

    pub(super) fn find(&self, field: &[u8], now: i64) -> Option<&Pair> {
        self.pairs.find_sought(&Wanted::new(field)).filter(|pair| pair.deadline() > now)
    }

    /// The pair of a rank among those that exist at `now`.
    pub(super) fn nth(&self, rank: usize, now: i64) -> Option<&Pair> {
        /// With more fields that wait for their removal it is better to look at all.
        const GAPS_MAX: usize = 4096;
        let expired = self.expired_count(now);
        if expired > GAPS_MAX {
            return self.pairs.iter().filter(|pair| pair.deadline() > now).nth(rank);
        }
        let mut gaps = Vec::with_capacity(expired);
        let (mut last, mut repeated) = (None, 0);
        for due in self.schedule.range(0..expired).copied() {
            repeated = if last == Some(due) { repeated + 1 } else { 0 };
            last = Some(due);
            gaps.extend(self.rank_of(due, repeated));
        }
        gaps.sort_unstable();
        let rank = gaps.into_iter().fold(rank, |rank, gap| if gap <= rank { rank + 1 } else { rank });
        self.pairs.get(rank)
    }

    /// The rank of a field with this place and deadline: of the first behind so many others.
    fn rank_of(&self, due: Due, others: usize) -> Option<usize> {
        let bound = |pair: &Pair| pair.place.cmp(&due.place).then(Ordering::Greater);
        let (Ok((first, _)) | Err(first)) = self.pairs.search(|place| place.cmp(&due.place), bound);
        let same =
            self.pairs.range(first..self.pairs.len()).zip(first..).take_while(|(pair, _)| pair.place == due.place);
        same.filter(|(pair, _)| pair.deadline() == due.deadline).nth(others).map(|(_, rank)| rank)
    }

    fn schedule(&mut self, due: Due) {
        if due.deadline != NEVER {
            let (Ok((rank, _)) | Err(rank)) = self.place_of(due);
            self.schedule.insert(rank, due);
        }
    }

    fn unschedule(&mut self, due: Due) {
        if due.deadline != NEVER {
            let (rank, _) = self.place_of(due).expect("what has a deadline is scheduled");
            self.schedule.remove(rank);
        }
    }

    fn place_of(&self, due: Due) -> Result<(usize, &Due), usize> {
        let wanted = (due.deadline, due.place);
        self.schedule.search(|deadline| deadline.cmp(&due.deadline), |other| (other.deadline, other.place).cmp(&wanted))
    }

    /// Gives a field a value, and the deadline that `keeping` tells. Tells if the field is new, and if there was one
    /// that had expired.
    pub(super) fn put(&mut self, field: &[u8], value: &[u8], keeping: Keeping, now: i64) -> (bool, bool) {
        let wanted = Wanted::new(field);
        let old = self.pairs.find_sought(&wanted).map(Due::of);
        let has_expired = old.is_some_and(|due| due.deadline <= now);
        let kept = old.filter(|_| !has_expired).map_or(NEVER, |due| due.deadline);
        let deadline = keeping.deadline(kept);
        let change = |pair: &mut Pair| pair.assign(value, deadline);
        self.pairs.put(&wanted, change, || Pair::timed(field, value, deadline));
        if old.map_or(NEVER, |due| due.deadline) != deadline {
            if let Some(old) = old {
                self.unschedule(old);
            }
            self.schedule(Due { deadline, place: place_of(field) });
        }
        (old.is_none() || has_expired, has_expired)
    }

    /// Gives a field another deadline. False if there is no such field.
    pub(super) fn set_deadline(&mut self, field: &[u8], deadline: i64) -> bool {
        let Ok((rank, old)) = self.pairs.search_sought(&Wanted::new(field)).map(|(rank, pair)| (rank, Due::of(pair)))
        else {
            return false;
        };
        self.unschedule(old);
        self.schedule(Due { deadline, ..old });
        self.pairs.update(rank, |pair| pair.set_deadline(deadline));
        true
    }

    /// Takes a field away. False if there is no such field.
    pub(super) fn remove(&mut self, field: &[u8]) -> bool {
        let Ok(rank) = self.pairs.search_sought(&Wanted::new(field)).map(|(rank, _)| rank) else { return false };
        let pair = self.pairs.remove(rank);
        self.unschedule(Due::of(&pair));
        true
    }

    /// Removes up to `most` fields that have expired at `now`, the earliest first, and tells how many.
    pub(crate) fn purge(&mut self, now: i64, most: usize) -> usize {
        let count = self.expired_count(now).min(most);
        for due in self.schedule.take_range(0..count).iter() {
            let rank = self.rank_of(*due, 0).expect("a deadline is that of a field");
            self.pairs.remove(rank);
        }
        count
    }
}

impl Large for Expiring {
    fn len(&self) -> usize {
        self.pairs.len()
    }

    fn bytes(&self) -> usize {
        self.pairs.bytes() + self.schedule.bytes()
    }

    /// Each element is a field, a value and a deadline, which is 0 if there is none.
    fn write_part(&self, from: usize, out: &mut Vec<u8>, end: usize) -> usize {
        let put = |pair: &Pair, out: &mut Vec<u8>| {
            packed::put(out, pair.field());
            packed::put(out, pair.value());
            packed::put_number(out, if pair.is_timed() { pair.deadline() as u64 } else { 0 });
        };
        from + write_elements(self.pairs.range(from..self.pairs.len()), |pair| &pair.text, put, out, end)
    }

    fn read_one(&mut self, items: &mut Items<'_>) -> Option<()> {
        let (field, value) = (items.next()?, items.next()?);
        let deadline = match i64::try_from(items.number()?).ok()? {
            0 => NEVER,
            deadline => deadline,
        };
        let pair = Pair::timed(field, value, deadline);
        let is_behind = |last: &Pair| (last.place, last.field()) < (pair.place, pair.field());
        if !self.pairs.len().checked_sub(1).and_then(|last| self.pairs.get(last)).is_none_or(is_behind) {
            return None;
        }
        self.schedule(Due::of(&pair));
        self.pairs.push(pair);
        Some(())
    }
}
