//! What each item of an entry does.

use std::sync::Arc;

use command::Flag;
use keyspace::{Class, DataCommand, Keyspace, Moment, PREFETCH_MAX, PrefetchTarget};
use message::answer;
use message::entry::{self, Claimed, Effect, ExecItem, Item, Reader, Taken};
use message::parameters::USERS_CHANGED;
use message::roster::Member;
use message::slots::Moved;
use message::{GatewayId, GroupId, NodeId, TransactionId};
use resp::{Args, Protocol, Writer};
use stdx::log::{Entry, EntryKind};
use stdx::{Level, UnixMillis};

use crate::recorder::Recorder;
use crate::reply_cache::Lookup;
use crate::{Imports, Position, Prepared, SplitOff, State, observe, recorder};

/// Measures commands. What it measures is no part of the state.
pub trait Meter {
    /// What one measurement needs to know until it ends.
    type Watch;

    /// A command begins; nothing if it is not measured.
    fn start(&mut self, command: &'static DataCommand, args: Args<'_>) -> Option<Self::Watch>;

    /// It has ended. Nothing if it was not measured, or has done nothing and its client waits.
    fn stop(&mut self, watch: Option<Self::Watch>, args: Args<'_>);
}

/// What somebody makes of the items of an entry while they are applied. Nothing of it decides what becomes of the data.
///
/// The meter is asked for the commands of numbered requests: the state keeps their replies.
pub trait Effects: Meter {
    /// Runs a command that no gateway has numbered, once. The caller decides where its reply goes.
    fn command(&mut self, run: CommandRun<'_>) {
        run.discard();
    }

    /// The same of the commands of a MULTI.
    fn exec(&mut self, run: ExecRun<'_>) {
        run.discard();
    }

    /// True if the keys of the next item are not used by what it does with them (CLIENT NO-TOUCH). When a key was used
    /// is known to each replica by itself.
    fn is_silent(&self) -> bool {
        false
    }

    /// The large values of a transaction, as far as they have been read in already.
    fn imports(&mut self, transaction: TransactionId) -> Imports {
        let _ = transaction;
        Imports::new()
    }

    /// An item has been applied by [`State::apply`].
    fn applied(&mut self, state: &mut State, applied: Applied) {
        let _ = (state, applied);
    }
}

/// Nobody wants to know what an entry does, but for the state that it leaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ignored;

impl Meter for Ignored {
    type Watch = ();

    fn start(&mut self, _: &'static DataCommand, _: Args<'_>) -> Option<()> {
        None
    }

    fn stop(&mut self, _: Option<()>, _: Args<'_>) {}
}

impl Effects for Ignored {}

/// What an item was, and what it has done.
#[derive(Debug)]
pub struct Applied {
    /// Which numbered request it carried out.
    pub claimed: Option<Claimed>,
    /// What that request is answered. Nothing if its gateway has the answer already.
    pub answer: Option<Vec<u8>>,
    /// What the item was.
    pub what: What,
}

/// What an item was, and what those must know of it who look after requests, locks and nodes.
#[derive(Debug)]
pub enum What {
    /// A command.
    Command,
    /// A MULTI.
    Exec,
    /// The commands of a script.
    Script,
    /// Nothing but a moment, or something that nobody waits for.
    Nothing,
    /// A numbered request that had been carried out before.
    Repeated {
        /// The transaction that asks for a step, if it is one that changes keys.
        transaction: Option<TransactionId>,
    },
    /// A transaction over several groups has changed keys at once.
    Installed {
        /// Which.
        transaction: TransactionId,
        /// Slots that have moved with it, to this group or from it.
        moved: Vec<Moved>,
    },
    /// A transaction has been prepared, or refused if this group had promised so.
    Prepared {
        /// Which.
        transaction: TransactionId,
        /// False if it was refused.
        is_accepted: bool,
    },
    /// A transaction has ended.
    Resolved {
        /// Which.
        transaction: TransactionId,
        /// Slots that have moved with it, to this group or from it.
        moved: Vec<Moved>,
    },
    /// Libraries of functions have changed, or could not be; with the reply.
    Libraries(Vec<u8>),
    /// Parameters of the cluster have changed.
    Parameters,
    /// Something was said of a node.
    Enlisted {
        /// Which.
        node: NodeId,
        /// What was known of it.
        before: Option<Member>,
        /// False if that was known.
        is_news: bool,
    },
    /// Something was said of which node should lead or which group should hold slots; true if it was not known.
    Wished(bool),
    /// A gateway was told where a slot is.
    Moved,
    /// A group had to split off.
    Split {
        /// Which.
        group: GroupId,
        /// What it begins with; none if it could not.
        split: Option<Box<SplitOff>>,
    },
    /// The group has ended, or could not.
    Ended,
    /// The group is at this level.
    Risen {
        /// Which.
        level: Level,
        /// False if it was before.
        is_news: bool,
    },
}

/// A place in an entry that is being applied.
pub struct Cursor<'e> {
    reader: Reader<'e>,
    ahead: Reader<'e>,
    /// Items with keys that have already been looked up, side by side.
    items_ahead: usize,
    moment: Moment,
}

impl Cursor<'_> {
    /// True if all items have been applied.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.reader.is_done()
    }

    /// The moment of the entry, as the state knows it.
    pub fn moment(&self) -> Moment {
        self.moment
    }
}

