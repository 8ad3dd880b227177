//! What the items of a log have done, as the commands that Redis would put into its own stream.
//!
//! A replica of another kind, such as a stock Redis, can follow neither our log (a command of it may depend on chance,
//! on the moment, or be unknown there) nor our clock. So it is told effects: `SPOP` as `SREM`, a deadline as the time
//! at which it comes, the commands of a script as a transaction, what has expired as `DEL`. What each command becomes
//! stands in `effects.rs`; here it is found out what has happened at all.

use command::Access;
use keyspace::rdb::Dialect;
use keyspace::{Body, DataCommand, DatabaseKey, Keyspace, Moment, Standing};
use message::TransactionId;
use message::entry::{Born, Effect};
use resp::{Args, Writer};
use stdx::UnixMillis;

use crate::{effects, observe};

/// What a reader of effects understands: the version of RDB files that it reads, and the commands of that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reader {
    /// Version 9: Redis 5.0 and later.
    Redis5,
    /// Version 10: Redis 7.0 and later, and Valkey.
    Redis7,
    /// Version 12: Redis 7.4 and later, where fields of hashes have deadlines. No Valkey reads it.
    Redis74,
    /// Version 80: Valkey 9.0 and later, where they have deadlines, too. No Redis reads it.
    Valkey9,
    /// Values as we ourselves dump them, with all that Redis has no words for.
    Holdfast,
}

impl Reader {
    /// The version of RDB files that it reads.
    pub fn rdb_version(self) -> u16 {
        match self {
            Self::Redis5 => 9,
            Self::Redis7 | Self::Holdfast => 10,
            Self::Redis74 => 12,
            Self::Valkey9 => keyspace::rdb::VERSION_OF_VALKEY,
        }
    }

    /// How values are written for it.
    pub fn dialect(self) -> Dialect {
        match self {
            Self::Redis5 => Dialect::Plain,
            Self::Redis7 | Self::Holdfast => Dialect::Listpacks,
            Self::Redis74 => Dialect::ExpiringFields,
            Self::Valkey9 => Dialect::Valkey,
        }
    }
}

/// Requests in the form of the protocol, one behind the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// All of them.
    pub bytes: Vec<u8>,
    /// Of which database each run of them is, and where it ends in `bytes`.
    pub runs: Vec<(u16, usize)>,
    /// How many requests there are.
    pub count: usize,
}

impl Requests {
    pub(crate) fn push<W: AsRef<[u8]>>(&mut self, database: u16, words: &[W]) {
        resp::encode_request(&mut self.bytes, words);
        self.note(database);
    }

    /// The same words again.
    pub(crate) fn push_args(&mut self, database: u16, args: Args<'_>) {
        let words: Vec<&[u8]> = args.iter().collect();
        self.push(database, &words);
    }

    fn note(&mut self, database: u16) {
        self.count += 1;
        match self.runs.last_mut() {
            Some((last, end)) if *last == database => *end = self.bytes.len(),
            _ => self.runs.push((database, self.bytes.len())),
        }
    }
}

/// What a step means for a reader that brings groups together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// It has been done, as a part of a transaction if one is named.
    #[default]
    Done,
    /// Its part of a transaction is prepared, and has changed nothing yet. Its keys are locked until the part is done
    /// or dropped.
    Prepared,
    /// The transaction was not committed.
    Dropped,
    /// Keys were swept away because their time had come. Replicas do that at places of their own.
    Swept,
}

/// What one item of a log has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Index of its entry in the log.
    pub index: u64,
    /// The moment of that entry.
    pub moment: UnixMillis,
    /// Whether it has been done.
    pub phase: Phase,
    /// The transaction over several groups that it is a part of, with all groups that have one.
    pub transaction: Option<(TransactionId, Vec<u32>)>,
    /// Keys that it has read or changed: two steps without one in common can be exchanged.
    pub keys: Vec<DatabaseKey>,
    /// It can be exchanged with no other.
    pub is_whole: bool,
    /// A slot has come or gone with its keys: what there is of them, another group has told or will tell.
    pub is_move: bool,
    /// What it does to whole databases, before everything else. All parts of a transaction have the same.
    pub wide: Requests,
    /// What it does to keys.
    pub requests: Requests,
}

/// The moment of a group that has ended: no later one comes. In front of it is room for all that anybody measures.
pub const NO_LATER: UnixMillis = UnixMillis(i64::MAX >> 2);

/// What a group has done since it was last asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tape {
    /// Which group.
    pub group: u32,
    /// All behind this index of its log is known,
    pub from: u64,
    /// up to this index.
    pub index: u64,
    /// The moment of the group: nothing of an earlier one comes any more.
    pub moment: UnixMillis,
    /// Something before this tape is not known: it is the first, or the group was given a checkpoint.
    pub has_gap: bool,
    /// The group has split off there, and this is the first that it tells: what comes here is behind all that the other
    /// one has done up to there.
    pub born: Option<Born>,
    /// In the order of the log.
    pub steps: Vec<Step>,
    /// If something before this tape is not known: the transactions that are prepared there and have not ended.
    pub standing: Vec<Step>,
}

