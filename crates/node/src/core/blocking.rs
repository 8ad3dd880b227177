//! Sessions that wait for data: they join the wait queues of groups, are woken, try again, and give up. See
//! [`crate::blocking`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use group::ids::{GroupId, Lane, SessionId};
use group::proof::Proof;
use group::requests::{Origin, Request, RequestBody};
use group::router;
use group::wait_queues::{WaitQueueAct, WaitQueueNote};
use group::{Group, Standing};
use keyspace::{BlockingTimeout, Body, DataCommand, DatabaseKey};
use resp::{Args, Span};
use stdx::{Duration, Instant, Level};

use crate::blocking::{Meaning, Stage, WaitEnd, Waiting, dollars, last_id, lay_out, with_id};
use crate::core::Core;
use crate::core_messages::CoreMessage;
use crate::dispatch::{Groups, Next};
use crate::entry::{Reader, put_words};
use crate::event::Action;
use crate::known::Known;
use crate::reports::SourceFigures;
use crate::session::ticket::Right;
use crate::session::{Hold, Session};
use crate::transaction::Work;
use crate::undelivered::{Delivery, Orphan, takes_away};
use crate::{limits, wire};

impl Core {
    /// A request that may wait. Its session does nothing else until it has been answered.
    pub(crate) fn dispatch_waiting(
        &mut self,
        id: SessionId,
        command: &'static DataCommand,
        args: Args<'_>,
        timeout: BlockingTimeout,
        actions: &mut Vec<Action>,
    ) -> Next {
        let now = self.now.instant;
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        if session.owed_count() > 0 {
            return Next::Postponed(Hold::Answers);
        }
        let until = match timeout {
            BlockingTimeout::Millis(millis) => Some(now + Duration::from_millis(millis).min(limits::WAIT_MAX)),
            BlockingTimeout::None | BlockingTimeout::Endless => None,
        };
        let database = session.database;
        let mut keys: BTreeMap<GroupId, Vec<DatabaseKey>> = BTreeMap::new();
        command.for_each_key(args, |index, _| {
            let key = args.at(index);
            let own = keys.entry(self.context.slots.group_of(key)).or_default();
            if !own.iter().any(|(_, other)| other == key) {
                own.push((database, key.to_vec()));
            }
        });
        let mut words = Vec::new();
        put_words(&mut words, database, args);
        let unresolved = dollars(command, args);
        session.hold = Hold::Blocked;
        session.waiting = Some(Box::new(Waiting {
            ticket: session.take_ticket(),
            command,
            words,
            keys,
            claims: keyspace::claims(command, args),
            until,
            stage: Stage::Trying,
            unresolved,
            answer: None,
            nothing: None,
            awake_at: BTreeSet::new(),
            woken_at: BTreeSet::new(),
            end: None,
            try_count: 0,
        }));
        self.waits.sessions.insert(id);
        if let Some(until) = until {
            self.waits.ends.insert((until, id));
        }
        self.resolve_or_try(id, actions);
        Next::Taken
    }

    /// Asks for the next id that `$` stands for, or begins to wait if there is none.
    fn resolve_or_try(&mut self, id: SessionId, actions: &mut Vec<Action>) {
        let Some(waiting) = self.sessions.get_mut(id).and_then(|session| session.waiting.as_mut()) else { return };
        let Some(dollar) = waiting.unresolved.last().copied() else {
            self.join(id, true, actions);
            return self.try_waiting(id, actions);
        };
        waiting.stage = Stage::Resolving;
        let words = waiting.words.clone();
        let mut spans: Vec<Span> = Vec::new();
        let (database, args) = Reader::new(&words).words(&mut spans);
        // The last entry will do, also where later ones have been deleted: those never come back.
        let question: [&[u8]; 6] = [b"xrevrange", args.at(dollar.key), b"+", b"-", b"COUNT", b"1"];
        let (buffer, spans) = lay_out(question.into_iter());
        let question = keyspace::find(b"xrevrange").expect("it is declared beside XREAD");
        self.submit(id, question, database, Args::new(&buffer, &spans), actions);
    }

