//! From bytes to requests, and from requests to where they are carried out.

mod check;
mod replica_reads;

use std::sync::Arc;

use check::{is_exec, is_http, passes_multi};
use command::{Flag, Join, Refusal, Span as KeySpan};
use group::Group;
use group::ids::{GroupId, Room, SessionId};
use group::refusals::LOADING;
use group::requests::{Origin, PlainKind, PlainRequest, Request, RequestBody};
use group::router;
use keyspace::{BlockingTimeout, Body, Class, DataCommand, Moment, PREFETCH_MAX, PrefetchTarget};
use resp::{Args, Glance, Limits, Parsed, Writer};

use crate::acl::Where;
use crate::catalog::container_of;
use crate::commands::question::Question;
use crate::commands::{self, ControlCommand, Record};
use crate::context::Context;
use crate::core::Core;
use crate::core_messages::CoreMessage;
use crate::entry::put_words;
use crate::event::Action;
use crate::known::Known;
use crate::lookup::lookup;
use crate::observe::other_databases;
use crate::quorum::Answerable;
use crate::relay::Purpose;
use crate::request_ids::{Named, is_naming};
use crate::session::queued::Queued;
use crate::session::ticket::OwnTicket;
use crate::session::{Hold, NotedRead, write_at_once};
use crate::stats::calls::Asked;
use crate::stats::hot::Load;
use crate::transaction::{Progress, Work};
use crate::{limits, masters, redirect};

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It has been answered or will be.
    Taken,
    /// It has not been looked at and comes again when the session goes on.
    Postponed(Hold),
}

/// Groups that a request's keys live in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Groups {
    None,
    One(GroupId),
    Several,
}

impl Groups {
    #[inline]
    pub(crate) fn with(self, group: GroupId) -> Self {
        match self {
            Self::None => Self::One(group),
            Self::One(other) if other == group => self,
            Self::One(_) | Self::Several => Self::Several,
        }
    }
}

impl Core {
    /// A client spoke.
    pub(crate) fn receive(&mut self, id: SessionId, bytes: &[u8], actions: &mut Vec<Action>) {
        let now = self.now;
        self.context.statistics.input_bytes += bytes.len() as u64;
        self.context.statistics.read_count += 1;
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.heard = now;
        if session.is_closing {
            return;
        }
        if session.flow.input.is_empty() && session.hold == Hold::None {
            let consumed = self.run(id, bytes, actions);
            if let Some(session) = self.sessions.get_mut(id)
                && !session.is_closing
            {
                session.keep_input(&bytes[consumed..]);
            }
        } else {
            session.keep_input(bytes);
            if session.hold == Hold::None {
                self.run_kept(id, actions);
            } else if session.flow.input.len() > limits::INPUT_BYTES_MAX {
                self.sessions.mark(id);
            }
        }
    }

    /// What a session waited for has come.
    pub(crate) fn resume_session(&mut self, id: SessionId, actions: &mut Vec<Action>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.hold == Hold::Answers && session.owed_count() > 0 {
            return; // it was told twice to go on, and waits for something else since
        }
        session.hold = Hold::None;
        self.sessions.mark(id);
        self.run_kept(id, actions);
    }

    fn run_kept(&mut self, id: SessionId, actions: &mut Vec<Action>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.flow.input.is_empty() {
            return;
        }
        let mut input = std::mem::take(&mut session.flow.input);
        let consumed = self.run(id, &input, actions);
        if let Some(session) = self.sessions.get_mut(id)
            && !session.is_closing
        {
            input.drain(..consumed);
            if input.is_empty() && input.capacity() > KEPT_CAPACITY_MAX {
                input = Vec::new();
            }
            session.flow.input = input;
        }
    }

