//! Simulated clients: what they ask, and what they make of the answers.

mod copying;
mod lists;
mod repeats;
mod streams;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use stdx::Prng;

use copying::Copying;
pub(crate) use copying::SiteCopy;
use lists::Awaited;
pub(crate) use lists::elements;
pub use lists::{LIST_COUNT, list_name};
use repeats::Repeats;
pub use streams::STREAM_COUNT;
use streams::{StreamHistory, Streams};

use crate::MILLISECOND;
use crate::cycles::{Step, Transaction};
use crate::linearizable::{Operation, Record, Value};
use crate::reply::{Reply, encode, parse};

/// Registers, each judged by itself.
pub const REGISTER_COUNT: u64 = 8;

/// Registers below are removed now and then, the others are watched. Not both: a watched key that was absent, came, and
/// went again before EXEC counts as unchanged for Holdfast, and as changed for Redis.
const WATCHED_FROM: u64 = REGISTER_COUNT / 2;

/// Accounts, between which money moves and of which none is ever made or lost.
pub const ACCOUNT_COUNT: u64 = 6;

/// What is in each account at first.
pub const OPENING_BALANCE: i64 = 1_000;

/// What is read in the end, through every node: registers, lists, and all accounts at once.
pub const LAST_READS: Range<u64> = 0..REGISTERS_AND_LISTS + 1;

/// Streams are read behind that, where clients share some.
pub const LAST_READS_OF_STREAMS: Range<u64> = LAST_READS.end..LAST_READS.end + STREAM_COUNT;

const REGISTERS_AND_LISTS: u64 = REGISTER_COUNT + LIST_COUNT;

/// Errors that are remembered.
const ERRORS_MAX: usize = 100;

/// Name of a register. Some share a slot, most do not.
pub fn register_name(register: u64) -> String {
    if register < 2 { format!("{{together}}register:{register}") } else { format!("register:{register}") }
}

/// Name of an account.
pub fn account_name(account: u64) -> String {
    format!("account:{account}")
}

/// What all clients have done and seen, for the checkers.
#[derive(Debug, Default)]
pub struct History {
    /// Operations on registers, by register.
    pub registers: Vec<Vec<Record>>,
    /// Sums of all accounts, as seen at once: (when, sum).
    pub audits: Vec<(u64, i64)>,
    /// Operations answered.
    pub answered_count: u64,
    /// Transactions over several keys that were carried out.
    pub transfer_count: u64,
    /// How long each transfer took.
    pub transfers_ns: Vec<u64>,
    /// Refusals that promised that nothing had happened.
    pub refused_count: u64,
    /// Operations with an outcome that nobody reported.
    pub unknown_count: u64,
    /// Transactions on lists.
    pub transactions: Vec<Transaction>,
    /// The sessions that asked for them, in the same order.
    pub transaction_sessions: Vec<u64>,
    /// What is known of streams.
    streams: Vec<StreamHistory>,
    /// The lists as they were read in the end, through one node after the other.
    pub lists: Vec<BTreeMap<u32, Vec<u32>>>,
    /// EXECs that answered nil.
    pub broken_watches: Vec<BrokenWatch>,
    /// Backups that were read to their end.
    pub backup_count: u64,
    /// A second site takes the next one as a copy.
    pub(crate) site_wants_copy: bool,
    pub(crate) site_copy: Option<SiteCopy>,
    /// The first errors that clients were told of, and answers that never came from a node that was there.
    pub errors: Vec<String>,
    next_value: i64,
    next_element: u32,
}

/// What somebody watched, and was told to have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenWatch {
    /// When WATCH was asked for.
    pub watched: u64,
    /// When EXEC was answered.
    pub answered: u64,
    /// Registers, with what was found in them under the watch.
    pub registers: Vec<(u64, Value)>,
    /// Lists, with how many elements they had.
    pub lists: Vec<(u32, usize)>,
}

impl BrokenWatch {
    /// True if something that was watched may not have been there.
    pub fn may_have_been_absent(&self) -> bool {
        self.registers.iter().any(|(_, found)| found.is_none()) || self.lists.iter().any(|(_, length)| *length == 0)
    }
}

impl History {
    /// Nothing has happened yet.
    pub fn new() -> Self {
        Self {
            registers: vec![Vec::new(); REGISTER_COUNT as usize],
            streams: (0..STREAM_COUNT).map(|_| StreamHistory::default()).collect(),
            next_value: 1,
            ..Self::default()
        }
    }

    /// A read that may be so old is one that may have been asked for so much earlier; but not before what its session
    /// has asked for before, of which it must see what has come.
    fn begin_old(&mut self, (now, age): (u64, u64), session: u64, register: u64, operation: Operation) -> Handle {
        let records = &self.registers[register as usize];
        let before = records.iter().rev().find(|record| record.session == session).map_or(0, |record| record.called);
        self.begin(now.saturating_sub(age).max(before), session, register, operation)
    }

    fn begin(&mut self, now: u64, session: u64, register: u64, operation: Operation) -> Handle {
        let records = &mut self.registers[register as usize];
        records.push(Record { called: now, answered: None, session, operation });
        Handle { register, place: records.len() - 1 }
    }

