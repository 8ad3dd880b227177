//! The keyspace as a whole: databases, the sequence of changes, and the work that is done in slices.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use resp::{Args, Digits, Writer};
use stdx::{Level, Levels, Prng, UnixMillis, slot};

use crate::access::AccessClock;
use crate::collection::Limits;
use crate::collection::hash::expiring::NEVER;
use crate::commands::Body;
use crate::context::{Edit, Entry, View};
use crate::eviction::Pool;
use crate::lazy_free::LazyFree;
use crate::notice::{Class, Classes, DatabaseKey, Notice, Notices};
use crate::record::{Record, VERSION_END};
use crate::segment::KeyHasher;
use crate::table::{Gone, Place, Table};
use crate::tombstones::{Tombstones, absent_since};
use crate::value::{ItoaBuffer, ValueRef};
use crate::{DataCommand, Moment, Policy, collection};

/// Digests of different keyspaces must be comparable.
const DIGEST_SEED: u64 = 0x686F_6C64_6661_7374;

/// Tells what a watch remembers of a hash with a field that will expire from a version, which is far below.
const EXPIRING_FIELDS: u64 = 1 << 62;
/// What tells apart what watches remember.
const WATCH_MARKS: u64 = EXPIRING_FIELDS | 1 << 63;

/// What a keyspace is made with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of databases; at least one.
    pub databases: u16,
    /// Decides the order in which SCAN walks. Fixed for the life of a data directory, and best unknown to clients.
    pub hash_seed: u64,
    /// How keys are laid out.
    pub layout: Layout,
    /// What may change while it runs.
    pub tuning: Tuning,
}

/// How keys are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// By hash slot: the keyspace of a group.
    Slots,
    /// All together: cheap to make, for the operands of one transaction.
    Scratch,
}

/// What may change while a keyspace runs; none of it may change what is replicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// What goes first when memory is full, and so how uses are noted.
    pub policy: Policy,
    /// The higher, the more uses it takes to raise an LFU counter (`lfu-log-factor`).
    pub lfu_log_factor: u32,
    /// Minutes for an LFU counter to lose one (`lfu-decay-time`); 0: never.
    pub lfu_decay_minutes: u32,
    /// Keys looked at to find one to evict (`maxmemory-samples`).
    pub samples: u32,
}

impl Default for Tuning {
    /// Redis's defaults.
    fn default() -> Self {
        Self { policy: Policy::NoEviction, lfu_log_factor: 10, lfu_decay_minutes: 1, samples: 5 }
    }
}

/// The data of one group of slots.
pub struct Keyspace {
    pub(crate) databases: Vec<Table>,
    /// Databases that have been flushed and are freed in slices.
    pub(crate) graveyard: VecDeque<Table>,
    pub(crate) lazy_free: LazyFree,
    pub(crate) clock: AccessClock,
    pub(crate) hasher: KeyHasher,
    /// Number of changes so far.
    pub(crate) sequence: u64,
    /// Keys stored, altered or removed since it was made.
    pub(crate) altered: u64,
    /// The latest moment of a change, in milliseconds since the epoch. Moments of changes never go back: a key that
    /// has expired stays so.
    pub(crate) latest: i64,
    /// Room for a string being changed.
    pub(crate) scratch: Vec<u8>,
    pub(crate) pool: RefCell<Pool>,
    pub(crate) restoring: Option<crate::checkpoint::Restoring>,
    pub(crate) tuning: Tuning,
    pub(crate) layout: Layout,
    pub(crate) notices: Notices,
    pub(crate) limits: Limits,
    /// What replies go by. A checkpoint has none of it: the group knows.
    level: Level,
    /// How often chance was asked since the latest change.
    draws: Cell<u64>,
    /// What was removed because it had expired.
    expired: Expired,
    /// What commands that read have looked up.
    lookups: Cell<Lookups>,
    /// Reading is no use of a key for now.
    pub(crate) is_silent: Cell<bool>,
    /// Slots that other groups hold, one bit each, the lowest first; empty if there are none. Derived from what the
    /// group knows; a checkpoint has none of it.
    pub(crate) elsewhere: Vec<u64>,
}

