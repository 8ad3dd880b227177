//! Transactions over several groups, as their gateway drives them.
//!
//! 1. *Lock.* The gateway locks the keys group by group, in the order of group numbers, so that two transactions never
//!    wait for each other in a circle. A group tokens when the keys are free, in order of arrival, checks the watches,
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

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use command::Refusal;
use group::defect::Defect;
use group::ids::{GroupId, SessionId};
use group::invocation::Invocation;
use group::limits::Slicing;
use group::locks::FencingToken;
use group::proof::{Observed, Proof};
use group::refusals::{NO_REPLICAS, READ_ONLY};
use group::requests::PrepareAnswer;
use group::requests::{Lock, Locked, Origin, RequestBody, Resolution};
use keyspace::{Classes, Limits, Lookups, Moment, Notice, Tuning};
use message::{GatewayId, TransactionId};
use resp::{Args, Protocol, Span, Writer};
use stdx::{Instant, Level};

use crate::entry::{self, Answered, Durability, Effect, Watch};
use crate::limits;
use crate::request_ids::{self, Named};
use crate::scripts::on_copies::{Computation, Computed, Outcome, Wants};
use crate::scripts::{Asides, Circumstances};
use crate::slots::SlotMap;

/// What a coordinator asks of a group on behalf of a transaction.
pub type Post = (GroupId, TransactionId, RequestBody);

/// What a client asked for, ready to be driven.
#[derive(Debug)]
pub struct Work {
    /// Where the reply goes.
    pub origin: Origin,
    /// Its form.
    pub protocol: Protocol,
    /// The commands, each laid out by `entry::put_words`.
    pub commands: Vec<Vec<u8>>,
    /// The scripts among them, by place; or why one cannot be run.
    pub(crate) invocations: BTreeMap<usize, Result<Invocation, Refusal>>,
    /// What holds for the scripts.
    pub(crate) circumstances: Circumstances,
    /// The group of this core that keeps the client's later requests out meanwhile.
    pub home: Option<GroupId>,
    /// How often it has begun, since a script or a SORT wanted more keys.
    pub attempts: u32,
    /// True for EXEC: the reply is an array of the commands' replies.
    pub is_exec: bool,
    /// What must not have changed.
    pub watches: Vec<Watch>,
    /// Keys to lock by group, with the databases they are looked for in.
    pub keys: BTreeMap<GroupId, Vec<(u16, Vec<u8>)>>,
    /// True to lock every key of every group.
    pub whole: bool,
    /// True if databases may change places: then each key is looked for in all of them.
    pub swaps: bool,
    /// Queries over a whole database among the commands, by place, in the form in which the groups answer them; see
    /// `keyspace_queries::queries`. Those without a place are a script's.
    pub queries: Vec<(Option<usize>, Vec<u8>)>,
    /// When the client asked, or when a script that takes long had come to its end.
    pub begun: Instant,
    /// The name of a backup to be cut instead of carrying out commands.
    pub cut: Option<u128>,
    /// The id that the client has given it.
    pub named: Option<Box<Named>>,
}

impl Work {
    /// True if it holds anything but queries.
    pub(crate) fn may_change(&self) -> bool {
        let mut spans: Vec<Span> = Vec::new();
        let mut is_query = |words: &Vec<u8>| {
            let (_, args) = entry::Reader::new(words).words(&mut spans);
            keyspace::resolve(args).is_some_and(|command| matches!(command.body, keyspace::Body::Query(_)))
        };
        !self.invocations.is_empty() || !self.commands.iter().all(&mut is_query)
    }

    /// True if one of its commands may change data: scripts find out for themselves.
    pub(crate) fn has_writes(&self) -> bool {
        let mut spans: Vec<Span> = Vec::new();
        self.commands.iter().any(|words| {
            let (_, args) = entry::Reader::new(words).words(&mut spans);
            keyspace::resolve(args).is_some_and(|command| matches!(command.body, keyspace::Body::Mutate(_)))
        })
    }

    /// Work for a client, with nothing to do yet.
    pub(crate) fn new(origin: Origin, protocol: Protocol, begun: Instant) -> Self {
        Self {
            origin,
            protocol,
            commands: Vec::new(),
            invocations: BTreeMap::new(),
            circumstances: Circumstances::default(),
            home: None,
            attempts: 0,
            is_exec: false,
            watches: Vec::new(),
            keys: BTreeMap::new(),
            whole: false,
            swaps: false,
            queries: Vec::new(),
            begun,
            cut: None,
            named: None,
        }
    }

