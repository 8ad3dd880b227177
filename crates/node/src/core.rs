//! The stepping unit: one thread's sessions and groups, without the thread.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use keyspace::debug::{Digest, database_digest, object_line, value_digest};
use keyspace::{AHEAD_MAX, Ahead, Keyspace, Layout, Policy};
use resp::{Args, Protocol, Span};
use state::Tape;
use stdx::slot::{Slot, slot_of};
use stdx::{Duration, Instant, Levels, Prng, UnixMillis};

use crate::acl::{AclLog, DEFAULT, User, Users};
use crate::acquaintances::Acquaintances;
use crate::ask::{Deferred, Pending};
use crate::bulletin::{Bulletin, Bulletins};
use crate::caches::Parked;
use crate::commands::{self, DebugQuestion, Figures, GroupFigures, Known, Question};
use crate::defect::Defect;
use crate::dispatch::look_up;
use crate::entry::{self, Durability};
use crate::evaluate::Runner;
use crate::event::{
    Action, CoreId, CoreOptions, Event, GroupId, GroupSeed, HostReport, JournalFigures, Lane, Level, NodeId, Now,
    ProcessFacts, Room, SessionId,
};
use crate::founding::Founding;
use crate::group::{Group, LOADING, OUTCOME_UNKNOWN, Proof, Standing};
use crate::guilt::Guilt;
use crate::happenings::LinkSeen;
use crate::holders::HolderWait;
use crate::letter::{
    Claim, DeclinedScript, InquiryKind, Letter, Locked, Mail, Origin, Piece, PlainKind, PlainRequest, Request,
    RequestBody,
};
use crate::libraries::{self, Libraries};
use crate::limits::{self, Slicing};
use crate::moments::Moments;
use crate::monitor::Monitors;
use crate::nearby::{NearRead, Place, Reading};
use crate::neighbours::{Hearing, Neighbours};
use crate::outlet::{Outbox, Outlet};
use crate::parameters::{self, Parameters};
use crate::pubsub::{Kind, Message, Pubsub};
use crate::quorum::Leaderless;
use crate::relay::{Expired, Purpose, Relay, Route, Step};
use crate::roster::{Member, Roster};
use crate::router;
use crate::scripts::Cache;
use crate::session::{Cut, Hold, Session, Sessions};
use crate::settings::Settings;
use crate::slots::SlotMap;
use crate::splitting::Splitting;
use crate::stagger::{self, Stage};
use crate::statistics::{Rates, SlowEntry, Slowlog, Statistics};
use crate::tally::Asked;
use crate::telling::Telling;
use crate::timeline::{self, Timeline};
use crate::timing::Timings;
use crate::toll::Toll;
use crate::tracking::{Mode, Tracker};
use crate::transaction::{Driver, GatewayId, Post, PrepareAnswer, Progress, TransactionId, Work};
use crate::undelivered::{Delivery, Orphans};
use crate::validate;
use crate::whereabouts::Whereabouts;
use crate::wire::{self, Wire};

/// One thread's sessions and groups. [`Core::step`] is the only way in, its actions are the only way out.
pub struct Core {
    pub(crate) context: Context,
    pub(crate) sessions: Sessions,
    /// Groups of this core by `group / core_count`; `None` until loaded.
    pub(crate) groups: Vec<Option<Group>>,
    /// Groups that come into being while it runs.
    pub(crate) founding: Founding,
    pub(crate) splitting: Splitting,
    /// The reader that gets a record of what groups do, if there is one.
    recording: Option<state::Reader>,
    pub(crate) outbox: Outbox,
    pub(crate) driver: Driver,
    /// Users of this node, before the cluster has said anything of them.
    own_users: Arc<Users>,
    /// Changes of users, to be made again when the cluster's parameters have this version.
    pub(crate) belated: Vec<(u64, u64)>,
    /// Questions that still lack answers.
    pub(crate) pending: BTreeMap<u64, Pending>,
    pub(crate) next_question_id: u64,
    /// Sessions that wait for other nodes to hold their writes.
    pub(crate) holder_waits: BTreeMap<u64, HolderWait>,
    /// Questions of other cores that wait for locks to go.
    pub(crate) deferred_questions: Vec<Deferred>,
    pub(crate) spans: Vec<Span>,
    /// The groups of this core have been loaded and have applied what they recovered.
    pub(crate) has_loaded: bool,
    /// Cores of which that is not known yet: until it is, clients of all cores are told so alike.
    unloaded: BTreeSet<CoreId>,
    /// The last command of a client looked at keys at once (a read, a script), so the next one probably will, too.
    pub(crate) is_reading: bool,
    /// A keyspace without keys, for commands that need none.
    pub(crate) scratch: Keyspace,
    /// Sessions that wait for data, and when their waits end.
    pub(crate) waiting: BTreeSet<SessionId>,
    pub(crate) wait_ends: BTreeSet<(Instant, SessionId)>,
    /// What requests that waited took, as long as the system may not have got it.
    pub(crate) deliveries: BTreeMap<SessionId, Delivery>,
    /// Such requests of clients that have gone.
    pub(crate) orphans: Orphans,
    /// When they took their places last.
    pub(crate) waiting_renewed: Instant,
    /// Slots have moved: those who wait stand in other lines.
    pub(crate) must_stand_anew: bool,
    /// Requests of clients that a group has sent back because it does not hold their slot any more.
    pub(crate) sent_back: Vec<Request>,
    /// Sessions that wait for a group's window.
    pub(crate) stalled: Vec<SessionId>,
    /// Requests to groups that other nodes may lead, and steps of transactions.
    pub(crate) relay: Relay,
    /// Keys that have changed since a reply that is on its way was made, by session and ticket.
    pub(crate) stale: BTreeMap<(SessionId, u64), BTreeSet<Arc<[u8]>>>,
    /// Answers to changes that caches of this node have yet to be told of.
    pub(crate) untold: BTreeMap<Claim, Parked>,
    /// How far groups were when they last answered somebody of this core.
    pub(crate) heard_places: Vec<Place>,
    pub(crate) prng: Prng,
    pub(crate) now: Now,
    pub(crate) runner: Runner,
    spare: Vec<Vec<u8>>,
    /// The question being answered: who asked, and its number there.
    pub(crate) answering: (CoreId, u64),
    /// Work on the file of users: for which question, and what has come of it.
    file_work: Option<((CoreId, u64), Option<FileOutcome>)>,
    /// Sessions with more output waiting than their soft limit allows.
    over_soft: Vec<SessionId>,
    /// When the memory of clients was last looked at.
    clients_weighed: Instant,
    /// Bytes that clients took then, and those that the latest report knows of.
    client_bytes: u64,
    reported_client_bytes: u64,
    /// When the log last told of somebody who speaks HTTP.
    http_told: Option<Instant>,
    announce_at: Instant,
    /// Since when this node has heard no leader of the metadata.
    leaderless_since: Option<Instant>,
    /// When others were introduced to a node last.
    introduced: BTreeMap<NodeId, Instant>,
    /// Nodes that say themselves that they are found elsewhere than the roster says, and what that says.
    found: BTreeMap<NodeId, (String, Member)>,
    /// Nodes to be told of this one while it does not know the cluster.
    acquaintances: Acquaintances,
    /// What other nodes say of themselves; heard by the first core.
    pub(crate) hearing: Hearing,
    /// Whether it is this core's turn to write a checkpoint, and what the first core was told of that.
    turn: stagger::Turn,
    checkpoint_told: Stage,
    /// Which links were up in the last report, and what was told of them.
    pub(crate) links_seen: BTreeMap<NodeId, LinkSeen>,
    /// The archive could not be written when that was last told.
    pub(crate) was_archive_faulty: bool,
    /// Scheduled backups that were made, and that came to nothing, when they were last told.
    pub(crate) backups_seen: (u64, u64),
    /// When troubles were noted last.
    pub(crate) troubles: BTreeMap<timeline::Kind, Instant>,
}

/// What control commands see of their core.
pub struct Context {
    /// This node.
    pub node: NodeId,
    /// This core.
    pub core: CoreId,
    /// Cores of the node.
    pub core_count: u16,
    /// Keyspaces that no group uses any more: what a checkpoint of the leader has taken the place of, or what a group
    /// was to begin with that is there already. They are freed in steps.
    pub(crate) unused: Vec<Keyspace>,
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
    pub bulletins: Bulletins,
    /// Which other nodes are heard, and what they say of themselves.
    pub(crate) neighbours: Arc<Neighbours>,
    /// Groups that nobody is known to lead.
    pub(crate) leaderless: Leaderless,
    /// What has happened in the cluster; kept by the first core.
    pub timeline: Timeline,
    /// How much of it was noted by this node since its start, by kind.
    pub happened: BTreeMap<&'static str, u64>,
    /// Other nodes may lead groups: requests go where their group is led.
    pub is_clustered: bool,
    /// The cluster has removed this node.
    pub is_expelled: bool,
    /// The process is about to stop: it should not lead.
    pub(crate) is_stopping: bool,
    /// Where each group is led.
    pub routes: Vec<Route>,
    /// How far the groups of this core have been applied here.
    pub(crate) places: Vec<Place>,
    /// The latest moment of an entry that this core knows of, in whatever group.
    pub(crate) moments: Moments,
    /// The host's latest report.
    pub report: HostReport,
    /// What the host has done to this node lately, by that report.
    pub(crate) guilt: Guilt,
    /// Whether the disk can take more.
    pub room: Room,
    /// Keyspace bytes of this core when the latest report was made.
    pub(crate) reported_keyspace_bytes: u64,
    /// The most memory that the host has reported.
    pub(crate) peak_memory_bytes: u64,
    /// What this core does in a second.
    pub(crate) rates: Rates,
    /// Number of sessions of this core.
    pub session_count: usize,
    /// Sessions that need no more what groups have reserved for them, and those.
    pub(crate) reservations_given_up: Vec<(SessionId, GroupId)>,
    /// All users, the same on every core.
    pub users: Arc<Users>,
    /// What was denied to sessions of this core.
    pub acl_log: AclLog,
    /// Passwords made so far.
    pub secret_count: u64,
    /// Who watches what clients send.
    pub monitors: Monitors,
    /// Who has read what, for caches of clients.
    pub tracker: Tracker,
    /// Answers that wait until caches have been told.
    pub(crate) telling: Telling,
    /// What sessions of this core listen to.
    pub pubsub: Pubsub,
    /// Commands that took long.
    pub slowlog: Slowlog,
    /// No expired key is removed before it is asked for (DEBUG SET-ACTIVE-EXPIRE 0).
    pub is_expiry_lazy: bool,
    /// Scripts known by name.
    pub scripts: Cache,
    /// Scripts may call some of DEBUG's subcommands (DEBUG SET-DISABLE-DENY-SCRIPTS 1).
    pub scripts_may_debug: bool,
    /// Libraries of functions.
    pub libraries: Arc<Libraries>,
    /// Parameters of the cluster that this core obeys.
    pub parameters: Arc<Parameters>,
    /// The levels that this program knows.
    pub levels: Levels,
    /// The level of the cluster, as far as this core knows: that of group 0. Nodes may send each other what came with
    /// it.
    pub level: stdx::Level,
    /// The highest level of anything in the logs of this node, as far as this core has to do with them.
    pub(crate) floor: stdx::Level,
    /// The levels that other nodes know, as they have said last.
    pub(crate) known_levels: BTreeMap<NodeId, Levels>,
    /// Cores on which a script has been running for long, and whether it is a function.
    pub(crate) busy: BTreeMap<CoreId, bool>,
    /// CLIENT PAUSE: until when, and whether only writes wait.
    pub pause: Option<(Instant, bool)>,
    /// How long commands take.
    pub(crate) timings: Timings,
}

impl Context {
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
    pub(crate) fn place_of(&self, group: GroupId) -> Place {
        let applied = self.places[group.0 as usize];
        Place { unix: applied.unix.max(self.timings.unix), ..applied }
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
                let (address, name) = (session.peer.address.clone(), session.name.clone());
                self.keep_slow(SlowEntry { address, name, ..entry });
            }
        }
    }

    /// Keeps a slow command.
    pub(crate) fn keep_slow(&mut self, entry: SlowEntry) {
        self.slowlog.push(entry, self.settings.slow_count_max);
    }
}

/// What a host says of the file of users.
type FileOutcome = Result<Vec<u8>, String>;

