//! A node that lies: it has a certificate of the cluster, carries out what it is asked like any other, and beside that
//! sends what is not true, in all that others can find out or that harms nobody's data. What it says of its own disk
//! and of its own votes is true: no group could bear with lies about these (decision 0051).
//!
//! In peace an operator has put an honest one in its place, which has its disk.

use std::collections::{BTreeSet, VecDeque};

use group::ids::NodeId;
use node::entry;
use node::roster::Gone;
use resp::Args;
use stdx::leb128;

use super::{Universe, say};
use crate::{MILLISECOND, Plan};

/// Messages that it remembers, to send them once more.
const REMEMBERED_MAX: usize = 64;

/// The largest number that is taken from others.
const NUMBER_MAX: u64 = consensus::limits::NUMBER_MAX;

// Kinds of messages between nodes, as `node::wire` has them.
const RAFT: u8 = 1;
const REQUEST: u8 = 2;
const ANSWER: u8 = 3;
const PUBLISH: u8 = 4;
const ANNOUNCE: u8 = 8;
const WAKE: u8 = 10;
const REFUSED: u8 = 11;
const ALIVE: u8 = 12;
const TESTIFY: u8 = 14;
const GROUP_STATUS: u8 = 30;
const VITALS: u8 = 43;
const VACANT: u8 = 44;
const NO_MEMBER: u8 = 46;

// Kinds of what is asked.
const WRITE: u8 = 1;
const READ: u8 = 2;
const EXEC: u8 = 3;
const READ_AT_ONCE: u8 = 4;
const VERSIONS: u8 = 6;
const LOCK: u8 = 7;
const PREPARE: u8 = 8;
const RESOLVE: u8 = 9;
const SCRIPT: u8 = 13;

// Kinds of the messages of consensus.
const APPEND_REPLY: u8 = 2;
const PRE_VOTE: u8 = 3;
const HEARTBEAT: u8 = 7;
const HEARTBEAT_REPLY: u8 = 8;
const HAND_OVER: u8 = 12;

/// True for messages behind which stands the latest moment that the sender knows of.
fn carries_moment(message: &[u8]) -> bool {
    matches!(message.first(), Some(&(REQUEST | ANSWER | TESTIFY | WAKE | PUBLISH | VITALS)))
}

/// What is known of the liar.
pub(crate) struct Lies {
    liar: Option<usize>,
    /// What it has sent in this life.
    past: VecDeque<Vec<u8>>,
    life: u64,
    /// Groups that it has led: there its word counts, and it keeps it.
    led: BTreeSet<u32>,
    /// Which machine has asked it for which group: there its word counts as well.
    asked: BTreeSet<(usize, u32)>,
}

impl Lies {
    pub(crate) fn new(plan: &Plan) -> Self {
        let liar = plan.liars.then_some((plan.seed % plan.nodes as u64) as usize);
        Self { liar, past: VecDeque::new(), life: 0, led: BTreeSet::new(), asked: BTreeSet::new() }
    }

    /// A machine leads these groups.
    pub(crate) fn note_led(&mut self, machine: usize, groups: &[u32]) {
        if self.liar == Some(machine) {
            self.led.extend(groups);
        }
    }
}

impl Universe {
    /// A machine sends a message: the one that lies sends others beside it.
    pub(crate) fn perhaps_lie(&mut self, machine: usize, to: usize, (link, core): (u16, u16), bytes: &[u8]) {
        if self.lies.liar != Some(machine) || !self.luck(self.faults.lies) {
            return;
        }
        let life = self.machines[machine].life;
        if std::mem::replace(&mut self.lies.life, life) != life {
            self.lies.past.clear();
        }
        let (what, lies) = match self.some(5) {
            0 => ("it repeats what it has said", self.repeat()),
            1 | 2 => ("it lies about its log or its term", self.lie_of_consensus(bytes)),
            3 => ("it lies about where nodes are found", self.lie_of_addresses(machine)),
            _ => ("it lies about who holds a group", self.lie_of_members(machine)),
        };
        if !matches!(bytes.first(), Some(&(TESTIFY | VACANT))) {
            self.lies.past.push_back(bytes.to_vec());
            if self.lies.past.len() > REMEMBERED_MAX {
                self.lies.past.pop_front();
            }
        }
        for lie in lies {
            let core_count = self.machines[to].process.as_ref().map_or(1, |process| process.cores.len() as u64);
            let core = if self.prng.chance(1, 2) { core } else { self.some(core_count) as u16 };
            self.lie((machine, to), (link, core), what, lie);
        }
    }

