//! Groups that do not live on this node: an operator's wish for so many replicas leaves other nodes out.
//!
//! ```text
//!   member ──let go by its leader──▶ hears so ──▶ vacating ──durable──▶ vacant ──placed again──▶ given a checkpoint
//! ```
//!
//! A vacant replica holds nothing, votes for nobody (but see [`Group::step`]) and answers nobody. It keeps the term and
//! the vote that it has given, so that it votes but once in a term whatever it is to the group later. Where the group
//! is led it knows from the statuses of leaders, so that gateways of this node find it.
//!
//! That a member has been let go is told by the leader's status, or by the member's own log. An old status is not
//! believed: of one that knows less than this replica has applied nothing follows. Nor is any where this replica has
//! become one of two voters by entries of the log, and so nothing can have been decided without it, nor while another
//! leader has been heard of late. A second member must say the same, if by the roster there is one, or is to be one,
//! that can: one node that lies must not talk others out of what they hold, however long nobody else is heard. Where
//! there is none, of late is much longer. A member that is let go does not take part again before it has given up what
//! it had, which it tells the leader, and from then on it has another life for the others: what it has acknowledged
//! before counts no more.

use std::collections::{BTreeMap, BTreeSet};

use consensus::{Options, Replica, Role, Seed};
use journal::Append;
use message::slots::Moved;
use stdx::log::Membership;
use stdx::{Duration, Instant, Prng};

use super::{Group, replica_reads};
use crate::group_status::GroupStatus;
use crate::host::Persist;
use crate::ids::{GroupId, NodeId, Now};
use crate::limits;
use crate::output::{NodeView, Output, PeerMessage};
use crate::replica_reads::AppliedPosition;
use crate::timeline::Kind;

/// What a group knows of itself where it does not live.
#[derive(Clone, Debug, Default)]
pub(super) struct Vacancy {
    /// When each node was last heard that has led this replica, and when this one led last.
    heard: BTreeMap<u64, Instant>,
    /// When the first status came.
    told_since: Option<Instant>,
    /// The node that has told that it leads: its term, and when that was heard last.
    told: Option<(NodeId, u64, Instant)>,
    /// The last node that has told so, and since when no other one has.
    claimant: Option<(NodeId, Instant)>,
    /// How far the one that is believed had applied the log.
    applied: u64,
    /// Members that say that this replica is none: up to which entry, and when they said so.
    witnesses: BTreeMap<u64, (u64, Instant)>,
    /// The others do without this replica.
    is_let_go: bool,
    /// Since when it is known here that the group has gone.
    gone_since: Option<Instant>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    None,
    /// What there is is being given up: it is not durable yet.
    Vacating,
    /// It is durable.
    Durable,
}

/// The level at which all nodes answer whether another one is a member. To one that does not know this level the
/// question is no message.
const WITNESSED: stdx::Level = stdx::Level(2);

/// The ticket of the append by which a replica gives up its log: behind all tickets of its life.
const LAST_TICKET: u64 = u64::MAX;

impl Group {
    /// True if this node holds nothing of the group, or is giving up what it has.
    #[inline]
    pub fn is_vacant(&self) -> bool {
        self.replica.is_vacant() || self.is_vacating()
    }

    /// A node has been heard that leads this replica.
    pub(super) fn note_leader(&mut self, node: u64) {
        self.vacancy.heard.insert(node, self.last_tick);
    }

    /// True if a node has been heard within this time that has led this replica.
    fn was_led_by(&self, node: u64, within: Duration) -> bool {
        self.vacancy.heard.get(&node).is_some_and(|heard| self.last_tick.since(*heard) < within)
    }

    /// True if any node has been heard just now that leads this replica.
    pub(super) fn is_led_now(&self) -> bool {
        self.vacancy.heard.keys().any(|node| self.was_led_by(*node, limits::GONE_PATIENCE))
    }

    /// True while what there is is being given up: nobody is heard, and nothing is said.
    pub(super) fn is_vacating(&self) -> bool {
        self.vacancy.stage != Stage::None
    }

