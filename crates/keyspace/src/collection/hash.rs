//! Hashes: fields, each with a value.
//!
//! Packed, fields and values take turns in the order in which the fields were first set. Large, the pairs lie in a tree
//! in the order of their fields' places. A hash of which a field has a deadline has other forms: see [`expiring`].

pub(crate) mod expiring;

use std::fmt;

use command::Refusal;

use super::order::{self, Placed};
use super::packed::{self, Head, Items};
use super::{Cell, Collection, Kind, Large, PACKED_BYTES_MAX, Shape, write_elements};
use crate::context::{Edit, View};
use crate::record::allocated_bytes;
use crate::tree::{self, Element, Tree};
use crate::value::ValueRef;
use expiring::{BEFORE_ALL, Expiring, Keeping, NEVER, Triples};

/// The pairs of a large hash.
pub(crate) type Pairs = Tree<Pair>;

/// A field with its value.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    place: u32,
    /// With [`TIMED`], if a deadline lies behind the value.
    field_len: u32,
    /// The field, the value behind it, and behind that the deadline, if there is one.
    text: Box<[u8]>,
}

/// Marks a pair that has a deadline: no field is so long.
const TIMED: u32 = 1 << 31;

/// Bytes of a deadline.
const DEADLINE_BYTES: usize = 8;

impl Pair {
    fn new(field: &[u8], value: &[u8]) -> Self {
        let field_len = u32::try_from(field.len()).expect("words are shorter than 2 GiB");
        assert!(field_len < TIMED, "words are shorter than 2 GiB");
        let mut text = Vec::with_capacity(field.len() + value.len());
        text.extend_from_slice(field);
        text.extend_from_slice(value);
        Self { place: order::place_of(field), field_len, text: text.into_boxed_slice() }
    }

    /// One with a deadline, unless that is [`NEVER`].
    fn timed(field: &[u8], value: &[u8], deadline: i64) -> Self {
        if deadline == NEVER {
            return Self::new(field, value);
        }
        let field_len = u32::try_from(field.len()).expect("words are shorter than 2 GiB");
        assert!(field_len < TIMED, "words are shorter than 2 GiB");
        let text = [field, value, &deadline.to_le_bytes()].concat().into_boxed_slice();
        Self { place: order::place_of(field), field_len: field_len | TIMED, text }
    }

    #[inline]
    fn is_timed(&self) -> bool {
        self.field_len & TIMED != 0
    }

    #[inline]
    fn field(&self) -> &[u8] {
        &self.text[..self.value_start()]
    }

    #[inline]
    fn value(&self) -> &[u8] {
        &self.text[self.value_start()..self.value_end()]
    }

    #[inline]
    fn both(&self) -> (&[u8], &[u8]) {
        self.text[..self.value_end()].split_at(self.value_start())
    }

    #[inline]
    fn value_start(&self) -> usize {
        (self.field_len & !TIMED) as usize
    }

    #[inline]
    fn value_end(&self) -> usize {
        self.text.len() - if self.is_timed() { DEADLINE_BYTES } else { 0 }
    }

    /// When the field expires; [`NEVER`] if it does not.
    #[inline]
    fn deadline(&self) -> i64 {
        match self.text.last_chunk() {
            Some(last) if self.is_timed() => i64::from_le_bytes(*last),
            _ => NEVER,
        }
    }

    fn set_deadline(&mut self, deadline: i64) {
        if self.is_timed() && deadline != NEVER {
            let end = self.value_end();
            self.text[end..].copy_from_slice(&deadline.to_le_bytes());
        } else {
            *self = Self::timed(self.field(), self.value(), deadline);
        }
    }

    /// Gives it another value and deadline.
    fn assign(&mut self, value: &[u8], deadline: i64) {
        let range = self.value_start()..self.value_end();
        if range.len() == value.len() {
            self.text[range].copy_from_slice(value);
            self.set_deadline(deadline);
        } else {
            *self = Self::timed(self.field(), value, deadline);
        }
    }
}

