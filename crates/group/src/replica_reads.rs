//! Reads that the replica on the client's own node answers, if it is not too old: what READONLY asks for.
//!
//! How old a replica may be is told by one clock, its own node's. It takes *soundings*: it asks the leader how far the
//! group is, and notes when it asked.
//!
//! ```text
//!   replica   asks ───────────────────── has applied the place ─────────── a read
//!               │                         ▲                                  │
//!   leader      └──▶ sure that it leads ──┘ place                            │
//!               ├──────────────────── how old the answer may be ─────────────┤
//! ```
//!
//! The leader answers as it answers a read: under its lease, or when a quorum has confirmed it. So the place is not
//! before anything that was acknowledged until the replica asked, and once that has been applied, nothing that a read
//! finds had been overwritten then. What has expired is told by the leader's wall clock, which comes with the place.
//!
//! A client sees its own writes, and within one group never less than it has seen: answers of leaders say how far they
//! were, and a replica that is not there declines. A client that is declined asks the leader. Requests that go to
//! leaders and those that stay here never overtake one another, and when one is declined, those of its group behind it
//! are as well.
//!
//! See decision 0016.

use std::collections::BTreeMap;

use resp::Protocol;
use stdx::{Duration, UnixMillis};

use crate::ids::GroupId;
use crate::requests::Origin;

/// How far a group was when it answered: the last entry applied, and the leader's wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppliedPosition {
    /// Index of the entry.
    pub index: u64,
    /// The clock, or the moment of the entry if that is later.
    pub unix: UnixMillis,
}

impl AppliedPosition {
    /// The later of both, in each respect.
    #[must_use]
    #[inline]
    pub fn max(self, other: Self) -> Self {
        Self { index: self.index.max(other.index), unix: self.unix.max(other.unix) }
    }
}

/// A session that has said READONLY.
#[derive(Debug, Default)]
pub struct Reading {
    /// How old what it reads may be; as the configuration says if it has not said so itself.
    pub allowed: Option<Duration>,
    /// How far groups were when they answered it.
    seen: BTreeMap<GroupId, AppliedPosition>,
    /// It has been answered in ways that do not tell which groups were asked.
    is_vague: bool,
    /// How often a replica has declined.
    pub run: u64,
}

impl Reading {
    /// One that may have been answered by anybody.
    pub fn new(allowed: Option<Duration>) -> Self {
        Self { allowed, is_vague: true, ..Self::default() }
    }

    /// A group has answered it.
    pub fn see(&mut self, group: GroupId, place: AppliedPosition) {
        let seen = self.seen.entry(group).or_default();
        *seen = seen.max(place);
    }

    /// It asks for something that any group may take part in.
    pub fn blur(&mut self) {
        self.is_vague = true;
    }

    /// How far a group must be that answers it: `heard` is how far each was when it last answered anybody.
    pub fn floor(&mut self, group: GroupId, heard: &[AppliedPosition]) -> AppliedPosition {
        if std::mem::take(&mut self.is_vague) {
            for (group, place) in (0..).map(GroupId).zip(heard) {
                self.see(group, *place);
            }
        }
        self.seen.get(&group).copied().unwrap_or_default()
    }
}

/// A read for the replica on the client's own node.
#[derive(Debug)]
pub struct ReplicaRead {
    /// Where the reply goes.
    pub origin: Origin,
    /// The group.
    pub group: GroupId,
    /// The session's protocol.
    pub protocol: Protocol,
    /// What to read; laid out by `entry::put_words`.
    pub words: Vec<u8>,
    /// How old the answer may be.
    pub allowed: Duration,
    /// How far the replica must be.
    pub floor: AppliedPosition,
    /// Of the move by which its slot has come to the group, as far as the client's core knows; 0 for none.
    pub epoch: u64,
    /// How often the session had been declined when it asked.
    pub run: u64,
}

/// Why a read that may be old was not answered after all.
pub fn too_old(allowed: Duration) -> String {
    format!(
        "CLUSTERDOWN No quorum of the group answers, and this node's replica may be older than the {} ms that READONLY \
         allows here",
        allowed.as_millis()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(index: u64, unix: i64) -> AppliedPosition {
        AppliedPosition { index, unix: UnixMillis(unix) }
    }

    #[test]
    fn a_session_is_owed_what_it_has_seen_of_each_group() {
        let heard = [place(7, 70), place(9, 90)];
        let mut reading = Reading::new(None);
        assert_eq!(reading.floor(GroupId(0), &heard), heard[0], "it may have been answered before READONLY");
        assert_eq!(reading.floor(GroupId(1), &[place(50, 500); 2]), heard[1], "what others are told is not its own");
        reading.see(GroupId(1), place(12, 80));
        assert_eq!(reading.floor(GroupId(1), &heard), place(12, 90));
        reading.blur();
        assert_eq!(reading.floor(GroupId(1), &[place(50, 500); 2]), place(50, 500));
    }
}
