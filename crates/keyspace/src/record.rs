//! One key in memory: one heap block holding everything about it, behind one pointer.
//!
//! Redis keeps a key in a dictionary entry, a string header, an object header and, with an expiry, a second dictionary
//! entry. Here it is
//!
//! ```text
//!  0            6       7          10           12          16
//! ┌────────────┬───────┬──────────┬────────────┬───────────┬──────────┬─────────────────┬──────────────┬─────┬───────┐
//! │ version 48 │ flags │ clock 24 │ key length │ value len │ deadline │ integer | large │ key length 32│ key │ value │
//! └────────────┴───────┴──────────┴────────────┴───────────┴──────────┴─────────────────┴──────────────┴─────┴───────┘
//!   always                                                   if set     if that kind       if key ≥ 64 KiB      if
//!   inline
//! ```
//!
//! so a 16-byte key with a 32-byte value takes 64 bytes, one of the allocator's own sizes, and a lookup touches one or
//! two cache lines of it. Strings longer than [`INLINE_BYTES_MAX`] lie outside, shared by reference count, so that a
//! checkpoint can hold on to an old value without copying it.
//!
//! A small collection lies inline like a short string, packed, behind a byte that tells its [`Form`]; it grows and
//! shrinks where it lies, as far as the allocator lets it. A large one is a [`Collection`] outside.
#![expect(
    unsafe_code,
    reason = "a block of variable size and layout, reached through a thin pointer, cannot be spelled in safe Rust"
)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error, realloc};
use std::mem::size_of;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::collection::hash::expiring::{self, NEVER};
use crate::collection::{self, Collection, Form, Hash, Kind};
use crate::value::{CollectionValue, Kept, Str, StringValue, Text, Value, ValueRef, canonical_integer};

/// Longest string kept inside its record, in bytes.
pub(crate) const INLINE_BYTES_MAX: usize = 4096;

/// Longest string that Redis calls `embstr`, in bytes.
const EMBEDDED_BYTES_MAX: usize = 44;

/// What the processors we know of fetch at a time, in bytes.
const CACHE_LINE_BYTES: usize = 64;

/// As much of a record is fetched ahead; the rest of a larger one the processor's own foresight brings.
const TOUCHED_BYTES_MAX: usize = 4 * CACHE_LINE_BYTES;

/// Versions are below this.
pub(crate) const VERSION_END: u64 = 1 << 48;

#[repr(C, align(8))]
struct Header {
    version_low: u32,
    version_high: u16,
    flags: u8,
    clock_high: u8,
    clock_low: u16,
    key_len: u16,
    value_len: u32,
}

const _: () = assert!(size_of::<Header>() == 16);

/// What lies behind the header; the low three bits of the flags.
const KIND_MASK: u8 = 0b111;
const KIND_INLINE: u8 = 0;
const KIND_INTEGER: u8 = 1;
const KIND_LARGE: u8 = 2;
const KIND_PACKED: u8 = 3;
const KIND_COLLECTION: u8 = 4;
/// The string was changed in place, so Redis would call its encoding `raw`.
const RAW: u8 = 1 << 3;
/// There is a deadline.
const DEADLINE: u8 = 1 << 4;
/// The key's length did not fit the header.
const LONG_KEY: u8 = 1 << 5;
/// The value is a hash of which fields may have deadlines.
const EXPIRING_FIELDS: u8 = 1 << 6;
/// What the flags say of the value beside its kind.
const VALUE_MARKS: u8 = RAW | EXPIRING_FIELDS;

/// A value about to be stored.
pub(crate) enum Payload<'a> {
    Integer(i64),
    Inline {
        bytes: &'a [u8],
        raw: bool,
    },
    Large(Arc<Vec<u8>>),
    /// A small collection.
    Packed {
        form: Form,
        bytes: &'a [u8],
    },
    /// A large one.
    Collection(Box<Collection>),
}

impl<'a> Payload<'a> {
    /// `bytes`, as a number if they are one.
    #[inline]
    pub(crate) fn encode(bytes: &'a [u8]) -> Self {
        match canonical_integer(bytes) {
            Some(number) => Self::Integer(number),
            None => Self::plain(bytes, false),
        }
    }

