//! Groups of consumers: each has read a stream up to some entry, and knows who was given what and has not acknowledged
//! it.

use std::sync::Arc;

use super::id::Id;
use crate::record::allocated_bytes;
use crate::tree::{Element, Tree};

/// One group.
#[derive(Clone)]
pub(crate) struct Group {
    pub(crate) name: Arc<[u8]>,
    /// The last entry that was given to a consumer.
    pub(crate) last: Id,
    /// How many entries had been added up to that one, if that is known.
    pub(crate) read: Option<u64>,
    /// What was given out and not acknowledged, by id.
    pub(crate) pending: Tree<Pending>,
    /// By name.
    pub(crate) consumers: Tree<Consumer>,
}

/// An entry that was given to a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) id: Id,
    /// The consumer's name.
    pub(crate) owner: Arc<[u8]>,
    /// When it was given out last, in milliseconds since the epoch.
    pub(crate) time: i64,
    /// How often it was.
    pub(crate) count: u64,
}

/// A consumer.
#[derive(Clone)]
pub(crate) struct Consumer {
    pub(crate) name: Arc<[u8]>,
    /// When it was heard of last, in milliseconds since the epoch.
    pub(crate) seen: i64,
    /// When it was last given anything, if it ever was.
    pub(crate) active: Option<i64>,
    /// What it was given and has not acknowledged.
    pub(crate) pending: Tree<Id>,
}

impl Element for Pending {
    type Key = Id;

    fn key(&self) -> Id {
        self.id
    }

    // The name is the consumer's.
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// What has a name.
pub(crate) trait Named: Element<Key = u64> {
    fn name(&self) -> &[u8];
}

impl Named for Group {
    fn name(&self) -> &[u8] {
        &self.name
    }
}

impl Named for Consumer {
    fn name(&self) -> &[u8] {
        &self.name
    }
}

impl Element for Group {
    type Key = u64;

    fn key(&self) -> u64 {
        prefix(&self.name)
    }

    fn heap_bytes(&self) -> usize {
        name_bytes(&self.name) + self.pending.bytes() + self.consumers.bytes()
    }
}

impl Element for Consumer {
    type Key = u64;

    fn key(&self) -> u64 {
        prefix(&self.name)
    }

    fn heap_bytes(&self) -> usize {
        name_bytes(&self.name) + self.pending.bytes()
    }
}

/// The first bytes of a name, as a number that is ordered as they are.
fn prefix(name: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let len = name.len().min(8);
    bytes[..len].copy_from_slice(&name[..len]);
    u64::from_be_bytes(bytes)
}

fn name_bytes(name: &[u8]) -> usize {
    allocated_bytes(2 * size_of::<usize>() + name.len())
}

/// The rank of the one of this name, or the one that it would get.
pub(crate) fn rank_of<T: Named>(tree: &Tree<T>, name: &[u8]) -> Result<usize, usize> {
    let key = prefix(name);
    tree.search(|other| other.cmp(&key), |element| element.name().cmp(name)).map(|(rank, _)| rank)
}

/// The rank of the one with this id, or the one that it would get.
pub(crate) fn rank_of_id<T: Element<Key = Id>>(tree: &Tree<T>, id: Id) -> Result<usize, usize> {
    // Elements of one key are the same.
    tree.search(|key| key.cmp(&id), |element| element.key().cmp(&id)).map(|(rank, _)| rank)
}

impl Group {
    pub(crate) fn new(name: &[u8], last: Id, read: Option<u64>) -> Self {
        Self { name: name.into(), last, read, pending: Tree::new(), consumers: Tree::new() }
    }

    pub(crate) fn consumer(&self, name: &[u8]) -> Option<&Consumer> {
        rank_of(&self.consumers, name).ok().and_then(|rank| self.consumers.get(rank))
    }

    /// Makes a consumer, unless there is one of this name. True if it did.
    pub(crate) fn add_consumer(&mut self, name: &[u8], now: i64) -> bool {
        let Err(rank) = rank_of(&self.consumers, name) else { return false };
        self.consumers.insert(rank, Consumer { name: name.into(), seen: now, active: None, pending: Tree::new() });
        true
    }

    /// Notes that a consumer was heard of; makes it if there is none of this name. True if it did.
    pub(crate) fn hear_of(&mut self, name: &[u8], now: i64) -> bool {
        match rank_of(&self.consumers, name) {
            Ok(rank) => {
                self.consumers.update(rank, |consumer| consumer.seen = now);
                false
            }
            Err(_) => self.add_consumer(name, now),
        }
    }

