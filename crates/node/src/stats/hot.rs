//! Which keys take the most time and the most bytes (HOTKEYS), counted while somebody has asked for it.
//!
//! Each core counts what is measured on it: time where a command is carried out for a client of the node, bytes where
//! its client is answered. The heaviest keys are found with counters for a bounded number of keys (Metwally, Agrawal,
//! El Abbadi: "Efficient computation of frequent and top-k elements in data streams", 2005): a key without a counter
//! takes over that of the lightest, and its count. So a count may be too high, by no more than one part in
//! [`KEYS_MAX`] of all, and a key that has more than that has a counter.
//!
//! Nothing that is logged or replicated depends on any of this. What is counted without being asked for is in
//! [`recent`].

mod recent;

use std::collections::{BTreeMap, BTreeSet};

use resp::Args;
use stdx::slot::slot_of;
use stdx::{Prng, UnixMillis};

use crate::known::Known;

pub use recent::HotKeys;
pub(crate) use recent::Recent;

/// Keys that have a counter, for each of the two measures.
const KEYS_MAX: usize = 256;

/// Keys of one command that are counted: each that has no counter yet is compared with all that have one.
const COMMAND_KEYS_MAX: usize = 256;

/// Longer keys have none.
const KEY_BYTES_MAX: usize = 1_024;

/// What is counted, and for how long.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Time.
    pub(crate) counts_time: bool,
    /// Bytes.
    pub(crate) counts_bytes: bool,
    /// So many keys are answered.
    pub(crate) key_count: usize,
    /// One command in so many is looked at.
    pub(crate) ratio: u64,
    /// Only keys of these slots, if there are any.
    pub(crate) slots: BTreeSet<u16>,
    /// When it began.
    pub(crate) began: UnixMillis,
    /// When it ends by itself.
    pub(crate) ends: Option<UnixMillis>,
    /// What the process had used of processors when it began: for its own work and in the system, in microseconds.
    pub(crate) cpu_us: (u64, u64),
    /// Chooses commands.
    pub(crate) seed: u64,
}

/// Sums of one measure.
#[derive(Clone, Debug, Default)]
pub(crate) struct Weights {
    /// Of all commands.
    pub(crate) all: u64,
    /// Of those with a key that is meant.
    pub(crate) selected: u64,
    /// Of those of them that were looked at.
    pub(crate) sampled: u64,
    keys: BTreeMap<Vec<u8>, u64>,
}

impl Weights {
    /// These are the first of `key_count` keys, which share the weight.
    fn add(&mut self, plan: &Plan, is_sampled: bool, (keys, key_count): (&[&[u8]], usize), weight: u64) {
        self.all += weight;
        let is_meant = |key: &[u8]| plan.slots.is_empty() || plan.slots.contains(&slot_of(key).0);
        if !keys.iter().any(|key| is_meant(key)) {
            return;
        }
        self.selected += weight;
        if is_sampled {
            self.sampled += weight;
            let share = weight / key_count as u64;
            keys.iter().filter(|key| is_meant(key)).for_each(|key| self.add_key(key, share, KEYS_MAX));
        }
    }

    /// So many keys have a counter.
    fn add_key(&mut self, key: &[u8], weight: u64, count_max: usize) {
        if let Some(count) = self.keys.get_mut(key) {
            *count += weight;
        } else if key.len() <= KEY_BYTES_MAX {
            let mut inherited = 0;
            if self.keys.len() == count_max
                && let Some((lightest, count)) = self.keys.iter().min_by_key(|(_, count)| **count)
            {
                inherited = *count;
                let lightest = lightest.clone();
                self.keys.remove(&lightest);
            }
            self.keys.insert(key.to_vec(), inherited + weight);
        }
    }

    /// Adds what another core has counted.
    pub(crate) fn join(&mut self, other: &Self) {
        self.all += other.all;
        self.selected += other.selected;
        self.sampled += other.sampled;
        other.keys.iter().for_each(|(key, count)| *self.keys.entry(key.clone()).or_default() += count);
    }

    /// What a key weighs; 0 if it has no counter.
    fn of(&self, key: &[u8]) -> u64 {
        self.keys.get(key).copied().unwrap_or(0)
    }

    /// The keys that have a counter.
    fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.keys().map(Vec::as_slice)
    }

    /// The heaviest keys, the heaviest first; of equal ones in the order of their names.
    pub(crate) fn heaviest(&self, count: usize) -> Vec<(&[u8], u64)> {
        let mut found: Vec<_> = self.keys.iter().map(|(key, count)| (key.as_slice(), *count)).collect();
        found.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        found.truncate(count);
        found
    }
}

/// What a core has counted.
#[derive(Clone, Debug)]
pub struct Hot {
    pub(crate) plan: Plan,
    /// When it was stopped, and what the process had used of processors then.
    pub(crate) stopped: Option<(UnixMillis, (u64, u64))>,
    prng: Prng,
    /// Nanoseconds.
    pub(crate) time: Weights,
    pub(crate) bytes: Weights,
}