    /// `bytes`, whatever they mean.
    #[inline]
    pub(crate) fn plain(bytes: &'a [u8], raw: bool) -> Self {
        if bytes.len() <= INLINE_BYTES_MAX {
            Self::Inline { bytes, raw }
        } else {
            Self::Large(Arc::new(bytes.to_vec()))
        }
    }

    /// A value, which is shared or copied.
    pub(crate) fn of(value: &'a Value) -> Self {
        match value {
            Value::String(StringValue(Text::Integer(number))) => Self::Integer(*number),
            Value::String(StringValue(Text::Bytes { bytes, raw })) => Self::plain(bytes, *raw),
            Value::String(StringValue(Text::Shared(bytes))) => Self::Large(Arc::clone(bytes)),
            Value::Collection(CollectionValue(Kept::Packed(form, bytes))) => Self::Packed { form: *form, bytes },
            Value::Collection(CollectionValue(Kept::Large(collection))) => Self::Collection(collection.clone()),
        }
    }

    fn flags(&self) -> u8 {
        match self {
            Self::Integer(_) => KIND_INTEGER,
            Self::Inline { raw: false, .. } => KIND_INLINE,
            Self::Inline { raw: true, .. } => KIND_INLINE | RAW,
            Self::Large(_) => KIND_LARGE,
            Self::Packed { form: Form::ExpiringHash, .. } => KIND_PACKED | EXPIRING_FIELDS,
            Self::Packed { .. } => KIND_PACKED,
            Self::Collection(collection) => match **collection {
                Collection::ExpiringHash(_) => KIND_COLLECTION | EXPIRING_FIELDS,
                _ => KIND_COLLECTION,
            },
        }
    }

    fn inline_len(&self) -> usize {
        match self {
            Self::Inline { bytes, .. } => bytes.len(),
            Self::Packed { bytes, .. } => 1 + bytes.len(),
            _ => 0,
        }
    }
}

/// The owner of one block.
///
/// Invariants: the pointer comes from `allocate` and is valid for `block_len` bytes; the flags, `key_len` and
/// `value_len` describe what was written there and change only together with it.
pub(crate) struct Record(NonNull<Header>);

// SAFETY: a record owns its block alone, and what it may share (a large value) is of a `Send + Sync` type. It is not
// `Sync`: `set_clock` writes through a shared reference.
unsafe impl Send for Record {}

const _: () = {
    const fn is_shareable<T: Send + Sync>() {}
    is_shareable::<Arc<Vec<u8>>>();
    is_shareable::<Box<Collection>>();
};

impl Record {
    pub(crate) fn new(key: &[u8], payload: Payload<'_>, deadline: Option<i64>, version: u64, clock: u32) -> Self {
        assert!(u32::try_from(key.len()).is_ok(), "a key of 4 GiB or more");
        let long_key = key.len() > usize::from(u16::MAX);
        let flags =
            payload.flags() | if deadline.is_some() { DEADLINE } else { 0 } | if long_key { LONG_KEY } else { 0 };
        let key_at = key_offset(flags);
        let value_len = payload.inline_len();
        let block_len = key_at + key.len() + value_len;
        let layout = layout_of(block_len);
        // SAFETY: the layout is never empty: a header is part of it.
        let block = unsafe { alloc(layout) };
        let Some(header) = NonNull::new(block.cast::<Header>()) else { handle_alloc_error(layout) };
        // SAFETY: every write below lies inside the `block_len` bytes just allocated: `key_at` counts the header and
        // the optional words before it, which are eight bytes each and so aligned.
        unsafe {
            header.write(Header {
                version_low: 0,
                version_high: 0,
                flags,
                clock_high: 0,
                clock_low: 0,
                key_len: if long_key { 0 } else { key.len() as u16 },
                value_len: value_len as u32,
            });
            if let Some(deadline) = deadline {
                block.add(size_of::<Header>()).cast::<i64>().write(deadline);
            }
            if long_key {
                block.add(key_at - 4).cast::<u32>().write(key.len() as u32);
            }
            ptr::copy_nonoverlapping(key.as_ptr(), block.add(key_at), key.len());
            let word = block.add(word_offset(flags));
            match payload {
                Payload::Integer(number) => word.cast::<i64>().write(number),
                Payload::Large(bytes) => word.cast::<Arc<Vec<u8>>>().write(bytes),
                Payload::Inline { bytes, .. } => {
                    ptr::copy_nonoverlapping(bytes.as_ptr(), block.add(key_at + key.len()), bytes.len());
                }
                Payload::Packed { form, bytes } => {
                    let at = block.add(key_at + key.len());
                    at.write(form as u8);
                    ptr::copy_nonoverlapping(bytes.as_ptr(), at.add(1), bytes.len());
                }
                Payload::Collection(collection) => word.cast::<Box<Collection>>().write(collection),
            }
        }
        let mut record = Self(header);
        record.set_version(version);
        record.set_clock(clock);
        record
    }