    /// Takes, or keeps, the place in every queue.
    fn join(&mut self, id: SessionId, is_trying: bool, actions: &mut Vec<Action>) {
        let slots = Arc::clone(&self.context.slots);
        let Some(waiting) = self.sessions.get_mut(id).and_then(|session| session.waiting.as_mut()) else { return };
        if !slots.is_even() {
            let keys: Vec<_> = std::mem::take(&mut waiting.keys).into_values().flatten().collect();
            for key in keys {
                waiting.keys.entry(slots.group_of(&key.1)).or_default().push(key);
            }
        }
        let wants_end = waiting.command.name == "xreadgroup";
        if is_trying {
            waiting.awake_at = waiting.keys.keys().copied().collect();
        }
        self.tell_lines(id, None, WaitQueueAct::Join { is_trying, wants_end }, actions);
    }

    /// Tells the groups of a waiter's keys, or some of them.
    fn tell_lines(
        &mut self,
        id: SessionId,
        only: Option<&BTreeSet<GroupId>>,
        act: WaitQueueAct,
        actions: &mut Vec<Action>,
    ) {
        let Some(waiting) = self.sessions.get(id).and_then(|session| session.waiting.as_ref()) else { return };
        let waiter = Origin { ticket: waiting.ticket, ..self.origin_of(id) };
        let claims = waiting.claims.clone().filter(|_| matches!(act, WaitQueueAct::Join { .. }));
        let notes: Vec<_> = waiting
            .keys
            .iter()
            .filter(|(group, _)| only.is_none_or(|only| only.contains(group)))
            .map(|(group, keys)| WaitQueueNote {
                waiter,
                group: *group,
                keys: keys.clone(),
                act,
                claims: claims.clone(),
            })
            .collect();
        for note in notes {
            self.send_line(note, actions);
        }
    }

    fn send_line(&mut self, note: WaitQueueNote, actions: &mut Vec<Action>) {
        let to = router::core_of(note.group, self.context.core_count);
        if to == self.context.core {
            self.take_wait_queue_note(note, actions);
        } else {
            self.outbox.push(self.context.core, to, CoreMessage::WaitQueue(note));
        }
    }

    /// A waiter's word to a group of this core, from any node or core.
    pub(crate) fn take_wait_queue_note(&mut self, note: WaitQueueNote, actions: &mut Vec<Action>) {
        let now = self.now;
        match self.group_mut(note.group).map(|group| group.standing()) {
            Some(Standing::Serving) => {
                self.with_group(note.group, actions, |group, output| group.queue(note, now, output));
            }
            Some(Standing::Follower(leader)) if note.waiter.node == self.context.node => {
                // A node that knows level 1 alone does not understand what is claimed.
                let claims = note.claims.clone().filter(|_| self.context.levels.in_force > Level::FIRST);
                let bytes = wire::encode_wait_queue_note(&WaitQueueNote { claims, ..note.clone() });
                actions.push(Action::Send { to: leader, group: note.group, lane: Lane::Log, bytes });
            }
            // It comes again with the next renewal.
            _ => {}
        }
    }

    /// Executes the request once more.
    fn try_waiting(&mut self, id: SessionId, actions: &mut Vec<Action>) {
        let Some(waiting) = self.sessions.get_mut(id).and_then(|session| session.waiting.as_mut()) else { return };
        waiting.stage = Stage::Trying;
        waiting.try_count += 1;
        let (command, words) = (waiting.command, waiting.words.clone());
        let mut spans: Vec<Span> = Vec::new();
        let (database, args) = Reader::new(&words).words(&mut spans);
        self.submit(id, command, database, args, actions);
    }

