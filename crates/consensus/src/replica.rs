//! One node's replica of one group.

mod log_reader;
mod members;
mod votes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use bytes::Bytes;
use raft::eraftpb::{Entry as InnerEntry, EntryType, HardState as InnerHardState};
use raft::{Config, ProgressState, RawNode, ReadOnlyOption, SnapshotStatus, StateRole};
use stdx::log::{Entry, EntryKind, HardState, Membership};
use stdx::{Instant, Prng};

use crate::change::Change;
use crate::lease::{Lease, Promise};
use crate::limits;
use crate::log::{Log, Offer, membership_of};
use crate::message::{Message, MessageKind};
use members::Lives;
use votes::Ballot;

/// How a replica behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// This node; not 0, and never re-used for a node that lost its log.
    pub node: u64,
    /// The group; only mixed into the jitter, so that the groups of a node do not campaign in step.
    pub group: u32,
    /// Ticks for which a voter that has heard its leader helps nobody else to lead. It campaigns a little later.
    pub election_ticks: u32,
    /// Ticks between heartbeats.
    pub heartbeat_ticks: u32,
    /// Bytes proposed and not yet committed beyond which proposals are refused.
    pub uncommitted_bytes_max: u64,
    /// Decides every draw of an election time-out.
    pub seed: u64,
    /// Which life of this node this is, see [`first_life`]: below [`limits::NUMBER_MAX`]. Peers ignore what an earlier
    /// life still had under way.
    pub incarnation: u64,
    /// The node may have lost entries that it had acknowledged (an unclean stop while acknowledgements did not wait for
    /// the disk). Until it holds all that its leader had committed when it joined it is in doubt: its vote counts, and
    /// it is elected, only if all voters say yes. Ignored in a group of one voter, which has nobody to learn from.
    pub recovering: bool,
    /// The replica has never been anything before, so that it has promised nothing to anybody.
    pub is_new: bool,
}

/// The first life of a process, for [`Options::incarnation`]: `drawn` is random, and says which process it is. Later
/// lives of it ([`Replica::next_life`]) count up, so that peers know which of two is the earlier.
pub const fn first_life(drawn: u64) -> u64 {
    (drawn >> 8) & !((1 << limits::LIFE_COUNT_BITS) - 1)
}

impl Options {
    /// The usual options for replica `node` of `group`.
    pub fn new(node: u64, group: u32, seed: u64) -> Self {
        Self {
            node,
            group,
            election_ticks: limits::ELECTION_TICKS,
            heartbeat_ticks: limits::HEARTBEAT_TICKS,
            uncommitted_bytes_max: limits::UNCOMMITTED_BYTES_MAX,
            seed,
            incarnation: 1,
            recovering: false,
            is_new: false,
        }
    }
}

/// What survived, as recovery found it.
#[derive(Clone, Debug, Default)]
pub struct Seed {
    /// Term, vote and commit. The commit index may lag behind the checkpoint.
    pub hard_state: HardState,
    /// Who takes part.
    pub membership: Membership,
    /// Last index covered by the checkpoint that the state machine was restored from; 0 without one.
    pub checkpoint_index: u64,
    /// Term of the entry at that index.
    pub checkpoint_term: u64,
    /// The log. Entries at or below `checkpoint_index` are allowed and ignored.
    pub entries: Vec<Entry>,
}

/// What a replica is to its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Takes entries from a leader.
    Follower,
    /// Asks whether it would be elected.
    PreCandidate,
    /// Asks for votes.
    Candidate,
    /// Takes proposals.
    Leader,
}

/// Why a proposal or a read was not taken. Nothing of it has happened or will happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// This replica does not lead.
    NotLeader,
    /// The window of uncommitted proposals, or of waiting reads, is full.
    WindowFull,
    /// The leader has not yet committed an entry of its own term, so it does not know what is committed.
    TooEarly,
    /// Larger than [`limits::ENTRY_BYTES_MAX`].
    TooLarge,
    /// A change of membership is under way: one at a time.
    Changing,
}

impl fmt::Display for Dropped {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::NotLeader => "this replica does not lead",
            Self::WindowFull => "too much is waiting to be committed",
            Self::TooEarly => "the leader has not committed an entry of its term yet",
            Self::TooLarge => "the entry is too large",
            Self::Changing => "a change of membership is under way",
        })
    }
}

impl std::error::Error for Dropped {}

/// Why a message was not taken. The replica is unharmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Not addressed to this node, or from itself.
    Misdelivered,
    /// It speaks of entries beyond the log: the peer is broken, or this node has lost synced entries.
    BeyondLog,
    /// The leader holds other entries where this replica knows its own to be committed: all voters have lost them.
    Overtaken,
    /// Its term is absurdly far ahead: see [`limits::TERM_JUMP_MAX`].
    Implausible,
    /// It hands over what its sender does not have.
    NotLeader,
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Misdelivered => "a message for another node",
            Self::BeyondLog => "a message about entries that this node does not hold",
            Self::Overtaken => "a leader without entries that were committed",
            Self::Implausible => "a term absurdly far ahead",
            Self::NotLeader => "leadership handed over by a node that does not lead",
        })
    }
}

impl std::error::Error for Refused {}