    /// A client was told of an error.
    pub fn note_error(&mut self, text: &str) {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(text.to_owned());
        }
    }

    fn unique_value(&mut self) -> i64 {
        self.next_value += 1;
        self.next_value * 1_000
    }
}

#[derive(Clone, Copy, Debug)]
struct Handle {
    register: u64,
    place: usize,
}

/// What a client does with its next reply.
#[derive(Debug)]
enum Expected {
    /// MULTI, or the opening of an account.
    Acknowledgement,
    /// READONLY, or READWRITE.
    MayBeOld,
    /// WATCH.
    Watch,
    /// A command inside MULTI.
    Queued,
    /// An operation on a register.
    Operation(Handle),
    /// EXEC of these operations on registers.
    Exec(Vec<Handle>),
    /// EXEC of a transfer.
    Transfer { called: u64 },
    /// EXEC or MGET of all balances.
    Audit { called: u64 },
    /// GET of a watched register; the next step of the request depends on it.
    Watched { register: u64 },
    /// EXEC after WATCH.
    Exchange(Handle),
    /// A transaction on lists, or a single command on one.
    Lists(Awaited),
    /// LRANGE of a watched list.
    WatchedList { list: u32 },
    /// LRANGE when nothing is changed any more.
    LastList { list: u32 },
    /// UNWATCH.
    Unwatched,
    /// BACKUP BEGIN.
    BackupBegun,
    /// BACKUP READ.
    BackupChunk,
    /// The answer to a request with an id.
    Counted,
    /// A command on a stream.
    Stream(streams::Awaited),
    /// A command on a collection. No checker asks what it found; that the replicas agree afterwards, one does.
    Collection,
}

/// A second step of a request.
#[derive(Debug)]
enum FollowUp {
    /// Set a register if it still holds what was found.
    Exchange { register: u64, found: Value },
    /// Append to lists if others still hold what was found.
    Append { watched: Vec<Step> },
    /// What was watched is of no use.
    Unwatch,
}

/// One simulated client.
#[derive(Debug)]
pub struct Client {
    prng: Prng,
    /// Its connection, by the universe's number.
    pub connection: Option<u64>,
    /// The node it talks to.
    pub node: usize,
    input: Vec<u8>,
    expected: VecDeque<Expected>,
    /// When it gives up waiting.
    pub deadline: u64,
    /// Longest pause between requests.
    pub think_max: u64,
    /// Requests sent ahead of their replies.
    pipeline_max: u64,
    /// The register that the pipeline being made is about.
    favourite: Option<u64>,
    /// A second step of a request, to be sent at once.
    follow_up: Option<FollowUp>,
    /// Its WATCH has not been refused.
    is_watching: bool,
    /// When it asked for that.
    watched_at: u64,
    /// What it has found in the lists that it watches.
    watched: Vec<Step>,
    /// When it last asked for lists on this connection.
    lists_asked: BTreeMap<u32, u64>,
    /// A backup that it makes.
    copying: Option<Copying>,
    /// It makes backups.
    copies: bool,
    /// What is left of [`LAST_READS`], in calm times.
    pub last_reads: Option<VecDeque<u64>>,
    transfers: bool,
    /// Transactions may touch several groups.
    spans: bool,
    /// It changes and reads one key at a time: what it does in one group waits for no other one.
    is_narrow: bool,
    /// It uses vector sets, which need level 2.
    vectors: bool,
    /// How old its reads may be, in milliseconds, if it lets replicas answer them.
    staleness_ms: Option<u64>,
    /// It changes nothing, so nothing keeps it from reading where no change gets through.
    only_reads: bool,
    /// It has said so on this connection.
    has_said_so: bool,
    /// What it repeats under an id until it has an answer.
    repeats: Option<Repeats>,
    /// Its part in streams that are shared.
    streams: Option<Streams>,
    /// Whether it changes a register that many change by EXEC, and tries again when that fails, or as others do.
    is_optimist: Option<bool>,
}

/// What became of a reply.
pub enum Heard {
    /// More may come.
    Fine,
    /// Nothing is awaited any more.
    Idle,
    /// The server said something it must not say.
    Absurd(String),
}

impl Client {
    /// A client that does what its generator says.
    pub fn new(mut prng: Prng, think_max: u64, transfers: bool, spans: bool) -> Self {
        let pipeline_max = if prng.chance(1, 2) { 1 + prng.below(8) } else { 1 };
        Self {
            prng,
            connection: None,
            node: 0,
            input: Vec::new(),
            expected: VecDeque::new(),
            deadline: u64::MAX,
            think_max,
            pipeline_max,
            favourite: None,
            follow_up: None,
            is_watching: false,
            watched_at: 0,
            watched: Vec::new(),
            lists_asked: BTreeMap::new(),
            copying: None,
            copies: transfers,
            last_reads: None,
            transfers,
            spans,
            is_narrow: false,
            vectors: false,
            staleness_ms: None,
            only_reads: false,
            has_said_so: false,
            repeats: None,
            streams: None,
            is_optimist: None,
        }
    }

