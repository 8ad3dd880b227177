//! What the commands of a transaction over several groups do, on copies of the keys that it has locked.
//!
//! A script among them, or a SORT, may reach for a key that is not locked. A script then goes on for a while as
//! if there were no such
//! key, only to find out what else it wants; nothing of that run is kept. The transaction lets go of its locks and
//! begins again with these keys locked, too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use group::ids::GroupId;
use group::in_place::note_reads;
use group::invocation::Invocation;
use group::limits::Slicing;
use group::one_command::run_one;
use keyspace::{
    Body, Classes, Corrupt, Exporting, Imported, Importing, Keyspace, Layout, Limits, Lookups, Moment, Notice,
};
use message::TransactionId;
use resp::{Args, Span, Writer};
use script::{Ending, Engine, Flow, Host, Pause};
use stdx::{Instant, Level, Prng};

use crate::entry::{self, Effect, put_words};
use crate::limits::CALLS_PER_PART;
use crate::scripts::{Asides, Permitted, check_call, elapsed_us, log_action, permit};
use crate::slots::SlotMap;
use crate::transaction::{Work, database_effects_of};

/// Commands, and the keys they work on.
pub struct Computation {
    /// For statistics.
    pub(crate) stopwatch: fn() -> Instant,
    pub(crate) id: TransactionId,
    pub(crate) work: Box<Work>,
    pub(crate) moment: Moment,
    pub(crate) databases: u16,
    /// Which changes to keys to note.
    pub(crate) noted: Classes,
    /// By which collections change their form.
    pub(crate) limits: Limits,
    /// How uses of keys are noted.
    pub(crate) tuning: keyspace::Tuning,
    /// By which replies have their form, and commands their words.
    pub(crate) level: Level,
    /// How large values come and go.
    pub(crate) slicing: Slicing,
    /// Where its keys are.
    pub(crate) slots: Arc<SlotMap>,
    /// Values of `work.keys`, in their order.
    pub(crate) values: BTreeMap<GroupId, Vec<Option<Vec<u8>>>>,
    /// Answers to `work.queries`, with the numbers of keys that are not named.
    pub(crate) answers: BTreeMap<GroupId, Vec<(u64, Vec<u8>)>>,
    /// What scripts draw their chance from.
    pub(crate) chance: u64,
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Computed {
    /// The reply, and the changes by group.
    Done(Box<Outcome>),
    /// A script, or a SORT, wants more than is locked.
    Wanting(Wants),
    /// It cannot be done in one go.
    TooLong,
    /// What a group has given out as a value is none.
    Unreadable(GroupId),
}

/// What has been done.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) reply: Vec<u8>,
    /// The changes, by group.
    pub(crate) effects: BTreeMap<GroupId, Vec<Effect>>,
    /// What scripts have done beside.
    pub(crate) asides: Asides,
    /// What has happened to keys.
    pub(crate) notices: Vec<Notice>,
    /// Keys that have been read, if the client keeps what it reads.
    pub(crate) reads: Vec<Vec<u8>>,
    /// Keys that its commands have looked up.
    pub(crate) lookups: Lookups,
}

/// What a script, or a SORT, wants to have locked.
#[derive(Debug, Default)]
pub(crate) struct Wants {
    pub(crate) keys: Vec<(u16, Vec<u8>)>,
    /// Every key.
    pub(crate) whole: bool,
    /// Keys may change their database.
    pub(crate) swaps: bool,
    /// Queries over a whole database, laid out by `entry::put_words`.
    pub(crate) queries: Vec<Vec<u8>>,
}

impl Wants {
    fn is_empty(&self) -> bool {
        self.keys.is_empty() && !self.whole && !self.swaps && self.queries.is_empty()
    }
}

/// What scripts run with.
pub(crate) struct Means<'a> {
    pub(crate) engine: &'a mut Engine,
    /// How to leave a long run for a while; without it a long one ends as [`Computed::TooLong`].
    pub(crate) pause: Option<&'a Pause<'a>>,
    /// Set to end the script.
    pub(crate) is_killed: &'a AtomicBool,
}

/// Questions of the engine that a script may take without a pause, and commands and questions that one may take after
/// it has reached for what is not locked.
const TICKS_MAX: u32 = 2;
const GUESSED_CALLS_MAX: u32 = 10_000;

