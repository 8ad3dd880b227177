//! Reads at the leader: each waits until a quorum confirms that it still leads, or for its place in a batch.

use stdx::leb128;

use command::Flag;
use keyspace::Moment;
use message::entry;
use resp::{Protocol, Writer};
use state::{Meter, is_null};

use super::batches::fail;
use super::{DeferredRead, Group, ReadRound, ReadWhat, Waiter};
use crate::cost::Cost;
use crate::ids::Now;
use crate::locks::FencingToken;
use crate::output::{NodeView, Output};
use crate::proof::Observed;
use crate::requests::{Lock, Origin};
use crate::{answers, limits};

impl Group {
    /// The moment at which a read is executed: never before what has been applied.
    #[inline]
    pub fn read_moment(&self, now: Now) -> Moment {
        Moment { unix: now.unix.max(self.moment().unix), seed: now.instant.as_nanos() ^ self.moment().seed }
    }

    /// True if a read may be executed right now, provided that its session waits for no write and no key is locked.
    #[inline]
    pub fn can_read(&self) -> bool {
        self.is_serving && self.is_alone()
    }

    /// Executes a transaction that only reads. The group must be able to [`Group::can_read`].
    pub fn read_exec(
        &mut self,
        packed: &[u8],
        (protocol, is_silent): (Protocol, bool),
        now: Now,
        meter: &mut impl Meter,
        writer: &mut Writer,
    ) -> Observed {
        let moment = self.read_moment(now);
        let mut spans = std::mem::take(&mut self.spans);
        let exec = entry::Reader::new(packed).exec(protocol, &mut spans);
        self.state.keyspace().set_silent(is_silent);
        self.state.read_exec(exec, moment, meter, writer);
        self.state.keyspace().set_silent(false);
        self.spans = spans;
        Observed::of_state()
    }

    /// For the reply to a request that looks at this replica and changes nothing.
    #[inline]
    pub fn observed(&self) -> Observed {
        Observed::of_state()
    }

    pub(super) fn read(&mut self, read: DeferredRead, is_behind: bool, now: Now, output: &mut impl Output) {
        if !self.is_alone() && !is_behind {
            self.leader.reads.push(read);
        } else if !self.leader.builder.is_empty() {
            self.leader.waiters.push(Waiter::Read(Box::new(read)));
        } else if let Some(batch) = self.window.inflight.back_mut() {
            batch.late.push(read);
        } else {
            self.read_now(read, now, output);
        }
    }

    /// All that the read must see has been applied. With other voters, it has yet to be sure that this replica leads.
    pub(super) fn read_now(&mut self, read: DeferredRead, now: Now, output: &mut impl Output) {
        if self.is_alone() {
            self.execute_read(read, now, output);
        } else {
            self.leader.reads.push(read);
        }
    }

    pub(super) fn execute_read(&mut self, read: DeferredRead, now: Now, output: &mut impl Output) {
        if let Some(slot) = self.foreign_slot_of_read(&read.what) {
            if let ReadWhat::Query(words) = &read.what
                && self.holds_some_of(words)
            {
                self.note_redirected(slot, &read.origin);
            }
            return self.tell_reader_moved(slot, &read.origin, read.protocol, output);
        }
        let moment = self.read_moment(now);
        let mut spans = std::mem::take(&mut self.spans);
        let words = match &read.what {
            ReadWhat::Query(words) => words,
            ReadWhat::Whole(words) => {
                let (database, args) = entry::Reader::new(words).words(&mut spans);
                let command = keyspace::resolve(args).expect("a read was checked by its gateway");
                let mut writer = Writer::new(read.protocol);
                let mut cost = Cost::default();
                output.break_off();
                let watch = output.start_for_gateway(command, args, read.origin.is_timed);
                self.state.keyspace().query(database, command, args, moment, &mut writer);
                cost.times.extend(watch.map(|watch| output.stop_for_gateway(watch)));
                let answer = answers::put_whole(&answers::Part {
                    key_count: self.state.keyspace().key_count(database) as u64,
                    cover: self.state.slots().cover_of(self.id),
                    reply: writer.bytes(),
                });
                self.spans = spans;
                return output.answer_with(&read.origin, Observed::of_state().into(), cost, answer);
            }
            ReadWhat::Versions(keys, reserve_for) => {
                if let Some(bound) = reserve_for {
                    self.bound_reservation(&read.origin, *bound, now.instant);
                }
                let mut answer = Vec::new();
                for (database, key) in keys {
                    leb128::put(&mut answer, self.state.keyspace().watch(*database, key, moment));
                }
                self.spans = spans;
                return output.answer(&read.origin, Observed::of_state(), answer);
            }
            ReadWhat::AppliedPosition(number) => {
                self.spans = spans;
                return self.tell_applied_position(read.origin.node, *number, now, output);
            }
            ReadWhat::Ended(transaction, asker) => {
                self.spans = spans;
                return self.tell_ending(*transaction, (*asker, read.origin.node), output);
            }
            ReadWhat::Locked(lock, token) => {
                self.spans = spans;
                // It may have been taken away meanwhile, from a gateway that seemed dead, and even been granted again.
                return match self.holds_locks_by(lock.transaction, *token) {
                    true => self.fetch(lock, *token, &read.origin, output),
                    false => output.send_back(&read.origin),
                };
            }
            ReadWhat::Holds(transaction, token) => {
                self.spans = spans;
                let holds = self.holds_locks_by(*transaction, *token);
                return output.answer(&read.origin, Observed::of_state(), vec![u8::from(holds)]);
            }
            ReadWhat::CopyCount(place) => {
                self.spans = spans;
                return self.tell_copy_count(*place, &read.origin, output);
            }
            ReadWhat::Cut(transaction) => {
                self.spans = spans;
                return self.tell_cut(*transaction, &read.origin, output);
            }
            ReadWhat::Obeys => {
                self.spans = spans;
                return output.answer(&read.origin, Observed::of_state(), Vec::new());
            }
        };
        self.spans = spans;
        self.execute_query(words, &read.origin, read.protocol, now, output);
    }

