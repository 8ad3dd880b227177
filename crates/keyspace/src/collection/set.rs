//! Sets: members, each once.
//!
//! While all members are integers and there are not too many, the set is these numbers in rising order, as Redis's
//! intset: `width u8 (2, 4 or 8), numbers of that width, little-endian`. The width fits the widest number that was ever
//! a member. A small set of other members is packed in the order in which they came; a large one is a tree in the order
//! of the members' places. The limits are those that Redis has for its listpacks unless it is configured; other limits
//! (`set-max-listpack-entries`, `set-max-listpack-value`) change only the name that `OBJECT ENCODING` tells.

use std::fmt;

use command::Refusal;

use super::order::{self, Placed};
use super::packed::{self, Head, Items};
use super::{Cell, Collection, Form as PackedForm, Kind, Large, Limits, PACKED_BYTES_MAX, Shape, write_elements};
use crate::context::{Edit, View};
use crate::record::{Payload, allocated_bytes};
use crate::tree::{self, Element, Tree};
use crate::value::{CollectionValue, ItoaBuffer, Kept, Str, ValueRef, canonical_integer};

/// Most members of a packed set.
const PACKED_LEN_MAX: usize = 128;

/// Longest member of one, in bytes.
const PACKED_MEMBER_BYTES_MAX: usize = 64;

/// Of so many members the name of the encoding depends at most, the first ones: nobody waits for more to be looked at.
const NAMING_MEMBERS_MAX: usize = 10_000;

/// The members of a large set.
pub(crate) type Members = Tree<Member>;

/// One of them.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    place: u32,
    text: Box<[u8]>,
}

impl Member {
    fn new(text: &[u8]) -> Self {
        Self { place: order::place_of(text), text: text.into() }
    }
}

impl Element for Member {
    type Key = u32;

    #[inline]
    fn key(&self) -> u32 {
        self.place
    }

    fn heap_bytes(&self) -> usize {
        if self.text.is_empty() { 0 } else { allocated_bytes(self.text.len()) }
    }
}

impl Placed for Member {
    #[inline]
    fn text(&self) -> &[u8] {
        &self.text
    }
}

impl Large for Members {
    fn len(&self) -> usize {
        self.len()
    }

    fn bytes(&self) -> usize {
        self.bytes()
    }

    fn write_part(&self, from: usize, out: &mut Vec<u8>, end: usize) -> usize {
        let put = |member: &Member, out: &mut Vec<u8>| packed::put(out, &member.text);
        from + write_elements(self.range(from..self.len()), |member| &member.text, put, out, end)
    }

    fn read_one(&mut self, items: &mut Items<'_>) -> Option<()> {
        let member = Member::new(items.next()?);
        let is_behind = |last: &Member| (last.place, &last.text) < (member.place, &member.text);
        if !self.len().checked_sub(1).and_then(|last| self.get(last)).is_none_or(is_behind) {
            return None;
        }
        self.push(member);
        Some(())
    }
}

/// True if these bytes are a packed set of anything.
pub(crate) fn is_packed(bytes: &[u8]) -> bool {
    packed::count_checked(bytes).is_some()
}

/// True if these bytes are a set of integers.
pub(crate) fn is_integers(bytes: &[u8]) -> bool {
    let Some((width @ (2 | 4 | 8), numbers)) = bytes.split_first() else { return bytes.is_empty() };
    numbers.len() % usize::from(*width) == 0 && Integers::new(bytes).iter().is_sorted_by(|left, right| left < right)
}

/// Integers in rising order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Integers<'a> {
    width: usize,
    numbers: &'a [u8],
}

