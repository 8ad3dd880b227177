//! What a group says when it does not carry out a request, in Redis's words where Redis has them.

use crate::ids::NodeId;

/// The leader was lost before the write entered the log: it did not happen, and may be sent again.
pub(crate) const LEADER_LOST: &str = "TRYAGAIN The leader was lost before this request took effect";

/// A write was sent on to a leader that never answered.
pub(crate) const OUTCOME_UNKNOWN: &str =
    "CLUSTERDOWN The leader was lost before it answered: whether this write took effect is unknown";

/// The keys of a group that has not yet been loaded.
pub(crate) const LOADING: &str = "LOADING Holdfast is loading the dataset in memory";

/// This node, or the cluster, follows another server, and takes no writes of clients.
pub(crate) const READ_ONLY: &str = "READONLY You can't write against a read only replica.";

/// `min-replicas-to-write` is not reached.
pub(crate) const NO_REPLICAS: &str = "NOREPLICAS Not enough good replicas to write.";

/// Why a leader takes no writes.
pub(crate) fn no_room(node: NodeId, reason: &str) -> String {
    format!("MISCONF No room on disk for this write on node {}, which leads: {reason}", node.0)
}