    /// Carries out the requests at the start of `input` as far as they have come and nothing holds them up. Answers
    /// how many bytes they took.
    fn run(&mut self, id: SessionId, input: &[u8], actions: &mut Vec<Action>) -> usize {
        self.context.timings.break_off();
        let mut spans = std::mem::take(&mut self.spans);
        let mut consumed = 0;
        let mut count = 0;
        let mut looked_up = 0;
        while let Some(session) = self.sessions.get_mut(id) {
            if session.is_closing {
                consumed = input.len();
                break;
            }
            if session.flow.out.len() + session.flow.backlog_bytes > limits::OUTPUT_BYTES_MAX {
                session.hold = Hold::Output;
                break;
            }
            if count == limits::REQUESTS_PER_RUN {
                self.sessions.mark_resumable(id);
                session_hold(&mut self.sessions, id, Hold::Turn);
                break;
            }
            let request_limits = Limits {
                authenticated: session.is_authenticated,
                bulk_bytes_max: self.context.settings.bulk_bytes_max,
                ..Limits::default()
            };
            let rest = &input[consumed..];
            if self.is_reading && consumed >= looked_up && session.multi.is_none() {
                looked_up = consumed + prefetch(&self.groups, &self.context, session.database, rest);
            }
            session.flow.request_bytes = rest.len();
            let (taken, next) = match session.flow.parser.parse(rest, &request_limits, &mut spans) {
                Ok(Parsed::Incomplete { need }) => {
                    session.flow.wanted_bytes = need;
                    break;
                }
                Ok(Parsed::Empty { consumed }) => (consumed, Next::Taken),
                Ok(Parsed::Request { consumed }) => (consumed, self.dispatch(id, Args::new(rest, &spans), actions)),
                Ok(Parsed::Inline { consumed }) => {
                    let line = session.flow.parser.line().to_vec();
                    (consumed, self.dispatch(id, Args::new(&line, &spans), actions))
                }
                Err(error) => {
                    self.protocol_error(id, &error.to_string());
                    consumed = input.len();
                    break;
                }
            };
            count += 1;
            if let Next::Postponed(hold) = next {
                session_hold(&mut self.sessions, id, hold);
                break;
            }
            consumed += taken;
            let Some(session) = self.sessions.get_mut(id) else { break };
            if session.hold != Hold::None {
                break;
            }
            // The window of a group on another core is not seen from here.
            session.flow.unanswered_bytes =
                if session.owed_count() == 0 { 0 } else { session.flow.unanswered_bytes + taken };
            if session.flow.unanswered_bytes > limits::UNANSWERED_BYTES_MAX {
                session.flow.unanswered_bytes = 0;
                session.hold = Hold::Answers;
                break;
            }
        }
        self.spans = spans;
        if let Some(session) = self.sessions.get_mut(id) {
            session.flow.request_bytes = 0;
        }
        consumed
    }

    fn protocol_error(&mut self, id: SessionId, text: &str) {
        let text = format!("ERR {text}");
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.asking = Asked::NOTHING;
        let ticket = session.take_ticket();
        session.is_closing = true;
        self.sessions.refuse(id, ticket, &text);
    }

    /// One request of a client.
    #[inline]
    fn dispatch(&mut self, id: SessionId, args: Args<'_>, actions: &mut Vec<Action>) -> Next {
        let known = match lookup(args) {
            Ok(known) => self.context.in_force(known),
            Err(_) if is_http(args) => {
                self.end_http(id, actions);
                return Next::Taken;
            }
            Err(refusal) => {
                if let Some(session) = self.sessions.get_mut(id) {
                    session.asking = Asked::NOTHING;
                    session.last_command = None;
                }
                // Whether a command exists is nobody's business before AUTH.
                let refusal = if self.is_known_to(id) { refusal } else { Refusal::NO_AUTH };
                return self.reject(id, &refusal);
            }
        };
        let asked = self.context.asked(known, args);
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        if session.options.once.is_some_and(|once| once.is_used) {
            if session.options.once.is_some_and(|once| once.holds) && session.owed_count() > 0 {
                return Next::Postponed(Hold::Answers);
            }
            session.options.end_once();
        }
        session.asking = asked;
        if self.context.timings.hot_weighs() {
            session.load = Some(Load::new(known, args));
            self.weigh_replies();
        }
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        session.last_command = Some((known, container_of(known, args)));
        if let Err(refusal) = self.check(id, known, args) {
            if is_exec(known) {
                return self.abort_exec(id, &refusal);
            }
            return self.reject(id, &refusal);
        }
        if self.context.pause.is_some() && self.must_pause(id, known, args) {
            return Next::Postponed(Hold::Paused);
        }
        if self.context.settings.keeps_site_backlog
            && let Known::Data(command) = known
            && commands::is_xread_of_changes(command.name, args)
        {
            return self.dispatch_xread_of_changes(id, args, actions);
        }
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        if session.map_version != self.context.slots.version() {
            // Slots have moved since what it is owed was sent, to where it must not be overtaken.
            if session.owed_count() > 0 {
                return Next::Postponed(Hold::Answers);
            }
            session.map_version = self.context.slots.version();
        }
        if session.multi.is_some() && !passes_multi(known) {
            return self.queue(id, known, args);
        }
        let database = session.database;
        let is_named = session.request_id.is_some();
        let mut with_replica = None;
        if session.options.reading.is_some() {
            with_replica = self.replica_group(id, known, args);
            if with_replica.is_none() && !self.leave_replica(id, known) {
                return Next::Postponed(Hold::Answers);
            }
        }
        let next = match (known.record(), with_replica) {
            (Record::Data(command), Some(group)) => self.read_at_replica(id, group, command, args),
            _ if is_named => self.dispatch_named(id, known, args, actions),
            (Record::Data(command), None) => self.dispatch_data(id, command, args, actions),
            (Record::Control(command), _) => self.dispatch_control(id, command, args, actions),
        };
        if next == Next::Taken {
            // A script is shown before what it calls.
            if self.context.monitors.is_watched() && known.script_naming().is_none() {
                self.show_command(id, database, known, args);
            }
            if let Some(session) = self.sessions.get_mut(id) {
                session.request_count += 1;
                self.context.statistics.request_count += 1;
                if is_named && !is_naming(known) {
                    session.request_id = None;
                }
                session.use_once();
                // What CLIENT CACHING says is for one command, or for one transaction.
                if let Some(tracking) = &mut session.options.tracking
                    && session.multi.is_none()
                    && session.last_command.is_none_or(|(_, container)| container != Some("client"))
                {
                    tracking.is_caching = false;
                }
            }
        }
        next
    }

