//! Values that have elements: what is common to all of them.
//!
//! A collection begins *packed*: its elements one behind the other in its record, in a [`Form`] that its type defines.
//! When it outgrows the [`Limits`] of that it becomes a [`Collection`]: trees that are shared until one side changes,
//! so that a checkpoint, COPY or a transaction takes hold of ten million elements at no cost. It never goes back.
//!
//! Order is replicated data. Which member SPOP takes depends on where each lies, so elements lie in the same order on
//! every replica, also on one that was restored from a checkpoint; the form, which decides the order, and the limits,
//! which decide the form, are part of the checkpoint and change through the log alone.
//!
//! A new type is: a file here with its forms, an implementation of [`Large`] and methods that read and change it; a
//! variant in [`Kind`], [`Form`], [`Collection`], [`Unfreed`] and [`ValueRef`]; its payload in `rdb`; its commands.

pub(crate) mod hash;
pub(crate) mod json;
pub(crate) mod list;
pub(crate) mod order;
pub(crate) mod packed;
pub(crate) mod set;
pub(crate) mod sketch;
pub(crate) mod sorted_set;
pub(crate) mod stream;
pub(crate) mod vectors;

use std::fmt;
use std::hint::black_box;
use std::ops::Range;

pub use hash::Hash;
pub use json::Tree;
pub use list::{End, List};
pub use set::Set;
pub use sketch::Outline;
pub use sorted_set::SortedSet;
pub use stream::{Id, Stream};
pub use vectors::Space;

use crate::lazy_free::{LazyFree, Position};
use crate::record::{Payload, Record};
use crate::tree;
use crate::value::{CollectionValue, Kept, ValueRef};

/// Most bytes that a collection takes in its record, whatever the limits say: a change moves what lies behind it.
pub(crate) const PACKED_BYTES_MAX: usize = 1 << 20;

/// Collections of up to this many elements are freed, and written to a checkpoint, at once.
pub(crate) const SMALL_LEN_MAX: usize = 1024;

/// Types of collections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Hash,
    Set,
    List,
    SortedSet,
    Stream,
    Json,
    Sketch,
    Vectors,
}

impl Kind {
    /// The form in which the first element is stored; `None` if the type is never packed.
    fn first_form(self) -> Option<Form> {
        match self {
            Self::Hash => Some(Form::Hash),
            Self::Set => Some(Form::Integers),
            Self::List => Some(Form::List),
            Self::SortedSet => Some(Form::SortedSet),
            Self::Stream | Self::Vectors => None,
            Self::Json => Some(Form::Json),
            Self::Sketch => Some(Form::Sketch),
        }
    }
}

/// How the elements of a packed collection lie. The numbers are part of records and checkpoints, and so is what each
/// stands for: another layout is another form. In every form no elements are no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Form {
    /// See [`hash`].
    Hash = 1,
    /// A set of integers alone; see [`set`].
    Integers = 2,
    /// A set of anything; see [`set`].
    Members = 3,
    /// See [`list`].
    List = 4,
    /// See [`sorted_set`].
    SortedSet = 5,
    /// A hash of which fields may have deadlines; see [`hash::expiring`].
    ExpiringHash = 6,
    /// See [`json`].
    Json = 7,
    /// See [`sketch`].
    Sketch = 8,
}

impl Form {
    #[inline]
    pub(crate) fn of(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Hash),
            2 => Some(Self::Integers),
            3 => Some(Self::Members),
            4 => Some(Self::List),
            5 => Some(Self::SortedSet),
            6 => Some(Self::ExpiringHash),
            7 => Some(Self::Json),
            8 => Some(Self::Sketch),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Hash | Self::ExpiringHash => Kind::Hash,
            Self::Integers | Self::Members => Kind::Set,
            Self::List => Kind::List,
            Self::SortedSet => Kind::SortedSet,
            Self::Json => Kind::Json,
            Self::Sketch => Kind::Sketch,
        }
    }

    /// True if these bytes are a collection in this form, so that nothing that reads them can fail.
    fn accepts(self, bytes: &[u8]) -> bool {
        match self {
            Self::Hash => hash::is_packed(bytes),
            Self::Integers => set::is_integers(bytes),
            Self::Members => set::is_packed(bytes),
            Self::List => list::is_packed(bytes),
            Self::SortedSet => sorted_set::is_packed(bytes),
            Self::ExpiringHash => hash::expiring::is_packed(bytes),
            Self::Json => json::is_packed(bytes),
            Self::Sketch => sketch::is_packed(bytes),
        }
    }
}

