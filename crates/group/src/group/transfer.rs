//! Giving a member a checkpoint, and taking one.
//!
//! ```text
//!   leader                                   member
//!     │ offer: the checkpoint's name           │
//!     ├───────────────────────────────────────▶│ begins a file
//!     │◀──────────────────── pull: chunk n ────┤
//!     ├─ chunk n, read from the leader's file ▶│ to its file and to a keyspace beside its own; then pull n + 1
//!     │                                        │ after the last: the file is made durable; then it counts and the
//!     │                                        │ log goes on behind it, in one record; the keyspace takes the place
//!     │                                        │ of the old one
//! ```
//!
//! The member asks for one chunk at a time, when its disk has taken the one before. One that does not vote yet gets it
//! no faster than `balance-rate-bytes` says, and slower while the leader's own disk is slow. What a cut link loses is
//! asked for again; what has come stays. Until the end the leader keeps the log behind the checkpoint. A member without
//! room on its disk for it takes no offers for a while, and is offered it again.

use consensus::{Message, MessageKind, Restored, Transfer};
use journal::CheckpointMark;
use keyspace::Keyspace;
use state::State;
use stdx::log::HardState;
use stdx::{Duration, Instant};

use super::Group;
use crate::checkpoint::{CHUNK_KEYSPACE, CHUNK_STATE};
use crate::host::{CheckpointNews, CheckpointStep};
use crate::ids::{Level, NodeId, Now};
use crate::limits;
use crate::output::{NodeView, Output, PeerMessage};
use crate::replica_reads::AppliedPosition;
use crate::timeline::Kind;

/// A checkpoint on its way to a member.
#[derive(Debug)]
pub(super) struct Giving {
    to: u64,
    index: u64,
    message: Message,
    offered: Instant,
    heard: Instant,
    /// Bytes that have been read for the member.
    sent: u64,
    /// The chunk that the member waits for, and since when.
    waiting: Option<(u64, Instant)>,
    /// Before this nothing more is sent, so that no more than `balance-rate-bytes` go in a second.
    next_at: Instant,
}

/// A checkpoint on its way from the leader.
pub(super) struct Taking {
    from: u64,
    message: Message,
    mark: CheckpointMark,
    /// Of the file being written.
    id: u64,
    /// The chunk that is wanted, or being written.
    chunk: u64,
    is_writing: bool,
    asked: Instant,
    heard: Instant,
    keyspace: Keyspace,
    state: Vec<u8>,
    stage: Stage,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// Chunks are coming.
    Fetching,
    /// They are all there, and are being made durable.
    Keeping,
    /// It is all there and durable; the replica has been told.
    Complete,
    /// The replica has taken it over; it becomes durable. The ticket is the replica's.
    Installing { ticket: u64 },
}

impl Group {
    // ---- the leader's side ----------------------------------------------------------------------------------------

    /// Members that need a checkpoint are offered it.
    pub(super) fn give(&mut self, transfer: Transfer, now: Now, output: &mut impl Output) {
        let Transfer { to, index, message } = transfer;
        self.leader.giving.retain(|giving| giving.to != to);
        self.hold_log(index, now.instant + limits::LOG_HOLD);
        let giving = Giving {
            to,
            index,
            message,
            offered: now.instant,
            heard: now.instant,
            sent: 0,
            waiting: None,
            next_at: now.instant,
        };
        self.offer(&giving, output);
        self.leader.giving.push(giving);
        *self.leader.given.entry(to).or_default() += 1;
        let line = format!("group {}: gives node {to} the checkpoint at index {index}", self.id.0);
        output.log(Level::Notice, line);
    }

    fn offer(&self, giving: &Giving, output: &mut impl Output) {
        output.send_to_replica(NodeId(giving.to), self.id, PeerMessage::Offer(&giving.message));
    }

    /// A member wants a chunk.
    pub fn pulled(&mut self, from: NodeId, index: u64, chunk: u64, now: Now, output: &mut impl Output) {
        let Some(giving) = self.leader.giving.iter_mut().find(|giving| giving.to == from.0 && giving.index == index)
        else {
            return;
        };
        giving.heard = now.instant;
        if giving.waiting.is_none_or(|(waiting, _)| waiting != chunk) {
            giving.waiting = Some((chunk, now.instant));
        }
        self.hold_log(index, now.instant + limits::LOG_HOLD);
        self.read_wanted_chunks(now, output);
    }

