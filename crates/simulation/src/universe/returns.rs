//! A node dies and returns, again and again: leaders go to others, come back, and stay, and nobody but the clients of
//! the dead node notices.

use std::collections::BTreeMap;

use group::balance::Spreading;
use group::{Group, Standing};

use super::{Universe, say};
use crate::coverage::Fault;
use crate::invariants::Invariant;
use crate::{MILLISECOND, SECOND};

/// How often that happens in one universe.
pub const RETURNS_PER_UNIVERSE: u64 = 10;

/// How long leaders may take to be where they were.
const RETURN_MAX: u64 = 60 * SECOND;

/// The longest that a node is away.
const AWAY_MAX: u64 = 20 * SECOND;

/// How long leaders must stay where they are before the next cycle.
const QUIET: u64 = 12 * SECOND;

impl Universe {
    /// The world has just been made: nodes join, get votes, and leaders are handed over until they are spread.
    pub(super) fn wait_for_layout(&mut self) {
        if !self.live_until(self.now + RETURN_MAX, Self::is_spread) {
            return self.fail_return("a minute after the beginning leaders are not spread");
        }
        self.live_until(self.now + SECOND, |_| false);
    }

    pub(super) fn nodes_return(&mut self) {
        self.live_until(self.now + QUIET, |_| false);
        self.history.errors.clear();
        let layout = self.layout();
        for cycle in 0..RETURNS_PER_UNIVERSE {
            let before = self.leading.changes.clone();
            let victim = self.some(self.machines.len() as u64) as usize;
            say!(self, "cycle {cycle}: node {} goes, {layout:?}", victim + 1);
            self.away = Some(victim);
            if self.prng.chance(1, 2) {
                self.meet(Fault::Kill, victim);
                self.kill(victim);
            } else {
                self.meet(Fault::PowerCut, victim);
                self.cut_power(victim);
            }
            let back = self.now + 50 * MILLISECOND + self.some(AWAY_MAX);
            self.live_until(back, |_| false);
            let returned = self.now;
            self.boot(victim);
            let is_back =
                self.live_until(returned + RETURN_MAX, |this| this.takes_part(victim) && this.layout() == layout);
            if !is_back {
                let now = self.layout();
                return self.fail_return(&format!("leaders were {layout:?}, and a minute after a return are {now:?}"));
            }
            self.returns_ns.push(self.now - returned);
            self.probes.reach("a node returned");
            self.away = None;
            self.live_until(self.now + QUIET, |_| false);
            if self.failure.is_none() && self.layout() != layout {
                let now = self.layout();
                return self.fail_return(&format!("leaders were {layout:?}, did not stay, and are {now:?}"));
            }
            for (group, leader) in layout.iter().enumerate() {
                let group = group as u32;
                let changes_of = |changes: &BTreeMap<u32, u64>| changes.get(&group).copied().unwrap_or(0);
                let changes = changes_of(&self.leading.changes) - changes_of(&before);
                // One away from it, and one back.
                let needed = if *leader == Some(victim) { 2 } else { 0 };
                if changes > needed {
                    let reason =
                        format!("group {group} changed its leader {changes} times, of which {needed} are needed");
                    return self.fail_return(&reason);
                }
            }
            let errors = &self.history.errors;
            if let Some(error) = errors.first() {
                let reason = format!("{} errors for clients of nodes that went on, first: {error}", errors.len());
                return self.fail_return(&reason);
            }
            if self.failure.is_some() {
                return;
            }
        }
    }

    fn fail_return(&mut self, reason: &str) {
        let reason = format!("{reason}; {}", self.standing());
        self.fail(Invariant::Returns, reason);
    }

    /// True if a machine's replicas know who leads.
    fn takes_part(&self, machine: usize) -> bool {
        let cores = self.machines[machine].process.iter().flat_map(|process| &process.cores);
        let groups = cores.flat_map(|host| host.core.groups());
        let knows = |group: &Group| matches!(group.standing(), Standing::Serving | Standing::Follower(_));
        groups.filter(|group| knows(group)).count() == self.groups() as usize
    }

    /// The machine that leads and serves each group, if there is one.
    pub(super) fn layout(&self) -> Vec<Option<usize>> {
        let mut layout = vec![None; self.groups() as usize];
        let mut terms = vec![0; self.groups() as usize];
        for (index, machine) in self.machines.iter().enumerate() {
            let Some(process) = &machine.process else { continue };
            for group in process.cores.iter().flat_map(|host| host.core.groups()) {
                let at = group.id().0 as usize;
                if group.is_leader() && group.term() > terms[at] {
                    terms[at] = group.term();
                    layout[at] = (group.standing() == Standing::Serving).then_some(index);
                }
            }
        }
        layout
    }

    /// Every group has all its members and voters, and the right node leads it.
    fn is_spread(&self) -> bool {
        let voters_max = self.voters_max(self.machines.len());
        let Some(roster) = self.roster() else { return false };
        let has_room = self.machines.len() > voters_max;
        let counts = self
            .machines
            .iter()
            .map(|machine| roster.placements().filter(|(_, nodes)| nodes.contains(&machine.node.0)).count());
        let counts: Vec<usize> = counts.collect();
        if counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0) > 1 {
            return false;
        }
        self.layout().iter().enumerate().all(|(number, leader)| {
            let Some(machine) = leader.map(|leader| &self.machines[leader]) else { return false };
            let mut groups =
                machine.process.iter().flat_map(|process| &process.cores).flat_map(|host| host.core.groups());
            groups.find(|group| group.id().0 as usize == number).is_some_and(|group| {
                let membership = group.membership();
                let voters = &membership.voters;
                let (replicas, group_count) = (self.replica_count, self.groups());
                let spreading = Spreading { roster, replicas, group_count, zones: &[] };
                let leader = spreading.leader_of(group.id(), &voters.iter().copied().collect(), |_| true);
                let is_led = leader == Some(machine.node.0);
                if has_room && number > 0 {
                    let is_there = roster.placement(group.id()).is_some_and(|nodes| voters.iter().eq(nodes));
                    return is_there && membership.learners.is_empty() && is_led;
                }
                let member_count = voters.len() + membership.learners.len();
                voters.len() == voters_max && member_count == self.machines.len() && is_led
            })
        })
    }
}
