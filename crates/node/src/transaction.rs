//! Transactions over several groups, as their gateway drives them.
//!
//! 1. *Lock.* The gateway locks the keys group by group, in the order of group numbers, so that two transactions never
//!    wait for each other in a circle. A group grants when the keys are free, in order of arrival, checks the watches,
//!    and answers with the keys' values. Nothing is logged.
//! 2. *Compute.* The commands run at the gateway on a scratch keyspace that holds just these keys.
//! 3. *Prepare.* What has changed is sent to the groups it belongs to, all at once. If that is one group, its one entry
//!    is the transaction. Otherwise each logs it as prepared, naming all participants. When all have answered, the
//!    transaction *is* committed: every participant can find that out again from the others. The client gets its reply.
//! 4. *Resolve.* The groups make the changes and let go of the locks.
//!
//! A group that finds a prepared transaction without a gateway (after a restart or a change of leader) asks the other
//! participants. If all hold it prepared, or one has committed, it commits; if one has never heard of it, that one logs
//! that it never will, and all abort. After Gray and Lamport, "Consensus on transaction commit" (2006), with the
//! participants' own logs in place of the coordinator's.

use std::collections::{BTreeMap, BTreeSet};

use keyspace::{Classes, Keyspace, Layout, Limits, Moment, Notice};
use resp::{Args, Protocol, Span, Writer};
use stdx::Instant;
use stdx::leb128;

use crate::entry::{self, Effect, Watch};
use crate::event::{CoreId, GroupId, SessionId};
use crate::group::run_one;
use crate::letter::{Lock, Locked, RequestBody, Resolution};
use crate::limits;

/// One life of one core as a driver of transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GatewayId {
    /// Its node.
    pub node: u64,
    /// Which life of the node: drawn at its start.
    pub boot: u64,
    /// Its core.
    pub core: CoreId,
}

/// A transaction, unique for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId {
    /// Who drives it.
    pub gateway: GatewayId,
    /// Its number there, growing.
    pub number: u64,
}

impl GatewayId {
    /// Appends it to an entry.
    pub fn put(&self, out: &mut Vec<u8>) {
        leb128::put(out, self.node);
        leb128::put(out, self.boot);
        leb128::put(out, u64::from(self.core.0));
    }

    /// Reads it back.
    pub fn read(reader: &mut entry::Reader<'_>) -> Self {
        Self { node: reader.number(), boot: reader.number(), core: CoreId(reader.number() as u16) }
    }
}

impl TransactionId {
    /// Appends it to an entry.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.gateway.put(out);
        leb128::put(out, self.number);
    }

    /// Reads it back.
    pub fn read(reader: &mut entry::Reader<'_>) -> Self {
        Self { gateway: GatewayId::read(reader), number: reader.number() }
    }
}

/// What a driver asks of a group on behalf of a transaction.
pub type Post = (GroupId, TransactionId, RequestBody);

/// What a client asked for, ready to be driven.
#[derive(Clone, Debug)]
pub struct Work {
    /// Whose reply it is.
    pub session: SessionId,
    /// Which reply.
    pub ticket: u64,
    /// Its form.
    pub protocol: Protocol,
    /// The commands, each laid out by `entry::put_words`.
    pub commands: Vec<Vec<u8>>,
    /// True for EXEC: the reply is an array of the commands' replies.
    pub is_exec: bool,
    /// True if the session keeps what it reads, and wants to know when that changes.
    pub tracks: bool,
    /// What must not have changed.
    pub watches: Vec<Watch>,
    /// Keys to lock by group, with the databases they are looked for in.
    pub keys: BTreeMap<GroupId, Vec<(u16, Vec<u8>)>>,
    /// True to lock every key of every group.
    pub whole: bool,
    /// Queries over a whole database among the commands, by place, as the groups are to answer them; see
    /// `whole::queries`.
    pub queries: Vec<(usize, Vec<u8>)>,
    /// When the client asked.
    pub begun: Instant,
    /// The name of a backup to be cut instead of carrying out commands.
    pub cut: Option<u128>,
}