/// A packed collection, borrowed.
#[inline]
pub(crate) fn packed_ref(form: Form, bytes: &[u8]) -> ValueRef<'_> {
    match form {
        Form::Hash => ValueRef::Hash(Hash::packed(bytes)),
        Form::Integers => ValueRef::Set(Set::integers(bytes)),
        Form::Members => ValueRef::Set(Set::packed(bytes)),
        Form::List => ValueRef::List(List::packed(bytes)),
        Form::SortedSet => ValueRef::SortedSet(SortedSet::packed(bytes)),
        Form::ExpiringHash => ValueRef::Hash(Hash::packed_expiring(bytes)),
        Form::Json => ValueRef::Json(Tree::packed(bytes)),
        Form::Sketch => ValueRef::Sketch(Outline::packed(bytes)),
    }
}

/// A large collection.
#[derive(Clone)]
pub(crate) enum Collection {
    Hash(hash::Pairs),
    /// A hash of which fields may have deadlines.
    ExpiringHash(hash::expiring::Expiring),
    Set(set::Members),
    List(list::Packs),
    SortedSet(sorted_set::Members),
    Stream(Box<Stream>),
    Json(json::Document),
    Sketch(sketch::Cells),
    Vectors(vectors::Vectors),
}

/// What is left of a large collection that is no longer used.
pub(crate) enum Unfreed {
    Hash(tree::Unfreed<Vec<hash::Pair>>),
    ExpiringHash(hash::expiring::Unfreed),
    Set(tree::Unfreed<Vec<set::Member>>),
    List(tree::Unfreed<list::Pack>),
    SortedSet(sorted_set::Unfreed),
    Stream(stream::Unfreed),
    Json(crate::json::Unfreed),
    Sketch(crate::sketch::Unfreed),
    /// Nothing if not even the head of what was read had come.
    Vectors(Option<crate::vector::Unfreed>),
}

