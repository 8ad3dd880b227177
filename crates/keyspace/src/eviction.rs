//! What goes first when memory is full.
//!
//! As in Redis, nothing is kept in order of use: a few keys are drawn, and the best candidates seen so far stay in a
//! small pool, from which the victim is taken. With five samples this comes close to true LRU.

use stdx::Prng;

use crate::record::Record;
use crate::{Keyspace, Moment};

/// Which keys may be evicted, and which of them first (`maxmemory-policy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// None: writes are refused.
    #[default]
    NoEviction,
    /// The least recently used.
    AllkeysLru,
    /// The least often used.
    AllkeysLfu,
    /// Any.
    AllkeysRandom,
    /// Of those with a deadline, the least recently used.
    VolatileLru,
    /// Of those with a deadline, the least often used.
    VolatileLfu,
    /// Of those with a deadline, any.
    VolatileRandom,
    /// Of those with a deadline, the one that expires first.
    VolatileTtl,
}

impl Policy {
    /// True if uses are counted rather than dated.
    pub fn counts_uses(self) -> bool {
        matches!(self, Self::AllkeysLfu | Self::VolatileLfu)
    }

    /// True if only keys with a deadline may go.
    fn spares_lasting(self) -> bool {
        matches!(self, Self::VolatileLru | Self::VolatileLfu | Self::VolatileRandom | Self::VolatileTtl)
    }

    fn is_random(self) -> bool {
        matches!(self, Self::AllkeysRandom | Self::VolatileRandom)
    }
}

/// Candidates kept from one choice to the next.
const CANDIDATES_MAX: usize = 16;

/// The best candidates seen, the best one last.
#[derive(Default)]
pub(crate) struct Pool {
    policy: Policy,
    candidates: Vec<Candidate>,
}

struct Candidate {
    /// The greater, the sooner it goes.
    worth: u64,
    database: u16,
    key: Vec<u8>,
}

impl Keyspace {
    /// A key to evict under `policy`, with its database; `None` if there is none that may go.
    ///
    /// Only the leader asks, and logs the removal. The key stays until that is applied, so that two calls in between
    /// may name the same one.
    pub fn victim(&self, policy: Policy, prng: &mut Prng, moment: Moment) -> Option<(u16, Vec<u8>)> {
        if policy == Policy::NoEviction {
            return None;
        }
        if policy.is_random() {
            let database = self.draw_database(policy, prng)?;
            return self.sample(policy, database, prng, 1).first().map(|record| (database, record.key().to_vec()));
        }
        let mut pool = self.pool.borrow_mut();
        if pool.policy != policy {
            *pool = Pool { policy, candidates: Vec::new() };
        }
        for database in 0..self.database_count() {
            for record in self.sample(policy, database, prng, self.tuning.samples.max(1) as usize) {
                pool.offer(self.worth(policy, record, moment), database, record.key());
            }
        }
        // Candidates may have gone meanwhile, or may have lost their deadline. One that was used meanwhile goes all the
        // same; that is the imprecision Redis accepts, too.
        while let Some(Candidate { database, key, .. }) = pool.candidates.pop() {
            if self.find(database, &key).is_some_and(|record| may_go(policy, record)) {
                return Some((database, key));
            }
        }
        None
    }

    /// A database with keys that may go, each with a chance in proportion to their number.
    fn draw_database(&self, policy: Policy, prng: &mut Prng) -> Option<u16> {
        let sizes =
            self.databases.iter().map(|table| if policy.spares_lasting() { table.expiring } else { table.count });
        let total: usize = sizes.clone().sum();
        let mut nth = (total > 0).then(|| prng.below(total as u64) as usize)?;
        for (database, size) in (0..).zip(sizes) {
            if nth < size {
                return Some(database);
            }
            nth -= size;
        }
        unreachable!("the total is the sum of the sizes")
    }

    /// Up to `count` keys that may go: neighbours from a random place on, and from further places if there are too few.
    fn sample(&self, policy: Policy, database: u16, prng: &mut Prng, count: usize) -> Vec<&Record> {
        let table = &self.databases[usize::from(database)];
        let size = if policy.spares_lasting() { table.expiring } else { table.count };
        let mut sampled = Vec::with_capacity(count);
        for _ in 0..if size == 0 { 0 } else { count } {
            let nth = prng.below(size as u64) as usize;
            let (segment, _) = table.nth_segment(nth, policy.spares_lasting()).expect("there are that many");
            let records = segment.sample(prng.draw()).filter(|record| may_go(policy, record));
            sampled.extend(records.take(count - sampled.len()));
            if sampled.len() == count {
                break;
            }
        }
        sampled
    }

    fn worth(&self, policy: Policy, record: &Record, moment: Moment) -> u64 {
        match (policy, record.deadline()) {
            // The order of unsigned numbers, from the latest deadline to the earliest.
            (Policy::VolatileTtl, Some(deadline)) => !((deadline as u64) ^ (1 << 63)),
            _ => self.clock().staleness(record.clock(), moment),
        }
    }
}

fn may_go(policy: Policy, record: &Record) -> bool {
    !policy.spares_lasting() || record.deadline().is_some()
}

impl Pool {
    fn offer(&mut self, worth: u64, database: u16, key: &[u8]) {
        let known = |candidate: &Candidate| candidate.database == database && candidate.key == key;
        if let Some(at) = self.candidates.iter().position(known) {
            self.candidates.remove(at);
        }
        let at = self.candidates.partition_point(|candidate| candidate.worth < worth);
        if self.candidates.len() < CANDIDATES_MAX {
            self.candidates.insert(at, Candidate { worth, database, key: key.to_vec() });
        } else if at > 0 {
            self.candidates[..at].rotate_left(1);
            self.candidates[at - 1] = Candidate { worth, database, key: key.to_vec() };
        }
    }
}

#[cfg(test)]
mod tests;
