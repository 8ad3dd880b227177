//! What cores, groups and nodes tell each other, and what a log holds: ids, log items with their codec, the roster of
//! nodes, the map of slots, libraries of functions and parameters of the cluster.
//!
//! *Invariant:* it knows the form of what is said, and neither who says it nor what is done about it.

pub mod answer;
pub mod entry;
pub mod id;
pub mod libraries;
pub mod parameters;
pub mod roster;
pub mod slots;

pub use id::{CoreId, GatewayId, GroupId, NodeId, TransactionId};
