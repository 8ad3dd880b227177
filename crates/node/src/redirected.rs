//! A gateway's side of slots that move: it learns where they are, and sends on what came too late.

use std::sync::Arc;

use group::ids::{CoreId, GroupId, SessionId};
use group::proof::Proof;
use group::requests::PrepareAnswer;
use group::requests::{Claim, Origin, Request, RequestBody, Step};
use group::router;
use resp::Span;
use stdx::Instant;
use stdx::slot::Slot;

use crate::core::Core;
use crate::core_messages::CoreMessage;
use crate::dispatch::Groups;
use crate::entry::{Reader, put_words};
use crate::event::Action;
use crate::quorum::Answerable;
use crate::relay::Purpose;
use crate::session::{Hold, NotedRead};
use crate::slots::Moved;
use crate::transaction::Work;

impl Core {
    /// Tells all cores what has become of slots of the groups of this one.
    pub(crate) fn tell_slots(&mut self) {
        let mut news = Vec::new();
        for group in self.groups.iter_mut().flatten() {
            news.append(&mut group.take_slot_news());
        }
        self.tell_all_cores_slots(news);
    }

    /// All cores of this node learn where slots are.
    pub(crate) fn tell_all_cores_slots(&mut self, news: Vec<Moved>) {
        if news.is_empty() {
            return;
        }
        self.learn_slots(&news);
        let news = Arc::new(news);
        let own = self.context.core;
        for core in (0..self.context.core_count).map(CoreId).filter(|core| *core != own) {
            self.outbox.push(own, core, CoreMessage::Slots(Arc::clone(&news)));
        }
    }

    /// Hears that slots have moved.
    pub(crate) fn learn_slots(&mut self, news: &[Moved]) {
        let known = &self.context.slots;
        if news.iter().all(|moved| moved.epoch <= known.epoch_of(moved.slot)) {
            return;
        }
        let slots = Arc::make_mut(&mut self.context.slots);
        news.iter().for_each(|moved| _ = slots.learn(*moved));
        let group_count = slots.group_count();
        self.make_room_for(group_count);
        self.waits.must_stand_anew = true;
        self.look_at_slots();
    }

    /// The roster tells of groups that have gone: nothing more is asked of them, and what they have held is where they
    /// said.
    pub(crate) fn note_gone(&mut self, actions: &mut Vec<Action>) {
        let roster = Arc::clone(&self.context.roster);
        for (group, gone) in roster.gone() {
            // It may have gone before this core counts it: a start learns of it from the roster, before anybody leads.
            if self.context.slots.gone_at(group).is_none()
                && Arc::make_mut(&mut self.context.slots).retire(group, gone.index)
            {
                let given: Vec<Moved> = gone.given.iter().flat_map(|given| given.each()).collect();
                self.learn_slots(&given);
                self.founding.gone.insert(group, self.now.instant);
                self.settle_gone(group, actions);
            }
        }
    }

    /// What has been asked of a group that has gone, and is answered by that: locks that were not granted, and reads
    /// of keys that others hold.
    fn settle_gone(&mut self, group: GroupId, actions: &mut Vec<Action>) {
        for claim in self.relay.claims_of(group) {
            let is_to_be_moved = match self.relay.purpose(claim) {
                Some(Purpose::Transaction { step: Step::Lock, .. }) => true,
                Some(Purpose::Question { places, .. }) => !places.is_empty(),
                Some(Purpose::Client { .. }) => !self.relay.may_have_changed(claim),
                _ => false,
            };
            if is_to_be_moved {
                let known = self.context.slots.known(Slot(0));
                self.has_moved(claim, known, actions);
            }
        }
    }

