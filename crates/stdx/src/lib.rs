//! The few things the standard library lacks, for crates that may not look at the world.
//!
//! Nothing here reads a clock, draws entropy or does I/O: time and chance are values that a host mints and hands in.

pub mod crc64;
pub mod decimal;
pub mod leb128;
pub mod level;
pub mod log;
mod prng;
pub mod sha1;
pub mod slot;
mod time;

pub use level::{Level, Levels};
pub use prng::Prng;
pub use time::{Duration, Instant, UnixMillis};