    /// Stores a value, a deadline, a version and a clock over those that are there, if they have the same size and the
    /// same kind. Gives the payload back if not.
    #[inline]
    pub(crate) fn overwrite<'a>(
        &mut self,
        payload: Payload<'a>,
        deadline: Option<i64>,
        version: u64,
        clock: u32,
    ) -> Result<(), Payload<'a>> {
        let flags = self.flags();
        if (flags & DEADLINE != 0) != deadline.is_some() || (flags ^ payload.flags()) & KIND_MASK != 0 {
            return Err(payload);
        }
        if payload.inline_len() != self.value_len() {
            return Err(payload);
        }
        let new_flags = flags & !VALUE_MARKS | payload.flags() & VALUE_MARKS;
        // SAFETY: kind and deadline agree with the flags, so the words exist; an inline value has the length checked
        // above; `self` is borrowed mutably, so nobody looks at them.
        unsafe {
            (*self.0.as_ptr()).flags = new_flags;
            let value_at = self.block().add(key_offset(flags) + self.key_len());
            match payload {
                Payload::Integer(number) => self.word().cast::<i64>().write(number),
                Payload::Large(bytes) => *self.word().cast::<Arc<Vec<u8>>>() = bytes,
                Payload::Inline { bytes, .. } => ptr::copy_nonoverlapping(bytes.as_ptr(), value_at, bytes.len()),
                Payload::Packed { form, bytes } => {
                    value_at.write(form as u8);
                    ptr::copy_nonoverlapping(bytes.as_ptr(), value_at.add(1), bytes.len());
                }
                Payload::Collection(collection) => *self.word().cast::<Box<Collection>>() = collection,
            }
        }
        if let Some(deadline) = deadline {
            self.overwrite_deadline(deadline);
        }
        self.set_version(version);
        self.set_clock(clock);
        Ok(())
    }

    /// The same record with another deadline; in place if there was one and there still is.
    pub(crate) fn set_deadline(&mut self, deadline: Option<i64>) {
        match (self.deadline(), deadline) {
            (None, None) => {}
            (Some(_), Some(deadline)) => self.overwrite_deadline(deadline),
            (_, deadline) => self.move_behind_deadline(deadline),
        }
    }

    /// Moves everything into another block, with room for a deadline or without.
    fn move_behind_deadline(&mut self, deadline: Option<i64>) {
        let old_flags = self.flags();
        let flags = old_flags & !DEADLINE | if deadline.is_some() { DEADLINE } else { 0 };
        let (old_at, at) = (word_offset(old_flags), word_offset(flags));
        let old_len = self.block_len();
        let layout = layout_of(old_len - old_at + at);
        // SAFETY: the layout is not empty. What lies behind the deadline's place is as long as before, and what is
        // owned by it (a large value) is moved, not copied: the old block is given back without being dropped.
        unsafe {
            let block = alloc(layout);
            let Some(header) = NonNull::new(block.cast::<Header>()) else { handle_alloc_error(layout) };
            ptr::copy_nonoverlapping(self.block(), block, size_of::<Header>());
            ptr::copy_nonoverlapping(self.block().add(old_at), block.add(at), old_len - old_at);
            (*header.as_ptr()).flags = flags;
            dealloc(self.block(), layout_of(old_len));
            self.0 = header;
        }
        if let Some(deadline) = deadline {
            self.overwrite_deadline(deadline);
        }
    }

    fn overwrite_deadline(&mut self, deadline: i64) {
        assert!(self.flags() & DEADLINE != 0, "no room for a deadline");
        // SAFETY: the flag says that the word behind the header is a deadline.
        unsafe { self.block().add(size_of::<Header>()).cast::<i64>().write(deadline) }
    }

    /// Reads a byte of each of the block's first cache lines, and of what lies behind it nothing: for
    /// [`crate::prefetch`].
    #[inline]
    pub(crate) fn touch(&self) {
        let end = self.block_len().min(TOUCHED_BYTES_MAX);
        for at in (0..end).step_by(CACHE_LINE_BYTES) {
            // SAFETY: `at` lies inside the block. The byte is read and forgotten, so it does not matter what it means.
            unsafe { self.block().add(at).read_volatile() };
        }
    }

    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        // SAFETY: the key was written at this place with this length and never changes.
        unsafe { std::slice::from_raw_parts(self.block().add(key_offset(self.flags())), self.key_len()) }
    }

    /// The value.
    #[inline]
    pub(crate) fn value(&self) -> ValueRef<'_> {
        if let Some(string) = self.string() {
            return ValueRef::String(string);
        }
        match (self.packed(), self.collection()) {
            (Some((form, bytes)), _) => collection::packed_ref(form, bytes),
            (None, Some(collection)) => collection.value(),
            (None, None) => unreachable!("what is no string is a collection"),
        }
    }

    /// The value, if it is a string.
    #[inline]
    pub(crate) fn string(&self) -> Option<Str<'_>> {
        // SAFETY: the kind says what the word is, or that the value follows the key. Values change only through
        // `&mut self`, which the returned borrow forbids.
        unsafe {
            match self.flags() & KIND_MASK {
                KIND_INTEGER => Some(Str::Integer(self.word().cast::<i64>().read())),
                KIND_LARGE => Some(Str::Bytes(&*self.word().cast::<Arc<Vec<u8>>>())),
                KIND_INLINE => Some(Str::Bytes(self.inline())),
                _ => None,
            }
        }
    }

    /// What lies behind the key.
    #[inline]
    fn inline(&self) -> &[u8] {
        // SAFETY: `value_len` bytes were written there; other kinds of values have none.
        unsafe {
            let at = self.block().add(key_offset(self.flags()) + self.key_len());
            std::slice::from_raw_parts(at, self.value_len())
        }
    }

    /// The value, if it is a small collection.
    #[inline]
    pub(crate) fn packed(&self) -> Option<(Form, &[u8])> {
        if self.flags() & KIND_MASK != KIND_PACKED {
            return None;
        }
        let (&form, bytes) = self.inline().split_first().expect("the form is always there");
        Some((Form::of(form).expect("only forms are written"), bytes))
    }

    /// The value, if it is a large collection.
    #[inline]
    pub(crate) fn collection(&self) -> Option<&Collection> {
        // SAFETY: the kind says that the word is a box, which the record owns.
        (self.flags() & KIND_MASK == KIND_COLLECTION).then(|| unsafe { &**self.word().cast::<Box<Collection>>() })
    }

    /// The value, if it is a large collection, for change.
    #[inline]
    pub(crate) fn collection_mut(&mut self) -> Option<&mut Collection> {
        // SAFETY: the kind says that the word is a box, which the record owns, and `self` is borrowed mutably.
        (self.flags() & KIND_MASK == KIND_COLLECTION).then(|| unsafe { &mut **self.word().cast::<Box<Collection>>() })
    }

    /// The type of the collection, if it is one.
    #[inline]
    pub(crate) fn kind(&self) -> Option<Kind> {
        match self.packed() {
            Some((form, _)) => Some(form.kind()),
            None => self.collection().map(Collection::kind),
        }
    }

    /// True if it is a collection without elements.
    #[inline]
    pub(crate) fn is_empty_collection(&self) -> bool {
        match self.flags() & KIND_MASK {
            KIND_PACKED => self.value_len() == 1,
            KIND_COLLECTION => self.collection().is_some_and(Collection::is_empty),
            _ => false,
        }
    }

    /// Puts `parts`, one behind the other, in the place of a range of a small collection's bytes.
    ///
    /// # Panics
    /// If the value is no small collection, or is shorter.
    pub(crate) fn splice(&mut self, range: Range<usize>, parts: &[&[u8]]) {
        assert_eq!(self.flags() & KIND_MASK, KIND_PACKED, "only small collections are changed so");
        let (old_block_len, old_len) = (self.block_len(), self.value_len() - 1);
        assert!(range.start <= range.end && range.end <= old_len, "beyond the end");
        let added: usize = parts.iter().map(|part| part.len()).sum();
        let len = old_len - range.len() + added;
        let value_len = u32::try_from(1 + len).expect("small collections are small");
        let block_len = old_block_len - old_len + len;
        let value_at = key_offset(self.flags()) + self.key_len() + 1;
        if len > old_len {
            self.resize(old_block_len, block_len);
        }
        // SAFETY: the block now has room for the longer of both. The tail moves first; then the parts, which cannot
        // lie in the block as `self` is borrowed mutably, fill the gap exactly.
        unsafe {
            let value = self.block().add(value_at);
            let mut at = value.add(range.start);
            if added != range.len() {
                ptr::copy(value.add(range.end), at.add(added), old_len - range.end);
            }
            for part in parts {
                ptr::copy_nonoverlapping(part.as_ptr(), at, part.len());
                at = at.add(part.len());
            }
            (*self.0.as_ptr()).value_len = value_len;
        }
        if len < old_len {
            self.resize(old_block_len, block_len);
        }
    }

    /// Gives the block another length; what is common to both stays.
    fn resize(&mut self, old_len: usize, len: usize) {
        let (old, new) = (layout_of(old_len), layout_of(len));
        if old == new {
            return;
        }
        // SAFETY: the block was allocated with the old layout; the new one has the same alignment and is not empty.
        let block = unsafe { realloc(self.block(), old, new.size()) };
        let Some(header) = NonNull::new(block.cast::<Header>()) else { handle_alloc_error(new) };
        self.0 = header;
    }

    /// Stores another value; everything else stays.
    pub(crate) fn replace_value(&mut self, payload: Payload<'_>) {
        *self = Self::new(self.key(), payload, self.deadline(), self.version(), self.clock());
    }

    /// The value, if it lies outside.
    #[inline]
    pub(crate) fn large(&self) -> Option<&Arc<Vec<u8>>> {
        // SAFETY: the kind says that the word is an `Arc`.
        (self.flags() & KIND_MASK == KIND_LARGE).then(|| unsafe { &*self.word().cast::<Arc<Vec<u8>>>() })
    }

    /// The value, if it lies outside, for change.
    pub(crate) fn large_mut(&mut self) -> Option<&mut Arc<Vec<u8>>> {
        // SAFETY: the kind says that the word is an `Arc`, and `self` is borrowed mutably.
        (self.flags() & KIND_MASK == KIND_LARGE).then(|| unsafe { &mut *self.word().cast::<Arc<Vec<u8>>>() })
    }

    /// The value, for another record; a large one is shared.
    pub(crate) fn payload(&self) -> Payload<'_> {
        if let Some((form, bytes)) = self.packed() {
            return Payload::Packed { form, bytes };
        }
        if let Some(collection) = self.collection() {
            return Payload::Collection(Box::new(collection.clone()));
        }
        match (self.large(), self.string()) {
            (Some(bytes), _) => Payload::Large(Arc::clone(bytes)),
            (None, Some(Str::Integer(number))) => Payload::Integer(number),
            (None, Some(Str::Bytes(bytes))) => Payload::Inline { bytes, raw: self.is_raw() },
            (None, None) => unreachable!("what is no collection is a string"),
        }
    }

    /// The value, owned; a large one is shared.
    pub(crate) fn to_value(&self) -> Value {
        let text = match self.payload() {
            Payload::Packed { form, bytes } => {
                return Value::Collection(CollectionValue(Kept::Packed(form, bytes.to_vec())));
            }
            Payload::Collection(collection) => return Value::Collection(CollectionValue(Kept::Large(collection))),
            Payload::Integer(number) => Text::Integer(number),
            Payload::Inline { bytes, raw } => Text::Bytes { bytes: bytes.to_vec(), raw },
            Payload::Large(bytes) => Text::Shared(bytes),
        };
        Value::String(StringValue(text))
    }

    /// Takes the value out; what is left is of no use.
    pub(crate) fn take_value(&mut self) -> Value {
        if let Some(bytes) = self.large_mut() {
            return Value::String(StringValue(Text::Shared(std::mem::take(bytes))));
        }
        match self.collection_mut() {
            Some(collection) => Value::Collection(CollectionValue(Kept::Large(Box::new(std::mem::take(collection))))),
            None => self.to_value(),
        }
    }

    /// Milliseconds since the epoch at which the key ceases to exist.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<i64> {
        // SAFETY: the flag says that the word behind the header is a deadline.
        (self.flags() & DEADLINE != 0).then(|| unsafe { self.block().add(size_of::<Header>()).cast::<i64>().read() })
    }

    /// True if the key has not reached its deadline at `now`, and not all of its fields have reached theirs.
    #[inline]
    pub(crate) fn is_alive(&self, now: i64) -> bool {
        self.deadline().is_none_or(|deadline| deadline > now)
            && self.expiring_hash().is_none_or(|hash| hash.at(now).is_living())
    }

    /// The value, if it is a hash of which fields may have deadlines.
    #[inline]
    pub(crate) fn expiring_hash(&self) -> Option<Hash<'_>> {
        if self.flags() & EXPIRING_FIELDS == 0 {
            return None;
        }
        match self.value() {
            ValueRef::Hash(hash) => Some(hash),
            _ => unreachable!("only hashes have such fields"),
        }
    }

    /// The earliest deadline of a field that has not been removed; `None` if no field has one.
    #[inline]
    pub(crate) fn fields_due(&self) -> Option<i64> {
        self.expiring_hash().map(|hash| hash.earliest_deadline()).filter(|deadline| *deadline != NEVER)
    }

    /// Removes up to `most` fields that have expired at `now`, more if the hash is small, and tells how many. Some
    /// field must exist.
    pub(crate) fn purge_fields(&mut self, now: i64, most: usize) -> usize {
        if let Some(Collection::ExpiringHash(fields)) = self.collection_mut() {
            return fields.purge(now, most);
        }
        let Some(hash) = self.expiring_hash().filter(|hash| hash.earliest_deadline() <= now) else { return 0 };
        let packed = expiring::pack(hash.at(now).iter_with_deadlines());
        let count = hash.len() - hash.at(now).len();
        let len = self.value_len() - 1;
        self.splice(0..len, &[&packed]);
        count
    }

    #[inline]
    pub(crate) fn version(&self) -> u64 {
        // SAFETY: the header is initialized.
        unsafe {
            let header = self.0.as_ptr();
            u64::from((*header).version_low) | u64::from((*header).version_high) << 32
        }
    }

    #[inline]
    pub(crate) fn set_version(&mut self, version: u64) {
        debug_assert!(version < VERSION_END);
        // SAFETY: the header is ours to change.
        unsafe {
            let header = self.0.as_ptr();
            (*header).version_low = version as u32;
            (*header).version_high = (version >> 32) as u16;
        }
    }

    /// When, or how often, the key was used; see [`crate::access`].
    #[inline]
    pub(crate) fn clock(&self) -> u32 {
        // SAFETY: the header is initialized.
        unsafe {
            let header = self.0.as_ptr();
            u32::from((*header).clock_low) | u32::from((*header).clock_high) << 16
        }
    }

    /// Notes a use. Takes a shared reference because reading is a use; no reference to the header ever exists, and
    /// `Record` is not `Sync`, so this is a cell's `set`.
    #[inline]
    pub(crate) fn set_clock(&self, clock: u32) {
        // SAFETY: the block was allocated for writing, and nobody else holds a reference to these three bytes.
        unsafe {
            let header = self.0.as_ptr();
            (*header).clock_low = clock as u16;
            (*header).clock_high = (clock >> 16) as u8;
        }
    }

    /// How Redis would call the value's representation.
    pub(crate) fn encoding(&self) -> &'static str {
        match self.value() {
            ValueRef::String(Str::Integer(_)) => "int",
            ValueRef::String(Str::Bytes(bytes)) if bytes.len() <= EMBEDDED_BYTES_MAX && !self.is_raw() => "embstr",
            ValueRef::String(Str::Bytes(_)) => "raw",
            value => value.encoding(),
        }
    }

    /// Bytes the allocator spends on this key, the large value included.
    #[inline]
    pub(crate) fn footprint(&self) -> usize {
        let block = allocated_bytes(self.block_len());
        match self.flags() & KIND_MASK {
            KIND_LARGE => block + self.large().map_or(0, large_footprint),
            KIND_COLLECTION => block + self.collection().map_or(0, Collection::footprint),
            _ => block,
        }
    }

    pub(crate) fn is_raw(&self) -> bool {
        self.flags() & RAW != 0
    }

    #[inline]
    fn flags(&self) -> u8 {
        // SAFETY: the header is initialized.
        unsafe { (*self.0.as_ptr()).flags }
    }

    #[inline]
    fn key_len(&self) -> usize {
        // SAFETY: the header is initialized; with the flag, the key's length stands before the key.
        unsafe {
            if self.flags() & LONG_KEY == 0 {
                usize::from((*self.0.as_ptr()).key_len)
            } else {
                self.block().add(key_offset(self.flags()) - 4).cast::<u32>().read() as usize
            }
        }
    }

    /// Length of an inline value, of a small collection with its form; 0 for other kinds.
    #[inline]
    fn value_len(&self) -> usize {
        // SAFETY: the header is initialized.
        unsafe { (*self.0.as_ptr()).value_len as usize }
    }

    #[inline]
    fn block(&self) -> *mut u8 {
        self.0.as_ptr().cast()
    }

    /// Where the integer or the large value's pointer is, if there is one.
    ///
    /// # Safety
    /// The kind must have such a word.
    #[inline]
    unsafe fn word(&self) -> *mut u8 {
        // SAFETY: by contract the word is part of the block.
        unsafe { self.block().add(word_offset(self.flags())) }
    }

    #[inline]
    fn block_len(&self) -> usize {
        key_offset(self.flags()) + self.key_len() + self.value_len()
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let layout = layout_of(self.block_len());
        // SAFETY: the block was allocated with this layout, as its parts have not changed size since; the `Arc` is not
        // used again.
        unsafe {
            match self.flags() & KIND_MASK {
                KIND_LARGE => self.word().cast::<Arc<Vec<u8>>>().drop_in_place(),
                KIND_COLLECTION => self.word().cast::<Box<Collection>>().drop_in_place(),
                _ => {}
            }
            dealloc(self.block(), layout);
        }
    }
}

