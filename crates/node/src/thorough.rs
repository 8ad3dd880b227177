//! CLIENT DURABILITY ALL: a change is answered when every voter of its groups has it on disk.
//!
//! The change is logged at the level `disk`, so that each voter syncs it before it acknowledges it. What a majority
//! acknowledges is committed, and comes back to the gateway, which keeps the reply. The leader of each group that the
//! request was about then says which voters lack what it has applied; it is asked again, about the same place, until
//! none does. One question is under way for a group at a time, and speaks for all replies that have come before it, so
//! that the price is the same for one client and for a thousand.
//!
//! A change that has waited too long is refused, though it is done. From then on the group is known to lack a voter:
//! what is asked of it alone is refused before it is done, until its leader says that no voter lacks anything.

use std::collections::{BTreeMap, BTreeSet};

use stdx::{Duration, Instant, leb128};

use group::ids::{GroupId, NodeId, SessionId};
use group::proof::Proof;

/// Between two questions to the same leader, at first; twice as much each time, up to the longest.
pub(crate) const INTERVAL_MIN: Duration = Duration::from_millis(1);
pub(crate) const INTERVAL_MAX: Duration = Duration::from_millis(10);
/// The same while what comes is refused.
pub(crate) const INTERVAL_REFUSING: Duration = Duration::from_millis(100);
/// When nobody has asked for so long, a leader is not asked either whether its voters are back.
pub(crate) const DEMAND_LASTS: Duration = Duration::from_secs(60);

/// A reply that waits in its session's place.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) session: SessionId,
    pub(crate) ticket: u64,
    /// The groups that it is about; none if that is not known, and then it is about all. While it waits, those that
    /// have not said that all have it.
    pub(crate) groups: BTreeSet<GroupId>,
    pub(crate) proof: Proof,
    pub(crate) bytes: Vec<u8>,
}

/// Replies of a core that wait, and what its groups lack.
#[derive(Debug, Default)]
pub(crate) struct Thorough {
    /// In the order in which they came, which is that in which their time is up.
    pub(crate) kept: BTreeMap<u64, Waiting>,
    pub(crate) next_id: u64,
    pub(crate) lines: BTreeMap<GroupId, Line>,
}

#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) kept: Kept,
    pub(crate) until: Instant,
}

/// Replies that wait for one group.
#[derive(Debug)]
pub(crate) struct Line {
    /// Those that the question is about.
    pub(crate) asked: Vec<u64>,
    /// Those that have come since.
    pub(crate) waiting: Vec<u64>,
    /// The place in the group's log that is asked about; 0 until its leader has named it.
    pub(crate) place: u64,
    pub(crate) is_under_way: bool,
    pub(crate) again_at: Instant,
    pub(crate) interval: Duration,
    /// Voters that lacked something when the leader was asked last.
    pub(crate) lacking: Vec<NodeId>,
    /// Replies have been refused, and the group has not been whole since.
    pub(crate) is_refusing: bool,
    pub(crate) demanded: Instant,
}

impl Line {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            asked: Vec::new(),
            waiting: Vec::new(),
            place: 0,
            is_under_way: false,
            again_at: now,
            interval: INTERVAL_MIN,
            lacking: Vec::new(),
            is_refusing: false,
            demanded: now,
        }
    }
}

impl Thorough {
    /// A reply has what it needs of a group. Returns it when that was the last.
    pub(crate) fn satisfy(&mut self, id: u64, group: GroupId) -> Option<Kept> {
        let groups = &mut self.kept.get_mut(&id)?.kept.groups;
        groups.remove(&group);
        if !groups.is_empty() {
            return None;
        }
        self.kept.remove(&id).map(|waiting| waiting.kept)
    }

    /// The replies that have waited too long. Their groups are known to lack a voter from now on.
    pub(crate) fn take_late(&mut self, now: Instant) -> Vec<Kept> {
        let first = self.kept.iter().find(|(_, waiting)| waiting.until > now).map_or(self.next_id, |(id, _)| *id);
        let rest = self.kept.split_off(&first);
        let late = std::mem::replace(&mut self.kept, rest);
        if late.is_empty() {
            return Vec::new();
        }
        // Numbers rise as time does, in the lines as well.
        let cut = |line: &mut Vec<u64>| line.drain(..line.partition_point(|id| *id < first)).count();
        for line in self.lines.values_mut() {
            line.is_refusing |= cut(&mut line.asked) + cut(&mut line.waiting) > 0;
        }
        late.into_values().map(|waiting| waiting.kept).collect()
    }

