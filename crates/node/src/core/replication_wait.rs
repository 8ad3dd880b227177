//! WAIT, WAITAOF and HOLDFAST STREAM. See [`crate::replication_wait`].

use group::host::AppendFsync;
use group::ids::{GroupId, SessionId};
use group::requests::{COPIES_APPLIED, COPIES_LOGGED, Request, RequestBody};
use resp::Protocol;
use stdx::{Duration, Instant, leb128};

use crate::core::Core;
use crate::event::{Action, FollowersAnswer, FollowersForm, FollowersRequest};
use crate::quorum::Answerable;
use crate::relay::Purpose;
use crate::replication_wait::{FOLLOWERS_PATIENCE, INTERVAL, ReplicationWait};
use crate::session::ticket::OwnTicket;

impl Core {
    /// Begins to wait.
    pub(crate) fn begin_holder_wait(
        &mut self,
        (session, ticket): (SessionId, OwnTicket),
        wanted: u64,
        timeout_ms: u64,
        form: FollowersForm,
        actions: &mut Vec<Action>,
    ) {
        let now = self.now.instant;
        let until = (timeout_ms > 0).then(|| now + Duration::from_millis(timeout_ms));
        if !self.context.is_clustered && form != FollowersForm::Stream {
            let following = &self.context.host.report.following;
            let are_none_known = following.id.is_empty() && following.followers.is_empty();
            if wanted == 0 && are_none_known {
                return self.finish_holder_wait((session, ticket), form, FollowersAnswer::default());
            }
            let core = self.context.core;
            let request =
                FollowersRequest { core, session, ticket, wanted, until, patience_ms: 0, places: Vec::new(), form };
            return self.ask_for_followers(request, actions);
        }
        // What others have only in memory is on no disk.
        let had_less = self.sessions.get(session).is_some_and(|session| session.had_less);
        let is_synced = self.context.settings.append_fsync == AppendFsync::Always && !had_less;
        if matches!(form, FollowersForm::OnDisk(_)) && !is_synced {
            // Redis would wait for the time-out first; what does not exist will not come meanwhile.
            return self.finish_holder_wait((session, ticket), form, FollowersAnswer::default());
        }
        let wait = ReplicationWait {
            session,
            ticket,
            form,
            wanted,
            until,
            groups: vec![(0, 0); self.context.slots.group_count() as usize],
            outstanding: 0,
            again_at: now,
        };
        let id = self.questions.next_id;
        self.questions.next_id += 1;
        self.questions.replication_waits.insert(id, wait);
        self.ask_for_holders(id);
    }

    fn finish_holder_wait(
        &mut self,
        (session, ticket): (SessionId, OwnTicket),
        form: FollowersForm,
        answer: FollowersAnswer,
    ) {
        self.sessions.reply_own(session, ticket, |writer| {
            let before = match form {
                FollowersForm::Count => None,
                FollowersForm::OnDisk(local_count) => Some(local_count),
                FollowersForm::Stream => Some(answer.offset.map_or(-1, |offset| offset as i64)),
            };
            if let Some(number) = before {
                writer.array(2);
                writer.integer(number);
            }
            writer.integer(answer.count as i64);
        });
    }

    fn ask_for_followers(&mut self, mut request: FollowersRequest, actions: &mut Vec<Action>) {
        let left = request.until.map(|until| until.since(self.now.instant));
        let patience = left.map_or(FOLLOWERS_PATIENCE, |left| left.min(FOLLOWERS_PATIENCE));
        request.patience_ms = patience.as_millis() as u64;
        actions.push(Action::AwaitFollowers(Box::new(request)));
    }

    /// The host has said how many replicas have it. If that is not enough, they are waited for again: it is not told
    /// when a client has gone.
    pub(crate) fn followers_heard(
        &mut self,
        request: FollowersRequest,
        answer: FollowersAnswer,
        actions: &mut Vec<Action>,
    ) {
        if self.sessions.get(request.session).is_none() {
            return;
        }
        let is_over = request.until.is_some_and(|until| until <= self.now.instant);
        let is_told = answer.offset.is_some() || request.form != FollowersForm::Stream;
        let is_there = answer.count >= request.wanted && is_told;
        if is_there || is_over || !answer.is_led {
            return self.finish_holder_wait((request.session, request.ticket), request.form, answer);
        }
        self.ask_for_followers(request, actions);
    }

