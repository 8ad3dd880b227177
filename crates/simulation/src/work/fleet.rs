//! Nodes with cores that take time: the same cores as everywhere, in virtual time, with a price for each step.
//!
//! ```text
//!   arrive ──▶ inbox ──▶ turn of a core ──▶ its actions, when the turn is over
//!                        takes what is there; lasts as long as what was done costs
//! ```
//!
//! A core that is at work takes what has come meanwhile in its next turn: so queues form, and what waits together is
//! done together, as in a server. What leaves a turn leaves at its end. A core at rest has to be woken first.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

use group::Standing;
use group::balance::{self, Held, Spreading, View};
use group::group_seed::GroupSeed;
use group::host::Persist;
use group::ids::{CoreId, GroupId, Lane, NodeId, Now, SessionId};
use journal::Append;
use keyspace::{Keyspace, Layout, Moment};
use node::Core;
use node::core_messages::{CoreMessage, Envelope, Piece};
use node::entry::Builder;
use node::event::{Action, CoreOptions, Event, Peer, ProcessFacts};
use node::roster::{Member, Roster};
use node::settings::Settings;
use stdx::log::{Entry, EntryKind, HardState, Membership};
use stdx::{Instant, Level, Levels, Prng, UnixMillis};

use super::Shape;
use super::costs::{Costs, Counts, Surroundings};
use super::load::{Ask, Load};
use crate::{MILLISECOND, SECOND};

/// Something that has come for a core.
enum Inbound {
    Opened(SessionId),
    Client(SessionId, Ask),
    Peer {
        from: u16,
        link: u16,
        bytes: Vec<u8>,
    },
    /// By the thread that reads the links on which heartbeats come.
    Vital {
        from: u16,
        bytes: Vec<u8>,
    },
    Envelope(CoreId, Envelope),
    Persisted(GroupId, u64),
    Loaded(Box<GroupSeed>),
}

/// Everything that is going to happen.
enum What {
    Turn { core: usize },
    Arrive { core: usize, inbound: Inbound },
    LogThread { node: usize },
    Synced { node: usize },
    Hears { client: usize, bytes: Vec<u8> },
    Asks { client: usize },
}

struct Planned {
    when: u64,
    sequence: u64,
    what: What,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.when, self.sequence).cmp(&(other.when, other.sequence))
    }
}

/// A core and what waits for it.
struct Seat {
    core: Core,
    inbox: Vec<Inbound>,
    turn_at: Option<u64>,
    busy_until: u64,
    /// What it has done since that was last asked for, and for how long it was at work.
    counts: Counts,
    busy: u64,
    /// Replicas that live here, and vacant ones.
    replicas: (u64, u64),
    /// What replicas have logged and not applied: the last index of each append, its entries and its items.
    logged: BTreeMap<u32, VecDeque<Logged>>,
    sessions: u32,
}

#[derive(Clone, Copy)]
struct Logged {
    index: u64,
    entries: u64,
    items: u64,
}

/// What the cores of a node share.
#[derive(Default)]
struct Shared {
    /// The log's thread, or a core, writes until then.
    log_until: u64,
    log_busy: u64,
    thread_is_planned: bool,
    is_syncing: bool,
    waiting: Vec<(usize, Append, Persist)>,
    synced: Vec<(usize, GroupId, u64)>,
    /// The network card has sent all until then.
    sent_until: u64,
    sent_bytes: u64,
}

/// What has happened within a stretch of time.
#[derive(Clone, Debug, Default)]
pub struct Stretch {
    /// How long it was, in nanoseconds.
    pub length: u64,
    /// What all cores have done.
    pub counts: Counts,
    /// How long each core was at work.
    pub busy: Vec<u64>,
    /// How long each node's log was being written, or synced.
    pub log_busy: Vec<u64>,
    /// Bytes that each node has sent.
    pub sent_bytes: Vec<u64>,
    /// Operations that were answered, those with an error among them.
    pub answered: u64,
    /// Those with an error.
    pub errors: u64,
    /// An error, if there was one.
    pub error: Option<String>,
    /// How long each answer took, sorted.
    pub latencies: Vec<u64>,
}

