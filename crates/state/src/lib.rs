//! What the log of a group does to the group's data.
//!
//! [`State`] holds everything that the replicas of a group agree on. [`State::apply`] is the only way in which it
//! changes while a log is followed: the same entries in the same order give the same state, on every replica, in a
//! checker, and in whatever else reads a log. The rest of a node asks it, and never changes it.
//!
//! ```text
//!   entry = moment + items        for each item
//!        │                          │
//!   State::open ── Cursor ──▶ State::apply_next ──▶ Applied: what the item was, and what it has done
//!                                   │
//!                                   └─▶ Effects: replies, measurements, values that were read in ahead of time
//! ```
//!
//! *Invariant:* it knows no leader, no session, no setting, no disk and no clock. What it tells through [`Effects`]
//! can be ignored: nothing that comes back decides what becomes of the data.

mod apply;
pub mod cut;
mod echoes;
mod effects;
pub mod observe;
mod outcomes;
mod part;
mod recorder;
pub mod recovery;
mod reply_cache;
mod request_ids;
mod split;

use std::collections::BTreeMap;
use std::sync::Arc;

use keyspace::{Class, Corrupt, DataCommand, Imported, Keyspace, Moment};
use message::entry::{Effect, ExecItem};
use message::libraries::Libraries;
use message::parameters::Parameters;
use message::roster::Roster;
use message::slots::SlotMap;
use message::{GroupId, TransactionId};
use resp::{Args, Span, Writer};
use stdx::slot::{SLOT_COUNT, Slot, slot_of};
use stdx::{Level, Levels, UnixMillis};

pub use apply::{Applied, CommandRun, Cursor, Effects, ExecRun, Ignored, Meter, What, is_null};
pub use recorder::{NO_LATER, Phase, Reader, Requests, Step, Tape};
pub use reply_cache::{Lookup, ReplyCache};
pub use request_ids::{Known, RequestIds};
pub use split::{Beginnings, FIRST, SplitOff};

use echoes::Echoes;
use outcomes::Outcomes;
use part::Part;
use recorder::Recorder;

/// Values of a transaction that have been read in before its entry is applied, by database and key.
pub type Imports = BTreeMap<(u16, Vec<u8>), Imported>;

/// Groups that have split off from this one, each with the index of the entry by which it has.
type Splits = BTreeMap<u32, u64>;

/// A place in a log: an entry's index and the term in which it was proposed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The first entry has index 1.
    pub index: u64,
    /// Raft's term.
    pub term: u64,
}

/// A transaction over several groups that this one has prepared, and that is not resolved yet.
#[derive(Debug)]
pub struct Prepared {
    participants: Vec<u32>,
    effects: Vec<Effect>,
    /// The large values among the effects, as far as they have been read in already. No part of what replicas agree on.
    imports: Imports,
}

impl Prepared {
    /// All groups that prepare it.
    pub fn participants(&self) -> &[u32] {
        &self.participants
    }

    /// The keys that it changes in this group.
    pub(crate) fn keys(&self) -> impl Iterator<Item = keyspace::DatabaseKey> + '_ {
        self.effects.iter().filter_map(|effect| match effect {
            Effect::Key { database, key, .. } => Some((*database, key.clone())),
            _ => None,
        })
    }

    /// What it changes in this group.
    pub fn effects(&self) -> &[Effect] {
        &self.effects
    }
}

/// Everything that the replicas of one group agree on.
///
/// What a checkpoint holds beside the keyspace, what a start or a checkpoint of the leader brings back, and what the
/// digest covers are derived from one list, in `parts!`.
pub struct State {
    group: GroupId,
    /// The last entry applied.
    applied: Position,
    keyspace: Keyspace,
    /// Of the last entry applied. Its wall clock never goes back.
    moment: Moment,
    prepared: BTreeMap<TransactionId, Prepared>,
    /// Of transactions with other participants that may still ask.
    outcomes: Outcomes,
    /// In group 0: who belongs to the cluster.
    roster: Roster,
    replies: ReplyCache,
    /// In group 0: libraries of functions.
    libraries: Arc<Libraries>,
    /// Which slots the group holds, and what it knows of those that it has given away.
    slots: SlotMap,
    /// In group 0: parameters of the cluster.
    parameters: Arc<Parameters>,
    /// Changes of libraries that other nodes may send again.
    echoes: Echoes,
    /// What requests with an id were answered.
    request_ids: RequestIds,
    /// Which formats and semantics are in force.
    level: Level,
    /// Groups that have split off.
    splits: Splits,
    /// Index of the entry with which the group ended, or 0.
    ended: u64,
    /// Where replies go that nobody wants.
    scratch: Writer,
    spans: Vec<Span>,
    /// See [`State::break_by_forgetting_answers`].
    forgets_answers: bool,
    /// Takes down what is done, if somebody wants to know.
    recorder: Option<Box<Recorder>>,
}