impl<'a> Integers<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        match bytes {
            [width, numbers @ ..] => Self { width: usize::from(*width), numbers },
            [] => Self { width: 2, numbers: bytes },
        }
    }

    /// Bytes of each.
    pub(crate) fn width(self) -> usize {
        self.width
    }

    /// The numbers as they lie.
    pub(crate) fn bytes(self) -> &'a [u8] {
        self.numbers
    }

    #[inline]
    fn len(self) -> usize {
        self.numbers.len() / self.width
    }

    #[inline]
    fn get(self, index: usize) -> i64 {
        let bytes = &self.numbers[index * self.width..];
        let array = "a width of bytes";
        match self.width {
            2 => i16::from_le_bytes(bytes[..2].try_into().expect(array)).into(),
            4 => i32::from_le_bytes(bytes[..4].try_into().expect(array)).into(),
            _ => i64::from_le_bytes(bytes[..8].try_into().expect(array)),
        }
    }

    fn iter(self) -> impl Iterator<Item = i64> + use<'a> {
        (0..self.len()).map(move |index| self.get(index))
    }

    /// The index of a number, or the one it would have.
    #[inline]
    fn search(self, number: i64) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.get(middle).cmp(&number) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }
}

#[inline]
fn width_of(number: i64) -> usize {
    if i16::try_from(number).is_ok() {
        2
    } else if i32::try_from(number).is_ok() {
        4
    } else {
        8
    }
}

/// A set of integers from a width and the numbers as they will lie, if they are in order.
pub(crate) fn integers_of(width: u8, numbers: &[u8]) -> Option<Vec<u8>> {
    let bytes = [&[width], numbers].concat();
    is_integers(&bytes).then_some(bytes)
}

/// A set, borrowed.
#[derive(Clone, Copy)]
pub struct Set<'a>(Form<'a>);

#[derive(Clone, Copy)]
enum Form<'a> {
    Integers(Integers<'a>),
    Packed(&'a [u8]),
    Large(&'a Members),
}

impl<'a> Set<'a> {
    #[inline]
    pub(crate) fn integers(bytes: &'a [u8]) -> Self {
        Self(Form::Integers(Integers::new(bytes)))
    }

    #[inline]
    pub(crate) fn packed(bytes: &'a [u8]) -> Self {
        Self(Form::Packed(bytes))
    }

    #[inline]
    pub(crate) fn large(members: &'a Members) -> Self {
        Self(Form::Large(members))
    }

    /// How Redis 7.0 would call the representation.
    pub(crate) fn encoding(&self) -> &'static str {
        match self.0 {
            Form::Integers(_) => "intset",
            Form::Packed(_) | Form::Large(_) => "hashtable",
        }
    }

    /// How Redis 7.2 would call it with these limits. How the set is kept does not depend on those of listpacks, so a
    /// set that is large here is one there, too, unless more would still be small. Too many integers for an intset
    /// become a hash table there, and no listpack.
    pub(crate) fn encoding_within(&self, limits: &Limits) -> &'static str {
        let (len_max, bytes_max) = (limits.set_listpack_entries, limits.set_listpack_value_bytes);
        let is_usual = len_max <= PACKED_LEN_MAX as u64 && bytes_max <= PACKED_MEMBER_BYTES_MAX as u64;
        let len = self.len() as u64;
        match self.0 {
            Form::Integers(_) => "intset",
            Form::Large(_) if is_usual => "hashtable",
            _ if len > len_max => "hashtable",
            Form::Packed(_) | Form::Large(_) => {
                let is_short = |member: Str<'_>| member.len() as u64 <= bytes_max;
                let is_integer = |member: Str<'_>| canonical_integer(member.to_bytes(&mut ItoaBuffer::new())).is_some();
                let looked_at = || self.iter().take(NAMING_MEMBERS_MAX);
                let had_integers = len > limits.set_integers && looked_at().all(is_integer);
                if !had_integers && looked_at().all(is_short) { "listpack" } else { "hashtable" }
            }
        }
    }

    /// The numbers, if the set is kept as such.
    pub(crate) fn as_integers(&self) -> Option<Integers<'a>> {
        match self.0 {
            Form::Integers(integers) => Some(integers),
            _ => None,
        }
    }

    /// Number of members; never 0 in a keyspace.
    #[expect(clippy::len_without_is_empty, reason = "a set without members does not exist")]
    pub fn len(&self) -> usize {
        match self.0 {
            Form::Integers(integers) => integers.len(),
            Form::Packed(bytes) => Items::new(bytes).count(),
            Form::Large(members) => members.len(),
        }
    }

    /// True if this is a member.
    #[inline]
    pub fn contains(&self, member: &[u8]) -> bool {
        match self.0 {
            Form::Integers(integers) => canonical_integer(member).is_some_and(|number| integers.search(number).is_ok()),
            Form::Packed(bytes) => Items::new(bytes).any(|found| found == member),
            Form::Large(members) => members.find_sought(&order::Wanted::new(member)).is_some(),
        }
    }

    /// True if this text is a member.
    pub(crate) fn contains_text(&self, member: Str<'_>) -> bool {
        match (self.0, member) {
            (Form::Integers(integers), Str::Integer(number)) => integers.search(number).is_ok(),
            _ => self.contains(member.to_bytes(&mut ItoaBuffer::new())),
        }
    }

    /// The members, in the order that every replica has them in.
    pub fn iter(&self) -> impl Iterator<Item = Str<'a>> + use<'a> {
        match self.0 {
            Form::Integers(integers) => Iter::Integers { integers, index: 0 },
            Form::Packed(bytes) => Iter::Packed(Items::new(bytes)),
            Form::Large(members) => Iter::Large(members.iter()),
        }
    }

    /// The member of a rank, which is below [`Set::len`].
    pub(crate) fn nth(&self, rank: usize) -> Str<'a> {
        match self.0 {
            Form::Integers(integers) => Str::Integer(integers.get(rank)),
            Form::Packed(bytes) => Str::Bytes(Items::new(bytes).nth(rank).expect("a rank is below the length")),
            Form::Large(members) => Str::Bytes(&members.get(rank).expect("a rank is below the length").text),
        }
    }

    /// The members that one step of SSCAN visits, and the cursor to go on from; 0 is the end.
    pub(crate) fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(Str<'a>)) -> u64 {
        match self.0 {
            Form::Large(members) => {
                let (range, next) = order::scan_range(members, cursor, count);
                members.range(range).for_each(|member| visit(Str::Bytes(&member.text)));
                next
            }
            _ => {
                self.iter().for_each(visit);
                0
            }
        }
    }
}

