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

mod archive;
mod bulletin;
mod catch_up;
mod doubt;
mod endings;
mod gateways;
mod govern;
mod leader;
mod live;
mod members;
mod moving;
mod nearby;
mod pace;
mod proof;
mod relief;
mod replicas;
mod reservations;
mod slices;
mod split;
mod transfer;
mod vacancy;
mod witness;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use command::Flag;
use consensus::{Change, Message, MessageKind, Options, Refused, Replica, Role, Seed};
pub use doubt::{first_membership, group_count, membership_of, others_can_tell};
use journal::{Append, CheckpointMark};
use keyspace::{Class, Exporting, Keyspace, Limits, Lookups, Moment, Notice};
use resp::{Args, Protocol, Span, Writer};
use state::{Applied, Cursor, Known, Lookup, Position, State, What};
use stdx::log::{Entry, EntryKind, HardState, Membership};
use stdx::{Duration, Instant, Levels, Prng, UnixMillis, leb128};

use crate::backup::Backups;
use crate::checkpoint::Checkpointing;
use crate::commands::GroupFigures;
use crate::core::Context;
use crate::defect::Defect;
use crate::entry::{self, Builder, Claimed, Durability, Effect, Item, Watch};
use crate::event::{Action, CoreId, GroupId, GroupSeed, Level, NodeId, Now, Persist, Room, SessionId};
use crate::letter::{
    Claim, Fate, Lock, Locked, Mail, Origin, PlainKind, PlainRequest, Request, RequestBody, Resolution,
};
use crate::libraries::Libraries;
use crate::limits;
use crate::locks::{Grant, Locks};
use crate::observe;
use crate::outlet::Outlet;
use crate::parameters::Parameters;
use crate::pubsub;
use crate::relay::Route;
use crate::request_ids;
use crate::roster::{Member, Roster};
use crate::settings::AppendFsync;
use crate::slots::{Moved, SlotMap};
use crate::speculation::Speculation;
use crate::timeline::Kind;
use crate::timing::Timings;
use crate::toll::{Measure, Toll};
use crate::touched::Touched;
use crate::tracking::Author;
use crate::transaction::{GatewayId, PrepareAnswer, TransactionId};
use crate::wire::{self, put_locked};

use leader::{Leader, Lost};
pub(crate) use live::{Declined, Run};
pub(crate) use moving::LEVEL_OF_SPLITS;
pub use proof::{Committed, Observed, Proof};
pub(crate) use relief::no_room;
pub(crate) use replicas::NO_REPLICAS;
pub(crate) use state::is_null;
use witness::Witness;

/// A group's replica on this node.
pub struct Group {
    id: GroupId,
    node: NodeId,
    /// What the replicas agree on. Only entries of the log change it.
    pub(crate) state: State,
    replica: Replica,
    /// Who took part as of the last entry applied: what a checkpoint of it says. Anyone who decides something asks the
    /// replica, which knows of changes that are committed and not yet applied here.
    membership_applied: Membership,
    /// It follows from entries that came since this life began. A checkpoint that was given, or a log that was there at
    /// the start, may be older than what this replica once acknowledged.
    is_member_by_log: bool,
    hard_state: HardState,
    /// What an acknowledgement means.
    pub append_fsync: AppendFsync,
    /// This node obeys entries that need not be on its disk, and remembers that it may lack them after a crash.
    pub allows_memory: bool,

    /// What only a leader has.
    pub(crate) leader: Leader,
    /// Number of the present batch; the first is 1.
    batch_number: u64,
    /// The batch in which a node was last told to leave; 0 if none was.
    removal_batch: u64,
    /// The batch in which a group was last given a number; 0 if none was.
    numbering_batch: u64,
    /// Committed and not yet applied, in log order. Nothing stays here while this replica serves.
    committed: VecDeque<Entry>,
    /// Bytes of them.
    committed_bytes: usize,
    /// Large values on their way.
    slices: slices::Slices,
    /// Proposed and not yet applied, in log order.
    inflight: VecDeque<Batch>,
    inflight_bytes: usize,

    /// Wall clock of the last entry proposed.
    proposed_unix: UnixMillis,
    /// True while this replica leads and has applied an entry of its own term: until then it may lack what earlier
    /// leaders acknowledged.
    is_serving: bool,
    next_read_context: u64,

    /// What has become of slots since that was last asked for.
    slot_news: Vec<Moved>,

    /// A question waits until no locks are held: no more are granted before it has been answered.
    pub(crate) is_barred: bool,
    /// Since when this replica has held prepared transactions, as far as it has looked.
    prepared_since: BTreeMap<TransactionId, Instant>,
    /// Where the group was led when that was last told.
    told_route: Option<Route>,
    /// Since when this replica serves.
    serving_since: Instant,
    is_newly_serving: bool,

    /// The roster has changed since it was last asked for.
    is_roster_new: bool,
    /// When the leader next looks at which nodes take part.
    reconcile_at: Instant,
    /// When the leader next tells all nodes how the group is.
    bulletin_at: Instant,
    /// Of the metadata: when the leader next looks whether a group should live elsewhere.
    balance_at: Instant,
    /// Commit index when it last did.
    committed_seen: u64,
    /// The node that led before, and when it was last heard, to a tick.
    led_before: Option<(u64, Instant)>,
    /// The leader has asked this replica to lead.
    is_asked_to_lead: bool,
    archive_told: archive::ArchiveTold,
    /// A checkpoint on its way from the leader.
    taking: Option<transfer::Taking>,
    /// When one could not be kept.
    taking_failed: Option<Instant>,
    /// The cluster has lost entries that have been applied here.
    is_overtaken: bool,
    /// When it was last told that this replica may lack the end of its log, or last known that it need not be told.
    doubt_told: Instant,
    /// A member waits for a checkpoint that has not been made yet.
    is_checkpoint_awaited: bool,
    /// The log behind this index is kept until then.
    held_log: Option<(u64, Instant)>,
    /// Up to where the host was last told that nobody lacks the log, and when.
    told_keep: (u64, Instant),
    /// Bytes of the log that stay in memory when they have been applied.
    log_bytes_max: usize,
    /// Bytes proposed or gathered beyond which no more writes are admitted.
    window_bytes_max: usize,
    /// Index of the last checkpoint on disk.
    marked_index: u64,
    /// They have come with a checkpoint, and the cores do not know them yet.
    are_libraries_new: bool,
    /// They have come with a checkpoint, and the cores do not know them yet.
    are_parameters_new: bool,
    /// The cores do not know yet at which level the group is.
    is_level_new: bool,
    /// The level that the group should have.
    pub(crate) level_wanted: stdx::Level,
    /// The level to which this replica has raised the group last, as far as it has proposed that.
    pub(crate) level_logged: stdx::Level,
    last_script: Instant,
    /// Room for a script's commands and its reply.
    script_words: Vec<u8>,
    script_reply: Vec<u8>,
    /// Requests of gateways of this node that want to know when they have been applied here.
    awaited: BTreeSet<(GatewayId, u64)>,

    /// Reads of clients of this node while another one leads.
    nearby: nearby::Nearby,
    /// What is known where the group does not live on this node.
    vacancy: vacancy::Vacancy,
    splits: split::Splits,
    /// How far the log reached when this replica lost all that it had, which it is given again; 0 if it lacks nothing
    /// of the kind.
    lost_commit: u64,
    pub(crate) checkpointing: Checkpointing,
    pub(crate) backups: Backups,
    /// Bytes of log since the last checkpoint began.
    pub(crate) log_bytes: u64,
    /// Keys altered before the last checkpoint.
    pub(crate) altered_saved: u64,
    last_tick: Instant,
    last_progress: Option<Instant>,
    first_index: u64,
    recovered_index: u64,
    spans: Vec<Span>,
    /// What this node's settings say of the forms of collections: to be logged while it leads.
    limits: Limits,
    /// Whether keys expire; none as long as the setting has not been heard of: then it stays as the log says.
    import_mode: Option<bool>,
    /// What the log says of them, with what is still on its way.
    limits_logged: Limits,
    /// Bytes of keys that were chosen for eviction and are not removed yet.
    pub(crate) evicting_bytes: usize,
    /// Those keys, with their databases: a victim is named again until it is gone.
    evicting: BTreeSet<(u16, Vec<u8>)>,
    /// Keys evicted since the start.
    pub(crate) evicted_count: u64,
    /// Requests with an id that came again and were answered as before, since the start.
    repeated_count: u64,
    /// Times that keys were reserved for a client, and that this ended before its EXEC came, since the start.
    reserved_count: u64,
    reservations_lapsed_count: u64,
    /// Set by the simulator to prove that its checkers are awake.
    acknowledges_early: bool,
    /// The same.
    pub(crate) defect: Option<Defect>,
}