    /// Lets chunks be read that members wait for, as far as the pace allows it. A voter that lacks what it once had is
    /// given it without rest: until then one failure less can be borne.
    fn read_wanted_chunks(&mut self, now: Now, output: &mut impl Output) {
        let is_disk_slow = self.lag(self.replica.persisted_index()) >= limits::GIVING_DISK_LAG;
        let voters = self.membership().voters.clone();
        for giving in &mut self.leader.giving {
            let Some((chunk, since)) = giving.waiting else { continue };
            let pauses = is_disk_slow && now.instant.since(since) < limits::GIVING_PAUSE_MAX;
            if !voters.contains(&giving.to) && (pauses || now.instant < giving.next_at) {
                continue;
            }
            giving.waiting = None;
            let (_, term, membership) = giving.message.checkpoint().expect("an offer names its checkpoint");
            let mark = CheckpointMark { index: giving.index, term, membership };
            let to = NodeId(giving.to);
            output.read_checkpoint(self.id, mark, chunk, to);
        }
    }

    /// Bytes of a checkpoint that a member still has to be given, roughly, if it is being given one.
    pub(super) fn bytes_to_give(&self, to: u64) -> Option<u64> {
        let giving = self.leader.giving.iter().find(|giving| giving.to == to)?;
        Some((self.state.keyspace().memory_bytes() as u64).saturating_sub(giving.sent))
    }

    /// The host has read a chunk; `None` is the end.
    pub fn chunk_read(
        &mut self,
        index: u64,
        chunk: u64,
        to: NodeId,
        read: Result<Option<Vec<u8>>, String>,
        output: &mut impl Output,
    ) {
        if to == self.node {
            return self.cut_chunk_read(index, chunk, &read, output);
        }
        let is_it = |giving: &&mut Giving| giving.to == to.0 && giving.index == index;
        let Some(giving) = self.leader.giving.iter_mut().find(is_it) else { return };
        match read {
            Ok(bytes) => {
                let count = bytes.as_ref().map_or(0, Vec::len) as u64;
                giving.sent += count;
                let rate = output.view().balance_rate_bytes();
                if rate > 0 {
                    let earliest = Instant::ZERO + giving.heard.since(Instant::ZERO + limits::GIVING_BURST);
                    let takes = Duration::from_nanos((u128::from(count) * 1_000_000_000 / u128::from(rate)) as u64);
                    giving.next_at = giving.next_at.max(earliest) + takes.min(limits::GIVING_WAIT_MAX);
                }
                output.send_to_replica(to, self.id, PeerMessage::Chunk { index, chunk, bytes: bytes.as_deref() });
            }
            Err(reason) => {
                self.leader.giving.retain(|giving| giving.to != to.0);
                self.replica.transfer_failed(to.0);
                let line = format!("group {}: cannot read its checkpoint for node {}: {reason}", self.id.0, to.0);
                output.log(Level::Warning, line);
            }
        }
    }

    fn look_after_giving(&mut self, now: Now, output: &mut impl Output) {
        let is_asked = self.replica.takes_checkpoint() && self.replica.is_leader();
        if is_asked && !self.checkpointing.is_running() && !self.checkpointing.is_resting(now) {
            self.transfer.is_awaited = true;
            self.want_checkpoint();
        }
        if self.log.held.is_some_and(|(_, until)| until <= now.instant) {
            self.log.held = None;
        }
        if self.leader.giving.is_empty() {
            return;
        }
        let progress = self.replica.progress();
        let is_restoring = |to: u64| progress.iter().any(|other| other.node == to && other.is_restoring);
        let mut kept = Vec::new();
        for mut giving in std::mem::take(&mut self.leader.giving) {
            if !is_restoring(giving.to) {
                continue;
            }
            if now.instant.since(giving.heard) > limits::TRANSFER_PATIENCE {
                self.replica.transfer_failed(giving.to);
                let line = format!("group {}: node {} does not take its checkpoint for now", self.id.0, giving.to);
                output.log(Level::Warning, line);
                continue;
            }
            if now.instant.since(giving.offered.max(giving.heard)) >= limits::TRANSFER_RETRY {
                giving.offered = now.instant;
                self.offer(&giving, output);
            }
            kept.push(giving);
        }
        self.leader.giving = kept;
        self.read_wanted_chunks(now, output);
    }

    // ---- the member's side ----------------------------------------------------------------------------------------

