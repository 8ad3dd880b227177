//! What a core notes on the timeline of the cluster, and how others hear of it.

use stdx::Instant;

use crate::limits;
use crate::reports::LinkReport;

/// A link to another node, and what has been said of it. One that comes and goes all the time is told of now and then.
#[derive(Debug)]
pub(crate) struct LinkSeen {
    is_up: bool,
    told_up: bool,
    /// Since when lines are counted.
    since: Instant,
    line_count: usize,
    /// Changes since the last line, that one left out.
    unsaid_count: usize,
}

impl LinkSeen {
    pub(crate) fn new(is_up: bool, now: Instant) -> Self {
        Self { is_up, told_up: is_up, since: now, line_count: 0, unsaid_count: 0 }
    }

    /// Takes the latest report. Answers a line if there is something to be told.
    pub(crate) fn look(&mut self, link: &LinkReport, now: Instant) -> Option<String> {
        if link.is_up != self.is_up {
            self.is_up = link.is_up;
            self.unsaid_count += 1;
        }
        if now.since(self.since) >= limits::LINK_LINES_INTERVAL {
            (self.since, self.line_count) = (now, 0);
        }
        if self.is_up == self.told_up || self.line_count == limits::LINK_LINES_MAX {
            return None;
        }
        self.told_up = self.is_up;
        self.line_count += 1;
        let before = match std::mem::take(&mut self.unsaid_count) {
            0 | 1 => String::new(),
            count => format!(", after {} changes that were not told", count - 1),
        };
        let node = link.node.0;
        Some(if self.is_up {
            format!("the link to node {node} is back{before}")
        } else {
            format!("the link to node {node} was cut{before}: {}", link.last_cause)
        })
    }
}

#[cfg(test)]
mod tests {
    use group::ids::NodeId;
    use stdx::Duration;

    use super::*;

    #[test]
    fn a_link_that_comes_and_goes_is_told_of_now_and_then_and_in_the_end_as_it_is() {
        let report =
            |is_up| LinkReport { node: NodeId(2), is_up, last_cause: "reset".to_owned(), ..LinkReport::default() };
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let mut seen = LinkSeen::new(true, at(0));
        assert_eq!(seen.look(&report(true), at(1)), None);
        let lines: Vec<_> = (2..40).filter_map(|second| seen.look(&report(second % 2 == 1), at(second))).collect();
        assert_eq!(lines.len(), limits::LINK_LINES_MAX);
        assert_eq!(lines[..2], ["the link to node 2 was cut: reset", "the link to node 2 is back"]);
        let later = at(0) + limits::LINK_LINES_INTERVAL + Duration::from_secs(1);
        let last = seen.look(&report(false), later);
        assert_eq!(last.as_deref(), Some("the link to node 2 was cut, after 34 changes that were not told: reset"));
        assert_eq!(seen.look(&report(false), later), None);
    }
}