/// What waits at a place in a batch.
#[derive(Debug)]
enum Waiter {
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
    /// A lock already taken: its keys are read here, if it is still the same grant.
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
struct Finished {
    reply: Vec<u8>,
    /// Keys that it has read, if the client keeps what it reads.
    reads: Box<[Vec<u8>]>,
    published: Box<[pubsub::Message]>,
}

#[derive(Debug)]
struct DeferredRead {
    origin: Origin,
    protocol: Protocol,
    what: ReadWhat,
    /// Number of the next batch to be proposed when it came. When that one is committed, this replica led when the read
    /// was there already.
    before: u64,
}

#[derive(Debug)]
enum ReadWhat {
    /// One query.
    Query(Vec<u8>),
    /// A query over all keys of the group.
    Whole(Vec<u8>),
    /// The versions of keys.
    /// They may be reserved for who asks, from then on for so long.
    Versions(Vec<(u16, Vec<u8>)>, Option<Duration>),
    /// Keys that have been locked by this grant.
    Locked(Box<Lock>, Grant),
    /// Whether a transaction still holds what it was granted.
    Holds(TransactionId, Grant),
    /// How far the group is; for a replica, which has given its question this number.
    Place(u64),
    /// How many other nodes hold the log up to this place.
    Holders(u64),
    /// Whether the leader obeys parameters of which it has heard.
    Obeys,
}

fn fetching((lock, grant): (Box<Lock>, Grant), origin: Origin, before: u64) -> DeferredRead {
    DeferredRead { origin, protocol: Protocol::Resp2, what: ReadWhat::Locked(lock, grant), before }
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
    touched: Touched,
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
enum Held {
    Request(Request),
    /// A lock, with when it was asked for.
    Lock(Box<Lock>, Origin, Instant),
}

/// What a new leader has learnt of a transaction without a gateway.
#[derive(Debug, Default)]
struct Inquiry {
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
        // The log does not say who founded a group: a member that has nothing must be given a checkpoint, never the log
        // from its beginning. So a founder's log goes on behind its first entry, which only says that somebody leads.
        let (floor_index, floor_term) = match entries.first() {
            Some(first) if membership.voters.contains(&node.0) && first.index == 1 && is_mark_of_leader(first) => {
                (1, first.term)
            }
            // Nor is what a group began with that has split off.
            Some(first) if beginning.is_some() => (first.index, first.term),
            _ => (checkpoint_index, checkpoint_term),
        };
        let recovered_index = entries.last().map_or(checkpoint_index, |entry| entry.index);
        let log_bytes = entries.iter().map(|entry| entry.data.len() as u64).sum();
        let lost_commit = if recovered_index == 0 { hard_state.commit } else { 0 };
        let databases = keyspace.database_count();
        let mut replica = Replica::new(
            Options {
                recovering: is_recovering,
                is_new,
                // The window above bounds what is proposed, and never refuses a batch half-way.
                uncommitted_bytes_max: u64::MAX,
                incarnation: consensus::first_life(prng.draw()),
                ..Options::new(node.0, group.0, prng.draw())
            },
            Seed {
                hard_state,
                membership: membership.clone(),
                checkpoint_index: floor_index,
                checkpoint_term: floor_term,
                entries,
            },
        )?;
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
            membership_applied: membership,
            is_member_by_log: false,
            hard_state,
            append_fsync,
            allows_memory: false,
            leader: Leader::new(databases),
            batch_number: 1,
            removal_batch: 0,
            numbering_batch: 0,
            committed: VecDeque::new(),
            committed_bytes: 0,
            slices: slices::Slices::default(),
            inflight: VecDeque::new(),
            inflight_bytes: 0,
            proposed_unix: UnixMillis(i64::MIN),
            archive_told: archive::ArchiveTold::default(),
            is_serving: false,
            next_read_context: 0,
            slot_news: Vec::new(),
            is_barred: false,
            prepared_since: BTreeMap::new(),
            told_route: None,
            serving_since: now.instant,
            is_newly_serving: false,
            is_roster_new: false,
            reconcile_at: Instant::ZERO,
            bulletin_at: Instant::ZERO,
            balance_at: Instant::ZERO,
            committed_seen: 0,
            led_before: None,
            is_asked_to_lead: false,
            taking: None,
            taking_failed: None,
            is_overtaken: false,
            doubt_told: now.instant,
            is_checkpoint_awaited: false,
            held_log: None,
            told_keep: (u64::MAX, Instant::ZERO),
            log_bytes_max: limits::LOG_BYTES_MAX,
            window_bytes_max: limits::WINDOW_BYTES_MAX,
            marked_index: checkpoint_index,
            are_libraries_new: false,
            are_parameters_new: false,
            is_level_new: false,
            level_wanted: stdx::Level::FIRST,
            level_logged: stdx::Level::FIRST,
            last_script: now.instant,
            script_words: Vec::new(),
            script_reply: Vec::new(),
            awaited: BTreeSet::new(),
            nearby: nearby::Nearby::new(prng.draw() >> 8),
            vacancy: vacancy::Vacancy::default(),
            splits: split::Splits::new(born, unkept, was_given_up),
            lost_commit,
            checkpointing: Checkpointing::default(),
            backups: Backups::default(),
            log_bytes,
            altered_saved: 0,
            last_tick: now.instant,
            last_progress: None,
            first_index: checkpoint_index,
            recovered_index,
            spans: Vec::new(),
            limits: Limits::default(),
            import_mode: None,
            limits_logged: Limits::default(),
            evicting_bytes: 0,
            evicting: BTreeSet::new(),
            evicted_count: 0,
            repeated_count: 0,
            reserved_count: 0,
            reservations_lapsed_count: 0,
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
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// Index of the last entry applied.
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
        &self.membership_applied
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
    pub fn moment(&self) -> Moment {
        self.state.moment()
    }

    /// True while this replica leads, and has applied an entry of its own term.
    pub(crate) fn is_serving(&self) -> bool {
        self.is_serving
    }

    /// True if the cluster has lost entries that have been applied here: the process has to end.
    pub fn is_overtaken(&self) -> bool {
        self.is_overtaken
    }

    /// Transactions that hold locks here, prepared ones among them.
    pub fn lock_count(&self) -> usize {
        self.leader.locks.holder_count()
    }

    /// Transactions that are prepared here and not resolved.
    pub fn prepared_count(&self) -> usize {
        self.state.prepared().len()
    }

    /// Transactions that hold locks here; true for those that are prepared.
    pub fn lock_holders(&self) -> impl Iterator<Item = (TransactionId, bool)> {
        self.leader.locks.holders().map(|holder| (holder, self.state.prepared().contains_key(&holder)))
    }

    /// Bytes of applied entries of the log that are in memory.
    pub fn applied_log_bytes(&self) -> usize {
        self.replica.log_bytes().saturating_sub(self.replica.log_bytes_after(self.applied()) as usize)
    }

    /// Bytes proposed and not yet applied.
    pub fn window_bytes(&self) -> usize {
        self.inflight_bytes + self.leader.builder.byte_count() - self.leader.sliced_bytes
    }

    /// True if no more writes may be admitted for now.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.window_bytes() > self.window_bytes_max
    }

    /// True if the group has one voter, this node: then a read needs nobody's confirmation.
    pub(crate) fn is_alone(&self) -> bool {
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
    pub(crate) fn break_by(&mut self, defect: Defect) {
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
    pub(crate) fn serves_at_once(&self) -> bool {
        self.is_serving && self.is_alone()
    }

    /// How far the recovered log has been applied, in percent.
    pub fn loaded_percent(&self) -> u64 {
        let total = self.recovered_index - self.first_index;
        ((self.applied().min(self.recovered_index) - self.first_index) * 100).checked_div(total).unwrap_or(100)
    }

    /// The moment at which a read is executed: never before what has been applied.
    #[inline]
    pub fn read_moment(&self, now: Now) -> Moment {
        Moment { unix: now.unix.max(self.moment().unix), seed: now.instant.as_nanos() ^ self.moment().seed }
    }

    /// True if a read may be executed right now, provided that its session waits for no write and no key is locked.
    #[inline]
    pub fn can_read(&self) -> bool {
        self.is_serving && self.is_alone()
    }

    /// True if somebody's transaction holds one of the keys, or any key if the command works on all of them.
    #[inline]
    pub fn is_locked(&self, command: &keyspace::DataCommand, args: Args<'_>) -> bool {
        if self.leader.locks.is_empty() {
            return false;
        }
        if matches!(command.span, command::Span::Whole(_)) || command.walks() {
            return true;
        }
        let mut locked = false;
        command.for_each_key(args, |index, _| locked |= self.leader.locks.covers(args.at(index)));
        locked
    }

    /// True if an earlier request of this node's session waits here for locked keys.
    #[inline]
    pub(crate) fn holds_request_of(&self, session: SessionId) -> bool {
        let waiter = (self.node.0, session.serial);
        (!self.leader.held_sessions.is_empty() && self.leader.held_sessions.contains(&waiter))
            || (!self.leader.kept_out.is_empty() && self.leader.kept_out.contains(&waiter))
    }

    /// Adds a write to the batch. The group must be [`Standing::Serving`], the keys free.
    #[inline]
    pub fn write(&mut self, origin: Origin, protocol: Protocol, database: u16, args: Args<'_>) {
        assert!(self.is_serving, "a write where nothing is applied for clients");
        self.note_change(args);
        self.leader.builder.command(protocol, database, args);
        self.leader.waiters.push(Waiter::Write(origin));
    }

    /// Tells scripts that keys are going to change.
    #[inline]
    fn note_change(&mut self, args: Args<'_>) {
        if !self.leader.speculation.is_active {
            return;
        }
        let command = keyspace::resolve(args).expect("a request was checked by its gateway");
        if matches!(command.span, command::Span::Whole(_)) {
            self.leader.speculation.note_everything(self.batch_number);
        }
        command.for_each_key(args, |index, _| self.leader.speculation.note(args.at(index), self.batch_number));
    }

    fn note_packed(&mut self, words: &[u8]) {
        if self.leader.speculation.is_active {
            let mut spans = std::mem::take(&mut self.spans);
            let (_, args) = entry::Reader::new(words).words(&mut spans);
            self.note_change(args);
            self.spans = spans;
        }
    }

    fn note_exec(&mut self, packed: &[u8], protocol: Protocol) {
        if self.leader.speculation.is_active {
            let mut spans = std::mem::take(&mut self.spans);
            let exec = entry::Reader::new(packed).exec(protocol, &mut spans);
            exec.for_each(&mut spans, |_, args| self.note_change(args));
            self.spans = spans;
        }
    }

    /// Carries out a command that another core of this node asks for, if nothing stands in its way. False if something
    /// may, and [`Group::request`] must look at it. The group must be [`Standing::Serving`].
    pub(crate) fn take_plain(
        &mut self,
        request: &PlainRequest,
        origin: &Origin,
        words: &[u8],
        now: Now,
        outlet: &mut Outlet<'_>,
    ) -> bool {
        if request.kind == PlainKind::Read || !self.is_unhindered(outlet.context) || self.has_foreign(words) {
            return false;
        }
        if request.kind == PlainKind::Write {
            self.note_packed(words);
            self.leader.builder.packed_command(request.protocol, words);
            self.leader.waiters.push(Waiter::Write(*origin));
        } else {
            self.execute_query(words, origin, request.protocol, now, outlet);
        }
        true
    }

    /// True if requests of this node's clients wait for nothing, and are refused for nothing that is not in their
    /// words.
    fn is_unhindered(&self, context: &Context) -> bool {
        self.is_alone()
            && context.room == Room::Enough
            && context.settings.replicas_to_write == 0
            && self.level_to_log() >= Levels::KNOWN.highest
            && self.leader.locks.is_empty()
            && self.leader.reservations.is_empty()
            && self.leader.held_sessions.is_empty()
            && self.leader.kept_out.is_empty()
            && self.leader.sent_back.is_empty()
            && self.defect.is_none()
    }

    /// Takes a request that came as a letter or from another node. The group must be [`Standing::Serving`].
    pub fn request(&mut self, request: Request, now: Now, outlet: &mut Outlet<'_>) {
        assert!(self.is_serving, "a request where nothing is applied for clients");
        if self.defect == Some(Defect::ForgottenBook)
            && let Some(slot) = self.foreign_slot(&request)
        {
            return self.tell_reader_moved(slot, &request.origin, request.protocol, outlet);
        }
        if self.expects(&request, outlet) {
            self.take(request, now, outlet);
        }
    }

    /// Requests of a gateway are taken in order, and none twice.
    pub(crate) fn expects(&mut self, request: &Request, outlet: &mut Outlet<'_>) -> bool {
        let origin = &request.origin;
        let (Some(gateway), Some(claim)) = (origin.gateway(), origin.claim) else { return true };
        let is_stuck = request.previous == 0 && self.is_stuck();
        let last = self.leader.streams.entry(gateway).or_default();
        if request.previous == 0 {
            // Of what may never be carried out nobody is told that it will be: its gateway gives up after a while.
            if *last >= claim.number && !is_stuck {
                outlet.alive(origin);
            }
        } else if *last != request.previous {
            if claim.number > *last {
                outlet.send_back(origin);
            }
            return false;
        }
        *last = claim.number;
        let is_forgotten = self.defect == Some(Defect::ForgottenAnswer)
            && matches!(request.body, RequestBody::Write(_) | RequestBody::Exec(_));
        is_forgotten || self.is_to_be_done(origin, outlet)
    }

    /// A request goes back to its gateway. What that has sent behind it must not overtake it: its requests are taken
    /// again when they come again, in order.
    fn lose_place(&mut self, origin: &Origin) {
        if let Some(gateway) = origin.gateway() {
            self.leader.streams.remove(&gateway);
        }
    }

    /// False for a numbered request that has been carried out; if its gateway may lack the answer it gets it.
    fn is_to_be_done(&mut self, origin: &Origin, outlet: &mut Outlet<'_>) -> bool {
        let (Some(gateway), Some(claim)) = (origin.gateway(), origin.claim) else { return true };
        match self.state.replies().look(gateway, claim.number) {
            Lookup::New => true,
            Lookup::Answered(answer) => {
                let answer = answer.to_vec();
                if let Some(moved) = message::answer::take_moved(&answer) {
                    self.note_sent_back(moved.slot, origin);
                }
                outlet.answer(origin, Committed::of_applied(), answer);
                false
            }
            Lookup::Forgotten => false,
        }
    }

    fn take(&mut self, request: Request, now: Now, outlet: &mut Outlet<'_>) {
        if self.refuses_alone(&request, outlet)
            || self.refuses_without_room(&request, now, outlet)
            || self.refuses_newer(&request, outlet)
        {
            return;
        }
        let Request { origin, protocol, body, floor, is_anew, must_return, .. } = request;
        let body = match body {
            RequestBody::EndReservation => {
                self.end_reservation(&origin);
                return outlet.answer(&origin, Observed::of_state(), Vec::new());
            }
            RequestBody::Lock(lock) => return self.lock(lock, origin, now.instant, now, outlet),
            RequestBody::Holders(place) => {
                // One that does not know yet that another leads lacks what that one has acknowledged.
                let what = ReadWhat::Holders(place);
                return self.read_now(DeferredRead { origin, protocol, what, before: self.batch_number }, now, outlet);
            }
            RequestBody::Obey(version) if outlet.context.parameters.version < version => {
                return outlet.send_back(&origin);
            }
            RequestBody::Obey(_) => {
                // That one would have to obey, and not this.
                let what = ReadWhat::Obeys;
                return self.read_now(DeferredRead { origin, protocol, what, before: self.batch_number }, now, outlet);
            }
            RequestBody::Govern(words) => return self.govern(&words, origin, protocol, now, outlet),
            RequestBody::Cut { transaction, grant, name } => {
                return self.cut((transaction, grant), name, &origin, now, outlet);
            }
            RequestBody::ReadCut { name, chunk } => {
                return self.read_cut(name, chunk, (origin, protocol), now, outlet);
            }
            RequestBody::EndCut { name } => return self.end_cut(name, &origin, protocol, outlet),
            RequestBody::Renew { transaction } => {
                self.leader.locks.renew(transaction, now.instant);
                return outlet.answer(&origin, Observed::of_state(), Vec::new());
            }
            RequestBody::Prepare { transaction, grant, participants, .. } if participants.is_empty() => {
                // One that does not know yet that another leads would say yes to what that one has changed.
                let what = ReadWhat::Holds(transaction, grant);
                return self.read_now(DeferredRead { origin, protocol, what, before: self.batch_number }, now, outlet);
            }
            RequestBody::Prepare { transaction, grant, participants, effects } => {
                return self.prepare((transaction, grant), participants, effects, (origin, floor), outlet);
            }
            RequestBody::Resolve { transaction, resolution, low_water } => {
                return self.resolve(transaction, resolution, low_water, (origin, floor), now, outlet);
            }
            body => body,
        };
        let request = Request { floor, is_anew, must_return, ..Request::new(origin, self.id, protocol, body) };
        if let Some(slot) = self.follows_one_sent_back(&request) {
            return self.send_to_slot(slot, request, outlet);
        }
        if self.must_wait(&request, false) {
            self.hold(request, false, outlet);
            return;
        }
        if let Some(slot) = self.slot_elsewhere(&request) {
            return self.send_to_slot(slot, request, outlet);
        }
        let is_behind = match &request.body {
            RequestBody::Read(_) => true,
            RequestBody::Versions { keys, reserve_for: Some(_) } => {
                self.reserve(&origin, keys, now.instant);
                true
            }
            _ => false,
        };
        let what = match request.body {
            RequestBody::Write(words) => {
                self.note_packed(&words);
                self.claim(&origin, floor);
                self.leader.builder.packed_command(protocol, &words);
                self.leader.waiters.push(Waiter::Write(origin));
                return;
            }
            RequestBody::Exec(packed) => {
                self.note_exec(&packed, protocol);
                self.note_exec_of_reserver(&origin);
                self.claim(&origin, floor);
                self.leader.builder.packed_exec(protocol, &packed);
                self.leader.waiters.push(Waiter::Write(origin));
                return;
            }
            RequestBody::Script(_) => {
                // It has waited. A core must run it: until then what its session has sent since waits on.
                self.keep_out(&origin);
                return outlet.mail(outlet.context.core, Mail::Retry(request));
            }
            RequestBody::Libraries(change) => {
                self.claim(&origin, floor);
                self.leader.builder.libraries(&change);
                self.leader.waiters.push(Waiter::Write(origin));
                return;
            }
            RequestBody::Configure(change) => {
                self.claim(&origin, floor);
                self.leader.builder.configure(&change);
                self.leader.waiters.push(Waiter::Write(origin));
                return;
            }
            RequestBody::ReadAtOnce(words) if self.is_alone() => {
                let read = DeferredRead { origin, protocol, what: ReadWhat::Query(words), before: self.batch_number };
                return self.execute_read(read, now, outlet);
            }
            RequestBody::Read(words) | RequestBody::ReadAtOnce(words) => ReadWhat::Query(words),
            RequestBody::Whole(words) => ReadWhat::Whole(words),
            RequestBody::Versions { keys, reserve_for } => ReadWhat::Versions(keys, reserve_for),
            RequestBody::Lock(_)
            | RequestBody::Renew { .. }
            | RequestBody::Prepare { .. }
            | RequestBody::Resolve { .. }
            | RequestBody::Cut { .. }
            | RequestBody::ReadCut { .. }
            | RequestBody::EndCut { .. }
            | RequestBody::Holders(_)
            | RequestBody::Obey(_)
            | RequestBody::EndReservation
            | RequestBody::Govern(_) => unreachable!("taken above"),
        };
        self.read(DeferredRead { origin, protocol, what, before: self.batch_number }, is_behind, now, outlet);
    }

    /// The next item of the batch carries out this request.
    fn claim(&mut self, origin: &Origin, floor: u64) {
        if let (Some(gateway), Some(claim)) = (origin.gateway(), origin.claim) {
            self.leader.builder.claim(Claimed { gateway, number: claim.number, floor });
        }
    }

    /// True if a request must wait for locked keys, or behind another of its session that does. What its session has
    /// sent since waits behind one that comes back from waiting.
    pub(crate) fn must_wait(&mut self, request: &Request, is_retry: bool) -> bool {
        let waiter = (request.origin.node.0, request.origin.session.serial);
        let is_behind = !is_retry
            && waiter.1 != 0
            && (self.leader.held_sessions.contains(&waiter) || self.leader.kept_out.contains(&waiter));
        is_behind
            || (!self.leader.locks.is_empty() && self.touches_locks(request))
            || (!self.leader.reservations.is_empty() && self.touches_reserved(request))
    }

    /// Lets a request wait: behind all others, or before them if it has waited already.
    pub(crate) fn hold(&mut self, request: Request, is_retry: bool, outlet: &mut Outlet<'_>) {
        if self.leader.held.len() >= limits::HELD_COUNT_MAX {
            let text = "TRYAGAIN Too many requests wait for locked keys";
            self.lose_place(&request.origin);
            return fail(&request.origin, request.protocol, text, outlet);
        }
        if self.leader.held.len() >= limits::HELD_COUNT_MAX / 2 {
            self.leader.reservations.end_all();
        }
        self.leader.held_sessions.insert((request.origin.node.0, request.origin.session.serial));
        if is_retry {
            self.leader.held.push_front(Held::Request(request));
        } else {
            self.leader.held.push_back(Held::Request(request));
        }
    }

    /// Executes a transaction that only reads. The group must be able to [`Group::can_read`].
    pub(crate) fn read_exec(
        &mut self,
        packed: &[u8],
        (protocol, is_silent): (Protocol, bool),
        now: Now,
        timings: &mut Timings,
        writer: &mut Writer,
    ) -> Observed {
        let moment = self.read_moment(now);
        let mut spans = std::mem::take(&mut self.spans);
        let exec = entry::Reader::new(packed).exec(protocol, &mut spans);
        self.state.keyspace().set_silent(is_silent);
        self.state.read_exec(exec, moment, &mut Measure::Client(timings), writer);
        self.state.keyspace().set_silent(false);
        self.spans = spans;
        Observed::of_state()
    }

    /// For the reply to a request that looks at this replica and changes nothing.
    #[inline]
    pub(crate) fn observed(&self) -> Observed {
        Observed::of_state()
    }

    /// True if this transaction still holds the locks here that it was granted.
    pub(crate) fn holds_locks_by(&self, transaction: TransactionId, grant: Grant) -> bool {
        self.leader.locks.grant_of(transaction) == Some(grant)
    }

    /// True if a transaction holds this key.
    pub fn holds_lock_on(&self, key: &[u8]) -> bool {
        !self.leader.locks.is_empty() && self.leader.locks.covers(key)
    }

    fn read(&mut self, read: DeferredRead, is_behind: bool, now: Now, outlet: &mut Outlet<'_>) {
        if !self.is_alone() && !is_behind {
            self.leader.reads.push(read);
        } else if !self.leader.builder.is_empty() {
            self.leader.waiters.push(Waiter::Read(Box::new(read)));
        } else if let Some(batch) = self.inflight.back_mut() {
            batch.late.push(read);
        } else {
            self.read_now(read, now, outlet);
        }
    }

    /// All that the read must see has been applied. With other voters, it has yet to be sure that this replica leads.
    fn read_now(&mut self, read: DeferredRead, now: Now, outlet: &mut Outlet<'_>) {
        if self.is_alone() {
            self.execute_read(read, now, outlet);
        } else {
            self.leader.reads.push(read);
        }
    }

    fn execute_read(&mut self, read: DeferredRead, now: Now, outlet: &mut Outlet<'_>) {
        if let Some(slot) = self.foreign_slot_of_read(&read.what) {
            if let ReadWhat::Query(words) = &read.what
                && self.holds_some_of(words)
            {
                self.note_sent_back(slot, &read.origin);
            }
            return self.tell_reader_moved(slot, &read.origin, read.protocol, outlet);
        }
        let moment = self.read_moment(now);
        let mut spans = std::mem::take(&mut self.spans);
        let words = match &read.what {
            ReadWhat::Query(words) => words,
            ReadWhat::Whole(words) => {
                let (database, args) = entry::Reader::new(words).words(&mut spans);
                let command = keyspace::resolve(args).expect("a read was checked by its gateway");
                let mut writer = Writer::new(read.protocol);
                let mut toll = Toll::default();
                let mut measure = Measure::for_gateway(&mut outlet.context.timings, &mut toll, read.origin.is_timed);
                let watch = measure.start(command, args);
                self.state.keyspace().query(database, command, args, moment, &mut writer);
                measure.stop(watch, args);
                let answer = wire::put_whole(&wire::Part {
                    key_count: self.state.keyspace().key_count(database) as u64,
                    cover: self.state.slots().cover_of(self.id),
                    reply: writer.bytes(),
                });
                self.spans = spans;
                return outlet.answer_with(&read.origin, Observed::of_state().into(), toll, answer);
            }
            ReadWhat::Versions(keys, reserve_for) => {
                if let Some(bound) = reserve_for {
                    self.bound_reservation(&read.origin, *bound, now.instant);
                }
                let mut answer = Vec::new();
                for (database, key) in keys {
                    leb128::put(&mut answer, self.state.keyspace().watch(*database, key, moment));
                }
                self.spans = spans;
                return outlet.answer(&read.origin, Observed::of_state(), answer);
            }
            ReadWhat::Place(number) => {
                self.spans = spans;
                return self.tell_place(read.origin.node, *number, now, outlet);
            }
            ReadWhat::Locked(lock, grant) => {
                self.spans = spans;
                // It may have been taken away meanwhile, from a gateway that seemed dead, and even been granted again.
                return match self.holds_locks_by(lock.transaction, *grant) {
                    true => self.fetch(lock, *grant, &read.origin, outlet),
                    false => outlet.send_back(&read.origin),
                };
            }
            ReadWhat::Holds(transaction, grant) => {
                self.spans = spans;
                let holds = self.holds_locks_by(*transaction, *grant);
                return outlet.answer(&read.origin, Observed::of_state(), vec![u8::from(holds)]);
            }
            ReadWhat::Holders(place) => {
                self.spans = spans;
                return self.tell_holders(*place, &read.origin, outlet);
            }
            ReadWhat::Obeys => {
                self.spans = spans;
                return outlet.answer(&read.origin, Observed::of_state(), Vec::new());
            }
        };
        self.spans = spans;
        self.execute_query(words, &read.origin, read.protocol, now, outlet);
    }

    fn execute_query(&mut self, words: &[u8], origin: &Origin, protocol: Protocol, now: Now, outlet: &mut Outlet<'_>) {
        let moment = self.read_moment(now);
        let mut spans = std::mem::take(&mut self.spans);
        let (database, args) = entry::Reader::new(words).words(&mut spans);
        let command = keyspace::resolve(args).expect("a read was checked by its gateway");
        let observed = Observed::of_state();
        outlet.reply_to_read(origin, protocol, observed, (command, args), |writer| {
            let start = writer.len();
            self.state.keyspace().set_silent(origin.is_silent);
            self.state.read(database, command, args, moment, writer);
            self.state.keyspace().set_silent(false);
            !(command.has(Flag::Blocking) && is_null(&writer.bytes()[start..]))
        });
        if origin.tracks {
            let Origin { core, session, .. } = *origin;
            outlet.context.tracker.remember_command(core, session, command, args);
        }
        self.spans = spans;
        self.tell(outlet, None);
    }

    fn touches_locks(&mut self, request: &Request) -> bool {
        let mut spans = std::mem::take(&mut self.spans);
        let mut locked = false;
        let mut check = |args: Args<'_>| {
            let command = keyspace::resolve(args).expect("a request was checked by its gateway");
            locked |= self.is_locked(command, args);
        };
        match &request.body {
            RequestBody::Write(words) | RequestBody::Read(words) | RequestBody::ReadAtOnce(words) => {
                let (_, args) = entry::Reader::new(words).words(&mut spans);
                check(args);
            }
            RequestBody::Libraries(_) | RequestBody::Configure(_) => {}
            RequestBody::Script(script) => {
                let (_, args) = entry::Reader::new(&script.words).words(&mut spans);
                locked |= script.invocation.keys(args).any(|key| self.leader.locks.covers(key));
            }
            RequestBody::Exec(packed) => {
                let exec = entry::Reader::new(packed).exec(request.protocol, &mut spans);
                let watches = exec.watches.clone();
                exec.for_each(&mut spans, |_, args| check(args));
                locked |= watches.iter().any(|watch| self.leader.locks.covers(&watch.key));
            }
            RequestBody::Whole(_) => locked = true,
            RequestBody::Versions { keys, .. } => locked = keys.iter().any(|(_, key)| self.leader.locks.covers(key)),
            RequestBody::Lock(_)
            | RequestBody::Renew { .. }
            | RequestBody::Prepare { .. }
            | RequestBody::Resolve { .. }
            | RequestBody::Cut { .. }
            | RequestBody::ReadCut { .. }
            | RequestBody::EndCut { .. }
            | RequestBody::Holders(_)
            | RequestBody::Obey(_)
            | RequestBody::EndReservation
            | RequestBody::Govern(_) => {}
        }
        self.spans = spans;
        locked
    }

    // ---- transactions over several groups -------------------------------------------------------------------------

    /// Takes a request for locks. They are granted when the keys are free, in order of arrival.
    fn lock(&mut self, lock: Box<Lock>, origin: Origin, asked: Instant, now: Now, outlet: &mut Outlet<'_>) {
        let is_waiting = |held: &Held| matches!(held, Held::Lock(other, ..) if other.transaction == lock.transaction);
        if self.is_leaving(lock.transaction) {
            return;
        }
        if let Some(grant) = self.leader.locks.grant_of(lock.transaction) {
            return self.fetch_in_order((lock, grant), origin, now, outlet); // its gateway has not heard
        }
        if self.leader.held.iter().any(is_waiting) {
            return;
        }
        if let Some(text) = self.cut_obstacle(&lock, now) {
            return outlet.answer(&origin, Proof::Refused, put_locked(&Locked::Refused(text)));
        }
        if lock.whole {
            self.leader.reservations.end_all();
        }
        // What a transaction that is decided will have done is known: the next one need not wait for the log. But it
        // does not overtake a command.
        let may_take_over = !self.leader.held.iter().any(|held| matches!(held, Held::Request(_)));
        let is_free =
            |key: &[u8]| if may_take_over { self.leader.locks.is_open(key) } else { !self.leader.locks.covers(key) };
        let free = self.leader.locks.is_empty() || !lock.whole && lock.keys.iter().all(|(_, key)| is_free(key));
        // A lock on everything must not be overtaken without end by locks on single keys.
        let whole_waits = self.leader.held.iter().any(|held| matches!(held, Held::Lock(lock, ..) if lock.whole));
        if !free || whole_waits || self.is_barred || self.waits_for_reserved(&lock) {
            self.leader.held.push_back(Held::Lock(lock, origin, asked));
            return;
        }
        // A gateway that wants everything locked, and does not know of a group that has got some of it, would leave
        // that out. Of the groups that it knows, one has given away the slots of the group that it does not know.
        let unknown = || self.state.slots().held_beyond(lock.group_count).filter(|_| lock.whole);
        let foreign = lock.keys.iter().find_map(|(_, key)| self.state.foreign(key));
        if let Some(slot) = foreign.or_else(unknown) {
            return self.tell_reader_moved(slot, &origin, Protocol::Resp2, outlet);
        }
        self.leader.locks.take(lock.transaction, lock.keys.iter().map(|(_, key)| key.clone()), lock.whole);
        let grant = self.leader.locks.grant(lock.transaction, self.replica.term());
        self.end_reservations_of(&lock);
        self.fetch_in_order((lock, grant), origin, now, outlet);
    }

    /// Reads the keys of a lock behind all changes that were asked for before. Changes to other keys do not matter.
    fn fetch_in_order(&mut self, granted: (Box<Lock>, Grant), origin: Origin, now: Now, outlet: &mut Outlet<'_>) {
        if !self.is_touched(&granted.0) {
            self.read_now(fetching(granted, origin, self.batch_number), now, outlet);
        } else if !self.leader.builder.is_empty() {
            let fetch = fetching(granted, origin, self.batch_number);
            self.leader.waiters.push(Waiter::Fetch(Box::new(fetch)));
        } else if let Some(batch) = self.inflight.back_mut() {
            batch.late.push(fetching(granted, origin, self.batch_number));
        } else {
            self.read_now(fetching(granted, origin, self.batch_number), now, outlet);
        }
    }

    /// True if something that is not applied yet works on a key of the lock.
    fn is_touched(&mut self, lock: &Lock) -> bool {
        if self.leader.builder.is_empty() && self.inflight.is_empty() {
            return false;
        }
        if lock.whole {
            return true;
        }
        let mut spans = std::mem::take(&mut self.spans);
        let covers = |touched: &Touched| lock.keys.iter().any(|(_, key)| touched.covers(key));
        self.leader.touched.read_on(self.leader.builder.payload(), &mut spans);
        let is_touched = covers(&self.leader.touched)
            || self.inflight.iter_mut().any(|batch| {
                if batch.index > 0 {
                    batch.touched.read_on(&batch.data, &mut spans);
                }
                covers(&batch.touched)
            });
        self.spans = spans;
        is_touched
    }

    /// A key as a transaction that has locked it sees it: as it will be when those are applied that it has taken it
    /// over from.
    fn value_under_lock(
        &self,
        mut transaction: TransactionId,
        database: u16,
        key: &[u8],
        moment: Moment,
    ) -> Option<Exporting> {
        while let Some(before) = self.leader.locks.predecessor(transaction, key) {
            if let Some(exported) = self.decided_value(before, database, key) {
                return exported.clone().map(Exporting::done);
            }
            transaction = before;
        }
        self.state.keyspace().begin_export(database, key, moment)
    }

    /// What a transaction that is decided makes of a key, if anything.
    fn decided_value(&self, transaction: TransactionId, database: u16, key: &[u8]) -> Option<&Option<Vec<u8>>> {
        self.state.prepared().get(&transaction)?.effects().iter().find_map(|effect| match effect {
            Effect::Key { database: other, key: name, exported } if *other == database && name == key => Some(exported),
            _ => None,
        })
    }

    /// True if a watched key that a transaction has locked is no longer as it was.
    fn is_watch_broken(&self, mut transaction: TransactionId, watch: &Watch, moment: Moment) -> bool {
        while let Some(before) = self.leader.locks.predecessor(transaction, &watch.key) {
            if self.decided_value(before, watch.database, &watch.key).is_some() {
                return true;
            }
            transaction = before;
        }
        !self.state.keyspace().is_as_watched(watch.database, &watch.key, watch.version, moment)
    }

    fn fetch(&mut self, lock: &Lock, grant: Grant, origin: &Origin, outlet: &mut Outlet<'_>) {
        // The lock may have waited: what has expired in the meantime, and was told to be gone, does not come back.
        let moment = Moment { unix: lock.moment.unix.max(self.moment().unix), seed: lock.moment.seed };
        let changed = self.defect != Some(Defect::ForgottenWatch)
            && lock.watches.iter().any(|watch| self.is_watch_broken(lock.transaction, watch, moment));
        if changed {
            return outlet.answer(origin, Observed::of_state(), put_locked(&Locked::Changed));
        }
        if let Some(request) = &lock.request {
            let answer = match self.state.request_ids().look(request) {
                Known::Answered(reply) => Some(Locked::Answered(reply.to_vec())),
                Known::Other => Some(Locked::Refused(request_ids::OTHER_REQUEST.to_owned())),
                Known::Nothing
                    if self.state.request_ids().byte_count() >= outlet.context.settings.request_ids_bytes_max =>
                {
                    Some(Locked::Refused(request_ids::NO_PLACE.to_owned()))
                }
                Known::Nothing => None,
            };
            if let Some(answer) = answer {
                self.repeated_count += u64::from(matches!(answer, Locked::Answered(_)));
                let proof: Proof = match answer {
                    Locked::Answered(_) => Committed::of_applied().into(),
                    _ => Proof::Refused,
                };
                return outlet.answer(origin, proof, put_locked(&answer));
            }
        }
        let value = |(database, key): &(u16, Vec<u8>)| self.value_under_lock(lock.transaction, *database, key, moment);
        self.state.keyspace().set_silent(origin.is_silent);
        let values = lock.keys.iter().map(value).collect();
        self.state.keyspace().set_silent(false);
        let answers = lock.queries.iter().map(|words| self.answer_locked(lock, words, moment)).collect();
        self.let_leave((lock.transaction, grant), origin, values, answers, outlet);
    }

    /// A query over a whole database, for a transaction that has locked the group. RANDOMKEY passes over the keys that
    /// the lock names: of these the gateway knows more.
    fn answer_locked(&self, lock: &Lock, words: &[u8], moment: Moment) -> (u64, Vec<u8>) {
        const DRAWS_MAX: u64 = 64;
        let mut spans = Vec::new();
        let (database, args) = entry::Reader::new(words).words(&mut spans);
        let command = keyspace::resolve(args).expect("checked by its gateway");
        let is_named =
            |key: &[u8]| lock.keys.binary_search_by(|(d, k)| (*d, k.as_slice()).cmp(&(database, key))).is_ok();
        let named = lock
            .keys
            .iter()
            .filter(|(other, key)| *other == database && self.state.keyspace().version(database, key, moment) != 0);
        let weight = (self.state.keyspace().key_count(database) as u64).saturating_sub(named.count() as u64);
        let mut writer = Writer::default();
        if command.name == "randomkey" {
            let mut draws = (0..DRAWS_MAX)
                .filter_map(|draw| self.state.keyspace().random_key(database, moment.seed.wrapping_add(draw), moment));
            match draws.find(|key| !is_named(key)) {
                Some(key) => writer.bulk(key),
                None => {
                    let mut other = None;
                    self.state.keyspace().for_each(database, moment, |entry| {
                        if other.is_none() && !is_named(entry.key()) {
                            other = Some(entry.key().to_vec());
                        }
                    });
                    match other {
                        Some(key) => writer.bulk(&key),
                        None => return (0, b"$-1\r\n".to_vec()),
                    }
                }
            }
        } else {
            self.state.keyspace().query(database, command, args, moment, &mut writer);
        }
        (weight, writer.into_bytes())
    }

    /// Logs the changes of a transaction that holds its locks here.
    ///
    /// If they went with a change of leader, or were taken from a gateway that seemed dead, others may have changed the
    /// keys since: the transaction is refused, although it may hold them again.
    fn prepare(
        &mut self,
        (transaction, grant): (TransactionId, Grant),
        participants: Vec<u32>,
        effects: Vec<Effect>,
        (origin, floor): (Origin, u64),
        outlet: &mut Outlet<'_>,
    ) {
        if !self.may_prepare((transaction, grant), &effects, &origin, outlet) {
            return;
        }
        match self.let_arrive((transaction, grant), participants, effects, (origin, floor)) {
            Ok(Some((participants, effects))) => {
                self.log_prepared(transaction, &participants, &effects, (origin, floor));
            }
            Ok(None) => {}
            Err(_) => outlet.answer(&origin, Proof::Refused, PrepareAnswer::Refused.put()),
        }
    }

    /// True if a transaction has what it needs to be prepared. Otherwise its gateway is told.
    fn may_prepare(
        &mut self,
        (transaction, grant): (TransactionId, Grant),
        effects: &[Effect],
        origin: &Origin,
        outlet: &mut Outlet<'_>,
    ) -> bool {
        let may = self.holds_locks_by(transaction, grant) || self.takes_slots(transaction, effects);
        if !may {
            let unpacked = self.slices.unpacked.remove(&transaction).unwrap_or_default();
            self.bury_unpacked(unpacked);
            outlet.answer(origin, Proof::Refused, PrepareAnswer::Refused.put());
        }
        may
    }

    /// Logs what a transaction changes, of which large values have been read in.
    fn log_prepared(
        &mut self,
        transaction: TransactionId,
        participants: &[u32],
        effects: &[Effect],
        (origin, floor): (Origin, u64),
    ) {
        for effect in effects {
            match effect {
                Effect::Key { key, .. } => self.leader.speculation.note(key, self.batch_number),
                Effect::Flush { .. } | Effect::Swap { .. } => {
                    self.leader.speculation.note_everything(self.batch_number)
                }
                Effect::Give(_) | Effect::Take(_) | Effect::Answer(_) => {}
            }
        }
        self.claim(&origin, floor);
        self.leader.sliced_bytes += self.large_bytes(effects);
        self.leader.locks.set_logged(transaction, true);
        if participants == [self.id.0] {
            self.leader.builder.install(transaction, effects);
        } else {
            self.leader.builder.prepare(transaction, participants, effects);
        }
        self.leader.waiters.push(Waiter::Step(origin));
    }

    /// Ends a transaction here.
    fn resolve(
        &mut self,
        transaction: TransactionId,
        resolution: Resolution,
        low_water: u64,
        (origin, floor): (Origin, u64),
        now: Now,
        outlet: &mut Outlet<'_>,
    ) {
        match resolution {
            Resolution::Release => {
                self.unlock(transaction);
                self.admit_held(now, outlet);
                outlet.answer(&origin, Observed::of_state(), Vec::new());
            }
            Resolution::Commit | Resolution::Abort => {
                self.claim(&origin, floor);
                self.log_end(transaction, resolution == Resolution::Commit, low_water);
                self.leader.waiters.push(Waiter::Step(origin));
                if resolution == Resolution::Commit {
                    self.decide(transaction);
                }
            }
        }
    }

    /// A transaction is committed, and its end stands in the batch: whatever the next one does comes behind it.
    fn decide(&mut self, transaction: TransactionId) {
        let is_plain = |effect: &Effect| matches!(effect, Effect::Key { .. });
        if self.state.prepared().get(&transaction).is_some_and(|prepared| prepared.effects().iter().all(is_plain)) {
            self.leader.locks.decide(transaction);
            self.leader.has_decided = true;
        }
    }

    /// Releases a transaction's locks. Those that wait for them are not yet let in.
    fn unlock(&mut self, transaction: TransactionId) {
        self.leader.held.retain(|held| !matches!(held, Held::Lock(lock, ..) if lock.transaction == transaction));
        self.stop_leaving(transaction);
        self.leader.locks.release(transaction);
    }

    /// Takes a transaction's locks from a gateway that may live after all, and may still wait for values.
    fn take_away(&mut self, transaction: TransactionId, outlet: &mut Outlet<'_>) {
        self.send_back_leaving(transaction, outlet);
        self.unlock(transaction);
    }

    /// Lets those try again who wait for locks to go: in order of arrival; who still finds a lock waits on, behind none
    /// that came later.
    ///
    /// Never in the middle of an entry: who is let in may read at once, and must see all of it.
    pub(crate) fn admit_held(&mut self, now: Now, outlet: &mut Outlet<'_>) {
        self.leader.held_sessions.clear();
        for held in std::mem::take(&mut self.leader.held) {
            match held {
                Held::Request(request) => self.take(request, now, outlet),
                Held::Lock(lock, origin, asked) => self.lock(lock, origin, asked, now, outlet),
            }
        }
    }

    /// A gateway may be gone: locks that nobody came back to are let go, and the others are asked about what has been
    /// prepared and not resolved.
    fn look_after_transactions(&mut self, now: Now, outlet: &mut Outlet<'_>) {
        // Transactions that wait for a lock ask again now and then: locks would pass from one gateway that is gone to
        // the next.
        self.leader.held.retain(|held| match held {
            Held::Lock(_, origin, asked) if now.instant.since(*asked) >= limits::LOCK_WAIT_RENEWAL => {
                outlet.send_back(origin);
                false
            }
            _ => true,
        });
        for transaction in self.leader.locks.stale(now.instant, limits::LOCK_PATIENCE) {
            if !self.state.prepared().contains_key(&transaction) && self.defect != Some(Defect::ForgottenLock) {
                self.take_away(transaction, outlet);
                self.admit_held(now, outlet);
            }
        }
        for (transaction, prepared) in self.state.prepared() {
            let since = *self.prepared_since.entry(*transaction).or_insert(now.instant);
            let waited = now.instant.since(since);
            // A group with a smaller part is asked later to prepare it.
            let more = || limits::patience_for(entry::effects_bytes(prepared.effects()));
            if waited >= limits::PREPARED_PATIENCE && waited >= limits::PREPARED_PATIENCE + more() {
                self.leader.inquiries.entry(*transaction).or_default();
            }
        }
    }

    /// Tells what this group knows of a transaction. If it knows nothing it must promise never to prepare it, which
    /// takes an entry: then there is no answer yet, and the asker asks again.
    pub fn testify(&mut self, transaction: TransactionId) -> Option<Fate> {
        if self.state.prepared().contains_key(&transaction) {
            return Some(Fate::Prepared);
        }
        match self.state.outcome(transaction) {
            Some(true) => Some(Fate::Committed),
            Some(false) => Some(Fate::Refused),
            None if self.is_arriving(transaction) => None,
            None => {
                self.leader.builder.refuse(transaction);
                self.leader.waiters.push(Waiter::Silent);
                None
            }
        }
    }

    /// Takes another participant's word on a transaction that this group holds without a gateway.
    pub fn hear(&mut self, transaction: TransactionId, from: GroupId, fate: Fate) {
        if fate == Fate::Ended {
            return self.note_ending(transaction, from);
        }
        let Some(prepared) = self.state.prepared().get(&transaction) else { return };
        let Some(inquiry) = self.leader.inquiries.get_mut(&transaction).filter(|inquiry| !inquiry.is_decided) else {
            return;
        };
        let commit = match fate {
            Fate::Committed => true,
            Fate::Refused => false,
            Fate::Ended => return,
            Fate::Prepared => {
                if !inquiry.prepared_by.contains(&from.0) {
                    inquiry.prepared_by.push(from.0);
                }
                let all = prepared
                    .participants()
                    .iter()
                    .all(|participant| *participant == self.id.0 || inquiry.prepared_by.contains(participant));
                if !all {
                    return;
                }
                true
            }
        };
        inquiry.is_decided = true;
        self.log_end(transaction, commit, 0);
        self.leader.waiters.push(Waiter::Silent);
    }

    fn log_end(&mut self, transaction: TransactionId, commit: bool, low_water: u64) {
        let moves_slots = |prepared: &state::Prepared| prepared.effects().iter().any(|effect| effect.slot().is_some());
        if self.state.prepared().get(&transaction).is_some_and(moves_slots) {
            self.leader.builder.must_be_kept();
        }
        self.leader.builder.resolve(transaction, commit, low_water);
    }

    /// A new leader has no gateway for what it finds prepared. It locks the keys again and asks the others.
    fn adopt_prepared(&mut self) {
        for (transaction, prepared) in self.state.prepared() {
            let mut keys = Vec::new();
            let mut whole = false;
            for effect in prepared.effects() {
                match effect {
                    Effect::Key { key, .. } => keys.push(key.clone()),
                    Effect::Flush { .. } | Effect::Swap { .. } => whole = true,
                    Effect::Give(_) | Effect::Take(_) | Effect::Answer(_) => {}
                }
            }
            self.leader.locks.take(*transaction, keys.into_iter(), whole);
            // Logs of old versions may hold two moves of a slot.
            let slots = prepared.effects().iter().filter_map(Effect::slot);
            let free: Vec<_> = slots.filter(|slot| !self.leader.locks.is_slot_held(*slot)).collect();
            self.leader.locks.take_slots(*transaction, free.into_iter());
            self.leader.inquiries.entry(*transaction).or_default();
        }
    }

    fn ask_about_prepared(&mut self, now: Now, outlet: &mut Outlet<'_>) {
        for (transaction, inquiry) in self.leader.inquiries.iter_mut().filter(|(_, inquiry)| !inquiry.is_decided) {
            let due = inquiry.asked.is_none_or(|asked| now.instant.since(asked) >= limits::INQUIRY_INTERVAL);
            if !due {
                continue;
            }
            inquiry.asked = Some(now.instant);
            for participant in self.state.prepared()[transaction].participants() {
                if *participant != self.id.0 {
                    outlet.inquire(*transaction, self.id, GroupId(*participant));
                }
            }
        }
    }

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
            self.led_before = Some((message.from(), self.last_tick));
            self.is_asked_to_lead = message.kind() == MessageKind::HandOver;
        }
        // It is one, and holds nothing, if the node lost power before the beginning was on its disk. And a split makes
        // voters of all who voted in the other group, also of one that gave that up without applying it.
        self.replica.let_vote_vacant(may_vote_first && self.was_never_anything());
        // A message that is not for this replica changes nothing; its sender will send again what matters.
        let from = message.from();
        self.is_overtaken |= self.replica.step(message) == Err(Refused::Overtaken);
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

    /// Adds the removal of a key chosen for eviction; false if it is under way already.
    pub fn evict(&mut self, database: u16, key: &[u8], byte_count: usize) -> bool {
        // What moves is counted where it arrives.
        if self.holds_lock_on(key) || !self.evicting.insert((database, key.to_vec())) {
            return false;
        }
        let name = b"unlink";
        let mut buffer = name.to_vec();
        buffer.extend_from_slice(key);
        let spans =
            [Span { start: 0, end: name.len() as u32 }, Span { start: name.len() as u32, end: buffer.len() as u32 }];
        self.leader.speculation.note(key, self.batch_number);
        self.leader.builder.command(Protocol::Resp2, database, Args::new(&buffer, &spans));
        self.leader.waiters.push(Waiter::Eviction(database, key.to_vec(), byte_count));
        self.evicting_bytes += byte_count;
        true
    }

    /// The end of a turn: time passes, the batch is proposed, what is committed is applied. True if there is more to do
    /// at once.
    pub fn turn(&mut self, now: Now, prng: &mut Prng, outlet: &mut Outlet<'_>) -> bool {
        if self.look_after_vacancy(now, prng, outlet) {
            return false;
        }
        self.replica.tell_time(now.instant);
        self.pass_time(now, outlet);
        if std::mem::take(&mut self.is_newly_serving) {
            self.serving_since = now.instant;
            self.leader.locks.touch(now.instant);
            self.tell_lead(now, outlet);
        }
        self.reconcile(now, outlet);
        self.look_after_splits(now, outlet);
        self.look_after_moves(now, prng, outlet);
        if (std::mem::take(&mut self.leader.has_decided) | self.leader.reservations.take_ended())
            && !self.leader.held.is_empty()
        {
            self.admit_held(now, outlet);
        }
        self.tell_bulletin(now, outlet);
        self.serve_reads(now, outlet);
        let mut more = self.has_slices() && self.turn_slices(now, outlet);
        self.propose(now, outlet.context.moments.latest(), prng);
        more |= self.pump(now, outlet);
        self.settle_taking(outlet);
        // Applying may have let waiting requests in, and reads that had to see what was applied.
        let asked = self.serve_reads(now, outlet);
        let proposed = self.propose(now, outlet.context.moments.latest(), prng);
        if asked || proposed {
            more |= self.pump(now, outlet);
        }
        self.answer_near_reads(now, outlet);
        self.take_sounding(now, outlet);
        more
    }

    /// Sets when collections change their form. That is replicated data: the log tells it to every replica, before any
    /// command that comes later. Whether keys expire is left as it is.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.log_limits();
    }