impl Work {
    /// Nothing yet, for this reply.
    pub fn new(session: SessionId, ticket: u64, protocol: Protocol, begun: Instant) -> Self {
        Self {
            session,
            ticket,
            protocol,
            commands: Vec::new(),
            is_exec: false,
            tracks: false,
            watches: Vec::new(),
            keys: BTreeMap::new(),
            whole: false,
            queries: Vec::new(),
            begun,
            cut: None,
        }
    }
}

/// A transaction on its way.
#[derive(Debug)]
pub struct Transaction {
    id: TransactionId,
    work: Work,
    moment: Moment,
    groups: Vec<GroupId>,
    values: BTreeMap<GroupId, Vec<Option<Vec<u8>>>>,
    answers: BTreeMap<GroupId, Vec<(u64, Vec<u8>)>>,
    stage: Stage,
    reply: Vec<u8>,
    /// What its commands did to keys, to be told when it has committed.
    notices: Vec<Notice>,
    /// Keys that its session will keep.
    reads: Vec<Vec<u8>>,
    /// The client has its reply, or another transaction sees to it.
    is_answered: bool,
}

#[derive(Debug)]
enum Stage {
    /// `groups[..next]` have been asked, all but the last have granted.
    Locking { next: usize },
    /// These have not yet answered.
    Preparing { waiting: Vec<GroupId>, changed: Vec<GroupId>, is_refused: bool },
    /// These have not yet answered.
    Resolving { waiting: Vec<GroupId> },
}

/// What a step of a transaction came to.
pub enum Progress {
    /// It goes on.
    Going,
    /// The client's reply is certain.
    Answered {
        /// Whose.
        session: SessionId,
        /// Which.
        ticket: u64,
        /// The reply, in the session's protocol.
        bytes: Vec<u8>,
        /// What has happened to keys.
        notices: Vec<Notice>,
    },
    /// It had no effect, because a group lost its locks with its leader: the same has to be done as another.
    Again(Box<Work>),
    /// All groups have resolved it: it can be forgotten.
    Over,
}

/// All transactions that a core drives.
#[derive(Debug)]
pub struct Driver {
    gateway: GatewayId,
    next_number: u64,
    running: BTreeMap<u64, Transaction>,
    databases: u16,
    /// What is to be noted of what happens to keys.
    pub(crate) noted: Classes,
    /// Keys that transactions have read for sessions that keep them.
    pub(crate) reads: Vec<(SessionId, Vec<Vec<u8>>)>,
    /// When collections change their form, in what it computes.
    pub(crate) limits: Limits,
}

impl Driver {
    /// A driver for one life of a core.
    pub fn new(gateway: GatewayId, databases: u16) -> Self {
        Self {
            gateway,
            next_number: 1,
            running: BTreeMap::new(),
            databases,
            noted: Classes::NONE,
            reads: Vec::new(),
            limits: Limits::default(),
        }
    }