    /// XREAD of what changes, which is CHANGES READ in other words.
    fn dispatch_xread_of_changes(&mut self, id: SessionId, args: Args<'_>, actions: &mut Vec<Action>) -> Next {
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        if session.multi.is_some() {
            return self.reject(id, &Refusal::new("ERR Command not allowed inside a transaction"));
        }
        let (words, spans) = commands::changes_permission();
        let stands_for = Args::new(words, &spans);
        let known = lookup(stands_for).expect("a command of ours");
        if let Err(denial) = session.user.check(known, stands_for) {
            let refusal = denial.refusal(&session.user.name);
            self.note_denial(id, denial, Where::TopLevel);
            return self.reject(id, &refusal);
        }
        let database = session.database;
        let next = self.dispatch_control(id, &commands::XREAD_CHANGES, args, actions);
        if next == Next::Taken {
            if self.context.monitors.is_watched() {
                self.show_command(id, database, known, args);
            }
            if let Some(session) = self.sessions.get_mut(id) {
                session.request_count += 1;
                self.context.statistics.request_count += 1;
                session.request_id = None;
            }
        }
        next
    }

    /// Counts the bytes of requests that have been answered by their keys.
    #[cold]
    pub(crate) fn weigh_replies(&mut self) {
        for (load, reply_bytes) in self.sessions.calls.take_weighed() {
            self.context.timings.weigh(&load, reply_bytes);
        }
    }

    /// Refuses a request without carrying it out.
    pub(crate) fn reject(&mut self, id: SessionId, refusal: &Refusal) -> Next {
        let Some(session) = self.sessions.get_mut(id) else { return Next::Taken };
        if let Some(multi) = &mut session.multi {
            multi.is_broken = true;
        }
        session.asking = session.asking.rejected();
        self.fail(id, refusal)
    }

    /// Carries out a request to the effect that it fails.
    pub(crate) fn fail(&mut self, id: SessionId, refusal: &Refusal) -> Next {
        let Some(session) = self.sessions.get_mut(id) else { return Next::Taken };
        session.request_id = None;
        session.use_once();
        let ticket = session.take_ticket();
        self.sessions.refuse(id, ticket, refusal.text());
        Next::Taken
    }

    fn queue(&mut self, id: SessionId, known: Known, args: Args<'_>) -> Next {
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        let database = session.database;
        let multi = session.multi.as_mut().expect("queueing goes on inside MULTI");
        multi.byte_count += args.byte_count();
        if multi.byte_count > limits::MULTI_BYTES_MAX {
            return self.reject(id, &Refusal::new("ERR the transaction is too large"));
        }
        let mut words = Vec::with_capacity(args.byte_count() + 5 * args.len() + 8);
        put_words(&mut words, database, args);
        multi.queue.push(Queued { command: known, words, asked: session.asking, refusal: None });
        session.asking = Asked::NOTHING;
        let ticket = session.take_own_ticket();
        self.sessions.reply_own(id, ticket, |writer| writer.simple("QUEUED"));
        Next::Taken
    }

    // ---- reads of the replica on this node --------------------------------------------------------------------------

    // ---- data -------------------------------------------------------------------------------------------------------

