//! Hashes: fields, each with a value.
//!
//! Packed, fields and values take turns in the order in which the fields were first set. Large, the pairs lie in a tree
//! in the order of their fields' places.

use std::fmt;

use command::Refusal;

use super::order::{self, Placed};
use super::packed::{self, Head, Items};
use super::{Cell, Collection, Kind, Large, PACKED_BYTES_MAX, Shape, write_elements};
use crate::context::{Edit, View};
use crate::record::allocated_bytes;
use crate::tree::{self, Element, Tree};
use crate::value::ValueRef;

/// The pairs of a large hash.
pub(crate) type Pairs = Tree<Pair>;

/// A field with its value.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    place: u32,
    field_len: u32,
    /// The field, and the value behind it.
    text: Box<[u8]>,
}

impl Pair {
    fn new(field: &[u8], value: &[u8]) -> Self {
        let field_len = u32::try_from(field.len()).expect("words are shorter than 4 GiB");
        let mut text = Vec::with_capacity(field.len() + value.len());
        text.extend_from_slice(field);
        text.extend_from_slice(value);
        Self { place: order::place_of(field), field_len, text: text.into_boxed_slice() }
    }

    #[inline]
    fn field(&self) -> &[u8] {
        &self.text[..self.field_len as usize]
    }

    #[inline]
    fn value(&self) -> &[u8] {
        &self.text[self.field_len as usize..]
    }

    #[inline]
    fn both(&self) -> (&[u8], &[u8]) {
        self.text.split_at(self.field_len as usize)
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

/// A hash, borrowed.
#[derive(Clone, Copy)]
pub struct Hash<'a>(Form<'a>);

#[derive(Clone, Copy)]
enum Form<'a> {
    Packed(&'a [u8]),
    Large(&'a Pairs),
}

impl<'a> Hash<'a> {
    #[inline]
    pub(crate) fn packed(bytes: &'a [u8]) -> Self {
        Self(Form::Packed(bytes))
    }

    pub(crate) fn large(pairs: &'a Pairs) -> Self {
        Self(Form::Large(pairs))
    }

    pub(crate) fn encoding(&self) -> &'static str {
        match self.0 {
            Form::Packed(_) => "listpack",
            Form::Large(_) => "hashtable",
        }
    }

    /// True if the pairs are kept packed, in the order in which fields were first set.
    pub(crate) fn is_packed(&self) -> bool {
        matches!(self.0, Form::Packed(_))
    }

    /// Number of fields; never 0 in a keyspace.
    #[expect(clippy::len_without_is_empty, reason = "a hash without fields does not exist")]
    pub fn len(&self) -> usize {
        match self.0 {
            Form::Packed(bytes) => Items::new(bytes).count() / 2,
            Form::Large(pairs) => pairs.len(),
        }
    }

    /// The value of a field, if the field exists.
    #[inline]
    pub fn get(&self, field: &[u8]) -> Option<&'a [u8]> {
        match self.0 {
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
        }
    }

    /// Fields with their values, in the order that every replica has them in.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        match self.0 {
            Form::Packed(bytes) => Iter::Packed(Items::new(bytes)),
            Form::Large(pairs) => Iter::Large(pairs.iter()),
        }
    }

    /// The pair of a rank, which is below [`Hash::len`]. Quick only if the hash is large.
    pub(crate) fn nth(&self, rank: usize) -> (&'a [u8], &'a [u8]) {
        match self.0 {
            Form::Packed(_) => self.iter().nth(rank),
            Form::Large(pairs) => pairs.get(rank).map(Pair::both),
        }
        .expect("a rank is below the length")
    }

    /// The pairs that one step of HSCAN visits, and the cursor to go on from; 0 is the end.
    pub(crate) fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(&'a [u8], &'a [u8])) -> u64 {
        match self.0 {
            Form::Packed(_) => {
                self.iter().for_each(|(field, value)| visit(field, value));
                0
            }
            Form::Large(pairs) => {
                let (range, next) = order::scan_range(pairs, cursor, count);
                pairs.range(range).for_each(|pair| visit(pair.field(), pair.value()));
                next
            }
        }
    }
}

/// Hashes are equal if they have the same pairs in the same order.
impl PartialEq for Hash<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
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
}

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a [u8], &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Packed(items) => Some((items.next()?, items.next()?)),
            Self::Large(pairs) => pairs.next().map(Pair::both),
        }
    }
}

/// A hash that is being changed.
pub(crate) struct HashMut<'c, 'a>(&'c mut Cell<'a>);

impl HashMut<'_, '_> {
    /// The hash as it is now.
    pub(crate) fn as_ref(&self) -> Hash<'_> {
        match self.0.shape() {
            Shape::Packed(_, bytes) => Hash::packed(bytes),
            Shape::Large(Collection::Hash(pairs)) => Hash::large(pairs),
            Shape::Large(_) => unreachable!("the type was checked"),
        }
    }

    /// Gives a field a value. True if there was no such field.
    pub(crate) fn set(&mut self, field: &[u8], value: &[u8]) -> bool {
        if let Shape::Packed(_, bytes) = self.0.shape() {
            let limits = self.0.limits();
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
                    Some(range) => self.0.splice(range, &[value_head.bytes(), value]),
                    None => self.0.splice(end..end, &[field_head.bytes(), field, value_head.bytes(), value]),
                }
                return is_new;
            }
            let pairs = to_pairs(Hash::packed(bytes).iter());
            self.0.grow_into(Collection::Hash(pairs));
        }
        let change = |pair: &mut Pair| {
            let field_len = pair.field_len as usize;
            if pair.text.len() == field_len + value.len() {
                pair.text[field_len..].copy_from_slice(value);
            } else {
                *pair = Pair::new(field, value);
            }
        };
        self.pairs().put(&order::Wanted::new(field), change, || Pair::new(field, value))
    }

    /// Takes a field away. True if there was one.
    pub(crate) fn remove(&mut self, field: &[u8]) -> bool {
        match self.0.shape() {
            Shape::Packed(_, bytes) => {
                let mut items = Items::new(bytes);
                let range = loop {
                    let Some((found, range)) = items.next_with_range() else { return false };
                    items.next();
                    if found == field {
                        break range.start..items.position();
                    }
                };
                self.0.splice(range, &[]);
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
            Shape::Large(_) => unreachable!("the type was checked"),
        }
    }

    fn pairs(&mut self) -> &mut Pairs {
        match self.0.large_mut() {
            Some(Collection::Hash(pairs)) => pairs,
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
        self.modify(key, Kind::Hash, |cell| change(&mut HashMut(cell)))
    }
}
