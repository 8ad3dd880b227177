//! All nodes are stopped, and started again at other addresses: nothing that they remember of one another leads
//! anywhere. An operator shows them where others are, as `--join` does, and they must become one cluster again.

use group::ids::NodeId;
use stdx::Prng;

use super::{Universe, What, say};
use crate::machine::Inbound;
use crate::{Durability, MILLISECOND, SECOND};

/// Chance of that, apart from all other chance. The other worlds are what they would be without.
const ADDRESSES_SEED: u64 = 0x61_6464_7265_7373;

/// Addresses of machines of one generation lie below those of the next.
const GENERATION: usize = 1_000;

/// A machine that is none: nobody answers at that address.
const NOWHERE: usize = usize::MAX;

/// A node that is not linked to all looks again where it was shown after so long.
const LOOK_EVERY: u64 = 5 * SECOND;

/// What each node is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shown {
    /// One other node, by which all hang together.
    Next,
    /// The same node, which is shown nobody.
    One,
    /// All that are there.
    All,
}

impl Universe {
    /// The address of a machine.
    pub(crate) fn address_of(&self, machine: usize) -> String {
        format!("machine:{}", machine + 1 + GENERATION * self.network.generation)
    }

    /// The machine at an address; `None` if it is none of a machine.
    pub(crate) fn machine_at(&self, address: &str) -> Option<usize> {
        let number = address.strip_prefix("machine:")?.parse::<usize>().ok()?.checked_sub(1)?;
        let is_of_now = number / GENERATION == self.network.generation;
        Some(if is_of_now { number % GENERATION } else { NOWHERE })
    }

    /// Where a node is looked for of which nothing is known.
    pub(crate) fn machine_of_stranger(&self, node: NodeId) -> usize {
        if self.network.generation == 0 { node.0 as usize - 1 } else { NOWHERE }
    }

    /// In one world in three all addresses change, when nothing else goes wrong any more.
    pub(super) fn perhaps_readdress(&mut self) {
        let plan = &self.plan;
        // Who joins or leaves meanwhile may not find the others: see decision 0069.
        let is_usual = plan.nodes > 1
            && !plan.calm
            && !plan.changes
            && !plan.is_orderly()
            && !plan.levels
            && plan.canary.is_none();
        let mut prng = Prng::new(plan.seed ^ ADDRESSES_SEED);
        if !is_usual || plan.durability != Durability::Always || !prng.chance(1, 3) {
            return;
        }
        let shown = [Shown::Next, Shown::One, Shown::All][prng.below(3) as usize];
        say!(self, "all addresses change; nodes are shown: {shown:?}");
        self.probes.reach("all addresses changed");
        self.network.generation += 1;
        for machine in 0..self.machines.len() {
            if self.machines[machine].process.is_some() {
                self.kill(machine);
                self.at(self.now + prng.below(3 * SECOND), What::Boot { machine });
            }
        }
        self.at(self.now + SECOND, What::Shows(shown));
    }

    /// Nodes look where they were shown.
    pub(super) fn show(&mut self, shown: Shown) {
        self.at(self.now + LOOK_EVERY, What::Shows(shown));
        let runs = |machine: &usize| self.machines[*machine].process.is_some();
        let members: Vec<usize> = self.members().into_iter().filter(runs).collect();
        let runs = |(index, machine): (usize, &crate::machine::Machine)| machine.process.is_some().then_some(index);
        let askers: Vec<usize> = self.machines.iter().enumerate().filter_map(runs).collect();
        for asker in askers {
            let next = members.iter().find(|member| **member > asker).or(members.first());
            let asked: Vec<usize> = match shown {
                Shown::Next => next.copied().into_iter().collect(),
                Shown::One => members.first().copied().into_iter().collect(),
                Shown::All => members.clone(),
            };
            for other in asked.into_iter().filter(|other| *other != asker) {
                let (node, address) = (self.machines[other].node, self.address_of(other));
                let (life, when) = (self.machines[asker].life, self.now + self.some(50 * MILLISECOND));
                let inbound = Inbound::Found(node, address);
                self.at(when, What::Arrive { machine: asker, life, core: 0, inbound });
            }
        }
    }
}
