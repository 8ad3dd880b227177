//! Elements that were taken for a client and never sent go back. See [`crate::undelivered`].

use group::ids::{Level, SessionId};
use group::requests::{Origin, Request, RequestBody};
use resp::Span;
use stdx::Instant;

use crate::core::Core;
use crate::dispatch::Groups;
use crate::entry::Reader;
use crate::event::Action;
use crate::limits;
use crate::undelivered::{Delivery, Orphan, may_be_repeated, request_to_return, takes_away};

impl Core {
    /// Output that the host has handed to the system needs no care any more.
    pub(crate) fn forget_delivered(&mut self) {
        let sessions = &self.sessions;
        self.waits.deliveries.retain(|id, delivery| {
            sessions.get(*id).is_some_and(|session| {
                let handed = session.flow.flushed_bytes.saturating_sub(session.flow.backlog_bytes as u64);
                handed <= delivery.start
            })
        });
    }

    /// A session is about to be closed, and the system has not got so many bytes of what was handed to the host.
    pub(crate) fn take_back(&mut self, id: SessionId, unsent_bytes: u64, actions: &mut Vec<Action>) {
        let Some(session) = self.sessions.get(id) else { return };
        let handed = session.flow.flushed_bytes.saturating_sub(unsent_bytes);
        if let Some(Delivery { orphan, ticket, reply, .. }) =
            self.waits.deliveries.remove(&id).filter(|delivery| handed <= delivery.start)
        {
            self.return_taken((id, ticket), orphan, &reply, actions);
        }
        let Some(session) = self.sessions.get(id) else { return };
        let protocol = session.protocol();
        if let Some((name, ticket, words)) = session.waiting.as_ref().and_then(|waiting| waiting.try_under_way())
            && takes_away(name)
        {
            self.sessions.expect_for_orphan(id, ticket, protocol);
            self.waits.orphans.insert((id, ticket), Orphan::new(name, words, protocol));
        }
    }

    /// Goes on with what clients that have gone had asked for.
    pub(crate) fn settle_orphans(&mut self, actions: &mut Vec<Action>) -> bool {
        let answers = self.sessions.take_orphans_answers();
        let any = !answers.is_empty();
        for (at, answer) in answers {
            let Some(mut orphan) = self.waits.orphans.remove(&at) else { continue };
            let now = self.now.instant;
            match orphan.returning {
                None => self.return_taken(at, orphan, &answer, actions),
                Some(_) if answer.first() != Some(&b'-') => {
                    let line = format!(
                        "client id={} was gone before it got what {} had taken: it is back",
                        at.0.serial,
                        orphan.name.to_uppercase()
                    );
                    actions.push(Action::Log { level: Level::Notice, line });
                }
                Some(since) if may_be_repeated(&answer) && now.since(since) < limits::RETURN_MAX => {
                    orphan.retry_at = Some(now + limits::RETURN_RETRY);
                    self.waits.orphans.insert(at, orphan);
                }
                Some(_) => {
                    let line = format!(
                        "client id={} was gone before it got what {} had taken, which cannot be put back: {}",
                        at.0.serial,
                        orphan.name.to_uppercase(),
                        String::from_utf8_lossy(&answer[1..]).trim_end()
                    );
                    actions.push(Action::Log { level: Level::Warning, line });
                }
            }
        }
        any
    }

    /// Asks once more to put back what could not be put back before.
    pub(crate) fn pass_time_for_orphans(&mut self, actions: &mut Vec<Action>) {
        if self.waits.orphans.is_empty() {
            return;
        }
        let now = self.now.instant;
        let is_due = |orphan: &&mut Orphan| orphan.retry_at.is_some_and(|at| at <= now);
        let due: Vec<_> =
            self.waits.orphans.iter_mut().filter(|(_, orphan)| is_due(orphan)).map(|(at, _)| *at).collect();
        for at in due {
            self.submit_for_orphan(at, actions);
        }
    }

    /// When that is next.
    pub(crate) fn next_orphan_wake(&self) -> Option<Instant> {
        self.waits.orphans.values().filter_map(|orphan| orphan.retry_at).min()
    }

    /// A client will not be given what was taken for it, since not every voter has that: it goes back. False if nothing
    /// was taken.
    pub(crate) fn return_kept(&mut self, id: SessionId, ticket: u64, actions: &mut Vec<Action>) -> bool {
        if self.waits.deliveries.get(&id).is_none_or(|delivery| delivery.ticket != ticket) {
            return false;
        }
        let Delivery { orphan, reply, .. } = self.waits.deliveries.remove(&id).expect("just seen");
        self.return_taken((id, ticket), orphan, &reply, actions);
        true
    }

    fn return_taken(&mut self, at: (SessionId, u64), mut orphan: Orphan, reply: &[u8], actions: &mut Vec<Action>) {
        let Some(words) = request_to_return(&orphan.words, reply) else { return };
        orphan.words = words;
        orphan.returning = Some(self.now.instant);
        self.waits.orphans.insert(at, orphan);
        self.submit_for_orphan(at, actions);
    }

    fn submit_for_orphan(&mut self, at: (SessionId, u64), actions: &mut Vec<Action>) {
        let (id, ticket) = at;
        let Some(orphan) = self.waits.orphans.get_mut(&at) else { return };
        let (words, protocol) = (orphan.words.clone(), orphan.protocol);
        let mut spans: Vec<Span> = Vec::new();
        let (_, args) = Reader::new(&words).words(&mut spans);
        let command = keyspace::resolve(args).expect("LPUSH, RPUSH or ZADD");
        let Groups::One(group) = self.groups_of(command, args) else { unreachable!("it names one key") };
        let answerable = self.check_quorum(group).ok();
        let now = self.now.instant;
        let orphan = self.waits.orphans.get_mut(&at).expect("just seen");
        orphan.retry_at = answerable.is_none().then_some(now + limits::RETURN_RETRY);
        let Some(answerable) = answerable else { return };
        self.sessions.expect_for_orphan(id, ticket, protocol);
        let origin = Origin { ticket, ..self.origin_of(id) };
        self.send_request(Request::new(origin, group, protocol, RequestBody::Write(words)), answerable, actions);
    }
}
