//! A second site: a backlog on each machine, a thin line that is cut again and again, and a far cluster that carries
//! out what it is told.
//!
//! What a backlog knows, what is told and where the far cluster is then is worked out by the crate `site`, as in the
//! real world. The far cluster itself is one table: that a cluster carries out a batch and its new position together or
//! not at all is what all other worlds are about.

mod backlog;
mod far;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use backlog::Backlog;
use far::Far;
use group::ids::GroupId;
use node::Tape;
use site::{Frame, Place, Position, Teller, beginning};
use stdx::{Prng, UnixMillis};

use super::{Universe, What, say};
use crate::client::{ACCOUNT_COUNT, LIST_COUNT, SiteCopy};
use crate::invariants::Invariant;
use crate::machine::Inbound;
use crate::{Canary, DATABASES, MILLISECOND, Plan, SECOND};

/// Chance of all that has to do with the second site, apart from all other chance.
const SITE_SEED: u64 = 0x517E_0000_FA12;

/// How often threads of the near side and of the far one get to do something.
const INTERVAL: u64 = 20 * MILLISECOND;

/// Frames are on their way for so long at least.
const DELAY: u64 = 40 * MILLISECOND;

/// How long the far side takes to lack nothing when nothing goes wrong any more.
const LEVEL_MAX: u64 = 30 * SECOND;

/// How long it takes to get a copy then: the parts of a backup that nobody reads any more are kept for five minutes.
const COPY_MAX: u64 = 400 * SECOND;

/// In one of so many turns a thread of a core of a machine begins to wait for a processor.
const STALLS: u64 = 40;

/// For how long at most.
const STALL_MAX: u64 = SECOND;

/// Cores of a process, at most.
const CORES_MAX: u64 = 3;

/// A closed moment that is not closed is too late by so much.
const OPEN_MS: i64 = 60_000;

/// What belongs to the second site.
pub(crate) struct SecondSite {
    prng: Prng,
    backlogs: BTreeMap<usize, Backlog>,
    far: Far,
    line: Option<Line>,
    /// The machine that it has called last.
    called: Option<usize>,
    /// The far side calls again then.
    calls_at: u64,
    /// Machines from which it cannot go on.
    gone: BTreeSet<usize>,
    /// It waits for a copy made since then.
    wants_copy: Option<u64>,
    /// Bytes that the line carries in a second.
    rate: u64,
    /// Now and then more changes than can be written in time.
    loses_tapes: bool,
    cuts: u64,
    copies: u64,
}

/// A line between a near machine and the far side.
struct Line {
    machine: usize,
    life: u64,
    /// Where the backlog is read: the file, and how many of its tapes.
    at: (u64, usize),
    /// Up to which places of groups it was read.
    read: Vec<u64>,
    teller: Teller,
    /// Frames on their way, with their arrival.
    carried: VecDeque<(u64, Vec<u8>)>,
    arrival: u64,
}

/// Why a line ends.
enum End {
    Cut,
    /// The near machine does not have what comes behind.
    Gone(&'static str),
    /// A promise did not hold.
    Broken(String),
}

impl SecondSite {
    pub(super) fn new(plan: &Plan, group_count: u32) -> Self {
        let mut prng = Prng::new(plan.seed ^ SITE_SEED);
        // Some follow from the beginning on, and others take a copy of what there is.
        let position = Position { places: vec![0; group_count as usize], moment: UnixMillis(0) };
        let wants_copy = prng.chance(1, 2).then_some(0);
        let rate = 20_000 << prng.below(8);
        let loses_tapes = prng.chance(1, 4);
        Self {
            prng,
            backlogs: BTreeMap::new(),
            far: Far::new(DATABASES, position),
            line: None,
            called: None,
            calls_at: 0,
            gone: BTreeSet::new(),
            wants_copy,
            rate,
            loses_tapes,
            cuts: 0,
            copies: 0,
        }
    }

    /// A group of a core of a machine has done something.
    pub(crate) fn hear(&mut self, machine: usize, core: u16, tape: Tape) {
        if let Some(backlog) = self.backlogs.get_mut(&machine) {
            // More has changed than could be written in time.
            if self.loses_tapes && self.prng.chance(1, 500) {
                backlog.refused.insert(tape.group);
                return;
            }
            backlog.told.entry(core).or_default().push_back(tape);
        }
    }

    /// What a core has told, or all of them, is on disk: so it is before a checkpoint takes the place of the log.
    pub(crate) fn keep(&mut self, machine: usize, core: Option<u16>) {
        if let Some(backlog) = self.backlogs.get_mut(&machine) {
            backlog.write(|other| core.is_none_or(|core| core == other));
            backlog.sync();
        }
    }

