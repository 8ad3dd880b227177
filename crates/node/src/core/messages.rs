//! Envelopes of the other cores of this node, and messages of other nodes.

use stdx::UnixMillis;

use group::defect::Defect;
use group::ids::{CoreId, GroupId, Lane, NodeId, SessionId};
use group::requests::{PlainKind, Request, RequestBody};
use group::router;
use keyspace::{PREFETCH_MAX, PrefetchTarget};
use resp::Protocol;

use super::Core;
use crate::core_messages::{CoreMessage, Envelope, Piece};
use crate::dispatch::look_up;
use crate::event::Action;
use crate::quorum::Answerable;
use crate::relay::Purpose;
use crate::wire::{self, Wire};
use crate::{entry, validate};

impl Core {
    /// Another node or core knows of an entry of this moment, and what it says follows from that. A batch that has its
    /// moment already is closed: what follows from that word must not stand in it.
    pub(super) fn hear_moment(&mut self, moment: UnixMillis) {
        if moment <= self.context.moments.latest() || self.coordinator.defect == Some(Defect::DeafMoments) {
            return;
        }
        self.context.hear(moment);
        for group in self.groups.iter_mut().flatten() {
            group.close_batch(self.now, self.context.moments.latest(), &mut self.prng);
        }
    }

    /// Where there is an archive all cores must know soon of what others have logged: see `group::archive`. Other nodes
    /// learn it with the vitals.
    pub(super) fn pass_on_moment(&mut self) {
        let is_due =
            self.context.settings.closes_moments() && self.context.moments.is_to_be_passed_on(self.now.instant);
        if is_due {
            let own = self.context.core;
            for core in (0..self.context.core_count).map(CoreId).filter(|core| *core != own) {
                self.outbox.push(own, core, CoreMessage::Moment);
            }
        }
    }

    pub(super) fn read_envelope(&mut self, from: CoreId, mut envelope: Envelope, actions: &mut Vec<Action>) {
        self.hear_moment(envelope.moment);
        let mut pieces = envelope.pieces.drain(..);
        let mut looked_at = 0;
        loop {
            if looked_at == 0 {
                looked_at = self.prefetch(pieces.as_slice(), &envelope.bytes);
            }
            let Some(piece) = pieces.next() else { break };
            looked_at -= 1;
            match piece {
                Piece::Request(request) => {
                    self.take_plain(from, &request, &envelope.bytes[request.words.clone()], actions);
                }
                Piece::Reply { session, ticket, proof, bytes } => {
                    self.sessions.reply_proven(session, ticket, proof, &envelope.bytes[bytes]);
                }
                Piece::LongReply { session, ticket, proof, bytes } => {
                    self.sessions.reply_proven(session, ticket, proof, &bytes);
                }
                Piece::CoreMessage(message) => self.read_message(from, *message, actions),
            }
        }
        drop(pieces);
        self.outbox.recycle(envelope);
    }

    /// Looks up what the next reads of an envelope name, and says for how many pieces that lasts: at least one. (The
    /// keys of writes are looked up when their entry is applied.)
    pub(super) fn prefetch(&self, pieces: &[Piece], bytes: &[u8]) -> usize {
        let mut found = [(GroupId(0), PrefetchTarget::default()); PREFETCH_MAX];
        let (mut found_count, mut piece_count) = (0, 0);
        for piece in pieces.iter().take(PREFETCH_MAX) {
            let read = match piece {
                Piece::Request(request) if request.kind != PlainKind::Write => {
                    Some((request.group, &bytes[request.words.clone()]))
                }
                Piece::CoreMessage(message) => match &**message {
                    CoreMessage::Request(Request {
                        group,
                        body: RequestBody::Read(words) | RequestBody::ReadAtOnce(words),
                        ..
                    }) => Some((*group, &words[..])),
                    _ => None,
                },
                _ => None,
            };
            if let Some((group, words)) = read {
                entry::Reader::new(words).skim_words(&mut |ahead| {
                    found[found_count] = (group, ahead);
                    found_count += 1;
                });
            }
            piece_count += 1;
        }
        // For a single key there is nothing to be done side by side.
        if found_count > 1 {
            look_up(&self.groups, &found[..found_count]);
        }
        piece_count.max(1)
    }