    /// A leader offers a checkpoint.
    pub fn offered(&mut self, from: NodeId, message: Message, now: Now, output: &mut impl Output) {
        let Some((index, term, membership)) = message.checkpoint() else { return };
        if message.from() != from.0 || message.term() < self.replica.term() || self.replica.is_leader() {
            return;
        }
        // A checkpoint would pass over what another group begins with.
        if self.is_vacating() || self.holds_beginnings() {
            return;
        }
        if index <= self.applied() {
            let _ = self.replica.step(message); // its answer tells the leader so
            return;
        }
        // What has just found no room would hardly find it now.
        if self.transfer.failed.is_some_and(|failed| now.instant.since(failed) < limits::CHECKPOINT_REST) {
            return;
        }
        match &mut self.transfer.taking {
            Some(taking) if taking.stage != Stage::Fetching => return,
            Some(taking) if taking.mark.index == index && taking.mark.term == term => {
                taking.from = from.0;
                taking.message = message;
                taking.heard = now.instant;
            }
            _ => {
                self.stop_taking(output);
                self.stop_checkpoint(output);
                let id = self.checkpointing.next_id();
                let mark = CheckpointMark { index, term, membership };
                let step = CheckpointStep::Begin(mark.clone());
                output.checkpoint(self.id, id, step);
                self.transfer.taking = Some(Taking {
                    from: from.0,
                    message,
                    mark,
                    id,
                    chunk: 0,
                    is_writing: false,
                    asked: now.instant,
                    heard: now.instant,
                    keyspace: self.state.keyspace().new_like(),
                    state: Vec::new(),
                    stage: Stage::Fetching,
                });
                let line = format!("group {}: takes the checkpoint at index {index} from node {}", self.id.0, from.0);
                output.log(Level::Notice, line);
            }
        }
        self.pull(now, output);
    }

    fn pull(&mut self, now: Now, output: &mut impl Output) {
        let Some(taking) = &mut self.transfer.taking else { return };
        if taking.is_writing || taking.stage != Stage::Fetching {
            return;
        }
        taking.asked = now.instant;
        let (index, chunk) = (taking.mark.index, taking.chunk);
        output.send_to_replica(NodeId(taking.from), self.id, PeerMessage::Pull { index, chunk });
    }

    /// A chunk has come, or the end.
    pub fn chunk_came(
        &mut self,
        from: NodeId,
        index: u64,
        chunk: u64,
        bytes: Option<&[u8]>,
        now: Now,
        output: &mut impl Output,
    ) {
        let Some(taking) = &mut self.transfer.taking else { return };
        let is_wanted = taking.from == from.0 && taking.mark.index == index && taking.chunk == chunk;
        if !is_wanted || taking.is_writing || taking.stage != Stage::Fetching {
            return;
        }
        taking.heard = now.instant;
        let Some(bytes) = bytes else {
            taking.stage = Stage::Keeping;
            output.checkpoint(self.id, taking.id, CheckpointStep::Keep);
            return;
        };
        let is_sound = match bytes.split_first() {
            Some((&CHUNK_STATE, saved)) => {
                let (groups, keyspace) = (self.state.slots().first_count(), taking.keyspace.new_like());
                let mut looked_at = State::new(self.id, groups, keyspace);
                looked_at.load(saved, state::Position::default());
                if !output.keep_level(looked_at.level()) {
                    return self.stop_taking(output);
                }
                taking.state = saved.to_vec();
                true
            }
            Some((&CHUNK_KEYSPACE, records)) => taking.keyspace.restore(records).is_ok(),
            _ => false,
        };
        if !is_sound {
            let line = format!("group {}: node {} sent a chunk of a checkpoint that is none", self.id.0, from.0);
            output.log(Level::Warning, line);
            self.stop_taking(output);
            return;
        }
        taking.is_writing = true;
        let step = CheckpointStep::Chunk(bytes.to_vec());
        output.checkpoint(self.id, taking.id, step);
    }

    /// Time passes for checkpoints under way.
    pub(super) fn look_after_transfers(&mut self, now: Now, output: &mut impl Output) {
        self.look_after_giving(now, output);
        let Some(taking) = &self.transfer.taking else { return };
        if taking.stage != Stage::Fetching || taking.is_writing {
            return;
        }
        if now.instant.since(taking.heard) > limits::TRANSFER_PATIENCE {
            self.stop_taking(output);
        } else if now.instant.since(taking.asked) >= limits::TRANSFER_RETRY {
            self.pull(now, output);
        }
    }

    /// The host has news of the file being written. False if it is about another one.
    pub fn taking_news(&mut self, id: u64, news: &CheckpointNews, now: Now, output: &mut impl Output) -> bool {
        let Some(taking) = self.transfer.taking.as_mut().filter(|taking| taking.id == id) else { return false };
        match news {
            CheckpointNews::Written(_) => {
                taking.is_writing = false;
                taking.chunk += 1;
                self.pull(now, output);
            }
            CheckpointNews::Kept => {
                taking.stage = Stage::Complete;
                let message = taking.message.clone();
                let _ = self.replica.step(message);
            }
            CheckpointNews::Finished => self.finish_taking(output),
            CheckpointNews::Failed(reason) => {
                let line = format!("group {}: cannot keep the leader's checkpoint for now: {reason}", self.id.0);
                if let Stage::Installing { .. } = taking.stage {
                    // The replica counts on it; at the next start it does not.
                    output.fatal(line);
                } else {
                    output.log(Level::Warning, line);
                    self.transfer.taking = None;
                    self.transfer.failed = Some(now.instant);
                }
            }
        }
        true
    }