/// A command of an entry, to be run.
pub struct CommandRun<'a> {
    /// Form of the reply.
    pub protocol: Protocol,
    /// Database it was sent to.
    pub database: u16,
    /// Which command.
    pub command: &'static DataCommand,
    /// Its words.
    pub args: Args<'a>,
    keyspace: &'a mut Keyspace,
    recorder: &'a mut Option<Box<Recorder>>,
    moment: Moment,
    scratch: &'a mut Writer,
    has_run: &'a mut bool,
}

impl CommandRun<'_> {
    /// Executes it. False if it has done nothing, and its client waits until there is something for it.
    #[inline]
    pub fn run(self, writer: &mut Writer) -> bool {
        *self.has_run = true;
        let start = writer.len();
        recorder::run(self.keyspace, self.recorder, (self.database, self.moment), self.command, self.args, writer);
        !(self.command.has(Flag::Blocking) && is_null(&writer.bytes()[start..]))
    }

    /// Executes it; nobody wants the reply.
    pub fn discard(self) {
        *self.has_run = true;
        let place = (self.database, self.moment);
        recorder::run(self.keyspace, self.recorder, place, self.command, self.args, self.scratch);
        self.scratch.truncate(0);
    }

    /// True if there is such a key now.
    pub fn exists(&self, key: &[u8]) -> bool {
        self.keyspace.version(self.database, key, self.moment) != 0
    }
}

/// A MULTI of an entry, to be run.
pub struct ExecRun<'a> {
    /// Its commands and what must not have changed.
    pub exec: ExecItem<'a>,
    level: Level,
    keyspace: &'a mut Keyspace,
    recorder: &'a mut Option<Box<Recorder>>,
    moment: Moment,
    scratch: &'a mut Writer,
    has_run: &'a mut bool,
}

impl ExecRun<'_> {
    /// Executes its commands, or none of them if a watched key has changed.
    pub fn run(self, meter: &mut impl Meter, writer: &mut Writer) {
        *self.has_run = true;
        let recorder = self.recorder;
        let run =
            |keyspace: &mut Keyspace, database, command: &DataCommand, args: Args<'_>, moment, out: &mut Writer| {
                recorder::run(keyspace, recorder, (database, moment), command, args, out);
            };
        execute(self.keyspace, self.exec, |args| logged(args, self.level), self.moment, run, meter, writer);
    }

    /// The same; nobody wants the reply.
    pub fn discard(self) {
        let Self { exec, level, keyspace, recorder, moment, scratch, has_run } = self;
        let mut writer = std::mem::take(scratch);
        ExecRun { exec, level, keyspace, recorder, moment, scratch, has_run }.run(&mut Ignored, &mut writer);
        writer.truncate(0);
        *scratch = writer;
    }
}

/// Where the reply of an item goes.
enum Output<'w> {
    /// This gateway has numbered the request: the state keeps the reply.
    Kept(&'w mut Writer, GatewayId),
    /// The state does not need it.
    Free,
}

impl State {
    /// Applies an entry: the next one of the group's log.
    ///
    /// # Panics
    /// If it is another one, or of a version that is not known.
    pub fn apply(&mut self, entry: &Entry, effects: &mut impl Effects) {
        let Some(mut cursor) = self.open(entry) else { return };
        while !cursor.is_done() {
            let applied = self.apply_next(&mut cursor, effects);
            effects.applied(self, applied);
        }
    }