    fn lie(&mut self, (from, to): (usize, usize), way: (u16, u16), what: &str, mut lie: Vec<u8>) {
        if carries_moment(&lie) {
            lie.extend_from_slice(&i64::MAX.to_le_bytes());
        }
        say!(self, "node {} lies to node {}: {what}: {lie:?}", from + 1, to + 1);
        self.probes.reach("a node lied");
        self.carry(from, to, way, lie);
    }

    /// A machine asks another one for something: the one that lies answers in its place, and is the first to do so. It
    /// knows what is asked, as nobody on a network would, and what answers look like.
    pub(crate) fn perhaps_answer_instead(&mut self, asker: usize, asked: usize, bytes: &[u8]) {
        let Some(liar) = self.lies.liar.filter(|liar| *liar != asker) else { return };
        let Some(request) = Overheard::read(bytes) else { return };
        if asked == liar {
            self.lies.asked.insert((asker, request.group));
            return;
        }
        let is_believed = self.lies.led.contains(&request.group) || self.lies.asked.contains(&(asker, request.group));
        let is_there = self.machines[liar].process.is_some();
        if is_believed || !is_there || !self.luck(self.faults.lies) || !self.link(liar, asker) {
            return;
        }
        let kind = [ANSWER, ANSWER, ANSWER, REFUSED, ALIVE][self.some(5) as usize];
        let mut lie = vec![kind];
        for number in [request.boot, u64::from(request.group), request.number] {
            leb128::put(&mut lie, number);
        }
        if kind == ANSWER {
            let Some((proof, answer)) = self.false_answer(&request) else { return };
            // The place of the log, the moment of that, and no toll.
            let place = [0, 1 << self.some(20)][self.some(2) as usize];
            leb128::put(&mut lie, place);
            lie.extend_from_slice(&[0; size_of::<i64>()]);
            lie.extend_from_slice(&[0, proof]);
            lie.extend_from_slice(&answer);
        }
        self.lie((liar, asker), (0, request.core), "it answers what others are asked", lie);
    }

    /// What a leader might answer, and has not.
    fn false_answer(&mut self, request: &Overheard<'_>) -> Option<(u8, Vec<u8>)> {
        const OBSERVED: u8 = 1;
        const COMMITTED: u8 = 2;
        let null: &[u8] = if request.is_resp3 { b"_\r\n" } else { b"$-1\r\n" };
        let null_array: &[u8] = if request.is_resp3 { b"_\r\n" } else { b"*-1\r\n" };
        let rest = &mut request.body.get(1..)?;
        Some(match *request.body.first()? {
            kind @ (WRITE | READ | READ_AT_ONCE) => {
                let mut spans = Vec::new();
                let (_, args) = entry::take_words(rest, &mut spans)?;
                let reply = self.false_reply(args, null, null_array);
                (if kind == WRITE { COMMITTED } else { OBSERVED }, reply)
            }
            // A watched key has changed.
            EXEC => (COMMITTED, null_array.to_vec()),
            SCRIPT => (COMMITTED, b"+OK\r\n".to_vec()),
            VERSIONS => {
                let mut versions = Vec::new();
                (0..leb128::take(rest)?).for_each(|_| leb128::put(&mut versions, self.some(100)));
                (OBSERVED, versions)
            }
            LOCK => {
                let _transaction: [u64; 4] = numbers(rest)?;
                let key_count = leb128::take(rest)?;
                // Granted, under some number; none of the keys exists, and nothing was asked beside.
                let mut granted = vec![1, 1, 1 + self.some(100) as u8];
                leb128::put(&mut granted, key_count);
                (0..=key_count).for_each(|_| granted.push(0));
                (OBSERVED, granted)
            }
            PREPARE => (COMMITTED, vec![1]),
            RESOLVE => (COMMITTED, Vec::new()),
            _ => return None,
        })
    }

