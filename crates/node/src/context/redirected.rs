//! Where slots are, and what moves. See [`crate::redirected`].

use group::ids::GroupId;
use stdx::slot::Slot;

use crate::context::Context;

impl Context {
    /// The groups that there are, as far as this core knows.
    pub(crate) fn groups(&self) -> impl Iterator<Item = GroupId> {
        (0..self.group_count).map(GroupId).filter(|group| !self.roster.is_gone(*group))
    }

    /// True if it is known who leads a group.
    pub(crate) fn is_led(&self, group: GroupId) -> bool {
        self.routes.get(group.0 as usize).is_some_and(|route| route.leader.is_some())
    }

    /// Number of slots that a group holds and is not to hold, as far as this core knows.
    pub(crate) fn slots_to_give(&self, group: GroupId) -> u64 {
        let is_held = |slot: &u16| self.slots.group_of_slot(Slot(*slot)) == group;
        let foreign = self.roster.wanted().filter(|(.., wanted)| *wanted != group);
        foreign.map(|(first, last, _)| (first..=last).filter(is_held).count() as u64).sum()
    }

    /// Number of those that are to go with a group that splits off from it.
    pub(crate) fn slots_to_split(&self, group: GroupId) -> u64 {
        let is_held = |slot: &u16| self.slots.group_of_slot(Slot(*slot)) == group;
        // One that is there already has its slots moved to it.
        let is_unborn = |child: GroupId| {
            self.roster.parent(child) == Some(group) && !self.slots.runs().iter().any(|(.., holder)| *holder == child)
        };
        let gone = self.roster.wanted().filter(|(.., wanted)| is_unborn(*wanted));
        gone.map(|(first, last, _)| (first..=last).filter(is_held).count() as u64).sum()
    }
}