    /// Sets whether keys expire, in the same way. An import outlives the process: a node with settings that say nothing
    /// of it goes on as the log says.
    pub fn set_import_mode(&mut self, import_mode: bool) {
        self.import_mode = Some(import_mode);
        self.log_limits();
    }

    /// True if no key expires, as far as this replica knows.
    pub fn is_in_import_mode(&self) -> bool {
        self.import_mode.unwrap_or(self.state.keyspace().limits().keeps_expired)
    }

    /// Raises the level of the group.
    pub(crate) fn rise(&mut self, level: stdx::Level) {
        self.level_logged = level;
        self.leader.builder.rise(level);
        self.leader.waiters.push(Waiter::Silent);
    }

    fn log_limits(&mut self) {
        let limits = Limits { keeps_expired: self.is_in_import_mode(), ..self.limits };
        if self.is_serving && limits != self.limits_logged {
            self.limits_logged = limits;
            self.leader.builder.limits(&limits);
            self.leader.waiters.push(Waiter::Silent);
        }
    }

    fn pass_time(&mut self, now: Now, outlet: &mut Outlet<'_>) {
        while now.instant.since(self.last_tick) >= limits::TICK_INTERVAL {
            // After a long pause of the process a burst of ticks would be an election storm.
            let late = now.instant.since(self.last_tick) > limits::TICK_INTERVAL * 4;
            self.last_tick = if late { now.instant } else { self.last_tick + limits::TICK_INTERVAL };
            // A node that has been removed asks nobody for a vote; one that led finds out that nobody follows.
            if !outlet.context.is_expelled || self.replica.is_leader() {
                self.replica.tick();
                self.stand_again();
            }
            if self.is_serving {
                self.leader.pace.tick(now.instant, &self.replica);
                self.watch_troubles(now, &outlet.context.room);
            }
            // What has expired is read by nobody: that may wait until there is room for an entry that says so.
            let may_log = outlet.context.room == Room::Enough;
            if self.is_serving && may_log && self.leader.builder.is_empty() && self.is_expiry_due(now) {
                self.leader.builder.tick();
                self.leader.waiters.push(Waiter::Silent);
            }
        }
        let last_use = now.instant.since(self.last_script);
        if self.leader.speculation.is_active
            && last_use >= limits::SCRIPT_MEMORY
            && self.leader.speculation.is_settled()
        {
            self.leader.speculation.clear();
        }
        if self.is_serving {
            self.look_after_reservations(now);
            self.look_after_transactions(now, outlet);
            self.look_after_gateways(now, outlet);
            self.look_after_endings(now, outlet);
            if !self.leader.inquiries.is_empty() {
                self.ask_about_prepared(now, outlet);
            }
        } else if self.is_alone() && self.recovered_index > self.first_index {
            self.tell_progress(now, outlet);
        }
        self.tell_archive(now, outlet);
        self.look_after_transfers(now, outlet);
        self.keep_log(now, outlet.actions);
        self.look_after_cut(now, outlet);
        self.look_after_doubt(now, outlet);
        self.drop_stale_reads(now, outlet);
    }

