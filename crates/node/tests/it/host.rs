//! The smallest host: every core on one thread, a disk that syncs at once, envelopes delivered in order.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use group::Standing;
use group::group_seed::GroupSeed;
use group::host::ArchiveNews;
use group::host::{CheckpointNews, CheckpointStep, Persist};
use group::ids::{CoreId, GroupId, NodeId, Now, Room, SessionId};
use keyspace::{Keyspace, Layout, Tuning};
use node::event::HostReport;
use node::roster::{Member, Roster};
use node::settings::Settings;
use node::{Action, Core, CoreOptions, Event, Peer, ProcessFacts};
use state::{Beginnings, Position, State};
use stdx::log::Entry;
use stdx::slot::Slot;
use stdx::{Duration, Instant, UnixMillis};

/// A node of several cores.
pub struct Host {
    cores: Vec<Core>,
    now: Now,
    output: BTreeMap<SessionId, Vec<u8>>,
    homes: BTreeMap<SessionId, usize>,
    /// Appends wait until told otherwise.
    pub holds_disk: bool,
    held: Vec<(usize, GroupId, u64, Persist)>,
    /// The operating system takes what it is given, and the disk never finishes by itself.
    pub holds_flushes: bool,
    pub log: Vec<String>,
    /// What the archive was told.
    pub archived: Vec<ArchiveNews>,
    /// What was sent to other nodes.
    pub sent: Vec<(NodeId, GroupId, Vec<u8>)>,
    paused: BTreeSet<SessionId>,
    closed: BTreeSet<SessionId>,
    /// The nodes that the host was last told to link to.
    pub peers: Vec<NodeId>,
    /// Where they are found.
    pub addresses: Vec<String>,
    /// Where else it looks for them.
    pub also_at: Vec<(NodeId, Vec<String>)>,
    /// Chunks of checkpoints, by group and number.
    checkpoints: BTreeMap<(GroupId, u64), Checkpoint>,
    /// No checkpoint can be kept.
    pub is_full: bool,
    /// What is written of checkpoints waits for [`Host::write_checkpoints`].
    pub holds_checkpoints: bool,
    held_checkpoints: Vec<(usize, GroupId, u64, CheckpointStep)>,
    /// What comes of parameters of TLS; nothing yet, while files are being read.
    pub tls: Option<Result<(), String>>,
    /// Who waits for that.
    waits_for_tls: Vec<(usize, u64)>,
    /// What each group began with, and all that it has logged since.
    logs: BTreeMap<GroupId, GroupLog>,
    /// Where groups are to live, as far as the roster says so.
    placed: Vec<(GroupId, Vec<u64>)>,
}

/// What a group's checkpoint said beside its keys, and its log.
#[derive(Default)]
struct GroupLog {
    saved: Vec<u8>,
    entries: Vec<Entry>,
}

struct Checkpoint {
    index: u64,
    chunks: Vec<Vec<u8>>,
}

/// Every story ends with this: what a node has served is what its logs say.
impl Drop for Host {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.replay();
        }
    }
}

fn empty_keyspace() -> Keyspace {
    Keyspace::new(keyspace::Options {
        databases: Settings::default().databases,
        hash_seed: 7,
        layout: Layout::Slots,
        tuning: Tuning::default(),
    })
}

impl Host {
    /// A new node with as many groups as cores.
    pub fn new(core_count: u16, settings: Settings) -> Self {
        Self::of_nodes(core_count, settings, 1, &[1])
    }

    /// One node of several, which all vote in every group.
    pub fn of_nodes(core_count: u16, settings: Settings, node: u64, voters: &[u64]) -> Self {
        Self::of_nodes_placed(core_count, settings, node, voters, &[])
    }