    /// Groups have gone, and their replicas have been given up: what is left of transactions with them is answered by
    /// that.
    pub(crate) fn end_with_gone(&mut self, actions: &mut Vec<Action>) {
        let now = self.now.instant;
        let is_over = |since: &Instant| now.since(*since) >= group::limits::GONE_PATIENCE;
        let over = self.founding.gone.iter().filter(|(_, since)| is_over(since)).map(|(group, _)| *group);
        for group in over.collect::<Vec<_>>() {
            self.end_with(group, actions);
        }
    }

    /// It has prepared nothing that it has not ended, and prepares nothing any more.
    fn end_with(&mut self, group: GroupId, actions: &mut Vec<Action>) {
        for claim in self.relay.claims_of(group) {
            let bytes = match self.relay.purpose(claim) {
                // Its outcome is not known here. Its client is told so first: nothing is done twice.
                Some(Purpose::Transaction { id, step: Step::Prepare }) if !self.coordinator.is_answered(*id) => {
                    continue;
                }
                Some(Purpose::Transaction { step: Step::Prepare, .. } | Purpose::Move { step: Step::Prepare, .. }) => {
                    PrepareAnswer::Refused.put()
                }
                Some(Purpose::Transaction { step, .. } | Purpose::Move { step, .. }) if *step != Step::Lock => {
                    Vec::new()
                }
                _ => continue,
            };
            if let Some((_, purpose)) = self.relay.answered(claim, false, self.now.instant) {
                self.take_answer_of_group(claim, purpose, Proof::Refused, &bytes, actions);
            }
        }
    }

    /// Looks whether slots are still to move.
    pub(crate) fn look_at_slots(&mut self) {
        let (slots, roster) = (&self.context.slots, &self.context.roster);
        self.context.is_moving = slots.runs().into_iter().any(|(first, last, group)| {
            roster.wanted().any(|(from, to, wanted)| wanted != group && from <= last && to >= first)
        });
    }

    /// A group does not hold what it was asked for any more. True if the answer says so, and nothing else.
    pub(crate) fn has_moved(&mut self, claim: Claim, moved: Moved, actions: &mut Vec<Action>) -> bool {
        let says_so = match self.relay.purpose(claim) {
            Some(Purpose::Client { .. } | Purpose::Transaction { step: Step::Lock, .. }) => true,
            Some(Purpose::Question { places, .. }) => !places.is_empty(),
            _ => false,
        };
        if !says_so {
            return false;
        }
        // All cores are to know the same: one of them asks leaders about slots for all (`Group::hear_group_status`).
        if moved.epoch > self.context.slots.epoch_of(moved.slot) {
            self.tell_all_cores_slots(vec![moved]);
        }
        let Some((request, purpose)) = self.relay.take_back(claim, self.now.instant) else { return true };
        match purpose {
            Purpose::Client { .. } => {
                // Nothing new may overtake those that wait for their turn to be sent again.
                self.hold_until_answered(request.origin.session);
                // With one that had to come back, all behind it have been marked.
                if !request.must_return {
                    self.relay.let_return(claim, request.origin.session);
                }
                self.redirected.push(request);
            }
            Purpose::Transaction { id, .. } => self.drive(actions, |coordinator, posts| coordinator.moved(id, posts)),
            Purpose::Question { id, part, places } => self.ask_elsewhere(id, part, &places, request, actions),
            _ => unreachable!("just looked at"),
        }
        true
    }

    /// Sends requests that have come back to where their slots are now: each when all that its client asked for before
    /// has been answered, so that it is not overtaken by what came back earlier, or will. True if one has been sent.
    pub(crate) fn send_anew(&mut self, actions: &mut Vec<Action>) -> bool {
        if self.redirected.is_empty() {
            return false;
        }
        let mut waiting = std::mem::take(&mut self.redirected);
        waiting.sort_by_key(|request| (request.origin.session.serial, request.origin.ticket));
        let count = waiting.len();
        for request in waiting {
            let Origin { session, ticket, .. } = request.origin;
            if self.sessions.get(session).is_none_or(|session| session.is_next_answer(ticket)) {
                self.send_elsewhere(request, actions);
            } else {
                self.redirected.push(request);
            }
        }
        self.redirected.len() < count
    }