    fn ask_for_holders(&mut self, id: u64) {
        let Some(wait) = self.questions.replication_waits.get_mut(&id) else { return };
        let gone = |group: u32| self.context.slots.gone_at(GroupId(group));
        for (group, known) in (0..).zip(&mut wait.groups) {
            if let Some(end) = gone(group) {
                // All that it did is elsewhere by now.
                *known = (end, u64::MAX);
            }
        }
        let living: Vec<bool> = (0..wait.groups.len() as u32).map(|group| gone(group).is_none()).collect();
        wait.outstanding = living.iter().filter(|lives| **lives).count();
        // What was accepted before is in the log, and may not have been applied.
        let first = if wait.form == FollowersForm::Stream { COPIES_LOGGED } else { COPIES_APPLIED };
        let place = |known: u64| if known == 0 { first } else { known };
        let places: Vec<u64> = wait.groups.iter().map(|(known, _)| place(*known)).collect();
        let groups = (0..).map(GroupId).zip(places).zip(living);
        for ((group, place), _) in groups.filter(|(_, lives)| *lives) {
            let origin = self.origin_of(SessionId { serial: 0, index: 0 });
            let request = Request::new(origin, group, Protocol::Resp2, RequestBody::CopyCount(place));
            self.relay.submit(request, Purpose::CopyCount { id }, Answerable::UNDER_WAY, self.now.instant);
        }
    }

    /// A leader has said who holds its log; `None` if it could not be asked.
    pub(crate) fn copies_counted(&mut self, id: u64, group: GroupId, mut bytes: &[u8], actions: &mut Vec<Action>) {
        let now = self.now.instant;
        let Some(wait) = self.questions.replication_waits.get_mut(&id) else { return };
        if let (Some(place), Some(count)) = (leb128::take(&mut bytes), leb128::take(&mut bytes)) {
            wait.groups[group.0 as usize] = (place, count);
        }
        wait.outstanding = wait.outstanding.saturating_sub(1);
        if wait.outstanding > 0 {
            return;
        }
        wait.again_at = now + INTERVAL;
        let are_all_known = wait.groups.iter().all(|(place, _)| *place > 0);
        let is_about_nodes = wait.form != FollowersForm::Stream;
        if !are_all_known || is_about_nodes && wait.count() < wait.wanted {
            return;
        }
        let wait = self.questions.replication_waits.remove(&id).expect("just seen");
        if is_about_nodes {
            return self.finish_holder_wait((wait.session, wait.ticket), wait.form, wait.answer());
        }
        let ReplicationWait { session, ticket, wanted, until, form, groups, .. } = wait;
        let places = groups.into_iter().map(|(place, _)| place).collect();
        let core = self.context.core;
        let request = FollowersRequest { core, session, ticket, wanted, until, patience_ms: 0, places, form };
        self.ask_for_followers(request, actions);
    }

    /// Asks again where it is time, and answers those that have waited long enough.
    pub(crate) fn pass_time_for_holders(&mut self) {
        if self.questions.replication_waits.is_empty() {
            return;
        }
        let now = self.now.instant;
        let sessions = &self.sessions;
        self.questions.replication_waits.retain(|_, wait| sessions.get(wait.session).is_some());
        let ids: Vec<u64> = self.questions.replication_waits.keys().copied().collect();
        for id in ids {
            let wait = &self.questions.replication_waits[&id];
            if wait.until.is_some_and(|until| until <= now) {
                let wait = self.questions.replication_waits.remove(&id).expect("just seen");
                let answer =
                    if wait.form == FollowersForm::Stream { FollowersAnswer::default() } else { wait.answer() };
                self.finish_holder_wait((wait.session, wait.ticket), wait.form, answer);
            } else if wait.outstanding == 0 && wait.again_at <= now {
                self.ask_for_holders(id);
            }
        }
    }

    /// When there is something to do for those who wait.
    pub(crate) fn next_holder_wake(&self) -> Option<Instant> {
        let ends = self.questions.replication_waits.values().filter_map(|wait| wait.until);
        let again =
            self.questions.replication_waits.values().filter(|wait| wait.outstanding == 0).map(|wait| wait.again_at);
        ends.chain(again).min()
    }
}
