//! Lists: items in a sequence, taken and put mostly at its ends.
//!
//! Items lie one behind the other, each between its length and the size of both, so that they can be read from either
//! end:
//!
//! ```text
//! item = length (seven bits a byte, the lowest first), bytes, size of all this (seven bits a byte, the lowest last)
//! ```
//!
//! Packed: `number of items u16, items`. Large: a rope of [`Pack`]s of some kilobytes. Redis calls both a quicklist.

use std::fmt;
use std::ops::Range;

use command::Refusal;

use super::packed::{self, Head, Items};
use super::{Cell, Collection, Form as PackedForm, Kind, Large, Shape};
use crate::context::{Edit, View};
use crate::rdb::listpack;
use crate::record::allocated_bytes;
use crate::tree::{Edge, Leaf, Rope};
use crate::value::{CollectionValue, Kept, ValueRef};

/// Most bytes of a packed list.
const PACKED_BYTES_MAX: usize = 1024;

/// A pack splits when it has more bytes, unless it is but one item.
const PACK_BYTES_MAX: usize = 4096;

/// Most that a pack sets aside in front for items to come.
const GAP_BYTES_MAX: usize = 1024;

/// The items of a large list.
pub(crate) type Packs = Rope<Pack>;

/// Bytes that a number takes with seven bits a byte.
#[inline]
fn digits_of(number: usize) -> usize {
    (number | 1).ilog2() as usize / 7 + 1
}

/// An item and what surrounds it.
struct Framed<'a> {
    head: Head,
    item: &'a [u8],
    tail: Head,
}

impl<'a> Framed<'a> {
    #[inline]
    fn new(item: &'a [u8]) -> Self {
        let head = Head::of(item.len());
        let tail = Head::of(head.bytes().len() + item.len()).reversed();
        Self { head, item, tail }
    }

    #[inline]
    fn len(&self) -> usize {
        self.head.bytes().len() + self.item.len() + self.tail.bytes().len()
    }

    #[inline]
    fn parts(&self) -> [&[u8]; 3] {
        [self.head.bytes(), self.item, self.tail.bytes()]
    }

    #[inline]
    fn append_to(&self, out: &mut Vec<u8>) {
        if let [&[head], item, &[tail]] = self.parts() {
            out.push(head);
            out.extend_from_slice(item);
            out.push(tail);
        } else {
            self.parts().iter().for_each(|part| out.extend_from_slice(part));
        }
    }

    /// Fills `out`, which is as long as this.
    #[inline]
    fn write(&self, mut out: &mut [u8]) {
        if let ([&[head], item, &[tail]], [first, between @ .., last]) = (self.parts(), &mut *out) {
            (*first, *last) = (head, tail);
            between.copy_from_slice(item);
        } else {
            for part in self.parts() {
                out.split_off_mut(..part.len()).expect("there is room").copy_from_slice(part);
            }
        }
    }
}

/// Reads items from both ends.
#[derive(Clone, Copy, Debug)]
struct Run<'a>(&'a [u8]);

impl<'a> Run<'a> {
    /// The first item with its frame's size.
    #[inline]
    fn first(self) -> Option<(&'a [u8], usize)> {
        let mut items = Items::new(self.0);
        let item = items.next()?;
        let size = items.position();
        Some((item, size + digits_of(size)))
    }

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let (item, size) = self.first()?;
        self.0 = &self.0[size..];
        Some(item)
    }

    #[inline]
    fn next_back(&mut self) -> Option<&'a [u8]> {
        let mut end = self.0.len();
        let (mut size, mut shift) = (0usize, 0);
        loop {
            end = end.checked_sub(1)?;
            let byte = self.0[end];
            size |= usize::from(byte & 0x7F) << shift;
            shift += 7;
            if byte < 0x80 {
                break;
            }
        }
        let start = end - size;
        let item = Items::new(&self.0[start..end]).next();
        self.0 = &self.0[..start];
        item
    }

    /// Where the item of an index begins, from the nearer end of `count` items.
    fn offset(self, index: usize, count: usize) -> usize {
        let mut rest = self;
        if index <= count / 2 {
            (0..index).for_each(|_| _ = rest.next());
            self.0.len() - rest.0.len()
        } else {
            (index..count).for_each(|_| _ = rest.next_back());
            rest.0.len()
        }
    }
}