    #[inline]
    pub(crate) fn dispatch_data(
        &mut self,
        id: SessionId,
        command: &'static DataCommand,
        args: Args<'_>,
        actions: &mut Vec<Action>,
    ) -> Next {
        if command.has(Flag::Blocking) {
            match keyspace::blocking_timeout(command, args) {
                Ok(BlockingTimeout::None) => {}
                // Without keys there is nothing to wait for, and it will be refused.
                Ok(_) if self.groups_of(command, args) == Groups::None => {}
                Ok(timeout) => return self.dispatch_waiting(id, command, args, timeout, actions),
                Err(refusal) => return self.fail(id, &refusal),
            }
        }
        match command.span {
            KeySpan::Keys => match self.groups_of(command, args) {
                Groups::One(group) if self.context.is_moving && redirect::slot_of_keys(command, args).is_err() => {
                    self.dispatch_alone(id, group, command, args, actions)
                }
                Groups::One(group) => self.dispatch_to_group(id, group, command, args, actions),
                Groups::Several => self.dispatch_to_several(id, command, args, actions),
                // Its keys cannot be found among the words, so it will be refused: any keyspace can do that.
                Groups::None => self.dispatch_to_scratch(id, command, args),
            },
            KeySpan::Whole(_) if self.context.slots.group_count() == 1 => {
                self.dispatch_to_group(id, GroupId(0), command, args, actions)
            }
            KeySpan::Whole(Join::All) => self.dispatch_to_several(id, command, args, actions),
            KeySpan::Whole(_) => self.dispatch_whole(id, command, args, actions),
            KeySpan::Nothing => self.dispatch_to_scratch(id, command, args),
        }
    }

    /// While slots move, a command on several slots of a group may be one on several groups by the time it comes there,
    /// and then has no order with others of its client. So it goes by itself.
    fn dispatch_alone(
        &mut self,
        id: SessionId,
        group: GroupId,
        command: &'static DataCommand,
        args: Args<'_>,
        actions: &mut Vec<Action>,
    ) -> Next {
        if self.sessions.get(id).is_some_and(|session| session.owed_count() > 0) {
            return Next::Postponed(Hold::Answers);
        }
        let next = self.dispatch_to_group(id, group, command, args, actions);
        if let Some(session) = self.sessions.get_mut(id)
            && session.owed_count() > 0
            && session.hold == Hold::None
        {
            session.hold = Hold::Answers;
        }
        next
    }

    #[inline]
    pub(crate) fn groups_of(&self, command: &DataCommand, args: Args<'_>) -> Groups {
        let slots = &*self.context.slots;
        if slots.group_count() == 1 {
            return Groups::One(GroupId(0));
        }
        let mut groups = Groups::None;
        command.for_each_key(args, |index, _| groups = groups.with(slots.group_of(args.at(index))));
        if router::is_far_sort(command, args, slots) { Groups::Several } else { groups }
    }