    /// Transactions on their way.
    pub fn len(&self) -> usize {
        self.running.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Below this number every transaction has been resolved by all its groups.
    fn low_water(&self) -> u64 {
        self.running.first_key_value().map_or(self.next_number, |(number, _)| *number)
    }

    /// Begins a transaction.
    pub fn begin(&mut self, mut work: Work, group_count: u32, moment: Moment, post: &mut Vec<Post>) {
        let id = TransactionId { gateway: self.gateway, number: self.next_number };
        self.next_number += 1;
        let groups: Vec<_> =
            if work.whole { (0..group_count).map(GroupId).collect() } else { work.keys.keys().copied().collect() };
        for keys in work.keys.values_mut() {
            keys.sort();
            keys.dedup();
        }
        let mut transaction = Transaction {
            id,
            work,
            moment,
            groups,
            values: BTreeMap::new(),
            answers: BTreeMap::new(),
            stage: Stage::Locking { next: 0 },
            reply: Vec::new(),
            notices: Vec::new(),
            reads: Vec::new(),
            is_answered: false,
        };
        transaction.lock_next(group_count, post);
        self.running.insert(id.number, transaction);
    }

    fn find(&mut self, id: TransactionId) -> Option<&mut Transaction> {
        if id.gateway != self.gateway {
            return None;
        }
        self.running.get_mut(&id.number)
    }

    /// A group has answered a lock.
    pub fn locked(
        &mut self,
        id: TransactionId,
        group: GroupId,
        outcome: Locked,
        group_count: u32,
        post: &mut Vec<Post>,
    ) -> Progress {
        let low_water = self.low_water();
        let (databases, noted, limits) = (self.databases, self.noted, self.limits);
        let Some(transaction) = self.find(id) else { return Progress::Going };
        let mut writer = Writer::new(transaction.work.protocol);
        let values = match outcome {
            Locked::Granted { values, answers } => Some((values, answers)),
            Locked::Changed => {
                writer.null_array();
                None
            }
            Locked::Refused(text) => {
                writer.error(&text);
                None
            }
        };
        let Some((values, answers)) = values else {
            transaction.reply = writer.into_bytes();
            transaction.resolve_all(Resolution::Release, &[], low_water, post);
            return transaction.answered();
        };
        transaction.values.insert(group, values);
        transaction.answers.insert(group, answers);
        if transaction.values.len() < transaction.groups.len() {
            transaction.lock_next(group_count, post);
            return Progress::Going;
        }
        if let Some(name) = transaction.work.cut {
            transaction.cut(name, databases, post);
            return Progress::Going;
        }
        let progress = transaction.compute(databases, noted, limits, group_count, low_water, post);
        let keys = std::mem::take(&mut transaction.reads);
        if !keys.is_empty() {
            let session = transaction.work.session;
            self.reads.push((session, keys));
        }
        progress
    }

    /// A group has logged its part, or refused it.
    pub fn prepared(&mut self, id: TransactionId, group: GroupId, accepted: bool, post: &mut Vec<Post>) -> Progress {
        let low_water = self.low_water();
        let Some(transaction) = self.find(id) else { return Progress::Going };
        let Stage::Preparing { waiting, changed, is_refused } = &mut transaction.stage else {
            return Progress::Going;
        };
        waiting.retain(|other| *other != group);
        *is_refused |= !accepted;
        if !waiting.is_empty() {
            return Progress::Going;
        }
        let changed = std::mem::take(changed);
        if *is_refused {
            transaction.resolve_all(Resolution::Abort, &changed, low_water, post);
            if transaction.is_answered {
                return Progress::Going;
            }
            transaction.is_answered = true;
            return Progress::Again(Box::new(transaction.work.clone()));
        } else if changed.len() == 1 {
            // One entry was the whole transaction: there is nothing to commit, only locks to let go.
            transaction.resolve_all(Resolution::Release, &[], low_water, post);
        } else {
            transaction.resolve_all(Resolution::Commit, &changed, low_water, post);
        }
        transaction.answered()
    }

    /// Answers clients whose transactions have been writing for so long that nobody can tell them the outcome. They go
    /// on all the same.
    pub fn give_up(&mut self, now: Instant, text: &str) -> Vec<Progress> {
        let mut given_up = Vec::new();
        for transaction in self.running.values_mut() {
            let is_writing = matches!(transaction.stage, Stage::Preparing { .. });
            if is_writing && !transaction.is_answered && now.since(transaction.work.begun) >= limits::REQUEST_PATIENCE {
                let mut writer = Writer::new(transaction.work.protocol);
                writer.error(text);
                transaction.is_answered = true;
                given_up.push(Progress::Answered {
                    session: transaction.work.session,
                    ticket: transaction.work.ticket,
                    bytes: writer.into_bytes(),
                    notices: Vec::new(),
                });
            }
        }
        given_up
    }

    /// A group has resolved its part.
    pub fn resolved(&mut self, id: TransactionId, group: GroupId) -> Progress {
        let Some(transaction) = self.find(id) else { return Progress::Going };
        if let Stage::Resolving { waiting } = &mut transaction.stage {
            waiting.retain(|other| *other != group);
            if waiting.is_empty() {
                self.running.remove(&id.number);
                return Progress::Over;
            }
        }
        Progress::Going
    }
}

impl Transaction {
    fn lock_next(&mut self, group_count: u32, post: &mut Vec<Post>) {
        let Stage::Locking { next } = &mut self.stage else { unreachable!("locks are taken before anything else") };
        let group = self.groups[*next];
        *next += 1;
        let watches = self
            .work
            .watches
            .iter()
            .filter(|watch| crate::router::group_of(&watch.key, group_count) == group)
            .cloned()
            .collect();
        let lock = Lock {
            transaction: self.id,
            group,
            keys: self.work.keys.get(&group).cloned().unwrap_or_default(),
            whole: self.work.whole,
            watches,
            queries: self.work.queries.iter().map(|(_, words)| words.clone()).collect(),
            moment: self.moment,
            cut: self.work.cut,
        };
        post.push((group, self.id, RequestBody::Lock(Box::new(lock))));
    }

