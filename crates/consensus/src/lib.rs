//! One group's replicated log: elections, replication, commitment, read confirmation.
//!
//! The algorithm is the `raft` crate's; this is a narrow face over it. What is ours: the wire codec (the library's own
//! is never shown a peer's bytes), the log in memory, election time-outs drawn from a seed, leases, and the return of a
//! node that lost its unsynced tail.
//!
//! It knows no disk, no network and no clock. The host tells the time with [`Replica::tell_time`], calls
//! [`Replica::tick`] at a steady pace, carries [`Ready::messages`] to their nodes, makes [`Ready::append`] durable and
//! says so with [`Replica::persisted`], and applies [`Ready::committed`] in order.
//!
//! ```text
//!   propose ─┐                     ┌─ messages ──▶ peers           persisted(ticket)
//!   step ────┼──▶ Replica ── take_ready ── append ────▶ journal ───────────┘
//!   tick ────┘                     ├─ committed ─▶ state machine
//!                                  └─ reads ─────▶ reads confirmed up to an index
//! ```
#![warn(missing_docs)]

mod change;
mod lease;
pub mod limits;
mod log;
mod message;
mod replica;

pub use change::Change;
pub use message::{Malformed, Message, MessageKind};
pub use replica::{
    Append, Dropped, Fault, Fetch, Options, Progress, Read, Ready, Refused, Replica, Restored, Role, Seed, Transfer,
    first_life,
};