/// Bytes that the allocator spends on a block of this capacity.
#[inline]
fn bytes_of(capacity: usize) -> usize {
    if capacity == 0 { 0 } else { allocated_bytes(capacity) }
}

/// A run of items in a block of its own, with room in front so that a queue is served from either end without moving
/// what it holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pack {
    bytes: Vec<u8>,
    start: usize,
    count: usize,
}

impl Pack {
    fn of_run(run: &[u8], count: usize) -> Self {
        Self { bytes: run.to_vec(), start: 0, count }
    }

    #[inline]
    fn run(&self) -> Run<'_> {
        Run(&self.bytes[self.start..])
    }

    /// The items' bytes.
    #[inline]
    fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    #[inline]
    fn offset(&self, index: usize) -> usize {
        self.start + self.run().offset(index, self.count)
    }

    /// Puts an item in before the one of an index; answers how much the allocation has grown.
    #[inline]
    fn insert(&mut self, index: usize, item: &[u8]) -> isize {
        let capacity = self.bytes.capacity();
        let framed = Framed::new(item);
        let len = framed.len();
        if index == 0 && self.count > 0 {
            if self.start < len {
                self.make_gap(len);
            }
            self.start -= len;
            framed.write(&mut self.bytes[self.start..self.start + len]);
        } else {
            let at = if index == self.count { self.bytes.len() } else { self.offset(index) };
            let wanted = self.bytes.len() + len;
            if wanted > self.bytes.capacity() {
                // What the allocator rounds up to, and a little ahead while it is small.
                self.bytes.reserve_exact(allocated_bytes(wanted + wanted.min(PACK_BYTES_MAX) / 8) - self.bytes.len());
            }
            let tail = self.bytes.len() - at;
            framed.append_to(&mut self.bytes);
            if tail > 0 {
                self.bytes[at..].rotate_right(len);
            }
        }
        self.count += 1;
        self.growth_since(capacity)
    }

    fn make_gap(&mut self, need: usize) {
        let gap = need + self.len().min(GAP_BYTES_MAX);
        let mut bytes = Vec::with_capacity(allocated_bytes(gap + self.len()));
        let gap = bytes.capacity() - self.len();
        bytes.resize(gap, 0);
        bytes.extend_from_slice(&self.bytes[self.start..]);
        (self.bytes, self.start) = (bytes, gap);
    }

    /// Takes the item out that is at an end, once `read` has seen it; there must be one. Answers what that has read,
    /// and how much the allocation has grown.
    #[inline]
    fn pop<R>(&mut self, end: End, read: impl FnOnce(&[u8]) -> R) -> (R, isize) {
        let capacity = self.bytes.capacity();
        let mut run = self.run();
        let item = if end == End::Left { run.next() } else { run.next_back() };
        let (result, rest) = (read(item.expect("a leaf has items")), run.0.len());
        self.count -= 1;
        match end {
            End::Left => self.start = self.bytes.len() - rest,
            End::Right => self.bytes.truncate(self.start + rest),
        }
        self.tidy();
        (result, self.growth_since(capacity))
    }

    /// Takes items out; answers how much the allocation has grown.
    fn remove(&mut self, indexes: Range<usize>) -> isize {
        let capacity = self.bytes.capacity();
        let (from, to) = (self.offset(indexes.start), self.offset(indexes.end));
        self.count -= indexes.len();
        if from == self.start {
            self.start = to;
        } else {
            self.bytes.drain(from..to);
        }
        self.tidy();
        self.growth_since(capacity)
    }

    /// Gives back room that is out of proportion.
    fn tidy(&mut self) {
        if self.start > 256 && self.start > self.len() {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        if self.bytes.capacity() > 2 * self.bytes.len() + 256 {
            self.bytes.shrink_to(self.bytes.len() + self.bytes.len() / 8);
        }
    }

    /// By how much the allocation has grown since it had this capacity.
    #[inline]
    fn growth_since(&self, capacity: usize) -> isize {
        match self.bytes.capacity() == capacity {
            true => 0,
            false => Leaf::bytes(self) as isize - bytes_of(capacity) as isize,
        }
    }
}

