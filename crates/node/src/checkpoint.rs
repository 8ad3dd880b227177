//! Writing a group's checkpoint in slices between other work.
//!
//! The cut is between two entries. From then on the keyspace writes out the old value of a key before it changes it, so
//! that the slices together hold exactly the state at the cut. The host paces the work: no more than a bounded number
//! of bytes is ever handed out and not yet written.

use journal::CheckpointMark;
use stdx::{Instant, UnixMillis};

use crate::event::{Action, CheckpointNews, CheckpointStep};
use crate::group::Group;
use crate::ids::{Level, Now};
use crate::limits;

/// First byte of a chunk that holds the group's own state.
pub const CHUNK_STATE: u8 = 0;
/// First byte of a chunk that holds records of the keyspace.
pub const CHUNK_KEYSPACE: u8 = 1;

/// What a group knows of its checkpoints.
#[derive(Debug, Default)]
pub struct Checkpointing {
    run: Option<Run>,
    last_id: u64,
    /// Somebody asked for one as soon as the present one is finished.
    is_wanted: bool,
    /// There is log enough for one, and other nodes write theirs first.
    pub(crate) is_waiting: bool,
    /// When the last one failed, unless one has been finished since.
    failed: Option<Instant>,
    /// How the last one ended.
    pub last: Option<Outcome>,
    /// Checkpoints finished since the start.
    pub finished_count: u64,
}

/// How a checkpoint ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Wall clock at the end.
    pub ended: UnixMillis,
    /// Seconds it took.
    pub took_seconds: u64,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

#[derive(Debug)]
struct Run {
    id: u64,
    mark: CheckpointMark,
    began: Now,
    chunk: Vec<u8>,
    outstanding_bytes: usize,
    is_walked: bool,
    altered_before: u64,
    log_bytes_before: u64,
}

impl Checkpointing {
    /// True while one is being written.
    pub fn is_running(&self) -> bool {
        self.run.is_some()
    }

    /// True while one is being written of which something has yet to be read.
    pub fn is_walking(&self) -> bool {
        self.run.as_ref().is_some_and(|run| !run.is_walked)
    }

    /// The number of the next one.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// True if one has failed so recently that the next would hardly fare better.
    pub fn is_resting(&self, now: Now) -> bool {
        self.failed.is_some_and(|failed| now.instant.since(failed) < limits::CHECKPOINT_REST)
    }

    /// When the running one began.
    pub fn began(&self) -> Option<UnixMillis> {
        self.run.as_ref().map(|run| run.began.unix)
    }
}

impl Group {
    /// Asks for a checkpoint: it begins at the next turn, or when the running one has ended.
    pub fn want_checkpoint(&mut self) {
        self.checkpointing.is_wanted = true;
    }

    /// True if a checkpoint is running, or has been asked for and there is something to put into it.
    pub fn is_checkpoint_due(&self) -> bool {
        self.checkpointing.is_running() || self.checkpointing.is_wanted && !self.is_vacant()
    }

    /// A slice of checkpoint work. True if there is more to do at once.
    pub fn checkpoint_turn(&mut self, now: Now, actions: &mut Vec<Action>) -> bool {
        if self.checkpointing.run.is_none() {
            // A file being given to a member stays until that has it, and one being taken makes its own superfluous. A
            // backup that is read stays, too. And what another group began with must not be lost.
            let must_wait = self.holds_beginnings()
                || self.is_giving()
                || self.is_taking()
                || self.backups.put_off_checkpoints(self.awaits_checkpoint() || self.rests_on_parent(), now);
            if !self.checkpointing.is_wanted || self.applied() == 0 || must_wait || self.is_vacant() {
                return false;
            }
            self.begin_checkpoint(now, actions);
        }
        let group = self.id();
        let Some(run) = &mut self.checkpointing.run else { return false };
        if run.is_walked || run.outstanding_bytes >= limits::CHECKPOINT_OUTSTANDING_BYTES_MAX {
            return false;
        }
        run.is_walked = self.state.upkeep().checkpoint_step(limits::CHECKPOINT_BYTES_PER_TURN, &mut run.chunk);
        if run.chunk.len() >= limits::CHECKPOINT_CHUNK_BYTES || (run.is_walked && run.chunk.len() > 1) {
            run.outstanding_bytes += run.chunk.len();
            let chunk = std::mem::replace(&mut run.chunk, new_chunk());
            actions.push(Action::Checkpoint { group, id: run.id, step: CheckpointStep::Chunk(chunk) });
        }
        if run.is_walked {
            actions.push(Action::Checkpoint { group, id: run.id, step: CheckpointStep::Finish });
            return false;
        }
        true
    }

