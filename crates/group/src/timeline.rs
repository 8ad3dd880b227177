//! What has happened in the cluster, in the order of its clocks: who led and why that changed, who came and went, which
//! links were cut, who had to be given a checkpoint, what was refused, which host was slow.
//!
//! Every node notes what happens to it, tells all others at once, and a node that comes back is told all of it. The
//! first core of each node keeps the latest: what is told twice is the same.

use std::collections::BTreeMap;

use stdx::{UnixMillis, leb128};

use crate::ids::{GroupId, NodeId};
use crate::limits;

/// What kind of thing has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A process has started.
    Start,
    /// A node leads a group from now on.
    Leader,
    /// A leader has asked another node to lead.
    HandOver,
    /// A node has joined, is leaving, or was removed.
    Member,
    /// A link was cut, or is back.
    Link,
    /// A node was given a checkpoint.
    Checkpoint,
    /// Requests are refused.
    Refusal,
    /// A host is slow.
    Slow,
    /// The archive cannot be written, or can be again.
    Archive,
    /// A group is assigned to other nodes, or has moved there.
    Placement,
    /// A scheduled backup was made, or came to nothing.
    Backup,
}

impl Kind {
    const ALL: [Self; 11] = [
        Self::Start,
        Self::Leader,
        Self::HandOver,
        Self::Member,
        Self::Link,
        Self::Checkpoint,
        Self::Refusal,
        Self::Slow,
        Self::Archive,
        Self::Placement,
        Self::Backup,
    ];

    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Leader => "leader",
            Self::HandOver => "hand-over",
            Self::Member => "member",
            Self::Link => "link",
            Self::Checkpoint => "checkpoint",
            Self::Refusal => "refusal",
            Self::Slow => "slow",
            Self::Archive => "archive",
            Self::Placement => "placement",
            Self::Backup => "backup",
        }
    }
}

/// One thing that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happening {
    /// When, by the wall clock of the node that tells it.
    pub unix: UnixMillis,
    /// Who tells it.
    pub node: NodeId,
    /// Grows with what a node tells.
    pub number: u64,
    /// What kind of thing.
    pub kind: Kind,
    /// The group it is about, if it is about one.
    pub group: Option<GroupId>,
    /// What has happened, and why, in one line.
    pub text: String,
}

impl Happening {
    fn put(&self, out: &mut Vec<u8>) {
        for number in [self.unix.0.cast_unsigned(), self.node.0, self.number] {
            leb128::put(out, number);
        }
        out.push(self.kind as u8);
        leb128::put(out, self.group.map_or(0, |group| u64::from(group.0) + 1));
        leb128::put(out, self.text.len() as u64);
        out.extend_from_slice(self.text.as_bytes());
    }

    fn take(rest: &mut &[u8]) -> Option<Self> {
        let unix = UnixMillis(leb128::take(rest)?.cast_signed());
        let (node, number) = (NodeId(leb128::take(rest)?), leb128::take(rest)?);
        let (kind, tail) = rest.split_first()?;
        *rest = tail;
        let group = match leb128::take(rest)? {
            0 => None,
            group => Some(GroupId(u32::try_from(group - 1).ok()?)),
        };
        let length = usize::try_from(leb128::take(rest)?).ok().filter(|length| *length <= TEXT_BYTES_MAX)?;
        let (text, tail) = rest.split_at_checked(length)?;
        *rest = tail;
        let text = std::str::from_utf8(text).ok()?.to_owned();
        Some(Self { unix, node, number, kind: *Kind::ALL.get(usize::from(*kind))?, group, text })
    }
}

/// Longest text that another node is believed.
const TEXT_BYTES_MAX: usize = 512;

/// The latest of what has happened.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// By time; then by node and number, so that all nodes have the same order.
    happenings: BTreeMap<(UnixMillis, NodeId, u64), Happening>,
    last_number: u64,
}

impl Timeline {
    /// Notes what has happened here, and returns it in the form that others are told.
    pub fn note(
        &mut self,
        node: NodeId,
        unix: UnixMillis,
        kind: Kind,
        group: Option<GroupId>,
        mut text: String,
    ) -> Happening {
        // Also after a restart a number is one that was never used.
        self.last_number = (self.last_number + 1).max(unix.0.max(0).cast_unsigned());
        let cut = text.floor_char_boundary(TEXT_BYTES_MAX);
        text.truncate(cut);
        let happening = Happening { unix, node, number: self.last_number, kind, group, text };
        self.hear(happening.clone());
        happening
    }

    /// Takes what another node tells.
    pub fn hear(&mut self, happening: Happening) {
        self.happenings.insert((happening.unix, happening.node, happening.number), happening);
        if self.happenings.len() > limits::TIMELINE_COUNT_MAX {
            self.happenings.pop_first();
        }
    }

    /// All that is known, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Happening> {
        self.happenings.values()
    }
}

/// Appends happenings to a message.
pub fn put<'a>(happenings: impl IntoIterator<Item = &'a Happening>, out: &mut Vec<u8>) {
    happenings.into_iter().for_each(|happening| happening.put(out));
}

/// Reads them back; `None` if they are none.
pub fn take(mut rest: &[u8]) -> Option<Vec<Happening>> {
    let mut happenings = Vec::new();
    while !rest.is_empty() && happenings.len() < limits::TIMELINE_COUNT_MAX {
        happenings.push(Happening::take(&mut rest)?);
    }
    rest.is_empty().then_some(happenings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_twice_is_known_once_and_in_the_same_order() {
        let (mut one, mut other) = (Timeline::default(), Timeline::default());
        let first = one.note(NodeId(1), UnixMillis(50), Kind::Leader, Some(GroupId(3)), "leads".to_owned());
        let second = other.note(NodeId(2), UnixMillis(40), Kind::Link, None, "cut: é".to_owned());
        let mut bytes = Vec::new();
        put([&first, &second], &mut bytes);
        for timeline in [&mut one, &mut other] {
            for _ in 0..2 {
                take(&bytes).expect("as it was put").into_iter().for_each(|happening| timeline.hear(happening));
            }
            assert_eq!(timeline.iter().collect::<Vec<_>>(), [&second, &first]);
        }
        assert!((1..bytes.len()).all(|length| take(&bytes[..length]).is_none_or(|taken| taken.len() == 1)));
    }

    #[test]
    fn no_more_is_known_than_the_bound_and_numbers_never_come_back() {
        let mut timeline = Timeline::default();
        for _ in 0..2 * limits::TIMELINE_COUNT_MAX {
            timeline.note(NodeId(1), UnixMillis(1_000), Kind::Slow, None, "x".repeat(2 * TEXT_BYTES_MAX));
        }
        assert_eq!(timeline.iter().count(), limits::TIMELINE_COUNT_MAX);
        assert!(timeline.iter().all(|happening| happening.text.len() == TEXT_BYTES_MAX));
        let mut after_restart = Timeline::default();
        let next = after_restart.note(NodeId(1), UnixMillis(900_000), Kind::Start, None, String::new());
        assert!(timeline.iter().all(|happening| happening.number < next.number));
    }
}
