//! Groups that come into being while the cluster serves.
//!
//! That there is another group is an item of the log of group 0, with the nodes that vote in it first. Every node hears
//! so with the roster, and makes a replica without data:
//!
//! ```text
//!   who votes first   the first entry of the log, term 1, committed; who votes: on disk, and only then a replica
//!   everybody else    a vacant replica, as on a node that joins: it votes for nobody until a checkpoint has filled it
//! ```
//!
//! The first entry is the same everywhere, so it is as if the voters had elected somebody in term 1 who committed it
//! and was never heard of again. From there on the group is like any other. What was written stands in the journal
//! before everything else that this node says for the group: a start finds the group there, and nobody founds it again.
//! A node that was away for long, and founds a group that others have long been using, comes with an empty log and gets
//! no votes.
//!
//! A group that splits off from another one comes into being in another way: see [`crate::splitting`].
//!
//! A group holds no slot before it has voters enough (see `balance::next_filling`), and counts for clients (DBSIZE, a
//! transaction over everything) when somebody leads it, or when a slot is known to be there: see
//! `SlotMap::group_count`.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use stdx::Instant;
use stdx::log::{Entry, EntryKind, HardState, Membership};

use group::group_seed::NewGroup;
use group::ids::GroupId;

/// What a core knows of groups that come into being while it runs.
#[derive(Debug)]
pub(crate) struct Founding {
    pub(crate) hash_seed: u64,
    /// Groups below this number are there, or the host brings them.
    pub(crate) looked_at: u32,
    /// Replicas that have begun, but not durably yet.
    pub(crate) begun: BTreeMap<GroupId, Begun>,
    /// Groups that have gone, and since when this core knows.
    pub(crate) gone: BTreeMap<GroupId, Instant>,
    /// Those of which readers of what groups do have been told the end, where no replica is left.
    pub(crate) told_gone: BTreeSet<GroupId>,
}

/// A replica that is bringing its beginning to the disk.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) membership: Membership,
    pub(crate) hard_state: HardState,
    pub(crate) entry: Entry,
    /// It has never been anything before.
    pub(crate) is_new: bool,
    /// What it begins with, if it has split off from another group.
    pub(crate) new: Option<NewGroup>,
}

/// The term of the entry with which a group begins.
pub(crate) const FIRST_TERM: u64 = 1;

/// The ticket of the append that holds it: a replica's own are behind it.
pub(crate) const FIRST_TICKET: u64 = 0;

/// What every replica of a group begins with.
pub(crate) fn beginning() -> (HardState, Entry) {
    let entry = Entry { term: FIRST_TERM, index: 1, kind: EntryKind::Normal, data: Bytes::new() };
    (HardState { term: FIRST_TERM, vote: 0, commit: 1 }, entry)
}
