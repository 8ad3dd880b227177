//! Slots that move from this group to another.
//!
//! The roster says which group should hold which slots. The leader of a group that holds another one gives it away, by
//! a transaction of both groups. Nothing of this is remembered: a new leader looks again, and goes on.
//!
//! ```text
//!   giver                                     taker
//!     │ locks the slots; waits for those who hold keys of them
//!     │ reads their keys                        │
//!     │──────────── prepare: take, with keys ──▶│ logs it, locks the slots
//!     │◀──────────────────────────── prepared ──│
//!     │ logs: prepared to give                  │
//!     │──────────── commit ────────────────────▶│ holds the slots, lets in who waits
//!     │ holds them no more, drops their keys
//!     │ sends who waits to the taker
//! ```
//!
//! From the lock to the commit, requests for the slots wait, as for locked keys. Slots go several at a time, up to
//! [`limits::MOVE_BYTES`] of keys; a single one may be larger, up to [`limits::MOVE_BYTES_MAX`]. As long as the giver
//! has not prepared anything itself it may let go when it takes too long, and try again later. If it is lost in
//! between, the groups find out from one another what has become of it, as of any transaction.
//!
//! What a gateway asks of a group that does not hold the slot any more is answered by saying so, and that answer is
//! logged and kept like any other: asked once more, with the slot back again or not, it is the same. So a request is
//! carried out in one group or in the other, and its answer stays where its number is; the reply cache does not move.
//!
//! A request on several slots may be answered so for the sake of one, with the others still here. What its session has
//! sent behind it, not knowing, then goes back as well: it would overtake it.

use std::collections::BTreeMap;

use message::entry::Taken;
use stdx::slot::{SLOT_COUNT, Slot, runs_of};

use super::*;
use crate::requests::Step;
use crate::router;

/// What a leader does about slots that are to move.
#[derive(Debug, Default)]
pub(super) struct Mover {
    gateway: Option<GatewayId>,
    next_number: u64,
    present: Option<Moving>,
    /// There was nothing to do for this roster.
    idle_under: Option<Arc<Roster>>,
    rest_until: Instant,
    /// Slots given away since there was last nothing to do.
    given_count: usize,
    /// Slots that could not be had, or were too large, and when they are tried again.
    put_off: BTreeMap<u16, Instant>,
    /// Since when slots are held that have come from elsewhere.
    taken: BTreeMap<u16, Instant>,
    /// The split that all other moves wait for.
    awaited: Option<AwaitedSplit>,
}

/// A split that could not be made yet.
#[derive(Debug)]
struct AwaitedSplit {
    group: GroupId,
    why: &'static str,
    since: Instant,
    is_told: bool,
}

/// A session with a request that has gone back to its gateway although some of its keys are here.
///
/// Its gateway makes it again, over several groups now, when all that was asked for before has been answered. What the
/// session sent behind it meanwhile is here already, and must not be carried out before it.
#[derive(Debug)]
pub(super) struct Redirected {
    /// Is elsewhere.
    slot: Slot,
    when: Instant,
    /// Number of what its gateway has made again last. What the session had sent before it and comes again, since word
    /// that it goes back was lost, goes back again.
    anew: Option<u64>,
}

#[derive(Debug)]
struct Moving {
    id: TransactionId,
    slots: Vec<Slot>,
    to: GroupId,
    since: Instant,
    /// The group is to split off with the slots.
    splits: bool,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Those who hold keys of the slots are waited for, and this batch.
    Draining { batch: u64 },
    /// The taker is asked to prepare; this is to be prepared here when it has.
    AskingTaker { given: Vec<Effect> },
    /// This group prepares: from here on only the log knows what becomes of it.
    AskingOwn,
    /// These have not yet answered.
    Resolving { waiting: Vec<GroupId> },
    /// The split is on its way through the log.
    Splitting,
}

impl Group {
    // ---- who holds what -------------------------------------------------------------------------------------------