impl Element for Pair {
    type Key = u32;

    #[inline]
    fn key(&self) -> u32 {
        self.place
    }

    fn heap_bytes(&self) -> usize {
        if self.text.is_empty() { 0 } else { allocated_bytes(self.text.len()) }
    }
}

impl Placed for Pair {
    #[inline]
    fn text(&self) -> &[u8] {
        self.field()
    }
}

impl Large for Pairs {
    fn len(&self) -> usize {
        self.len()
    }

    fn bytes(&self) -> usize {
        self.bytes()
    }

    fn write_part(&self, from: usize, out: &mut Vec<u8>, end: usize) -> usize {
        let put = |pair: &Pair, out: &mut Vec<u8>| {
            packed::put(out, pair.field());
            packed::put(out, pair.value());
        };
        from + write_elements(self.range(from..self.len()), |pair| &pair.text, put, out, end)
    }

    fn read_one(&mut self, items: &mut Items<'_>) -> Option<()> {
        let pair = Pair::new(items.next()?, items.next()?);
        let is_behind = |last: &Pair| (last.place, last.field()) < (pair.place, pair.field());
        if !self.len().checked_sub(1).and_then(|last| self.get(last)).is_none_or(is_behind) {
            return None;
        }
        self.push(pair);
        Some(())
    }
}

/// True if these bytes are a packed hash.
pub(crate) fn is_packed(bytes: &[u8]) -> bool {
    packed::count_checked(bytes).is_some_and(|count| count % 2 == 0)
}

/// A hash at a moment, borrowed.
#[derive(Clone, Copy)]
pub struct Hash<'a> {
    form: Form<'a>,
    /// Milliseconds since the epoch; fields with a deadline not later than this do not exist.
    now: i64,
}

