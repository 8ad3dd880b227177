//! Nodes ail, and do not die: two do not hear each other although a third hears both, a disk is full, or somebody
//! starts a copy of a node. A leader that should not lead hands over, a copy is refused, and no client of any node
//! notices more than a pause.

use std::collections::BTreeMap;

use group::ids::NodeId;
use node::lives::Judgement;

use super::{Universe, What, say};
use crate::clock::FalseClock;
use crate::coverage::Fault;
use crate::invariants::Invariant;
use crate::machine::Machine;
use crate::{Canary, MILLISECOND, SECOND};

/// How often that happens in one universe.
pub const AILMENTS_PER_UNIVERSE: u64 = 10;

/// The longest that an ailment lasts.
const AILMENT_MAX: u64 = 15 * SECOND;

/// The shortest time that a copy gets to be refused.
const COPY_MIN: u64 = 5 * SECOND;

/// How long leaders may take to be where they were.
const RECOVERY_MAX: u64 = 60 * SECOND;

/// How long leaders must stay where they are before the next.
const QUIET: u64 = 12 * SECOND;

impl Universe {
    pub(super) fn nodes_ail(&mut self) {
        self.live_until(self.now + QUIET, |_| false);
        self.history.errors.clear();
        if self.machines.iter().any(|machine| machine.levels != self.machines[0].levels) {
            self.probes.reach("nodes of two versions ailed together");
        }
        let layout = self.layout();
        for cycle in 0..AILMENTS_PER_UNIVERSE {
            let before = self.leading.changes.clone();
            let count = self.machines.len() as u64;
            let victim = self.some(count) as usize;
            let other = (victim + 1 + self.some(count - 1) as usize) % count as usize;
            let ailing = match self.some(4) {
                0 => {
                    say!(self, "cycle {cycle}: the disk of node {} is full, {layout:?}", victim + 1);
                    self.probes.reach("a disk was full while others had room");
                    self.meet(Fault::FullDisk, victim);
                    self.machines[victim].disk.set_full(true);
                    vec![Some(victim)]
                }
                1 => {
                    say!(self, "cycle {cycle}: somebody starts a copy of node {}, {layout:?}", victim + 1);
                    self.meet(Fault::Copy, victim);
                    self.start_copy(victim);
                    Vec::new()
                }
                kind => {
                    say!(self, "cycle {cycle}: nodes {} and {} are cut off, {layout:?}", victim + 1, other + 1);
                    self.probes.reach("two nodes did not hear each other, and others heard both");
                    self.meet_pair(Fault::PairCut, victim, other);
                    self.network.cut.insert((victim, other));
                    if kind == 2 {
                        self.network.cut.insert((other, victim));
                    }
                    vec![Some(victim), Some(other)]
                }
            };
            let least = if self.copy.is_some() { COPY_MIN } else { 500 * MILLISECOND };
            let over = self.now + least + self.some(AILMENT_MAX);
            self.live_until(over, |_| false);
            say!(self, "cycle {cycle}: all is well again");
            self.network.cut.clear();
            self.machines[victim].disk.set_full(false);
            self.end_copy();
            if !self.live_until(self.now + RECOVERY_MAX, |this| this.layout() == layout) {
                let now = self.layout();
                return self
                    .fail_ailment(&format!("leaders were {layout:?}, and a minute after an ailment are {now:?}"));
            }
            self.live_until(self.now + QUIET, |_| false);
            if self.failure.is_none() && self.layout() != layout {
                let now = self.layout();
                return self.fail_ailment(&format!("leaders were {layout:?}, did not stay, and are {now:?}"));
            }
            for (group, leader) in layout.iter().enumerate() {
                let group = group as u32;
                let changes_of = |changes: &BTreeMap<u32, u64>| changes.get(&group).copied().unwrap_or(0);
                let changes = changes_of(&self.leading.changes) - changes_of(&before);
                // One away from it, and one back.
                let allowed = if ailing.contains(leader) { 2 } else { 0 };
                if changes > allowed {
                    let reason = format!("group {group} changed its leader {changes} times, of which {allowed} may be");
                    return self.fail_ailment(&reason);
                }
            }
            if let Some(error) = self.history.errors.first() {
                let reason = format!("{} errors for clients, first: {error}", self.history.errors.len());
                return self.fail_ailment(&reason);
            }
            if self.failure.is_some() {
                return;
            }
        }
    }