/// The parts of a [`State`] beside its keyspace, in the order in which a checkpoint holds them. Checkpoints of older
/// versions end earlier; what they lack is empty. The level comes first of those that level 1 does not know, so that it
/// is read before anything that depends on it.
macro_rules! parts {
    ($state:expr $(, $mutable:tt)?) => {
        [
            &$($mutable)? $state.moment as &$($mutable)? dyn Part,
            &$($mutable)? $state.prepared,
            &$($mutable)? $state.outcomes.known,
            &$($mutable)? $state.roster,
            &$($mutable)? $state.replies,
            &$($mutable)? $state.libraries,
            &$($mutable)? $state.slots,
            &$($mutable)? $state.parameters,
            &$($mutable)? $state.echoes,
            &$($mutable)? $state.request_ids,
            &$($mutable)? $state.level,
            &$($mutable)? $state.outcomes.participants,
            &$($mutable)? $state.splits,
            &$($mutable)? $state.ended,
        ]
    };
}

/// How many of the [`parts!`] a checkpoint has at level 1. Anyone who knows no other level takes no more.
const PARTS_OF_LEVEL_1: usize = 10;

impl State {
    /// The state of a group before its first entry, among so many groups. `keyspace` is empty, or what a checkpoint
    /// held: then [`State::load`] has to follow.
    pub fn new(group: GroupId, group_count: u32, keyspace: Keyspace) -> Self {
        let mut new = Self {
            group,
            applied: Position::default(),
            keyspace,
            moment: Moment::default(),
            prepared: BTreeMap::new(),
            outcomes: Outcomes::default(),
            roster: Roster::default(),
            replies: ReplyCache::default(),
            libraries: Arc::default(),
            slots: SlotMap::even(group_count),
            parameters: Arc::default(),
            echoes: Echoes::default(),
            request_ids: RequestIds::default(),
            level: Level::FIRST,
            splits: Splits::new(),
            ended: 0,
            scratch: Writer::default(),
            spans: Vec::new(),
            forgets_answers: false,
            recorder: None,
        };
        new.prepare_keyspace();
        new
    }

    /// Tells the keyspace what is derived: at which level it is, and which slots other groups hold.
    fn prepare_keyspace(&mut self) {
        self.keyspace.set_level(self.level);
        for slot in (0..SLOT_COUNT as u16).map(Slot) {
            self.keyspace.set_elsewhere(slot, self.slots.group_of_slot(slot) != self.group);
        }
    }

    // ---- saved and loaded -----------------------------------------------------------------------------------------

    /// All that a checkpoint holds beside the keyspace (`docs/formats/checkpoint.md`).
    pub fn save(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for part in self.saved_parts(&parts!(self)) {
            part.save(&mut out);
        }
        out
    }

