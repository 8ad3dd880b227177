//! Says what a tool waits for, once that takes long: on a silent terminal a slow server looks like a tool that hangs.

use std::io::Write as _;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// A wait that takes no longer than this is not talked about.
pub const SILENCE: Duration = Duration::from_secs(2);

/// From one line to the next.
pub const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Does `work`. If that takes longer than [`SILENCE`], says `what` on the standard error, with the seconds that have
/// passed, and again now and then.
pub fn during<T>(what: &str, work: impl FnOnce() -> T) -> T {
    // Who reads it may have gone, and the work goes on.
    let tell = |line| drop(writeln!(std::io::stderr(), "{line}"));
    during_told_by(what, SILENCE, tell, work)
}

fn during_told_by<T>(what: &str, silence: Duration, tell: impl Fn(String) + Send, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let (done, over) = channel::<()>();
    thread::scope(|scope| {
        // A system without room for one more thread does the work in silence.
        let _ = thread::Builder::new().name("waiting".to_owned()).spawn_scoped(scope, move || {
            let mut next = silence;
            while over.recv_timeout(next) == Err(RecvTimeoutError::Timeout) {
                tell(format!("{what} ({:.0} s)", begun.elapsed().as_secs_f64()));
                next = LINE_INTERVAL;
            }
        });
        let outcome = work();
        drop(done);
        outcome
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn only_what_takes_long_is_told() {
        let told = Mutex::new(Vec::new());
        let tell = |line: String| told.lock().expect("one at a time").push(line);
        assert_eq!(during_told_by("reads", Duration::from_secs(60), tell, || 7), 7);
        assert!(told.lock().expect("nobody else").is_empty());
        let wait = || {
            let begun = Instant::now();
            while told.lock().expect("one at a time").is_empty() && begun.elapsed() < Duration::from_secs(60) {
                thread::sleep(Duration::from_millis(5));
            }
        };
        during_told_by("reads the log", Duration::from_millis(10), tell, wait);
        let told = told.into_inner().expect("nobody else");
        assert!(told[0].starts_with("reads the log (") && told[0].ends_with(" s)"), "{told:?}");
    }
}