    /// Says when a consumer was last given anything, if there is one of this name.
    pub(crate) fn set_active(&mut self, name: &[u8], active: Option<i64>) {
        if let Ok(rank) = rank_of(&self.consumers, name) {
            self.consumers.update(rank, |consumer| consumer.active = active);
        }
    }

    /// Removes a consumer and all that is pending for it; how much that was. `None` if there is none of this name.
    pub(crate) fn remove_consumer(&mut self, name: &[u8]) -> Option<usize> {
        let rank = rank_of(&self.consumers, name).ok()?;
        let consumer = self.consumers.remove(rank);
        for id in consumer.pending.iter() {
            if let Ok(rank) = rank_of_id(&self.pending, *id) {
                self.pending.remove(rank);
            }
        }
        Some(consumer.pending.len())
    }

    pub(crate) fn pending(&self, id: Id) -> Option<&Pending> {
        rank_of_id(&self.pending, id).ok().and_then(|rank| self.pending.get(rank))
    }

    /// Notes that an entry is no longer pending. True if it was.
    pub(crate) fn acknowledge(&mut self, id: Id) -> bool {
        let Ok(rank) = rank_of_id(&self.pending, id) else { return false };
        let pending = self.pending.remove(rank);
        self.disown(&pending.owner, id);
        true
    }

    /// Makes an entry pending for a consumer, which must exist, whoever had it before.
    pub(crate) fn assign(&mut self, id: Id, owner: &[u8], time: i64, count: u64) {
        let owner_rank = rank_of(&self.consumers, owner).expect("the caller has made the consumer");
        let owner = Arc::clone(&self.consumers.get(owner_rank).expect("just found").name);
        match rank_of_id(&self.pending, id) {
            Err(rank) => self.pending.insert(rank, Pending { id, owner, time, count }),
            Ok(rank) => {
                let new = Pending { id, owner: Arc::clone(&owner), time, count };
                let old = self.pending.update(rank, |pending| std::mem::replace(pending, new));
                if old.owner == owner {
                    return;
                }
                self.disown(&old.owner, id);
            }
        }
        self.consumers.update(owner_rank, |consumer| {
            if let Err(rank) = rank_of_id(&consumer.pending, id) {
                consumer.pending.insert(rank, id);
            }
        });
    }

    /// Notes that a pending entry was given to its consumer once more.
    pub(crate) fn give_again(&mut self, id: Id, time: i64) {
        if let Ok(rank) = rank_of_id(&self.pending, id) {
            self.pending.update(rank, |pending| {
                pending.time = time;
                pending.count = pending.count.saturating_add(1);
            });
        }
    }

    fn disown(&mut self, owner: &[u8], id: Id) {
        let rank = rank_of(&self.consumers, owner).expect("what is pending has an owner");
        self.consumers.update(rank, |consumer| {
            let rank = rank_of_id(&consumer.pending, id).expect("the owner knows what is pending for it");
            consumer.pending.remove(rank);
        });
    }

    /// The pending entries of a range, from the first on; of one consumer, if it is named.
    pub(crate) fn pending_range<'a>(
        &'a self,
        start: Id,
        end: Id,
        owner: Option<&'a Consumer>,
    ) -> impl Iterator<Item = &'a Pending> {
        let (mut of_one, mut of_all) = (None, None);
        match owner {
            Some(consumer) => {
                let rank = rank_of_id(&consumer.pending, start).unwrap_or_else(|rank| rank);
                let ids = consumer.pending.range(rank..consumer.pending.len());
                of_one = Some(ids.filter_map(move |&id| self.pending(id)));
            }
            None => {
                let rank = rank_of_id(&self.pending, start).unwrap_or_else(|rank| rank);
                of_all = Some(self.pending.range(rank..self.pending.len()));
            }
        }
        of_one.into_iter().flatten().chain(of_all.into_iter().flatten()).take_while(move |pending| pending.id <= end)
    }

    /// True if the other says the same of the same consumers and entries.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let consumers = |group: &Self| -> Vec<(Arc<[u8]>, i64, Option<i64>)> {
            let facts = |consumer: &Consumer| (Arc::clone(&consumer.name), consumer.seen, consumer.active);
            group.consumers.iter().map(facts).collect()
        };
        (&self.name, self.last, self.read) == (&other.name, other.last, other.read)
            && self.pending.iter().eq(other.pending.iter())
            && consumers(self) == consumers(other)
    }
}