    #[inline]
    fn dispatch_to_group(
        &mut self,
        id: SessionId,
        group: GroupId,
        command: &'static DataCommand,
        args: Args<'_>,
        actions: &mut Vec<Action>,
    ) -> Next {
        let is_write = matches!(command.body, Body::Mutate(_));
        if is_write && let Err(refusal) = self.check_voters(id, group) {
            return self.fail(id, &refusal);
        }
        let (node, core, core_count) = (self.context.node, self.context.core, self.context.core_count);
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        let (database, protocol) = (session.database, session.protocol());
        let durability = self.context.settings.durability(session.options.durability);
        if session.awaits_script_beside(group) {
            return Next::Postponed(Hold::Answers);
        }
        let is_of_core = router::core_of(group, core_count) == core;
        let place = group.0 as usize / usize::from(core_count);
        if is_of_core && !self.has_loaded && self.groups[place].is_none() {
            return self.reject(id, &Refusal::new(LOADING));
        }
        // One that is only coming into being here is led elsewhere, if at all.
        if is_of_core && let Some(local) = self.groups[place].as_mut() {
            // In a cluster what came before may have been sent on, and must not be overtaken.
            let is_first = !self.context.is_clustered || session.owed_count() == 0;
            // The group itself counts who is there, and looks whether there is room.
            let is_looked_at = self.context.settings.replicas_to_write > 0
                || self.context.host.room != Room::Enough
                || self.context.host.source.is_some();
            let is_first = is_first && !(is_write && is_looked_at);
            if is_first
                && local.serves_at_once()
                && !local.is_locked(command, args)
                && !local.is_reserved(id, command, args)
                && !local.holds_request_of(id)
            {
                if is_write {
                    if local.is_full() {
                        self.stalled.push(id);
                        return Next::Postponed(Hold::Window);
                    }
                    self.is_reading = false;
                    let ticket = session.take_ticket_for(group);
                    let is_silent = session.options.no_touch;
                    let origin = Origin { is_silent, durability, ..Origin::new(node, core, id, ticket) };
                    local.write(origin, protocol, database, args);
                    return Next::Taken;
                }
                let is_missed = local.state().keyspace().listens_to().has(Class::Miss);
                if session.owed_count() == 0 && local.can_read() && !is_missed {
                    self.read_in_turn(id, place, database, command, args);
                    return Next::Taken;
                }
                // Nor need it wait for reads of groups of other cores, but its reply takes its place behind theirs.
                let may_be_early = !self.context.is_clustered && !self.context.is_moving && !is_missed;
                if may_be_early
                    && local.can_read()
                    && !command.has(Flag::Blocking)
                    && !session.awaits_change()
                    && session.owed_count() < limits::OWED_COUNT_TO_READ_MAX
                {
                    self.read_early(id, place, database, command, args);
                    return Next::Taken;
                }
            }
        }
        if self.context.is_clustered && self.relay.is_full(group) {
            self.stalled.push(id);
            return Next::Postponed(Hold::Window);
        }
        if is_write && !self.reads_have_their_places(id, group) {
            return Next::Postponed(Hold::Answers);
        }
        let answerable = match self.check_quorum_to_read(id, group, Known::Data(command), args) {
            Ok(answerable) => answerable,
            Err(refusal) => return self.fail(id, &refusal),
        };
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        if !is_write && session.owed_count() >= limits::OWED_COUNT_TO_READ_MAX {
            return Next::Postponed(Hold::Answers);
        }
        let awaits_change = session.awaits_change();
        let tracks = !is_write && session.tracks();
        let is_silent = session.options.no_touch;
        let writes_for_source = session.options.writes_for_site;
        let ticket = if is_write { session.take_ticket_for(group) } else { session.take_ticket_to_read() };
        let is_timed = self.wants_time(Known::Data(command), args);
        let kind = match (is_write, awaits_change) {
            (true, _) => PlainKind::Write,
            (false, true) => PlainKind::Read,
            (false, false) => PlainKind::ReadAtOnce,
        };
        if !is_of_core
            && !self.context.is_clustered
            && !writes_for_source
            && args.byte_count() <= limits::PLAIN_REQUEST_BYTES_MAX
        {
            let (session, words) = (id, 0..0);
            let plain =
                PlainRequest { session, ticket, words, group, kind, protocol, tracks, is_silent, is_timed, durability };
            self.outbox.push_plain(router::core_of(group, core_count), plain, database, args);
            return Next::Taken;
        }
        let mut words = Vec::with_capacity(args.byte_count() + 5 * args.len() + 8);
        put_words(&mut words, database, args);
        let body = kind.body(words);
        let origin = Origin::new(node, core, id, ticket);
        let origin = Origin { tracks, is_silent, is_timed, durability, writes_for_source, ..origin };
        let number = self.send_request(Request::new(origin, group, protocol, body), answerable, actions);
        if !is_write && let Some(number) = number {
            self.note_read(id, NotedRead { group, number, tells_use: keyspace::tells_use(command) });
        }
        Next::Taken
    }

    /// Answers a read of a group of this core in its turn: its session is owed nothing.
    #[inline]
    fn read_in_turn(
        &mut self,
        id: SessionId,
        place: usize,
        database: u16,
        command: &'static DataCommand,
        args: Args<'_>,
    ) {
        let local = self.groups[place].as_mut().expect("it was just looked at");
        let moment = local.read_moment(self.now);
        self.is_reading = true;
        let watch = self.context.timings.start(Known::Data(command), args);
        let (session, calls) = self.sessions.get_to_count(id).expect("its request is being looked at");
        let is_silent = session.options.no_touch;
        write_at_once(session, calls, |writer| {
            local.state().keyspace().set_silent(is_silent);
            local.state().keyspace().query(database, command, args, moment, writer);
            local.state().keyspace().set_silent(false);
        });
        if session.tracks() {
            self.context.tracker.remember_command(self.context.core, id, command, args);
        }
        if let Some(watch) = watch {
            self.context.timings.stop(watch, args);
            self.context.note_slow(session);
        }
        self.sessions.mark(id);
    }

    /// Answers a read of a group of this core before reads of other groups that its session sent earlier. The reply
    /// takes its place behind theirs.
    #[inline]
    fn read_early(
        &mut self,
        id: SessionId,
        place: usize,
        database: u16,
        command: &'static DataCommand,
        args: Args<'_>,
    ) {
        let local = self.groups[place].as_mut().expect("it was just looked at");
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        let moment = local.read_moment(self.now);
        self.is_reading = true;
        let (ticket, tracks) = (session.take_ticket_to_read(), session.tracks());
        let is_silent = session.options.no_touch;
        let watch = self.context.timings.start(Known::Data(command), args);
        self.sessions.reply_observed(id, ticket, local.observed(), |writer| {
            local.state().keyspace().set_silent(is_silent);
            local.state().keyspace().query(database, command, args, moment, writer);
            local.state().keyspace().set_silent(false);
        });
        if tracks {
            self.context.tracker.remember_command(self.context.core, id, command, args);
        }
        if let Some(watch) = watch
            && let Some(session) = self.sessions.get(id)
        {
            self.context.timings.stop(watch, args);
            self.context.note_slow(session);
        }
    }