impl Core {
    /// A core without groups: these come with [`Event::Loaded`].
    pub fn new(options: CoreOptions) -> Self {
        let CoreOptions {
            node,
            core,
            core_count,
            group_count,
            hash_seed,
            founds_groups,
            levels,
            floor,
            seed,
            settings,
            process,
            own,
            is_own_host_unknown,
            machine_addresses,
            seeds,
            stopwatch,
        } = options;
        assert!(core_count > 0 && core.0 < core_count && group_count > 0);
        let mut prng = Prng::new(seed);
        let is_followed = settings.keeps_site_backlog;
        let local_count = (group_count as usize).saturating_sub(usize::from(core.0)).div_ceil(usize::from(core_count));
        let databases = settings.databases;
        let timings = Timings::new(stopwatch, &settings);
        let gateway = GatewayId { node: node.0, boot: prng.draw(), core };
        let mut relay = Relay::new(gateway.boot, group_count);
        for group in (0..group_count).map(GroupId) {
            // Until other nodes are heard of.
            relay.set_route(group, Route { leader: Some(node), term: 0, is_here: true }, Instant::ZERO);
        }
        let users = Arc::clone(&settings.users);
        let own_users = Arc::clone(&users);
        let mut driver = Driver::new(gateway, databases, stopwatch);
        driver.noted = settings.notify.noted();
        driver.limits = settings.limits();
        Self {
            context: Context {
                node,
                core,
                core_count,
                unused: Vec::new(),
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
                bulletins: Bulletins::default(),
                neighbours: Arc::default(),
                leaderless: Leaderless::default(),
                timeline: Timeline::default(),
                happened: BTreeMap::new(),
                is_clustered: false,
                is_expelled: false,
                is_stopping: false,
                routes: vec![Route::default(); group_count as usize],
                places: vec![Place::default(); group_count as usize],
                moments: Moments::default(),
                report: HostReport::default(),
                guilt: Guilt::default(),
                room: Room::Enough,
                reported_keyspace_bytes: 0,
                peak_memory_bytes: 0,
                rates: Rates::default(),
                session_count: 0,
                reservations_given_up: Vec::new(),
                users,
                acl_log: AclLog::default(),
                secret_count: 0,
                monitors: Monitors::default(),
                tracker: Tracker::default(),
                telling: Telling::default(),
                pubsub: Pubsub::default(),
                is_expiry_lazy: false,
                scripts: Cache::default(),
                scripts_may_debug: false,
                libraries: Arc::default(),
                parameters: Arc::default(),
                levels,
                level: stdx::Level::FIRST,
                floor,
                known_levels: BTreeMap::new(),
                busy: BTreeMap::new(),
                pause: None,
                timings,
            },
            sessions: Sessions::default(),
            groups: (0..local_count).map(|_| None).collect(),
            founding: Founding { hash_seed, looked_at: group_count, begun: BTreeMap::new() },
            splitting: Splitting::new(group_count),
            recording: is_followed.then_some(state::Reader::Holdfast),
            own_users,
            belated: Vec::new(),
            outbox: Outbox::new(core_count),
            driver,
            pending: BTreeMap::new(),
            next_question_id: 0,
            holder_waits: BTreeMap::new(),
            deferred_questions: Vec::new(),
            spans: Vec::new(),
            has_loaded: false,
            unloaded: (0..core_count).map(CoreId).collect(),
            is_reading: false,
            scratch: Keyspace::new(keyspace::Options {
                databases,
                hash_seed: 0,
                layout: Layout::Scratch,
                tuning: keyspace::Tuning::default(),
            }),
            waiting: BTreeSet::new(),
            wait_ends: BTreeSet::new(),
            deliveries: BTreeMap::new(),
            orphans: Orphans::new(),
            waiting_renewed: Instant::default(),
            must_stand_anew: false,
            sent_back: Vec::new(),
            stalled: Vec::new(),
            relay,
            stale: BTreeMap::new(),
            untold: BTreeMap::new(),
            heard_places: vec![Place::default(); group_count as usize],
            prng,
            now: Now::default(),
            runner: Runner::default(),
            spare: Vec::new(),
            answering: (core, 0),
            file_work: None,
            over_soft: Vec::new(),
            clients_weighed: Instant::ZERO,
            client_bytes: 0,
            reported_client_bytes: 0,
            http_told: None,
            announce_at: Instant::ZERO,
            leaderless_since: None,
            introduced: BTreeMap::new(),
            found: BTreeMap::new(),
            // A node that is met later is met as well, and not instead.
            acquaintances: Acquaintances::new(seeds.into_iter().collect()),
            hearing: Hearing::default(),
            turn: stagger::Turn::default(),
            checkpoint_told: Stage::Idle,
            links_seen: BTreeMap::new(),
            was_archive_faulty: false,
            backups_seen: (0, 0),
            troubles: BTreeMap::new(),
        }
    }

    /// Hands back a reply's buffer, to be used again.
    pub fn recycle(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() <= SPARE_BYTES_MAX && self.spare.len() < SPARE_COUNT_MAX {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// The groups of this core that have been loaded.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().flatten()
    }

    /// Requests to groups without an answer, and transactions over groups that are not over.
    pub fn unfinished_count(&self) -> usize {
        self.relay.unanswered_count() + self.driver.len()
    }

    /// Groups that this core has asked for something, and that have not answered: a turn looks at each of them.
    pub fn asked_group_count(&self) -> usize {
        self.relay.active_count()
    }

    /// Lets fewer bytes of requests wait for a group, and be under way to it, than usual. Only the simulator has a use
    /// for it.
    #[doc(hidden)]
    pub fn narrow_streams(&mut self, window_bytes_max: usize, stream_bytes_max: usize) {
        self.relay.narrow(window_bytes_max, stream_bytes_max);
    }

    /// Lets shorter values come and go in steps than usual, and in shorter ones. Only the simulator has a use for it.
    #[doc(hidden)]
    pub fn narrow_slices(&mut self, slicing: Slicing) {
        self.driver.slicing = slicing;
        self.groups.iter_mut().flatten().for_each(|group| group.narrow_slices(slicing));
    }

    /// The most bytes of requests that are under way to one group beside the last one.
    pub fn under_way_max(&self) -> usize {
        self.relay.under_way_max()
    }

    /// True if a client waits until a window has room.
    pub fn has_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// True if nothing would be lost with what this core holds: it is no part of a cluster, and has no keys and no
    /// functions.
    pub fn is_blank(&self) -> bool {
        let databases = 0..self.context.settings.databases;
        // A transaction is acknowledged when all have prepared it, and its keys come later.
        let holds = |group: &Group| {
            group.prepared_count() > 0
                || group.lock_count() > 0
                || databases.clone().any(|database| group.state.keyspace().key_count(database) > 0)
        };
        let is_alone = !self.context.is_clustered || self.context.is_cluster_of_one();
        self.is_loaded() && is_alone && self.context.libraries.is_empty() && !self.groups().any(holds)
    }

    /// True if all groups of this node have been read from the disk, and have applied what they recovered.
    #[inline]
    pub fn is_loaded(&self) -> bool {
        self.unloaded.is_empty()
    }

    /// The same, and this core knows who leads each group.
    pub fn is_served(&self) -> bool {
        self.is_loaded()
            && (!self.context.is_clustered || self.context.routes.iter().all(|route| route.leader.is_some()))
    }

    /// All groups of this node count as loaded.
    #[cfg(test)]
    pub(crate) fn pretend_loaded(&mut self) {
        self.unloaded.clear();
    }

    /// A core has loaded its groups.
    fn note_loaded(&mut self, core: CoreId, actions: &mut Vec<Action>) {
        if self.unloaded.remove(&core) && self.unloaded.is_empty() && self.context.core.0 == 0 {
            let text = format!("node {} has started", self.context.node.0);
            self.note(timeline::Kind::Start, None, text, actions);
        }
    }

    /// True if long work is under way or waits, a part of which is done each turn.
    pub fn is_at_long_work(&self) -> bool {
        self.runner.is_at_work()
    }

    /// True if a group is led here that another node could lead.
    pub fn can_hand_over(&self) -> bool {
        self.groups().any(Group::can_hand_over)
    }

    /// True if a group of this core may lack the end of its log.
    pub fn is_in_doubt(&self) -> bool {
        self.groups().any(Group::may_lack_its_end)
    }

    /// Reads answered by replicas of this core that do not lead.
    pub fn near_read_count(&self) -> u64 {
        self.context.statistics.near_read_count
    }

    /// For the simulator's canaries.
    #[doc(hidden)]
    pub fn groups_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        self.groups.iter_mut().flatten()
    }

    /// Puts a mistake in. Only the simulator has a use for it.
    #[doc(hidden)]
    pub fn break_by(&mut self, defect: Defect) {
        self.driver.defect = Some(defect);
        self.groups_mut().for_each(|group| group.break_by(defect));
    }

    /// One thing happens. What must be done about it is appended to `actions`. Runs to completion: nothing is ever
    /// suspended half-way.
    pub fn step(&mut self, now: Now, event: Event<'_>, actions: &mut Vec<Action>) {
        self.now = now;
        self.context.timings.unix = now.unix;
        self.context.timings.break_off();
        match event {
            Event::Opened { session, peer } => self.open(session, peer, actions),
            Event::Bytes { session, bytes } => self.receive(session, bytes, actions),
            Event::Backlog { session, bytes } => self.note_backlog(session, bytes),
            Event::Closed { session, unsent_bytes } => {
                self.take_back(session, unsent_bytes, actions);
                self.close(session, actions);
            }
            Event::Peer { from, bytes } => self.peer(from, bytes, actions),
            Event::Letter { from, letter } => self.read_letter(from, letter, actions),
            Event::Groups { count, is_recovering } => {
                self.splitting.is_in_doubt = is_recovering;
                self.make_room_for(count);
                self.founding.looked_at = self.founding.looked_at.max(count);
                self.splitting.host_count = self.splitting.host_count.max(count);
            }
            Event::Loaded(seed) => self.load(*seed, actions),
            Event::Persisted { group, ticket } => match self.group_mut(group) {
                Some(group) => group.persisted(ticket),
                None => self.finish_founding(group, ticket, actions),
            },
            Event::Checkpoint { group, id, news } => {
                self.with_group(group, actions, |group, outlet| {
                    if !group.taking_news(id, &news, now, outlet) {
                        group.checkpoint_news(id, news, now, outlet.actions);
                    }
                });
            }
            Event::CheckpointRead { group, index, chunk, to, read } => {
                self.with_group(group, actions, |group, outlet| group.chunk_read(index, chunk, to, read, outlet));
            }
            Event::LogRead { group, first, read } => {
                self.with_group(group, actions, |group, outlet| group.log_read(first, read, outlet));
            }
            Event::Unreachable { node } => self.groups_mut().for_each(|group| group.report_unreachable(node)),
            Event::Expelled => self.be_expelled(actions),
            Event::FoundAt { host, machine_addresses } => {
                if let Some(line) = self.context.found_at(&host, &machine_addresses) {
                    self.announce_at = now.instant;
                    if self.context.core == CoreId(0) {
                        actions.push(Action::Log { level: Level::Notice, line });
                    }
                }
            }
            Event::Imposture { text } => self.note(timeline::Kind::Refusal, None, text, actions),
            Event::Reachable { node, levels } => {
                self.hear_levels(node, levels);
                self.relay.reachable(node, now.instant);
                self.tell_timeline(node, actions);
            }
            Event::Record(reader) => {
                self.recording = reader;
                self.groups_mut().for_each(|group| group.state.record(reader));
            }
            Event::Leave => self.context.is_stopping = true,
            Event::Room(room) => {
                self.context.room = room;
                self.groups_mut().for_each(Group::hear_of_room);
            }
            Event::UsersFile(outcome) => {
                if let Some((_, place)) = &mut self.file_work {
                    *place = Some(outcome);
                }
            }
            Event::Changes { session, ticket, answer } => self.answer_changes(session, ticket, answer),
            Event::Migrated { session, ticket, answer } => self.answer_migrate(session, ticket, answer),
            Event::FollowersHeard { request, answer } => self.followers_heard(*request, answer, actions),
            Event::Secured { id, outcome } => self.secured(id, outcome, actions),
            Event::Report(report) => {
                self.note_syncs(&report);
                self.context.report = *report;
                self.context.guilt = Guilt::of(&self.context.report.stalls, self.now.unix);
                self.reported_client_bytes = self.client_bytes;
                // What is about to be freed is no reason to evict anything.
                self.context.reported_keyspace_bytes = self.keyspace_bytes() + self.unused_bytes();
                let used_bytes = self.context.report.used_memory_bytes;
                self.context.peak_memory_bytes = self.context.peak_memory_bytes.max(used_bytes);
                let Statistics { input_bytes, output_bytes, .. } = self.context.statistics;
                let counts = [self.sessions.calls.total(), input_bytes, output_bytes];
                self.context.rates.note(self.now.instant, counts);
                self.note_report(actions);
            }
            Event::Turn => self.turn(actions),
        }
    }

    /// Notes how long the log's latest sync took, and the longest if there is a new one.
    fn note_syncs(&mut self, report: &HostReport) {
        if self.context.core.0 != 0 || report.journal.sync_count == self.context.report.journal.sync_count {
            return;
        }
        let JournalFigures { sync_last_us, sync_max_us, .. } = report.journal;
        let is_longest = sync_max_us > self.context.report.journal.sync_max_us;
        let worst_us = if is_longest { sync_max_us } else { sync_last_us };
        self.context.timings.note_work("log-sync", Duration::from_micros(worst_us));
    }

