//! The clocks. The only place that looks at them.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use group::ids::Now;
use nix::time::{ClockId, clock_gettime};
use stdx::{Instant, UnixMillis};

/// The origin of the process's monotonic clock: its first reading.
static ORIGIN: LazyLock<Duration> = LazyLock::new(since_boot);

/// Time since the machine was started. Unlike the standard library's clock this one goes on while the machine sleeps,
/// and so do the other nodes.
fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every Linux has this clock").into()
}

/// What the clocks say.
pub fn now() -> Now {
    Now { instant: instant(), unix: unix_millis() }
}

/// What the monotonic clock says.
pub fn instant() -> Instant {
    let elapsed = since_boot().saturating_sub(*ORIGIN);
    Instant::from_nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
}

/// How long this thread has been on processors.
pub fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every Linux has this clock").into()
}

/// What the wall clock says, in whole seconds since 1970.
pub fn unix_seconds() -> u64 {
    unix_millis().0.cast_unsigned() / 1_000
}

/// What the wall clock says. A clock set before 1970 reads as 1970.
pub fn unix_millis() -> UnixMillis {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMillis(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}