    /// Looks for every key in every database.
    pub(crate) fn spread(&mut self, databases: u16) {
        self.swaps = true;
        for keys in self.keys.values_mut() {
            *keys = keys.iter().flat_map(|(_, key)| (0..databases).map(|database| (database, key.clone()))).collect();
        }
    }

    /// For a canary: neither locks nor looks at keys that are watched and that no command names.
    fn forget_what_is_only_watched(&mut self) {
        let mut named: Vec<Vec<u8>> = Vec::new();
        let mut spans = Vec::new();
        for words in &self.commands {
            let (_, args) = entry::Reader::new(words).words(&mut spans);
            if let Some(command) = keyspace::resolve(args) {
                command.for_each_key(args, |index, _| named.push(args.at(index).to_vec()));
            }
        }
        let watched: Vec<Vec<u8>> = self.watches.iter().map(|watch| watch.key.clone()).collect();
        let is_only_watched = |key: &Vec<u8>| watched.contains(key) && !named.contains(key);
        self.watches.retain(|watch| !is_only_watched(&watch.key));
        self.keys.values_mut().for_each(|keys| keys.retain(|(_, key)| !is_only_watched(key)));
        // One without keys is carried out by a group all the same.
        let first = self.keys.keys().next().copied();
        self.keys.retain(|group, keys| !keys.is_empty() || Some(*group) == first);
    }

    /// Looks for its keys where they are now.
    fn regroup(&mut self, slots: &SlotMap) {
        if slots.is_even() {
            return;
        }
        // One without keys is carried out by a group all the same.
        let keys: Vec<_> = self.keys.values_mut().flat_map(std::mem::take).collect();
        if !keys.is_empty() {
            self.keys.clear();
        }
        for (database, key) in keys {
            self.keys.entry(slots.group_of(&key)).or_default().push((database, key));
        }
    }

    /// Adds what a script or a SORT wants. After a few attempts all keys are locked: then it cannot want others.
    fn widen(&mut self, wants: Wants, databases: u16, slots: &SlotMap) {
        self.attempts += 1;
        self.whole |= wants.whole || self.attempts >= limits::SCRIPT_ATTEMPTS_BY_KEY;
        for (database, key) in wants.keys {
            self.keys.entry(slots.group_of(&key)).or_default().push((database, key));
        }
        self.queries.extend(wants.queries.into_iter().map(|words| (None, words)));
        if self.swaps || wants.swaps {
            self.spread(databases);
        }
    }
}

/// What some groups are asked to prepare at the same time.
type Round = Vec<(GroupId, Vec<Effect>)>;

/// A transaction on its way.
#[derive(Debug)]
pub struct Transaction {
    id: TransactionId,
    /// `None` while it is being computed.
    work: Option<Box<Work>>,
    origin: Origin,
    protocol: Protocol,
    home: Option<GroupId>,
    /// See [`Work::begun`].
    begun: Instant,
    /// Bytes of what it changes.
    byte_count: usize,
    /// What to prepare when all before it is prepared.
    later: VecDeque<Round>,
    moment: Moment,
    /// Where it looks for its keys.
    slots: Arc<SlotMap>,
    /// Of a backup: where the logs of groups were cut.
    places: BTreeMap<GroupId, u64>,
    groups: Vec<GroupId>,
    /// The fencing token by which it has the locks of each group.
    tokens: BTreeMap<GroupId, FencingToken>,
    values: BTreeMap<GroupId, Vec<Option<Vec<u8>>>>,
    answers: BTreeMap<GroupId, Vec<(u64, Vec<u8>)>>,
    stage: Stage,
    reply: Vec<u8>,
    /// That its groups were looked at.
    observed: Option<Observed>,
    /// What its commands did to keys, to be told when it has committed.
    notices: Vec<Notice>,
    /// What scripts have done beside.
    asides: Asides,
    /// Why a group that changes has not taken its part: the client is told so.
    refusal: Option<&'static str>,
    /// A group that has told values which are none: it is named to the client.
    unreadable: Option<GroupId>,
    /// The client has its reply, or another transaction sees to it.
    is_answered: bool,
}