/// What recovery found cannot have been written by this program on a sound disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Entries are missing between `after` and `next`.
    Hole {
        /// Last index before the hole.
        after: u64,
        /// First index behind it.
        next: u64,
    },
    /// The log and the checkpoint disagree about the entry at this index.
    Diverged {
        /// Last index of the checkpoint.
        index: u64,
    },
    /// The log holds a change of membership of no known form.
    Membership {
        /// Index of the entry.
        index: u64,
    },
    /// The hard state says that entries were committed which the log does not hold.
    LostCommitted {
        /// Commit index of the hard state.
        commit: u64,
        /// Last index of the log.
        last: u64,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hole { after, next } => write!(formatter, "log entries between {after} and {next} are missing"),
            Self::Membership { index } => {
                write!(formatter, "log entry {index} changes the membership in a way that is not known")
            }
            Self::Diverged { index } => write!(formatter, "log and checkpoint disagree about entry {index}"),
            Self::LostCommitted { commit, last } => {
                write!(formatter, "entries up to {commit} were committed, and the log ends at {last}")
            }
        }
    }
}

impl std::error::Error for Fault {}

/// What must become durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// To be handed to [`Replica::persisted`], in order.
    pub ticket: u64,
    /// Entries to add. They replace whatever the log holds at their indexes and behind.
    pub entries: Vec<Entry>,
    /// The hard state, if it changed.
    pub hard_state: Option<HardState>,
    /// Term, vote or membership changed: under every policy `persisted` waits for the disk, or a vote could be cast
    /// twice, or in a group that is no more. Without it `persisted` may be called at once where acknowledgements do not
    /// wait for the disk.
    pub election: bool,
}

/// A read confirmed: anyone who has applied up to `index` may answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// As given to [`Replica::read_index`].
    pub context: u64,
    /// To be applied before answering.
    pub index: u64,
}

/// A member that needs a checkpoint, because the entries it lacks are no longer held.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    /// Who.
    pub to: u64,
    /// The checkpoint, as [`Replica::offer_checkpoint`] named it.
    pub index: u64,
    /// To be handed to the member's [`Replica::step`] when it has the checkpoint on its disk. Until then, or until
    /// [`Replica::transfer_failed`], it is sent nothing else.
    pub message: Message,
}

/// Entries that members lack and that are not in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Index of the first.
    pub first: u64,
    /// Index of the last that is not in memory. Any number of the first may be handed over.
    pub last: u64,
    /// Their terms, each with the index from which it counts: an entry of another term has been replaced since.
    pub terms: Vec<(u64, u64)>,
}

/// A checkpoint of the leader's takes the place of this replica's log and state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Index of the checkpoint.
    pub index: u64,
    /// Term of the entry there.
    pub term: u64,
    /// Who takes part as of that entry.
    pub membership: Membership,
}

/// What a leader knows of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Who.
    pub node: u64,
    /// Does it vote?
    pub is_voter: bool,
    /// It holds all entries up to here.
    pub matched: u64,
    /// It was heard within an election time-out.
    pub is_active: bool,
    /// It is being fed entries as they come, not probed and not waiting for a checkpoint.
    pub is_streaming: bool,
    /// What it is sent next is not in memory.
    pub is_fetching: bool,
    /// It waits for a checkpoint.
    pub is_restoring: bool,
}

/// What to do next. A caller that takes it must do all of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ready {
    /// To be carried to their nodes, at once. What needs durability first is held back until `persisted`.
    pub messages: Vec<Message>,
    /// To be made durable.
    pub append: Option<Append>,
    /// The state machine must be replaced by this checkpoint. Nothing of `committed` comes with it, and nothing more
    /// may be taken before `append`, if there is one, and the checkpoint are durable together.
    pub restored: Option<Restored>,
    /// To be applied, in order. An entry of kind `Normal` without data marks a new leader; one of kind `Membership` has
    /// already had its effect here.
    pub committed: Vec<Entry>,
    /// Members that need a checkpoint.
    pub transfers: Vec<Transfer>,
    /// Confirmed reads.
    pub reads: Vec<Read>,
    /// A change of role.
    pub became: Option<Role>,
}

/// One node's replica of one group.
pub struct Replica {
    raft: RawNode<Log>,
    options: Options,
    jitter: Prng,
    /// (term, role, leader) for which the current election time-out was drawn.
    drawn_for: Option<(u64, StateRole, u64)>,
    election_timeout_ticks: usize,
    /// Ticks after which one that campaigns asks again. The library knows only the time-out above.
    campaign_ticks: usize,
    /// What it has promised its leader.
    promise: Promise,
    /// What a quorum has promised this leader.
    lease: Lease,
    now: Instant,
    recovery: Option<Recovery>,
    ballot: Ballot,
    ticks: u64,
    /// The tick from which terms ahead are counted, and the term then.
    term_base: (u64, u64),
    /// When it last went towards a term absurdly far ahead.
    climbed: u64,
    /// Whether terms have no bound: only with a defect.
    believes_terms: bool,
    /// It votes even if it holds nothing.
    votes_vacant: bool,
    /// Role last reported.
    role: Role,
    /// Last hard state handed out to be made durable.
    stored: HardState,
    /// Ticket of the latest append handed out, and of the latest reported durable.
    last_append_ticket: u64,
    persisted_ticket: u64,
    /// Ticket of the latest append that changed term, vote or membership.
    election_ticket: u64,
    /// Messages that wait for a ticket.
    held: VecDeque<(u64, Vec<Message>)>,
    /// Ours, not the library's, and free to leave.
    outbox: Vec<Message>,
    /// Lives heard of, by peer.
    lives: BTreeMap<u64, Lives>,
    /// Life in which a peer was last readmitted.
    readmitted: BTreeMap<u64, u64>,
    /// What the leader last said that every member holds.
    everywhere: u64,
    /// What this replica has told all members, as their leader, is committed.
    told_commit: u64,
    /// Who takes part, as far as entries have been applied.
    membership: Membership,
    /// Entries up to here have had their effect on `membership` when this replica was made.
    folded_index: u64,
    /// Indexes of changes of membership in the log that have not been handed out as committed yet, to be made durable.
    changes: VecDeque<u64>,
    /// Ticket that makes a restored checkpoint durable; 0 when there is none.
    restoring: u64,
}