    /// The parts that there are at this level.
    fn saved_parts<'p, 's>(&self, parts: &'p [&'s dyn Part]) -> &'p [&'s dyn Part] {
        if self.level == Level::FIRST { &parts[..PARTS_OF_LEVEL_1] } else { parts }
    }

    /// Takes over what [`State::save`] wrote, with the keyspace given before; what was applied last was at `position`.
    /// Nothing at all is what a group without a checkpoint has saved.
    ///
    /// # Panics
    /// If it is something else. Checksums hold, so it was written by another version, and going on would lose data.
    pub fn load(&mut self, saved: &[u8], position: Position) {
        for part in parts!(self, mut) {
            part.clear();
        }
        let mut reader = message::entry::Reader::new(saved);
        for part in parts!(self, mut) {
            if reader.is_done() {
                break;
            }
            part.load(&mut reader);
        }
        let (level, known) = (self.level, Levels::KNOWN);
        assert!(known.contains(level), "a checkpoint written at level {level}, and this version knows {known}");
        assert!(reader.is_done(), "the state of a group has parts that this version does not know");
        self.applied = position;
        self.prepare_keyspace();
    }

    /// Takes over a checkpoint in place of all there is. Answers the keyspace that was there: to drop it at once may
    /// take long.
    ///
    /// # Panics
    /// As [`State::load`].
    #[must_use]
    pub fn replace(&mut self, keyspace: Keyspace, saved: &[u8], position: Position) -> Keyspace {
        let old = std::mem::replace(&mut self.keyspace, keyspace);
        self.load(saved, position);
        let standing = self.standing();
        if let Some(recorder) = &mut self.recorder {
            recorder.skip(self.applied.index, standing);
        }
        old
    }

    /// Ends this state, and answers its keyspace.
    pub fn into_keyspace(self) -> Keyspace {
        self.keyspace
    }

    /// Gives everything up: what it was before the first entry. The memory of keys is given back in steps.
    pub fn vacate(&mut self) {
        self.keyspace.clear(Moment::default());
        self.load(&[], Position::default());
    }

    /// Writes out all keys as a checkpoint would, and reads them back (DEBUG RELOAD). `chunk_bytes` is how much is
    /// written out at a time.
    ///
    /// # Errors
    /// If what was written cannot be read.
    pub fn reload(&mut self, chunk_bytes: usize) -> Result<(), Corrupt> {
        let mut records = Vec::new();
        self.keyspace.begin_checkpoint();
        while !self.keyspace.checkpoint_step(chunk_bytes, &mut records) {}
        let mut keyspace = self.keyspace.new_like();
        keyspace.restore(&records)?;
        self.keyspace = keyspace;
        Ok(())
    }

    /// Digest of all that replicas must agree on. The moment is no part of it: a checkpoint keeps its wall clock alone.
    pub fn digest(&self) -> u64 {
        let mut bytes = Vec::new();
        for part in &self.saved_parts(&parts!(self))[1..] {
            part.save(&mut bytes);
        }
        bytes.iter().fold(self.keyspace.digest(), |digest, byte| {
            (digest ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3)
        })
    }

    /// What [`State::save`] writes, without the prepared transactions. Only the simulator has a use for it: a checker
    /// that does not catch this is asleep.
    #[doc(hidden)]
    pub fn save_without_prepared(&mut self) -> Vec<u8> {
        let prepared = std::mem::take(&mut self.prepared);
        let saved = self.save();
        self.prepared = prepared;
        saved
    }

    /// What [`State::save`] writes, without the answers to requests with an id: the same.
    #[doc(hidden)]
    pub fn save_without_request_ids(&mut self) -> Vec<u8> {
        let request_ids = std::mem::take(&mut self.request_ids);
        let saved = self.save();
        self.request_ids = request_ids;
        saved
    }

    /// Carries out commands again that have been carried out before. Only the simulator has a use for it.
    #[doc(hidden)]
    pub fn break_by_forgetting_answers(&mut self) {
        self.forgets_answers = true;
    }

    // ---- asked ----------------------------------------------------------------------------------------------------

    /// Which group.
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// The last entry applied.
    #[inline]
    pub fn applied(&self) -> Position {
        self.applied
    }

    /// Moment of the last entry applied.
    #[inline]
    pub fn moment(&self) -> Moment {
        self.moment
    }

    /// The data. Only entries change it.
    #[inline]
    pub fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }

    /// What a node does with the keyspace that changes none of the data.
    #[inline]
    pub fn upkeep(&mut self) -> Upkeep<'_> {
        Upkeep(&mut self.keyspace, &mut self.recorder, (self.applied.index, self.moment.unix))
    }

    /// From the next item on it is taken down what items do, for this kind of reader; or no longer for anybody.
    pub fn record(&mut self, reader: Option<Reader>) {
        let (group, from) = (self.group.0, self.applied.index);
        self.recorder = reader.map(|reader| Box::new(Recorder::new(reader, group, from, self.standing())));
    }

    /// Transactions over groups that are prepared here. At which entry is not known any more: anyone who begins here
    /// has passed it.
    fn standing(&self) -> Vec<Step> {
        let (index, moment) = (0, UnixMillis(i64::MIN));
        let over_groups = self.prepared.iter().filter(|(_, prepared)| prepared.participants.len() > 1);
        let step = |(transaction, prepared): (&TransactionId, &Prepared)| Step {
            index,
            moment,
            phase: Phase::Prepared,
            transaction: Some((*transaction, prepared.participants.clone())),
            keys: prepared.keys().collect(),
            ..Step::default()
        };
        over_groups.map(step).collect()
    }

    /// What items have done since the last call, if it is taken down and there is anything new.
    pub fn take_tape(&mut self) -> Option<Tape> {
        // Of a group that has ended nothing comes any more: nobody waits for later moments of it.
        let moment = if self.ended > 0 { NO_LATER } else { self.moment.unix };
        self.recorder.as_mut()?.take(self.applied.index, moment)
    }

    /// Which slots the group holds.
    #[inline]
    pub fn slots(&self) -> &SlotMap {
        &self.slots
    }

    /// Transactions that are prepared and not resolved.
    pub fn prepared(&self) -> &BTreeMap<TransactionId, Prepared> {
        &self.prepared
    }

    /// Whether a transaction was committed, if its end is known here.
    pub fn outcome(&self, transaction: TransactionId) -> Option<bool> {
        self.outcomes.look(transaction)
    }

    /// The transactions behind this one, or all, that have an end known here, with whether they were committed, and the
    /// groups that took part; none of those groups if they are not known.
    pub fn outcomes_behind(&self, last: Option<TransactionId>) -> impl Iterator<Item = (TransactionId, bool, &[u32])> {
        self.outcomes.behind(last)
    }

    /// How many transactions have an end that is known here.
    pub fn outcome_count(&self) -> usize {
        self.outcomes.count()
    }

    /// What has been answered to numbered requests.
    #[inline]
    pub fn replies(&self) -> &ReplyCache {
        &self.replies
    }

    /// What requests that clients have given an id were answered.
    pub fn request_ids(&self) -> &RequestIds {
        &self.request_ids
    }

    /// In group 0: who belongs to the cluster.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// In group 0: libraries of functions.
    pub fn libraries(&self) -> &Arc<Libraries> {
        &self.libraries
    }

    /// In group 0: parameters of the cluster.
    pub fn parameters(&self) -> &Arc<Parameters> {
        &self.parameters
    }

    /// Which formats and semantics are in force in the group. What an item does may depend on it: it changes with an
    /// entry, so at the same place on every replica.
    #[inline]
    pub fn level(&self) -> Level {
        self.level
    }

    /// The slot of a key, if another group holds it.
    #[inline]
    pub fn foreign(&self, key: &[u8]) -> Option<Slot> {
        if self.slots.is_even() {
            return None;
        }
        let slot = slot_of(key);
        (self.slots.group_of_slot(slot) != self.group).then_some(slot)
    }

    /// The slot of a key that a command names, if another group holds it. A command on all keys names them all: who
    /// sends it as one to a single group takes it that there is no other.
    pub fn foreign_of(&self, command: &DataCommand, args: Args<'_>) -> Option<Slot> {
        if matches!(command.span, command::Span::Whole(_)) {
            return self.slots.given_by(self.group);
        }
        let mut foreign = None;
        command.for_each_key(args, |index, _| foreign = foreign.or_else(|| self.foreign(args.at(index))));
        foreign
    }

    // ---- read -----------------------------------------------------------------------------------------------------

    /// Executes a command that only reads.
    ///
    /// # Panics
    /// If the command may change data.
    #[inline]
    pub fn read(&mut self, database: u16, command: &DataCommand, args: Args<'_>, moment: Moment, writer: &mut Writer) {
        observe::read(&mut self.keyspace, database, command, args, moment, writer);
    }

    /// Executes a transaction that only reads, if nothing that it watches has changed.
    ///
    /// # Panics
    /// If one of its commands may change data.
    pub fn read_exec(&mut self, exec: ExecItem<'_>, moment: Moment, meter: &mut impl Meter, writer: &mut Writer) {
        apply::execute(&mut self.keyspace, exec, apply::known, moment, observe::read, meter, writer);
    }
}