    /// A group that a reply waits for, and the voters that it lacks: one of which they are known, if there is one.
    pub(crate) fn lacks(&self, kept: &Kept) -> (Option<GroupId>, &[NodeId]) {
        let lacking = |group: &GroupId| self.lines.get(group).map_or(&[][..], |line| &line.lacking[..]);
        let known = kept.groups.iter().find(|group| !lacking(group).is_empty());
        let group = known.or(kept.groups.first());
        (group.copied(), group.map_or(&[], lacking))
    }

    /// The client of these replies has gone: nobody will read them. The groups are asked all the same, for what is
    /// known of their voters.
    pub(crate) fn drop_replies_of(&mut self, session: SessionId) {
        for waiting in self.kept.values_mut().filter(|waiting| waiting.kept.session == session) {
            waiting.kept.bytes = Vec::new();
        }
    }

    /// When there is something to do.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let again = self.lines.values().filter(|line| !line.is_under_way).map(|line| line.again_at);
        again.chain(self.kept.values().next().map(|waiting| waiting.until)).min()
    }
}

/// What a leader says: a place, how many others have it, and which voters do not. One that knows only level 1 does not
/// say which.
pub(crate) fn take_lacking(mut bytes: &[u8]) -> Option<(u64, Vec<NodeId>)> {
    let place = leb128::take(&mut bytes)?;
    _ = leb128::take(&mut bytes)?;
    let count = leb128::take(&mut bytes)?;
    let lacking: Vec<_> = (0..count).map_while(|_| leb128::take(&mut bytes)).map(NodeId).collect();
    (lacking.len() as u64 == count).then_some((place, lacking))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: SessionId = SessionId { serial: 1, index: 0 };
    const SECOND: SessionId = SessionId { serial: 2, index: 1 };

    fn with_replies_of(sessions: &[SessionId]) -> Thorough {
        let mut thorough = Thorough::default();
        for (&session, id) in sessions.iter().zip(0..) {
            let (groups, bytes) = (BTreeSet::from([GroupId(0), GroupId(1)]), vec![b'x'; 1_000]);
            let kept = Kept { session, ticket: id, groups, proof: Proof::Refused, bytes };
            thorough.kept.insert(id, Waiting { kept, until: Instant::from_nanos(id + 1) });
            for group in [GroupId(0), GroupId(1)] {
                thorough.lines.entry(group).or_insert_with(|| Line::new(Instant::ZERO)).waiting.push(id);
            }
        }
        thorough.next_id = sessions.len() as u64;
        thorough
    }

    #[test]
    fn replies_to_a_client_that_has_gone_hold_no_memory_and_are_asked_for() {
        let mut thorough = with_replies_of(&[FIRST, SECOND, FIRST]);
        thorough.drop_replies_of(FIRST);
        let capacities: Vec<usize> = thorough.kept.values().map(|waiting| waiting.kept.bytes.capacity()).collect();
        assert_eq!(capacities, [0, 1_000, 0]);
        // The groups are asked all the same.
        assert!(thorough.lines.values().all(|line| line.waiting == [0, 1, 2]));
        assert!(thorough.satisfy(0, GroupId(1)).is_none());
        assert!(thorough.satisfy(0, GroupId(0)).is_some_and(|kept| kept.session == FIRST && kept.bytes.is_empty()));
        assert!(thorough.satisfy(1, GroupId(0)).is_none());
        assert!(thorough.satisfy(1, GroupId(1)).is_some_and(|kept| kept.bytes.len() == 1_000));
    }

    #[test]
    fn replies_that_are_late_leave_their_lines_to_those_that_are_not() {
        let mut thorough = with_replies_of(&[FIRST, SECOND, FIRST]);
        assert!(thorough.take_late(Instant::ZERO).is_empty());
        let late = thorough.take_late(Instant::from_nanos(2));
        assert_eq!(late.iter().map(|kept| kept.ticket).collect::<Vec<_>>(), [0, 1]);
        assert!(thorough.lines.values().all(|line| line.waiting == [2] && line.is_refusing));
        assert_eq!(thorough.take_late(Instant::from_nanos(9)).len(), 1);
        assert_eq!(thorough.wake_at(), Some(Instant::ZERO), "the groups are asked again, for what comes");
    }
}
