//! Transactions over groups at one of them: locks, what is prepared, and how it ended.

use keyspace::{Exporting, Moment};
use message::TransactionId;
use message::entry::{self, Effect, Watch};
use resp::{Args, Protocol, Writer};
use state::Known;
use stdx::Instant;

use super::reads::fetching;
use super::{Group, Held, Waiter};
use crate::answers::put_locked;
use crate::defect::Defect;
use crate::ids::{GroupId, Now};
use crate::limits;
use crate::locks::FencingToken;
use crate::output::{NodeView, Output};
use crate::proof::{Committed, Observed, Proof};
use crate::refusals::{NO_PLACE, OTHER_REQUEST};
use crate::requests::PrepareAnswer;
use crate::requests::{Lock, Locked, Origin, ParticipantStatus, Request, RequestBody, Resolution};
use crate::write_set::WriteSet;

impl Group {
    /// Transactions that hold locks here, prepared ones among them.
    #[inline]
    pub fn lock_count(&self) -> usize {
        self.leader.locks.holder_count()
    }

    /// Transactions that are prepared here and not resolved.
    pub fn prepared_count(&self) -> usize {
        self.state.prepared().len()
    }

    /// Transactions that hold locks here; true for those that are prepared.
    pub fn lock_holders(&self) -> impl Iterator<Item = (TransactionId, bool)> {
        self.leader.locks.holders().map(|holder| (holder, self.state.prepared().contains_key(&holder)))
    }

    /// True if somebody's transaction holds one of the keys, or any key if the command works on all of them.
    #[inline]
    pub fn is_locked(&self, command: &keyspace::DataCommand, args: Args<'_>) -> bool {
        if self.leader.locks.is_empty() {
            return false;
        }
        if matches!(command.span, command::Span::Whole(_)) || command.walks() {
            return true;
        }
        let mut locked = false;
        command.for_each_key(args, |index, _| locked |= self.leader.locks.covers(args.at(index)));
        locked
    }

    /// True if this transaction still holds the locks here that it was granted.
    pub(crate) fn holds_locks_by(&self, transaction: TransactionId, token: FencingToken) -> bool {
        self.leader.locks.token_of(transaction) == Some(token)
    }

    /// True if a transaction holds this key.
    pub fn holds_lock_on(&self, key: &[u8]) -> bool {
        !self.leader.locks.is_empty() && self.leader.locks.covers(key)
    }

