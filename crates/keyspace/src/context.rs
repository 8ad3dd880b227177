//! What a command sees of the keyspace, and what it may do to it.
//!
//! Keys that have reached their deadline at the command's moment do not exist here, whether they have been physically
//! removed or not.

use command::Refusal;
use stdx::{Level, Prng, UnixMillis};

use crate::collection::{Cell, Collection, Kind};
use crate::keyspace::Keyspace;
use crate::notice::Class;
use crate::record::{INLINE_BYTES_MAX, Payload, Record};
use crate::table::{Deadline, Gone, Place, Stamp};
use crate::value::{CollectionValue, ItoaBuffer, Kept, Str, StringValue, Text, Value, ValueRef};
use crate::{Moment, lazy_free::LazyFree};

/// What a store does to a key's deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Leaves it as it is.
    Keep,
    /// Removes it.
    Clear,
    /// Sets it. One that is not in the future removes the key.
    At(UnixMillis),
}

/// How a key that comes from elsewhere was used there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Seconds since its last use.
    IdleSeconds(u64),
    /// Its logarithmic counter of uses.
    Frequency(u8),
}

/// What a query sees: one database at one moment.
#[derive(Clone, Copy)]
pub struct View<'a> {
    keyspace: &'a Keyspace,
    database: u16,
    moment: Moment,
    /// What is looked up is counted: a command reads it.
    counts: bool,
}

/// A key that exists, and its value.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    record: &'a Record,
    keyspace: &'a Keyspace,
    /// Milliseconds since the epoch.
    now: i64,
}

impl<'a> Entry<'a> {
    pub(crate) fn new(record: &'a Record, keyspace: &'a Keyspace, now: i64) -> Self {
        Self { record, keyspace, now }
    }

    /// The key.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        self.record.key()
    }

    /// The value.
    #[inline]
    pub fn value(&self) -> ValueRef<'a> {
        match self.record.value() {
            ValueRef::Hash(hash) => ValueRef::Hash(hash.at(self.now)),
            value => value,
        }
    }

    /// The type's name as TYPE prints it.
    pub fn type_name(&self) -> &'static str {
        self.value().type_name()
    }

    /// The representation's name as OBJECT ENCODING prints it: that of Redis 7.2, and at level 1 that of Redis 7.0,
    /// which had no listpacks of sets and lists.
    pub fn encoding(&self) -> &'static str {
        let limits = self.keyspace.limits();
        match self.record.value() {
            _ if self.keyspace.level() == Level::FIRST => self.record.encoding(),
            ValueRef::Set(set) => set.encoding_within(&limits),
            ValueRef::List(list) if list.fits_listpack(limits.list_listpack_size) => "listpack",
            _ => self.record.encoding(),
        }
    }

    /// When the key ceases to exist.
    pub fn expires_at(&self) -> Option<UnixMillis> {
        self.record.deadline().map(UnixMillis)
    }

    /// The sequence number of the key's last change.
    pub fn version(&self) -> u64 {
        self.record.version()
    }

    /// Seconds since the key's last use on this replica; 0 under an LFU policy.
    pub fn idle_seconds(&self, moment: Moment) -> u64 {
        self.keyspace.clock().idle_seconds(self.record.clock(), moment)
    }

    /// The logarithmic counter of uses on this replica; meaningful only under an LFU policy.
    pub fn frequency(&self, moment: Moment) -> u8 {
        self.keyspace.clock().frequency(self.record.clock(), moment)
    }

    /// Bytes that the key and its value take, their share of the table included.
    pub fn memory_bytes(&self) -> usize {
        // A pointer and a tag, at the tables' mean load.
        const TABLE_SHARE_BYTES: usize = 13;
        self.record.footprint() + TABLE_SHARE_BYTES
    }
}

impl<'a> View<'a> {
    pub(crate) fn new(keyspace: &'a Keyspace, database: u16, moment: Moment) -> Self {
        Self { keyspace, database, moment, counts: false }
    }

    /// The same for a command that reads: what it looks up counts as found or missed.
    #[inline]
    pub(crate) fn counting(self) -> Self {
        Self { counts: true, ..self }
    }

    /// The level of the group that this is the data of.
    pub(crate) fn level(&self) -> Level {
        self.keyspace.level()
    }

    /// The same for what is nobody's reading.
    pub(crate) fn aside(self) -> Self {
        Self { counts: false, ..self }
    }

    /// When the command runs.
    #[inline]
    pub fn moment(&self) -> Moment {
        self.moment
    }