#[derive(Debug)]
enum Stage {
    /// `groups[..next]` have been asked, all but the last have granted.
    Locking { next: usize },
    /// Of these, which are only read, it is not yet known whether their locks outlived the taking of the last one.
    Confirming { waiting: Vec<GroupId>, is_refused: bool },
    /// These have not yet answered.
    Preparing { waiting: Vec<GroupId>, changed: Vec<GroupId>, is_refused: bool },
    /// These have not yet answered.
    Resolving { waiting: Vec<GroupId> },
}

/// What a step of a transaction came to.
pub enum Progress {
    /// It goes on.
    Going,
    /// What this group has given out as a value is none, and it was the group that did: the client is told that nobody
    /// answers for it.
    Unreadable {
        /// Where the reply goes.
        origin: Origin,
        /// See [`Work::home`].
        home: Option<GroupId>,
        /// What the reply is written in.
        protocol: Protocol,
        /// Which.
        group: GroupId,
    },
    /// The client's reply is certain.
    Answered {
        /// Where the reply goes.
        origin: Origin,
        /// See [`Work::home`].
        home: Option<GroupId>,
        /// By what right it is given.
        proof: Proof,
        /// The reply, in the session's protocol.
        bytes: Vec<u8>,
        /// What has happened to keys.
        notices: Vec<Notice>,
        /// What scripts have done beside.
        asides: Box<Asides>,
    },
    /// Its scripts must run now; [`Coordinator::computed`] takes what comes of it.
    Compute(Box<Computation>),
    /// A script, or a SORT, wants more than has been locked: the same has to be done with that, too.
    Widened(Box<Work>),
    /// It had no effect, because it has lost its locks, with a leader or because it seemed dead: the same has to be
    /// done as another.
    Again(Box<Work>),
    /// All groups have resolved it: it can be forgotten.
    Over,
}

/// All transactions that a core drives.
#[derive(Debug)]
pub struct Coordinator {
    gateway: GatewayId,
    next_number: u64,
    running: BTreeMap<u64, Transaction>,
    databases: u16,
    /// Which changes to keys to note.
    pub(crate) noted: Classes,
    /// Keys that transactions have read for sessions that keep them.
    pub(crate) reads: Vec<(SessionId, Vec<Vec<u8>>)>,
    /// Keys that commands of transactions have looked up since that was last taken.
    pub(crate) lookups: Lookups,
    /// When collections change their form, in what it computes.
    pub(crate) limits: Limits,
    /// How uses of keys are noted.
    pub(crate) tuning: Tuning,
    /// That at which clients of this core are answered.
    pub(crate) level: Level,
    /// How large values come and go.
    pub(crate) slicing: Slicing,
    /// This cluster follows another one: what changes something and does not come from there is refused once it is
    /// computed. It may have waited for its locks since before.
    pub(crate) follows_site: bool,
    pub(crate) defect: Option<Defect>,
    /// For statistics.
    stopwatch: fn() -> Instant,
}

impl Coordinator {
    /// A coordinator for one life of a core.
    pub fn new(gateway: GatewayId, databases: u16, stopwatch: fn() -> Instant) -> Self {
        Self {
            gateway,
            next_number: 1,
            running: BTreeMap::new(),
            databases,
            noted: Classes::NONE,
            reads: Vec::new(),
            lookups: Lookups::default(),
            limits: Limits::default(),
            tuning: Tuning::default(),
            level: Level::FIRST,
            slicing: Slicing::default(),
            follows_site: false,
            defect: None,
            stopwatch,
        }
    }

    /// The client that a transaction belongs to, if it is one of this coordinator's, and which of the client's replies
    /// it is.
    pub(crate) fn client(&self, id: TransactionId) -> Option<(SessionId, u64)> {
        let transaction = self.running.get(&id.number).filter(|_| id.gateway == self.gateway)?;
        Some((transaction.origin.session, transaction.origin.ticket))
    }

    /// When what a transaction changes counts as kept.
    pub(crate) fn durability(&self, id: TransactionId) -> Durability {
        let transaction = self.running.get(&id.number).filter(|_| id.gateway == self.gateway);
        transaction.map_or(Durability::Server, |transaction| transaction.origin.durability)
    }

