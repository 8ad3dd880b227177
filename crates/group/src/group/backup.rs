//! The part that a group has in a backup. See [`crate::backup`].

use message::TransactionId;
use resp::Protocol;

use crate::backup::{Cut, Stage};
use crate::group::Group;
use crate::ids::{Level, Now};
use crate::limits;
use crate::locks::FencingToken;
use crate::output::{NodeView, Output};
use crate::requests::{Lock, Origin};

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
    pub fn cut(
        &mut self,
        (transaction, token): (TransactionId, FencingToken),
        name: u128,
        now: Now,
        output: &mut impl Output,
    ) {
        let is_cut = self.backups.cut.as_ref().is_some_and(|cut| cut.transaction == transaction);
        let may_cut = self.holds_locks_by(transaction, token) && !self.checkpointing.is_running() && !self.is_giving();
        if !is_cut && may_cut {
            let (checkpoint, mark) = self.begin_checkpoint(now, output);
            let (stage, heard, readers) = (Stage::Writing, now.instant, Vec::new());
            self.backups.cut = Some(Cut { name, transaction, checkpoint, mark, stage, heard, readers });
        }
        self.backups.wished_until = None;
    }

    /// This replica still led when its part had begun, or leads again: in the latter case it has no part any more.
    pub(crate) fn tell_cut(&mut self, transaction: TransactionId, origin: &Origin, output: &mut impl Output) {
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
        output: &mut impl Output,
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
                let (mark, to) = (cut.mark.clone(), output.view().node());
                output.read_checkpoint(self.id(), mark, chunk, to);
            }
        }
    }

    /// The host has read a chunk of what this node itself asked for.
    pub(crate) fn cut_chunk_read(
        &mut self,
        index: u64,
        chunk: u64,
        read: &Result<Option<Vec<u8>>, String>,
        output: &mut impl Output,
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
    pub(crate) fn end_cut(&mut self, name: u128, origin: &Origin, protocol: Protocol, output: &mut impl Output) {
        if self.backups.cut.as_ref().is_some_and(|cut| cut.name == name) {
            self.backups.give_up(output);
        }
        output.reply_observed(origin, protocol, self.observed(), |writer| writer.ok());
    }

    /// A backup that nobody reads is dropped after a while.
    pub(crate) fn look_after_cut(&mut self, now: Now, output: &mut impl Output) {
        // Without a checkpoint a member may have no vote, and no end of its log.
        let patience = if self.awaits_checkpoint() { limits::CUT_PATIENCE_OF_MEMBERS } else { limits::CUT_PATIENCE };
        if self.backups.cut.as_ref().is_some_and(|cut| now.instant.since(cut.heard) >= patience) {
            self.backups.give_up(output);
            let line = format!("group {}: a backup that nobody reads any more is ended", self.id().0);
            output.log(Level::Warning, line);
        }
    }
}
