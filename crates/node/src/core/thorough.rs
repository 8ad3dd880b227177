//! Replies that wait until every voter has the change. See [`crate::thorough`].

use command::Refusal;
use group::ids::{GroupId, SessionId};
use group::requests::{COPIES_APPLIED, Request, RequestBody};
use resp::Protocol;

use crate::core::Core;
use crate::event::Action;
use crate::limits;
use crate::quorum::Answerable;
use crate::relay::Purpose;
use crate::session::Session;
use crate::thorough::{DEMAND_LASTS, INTERVAL_MAX, INTERVAL_MIN, INTERVAL_REFUSING, Kept, Line, Waiting, take_lacking};

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