    /// True if a key's deadline has passed and the log does not know it yet: then an entry must carry the moment.
    fn is_expiry_due(&self, now: Now) -> bool {
        self.state
            .keyspace()
            .next_deadline()
            .is_some_and(|deadline| deadline <= now.unix && deadline > self.moment().unix)
            || self.state.request_ids().next_due().is_some_and(|due| due <= now.unix)
    }

    fn tell_progress(&mut self, now: Now, outlet: &mut Outlet<'_>) {
        let last = *self.last_progress.get_or_insert(now.instant);
        if now.instant.since(last) >= Duration::from_secs(1) {
            self.last_progress = Some(now.instant);
            let line = format!("group {}: {} % of the recovered log applied", self.id.0, self.loaded_percent());
            outlet.actions.push(Action::Log { level: Level::Notice, line });
        }
    }

    /// The moment of what is logged now. Moments of a log never go back, and some of it may be proposed and not yet
    /// applied; nor is it earlier than what this core has heard of.
    fn next_unix(&self, now: Now, heard: UnixMillis) -> UnixMillis {
        now.unix.max(self.moment().unix).max(self.proposed_unix).max(heard)
    }

    /// Proposes what has been gathered if its moment is fixed and earlier than what has been heard: what follows from
    /// that must not have the same moment. While leadership is being handed over nothing can be proposed.
    pub(crate) fn close_batch(&mut self, now: Now, heard: UnixMillis, prng: &mut Prng) {
        if self.leader.builder_moment.is_some_and(|moment| moment.unix < heard) {
            self.propose(now, heard, prng);
        }
    }

