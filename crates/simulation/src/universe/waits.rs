//! How long clients of unhurt nodes wait when something happens to another node, and what that time is made of. All
//! of it is virtual time: what is found here is the design's, not the machine's.

use std::collections::BTreeMap;

use group::Standing;
use node::TransactionId;

use super::{BEYOND_FAST, BEYOND_SLOW, Universe, What, say};
use crate::coverage::Fault;
use crate::{MILLISECOND, SECOND};

/// How often something happens in one universe.
pub const HARMS_PER_UNIVERSE: u64 = 6;

/// How often it is looked who leads and what is locked.
const TICK: u64 = 10 * MILLISECOND;

/// A lock that is held for so long holds others up.
const LOCK_OLD: u64 = 100 * MILLISECOND;

/// How long waits are counted after the harm is over, and how long nothing happens then.
const QUIET: u64 = 6 * SECOND;

/// How much longer messages take on a slow link.
const LINK_SLOW: u64 = 100 * MILLISECOND;

/// How long leaders may take to be where they were.
const RECOVERY_MAX: u64 = 60 * SECOND;

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// It and another one do not hear each other, and a third hears both. Neither counts as hurt.
    PairCut,
    /// Another one does not hear it, and it hears that one. Neither counts as hurt.
    OneWayCut,
    /// It is cut off from all others.
    CutOff,
    /// Its process is killed.
    Kill,
    /// Its power fails, and nobody closes its connections.
    PowerCut,
    /// Its process does not run.
    Stop,
    /// Its disk is full.
    FullDisk,
    /// Each sync of its disk takes up to a second.
    SlowDisk,
    /// Messages between it and another one take 100 ms. Neither counts as hurt.
    SlowLink,
    /// Its clock runs at double speed. It does not count as hurt.
    FastClock,
    /// Its clock runs at half speed. It does not count as hurt.
    SlowClock,
}

impl Harm {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::PairCut,
        Self::OneWayCut,
        Self::CutOff,
        Self::Kill,
        Self::PowerCut,
        Self::Stop,
        Self::FullDisk,
        Self::SlowDisk,
        Self::SlowLink,
        Self::FastClock,
        Self::SlowClock,
    ];

    /// Whether clients of the node that it strikes are left out where waits are looked at.
    const fn hurts_its_node(self) -> bool {
        !matches!(self, Self::PairCut | Self::OneWayCut | Self::SlowLink | Self::FastClock | Self::SlowClock)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PairCut => "pair-cut",
            Self::OneWayCut => "pair-cut-one-way",
            Self::CutOff => "cut-off",
            Self::Kill => "kill",
            Self::PowerCut => "power-cut",
            Self::Stop => "stop",
            Self::FullDisk => "full-disk",
            Self::SlowDisk => "slow-disk",
            Self::SlowLink => "slow-link",
            Self::FastClock => "clock-at-double-speed",
            Self::SlowClock => "clock-at-half-speed",
        }
    }
}

/// The longest wait of a client of an unhurt node for an answer, from just before something happened until some
/// seconds after it was over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// What happened.
    pub harm: Harm,
    /// How long the client waited, in nanoseconds. Of requests that are sent together one is carried out behind
    /// another, and each may meet the same trouble: what counts is how long nothing is heard.
    pub longest_ns: u64,
    /// Of that: a group had no leader on an unhurt node.
    pub unled_ns: u64,
    /// Of the rest: a leader did not serve yet. It waits until no lease of the one before is valid, and applies.
    pub unserved_ns: u64,
    /// Of the rest: a transaction held a lock for a while.
    pub locked_ns: u64,
    /// How many votes in a row of one group elected nobody, as two nodes asked for them in the same instant.
    pub split_count: u64,
    /// Errors that clients of unhurt nodes saw.
    pub error_count: u64,
}

/// What was at an instant.
struct Tick {
    at: u64,
    is_unled: bool,
    is_unserved: bool,
    is_locked: bool,
}