#[derive(Clone, Copy)]
enum Form<'a> {
    Packed(&'a [u8]),
    Large(&'a Pairs),
    PackedExpiring(&'a [u8]),
    Expiring(&'a Expiring),
}

impl<'a> Hash<'a> {
    #[inline]
    pub(crate) fn packed(bytes: &'a [u8]) -> Self {
        Self { form: Form::Packed(bytes), now: BEFORE_ALL }
    }

    pub(crate) fn large(pairs: &'a Pairs) -> Self {
        Self { form: Form::Large(pairs), now: BEFORE_ALL }
    }

    pub(crate) fn packed_expiring(bytes: &'a [u8]) -> Self {
        Self { form: Form::PackedExpiring(bytes), now: BEFORE_ALL }
    }

    pub(crate) fn expiring(fields: &'a Expiring) -> Self {
        Self { form: Form::Expiring(fields), now: BEFORE_ALL }
    }

    /// The same hash as it is at `now`, in milliseconds since the epoch.
    #[inline]
    pub(crate) fn at(self, now: i64) -> Self {
        Self { now, ..self }
    }

    pub(crate) fn encoding(&self) -> &'static str {
        match self.form {
            Form::Packed(_) => "listpack",
            Form::PackedExpiring(_) => "listpackex",
            Form::Large(_) | Form::Expiring(_) => "hashtable",
        }
    }

    /// True if the pairs are kept packed, in the order in which fields were first set.
    pub(crate) fn is_packed(&self) -> bool {
        matches!(self.form, Form::Packed(_) | Form::PackedExpiring(_))
    }

    /// True if [`Hash::nth`] is quick.
    pub(crate) fn has_quick_ranks(&self) -> bool {
        match self.form {
            Form::Packed(_) | Form::PackedExpiring(_) => false,
            Form::Large(_) => true,
            Form::Expiring(fields) => fields.earliest() > self.now,
        }
    }

    /// The earliest deadline among all fields that have not been removed; [`NEVER`] if there is none.
    pub(crate) fn earliest_deadline(&self) -> i64 {
        match self.form {
            Form::Packed(_) | Form::Large(_) => NEVER,
            Form::PackedExpiring(bytes) => expiring::packed_earliest(bytes),
            Form::Expiring(fields) => fields.earliest(),
        }
    }

    /// The earliest deadline of a field that exists; [`NEVER`] if there is none.
    pub(crate) fn next_deadline(&self) -> i64 {
        match self.form {
            Form::Packed(_) | Form::Large(_) => NEVER,
            Form::PackedExpiring(bytes) => {
                let deadlines = Triples::new(bytes).map(|triple| triple.deadline);
                deadlines.filter(|deadline| *deadline > self.now).min().unwrap_or(NEVER)
            }
            Form::Expiring(fields) => fields.next_deadline(self.now),
        }
    }

    /// True if a field exists.
    pub(crate) fn is_living(&self) -> bool {
        match self.form {
            Form::Packed(bytes) => !bytes.is_empty(),
            Form::Large(pairs) => !pairs.is_empty(),
            Form::PackedExpiring(bytes) => Triples::new(bytes).any(|triple| triple.deadline > self.now),
            Form::Expiring(fields) => fields.is_living(self.now),
        }
    }

    /// Number of fields; never 0 in a keyspace.
    #[expect(clippy::len_without_is_empty, reason = "a hash without fields does not exist")]
    pub fn len(&self) -> usize {
        match self.form {
            Form::Packed(bytes) => Items::new(bytes).count() / 2,
            Form::Large(pairs) => pairs.len(),
            Form::PackedExpiring(bytes) => Triples::new(bytes).filter(|triple| triple.deadline > self.now).count(),
            Form::Expiring(fields) => fields.pairs().len() - fields.expired_count(self.now),
        }
    }

    /// The value of a field, if the field exists.
    #[inline]
    pub fn get(&self, field: &[u8]) -> Option<&'a [u8]> {
        match self.form {
            Form::Packed(bytes) => {
                let mut items = Items::new(bytes);
                while let Some(found) = items.next() {
                    let value = items.next()?;
                    if found == field {
                        return Some(value);
                    }
                }
                None
            }
            Form::Large(pairs) => pairs.find_sought(&order::Wanted::new(field)).map(Pair::value),
            Form::PackedExpiring(_) | Form::Expiring(_) => self.get_with_deadline(field).map(|(value, _)| value),
        }
    }

    /// The value of a field and when it expires, in milliseconds since the epoch, if the field exists.
    pub fn get_with_deadline(&self, field: &[u8]) -> Option<(&'a [u8], Option<i64>)> {
        let (value, deadline) = match self.form {
            Form::Packed(_) | Form::Large(_) => (self.get(field)?, NEVER),
            Form::PackedExpiring(bytes) => {
                let found = Triples::new(bytes).find(|triple| triple.field == field);
                found.map(|triple| (triple.value, triple.deadline))?
            }
            Form::Expiring(fields) => fields.find(field, self.now).map(|pair| (pair.value(), pair.deadline()))?,
        };
        (deadline > self.now).then_some((value, (deadline != NEVER).then_some(deadline)))
    }

    /// Fields with their values, in the order that every replica has them in.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        match self.form {
            Form::Packed(bytes) => Iter::Packed(Items::new(bytes)),
            Form::Large(pairs) => Iter::Large(pairs.iter()),
            _ => Iter::Expiring(self.expiring_iter()),
        }
    }

    /// The same with deadlines, [`NEVER`] where there is none.
    pub(crate) fn iter_with_deadlines(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8], i64)> + use<'a> {
        let all = match self.form {
            Form::Packed(_) | Form::Large(_) => None,
            _ => Some(self.expiring_iter()),
        };
        let lasting = all.is_none().then(|| self.iter().map(|(field, value)| (field, value, NEVER)));
        all.into_iter().flatten().chain(lasting.into_iter().flatten())
    }

    fn expiring_iter(&self) -> ExpiringIter<'a> {
        match self.form {
            Form::PackedExpiring(bytes) => ExpiringIter::Packed(Triples::new(bytes), self.now),
            Form::Expiring(fields) => ExpiringIter::Large(fields.pairs().iter(), self.now),
            Form::Packed(_) | Form::Large(_) => unreachable!("no field can have a deadline"),
        }
    }

    /// The pair of a rank, which is below [`Hash::len`]. Quick only if the hash [says so](Hash::has_quick_ranks).
    pub(crate) fn nth(&self, rank: usize) -> (&'a [u8], &'a [u8]) {
        match self.form {
            Form::Packed(_) | Form::PackedExpiring(_) => self.iter().nth(rank),
            Form::Large(pairs) => pairs.get(rank).map(Pair::both),
            Form::Expiring(fields) => fields.nth(rank, self.now).map(Pair::both),
        }
        .expect("a rank is below the length")
    }

    /// The pairs that one step of HSCAN visits, and the cursor to go on from; 0 is the end.
    pub(crate) fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(&'a [u8], &'a [u8])) -> u64 {
        match self.form {
            Form::Packed(_) | Form::PackedExpiring(_) => {
                self.iter().for_each(|(field, value)| visit(field, value));
                0
            }
            Form::Large(pairs) => scan_pairs(pairs, cursor, count, visit),
            Form::Expiring(fields) if fields.earliest() > self.now => scan_pairs(fields.pairs(), cursor, count, visit),
            Form::Expiring(fields) => self.scan_living(fields.pairs(), cursor, count, visit),
        }
    }

    /// The same where some have expired: what is answered does not depend on which of those have been removed.
    fn scan_living(
        &self,
        pairs: &'a Pairs,
        cursor: u64,
        count: usize,
        mut visit: impl FnMut(&'a [u8], &'a [u8]),
    ) -> u64 {
        let Some(start) = order::scan_start(pairs, cursor) else { return 0 };
        let (mut left, mut last) = (count.max(1), None);
        for pair in pairs.range(start..pairs.len()).filter(|pair| pair.deadline() > self.now) {
            if let Some(last) = last
                && left == 0
                && pair.place != last
            {
                return u64::from(last) + 1;
            }
            visit(pair.field(), pair.value());
            left = left.saturating_sub(1);
            last = Some(pair.place);
        }
        0
    }
}