/// The way back of a node that lost its unsynced tail.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    /// Commit index of a leader that has been told; `None` until one answered.
    target: Option<u64>,
}

/// The entries behind a checkpoint, as the library has them.
fn entries_behind(checkpoint: (u64, u64), entries: &[Entry]) -> Result<VecDeque<InnerEntry>, Fault> {
    let (checkpoint_index, checkpoint_term) = checkpoint;
    let mut kept: VecDeque<InnerEntry> = VecDeque::with_capacity(entries.len());
    let mut previous = None;
    for entry in entries {
        let after = previous.unwrap_or(checkpoint_index.min(entry.index - 1));
        if entry.index != after + 1 {
            return Err(Fault::Hole { after, next: entry.index });
        }
        previous = Some(entry.index);
        if entry.index == checkpoint_index && entry.term != checkpoint_term {
            return Err(Fault::Diverged { index: checkpoint_index });
        }
        if entry.kind == EntryKind::Membership && Change::decode(&entry.data).is_none() {
            return Err(Fault::Membership { index: entry.index });
        }
        if entry.index > checkpoint_index {
            kept.push_back(inner_entry(entry));
        }
    }
    Ok(kept)
}

fn configuration(options: &Options, applied: u64) -> Config {
    Config {
        id: options.node,
        election_tick: options.election_ticks as usize,
        max_election_tick: (options.election_ticks + limits::ELECTION_TICKS_BEHIND + limits::ELECTION_TICKS_SPREAD)
            as usize,
        heartbeat_tick: options.heartbeat_ticks as usize,
        applied,
        max_size_per_msg: limits::MESSAGE_BYTES_MAX.min(options.uncommitted_bytes_max),
        max_inflight_msgs: limits::MESSAGES_IN_FLIGHT_MAX,
        check_quorum: true,
        pre_vote: true,
        read_only_option: ReadOnlyOption::Safe, // its lease trusts no clock and reads stale values
        // Off: the library would join entries to a waiting message without entries whatever that one's index is,
        // and the follower would count them from there and acknowledge entries that do not exist.
        batch_append: false,
        skip_bcast_commit: true, // see `tell_commit`
        max_uncommitted_size: options.uncommitted_bytes_max,
        max_committed_size_per_ready: limits::COMMITTED_BYTES_MAX,
        ..Config::default()
    }
}

impl Replica {
    /// A replica as it was left, or a new one if `seed` holds only a membership. A single voter leads at once.
    ///
    /// # Errors
    /// When what is handed in contradicts itself.
    ///
    /// # Panics
    /// If the options are unusable: node 0, or time-outs that do not leave room for two heartbeats.
    pub fn new(options: Options, seed: Seed) -> Result<Self, Fault> {
        assert!(options.node != 0, "node 0 means nobody");
        assert!(2 * options.heartbeat_ticks < options.election_ticks, "no room for a lost heartbeat");
        let Seed { hard_state, membership, checkpoint_index, checkpoint_term, entries } = seed;
        let kept = entries_behind((checkpoint_index, checkpoint_term), &entries)?;
        // Changes known to be committed have had their effect before, and votes may have been cast since: the group is
        // the one after them, although they are applied again. Each is on disk with the news of the commitment of all
        // before it, so this is at most one change behind the log.
        let folded_index = hard_state.commit.max(checkpoint_index);
        let begins_with_founder = checkpoint_index == 0 && membership.voters == [options.node];
        let mut membership = membership;
        let mut changes = VecDeque::new();
        for entry in entries.iter().filter(|entry| entry.kind == EntryKind::Membership) {
            if entry.index > folded_index {
                changes.push_back(entry.index);
            } else if entry.index > checkpoint_index {
                let change = Change::decode(&entry.data).expect("it was just read");
                membership = change.fold(&membership);
            }
        }
        let alone = membership.voters == [options.node] && membership.voters_outgoing.is_empty();
        let recovering = options.recovering && !alone;

        let last = checkpoint_index + kept.len() as u64;
        if hard_state.commit > last && !options.recovering {
            return Err(Fault::LostCommitted { commit: hard_state.commit, last });
        }
        let mut inner_hard_state = InnerHardState::default();
        inner_hard_state.term = hard_state.term.max(kept.back().map_or(checkpoint_term, |entry| entry.term));
        inner_hard_state.vote = if inner_hard_state.term == hard_state.term { hard_state.vote } else { 0 };
        inner_hard_state.commit = hard_state.commit.clamp(checkpoint_index, last);

        let joined = entries.iter().filter(|entry| {
            entry.kind == EntryKind::Membership && entry.index > checkpoint_index && entry.index <= folded_index
        });
        let joined: Vec<(u64, Change)> =
            joined.filter_map(|entry| Some((entry.index, Change::decode(&entry.data)?))).collect();
        let mut log = Log::new(checkpoint_index, checkpoint_term, kept, inner_hard_state, &membership);
        log.begins_with_founder = begins_with_founder;
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raft =
            RawNode::new(&configuration(&options, checkpoint_index), log, &logger).expect("the configuration is sound");
        let mut replica = Self {
            jitter: Prng::new(options.seed ^ (u64::from(options.group) << 32) ^ options.node),
            drawn_for: None,
            election_timeout_ticks: options.election_ticks as usize,
            campaign_ticks: options.election_ticks as usize,
            promise: Promise::new(options.election_ticks, alone || options.is_new),
            lease: Lease::new(options.election_ticks),
            now: Instant::ZERO,
            recovery: recovering.then_some(Recovery { target: None }),
            ballot: Ballot::default(),
            ticks: 0,
            term_base: (0, hard_state.term),
            climbed: 0,
            believes_terms: false,
            votes_vacant: false,
            role: Role::Follower,
            // Alone it has nobody to be filled by: what it has is all there is.
            stored: HardState {
                commit: if alone { hard_state.commit.min(last) } else { hard_state.commit },
                ..hard_state
            },
            last_append_ticket: 0,
            persisted_ticket: 0,
            election_ticket: 0,
            held: VecDeque::new(),
            outbox: Vec::new(),
            lives: BTreeMap::new(),
            readmitted: BTreeMap::new(),
            everywhere: 0,
            told_commit: 0,
            membership,
            folded_index,
            changes,
            restoring: 0,
            raft,
            options,
        };
        joined.into_iter().for_each(|(index, change)| replica.note_joined(change, index));
        replica.draw_election_timeout();
        if alone {
            replica.campaign();
        }
        Ok(replica)
    }