    /// Lets it use vector sets. Where the level is raised they may be refused until then.
    pub fn use_vectors(&mut self) {
        self.vectors = true;
    }

    /// Lets replicas answer its reads, if they are not too old; chance says whether, and how old they may be.
    pub fn perhaps_read_nearby(&mut self) {
        let staleness_ms = 50 << self.prng.below(6);
        self.staleness_ms = self.prng.chance(1, 2).then_some(staleness_ms);
    }

    /// Lets replicas answer its reads that are as good as new.
    pub fn read_nearby(&mut self) {
        self.staleness_ms = Some(50);
    }

    /// One in three of those whom replicas may answer changes nothing.
    pub fn perhaps_only_read(&mut self) {
        self.only_reads = self.reads_nearby() && self.prng.chance(1, 3);
    }

    /// Lets it change and read one key at a time.
    pub fn be_narrow(&mut self) {
        (self.is_narrow, self.spans) = (true, false);
    }

    /// True if replicas may answer its reads.
    pub fn reads_nearby(&self) -> bool {
        self.staleness_ms.is_some()
    }

    /// Sends one request at a time, with pauses of this length at most.
    pub fn calm(&mut self, think_max: u64) {
        (self.pipeline_max, self.think_max) = (1, think_max);
    }

    /// Makes pauses of this length at most, and no backups, which a change of leader ends.
    pub fn be_patient(&mut self, think_max: u64) {
        (self.think_max, self.copies) = (think_max, false);
    }

    /// Chance of its own.
    pub fn prng(&mut self) -> &mut Prng {
        &mut self.prng
    }

    /// True while it waits for a reply.
    pub fn is_waiting(&self) -> bool {
        !self.expected.is_empty()
    }

    /// How many replies it waits for.
    pub fn awaited_count(&self) -> usize {
        self.expected.len()
    }

    /// The connection is gone; what was asked and not answered has an unknown outcome.
    pub fn disconnect(&mut self, history: &mut History) {
        history.unknown_count += self.expected.len() as u64;
        self.expected.clear();
        self.input.clear();
        self.follow_up = None;
        self.copying = None;
        self.connection = None;
        self.has_said_so = false;
        self.lists_asked.clear();
        self.deadline = u64::MAX;
    }

    /// Bytes that open all accounts.
    pub fn open_accounts(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        for account in 0..ACCOUNT_COUNT {
            let balance = OPENING_BALANCE.to_string();
            encode(&[b"SET", account_name(account).as_bytes(), balance.as_bytes()], &mut out);
            self.expected.push_back(Expected::Acknowledgement);
        }
        out
    }

    /// The next request, or several at once.
    pub fn ask(&mut self, now: u64, history: &mut History) -> Vec<u8> {
        let mut out = Vec::new();
        // What is read in the end must be the truth.
        let may_be_old = self.last_reads.is_none();
        if let Some(staleness_ms) = self.staleness_ms.filter(|_| may_be_old != self.has_said_so) {
            self.has_said_so = may_be_old;
            let staleness_ms = staleness_ms.to_string();
            let words: &[&[u8]] =
                if may_be_old { &[b"READONLY", b"MAXSTALENESS", staleness_ms.as_bytes()] } else { &[b"READWRITE"] };
            self.command(words, Expected::MayBeOld, &mut out);
        }
        match self.follow_up.take() {
            None => {}
            Some(FollowUp::Exchange { register, found }) => {
                self.exchange(now, register, found, history, &mut out);
                return out;
            }
            Some(FollowUp::Append { watched }) => {
                self.append_watching(now, watched, history, &mut out);
                return out;
            }
            Some(FollowUp::Unwatch) => {
                self.command(&[b"UNWATCH"], Expected::Unwatched, &mut out);
                return out;
            }
        }
        if let Some(places) = &mut self.last_reads {
            match places.front().copied() {
                None => {
                    if history.site_wants_copy && !self.go_on_copying(&mut out) {
                        self.begin_copying(now, &mut out);
                    }
                }
                Some(register) if register < REGISTER_COUNT => {
                    self.single(now, register, Operation::Get { found: None }, history, &mut out);
                }
                Some(list) if list < REGISTER_COUNT + LIST_COUNT => {
                    self.last_list((list - REGISTER_COUNT) as u32, &mut out);
                }
                Some(REGISTERS_AND_LISTS) => self.audit(now, &mut out),
                Some(stream) => self.last_stream(now, (stream - REGISTERS_AND_LISTS - 1) as usize, &mut out),
            }
            return out;
        }
        if self.only_reads {
            for _ in 0..1 + self.prng.below(self.pipeline_max) {
                let register = self.prng.below(REGISTER_COUNT);
                self.single(now, register, Operation::Get { found: None }, history, &mut out);
            }
            return out;
        }
        if self.go_on_copying(&mut out) || self.ask_once(&mut out) || self.ask_stream(now, history, &mut out) {
            return out;
        }
        if self.ask_optimistically(now, history, &mut out) {
            return out;
        }
        if self.copies && self.prng.chance(1, 60) {
            self.begin_copying(now, &mut out);
            return out;
        }
        // A pipeline that stays with one register is one in which the order of requests shows.
        self.favourite = self.prng.chance(1, 2).then(|| self.prng.below(REGISTER_COUNT));
        for _ in 0..1 + self.prng.below(self.pipeline_max) {
            if self.prng.chance(1, 5) {
                self.collection_operation(&mut out);
                continue;
            }
            if self.is_narrow {
                match self.prng.below(3) {
                    0 => self.register_operation(now, history, &mut out),
                    _ => self.single_list_operation(now, history, &mut out),
                }
                continue;
            }
            match self.prng.below(if self.transfers { 22 } else { 12 }) {
                0..=9 => self.register_operation(now, history, &mut out),
                10 => self.transaction(now, history, &mut out),
                11 => {
                    let register = WATCHED_FROM + self.prng.below(REGISTER_COUNT - WATCHED_FROM);
                    self.watch(now, register, &mut out);
                    return out;
                }
                12 | 13 => self.transfer(now, &mut out),
                14..=19 => {
                    if self.list_operation(now, history, &mut out) {
                        return out;
                    }
                }
                _ => self.audit(now, &mut out),
            }
        }
        out
    }