    /// The same where these groups should live on these nodes, which may be others than those that vote.
    pub fn of_nodes_placed(
        core_count: u16,
        settings: Settings,
        node: u64,
        voters: &[u64],
        placed: &[(GroupId, &[u64])],
    ) -> Self {
        // A node by itself has a directory of its own making.
        let floor = if voters.len() == 1 { stdx::Levels::KNOWN.highest } else { stdx::Level::FIRST };
        let mut this = Self::before_it_reads(core_count, settings, node, &[], floor, None);
        this.placed = placed.iter().map(|(group, nodes)| (*group, nodes.to_vec())).collect();
        this.load(node, voters);
        this
    }

    /// A node of one core that does not know at which host of its machine others find it, before it has read its disk.
    pub fn of_unknown_host(node: u64, own: &Member, machine: &[IpAddr]) -> Self {
        Self::before_it_reads(1, Settings::default(), node, &[], stdx::Level::FIRST, Some((own, machine)))
    }

    /// Such a node has read that it is alone, or in a cluster that knows at which host it is found.
    pub fn load_roster(&mut self, node: u64, roster: Option<Roster>) {
        let mut seed = GroupSeed::new(GroupId(0), NodeId(node), empty_keyspace());
        seed.membership.voters = vec![node];
        if let Some(roster) = roster {
            seed.state = vec![0; 10];
            roster.put(&mut seed.state);
        }
        self.logs.insert(GroupId(0), GroupLog { saved: seed.state.clone(), entries: Vec::new() });
        self.step(0, Event::Loaded(Box::new(seed)));
        self.settle();
    }

    /// Another node has reached this one at that host of its machine.
    pub fn found_at(&mut self, host: &str, machine: &[IpAddr]) {
        for core in 0..self.cores.len() {
            self.step(core, Event::FoundAt { host: host.to_owned(), machine_addresses: machine.into() });
        }
        self.settle();
    }

    /// Another node is where the operator says.
    pub fn find(&mut self, node: u64, address: &str) {
        self.step(0, Event::Found { node: NodeId(node), address: address.to_owned() });
        self.settle();
    }

    /// A node that is found elsewhere than the cluster remembers.
    pub fn moved_to(address: &str, node: u64, voters: &[u64]) -> Self {
        let own =
            Member { cluster_address: address.to_owned(), client_address: address.to_owned(), ..Member::default() };
        let mut this = Self::before_it_reads(1, Settings::default(), node, &[], stdx::Level::FIRST, Some((&own, &[])));
        this.load(node, voters);
        this
    }

    /// A node before it has read its disk.
    pub fn unloaded(core_count: u16, settings: Settings, node: u64) -> Self {
        Self::unloaded_with_seeds(core_count, settings, node, &[])
    }

    /// The same for one that joins through these.
    pub fn unloaded_with_seeds(core_count: u16, settings: Settings, node: u64, seeds: &[u64]) -> Self {
        Self::before_it_reads(core_count, settings, node, seeds, stdx::Level::FIRST, None)
    }

    fn before_it_reads(
        core_count: u16,
        settings: Settings,
        node: u64,
        seeds: &[u64],
        floor: stdx::Level,
        guess: Option<(&Member, &[IpAddr])>,
    ) -> Self {
        let settings = Arc::new(settings);
        let group_count = u32::from(core_count);
        let mut this = Self {
            cores: Vec::new(),
            now: Now { instant: Instant::from_nanos(1), unix: UnixMillis(1_700_000_000_000) },
            output: BTreeMap::new(),
            homes: BTreeMap::new(),
            holds_disk: false,
            held: Vec::new(),
            holds_flushes: false,
            log: Vec::new(),
            archived: Vec::new(),
            sent: Vec::new(),
            paused: BTreeSet::new(),
            closed: BTreeSet::new(),
            peers: Vec::new(),
            addresses: Vec::new(),
            also_at: Vec::new(),
            checkpoints: BTreeMap::new(),
            is_full: false,
            holds_checkpoints: false,
            held_checkpoints: Vec::new(),
            tls: Some(Ok(())),
            waits_for_tls: Vec::new(),
            logs: BTreeMap::new(),
            placed: Vec::new(),
        };
        for core in 0..core_count {
            this.cores.push(Core::new(CoreOptions {
                levels: stdx::Levels::KNOWN,
                floor,
                node: NodeId(node),
                core: CoreId(core),
                core_count,
                group_count,
                hash_seed: 7,
                founds_groups: false,
                seed: u64::from(core),
                settings: Arc::clone(&settings),
                process: Arc::new(ProcessFacts::default()),
                is_own_host_unknown: guess.is_some_and(|(_, machine)| !machine.is_empty()),
                own: guess.map(|(own, _)| own.clone()).unwrap_or_default(),
                machine_addresses: guess.map_or(&[][..], |(_, machine)| machine).into(),
                seeds: seeds.iter().map(|node| (NodeId(*node), Member::default())).collect(),
                stopwatch: || Instant::ZERO,
            }));
        }
        this
    }