    /// The process of a machine begins.
    pub(crate) fn begin(&mut self, machine: usize, group_count: u32) {
        match self.backlogs.get_mut(&machine) {
            Some(backlog) => backlog.open(),
            None => {
                let (tapes_max, files_max) = (4 << self.prng.below(7), 4 << self.prng.below(6));
                self.backlogs.insert(machine, Backlog::new(group_count, (tapes_max, files_max)));
            }
        }
    }

    /// The process of a machine has ended; with the power goes what was not synced.
    pub(crate) fn end(&mut self, machine: usize, power: bool) {
        let Some(backlog) = self.backlogs.get_mut(&machine) else { return };
        backlog.told.clear();
        backlog.refused.clear();
        if power {
            backlog.cut_power(&mut self.prng);
        }
    }

    fn hang_up(&mut self, now: u64) {
        self.cuts += u64::from(self.line.take().is_some());
        self.calls_at = now + self.prng.below(SECOND / 2);
    }

    /// The far side calls a machine, and says where it is.
    fn call(&mut self, machine: usize, life: u64) -> Result<(), End> {
        self.called = Some(machine);
        let Position { places, moment } = self.far.position.clone();
        let backlog = self.backlogs.get(&machine).ok_or(End::Cut)?;
        let found = backlog.newest_behind(&places);
        let (at, header) = found.ok_or(End::Gone("the backlog does not reach back so far"))?;
        let ahead_min = 1 + self.prng.below(40) as usize;
        let teller = Teller::new(places, moment, beginning(&header.places, header.parts.clone()), ahead_min);
        let read = header.places.iter().map(|place| place.index).collect();
        self.line = Some(Line { machine, life, at, read, teller, carried: VecDeque::new(), arrival: 0 });
        Ok(())
    }

    /// The near side reads, and sends what is complete.
    fn tell(&mut self, now: u64, clock: UnixMillis, canary: Option<Canary>) -> Result<(), End> {
        let Some(line) = &mut self.line else { return Ok(()) };
        let backlog = self.backlogs.get(&line.machine).ok_or(End::Cut)?;
        let mut is_at_end = false;
        while line.teller.wants_more() && !is_at_end {
            match backlog.next(&mut line.at, &mut line.read).map_err(End::Gone)? {
                Some(mut tape) => {
                    if canary == Some(Canary::OpenMoment) {
                        tape.moment.0 += OPEN_MS;
                    }
                    line.teller.push(tape);
                }
                None => is_at_end = true,
            }
        }
        let mut has_sent = false;
        let lost = |_| End::Gone("the backlog begins behind it, or a log has lost what it has");
        while let Some(batch) = line.teller.batch().map_err(lost)? {
            line.send(&Frame::Batch(batch), now, self.rate);
            has_sent = true;
        }
        line.teller.settle(has_sent, is_at_end);
        if has_sent || self.prng.chance(1, 4) {
            let state = line.teller.state(&line.read, is_at_end, clock, (0, 0));
            line.send(&Frame::State(state), now, self.rate);
        }
        Ok(())
    }
}

impl Line {
    /// Frames keep their order, and a thin line carries them one after the other.
    fn send(&mut self, frame: &Frame, now: u64, rate: u64) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        let took = bytes.len() as u64 * SECOND / rate;
        self.arrival = self.arrival.max(now + DELAY) + took;
        self.carried.push_back((self.arrival, bytes));
    }
}

impl Universe {
    /// The second site gets to do something, again and again.
    pub(super) fn site_turns(&mut self) {
        let Some(mut site) = self.site.take() else { return };
        let outcome = self.site_turn(&mut site);
        self.history.site_wants_copy = site.wants_copy.is_some();
        match outcome {
            Ok(()) => {}
            Err(End::Cut) => site.hang_up(self.now),
            Err(End::Gone(why)) => {
                if let Some(machine) = site.called {
                    say!(self, "the far site cannot go on from node {}: {why}", machine + 1);
                    self.site_is_gone(&mut site, machine);
                }
                site.hang_up(self.now);
            }
            Err(End::Broken(reason)) => self.fail(Invariant::SecondSite, reason),
        }
        let pause = INTERVAL / 4 + site.prng.below(INTERVAL);
        self.site = Some(site);
        self.at(self.now + pause, What::SiteTurns);
    }

