//! The files of a stock Redis as streams: RDB is read and written, AOF is read. Knows no server and no network.
//!
//! A file may come from anybody. Every length in it is checked before memory is taken, what is malformed is refused
//! with its offset, and no more is held than [`rdb::PART_BYTES`], or one element if that is longer.
//!
//! Suggested order of reading: [`fault`], [`source`], [`rdb`], [`aof`], `producers`,
//! [`manifest`], [`write`].

pub mod aof;
pub mod fault;
pub mod manifest;
mod producers;
pub mod rdb;
pub mod source;
pub mod write;

pub use fault::{Fault, What};
pub use source::Source;

/// Most bytes of a string, Redis's default of `proto-max-bulk-len`, and of a value that is not taken apart.
pub const STRING_BYTES_MAX: u64 = 512 << 20;
