//! What a replica has only while it leads.
//!
//! All of it is dropped in one statement when leadership is lost, so nothing of it outlives the role: a field that a
//! leader needs belongs here, and is then reset by nobody in particular. What is in [`Lost`] has clients or gateways
//! behind it, who have to be told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use keyspace::Moment;
use message::entry::Builder;
use message::{GatewayId, TransactionId};
use stdx::Instant;

use super::pace::Pace;
use super::{
    DeferredRead, Held, OpenOutcome, ReadRound, Waiter, endings, gateways, merge, migration, relief, reservations,
    transfer,
};
use crate::cost::Cost;
use crate::group_status::Halves;
use crate::locks::Locks;
use crate::overlay::Speculation;
use crate::wait_queues::WaitQueues;
use crate::write_set::WriteSet;

/// See the module.
pub(crate) struct Leader {
    /// The batch being gathered, which will be the next entry.
    pub(super) builder: Builder,
    /// The moment that the present batch must carry, since a script has run at it.
    pub(super) builder_moment: Option<Moment>,
    /// What the batch works on, as far as somebody has asked.
    pub(super) write_set: WriteSet,
    /// Who waits for what of the batch.
    pub(super) waiters: Vec<Waiter>,
    /// Bytes of large values in the batch, which take nothing of the window.
    pub(super) sliced_bytes: usize,
    /// Reads of groups with several voters, by the round that will confirm them.
    pub(super) rounds: VecDeque<ReadRound>,
    /// Reads that no round has been begun for.
    pub(super) reads: Vec<DeferredRead>,
    /// Who has locked what.
    pub(super) locks: Locks,
    /// Transactions have been decided since those were last looked at that wait for locks.
    pub(super) has_decided: bool,
    /// What is kept for clients that have watched it.
    pub(super) reservations: reservations::Reservations,
    /// Whether the gateways that hold locks are still there.
    pub(super) gateways: gateways::Gateways,
    /// Requests that touch locked keys, in order of arrival.
    pub(super) held: VecDeque<Held>,
    /// Sessions that have a request among them, by node and serial: what they send later waits behind it.
    pub(super) held_sessions: BTreeSet<(u64, u64)>,
    /// What is asked about transactions that were prepared and have no gateway.
    pub(super) open_outcomes: BTreeMap<TransactionId, OpenOutcome>,
    /// Transactions that have ended here and about which others may still ask.
    pub(super) endings: endings::Endings,
    /// Clients that wait for data.
    pub(crate) wait_queues: WaitQueues,
    /// Number of the last request heard from each gateway.
    pub(super) streams: BTreeMap<GatewayId, u64>,
    /// When members were last heard, to a tick.
    pub(super) heard: BTreeMap<u64, Instant>,
    /// When nodes last said that they hold nothing of the group.
    pub(super) vacant: BTreeMap<u64, Instant>,
    /// How late followers are, and how fast disks.
    pub(super) pace: Pace,
    /// Why another should lead.
    pub(super) relief: relief::Relief,
    /// How many checkpoints each member has been given.
    pub(super) given: BTreeMap<u64, u64>,
    /// Checkpoints on their way to members.
    pub(super) giving: Vec<transfer::Giving>,
    /// Slots that are given to other groups.
    pub(super) mover: migration::Mover,
    /// Where the group would be split, as was told last.
    pub(super) halves: Option<Halves>,
    /// How far a group is that is to go.
    pub(super) ending: merge::Ending,
    /// What scripts see of what is not applied yet.
    pub(super) speculation: Speculation,
    /// Sessions with a script that has become a transaction, by node and serial: what they send later waits.
    pub(super) kept_out: BTreeSet<(u64, u64)>,
    /// Sessions with requests that must be made again elsewhere, by gateway and serial: what they have sent since
    /// follows.
    pub(super) redirected: BTreeMap<(GatewayId, u64), migration::Redirected>,
    /// Scripts of gateways that have run here, with entries that are not applied yet: they must not run again. With
    /// what they have taken.
    pub(super) scripts_under_way: BTreeMap<(GatewayId, u64), Cost>,
}

/// What was left unanswered when leadership was lost.
pub(super) struct Lost {
    /// Requests and locks that waited for locked keys.
    pub(super) held: VecDeque<Held>,
    /// Reads that waited for a quorum.
    pub(super) reads: Vec<DeferredRead>,
    /// Who waited for a batch that will never be an entry.
    pub(super) waiters: Vec<Waiter>,
    /// Clients that waited for data.
    pub(super) wait_queues: WaitQueues,
}

impl Leader {
    /// Before anybody has asked for anything. Keys are in so many databases.
    pub(super) fn new(databases: u16) -> Self {
        Self {
            builder: Builder::default(),
            builder_moment: None,
            write_set: WriteSet::default(),
            waiters: Vec::new(),
            sliced_bytes: 0,
            rounds: VecDeque::new(),
            reads: Vec::new(),
            locks: Locks::default(),
            has_decided: false,
            reservations: reservations::Reservations::default(),
            gateways: gateways::Gateways::default(),
            held: VecDeque::new(),
            held_sessions: BTreeSet::new(),
            open_outcomes: BTreeMap::new(),
            endings: endings::Endings::default(),
            wait_queues: WaitQueues::default(),
            streams: BTreeMap::new(),
            heard: BTreeMap::new(),
            vacant: BTreeMap::new(),
            pace: Pace::default(),
            relief: relief::Relief::default(),
            given: BTreeMap::new(),
            giving: Vec::new(),
            mover: migration::Mover::default(),
            halves: None,
            ending: merge::Ending::default(),
            speculation: Speculation::new(databases),
            kept_out: BTreeSet::new(),
            redirected: BTreeMap::new(),
            scripts_under_way: BTreeMap::new(),
        }
    }

    /// Leadership is lost. Only how many locks have been granted is kept: no two tokens of a replica are the same.
    pub(super) fn step_down(&mut self, databases: u16) -> Lost {
        let mut next = Self::new(databases);
        next.locks = self.locks.successor();
        let Self { held, rounds, reads, waiters, wait_queues, .. } = std::mem::replace(self, next);
        let in_rounds = rounds.into_iter().flat_map(|round| round.reads);
        Lost { held, reads: in_rounds.chain(reads).collect(), waiters, wait_queues }
    }
}
