//! Whether anybody can answer for a group. All code that refuses, waits or tells the user because a leader is missing
//! asks here: that a group has none, since when, and which nodes are missed.
//!
//! A group without a leader is waited for: elections take a fraction of a second. When it has had none for as long as a
//! request waits ([`limits::REQUEST_PATIENCE`]), whatever comes next is refused at once.

mod checks;

use std::collections::BTreeMap;

use stdx::{Duration, Instant};

use crate::context::Context;
use crate::ids::{GroupId, NodeId};
use crate::limits;

/// Somebody has asked whether a group can answer. Nothing is asked of a group without this, or without saying that it
/// is [under way](Self::UNDER_WAY).
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Answerable(());

impl Answerable {
    /// For the next step of what was admitted when it came, and for what has an end of its own where nobody answers.
    pub(crate) const UNDER_WAY: Self = Self(());
}

/// Groups that nobody is known to lead.
#[derive(Debug, Default)]
pub(crate) struct Leaderless {
    since: BTreeMap<GroupId, Silence>,
}

#[derive(Debug)]
pub(crate) struct Silence {
    since: Instant,
    /// Clients that cache have been told that they may miss changes.
    is_told: bool,
}

impl Leaderless {
    /// A leader of a group is known, or none is. True if one is known again after clients that cache were told.
    pub(crate) fn note(&mut self, group: GroupId, is_led: bool, now: Instant) -> bool {
        if is_led {
            return self.since.remove(&group).is_some_and(|silence| silence.is_told);
        }
        self.since.entry(group).or_insert(Silence { since: now, is_told: false });
        false
    }

    /// True if clients that cache must be told now: a group that has had no leader for a while may have one elsewhere.
    pub(crate) fn must_tell_caches(&mut self, now: Instant) -> bool {
        let is_due = |silence: &&mut Silence| !silence.is_told && now.since(silence.since) >= limits::TOUCH_PATIENCE;
        self.since.values_mut().filter(is_due).fold(false, |_, silence| {
            silence.is_told = true;
            true
        })
    }

    /// True if every group is led, as far as is known.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.since.is_empty()
    }

    /// How long a group has had no leader; `None` if it has one.
    #[inline]
    pub(crate) fn lasts(&self, group: GroupId, now: Instant) -> Option<Duration> {
        self.since.get(&group).map(|silence| now.since(silence.since))
    }
}

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

/// How every such refusal begins: no quorum confirms that this node leads, or what came as the answer of a group is
/// none.
pub(crate) const NO_QUORUM: &str = "CLUSTERDOWN No quorum of the group answers";