impl Tape {
    /// What is told where nothing is left of a group that ended with this entry. A reader that has not been told all up
    /// to there learns that something is missing.
    pub fn ended(group: u32, index: u64) -> Self {
        Self { group, from: index, index, moment: NO_LATER, has_gap: true, ..Self::default() }
    }
}

/// Takes down what is done. No part of what replicas agree on.
#[derive(Debug)]
pub struct Recorder {
    reader: Reader,
    step: Step,
    tape: Tape,
}

/// A key that a command names, as it is before.
struct Named<'a> {
    database: u16,
    key: &'a [u8],
    before: Standing,
    /// The version that commands see; 0 if all that is there has expired.
    version: u64,
    is_changed: bool,
}

impl Recorder {
    /// One that begins behind this index, where these transactions are prepared.
    pub(crate) fn new(reader: Reader, group: u32, from: u64, standing: Vec<Step>) -> Self {
        let tape = Tape { group, from, has_gap: true, standing, ..Tape::default() };
        Self { reader, step: Step::default(), tape }
    }

    /// What has been done up to this index and moment, if there is anything new.
    pub(crate) fn take(&mut self, index: u64, moment: UnixMillis) -> Option<Tape> {
        let has_news = self.tape.has_gap || self.tape.index != index || !self.tape.steps.is_empty();
        let next = Tape { group: self.tape.group, from: index, index, ..Tape::default() };
        has_news.then(|| Tape { index, moment, ..std::mem::replace(&mut self.tape, next) })
    }

    /// The state has become another one, that behind this index, by no items. These transactions are prepared there.
    pub(crate) fn skip(&mut self, index: u64, standing: Vec<Step>) {
        self.tape.steps.clear();
        (self.tape.has_gap, self.tape.from, self.tape.standing) = (true, index, standing);
    }

    /// An item of this entry comes.
    pub(crate) fn begin(&mut self, index: u64, moment: UnixMillis) {
        (self.step.index, self.step.moment) = (index, moment);
    }

    /// It has been applied.
    pub(crate) fn end(&mut self) {
        let step = std::mem::take(&mut self.step);
        if step.requests.count > 0 || step.wide.count > 0 || step.is_whole || step.transaction.is_some() {
            self.tape.steps.push(step);
        }
    }

    /// The item is a part of this transaction.
    pub(crate) fn join(&mut self, transaction: TransactionId, groups: &[u32]) {
        if groups.len() > 1 {
            self.step.transaction = Some((transaction, groups.to_vec()));
        }
    }

    /// The item prepares a part of this transaction, which will make these changes.
    pub(crate) fn prepare(&mut self, transaction: TransactionId, groups: &[u32], changes: &[Effect]) {
        self.join(transaction, groups);
        self.step.phase = Phase::Prepared;
        for change in changes {
            if let Effect::Key { database, key, .. } = change {
                self.step.keys.push((*database, key.clone()));
            }
        }
    }

    /// The item drops its part of this transaction.
    pub(crate) fn abandon(&mut self, transaction: TransactionId, groups: &[u32]) {
        self.join(transaction, groups);
        self.step.phase = Phase::Dropped;
    }