    /// Sets the time on the host's monotonic clock. Call it after all that has arrived has been told, and before
    /// anything is sent: the clock is read between the two.
    pub fn tell_time(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.promise.tell_time(now);
    }

    /// One step of logical time.
    pub fn tick(&mut self) {
        self.ticks += 1;
        if self.recovery.is_some() && self.ticks.is_multiple_of(u64::from(self.options.heartbeat_ticks)) {
            self.ask_to_rejoin();
        }
        let must_rest = self.must_rest();
        if !self.is_leader() {
            let campaigns = matches!(self.raft.raft.state, StateRole::PreCandidate | StateRole::Candidate);
            let elapsed = &mut self.raft.raft.election_elapsed;
            if campaigns {
                *elapsed = (*elapsed).max(self.election_timeout_ticks - self.campaign_ticks);
            }
            if must_rest {
                *elapsed = (*elapsed).min(self.election_timeout_ticks - 2);
            }
        }
        if self.raft.raft.heartbeat_elapsed() + 1 >= self.options.heartbeat_ticks as usize {
            self.ask_for_lease();
        }
        self.raft.tick();
        self.draw_election_timeout();
    }

    /// Makes leases last longer than the promises they rest on. Only a simulator has a use for it.
    #[doc(hidden)]
    pub fn break_by_stretching_leases(&mut self) {
        self.lease.stretch(self.options.election_ticks);
    }

    /// Forgets what it may have promised before it was started. Only a simulator has a use for it.
    #[doc(hidden)]
    pub fn break_by_voting_at_once(&mut self) {
        self.promise.break_it();
    }

    /// Takes a peer's message. Messages of an earlier life of the sender, and requests for a vote that may not be
    /// answered yet, are dropped without a word.
    ///
    /// # Errors
    /// When an honest peer of this group would not have sent it here.
    pub fn step(&mut self, mut message: Message) -> Result<(), Refused> {
        let node = self.options.node;
        let from = message.inner.from;
        if message.inner.to != node || from == node {
            return Err(Refused::Misdelivered);
        }
        let ceiling = self.term_ceiling();
        if message.inner.term > ceiling && !self.believes_terms {
            self.climb(from, ceiling);
            return Err(Refused::Implausible);
        }
        let led_term = self.is_leader().then_some(self.raft.raft.term);
        let lives = self.lives.entry(from).or_insert_with(|| Lives::new(message.incarnation));
        lives.end_doubt_but_of(led_term);
        if !lives.hear(message.incarnation) {
            return Ok(());
        }
        if self.leader() == Some(from) {
            self.everywhere = self.everywhere.max(message.everywhere.min(self.raft.store().last()));
        }

        let last = self.raft.raft.raft_log.last_index();
        let of_the_past = message.inner.term < self.raft.raft.term;
        // A replica that the leader told to lead breaks no promise: that leader has given up its lease.
        let is_handed_over = message.inner.context == raft::CAMPAIGN_TRANSFER;
        match message.kind {
            MessageKind::HandOver if self.restoring != 0 => return Ok(()),
            // The leader has given up its lease before it says so. Anybody else's word would break a promise.
            MessageKind::HandOver if self.leader() != Some(from) || message.inner.term != self.raft.raft.term => {
                return Err(Refused::NotLeader);
            }
            MessageKind::HandOver if self.is_vacant() => return Ok(()),
            // The sender has not heard that this voter was let go; the voter has forgotten what it had acknowledged.
            MessageKind::Vote | MessageKind::PreVote if !self.may_vote() => return Ok(()),
            MessageKind::Vote | MessageKind::PreVote if self.promise.holds() && !is_handed_over => return Ok(()),
            MessageKind::Append if !of_the_past && self.is_overtaken_by(&message) => return Err(Refused::Overtaken),
            MessageKind::Heartbeat if message.inner.commit > last && !of_the_past => {
                if self.recovery.is_none() {
                    return Err(Refused::BeyondLog);
                }
                message.inner.commit = 0; // the leader has not yet heard of the loss
            }
            MessageKind::AppendReply if !message.inner.reject && message.inner.index > last && !of_the_past => {
                return Err(Refused::BeyondLog);
            }
            MessageKind::Rejoin => {
                self.readmit(from, message.incarnation, message.inner.index);
                return Ok(());
            }
            MessageKind::Welcome => {
                // Only a leader knows what has been committed. One that is not known yet is asked again.
                let is_leaders = self.leader() == Some(from);
                if let Some(recovery) = self.recovery.as_mut().filter(|_| is_leaders && !of_the_past) {
                    recovery.target = Some(recovery.target.unwrap_or(0).max(message.inner.commit));
                }
                return Ok(());
            }
            _ => {}
        }
        let is_leaders = matches!(message.kind, MessageKind::Heartbeat | MessageKind::Append | MessageKind::Checkpoint);
        // A member not known yet is heard all the same: it may be this replica that is behind. Errors speak of answers
        // from nodes that are no longer members.
        let is_yes =
            matches!(message.kind, MessageKind::VoteReply | MessageKind::PreVoteReply) && !message.inner.reject;
        if is_yes {
            for vote in self.count_vote(message) {
                let _ = self.raft.step(vote.inner);
            }
        } else {
            let is_held = message.kind == MessageKind::AppendReply && !message.inner.reject && !of_the_past;
            let is_alive = message.kind == MessageKind::HeartbeatReply && !of_the_past;
            let index = message.inner.index;
            let _ = self.raft.step(message.inner);
            if is_alive {
                self.end_probe(from);
            }
            if is_held {
                self.go_on_behind_checkpoint(from, index);
            }
        }
        if is_leaders && !of_the_past && self.leader() == Some(from) {
            self.promise.renew();
        }
        self.draw_election_timeout();
        Ok(())
    }