/// What every large collection can do.
pub(crate) trait Large: Sized {
    /// Number of elements.
    fn len(&self) -> usize;
    /// True if it must not be kept.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Bytes allocated for it.
    fn bytes(&self) -> usize;
    /// Appends elements from the rank `from` on until `out` reaches the length `end`, at least one if there is one, and
    /// answers the rank behind the last.
    fn write_part(&self, from: usize, out: &mut Vec<u8>, end: usize) -> usize;
    /// Takes in, behind the elements that it has, the next one that [`Large::write_part`] wrote. `None` if it cannot
    /// have been that.
    fn read_one(&mut self, items: &mut packed::Items<'_>) -> Option<()>;
}

/// The same for a collection of any type.
macro_rules! on_each {
    ($collection:expr, $it:ident => $result:expr) => {
        match $collection {
            Collection::Hash($it) => $result,
            Collection::ExpiringHash($it) => $result,
            Collection::Set($it) => $result,
            Collection::List($it) => $result,
            Collection::SortedSet($it) => $result,
            Collection::Stream($it) => $result,
            Collection::Json($it) => $result,
            Collection::Sketch($it) => $result,
            Collection::Vectors($it) => $result,
        }
    };
}

/// An element that is looked up ahead; see [`crate::prefetch`].
pub(crate) enum PrefetchedElement<'a> {
    Hash(order::PrefetchedElement<'a, hash::Pair>),
    Set(order::PrefetchedElement<'a, set::Member>),
}

impl PrefetchedElement<'_> {
    /// Goes down one level. False if there is none.
    #[inline]
    pub(crate) fn step(&mut self) -> bool {
        match self {
            Self::Hash(prefetched_element) => prefetched_element.step(),
            Self::Set(prefetched_element) => prefetched_element.step(),
        }
    }

    /// Reads from the element, and tells nothing of value.
    #[inline]
    pub(crate) fn touch(&self) -> u8 {
        match self {
            Self::Hash(prefetched_element) => prefetched_element.touch(),
            Self::Set(prefetched_element) => prefetched_element.touch(),
        }
    }
}

/// How many elements have their texts fetched side by side when many are read.
const NEAR_COUNT: usize = 16;

/// Writes elements one behind the other with `put`, until `out` has `end` bytes or there are no more. Answers how many.
///
/// Their texts lie scattered in memory, and each would be waited for by itself: so a few are touched before they are
/// needed.
fn write_elements<'a, T: 'a>(
    mut elements: impl Iterator<Item = &'a T>,
    text: impl Fn(&'a T) -> &'a [u8],
    put: impl Fn(&'a T, &mut Vec<u8>),
    out: &mut Vec<u8>,
    end: usize,
) -> usize {
    let mut count = 0;
    loop {
        let near: [Option<&T>; NEAR_COUNT] = std::array::from_fn(|_| elements.next());
        if near[0].is_none() {
            return count;
        }
        for element in near.iter().flatten() {
            black_box(text(element).first().copied());
        }
        for element in near.iter().flatten() {
            put(element, out);
            count += 1;
            if out.len() >= end {
                return count;
            }
        }
    }
}

impl Collection {
    /// Begins to look up a field or a member; `None` where that would gain nothing.
    #[inline]
    pub(crate) fn prefetched_element<'a>(&'a self, element: &'a [u8]) -> Option<PrefetchedElement<'a>> {
        match self {
            Self::Hash(pairs) => order::PrefetchedElement::new(pairs, element).map(PrefetchedElement::Hash),
            Self::ExpiringHash(fields) => {
                order::PrefetchedElement::new(fields.pairs(), element).map(PrefetchedElement::Hash)
            }
            Self::Set(members) => order::PrefetchedElement::new(members, element).map(PrefetchedElement::Set),
            _ => None,
        }
    }

    /// What tells collections apart in checkpoints; see [`Collection::new`].
    fn number(&self) -> u8 {
        match self {
            Self::Hash(_) => 1,
            Self::Set(_) => 2,
            Self::List(_) => 3,
            Self::SortedSet(_) => 4,
            Self::Stream(_) => 5,
            Self::ExpiringHash(_) => 6,
            Self::Json(_) => 7,
            Self::Sketch(_) => 8,
            Self::Vectors(_) => 9,
        }
    }

    /// One without elements. The numbers are part of checkpoints.
    fn new(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Hash(hash::Pairs::new())),
            2 => Some(Self::Set(set::Members::new())),
            3 => Some(Self::List(list::Packs::new())),
            4 => Some(Self::SortedSet(sorted_set::Members::default())),
            5 => Some(Self::Stream(Box::new(Stream::unfinished()))),
            6 => Some(Self::ExpiringHash(hash::expiring::Expiring::default())),
            7 => Some(Self::Json(json::Document::default())),
            8 => Some(Self::Sketch(sketch::Cells::default())),
            9 => Some(Self::Vectors(vectors::Vectors::default())),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Hash(_) | Self::ExpiringHash(_) => Kind::Hash,
            Self::Set(_) => Kind::Set,
            Self::List(_) => Kind::List,
            Self::SortedSet(_) => Kind::SortedSet,
            Self::Stream(_) => Kind::Stream,
            Self::Json(_) => Kind::Json,
            Self::Sketch(_) => Kind::Sketch,
            Self::Vectors(_) => Kind::Vectors,
        }
    }

    pub(crate) fn value(&self) -> ValueRef<'_> {
        match self {
            Self::Hash(pairs) => ValueRef::Hash(Hash::large(pairs)),
            Self::ExpiringHash(fields) => ValueRef::Hash(Hash::expiring(fields)),
            Self::Set(members) => ValueRef::Set(Set::large(members)),
            Self::List(packs) => ValueRef::List(List::large(packs)),
            Self::SortedSet(members) => ValueRef::SortedSet(SortedSet::large(members)),
            Self::Stream(stream) => ValueRef::Stream(stream),
            Self::Json(document) => ValueRef::Json(Tree::large(document)),
            Self::Sketch(cells) => ValueRef::Sketch(Outline::large(cells)),
            Self::Vectors(vectors) => ValueRef::Vectors(Space::new(vectors)),
        }
    }

