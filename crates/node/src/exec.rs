//! MULTI, EXEC, DISCARD, WATCH, UNWATCH.
//!
//! A transaction with keys in one group is one log entry. Over several groups it is driven as [`crate::transaction`]
//! says. Control commands inside a transaction (CONFIG, CLIENT, …) are carried out by the gateway when the data
//! commands have been, and only then; their replies are put between the others'. What a SELECT says of those behind it
//! is known before.

use std::sync::Arc;

use command::Refusal;
use group::ids::{GroupId, SessionId};
use group::refusals::READ_ONLY;
use group::requests::{Origin, Request, RequestBody};
use group::router;
use keyspace::{Body, DataCommand};
use resp::{Args, Protocol, Span, Writer};

use crate::acl::Where;
use crate::ask::Joining;
use crate::commands::question::{Answer, Question};
use crate::commands::{self, Flow};
use crate::core::Core;
use crate::dispatch::{Groups, Next};
use crate::entry::{Reader, Watch, put_exec, put_words};
use crate::event::Action;
use crate::known::Known;
use crate::lookup::selected;
use crate::quorum::Answerable;
use crate::request_ids::{self, Named};
use crate::session::composition::Composition;
use crate::session::queued::Queued;
use crate::session::ticket::OwnTicket;
use crate::session::{Hold, Multi, Session};
use crate::stats::cost::Measure;
use crate::transaction::Work;
use crate::{frame, libraries, redirect};

impl Core {
    pub(crate) fn flow(&mut self, id: SessionId, flow: Flow, args: Args<'_>, actions: &mut Vec<Action>) -> Next {
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        match flow {
            Flow::Multi if session.multi.is_some() => {
                // Redis refuses the nested MULTI without breaking the transaction.
                let ticket = session.take_own_ticket();
                self.sessions.refuse(id, ticket.number(), "ERR MULTI calls can not be nested");
            }
            Flow::Multi => {
                let user = Some(Arc::clone(&session.user));
                let request_id = session.request_id.take();
                session.multi = Some(Multi { user, request_id, ..Multi::default() });
                let ticket = session.take_own_ticket();
                self.sessions.reply_own(id, ticket, Writer::ok);
            }
            Flow::Discard if session.multi.is_none() => {
                return self.fail(id, &Refusal::new("ERR DISCARD without MULTI"));
            }
            Flow::Discard | Flow::Unwatch => {
                if flow == Flow::Discard {
                    session.multi = None;
                }
                session.watches.clear();
                let ticket = session.take_own_ticket();
                self.sessions.reply_own(id, ticket, Writer::ok);
                self.abandon_watches(id);
            }
            Flow::Watch if session.multi.is_some() => {
                let ticket = session.take_own_ticket();
                self.sessions.refuse(id, ticket.number(), "ERR WATCH inside MULTI is not allowed");
            }
            Flow::Watch => return self.watch(id, args, actions),
            Flow::Exec => return self.exec(id, actions),
        }
        Next::Taken
    }

    fn watch(&mut self, id: SessionId, args: Args<'_>, actions: &mut Vec<Action>) -> Next {
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        if session.owed_count() > 0 {
            return Next::Postponed(Hold::Answers);
        }
        let database = session.database;
        let keys: Vec<_> = args
            .iter()
            .skip(1)
            .filter(|key| !session.watches.iter().any(|watch| watch.database == database && watch.key == *key))
            .map(|key| (database, key.to_vec()))
            .collect();
        let ticket = session.take_own_ticket();
        for (database, key) in &keys {
            session.watches.push(Watch { database: *database, key: key.clone(), version: UNKNOWN_VERSION });
        }
        if keys.is_empty() {
            self.sessions.reply_own(id, ticket, Writer::ok);
            return Next::Taken;
        }
        session.hold = Hold::Answers;
        let reserve_for = self.wish_of(id);
        if let (Some(_), Some(session)) = (reserve_for, self.sessions.get_mut(id)) {
            let groups = keys.iter().map(|(_, key)| self.context.slots.group_of(key));
            groups.for_each(|group| session.optimism.note_reserved(group));
        }
        self.ask(id, ticket, Joining::Watch, Vec::new(), Question::Versions { keys, reserve_for }, actions);
        Next::Taken
    }

