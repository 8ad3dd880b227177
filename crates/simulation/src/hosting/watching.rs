//! What must hold at every moment of a simulated world, and what it has come to.

use group::ids::{GroupId, NodeId};
use group::{Group, Standing};
use node::roster::Roster;
use stdx::slot::{SLOT_COUNT, Slot};

use crate::Durability;
use crate::invariants::Invariant;
use crate::machine::Machine;
use crate::universe::{Universe, say};

impl Universe {
    /// What checkers want to know while it runs.
    pub(super) fn observe(&mut self, machine: usize, core: u16) {
        let process = self.machines[machine].process.as_ref().expect("it is alive");
        let host = &process.cores[usize::from(core)];
        let samples = self.prng.chance(1, 100);
        let mut failure = None;
        let mut changed = Vec::new();
        let (mut serving, mut led) = (Vec::new(), Vec::new());
        let mut given_up_count = 0;
        let mut leases = 0;
        let has_lost_nothing = self.has_lost_nothing();
        let has_moved = samples && host.core.groups().any(|group| !group.slots().is_even());
        let is_served = |group: &Group| group.id().0 >= self.group_count && group.standing() == Standing::Serving;
        let is_grown = samples && host.core.groups().any(is_served);
        let is_split = samples && host.core.groups().any(|group| group.state().split_groups().next().is_some());
        let replica_read_count = host.core.replica_read_count();
        let mut progress = Vec::new();
        for group in host.core.groups() {
            let id = group.id().0;
            if self.plan.durability != Durability::Always {
                progress.push((id, group.applied()));
            }
            if group.is_leader() {
                led.push(id);
                leases += u64::from(group.has_lease(self.machines[machine].clock.read(self.now).instant));
                if let Some(other) = self.other_lease(machine, id, group.term()).filter(|_| self.rates_were_sound) {
                    let reason = format!(
                        "node {} leads group {id} in term {}, and node {} may still answer reads",
                        machine + 1,
                        group.term(),
                        other.0
                    );
                    failure = Some((Invariant::OneLeader, reason));
                }
                let (term, leader) = self.leading.leaders.get(&id).copied().unwrap_or((0, 0));
                let this = machine as u64 + 1;
                if group.term() == term && leader != this && leader != 0 {
                    let reason = format!("group {id} has two leaders in term {term}: {leader} and {this}");
                    failure = Some((Invariant::OneLeader, reason));
                } else if group.term() > term {
                    if leader != 0 && leader != this {
                        changed.push(id);
                    }
                    self.leading.leaders.insert(id, (group.term(), this));
                }
            }
            if group.standing() == Standing::Serving {
                serving.push((id, group.term(), group.membership().voters.len()));
            }
            if let Some(reason) = memory_beyond_bounds(group) {
                failure = Some((Invariant::MemoryBounded, format!("node {}: group {id}: {reason}", machine + 1)));
            }
            given_up_count += u64::from(samples && group.is_vacant() && group.term() > 0);
            if samples {
                let seen = (group.applied_term(), group.state().keyspace().digest());
                let known = *self.digests.entry((id, group.applied())).or_insert(seen);
                // A lapse that was allowed may have let other entries take the place of lost ones.
                if known != seen && has_lost_nothing {
                    let reason = format!(
                        "group {id} at index {} is {seen:x?} on node {} and was {known:x?} elsewhere",
                        group.applied(),
                        machine + 1
                    );
                    failure = Some((Invariant::Converged, reason));
                }
            }
        }
        let (under_way, under_way_max) = (host.core.under_way_max(), self.faults.window_bytes);
        if under_way > under_way_max {
            let reason =
                format!("{under_way} bytes are under way from a gateway to a group, of at most {under_way_max}");
            failure = Some((Invariant::MemoryBounded, reason));
        }
        for (group, term, voters) in serving {
            if group >= self.group_count {
                self.has_served.insert(group);
            }
            if let Some(reason) = self.lacks_voters(group, term, voters) {
                failure = Some((Invariant::Replicated, reason));
            }
        }
        let life = self.machines[machine].life;
        for (group, applied) in progress {
            self.machines[machine].progress.entry(group).or_default().note(life, applied, self.now);
        }
        self.lies.note_led(machine, &led);
        (0..given_up_count).for_each(|_| self.probes.reach("a node held nothing of a group"));
        for group in changed {
            self.probes.reach("a leader changed");
            *self.leading.changes.entry(group).or_default() += 1;
        }
        if replica_read_count > 0 {
            self.probes.reach("a replica answered a read");
        }
        if has_moved {
            self.probes.reach("a slot moved");
        }
        if samples {
            let phases = self.phases_of(machine);
            self.coverage.see(phases);
        }
        if is_split {
            self.probes.reach("a group split");
        }
        if is_grown {
            self.probes.reach("a founded group served");
        }
        (0..leases).for_each(|_| self.probes.reach("a leader had a lease"));
        if let Some((invariant, failure)) = failure {
            let contents = self.contents();
            say!(self, "{contents}");
            self.fail(invariant, failure);
        }
        self.watch_locks(machine, core);
    }