/// What a node does with a keyspace that changes none of the data: who is told of changes, how memory is tuned, what
/// has expired is removed for good, checkpoints are written.
pub struct Upkeep<'a>(&'a mut Keyspace, &'a mut Option<Box<Recorder>>, (u64, UnixMillis));

impl Upkeep<'_> {
    /// See [`Keyspace::set_tuning`].
    pub fn set_tuning(&mut self, tuning: keyspace::Tuning) {
        self.0.set_tuning(tuning);
    }

    /// See [`Keyspace::listen`].
    pub fn listen(&mut self, classes: keyspace::Classes) {
        self.0.listen(classes);
    }

    /// See [`Keyspace::await_key`].
    pub fn await_key(&mut self, database: u16, key: &[u8]) {
        self.0.await_key(database, key);
    }

    /// See [`Keyspace::forget_key`].
    pub fn forget_key(&mut self, database: u16, key: &[u8]) {
        self.0.forget_key(database, key);
    }

    /// See [`Keyspace::take_touched`].
    pub fn take_touched(&mut self) -> Vec<keyspace::DatabaseKey> {
        self.0.take_touched()
    }

    /// See [`Keyspace::take_notices`].
    pub fn take_notices(&mut self) -> Vec<keyspace::Notice> {
        self.0.take_notices()
    }

    /// See [`Keyspace::forget_removals`].
    pub fn forget_removals(&mut self) {
        self.0.forget_removals();
    }

    /// See [`Keyspace::collect`].
    pub fn collect(&mut self, moment: Moment, budget: usize) -> bool {
        let Self(keyspace, Some(recorder), place) = self else { return self.0.collect(moment, budget) };
        let wanted = keyspace.listens_to();
        keyspace.listen(wanted.with(Class::Gone));
        let more = keyspace.collect(moment, budget);
        keyspace.listen(wanted);
        for notice in keyspace.take_gone() {
            recorder.swept(keyspace, *place, (notice.database, &notice.key), moment);
        }
        more
    }

    /// See [`Keyspace::begin_checkpoint`].
    pub fn begin_checkpoint(&mut self) {
        self.0.begin_checkpoint();
    }

    /// See [`Keyspace::checkpoint_step`].
    pub fn checkpoint_step(&mut self, budget_bytes: usize, out: &mut Vec<u8>) -> bool {
        self.0.checkpoint_step(budget_bytes, out)
    }

    /// See [`Keyspace::cancel_checkpoint`].
    pub fn cancel_checkpoint(&mut self) {
        self.0.cancel_checkpoint();
    }

    /// See [`Keyspace::free_imported_later`].
    pub fn free_imported_later(&mut self, imported: Imported) {
        self.0.free_imported_later(imported);
    }
}

