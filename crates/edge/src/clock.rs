//! The clocks. The only place that looks at them.

use std::sync::LazyLock;
use std::time::{Instant as StdInstant, SystemTime, UNIX_EPOCH};

use node::event::Now;
use stdx::{Instant, UnixMillis};

/// The origin of the process's monotonic clock: its first reading.
static ORIGIN: LazyLock<StdInstant> = LazyLock::new(StdInstant::now);

/// What the clocks say.
pub fn now() -> Now {
    Now { instant: instant(), unix: unix_millis() }
}

/// What the monotonic clock says.
pub fn instant() -> Instant {
    Instant::from_nanos(u64::try_from(ORIGIN.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// What the wall clock says. A clock set before 1970 reads as 1970.
pub fn unix_millis() -> UnixMillis {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMillis(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}