    pub(crate) fn finish_watch(&mut self, id: SessionId, ticket: OwnTicket, answers: Vec<Answer>) {
        let now = self.now.instant;
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.optimism.note_told(now);
        let fresh = session.watches.iter().take_while(|watch| watch.version != UNKNOWN_VERSION).count();
        for answer in answers {
            match answer {
                Answer::Versions(versions) => {
                    for (place, version) in versions {
                        session.watches[fresh + place].version = version;
                    }
                }
                Answer::Refused(text) => {
                    session.watches.truncate(fresh);
                    self.sessions.refuse(id, ticket.number(), &text);
                    return;
                }
                other => unreachable!("a core answered a watch with {other:?}"),
            }
        }
        self.sessions.reply_own(id, ticket, Writer::ok);
    }

    /// True if all keys of what has been queued lie in one slot.
    fn is_of_one_slot(&self, id: SessionId) -> bool {
        let multi = self.sessions.get(id).and_then(|session| session.multi.as_ref());
        let mut spans = Vec::new();
        let mut slot = None;
        multi.iter().flat_map(|multi| &multi.queue).all(|queued| {
            let (_, args) = Reader::new(&queued.words).words(&mut spans);
            match redirect::slot_of_request(queued.command, args) {
                Ok(Some(other)) => *slot.get_or_insert(other) == other,
                Ok(None) => true,
                Err(_) => false,
            }
        })
    }

