//! A node's core: sessions, router, groups, transactions. Does no I/O, reads no clock, draws no entropy: events come
//! in, actions go out, and the same events give the same actions.
//!
//! Suggested order of reading: [`event`] (the waist), [`core`] (the stepping unit), [`session`], `dispatch` (from bytes
//! to requests), [`group`] (the log of one group; the only maker of an acknowledgement), [`entry`] (what is logged),
//! `exec` and [`transaction`] (all or nothing), [`scripts`], [`checkpoint`], [`backup`], [`commands`] (what is not
//! about data).

pub mod acl;
mod acquaintances;
mod ask;
pub mod backup;
pub mod balance;
pub mod blocking;
mod caches;
mod catalog;
pub mod checkpoint;
pub mod commands;
mod context;
pub mod core;
pub mod core_messages;
mod debug_replies;
#[doc(hidden)]
pub mod defect;
mod dispatch;
pub mod event;
mod exec;
mod followers;
mod founding;
pub mod frame;
pub mod group;
mod group_seed;
pub mod group_status;
pub mod guilt;
mod happenings;
mod hints;
mod ids;
mod invalidation_barrier;
pub mod invitation;
mod keyspace_queries;
mod known;
pub mod landscape;
mod levels;
pub mod limits;
pub mod lives;
mod locks;
mod lookup;
mod masters;
mod moments;
mod monitor;
mod neighbours;
mod one_command;
mod optimism;
mod output;
pub mod parameters;
pub mod pubsub;
mod quorum;
mod redaction;
mod redirect;
mod redirected;
mod refusals;
mod relay;
mod replica_reads;
mod replication_wait;
mod reports;
mod request_ids;
mod requests;
mod reserved;
pub mod router;
pub mod scripts;
pub mod session;
pub mod settings;
mod sha256;
pub mod splitting;
pub mod stagger;
pub mod stalls;
mod stats;
mod thorough;
pub mod timeline;
pub mod tracking;
pub mod transaction;
mod undelivered;
mod validate;
mod wait_queues;
mod whereabouts;
mod wire;
mod write_set;

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