    /// A node that has a lease on a group at this moment, by its own clock, although another leads in a later term.
    pub(super) fn other_lease(&self, leader: usize, group: u32, term: u64) -> Option<NodeId> {
        let has_lease = |machine: &&Machine| {
            let now = machine.clock.read(self.now).instant;
            let groups = machine.process.iter().flat_map(|process| &process.cores).flat_map(|host| host.core.groups());
            groups.into_iter().any(|other| other.id().0 == group && other.term() < term && other.has_lease(now))
        };
        let others = self.machines.iter().enumerate().filter(|(index, _)| *index != leader).map(|(_, machine)| machine);
        others.into_iter().find(has_lease).map(|machine| machine.node)
    }

    /// What every replica holds, for a report of failure.
    pub(super) fn contents(&self) -> String {
        let mut lines = Vec::new();
        for machine in &self.machines {
            let groups = machine.process.iter().flat_map(|process| &process.cores).flat_map(|host| host.core.groups());
            for group in groups {
                let mut keys = Vec::new();
                group.state().keyspace().for_each(0, group.moment(), |entry| {
                    keys.push(format!("{}={:?}", String::from_utf8_lossy(entry.key()), entry.value()));
                });
                keys.sort();
                lines.push(format!(
                    "node {} group {} index {}: {}",
                    machine.node.0,
                    group.id().0,
                    group.applied(),
                    keys.join(" ")
                ));
            }
        }
        lines.join("\n")
    }

    /// The machines with nodes that belong to the cluster, as the most advanced replica of group 0 has it: at times
    /// nobody leads. The first machines if it has no roster.
    pub(crate) fn members(&self) -> Vec<usize> {
        match self.roster() {
            Some(roster) if !roster.is_empty() => roster.staying().map(|node| node.0 as usize - 1).collect(),
            _ => (0..self.plan.nodes).collect(),
        }
    }

    /// The roster, as the replica of group 0 has it that is furthest.
    pub(crate) fn roster(&self) -> Option<&Roster> {
        let groups = self.machines.iter().filter_map(|machine| machine.process.as_ref());
        let groups = groups.flat_map(|process| &process.cores).flat_map(|host| host.core.groups());
        let replicas = groups.filter(|group| group.id().0 == 0);
        replicas.max_by_key(|group| group.applied()).map(Group::roster)
    }

    /// The groups that the cluster has, as those know it who are furthest: those that have gone left out.
    pub(crate) fn living_groups(&self) -> Vec<u32> {
        let is_gone = |group: &u32| self.roster().is_some_and(|roster| roster.is_gone(GroupId(*group)));
        (0..self.groups()).filter(|group| !is_gone(group)).collect()
    }

    /// True if no group is on its way out.
    pub(crate) fn has_finished_merges(&self) -> bool {
        self.roster().is_none_or(|roster| roster.merging().next().is_none())
    }

    /// True if nothing is left of groups that have gone.
    fn has_buried_gone(&self) -> bool {
        let Some(roster) = self.roster() else { return true };
        let members = self.members();
        let processes = members.iter().filter_map(|machine| self.machines[*machine].process.as_ref());
        let mut groups = processes.flat_map(|process| &process.cores).flat_map(|host| host.core.groups());
        groups.all(|group| group.is_vacant() || !roster.is_gone(group.id()))
    }

    /// How many groups the cluster has ever had, as those know it who are furthest.
    pub(crate) fn groups(&self) -> u32 {
        self.roster().map_or(self.group_count, |roster| roster.group_count(self.group_count))
    }