    pub(super) fn execute_query(
        &mut self,
        words: &[u8],
        origin: &Origin,
        protocol: Protocol,
        now: Now,
        output: &mut impl Output,
    ) {
        let moment = self.read_moment(now);
        let mut spans = std::mem::take(&mut self.spans);
        let (database, args) = entry::Reader::new(words).words(&mut spans);
        let command = keyspace::resolve(args).expect("a read was checked by its gateway");
        let observed = Observed::of_state();
        output.reply_to_read(origin, protocol, observed, (command, args), |writer| {
            let start = writer.len();
            self.state.keyspace().set_silent(origin.is_silent);
            self.state.read(database, command, args, moment, writer);
            self.state.keyspace().set_silent(false);
            !(command.has(Flag::Blocking) && is_null(&writer.bytes()[start..]))
        });
        if origin.tracks {
            output.remember_command(origin, command, args);
        }
        self.spans = spans;
        self.tell(output, None);
    }

    /// Answers reads that have waited for nothing but the turn's end, at which the host has read its clock: all of them
    /// were there before. Under a lease that is enough; otherwise a quorum is asked, and then it is true.
    ///
    /// What is committed and not applied yet, since this disk is slower than those of a quorum, may have been read from
    /// a replica already ([`crate::replica_reads`]): no read may be of a moment before it.
    pub(super) fn serve_reads(&mut self, now: Now, output: &mut impl Output) -> bool {
        if self.leader.reads.is_empty() && self.leader.rounds.is_empty() {
            return false;
        }
        if !self.is_serving || !self.replica.has_lease(now.instant) {
            return !self.leader.reads.is_empty() && self.begin_read_round(now);
        }
        assert!(self.replica.is_leader(), "a lease without a leader");
        let committed = self.replica.committed_index();
        if self.applied() < committed {
            self.wait_to_read(committed, now);
            return false;
        }
        let rounds = std::mem::take(&mut self.leader.rounds).into_iter().flat_map(|round| round.reads);
        let reads: Vec<_> = rounds.chain(std::mem::take(&mut self.leader.reads)).collect();
        for read in reads {
            self.execute_read(read, now, output);
        }
        false
    }

    /// Puts reads off until so much has been applied.
    pub(super) fn wait_to_read(&mut self, index: u64, now: Now) {
        if self.leader.reads.is_empty() {
            return;
        }
        match self.leader.rounds.back_mut() {
            Some(round) if round.index == Some(index) => round.reads.append(&mut self.leader.reads),
            _ => {
                let reads = std::mem::take(&mut self.leader.reads);
                self.leader.rounds.push_back(ReadRound {
                    context: None,
                    index: Some(index),
                    reads,
                    asked: now.instant,
                });
            }
        }
    }

    pub(super) fn begin_read_round(&mut self, now: Now) -> bool {
        let context = self.next_read_context;
        // Too many rounds are under way, or leadership has just been lost: the reads wait, or are refused with the
        // role.
        if self.replica.read_index(context).is_err() {
            return false;
        }
        self.next_read_context += 1;
        let reads = std::mem::take(&mut self.leader.reads);
        self.leader.rounds.push_back(ReadRound { context: Some(context), index: None, reads, asked: now.instant });
        true
    }

    pub(super) fn drop_stale_reads(&mut self, now: Now, output: &mut impl Output) {
        while let Some(round) = self.leader.rounds.front() {
            if now.instant.since(round.asked) < limits::READ_CONFIRMATION_MAX {
                break;
            }
            let round = self.leader.rounds.pop_front().expect("just seen");
            let text = output.view().no_quorum(self.id, now.instant);
            for read in round.reads {
                fail_read(&read, &text, output);
            }
        }
    }

    pub(super) fn answer_confirmed_reads(&mut self, now: Now, output: &mut impl Output) {
        while self.leader.rounds.front().is_some_and(|round| round.index.is_some_and(|index| index <= self.applied())) {
            let round = self.leader.rounds.pop_front().expect("just seen");
            for read in round.reads {
                self.execute_read(read, now, output);
            }
        }
    }

    /// Answers the reads that were there before a batch was proposed that is now committed, and not yet applied: this
    /// replica has led all the time between, and nothing else was committed by anybody.
    pub(super) fn answer_reads_before(&mut self, number: u64, now: Now, output: &mut impl Output) {
        if self.leader.reads.is_empty() && self.leader.rounds.is_empty() {
            return;
        }
        let mut sure = Vec::new();
        for reads in self.leader.rounds.iter_mut().map(|round| &mut round.reads).chain([&mut self.leader.reads]) {
            sure.extend(reads.extract_if(.., |read| read.before <= number));
        }
        for read in sure {
            self.execute_read(read, now, output);
        }
    }
}

pub(super) fn fetching((lock, token): (Box<Lock>, FencingToken), origin: Origin, before: u64) -> DeferredRead {
    DeferredRead { origin, protocol: Protocol::Resp2, what: ReadWhat::Locked(lock, token), before }
}

pub(super) fn fail_read(read: &DeferredRead, text: &str, output: &mut impl Output) {
    if matches!(read.what, ReadWhat::AppliedPosition(_) | ReadWhat::Ended(..)) {
        return; // it will be asked again
    }
    fail(&read.origin, read.protocol, text, output);
}