    fn propose(&mut self, now: Now, heard: UnixMillis, prng: &mut Prng) -> bool {
        // While leadership is being handed over the log takes nothing. Whether this replica leads on is not known, so
        // what has been taken waits: some of it counts already, such as the end of a transaction with keys that others
        // take over.
        if self.leader.builder.is_empty() || self.replica.is_handing_over() {
            return false;
        }
        // The next batch is probably like this one: room made now need not be made again step by step.
        let byte_count = self.leader.builder.byte_count() - std::mem::take(&mut self.leader.sliced_bytes);
        let mut next = Builder::with_capacity(byte_count.min(limits::BATCH_BYTES_RESERVED_MAX));
        next.set_level(self.level_to_log());
        let mut builder = std::mem::replace(&mut self.leader.builder, next);
        let next = Vec::with_capacity(self.leader.waiters.len().min(limits::BATCH_WAITERS_RESERVED_MAX));
        let waiters = std::mem::replace(&mut self.leader.waiters, next);
        let moment = match self.leader.builder_moment.take() {
            Some(moment) => moment,
            None => Moment { unix: self.next_unix(now, heard), seed: prng.draw() },
        };
        builder.set_durability(strictest(&waiters));
        assert!(moment.unix >= self.proposed_unix, "moments of a log never go back");
        self.proposed_unix = moment.unix;
        let (number, late) = (self.batch_number, Vec::new());
        self.batch_number += 1;
        let data = builder.finish(moment);
        let touched = std::mem::take(&mut self.leader.touched);
        match self.replica.propose(data.clone()) {
            Ok(()) => {
                self.inflight_bytes += byte_count;
                let (index, term) = (self.replica.last_index(), self.replica.term());
                assert!(index > self.applied(), "what is proposed comes behind what is applied");
                let before = self.inflight.iter().rev().find(|batch| batch.index > 0);
                let is_behind = before.is_none_or(|before| before.term < term || before.index < index);
                assert!(is_behind, "a place of the log is given once in a term");
                self.inflight.push_back(Batch { number, index, term, waiters, late, byte_count, data, touched });
                self.leader.pace.proposed(now.instant, index);
            }
            Err(_) => {
                // Leadership was lost in this very turn: the batch never entered the log.
                let (index, term, byte_count) = (0, 0, 0);
                self.inflight.push_back(Batch { number, index, term, waiters, late, byte_count, data, touched });
            }
        }
        true
    }