    /// Its connection: what it asks there is carried out in that order.
    fn session(&self) -> u64 {
        self.connection.expect("who asks is connected")
    }

    /// How old what it reads may be. Clocks may be slow.
    fn age(&self) -> u64 {
        self.staleness_ms.filter(|_| self.has_said_so).unwrap_or_default() * MILLISECOND * 11 / 10
    }

    fn some_register(&mut self) -> u64 {
        self.favourite.unwrap_or_else(|| self.prng.below(REGISTER_COUNT))
    }

    fn command(&mut self, words: &[&[u8]], expected: Expected, out: &mut Vec<u8>) {
        encode(words, out);
        self.expected.push_back(expected);
    }

    fn draw_operation(&mut self, register: u64, history: &mut History) -> Operation {
        match self.prng.below(12) {
            0..=3 => Operation::Get { found: None },
            4..=6 => Operation::Set { to: history.unique_value() },
            7 => Operation::Swap { to: history.unique_value(), found: None },
            8 => Operation::SetIfAbsent { to: history.unique_value(), done: None },
            9 if register < WATCHED_FROM => Operation::Remove { found: None },
            _ => Operation::Add { by: 1, sum: None },
        }
    }

    fn register_operation(&mut self, now: u64, history: &mut History, out: &mut Vec<u8>) {
        let register = self.some_register();
        let operation = self.draw_operation(register, history);
        self.single(now, register, operation, history, out);
    }

    fn single(&mut self, now: u64, register: u64, operation: Operation, history: &mut History, out: &mut Vec<u8>) {
        let session = self.session();
        let handle = match operation {
            Operation::Get { .. } => history.begin_old((now, self.age()), session, register, operation),
            _ => history.begin(now, session, register, operation),
        };
        self.write_operation(register, operation, out);
        self.expected.push_back(Expected::Operation(handle));
    }

    /// Most operations are commands; some are scripts that call the command, of which some do not name their key.
    fn write_operation(&mut self, register: u64, operation: Operation, out: &mut Vec<u8>) {
        if !self.prng.chance(1, 6) {
            return write_operation(register, operation, out);
        }
        let mut command = Vec::new();
        write_operation(register, operation, &mut command);
        let words = words_of(&command);
        let words = words.iter().map(Vec::as_slice);
        let name = register_name(register);
        let head: &[&[u8]] = if self.spans && self.prng.chance(1, 4) {
            &[b"EVAL", b"return redis.call(unpack(ARGV))", b"0"]
        } else {
            &[b"EVAL", b"return redis.call(unpack(ARGV))", b"1", name.as_bytes()]
        };
        encode(&head.iter().copied().chain(words).collect::<Vec<_>>(), out);
    }

