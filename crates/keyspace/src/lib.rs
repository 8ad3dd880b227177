//! The data of a group of slots and every command on it. Knows no log, no socket, no clock and no chance: a command
//! sees the keyspace, its arguments and a [`Moment`], so every replica that applies the same commands holds the same
//! data and gives the same replies.
//!
//! Suggested order of reading: [`moment`], [`value`], `record` (one key in memory), `segment` and `table` (many keys),
//! `collection` and `tree` (values with elements), [`context`] (what a command may do), `checkpoint` (the cut without a
//! fork), `eviction`, [`commands`].

mod access;
mod blocking_timeout;
mod checkpoint;
mod collection;
pub mod commands;
pub mod context;
pub mod debug;
mod double;
mod eviction;
pub mod glob;
mod hyperloglog;
mod json;
mod keyspace;
mod lazy_free;
mod lzf;
pub mod moment;
pub mod notice;
mod prefetch;
pub mod rdb;
mod record;
mod scan;
mod segment;
mod sketch;
mod table;
#[cfg(test)]
pub(crate) mod testing;
mod tombstones;
mod tree;
pub mod value;
mod vector;

use stdx::{crc64, sha1};

pub use blocking_timeout::{BlockingTimeout, Claims, blocking_timeout, claims};
pub use checkpoint::{Corrupt, Exporting, Imported, Importing, is_exported};
pub use collection::{End, Hash, Id, Limits, List, Outline, Set, SortedSet, Space, Stream, Tree};
pub use commands::{
    Body, COMMANDS, DataCommand, as_of_level_1, find, resolve, scan_count, sort_keys, sort_patterns, tells_use,
};
pub use context::{Access, Edit, Entry, Expiry, View};
pub use eviction::Policy;
pub use keyspace::{Keyspace, Layout, Lookups, Options, Removals, Standing, Tuning};
pub use moment::Moment;
pub use notice::{Class, Classes, DatabaseKey, Notice};
pub use prefetch::{PREFETCH_MAX, PrefetchTarget};
pub use scan::{cursor_at_slot, slot_of_cursor};
pub use tombstones::absent_since;
pub use value::{CollectionValue, ItoaBuffer, Str, StringValue, Value, ValueRef};
