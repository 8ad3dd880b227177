//! The stepping unit: one thread's sessions and groups, without the thread.

mod acquaint;
mod blocking;
mod caches;
mod clients;
mod cost;
mod founding;
mod happenings;
mod keys;
mod levels;
mod messages;
mod monitor;
mod neighbours;
mod optimism;
mod parameters;
mod parts;
mod replication_wait;
mod request_ids;
mod routing;
mod splitting;
mod thorough;
mod undelivered;
mod users;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use group::defect::Defect;
use group::group_seed::GroupSeed;
use group::ids::{CoreId, GroupId, Level, Now, SessionId};
use group::limits::Slicing;
use group::replica_reads::AppliedPosition;
use group::requests::{Claim, Origin, Request, RequestBody, Route, Step};
use group::{Group, Standing};
use group::{router, timeline};
use keyspace::{Keyspace, Layout};
use message::GatewayId;
use resp::{Protocol, Span};
use state::Tape;
use stdx::{Duration, Instant, Prng};

use crate::acl::Users;
use crate::acquaintances::Acquaintances;
use crate::caches::Parked;
use crate::core_messages::CoreMessage;
use crate::event::{Action, CoreOptions, Event};
use crate::founding::Founding;
use crate::guilt::Guilt;
use crate::hints::Hints;
use crate::limits;
use crate::neighbours::Hearing;
use crate::output::{Outbox, Output};
use crate::quorum::Answerable;
use crate::relay::{Purpose, Relay};
use crate::reports::{HostReport, JournalFigures};
use crate::scripts::route::Runner;
use crate::session::Sessions;
use crate::slots::SlotMap;
use crate::splitting::Splitting;
use crate::stagger::{self, Stage};
use crate::stats::counters::Statistics;
use crate::stats::timing::Timings;
use crate::thorough::Thorough;
use crate::transaction::{Coordinator, Post, Progress};
use crate::undelivered::Orphans;

pub use crate::context::{Access, Context, History, HostFacts, MemoryFacts, Scripting};
pub use parts::{ClientLoad, Meeting, Questions, Told, Waits};

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
    pub(crate) coordinator: Coordinator,
    /// Users of this node, before the cluster has said anything of them.
    own_users: Arc<Users>,
    /// Changes of users, to be made again when the cluster's parameters have this version.
    pub(crate) belated: Vec<(u64, u64)>,
    /// Questions of sessions to cores and nodes.
    pub(crate) questions: Questions,
    pub(crate) spans: Vec<Span>,
    /// The groups of this core have been loaded and have applied what they recovered.
    pub(crate) has_loaded: bool,
    /// Cores of which that is not known yet: until it is, clients of all cores are told so alike.
    unloaded: BTreeSet<CoreId>,
    /// The last command of a client looked at keys at once (a read, a script), so the next one probably will, too.
    pub(crate) is_reading: bool,
    /// A keyspace without keys, for commands that need none.
    pub(crate) scratch: Keyspace,
    /// Sessions that wait for data.
    pub(crate) waits: Waits,
    /// Requests of clients that a group has sent back because it does not hold their slot any more.
    pub(crate) redirected: Vec<Request>,
    /// Sessions that wait for a group's window.
    pub(crate) stalled: Vec<SessionId>,
    /// Requests to groups that other nodes may lead, and steps of transactions.
    pub(crate) relay: Relay,
    /// Keys that have changed since a reply that is on its way was made, by session and ticket.
    pub(crate) stale: BTreeMap<(SessionId, u64), BTreeSet<Arc<[u8]>>>,
    /// Answers to changes that caches of this node have yet to be told of.
    pub(crate) withheld: BTreeMap<Claim, Parked>,
    /// How far groups were when they last answered somebody of this core.
    pub(crate) heard_positions: Vec<AppliedPosition>,
    pub(crate) prng: Prng,
    pub(crate) now: Now,
    pub(crate) runner: Runner,
    spare: Vec<Vec<u8>>,
    /// What clients take of memory, and who is told of what.
    clients: ClientLoad,
    /// Other nodes, before the roster tells of them or where it is wrong.
    meeting: Meeting,
    /// What other nodes say of themselves; heard by the first core.
    pub(crate) hearing: Hearing,
    /// Whether it is this core's turn to write a checkpoint, and what the first core was told of that.
    turn: stagger::Turn,
    /// What the timeline and the first core were told last.
    pub(crate) told: Told,
}