    /// True if a transaction may change data while this node follows a Redis.
    pub(crate) fn writes_for_source(&self, id: TransactionId) -> bool {
        let transaction = self.running.get(&id.number).filter(|_| id.gateway == self.gateway);
        transaction.is_some_and(|transaction| transaction.origin.writes_for_source)
    }

    /// Which life of which core this is.
    pub(crate) fn gateway(&self) -> GatewayId {
        self.gateway
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
    pub fn begin(&mut self, mut work: Work, slots: &Arc<SlotMap>, moment: Moment, post: &mut Vec<Post>) {
        let id = TransactionId { gateway: self.gateway, number: self.next_number };
        self.next_number += 1;
        if self.defect == Some(Defect::ForgottenRead) {
            work.forget_what_is_only_watched();
        }
        work.regroup(slots);
        let groups: Vec<_> = if work.whole { slots.groups().collect() } else { work.keys.keys().copied().collect() };
        for keys in work.keys.values_mut() {
            keys.sort();
            keys.dedup();
        }
        let mut transaction = Transaction {
            id,
            origin: work.origin,
            protocol: work.protocol,
            home: work.home,
            begun: work.begun,
            byte_count: 0,
            later: VecDeque::new(),
            slots: Arc::clone(slots),
            work: Some(Box::new(work)),
            moment,
            groups,
            tokens: BTreeMap::new(),
            values: BTreeMap::new(),
            answers: BTreeMap::new(),
            stage: Stage::Locking { next: 0 },
            places: BTreeMap::new(),
            reply: Vec::new(),
            observed: None,
            notices: Vec::new(),
            asides: Asides::default(),
            refusal: None,
            unreadable: None,
            is_answered: false,
        };
        transaction.lock_next(post);
        self.running.insert(id.number, transaction);
    }

    fn find(&mut self, id: TransactionId) -> Option<&mut Transaction> {
        if id.gateway != self.gateway {
            return None;
        }
        self.running.get_mut(&id.number)
    }

    /// A group has answered a lock, or why it has not.
    pub fn locked(
        &mut self,
        id: TransactionId,
        group: GroupId,
        outcome: Result<(Locked, Proof), String>,
        post: &mut Vec<Post>,
    ) -> Progress {
        let low_water = self.low_water();
        let (databases, noted, limits, level) = (self.databases, self.noted, self.limits, self.level);
        let (slicing, stopwatch, tuning) = (self.slicing, self.stopwatch, self.tuning);
        let Some(transaction) = self.find(id) else { return Progress::Going };
        let mut writer = Writer::new(transaction.protocol);
        let granted = match outcome {
            Ok((Locked::Granted { token, values, answers }, proof)) => {
                let observed = proof.observed().expect("the caller has looked");
                Ok((observed, token, values, answers))
            }
            Ok((Locked::Changed, proof)) => {
                writer.null_array();
                Err(proof)
            }
            // The reply of a request that has been carried out before, and is safe: the group's state holds it.
            Ok((Locked::Answered(reply), proof)) => {
                writer.raw(&reply);
                Err(proof)
            }
            Ok((Locked::Refused(text), _)) | Err(text) => {
                writer.error(&text);
                Err(Proof::Refused)
            }
        };
        let (observed, token, values, answers) = match granted {
            Ok(granted) => granted,
            Err(proof) => {
                transaction.reply = writer.into_bytes();
                transaction.resolve_all(Resolution::Release, &[], low_water, post);
                return transaction.answered(proof);
            }
        };
        transaction.observed = Some(observed);
        transaction.tokens.insert(group, token);
        transaction.values.insert(group, values);
        transaction.answers.insert(group, answers);
        if transaction.values.len() < transaction.groups.len() {
            transaction.lock_next(post);
            return Progress::Going;
        }
        if let Some(name) = transaction.work.as_ref().and_then(|work| work.cut) {
            transaction.cut(name, databases, post);
            return Progress::Going;
        }
        let computation = Computation {
            stopwatch,
            id,
            work: transaction.work.take().expect("it is computed once"),
            moment: transaction.moment,
            databases,
            noted,
            limits,
            tuning,
            level,
            slicing,
            slots: Arc::clone(&transaction.slots),
            values: std::mem::take(&mut transaction.values),
            answers: std::mem::take(&mut transaction.answers),
            chance: transaction.moment.seed,
        };
        if computation.has_scripts() || computation.is_large() {
            return Progress::Compute(Box::new(computation));
        }
        let (computed, _) = computation.run(None);
        self.computed(computation, computed, post)
    }

    /// A group does not hold a key any more: the same has to be done where it is now.
    pub(crate) fn moved(&mut self, id: TransactionId, post: &mut Vec<Post>) -> Progress {
        let low_water = self.low_water();
        let Some(transaction) = self.find(id) else { return Progress::Going };
        if !matches!(transaction.stage, Stage::Locking { .. }) {
            return Progress::Going;
        }
        transaction.resolve_all(Resolution::Release, &[], low_water, post);
        if std::mem::replace(&mut transaction.is_answered, true) {
            return Progress::Going;
        }
        Progress::Again(transaction.work.take().expect("it is not computed yet"))
    }

    /// The commands have been run.
    pub(crate) fn computed(&mut self, computation: Computation, computed: Computed, post: &mut Vec<Post>) -> Progress {
        let low_water = self.low_water();
        let Some(transaction) = self.running.get_mut(&computation.id.number) else { return Progress::Going };
        let Computation { mut work, databases, slots, .. } = computation;
        transaction.begun = work.begun;
        let mut named = work.named.clone();
        let Outcome { reply, mut effects, asides, notices, reads, lookups } = match computed {
            Computed::Done(outcome) => *outcome,
            Computed::Wanting(_) if work.attempts >= limits::SCRIPT_ATTEMPTS_MAX => {
                named = None; // it may be tried again
                let mut writer = Writer::new(transaction.protocol);
                writer.error("TRYAGAIN The script or SORT asks for other keys each time");
                Outcome { reply: writer.into_bytes(), ..Outcome::default() }
            }
            Computed::Wanting(wants) => {
                transaction.resolve_all(Resolution::Release, &[], low_water, post);
                transaction.is_answered = true;
                work.widen(wants, databases, &slots);
                return Progress::Widened(work);
            }
            Computed::Unreadable(group) => {
                named = None; // it may be tried again
                transaction.unreadable = Some(group);
                Outcome::default()
            }
            Computed::TooLong => unreachable!("what takes long has been given a stack"),
        };
        self.lookups.add(lookups);
        if !reads.is_empty() {
            self.reads.push((work.origin.session, reads));
        }
        let is_too_large =
            effects.values().any(|effects| entry::effects_bytes(effects) > group::limits::EFFECTS_BYTES_MAX);
        let is_long = named.is_some() && reply.len() > limits::KEPT_REPLY_BYTES_MAX;
        let is_late = self.follows_site && !work.origin.writes_for_source && work.has_writes();
        if is_too_large || is_long || is_late {
            let mut writer = Writer::new(transaction.protocol);
            writer.error(match () {
                () if is_late => READ_ONLY,
                () if is_too_large => {
                    "ERR The values that the transaction changes are too large to be changed together"
                }
                () => request_ids::LONG_REPLY,
            });
            transaction.reply = writer.into_bytes();
            transaction.resolve_all(Resolution::Release, &[], low_water, post);
            return transaction.answered(Proof::Refused);
        }
        if let Some(named) = named {
            let Named { request, ms } = *named;
            let home = effects.entry(slots.group_of_slot(request.slot)).or_default();
            home.push(Effect::Answer(Box::new(Answered { request, ms, reply: reply.clone() })));
        }
        transaction.byte_count = effects.values().map(|effects| entry::effects_bytes(effects)).sum();
        transaction.reply = reply;
        transaction.notices = notices;
        transaction.asides = asides;
        transaction.work = Some(work);
        let rounds = rounds(effects, self.slicing.bytes_min);
        transaction.confirm(rounds, low_water, post)
    }

    /// A group has been cut for a backup, behind this entry of its log.
    pub fn note_place(&mut self, id: TransactionId, group: GroupId, place: Option<u64>) {
        if let (Some(transaction), Some(place)) = (self.find(id), place) {
            transaction.places.insert(group, place);
        }
    }

    /// A group has logged its part, or refused it.
    pub fn prepared(
        &mut self,
        id: TransactionId,
        group: GroupId,
        (answer, proof): (PrepareAnswer, Proof),
        post: &mut Vec<Post>,
    ) -> Progress {
        let low_water = self.low_water();
        let commits_early = self.defect == Some(Defect::EarlyCommit);
        let Some(transaction) = self.find(id) else { return Progress::Going };
        if let Stage::Confirming { waiting, .. } = &mut transaction.stage {
            waiting.retain(|other| *other != group);
            return transaction.confirmed(answer == PrepareAnswer::Accepted, low_water, post);
        }
        let Stage::Preparing { waiting, changed, is_refused } = &mut transaction.stage else {
            return Progress::Going;
        };
        waiting.retain(|other| *other != group && !commits_early);
        // A backup changes nothing, and its cut is not logged.
        let proof = match changed.is_empty() {
            true => proof.observed().map(Proof::from),
            false => proof.committed().map(Proof::from),
        };
        let proof = proof.filter(|_| answer == PrepareAnswer::Accepted);
        *is_refused |= proof.is_none();
        match answer {
            PrepareAnswer::LacksReplicas => transaction.refusal = Some(NO_REPLICAS),
            PrepareAnswer::NoRoom => transaction.refusal = Some(NO_ROOM),
            PrepareAnswer::ReadOnly => transaction.refusal = Some(READ_ONLY),
            PrepareAnswer::Accepted | PrepareAnswer::Refused => {}
        }
        if !waiting.is_empty() {
            return Progress::Going;
        }
        if !*is_refused && let Some(round) = transaction.later.pop_front() {
            *waiting = post_round(id, &transaction.tokens, changed, round, post);
            return Progress::Going;
        }
        let changed = std::mem::take(changed);
        let Some(proof) = proof.filter(|_| !*is_refused) else {
            transaction.resolve_all(Resolution::Abort, &changed, low_water, post);
            if transaction.is_answered {
                return Progress::Going;
            }
            if let Some(refusal) = transaction.refusal {
                let mut writer = Writer::new(transaction.protocol);
                writer.error(refusal);
                transaction.reply = writer.into_bytes();
                (transaction.notices, transaction.asides) = Default::default();
                return transaction.answered(Proof::Refused);
            }
            transaction.is_answered = true;
            return Progress::Again(transaction.work.take().expect("it has been computed"));
        };
        let mut places = Writer::onto(std::mem::take(&mut transaction.reply), transaction.protocol);
        if !transaction.places.is_empty() {
            for group in (0..transaction.slots.group_count()).map(GroupId) {
                let gone_at = transaction.slots.gone_at(group).map(|end| -(end as i64));
                let place = transaction.places.get(&group).map(|place| *place as i64).or(gone_at);
                places.integer(place.unwrap_or(0));
            }
        }
        transaction.reply = places.into_bytes();
        if changed.len() == 1 {
            // One entry was the whole transaction: there is nothing to commit, only locks to let go.
            transaction.resolve_all(Resolution::Release, &[], low_water, post);
        } else {
            transaction.resolve_all(Resolution::Commit, &changed, low_water, post);
        }
        // The last of all that have prepared has said so: each was asked for the same.
        transaction.answered(proof)
    }

    /// Answers clients with transactions that have been writing for so long that nobody can tell them the outcome. The
    /// transactions go on all the same.
    pub fn give_up(&mut self, now: Instant, unknown: &str, no_answer: impl Fn(GroupId) -> String) -> Vec<Progress> {
        let mut given_up = Vec::new();
        for transaction in self.running.values_mut() {
            let text: &dyn Fn() -> String = match &transaction.stage {
                Stage::Preparing { .. } => &|| unknown.to_owned(),
                // It will write nothing any more.
                Stage::Confirming { waiting, .. } => &|| no_answer(waiting[0]),
                Stage::Locking { .. } | Stage::Resolving { .. } => continue,
            };
            let patience = limits::REQUEST_PATIENCE + group::limits::patience_for(transaction.byte_count);
            if !transaction.is_answered && now.since(transaction.begun) >= patience {
                let mut writer = Writer::new(transaction.protocol);
                writer.error(&text());
                transaction.is_answered = true;
                given_up.push(Progress::Answered {
                    origin: transaction.origin,
                    home: transaction.home,
                    proof: Proof::Refused,
                    bytes: writer.into_bytes(),
                    notices: Vec::new(),
                    asides: Box::default(),
                });
            }
        }
        given_up
    }

    /// True if the client of a transaction has been answered, or it is none of this coordinator's.
    pub(crate) fn is_answered(&self, id: TransactionId) -> bool {
        self.running.get(&id.number).is_none_or(|transaction| transaction.id != id || transaction.is_answered)
    }

    /// Transactions with groups that may be busy with large values for so long that others seem forgotten.
    pub(crate) fn lasting(&self) -> impl Iterator<Item = TransactionId> {
        let is_lasting = |transaction: &&Transaction| {
            transaction.byte_count >= self.slicing.bytes_min && !matches!(transaction.stage, Stage::Resolving { .. })
        };
        self.running.values().filter(is_lasting).map(|transaction| transaction.id)
    }

    /// Tells the groups of a transaction that it still works on what it has locked.
    pub(crate) fn renew(&self, id: TransactionId, post: &mut Vec<Post>) {
        if let Some(transaction) = self.running.get(&id.number) {
            let body = RequestBody::Renew { transaction: id };
            post.extend(transaction.groups.iter().map(|group| (*group, id, body.clone())));
        }
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
    fn lock_next(&mut self, post: &mut Vec<Post>) {
        let Stage::Locking { next } = &mut self.stage else { unreachable!("locks are taken before anything else") };
        let group = self.groups[*next];
        *next += 1;
        let work = self.work.as_ref().expect("it is not computed yet");
        let watches = work.watches.iter().filter(|watch| self.slots.group_of(&watch.key) == group).cloned().collect();
        let request = work.named.as_ref().map(|named| &named.request);
        let request = request.filter(|request| self.slots.group_of_slot(request.slot) == group).cloned();
        let lock = Lock {
            transaction: self.id,
            group,
            keys: work.keys.get(&group).cloned().unwrap_or_default(),
            whole: work.whole,
            group_count: self.slots.group_count(),
            watches,
            queries: work.queries.iter().map(|(_, words)| words.clone()).collect(),
            moment: self.moment,
            cut: work.cut,
            request,
        };
        post.push((group, self.id, RequestBody::Lock(Box::new(lock))));
    }

    /// All groups are locked: each begins its part of the backup.
    fn cut(&mut self, name: u128, databases: u16, post: &mut Vec<Post>) {
        let mut writer = Writer::new(self.protocol);
        // Nothing of those that have gone is part of it, and it is known where their logs ended.
        writer.array(3 + self.slots.group_count() as usize);
        writer.integer(i64::from(self.slots.group_count()));
        writer.integer(i64::from(databases));
        writer.integer(self.moment.unix.0);
        self.reply = writer.into_bytes();
        for group in &self.groups {
            let token = self.tokens[group];
            post.push((*group, self.id, RequestBody::Cut { transaction: self.id, token, name }));
        }
        self.stage = Stage::Preparing { waiting: self.groups.clone(), changed: Vec::new(), is_refused: false };
    }

    /// What was read in one group, and what is read or written in the next, must have been so at one moment: when the
    /// last lock was taken. Groups that will be written to look for their locks by themselves; the others are asked.
    fn confirm(&mut self, rounds: VecDeque<Round>, low_water: u64, post: &mut Vec<Post>) -> Progress {
        let before_last = self.groups.split_last().map_or(&[][..], |(_, before)| before);
        let is_changed = |group: &GroupId| rounds.iter().flatten().any(|(other, _)| other == group);
        let waiting: Vec<_> = before_last.iter().copied().filter(|group| !is_changed(group)).collect();
        if waiting.is_empty() {
            return self.prepare(rounds, low_water, post);
        }
        for group in &waiting {
            let (transaction, token, participants, effects) = (self.id, self.tokens[group], Vec::new(), Vec::new());
            post.push((*group, self.id, RequestBody::Prepare { transaction, token, participants, effects }));
        }
        self.later = rounds;
        self.stage = Stage::Confirming { waiting, is_refused: false };
        Progress::Going
    }

    /// A group that is only read has told whether the locks are there.
    fn confirmed(&mut self, accepted: bool, low_water: u64, post: &mut Vec<Post>) -> Progress {
        let Stage::Confirming { waiting, is_refused } = &mut self.stage else { return Progress::Going };
        *is_refused |= !accepted;
        if !waiting.is_empty() {
            return Progress::Going;
        }
        if !*is_refused && !self.is_answered {
            let rounds = std::mem::take(&mut self.later);
            return self.prepare(rounds, low_water, post);
        }
        self.resolve_all(Resolution::Release, &[], low_water, post);
        if std::mem::replace(&mut self.is_answered, true) {
            return Progress::Going;
        }
        Progress::Again(self.work.take().expect("it has been computed"))
    }

    /// Sends what has changed to its groups, round by round.
    fn prepare(&mut self, mut rounds: VecDeque<Round>, low_water: u64, post: &mut Vec<Post>) -> Progress {
        let mut changed: Vec<_> = rounds.iter().flatten().map(|(group, _)| *group).collect();
        changed.sort_unstable();
        let Some(first) = rounds.pop_front() else {
            self.resolve_all(Resolution::Release, &[], low_water, post);
            let observed = self.observed.expect("its groups have been locked");
            return self.answered(observed.into());
        };
        self.later = rounds;
        let waiting = post_round(self.id, &self.tokens, &changed, first, post);
        self.stage = Stage::Preparing { waiting, changed, is_refused: false };
        Progress::Going
    }

    /// Ends the transaction in all its groups: `resolution` where something was prepared, release elsewhere.
    fn resolve_all(&mut self, resolution: Resolution, prepared: &[GroupId], low_water: u64, post: &mut Vec<Post>) {
        let asked = match self.stage {
            Stage::Locking { next } => next,
            Stage::Confirming { .. } | Stage::Preparing { .. } | Stage::Resolving { .. } => self.groups.len(),
        };
        let waiting = self.groups[..asked].to_vec();
        for group in &waiting {
            let resolution = if prepared.contains(group) { resolution } else { Resolution::Release };
            let transaction = self.id;
            post.push((*group, transaction, RequestBody::Resolve { transaction, resolution, low_water }));
        }
        self.stage = Stage::Resolving { waiting };
    }

    fn answered(&mut self, proof: Proof) -> Progress {
        if std::mem::replace(&mut self.is_answered, true) {
            return Progress::Going;
        }
        if let Some(group) = self.unreadable {
            return Progress::Unreadable { origin: self.origin, home: self.home, protocol: self.protocol, group };
        }
        Progress::Answered {
            origin: self.origin,
            home: self.home,
            proof,
            bytes: std::mem::take(&mut self.reply),
            notices: std::mem::take(&mut self.notices),
            asides: Box::new(std::mem::take(&mut self.asides)),
        }
    }
}

/// Which groups are asked to prepare their parts at the same time: those with large parts one by one, the largest
/// first, then all others. A group that has prepared asks the others when it waits for too long, and they refuse what
/// they have not heard of; so no group must wait for what takes longer than its own part.
fn rounds(effects: BTreeMap<GroupId, Vec<Effect>>, large_bytes_min: usize) -> VecDeque<Round> {
    let is_large = |(_, effects): &(GroupId, Vec<Effect>)| entry::effects_bytes(effects) >= large_bytes_min;
    let (mut large, small): (Round, Round) = effects.into_iter().partition(is_large);
    large.sort_by_key(|(_, effects)| std::cmp::Reverse(entry::effects_bytes(effects)));
    let mut rounds: VecDeque<_> = large.into_iter().map(|part| vec![part]).collect();
    if !small.is_empty() {
        rounds.push_back(small);
    }
    rounds
}

/// Asks these groups to prepare their parts. Which they are.
fn post_round(
    transaction: TransactionId,
    tokens: &BTreeMap<GroupId, FencingToken>,
    changed: &[GroupId],
    round: Round,
    post: &mut Vec<Post>,
) -> Vec<GroupId> {
    let waiting = round.iter().map(|(group, _)| *group).collect();
    for (group, effects) in round {
        let participants = changed.iter().map(|group| group.0).collect();
        let token = tokens[&group];
        post.push((group, transaction, RequestBody::Prepare { transaction, token, participants, effects }));
    }
    waiting
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
/// The leader of a group that a transaction changes cannot log its part.
const NO_ROOM: &str = "MISCONF No room on disk for this write on a node that leads a part of its keys";