impl Leaf for Pack {
    /// Lists have no order but that of their items.
    type Key = ();

    fn key(&self) {}

    #[inline]
    fn count(&self) -> usize {
        self.count
    }

    #[inline]
    fn bytes(&self) -> usize {
        bytes_of(self.bytes.capacity())
    }

    #[inline]
    fn overflow(&self, edge: Edge) -> Option<usize> {
        if self.len() <= PACK_BYTES_MAX || self.count < 2 {
            return None;
        }
        // By bytes, as the items may be of any lengths; but at the edge nearly all stays together.
        match edge.keeps(16) {
            15 => Some(self.count - 1),
            1 => Some(1),
            _ => {
                let (mut rest, mut index) = (self.run(), 0);
                while rest.0.len() * 2 > self.len() && index + 1 < self.count {
                    rest.next();
                    index += 1;
                }
                Some(index.max(1))
            }
        }
    }

    fn split_off(&mut self, at: usize) -> Self {
        let offset = self.offset(at);
        let upper = Self::of_run(&self.bytes[offset..], self.count - at);
        self.bytes.truncate(offset);
        self.count = at;
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.shrink_to_fit();
        upper
    }

    #[inline]
    fn is_thin(&self) -> bool {
        self.len() <= PACK_BYTES_MAX / 4
    }

    fn fits(&self, next: &Self) -> bool {
        self.len() + next.len() <= PACK_BYTES_MAX / 4 * 3
    }

    fn append(&mut self, next: Self) {
        self.bytes.extend_from_slice(next.run().0);
        self.count += next.count;
    }
}

impl Large for Packs {
    fn len(&self) -> usize {
        self.len()
    }

    fn bytes(&self) -> usize {
        self.bytes()
    }

    fn write_part(&self, from: usize, out: &mut Vec<u8>, end: usize) -> usize {
        let mut rank = from;
        for item in List::large(self).iter_from(from) {
            packed::put(out, item);
            rank += 1;
            if out.len() >= end {
                break;
            }
        }
        rank
    }

    fn read_one(&mut self, items: &mut Items<'_>) -> Option<()> {
        push_back(self, items.next()?);
        Some(())
    }
}

fn push_back(packs: &mut Packs, item: &[u8]) {
    packs.edit_last_leaf(|pack, index| ((), pack.insert(index, item)));
}

/// A list of these items; `None` if there are none.
pub(crate) fn from_items<'i>(items: impl Iterator<Item = &'i [u8]>) -> Option<CollectionValue> {
    let mut packs = Packs::new();
    items.for_each(|item| push_back(&mut packs, item));
    if packs.is_empty() {
        return None;
    }
    let (first, _) = packs.leaf_at(0);
    if first.count == packs.len() && 2 + first.len() <= PACKED_BYTES_MAX {
        let count = u16::try_from(first.count).expect("an item has bytes").to_le_bytes();
        return Some(CollectionValue(Kept::Packed(PackedForm::List, [&count, first.run().0].concat())));
    }
    Some(CollectionValue(Kept::Large(Box::new(Collection::List(packs)))))
}