    /// Answers reads that have waited for nothing but the turn's end, at which the host has read its clock: all of them
    /// were there before. Under a lease that is enough; otherwise a quorum is asked, and then it is true.
    ///
    /// What is committed and not applied yet, since this disk is slower than those of a quorum, may have been read from
    /// a replica already ([`crate::nearby`]): no read may be of a moment before it.
    fn serve_reads(&mut self, now: Now, outlet: &mut Outlet<'_>) -> bool {
        if self.leader.reads.is_empty() && self.leader.rounds.is_empty() {
            return false;
        }
        if !self.is_serving || !self.replica.has_lease(now.instant) {
            return !self.leader.reads.is_empty() && self.begin_read_round(now);
        }
        assert!(self.replica.is_leader(), "a lease without a leader");
        let committed = self.replica.committed_index();
        if self.applied() < committed {
            self.wait_to_read(committed, now);
            return false;
        }
        let rounds = std::mem::take(&mut self.leader.rounds).into_iter().flat_map(|round| round.reads);
        let reads: Vec<_> = rounds.chain(std::mem::take(&mut self.leader.reads)).collect();
        for read in reads {
            self.execute_read(read, now, outlet);
        }
        false
    }

    /// Puts reads off until so much has been applied.
    fn wait_to_read(&mut self, index: u64, now: Now) {
        if self.leader.reads.is_empty() {
            return;
        }
        match self.leader.rounds.back_mut() {
            Some(round) if round.index == Some(index) => round.reads.append(&mut self.leader.reads),
            _ => {
                let reads = std::mem::take(&mut self.leader.reads);
                self.leader.rounds.push_back(ReadRound {
                    context: None,
                    index: Some(index),
                    reads,
                    asked: now.instant,
                });
            }
        }
    }

    fn begin_read_round(&mut self, now: Now) -> bool {
        let context = self.next_read_context;
        // Too many rounds are under way, or leadership has just been lost: the reads wait, or are refused with the
        // role.
        if self.replica.read_index(context).is_err() {
            return false;
        }
        self.next_read_context += 1;
        let reads = std::mem::take(&mut self.leader.reads);
        self.leader.rounds.push_back(ReadRound { context: Some(context), index: None, reads, asked: now.instant });
        true
    }

    fn drop_stale_reads(&mut self, now: Now, outlet: &mut Outlet<'_>) {
        while let Some(round) = self.leader.rounds.front() {
            if now.instant.since(round.asked) < limits::READ_CONFIRMATION_MAX {
                break;
            }
            let round = self.leader.rounds.pop_front().expect("just seen");
            let text = outlet.context.no_quorum(self.id, now.instant);
            for read in round.reads {
                fail_read(&read, &text, outlet);
            }
        }
    }

    /// Carries out what the replica wants until it wants nothing more, or until the turn's share of work is done.
    fn pump(&mut self, now: Now, outlet: &mut Outlet<'_>) -> bool {
        let mut applied_bytes = 0;
        // A checkpoint that has come takes the place of what is committed and not applied here: however much that is,
        // the replica is asked now whether it takes the checkpoint over.
        let has_come = self.has_come();
        let mut must_ask = has_come;
        // The replica goes on meanwhile: anyone who takes long to apply what is committed is not to be taken for dead.
        let mut waits = !has_come && !self.apply_committed(&mut applied_bytes, now, outlet);
        while !self.is_installing()
            && (std::mem::take(&mut must_ask) || !self.has_enough_to_apply())
            && let Some(ready) = self.replica.take_ready()
        {
            if let Some(role) = ready.became {
                self.change_role(role, outlet);
            }
            for message in ready.messages {
                outlet.send_raft(self.id, &message);
            }
            for transfer in ready.transfers {
                self.give(transfer, now, outlet);
            }
            match (ready.append, ready.restored) {
                (Some(append), Some(restored)) => {
                    assert!(append.entries.is_empty(), "entries behind a checkpoint that is not durable");
                    self.forget_committed(); // it is part of the checkpoint
                    waits = false;
                    self.hard_state = append.hard_state.unwrap_or(self.hard_state);
                    self.take_over(&restored, append.ticket, self.hard_state, outlet);
                }
                (Some(append), None) => self.append(append, outlet),
                (None, _) => {}
            }
            for read in ready.reads {
                if let Some(round) = self.leader.rounds.iter_mut().find(|round| round.context == Some(read.context)) {
                    round.index = Some(read.index);
                }
            }
            self.committed_bytes += ready.committed.iter().map(|entry| entry.data.len()).sum::<usize>();
            self.committed.extend(ready.committed);
            waits = waits || !self.apply_committed(&mut applied_bytes, now, outlet);
            self.answer_confirmed_reads(now, outlet);
            if applied_bytes > limits::APPLY_BYTES_PER_TURN {
                self.forget_log();
                return true;
            }
        }
        if has_come && !self.is_installing() {
            waits |= !self.apply_committed(&mut applied_bytes, now, outlet);
        }
        self.fail_batches_never_proposed(outlet);
        if self.is_serving {
            self.leader.pace.watch(now.instant, &self.replica);
        }
        self.forget_log();
        self.read_log(outlet.actions);
        waits
    }

    /// Applies what is committed. False if some of it has to wait for the next turn: an entry holds large values, or it
    /// is too much. Anyone who serves has seen to that before the entries were logged, and applies all of it.
    fn apply_committed(&mut self, applied_bytes: &mut usize, now: Now, outlet: &mut Outlet<'_>) -> bool {
        while !self.committed.is_empty() {
            if !self.is_serving && (*applied_bytes > limits::APPLY_BYTES_PER_TURN || !self.unpack_next()) {
                return false;
            }
            let entry = self.committed.pop_front().expect("just seen");
            self.committed_bytes -= entry.data.len();
            *applied_bytes += entry.data.len();
            self.apply(entry, now, outlet);
        }
        true
    }

    /// True if nothing more is taken from the replica until some of what is committed has been applied. More than usual
    /// may gather behind an entry with large values, so that a replica that takes it in goes on answering its leader.
    fn has_enough_to_apply(&self) -> bool {
        let Some(first) = self.committed.front() else { return false };
        let max = if self.is_unpacking() { limits::BEHIND_LARGE_BYTES_MAX } else { limits::APPLY_BYTES_PER_TURN };
        self.committed_bytes - first.data.len() > max
    }

    fn append(&mut self, append: consensus::Append, outlet: &mut Outlet<'_>) {
        let normal = append.entries.iter().filter(|entry| entry.kind == EntryKind::Normal);
        let level = normal.map(|entry| entry::level(&entry.data)).max().unwrap_or_default();
        if self.defect == Some(Defect::EarlyLevel) && level <= outlet.context.levels.highest {
            // Nobody is told.
        } else if outlet.context.keep(level, outlet.actions).is_err() {
            return;
        }
        let hard_state = append.hard_state.unwrap_or(self.hard_state);
        self.hard_state = hard_state;
        self.log_bytes += append.entries.iter().map(|entry| entry.data.len() as u64).sum::<u64>();
        let is_always = self.append_fsync == AppendFsync::Always;
        let is_synced = |entry: &Entry| match (entry.kind, entry::durability(&entry.data)) {
            (EntryKind::Normal, Durability::Memory) => is_always && !self.allows_memory,
            (EntryKind::Normal, Durability::Disk) => true,
            (EntryKind::Normal | EntryKind::Membership, _) => is_always,
        };
        let is_synced = match append.entries.as_slice() {
            [] => is_always,
            entries => entries.iter().any(is_synced),
        };
        let is_synced = is_synced || append.election;
        let ticket = append.ticket;
        outlet.actions.push(Action::Append {
            append: Append {
                group: self.id.0,
                ticket,
                hard_state: append.hard_state,
                membership: None,
                entries: append.entries,
            },
            persist: if is_synced { Persist::Synced } else { Persist::Written },
        });
        if self.acknowledges_early && !append.election {
            self.replica.persisted(ticket);
        }
    }

    fn change_role(&mut self, role: Role, outlet: &mut Outlet<'_>) {
        if role == Role::Leader {
            assert!(!self.is_serving, "a replica that serves cannot begin to lead");
            return; // serving begins when an entry of the new term has been applied
        }
        self.is_serving = false;
        self.backups.give_up(outlet);
        self.stop_slices(outlet);
        let Lost { held, reads, waiters, mut lines } = self.leader.step_down(self.state.keyspace().database_count());
        lines.clear(&mut self.state.upkeep());
        for held in held {
            match held {
                Held::Request(request) => fail(&request.origin, request.protocol, LEADER_LOST, outlet),
                Held::Lock(_, origin, _) => outlet.send_back(&origin),
            }
        }
        for read in reads {
            fail_read(&read, LEADER_LOST, outlet);
        }
        self.fail(waiters, outlet);
        assert!(self.leader.waiters.is_empty() && self.leader.builder.is_empty(), "a follower gathers no batch");
    }

    /// Tells those who wait for a batch that it will never be applied: its entry was never made, or another leader's
    /// stands in its place. That is certain, so the refusal may be retried without doubling anything.
    fn fail(&mut self, waiters: Vec<Waiter>, outlet: &mut Outlet<'_>) {
        for waiter in waiters {
            if let Some(origin) = waiter.origin() {
                self.lose_place(origin);
            }
            match waiter {
                Waiter::Write(origin) => fail(&origin, Protocol::Resp2, LEADER_LOST, outlet),
                Waiter::Read(read) => fail_read(&read, LEADER_LOST, outlet),
                Waiter::Step(origin) => outlet.send_back(&origin),
                Waiter::Fetch(fetch) => outlet.send_back(&fetch.origin),
                Waiter::Eviction(database, key, byte_count) => {
                    self.evicting.remove(&(database, key));
                    self.evicting_bytes -= byte_count;
                }
                Waiter::Script(origin, _) | Waiter::Told(origin, _) => {
                    fail(&origin, Protocol::Resp2, LEADER_LOST, outlet);
                }
                Waiter::Silent => {}
            }
        }
    }

