//! Locks that transactions over several groups hold on the keys of one group.
//!
//! Only a group's leader keeps them, in memory. Those of prepared transactions can be found again from the group's
//! state by a new leader; those of transactions not yet prepared vanish with the leader, and with them the transaction.
//!
//! ```text
//!   locked ── prepared ── decided: its end is on its way into the log ── applied
//!   ▲                     ▲ the next transaction may take the keys over:
//!   │                     │ it is given the values that are about to be
//!   └ everybody waits ────┴ commands wait on ────────────────────────────┘
//! ```

use std::collections::BTreeMap;

use message::TransactionId;
use stdx::slot::{Slot, slot_of};
use stdx::{Duration, Instant};

/// One granting of locks to a transaction, named by the term of the leader and a number of its own.
///
/// What a gateway has read under its locks holds only as long as it has these: they may be taken from one that is
/// believed dead, and then be granted again to a late copy of its request. The default is that of a mover of slots,
/// which never asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FencingToken {
    /// Of the leader.
    pub term: u64,
    /// Among that leader's tokens.
    pub number: u64,
}

/// The keys of a group that are locked, and the transactions that hold them. A key is locked by its name in all
/// databases at once.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    keys: BTreeMap<Vec<u8>, TransactionId>,
    /// Slots that move: all their keys.
    slots: BTreeMap<u16, TransactionId>,
    whole: Option<TransactionId>,
    holders: BTreeMap<TransactionId, Holder>,
    /// When each holder was first looked after.
    since: BTreeMap<TransactionId, Instant>,
    /// Number of the last fencing token.
    granted_count: u64,
}

#[derive(Debug, Default)]
struct Holder {
    keys: Vec<Vec<u8>>,
    token: FencingToken,
    /// Keys taken over from transactions that were decided and not yet applied.
    inherited: BTreeMap<Vec<u8>, TransactionId>,
    /// It is committed; only its end has yet to be logged and applied.
    is_decided: bool,
    /// What it changes is on its way through the log: anyone who took its keys now would be overtaken by it.
    is_logged: bool,
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

    /// Transactions that hold locks.
    pub fn holders(&self) -> impl Iterator<Item = TransactionId> {
        self.holders.keys().copied()
    }

    /// CopyCount of locks that go when nobody comes back to them. The changes of the others are on their way through
    /// the log.
    pub fn lapsable(&self) -> impl Iterator<Item = TransactionId> {
        self.holders.iter().filter(|(_, state)| !state.is_logged).map(|(holder, _)| *holder)
    }

    /// True if this transaction holds anything.
    pub fn is_held_by(&self, transaction: TransactionId) -> bool {
        self.holders.contains_key(&transaction)
    }

    /// Names what a transaction has just been granted.
    pub fn grant(&mut self, transaction: TransactionId, term: u64) -> FencingToken {
        self.granted_count += 1;
        let token = FencingToken { term, number: self.granted_count };
        self.holders.entry(transaction).or_default().token = token;
        token
    }

    /// What a transaction holds, if it does.
    pub fn token_of(&self, transaction: TransactionId) -> Option<FencingToken> {
        self.holders.get(&transaction).map(|holder| holder.token)
    }