    /// Something done to one of a few sets, hashes, documents and sketches, small ones and some that outgrow their
    /// small form. What chance chooses, and the order of elements, must be the same on every replica.
    fn collection_operation(&mut self, out: &mut Vec<u8>) {
        if self.vectors && self.prng.chance(1, 4) {
            return self.vector_operation(out);
        }
        let number = self.prng.below(4);
        let (set, hash, document) = (format!("set:{number}"), format!("hash:{number}"), format!("json:{number}"));
        let spread = if number == 0 { 1_000 } else { 20 };
        let element = |prng: &mut Prng| {
            let number = prng.below(spread);
            if prng.chance(1, 4) { format!("name:{number}") } else { number.to_string() }
        };
        let (one, two) = (element(&mut self.prng), element(&mut self.prng));
        let number_word = self.prng.below(1_000).to_string();
        let (patch, below) = (format!("{{\"{one}\":{{\"{two}\":[1,2.5]}}}}"), format!("$..[\"{two}\"]"));
        let (filter, other) = (format!("filter:{number}"), format!("cuckoo:{number}"));
        let (list, digest) = (format!("top:{number}"), format!("digest:{number}"));
        let words = match self.prng.below(18) {
            10 => vec!["BF.ADD", &filter, &one],
            11 => vec!["CF.ADD", &other, &one],
            12 => vec!["CF.DEL", &other, &two],
            // Narrow, so that chance decides often.
            13 => vec!["TOPK.RESERVE", &list, "3", "2", "2", "0.9"],
            14 | 15 => vec!["TOPK.ADD", &list, &one, &two],
            16 => vec!["TDIGEST.CREATE", &digest],
            17 if self.spans => vec!["TDIGEST.MERGE", &digest, "2", "digest:0", "digest:1"],
            17 => vec!["TDIGEST.ADD", &digest, &number_word],
            0 | 1 => vec!["SADD", &set, &one, &two],
            2 => vec!["SPOP", &set],
            3 => vec!["SREM", &set, &one],
            4 | 5 => vec!["HSET", &hash, &one, &two, &two, &one],
            6 => vec!["HDEL", &hash, &one],
            7 => vec!["JSON.MERGE", &document, "$", &patch],
            8 => vec!["JSON.DEL", &document, &below],
            9 if self.spans => vec!["JSON.MSET", &document, "$", &patch, "json:0", "$", &patch],
            _ if self.spans => vec!["SUNIONSTORE", "set:0", &set, "set:1"],
            _ => vec!["HINCRBY", "counts", &one, "1"],
        };
        let words: Vec<&[u8]> = words.into_iter().map(str::as_bytes).collect();
        self.command(&words, Expected::Collection, out);
    }

    /// Something done to one of a few vector sets, with so few links and directions that they contend for them.
    fn vector_operation(&mut self, out: &mut Vec<u8>) {
        let number = self.prng.below(4);
        let key = format!("vectors:{number}");
        let form = ["BIN", "NOQUANT", "Q8", "Q8"][number as usize];
        let name = format!("e{}", self.prng.below(40));
        let [x, y, z] = [(); 3].map(|()| (self.prng.below(9) as i64 - 4).to_string());
        let attributes = format!("{{\"n\":{x}}}");
        let (key, name) = (key.as_str(), name.as_str());
        let vector = ["VALUES", "3", x.as_str(), y.as_str(), z.as_str()];
        let words: Vec<&str> = match self.prng.below(10) {
            0..=4 => [&["VADD", key][..], &vector[..], &[name, form, "M", "4", "EF", "10"][..]].concat(),
            5 => {
                [&["VADD", key][..], &vector[..], &[name, form, "M", "4", "SETATTR", attributes.as_str()][..]].concat()
            }
            6 => vec!["VREM", key, name],
            7 => vec!["VSETATTR", key, name, attributes.as_str()],
            8 if self.spans => vec!["COPY", "vectors:2", "vectors:3", "REPLACE"],
            _ => [&["VSIM", key][..], &vector[..], &["FILTER", ".n > 0"][..]].concat(),
        };
        let words: Vec<&[u8]> = words.into_iter().map(str::as_bytes).collect();
        self.command(&words, Expected::Collection, out);
    }

    /// MULTI over one or two registers, which may live in different groups.
    fn transaction(&mut self, now: u64, history: &mut History, out: &mut Vec<u8>) {
        self.command(&[b"MULTI"], Expected::Acknowledgement, out);
        let first = self.some_register();
        let mut registers = vec![first];
        if self.spans && self.prng.chance(2, 3) {
            registers.push((first + 1 + self.prng.below(REGISTER_COUNT - 1)) % REGISTER_COUNT);
        }
        let mut handles = Vec::new();
        for register in registers {
            let operation = self.draw_operation(register, history);
            handles.push(history.begin(now, self.session(), register, operation));
            // A script inside a transaction locks its keys, as one does that spans groups.
            if self.spans {
                self.write_operation(register, operation, out);
            } else {
                write_operation(register, operation, out);
            }
            self.expected.push_back(Expected::Queued);
        }
        self.command(&[b"EXEC"], Expected::Exec(handles), out);
    }

    /// Sets a register if it still holds what was found.
    /// From now on it is one of those who change the same register: by EXEC, or as they please.
    pub fn be_optimistic(&mut self, is_optimist: bool) {
        self.is_optimist = Some(is_optimist);
    }

    /// What such a one asks for, if it does so now.
    fn ask_optimistically(&mut self, now: u64, history: &mut History, out: &mut Vec<u8>) -> bool {
        match self.is_optimist {
            Some(true) if self.prng.chance(2, 3) => self.watch(now, WATCHED_FROM, out),
            Some(false) if self.prng.chance(1, 3) => {
                let operation = self.draw_operation(WATCHED_FROM, history);
                self.single(now, WATCHED_FROM, operation, history, out);
            }
            _ => return false,
        }
        true
    }