/// Sets are equal if they have the same members in the same order.
impl PartialEq for Set<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Set<'_> {}

impl fmt::Debug for Set<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.iter()).finish()
    }
}

enum Iter<'a> {
    Integers { integers: Integers<'a>, index: usize },
    Packed(Items<'a>),
    Large(tree::Iter<'a, Member>),
}

impl<'a> Iterator for Iter<'a> {
    type Item = Str<'a>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Integers { integers, index } => (*index < integers.len()).then(|| {
                *index += 1;
                Str::Integer(integers.get(*index - 1))
            }),
            Self::Packed(items) => items.next().map(Str::Bytes),
            Self::Large(members) => members.next().map(|member| Str::Bytes(&member.text)),
        }
    }
}

/// A set that is being changed.
pub(crate) struct SetMut<'c, 'a>(&'c mut Cell<'a>);

impl SetMut<'_, '_> {
    /// The set as it is now.
    pub(crate) fn as_ref(&self) -> Set<'_> {
        match self.0.shape() {
            Shape::Packed(PackedForm::Integers, bytes) => Set::integers(bytes),
            Shape::Packed(_, bytes) => Set::packed(bytes),
            Shape::Large(Collection::Set(members)) => Set::large(members),
            Shape::Large(_) => unreachable!("the type was checked"),
        }
    }

    /// Adds a member. True if it was none before.
    pub(crate) fn add(&mut self, member: &[u8]) -> bool {
        match self.as_ref().0 {
            Form::Integers(integers) => match canonical_integer(member) {
                Some(number) => {
                    let Err(index) = integers.search(number) else { return false };
                    let is_full = integers.len() as u64 >= self.0.limits().set_integers
                        || 1 + (integers.len() + 1) * 8 > PACKED_BYTES_MAX;
                    if is_full { self.add_to_fewer_kinds(member) } else { self.insert_integer(index, number) }
                }
                None => self.add_to_fewer_kinds(member),
            },
            Form::Packed(bytes) => {
                let mut count = 0;
                for found in Items::new(bytes) {
                    if found == member {
                        return false;
                    }
                    count += 1;
                }
                let end = bytes.len();
                if count >= PACKED_LEN_MAX || member.len() > PACKED_MEMBER_BYTES_MAX {
                    self.add_to_fewer_kinds(member);
                } else {
                    self.0.splice(end..end, &[Head::of(member.len()).bytes(), member]);
                }
            }
            Form::Large(members) => {
                let sought = order::Wanted::new(member);
                // Looked for first: a tree that is shared is not to be copied for nothing.
                if members.find_sought(&sought).is_some() {
                    return false;
                }
                self.members().put(&sought, |_| {}, || Member::new(member));
            }
        }
        true
    }

    /// Adds what is no member, to a form that takes it.
    fn add_to_fewer_kinds(&mut self, member: &[u8]) {
        let set = self.as_ref();
        let count = set.len();
        if matches!(set.0, Form::Integers(_)) && count < PACKED_LEN_MAX && member.len() <= PACKED_MEMBER_BYTES_MAX {
            let mut bytes = Vec::new();
            set.iter().for_each(|found| packed::put(&mut bytes, found.to_bytes(&mut ItoaBuffer::new())));
            packed::put(&mut bytes, member);
            return self.0.repack(PackedForm::Members, &bytes);
        }
        let mut members: Vec<Member> =
            set.iter().map(|found| Member::new(found.to_bytes(&mut ItoaBuffer::new()))).collect();
        members.push(Member::new(member));
        let members = in_order(members);
        self.0.grow_into(Collection::Set(members));
    }

    fn insert_integer(&mut self, index: usize, number: i64) {
        let Form::Integers(integers) = self.as_ref().0 else { unreachable!("asked by one who has looked") };
        let width = integers.width.max(width_of(number));
        if integers.len() == 0 {
            return self.0.splice(0..0, &[&[width as u8], &number.to_le_bytes()[..width]]);
        }
        if width == integers.width {
            let at = 1 + index * width;
            return self.0.splice(at..at, &[&number.to_le_bytes()[..width]]);
        }
        let mut bytes = vec![width as u8];
        let mut numbers: Vec<i64> = integers.iter().collect();
        numbers.insert(index, number);
        numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()[..width]));
        self.0.repack(PackedForm::Integers, &bytes);
    }

    /// Takes a member away. True if it was one.
    pub(crate) fn remove(&mut self, member: &[u8]) -> bool {
        match self.as_ref().0 {
            Form::Integers(integers) => {
                let found = canonical_integer(member).and_then(|number| integers.search(number).ok());
                let Some(index) = found else { return false };
                self.remove_integer(index);
            }
            Form::Packed(bytes) => {
                let mut items = Items::new(bytes);
                let range = loop {
                    match items.next_with_range() {
                        Some((found, range)) if found == member => break range,
                        Some(_) => {}
                        None => return false,
                    }
                };
                self.0.splice(range, &[]);
            }
            Form::Large(members) => {
                let Ok((rank, _)) = members.search_sought(&order::Wanted::new(member)) else { return false };
                self.members().remove(rank);
            }
        }
        true
    }

    /// Takes away the member of a rank, which is below the number of members.
    pub(crate) fn remove_nth(&mut self, rank: usize) {
        match self.as_ref().0 {
            Form::Integers(_) => self.remove_integer(rank),
            Form::Packed(bytes) => {
                let mut items = Items::new(bytes);
                (0..rank).for_each(|_| _ = items.next());
                let (_, range) = items.next_with_range().expect("a rank is below the length");
                self.0.splice(range, &[]);
            }
            Form::Large(_) => _ = self.members().remove(rank),
        }
    }

    fn remove_integer(&mut self, index: usize) {
        let Form::Integers(integers) = self.as_ref().0 else { unreachable!("asked by one who has looked") };
        let width = integers.width;
        let at = 1 + index * width;
        let range = if integers.len() == 1 { 0..1 + width } else { at..at + width };
        self.0.splice(range, &[]);
    }

    fn members(&mut self) -> &mut Members {
        match self.0.large_mut() {
            Some(Collection::Set(members)) => members,
            _ => unreachable!("asked by one who has looked"),
        }
    }
}

