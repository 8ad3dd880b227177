//! Locks that transactions over several groups hold on the keys of one group.
//!
//! Only a group's leader keeps them, in memory. Those of prepared transactions can be found again from the group's
//! state by a new leader; those of transactions not yet prepared vanish with the leader, and with them the transaction.

use std::collections::BTreeMap;

use stdx::{Duration, Instant};

use crate::transaction::TransactionId;

/// The keys of a group that are locked, and by whom. A key is locked by its name in all databases at once.
#[derive(Debug, Default)]
pub struct Locks {
    keys: BTreeMap<Vec<u8>, TransactionId>,
    whole: Option<TransactionId>,
    holders: BTreeMap<TransactionId, Vec<Vec<u8>>>,
    /// When each holder was first looked after.
    since: BTreeMap<TransactionId, Instant>,
}

impl Locks {
    /// True if nothing is locked: the usual case, which must cost nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// Number of transactions that hold locks.
    pub fn holder_count(&self) -> usize {
        self.holders.len()
    }

    /// True if this transaction holds anything.
    pub fn is_held_by(&self, transaction: TransactionId) -> bool {
        self.holders.contains_key(&transaction)
    }

    /// True if somebody holds this key.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.whole.is_some() || self.keys.contains_key(key)
    }

    /// Locks the keys, or every key. They must be free; one transaction may name a key twice.
    ///
    /// # Panics
    /// If one of them is held by another transaction.
    pub fn take(&mut self, transaction: TransactionId, keys: impl Iterator<Item = Vec<u8>>, whole: bool) {
        let held = self.holders.entry(transaction).or_default();
        for key in keys {
            let before = self.keys.insert(key.clone(), transaction);
            assert!(before.is_none_or(|holder| holder == transaction), "a key was locked twice");
            held.push(key);
        }
        if whole {
            assert!(self.whole.is_none(), "a group was locked twice");
            self.whole = Some(transaction);
        }
    }

    /// Transactions that have held something for so long.
    pub fn stale(&mut self, now: Instant, patience: Duration) -> Vec<TransactionId> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut stale = Vec::new();
        for holder in self.holders.keys() {
            let since = *self.since.entry(*holder).or_insert(now);
            if now.since(since) >= patience {
                stale.push(*holder);
            }
        }
        stale
    }

    /// A transaction has not held anything for long.
    pub fn renew(&mut self, transaction: TransactionId, now: Instant) {
        if let Some(since) = self.since.get_mut(&transaction) {
            *since = now;
        }
    }

    /// Nobody has held anything for long.
    pub fn touch(&mut self, now: Instant) {
        self.since.values_mut().for_each(|since| *since = now);
    }

    /// Lets go of all that a transaction holds.
    pub fn release(&mut self, transaction: TransactionId) {
        self.since.remove(&transaction);
        for key in self.holders.remove(&transaction).unwrap_or_default() {
            self.keys.remove(&key);
        }
        if self.whole == Some(transaction) {
            self.whole = None;
        }
    }

    /// Lets go of everything, when leadership is lost.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