    /// The disk has been read: it is empty.
    pub fn load(&mut self, node: u64, voters: &[u64]) {
        for core in 0..self.cores.len() {
            self.load_core(core, node, voters);
        }
        self.settle();
    }

    /// The same for the group of one core.
    pub fn load_core(&mut self, core: usize, node: u64, voters: &[u64]) {
        let mut seed = GroupSeed::new(GroupId(core as u32), NodeId(node), empty_keyspace());
        seed.membership.voters = voters.to_vec();
        if core == 0 && (voters.len() > 1 || !self.placed.is_empty()) {
            let mut roster = Roster::default();
            let placed = self.placed.iter().flat_map(|(_, nodes)| nodes);
            let known: BTreeSet<u64> = voters.iter().chain(placed).copied().collect();
            known.iter().for_each(|node| assert!(roster.enlist(NodeId(*node), Member::default())));
            for (group, nodes) in &self.placed {
                assert!(roster.place(*group, nodes.iter().copied().collect()));
            }
            // A checkpoint's: a moment, nothing prepared, no outcomes, the roster.
            seed.state = vec![0; 10];
            roster.put(&mut seed.state);
        }
        let log = GroupLog { saved: seed.state.clone(), entries: Vec::new() };
        self.logs.insert(GroupId(core as u32), log);
        self.step(core, Event::Loaded(Box::new(seed)));
    }

    /// The log of one core's group has been read: it holds these entries.
    pub fn load_log(&mut self, core: usize, node: u64, entries: Vec<Entry>) {
        let mut seed = GroupSeed::new(GroupId(core as u32), NodeId(node), empty_keyspace());
        seed.hard_state.term = entries.last().map_or(0, |last| last.term);
        self.logs.insert(GroupId(core as u32), GroupLog { saved: Vec::new(), entries: entries.clone() });
        seed.entries = entries;
        self.step(core, Event::Loaded(Box::new(seed)));
    }

    /// Transactions over groups with an end that a group here keeps.
    pub fn outcome_count(&self, group: GroupId) -> usize {
        let mut groups = self.cores.iter().flat_map(Core::groups);
        groups.find(|found| found.id() == group).expect("it is there").outcome_count()
    }