/// See the module.
pub struct Fleet {
    shape: Shape,
    costs: Costs,
    surroundings: Surroundings,
    now: u64,
    sequence: u64,
    queue: BinaryHeap<Reverse<Planned>>,
    seats: Vec<Seat>,
    shared: Vec<Shared>,
    load: Load,
    leaders: Vec<u16>,
    begun: u64,
    answered_before: u64,
    digest: u64,
    prng: Prng,
}

const LEADERS_WAIT_MAX: u64 = 60 * SECOND;

/// Replicas that are not to lead come a little later, so that elections seldom go to them.
const FOLLOWERS_LATER: u64 = 300 * MILLISECOND;

impl Fleet {
    /// Nodes with groups that are placed and led as the balancer would have it if all were founded at once, and no
    /// clients.
    ///
    /// # Errors
    /// If the groups are not led after a minute.
    pub fn found(shape: Shape, costs: &Costs, surroundings: &Surroundings) -> Result<Self, String> {
        let mut prng = Prng::new(shape.seed ^ 0x776F_726B);
        let cores = usize::from(shape.cores);
        let settings = Arc::new(settings(&shape));
        let process = Arc::new(ProcessFacts::default());
        let layout = Layouts::of(&shape);
        let now = now_at(0);
        let mut seats = Vec::new();
        for node in 0..shape.nodes {
            for core in 0..shape.cores {
                let options = CoreOptions {
                    node: node_id(node),
                    core: CoreId(core),
                    core_count: shape.cores,
                    group_count: shape.groups,
                    hash_seed: 1,
                    founds_groups: false,
                    levels: Levels::KNOWN,
                    floor: Level::FIRST,
                    seed: prng.draw(),
                    settings: Arc::clone(&settings),
                    process: Arc::clone(&process),
                    is_own_host_unknown: false,
                    machine_addresses: Arc::from([]),
                    own: member(node),
                    seeds: Vec::new(),
                    stopwatch: || Instant::ZERO,
                };
                let mut core = Core::new(options);
                core.step(now, Event::Groups { count: shape.groups, is_recovering: false }, &mut Vec::new());
                seats.push(Seat {
                    core,
                    inbox: Vec::new(),
                    turn_at: None,
                    busy_until: 0,
                    counts: Counts::default(),
                    busy: 0,
                    replicas: (0, 0),
                    logged: BTreeMap::new(),
                    sessions: 0,
                });
            }
        }
        let load = Load::new(&shape, layout.leaders.clone(), prng.fork());
        let mut this = Self {
            costs: Costs::NONE,
            surroundings: surroundings.clone(),
            now: 0,
            sequence: 0,
            queue: BinaryHeap::new(),
            seats,
            shared: (0..shape.nodes).map(|_| Shared::default()).collect(),
            load,
            leaders: layout.leaders.clone(),
            begun: 0,
            answered_before: 0,
            digest: 0xCBF2_9CE4_8422_2325,
            prng,
            shape,
        };
        for group in 0..this.shape.groups {
            for node in 0..this.shape.nodes {
                let seed = layout.seed(&this.shape, &settings, group, node);
                let core = node * cores + group as usize % cores;
                let is_follower = usize::from(layout.leaders[group as usize]) != node;
                let seat = &mut this.seats[core];
                match layout.voters[group as usize].contains(&node_id(node).0) || group == 0 {
                    true => seat.replicas.0 += 1,
                    false => seat.replicas.1 += 1,
                }
                let when = if is_follower { FOLLOWERS_LATER } else { MILLISECOND };
                this.at(when, What::Arrive { core, inbound: Inbound::Loaded(Box::new(seed)) });
            }
        }
        for seat in &mut this.seats {
            for node in 0..this.shape.nodes {
                let event = Event::Reachable { node: node_id(node), levels: Levels::KNOWN };
                seat.core.step(now, event, &mut Vec::new());
            }
        }
        while !this.is_led() {
            if this.now > LEADERS_WAIT_MAX {
                return Err("a minute has passed, and the groups are not led by the nodes that should lead".to_owned());
            }
            this.live(100 * MILLISECOND);
        }
        this.costs = costs.clone();
        Ok(this)
    }

