//! What a core knows beside its sessions and groups: configuration, where groups are led, what is counted.

mod caches;
mod levels;
mod optimism;
mod parts;
mod quorum;
mod redirected;
mod splitting;
mod thorough;
mod view;
mod whereabouts;

use std::collections::BTreeMap;
use std::sync::Arc;

use group::group_status::GroupStatuses;
use group::ids::{CoreId, GroupId, NodeId, Room, SessionId};
use group::levels::LevelFacts;
use group::replica_reads::{AppliedPosition, Reading};
use group::requests::{Origin, Route};
use group::timeline::Timeline;
use resp::Args;
use stdx::{Duration, Instant, UnixMillis};

use crate::acl::AclLog;
use crate::event::CoreOptions;
use crate::guilt::Guilt;
use crate::invalidation_barrier::InvalidationBarrier;
use crate::known::Known;
use crate::moments::Moments;
use crate::monitor::Monitors;
use crate::neighbours::Neighbours;
use crate::parameters::Parameters;
use crate::pubsub::Pubsub;
use crate::quorum::Leaderless;
use crate::reports::{HostReport, ProcessFacts};
use crate::roster::{Member, Roster};
use crate::scripts::Cache;
use crate::session::Session;
use crate::settings::Settings;
use crate::slots::SlotMap;
use crate::stats::calls::Asked;
use crate::stats::counters::{Rates, SlowEntry, Slowlog, Statistics};
use crate::stats::timing::Timings;
use crate::tracking::Tracker;
use crate::whereabouts::Whereabouts;

pub use parts::{Access, History, HostFacts, MemoryFacts, Scripting};

/// What control commands see of their core.
pub struct Context {
    /// This node.
    pub node: NodeId,
    /// This core.
    pub core: CoreId,
    /// Cores of the node.
    pub core_count: u16,
    /// What is known of the memory of this process, and what is about to be freed.
    pub(crate) memory: MemoryFacts,
    /// Groups of the cluster, those that nobody leads yet among them. Of those that count for clients the map of slots
    /// knows.
    pub group_count: u32,
    /// Which of them holds which slot, as far as this core knows.
    pub slots: Arc<SlotMap>,
    /// Some slots that must move have not moved yet.
    pub is_moving: bool,
    /// Groups are founded by themselves when the nodes have cores for more.
    pub(crate) founds_groups: bool,
    /// The configuration.
    pub settings: Arc<Settings>,
    /// What has been counted.
    pub statistics: Statistics,
    /// Facts about the process.
    pub process: Arc<ProcessFacts>,
    /// Where this node is found.
    pub own: Member,
    /// How well that is known.
    pub(crate) whereabouts: Whereabouts,
    /// Who belongs to the cluster, as far as this node knows; empty for a node by itself.
    pub roster: Arc<Roster>,
    /// What leaders have said of their groups; kept by the first core.
    pub group_statuses: GroupStatuses,
    /// Which other nodes are heard, and what they say of themselves.
    pub(crate) neighbours: Arc<Neighbours>,
    /// Groups that nobody is known to lead.
    pub(crate) leaderless: Leaderless,
    /// What has happened in the cluster.
    pub history: History,
    /// Other nodes may lead groups: requests go where their group is led.
    pub is_clustered: bool,
    /// The cluster has removed this node.
    pub is_expelled: bool,
    /// The process is about to stop: it should not lead.
    pub(crate) is_stopping: bool,
    /// Where each group is led.
    pub routes: Vec<Route>,
    /// How far the groups of this core have been applied here.
    pub(crate) places: Vec<AppliedPosition>,
    /// The latest moment of an entry that this core knows of, in whatever group.
    pub(crate) moments: Moments,
    /// What the host reports of itself.
    pub host: HostFacts,
    /// What this core does in a second.
    pub(crate) rates: Rates,
    /// Number of sessions of this core.
    pub session_count: usize,
    /// Sessions that need no more what groups have reserved for them, and those.
    pub(crate) reservations_given_up: Vec<(SessionId, GroupId)>,
    /// Who may do what, and what was denied.
    pub access: Access,
    /// Who watches what clients send.
    pub monitors: Monitors,
    /// Who has read what, for caches of clients.
    pub tracker: Tracker,
    /// Answers that wait until caches have been told.
    pub(crate) invalidation_barrier: InvalidationBarrier,
    /// What sessions of this core listen to.
    pub pubsub: Pubsub,
    /// Commands that took long.
    pub slowlog: Slowlog,
    /// No expired key is removed before it is asked for (DEBUG SET-ACTIVE-EXPIRE 0).
    pub is_expiry_lazy: bool,
    /// Scripts and functions.
    pub scripting: Scripting,
    /// Parameters of the cluster that this core obeys.
    pub parameters: Arc<Parameters>,
    /// Levels: of this program, of the cluster, and of other nodes.
    pub levels: LevelFacts,
    /// CLIENT PAUSE: until when, and whether only writes wait.
    pub pause: Option<(Instant, bool)>,
    /// How long commands take.
    pub(crate) timings: Timings,
}