    /// Sends a command of a waiting session on its way, under the session's ticket.
    fn submit(
        &mut self,
        id: SessionId,
        command: &'static DataCommand,
        database: u16,
        args: Args<'_>,
        actions: &mut Vec<Action>,
    ) {
        let session = self.sessions.get(id).expect("it waits");
        let protocol = session.protocol();
        let tracks = session.tracks() && matches!(command.body, Body::Query(_));
        let ticket = session.waiting.as_ref().expect("it waits").ticket;
        let mut words = Vec::new();
        put_words(&mut words, database, args);
        if let Groups::One(group) = self.groups_of(command, args) {
            let answerable = match self.check_quorum(group) {
                Ok(answerable) => answerable,
                Err(refusal) => return self.sessions.refuse(id, ticket, refusal.text()),
            };
            let body = match command.body {
                Body::Query(_) => RequestBody::Read(words),
                Body::Mutate(_) | Body::Container => RequestBody::Write(words),
            };
            if matches!(command.body, Body::Mutate(_))
                && let Err(refusal) = self.check_voters(id, group)
            {
                return self.sessions.refuse(id, ticket, refusal.text());
            }
            if let Some(session) = self.sessions.get_mut(id) {
                session.set_groups(ticket, std::iter::once(group));
            }
            let is_timed = self.wants_time(Known::Data(command), args);
            let origin = Origin { ticket, tracks, is_timed, ..self.origin_of(id) };
            self.send_request(Request::new(origin, group, protocol, body), answerable, actions);
            return;
        }
        let origin = Origin { ticket, tracks, ..self.origin_of(id) };
        let mut work = Work { commands: vec![words], ..Work::new(origin, protocol, self.now.instant) };
        self.add_keys(&mut work, command, database, args);
        self.begin_work(work, actions);
    }

    /// A group says that there may be something for a waiter.
    pub(crate) fn woken(&mut self, id: SessionId, ticket: u64, group: GroupId, actions: &mut Vec<Action>) {
        let waiting = self.sessions.get_mut(id).and_then(|session| session.waiting.as_mut());
        let Some(waiting) = waiting.filter(|waiting| waiting.ticket == ticket) else {
            // It has left, and the group will hear of it.
            return;
        };
        if waiting.stage == Stage::Standing {
            waiting.awake_at.insert(group);
            self.try_waiting(id, actions);
        } else {
            waiting.woken_at.insert(group);
        }
    }

    /// Goes on with waiters after their tries have been answered.
    pub(crate) fn settle_waiting(&mut self, actions: &mut Vec<Action>) -> bool {
        let tried = self.sessions.take_tried();
        let any = !tried.is_empty();
        for id in tried {
            self.settle(id, actions);
        }
        any
    }

    fn settle(&mut self, id: SessionId, actions: &mut Vec<Action>) {
        let now = self.now.instant;
        let Some(waiting) = self.sessions.get_mut(id).and_then(|session| session.waiting.as_mut()) else { return };
        let Some((proof, answer)) = waiting.answer.take() else { return };
        if waiting.stage == Stage::Resolving {
            if answer.first() == Some(&b'-') {
                return self.finish_waiting(id, proof, &answer, actions);
            }
            let dollar = waiting.unresolved.pop().expect("its id was asked for");
            waiting.words = with_id(&waiting.words, dollar.word, last_id(&answer));
            return self.resolve_or_try(id, actions);
        }
        match (waiting.meaning_of(&answer), proof.observed()) {
            (Meaning::Nothing, Some(observed)) => waiting.nothing = Some(observed),
            (Meaning::Nothing | Meaning::Answer, _) => return self.finish_waiting(id, proof, &answer, actions),
        }
        waiting.stage = Stage::Standing;
        let (end, until) = (waiting.end, waiting.until);
        self.sessions.release_news(id, &self.context.settings.output_limits);
        if let Some(end) = end {
            return self.end_waiting(id, end, actions);
        }
        if until.is_some_and(|until| until <= now) {
            return self.end_waiting(id, WaitEnd::Timeout, actions);
        }
        let Some(waiting) = self.sessions.get_mut(id).and_then(|session| session.waiting.as_mut()) else { return };
        let tried_at = std::mem::take(&mut waiting.awake_at);
        let woken_at = std::mem::take(&mut waiting.woken_at);
        self.tell_lines(id, Some(&tried_at), WaitQueueAct::Tried, actions);
        for group in woken_at {
            let Some(session) = self.sessions.get_mut(id) else { return };
            let Some(waiting) = &mut session.waiting else { return };
            waiting.awake_at.insert(group);
        }
        let is_woken = self
            .sessions
            .get(id)
            .and_then(|session| session.waiting.as_ref())
            .is_some_and(|waiting| waiting.stage == Stage::Standing && !waiting.awake_at.is_empty());
        if is_woken {
            self.try_waiting(id, actions);
        }
    }