/// What is known of waits while something happens.
#[derive(Default)]
pub(super) struct Watch {
    /// When each client asked what it waits for, or heard what it has been told since.
    asked_at: BTreeMap<usize, u64>,
    /// The longest wait: from when until when.
    longest: (u64, u64),
    ticks: Vec<Tick>,
    /// Terms of groups before something happened, and how many leaders they had had by then.
    terms: BTreeMap<u32, (u64, u64)>,
    /// Since when locks are held.
    locks: BTreeMap<(u32, TransactionId), u64>,
}

impl Universe {
    /// A client asks for something, or waits for the rest of what it has asked for.
    pub(super) fn note_asked(&mut self, client: usize) {
        if self.plan.waits {
            self.watch.asked_at.insert(client, self.now);
        }
    }

    /// A client has been told something, or waits no more.
    pub(super) fn note_answered(&mut self, client: usize) {
        let Some(asked) = self.watch.asked_at.remove(&client) else { return };
        let (from, until) = self.watch.longest;
        if self.away != Some(self.clients[client].node) && self.now - asked > until - from {
            self.watch.longest = (asked, self.now);
        }
    }

    pub(super) fn nodes_are_harmed(&mut self) {
        self.live_until(self.now + QUIET, |_| false);
        let layout = self.layout();
        for cycle in 0..HARMS_PER_UNIVERSE {
            let count = self.machines.len() as u64;
            let victim = self.some(count) as usize;
            let other = (victim + 1 + self.some(count - 1) as usize) % count as usize;
            let harm = Harm::ALL[self.some(Harm::ALL.len() as u64) as usize];
            say!(self, "cycle {cycle}: {harm:?} hits {} and {}, {layout:?}", victim + 1, other + 1);
            let lasts = 2 * SECOND + self.some(4 * SECOND);
            self.history.errors.clear();
            (self.watch.longest, self.watch.ticks) = ((self.now, self.now), Vec::new());
            self.watch.terms = self.terms();
            self.begin_harm(harm, victim, other, lasts);
            self.look_for(lasts);
            say!(self, "cycle {cycle}: all is well again");
            self.network.cut.clear();
            self.network.slow.clear();
            self.machines[victim].disk.set_full(false);
            self.machines[victim].sync_extra = 0;
            if matches!(harm, Harm::FastClock | Harm::SlowClock) {
                self.set_clock_rate(victim, self.machines[victim].drift);
            }
            self.boot(victim);
            self.look_for(QUIET);
            self.away = None;
            if self.failure.is_some() {
                return;
            }
            let wait = self.made_of(harm);
            say!(self, "cycle {cycle}: {wait:?}, {:?}", self.history.errors);
            self.waits.push(wait);
            self.live_until(self.now + RECOVERY_MAX, |this| this.layout() == layout);
            self.live_until(self.now + QUIET, |_| false);
        }
    }

    fn begin_harm(&mut self, harm: Harm, victim: usize, other: usize, lasts: u64) {
        if harm.hurts_its_node() {
            self.away = Some(victim);
            // Its clients go to other nodes, to see how those are.
            let of_victim = |client: &usize| self.clients[*client].node == victim;
            for client in (0..self.clients.len()).filter(of_victim).collect::<Vec<_>>() {
                self.watch.asked_at.remove(&client);
                self.disconnect(client);
                self.at(self.now, What::ClientAsks { client });
            }
        }
        match harm {
            Harm::PairCut | Harm::OneWayCut => {
                self.meet_pair(Fault::PairCut, victim, other);
                self.network.cut.insert((victim, other));
                if harm == Harm::PairCut {
                    self.network.cut.insert((other, victim));
                }
            }
            Harm::CutOff => {
                self.meet(Fault::CutOff, victim);
                for other in (0..self.machines.len()).filter(|other| *other != victim) {
                    self.network.cut.extend([(victim, other), (other, victim)]);
                }
            }
            Harm::Kill => {
                self.meet(Fault::Kill, victim);
                self.kill(victim);
            }
            Harm::PowerCut => {
                self.meet(Fault::PowerCut, victim);
                self.cut_power(victim);
            }
            Harm::Stop => {
                self.meet(Fault::Pause, victim);
                self.machines[victim].paused_until = self.now + lasts;
            }
            Harm::FullDisk => {
                self.meet(Fault::FullDisk, victim);
                self.machines[victim].disk.set_full(true);
            }
            Harm::SlowDisk => {
                self.meet(Fault::SlowDisk, victim);
                self.machines[victim].sync_extra = SECOND;
            }
            Harm::SlowLink => {
                self.meet_pair(Fault::SlowLink, victim, other);
                self.network.slow.extend([((victim, other), LINK_SLOW), ((other, victim), LINK_SLOW)]);
            }
            Harm::FastClock | Harm::SlowClock => {
                self.meet(Fault::ClockRate, victim);
                self.set_clock_rate(victim, if harm == Harm::FastClock { BEYOND_FAST } else { BEYOND_SLOW });
            }
        }
    }

