//! Notes on the timeline what this core sees of links, disks and itself. See [`crate::happenings`].

use group::ids::{GroupId, Lane, Level, NodeId};
use group::timeline::{Happening, Kind};
use std::collections::BTreeMap;

use crate::core::Core;
use crate::event::Action;
use crate::happenings::LinkSeen;
use crate::limits;
use crate::wire;

impl Core {
    /// Notes it, on the first core, and tells all nodes.
    pub(crate) fn note(&mut self, kind: Kind, group: Option<GroupId>, text: String, actions: &mut Vec<Action>) {
        let context = &mut self.context;
        *context.history.counts.entry(kind.name()).or_default() += 1;
        let happening = context.history.timeline.note(context.node, self.now.unix, kind, group, text);
        let bytes = wire::encode_timeline([&happening]);
        for (node, _) in context.roster.present().filter(|(node, _)| *node != context.node) {
            actions.push(Action::Send { to: node, group: GroupId(0), lane: Lane::Log, bytes: bytes.clone() });
        }
    }

    /// As [`note`](Self::note), with a line in the operator's log.
    fn note_and_log(&mut self, kind: Kind, text: String, actions: &mut Vec<Action>) {
        actions.push(Action::Log { level: Level::Warning, line: text.clone() });
        self.note(kind, None, text, actions);
    }

    /// A node that has been away may have missed much.
    pub(crate) fn tell_timeline(&self, to: NodeId, actions: &mut Vec<Action>) {
        if self.context.core.0 != 0 {
            return;
        }
        let all: Vec<&Happening> = self.context.history.timeline.iter().collect();
        for some in all.chunks(limits::TIMELINE_COUNT_PER_MESSAGE) {
            let bytes = wire::encode_timeline(some.iter().copied());
            actions.push(Action::Send { to, group: GroupId(0), lane: Lane::Log, bytes });
        }
    }

    /// Looks at the host's report: links that were cut or are back, a disk that is slow.
    pub(crate) fn note_report(&mut self, actions: &mut Vec<Action>) {
        if self.context.core.0 != 0 {
            return;
        }
        let now = self.now.instant;
        let mut news = Vec::new();
        let links = self.context.host.report.links.iter().filter(|link| link.lane == Lane::Log);
        let mut seen = BTreeMap::new();
        for link in links {
            let mut state = self.told.links.remove(&link.node).unwrap_or_else(|| LinkSeen::new(link.is_up, now));
            news.extend(state.look(link, now));
            seen.insert(link.node, state);
        }
        self.told.links = seen;
        for text in news {
            self.note(Kind::Link, None, text, actions);
        }
        let is_faulty = self.context.host.report.archive.as_ref().is_some_and(|archive| !archive.fault.is_empty());
        if is_faulty != self.told.was_archive_faulty && (!is_faulty || self.is_news(Kind::Archive)) {
            self.told.was_archive_faulty = is_faulty;
            let fault = self.context.host.report.archive.as_ref().map_or("", |archive| &archive.fault);
            let text = match fault {
                "" => "the archive is written again".to_owned(),
                fault => format!("the archive cannot be written: {fault}"),
            };
            self.note(Kind::Archive, None, text, actions);
        }
        self.note_backups(actions);
        let sync_us = self.context.host.report.journal.sync_last_us;
        if u128::from(sync_us) >= limits::SLOW_SYNC.as_micros() && self.is_news(Kind::Slow) {
            let text = format!("the disk is slow: a sync of the log has taken {} ms", sync_us / 1_000);
            self.note_and_log(Kind::Slow, text, actions);
        }
    }

    /// Scheduled backups were made, or came to nothing, since the last report.
    fn note_backups(&mut self, actions: &mut Vec<Action>) {
        let Some(backups) = self.context.host.report.backups.clone() else { return };
        let seen = std::mem::replace(&mut self.told.backups, (backups.made_count, backups.failed_count));
        if backups.made_count > seen.0 {
            self.note(Kind::Backup, None, format!("a scheduled backup was made: {}", backups.last), actions);
        }
        if backups.failed_count > seen.1 && !backups.fault.is_empty() {
            self.note(Kind::Backup, None, format!("a scheduled backup came to nothing: {}", backups.fault), actions);
        }
    }

    /// Requests were refused because nobody could answer for a group.
    pub(crate) fn note_refusal(&mut self, group: GroupId, actions: &mut Vec<Action>) {
        if self.is_news(Kind::Refusal) {
            let text = "refuses requests: no quorum of the group has answered in time".to_owned();
            let mut output = Self::output(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
            output.happened(Kind::Refusal, Some(group), text);
        }
    }

    /// True if this trouble has not been noted on this core for a while.
    fn is_news(&mut self, kind: Kind) -> bool {
        let now = self.now.instant;
        let is_old = self.told.troubles.get(&kind).is_none_or(|noted| now.since(*noted) >= limits::TROUBLE_INTERVAL);
        if is_old {
            self.told.troubles.insert(kind, now);
        }
        is_old
    }
}
