//! One group on one core: its log, its keyspace, and who waits for what.
//!
//! Writes gather in a batch. At the end of a turn the batch becomes one entry, which is proposed; when it is committed,
//! that is safe at the level in force, it is applied, and the replies leave. Nothing is applied before it is committed,
//! so nothing is ever rolled back and nothing uncommitted is ever seen.
//!
//! ```text
//!   builder ──propose──▶ inflight ──commit──▶ apply ──▶ replies
//!      ▲ writes               ▲ reads that must see the writes before them wait at their place in the batch
//! ```
//!
//! Invariant: only this module can make a [`Committed`], and a session accepts nothing else for a write; see [`Proof`].

mod admin;
mod apply;
mod archive;
mod backup;
mod batches;
mod blocking;
mod catch_up;
mod checkpoint;
mod doubt;
mod endings;
mod gateways;
pub mod in_place;
mod leader;
mod levels;
mod members;
mod merge;
mod migration;
mod news;
mod pace;
mod parts;
mod reads;
mod relief;
mod replica_reads;
mod replicas;
mod requests;
mod reservations;
mod slices;
mod split;
mod status;
mod transactions;
mod transfer;
mod vacancy;
mod witness;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use apply::is_mark_of_leader;
use batches::fail;
use bytes::Bytes;
use consensus::{Change, Message, MessageKind, Options, Refused, Replica, Role, Seed};
use journal::CheckpointMark;
use keyspace::{Keyspace, Limits, Moment};
use leader::{Leader, Lost};
use message::entry::{self, Effect, Item};
use message::roster::{Member, Roster};
use message::slots::{Moved, SlotMap};
use message::{GatewayId, TransactionId};
use parts::{
    BatchNumbers, Counts, Due, Evictions, Leadership, LogMarks, Loss, Members, News, ScriptRoom, Transfers, Wanted,
    Window,
};
use reads::fail_read;
use resp::{Args, Protocol, Span, Writer};
use state::observe;
use state::{Position, Reader, State, Tape, Upkeep};
use stdx::log::{EntryKind, HardState, Membership};
use stdx::{Duration, Instant, Prng, UnixMillis};

use crate::answers::put_locked;
use crate::backup::Backups;
use crate::checkpoint::Checkpointing;
use crate::defect::Defect;
use crate::group_seed::GroupSeed;
use crate::host::AppendFsync;
use crate::ids::{CoreId, GroupId, Level, NodeId, Now, Room, SessionId};
use crate::limits;
use crate::locks::{FencingToken, Locks};
use crate::output::{NodeView, Output, PeerMessage};
use crate::overlay::Speculation;
use crate::published::Published;
use crate::refusals::{LEADER_LOST, OUTCOME_UNKNOWN};
use crate::requests::PrepareAnswer;
use crate::requests::{Lock, Locked, Origin, Request, RequestBody, Resolution};
use crate::timeline::Kind;
use crate::write_set::WriteSet;

pub use doubt::{first_membership, group_count, membership_of, others_can_tell};

pub use crate::proof::{Committed, Observed, Proof};
pub use migration::LEVEL_OF_SPLITS;

/// A group's replica on this node.
pub struct Group {
    id: GroupId,
    node: NodeId,
    /// What the replicas agree on. Only entries of the log change it.
    pub(crate) state: State,
    replica: Replica,
    members: Members,
    hard_state: HardState,
    /// What an acknowledgement means.
    pub append_fsync: AppendFsync,
    /// This node obeys entries that need not be on its disk, and remembers that it may lack them after a crash.
    pub allows_memory: bool,

    /// What only a leader has.
    pub(crate) leader: Leader,
    batch: BatchNumbers,
    window: Window,
    /// Large values on their way.
    slices: slices::Slices,
    /// True while this replica leads and has applied an entry of its own term: until then it may lack what earlier
    /// leaders acknowledged.
    is_serving: bool,
    next_read_context: u64,

    news: News,

    /// A question waits until no locks are held: no more are granted before it has been answered.
    pub(crate) is_barred: bool,
    /// Since when this replica has held prepared transactions, as far as it has looked.
    prepared_since: BTreeMap<TransactionId, Instant>,
    leadership: Leadership,
    due: Due,
    /// Commit index when it last did.
    committed_seen: u64,
    archive_told: archive::ArchiveTold,
    transfer: Transfers,
    loss: Loss,
    pub(crate) log: LogMarks,
    pub(crate) wanted: Wanted,
    script: ScriptRoom,
    /// Requests of gateways of this node that want to know when they have been applied here.
    awaited: BTreeSet<(GatewayId, u64)>,