    /// Remembers a read for as long as it has no answer.
    pub(crate) fn note_read(&mut self, id: SessionId, read: NotedRead) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.note_read(read) >= limits::READS_NOTED_MAX {
            let relay = &mut self.relay;
            session.retain_reads(|read| relay.is_outstanding(read.group, read.number));
        }
    }

    /// In a cluster a read and a change that comes behind it in the same pipeline may be carried out by different
    /// leaders, and the read again when the change has been. So a read that has not left yet is logged before the
    /// change; false if one is under way, and the change must wait for its answer. What each replica would answer with
    /// how it has seen the key used is not logged: its answer is waited for.
    pub(crate) fn reads_have_their_places(&mut self, id: SessionId, group: GroupId) -> bool {
        let Some(session) = self.sessions.get_mut(id) else { return true };
        let relay = &mut self.relay;
        let must_be_awaited = |read: NotedRead| match read.tells_use {
            true => relay.is_outstanding(group, read.number),
            false => relay.is_under_way(group, read.number),
        };
        if session.reads_of(group).any(must_be_awaited) {
            return false;
        }
        session.reads_of(group).for_each(|read| relay.give_place_in_log(group, read.number));
        session.retain_reads(|read| read.group != group);
        true
    }

    /// Sends a request to the core of its group, which may be this one, or in a cluster to the leader of the group:
    /// then it has a number.
    pub(crate) fn send_request(
        &mut self,
        request: Request,
        answerable: Answerable,
        actions: &mut Vec<Action>,
    ) -> Option<u64> {
        if self.context.is_clustered {
            let Origin { session, ticket, tracks, .. } = request.origin;
            if tracks {
                self.remember_request(&request);
            }
            let purpose = Purpose::Client { session, ticket };
            return Some(self.relay.submit(request, purpose, answerable, self.now.instant));
        }
        let to = router::core_of(request.group, self.context.core_count);
        if to == self.context.core {
            self.take_request(request, actions);
        } else {
            self.outbox.push(self.context.core, to, CoreMessage::Request(request));
        }
        None
    }

    fn dispatch_to_scratch(&mut self, id: SessionId, command: &'static DataCommand, args: Args<'_>) -> Next {
        let moment = Moment { unix: self.now.unix, seed: 0 };
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        let (database, ticket) = (session.database, session.take_own_ticket());
        let scratch = &mut self.scratch;
        let watch = self.context.timings.start(Known::Data(command), args);
        self.sessions.reply_own(id, ticket, |writer| match command.body {
            Body::Query(_) => scratch.query(database, command, args, moment, writer),
            Body::Mutate(_) | Body::Container => scratch.mutate(database, command, args, moment, writer),
        });
        if let Some(watch) = watch
            && let Some(session) = self.sessions.get(id)
        {
            self.context.timings.stop(watch, args);
            self.context.note_slow(session);
        }
        Next::Taken
    }

    /// A command with keys in several groups is a transaction of its own.
    pub(crate) fn dispatch_to_several(
        &mut self,
        id: SessionId,
        command: &'static DataCommand,
        args: Args<'_>,
        actions: &mut Vec<Action>,
    ) -> Next {
        let origin = self.origin_of(id);
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        if session.owed_count() > 0 {
            return Next::Postponed(Hold::Answers);
        }
        let mut words = Vec::new();
        put_words(&mut words, session.database, args);
        if let Some(reading) = &mut session.options.reading {
            reading.blur();
        }
        let is_silent = origin.is_silent && command.name != "touch";
        let origin = Origin { ticket: session.take_ticket(), tracks: session.tracks(), is_silent, ..origin };
        let mut work = Work {
            commands: vec![words],
            whole: matches!(command.span, KeySpan::Whole(_)),
            ..Work::new(origin, session.protocol(), self.now.instant)
        };
        session.hold = Hold::Answers;
        let database = session.database;
        if let Some(id) = session.request_id.take() {
            let named = Named::new(&id, work.protocol, &work.commands, self.context.settings.request_id_ms);
            work.name(named, &self.context.slots);
        }
        self.add_keys(&mut work, command, database, args);
        self.begin_work(work, actions);
        Next::Taken
    }

    /// Adds the keys of one command to what a transaction locks.
    pub(crate) fn add_keys(&self, work: &mut Work, command: &DataCommand, database: u16, args: Args<'_>) {
        let others = other_databases(command, args, self.context.settings.databases);
        command.for_each_key(args, |index, _| {
            let key = args.at(index);
            let keys = work.keys.entry(self.context.slots.group_of(key)).or_default();
            keys.push((database, key.to_vec()));
            keys.extend(others.iter().map(|other| (*other, key.to_vec())));
        });
    }

    pub(crate) fn begin_work(&mut self, work: Work, actions: &mut Vec<Action>) {
        let is_touched = |group: &GroupId| work.whole || work.keys.contains_key(group);
        if let Err(refusal) = self.check_quorums(self.context.groups().filter(is_touched)) {
            return self.refuse_work(&work, refusal.text(), actions);
        }
        // What has an id may have been done before.
        if work.named.is_none() && self.asks_all_voters(work.origin.session) && work.may_change() {
            let touched: Vec<GroupId> = self.context.groups().filter(is_touched).collect();
            let checked = touched.into_iter().try_for_each(|group| self.check_voters(work.origin.session, group));
            if let Err(refusal) = checked {
                return self.refuse_work(&work, refusal.text(), actions);
            }
        }
        if let Some(session) = self.sessions.get_mut(work.origin.session) {
            session.is_driving = true;
            session.set_groups(work.origin.ticket, work.keys.keys().copied().filter(|_| !work.whole));
        }
        let moment = Moment { unix: self.now.unix, seed: self.draw() };
        let slots = Arc::clone(&self.context.slots);
        self.coordinator.level = self.context.level_for_clients();
        self.drive(actions, |coordinator, posts| {
            coordinator.begin(work, &slots, moment, posts);
            Progress::Going
        });
    }

    /// A query over all keys of all groups.
    fn dispatch_whole(
        &mut self,
        id: SessionId,
        command: &'static DataCommand,
        args: Args<'_>,
        actions: &mut Vec<Action>,
    ) -> Next {
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        if session.owed_count() > 0 {
            return Next::Postponed(Hold::Answers);
        }
        let mut words = Vec::new();
        put_words(&mut words, session.database, args);
        let protocol = session.protocol();
        let ticket = session.take_own_ticket();
        session.hold = Hold::Answers;
        let question = Question::Whole { words: words.clone(), protocol };
        self.ask(id, ticket, crate::ask::Joining::Whole(command), words, question, actions);
        Next::Taken
    }

    // ---- control ----------------------------------------------------------------------------------------------------

    pub(crate) fn dispatch_control(
        &mut self,
        id: SessionId,
        command: &'static ControlCommand,
        args: Args<'_>,
        actions: &mut Vec<Action>,
    ) -> Next {
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        match command.body {
            commands::Body::Flow(flow) => return self.flow(id, flow, args, actions),
            commands::Body::Admin => return self.dispatch_to_admin(id, args, actions),
            _ => {}
        }
        if let commands::Body::Script { .. } = command.body {
            return self.dispatch_script(id, command, args, actions);
        }
        if let commands::Body::Libraries(changing) = command.body {
            return self.dispatch_change(id, changing, args, actions);
        }
        let is_telling = matches!(command.body, commands::Body::Tell { .. });
        // A client that is told something may look at once for what was changed before.
        let must_wait = if is_telling {
            session.awaits_change() || session.owed_count() >= limits::OWED_COUNT_TO_READ_MAX
        } else {
            session.owed_count() > 0
        };
        if must_wait {
            return Next::Postponed(Hold::Answers);
        }
        let ticket = if is_telling { session.take_own_ticket_to_read() } else { session.take_own_ticket() };
        let now = self.now;
        let mut local = commands::Local {
            session,
            core: &mut self.context,
            now,
            actions,
            is_in_transaction: false,
            is_pushed: false,
            follow_up: None,
            sleeps: None,
        };
        match command.body {
            commands::Body::Local(run) => {
                let mut bytes = Writer::new(local.session.protocol());
                let result = local.run(command, run, args, &mut bytes);
                if local.is_pushed {
                    self.sessions.reply_pushed(id, ticket, bytes.bytes());
                } else {
                    self.finish_control(id, ticket, result, bytes);
                }
            }
            commands::Body::Node { ask, .. } | commands::Body::Tell { ask, .. } => {
                match local.ask(command, ask, args) {
                    Ok(question) => {
                        if let Some(session) = self.sessions.get_mut(id)
                            && !is_telling
                        {
                            session.hold = Hold::Answers;
                        }
                        let mut words = Vec::new();
                        put_words(&mut words, 0, args);
                        self.publish_to_peers(&question, actions);
                        self.ask(id, ticket, crate::ask::Joining::Control(command), words, question, actions);
                    }
                    Err(refusal) => self.finish_control(id, ticket, Err(refusal), Writer::default()),
                }
            }
            commands::Body::Driven(drive) => {
                local.session.hold = Hold::Answers;
                if let Err(refusal) = drive(self, id, ticket, args, actions) {
                    self.finish_control(id, ticket, Err(refusal), Writer::default());
                }
            }
            commands::Body::Flow(_)
            | commands::Body::Admin
            | commands::Body::Script { .. }
            | commands::Body::Libraries(_) => unreachable!("taken above"),
            commands::Body::Container(_) => unreachable!("a container's subcommand was looked up"),
        }
        Next::Taken
    }

    /// What concerns the whole cluster is decided by the leader of group 0.
    fn dispatch_to_admin(&mut self, id: SessionId, args: Args<'_>, actions: &mut Vec<Action>) -> Next {
        // Its leader may know less of the cluster for a moment, but it decides.
        let checked = match args.at(1).eq_ignore_ascii_case(b"failover") {
            true => masters::groups_to_take_over(&self.context, self.context.node, args).map(|_| ()),
            false => Ok(()),
        };
        if let Err(refusal) = checked.and_then(|()| self.context.check_admin(args.at(1))) {
            return self.reject(id, &refusal);
        }
        let answerable = match self.check_quorum(GroupId(0)) {
            Ok(answerable) => answerable,
            Err(refusal) => return self.fail(id, &refusal),
        };
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        let (ticket, protocol) = (session.take_ticket(), session.protocol());
        let mut words = Vec::new();
        put_words(&mut words, 0, args);
        let origin = Origin { ticket, ..self.origin_of(id) };
        let request = Request::new(origin, GroupId(0), protocol, RequestBody::Admin(words));
        self.send_request(request, answerable, actions);
        Next::Taken
    }

    pub(crate) fn finish_control(
        &mut self,
        id: SessionId,
        ticket: OwnTicket,
        result: Result<(), Refusal>,
        written: Writer,
    ) {
        match result {
            // HELLO may have switched the protocol: its own reply is already in the new form.
            Ok(()) => self.sessions.reply_own(id, ticket, |writer| writer.raw(written.bytes())),
            Err(refusal) => self.sessions.refuse(id, ticket.number(), refusal.text()),
        }
    }
}