impl Core {
    /// A core without groups: these come with [`Event::Loaded`].
    pub fn new(options: CoreOptions) -> Self {
        let CoreOptions { node, core, core_count, group_count, hash_seed, seed, stopwatch, .. } = options;
        assert!(core_count > 0 && core.0 < core_count && group_count > 0);
        let mut prng = Prng::new(seed);
        let settings = &options.settings;
        let is_followed = settings.keeps_site_backlog;
        let local_count = (group_count as usize).saturating_sub(usize::from(core.0)).div_ceil(usize::from(core_count));
        let databases = settings.databases;
        let timings = Timings::new(stopwatch, settings);
        let gateway = GatewayId { node: node.0, boot: prng.draw(), core };
        let mut relay = Relay::new(gateway.boot, group_count);
        for group in (0..group_count).map(GroupId) {
            // Until other nodes are heard of.
            relay.set_route(group, Route { leader: Some(node), term: 0, is_here: true }, Instant::ZERO);
        }
        let own_users = Arc::clone(&settings.users);
        let mut coordinator = Coordinator::new(gateway, databases, stopwatch);
        coordinator.noted = settings.notify.noted();
        coordinator.limits = settings.limits();
        coordinator.tuning = settings.tuning();
        coordinator.follows_site = settings.is_site_read_only;
        let seeds = options.seeds.clone();
        Self {
            context: Context::new(options, timings),
            sessions: Sessions::default(),
            groups: (0..local_count).map(|_| None).collect(),
            founding: Founding {
                hash_seed,
                looked_at: group_count,
                begun: BTreeMap::new(),
                gone: BTreeMap::new(),
                told_gone: BTreeSet::new(),
            },
            splitting: Splitting::new(group_count),
            recording: is_followed.then_some(state::Reader::Holdfast),
            own_users,
            belated: Vec::new(),
            outbox: Outbox::new(core_count),
            coordinator,
            questions: Questions {
                pending: BTreeMap::new(),
                next_id: 0,
                replication_waits: BTreeMap::new(),
                thorough: Thorough::default(),
                deferred: Vec::new(),
                answering: (core, 0),
                file_work: None,
            },
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
            waits: Waits {
                sessions: BTreeSet::new(),
                ends: BTreeSet::new(),
                deliveries: BTreeMap::new(),
                orphans: Orphans::new(),
                renewed: Instant::default(),
                must_stand_anew: false,
            },
            redirected: Vec::new(),
            stalled: Vec::new(),
            relay,
            stale: BTreeMap::new(),
            withheld: BTreeMap::new(),
            heard_positions: vec![AppliedPosition::default(); group_count as usize],
            prng,
            now: Now::default(),
            runner: Runner::default(),
            spare: Vec::new(),
            clients: ClientLoad {
                over_soft: Vec::new(),
                weighed: Instant::ZERO,
                bytes: 0,
                reported_bytes: 0,
                http_told: None,
            },
            // A node that is met later is met as well, and not instead.
            meeting: Meeting {
                announce_at: Instant::ZERO,
                leaderless_since: None,
                introduced: BTreeMap::new(),
                found: BTreeMap::new(),
                hints: Hints::default(),
                acquaintances: Acquaintances::new(seeds.into_iter().collect()),
            },
            hearing: Hearing::default(),
            turn: stagger::Turn::default(),
            told: Told {
                checkpoint: Stage::Idle,
                links: BTreeMap::new(),
                was_archive_faulty: false,
                backups: (0, 0),
                troubles: BTreeMap::new(),
            },
        }
    }

    /// Hands back a reply's buffer, to be used again.
    pub fn recycle(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() <= SPARE_BYTES_MAX && self.spare.len() < SPARE_COUNT_MAX {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// Which groups hold which slots, as far as this core knows.
    pub fn known_slots(&self) -> &SlotMap {
        &self.context.slots
    }

    /// The groups of this core that have been loaded.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().flatten()
    }

    /// Requests to groups without an answer, and transactions over groups that are not over.
    pub fn unfinished_count(&self) -> usize {
        self.relay.unanswered_count() + self.coordinator.len()
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
        self.coordinator.slicing = slicing;
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
                || databases.clone().any(|database| group.state().keyspace().key_count(database) > 0)
        };
        let is_alone = !self.context.is_clustered || self.context.is_cluster_of_one();
        self.is_loaded() && is_alone && self.context.scripting.libraries.is_empty() && !self.groups().any(holds)
    }