    /// Which slots the group holds.
    pub fn slots(&self) -> &SlotMap {
        self.state.slots()
    }

    /// True if a slot is on its way to another group.
    pub fn is_moving_slots(&self) -> bool {
        self.leader.mover.present.is_some()
    }

    /// True if slots are on their way to other groups, or are to be. Those that could not go lately are not waited for.
    pub(super) fn is_giving_slots(&self, roster: &Roster) -> bool {
        let Mover { present, put_off, .. } = &self.leader.mover;
        let is_to_go =
            |slot: u16| self.state.slots().group_of_slot(Slot(slot)) == self.id && !put_off.contains_key(&slot);
        let mut others = roster.wanted().filter(|(.., to)| *to != self.id);
        present.is_some() || others.any(|(first, last, _)| (first..=last).any(is_to_go))
    }

    /// What has become of slots since the last call.
    pub fn take_slot_news(&mut self) -> Vec<Moved> {
        std::mem::take(&mut self.news.slots)
    }

    fn foreign_of_words(&self, words: &[u8], spans: &mut Vec<Span>) -> Option<Slot> {
        let (_, args) = entry::Reader::new(words).words(spans);
        self.foreign_of(keyspace::resolve(args).expect("a request was checked by its gateway"), args)
    }

    /// The slot of a key that a command names, or may be led to, if another group holds it.
    fn foreign_of(&self, command: &keyspace::DataCommand, args: Args<'_>) -> Option<Slot> {
        let slots = self.state.slots();
        let beyond = || {
            let pattern = router::far_pattern_of_sort(args, slots)?;
            self.state.foreign(pattern).or_else(|| slots.given_by(self.id))
        };
        let foreign = self.state.foreign_of(command, args);
        foreign.or_else(|| beyond().filter(|_| router::is_sort_by_keys(command, args)))
    }

    /// The slot of a change that another group holds. Reads are looked at when they are carried out.
    pub(super) fn foreign_slot(&mut self, request: &Request) -> Option<Slot> {
        if self.state.slots().is_even() {
            return None;
        }
        let mut spans = std::mem::take(&mut self.spans);
        let foreign = match &request.body {
            RequestBody::Write(words) => self.foreign_of_words(words, &mut spans),
            RequestBody::Exec(packed) => {
                let exec = entry::Reader::new(packed).exec(request.protocol, &mut spans);
                let mut foreign = exec.watches.iter().find_map(|watch| self.state.foreign(&watch.key));
                exec.for_each(&mut spans, |_, args| {
                    let command = keyspace::resolve(args).expect("a request was checked by its gateway");
                    foreign = foreign.or_else(|| self.foreign_of(command, args));
                });
                foreign
            }
            _ => None,
        };
        self.spans = spans;
        foreign
    }

    /// True if a key of a command is not held here.
    pub(super) fn has_foreign(&mut self, words: &[u8]) -> bool {
        if self.state.slots().is_even() {
            return false;
        }
        let mut spans = std::mem::take(&mut self.spans);
        let foreign = self.foreign_of_words(words, &mut spans);
        self.spans = spans;
        foreign.is_some()
    }

    /// The slot of a read that another group holds by now.
    pub(super) fn foreign_slot_of_read(&mut self, what: &ReadWhat) -> Option<Slot> {
        if self.state.slots().is_even() || self.defect == Some(Defect::KeptLease) {
            return None;
        }
        let mut spans = std::mem::take(&mut self.spans);
        let foreign = match what {
            ReadWhat::Query(words) => self.foreign_of_words(words, &mut spans),
            ReadWhat::Versions(keys, _) => keys.iter().find_map(|(_, key)| self.state.foreign(key)),
            ReadWhat::Whole(_)
            | ReadWhat::Locked(..)
            | ReadWhat::Holds(..)
            | ReadWhat::AppliedPosition(_)
            | ReadWhat::Ended(..)
            | ReadWhat::CopyCount(_)
            | ReadWhat::Obeys
            | ReadWhat::Cut(_) => None,
        };
        self.spans = spans;
        foreign
    }