    pub(super) fn touches_locks(&mut self, request: &Request) -> bool {
        let mut spans = std::mem::take(&mut self.spans);
        let mut locked = false;
        let mut check = |args: Args<'_>| {
            let command = keyspace::resolve(args).expect("a request was checked by its gateway");
            locked |= self.is_locked(command, args);
        };
        match &request.body {
            RequestBody::Write(words) | RequestBody::Read(words) | RequestBody::ReadAtOnce(words) => {
                let (_, args) = entry::Reader::new(words).words(&mut spans);
                check(args);
            }
            RequestBody::Libraries(_) | RequestBody::Configure(_) => {}
            RequestBody::Script(script) => {
                let (_, args) = entry::Reader::new(&script.words).words(&mut spans);
                locked |= script.invocation.keys(args).any(|key| self.leader.locks.covers(key));
            }
            RequestBody::Exec(packed) => {
                let exec = entry::Reader::new(packed).exec(request.protocol, &mut spans);
                let watches = exec.watches.clone();
                exec.for_each(&mut spans, |_, args| check(args));
                locked |= watches.iter().any(|watch| self.leader.locks.covers(&watch.key));
            }
            RequestBody::Whole(_) => locked = true,
            RequestBody::Versions { keys, .. } => locked = keys.iter().any(|(_, key)| self.leader.locks.covers(key)),
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
            | RequestBody::Admin(_) => {}
        }
        self.spans = spans;
        locked
    }

    /// Takes a request for locks. They are granted when the keys are free, in order of arrival.
    pub(super) fn lock(&mut self, lock: Box<Lock>, origin: Origin, asked: Instant, now: Now, output: &mut impl Output) {
        let is_waiting = |held: &Held| matches!(held, Held::Lock(other, ..) if other.transaction == lock.transaction);
        if self.is_leaving(lock.transaction) {
            return;
        }
        if let Some(token) = self.leader.locks.token_of(lock.transaction) {
            return self.fetch_in_order((lock, token), origin, now, output); // its gateway has not heard
        }
        if self.leader.held.iter().any(is_waiting) {
            return;
        }
        if let Some(text) = self.cut_obstacle(&lock, now) {
            return output.answer(&origin, Proof::Refused, put_locked(&Locked::Refused(text)));
        }
        if lock.whole {
            self.leader.reservations.end_all();
        }
        // What a transaction that is decided will have done is known: the next one need not wait for the log. But it
        // does not overtake a command.
        let may_take_over = !self.leader.held.iter().any(|held| matches!(held, Held::Request(_)));
        let is_free =
            |key: &[u8]| if may_take_over { self.leader.locks.is_open(key) } else { !self.leader.locks.covers(key) };
        let free = self.leader.locks.is_empty() || !lock.whole && lock.keys.iter().all(|(_, key)| is_free(key));
        // A lock on everything must not be overtaken without end by locks on single keys.
        let whole_waits = self.leader.held.iter().any(|held| matches!(held, Held::Lock(lock, ..) if lock.whole));
        if !free || whole_waits || self.is_barred || self.waits_for_reserved(&lock) {
            self.leader.held.push_back(Held::Lock(lock, origin, asked));
            return;
        }
        // A gateway that wants everything locked, and does not know of a group that has got some of it, would leave
        // that out. Of the groups that it knows, one has given away the slots of the group that it does not know.
        let unknown = || self.state.slots().held_beyond(lock.group_count).filter(|_| lock.whole);
        let foreign = lock.keys.iter().find_map(|(_, key)| self.state.foreign(key));
        if let Some(slot) = foreign.or_else(unknown) {
            return self.tell_reader_moved(slot, &origin, Protocol::Resp2, output);
        }
        self.leader.locks.take(lock.transaction, lock.keys.iter().map(|(_, key)| key.clone()), lock.whole);
        let token = self.leader.locks.grant(lock.transaction, self.replica.term());
        self.end_reservations_of(&lock);
        self.fetch_in_order((lock, token), origin, now, output);
    }

    /// Reads the keys of a lock behind all changes that were asked for before. Changes to other keys do not matter.
    pub(super) fn fetch_in_order(
        &mut self,
        granted: (Box<Lock>, FencingToken),
        origin: Origin,
        now: Now,
        output: &mut impl Output,
    ) {
        if !self.is_touched(&granted.0) {
            self.read_now(fetching(granted, origin, self.batch.number), now, output);
        } else if !self.leader.builder.is_empty() {
            let fetch = fetching(granted, origin, self.batch.number);
            self.leader.waiters.push(Waiter::Fetch(Box::new(fetch)));
        } else if let Some(batch) = self.window.inflight.back_mut() {
            batch.late.push(fetching(granted, origin, self.batch.number));
        } else {
            self.read_now(fetching(granted, origin, self.batch.number), now, output);
        }
    }

    /// True if something that is not applied yet works on a key of the lock.
    pub(super) fn is_touched(&mut self, lock: &Lock) -> bool {
        if self.leader.builder.is_empty() && self.window.inflight.is_empty() {
            return false;
        }
        if lock.whole {
            return true;
        }
        let mut spans = std::mem::take(&mut self.spans);
        let covers = |write_set: &WriteSet| lock.keys.iter().any(|(_, key)| write_set.covers(key));
        self.leader.write_set.read_on(self.leader.builder.payload(), &mut spans);
        let is_touched = covers(&self.leader.write_set)
            || self.window.inflight.iter_mut().any(|batch| {
                if batch.index > 0 {
                    batch.write_set.read_on(&batch.data, &mut spans);
                }
                covers(&batch.write_set)
            });
        self.spans = spans;
        is_touched
    }

    /// A key as a transaction that has locked it sees it: as it will be when those are applied that it has taken it
    /// over from.
    pub(super) fn value_under_lock(
        &self,
        mut transaction: TransactionId,
        database: u16,
        key: &[u8],
        moment: Moment,
    ) -> Option<Exporting> {
        while let Some(before) = self.leader.locks.predecessor(transaction, key) {
            if let Some(exported) = self.decided_value(before, database, key) {
                return exported.clone().map(Exporting::done);
            }
            transaction = before;
        }
        let keyspace = self.state.keyspace();
        // Gateways of level 1 cannot read the rest.
        if self.state.level() == stdx::Level::FIRST {
            keyspace.begin_export(database, key, moment)
        } else {
            keyspace.begin_export_with_use(database, key, moment)
        }
    }

    /// What a transaction that is decided makes of a key, if anything.
    pub(super) fn decided_value(
        &self,
        transaction: TransactionId,
        database: u16,
        key: &[u8],
    ) -> Option<&Option<Vec<u8>>> {
        self.state.prepared().get(&transaction)?.effects().iter().find_map(|effect| match effect {
            Effect::Key { database: other, key: name, exported } if *other == database && name == key => Some(exported),
            _ => None,
        })
    }

    /// True if a watched key that a transaction has locked is no longer as it was.
    pub(super) fn is_watch_broken(&self, mut transaction: TransactionId, watch: &Watch, moment: Moment) -> bool {
        while let Some(before) = self.leader.locks.predecessor(transaction, &watch.key) {
            if self.decided_value(before, watch.database, &watch.key).is_some() {
                return true;
            }
            transaction = before;
        }
        !self.state.keyspace().is_as_watched(watch.database, &watch.key, watch.version, moment)
    }

    pub(super) fn fetch(&mut self, lock: &Lock, token: FencingToken, origin: &Origin, output: &mut impl Output) {
        // The lock may have waited: what has expired in the meantime, and was told to be gone, does not come back.
        let moment = Moment { unix: lock.moment.unix.max(self.moment().unix), seed: lock.moment.seed };
        let changed = self.defect != Some(Defect::ForgottenWatch)
            && lock.watches.iter().any(|watch| self.is_watch_broken(lock.transaction, watch, moment));
        if changed {
            return output.answer(origin, Observed::of_state(), put_locked(&Locked::Changed));
        }
        if let Some(request) = &lock.request {
            let answer = match self.state.request_ids().look(request) {
                Known::Answered(reply) => Some(Locked::Answered(reply.to_vec())),
                Known::Other => Some(Locked::Refused(OTHER_REQUEST.to_owned())),
                Known::Nothing if self.state.request_ids().byte_count() >= output.view().request_ids_bytes_max() => {
                    Some(Locked::Refused(NO_PLACE.to_owned()))
                }
                Known::Nothing => None,
            };
            if let Some(answer) = answer {
                self.counts.repeated += u64::from(matches!(answer, Locked::Answered(_)));
                let proof: Proof = match answer {
                    Locked::Answered(_) => Committed::of_applied().into(),
                    _ => Proof::Refused,
                };
                return output.answer(origin, proof, put_locked(&answer));
            }
        }
        let value = |(database, key): &(u16, Vec<u8>)| self.value_under_lock(lock.transaction, *database, key, moment);
        self.state.keyspace().set_silent(origin.is_silent);
        let values = lock.keys.iter().map(value).collect();
        self.state.keyspace().set_silent(false);
        let answers = lock.queries.iter().map(|words| self.answer_locked(lock, words, moment)).collect();
        self.let_leave((lock.transaction, token), origin, values, answers, output);
    }

    /// A query over a whole database, for a transaction that has locked the group. RANDOMKEY passes over the keys that
    /// the lock names: of these the gateway knows more.
    pub(super) fn answer_locked(&self, lock: &Lock, words: &[u8], moment: Moment) -> (u64, Vec<u8>) {
        const DRAWS_MAX: u64 = 64;
        let mut spans = Vec::new();
        let (database, args) = entry::Reader::new(words).words(&mut spans);
        let command = keyspace::resolve(args).expect("checked by its gateway");
        let is_named =
            |key: &[u8]| lock.keys.binary_search_by(|(d, k)| (*d, k.as_slice()).cmp(&(database, key))).is_ok();
        let named = lock
            .keys
            .iter()
            .filter(|(other, key)| *other == database && self.state.keyspace().version(database, key, moment) != 0);
        let weight = (self.state.keyspace().key_count(database) as u64).saturating_sub(named.count() as u64);
        let mut writer = Writer::default();
        if command.name == "randomkey" {
            let mut draws = (0..DRAWS_MAX)
                .filter_map(|draw| self.state.keyspace().random_key(database, moment.seed.wrapping_add(draw), moment));
            match draws.find(|key| !is_named(key)) {
                Some(key) => writer.bulk(key),
                None => {
                    let mut other = None;
                    self.state.keyspace().for_each(database, moment, |entry| {
                        if other.is_none() && !is_named(entry.key()) {
                            other = Some(entry.key().to_vec());
                        }
                    });
                    match other {
                        Some(key) => writer.bulk(&key),
                        None => return (0, b"$-1\r\n".to_vec()),
                    }
                }
            }
        } else {
            self.state.keyspace().query(database, command, args, moment, &mut writer);
        }
        (weight, writer.into_bytes())
    }

    /// Logs the changes of a transaction that holds its locks here.
    ///
    /// If they went with a change of leader, or were taken from a gateway that seemed dead, others may have changed the
    /// keys since: the transaction is refused, although it may hold them again.
    pub(super) fn prepare(
        &mut self,
        (transaction, token): (TransactionId, FencingToken),
        participants: Vec<u32>,
        effects: Vec<Effect>,
        (origin, floor): (Origin, u64),
        output: &mut impl Output,
    ) {
        if !self.may_prepare((transaction, token), &effects, &origin, output) {
            return;
        }
        match self.let_arrive((transaction, token), participants, effects, (origin, floor)) {
            Ok(Some((participants, effects))) => {
                self.log_prepared(transaction, &participants, &effects, (origin, floor));
            }
            Ok(None) => {}
            Err(_) => output.answer(&origin, Proof::Refused, PrepareAnswer::Refused.put()),
        }
    }

    /// True if a transaction has what it needs to be prepared. Otherwise its gateway is told.
    pub(super) fn may_prepare(
        &mut self,
        (transaction, token): (TransactionId, FencingToken),
        effects: &[Effect],
        origin: &Origin,
        output: &mut impl Output,
    ) -> bool {
        let may = self.holds_locks_by(transaction, token) || self.takes_slots(transaction, effects);
        if !may {
            let unpacked = self.slices.unpacked.remove(&transaction).unwrap_or_default();
            self.bury_unpacked(unpacked);
            output.answer(origin, Proof::Refused, PrepareAnswer::Refused.put());
        }
        may
    }

    /// Logs what a transaction changes, of which large values have been read in.
    pub(super) fn log_prepared(
        &mut self,
        transaction: TransactionId,
        participants: &[u32],
        effects: &[Effect],
        (origin, floor): (Origin, u64),
    ) {
        for effect in effects {
            match effect {
                Effect::Key { key, .. } => self.leader.speculation.note(key, self.batch.number),
                Effect::Flush { .. } | Effect::Swap { .. } => {
                    self.leader.speculation.note_everything(self.batch.number)
                }
                Effect::Give(_) | Effect::Take(_) | Effect::Answer(_) => {}
            }
        }
        self.claim(&origin, floor);
        self.leader.sliced_bytes += self.large_bytes(effects);
        self.leader.locks.set_logged(transaction, true);
        if participants == [self.id.0] {
            self.leader.builder.install(transaction, effects);
        } else {
            self.leader.builder.prepare(transaction, participants, effects);
        }
        self.leader.waiters.push(Waiter::Step(origin));
    }

    /// Ends a transaction here.
    pub(super) fn resolve(
        &mut self,
        transaction: TransactionId,
        resolution: Resolution,
        low_water: u64,
        (origin, floor): (Origin, u64),
        now: Now,
        output: &mut impl Output,
    ) {
        match resolution {
            Resolution::Release => {
                self.unlock(transaction);
                self.admit_held(now, output);
                output.answer(&origin, Observed::of_state(), Vec::new());
            }
            Resolution::Commit | Resolution::Abort => {
                self.claim(&origin, floor);
                self.log_end(transaction, resolution == Resolution::Commit, low_water);
                self.leader.waiters.push(Waiter::Step(origin));
                if resolution == Resolution::Commit {
                    self.decide(transaction);
                }
            }
        }
    }

    /// A transaction is committed, and its end stands in the batch: whatever the next one does comes behind it.
    pub(super) fn decide(&mut self, transaction: TransactionId) {
        let is_plain = |effect: &Effect| matches!(effect, Effect::Key { .. });
        if self.state.prepared().get(&transaction).is_some_and(|prepared| prepared.effects().iter().all(is_plain)) {
            self.leader.locks.decide(transaction);
            self.leader.has_decided = true;
        }
    }

    /// Releases a transaction's locks. Those that wait for them are not yet let in.
    pub(super) fn unlock(&mut self, transaction: TransactionId) {
        self.leader.held.retain(|held| !matches!(held, Held::Lock(lock, ..) if lock.transaction == transaction));
        self.stop_leaving(transaction);
        self.leader.locks.release(transaction);
    }

    /// Takes a transaction's locks from a gateway that may live after all, and may still wait for values.
    pub(super) fn take_away(&mut self, transaction: TransactionId, output: &mut impl Output) {
        self.send_back_leaving(transaction, output);
        self.unlock(transaction);
    }

    /// Lets those try again who wait for locks to go: in order of arrival; who still finds a lock waits on, behind none
    /// that came later.
    ///
    /// Never in the middle of an entry: who is let in may read at once, and must see all of it.
    pub fn admit_held(&mut self, now: Now, output: &mut impl Output) {
        self.leader.held_sessions.clear();
        for held in std::mem::take(&mut self.leader.held) {
            match held {
                Held::Request(request) => self.take(request, now, output),
                Held::Lock(lock, origin, asked) => self.lock(lock, origin, asked, now, output),
            }
        }
    }

    /// A gateway may be gone: locks that nobody came back to are let go, and the others are asked about what has been
    /// prepared and not resolved.
    pub(super) fn look_after_transactions(&mut self, now: Now, output: &mut impl Output) {
        // Transactions that wait for a lock ask again now and then: locks would pass from one gateway that is gone to
        // the next.
        self.leader.held.retain(|held| match held {
            Held::Lock(_, origin, asked) if now.instant.since(*asked) >= limits::LOCK_WAIT_RENEWAL => {
                output.send_back(origin);
                false
            }
            _ => true,
        });
        for transaction in self.leader.locks.stale(now.instant, limits::LOCK_PATIENCE) {
            if !self.state.prepared().contains_key(&transaction) && self.defect != Some(Defect::ForgottenLock) {
                self.take_away(transaction, output);
                self.admit_held(now, output);
            }
        }
        for (transaction, prepared) in self.state.prepared() {
            let since = *self.prepared_since.entry(*transaction).or_insert(now.instant);
            let waited = now.instant.since(since);
            // A group with a smaller part is asked later to prepare it.
            let more = || limits::patience_for(entry::effects_bytes(prepared.effects()));
            if waited >= limits::PREPARED_PATIENCE && waited >= limits::PREPARED_PATIENCE + more() {
                self.leader.open_outcomes.entry(*transaction).or_default();
            }
        }
    }

    /// Tells what this group knows of a transaction. If it knows nothing it must promise never to prepare it, which
    /// takes an entry: then there is no answer yet, and the asker asks again.
    pub fn tell_status(&mut self, transaction: TransactionId) -> Option<ParticipantStatus> {
        if self.state.prepared().contains_key(&transaction) {
            return Some(ParticipantStatus::Prepared);
        }
        match self.state.outcome(transaction) {
            Some(true) => Some(ParticipantStatus::Committed),
            Some(false) => Some(ParticipantStatus::Refused),
            None if self.leader.ending.is_logged => None,
            // It has prepared none that it has not ended, and prepares none any more.
            None if self.state.ended().is_some() => Some(ParticipantStatus::Refused),
            None if self.is_arriving(transaction) => None,
            None => {
                self.leader.builder.refuse(transaction);
                self.leader.waiters.push(Waiter::Silent);
                None
            }
        }
    }

    /// Takes another participant's word on a transaction that this group holds without a gateway.
    pub fn hear(&mut self, transaction: TransactionId, from: GroupId, status: ParticipantStatus) {
        if status == ParticipantStatus::Ended {
            return self.note_ending(transaction, from);
        }
        let Some(prepared) = self.state.prepared().get(&transaction) else { return };
        let Some(open_outcome) =
            self.leader.open_outcomes.get_mut(&transaction).filter(|open_outcome| !open_outcome.is_decided)
        else {
            return;
        };
        let commit = match status {
            ParticipantStatus::Committed => true,
            ParticipantStatus::Refused => false,
            ParticipantStatus::Ended => return,
            ParticipantStatus::Prepared => {
                if !open_outcome.prepared_by.contains(&from.0) {
                    open_outcome.prepared_by.push(from.0);
                }
                let all = prepared
                    .participants()
                    .iter()
                    .all(|participant| *participant == self.id.0 || open_outcome.prepared_by.contains(participant));
                if !all {
                    return;
                }
                true
            }
        };
        open_outcome.is_decided = true;
        self.log_end(transaction, commit, 0);
        self.leader.waiters.push(Waiter::Silent);
    }

    pub(super) fn log_end(&mut self, transaction: TransactionId, commit: bool, low_water: u64) {
        let moves_slots = |prepared: &state::Prepared| prepared.effects().iter().any(|effect| effect.slot().is_some());
        if self.state.prepared().get(&transaction).is_some_and(moves_slots) {
            self.leader.builder.must_be_kept();
        }
        self.leader.builder.resolve(transaction, commit, low_water);
    }

    /// A new leader has no gateway for what it finds prepared. It locks the keys again and asks the others.
    pub(super) fn adopt_prepared(&mut self) {
        for (transaction, prepared) in self.state.prepared() {
            let mut keys = Vec::new();
            let mut whole = false;
            for effect in prepared.effects() {
                match effect {
                    Effect::Key { key, .. } => keys.push(key.clone()),
                    Effect::Flush { .. } | Effect::Swap { .. } => whole = true,
                    Effect::Give(_) | Effect::Take(_) | Effect::Answer(_) => {}
                }
            }
            self.leader.locks.take(*transaction, keys.into_iter(), whole);
            // Logs of old versions may hold two moves of a slot.
            let slots = prepared.effects().iter().filter_map(Effect::slot);
            let free: Vec<_> = slots.filter(|slot| !self.leader.locks.is_slot_held(*slot)).collect();
            self.leader.locks.take_slots(*transaction, free.into_iter());
            self.leader.open_outcomes.entry(*transaction).or_default();
        }
    }

    pub(super) fn ask_about_prepared(&mut self, now: Now, output: &mut impl Output) {
        for (transaction, open_outcome) in
            self.leader.open_outcomes.iter_mut().filter(|(_, open_outcome)| !open_outcome.is_decided)
        {
            let due = open_outcome.asked.is_none_or(|asked| now.instant.since(asked) >= limits::INQUIRY_INTERVAL);
            if !due {
                continue;
            }
            open_outcome.asked = Some(now.instant);
            for participant in self.state.prepared()[transaction].participants() {
                if *participant != self.id.0 {
                    output.query_outcome(*transaction, self.id, GroupId(*participant));
                }
            }
        }
    }
}