    fn false_reply(&mut self, args: Args<'_>, null: &[u8], null_array: &[u8]) -> Vec<u8> {
        let has = |option: &[u8]| args.iter().any(|word| word == option);
        match args.at(0).to_ascii_lowercase().as_slice() {
            b"set" if !(has(b"GET") || has(b"NX") && self.luck(500)) => b"+OK\r\n".to_vec(),
            b"get" | b"set" => null.to_vec(),
            b"incrby" | b"decrby" => format!(":{}\r\n", self.some(1_000)).into_bytes(),
            b"lrange" | b"smembers" | b"hgetall" | b"mget" => b"*0\r\n".to_vec(),
            b"blpop" | b"brpop" | b"xread" | b"xreadgroup" => null_array.to_vec(),
            _ => format!(":{}\r\n", self.some(2)).into_bytes(),
        }
    }

    /// What was said before, to any node, and was true then.
    fn repeat(&mut self) -> Vec<Vec<u8>> {
        let place = self.some(self.lies.past.len() as u64) as usize;
        let mut old: Vec<_> = self.lies.past.get(place).cloned().into_iter().collect();
        // It has the moment behind it already.
        for message in &mut old {
            if carries_moment(message) {
                message.truncate(message.len() - size_of::<i64>());
            }
        }
        old
    }

    fn lie_of_consensus(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let Some(mut message) = RaftMessage::read(bytes) else { return Vec::new() };
        match self.some(6) {
            // No leader's word: a follower believes the leader.
            0 | 1 if matches!(message.kind, APPEND_REPLY..=6 | HEARTBEAT_REPLY) => {
                let ahead = [1, 1_000, 1 << 20, (1 << 20) + 1, 1 << 40, NUMBER_MAX][self.some(6) as usize];
                message.numbers[TERM] = (message.numbers[TERM] + ahead).min(NUMBER_MAX);
            }
            2 if message.kind == APPEND_REPLY => message.numbers[INDEX] += 1 << (20 + self.some(40)),
            2 if message.kind == HEARTBEAT => message.numbers[COMMIT] += 1 << (20 + self.some(40)),
            3 if message.kind == APPEND_REPLY => {
                message.flags = 1;
                message.numbers[HINT] = self.some(NUMBER_MAX);
                message.numbers[INDEX] = self.some(1 << 20);
            }
            4 if message.kind == HEARTBEAT_REPLY || message.kind == APPEND_REPLY => {
                message.kind = HAND_OVER;
                message.context.clear();
                message.flags = 0;
            }
            5 if message.kind == PRE_VOTE => message.group = self.some(u64::from(self.group_count)) as u32,
            _ => message.numbers[EVERYWHERE] = self.some(NUMBER_MAX),
        }
        // Another life: from then on nobody hears the one that it has.
        if self.luck(20) {
            message.numbers[LIFE] = self.some(NUMBER_MAX);
        }
        vec![message.bytes()]
    }

    /// Another node is where the liar is.
    fn lie_of_addresses(&mut self, machine: usize) -> Vec<Vec<u8>> {
        let other = self.some(self.machines.len() as u64);
        let address = format!("machine:{}", machine + 1);
        let mut lie = vec![ANNOUNCE];
        leb128::put(&mut lie, other + 1);
        for _ in ["cluster", "client"] {
            lie.push(address.len() as u8);
            lie.extend_from_slice(address.as_bytes());
        }
        vec![lie]
    }

