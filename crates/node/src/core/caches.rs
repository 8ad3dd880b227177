//! Caches of clients: news of changes reaches them before the reply to the change. See [`crate::caches`].

use std::collections::BTreeMap;
use std::sync::Arc;

use group::ids::{CoreId, GroupId, SessionId};
use group::proof::Proof;
use group::requests::Author;
use group::requests::{Claim, Origin, Request};
use group::router;

use crate::caches::{Parked, for_each_key_read};
use crate::core::Core;
use crate::core_messages::CoreMessage;
use crate::event::Action;
use crate::limits;
use crate::relay::Purpose;
use crate::session::Session;
use crate::tracking::Redirect;
use crate::tracking::news::{Asked, Change, News, Presence};

impl Core {
    /// Another core's clients have begun to track, or have ended; or this one's.
    pub(crate) fn set_presence(&mut self, core: CoreId, presence: Presence) {
        let before = self.context.tracker.set_presence(core, presence);
        if presence.gathers && before.tracks && !before.gathers {
            // It may have begun to gather before it was known here.
            self.outbox.push(self.context.core, core, CoreMessage::FlushCaches);
        }
        let noted = self.context.noted();
        for group in self.groups_mut() {
            group.upkeep().listen(noted);
        }
    }

    /// The session with this number, if it is one of this core's.
    pub(crate) fn find_session(&self, serial: u64) -> Option<Redirect> {
        let session = self.sessions.iter().find(|session| session.id.serial == serial)?;
        Some(Redirect { core: self.context.core, session: session.id })
    }

    /// Tells a session of this core what is no longer as it has read it.
    pub(crate) fn invalidate(&mut self, id: SessionId, news: News, by: Option<Author>) {
        let asked = by.and_then(|by| self.request_of(by));
        self.invalidate_asked(id, news, asked);
    }

    fn invalidate_asked(&mut self, id: SessionId, news: News, asked: Option<Asked>) {
        self.note_stale(id, &news);
        let Some(session) = self.sessions.get(id) else { return };
        let Some(tracking) = &session.options.tracking else { return };
        let own = asked.filter(|(serial, _)| *serial == id.serial);
        let is_remembered = matches!(news, News::Keys(_)) && tracking.broadcasts();
        if is_remembered || (tracking.skips_own && own.is_some()) {
            return;
        }
        self.tell(id, news, own.map(|(_, ticket)| ticket));
    }

    /// Which request of which session of this core an author is, if it is one.
    fn request_of(&self, author: Author) -> Option<Asked> {
        let (session, ticket) = match author {
            Author::Session { serial, ticket } => return Some((serial, ticket)),
            Author::Request { core, .. } if core != self.context.core => return None,
            Author::Request { claim, .. } => match self.withheld.get(&claim) {
                Some(parked) => parked.purpose.client()?,
                None => self.relay.purpose(claim)?.client()?,
            },
            Author::Transaction(id) => self.coordinator.client(id)?,
        };
        Some((session.serial, ticket))
    }

    /// Hands news to a session, behind one of its replies if that has not left, or to the session that it has named
    /// instead.
    fn tell(&mut self, id: SessionId, news: News, behind: Option<u64>) {
        let Some(session) = self.sessions.get(id) else { return };
        match session.options.tracking.as_ref().and_then(|tracking| tracking.redirect) {
            Some(redirect) => {
                let message =
                    CoreMessage::Redirected { session: redirect.session, news, from: (self.context.core, id) };
                self.outbox.push(self.context.core, redirect.core, message);
            }
            None if session.can_be_told_news(false) => {
                let limits = &self.context.settings.output_limits;
                self.sessions.push_news(id, behind, limits, |writer| news.write(writer));
            }
            None => {}
        }
    }