    /// Watches a register and reads it, to change it then.
    fn watch(&mut self, now: u64, register: u64, out: &mut Vec<u8>) {
        (self.is_watching, self.watched_at) = (true, now);
        let name = register_name(register);
        self.command(&[b"WATCH", name.as_bytes()], Expected::Watch, out);
        self.command(&[b"GET", name.as_bytes()], Expected::Watched { register }, out);
    }

    fn exchange(&mut self, now: u64, register: u64, found: Value, history: &mut History, out: &mut Vec<u8>) {
        let to = history.unique_value();
        let handle = history.begin(now, self.session(), register, Operation::Swap { to, found: Some(found) });
        self.command(&[b"MULTI"], Expected::Acknowledgement, out);
        let (name, value) = (register_name(register), to.to_string());
        self.command(&[b"SET", name.as_bytes(), value.as_bytes()], Expected::Queued, out);
        self.command(&[b"EXEC"], Expected::Exchange(handle), out);
    }

    fn transfer(&mut self, now: u64, out: &mut Vec<u8>) {
        let from = self.prng.below(ACCOUNT_COUNT);
        let to = (from + 1 + self.prng.below(ACCOUNT_COUNT - 1)) % ACCOUNT_COUNT;
        let amount = (1 + self.prng.below(50)).to_string();
        if self.prng.chance(1, 3) {
            let (from, to) = (account_name(from), account_name(to));
            let words: [&[u8]; 6] = [b"EVAL", TRANSFER_SCRIPT, b"2", from.as_bytes(), to.as_bytes(), amount.as_bytes()];
            return self.command(&words, Expected::Transfer { called: now }, out);
        }
        self.command(&[b"MULTI"], Expected::Acknowledgement, out);
        self.command(&[b"DECRBY", account_name(from).as_bytes(), amount.as_bytes()], Expected::Queued, out);
        self.command(&[b"INCRBY", account_name(to).as_bytes(), amount.as_bytes()], Expected::Queued, out);
        self.command(&[b"EXEC"], Expected::Transfer { called: now }, out);
    }

    fn audit(&mut self, now: u64, out: &mut Vec<u8>) {
        let names: Vec<String> = (0..ACCOUNT_COUNT).map(account_name).collect();
        if self.prng.chance(1, 4) {
            let count = names.len().to_string();
            let head: [&[u8]; 3] = [b"EVAL_RO", b"return redis.call('MGET', unpack(KEYS))", count.as_bytes()];
            let words: Vec<_> = head.into_iter().chain(names.iter().map(|name| name.as_bytes())).collect();
            return self.command(&words, Expected::Audit { called: now }, out);
        }
        if self.prng.chance(1, 2) {
            let words: Vec<&[u8]> =
                std::iter::once(&b"MGET"[..]).chain(names.iter().map(|name| name.as_bytes())).collect();
            self.command(&words, Expected::Audit { called: now }, out);
        } else {
            self.command(&[b"MULTI"], Expected::Acknowledgement, out);
            for name in &names {
                self.command(&[b"GET", name.as_bytes()], Expected::Queued, out);
            }
            self.command(&[b"EXEC"], Expected::Audit { called: now }, out);
        }
    }

    /// The server spoke.
    pub fn hear(&mut self, now: u64, bytes: &[u8], history: &mut History) -> Heard {
        self.input.extend_from_slice(bytes);
        loop {
            match parse(&self.input) {
                Err(reason) => return Heard::Absurd(format!("not a reply: {reason}")),
                Ok(None) => break,
                Ok(Some((reply, length))) => {
                    self.input.drain(..length);
                    let Some(expected) = self.expected.pop_front() else {
                        return Heard::Absurd(format!("a reply nobody asked for: {reply:?}"));
                    };
                    if let Err(reason) = self.understand(now, expected, reply, history) {
                        return Heard::Absurd(reason);
                    }
                }
            }
        }
        if self.expected.is_empty() && self.follow_up.is_none() { Heard::Idle } else { Heard::Fine }
    }

    /// True if the next step of a request can be sent.
    pub fn has_follow_up(&self) -> bool {
        self.follow_up.is_some() && self.expected.is_empty()
    }

    fn refused(&mut self, expected: &Expected, text: &str, history: &mut History) -> Result<(), String> {
        let outcome = judge_error(text)?;
        // Whether there is such a sketch, and whether the level is high enough, is the client's own affair.
        let is_of_data =
            ["key already exists", "key does not exist", "Not found"].iter().any(|end| text.ends_with(end))
                || OF_STREAMS.iter().any(|word| text.contains(word));
        if !is_of_data && !text.contains(NEEDS_LEVEL) {
            history.note_error(text);
        }
        match expected {
            Expected::Operation(handle) | Expected::Exchange(handle) => refuse(*handle, outcome, history),
            Expected::Exec(handles) => handles.iter().for_each(|handle| refuse(*handle, outcome, history)),
            Expected::Watch => {
                self.is_watching = false;
                history.refused_count += 1;
            }
            Expected::Lists(awaited) => awaited.refused(outcome, history),
            Expected::Watched { .. } | Expected::WatchedList { .. } => {
                self.is_watching = false;
                self.follow_up = self.expected.is_empty().then_some(FollowUp::Unwatch);
                history.refused_count += 1;
            }
            Expected::BackupBegun | Expected::BackupChunk => unreachable!("looked at before"),
            Expected::Acknowledgement
            | Expected::MayBeOld
            | Expected::Queued
            | Expected::Transfer { .. }
            | Expected::Collection
            | Expected::Counted
            | Expected::Stream(_)
            | Expected::LastList { .. }
            | Expected::Unwatched
            | Expected::Audit { .. } => history.refused_count += 1,
        }
        Ok(())
    }

