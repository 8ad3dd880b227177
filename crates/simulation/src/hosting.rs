//! What an operating system does for a node: starts its process, turns its cores, writes its journal, carries its
//! bytes. The false twin of `edge`, and of `server` as far as starting goes.

mod disk;
mod watching;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use group::defect::Defect;
use group::group_seed::GroupSeed;
use group::host::Persist;
use group::ids::{CoreId, GroupId, NodeId, SessionId};
use group::{Group, first_membership, group_count, others_can_tell};
use journal::{CheckpointReader, Fault, Identity, Journal, RecoveredGroup};
use keyspace::{Keyspace, Layout};
use node::Core;
use node::entry::Item;
use node::event::{Action, CoreOptions, Event, Peer, ProcessFacts};
use node::limits;
use node::roster::Member;
use node::settings::Settings;
use node::splitting::commit_splits;
use stdx::log::{Entry, EntryKind};
use stdx::{Instant, Level, Levels};

use crate::invariants::Invariant;
use crate::machine::{CoreHost, Inbound, Machine, Order, Process};
use crate::universe::{Universe, WRITE_BACK_INTERVAL, What, Zones, say};
use crate::{Canary, DATABASES, Durability, MICROSECOND, MILLISECOND, SECOND};
use disk::waiting_bytes;

/// The first node founds the cluster, the others join it.
fn seed_is_founder(node: NodeId) -> bool {
    node == NodeId(1)
}