    /// News of another session comes to one of this core.
    pub(crate) fn tell_redirected(&mut self, id: SessionId, news: &News, from: (CoreId, SessionId)) {
        let Some(session) = self.sessions.get(id).filter(|session| !session.is_closing) else {
            let message = CoreMessage::RedirectBroken { session: from.1, lost: id.serial };
            self.outbox.push(self.context.core, from.0, message);
            return;
        };
        if session.can_be_told_news(true) {
            self.sessions.push_news(id, None, &self.context.settings.output_limits, |writer| news.write(writer));
        }
    }

    /// The session that a session of this core has named is gone.
    pub(crate) fn redirect_broken(&mut self, id: SessionId, lost: u64) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(tracking) = &mut session.options.tracking else { return };
        tracking.is_broken = true;
        if session.protocol() == resp::Protocol::Resp3 {
            self.sessions.push(id, &self.context.settings.output_limits, |writer| {
                writer.push(2);
                writer.bulk(b"tracking-redir-broken");
                writer.integer(lost as i64);
            });
        }
    }

    /// Nothing is as it was, or nobody knows whether it is.
    pub(crate) fn flush_caches(&mut self) {
        let sessions: Vec<_> = self.context.tracker.sessions().collect();
        for session in sessions {
            self.note_stale(session, &News::Everything);
            self.tell(session, News::Everything, None);
        }
    }

    /// Another core wants to know when what it has told before this is in the output of this one's sessions, and of
    /// those that these have named. It is when this turn is over, and so the answer leaves with it.
    pub(crate) fn hear(&mut self, home: CoreId, round: u64, left: Option<Vec<CoreId>>) {
        let own = self.context.core;
        let mut left = left.unwrap_or_else(|| self.context.tracker.redirect_cores(own).into_iter().collect());
        match left.pop() {
            Some(next) => self.outbox.push(own, next, CoreMessage::Hear { home, round, left: Some(left) }),
            None => self.outbox.push(own, home, CoreMessage::Heard { round }),
        }
    }

    /// A core has heard.
    pub(crate) fn take_heard(&mut self, round: u64, actions: &mut Vec<Action>) {
        for answer in self.context.invalidation_barrier.heard(round) {
            Self::output(&mut self.context, &mut self.sessions, &mut self.outbox, actions).release(answer);
        }
    }

    /// In a cluster: the answer to a change has come, perhaps before the replica here has applied it. It waits until
    /// caches of this node have been told.
    pub(crate) fn park(&mut self, claim: Claim, purpose: Purpose, proof: Proof, bytes: &[u8]) {
        let (own, now) = (self.context.core, self.now.instant);
        self.withheld.insert(claim, Parked { purpose, proof, bytes: bytes.to_vec(), since: now, is_late: false });
        let core = router::core_of(claim.group, self.context.core_count);
        self.outbox.push(own, core, CoreMessage::Tell { gateway: own, claim });
    }

    /// A gateway of this node waits for the replica here to apply its request.
    pub(crate) fn tell_gateway(&mut self, gateway: CoreId, claim: Claim, actions: &mut Vec<Action>) {
        self.with_group(claim.group, actions, |group, output| group.tell_when_applied(gateway, claim, output));
    }

    /// What was parked has been told.
    pub(crate) fn told(&mut self, claim: Claim, actions: &mut Vec<Action>) {
        if let Some(Parked { purpose, proof, bytes, .. }) = self.withheld.remove(&claim) {
            self.take_answer_of_group(claim, purpose, proof, &bytes, actions);
        }
    }

    /// A leader of a group is known here, or none is.
    pub(crate) fn note_touch(&mut self, group: GroupId, is_led: bool) {
        if !self.context.is_clustered {
            return;
        }
        if self.context.leaderless.note(group, is_led, self.now.instant) {
            self.flush_caches();
        }
    }

    /// The replica here is too far behind to be waited for: caches are emptied instead.
    pub(crate) fn pass_time_caching(&mut self, actions: &mut Vec<Action>) {
        // Nobody here learns what changes in a group that others may lead.
        if self.context.leaderless.must_tell_caches(self.now.instant) {
            self.flush_caches();
        }
        let now = self.now.instant;
        let is_overdue = |parked: &Parked| !parked.is_late && now.since(parked.since) >= limits::UNTOLD_PATIENCE;
        let overdue: Vec<_> = self.withheld.iter_mut().filter(|(_, parked)| is_overdue(parked)).collect();
        if overdue.is_empty() {
            return;
        }
        let claims: Vec<Claim> = overdue
            .into_iter()
            .map(|(claim, parked)| {
                parked.is_late = true;
                *claim
            })
            .collect();
        let gateway = self.context.core;
        let mut output = Self::output(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
        output.flush_caches();
        for claim in claims {
            output.settle_told(gateway, claim);
        }
    }

    /// In a cluster: a request is about to leave, and its session keeps what it reads.
    pub(crate) fn remember_request(&mut self, request: &Request) {
        let Origin { core, session, ticket, .. } = request.origin;
        if self.context.routes[request.group.0 as usize].is_here {
            return for_each_key_read(request, |key| self.context.tracker.remember(core, session, key));
        }
        // Nobody here hears when they change, so the client is told behind its reply not to keep them.
        let mut keys = Vec::new();
        for_each_key_read(request, |key| keys.push(Arc::from(key)));
        self.forbid_to_keep(session, keys, ticket);
    }

    /// A client is told behind a reply that it cannot keep what it reads there.
    fn forbid_to_keep(&mut self, id: SessionId, keys: Vec<Arc<[u8]>>, ticket: u64) {
        let broadcasts =
            |session: &Session| session.options.tracking.as_ref().is_some_and(|tracking| tracking.broadcasts());
        // A client that is told of all changes asks for no single key.
        if !keys.is_empty() && self.sessions.get(id).is_some_and(|session| !broadcasts(session)) {
            self.tell(id, News::Keys(keys), Some(ticket));
        }
    }

    /// Makes those that are told of all changes forget what they have read.
    pub(crate) fn flush_broadcasters(&mut self) {
        let tracking = |id: &SessionId| self.sessions.get(*id)?.options.tracking.as_ref();
        let all = self.context.tracker.sessions();
        let broadcasters: Vec<_> = all.filter(|id| tracking(id).is_some_and(|mode| mode.broadcasts())).collect();
        for session in broadcasters {
            self.note_stale(session, &News::Everything);
            self.tell(session, News::Everything, None);
        }
    }

    /// A transaction over several groups has read these keys. They are still locked, so that no change comes between
    /// the reading and this.
    pub(crate) fn remember_keys(&mut self, session: SessionId, keys: Vec<Vec<u8>>) {
        let (own, core_count) = (self.context.core, self.context.core_count);
        if self.context.is_clustered {
            let is_here = |key: &Vec<u8>| {
                let group = self.context.slots.group_of(key);
                self.context.routes[group.0 as usize].is_here
            };
            let (here, elsewhere): (Vec<_>, Vec<_>) = keys.into_iter().partition(is_here);
            here.iter().for_each(|key| self.context.tracker.remember(own, session, key));
            if let Some(ticket) = self.sessions.get(session).and_then(Session::latest_ticket) {
                self.forbid_to_keep(session, elsewhere.into_iter().map(Arc::from).collect(), ticket);
            }
            return;
        }
        let mut by_core: BTreeMap<CoreId, Vec<Vec<u8>>> = BTreeMap::new();
        for key in keys {
            let group = self.context.slots.group_of(&key);
            by_core.entry(router::core_of(group, core_count)).or_default().push(key);
        }
        for (core, keys) in by_core {
            self.outbox.push(own, core, CoreMessage::Remember { session, keys });
        }
    }

    /// These keys have changed, by the hand of these.
    pub(crate) fn hear_changes(&mut self, changes: &[Change]) {
        for (key, by) in changes {
            let asked = by.and_then(|by| self.request_of(by));
            self.context.tracker.note_changed(Arc::clone(key), asked);
            let Some((key, readers)) = self.context.tracker.take_readers(key) else { continue };
            for (core, session) in readers {
                let news = News::Keys(vec![Arc::clone(&key)]);
                if core == self.context.core {
                    self.invalidate_asked(session, news, asked);
                } else {
                    self.outbox.push(self.context.core, core, CoreMessage::Invalidate { session, news, by: *by });
                }
            }
        }
    }

    /// A reply that is on its way from a group may hold what has changed since: its client is told again behind it.
    fn note_stale(&mut self, id: SessionId, news: &News) {
        if !self.context.is_clustered || self.sessions.get(id).is_none_or(|session| session.owed_count() == 0) {
            return;
        }
        let stale = &mut self.stale;
        for request in self.relay.requests_of(id) {
            for_each_key_read(request, |key| {
                let known = match news {
                    News::Everything => Some(key.into()),
                    News::Keys(keys) => keys.iter().find(|changed| ***changed == *key).cloned(),
                };
                if let Some(key) = known {
                    stale.entry((id, request.origin.ticket)).or_default().insert(key);
                }
            });
        }
    }

    /// A reply has been handed to its session: what has overtaken it is told again.
    pub(crate) fn tell_stale(&mut self, session: SessionId, ticket: u64) {
        if let Some(keys) = self.stale.remove(&(session, ticket)) {
            self.tell(session, News::Keys(keys.into_iter().collect()), None);
        }
    }

    /// The end of a turn: what has changed goes to those who have not asked for single keys, and what is remembered
    /// beyond its bound is forgotten. True if there is more of that.
    pub(crate) fn turn_caches(&mut self) -> bool {
        let own = self.context.core;
        let tracker = &mut self.context.tracker;
        let changed = std::mem::take(&mut tracker.changed);
        if !changed.is_empty() {
            let changed = Arc::new(changed);
            for core in tracker.hearing_cores() {
                self.outbox.push(own, core, CoreMessage::Changed(Arc::clone(&changed)));
            }
        }
        if let Some((round, cores)) = self.context.invalidation_barrier.begin_round() {
            for core in cores {
                self.outbox.push(own, core, CoreMessage::Hear { home: own, round, left: None });
            }
        }
        let tracker = &mut self.context.tracker;
        let mut more = false;
        if tracker.counts().0 > 0 {
            let share = self.context.settings.tracking_key_count_max.div_ceil(usize::from(self.context.core_count));
            for nth in 0..=limits::CACHED_KEYS_FORGOTTEN_PER_TURN {
                let Some(key) = self.context.tracker.surplus(share) else { break };
                more = nth == limits::CACHED_KEYS_FORGOTTEN_PER_TURN;
                let Some((key, readers)) = self.context.tracker.take_readers(&key) else { continue };
                for (core, session) in readers {
                    let news = News::Keys(vec![Arc::clone(&key)]);
                    self.outbox.push(own, core, CoreMessage::Invalidate { session, news, by: None });
                }
            }
        }
        if let Some(presence) = self.context.tracker.presence_to_announce(own, self.context.is_clustered) {
            self.set_presence(own, presence);
            for core in (0..self.context.core_count).map(CoreId).filter(|core| *core != own) {
                self.outbox.push(own, core, CoreMessage::Presence(own, presence));
            }
        }
        more
    }

    /// Tells broadcasting sessions of this core what they are concerned with.
    pub(crate) fn broadcast_changes(&mut self) {
        let sessions = &self.sessions;
        let tracking_of = |id| sessions.get(id).and_then(|session| session.options.tracking.as_deref());
        for (session, news, behind) in self.context.tracker.take_broadcasts(tracking_of) {
            self.note_stale(session, &news);
            self.tell(session, news, behind);
        }
    }
}
