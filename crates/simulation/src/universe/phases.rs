//! In which phases a node is when a fault strikes.

use group::{Group, Standing};

use super::Universe;
use crate::MILLISECOND;
use crate::coverage::{Fault, Phase, Phases};

/// What a node did for another one so lately is still under way: a chunk is being sent, an answer awaited.
const UNDER_WAY: u64 = 50 * MILLISECOND;

impl Universe {
    /// A fault strikes a machine, if a process runs there.
    pub(crate) fn meet(&mut self, fault: Fault, machine: usize) {
        if self.machines[machine].process.is_some() {
            let phases = self.phases_of(machine);
            self.coverage.meet(fault, phases);
        }
    }

    /// A fault strikes between two machines.
    pub(super) fn meet_pair(&mut self, fault: Fault, machine: usize, other: usize) {
        let phases = self.phases_of(machine).union(self.phases_of(other));
        self.coverage.meet(fault, phases);
    }

    /// A fault strikes all machines, or somebody asks for something of the cluster.
    pub(crate) fn meet_all(&mut self, fault: Fault) {
        let phases = (0..self.machines.len()).map(|machine| self.phases_of(machine));
        let phases = phases.fold(Phases::default(), Phases::union);
        self.coverage.meet(fault, phases);
    }

    /// In which phases a machine is.
    pub(crate) fn phases_of(&self, machine: usize) -> Phases {
        let mut phases = Phases::default();
        let state = &self.machines[machine];
        let is_lately = |at: Option<u64>| at.is_some_and(|at| self.now - at <= UNDER_WAY);
        phases.note(Phase::DiskFull, state.disk.is_full());
        phases.note(Phase::Cut, self.network.cut.iter().any(|(from, to)| *from == machine || *to == machine));
        let is_down = |(other, state): (usize, &crate::machine::Machine)| {
            other != machine && state.has_joined && !state.is_lost && state.process.is_none()
        };
        phases.note(Phase::OtherDown, self.machines.iter().enumerate().any(is_down));
        let Some(process) = &state.process else { return phases };
        phases.note(Phase::CheckpointWritten, !process.checkpoints.is_empty());
        phases.note(Phase::CheckpointGiven, is_lately(process.gave_chunk_at));
        phases.note(Phase::LogRead, is_lately(process.read_log_at));
        for host in &process.cores {
            phases.note(Phase::Recovery, !host.core.is_loaded());
            phases.note(Phase::Doubt, host.core.is_in_doubt());
            phases.note(Phase::DiskBehind, host.is_held_up);
            phases.note(Phase::WindowFull, host.core.has_stalled());
            for group in host.core.groups() {
                self.note_group(group, &mut phases);
            }
        }
        phases
    }

    fn note_group(&self, group: &Group, phases: &mut Phases) {
        if group.id().0 == 0 {
            let roster = group.roster();
            phases.note(Phase::Removal, roster.present().count() > roster.staying().count());
            let founded = self.group_count..roster.group_count(self.group_count);
            phases.note(Phase::Founding, founded.into_iter().any(|group| !self.has_served.contains(&group)));
        }
        let standing = group.standing();
        phases.note(Phase::Election, standing == Standing::Leaderless && !group.is_vacant());
        phases.note(Phase::Steps, group.has_slices());
        if group.is_leader() {
            phases.note(Phase::Leads, standing == Standing::Serving);
            phases.note(Phase::HandOver, group.is_handing_over());
            phases.note(Phase::Locked, group.lock_count() > 0);
            phases.note(Phase::Reserved, group.reservations().next().is_some());
            phases.note(Phase::Prepared, group.prepared_count() > 0);
            phases.note(Phase::Learner, !group.membership().learners.is_empty());
            phases.note(Phase::SlotMoves, group.is_moving_slots());
        }
    }
}
