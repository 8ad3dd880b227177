//! Which faults met which states: a fault that never strikes while a transaction is prepared has shown nothing about
//! prepared transactions. A sweep adds up what its universes saw, and names what none of them did.

use crate::Plan;

/// A kind of fault, or something that an operator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Fault {
    /// One node is cut off from all others, in one direction or both.
    CutOff,
    /// Two nodes do not hear each other, and others hear both.
    PairCut,
    /// A process is killed.
    Kill,
    /// One node loses power.
    PowerCut,
    /// One node loses power within its next writes.
    PowerCutInside,
    /// All nodes lose power.
    PowerCutOfAll,
    /// A node dies at a step of a transaction over groups.
    StepCrash,
    /// A bit turns at the end of a log as its process ends.
    Rot,
    /// A process does not run for a while.
    Pause,
    /// Syncs fail for a while.
    SyncFailure,
    /// A disk is full for a while.
    FullDisk,
    /// Syncs of a disk take long for a while.
    SlowDisk,
    /// A clock begins to run at another rate.
    ClockRate,
    /// A link is slow for a while.
    SlowLink,
    /// A wall clock jumps.
    ClockJump,
    /// A client loses its connection.
    Reset,
    /// Somebody starts a copy of a node.
    Copy,
    /// A node joins.
    Join,
    /// An operator removes a node.
    Remove,
    /// An operator moves slots.
    Move,
    /// An operator lets a group live on other nodes, or switches the balancer.
    Place,
    /// An operator asks for more groups.
    Growth,
}

/// A state in which a fault matters in its own way: of the node that is hit, of either of two, or of any node if the
/// fault hits all of them or is an operator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// It leads a group and serves.
    Leads,
    /// It knows no leader of a group that it holds.
    Election,
    /// It hands a group over.
    HandOver,
    /// A group that it leads holds locks of a transaction.
    Locked,
    /// A group that it leads keeps a key for a client that has watched it.
    Reserved,
    /// A group that it leads has prepared a transaction, which is neither committed nor aborted.
    Prepared,
    /// A value of a transaction is written or read in steps.
    Steps,
    /// It writes a checkpoint.
    CheckpointWritten,
    /// It gives a checkpoint to another node.
    CheckpointGiven,
    /// It reads its log for a node that lacks it.
    LogRead,
    /// A group that it leads has learners.
    Learner,
    /// A group that it leads gives a slot away.
    SlotMoves,
    /// A group has been founded, and has not yet served.
    Founding,
    /// A node is being removed.
    Removal,
    /// It has started, and has not yet loaded all groups.
    Recovery,
    /// It may lack the end of its log, and has not yet been told the rest.
    Doubt,
    /// Its disk is full.
    DiskFull,
    /// So much waits for its disk that it reads no clients.
    DiskBehind,
    /// One of its clients waits for a window.
    WindowFull,
    /// It is cut off from another node.
    Cut,
    /// Another node is down.
    OtherDown,
}

impl Fault {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 22] = [
        Self::CutOff,
        Self::PairCut,
        Self::Kill,
        Self::PowerCut,
        Self::PowerCutInside,
        Self::PowerCutOfAll,
        Self::StepCrash,
        Self::Rot,
        Self::Pause,
        Self::SyncFailure,
        Self::FullDisk,
        Self::SlowDisk,
        Self::ClockRate,
        Self::SlowLink,
        Self::ClockJump,
        Self::Reset,
        Self::Copy,
        Self::Join,
        Self::Remove,
        Self::Move,
        Self::Place,
        Self::Growth,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CutOff => "cut-off",
            Self::PairCut => "pair-cut",
            Self::Kill => "kill",
            Self::PowerCut => "power-cut",
            Self::PowerCutInside => "power-cut-in-write",
            Self::PowerCutOfAll => "power-cut-of-all",
            Self::StepCrash => "death-at-step",
            Self::Rot => "bit-rot",
            Self::Pause => "pause",
            Self::SyncFailure => "sync-failure",
            Self::FullDisk => "full-disk",
            Self::SlowDisk => "slow-disk",
            Self::ClockRate => "clock-rate",
            Self::SlowLink => "slow-link",
            Self::ClockJump => "clock-jump",
            Self::Reset => "client-reset",
            Self::Copy => "node-copied",
            Self::Join => "join",
            Self::Remove => "remove",
            Self::Move => "move-slots",
            Self::Place => "place-group",
            Self::Growth => "found-groups",
        }
    }

    /// Whether worlds of a plan know it at all.
    pub const fn is_in(self, plan: &Plan) -> bool {
        if plan.calm {
            return false;
        }
        if plan.returns {
            return matches!(self, Self::Kill | Self::PowerCut);
        }
        if plan.ailments {
            return matches!(self, Self::PairCut | Self::FullDisk | Self::Copy);
        }
        if plan.waits {
            return matches!(
                self,
                Self::CutOff
                    | Self::PairCut
                    | Self::Kill
                    | Self::PowerCut
                    | Self::Pause
                    | Self::FullDisk
                    | Self::SlowDisk
                    | Self::ClockRate
                    | Self::SlowLink
            );
        }
        match self {
            Self::CutOff | Self::PairCut | Self::SlowLink | Self::Rot => plan.nodes > 1,
            Self::Copy => false,
            Self::Join | Self::Remove => plan.changes,
            Self::Move => plan.moves,
            Self::Place => plan.nodes > 3,
            Self::Growth => plan.growth,
            _ => true,
        }
    }
}