fn scan_pairs<'a>(pairs: &'a Pairs, cursor: u64, count: usize, mut visit: impl FnMut(&'a [u8], &'a [u8])) -> u64 {
    let (range, next) = order::scan_range(pairs, cursor, count);
    pairs.range(range).for_each(|pair| visit(pair.field(), pair.value()));
    next
}

/// Hashes are equal if they have the same pairs with the same deadlines in the same order.
impl PartialEq for Hash<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter_with_deadlines().eq(other.iter_with_deadlines())
    }
}

impl Eq for Hash<'_> {}

impl fmt::Debug for Hash<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_map().entries(self.iter()).finish()
    }
}

enum Iter<'a> {
    Packed(Items<'a>),
    Large(tree::Iter<'a, Pair>),
    Expiring(ExpiringIter<'a>),
}

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a [u8], &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Packed(items) => Some((items.next()?, items.next()?)),
            Self::Large(pairs) => pairs.next().map(Pair::both),
            Self::Expiring(fields) => fields.next().map(|(field, value, _)| (field, value)),
        }
    }
}

/// Fields that exist at a moment, with their values and deadlines.
enum ExpiringIter<'a> {
    Packed(Triples<'a>, i64),
    Large(tree::Iter<'a, Pair>, i64),
}

impl<'a> Iterator for ExpiringIter<'a> {
    type Item = (&'a [u8], &'a [u8], i64);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Packed(triples, now) => triples
                .find(|triple| triple.deadline > *now)
                .map(|triple| (triple.field, triple.value, triple.deadline)),
            Self::Large(pairs, now) => {
                pairs.find(|pair| pair.deadline() > *now).map(|pair| (pair.field(), pair.value(), pair.deadline()))
            }
        }
    }
}