    /// The node that leads the group, as far as that is known where the group does not live, and in which term.
    pub(super) fn led_elsewhere(&self) -> (Option<NodeId>, u64) {
        let is_fresh = |heard: Instant| self.last_tick.since(heard) < limits::BULLETIN_STALE;
        let told = self.vacancy.told.filter(|(.., heard)| is_fresh(*heard));
        let own = self.replica.leader().filter(|_| !self.is_vacating()).map(NodeId);
        if let Some(own) = own.filter(|own| self.was_led_by(own.0, limits::LEADER_HEARD)) {
            return (Some(own), self.replica.term());
        }
        match (told, own) {
            (Some((leader, term, _)), _) if own.is_none() || term >= self.replica.term() => (Some(leader), term),
            (_, own) => (own, self.replica.term()),
        }
    }

    /// A leader on another node says how the group is.
    pub fn hear_group_status(&mut self, group_status: &GroupStatus, now: Now, output: &mut impl Output) {
        let is_later = |(_, term, heard): (NodeId, u64, Instant)| {
            term <= group_status.term || now.instant.since(heard) >= limits::BULLETIN_STALE
        };
        if self.vacancy.told.is_none_or(is_later) {
            self.vacancy.told = Some((group_status.leader, group_status.term, now.instant));
        }
        if self.vacancy.claimant.is_none_or(|(claimant, _)| claimant != group_status.leader) {
            self.vacancy.claimant = Some((group_status.leader, now.instant));
        }
        if self.is_vacant() {
            if std::mem::replace(&mut self.vacancy.applied, group_status.applied) != group_status.applied {
                output.flush_broadcasters();
            }
            // One that has lost what it had is filled again, unless the others did without it since.
            self.vacancy.is_let_go |=
                self.loss.commit > 0 && !group_status.has(self.node) && group_status.applied > self.loss.commit;
            // It is not filled again when the group has gone.
            if !self.is_vacating() && !output.view().roster().is_gone(self.id) {
                if !group_status.has(self.node) {
                    // It may have been a member for a while, and been given nothing.
                    self.replica.begin_another_life();
                }
                output.send_to_replica(group_status.leader, self.id, PeerMessage::Vacant);
                self.ask_for_slots(group_status.leader, now, output);
            }
            return;
        }
        let since = *self.vacancy.told_since.get_or_insert(now.instant);
        let is_news = !group_status.has(self.node) && group_status.applied > self.replica.committed_index();
        if !is_news || self.members.are_by_log && !self.replica.may_be_done_without() {
            return;
        }
        // A second member can be asked: the group lives here, as far as the roster knows, or on other nodes beside this
        // leader. Those of an older version do not answer. The roster says where the group is to live: until it does,
        // this replica may be one that nothing can be decided without.
        let roster = output.view().roster();
        let placed = roster.placement(self.id);
        let is_another = |node: &u64| ![self.node.0, group_status.leader.0].contains(node);
        let context = output.view();
        let levels_of = |node: &u64| context.levels().of_nodes.get(&NodeId(*node));
        let surely_answers = |node: &u64| {
            context.levels().in_force >= WITNESSED || levels_of(node).is_some_and(|known| known.highest >= WITNESSED)
        };
        let holds = |node: NodeId| roster.is_placed(self.id, node) && is_another(&node.0) && surely_answers(&node.0);
        // Of the nodes that are to hold the group at least one other than its leader comes to vote, and can be asked.
        let has_others = (placed.is_some() || context.replica_count() > 1) && roster.staying().any(holds);
        let is_disputed = (roster.is_placed(self.id, self.node) || placed.is_some() && has_others)
            && !self.is_confirmed_by_another(group_status.leader, now);
        let silence = if is_disputed { limits::LET_GO_SILENCE } else { limits::LEADER_HEARD };
        let mut others = self.vacancy.heard.keys().filter(|node| **node != group_status.leader.0);
        let is_silent = now.instant.since(since) >= silence && !others.any(|node| self.was_led_by(*node, silence));
        if is_silent && !(is_disputed && has_others) {
            self.vacancy.is_let_go = true;
        } else if is_disputed {
            let asked: BTreeSet<u64> =
                group_status.voters.iter().chain(placed.into_iter().flatten()).copied().collect();
            let answers = |node: &u64| {
                context.levels().in_force >= WITNESSED || levels_of(node).is_none_or(|known| known.highest >= WITNESSED)
            };
            let asked: Vec<_> = asked.into_iter().filter(|node| is_another(node) && answers(node)).collect();
            for other in asked.into_iter().take(limits::WITNESSES_ASKED_MAX) {
                output.send_to_replica(NodeId(other), self.id, PeerMessage::AmMember);
            }
        }
    }

