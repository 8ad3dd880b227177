//! What a leader tells of its group.

use super::Group;
use crate::group_status::{Feed, Follower, GroupStatus};
use crate::ids::{NodeId, Now};
use crate::limits;
use crate::output::{NodeView, Output};

impl Group {
    /// What this replica has to say of its group, if it leads.
    pub fn group_status(&self) -> Option<GroupStatus> {
        if !self.is_serving {
            return None;
        }
        let followers = self.replica.progress().into_iter().map(|other| Follower {
            node: NodeId(other.node),
            is_active: other.is_active,
            feed: match (other.is_restoring, other.is_streaming, other.is_fetching) {
                (true, _, _) => Feed::Checkpoint,
                (false, true, true) => Feed::Disk,
                (false, true, false) => Feed::Streaming,
                (false, false, _) => Feed::Probing,
            },
            matched: other.matched,
            behind_bytes: self
                .bytes_to_give(other.node)
                .filter(|_| other.is_restoring)
                .unwrap_or_else(|| self.replica.log_bytes_after(other.matched)),
            lag_ms: self.lag(other.matched).as_millis() as u64,
            resync_count: self.leader.given.get(&other.node).copied().unwrap_or(0),
            silent_ms: self.last_tick.since(self.last_heard(other.node)).as_millis() as u64,
        });
        Some(GroupStatus {
            group: self.id,
            leader: self.node,
            term: self.replica.term(),
            applied: self.applied(),
            last: self.replica.last_index(),
            bytes: self.state.keyspace().memory_bytes() as u64,
            voters: self.membership().voters.clone(),
            learners: self.membership().learners.clone(),
            followers: followers.collect(),
            halves: self.leader.halves,
            ended: self.end_told(),
        })
    }

    /// When a member was last heard, to a tick.
    pub(super) fn last_heard(&self, node: u64) -> stdx::Instant {
        self.leader.heard.get(&node).copied().unwrap_or(self.leadership.since)
    }

    /// Tells all nodes of the cluster, from time to time. One that knows no roster (any more) tells its followers.
    pub(super) fn tell_group_status(&mut self, now: Now, output: &mut impl Output) {
        let is_by_itself = output.view().roster().is_empty() && self.is_alone();
        if !self.is_serving || is_by_itself || now.instant < self.due.group_status {
            return;
        }
        self.due.group_status = now.instant + limits::BULLETIN_INTERVAL;
        self.leader.halves = self.halves(output.view());
        let Some(group_status) = self.group_status() else { return };
        let members = group_status.voters.iter().chain(&group_status.learners).map(|node| NodeId(*node));
        let others = output.view().roster().present().map(|(node, _)| node).chain(members);
        let others = others.filter(|node| *node != self.node).collect();
        output.report(group_status, others);
    }
}
