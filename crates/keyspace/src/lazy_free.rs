//! What happens to a record before it changes and after it goes.
//!
//! Before: a running checkpoint may still need it as it is. After: freeing hundreds of megabytes, or millions of
//! elements, at once is a stall, so large values are given back piece by piece.

use std::sync::Arc;

use crate::checkpoint::Walk;
use crate::collection::{Collection, SMALL_LEN_MAX, Unfreed};
use crate::record::{Record, allocated_bytes};
use crate::tombstones::Tombstones;

/// Large values up to this size are freed at once.
const FREED_AT_ONCE_BYTES_MAX: usize = 256 << 10;
/// How much of a larger one is freed in one step.
const FREED_PER_STEP_BYTES: usize = 4 << 20;
/// Most elements of a large collection that are freed in one step.
const FREED_PER_STEP_ELEMENTS: usize = 256;

pub(crate) struct LazyFree {
    pub(crate) walk: Option<Box<Walk>>,
    pub(crate) tombstones: Tombstones,
    /// With the bytes that each takes.
    debris: Vec<(Debris, usize)>,
    debris_bytes: usize,
    /// Values, and keys of flushed databases, that have been freed piece by piece.
    pub(crate) freed_count: u64,
}

enum Debris {
    Bytes(Vec<u8>),
    /// Elements may be of any size: of large ones, fewer are freed in a step.
    Unfreed {
        unfreed: Unfreed,
        elements_per_step: usize,
    },
}

/// Where a key is: the rank of its table in a running checkpoint's order, its slot, its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) rank: u32,
    pub(crate) slot: u16,
    pub(crate) hash: u64,
}

impl LazyFree {
    pub(crate) fn new(tombstones: Tombstones) -> Self {
        Self { walk: None, tombstones, debris: Vec::new(), debris_bytes: 0, freed_count: 0 }
    }

    /// True if somebody wants to hear of every record that is changed or removed.
    pub(crate) fn is_watched(&self) -> bool {
        self.walk.is_some() || self.tombstones.are_noted()
    }

    /// Must be called before a record is changed or removed.
    #[inline]
    pub(crate) fn before_change(&mut self, position: Position, record: &Record) {
        if let Some(walk) = &mut self.walk {
            walk.before_change(position, record);
        }
    }

    /// True if a running checkpoint has yet to write the record as it is now.
    pub(crate) fn is_wanted(&self, position: impl FnOnce() -> Position, record: &Record) -> bool {
        self.walk.as_ref().is_some_and(|walk| walk.wants(position(), record))
    }

    /// Takes a record that has been removed or replaced.
    #[inline]
    pub(crate) fn free_later(&mut self, mut record: Record) {
        self.free_value_later(&mut record);
    }

    /// Takes the value out of a record that is about to get another, if it takes long to free.
    #[inline]
    pub(crate) fn free_value_later(&mut self, record: &mut Record) {
        if let Some(bytes) = record.large_mut() {
            let bytes = std::mem::take(bytes);
            self.free_large_later(bytes);
        } else if let Some(collection) = record.collection_mut() {
            let collection = std::mem::take(collection);
            self.free_collection_later(collection);
        }
    }

    /// Takes a large value that is no longer used.
    pub(crate) fn free_large_later(&mut self, bytes: Arc<Vec<u8>>) {
        // If somebody else holds it too, it is theirs to free later.
        if let Ok(bytes) = Arc::try_unwrap(bytes)
            && bytes.capacity() > FREED_AT_ONCE_BYTES_MAX
        {
            let held = allocated_bytes(bytes.capacity());
            self.free_debris_later(Debris::Bytes(bytes), held);
        }
    }

    /// Takes a collection, or a part of one, that is no longer used.
    pub(crate) fn free_collection_later(&mut self, collection: Collection) {
        let (len, held) = (collection.len(), collection.footprint());
        if len > SMALL_LEN_MAX || held > FREED_AT_ONCE_BYTES_MAX {
            let elements_per_step =
                (FREED_PER_STEP_BYTES / (held / len.max(1)).max(1)).clamp(1, FREED_PER_STEP_ELEMENTS);
            self.free_debris_later(Debris::Unfreed { unfreed: collection.into_unfreed(), elements_per_step }, held);
        }
    }

    fn free_debris_later(&mut self, debris: Debris, held: usize) {
        self.debris_bytes += held;
        self.debris.push((debris, held));
    }

    /// Frees one piece; true if there is more.
    pub(crate) fn free_step(&mut self) -> bool {
        if let Some((debris, held)) = self.debris.last_mut() {
            let rest = match debris {
                Debris::Bytes(bytes) => {
                    bytes.truncate(bytes.capacity().saturating_sub(FREED_PER_STEP_BYTES));
                    // Allocators cut the tail of a large block where it lies.
                    bytes.shrink_to_fit();
                    let is_small = bytes.capacity() <= FREED_PER_STEP_BYTES;
                    (!is_small).then(|| allocated_bytes(bytes.capacity()))
                }
                Debris::Unfreed { unfreed, elements_per_step } => {
                    let mut budget = *elements_per_step;
                    unfreed.free(&mut budget).then(|| unfreed.bytes())
                }
            };
            self.debris_bytes -= *held;
            match rest {
                Some(rest) => {
                    *held = rest;
                    self.debris_bytes += rest;
                }
                None => {
                    self.debris.pop();
                    self.freed_count += 1;
                }
            }
        }
        !self.debris.is_empty()
    }

    /// Values that are not freed yet.
    pub(crate) fn debris_count(&self) -> usize {
        self.debris.len()
    }

    /// Bytes held for others: old images that have not been written, values that have not been freed.
    pub(crate) fn bytes(&self) -> usize {
        self.debris_bytes + self.walk.as_ref().map_or(0, |walk| walk.held_bytes())
    }
}