    // ---- the order of a session -------------------------------------------------------------------------------------

    /// The slot because of which a request goes back to its gateway: another group holds it. If some of its keys are
    /// still here, what its session has sent behind it goes back as well.
    pub(super) fn slot_elsewhere(&mut self, request: &Request) -> Option<Slot> {
        if self.state.slots().is_even() {
            return None;
        }
        let (slot, is_split) = match &request.body {
            RequestBody::Write(_) | RequestBody::Exec(_) => (self.foreign_slot(request)?, self.holds_some(request)),
            // One with all keys elsewhere is sent there when its turn comes.
            RequestBody::Read(words) | RequestBody::ReadAtOnce(words) if self.holds_some_of(words) => {
                let mut spans = std::mem::take(&mut self.spans);
                let foreign = self.foreign_of_words(words, &mut spans);
                self.spans = spans;
                (foreign?, true)
            }
            _ => return None,
        };
        if is_split {
            self.note_redirected(slot, &request.origin);
        }
        Some(slot)
    }

    /// The slot of an earlier request of the session that has gone back, if this one was sent before its gateway could
    /// know: it would be carried out first, although it was asked for later.
    pub(super) fn follows_one_sent_back(&mut self, request: &Request) -> Option<Slot> {
        if self.leader.redirected.is_empty() && !request.must_return {
            return None;
        }
        let is_clients = matches!(
            request.body,
            RequestBody::Write(_) | RequestBody::Exec(_) | RequestBody::Read(_) | RequestBody::ReadAtOnce(_)
        );
        if request.must_return && is_clients {
            // Another leader may have sent back what it follows. Where any slot is, is as good an answer as another.
            return Some(Slot(0));
        }
        let session = (request.origin.gateway()?, request.origin.session.serial);
        let redirected = self.leader.redirected.get_mut(&session).filter(|_| is_clients)?;
        let number = request.origin.claim?.number;
        if request.is_anew {
            // The gateway knows of the first. (That the answer to it has reached it says less: what it sends then may
            // have been asked for before.)
            redirected.anew = redirected.anew.max(Some(number));
            return None;
        }
        if redirected.anew.is_some_and(|anew| anew < number) {
            // It was sent when all of them had been answered.
            self.leader.redirected.remove(&session);
            return None;
        }
        Some(redirected.slot)
    }

    pub(super) fn note_redirected(&mut self, slot: Slot, origin: &Origin) {
        let Some(gateway) = origin.gateway() else { return };
        if self.leader.redirected.len() >= limits::REDIRECTED_MAX {
            let now = self.last_tick;
            self.leader.redirected.retain(|_, redirected| now.since(redirected.when) < limits::REDIRECTED_AGE_MAX);
        }
        let redirected = Redirected { slot, when: self.last_tick, anew: None };
        self.leader.redirected.insert((gateway, origin.session.serial), redirected);
    }

    /// True if some key of a change is of a slot that this group holds.
    fn holds_some(&mut self, request: &Request) -> bool {
        match &request.body {
            RequestBody::Write(words) => self.holds_some_of(words),
            RequestBody::Exec(packed) => {
                let mut spans = std::mem::take(&mut self.spans);
                let exec = entry::Reader::new(packed).exec(request.protocol, &mut spans);
                let mut holds = exec.watches.iter().any(|watch| self.state.foreign(&watch.key).is_none());
                exec.for_each(&mut spans, |_, args| {
                    let command = keyspace::resolve(args).expect("a request was checked by its gateway");
                    holds |= self.holds_some_named(command, args);
                });
                self.spans = spans;
                holds
            }
            _ => false,
        }
    }