    /// The smallest number of nodes that are a quorum of some group, as those know it who are furthest.
    pub(crate) fn quorum_min(&self) -> usize {
        if !self.plan.changes && self.plan.nodes <= self.replica_count {
            return self.plan.nodes / 2 + 1;
        }
        let groups = self.machines.iter().filter_map(|machine| machine.process.as_ref());
        let groups: Vec<_> = groups.flat_map(|process| &process.cores).flat_map(|host| host.core.groups()).collect();
        let quorum = |number: u32| {
            let replicas = groups.iter().filter(|group| group.id().0 == number);
            let furthest = replicas.max_by_key(|group| group.applied())?;
            Some(furthest.membership().voters.len() / 2 + 1)
        };
        (0..self.groups()).filter_map(quorum).min().unwrap_or(1)
    }

    /// What a leader that serves must not find: fewer voters than its group has had, although no node has left.
    pub(super) fn lacks_voters(&mut self, group: u32, term: u64, voters: usize) -> Option<String> {
        if self.plan.changes || self.machines.iter().any(|machine| machine.is_lost) {
            return None;
        }
        let wanted = self.voters_max(self.plan.nodes);
        let since = self.leading.whole_since.entry(group).or_insert(u64::MAX);
        if voters >= wanted {
            *since = term.min(*since);
        }
        let lacks = voters < wanted && term >= *since;
        lacks.then(|| format!("group {group} has {voters} voters in term {term}, and has had {wanted}"))
    }

    /// No node is on its way out, and every one that has joined knows it.
    pub(crate) fn has_finished_changes(&self) -> bool {
        let groups = self.machines.iter().filter_map(|machine| machine.process.as_ref());
        let mut groups = groups.flat_map(|process| &process.cores).flat_map(|host| host.core.groups());
        let leader = groups.find(|group| group.id().0 == 0 && group.is_leader());
        !self.plan.changes
            || leader.is_some_and(|leader| {
                let roster = leader.roster();
                let joined = self.machines.iter().filter(|machine| machine.has_joined);
                roster.present().count() == roster.staying().count()
                    && joined.into_iter().all(|machine| roster.get(machine.node).is_some())
            })
    }

    /// Every group has a leader, and all its replicas have applied the same and hold the same.
    pub(crate) fn has_converged(&self) -> bool {
        // This is asked after every step, and a digest reads all that a replica holds: so they are taken only when
        // nothing else is amiss in any group.
        let groups: Option<Vec<Vec<&Group>>> =
            self.living_groups().into_iter().map(|group| self.replicas_of_one_length(group)).collect();
        groups.filter(|_| self.has_buried_gone()).is_some_and(|groups| {
            groups.iter().all(|replicas| {
                let digest = replicas[0].digest();
                replicas[1..].iter().all(|replica| replica.digest() == digest)
            })
        })
    }

    /// A core that believes of a slot that another group holds it than the one that does, if there is one.
    pub(crate) fn lost_in_slots(&self) -> Option<String> {
        let living = self.living_groups();
        let processes =
            || self.machines.iter().filter_map(|machine| Some((machine, machine.process.as_ref()?.cores.as_slice())));
        let mut holders = vec![None; SLOT_COUNT];
        for host in processes().flat_map(|(_, cores)| cores) {
            for group in host.core.groups().filter(|group| group.is_leader() && living.contains(&group.id().0)) {
                let held = (0..SLOT_COUNT as u16).filter(|slot| group.slots().group_of_slot(Slot(*slot)) == group.id());
                held.for_each(|slot| holders[usize::from(slot)] = Some(group.id()));
            }
        }
        let members = self.members();
        let members = members.into_iter().map(|index| &self.machines[index]);
        members.filter_map(|machine| Some((machine, machine.process.as_ref()?))).find_map(|(machine, process)| {
            process.cores.iter().enumerate().find_map(|(core, host)| {
                let known = host.core.known_slots();
                let wrong = |slot: &u16| {
                    holders[usize::from(*slot)].is_some_and(|holder| known.group_of_slot(Slot(*slot)) != holder)
                };
                let slot = (0..SLOT_COUNT as u16).find(wrong)?;
                let holder = holders[usize::from(slot)].expect("it is known to be held");
                Some(format!(
                    "core {core} of node {} believes slot {slot} in group {}, and group {} holds it",
                    machine.node.0,
                    known.group_of_slot(Slot(slot)).0,
                    holder.0
                ))
            })
        })
    }