    fn exec(&mut self, id: SessionId, actions: &mut Vec<Action>) -> Next {
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        let Some(multi) = &session.multi else {
            return self.fail(id, &Refusal::new("ERR EXEC without MULTI"));
        };
        if multi.is_broken {
            session.discard();
            self.abandon_watches(id);
            return self.fail(id, &Refusal::EXEC_ABORT);
        }
        self.check_rules_again(id);
        self.follow_selects(id);
        // What was queued may no longer be possible: then nothing of it is done.
        let queue =
            self.sessions.get(id).and_then(|session| session.multi.as_ref()).map_or(&[][..], |multi| &multi.queue);
        let (is_at_site, is_beside_source) = (self.may_not_write_at_site(id), self.may_not_write_beside_source(id));
        if is_at_site || is_beside_source {
            let mut spans = Vec::new();
            let is_write = |queued: &Queued| {
                let (_, args) = Reader::new(&queued.words).words(&mut spans);
                let is_refused = is_at_site && self.changes_data(queued.command, args)
                    || is_beside_source && self.is_write_beside_source(queued.command, args);
                queued.refusal.is_none() && is_refused
            };
            if queue.iter().any(is_write) {
                return self.abort_exec(id, &Refusal::new(READ_ONLY));
            }
        }
        let refusal = queue.iter().filter(|queued| queued.refusal.is_none()).find_map(|queued| match queued.command {
            Known::Data(command) if matches!(command.body, Body::Mutate(_)) => self.check_write(command).err(),
            _ => None,
        });
        if let Some(refusal) = refusal {
            return self.abort_exec(id, &refusal);
        }
        if self.context.settings.mode() == "cluster" && !self.is_of_one_slot(id) {
            let session = self.sessions.get_mut(id).expect("its request is being looked at");
            session.discard();
            self.abandon_watches(id);
            return self.fail(id, &Refusal::new(redirect::CROSS_SLOT));
        }
        let multi = self.sessions.get(id).and_then(|session| session.multi.as_ref()).expect("just seen");
        let has_control = multi.queue.iter().any(|queued| !works_on_data(queued));
        let is_caught_up = self.sessions.get(id).is_some_and(|session| session.owed_count() == 0);
        if has_control && multi.request_id.is_some() {
            return self.abort_exec(id, &Refusal::new(request_ids::CONTROL_IN_MULTI));
        }
        if has_control && !is_caught_up {
            return Next::Postponed(Hold::Answers);
        }
        let multi = self.session_multi(id);
        let mut groups = self.groups_of_transaction(id, &multi);
        let watches = self.sessions.get(id).map_or(&[][..], |session| &session.watches);
        if watches.iter().any(|watch| keyspace::absent_since(watch.version).is_some()) {
            // Whether such a key has come and gone is asked of its group under a lock.
            groups = Groups::Several;
        }
        if multi.request_id.is_some() && groups != Groups::None {
            groups = Groups::Several; // its answer is kept beside what it changes
        }
        if groups != Groups::None && self.is_answered_by_each_replica(&multi) {
            groups = Groups::Several; // one node computes the answer, and all keep the same
        }
        // While slots move, those of one group may be of several by the time it comes there.
        if (groups == Groups::Several || self.context.is_moving) && !is_caught_up {
            // It comes again: put back what was taken.
            self.sessions.get_mut(id).expect("just seen").multi = Some(multi);
            return Next::Postponed(Hold::Answers);
        }
        let answerable = match groups {
            Groups::One(group) if !multi.queue.iter().filter(|queued| works_on_data(queued)).all(is_query) => {
                self.check_voters(id, group).and_then(|()| self.check_quorum(group))
            }
            Groups::One(group) => self.check_quorum(group),
            // It is looked at where work over several groups begins.
            Groups::None | Groups::Several => Ok(Answerable::UNDER_WAY),
        };
        let answerable = match answerable {
            Ok(answerable) => answerable,
            Err(refusal) => {
                self.sessions.get_mut(id).expect("just seen").discard();
                self.abandon_watches(id);
                return self.fail(id, &refusal);
            }
        };
        if let Groups::One(group) = groups
            && self.is_full(group)
        {
            self.sessions.get_mut(id).expect("just seen").multi = Some(multi);
            self.stalled.push(id);
            return Next::Postponed(Hold::Window);
        }
        if let Groups::One(group) = groups
            && (!self.reads_have_their_places(id, group)
                || self.sessions.get(id).is_some_and(|session| session.awaits_script_beside(group)))
        {
            self.sessions.get_mut(id).expect("just seen").multi = Some(multi);
            return Next::Postponed(Hold::Answers);
        }
        self.carry_out(id, multi, (groups, answerable), has_control, actions);
        Next::Taken
    }

    /// True if a logged transaction would be answered by each replica with how it has seen keys used.
    fn is_answered_by_each_replica(&self, multi: &Multi) -> bool {
        let tells_use = |queued: &Queued| data_of(queued).is_some_and(keyspace::tells_use);
        self.context.is_clustered && self.coordinator.level != stdx::Level::FIRST && multi.queue.iter().any(tells_use)
    }

    /// Rules may have changed since the commands were queued: what is no longer allowed is left out, and says so.
    fn check_rules_again(&mut self, id: SessionId) {
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        let user = Arc::clone(&session.user);
        let multi = session.multi.as_mut().expect("EXEC ends a MULTI");
        let is_changed = multi.user.as_ref().is_none_or(|then| !Arc::ptr_eq(then, &user));
        if user.is_unrestricted || !is_changed {
            return;
        }
        let mut spans: Vec<Span> = Vec::new();
        let mut denials = Vec::new();
        for queued in &mut multi.queue {
            let (_, args) = Reader::new(&queued.words).words(&mut spans);
            if let Err(denial) = user.check(queued.command, args) {
                queued.refusal = Some(denial.refusal_at_exec());
                denials.push(denial);
            }
        }
        multi.user = Some(user);
        for denial in denials {
            self.note_denial(id, denial, Where::Transaction);
        }
    }