/// Looks up what the next requests of a client that reads name. Says how many bytes these requests take. (The keys of
/// writes are looked up when their entry is applied.)
fn prefetch(groups: &[Option<Group>], context: &Context, database: u16, input: &[u8]) -> usize {
    let mut found = [(GroupId(0), PrefetchTarget::default()); PREFETCH_MAX];
    let mut count = 0;
    let mut seen = 0;
    while count < PREFETCH_MAX
        && let Some(Glance { consumed, words }) = resp::glance(&input[seen..])
    {
        let [name, second, third, fourth, fifth] =
            words.map(|span| &input[seen..][span.start as usize..span.end as usize]);
        let named = match (is_script(name), third) {
            (false, _) => [Some((second, third)), None],
            // EVAL script 2 key key
            (true, b"0") => [None, None],
            (true, b"1") => [Some((fourth, &[][..])), None],
            (true, _) => [Some((fourth, &[][..])), Some((fifth, &[][..]))],
        };
        for ((key, element), place) in named.into_iter().flatten().zip(&mut found[count..]) {
            *place = (context.slots.group_of(key), PrefetchTarget { database, key, element });
            count += 1;
        }
        seen += consumed;
    }
    // For a single key there is nothing to be done side by side.
    if count > 1 {
        look_up(groups, &found[..count]);
    }
    seen
}

/// Looks up side by side, in each of these groups, what has been found to be named of it: [`PREFETCH_MAX`] at most.
pub(crate) fn look_up(groups: &[Option<Group>], found: &[(GroupId, PrefetchTarget<'_>)]) {
    for group in groups.iter().flatten() {
        let mut own = [PrefetchTarget::default(); PREFETCH_MAX];
        let mut own_count = 0;
        for (_, ahead) in found.iter().filter(|(of, _)| *of == group.id()) {
            own[own_count] = *ahead;
            own_count += 1;
        }
        group.state().keyspace().prefetch(&own[..own_count]);
    }
}

/// Whether a command of this name has its keys where scripts have them.
fn is_script(name: &[u8]) -> bool {
    let begins = |with: &[u8]| name.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with));
    begins(b"eval") || begins(b"fcall")
}

fn session_hold(sessions: &mut crate::session::Sessions, id: SessionId, hold: Hold) {
    if let Some(session) = sessions.get_mut(id) {
        session.hold = hold;
    }
}

/// The cluster does without this node.
const EXPELLED: &str = "CLUSTERDOWN This node has been removed from its cluster: ask another one";

/// Capacity that an emptied input buffer may keep.
const KEPT_CAPACITY_MAX: usize = 64 << 10;