    /// Believes any term that others say. Only a simulator has a use for it.
    #[doc(hidden)]
    pub fn break_by_believing_terms(&mut self) {
        self.believes_terms = true;
    }

    /// A member that has its checkpoint is fed on. The library does that when it hears of more than the member has ever
    /// had; one that had lost the end of its log may have had all of it before.
    fn go_on_behind_checkpoint(&mut self, from: u64, index: u64) {
        if !self.is_leader() {
            return;
        }
        let Some(progress) = self.raft.raft.mut_prs().get_mut(from) else { return };
        if progress.is_snapshot_caught_up() && index >= progress.pending_snapshot {
            progress.become_probe();
            self.raft.raft.send_append(from);
        }
    }

    /// A member that is probed, lives and holds the whole log is fed again. The library waits for it to acknowledge
    /// something new, and as long as nobody writes there is nothing.
    fn end_probe(&mut self, from: u64) {
        if !self.is_leader() {
            return;
        }
        let raft = &mut self.raft.raft;
        let last = raft.raft_log.last_index();
        if let Some(progress) = raft.mut_prs().get_mut(from)
            && progress.state == ProgressState::Probe
            && progress.matched == last
        {
            progress.become_replicate();
        }
    }

    /// Hands leadership to a voter, as soon as that has caught up. Proposals are refused meanwhile; after an election
    /// time-out without success all is as before.
    pub fn transfer_leadership(&mut self, to: u64) {
        if self.is_leader() && self.membership.voters.contains(&to) && to != self.options.node {
            self.lease.surrender(self.raft.raft.term);
            self.raft.transfer_leader(to);
        }
    }

    /// A message to this node may have been lost: it is asked what it has before it is sent more.
    pub fn report_unreachable(&mut self, node: u64) {
        if self.is_leader() {
            self.raft.report_unreachable(node);
        }
    }

    /// Names a durable checkpoint that members may be given. It must not be older than the log that is held.
    pub fn offer_checkpoint(&mut self, index: u64, term: u64, membership: Membership) {
        self.raft.mut_store().offer = Some(Offer { index, term, membership });
    }

    /// True if a member has been found to need a checkpoint since the last call, and there is none to be given.
    pub fn takes_checkpoint(&mut self) -> bool {
        self.raft.store().asked.take()
    }

    /// A member could not be given its checkpoint: it is asked again what it has.
    pub fn transfer_failed(&mut self, to: u64) {
        if self.is_leader() {
            self.raft.report_snapshot(to, SnapshotStatus::Failure);
        }
    }

    /// Adds an entry to the log, if this replica leads. It is committed when it comes back in [`Ready::committed`];
    /// until then nothing may be concluded from `Ok`.
    ///
    /// # Errors
    /// When nothing has been added.
    pub fn propose(&mut self, data: Bytes) -> Result<(), Dropped> {
        let raft = &mut self.raft.raft;
        if raft.state != StateRole::Leader || raft.lead_transferee.is_some() {
            return Err(Dropped::NotLeader);
        }
        if data.len() > limits::ENTRY_BYTES_MAX {
            return Err(Dropped::TooLarge);
        }
        // An entry without data marks a new leader; a proposal is never one.
        assert!(!data.is_empty(), "a proposal has data");
        let entry = InnerEntry { data, ..InnerEntry::default() };
        if !raft.append_entry(&mut [entry]) {
            return Err(Dropped::WindowFull);
        }
        raft.bcast_append();
        self.told_commit = self.told_commit.max(raft.raft_log.committed);
        Ok(())
    }

    /// Tells followers what is committed, if this replica leads and they will not hear so with the next entries: those
    /// under way will be committed, too, and then more entries go out or all is at rest. To tell of every commit would
    /// be a message for each batch, with an answer, and wake every node twice as often. Heartbeats tell it as well.
    fn tell_commit(&mut self) {
        let raft = &mut self.raft.raft;
        let committed = raft.raft_log.committed;
        if committed <= self.told_commit || committed < raft.raft_log.last_index() || raft.state != StateRole::Leader {
            return;
        }
        self.told_commit = committed;
        // While a change is pending the library does so itself.
        if !raft.should_bcast_commit() {
            raft.bcast_append();
        }
    }

