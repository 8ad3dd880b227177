//! Signals, turned into messages.
//!
//! SIGTERM and the first SIGINT ask for an orderly end; a second SIGINT ends the process at once, as anyone who presses
//! Control-C twice means it. SIGHUP is ignored, so that a terminal that closes does not take the server along; the Rust
//! runtime already ignores SIGPIPE, and writes to closed sockets are errors.

use std::sync::mpsc::Sender;
use std::{io, thread};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::host::{End, News};

/// What a shell reports of a process that SIGINT ended.
const INTERRUPTED: i32 = 128 + SIGINT;

/// Starts the thread that listens for signals and passes orderly ends on.
///
/// # Errors
/// If handlers cannot be installed or the thread cannot be started.
pub fn listen(news: Sender<News>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        let mut was_interrupted = false;
        for signal in &mut signals {
            let name = match signal {
                SIGINT if was_interrupted => std::process::exit(INTERRUPTED),
                SIGINT => {
                    was_interrupted = true;
                    "SIGINT"
                }
                SIGTERM => "SIGTERM",
                _ => continue,
            };
            // Nobody listens any more once the end has begun.
            let _ = news.send(News::End(End::Signal(name)));
        }
    })?;
    Ok(())
}
