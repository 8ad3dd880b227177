//! What the tests of the binary share: a server to start and kill, a client, folders, a disk that fails, and the
//! ledger of what was promised.

mod certificates;
mod client;
mod crash_disk;
mod disk_faults;
mod ledger;
mod load;
mod object_store;
mod server;
mod stock;
mod tool;
mod waiting;
mod writers;

pub use certificates::{Authority, Signed};
pub use client::Client;
pub use crash_disk::CrashDisk;
pub use disk_faults::DiskFaults;
pub use ledger::{Audit, Ledger};
pub use load::{Load, LoadOptions, new_ledgers};
pub use object_store::{Mood, ObjectStore};
pub use server::{Exit, Policy, Server, ServerOptions, binary, free_port, token_of};
pub use stock::Stock;
pub use tool::{Environment, both, fail, fail_in, succeed, succeed_in, text};
pub use waiting::{AT_ONCE, IsOver, PATIENCE, wait_for, wait_for_some};
pub use writers::Writers;

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of one test, removed when dropped.
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// A new, empty folder.
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("holdfast-it-{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Self { path },
                // One that an earlier process of this number has left for inspection.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            say(&format!("left for inspection: {}", self.path.display()));
        } else {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Copies a folder with everything in it.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder to copy to");
    for entry in fs::read_dir(from).expect("a folder to copy") {
        let entry = entry.expect("an entry of the folder");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("the kind of the entry").is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).expect("a copy");
        }
    }
}

/// All files beneath a folder, with their sizes in bytes, sorted by name.
pub fn files_beneath(folder: &Path) -> Vec<(PathBuf, u64)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder to list") {
        let entry = entry.expect("an entry of the folder");
        let metadata = entry.metadata().expect("what the entry is");
        if metadata.is_dir() {
            files.extend(files_beneath(&entry.path()));
        } else {
            files.push((entry.path(), metadata.len()));
        }
    }
    files.sort();
    files
}

/// Tells the user, also when the test harness keeps the output of passing tests to itself.
pub fn say(text: &str) {
    let mut stderr = std::io::stderr();
    let _ = writeln!(stderr, "{text}");
}

/// A number from the environment, which the longer runs of `cargo xtask crash` set.
pub fn number_from_environment(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    }
}
