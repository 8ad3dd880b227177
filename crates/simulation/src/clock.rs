//! The clocks of one machine: one that only goes forward, at a rate of its own, and one that people set.

use node::event::Now;
use stdx::{Instant, UnixMillis};

use crate::MILLISECOND;

/// True time 0 on the calendar: a round number nobody depends on.
const CALENDAR_START_MS: i64 = 1_800_000_000_000;

/// A machine's clocks. True time is in nanoseconds since the universe began.
#[derive(Clone, Debug)]
pub struct FalseClock {
    /// Nanoseconds of the monotonic clock for a million of true time.
    rate: u64,
    /// What the monotonic clock showed when the universe began.
    origin: u64,
    /// How far the wall clock is off, in milliseconds.
    error_ms: i64,
}

impl FalseClock {
    /// A clock that gains `drift` millionths (or loses them, if negative).
    pub fn new(drift: i64, origin: u64, error_ms: i64) -> Self {
        Self { rate: (1_000_000 + drift) as u64, origin, error_ms }
    }

    /// Somebody sets the wall clock.
    pub fn set_error_ms(&mut self, error_ms: i64) {
        self.error_ms = error_ms;
    }

    /// What the clocks show at a true time.
    pub fn read(&self, at: u64) -> Now {
        let instant = self.origin + (u128::from(at) * u128::from(self.rate) / 1_000_000) as u64;
        let unix = CALENDAR_START_MS + (at / MILLISECOND) as i64 + self.error_ms;
        Now { instant: Instant::from_nanos(instant), unix: UnixMillis(unix) }
    }

    /// The first true time at which the monotonic clock shows `instant` or more.
    pub fn when(&self, instant: Instant) -> u64 {
        let elapsed = instant.as_nanos().saturating_sub(self.origin);
        (u128::from(elapsed) * 1_000_000).div_ceil(u128::from(self.rate)) as u64
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
}