    /// Every group is led where it should be, and all cores know it.
    fn is_led(&self) -> bool {
        let cores = usize::from(self.shape.cores);
        let is_served = self.seats.iter().all(|seat| seat.core.is_loaded() && seat.core.is_served());
        is_served
            && (0..self.shape.groups as usize).all(|group| {
                let seat = &self.seats[usize::from(self.leaders[group]) * cores + group % cores];
                let mut found = seat.core.groups().filter(|found| found.id().0 as usize == group);
                let now = now_at(self.now).instant;
                found.any(|found| {
                    found.standing() == Standing::Serving && (self.shape.nodes == 1 || found.has_lease(now))
                })
            })
    }

    /// The clients that there are from now on, in place of those before: they connect, and ask.
    pub fn begin(&mut self, load: super::Asking) {
        let (nodes, cores) = (self.shape.nodes, usize::from(self.shape.cores));
        let clients = self.load.begin(load);
        for client in clients {
            // One after the other to all cores of all nodes.
            let seat = client % (nodes * cores);
            self.seats[seat].sessions += 1;
            let session = SessionId { serial: 1 + client as u64, index: self.seats[seat].sessions - 1 };
            self.load.seat(client, seat, session);
            self.at(self.now, What::Arrive { core: seat, inbound: Inbound::Opened(session) });
            let pause = self.prng.below(MILLISECOND);
            self.at(self.now + MILLISECOND + pause, What::Asks { client });
        }
    }

    /// No client asks anything more.
    pub fn end(&mut self) {
        self.load.end();
    }

    /// Lets time pass.
    pub fn live(&mut self, length: u64) {
        let end = self.now + length;
        while self.queue.peek().is_some_and(|Reverse(planned)| planned.when <= end) {
            let Reverse(Planned { when, what, .. }) = self.queue.pop().expect("just seen");
            self.now = when;
            match what {
                What::Turn { core } => self.turn(core),
                What::Arrive { core, inbound } => self.arrive(core, inbound),
                What::LogThread { node } => self.log_thread(node),
                What::Synced { node } => self.synced(node),
                What::Hears { client, bytes } => self.hears(client, &bytes),
                What::Asks { client } => self.asks(client),
            }
        }
        self.now = end;
    }

    /// From here on it is measured.
    pub fn measure(&mut self) {
        self.begun = self.now;
        for seat in &mut self.seats {
            seat.counts = Counts::default();
            // What is left of the turn that lasts is part of what is measured.
            seat.busy = seat.busy_until.saturating_sub(self.now);
        }
        for shared in &mut self.shared {
            (shared.log_busy, shared.sent_bytes) = (0, 0);
        }
        self.load.measure();
        self.answered_before = self.load.answered();
    }

    /// What has happened since then.
    pub fn measured(&mut self) -> Stretch {
        let mut counts = Counts::default();
        self.seats.iter().for_each(|seat| counts.add(&seat.counts));
        let ahead = |seat: &Seat| seat.busy - seat.busy_until.saturating_sub(self.now).min(seat.busy);
        let (errors, error, latencies) = self.load.measured();
        Stretch {
            length: self.now - self.begun,
            counts,
            busy: self.seats.iter().map(ahead).collect(),
            log_busy: self.shared.iter().map(|shared| shared.log_busy).collect(),
            sent_bytes: self.shared.iter().map(|shared| shared.sent_bytes).collect(),
            answered: self.load.answered() - self.answered_before,
            errors,
            error,
            latencies,
        }
    }

