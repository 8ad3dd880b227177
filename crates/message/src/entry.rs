//! What a log entry of a group holds: one moment, and a batch of items.
//!
//! ```text
//! entry  = level:u8, and 64 or 128 for its durability  unix_ms:i64le  seed:u64le  item*
//! item   = COMMAND  flags:u8 words
//!        | EXEC     flags:u8 count(watch) watch* count(command) words*
//!        | TICK
//!        | INSTALL  transaction count(effect) effect*
//!        | PREPARE  transaction count(participant) participant* count(effect) effect*
//!        | RESOLVE  transaction outcome:u8 low_water
//!        | REFUSE   transaction
//!        | LIMITS   len bytes
//!        | ENLIST   node member
//!        | PREFER   group node, 0 for nobody
//!        | SCRIPT   len answer count(command) words*
//!        | LIBRARIES change
//!        | MOVED    slot
//!        | WANT     slot first slot last group
//!        | PLACE    group count node*, none for all
//!        | BALANCE  is_on:u8
//!        | FOUND    group count node*
//!        | RISE     level
//!        | FORGET   count(transaction) transaction*
//!        | DIVIDE   group parent slots
//!        | SPLIT    group slots
//!        | BORN     parent index
//!        | MERGE    group into
//!        | RETIRE   group index count (first slot last slot group epoch)*
//!        | END
//!        | CONFIGURE count (len name len value)*
//! slots  = count (first slot last slot)*
//! words  = database argc len* bytes
//! watch  = database len bytes version:u64le
//! effect = kind:u8 database len bytes [len bytes]
//!        | 4 slot group epoch
//!        | 5 slot epoch sequence gone unix_ms:u64le len records
//!        | 6 like 5, and len answered*
//!        | 7 answered
//! answered = slot len id digest:u64le ms len reply
//! ```
//! All other numbers are LEB128. The words of a command lie together behind their lengths, so that they can be executed
//! where they are.

mod building;

use std::collections::BTreeSet;

use keyspace::{Limits, Moment, PrefetchTarget};
use resp::{Args, Protocol, Span};
use stdx::slot::Slot;
use stdx::{Level, Levels, UnixMillis, leb128};

use crate::id::{GatewayId, GroupId, NodeId, TransactionId};
use crate::libraries::Change;
use crate::parameters::{self, Pairs};
use crate::roster::{Gone, Member, read_nodes};
use crate::slots::Moved;

/// With the level, which is the first byte of every entry: the entry must be on disk before it counts, or need not be,
/// whatever the servers are set to.
const ON_DISK: u8 = 64;
const IN_MEMORY: u8 = 128;

/// Bytes before the first item.
pub const HEADER_BYTES: usize = 17;

const COMMAND: u8 = 1;
const EXEC: u8 = 2;
const TICK: u8 = 3;
const INSTALL: u8 = 4;
const PREPARE: u8 = 5;
const RESOLVE: u8 = 6;
const REFUSE: u8 = 7;
const LIMITS: u8 = 8;
const ENLIST: u8 = 9;
const SOURCE: u8 = 10;
const CLAIM: u8 = 11;
const PREFER: u8 = 20;
const SCRIPT: u8 = 12;
const LIBRARIES: u8 = 13;
const MOVED: u8 = 30;
const WANT: u8 = 31;
const CONFIGURE: u8 = 22;
const PLACE: u8 = 32;
const BALANCE: u8 = 33;
const FOUND: u8 = 34;
const RISE: u8 = 37;
const FORGET: u8 = 38;
const DIVIDE: u8 = 39;
const SPLIT: u8 = 40;
const BORN: u8 = 41;
const MERGE: u8 = 42;
const RETIRE: u8 = 43;
const END: u8 = 44;

/// The level that brought a kind of item. An item that is new since level 1 is named here, and is begun with
/// [`Builder::begin_item`], so that none of it comes into the log of a group that is not at its level yet.
const fn level_of_item(kind: u8) -> Level {
    match kind {
        RISE | FORGET | DIVIDE | SPLIT | BORN | MERGE | RETIRE | END => Level(2),
        _ => Level::FIRST,
    }
}

const RESP3: u8 = 1;

/// When what was asked for counts as kept. The order is that of strictness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// When a majority has given it to the operating system.
    Memory,
    /// As the servers are set (`appendfsync`).
    #[default]
    Server,
    /// When a majority has it on disk.
    Disk,
}