    pub(crate) fn into_unfreed(self) -> Unfreed {
        match self {
            Self::Hash(pairs) => Unfreed::Hash(pairs.into_unfreed()),
            Self::ExpiringHash(fields) => Unfreed::ExpiringHash(fields.into_unfreed()),
            Self::Set(members) => Unfreed::Set(members.into_unfreed()),
            Self::List(packs) => Unfreed::List(packs.into_unfreed()),
            Self::SortedSet(members) => Unfreed::SortedSet(members.into_unfreed()),
            Self::Stream(stream) => Unfreed::Stream(stream::Unfreed::of(*stream)),
            Self::Json(document) => Unfreed::Json(crate::json::Unfreed::of(document.into_json())),
            Self::Sketch(cells) => Unfreed::Sketch(cells.into_unfreed()),
            Self::Vectors(vectors) => Unfreed::Vectors(vectors.into_unfreed()),
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        on_each!(self, it => Large::len(it))
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        on_each!(self, it => Large::is_empty(it))
    }

    /// Bytes beyond those of the record that it belongs to.
    #[inline]
    pub(crate) fn footprint(&self) -> usize {
        crate::record::allocated_bytes(size_of::<Self>()) + on_each!(self, it => Large::bytes(it))
    }

    /// See [`Large::write_part`].
    pub(crate) fn write_part(&self, from: usize, out: &mut Vec<u8>, end: usize) -> usize {
        on_each!(self, it => it.write_part(from, out, end))
    }

    /// Takes in, behind the elements that it has, up to `count` that [`Collection::write_part`] wrote: all of `items`,
    /// or `None` if that is something else, or if these are the last and the collection is still empty.
    pub(crate) fn read_part(&mut self, part: &[u8], count: usize) -> Option<()> {
        let mut items = packed::Items::new(part);
        let end = self.len() + count;
        while !items.is_done() {
            if self.len() == end {
                return None;
            }
            self.read_one(&mut items)?;
        }
        (self.len() < end || !self.is_empty()).then_some(())
    }

    /// See [`Large::read_one`].
    pub(crate) fn read_one(&mut self, items: &mut packed::Items<'_>) -> Option<()> {
        on_each!(self, it => it.read_one(items))
    }
}

impl fmt::Debug for Collection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value().fmt(formatter)
    }
}

/// What a record holds when its collection has been taken out.
impl Default for Collection {
    fn default() -> Self {
        Self::Set(set::Members::new())
    }
}

impl Unfreed {
    /// Bytes that are not free yet.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Hash(unfreed) => unfreed.bytes(),
            Self::ExpiringHash(unfreed) => unfreed.bytes(),
            Self::Set(unfreed) => unfreed.bytes(),
            Self::List(unfreed) => unfreed.bytes(),
            Self::SortedSet(unfreed) => unfreed.bytes(),
            Self::Stream(unfreed) => unfreed.bytes(),
            Self::Json(unfreed) => unfreed.bytes(),
            Self::Sketch(unfreed) => unfreed.bytes(),
            Self::Vectors(unfreed) => unfreed.as_ref().map_or(0, crate::vector::Unfreed::bytes),
        }
    }

    /// Frees up to about `budget` elements, and counts them down. True if something is left.
    pub(crate) fn free(&mut self, budget: &mut usize) -> bool {
        match self {
            Self::Hash(unfreed) => unfreed.free(budget),
            Self::ExpiringHash(unfreed) => unfreed.free(budget),
            Self::Set(unfreed) => unfreed.free(budget),
            Self::List(unfreed) => unfreed.free(budget),
            Self::SortedSet(unfreed) => unfreed.free(budget),
            Self::Stream(unfreed) => unfreed.free(budget),
            Self::Json(unfreed) => unfreed.free(budget),
            Self::Sketch(unfreed) => unfreed.free(budget),
            Self::Vectors(unfreed) => unfreed.as_mut().is_some_and(|unfreed| unfreed.free(budget)),
        }
    }
}

