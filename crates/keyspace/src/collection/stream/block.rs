//! A run of entries, packed as Redis packs them, so that a dump needs no translation and trimming by whole blocks
//! removes what it would remove there.
//!
//! ```text
//! number of fields │ field … │ 0                                      fields that most entries are expected to have
//! flags │ ms │ seq │ value … │ elements of the entry                  an entry that has these fields
//! flags │ ms │ seq │ number of fields │ field │ value │ … │ elements of the entry     one with others
//! ```
//!
//! Every part is an element of a [`listpack`]; `ms` and `seq` are differences to the id of the block's first entry. An
//! entry that is deleted stays where it is, marked: the block's size, which decides when the next one begins, does not
//! shrink.

use std::sync::Arc;

use super::id::Id;
use crate::collection::{Limits, packed};
use crate::rdb::listpack;
use crate::record::allocated_bytes;
use crate::tree::Element;
use crate::value::Str;

const IS_DELETED: u8 = 1;
const HAS_COMMON_FIELDS: u8 = 2;

/// Largest block, and largest sum of an entry's fields and values, in bytes.
pub(crate) const BLOCK_BYTES_MAX: u64 = 1 << 30;

/// See above. Changing one that is shared copies it.
#[derive(Clone)]
pub(crate) struct Block {
    /// Of the first entry that it ever had.
    first: Id,
    /// Entries.
    live: u32,
    /// Those that are marked as deleted.
    dead: u32,
    elements: Arc<Vec<u8>>,
}

impl Element for Block {
    type Key = Id;

    #[inline]
    fn key(&self) -> Id {
        self.first
    }

    #[inline]
    fn heap_bytes(&self) -> usize {
        /// Of an `Arc` and the vector in it.
        const HEAD_BYTES: usize = 2 * size_of::<usize>() + size_of::<Vec<u8>>();
        allocated_bytes(HEAD_BYTES) + allocated_bytes(self.elements.capacity())
    }
}