/// A state of no keys, to read or write what a checkpoint holds beside them.
fn without_keys() -> State {
    let (databases, hash_seed, tuning) = (1, 0, keyspace::Tuning::default());
    let options = keyspace::Options { databases, hash_seed, layout: keyspace::Layout::Scratch, tuning };
    State::new(GroupId(0), 1, Keyspace::new(options))
}

/// What a group of a new cluster saves that begins at this moment and knows nothing but libraries of functions, and
/// users.
pub fn save_of_new_group(unix: UnixMillis, libraries: Arc<Libraries>, users: Parameters) -> Vec<u8> {
    let mut state = without_keys();
    state.moment.unix = unix;
    state.libraries = libraries;
    state.parameters = Arc::new(users);
    state.save()
}

/// The users of the cluster among what a group has saved.
pub fn users_of(saved: &[u8]) -> Parameters {
    let mut state = without_keys();
    state.load(saved, Position::default());
    state.parameters.only_users()
}

/// The libraries of functions among what a group has saved.
pub fn libraries_of(saved: &[u8]) -> Arc<Libraries> {
    let mut state = without_keys();
    state.load(saved, Position::default());
    state.libraries
}

/// The wall clock of the moment that a group has saved; none if there is too little of it.
pub fn moment_of(saved: &[u8]) -> Option<UnixMillis> {
    saved.first_chunk().map(|bytes| UnixMillis(i64::from_le_bytes(*bytes)))
}
