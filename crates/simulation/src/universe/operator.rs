//! What an operator does: lets nodes join and go, moves slots, and lets a node go that cannot go on.

use group::Group;
use group::ids::NodeId;
use stdx::slot::{SLOT_COUNT, Slot, slot_of};

use super::{Universe, What};
use crate::SECOND;
use crate::client::{ACCOUNT_COUNT, LIST_COUNT, REGISTER_COUNT, account_name, list_name, register_name};
use crate::coverage::Fault;

/// How often an operator looks after a node that is lost.
const LOOK_INTERVAL: u64 = 2 * SECOND;

/// Peace after which an operator believes that no node is going to come back who is not there.
const TRUST_AFTER: u64 = 10 * SECOND;

/// Most groups that come into being in one universe.
const GROUPS_FOUNDED_MAX: u32 = 4;

impl Universe {
    /// A node joins, or an operator asks a node to let another one go.
    pub(super) fn change_members(&mut self, machine: usize) {
        let spare = self.machines.iter().position(|machine| !machine.has_joined);
        if let Some(spare) = spare.filter(|_| self.prng.chance(1, 2)) {
            self.probes.reach("a node joined");
            self.meet_all(Fault::Join);
            self.at(self.now, What::Boot { machine: spare });
            return;
        }
        self.meet_all(Fault::Remove);
        let asked = self.some(self.machines.len() as u64) as usize;
        let words = format!("HOLDFAST REMOVE {}\r\n", machine + 1);
        self.tell_as_operator(asked, words.into_bytes());
    }

    /// An operator lets another group hold the slot of a key that clients use, sometimes with many others.
    pub(super) fn move_slots(&mut self, asked: usize) {
        self.meet_all(Fault::Move);
        let name = match self.prng.below(4) {
            0 => account_name(self.prng.below(ACCOUNT_COUNT)),
            1 => list_name(self.prng.below(LIST_COUNT) as u32),
            _ => register_name(self.prng.below(REGISTER_COUNT)),
        };
        let slot = slot_of(name.as_bytes()).0;
        let behind = if self.prng.chance(1, 20) { self.prng.below(2_000) as u16 } else { 0 };
        let last = (slot + behind).min(SLOT_COUNT as u16 - 1);
        let group = self.prng.below(u64::from(self.groups()));
        let words = format!("HOLDFAST MOVE {slot} {last} {group}\r\n");
        self.tell_as_operator(asked, words.into_bytes());
    }

    /// An operator lets a group live on other nodes, and switches the balancer off or on.
    pub(super) fn place_group(&mut self, asked: usize) {
        self.meet_all(Fault::Place);
        if self.prng.chance(1, 6) {
            let switch = if self.prng.chance(2, 3) { "ON" } else { "OFF" };
            return self.tell_as_operator(asked, format!("HOLDFAST BALANCE {switch}\r\n").into_bytes());
        }
        let mut nodes: Vec<u64> = self.members().into_iter().map(|machine| machine as u64 + 1).collect();
        let wanted = self.voters_max(nodes.len());
        while nodes.len() > wanted {
            let left_out = self.some(nodes.len() as u64) as usize;
            nodes.remove(left_out);
        }
        let names: Vec<String> = nodes.iter().map(u64::to_string).collect();
        let group = self.some(u64::from(self.groups()));
        let words = format!("HOLDFAST PLACE {group} {}\r\n", names.join(" "));
        self.tell_as_operator(asked, words.into_bytes());
    }

    /// An operator wants more groups. The balancer gives each its share of the slots. Or one must split.
    pub(super) fn found_groups(&mut self, asked: usize) {
        self.meet_all(Fault::Growth);
        if self.faults.splits && self.prng.chance(if self.faults.merges { 1 } else { 2 }, 3) {
            return self.split_group(asked);
        }
        if self.faults.merges && self.prng.chance(1, 2) {
            return self.merge_groups(asked);
        }
        let more = 1 + self.prng.below(2) as u32;
        let count = (self.groups() + more).min(self.group_count + GROUPS_FOUNDED_MAX);
        self.tell_as_operator(asked, format!("HOLDFAST GROUPS {count}\r\n").into_bytes());
    }

    /// A group must go, and another one gets its slots.
    fn merge_groups(&mut self, asked: usize) {
        let living = self.living_groups();
        let group = living[self.some(living.len() as u64) as usize];
        let into = living[self.some(living.len() as u64) as usize];
        self.tell_as_operator(asked, format!("HOLDFAST MERGE {group} {into}\r\n").into_bytes());
    }

    /// A group must split at the slot of a key that clients use.
    fn split_group(&mut self, asked: usize) {
        let name = match self.prng.below(4) {
            0 => account_name(self.prng.below(ACCOUNT_COUNT)),
            1 => list_name(self.prng.below(LIST_COUNT) as u32),
            _ => register_name(self.prng.below(REGISTER_COUNT)),
        };
        let (slot, behind) = (slot_of(name.as_bytes()), self.prng.below(3_000) as u16);
        if self.groups() >= self.group_count + GROUPS_FOUNDED_MAX {
            return;
        }
        let processes = self.machines.iter().filter_map(|machine| machine.process.as_ref());
        let mut groups = processes.flat_map(|process| &process.cores).flat_map(|host| host.core.groups());
        let holds = |group: &&Group| group.is_leader() && group.slots().group_of_slot(slot) == group.id();
        let Some(holder) = groups.find(holds) else { return };
        let is_held = |slot: &u16| holder.slots().group_of_slot(Slot(*slot)) == holder.id();
        let last = (slot.0..=(slot.0 + behind).min(SLOT_COUNT as u16 - 1)).take_while(is_held).last();
        let words = format!("HOLDFAST SPLIT {} {}-{}\r\n", holder.id().0, slot.0, last.unwrap_or(slot.0));
        drop(groups);
        self.tell_as_operator(asked, words.into_bytes());
    }

    /// A process has ended because all who vote have lost what it holds. It says what to do: let it go.
    pub(super) fn lose_overtaken(&mut self, machine: usize) {
        self.probes.reach("a node held what all who vote had lost");
        self.kill(machine);
        self.give_up(machine);
    }

    /// A node cannot go on: an operator lets it go.
    pub(crate) fn give_up(&mut self, machine: usize) {
        self.machines[machine].is_lost = true;
        self.at(self.now + LOOK_INTERVAL, What::OperatorLooks { machine });
    }

    /// Asks the others to let a lost node go, for as long as it is a member, also if it is known to leave: nodes that
    /// have just been started may not know yet that it is one. If all who vote are in doubt and the lost node was one
    /// of them, somebody must first say that those who are left can be trusted.
    pub(super) fn operator_looks(&mut self, machine: usize) {
        self.at(self.now + LOOK_INTERVAL, What::OperatorLooks { machine });
        let node = NodeId(machine as u64 + 1);
        let is_member = self.members().contains(&machine);
        let still_leaves = self.roster().is_some_and(|roster| roster.present().any(|(present, _)| present == node));
        if !is_member && !still_leaves {
            return;
        }
        let others: Vec<usize> = (0..self.machines.len()).filter(|other| *other != machine).collect();
        if self.peace_since.is_some_and(|since| self.now - since >= TRUST_AFTER) {
            others.iter().for_each(|other| self.tell_as_operator(*other, b"HOLDFAST TRUST\r\n".to_vec()));
        }
        if is_member {
            let asked = others[self.some(others.len() as u64) as usize];
            self.tell_as_operator(asked, format!("HOLDFAST REMOVE {}\r\n", machine + 1).into_bytes());
        }
    }
}