    /// The same of one command.
    pub(super) fn holds_some_of(&mut self, words: &[u8]) -> bool {
        let mut spans = std::mem::take(&mut self.spans);
        let (_, args) = entry::Reader::new(words).words(&mut spans);
        let command = keyspace::resolve(args).expect("a request was checked by its gateway");
        let holds = self.holds_some_named(command, args);
        self.spans = spans;
        holds
    }

    fn holds_some_named(&self, command: &keyspace::DataCommand, args: Args<'_>) -> bool {
        let mut holds = matches!(command.span, command::Span::Whole(_));
        command.for_each_key(args, |index, _| holds |= self.state.foreign(args.at(index)).is_none());
        holds
    }

    /// A request of a client is to be made again where its slot is.
    pub(super) fn send_to_slot(&mut self, slot: Slot, request: Request, output: &mut impl Output) {
        match request.body {
            RequestBody::Read(_) | RequestBody::ReadAtOnce(_) => {
                self.tell_reader_moved(slot, &request.origin, request.protocol, output);
            }
            _ => self.tell_moved(slot, request, output),
        }
    }

    /// A change was asked for that is another group's to make.
    pub(super) fn tell_moved(&mut self, slot: Slot, request: Request, output: &mut impl Output) {
        let Request { origin, protocol, floor, .. } = request;
        if origin.claim.is_none() {
            return output.refuse(&origin, protocol, HAS_MOVED);
        }
        self.claim(&origin, floor);
        self.leader.builder.moved(slot);
        self.leader.waiters.push(Waiter::Write(origin));
    }

    /// The same of something that changes nothing.
    pub(super) fn tell_reader_moved(&self, slot: Slot, origin: &Origin, protocol: Protocol, output: &mut impl Output) {
        if origin.claim.is_none() {
            output.refuse(origin, protocol, HAS_MOVED);
        } else {
            output.answer(origin, Observed::of_state(), message::answer::put_moved(&self.state.slots().known(slot)));
        }
    }

    /// Slots have moved to this group, or from it.
    pub(super) fn note_moved(&mut self, moved: Vec<Moved>) {
        for moved in moved {
            if moved.group == self.id {
                self.leader.mover.taken.insert(moved.slot.0, self.last_tick);
            } else {
                self.leader.wait_queues.leave_slot(moved.slot, &mut self.state.upkeep());
            }
            self.news.slots.push(moved);
            self.leader.mover.idle_under = None;
        }
    }