    /// A machine does not have what the far side lacks. If none has, it wants a copy.
    fn site_is_gone(&mut self, site: &mut SecondSite, machine: usize) {
        site.gone.insert(machine);
        let mut known = (0..self.machines.len()).filter(|machine| self.machines[*machine].has_joined);
        if known.all(|machine| site.gone.contains(&machine) || self.machines[machine].is_lost) {
            self.probes.reach("a far site needed a copy");
            site.wants_copy = Some(self.now);
            site.gone.clear();
        }
    }

    fn site_turn(&mut self, site: &mut SecondSite) -> Result<(), End> {
        let mut refused = Vec::new();
        for (machine, backlog) in &mut site.backlogs {
            let is_running =
                self.machines[*machine].process.is_some() && self.machines[*machine].paused_until <= self.now;
            if is_running {
                // Threads of cores wait for a processor now and then, each for itself, and sometimes for long: what one
                // core has told is written then long before what another one has told earlier.
                if !self.is_calm && site.prng.chance(1, STALLS) {
                    let core = site.prng.below(CORES_MAX) as u16;
                    backlog.stalled.insert(core, self.now + site.prng.below(STALL_MAX));
                }
                let stalled = std::mem::take(&mut backlog.stalled);
                let is_awake = |core| stalled.get(&core).is_none_or(|until| *until <= self.now);
                backlog.write(|core| is_awake(core) && site.prng.chance(1, 2));
                backlog.stalled = stalled;
            }
            if is_running && site.prng.chance(1, 8) {
                backlog.sync();
            }
            let groups = std::mem::take(&mut backlog.refused);
            refused.extend(groups.into_iter().filter(|_| is_running).map(|group| (*machine, GroupId(group))));
        }
        for (machine, group) in refused {
            self.probes.reach("a backlog lacked what a group had told");
            let process = self.machines[machine].process.as_ref().expect("it is running");
            let core = group.0 as usize % process.cores.len();
            self.tell(machine, core as u16, Inbound::RecordAgain(group));
        }
        if let Some(line) = &site.line {
            let machine = &self.machines[line.machine];
            let is_cut = !self.is_calm && site.prng.chance(1, 100);
            if machine.life != line.life || machine.process.is_none() || is_cut {
                return Err(End::Cut);
            }
            let clock = machine.clock.read(self.now).unix;
            if machine.paused_until <= self.now {
                site.tell(self.now, clock, self.plan.canary)?;
            }
            return self.site_hears(site);
        }
        if self.now < site.calls_at {
            return Ok(());
        }
        if site.wants_copy.is_some() {
            return self.site_takes_copy(site);
        }
        let machine = site.prng.below(self.machines.len() as u64) as usize;
        if self.machines[machine].process.is_none() {
            return Ok(());
        }
        site.call(machine, self.machines[machine].life)?;
        say!(self, "the far site follows node {}", machine + 1);
        Ok(())
    }

    /// A backup that was made since a copy is wanted is taken as one, if the machine that made it goes on.
    fn site_takes_copy(&mut self, site: &mut SecondSite) -> Result<(), End> {
        let Some(copy) = self.history.site_copy.take() else { return Ok(()) };
        let SiteCopy { machine, called, tables, places, moment } = copy;
        let is_new = site.wants_copy.is_some_and(|since| since <= called);
        if !is_new || self.machines[machine].process.is_none() || self.machines[machine].started > called {
            return Ok(());
        }
        // By then entries of all groups are told that had a later moment than the clock of the node that cut them.
        site.keep(machine, None);
        let Some(backlog) = site.backlogs.get(&machine) else { return Ok(()) };
        let latest = backlog.places().iter().map(|place: &Place| place.moment).max().unwrap_or_default();
        let position = Position { places, moment: moment.max(latest) };
        say!(self, "the far site takes a copy of node {}: {position:?}", machine + 1);
        self.probes.reach("a far site took a copy");
        site.far = Far::of(DATABASES, &tables.0, position);
        (site.wants_copy, site.copies) = (None, site.copies + 1);
        // It is told by the node that made the copy.
        site.call(machine, self.machines[machine].life)
    }

