//! Server processes, and what must not stay behind, whatever ends the run.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::network;

/// A server that has been asked to end and has not by then is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

static LEFTOVERS: Mutex<Leftovers> =
    Mutex::new(Leftovers { servers: Vec::new(), namespaces: Vec::new(), folder: None });

struct Leftovers {
    servers: Vec<u32>,
    namespaces: Vec<String>,
    folder: Option<PathBuf>,
}

fn leftovers() -> MutexGuard<'static, Leftovers> {
    LEFTOVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From here on the first Control-C or SIGTERM sets `over`, so that the run ends in good order and is audited; the
/// second ends everything at once and leaves nothing behind.
pub fn watch_signals(over: Arc<AtomicBool>) -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            if !over.swap(true, Ordering::Relaxed) {
                eprintln!("\nending: the audit follows; once more to end at once, without it");
                continue;
            }
            let left = leftovers(); // kept, so that no server can be started any more
            for &server in &left.servers {
                let _ = kill(Pid::from_raw(server as i32), Signal::SIGKILL);
            }
            left.namespaces.iter().for_each(|name| network::remove_namespace(name));
            if let Some(folder) = &left.folder {
                let _ = fs::remove_dir_all(folder);
            }
            std::process::exit(128 + signal);
        }
    })?;
    Ok(())
}

/// To be removed if the run is ended at once.
pub fn remember_namespace(name: &str) {
    leftovers().namespaces.push(name.to_owned());
}

/// A directory, removed when it is dropped unless it should be kept.
pub struct Folder {
    path: PathBuf,
    keep: bool,
}

impl Folder {
    pub fn new(parent: Option<&Path>, keep: bool) -> Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let path = parent.join(format!("holdfast-torture-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        if !keep {
            leftovers().folder = Some(path.clone());
        }
        Ok(Self { path, keep })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// It will not be removed.
    pub fn keep(&mut self) {
        self.keep = true;
        leftovers().folder = None;
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.keep {
            let _ = fs::remove_dir_all(&self.path); // what cannot be removed is the system's to clear
        }
    }
}

/// A server process. Ended when dropped.
pub struct Process {
    child: Child,
}

impl Process {
    /// Starts one; what it says goes behind what is in `log`.
    pub fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let log = File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // Control-C on the terminal is for us alone.
        command.process_group(0);
        let mut left = leftovers();
        let child = command.spawn().with_context(|| format!("cannot run {}", command.get_program().display()))?;
        left.servers.push(child.id());
        Ok(Self { child })
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(self.child.id() as i32), signal).with_context(|| format!("cannot send {signal}"))
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.kill_and_forget();
    }

    /// Asks it to end and waits. How it ended, or none if it had to be killed.
    pub fn stop(mut self) -> Option<ExitStatus> {
        let asked = Instant::now();
        // One that is stopped would not hear.
        let _ = self.signal(Signal::SIGCONT);
        let _ = self.signal(Signal::SIGTERM);
        while asked.elapsed() < STOP_TIMEOUT {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            thread::sleep(Duration::from_millis(5));
        }
        None
    }

    fn kill_and_forget(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        leftovers().servers.retain(|&server| server != self.child.id());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_and_forget();
    }
}