    /// Asks a quorum whether this replica still leads; the answer comes in [`Ready::reads`]. A context is used once.
    /// The question dies without a word when leadership does: the caller sets its own time limit.
    ///
    /// # Errors
    /// When the question was not asked.
    pub fn read_index(&mut self, context: u64) -> Result<(), Dropped> {
        if self.raft.raft.state != StateRole::Leader {
            return Err(Dropped::NotLeader);
        }
        if !self.raft.raft.commit_to_current_term() {
            return Err(Dropped::TooEarly);
        }
        if self.raft.raft.pending_read_count() >= limits::READS_WAITING_MAX {
            return Err(Dropped::WindowFull);
        }
        assert!(!Lease::is_own(context), "a context of the caller's own");
        self.lease.ask(context, self.now, self.raft.raft.term);
        self.raft.read_index(context.to_le_bytes().to_vec());
        Ok(())
    }

    /// What to do next; `None` when there is nothing. Call until `None`, after any other call.
    pub fn take_ready(&mut self) -> Option<Ready> {
        self.tell_commit();
        let outbox = std::mem::take(&mut self.outbox);
        if !self.raft.has_ready() {
            return (!outbox.is_empty()).then(|| Ready { messages: outbox, ..Ready::default() });
        }
        if self.is_leader() {
            self.recovery = None; // it was at least as far as all who could know more
        }
        let mut inner = self.raft.ready();
        let ticket = inner.number();
        let became = inner.ss().map(|state| role(state.raft_state)).filter(|role| *role != self.role);
        self.role = became.unwrap_or(self.role);
        if became.is_some() {
            self.lease.end();
        }

        let new_entries = inner.take_entries();
        // One that has lost everything remembers on disk that something had been committed, until it has some of it.
        let commit = match self.raft.raft.raft_log.committed {
            0 => self.stored.commit,
            committed => committed,
        };
        let now = HardState { term: self.raft.raft.term, vote: self.raft.raft.vote, commit };
        assert!(now.term >= self.stored.term, "a term went back");
        // A replica that has lost its log, or the end of it, is filled from a checkpoint that may be older than what it
        // had.
        assert!(now.commit >= self.stored.commit || self.recovery.is_some(), "a commit went back");
        let is_vote_kept = now.term > self.stored.term || self.stored.vote == 0 || now.vote == self.stored.vote;
        assert!(is_vote_kept, "a second vote in term {}", now.term);
        let restored = self.restore(inner.snapshot());
        let mut election = now.term != self.stored.term || now.vote != self.stored.vote || restored.is_some();
        election |= self.note_changes(&new_entries, now.commit);
        // The commit index alone is not worth a write, unless it makes a change of membership count: it is found again
        // by any leader, and rides on the next entries.
        let append = (election || !new_entries.is_empty()).then(|| {
            self.raft.mut_store().append(&new_entries);
            let hard_state = (now != self.stored).then_some(now);
            self.stored = now;
            self.last_append_ticket = ticket;
            if election {
                self.election_ticket = ticket;
            }
            Append { ticket, entries: new_entries.iter().map(outer_entry).collect(), hard_state, election }
        });

        let mut messages = outbox;
        self.wrap_messages(inner.take_messages(), &mut messages);
        let mut persisted = Vec::new();
        self.wrap_messages(inner.take_persisted_messages(), &mut persisted);
        self.begin_ballot(&mut persisted);
        if self.persisted_ticket >= self.election_ticket {
            // That a leader was heard is true whatever the disk holds, once the leader's term is there.
            messages.extend(persisted.extract_if(.., |message| message.kind() == MessageKind::HeartbeatReply));
        }
        if !persisted.is_empty() {
            if self.persisted_ticket >= self.last_append_ticket {
                messages.append(&mut persisted);
            } else {
                self.held.push_back((self.last_append_ticket, persisted));
            }
        }

        let transfers = self.take_transfers(&mut messages);
        let committed: Vec<Entry> = inner.take_committed_entries().iter().map(outer_entry).collect();
        let mut reads: Vec<Read> = inner.take_read_states().iter().filter_map(read).collect();
        reads.iter().for_each(|read| self.lease.grant(read.context));
        reads.retain(|read| !Lease::is_own(read.context));
        self.raft.advance_append_async(inner);
        if restored.is_some() {
            self.restoring = self.last_append_ticket; // it counts as applied when it is durable
        } else {
            self.raft.advance_apply();
        }
        if self.persisted_ticket >= self.last_append_ticket {
            self.raft.on_persist_ready(ticket); // nothing of it had to become durable
        }
        for entry in committed.iter().filter(|entry| entry.kind == EntryKind::Membership) {
            self.apply_change(entry);
        }
        self.finish_recovery();
        Some(Ready { messages, append, restored, committed, transfers, reads, became })
    }

    /// A checkpoint that the library has taken over becomes the beginning of the log.
    fn restore(&mut self, snapshot: &raft::eraftpb::Snapshot) -> Option<Restored> {
        let metadata = snapshot.get_metadata();
        if metadata.index == 0 {
            return None;
        }
        let membership = membership_of(metadata.get_conf_state());
        self.raft.mut_store().reset(metadata.index, metadata.term);
        self.membership = membership.clone();
        self.folded_index = metadata.index;
        self.changes.clear();
        Some(Restored { index: metadata.index, term: metadata.term, membership })
    }