/// A set of these members, of which there are some, and no two alike.
pub(crate) fn build(members: &[Str<'_>], limits: &Limits) -> CollectionValue {
    let is_integer = |member: &Str<'_>| match member {
        Str::Integer(_) => true,
        Str::Bytes(bytes) => canonical_integer(bytes).is_some(),
    };
    let as_integers = members.len() as u64 <= limits.set_integers && members.iter().all(is_integer);
    if members.len() > PACKED_LEN_MAX && !as_integers {
        let new = |member: &Str<'_>| Member::new(member.to_bytes(&mut ItoaBuffer::new()));
        let members = in_order(members.iter().map(new).collect());
        return CollectionValue(Kept::Large(Box::new(Collection::Set(members))));
    }
    let mut bytes = Vec::new();
    let mut cell = Cell::fresh(Kind::Set, &mut bytes, limits);
    members.iter().for_each(|member| _ = SetMut(&mut cell).add(member.to_bytes(&mut ItoaBuffer::new())));
    CollectionValue(match cell.into_payload() {
        Some(Payload::Packed { form, bytes }) => Kept::Packed(form, bytes.to_vec()),
        Some(Payload::Collection(collection)) => Kept::Large(collection),
        _ => unreachable!("a set of some members"),
    })
}

fn in_order(mut members: Vec<Member>) -> Members {
    members.sort_unstable_by(|left, right| (left.place, &left.text).cmp(&(right.place, &right.text)));
    members.into_iter().collect()
}