#[inline]
fn word_offset(flags: u8) -> usize {
    size_of::<Header>() + if flags & DEADLINE != 0 { 8 } else { 0 }
}

#[inline]
fn key_offset(flags: u8) -> usize {
    word_offset(flags)
        + if matches!(flags & KIND_MASK, KIND_INLINE | KIND_PACKED) { 0 } else { 8 }
        + if flags & LONG_KEY == 0 { 0 } else { 4 }
}

/// How a block of this length is allocated: with what the allocator would round it up to anyway, so that a value can
/// grow into that without asking.
#[inline]
fn layout_of(block_len: usize) -> Layout {
    Layout::from_size_align(allocated_bytes(block_len), align_of::<Header>())
        .expect("a key and an inline value fit an allocation")
}

/// Bytes that a large value costs beyond its record.
pub(crate) fn large_footprint(bytes: &Arc<Vec<u8>>) -> usize {
    // The counts and the vector's three words share a block.
    allocated_bytes(40) + allocated_bytes(bytes.capacity())
}

/// Bytes that jemalloc sets aside for a request of `size`: multiples of 16 up to 128, then four sizes per doubling.
/// Other allocators differ by little.
#[inline]
pub(crate) fn allocated_bytes(size: usize) -> usize {
    if size <= 128 {
        return size.max(1).next_multiple_of(16);
    }
    let step = ((size - 1).ilog2() - 2).min(40);
    size.next_multiple_of(1 << step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inline(bytes: &[u8]) -> Payload<'_> {
        Payload::plain(bytes, false)
    }

    #[test]
    fn what_goes_in_comes_out_whatever_the_layout() {
        let keys = [vec![], b"k".to_vec(), vec![b'k'; 65_535], vec![b'k'; 65_536], vec![b'k'; 1 << 20]];
        let values: [&[u8]; 8] =
            [b"", b"v", b"12", b"-9223372036854775808", b"012", &[7; 44], &[7; INLINE_BYTES_MAX], &[7; 5000]];
        for key in &keys {
            for value in values {
                for deadline in [None, Some(-1), Some(i64::MAX)] {
                    let record = Record::new(key, Payload::encode(value), deadline, VERSION_END - 2, 0xABCDEF);
                    assert_eq!(record.key(), key);
                    assert_eq!(record.string().unwrap().to_vec(), value);
                    assert_eq!(record.deadline(), deadline);
                    assert_eq!(record.version(), VERSION_END - 2);
                    assert_eq!(record.clock(), 0xABCDEF);
                }
            }
        }
    }

    #[test]
    fn a_small_key_takes_one_small_block() {
        assert_eq!(Record::new(&[b'k'; 16], inline(&[b'v'; 32]), None, 1, 0).footprint(), 64);
        assert_eq!(Record::new(&[b'k'; 16], Payload::encode(b"1234567"), None, 1, 0).footprint(), 48);
    }

    #[test]
    fn a_value_of_equal_size_and_kind_is_overwritten_in_place_and_no_other() {
        let mut record = Record::new(b"key", inline(b"one"), Some(5), 1, 0);
        assert!(record.overwrite(inline(b"two"), Some(6), 2, 3).is_ok());
        assert_eq!(
            (record.key(), record.string(), record.deadline(), record.version(), record.clock()),
            (&b"key"[..], Some(Str::Bytes(b"two")), Some(6), 2, 3)
        );
        assert!(record.overwrite(inline(b"three"), Some(6), 3, 0).is_err());
        assert!(record.overwrite(inline(b"two"), None, 3, 0).is_err());
        assert!(record.overwrite(Payload::Integer(100), Some(6), 3, 0).is_err());
        assert_eq!(record.version(), 2);
    }

    #[test]
    fn a_deadline_comes_changes_and_goes() {
        for value in [&b"12"[..], b"text", &[1; 9000]] {
            let mut record = Record::new(b"key", Payload::encode(value), None, 9, 4);
            for deadline in [None, Some(1), Some(2), None] {
                record.set_deadline(deadline);
                assert_eq!((record.deadline(), record.version(), record.clock()), (deadline, 9, 4));
                assert_eq!(record.string().unwrap().to_vec(), value);
            }
        }
    }

    #[test]
    fn a_large_value_is_shared_not_copied() {
        let record = Record::new(b"key", inline(&[1; 1 << 20]), None, 1, 0);
        let copy = record.to_value();
        assert!(ptr::eq(
            record.large().unwrap().as_ptr(),
            match copy.as_ref() {
                ValueRef::String(Str::Bytes(bytes)) => bytes.as_ptr(),
                _ => unreachable!(),
            }
        ));
    }

    #[test]
    fn allocation_sizes_are_those_of_jemalloc() {
        let known = [(1, 16), (16, 16), (17, 32), (64, 64), (65, 80), (128, 128), (129, 160), (160, 160), (161, 192)];
        for (size, expected) in known.into_iter().chain([(256, 256), (257, 320), (4096, 4096), (4097, 5120)]) {
            assert_eq!(allocated_bytes(size), expected, "{size}");
        }
    }
}
