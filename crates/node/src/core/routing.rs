//! Requests on their way to groups, here or elsewhere, and the answers on their way back.

use group::Standing;
use group::cost::Cost;
use group::defect::Defect;
use group::ids::{CoreId, GroupId, Lane, NodeId, SessionId};
use group::proof::Proof;
use group::refusals::{LOADING, OUTCOME_UNKNOWN};
use group::replica_reads::{AppliedPosition, ReplicaRead};
use group::requests::PrepareAnswer;
use group::requests::{
    Claim, Locked, Origin, OutcomeQueryKind, ParticipantStatus, PlainRequest, Request, RequestBody, Route, Step,
};
use group::router;
use message::TransactionId;

use super::{Core, NOTHING_DONE};
use crate::core_messages::CoreMessage;
use crate::core_messages::DeclinedScript;
use crate::entry::Durability;
use crate::event::Action;
use crate::relay::{Expired, Purpose};
use crate::transaction::{Progress, Work};
use crate::{limits, validate, wire};

impl Core {
    /// The origin of a request with an answer for this core to take.
    pub(crate) fn origin_of(&self, session: SessionId) -> Origin {
        let known = self.sessions.get(session);
        let asked = known.map_or(Durability::Server, |session| session.options.durability);
        let durability = self.context.settings.durability(asked);
        let is_silent = known.is_some_and(|session| session.options.no_touch);
        let writes_for_source = known.is_some_and(|session| session.options.writes_for_site);
        let origin = Origin::new(self.context.node, self.context.core, session, 0);
        Origin { is_silent, durability, writes_for_source, ..origin }
    }

    pub(super) fn set_route(&mut self, group: GroupId, route: Route) {
        // Another core may have heard first that there is such a group.
        self.make_room_for(group.0 + 1);
        let before = std::mem::replace(&mut self.context.routes[group.0 as usize], route);
        // A client that waits for its keys stood in no line while nobody led the group.
        self.waits.must_stand_anew |= route.leader.is_some() && route != before;
        self.note_touch(group, route.leader.is_some());
        if route.leader.is_some_and(|leader| leader != self.context.node) {
            self.become_clustered();
        }
        if self.context.is_clustered {
            self.relay.set_route(group, route, self.now.instant);
        }
        self.count_led();
    }

    /// Tells all cores where the groups of this one are led.
    pub(super) fn tell_routes(&mut self) {
        let mut news = Vec::new();
        for group in self.groups.iter_mut().flatten() {
            news.extend(group.take_route().map(|route| (group.id(), route)));
        }
        for (group, route) in news {
            for core in (0..self.context.core_count).map(CoreId).filter(|core| *core != self.context.core) {
                self.outbox.push(self.context.core, core, CoreMessage::Route { group, route });
            }
            self.set_route(group, route);
        }
    }

    /// Sends what gateways of this core ask of groups, here or elsewhere.
    pub(crate) fn flush_relay(&mut self, actions: &mut Vec<Action>) {
        let Self { relay, outbox, context, now, .. } = self;
        let (node, core, core_count) = (context.node, context.core, context.core_count);
        relay.flush(now.instant, |leader, mut request| {
            // What it reads is remembered here already.
            request.origin.tracks = false;
            if leader == node {
                outbox.push(core, router::core_of(request.group, core_count), CoreMessage::Request(request));
            } else {
                let (group, mut bytes) = (request.group, wire::encode_request(&request));
                wire::stamp(&mut bytes, context.moments.latest());
                actions.push(Action::Send { to: leader, group, lane: Lane::Log, bytes });
            }
        });
    }

    /// True if a read has been answered and one of the same client before it has not: that answer was lost, and the
    /// next one may know more than this. Both are asked again.
    pub(super) fn has_overtaken(&mut self, claim: Claim) -> bool {
        let Some(session) = self.relay.reader(claim) else { return false };
        let relay = &mut self.relay;
        self.sessions.get(session).is_some_and(|session| {
            session
                .reads_of(claim.group)
                .any(|read| read.number < claim.number && relay.is_outstanding(claim.group, read.number))
        })
    }

    /// Notes how far a group was that has answered, for the client that has asked.
    pub(super) fn note_place(&mut self, claim: Claim, place: AppliedPosition) {
        let Some(heard) = self.heard_positions.get_mut(claim.group.0 as usize) else { return };
        *heard = heard.max(place);
        if let Some(Purpose::Client { session, .. }) = self.relay.purpose(claim)
            && let Some(session) = self.sessions.get_mut(*session)
            && let Some(reading) = &mut session.options.reading
        {
            reading.see(claim.group, place);
        }
    }

