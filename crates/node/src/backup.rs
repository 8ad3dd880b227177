//! A backup's cut: the checkpoints that all groups begin at one moment, and that a client reads.
//!
//! ```text
//!   gateway                                     every group
//!     │ lock all keys                             │ no checkpoint is under way, and none begins
//!     ├──────────────────────────────────────────▶│ holds requests back
//!     │◀─────────────────────────────── granted ──┤
//!     │ cut (when all have granted)               │
//!     ├──────────────────────────────────────────▶│ begins its checkpoint between two entries
//!     │◀──────────────────────────────────── cut ─┤
//!     │ release (when all have)                   │
//!     ├──────────────────────────────────────────▶│ lets requests in; the checkpoint is written meanwhile
//! ```
//!
//! While the locks are held no transaction over groups is half-way anywhere, so the checkpoints together are the data
//! at one moment. They are checkpoints like any other: a start may count on them. What is special is that each is
//! kept, and the next one put off, until it has been read, or nobody has asked for it for a while.

use journal::CheckpointMark;
use resp::Protocol;
use stdx::{Instant, UnixMillis};

use crate::checkpoint::CHUNK_STATE;
use crate::event::Action;
use crate::group::Group;
use crate::ids::{Level, Now};
use crate::limits;
use crate::locks::FencingToken;
use crate::output::Output;
use crate::requests::{Lock, Origin};
use crate::transaction::TransactionId;

/// What a group knows of backups.
#[derive(Debug, Default)]
pub(crate) struct Backups {
    cut: Option<Cut>,
    /// Somebody waits for the checkpoint under way to end: no other begins before this.
    wished_until: Option<Instant>,
}

/// A group's part of a backup.
#[derive(Debug)]
struct Cut {
    /// The backup's name.
    name: u128,
    transaction: TransactionId,
    /// Number of the checkpoint.
    checkpoint: u64,
    mark: CheckpointMark,
    stage: Stage,
    heard: Instant,
    /// Who waits for which chunk.
    readers: Vec<(u64, Origin, Protocol)>,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Writing,
    Durable,
    Failed(String),
}

impl Backups {
    /// True if no checkpoint may begin. A checkpoint that a member waits for is not put off for a client that only
    /// wishes to make a backup, and could be put off without end: without the checkpoint that member may not know which
    /// nodes there are.
    pub(crate) fn put_off_checkpoints(&self, is_awaited: bool, now: Now) -> bool {
        self.cut.as_ref().is_some_and(|cut| cut.stage == Stage::Durable)
            || (!is_awaited && self.wished_until.is_some_and(|until| now.instant < until))
    }

    /// A checkpoint has ended.
    pub(crate) fn settle(&mut self, checkpoint: u64, failure: Option<&str>) {
        if let Some(cut) = self.cut.as_mut().filter(|cut| cut.checkpoint == checkpoint) {
            cut.stage = failure.map_or(Stage::Durable, |reason| Stage::Failed(reason.to_owned()));
        }
    }

    /// True if the group's part of a backup is kept for a reader.
    pub(crate) fn is_kept(&self) -> bool {
        self.cut.is_some()
    }

    /// Another replica leads: what was begun here is of no use.
    pub(crate) fn give_up(&mut self, output: &mut Output<'_>) {
        self.wished_until = None;
        for (_, origin, _) in self.cut.take().into_iter().flat_map(|cut| cut.readers) {
            output.send_back(&origin);
        }
    }
}

impl Group {
    /// Why a cut cannot be made now, as an error reply; none if the lock is not for one. Asked before the lock is
    /// granted; from then on no checkpoint begins for a while.
    pub(crate) fn cut_obstacle(&mut self, lock: &Lock, now: Now) -> Option<String> {
        let name = lock.cut?;
        if self.backups.cut.as_ref().is_some_and(|cut| cut.name == name) {
            self.backups.cut = None; // it is started over
        }
        self.backups.wished_until = Some(now.instant + limits::CUT_WISH);
        let group = self.id().0;
        if self.backups.cut.is_some() {
            Some(format!("TRYAGAIN Group {group} is being read for another backup"))
        } else if self.checkpointing.is_running() {
            let percent = self.checkpoint_percent();
            Some(format!("TRYAGAIN Group {group} is writing a checkpoint ({percent} %)"))
        } else if self.holds_beginnings() {
            Some(format!("TRYAGAIN A group that has split off from group {group} is being written to disk"))
        } else if self.is_giving() || self.awaits_checkpoint() {
            Some(format!("TRYAGAIN Group {group} is being copied to another node"))
        } else {
            None
        }
    }

    fn checkpoint_percent(&self) -> usize {
        let progress = self.state.keyspace().checkpoint_progress();
        progress.map_or(99, |(walked, total)| (walked * 100).checked_div(total).unwrap_or(0).min(99))
    }

    /// All groups are locked for a backup: this one begins its part of it. See [`Group::tell_cut`] for the answer.
    pub(crate) fn cut(
        &mut self,
        (transaction, token): (TransactionId, FencingToken),
        name: u128,
        now: Now,
        output: &mut Output<'_>,
    ) {
        let is_cut = self.backups.cut.as_ref().is_some_and(|cut| cut.transaction == transaction);
        let may_cut = self.holds_locks_by(transaction, token) && !self.checkpointing.is_running() && !self.is_giving();
        if !is_cut && may_cut {
            let (checkpoint, mark) = self.begin_checkpoint(now, output.actions);
            let (stage, heard, readers) = (Stage::Writing, now.instant, Vec::new());
            self.backups.cut = Some(Cut { name, transaction, checkpoint, mark, stage, heard, readers });
        }
        self.backups.wished_until = None;
    }