impl Computation {
    /// True if there is a script among the commands.
    pub(crate) fn has_scripts(&self) -> bool {
        !self.work.invocations.is_empty()
    }

    /// True if values are so large that reading them takes long.
    pub(crate) fn is_large(&self) -> bool {
        let is_large = |value: &Option<Vec<u8>>| value.as_ref().is_some_and(|it| it.len() >= self.slicing.bytes_min);
        self.values.values().flatten().any(is_large)
    }

    /// Runs the commands. If it may take long, the copies are left to be freed in steps.
    pub(crate) fn run(&self, means: Option<Means<'_>>) -> (Computed, Option<Keyspace>) {
        let pause = means.as_ref().and_then(|means| means.pause);
        let mut scratch = Keyspace::new(keyspace::Options {
            databases: self.databases,
            hash_seed: 0,
            layout: Layout::Scratch,
            tuning: self.tuning,
        });
        // Before any value comes in: they say whether one that is due exists.
        scratch.set_limits(self.limits);
        scratch.set_level(self.level);
        for (group, values) in &self.values {
            let Some(keys) = self.work.keys.get(group) else { continue };
            for ((database, key), value) in keys.iter().zip(values) {
                let imported = match value.as_deref().map(|value| self.import(value, pause)) {
                    None => None,
                    Some(Ok(imported)) => Some(imported),
                    Some(Err(_)) => return (Computed::Unreadable(*group), None),
                };
                scratch.put_imported(*database, key, imported, self.moment);
            }
        }
        let computed = self.run_on(&mut scratch, means);
        let copies = pause.is_some().then(|| {
            scratch.clear(self.moment);
            scratch
        });
        (computed, copies)
    }

    fn run_on(&self, scratch: &mut Keyspace, mut means: Option<Means<'_>>) -> Computed {
        let pause = means.as_ref().and_then(|means| means.pause);
        scratch.listen(self.noted);
        let before = scratch.sequence();
        let mut writer = Writer::new(self.work.protocol);
        if self.work.is_exec {
            writer.array(self.work.commands.len());
        }
        let mut spans: Vec<Span> = Vec::new();
        let mut database_effects = Vec::new();
        let mut origins: Vec<_> = (0..self.databases).map(Some).collect();
        let mut asides = Asides::default();
        let mut reads = Vec::new();
        let mut chance = Prng::new(self.chance);
        for (place, words) in self.work.commands.iter().enumerate() {
            let (database, args) = entry::Reader::new(words).words(&mut spans);
            let started = (self.stopwatch)();
            let Some(invocation) = self.work.invocations.get(&place) else {
                let wants = self.wanted_by_sort(scratch, database, args);
                if !wants.is_empty() {
                    return Computed::Wanting(wants);
                }
                self.run_command(scratch, place, database, args, &mut database_effects, &mut origins, &mut writer);
                asides.note_time(words, (self.stopwatch)().since(started));
                if self.work.origin.tracks {
                    note_reads(keyspace::resolve(args).expect("checked when it was queued"), args, &mut reads);
                }
                continue;
            };
            let invocation = match invocation {
                Ok(invocation) => invocation,
                Err(refusal) => {
                    asides.script_calls.note_error(refusal.text().as_bytes());
                    writer.error(refusal.text());
                    continue;
                }
            };
            let means = means.as_mut().expect("there is a script");
            let read_before = reads.len();
            let reply_start = writer.len();
            let mut host = ScratchHost {
                computation: self,
                scratch: &mut *scratch,
                invocation,
                database,
                database_effects: &mut database_effects,
                origins: &mut origins,
                asides: &mut asides,
                reads: &mut reads,
                wants: Wants::default(),
                has_written: false,
                ticks: 0,
                guessed_calls: 0,
                calls: 0,
                pause: means.pause,
                is_killed: means.is_killed,
            };
            let call = invocation.call(args, self.moment, chance.draw());
            let ending = invocation.code.run(means.engine, &call, &mut host, &mut writer);
            let wants = host.wants;
            // Anyone who reads anything keeps what it has named, as in Redis.
            if reads.len() > read_before {
                reads.extend(invocation.keys(args).map(<[u8]>::to_vec));
            }
            if means.is_killed.load(Ordering::Relaxed) {
                let mut writer = Writer::new(self.work.protocol);
                let command = if invocation.code.is_function() { "FUNCTION" } else { "SCRIPT" };
                writer.error(&format!("ERR Script killed by user with {command} KILL."));
                asides.script_calls.end(writer.bytes());
                asides.published.clear();
                return Computed::Done(Box::new(Outcome { reply: writer.into_bytes(), asides, ..Outcome::default() }));
            }
            if !wants.is_empty() {
                return Computed::Wanting(wants);
            }
            if ending == Ending::Stopped {
                return match means.pause {
                    None => Computed::TooLong,
                    // Its memory has grown beyond all bounds.
                    Some(_) => {
                        let mut writer = Writer::new(self.work.protocol);
                        let name = invocation.code.name();
                        writer.error(&format!("ERR Error running script {name}, not enough memory"));
                        asides.script_calls.end(writer.bytes());
                        asides.published.clear();
                        Computed::Done(Box::new(Outcome { reply: writer.into_bytes(), asides, ..Outcome::default() }))
                    }
                };
            }
            asides.script_calls.end(&writer.bytes()[reply_start..]);
            asides.note_time(words, (self.stopwatch)().since(started));
        }
        let effects = self.effects(scratch, before, &database_effects, pause);
        let reply = writer.into_bytes();
        let (notices, lookups) = (scratch.take_notices(), scratch.lookups());
        Computed::Done(Box::new(Outcome { reply, effects, asides, notices, reads, lookups }))
    }

