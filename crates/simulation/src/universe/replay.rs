//! What a log does to a group's state is a function that anybody can call: every replica holds what a bare state holds
//! that is given the replica's own checkpoint and its log.

use group::ids::GroupId;
use journal::{Journal, Options};
use state::Beginnings;

use super::Universe;
use super::follower::Follower;
use crate::invariants::Invariant;

impl Universe {
    /// Reads back what the disk of each live machine holds, and replays it. The journals of the processes are not used
    /// any more after this.
    pub(super) fn replay_logs(&mut self) {
        for machine in 0..self.machines.len() {
            if self.machines[machine].process.is_some()
                && let Err(reason) = self.replay_log(machine)
            {
                return self.fail(Invariant::Converged, format!("node {}: {reason}", machine + 1));
            }
        }
    }

    fn replay_log(&mut self, machine: usize) -> Result<(), String> {
        let process = self.machines[machine].process.as_ref().expect("the caller has looked");
        let mut replicas: Vec<(GroupId, u64, u64)> = process
            .cores
            .iter()
            .flat_map(|host| host.core.groups())
            .map(|group| (group.id(), group.applied(), group.digest()))
            .collect();
        // What a group begins with that has split off is what the log of an earlier one makes of it.
        replicas.sort_unstable();
        let mut beginnings = Beginnings::default();
        let disk = self.machines[machine].disk.clone();
        disk.kill(); // the process is as good as dead, and no power cut waits for the operations of this reading
        let identity = *process.journal.identity();
        let (_, recovered) = Journal::open(disk, &Options::new(identity)).map_err(|fault| fault.to_string())?;
        let settings = self.settings();
        for (group, applied, digest) in replicas {
            let found = recovered.groups.get(&group.0).cloned().unwrap_or_default();
            let mut seed = self.read_group(machine, group.0, found, &settings, &identity)?;
            if let Some(born) = seed.born() {
                let Some(split) = beginnings.take(group, born) else {
                    return Err(format!("group {group:?}: no log makes what it began with: {born:?}"));
                };
                seed.beginning = Some(Box::new(split));
                self.probes.reach("a group that split off was replayed from where it did");
            }
            let (mut state, entries) = seed.into_state(identity.group_count);
            let mut follower = Follower::of(&mut state);
            let told = |why| format!("what follows group {} by what it has done: {why}", group.0);
            for entry in entries.iter().take_while(|entry| entry.index <= applied) {
                state.apply(entry, &mut beginnings);
                follower.follow(&mut state).map_err(told)?;
            }
            if state.applied().index < applied {
                continue; // the end of the log is in memory only
            }
            self.probes.reach("a log was replayed without a node");
            if state.digest() != digest {
                return Err(format!(
                    "group {} at index {applied} has digest {digest:x}, and a replay of its log {:x}",
                    group.0,
                    state.digest()
                ));
            }
            follower.compare(&mut state).map_err(told)?;
            if follower.count > 0 {
                self.probes.reach("a replica of another kind followed");
            }
        }
        Ok(())
    }
}