/// The level at which an entry was written: who does not know it cannot read the entry. An entry without data is of
/// every level.
pub fn level(entry: &[u8]) -> Level {
    entry.first().map_or(Level::FIRST, |first| Level(first & !(ON_DISK | IN_MEMORY)))
}

/// How durable an entry must be before it counts.
pub fn durability(entry: &[u8]) -> Durability {
    match entry.first().map(|version| version & (ON_DISK | IN_MEMORY)) {
        Some(ON_DISK) => Durability::Disk,
        Some(IN_MEMORY) => Durability::Memory,
        _ => Durability::Server,
    }
}

/// A watched key and what it looked like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Its database.
    pub database: u16,
    /// The key.
    pub key: Vec<u8>,
    /// `Keyspace::version` when it was watched; 0 if it was absent.
    pub version: u64,
}

/// One change that a transaction over several groups makes to one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The key now has this value and deadline, as `Keyspace::export` gave them, or is gone.
    Key {
        /// Its database.
        database: u16,
        /// The key.
        key: Vec<u8>,
        /// New state.
        exported: Option<Vec<u8>>,
    },
    /// The database is now empty.
    Flush {
        /// Which.
        database: u16,
    },
    /// Two databases changed places.
    Swap {
        /// One.
        first: u16,
        /// The other.
        second: u16,
    },
    /// The group does not hold this slot any more.
    Give(Moved),
    /// The group holds this slot from now on.
    Take(Box<Taken>),
    /// The group keeps this answer for as many milliseconds.
    Answer(Box<Answered>),
}

/// A slot that comes from another group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Which.
    pub slot: Slot,
    /// How often it has moved by then.
    pub epoch: u64,
    /// The sequence of the group that gives it.
    pub sequence: u64,
    /// The latest version of a key that has gone from it there.
    pub gone: u64,
    /// The latest moment there: what had expired by then does not come back.
    pub unix: UnixMillis,
    /// The keys, as `Keyspace::export_slot` gave them.
    pub records: Vec<u8>,
    /// Replies to requests with an id and a first key in the slot, as [`put_answered`] lays them out, with the moment
    /// at which each is forgotten.
    pub answered: Vec<u8>,
}

/// A request that a client has given an id, so that it is carried out once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// The slot of its first key, or of the id if it has none: the answer is kept by the group that holds it.
    pub slot: Slot,
    /// The id.
    pub id: Vec<u8>,
    /// Of the words and everything else that makes the request what it is.
    pub digest: u64,
}

/// What a request with an id was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Which request.
    pub request: RequestId,
    /// For how long it is known, or until when.
    pub ms: u64,
    /// The answer.
    pub reply: Vec<u8>,
}

impl Effect {
    /// Bytes that it takes up, roughly.
    pub fn byte_count(&self) -> usize {
        match self {
            Self::Key { key, exported, .. } => 16 + key.len() + exported.as_ref().map_or(0, Vec::len),
            Self::Take(taken) => 64 + taken.records.len() + taken.answered.len(),
            Self::Answer(answered) => 64 + answered.request.id.len() + answered.reply.len(),
            Self::Flush { .. } | Self::Swap { .. } | Self::Give(_) => 16,
        }
    }

    /// The value that a key has from then on.
    pub fn exported(&self) -> Option<&[u8]> {
        match self {
            Self::Key { exported, .. } => exported.as_deref(),
            Self::Flush { .. } | Self::Swap { .. } | Self::Give(_) | Self::Take(_) | Self::Answer(_) => None,
        }
    }

    /// The slot that it moves, if it does.
    pub fn slot(&self) -> Option<Slot> {
        match self {
            Self::Give(moved) => Some(moved.slot),
            Self::Take(taken) => Some(taken.slot),
            Self::Key { .. } | Self::Flush { .. } | Self::Swap { .. } | Self::Answer(_) => None,
        }
    }
}

/// Which request of which gateway an item carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The gateway.
    pub gateway: GatewayId,
    /// The request's number in its stream to this group.
    pub number: u64,
    /// The gateway has the answers to all below this number.
    pub floor: u64,
}

