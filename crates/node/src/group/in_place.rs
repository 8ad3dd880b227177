//! Scripts that run at once on the keys of a group.

use keyspace::Body;
use script::{Ending, Engine, Flow, Host};

use super::*;
use crate::pubsub::message::Published;
use crate::requests::Declined;
use crate::scripts::invocation::Invocation;
use crate::scripts::on_copies::note_reads;
use crate::scripts::overlay::Trace;
use crate::scripts::{Asides, Circumstances, Permitted, check_call, elapsed_us, permit};
use crate::stats::cost::Cost;
use crate::wire::put_declined;

/// A script to be run on a group's keys.
pub(crate) struct Run<'a> {
    pub(crate) origin: Origin,
    /// See [`Request::floor`].
    pub(crate) floor: u64,
    pub(crate) protocol: Protocol,
    pub(crate) database: u16,
    pub(crate) invocation: &'a Invocation,
    pub(crate) args: Args<'a>,
    pub(crate) circumstances: Circumstances,
    /// What its chance is drawn from.
    pub(crate) seed: u64,
}

/// Questions of the engine whether to go on that a script may take here.
const TICKS_MAX: u32 = 2;

impl Group {
    /// The last batch that is not applied; 0 if there is none.
    fn pending_number(&self) -> u64 {
        if self.leader.builder.is_empty() {
            self.window.inflight.back().map_or(0, |batch| batch.number)
        } else {
            self.batch.number
        }
    }

    /// The moment that the present batch will carry.
    fn batch_moment(&mut self, now: Now, heard: UnixMillis, prng: &mut Prng) -> Moment {
        let unix = self.next_unix(now, heard);
        *self.leader.builder_moment.get_or_insert_with(|| Moment { unix, seed: prng.draw() })
    }

    /// False for a numbered script that has been run, or is about to be logged: it must not be run once more.
    pub(crate) fn is_script_due(&mut self, origin: &Origin, output: &mut Output<'_>) -> bool {
        let (Some(gateway), Some(claim)) = (origin.gateway(), origin.claim) else { return true };
        !self.leader.scripts_under_way.contains_key(&(gateway, claim.number)) && self.is_to_be_done(origin, output)
    }