    /// True if a member other than this leader says that this replica was let go.
    fn is_confirmed_by_another(&self, leader: NodeId, now: Now) -> bool {
        let committed = self.replica.committed_index();
        self.vacancy.witnesses.iter().any(|(node, (index, told))| {
            *node != leader.0 && *index > committed && now.instant.since(*told) < limits::BULLETIN_STALE
        })
    }

    /// A node without a replica sees no entry by which slots move. It asks the leader whether it knows them all.
    fn ask_for_slots(&self, leader: NodeId, now: Now, output: &mut impl Output) {
        let levels = output.view().levels();
        let answers = levels.in_force >= WITNESSED
            || levels.of_nodes.get(&leader).is_some_and(|known| known.highest >= WITNESSED);
        if answers && self.is_only_claimant(leader, now) {
            let cover = output.view().slots().cover_of(self.id);
            output.send_to_replica(leader, self.id, PeerMessage::Where(cover));
        }
    }

    /// True if no other node has told for a while that it leads the group: one that lies about that is contradicted by
    /// the one that does.
    fn is_only_claimant(&self, leader: NodeId, now: Now) -> bool {
        let since = self.vacancy.claimant.filter(|(claimant, _)| *claimant == leader).map(|(_, since)| since);
        since.is_some_and(|since| now.instant.since(since) >= limits::BULLETIN_STALE)
    }

    /// A node believes that the slots with this cover are here. If they are others, it is told which are.
    pub fn asked_for_slots(&self, from: NodeId, cover: u64, output: &mut impl Output) {
        let slots = self.state.slots();
        if !self.is_serving || slots.cover_of(self.id) == cover {
            return;
        }
        let held: Vec<Moved> = slots.moved().filter(|moved| moved.group == self.id).collect();
        output.send_to_replica(from, self.id, PeerMessage::Held(&held));
    }

    /// True if a node may say which slots the group holds: it was asked.
    pub fn hears_slots_of(&self, from: NodeId, now: Now) -> bool {
        self.is_vacant() && self.is_only_claimant(from, now)
    }

    /// A node asks whether it is a member. Only a voter says that it is not, by what has been applied here.
    pub fn asked_membership(&mut self, from: NodeId, output: &mut impl Output) {
        let Membership { voters, learners, .. } = &self.members.applied;
        if voters.contains(&self.node.0) && !voters.contains(&from.0) && !learners.contains(&from.0) {
            output.send_to_replica(from, self.id, PeerMessage::NoMember(self.applied()));
        }
    }

    /// A member says that this replica is none, up to this entry.
    pub fn told_no_member(&mut self, from: NodeId, index: u64, now: Now) {
        if !self.is_vacant() {
            self.vacancy.witnesses.insert(from.0, (index, now.instant));
        }
    }

    /// A node says that it holds nothing of the group: it may be made a member.
    pub fn told_vacant(&mut self, node: NodeId, now: Now) {
        if self.is_serving {
            self.leader.vacant.insert(node.0, now.instant);
            self.replica.note_emptied(node.0);
        }
    }

    /// True if a node has said just now that it holds nothing of the group.
    pub(super) fn is_known_vacant(&self, node: NodeId) -> bool {
        let is_recent = |told: &Instant| self.last_tick.since(*told) < limits::MEMBER_SILENCE_MAX;
        self.leader.vacant.get(&node.0).is_some_and(is_recent)
    }

    /// Gives up the replica if the others do without it. True if it is vacating: then there is nothing else to do.
    pub(super) fn look_after_vacancy(&mut self, now: Now, prng: &mut Prng, output: &mut impl Output) -> bool {
        match self.vacancy.stage {
            Stage::Durable => {
                self.finish_vacating(now, prng, output);
                return false;
            }
            Stage::Vacating => {
                self.last_tick = now.instant.max(self.last_tick);
                self.decline_all(now, output);
                return true;
            }
            Stage::None => {}
        }
        if self.has_gone(now, output.view()) && !self.replica.is_vacant() {
            return self.leave_gone(output);
        }
        let Membership { voters, learners, .. } = &self.members.applied;
        let is_out = !voters.is_empty() && !voters.contains(&self.node.0) && !learners.contains(&self.node.0);
        // A node that leaves the cluster keeps what it has, as does every node what the metadata group has.
        let may_go = self.id != GroupId(0)
            && !output.view().roster().is_empty()
            && !output.view().roster().is_going(self.node)
            && !self.replica.is_leader()
            && !self.holds_beginnings()
            && self.splits.parent.is_none()
            && !self.is_installing();
        if !(self.vacancy.is_let_go || is_out) || !may_go {
            return false;
        }
        // A checkpoint that is nearly done would count behind what is written now.
        if self.checkpointing.is_running() {
            return false;
        }
        self.begin_vacating(output);
        true
    }