    /// Commands behind a SELECT of the transaction work in the database that it names.
    fn follow_selects(&mut self, id: SessionId) {
        let databases = self.context.settings.databases;
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        let multi = session.multi.as_mut().expect("EXEC ends a MULTI");
        let is_select = |queued: &Queued| queued.refusal.is_none() && queued.command.name() == "select";
        if !multi.queue.iter().any(is_select) {
            return;
        }
        let mut database = session.database;
        let mut spans: Vec<Span> = Vec::new();
        for queued in &mut multi.queue {
            let (_, args) = Reader::new(&queued.words).words(&mut spans);
            let mut words = Vec::with_capacity(queued.words.len());
            put_words(&mut words, database, args);
            if is_select(queued) {
                // One that names none is answered so, and leaves the database as it was.
                database = selected(args, databases).unwrap_or(database);
            }
            queued.words = words;
        }
    }

    /// Refuses EXEC, and with it all that was queued.
    pub(crate) fn abort_exec(&mut self, id: SessionId, refusal: &Refusal) -> Next {
        let cause = refusal.text().strip_prefix("ERR ").unwrap_or(refusal.text());
        let text = format!("EXECABORT Transaction discarded because of: {cause}");
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        session.discard();
        session.asking = session.asking.rejected();
        self.abandon_watches(id);
        self.fail(id, &Refusal::new(text))
    }

    fn session_multi(&mut self, id: SessionId) -> Multi {
        self.sessions.get_mut(id).and_then(|session| session.multi.take()).expect("EXEC ends a MULTI")
    }

    fn groups_of_transaction(&self, id: SessionId, multi: &Multi) -> Groups {
        let slots = &self.context.slots;
        let session = self.sessions.get(id).expect("its request is being looked at");
        // A script runs where its keys are locked, since its changes are known only when it has ended.
        if multi.queue.iter().any(|queued| queued.refusal.is_none() && queued.command.script_naming().is_some()) {
            return Groups::Several;
        }
        if slots.group_count() == 1 {
            let has_data = multi.queue.iter().any(works_on_data);
            return if has_data || !session.watches.is_empty() { Groups::One(GroupId(0)) } else { Groups::None };
        }
        let mut groups = Groups::None;
        for watch in &session.watches {
            groups = groups.with(slots.group_of(&watch.key));
        }
        let mut spans: Vec<Span> = Vec::new();
        let mut has_keyless = false;
        for queued in &multi.queue {
            let Some(command) = data_of(queued) else { continue };
            if matches!(command.span, command::Span::Whole(_)) {
                return Groups::Several;
            }
            let (_, args) = Reader::new(&queued.words).words(&mut spans);
            if router::is_far_sort(command, args, slots) {
                return Groups::Several;
            }
            let mut has_key = false;
            command.for_each_key(args, |index, _| {
                has_key = true;
                groups = groups.with(slots.group_of(args.at(index)));
            });
            has_keyless |= !has_key;
        }
        // A command without keys (OBJECT HELP) may run anywhere.
        if has_keyless && groups == Groups::None { Groups::One(GroupId(0)) } else { groups }
    }