    /// An import that was under way when the process ended still is, until CONFIG SET ends it: the settings follow the
    /// log of a group that serves.
    fn keep_import_mode(&mut self) {
        let is_importing = |group: &Group| group.standing() == Standing::Serving && group.is_in_import_mode();
        if self.context.settings.import_mode || !self.groups().any(is_importing) {
            return;
        }
        let settings = Arc::make_mut(&mut self.context.settings);
        settings.set("import-mode", "yes").expect("a parameter and one of its values");
        self.driver.limits = settings.limits();
        for group in self.groups.iter_mut().flatten() {
            group.set_import_mode(true);
        }
    }

    pub(crate) fn load(&mut self, seed: GroupSeed, actions: &mut Vec<Action>) {
        let Some(seed) = self.with_beginning(seed, actions) else { return };
        let place = seed.group.0 as usize / usize::from(self.context.core_count);
        let number = seed.group;
        let group = number;
        let policy = self.context.settings.append_fsync;
        let first_count = self.context.slots.first_count();
        match Group::new(seed, first_count, self.context.node, policy, &mut self.prng, self.now) {
            Ok(mut group) => {
                group.state.upkeep().listen(self.context.noted());
                group.state.record(self.recording);
                group.allows_memory = self.context.settings.allows_memory;
                group.set_limits(self.context.settings.limits());
                if self.context.settings.import_mode {
                    group.set_import_mode(true);
                }
                group.begin_at(self.context.floor, self.context.level);
                if group.membership().voters != [self.context.node.0] {
                    self.become_clustered();
                }
                if !group.slots().is_even() {
                    self.become_clustered();
                }
                self.context.hear(group.moment().unix);
                self.groups[place] = Some(group);
                self.settle_early(number, actions);
            }
            Err(fault) => actions.push(Action::Fatal { line: format!("group {}: {fault}", group.0) }),
        }
    }

    /// From now on requests go where their group is led.
    fn become_clustered(&mut self) {
        if std::mem::replace(&mut self.context.is_clustered, true) {
            return;
        }
        Arc::make_mut(&mut self.context.settings).adopt("cluster-enabled", "yes").expect("a parameter of ours");
        for (group, route) in (0..).map(GroupId).zip(&self.context.routes) {
            self.relay.set_route(group, *route, self.now.instant);
        }
    }

    /// The cluster does without this node from now on: it serves no data, and takes no part in elections.
    fn be_expelled(&mut self, actions: &mut Vec<Action>) {
        if !std::mem::replace(&mut self.context.is_expelled, true) && self.context.core.0 == 0 {
            let line = EXPELLED.to_owned();
            actions.push(Action::Log { level: Level::Warning, line });
        }
    }

    /// The group, if it lives on this core and has been loaded.
    #[inline]
    pub(crate) fn group_mut(&mut self, group: GroupId) -> Option<&mut Group> {
        if router::core_of(group, self.context.core_count) != self.context.core {
            return None;
        }
        self.groups.get_mut(group.0 as usize / usize::from(self.context.core_count))?.as_mut()
    }

    /// Bytes held by the keyspaces of this core.
    pub fn keyspace_bytes(&self) -> u64 {
        self.groups().map(|group| group.state.keyspace().memory_bytes() as u64).sum()
    }

    /// Bytes in use by the process, as far as this core knows: the latest report, and what has changed here since.
    pub(crate) fn used_memory_bytes(&self) -> u64 {
        let evicting: u64 = self.groups().map(|group| group.evicting_bytes as u64).sum();
        (self.context.report.used_memory_bytes + self.keyspace_bytes())
            .saturating_sub(self.context.reported_keyspace_bytes + evicting)
    }

    /// This core's figures, for INFO.
    pub(crate) fn figures(&self, with_histograms: bool) -> Figures {
        let databases = (0..self.context.settings.databases)
            .map(|database| {
                let mut sum = (0, 0, 0, 0);
                for group in self.groups() {
                    let expiring = group.state.keyspace().expiring_count(database) as u64;
                    let average = group.state.keyspace().average_ttl(database, group.read_moment(self.now));
                    sum.0 += group.state.keyspace().key_count(database) as u64;
                    sum.1 += expiring;
                    sum.2 = sum.2.max(average.max(0) as u64);
                    sum.3 += group.state.keyspace().expiring_hash_count(database) as u64;
                }
                sum
            })
            .collect();
        Figures {
            statistics: self.context.statistics.clone(),
            per_second: self.context.rates.per_second,
            calls: self.sessions.calls.clone(),
            times: self.context.timings.figures(with_histograms),
            session_count: self.sessions.len() as u64,
            session_bytes: self.sessions.iter().map(|session| session.memory_bytes() as u64).sum(),
            input_bytes_max: self.sessions.iter().map(|session| session.input_bytes() as u64).max().unwrap_or(0),
            output_bytes_max: self.sessions.iter().map(|session| session.output_bytes() as u64).max().unwrap_or(0),
            tracking: {
                let (keys, readers) = self.context.tracker.counts();
                (self.context.tracker.session_count(), keys, readers)
            },
            prefixes: self.prefixes(),
            names: [Kind::Channel, Kind::Pattern, Kind::Shard]
                .map(|kind| self.context.pubsub.names(kind).map(<[u8]>::to_vec).collect()),
            waiting_count: self.waiting_count() as u64,
            databases,
            keyspace_bytes: self.keyspace_bytes(),
            reported_keyspace_bytes: self.context.reported_keyspace_bytes,
            lua_bytes: self.runner.memory_bytes() as u64,
            groups: self.groups().map(|group| self.figures_of(group)).collect(),
            bulletins: self.heard_bulletins(),
        }
    }

    fn figures_of(&self, group: &Group) -> GroupFigures {
        let now = self.now.instant;
        let lasts = self.context.leaderless.lasts(group.id(), now);
        GroupFigures { leaderless_ms: lasts.map(|lasts| lasts.as_millis() as u64), ..group.figures(now) }
    }

    /// What leaders have said of their groups, and how many milliseconds ago.
    fn heard_bulletins(&self) -> Vec<(Bulletin, u64)> {
        let age_ms = |heard| self.now.instant.since(heard).as_millis() as u64;
        self.context.bulletins.iter().map(|(bulletin, heard)| (bulletin.clone(), age_ms(heard))).collect()
    }

    /// Prefixes that broadcasting sessions of this core are told of.
    fn prefixes(&self) -> BTreeSet<Vec<u8>> {
        let modes =
            self.context.tracker.sessions().filter_map(|id| Some(&self.sessions.get(id)?.tracking.as_ref()?.mode));
        let prefixes = modes.filter_map(|mode| match mode {
            Mode::Broadcast(prefixes) => Some(prefixes.iter().cloned()),
            _ => None,
        });
        prefixes.flatten().collect()
    }

    /// Sets parameters that have been checked.
    pub(crate) fn configure(&mut self, pairs: &[(String, String)], actions: &mut Vec<Action>) {
        let settings = Arc::make_mut(&mut self.context.settings);
        for (name, value) in pairs {
            settings.set(name, value).expect("checked before the question was put");
        }
        let settings = &self.context.settings;
        let settings = Arc::clone(settings);
        let noted = self.context.noted();
        for group in self.groups.iter_mut().flatten() {
            group.append_fsync = settings.append_fsync;
            group.allows_memory = settings.allows_memory;
            group.state.upkeep().set_tuning(settings.tuning());
            group.state.upkeep().listen(noted);
            group.set_limits(settings.limits());
            if pairs.iter().any(|(name, _)| name == "import-mode") {
                group.set_import_mode(settings.import_mode);
            }
        }
        self.driver.noted = settings.notify.noted();
        self.driver.limits = settings.limits();
        self.context.timings.obey(&settings);
        if pairs.iter().any(|(name, _)| name == "requirepass") {
            self.require_password();
        }
        let settings = &self.context.settings;
        for (name, _) in pairs {
            let name = Settings::parameter(name).expect("checked before the question was put").name;
            actions.push(Action::Configured { name, value: settings.get(name).to_owned() });
        }
    }

    /// Gives the default user the password that has been configured. Every core does so at once; that a change of users
    /// on its way does not undo it is up to the first core, which hands its own to all.
    fn require_password(&mut self) {
        if self.context.shares_users() {
            // Every core does the same, and what the cluster says stands over it.
            Arc::make_mut(&mut self.own_users).require(&self.context.settings.password);
            return self.overlay_users();
        }
        let mut users = Users::clone(&self.context.users);
        users.require(&self.context.settings.password);
        if self.context.core.0 == 0 {
            let users = Arc::new(users);
            self.install_users(&users);
            for core in (1..self.context.core_count).map(CoreId) {
                self.outbox.push(self.context.core, core, Mail::Users(Arc::clone(&users)));
            }
        } else {
            users.version = self.context.users.version;
            self.install_users(&Arc::new(users));
        }
    }

    /// These are the users from now on. Sessions obey the new rules at once. A session is ended if its user is gone, or
    /// if it listens to what it may no longer hear.
    pub(crate) fn install_users(&mut self, users: &Arc<Users>) {
        if users.version < self.context.users.version {
            return; // a later change has come from the first core already
        }
        self.own_users = Arc::clone(users);
        self.overlay_users();
    }

    /// Lets what the cluster says of users stand over what they are here, unless this node was told to pass it over.
    pub(crate) fn overlay_users(&mut self) {
        let is_passed_over = self.context.settings.get("cluster-users") == "ignore";
        let users = if is_passed_over || self.context.parameters.users().next().is_none() {
            Arc::clone(&self.own_users)
        } else {
            Arc::new(self.own_users.overlaid(&self.context.parameters))
        };
        self.obey_users(&users);
    }

    fn obey_users(&mut self, users: &Arc<Users>) {
        // A client that came while it was not known yet that a password is needed has not said one.
        let must_say = !self.is_loaded() && !users.default_user().needs_no_password();
        self.context.users = Arc::clone(users);
        let mut ended = Vec::new();
        for session in self.sessions.iter_mut() {
            if must_say && session.user.name == DEFAULT && session.user.needs_no_password() {
                session.is_authenticated = false;
            }
            let may_stay = match users.get(&session.user.name) {
                None => false,
                Some(user) if **user == *session.user => true,
                Some(user) => {
                    session.user = Arc::clone(user);
                    commands::may_keep_listening(user, session)
                }
            };
            if !may_stay {
                session.is_closing = true;
                ended.push(session.id);
            }
        }
        ended.into_iter().for_each(|id| self.sessions.mark(id));
    }

    /// Notes that the host is asked to work on the file of users for the question being answered; false if it is at
    /// work for another.
    pub(crate) fn begin_file_work(&mut self) -> bool {
        let is_free = self.file_work.is_none();
        if is_free {
            self.file_work = Some((self.answering, None));
        }
        is_free
    }

    /// What has come of the work on the file of users, if it was for the question being answered and is done.
    pub(crate) fn take_file_outcome(&mut self) -> Option<FileOutcome> {
        self.file_work.take_if(|(owner, outcome)| *owner == self.answering && outcome.is_some())?.1
    }

    /// CLIENT PAUSE and UNPAUSE.
    pub(crate) fn pause(&mut self, pause: Option<(Duration, bool)>) {
        match pause {
            // A pause that has run out ends for those who wait.
            None => self.context.pause = self.context.pause.map(|(_, only_writes)| (self.now.instant, only_writes)),
            Some((duration, only_writes)) => {
                let until = self.now.instant + duration;
                // A pause never shortens another, nor does one for writes soften one for all.
                let (until, only_writes) = match self.context.pause {
                    Some((other, others_writes)) => (until.max(other), only_writes && others_writes),
                    None => (until, only_writes),
                };
                self.context.pause = Some((until, only_writes));
            }
        }
        self.end_pause();
    }

    /// Keys of a slot, if its group lives on this core.
    pub(crate) fn keys_of_slot(&self, slot: Slot, database: u16, count: usize) -> Vec<Vec<u8>> {
        const STEP: usize = 1_000;
        let group = self.context.slots.group_of_slot(slot);
        let Some(group) = self.groups().find(|other| other.id() == group) else { return Vec::new() };
        let view = group.state.keyspace().view(database, group.read_moment(self.now));
        let mut keys = Vec::new();
        let mut cursor = keyspace::cursor_at_slot(slot.0.into());
        loop {
            cursor = view.scan(cursor, STEP, |entry| {
                if slot_of(entry.key()) == slot && keys.len() < count {
                    keys.push(entry.key().to_vec());
                }
            });
            if cursor == 0 || keys.len() >= count || keyspace::slot_of_cursor(cursor) != slot {
                return keys;
            }
        }
    }

    /// Bytes that the keys of a slot take, if its group lives on this core.
    pub(crate) fn bytes_of_slot(&self, slot: Slot) -> u64 {
        let group = self.context.slots.group_of_slot(slot);
        let group = self.groups().find(|other| other.id() == group);
        group.map_or(0, |group| group.state.keyspace().slot_bytes(slot) as u64)
    }