impl<'a> View<'a> {
    /// The set under a key, if the key exists. Counts as a use.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is no set.
    #[inline]
    pub fn set(&self, key: &[u8]) -> Result<Option<Set<'a>>, Refusal> {
        match self.entry(key).map(|entry| entry.value()) {
            None => Ok(None),
            Some(ValueRef::Set(set)) => Ok(Some(set)),
            Some(_) => Err(Refusal::WRONG_TYPE),
        }
    }
}

impl Edit<'_> {
    /// Changes the set under a key, starting from one without members if the key does not exist; if none are left the
    /// key is removed. Counts as a use.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is no set.
    #[inline]
    pub(crate) fn modify_set<R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut SetMut<'_, '_>) -> R,
    ) -> Result<R, Refusal> {
        self.modify(key, Kind::Set, |cell| change(&mut SetMut(cell)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_large_set_s_encoding_depends_on_its_first_members_only() {
        let limits = Limits { set_listpack_entries: 1 << 20, ..Limits::default() };
        let texts: Vec<Vec<u8>> = (0..NAMING_MEMBERS_MAX).map(|number| format!("m{number}").into_bytes()).collect();
        let places = || texts.iter().map(|text| order::place_of(text));
        let (first, last) = (places().min().expect("there are some"), places().max().expect("there are some"));
        let name_with = |more: Option<Vec<u8>>| {
            let members = in_order(texts.iter().chain(&more).map(|text| Member::new(text)).collect());
            Set::large(&members).encoding_within(&limits)
        };
        let long = || (0..).map(|number| format!("{number:0>100}").into_bytes());
        assert_eq!(name_with(None), "listpack");
        assert_eq!(name_with(long().find(|text| (first..last).contains(&order::place_of(text)))), "hashtable");
        assert_eq!(name_with(long().find(|text| order::place_of(text) > last)), "listpack");
    }
}