    /// Runs a command that may change data, and takes down what it has done.
    pub(crate) fn run(
        &mut self,
        keyspace: &mut Keyspace,
        (database, moment): (u16, Moment),
        command: &DataCommand,
        args: Args<'_>,
        writer: &mut Writer,
    ) {
        let mut named: Vec<Named<'_>> = Vec::new();
        let others = observe::other_databases(command, args, keyspace.database_count());
        for database in std::iter::once(database).chain(others) {
            command.for_each_key(args, |index, access| {
                let key = args.at(index);
                // What a command is said to do with a key is not asked: XREADGROUP is said to read.
                let is_known = named.iter().any(|named| (named.database, named.key) == (database, key));
                if access != Access::NotKey && !is_known {
                    let before = keyspace.standing(database, key, moment);
                    // Of a hash that is stale every field may have expired.
                    let version = match before {
                        Standing::Stale(_) => keyspace.version(database, key, moment),
                        _ => before.version(),
                    };
                    named.push(Named { database, key, before, version, is_changed: false });
                }
            });
        }
        let start = writer.len();
        observe::run(keyspace, database, command, args, moment, writer);
        let is_whole = matches!(command.name, "flushall" | "flushdb" | "swapdb");
        let reply = &writer.bytes()[start..];
        if is_whole {
            if !reply.starts_with(b"-") {
                self.step.is_whole = true;
                // A script or a transaction of a server with one group: what it has done before stays before.
                self.step.requests.push_args(database, args);
            }
            return;
        }
        for named in &mut named {
            named.is_changed = keyspace.version(named.database, named.key, moment) != named.version;
            // There its time has not come until we say so, and a command would still find it. Another replica may have
            // swept it away before: it is no part of what the item did, or replicas would count steps differently.
            if named.before == Standing::Expired {
                self.sweep(|step| remove(step, named.database, named.key));
            }
        }
        let is_changed = named.iter().any(|named| named.is_changed);
        let is_stale = |named: &Named<'_>| matches!(named.before, Standing::Stale(_));
        if named.iter().any(is_stale) {
            // Fields have expired, and there they have not: whole values leave no doubt.
            let reader = self.reader;
            for named in named.iter().filter(|named| named.is_changed || is_stale(named)) {
                let put = |step: &mut Step| put(step, reader, keyspace, (named.database, named.key), moment);
                if is_changed { put(&mut self.step) } else { self.sweep(put) }
            }
        } else if is_changed {
            let changed = named.iter().filter(|named| named.is_changed);
            let changed: Vec<_> = changed.map(|named| (named.database, named.key)).collect();
            let done =
                effects::Done { reader: self.reader, keyspace, database, moment, args, reply, changed: &changed };
            done.put(command, &mut self.step.requests);
        }
        if is_changed {
            self.step.keys.extend(named.iter().map(|named| (named.database, named.key.to_vec())));
        }
    }

    /// A step of its own, in front of that of the item: something expired was swept away.
    fn sweep(&mut self, fill: impl FnOnce(&mut Step)) {
        let (index, moment) = (self.step.index, self.step.moment);
        let mut step = Step { index, moment, phase: Phase::Swept, ..Step::default() };
        fill(&mut step);
        self.tape.steps.push(step);
    }

    /// A key is now what it is.
    pub(crate) fn put(&mut self, keyspace: &Keyspace, database: u16, key: &[u8], moment: Moment) {
        put(&mut self.step, self.reader, keyspace, (database, key), moment);
    }

    /// All keys of a database have gone.
    pub(crate) fn flush(&mut self, database: u16) {
        self.step.is_whole = true;
        self.step.wide.push(database, &["FLUSHDB"]);
    }

    /// Two databases have been exchanged.
    pub(crate) fn swap(&mut self, first: u16, second: u16) {
        self.step.is_whole = true;
        self.step.wide.push(first, &["SWAPDB".to_owned(), first.to_string(), second.to_string()]);
    }

    /// A slot has come or gone. For readers nothing has happened, but from here on another log tells of its keys.
    pub(crate) fn note_move(&mut self) {
        (self.step.is_whole, self.step.is_move) = (true, true);
    }

    /// These are the libraries of functions now.
    pub(crate) fn libraries<'l>(&mut self, all: impl Iterator<Item = &'l [u8]>) {
        if self.reader < Reader::Redis7 {
            return;
        }
        self.step.requests.push(0, &["FUNCTION", "FLUSH"]);
        for text in all {
            self.step.requests.push(0, &[b"FUNCTION".as_slice(), b"LOAD", text]);
        }
    }

    /// A key, or fields of it, were swept away because their time had come.
    pub(crate) fn swept(
        &mut self,
        keyspace: &Keyspace,
        (index, latest): (u64, UnixMillis),
        (database, key): (u16, &[u8]),
        moment: Moment,
    ) {
        self.begin(index, latest);
        let reader = self.reader;
        self.sweep(|step| match keyspace.version(database, key, moment) {
            0 => remove(step, database, key),
            _ => put(step, reader, keyspace, (database, key), moment),
        });
        self.step = Step::default();
    }
}

/// A key has gone.
fn remove(step: &mut Step, database: u16, key: &[u8]) {
    step.requests.push(database, &[b"DEL", key]);
    step.keys.push((database, key.to_vec()));
}

/// A key is now what it is.
fn put(step: &mut Step, reader: Reader, keyspace: &Keyspace, (database, key): (u16, &[u8]), moment: Moment) {
    effects::put_value(&mut step.requests, reader, keyspace, (database, key), moment);
    step.keys.push((database, key.to_vec()));
}

/// Runs a command, whichever kind it is, and takes down what it has done if somebody wants to know.
#[inline]
pub(crate) fn run(
    keyspace: &mut Keyspace,
    recorder: &mut Option<Box<Recorder>>,
    (database, moment): (u16, Moment),
    command: &DataCommand,
    args: Args<'_>,
    writer: &mut Writer,
) {
    match recorder {
        Some(recorder) if !matches!(command.body, Body::Query(_)) => {
            recorder.run(keyspace, (database, moment), command, args, writer);
        }
        _ => observe::run(keyspace, database, command, args, moment, writer),
    }
}
