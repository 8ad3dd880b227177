//! Requests as they come in: each is numbered, waits for its turn, and is gathered in the batch.

use stdx::Levels;

use message::entry::{self, Claimed};
use resp::{Args, Protocol};
use state::Lookup;

use super::batches::fail;
use super::{DeferredRead, Group, Held, ReadWhat, Waiter};
use crate::defect::Defect;
use crate::ids::{Now, Room, SessionId};
use crate::limits;
use crate::output::NodeView;
use crate::output::Output;
use crate::proof::{Committed, Observed};
use crate::requests::{Origin, PlainKind, PlainRequest, Request, RequestBody};

impl Group {
    /// True if an earlier request of this node's session waits here for locked keys.
    #[inline]
    pub fn holds_request_of(&self, session: SessionId) -> bool {
        let waiter = (self.node.0, session.serial);
        (!self.leader.held_sessions.is_empty() && self.leader.held_sessions.contains(&waiter))
            || (!self.leader.kept_out.is_empty() && self.leader.kept_out.contains(&waiter))
    }

    /// Adds a write to the batch. The group must be [`Standing::Serving`], the keys free.
    #[inline]
    pub fn write(&mut self, origin: Origin, protocol: Protocol, database: u16, args: Args<'_>) {
        assert!(self.is_serving, "a write where nothing is applied for clients");
        self.note_change(args);
        self.leader.builder.command(protocol, database, args);
        self.leader.waiters.push(Waiter::Write(origin));
    }

    /// Tells scripts that keys are going to change.
    #[inline]
    pub(super) fn note_change(&mut self, args: Args<'_>) {
        if !self.leader.speculation.is_active {
            return;
        }
        let command = keyspace::resolve(args).expect("a request was checked by its gateway");
        if matches!(command.span, command::Span::Whole(_)) {
            self.leader.speculation.note_everything(self.batch.number);
        }
        command.for_each_key(args, |index, _| self.leader.speculation.note(args.at(index), self.batch.number));
    }

    pub(super) fn note_packed(&mut self, words: &[u8]) {
        if self.leader.speculation.is_active {
            let mut spans = std::mem::take(&mut self.spans);
            let (_, args) = entry::Reader::new(words).words(&mut spans);
            self.note_change(args);
            self.spans = spans;
        }
    }

    pub(super) fn note_exec(&mut self, packed: &[u8], protocol: Protocol) {
        if self.leader.speculation.is_active {
            let mut spans = std::mem::take(&mut self.spans);
            let exec = entry::Reader::new(packed).exec(protocol, &mut spans);
            exec.for_each(&mut spans, |_, args| self.note_change(args));
            self.spans = spans;
        }
    }

    /// Carries out a command that another core of this node asks for, if nothing stands in its way. False if something
    /// may, and [`Group::request`] must look at it. The group must be [`Standing::Serving`].
    pub fn take_plain(
        &mut self,
        request: &PlainRequest,
        origin: &Origin,
        words: &[u8],
        now: Now,
        output: &mut impl Output,
    ) -> bool {
        if request.kind == PlainKind::Read || !self.is_unhindered(output.view()) || self.has_foreign(words) {
            return false;
        }
        if request.kind == PlainKind::Write {
            self.note_packed(words);
            self.leader.builder.packed_command(request.protocol, words);
            self.leader.waiters.push(Waiter::Write(*origin));
        } else {
            self.execute_query(words, origin, request.protocol, now, output);
        }
        true
    }

    /// True if requests of this node's clients wait for nothing, and are refused for nothing that is not in their
    /// words.
    pub(super) fn is_unhindered(&self, context: &impl NodeView) -> bool {
        self.is_alone()
            && *context.room() == Room::Enough
            && !context.follows_source()
            && context.replicas_to_write() == 0
            && self.level_to_log() >= Levels::KNOWN.highest
            && self.leader.locks.is_empty()
            && self.leader.reservations.is_empty()
            && self.leader.held_sessions.is_empty()
            && self.leader.kept_out.is_empty()
            && self.leader.redirected.is_empty()
            && !self.is_closed()
            && self.defect.is_none()
    }

    /// Takes a request that came as an envelope or from another node. The group must be [`Standing::Serving`].
    pub fn request(&mut self, request: Request, now: Now, output: &mut impl Output) {
        assert!(self.is_serving, "a request where nothing is applied for clients");
        if self.defect == Some(Defect::ForgottenBook)
            && let Some(slot) = self.foreign_slot(&request)
        {
            return self.tell_reader_moved(slot, &request.origin, request.protocol, output);
        }
        if self.expects(&request, output) {
            self.take(request, now, output);
        }
    }