    /// The same for two runs of the same shape and load.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Events lived through.
    pub fn step_count(&self) -> u64 {
        self.sequence
    }

    fn at(&mut self, when: u64, what: What) {
        self.sequence += 1;
        self.queue.push(Reverse(Planned { when: when.max(self.now), sequence: self.sequence, what }));
    }

    fn mix(&mut self, number: u64) {
        self.digest = (self.digest ^ number).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
    }

    // ---- turns ----------------------------------------------------------------------------------------------------

    fn arrive(&mut self, core: usize, inbound: Inbound) {
        let seat = &mut self.seats[core];
        seat.inbox.push(inbound);
        let is_at_work = self.now < seat.busy_until;
        let when = if is_at_work { seat.busy_until } else { self.now + self.surroundings.wake_delay };
        self.plan_turn(core, when);
    }

    fn plan_turn(&mut self, core: usize, when: u64) {
        let seat = &mut self.seats[core];
        let when = when.max(seat.busy_until).max(self.now);
        if seat.turn_at.is_none_or(|planned| when < planned) {
            seat.turn_at = Some(when);
            self.at(when, What::Turn { core });
        }
    }

    fn turn(&mut self, core: usize) {
        let now = now_at(self.now);
        let seat = &mut self.seats[core];
        if seat.turn_at != Some(self.now) {
            return; // it was planned again
        }
        seat.turn_at = None;
        let mut counts = Counts { turns: 1, wakes: u64::from(seat.busy_until < self.now), ..Counts::default() };
        let mut actions = Vec::new();
        take_inbox(seat, now, &self.shape, &mut counts, &mut actions);
        let mut leaving = Vec::new();
        let mut written = 0;
        loop {
            seat.core.step(now, Event::Turn, &mut actions);
            counts.replicas += seat.replicas.0;
            counts.vacant_replicas += seat.replicas.1;
            counts.streams += seat.core.asked_group_count() as u64;
            let mut appends = Vec::new();
            for action in actions.drain(..) {
                match action {
                    Action::Append { append, persist } => appends.push((append, persist)),
                    other => leaving.push(other),
                }
            }
            if appends.is_empty() {
                break;
            }
            // A core that writes the log itself goes on in the same turn with what that allows.
            let shared = &mut self.shared[core / usize::from(self.shape.cores)];
            let node_writes = shared.log_until <= self.now && shared.waiting.is_empty() && !shared.is_syncing;
            let bytes: usize = appends.iter().map(|(append, _)| append.weight_bytes()).sum();
            let is_written = appends.iter().all(|(append, persist)| *persist == Persist::Written && !append.vacates());
            let by_core = node_writes && is_written && bytes <= self.surroundings.core_write_bytes_max;
            for (append, persist) in appends {
                note_append(&mut counts, seat, &append);
                if by_core {
                    let (group, ticket) = (GroupId(append.group), append.ticket);
                    seat.core.step(now, Event::Persisted { group, ticket }, &mut actions);
                } else {
                    shared.waiting.push((core, append, persist));
                }
            }
            if !by_core {
                break;
            }
            written += bytes as u64;
            counts.log_writes += 1;
        }
        note_applied(&mut counts, seat, self.shape.nodes > 1);
        note_leaving(&mut counts, &leaving, u32::from(self.shape.cores));
        let node = core / usize::from(self.shape.cores);
        let cost = self.costs.of(&counts);
        if written > 0 {
            let held = self.costs.log_writes * counts.log_writes + self.costs.log_bytes * written / 1_024;
            let shared = &mut self.shared[node];
            shared.log_until = self.now + held;
            shared.log_busy += held;
        }
        // A core that leaves something for a core or a thread that sleeps wakes it.
        let shared = &self.shared[node];
        let mut wakes = u64::from(!shared.waiting.is_empty() && !shared.thread_is_planned && !shared.is_syncing);
        for action in &leaving {
            if let Action::Post { to, .. } = action {
                let other = &self.seats[node * usize::from(self.shape.cores) + usize::from(to.0)];
                let sleeps = other.busy_until <= self.now && other.turn_at.is_none_or(|at| at > self.now + cost);
                wakes += u64::from(sleeps);
            }
        }
        counts.wakes_of_others += wakes;
        let cost = cost + wakes * self.costs.wakes_of_others;
        let seat = &mut self.seats[core];
        seat.busy_until = self.now + cost;
        seat.busy += cost;
        seat.counts.add(&counts);
        let end = seat.busy_until;
        self.mix(cost ^ (core as u64) << 40);
        for action in leaving {
            self.carry_out(core, end, action);
        }
        self.wake_log_thread(node, end);
        if !self.seats[core].inbox.is_empty() {
            self.plan_turn(core, end);
        }
    }

