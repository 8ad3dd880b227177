//! Parts of a core and of what its groups and sessions share that belong together.

use std::collections::{BTreeMap, BTreeSet};

use group::ids::CoreId;
use group::ids::NodeId;
use group::ids::SessionId;
use group::timeline;
use stdx::Instant;

use crate::acquaintances::Acquaintances;
use crate::ask::Deferred;
use crate::ask::Pending;
use crate::happenings::LinkSeen;
use crate::hints::Hints;
use crate::replication_wait::ReplicationWait;
use crate::roster::Member;
use crate::stagger::Stage;
use crate::thorough::Thorough;
use crate::undelivered::Delivery;
use crate::undelivered::Orphans;

/// What clients take of memory, and who is told of what.
pub struct ClientLoad {
    /// Sessions with more output waiting than their soft limit allows.
    pub(super) over_soft: Vec<SessionId>,
    /// When the memory of clients was last looked at.
    pub(super) weighed: Instant,
    /// Bytes that clients took then, and those that the latest report knows of.
    pub(super) bytes: u64,
    pub(super) reported_bytes: u64,
    /// When the log last told of somebody who speaks HTTP.
    pub(super) http_told: Option<Instant>,
}

/// Other nodes, before the roster tells of them or where it is wrong.
pub struct Meeting {
    pub(super) announce_at: Instant,
    /// Since when this node has heard no leader of the metadata.
    pub(super) leaderless_since: Option<Instant>,
    /// When others were introduced to a node last.
    pub(super) introduced: BTreeMap<NodeId, Instant>,
    /// Nodes that say themselves that they are found elsewhere than the roster says, and what that says.
    pub(super) found: BTreeMap<NodeId, (String, Member)>,
    /// Where nodes may be beside where they are called.
    pub(super) hints: Hints,
    /// Nodes to be told of this one while it does not know the cluster.
    pub(super) acquaintances: Acquaintances,
}

/// What the timeline and the first core were told last.
pub struct Told {
    pub(super) checkpoint: Stage,
    /// Which links were up in the last report, and what was told of them.
    pub(crate) links: BTreeMap<NodeId, LinkSeen>,
    /// The archive could not be written when that was last told.
    pub(crate) was_archive_faulty: bool,
    /// Scheduled backups that were made, and that came to nothing, when they were last told.
    pub(crate) backups: (u64, u64),
    /// When troubles were noted last.
    pub(crate) troubles: BTreeMap<timeline::Kind, Instant>,
}

/// Questions of sessions to cores and nodes.
pub struct Questions {
    /// Questions that still lack answers.
    pub(crate) pending: BTreeMap<u64, Pending>,
    pub(crate) next_id: u64,
    /// Sessions that wait for other nodes to hold their writes.
    pub(crate) replication_waits: BTreeMap<u64, ReplicationWait>,
    /// Replies that wait until every voter has what they say.
    pub(crate) thorough: Thorough,
    /// Questions of other cores that wait for locks to go.
    pub(crate) deferred: Vec<Deferred>,
    /// The question being answered: who asked, and its number there.
    pub(crate) answering: (CoreId, u64),
    /// Work on the file of users: for which question, and what has come of it.
    pub(super) file_work: Option<((CoreId, u64), Option<FileOutcome>)>,
}

/// Sessions that wait for data.
pub struct Waits {
    /// Sessions that wait for data, and when their waits end.
    pub(crate) sessions: BTreeSet<SessionId>,
    pub(crate) ends: BTreeSet<(Instant, SessionId)>,
    /// What requests that waited took, as long as the system may not have got it.
    pub(crate) deliveries: BTreeMap<SessionId, Delivery>,
    /// Such requests of clients that have gone.
    pub(crate) orphans: Orphans,
    /// When they took their places last.
    pub(crate) renewed: Instant,
    /// Slots have moved: those who wait stand in other lines.
    pub(crate) must_stand_anew: bool,
}

/// What a host says of the file of users.
pub(crate) type FileOutcome = Result<Vec<u8>, String>;