/// Settings that decide what commands do to the data, and therefore are replicated data themselves: when collections,
/// and strings that are sketches, change their form (Redis 7.0's defaults), and whether keys expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most fields of a packed hash (`hash-max-listpack-entries`).
    pub hash_entries: u64,
    /// Longest field or value of one, in bytes (`hash-max-listpack-value`).
    pub hash_value_bytes: u64,
    /// Most members of a set of integers (`set-max-intset-entries`).
    pub set_integers: u64,
    /// Most members of a packed sorted set (`zset-max-listpack-entries`).
    pub sorted_set_entries: u64,
    /// Longest member of one, in bytes (`zset-max-listpack-value`).
    pub sorted_set_value_bytes: u64,
    /// Bytes of a stream's block at which the next one begins (`stream-node-max-bytes`); 0 is no limit.
    pub stream_block_bytes: u64,
    /// Most entries of one (`stream-node-max-entries`); 0 is no limit.
    pub stream_block_entries: u64,
    /// Longest sparse HyperLogLog, in bytes (`hll-sparse-max-bytes`).
    pub sparse_sketch_bytes: u64,
    /// Most members of a set that is called a listpack (`set-max-listpack-entries`); like the next two it decides no
    /// more than this name, and is what follows unless the group is at level 2.
    pub set_listpack_entries: u64,
    /// Longest member of one, in bytes (`set-max-listpack-value`).
    pub set_listpack_value_bytes: u64,
    /// How large a list may be that is called a listpack (`list-max-listpack-size`).
    pub list_listpack_size: i64,
    /// No key and no field ceases to exist by its deadline (`import-mode`): what is imported expires when its source
    /// says so, since the source may still have changed it in time.
    pub keeps_expired: bool,
}

impl Limits {
    /// Appends them, as an entry of the log holds them: each a number with seven bits a byte, the lowest first. That
    /// nothing expires is a ninth number, 1, which is left out otherwise: what older versions wrote has eight. What is
    /// called a listpack are three more behind a ninth, unless that is as usual.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.write_forms(out);
        let is_usual = self.has_usual_names();
        if self.keeps_expired || !is_usual {
            packed::put_number(out, self.keeps_expired.into());
        }
        if !is_usual {
            self.write_names(out);
        }
    }

    /// The same, with what is called a listpack as it is unless somebody says otherwise.
    #[must_use]
    pub fn with_usual_names(self) -> Self {
        let Self { set_listpack_entries, set_listpack_value_bytes, list_listpack_size, .. } = Self::default();
        Self { set_listpack_entries, set_listpack_value_bytes, list_listpack_size, ..self }
    }

    pub(crate) fn has_usual_names(&self) -> bool {
        *self == self.with_usual_names()
    }

    /// Appends what is called a listpack.
    pub(crate) fn write_names(&self, out: &mut Vec<u8>) {
        let size = self.list_listpack_size.cast_unsigned();
        for number in [self.set_listpack_entries, self.set_listpack_value_bytes, size] {
            packed::put_number(out, number);
        }
    }

    /// Reads what [`Limits::write_names`] wrote.
    pub(crate) fn read_names(&mut self, items: &mut packed::Items<'_>) -> Option<()> {
        self.set_listpack_entries = items.number()?;
        self.set_listpack_value_bytes = items.number()?;
        self.list_listpack_size = items.number()?.cast_signed();
        Some(())
    }

    /// Appends when collections change their form, as a checkpoint holds it: the first eight numbers of
    /// [`Limits::write`].
    pub(crate) fn write_forms(&self, out: &mut Vec<u8>) {
        let Self {
            hash_entries,
            hash_value_bytes,
            set_integers,
            sorted_set_entries,
            sorted_set_value_bytes,
            stream_block_bytes,
            stream_block_entries,
            sparse_sketch_bytes,
            set_listpack_entries: _,
            set_listpack_value_bytes: _,
            list_listpack_size: _,
            keeps_expired: _,
        } = *self;
        for number in [
            hash_entries,
            hash_value_bytes,
            set_integers,
            sorted_set_entries,
            sorted_set_value_bytes,
            stream_block_bytes,
            stream_block_entries,
            sparse_sketch_bytes,
        ] {
            packed::put_number(out, number);
        }
    }

    /// Reads what [`Limits::write`] wrote; `None` if it is something else.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let mut items = packed::Items::new(bytes);
        let mut limits = Self::read_from(&mut items)?;
        limits.keeps_expired = !items.is_done() && items.number()? == 1;
        if !items.is_done() {
            limits.read_names(&mut items)?;
        }
        items.is_done().then_some(limits)
    }

    /// Reads what [`Limits::write_forms`] wrote.
    pub(crate) fn read_from(items: &mut packed::Items<'_>) -> Option<Self> {
        Some(Self {
            hash_entries: items.number()?,
            hash_value_bytes: items.number()?,
            set_integers: items.number()?,
            sorted_set_entries: items.number()?,
            sorted_set_value_bytes: items.number()?,
            stream_block_bytes: items.number()?,
            stream_block_entries: items.number()?,
            sparse_sketch_bytes: items.number()?,
            ..Self::default()
        })
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            hash_entries: 512,
            hash_value_bytes: 64,
            set_integers: 512,
            sorted_set_entries: 128,
            sorted_set_value_bytes: 64,
            stream_block_bytes: 4096,
            stream_block_entries: 100,
            sparse_sketch_bytes: 3000,
            set_listpack_entries: 128,
            set_listpack_value_bytes: 64,
            list_listpack_size: -2,
            keeps_expired: false,
        }
    }
}

