//! Connections of this core: opened, weighed, paused, cut off, and sent what they are owed.

use std::sync::Arc;

use group::ids::{Level, SessionId};
use group::published::Published;
use stdx::{Duration, Instant};

use super::{Core, PROTECTED_MODE};
use crate::acl::User;
use crate::commands::question::Question;
use crate::event::Action;
use crate::event::Peer;
use crate::limits;
use crate::session::{Cut, Hold, Session};
use crate::stats::calls::Asked;
use crate::stats::counters::{SlowEntry, Statistics};

impl Core {
    /// CLIENT PAUSE and UNPAUSE.
    pub(crate) fn pause(&mut self, pause: Option<(Duration, bool)>) {
        match pause {
            // A pause that has run out ends for those who wait.
            None => self.context.pause = self.context.pause.map(|(_, only_writes)| (self.now.instant, only_writes)),
            Some((duration, only_writes)) => {
                let until = self.now.instant + duration;
                // A pause never shortens another, nor does one for writes soften one for all.
                let (until, only_writes) = match self.context.pause {
                    Some((other, others_writes)) => (until.max(other), only_writes && others_writes),
                    None => (until, only_writes),
                };
                self.context.pause = Some((until, only_writes));
            }
        }
        self.end_pause();
    }

    pub(super) fn open(&mut self, session: SessionId, peer: Peer, actions: &mut Vec<Action>) {
        let settings = &self.context.settings;
        let default = self.context.access.users.default_user();
        let is_refused = settings.protected_mode && default.is_open && !peer.is_local;
        let user = if peer.is_host { Arc::new(User::default_user()) } else { Arc::clone(default) };
        self.sessions.open(session, peer, self.now, user);
        self.context.session_count = self.sessions.len();
        self.context.statistics.connection_count += 1;
        if is_refused {
            actions.push(Action::Reply { session, bytes: PROTECTED_MODE.as_bytes().to_vec() });
            actions.push(Action::Close { session });
            self.sessions.get_mut(session).expect("just opened").is_closing = true;
        }
    }

    pub(super) fn close(&mut self, session: SessionId, actions: &mut Vec<Action>) {
        self.give_up_waiting(session, actions);
        if let Some(mut session) = self.sessions.close(session) {
            if session.has_kept_replies() {
                self.questions.thorough.drop_replies_of(session.id);
            }
            self.context.give_up_reserved(session.id, &mut session.optimism, self.now.instant);
            self.context.pubsub.forget(&mut session);
            self.context.monitors.remove(session.id);
            self.context.tracker.set_session(session.id, None);
        }
        self.context.session_count = self.sessions.len();
    }

    /// A session of this core has sent commands that another found slow.
    pub(crate) fn take_slow(&mut self, id: SessionId, entries: Vec<SlowEntry>) {
        let client = self.sessions.get(id).map(|session| (session.peer.address.clone(), session.options.name.clone()));
        let (address, name) = client.unwrap_or_default();
        for entry in entries {
            self.context.keep_slow(SlowEntry { address: address.clone(), name: name.clone(), ..entry });
        }
    }