    /// Keys of a slot, if this core has them.
    pub(crate) fn key_count_of_slot(&self, slot: Slot, database: u16) -> u64 {
        let group = self.context.slots.group_of_slot(slot);
        let group = self.groups().find(|other| other.id() == group);
        group.map_or(0, |group| group.state.keyspace().slot_key_count(database, slot) as u64)
    }

    /// Digests of this core's databases that are not empty.
    pub(crate) fn digests(&self) -> Vec<(u16, Digest)> {
        let mut digests = Vec::new();
        for database in 0..self.context.settings.databases {
            let mut joined: Option<Digest> = None;
            for group in self.groups() {
                let view = group.state.keyspace().view(database, group.read_moment(self.now));
                if let Some(digest) = database_digest(&view) {
                    joined.get_or_insert_with(Digest::default).join(digest);
                }
            }
            digests.extend(joined.map(|digest| (database, digest)));
        }
        digests
    }

    /// DEBUG OBJECT and DEBUG DIGEST-VALUE for the keys that live on this core.
    pub(crate) fn describe_keys(&self, kind: DebugQuestion, keys: &[(u16, Vec<u8>)]) -> Vec<(usize, String)> {
        let mut described = Vec::new();
        for (place, (database, key)) in keys.iter().enumerate() {
            let group = self.context.slots.group_of(key);
            let Some(group) = self.groups().find(|other| other.id() == group) else { continue };
            let view = group.state.keyspace().view(*database, group.read_moment(self.now));
            let text = match kind {
                DebugQuestion::Object => object_line(&view, key).ok(),
                DebugQuestion::Digest => Some(value_digest(&view, key).to_string()),
            };
            described.extend(text.map(|text| (place, text)));
        }
        described
    }

    // ---- sessions -------------------------------------------------------------------------------------------------

    fn open(&mut self, session: SessionId, peer: crate::event::Peer, actions: &mut Vec<Action>) {
        let settings = &self.context.settings;
        let default = self.context.users.default_user();
        let is_refused = settings.protected_mode && default.is_open && !peer.is_local;
        let user = if peer.is_host { Arc::new(User::default_user()) } else { Arc::clone(default) };
        self.sessions.open(session, peer, self.now, user);
        self.context.session_count = self.sessions.len();
        self.context.statistics.connection_count += 1;
        if is_refused {
            actions.push(Action::Reply { session, bytes: PROTECTED_MODE.as_bytes().to_vec() });
            actions.push(Action::Close { session });
            self.sessions.get_mut(session).expect("just opened").is_closing = true;
        }
    }

    fn close(&mut self, session: SessionId, actions: &mut Vec<Action>) {
        self.give_up_waiting(session, actions);
        if let Some(mut session) = self.sessions.close(session) {
            self.context.give_up_reserved(session.id, &mut session.optimism, self.now.instant);
            self.context.pubsub.forget(&mut session);
            self.context.monitors.remove(session.id);
            self.context.tracker.set_session(session.id, None);
        }
        self.context.session_count = self.sessions.len();
    }

    /// A session of this core has sent commands that another found slow.
    pub(crate) fn take_slow(&mut self, id: SessionId, entries: Vec<SlowEntry>) {
        let client = self.sessions.get(id).map(|session| (session.peer.address.clone(), session.name.clone()));
        let (address, name) = client.unwrap_or_default();
        for entry in entries {
            self.context.keep_slow(SlowEntry { address: address.clone(), name: name.clone(), ..entry });
        }
    }