    fn carry_out(
        &mut self,
        id: SessionId,
        multi: Multi,
        (groups, answerable): (Groups, Answerable),
        has_control: bool,
        actions: &mut Vec<Action>,
    ) {
        let (node, core) = (self.context.node, self.context.core);
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        let watches = std::mem::take(&mut session.watches);
        if self.context.monitors.is_watched() {
            let mut spans: Vec<Span> = Vec::new();
            for queued in multi.queue.iter().filter(|queued| queued.refusal.is_none()) {
                let (database, args) = Reader::new(&queued.words).words(&mut spans);
                self.show_command(id, database, queued.command, args);
            }
        }
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        let tracks = session.tracks();
        let protocol = session.protocol();
        let asked = multi.queue.iter().map(|queued| match queued.refusal {
            None => queued.asked,
            Some(_) => queued.asked.rejected(),
        });
        let ticket = session.take_ticket_to_exec(asked.collect());
        session.optimism.try_now(ticket.number(), self.now.instant);
        let commands: Vec<_> = multi.queue.iter().filter(|queued| works_on_data(queued)).collect();
        let is_query = commands.iter().all(|queued| is_query(queued));
        let packed = pack(&watches, &commands);
        if has_control || self.context.is_moving {
            session.hold = Hold::Answers;
        }
        let mut work_words = Vec::new();
        let mut named = None;
        if groups == Groups::Several {
            work_words = commands.iter().map(|queued| queued.words.clone()).collect::<Vec<_>>();
            let ms = self.context.settings.request_id_ms;
            named = multi.request_id.as_ref().map(|id| Named::new(id, protocol, &work_words, ms));
        }
        if has_control {
            session.is_driving = true;
            session.composition = Some(Composition {
                ticket,
                queue: multi.queue,
                data: None,
                next: 0,
                at: 0,
                out: Vec::new(),
                is_asking: false,
            });
        }
        let durability = self.context.settings.durability(session.options.durability);
        let is_silent = session.options.no_touch;
        let writes_for_source = session.options.writes_for_site;
        let origin = Origin::new(node, core, id, ticket.number());
        let origin = Origin { tracks, is_silent, durability, writes_for_source, ..origin };
        match groups {
            Groups::None => self.sessions.reply_own(id, ticket, |writer| writer.array(0)),
            Groups::One(group) => {
                if is_query && self.answer_exec_at_once(id, ticket.number(), group, &packed, protocol) {
                    return;
                }
                if let Some(session) = self.sessions.get_mut(id) {
                    session.set_groups(ticket.number(), std::iter::once(group));
                    if is_query {
                        session.drop_wanting(ticket.number());
                    }
                }
                let is_timed = self.wants_times(&packed, protocol);
                let origin = Origin { is_timed, ..origin };
                let body = RequestBody::Exec(packed);
                self.send_request(Request::new(origin, group, protocol, body), answerable, actions);
            }
            Groups::Several => {
                let work = Work {
                    is_exec: true,
                    watches,
                    named,
                    commands: work_words,
                    ..Work::new(origin, protocol, self.now.instant)
                };
                self.begin_exec_over_groups(work, actions);
            }
        }
    }

    /// True if the commands of a transaction must be measured where it is carried out.
    fn wants_times(&mut self, packed: &[u8], protocol: Protocol) -> bool {
        let mut spans: Vec<Span> = Vec::new();
        let mut is_timed = false;
        if self.context.is_clustered {
            Reader::new(packed).exec(protocol, &mut spans).for_each(&mut spans, |_, args| {
                let known = crate::lookup::lookup(args).expect("checked when it was queued");
                is_timed |= self.wants_time(known, args);
            });
        }
        is_timed
    }

    /// A transaction that only reads needs no log entry where a read needs none.
    fn answer_exec_at_once(
        &mut self,
        id: SessionId,
        ticket: u64,
        group: GroupId,
        packed: &[u8],
        protocol: Protocol,
    ) -> bool {
        let now = self.now;
        let session = self.sessions.get(id);
        let owed = session.map_or(0, |session| session.owed_count());
        let is_silent = session.is_some_and(|session| session.options.no_touch);
        let origin = self.origin_of(id);
        if router::core_of(group, self.context.core_count) != self.context.core {
            return false;
        }
        let place = group.0 as usize / usize::from(self.context.core_count);
        let Some(Some(group)) = self.groups.get_mut(place) else { return false };
        if owed > 1 || !group.can_read() || group.lock_count() > 0 {
            return false;
        }
        let mut writer = Writer::new(protocol);
        group.end_reservation(&origin);
        let mut meter = Measure::Client(&mut self.context.timings);
        let observed = group.read_exec(packed, (protocol, is_silent), now, &mut meter, &mut writer);
        if self.sessions.get(id).is_some_and(Session::tracks) {
            self.context.tracker.remember_exec(self.context.core, id, packed);
        }
        self.sessions.reply_observed(id, ticket, observed, |out| out.raw(writer.bytes()));
        if let Some(session) = self.sessions.get(id) {
            self.context.note_slow(session);
        }
        true
    }