    /// A client of this node wants to read from a replica of this core.
    pub(super) fn take_near_read(&mut self, read: ReplicaRead) {
        match self.group_mut(read.group) {
            Some(group) => group.read_at_replica(read),
            None => self.outbox.push(self.context.core, read.origin.core, CoreMessage::NotNearby(read)),
        }
    }

    /// The answer to a numbered request has come.
    pub(super) fn take_relayed(
        &mut self,
        claim: Claim,
        place: AppliedPosition,
        cost: &Cost,
        (proof, bytes): (Proof, &[u8]),
        actions: &mut Vec<Action>,
    ) {
        if self.has_overtaken(claim) {
            return self.relay.refused(claim, self.now.instant);
        }
        self.note_place(claim, place);
        if let Some(moved) = message::answer::take_moved(bytes)
            && self.has_moved(claim, moved, actions)
        {
            return;
        }
        let is_to_be_told =
            self.context.is_clustered && self.context.tracker.is_wanted() && self.relay.is_of_change(claim, bytes);
        let is_refusal = matches!(proof, Proof::Refused);
        let Some((request, purpose)) = self.relay.answered(claim, is_refusal, self.now.instant) else { return };
        if !request.body.is_answered_by(&proof, bytes)
            || !validate::is_answer(&request.body, bytes, self.context.settings.databases)
        {
            // What it says cannot be relied on, and nobody else can be asked.
            self.context.statistics.malformed_peer_count += 1;
            return self.give_up_request(claim.group, purpose, OUTCOME_UNKNOWN.to_owned(), request, actions);
        }
        self.count_cost(&request, &purpose, cost);
        if is_to_be_told {
            self.park(claim, purpose, proof, bytes);
        } else {
            self.take_answer_of_group(claim, purpose, proof, bytes, actions);
        }
    }

    /// The same, when caches of this node have been told.
    pub(crate) fn take_answer_of_group(
        &mut self,
        claim: Claim,
        purpose: Purpose,
        proof: Proof,
        bytes: &[u8],
        actions: &mut Vec<Action>,
    ) {
        let group = claim.group;
        match purpose {
            Purpose::Client { session, ticket } => {
                self.sessions.reply_proven(session, ticket, proof, bytes);
                self.tell_stale(session, ticket);
            }
            Purpose::Question { id, part, places } => {
                self.group_answered(id, (group, part), places, Some(bytes), actions)
            }
            Purpose::Reservation => {}
            Purpose::CopyCount { id } => self.copies_counted(id, group, bytes, actions),
            Purpose::Lacking => self.lacking_told(group, bytes),
            Purpose::AppliedPosition { id } => self.leader_is_at(id, group, bytes, actions),
            Purpose::Parameters { id } => self.parameters_set(id, bytes, actions),
            Purpose::Obeyed { id } => self.parameters_obeyed(id, group, actions),
            Purpose::Script { session, ticket, protocol, script } => match group::answers::take_declined(bytes) {
                None => self.sessions.reply_proven(session, ticket, proof, bytes),
                Some(declined) => {
                    let origin = Origin { ticket, ..self.origin_of(session) };
                    self.take_declined(DeclinedScript { origin, protocol, script, declined, home: None }, actions);
                }
            },
            Purpose::Libraries { session, ticket } => self.libraries_changed(session, ticket, proof, bytes),
            Purpose::Move { by, id, step } => {
                let now = self.now;
                self.with_group(by, actions, |driving, output| {
                    driving.move_answered(id, group, step, bytes, now, output);
                });
            }
            Purpose::Transaction { id, step: Step::Lock } => {
                let outcome = match (group::answers::take_locked(bytes), proof.observed()) {
                    (Some(Locked::Refused(text)), _) => Err(text),
                    (Some(locked), Some(_)) => Ok((locked, proof)),
                    _ => Err(self.no_quorum(group)),
                };
                self.drive(actions, |coordinator, posts| coordinator.locked(id, group, outcome, posts));
            }
            Purpose::Transaction { id, step: Step::Prepare } => self.drive(actions, |coordinator, posts| {
                let (answer, place) = PrepareAnswer::take_with_place(bytes);
                coordinator.note_place(id, group, place);
                coordinator.prepared(id, group, (answer, proof), posts)
            }),
            Purpose::Transaction { step: Step::Renew, .. } => {}
            Purpose::Transaction { id, step: Step::Resolve } => {
                self.drive(actions, |coordinator, _| coordinator.resolved(id, group));
            }
        }
    }