    pub(super) fn read_own_mail(&mut self, actions: &mut Vec<Action>) -> bool {
        let message = std::mem::take(&mut self.outbox.own);
        let any = !message.is_empty();
        for message in message {
            self.read_message(self.context.core, message, actions);
        }
        any
    }

    pub(super) fn read_message(&mut self, from: CoreId, message: CoreMessage, actions: &mut Vec<Action>) {
        match message {
            CoreMessage::Request(request) => self.take_request(request, actions),
            CoreMessage::Moment => {}
            CoreMessage::Answered { claim, place, cost, proof, bytes } => {
                self.take_relayed(claim, place, &cost, (proof, &bytes), actions);
            }
            CoreMessage::ReadAtReplica(read) => self.take_near_read(read),
            CoreMessage::NotNearby(read) => self.read_far(read, actions),
            CoreMessage::Refused { claim } => self.relay.refused(claim, self.now.instant),
            CoreMessage::Alive { claim } => self.relay.alive(claim, self.now.instant),
            CoreMessage::Route { group, route } => self.set_route(group, route),
            CoreMessage::Slots(news) => self.learn_slots(&news),
            CoreMessage::Move { by, id, group, step, body } => {
                let origin = self.origin_of(SessionId { serial: 0, index: 0 });
                let request = Request::new(origin, group, Protocol::Resp2, body);
                self.relay.submit(request, Purpose::Move { by, id, step }, Answerable::UNDER_WAY, self.now.instant);
            }
            CoreMessage::Retry(request) => self.retry_script(request, actions),
            CoreMessage::Declined(declined) => self.take_declined(declined, actions),
            CoreMessage::LetIn { group, origin } => {
                let now = self.now;
                self.with_group(group, actions, |group, output| group.let_in(&origin, now, output));
            }
            // That there is no room to remember it keeps nobody from sending it again.
            CoreMessage::Learn(script) => drop(self.context.scripting.cache.insert(script, false)),
            CoreMessage::Libraries { libraries, first, reply } => {
                self.take_libraries(from, libraries, first, reply, actions)
            }
            CoreMessage::LibrariesKnown { version } => self.know_libraries(version),
            CoreMessage::Busy { core, is_function: Some(is_function) } => {
                self.context.scripting.busy.insert(core, is_function);
            }
            CoreMessage::Busy { core, is_function: None } => {
                self.context.scripting.busy.remove(&core);
            }
            CoreMessage::Slow { session, entries } => self.take_slow(session, entries),
            CoreMessage::Happened { kind, group, text } => self.note(kind, group, text, actions),
            CoreMessage::Parameters(parameters) => self.take_parameters(parameters, actions),
            CoreMessage::Level(level) => self.take_level(level),
            CoreMessage::GroupStatus(group_status) => self.context.group_statuses.hear(group_status, self.now.instant),
            CoreMessage::FromLeader(group_status) => {
                let now = self.now;
                self.with_group(group_status.group, actions, |group, output| {
                    group.hear_group_status(&group_status, now, output)
                });
            }
            CoreMessage::Loaded => self.note_loaded(from, actions),
            CoreMessage::Neighbours(neighbours) => self.context.neighbours = neighbours,
            CoreMessage::Checkpoint(stage) => self.hearing.note_checkpoint(from, stage),
            CoreMessage::WaitQueue(note) => self.take_wait_queue_note(note, actions),
            CoreMessage::Wake { session, ticket, group } => self.woken(session, ticket, group, actions),
            CoreMessage::OutcomeQuery { transaction, from: asker, node, group, question } => {
                self.tell_status(transaction, (asker, node), group, question, actions);
            }
            CoreMessage::ParticipantStatus { transaction, group, from, status } => {
                if let Some(group) = self.group_mut(group) {
                    group.hear(transaction, from, status);
                }
            }
            CoreMessage::Remember { session, keys } => {
                keys.iter().for_each(|key| self.context.tracker.remember(from, session, key));
            }
            CoreMessage::Invalidate { session, news, by } => self.invalidate(session, news, by),
            CoreMessage::Changed(changes) => self.hear_changes(&changes),
            CoreMessage::FlushCaches => self.flush_caches(),
            CoreMessage::FlushBroadcasters => self.flush_broadcasters(),
            CoreMessage::Hear { home, round, left } => self.hear(home, round, left),
            CoreMessage::Heard { round } => self.take_heard(round, actions),
            CoreMessage::Tell { gateway, claim } => self.tell_gateway(gateway, claim, actions),
            CoreMessage::Told { claim } => self.told(claim, actions),
            CoreMessage::Redirected { session, news, from } => self.tell_redirected(session, &news, from),
            CoreMessage::RedirectBroken { session, lost } => self.redirect_broken(session, lost),
            CoreMessage::Presence(core, presence) => self.set_presence(core, presence),
            CoreMessage::Monitored(line) => self.see_command(&line),
            CoreMessage::Monitoring(core, watches) => self.context.monitors.set_core(core, watches),
            CoreMessage::Users(users) => self.install_users(&users),
            CoreMessage::Publish(message) => {
                self.deliver(&message);
            }
            CoreMessage::Roster(roster) => {
                if !roster.is_empty() {
                    self.become_clustered();
                }
                self.context.take_roster(roster);
                self.look_for_founded(actions);
                self.note_gone(actions);
                self.look_at_slots();
                if self.context.roster.is_removed(self.context.node) {
                    self.be_expelled(actions);
                }
            }
            CoreMessage::SplitOff(new) => self.take_split_off(*new, actions),
            CoreMessage::SplitKept { parent, group } => {
                if let Some(parent) = self.group_mut(parent) {
                    parent.beginning_kept(group);
                }
            }
            CoreMessage::SplitBegun { parent, group } => {
                if let Some(parent) = self.group_mut(parent) {
                    parent.note_begun(group);
                }
            }
            CoreMessage::SplitsPassed(groups) => self.pass_over_splits(&groups, actions),
            CoreMessage::Ask { question_id, question } => self.answer_or_defer(from, question_id, question, actions),
            CoreMessage::Answer { question_id, answer } => self.take_answer(from, question_id, answer, actions),
        }
    }