    /// Lets time pass, and looks again and again who leads and what is locked.
    fn look_for(&mut self, time: u64) {
        let end = self.now + time;
        while self.now < end && self.failure.is_none() {
            self.live_until(end.min(self.now + TICK), |_| false);
            let mut led = vec![false; self.groups() as usize];
            let mut served = led.clone();
            let mut held = BTreeMap::new();
            let unhurt = self.machines.iter().enumerate().filter(|(index, _)| self.away != Some(*index));
            for machine in unhurt.map(|(_, machine)| machine) {
                let cores = machine.process.iter().flat_map(|process| &process.cores);
                for group in cores.flat_map(|host| host.core.groups()).filter(|group| group.is_leader()) {
                    let id = group.id().0;
                    led[id as usize] = true;
                    served[id as usize] |= group.standing() == Standing::Serving;
                    for (transaction, _) in group.lock_holders() {
                        let since = self.watch.locks.get(&(id, transaction)).copied().unwrap_or(self.now);
                        held.insert((id, transaction), since);
                    }
                }
            }
            let is_locked = held.values().any(|since| self.now - since >= LOCK_OLD);
            self.watch.locks = held;
            let (is_unled, is_unserved) = (led.contains(&false), served.contains(&false));
            self.watch.ticks.push(Tick { at: self.now, is_unled, is_unserved, is_locked });
        }
    }

    /// The terms of groups, and how many leaders each has had.
    fn terms(&self) -> BTreeMap<u32, (u64, u64)> {
        let mut terms = BTreeMap::new();
        let processes = self.machines.iter().filter_map(|machine| machine.process.as_ref());
        for group in processes.flat_map(|process| &process.cores).flat_map(|host| host.core.groups()) {
            let id = group.id().0;
            let leaders = self.leading.changes.get(&id).copied().unwrap_or(0);
            let (term, _) = terms.entry(id).or_insert((0, leaders));
            *term = group.term().max(*term);
        }
        terms
    }

    /// What the longest wait was made of.
    fn made_of(&mut self, harm: Harm) -> Wait {
        // A client that still waits has waited so long.
        for client in 0..self.clients.len() {
            if let Some(asked) = self.watch.asked_at.get(&client).copied() {
                self.note_answered(client);
                self.watch.asked_at.insert(client, asked);
            }
        }
        let (from, until) = self.watch.longest;
        // Each leader has a term of its own.
        let splits = self.terms().into_iter().filter_map(|(group, (term, leaders))| {
            let (term_before, leaders_before) = self.watch.terms.get(&group)?;
            Some(term.saturating_sub(*term_before).saturating_sub(leaders - leaders_before))
        });
        let split_count = splits.max().unwrap_or(0);
        let mut wait = Wait {
            harm,
            longest_ns: until - from,
            unled_ns: 0,
            unserved_ns: 0,
            locked_ns: 0,
            split_count,
            error_count: self.history.errors.len() as u64,
        };
        for tick in self.watch.ticks.iter().filter(|tick| from < tick.at && tick.at <= until) {
            match () {
                () if tick.is_unled => wait.unled_ns += TICK,
                () if tick.is_unserved => wait.unserved_ns += TICK,
                () if tick.is_locked => wait.locked_ns += TICK,
                () => {}
            }
        }
        wait
    }
}