/// A decoded item. Borrowed from its entry.
pub enum Item<'a> {
    /// Execute one command.
    Command {
        /// Protocol its reply is written in.
        protocol: Protocol,
        /// Database it was sent to.
        database: u16,
        /// The words.
        args: Args<'a>,
    },
    /// Execute several commands if no watched key has changed.
    Exec(ExecItem<'a>),
    /// Nothing but the entry's moment.
    Tick,
    /// Change keys, now.
    Install {
        /// On behalf of this transaction.
        transaction: TransactionId,
        /// How.
        effects: Vec<Effect>,
    },
    /// Remember changes until the transaction is resolved.
    Prepare {
        /// Which.
        transaction: TransactionId,
        /// All groups that prepare it.
        participants: Vec<u32>,
        /// The changes to this one.
        effects: Vec<Effect>,
    },
    /// Make remembered changes, or forget them.
    Resolve {
        /// Which.
        transaction: TransactionId,
        /// True to make them.
        commit: bool,
        /// Transactions of the same gateway numbered below this are resolved in every group.
        low_water: u64,
    },
    /// Refuse to prepare this transaction, should it still come.
    Refuse {
        /// Which.
        transaction: TransactionId,
    },
    /// From here on, collections change their form by these.
    Limits(Limits),
    /// Who is to lead a group whenever that is possible.
    Prefer {
        /// Which group.
        group: GroupId,
        /// Who; `None` for anyone who does.
        node: Option<NodeId>,
    },
    /// What the others must know of a node of the cluster.
    Enlist {
        /// Which.
        node: NodeId,
        /// What.
        member: Member,
    },
    /// Execute the commands that a script has called.
    Script {
        /// They.
        commands: ExecItem<'a>,
        /// What its gateway is told; nothing if no gateway numbers it.
        answer: &'a [u8],
    },
    /// Change the libraries of functions.
    Libraries(Change),
    /// A gateway has asked for something of a slot that another group holds: tell it so.
    Moved(Slot),
    /// A group must hold these slots, from the first to the last.
    Want {
        /// First and last.
        slots: (Slot, Slot),
        /// Who.
        group: GroupId,
    },
    /// Set parameters of the cluster.
    Configure(Pairs),
    /// Which nodes must hold a group.
    Place {
        /// Which group.
        group: GroupId,
        /// They; none for all.
        nodes: BTreeSet<u64>,
    },
    /// Whether groups are moved between nodes so that each has its share.
    Balance(bool),
    /// There is another group.
    Found {
        /// Which.
        group: GroupId,
        /// The nodes that vote in it first.
        voters: BTreeSet<u64>,
    },
    /// From here on the group is at this level.
    Rise(Level),
    /// Nobody will ask any more how these transactions ended.
    Forget(Vec<TransactionId>),
    /// There is another group, which splits off from one that there is.
    Divide {
        /// Which.
        group: GroupId,
        /// From which.
        parent: GroupId,
        /// With which slots: first and last of each run.
        slots: Vec<(Slot, Slot)>,
    },
    /// A group splits off from this one here, with what it holds of these slots.
    Split {
        /// Which.
        group: GroupId,
        /// First and last of each run.
        slots: Vec<(Slot, Slot)>,
    },
    /// The group begins with what it was when it split off.
    Born(Born),
    /// A group is to go, and another one to hold its slots.
    Merge {
        /// Which.
        group: GroupId,
        /// The other one.
        into: GroupId,
    },
    /// A group that was to go has gone.
    Retire {
        /// Which.
        group: GroupId,
        /// What it says of its end.
        gone: Gone,
    },
    /// The group ends here, if it holds nothing any more.
    End,
}

/// Where a group split off from another one: what it begins with is what that one's log has made by then of the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Born {
    /// The other one.
    pub parent: GroupId,
    /// Index of the entry in its log by which it split.
    pub index: u64,
}

impl Born {
    /// What the first entry of a group's log says of where it split off; none if it did not.
    pub fn of_entry(entry: &[u8]) -> Option<Self> {
        let (_, mut reader) = open(entry).filter(|_| entry.get(HEADER_BYTES) == Some(&BORN))?;
        match reader.item(&mut Vec::new()) {
            Some(Item::Born(born)) => Some(born),
            _ => None,
        }
    }
}

/// True if an entry ends its group: that is the first item of it.
pub fn is_end(entry: &[u8]) -> bool {
    entry.get(HEADER_BYTES) == Some(&END)
}