impl Hot {
    pub(crate) fn new(plan: Plan) -> Self {
        let prng = Prng::new(plan.seed);
        Self { plan, stopped: None, prng, time: Weights::default(), bytes: Weights::default() }
    }

    /// True while it counts.
    pub(crate) fn is_active(&self, unix: UnixMillis) -> bool {
        self.stopped.is_none() && self.plan.ends.is_none_or(|end| unix < end)
    }

    fn draw(&mut self) -> bool {
        self.plan.ratio == 1 || self.prng.below(self.plan.ratio) == 0
    }

    /// A command has taken so long.
    pub(crate) fn add_time(&mut self, known: Known, args: Args<'_>, nanos: u64, unix: UnixMillis) {
        if self.plan.counts_time && self.is_active(unix) {
            let is_sampled = self.draw();
            let (keys, key_count) = keys_of(known, args);
            self.time.add(&self.plan, is_sampled, (&keys, key_count), nanos);
        }
    }

    /// A request and its reply have so many bytes.
    pub(crate) fn add_bytes(&mut self, load: &Load, reply_bytes: usize) {
        if self.plan.counts_bytes {
            let is_sampled = self.draw();
            let keys: Vec<&[u8]> = load.keys.iter().map(Vec::as_slice).collect();
            self.bytes.add(&self.plan, is_sampled, (&keys, load.key_count), load.bytes + reply_bytes as u64);
        }
    }
}

/// A request that waits for its reply. The reply's bytes are counted with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// The first of them.
    keys: Vec<Vec<u8>>,
    key_count: usize,
    /// Of the request.
    bytes: u64,
}

impl Load {
    pub(crate) fn new(known: Known, args: Args<'_>) -> Self {
        let digits = |number: usize| u64::from(number.checked_ilog10().unwrap_or(0)) + 1;
        // `*2\r\n`, and for each word `$3\r\nGET\r\n`.
        let words: u64 = args.iter().map(|word| 5 + digits(word.len()) + word.len() as u64).sum();
        let (keys, key_count) = keys_of(known, args);
        let keys = keys.into_iter().map(<[u8]>::to_vec).collect();
        Self { keys, key_count, bytes: 3 + digits(args.len()) + words }
    }
}

/// The first keys of a command, and how many it has.
fn keys_of<'a>(known: Known, args: Args<'a>) -> (Vec<&'a [u8]>, usize) {
    let (mut keys, mut key_count) = (Vec::new(), 0);
    let visit = |index: usize, access: command::Access| {
        if access != command::Access::NotKey {
            key_count += 1;
            if key_count <= COMMAND_KEYS_MAX {
                keys.push(args.at(index));
            }
        }
    };
    known.for_each_key(args, visit);
    (keys, key_count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(slots: &[u16]) -> Plan {
        Plan {
            counts_time: true,
            counts_bytes: true,
            key_count: 10,
            ratio: 1,
            slots: slots.iter().copied().collect(),
            began: UnixMillis(0),
            ends: None,
            cpu_us: (0, 0),
            seed: 1,
        }
    }

    #[test]
    fn the_heaviest_keys_are_found_among_many_more_than_have_a_counter() {
        let mut weights = Weights::default();
        let plan = plan(&[]);
        let mut prng = Prng::new(3);
        for nth in 0..200_000u64 {
            // Each of ten keys has two hundredths of the weight, the rest is spread over a hundred thousand.
            let key =
                if nth % 5 == 0 { format!("hot{}", prng.below(10)) } else { format!("cold{}", prng.below(100_000)) };
            weights.add(&plan, true, (&[key.as_bytes()], 1), 7);
            assert!(weights.keys.len() <= KEYS_MAX);
        }
        let heaviest = weights.heaviest(10);
        assert!(heaviest.iter().all(|(key, _)| key.starts_with(b"hot")), "{heaviest:?}");
        let (real, bound) = (200_000 / 50 * 7, 200_000 * 7 / KEYS_MAX as u64);
        assert!(heaviest.iter().all(|(_, count)| (real / 2..=real * 3 / 2 + bound).contains(count)), "{heaviest:?}");
        assert_eq!(weights.all, 1_400_000);
    }

    #[test]
    fn only_keys_of_the_slots_that_are_meant_count() {
        let mut weights = Weights::default();
        let plan = plan(&[slot_of(b"a").0]);
        weights.add(&plan, true, (&[b"a", b"b"], 2), 10);
        weights.add(&plan, true, (&[b"b"], 1), 10);
        weights.add(&plan, false, (&[b"a"], 1), 10);
        weights.add(&plan, true, (&[], 0), 10);
        assert_eq!((weights.all, weights.selected, weights.sampled), (40, 20, 10));
        assert_eq!(weights.heaviest(9), [(&b"a"[..], 5)]);
    }
}
