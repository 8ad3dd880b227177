//! Parts of the context of a core that belong together.

use group::ids::CoreId;
use group::ids::Room;
use group::timeline::Timeline;
use keyspace::Keyspace;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::acl::AclLog;
use crate::acl::Users;
use crate::guilt::Guilt;
use crate::libraries::Libraries;
use crate::reports::{HostReport, SourceFigures};
use crate::scripts::Cache;

/// What is known of the memory of this process, and what is about to be freed.
pub struct MemoryFacts {
    /// Keyspaces that no group uses any more: what a checkpoint of the leader has taken the place of, or what a group
    /// was to begin with that is there already. They are freed in steps.
    pub(crate) unused: Vec<Keyspace>,
    /// Keyspace bytes of this core when the latest report was made.
    pub(crate) reported_bytes: u64,
    /// The most memory that the host has reported.
    pub(crate) peak_bytes: u64,
    /// What it reported first.
    pub(crate) startup_bytes: u64,
}

/// Who may do what, and what was denied.
pub struct Access {
    /// All users, the same on every core.
    pub users: Arc<Users>,
    /// What was denied to sessions of this core.
    pub log: AclLog,
    /// Passwords made so far.
    pub secret_count: u64,
}

/// Scripts and functions.
pub struct Scripting {
    /// Scripts known by name.
    pub cache: Cache,
    /// Scripts may call some of DEBUG's subcommands (DEBUG SET-DISABLE-DENY-SCRIPTS 1).
    pub may_debug: bool,
    /// Libraries of functions.
    pub libraries: Arc<Libraries>,
    /// Cores on which a script has been running for long, and whether it is a function.
    pub(crate) busy: BTreeMap<CoreId, bool>,
}

/// What has happened in the cluster.
pub struct History {
    /// What has happened in the cluster; kept by the first core.
    pub timeline: Timeline,
    /// How much of it was noted by this node since its start, by kind.
    pub counts: BTreeMap<&'static str, u64>,
}

/// What the host reports of itself.
pub struct HostFacts {
    /// The host's latest report.
    pub report: HostReport,
    /// What the host has done to this node lately, by that report.
    pub(crate) guilt: Guilt,
    /// Whether the disk can take more.
    pub room: Room,
    /// The Redis that this node follows, if it follows one.
    pub source: Option<Arc<SourceFigures>>,
}
