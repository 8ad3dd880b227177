//! Who takes part: changes of voters and learners, lives of members, and members that are fed again.

use std::collections::VecDeque;
use stdx::log::{Entry, Membership};

use raft::StateRole;
use raft::eraftpb::{ConfChangeType, ConfChangeV2, ConfState, Entry as InnerEntry, EntryType};

use super::{Dropped, Recovery, Replica, is_change};
use crate::change::Change;
use crate::limits;
use crate::log::membership_of;
use crate::message::{Message, MessageKind};

/// A peer's life that is being heard, and those before it.
#[derive(Debug)]
pub(super) struct Lives {
    /// `None` after its node has been let go: what it has said until then counts no more.
    pub(super) current: Option<u64>,
    pub(super) ended: VecDeque<u64>,
    /// The life that has ended because its node was let go, and the term in which what it has said counts no more,
    /// where it may have begun after that: see [`Replica::let_go`].
    pub(super) doubtful: Option<(u64, u64)>,
}

impl Lives {
    pub(super) fn new(current: u64) -> Self {
        Self { current: Some(current), ended: VecDeque::new(), doubtful: None }
    }

    /// The node takes no part any more. Should it come back, it does so without what it had, and in another life.
    pub(super) fn end(&mut self) {
        if let Some(ended) = self.current.take() {
            self.ended.push_back(ended);
        }
    }

    /// As [`Self::end`], if nobody knows whether the node has not come back already: in this term it is not heard.
    pub(super) fn end_in_doubt(&mut self, term: u64) {
        self.doubtful = self.current.map(|life| (life, term));
        self.end();
    }

    /// True while a node is not heard that may have every right to be.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.doubtful.is_some() && self.current.is_none()
    }

    /// The doubt is for the leader of that term alone: nothing counts later that was acknowledged to it.
    pub(super) fn end_doubt_but_of(&mut self, led_term: Option<u64>) {
        if let Some((life, _)) = self.doubtful.take_if(|(_, term)| Some(*term) != led_term)
            && self.current.is_none()
        {
            self.ended.retain(|ended| *ended != life);
            self.current = Some(life);
        }
    }

    /// False if the message comes from a life that has ended. Lives of different processes have no order (a clock that
    /// was set back must not silence a node): one not heard of before is the next. Lives of one process have: the first
    /// message of an earlier one may arrive after the first of a later one, by another connection, and must not end it.
    pub(super) fn hear(&mut self, life: u64) -> bool {
        if self.current == Some(life) {
            return true;
        }
        let has_passed =
            |known: &u64| known >> limits::LIFE_COUNT_BITS == life >> limits::LIFE_COUNT_BITS && life <= *known;
        if self.current.iter().chain(&self.ended).any(has_passed) {
            return false;
        }
        self.ended.extend(self.current.replace(life));
        if self.ended.len() > limits::LIVES_MAX {
            self.ended.pop_front();
        }
        true
    }
}

impl Replica {
    /// Adds a change of membership to the log, if this replica leads and no other change is under way. It takes effect
    /// when it is committed.
    ///
    /// # Errors
    /// When nothing has been added.
    pub fn propose_change(&mut self, change: Change) -> Result<(), Dropped> {
        let raft = &mut self.raft.raft;
        if raft.state != StateRole::Leader || raft.lead_transferee.is_some() {
            return Err(Dropped::NotLeader);
        }
        // Until an entry of its own term is committed there may be a change that it does not know to be committed.
        if raft.has_pending_conf() || !raft.commit_to_current_term() {
            return Err(Dropped::Changing);
        }
        let mut entry = InnerEntry { data: change.encode(), ..InnerEntry::default() };
        entry.set_entry_type(EntryType::EntryConfChangeV2);
        raft.pending_conf_index = raft.raft_log.last_index() + 1;
        if !raft.append_entry(&mut [entry]) {
            return Err(Dropped::WindowFull);
        }
        raft.bcast_append();
        Ok(())
    }

    /// Keeps account of changes of membership. True if the log gets one, or one is now known to be committed.
    pub(super) fn note_changes(&mut self, new_entries: &[InnerEntry], commit: u64) -> bool {
        if let Some(first) = new_entries.first() {
            self.changes.retain(|index| *index < first.index);
        }
        let new = new_entries.iter().filter(|entry| is_change(entry));
        let count = self.changes.len();
        self.changes.extend(new.map(|entry| entry.index));
        let mut counts = self.changes.len() > count;
        while self.changes.front().is_some_and(|index| *index <= commit) {
            self.changes.pop_front();
            counts = true;
        }
        counts
    }

    pub(super) fn apply_change(&mut self, entry: &Entry) {
        let change = Change::decode(&entry.data).expect("it was checked when it came");
        self.note_joined(change, entry.index);
        if entry.index <= self.folded_index {
            return;
        }
        let (kind, node) = match change {
            Change::AddLearner(node) => (ConfChangeType::AddLearnerNode, node),
            Change::AddVoter(node) => (ConfChangeType::AddNode, node),
            Change::Remove(node) => (ConfChangeType::RemoveNode, node),
        };
        match change {
            Change::Remove(node) => self.let_go(node, entry.term),
            Change::AddLearner(node) => self.take_back(node),
            Change::AddVoter(_) => {}
        }
        let mut single = raft::eraftpb::ConfChangeSingle::default();
        single.set_change_type(kind);
        single.node_id = node;
        let mut inner = ConfChangeV2::default();
        inner.set_changes(vec![single].into());
        // What cannot be (the last voter would go) is refused on every replica alike.
        if let Ok(state) = self.raft.apply_conf_change(&inner) {
            self.set_membership(&state);
        }
        self.draw_election_timeout();
    }

