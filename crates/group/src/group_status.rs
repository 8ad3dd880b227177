//! What the leader of a group says of it once a second: to the first core of every node, so that any node can tell how
//! the cluster is.

use std::collections::BTreeMap;

use message::roster::Gone;
use stdx::slot::{SLOT_COUNT, Slot};
use stdx::{Instant, leb128};

use crate::ids::{GroupId, NodeId};
use crate::limits;

/// A leader's word on its group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStatus {
    /// Which group.
    pub group: GroupId,
    /// The node that leads it, and says so.
    pub leader: NodeId,
    /// Raft's term.
    pub term: u64,
    /// Last entry that the leader has applied.
    pub applied: u64,
    /// Last entry of its log.
    pub last: u64,
    /// Bytes that its keys take in memory.
    pub bytes: u64,
    /// The nodes that vote, the leader among them.
    pub voters: Vec<u64>,
    /// The nodes that receive everything and do not vote.
    pub learners: Vec<u64>,
    /// All members but the leader.
    pub followers: Vec<Follower>,
    /// Where a group that is too large would be split. Nothing while one of its slots, votes or splits is under way.
    /// Said from the level of splits on: older versions would take it for damage.
    pub halves: Option<Halves>,
    /// The group has ended, and what it says of that.
    pub ended: Option<Gone>,
}

/// Where the bytes of a group are halved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halves {
    /// How many slots the group holds: what was said before a split is known by it.
    pub slot_count: u16,
    /// The first slot of the second half.
    pub middle: Slot,
    /// Bytes of the keys of either half.
    pub bytes: [u64; 2],
}

impl Halves {
    /// Bytes of the keys of both.
    pub fn all(&self) -> u64 {
        self.bytes[0].saturating_add(self.bytes[1])
    }

    /// The two halves of these slots with their bytes, in order of the slots: as equal by bytes as whole slots allow,
    /// and then by number. Each has a slot at least.
    pub fn of(sizes: &[(Slot, u64)]) -> Option<Self> {
        let all: u64 = sizes.iter().map(|(_, bytes)| bytes).sum();
        let mut before = 0;
        let mut best: Option<((u64, usize), Slot, u64)> = None;
        for (place, pair) in sizes.windows(2).enumerate() {
            before += pair[0].1;
            let apart = (before.abs_diff(all - before), (2 * (place + 1)).abs_diff(sizes.len()));
            if best.is_none_or(|(known, ..)| apart < known) {
                best = Some((apart, pair[1].0, before));
            }
        }
        let (_, middle, before) = best?;
        Some(Self { slot_count: sizes.len() as u16, middle, bytes: [before, all - before] })
    }
}

/// What a leader knows of another member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follower {
    /// Who.
    pub node: NodeId,
    /// It was heard within an election time-out.
    pub is_active: bool,
    /// How the log comes to it.
    pub feed: Feed,
    /// It holds all entries up to here: on disk, where acknowledgements wait for the disk.
    pub matched: u64,
    /// Bytes of log that it lacks, roughly if they are many; of those that the leader has given up nothing is known.
    /// While it is given a checkpoint: bytes of that which are still to come, roughly.
    pub behind_bytes: u64,
    /// Age of the oldest entry that it lacks, in milliseconds.
    pub lag_ms: u64,
    /// Checkpoints that it was given by this leader.
    pub resync_count: u64,
    /// Milliseconds since it was last heard.
    pub silent_ms: u64,
}

/// How the log comes to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feed {
    /// Entries are sent as they come.
    Streaming,
    /// It is asked what it has.
    Probing,
    /// It is given a checkpoint first.
    Checkpoint,
    /// It lacks so much that it is fed from the leader's disk.
    Disk,
}

impl Feed {
    const ALL: [Self; 4] = [Self::Streaming, Self::Probing, Self::Checkpoint, Self::Disk];

    /// As status reports name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Streaming => "streaming",
            Self::Probing => "probing",
            Self::Checkpoint => "checkpoint",
            Self::Disk => "disk",
        }
    }
}

impl GroupStatus {
    /// Entries that a member lacks.
    pub fn behind(&self, follower: &Follower) -> u64 {
        self.last.saturating_sub(follower.matched)
    }

    /// True if a node takes part.
    pub fn has(&self, node: NodeId) -> bool {
        self.voters.contains(&node.0) || self.learners.contains(&node.0)
    }

