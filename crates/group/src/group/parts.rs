//! Parts of a group that belong together, so that what changes together has one name.

use std::collections::{BTreeSet, VecDeque};

use keyspace::Limits;
use message::slots::Moved;
use stdx::log::{Entry, Membership};
use stdx::{Instant, UnixMillis};

use super::{Batch, transfer};
use crate::limits;
use crate::requests::Route;

/// Keys that this replica, as a leader, removes for want of memory.
pub(crate) struct Evictions {
    /// Bytes of keys that were chosen for eviction and are not removed yet.
    pub(crate) bytes: usize,
    /// Those keys, with their databases: a victim is named again until it is gone.
    pub(super) keys: BTreeSet<(u16, Vec<u8>)>,
    /// Keys evicted since the start.
    pub(crate) count: u64,
}

/// What this node wants of the log, and how much of it the log says.
pub(crate) struct Wanted {
    /// The level that the group should have.
    pub(crate) level: stdx::Level,
    /// The level to which this replica has raised the group last, as far as it has proposed that.
    pub(crate) level_logged: stdx::Level,
    /// What this node's settings say of the forms of collections: to be logged while it leads.
    pub(super) limits: Limits,
    /// Whether keys expire; none as long as the setting has not been heard of: then it stays as the log says.
    pub(super) import_mode: Option<bool>,
    /// What the log says of them, with what is still on its way.
    pub(super) limits_logged: Limits,
}

/// What the cores of this node have not been told yet.
#[derive(Default)]
pub(crate) struct News {
    /// What has become of slots since that was last asked for.
    pub(super) slots: Vec<Moved>,
    /// Where the group was led when that was last told.
    pub(super) route: Option<Route>,
    /// The roster has changed.
    pub(super) has_roster: bool,
    /// Libraries of functions have come with a checkpoint.
    pub(super) has_libraries: bool,
    /// Parameters of the cluster have come with a checkpoint.
    pub(super) has_parameters: bool,
    /// The level of the group has risen.
    pub(super) has_level: bool,
}

/// How far the log reaches, and what of it must stay.
pub(crate) struct LogMarks {
    /// The log behind this index is kept until then.
    pub(super) held: Option<(u64, Instant)>,
    /// Up to where the host was last told that nobody lacks the log, and when.
    pub(super) told_keep: (u64, Instant),
    /// Bytes of the log that stay in memory when they have been applied.
    pub(super) bytes_max: usize,
    /// Index of the last checkpoint on disk.
    pub(super) marked_index: u64,
    /// Bytes of log since the last checkpoint began.
    pub(crate) bytes: u64,
    /// Keys altered before the last checkpoint.
    pub(crate) altered_saved: u64,
    /// The log begins behind this index.
    pub(super) first_index: u64,
    /// The last index that was there at the start.
    pub(super) recovered_index: u64,
}

/// Room for scripts, and when one ran last.
pub(crate) struct ScriptRoom {
    /// When one ran last.
    pub(super) last: Instant,
    /// Room for a script's commands.
    pub(super) words: Vec<u8>,
    /// The same for its reply.
    pub(super) reply: Vec<u8>,
}

/// Entries that are proposed or committed, and not applied yet.
pub(crate) struct Window {
    /// Committed and not yet applied, in log order. Nothing stays here while this replica serves.
    pub(super) committed: VecDeque<Entry>,
    /// Bytes of them.
    pub(super) committed_bytes: usize,
    /// Proposed and not yet applied, in log order.
    pub(super) inflight: VecDeque<Batch>,
    /// Bytes of them.
    pub(super) inflight_bytes: usize,
    /// Bytes proposed or gathered beyond which no more writes are admitted.
    pub(super) bytes_max: usize,
}

impl Window {
    /// One in which nothing waits.
    pub(super) fn new() -> Self {
        Self {
            committed: VecDeque::new(),
            committed_bytes: 0,
            inflight: VecDeque::new(),
            inflight_bytes: 0,
            bytes_max: limits::WINDOW_BYTES_MAX,
        }
    }
}

/// When a leader looks at something next.
pub(crate) struct Due {
    /// When the leader next looks at which nodes take part.
    pub(super) reconcile: Instant,
    /// When the leader next tells all nodes how the group is.
    pub(super) group_status: Instant,
    /// Of the metadata: when the leader next looks whether a group should live elsewhere.
    pub(super) balance: Instant,
}

/// Numbers and clock of the batches of this replica.
pub(crate) struct BatchNumbers {
    /// Number of the present batch; the first is 1.
    pub(super) number: u64,
    /// The batch in which a node was last told to leave; 0 if none was.
    pub(super) of_removal: u64,
    /// The batch in which a group was last given a number; 0 if none was.
    pub(super) of_numbering: u64,
    /// Wall clock of the last entry proposed.
    pub(super) unix: UnixMillis,
}

/// Checkpoints on their way from the leader.
pub(crate) struct Transfers {
    /// The one that is on its way.
    pub(super) taking: Option<transfer::Taking>,
    /// When one could not be kept.
    pub(super) failed: Option<Instant>,
    /// A member waits for a checkpoint that has not been made yet.
    pub(super) is_awaited: bool,
}

/// What this replica may have lost, or what the cluster has lost of it.
pub(crate) struct Loss {
    /// The cluster has lost entries that have been applied here.
    pub(super) is_overtaken: bool,
    /// When it was last told that this replica may lack the end of its log, or last known that it need not be told.
    pub(super) doubt_told: Instant,
    /// How far the log reached when this replica lost all that it had, which it is given again; 0 if it lacks nothing
    /// of the kind.
    pub(super) commit: u64,
}

/// Who leads, and since when.
pub(crate) struct Leadership {
    /// Since when this replica serves.
    pub(super) since: Instant,
    /// It has just begun to.
    pub(super) is_new: bool,
    /// The node that led before, and when it was last heard, to a tick.
    pub(super) before: Option<(u64, Instant)>,
    /// The leader has asked this replica to lead.
    pub(super) is_asked: bool,
}

/// What has been counted since the start.
pub(crate) struct Counts {
    /// Requests with an id that came again and were answered as before, since the start.
    pub(super) repeated: u64,
    /// Times that keys were reserved for a client, and that this ended before its EXEC came, since the start.
    pub(super) reserved: u64,
    pub(super) reservations_lapsed: u64,
}

/// Who takes part, as of the last entry applied.
pub(crate) struct Members {
    /// Who took part as of the last entry applied: what a checkpoint of it says. Anyone who decides something asks the
    /// replica, which knows of changes that are committed and not yet applied here.
    pub(super) applied: Membership,
    /// It follows from an entry behind all that this node may have acknowledged before this life.
    pub(super) are_by_log: bool,
    /// The last index that this node may have acknowledged before this life: only what comes behind that is new.
    pub(super) acknowledged_before: u64,
}
