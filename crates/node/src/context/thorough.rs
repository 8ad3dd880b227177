//! Which voters a reply waits for. See [`crate::thorough`].

use group::ids::{GroupId, NodeId};

use crate::context::Context;

impl Context {
    pub(crate) fn lacks_voters(&self, group: Option<GroupId>, lacking: &[NodeId]) -> String {
        let group = group.map_or_else(String::new, |group| format!(" of group {}", group.0));
        match lacking {
            [] => format!("the leader{group} has not said who lacks it"),
            _ => {
                let names: Vec<_> = lacking.iter().map(|node| self.name_of(*node)).collect();
                format!("{} lacks it{}", names.join(", "), if group.is_empty() { "" } else { &group })
            }
        }
    }
}