    /// What a turn leaves takes effect when it is over.
    fn carry_out(&mut self, core: usize, end: u64, action: Action) {
        let cores = usize::from(self.shape.cores);
        let node = core / cores;
        match action {
            Action::Reply { session, bytes } => {
                let client = session.serial as usize - 1;
                let sent = self.send_out(node, end, bytes.len());
                self.at(sent + self.surroundings.client_delay, What::Hears { client, bytes });
            }
            Action::Send { to, group, lane, bytes } => {
                let (from, to) = (node as u16, to.0 as usize - 1);
                let link = (group.0 % cores as u32) as u16;
                let sent = self.send_out(node, end, bytes.len() + LINK_HEAD_BYTES);
                let inbound = match lane {
                    Lane::Vital => Inbound::Vital { from, bytes },
                    _ => Inbound::Peer { from, link, bytes },
                };
                let core = to * cores + usize::from(link);
                self.at(sent + self.surroundings.node_delay, What::Arrive { core, inbound });
            }
            Action::Post { to, envelope } => {
                let inbound = Inbound::Envelope(CoreId((core % cores) as u16), envelope);
                self.at(end, What::Arrive { core: node * cores + usize::from(to.0), inbound });
            }
            Action::WakeAt { instant } => self.plan_turn(core, end.max(when_at(instant))),
            Action::Close { .. } | Action::Abort { .. } => self.load.fail("a connection was closed"),
            Action::Fatal { line } => self.load.fail(&line),
            _ => {}
        }
    }

    /// When so many bytes have left the network card of a node.
    fn send_out(&mut self, node: usize, when: u64, bytes: usize) -> u64 {
        let shared = &mut self.shared[node];
        let bytes = (bytes + PACKET_HEAD_BYTES) as u64;
        shared.sent_bytes += bytes;
        shared.sent_until = shared.sent_until.max(when) + bytes * SECOND / self.surroundings.bytes_per_second;
        shared.sent_until
    }

    // ---- the log --------------------------------------------------------------------------------------------------

    fn wake_log_thread(&mut self, node: usize, when: u64) {
        let shared = &mut self.shared[node];
        if !shared.waiting.is_empty() && !shared.thread_is_planned && !shared.is_syncing {
            shared.thread_is_planned = true;
            let when = shared.log_until.max(when + self.surroundings.wake_delay);
            self.at(when, What::LogThread { node });
        }
    }

    /// The thread writes all that has been left for it, with one call, and syncs if somebody waits for that.
    fn log_thread(&mut self, node: usize) {
        let shared = &mut self.shared[node];
        shared.thread_is_planned = false;
        let waiting = std::mem::take(&mut shared.waiting);
        let bytes: usize = waiting.iter().map(|(_, append, _)| append.weight_bytes()).sum();
        let length = self.costs.log_writes + self.costs.log_bytes * bytes as u64 / 1_024;
        let is_synced = waiting.iter().any(|(_, _, persist)| *persist == Persist::Synced);
        let length = length + if is_synced { self.surroundings.sync } else { 0 };
        shared.log_until = self.now + length;
        shared.log_busy += length;
        shared.is_syncing = true;
        shared.synced =
            waiting.into_iter().map(|(core, append, _)| (core, GroupId(append.group), append.ticket)).collect();
        self.at(self.now + length, What::Synced { node });
    }