    /// Keys and fields with a deadline up to this one, in milliseconds since the epoch, do not exist for the command.
    #[inline]
    pub fn expired_until(&self) -> i64 {
        self.keyspace.expired_until(self.moment.unix.0)
    }

    /// The database it runs on.
    pub fn database(&self) -> u16 {
        self.database
    }

    /// How many databases there are.
    pub fn database_count(&self) -> u16 {
        self.keyspace.database_count()
    }

    /// The whole keyspace.
    pub fn keyspace(&self) -> &'a Keyspace {
        self.keyspace
    }

    /// Another database at the same moment. It must be below [`View::database_count`].
    pub fn at(&self, database: u16) -> Self {
        Self { database, ..*self }
    }

    /// The key, if it exists. Counts as a use.
    #[inline]
    pub fn entry(&self, key: &[u8]) -> Option<Entry<'a>> {
        self.entry_at(self.keyspace.place(key), key)
    }

    #[inline]
    fn entry_at(&self, place: Place, key: &[u8]) -> Option<Entry<'a>> {
        let record = self.alive(place, key)?;
        let old = record.clock();
        let new = self.keyspace.clock().touched(old, self.moment);
        // Most reads find the second unchanged and need not make the cache line dirty.
        if new != old && !self.keyspace.is_silent() {
            record.set_clock(new);
        }
        Some(Entry::new(record, self.keyspace, self.expired_until()))
    }

    #[inline]
    fn alive(&self, place: Place, key: &[u8]) -> Option<&'a Record> {
        let found = self.keyspace.databases[usize::from(self.database)].find(place, key);
        let record = found.filter(|record| record.is_alive(self.expired_until()));
        if self.counts {
            self.keyspace.note_lookup(record.is_some());
        }
        record
    }

    /// The key, if it exists. Does not count as a use.
    #[inline]
    pub fn peek(&self, key: &[u8]) -> Option<Entry<'a>> {
        let record = self.alive(self.keyspace.place(key), key)?;
        Some(Entry::new(record, self.keyspace, self.expired_until()))
    }

    /// The string under a key, if the key exists. Counts as a use.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is no string.
    #[inline]
    pub fn string(&self, key: &[u8]) -> Result<Option<Str<'a>>, Refusal> {
        self.string_at(self.keyspace.place(key), key)
    }

    #[inline]
    fn string_at(&self, place: Place, key: &[u8]) -> Result<Option<Str<'a>>, Refusal> {
        match self.entry_at(place, key) {
            None => Ok(None),
            Some(entry) => entry.record.string().map(Some).ok_or(Refusal::WRONG_TYPE),
        }
    }

    /// Chance for a command that chooses and changes nothing: another stream for every call.
    pub(crate) fn prng(&self) -> Prng {
        self.keyspace.prng(self.moment)
    }

    /// See [`Edit::clone_value`].
    pub fn clone_value(&self, key: &[u8]) -> Option<(Value, Option<UnixMillis>)> {
        let entry = self.entry(key)?;
        Some((entry.record.to_value(), entry.expires_at()))
    }

    /// True if the key exists. Does not count as a use.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.peek(key).is_some()
    }

    /// See [`Keyspace::scan`].
    pub fn scan(&self, cursor: u64, count: usize, visit: impl FnMut(Entry<'a>)) -> u64 {
        self.keyspace.scan(self.database, cursor, count, self.moment, visit)
    }

    /// See [`Keyspace::scan_up_to`].
    pub(crate) fn scan_up_to(&self, end: usize, cursor: u64, count: usize, visit: impl FnMut(Entry<'a>)) -> u64 {
        self.keyspace.scan_up_to(self.database, end, cursor, count, self.moment, visit)
    }

    /// See [`Keyspace::for_each`].
    pub fn for_each(&self, visit: impl FnMut(Entry<'a>)) {
        self.keyspace.for_each(self.database, self.moment, visit);
    }

    /// A key that exists, chosen by the moment's seed; `None` if there is none.
    pub fn random_key(&self) -> Option<&'a [u8]> {
        self.keyspace.random_key(self.database, self.moment.seed, self.moment)
    }

    /// See [`Keyspace::key_count`].
    pub fn key_count(&self) -> usize {
        self.keyspace.key_count(self.database)
    }
}

/// What a mutation sees: everything a query sees, and the means to change it. Every key it changes gets the version
/// of the command.
pub struct Edit<'a> {
    keyspace: &'a mut Keyspace,
    database: u16,
    moment: Moment,
}