    /// Tells those who wait for a batch that nobody here will ever know what became of it.
    fn fail_unknown(&mut self, batch: Batch, outlet: &mut Outlet<'_>) {
        let (writes, others) =
            batch.waiters.into_iter().partition(|waiter| matches!(waiter, Waiter::Write(_) | Waiter::Script(..)));
        for waiter in writes {
            if let Waiter::Write(origin) | Waiter::Script(origin, _) = waiter {
                fail(&origin, Protocol::Resp2, OUTCOME_UNKNOWN, outlet);
            }
        }
        self.fail_batch(Batch { waiters: others, ..batch }, outlet);
    }

    fn fail_batches_never_proposed(&mut self, outlet: &mut Outlet<'_>) {
        while self.inflight.front().is_some_and(|batch| batch.index == 0) {
            let batch = self.inflight.pop_front().expect("just seen");
            self.fail_batch(batch, outlet);
        }
    }

    fn fail_batch(&mut self, batch: Batch, outlet: &mut Outlet<'_>) {
        self.fail(batch.waiters, outlet);
        for read in &batch.late {
            self.lose_place(&read.origin);
            fail_read(read, LEADER_LOST, outlet);
        }
    }

    fn answer_confirmed_reads(&mut self, now: Now, outlet: &mut Outlet<'_>) {
        while self.leader.rounds.front().is_some_and(|round| round.index.is_some_and(|index| index <= self.applied())) {
            let round = self.leader.rounds.pop_front().expect("just seen");
            for read in round.reads {
                self.execute_read(read, now, outlet);
            }
        }
    }

    // ---- applying -------------------------------------------------------------------------------------------------

    fn apply(&mut self, entry: Entry, now: Now, outlet: &mut Outlet<'_>) {
        assert!(entry.index <= self.replica.committed_index(), "nothing is applied before it is committed");
        let cursor = self.state.open(&entry);
        outlet.context.places[self.id.0 as usize].index = entry.index;
        let batch = self.batch_of(&entry, outlet);
        let (number, waiters, late) = match batch {
            Some(Batch { number, waiters, late, .. }) => {
                self.answer_reads_before(number, now, outlet);
                (number, waiters, late)
            }
            None => (0, Vec::new(), Vec::new()),
        };
        if entry.kind == EntryKind::Membership {
            return self.change_membership(&entry, outlet);
        }
        let Some(cursor) = cursor else {
            self.begin_serving(&entry);
            return;
        };
        outlet.context.places[self.id.0 as usize].unix = self.moment().unix;
        // What follows from an entry that only says that time has passed follows from the clock.
        if !entry::is_tick(&entry.data) {
            outlet.context.hear(self.moment().unix);
        }
        let lookups = self.state.keyspace().lookups();
        self.apply_items(cursor, waiters, now, outlet);
        if !self.is_serving {
            // Nobody has read them here.
            self.state.keyspace().set_lookups(lookups);
        }
        for read in late {
            self.read_now(read, now, outlet);
        }
        if self.leader.speculation.is_active {
            self.leader.speculation.settle(number);
        }
        if self.end_reservations_of_batch(number) {
            self.admit_held(now, outlet);
        }
        self.wake_waiters(outlet);
        if !self.is_serving {
            self.begin_serving(&entry);
        }
    }

    fn change_membership(&mut self, entry: &Entry, outlet: &mut Outlet<'_>) {
        let change = Change::decode(&entry.data).expect("the replica has looked at it");
        self.membership_applied = change.fold(&self.membership_applied);
        // What was there at the start may have lost its end.
        self.is_member_by_log |= entry.index > self.recovered_index;
        if let Change::Remove(node) = change {
            // That it held nothing was true of the time before it was a member.
            self.leader.vacant.remove(&node);
        }
        self.bulletin_at = Instant::ZERO;
        let Membership { voters, learners, .. } = &self.membership_applied;
        let line = format!("group {}: voters {voters:?}, learners {learners:?}", self.id.0);
        outlet.actions.push(Action::Log { level: Level::Notice, line });
        if self.is_serving {
            let text = format!("voters {voters:?}, learners {learners:?}");
            outlet.mail(CoreId(0), Mail::Happened { kind: Kind::Member, group: Some(self.id), text });
        }
    }

    /// A leader serves from the moment when it has applied an entry of its own term.
    fn begin_serving(&mut self, entry: &Entry) {
        if self.replica.is_leader() && entry.term == self.replica.term() && !self.is_serving {
            assert_eq!(self.applied(), entry.index, "a leader serves with all that earlier ones have acknowledged");
            self.is_serving = true;
            self.is_newly_serving = true;
            // What was seen in an earlier reign, or never, would make members seem well that have nothing of this.
            self.committed_seen = entry.index;
            self.bulletin_at = Instant::ZERO;
            // First of all: what is asked for is logged behind it.
            self.level_logged = self.state.level();
            self.leader.builder.set_level(self.level_logged);
            self.rise_as_wanted();
            self.limits_logged = self.state.keyspace().limits();
            self.log_limits();
            self.adopt_prepared();
        }
    }

    /// Answers the reads that were there before a batch was proposed that is now committed, and not yet applied: this
    /// replica has led all the time between, and nothing else was committed by anybody.
    fn answer_reads_before(&mut self, number: u64, now: Now, outlet: &mut Outlet<'_>) {
        if self.leader.reads.is_empty() && self.leader.rounds.is_empty() {
            return;
        }
        let mut sure = Vec::new();
        for reads in self.leader.rounds.iter_mut().map(|round| &mut round.reads).chain([&mut self.leader.reads]) {
            sure.extend(reads.extract_if(.., |read| read.before <= number));
        }
        for read in sure {
            self.execute_read(read, now, outlet);
        }
    }

    /// Takes the batch that this entry is, with those who wait for it, and fails those that are in no log which can win
    /// any more: their place is taken, or an entry of a later term stands before it. Their place may stay empty for
    /// long, and reads and clients would wait for it.
    fn batch_of(&mut self, entry: &Entry, outlet: &mut Outlet<'_>) -> Option<Batch> {
        while let Some(batch) = self.inflight.front() {
            if batch.index > entry.index && batch.term >= entry.term {
                break;
            }
            let batch = self.inflight.pop_front().expect("just seen");
            self.inflight_bytes -= batch.byte_count;
            if batch.index == entry.index && batch.term == entry.term {
                assert_eq!(batch.data.len(), entry.data.len(), "what was proposed here is what is applied");
                return Some(batch);
            }
            self.fail_batch(batch, outlet);
        }
        None
    }

    fn apply_items(&mut self, mut cursor: Cursor<'_>, waiters: Vec<Waiter>, now: Now, outlet: &mut Outlet<'_>) {
        outlet.context.timings.break_off();
        let mut waiters = waiters.into_iter();
        let mut unlocks = false;
        while !cursor.is_done() {
            let waiter = self.next_item_waiter(&mut waiters, now, outlet);
            let imports = &mut self.slices.unpacked;
            let mut witness =
                Witness { waiter, outlet, imports, toll: Toll::default(), is_first: true, existed: false };
            let applied = self.state.apply_next(&mut cursor, &mut witness);
            let Witness { waiter, toll, existed, .. } = witness;
            unlocks |= self.is_serving && matches!(applied.what, What::Resolved { .. } | What::Split { .. });
            self.follow_up(applied, waiter, (toll, existed), outlet);
            outlet.settle();
        }
        let end = self.next_item_waiter(&mut waiters, now, outlet);
        assert!(end.is_none(), "somebody waits for an item that is not there");
        if unlocks {
            self.admit_held(now, outlet);
        }
    }

    /// Serves the reads up to the next waiter that belongs to an item.
    #[inline]
    fn next_item_waiter(
        &mut self,
        waiters: &mut std::vec::IntoIter<Waiter>,
        now: Now,
        outlet: &mut Outlet<'_>,
    ) -> Option<Waiter> {
        for waiter in waiters.by_ref() {
            match waiter {
                Waiter::Told(origin, finished) => {
                    let Finished { reply, reads, published } = *finished;
                    published.iter().for_each(|message| outlet.publish(message));
                    let observed = Observed::of_state();
                    outlet.reply_observed(&origin, Protocol::Resp2, observed, |out| out.raw(&reply));
                    outlet.remember_reads(&origin, &reads);
                }
                // It was there before the entry was proposed, and that is committed.
                Waiter::Read(read) | Waiter::Fetch(read) => self.execute_read(*read, now, outlet),
                waiter => return Some(waiter),
            }
        }
        None
    }

    /// Does what follows from an item that has been applied: tells those who listen, answers who has asked, and keeps
    /// up what this replica has beside the state.
    #[inline]
    fn follow_up(
        &mut self,
        Applied { claimed, answer, what }: Applied,
        waiter: Option<Waiter>,
        (toll, existed): (Toll, bool),
        outlet: &mut Outlet<'_>,
    ) {
        let Some(Claimed { gateway, number, .. }) = claimed else {
            return self.follow_up_unnumbered(what, waiter, existed, outlet);
        };
        let mut all = self.leader.scripts_under_way.remove(&(gateway, number)).unwrap_or_default();
        all.times.extend(toll.times);
        let (origin, published) = match waiter {
            Some(Waiter::Write(origin) | Waiter::Step(origin)) => (Some(origin), Box::default()),
            Some(Waiter::Script(origin, finished)) => (Some(origin), finished.published),
            _ => (None, Box::default()),
        };
        let claim = Claim { boot: gateway.boot, group: self.id, number };
        let is_repeated = matches!(what, What::Repeated { .. });
        match what {
            What::Command | What::Exec | What::Script => {
                let by = (gateway.node == self.node.0).then_some(Author::Request { core: gateway.core, claim });
                self.tell(outlet, by);
            }
            what => self.follow_up_rare(what, None, outlet),
        }
        let Some(answer) = answer else { return };
        if !is_repeated {
            published.iter().for_each(|message| outlet.publish(message));
        }
        if let Some(origin) = origin {
            assert_eq!(origin.claim, Some(claim), "who waits for an item has asked for it");
            outlet.answer_committed(&origin, Committed::of_applied(), all, answer);
        }
        if self.awaited.remove(&(gateway, number)) {
            outlet.settle();
            outlet.settle_told(gateway.core, claim);
        }
    }

    #[inline]
    fn follow_up_unnumbered(&mut self, what: What, waiter: Option<Waiter>, existed: bool, outlet: &mut Outlet<'_>) {
        let by = match &waiter {
            Some(Waiter::Write(origin) | Waiter::Script(origin, _)) => self.author_of(origin),
            _ => None,
        };
        match (what, waiter) {
            (What::Command, Some(Waiter::Eviction(database, key, byte_count))) => {
                self.follow_up_eviction((database, key), byte_count, existed, outlet);
            }
            (What::Script, waiter) => {
                if let Some(Waiter::Script(origin, finished)) = waiter {
                    let Finished { reply, reads, published } = *finished;
                    published.iter().for_each(|message| outlet.publish(message));
                    let proof = Committed::of_applied();
                    outlet.reply_committed(&origin, Protocol::Resp2, proof, |out| out.raw(&reply));
                    // Remembered before its own changes are told: it may have read what it then changed.
                    outlet.remember_reads(&origin, &reads);
                }
                self.tell(outlet, by);
            }
            (What::Command | What::Exec, _) => self.tell(outlet, by),
            (what, waiter) => self.follow_up_rare(what, waiter, outlet),
        }
    }

    /// To those who listen the key was evicted, not deleted by anybody.
    fn follow_up_eviction(
        &mut self,
        (database, key): (u16, Vec<u8>),
        byte_count: usize,
        existed: bool,
        outlet: &mut Outlet<'_>,
    ) {
        let mut notices = self.state.upkeep().take_notices();
        notices.retain(|notice| notice.class != Class::Generic);
        if existed {
            notices.push(Notice { class: Class::Evicted, name: "evicted", database, key: key.as_slice().into() });
        }
        self.tell_notices(notices, outlet, None);
        self.evicting.remove(&(database, key));
        self.evicting_bytes -= byte_count;
        self.evicted_count += 1;
    }