    /// Requests of a gateway are taken in order, and none twice.
    pub fn expects(&mut self, request: &Request, output: &mut impl Output) -> bool {
        let origin = &request.origin;
        let (Some(gateway), Some(claim)) = (origin.gateway(), origin.claim) else { return true };
        let is_stuck = request.previous == 0 && self.is_stuck();
        let last = self.leader.streams.entry(gateway).or_default();
        if request.previous == 0 {
            // Of what may never be carried out nobody is told that it will be: its gateway gives up after a while.
            if *last >= claim.number && !is_stuck {
                output.alive(origin);
            }
        } else if *last != request.previous {
            if claim.number > *last {
                output.send_back(origin);
            }
            return false;
        }
        *last = claim.number;
        let is_forgotten = self.defect == Some(Defect::ForgottenAnswer)
            && matches!(request.body, RequestBody::Write(_) | RequestBody::Exec(_));
        is_forgotten || self.is_to_be_done(origin, output)
    }

    /// A request goes back to its gateway. What that has sent behind it must not overtake it: its requests are taken
    /// again when they come again, in order.
    pub(super) fn lose_place(&mut self, origin: &Origin) {
        if let Some(gateway) = origin.gateway() {
            self.leader.streams.remove(&gateway);
        }
    }

    /// False for a numbered request that has been carried out; if its gateway may lack the answer it gets it.
    pub(super) fn is_to_be_done(&mut self, origin: &Origin, output: &mut impl Output) -> bool {
        let (Some(gateway), Some(claim)) = (origin.gateway(), origin.claim) else { return true };
        match self.state.replies().look(gateway, claim.number) {
            Lookup::New => true,
            Lookup::Answered(answer) => {
                let answer = answer.to_vec();
                if let Some(moved) = message::answer::take_moved(&answer) {
                    self.note_redirected(moved.slot, origin);
                }
                output.answer(origin, Committed::of_applied(), answer);
                false
            }
            Lookup::Forgotten => false,
        }
    }

    pub(super) fn take(&mut self, request: Request, now: Now, output: &mut impl Output) {
        if self.refuses_beside_source(&request, output)
            || self.refuses_alone(&request, output)
            || self.refuses_without_room(&request, now, output)
            || self.refuses_newer(&request, output)
        {
            return;
        }
        let request = match self.is_closed() {
            true => self.take_closed(request, output),
            false => Some(request),
        };
        let Some(request) = request.and_then(|request| self.take_from_gateway(request, now, output)) else { return };
        if let Some(slot) = self.follows_one_sent_back(&request) {
            return self.send_to_slot(slot, request, output);
        }
        if self.must_wait(&request, false) {
            self.hold(request, false, output);
            return;
        }
        if let Some(slot) = self.slot_elsewhere(&request) {
            return self.send_to_slot(slot, request, output);
        }
        let Request { origin, protocol, floor, .. } = request;
        let is_behind = match &request.body {
            RequestBody::Read(_) => true,
            RequestBody::Versions { keys, reserve_for: Some(_) } => {
                self.reserve(&origin, keys, now.instant);
                true
            }
            _ => false,
        };
        let what = match request.body {
            RequestBody::Write(words) => {
                self.note_packed(&words);
                self.claim(&origin, floor);
                self.leader.builder.packed_command(protocol, &words);
                self.leader.waiters.push(Waiter::Write(origin));
                return;
            }
            RequestBody::Exec(packed) => {
                self.note_exec(&packed, protocol);
                self.note_exec_of_reserver(&origin);
                self.claim(&origin, floor);
                self.leader.builder.packed_exec(protocol, &packed);
                self.leader.waiters.push(Waiter::Write(origin));
                return;
            }
            RequestBody::Script(_) => {
                // It has waited. A core must run it: until then what its session has sent since waits on.
                self.keep_out(&origin);
                return output.retry(request);
            }
            RequestBody::Libraries(change) => {
                self.claim(&origin, floor);
                self.leader.builder.libraries(&change);
                self.leader.waiters.push(Waiter::Write(origin));
                return;
            }
            RequestBody::Configure(change) => {
                self.claim(&origin, floor);
                self.leader.builder.configure(&change);
                self.leader.waiters.push(Waiter::Write(origin));
                return;
            }
            RequestBody::ReadAtOnce(words) if self.is_alone() => {
                let read = DeferredRead { origin, protocol, what: ReadWhat::Query(words), before: self.batch.number };
                return self.execute_read(read, now, output);
            }
            RequestBody::Read(words) | RequestBody::ReadAtOnce(words) => ReadWhat::Query(words),
            RequestBody::Whole(words) => ReadWhat::Whole(words),
            RequestBody::Versions { keys, reserve_for } => ReadWhat::Versions(keys, reserve_for),
            RequestBody::Lock(_)
            | RequestBody::Renew { .. }
            | RequestBody::Prepare { .. }
            | RequestBody::Resolve { .. }
            | RequestBody::Cut { .. }
            | RequestBody::ReadCut { .. }
            | RequestBody::EndCut { .. }
            | RequestBody::CopyCount(_)
            | RequestBody::Obey(_)
            | RequestBody::EndReservation
            | RequestBody::Admin(_) => unreachable!("taken by `take_from_gateway`"),
        };
        self.read(DeferredRead { origin, protocol, what, before: self.batch.number }, is_behind, now, output);
    }