    /// Somebody copies what is on the disk of a node that runs, and starts it on another machine.
    fn start_copy(&mut self, of: usize) {
        let prng = self.prng.fork();
        // No number of an earlier copy: what was on its way to that one never reaches this one.
        let life = self.now;
        let original = &self.machines[of];
        let machine = Machine {
            node: original.node,
            disk: original.disk.copy(prng),
            clock: FalseClock::new(0, SECOND, 0),
            drift: 0,
            sync_extra: 0,
            has_joined: false,
            levels: stdx::Levels::KNOWN,
            is_lost: false,
            has_rotted: false,
            life,
            started: 0,
            ended: None,
            stopped: None,
            progress: BTreeMap::new(),
            paused_until: 0,
            process: None,
        };
        self.copy = Some(of);
        self.machines.push(machine);
        self.boot(self.machines.len() - 1);
    }

    /// By now the copy must have been refused, since its original lives.
    fn end_copy(&mut self) {
        let Some(of) = self.copy.take() else { return };
        let copy = self.machines.pop().expect("the copy is the last one");
        if copy.process.is_some() {
            self.fail_ailment(&format!("a copy of node {} runs beside it", of + 1));
        }
    }

    /// Whether a machine that speaks to another one is taken for the node that it says it is.
    pub(super) fn is_the_node(&mut self, from: usize, to: usize) -> bool {
        if self.plan.canary == Some(Canary::CountedCopy) {
            return true;
        }
        let (node, life) = self.life_of(from);
        let now = self.machines[to].clock.read(self.now).instant;
        let Some(process) = &mut self.machines[to].process else { return false };
        match process.lives.greet(node, life, &format!("machine:{}", from + 1), now) {
            Judgement::Welcome => {
                process.lives.hear(node, life, now);
                if self.copy.is_some() && from + 1 == self.machines.len() {
                    self.fail_ailment(&format!("node {} hears a copy of node {}", to + 1, node.0));
                }
                true
            }
            Judgement::Wait => false,
            Judgement::Copy { .. } => {
                let life = self.machines[from].life;
                self.at(self.now, What::Refused { machine: from, life });
                false
            }
        }
    }

    /// The process on a machine, as others know it.
    fn life_of(&self, machine: usize) -> (NodeId, u64) {
        let Machine { node, life, .. } = &self.machines[machine];
        (*node, life << 8 | machine as u64)
    }

    /// A process has ended, and the system closes its connections. A node that is cut off from it does not hear of
    /// that.
    pub(super) fn close_links(&mut self, machine: usize) {
        let (node, life) = self.life_of(machine);
        for other in 0..self.machines.len() {
            if other != machine
                && !self.network.cut.contains(&(machine, other))
                && let Some(process) = &mut self.machines[other].process
            {
                process.lives.gone(node, life);
            }
        }
    }

    /// A process ends, as it is a copy.
    pub(super) fn be_refused(&mut self, machine: usize) {
        if self.copy.is_none() || machine + 1 != self.machines.len() {
            let reason = format!("node {} is refused, and is no copy", machine + 1);
            return self.fail(Invariant::Recovers, reason);
        }
        self.probes.reach("a copy of a node was refused");
        self.kill(machine);
    }

    fn fail_ailment(&mut self, reason: &str) {
        let reason = format!("{reason}; {}", self.standing());
        self.fail(Invariant::Ailments, reason);
    }
}
