//! Groups of consumers: each has read a stream up to some entry, and knows who was given what and has not acknowledged
//! it.

use std::sync::Arc;

use super::id::Id;
use crate::record::allocated_bytes;
use crate::tree::{self, Element, Tree};

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
    /// Those of them that nobody has, in the order in which they were released.
    released: Tree<Released>,
    /// By name.
    pub(crate) consumers: Tree<Consumer>,
}

/// An entry that was given to a consumer, or has been released since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) id: Id,
    pub(crate) holder: Holder,
    /// How often it was given out; [`GIVEN_UP`] if it is not worth another try.
    pub(crate) count: u64,
}

/// Who has a pending entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The consumer of this name. It got the entry last at this time, in milliseconds since the epoch.
    Consumer(Arc<[u8]>, i64),
    /// Nobody: it was released. What was released earlier has a lower place.
    Nobody(u64),
}

/// The count of an entry that was released as not worth another try. Shown as the highest number that replies have.
pub(crate) const GIVEN_UP: u64 = u64::MAX;

impl Pending {
    /// The consumer's name, unless it was released.
    pub(crate) fn owner(&self) -> Option<&Arc<[u8]>> {
        match &self.holder {
            Holder::Consumer(name, _) => Some(name),
            Holder::Nobody(_) => None,
        }
    }

    /// When it was given out last, in milliseconds since the epoch; 0 if it was released.
    pub(crate) fn time(&self) -> i64 {
        match self.holder {
            Holder::Consumer(_, time) => time,
            Holder::Nobody(_) => 0,
        }
    }

    /// True if nobody has it, or somebody for so many milliseconds.
    pub(crate) fn is_idle(&self, idle_ms_min: i64, now: i64) -> bool {
        self.owner().is_none() || idle_ms_min == 0 || now.saturating_sub(self.time()) >= idle_ms_min
    }

    /// The count as replies show it.
    pub(crate) fn shown_count(&self) -> i64 {
        i64::try_from(self.count).unwrap_or(i64::MAX)
    }

    /// What comes first when idle entries are given out: what was released, then what has been idle for longest.
    pub(crate) fn turn(&self) -> (bool, u64, i64, Id) {
        match self.holder {
            Holder::Nobody(place) => (false, place, 0, self.id),
            Holder::Consumer(_, time) => (true, 0, time, self.id),
        }
    }
}

/// A pending entry that nobody has.
#[derive(Clone, Copy, Debug)]
struct Released {
    place: u64,
    id: Id,
}

impl Element for Released {
    type Key = u64;

    fn key(&self) -> u64 {
        self.place
    }

    fn heap_bytes(&self) -> usize {
        0
    }
}

/// What is left of the places of released entries, to be freed in steps.
pub(crate) struct UnfreedReleased(tree::Unfreed<Vec<Released>>);

impl UnfreedReleased {
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes()
    }

    pub(crate) fn free(&mut self, budget: &mut usize) -> bool {
        self.0.free(budget)
    }
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
        name_bytes(&self.name) + self.pending.bytes() + self.released.bytes() + self.consumers.bytes()
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
pub(crate) fn prefix(name: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let len = name.len().min(8);
    bytes[..len].copy_from_slice(&name[..len]);
    u64::from_be_bytes(bytes)
}

/// The bytes that a name takes.
pub(crate) fn name_bytes(name: &[u8]) -> usize {
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
        let (pending, released, consumers) = (Tree::new(), Tree::new(), Tree::new());
        Self { name: name.into(), last, read, pending, released, consumers }
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
        self.disown(&pending.holder, id);
        true
    }

    /// Takes a pending entry from the consumer that has it, or makes one pending that is not yet, and puts it behind
    /// everything that was released before. The entry then counts as given out `count` times.
    pub(crate) fn release(&mut self, id: Id, count: u64) {
        if let Some(holder) = self.pending(id).map(|pending| pending.holder.clone()) {
            self.disown(&holder, id);
        }
        let last = self.released.len().checked_sub(1).and_then(|rank| self.released.get(rank));
        let place = last.map_or(1, |last| last.place.saturating_add(1));
        self.put_released(id, place, count);
    }

    /// Puts a released entry to its place. False, and nothing has changed, if the place is taken or the entry is
    /// pending already.
    pub(crate) fn take_released(&mut self, id: Id, place: u64, count: u64) -> bool {
        let fits = self.released_rank(place).is_err() && self.pending(id).is_none();
        if fits {
            self.put_released(id, place, count);
        }
        fits
    }

    fn put_released(&mut self, id: Id, place: u64, count: u64) {
        let pending = Pending { id, holder: Holder::Nobody(place), count };
        match rank_of_id(&self.pending, id) {
            Ok(rank) => self.pending.update(rank, |old| *old = pending),
            Err(rank) => self.pending.insert(rank, pending),
        }
        let rank = self.released_rank(place).unwrap_or_else(|rank| rank);
        self.released.insert(rank, Released { place, id });
    }

    fn released_rank(&self, place: u64) -> Result<usize, usize> {
        self.released.search(|key| key.cmp(&place), |released| released.place.cmp(&place)).map(|(rank, _)| rank)
    }

    /// The pending entries that nobody has, in the order in which they were released.
    pub(crate) fn released(&self) -> impl Iterator<Item = Id> {
        self.released.iter().map(|released| released.id)
    }

    /// How many they are.
    pub(crate) fn released_count(&self) -> usize {
        self.released.len()
    }

    /// What must be freed of them in steps.
    pub(crate) fn unfreed_released(&self) -> UnfreedReleased {
        UnfreedReleased(self.released.clone().into_unfreed())
    }

    /// Makes an entry pending for a consumer, which must exist, no matter who had it before.
    pub(crate) fn assign(&mut self, id: Id, owner: &[u8], time: i64, count: u64) {
        let owner_rank = rank_of(&self.consumers, owner).expect("the caller has made the consumer");
        let owner = Arc::clone(&self.consumers.get(owner_rank).expect("just found").name);
        match rank_of_id(&self.pending, id) {
            Err(rank) => {
                self.pending.insert(rank, Pending { id, holder: Holder::Consumer(owner, time), count });
            }
            Ok(rank) => {
                let new = Pending { id, holder: Holder::Consumer(Arc::clone(&owner), time), count };
                let old = self.pending.update(rank, |pending| std::mem::replace(pending, new));
                if old.owner() == Some(&owner) {
                    return;
                }
                self.disown(&old.holder, id);
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
                if let Holder::Consumer(_, given) = &mut pending.holder {
                    *given = time;
                }
                pending.count = pending.count.saturating_add(1);
            });
        }
    }

    /// Makes anyone who had an entry forget it.
    fn disown(&mut self, holder: &Holder, id: Id) {
        let owner = match holder {
            Holder::Consumer(owner, _) => owner,
            Holder::Nobody(place) => {
                let rank = self.released_rank(*place).expect("what is released has its place");
                self.released.remove(rank);
                return;
            }
        };
        let rank = rank_of(&self.consumers, owner).expect("the owner of what is pending is known");
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
