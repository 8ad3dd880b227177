//! The way out of a group: replies to clients on any node or core, envelopes to sibling cores, messages to other nodes.

mod blocking;
mod caches;
mod for_groups;
pub(crate) mod monitor;

use group::cost::Cost;
use group::ids::{CoreId, GroupId, Lane, Level, NodeId};
use group::proof::{Committed, Observed, Proof};
use group::published::Published;
use group::requests::{Origin, OutcomeQueryKind, ParticipantStatus, PlainRequest};
use group::timeline;
use keyspace::{DataCommand, Notice};
use message::TransactionId;
use resp::{Args, Protocol, Writer};
use stdx::UnixMillis;

use crate::context::Context;
use crate::core_messages::{CoreMessage, Envelope, Piece};
use crate::entry::put_words;
use crate::event::Action;
use crate::invalidation_barrier::Withheld;
use crate::known::Known;
use crate::session::Sessions;
use crate::stats::cost::Measure;
use crate::stats::timing::{Timings, Watch};
use crate::{limits, wire};

/// Letters being gathered, one per sibling core.
#[derive(Debug, Default)]
pub struct Outbox {
    envelopes: Vec<Envelope>,
    /// Core Message of this core to itself, to be read in the same turn.
    pub own: Vec<CoreMessage>,
    /// Letters that have been read, for the next ones to be written into.
    spare: Vec<Envelope>,
}

impl Outbox {
    /// An outbox to `core_count` cores.
    pub fn new(core_count: u16) -> Self {
        Self { envelopes: (0..core_count).map(|_| Envelope::default()).collect(), own: Vec::new(), spare: Vec::new() }
    }

    /// Adds to what a core will be told.
    pub fn push(&mut self, own: CoreId, to: CoreId, message: CoreMessage) {
        if own == to {
            self.own.push(message);
        } else {
            self.envelopes[usize::from(to.0)].pieces.push(Piece::CoreMessage(Box::new(message)));
        }
    }

    /// Asks another core for what a client has asked for.
    pub(crate) fn push_plain(&mut self, to: CoreId, request: PlainRequest, database: u16, args: Args<'_>) {
        let envelope = &mut self.envelopes[usize::from(to.0)];
        let start = envelope.bytes.len();
        put_words(&mut envelope.bytes, database, args);
        envelope.pieces.push(Piece::Request(PlainRequest { words: start..envelope.bytes.len(), ..request }));
    }

    /// Gives another core the reply to a client of its own.
    fn push_reply(&mut self, origin: &Origin, protocol: Protocol, proof: Proof, write: impl FnOnce(&mut Writer)) {
        let envelope = &mut self.envelopes[usize::from(origin.core.0)];
        let mut writer = Writer::onto(std::mem::take(&mut envelope.bytes), protocol);
        let start = writer.len();
        write(&mut writer);
        envelope.bytes = writer.into_bytes();
        let Origin { session, ticket, .. } = *origin;
        envelope.pieces.push(if envelope.bytes.len() - start > limits::ENVELOPE_BYTES_KEPT_MAX {
            // By itself, so that it is gone as soon as it has been read, and others need not move for it.
            Piece::LongReply { session, ticket, proof, bytes: envelope.bytes.split_off(start) }
        } else {
            Piece::Reply { session, ticket, proof, bytes: start..envelope.bytes.len() }
        });
    }

    /// Keeps the memory of an envelope that has been read.
    pub(crate) fn recycle(&mut self, mut envelope: Envelope) {
        let is_small = envelope.bytes.capacity() <= limits::ENVELOPE_BYTES_KEPT_MAX
            && envelope.pieces.capacity() <= limits::ENVELOPE_PIECES_KEPT_MAX;
        if is_small && self.spare.len() < self.envelopes.len().min(limits::ENVELOPES_KEPT_MAX) {
            envelope.pieces.clear();
            envelope.bytes.clear();
            self.spare.push(envelope);
        }
    }

    /// Posts what has been gathered. `moment` is the latest that this core knows of.
    pub fn flush(&mut self, moment: UnixMillis, actions: &mut Vec<Action>) {
        for (core, envelope) in self.envelopes.iter_mut().enumerate() {
            if !envelope.pieces.is_empty() {
                envelope.moment = moment;
                let envelope = std::mem::replace(envelope, self.spare.pop().unwrap_or_default());
                actions.push(Action::Post { to: CoreId(core as u16), envelope });
            }
        }
    }
}