/// True if these bytes are a packed list.
pub(crate) fn is_packed(bytes: &[u8]) -> bool {
    let Some((count, items)) = bytes.split_first_chunk() else { return bytes.is_empty() };
    let mut rest = items;
    let mut seen = 0;
    while !rest.is_empty() {
        let mut reader = Items::new(rest);
        let Some(item) = reader.next() else { return false };
        let framed = Framed::new(item);
        if !rest.starts_with(&framed.parts().concat()) {
            return false;
        }
        rest = &rest[framed.len()..];
        seen += 1;
    }
    seen > 0 && seen == usize::from(u16::from_le_bytes(*count))
}

/// A list, borrowed.
#[derive(Clone, Copy)]
pub struct List<'a>(Form<'a>);

#[derive(Clone, Copy)]
enum Form<'a> {
    Packed { count: usize, run: Run<'a> },
    Large(&'a Packs),
}

impl<'a> List<'a> {
    #[inline]
    pub(crate) fn packed(bytes: &'a [u8]) -> Self {
        Self(match bytes.split_first_chunk() {
            Some((count, items)) => Form::Packed { count: u16::from_le_bytes(*count).into(), run: Run(items) },
            None => Form::Packed { count: 0, run: Run(&[]) },
        })
    }

    #[inline]
    pub(crate) fn large(packs: &'a Packs) -> Self {
        Self(Form::Large(packs))
    }

    pub(crate) fn encoding(&self) -> &'static str {
        "quicklist"
    }

    /// True if Redis would keep the list in one listpack: with a positive limit at most so many items of 8 KiB in all,
    /// otherwise 4, 8, 16, 32 or 64 KiB (-1 to -5).
    pub(crate) fn fits_listpack(&self, size_max: i64) -> bool {
        const SAFE_BYTES: usize = 8 << 10;
        let (bytes_max, len_max) = match size_max {
            0.. => (SAFE_BYTES, size_max.max(1) as usize),
            -5..=-1 => (2 << 10 << size_max.unsigned_abs(), usize::MAX),
            _ => (64 << 10, usize::MAX),
        };
        let mut bytes = listpack::FRAME_BYTES;
        self.len() <= len_max.min(bytes_max)
            && self.iter().all(|item| {
                bytes += listpack::element_bytes(item);
                bytes <= bytes_max
            })
    }

    /// Number of items; never 0 in a keyspace.
    #[expect(clippy::len_without_is_empty, reason = "a list without items does not exist")]
    #[inline]
    pub fn len(&self) -> usize {
        match self.0 {
            Form::Packed { count, .. } => count,
            Form::Large(packs) => packs.len(),
        }
    }

    /// The item of an index.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.iter_from(index).next()
    }

    /// The items.
    pub fn iter(&self) -> Iter<'a> {
        self.iter_from(0)
    }

    /// The items from an index on; none if there are not so many.
    pub fn iter_from(&self, index: usize) -> Iter<'a> {
        let len = self.len();
        if index >= len {
            return Iter { list: *self, run: Run(&[]), next: len };
        }
        let (run, count, place) = self.run_at(index);
        Iter { list: *self, run: Run(&run.0[run.offset(place, count)..]), next: index + count - place }
    }

    /// The items that lie before an index, the nearest first.
    pub fn iter_back_from(&self, end: usize) -> IterBack<'a> {
        let Some(last) = end.min(self.len()).checked_sub(1) else {
            return IterBack { list: *self, run: Run(&[]), rest: 0 };
        };
        let (run, count, place) = self.run_at(last);
        IterBack { list: *self, run: Run(&run.0[..run.offset(place + 1, count)]), rest: last - place }
    }

    /// The run in which an item is, the number of its items, and the item's index there.
    #[inline]
    fn run_at(&self, index: usize) -> (Run<'a>, usize, usize) {
        match self.0 {
            Form::Packed { count, run } => (run, count, index),
            Form::Large(packs) => {
                let (pack, place) = packs.leaf_at(index);
                (pack.run(), pack.count, place)
            }
        }
    }
}

/// Lists are equal if they have the same items in the same order.
impl PartialEq for List<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for List<'_> {}

impl fmt::Debug for List<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}

