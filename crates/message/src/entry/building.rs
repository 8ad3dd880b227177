//! How an entry is written, item by item.

use std::collections::BTreeSet;
use stdx::slot::Slot;
use stdx::{Level, leb128};

use bytes::Bytes;
use keyspace::{Limits, Moment};
use resp::{Args, Protocol};

use super::{
    BALANCE, BORN, Born, Builder, CLAIM, COMMAND, CONFIGURE, Claimed, DIVIDE, Durability, END, ENLIST, EXEC, Effect,
    FORGET, FOUND, HEADER_BYTES, IN_MEMORY, INSTALL, LIBRARIES, LIMITS, MERGE, MOVED, ON_DISK, PLACE, PREFER, PREPARE,
    REFUSE, RESOLVE, RETIRE, RISE, SCRIPT, SOURCE, SPLIT, TICK, WANT, Watch, level_of_item, protocol_flag, put_bytes,
    put_effects, put_exec, put_prepared, put_words,
};
use crate::id::{GroupId, NodeId, TransactionId};
use crate::roster::{Gone, Member, put_nodes};

impl Builder {
    /// A batch that will probably have as many bytes.
    pub fn with_capacity(byte_count: usize) -> Self {
        let mut payload = Vec::with_capacity(byte_count.max(HEADER_BYTES));
        payload.resize(HEADER_BYTES, 0);
        Self { payload, ..Self::default() }
    }

    /// True if it has no item.
    pub fn is_empty(&self) -> bool {
        self.payload.len() == HEADER_BYTES
    }

    /// Bytes so far.
    pub fn byte_count(&self) -> usize {
        self.payload.len()
    }

    /// The bytes.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The next item carries out this request. Requests of one gateway that follow each other name it once.
    pub fn claim(&mut self, claimed: Claimed) {
        let known = self.source.filter(|source| source.gateway == claimed.gateway && source.number <= claimed.number);
        let base = match known {
            Some(source) => source.number,
            None => {
                self.payload.push(SOURCE);
                claimed.gateway.put(&mut self.payload);
                leb128::put(&mut self.payload, claimed.number);
                leb128::put(&mut self.payload, claimed.floor);
                self.source = Some(claimed);
                claimed.number
            }
        };
        self.payload.push(CLAIM);
        leb128::put(&mut self.payload, claimed.number - base);
    }

    /// How durable the entry must be before it counts, unless [it must be kept](Self::must_be_kept).
    pub fn set_durability(&mut self, durability: Durability) {
        self.durability = durability;
    }

    /// The entry must be on disk before it counts, whatever is enough for clients: it says which group holds what.
    /// Groups lose the ends of their logs independently of each other (a power cut under `appendfsync no`), and would
    /// then disagree about that.
    pub fn must_be_kept(&mut self) {
        self.must_be_kept = true;
    }

    /// The level at which the batch is written.
    pub fn level(&self) -> Level {
        self.level
    }

    /// The group is at this level, or will be before the batch is applied.
    pub fn set_level(&mut self, level: Level) {
        self.level = level;
    }

    /// Adds the kind of an item that did not exist at every level.
    ///
    /// # Panics
    /// If the batch is of a lower level than the item: nodes that do not know the item may get it.
    pub(super) fn begin_item(&mut self, kind: u8) {
        let since = level_of_item(kind);
        assert!(since <= self.level, "an item of level {since} in a batch of level {}", self.level);
        self.payload.push(kind);
    }

    /// Adds that the group is at this level from here on, and so is the batch.
    pub fn rise(&mut self, level: Level) {
        self.level = self.level.max(level);
        self.begin_item(RISE);
        self.payload.push(level.0);
    }

    /// Adds a command.
    #[inline]
    pub fn command(&mut self, protocol: Protocol, database: u16, args: Args<'_>) {
        self.payload.reserve(args.byte_count() + 5 * args.len() + 16);
        self.payload.extend_from_slice(&[COMMAND, protocol_flag(protocol)]);
        put_words(&mut self.payload, database, args);
    }

    /// Adds a command that [`put_words`] has already laid out.
    pub fn packed_command(&mut self, protocol: Protocol, words: &[u8]) {
        self.payload.extend_from_slice(&[COMMAND, protocol_flag(protocol)]);
        self.payload.extend_from_slice(words);
    }

