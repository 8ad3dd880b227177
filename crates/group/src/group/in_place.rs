//! Scripts that run at once on the keys of a group.

use keyspace::Body;
use script::{Ending, Flow};

use super::*;
use crate::answers::put_declined;
use crate::cost::Cost;
use crate::invocation::Invocation;
use crate::overlay::Trace;
use crate::published::Published;
use crate::requests::Declined;

/// A script to be run on a group's keys.
pub struct Run<'a> {
    /// Where the reply goes.
    pub origin: Origin,
    /// See [`Request::floor`].
    pub floor: u64,
    /// The session's protocol.
    pub protocol: Protocol,
    /// The session's database.
    pub database: u16,
    /// What is called.
    pub invocation: &'a Invocation,
    /// The request.
    pub args: Args<'a>,
    /// What is newer may not be called.
    pub level: stdx::Level,
}

/// What carries out a script: an engine, and what it may call.
pub trait Program {
    /// What a script does beside its keys.
    type Asides;

    /// Runs it on a group's keys.
    fn run(&mut self, keys: &mut Live<'_>, reply: &mut Writer) -> Ending;

    /// It has ended, with this reply. What it has published goes out when its changes are safe. What it has called is
    /// part of the cost for a client of another node.
    fn end(self, reply: &[u8], is_far: bool, cost: &mut Cost) -> (Box<[Published]>, Self::Asides);
}

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
    pub fn is_script_due(&mut self, origin: &Origin, output: &mut impl Output) -> bool {
        let (Some(gateway), Some(claim)) = (origin.gateway(), origin.claim) else { return true };
        !self.leader.scripts_under_way.contains_key(&(gateway, claim.number)) && self.is_to_be_done(origin, output)
    }

    /// Runs a script. Its changes join the present batch, and its client is answered when they are safe; if there are
    /// none, as a read is. The group must be [`Standing::Serving`].
    ///
    /// What came of a script with a number is logged whatever it is, also that it was declined: its gateway may ask
    /// again, and must be told the same.
    ///
    /// # Errors
    /// It cannot run on the keys of this group alone, and its gateway has not numbered it.
    pub fn run_script<P: Program>(
        &mut self,
        run: Run<'_>,
        mut program: P,
        prng: &mut Prng,
        now: Now,
        output: &mut impl Output<Asides = P::Asides>,
    ) -> Result<(), Declined> {
        let pending = self.pending_number();
        let lookups_before = self.state.keyspace().lookups();
        self.leader.speculation.activate(pending, run.level);
        self.script.last = now.instant;
        let moment = self.batch_moment(now, output.view().latest_moment(), prng);
        let mut host = Live {
            keyspace: self.state.keyspace(),
            speculation: &mut self.leader.speculation,
            batch_number: self.batch.number,
            locks: &self.leader.locks,
            group: self.id,
            slots: self.state.slots(),
            database: run.database,
            moment,
            trace: Trace::default(),
            commands: std::mem::take(&mut self.script.words),
            command_count: 0,
            declared: run.args,
            declared_words: Invocation::FIRST_KEY..Invocation::FIRST_KEY + run.invocation.key_count,
            used: Vec::new(),
            declined: None,
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
        if host.declined.is_none() {
            watch = output.start_script(&run.origin, run.args);
            host.keyspace.set_silent(run.origin.is_silent);
            ending = program.run(&mut host, &mut writer);
            host.keyspace.set_silent(false);
        }
        let Live { trace, commands, command_count, used, declined, mut reads, .. } = host;
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
        let mut cost = Cost::default();
        let (published, asides) = program.end(writer.bytes(), run.origin.node != self.node, &mut cost);
        if run.origin.claim.is_some() {
            cost.times.extend(watch.map(|watch| output.stop_for_gateway(watch)));
        } else {
            output.stop_watch(watch, &run.origin, run.args);
        }
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
        output: &mut impl Output,
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
    pub fn keep_out(&mut self, origin: &Origin) {
        self.leader.kept_out.insert((origin.node.0, origin.session.serial));
    }

    /// Ends [`Group::keep_out`]; anyone who waits is let in later.
    pub fn forget_kept_out(&mut self, origin: &Origin) {
        self.leader.kept_out.remove(&(origin.node.0, origin.session.serial));
    }

    /// Ends [`Group::keep_out`].
    pub fn let_in(&mut self, origin: &Origin, now: Now, output: &mut impl Output) {
        if self.leader.kept_out.remove(&(origin.node.0, origin.session.serial)) {
            self.admit_held(now, output);
        }
    }
}

/// The keys of a group, lent to a script that runs on them.
pub struct Live<'a> {
    keyspace: &'a Keyspace,
    speculation: &'a mut Speculation,
    /// The batch that its changes will be part of.
    batch_number: u64,
    locks: &'a Locks,
    group: GroupId,
    slots: &'a SlotMap,
    /// The database that it has selected.
    pub database: u16,
    moment: Moment,
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
    /// Its client keeps what it reads.
    tracks: bool,
    /// Keys that it has read.
    reads: Vec<Vec<u8>>,
}

impl Live<'_> {
    /// The moment that its changes will carry.
    #[inline]
    pub fn moment(&self) -> Moment {
        self.moment
    }

    /// Databases of the group.
    #[inline]
    pub fn database_count(&self) -> u16 {
        self.keyspace.database_count()
    }

    /// It cannot run here: nothing of it remains, and it need not go on.
    #[inline]
    pub fn is_declined(&self) -> bool {
        self.declined.is_some()
    }

    /// It has called a command that changes data.
    #[inline]
    pub fn has_changed(&self) -> bool {
        self.command_count > 0
    }

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

    /// Carries out a command that it may call.
    pub fn run(&mut self, command: &'static keyspace::DataCommand, args: Args<'_>, reply: &mut Writer) -> Flow {
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

/// Notes the keys that a command reads.
pub fn note_reads(command: &keyspace::DataCommand, args: Args<'_>, reads: &mut Vec<Vec<u8>>) {
    if command.has(command::Flag::Readonly) {
        command.for_each_key(args, |index, _| reads.push(args.at(index).to_vec()));
    }
}