    fn synced(&mut self, node: usize) {
        let shared = &mut self.shared[node];
        shared.is_syncing = false;
        for (core, group, ticket) in std::mem::take(&mut shared.synced) {
            self.arrive(core, Inbound::Persisted(group, ticket));
        }
        self.wake_log_thread(node, self.now);
    }

    // ---- clients --------------------------------------------------------------------------------------------------

    fn asks(&mut self, client: usize) {
        if let Some(next) = self.load.next_at(client, self.now) {
            self.at(next, What::Asks { client });
        }
        let Some((seat, session, ask)) = self.load.ask(client, self.now) else { return };
        let inbound = Inbound::Client(session, ask);
        self.at(self.now + self.surroundings.client_delay, What::Arrive { core: seat, inbound });
    }

    fn hears(&mut self, client: usize, bytes: &[u8]) {
        self.mix(bytes.len() as u64 ^ (client as u64) << 32);
        if self.load.hear(client, bytes, self.now) {
            self.asks(client);
        }
    }
}

/// Hands a core what has come for it.
fn take_inbox(seat: &mut Seat, now: Now, shape: &Shape, counts: &mut Counts, actions: &mut Vec<Action>) {
    let mut links = BTreeSet::new();
    for inbound in std::mem::take(&mut seat.inbox) {
        match inbound {
            Inbound::Opened(session) => seat.core.step(now, Event::Opened { session, peer: peer() }, actions),
            Inbound::Client(session, ask) => {
                counts.client_reads += 1;
                counts.client_bytes += ask.bytes.len() as u64;
                counts.requests += ask.requests;
                counts.taken += ask.taken_here;
                counts.relayed += if shape.nodes > 1 || ask.transactions > 0 { ask.steps } else { 0 };
                counts.transactions += ask.transactions;
                seat.core.step(now, Event::Bytes { session, bytes: &ask.bytes }, actions);
            }
            Inbound::Peer { from, link, bytes } => {
                counts.link_reads += u64::from(links.insert((from, link)));
                counts.messages_in += 1;
                counts.link_bytes += bytes.len() as u64;
                counts.taken += u64::from(bytes[0] == REQUEST);
                seat.core.step(now, Event::Peer { from: NodeId(u64::from(from) + 1), bytes: &bytes }, actions);
            }
            Inbound::Vital { from, bytes } => {
                counts.messages_in += 1;
                counts.core_messages += 1;
                seat.core.step(now, Event::Peer { from: NodeId(u64::from(from) + 1), bytes: &bytes }, actions);
            }
            Inbound::Envelope(from, envelope) => {
                counts.envelopes += 1;
                counts.core_messages += envelope.pieces.len() as u64;
                let is_request = |piece: &&Piece| match piece {
                    Piece::Request(_) => true,
                    Piece::CoreMessage(message) => matches!(**message, CoreMessage::Request(_)),
                    Piece::Reply { .. } | Piece::LongReply { .. } => false,
                };
                counts.taken += envelope.pieces.iter().filter(is_request).count() as u64;
                seat.core.step(now, Event::Envelope { from, envelope }, actions);
            }
            Inbound::Persisted(group, ticket) => {
                counts.core_messages += 1;
                seat.core.step(now, Event::Persisted { group, ticket }, actions);
            }
            Inbound::Loaded(seed) => seat.core.step(now, Event::Loaded(seed), actions),
        }
    }
}