    /// Adds a transaction of this group alone. `words` holds the commands as [`put_words`] laid them out.
    pub fn exec<'b>(
        &mut self,
        protocol: Protocol,
        watches: impl ExactSizeIterator<Item = &'b Watch>,
        count: usize,
        words: &[u8],
    ) {
        self.payload.extend_from_slice(&[EXEC, protocol_flag(protocol)]);
        put_exec(&mut self.payload, watches, count, words);
    }

    /// Adds a transaction laid out by [`put_exec`].
    pub fn packed_exec(&mut self, protocol: Protocol, packed: &[u8]) {
        self.payload.extend_from_slice(&[EXEC, protocol_flag(protocol)]);
        self.payload.extend_from_slice(packed);
    }

    /// Adds nothing but the moment.
    pub fn tick(&mut self) {
        self.payload.push(TICK);
    }

    /// Adds changes to be made at once.
    pub fn install(&mut self, transaction: TransactionId, effects: &[Effect]) {
        self.payload.push(INSTALL);
        transaction.put(&mut self.payload);
        put_effects(&mut self.payload, effects);
    }

    /// Adds changes to be remembered.
    pub fn prepare(&mut self, transaction: TransactionId, participants: &[u32], effects: &[Effect]) {
        self.must_be_kept |= effects.iter().any(|effect| effect.slot().is_some());
        self.payload.push(PREPARE);
        transaction.put(&mut self.payload);
        put_prepared(&mut self.payload, participants, effects);
    }

    /// Adds the end of a transaction.
    pub fn resolve(&mut self, transaction: TransactionId, commit: bool, low_water: u64) {
        self.payload.push(RESOLVE);
        transaction.put(&mut self.payload);
        self.payload.push(u8::from(commit));
        leb128::put(&mut self.payload, low_water);
    }

    /// Adds a refusal.
    pub fn refuse(&mut self, transaction: TransactionId) {
        self.payload.push(REFUSE);
        transaction.put(&mut self.payload);
    }

    /// Adds that nobody will ask about these transactions any more.
    pub fn forget(&mut self, transactions: &[TransactionId]) {
        self.begin_item(FORGET);
        leb128::put(&mut self.payload, transactions.len() as u64);
        transactions.iter().for_each(|transaction| transaction.put(&mut self.payload));
    }

    /// Adds other limits of the forms of collections.
    pub fn limits(&mut self, limits: &Limits) {
        self.payload.push(LIMITS);
        let mut bytes = Vec::new();
        limits.write(&mut bytes);
        put_bytes(&mut self.payload, &bytes);
    }

    /// Adds what the others must know of a node.
    pub fn enlist(&mut self, node: NodeId, member: &Member) {
        self.payload.push(ENLIST);
        leb128::put(&mut self.payload, node.0);
        member.known_at(self.level).put(&mut self.payload);
    }

    /// Adds which node should lead a group.
    pub fn prefer(&mut self, group: GroupId, node: Option<NodeId>) {
        self.payload.push(PREFER);
        leb128::put(&mut self.payload, u64::from(group.0));
        leb128::put(&mut self.payload, node.map_or(0, |node| node.0));
    }

    /// Adds the commands of a script, as [`put_words`] laid them out, and what its gateway is told.
    pub fn script(&mut self, count: usize, words: &[u8], answer: &[u8]) {
        self.payload.push(SCRIPT);
        put_bytes(&mut self.payload, answer);
        leb128::put(&mut self.payload, count as u64);
        self.payload.extend_from_slice(words);
    }

    /// Adds a change of the libraries, as [`Change::encode`] laid it out.
    pub fn libraries(&mut self, change: &[u8]) {
        self.payload.push(LIBRARIES);
        self.payload.extend_from_slice(change);
    }

    /// Adds that a request was for a slot that another group holds.
    pub fn moved(&mut self, slot: Slot) {
        self.payload.push(MOVED);
        leb128::put(&mut self.payload, u64::from(slot.0));
    }

    /// Adds which group must hold some slots.
    pub fn want(&mut self, (first, last): (Slot, Slot), group: GroupId) {
        self.must_be_kept();
        self.payload.push(WANT);
        leb128::put(&mut self.payload, u64::from(first.0));
        leb128::put(&mut self.payload, u64::from(last.0));
        leb128::put(&mut self.payload, u64::from(group.0));
    }

    /// Adds which nodes must hold a group; none for all.
    pub fn place(&mut self, group: GroupId, nodes: &BTreeSet<u64>) {
        self.must_be_kept();
        self.payload.push(PLACE);
        leb128::put(&mut self.payload, u64::from(group.0));
        put_nodes(&mut self.payload, nodes);
    }

    /// Adds whether groups are moved between nodes so that each has its share.
    pub fn balance(&mut self, is_on: bool) {
        self.payload.extend_from_slice(&[BALANCE, u8::from(is_on)]);
    }

    /// Adds that a group is founded by these voters.
    pub fn found(&mut self, group: GroupId, voters: &BTreeSet<u64>) {
        self.must_be_kept();
        self.payload.push(FOUND);
        leb128::put(&mut self.payload, u64::from(group.0));
        put_nodes(&mut self.payload, voters);
    }

    /// Adds that a group splits off from another one, with these slots.
    pub fn divide(&mut self, group: GroupId, parent: GroupId, slots: &[(Slot, Slot)]) {
        self.must_be_kept();
        self.begin_item(DIVIDE);
        leb128::put(&mut self.payload, u64::from(group.0));
        leb128::put(&mut self.payload, u64::from(parent.0));
        put_slots(&mut self.payload, slots);
    }

    /// Adds that this group splits off here, with these slots.
    pub fn split(&mut self, group: GroupId, slots: &[(Slot, Slot)]) {
        self.must_be_kept();
        self.begin_item(SPLIT);
        leb128::put(&mut self.payload, u64::from(group.0));
        put_slots(&mut self.payload, slots);
    }

    /// Adds where the group split off: the only item of the first entry of its log.
    pub fn born(&mut self, born: Born) {
        self.begin_item(BORN);
        leb128::put(&mut self.payload, u64::from(born.parent.0));
        leb128::put(&mut self.payload, born.index);
    }

    /// Adds that a group is to go, and that another one gets its slots.
    pub fn merge(&mut self, group: GroupId, into: GroupId) {
        self.must_be_kept();
        self.begin_item(MERGE);
        leb128::put(&mut self.payload, u64::from(group.0));
        leb128::put(&mut self.payload, u64::from(into.0));
    }

    /// Adds that a group has gone.
    pub fn retire(&mut self, group: GroupId, gone: &Gone) {
        self.must_be_kept();
        self.begin_item(RETIRE);
        leb128::put(&mut self.payload, u64::from(group.0));
        gone.put(&mut self.payload);
    }

    /// Adds that this group ends here.
    pub fn end(&mut self) {
        self.must_be_kept();
        self.begin_item(END);
    }

    /// Sets parameters of the cluster, as [`parameters::encode`] laid them out.
    pub fn configure(&mut self, change: &[u8]) {
        self.payload.push(CONFIGURE);
        self.payload.extend_from_slice(change);
    }

    /// Stamps the moment and gives up the entry.
    pub fn finish(mut self, moment: Moment) -> Bytes {
        assert!(self.level <= Level::MAX, "levels up to {} have room in an entry", Level::MAX);
        self.payload[0] = self.level.0
            | match self.durability {
                _ if self.must_be_kept => ON_DISK,
                Durability::Memory => IN_MEMORY,
                Durability::Server => 0,
                Durability::Disk => ON_DISK,
            };
        self.payload[1..9].copy_from_slice(&moment.unix.0.to_le_bytes());
        self.payload[9..17].copy_from_slice(&moment.seed.to_le_bytes());
        Bytes::from(self.payload)
    }
}

pub(super) fn put_slots(out: &mut Vec<u8>, slots: &[(Slot, Slot)]) {
    leb128::put(out, slots.len() as u64);
    for (first, last) in slots {
        leb128::put(out, u64::from(first.0));
        leb128::put(out, u64::from(last.0));
    }
}