    /// All groups are locked: each begins its part of the backup.
    fn cut(&mut self, name: u128, databases: u16, post: &mut Vec<Post>) {
        let mut writer = Writer::new(self.work.protocol);
        writer.array(3);
        writer.integer(self.groups.len() as i64);
        writer.integer(i64::from(databases));
        writer.integer(self.moment.unix.0);
        self.reply = writer.into_bytes();
        for group in &self.groups {
            post.push((*group, self.id, RequestBody::Cut { transaction: self.id, name }));
        }
        self.stage = Stage::Preparing { waiting: self.groups.clone(), changed: Vec::new(), is_refused: false };
    }

    /// Runs the commands on a scratch keyspace and sends what they changed to its groups.
    fn compute(
        &mut self,
        databases: u16,
        noted: Classes,
        limits: Limits,
        group_count: u32,
        low_water: u64,
        post: &mut Vec<Post>,
    ) -> Progress {
        let mut scratch = Keyspace::new(keyspace::Options {
            databases,
            hash_seed: 0,
            layout: Layout::Scratch,
            tuning: keyspace::Tuning::default(),
        });
        for (group, values) in &self.values {
            let Some(keys) = self.work.keys.get(group) else { continue };
            for ((database, key), value) in keys.iter().zip(values) {
                scratch.import(*database, key, value.as_deref(), self.moment).expect("a sibling core exported it");
            }
        }
        scratch.listen(noted);
        scratch.set_limits(limits);
        let before = scratch.sequence();
        let mut writer = Writer::new(self.work.protocol);
        if self.work.is_exec {
            writer.array(self.work.commands.len());
        }
        let mut spans: Vec<Span> = Vec::new();
        let mut database_effects = Vec::new();
        for (place, words) in self.work.commands.iter().enumerate() {
            let (database, args) = entry::Reader::new(words).words(&mut spans);
            let start = writer.len();
            match self.work.queries.iter().position(|(other, _)| *other == place) {
                Some(query) => self.answer_whole(&scratch, database, args, query, group_count, &mut writer),
                None if crate::whole::is_scan(args) => {
                    crate::whole::scan_emptied(&scratch, database, args, self.moment, &mut writer);
                }
                None => run_one(&mut scratch, database, args, self.moment, &mut writer),
            }
            // What is refused changes nothing.
            if writer.bytes()[start] != b'-'
                && let Some(effects) = database_effects_of(database, args, databases)
            {
                database_effects.extend(effects);
            }
        }
        self.reply = writer.into_bytes();
        self.notices = scratch.take_notices();
        if self.work.tracks {
            self.reads = self.keys_read();
        }
        let effects = self.effects(&scratch, before, group_count, &database_effects);
        if effects.values().any(|effects| entry::effects_bytes(effects) > limits::EFFECTS_BYTES_MAX) {
            let mut writer = Writer::new(self.work.protocol);
            writer.error("ERR The values that the transaction changes are too large to be changed together");
            self.reply = writer.into_bytes();
            self.notices.clear();
            self.resolve_all(Resolution::Release, &[], low_water, post);
            return self.answered();
        }
        if effects.is_empty() {
            self.resolve_all(Resolution::Release, &[], low_water, post);
            return self.answered();
        }
        let changed: Vec<_> = effects.keys().copied().collect();
        let participants: Vec<_> = changed.iter().map(|group| group.0).collect();
        for (group, effects) in effects {
            let transaction = self.id;
            let participants = participants.clone();
            post.push((group, transaction, RequestBody::Prepare { transaction, participants, effects }));
        }
        self.stage = Stage::Preparing { waiting: changed.clone(), changed, is_refused: false };
        Progress::Going
    }

