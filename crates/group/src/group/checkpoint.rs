//! Checkpoints of a group. See [`crate::checkpoint`].

use journal::CheckpointMark;

use crate::checkpoint::{CHUNK_STATE, Outcome, Run, new_chunk};
use crate::group::Group;
use crate::host::{CheckpointNews, CheckpointStep};
use crate::ids::{Level, Now};
use crate::limits;
use crate::output::Output;

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
    pub fn checkpoint_turn(&mut self, now: Now, output: &mut impl Output) -> bool {
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
            self.begin_checkpoint(now, output);
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
            output.checkpoint(group, run.id, CheckpointStep::Chunk(chunk));
        }
        if run.is_walked {
            output.checkpoint(group, run.id, CheckpointStep::Finish);
            return false;
        }
        true
    }

    /// The mark of a checkpoint of all that has been applied.
    pub(crate) fn mark_now(&self) -> CheckpointMark {
        CheckpointMark {
            index: self.applied(),
            term: self.applied_term(),
            membership: self.membership_applied().clone(),
        }
    }

    /// Begins a checkpoint of all that has been applied; its number and its mark.
    pub fn begin_checkpoint(&mut self, now: Now, output: &mut impl Output) -> (u64, CheckpointMark) {
        self.checkpointing.is_wanted = false;
        let id = self.checkpointing.next_id();
        let group = self.id();
        self.state.upkeep().begin_checkpoint();
        self.begin_holding(now);
        let mark = self.mark_now();
        output.checkpoint(group, id, CheckpointStep::Begin(mark.clone()));
        let mut state = vec![CHUNK_STATE];
        state.extend_from_slice(&self.checkpoint_state());
        let outstanding_bytes = state.len();
        output.checkpoint(group, id, CheckpointStep::Chunk(state));
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
    pub(crate) fn stop_checkpoint(&mut self, output: &mut impl Output) {
        self.checkpointing.is_wanted = false;
        let Some(run) = self.checkpointing.run.take() else { return };
        if !run.is_walked {
            self.state.upkeep().cancel_checkpoint();
        }
        output.checkpoint(self.id(), run.id, CheckpointStep::Abandon);
    }

    /// The host has news of a checkpoint.
    pub fn checkpoint_news(&mut self, id: u64, news: CheckpointNews, now: Now, output: &mut impl Output) {
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
                output.log(Level::Warning, line);
            }
        }
        self.checkpointing.last = Some(Outcome { ended: now.unix, took_seconds: took.as_secs(), failure });
    }
}
