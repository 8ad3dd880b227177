//! What a client is told while a group has no quorum. See [`crate::quorum`].

use group::ids::{GroupId, NodeId};
use stdx::Instant;

use crate::context::Context;
use crate::limits;
use crate::quorum::NO_QUORUM;

impl Context {
    /// True if a group has had no leader for so long that a request does not wait for one.
    #[inline]
    pub(crate) fn has_no_quorum(&self, group: GroupId, now: Instant) -> bool {
        self.leaderless.lasts(group, now).is_some_and(|lasts| lasts >= limits::REQUEST_PATIENCE)
    }

    /// A node as clients know it.
    pub(crate) fn name_of(&self, node: NodeId) -> String {
        match self.roster.get(node) {
            Some(member) if !member.client_address.is_empty() => member.client_address.clone(),
            _ => format!("node {}", node.0),
        }
    }

    /// Why a request is refused that a group has not answered for as long as requests wait. The group may have a leader
    /// that answers others.
    pub(crate) fn no_answer(&self, group: GroupId, now: Instant) -> String {
        self.late(group, now, "A long script or transaction may have locked the keys")
    }

    /// Why a request is refused that has waited for as long as requests wait until the replica of a group here has what
    /// the leader has.
    pub(crate) fn behind(&self, group: GroupId, now: Instant) -> String {
        self.late(group, now, "The replica of this node has not caught up with it")
    }

    /// What did not come in time, although the leader is in reach, and the likely reason.
    fn late(&self, group: GroupId, now: Instant, reason: &str) -> String {
        let leader = self.routes.get(group.0 as usize).and_then(|route| route.leader);
        let in_reach = leader.filter(|leader| *leader == self.node || self.neighbours.hears(*leader));
        match in_reach {
            Some(leader) if self.leaderless.lasts(group, now).is_none() => format!(
                "TRYAGAIN Group {} did not answer in time, and nothing was done: it is led by {}, which is in reach. \
                 {reason}",
                group.0,
                self.name_of(leader)
            ),
            _ => self.no_quorum(group, now),
        }
    }

    /// Why a request to a group is refused when nobody answers it: which nodes are missed, and since when. A leader
    /// that no quorum confirms says so of itself to clients of other nodes, too.
    pub(crate) fn no_quorum(&self, group: GroupId, now: Instant) -> String {
        let name = |node| self.name_of(node);
        let leader = self.routes.get(group.0 as usize).and_then(|route| route.leader);
        let standing = match (leader, self.leaderless.lasts(group, now)) {
            (Some(leader), _) if leader == self.node => format!("is led by {}, to no avail", name(leader)),
            (Some(leader), _) => format!("is led by {}, which is silent", name(leader)),
            (None, Some(lasts)) => format!("has had no leader for {} s", lasts.as_secs()),
            (None, None) => "has no leader".to_owned(),
        };
        let mut text = format!("{NO_QUORUM}: group {} {standing}", group.0);
        let others = self.roster.present().map(|(node, _)| node).filter(|node| *node != self.node);
        for (place, node) in others.filter(|node| !self.neighbours.hears(*node)).enumerate() {
            text.push_str(if place == 0 { "; not heard: " } else { ", " });
            text.push_str(&name(node));
            if let Some(since) = self.neighbours.silent_since(node) {
                text.push_str(&format!(" for {} s", now.since(since).as_secs()));
            }
        }
        text
    }
}
