//! When and how often a key was used, in 24 bits, for eviction and OBJECT IDLETIME and FREQ.
//!
//! As in Redis the bits have two readings, by policy. Under LRU they are a clock in seconds that wraps after 194 days.
//! Under LFU they are
//!
//! ```text
//!  23            8 7        0
//! ┌───────────────┬──────────┐
//! │ minute, mod 2¹⁶ │ counter │
//! └───────────────┴──────────┘
//! ```
//!
//! where the counter grows with a probability that falls as it grows (Morris: "Counting large numbers of events in
//! small registers", 1978) and shrinks by one for each period of decay since the minute.
//!
//! Uses are local to a replica: followers serve no reads, so their clocks differ from the leader's, and nothing that is
//! replicated may depend on them. Victims are chosen by the leader and logged as removals.

use std::cell::Cell;

use stdx::Prng;

use crate::{Moment, Tuning};

const CLOCK_MASK: i64 = (1 << 24) - 1;
/// A new key's counter: enough not to be the first victim before it had a chance to be used.
const LFU_INITIAL: u8 = 5;

/// How uses are noted.
#[derive(Debug)]
pub(crate) struct AccessClock {
    lfu: bool,
    lfu_log_factor: u32,
    lfu_decay_minutes: u32,
    /// Local chance; never replicated.
    prng: Cell<u64>,
}

impl AccessClock {
    pub(crate) fn new(tuning: &Tuning, seed: u64) -> Self {
        Self {
            lfu: tuning.policy.counts_uses(),
            lfu_log_factor: tuning.lfu_log_factor,
            lfu_decay_minutes: tuning.lfu_decay_minutes,
            prng: Cell::new(seed),
        }
    }

    /// The clock of a key that is created now.
    #[inline]
    pub(crate) fn fresh(&self, moment: Moment) -> u32 {
        if self.lfu { minute_of(moment) << 8 | u32::from(LFU_INITIAL) } else { second_of(moment) }
    }

    /// The clock of a key that is used now.
    #[inline]
    pub(crate) fn touched(&self, clock: u32, moment: Moment) -> u32 {
        if self.lfu {
            minute_of(moment) << 8 | u32::from(self.incremented(self.decayed(clock, moment)))
        } else {
            second_of(moment)
        }
    }

    /// The clock of a key that is overwritten now: a counter survives, as the key is the same.
    #[inline]
    pub(crate) fn replaced(&self, clock: u32, moment: Moment) -> u32 {
        if self.lfu { clock } else { second_of(moment) }
    }

    /// Seconds since the last use; 0 under LFU.
    pub(crate) fn idle_seconds(&self, clock: u32, moment: Moment) -> u64 {
        if self.lfu { 0 } else { u64::from(second_of(moment).wrapping_sub(clock) & CLOCK_MASK as u32) }
    }

    /// The counter after decay; meaningless under LRU.
    pub(crate) fn frequency(&self, clock: u32, moment: Moment) -> u8 {
        self.decayed(clock, moment)
    }

    /// The greater, the sooner the key may go.
    pub(crate) fn staleness(&self, clock: u32, moment: Moment) -> u64 {
        if self.lfu { u64::from(255 - self.decayed(clock, moment)) } else { self.idle_seconds(clock, moment) }
    }

    /// A clock that has been idle for so long; under LFU, a fresh one.
    pub(crate) fn with_idle_seconds(&self, seconds: u64, moment: Moment) -> u32 {
        if self.lfu {
            return self.fresh(moment);
        }
        let seconds = seconds.min(CLOCK_MASK as u64) as u32;
        second_of(moment).wrapping_sub(seconds) & CLOCK_MASK as u32
    }

    /// A clock with this counter; under LRU, a fresh one.
    pub(crate) fn with_frequency(&self, counter: u8, moment: Moment) -> u32 {
        if self.lfu { minute_of(moment) << 8 | u32::from(counter) } else { self.fresh(moment) }
    }

    fn decayed(&self, clock: u32, moment: Moment) -> u8 {
        let minutes = minute_of(moment).wrapping_sub(clock >> 8) & 0xFFFF;
        let periods = minutes.checked_div(self.lfu_decay_minutes).unwrap_or(0);
        (clock as u8).saturating_sub(u8::try_from(periods).unwrap_or(u8::MAX))
    }

    fn incremented(&self, counter: u8) -> u8 {
        if counter == u8::MAX {
            return counter;
        }
        let base = u64::from(counter.saturating_sub(LFU_INITIAL));
        let odds = base * u64::from(self.lfu_log_factor) + 1;
        let mut prng = Prng::new(self.prng.get());
        let grows = prng.chance(1, odds);
        self.prng.set(prng.draw());
        counter + u8::from(grows)
    }
}

#[inline]
fn second_of(moment: Moment) -> u32 {
    ((moment.unix.0 / 1000) & CLOCK_MASK) as u32
}

#[inline]
fn minute_of(moment: Moment) -> u32 {
    ((moment.unix.0 / 60_000) & 0xFFFF) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;

    fn clock(policy: Policy) -> AccessClock {
        AccessClock::new(&Tuning { policy, ..Tuning::default() }, 1)
    }

    fn at_second(second: i64) -> Moment {
        Moment::at(second * 1000, 0)
    }

    #[test]
    fn idleness_is_counted_in_seconds_across_the_wrap() {
        let clock = clock(Policy::AllkeysLru);
        let used = clock.fresh(at_second((1 << 24) - 3));
        assert_eq!(clock.idle_seconds(used, at_second((1 << 24) - 3)), 0);
        assert_eq!(clock.idle_seconds(used, at_second((1 << 24) + 7)), 10);
        let told = clock.with_idle_seconds(1000, at_second(1_700_000_000));
        assert_eq!(clock.idle_seconds(told, at_second(1_700_000_005)), 1005);
    }

    #[test]
    fn a_counter_loses_one_a_minute_and_never_wraps() {
        let clock = clock(Policy::AllkeysLfu);
        let used = clock.with_frequency(10, at_second(0));
        let counters = [0, 59, 60, 540, 600, 60_000].map(|second| clock.frequency(used, at_second(second)));
        assert_eq!(counters, [10, 10, 9, 1, 0, 0]);
    }

    #[test]
    fn a_counter_grows_with_the_logarithm_of_the_uses() {
        // Redis documents for its default factor, 10: about 10 after 100 hits, 18 after 1,000, 142 after 100,000.
        let clock = clock(Policy::AllkeysLfu);
        let mut used = clock.fresh(at_second(0));
        let mut after = vec![];
        for hit in 1..=100_000 {
            used = clock.touched(used, at_second(0));
            if [100, 1000, 100_000].contains(&hit) {
                after.push(used as u8);
            }
        }
        assert!(
            (7..=14).contains(&after[0]) && (14..=24).contains(&after[1]) && (125..=160).contains(&after[2]),
            "{after:?}"
        );
    }

    #[test]
    fn without_decay_a_counter_stays() {
        let clock =
            AccessClock::new(&Tuning { policy: Policy::VolatileLfu, lfu_decay_minutes: 0, ..Tuning::default() }, 1);
        assert_eq!(clock.frequency(clock.with_frequency(9, at_second(0)), at_second(1 << 20)), 9);
    }
}