impl Phase {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 21] = [
        Self::Leads,
        Self::Election,
        Self::HandOver,
        Self::Locked,
        Self::Reserved,
        Self::Prepared,
        Self::Steps,
        Self::CheckpointWritten,
        Self::CheckpointGiven,
        Self::LogRead,
        Self::Learner,
        Self::SlotMoves,
        Self::Founding,
        Self::Removal,
        Self::Recovery,
        Self::Doubt,
        Self::DiskFull,
        Self::DiskBehind,
        Self::WindowFull,
        Self::Cut,
        Self::OtherDown,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leads => "leader",
            Self::Election => "election",
            Self::HandOver => "hand-over",
            Self::Locked => "locks-held",
            Self::Reserved => "key-reserved",
            Self::Prepared => "transaction-prepared",
            Self::Steps => "value-in-steps",
            Self::CheckpointWritten => "checkpoint-written",
            Self::CheckpointGiven => "checkpoint-given",
            Self::LogRead => "log-read-for-another",
            Self::Learner => "learner",
            Self::SlotMoves => "slot-moves",
            Self::Founding => "group-founded",
            Self::Removal => "removal",
            Self::Recovery => "recovery",
            Self::Doubt => "doubt",
            Self::DiskFull => "disk-full",
            Self::DiskBehind => "disk-behind",
            Self::WindowFull => "window-full",
            Self::Cut => "links-cut",
            Self::OtherDown => "another-down",
        }
    }

    /// Whether worlds of a plan know it at all.
    pub const fn is_in(self, plan: &Plan) -> bool {
        match self {
            Self::SlotMoves => plan.moves || plan.growth,
            Self::Founding => plan.growth,
            Self::Removal => plan.changes,
            Self::Election
            | Self::HandOver
            | Self::CheckpointGiven
            | Self::LogRead
            | Self::Learner
            | Self::Doubt
            | Self::Cut
            | Self::OtherDown => plan.nodes > 1,
            _ => true,
        }
    }
}

/// A set of phases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases(u32);

impl Phases {
    /// Adds one if a condition holds.
    pub fn note(&mut self, phase: Phase, holds: bool) {
        self.0 |= u32::from(holds) << phase as u8;
    }

    /// Those of either.
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether one is among them.
    pub fn contains(self, phase: Phase) -> bool {
        self.0 >> phase as u8 & 1 == 1
    }
}

/// How often each fault struck, and met each phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    struck: [u64; Fault::ALL.len()],
    met: [[u64; Phase::ALL.len()]; Fault::ALL.len()],
    seen: [u64; Phase::ALL.len()],
}

impl Coverage {
    /// A fault strikes in these phases.
    pub fn meet(&mut self, fault: Fault, phases: Phases) {
        self.struck[fault as usize] += 1;
        for phase in Phase::ALL.into_iter().filter(|phase| phases.contains(*phase)) {
            self.met[fault as usize][phase as usize] += 1;
        }
    }

    /// A node is in these phases at a moment that nothing about it has chosen.
    pub fn see(&mut self, phases: Phases) {
        for phase in Phase::ALL.into_iter().filter(|phase| phases.contains(*phase)) {
            self.seen[phase as usize] += 1;
        }
    }

    /// Adds what another universe saw.
    pub fn add(&mut self, other: &Self) {
        let pairs = |all: &mut [u64], more: &[u64]| all.iter_mut().zip(more).for_each(|(sum, count)| *sum += count);
        pairs(&mut self.struck, &other.struck);
        pairs(&mut self.seen, &other.seen);
        for (all, more) in self.met.iter_mut().zip(&other.met) {
            pairs(all, more);
        }
    }

    /// How often a fault struck.
    pub fn struck(&self, fault: Fault) -> u64 {
        self.struck[fault as usize]
    }

    /// How often a fault struck in a phase.
    pub fn met(&self, fault: Fault, phase: Phase) -> u64 {
        self.met[fault as usize][phase as usize]
    }

    /// How often a phase was seen at moments that nothing about it had chosen.
    pub fn seen(&self, phase: Phase) -> u64 {
        self.seen[phase as usize]
    }

    /// Pairs that worlds of a plan may hold.
    pub fn possible(plan: &Plan) -> impl Iterator<Item = (Fault, Phase)> {
        let phases = || Phase::ALL.into_iter().filter(|phase| phase.is_in(plan));
        Fault::ALL
            .into_iter()
            .filter(|fault| fault.is_in(plan))
            .flat_map(move |fault| phases().map(move |phase| (fault, phase)))
    }

    /// Pairs that worlds of a plan may hold, and none of these did.
    pub fn unmet(&self, plan: &Plan) -> impl Iterator<Item = (Fault, Phase)> {
        Self::possible(plan).filter(|(fault, phase)| self.met(*fault, *phase) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places_in_the_lists() {
        assert!(Fault::ALL.iter().enumerate().all(|(place, fault)| *fault as usize == place));
        assert!(Phase::ALL.iter().enumerate().all(|(place, phase)| *phase as usize == place));
    }

    #[test]
    fn what_one_universe_met_is_added_to_what_others_did() {
        let mut phases = Phases::default();
        phases.note(Phase::Prepared, true);
        phases.note(Phase::Doubt, false);
        let (mut one, mut other) = (Coverage::default(), Coverage::default());
        one.meet(Fault::Kill, phases);
        other.meet(Fault::Kill, Phases::default());
        other.see(phases);
        one.add(&other);
        assert_eq!((one.struck(Fault::Kill), one.struck(Fault::Pause)), (2, 0));
        assert_eq!((one.met(Fault::Kill, Phase::Prepared), one.met(Fault::Kill, Phase::Doubt)), (1, 0));
        assert_eq!((one.seen(Phase::Prepared), one.seen(Phase::Doubt)), (1, 0));
    }
}
