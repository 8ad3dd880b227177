//! What becomes of the groups of a node when the other nodes are lost for good: see
//! `docs/decisions/0028-recovery-of-a-survivor.md`.
//!
//! A group takes part in transactions over several groups. The log of one group may end before that of another, since
//! each had a quorum of its own. So a transaction may be prepared in one group, while another group has ended it, or
//! has never seen it. [`judge`] applies one rule to all of them, so that no transaction takes effect in a part of the
//! groups that still have their part of it.

use std::collections::BTreeMap;

use message::roster::Member;
use message::{GroupId, NodeId, TransactionId};

use crate::{Outcomes, ReplyCache, State};

/// A transaction over several groups that one of them has prepared without knowing how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unresolved {
    /// Which.
    pub transaction: TransactionId,
    /// Groups that have prepared it.
    pub prepared: Vec<GroupId>,
    /// Groups that have committed it.
    pub committed: Vec<GroupId>,
    /// Groups that have refused or undone it.
    pub aborted: Vec<GroupId>,
    /// Groups that take part in it and know nothing of it, or are not there.
    pub unknown: Vec<GroupId>,
}

impl Unresolved {
    /// Whether it takes effect: a group that knows the end decides. If none does, it takes effect if every group that
    /// takes part has prepared it. Otherwise no client can have been told that it did, unless the log of the group that
    /// lacks it ends too early.
    pub fn is_committed(&self) -> bool {
        !self.committed.is_empty() || (self.aborted.is_empty() && self.unknown.is_empty())
    }

    /// True if it takes effect in some groups, and what it changed in another one is lost.
    pub fn is_torn(&self) -> bool {
        self.is_committed() && !self.unknown.is_empty()
    }
}

/// Every transaction that one of these groups has prepared and not ended.
pub fn judge<'a>(states: impl IntoIterator<Item = &'a State>) -> BTreeMap<TransactionId, Unresolved> {
    let states: BTreeMap<GroupId, &State> = states.into_iter().map(|state| (state.group(), state)).collect();
    let prepared = states.values().flat_map(|state| state.prepared().iter());
    let judged = prepared.map(|(transaction, prepared)| {
        let mut found = Unresolved {
            transaction: *transaction,
            prepared: Vec::new(),
            committed: Vec::new(),
            aborted: Vec::new(),
            unknown: Vec::new(),
        };
        for group in prepared.participants().iter().copied().map(GroupId) {
            let state = states.get(&group);
            let outcome = state.and_then(|state| state.outcome(*transaction));
            let is_prepared = state.is_some_and(|state| state.prepared().contains_key(transaction));
            match outcome {
                Some(true) => found.committed.push(group),
                Some(false) => found.aborted.push(group),
                None if is_prepared => found.prepared.push(group),
                None => found.unknown.push(group),
            }
        }
        (*transaction, found)
    });
    judged.collect()
}

impl State {
    /// Makes it the state of the same group in a new cluster: prepared transactions are ended as `judged` says, what
    /// was kept for gateways of the old cluster goes, and every node of the old cluster counts as removed, `former`, as
    /// this one was called, among them.
    ///
    /// # Panics
    /// If a prepared transaction has not been judged.
    pub fn begin_anew(&mut self, judged: &BTreeMap<TransactionId, Unresolved>, former: NodeId) {
        let prepared: Vec<TransactionId> = self.prepared.keys().copied().collect();
        for transaction in prepared {
            self.resolve(transaction, judged[&transaction].is_committed(), 0);
        }
        self.outcomes = Outcomes::default();
        self.replies = ReplyCache::default();
        self.echoes = crate::Echoes::default();
        if self.group == GroupId(0) {
            let known = self.roster.get(former).cloned().unwrap_or_default();
            self.roster.enlist(former, Member { is_removed: true, ..known });
            self.roster.remove_all();
        }
    }
}