    /// This replica still led when its part had begun, or leads again: in the latter case it has no part any more.
    pub(crate) fn tell_cut(&mut self, transaction: TransactionId, origin: &Origin, output: &mut Output<'_>) {
        let cut = self.backups.cut.as_ref().filter(|cut| cut.transaction == transaction);
        let mut answer = vec![u8::from(cut.is_some())];
        if let Some(cut) = cut {
            answer.extend_from_slice(&cut.mark.index.to_le_bytes());
        }
        output.answer(origin, self.observed(), answer);
    }

    /// Somebody wants a chunk of a backup. The reply is the chunk, null behind the last, or how much of it has been
    /// written, in percent.
    pub(crate) fn read_cut(
        &mut self,
        name: u128,
        chunk: u64,
        (origin, protocol): (Origin, Protocol),
        now: Now,
        output: &mut Output<'_>,
    ) {
        let group = self.id().0;
        let (percent, observed) = (self.checkpoint_percent(), self.observed());
        let Some(cut) = self.backups.cut.as_mut().filter(|cut| cut.name == name) else {
            let text = format!("ERR Group {group} does not keep this backup: its leader has changed, or it was ended");
            return output.refuse(&origin, protocol, &text);
        };
        cut.heard = now.instant;
        match &cut.stage {
            Stage::Writing => {
                output.reply_observed(&origin, protocol, observed, |writer| writer.integer(percent as i64));
            }
            Stage::Failed(reason) => {
                let text = format!("ERR Group {group} could not write its part of the backup: {reason}");
                output.refuse(&origin, protocol, &text);
            }
            Stage::Durable => {
                cut.readers.push((chunk, origin, protocol));
                let (mark, to) = (cut.mark.clone(), output.context.node);
                output.actions.push(Action::ReadCheckpoint { group: self.id(), mark, chunk, to });
            }
        }
    }

    /// The host has read a chunk of what this node itself asked for.
    pub(crate) fn cut_chunk_read(
        &mut self,
        index: u64,
        chunk: u64,
        read: &Result<Option<Vec<u8>>, String>,
        output: &mut Output<'_>,
    ) {
        let observed = self.observed();
        let Some(cut) = self.backups.cut.as_mut().filter(|cut| cut.mark.index == index) else { return };
        for (_, origin, protocol) in cut.readers.extract_if(.., |(wanted, ..)| *wanted == chunk) {
            match read {
                Ok(Some(bytes)) => output.reply_observed(&origin, protocol, observed, |writer| writer.bulk(bytes)),
                Ok(None) => output.reply_observed(&origin, protocol, observed, |writer| writer.null()),
                Err(reason) => output.refuse(&origin, protocol, &format!("ERR The backup cannot be read: {reason}")),
            }
        }
    }

    /// Nobody wants more of this backup.
    pub(crate) fn end_cut(&mut self, name: u128, origin: &Origin, protocol: Protocol, output: &mut Output<'_>) {
        if self.backups.cut.as_ref().is_some_and(|cut| cut.name == name) {
            self.backups.give_up(output);
        }
        output.reply_observed(origin, protocol, self.observed(), |writer| writer.ok());
    }

    /// A backup that nobody reads is dropped after a while.
    pub(crate) fn look_after_cut(&mut self, now: Now, output: &mut Output<'_>) {
        // Without a checkpoint a member may have no vote, and no end of its log.
        let patience = if self.awaits_checkpoint() { limits::CUT_PATIENCE_OF_MEMBERS } else { limits::CUT_PATIENCE };
        if self.backups.cut.as_ref().is_some_and(|cut| now.instant.since(cut.heard) >= patience) {
            self.backups.give_up(output);
            let line = format!("group {}: a backup that nobody reads any more is ended", self.id().0);
            output.actions.push(Action::Log { level: Level::Warning, line });
        }
    }
}

/// The chunk of a checkpoint that holds what a group has beside its keys, for a group with a log that begins at this
/// moment. Of `state`, what a group of another cluster has saved, it keeps the libraries of functions and the users.
pub fn state_chunk(moment: UnixMillis, state: Option<&[u8]>) -> Vec<u8> {
    let libraries = state.map(state::libraries_of).unwrap_or_default();
    let users = state.map(state::users_of).unwrap_or_default();
    let mut chunk = vec![CHUNK_STATE];
    chunk.extend_from_slice(&state::save_of_new_group(moment, libraries, users));
    chunk
}

/// The code of the libraries of functions that are in a group's own state, as [`crate::GroupSeed::state`] holds it.
pub fn libraries_of(state: &[u8]) -> Vec<Vec<u8>> {
    if state.is_empty() {
        return Vec::new();
    }
    state::libraries_of(state).iter().map(|loaded| loaded.library.text.to_vec()).collect()
}

/// The time that a group's own state tells; none if it is too short.
pub use state::moment_of as moment_of_state;