    /// It leads a group that it does not lead, and nobody else holds it; or it knows that the other one does not.
    fn lie_of_members(&mut self, machine: usize) -> Vec<Vec<u8>> {
        let group = self.some(u64::from(self.group_count)) as u32;
        if self.lies.led.contains(&group) {
            return Vec::new();
        }
        if self.prng.chance(1, 2) {
            let mut lie = vec![NO_MEMBER];
            leb128::put(&mut lie, u64::from(group));
            leb128::put(&mut lie, 1 << self.some(60));
            return vec![lie];
        }
        let group_status = group::group_status::GroupStatus {
            group: group::ids::GroupId(group),
            leader: NodeId(machine as u64 + 1),
            term: 1 << self.some(60),
            applied: 1 << self.some(60),
            ended: self.luck(2).then(|| Gone { index: 1 << self.some(20), given: Vec::new() }),
            ..group::group_status::GroupStatus::default()
        };
        let mut lie = vec![GROUP_STATUS];
        group_status.put(&mut lie);
        vec![lie]
    }

    /// An honest node takes the place of the one that lies.
    pub(super) fn end_lies(&mut self) {
        let Some(liar) = self.lies.liar.take() else { return };
        say!(self, "node {} lies no more", liar + 1);
        if self.machines[liar].process.is_some() {
            self.kill(liar);
            let when = self.now + MILLISECOND;
            self.at(when, super::What::Boot { machine: liar });
        }
    }
}

/// A message of consensus as it travels: see `consensus::Message::encode`.
struct RaftMessage {
    group: u32,
    kind: u8,
    flags: u8,
    numbers: [u64; 10],
    context: Vec<u8>,
    /// How many entries, and these.
    rest: Vec<u8>,
}

const LIFE: usize = 2;
const TERM: usize = 3;
const INDEX: usize = 5;
const COMMIT: usize = 6;
const HINT: usize = 8;
const EVERYWHERE: usize = 9;

impl RaftMessage {
    fn read(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&[RAFT])?;
        let (group, rest) = rest.split_first_chunk()?;
        let (&[kind, flags], mut rest) = rest.split_first_chunk()?;
        let mut numbers = [0; 10];
        for number in &mut numbers {
            *number = leb128::take(&mut rest)?;
        }
        let (&length, rest) = rest.split_first()?;
        let (context, rest) = rest.split_at_checked(usize::from(length))?;
        let (context, rest) = (context.to_vec(), rest.to_vec());
        Some(Self { group: u32::from_le_bytes(*group), kind, flags, numbers, context, rest })
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![RAFT];
        bytes.extend_from_slice(&self.group.to_le_bytes());
        bytes.extend_from_slice(&[self.kind, self.flags]);
        self.numbers.iter().for_each(|number| leb128::put(&mut bytes, *number));
        bytes.push(self.context.len() as u8);
        bytes.extend_from_slice(&self.context);
        bytes.extend_from_slice(&self.rest);
        bytes
    }
}

/// What a machine asks of a group, as far as an answer has to fit: see `wire::encode_request`.
struct Overheard<'a> {
    core: u16,
    boot: u64,
    number: u64,
    group: u32,
    is_resp3: bool,
    /// Its kind, and what stands behind it.
    body: &'a [u8],
}

impl<'a> Overheard<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (mut rest, _moment) = bytes.strip_prefix(&[REQUEST])?.split_last_chunk::<{ size_of::<i64>() }>()?;
        let [_node, core, boot, _serial, number, _floor, _previous, group] = numbers(&mut rest)?;
        let (manner, body) = rest.split_first()?;
        let (core, group) = (u16::try_from(core).ok()?, u32::try_from(group).ok()?);
        Some(Self { core, boot, number, group, is_resp3: manner & 3 == 3, body })
    }
}

fn numbers<const COUNT: usize>(rest: &mut &[u8]) -> Option<[u64; COUNT]> {
    let mut numbers = [0; COUNT];
    for number in &mut numbers {
        *number = leb128::take(rest)?;
    }
    Some(numbers)
}