    /// Gives up what nobody has answered for too long, and says whether it may have had an effect.
    pub(super) fn expire_requests(&mut self, actions: &mut Vec<Action>) {
        self.end_with_gone(actions);
        let now = self.now.instant;
        for Expired { group, purpose, is_in_doubt, request } in self.relay.pass_time(now) {
            let text = if is_in_doubt { OUTCOME_UNKNOWN.to_owned() } else { self.context.no_answer(group, now) };
            self.note_refusal(group, actions);
            self.give_up_request(group, purpose, text, request, actions);
        }
        let context = &self.context;
        for progress in self.coordinator.give_up(now, OUTCOME_UNKNOWN, |group| context.no_answer(group, now)) {
            self.progress(progress, actions);
        }
    }

    /// Refuses what a group was asked for, or says that nobody knows what has become of it.
    pub(super) fn give_up_request(
        &mut self,
        group: GroupId,
        purpose: Purpose,
        text: String,
        request: Request,
        actions: &mut Vec<Action>,
    ) {
        match purpose {
            Purpose::Client { session, ticket } => {
                let waiting = self.sessions.get(session).and_then(|session| session.waiting.as_ref());
                let is_waiting = waiting.is_some_and(|waiting| waiting.ticket == ticket);
                let text = match &request.body {
                    RequestBody::Read(words) | RequestBody::ReadAtOnce(words) if !is_waiting => {
                        self.no_quorum_to_read_words(session, group, words)
                    }
                    _ => text,
                };
                self.sessions.refuse(session, ticket, &text);
                self.tell_stale(session, ticket);
            }
            Purpose::Script { session, ticket, .. } | Purpose::Libraries { session, ticket } => {
                self.sessions.refuse(session, ticket, &text);
                self.tell_stale(session, ticket);
            }
            Purpose::Question { id, part, places } => self.group_answered(id, (group, part), places, None, actions),
            Purpose::CopyCount { id } => self.copies_counted(id, group, &[], actions),
            Purpose::Lacking => self.lacking_told(group, &[]),
            Purpose::AppliedPosition { id } => self.leader_is_at(id, group, &[], actions),
            Purpose::Parameters { id } => self.parameters_refused(id, &text, actions),
            Purpose::Obeyed { id } => self.parameters_obeyed(id, group, actions),
            Purpose::Transaction { id, step: Step::Lock } => {
                self.drive(actions, |coordinator, posts| coordinator.locked(id, group, Err(text), posts));
            }
            // Whether it holds a part is found out by the group itself.
            Purpose::Reservation | Purpose::Transaction { .. } | Purpose::Move { .. } => {}
        }
    }