    /// Takes the next entry of the log; [`State::apply_next`] then applies its items. Nothing for one that only marks a
    /// new leader, or that changes who takes part in the group: consensus acts on that.
    ///
    /// # Panics
    /// As [`State::apply`].
    pub fn open<'e>(&mut self, entry: &'e Entry) -> Option<Cursor<'e>> {
        assert_eq!(entry.index, self.applied.index + 1, "entries are applied in order, each once");
        assert!(entry.term >= self.applied.term, "terms of a log never go back");
        self.applied = Position { index: entry.index, term: entry.term };
        if entry.kind == EntryKind::Membership {
            return None;
        }
        let (moment, reader) = entry::open(&entry.data)?;
        self.moment = Moment { unix: self.moment.unix.max(moment.unix), seed: moment.seed };
        self.keyspace.advance_to(self.moment);
        self.request_ids.forget(self.moment.unix);
        Some(Cursor { ahead: reader.clone(), reader, items_ahead: 0, moment: self.moment })
    }

    /// Applies the next item.
    ///
    /// # Panics
    /// If there is none, or it is not known.
    #[inline]
    pub fn apply_next(&mut self, cursor: &mut Cursor<'_>, effects: &mut impl Effects) -> Applied {
        if cursor.items_ahead == 0 {
            cursor.items_ahead = prefetch(&self.keyspace, &mut cursor.ahead);
        }
        cursor.items_ahead -= 1;
        let moment = cursor.moment;
        let mut spans = std::mem::take(&mut self.spans);
        let item = cursor.reader.item(&mut spans).expect("the caller has looked");
        if let Some(recorder) = &mut self.recorder {
            recorder.begin(self.applied.index, self.moment.unix);
        }
        let is_silent = effects.is_silent();
        self.keyspace.set_silent(is_silent);
        let applied = match cursor.reader.claimed() {
            None => {
                let what = self.apply_item(item, moment, Output::Free, effects);
                Applied { claimed: None, answer: None, what }
            }
            Some(claimed) => self.apply_claimed(item, claimed, moment, effects),
        };
        self.keyspace.set_silent(false);
        self.spans = spans;
        if let Some(recorder) = &mut self.recorder {
            recorder.end();
        }
        applied
    }

    /// Carries out a numbered request, unless it has been carried out before.
    fn apply_claimed(
        &mut self,
        item: Item<'_>,
        claimed: Claimed,
        moment: Moment,
        effects: &mut impl Effects,
    ) -> Applied {
        let Claimed { gateway, number, floor } = claimed;
        self.replies.settle(gateway, floor, moment);
        let is_new = self.forgets_answers && matches!(item, Item::Command { .. } | Item::Exec(_));
        let known = if is_new { Lookup::New } else { self.replies.look(gateway, number) };
        let answer = match known {
            Lookup::New => {
                let mut writer = Writer::default();
                let output = Output::Kept(&mut writer, gateway);
                let what = self.apply_item(item, moment, output, effects);
                let answer = writer.into_bytes();
                self.replies.note(gateway, number, answer.clone());
                return Applied { claimed: Some(claimed), answer: Some(answer), what };
            }
            Lookup::Answered(answer) => Some(answer.to_vec()),
            Lookup::Forgotten => None,
        };
        let transaction = match item {
            Item::Install { transaction, .. } | Item::Prepare { transaction, .. } => Some(transaction),
            _ => None,
        };
        if let Some(transaction) = transaction {
            let imports = effects.imports(transaction);
            self.bury(imports);
        }
        Applied { claimed: Some(claimed), answer, what: What::Repeated { transaction } }
    }

    #[inline]
    fn apply_item(
        &mut self,
        item: Item<'_>,
        moment: Moment,
        mut output: Output<'_>,
        effects: &mut impl Effects,
    ) -> What {
        match item {
            Item::Command { protocol, database, args } => {
                let command = logged(args, self.level);
                debug_assert!(self.foreign_of(command, args).is_none(), "a change of a slot that another group holds");
                let mut has_run = false;
                let Self { keyspace, recorder, scratch, .. } = self;
                let has_run = &mut has_run;
                let run =
                    CommandRun { protocol, database, command, args, keyspace, recorder, moment, scratch, has_run };
                match &mut output {
                    Output::Kept(writer, _) => {
                        writer.set_protocol(protocol);
                        let watch = effects.start(command, args);
                        let is_done = run.run(writer);
                        effects.stop(watch.filter(|_| is_done), args);
                    }
                    Output::Free => effects.command(run),
                }
                assert!(*has_run, "a logged command is run, no matter who wants its reply");
                What::Command
            }
            Item::Exec(exec) => {
                let protocol = exec.protocol;
                let mut has_run = false;
                let Self { keyspace, recorder, scratch, level, .. } = self;
                let run = ExecRun { exec, level: *level, keyspace, recorder, moment, scratch, has_run: &mut has_run };
                match &mut output {
                    Output::Kept(writer, _) => {
                        writer.set_protocol(protocol);
                        run.run(effects, writer);
                    }
                    Output::Free => effects.exec(run),
                }
                assert!(has_run, "a logged MULTI is run, no matter who wants its reply");
                What::Exec
            }
            item => self.apply_rare(item, moment, output, effects),
        }
    }

    /// Applies what is not a client's command or MULTI.
    fn apply_rare(
        &mut self,
        item: Item<'_>,
        moment: Moment,
        mut output: Output<'_>,
        effects: &mut impl Effects,
    ) -> What {
        let gateway = match &output {
            Output::Kept(_, gateway) => Some(*gateway),
            Output::Free => None,
        };
        let mut answer = |bytes: &[u8]| {
            if let Output::Kept(writer, _) = &mut output {
                writer.raw(bytes);
            }
        };
        match item {
            Item::Command { .. } | Item::Exec(_) => unreachable!("applied by the caller"),
            Item::Script { commands, answer: reply } => {
                self.run_script(commands, moment);
                answer(reply);
                What::Script
            }
            Item::Libraries(change) => {
                let mut writer = Writer::default();
                let libraries = Arc::make_mut(&mut self.libraries);
                match gateway {
                    Some(gateway) => self.echoes.apply(libraries, change, gateway.node, moment, &mut writer),
                    None => libraries.apply(change, &mut writer),
                }
                let reply = writer.into_bytes();
                if let Some(recorder) = &mut self.recorder {
                    recorder.libraries(self.libraries.iter().map(|loaded| &loaded.library.text[..]));
                }
                answer(&answer::put_changed(self.libraries.version, &reply));
                What::Libraries(reply)
            }
            Item::Configure(pairs) => {
                let is_made = Arc::make_mut(&mut self.parameters).apply(pairs);
                let refusal = if is_made { "" } else { USERS_CHANGED };
                answer(&answer::put_changed(self.parameters.version, refusal.as_bytes()));
                What::Parameters
            }
            Item::Tick => What::Nothing,
            Item::Limits(limits) => {
                self.keyspace.set_limits(limits);
                What::Nothing
            }
            Item::Install { transaction, effects: changes } => {
                let imports = effects.imports(transaction);
                let moved = self.install(&changes, imports);
                self.note_effects(&changes);
                answer(&[1]);
                What::Installed { transaction, moved }
            }
            Item::Prepare { transaction, participants, effects: changes } => {
                let imports = effects.imports(transaction);
                let is_accepted = self.outcome(transaction) != Some(false);
                if is_accepted {
                    // Its keys are locked until it is resolved: clients that are told now read what it leaves. Told
                    // later, an acknowledged change would find old values in caches.
                    self.note_effects(&changes);
                    if let Some(recorder) = &mut self.recorder {
                        recorder.prepare(transaction, &participants, &changes);
                    }
                    self.prepared.insert(transaction, Prepared { participants, effects: changes, imports });
                } else {
                    self.bury(imports);
                }
                answer(&[u8::from(is_accepted)]);
                What::Prepared { transaction, is_accepted }
            }
            Item::Resolve { transaction, commit, low_water } => {
                let moved = self.resolve(transaction, commit, low_water);
                What::Resolved { transaction, moved }
            }
            Item::Enlist { node, member } => {
                let before = self.roster.get(node).cloned();
                let is_news = self.roster.enlist(node, member);
                What::Enlisted { node, before, is_news }
            }
            Item::Prefer { group, node } => What::Wished(self.roster.prefer(group, node)),
            Item::Want { slots, group } => What::Wished(self.roster.want(slots, group)),
            Item::Place { group, nodes } => What::Wished(self.roster.place(group, nodes)),
            Item::Balance(is_on) => What::Wished(self.roster.balance(is_on)),
            Item::Found { group, voters } => What::Wished(self.roster.found(group, voters)),
            Item::Divide { group, parent, slots } => {
                let first_count = self.slots.first_count();
                What::Wished(self.roster.split(group, parent, &slots, first_count))
            }
            Item::Split { group, slots } => {
                let split = self.split_off(group, &slots).map(Box::new);
                What::Split { group, split }
            }
            Item::Merge { group, into } => {
                let first_count = self.slots.first_count();
                What::Wished(self.roster.merge(group, into, first_count))
            }
            Item::Retire { group, gone } => What::Wished(self.roster.retire(group, gone)),
            Item::End => {
                if self.end_obstacle().is_none() && self.ended == 0 {
                    self.ended = self.applied.index;
                }
                What::Ended
            }
            Item::Born(_) => panic!("a group that has split off is replayed without what it began with"),
            Item::Rise(level) => {
                let is_news = level > self.level;
                self.level = self.level.max(level);
                self.keyspace.set_level(self.level);
                What::Risen { level: self.level, is_news }
            }
            Item::Moved(slot) => {
                answer(&answer::put_moved(&self.slots.known(slot)));
                What::Moved
            }
            Item::Refuse { transaction } => {
                // It may have been prepared between the question and this entry.
                if !self.prepared.contains_key(&transaction) && self.outcome(transaction).is_none() {
                    self.outcomes.note(transaction, false, None);
                }
                What::Nothing
            }
            Item::Forget(transactions) => {
                transactions.into_iter().for_each(|transaction| self.outcomes.forget(transaction));
                What::Nothing
            }
        }
    }

    fn run_script(&mut self, commands: ExecItem<'_>, moment: Moment) {
        let mut spans = Vec::new();
        let lookups = self.keyspace.lookups();
        commands.for_each(&mut spans, |database, args| {
            let command = logged(args, self.level);
            let Self { keyspace, recorder, scratch, .. } = self;
            recorder::run(keyspace, recorder, (database, moment), command, args, scratch);
            scratch.truncate(0);
        });
        self.keyspace.set_lookups(lookups); // counted when the script ran
    }

    /// Ends a transaction. Which slots have moved with it.
    pub(crate) fn resolve(&mut self, transaction: TransactionId, is_committed: bool, low_water: u64) -> Vec<Moved> {
        let mut moved = Vec::new();
        if let Some(Prepared { effects, imports, participants }) = self.prepared.remove(&transaction) {
            if is_committed {
                if let Some(recorder) = &mut self.recorder {
                    recorder.join(transaction, &participants);
                }
                moved = self.install(&effects, imports);
            } else {
                if let Some(recorder) = &mut self.recorder {
                    recorder.abandon(transaction, &participants);
                }
                self.bury(imports);
            }
            // A checkpoint of level 1 has no place for them.
            let participants = (self.level > Level::FIRST).then_some(participants);
            self.outcomes.note(transaction, is_committed, participants);
        }
        self.outcomes.settle(transaction.gateway, low_water);
        moved
    }

    /// Makes these changes. Of large values, those that have been read in need not be read again. Which slots have
    /// moved.
    fn install(&mut self, effects: &[Effect], mut imports: Imports) -> Vec<Moved> {
        let moment = self.moment;
        let mut moved = Vec::new();
        for effect in effects {
            match effect {
                Effect::Key { database, key, exported } => {
                    let has_imports = !imports.is_empty();
                    let imported = has_imports.then(|| imports.remove(&(*database, key.clone()))).flatten();
                    match imported {
                        Some(imported) => self.keyspace.put_imported(*database, key, Some(imported), moment),
                        None => self
                            .keyspace
                            .import(*database, key, exported.as_deref(), moment)
                            .expect("a gateway exported it, and checksums hold"),
                    }
                    if let Some(recorder) = &mut self.recorder {
                        recorder.put(&self.keyspace, *database, key, moment);
                    }
                }
                Effect::Flush { database } => {
                    self.keyspace.edit(*database, moment).flush(*database);
                    if let Some(recorder) = &mut self.recorder {
                        recorder.flush(*database);
                    }
                }
                Effect::Swap { first, second } => {
                    self.keyspace.edit(*first, moment).swap(*first, *second);
                    if let Some(recorder) = &mut self.recorder {
                        recorder.swap(*first, *second);
                    }
                }
                Effect::Give(given) => {
                    self.note_move();
                    self.keyspace.drop_slot(given.slot);
                    self.request_ids.drop_slot(given.slot);
                    self.slots.learn(*given);
                    self.keyspace.set_elsewhere(given.slot, self.slots.group_of_slot(given.slot) != self.group);
                    moved.push(*given);
                }
                Effect::Take(taken) => {
                    self.note_move();
                    moved.push(self.take_slot(taken));
                }
                Effect::Answer(answered) => {
                    let until = UnixMillis(moment.unix.0.saturating_add_unsigned(answered.ms));
                    self.request_ids.note((**answered).clone(), until);
                }
            }
        }
        moved
    }

    fn note_move(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.note_move();
        }
    }

    fn take_slot(&mut self, taken: &Taken) -> Moved {
        let Taken { slot, epoch, sequence, gone, unix, records, answered } = taken;
        self.moment.unix = self.moment.unix.max(*unix);
        self.keyspace.advance_to(self.moment);
        self.keyspace.import_slot(*slot, *sequence, *gone, records).expect("a group exported it, and checksums hold");
        self.request_ids.import_slot(answered);
        let moved = Moved { slot: *slot, group: self.group, epoch: *epoch };
        self.slots.learn(moved);
        self.keyspace.set_elsewhere(*slot, self.slots.group_of_slot(*slot) != self.group);
        moved
    }

    /// Values that have been read in are not wanted.
    fn bury(&mut self, imports: Imports) {
        imports.into_values().for_each(|imported| self.keyspace.free_imported_later(imported));
    }

    /// Notes for caches what a transaction over several groups changes here.
    fn note_effects(&mut self, effects: &[Effect]) {
        if !self.keyspace.listens_to().has(Class::Changed) {
            return;
        }
        let mut is_flushed = false;
        for effect in effects {
            match effect {
                Effect::Key { database, key, .. } => {
                    observe::note_changed(&mut self.keyspace, "", *database, key);
                }
                Effect::Flush { .. } | Effect::Swap { .. } => is_flushed = true,
                // For clients the keys are what they were.
                Effect::Give(_) | Effect::Take(_) | Effect::Answer(_) => {}
            }
        }
        if is_flushed {
            observe::note_changed(&mut self.keyspace, observe::FLUSHED, 0, b"");
        }
    }
}