    /// True if all groups of this node have been read from the disk, and have applied what they recovered.
    #[inline]
    pub fn is_loaded(&self) -> bool {
        self.unloaded.is_empty()
    }

    /// The same, and this core knows who leads each group.
    pub fn is_served(&self) -> bool {
        self.is_loaded()
            && (!self.context.is_clustered || self.context.groups().all(|group| self.context.is_led(group)))
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
    pub fn replica_read_count(&self) -> u64 {
        self.context.statistics.replica_read_count
    }

    /// For the simulator's canaries.
    #[doc(hidden)]
    pub fn groups_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        self.groups.iter_mut().flatten()
    }

    /// Puts a mistake in. Only the simulator has a use for it.
    #[doc(hidden)]
    pub fn break_by(&mut self, defect: Defect) {
        self.coordinator.defect = Some(defect);
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
            Event::Envelope { from, envelope } => self.read_envelope(from, envelope, actions),
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
                self.with_group(group, actions, |group, output| {
                    if !group.taking_news(id, &news, now, output) {
                        group.checkpoint_news(id, news, now, output);
                    }
                });
            }
            Event::CheckpointRead { group, index, chunk, to, read } => {
                self.with_group(group, actions, |group, output| group.chunk_read(index, chunk, to, read, output));
            }
            Event::LogRead { group, first, read } => {
                self.with_group(group, actions, |group, output| group.log_read(first, read, output));
            }
            Event::Unreachable { node } => self.groups_mut().for_each(|group| group.report_unreachable(node)),
            Event::Expelled => self.be_expelled(actions),
            Event::FoundAt { host, machine_addresses } => {
                if let Some(line) = self.context.found_at(&host, &machine_addresses) {
                    self.meeting.announce_at = now.instant;
                    if self.context.core == CoreId(0) {
                        actions.push(Action::Log { level: Level::Notice, line });
                    }
                }
            }
            Event::Found { node, address } => self.find(node, address, actions),
            Event::Imposture { text } => self.note(timeline::Kind::Refusal, None, text, actions),
            Event::Reachable { node, levels } => {
                self.hear_levels(node, levels);
                self.relay.reachable(node, now.instant);
                self.tell_timeline(node, actions);
            }
            Event::Record(reader) => {
                self.recording = reader;
                self.founding.told_gone.clear();
                self.groups_mut().for_each(|group| group.record(reader));
            }
            Event::RecordAgain(group) => {
                let recording = self.recording;
                self.founding.told_gone.remove(&group);
                if let Some(group) = self.group_mut(group) {
                    group.record(recording);
                }
            }
            Event::Leave => self.context.is_stopping = true,
            Event::Room(room) => {
                self.context.host.room = room;
                self.groups_mut().for_each(Group::hear_of_room);
            }
            Event::Source(source) => self.hear_of_source(source, actions),
            Event::UsersFile(outcome) => {
                if let Some((_, place)) = &mut self.questions.file_work {
                    *place = Some(outcome);
                }
            }
            Event::Changes { session, ticket, answer } => self.answer_changes(session, ticket, answer),
            Event::Migrated { session, ticket, answer } => self.answer_migrate(session, ticket, answer),
            Event::FollowersHeard { request, answer } => self.followers_heard(*request, answer, actions),
            Event::Secured { id, outcome } => self.secured(id, outcome, actions),
            Event::Report(report) => {
                self.note_syncs(&report);
                self.context.host.report = *report;
                self.context.host.guilt = Guilt::of(&self.context.host.report.stalls, self.now.unix);
                self.clients.reported_bytes = self.clients.bytes;
                // What is about to be freed is no reason to evict anything.
                self.context.memory.reported_bytes = self.keyspace_bytes() + self.unused_bytes();
                let used_bytes = self.context.host.report.used_memory_bytes;
                if self.context.memory.startup_bytes == 0 {
                    self.context.memory.startup_bytes = used_bytes;
                }
                self.context.memory.peak_bytes = self.context.memory.peak_bytes.max(used_bytes);
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
        if self.context.core.0 != 0 || report.journal.sync_count == self.context.host.report.journal.sync_count {
            return;
        }
        let JournalFigures { sync_last_us, sync_max_us, .. } = report.journal;
        let is_longest = sync_max_us > self.context.host.report.journal.sync_max_us;
        let worst_us = if is_longest { sync_max_us } else { sync_last_us };
        self.context.timings.note_work("log-sync", Duration::from_micros(worst_us));
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
                group.upkeep().listen(self.context.noted());
                group.record(self.recording);
                group.allows_memory = self.context.settings.allows_memory;
                group.set_limits(self.context.settings.limits());
                if self.context.settings.import_mode {
                    group.set_import_mode(true);
                }
                group.begin_at(self.context.levels.floor, self.context.levels.in_force);
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

    /// The group, if it lives on this core and has been loaded.
    #[inline]
    pub(crate) fn group_mut(&mut self, group: GroupId) -> Option<&mut Group> {
        if router::core_of(group, self.context.core_count) != self.context.core {
            return None;
        }
        self.groups.get_mut(group.0 as usize / usize::from(self.context.core_count))?.as_mut()
    }

    // ---- sessions -------------------------------------------------------------------------------------------------

    // ---- envelopes and peers ----------------------------------------------------------------------------------------

    pub(crate) fn output<'a>(
        context: &'a mut Context,
        sessions: &'a mut Sessions,
        outbox: &'a mut Outbox,
        actions: &'a mut Vec<Action>,
    ) -> Output<'a> {
        Output { context, sessions, outbox, actions }
    }

    pub(crate) fn with_group(
        &mut self,
        group: GroupId,
        actions: &mut Vec<Action>,
        act: impl FnOnce(&mut Group, &mut Output<'_>),
    ) {
        if router::core_of(group, self.context.core_count) != self.context.core {
            return;
        }
        let mut output = Self::output(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
        let place = group.0 as usize / usize::from(output.context.core_count);
        if let Some(group) = self.groups.get_mut(place).and_then(Option::as_mut) {
            act(group, &mut output);
        }
    }

    // ---- the cluster ------------------------------------------------------------------------------------------------

    pub(crate) fn draw(&mut self) -> u64 {
        self.prng.draw()
    }

    /// Lets the coordinator of transactions do something, and sends what it asks of groups.
    pub(crate) fn drive(
        &mut self,
        actions: &mut Vec<Action>,
        act: impl FnOnce(&mut Coordinator, &mut Vec<Post>) -> Progress,
    ) {
        let mut posts = Vec::new();
        let progress = act(&mut self.coordinator, &mut posts);
        self.context.statistics.lookups.add(std::mem::take(&mut self.coordinator.lookups));
        for (session, keys) in std::mem::take(&mut self.coordinator.reads) {
            self.remember_keys(session, keys);
        }
        for (group, id, body) in posts {
            let (durability, writes_for_source) =
                (self.coordinator.durability(id), self.coordinator.writes_for_source(id));
            let step = match &body {
                RequestBody::Lock(_) => Step::Lock,
                RequestBody::Prepare { .. } | RequestBody::Cut { .. } => Step::Prepare,
                RequestBody::Renew { .. } => Step::Renew,
                _ => Step::Resolve,
            };
            let origin = self.origin_of(SessionId { serial: 0, index: 0 });
            let origin = Origin { durability, writes_for_source, ..origin };
            let request = Request::new(origin, group, Protocol::Resp2, body);
            self.relay.submit(request, Purpose::Transaction { id, step }, Answerable::UNDER_WAY, self.now.instant);
        }
        self.progress(progress, actions);
    }

    /// True if what clients of this node ask for may have to go to its own disk first: it leads a group, or does not
    /// know yet. Where others lead, what waits for the disk came from them, and they see to it that it has a bound.
    pub fn adds_to_its_log(&self) -> bool {
        let leads = |route: &Route| route.leader == Some(self.context.node);
        !self.context.is_clustered || self.context.routes.iter().any(leads)
    }

    // ---- requests to groups -----------------------------------------------------------------------------------------

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
        self.pass_time_for_thorough(actions);
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
                        self.outbox.push(own, core, CoreMessage::Loaded);
                    }
                    self.note_loaded(own, actions);
                }
            }
            self.end_reservations(actions);
            let had_mail = self.read_own_mail(actions);
            let sent = self.send_anew(actions);
            let admitted = self.retry_deferred_questions(actions);
            self.compose(actions);
            let settled = self.settle_waiting(actions) | self.settle_orphans(actions) | self.keep_back();
            self.open_windows();
            let resumed = self.resume(actions);
            if !resumed && !settled && !had_mail && !admitted && !sent && self.outbox.own.is_empty() {
                break;
            }
            more |= round + 1 == limits::ROUNDS_PER_TURN;
        }
        more |= self.turn_scripts(actions);
        more |= self.keep_back();
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
            if let Some(end) = roster.gone_at(group.id()).filter(|_| group.is_vacant()) {
                // Where there is no replica any more the end is all there is to tell.
                group.take_tape();
                if self.recording.is_some() && self.founding.told_gone.insert(group.id()) {
                    actions.push(Action::Tape(Box::new(Tape::ended(group.id().0, end))));
                }
                continue;
            }
            if let Some(tape) = group.take_tape().filter(|_| !is_awaited) {
                let tape = Tape { born: group.take_untold(), ..tape };
                actions.push(Action::Tape(Box::new(tape)));
            }
        }
        more |= self.flush(actions);
        let next = if more { self.now.instant } else { self.next_wake() };
        actions.push(Action::WakeAt { instant: next });
    }

    fn turn_groups(&mut self, actions: &mut Vec<Action>) -> bool {
        let mut output = Self::output(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
        let mut more = false;
        for group in self.groups.iter_mut().flatten() {
            more |= group.turn(self.now, &mut self.prng, &mut output);
        }
        more
    }

    /// Work that nobody waits for, in slices.
    fn background(&mut self, actions: &mut Vec<Action>) -> bool {
        let mut more = false;
        let (mut is_waiting, mut is_writing) = (false, false);
        let mut output = Self::output(&mut self.context, &mut self.sessions, &mut self.outbox, actions);
        // A node that is alone has nobody to wait for.
        let is_shared = !output.context.roster.is_empty();
        for group in self.groups.iter_mut().flatten() {
            let log_bytes_max = output.context.settings.checkpoint_log_bytes;
            let is_due = group.log_bytes() > log_bytes_max
                && group.log_bytes() > group.state().keyspace().memory_bytes() as u64
                && !group.is_checkpoint_due()
                && !group.checkpointing().is_resting(self.now);
            if is_due {
                let log_bytes_max = log_bytes_max.max(group.state().keyspace().memory_bytes() as u64);
                let first = output.context.neighbours.checkpoints_first(output.context.node);
                let is_late = stagger::is_late(group.log_bytes(), log_bytes_max);
                if !is_shared || self.turn.may_begin(first, self.now.instant) || is_late {
                    group.want_checkpoint();
                } else {
                    is_waiting = true;
                }
            }
            if group.is_checkpoint_due() {
                let started = output.context.timings.start_work();
                more |= group.checkpoint_turn(self.now, &mut output);
                output.context.timings.stop_work("checkpoint", started);
            }
            group.let_checkpoint_wait(is_due && !group.is_checkpoint_due());
            is_writing |= group.checkpointing().is_running();
            if !output.context.is_expiry_lazy && output.context.pause.is_none() {
                let moment = group.moment();
                let started = output.context.timings.start_work();
                more |= group.upkeep().collect(moment, limits::COLLECT_PER_TURN);
                output.context.timings.stop_work("expire-cycle", started);
                group.tell(&mut output, None);
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
        if stage != std::mem::replace(&mut self.told.checkpoint, stage) {
            if self.context.core == CoreId(0) {
                self.hearing.note_checkpoint(CoreId(0), stage);
            } else {
                self.outbox.push(self.context.core, CoreId(0), CoreMessage::Checkpoint(stage));
            }
        }
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

    fn next_wake(&self) -> Instant {
        let tick = self.now.instant + group::limits::TICK_INTERVAL;
        let ends = [
            self.context.pause.map(|(until, _)| until),
            self.next_wait_end(),
            self.next_claim(),
            self.next_holder_wake(),
            self.questions.thorough.wake_at(),
            self.next_orphan_wake(),
            self.relay.wake_at(self.now.instant),
            self.groups.iter().flatten().filter_map(Group::next_reservation_end).min(),
        ];
        ends.into_iter().flatten().fold(tick, Instant::min)
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

    /// Longest time that a core may sleep without being told anything.
    pub const fn idle_interval() -> Duration {
        group::limits::TICK_INTERVAL
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