    /// Begins a checkpoint of all that has been applied; its number and its mark.
    pub(crate) fn begin_checkpoint(&mut self, now: Now, actions: &mut Vec<Action>) -> (u64, CheckpointMark) {
        self.checkpointing.is_wanted = false;
        let id = self.checkpointing.next_id();
        let group = self.id();
        self.state.upkeep().begin_checkpoint();
        self.begin_holding(now);
        let mark = CheckpointMark {
            index: self.applied(),
            term: self.applied_term(),
            membership: self.membership_applied().clone(),
        };
        actions.push(Action::Checkpoint { group, id, step: CheckpointStep::Begin(mark.clone()) });
        let mut state = vec![CHUNK_STATE];
        state.extend_from_slice(&self.checkpoint_state());
        let outstanding_bytes = state.len();
        actions.push(Action::Checkpoint { group, id, step: CheckpointStep::Chunk(state) });
        self.checkpointing.run = Some(Run {
            id,
            mark: mark.clone(),
            began: now,
            chunk: new_chunk(),
            outstanding_bytes,
            is_walked: false,
            altered_before: self.state.keyspace().altered_count(),
            log_bytes_before: self.log.bytes,
        });
        (id, mark)
    }

    /// Throws away a checkpoint being written, and does not begin another.
    pub(crate) fn stop_checkpoint(&mut self, actions: &mut Vec<Action>) {
        self.checkpointing.is_wanted = false;
        let Some(run) = self.checkpointing.run.take() else { return };
        if !run.is_walked {
            self.state.upkeep().cancel_checkpoint();
        }
        actions.push(Action::Checkpoint { group: self.id(), id: run.id, step: CheckpointStep::Abandon });
    }

    /// The host has news of a checkpoint.
    pub fn checkpoint_news(&mut self, id: u64, news: CheckpointNews, now: Now, actions: &mut Vec<Action>) {
        let Some(run) = self.checkpointing.run.as_mut().filter(|run| run.id == id) else { return };
        let took = now.instant.since(run.began.instant);
        let failure = match news {
            CheckpointNews::Written(bytes) => {
                run.outstanding_bytes = run.outstanding_bytes.saturating_sub(bytes);
                return;
            }
            CheckpointNews::Kept => return,
            CheckpointNews::Finished => None,
            CheckpointNews::Failed(reason) => Some(reason),
        };
        let run = self.checkpointing.run.take().expect("just seen");
        self.backups.settle(id, failure.as_deref());
        match &failure {
            None => {
                self.log.altered_saved = run.altered_before;
                self.log.bytes -= run.log_bytes_before;
                self.checkpointing.finished_count += 1;
                self.checkpointing.failed = None;
                self.marked(run.mark.clone(), now);
            }
            Some(reason) => {
                self.checkpointing.failed = Some(now.instant);
                if !run.is_walked {
                    self.state.upkeep().cancel_checkpoint();
                }
                let line = format!(
                    "group {}: the checkpoint at index {} failed, the log is kept: {reason}",
                    self.id().0,
                    run.mark.index
                );
                actions.push(Action::Log { level: Level::Warning, line });
            }
        }
        self.checkpointing.last = Some(Outcome { ended: now.unix, took_seconds: took.as_secs(), failure });
    }
}

fn new_chunk() -> Vec<u8> {
    let mut chunk = Vec::with_capacity(limits::CHECKPOINT_CHUNK_BYTES + limits::CHECKPOINT_BYTES_PER_TURN);
    chunk.push(CHUNK_KEYSPACE);
    chunk
}

#[cfg(test)]
mod tests {
    use consensus::Change;
    use keyspace::{Keyspace, Layout, Options, Tuning};
    use stdx::Prng;
    use stdx::log::{Entry, EntryKind, Membership};

    use super::*;
    use crate::event::GroupSeed;
    use crate::ids::{GroupId, NodeId};
    use crate::settings::AppendFsync;

    #[test]
    fn a_checkpoint_says_who_took_part_at_its_index_no_matter_who_does_by_now() {
        let options = Options { databases: 1, hash_seed: 7, layout: Layout::Slots, tuning: Tuning::default() };
        let mut seed = GroupSeed::new(GroupId(0), NodeId(1), Keyspace::new(options));
        seed.membership.voters = vec![1, 2];
        (seed.checkpoint_index, seed.checkpoint_term) = (5, 1);
        let changes = [(6, Change::AddLearner(3)), (7, Change::AddVoter(3)), (8, Change::Remove(1))];
        let entry = |(index, change): (u64, Change)| {
            let (term, kind) = (1, EntryKind::Membership);
            Entry { term, index, kind, data: change.encode() }
        };
        seed.entries = changes.map(entry).to_vec();
        (seed.hard_state.term, seed.hard_state.commit) = (1, 8);
        let now = Now { instant: Instant::from_nanos(1), unix: UnixMillis(1) };
        let mut group = Group::new(seed, 1, NodeId(1), AppendFsync::Always, &mut Prng::new(1), now).expect("sound");
        assert_eq!(group.membership().voters, [2, 3], "all that is committed counts");
        let (_, mark) = group.begin_checkpoint(now, &mut Vec::new());
        let membership = Membership { voters: vec![1, 2], ..Membership::default() };
        assert_eq!((mark.index, mark.membership), (5, membership));
    }
}