    /// True if somebody holds this key.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.whole.is_some() || self.keys.contains_key(key) || self.covers_slot_of(key)
    }

    fn covers_slot_of(&self, key: &[u8]) -> bool {
        !self.slots.is_empty() && self.slots.contains_key(&slot_of(key).0)
    }

    /// True if the whole group is locked.
    pub fn is_whole_held(&self) -> bool {
        self.whole.is_some()
    }

    /// True if a move holds this slot.
    pub fn is_slot_held(&self, slot: Slot) -> bool {
        self.slots.contains_key(&slot.0)
    }

    /// Locks slots that move. Transactions may still hold keys of them: see [`Locks::are_slots_free`].
    ///
    /// # Panics
    /// If another move holds one of them: both would carry the slot's keys, and the later what they were before.
    pub fn take_slots(&mut self, transaction: TransactionId, slots: impl Iterator<Item = Slot>) {
        self.holders.entry(transaction).or_default();
        for slot in slots {
            let before = self.slots.insert(slot.0, transaction);
            assert!(before.is_none_or(|before| before == transaction), "a slot was locked twice");
        }
    }

    /// True if no other transaction holds a key of the slots that this one has locked.
    pub fn are_slots_free(&self, transaction: TransactionId) -> bool {
        let is_of_these = |key: &[u8]| self.slots.get(&slot_of(key).0) == Some(&transaction);
        self.whole.is_none() && !self.keys.keys().any(|key| is_of_these(key))
    }

    /// True if another transaction may take this key: it is free, or its holder is decided.
    pub fn is_open(&self, key: &[u8]) -> bool {
        let is_decided = |holder: &TransactionId| self.holders.get(holder).is_some_and(|holder| holder.is_decided);
        self.whole.is_none() && self.keys.get(key).is_none_or(is_decided) && !self.covers_slot_of(key)
    }

    /// Locks the keys, or every key. They must be [open](Self::is_open); one transaction may name a key twice.
    ///
    /// # Panics
    /// If one of them is held by another transaction.
    pub fn take(&mut self, transaction: TransactionId, keys: impl Iterator<Item = Vec<u8>>, whole: bool) {
        self.holders.entry(transaction).or_default();
        for key in keys {
            let is_open = self.is_open(&key);
            let before = self.keys.insert(key.clone(), transaction).filter(|before| *before != transaction);
            let held = self.holders.get_mut(&transaction).expect("just made");
            held.keys.push(key.clone());
            if let Some(before) = before {
                assert!(is_open, "a key was locked twice");
                held.inherited.insert(key, before);
            }
        }
        if whole {
            assert!(self.whole.is_none(), "a group was locked twice");
            self.whole = Some(transaction);
        }
    }

    /// A transaction is committed: others may take over its keys.
    pub fn decide(&mut self, transaction: TransactionId) {
        if let Some(holder) = self.holders.get_mut(&transaction) {
            holder.is_decided = true;
        }
    }

    /// The transaction from which this one has taken over the key, if what that one does has not been applied yet.
    pub fn predecessor(&self, transaction: TransactionId, key: &[u8]) -> Option<TransactionId> {
        self.holders.get(&transaction)?.inherited.get(key).copied().filter(|before| self.is_held_by(*before))
    }

    /// Transactions that have held something for so long.
    pub fn stale(&mut self, now: Instant, patience: Duration) -> Vec<TransactionId> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut stale = Vec::new();
        for (holder, _) in self.holders.iter().filter(|(_, state)| !state.is_logged) {
            let since = *self.since.entry(*holder).or_insert(now);
            if now.since(since) >= patience {
                stale.push(*holder);
            }
        }
        stale
    }

    /// What a transaction changes is on its way through the log, or has come to its end. Until then its locks do not
    /// go stale, however long the disk takes.
    pub fn set_logged(&mut self, transaction: TransactionId, is_logged: bool) {
        if let Some(holder) = self.holders.get_mut(&transaction) {
            holder.is_logged = is_logged;
        }
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

    /// Lets go of all that a transaction holds. What it has taken over from one that is not applied yet goes back.
    pub fn release(&mut self, transaction: TransactionId) {
        self.since.remove(&transaction);
        let holder = self.holders.remove(&transaction).unwrap_or_default();
        for key in holder.keys {
            if self.keys.get(&key) == Some(&transaction) {
                match holder.inherited.get(&key).filter(|before| self.is_held_by(**before)) {
                    Some(before) => _ = self.keys.insert(key, *before),
                    None => _ = self.keys.remove(&key),
                }
            } else {
                self.disinherit(transaction, &key);
            }
        }
        self.slots.retain(|_, by| *by != transaction);
        if self.whole == Some(transaction) {
            self.whole = None;
        }
    }

    /// Nobody takes a key over from a transaction that is gone: a late copy of its request may lock again what it has
    /// long handed on, and from then on it is the heir.
    fn disinherit(&mut self, transaction: TransactionId, key: &[u8]) {
        let mut heir = self.keys.get(key).copied();
        while let Some(holder) = heir.and_then(|heir| self.holders.get_mut(&heir)) {
            heir = holder.inherited.get(key).copied();
            if heir == Some(transaction) {
                holder.inherited.remove(key);
                return;
            }
        }
    }

    /// Locks for the next time that this replica leads: nothing is held, and no fencing token gets a number that was
    /// given.
    pub fn successor(&self) -> Self {
        Self { granted_count: self.granted_count, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use message::GatewayId;

    use super::*;
    use crate::ids::CoreId;

    fn transaction(number: u64) -> TransactionId {
        TransactionId { gateway: GatewayId { node: 1, boot: 1, core: CoreId(0) }, number }
    }

    fn keys(names: &[&str]) -> impl Iterator<Item = Vec<u8>> {
        names.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn a_key_is_handed_on_once_its_holder_is_decided_and_stays_covered_until_the_last_is_applied() {
        let mut locks = Locks::default();
        locks.take(transaction(1), keys(&["a", "b"]), false);
        assert!(!locks.is_open(b"a") && locks.is_open(b"c"));
        locks.decide(transaction(1));
        assert!(locks.is_open(b"a") && locks.covers(b"a"));
        locks.take(transaction(2), keys(&["a", "c"]), false);
        assert!(!locks.is_open(b"a") && locks.is_open(b"b"));
        assert_eq!(locks.predecessor(transaction(2), b"a"), Some(transaction(1)));
        assert_eq!(locks.predecessor(transaction(2), b"c"), None);
        // The first is applied: what it handed on is not its own any more.
        locks.release(transaction(1));
        assert!(locks.covers(b"a") && !locks.covers(b"b"));
        assert_eq!(locks.predecessor(transaction(2), b"a"), None);
        locks.release(transaction(2));
        assert!(locks.is_empty() && !locks.covers(b"a"));
    }

    #[test]
    fn a_slot_that_moves_waits_for_those_who_hold_its_keys_and_lets_no_others_in() {
        let mut locks = Locks::default();
        locks.take(transaction(1), keys(&["{a}1"]), false);
        locks.take_slots(transaction(2), [slot_of(b"a")].into_iter());
        assert!(locks.covers(b"{a}2") && !locks.is_open(b"{a}2") && !locks.covers(b"b"));
        assert!(!locks.are_slots_free(transaction(2)));
        locks.release(transaction(1));
        assert!(locks.are_slots_free(transaction(2)) && locks.covers(b"{a}1"));
        locks.release(transaction(2));
        assert!(locks.is_empty() && !locks.covers(b"{a}2"));
    }

    #[test]
    fn locks_go_stale_but_not_while_their_changes_are_on_their_way_through_the_log() {
        let (mut locks, patience) = (Locks::default(), Duration::from_secs(10));
        let at = |seconds| Instant::from_nanos(1) + Duration::from_secs(seconds);
        locks.take(transaction(1), keys(&["a"]), false);
        assert_eq!(locks.stale(at(0), patience), []);
        locks.set_logged(transaction(1), true);
        assert_eq!(locks.stale(at(30), patience), []);
        locks.set_logged(transaction(1), false);
        assert_eq!(locks.stale(at(31), patience), [transaction(1)]);
    }

    #[test]
    fn locks_that_are_taken_again_are_another_grant() {
        let mut locks = Locks::default();
        let take = |locks: &mut Locks| {
            locks.take(transaction(1), keys(&["a"]), false);
            let token = locks.grant(transaction(1), 7);
            assert_eq!(locks.token_of(transaction(1)), Some(token));
            token
        };
        let first = take(&mut locks);
        locks.release(transaction(1));
        assert_eq!(locks.token_of(transaction(1)), None);
        let second = take(&mut locks);
        locks = locks.successor();
        let third = take(&mut locks);
        assert!(first != second && second != third && third != first && first != FencingToken::default());
    }

    #[test]
    fn a_transaction_that_comes_back_late_inherits_from_its_own_heir_and_leaves_it_the_key() {
        let mut locks = Locks::default();
        locks.take(transaction(1), keys(&["a"]), false);
        locks.decide(transaction(1));
        locks.take(transaction(2), keys(&["a"]), false);
        locks.release(transaction(1));
        locks.decide(transaction(2));
        locks.take(transaction(1), keys(&["a"]), false);
        assert_eq!(locks.predecessor(transaction(1), b"a"), Some(transaction(2)));
        assert_eq!(locks.predecessor(transaction(2), b"a"), None);
        locks.release(transaction(1));
        assert!(locks.covers(b"a"), "the other one is not applied yet");
    }

    #[test]
    fn a_slot_moves_once_at_a_time() {
        let mut locks = Locks::default();
        let (slot, other) = (slot_of(b"a"), slot_of(b"b"));
        locks.take_slots(transaction(1), [slot].into_iter());
        assert!(locks.is_slot_held(slot) && !locks.is_slot_held(other));
        locks.take_slots(transaction(1), [slot].into_iter());
        locks.release(transaction(1));
        assert!(!locks.is_slot_held(slot));
        locks.take_slots(transaction(2), [slot, other].into_iter());
    }

    #[test]
    fn a_key_goes_back_to_whom_it_was_taken_over_from() {
        let mut locks = Locks::default();
        locks.take(transaction(1), keys(&["a"]), false);
        locks.decide(transaction(1));
        locks.take(transaction(2), keys(&["a"]), false);
        locks.release(transaction(2));
        assert!(locks.covers(b"a") && locks.is_open(b"a"));
        locks.take(transaction(3), keys(&["a"]), false);
        assert_eq!(locks.predecessor(transaction(3), b"a"), Some(transaction(1)));
        locks.release(transaction(1));
        locks.release(transaction(3));
        assert!(!locks.covers(b"a"));
    }
}