    /// Gives each group's log to a bare state, half of it by way of a checkpoint, and compares what comes of it with
    /// what the serving group holds.
    fn replay(&self) {
        let group_count = self.cores.len() as u32;
        let mut groups: Vec<_> = self.cores.iter().flat_map(Core::groups).collect();
        groups.sort_by_key(|group| group.id());
        let mut beginnings = Beginnings::default();
        for group in groups {
            let Some(log) = self.logs.get(&group.id()) else { continue };
            let applied = group.applied();
            let entries = log.entries.iter().take_while(|entry| entry.index <= applied);
            let entries: Vec<_> = entries.collect();
            if entries.last().is_none_or(|last| last.index != applied) || entries[0].index != 1 {
                continue; // it has been given a checkpoint
            }
            let mut state = State::new(group.id(), group_count, empty_keyspace());
            state.load(&log.saved, Position::default());
            let mut entries = entries;
            if let Some(born) = message::entry::Born::of_entry(&entries[0].data) {
                state = beginnings.take(group.id(), born).expect("it has split off from an earlier group").state;
                entries.remove(0);
            }
            let (first, second) = entries.split_at(entries.len() / 2);
            first.iter().for_each(|entry| state.apply(entry, &mut beginnings));
            let mut records = Vec::new();
            state.upkeep().begin_checkpoint();
            while !state.upkeep().checkpoint_step(1000, &mut records) {}
            let mut keyspace = empty_keyspace();
            keyspace.restore(&records).expect("just written");
            let mut copy = State::new(group.id(), group_count, keyspace);
            copy.load(&state.save(), state.applied());
            assert_eq!(copy.digest(), state.digest(), "group {} by way of a checkpoint", group.id().0);
            for state in [&mut state, &mut copy] {
                second.iter().for_each(|entry| state.apply(entry, &mut beginnings));
                assert_eq!(state.applied().index, applied);
                assert_eq!(state.digest(), group.digest(), "group {} and a replay of its log", group.id().0);
            }
        }
    }

    /// A client hangs up.
    pub fn close(&mut self, session: SessionId) {
        self.close_unsent(session, 0);
    }

    /// The same, when so many bytes of its output were never handed to the system.
    pub fn close_unsent(&mut self, session: SessionId, unsent_bytes: u64) {
        self.step(self.homes[&session], Event::Closed { session, unsent_bytes });
        self.settle();
    }

    /// A client on the given core.
    pub fn connect(&mut self, core: usize) -> SessionId {
        self.connect_as(core, Peer { is_local: true, ..Peer::default() })
    }

    /// The same, with this peer.
    pub fn connect_as(&mut self, core: usize, peer: Peer) -> SessionId {
        let serial = self.homes.len() as u64 + 1;
        let session = SessionId { serial, index: serial as u32 };
        self.homes.insert(session, core);
        self.step(core, Event::Opened { session, peer });
        session
    }

    /// Cores of the node.
    pub fn core_count(&self) -> usize {
        self.cores.len()
    }

    /// Who belongs to the cluster, as this node has it in its state.
    pub fn roster(&self) -> &Roster {
        self.cores[0].groups().next().expect("the first group").roster()
    }

    /// True if this node leads a group, and may answer for it.
    pub fn is_serving(&self, group: GroupId) -> bool {
        self.cores
            .iter()
            .flat_map(Core::groups)
            .any(|found| found.id() == group && found.standing() == Standing::Serving)
    }

    /// True if this node has given up what it had of a group.
    pub fn holds_nothing_of(&self, group: GroupId) -> bool {
        self.cores.iter().flat_map(Core::groups).any(|found| found.id() == group && found.is_vacant())
    }

    /// True if a group has logged anything here, durable or not.
    pub fn has_logged(&self, group: GroupId) -> bool {
        self.logs.get(&group).is_some_and(|log| !log.entries.is_empty())
    }

    /// What a group has logged here, durable or not.
    pub fn logged(&self, group: GroupId) -> &[Entry] {
        self.logs.get(&group).map_or(&[], |log| &log.entries)
    }

    /// The digest of a group's data and state here.
    pub fn digest(&self, group: GroupId) -> u64 {
        let mut groups = self.cores.iter().flat_map(Core::groups);
        groups.find(|found| found.id() == group).expect("it is there").digest()
    }

    /// Another node speaks.
    pub fn hear(&mut self, from: NodeId, group: GroupId, bytes: &[u8]) {
        let core = group.0 as usize % self.cores.len();
        self.step(core, Event::Peer { from, bytes });
    }

    /// Another node says that it knows the levels that this version knows.
    pub fn hear_levels_of(&mut self, node: u64) {
        self.hear_levels(node, stdx::Levels::KNOWN);
    }

    /// The group in which each core believes a slot.
    pub fn known_groups_of(&self, slot: Slot) -> Vec<GroupId> {
        self.cores.iter().map(|core| core.known_slots().group_of_slot(slot)).collect()
    }