    /// Reads of clients of this node while another one leads.
    replica_reads: replica_reads::ReplicaReads,
    /// What is known where the group does not live on this node.
    vacancy: vacancy::Vacancy,
    splits: split::Splits,
    pub(crate) checkpointing: Checkpointing,
    pub(crate) backups: Backups,
    last_tick: Instant,
    last_progress: Option<Instant>,
    spans: Vec<Span>,
    pub(crate) evictions: Evictions,
    counts: Counts,
    /// Set by the simulator to prove that its checkers are awake.
    acknowledges_early: bool,
    /// The same.
    pub(crate) defect: Option<Defect>,
}

/// What waits at a place in a batch.
#[derive(Debug)]
pub(crate) enum Waiter {
    /// A client, for the reply of the next item.
    Write(Origin),
    /// Nobody, for the next item.
    Silent,
    /// The next item removes a key that was chosen for eviction.
    Eviction(u16, Vec<u8>, usize),
    /// A gateway, for the next item to be prepared, installed or resolved.
    Step(Origin),
    /// A read that comes after the items before it.
    Read(Box<DeferredRead>),
    /// A lock already taken: its keys are read here, if it is still under the same fencing token.
    Fetch(Box<DeferredRead>),
    /// A script's client, for the next item, which holds the script's changes; with the reply.
    Script(Origin, Box<Finished>),
    /// A client with a script that has changed nothing and seen what the items before this place do; with the reply.
    Told(Origin, Box<Finished>),
}

impl Waiter {
    /// The client or gateway to answer.
    fn origin(&self) -> Option<&Origin> {
        match self {
            Self::Write(origin) | Self::Step(origin) | Self::Script(origin, _) | Self::Told(origin, _) => Some(origin),
            Self::Read(read) | Self::Fetch(read) => Some(&read.origin),
            Self::Silent | Self::Eviction(..) => None,
        }
    }
}

/// Every write has one, and it is moved a few times: what is rare and large is kept elsewhere.
const _: () = assert!(size_of::<Waiter>() <= size_of::<Origin>() + 16);

/// What a script has left for its client.
#[derive(Debug)]
pub(crate) struct Finished {
    reply: Vec<u8>,
    /// Keys that it has read, if the client keeps what it reads.
    reads: Box<[Vec<u8>]>,
    published: Box<[Published]>,
}

#[derive(Debug)]
pub(crate) struct DeferredRead {
    origin: Origin,
    protocol: Protocol,
    what: ReadWhat,
    /// Number of the next batch to be proposed when it came. When that one is committed, this replica led when the read
    /// was there already.
    before: u64,
}

#[derive(Debug)]
pub(crate) enum ReadWhat {
    /// One query.
    Query(Vec<u8>),
    /// A query over all keys of the group.
    Whole(Vec<u8>),
    /// The versions of keys.
    /// They may be reserved for who asks, from then on for so long.
    Versions(Vec<(u16, Vec<u8>)>, Option<Duration>),
    /// Keys that have been locked under this fencing token.
    Locked(Box<Lock>, FencingToken),
    /// Whether a transaction still holds what it was granted.
    Holds(TransactionId, FencingToken),
    /// How far the group is; for a replica, which has given its question this number.
    AppliedPosition(u64),
    /// How many other nodes hold the log up to this place.
    CopyCount(u64),
    /// Whether a transaction, which another group has committed, has ended here; for that group.
    Ended(TransactionId, GroupId),
    /// Whether the leader obeys parameters of which it has heard.
    Obeys,
    /// Whether the group has begun its part of the backup that this transaction makes.
    Cut(TransactionId),
}

#[derive(Debug)]
struct Batch {
    number: u64,
    index: u64,
    term: u64,
    waiters: Vec<Waiter>,
    /// Reads that came when it was under way: they must see it, and its commitment says nothing about when they came.
    late: Vec<DeferredRead>,
    byte_count: usize,
    data: Bytes,
    write_set: WriteSet,
}