impl Context {
    /// True if nothing may be changed for a request: this node follows a Redis, or this cluster another one, and the
    /// request does not come from there. Gateways refuse such requests as well; this is for what they had let pass
    /// before, and what has waited for a lock since. What another node sends on never counts as a site's: a site sends
    /// no scripts.
    pub(crate) fn takes_no_writes_of(&self, origin: &Origin) -> bool {
        (self.host.source.is_some() || self.settings.is_site_read_only) && !origin.writes_for_source
    }

    /// Of a core that has heard of nobody yet.
    pub(crate) fn new(options: CoreOptions, timings: Timings) -> Self {
        let CoreOptions {
            node,
            core,
            core_count,
            group_count,
            founds_groups,
            levels,
            floor,
            settings,
            process,
            own,
            is_own_host_unknown,
            machine_addresses,
            ..
        } = options;
        let users = Arc::clone(&settings.users);
        Self {
            node,
            core,
            core_count,
            memory: MemoryFacts { unused: Vec::new(), reported_bytes: 0, peak_bytes: 0, startup_bytes: 0 },
            group_count,
            slots: Arc::new(SlotMap::even(group_count)),
            founds_groups,
            is_moving: false,
            settings,
            statistics: Statistics::default(),
            slowlog: Slowlog::default(),
            process,
            own,
            whereabouts: Whereabouts { is_guess: is_own_host_unknown, was_found_early: false, machine_addresses },
            roster: Arc::default(),
            group_statuses: GroupStatuses::default(),
            neighbours: Arc::default(),
            leaderless: Leaderless::default(),
            history: History { timeline: Timeline::default(), counts: BTreeMap::new() },
            is_clustered: false,
            is_expelled: false,
            is_stopping: false,
            routes: vec![Route::default(); group_count as usize],
            places: vec![AppliedPosition::default(); group_count as usize],
            moments: Moments::default(),
            host: HostFacts {
                report: HostReport::default(),
                guilt: Guilt::default(),
                room: Room::Enough,
                source: None,
            },
            rates: Rates::default(),
            session_count: 0,
            reservations_given_up: Vec::new(),
            access: Access { users, log: AclLog::default(), secret_count: 0 },
            monitors: Monitors::default(),
            tracker: Tracker::default(),
            invalidation_barrier: InvalidationBarrier::default(),
            pubsub: Pubsub::default(),
            is_expiry_lazy: false,
            scripting: Scripting {
                cache: Cache::default(),
                may_debug: false,
                libraries: Arc::default(),
                busy: BTreeMap::new(),
            },
            parameters: Arc::default(),
            levels: LevelFacts { known: levels, in_force: stdx::Level::FIRST, floor, of_nodes: BTreeMap::new() },
            pause: None,
            timings,
        }
    }

    /// What a request counts as.
    #[inline]
    pub(crate) fn asked(&mut self, known: Known, args: Args<'_>) -> Asked {
        let place = self.timings.place_of(known, args);
        Asked::at(place, known.script_naming().is_some())
    }

    /// True if no other node has ever belonged to the cluster: it is one for the sake of groups that were founded.
    pub(crate) fn is_cluster_of_one(&self) -> bool {
        !self.roster.is_empty() && self.roster.all().all(|(node, _)| node == self.node)
    }

    /// How far a group of this core is at this moment.
    pub(crate) fn place_of(&self, group: GroupId) -> AppliedPosition {
        let applied = self.places[group.0 as usize];
        AppliedPosition { unix: applied.unix.max(self.timings.unix), ..applied }
    }

    /// There is an entry of this moment, of a group of this core.
    #[inline]
    pub(crate) fn hear(&mut self, moment: UnixMillis) {
        self.moments.hear(moment, self.timings.unix);
    }

    /// What is said of users is said to all nodes: there are others, or there were.
    pub(crate) fn shares_users(&self) -> bool {
        self.is_clustered || self.parameters.users().next().is_some()
    }

    /// How old what a session reads may be.
    pub(crate) fn allowed(&self, reading: &Reading) -> Duration {
        reading.allowed.unwrap_or(self.settings.read_staleness_max)
    }

    /// Notes the slow commands among those measured since it was last asked: a session of this core has sent them.
    pub(crate) fn note_slow(&mut self, session: &Session) {
        if self.timings.has_slow() {
            for entry in self.timings.take_slow() {
                let (address, name) = (session.peer.address.clone(), session.options.name.clone());
                self.keep_slow(SlowEntry { address, name, ..entry });
            }
        }
    }

    /// Keeps a slow command.
    pub(crate) fn keep_slow(&mut self, entry: SlowEntry) {
        self.slowlog.push(entry, self.settings.slow_count_max);
    }
}