    pub(super) fn note_backlog(&mut self, id: SessionId, bytes: usize) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.flow.backlog_bytes = bytes;
        if bytes == 0 || session.is_over_soft() {
            session.check_output(&self.context.settings.output_limits, self.now.instant);
        }
        if session.cut.is_some() {
            self.sessions.mark(id);
            return;
        }
        let unread_bytes = session.flow.out.len() + session.flow.backlog_bytes;
        if session.hold == Hold::Output && unread_bytes <= limits::OUTPUT_BYTES_MAX / 2 {
            self.sessions.mark_resumable(id);
        }
    }

    /// Looks after clients that have had too much output waiting for a while.
    pub(super) fn check_soft_limits(&mut self) {
        for id in std::mem::take(&mut self.clients.over_soft) {
            self.sessions.mark(id);
        }
    }

    /// Looks after the places and the memory of clients, now and then.
    pub(super) fn weigh_clients(&mut self) {
        let now = self.now.instant;
        if now.since(self.clients.weighed) < group::limits::TICK_INTERVAL {
            return;
        }
        self.clients.weighed = now;
        self.cut_unauthenticated();
        if self.context.settings.clients_bytes_max > 0 {
            self.evict_clients();
        }
    }

    /// Cuts off clients that have had time to authenticate, and have not, when few places for others are left.
    pub(super) fn cut_unauthenticated(&mut self) {
        let clients_max = self.context.settings.number("maxclients").unsigned_abs();
        let is_near = self.context.host.report.client_count >= limits::clients_near(clients_max);
        if !is_near || self.context.access.users.default_user().needs_no_password() {
            return;
        }
        let now = self.now.instant;
        let is_overdue = |session: &&Session| {
            !session.is_authenticated && now.since(session.opened.instant) > limits::AUTHENTICATION_MAX
        };
        let overdue: Vec<_> = self.sessions.iter().filter(is_overdue).map(|session| session.id).collect();
        for id in overdue {
            if let Some(session) = self.sessions.get_mut(id).filter(|session| !session.is_closing) {
                session.cut(Cut::Unauthenticated);
                self.sessions.mark(id);
            }
        }
    }

    /// What took this core longest of the work that it has done since then, if any took long: a command by its name, or
    /// a slice of `checkpoint`, `expire-cycle` or `eviction-cycle`.
    pub fn heaviest_since(&self, since: Instant) -> Option<&'static str> {
        self.context.timings.heaviest_since(since)
    }

    /// Bytes that the clients of this core took when that was looked at last.
    pub fn client_bytes(&self) -> u64 {
        self.clients.bytes
    }

    /// Cuts off those clients that take most, while those of all cores together take more than `maxmemory-clients`, and
    /// those of this one more than its part: what others have is known only roughly, and they do the same.
    pub(super) fn evict_clients(&mut self) {
        let bytes_max = self.context.settings.clients_bytes_max;
        let mut weights: Vec<_> =
            self.sessions.iter().map(|session| (session.memory_bytes() as u64, session.id)).collect();
        let mut sum: u64 = weights.iter().map(|(bytes, _)| bytes).sum();
        let others = self.context.host.report.client_bytes.saturating_sub(self.clients.reported_bytes);
        weights.sort_unstable();
        while sum + others > bytes_max
            && sum > bytes_max / u64::from(self.context.core_count)
            && let Some((bytes, id)) = weights.pop()
        {
            let Some(session) =
                self.sessions.get_mut(id).filter(|session| !session.options.no_evict && !session.is_closing)
            else {
                continue;
            };
            session.cut(Cut::Memory);
            self.sessions.mark(id);
            sum -= bytes;
        }
        self.clients.bytes = sum;
    }

    /// Ends the connection of a client that speaks HTTP: what follows could be commands that somebody has put into a
    /// request of a browser. They are not looked at.
    pub(crate) fn end_http(&mut self, id: SessionId, actions: &mut Vec<Action>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.asking = Asked::NOTHING;
        session.is_closing = true;
        self.context.statistics.http_count += 1;
        let now = self.now.instant;
        if self.clients.http_told.is_none_or(|told| now.since(told) >= limits::HTTP_INTERVAL) {
            self.clients.http_told = Some(now);
            let line = format!(
                "Possible SECURITY ATTACK detected: client id={} addr={} sends POST or Host: as a command, as a browser \
                 does that is abused to reach this server. Its connection is closed.",
                session.id.serial, session.peer.address
            );
            actions.push(Action::Log { level: Level::Warning, line });
        }
        self.sessions.mark(id);
    }

    pub(super) fn end_pause(&mut self) {
        if self.context.pause.is_some_and(|(until, _)| until <= self.now.instant) {
            self.context.pause = None;
            let paused: Vec<_> =
                self.sessions.iter().filter(|session| session.hold == Hold::Paused).map(|session| session.id).collect();
            for id in paused {
                self.sessions.mark_resumable(id);
            }
        }
    }

    pub(super) fn resume(&mut self, actions: &mut Vec<Action>) -> bool {
        let resumable = self.sessions.take_resumable();
        let any = !resumable.is_empty();
        for id in resumable {
            self.resume_session(id, actions);
        }
        any
    }

    /// Hands over what sessions have to say, and closes those that are done.
    ///
    /// True if a session that waited for its output to go may go on in the next turn: a host that could not write all
    /// tells before that, one that could has nothing to tell.
    pub(super) fn flush(&mut self, actions: &mut Vec<Action>) -> bool {
        let spare = &mut self.spare;
        let mut relieved = Vec::new();
        let (output_limits, now) = (self.context.settings.output_limits, self.now.instant);
        let Statistics { cut_count, evicted_count, unauthenticated_count, output_bytes, write_count, .. } =
            &mut self.context.statistics;
        let over_soft = &mut self.clients.over_soft;
        self.sessions.take_dirty(|session| {
            session.check_output(&output_limits, now);
            if let Some(cut) = session.cut {
                *match cut {
                    Cut::Output => &mut *cut_count,
                    Cut::Memory => &mut *evicted_count,
                    Cut::Unauthenticated => &mut *unauthenticated_count,
                } += 1;
                let line = format!(
                    "client id={} addr={} {} and is cut off",
                    session.id.serial,
                    session.peer.address,
                    cut.name()
                );
                actions.push(Action::Log { level: Level::Warning, line });
                actions.push(Action::Abort { session: session.id });
                return;
            }
            if session.is_over_soft() {
                over_soft.push(session.id);
            }
            if !session.flow.out.is_empty() {
                let bytes = session.flow.out.replace(spare.pop().unwrap_or_default());
                *output_bytes += bytes.len() as u64;
                session.flow.flushed_bytes += bytes.len() as u64;
                *write_count += 1;
                actions.push(Action::Reply { session: session.id, bytes });
                if session.hold == Hold::Output && session.flow.backlog_bytes == 0 {
                    relieved.push(session.id);
                }
            }
            // A client that waits for changes may wait without end.
            if session.is_closing && (session.owed_count() == 0 || session.changes_wait.is_some()) {
                let session_id = session.id;
                actions.push(match session.follower.take_if(|follower| follower.wish.is_some()) {
                    Some(follower) => Action::Follow { session: session_id, follower },
                    None => Action::Close { session: session_id },
                });
            }
            let wants_pause = session.hold != Hold::None && session.flow.input.len() > limits::INPUT_BYTES_MAX;
            if wants_pause && !session.is_paused {
                session.is_paused = true;
                actions.push(Action::Pause { session: session.id });
            } else if session.is_paused && session.hold == Hold::None {
                session.is_paused = false;
                actions.push(Action::Resume { session: session.id });
            }
        });
        self.outbox.flush(self.context.moments.latest(), actions);
        let any = !relieved.is_empty();
        for id in relieved {
            self.sessions.mark_resumable(id);
        }
        any
    }

    /// True while a client is owed something: a request unanswered, or an answer not handed to the host. A host that
    /// has read the end of a client's stream keeps the connection for so long.
    pub fn owes(&self, session: SessionId) -> bool {
        let is_owed = |session: &Session| match &session.waiting {
            // A client that has gone takes nothing any more.
            Some(waiting) if waiting.is_at_rest() => false,
            None if session.changes_wait.as_ref().is_some_and(|wait| wait.is_blocking) => false,
            _ => session.owed_count() > 0 || session.hold != Hold::None || !session.flow.out.is_empty(),
        };
        self.sessions.get(session).is_some_and(is_owed)
    }

    /// True if a client may be silent for as long as it likes: it waits for what others publish or change.
    pub fn may_be_silent(&self, session: SessionId) -> bool {
        let waits = |session: &Session| session.is_subscribed() || session.changes_wait.is_some();
        self.sessions.get(session).is_some_and(waits) || self.context.monitors.contains(session)
    }

    /// Bytes of output that wait for a client, in this core and in the host; 0 if it is gone.
    pub fn output_bytes(&self, session: SessionId) -> usize {
        self.sessions.get(session).map_or(0, Session::output_bytes)
    }

    /// Hands a message to the sessions of this core that listen.
    pub(crate) fn deliver(&mut self, message: &Published) -> u64 {
        self.context.pubsub.deliver(message, &mut self.sessions, &self.context.settings.output_limits)
    }

    /// Sends what a client publishes to the other nodes.
    pub(crate) fn publish_to_peers(&mut self, question: &Question, actions: &mut Vec<Action>) {
        if let Question::Publish(message) = question {
            Self::output(&mut self.context, &mut self.sessions, &mut self.outbox, actions).publish_to_peers(message);
        }
    }
}