    /// Runs a script. Its changes join the present batch, and its client is answered when they are safe; if there are
    /// none, as a read is. The group must be [`Standing::Serving`].
    ///
    /// What came of a script with a number is logged whatever it is, also that it was declined: its gateway may ask
    /// again, and must be told the same.
    pub(crate) fn run_script(
        &mut self,
        run: Run<'_>,
        engine: &mut Engine,
        prng: &mut Prng,
        now: Now,
        output: &mut Output<'_>,
    ) -> Result<(), Declined> {
        let pending = self.pending_number();
        let lookups_before = self.state.keyspace().lookups();
        self.leader.speculation.activate(pending, run.circumstances.level);
        self.script.last = now.instant;
        let moment = self.batch_moment(now, output.context.moments.latest(), prng);
        let mut host = LiveHost {
            keyspace: self.state.keyspace(),
            speculation: &mut self.leader.speculation,
            batch_number: self.batch.number,
            locks: &self.leader.locks,
            group: self.id,
            slots: self.state.slots(),
            database: run.database,
            moment,
            invocation: run.invocation,
            circumstances: &run.circumstances,
            trace: Trace::default(),
            commands: std::mem::take(&mut self.script.words),
            command_count: 0,
            declared: run.args,
            declared_words: Invocation::FIRST_KEY..Invocation::FIRST_KEY + run.invocation.key_count,
            used: Vec::new(),
            declined: None,
            ticks: 0,
            calls: 0,
            asides: Asides::default(),
            tracks: run.origin.tracks,
            reads: Vec::new(),
        };
        host.commands.clear();
        for key in run.invocation.keys(run.args) {
            host.visit(run.database, key);
        }
        let mut writer = Writer::onto(std::mem::take(&mut self.script.reply), run.protocol);
        writer.truncate(0);
        let mut ending = Ending::Stopped;
        let mut watch = None;
        let timings = &mut output.context.timings;
        if host.declined.is_none() {
            let call = run.invocation.call(run.args, moment, run.seed);
            let known = crate::lookup::lookup(run.args).expect("its gateway knew it");
            watch = match run.origin.claim {
                None => timings.start(known, run.args),
                Some(_) => {
                    timings.break_off();
                    timings.start_for_gateway(known, run.args, run.origin.is_timed)
                }
            };
            host.keyspace.set_silent(run.origin.is_silent);
            ending = run.invocation.code.run(engine, &call, &mut host, &mut writer);
            host.keyspace.set_silent(false);
        }
        let LiveHost { trace, commands, command_count, used, declined, mut asides, mut reads, .. } = host;
        // Anyone who reads anything keeps what it has named, as in Redis.
        if !reads.is_empty() {
            reads.extend(run.invocation.keys(run.args).map(<[u8]>::to_vec));
        }
        let mut lookups = self.state.keyspace().lookups();
        lookups.add(self.leader.speculation.take_lookups());
        let is_over = declined.is_none() && ending != Ending::Stopped;
        self.state.keyspace().set_lookups(if is_over { lookups } else { lookups_before });
        if !is_over {
            self.leader.speculation.undo(trace, pending);
            self.script.words = commands;
            self.script.reply = writer.into_bytes();
            if self.leader.builder.is_empty() {
                self.leader.builder_moment = None;
            }
            let mut declined = declined.unwrap_or_default();
            declined.keys.extend(used);
            if run.origin.claim.is_none() {
                return Err(declined);
            }
            let answer = put_declined(&declined);
            self.log_outcome(&run.origin, run.floor, (Cost::default(), &answer), (&[], 0), Box::default());
            return Ok(());
        }
        asides.script_calls.end(writer.bytes());
        let mut cost = Cost::default();
        if run.origin.claim.is_some() {
            cost.times.extend(watch.map(|watch| output.context.timings.stop_for_gateway(watch)));
        } else {
            output.stop_watch(watch, &run.origin, run.args);
        }
        if run.origin.node != self.node {
            std::mem::take(&mut asides.script_calls).put(&mut cost.calls);
        }
        let published = std::mem::take(&mut asides.published).into();
        output.tell_asides(&run.origin, asides, now);
        self.end_script(&run, (writer, reads, published), trace, (&commands, command_count), cost, output);
        self.script.words = commands;
        Ok(())
    }

    fn end_script(
        &mut self,
        &Run { origin, floor, protocol, .. }: &Run<'_>,
        (writer, reads, published): (Writer, Vec<Vec<u8>>, Box<[Published]>),
        trace: Trace,
        (commands, command_count): (&[u8], usize),
        cost: Cost,
        output: &mut Output<'_>,
    ) {
        let saw_pending = trace.saw_pending;
        self.leader.speculation.keep(trace, self.batch.number);
        if origin.claim.is_some() {
            self.log_outcome(&origin, floor, (cost, writer.bytes()), (commands, command_count), published);
            self.script.reply = writer.into_bytes();
            return;
        }
        // Whether this node still leads is known when an entry has been committed.
        if command_count > 0 || !self.is_alone() {
            self.leader.builder.script(command_count, commands, &[]);
            let finished = Finished { reply: writer.into_bytes(), reads: reads.into(), published };
            self.leader.waiters.push(Waiter::Script(origin, Box::new(finished)));
            return;
        }
        if self.leader.builder.is_empty() {
            self.leader.builder_moment = None;
        }
        let waiters = if self.leader.builder.is_empty() {
            self.window.inflight.back_mut().map(|batch| &mut batch.waiters)
        } else {
            Some(&mut self.leader.waiters)
        };
        match waiters {
            Some(waiters) if saw_pending => {
                let finished = Finished { reply: writer.into_bytes(), reads: reads.into(), published };
                waiters.push(Waiter::Told(origin, Box::new(finished)));
            }
            _ => {
                published.iter().for_each(|message| output.publish(message));
                output.reply_observed(&origin, protocol, Observed::of_state(), |out| out.raw(writer.bytes()));
                output.remember_reads(&origin, &reads);
                self.script.reply = writer.into_bytes();
            }
        }
    }