    fn understand(&mut self, now: u64, expected: Expected, reply: Reply, history: &mut History) -> Result<(), String> {
        let absurd = |reply: &Reply| Err(format!("to {expected:?} the server said {reply:?}"));
        if let Expected::BackupBegun | Expected::BackupChunk = expected {
            return self.copied(&reply, history);
        }
        if let Reply::Error(text) = &reply {
            if matches!(expected, Expected::MayBeOld) && text.ends_with("cluster support disabled") {
                // A node that has just begun does not know yet that it is in a cluster.
                self.has_said_so = false;
                return Ok(());
            }
            return self.refused(&expected, text, history);
        }
        history.answered_count += 1;
        match &expected {
            Expected::Acknowledgement | Expected::MayBeOld | Expected::Watch | Expected::Unwatched
                if reply == Reply::Simple("OK".into()) =>
            {
                Ok(())
            }
            Expected::Counted => self.counted(&reply),
            Expected::Queued if reply == Reply::Simple("QUEUED".into()) => Ok(()),
            Expected::Operation(handle) => {
                self.last_reads.as_mut().map(VecDeque::pop_front);
                answer(*handle, now, &reply, history)
            }
            Expected::Exec(handles) => match reply {
                Reply::Array(Some(replies)) if replies.len() == handles.len() => {
                    history.transfer_count += u64::from(handles.len() > 1);
                    handles.iter().zip(&replies).try_for_each(|(handle, reply)| match reply {
                        // What a script of the transaction calls is refused by itself.
                        Reply::Error(text) if text.starts_with("MISCONF ") => {
                            refuse(*handle, Outcome::Nothing, history);
                            Ok(())
                        }
                        reply => answer(*handle, now, reply, history),
                    })
                }
                reply => absurd(&reply),
            },
            Expected::Transfer { called } => match &reply {
                Reply::Array(Some(replies)) if matches!(replies[..], [Reply::Integer(_), Reply::Integer(_)]) => {
                    history.transfer_count += 1;
                    history.transfers_ns.push(now - called);
                    Ok(())
                }
                reply => absurd(reply),
            },
            Expected::Audit { called } => match &reply {
                Reply::Array(Some(replies)) if replies.len() == ACCOUNT_COUNT as usize => {
                    let mut sum = 0;
                    for balance in replies {
                        sum += value(balance)?.ok_or("an account is gone")?;
                    }
                    history.audits.push((*called, sum));
                    self.last_reads.as_mut().map(VecDeque::pop_front);
                    Ok(())
                }
                reply => absurd(reply),
            },
            Expected::Watched { register } => {
                let found = value(&reply)?;
                self.follow_up = self.is_watching.then_some(FollowUp::Exchange { register: *register, found });
                Ok(())
            }
            Expected::Exchange(handle) => match &reply {
                // Somebody was faster: nothing happened.
                Reply::Array(None) => {
                    let operation = history.registers[handle.register as usize][handle.place].operation;
                    if let Operation::Swap { found: Some(found), .. } = operation {
                        history.broken_watches.push(BrokenWatch {
                            watched: self.watched_at,
                            answered: now,
                            registers: vec![(handle.register, found)],
                            lists: Vec::new(),
                        });
                    }
                    withdraw(*handle, history);
                    Ok(())
                }
                Reply::Array(Some(replies)) if replies[..] == [Reply::Simple("OK".into())] => {
                    history.registers[handle.register as usize][handle.place].answered = Some(now);
                    Ok(())
                }
                reply => absurd(reply),
            },
            Expected::Collection => match reply {
                Reply::Integer(_) | Reply::Bulk(_) | Reply::Array(_) => Ok(()),
                Reply::Simple(text) if text == "OK" => Ok(()),
                reply => absurd(&reply),
            },
            Expected::Lists(awaited) => awaited.answered(now, &reply, history),
            Expected::Stream(awaited) => {
                if self.stream_answered(now, awaited, &reply, history)? {
                    self.last_reads.as_mut().map(VecDeque::pop_front);
                }
                Ok(())
            }
            Expected::WatchedList { list } => self.watched_list(*list, &reply),
            Expected::LastList { list } => {
                let found = elements(&reply)?;
                history.lists.last_mut().expect("one is being read").insert(*list, found);
                self.last_reads.as_mut().map(VecDeque::pop_front);
                Ok(())
            }
            Expected::BackupBegun | Expected::BackupChunk => unreachable!("looked at before"),
            Expected::Acknowledgement
            | Expected::MayBeOld
            | Expected::Watch
            | Expected::Unwatched
            | Expected::Queued => absurd(&reply),
        }
    }
}