/// A hash that is being changed, at a moment.
pub(crate) struct HashMut<'c, 'a> {
    cell: &'c mut Cell<'a>,
    now: i64,
    /// Fields that had expired and were removed on this occasion.
    expired_count: usize,
}

impl HashMut<'_, '_> {
    /// The hash as it is now.
    pub(crate) fn as_ref(&self) -> Hash<'_> {
        match self.cell.shape() {
            Shape::Packed(super::Form::ExpiringHash, bytes) => Hash::packed_expiring(bytes),
            Shape::Packed(_, bytes) => Hash::packed(bytes),
            Shape::Large(Collection::Hash(pairs)) => Hash::large(pairs),
            Shape::Large(Collection::ExpiringHash(fields)) => Hash::expiring(fields),
            Shape::Large(_) => unreachable!("the type was checked"),
        }
        .at(self.now)
    }

    /// Gives a field a value, and no deadline. True if there was no such field.
    pub(crate) fn set(&mut self, field: &[u8], value: &[u8]) -> bool {
        self.put(field, value, Keeping::Nothing)
    }

    /// Gives a field a value, and the deadline that `keeping` tells. True if there was no such field.
    pub(crate) fn put(&mut self, field: &[u8], value: &[u8], keeping: Keeping) -> bool {
        if matches!(keeping, Keeping::Until(_)) {
            self.become_expiring();
        }
        match self.cell.shape() {
            Shape::Packed(super::Form::ExpiringHash, _) => {
                self.purge();
                if let Some(is_new) = self.put_packed_expiring(field, value, keeping) {
                    return is_new;
                }
                let fields = Expiring::of(self.as_ref().at(BEFORE_ALL).iter_with_deadlines());
                self.cell.grow_into(Collection::ExpiringHash(fields));
            }
            Shape::Packed(_, bytes) => {
                let limits = self.cell.limits();
                let mut items = Items::new(bytes);
                let mut count = 0;
                let mut place = None;
                while let Some(found) = items.next() {
                    let Some((_, range)) = items.next_with_range() else { break };
                    if found == field {
                        place = Some(range);
                        break;
                    }
                    count += 1;
                }
                let is_new = place.is_none();
                let longest = field.len().max(value.len());
                if longest as u64 <= limits.hash_value_bytes
                    && (!is_new || count < limits.hash_entries)
                    && bytes.len() + field.len() + value.len() <= PACKED_BYTES_MAX
                {
                    let end = bytes.len();
                    let (field_head, value_head) = (Head::of(field.len()), Head::of(value.len()));
                    match place {
                        Some(range) => self.cell.splice(range, &[value_head.bytes(), value]),
                        None => {
                            self.cell.splice(end..end, &[field_head.bytes(), field, value_head.bytes(), value]);
                        }
                    }
                    return is_new;
                }
                let pairs = to_pairs(Hash::packed(bytes).iter());
                self.cell.grow_into(Collection::Hash(pairs));
            }
            Shape::Large(_) => {}
        }
        match self.cell.large_mut() {
            Some(Collection::Hash(pairs)) => {
                let change = |pair: &mut Pair| pair.assign(value, NEVER);
                pairs.put(&order::Wanted::new(field), change, || Pair::new(field, value))
            }
            Some(Collection::ExpiringHash(fields)) => {
                let (is_new, had_expired) = fields.put(field, value, keeping, self.now);
                self.expired_count += usize::from(had_expired);
                is_new
            }
            _ => unreachable!("it has just become one, or was"),
        }
    }

    /// The same in the packed form with deadlines, of which none has expired; `None` if it outgrows the form.
    fn put_packed_expiring(&mut self, field: &[u8], value: &[u8], keeping: Keeping) -> Option<bool> {
        let limits = self.cell.limits();
        let Shape::Packed(_, bytes) = self.cell.shape() else { unreachable!("it is packed") };
        let mut count = 0;
        let found = Triples::new(bytes).inspect(|_| count += 1).find(|triple| triple.field == field);
        let found = found.map(|triple| (triple.range.start, triple.value_range, triple.deadline));
        let fits = field.len().max(value.len()) as u64 <= limits.hash_value_bytes
            && (found.is_some() || count < limits.hash_entries)
            && bytes.len() + field.len() + value.len() + 2 * DEADLINE_BYTES <= PACKED_BYTES_MAX;
        if !fits {
            return None;
        }
        let (end, is_new) = (bytes.len(), found.is_none());
        let (field_head, value_head) = (Head::of(field.len()), Head::of(value.len()));
        match found {
            Some((start, value_range, old)) => {
                self.cell.splice(value_range, &[value_head.bytes(), value]);
                let deadline = keeping.deadline(old);
                if deadline != old {
                    self.cell.splice(start..start + DEADLINE_BYTES, &[&deadline.to_le_bytes()]);
                }
            }
            None => {
                let no_deadline = NEVER.to_le_bytes();
                let first: &[u8] = if end == 0 { &no_deadline } else { &[] };
                let deadline = keeping.deadline(NEVER).to_le_bytes();
                let parts = [first, &deadline, field_head.bytes(), field, value_head.bytes(), value];
                self.cell.splice(end..end, &parts);
            }
        }
        self.renew_earliest();
        Some(is_new)
    }

    /// Brings what a packed hash says of its earliest deadline up to date.
    fn renew_earliest(&mut self) {
        let Shape::Packed(_, bytes) = self.cell.shape() else { return };
        let earliest = Triples::new(bytes).map(|triple| triple.deadline).min().unwrap_or(NEVER);
        if earliest != expiring::packed_earliest(bytes) {
            self.cell.splice(0..DEADLINE_BYTES, &[&earliest.to_le_bytes()]);
        }
    }

    /// Takes the form of hashes of which fields have deadlines.
    fn become_expiring(&mut self) {
        match self.cell.shape() {
            Shape::Packed(super::Form::ExpiringHash, _) | Shape::Large(Collection::ExpiringHash(_)) => {}
            Shape::Packed(..) => {
                let bytes = expiring::pack(self.as_ref().iter_with_deadlines());
                if bytes.len() <= PACKED_BYTES_MAX {
                    self.cell.repack(super::Form::ExpiringHash, &bytes);
                } else {
                    let fields = Expiring::of(self.as_ref().iter_with_deadlines());
                    self.cell.grow_into(Collection::ExpiringHash(fields));
                }
            }
            Shape::Large(_) => {
                let Some(Collection::Hash(pairs)) = self.cell.large_mut() else { unreachable!("it is large") };
                let pairs = std::mem::take(pairs);
                self.cell.grow_into(Collection::ExpiringHash(Expiring::lasting(pairs)));
            }
        }
    }

    /// Removes the fields of a packed hash that have expired. Only a change of fields that exist may do that.
    fn purge(&mut self) {
        let hash = self.as_ref();
        if hash.is_packed() && hash.earliest_deadline() <= self.now {
            let bytes = expiring::pack(hash.iter_with_deadlines());
            let before = hash.at(BEFORE_ALL).len();
            self.cell.repack(super::Form::ExpiringHash, &bytes);
            self.expired_count += before - self.as_ref().len();
        }
    }

    /// Gives a field another deadline, or none: [`NEVER`]. False if there is no such field.
    pub(crate) fn set_deadline(&mut self, field: &[u8], deadline: i64) -> bool {
        match self.as_ref().get_with_deadline(field) {
            None => return false,
            Some((_, old)) if old.unwrap_or(NEVER) == deadline => return true,
            Some(_) => {}
        }
        self.become_expiring();
        self.purge();
        match self.cell.shape() {
            Shape::Packed(_, bytes) => {
                let found = Triples::new(bytes).find(|triple| triple.field == field).expect("it was there");
                let start = found.range.start;
                self.cell.splice(start..start + DEADLINE_BYTES, &[&deadline.to_le_bytes()]);
                self.renew_earliest();
                true
            }
            Shape::Large(_) => self.fields().set_deadline(field, deadline),
        }
    }

    /// Takes a field away. True if there was one.
    pub(crate) fn remove(&mut self, field: &[u8]) -> bool {
        match self.cell.shape() {
            Shape::Packed(super::Form::ExpiringHash, _) => {
                if self.as_ref().get(field).is_none() {
                    return false;
                }
                self.purge();
                let Shape::Packed(_, bytes) = self.cell.shape() else { unreachable!("it is packed") };
                let found = Triples::new(bytes).find(|triple| triple.field == field).expect("it was there");
                let is_last = found.range == (DEADLINE_BYTES..bytes.len());
                let range = if is_last { 0..bytes.len() } else { found.range };
                self.cell.splice(range, &[]);
                if !is_last {
                    self.renew_earliest();
                }
                true
            }
            Shape::Packed(_, bytes) => {
                let mut items = Items::new(bytes);
                let range = loop {
                    let Some((found, range)) = items.next_with_range() else { return false };
                    items.next();
                    if found == field {
                        break range.start..items.position();
                    }
                };
                self.cell.splice(range, &[]);
                true
            }
            Shape::Large(Collection::Hash(pairs)) => {
                match pairs.search_sought(&order::Wanted::new(field)).map(|(rank, _)| rank) {
                    Ok(rank) => {
                        self.pairs().remove(rank);
                        true
                    }
                    Err(_) => false,
                }
            }
            Shape::Large(_) => self.as_ref().get(field).is_some() && self.fields().remove(field),
        }
    }

    fn pairs(&mut self) -> &mut Pairs {
        match self.cell.large_mut() {
            Some(Collection::Hash(pairs)) => pairs,
            _ => unreachable!("it has just become one, or was"),
        }
    }

    fn fields(&mut self) -> &mut Expiring {
        match self.cell.large_mut() {
            Some(Collection::ExpiringHash(fields)) => fields,
            _ => unreachable!("it has just become one, or was"),
        }
    }
}