impl<'a> Edit<'a> {
    pub(crate) fn new(keyspace: &'a mut Keyspace, database: u16, moment: Moment) -> Self {
        Self { keyspace, database, moment }
    }

    /// The same, for reading.
    #[inline]
    pub fn view(&self) -> View<'_> {
        View::new(self.keyspace, self.database, self.moment)
    }

    /// The same, for what the command reads beside what it changes: that counts as found or missed.
    #[inline]
    pub(crate) fn reading(&self) -> View<'_> {
        self.view().counting()
    }

    /// When the command runs.
    #[inline]
    pub fn moment(&self) -> Moment {
        self.moment
    }

    /// Keys and fields with a deadline up to this one, in milliseconds since the epoch, do not exist for the command.
    #[inline]
    pub fn expired_until(&self) -> i64 {
        self.keyspace.expired_until(self.moment.unix.0)
    }

    /// The database it runs on.
    pub fn database(&self) -> u16 {
        self.database
    }

    /// How many databases there are.
    pub fn database_count(&self) -> u16 {
        self.keyspace.database_count()
    }

    /// The whole keyspace.
    pub fn keyspace(&self) -> &Keyspace {
        self.keyspace
    }

    /// Another database at the same moment. It must be below [`Edit::database_count`].
    pub fn at(&mut self, database: u16) -> Edit<'_> {
        Edit { keyspace: self.keyspace, database, moment: self.moment }
    }

    /// Reports what was done to a key, under Redis's name for it. Costs nothing unless somebody listens.
    #[inline]
    pub fn notify(&mut self, class: Class, name: &'static str, key: &[u8]) {
        self.keyspace.notices.note(class, name, self.database, key);
    }

    /// Wakes who waits for a key, about which nothing is reported.
    pub(crate) fn wake_waiters(&mut self, key: &[u8]) {
        self.keyspace.notices.touch(self.database, key);
    }

    /// Reports that elements were taken out of a collection, and that it is gone if they were the last.
    #[inline]
    pub(crate) fn notify_taken(&mut self, class: Class, name: &'static str, key: &[u8]) {
        self.notify(class, name, key);
        if self.keyspace.notices.wants(Class::Generic) && !self.contains(key) {
            self.notify(Class::Generic, "del", key);
        }
    }

    /// See [`View::entry`].
    #[inline]
    pub fn entry(&self, key: &[u8]) -> Option<Entry<'_>> {
        self.view().entry(key)
    }

    /// See [`View::peek`].
    pub fn peek(&self, key: &[u8]) -> Option<Entry<'_>> {
        self.view().peek(key)
    }

    /// See [`View::string`].
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is no string.
    #[inline]
    pub fn string(&self, key: &[u8]) -> Result<Option<Str<'_>>, Refusal> {
        self.view().string(key)
    }

    /// See [`View::contains`].
    pub fn contains(&self, key: &[u8]) -> bool {
        self.view().contains(key)
    }

    /// Stores a string under a key, whatever was there: as a number if it is one's canonical text.
    #[inline]
    pub fn set_string(&mut self, key: &[u8], value: &[u8], expiry: Expiry) {
        self.store(key, Payload::encode(value), expiry);
    }

    /// Stores a number's decimal text under a key, whatever was there.
    #[inline]
    pub fn set_integer(&mut self, key: &[u8], value: i64, expiry: Expiry) {
        self.store(key, Payload::Integer(value), expiry);
    }

    /// Stores under a key the number that `change` makes of the string there. The deadline stays.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is no string, and what `change` refuses; then nothing changes.
    #[inline]
    pub fn change_integer(
        &mut self,
        key: &[u8],
        change: impl Fn(Option<Str<'_>>) -> Result<i64, Refusal>,
    ) -> Result<i64, Refusal> {
        let place = self.keyspace.place(key);
        if let Some(result) = self.change_integer_in_place(place, key, &change) {
            return result;
        }
        let new = change(self.view().string_at(place, key)?)?;
        self.store_at(place, key, Payload::Integer(new), Expiry::Keep);
        Ok(new)
    }

    /// Changes what is a number already, which then need not be looked up once more to be stored. `None` if it is none.
    #[inline]
    fn change_integer_in_place(
        &mut self,
        place: Place,
        key: &[u8],
        change: impl FnOnce(Option<Str<'_>>) -> Result<i64, Refusal>,
    ) -> Option<Result<i64, Refusal>> {
        let (moment, expired_until) = (self.moment, self.expired_until());
        let Keyspace { databases, lazy_free, clock, sequence, altered, is_silent, .. } = &mut *self.keyspace;
        databases[usize::from(self.database)].visit(place, key, |record, position| {
            let Some(old @ Str::Integer(_)) = record.string().filter(|_| record.is_alive(expired_until)) else {
                return None;
            };
            let used = if is_silent.get() { record.clock() } else { clock.touched(record.clock(), moment) };
            record.set_clock(used);
            Some(change(Some(old)).inspect(|new| {
                lazy_free.before_change(position, record);
                *altered += 1;
                let used = if is_silent.get() { used } else { clock.replaced(used, moment) };
                let deadline = record.deadline();
                let stored = record.overwrite(Payload::Integer(*new), deadline, *sequence, used);
                assert!(stored.is_ok(), "a number fits where one was");
            }))
        })?
    }

    /// Stores a string under a key, whatever was there, never as a number.
    pub fn set_text(&mut self, key: &[u8], value: &[u8], expiry: Expiry) {
        self.store(key, Payload::plain(value, false), expiry);
    }

    /// Changes the string under a key, starting from an empty one if the key does not exist. The deadline stays. Costs
    /// as much as the change, not as the string, if the string is large and no checkpoint holds on to it.
    ///
    /// The value must be a string or absent: ask [`Edit::string`] first.
    pub fn modify_string<R>(&mut self, key: &[u8], change: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let place = self.keyspace.place(key);
        let (now, database, moment) = (self.expired_until(), usize::from(self.database), self.moment);
        let version = self.keyspace.sequence;
        let Keyspace { databases, lazy_free, clock, scratch, altered, is_silent, .. } = &mut *self.keyspace;
        let is_large =
            databases[database].find(place, key).is_some_and(|record| record.is_alive(now) && record.large().is_some());
        if is_large {
            *altered += 1;
            let changed = databases[database].change(place, key, lazy_free, |record, lazy_free| {
                record.set_version(version);
                if !is_silent.get() {
                    record.set_clock(clock.touched(record.clock(), moment));
                }
                change_large(record.large_mut().expect("it was large"), lazy_free, change)
            });
            return changed.expect("it was there");
        }
        scratch.clear();
        if let Some(record) = databases[database].find(place, key).filter(|record| record.is_alive(now)) {
            let string = record.string().expect("the caller has looked");
            scratch.extend_from_slice(string.to_bytes(&mut ItoaBuffer::new()));
        }
        let mut bytes = std::mem::take(scratch);
        let result = change(&mut bytes);
        if bytes.len() <= INLINE_BYTES_MAX {
            self.store_at(place, key, Payload::plain(&bytes, true), Expiry::Keep);
            self.keyspace.scratch = bytes;
        } else {
            self.store_at(place, key, Payload::Large(std::sync::Arc::new(bytes)), Expiry::Keep);
        }
        result
    }

    /// Changes the collection under a key, starting from one without elements if the key does not exist; one that is
    /// left without elements is removed. Counts as a use, and as a change if something changes. The deadline stays.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is of another type.
    pub(crate) fn modify<R>(
        &mut self,
        key: &[u8],
        kind: Kind,
        change: impl FnOnce(&mut Cell<'_>) -> R,
    ) -> Result<R, Refusal> {
        let place = self.keyspace.place(key);
        let (moment, expired_until) = (self.moment, self.expired_until());
        let Keyspace { databases, lazy_free, clock, sequence, altered, limits, is_silent, .. } = &mut *self.keyspace;
        let mut change = Some(change);
        let changed = databases[usize::from(self.database)].visit(place, key, |record, position| {
            if !record.is_alive(expired_until) {
                return None;
            }
            if record.kind() != Some(kind) {
                return Some(Err(Refusal::WRONG_TYPE));
            }
            if !is_silent.get() {
                record.set_clock(clock.touched(record.clock(), moment));
            }
            let mut cell = Cell::kept(record, lazy_free, position, *sequence, limits);
            let result = change.take().map(|change| change(&mut cell)).expect("a record is visited once");
            let is_changed = cell.is_changed();
            let is_empty = record.is_empty_collection() || is_changed && !record.is_alive(expired_until);
            Some(Ok((result, is_changed, is_empty)))
        });
        match changed.flatten() {
            Some(Err(refusal)) => Err(refusal),
            Some(Ok((result, is_changed, is_empty))) => {
                if is_empty {
                    // If fields are left that have expired, it is not they that took the key away.
                    if let Some(record) = self.take_out(self.database, key) {
                        self.keyspace.lazy_free.free_later(record);
                    }
                } else {
                    *altered += u64::from(is_changed);
                }
                Ok(result)
            }
            None => Ok(self.store_new_at(place, key, kind, change.expect("nothing was visited"))),
        }
    }

    /// Takes a part of a collection that has been cut off, to be freed in steps.
    pub(crate) fn free_collection_later(&mut self, part: Collection) {
        self.keyspace.lazy_free.free_collection_later(part);
    }

    /// Stores the collection that `make` makes of one without elements, whatever was there; if it gets none the key is
    /// removed.
    fn store_new_at<R>(&mut self, place: Place, key: &[u8], kind: Kind, make: impl FnOnce(&mut Cell<'_>) -> R) -> R {
        let mut bytes = std::mem::take(&mut self.keyspace.scratch);
        bytes.clear();
        let limits = self.keyspace.limits;
        let mut cell = Cell::fresh(kind, &mut bytes, &limits);
        let result = make(&mut cell);
        match cell.into_payload() {
            Some(payload) => self.store_at(place, key, payload, Expiry::Clear),
            None => _ = self.remove(key),
        }
        self.keyspace.scratch = bytes;
        result
    }

    /// Removes a key. True if it existed.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        let now = self.expired_until();
        match self.extract(self.database, key) {
            Some(record) => {
                let was_alive = record.is_alive(now);
                self.keyspace.lazy_free.free_later(record);
                was_alive
            }
            None => false,
        }
    }

    /// Sets or removes a key's deadline; one that is not in the future removes the key. False if the key does not
    /// exist.
    pub fn set_expiry(&mut self, key: &[u8], at: Option<UnixMillis>) -> bool {
        if !self.contains(key) {
            return false;
        }
        if at.is_some_and(|at| at.0 <= self.expired_until()) {
            return self.remove(key);
        }
        let place = self.keyspace.place(key);
        let version = self.keyspace.sequence;
        self.keyspace.altered += 1;
        let Keyspace { databases, lazy_free, .. } = &mut *self.keyspace;
        let changed = databases[usize::from(self.database)].change(place, key, lazy_free, |record, _| {
            record.set_deadline(at.map(|at| at.0));
            record.set_version(version);
        });
        changed.is_some()
    }

    /// Notes how a key was used elsewhere. False if the key does not exist.
    pub fn set_access(&mut self, key: &[u8], access: Access) -> bool {
        let clock = self.access_clock(Some(access));
        match self.view().peek(key) {
            Some(entry) => {
                entry.record.set_clock(clock);
                true
            }
            None => false,
        }
    }

    /// Stores a value under a key of any database, whatever was there. A deadline that is not in the future removes the
    /// key.
    pub fn put(
        &mut self,
        database: u16,
        key: &[u8],
        value: Value,
        expires_at: Option<UnixMillis>,
        access: Option<Access>,
    ) {
        let expiry = expires_at.map_or(Expiry::Clear, Expiry::At);
        let mut edit = self.at(database);
        match value {
            // Too long to stay inline, and already in a vector of its own: hand the vector over.
            Value::String(StringValue(Text::Bytes { bytes, .. })) if bytes.len() > INLINE_BYTES_MAX => {
                edit.store(key, Payload::Large(std::sync::Arc::new(bytes)), expiry);
            }
            Value::Collection(CollectionValue(Kept::Large(collection))) => {
                edit.store(key, Payload::Collection(collection), expiry);
            }
            value => edit.store(key, Payload::of(&value), expiry),
        }
        if let Some(access) = access {
            edit.set_access(key, access);
        }
    }

    /// Stores what a key of another keyspace holds under the same key, whatever was there. A deadline that is not in
    /// the future removes the key.
    pub(crate) fn copy(&mut self, key: &[u8], from: Entry<'_>) {
        self.store(key, from.record.payload(), from.expires_at().map_or(Expiry::Clear, Expiry::At));
    }

    /// Takes a key out of any database: its value and its deadline. `None` if it does not exist.
    pub fn take(&mut self, database: u16, key: &[u8]) -> Option<(Value, Option<UnixMillis>)> {
        let mut record = self.extract(database, key)?;
        if !record.is_alive(self.expired_until()) {
            self.keyspace.lazy_free.free_later(record);
            return None;
        }
        Some((record.take_value(), record.deadline().map(UnixMillis)))
    }

    /// A copy of a key's value and its deadline; a large value is shared. `None` if the key does not exist.
    pub fn clone_value(&self, key: &[u8]) -> Option<(Value, Option<UnixMillis>)> {
        self.reading().clone_value(key)
    }

    /// Removes all keys of a database. Their memory is given back later, by [`Keyspace::collect`].
    pub fn flush(&mut self, database: u16) {
        self.keyspace.altered += self.keyspace.key_count(database) as u64;
        self.keyspace.flush(database);
        self.keyspace.notices.touch_all(database);
    }

    /// Exchanges two databases.
    pub fn swap(&mut self, left: u16, right: u16) {
        self.keyspace.databases.swap(usize::from(left), usize::from(right));
        self.keyspace.notices.touch_all(left);
        self.keyspace.notices.touch_all(right);
    }

    #[inline]
    fn store(&mut self, key: &[u8], payload: Payload<'_>, expiry: Expiry) {
        self.store_at(self.keyspace.place(key), key, payload, expiry);
    }

    #[inline]
    fn store_at(&mut self, place: Place, key: &[u8], payload: Payload<'_>, expiry: Expiry) {
        let moment = self.moment;
        self.keyspace.altered += 1;
        let deadline = match expiry {
            Expiry::Keep => Deadline::Keep,
            Expiry::Clear => Deadline::Is(None),
            Expiry::At(at) if at.0 <= self.expired_until() => {
                self.remove(key);
                return;
            }
            Expiry::At(at) => Deadline::Is(Some(at.0)),
        };
        if !self.keyspace.notices.wanted.is_empty() {
            self.note_if_expired(place, key);
        }
        let expired_until = self.expired_until();
        let Keyspace { databases, lazy_free, clock, hasher, sequence, .. } = &mut *self.keyspace;
        let stamp = Stamp { version: *sequence, now: expired_until };
        let clock_of = |previous: Option<u32>| match previous {
            Some(previous) => clock.replaced(previous, moment),
            None => clock.fresh(moment),
        };
        databases[usize::from(self.database)].store(place, key, payload, deadline, stamp, clock_of, hasher, lazy_free);
    }

    fn extract(&mut self, database: u16, key: &[u8]) -> Option<Record> {
        let removed = self.take_out(database, key);
        let now = self.expired_until();
        if let Some(record) = removed.as_ref().filter(|record| !record.is_alive(now)) {
            self.keyspace.note_gone(database, key, Gone::of(record, now));
        }
        removed
    }

    /// The same without a word of what had expired.
    fn take_out(&mut self, database: u16, key: &[u8]) -> Option<Record> {
        let place = self.keyspace.place(key);
        let Keyspace { databases, lazy_free, hasher, altered, .. } = &mut *self.keyspace;
        let removed = databases[usize::from(database)].remove(place, key, hasher, lazy_free);
        *altered += u64::from(removed.is_some());
        removed
    }

    /// Reports that a change has removed fields of a hash which had expired.
    pub(crate) fn note_expired_fields(&mut self, key: &[u8], count: usize) {
        self.keyspace.note_gone(self.database, key, Gone::Fields(count));
    }

    /// A key that is stored again may have expired before, and not been swept away yet.
    fn note_if_expired(&mut self, place: Place, key: &[u8]) {
        let now = self.expired_until();
        let found = self.keyspace.databases[usize::from(self.database)].find(place, key);
        if let Some(gone) = found.filter(|record| !record.is_alive(now)).map(|record| Gone::of(record, now)) {
            self.keyspace.note_gone(self.database, key, gone);
        }
    }

    fn access_clock(&self, access: Option<Access>) -> u32 {
        let clock = self.keyspace.clock();
        match access {
            None => clock.fresh(self.moment),
            Some(Access::IdleSeconds(seconds)) => clock.with_idle_seconds(seconds, self.moment),
            Some(Access::Frequency(counter)) => clock.with_frequency(counter, self.moment),
        }
    }
}

/// Changes a large value in place if it is held by the keyspace alone; copies it first if a checkpoint or a copy of the
/// key holds it too.
fn change_large<R>(
    bytes: &mut std::sync::Arc<Vec<u8>>,
    _lazy_free: &mut LazyFree,
    change: impl FnOnce(&mut Vec<u8>) -> R,
) -> R {
    change(std::sync::Arc::make_mut(bytes))
}
