//! How one cluster follows another, as far as that needs no disk, no net and no clock.
//!
//! ```text
//!   near cluster                                            far cluster
//!   tapes of groups ─▶ Book ─▶ files ─▶ Teller (Merger) ─▶ frames ─▶ Position, together with the data
//! ```
//!
//! `edge` keeps the files and the connections; the simulator has both in memory. Suggested order of reading: [`book`],
//! [`merge`], [`teller`], [`position`], [`wire`].

pub mod book;
pub mod merge;
pub mod position;
pub mod teller;
pub mod wire;

pub use book::{Admission, Book, FOUNDING_INDEX, Part, Place, beginning, reaches_back};
pub use merge::{Batch, Event, Events, Merger, Unprepared, reaches};
pub use position::{Heard, OtherGroups, Position};
pub use teller::Teller;
pub use wire::{Frame, State};