    /// Ends a wait from outside: now, or when the try under way has found nothing.
    pub(crate) fn end_waiting(&mut self, id: SessionId, end: WaitEnd, actions: &mut Vec<Action>) {
        let Some(waiting) = self.sessions.get_mut(id).and_then(|session| session.waiting.as_mut()) else { return };
        if waiting.stage != Stage::Standing {
            waiting.end.get_or_insert(end);
            return;
        }
        let nothing = waiting.nothing.expect("what waits has found nothing");
        let mut writer = resp::Writer::new(self.sessions.get(id).expect("just seen").protocol());
        let proof = match end {
            WaitEnd::Timeout => {
                writer.null_array();
                nothing.into()
            }
            WaitEnd::Error => {
                writer.error(WaitEnd::ERROR);
                Proof::Refused
            }
            WaitEnd::Follows => {
                writer.error(WaitEnd::FOLLOWS);
                Proof::Refused
            }
        };
        self.finish_waiting(id, proof, writer.bytes(), actions);
    }

    fn finish_waiting(&mut self, id: SessionId, proof: impl Into<Right>, reply: &[u8], actions: &mut Vec<Action>) {
        self.tell_lines(id, None, WaitQueueAct::Leave, actions);
        let Some(waiting) = self.stop_waiting(id) else { return };
        let Some(start) = self.sessions.get(id).map(Session::put_out_bytes) else { return };
        self.sessions.reply_proven(id, waiting.ticket, proof, reply);
        // With CLIENT REPLY OFF nobody wants to see it.
        if takes_away(waiting.command.name)
            && let is_kept = self.sessions.is_kept(id, waiting.ticket)
            && let Some(session) = self.sessions.get(id).filter(|session| is_kept || session.put_out_bytes() > start)
        {
            let orphan = Orphan::new(waiting.command.name, waiting.words, session.protocol());
            let (ticket, reply) = (waiting.ticket, reply.to_vec());
            // A reply that is kept has not been put out, whatever else has.
            let start = if is_kept { u64::MAX } else { start };
            self.waits.deliveries.insert(id, Delivery { start, orphan, ticket, reply });
        }
        self.sessions.release_news(id, &self.context.settings.output_limits);
        self.sessions.mark_resumable(id);
    }

    fn stop_waiting(&mut self, id: SessionId) -> Option<Box<Waiting>> {
        let session = self.sessions.get_mut(id)?;
        let waiting = session.waiting.take()?;
        session.hold = Hold::None;
        self.waits.sessions.remove(&id);
        if let Some(until) = waiting.until {
            self.waits.ends.remove(&(until, id));
        }
        Some(waiting)
    }

    /// A session is about to be closed.
    pub(crate) fn give_up_waiting(&mut self, id: SessionId, actions: &mut Vec<Action>) {
        self.tell_lines(id, None, WaitQueueAct::Leave, actions);
        self.stop_waiting(id);
    }

    /// CLIENT UNBLOCK. True if that client waits.
    pub(crate) fn unblock(&mut self, serial: u64, end: WaitEnd, actions: &mut Vec<Action>) -> bool {
        let id = self.waits.sessions.iter().find(|id| id.serial == serial).copied();
        if let Some(id) = id {
            self.end_waiting(id, end, actions);
        }
        id.is_some()
    }

    /// This node follows a Redis from now on, which is doing so, or none any more.
    pub(crate) fn hear_of_source(&mut self, source: Option<Arc<SourceFigures>>, actions: &mut Vec<Action>) {
        let begins = source.is_some() && self.context.host.source.is_none();
        self.context.host.source = source;
        if begins {
            let waits = |id: &SessionId| {
                let waiting = self.sessions.get(*id).and_then(|session| session.waiting.as_ref());
                waiting.is_some_and(|waiting| matches!(waiting.command.body, Body::Mutate(_)))
            };
            let ended: Vec<_> = self.waits.sessions.iter().copied().filter(waits).collect();
            for id in ended {
                self.end_waiting(id, WaitEnd::Follows, actions);
            }
        }
        // What was taken for a client, and may have to go back, would be refused from now on.
        let owes = begins && !(self.waits.deliveries.is_empty() && self.waits.orphans.is_empty());
        actions.push(Action::SourceHeard { owes });
    }