    pub(super) fn peer(&mut self, from: NodeId, bytes: &[u8], actions: &mut Vec<Action>) {
        let (now, node) = (self.now, from);
        let Some((moment, bytes)) = wire::unstamp(bytes) else {
            self.context.statistics.malformed_peer_count += 1;
            return;
        };
        if let Some(moment) = moment {
            self.hear_moment(moment);
        }
        match wire::decode(bytes) {
            // A checkpoint may be on its way since before it was known that the group is gone.
            Some(Wire::Raft(group, _) | Wire::Offer(group, _) | Wire::Chunk { group, .. }) if self.stays_out(group) => {
            }
            Some(Wire::Raft(group, message)) => {
                let may_vote_first = self.may_vote_first(group);
                if message.from() == from.0
                    && let Some(group) = self.group_mut(group)
                {
                    group.step(message, may_vote_first);
                }
            }
            Some(Wire::Offer(group, message)) => {
                self.with_group(group, actions, |group, output| group.offered(from, message, now, output));
            }
            Some(Wire::Pull { group, index, chunk }) => {
                self.with_group(group, actions, |group, output| group.pulled(from, index, chunk, now, output));
            }
            Some(Wire::Chunk { group, index, chunk, bytes }) => {
                self.with_group(group, actions, |group, output| {
                    group.chunk_came(from, index, chunk, bytes, now, output);
                });
            }
            Some(Wire::Announce(node, member)) => self.hear_announcement(from, node, &member, actions),
            // The leader speaks for itself.
            Some(Wire::GroupStatus(group_status)) if group_status.leader == from => {
                let home = router::core_of(group_status.group, self.context.core_count);
                self.outbox.push(self.context.core, home, CoreMessage::FromLeader(group_status.clone()));
                self.context.group_statuses.hear(group_status, now.instant);
            }
            Some(Wire::Vacant(group)) => {
                if let Some(group) = self.group_mut(group) {
                    group.told_vacant(from, now);
                }
            }
            Some(Wire::Where { group, cover }) => {
                self.with_group(group, actions, |group, output| group.asked_for_slots(from, cover, output));
            }
            Some(Wire::Held { group, slots }) => {
                if self.group_mut(group).is_some_and(|group| group.hears_slots_of(from, now)) {
                    self.tell_all_cores_slots(slots);
                }
            }
            Some(Wire::AmMember(group)) => {
                self.with_group(group, actions, |group, output| group.asked_membership(from, output));
            }
            Some(Wire::NoMember { group, index }) => {
                if let Some(group) = self.group_mut(group) {
                    group.told_no_member(from, index, now);
                }
            }
            Some(Wire::Vitals(vitals)) => self.hearing.hear(from, vitals, now.instant),
            Some(Wire::Timeline(happenings)) => {
                happenings.into_iter().for_each(|happening| self.context.history.timeline.hear(happening));
            }
            Some(Wire::GroupStatus(_)) => self.context.statistics.malformed_peer_count += 1,
            // A node speaks for its own clients.
            Some(Wire::WaitQueue(note)) if note.waiter.node == from => self.take_wait_queue_note(note, actions),
            Some(Wire::WaitQueue(_)) => self.context.statistics.malformed_peer_count += 1,
            Some(Wire::Wake { waiter, group }) => {
                self.woken(waiter.session, waiter.ticket, group, actions);
            }
            // The node that answers is told where the client is: a node speaks for itself.
            Some(Wire::Request(request))
                if request.origin.node == from
                    && validate::is_valid(&request, self.context.group_count, self.context.settings.databases) =>
            {
                self.take_request(request, actions);
            }
            Some(Wire::Request(_)) => self.context.statistics.malformed_peer_count += 1,
            Some(Wire::Answer(claim, place, cost, proof, bytes)) => {
                if self.is_from_asked(from, claim) {
                    self.take_relayed(claim, place, &cost, (proof, bytes), actions);
                }
            }
            Some(Wire::Sound { group, number }) => {
                self.with_group(group, actions, |group, output| group.sounded(from, number, now, output));
            }
            Some(Wire::AppliedPosition { group, number, place }) => {
                if let Some(group) = self.group_mut(group) {
                    group.told_applied_position(from, number, place);
                }
            }
            Some(Wire::Refused(claim)) => {
                if self.is_from_asked(from, claim) {
                    self.relay.refused(claim, now.instant);
                }
            }
            Some(Wire::Alive(claim)) => {
                if self.is_from_asked(from, claim) {
                    self.relay.alive(claim, now.instant);
                }
            }
            Some(Wire::OutcomeQuery { transaction, from: asker, group, question }) => {
                self.tell_status(transaction, (asker, from), group, question, actions);
            }
            Some(Wire::ParticipantStatus { transaction, group, from, status }) => {
                // A group speaks through its leader.
                let is_leader =
                    self.context.routes.get(from.0 as usize).is_some_and(|route| route.leader == Some(node));
                if let Some(group) = self.group_mut(group).filter(|_| is_leader) {
                    group.hear(transaction, from, status);
                }
            }
            Some(Wire::Ask { gateway, group }) => {
                let bytes = wire::encode_life(gateway, group, gateway == self.coordinator.gateway());
                actions.push(Action::Send { to: from, group, lane: Lane::Vital, bytes });
            }
            Some(Wire::Life { gateway, group, is_alive }) if gateway.node == from.0 => {
                self.with_group(group, actions, |group, output| group.told_life(gateway, is_alive, now, output));
            }
            Some(Wire::Life { .. }) => self.context.statistics.malformed_peer_count += 1,
            Some(Wire::Publish(message)) => {
                Self::output(&mut self.context, &mut self.sessions, &mut self.outbox, actions).publish_here(&message);
            }
            None => self.context.statistics.malformed_peer_count += 1,
        }
    }
}