    /// Another node says that it knows these levels.
    pub fn hear_levels(&mut self, node: u64, levels: stdx::Levels) {
        for core in 0..self.cores.len() {
            self.step(core, Event::Reachable { node: NodeId(node), levels });
        }
    }

    /// The process is about to stop.
    pub fn leave(&mut self) {
        for core in 0..self.cores.len() {
            self.step(core, Event::Leave);
        }
    }

    /// Says whether the disk has room.
    pub fn tell_room(&mut self, room: &Room) {
        for core in 0..self.cores.len() {
            self.step(core, Event::Room(room.clone()));
        }
    }

    /// The client's socket takes nothing more: so many bytes wait for it.
    pub fn backlog(&mut self, session: SessionId, bytes: usize) {
        self.step(self.homes[&session], Event::Backlog { session, bytes });
    }

    /// Bytes that wait for a client in its core and have not been handed to the host.
    pub fn output_bytes(&self, session: SessionId) -> usize {
        self.cores[self.homes[&session]].output_bytes(session)
    }

    fn step(&mut self, core: usize, event: Event<'_>) {
        let mut actions = Vec::new();
        self.cores[core].step(self.now, event, &mut actions);
        for action in actions {
            self.carry_out(core, action);
        }
    }

    fn carry_out(&mut self, core: usize, action: Action) {
        match action {
            Action::Reply { session, bytes } => self.output.entry(session).or_default().extend(bytes),
            Action::Append { append, persist } => {
                let group = GroupId(append.group);
                self.held.push((core, group, append.ticket, persist));
                let log = &mut self.logs.entry(group).or_default().entries;
                for entry in append.entries {
                    while log.last().is_some_and(|earlier| earlier.index >= entry.index) {
                        log.pop();
                    }
                    log.push(entry);
                }
            }
            Action::Floor(_) => {}
            Action::Post { to, envelope } => {
                self.step(usize::from(to.0), Event::Envelope { from: CoreId(core as u16), envelope });
            }
            Action::Pause { session } => {
                self.paused.insert(session);
            }
            Action::Resume { session } => {
                self.paused.remove(&session);
            }
            Action::Checkpoint { group, id, step } => self.checkpoint(core, group, id, step),
            Action::ReadCheckpoint { group, mark, chunk, to } => {
                let of_group = self.checkpoints.iter().filter(|((found, _), _)| *found == group);
                let found = of_group.map(|(_, checkpoint)| checkpoint).find(|found| found.index == mark.index);
                let read = Ok(found.expect("it was finished").chunks.get(chunk as usize).cloned());
                self.step(core, Event::CheckpointRead { group, index: mark.index, chunk, to, read });
            }
            Action::Send { to, group, bytes, .. } => self.sent.push((to, group, bytes)),
            Action::Log { line, .. } => self.log.push(line),
            Action::Archive(news) => self.archived.push(news),
            Action::Secure { id, .. } => self.waits_for_tls.push((core, id)),
            Action::Sleep { duration } => self.pass(duration),
            Action::Peers(peers) => {
                (self.peers, self.addresses) =
                    peers.into_iter().map(|(node, member)| (node, member.cluster_address)).unzip();
            }
            Action::AlsoAt(places) => self.also_at = places,
            Action::Fatal { line } => panic!("{line}"),
            Action::Close { session } | Action::Abort { session } => {
                self.closed.insert(session);
                self.step(core, Event::Closed { session, unsent_bytes: 0 });
            }
            _ => {}
        }
    }

    /// What was held of checkpoints is written, as is all that comes.
    pub fn write_checkpoints(&mut self) {
        self.holds_checkpoints = false;
        for (core, group, id, step) in std::mem::take(&mut self.held_checkpoints) {
            self.checkpoint(core, group, id, step);
        }
    }