    /// Number of sessions that wait for data, or for the end of CLIENT PAUSE.
    pub(crate) fn waiting_count(&self) -> usize {
        let paused_count = match self.context.pause {
            Some(_) => self.sessions.iter().filter(|session| session.hold == Hold::Paused).count(),
            None => 0,
        };
        // A waiter that is still trying may not be in the queue yet, and may find something.
        let is_at_rest = |id: &&SessionId| {
            let session = self.sessions.get(**id);
            session.and_then(|session| session.waiting.as_ref()).is_some_and(|waiting| waiting.is_at_rest())
        };
        paused_count + self.waits.sessions.iter().filter(is_at_rest).count()
    }

    /// Waits that end at some time, keys that are waited for, and those of them that consumers of groups wait for.
    pub(crate) fn waits_counted(&self) -> (usize, usize, usize) {
        let (mut keys, mut of_groups) = (BTreeSet::new(), BTreeSet::new());
        for waiting in self.waits.sessions.iter().filter_map(|id| self.sessions.get(*id)?.waiting.as_ref()) {
            keys.extend(waiting.keys.values().flatten());
            if waiting.command.name == "xreadgroup" {
                of_groups.extend(waiting.keys.values().flatten());
            }
        }
        (self.waits.ends.len(), keys.len(), of_groups.len())
    }

    /// When there is next something to claim for somebody.
    pub(crate) fn next_claim(&self) -> Option<Instant> {
        let from = self.groups.iter().flatten().filter_map(Group::claims_from).min()?;
        let ms = from.0.saturating_sub(self.now.unix.0).max(0) as u64;
        Some(self.now.instant + Duration::from_millis(ms).min(limits::WAIT_MAX))
    }

    fn wake_claimants(&mut self, actions: &mut Vec<Action>) {
        let now = self.now;
        let mut output = Self::output(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
        self.groups.iter_mut().flatten().for_each(|group| group.wake_claimants(now, &mut output));
    }

    /// When the next wait ends.
    pub(crate) fn next_wait_end(&self) -> Option<Instant> {
        self.waits.ends.first().map(|(until, _)| *until)
    }

    /// Ends waits that have timed out, and keeps the places of the others.
    pub(crate) fn pass_time_waiting(&mut self, actions: &mut Vec<Action>) {
        let now = self.now.instant;
        while let Some((until, id)) = self.waits.ends.first().copied()
            && until <= now
        {
            self.waits.ends.pop_first();
            self.end_waiting(id, WaitEnd::Timeout, actions);
        }
        self.wake_claimants(actions);
        let has_moved = std::mem::take(&mut self.waits.must_stand_anew);
        if !has_moved && now.since(self.waits.renewed) < group::limits::LINE_RENEWAL_INTERVAL {
            return;
        }
        self.waits.renewed = now;
        self.forget_silent_waiters(actions);
        // A queue that only this node can ever keep needs no care.
        if !has_moved && self.groups.iter().all(|group| group.as_ref().is_some_and(Group::can_read)) {
            return;
        }
        for id in self.waits.sessions.iter().copied().collect::<Vec<_>>() {
            let is_standing = self
                .sessions
                .get(id)
                .and_then(|session| session.waiting.as_ref())
                .is_some_and(|waiting| waiting.stage == Stage::Standing);
            if is_standing {
                self.join(id, false, actions);
            }
        }
    }

    fn forget_silent_waiters(&mut self, actions: &mut Vec<Action>) {
        let now = self.now;
        let mut output = Self::output(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
        for group in self.groups.iter_mut().flatten() {
            group.forget_silent_waiters(now, &mut output);
        }
    }
}