/// Reads that wait for one another's reason.
#[derive(Debug)]
struct ReadRound {
    /// What a quorum was asked under, if one was.
    context: Option<u64>,
    /// How much must have been applied; unknown until the quorum has answered.
    index: Option<u64>,
    reads: Vec<DeferredRead>,
    asked: Instant,
}

#[derive(Debug)]
pub(crate) enum Held {
    Request(Request),
    /// A lock, with when it was asked for.
    Lock(Box<Lock>, Origin, Instant),
}

/// What a new leader has learnt of a transaction without a gateway.
#[derive(Debug, Default)]
struct OpenOutcome {
    prepared_by: Vec<u32>,
    asked: Option<Instant>,
    /// Enough is known, and the outcome is on its way through the log.
    is_decided: bool,
}

/// Whether a group can take a request now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It leads and serves.
    Serving,
    /// It leads, or will, but has not yet applied what it recovered.
    Loading,
    /// Another node leads.
    Follower(NodeId),
    /// Nobody is known to lead.
    Leaderless,
}

fn new_replica(
    found: Seed,
    (node, group): (NodeId, GroupId),
    (recovering, is_new): (bool, bool),
    prng: &mut Prng,
) -> Result<Replica, consensus::Fault> {
    let options = Options {
        recovering,
        is_new,
        // The window above bounds what is proposed, and never refuses a batch half-way.
        uncommitted_bytes_max: u64::MAX,
        incarnation: consensus::first_life(prng.draw()),
        ..Options::new(node.0, group.0, prng.draw())
    };
    Replica::new(options, found)
}

/// The entry that the log of a group begins behind, and its term, where `first` is the first of its entries.
fn floor(first: Option<&stdx::log::Entry>, checkpoint: (u64, u64), is_voter: bool, has_split_off: bool) -> (u64, u64) {
    match first {
        // The log does not say who founded a group: a member that has nothing must be given a checkpoint, never the log
        // from its beginning. So a founder's log goes on behind its first entry, which only says that somebody leads.
        Some(first) if is_voter && first.index == 1 && is_mark_of_leader(first) => (1, first.term),
        // Nor does it hold what a group began with that has split off.
        Some(first) if has_split_off => (first.index, first.term),
        _ => checkpoint,
    }
}