/// Items of a list, forwards.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    list: List<'a>,
    run: Run<'a>,
    /// The index of the first item behind the run.
    next: usize,
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.run.0.is_empty() {
            if self.next >= self.list.len() {
                return None;
            }
            let (run, count, _) = self.list.run_at(self.next);
            self.run = run;
            self.next += count;
        }
        self.run.next()
    }
}

/// Items of a list, backwards.
#[derive(Clone, Debug)]
pub struct IterBack<'a> {
    list: List<'a>,
    run: Run<'a>,
    /// How many items lie before the run.
    rest: usize,
}

impl<'a> Iterator for IterBack<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.run.0.is_empty() {
            let last = self.rest.checked_sub(1)?;
            let (run, count, _) = self.list.run_at(last);
            self.run = run;
            self.rest -= count;
        }
        self.run.next_back()
    }
}

/// An end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The head.
    Left,
    /// The tail.
    Right,
}

/// A list that is being changed.
pub(crate) struct ListMut<'c, 'a>(&'c mut Cell<'a>);

impl ListMut<'_, '_> {
    /// The list as it is now.
    #[inline]
    pub(crate) fn as_ref(&self) -> List<'_> {
        match self.0.shape() {
            Shape::Packed(_, bytes) => List::packed(bytes),
            Shape::Large(Collection::List(packs)) => List::large(packs),
            Shape::Large(_) => unreachable!("the type was checked"),
        }
    }

    /// Puts an item at an end.
    pub(crate) fn push(&mut self, end: End, item: &[u8]) {
        let index = match end {
            End::Left => 0,
            End::Right => self.as_ref().len(),
        };
        self.insert(index, item);
    }

    /// Puts an item in before the one of an index, or at the end.
    pub(crate) fn insert(&mut self, index: usize, item: &[u8]) {
        if let Form::Packed { count, run } = self.as_ref().0 {
            let framed = Framed::new(item);
            if 2 + run.0.len() + framed.len() <= PACKED_BYTES_MAX {
                let at = 2 + run.offset(index, count);
                let count = u16::try_from(count + 1).expect("an item has bytes").to_le_bytes();
                let [head, item, tail] = framed.parts();
                if run.0.is_empty() {
                    self.0.splice(0..0, &[&count, head, item, tail]);
                } else if at == 2 {
                    self.0.splice(0..2, &[&count, head, item, tail]);
                } else {
                    self.0.splice(at..at, &[head, item, tail]);
                    self.0.splice(0..2, &[&count]);
                }
                return;
            }
            self.grow();
        }
        self.packs().edit_leaf(index, |pack, place| ((), pack.insert(place, item)));
    }

    /// Puts another item in the place of one.
    pub(crate) fn set(&mut self, index: usize, item: &[u8]) {
        if let Form::Packed { count, run } = self.as_ref().0 {
            let framed = Framed::new(item);
            let (from, to) = (2 + run.offset(index, count), 2 + run.offset(index + 1, count));
            if 2 + run.0.len() + framed.len() - (to - from) <= PACKED_BYTES_MAX {
                return self.0.splice(from..to, &framed.parts());
            }
            self.grow();
        }
        self.packs().edit_leaf(index, |pack, place| ((), pack.remove(place..place + 1) + pack.insert(place, item)));
    }

    /// Takes items out.
    pub(crate) fn remove_range(&mut self, indexes: Range<usize>) {
        if indexes.is_empty() {
            return;
        }
        match self.as_ref().0 {
            Form::Packed { count, run } => {
                let (from, to) = (2 + run.offset(indexes.start, count), 2 + run.offset(indexes.end, count));
                let count = count - indexes.len();
                if count == 0 {
                    return self.0.splice(0..to, &[]);
                }
                let count = (count as u16).to_le_bytes();
                if from == 2 {
                    return self.0.splice(0..to, &[&count]);
                }
                self.0.splice(from..to, &[]);
                self.0.splice(0..2, &[&count]);
            }
            Form::Large(packs) => {
                let (pack, place) = packs.leaf_at(indexes.start);
                if place + indexes.len() <= pack.count {
                    let within = place..place + indexes.len();
                    self.packs().edit_leaf(indexes.start, |pack, _| ((), pack.remove(within)));
                } else {
                    let taken = self.packs().take_range(indexes);
                    self.0.free_later(Collection::List(taken));
                }
            }
        }
    }

    /// Takes out the items of these indexes, which rise.
    pub(crate) fn remove_each(&mut self, indexes: &[usize]) {
        for run in indexes.chunk_by(|one, next| one + 1 == *next).rev() {
            self.remove_range(run[0]..run[0] + run.len());
        }
    }

    /// Takes an item from an end.
    pub(crate) fn pop(&mut self, end: End) -> Option<Vec<u8>> {
        self.pop_with(end, <[u8]>::to_vec)
    }

    /// Takes an item from an end, once `read` has seen it.
    pub(crate) fn pop_with<R>(&mut self, end: End, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let list = self.as_ref();
        if let Form::Large(packs) = list.0 {
            if packs.is_empty() {
                return None;
            }
            let packs = self.packs();
            return Some(match end {
                End::Left => packs.edit_leaf(0, |pack, _| pack.pop(end, read)),
                End::Right => packs.edit_last_leaf(|pack, _| pack.pop(end, read)),
            });
        }
        let index = match end {
            End::Left => 0,
            End::Right => list.len().checked_sub(1)?,
        };
        let result = read(list.get(index)?);
        self.remove_range(index..index + 1);
        Some(result)
    }

    /// Becomes large.
    fn grow(&mut self) {
        let Form::Packed { count, run } = self.as_ref().0 else { return };
        let packs = Packs::from_leaves([Pack::of_run(run.0, count)]);
        self.0.grow_into(Collection::List(packs));
    }

    fn packs(&mut self) -> &mut Packs {
        match self.0.large_mut() {
            Some(Collection::List(packs)) => packs,
            _ => unreachable!("it has just become one, or was"),
        }
    }
}