impl Universe {
    pub(crate) fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        let policy = match self.plan.durability {
            Durability::Always => "always",
            Durability::EverySecond => "everysec",
            Durability::No => "no",
        };
        let databases = DATABASES.to_string();
        for (name, value) in [("appendfsync", policy), ("protected-mode", "no"), ("databases", &databases)] {
            settings.set(name, value).expect("a parameter of ours");
        }
        if self.site.is_some() {
            settings.set("site-backlog-size", "1gb").expect("a parameter of ours");
        }
        let Zones { replace_after, balance_rate, .. } = &self.zones;
        let split_bytes = &self.faults.split_bytes;
        for (name, value) in [
            ("replace-after", replace_after),
            ("balance-rate-bytes", balance_rate),
            ("balance-split-bytes", split_bytes),
        ] {
            settings.set(name, &value.to_string()).expect("a parameter of ours");
        }
        assert_eq!(settings.replica_count, self.replica_count, "no parameter above changes it");
        settings
    }

    // ---- starting -------------------------------------------------------------------------------------------------

    /// Starts a process on a machine that has none: recovery, then cores, then groups as they are loaded.
    pub(crate) fn boot(&mut self, machine: usize) {
        if self.machines[machine].process.is_some() || self.machines[machine].is_lost {
            return;
        }
        self.install(machine);
        self.boot_same(machine);
    }

    /// The same, with the version that is installed.
    pub(crate) fn boot_same(&mut self, machine: usize) {
        self.zones.perhaps_carry(machine);
        let identity = Identity {
            directory: u128::from(self.prng.draw()),
            cluster: u128::from(self.plan.seed),
            node: machine as u64 + 1,
            group_count: self.group_count,
            hash_seed: self.plan.seed,
            has_joined: machine > 0,
            // A world is that of an old cluster, unless it has what came later: with `levels` it is upgraded.
            level: if self.zones.are_there() || self.faults.splits || self.faults.merges || self.plan.optimists {
                Levels::KNOWN.highest
            } else {
                Level::FIRST
            },
        };
        let options = journal::Options {
            segment_bytes: 4096 * (16 + self.prng.below(48)),
            held_bytes_max: self.faults.log_held_bytes_max,
            has_peers: others_can_tell,
            levels: self.machines[machine].levels,
            ..journal::Options::new(identity)
        };
        let disk = self.machines[machine].disk.clone();
        let (journal, mut recovered) = match Journal::open(disk.clone(), &options) {
            Ok(opened) => opened,
            Err(fault @ Fault::Level { .. }) => return self.refuse_level(machine, &fault),
            Err(fault) => return self.boot_failed(machine, &fault),
        };
        say!(
            self,
            "node {} starts: {:?}",
            machine + 1,
            recovered
                .groups
                .iter()
                .map(|(group, found)| (
                    group,
                    found.hard_state,
                    found.checkpoint.as_ref().map(|mark| mark.index),
                    found.entries.len()
                ))
                .collect::<Vec<_>>()
        );
        let mut unkept = commit_splits(&mut recovered.groups);
        if !recovered.is_new {
            self.probes.reach("a log was recovered");
        }
        let settings = Arc::new(self.settings());
        if let Some(why) = &recovered.tail_in_question {
            say!(self, "node {}: {why}", machine + 1);
            self.probes.reach("the end of a log was in question");
        }
        let is_in_question = recovered.tail_in_question.is_some() && self.plan.canary != Some(Canary::ForgottenTail);
        let may_lack_its_tail =
            is_in_question || (!recovered.was_stopped_cleanly && self.plan.durability != Durability::Always);
        let is_recovering = may_lack_its_tail && self.machines.len() > 1;
        let mut seeds = Vec::new();
        let known_count = match self.plan.canary {
            Some(Canary::FoundedTwice) => recovered.identity.group_count,
            _ => group_count(&recovered),
        };
        if known_count > recovered.identity.group_count {
            self.probes.reach("a founded group was recovered");
        }
        for group in 0..known_count {
            let found = recovered.groups.get(&group).cloned().unwrap_or_default();
            match self.load(machine, group, found, is_recovering, &settings, &recovered.identity) {
                Ok(seed) => seeds.push(GroupSeed { unkept: unkept.remove(&group).unwrap_or_default(), ..seed }),
                Err(reason) => {
                    let reason = format!("node {}: group {group} cannot be loaded: {reason}", machine + 1);
                    self.fail(Invariant::Recovers, reason);
                    return;
                }
            }
        }
        let cores = self.new_cores(machine, (known_count, recovered.identity.level, is_recovering), &settings);
        let core_count = cores.len() as u32;
        if let Some(site) = &mut self.site {
            site.begin(machine, self.group_count);
        }
        let state = &mut self.machines[machine];
        state.life += 1;
        state.has_joined = true;
        state.started = self.now;
        state.process = Some(Process::new(journal, cores));
        let life = state.life;
        self.forgotten_at.push(self.now);
        for seed in seeds {
            let core = (seed.group.0 % core_count) as u16;
            let when = self.now + MILLISECOND + self.some(20 * MILLISECOND);
            self.at(when, What::Arrive { machine, life, core, inbound: Inbound::Loaded(Box::new(seed)) });
        }
        let interval = if self.plan.durability == Durability::No { WRITE_BACK_INTERVAL } else { SECOND };
        if self.plan.durability != Durability::Always {
            self.at(self.now + interval, What::Flush { machine, life });
        }
        self.start_chore(machine);
    }

    /// The cores of a process that starts. What the groups hold comes later.
    fn new_cores(
        &mut self,
        machine: usize,
        (known_count, level, is_recovering): (u32, Level, bool),
        settings: &Arc<Settings>,
    ) -> Vec<CoreHost> {
        let core_count = 1 + self.prng.below(3) as u16;
        // Anyone who founded the cluster may have been removed since.
        let known = |(index, other): (usize, &Machine)| {
            (machine > 0 && index != machine && other.has_joined).then_some(other.node)
        };
        let node = self.machines[machine].node;
        let seed_nodes: Vec<NodeId> = if self.plan.changes {
            self.machines.iter().enumerate().filter_map(known).collect()
        } else {
            (!seed_is_founder(node)).then_some(NodeId(1)).into_iter().collect()
        };
        let process = Arc::new(ProcessFacts::default());
        let address = self.address_of(machine);
        let now = self.machines[machine].clock.read(self.now);
        (0..core_count)
            .map(|core| {
                let options = CoreOptions {
                    node,
                    core: CoreId(core),
                    core_count,
                    group_count: self.group_count,
                    hash_seed: self.plan.seed,
                    founds_groups: false,
                    levels: self.machines[machine].levels,
                    floor: level,
                    seed: self.prng.draw(),
                    settings: Arc::clone(settings),
                    process: Arc::clone(&process),
                    is_own_host_unknown: false,
                    machine_addresses: Arc::from([]),
                    own: Member {
                        cluster_address: address.clone(),
                        client_address: address.clone(),
                        zone: self.zones.name(machine),
                        ..Member::default()
                    },
                    seeds: seed_nodes.iter().map(|node| (*node, Member::default())).collect(),
                    stopwatch: || Instant::ZERO,
                };
                let mut core = Core::new(options);
                core.step(now, Event::Groups { count: known_count, is_recovering }, &mut Vec::new());
                CoreHost::new(core)
            })
            .collect()
    }

    /// A start may fail because the disk does; never because of what is on it.
    fn boot_failed(&mut self, machine: usize, fault: &Fault) {
        say!(self, "node {} does not start: {fault}", machine + 1);
        let disk = self.machines[machine].disk.clone();
        if disk.is_dark() {
            self.probes.reach("power failed inside a disk operation");
            self.cut_power(machine);
        } else if matches!(fault, Fault::Damaged { .. } | Fault::Missing { .. }) && self.machines[machine].has_rotted {
            self.probes.reach("a start was refused because of rot");
            return self.give_up(machine);
        } else if !matches!(fault, Fault::Io { .. } | Fault::Full { .. }) || !disk.is_ill() {
            self.fail(Invariant::Recovers, format!("node {} cannot recover: {fault}", machine + 1));
            return;
        }
        let when = self.now + 100 * MILLISECOND + self.some(SECOND);
        self.at(when, What::Boot { machine });
    }

    fn load(
        &mut self,
        machine: usize,
        group: u32,
        found: RecoveredGroup,
        is_recovering: bool,
        settings: &Settings,
        identity: &Identity,
    ) -> Result<GroupSeed, String> {
        if found.checkpoint.is_some() {
            self.probes.reach("a checkpoint was recovered");
        }
        let mut seed = self.read_group(machine, group, found, settings, identity)?;
        if seed.born().is_some() {
            self.probes.reach("a group that split off was recovered from the log of another");
            if self.plan.canary == Some(Canary::ForgottenBeginning) {
                seed.entries[0].data.clear();
            }
        }
        seed.is_recovering = is_recovering;
        Ok(seed)
    }

    /// What a machine's disk holds of a group: its newest checkpoint, and the log behind it.
    pub(crate) fn read_group(
        &self,
        machine: usize,
        group: u32,
        found: RecoveredGroup,
        settings: &Settings,
        identity: &Identity,
    ) -> Result<GroupSeed, String> {
        let keyspace = Keyspace::new(keyspace::Options {
            databases: settings.databases,
            hash_seed: identity.hash_seed,
            layout: Layout::Slots,
            tuning: keyspace::Tuning::default(),
        });
        let mut seed = GroupSeed::new(GroupId(group), self.machines[machine].node, keyspace);
        seed.membership = first_membership(identity, group, &found);
        seed.was_given_up = found.is_vacated();
        seed.hard_state = found.hard_state;
        seed.entries = found.entries;
        if let Some(mark) = found.checkpoint {
            (seed.checkpoint_index, seed.checkpoint_term) = (mark.index, mark.term);
            seed.membership = mark.membership.clone();
            let disk = self.machines[machine].disk.clone();
            let mut reader = CheckpointReader::open(disk, identity, group, &mark).map_err(|fault| fault.to_string())?;
            while let Some(chunk) = reader.next().map_err(|fault| fault.to_string())? {
                seed.restore(chunk).map_err(|corrupt| format!("{corrupt:?}"))?;
            }
        }
        Ok(seed)
    }

    // ---- turning --------------------------------------------------------------------------------------------------

    /// Something has come for a core.
    pub(crate) fn arrive(&mut self, machine: usize, core: u16, inbound: Inbound) {
        let process = self.machines[machine].process.as_mut().expect("it is alive");
        let core_count = process.cores.len() as u16;
        let host = &mut process.cores[usize::from(core % core_count)];
        match inbound {
            Inbound::Bytes(session, bytes) => {
                if !host.connections.contains_key(&session.serial) {
                    return;
                }
                match host.held.get_mut(&session.serial) {
                    Some(held) => held.extend_from_slice(&bytes),
                    None => host.inbox.push_back(Inbound::Bytes(session, bytes)),
                }
            }
            Inbound::Closed(session) => {
                if host.connections.remove(&session.serial).is_none() {
                    return;
                }
                host.held.remove(&session.serial);
                host.inbox.push_back(Inbound::Closed(session));
            }
            other => host.inbox.push_back(other),
        }
        let when = self.now + MICROSECOND + self.some(20 * MICROSECOND);
        self.plan_turn(machine, core % core_count, when);
    }

    fn plan_turn(&mut self, machine: usize, core: u16, when: u64) {
        let state = &mut self.machines[machine];
        let Some(process) = &mut state.process else { return };
        let host = &mut process.cores[usize::from(core)];
        let when = when.max(host.busy_until).max(state.paused_until).max(self.now);
        if host.turn_at.is_none_or(|planned| when < planned) {
            host.turn_at = Some(when);
            let life = state.life;
            self.at(when, What::Turn { machine, life, core });
        }
    }

    pub(crate) fn turn(&mut self, machine: usize, core: u16) {
        let state = &mut self.machines[machine];
        let (paused_until, started) = (state.paused_until, state.started);
        let now = state.clock.read(self.now);
        let process = state.process.as_mut().expect("it is alive");
        let host = &mut process.cores[usize::from(core)];
        if host.turn_at != Some(self.now) {
            return; // it was planned again
        }
        host.turn_at = None;
        if self.now < paused_until {
            return self.plan_turn(machine, core, paused_until);
        }
        let mut actions = Vec::new();
        let is_behind = waiting_bytes(&process.queue) > self.faults.disk_queue_bytes;
        let is_held_up = is_behind && host.core.adds_to_its_log();
        if is_held_up && !std::mem::replace(&mut host.is_held_up, is_held_up) {
            self.probes.reach("too much waited for the disk to read clients");
        }
        host.is_held_up = is_held_up;
        for inbound in std::mem::take(&mut host.inbox) {
            if let Inbound::Bytes(session, _) = &inbound
                && is_held_up
            {
                if host.connections.contains_key(&session.serial) {
                    host.inbox.push_back(inbound);
                }
                continue;
            }
            let event = match &inbound {
                Inbound::Bytes(session, bytes) => Event::Bytes { session: *session, bytes },
                Inbound::Peer(from, bytes) => Event::Peer { from: *from, bytes },
                _ => match inbound {
                    Inbound::Opened(session, peer) => Event::Opened { session, peer },
                    Inbound::Closed(session) => {
                        host.places.remove(&session.index);
                        // What was given to the host is on its way.
                        Event::Closed { session, unsent_bytes: 0 }
                    }
                    Inbound::Envelope(from, envelope) => Event::Envelope { from, envelope },
                    Inbound::Loaded(seed) => Event::Loaded(seed),
                    Inbound::Persisted(group, ticket) => Event::Persisted { group, ticket },
                    Inbound::Checkpoint(group, id, news) => Event::Checkpoint { group, id, news },
                    Inbound::CheckpointRead { group, index, chunk, to, read } => {
                        Event::CheckpointRead { group, index, chunk, to, read }
                    }
                    Inbound::LogRead(group, first, read) => Event::LogRead { group, first, read },
                    Inbound::Room(room) => Event::Room(room),
                    Inbound::Expelled => Event::Expelled,
                    Inbound::Reachable(node, levels) => Event::Reachable { node, levels },
                    Inbound::RecordAgain(group) => Event::RecordAgain(group),
                    Inbound::Found(node, address) => Event::Found { node, address },
                    Inbound::Bytes(..) | Inbound::Peer(..) => unreachable!("borrowed above"),
                },
            };
            host.core.step(now, event, &mut actions);
        }
        match self.plan.canary {
            Some(Canary::EarlyAcknowledgement) => {
                host.core.groups_mut().for_each(Group::break_by_acknowledging_early);
            }
            Some(Canary::LongLease) => host.core.groups_mut().for_each(Group::break_by_stretching_leases),
            Some(Canary::BelievedTerms) => host.core.groups_mut().for_each(Group::break_by_believing_terms),
            Some(Canary::ForgottenDoubt) => host.core.groups_mut().for_each(|group| group.break_by_trusting()),
            Some(Canary::EarlyVote) => {
                let is_young = self.now < started + 2 * SECOND;
                host.core.groups_mut().filter(|_| is_young).for_each(Group::break_by_voting_at_once);
            }
            _ => {}
        }
        if let Some(defect) = self.plan.canary.and_then(defect_of) {
            host.core.break_by(defect);
        }
        // A checkpoint between two steps of a transaction holds what is prepared.
        let chance = (10 * self.faults.step_crash).min(500);
        if chance > 0 && self.prng.below(1_000) < chance {
            let mut prepared = host.core.groups_mut().filter(|group| group.prepared_count() > 0);
            if let Some(group) = prepared.next() {
                group.want_checkpoint();
            }
        }
        // The configuration's least is far more than a universe writes.
        if host.logged_bytes > self.faults.checkpoint_log_bytes {
            host.logged_bytes = 0;
            host.core.groups_mut().for_each(Group::want_checkpoint);
        }
        let (log_memory_bytes, window_bytes) = (self.faults.log_memory_bytes, self.faults.window_bytes);
        host.core.groups_mut().for_each(|group| group.narrow_memory(log_memory_bytes, window_bytes));
        host.core.narrow_streams(window_bytes, window_bytes);
        host.core.narrow_slices(self.faults.slicing);
        host.core.step(now, Event::Turn, &mut actions);
        host.busy_until = self.now + MICROSECOND + self.prng.below(self.faults.turn_cost.max(1));
        if host.core.has_stalled() {
            self.probes.reach("a client waited for a window");
        }
        if host.core.groups().any(Group::has_slices) {
            self.probes.reach("a value of a transaction went in steps");
        }
        self.observe(machine, core);
        for action in actions {
            if self.machines[machine].process.is_none() {
                break;
            }
            self.carry_out(machine, core, action);
        }
        self.settle(machine);
        match self.write_on_core(machine) {
            // The others hear of it by their mail.
            true => self.step_at_once(machine, core),
            false => self.kick_journal(machine),
        }
    }

    /// What a core has written itself allows it to go on in the same turn.
    fn step_at_once(&mut self, machine: usize, core: u16) {
        let Some(process) = &mut self.machines[machine].process else { return };
        let host = &mut process.cores[usize::from(core)];
        if host.inbox.is_empty() {
            return self.kick_journal(machine);
        }
        host.turn_at = Some(self.now);
        self.turn(machine, core);
    }

    /// The others have told all groups what they may have lacked, which is noted.
    fn settle(&mut self, machine: usize) {
        let Some(process) = &mut self.machines[machine].process else { return };
        let knows = |host: &CoreHost| host.core.is_loaded() && !host.core.is_in_doubt();
        if process.journal.is_in_question() && process.cores.iter().all(knows) {
            let result = process.journal.settle();
            if self.journal_went_well(machine, result) {
                self.probes.reach("the others made good for the end of a log");
            }
        }
    }

    fn carry_out(&mut self, machine: usize, core: u16, action: Action) {
        let life = self.machines[machine].life;
        let process = self.machines[machine].process.as_mut().expect("it is alive");
        let host = &mut process.cores[usize::from(core)];
        match action {
            Action::Reply { session, bytes } => {
                let Some(number) = host.connections.get(&session.serial).copied() else { return };
                if bytes.len() > limits::OUTPUT_BYTES_MAX + group::limits::CHECKPOINT_CHUNK_BYTES {
                    let reason = format!("{} bytes of output for one client in one turn", bytes.len());
                    self.fail(Invariant::MemoryBounded, reason);
                }
                self.send_to_client(number, bytes);
            }
            Action::Close { session } | Action::Abort { session } => {
                let Some(number) = host.connections.remove(&session.serial) else { return };
                host.inbox.push_back(Inbound::Closed(session));
                if let Some(connection) = self.connections.remove(&number) {
                    let when = connection.to_client.max(self.now) + 1;
                    self.at(when, What::ClientHears { client: connection.client, connection: number, bytes: None });
                }
                self.plan_turn(machine, core, self.now);
            }
            Action::Pause { session } => {
                host.held.entry(session.serial).or_default();
            }
            Action::Resume { session } => {
                if let Some(bytes) = host.held.remove(&session.serial).filter(|bytes| !bytes.is_empty()) {
                    host.inbox.push_back(Inbound::Bytes(session, bytes));
                    self.plan_turn(machine, core, self.now);
                }
            }
            Action::UsersFile { .. } => unreachable!("no universe has a file of users"),
            Action::Secure { .. } => unreachable!("no universe has certificates"),
            Action::Follow { .. }
            | Action::AwaitFollowers(_)
            | Action::Changes(_)
            | Action::Migrate(_)
            | Action::Replicate(_)
            | Action::SourceHeard { .. } => {
                unreachable!("no universe has other servers, or keeps what changes")
            }
            Action::Tape(tape) => {
                if let Some(site) = &mut self.site {
                    site.hear(machine, core, *tape);
                }
            }
            Action::Peers(contacts) => self.learn_places(machine, contacts),
            Action::AlsoAt(places) => {
                let machines = |places: Vec<String>| places.iter().filter_map(|place| self.machine_at(place)).collect();
                let places = places.into_iter().map(|(node, places)| (node, machines(places))).collect();
                self.machines[machine].process.as_mut().expect("it is alive").other_places = places;
            }
            Action::ReadCheckpoint { group, mark, chunk, to } => {
                process.gave_chunk_at = Some(self.now);
                let read = self.read_chunk(machine, group, &mark, chunk);
                let index = mark.index;
                self.probes.reach("a chunk of a checkpoint was given");
                let when = self.now + self.some(5 * MILLISECOND);
                let inbound = Inbound::CheckpointRead { group, index, chunk, to, read };
                self.at(when, What::Arrive { machine, life, core, inbound });
            }
            Action::ReadLog(span) => {
                process.read_log_at = Some(self.now);
                let (group, first) = (GroupId(span.group), span.first);
                let read = self.read_log(machine, &span);
                if let Err(reason) = &read {
                    say!(self, "node {} group {} lacks entries from {first} on: {reason}", machine + 1, group.0);
                }
                let when = self.now + self.some(5 * MILLISECOND);
                let inbound = Inbound::LogRead(group, first, read);
                self.at(when, What::Arrive { machine, life, core, inbound });
            }
            Action::KeepLog { group, index } => process.journal.hold(group.0, index),
            // There is no archive.
            Action::Archive(_) => {}
            Action::Send { to, group, lane: _, bytes } => self.transmit(machine, to, group, bytes),
            Action::Post { to, envelope } => {
                let slot = process.letter_at.entry((core, to.0)).or_insert(0);
                *slot = (*slot).max(self.now) + MICROSECOND + self.prng.below(50 * MICROSECOND);
                let when = *slot;
                let inbound = Inbound::Envelope(CoreId(core), envelope);
                self.at(when, What::Arrive { machine, life, core: to.0, inbound });
            }
            Action::Floor(level) => self.raise_floor(machine, level),
            Action::Append { append, persist } => self.take_append(machine, core, append, persist),
            Action::Checkpoint { group, id, step } => self.checkpoint_step(machine, core, group, id, step),
            Action::WakeAt { instant } => {
                let when = self.machines[machine].clock.when(instant);
                self.plan_turn(machine, core, when);
            }
            Action::Log { level, line } => {
                say!(self, "node {} {level:?}: {line}", machine + 1);
                self.note_cause(machine, core, &line);
            }
            Action::Fatal { line } if process.has_lost_checkpoint => {
                say!(self, "node {} ends: {line}", machine + 1);
                self.at(self.now, What::Ends { machine, life });
            }
            // Without a quorum's loss, which the policy has to allow, nobody can be overtaken; nor long after it.
            Action::Fatal { line }
                if host.core.groups().any(Group::is_overtaken) && self.explains_overtaken(machine, core) =>
            {
                say!(self, "node {} ends: {line}", machine + 1);
                self.at(self.now, What::Overtaken { machine, life });
            }
            Action::Fatal { line } => {
                self.fail(Invariant::Recovers, format!("node {} cannot go on: {line}", machine + 1));
            }
            Action::Shutdown { .. } => {
                self.fail(Invariant::Recovers, format!("node {} wants to stop, and nobody asked", machine + 1));
            }
            Action::Join { .. } => {
                self.fail(Invariant::Recovers, format!("node {} wants to join, and nobody asked", machine + 1));
            }
            Action::Configured { .. } | Action::Sleep { .. } => {}
        }
    }

    /// A node has been told where the others are.
    fn learn_places(&mut self, machine: usize, contacts: Vec<(NodeId, Member)>) {
        let place = |(node, member): &(NodeId, Member)| Some((*node, self.machine_at(&member.cluster_address)?));
        let places: BTreeMap<NodeId, usize> = contacts.iter().filter_map(place).collect();
        let process = self.machines[machine].process.as_mut().expect("it is alive");
        if places != process.places {
            let named = |(node, place): (&NodeId, &usize)| format!("{} at machine {}", node.0, place.wrapping_add(1));
            let named: Vec<String> = places.iter().map(named).collect();
            say!(self, "node {} looks for nodes: {}", machine + 1, named.join(", "));
        }
        process.places = places;
        let removed = contacts.into_iter().filter(|(_, member)| member.is_removed).map(|(node, _)| node);
        let removed: BTreeSet<NodeId> = removed.collect();
        if removed.len() > process.removed.len() {
            self.probes.reach("a node was removed");
        }
        process.removed = removed;
    }

    /// A node says something to another, which may have moved, or be somebody else by now.
    fn transmit(&mut self, machine: usize, to: NodeId, group: GroupId, bytes: Vec<u8>) {
        let process = self.machines[machine].process.as_ref().expect("it is alive");
        // The sender has a connection for each of its own cores.
        let link = (group.0 % process.cores.len() as u32) as u16;
        let is_it = |place: &usize| self.machines.get(*place).is_some_and(|machine| machine.node == to);
        // Where a node is not, another place is tried.
        let others = process.other_places.get(&to).into_iter().flatten().copied();
        let place = process.places.get(&to).copied();
        let place = place.into_iter().chain(others).find(is_it).or(place);
        self.mix_bytes(&bytes);
        if self.trace.is_some()
            && let Some(message) = bytes.get(5..).and_then(|bytes| consensus::Message::decode(bytes).ok())
        {
            say!(self, "group {} {message}", group.0);
        }
        let node = to;
        let to = place.unwrap_or_else(|| self.machine_of_stranger(to));
        if to >= self.machines.len() {
            return; // a copy that has been refused since, or an address that was left
        }
        if self.machines[to].node != node {
            return; // somebody else is found there, and says so
        }
        if !self.link(machine, to) {
            return;
        }
        let core_count = self.machines[to].process.as_ref().map_or(1, |process| process.cores.len() as u32);
        let way = (link, (group.0 % core_count) as u16);
        self.perhaps_lie(machine, to, way, &bytes);
        self.perhaps_answer_instead(machine, to, &bytes);
        self.carry(machine, to, way, bytes);
    }

    /// A core gives the journal something to write. The death of the node may be planned for the time of it.
    fn take_append(&mut self, machine: usize, core: u16, append: journal::Append, persist: Persist) {
        let life = self.machines[machine].life;
        self.mix(append.ticket ^ u64::from(append.group) << 32);
        let entries: Vec<_> = append.entries.iter().map(|entry| (entry.index, entry.term, entry.data.len())).collect();
        say!(
            self,
            "node {} group {} appends {entries:?} {:?} {persist:?} ticket {}",
            machine + 1,
            append.group,
            append.hard_state,
            append.ticket
        );
        if self.faults.step_crash > 0
            && append.entries.iter().any(is_step_of_transaction)
            && self.luck(self.faults.step_crash)
        {
            let when = self.now + self.some(2 * (self.faults.sync_min + self.faults.sync_jitter));
            let power = self.prng.chance(2, 3);
            self.at(when, What::StepCrash { machine, life, power });
        }
        if append.entries.iter().any(forgets_an_outcome) {
            self.probes.reach("the outcome of a transaction was forgotten");
        }
        if self.faults.split_crash > 0
            && append.entries.iter().any(is_step_of_split)
            && self.luck(self.faults.split_crash)
        {
            // Now and then while the record is being written, and mostly before there is a checkpoint.
            let most = [self.faults.sync_min + self.faults.sync_jitter, SECOND][self.prng.below(2) as usize];
            let when = self.now + self.some(2 * most);
            let power = self.prng.chance(1, 2);
            self.probes.reach("the end of a node was planned at a step of a split");
            self.at(when, What::StepCrash { machine, life, power });
        }
        let process = self.machines[machine].process.as_mut().expect("it is alive");
        let bytes: usize = append.entries.iter().map(|entry| entry.data.len()).sum();
        process.cores[usize::from(core)].logged_bytes += bytes as u64;
        process.queue.push_back(Order::Append(core, append, persist));
    }

    fn send_to_client(&mut self, number: u64, bytes: Vec<u8>) {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let count = if self.prng.chance(1, 4) { 1 + self.some(rest.len() as u64) as usize } else { rest.len() };
            let (piece, tail) = rest.split_at(count);
            rest = tail;
            let delay = 10 * MICROSECOND + self.some(100 * MICROSECOND);
            let Some(connection) = self.connections.get_mut(&number) else { return };
            connection.to_client = connection.to_client.max(self.now) + delay;
            let (client, when) = (connection.client, connection.to_client);
            self.at(when, What::ClientHears { client, connection: number, bytes: Some(piece.to_vec()) });
        }
    }

    // ---- the journal's thread ---------------------------------------------------------------------------------------

    /// What the journal's thread tells a core keeps its order.
    pub(crate) fn tell(&mut self, machine: usize, core: u16, inbound: Inbound) {
        let life = self.machines[machine].life;
        let pause = MICROSECOND + self.some(20 * MICROSECOND);
        let process = self.machines[machine].process.as_mut().expect("it is alive");
        let slot = process.notice_at.entry(core).or_insert(0);
        *slot = (*slot).max(self.now) + pause;
        let when = *slot;
        self.at(when, What::Arrive { machine, life, core, inbound });
    }

    // ---- checkpoints ------------------------------------------------------------------------------------------------

    // ---- agreement --------------------------------------------------------------------------------------------------

    /// A removed node has called another one, and is told so.
    pub(crate) fn expel(&mut self, machine: usize) {
        let life = self.machines[machine].life;
        let Some(process) = &self.machines[machine].process else { return };
        for core in 0..process.cores.len() as u16 {
            self.probes.reach("a removed node was told so");
            let when = self.now + self.some(MILLISECOND);
            self.at(when, What::Arrive { machine, life, core, inbound: Inbound::Expelled });
        }
    }

    /// An operator says something to a node, and does not wait for the answer.
    pub(crate) fn tell_as_operator(&mut self, machine: usize, bytes: Vec<u8>) {
        let Some(process) = &mut self.machines[machine].process else { return };
        let core = self.prng.below(process.cores.len() as u64) as u16;
        process.last_serial += 1;
        let host = &mut process.cores[usize::from(core)];
        let session = SessionId { serial: process.last_serial, index: host.take_place() };
        let peer = Peer { is_local: true, ..Peer::default() };
        host.inbox.push_back(Inbound::Opened(session, peer));
        host.inbox.push_back(Inbound::Bytes(session, bytes));
        host.inbox.push_back(Inbound::Closed(session));
        let when = self.now + self.some(MILLISECOND);
        self.plan_turn(machine, core, when);
    }
}