    /// Keys that the patterns of a SORT lead to and that are not locked.
    fn wanted_by_sort(&self, scratch: &Keyspace, database: u16, args: Args<'_>) -> Wants {
        let mut wants = Wants::default();
        if keyspace::resolve(args).is_some_and(|command| group::router::is_sort_by_keys(command, args)) {
            let keys = keyspace::sort_keys(&scratch.view(database, self.moment), args);
            let unknown = keys.into_iter().filter(|key| !self.is_named(database, key));
            wants.keys = unknown.map(|key| (database, key)).collect();
        }
        wants
    }

    #[expect(clippy::too_many_arguments, reason = "the state of the computation, piece by piece")]
    fn run_command(
        &self,
        scratch: &mut Keyspace,
        place: usize,
        database: u16,
        args: Args<'_>,
        database_effects: &mut Vec<Effect>,
        origins: &mut [Option<u16>],
        writer: &mut Writer,
    ) {
        let start = writer.len();
        match self.work.queries.iter().position(|(other, _)| *other == Some(place)) {
            Some(query) => self.answer_whole(scratch, database, args, Some(query), writer),
            None if crate::keyspace_queries::is_scan(args) => {
                crate::keyspace_queries::scan_emptied(scratch, database, args, self.moment, writer);
            }
            None => run_one(scratch, database, args, self.moment, writer),
        }
        // What is refused changes nothing.
        if writer.bytes()[start] != b'-'
            && let Some(effects) = database_effects_of(database, args, self.databases)
        {
            follow(&effects, origins);
            database_effects.extend(effects);
        }
    }

    /// A query over a whole database: what the groups say of the keys that the transaction does not name, and what the
    /// scratch keyspace says of those that it does. Without `query` the database has been emptied, and there are no
    /// others.
    fn answer_whole(
        &self,
        scratch: &Keyspace,
        database: u16,
        args: Args<'_>,
        query: Option<usize>,
        writer: &mut Writer,
    ) {
        let Some(query) = query else {
            if crate::keyspace_queries::is_scan(args) {
                return crate::keyspace_queries::scan_emptied(scratch, database, args, self.moment, writer);
            }
            return scratch.query(
                database,
                keyspace::resolve(args).expect("it was permitted"),
                args,
                self.moment,
                writer,
            );
        };
        let mut spans = Vec::new();
        let words = &self.work.queries[query].1;
        let (origin, _) = entry::Reader::new(words).words(&mut spans);
        let named: BTreeSet<&[u8]> = self
            .work
            .keys
            .values()
            .flatten()
            .filter(|(other, _)| *other == origin)
            .map(|(_, key)| key.as_slice())
            .collect();
        let replies = self.answers.iter().map(|(group, answers)| {
            let (weight, bytes) = &answers[query];
            (*group, *weight, bytes.clone())
        });
        let question = crate::keyspace_queries::Question {
            scratch,
            database,
            moment: self.moment,
            args,
            named,
            replies: replies.collect(),
            words,
        };
        question.answer(writer);
    }

