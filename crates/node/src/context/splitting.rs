//! Groups that split off are known to the core. See [`crate::splitting`].

use group::ids::GroupId;
use keyspace::{Keyspace, Moment};

use crate::context::Context;

impl Context {
    /// No group uses this keyspace any more. It may be large, so it is freed in steps.
    pub(crate) fn free_later(&mut self, mut keyspace: Keyspace) {
        keyspace.clear(Moment::default());
        self.memory.unused.push(keyspace);
    }

    /// True if all that changes in the cluster changes on this node, too: it holds every group, except those that have
    /// not split off yet and have their keys in another one, and those that have gone.
    pub(crate) fn holds_all_that_changes(&self) -> bool {
        let is_here = |group: GroupId| self.routes.get(group.0 as usize).is_some_and(|route| route.is_here);
        let is_to_split_off = |group: GroupId| {
            self.roster.parent(group).is_some_and(is_here)
                && !self.slots.runs().iter().any(|(.., holder)| *holder == group)
        };
        let is_gone = |group: GroupId| self.roster.is_gone(group);
        let changes_here = |group: GroupId| is_here(group) || is_to_split_off(group) || is_gone(group);
        !self.is_clustered || (0..self.routes.len() as u32).map(GroupId).all(changes_here)
    }
}