    /// Logs what came of a script with a number, but not what it took.
    fn log_outcome(
        &mut self,
        origin: &Origin,
        floor: u64,
        (cost, answer): (Cost, &[u8]),
        (commands, command_count): (&[u8], usize),
        published: Box<[Published]>,
    ) {
        self.claim(origin, floor);
        self.leader.builder.script(command_count, commands, answer);
        let finished = Finished { reply: Vec::new(), reads: Box::default(), published };
        self.leader.waiters.push(Waiter::Script(*origin, Box::new(finished)));
        if let (Some(gateway), Some(claim)) = (origin.gateway(), origin.claim) {
            self.leader.scripts_under_way.insert((gateway, claim.number), cost);
        }
    }

    /// Lets what a session sends later wait here, until [`Group::let_in`].
    pub(crate) fn keep_out(&mut self, origin: &Origin) {
        self.leader.kept_out.insert((origin.node.0, origin.session.serial));
    }

    /// Ends [`Group::keep_out`]; anyone who waits is let in later.
    pub(crate) fn forget_kept_out(&mut self, origin: &Origin) {
        self.leader.kept_out.remove(&(origin.node.0, origin.session.serial));
    }

    /// Ends [`Group::keep_out`].
    pub(crate) fn let_in(&mut self, origin: &Origin, now: Now, output: &mut Output<'_>) {
        if self.leader.kept_out.remove(&(origin.node.0, origin.session.serial)) {
            self.admit_held(now, output);
        }
    }
}

/// What a script on a group's own keys can ask for.
struct LiveHost<'a> {
    keyspace: &'a Keyspace,
    speculation: &'a mut Speculation,
    /// The batch that its changes will be part of.
    batch_number: u64,
    locks: &'a Locks,
    group: GroupId,
    slots: &'a SlotMap,
    database: u16,
    moment: Moment,
    invocation: &'a Invocation,
    circumstances: &'a Circumstances,
    trace: Trace,
    /// The changing commands it has called, laid out by `entry::put_words`.
    commands: Vec<u8>,
    command_count: usize,
    /// The request. Its keys have been looked at before the script began.
    declared: Args<'a>,
    declared_words: std::ops::Range<usize>,
    /// Other keys that it has used.
    used: Vec<(u16, Vec<u8>)>,
    declined: Option<Declined>,
    ticks: u32,
    calls: u32,
    asides: Asides,
    /// Its client keeps what it reads.
    tracks: bool,
    /// Keys that it has read.
    reads: Vec<Vec<u8>>,
}