    /// What has changed, by group: first the databases as a whole, then every key with a value that differs.
    fn effects(
        &self,
        scratch: &Keyspace,
        before: u64,
        database_effects: &[Effect],
        pause: Option<&Pause<'_>>,
    ) -> BTreeMap<GroupId, Vec<Effect>> {
        let mut effects: BTreeMap<GroupId, Vec<Effect>> = BTreeMap::new();
        if !database_effects.is_empty() {
            for group in self.slots.groups() {
                effects.insert(group, database_effects.to_vec());
            }
        }
        for (group, keys) in &self.work.keys {
            for ((database, key), value) in keys.iter().zip(&self.values[group]) {
                let version = scratch.version(*database, key, self.moment);
                let changed = if version == 0 { value.is_some() } else { version > before };
                if changed || !database_effects.is_empty() {
                    let exporting = scratch.begin_export(*database, key, self.moment);
                    let exported = exporting.map(|exporting| self.export(exporting, pause));
                    effects.entry(*group).or_default().push(Effect::Key {
                        database: *database,
                        key: key.clone(),
                        exported,
                    });
                }
            }
        }
        effects
    }

    /// Reads a value, and leaves now and then if it is large.
    fn import(&self, bytes: &[u8], pause: Option<&Pause<'_>>) -> Result<Imported, Corrupt> {
        let mut importing = Importing::new(bytes)?;
        while !importing.step(bytes, self.slicing.step_bytes)? {
            if let Some(pause) = pause {
                pause.pause();
            }
        }
        Ok(importing.into_imported())
    }

    /// Writes a value, and leaves now and then if it is large.
    fn export(&self, mut exporting: Exporting, pause: Option<&Pause<'_>>) -> Vec<u8> {
        while !exporting.step(self.slicing.step_bytes) {
            if let Some(pause) = pause {
                pause.pause();
            }
        }
        exporting.into_bytes()
    }

    fn is_named(&self, database: u16, key: &[u8]) -> bool {
        let group = self.slots.group_of(key);
        self.work.keys.get(&group).is_some_and(|keys| {
            keys.binary_search_by(|(other, name)| (*other, name.as_slice()).cmp(&(database, key))).is_ok()
        })
    }
}

/// Keeps track of where the keys of each database were before the transaction; those of an emptied one are nowhere.
fn follow(effects: &[Effect], origins: &mut [Option<u16>]) {
    for effect in effects {
        match effect {
            Effect::Flush { database } => origins[usize::from(*database)] = None,
            Effect::Swap { first, second } => origins.swap(usize::from(*first), usize::from(*second)),
            Effect::Key { .. } | Effect::Give(_) | Effect::Take(_) | Effect::Answer(_) => {}
        }
    }
}

/// What a script in a transaction can ask for.
struct ScratchHost<'a> {
    computation: &'a Computation,
    scratch: &'a mut Keyspace,
    invocation: &'a Invocation,
    database: u16,
    database_effects: &'a mut Vec<Effect>,
    origins: &'a mut Vec<Option<u16>>,
    asides: &'a mut Asides,
    reads: &'a mut Vec<Vec<u8>>,
    wants: Wants,
    has_written: bool,
    ticks: u32,
    guessed_calls: u32,
    calls: u32,
    pause: Option<&'a Pause<'a>>,
    is_killed: &'a AtomicBool,
}