    fn checkpoint(&mut self, core: usize, group: GroupId, id: u64, step: CheckpointStep) {
        if self.holds_checkpoints {
            return self.held_checkpoints.push((core, group, id, step));
        }
        let key = (group, id);
        let news = match step {
            CheckpointStep::Begin(mark) => {
                self.checkpoints.insert(key, Checkpoint { index: mark.index, chunks: Vec::new() });
                return;
            }
            CheckpointStep::Abandon => {
                self.checkpoints.remove(&key);
                return;
            }
            CheckpointStep::Chunk(chunk) => {
                let Some(checkpoint) = self.checkpoints.get_mut(&key) else { return };
                let count = chunk.len();
                checkpoint.chunks.push(chunk);
                CheckpointNews::Written(count)
            }
            CheckpointStep::Keep | CheckpointStep::Finish if self.is_full => {
                self.checkpoints.remove(&key);
                CheckpointNews::Failed("no room".to_owned())
            }
            CheckpointStep::Keep => CheckpointNews::Kept,
            CheckpointStep::Finish | CheckpointStep::Install(_) => CheckpointNews::Finished,
        };
        self.step(core, Event::Checkpoint { group, id, news });
    }

    /// Turns and syncs until nothing moves any more.
    pub fn settle(&mut self) {
        for _ in 0..20 {
            if !self.holds_disk && !self.holds_flushes {
                self.sync();
            }
            if let Some(outcome) = self.tls.clone() {
                for (core, id) in std::mem::take(&mut self.waits_for_tls) {
                    self.step(core, Event::Secured { id, outcome: outcome.clone() });
                }
            }
            self.turn();
        }
    }

    /// One turn of each core.
    pub fn turn(&mut self) {
        for core in 0..self.cores.len() {
            self.turn_core(core);
        }
    }

    /// One core takes its turn.
    pub fn turn_core(&mut self, core: usize) {
        // The operating system takes what it is given at once; the disk is waited for in `settle`.
        let (written, held): (Vec<_>, Vec<_>) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|(held_by, _, _, persist)| !self.holds_disk && *held_by == core && *persist == Persist::Written);
        self.held = held;
        for (core, group, ticket, _) in written {
            self.step(core, Event::Persisted { group, ticket });
        }
        self.step(core, Event::Turn);
    }

    /// The disk finishes what waits for it.
    pub fn sync(&mut self) {
        for (core, group, ticket, _) in std::mem::take(&mut self.held) {
            self.step(core, Event::Persisted { group, ticket });
        }
    }

    /// Lets time pass.
    pub fn pass(&mut self, duration: Duration) {
        self.now.instant = self.now.instant + duration;
        self.now.unix.0 += duration.as_millis() as i64;
        self.settle();
    }

    /// True if the node has ended the client's connection.
    pub fn is_closed(&self, session: SessionId) -> bool {
        self.closed.contains(&session)
    }

    /// The host tells all cores of the process.
    pub fn report(&mut self, report: &HostReport) {
        for core in 0..self.cores.len() {
            self.step(core, Event::Report(Box::new(report.clone())));
        }
    }

    /// True if the client's socket is not to be read.
    pub fn is_paused(&self, session: SessionId) -> bool {
        self.paused.contains(&session)
    }

    /// A client speaks; nothing settles.
    pub fn send(&mut self, session: SessionId, bytes: &[u8]) {
        self.step(self.homes[&session], Event::Bytes { session, bytes });
    }

    /// What a client has received since it was last asked, as it is.
    pub fn received_bytes(&mut self, session: SessionId) -> Vec<u8> {
        self.output.remove(&session).unwrap_or_default()
    }

    /// What a client has received since it was last asked.
    pub fn received(&mut self, session: SessionId) -> String {
        String::from_utf8_lossy(&self.received_bytes(session)).replace("\r\n", " ").trim().to_owned()
    }

    /// A client types a line and reads what comes back.
    pub fn run(&mut self, session: SessionId, line: &str) -> String {
        self.send(session, format!("{line}\r\n").as_bytes());
        self.settle();
        self.received(session)
    }
}