    /// A node takes no part any more, by an entry of this term. The group that tells who belongs to the cluster takes
    /// nodes back as they are; from others they come back empty, and what they had acknowledged before must not be
    /// believed of them then.
    ///
    /// What a node has acknowledged counts for the leader of that term alone. Others may be far behind: the life that
    /// they hear may be the one in which the node has come back. So may a new leader, for changes of earlier terms.
    pub(super) fn let_go(&mut self, node: u64, term_of_entry: u64) {
        let term = self.raft.raft.term;
        if self.options.group == 0 || !self.is_leader() {
            return;
        }
        let Some(lives) = self.lives.get_mut(&node) else { return };
        if term_of_entry == term { lives.end() } else { lives.end_in_doubt(term) }
    }

    /// A node takes part again. A leader that does not know which of its lives it hears gives up its term: in the next
    /// one nothing counts that was acknowledged before.
    pub(super) fn take_back(&mut self, node: u64) {
        if !self.is_leader() {
            return;
        }
        let term = self.raft.raft.term;
        let Some(lives) = self.lives.get_mut(&node) else { return };
        lives.end_doubt_but_of(Some(term));
        if lives.is_in_doubt() {
            self.raft.raft.become_follower(term, raft::INVALID_ID);
        }
    }

    pub(super) fn note_joined(&mut self, change: Change, index: u64) {
        let joined = &mut self.raft.mut_store().joined;
        match change {
            Change::AddLearner(node) => _ = joined.insert(node, index),
            Change::Remove(node) => _ = joined.remove(&node),
            Change::AddVoter(_) => {}
        }
    }

    pub(super) fn set_membership(&mut self, state: &ConfState) {
        self.membership = membership_of(state);
        // Those that have promised were a quorum of those who took part before.
        self.lease.end();
        let raft = &mut self.raft.raft;
        if raft.state == StateRole::Leader && !self.membership.voters.contains(&self.options.node) {
            // The library lets who applies its own removal lead on, and then looks for its progress, which is gone.
            raft.become_follower(raft.term, raft::INVALID_ID);
        }
    }

    /// Who takes part, as far as entries have been applied.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// True if a change of membership is under way.
    pub fn is_changing(&self) -> bool {
        self.raft.raft.has_pending_conf()
    }

    /// True if, by what this replica holds, the others may have decided something without it: where there are two
    /// voters, and it is one, they cannot, unless it has heard of a change that lets them.
    pub fn may_be_done_without(&self) -> bool {
        let Membership { voters, voters_outgoing, .. } = &self.membership;
        let node = self.options.node;
        // A log that has lost its end may have lost such a change.
        let is_whole = self.recovery.is_none() && voters_outgoing.is_empty();
        let applied = self.raft.raft.raft_log.applied;
        let lets_them = |entry: &InnerEntry| match Change::decode(&entry.data) {
            Some(Change::AddVoter(_)) => true,
            Some(Change::Remove(other)) => other == node,
            _ => false,
        };
        let mut changes = self.raft.store().entries_after(applied).filter(|entry| is_change(entry));
        !is_whole || voters.len() > 2 || !voters.contains(&node) || changes.any(lets_them)
    }

    /// A member says that it holds nothing, although this leader knows of something that it had: it was let go, and was
    /// made a member again before it heard so. It is fed again from where it is.
    pub fn note_emptied(&mut self, node: u64) {
        if !self.is_leader() {
            return;
        }
        let next = self.raft.raft.raft_log.last_index() + 1;
        if self.raft.raft.prs().get(node).is_some_and(|progress| progress.matched > 0) {
            self.probe_anew(node, next);
        }
    }

    /// What a member had acknowledged counts no more: it is asked what it holds, from this entry on.
    pub(super) fn probe_anew(&mut self, node: u64, next: u64) {
        let Some(progress) = self.raft.raft.mut_prs().get_mut(node) else { return };
        progress.matched = 0;
        progress.become_probe();
        progress.next_idx = next;
        self.raft.raft.send_append(node);
    }

    /// A follower has lost the end of its log. What it had acknowledged no longer counts, and it must be sent again.
    pub(super) fn readmit(&mut self, from: u64, incarnation: u64, last: u64) {
        // Before an entry of its term is committed a leader does not know how far the past was committed.
        if !self.is_leader() || !self.raft.raft.commit_to_current_term() {
            return;
        }
        let (term, commit) = (self.raft.raft.term, self.raft.raft.raft_log.committed);
        // Once a life: a duplicate on its way for long would set the follower back.
        let first = self.readmitted.insert(from, incarnation) != Some(incarnation);
        let next = last.min(self.raft.raft.raft_log.last_index()) + 1;
        let Some(progress) = self.raft.raft.prs().get(from) else { return };
        if first && progress.matched > last {
            self.probe_anew(from, next);
        }
        let mut welcome = Message::own(MessageKind::Welcome, self.options.node, from, self.options.incarnation, term);
        welcome.inner.commit = commit;
        self.outbox.push(welcome);
    }

    pub(super) fn ask_to_rejoin(&mut self) {
        let waiting = self.recovery.is_some_and(|recovery| recovery.target.is_none());
        let Some(leader) = self.leader().filter(|_| waiting) else { return };
        let mut rejoin = Message::own(
            MessageKind::Rejoin,
            self.options.node,
            leader,
            self.options.incarnation,
            self.raft.raft.term.max(1),
        );
        rejoin.inner.index = self.last_index();
        self.outbox.push(rejoin);
    }

    pub(super) fn finish_recovery(&mut self) {
        let raft_log = &self.raft.raft.raft_log;
        let held = raft_log.persisted.min(raft_log.committed);
        if let Some(Recovery { target: Some(target) }) = self.recovery
            && held >= target
        {
            self.recovery = None;
        }
    }
}
