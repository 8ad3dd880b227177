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

use command::Refusal;
use resp::Protocol;
use stdx::{Duration, Instant, leb128};

use crate::context::Context;
use crate::core::Core;
use crate::core_messages::{COPIES_APPLIED, Request, RequestBody};
use crate::event::Action;
use crate::group::proof::Proof;
use crate::ids::{GroupId, NodeId, SessionId};
use crate::limits;
use crate::quorum::Answerable;
use crate::relay::Purpose;
use crate::session::Session;

/// Between two questions to the same leader, at first; twice as much each time, up to the longest.
const INTERVAL_MIN: Duration = Duration::from_millis(1);
const INTERVAL_MAX: Duration = Duration::from_millis(10);
/// The same while what comes is refused.
const INTERVAL_REFUSING: Duration = Duration::from_millis(100);
/// When nobody has asked for so long, a leader is not asked either whether its voters are back.
const DEMAND_LASTS: Duration = Duration::from_secs(60);

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
    kept: BTreeMap<u64, Waiting>,
    next_id: u64,
    lines: BTreeMap<GroupId, Line>,
}

#[derive(Debug)]
struct Waiting {
    kept: Kept,
    until: Instant,
}

/// Replies that wait for one group.
#[derive(Debug)]
struct Line {
    /// Those that the question is about.
    asked: Vec<u64>,
    /// Those that have come since.
    waiting: Vec<u64>,
    /// The place in the group's log that is asked about; 0 until its leader has named it.
    place: u64,
    is_under_way: bool,
    again_at: Instant,
    interval: Duration,
    /// Voters that lacked something when the leader was asked last.
    lacking: Vec<NodeId>,
    /// Replies have been refused, and the group has not been whole since.
    is_refusing: bool,
    demanded: Instant,
}