impl Group {
    /// A group as found on disk, or a new one.
    pub fn new(
        seed: GroupSeed,
        group_count: u32,
        node: NodeId,
        append_fsync: AppendFsync,
        prng: &mut Prng,
        now: Now,
    ) -> Result<Self, consensus::Fault> {
        let GroupSeed {
            group,
            keyspace,
            hard_state,
            membership,
            checkpoint_index,
            checkpoint_term,
            entries,
            is_recovering,
            state: saved,
            beginning,
            unkept,
            is_new,
            was_given_up,
        } = seed;
        let is_voter = membership.voters.contains(&node.0);
        let checkpoint = (checkpoint_index, checkpoint_term);
        let (floor_index, floor_term) = floor(entries.first(), checkpoint, is_voter, beginning.is_some());
        let recovered_index = entries.last().map_or(checkpoint_index, |entry| entry.index);
        let log_bytes = entries.iter().map(|entry| entry.data.len() as u64).sum();
        let lost_commit = if recovered_index == 0 { hard_state.commit } else { 0 };
        // A replica that has given up its log does not know any more what it has acknowledged.
        let is_emptied = recovered_index == 0 && hard_state != HardState::default();
        let acknowledged_before = if is_emptied { u64::MAX } else { recovered_index };
        let databases = keyspace.database_count();
        let found = Seed {
            hard_state,
            membership: membership.clone(),
            checkpoint_index: floor_index,
            checkpoint_term: floor_term,
            entries,
        };
        let mut replica = new_replica(found, (node, group), (is_recovering, is_new), prng)?;
        replica.tell_time(now.instant);
        if checkpoint_index > 0 {
            replica.offer_checkpoint(checkpoint_index, checkpoint_term, membership.clone());
        }
        let born = beginning.as_ref().map(|split| split.born);
        let state = match beginning {
            Some(split) => split.state,
            None => {
                let mut state = State::new(group, group_count, keyspace);
                state.load(&saved, Position { index: floor_index, term: floor_term });
                state
            }
        };
        let mut this = Self {
            id: group,
            node,
            state,
            replica,
            members: Members { applied: membership, are_by_log: false, acknowledged_before },
            hard_state,
            append_fsync,
            allows_memory: false,
            leader: Leader::new(databases),
            batch: BatchNumbers { number: 1, of_removal: 0, of_numbering: 0, unix: UnixMillis(i64::MIN) },
            window: Window::new(),
            slices: slices::Slices::default(),
            archive_told: archive::ArchiveTold::default(),
            is_serving: false,
            next_read_context: 0,
            news: News::default(),
            is_barred: false,
            prepared_since: BTreeMap::new(),
            leadership: Leadership { since: now.instant, is_new: false, before: None, is_asked: false },
            due: Due { reconcile: Instant::ZERO, group_status: Instant::ZERO, balance: Instant::ZERO },
            committed_seen: 0,
            transfer: Transfers { taking: None, failed: None, is_awaited: false },
            loss: Loss { is_overtaken: false, doubt_told: now.instant, commit: lost_commit },
            log: LogMarks {
                held: None,
                told_keep: (u64::MAX, Instant::ZERO),
                bytes_max: limits::LOG_BYTES_MAX,
                marked_index: checkpoint_index,
                bytes: log_bytes,
                altered_saved: 0,
                first_index: checkpoint_index,
                recovered_index,
            },
            wanted: Wanted {
                level: stdx::Level::FIRST,
                level_logged: stdx::Level::FIRST,
                limits: Limits::default(),
                import_mode: None,
                limits_logged: Limits::default(),
            },
            script: ScriptRoom { last: now.instant, words: Vec::new(), reply: Vec::new() },
            awaited: BTreeSet::new(),
            replica_reads: replica_reads::ReplicaReads::new(prng.draw() >> 8),
            vacancy: vacancy::Vacancy::default(),
            splits: split::Splits::new(born, unkept, was_given_up),
            checkpointing: Checkpointing::default(),
            backups: Backups::default(),
            last_tick: now.instant,
            last_progress: None,
            spans: Vec::new(),
            evictions: Evictions { bytes: 0, keys: BTreeSet::new(), count: 0 },
            counts: Counts { repeated: 0, reserved: 0, reservations_lapsed: 0 },
            acknowledges_early: false,
            defect: None,
        };
        if !saved.is_empty() || born.is_some() {
            this.note_loaded();
        }
        if born.is_some() {
            this.want_checkpoint();
        }
        Ok(this)
    }

    /// Which group.
    #[inline]
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// Index of the last entry applied.
    #[inline]
    pub fn applied(&self) -> u64 {
        self.state.applied().index
    }

    /// Term of the last entry applied.
    pub fn applied_term(&self) -> u64 {
        self.state.applied().term
    }

    /// Who takes part.
    pub fn membership(&self) -> &Membership {
        self.replica.membership()
    }

    /// Who took part as of the last entry applied.
    pub(crate) fn membership_applied(&self) -> &Membership {
        &self.members.applied
    }

    /// Raft's term.
    pub fn term(&self) -> u64 {
        self.replica.term()
    }

    /// True if this replica leads.
    pub fn is_leader(&self) -> bool {
        self.replica.is_leader()
    }

    /// Moment of the last entry applied.
    #[inline]
    pub fn moment(&self) -> Moment {
        self.state.moment()
    }

    /// True while this replica leads, and has applied an entry of its own term.
    #[inline]
    pub fn is_serving(&self) -> bool {
        self.is_serving
    }

    /// True if the cluster has lost entries that have been applied here: the process has to end.
    pub fn is_overtaken(&self) -> bool {
        self.loss.is_overtaken
    }

    /// Term and index of the last entry of its log: the greater, the further. `None` if it holds nothing.
    pub fn end_of_log(&self) -> Option<(u64, u64)> {
        let index = self.replica.last_index();
        self.replica.term_at(index).filter(|_| !self.is_vacant()).map(|term| (term, index))
    }

    /// Changes of membership in its log that have not been applied, each with its index.
    pub fn changes_to_come(&self) -> impl Iterator<Item = (u64, Option<Change>)> {
        self.replica.changes_to_come()
    }

    /// Bytes of applied entries of the log that are in memory.
    pub fn applied_log_bytes(&self) -> usize {
        self.replica.log_bytes().saturating_sub(self.replica.log_bytes_after(self.applied()) as usize)
    }

