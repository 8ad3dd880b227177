//! Times in which a core did not turn, and what its host did meanwhile: the black box of a node.
//!
//! The host finds them, and says how long each was and what it has measured around it. This module judges: from the
//! same readings follows the same cause.

use std::collections::VecDeque;
use std::sync::Arc;

use group::ids::CoreId;
use stdx::UnixMillis;

use crate::limits;

/// Who is to blame for a stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The core computed: what it did is the cause.
    Work,
    /// It was ready to go on, and other threads had the processor.
    Processor,
    /// A hypervisor gave the machine's processors to other machines.
    Stolen,
    /// A signal stopped the process, and another one let it go on.
    Stopped,
    /// Pages of the process were read from a disk.
    Paging,
    /// It waited in a call of the system: for a disk, or a lock of the kernel.
    Blocked,
}

impl Cause {
    /// As commands tell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::Processor => "processor",
            Self::Stolen => "stolen",
            Self::Stopped => "stopped",
            Self::Paging => "paging",
            Self::Blocked => "blocked",
        }
    }
}

/// What the host did around a stall, in microseconds unless told. The window begins before the stall and ends behind
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// Length of the window in which the rest was measured.
    pub window_us: u64,
    /// How long the core's thread ran.
    pub ran_us: u64,
    /// How long it was ready and waited for a processor.
    pub waited_us: u64,
    /// Time that a hypervisor gave to others, of the processor of this machine that lost most.
    pub stolen_us: u64,
    /// How often the process was told to go on (`SIGCONT`), as after a stop.
    pub continue_count: u64,
    /// How often the process waited for a page from a disk.
    pub major_faults: u64,
    /// For how long some thread of the machine waited for a processor, for a disk, for memory (PSI); 0 where the kernel
    /// does not tell.
    pub pressure_us: [u64; 3],
}

/// One time in which a core did not turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// When it ended, by the wall clock.
    pub unix: UnixMillis,
    /// Which core.
    pub core: CoreId,
    /// How long it was.
    pub took_us: u64,
    /// What the core did: a command by its name, `checkpoint`, or the part of the turn.
    pub work: &'static str,
    /// What the host did.
    pub around: Surroundings,
}

impl Stall {
    /// Who is to blame, by what explains half of it at least.
    pub fn cause(&self) -> Cause {
        let Surroundings { window_us, ran_us, waited_us, stolen_us, continue_count, major_faults, .. } = self.around;
        // Of a stall that was longer than the window, the window shows a part.
        let half_us = self.took_us.min(window_us) / 2;
        // A thread that is stopped neither runs nor waits for a processor, whatever happens to processors meanwhile.
        // What it did may have been before and behind a long stall. A short one would disappear in what is around it.
        let around_us = Some(window_us.saturating_sub(self.took_us)).filter(|around_us| *around_us <= self.took_us);
        if continue_count > 0 && (ran_us + waited_us).saturating_sub(around_us.unwrap_or_default()) < half_us {
            return Cause::Stopped;
        }
        // A processor that is stolen looks to its thread like one that is slow: it seems to run.
        if stolen_us >= half_us {
            return Cause::Stolen;
        }
        if waited_us >= half_us {
            return Cause::Processor;
        }
        if ran_us >= half_us {
            return Cause::Work;
        }
        if major_faults > 0 { Cause::Paging } else { Cause::Blocked }
    }
}

/// The latest stalls, the oldest first.
#[derive(Clone, Debug, Default)]
pub struct Stalls {
    latest: VecDeque<Arc<Stall>>,
    /// How many there have been since the start of the process, and how long they were together.
    pub count: u64,
    /// See above.
    pub total_us: u64,
    /// Stalls that nobody had time to look into: they are counted, and no more is known.
    pub missed_count: u64,
}

impl Stalls {
    /// Adds one; the oldest goes if there are too many.
    pub fn note(&mut self, stall: Stall) {
        self.count += 1;
        self.total_us += stall.took_us;
        self.latest.push_back(Arc::new(stall));
        if self.latest.len() > limits::STALL_COUNT_MAX {
            self.latest.pop_front();
        }
    }

    /// The latest, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Stall> {
        self.latest.iter().map(|stall| &**stall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stall(took_us: u64, around: Surroundings) -> Stall {
        Stall { unix: UnixMillis(1), core: CoreId(0), took_us, work: "keys", around }
    }

    #[test]
    fn who_explains_half_of_a_stall_is_its_cause() {
        let calm = Surroundings { window_us: 260_000, ..Surroundings::default() };
        let cases = [
            (Surroundings { ran_us: 9_500, ..calm }, Cause::Work),
            (Surroundings { ran_us: 250_000, waited_us: 6_000, ..calm }, Cause::Processor),
            (Surroundings { ran_us: 9_000, stolen_us: 8_000, ..calm }, Cause::Stolen),
            (Surroundings { ran_us: 3_000, stolen_us: 8_000, continue_count: 1, ..calm }, Cause::Stopped),
            (Surroundings { ran_us: 9_000, continue_count: 1, ..calm }, Cause::Work),
            (Surroundings { ran_us: 3_000, major_faults: 3, ..calm }, Cause::Paging),
            (Surroundings { ran_us: 259_000, major_faults: 3, ..calm }, Cause::Work),
            (Surroundings { ran_us: 1_000, ..calm }, Cause::Blocked),
        ];
        let busy = Surroundings { window_us: 400_000, ran_us: 190_000, continue_count: 1, ..calm };
        assert_eq!(stall(200_000, busy).cause(), Cause::Stopped, "it was busy before and behind it");
        assert_eq!(stall(200_000, Surroundings { ran_us: 310_000, ..busy }).cause(), Cause::Work);
        let short = Surroundings { window_us: 6_000, ran_us: 4_000, ..calm };
        assert_eq!(stall(10_000, short).cause(), Cause::Work, "the window shows a part of it");
        for (around, cause) in cases {
            assert_eq!(stall(10_000, around).cause(), cause, "{around:?}");
        }
    }

    #[test]
    fn no_more_is_kept_than_the_bound_and_all_are_counted() {
        let mut stalls = Stalls::default();
        for took_us in 0..2 * limits::STALL_COUNT_MAX as u64 {
            stalls.note(stall(took_us, Surroundings::default()));
        }
        assert_eq!(stalls.count, 2 * limits::STALL_COUNT_MAX as u64);
        assert_eq!(stalls.iter().count(), limits::STALL_COUNT_MAX);
        assert_eq!(stalls.iter().next().map(|stall| stall.took_us), Some(limits::STALL_COUNT_MAX as u64));
    }
}