/// Keys that commands have looked up in order to read them: what Redis calls hits and misses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lookups {
    /// They were there.
    pub found: u64,
    /// They were not.
    pub missed: u64,
}

/// What there is of a key, see [`Keyspace::standing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing.
    Absent,
    /// Its time has come. For commands it does not exist; it has not been removed yet.
    Expired,
    /// It exists, with this version.
    Alive(u64),
    /// The same, and fields of it have expired that have not been removed yet.
    Stale(u64),
}

impl Standing {
    /// As [`Keyspace::version`].
    pub fn version(self) -> u64 {
        match self {
            Self::Absent | Self::Expired => 0,
            Self::Alive(version) | Self::Stale(version) => version,
        }
    }
}

impl Lookups {
    /// Adds others.
    pub fn add(&mut self, other: Self) {
        self.found += other.found;
        self.missed += other.missed;
    }
}

/// What a keyspace has counted of removals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removals {
    /// Keys removed because they had expired.
    pub expired: u64,
    /// Fields of hashes removed because they had expired.
    pub expired_fields: u64,
    /// Values, and keys of flushed databases, that have been freed piece by piece.
    pub freed_later: u64,
    /// The same that are still to be freed.
    pub to_be_freed: u64,
}

/// What was removed because it had expired.
#[derive(Clone, Copy, Debug, Default)]
struct Expired {
    keys: u64,
    fields: u64,
}

impl Expired {
    fn count(&mut self, gone: Gone) {
        match gone {
            Gone::Key => self.keys += 1,
            Gone::LastFields(count) | Gone::Fields(count) => self.fields += count as u64,
        }
    }
}

impl Keyspace {
    /// An empty keyspace.
    ///
    /// # Panics
    /// If there is no database.
    pub fn new(options: Options) -> Self {
        let Options { databases, hash_seed, layout, tuning } = options;
        assert!(databases > 0, "a keyspace without a database");
        Self {
            databases: std::iter::repeat_with(|| Table::new(slot_count(layout))).take(databases.into()).collect(),
            graveyard: VecDeque::new(),
            lazy_free: LazyFree::new(match layout {
                Layout::Slots => Tombstones::new(),
                // It holds what one transaction or script works on.
                Layout::Scratch => Tombstones::none(),
            }),
            clock: AccessClock::new(&tuning, hash_seed),
            hasher: KeyHasher::new(hash_seed),
            sequence: 0,
            latest: i64::MIN,
            altered: 0,
            scratch: Vec::new(),
            pool: RefCell::default(),
            restoring: None,
            tuning,
            layout,
            notices: Notices::default(),
            limits: Limits::default(),
            level: Levels::KNOWN.highest,
            draws: Cell::new(0),
            expired: Expired::default(),
            lookups: Cell::default(),
            is_silent: Cell::default(),
            elsewhere: Vec::new(),
        }
    }

    /// An empty keyspace made as this one was.
    pub fn new_like(&self) -> Self {
        let options =
            Options { databases: self.database_count(), hash_seed: 0, layout: self.layout, tuning: self.tuning };
        let mut new = Self::new(options);
        new.hasher = self.hasher.clone();
        new.notices.wanted = self.notices.wanted;
        new.limits = self.limits;
        new.level = self.level;
        new.elsewhere.clone_from(&self.elsewhere);
        new.lookups = self.lookups.clone();
        new.notices.awaited.clone_from(&self.notices.awaited);
        new
    }

    /// Runs a command that may change data, when its log entry is applied. Writes exactly one reply.
    ///
    /// The sequence number goes up by one, whether anything changes or not, and becomes the version of every key that
    /// does.
    #[inline]
    pub fn mutate(
        &mut self,
        database: u16,
        command: &DataCommand,
        args: Args<'_>,
        moment: Moment,
        writer: &mut Writer,
    ) {
        let moment = self.advance(moment);
        writer.set_digits(self.digits());
        let result = match command.body {
            Body::Mutate(run) => run(&mut Edit::new(self, database, moment), args, writer),
            Body::Query(run) => run(&View::new(self, database, moment).counting(), args, writer),
            Body::Container => unreachable!("a container is resolved to its subcommand before it is logged"),
        };
        if let Err(refusal) = result {
            writer.error(refusal.text());
        }
    }