    /// Bytes proposed and not yet applied.
    #[inline]
    pub fn window_bytes(&self) -> usize {
        self.window.inflight_bytes + self.leader.builder.byte_count() - self.leader.sliced_bytes
    }

    /// True if no more writes may be admitted for now.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.window_bytes() > self.window.bytes_max
    }

    /// True if the group has one voter, this node: then a read needs nobody's confirmation.
    #[inline]
    pub fn is_alone(&self) -> bool {
        self.replica.is_alone()
    }

    /// Makes this group acknowledge writes before they are safe. Only the simulator has a use for it: a checker that
    /// does not catch this is asleep.
    #[doc(hidden)]
    pub fn break_by_acknowledging_early(&mut self) {
        self.acknowledges_early = true;
    }

    /// Makes leases of this group outlast the promises that they rest on. Only the simulator has a use for it.
    #[doc(hidden)]
    pub fn break_by_stretching_leases(&mut self) {
        self.replica.break_by_stretching_leases();
    }

    /// Makes this replica forget what it has promised before it was started. Only the simulator has a use for it.
    #[doc(hidden)]
    pub fn break_by_voting_at_once(&mut self) {
        self.replica.break_by_voting_at_once();
    }

    /// Makes this replica believe any term that others say. Only the simulator has a use for it.
    #[doc(hidden)]
    pub fn break_by_believing_terms(&mut self) {
        self.replica.break_by_believing_terms();
    }

    /// Makes this replica vote as if its log had no lost end. Only the simulator has a use for it.
    #[doc(hidden)]
    pub fn break_by_trusting(&mut self) {
        self.replica.trust();
    }

    /// Gives this group a defect. Only the simulator has a use for it.
    pub fn break_by(&mut self, defect: Defect) {
        self.defect = Some(defect);
        if defect == Defect::ForgottenAnswer {
            self.state.break_by_forgetting_answers();
        }
    }

    /// True if leadership is being handed to another node.
    pub fn is_handing_over(&self) -> bool {
        self.replica.is_handing_over()
    }

    /// True if reads are answered here at this instant without asking anybody.
    pub fn has_lease(&self, now: Instant) -> bool {
        self.replica.has_lease(now)
    }

    /// Whether a request can be taken.
    #[inline]
    pub fn standing(&self) -> Standing {
        if self.is_serving {
            return Standing::Serving;
        }
        if self.is_alone() {
            return Standing::Loading;
        }
        if self.is_vacant() {
            let (leader, _) = self.led_elsewhere();
            return leader.filter(|leader| *leader != self.node).map_or(Standing::Leaderless, Standing::Follower);
        }
        match self.replica.leader() {
            Some(leader) if leader != self.node.0 => Standing::Follower(NodeId(leader)),
            _ => Standing::Leaderless,
        }
    }

    /// True if clients of this core need nobody's help: the group serves, and has no other voter.
    #[inline]
    pub fn serves_at_once(&self) -> bool {
        self.is_serving && self.is_alone()
    }

    /// How far the recovered log has been applied, in percent.
    pub fn loaded_percent(&self) -> u64 {
        let total = self.log.recovered_index - self.log.first_index;
        ((self.applied().min(self.log.recovered_index) - self.log.first_index) * 100).checked_div(total).unwrap_or(100)
    }

    // ---- transactions over several groups -------------------------------------------------------------------------

    // ---- the log --------------------------------------------------------------------------------------------------

    /// Takes a message of another replica. `may_vote_first`: this one may be among those that vote since the group
    /// began.
    pub fn step(&mut self, message: Message, may_vote_first: bool) {
        if self.is_vacating() {
            return; // it is nobody any more, and not yet somebody else
        }
        if Self::is_offer(&message) {
            return; // it comes as an offer, when the checkpoint is there
        }
        if self.is_serving {
            self.leader.heard.insert(message.from(), self.last_tick);
        } else if self.replica.leader() == Some(message.from())
            // One that asks for votes leads no more.
            && !matches!(message.kind(), MessageKind::PreVote | MessageKind::Vote)
        {
            self.leadership.before = Some((message.from(), self.last_tick));
            self.leadership.is_asked = message.kind() == MessageKind::HandOver;
        }
        // It is one, and holds nothing, if the node lost power before the beginning was on its disk. And a split makes
        // voters of all who voted in the other group, also of one that gave that up without applying it.
        self.replica.let_vote_vacant(may_vote_first && self.was_never_anything());
        // A message that is not for this replica changes nothing; its sender will send again what matters.
        let from = message.from();
        self.loss.is_overtaken |= self.replica.step(message) == Err(Refused::Overtaken);
        if let Some(leader) = self.replica.leader().filter(|leader| *leader == from || *leader == self.node.0) {
            self.note_leader(leader);
        }
    }

    /// An append is as safe as it was asked for.
    pub fn persisted(&mut self, ticket: u64) {
        if self.is_vacated_by(ticket) {
            return;
        }
        self.replica.persisted(ticket);
    }

    /// The end of a turn: time passes, the batch is proposed, what is committed is applied. True if there is more to do
    /// at once.
    pub fn turn(&mut self, now: Now, prng: &mut Prng, output: &mut impl Output) -> bool {
        if self.look_after_vacancy(now, prng, output) {
            return false;
        }
        self.replica.tell_time(now.instant);
        self.pass_time(now, output);
        if std::mem::take(&mut self.leadership.is_new) {
            self.leadership.since = now.instant;
            self.leader.locks.touch(now.instant);
            self.tell_lead(now, output);
        }
        self.reconcile(now, output);
        self.look_after_splits(now, output);
        self.look_after_end(output);
        self.look_after_moves(now, prng, output);
        if (std::mem::take(&mut self.leader.has_decided) | self.leader.reservations.take_ended())
            && !self.leader.held.is_empty()
        {
            self.admit_held(now, output);
        }
        self.tell_group_status(now, output);
        self.serve_reads(now, output);
        let mut more = self.has_slices() && self.turn_slices(now, output);
        self.propose(now, output.view().latest_moment(), prng);
        more |= self.pump(now, output);
        self.settle_taking(output);
        // Applying may have let waiting requests in, and reads that had to see what was applied.
        let asked = self.serve_reads(now, output);
        let proposed = self.propose(now, output.view().latest_moment(), prng);
        if asked || proposed {
            more |= self.pump(now, output);
        }
        self.answer_replica_reads(now, output);
        self.take_sounding(now, output);
        more
    }

    fn pass_time(&mut self, now: Now, output: &mut impl Output) {
        while now.instant.since(self.last_tick) >= limits::TICK_INTERVAL {
            // After a long pause of the process a burst of ticks would be an election storm.
            let late = now.instant.since(self.last_tick) > limits::TICK_INTERVAL * 4;
            self.last_tick = if late { now.instant } else { self.last_tick + limits::TICK_INTERVAL };
            // A node that has been removed asks nobody for a vote; one that led finds out that nobody follows.
            if !output.view().is_expelled() || self.replica.is_leader() {
                self.replica.tick();
                self.stand_again();
            }
            if self.is_serving {
                self.leader.pace.reach(now.instant, self.replica.last_index());
                self.watch_troubles(now, output.view().room());
            }
            // What has expired is read by nobody: that may wait until there is room for an entry that says so.
            let may_log = *output.view().room() == Room::Enough;
            if self.is_serving && may_log && self.leader.builder.is_empty() && self.is_expiry_due(now) {
                self.leader.builder.tick();
                self.leader.waiters.push(Waiter::Silent);
            }
        }
        let last_use = now.instant.since(self.script.last);
        if self.leader.speculation.is_active
            && last_use >= limits::SCRIPT_MEMORY
            && self.leader.speculation.is_settled()
        {
            self.leader.speculation.clear();
        }
        if self.is_serving {
            self.look_after_reservations(now);
            self.look_after_transactions(now, output);
            self.look_after_gateways(now, output);
            self.look_after_endings(now, output);
            if !self.leader.open_outcomes.is_empty() {
                self.ask_about_prepared(now, output);
            }
        } else if self.is_alone() && self.log.recovered_index > self.log.first_index {
            self.tell_progress(now, output);
        }
        self.tell_archive(now, output);
        self.look_after_transfers(now, output);
        self.keep_log(now, output);
        self.look_after_cut(now, output);
        self.look_after_doubt(now, output);
        self.drop_stale_reads(now, output);
    }

    /// True if a key's deadline has passed and the log does not know it yet: then an entry must carry the moment.
    fn is_expiry_due(&self, now: Now) -> bool {
        self.state
            .keyspace()
            .next_deadline()
            .is_some_and(|deadline| deadline <= now.unix && deadline > self.moment().unix)
            || self.state.request_ids().next_due().is_some_and(|due| due <= now.unix)
    }

    fn tell_progress(&mut self, now: Now, output: &mut impl Output) {
        let last = *self.last_progress.get_or_insert(now.instant);
        if now.instant.since(last) >= Duration::from_secs(1) {
            self.last_progress = Some(now.instant);
            let line = format!("group {}: {} % of the recovered log applied", self.id.0, self.loaded_percent());
            output.log(Level::Notice, line);
        }
    }

    /// Carries out what the replica wants until it wants nothing more, or until the turn's share of work is done.
    fn pump(&mut self, now: Now, output: &mut impl Output) -> bool {
        let mut applied_bytes = 0;
        // A checkpoint that has come takes the place of what is committed and not applied here: however much that is,
        // the replica is asked now whether it takes the checkpoint over.
        let has_come = self.has_come();
        let mut must_ask = has_come;
        // The replica goes on meanwhile: anyone who takes long to apply what is committed is not to be taken for dead.
        let mut waits = !has_come && !self.apply_committed(&mut applied_bytes, now, output);
        while !self.is_installing()
            && (std::mem::take(&mut must_ask) || !self.has_enough_to_apply())
            && let Some(ready) = self.replica.take_ready()
        {
            if let Some(role) = ready.became {
                self.change_role(role, output);
            }
            for message in ready.messages {
                output.send_to_replica(NodeId(message.to()), self.id, PeerMessage::Raft(&message));
            }
            for transfer in ready.transfers {
                self.give(transfer, now, output);
            }
            match (ready.append, ready.restored) {
                (Some(append), Some(restored)) => {
                    assert!(append.entries.is_empty(), "entries behind a checkpoint that is not durable");
                    self.forget_committed(); // it is part of the checkpoint
                    waits = false;
                    self.hard_state = append.hard_state.unwrap_or(self.hard_state);
                    self.take_over(&restored, append.ticket, self.hard_state, output);
                }
                (Some(append), None) => self.append(append, output),
                (None, _) => {}
            }
            for read in ready.reads {
                if let Some(round) = self.leader.rounds.iter_mut().find(|round| round.context == Some(read.context)) {
                    round.index = Some(read.index);
                }
            }
            self.window.committed_bytes += ready.committed.iter().map(|entry| entry.data.len()).sum::<usize>();
            self.window.committed.extend(ready.committed);
            waits = waits || !self.apply_committed(&mut applied_bytes, now, output);
            self.answer_confirmed_reads(now, output);
            if applied_bytes > limits::APPLY_BYTES_PER_TURN {
                self.forget_log();
                return true;
            }
        }
        if has_come && !self.is_installing() {
            waits |= !self.apply_committed(&mut applied_bytes, now, output);
        }
        self.fail_batches_never_proposed(output);
        if self.is_serving {
            self.leader.pace.watch(now.instant, &self.replica);
        }
        self.forget_log();
        self.read_log(output);
        waits
    }

    fn change_role(&mut self, role: Role, output: &mut impl Output) {
        if role == Role::Leader {
            assert!(!self.is_serving, "a replica that serves cannot begin to lead");
            return; // serving begins when an entry of the new term has been applied
        }
        self.is_serving = false;
        self.backups.give_up(output);
        self.stop_slices(output);
        let Lost { held, reads, waiters, mut wait_queues } =
            self.leader.step_down(self.state.keyspace().database_count());
        wait_queues.clear(&mut self.state.upkeep());
        for held in held {
            match held {
                Held::Request(request) => fail(&request.origin, request.protocol, LEADER_LOST, output),
                Held::Lock(_, origin, _) => output.send_back(&origin),
            }
        }
        for read in reads {
            fail_read(&read, LEADER_LOST, output);
        }
        self.fail(waiters, output);
        assert!(self.leader.waiters.is_empty() && self.leader.builder.is_empty(), "a follower gathers no batch");
    }

    // ---- applying -------------------------------------------------------------------------------------------------

    // ---- the state, for checkpoints and for the cores -------------------------------------------------------------

    /// What a checkpoint holds beside the keyspace.
    pub(crate) fn checkpoint_state(&mut self) -> Vec<u8> {
        match self.defect {
            Some(Defect::ForgottenPrepared) => self.state.save_without_prepared(),
            Some(Defect::ForgottenRequestIds) => self.state.save_without_request_ids(),
            _ => self.state.save(),
        }
    }

    /// The state has come from a checkpoint: cores do not know what it says of nodes, slots, libraries and parameters.
    fn note_loaded(&mut self) {
        self.news.has_roster = true;
        self.news.has_libraries = true;
        self.news.has_parameters = true;
        self.news.has_level = true;
        self.splits.has_passed = true;
        self.news.slots = self.state.slots().moved().collect();
    }

    /// What the replicas agree on.
    #[inline]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What may be done to the state by any replica, because it changes no data.
    #[inline]
    pub fn upkeep(&mut self) -> Upkeep<'_> {
        self.state.upkeep()
    }

    /// From now on tells what is done, in the words of such a reader; or no longer.
    pub fn record(&mut self, reader: Option<Reader>) {
        self.state.record(reader);
    }

    /// What has been done since it was last asked, if that is told.
    pub fn take_tape(&mut self) -> Option<Tape> {
        self.state.take_tape()
    }

    /// A question waits until no locks are held: no more are granted before it has been answered.
    pub fn is_barred(&self) -> bool {
        self.is_barred
    }

    /// See [`Group::is_barred`].
    pub fn bar(&mut self, is_barred: bool) {
        self.is_barred = is_barred;
    }

    /// Bytes of log since the last checkpoint.
    pub fn log_bytes(&self) -> u64 {
        self.log.bytes
    }

    /// Bytes of keys that are being evicted.
    pub fn evicting_bytes(&self) -> usize {
        self.evictions.bytes
    }

    /// What is known of checkpoints.
    pub fn checkpointing(&self) -> &Checkpointing {
        &self.checkpointing
    }

    /// There is log enough for a checkpoint, and other nodes write theirs first.
    pub fn let_checkpoint_wait(&mut self, is_waiting: bool) {
        self.checkpointing.is_waiting = is_waiting;
    }

    /// Of group 0: who belongs to the cluster.
    pub fn roster(&self) -> &Roster {
        self.state.roster()
    }

    /// Logs what the others must know of a node. The group must be [`Standing::Serving`].
    pub fn enlist(&mut self, node: NodeId, member: &Member) {
        self.leader.builder.enlist(node, member);
        self.leader.waiters.push(Waiter::Silent);
    }

    /// A message to this node may have been lost.
    pub fn report_unreachable(&mut self, node: NodeId) {
        self.replica.report_unreachable(node.0);
    }

    /// Writes out all data as a checkpoint would and reads it back (DEBUG RELOAD).
    pub fn reload(&mut self) {
        self.state.reload(limits::CHECKPOINT_CHUNK_BYTES).expect("just written");
        self.log.altered_saved = self.state.keyspace().altered_count();
    }

    /// A checkpoint is on disk: members can be given it, and log before it need not be kept.
    pub fn marked(&mut self, mark: CheckpointMark, now: Now) {
        self.log.marked_index = mark.index;
        if std::mem::take(&mut self.transfer.is_awaited) {
            self.hold_log(mark.index, now.instant + limits::LOG_HOLD);
        }
        // From here on the host keeps only what it was told to keep.
        self.replica.compact(mark.index.min(self.log.told_keep.0).min(self.applied()));
        self.replica.offer_checkpoint(mark.index, mark.term, mark.membership);
    }

    /// A checkpoint begins: if a member waits for it, the log behind it is kept.
    pub(crate) fn begin_holding(&mut self, now: Now) {
        if self.transfer.is_awaited {
            self.hold_log(self.applied(), now.instant + limits::LOG_HOLD_FOR_CHECKPOINT);
        }
    }

    /// Digest of all that replicas must agree on.
    pub fn digest(&self) -> u64 {
        self.state.digest()
    }

    /// True if nothing is proposed, prepared or waiting.
    pub fn is_idle(&self) -> bool {
        self.window.inflight.is_empty()
            && self.leader.builder.is_empty()
            && self.state.prepared().is_empty()
            && self.leader.held.is_empty()
            && self.window.committed.is_empty()
            && !self.has_slices()
    }
}
