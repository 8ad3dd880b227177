//! The cluster as clients of a Sentinel see it: which node to talk to, and which others there are.

use std::sync::Arc;

use group::ids::{GroupId, NodeId};

use crate::acl::Users;
use crate::core::Core;

/// A node of the cluster, as another one sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sight {
    /// Who.
    pub node: NodeId,
    /// `HOST:PORT` where clients reach it.
    pub address: String,
    /// It is heard, or is the one who looks.
    pub is_heard: bool,
}

/// What one node sees.
#[derive(Clone, Debug)]
pub struct Landscape {
    /// Who looks.
    pub own: NodeId,
    /// All nodes, in the order of their numbers.
    pub nodes: Vec<Sight>,
    /// The leader of the metadata, if there is one that is heard: a majority is behind it.
    pub leader: Option<NodeId>,
    /// Grows with each new leader.
    pub term: u64,
    /// Who may log in.
    pub users: Arc<Users>,
}

impl Landscape {
    /// A node that is seen.
    pub fn sight(&self, node: NodeId) -> Option<&Sight> {
        self.nodes.iter().find(|sight| sight.node == node)
    }
}

impl Core {
    /// What this node sees; asked of the first core.
    pub fn landscape(&self) -> Landscape {
        const METADATA: GroupId = GroupId(0);
        let context = &self.context;
        let own = context.node;
        let is_heard = |node: NodeId| node == own || context.neighbours.hears(node);
        let mut nodes: Vec<Sight> = context
            .roster
            .present()
            .map(|(node, member)| Sight {
                node,
                address: if node == own { &context.own } else { member }.client_address.clone(),
                is_heard: is_heard(node),
            })
            .collect();
        if !nodes.iter().any(|sight| sight.node == own) {
            let address = context.own.client_address.clone();
            nodes.push(Sight { node: own, address, is_heard: true });
        }
        nodes.sort_by_key(|sight| sight.node);
        let route = context.routes.get(METADATA.0 as usize).copied().unwrap_or_default();
        let leader = route.leader.filter(|leader| is_heard(*leader) && !context.is_expelled);
        Landscape { own, nodes, leader, term: route.term, users: Arc::clone(&context.access.users) }
    }
}