impl<'a> View<'a> {
    /// The list under a key, if the key exists. Counts as a use.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is no list.
    #[inline]
    pub fn list(&self, key: &[u8]) -> Result<Option<List<'a>>, Refusal> {
        match self.entry(key).map(|entry| entry.value()) {
            None => Ok(None),
            Some(ValueRef::List(list)) => Ok(Some(list)),
            Some(_) => Err(Refusal::WRONG_TYPE),
        }
    }
}

impl Edit<'_> {
    /// Changes the list under a key, starting from one without items if the key does not exist; if none are left the
    /// key is removed. Counts as a use.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is no list.
    #[inline]
    pub(crate) fn modify_list<R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut ListMut<'_, '_>) -> R,
    ) -> Result<R, Refusal> {
        self.modify(key, Kind::List, |cell| change(&mut ListMut(cell)))
    }
}

#[cfg(test)]
mod tests {
    use stdx::Prng;

    use super::*;
    use crate::Moment;
    use crate::testing::Harness;

    fn list(harness: &Harness) -> Option<List<'_>> {
        harness.keyspace.view(0, Moment::at(harness.now, 0)).list(b"list").unwrap()
    }

    fn check(harness: &Harness, model: &[Vec<u8>]) {
        let Some(list) = list(harness) else { return assert!(model.is_empty()) };
        assert_eq!(list.len(), model.len());
        assert!(list.iter().eq(model.iter().map(Vec::as_slice)), "other items");
        assert!(list.iter_back_from(list.len()).eq(model.iter().rev().map(Vec::as_slice)), "other items backwards");
    }

    fn item(prng: &mut Prng) -> Vec<u8> {
        let len = match prng.below(300) {
            0 => 20_000,
            1..5 => 3_000,
            5..40 => 120 + prng.below(20),
            _ => prng.below(12),
        };
        vec![prng.draw() as u8; len as usize]
    }

    #[test]
    fn it_is_a_vector() {
        for seed in 0..12 {
            let mut prng = Prng::new(seed);
            let (mut harness, mut model) = (Harness::new(), Vec::new());
            for step in 0..3_000 {
                let moment = Moment::at(harness.now, 0);
                let grows = (step / 750) % 2 == 0;
                let index = prng.below(model.len() as u64 + 1) as usize;
                let item = item(&mut prng);
                harness
                    .keyspace
                    .edit(0, moment)
                    .modify_list(b"list", |list| match prng.below(if grows { 10 } else { 6 }) {
                        0 if index < model.len() => {
                            list.set(index, &item);
                            model[index] = item;
                        }
                        1 => assert_eq!(list.pop(End::Left), (!model.is_empty()).then(|| model.remove(0))),
                        2 => assert_eq!(list.pop(End::Right), model.pop()),
                        3 if step % 20 == 0 || !grows => {
                            let end = index + prng.below((model.len() - index) as u64 + 1).min(90) as usize;
                            list.remove_range(index..end);
                            model.drain(index..end);
                        }
                        4 => {
                            let picked: Vec<usize> = (0..model.len()).filter(|_| prng.chance(1, 50)).collect();
                            list.remove_each(&picked);
                            picked.iter().rev().for_each(|&index| _ = model.remove(index));
                        }
                        5 => {
                            list.insert(index, &item);
                            model.insert(index, item);
                        }
                        nth => {
                            let end = if nth % 2 == 0 { End::Left } else { End::Right };
                            list.push(end, &item);
                            model.insert(if end == End::Left { 0 } else { model.len() }, item);
                        }
                    })
                    .unwrap();
                assert_eq!(list(&harness).and_then(|list| list.get(index)), model.get(index).map(Vec::as_slice));
                if step % 100 == 0 {
                    check(&harness, &model);
                }
            }
            check(&harness, &model);
        }
    }

    #[test]
    fn a_queue_that_has_been_drained_holds_no_memory() {
        let mut harness = Harness::new();
        let moment = Moment::at(harness.now, 0);
        // Slots have a place as soon as there is a key.
        harness.run("SET other 1");
        let empty = harness.keyspace.memory_bytes();
        for (from, to) in [(End::Right, End::Left), (End::Left, End::Right), (End::Left, End::Left)] {
            let mut edit = harness.keyspace.edit(0, moment);
            (0..100_000u32)
                .for_each(|number| edit.modify_list(b"list", |list| list.push(from, &number.to_le_bytes())).unwrap());
            let full = harness.keyspace.memory_bytes() - empty;
            assert!(full < 100_000 * 7, "{full} bytes for items of six");
            let mut edit = harness.keyspace.edit(0, moment);
            (0..99_990).for_each(|_| assert!(edit.modify_list(b"list", |list| list.pop(to)).unwrap().is_some()));
            let rest = harness.keyspace.memory_bytes() - empty;
            assert!(rest < 12_000, "{rest} bytes for ten items");
            (0..10).for_each(|_| {
                harness.keyspace.edit(0, moment).modify_list(b"list", |list| list.pop(to)).unwrap();
            });
            while harness.keyspace.collect(moment, 1_000) {}
        }
    }

    #[test]
    fn only_whole_items_in_their_number_are_a_packed_list() {
        let mut bytes = 2u16.to_le_bytes().to_vec();
        for item in [&b"one"[..], &[7; 300]] {
            Framed::new(item).append_to(&mut bytes);
        }
        assert!(is_packed(&bytes) && is_packed(b""));
        assert!((1..bytes.len()).all(|len| !is_packed(&bytes[..len])));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            // A letter of an item is any letter.
            let is_text = (3..6).contains(&at) || (9..309).contains(&at);
            assert_eq!(is_packed(&damaged), is_text, "{at}");
        }
    }
}