/// A command of the log, as it is at this level.
#[inline]
fn logged(args: Args<'_>, level: Level) -> &'static DataCommand {
    let command = known(args);
    if level == Level::FIRST { keyspace::as_of_level_1(command) } else { command }
}

/// A command that has been found to be known.
pub(crate) fn known(args: Args<'_>) -> &'static DataCommand {
    keyspace::resolve(args).expect("a gateway knew it")
}

/// Executes the commands of a MULTI with `run`, or none of them if a watched key has changed.
pub(crate) fn execute(
    keyspace: &mut Keyspace,
    exec: ExecItem<'_>,
    resolve: impl Fn(Args<'_>) -> &'static DataCommand,
    moment: Moment,
    mut run: impl FnMut(&mut Keyspace, u16, &DataCommand, Args<'_>, Moment, &mut Writer),
    meter: &mut impl Meter,
    writer: &mut Writer,
) {
    // What has become of a key that was absent not every replica knows, so a transaction that watches one takes locks
    // and is not logged in this form.
    let changed = exec.watches.iter().any(|watch| {
        let wanted = if keyspace::absent_since(watch.version).is_some() { 0 } else { watch.version };
        keyspace.watched_version(watch.database, &watch.key, moment) != wanted
    });
    if changed {
        writer.null_array();
        return;
    }
    writer.array(exec.command_count());
    let mut spans = Vec::new();
    exec.for_each(&mut spans, |database, args| {
        let command = resolve(args);
        let watch = meter.start(command, args);
        run(keyspace, database, command, args, moment, writer);
        meter.stop(watch, args);
    });
}

/// Looks up what the next items of an entry name, and says for how many items that lasts: at least one.
fn prefetch<'a>(keyspace: &Keyspace, ahead: &mut Reader<'a>) -> usize {
    let mut words = [PrefetchTarget::default(); PREFETCH_MAX];
    let mut key_count = 0;
    let mut note = |ahead| {
        if let Some(place) = words.get_mut(key_count) {
            *place = ahead;
            key_count += 1;
        }
    };
    let mut item_count = 0;
    while item_count < PREFETCH_MAX && ahead.skim(&mut note) {
        item_count += 1;
    }
    // For a single key there is nothing to be done side by side.
    if key_count > 1 {
        keyspace.prefetch(&words[..key_count]);
    }
    if item_count == 0 { usize::MAX } else { item_count }
}

/// True for what a request that may wait is answered when there is nothing for it.
pub fn is_null(reply: &[u8]) -> bool {
    matches!(reply, b"*-1\r\n" | b"$-1\r\n" | b"_\r\n")
}
