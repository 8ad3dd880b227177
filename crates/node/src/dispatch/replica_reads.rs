//! Reads that the replica of this node answers within the bound of their client.

use command::{Flag, Span as KeySpan};
use group::ids::{GroupId, SessionId};
use group::replica_reads::ReplicaRead;
use group::requests::{Origin, Request, RequestBody};
use group::router;
use keyspace::{Body, DataCommand};
use resp::{Args, Span};
use stdx::slot::slot_of;

use super::{Groups, Next, lookup};
use crate::core::Core;
use crate::core_messages::CoreMessage;
use crate::entry::{Reader, put_words};
use crate::event::Action;
use crate::known::Known;
use crate::session::{Hold, NotedRead};
use crate::{limits, redirect};

impl Core {
    /// The group with a replica on this node that is asked, if there is one that may answer.
    pub(super) fn replica_group(&self, id: SessionId, known: Known, args: Args<'_>) -> Option<GroupId> {
        // What was declined before comes first.
        let is_in_turn = self.sessions.get(id).is_some_and(|session| !session.awaits_far());
        self.group_with_replica(id, known, args).filter(|_| is_in_turn)
    }

    /// The group with a replica on this node that may answer a request, because its session has said READONLY.
    pub(crate) fn group_with_replica(&self, id: SessionId, known: Known, args: Args<'_>) -> Option<GroupId> {
        let (session, Known::Data(command)) = (self.sessions.get(id)?, known) else { return None };
        let is_plain = matches!(command.body, Body::Query(_))
            && matches!(command.span, KeySpan::Keys)
            && !command.has(Flag::Blocking)
            && !command.walks();
        // A watch says how a key was at the leader, and caches are told of changes by leaders' order.
        let may_be_old = self.context.is_clustered
            && !session.tracks()
            && session.watches.is_empty()
            && session.options.reading.as_ref().is_some_and(|reading| !self.context.allowed(reading).is_zero());
        let Groups::One(group) = self.groups_of(command, args) else { return None };
        let has_one_place = self.context.slots.is_even() || redirect::slot_of_keys(command, args).is_ok();
        let is_led_here = self.context.routes[group.0 as usize].leader == Some(self.context.node);
        (is_plain && may_be_old && has_one_place && !is_led_here).then_some(group)
    }

    /// Something is asked for that leaders answer; false if it must wait, so as not to be overtaken by reads that have
    /// been asked for before.
    pub(super) fn leave_replica(&mut self, id: SessionId, known: Known) -> bool {
        let Some(session) = self.sessions.get_mut(id) else { return true };
        if session.awaits_replica_read() {
            return false;
        }
        if let Some(reading) = &mut session.options.reading {
            let is_of_one = |command: &DataCommand| {
                matches!(command.span, KeySpan::Keys) && !command.has(Flag::Blocking) && !command.walks()
            };
            if !matches!(known, Known::Data(command) if is_of_one(command)) {
                reading.blur();
            }
        }
        true
    }

    /// Asks the replica on this node.
    pub(super) fn read_at_replica(
        &mut self,
        id: SessionId,
        group: GroupId,
        command: &DataCommand,
        args: Args<'_>,
    ) -> Next {
        let (node, core) = (self.context.node, self.context.core);
        let mut epoch = 0;
        if !self.context.slots.is_even() {
            command.for_each_key(args, |index, _| epoch = self.context.slots.epoch_of(slot_of(args.at(index))));
        }
        let session = self.sessions.get_mut(id).expect("its request is being looked at");
        if session.owed_count() >= limits::OWED_COUNT_TO_READ_MAX {
            return Next::Postponed(Hold::Answers);
        }
        let mut words = Vec::with_capacity(args.byte_count() + 5 * args.len() + 8);
        put_words(&mut words, session.database, args);
        let (protocol, ticket) = (session.protocol(), session.take_ticket_to_read_nearby());
        let is_silent = session.options.no_touch;
        let reading = session.options.reading.as_mut().expect("it has said READONLY");
        let read = ReplicaRead {
            origin: Origin { is_silent, ..Origin::new(node, core, id, ticket) },
            group,
            protocol,
            words,
            allowed: self.context.allowed(reading),
            floor: reading.floor(group, &self.heard_positions),
            epoch,
            run: reading.run,
        };
        let home = router::core_of(group, self.context.core_count);
        self.outbox.push(core, home, CoreMessage::ReadAtReplica(read));
        Next::Taken
    }

    /// The replica has declined: the leader is asked.
    pub(crate) fn read_far(&mut self, read: ReplicaRead, actions: &mut Vec<Action>) {
        let ReplicaRead { origin, group, protocol, words, .. } = read;
        let Some(session) = self.sessions.get_mut(origin.session) else { return };
        session.is_declined(origin.ticket);
        let answerable = match self.check_quorum_to_read_words(origin.session, group, &words) {
            Ok(answerable) => answerable,
            Err(refusal) => return self.sessions.refuse(origin.session, origin.ticket, refusal.text()),
        };
        let mut spans: Vec<Span> = Vec::new();
        let (_, args) = Reader::new(&words).words(&mut spans);
        let is_timed = lookup(args).is_ok_and(|known| self.wants_time(known, args));
        let tells_use = keyspace::resolve(args).is_some_and(keyspace::tells_use);
        let origin = Origin { is_timed, ..origin };
        let request = Request::new(origin, group, protocol, RequestBody::ReadAtOnce(words));
        if let Some(number) = self.send_request(request, answerable, actions) {
            self.note_read(origin.session, NotedRead { group, number, tells_use });
        }
    }
}