/// What it costs to hand a piece of log to the disk; what is in it is applied later.
fn note_append(counts: &mut Counts, seat: &mut Seat, append: &Append) {
    counts.appends += 1;
    counts.log_bytes += append.weight_bytes() as u64;
    let Some(last) = append.entries.last() else { return };
    let mut items = 0;
    let mut spans = Vec::new();
    for entry in append.entries.iter().filter(|entry| entry.kind == EntryKind::Normal) {
        let Some((_, mut reader)) = node::entry::open(&entry.data) else { continue };
        while reader.item(&mut spans).is_some() {
            items += 1;
        }
    }
    let logged = Logged { index: last.index, entries: append.entries.len() as u64, items };
    seat.logged.entry(append.group).or_default().push_back(logged);
}

/// What replicas have applied of that by the end of a turn.
fn note_applied(counts: &mut Counts, seat: &mut Seat, is_clustered: bool) {
    if seat.logged.is_empty() {
        return;
    }
    for group in seat.core.groups() {
        let Some(logged) = seat.logged.get_mut(&group.id().0) else { continue };
        let is_leader = group.is_leader();
        while let Some(Logged { entries, items, .. }) = logged.front().filter(|first| first.index <= group.applied()) {
            counts.entries += entries;
            counts.items += items;
            counts.remembered += if is_clustered { *items } else { 0 };
            counts.proposals += if is_leader { *entries } else { 0 };
            logged.pop_front();
        }
    }
    seat.logged.retain(|_, logged| !logged.is_empty());
}

/// What it costs to carry out what a turn leaves.
fn note_leaving(counts: &mut Counts, leaving: &[Action], cores: u32) {
    let mut links = BTreeSet::new();
    let mut clients = BTreeSet::new();
    for action in leaving {
        match action {
            Action::Reply { session, bytes } => {
                counts.client_writes += u64::from(clients.insert(session.serial));
                counts.client_bytes += bytes.len() as u64;
            }
            Action::Send { to, group, lane, bytes } => {
                counts.messages_out += 1;
                counts.link_bytes += bytes.len() as u64;
                let place = if *lane == Lane::Log { group.0 % cores } else { cores };
                counts.link_writes += u64::from(links.insert((to.0, place)));
            }
            Action::Post { envelope, .. } => {
                counts.envelopes += 1;
                counts.core_messages += envelope.pieces.len() as u64;
            }
            _ => {}
        }
    }
}

/// Where groups live and are led, as the balancer would have it if all nodes were there from the beginning and all
/// groups were founded at once. In a cluster that has grown, some live elsewhere.
struct Layouts {
    voters: Vec<BTreeSet<u64>>,
    /// By group, a node.
    leaders: Vec<u16>,
    roster: Roster,
}

impl Layouts {
    fn of(shape: &Shape) -> Self {
        let mut roster = Roster::default();
        (0..shape.nodes).for_each(|node| _ = roster.enlist(node_id(node), member(node)));
        let nodes: BTreeSet<u64> = (0..shape.nodes).map(|node| node_id(node).0).collect();
        let first: BTreeSet<u64> = nodes.iter().copied().take(shape.replicas).collect();
        let held = Held { leader: 1, voters: first.clone(), ..Held::default() };
        let view = View {
            roster: &roster,
            replicas: shape.replicas,
            group_count: 1,
            // As many groups as the first node has cores: the others are founded.
            first_count: u32::from(shape.cores),
            founds_groups: true,
            cores: nodes.iter().map(|node| (*node, shape.cores)).collect(),
            groups: BTreeMap::from([(0, held)]),
            heard: nodes.clone(),
            silent: BTreeSet::new(),
            lost: BTreeSet::new(),
        };
        let founded = balance::foundings(&view, shape.groups);
        let voters: Vec<_> = [first].into_iter().chain(founded.into_iter().map(|founding| founding.voters)).collect();
        if shape.nodes > shape.replicas {
            for (group, nodes) in (0..).map(GroupId).zip(&voters).skip(1) {
                roster.place(group, nodes.clone());
            }
        }
        let spreading = Spreading { roster: &roster, replicas: shape.replicas, group_count: shape.groups, zones: &[] };
        let leader = |(group, voters): (u32, &BTreeSet<u64>)| {
            let leader = spreading.leader_of(GroupId(group), voters, |_| true).expect("a group with voters");
            (leader - 1) as u16
        };
        let leaders = (0..).zip(&voters).map(leader).collect();
        Self { voters, leaders, roster }
    }

