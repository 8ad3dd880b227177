//! Ctrl-C while something is under way that must be undone: it is noted here, and the work stops where it looks.

use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::process::{Family, words};

/// How long anything may go on without a look.
const STEP: Duration = Duration::from_millis(50);

static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on an interruption ends nothing by itself.
pub fn note() -> Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, &IS_INTERRUPTED).context("cannot take note of signals")?;
    }
    Ok(())
}

/// An error as soon as there was an interruption.
pub fn check() -> Result<()> {
    ensure!(!IS_INTERRUPTED.load(Ordering::SeqCst), "interrupted");
    Ok(())
}

/// Does nothing for so long, or until there is an interruption.
pub fn rest(time: Duration) -> Result<()> {
    let begun = Instant::now();
    loop {
        check()?;
        let left = time.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(STEP));
    }
}

/// Runs to the end and answers how it ended and what it printed. An interruption ends it.
pub fn output(command: &mut Command) -> Result<Output> {
    let mut family = Family::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let stdout = read(family.child().stdout.take().expect("it is a pipe"));
    let stderr = read(family.child().stderr.take().expect("it is a pipe"));
    let status = loop {
        check()?;
        match family.child().try_wait().with_context(|| format!("cannot wait for {}", words(command)))? {
            Some(status) => break status,
            None => rest(STEP)?,
        }
    };
    let bytes = |thread: JoinHandle<Vec<u8>>| thread.join().expect("a thread that reads does not panic");
    Ok(Output { status, stdout: bytes(stdout), stderr: bytes(stderr) })
}

/// Reads to the end in a thread.
fn read(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What comes before an error is worth telling.
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test for all, as it is one flag for all.
    #[test]
    fn an_interruption_ends_what_rests_and_what_runs() {
        note().expect("signals can be noted");
        check().expect("there is none yet");
        rest(Duration::from_millis(1)).expect("there is none yet");
        let told = output(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"])).expect("a shell");
        let texts = (told.stdout.as_slice(), told.stderr.as_slice());
        assert_eq!((told.status.code(), texts), (Some(3), (&b"out\n"[..], &b"err\n"[..])));

        let begun = Instant::now();
        let interrupts = thread::spawn(|| {
            thread::sleep(Duration::from_millis(300));
            signal_hook::low_level::raise(SIGTERM).expect("a signal");
        });
        output(Command::new("sleep").arg("100")).expect_err("it is interrupted");
        rest(Duration::from_secs(100)).expect_err("it still is");
        interrupts.join().expect("it has raised the signal");
        assert!(begun.elapsed() < Duration::from_secs(50), "{:?}", begun.elapsed());
        IS_INTERRUPTED.store(false, Ordering::SeqCst);
    }
}