impl Line {
    fn new(now: Instant) -> Self {
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
    fn satisfy(&mut self, id: u64, group: GroupId) -> Option<Kept> {
        let groups = &mut self.kept.get_mut(&id)?.kept.groups;
        groups.remove(&group);
        if !groups.is_empty() {
            return None;
        }
        self.kept.remove(&id).map(|waiting| waiting.kept)
    }

    /// The replies that have waited too long. Their groups are known to lack a voter from now on.
    fn take_late(&mut self, now: Instant) -> Vec<Kept> {
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
    fn lacks(&self, kept: &Kept) -> (Option<GroupId>, &[NodeId]) {
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

impl Context {
    fn lacks_voters(&self, group: Option<GroupId>, lacking: &[NodeId]) -> String {
        let group = group.map_or_else(String::new, |group| format!(" of group {}", group.0));
        match lacking {
            [] => format!("the leader{group} has not said who lacks it"),
            _ => {
                let names: Vec<_> = lacking.iter().map(|node| self.name_of(*node)).collect();
                format!("{} lacks it{}", names.join(", "), if group.is_empty() { "" } else { &group })
            }
        }
    }
}

impl Core {
    /// Takes replies that sessions have kept back. True if there were any.
    pub(crate) fn keep_back(&mut self) -> bool {
        let kept = self.sessions.take_kept();
        let any = !kept.is_empty();
        let now = self.now.instant;
        for mut kept in kept {
            // What is on this disk is on all there are.
            if !self.context.is_clustered {
                self.give(kept);
                continue;
            }
            if kept.groups.is_empty() {
                kept.groups = self.context.slots.groups().collect();
            }
            let groups = kept.groups.clone();
            let id = self.questions.thorough.next_id;
            self.questions.thorough.next_id += 1;
            for group in &groups {
                let line = self.questions.thorough.lines.entry(*group).or_insert_with(|| Line::new(now));
                line.demanded = now;
                line.waiting.push(id);
            }
            let until = now + limits::ALL_VOTERS_PATIENCE;
            self.questions.thorough.kept.insert(id, Waiting { kept, until });
            groups.into_iter().for_each(|group| self.ask_for_lacking(group));
        }
        any
    }

    /// Asks the leader of a group, unless it has been, and somebody waits for it.
    fn ask_for_lacking(&mut self, group: GroupId) {
        let Some(line) = self.questions.thorough.lines.get_mut(&group) else { return };
        if line.is_under_way {
            return;
        }
        if line.asked.is_empty() && !line.is_refusing {
            if line.waiting.is_empty() {
                self.questions.thorough.lines.remove(&group);
                return;
            }
            (line.asked, line.place, line.interval) = (std::mem::take(&mut line.waiting), 0, INTERVAL_MIN);
        }
        line.is_under_way = true;
        let place = if line.place == 0 { COPIES_APPLIED } else { line.place };
        let origin = self.origin_of(SessionId { serial: 0, index: 0 });
        let request = Request::new(origin, group, Protocol::Resp2, RequestBody::CopyCount(place));
        self.relay.submit(request, Purpose::Lacking, Answerable::UNDER_WAY, self.now.instant);
    }

    /// A leader has said who lacks what; `bytes` are empty if it could not be asked.
    pub(crate) fn lacking_told(&mut self, group: GroupId, bytes: &[u8]) {
        let now = self.now.instant;
        let Some(line) = self.questions.thorough.lines.get_mut(&group) else { return };
        line.is_under_way = false;
        let told = take_lacking(bytes);
        if let Some((_, lacking)) = &told
            && lacking.is_empty()
        {
            (line.place, line.is_refusing, line.lacking) = (0, false, Vec::new());
            for id in std::mem::take(&mut line.asked) {
                if let Some(kept) = self.questions.thorough.satisfy(id, group) {
                    self.give(kept);
                }
            }
            return self.ask_for_lacking(group);
        }
        if let Some((place, lacking)) = told {
            (line.place, line.lacking) = (place, lacking);
        }
        line.again_at = now + if line.is_refusing { INTERVAL_REFUSING } else { line.interval };
        line.interval = line.interval.saturating_mul(2).min(INTERVAL_MAX);
    }

    fn give(&mut self, kept: Kept) {
        // What it took, if anything, has been taken back when it went.
        let Some(start) = self.sessions.release_kept(&kept).map(|session| session.put_out_bytes()) else { return };
        let Kept { session: id, ticket, proof, bytes, .. } = kept;
        self.sessions.reply_proven(id, ticket, proof, &bytes);
        let end = self.sessions.get(id).map_or(start, Session::put_out_bytes);
        if let Some(delivery) = self.waits.deliveries.get_mut(&id).filter(|delivery| delivery.ticket == ticket) {
            if end > start {
                delivery.start = start;
            } else {
                // With CLIENT REPLY OFF nobody wants to see it.
                self.waits.deliveries.remove(&id);
            }
        }
    }

    /// Asks again where it is time, and refuses what has waited for too long.
    pub(crate) fn pass_time_for_thorough(&mut self, actions: &mut Vec<Action>) {
        if self.questions.thorough.lines.is_empty() {
            return;
        }
        let now = self.now.instant;
        for kept in self.questions.thorough.take_late(now) {
            self.context.statistics.not_thorough_count += 1;
            let (session, ticket) = (kept.session, kept.ticket);
            if self.sessions.release_kept(&kept).is_none() {
                continue;
            }
            let what = if self.return_kept(session, ticket, actions) {
                "An element was taken, and goes back: not every voter had the change on disk"
            } else {
                "The change is done, and a majority has it on disk, but not every voter"
            };
            let (group, lacking) = self.questions.thorough.lacks(&kept);
            let (seconds, why) = (limits::ALL_VOTERS_PATIENCE.as_secs(), self.context.lacks_voters(group, lacking));
            self.sessions.refuse(session, ticket, &format!("UNCONFIRMED {what} {seconds} s later: {why}"));
        }
        let is_forgotten =
            |line: &Line| line.asked.is_empty() && line.waiting.is_empty() && now.since(line.demanded) >= DEMAND_LASTS;
        self.questions.thorough.lines.retain(|_, line| line.is_under_way || !is_forgotten(line));
        let is_due = |line: &Line| !line.is_under_way && line.again_at <= now;
        let due: Vec<_> =
            self.questions.thorough.lines.iter().filter(|(_, line)| is_due(line)).map(|(group, _)| *group).collect();
        due.into_iter().for_each(|group| self.ask_for_lacking(group));
    }

    /// True if replies to this session wait for every voter, and some voter is known to be missing somewhere.
    pub(crate) fn asks_all_voters(&self, session: SessionId) -> bool {
        !self.questions.thorough.lines.is_empty()
            && self.sessions.get(session).is_some_and(|session| session.options.by_all)
    }

    /// Refuses a change before it is done, if its client wants every voter to have it and one is known to be missing.
    ///
    /// # Errors
    /// Which.
    #[inline]
    pub(crate) fn check_voters(&mut self, session: SessionId, group: GroupId) -> Result<(), Refusal> {
        if !self.asks_all_voters(session) {
            return Ok(());
        }
        let now = self.now.instant;
        let Some(line) = self.questions.thorough.lines.get_mut(&group).filter(|line| line.is_refusing) else {
            return Ok(());
        };
        line.demanded = now;
        let lacking = line.lacking.clone();
        self.context.statistics.not_thorough_count += 1;
        let why = self.context.lacks_voters(Some(group), &lacking);
        Err(Refusal::new(format!("NOREPLICAS Not done: not every voter has on disk what was done before: {why}")))
    }
}

/// What a leader says: a place, how many others have it, and which voters do not. One that knows only level 1 does not
/// say which.
fn take_lacking(mut bytes: &[u8]) -> Option<(u64, Vec<NodeId>)> {
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
