//! What a group counts, and how it is.

use stdx::UnixMillis;

use crate::checkpoint::Outcome;
use crate::group_status::GroupStatus;
use crate::ids::NodeId;

/// A group's figures.
#[derive(Clone, Debug, Default)]
pub struct GroupFigures {
    /// Which.
    pub group: u32,
    /// `serving`, `loading`, `following`, `leaderless`, or `in-doubt`: leaderless, and it may lack the end of its log.
    pub standing: &'static str,
    /// The leader it knows of.
    pub leader: Option<NodeId>,
    /// For how many milliseconds nobody has led it, as far as this node knows; `None` while somebody does.
    pub leaderless_ms: Option<u64>,
    /// Who votes in it, as far as the log of this node tells.
    pub voters: Vec<u64>,
    /// What it says of the group, if it leads.
    pub group_status: Option<GroupStatus>,
    /// Its leader's checkpoint is coming.
    pub is_taking: bool,
    /// Which formats and semantics are in force in it.
    pub level: stdx::Level,
    /// Raft's term.
    pub term: u64,
    /// Last entry applied.
    pub applied: u64,
    /// Bytes admitted and not yet applied.
    pub window_bytes: u64,
    /// Writes since the last checkpoint.
    pub change_count: u64,
    /// Bytes of log since the last checkpoint.
    pub log_bytes: u64,
    /// When the running checkpoint began.
    pub checkpoint_began: Option<UnixMillis>,
    /// There is log enough for a checkpoint, and other nodes write theirs first.
    pub is_checkpoint_waiting: bool,
    /// Walked and total parts of the running checkpoint.
    pub checkpoint_progress: Option<(u64, u64)>,
    /// How the last checkpoint ended.
    pub last_checkpoint: Option<Outcome>,
    /// Checkpoints finished since the start.
    pub checkpoint_count: u64,
    /// How far the recovered log has been applied.
    pub loaded_percent: u64,
    /// How many milliseconds old what is applied here may be, as far as that is known.
    pub staleness_ms: Option<u64>,
    /// Transactions that hold locks.
    pub lock_count: u64,
    /// Keys evicted.
    pub evicted_count: u64,
    /// Answers kept to requests with an id.
    pub request_id_count: u64,
    /// Bytes that they take.
    pub request_id_bytes: u64,
    /// Requests with an id that came again and were answered as before.
    pub repeated_count: u64,
    /// Times that keys were reserved for a client that had watched them.
    pub reserved_count: u64,
    /// Times that this ended before the client's EXEC came.
    pub reservations_lapsed_count: u64,
    /// Keys expired, and values freed.
    pub removals: keyspace::Removals,
    /// Keys looked up by commands that read.
    pub lookups: keyspace::Lookups,
}