/// Moves money, and shows for a moment a sum that nobody may see.
const TRANSFER_SCRIPT: &[u8] = b"local less = redis.call('DECRBY', KEYS[1], ARGV[1]) return {less, \
                                 redis.call('INCRBY', KEYS[2], ARGV[1])}";

/// The words of a request that `encode` has written.
fn words_of(request: &[u8]) -> Vec<Vec<u8>> {
    match parse(request) {
        Ok(Some((Reply::Array(Some(words)), _))) => words
            .into_iter()
            .map(|word| match word {
                Reply::Bulk(Some(bytes)) => bytes,
                other => unreachable!("a word is a bulk string, not {other:?}"),
            })
            .collect(),
        other => unreachable!("a request is an array, not {other:?}"),
    }
}

/// What an error says of the request it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It had no effect and never will.
    Nothing,
    /// Nobody knows.
    Unknown,
}

/// A stream or its group has not been made yet, or has been.
const OF_STREAMS: [&str; 2] = ["NOGROUP ", "BUSYGROUP "];

/// What is said of a command that came with a level which is not reached yet.
const NEEDS_LEVEL: &str = " in this form needs level ";

fn judge_error(text: &str) -> Result<Outcome, String> {
    const HONEST: &[&str] = &["TRYAGAIN ", "CLUSTERDOWN ", "LOADING ", "MISCONF ", "EXECABORT ", "NOSPACE "];
    // Whether a sketch has been made, or an item is in it, is left to chance.
    const OF_SKETCHES: &[&str] = &["TopK: key ", "ERR T-Digest: key ", "Not found", "Maximum expansions"];
    if text.contains("unknown") {
        Ok(Outcome::Unknown)
    } else if text.contains(NEEDS_LEVEL)
        || OF_STREAMS.iter().any(|word| text.contains(word))
        || HONEST.iter().chain(OF_SKETCHES).any(|word| text.starts_with(word))
    {
        Ok(Outcome::Nothing)
    } else {
        Err(format!("an error that no client of ours deserves: {text}"))
    }
}

fn refuse(handle: Handle, outcome: Outcome, history: &mut History) {
    match outcome {
        Outcome::Nothing => {
            history.refused_count += 1;
            withdraw(handle, history);
        }
        Outcome::Unknown => history.unknown_count += 1,
    }
}

/// The operation did not happen. A GET without an answer says just that to the checker.
fn withdraw(handle: Handle, history: &mut History) {
    let record = &mut history.registers[handle.register as usize][handle.place];
    record.operation = Operation::Get { found: None };
    record.answered = None;
}

fn value(reply: &Reply) -> Result<Value, String> {
    match reply {
        Reply::Bulk(None) => Ok(None),
        Reply::Bulk(Some(bytes)) => {
            let text = std::str::from_utf8(bytes).ok();
            let number = text.and_then(|text| text.parse().ok());
            number.map(Some).ok_or_else(|| format!("a value that nobody wrote: {}", String::from_utf8_lossy(bytes)))
        }
        other => Err(format!("no value: {other:?}")),
    }
}

fn answer(handle: Handle, now: u64, reply: &Reply, history: &mut History) -> Result<(), String> {
    let record = &mut history.registers[handle.register as usize][handle.place];
    let asked = record.operation;
    let absurd = || Err(format!("to {asked:?} the server said {reply:?}"));
    match &mut record.operation {
        Operation::Get { found } => *found = value(reply)?,
        Operation::Swap { found, .. } => *found = Some(value(reply)?),
        Operation::Set { .. } if *reply == Reply::Simple("OK".into()) => {}
        Operation::SetIfAbsent { done, .. } => match reply {
            Reply::Simple(text) if text == "OK" => *done = Some(true),
            Reply::Bulk(None) => *done = Some(false),
            _ => return absurd(),
        },
        Operation::Add { sum, .. } => match reply {
            Reply::Integer(number) => *sum = Some(*number),
            _ => return absurd(),
        },
        Operation::Remove { found } => match reply {
            Reply::Integer(count @ (0 | 1)) => *found = Some(*count == 1),
            _ => return absurd(),
        },
        Operation::Set { .. } => return absurd(),
    }
    record.answered = Some(now);
    Ok(())
}

fn write_operation(register: u64, operation: Operation, out: &mut Vec<u8>) {
    let name = register_name(register);
    let name = name.as_bytes();
    match operation {
        Operation::Get { .. } => encode(&[b"GET", name], out),
        Operation::Set { to } => encode(&[b"SET", name, to.to_string().as_bytes()], out),
        Operation::Swap { to, .. } => encode(&[b"SET", name, to.to_string().as_bytes(), b"GET"], out),
        Operation::SetIfAbsent { to, .. } => encode(&[b"SET", name, to.to_string().as_bytes(), b"NX"], out),
        Operation::Add { by, .. } => encode(&[b"INCRBY", name, by.to_string().as_bytes()], out),
        Operation::Remove { .. } => encode(&[b"DEL", name], out),
    }
}
