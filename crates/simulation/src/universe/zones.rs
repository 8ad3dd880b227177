//! Zones: whole ones are lost and return, nodes are carried from one to another, and others take the places of nodes
//! that stay away for long. At rest no zone that could do with fewer holds two copies of a group.

use std::collections::{BTreeMap, BTreeSet};

use group::ids::GroupId;
use stdx::{Levels, Prng};

use super::{Universe, What, say};
use crate::invariants::Invariant;
use crate::{Canary, Plan, SECOND};

/// How long a zone that is lost stays away, at least and beyond that.
const ZONE_AWAY_MIN: u64 = 2 * SECOND;
const ZONE_AWAY_MORE: u64 = 8 * SECOND;

/// Seconds after which nodes are replaced, at most.
const REPLACE_AFTER_MAX: u64 = 3;

/// Nodes beyond which groups live on some of them only.
const REPLICAS: usize = 3;

/// The zones of a universe.
#[derive(Debug)]
pub(crate) struct Zones {
    /// How many there are; 0: nobody has named any.
    count: u64,
    /// Of each machine.
    of: Vec<u64>,
    /// `replace-after`, in seconds.
    pub(crate) replace_after: u64,
    /// `balance-rate-bytes`.
    pub(crate) balance_rate: u64,
    /// Mean time between losses of a whole zone; 0 is never.
    pub(super) lost_every: u64,
    prng: Prng,
}

impl Zones {
    /// Draws them. Worlds that look for another defect have none.
    pub(super) fn draw(plan: &Plan, machine_count: usize) -> Self {
        let mut prng = Prng::new(plan.seed ^ 0x7A6F_6E65);
        let is_sought = plan.canary == Some(Canary::ForgottenZones);
        let may_be = plan.nodes > REPLICAS && !plan.calm && !plan.is_orderly() && !plan.levels;
        let has_zones = may_be && (is_sought || plan.canary.is_none() && prng.chance(2, 3));
        let is_replaced = may_be && plan.canary.is_none() && prng.chance(2, 3);
        let count = if has_zones { 2 + prng.below(4).min(3) } else { 0 };
        Self {
            count,
            of: (0..machine_count as u64).map(|machine| machine % count.max(1)).collect(),
            replace_after: if is_replaced { 1 + prng.below(REPLACE_AFTER_MAX) } else { 0 },
            lost_every: if has_zones && !is_sought { 2 * SECOND + prng.below(8 * SECOND) } else { 0 },
            balance_rate: if may_be && prng.chance(1, 3) { 50_000 + prng.below(500_000) } else { 64 << 20 },
            prng,
        }
    }

    /// True if there are any. They need a level that brought them.
    pub(crate) fn are_there(&self) -> bool {
        self.count > 0
    }

    /// The name of a machine's zone; empty without zones.
    pub(crate) fn name(&self, machine: usize) -> String {
        if self.count == 0 { String::new() } else { format!("z{}", self.of[machine]) }
    }

    /// A machine starts: somebody may have carried it to another zone.
    pub(crate) fn perhaps_carry(&mut self, machine: usize) {
        if self.count > 0 && self.prng.chance(1, 12) {
            self.of[machine] = self.prng.below(self.count);
        }
    }
}

impl Universe {
    /// All machines of a zone die at once, and return after a while.
    pub(super) fn lose_zone(&mut self, machine: usize) {
        let zone = self.zones.of[machine];
        say!(self, "zone {zone} is lost");
        self.probes.reach("a zone was lost");
        let back = self.now + ZONE_AWAY_MIN + self.some(ZONE_AWAY_MORE);
        for other in (0..self.machines.len()).filter(|other| self.zones.of[*other] == zone).collect::<Vec<_>>() {
            if self.machines[other].has_joined {
                if self.prng.chance(1, 2) {
                    self.cut_power(other);
                } else {
                    self.kill(other);
                }
                let when = back + self.some(SECOND);
                self.at(when, What::Boot { machine: other });
            }
        }
    }

    /// The balancer says why it moves something.
    pub(crate) fn note_cause(&mut self, machine: usize, core: u16, line: &str) {
        if line.ends_with("which nobody has heard for replace-after") {
            self.probes.reach("a node that was gone was replaced");
        }
        if line.contains("and balance-split-bytes is") {
            self.probes.reach("the balancer split a group");
            self.check_split(machine, core, line);
        }
        if line.contains(": zone z") {
            self.probes.reach("a copy went to another zone");
        }
    }

    /// The balancer begins a split: where groups split at all, and after all earlier groups are there.
    fn check_split(&mut self, machine: usize, core: u16, line: &str) {
        let number = line.strip_prefix("group ").and_then(|rest| rest.split_once(':')?.0.parse().ok());
        let group: u32 = number.expect("it names the group that is about to split off");
        let host = &self.machines[machine].process.as_ref().expect("it is alive").cores[usize::from(core)];
        let metadata = host.core.groups().find(|group| group.id().0 == 0).expect("its leader decides");
        let level = metadata.state().level();
        let missing = (self.group_count..group).find(|earlier| !self.has_served.contains(earlier));
        if level < Levels::KNOWN.highest {
            self.fail(Invariant::OneSplit, format!("group {group} is to split off at level {level}"));
        } else if let Some(missing) = missing {
            self.fail(
                Invariant::OneSplit,
                format!("group {group} is to split off, and group {missing} is not there yet"),
            );
        }
    }

    /// Why copies are not where zones want them, if the balancer works and has come to rest.
    pub(crate) fn crowded_zone(&self) -> Option<String> {
        let roster = self.roster().filter(|roster| roster.is_balancing() && self.zones.count > 0)?;
        let members = self.members();
        if let Some(machine) = members.iter().find(|machine| {
            let known = roster.get(self.machines[**machine].node).map(|member| member.zone.clone());
            known.is_some_and(|known| known != self.zones.name(**machine))
        }) {
            return Some(format!("node {} is not in zone {} for the others", machine + 1, self.zones.name(*machine)));
        }
        (0..self.groups()).find_map(|group| {
            let holders = self.voters_of(group, roster.placement(GroupId(group)))?;
            let mut copies: BTreeMap<u64, usize> = BTreeMap::new();
            holders.iter().for_each(|machine| *copies.entry(self.zones.of[*machine]).or_default() += 1);
            let most = copies.values().max().copied().unwrap_or(0);
            let free = members.iter().filter(|machine| !holders.contains(machine));
            let here = |machine: &usize| copies.get(&self.zones.of[*machine]).copied().unwrap_or(0);
            let better = free.into_iter().find(|machine| here(machine) + 2 <= most)?;
            Some(format!("group {group} has {copies:?} copies by zone, and node {} could take one", better + 1))
        })
    }

    /// The machines that vote in a group as its leader has it, if it is placed or is the metadata group.
    fn voters_of(&self, group: u32, placement: Option<&BTreeSet<u64>>) -> Option<BTreeSet<usize>> {
        if let Some(nodes) = placement {
            return Some(nodes.iter().map(|node| *node as usize - 1).collect());
        }
        let processes = self.machines.iter().filter_map(|machine| machine.process.as_ref());
        let groups = processes.flat_map(|process| &process.cores).flat_map(|host| host.core.groups());
        let leader = groups.filter(|found| found.id().0 == group && group == 0).find(|found| found.is_leader())?;
        Some(leader.membership().voters.iter().map(|node| *node as usize - 1).collect())
    }
}