/// A large hash of these pairs, of which no two have one field.
pub(crate) fn to_pairs<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Pairs {
    let mut pairs: Vec<Pair> = pairs.map(|(field, value)| Pair::new(field, value)).collect();
    pairs.sort_unstable_by(|left, right| (left.place, left.field()).cmp(&(right.place, right.field())));
    pairs.into_iter().collect()
}

impl<'a> View<'a> {
    /// The hash under a key, if the key exists. Counts as a use.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is no hash.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> Result<Option<Hash<'a>>, Refusal> {
        match self.entry(key).map(|entry| entry.value()) {
            None => Ok(None),
            Some(ValueRef::Hash(hash)) => Ok(Some(hash)),
            Some(_) => Err(Refusal::WRONG_TYPE),
        }
    }
}

impl Edit<'_> {
    /// Changes the hash under a key, starting from one without fields if the key does not exist; if none are left the
    /// key is removed. Counts as a use.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is no hash.
    #[inline]
    pub(crate) fn modify_hash<R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut HashMut<'_, '_>) -> R,
    ) -> Result<R, Refusal> {
        let now = self.expired_until();
        let (result, expired_count) = self.modify(key, Kind::Hash, |cell| {
            let mut hash = HashMut { cell, now, expired_count: 0 };
            let result = change(&mut hash);
            (result, hash.expired_count)
        })?;
        if expired_count > 0 {
            self.note_expired_fields(key, expired_count);
        }
        Ok(result)
    }
}