    pub(crate) fn begin_exec_over_groups(&mut self, mut work: Work, actions: &mut Vec<Action>) {
        let slots = Arc::clone(&self.context.slots);
        let databases = self.context.settings.databases;
        if let Some(named) = work.named.take() {
            work.name(named, &slots);
        }
        let commands = std::mem::take(&mut work.commands);
        let mut spans: Vec<Span> = Vec::new();
        let mut swaps = false;
        for (place, words) in commands.iter().enumerate() {
            let (database, args) = Reader::new(words).words(&mut spans);
            if let Ok(known) = crate::lookup::lookup(args)
                && let Some((naming, is_read_only)) = known.script_naming()
            {
                self.add_script(&mut work, place, database, naming, is_read_only, args);
                continue;
            }
            let command = keyspace::resolve(args).expect("checked when it was queued");
            if matches!(command.span, command::Span::Whole(_)) {
                work.whole = true;
                swaps |= command.name == "swapdb";
            }
            self.add_keys(&mut work, command, database, args);
        }
        for watch in &work.watches {
            let keys = work.keys.entry(slots.group_of(&watch.key)).or_default();
            keys.push((watch.database, watch.key.clone()));
        }
        if swaps {
            // A key may be looked at in one database and end up in any other.
            work.spread(databases);
        }
        if work.keys.is_empty() && !work.whole {
            // Scripts without a key, at least none that is known yet.
            work.keys.insert(GroupId(0), Vec::new());
        }
        work.queries = crate::keyspace_queries::queries(&commands, databases);
        work.commands = commands;
        if let Some(session) = self.sessions.get_mut(work.origin.session) {
            session.hold = Hold::Answers;
        }
        self.begin_work(work, actions);
    }

    // ---- control commands inside a transaction
    // --------------------------------------------------------------------------

    /// Goes on with transactions that have the answers to their data commands.
    pub(crate) fn compose(&mut self, actions: &mut Vec<Action>) {
        for id in self.sessions.take_composed() {
            self.compose_one(id, actions);
        }
    }

