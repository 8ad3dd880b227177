//! What a core does for client-side caches; what it knows of them is in [`crate::tracking`].

use std::collections::BTreeMap;
use std::sync::Arc;

use keyspace::{Class, Classes, DataCommand};
use resp::{Args, Span};

use crate::core::{Context, Core};
use crate::entry::Reader;
use crate::event::{CoreId, GroupId, SessionId};
use crate::letter::{Mail, Origin, Request, RequestBody};
use crate::limits;
use crate::outlet::Outlet;
use crate::router;
use crate::tracking::{Change, News, Presence, Redirect, Tracker};

impl Tracker {
    /// Remembers that a session has read the keys of a command that only reads.
    pub(crate) fn remember_command(&mut self, core: CoreId, session: SessionId, command: &DataCommand, args: Args<'_>) {
        if command.has(command::Flag::Readonly) {
            command.for_each_key(args, |index, _| self.remember(core, session, args.at(index)));
        }
    }

    /// The same for all commands of a transaction, laid out by `entry::put_exec`.
    pub(crate) fn remember_exec(&mut self, core: CoreId, session: SessionId, packed: &[u8]) {
        let mut spans: Vec<Span> = Vec::new();
        let exec = Reader::new(packed).exec(resp::Protocol::Resp2, &mut spans);
        exec.for_each(&mut spans, |_, args| {
            let command = keyspace::resolve(args).expect("checked when it was queued");
            self.remember_command(core, session, command, args);
        });
    }
}

impl Outlet<'_> {
    /// A script of this session has read these keys, which live here.
    pub(crate) fn remember_reads(&mut self, origin: &Origin, keys: &[Vec<u8>]) {
        keys.iter().for_each(|key| self.context.tracker.remember(origin.core, origin.session, key));
    }

    /// A key has changed, by the hand of the session with this number or of none.
    pub(crate) fn changed(&mut self, key: &[u8], by: Option<u64>) {
        let shared = self.tell_readers(key, by);
        if self.context.tracker.hearing_cores().next().is_some() {
            let key = shared.unwrap_or_else(|| key.into());
            self.context.tracker.changed.push((key, by));
        }
    }

    /// Tells those who have read a key that it is no longer as it was.
    fn tell_readers(&mut self, key: &[u8], by: Option<u64>) -> Option<Arc<[u8]>> {
        let (key, readers) = self.context.tracker.take_readers(key)?;
        for (core, session) in readers {
            let news = News::Keys(vec![Arc::clone(&key)]);
            self.mail(core, Mail::Invalidate { session, news, by });
        }
        Some(key)
    }

    /// All keys of a database are gone, in this group. Every group tells of it; since they are flushed under locks on
    /// all of them, the first one's word is enough for the clients.
    pub(crate) fn flushed(&mut self, group: GroupId) {
        self.context.tracker.forget_readers();
        if group == GroupId(0) {
            self.flush_caches();
        }
    }

    /// Tells every client that tracks to forget all it has read.
    pub(crate) fn flush_caches(&mut self) {
        for core in (0..self.context.core_count).map(CoreId) {
            self.mail(core, Mail::FlushCaches);
        }
    }
}

impl Context {
    /// What the keyspaces of this core are to note.
    pub(crate) fn noted(&self) -> Classes {
        let told = self.settings.notify.noted();
        if self.tracker.is_wanted() { told.with(Class::Changed).with(Class::Expired) } else { told }
    }
}

impl Core {
    /// Another core's clients have begun to track, or have ended; or this one's.
    pub(crate) fn set_presence(&mut self, core: CoreId, presence: Presence) {
        let before = self.context.tracker.set_presence(core, presence);
        if presence.gathers && before.tracks && !before.gathers {
            // It may have begun to gather before it was known here.
            self.outbox.push(self.context.core, core, Mail::FlushCaches);
        }
        let noted = self.context.noted();
        for group in self.groups_mut() {
            group.keyspace.listen(noted);
        }
    }

    /// The session with this number, if it is one of this core's.
    pub(crate) fn find_session(&self, serial: u64) -> Option<Redirect> {
        let session = self.sessions.iter().find(|session| session.id.serial == serial)?;
        Some(Redirect { core: self.context.core, session: session.id })
    }

    /// Tells a session of this core what is no longer as it has read it.
    pub(crate) fn invalidate(&mut self, id: SessionId, news: News, by: Option<u64>) {
        self.note_stale(id, &news);
        let Some(session) = self.sessions.get(id) else { return };
        let Some(tracking) = &session.tracking else { return };
        let is_remembered = matches!(news, News::Keys(_)) && tracking.broadcasts();
        if is_remembered || (tracking.skips_own && by == Some(id.serial)) {
            return;
        }
        self.tell(id, news);
    }

    /// Hands news to a session, or to the one that it has named instead.
    fn tell(&mut self, id: SessionId, news: News) {
        let Some(session) = self.sessions.get(id) else { return };
        match session.tracking.as_ref().and_then(|tracking| tracking.redirect) {
            Some(redirect) => {
                let mail = Mail::Redirected { session: redirect.session, news, from: (self.context.core, id) };
                self.outbox.push(self.context.core, redirect.core, mail);
            }
            None if News::can_be_told(session, false) => {
                self.sessions.push_news(id, &self.context.settings.output_limits, |writer| news.write(writer));
            }
            None => {}
        }
    }