    pub(super) fn stop_taking(&mut self, output: &mut impl Output) {
        if let Some(Taking { id, keyspace, .. }) = self.transfer.taking.take() {
            output.free_later(keyspace);
            output.checkpoint(self.id, id, CheckpointStep::Abandon);
        }
    }

    /// After the replica has been told: whether it took the checkpoint over or not.
    pub(super) fn settle_taking(&mut self, output: &mut impl Output) {
        if self.has_come() {
            // It has what the checkpoint holds by other ways, or knows a later leader.
            self.stop_taking(output);
        }
    }

    /// The replica has taken the checkpoint over: file, log and hard state become durable together.
    pub(super) fn take_over(
        &mut self,
        restored: &Restored,
        ticket: u64,
        hard_state: HardState,
        output: &mut impl Output,
    ) {
        let taking = self.transfer.taking.as_mut().expect("a checkpoint is restored when it has come");
        assert_eq!((taking.mark.index, &taking.stage), (restored.index, &Stage::Complete));
        taking.stage = Stage::Installing { ticket };
        let step = CheckpointStep::Install(hard_state);
        output.checkpoint(self.id, taking.id, step);
    }

    /// True if a checkpoint has come whole, and the replica has been told of it and not been asked yet.
    pub(super) fn has_come(&self) -> bool {
        self.transfer.taking.as_ref().is_some_and(|taking| taking.stage == Stage::Complete)
    }

    /// True while a checkpoint becomes durable: the replica's wishes wait.
    pub(super) fn is_installing(&self) -> bool {
        self.transfer.taking.as_ref().is_some_and(|taking| matches!(taking.stage, Stage::Installing { .. }))
    }

    fn finish_taking(&mut self, output: &mut impl Output) {
        let taking = self.transfer.taking.take().expect("just seen");
        let Stage::Installing { ticket } = taking.stage else {
            unreachable!("a file is finished when it is installed")
        };
        let Taking { from, mark, keyspace, state, .. } = taking;
        // What was proposed here in another term may be in the checkpoint or not.
        for batch in std::mem::take(&mut self.window.inflight) {
            self.window.inflight_bytes -= batch.byte_count;
            self.fail_unknown(batch, output);
        }
        let position = state::Position { index: mark.index, term: mark.term };
        output.free_later(self.state.replace(keyspace, &state, position));
        self.state.upkeep().set_tuning(output.view().tuning());
        self.state.upkeep().listen(output.view().noted());
        // Nobody knows which keys have changed.
        output.flush_caches();
        self.prepared_since.clear();
        self.note_loaded();
        *output.applied_position(self.id) = AppliedPosition { index: mark.index, unix: self.moment().unix };
        output.hear_moment(self.moment().unix);
        self.members.applied = mark.membership;
        self.members.are_by_log = false;
        self.members.acknowledged_before = self.members.acknowledged_before.max(mark.index);
        self.loss.commit = 0;
        (self.log.first_index, self.log.recovered_index) = (mark.index, mark.index);
        self.log.bytes = 0;
        self.log.altered_saved = self.state.keyspace().altered_count();
        self.log.marked_index = mark.index;
        self.replica.persisted(ticket);
        let line = format!("group {}: has the checkpoint at index {}", self.id.0, mark.index);
        output.log(Level::Notice, line);
        let text = format!(
            "node {} was given the checkpoint at index {} by node {from}: the log did not reach back to what it had",
            self.node.0, mark.index
        );
        output.note(Kind::Checkpoint, Some(self.id), text);
    }

    /// True while the leader's checkpoint is coming.
    pub fn is_taking(&self) -> bool {
        self.transfer.taking.is_some()
    }

    /// True if a member waits for a checkpoint that has not been made yet.
    pub(crate) fn awaits_checkpoint(&self) -> bool {
        self.transfer.is_awaited
    }

    /// True while members are being given a checkpoint.
    pub(crate) fn is_giving(&self) -> bool {
        !self.leader.giving.is_empty()
    }

    /// True for a message that only [`Group::offered`] may take.
    pub(crate) fn is_offer(message: &Message) -> bool {
        message.kind() == MessageKind::Checkpoint
    }
}