impl LiveHost<'_> {
    /// Notes a key that is used, and declines if that is not possible here and now.
    fn visit(&mut self, database: u16, key: &[u8]) {
        let is_here = self.slots.group_of(key) == self.group
            && (self.locks.is_empty() || !self.locks.covers(key))
            && !self.speculation.is_changing(key);
        if !is_here {
            self.declined.get_or_insert_default().keys.push((database, key.to_vec()));
        }
    }

    /// True for a key that has been looked at already. Only the first few are compared.
    fn is_declared(&self, key: &[u8]) -> bool {
        self.declared_words.clone().take(COMPARED_COUNT_MAX).any(|word| self.declared.at(word) == key)
    }

    fn run(&mut self, command: &'static keyspace::DataCommand, args: Args<'_>, reply: &mut Writer) -> Flow {
        match command.span {
            // What its patterns lead to is found out in a transaction, unless everything is here and as it will be.
            command::Span::Keys
                if crate::router::is_sort_by_keys(command, args)
                    && (crate::router::is_far_sort(command, args, self.slots)
                        || !self.locks.is_empty()
                        || !self.speculation.is_settled()
                        || self.command_count > 0) =>
            {
                let declined = self.declined.get_or_insert_default();
                command.for_each_key(args, |index, _| declined.keys.push((self.database, args.at(index).to_vec())));
                return Flow::Stop;
            }
            command::Span::Keys => {}
            command::Span::Nothing => {
                self.keyspace.query(self.database, command, args, self.moment, reply);
                return Flow::On;
            }
            // Without other groups, and with nothing under way, the whole is what is here.
            command::Span::Whole(_)
                if self.slots.group_count() == 1
                    && matches!(command.body, Body::Query(_))
                    && self.locks.is_empty()
                    && self.speculation.is_settled()
                    && self.command_count == 0 =>
            {
                self.keyspace.query(self.database, command, args, self.moment, reply);
                return Flow::On;
            }
            command::Span::Whole(_) => {
                self.declined.get_or_insert_default().whole = true;
                return Flow::Stop;
            }
        }
        let others = observe::other_databases(command, args, self.keyspace.database_count());
        let is_query = matches!(command.body, Body::Query(_));
        let mut is_ahead = false;
        command.for_each_key(args, |index, _| {
            let key = args.at(index);
            if !self.is_declared(key) {
                self.visit(self.database, key);
                if self.used.len() < USED_COUNT_MAX {
                    self.used.push((self.database, key.to_vec()));
                }
            }
            is_ahead |= is_query && self.speculation.holds(self.database, key);
        });
        if self.declined.is_some() {
            return Flow::Stop;
        }
        if self.tracks {
            note_reads(command, args, &mut self.reads);
        }
        if is_query && !is_ahead {
            self.keyspace.query(self.database, command, args, self.moment, reply);
            return Flow::On;
        }
        let (number, trace) = (self.batch_number, &mut self.trace);
        command.for_each_key(args, |index, _| {
            for database in std::iter::once(self.database).chain(others.iter().copied()) {
                let key = args.at(index);
                let was_here = self.speculation.bring(self.keyspace, database, key, self.moment, number, trace);
                trace.saw_pending |= was_here;
                if !is_query {
                    self.speculation.alter(database, key, number, trace);
                }
            }
        });
        let scratch = self.speculation.scratch();
        if is_query {
            scratch.query(self.database, command, args, self.moment, reply);
            return Flow::On;
        }
        let start = reply.len();
        scratch.mutate(self.database, command, args, self.moment, reply);
        // What is refused changes nothing.
        if reply.bytes()[start] != b'-' {
            entry::put_words(&mut self.commands, self.database, args);
            self.command_count += 1;
        }
        Flow::On
    }
}

/// Declared keys among which a key is looked for.
const COMPARED_COUNT_MAX: usize = 4;

/// Keys remembered for the case that the script must begin again. It would find the others by itself.
const USED_COUNT_MAX: usize = 1_000;

impl Host for LiveHost<'_> {
    fn call(&mut self, args: Args<'_>, reply: &mut Writer) -> Flow {
        if self.declined.is_some() {
            return Flow::Stop;
        }
        let databases = self.keyspace.database_count();
        let (known, permitted) = match permit(args, self.invocation, self.circumstances, databases, &mut self.asides) {
            Ok(permitted) => permitted,
            Err(refusal) => {
                reply.error(refusal.text());
                return Flow::On;
            }
        };
        if self.circumstances.is_watched {
            let mut words = Vec::new();
            entry::put_words(&mut words, self.database, args);
            self.asides.calls.push(words);
        }
        let start = reply.len();
        self.calls += 1;
        let elapsed_us = elapsed_us(self.ticks, self.calls);
        if permitted.answer(args, &mut self.database, self.moment, elapsed_us, &mut self.asides, reply) {
            self.asides.script_calls.note(known, args, &reply.bytes()[start..]);
            return Flow::On;
        }
        let Permitted::Data(command) = permitted else { unreachable!("answered above") };
        if let Err(refusal) = check_call(command, args, self.circumstances, self.command_count > 0) {
            self.asides.script_calls.note_rejected(known, args, refusal.text());
            reply.error(refusal.text());
            return Flow::On;
        }
        let flow = self.run(command, args, reply);
        self.asides.script_calls.note(known, args, &reply.bytes()[start..]);
        flow
    }

    fn tick(&mut self) -> Flow {
        self.ticks += 1;
        if self.ticks < TICKS_MAX && self.declined.is_none() { Flow::On } else { Flow::Stop }
    }

    fn log(&mut self, level: u8, text: &[u8]) {
        self.asides.actions.extend(crate::scripts::log_action(level, text));
    }

    fn may_call(&mut self, args: Args<'_>) -> Option<bool> {
        crate::scripts::may_call(args, self.invocation)
    }
}