impl Block {
    /// A block that begins with this entry. `words` are fields and values in turn.
    pub(crate) fn new<'w>(id: Id, words: impl ExactSizeIterator<Item = &'w [u8]> + Clone) -> Self {
        let mut elements = Vec::new();
        listpack::put_integer(&mut elements, (words.len() / 2) as i64);
        words.clone().step_by(2).for_each(|field| listpack::put(&mut elements, field));
        listpack::put_integer(&mut elements, 0);
        let mut block = Self { first: id, live: 0, dead: 0, elements: Arc::new(elements) };
        block.push(id, words);
        block
    }

    pub(crate) fn first(&self) -> Id {
        self.first
    }

    /// Number of entries.
    pub(crate) fn live(&self) -> u64 {
        self.live.into()
    }

    /// True if an entry of so many bytes must begin another block.
    pub(crate) fn is_full(&self, entry_bytes: u64, limits: &Limits) -> bool {
        let bytes_max = match limits.stream_block_bytes {
            0 => BLOCK_BYTES_MAX,
            bytes => bytes.min(BLOCK_BYTES_MAX),
        };
        let count = u64::from(self.live) + u64::from(self.dead);
        let is_long = limits.stream_block_entries > 0 && count >= limits.stream_block_entries;
        is_long || self.packed_bytes() as u64 + entry_bytes >= bytes_max
    }

    /// Bytes of the whole listpack.
    fn packed_bytes(&self) -> usize {
        let counts = listpack::integer_bytes(self.live.into()) + listpack::integer_bytes(self.dead.into());
        listpack::FRAME_BYTES + counts + self.elements.len()
    }

    /// Adds an entry behind all others.
    pub(crate) fn push<'w>(&mut self, id: Id, words: impl ExactSizeIterator<Item = &'w [u8]> + Clone) {
        let elements = Arc::make_mut(&mut self.elements);
        let field_count = words.len() / 2;
        let has_common = {
            let mut rest = &elements[..];
            let common = take_number(&mut rest);
            common == field_count as u64
                && words.clone().step_by(2).all(|field| listpack::take_if_equal(&mut rest, field))
        };
        let (ms, seq) = (id.ms.wrapping_sub(self.first.ms) as i64, id.seq.wrapping_sub(self.first.seq) as i64);
        listpack::put_integer(elements, if has_common { HAS_COMMON_FIELDS.into() } else { 0 });
        listpack::put_integer(elements, ms);
        listpack::put_integer(elements, seq);
        let count = if has_common {
            words.skip(1).step_by(2).for_each(|value| listpack::put(elements, value));
            3 + field_count
        } else {
            listpack::put_integer(elements, field_count as i64);
            words.for_each(|word| listpack::put(elements, word));
            4 + 2 * field_count
        };
        listpack::put_integer(elements, count as i64);
        self.live += 1;
    }

    /// Gives back room that was kept for more entries.
    pub(crate) fn close(&mut self) {
        if self.elements.capacity() > self.elements.len() + self.elements.len() / 16 {
            Arc::make_mut(&mut self.elements).shrink_to_fit();
        }
    }

    /// Marks the entry at `place` as deleted. It must not have been.
    pub(crate) fn delete(&mut self, place: usize) {
        let elements = Arc::make_mut(&mut self.elements);
        assert_eq!(elements[place] & !HAS_COMMON_FIELDS, 0, "the flags of a live entry");
        elements[place] |= IS_DELETED;
        self.live -= 1;
        self.dead += 1;
    }

    /// All entries in order, those that are marked as deleted included.
    pub(crate) fn entries(&self) -> Entries<'_> {
        let elements = self.elements.as_slice();
        let mut rest = elements;
        let common_count = take_number(&mut rest) as usize;
        let common = rest;
        (0..=common_count).for_each(|_| listpack::skip(&mut rest));
        Entries { first: self.first, elements, common_count, common, rest }
    }

    /// The id of the last entry that is not deleted. One that is may have a greater id: up to
    /// level 1, XSETID lets ids start over below what is deleted.
    pub(crate) fn last(&self) -> Id {
        self.entries().filter(|entry| !entry.is_deleted).last().map_or(self.first, |entry| entry.id)
    }

    /// Two blocks hold the same if their bytes are the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.first, self.live, self.dead) == (other.first, other.live, other.dead) && self.elements == other.elements
    }

    /// Appends the block exactly as it is, as the last part of something.
    pub(crate) fn write_exact(&self, out: &mut Vec<u8>) {
        for number in [self.first.ms, self.first.seq, self.live.into(), self.dead.into()] {
            packed::put_number(out, number);
        }
        out.extend_from_slice(&self.elements);
    }

    /// Reads what [`Block::write_exact`] wrote.
    pub(crate) fn read_exact(items: &mut packed::Items<'_>) -> Option<Self> {
        let first = Id { ms: items.number()?, seq: items.number()? };
        let (live, dead) = (i64::try_from(items.number()?).ok()?, i64::try_from(items.number()?).ok()?);
        let elements = listpack::read_elements(items.take(items.rest().len())?)?;
        Self::from_elements(first, (live, dead), &elements)
    }

    /// The listpack.
    pub(crate) fn to_listpack(&self) -> Vec<u8> {
        let mut head = Vec::new();
        listpack::put_integer(&mut head, self.live.into());
        listpack::put_integer(&mut head, self.dead.into());
        listpack::frame(&[&head, &self.elements])
    }

    /// The block that this listpack encodes. `None` if it is no block, or has nothing in it.
    pub(crate) fn from_listpack(first: Id, bytes: &[u8]) -> Option<Self> {
        let elements = listpack::read(bytes)?;
        let [live, dead, elements @ ..] = &elements[..] else { return None };
        Self::from_elements(first, (number(*live)?, number(*dead)?), elements)
    }

    fn from_elements(first: Id, (live, dead): (i64, i64), elements: &[Str<'_>]) -> Option<Self> {
        let mut rest = elements.iter().copied();
        let mut out = Vec::new();
        let common_count = usize::try_from(number(rest.next()?)?).ok().filter(|&count| count <= elements.len())?;
        listpack::put_integer(&mut out, common_count as i64);
        for _ in 0..common_count {
            put_text(&mut out, rest.next()?);
        }
        if number(rest.next()?)? != 0 {
            return None;
        }
        listpack::put_integer(&mut out, 0);
        let (mut found_live, mut found_dead, mut before) = (0u32, 0u32, None);
        while let Some(flags) = rest.next() {
            let flags = u8::try_from(number(flags)?).ok().filter(|flags| *flags <= IS_DELETED | HAS_COMMON_FIELDS)?;
            let (ms, seq) = (number(rest.next()?)?, number(rest.next()?)?);
            let id = Id { ms: first.ms.wrapping_add(ms as u64), seq: first.seq.wrapping_add(seq as u64) };
            // Up to level 1 ids could start over below what is deleted. What is there rises.
            if id < first || before.is_some_and(|before| id <= before) {
                return None;
            }
            if flags & IS_DELETED == 0 {
                before = Some(id);
            }
            [flags.into(), ms, seq].into_iter().for_each(|part| listpack::put_integer(&mut out, part));
            let (words, fixed) = if flags & HAS_COMMON_FIELDS == 0 {
                let count = usize::try_from(number(rest.next()?)?).ok().filter(|&count| count <= elements.len())?;
                listpack::put_integer(&mut out, count as i64);
                (2 * count, 4)
            } else {
                (common_count, 3)
            };
            for _ in 0..words {
                put_text(&mut out, rest.next()?);
            }
            if usize::try_from(number(rest.next()?)?) != Ok(fixed + words) {
                return None;
            }
            listpack::put_integer(&mut out, (fixed + words) as i64);
            *(if flags & IS_DELETED == 0 { &mut found_live } else { &mut found_dead }) += 1;
        }
        out.shrink_to_fit();
        let is_right = i64::from(found_live) == live && i64::from(found_dead) == dead && live + dead > 0;
        is_right.then_some(Self { first, live: found_live, dead: found_dead, elements: Arc::new(out) })
    }
}