    /// The replicas of a group, if they are where they belong, one leads, and all have applied as much.
    pub(crate) fn replicas_of_one_length(&self, group: u32) -> Option<Vec<&Group>> {
        let members = self.members();
        let voters = self.voters_max(members.len());
        let mut replicas = Vec::new();
        for machine in members.iter().map(|index| &self.machines[*index]) {
            let groups = machine.process.as_ref()?.cores.iter().flat_map(|host| host.core.groups());
            replicas.extend(groups.filter(|found| found.id().0 == group));
        }
        // The nodes that should hold it do, and nobody else.
        let placement = self.roster().and_then(|roster| roster.placement(GroupId(group)));
        let is_placed =
            |index: &usize| placement.as_ref().is_none_or(|nodes| nodes.contains(&self.machines[*index].node.0));
        let holders = members.iter().filter(|index| is_placed(index)).count();
        replicas.retain(|replica| !replica.is_vacant());
        let is_well = replicas.len() == holders
            && replicas.iter().any(|replica| replica.is_leader())
            && replicas.iter().all(|replica| replica.membership().voters.len() == voters)
            && replicas.iter().all(|replica| replica.membership() == replicas[0].membership())
            && replicas.iter().all(|replica| replica.applied() == replicas[0].applied());
        is_well.then_some(replicas)
    }

    /// How many voters a group has among so many members.
    pub(crate) fn voters_max(&self, members: usize) -> usize {
        members.min(self.replica_count)
    }

    /// Every group has a leader that serves.
    pub(crate) fn is_led(&self) -> bool {
        let members = self.members();
        let processes = members.iter().filter_map(|machine| self.machines[*machine].process.as_ref());
        let groups: Vec<_> = processes.flat_map(|process| &process.cores).flat_map(|host| host.core.groups()).collect();
        let leads = |group: &Group| group.is_leader() && group.standing() == Standing::Serving;
        self.living_groups().into_iter().all(|number| groups.iter().any(|group| group.id().0 == number && leads(group)))
    }

    /// True if nothing that anybody asked for is under way: no gateway waits for a group or drives a transaction, none
    /// holds a lock, is prepared or waits for others. A node that was removed hears of no end any more.
    pub(crate) fn is_settled(&self) -> bool {
        let members = self.members();
        let processes = members.iter().filter_map(|machine| self.machines[*machine].process.as_ref());
        processes.flat_map(|process| &process.cores).all(|host| {
            host.core.unfinished_count() == 0
                && host.core.groups().all(|group| group.lock_count() == 0 && group.is_idle())
        })
    }

    /// Who is where, for a report of failure.
    pub(crate) fn standing(&self) -> String {
        let mut lines = Vec::new();
        for machine in &self.machines {
            let Some(process) = &machine.process else {
                lines.push(format!("node {} is down", machine.node.0));
                continue;
            };
            let unfinished: usize = process.cores.iter().map(|host| host.core.unfinished_count()).sum();
            if unfinished > 0 {
                lines.push(format!("node {} waits for {unfinished} answers", machine.node.0));
            }
            for group in process.cores.iter().flat_map(|host| host.core.groups()) {
                lines.push(format!(
                    "node {} group {} {} term {} applied {} digest {:x} locks {} prepared {}{}",
                    machine.node.0,
                    group.id().0,
                    match () {
                        () if group.is_leader() => "leads",
                        () if group.is_vacant() => "holds nothing",
                        () => "follows",
                    },
                    group.term(),
                    group.applied(),
                    group.state().keyspace().digest(),
                    group.lock_count(),
                    group.prepared_count(),
                    if group.is_idle() { "" } else { " busy" }
                ));
            }
        }
        lines.join("; ")
    }
}

/// What of a group's memory is beyond its bound when a turn is over.
pub(super) fn memory_beyond_bounds(group: &Group) -> Option<String> {
    let window = group.window_bytes();
    if window > group::limits::WINDOW_BYTES_MAX {
        return Some(format!(
            "{window} bytes are proposed and not applied, of at most {}",
            group::limits::WINDOW_BYTES_MAX
        ));
    }
    // One that has been loaded in this turn, when what it begins with came, has not been told its bound yet.
    let (log, log_max) = (group.applied_log_bytes(), group.log_bytes_max().min(group::limits::LOG_BYTES_MAX));
    (log > log_max).then(|| format!("{log} bytes of applied log are in memory, of at most {log_max}"))
}