    /// Takes what a gateway asks for on behalf of a transaction, a backup or an operator, and gives back commands.
    fn take_from_gateway(&mut self, request: Request, now: Now, output: &mut impl Output) -> Option<Request> {
        let Request { origin, protocol, body, floor, is_anew, must_return, .. } = request;
        match body {
            RequestBody::EndReservation => {
                self.end_reservation(&origin);
                output.answer(&origin, Observed::of_state(), Vec::new());
            }
            RequestBody::Lock(lock) => self.lock(lock, origin, now.instant, now, output),
            RequestBody::CopyCount(place) => {
                // One that does not know yet that another leads lacks what that one has acknowledged.
                let what = ReadWhat::CopyCount(place);
                self.read_now(DeferredRead { origin, protocol, what, before: self.batch.number }, now, output);
            }
            RequestBody::Obey(version) if output.view().parameters_version() < version => {
                output.send_back(&origin);
            }
            RequestBody::Obey(_) => {
                // That one would have to obey, and not this.
                let what = ReadWhat::Obeys;
                self.read_now(DeferredRead { origin, protocol, what, before: self.batch.number }, now, output);
            }
            RequestBody::Admin(words) => self.admin(&words, origin, protocol, now, output),
            RequestBody::Cut { transaction, token, name } => {
                self.cut((transaction, token), name, now, output);
                // One that does not know yet that another leads has cut what that one has changed.
                let what = ReadWhat::Cut(transaction);
                self.read_now(DeferredRead { origin, protocol, what, before: self.batch.number }, now, output);
            }
            RequestBody::ReadCut { name, chunk } => {
                self.read_cut(name, chunk, (origin, protocol), now, output);
            }
            RequestBody::EndCut { name } => self.end_cut(name, &origin, protocol, output),
            RequestBody::Renew { transaction } => {
                self.leader.locks.renew(transaction, now.instant);
                output.answer(&origin, Observed::of_state(), Vec::new());
            }
            RequestBody::Prepare { transaction, token, participants, .. } if participants.is_empty() => {
                // One that does not know yet that another leads would say yes to what that one has changed.
                let what = ReadWhat::Holds(transaction, token);
                self.read_now(DeferredRead { origin, protocol, what, before: self.batch.number }, now, output);
            }
            RequestBody::Prepare { transaction, token, participants, effects } => {
                self.prepare((transaction, token), participants, effects, (origin, floor), output);
            }
            RequestBody::Resolve { transaction, resolution, low_water } => {
                self.resolve(transaction, resolution, low_water, (origin, floor), now, output);
            }
            body => {
                let request = Request::new(origin, self.id, protocol, body);
                return Some(Request { floor, is_anew, must_return, ..request });
            }
        }
        None
    }

    /// The next item of the batch carries out this request.
    pub(super) fn claim(&mut self, origin: &Origin, floor: u64) {
        if let (Some(gateway), Some(claim)) = (origin.gateway(), origin.claim) {
            self.leader.builder.claim(Claimed { gateway, number: claim.number, floor });
        }
    }

    /// True if a request must wait for locked keys, or behind another of its session that does. What its session has
    /// sent since waits behind one that comes back from waiting.
    pub fn must_wait(&mut self, request: &Request, is_retry: bool) -> bool {
        let waiter = (request.origin.node.0, request.origin.session.serial);
        let is_behind = !is_retry
            && waiter.1 != 0
            && (self.leader.held_sessions.contains(&waiter) || self.leader.kept_out.contains(&waiter));
        is_behind
            || (!self.leader.locks.is_empty() && self.touches_locks(request))
            || (!self.leader.reservations.is_empty() && self.touches_reserved(request))
    }

    /// Lets a request wait: behind all others, or before them if it has waited already.
    pub fn hold(&mut self, request: Request, is_retry: bool, output: &mut impl Output) {
        if self.leader.held.len() >= limits::HELD_COUNT_MAX {
            let text = "TRYAGAIN Too many requests wait for locked keys";
            self.lose_place(&request.origin);
            return fail(&request.origin, request.protocol, text, output);
        }
        if self.leader.held.len() >= limits::HELD_COUNT_MAX / 2 {
            self.leader.reservations.end_all();
        }
        self.leader.held_sessions.insert((request.origin.node.0, request.origin.session.serial));
        if is_retry {
            self.leader.held.push_front(Held::Request(request));
        } else {
            self.leader.held.push_back(Held::Request(request));
        }
    }
}