    /// Sorts out the messages that have to wait until their members have a checkpoint.
    fn take_transfers(&mut self, messages: &mut Vec<Message>) -> Vec<Transfer> {
        let mut transfers = Vec::new();
        messages.retain(|message| {
            let is_transfer = message.kind() == MessageKind::Checkpoint;
            if is_transfer {
                let index = message.inner.get_snapshot().get_metadata().index;
                transfers.push(Transfer { to: message.to(), index, message: message.clone() });
            }
            !is_transfer
        });
        transfers
    }

    /// All appends up to this ticket are durable, or as safe as the policy in force asks.
    pub fn persisted(&mut self, ticket: u64) {
        assert!(ticket <= self.last_append_ticket, "ticket {ticket} was never handed out");
        if ticket <= self.persisted_ticket {
            return;
        }
        self.persisted_ticket = ticket;
        self.raft.on_persist_ready(ticket);
        if self.restoring != 0 && ticket >= self.restoring {
            self.restoring = 0;
            self.raft.advance_apply();
        }
        while let Some((needs, _)) = self.held.front() {
            if *needs > ticket {
                break;
            }
            let (_, mut messages) = self.held.pop_front().expect("it was just seen");
            self.outbox.append(&mut messages);
        }
        self.draw_election_timeout();
        self.finish_recovery();
    }

    /// True if it holds nothing and knows of no group to take part in: one that has never been given a checkpoint, or
    /// has been let go and has given up what it had. It votes for nobody until it has been given a checkpoint, unless
    /// it [has never acknowledged anything](Self::let_vote_vacant).
    pub fn is_vacant(&self) -> bool {
        self.membership.voters.is_empty() && self.membership.learners.is_empty() && self.last_index() == 0
    }

    /// A vacant replica has been let go: what it has said as a member is not to be taken for what it says as one again.
    pub fn begin_another_life(&mut self) {
        assert!(self.is_vacant(), "a replica that holds something does not forget what it has said");
        self.options.incarnation = self.next_life();
    }

    /// The life that follows this one in the same process, for [`Options::incarnation`].
    pub fn next_life(&self) -> u64 {
        (self.options.incarnation + 1) % limits::NUMBER_MAX
    }

    /// What it keeps when it gives up everything else: it votes but once in a term, whatever it is to the group then.
    pub fn vacated_hard_state(&self) -> HardState {
        HardState { term: self.raft.raft.term, vote: self.raft.raft.vote, commit: 0 }
    }

    /// True if leadership is being handed over.
    pub fn is_handing_over(&self) -> bool {
        self.raft.raft.lead_transferee.is_some()
    }

    /// What a leader knows of the others.
    pub fn progress(&self) -> Vec<Progress> {
        if !self.is_leader() {
            return Vec::new();
        }
        let own = self.options.node;
        let mut all: Vec<_> = self
            .raft
            .raft
            .prs()
            .iter()
            .filter(|(node, _)| **node != own)
            .map(|(node, progress)| Progress {
                node: *node,
                is_voter: self.membership.voters.contains(node),
                matched: progress.matched,
                is_active: progress.recent_active,
                is_streaming: progress.state == ProgressState::Replicate,
                is_fetching: progress.next_idx <= self.raft.store().memory_index(),
                is_restoring: progress.state == ProgressState::Snapshot,
            })
            .collect();
        all.sort_by_key(|progress| progress.node);
        all
    }

    /// Voters, this replica among them, that have not acknowledged the log up to this place to it, the leader.
    pub fn voters_without(&self, index: u64) -> Vec<u64> {
        let Membership { voters, voters_outgoing, .. } = &self.membership;
        let all: BTreeSet<u64> = voters.iter().chain(voters_outgoing).copied().collect();
        let progress = self.raft.raft.prs();
        let has_it = |node: &u64| progress.get(*node).is_some_and(|progress| progress.matched >= index);
        all.into_iter().filter(|node| !has_it(node)).collect()
    }

    /// Does it lead?
    pub fn is_leader(&self) -> bool {
        self.raft.raft.state == StateRole::Leader
    }

    /// Is it the only voter, so that its reads need no confirmation?
    pub fn is_alone(&self) -> bool {
        self.membership.voters == [self.options.node] && self.membership.voters_outgoing.is_empty()
    }

    /// May it lack the end of its log, so that it must catch up before its vote counts like any other?
    pub fn is_recovering(&self) -> bool {
        self.recovery.is_some()
    }

    /// What it is to its group.
    pub fn role(&self) -> Role {
        role(self.raft.raft.state)
    }

    /// The leader it knows of.
    pub fn leader(&self) -> Option<u64> {
        Some(self.raft.raft.leader_id).filter(|leader| *leader != 0)
    }

    /// Its term.
    pub fn term(&self) -> u64 {
        self.raft.raft.term
    }

    fn wrap_messages(&self, inner: Vec<raft::eraftpb::Message>, messages: &mut Vec<Message>) {
        if inner.is_empty() {
            return;
        }
        let everywhere = if self.is_leader() { self.match_index_min() } else { 0 };
        let incarnation = self.options.incarnation;
        messages.extend(inner.into_iter().filter_map(|message| {
            let mut message = Message::wrap(message, incarnation, everywhere)?;
            if matches!(message.kind, MessageKind::VoteReply | MessageKind::PreVoteReply) && !message.inner.reject {
                message.is_in_doubt = self.recovery.is_some();
                message.inner.index = self.last_index(); // the library has no use for it
            }
            Some(message)
        }));
    }
}

impl fmt::Debug for Replica {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Replica")
            .field("node", &self.options.node)
            .field("role", &self.role())
            .field("term", &self.term())
            .field("last", &self.last_index())
            .field("committed", &self.committed_index())
            .finish_non_exhaustive()
    }
}

