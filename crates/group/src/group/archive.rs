//! What an archive needs of a group.
//!
//! The host reads what is committed back from the log, at its own pace; a replica tells it now and then how far that
//! is, and whether it leads.
//!
//! An archive can be restored to a moment that is *closed*: nothing of that moment or an earlier one comes any more, in
//! no group. A group closes what is before its last entry, so one with nothing to log would hold up all others. It logs
//! that time has passed when another group has logged something that is not before its own last entry; that again is no
//! such thing. So where nobody writes, nothing is logged.

use state::Position;
use stdx::Instant;

use super::Group;
use crate::host::ArchiveNews;
use crate::ids::{Now, Room};
use crate::limits;
use crate::output::{NodeView, Output};

/// What the host was told last.
#[derive(Debug, Default)]
pub(super) struct ArchiveTold {
    at: Instant,
    applied: Position,
    is_leading: bool,
    lacks_room: bool,
    has_others: bool,
    /// The last entry of the log then.
    last_index: u64,
}

impl Group {
    /// Tells the host how far the group is, and closes what is behind it.
    pub(super) fn tell_archive(&mut self, now: Now, output: &mut impl Output) {
        let is_wanted = output.view().closes_moments();
        if !is_wanted || now.instant.since(self.archive_told.at) < limits::ARCHIVE_INTERVAL {
            return;
        }
        let has_room = *output.view().room() == Room::Enough;
        let (lacks_room, has_others) = (self.is_serving && !has_room, !self.is_alone());
        let told = std::mem::replace(
            &mut self.archive_told,
            ArchiveTold {
                at: now.instant,
                applied: self.state.applied(),
                is_leading: self.is_serving,
                lacks_room,
                has_others,
                last_index: self.replica.last_index(),
            },
        );
        let is_idle = told.last_index == self.archive_told.last_index && self.leader.builder.is_empty();
        let is_open = self.moment().unix <= output.view().latest_moment();
        if self.is_serving && is_idle && is_open && has_room && !self.is_closed() {
            self.leader.builder.tick();
            self.leader.waiters.push(super::Waiter::Silent);
        }
        let is_archived = output.view().is_archived();
        let what = |told: &ArchiveTold| (told.applied, told.is_leading, told.lacks_room, told.has_others);
        if is_archived && what(&told) != what(&self.archive_told) {
            let (floor, terms) = if self.is_serving { self.replica.terms() } else { (0, Vec::new()) };
            let news = ArchiveNews {
                group: self.id,
                is_leading: self.is_serving,
                lacks_room,
                has_others,
                index: self.archive_told.applied.index,
                floor,
                terms,
            };
            output.archive(news);
        }
    }
}