    /// The same for what is not a client's command, MULTI or script. Without a waiter the answer is given elsewhere.
    fn follow_up_rare(&mut self, what: What, waiter: Option<Waiter>, outlet: &mut Outlet<'_>) {
        let proof = Committed::of_applied();
        match what {
            What::Command | What::Exec | What::Script => unreachable!("followed up by the caller"),
            What::Nothing | What::Moved => {}
            What::Repeated { transaction } => {
                if let Some(transaction) = transaction {
                    self.leader.locks.set_logged(transaction, false);
                }
            }
            What::Installed { transaction, moved } => {
                self.leader.locks.set_logged(transaction, false);
                self.note_moved(moved);
                self.tell(outlet, self.author_of_transaction(transaction));
            }
            What::Prepared { transaction, is_accepted } => {
                self.leader.locks.set_logged(transaction, false);
                if is_accepted {
                    self.tell(outlet, self.author_of_transaction(transaction));
                }
            }
            What::Resolved { transaction, moved } => {
                self.leader.inquiries.remove(&transaction);
                self.prepared_since.remove(&transaction);
                self.note_moved(moved);
                if self.is_serving {
                    self.unlock(transaction);
                }
            }
            What::Libraries(reply) => {
                let reply = match waiter {
                    Some(Waiter::Write(origin)) => Some((origin, proof, reply)),
                    _ => None,
                };
                // Anyone who hears of the change must find it made on every core.
                let first = outlet.context.core;
                let libraries = Arc::clone(self.state.libraries());
                outlet.mail(first, Mail::Libraries { libraries, first, reply });
            }
            What::Parameters => {
                for core in (0..outlet.context.core_count).map(CoreId) {
                    outlet.mail(core, Mail::Parameters(Arc::clone(self.state.parameters())));
                }
            }
            What::Enlisted { node, before, is_news } => {
                self.is_roster_new |= is_news;
                if is_news && self.is_serving {
                    self.tell_member(node, before.as_ref(), outlet);
                }
                answer_governed(waiter, proof, outlet);
            }
            What::Wished(is_news) => {
                self.is_roster_new |= is_news;
                answer_governed(waiter, proof, outlet);
            }
            What::Split { group, split } => {
                self.end_split(group);
                self.note_split(group, split.map(|split| *split), outlet);
            }
            What::Risen { level, is_news } => {
                self.is_level_new |= is_news;
                if is_news {
                    let line = format!("group {}: is at level {level}", self.id.0);
                    outlet.actions.push(Action::Log { level: Level::Notice, line });
                }
                answer_governed(waiter, proof, outlet);
            }
        }
    }

    /// A gateway of this node wants to know when a request of its has been applied here, and told to caches. A replica
    /// without a leader learns of nothing: its caches have been told so.
    pub(crate) fn tell_when_applied(&mut self, core: CoreId, claim: Claim, outlet: &mut Outlet<'_>) {
        let gateway = GatewayId { node: self.node.0, boot: claim.boot, core };
        let is_cut_off = self.standing() == Standing::Leaderless;
        if self.is_vacant() {
            // Nobody has kept what was read of it, but for those who are told of everything.
            outlet.flush_broadcasters();
            outlet.settle_told(core, claim);
        } else if is_cut_off || !matches!(self.state.replies().look(gateway, claim.number), Lookup::New) {
            outlet.settle_told(core, claim);
        } else {
            self.awaited.insert((gateway, claim.number));
        }
    }

    /// The client behind a request, if it is one of this node.
    fn author_of(&self, origin: &Origin) -> Option<Author> {
        let (serial, ticket) = (origin.session.serial, origin.ticket);
        (origin.node == self.node).then_some(Author::Session { serial, ticket })
    }

    /// The same for a transaction over several groups.
    fn author_of_transaction(&self, transaction: TransactionId) -> Option<Author> {
        (transaction.gateway.node == self.node.0).then_some(Author::Transaction(transaction))
    }

    /// Tells what has happened to keys, by the hand of this client of the node or of none.
    #[inline]
    pub(crate) fn tell(&mut self, outlet: &mut Outlet<'_>, by: Option<Author>) {
        if self.state.keyspace().notice_count() > 0 {
            let notices = self.state.upkeep().take_notices();
            self.tell_notices(notices, outlet, by);
        }
    }

    /// Those who listen are told by the replica that leads. Clients that cache are told by the replica on their own
    /// node, which lacks nothing that they may have read.
    fn tell_notices(&self, notices: Vec<Notice>, outlet: &mut Outlet<'_>, by: Option<Author>) {
        for notice in notices {
            match notice.class {
                Class::Changed if notice.name == observe::FLUSHED => outlet.flushed(self.id),
                Class::Changed => outlet.changed(&notice.key, by),
                Class::Expired => outlet.changed(&notice.key, None),
                _ => {}
            }
            if self.is_serving && notice.class != Class::Changed {
                outlet.tell(&notice);
            }
        }
    }

    /// Counts from zero again (CONFIG RESETSTAT).
    pub(crate) fn reset_counts(&mut self) {
        self.evicted_count = 0;
        self.repeated_count = 0;
        self.reserved_count = 0;
        self.reservations_lapsed_count = 0;
        self.state.upkeep().forget_removals();
        self.state.keyspace().set_lookups(Lookups::default());
    }

    /// Figures for INFO.
    pub(crate) fn figures(&self, now: Instant) -> GroupFigures {
        GroupFigures {
            level: self.state.level(),
            group: self.id.0,
            standing: match self.standing() {
                Standing::Serving => "serving",
                Standing::Loading => "loading",
                Standing::Leaderless | Standing::Follower(_) if self.is_vacant() => "elsewhere",
                Standing::Leaderless if self.is_in_doubt() => "in-doubt",
                Standing::Follower(_) => "following",
                Standing::Leaderless => "leaderless",
            },
            leader: self.replica.leader().map(NodeId),
            leaderless_ms: None,
            bulletin: self.bulletin(),
            is_taking: self.is_taking(),
            term: self.term(),
            applied: self.applied(),
            window_bytes: self.window_bytes() as u64,
            change_count: self.state.keyspace().altered_count() - self.altered_saved,
            log_bytes: self.log_bytes,
            checkpoint_began: self.checkpointing.began(),
            is_checkpoint_waiting: self.checkpointing.is_waiting,
            checkpoint_progress: self
                .state
                .keyspace()
                .checkpoint_progress()
                .map(|(walked, total)| (walked as u64, total as u64)),
            last_checkpoint: self.checkpointing.last.clone(),
            checkpoint_count: self.checkpointing.finished_count,
            loaded_percent: self.loaded_percent(),
            staleness_ms: self.staleness(now).map(|staleness| staleness.as_millis() as u64),
            lock_count: self.lock_count() as u64,
            evicted_count: self.evicted_count,
            request_id_count: self.state.request_ids().count() as u64,
            request_id_bytes: self.state.request_ids().byte_count() as u64,
            repeated_count: self.repeated_count,
            reserved_count: self.reserved_count,
            reservations_lapsed_count: self.reservations_lapsed_count,
            removals: self.state.keyspace().removals(),
            lookups: self.state.keyspace().lookups(),
        }
    }

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
        self.is_roster_new = true;
        self.are_libraries_new = true;
        self.are_parameters_new = true;
        self.is_level_new = true;
        self.splits.has_passed = true;
        self.slot_news = self.state.slots().moved().collect();
    }

    /// What the replicas agree on.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Of group 0: who belongs to the cluster.
    pub fn roster(&self) -> &Roster {
        self.state.roster()
    }

    /// Where the group is led, if that has changed since it was last asked.
    pub(crate) fn take_route(&mut self) -> Option<Route> {
        let leader = match self.standing() {
            Standing::Serving => Some(self.node),
            Standing::Follower(leader) => Some(leader),
            Standing::Loading | Standing::Leaderless => None,
        };
        let term = if self.is_vacant() { self.led_elsewhere().1 } else { self.replica.term() };
        let route = Route { leader, term, is_here: !self.is_vacant() };
        let is_news = self.told_route.replace(route) != Some(route);
        is_news.then_some(route)
    }

    /// The level, if it has changed since it was last asked for.
    pub(crate) fn take_level(&mut self) -> Option<stdx::Level> {
        std::mem::take(&mut self.is_level_new).then(|| self.state.level())
    }

    /// The roster, if it has changed since it was last asked for.
    pub(crate) fn take_roster(&mut self) -> Option<Roster> {
        std::mem::take(&mut self.is_roster_new).then(|| self.roster().clone())
    }

    /// Logs what the others must know of a node. The group must be [`Standing::Serving`].
    pub(crate) fn enlist(&mut self, node: NodeId, member: &Member) {
        self.leader.builder.enlist(node, member);
        self.leader.waiters.push(Waiter::Silent);
    }

    /// A message to this node may have been lost.
    pub(crate) fn report_unreachable(&mut self, node: NodeId) {
        self.replica.report_unreachable(node.0);
    }

    /// The libraries, if a checkpoint has brought them since they were last asked for.
    pub(crate) fn take_libraries(&mut self) -> Option<Arc<Libraries>> {
        std::mem::take(&mut self.are_libraries_new).then(|| Arc::clone(self.state.libraries()))
    }

    /// The cluster's parameters, if a checkpoint has brought them since they were last asked for.
    pub(crate) fn take_parameters(&mut self) -> Option<Arc<Parameters>> {
        std::mem::take(&mut self.are_parameters_new).then(|| Arc::clone(self.state.parameters()))
    }

    /// Writes out all data as a checkpoint would and reads it back (DEBUG RELOAD).
    pub(crate) fn reload(&mut self) {
        self.state.reload(limits::CHECKPOINT_CHUNK_BYTES).expect("just written");
        self.altered_saved = self.state.keyspace().altered_count();
    }

    /// A checkpoint is on disk: members can be given it, and log before it need not be kept.
    pub(crate) fn marked(&mut self, mark: CheckpointMark, now: Now) {
        self.marked_index = mark.index;
        if std::mem::take(&mut self.is_checkpoint_awaited) {
            self.hold_log(mark.index, now.instant + limits::LOG_HOLD);
        }
        // From here on the host keeps only what it was told to keep.
        self.replica.compact(mark.index.min(self.told_keep.0).min(self.applied()));
        self.replica.offer_checkpoint(mark.index, mark.term, mark.membership);
    }

    /// A checkpoint begins: if a member waits for it, the log behind it is kept.
    pub(crate) fn begin_holding(&mut self, now: Now) {
        if self.is_checkpoint_awaited {
            self.hold_log(self.applied(), now.instant + limits::LOG_HOLD_FOR_CHECKPOINT);
        }
    }

    /// Digest of all that replicas must agree on.
    pub fn digest(&self) -> u64 {
        self.state.digest()
    }

    /// True if nothing is proposed, prepared or waiting.
    pub fn is_idle(&self) -> bool {
        self.inflight.is_empty()
            && self.leader.builder.is_empty()
            && self.state.prepared().is_empty()
            && self.leader.held.is_empty()
            && self.committed.is_empty()
            && !self.has_slices()
    }
}

/// When an entry that these wait for counts as kept: as the strictest of those asks that it changes something for. What
/// nobody waits for is as durable as the servers are set.
fn strictest(waiters: &[Waiter]) -> Durability {
    let of_item = |waiter: &Waiter| match waiter {
        Waiter::Write(origin) | Waiter::Step(origin) | Waiter::Script(origin, _) => Some(origin.durability),
        Waiter::Silent | Waiter::Eviction(..) => Some(Durability::Server),
        Waiter::Read(_) | Waiter::Fetch(_) | Waiter::Told(..) => None,
    };
    waiters.iter().filter_map(of_item).max().unwrap_or_default()
}

/// True for an entry that only marks a new leader.
fn is_mark_of_leader(entry: &Entry) -> bool {
    entry.kind == EntryKind::Normal && entry.data.is_empty()
}

/// Tells an operator that it is done.
fn answer_governed(waiter: Option<Waiter>, proof: Committed, outlet: &mut Outlet<'_>) {
    if let Some(Waiter::Write(origin)) = waiter {
        outlet.reply_committed(&origin, Protocol::Resp2, proof, Writer::ok);
    }
}

/// A request was not carried out here. A gateway that numbers its requests sends it again; who does not is told.
fn fail(origin: &Origin, protocol: Protocol, text: &str, outlet: &mut Outlet<'_>) {
    if origin.claim.is_some() {
        outlet.send_back(origin);
    } else {
        outlet.refuse(origin, protocol, text);
    }
}

fn fail_read(read: &DeferredRead, text: &str, outlet: &mut Outlet<'_>) {
    if matches!(read.what, ReadWhat::Place(_)) {
        return; // it will be asked again
    }
    fail(&read.origin, read.protocol, text, outlet);
}

/// Executes one command, whichever kind it is.
pub(crate) fn run_one(keyspace: &mut Keyspace, database: u16, args: Args<'_>, moment: Moment, writer: &mut Writer) {
    let command = keyspace::resolve(args).expect("a logged command is known");
    observe::run(keyspace, database, command, args, moment, writer);
}

/// The leader was lost before the write entered the log: it did not happen, and may be sent again.
pub(crate) const LEADER_LOST: &str = "TRYAGAIN The leader was lost before this request took effect";

/// A write was sent on to a leader that never answered.
pub(crate) const OUTCOME_UNKNOWN: &str =
    "CLUSTERDOWN The leader was lost before it answered: whether this write took effect is unknown";

/// The keys of a group that has not yet been loaded.
pub(crate) const LOADING: &str = "LOADING Holdfast is loading the dataset in memory";