impl ScratchHost<'_> {
    fn run(&mut self, command: &'static keyspace::DataCommand, args: Args<'_>, reply: &mut Writer) {
        match command.span {
            command::Span::Nothing => {}
            command::Span::Keys => {
                self.want_keys(command, args);
                let wanted = self.computation.wanted_by_sort(self.scratch, self.database, args);
                self.wants.keys.extend(wanted.keys);
            }
            command::Span::Whole(command::Join::All) => {
                self.wants.whole |= !self.computation.work.whole;
                self.wants.swaps |= command.name == "swapdb" && !self.computation.work.swaps;
            }
            command::Span::Whole(_) => return self.run_whole(args, reply),
        }
        if self.computation.work.origin.tracks {
            note_reads(command, args, self.reads);
        }
        let start = reply.len();
        let moment = self.computation.moment;
        match command.body {
            Body::Query(_) => return self.scratch.query(self.database, command, args, moment, reply),
            _ => self.scratch.mutate(self.database, command, args, moment, reply),
        }
        if reply.bytes()[start] == b'-' {
            return;
        }
        self.has_written = true;
        if let Some(effects) = database_effects_of(self.database, args, self.computation.databases) {
            follow(&effects, self.origins);
            self.database_effects.extend(effects);
        }
    }

    fn want_keys(&mut self, command: &keyspace::DataCommand, args: Args<'_>) {
        let others = crate::observe::other_databases(command, args, self.computation.databases);
        command.for_each_key(args, |index, _| {
            for database in std::iter::once(self.database).chain(others.iter().copied()) {
                let key = args.at(index);
                if !self.computation.is_named(database, key) {
                    self.wants.keys.push((database, key.to_vec()));
                }
            }
        });
    }

    fn run_whole(&mut self, args: Args<'_>, reply: &mut Writer) {
        let Some(origin) = self.origins[usize::from(self.database)] else {
            return self.computation.answer_whole(self.scratch, self.database, args, None, reply);
        };
        let mut words = Vec::new();
        put_words(&mut words, origin, args);
        let queries = &self.computation.work.queries;
        let asked = queries.iter().position(|(place, asked)| place.is_none() && *asked == words);
        if asked.is_none() {
            self.wants.whole |= !self.computation.work.whole;
            self.wants.queries.push(words);
        }
        self.computation.answer_whole(self.scratch, self.database, args, asked, reply);
    }
}

impl Host for ScratchHost<'_> {
    fn call(&mut self, args: Args<'_>, reply: &mut Writer) -> Flow {
        if self.is_killed.load(Ordering::Relaxed) {
            return Flow::Stop;
        }
        self.calls += 1;
        if self.calls.is_multiple_of(CALLS_PER_PART)
            && let Some(pause) = self.pause
        {
            pause.pause();
        }
        if !self.wants.is_empty() {
            self.guessed_calls += 1;
            if self.guessed_calls > GUESSED_CALLS_MAX {
                return Flow::Stop;
            }
        }
        let circumstances = &self.computation.work.circumstances;
        let (known, permitted) =
            match permit(args, self.invocation, circumstances, self.computation.databases, self.asides) {
                Ok(permitted) => permitted,
                Err(refusal) => {
                    reply.error(refusal.text());
                    return Flow::On;
                }
            };
        if circumstances.is_watched {
            let mut words = Vec::new();
            put_words(&mut words, self.database, args);
            self.asides.calls.push(words);
        }
        let start = reply.len();
        let (moment, elapsed_us) = (self.computation.moment, elapsed_us(self.ticks, self.calls));
        if permitted.answer(args, &mut self.database, moment, elapsed_us, self.asides, reply) {
            self.asides.script_calls.note(known, args, &reply.bytes()[start..]);
            return Flow::On;
        }
        let Permitted::Data(command) = permitted else { unreachable!("answered above") };
        match check_call(command, args, &self.computation.work.circumstances, self.has_written) {
            Ok(()) => {
                self.run(command, args, reply);
                self.asides.script_calls.note(known, args, &reply.bytes()[start..]);
            }
            Err(refusal) => {
                self.asides.script_calls.note_rejected(known, args, refusal.text());
                reply.error(refusal.text());
            }
        }
        Flow::On
    }

    fn tick(&mut self) -> Flow {
        self.ticks += 1;
        if !self.wants.is_empty() && self.ticks >= TICKS_MAX {
            return Flow::Stop;
        }
        match self.pause {
            Some(pause) => pause.pause(),
            None if self.ticks >= TICKS_MAX => return Flow::Stop,
            None => {}
        }
        if self.is_killed.load(Ordering::Relaxed) { Flow::Stop } else { Flow::On }
    }

    fn log(&mut self, level: u8, text: &[u8]) {
        self.asides.actions.extend(log_action(level, text));
    }

    fn may_call(&mut self, args: Args<'_>) -> Option<bool> {
        crate::scripts::may_call(args, self.invocation)
    }
}