/// True if an entry holds a step of a transaction over groups.
fn is_step_of_transaction(entry: &Entry) -> bool {
    has_item(entry, |item| {
        matches!(item, Item::Prepare { .. } | Item::Resolve { .. } | Item::Install { .. } | Item::Forget(_))
    })
}

/// True if an entry says that nobody will ask about a transaction any more.
fn forgets_an_outcome(entry: &Entry) -> bool {
    node::entry::level(&entry.data) > Level::FIRST && has_item(entry, |item| matches!(item, Item::Forget(_)))
}

/// True if an entry splits a group, or is the first one of a group that split off.
fn is_step_of_split(entry: &Entry) -> bool {
    has_item(entry, |item| matches!(item, Item::Split { .. } | Item::Born(_)))
}

/// True if an entry holds such an item.
fn has_item(entry: &Entry, is_such: impl Fn(&Item<'_>) -> bool) -> bool {
    if entry.kind != EntryKind::Normal {
        return false;
    }
    let Some((_, mut reader)) = node::entry::open(&entry.data) else { return false };
    let mut spans = Vec::new();
    while let Some(item) = reader.item(&mut spans) {
        if is_such(&item) {
            return true;
        }
    }
    false
}

/// The defect of a core that a canary stands for, if it is one of these.
fn defect_of(canary: Canary) -> Option<Defect> {
    match canary {
        Canary::EarlyAcknowledgement
        | Canary::LongLease
        | Canary::EarlyVote
        | Canary::ForgottenDoubt
        | Canary::ForgottenTail
        | Canary::CountedCopy
        | Canary::OpenCut
        | Canary::FoundedTwice
        | Canary::ForgottenBeginning
        | Canary::BelievedTerms
        | Canary::OpenMoment
        | Canary::AheadPosition => None,
        Canary::EarlyCommit => Some(Defect::EarlyCommit),
        Canary::ForgottenWatch => Some(Defect::ForgottenWatch),
        Canary::ForgottenRead => Some(Defect::ForgottenRead),
        Canary::ForgottenAnswer => Some(Defect::ForgottenAnswer),
        Canary::ForgottenLock => Some(Defect::ForgottenLock),
        Canary::EndlessReservation => Some(Defect::EndlessReservation),
        Canary::ForgottenOutcome => Some(Defect::ForgottenOutcome),
        Canary::ForgottenPrepared => Some(Defect::ForgottenPrepared),
        Canary::ForgottenRequestIds => Some(Defect::ForgottenRequestIds),
        Canary::EarlyCopy => Some(Defect::EarlyCopy),
        Canary::ForgottenBook => Some(Defect::ForgottenBook),
        Canary::BoundlessRead => Some(Defect::BoundlessRead),
        Canary::DeafMoments => Some(Defect::DeafMoments),
        Canary::EarlyRemoval => Some(Defect::EarlyRemoval),
        Canary::EarlyLevel => Some(Defect::EarlyLevel),
        Canary::BlindRise => Some(Defect::BlindRise),
        Canary::ForgottenZones => Some(Defect::ForgottenZones),
        Canary::BelievedAnswers => Some(Defect::BelievedAnswers),
        Canary::LostTail => Some(Defect::LostTail),
        Canary::RepeatedSplit => Some(Defect::RepeatedSplit),
        Canary::EarlyEnd => Some(Defect::EarlyEnd),
        Canary::FalseEnd => Some(Defect::FalseEnd),
        Canary::ThinPlacement => Some(Defect::ThinPlacement),
        Canary::KeptLease => Some(Defect::KeptLease),
    }
}

/// Bytes of log that one record takes at most, beyond one append.
const BATCH_BYTES_MAX: usize = 32 << 10;

/// Prewritten bytes below which writes are refused when no more can be made.
const ROOM_BYTES_MIN: u64 = 24 << 10;