    fn send_elsewhere(&mut self, request: Request, actions: &mut Vec<Action>) {
        let Request { origin, protocol, body, .. } = request;
        let origin = Origin { claim: None, ..origin };
        let mut spans: Vec<Span> = Vec::new();
        match body {
            RequestBody::Exec(packed) => self.send_exec_elsewhere(origin, protocol, packed, actions),
            RequestBody::Write(ref words) | RequestBody::Read(ref words) | RequestBody::ReadAtOnce(ref words) => {
                let (database, args) = Reader::new(words).words(&mut spans);
                let command = keyspace::resolve(args).expect("checked when it was sent");
                if let Groups::One(group) = self.groups_of(command, args) {
                    let is_read = !matches!(body, RequestBody::Write(_));
                    self.is_about(origin, group);
                    let request = Request { is_anew: true, ..Request::new(origin, group, protocol, body) };
                    let number = self.send_request(request, Answerable::UNDER_WAY, actions);
                    if is_read && let Some(number) = number {
                        let tells_use = keyspace::tells_use(command);
                        self.note_read(origin.session, NotedRead { group, number, tells_use });
                    }
                    return;
                }
                let whole = matches!(command.span, command::Span::Whole(_));
                let work =
                    Work { whole, commands: vec![words.clone()], ..Work::new(origin, protocol, self.now.instant) };
                if whole {
                    return self.begin_exec_over_groups(work, actions);
                }
                let mut work = work;
                self.add_keys(&mut work, command, database, args);
                self.hold_until_answered(origin.session);
                self.begin_work(work, actions);
            }
            _ => unreachable!("only these are sent back"),
        }
    }

    /// What was sent to another group, and not done there, goes to this one.
    fn is_about(&mut self, origin: Origin, group: GroupId) {
        if let Some(session) = self.sessions.get_mut(origin.session) {
            session.set_groups(origin.ticket, std::iter::once(group));
        }
    }

    fn send_exec_elsewhere(
        &mut self,
        origin: Origin,
        protocol: resp::Protocol,
        packed: Vec<u8>,
        actions: &mut Vec<Action>,
    ) {
        let mut spans: Vec<Span> = Vec::new();
        let exec = Reader::new(&packed).exec(protocol, &mut spans);
        let watches = exec.watches.clone();
        let slots = Arc::clone(&self.context.slots);
        let mut groups = watches.iter().fold(Groups::None, |groups, watch| groups.with(slots.group_of(&watch.key)));
        let mut commands = Vec::new();
        exec.for_each(&mut spans, |database, args| {
            let command = keyspace::resolve(args).expect("checked when it was queued");
            if matches!(command.span, command::Span::Whole(_)) || router::is_far_sort(command, args, &slots) {
                groups = Groups::Several;
            }
            command.for_each_key(args, |index, _| groups = groups.with(slots.group_of(args.at(index))));
            let mut words = Vec::new();
            put_words(&mut words, database, args);
            commands.push(words);
        });
        if let Groups::One(group) = groups {
            self.is_about(origin, group);
            let body = RequestBody::Exec(packed);
            let request = Request { is_anew: true, ..Request::new(origin, group, protocol, body) };
            self.send_request(request, Answerable::UNDER_WAY, actions);
            return;
        }
        let work = Work { is_exec: true, watches, commands, ..Work::new(origin, protocol, self.now.instant) };
        self.hold_until_answered(origin.session);
        self.begin_exec_over_groups(work, actions);
    }

    /// What a client sends next waits for the answers to all that it is owed. Whatever else it waits for may come
    /// earlier; if its last request waits for data, it is owed the answer anyway.
    fn hold_until_answered(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id)
            && session.hold != Hold::Blocked
        {
            session.hold = Hold::Answers;
        }
    }
}