    fn note_backlog(&mut self, id: SessionId, bytes: usize) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.backlog_bytes = bytes;
        if bytes == 0 || session.is_over_soft() {
            session.check_output(&self.context.settings.output_limits, self.now.instant);
        }
        if session.cut.is_some() {
            self.sessions.mark(id);
            return;
        }
        let unread_bytes = session.out.len() + session.backlog_bytes;
        if session.hold == Hold::Output && unread_bytes <= limits::OUTPUT_BYTES_MAX / 2 {
            self.sessions.mark_resumable(id);
        }
    }

    // ---- letters and peers ------------------------------------------------------------------------------------------

    pub(crate) fn outlet<'a>(
        context: &'a mut Context,
        sessions: &'a mut Sessions,
        outbox: &'a mut Outbox,
        actions: &'a mut Vec<Action>,
    ) -> Outlet<'a> {
        Outlet { context, sessions, outbox, actions }
    }

    /// Another node or core knows of an entry of this moment, and what it says follows from that. A batch that has its
    /// moment already is closed: what follows from that word must not stand in it.
    fn hear_moment(&mut self, moment: UnixMillis) {
        if moment <= self.context.moments.latest() || self.driver.defect == Some(Defect::DeafMoments) {
            return;
        }
        self.context.hear(moment);
        for group in self.groups.iter_mut().flatten() {
            group.close_batch(self.now, self.context.moments.latest(), &mut self.prng);
        }
    }

    /// Where there is an archive all cores must know soon of what others have logged: see `group::archive`. Other nodes
    /// learn it with the vitals.
    fn pass_on_moment(&mut self) {
        let is_due =
            self.context.settings.closes_moments() && self.context.moments.is_to_be_passed_on(self.now.instant);
        if is_due {
            let own = self.context.core;
            for core in (0..self.context.core_count).map(CoreId).filter(|core| *core != own) {
                self.outbox.push(own, core, Mail::Moment);
            }
        }
    }

    fn read_letter(&mut self, from: CoreId, mut letter: Letter, actions: &mut Vec<Action>) {
        self.hear_moment(letter.moment);
        let mut pieces = letter.pieces.drain(..);
        let mut looked_at = 0;
        loop {
            if looked_at == 0 {
                looked_at = self.look_ahead(pieces.as_slice(), &letter.bytes);
            }
            let Some(piece) = pieces.next() else { break };
            looked_at -= 1;
            match piece {
                Piece::Request(request) => {
                    self.take_plain(from, &request, &letter.bytes[request.words.clone()], actions);
                }
                Piece::Reply { session, ticket, proof, bytes } => {
                    self.sessions.reply_proven(session, ticket, proof, &letter.bytes[bytes]);
                }
                Piece::LongReply { session, ticket, proof, bytes } => {
                    self.sessions.reply_proven(session, ticket, proof, &bytes);
                }
                Piece::Mail(mail) => self.read_mail(from, *mail, actions),
            }
        }
        drop(pieces);
        self.outbox.recycle(letter);
    }

    /// Looks up what the next reads of a letter name, and says for how many pieces that lasts: at least one. (The keys
    /// of writes are looked up when their entry is applied.)
    fn look_ahead(&self, pieces: &[Piece], bytes: &[u8]) -> usize {
        let mut found = [(GroupId(0), Ahead::default()); AHEAD_MAX];
        let (mut found_count, mut piece_count) = (0, 0);
        for piece in pieces.iter().take(AHEAD_MAX) {
            let read = match piece {
                Piece::Request(request) if request.kind != PlainKind::Write => {
                    Some((request.group, &bytes[request.words.clone()]))
                }
                Piece::Mail(mail) => match &**mail {
                    Mail::Request(Request {
                        group,
                        body: RequestBody::Read(words) | RequestBody::ReadAtOnce(words),
                        ..
                    }) => Some((*group, &words[..])),
                    _ => None,
                },
                _ => None,
            };
            if let Some((group, words)) = read {
                entry::Reader::new(words).skim_words(&mut |ahead| {
                    found[found_count] = (group, ahead);
                    found_count += 1;
                });
            }
            piece_count += 1;
        }
        // For a single key there is nothing to be done side by side.
        if found_count > 1 {
            look_up(&self.groups, &found[..found_count]);
        }
        piece_count.max(1)
    }

    fn read_own_mail(&mut self, actions: &mut Vec<Action>) -> bool {
        let mail = std::mem::take(&mut self.outbox.own);
        let any = !mail.is_empty();
        for mail in mail {
            self.read_mail(self.context.core, mail, actions);
        }
        any
    }

    fn read_mail(&mut self, from: CoreId, mail: Mail, actions: &mut Vec<Action>) {
        match mail {
            Mail::Request(request) => self.take_request(request, actions),
            Mail::Moment => {}
            Mail::Answered { claim, place, toll, proof, bytes } => {
                self.take_relayed(claim, place, &toll, (proof, &bytes), actions);
            }
            Mail::ReadNearby(read) => self.take_near_read(read),
            Mail::NotNearby(read) => self.read_far(read, actions),
            Mail::Refused { claim } => self.relay.refused(claim, self.now.instant),
            Mail::Alive { claim } => self.relay.alive(claim, self.now.instant),
            Mail::Route { group, route } => self.set_route(group, route),
            Mail::Slots(news) => self.learn_slots(&news),
            Mail::Move { by, id, group, step, body } => {
                let origin = self.origin_of(SessionId { serial: 0, index: 0 });
                let request = Request::new(origin, group, Protocol::Resp2, body);
                self.relay.submit(request, Purpose::Move { by, id, step }, self.now.instant);
            }
            Mail::Retry(request) => self.retry_script(request, actions),
            Mail::Declined(declined) => self.take_declined(declined, actions),
            Mail::LetIn { group, origin } => {
                let now = self.now;
                self.with_group(group, actions, |group, outlet| group.let_in(&origin, now, outlet));
            }
            // That there is no room to remember it keeps nobody from sending it again.
            Mail::Learn(script) => drop(self.context.scripts.insert(script, false)),
            Mail::Libraries { libraries, first, reply } => self.take_libraries(from, libraries, first, reply, actions),
            Mail::LibrariesKnown { version } => self.know_libraries(version),
            Mail::Busy { core, is_function: Some(is_function) } => {
                self.context.busy.insert(core, is_function);
            }
            Mail::Busy { core, is_function: None } => {
                self.context.busy.remove(&core);
            }
            Mail::Slow { session, entries } => self.take_slow(session, entries),
            Mail::Happened { kind, group, text } => self.note(kind, group, text, actions),
            Mail::Parameters(parameters) => self.take_parameters(parameters, actions),
            Mail::Level(level) => self.take_level(level),
            Mail::Bulletin(bulletin) => self.context.bulletins.hear(bulletin, self.now.instant),
            Mail::FromLeader(bulletin) => {
                let now = self.now;
                self.with_group(bulletin.group, actions, |group, outlet| group.hear_bulletin(&bulletin, now, outlet));
            }
            Mail::Loaded => self.note_loaded(from, actions),
            Mail::Neighbours(neighbours) => self.context.neighbours = neighbours,
            Mail::Checkpoint(stage) => self.hearing.note_checkpoint(from, stage),
            Mail::Line(note) => self.take_line(note, actions),
            Mail::Wake { session, ticket, group, is_gone } => self.woken(session, ticket, group, is_gone, actions),
            Mail::Inquire { transaction, from: asker, node, group, question } => {
                self.testify(transaction, (asker, node), group, question, actions);
            }
            Mail::Testimony { transaction, group, from, fate } => {
                if let Some(group) = self.group_mut(group) {
                    group.hear(transaction, from, fate);
                }
            }
            Mail::Remember { session, keys } => {
                keys.iter().for_each(|key| self.context.tracker.remember(from, session, key));
            }
            Mail::Invalidate { session, news, by } => self.invalidate(session, news, by),
            Mail::Changed(changes) => self.hear_changes(&changes),
            Mail::FlushCaches => self.flush_caches(),
            Mail::FlushBroadcasters => self.flush_broadcasters(),
            Mail::Hear { home, round, left } => self.hear(home, round, left),
            Mail::Heard { round } => self.take_heard(round, actions),
            Mail::Tell { gateway, claim } => self.tell_gateway(gateway, claim, actions),
            Mail::Told { claim } => self.told(claim, actions),
            Mail::Redirected { session, news, from } => self.tell_redirected(session, &news, from),
            Mail::RedirectBroken { session, lost } => self.redirect_broken(session, lost),
            Mail::Presence(core, presence) => self.set_presence(core, presence),
            Mail::Monitored(line) => self.see_command(&line),
            Mail::Monitoring(core, watches) => self.context.monitors.set_core(core, watches),
            Mail::Users(users) => self.install_users(&users),
            Mail::Publish(message) => {
                self.deliver(&message);
            }
            Mail::Roster(roster) => {
                if !roster.is_empty() {
                    self.become_clustered();
                }
                self.context.take_roster(roster);
                self.look_for_founded(actions);
                self.look_at_slots();
                if self.context.roster.is_removed(self.context.node) {
                    self.be_expelled(actions);
                }
            }
            Mail::SplitOff(new) => self.take_split_off(*new, actions),
            Mail::SplitKept { parent, group } => {
                if let Some(parent) = self.group_mut(parent) {
                    parent.beginning_kept(group);
                }
            }
            Mail::SplitBegun { parent, group } => {
                if let Some(parent) = self.group_mut(parent) {
                    parent.note_begun(group);
                }
            }
            Mail::SplitsPassed(groups) => self.pass_over_splits(&groups, actions),
            Mail::Ask { question_id, question } => self.answer_or_defer(from, question_id, question, actions),
            Mail::Answer { question_id, answer } => self.take_answer(from, question_id, answer, actions),
        }
    }

    pub(crate) fn with_group(
        &mut self,
        group: GroupId,
        actions: &mut Vec<Action>,
        act: impl FnOnce(&mut Group, &mut Outlet<'_>),
    ) {
        if router::core_of(group, self.context.core_count) != self.context.core {
            return;
        }
        let mut outlet = Self::outlet(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
        let place = group.0 as usize / usize::from(outlet.context.core_count);
        if let Some(group) = self.groups.get_mut(place).and_then(Option::as_mut) {
            act(group, &mut outlet);
        }
    }

    // ---- the cluster ------------------------------------------------------------------------------------------------

    /// A node has told where it is found. It is entered by the leader of group 0.
    fn hear_announcement(&mut self, from: NodeId, node: NodeId, member: &Member, actions: &mut Vec<Action>) {
        let own = self.context.own_as_announced();
        let (own_node, is_alone, is_first_hand) = (self.context.node, self.context.roster.is_empty(), from == node);
        // A node that this one has heard of speaks for itself. Others may wish to be taken in by this one.
        if own_node != node && is_alone {
            let serves = self.group_mut(GroupId(0)).is_none_or(|group| group.standing() == Standing::Serving);
            if !is_first_hand || !serves && self.acquaintances.knows(node) {
                if !serves {
                    self.get_acquainted(from, node, member, actions);
                }
                return;
            }
        }
        let known = self.context.roster.get(node);
        if known.is_some_and(|known| known.is_found_as(member) || known.is_removed) {
            if is_first_hand {
                // It may have been elsewhere meanwhile.
                if self.found.remove(&node).is_some() {
                    self.meet_all(actions);
                }
                self.introduce_all_to(node, actions);
            }
            return;
        }
        // A node that is heard says itself where it is found.
        let is_heard = node == own_node || self.context.neighbours.hears(node);
        if known.is_some() && !is_first_hand && is_heard {
            return;
        }
        let Some(group) = self.group_mut(GroupId(0)) else { return };
        match group.standing() {
            Standing::Serving => {
                if is_alone && node != own_node {
                    group.enlist(own_node, &own);
                }
                group.enlist(node, member);
            }
            Standing::Follower(leader) if is_first_hand => {
                let bytes = wire::encode_announce(node, member);
                actions.push(Action::Send { to: leader, group: GroupId(0), lane: Lane::Log, bytes });
            }
            _ => {}
        }
        if is_first_hand {
            self.call_elsewhere(node, member, actions);
        }
    }

    /// A node says itself that it is found elsewhere than the roster says. That may be as it was told by somebody else,
    /// and put right only by a leader who may need this node's vote to be one: so it is called there from now on, until
    /// the roster says something new of it.
    fn call_elsewhere(&mut self, node: NodeId, member: &Member, actions: &mut Vec<Action>) {
        let Some(known) = self.context.roster.get(node) else { return };
        let found = (known.cluster_address.clone(), Member { zone: known.zone.clone(), ..member.clone() });
        if known.cluster_address != member.cluster_address && self.found.get(&node) != Some(&found) {
            self.found.insert(node, found);
            self.meet_all(actions);
        }
    }

    /// The host is told where the nodes are found.
    fn meet_all(&mut self, actions: &mut Vec<Action>) {
        let roster = Arc::clone(&self.context.roster);
        self.found.retain(|node, (known, _)| {
            roster.get(*node).is_some_and(|member| member.cluster_address == *known && !member.is_removed)
        });
        let place = |(node, member): (NodeId, &Member)| {
            (node, self.found.get(&node).map_or(member, |(_, member)| member).clone())
        };
        actions.push(Action::Peers(roster.all().map(place).collect()));
    }

    /// A node does not know yet that it is known: it may not have been able to hear so, because it had nobody to talk
    /// to. What this node says of itself is the same word to that node, which may answer in the same way, and so on. So
    /// it is told once in [`limits::ANNOUNCE_INTERVAL`], and not where this node is if it speaks to this node anyway.
    fn introduce_all_to(&mut self, node: NodeId, actions: &mut Vec<Action>) {
        let (own, now) = (self.context.node, self.now.instant);
        let is_told = |last: &Instant| now.since(*last) < limits::ANNOUNCE_INTERVAL;
        if self.introduced.get(&node).is_some_and(is_told) {
            return;
        }
        self.introduced.insert(node, now);
        let is_found = self.context.neighbours.hears(node);
        let is_news = |other: NodeId| other != node && !(is_found && other == own);
        for (other, member) in self.context.roster.present().filter(|(other, _)| is_news(*other)) {
            let bytes = wire::encode_announce(other, member);
            actions.push(Action::Send { to: node, group: GroupId(0), lane: Lane::Log, bytes });
        }
    }

    /// A node that joins hears of another one, which it can talk to from now on.
    fn get_acquainted(&mut self, from: NodeId, node: NodeId, member: &Member, actions: &mut Vec<Action>) {
        let (is_forsaken, now) = (self.is_forsaken(), self.now.instant);
        if self.acquaintances.hear(from, (node, member), is_forsaken, now) {
            // A node that is not among them is linked no longer. The one that this node asked to join is among them
            // from the start.
            actions.push(Action::Peers(self.acquaintances.places()));
        }
    }

    /// The core of group 0 sees to it that the cluster knows where this node is found, and that this node knows the
    /// cluster.
    fn keep_roster(&mut self, actions: &mut Vec<Action>) {
        let libraries = self.group_mut(GroupId(libraries::HOME)).and_then(Group::take_libraries);
        if let Some(libraries) = libraries {
            let first = self.context.core;
            self.outbox.push(first, first, Mail::Libraries { libraries, first, reply: None });
        }
        let parameters = self.group_mut(GroupId(parameters::HOME)).and_then(Group::take_parameters);
        if let Some(parameters) = parameters {
            for core in (0..self.context.core_count).map(CoreId) {
                self.outbox.push(self.context.core, core, Mail::Parameters(Arc::clone(&parameters)));
            }
        }
        if let Some(level) = self.group_mut(crate::levels::HOME).and_then(Group::take_level) {
            // The roster below is looked at with it.
            self.context.level = self.context.level.max(level);
            for core in (0..self.context.core_count).map(CoreId) {
                self.outbox.push(self.context.core, core, Mail::Level(level));
            }
        }
        let news = self.group_mut(GroupId(0)).and_then(Group::take_roster);
        if let Some(roster) = news {
            let roster = Arc::new(roster);
            for core in (0..self.context.core_count).map(CoreId) {
                self.outbox.push(self.context.core, core, Mail::Roster(Arc::clone(&roster)));
            }
            self.context.take_roster(roster);
            self.meet_all(actions);
        }
        if self.now.instant < self.announce_at {
            return;
        }
        self.announce_at = self.now.instant + limits::ANNOUNCE_INTERVAL;
        let neighbours = &self.context.neighbours;
        if self.context.roster.is_empty() && self.acquaintances.look(self.now.instant, |node| neighbours.hears(node)) {
            actions.push(Action::Peers(self.acquaintances.places()));
        }
        let (node, own) = (self.context.node, self.context.own_as_announced());
        let roster = Arc::clone(&self.context.roster);
        let is_known = roster.get(node).is_some_and(|known| known.is_found_as(&own) || known.is_removed);
        let is_by_itself = roster.is_empty() && !self.acquaintances.has_named();
        let is_expelled = self.context.is_expelled;
        let Some(group) = self.group_mut(GroupId(0)) else { return };
        if group.standing() == Standing::Serving {
            let now = self.now;
            self.with_group(GroupId(0), actions, |group, outlet| {
                group.finish_removals(&outlet.context.bulletins, outlet.context.group_count, now);
                group.take_balancing_step(now, outlet);
            });
        }
        let Some(group) = self.group_mut(GroupId(0)) else { return };
        let standing = group.standing();
        // The leader may look for it elsewhere: somebody may have told it so while this node was not heard. Then what
        // the others know is not what this node knows, and it does not hear that either. A learner does not forget a
        // leader that has fallen silent.
        let hears_leader = match standing {
            Standing::Serving | Standing::Loading => true,
            Standing::Follower(leader) => self.context.neighbours.hears(leader),
            Standing::Leaderless => false,
        };
        self.leaderless_since = if hears_leader { None } else { self.leaderless_since.or(Some(self.now.instant)) };
        let is_forsaken = self.is_forsaken();
        if is_known && !is_forsaken || is_by_itself || is_expelled {
            return;
        }
        if is_forsaken {
            // All who are there are told, by all who are.
            self.announce_at = self.now.instant + limits::FORSAKEN_INTERVAL;
        }
        match standing {
            Standing::Serving => {
                if let Some(group) = self.group_mut(GroupId(0)) {
                    group.enlist(node, &own);
                }
            }
            Standing::Follower(leader) if !is_forsaken => {
                self.announce_to(leader, actions);
                // There may be no link to it yet; those who are linked say where it is.
                let others = if roster.is_empty() { self.acquaintances.nodes() } else { Vec::new() };
                others.into_iter().filter(|other| *other != leader).for_each(|other| self.announce_to(other, actions));
            }
            Standing::Loading => {}
            Standing::Follower(_) | Standing::Leaderless => {
                let known = roster.present().map(|(other, _)| other).filter(|other| *other != node);
                let heard_of = self.acquaintances.named();
                let heard_of = if roster.is_empty() { self.acquaintances.nodes() } else { heard_of };
                for other in known.chain(heard_of).collect::<BTreeSet<_>>() {
                    self.announce_to(other, actions);
                }
            }
        }
    }

    /// True if this node has heard no leader of the metadata for a while.
    fn is_forsaken(&self) -> bool {
        let is_silence = |since: Instant| self.now.instant.since(since) >= limits::FORSAKEN_AFTER;
        self.leaderless_since.is_some_and(is_silence)
    }

    fn announce_to(&self, to: NodeId, actions: &mut Vec<Action>) {
        let bytes = wire::encode_announce(self.context.node, &self.context.own_as_announced());
        actions.push(Action::Send { to, group: GroupId(0), lane: Lane::Log, bytes });
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.prng.draw()
    }

    /// Lets the driver of transactions do something, and sends what it asks of groups.
    pub(crate) fn drive(
        &mut self,
        actions: &mut Vec<Action>,
        act: impl FnOnce(&mut Driver, &mut Vec<Post>) -> Progress,
    ) {
        let mut posts = Vec::new();
        let progress = act(&mut self.driver, &mut posts);
        self.context.statistics.lookups.add(std::mem::take(&mut self.driver.lookups));
        for (session, keys) in std::mem::take(&mut self.driver.reads) {
            self.remember_keys(session, keys);
        }
        for (group, id, body) in posts {
            let durability = self.driver.durability(id);
            let step = match &body {
                RequestBody::Lock(_) => Step::Lock,
                RequestBody::Prepare { .. } | RequestBody::Cut { .. } => Step::Prepare,
                RequestBody::Renew { .. } => Step::Renew,
                _ => Step::Resolve,
            };
            let origin = Origin { durability, ..self.origin_of(SessionId { serial: 0, index: 0 }) };
            let request = Request::new(origin, group, Protocol::Resp2, body);
            self.relay.submit(request, Purpose::Transaction { id, step }, self.now.instant);
        }
        self.progress(progress, actions);
    }

    /// True if what clients of this node ask for may have to go to its own disk first: it leads a group, or does not
    /// know yet. Where others lead, what waits for the disk came from them, and they see to it that it has a bound.
    pub fn adds_to_its_log(&self) -> bool {
        let leads = |route: &Route| route.leader == Some(self.context.node);
        !self.context.is_clustered || self.context.routes.iter().any(leads)
    }

    /// The origin of a request with an answer for this core to take.
    pub(crate) fn origin_of(&self, session: SessionId) -> Origin {
        let known = self.sessions.get(session);
        let asked = known.map_or(Durability::Server, |session| session.durability);
        let durability = self.context.settings.durability(asked);
        let is_silent = known.is_some_and(|session| session.no_touch);
        Origin { is_silent, durability, ..Origin::new(self.context.node, self.context.core, session, 0) }
    }

    // ---- requests to groups -----------------------------------------------------------------------------------------

    fn set_route(&mut self, group: GroupId, route: Route) {
        // Another core may have heard first that there is such a group.
        self.make_room_for(group.0 + 1);
        let before = std::mem::replace(&mut self.context.routes[group.0 as usize], route);
        // A client that waits for its keys stood in no line while nobody led the group.
        self.must_stand_anew |= route.leader.is_some() && route != before;
        self.note_touch(group, route.leader.is_some());
        if route.leader.is_some_and(|leader| leader != self.context.node) {
            self.become_clustered();
        }
        if self.context.is_clustered {
            self.relay.set_route(group, route, self.now.instant);
        }
        self.count_led();
    }

    /// Tells all cores where the groups of this one are led.
    fn tell_routes(&mut self) {
        let mut news = Vec::new();
        for group in self.groups.iter_mut().flatten() {
            news.extend(group.take_route().map(|route| (group.id(), route)));
        }
        for (group, route) in news {
            for core in (0..self.context.core_count).map(CoreId).filter(|core| *core != self.context.core) {
                self.outbox.push(self.context.core, core, Mail::Route { group, route });
            }
            self.set_route(group, route);
        }
    }

    /// Sends what gateways of this core ask of groups, here or elsewhere.
    pub(crate) fn flush_relay(&mut self, actions: &mut Vec<Action>) {
        let Self { relay, outbox, context, now, .. } = self;
        let (node, core, core_count) = (context.node, context.core, context.core_count);
        relay.flush(now.instant, |leader, mut request| {
            // What it reads is remembered here already.
            request.origin.tracks = false;
            if leader == node {
                outbox.push(core, router::core_of(request.group, core_count), Mail::Request(request));
            } else {
                let (group, mut bytes) = (request.group, wire::encode_request(&request));
                wire::stamp(&mut bytes, context.moments.latest());
                actions.push(Action::Send { to: leader, group, lane: Lane::Log, bytes });
            }
        });
    }

    /// True if a read has been answered and one of the same client before it has not: that answer was lost, and the
    /// next one may know more than this. Both are asked again.
    fn has_overtaken(&mut self, claim: Claim) -> bool {
        let Some(session) = self.relay.reader(claim) else { return false };
        let relay = &mut self.relay;
        self.sessions.get(session).is_some_and(|session| {
            session
                .reads_of(claim.group)
                .any(|number| number < claim.number && relay.is_outstanding(claim.group, number))
        })
    }

    /// Notes how far a group was that has answered, for the client that has asked.
    fn note_place(&mut self, claim: Claim, place: Place) {
        let Some(heard) = self.heard_places.get_mut(claim.group.0 as usize) else { return };
        *heard = heard.max(place);
        if let Some(Purpose::Client { session, .. }) = self.relay.purpose(claim)
            && let Some(session) = self.sessions.get_mut(*session)
            && let Some(reading) = &mut session.reading
        {
            reading.see(claim.group, place);
        }
    }

    /// A client of this node wants to read from a replica of this core.
    fn take_near_read(&mut self, read: NearRead) {
        match self.group_mut(read.group) {
            Some(group) => group.read_nearby(read),
            None => self.outbox.push(self.context.core, read.origin.core, Mail::NotNearby(read)),
        }
    }

    /// The answer to a numbered request has come.
    fn take_relayed(
        &mut self,
        claim: Claim,
        place: Place,
        toll: &Toll,
        (proof, bytes): (Proof, &[u8]),
        actions: &mut Vec<Action>,
    ) {
        if self.has_overtaken(claim) {
            return self.relay.refused(claim, self.now.instant);
        }
        self.note_place(claim, place);
        if let Some(moved) = message::answer::take_moved(bytes)
            && self.has_moved(claim, moved, actions)
        {
            return;
        }
        let is_to_be_told =
            self.context.is_clustered && self.context.tracker.is_wanted() && self.relay.is_of_change(claim, bytes);
        let Some((request, purpose)) = self.relay.answered(claim, self.now.instant) else { return };
        if !request.body.is_answered_by(&proof, bytes)
            || !validate::is_answer(&request.body, bytes, self.context.settings.databases)
        {
            // What it says cannot be relied on, and nobody else can be asked.
            self.context.statistics.malformed_peer_count += 1;
            return self.give_up_request(claim.group, purpose, OUTCOME_UNKNOWN.to_owned(), request, actions);
        }
        self.count_toll(&request, &purpose, toll);
        if is_to_be_told {
            self.park(claim, purpose, proof, bytes);
        } else {
            self.take_answer_of_group(claim, purpose, proof, bytes, actions);
        }
    }

    /// The same, when caches of this node have been told.
    pub(crate) fn take_answer_of_group(
        &mut self,
        claim: Claim,
        purpose: Purpose,
        proof: Proof,
        bytes: &[u8],
        actions: &mut Vec<Action>,
    ) {
        let group = claim.group;
        match purpose {
            Purpose::Client { session, ticket } => {
                self.sessions.reply_proven(session, ticket, proof, bytes);
                self.tell_stale(session, ticket);
            }
            Purpose::Question { id, part, places } => {
                self.group_answered(id, (group, part), places, Some(bytes), actions)
            }
            Purpose::Reservation => {}
            Purpose::Holders { id } => self.holders_told(id, group, bytes, actions),
            Purpose::Place { id } => self.leader_is_at(id, group, bytes, actions),
            Purpose::Parameters { id } => self.parameters_set(id, bytes, actions),
            Purpose::Obeyed { id } => self.parameters_obeyed(id, group, actions),
            Purpose::Script { session, ticket, protocol, script } => match wire::take_declined(bytes) {
                None => self.sessions.reply_proven(session, ticket, proof, bytes),
                Some(declined) => {
                    let origin = Origin { ticket, ..self.origin_of(session) };
                    self.take_declined(DeclinedScript { origin, protocol, script, declined, home: None }, actions);
                }
            },
            Purpose::Libraries { session, ticket } => self.libraries_changed(session, ticket, proof, bytes),
            Purpose::Move { by, id, step } => {
                let now = self.now;
                self.with_group(by, actions, |driving, outlet| {
                    driving.move_answered(id, group, step, bytes, now, outlet);
                });
            }
            Purpose::Transaction { id, step: Step::Lock } => {
                let outcome = wire::take_locked(bytes);
                let outcome = outcome.unwrap_or_else(|| Locked::Refused(self.no_quorum(group)));
                let outcome = (outcome, proof.observed());
                self.drive(actions, |driver, posts| driver.locked(id, group, outcome, posts));
            }
            Purpose::Transaction { id, step: Step::Prepare } => self.drive(actions, |driver, posts| {
                let (answer, place) = PrepareAnswer::take_with_place(bytes);
                driver.note_place(id, group, place);
                driver.prepared(id, group, (answer, proof), posts)
            }),
            Purpose::Transaction { step: Step::Renew, .. } => {}
            Purpose::Transaction { id, step: Step::Resolve } => {
                self.drive(actions, |driver, _| driver.resolved(id, group));
            }
        }
    }

    /// Gives up what nobody has answered for too long, and says whether it may have had an effect.
    fn expire_requests(&mut self, actions: &mut Vec<Action>) {
        let now = self.now.instant;
        for Expired { group, purpose, is_in_doubt, request } in self.relay.pass_time(now) {
            let text = if is_in_doubt { OUTCOME_UNKNOWN.to_owned() } else { self.no_quorum(group) };
            self.note_refusal(group, actions);
            self.give_up_request(group, purpose, text, request, actions);
        }
        let context = &self.context;
        for progress in self.driver.give_up(now, OUTCOME_UNKNOWN, |group| context.no_quorum(group, now)) {
            self.progress(progress, actions);
        }
    }

    /// Refuses what a group was asked for, or says that nobody knows what has become of it.
    fn give_up_request(
        &mut self,
        group: GroupId,
        purpose: Purpose,
        text: String,
        request: Request,
        actions: &mut Vec<Action>,
    ) {
        match purpose {
            Purpose::Client { session, ticket } => {
                let waiting = self.sessions.get(session).and_then(|session| session.waiting.as_ref());
                let is_waiting = waiting.is_some_and(|waiting| waiting.ticket == ticket);
                let text = match &request.body {
                    RequestBody::Read(words) | RequestBody::ReadAtOnce(words) if !is_waiting => {
                        self.no_quorum_to_read_words(session, group, words)
                    }
                    _ => text,
                };
                self.sessions.refuse(session, ticket, &text);
                self.tell_stale(session, ticket);
            }
            Purpose::Script { session, ticket, .. } | Purpose::Libraries { session, ticket } => {
                self.sessions.refuse(session, ticket, &text);
                self.tell_stale(session, ticket);
            }
            Purpose::Question { id, part, places } => self.group_answered(id, (group, part), places, None, actions),
            Purpose::Holders { id } => self.holders_told(id, group, &[], actions),
            Purpose::Place { id } => self.leader_is_at(id, group, &[], actions),
            Purpose::Parameters { id } => self.parameters_refused(id, &text, actions),
            Purpose::Obeyed { id } => self.parameters_obeyed(id, group, actions),
            Purpose::Transaction { id, step: Step::Lock } => {
                let outcome = (Locked::Refused(text), None);
                self.drive(actions, |driver, posts| driver.locked(id, group, outcome, posts));
            }
            // Whether it holds a part is found out by the group itself.
            Purpose::Reservation | Purpose::Transaction { .. } | Purpose::Move { .. } => {}
        }
    }

    /// Tells what a group of this core knows of a transaction to the group that asks, on its node.
    fn testify(
        &mut self,
        transaction: TransactionId,
        (asker, node): (GroupId, NodeId),
        group: GroupId,
        question: InquiryKind,
        actions: &mut Vec<Action>,
    ) {
        let now = self.now;
        let is_serving = |group: &&mut Group| group.standing() == Standing::Serving;
        let Some(asked) = self.group_mut(group).filter(is_serving) else { return };
        let fate = match question {
            InquiryKind::Fate => asked.testify(transaction),
            InquiryKind::Ended => asked.has_ended(transaction, now),
        };
        let Some(fate) = fate else { return };
        if node == self.context.node {
            let to = router::core_of(asker, self.context.core_count);
            let mail = Mail::Testimony { transaction, group: asker, from: group, fate };
            self.outbox.push(self.context.core, to, mail);
        } else {
            let mut bytes = wire::encode_testimony(transaction, asker, group, fate);
            wire::stamp(&mut bytes, self.context.moments.latest());
            actions.push(Action::Send { to: node, group: asker, lane: Lane::Log, bytes });
        }
    }

    pub(crate) fn progress(&mut self, progress: Progress, actions: &mut Vec<Action>) {
        match progress {
            Progress::Going | Progress::Over => {}
            Progress::Again(work) if self.now.instant.since(work.begun) < limits::REQUEST_PATIENCE => {
                self.begin_work(*work, actions);
            }
            Progress::Again(work) => self.refuse_work(&work, NOTHING_DONE, actions),
            Progress::Widened(work) => self.begin_work(*work, actions),
            Progress::Compute(computation) => self.compute(computation, actions),
            Progress::Answered { origin, home, proof, bytes, asides, notices } => {
                let now = self.now;
                let mut outlet = Self::outlet(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
                outlet.tell_asides(&origin, *asides, now);
                self.answer_work(&origin, home, (proof, bytes), actions);
                let mut outlet = Self::outlet(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
                notices.iter().for_each(|notice| outlet.tell(notice));
            }
        }
    }

    /// Tells a client that its transaction has not been carried out.
    pub(crate) fn refuse_work(&mut self, work: &Work, text: &str, actions: &mut Vec<Action>) {
        let mut writer = resp::Writer::new(work.protocol);
        writer.error(text);
        self.answer_work(&work.origin, work.home, (Proof::Refused, writer.into_bytes()), actions);
    }

    /// Gives a client the reply to its transaction, and lets in what it has sent since.
    fn answer_work(
        &mut self,
        origin: &Origin,
        home: Option<GroupId>,
        (proof, bytes): (Proof, Vec<u8>),
        actions: &mut Vec<Action>,
    ) {
        let mut outlet = Self::outlet(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
        outlet.reply_proven(origin, proof, bytes);
        // With control commands among them the reply is not yet whole.
        if self.sessions.get(origin.session).is_some_and(|session| session.composition.is_none()) {
            self.sessions.end_driving(origin.session, &self.context.settings.output_limits);
        }
        if let Some(home) = home {
            self.let_in(home, *origin, actions);
        }
    }

    /// A core of this node asks for what a client of its own has asked for. Mostly there is nothing to it but to do it.
    fn take_plain(&mut self, from: CoreId, request: &PlainRequest, words: &[u8], actions: &mut Vec<Action>) {
        let (now, origin) = (self.now, request.origin(self.context.node, from));
        let mut is_taken = false;
        self.with_group(request.group, actions, |group, outlet| {
            is_taken = group.standing() == Standing::Serving && group.take_plain(request, &origin, words, now, outlet);
        });
        if !is_taken {
            self.take_request(request.with_words(origin, words), actions);
        }
    }

    /// Takes a request for a group of this core from any node or core.
    pub(crate) fn take_request(&mut self, request: Request, actions: &mut Vec<Action>) {
        let now = self.now;
        let standing = self.group_mut(request.group).map(|group| group.standing());
        if standing == Some(Standing::Serving) {
            if !matches!(request.body, RequestBody::Script(_)) {
                return self.with_group(request.group, actions, |group, outlet| group.request(request, now, outlet));
            }
            let mut is_expected = false;
            self.with_group(request.group, actions, |group, outlet| is_expected = group.expects(&request, outlet));
            if is_expected {
                self.take_script(request, false, actions);
            }
            return;
        }
        // A node that has not read its disk yet does not know of its cluster, but others do. What they ask may have
        // been carried out long ago: only a leader can say what became of it.
        let is_clustered = self.context.is_clustered || request.origin.node != self.context.node;
        let mut outlet = Self::outlet(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
        match &request.body {
            _ if is_clustered && request.origin.claim.is_some() => outlet.send_back(&request.origin),
            RequestBody::Lock(_) => {
                let refused = wire::put_locked(&Locked::Refused(LOADING.to_owned()));
                outlet.answer(&request.origin, Proof::Refused, refused);
            }
            RequestBody::Prepare { .. } | RequestBody::Cut { .. } => {
                outlet.answer(&request.origin, Proof::Refused, PrepareAnswer::Refused.put());
            }
            RequestBody::Renew { .. } | RequestBody::Resolve { .. } => {
                outlet.answer(&request.origin, Proof::Refused, Vec::new());
            }
            _ => outlet.refuse(&request.origin, request.protocol, LOADING),
        }
    }

    fn peer(&mut self, from: NodeId, bytes: &[u8], actions: &mut Vec<Action>) {
        let (now, node) = (self.now, from);
        let Some((moment, bytes)) = wire::unstamp(bytes) else {
            self.context.statistics.malformed_peer_count += 1;
            return;
        };
        if let Some(moment) = moment {
            self.hear_moment(moment);
        }
        match wire::decode(bytes) {
            Some(Wire::Raft(group, _) | Wire::Offer(group, _)) if self.stays_out(group) => {}
            Some(Wire::Raft(group, message)) => {
                let may_vote_first = self.may_vote_first(group);
                if message.from() == from.0
                    && let Some(group) = self.group_mut(group)
                {
                    group.step(message, may_vote_first);
                }
            }
            Some(Wire::Offer(group, message)) => {
                self.with_group(group, actions, |group, outlet| group.offered(from, message, now, outlet));
            }
            Some(Wire::Pull { group, index, chunk }) => {
                self.with_group(group, actions, |group, outlet| group.pulled(from, index, chunk, now, outlet));
            }
            Some(Wire::Chunk { group, index, chunk, bytes }) => {
                self.with_group(group, actions, |group, outlet| {
                    group.chunk_came(from, index, chunk, bytes, now, outlet);
                });
            }
            Some(Wire::Announce(node, member)) => self.hear_announcement(from, node, &member, actions),
            // The leader speaks for itself.
            Some(Wire::Bulletin(bulletin)) if bulletin.leader == from => {
                let home = router::core_of(bulletin.group, self.context.core_count);
                self.outbox.push(self.context.core, home, Mail::FromLeader(bulletin.clone()));
                self.context.bulletins.hear(bulletin, now.instant);
            }
            Some(Wire::Vacant(group)) => {
                if let Some(group) = self.group_mut(group) {
                    group.told_vacant(from, now);
                }
            }
            Some(Wire::AmMember(group)) => {
                self.with_group(group, actions, |group, outlet| group.asked_membership(from, outlet));
            }
            Some(Wire::NoMember { group, index }) => {
                if let Some(group) = self.group_mut(group) {
                    group.told_no_member(from, index, now);
                }
            }
            Some(Wire::Vitals(vitals)) => self.hearing.hear(from, vitals, now.instant),
            Some(Wire::Timeline(happenings)) => {
                happenings.into_iter().for_each(|happening| self.context.timeline.hear(happening));
            }
            Some(Wire::Bulletin(_)) => self.context.statistics.malformed_peer_count += 1,
            // A node speaks for its own clients.
            Some(Wire::Line(note)) if note.waiter.node == from => self.take_line(note, actions),
            Some(Wire::Line(_)) => self.context.statistics.malformed_peer_count += 1,
            Some(Wire::Wake { waiter, group, is_gone }) => {
                self.woken(waiter.session, waiter.ticket, group, is_gone, actions);
            }
            // The node that answers is told where the client is: a node speaks for itself.
            Some(Wire::Request(request))
                if request.origin.node == from
                    && validate::is_valid(&request, self.context.group_count, self.context.settings.databases) =>
            {
                self.take_request(request, actions);
            }
            Some(Wire::Request(_)) => self.context.statistics.malformed_peer_count += 1,
            Some(Wire::Answer(claim, place, toll, proof, bytes)) => {
                if self.is_from_asked(from, claim) {
                    self.take_relayed(claim, place, &toll, (proof, bytes), actions);
                }
            }
            Some(Wire::Sound { group, number }) => {
                self.with_group(group, actions, |group, outlet| group.sounded(from, number, now, outlet));
            }
            Some(Wire::Place { group, number, place }) => {
                if let Some(group) = self.group_mut(group) {
                    group.told_place(from, number, place);
                }
            }
            Some(Wire::Refused(claim)) => {
                if self.is_from_asked(from, claim) {
                    self.relay.refused(claim, now.instant);
                }
            }
            Some(Wire::Alive(claim)) => {
                if self.is_from_asked(from, claim) {
                    self.relay.alive(claim, now.instant);
                }
            }
            Some(Wire::Inquire { transaction, from: asker, group, question }) => {
                self.testify(transaction, (asker, from), group, question, actions);
            }
            Some(Wire::Testify { transaction, group, from, fate }) => {
                // A group speaks through its leader.
                let is_leader =
                    self.context.routes.get(from.0 as usize).is_some_and(|route| route.leader == Some(node));
                if let Some(group) = self.group_mut(group).filter(|_| is_leader) {
                    group.hear(transaction, from, fate);
                }
            }
            Some(Wire::Ask { gateway, group }) => {
                let bytes = wire::encode_life(gateway, group, gateway == self.driver.gateway());
                actions.push(Action::Send { to: from, group, lane: Lane::Vital, bytes });
            }
            Some(Wire::Life { gateway, group, is_alive }) if gateway.node == from.0 => {
                self.with_group(group, actions, |group, outlet| group.told_life(gateway, is_alive, now, outlet));
            }
            Some(Wire::Life { .. }) => self.context.statistics.malformed_peer_count += 1,
            Some(Wire::Publish(message)) => {
                Self::outlet(&mut self.context, &mut self.sessions, &mut self.outbox, actions).publish_here(&message);
            }
            None => self.context.statistics.malformed_peer_count += 1,
        }
    }

    /// True if an answer comes from a node that was asked.
    fn is_from_asked(&mut self, from: NodeId, claim: Claim) -> bool {
        if self.relay.has_asked(from, claim) || self.driver.defect == Some(Defect::BelievedAnswers) {
            return true;
        }
        // What was asked in another life of this core is nobody's lie.
        self.context.statistics.malformed_peer_count += u64::from(self.relay.is_own(claim));
        false
    }

    // ---- the turn ---------------------------------------------------------------------------------------------------

    fn turn(&mut self, actions: &mut Vec<Action>) {
        self.expire_requests(actions);
        self.check_soft_limits();
        self.weigh_clients();
        self.keep_roster(actions);
        self.keep_import_mode();
        self.context.moments.tell(self.now, actions);
        self.pass_on_moment();
        self.keep_neighbours(actions);
        self.end_pause();
        self.forget_delivered();
        self.pass_time_waiting(actions);
        self.pass_time_for_orphans(actions);
        self.pass_time_for_holders();
        self.pass_time_caching(actions);
        let mut more = false;
        for round in 0..limits::ROUNDS_PER_TURN {
            self.send_anew(actions);
            self.flush_relay(actions);
            self.read_own_mail(actions);
            self.evict();
            more = self.turn_groups(actions);
            self.tell_routes();
            self.tell_slots();
            if !self.has_loaded {
                let is_loaded = |group: &Group| group.standing() != Standing::Loading;
                self.has_loaded = self.groups.iter().all(|group| group.as_ref().is_some_and(is_loaded));
                if self.has_loaded {
                    let own = self.context.core;
                    for core in (0..self.context.core_count).map(CoreId).filter(|core| *core != own) {
                        self.outbox.push(own, core, Mail::Loaded);
                    }
                    self.note_loaded(own, actions);
                }
            }
            self.end_reservations(actions);
            let had_mail = self.read_own_mail(actions);
            let sent = self.send_anew(actions);
            let admitted = self.retry_deferred_questions(actions);
            self.compose(actions);
            let settled = self.settle_waiting(actions) | self.settle_orphans(actions);
            self.open_windows();
            let resumed = self.resume(actions);
            if !resumed && !settled && !had_mail && !admitted && !sent && self.outbox.own.is_empty() {
                break;
            }
            more |= round + 1 == limits::ROUNDS_PER_TURN;
        }
        more |= self.turn_scripts(actions);
        more |= self.background(actions);
        more |= self.free_unused();
        more |= self.turn_caches();
        self.turn_monitors();
        self.read_own_mail(actions);
        self.broadcast_changes();
        more |= self.read_own_mail(actions);
        // Readers of what groups do must know of a group that has split off before anything behind that is told. Before
        // it has begun here it has nothing to tell, and would seem to begin with a gap.
        let roster = Arc::clone(&self.context.roster);
        // It has the higher number.
        for group in self.groups.iter_mut().rev().flatten().filter(|group| !group.has_unborn()) {
            let is_awaited = roster.parent(group.id()).is_some() && group.was_never_anything();
            if let Some(tape) = group.state.take_tape().filter(|_| !is_awaited) {
                let tape = Tape { born: group.take_untold(), ..tape };
                actions.push(Action::Tape(Box::new(tape)));
            }
        }
        more |= self.flush(actions);
        let next = if more { self.now.instant } else { self.next_wake() };
        actions.push(Action::WakeAt { instant: next });
    }

    fn turn_groups(&mut self, actions: &mut Vec<Action>) -> bool {
        let mut outlet = Self::outlet(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
        let mut more = false;
        for group in self.groups.iter_mut().flatten() {
            more |= group.turn(self.now, &mut self.prng, &mut outlet);
        }
        more
    }

    /// Work that nobody waits for, in slices.
    fn background(&mut self, actions: &mut Vec<Action>) -> bool {
        let mut more = false;
        let (mut is_waiting, mut is_writing) = (false, false);
        let mut outlet = Self::outlet(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
        // A node that is alone has nobody to wait for.
        let is_shared = !outlet.context.roster.is_empty();
        for group in self.groups.iter_mut().flatten() {
            let log_bytes_max = outlet.context.settings.checkpoint_log_bytes;
            let is_due = group.log_bytes > log_bytes_max
                && group.log_bytes > group.state.keyspace().memory_bytes() as u64
                && !group.is_checkpoint_due()
                && !group.checkpointing.is_resting(self.now);
            if is_due {
                let log_bytes_max = log_bytes_max.max(group.state.keyspace().memory_bytes() as u64);
                let first = outlet.context.neighbours.checkpoints_first(outlet.context.node);
                let is_late = stagger::is_late(group.log_bytes, log_bytes_max);
                if !is_shared || self.turn.may_begin(first, self.now.instant) || is_late {
                    group.want_checkpoint();
                } else {
                    is_waiting = true;
                }
            }
            if group.is_checkpoint_due() {
                let started = outlet.context.timings.start_work();
                more |= group.checkpoint_turn(self.now, outlet.actions);
                outlet.context.timings.stop_work("checkpoint", started);
            }
            group.checkpointing.is_waiting = is_due && !group.is_checkpoint_due();
            is_writing |= group.checkpointing.is_running();
            if !outlet.context.is_expiry_lazy && outlet.context.pause.is_none() {
                let moment = group.moment();
                let started = outlet.context.timings.start_work();
                more |= group.state.upkeep().collect(moment, limits::COLLECT_PER_TURN);
                outlet.context.timings.stop_work("expire-cycle", started);
                group.tell(&mut outlet, None);
            }
        }
        self.tell_checkpoint_stage(is_waiting, is_writing);
        more
    }

    /// The first core learns what this one does about checkpoints, for the other nodes.
    fn tell_checkpoint_stage(&mut self, is_waiting: bool, is_writing: bool) {
        if !is_waiting {
            self.turn.end();
        }
        let stage = match (is_writing, is_waiting) {
            (true, _) => Stage::Writing,
            (false, true) => Stage::Due,
            (false, false) => Stage::Idle,
        };
        if stage != std::mem::replace(&mut self.checkpoint_told, stage) {
            if self.context.core == CoreId(0) {
                self.hearing.note_checkpoint(CoreId(0), stage);
            } else {
                self.outbox.push(self.context.core, CoreId(0), Mail::Checkpoint(stage));
            }
        }
    }

    /// Looks after clients that have had too much output waiting for a while.
    fn check_soft_limits(&mut self) {
        for id in std::mem::take(&mut self.over_soft) {
            self.sessions.mark(id);
        }
    }

    /// Looks after the places and the memory of clients, now and then.
    fn weigh_clients(&mut self) {
        let now = self.now.instant;
        if now.since(self.clients_weighed) < limits::TICK_INTERVAL {
            return;
        }
        self.clients_weighed = now;
        self.cut_unauthenticated();
        if self.context.settings.clients_bytes_max > 0 {
            self.evict_clients();
        }
    }

    /// Cuts off clients that have had time to authenticate, and have not, when few places for others are left.
    fn cut_unauthenticated(&mut self) {
        let clients_max = self.context.settings.number("maxclients").unsigned_abs();
        let is_near = self.context.report.client_count >= limits::clients_near(clients_max);
        if !is_near || self.context.users.default_user().needs_no_password() {
            return;
        }
        let now = self.now.instant;
        let is_overdue = |session: &&Session| {
            !session.is_authenticated && now.since(session.opened.instant) > limits::AUTHENTICATION_MAX
        };
        let overdue: Vec<_> = self.sessions.iter().filter(is_overdue).map(|session| session.id).collect();
        for id in overdue {
            if let Some(session) = self.sessions.get_mut(id).filter(|session| !session.is_closing) {
                session.cut(Cut::Unauthenticated);
                self.sessions.mark(id);
            }
        }
    }

    /// What took this core longest of the work that it has done since then, if any took long: a command by its name, or
    /// a slice of `checkpoint`, `expire-cycle` or `eviction-cycle`.
    pub fn heaviest_since(&self, since: Instant) -> Option<&'static str> {
        self.context.timings.heaviest_since(since)
    }

    /// There are no other nodes that this one has to hear, or that wait to hear of it.
    pub fn is_alone(&self) -> bool {
        !self.context.is_clustered
    }

    /// Replies to clients of this core that waited for no disk: of reads, refusals, and what concerns only the client.
    pub fn prompt_reply_count(&self) -> u64 {
        self.sessions.prompt_reply_count
    }

    /// Requests taken from clients of this core since it began.
    pub fn request_count(&self) -> u64 {
        self.context.statistics.request_count
    }

    /// Bytes that the clients of this core took when that was looked at last.
    pub fn client_bytes(&self) -> u64 {
        self.client_bytes
    }

    /// Cuts off those clients that take most, while those of all cores together take more than `maxmemory-clients`, and
    /// those of this one more than its part: what others have is known only roughly, and they do the same.
    fn evict_clients(&mut self) {
        let bytes_max = self.context.settings.clients_bytes_max;
        let mut weights: Vec<_> =
            self.sessions.iter().map(|session| (session.memory_bytes() as u64, session.id)).collect();
        let mut sum: u64 = weights.iter().map(|(bytes, _)| bytes).sum();
        let others = self.context.report.client_bytes.saturating_sub(self.reported_client_bytes);
        weights.sort_unstable();
        while sum + others > bytes_max
            && sum > bytes_max / u64::from(self.context.core_count)
            && let Some((bytes, id)) = weights.pop()
        {
            let Some(session) = self.sessions.get_mut(id).filter(|session| !session.no_evict && !session.is_closing)
            else {
                continue;
            };
            session.cut(Cut::Memory);
            self.sessions.mark(id);
            sum -= bytes;
        }
        self.client_bytes = sum;
    }

    /// Ends the connection of a client that speaks HTTP: what follows could be commands that somebody has put into a
    /// request of a browser. They are not looked at.
    pub(crate) fn end_http(&mut self, id: SessionId, actions: &mut Vec<Action>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.asking = Asked::NOTHING;
        session.is_closing = true;
        self.context.statistics.http_count += 1;
        let now = self.now.instant;
        if self.http_told.is_none_or(|told| now.since(told) >= limits::HTTP_INTERVAL) {
            self.http_told = Some(now);
            let line = format!(
                "Possible SECURITY ATTACK detected: client id={} addr={} sends POST or Host: as a command, as a browser \
                 does that is abused to reach this server. Its connection is closed.",
                session.id.serial, session.peer.address
            );
            actions.push(Action::Log { level: Level::Warning, line });
        }
        self.sessions.mark(id);
    }

    fn next_wake(&self) -> Instant {
        let tick = self.now.instant + limits::TICK_INTERVAL;
        let ends = [
            self.context.pause.map(|(until, _)| until),
            self.next_wait_end(),
            self.next_claim(),
            self.next_holder_wake(),
            self.next_orphan_wake(),
            self.relay.wake_at(self.now.instant),
            self.groups.iter().flatten().filter_map(Group::next_reservation_end).min(),
        ];
        ends.into_iter().flatten().fold(tick, Instant::min)
    }

    fn end_pause(&mut self) {
        if self.context.pause.is_some_and(|(until, _)| until <= self.now.instant) {
            self.context.pause = None;
            let paused: Vec<_> =
                self.sessions.iter().filter(|session| session.hold == Hold::Paused).map(|session| session.id).collect();
            for id in paused {
                self.sessions.mark_resumable(id);
            }
        }
    }

    /// Chooses victims while memory is over its limit. Their removal goes through the log, so that replicas agree.
    fn evict(&mut self) {
        let limit = self.context.settings.maxmemory_bytes;
        let policy = self.context.settings.maxmemory_policy;
        // What is evicted is logged, for which there must be room.
        let has_room = self.context.room == Room::Enough;
        // Before all is loaded some keys may be counted twice: those of a group that has split off, where the split has
        // yet to be applied again.
        let may_evict = policy != Policy::NoEviction && self.unloaded.is_empty() && has_room;
        if limit == 0 || self.context.settings.import_mode || !may_evict {
            return;
        }
        let mut used = self.used_memory_bytes();
        let now = self.now;
        let started = self.context.timings.start_work();
        for group in self.groups.iter_mut().flatten() {
            if group.standing() != Standing::Serving {
                continue;
            }
            for _ in 0..limits::EVICTIONS_PER_TURN {
                if used <= limit || group.is_full() {
                    break;
                }
                let moment = group.read_moment(now);
                let Some((database, key)) = group.state.keyspace().victim(policy, &mut self.prng, moment) else {
                    break;
                };
                let entry = group.state.keyspace().view(database, moment).peek(&key);
                let byte_count = entry.map_or(1, |entry| entry.memory_bytes());
                if group.evict(database, &key, byte_count) {
                    used = used.saturating_sub(byte_count as u64);
                }
            }
        }
        self.context.timings.stop_work("eviction-cycle", started);
    }

    /// Lets sessions go on that waited for a window.
    /// True if no more writes for a group are taken for now. Where others take part each gateway counts its own: they
    /// may keep the group busy without end.
    pub(crate) fn is_full(&mut self, group: GroupId) -> bool {
        self.relay.is_full(group)
            || self.group_mut(group).is_some_and(|group| group.serves_at_once() && group.is_full())
    }

    fn open_windows(&mut self) {
        let is_full = |group: &Group| group.serves_at_once() && group.is_full();
        if self.stalled.is_empty() || self.groups().any(is_full) || self.relay.is_any_full() {
            return;
        }
        for id in std::mem::take(&mut self.stalled) {
            self.sessions.mark_resumable(id);
        }
    }

    fn resume(&mut self, actions: &mut Vec<Action>) -> bool {
        let resumable = self.sessions.take_resumable();
        let any = !resumable.is_empty();
        for id in resumable {
            self.resume_session(id, actions);
        }
        any
    }

    /// Hands over what sessions have to say, and closes those that are done.
    ///
    /// True if a session that waited for its output to go may go on in the next turn: a host that could not write all
    /// tells before that, one that could has nothing to tell.
    fn flush(&mut self, actions: &mut Vec<Action>) -> bool {
        let spare = &mut self.spare;
        let mut relieved = Vec::new();
        let (output_limits, now) = (self.context.settings.output_limits, self.now.instant);
        let Statistics { cut_count, evicted_count, unauthenticated_count, output_bytes, write_count, .. } =
            &mut self.context.statistics;
        let over_soft = &mut self.over_soft;
        self.sessions.take_dirty(|session| {
            session.check_output(&output_limits, now);
            if let Some(cut) = session.cut {
                *match cut {
                    Cut::Output => &mut *cut_count,
                    Cut::Memory => &mut *evicted_count,
                    Cut::Unauthenticated => &mut *unauthenticated_count,
                } += 1;
                let line = format!(
                    "client id={} addr={} {} and is cut off",
                    session.id.serial,
                    session.peer.address,
                    cut.name()
                );
                actions.push(Action::Log { level: Level::Warning, line });
                actions.push(Action::Abort { session: session.id });
                return;
            }
            if session.is_over_soft() {
                over_soft.push(session.id);
            }
            if !session.out.is_empty() {
                let bytes = session.out.replace(spare.pop().unwrap_or_default());
                *output_bytes += bytes.len() as u64;
                session.flushed_bytes += bytes.len() as u64;
                *write_count += 1;
                actions.push(Action::Reply { session: session.id, bytes });
                if session.hold == Hold::Output && session.backlog_bytes == 0 {
                    relieved.push(session.id);
                }
            }
            // A client that waits for changes may wait without end.
            if session.is_closing && (session.owed_count() == 0 || session.changes_wait.is_some()) {
                let session_id = session.id;
                actions.push(match session.follower.take_if(|follower| follower.wish.is_some()) {
                    Some(follower) => Action::Follow { session: session_id, follower },
                    None => Action::Close { session: session_id },
                });
            }
            let wants_pause = session.hold != Hold::None && session.input.len() > limits::INPUT_BYTES_MAX;
            if wants_pause && !session.is_paused {
                session.is_paused = true;
                actions.push(Action::Pause { session: session.id });
            } else if session.is_paused && session.hold == Hold::None {
                session.is_paused = false;
                actions.push(Action::Resume { session: session.id });
            }
        });
        self.outbox.flush(self.context.moments.latest(), actions);
        let any = !relieved.is_empty();
        for id in relieved {
            self.sessions.mark_resumable(id);
        }
        any
    }

    /// True while a client is owed something: a request unanswered, or an answer not handed to the host. A host that
    /// has read the end of a client's stream keeps the connection for so long.
    pub fn owes(&self, session: SessionId) -> bool {
        let is_owed = |session: &Session| match &session.waiting {
            // A client that has gone takes nothing any more.
            Some(waiting) if waiting.is_at_rest() => false,
            None if session.changes_wait.as_ref().is_some_and(|wait| wait.is_blocking) => false,
            _ => session.owed_count() > 0 || session.hold != Hold::None || !session.out.is_empty(),
        };
        self.sessions.get(session).is_some_and(is_owed)
    }

    /// True if a client may be silent for as long as it likes: it waits for what others publish or change.
    pub fn may_be_silent(&self, session: SessionId) -> bool {
        let waits = |session: &Session| session.is_subscribed() || session.changes_wait.is_some();
        self.sessions.get(session).is_some_and(waits) || self.context.monitors.contains(session)
    }

    /// Bytes of output that wait for a client, in this core and in the host; 0 if it is gone.
    pub fn output_bytes(&self, session: SessionId) -> usize {
        self.sessions.get(session).map_or(0, Session::output_bytes)
    }

    /// Hands a message to the sessions of this core that listen.
    pub(crate) fn deliver(&mut self, message: &Message) -> u64 {
        self.context.pubsub.deliver(message, &mut self.sessions, &self.context.settings.output_limits)
    }

    /// Sends what a client publishes to the other nodes.
    pub(crate) fn publish_to_peers(&mut self, question: &Question, actions: &mut Vec<Action>) {
        if let Question::Publish(message) = question {
            Self::outlet(&mut self.context, &mut self.sessions, &mut self.outbox, actions).publish_to_peers(message);
        }
    }

    /// Longest time that a core may sleep without being told anything.
    pub const fn idle_interval() -> Duration {
        limits::TICK_INTERVAL
    }
}

/// For the operator of a node that has been removed.
const EXPELLED: &str = "this node has been removed from its cluster: it serves no data any more, and what it holds goes \
stale. To take it back, start it with an empty directory and --join";

/// Groups lost their locks again and again, with their leaders or because the transaction seemed dead.
const NOTHING_DONE: &str = "TRYAGAIN The transaction lost its locks again and again, and did not take effect";

const SPARE_BYTES_MAX: usize = 64 << 10;
const SPARE_COUNT_MAX: usize = 256;

const PROTECTED_MODE: &str = "-DENIED Holdfast is running in protected mode because protected mode is enabled and no \
password is set for the default user. In this mode connections are only accepted from the loopback interface. If you \
want to connect from external computers to Holdfast you may adopt one of the following solutions: 1) Just disable \
protected mode sending the command 'CONFIG SET protected-mode no' from the loopback interface by connecting to Holdfast \
from the same host the server is running, however MAKE SURE Holdfast is not publicly accessible from internet if you do \
so. 2) Alternatively you can just disable the protected mode by editing the configuration file, and setting the \
protected mode option to 'no', and then restarting the server. 3) If you started the server manually just for testing, \
restart it with the '--protected-mode no' option. 4) Set up an authentication password for the default user. NOTE: You \
only need to do one of the above things in order for the server to start accepting connections from the outside.\r\n";