    /// What a node finds of a group when it starts.
    fn seed(&self, shape: &Shape, settings: &Settings, group: u32, node: usize) -> GroupSeed {
        let keyspace = Keyspace::new(keyspace::Options {
            databases: settings.databases,
            hash_seed: 1,
            layout: Layout::Slots,
            tuning: keyspace::Tuning::default(),
        });
        let mut seed = GroupSeed::new(GroupId(group), node_id(node), keyspace);
        if shape.nodes == 1 {
            return seed;
        }
        let voters = &self.voters[group as usize];
        let learners = (0..shape.nodes).map(|node| node_id(node).0).filter(|node| group == 0 && !voters.contains(node));
        let learners: Vec<u64> = learners.collect();
        if !voters.contains(&node_id(node).0) && learners.is_empty() {
            seed.membership = Membership::default();
            return seed;
        }
        seed.membership = Membership { voters: voters.iter().copied().collect(), learners, ..Membership::default() };
        let normal = |index, data| Entry { term: 1, index, kind: EntryKind::Normal, data };
        seed.entries = vec![normal(1, Default::default())];
        if group == 0 {
            let mut builder = Builder::default();
            self.roster.all().for_each(|(node, member)| builder.enlist(node, member));
            self.roster.placements().for_each(|(group, nodes)| builder.place(group, nodes));
            // An election that went to somebody else is put right.
            let leaders = (0..).map(GroupId).zip(&self.leaders);
            leaders.for_each(|(group, node)| builder.prefer(group, Some(node_id(usize::from(*node)))));
            seed.entries.push(normal(2, builder.finish(Moment { unix: now_at(0).unix, seed: 1 })));
        }
        seed.hard_state = HardState { term: 1, vote: 0, commit: seed.entries.len() as u64 };
        seed
    }
}

fn settings(shape: &Shape) -> Settings {
    let mut settings = Settings::default();
    let replicas = shape.replicas.to_string();
    let policy = if shape.is_durable { "always" } else { "everysec" };
    for (name, value) in
        [("appendfsync", policy), ("protected-mode", "no"), ("databases", "1"), ("replicas", &replicas)]
    {
        settings.set(name, value).expect("a parameter of ours");
    }
    settings
}

fn node_id(node: usize) -> NodeId {
    NodeId(node as u64 + 1)
}

fn member(node: usize) -> Member {
    let address = format!("node:{}", node + 1);
    Member { cluster_address: address.clone(), client_address: address, ..Member::default() }
}

fn peer() -> Peer {
    Peer {
        address: "127.0.0.1:7".into(),
        local_address: "127.0.0.1:6379".into(),
        is_local: true,
        descriptor: 9,
        is_host: false,
    }
}

/// What all clocks show.
fn now_at(at: u64) -> Now {
    Now { instant: Instant::from_nanos(SECOND + at), unix: UnixMillis(CALENDAR_START_MS + (at / MILLISECOND) as i64) }
}

fn when_at(instant: Instant) -> u64 {
    instant.as_nanos().saturating_sub(SECOND)
}

const CALENDAR_START_MS: i64 = 1_800_000_000_000;

/// The first byte of a request to another node.
const REQUEST: u8 = 2;

/// A message's part of a frame, and of a record of TLS.
const LINK_HEAD_BYTES: usize = 16;

/// What a packet has beside what it carries. Small messages do not share one more often than in a server.
const PACKET_HEAD_BYTES: usize = 66;
