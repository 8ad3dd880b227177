//! What a core notes on the timeline of the cluster, and how others hear of it.

use crate::core::Core;
use crate::event::{Action, GroupId, Lane, Level, NodeId};
use crate::limits;
use crate::timeline::{Happening, Kind};
use crate::wire;

impl Core {
    /// Notes it, on the first core, and tells all nodes.
    pub(crate) fn note(&mut self, kind: Kind, group: Option<GroupId>, text: String, actions: &mut Vec<Action>) {
        let context = &mut self.context;
        *context.happened.entry(kind.name()).or_default() += 1;
        let happening = context.timeline.note(context.node, self.now.unix, kind, group, text);
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
        let all: Vec<&Happening> = self.context.timeline.iter().collect();
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
        let mut news = Vec::new();
        let links = self.context.report.links.iter().filter(|link| link.lane == Lane::Log);
        let seen = links.map(|link| (link.node, link.is_up)).collect();
        let before = std::mem::replace(&mut self.links_seen, seen);
        for (node, is_up) in &self.links_seen {
            match (before.get(node), is_up) {
                (Some(true), false) => {
                    let links = &self.context.report.links;
                    let link = links.iter().find(|link| link.node == *node && link.lane == Lane::Log);
                    let cause = link.map_or("", |link| link.last_cause.as_str());
                    news.push(format!("the link to node {} was cut: {cause}", node.0));
                }
                (Some(false), true) => news.push(format!("the link to node {} is back", node.0)),
                _ => {}
            }
        }
        for text in news {
            self.note(Kind::Link, None, text, actions);
        }
        let sync_us = self.context.report.journal.sync_last_us;
        if u128::from(sync_us) >= limits::SLOW_SYNC.as_micros() && self.is_news(Kind::Slow) {
            let text = format!("the disk is slow: a sync of the log has taken {} ms", sync_us / 1_000);
            self.note_and_log(Kind::Slow, text, actions);
        }
    }

    /// Requests were refused because nobody could answer for a group.
    pub(crate) fn note_refusal(&mut self, group: GroupId, actions: &mut Vec<Action>) {
        if self.is_news(Kind::Refusal) {
            let text = "refuses requests: no quorum of the group has answered in time".to_owned();
            let mut outlet = Self::outlet(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
            outlet.happened(Kind::Refusal, Some(group), text);
        }
    }

    /// True if this trouble has not been noted on this core for a while.
    fn is_news(&mut self, kind: Kind) -> bool {
        let now = self.now.instant;
        let is_old = self.troubles.get(&kind).is_none_or(|noted| now.since(*noted) >= limits::TROUBLE_INTERVAL);
        if is_old {
            self.troubles.insert(kind, now);
        }
        is_old
    }
}