/// A collection that is being changed: one that a record keeps, or one in the making, which is stored when it has got
/// elements. A change that finds something as it should be leaves it alone; then nothing has changed.
pub(crate) struct Cell<'a> {
    home: Home<'a>,
    limits: &'a Limits,
}

enum Home<'a> {
    Kept { record: &'a mut Record, lazy_free: &'a mut LazyFree, position: Position, version: u64, is_changed: bool },
    Fresh { form: Form, bytes: &'a mut Vec<u8>, large: Option<Box<Collection>> },
}

/// How a collection is kept.
pub(crate) enum Shape<'a> {
    Packed(Form, &'a [u8]),
    Large(&'a Collection),
}

impl<'a> Cell<'a> {
    /// The collection of a record; a first change gives it this version.
    pub(crate) fn kept(
        record: &'a mut Record,
        lazy_free: &'a mut LazyFree,
        position: Position,
        version: u64,
        limits: &'a Limits,
    ) -> Self {
        Self { home: Home::Kept { record, lazy_free, position, version, is_changed: false }, limits }
    }

    /// One without elements. `bytes`, empty, is where they will lie while it is packed.
    pub(crate) fn fresh(kind: Kind, bytes: &'a mut Vec<u8>, limits: &'a Limits) -> Self {
        let (form, large) = match kind.first_form() {
            Some(form) => (form, None),
            // What has no form has no use for one either.
            None if kind == Kind::Stream => (Form::Hash, Some(Box::new(Collection::Stream(Box::new(Stream::new()))))),
            None => (Form::Hash, Some(Box::new(Collection::Vectors(vectors::Vectors::default())))),
        };
        Self { home: Home::Fresh { form, bytes, large }, limits }
    }

    #[inline]
    pub(crate) fn shape(&self) -> Shape<'_> {
        match &self.home {
            Home::Kept { record, .. } => match (record.packed(), record.collection()) {
                (Some((form, bytes)), _) => Shape::Packed(form, bytes),
                (None, Some(collection)) => Shape::Large(collection),
                (None, None) => unreachable!("only collections are changed in cells"),
            },
            Home::Fresh { large: Some(collection), .. } => Shape::Large(collection),
            Home::Fresh { form, bytes, .. } => Shape::Packed(*form, bytes),
        }
    }

    #[inline]
    pub(crate) fn limits(&self) -> &'a Limits {
        self.limits
    }

    /// True if it has been changed.
    pub(crate) fn is_changed(&self) -> bool {
        match &self.home {
            Home::Kept { is_changed, .. } => *is_changed,
            Home::Fresh { .. } => true,
        }
    }

    fn note_change(&mut self) {
        if let Home::Kept { record, lazy_free, position, version, is_changed } = &mut self.home
            && !*is_changed
        {
            lazy_free.before_change(*position, record);
            record.set_version(*version);
            *is_changed = true;
        }
    }

    /// Puts `parts`, one behind the other, in the place of a range of the packed elements.
    pub(crate) fn splice(&mut self, range: Range<usize>, parts: &[&[u8]]) {
        self.note_change();
        match &mut self.home {
            Home::Kept { record, .. } => record.splice(range, parts),
            Home::Fresh { bytes, .. } if range.start == bytes.len() => {
                parts.iter().for_each(|part| bytes.extend_from_slice(part));
            }
            Home::Fresh { bytes, .. } => drop(bytes.splice(range, parts.concat())),
        }
    }

    /// The elements, for change, if they are no longer packed.
    pub(crate) fn large_mut(&mut self) -> Option<&mut Collection> {
        if let Shape::Packed(..) = self.shape() {
            return None;
        }
        self.note_change();
        match &mut self.home {
            Home::Kept { record, .. } => record.collection_mut(),
            Home::Fresh { large, .. } => large.as_deref_mut(),
        }
    }

    /// Keeps other elements, packed.
    pub(crate) fn repack(&mut self, new_form: Form, packed: &[u8]) {
        self.note_change();
        match &mut self.home {
            Home::Kept { record, .. } => record.replace_value(Payload::Packed { form: new_form, bytes: packed }),
            Home::Fresh { form, bytes, .. } => {
                *form = new_form;
                bytes.clear();
                bytes.extend_from_slice(packed);
            }
        }
    }

    /// Keeps other elements, no longer packed.
    pub(crate) fn grow_into(&mut self, collection: Collection) {
        self.note_change();
        let collection = Box::new(collection);
        match &mut self.home {
            Home::Kept { record, .. } => record.replace_value(Payload::Collection(collection)),
            Home::Fresh { large, .. } => *large = Some(collection),
        }
    }

    /// Takes a part of a large collection that has been cut out.
    pub(crate) fn free_later(&mut self, part: Collection) {
        if let Home::Kept { lazy_free, .. } = &mut self.home {
            lazy_free.free_collection_later(part);
        }
    }

    /// What there is to store of a collection in the making; `None` if it has no elements.
    pub(crate) fn into_payload(self) -> Option<Payload<'a>> {
        match self.home {
            Home::Kept { .. } => None,
            Home::Fresh { large: Some(collection), .. } => {
                (!collection.is_empty()).then_some(Payload::Collection(collection))
            }
            Home::Fresh { form, bytes, .. } => (!bytes.is_empty()).then_some(Payload::Packed { form, bytes }),
        }
    }
}