    /// Appends it to a message.
    pub fn put(&self, out: &mut Vec<u8>) {
        for number in [u64::from(self.group.0), self.leader.0, self.term, self.applied, self.last, self.bytes] {
            leb128::put(out, number);
        }
        for nodes in [&self.voters, &self.learners] {
            leb128::put(out, nodes.len() as u64);
            nodes.iter().for_each(|node| leb128::put(out, *node));
        }
        leb128::put(out, self.followers.len() as u64);
        for follower in &self.followers {
            leb128::put(out, follower.node.0);
            out.push(u8::from(follower.is_active) << 7 | follower.feed as u8);
            let Follower { matched, behind_bytes, lag_ms, resync_count, silent_ms, .. } = *follower;
            for number in [matched, behind_bytes, lag_ms, resync_count, silent_ms] {
                leb128::put(out, number);
            }
        }
        if let Some(gone) = &self.ended {
            // It holds no slot.
            leb128::put(out, 0);
            gone.put(out);
        } else if let Some(Halves { slot_count, middle, bytes }) = self.halves {
            for number in [u64::from(slot_count), u64::from(middle.0), bytes[0], bytes[1]] {
                leb128::put(out, number);
            }
        }
    }

    /// Reads it back, to the end; `None` if it is none.
    pub fn take(rest: &mut &[u8]) -> Option<Self> {
        let nodes = |rest: &mut &[u8]| (0..leb128::take(rest)?).map(|_| leb128::take(rest)).collect::<Option<_>>();
        let follower = |rest: &mut &[u8]| {
            let node = NodeId(leb128::take(rest)?);
            let (flags, tail) = rest.split_first()?;
            *rest = tail;
            Some(Follower {
                node,
                is_active: flags & 0x80 != 0,
                feed: *Feed::ALL.get(usize::from(flags & 0x7F))?,
                matched: leb128::take(rest)?,
                behind_bytes: leb128::take(rest)?,
                lag_ms: leb128::take(rest)?,
                resync_count: leb128::take(rest)?,
                silent_ms: leb128::take(rest)?,
            })
        };
        let mut told = Self {
            group: GroupId(u32::try_from(leb128::take(rest)?).ok()?),
            leader: NodeId(leb128::take(rest)?),
            term: leb128::take(rest)?,
            applied: leb128::take(rest)?,
            last: leb128::take(rest)?,
            bytes: leb128::take(rest)?,
            voters: nodes(rest)?,
            learners: nodes(rest)?,
            followers: (0..leb128::take(rest)?).map(|_| follower(rest)).collect::<Option<_>>()?,
            halves: None,
            ended: None,
        };
        if rest.is_empty() {
            return Some(told);
        }
        match u16::try_from(leb128::take(rest)?).ok()? {
            0 => told.ended = Some(Gone::take(rest)?),
            slot_count => {
                let (middle, bytes) = (take_slot(rest)?, [leb128::take(rest)?, leb128::take(rest)?]);
                told.halves = Some(Halves { slot_count, middle, bytes });
            }
        }
        Some(told)
    }
}

fn take_slot(rest: &mut &[u8]) -> Option<Slot> {
    u16::try_from(leb128::take(rest)?).ok().filter(|slot| usize::from(*slot) < SLOT_COUNT).map(Slot)
}

/// The latest status of each group, and when it came.
#[derive(Clone, Debug, Default)]
pub struct GroupStatuses {
    latest: BTreeMap<GroupId, (GroupStatus, Instant)>,
    /// When two nodes said of themselves that they lead a group: the second one then.
    disputed: BTreeMap<GroupId, Instant>,
}

impl GroupStatuses {
    /// Keeps a status, unless a later leader has been heard. One that says nothing more does not count: anyone who
    /// says an absurd term must not be the last to be heard.
    pub fn hear(&mut self, group_status: GroupStatus, now: Instant) {
        let known = self.latest.get(&group_status.group);
        if known.is_none_or(|(known, _)| known.leader != group_status.leader) {
            self.disputed.insert(group_status.group, now);
        }
        if known
            .is_none_or(|(known, heard)| known.term <= group_status.term || now.since(*heard) >= limits::BULLETIN_STALE)
        {
            self.latest.insert(group_status.group, (group_status, now));
        }
    }

    /// True if only one node has said for a while that it leads the group. A node that lies about that is contradicted
    /// by the one that does, which tells all others once a second.
    pub fn is_undisputed(&self, group: GroupId, now: Instant) -> bool {
        self.disputed.get(&group).is_some_and(|since| now.since(*since) >= limits::BULLETIN_STALE)
    }

    /// The latest of a group.
    pub fn of(&self, group: GroupId) -> Option<&GroupStatus> {
        self.latest.get(&group).map(|(group_status, _)| group_status)
    }

