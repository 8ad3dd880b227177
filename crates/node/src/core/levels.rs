//! The level in force reaches sessions, scripts and groups of this core. See [`group::levels`].

use group::ids::NodeId;
use stdx::{Level, Levels};

use crate::core::Core;

impl Core {
    /// The cluster is at this level, as group 0 has it.
    pub(crate) fn take_level(&mut self, level: Level) {
        self.context.levels.in_force = self.context.levels.in_force.max(level);
        let level = self.context.levels.in_force;
        self.groups_mut().for_each(|group| group.hear_of_level(level));
    }

    /// A link to a node is up, which has said which levels it knows.
    pub(crate) fn hear_levels(&mut self, node: NodeId, levels: Levels) {
        self.context.levels.of_nodes.insert(node, levels);
    }
}
