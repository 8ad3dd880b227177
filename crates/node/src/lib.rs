//! A node's core: sessions, router, transactions, and the steps of groups. Does no I/O, reads no clock, draws no
//! entropy: events come in, actions go out, and the same events give the same actions.
//!
//! Suggested order of reading: [`event`] (the waist), [`core`] (the stepping unit), [`session`], `dispatch` (from bytes
//! to requests), the crate [`group`] (the log of one group; the only maker of an acknowledgement), [`entry`] (what is
//! logged), `exec` and [`transaction`] (all or nothing), [`scripts`], [`commands`] (what is not about data).

pub mod acl;
mod acquaintances;
mod ask;
pub mod blocking;
mod caches;
mod catalog;
pub mod commands;
mod context;
pub mod core;
pub mod core_messages;
mod debug_replies;
mod dispatch;
pub mod event;
mod exec;
mod followers;
mod founding;
pub mod frame;
pub mod guilt;
mod happenings;
mod hints;
mod invalidation_barrier;
pub mod invitation;
mod keyspace_queries;
mod known;
pub mod landscape;
pub mod limits;
pub mod lives;
mod lookup;
mod masters;
mod moments;
mod monitor;
mod neighbours;
mod optimism;
mod output;
pub mod parameters;
pub mod pubsub;
mod quorum;
mod redaction;
mod redirect;
mod redirected;
mod relay;
mod replication_wait;
mod reports;
mod request_ids;
mod reserved;
pub mod scripts;
pub mod session;
pub mod settings;
mod sha256;
pub mod splitting;
pub mod stagger;
pub mod stalls;
mod stats;
mod thorough;
pub mod tracking;
pub mod transaction;
mod undelivered;
mod validate;
mod whereabouts;
mod wire;

use std::sync::LazyLock;

pub use keyspace::DatabaseKey;
pub use message::{GatewayId, TransactionId, entry, libraries, roster, slots};
pub(crate) use state::observe;
pub use state::{NO_LATER, Phase, Reader, Requests, Step, Tape};
pub use stats::metrics;

pub use crate::core::Core;
pub use event::*;

/// Every command by its name. What counts and permits commands is below their records, which name their handlers; both
/// meet here.
static CATALOG: LazyLock<catalog::Catalog> = LazyLock::new(|| catalog::Catalog::new(&commands::source()));
