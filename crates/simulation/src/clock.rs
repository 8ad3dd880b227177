//! The clocks of one machine: one that only goes forward, at a rate of its own, and one that people set.

use group::ids::Now;
use stdx::{Instant, UnixMillis};

use crate::MILLISECOND;

/// True time 0 on the calendar: a round number nobody depends on.
const CALENDAR_START_MS: i64 = 1_800_000_000_000;

/// A machine's clocks. True time is in nanoseconds since the universe began.
#[derive(Clone, Debug)]
pub struct FalseClock {
    /// Nanoseconds of the monotonic clock for a million of true time.
    rate: u64,
    /// Since when it has run at this rate.
    since: u64,
    /// What the monotonic clock showed then.
    origin: u64,
    /// How far the wall clock is off, in milliseconds.
    error_ms: i64,
}

impl FalseClock {
    /// A clock that gains `drift` millionths (or loses them, if negative).
    pub fn new(drift: i64, origin: u64, error_ms: i64) -> Self {
        Self { rate: (1_000_000 + drift) as u64, since: 0, origin, error_ms }
    }

    /// Somebody sets the wall clock.
    pub fn set_error_ms(&mut self, error_ms: i64) {
        self.error_ms = error_ms;
    }

    /// From a true time on the monotonic clock gains `drift` millionths (or loses them, if negative). It does not jump.
    pub fn set_drift(&mut self, drift: i64, at: u64) {
        self.origin = self.read(at).instant.as_nanos();
        (self.since, self.rate) = (at, (1_000_000 + drift) as u64);
    }

    /// What the clocks show at a true time, not before the rate was set.
    pub fn read(&self, at: u64) -> Now {
        let elapsed = at.saturating_sub(self.since);
        let instant = self.origin + (u128::from(elapsed) * u128::from(self.rate) / 1_000_000) as u64;
        let unix = CALENDAR_START_MS + (at / MILLISECOND) as i64 + self.error_ms;
        Now { instant: Instant::from_nanos(instant), unix: UnixMillis(unix) }
    }

    /// The first true time at which the monotonic clock shows `instant` or more.
    pub fn when(&self, instant: Instant) -> u64 {
        let elapsed = instant.as_nanos().saturating_sub(self.origin);
        self.since + (u128::from(elapsed) * 1_000_000).div_ceil(u128::from(self.rate)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_is_never_too_early() {
        for drift in [-200, -1, 0, 3, 200] {
            let clock = FalseClock::new(drift, 77, 0);
            for at in [0, 1, 999, 123_456_789, 60_000_000_001] {
                let shown = clock.read(at).instant;
                let when = clock.when(shown);
                assert!(when <= at && clock.read(when).instant >= shown, "drift {drift}, at {at}");
            }
        }
    }

    #[test]
    fn a_clock_whose_rate_changes_neither_jumps_nor_stands() {
        let mut clock = FalseClock::new(-3, 77, 0);
        let mut before = clock.read(0).instant;
        for (step, drift) in [1_000_000, -500_000, 0].into_iter().enumerate() {
            let at = (step as u64 + 1) * 1_000_000_001;
            assert!(before < clock.read(at).instant, "step {step}");
            before = clock.read(at).instant;
            clock.set_drift(drift, at);
            assert!(clock.read(at).instant == before, "step {step}");
            let later = clock.read(at + 1_000_000).instant.as_nanos() - before.as_nanos();
            assert_eq!(later, (1_000_000 + drift) as u64, "step {step}");
            let when = clock.when(before);
            assert!(when <= at && clock.read(when).instant >= before, "step {step}");
        }
    }
}
