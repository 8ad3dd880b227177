//! What a group says when it does not carry out a request, in Redis's words where Redis has them.

use crate::ids::NodeId;

/// The leader was lost before the write entered the log: it did not happen, and may be sent again.
pub const LEADER_LOST: &str = "TRYAGAIN The leader was lost before this request took effect";

/// A write was sent on to a leader that never answered.
pub const OUTCOME_UNKNOWN: &str =
    "CLUSTERDOWN The leader was lost before it answered: whether this write took effect is unknown";

/// The keys of a group that has not yet been loaded.
pub const LOADING: &str = "LOADING Holdfast is loading the dataset in memory";

/// This node, or the cluster, follows another server, and takes no writes of clients.
pub const READ_ONLY: &str = "READONLY You can't write against a read only replica.";

/// `min-replicas-to-write` is not reached.
pub const NO_REPLICAS: &str = "NOREPLICAS Not enough good replicas to write.";

/// The id is known, and the request under it was another one.
pub const OTHER_REQUEST: &str = "ERR Another request has been carried out under this request id";

/// The group keeps as many answers as it may.
pub const NO_PLACE: &str = "TRYAGAIN No room for another request id: answers take as much memory as \
     request-id-maxmemory allows, and are kept for as long as request-id-ttl says";

/// Why a leader takes no writes.
pub fn no_room(node: NodeId, reason: &str) -> String {
    format!("MISCONF No room on disk for this write on node {}, which leads: {reason}", node.0)
}
