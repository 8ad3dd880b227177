//! One replicated group around a [`state::State`]: the window of its log, what only a leader has, what only a follower
//! has, snapshots, splits and merges.
//!
//! A [`Group`] is stepped by a core: requests and messages come in as calls of its methods, and what it wants goes out
//! through the trait [`output::Output`]. It is a function of what it is told: it reads no clock, draws no entropy, and
//! does no I/O.
//!
//! What it refuses to know:
//!
//! - **sessions and sockets**: it answers an [`Origin`](requests::Origin), and does not know what is there;
//! - **users and what they may do**: a request that comes here was permitted. A script brings its caller along
//!   ([`invocation::Caller`]), and only what runs the script looks at it;
//! - **control commands**: an operator's word comes as the words of one request ([`requests::RequestBody::Admin`]);
//! - **settings**: the few that it needs are asked of [`output::NodeView`];
//! - **scripts' engines**: a script is a [`in_place::Program`], which gets the keys lent;
//! - **the form of messages**: it says [`output::PeerMessage`], and what carries it lays it out.
//!
//! Only this crate can make a [`proof::Committed`] and a [`proof::Observed`], and no reply to a write is given without
//! one.

pub mod answers;
pub mod backup;
pub mod balance;
pub mod checkpoint;
pub mod cost;
#[doc(hidden)]
pub mod defect;
pub mod figures;
mod group;
pub mod group_seed;
pub mod group_status;
pub mod host;
pub mod hosts;
pub mod ids;
pub mod invocation;
pub mod levels;
pub mod limits;
pub mod locks;
pub mod one_command;
pub mod output;
mod overlay;
pub mod proof;
pub mod published;
pub mod refusals;
pub mod replica_reads;
pub mod requests;
pub mod router;
pub mod timeline;
pub mod wait_queues;
mod write_set;

pub use group::{
    Group, LEVEL_OF_SPLITS, Standing, first_membership, group_count, in_place, membership_of, others_can_tell,
};