fn role(state: StateRole) -> Role {
    match state {
        StateRole::Follower => Role::Follower,
        StateRole::PreCandidate => Role::PreCandidate,
        StateRole::Candidate => Role::Candidate,
        StateRole::Leader => Role::Leader,
    }
}

fn read(state: &raft::ReadState) -> Option<Read> {
    let context = u64::from_le_bytes(state.request_ctx.as_slice().try_into().ok()?);
    Some(Read { context, index: state.index })
}

fn is_change(entry: &InnerEntry) -> bool {
    entry.get_entry_type() != EntryType::EntryNormal
}

fn outer_entry(entry: &InnerEntry) -> Entry {
    let kind = match entry.get_entry_type() {
        EntryType::EntryNormal => EntryKind::Normal,
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => EntryKind::Membership,
    };
    Entry { term: entry.term, index: entry.index, kind, data: entry.data.clone() }
}

fn inner_entry(entry: &Entry) -> InnerEntry {
    let mut inner =
        InnerEntry { term: entry.term, index: entry.index, data: entry.data.clone(), ..InnerEntry::default() };
    if entry.kind == EntryKind::Membership {
        inner.set_entry_type(EntryType::EntryConfChangeV2);
    }
    inner
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a replica wants to be sent, with all that it writes made durable.
    fn messages_of(replica: &mut Replica) -> Vec<Message> {
        let mut messages = Vec::new();
        while let Some(ready) = replica.take_ready() {
            messages.extend(ready.messages);
            if let Some(append) = ready.append {
                replica.persisted(append.ticket);
            }
        }
        messages
    }

    #[test]
    fn who_holds_nothing_votes_for_nobody() {
        let membership = Membership { voters: vec![1, 2], ..Membership::default() };
        let mut one = Replica::new(Options::new(1, 1, 7), Seed { membership, ..Seed::default() }).unwrap();
        let hard_state = HardState { term: 1, vote: 2, commit: 0 };
        let mut two = Replica::new(Options::new(2, 1, 8), Seed { hard_state, ..Seed::default() }).unwrap();
        // Neither has promised anything to anybody.
        [&mut one, &mut two].into_iter().for_each(Replica::break_by_voting_at_once);
        assert!(two.is_vacant() && !one.is_vacant());
        assert_eq!(two.vacated_hard_state(), hard_state, "it votes once in a term, whatever it is to the group");
        one.campaign();
        let asked = messages_of(&mut one);
        assert_eq!(
            asked.iter().map(|message| (message.to(), message.kind())).collect::<Vec<_>>(),
            [(2, MessageKind::PreVote)]
        );
        assert_eq!(two.step(asked[0].clone()), Ok(()));
        assert_eq!(messages_of(&mut two), []);
        // One that is a member, and has as little, answers.
        let membership = Membership { voters: vec![1, 2], ..Membership::default() };
        let mut member =
            Replica::new(Options::new(2, 1, 8), Seed { hard_state, membership, ..Seed::default() }).unwrap();
        member.break_by_voting_at_once();
        assert_eq!(member.step(asked[0].clone()), Ok(()));
        assert_eq!(messages_of(&mut member).len(), 1);
    }

    #[test]
    fn who_was_let_go_comes_back_in_another_life() {
        let mut lives = Lives::new(900);
        lives.end();
        assert!(!lives.hear(900) && lives.hear(901) && !lives.hear(900));
    }

    #[test]
    fn a_life_that_may_have_begun_after_its_node_was_let_go_is_heard_in_the_next_term() {
        let first = first_life(0x1234_5678_9abc_def0);
        let mut lives = Lives::new(first);
        lives.end_in_doubt(7);
        assert!(lives.is_in_doubt());
        lives.end_doubt_but_of(Some(7));
        assert!(lives.is_in_doubt() && !lives.hear(first));
        lives.end_doubt_but_of(None);
        assert!(!lives.is_in_doubt() && lives.hear(first));
        // The next one shows that the node had not come back.
        lives.end_in_doubt(8);
        assert!(lives.hear(first + 1) && !lives.is_in_doubt());
        lives.end_doubt_but_of(Some(9));
        assert!(!lives.hear(first) && lives.hear(first + 1));
    }

    #[test]
    fn an_earlier_life_of_a_process_is_not_taken_for_its_next_because_it_is_heard_late() {
        let first = first_life(0x1234_5678_9abc_def0);
        let mut lives = Lives::new(first + 2);
        assert!(!lives.hear(first) && !lives.hear(first + 1) && lives.hear(first + 2));
        assert!(lives.hear(first + 3) && !lives.hear(first + 2) && !lives.hear(first + 1));
        // Another process is another matter, whatever was drawn; and so is what the first had still under way then.
        let second = first_life(0x0234_5678_9abc_def0);
        assert!(lives.hear(second + 1));
        assert!(!lives.hear(first + 1) && !lives.hear(second));
        lives.end();
        assert!(!lives.hear(second + 1) && !lives.hear(second) && lives.hear(second + 2));
    }

    #[test]
    fn a_life_that_has_ended_is_not_heard_again_whatever_its_number() {
        let of_process = |number: u64| number << limits::LIFE_COUNT_BITS;
        let mut lives = Lives::new(of_process(900));
        assert!(lives.hear(of_process(900)));
        assert!(lives.hear(of_process(100)), "another process may have drawn a smaller number");
        assert!(!lives.hear(of_process(900)));
        assert!(lives.hear(of_process(100)));
        (0..3 * limits::LIVES_MAX as u64).for_each(|number| assert!(lives.hear(of_process(1_000 + number))));
        assert_eq!(lives.ended.len(), limits::LIVES_MAX);
    }
}
