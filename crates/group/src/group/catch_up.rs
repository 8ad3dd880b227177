//! Feeding members that are behind.
//!
//! What has been applied leaves memory, but for the newest of it; the host keeps it on disk while a member lacks it, as
//! far as its own bound goes, and reads it back a piece at a time when the member takes it. So a member that stops for
//! a while costs disk, not memory, and is given a checkpoint only when the disk does not reach back far enough.

use journal::Span;
use stdx::Instant;
use stdx::log::Entry;

use super::Group;
use crate::ids::{Level, Now};
use crate::limits;
use crate::output::Output;

impl Group {
    /// Drops from memory what all members hold, and of the rest what is beyond a bound.
    pub(super) fn forget_log(&mut self) {
        self.replica.forget(self.replica.match_index_min(), self.log.bytes_max);
    }

    /// Keeps less of the log in memory than usual, and admits fewer writes at a time. Only the simulator has a use for
    /// it.
    #[doc(hidden)]
    pub fn narrow_memory(&mut self, log_bytes_max: usize, window_bytes_max: usize) {
        (self.log.bytes_max, self.window.bytes_max) = (log_bytes_max, window_bytes_max);
    }

    /// As much of what is applied stays in memory. Only the simulator has a use for it.
    #[doc(hidden)]
    pub fn log_bytes_max(&self) -> usize {
        self.log.bytes_max
    }

    /// Has the host read what members lack.
    pub(super) fn read_log(&mut self, output: &mut impl Output) {
        for consensus::Fetch { first, last, terms } in self.replica.take_fetches() {
            let bytes_max = limits::LOG_READ_BYTES;
            output.read_log(Span { group: self.id.0, first, last, terms, bytes_max });
        }
    }

    /// The host has read a part of the log.
    pub fn log_read(&mut self, first: u64, read: Result<Vec<Entry>, String>, output: &mut impl Output) {
        match read {
            Ok(entries) => self.replica.fetched(first, &entries),
            Err(reason) => {
                self.replica.fetch_failed(first);
                let line = format!("group {}: cannot feed a member from the log at index {first}: {reason}", self.id.0);
                output.log(Level::Notice, line);
            }
        }
    }

    /// The host is told at once.
    pub(super) fn hold_log(&mut self, index: u64, until: Instant) {
        self.log.held = Some((index, until));
        self.log.told_keep.1 = Instant::ZERO;
    }

    /// Tells the host which part of the log members lack, when that has changed.
    pub(super) fn keep_log(&mut self, now: Now, output: &mut impl Output) {
        let (told, when) = self.log.told_keep;
        if now.instant.since(when) < limits::LOG_KEEP_INTERVAL {
            return;
        }
        let index = self.lacked_from();
        if index != told {
            self.log.told_keep = (index, now.instant);
            output.keep_log(self.id, index);
        }
    }

    /// No member that is fed from the log lacks an entry up to this one. A member that lacks what is gone is waited for
    /// only if a checkpoint is on its way to it.
    fn lacked_from(&self) -> u64 {
        let floor = self.replica.floor_index();
        let matched = if self.replica.is_leader() {
            let others = self.replica.progress().into_iter().filter(|other| !other.is_restoring);
            // Those that a new leader has not heard hold what an earlier one has said, or perhaps all that is gone.
            let held = |other: consensus::Progress| match other.matched {
                0 => self.replica.everywhere_before().max(floor),
                matched => matched,
            };
            others.map(held).filter(|matched| *matched >= floor).min()
        } else if self.is_alone() {
            None
        } else {
            Some(self.replica.match_index_min())
        };
        let held = self.log.held.map(|(index, _)| index);
        matched.into_iter().chain(held).min().unwrap_or(u64::MAX)
    }
}