    fn compose_one(&mut self, id: SessionId, actions: &mut Vec<Action>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(mut composition) = session.composition.take() else { return };
        let (proof, data) = composition.data.take().expect("it was answered");
        if composition.next == 0 {
            // No array: a watched key has changed, or the whole was refused.
            if data.first() != Some(&b'*') || data.starts_with(b"*-1") {
                self.sessions.reply_proven(id, composition.ticket.number(), proof, &data);
                self.sessions.end_driving(id, &self.context.settings.output_limits);
                return;
            }
            composition.at = frame::aggregate(&data).1;
            let mut header = Writer::new(Protocol::Resp2);
            header.array(composition.queue.len());
            composition.out = header.into_bytes();
        }
        while composition.next < composition.queue.len() {
            let queued = &composition.queue[composition.next];
            composition.next += 1;
            if let Some(text) = &queued.refusal {
                let mut writer = Writer::default();
                writer.error(text);
                composition.out.extend_from_slice(writer.bytes());
                continue;
            }
            let command = match queued.command {
                command if command.works_on_data() => {
                    let length = frame::len(&data[composition.at..]);
                    composition.out.extend_from_slice(&data[composition.at..composition.at + length]);
                    composition.at += length;
                    continue;
                }
                known => known.control().expect("what is no data works on a session"),
            };
            let mut spans: Vec<Span> = Vec::new();
            let (_, args) = Reader::new(&queued.words).words(&mut spans);
            if let commands::Body::Libraries(changing) = command.body {
                let change = self.change(changing, args);
                let home = self.check_quorum(GroupId(libraries::HOME));
                match change.and_then(|change| Ok((change, home?))) {
                    Err(refusal) => composition.take_reply(Err(refusal), &Writer::default()),
                    Ok((change, answerable)) => {
                        let ticket = composition.ticket.number();
                        composition.is_asking = true;
                        composition.data = Some((proof, data));
                        let Some(session) = self.sessions.get_mut(id) else { return };
                        session.composition = Some(composition);
                        return self.send_change(id, ticket, &change, answerable, actions);
                    }
                }
                continue;
            }
            let Some(session) = self.sessions.get_mut(id) else { return };
            let now = self.now;
            let mut written = Writer::new(session.protocol());
            let mut local = commands::Local {
                session,
                core: &mut self.context,
                now,
                actions,
                is_in_transaction: true,
                is_pushed: false,
                follow_up: None,
                sleeps: None,
            };
            let result = match command.body {
                commands::Body::Local(run) => local.run(command, run, args, &mut written),
                commands::Body::Node { ask, .. } | commands::Body::Tell { ask, .. } => {
                    match local.ask(command, ask, args) {
                        Ok(question) => {
                            let mut words = Vec::new();
                            put_words(&mut words, 0, args);
                            let ticket = composition.ticket;
                            composition.is_asking = true;
                            composition.data = Some((proof, data));
                            session.composition = Some(composition);
                            self.publish_to_peers(&question, actions);
                            self.ask(id, ticket, Joining::Composed(command), words, question, actions);
                            return;
                        }
                        Err(refusal) => Err(refusal),
                    }
                }
                commands::Body::Flow(_) => {
                    // UNWATCH is the only step that can be queued; after EXEC there is nothing left to forget.
                    written.ok();
                    Ok(())
                }
                // WAIT and WAITAOF; others are refused when they are queued. Nothing is waited for here, and of what
                // this transaction does others have nothing yet.
                commands::Body::Driven(_) if command.name == "wait" => {
                    written.integer(0);
                    Ok(())
                }
                commands::Body::Driven(_) if command.name == "waitaof" => {
                    written.array(2);
                    written.integer(0);
                    written.integer(0);
                    Ok(())
                }
                commands::Body::Driven(_) | commands::Body::Admin => unreachable!("refused when it was queued"),
                commands::Body::Container(_) | commands::Body::Script { .. } | commands::Body::Libraries(_) => {
                    unreachable!("a subcommand was looked up, a script works on data, and libraries were taken above")
                }
            };
            composition.take_reply(result, &written);
        }
        let Composition { ticket, out, .. } = composition;
        self.sessions.reply_proven(id, ticket.number(), proof, &out);
        self.sessions.end_driving(id, &self.context.settings.output_limits);
    }

    /// All cores have answered a control command inside a transaction.
    pub(crate) fn composed(&mut self, id: SessionId, result: Result<(), Refusal>, written: &Writer) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(composition) = &mut session.composition else { return };
        composition.take_reply(result, written);
        composition.is_asking = false;
        self.sessions.mark_composed(id);
    }
}

/// A watched key with a version that has been asked for and not yet told.
const UNKNOWN_VERSION: u64 = u64::MAX;

/// The command on data to carry out, if it is one.
fn data_of(queued: &Queued) -> Option<&'static DataCommand> {
    match queued.command {
        Known::Data(command) if queued.refusal.is_none() => Some(command),
        _ => None,
    }
}

/// True if it must be carried out where the data is.
fn works_on_data(queued: &Queued) -> bool {
    queued.refusal.is_none() && queued.command.works_on_data()
}

fn is_query(queued: &Queued) -> bool {
    match queued.command {
        Known::Data(command) => matches!(command.body, Body::Query(_)),
        Known::Control(_) => queued.command.script_naming().is_none(),
    }
}

fn pack(watches: &[Watch], commands: &[&Queued]) -> Vec<u8> {
    let mut words = Vec::with_capacity(commands.iter().map(|queued| queued.words.len()).sum());
    for queued in commands {
        words.extend_from_slice(&queued.words);
    }
    let mut packed = Vec::with_capacity(words.len() + 16);
    put_exec(&mut packed, watches.iter(), commands.len(), &words);
    packed
}