/// A number that was written as one.
fn take_number(rest: &mut &[u8]) -> u64 {
    match listpack::take(rest) {
        Str::Integer(number) => number as u64,
        Str::Bytes(_) => unreachable!("blocks are checked when they are read"),
    }
}

/// A number from a listpack that was not written here.
fn number(element: Str<'_>) -> Option<i64> {
    match element {
        Str::Integer(number) => Some(number),
        Str::Bytes(text) => crate::value::canonical_integer(text),
    }
}

fn put_text(out: &mut Vec<u8>, element: Str<'_>) {
    match element {
        Str::Integer(number) => listpack::put_integer(out, number),
        Str::Bytes(text) => listpack::put(out, text),
    }
}

/// The entries of a block; see [`Block::entries`].
#[derive(Clone)]
pub(crate) struct Entries<'a> {
    first: Id,
    elements: &'a [u8],
    common_count: usize,
    common: &'a [u8],
    rest: &'a [u8],
}

/// One entry.
#[derive(Clone)]
pub(crate) struct Entry<'a> {
    pub(crate) id: Id,
    pub(crate) is_deleted: bool,
    /// Where it lies in its block; see [`Block::delete`].
    pub(crate) place: usize,
    field_count: usize,
    /// Where the fields are, if not between the values.
    fields: Option<&'a [u8]>,
    values: &'a [u8],
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let place = self.elements.len() - self.rest.len();
        let flags = take_number(&mut self.rest) as u8;
        let ms = self.first.ms.wrapping_add(take_number(&mut self.rest));
        let seq = self.first.seq.wrapping_add(take_number(&mut self.rest));
        let has_common = flags & HAS_COMMON_FIELDS != 0;
        let (field_count, word_count) = if has_common {
            (self.common_count, self.common_count)
        } else {
            let count = take_number(&mut self.rest) as usize;
            (count, 2 * count)
        };
        let values = self.rest;
        // What follows the words says how many elements the entry has; nothing here reads backwards.
        (0..=word_count).for_each(|_| listpack::skip(&mut self.rest));
        Some(Entry {
            id: Id { ms, seq },
            is_deleted: flags & IS_DELETED != 0,
            place,
            field_count,
            fields: has_common.then_some(self.common),
            values,
        })
    }
}