    /// All of them, by group, with when they came.
    pub fn iter(&self) -> impl Iterator<Item = (&GroupStatus, Instant)> {
        self.latest.values().map(|(group_status, heard)| (group_status, *heard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group_status(term: u64) -> GroupStatus {
        let follower = Follower {
            node: NodeId(u64::MAX >> 2),
            is_active: true,
            feed: Feed::Checkpoint,
            matched: 900,
            behind_bytes: 1 << 40,
            lag_ms: 70_000,
            resync_count: 2,
            silent_ms: 80,
        };
        let other = Follower { is_active: false, feed: Feed::Streaming, ..follower };
        GroupStatus {
            group: GroupId(3),
            leader: NodeId(7),
            term,
            applied: 1_000,
            last: 1_001,
            bytes: 1 << 33,
            voters: vec![7, 8],
            learners: vec![u64::MAX >> 2],
            followers: vec![follower, other],
            halves: None,
            ended: None,
        }
    }

    #[test]
    fn a_group_status_is_read_as_it_was_written() {
        let mut bytes = Vec::new();
        group_status(5).put(&mut bytes);
        let mut rest = &bytes[..];
        assert_eq!(GroupStatus::take(&mut rest), Some(group_status(5)));
        assert!(rest.is_empty());
        assert!((0..bytes.len()).all(|length| GroupStatus::take(&mut &bytes[..length]).is_none()));
        let halves = Halves { slot_count: 16_384, middle: Slot(9_000), bytes: [1 << 40, 3] };
        let more = GroupStatus { halves: Some(halves), ..group_status(5) };
        let known = bytes.len();
        bytes.clear();
        more.put(&mut bytes);
        assert_eq!(GroupStatus::take(&mut &bytes[..]), Some(more));
        assert!((0..bytes.len()).all(|length| GroupStatus::take(&mut &bytes[..length]).is_none() == (length != known)));
        let mut absurd = bytes[..known].to_vec();
        [7, SLOT_COUNT as u64, 1, 1].iter().for_each(|number| leb128::put(&mut absurd, *number));
        assert_eq!(GroupStatus::take(&mut &absurd[..]), None, "there is no such slot");
    }

    #[test]
    fn halves_are_as_equal_as_slots_allow() {
        let of = |sizes: &[u64]| {
            let sizes: Vec<_> = (100..).step_by(10).map(Slot).zip(sizes.iter().copied()).collect();
            Halves::of(&sizes).map(|Halves { slot_count, middle, bytes }| (slot_count, middle.0, bytes))
        };
        assert_eq!(of(&[5, 5, 5, 5]), Some((4, 120, [10, 10])));
        assert_eq!(of(&[0, 0, 0, 0, 0, 0]), Some((6, 130, [0, 0])), "by number");
        assert_eq!(of(&[9, 0, 0, 0, 9]), Some((5, 120, [9, 9])), "by bytes, and then by number");
        assert_eq!(of(&[1, 1, 1, 90]), Some((4, 130, [3, 90])));
        assert_eq!(of(&[90, 1, 1, 1]), Some((4, 110, [90, 3])));
        assert_eq!((of(&[90]), of(&[])), (None, None));
    }

    #[test]
    fn a_leader_of_the_past_is_not_believed() {
        let mut group_statuses = GroupStatuses::default();
        group_statuses.hear(group_status(5), Instant::ZERO);
        group_statuses.hear(group_status(4), Instant::ZERO);
        assert_eq!(group_statuses.of(GroupId(3)).map(|group_status| group_status.term), Some(5));
        group_statuses.hear(group_status(6), Instant::ZERO);
        assert_eq!(group_statuses.of(GroupId(3)).map(|group_status| group_status.term), Some(6));
    }

    #[test]
    fn a_group_with_two_leaders_is_disputed_for_a_while() {
        let at = |ms: u64| Instant::ZERO + stdx::Duration::from_millis(ms);
        let by = |leader: u64, term: u64| GroupStatus { leader: NodeId(leader), ..group_status(term) };
        let mut group_statuses = GroupStatuses::default();
        assert!(!group_statuses.is_undisputed(GroupId(3), at(0)), "nobody has said anything");
        (0..=4).for_each(|second| group_statuses.hear(by(7, 5), at(second * 1_000)));
        assert!(group_statuses.is_undisputed(GroupId(3), at(4_000)));
        // Either of the two may be believed: the other one says something else.
        for (liar, term) in [(9, 1 << 40), (9, 1)] {
            let mut group_statuses = group_statuses.clone();
            for second in 5..20 {
                group_statuses.hear(by(7, 5), at(second * 1_000));
                group_statuses.hear(by(liar, term), at(second * 1_000 + 500));
                assert!(!group_statuses.is_undisputed(GroupId(3), at(second * 1_000 + 900)), "{second}");
            }
        }
    }
}
