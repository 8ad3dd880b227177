//! Votes, terms and leases of a replica, and what a voter may say that has lost the end of its log.

use std::collections::{BTreeMap, BTreeSet};
use stdx::Instant;
use stdx::log::Membership;

use raft::StateRole;
use raft::eraftpb::Entry as InnerEntry;

use super::{Replica, is_change};
use crate::change::Change;
use crate::limits;
use crate::message::{Message, MessageKind};

/// Who has said yes to this replica, as far as the library has not been told because of somebody's doubt.
///
/// An entry that was acknowledged may be gone from one in doubt, so the usual quorum proves nothing. But anyone who is
/// at least as far as *every* voter holds whatever any of them still holds: with such an election nothing is lost but
/// what nobody has any more. A vote itself is always on disk before it is given, so there is still one leader in a
/// term.
#[derive(Debug, Default)]
pub(super) struct Ballot {
    /// What is asked, and in which term.
    pub(super) subject: Option<(MessageKind, u64)>,
    /// Who has said yes, and up to which entry that one may have acknowledged the log; [`NUMBER_MAX`] if that is not
    /// known.
    ///
    /// [`NUMBER_MAX`]: limits::NUMBER_MAX
    pub(super) granted: BTreeMap<u64, u64>,
    pub(super) held: Vec<Message>,
}

impl Replica {
    /// A leader asks a quorum to bear with it for some more time: the library's next heartbeats carry the question.
    pub(super) fn ask_for_lease(&mut self) {
        let raft = &self.raft.raft;
        let term = raft.term;
        let is_wanted = self.is_leader()
            && !self.is_alone()
            && raft.lead_transferee.is_none()
            && !self.lease.is_surrendered(term)
            && raft.commit_to_current_term()
            && raft.pending_read_count() < limits::READS_WAITING_MAX;
        if is_wanted {
            let context = self.lease.next_context();
            self.lease.ask(context, self.now, term);
            let mut question = raft::eraftpb::Message::default();
            question.set_entries(
                vec![InnerEntry { data: context.to_le_bytes().to_vec().into(), ..InnerEntry::default() }].into(),
            );
            let raft = &mut self.raft.raft;
            let committed = raft.raft_log.committed;
            raft.read_only.add_request(committed, question, self.options.node);
        }
    }

    /// True if nobody else can lead at this instant, so that what has been applied here is all that anybody was told.
    /// The clock must have been read after the question came.
    pub fn has_lease(&self, now: Instant) -> bool {
        let raft = &self.raft.raft;
        self.is_leader() && raft.lead_transferee.is_none() && self.lease.is_valid(raft.term, now)
    }

    /// May it not yet ask for votes?
    ///
    /// Ticks may come in a burst: for its own vote, too, the clock decides. While a checkpoint is written there is
    /// nothing between what is applied and the beginning of the log. And who is alone has won as soon as it asks: what
    /// it holds must be on disk by then, which requests for votes wait for where there are others.
    pub(super) fn must_rest(&self) -> bool {
        let log = &self.raft.raft.raft_log;
        self.promise.holds() || self.restoring != 0 || self.is_alone() && log.persisted < log.last_index()
    }

    /// Starts an election now, if this replica may. One that does not vote may not: without any voters it would win.
    pub fn campaign(&mut self) {
        if self.raft.raft.promotable() && !self.must_rest() {
            let _ = self.raft.campaign(); // a leader or a learner ignores it
            self.draw_election_timeout();
        }
    }

    /// The highest term that is taken from others now. Terms grow by elections; anyone who says a number far ahead
    /// leads nobody further than [`limits::TERM_JUMP_MAX`] in the time of an election, however often it says so.
    pub(super) fn term_ceiling(&mut self) -> u64 {
        if self.ticks - self.term_base.0 >= limits::TERM_CLIMB_TICKS {
            self.term_base = (self.ticks, self.raft.raft.term);
        }
        self.term_base.1 + limits::TERM_JUMP_MAX
    }

    /// Somebody is in a term that is not believed. Should an honest member have been led there, the others must come to
    /// it some time: they go there in steps, seldom. A node that has no say in the group costs one that is led no
    /// election.
    pub(super) fn climb(&mut self, from: u64, ceiling: u64) {
        let is_led = self.is_leader() || self.promise.holds();
        if is_led && !self.has_say(from) {
            return;
        }
        let rest = if is_led { limits::TERM_CLIMB_TICKS_LED } else { limits::TERM_CLIMB_TICKS };
        if self.ticks - self.climbed < rest || self.raft.raft.term >= ceiling {
            return;
        }
        self.climbed = self.ticks;
        self.raft.raft.become_follower(ceiling, raft::INVALID_ID);
        self.draw_election_timeout();
    }

    /// Takes a yes, and returns those that count now.
    pub(super) fn count_vote(&mut self, vote: Message) -> Vec<Message> {
        let raft = &self.raft.raft;
        let is_awaited = match vote.kind {
            MessageKind::PreVoteReply => raft.state == StateRole::PreCandidate && vote.inner.term == raft.term + 1,
            _ => raft.state == StateRole::Candidate && vote.inner.term == raft.term,
        };
        if !is_awaited {
            return Vec::new();
        }
        let subject = Some((vote.kind, vote.inner.term));
        if self.ballot.subject != subject {
            self.ballot = Ballot { subject, ..Ballot::default() };
        }
        // Older versions do not say how far, and one in doubt does not know.
        let is_known = !vote.is_in_doubt && vote.inner.index > 0;
        let last = if is_known { vote.inner.index } else { limits::NUMBER_MAX };
        self.ballot.granted.insert(vote.from(), last);
        let mut counting = Vec::new();
        if self.recovery.is_some() || vote.is_in_doubt {
            self.ballot.held.push(vote);
        } else {
            counting.push(vote);
        }
        if self.missing_voters().is_empty() {
            counting.append(&mut self.ballot.held);
        }
        counting
    }