impl<'a> Entry<'a> {
    /// Number of fields.
    pub(crate) fn len(&self) -> usize {
        self.field_count
    }

    /// Fields and values.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (Str<'a>, Str<'a>)> + use<'a> {
        let (mut fields, mut values) = (self.fields, self.values);
        (0..self.field_count).map(move |_| {
            let field = match &mut fields {
                Some(fields) => listpack::take(fields),
                None => listpack::take(&mut values),
            };
            (field, listpack::take(&mut values))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(seq: u64) -> Id {
        Id { ms: 1_000, seq }
    }

    fn words(text: &str) -> Vec<&[u8]> {
        text.split(' ').map(str::as_bytes).collect()
    }

    fn texts(block: &Block) -> Vec<String> {
        let text = |word: Str<'_>| String::from_utf8_lossy(&word.to_vec()).into_owned();
        let line = |entry: Entry<'_>| {
            let pairs: Vec<_> =
                entry.pairs().map(|(field, value)| format!("{} {}", text(field), text(value))).collect();
            format!("{}{} {}", if entry.is_deleted { "-" } else { "" }, entry.id.seq, pairs.join(" "))
        };
        block.entries().map(line).collect()
    }

    #[test]
    fn entries_come_back_whatever_their_fields() {
        let mut block = Block::new(id(1), words("a 1 b text").into_iter());
        for (seq, line) in [(2, "a 2 b more"), (3, "a 3"), (5, "b 4 a 5"), (9, "7 8 9 70000")] {
            block.push(id(seq), words(line).into_iter());
        }
        let place = block.entries().nth(2).unwrap().place;
        block.delete(place);
        let expected = ["1 a 1 b text", "2 a 2 b more", "-3 a 3", "5 b 4 a 5", "9 7 8 9 70000"];
        assert_eq!(texts(&block), expected);
        assert_eq!((block.live, block.dead, block.last()), (4, 1, id(9)));
        let bytes = block.to_listpack();
        assert_eq!(bytes.len(), block.packed_bytes());
        let again = Block::from_listpack(id(1), &bytes).unwrap();
        assert!(again.is_same(&block));
        assert!((0..bytes.len()).all(|len| Block::from_listpack(id(1), &bytes[..len]).is_none()));
    }

    #[test]
    fn no_listpack_makes_the_reader_panic() {
        let mut block = Block::new(id(1), words("a 1 b text").into_iter());
        block.push(id(2), words("c 2").into_iter());
        block.push(id(3), words("a 300 b x").into_iter());
        let golden = block.to_listpack();
        let mut prng = stdx::Prng::new(3);
        let mut accepted = 0;
        for _ in 0..20_000 {
            let mut bytes = golden.clone();
            for _ in 0..=prng.below(2) {
                let at = prng.below(bytes.len() as u64) as usize;
                bytes[at] = prng.draw() as u8;
            }
            if let Some(block) = Block::from_listpack(id(1), &bytes) {
                accepted += 1;
                assert_eq!(texts(&block).len() as u64, u64::from(block.live + block.dead));
            }
        }
        assert!((1..20_000).contains(&accepted), "{accepted}");
    }
}