// Values exactly as they are kept, for checkpoints, and for the operands and results of transactions over groups.
//
//   packed = form u8, length varint, bytes
//   large  = 0x80 | number u8, number of elements varint, elements
//
// In both, the elements of hashes and sets are items as `packed` writes them. Behind each field of a large hash with
// deadlines its deadline follows, in milliseconds since the epoch, as a varint; 0 is none. The elements of a document
// are its values, as `json::codec` writes them; those of a sketch its head and its pages, as `sketch` writes them;
// those of a vector set its head and its elements with their links, as `vector::codec` writes them.

/// Marks a collection that is not packed.
const IS_LARGE: u8 = 0x80;

/// Appends what announces a large collection; its elements, from [`Collection::write_part`], follow.
pub(crate) fn write_large_head(out: &mut Vec<u8>, collection: &Collection) {
    out.push(IS_LARGE | collection.number());
    packed::put_number(out, collection.len() as u64);
}

/// Reads what [`write_large_head`] wrote: a collection without elements, and how many it will have.
pub(crate) fn read_large_head(tag: u8, count: u64) -> Option<(Collection, usize)> {
    let collection = Collection::new(tag.checked_sub(IS_LARGE)?)?;
    Some((collection, usize::try_from(count).ok().filter(|&count| count > 0)?))
}

/// Appends a collection exactly as it is kept.
pub(crate) fn write_exact(out: &mut Vec<u8>, record: &Record) {
    if let Some((form, bytes)) = record.packed() {
        out.push(form as u8);
        packed::put(out, bytes);
    } else if let Some(collection) = record.collection() {
        write_large_head(out, collection);
        collection.write_part(0, out, usize::MAX);
    }
}

/// Reads what [`write_exact`] wrote, from the beginning of `items`.
pub(crate) fn read_exact(items: &mut packed::Items<'_>) -> Option<CollectionValue> {
    let tag = items.byte()?;
    if let Some(form) = Form::of(tag) {
        let bytes = items.next().filter(|bytes| !bytes.is_empty() && form.accepts(bytes))?;
        return Some(CollectionValue(Kept::Packed(form, bytes.to_vec())));
    }
    let (mut collection, count) = read_large_head(tag, items.number()?)?;
    while collection.len() < count {
        collection.read_one(items)?;
    }
    // It has as many elements as were announced, but is not whole: there are more.
    if collection.is_empty() {
        return None;
    }
    Some(CollectionValue(Kept::Large(Box::new(collection))))
}

/// Reads the head of what [`write_exact`] wrote of a large collection: one without elements, and how many it is to
/// have. `None`, and nothing read, if it is a packed one.
pub(crate) fn read_exact_head(items: &mut packed::Items<'_>) -> Option<(Collection, usize)> {
    let tag = items.byte()?;
    read_large_head(tag, items.number()?)
}