    /// Runs a command that only reads. Writes exactly one reply.
    ///
    /// # Panics
    /// If the command may change data.
    #[inline]
    pub fn query(&self, database: u16, command: &DataCommand, args: Args<'_>, moment: Moment, writer: &mut Writer) {
        let Body::Query(run) = command.body else { panic!("{} is not a query", command.name) };
        writer.set_digits(self.digits());
        // TOUCH is there to use keys.
        let is_silent = self.is_silent.get();
        if is_silent && command.name == "touch" {
            self.is_silent.set(false);
        }
        let outcome = run(&self.view(database, moment).counting(), args, writer);
        self.is_silent.set(is_silent);
        if let Err(refusal) = outcome {
            writer.error(refusal.text());
        }
    }

    /// One database at a moment, for reading. A moment before that of the latest change counts as the latter.
    #[inline]
    pub fn view(&self, database: u16, moment: Moment) -> View<'_> {
        View::new(self, database, self.clamp(moment))
    }

    /// One database at a moment, for changes outside a command; counts as one change.
    pub fn edit(&mut self, database: u16, moment: Moment) -> Edit<'_> {
        let moment = self.advance(moment);
        Edit::new(self, database, moment)
    }

    /// Makes a key of another keyspace what it is here; a large value is shared.
    pub fn copy_key(&self, database: u16, key: &[u8], moment: Moment, to: &mut Self) {
        let view = self.view(database, moment);
        let mut edit = to.edit(database, view.moment());
        match view.entry(key) {
            Some(entry) => edit.copy(key, entry),
            None => {
                edit.remove(key);
            }
        }
    }

    #[inline]
    fn advance(&mut self, moment: Moment) -> Moment {
        let moment = self.clamp(moment);
        self.latest = moment.unix.0;
        self.sequence += 1;
        self.draws.set(0);
        assert!(self.sequence < VERSION_END, "the sequence of changes is used up");
        moment
    }

    /// Up to which deadline keys and fields do not exist at a time, both in milliseconds since the epoch: up to the
    /// time itself, unless nothing expires (see [`Limits::keeps_expired`]).
    #[inline]
    pub(crate) fn expired_until(&self, now: i64) -> i64 {
        if self.limits.keeps_expired { i64::MIN } else { now }
    }

    #[inline]
    fn clamp(&self, moment: Moment) -> Moment {
        Moment { unix: UnixMillis(moment.unix.0.max(self.latest)), seed: moment.seed }
    }

    /// Keys stored, altered or removed since this keyspace was made, as Redis counts unsaved changes: a command that
    /// finds everything as it wants it counts for nothing.
    pub fn altered_count(&self) -> u64 {
        self.altered
    }

    /// Removals since it was made, or since [`Keyspace::forget_removals`].
    pub fn removals(&self) -> Removals {
        let flushed: usize = self.graveyard.iter().map(|table| table.count).sum();
        Removals {
            expired: self.expired.keys,
            expired_fields: self.expired.fields,
            freed_later: self.lazy_free.freed_count,
            to_be_freed: (self.lazy_free.debris_count() + flushed) as u64,
        }
    }

    /// Lookups by commands that read, since it was made or since they were last set.
    pub fn lookups(&self) -> Lookups {
        self.lookups.get()
    }

    /// Makes it count lookups from here on.
    pub fn set_lookups(&self, lookups: Lookups) {
        self.lookups.set(lookups);
    }

    /// Says whether keys that commands look up from here on are not used by that (CLIENT NO-TOUCH), but for TOUCH.
    #[inline]
    pub fn set_silent(&self, is_silent: bool) {
        self.is_silent.set(is_silent);
    }

    #[inline]
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent.get()
    }

    #[inline]
    pub(crate) fn note_lookup(&self, is_found: bool) {
        let Lookups { found, missed } = self.lookups.get();
        self.lookups.set(Lookups { found: found + u64::from(is_found), missed: missed + u64::from(!is_found) });
    }

    /// Reports what had expired when a command met it.
    pub(crate) fn note_gone(&mut self, database: u16, key: &[u8], gone: Gone) {
        if let Gone::LastFields(_) | Gone::Fields(_) = gone {
            self.expired.count(gone);
        }
        self.notices.note_gone(database, key, gone);
    }

    /// Counts removals from zero again.
    pub fn forget_removals(&mut self) {
        self.expired = Expired::default();
        self.lazy_free.freed_count = 0;
    }

    /// The sequence number of a key's last change: what WATCH remembers. 0 if the key does not exist at `moment`.
    pub fn version(&self, database: u16, key: &[u8], moment: Moment) -> u64 {
        self.view(database, moment).peek(key).map_or(0, |entry| entry.version())
    }

    /// The state of a key before a command runs, for readers that do not expire keys by our moments.
    pub fn standing(&self, database: u16, key: &[u8], moment: Moment) -> Standing {
        let Some(record) = self.databases[usize::from(database)].find(self.place(key), key) else {
            return Standing::Absent;
        };
        let now = self.expired_until(self.clamp(moment).unix.0);
        let first_deadline = || record.expiring_hash().map_or(NEVER, |hash| hash.at(i64::MIN).next_deadline());
        match record.version() {
            _ if !record.is_alive(now) => Standing::Expired,
            version if first_deadline() <= now => Standing::Stale(version),
            version => Standing::Alive(version),
        }
    }

    /// What a WATCH remembers of a key that exists: its version and, if a field of it will expire, when the next one
    /// does, mixed; 0 if it does not exist at `moment`. Different if the key has changed, or a field has expired.
    pub fn watched_version(&self, database: u16, key: &[u8], moment: Moment) -> u64 {
        let Some(entry) = self.view(database, moment).peek(key) else { return 0 };
        match entry.value() {
            ValueRef::Hash(hash) if hash.next_deadline() != NEVER => {
                let seed = Prng::new(entry.version()).draw() ^ hash.next_deadline() as u64;
                Prng::new(seed).draw() & !WATCH_MARKS | EXPIRING_FIELDS
            }
            _ => entry.version(),
        }
    }

    /// What a WATCH remembers: the key's [version](Keyspace::watched_version), or that it was absent at this point of
    /// the sequence.
    pub fn watch(&self, database: u16, key: &[u8], moment: Moment) -> u64 {
        match self.watched_version(database, key, moment) {
            0 => Tombstones::watch(self.sequence),
            version => version,
        }
    }

    /// True if a key is as [`Keyspace::watch`] saw it, here or in another replica, and was so all the time.
    pub fn is_as_watched(&self, database: u16, key: &[u8], watched: u64, moment: Moment) -> bool {
        let version = self.watched_version(database, key, moment);
        let Some(sequence) = absent_since(watched) else { return version == watched };
        let place = self.place(key);
        // It may have gone and not been freed: expired, or flushed.
        let is_left = |table: &Table| table.find(place, key).is_some_and(|record| record.version() > sequence);
        version == 0
            && !self.lazy_free.tombstones.may_have_come(place, sequence)
            && !is_left(&self.databases[usize::from(database)])
            && !self.graveyard.iter().any(is_left)
    }

    /// Number of changes so far.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Number of databases.
    pub fn database_count(&self) -> u16 {
        self.databases.len() as u16
    }

    /// Number of keys, those that have expired and not been removed yet included, as in Redis.
    pub fn key_count(&self, database: u16) -> usize {
        self.databases[usize::from(database)].count
    }

    /// Number of keys with a deadline.
    pub fn expiring_count(&self, database: u16) -> usize {
        self.databases[usize::from(database)].expiring
    }

    /// Number of hashes of which a field has a deadline.
    pub fn expiring_hash_count(&self, database: u16) -> usize {
        self.databases[usize::from(database)].expiring_hashes
    }

    /// Mean time to live of the keys with a deadline, in milliseconds; 0 if there are none.
    pub fn average_ttl(&self, database: u16, moment: Moment) -> i64 {
        let mean = self.databases[usize::from(database)].mean_deadline();
        mean.map_or(0, |deadline| deadline.saturating_sub(moment.unix.0).max(0))
    }

    /// Bytes allocated for keys, values, tables and what a running checkpoint holds on to.
    pub fn memory_bytes(&self) -> usize {
        let tables = self.databases.iter().chain(&self.graveyard);
        tables.map(|table| table.bytes).sum::<usize>() + self.lazy_free.bytes()
    }

    /// Changes how uses are noted and victims chosen.
    pub fn set_tuning(&mut self, tuning: Tuning) {
        if tuning != self.tuning {
            self.tuning = tuning;
            self.clock = AccessClock::new(&tuning, self.sequence);
            self.pool.take();
        }
    }

    /// What is in force.
    pub fn tuning(&self) -> Tuning {
        self.tuning
    }

    /// Which changes to keys to note; at first none are.
    pub fn listen(&mut self, classes: Classes) {
        self.notices.wanted = classes;
    }

    /// What is being noted.
    #[inline]
    pub fn listens_to(&self) -> Classes {
        self.notices.wanted
    }

    /// Somebody waits for something to happen to this key.
    pub fn await_key(&mut self, database: u16, key: &[u8]) {
        self.notices.awaited.insert((database, key.to_vec()));
    }

    /// Nobody waits for it any more.
    pub fn forget_key(&mut self, database: u16, key: &[u8]) {
        self.notices.awaited.remove(&(database, key.to_vec()));
    }

    /// True if something has happened to a key that somebody waits for.
    #[inline]
    pub fn is_awaited_touched(&self) -> bool {
        !self.notices.touched.is_empty()
    }

    /// Awaited keys that something has happened to since the last call, in order, each once.
    pub fn take_touched(&mut self) -> Vec<DatabaseKey> {
        std::mem::take(&mut self.notices.touched)
    }

    /// Number of notices not yet taken.
    #[inline]
    pub fn notice_count(&self) -> usize {
        self.notices.found.len()
    }

    /// Adds what was found out from outside, before what has been noted from `place` on.
    pub fn insert_notice(&mut self, place: usize, notice: Notice) {
        self.notices.found.insert(place, notice);
    }

    /// What has happened since the last call, in order.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices.found)
    }

    /// Of what has happened since the last call, what went because its time had come.
    pub fn take_gone(&mut self) -> Vec<Notice> {
        self.notices.found.extract_if(.., |notice| notice.class == Class::Gone).collect()
    }

    /// Notes the moment of an applied entry. To be called for every entry, also for one without commands, before its
    /// commands: no later command then sees an earlier moment, on any replica, whatever a new leader's clock says.
    pub fn advance_to(&mut self, moment: Moment) {
        self.latest = self.latest.max(moment.unix.0);
    }

    /// The latest moment so far; part of a checkpoint. `i64::MIN` before the first.
    pub fn latest(&self) -> UnixMillis {
        UnixMillis(self.latest)
    }

    /// Does up to `budget` units of physical work: removes keys with a deadline not after `moment`, frees what has been
    /// flushed, and large values that are gone. A unit is about one key. True if there is more to do at once.
    ///
    /// `moment` must be that of an applied entry: then nobody can ask for a key that this removes.
    pub fn collect(&mut self, moment: Moment, budget: usize) -> bool {
        self.advance_to(moment);
        let now = self.latest;
        let mut rest = budget.max(1);
        let mut more = false;
        let (notices, removals) = (&mut self.notices, &mut self.expired);
        let expiring = if self.limits.keeps_expired { &mut [] } else { &mut self.databases[..] };
        for (database, table) in (0..).zip(expiring) {
            let mut expired = |key: &[u8], gone| {
                removals.count(gone);
                notices.note_gone(database, key, gone);
            };
            more |= table.sweep(now, &mut rest, &self.hasher, &mut self.lazy_free, &mut expired);
        }
        more |= self.collect_graveyard(&mut rest);
        while rest > 0 {
            // A piece of a large value costs about as much as some hundred keys.
            rest = rest.saturating_sub(256);
            if !self.lazy_free.free_step() {
                return more;
            }
        }
        true
    }

    fn collect_graveyard(&mut self, rest: &mut usize) -> bool {
        let walk = self.lazy_free.walk.take();
        while *rest > 0
            && let Some(table) = self.graveyard.front_mut()
        {
            // What a running checkpoint has not written yet must stay.
            if walk.as_ref().is_some_and(|walk| walk.needs_table(table.rank)) {
                self.graveyard.rotate_left(1);
                if walk.as_ref().is_some_and(|walk| self.graveyard.iter().all(|table| walk.needs_table(table.rank))) {
                    break;
                }
                continue;
            }
            match table.demolish(&self.hasher, &mut self.lazy_free) {
                Some(freed) => {
                    self.lazy_free.freed_count += freed as u64;
                    *rest = rest.saturating_sub(freed.max(1));
                }
                None => {
                    self.graveyard.pop_front();
                }
            }
        }
        let more = self.graveyard.iter().any(|table| walk.as_ref().is_none_or(|walk| !walk.needs_table(table.rank)));
        self.lazy_free.walk = walk;
        more
    }

    /// When [`Keyspace::collect`] may next find an expired key: not later than the moment at which it is due for
    /// removal, which may be a while after its deadline. `None` if no key has a deadline, or nothing expires.
    pub fn next_deadline(&self) -> Option<UnixMillis> {
        if self.limits.keeps_expired {
            return None;
        }
        let wake = self.databases.iter().map(|table| table.wake).min().expect("there is a database");
        (wake != i64::MAX).then_some(UnixMillis(wake))
    }

    /// Calls `visit` with every key of a database that exists at `moment`; the order means nothing.
    pub fn for_each<'a>(&'a self, database: u16, moment: Moment, mut visit: impl FnMut(Entry<'a>)) {
        let now = self.expired_until(self.clamp(moment).unix.0);
        for record in self.databases[usize::from(database)].iter().filter(|record| record.is_alive(now)) {
            visit(Entry::new(record, self, now));
        }
    }

    /// A digest of all keys that exist at the moment of the latest change, with their values and deadlines. Independent
    /// of how tables lie in memory: replicas that have applied the same changes agree on it.
    pub fn digest(&self) -> u64 {
        let hasher = KeyHasher::new(DIGEST_SEED);
        let expired_until = self.expired_until(self.latest);
        let mut digest = 0u64;
        let mut text = Vec::new();
        for (database, table) in (0u16..).zip(&self.databases) {
            for record in table.iter().filter(|record| record.is_alive(expired_until)) {
                text.clear();
                text.extend_from_slice(&database.to_le_bytes());
                text.extend_from_slice(&record.deadline().unwrap_or(i64::MIN).to_le_bytes());
                text.extend_from_slice(&(record.key().len() as u64).to_le_bytes());
                text.extend_from_slice(record.key());
                write_digested(&mut text, record, expired_until, &hasher);
                digest = digest.wrapping_add(hasher.hash(&text));
            }
        }
        digest
    }

    /// When collections change their form.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Sets when collections change their form. Replicated data: to be done when a log entry says so, or in a scratch
    /// keyspace.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// The level of the group that this is the data of; the highest that this version knows, unless it is told another.
    #[inline]
    pub fn level(&self) -> Level {
        self.level
    }

    /// Sets it: to be done when the group's log says so, or in a scratch keyspace.
    pub fn set_level(&mut self, level: Level) {
        self.level = level;
    }

    /// At level 1 replies were those of Redis 7.0, and the replies to some requests are replicated data, too.
    #[inline]
    fn digits(&self) -> Digits {
        if self.level == Level::FIRST { Digits::Seventeen } else { Digits::Shortest }
    }

    pub(crate) fn prng(&self, moment: Moment) -> Prng {
        // Many commands share a moment, and one may ask more than once.
        let draws = self.draws.get();
        self.draws.set(draws + 1);
        Prng::new(moment.seed ^ (self.sequence << 16).wrapping_add(draws)).fork()
    }

    /// Chance for a change that takes some of what a key has `len` of.
    ///
    /// What a script changes is changed twice: first on copies, which give the script its answers, and then by its
    /// entry. Both must take the same, in keyspaces that have seen different numbers of changes until then.
    pub(crate) fn prng_to_take(moment: Moment, key: &[u8], len: usize) -> Prng {
        let mut seed = moment.seed ^ (len as u64) << 32 ^ key.len() as u64;
        for part in key.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            seed = Prng::new(seed ^ u64::from_le_bytes(word)).draw();
        }
        Prng::new(seed).fork()
    }

    /// Removes all keys of all databases at once. Their tables stay as large as they are; large values are freed later,
    /// by [`Keyspace::collect`].
    ///
    /// # Panics
    /// If a checkpoint runs, or keys can be watched: neither is told.
    pub fn empty(&mut self) {
        assert!(!self.lazy_free.is_watched(), "keys go that somebody would miss");
        for table in self.databases.iter_mut().filter(|table| table.count > 0) {
            self.altered += table.count as u64;
            table.empty(&mut self.lazy_free);
        }
    }

    pub(crate) fn flush(&mut self, database: u16) {
        let fresh = Table::new(slot_count(self.layout));
        let flushed = std::mem::replace(&mut self.databases[usize::from(database)], fresh);
        if flushed.bytes > 0 {
            self.graveyard.push_back(flushed);
        }
    }

    #[inline]
    pub(crate) fn clock(&self) -> &AccessClock {
        &self.clock
    }

    #[inline]
    pub(crate) fn place(&self, key: &[u8]) -> Place {
        let slot = match self.layout {
            Layout::Slots => usize::from(slot::slot_of(key).0),
            Layout::Scratch => 0,
        };
        Place { slot, hash: self.hasher.hash(key) }
    }

    #[inline]
    pub(crate) fn find(&self, database: u16, key: &[u8]) -> Option<&Record> {
        self.databases[usize::from(database)].find(self.place(key), key)
    }
}