    /// What has arrived is carried out.
    fn site_hears(&mut self, site: &mut SecondSite) -> Result<(), End> {
        let Some(line) = &mut site.line else { return Ok(()) };
        let machine = line.machine;
        while line.carried.front().is_some_and(|(arrival, _)| *arrival <= self.now) {
            let (_, bytes) = line.carried.pop_front().expect("just seen");
            self.digest = (self.digest ^ bytes.len() as u64).rotate_left(7);
            let frame = Frame::read(&mut &bytes[..]).map_err(|error| End::Broken(error.to_string()))?;
            match frame {
                Frame::Batch(batch) => {
                    if self.plan.canary == Some(Canary::AheadPosition) && site.prng.chance(1, 20) {
                        // It notes where it is, and ends before it has carried anything out.
                        site.far.position = site.far.position.behind(&batch).map_err(|_| End::Cut)?;
                        return Err(End::Cut);
                    }
                    say!(self, "the far site hears of {} up to {:?}", batch.requests, (batch.moment, &batch.places));
                    site.far.take(&batch).map_err(End::Broken)?;
                    site.gone.clear();
                    self.probes.reach("a far site carried out a batch");
                    self.look_at_site(&site.far).map_err(End::Broken)?;
                }
                Frame::State(state) => {
                    let heard = site.far.position.hear(&state);
                    site.far.position = heard.position;
                    site.far.is_level = heard.is_level;
                }
                other => return Err(End::Broken(format!("node {} tells the far site {other:?}", machine + 1))),
            }
        }
        Ok(())
    }

    /// No transaction may be torn, and nothing may be there without what its session was told before it.
    fn look_at_site(&self, far: &Far) -> Result<(), String> {
        let balances: Vec<i64> = (0..ACCOUNT_COUNT).filter_map(|account| far.balance(account)).collect();
        let elements: Vec<u32> = (0..LIST_COUNT as u32).flat_map(|list| far.elements(list)).collect();
        let present: BTreeSet<u32> = elements.iter().copied().collect();
        if present.len() < elements.len() {
            return Err(format!("the far site at {:?} has carried something out twice: {elements:?}", far.position));
        }
        self.look_at_state(&balances, &present)
            .map_err(|reason| format!("the far site at {:?}: {reason}", far.position))
    }

    /// Nothing changes any more: the far side must come to where it lacks nothing, and hold what the near side holds.
    pub(super) fn site_settles(&mut self) {
        if self.site.is_none() || self.may_lack_a_quorum() {
            return;
        }
        if let Some(site) = &mut self.site {
            site.far.is_level = false;
        }
        let is_level = |this: &Self| {
            let site = this.site.as_ref().filter(|site| site.far.is_level);
            let reaches = |site: &SecondSite| {
                let living = this.living_groups();
                let mut groups = (0..this.groups()).zip(&site.far.position.places);
                let is_there = |(group, place): (u32, &u64)| {
                    !living.contains(&group)
                        || this.replicas_of_one_length(group).is_some_and(|replicas| replicas[0].applied() <= *place)
                };
                site.far.position.places.len() >= this.groups() as usize && groups.all(is_there)
            };
            site.is_some_and(|site| reaches(site))
        };
        let wants_copy = |this: &Self| this.site.as_ref().is_some_and(|site| site.wants_copy.is_some());
        let (mut deadline, last) = (self.now + LEVEL_MAX, self.now + COPY_MAX);
        // It may want a copy, and nobody else makes backups any more.
        self.disconnect(0);
        self.clients[0].last_reads = Some(VecDeque::new());
        let is_running = |machine: &usize| self.machines[*machine].process.is_some();
        self.clients[0].node = (0..self.machines.len()).find(is_running).unwrap_or(0);
        let mut has_come = false;
        while !has_come && self.now < deadline && self.failure.is_none() {
            if wants_copy(self) {
                deadline = (self.now + LEVEL_MAX).min(last);
            }
            self.at(self.now, What::ClientAsks { client: 0 });
            has_come = self.live_until(self.now + SECOND, is_level);
        }
        if self.failure.is_some() {
            return;
        }
        if !has_come {
            let site = self.site.take().expect("just seen");
            let reason = format!(
                "{} s of peace, and the far site is at {:?} while {}, {}",
                LEVEL_MAX / SECOND,
                site.far.position,
                self.standing(),
                if site.line.is_some() { "on the line" } else { "without a line" }
            );
            say!(self, "{:?}", site.line.as_ref().map(|line| &line.teller));
            return self.fail(Invariant::SecondSite, reason);
        }
        self.probes.reach("a far site lacked nothing");
        let site = self.site.take().expect("just seen");
        let states = self.living_groups().into_iter().filter_map(|group| {
            let replicas = self.replicas_of_one_length(group)?;
            Some(replicas[0].state())
        });
        let compared = site.far.compare(&states.collect::<Vec<_>>());
        let looked = compared.and_then(|()| self.look_at_site(&site.far));
        if let Err(reason) = looked {
            self.fail(Invariant::SecondSite, format!("{reason} ({} cuts, {} copies)", site.cuts, site.copies));
        }
    }
}