/// See the module.
pub struct Output<'a> {
    /// The core's own state.
    pub context: &'a mut Context,
    /// Sessions of this core.
    pub sessions: &'a mut Sessions,
    /// Letters of this turn.
    pub outbox: &'a mut Outbox,
    /// What the host is asked to do.
    pub actions: &'a mut Vec<Action>,
}

impl Output<'_> {
    /// The core of this node on which a group lives.
    pub fn core_of(&self, group: GroupId) -> CoreId {
        CoreId((group.0 % u32::from(self.context.core_count)) as u16)
    }

    /// Notes something on the timeline of the cluster, and in the operator's log.
    pub fn happened(&mut self, kind: timeline::Kind, group: Option<GroupId>, text: String) {
        let line = group.map_or_else(|| text.clone(), |group| format!("group {}: {text}", group.0));
        self.actions.push(Action::Log { level: Level::Notice, line });
        self.post(CoreId(0), CoreMessage::Happened { kind, group, text });
    }

    /// Tells a core of this node.
    pub fn post(&mut self, to: CoreId, message: CoreMessage) {
        self.outbox.push(self.context.core, to, message);
    }

    /// Answers a request that changed nothing.
    #[inline]
    pub(crate) fn reply_observed(
        &mut self,
        origin: &Origin,
        protocol: Protocol,
        observed: Observed,
        write: impl FnOnce(&mut Writer),
    ) {
        if self.is_here(origin) {
            self.sessions.reply_observed(origin.session, origin.ticket, observed, write);
        } else {
            self.send_reply(origin, protocol, observed.into(), write);
        }
    }

    /// Gives a client a reply that has been kept, in its session's protocol.
    pub(crate) fn reply_proven(&mut self, origin: &Origin, proof: Proof, bytes: Vec<u8>) {
        if self.is_here(origin) {
            self.sessions.reply_proven(origin.session, origin.ticket, proof, &bytes);
        } else {
            // Its bytes are in the right protocol.
            self.send_reply(origin, Protocol::Resp2, proof, |writer| writer.raw(&bytes));
        }
    }

    /// True if its client's session is one of this core, which waits for no numbered answer.
    #[inline]
    fn is_here(&self, origin: &Origin) -> bool {
        origin.claim.is_none() && origin.node == self.context.node && origin.core == self.context.core
    }

    /// Answers a read, and measures it. `write` says whether it has been carried out, or must wait.
    #[inline]
    pub(crate) fn reply_to_read(
        &mut self,
        origin: &Origin,
        protocol: Protocol,
        observed: Observed,
        (command, args): (&'static DataCommand, Args<'_>),
        write: impl FnOnce(&mut Writer) -> bool,
    ) {
        if origin.claim.is_none() {
            let watch = self.start_watch(command, args);
            let mut is_done = false;
            self.reply_observed(origin, protocol, observed, |writer| is_done = write(writer));
            self.stop_watch(watch.filter(|_| is_done), origin, args);
        } else {
            let mut cost = Cost::default();
            let mut writer = Writer::new(protocol);
            let mut measure = Measure::for_gateway(&mut self.context.timings, &mut cost, origin.is_timed);
            let watch = measure.start(command, args);
            let is_done = write(&mut writer);
            measure.stop(watch.filter(|_| is_done), args);
            self.answer_with(origin, observed.into(), cost, writer.into_bytes());
        }
    }

    /// Answers a request that changed data, when those who cache have been told: [`Output::settle`] must follow. What
    /// is written gets what measures commands one by one.
    #[inline]
    pub(crate) fn reply_timed(
        &mut self,
        origin: &Origin,
        protocol: Protocol,
        proof: Committed,
        write: impl FnOnce(&mut Timings, &mut Writer),
    ) {
        let timings = &mut self.context.timings;
        if self.context.tracker.is_wanted() && origin.claim.is_none() {
            let mut writer = Writer::new(protocol);
            write(timings, &mut writer);
            let bytes = writer.into_bytes();
            self.context.invalidation_barrier.put(Withheld::Reply { origin: *origin, proof, bytes });
        } else if origin.claim.is_none() && origin.node == self.context.node && origin.core == self.context.core {
            let write = |writer: &mut Writer| write(timings, writer);
            self.sessions.reply_committed(origin.session, origin.ticket, proof, write);
        } else if origin.claim.is_none() {
            let write = |writer: &mut Writer| write(timings, writer);
            self.outbox.push_reply(origin, protocol, proof.into(), write);
        } else {
            let mut writer = Writer::new(protocol);
            write(timings, &mut writer);
            self.answer(origin, proof, writer.into_bytes());
        }
    }

    fn send_reply(&mut self, origin: &Origin, protocol: Protocol, proof: Proof, write: impl FnOnce(&mut Writer)) {
        if origin.claim.is_some() {
            let mut writer = Writer::new(protocol);
            write(&mut writer);
            self.answer(origin, proof, writer.into_bytes());
        } else {
            self.outbox.push_reply(origin, protocol, proof, write);
        }
    }

    /// Answers a numbered request.
    pub(crate) fn answer(&mut self, origin: &Origin, proof: impl Into<Proof>, bytes: Vec<u8>) {
        self.answer_with(origin, proof.into(), Cost::default(), bytes);
    }

    /// The same, and tells what it has taken.
    pub(crate) fn answer_with(&mut self, origin: &Origin, proof: Proof, cost: Cost, bytes: Vec<u8>) {
        let Some(claim) = origin.claim else { return };
        let place = self.context.place_of(claim.group);
        self.tell_gateway(origin, CoreMessage::Answered { claim, place, cost, proof, bytes });
    }

    /// Answers a numbered request that changed data. The answer to a step of a transaction waits for those who cache:
    /// [`Output::settle`] must follow. Gateways see to it that clients' replies do.
    pub(crate) fn answer_committed(&mut self, origin: &Origin, proof: Committed, cost: Cost, bytes: Vec<u8>) {
        if self.context.tracker.is_wanted() && origin.session.serial == 0 {
            self.context.invalidation_barrier.put(Withheld::Answer { origin: *origin, proof, bytes });
        } else {
            self.answer_with(origin, proof.into(), cost, bytes);
        }
    }

    /// Lets a gateway send again what it has asked: it was not carried out here, and may be elsewhere.
    pub fn send_back(&mut self, origin: &Origin) {
        if let Some(claim) = origin.claim {
            self.tell_gateway(origin, CoreMessage::Refused { claim });
        }
    }

    /// Tells a gateway that its request has come again and will be answered.
    pub fn alive(&mut self, origin: &Origin) {
        if let Some(claim) = origin.claim {
            self.tell_gateway(origin, CoreMessage::Alive { claim });
        }
    }

    fn tell_gateway(&mut self, origin: &Origin, message: CoreMessage) {
        if origin.node == self.context.node {
            self.outbox.push(self.context.core, origin.core, message);
        } else if let Some(bytes) = wire::encode_to_gateway(&message) {
            // The group's number only tells the receiving host which core to wake: the gateway's own.
            self.send(origin.node, GroupId(u32::from(origin.core.0)), Lane::Log, bytes);
        }
    }

    /// Asks another participant, on the node that leads it, about a transaction without a gateway. What gets lost is
    /// asked again.
    pub fn query_outcome(&mut self, transaction: TransactionId, from: GroupId, group: GroupId) {
        self.ask_participant(transaction, from, group, OutcomeQueryKind::ParticipantStatus);
    }

    /// Asks another participant of a transaction that was committed whether it has ended it, too. What gets lost is
    /// asked again.
    pub fn ask_whether_ended(&mut self, transaction: TransactionId, from: GroupId, group: GroupId) {
        self.ask_participant(transaction, from, group, OutcomeQueryKind::Ended);
    }

    fn ask_participant(
        &mut self,
        transaction: TransactionId,
        from: GroupId,
        group: GroupId,
        question: OutcomeQueryKind,
    ) {
        let own = self.context.node;
        // A group that has come into being may be known to this group's log before the roster tells of it here.
        let Some(route) = self.context.routes.get(group.0 as usize) else { return };
        match route.leader {
            Some(leader) if leader != own => {
                let bytes = wire::encode_outcome_query(transaction, from, group, question);
                self.send(leader, group, Lane::Log, bytes);
            }
            _ => {
                let core = self.core_of(group);
                self.post(core, CoreMessage::OutcomeQuery { transaction, from, node: own, group, question });
            }
        }
    }

    /// Tells a participant, for which its leader on `node` has asked, what another one knows of a transaction.
    pub(crate) fn tell_status(
        &mut self,
        transaction: TransactionId,
        (asker, node): (GroupId, NodeId),
        from: GroupId,
        status: ParticipantStatus,
    ) {
        if node == self.context.node {
            let core = self.core_of(asker);
            self.post(core, CoreMessage::ParticipantStatus { transaction, group: asker, from, status });
        } else {
            self.send(node, asker, Lane::Log, wire::encode_participant_status(transaction, asker, from, status));
        }
    }

    /// A command begins to be carried out.
    #[inline]
    pub(crate) fn start_watch(&mut self, command: &'static DataCommand, args: Args<'_>) -> Option<Watch> {
        self.context.timings.start(Known::Data(command), args)
    }

    /// It has been.
    #[inline]
    pub(crate) fn stop_watch(&mut self, watch: Option<Watch>, origin: &Origin, args: Args<'_>) {
        if let Some(watch) = watch {
            self.context.timings.stop(watch, args);
            self.name_slow(origin);
        }
    }

    /// Gives the slow commands measured last to the core of their client.
    #[inline]
    pub(crate) fn name_slow(&mut self, origin: &Origin) {
        if self.context.timings.has_slow() {
            self.name_slow_now(origin);
        }
    }

    #[cold]
    fn name_slow_now(&mut self, origin: &Origin) {
        if let Some(session) = self.sessions.get(origin.session) {
            self.context.note_slow(session);
        } else {
            let entries = self.context.timings.take_slow();
            self.post(origin.core, CoreMessage::Slow { session: origin.session, entries });
        }
    }

    /// Refuses a request.
    pub fn refuse(&mut self, origin: &Origin, protocol: Protocol, text: &str) {
        if self.is_here(origin) {
            self.sessions.refuse(origin.session, origin.ticket, text);
        } else {
            self.send_reply(origin, protocol, Proof::Refused, |writer| writer.error(text));
        }
    }

    /// Hands a message to everybody who listens, here and on other nodes.
    pub fn publish(&mut self, message: &Published) {
        self.publish_here(message);
        self.publish_to_peers(message);
    }

    /// Hands a message to everybody who listens on this node.
    pub fn publish_here(&mut self, message: &Published) {
        let own = self.context.core;
        self.context.pubsub.deliver(message, self.sessions, &self.context.settings.output_limits);
        for core in (0..self.context.core_count).map(CoreId).filter(|core| *core != own) {
            self.outbox.push(own, core, CoreMessage::Publish(message.clone()));
        }
    }

    /// Sends a message to the other nodes. Their cores hand it to those who listen there.
    pub fn publish_to_peers(&mut self, message: &Published) {
        // Any core there will do, so the one of the same number.
        let group = GroupId(u32::from(self.context.core.0));
        let own = self.context.node;
        for (node, _) in self.context.roster.present().filter(|(node, _)| *node != own) {
            let mut bytes = wire::encode_publish(message);
            wire::stamp(&mut bytes, self.context.moments.latest());
            self.actions.push(Action::Send { to: node, group, lane: Lane::Log, bytes });
        }
    }

    /// Tells those who listen to a key, or to what is done to keys.
    pub fn tell(&mut self, notice: &Notice) {
        let wanted = self.context.settings.notify;
        if !wanted.classes.has(notice.class) {
            return;
        }
        let database = notice.database;
        if wanted.by_key {
            let mut channel = format!("__keyspace@{database}__:").into_bytes();
            channel.extend_from_slice(&notice.key);
            self.publish(&Published::new(&channel, notice.name.as_bytes()));
        }
        if wanted.by_event {
            let channel = format!("__keyevent@{database}__:{}", notice.name);
            self.publish(&Published::new(channel.as_bytes(), &notice.key));
        }
    }

    /// Sends a message to another node's core of a group.
    pub fn send(&mut self, to: NodeId, group: GroupId, lane: Lane, mut bytes: Vec<u8>) {
        wire::stamp(&mut bytes, self.context.moments.latest());
        self.actions.push(Action::Send { to, group, lane, bytes });
    }
}