    fn keys_read(&self) -> Vec<Vec<u8>> {
        let mut keys = Vec::new();
        let mut spans: Vec<Span> = Vec::new();
        for words in &self.work.commands {
            let (_, args) = entry::Reader::new(words).words(&mut spans);
            let command = keyspace::resolve(args).expect("checked when it was queued");
            if command.has(command::Flag::Readonly) {
                command.for_each_key(args, |index, _| keys.push(args.at(index).to_vec()));
            }
        }
        keys
    }

    /// A query over a whole database: what the groups say of the keys that the transaction does not name, and what the
    /// scratch keyspace says of those that it does.
    fn answer_whole(
        &self,
        scratch: &Keyspace,
        database: u16,
        args: Args<'_>,
        query: usize,
        group_count: u32,
        writer: &mut Writer,
    ) {
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
        let question = crate::whole::Question {
            scratch,
            database,
            moment: self.moment,
            args,
            named,
            replies: replies.collect(),
            words,
            group_count,
        };
        question.answer(writer);
    }

    /// What has changed, by group: first the databases as a whole, then every key whose value differs.
    fn effects(
        &self,
        scratch: &Keyspace,
        before: u64,
        group_count: u32,
        database_effects: &[Effect],
    ) -> BTreeMap<GroupId, Vec<Effect>> {
        let mut effects: BTreeMap<GroupId, Vec<Effect>> = BTreeMap::new();
        if !database_effects.is_empty() {
            for group in 0..group_count {
                effects.insert(GroupId(group), database_effects.to_vec());
            }
        }
        for (group, keys) in &self.work.keys {
            for ((database, key), value) in keys.iter().zip(&self.values[group]) {
                let version = scratch.version(*database, key, self.moment);
                let changed = if version == 0 { value.is_some() } else { version > before };
                if changed || !database_effects.is_empty() {
                    let exported = scratch.export(*database, key, self.moment);
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

    /// Ends the transaction in all its groups: `resolution` where something was prepared, release elsewhere.
    fn resolve_all(&mut self, resolution: Resolution, prepared: &[GroupId], low_water: u64, post: &mut Vec<Post>) {
        let asked = match self.stage {
            Stage::Locking { next } => next,
            Stage::Preparing { .. } | Stage::Resolving { .. } => self.groups.len(),
        };
        let waiting = self.groups[..asked].to_vec();
        for group in &waiting {
            let resolution = if prepared.contains(group) { resolution } else { Resolution::Release };
            let transaction = self.id;
            post.push((*group, transaction, RequestBody::Resolve { transaction, resolution, low_water }));
        }
        self.stage = Stage::Resolving { waiting };
    }

    fn answered(&mut self) -> Progress {
        if std::mem::replace(&mut self.is_answered, true) {
            return Progress::Going;
        }
        Progress::Answered {
            session: self.work.session,
            ticket: self.work.ticket,
            bytes: std::mem::take(&mut self.reply),
            notices: std::mem::take(&mut self.notices),
        }
    }
}

/// What FLUSHDB, FLUSHALL and SWAPDB do to databases as a whole.
pub(crate) fn database_effects_of(database: u16, args: Args<'_>, databases: u16) -> Option<Vec<Effect>> {
    match keyspace::resolve(args)?.name {
        "flushdb" => Some(vec![Effect::Flush { database }]),
        "flushall" => Some((0..databases).map(|database| Effect::Flush { database }).collect()),
        "swapdb" => {
            let number = |index| std::str::from_utf8(args.get(index)?).ok()?.parse::<u16>().ok();
            let (first, second) = (number(1)?, number(2)?);
            (first < databases && second < databases).then(|| vec![Effect::Swap { first, second }])
        }
        _ => None,
    }
}