    /// News of another session comes to one of this core.
    pub(crate) fn tell_redirected(&mut self, id: SessionId, news: &News, from: (CoreId, SessionId)) {
        let Some(session) = self.sessions.get(id).filter(|session| !session.is_closing) else {
            let mail = Mail::RedirectBroken { session: from.1, lost: id.serial };
            self.outbox.push(self.context.core, from.0, mail);
            return;
        };
        if News::can_be_told(session, true) {
            self.sessions.push_news(id, &self.context.settings.output_limits, |writer| news.write(writer));
        }
    }

    /// The session that a session of this core has named is gone.
    pub(crate) fn redirect_broken(&mut self, id: SessionId, lost: u64) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(tracking) = &mut session.tracking else { return };
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
            self.tell(session, News::Everything);
        }
    }

    /// In a cluster: a request is about to leave whose session keeps what it reads.
    pub(crate) fn remember_request(&mut self, request: &Request) {
        let Origin { core, session, .. } = request.origin;
        for_each_key_read(request, |key| self.context.tracker.remember(core, session, key));
    }

    /// A transaction over several groups has read these keys. They are still locked, so that no change comes between
    /// the reading and this.
    pub(crate) fn remember_keys(&mut self, session: SessionId, keys: Vec<Vec<u8>>) {
        let (own, core_count) = (self.context.core, self.context.core_count);
        if self.context.is_clustered {
            return keys.iter().for_each(|key| self.context.tracker.remember(own, session, key));
        }
        let mut by_core: BTreeMap<CoreId, Vec<Vec<u8>>> = BTreeMap::new();
        for key in keys {
            let group = router::group_of(&key, self.context.group_count);
            by_core.entry(router::core_of(group, core_count)).or_default().push(key);
        }
        for (core, keys) in by_core {
            self.outbox.push(own, core, Mail::Remember { session, keys });
        }
    }

    /// These keys have changed, by the hand of these.
    pub(crate) fn hear_changes(&mut self, changes: &[Change]) {
        for (key, by) in changes {
            self.context.tracker.note_changed(Arc::clone(key), *by);
            let Some((key, readers)) = self.context.tracker.take_readers(key) else { continue };
            for (core, session) in readers {
                let news = News::Keys(vec![Arc::clone(&key)]);
                self.outbox.push(self.context.core, core, Mail::Invalidate { session, news, by: *by });
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
            self.tell(session, News::Keys(keys.into_iter().collect()));
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
                self.outbox.push(own, core, Mail::Changed(Arc::clone(&changed)));
            }
        }
        let mut more = false;
        if tracker.counts().0 > 0 {
            let share = self.context.settings.tracking_key_count_max.div_ceil(usize::from(self.context.core_count));
            for nth in 0..=limits::CACHED_KEYS_FORGOTTEN_PER_TURN {
                let Some(key) = self.context.tracker.surplus(share) else { break };
                more = nth == limits::CACHED_KEYS_FORGOTTEN_PER_TURN;
                let Some((key, readers)) = self.context.tracker.take_readers(&key) else { continue };
                for (core, session) in readers {
                    let news = News::Keys(vec![Arc::clone(&key)]);
                    self.outbox.push(own, core, Mail::Invalidate { session, news, by: None });
                }
            }
        }
        if let Some(presence) = self.context.tracker.presence_to_announce(own, self.context.is_clustered) {
            self.set_presence(own, presence);
            for core in (0..self.context.core_count).map(CoreId).filter(|core| *core != own) {
                self.outbox.push(own, core, Mail::Presence(own, presence));
            }
        }
        more
    }

    /// Tells broadcasting sessions of this core what they are concerned with.
    pub(crate) fn broadcast_changes(&mut self) {
        let sessions = &self.sessions;
        let tracking_of = |id| sessions.get(id).and_then(|session| session.tracking.as_deref());
        for (session, news) in self.context.tracker.take_broadcasts(tracking_of) {
            self.note_stale(session, &news);
            self.tell(session, news);
        }
    }
}

/// The keys that a request only reads.
fn for_each_key_read(request: &Request, mut visit: impl FnMut(&[u8])) {
    let mut spans: Vec<Span> = Vec::new();
    let mut visit_command = |args: Args<'_>| {
        let command = keyspace::resolve(args).expect("checked when it was sent");
        if command.has(command::Flag::Readonly) {
            command.for_each_key(args, |index, _| visit(args.at(index)));
        }
    };
    match &request.body {
        // A read may have been given a place in the log.
        RequestBody::Read(words) | RequestBody::ReadAtOnce(words) | RequestBody::Write(words) => {
            visit_command(Reader::new(words).words(&mut spans).1);
        }
        RequestBody::Exec(packed) => {
            let exec = Reader::new(packed).exec(resp::Protocol::Resp2, &mut spans);
            exec.for_each(&mut Vec::new(), |_, args| visit_command(args));
        }
        _ => {}
    }
}