    /// True if a transaction may give these slots to this group, for which they are locked from now on.
    pub(super) fn takes_slots(&mut self, transaction: TransactionId, effects: &[Effect]) -> bool {
        let taken: Vec<_> = effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::Take(taken) => Some((taken.slot, taken.epoch)),
                _ => None,
            })
            .collect();
        let slots = self.state.slots();
        // Who has locked everything may have been told what there is.
        let may_take = taken.len() == effects.len()
            && !taken.is_empty()
            && !self.leader.locks.is_whole_held()
            && !self.is_barred
            && !self.is_closed()
            && taken
                .iter()
                .all(|(slot, epoch)| *epoch > slots.epoch_of(*slot) && slots.group_of_slot(*slot) != self.id)
            // An earlier move of the same slot may be committed, for all that is known here.
            && !taken.iter().any(|(slot, _)| self.leader.locks.is_slot_held(*slot));
        if may_take {
            self.leader.locks.take_slots(transaction, taken.into_iter().map(|(slot, _)| slot));
        }
        may_take
    }

    // ---- giving slots away ----------------------------------------------------------------------------------------

    /// Begins or goes on with giving away what others are to hold.
    pub(super) fn look_after_moves(&mut self, now: Now, prng: &mut Prng, output: &mut impl Output) {
        if !self.is_serving {
            return;
        }
        self.tell_awaited_split(now, output);
        if self.leader.mover.present.is_some() {
            return self.go_on_moving(now, output);
        }
        let roster = &output.view().roster();
        let is_idle = self.leader.mover.idle_under.as_ref().is_some_and(|known| Arc::ptr_eq(known, roster));
        if is_idle || now.instant < self.leader.mover.rest_until || roster.wanted().next().is_none() {
            return;
        }
        let roster = Arc::clone(roster);
        // A lock on everything does not wait without end.
        let is_wanted_whole = self.leader.held.iter().any(|held| match held {
            Held::Lock(lock, ..) => lock.whole,
            Held::Request(request) => matches!(request.body, RequestBody::Whole(_)),
        });
        if is_wanted_whole || self.is_barred || self.leader.locks.is_whole_held() || self.is_full() {
            return;
        }
        let splitting = self.next_split(&roster);
        if let Some((group, slots)) = &splitting
            && let Some(why) = self.obstacle_to_split(slots, &roster, output.view().replica_count())
        {
            self.await_split(*group, why, now);
            return self.leader.mover.rest_until = now.instant + limits::MOVE_RETRY;
        }
        let splits = splitting.is_some();
        let choice = match splitting {
            Some((group, slots)) => Choice::These(slots, group),
            None => self.choose_slots(&roster, now, output),
        };
        let (slots, to) = match choice {
            Choice::These(slots, to) => (slots, to),
            Choice::Later => return self.leader.mover.rest_until = now.instant + limits::MOVE_RETRY,
            Choice::Nothing => {
                let given_count = std::mem::take(&mut self.leader.mover.given_count);
                if given_count > 0 {
                    let line = format!("group {}: has given {given_count} slots to others", self.id.0);
                    output.log(Level::Notice, line);
                }
                return self.leader.mover.idle_under = Some(roster);
            }
        };
        let node = self.node.0;
        let core = output.view().core();
        let gateway = *self.leader.mover.gateway.get_or_insert_with(|| GatewayId { node, boot: prng.draw(), core });
        self.leader.mover.next_number += 1;
        let id = TransactionId { gateway, number: self.leader.mover.next_number };
        self.leader.locks.take_slots(id, slots.iter().copied());
        self.leader.reservations.end_all();
        let batch = self.batch.number - u64::from(self.leader.builder.is_empty());
        self.leader.mover.present =
            Some(Moving { id, slots, to, since: now.instant, splits, stage: Stage::Draining { batch } });
        self.go_on_moving(now, output);
    }

    /// What a split has to wait for before its slots are locked.
    fn obstacle_to_split(&self, slots: &[Slot], roster: &Roster, replicas: usize) -> Option<&'static str> {
        if self.leader.builder.level() < LEVEL_OF_SPLITS {
            Some("the group is at a level at which none does")
        } else if self.checkpointing.is_running() {
            // It would have to be given up.
            Some("a checkpoint is being written")
        } else if slots.iter().any(|slot| self.leader.locks.is_slot_held(*slot)) {
            Some("an earlier move of some of the slots has not ended")
        } else if self.changes_votes(roster, replicas) {
            // The new group would begin with a voter that is about to be none, and nobody would let it go: where a
            // group lives that nobody has placed is not changed.
            Some(VOTERS_CHANGE)
        } else {
            None
        }
    }

    fn await_split(&mut self, group: GroupId, why: &'static str, now: Now) {
        let known = self.leader.mover.awaited.take().filter(|known| known.group == group);
        let (since, is_told) = known.map_or((now.instant, false), |known| (known.since, known.is_told));
        self.leader.mover.awaited = Some(AwaitedSplit { group, why, since, is_told });
    }

    /// Tells once of a split that waits for long: whatever else is to leave the group waits as well.
    fn tell_awaited_split(&mut self, now: Now, output: &mut impl Output) {
        let Some(awaited) = self.leader.mover.awaited.as_mut().filter(|awaited| !awaited.is_told) else { return };
        let waited = now.instant.since(awaited.since);
        if waited >= limits::SPLIT_TOLD_AFTER {
            awaited.is_told = true;
            let (parent, seconds, why) = (self.id.0, waited.as_secs(), awaited.why);
            let text = format!(
                "is to split off from group {parent}, and has waited for {seconds} s: {why}. Other moves of slots out of \
                 group {parent} wait for that"
            );
            output.happened(Kind::Placement, Some(awaited.group), text);
        }
    }

    fn choose_slots(&mut self, roster: &Roster, now: Now, output: &mut impl Output) -> Choice {
        let mut chosen: Vec<Slot> = Vec::new();
        let (mut target, mut bytes, mut is_any_put_off) = (None, 0, false);
        // One that is to go gives all that it holds to the group that comes after it, whatever else is wanted of it.
        let all = roster.merges_into(self.id).map(|into| (0, SLOT_COUNT as u16 - 1, into));
        let is_early = self.defect == Some(Defect::EarlyEnd);
        let wanted = roster.wanted().filter(|(.., to)| *to != self.id && all.is_none() && !is_early);
        for (first, last, to) in wanted.chain(all.filter(|_| !is_early)) {
            for slot in (first..=last).map(Slot) {
                if self.state.slots().group_of_slot(slot) != self.id || target.is_some_and(|target| target != to) {
                    continue;
                }
                let put_off = self.leader.mover.put_off.get(&slot.0).copied().unwrap_or_default();
                let taken = self.leader.mover.taken.get(&slot.0).copied();
                // An earlier leader's move of the slot may be prepared, and is going to end in one way or the other.
                let may_go = output.view().routes().get(to.0 as usize).is_some_and(|route| route.leader.is_some())
                    && !self.leader.locks.is_slot_held(slot)
                    && put_off <= now.instant
                    && taken.is_none_or(|taken| now.instant.since(taken) >= limits::MOVE_AGAIN);
                if !may_go {
                    is_any_put_off = true;
                    continue;
                }
                let more = self.state.keyspace().slot_bytes(slot);
                if more > limits::MOVE_BYTES_MAX {
                    is_any_put_off = true;
                    self.leader.mover.put_off.insert(slot.0, now.instant + limits::MOVE_LARGE_RETRY);
                    let line = format!(
                        "group {}: slot {} is too large to be moved: {more} bytes, at most {} go at once",
                        self.id.0,
                        slot.0,
                        limits::MOVE_BYTES_MAX
                    );
                    output.log(Level::Warning, line);
                    continue;
                }
                if !chosen.is_empty() && bytes + more > limits::MOVE_BYTES {
                    return Choice::These(chosen, target.expect("some are chosen"));
                }
                (target, bytes) = (Some(to), bytes + more);
                chosen.push(slot);
                if chosen.len() == limits::MOVE_SLOTS || bytes > limits::MOVE_BYTES {
                    return Choice::These(chosen, to);
                }
            }
        }
        match target {
            Some(to) => Choice::These(chosen, to),
            None if is_any_put_off => Choice::Later,
            None => Choice::Nothing,
        }
    }

    fn go_on_moving(&mut self, now: Now, output: &mut impl Output) {
        let changes_votes = self.changes_votes(output.view().roster(), output.view().replica_count());
        let Some(moving) = &mut self.leader.mover.present else { return };
        let (id, lasted) = (moving.id, now.instant.since(moving.since));
        match &mut moving.stage {
            Stage::Draining { batch } => {
                let is_applied =
                    self.batch.number > *batch && self.window.inflight.front().is_none_or(|b| b.number > *batch);
                // A group may split off with nothing, if all that it was to have has gone elsewhere meanwhile.
                let is_held = self.leader.locks.is_held_by(id) || moving.slots.is_empty();
                // Nothing but this move can have given them away; what is not here would be carried as nothing.
                let slots = self.state.slots();
                let is_here = moving.slots.iter().all(|slot| slots.group_of_slot(*slot) == self.id);
                let is_early = self.defect == Some(Defect::EarlyCopy);
                let is_free = is_held && is_applied && self.leader.locks.are_slots_free(id);
                if is_here && is_free && moving.splits && !changes_votes {
                    self.propose_split(now);
                } else if is_here && !moving.splits && (is_early || is_free) {
                    self.prepare_move(output);
                } else if !is_here || !is_held || lasted >= limits::MOVE_DRAIN_MAX {
                    if moving.splits {
                        let (group, why) = (moving.to, if is_free { VOTERS_CHANGE } else { SLOTS_IN_USE });
                        self.await_split(group, why, now);
                    }
                    self.put_off_move(now);
                    self.unlock(id);
                    self.admit_held(now, output);
                }
            }
            Stage::AskingTaker { .. } => {
                self.leader.locks.renew(id, now.instant);
                if lasted >= limits::MOVE_PREPARE_MAX {
                    self.abort_move(now, output);
                }
            }
            Stage::AskingOwn | Stage::Splitting => self.leader.locks.renew(id, now.instant),
            Stage::Resolving { waiting } => {
                self.leader.locks.renew(id, now.instant);
                if waiting.is_empty() {
                    self.leader.mover.given_count += moving.slots.len();
                    self.leader.mover.present = None;
                    self.leader.mover.rest_until = now.instant + limits::MOVE_REST;
                }
            }
        }
    }

    /// Nobody works on the slots any more: the group splits off.
    fn propose_split(&mut self, now: Now) {
        let Some(moving) = &mut self.leader.mover.present else { return };
        let slots = moving.slots.iter().copied().collect();
        if self.state.split_obstacle(moving.to, &slots).is_some() {
            if now.instant.since(moving.since) >= limits::MOVE_DRAIN_MAX {
                let (id, group) = (moving.id, moving.to);
                self.await_split(group, SLOTS_IN_USE, now);
                self.put_off_move(now);
                self.unlock(id);
                self.leader.has_decided = true;
            }
            return;
        }
        moving.stage = Stage::Splitting;
        // However long it is on its way, nothing comes to these slots behind it.
        self.leader.locks.set_logged(moving.id, true);
        self.leader.builder.split(moving.to, &runs_of(slots));
        self.leader.waiters.push(Waiter::Silent);
    }

    /// A group has split off, or could not. If this was the one that was to, its slots are free again.
    pub(super) fn end_split(&mut self, group: GroupId) {
        let is_it = |moving: &mut Moving| moving.splits && moving.to == group;
        if let Some(moving) = self.leader.mover.present.take_if(is_it) {
            self.leader.mover.awaited = None;
            self.unlock(moving.id);
        }
    }

    /// The slots are tried again later.
    fn put_off_move(&mut self, now: Now) {
        let Some(moving) = self.leader.mover.present.take() else { return };
        let until = now.instant + limits::MOVE_RETRY;
        if moving.splits {
            return self.leader.mover.rest_until = until;
        }
        self.leader.mover.put_off.extend(moving.slots.iter().map(|slot| (slot.0, until)));
    }

    /// Nothing has been prepared here, and nothing will be.
    fn abort_move(&mut self, now: Now, output: &mut impl Output) {
        let Some(Moving { id, to, .. }) = self.leader.mover.present else { return };
        self.put_off_move(now);
        let body = RequestBody::Resolve { transaction: id, resolution: Resolution::Abort, low_water: id.number };
        output.ask_for_move(self.id, id, to, Step::Resolve, body);
        self.unlock(id);
        self.admit_held(now, output);
    }

    /// Nobody works on the slots any more: reads their keys, and asks both groups to prepare.
    fn prepare_move(&mut self, output: &mut impl Output) {
        let Some(moving) = &mut self.leader.mover.present else { return };
        let participants = participants(self.id, moving.to);
        let unix = self.state.keyspace().latest();
        let (mut given, mut taken) = (Vec::new(), Vec::new());
        for slot in &moving.slots {
            let epoch = self.state.slots().epoch_of(*slot) + 1;
            given.push(Effect::Give(Moved { slot: *slot, group: moving.to, epoch }));
            let records = self.state.keyspace().export_slot(*slot);
            let answered = self.state.request_ids().export_slot(*slot);
            let (sequence, gone) = (self.state.keyspace().sequence(), self.state.keyspace().gone_from(*slot));
            taken.push(Effect::Take(Box::new(Taken { slot: *slot, epoch, sequence, gone, unix, records, answered })));
        }
        let (transaction, to) = (moving.id, moving.to);
        moving.stage = Stage::AskingTaker { given };
        let body = RequestBody::Prepare { transaction, token: FencingToken::default(), participants, effects: taken };
        output.ask_for_move(self.id, transaction, to, Step::Prepare, body);
    }

    /// The taker has prepared.
    fn prepare_own(&mut self, output: &mut impl Output) {
        let Some(moving) = &mut self.leader.mover.present else { return };
        let Stage::AskingTaker { given } = std::mem::replace(&mut moving.stage, Stage::AskingOwn) else { return };
        let (transaction, participants) = (moving.id, participants(self.id, moving.to));
        let body = RequestBody::Prepare { transaction, token: FencingToken::default(), participants, effects: given };
        output.ask_for_move(self.id, transaction, self.id, Step::Prepare, body);
    }

    fn commit_move(&mut self, output: &mut impl Output) {
        let Some(moving) = &mut self.leader.mover.present else { return };
        let (transaction, to, own) = (moving.id, moving.to, self.id);
        moving.stage = Stage::Resolving { waiting: vec![own, to] };
        for group in [to, own] {
            let resolution = Resolution::Commit;
            let body = RequestBody::Resolve { transaction, resolution, low_water: transaction.number };
            output.ask_for_move(own, transaction, group, Step::Resolve, body);
        }
    }

    /// A group has answered a step of a move.
    pub fn move_answered(
        &mut self,
        id: TransactionId,
        group: GroupId,
        step: Step,
        bytes: &[u8],
        now: Now,
        output: &mut impl Output,
    ) {
        let Some(moving) = self.leader.mover.present.as_mut().filter(|moving| moving.id == id) else { return };
        let is_accepted = PrepareAnswer::take(bytes) == PrepareAnswer::Accepted;
        match (&mut moving.stage, step) {
            (Stage::AskingTaker { .. }, Step::Prepare) if is_accepted => self.prepare_own(output),
            (Stage::AskingOwn, Step::Prepare) if is_accepted => self.commit_move(output),
            (Stage::AskingTaker { .. } | Stage::AskingOwn, Step::Prepare) => self.abort_move(now, output),
            (Stage::Resolving { waiting }, Step::Resolve) => waiting.retain(|other| *other != group),
            _ => {}
        }
        self.go_on_moving(now, output);
    }
}

/// The level at which groups can split.
pub const LEVEL_OF_SPLITS: stdx::Level = stdx::Level(2);

/// What a split may have to wait for, see [`Group::obstacle_to_split`].
const VOTERS_CHANGE: &str = "the nodes that vote in the group change";
const SLOTS_IN_USE: &str = "transactions are at work on keys of the slots";

/// All groups that a move changes.
fn participants(giver: GroupId, taker: GroupId) -> Vec<u32> {
    vec![giver.0.min(taker.0), giver.0.max(taker.0)]
}

/// What to do next.
enum Choice {
    These(Vec<Slot>, GroupId),
    Later,
    Nothing,
}

/// A group was asked directly for what another one holds; only where nobody numbers requests.
const HAS_MOVED: &str = "TRYAGAIN The slot of this key has just moved";

const _: () = assert!(SLOT_COUNT <= u16::MAX as usize);
