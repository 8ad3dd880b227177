//! How long tests wait for what must come about, and how.
//!
//! A test says what must come about, never how soon: a machine may be slow, its disk busy, and an election or two may
//! come between. So what comes about later is waited for with [`wait_for`], and a figure that must not be zero is
//! waited for as well.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything takes that comes about at all, on any machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// What is answered at once takes less, on any machine; what waits for others waits for longer, until it is given up.
pub const AT_ONCE: Duration = Duration::from_secs(5);

/// Waits until something holds.
#[track_caller]
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for_some(what, || holds().then_some(()));
}

/// Waits until there is something, and answers what.
#[track_caller]
pub fn wait_for_some<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Tells threads that it is over when it is dropped, also by a panic: a scope waits for all of its threads, and a test
/// that has failed must end.
pub struct IsOver<'a>(pub &'a AtomicBool);

impl Drop for IsOver<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
