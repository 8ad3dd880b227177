//! Versions side by side: nodes run one of two programs, change it when they start, and somebody raises the level.

use journal::Fault;
use stdx::{Level, Levels};

use super::{Universe, What, say};
use crate::invariants::Invariant;
use crate::machine::Inbound;
use crate::{MILLISECOND, SECOND};

/// How often an operator asks for a higher level, in peace.
const UPGRADE_INTERVAL: u64 = SECOND;

/// Who has run for so long has told everybody what it knows.
const KNOWN_AFTER: u64 = 3 * SECOND;

impl Universe {
    /// Somebody installs another version before a node starts, perhaps. In peace all nodes get the newer one.
    pub(crate) fn install(&mut self, machine: usize) {
        if !self.plan.levels {
            return;
        }
        let is_newer = self.peace_since.is_some() || self.prng.chance(1, 2);
        let levels = if is_newer { Levels::KNOWN } else { Levels::FIRST };
        let before = std::mem::replace(&mut self.machines[machine].levels, levels);
        if self.machines[machine].life > 0 && before != levels {
            self.probes.reach(if is_newer { "a node was upgraded" } else { "a node went back to the older version" });
        }
        say!(self, "node {} runs a version that knows {levels}", machine + 1);
    }

    /// The older version has found a directory of a level that it does not know: the newer one is brought back.
    pub(crate) fn refuse_level(&mut self, machine: usize, fault: &Fault) {
        say!(self, "node {} does not start: {fault}", machine + 1);
        if self.machines[machine].levels == Levels::KNOWN {
            return self.fail(Invariant::Recovers, format!("node {} cannot start: {fault}", machine + 1));
        }
        self.probes.reach("a start was refused because of the level");
        self.machines[machine].levels = Levels::KNOWN;
        self.boot_same(machine);
    }

    /// True if nothing in the logs of either of two machines is unknown to the other: otherwise there is no link.
    pub(crate) fn suit(&self, one: usize, other: usize) -> bool {
        let floor = |machine: usize| self.machines[machine].process.as_ref().map_or(Level::FIRST, |found| found.floor);
        self.machines[one].levels.contains(floor(other)) && self.machines[other].levels.contains(floor(one))
    }

    /// A process is about to say something to another machine. False if there is no link, as one of both does not know
    /// what the other has; a new link tells which levels are known there.
    pub(crate) fn link(&mut self, from: usize, to: usize) -> bool {
        if !self.suit(from, to) {
            self.probes.reach("a node was not linked because of the level");
            return false;
        }
        let other = &self.machines[to];
        let (node, levels, other_life, is_there) = (other.node, other.levels, other.life, other.process.is_some());
        let life = self.machines[from].life;
        let Some(process) = self.machines[from].process.as_mut().filter(|_| is_there) else { return true };
        if process.linked.insert(to, other_life) != Some(other_life) {
            for core in 0..process.cores.len() as u16 {
                let inbound = Inbound::Reachable(node, levels);
                self.at(self.now, What::Arrive { machine: from, life, core, inbound });
            }
        }
        true
    }

    /// Something of a level is about to be written to a log of a machine. False if its process has ended of that.
    pub(crate) fn raise_floor(&mut self, machine: usize, level: Level) {
        let disk = self.machines[machine].disk.clone();
        let result = journal::raise_level(&disk, level);
        if let Err(fault) = result {
            say!(self, "node {} cannot write down its level: {fault}", machine + 1);
            if disk.is_dark() {
                self.cut_power(machine);
            } else {
                self.kill(machine);
            }
            let when = self.now + 100 * MILLISECOND + self.some(SECOND);
            return self.at(when, What::Boot { machine });
        }
        let is_first =
            !self.machines.iter().filter_map(|other| other.process.as_ref()).any(|other| other.floor >= level);
        if is_first {
            self.probes.reach("the level was raised");
            self.check_rise(machine, level);
        }
        self.machines[machine].process.as_mut().expect("it is alive").floor = level;
    }

    /// Anyone who raises a level must have heard of all nodes that they know it.
    fn check_rise(&mut self, leader: usize, level: Level) {
        let then = self.now.saturating_sub(KNOWN_AFTER);
        let is_awake = |machine: &crate::machine::Machine| machine.paused_until < then;
        let is_ignored = |machine: &&crate::machine::Machine| {
            machine.process.is_some() && machine.started < then && is_awake(machine) && !machine.levels.contains(level)
        };
        let found = self.machines.iter().find(is_ignored).map(|machine| machine.node);
        if let Some(node) = found.filter(|_| is_awake(&self.machines[leader])) {
            let reason = format!(
                "level {level} was raised, and node {}, which has been there for long, does not know it",
                node.0
            );
            self.fail(Invariant::Recovers, reason);
        }
    }

    /// In peace all nodes are upgraded, and then the level is raised.
    pub(super) fn upgrade_all(&mut self) {
        for machine in 0..self.machines.len() {
            if self.machines[machine].process.is_some() && self.machines[machine].levels != Levels::KNOWN {
                self.kill(machine);
                self.at(self.now, What::Boot { machine });
            }
        }
        self.at(self.now + UPGRADE_INTERVAL, What::OperatorUpgrades);
    }

    pub(super) fn operator_upgrades(&mut self) {
        if self.is_risen() {
            return;
        }
        let asked = self.some(self.machines.len() as u64) as usize;
        self.tell_as_operator(asked, b"HOLDFAST UPGRADE\r\n".to_vec());
        self.at(self.now + UPGRADE_INTERVAL, What::OperatorUpgrades);
    }

    /// Every replica of every group is at the highest level.
    pub(super) fn is_risen(&self) -> bool {
        let members = self.members();
        let processes = members.iter().filter_map(|machine| self.machines[*machine].process.as_ref());
        let mut groups = processes.flat_map(|process| &process.cores).flat_map(|host| host.core.groups());
        groups.all(|group| group.is_vacant() || group.state().level() == Levels::KNOWN.highest)
    }
}