/// Each is moved a few times on its way.
const _: () = assert!(size_of::<Item<'_>>() <= 96);

/// A decoded MULTI/EXEC.
#[derive(Clone)]
pub struct ExecItem<'a> {
    /// Protocol its reply is written in.
    pub protocol: Protocol,
    /// What must not have changed.
    pub watches: Vec<Watch>,
    count: usize,
    commands: &'a [u8],
}

impl<'a> ExecItem<'a> {
    /// Number of commands.
    pub fn command_count(&self) -> usize {
        self.count
    }

    /// Calls `run` with each command's database and words.
    pub fn for_each(self, spans: &mut Vec<Span>, mut run: impl FnMut(u16, Args<'_>)) {
        let mut commands = Reader::new(self.commands);
        for _ in 0..self.count {
            let (database, args) = commands.words(spans);
            run(database, args);
        }
    }
}

/// Appends bytes behind their length.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    leb128::put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a command's words with the database they were sent to.
#[inline]
pub fn put_words(out: &mut Vec<u8>, database: u16, args: Args<'_>) {
    leb128::put(out, u64::from(database));
    leb128::put(out, args.len() as u64);
    for word in args.iter() {
        leb128::put(out, word.len() as u64);
    }
    for word in args.iter() {
        out.extend_from_slice(word);
    }
}

fn protocol_flag(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Resp2 => 0,
        Protocol::Resp3 => RESP3,
    }
}

/// A batch of items that will be one entry.
#[derive(Debug)]
pub struct Builder {
    payload: Vec<u8>,
    source: Option<Claimed>,
    durability: Durability,
    /// It says which group or node must hold what.
    must_be_kept: bool,
    level: Level,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            payload: vec![0; HEADER_BYTES],
            source: None,
            durability: Durability::Server,
            must_be_kept: false,
            level: Level::FIRST,
        }
    }
}

impl Builder {}

/// Appends what stands behind an EXEC item's flags.
pub fn put_exec<'b>(out: &mut Vec<u8>, watches: impl ExactSizeIterator<Item = &'b Watch>, count: usize, words: &[u8]) {
    leb128::put(out, watches.len() as u64);
    for watch in watches {
        leb128::put(out, u64::from(watch.database));
        put_bytes(out, &watch.key);
        out.extend_from_slice(&watch.version.to_le_bytes());
    }
    leb128::put(out, count as u64);
    out.extend_from_slice(words);
}

/// Appends participants and effects, as a PREPARE item and a checkpoint hold them.
pub fn put_prepared(out: &mut Vec<u8>, participants: &[u32], effects: &[Effect]) {
    leb128::put(out, participants.len() as u64);
    for participant in participants {
        leb128::put(out, u64::from(*participant));
    }
    put_effects(out, effects);
}

/// Bytes that effects take in an entry, a few for each aside.
pub fn effects_bytes(effects: &[Effect]) -> usize {
    let of_one = |effect: &Effect| match effect {
        Effect::Key { key, exported, .. } => key.len() + exported.as_ref().map_or(0, Vec::len) + 32,
        Effect::Take(_) | Effect::Answer(_) => effect.byte_count(),
        Effect::Flush { .. } | Effect::Swap { .. } | Effect::Give(_) => 32,
    };
    effects.iter().map(of_one).sum()
}

fn put_effects(out: &mut Vec<u8>, effects: &[Effect]) {
    leb128::put(out, effects.len() as u64);
    for effect in effects {
        match effect {
            Effect::Key { database, key, exported } => {
                out.push(if exported.is_some() { 1 } else { 0 });
                leb128::put(out, u64::from(*database));
                put_bytes(out, key);
                if let Some(exported) = exported {
                    put_bytes(out, exported);
                }
            }
            Effect::Flush { database } => {
                out.push(2);
                leb128::put(out, u64::from(*database));
            }
            Effect::Swap { first, second } => {
                out.push(3);
                leb128::put(out, u64::from(*first));
                leb128::put(out, u64::from(*second));
            }
            Effect::Give(moved) => {
                out.push(4);
                moved.put(out);
            }
            Effect::Take(taken) => {
                out.push(if taken.answered.is_empty() { 5 } else { 6 });
                leb128::put(out, u64::from(taken.slot.0));
                leb128::put(out, taken.epoch);
                leb128::put(out, taken.sequence);
                leb128::put(out, taken.gone);
                out.extend_from_slice(&taken.unix.0.to_le_bytes());
                put_bytes(out, &taken.records);
                if !taken.answered.is_empty() {
                    put_bytes(out, &taken.answered);
                }
            }
            Effect::Answer(answered) => {
                out.push(7);
                put_answered(out, answered);
            }
        }
    }
}