    /// Tells what a group of this core knows of a transaction to the group that asks, on its node.
    pub(super) fn tell_status(
        &mut self,
        transaction: TransactionId,
        (asker, node): (GroupId, NodeId),
        group: GroupId,
        question: OutcomeQueryKind,
        actions: &mut Vec<Action>,
    ) {
        let now = self.now;
        if self.context.roster.is_gone(group) {
            // It has forgotten nothing that somebody has not ended, and prepares nothing any more.
            let status = match question {
                OutcomeQueryKind::ParticipantStatus => ParticipantStatus::Refused,
                OutcomeQueryKind::Ended => ParticipantStatus::Ended,
            };
            let mut output = Self::output(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
            return output.tell_status(transaction, (asker, node), group, status);
        }
        self.with_group(group, actions, |asked, output| match question {
            _ if asked.standing() != Standing::Serving => {}
            OutcomeQueryKind::ParticipantStatus => {
                if let Some(status) = asked.tell_status(transaction) {
                    output.tell_status(transaction, (asker, node), group, status);
                }
            }
            OutcomeQueryKind::Ended => asked.asked_for_ending(transaction, (asker, node), now, output),
        });
    }

    pub(crate) fn progress(&mut self, progress: Progress, actions: &mut Vec<Action>) {
        match progress {
            Progress::Going | Progress::Over => {}
            Progress::Again(work) if self.now.instant.since(work.begun) < limits::REQUEST_PATIENCE => {
                self.begin_work(*work, actions);
            }
            Progress::Again(work) => self.refuse_work(&work, NOTHING_DONE, actions),
            Progress::Widened(work) => self.begin_work(*work, actions),
            Progress::Unreadable { origin, home, protocol, group } => {
                let mut writer = resp::Writer::new(protocol);
                let text = "answered with a value that cannot be read, and nothing was done";
                writer.error(&format!("TRYAGAIN Group {} {text}", group.0));
                self.answer_work(&origin, home, (Proof::Refused, writer.into_bytes()), actions);
            }
            Progress::Compute(computation) => self.compute(computation, actions),
            Progress::Answered { origin, home, proof, bytes, asides, notices } => {
                let now = self.now;
                let mut output = Self::output(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
                output.tell_asides(&origin, *asides, now);
                self.answer_work(&origin, home, (proof, bytes), actions);
                let mut output = Self::output(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
                notices.iter().for_each(|notice| output.tell(notice));
            }
        }
    }

    /// Tells a client that its transaction has not been carried out.
    pub(crate) fn refuse_work(&mut self, work: &Work, text: &str, actions: &mut Vec<Action>) {
        let mut writer = resp::Writer::new(work.protocol);
        writer.error(text);
        self.answer_work(&work.origin, work.home, (Proof::Refused, writer.into_bytes()), actions);
    }

    /// Gives a client the reply to its transaction, and lets in what it has sent since.
    pub(super) fn answer_work(
        &mut self,
        origin: &Origin,
        home: Option<GroupId>,
        (proof, bytes): (Proof, Vec<u8>),
        actions: &mut Vec<Action>,
    ) {
        let mut output = Self::output(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
        output.reply_proven(origin, proof, bytes);
        // With control commands among them the reply is not yet whole.
        if self.sessions.get(origin.session).is_some_and(|session| session.composition.is_none()) {
            self.sessions.end_driving(origin.session, &self.context.settings.output_limits);
        }
        if let Some(home) = home {
            self.let_in(home, *origin, actions);
        }
    }

    /// A core of this node asks for what a client of its own has asked for. Mostly there is nothing to it but to do it.
    pub(super) fn take_plain(&mut self, from: CoreId, request: &PlainRequest, words: &[u8], actions: &mut Vec<Action>) {
        let (now, origin) = (self.now, request.origin(self.context.node, from));
        let mut is_taken = false;
        self.with_group(request.group, actions, |group, output| {
            is_taken = group.standing() == Standing::Serving && group.take_plain(request, &origin, words, now, output);
        });
        if !is_taken {
            self.take_request(request.with_words(origin, words), actions);
        }
    }

    /// Takes a request for a group of this core from any node or core.
    pub(crate) fn take_request(&mut self, request: Request, actions: &mut Vec<Action>) {
        let now = self.now;
        let standing = self.group_mut(request.group).map(|group| group.standing());
        if standing == Some(Standing::Serving) {
            if !matches!(request.body, RequestBody::Script(_)) {
                return self.with_group(request.group, actions, |group, output| group.request(request, now, output));
            }
            let mut is_expected = false;
            self.with_group(request.group, actions, |group, output| is_expected = group.expects(&request, output));
            if is_expected {
                self.take_script(request, false, actions);
            }
            return;
        }
        // A node that has not read its disk yet does not know of its cluster, but others do. What they ask may have
        // been carried out long ago: only a leader can say what became of it.
        let is_clustered = self.context.is_clustered || request.origin.node != self.context.node;
        let mut output = Self::output(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
        match &request.body {
            _ if is_clustered && request.origin.claim.is_some() => output.send_back(&request.origin),
            RequestBody::Lock(_) => {
                let refused = group::answers::put_locked(&Locked::Refused(LOADING.to_owned()));
                output.answer(&request.origin, Proof::Refused, refused);
            }
            RequestBody::Prepare { .. } | RequestBody::Cut { .. } => {
                output.answer(&request.origin, Proof::Refused, PrepareAnswer::Refused.put());
            }
            RequestBody::Renew { .. } | RequestBody::Resolve { .. } => {
                output.answer(&request.origin, Proof::Refused, Vec::new());
            }
            _ => output.refuse(&request.origin, request.protocol, LOADING),
        }
    }

    /// True if an answer comes from a node that was asked.
    pub(super) fn is_from_asked(&mut self, from: NodeId, claim: Claim) -> bool {
        if self.relay.has_asked(from, claim) || self.coordinator.defect == Some(Defect::BelievedAnswers) {
            return true;
        }
        // What was asked in another life of this core is nobody's lie.
        self.context.statistics.malformed_peer_count += u64::from(self.relay.is_own(claim));
        false
    }
}