    /// The group has gone: nobody needs this replica, whether it leads or not, and whether this node stays or not.
    fn leave_gone(&mut self, output: &mut impl Output) -> bool {
        let may_go = !self.holds_beginnings()
            && self.splits.parent.is_none()
            && !self.is_installing()
            && !self.checkpointing.is_running();
        if may_go {
            if self.replica.is_leader() {
                self.change_role(Role::Follower, output);
            }
            self.begin_vacating(output);
        }
        may_go
    }

    pub(super) fn vacancy_gone_since(&mut self, now: Instant) -> &Instant {
        self.vacancy.gone_since.get_or_insert(now)
    }

    fn begin_vacating(&mut self, output: &mut impl Output) {
        self.stop_taking(output);
        self.stop_checkpoint(output);
        self.vacancy.stage = Stage::Vacating;
        self.vacancy.is_let_go = false;
        self.hard_state = self.replica.vacated_hard_state();
        let append = Append {
            group: self.id.0,
            ticket: LAST_TICKET,
            hard_state: Some(self.hard_state),
            membership: Some(Membership::default()),
            entries: Vec::new(),
        };
        output.append(append, Persist::Synced);
    }

    /// It is on disk that this replica holds nothing any more. False if an append of its own is meant.
    pub(super) fn is_vacated_by(&mut self, ticket: u64) -> bool {
        if self.is_vacating() && ticket == LAST_TICKET {
            self.vacancy.stage = Stage::Durable;
        }
        self.is_vacating()
    }

    /// From here on the replica is what it is on a node that has never held the group, but for its vote.
    fn finish_vacating(&mut self, now: Now, prng: &mut Prng, output: &mut impl Output) {
        for batch in std::mem::take(&mut self.window.inflight) {
            self.window.inflight_bytes -= batch.byte_count;
            self.fail_unknown(batch, output);
        }
        self.forget_committed();
        self.stop_slices(output);
        let options = Options {
            uncommitted_bytes_max: u64::MAX,
            incarnation: self.replica.next_life(),
            ..Options::new(self.node.0, self.id.0, prng.draw())
        };
        self.members.acknowledged_before = self.members.acknowledged_before.max(self.replica.last_index());
        let seed = Seed { hard_state: self.hard_state, ..Seed::default() };
        self.replica = Replica::new(options, seed).expect("a replica without a log");
        self.replica.tell_time(now.instant);
        self.state.vacate();
        self.state.upkeep().take_notices();
        // Nobody here is told of changes any more.
        output.flush_caches();
        self.prepared_since.clear();
        self.news.slots.clear();
        for (gateway, number) in std::mem::take(&mut self.awaited) {
            output.settle_told(gateway.core, crate::requests::Claim { boot: gateway.boot, group: self.id, number });
        }
        self.decline_all(now, output);
        self.replica_reads = replica_reads::ReplicaReads::new(prng.draw() >> 8);
        *output.applied_position(self.id) = AppliedPosition::default();
        self.members.applied = Membership::default();
        self.members.are_by_log = false;
        (self.log.first_index, self.log.recovered_index, self.log.marked_index) = (0, 0, 0);
        self.loss.commit = 0;
        self.splits.give_up();
        self.log.bytes = 0;
        self.log.altered_saved = self.state.keyspace().altered_count();
        self.log.held = None;
        self.log.told_keep = (u64::MAX, Instant::ZERO);
        self.loss.is_overtaken = false;
        self.transfer.is_awaited = false;
        self.leadership.is_asked = false;
        self.leadership.before = None;
        self.news.route = None;
        self.vacancy.stage = Stage::None;
        self.vacancy.heard.clear();
        self.vacancy.told_since = None;
        self.vacancy.witnesses.clear();
        let why = if output.view().roster().is_gone(self.id) { "has been merged" } else { "lives on other nodes" };
        let text = format!("node {} has given up its replica: the group {why}", self.node.0);
        output.happened(Kind::Placement, Some(self.id), text);
    }
}