/// Appends what a request with an id was answered.
pub fn put_answered(out: &mut Vec<u8>, answered: &Answered) {
    let Answered { request, ms, reply } = answered;
    leb128::put(out, u64::from(request.slot.0));
    put_bytes(out, &request.id);
    out.extend_from_slice(&request.digest.to_le_bytes());
    leb128::put(out, *ms);
    put_bytes(out, reply);
}

/// Takes words that another node has laid out as [`put_words`] does: none if they do not fit, or if there is no word.
/// `spans` is overwritten.
pub fn take_words<'a: 's, 's>(rest: &mut &'a [u8], spans: &'s mut Vec<Span>) -> Option<(u16, Args<'s>)> {
    let database = u16::try_from(leb128::take(rest)?).ok()?;
    let count = leb128::take(rest)?;
    spans.clear();
    let mut start = 0_u32;
    for _ in 0..count {
        let end = u32::try_from(leb128::take(rest)?).ok().and_then(|length| start.checked_add(length))?;
        spans.push(Span { start, end });
        start = end;
    }
    let (words, behind) = rest.split_at_checked(start as usize)?;
    *rest = behind;
    (count > 0).then(|| (database, Args::new(words, spans)))
}

/// True if another node has laid this out as [`put_exec`] does, and all of it is right: the databases of watched keys,
/// and the commands with theirs. `spans` is overwritten.
pub fn check_exec(
    packed: &[u8],
    spans: &mut Vec<Span>,
    mut is_right: impl FnMut(u16, Option<Args<'_>>) -> bool,
) -> bool {
    let mut rest = packed;
    let mut check = || {
        for _ in 0..leb128::take(&mut rest)? {
            let database = u16::try_from(leb128::take(&mut rest)?).ok()?;
            let key_bytes = usize::try_from(leb128::take(&mut rest)?).ok()?;
            let version_at = rest.split_at_checked(key_bytes)?.1;
            rest = version_at.split_at_checked(8)?.1;
            is_right(database, None).then_some(())?;
        }
        for _ in 0..leb128::take(&mut rest)? {
            let (database, args) = take_words(&mut rest, spans)?;
            is_right(database, Some(args)).then_some(())?;
        }
        rest.is_empty().then_some(())
    };
    check().is_some()
}

/// Passes over bytes behind their length, as [`put_bytes`] writes them.
pub(crate) fn take_bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(leb128::take(rest)?).ok()?;
    let (bytes, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(bytes)
}

/// True for an entry that only says that time has passed.
pub fn is_tick(entry: &[u8]) -> bool {
    entry.len() == HEADER_BYTES + 1 && entry[HEADER_BYTES] == TICK
}

/// Reads the moment of an entry and leaves a reader at its first item. `None` for a new leader's empty entry.
///
/// # Panics
/// If the entry was written at a level that this version does not know: going on would lose data. Directories and links
/// of such a level are refused, so it does not come this far.
pub fn open(entry: &[u8]) -> Option<(Moment, Reader<'_>)> {
    if entry.is_empty() {
        return None;
    }
    let (level, known) = (level(entry), Levels::KNOWN);
    assert!(known.contains(level), "a log entry written at level {level}, and this version knows {known}");
    let moment = Moment {
        unix: UnixMillis(i64::from_le_bytes(entry[1..9].try_into().expect("eight bytes"))),
        seed: u64::from_le_bytes(entry[9..17].try_into().expect("eight bytes")),
    };
    Some((moment, Reader { bytes: entry, position: HEADER_BYTES, source: None, claimed: None }))
}

/// A place between two items of a batch, from which it can be read on.
#[derive(Clone, Copy, Debug)]
pub struct Bookmark {
    position: usize,
    source: Option<Claimed>,
}

impl Default for Bookmark {
    /// The first item.
    fn default() -> Self {
        Self { position: HEADER_BYTES, source: None }
    }
}

/// Reads what the functions above wrote. A log entry is covered by checksums and was laid out by this very module, so
/// whatever does not fit is a defect of ours and stops the process.
#[derive(Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
    /// What the last SOURCE said.
    source: Option<Claimed>,
    /// Which request the item read last carries out.
    claimed: Option<Claimed>,
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0, source: None, claimed: None }
    }

    /// A reader of a batch, at a place where another has been.
    pub fn resume(bytes: &'a [u8], bookmark: Bookmark) -> Self {
        Self { bytes, position: bookmark.position, source: bookmark.source, claimed: None }
    }

    /// Where it is.
    pub fn bookmark(&self) -> Bookmark {
        Bookmark { position: self.position, source: self.source }
    }

    /// True if everything has been read.
    pub fn is_done(&self) -> bool {
        self.position == self.bytes.len()
    }

    /// What has not been read.
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.position..]
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        let byte = self.bytes[self.position];
        self.position += 1;
        byte
    }

    /// A number in LEB128.
    #[inline]
    pub fn number(&mut self) -> u64 {
        let mut rest = &self.bytes[self.position..];
        let number = leb128::take(&mut rest).expect("a number of at most 64 bits in a log entry");
        self.position = self.bytes.len() - rest.len();
        number
    }

    /// A number in eight bytes.
    pub fn fixed(&mut self) -> u64 {
        let end = self.position + 8;
        let number = u64::from_le_bytes(self.bytes[self.position..end].try_into().expect("eight bytes"));
        self.position = end;
        number
    }

    /// Bytes behind their length.
    pub fn bytes(&mut self) -> &'a [u8] {
        let length = self.number() as usize;
        let start = self.position;
        self.position += length;
        &self.bytes[start..self.position]
    }

    /// A command's database and words; `spans` is overwritten.
    #[inline]
    pub fn words<'s>(&mut self, spans: &'s mut Vec<Span>) -> (u16, Args<'s>)
    where
        'a: 's,
    {
        let database = self.number() as u16;
        let count = self.number() as usize;
        spans.clear();
        let mut start = 0;
        for _ in 0..count {
            let end = start + self.number() as u32;
            spans.push(Span { start, end });
            start = end;
        }
        let words = &self.bytes[self.position..self.position + start as usize];
        self.position += start as usize;
        (database, Args::new(words, spans))
    }

    fn effects(&mut self) -> Vec<Effect> {
        let count = self.number();
        (0..count)
            .map(|_| match self.byte() {
                kind @ (0 | 1) => Effect::Key {
                    database: self.number() as u16,
                    key: self.bytes().to_vec(),
                    exported: (kind == 1).then(|| self.bytes().to_vec()),
                },
                2 => Effect::Flush { database: self.number() as u16 },
                3 => Effect::Swap { first: self.number() as u16, second: self.number() as u16 },
                4 => Effect::Give(self.moved()),
                kind @ (5 | 6) => Effect::Take(Box::new(Taken {
                    slot: Slot(self.number() as u16),
                    epoch: self.number(),
                    sequence: self.number(),
                    gone: self.number(),
                    unix: UnixMillis(self.fixed().cast_signed()),
                    records: self.bytes().to_vec(),
                    answered: if kind == 6 { self.bytes().to_vec() } else { Vec::new() },
                })),
                7 => Effect::Answer(Box::new(self.answered())),
                kind => panic!("an effect of kind {kind} in a log entry"),
            })
            .collect()
    }

    /// What [`put_answered`] wrote.
    pub fn answered(&mut self) -> Answered {
        let slot = Slot(self.number() as u16);
        let request = RequestId { slot, id: self.bytes().to_vec(), digest: self.fixed() };
        Answered { request, ms: self.number(), reply: self.bytes().to_vec() }
    }

    fn slots(&mut self) -> Vec<(Slot, Slot)> {
        (0..self.number()).map(|_| (Slot(self.number() as u16), Slot(self.number() as u16))).collect()
    }

    /// What `Moved::put` wrote.
    pub fn moved(&mut self) -> Moved {
        Moved { slot: Slot(self.number() as u16), group: GroupId(self.number() as u32), epoch: self.number() }
    }

    /// Participants and effects as [`put_prepared`] wrote them.
    pub fn prepared(&mut self) -> (Vec<u32>, Vec<Effect>) {
        let count = self.number();
        let participants = (0..count).map(|_| self.number() as u32).collect();
        (participants, self.effects())
    }

    /// What stands behind an EXEC item's flags.
    pub fn exec(&mut self, protocol: Protocol, spans: &mut Vec<Span>) -> ExecItem<'a> {
        let watches = (0..self.number())
            .map(|_| Watch { database: self.number() as u16, key: self.bytes().to_vec(), version: self.fixed() })
            .collect();
        self.commands(protocol, watches, spans)
    }

    fn commands(&mut self, protocol: Protocol, watches: Vec<Watch>, spans: &mut Vec<Span>) -> ExecItem<'a> {
        let count = self.number() as usize;
        let start = self.position;
        for _ in 0..count {
            self.words(spans);
        }
        ExecItem { protocol, watches, count, commands: &self.bytes[start..self.position] }
    }

    /// The next item, or `None` at the end; `spans` is overwritten.
    #[inline]
    pub fn item<'s>(&mut self, spans: &'s mut Vec<Span>) -> Option<Item<'s>>
    where
        'a: 's,
    {
        if self.is_done() {
            return None;
        }
        self.claimed = self.claim();
        Some(match self.byte() {
            COMMAND => {
                let protocol = self.protocol();
                let (database, args) = self.words(spans);
                Item::Command { protocol, database, args }
            }
            EXEC => {
                let protocol = self.protocol();
                Item::Exec(self.exec(protocol, spans))
            }
            TICK => Item::Tick,
            INSTALL => Item::Install { transaction: TransactionId::read(self), effects: self.effects() },
            PREPARE => {
                let transaction = TransactionId::read(self);
                let (participants, effects) = self.prepared();
                Item::Prepare { transaction, participants, effects }
            }
            RESOLVE => Item::Resolve {
                transaction: TransactionId::read(self),
                commit: self.byte() == 1,
                low_water: self.number(),
            },
            REFUSE => Item::Refuse { transaction: TransactionId::read(self) },
            LIMITS => Item::Limits(Limits::read(self.bytes()).expect("limits in a log entry")),
            PREFER => {
                let group = GroupId(self.number() as u32);
                Item::Prefer { group, node: Some(NodeId(self.number())).filter(|node| node.0 != 0) }
            }
            ENLIST => Item::Enlist { node: NodeId(self.number()), member: Member::read(self) },
            LIBRARIES => Item::Libraries(Change::read(self)),
            MOVED => Item::Moved(Slot(self.number() as u16)),
            WANT => Item::Want {
                slots: (Slot(self.number() as u16), Slot(self.number() as u16)),
                group: GroupId(self.number() as u32),
            },
            CONFIGURE => Item::Configure(parameters::read(self)),
            PLACE => Item::Place { group: GroupId(self.number() as u32), nodes: read_nodes(self) },
            BALANCE => Item::Balance(self.byte() != 0),
            FOUND => Item::Found { group: GroupId(self.number() as u32), voters: read_nodes(self) },
            RISE => Item::Rise(Level(self.byte())),
            FORGET => Item::Forget((0..self.number()).map(|_| TransactionId::read(self)).collect()),
            DIVIDE => Item::Divide {
                group: GroupId(self.number() as u32),
                parent: GroupId(self.number() as u32),
                slots: self.slots(),
            },
            SPLIT => Item::Split { group: GroupId(self.number() as u32), slots: self.slots() },
            MERGE => Item::Merge { group: GroupId(self.number() as u32), into: GroupId(self.number() as u32) },
            RETIRE => Item::Retire { group: GroupId(self.number() as u32), gone: Gone::read(self) },
            END => Item::End,
            BORN => Item::Born(Born { parent: GroupId(self.number() as u32), index: self.number() }),
            SCRIPT => {
                let answer = self.bytes();
                Item::Script { answer, commands: self.commands(Protocol::Resp2, Vec::new(), spans) }
            }
            tag => panic!("an item of kind {tag} in a log entry"),
        })
    }

    /// Which request of which gateway the item that was read last carries out, if it is one of a cluster's.
    pub fn claimed(&self) -> Option<Claimed> {
        self.claimed
    }

    #[inline]
    fn claim(&mut self) -> Option<Claimed> {
        loop {
            match self.bytes.get(self.position) {
                Some(&SOURCE) => {
                    self.position += 1;
                    let gateway = GatewayId::read(self);
                    self.source = Some(Claimed { gateway, number: self.number(), floor: self.number() });
                }
                Some(&CLAIM) => {
                    self.position += 1;
                    let delta = self.number();
                    let source = self.source.expect("a claim follows its source");
                    return Some(Claimed { number: source.number + delta, ..source });
                }
                _ => return None,
            }
        }
    }

    /// Passes over the next item, and calls `visit` with what its words probably name: the first word behind the name
    /// is a key of nearly every command, and the next one often a field or a member. False at the end, and at an item
    /// that is not for a client.
    pub fn skim(&mut self, visit: &mut impl FnMut(PrefetchTarget<'a>)) -> bool {
        self.claim();
        match self.bytes.get(self.position) {
            Some(&COMMAND) => {
                self.position += 2;
                self.skim_words(visit);
            }
            Some(&EXEC) => {
                self.position += 2;
                for _ in 0..self.number() {
                    let (database, key) = (self.number() as u16, self.bytes());
                    self.fixed();
                    visit(PrefetchTarget { database, key, element: &[] });
                }
                for _ in 0..self.number() {
                    self.skim_words(visit);
                }
            }
            Some(&SCRIPT) => {
                self.position += 1;
                self.bytes();
                for _ in 0..self.number() {
                    self.skim_words(visit);
                }
            }
            _ => return false,
        }
        true
    }

    /// The same for the words of one command, as [`put_words`] lays them out.
    pub fn skim_words(&mut self, visit: &mut impl FnMut(PrefetchTarget<'a>)) {
        let database = self.number() as u16;
        let count = self.number();
        let (mut first, mut second) = (0..0, 0..0);
        let mut length = 0;
        for word in 0..count {
            let start = length;
            length += self.number() as usize;
            match word {
                1 => first = start..length,
                2 => second = start..length,
                _ => {}
            }
        }
        let words = &self.bytes[self.position..self.position + length];
        self.position += length;
        if count > 1 {
            visit(PrefetchTarget { database, key: &words[first], element: &words[second] });
        }
    }

    fn protocol(&mut self) -> Protocol {
        if self.byte() & RESP3 == 0 { Protocol::Resp2 } else { Protocol::Resp3 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_args<R>(words: &[&[u8]], act: impl FnOnce(Args<'_>) -> R) -> R {
        let (mut buffer, mut spans) = (Vec::new(), Vec::new());
        for word in words {
            let start = buffer.len() as u32;
            buffer.extend_from_slice(word);
            spans.push(Span { start, end: buffer.len() as u32 });
        }
        act(Args::new(&buffer, &spans))
    }

    #[test]
    fn skimming_names_the_first_word_of_each_command_and_passes_as_many_bytes_as_reading() {
        let mut builder = Builder::default();
        with_args(&[b"set", b"a", &[7; 300]], |args| builder.command(Protocol::Resp2, 0, args));
        with_args(&[b"flushall"], |args| builder.command(Protocol::Resp3, 300, args));
        let watch = Watch { database: 1, key: b"watched".to_vec(), version: 9 };
        let mut words = Vec::new();
        with_args(&[b"incr", b"b"], |args| put_words(&mut words, 2, args));
        with_args(&[b"mset", b"c", b"1", b"d", b"2"], |args| put_words(&mut words, 3, args));
        builder.exec(Protocol::Resp2, std::iter::once(&watch), 2, &words);
        builder.script(2, &words, b"answer");
        builder.tick();
        let entry = builder.finish(Moment { unix: UnixMillis(5), seed: 6 });

        let (_, mut reader) = open(&entry).unwrap();
        let mut skimmed = reader.clone();
        let mut keys = Vec::new();
        let mut spans = Vec::new();
        while skimmed.skim(&mut |ahead| keys.push((ahead.database, ahead.key, ahead.element))) {
            assert!(reader.item(&mut spans).is_some());
            assert_eq!(skimmed.position, reader.position);
        }
        let of_words: [(u16, &[u8], &[u8]); 2] = [(2, b"b", b""), (3, b"c", b"1")];
        assert_eq!(keys[..2], [(0, &b"a"[..], &[7; 300][..]), (1, b"watched", b"")]);
        assert_eq!(keys[2..], of_words.repeat(2));
        assert!(matches!(reader.item(&mut spans), Some(Item::Tick)), "a tick is for no client");
    }
}