    /// True for a member, or one that may be a voter already.
    fn has_say(&self, node: u64) -> bool {
        let Membership { learners, learners_next, .. } = &self.membership;
        learners.contains(&node) || learners_next.contains(&node) || self.electorate().contains(&node)
    }

    /// All who vote, or may vote already without this replica's knowing it: the log says so, and it is not known to be
    /// committed, nor known that it cannot be.
    pub(super) fn electorate(&self) -> BTreeSet<u64> {
        let membership = &self.membership;
        let mut all: BTreeSet<u64> = membership.voters.iter().chain(&membership.voters_outgoing).copied().collect();
        let changes: Vec<(u64, Option<Change>)> = self.changes_to_come().collect();
        // By those who have said yes so far. Of two changes the second may have been decided by more than the first's.
        let cannot_be_committed = |index: u64| {
            let voters = &membership.voters;
            let may_hold = |node: &&u64| {
                **node == self.options.node || self.ballot.granted.get(node).is_none_or(|last| *last >= index)
            };
            changes.len() == 1
                && membership.voters_outgoing.is_empty()
                && voters.iter().filter(may_hold).count() <= voters.len() / 2
        };
        all.extend(changes.iter().filter_map(|(index, change)| match change {
            Some(Change::AddVoter(node)) if !cannot_be_committed(*index) => Some(*node),
            _ => None,
        }));
        all
    }

    /// Changes of membership in the log that have not been applied, each with its index; `None` for one that cannot be
    /// read.
    pub fn changes_to_come(&self) -> impl Iterator<Item = (u64, Option<Change>)> {
        let applied = self.raft.raft.raft_log.applied;
        let entries = self.raft.store().entries_after(applied);
        entries.filter(|entry| is_change(entry)).map(|entry| (entry.index, Change::decode(&entry.data)))
    }

    /// Of a replica in doubt: the voters that have not said yes to it, as far as it has asked them.
    pub fn missing_voters(&self) -> Vec<u64> {
        let has_voted = |node: &u64| *node == self.options.node || self.ballot.granted.contains_key(node);
        self.electorate().into_iter().filter(|node| !has_voted(node)).collect()
    }

    /// Takes the end of the log for whole although it may not be: an operator says so. What only this replica had
    /// acknowledged, and lost, is given up.
    pub fn trust(&mut self) {
        self.recovery = None;
    }

    /// If others are asked for their votes now, all starts over. Nodes that may already vote, but are no voters here
    /// yet, are asked too; the library asks the others.
    pub(super) fn begin_ballot(&mut self, messages: &mut Vec<Message>) {
        let is_request = |message: &&Message| matches!(message.kind, MessageKind::Vote | MessageKind::PreVote);
        let Some(request) = messages.iter().find(is_request).cloned() else { return };
        self.ballot = Ballot::default();
        let membership = &self.membership;
        let knows = |node: &u64| membership.voters.contains(node) || membership.voters_outgoing.contains(node);
        for node in self.electorate().into_iter().filter(|node| !knows(node) && *node != self.options.node) {
            let mut invitation = request.clone();
            invitation.inner.to = node;
            messages.push(invitation);
        }
    }

    /// True if a leader sends other entries where this replica's are committed. The library would take it for a message
    /// of the past.
    pub(super) fn is_overtaken_by(&self, message: &Message) -> bool {
        let inner = &message.inner;
        let (floor, committed) = (self.floor_index(), self.committed_index());
        let before = std::iter::once((inner.index, inner.log_term));
        let mut all = before.chain(inner.entries.iter().map(|entry| (entry.index, entry.term)));
        // Terms of a log never go back, so something is known of forgotten entries, too.
        let floor_term = self.term_at(floor).unwrap_or_default();
        inner.index < committed
            && all.any(|(index, term)| match self.term_at(index) {
                Some(own) => index <= committed && own != term,
                None => index < floor && term > floor_term,
            })
    }

    /// The others may count this replica among those that vote since the group began, and it has never held anything of
    /// the group. So it has acknowledged nothing that it could have forgotten, and votes as anyone with an empty log.
    pub fn let_vote_vacant(&mut self, may_vote: bool) {
        self.votes_vacant = may_vote;
    }

    /// True if this replica answers those who ask for its vote.
    pub fn may_vote(&self) -> bool {
        !self.is_vacant() || self.votes_vacant
    }

    /// The library draws election time-outs from the thread's generator whenever it resets one. Ours replaces it, so
    /// that the same seed gives the same elections.
    pub(super) fn draw_election_timeout(&mut self) {
        let raft = &mut self.raft.raft;
        let key = Some((raft.term, raft.state, raft.leader_id));
        if key != self.drawn_for {
            self.drawn_for = key;
            let least = self.options.election_ticks + limits::ELECTION_TICKS_BEHIND;
            let mut draw = |spread: u32| self.jitter.below(u64::from(spread)) as usize;
            self.election_timeout_ticks = least as usize + draw(limits::ELECTION_TICKS_SPREAD);
            let (least, spread) = match raft.state {
                StateRole::Candidate => limits::CAMPAIGN_TICKS,
                _ => limits::PRE_CAMPAIGN_TICKS,
            };
            self.campaign_ticks = least as usize + draw(spread);
        }
        raft.set_randomized_election_timeout(self.election_timeout_ticks);
    }
}