/// Appends what of a value goes into the digest: of a large collection, a digest of its parts.
fn write_digested(out: &mut Vec<u8>, record: &Record, now: i64, hasher: &KeyHasher) {
    const PART_BYTES: usize = 64 << 10;
    if let Some(hash) = record.expiring_hash() {
        // Replicas need not have removed the same of what has expired.
        let hash = hash.at(now);
        out.push(u8::from(hash.is_packed()));
        let (mut part, mut digest) = (Vec::new(), 0u64);
        for (field, value, deadline) in hash.iter_with_deadlines() {
            part.clear();
            part.extend_from_slice(&digest.to_le_bytes());
            part.extend_from_slice(&deadline.to_le_bytes());
            collection::packed::put(&mut part, field);
            part.extend_from_slice(value);
            digest = hasher.hash(&part);
        }
        out.extend_from_slice(&digest.to_le_bytes());
    } else if let Some(string) = record.string() {
        out.extend_from_slice(string.to_bytes(&mut ItoaBuffer::new()));
    } else if let Some(collection) = record.collection() {
        collection::write_large_head(out, collection);
        let mut part = Vec::new();
        let (mut rank, mut digest) = (0, 0u64);
        while rank < collection.len() {
            part.clear();
            part.extend_from_slice(&digest.to_le_bytes());
            rank = collection.write_part(rank, &mut part, PART_BYTES);
            digest = hasher.hash(&part);
        }
        out.extend_from_slice(&digest.to_le_bytes());
    } else {
        collection::write_exact(out, record);
    }
}

fn slot_count(layout: Layout) -> usize {
    match layout {
        Layout::Slots => slot::SLOT_COUNT,
        Layout::Scratch => 1,
    }
}

#[cfg(test)]
mod tests;
