//! What happens to a record before it changes and after it goes.
//!
//! Before: a running checkpoint may still need it as it is. After: freeing hundreds of megabytes at once is a stall, so
//! large values are given back piece by piece.

use std::sync::Arc;

use crate::checkpoint::Walk;
use crate::record::{Record, allocated_bytes};

/// Large values up to this size are freed at once.
const FREED_AT_ONCE_BYTES_MAX: usize = 256 << 10;
/// How much of a larger one is freed in one step.
const FREED_PER_STEP_BYTES: usize = 4 << 20;

#[derive(Default)]
pub(crate) struct Keeper {
    pub(crate) walk: Option<Box<Walk>>,
    debris: Vec<Vec<u8>>,
    debris_bytes: usize,
}

/// Where a key is: the rank of its table in a running checkpoint's order, its slot, its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) rank: u32,
    pub(crate) slot: u16,
    pub(crate) hash: u64,
}

impl Keeper {
    /// Must be called before a record is changed or removed.
    #[inline]
    pub(crate) fn before_change(&mut self, position: Position, record: &Record) {
        if let Some(walk) = &mut self.walk {
            walk.before_change(position, record);
        }
    }

    /// Takes a record that has been removed or replaced.
    #[inline]
    pub(crate) fn bury(&mut self, mut record: Record) {
        if let Some(bytes) = record.large_mut() {
            let bytes = std::mem::take(bytes);
            self.bury_large(bytes);
        }
    }

    /// Takes a large value that is no longer used.
    pub(crate) fn bury_large(&mut self, bytes: Arc<Vec<u8>>) {
        // If somebody else holds it too, it is theirs to bury.
        if let Ok(bytes) = Arc::try_unwrap(bytes)
            && bytes.capacity() > FREED_AT_ONCE_BYTES_MAX
        {
            self.debris_bytes += allocated_bytes(bytes.capacity());
            self.debris.push(bytes);
        }
    }

    /// Frees one piece; true if there is more.
    pub(crate) fn free_step(&mut self) -> bool {
        if let Some(bytes) = self.debris.last_mut() {
            self.debris_bytes -= allocated_bytes(bytes.capacity());
            bytes.truncate(bytes.capacity().saturating_sub(FREED_PER_STEP_BYTES));
            // Allocators cut the tail of a large block where it lies.
            bytes.shrink_to_fit();
            if bytes.capacity() <= FREED_PER_STEP_BYTES {
                self.debris.pop();
            } else {
                self.debris_bytes += allocated_bytes(bytes.capacity());
            }
        }
        !self.debris.is_empty()
    }

    /// Bytes held for others: old images that have not been written, values that have not been freed.
    pub(crate) fn bytes(&self) -> usize {
        self.debris_bytes + self.walk.as_ref().map_or(0, |walk| walk.held_bytes())
    }
}
