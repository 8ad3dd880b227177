//! Where something is made that gets its name when it is whole.
//!
//! The process that makes it holds a lock of the file system on the directory, which goes with the process. So what
//! a killed process has left can be told from what is being made at this moment, and the next attempt clears it
//! away.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::ops::Deref;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// How often it is tried to have a directory.
const LOOKS: u32 = 5;
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A directory with that name and extension, and nothing in it, which is ours.
#[derive(Debug)]
pub(crate) struct Staging {
    path: PathBuf,
    _lock: File,
}

impl Deref for Staging {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl AsRef<Path> for Staging {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// Makes a directory in which `what` is made that `path` is to be. What a process has left there that has ended since
/// goes.
///
/// # Errors
/// If something is at `path`, or another process is at work.
pub(crate) fn staging(path: &Path, extension: &str, what: &str) -> Result<Staging> {
    let is_free = match fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == ErrorKind::NotFound => true,
        Err(error) if error.kind() == ErrorKind::NotADirectory => false,
        Err(error) => return Err(error).with_context(|| format!("cannot look into {}", path.display())),
    };
    if !is_free {
        bail!("{} is there already: {what} is made in a directory that is new or empty", path.display());
    }
    let mut name = path.components().as_path().as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    let staging = PathBuf::from(name);
    let made = fs::create_dir_all(staging.parent().unwrap_or(Path::new("."))).and_then(|()| fs::create_dir(&staging));
    let is_new = match made {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
        Err(error) => return Err(error).with_context(|| format!("cannot make the directory {}", staging.display())),
    };
    let lock = File::open(&staging).with_context(|| format!("cannot open {}", staging.display()))?;
    // Who lists directories looks for a moment.
    let is_ours = (0..LOOKS).any(|look| {
        if look > 0 {
            thread::sleep(LOOK_INTERVAL);
        }
        is_left(&staging, &lock, is_new)
    });
    if !is_ours {
        bail!("{} is being made at this moment, by another process", staging.display());
    }
    if !is_new {
        empty(&staging, &lock)
            .with_context(|| format!("cannot clear {}, which was left unfinished", staging.display()))?;
    }
    Ok(Staging { path: staging, _lock: lock })
}

/// True if nobody is at work in an unfinished directory.
pub(super) fn is_left_unfinished(path: &Path) -> bool {
    File::open(path).is_ok_and(|directory| is_left(path, &directory, false))
}

/// The same; then it is ours until `directory` is closed. Where the file system knows no locks it is time that tells.
fn is_left(path: &Path, directory: &File, is_new: bool) -> bool {
    match directory.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => is_new || !is_at_work(path),
    }
}

/// Removes what is in a directory.
fn empty(path: &Path, directory: &File) -> io::Result<()> {
    // It may have got its name before it was locked here, and another one be in its place.
    let (found, locked) = (fs::metadata(path)?, directory.metadata()?);
    if (found.dev(), found.ino()) != (locked.dev(), locked.ino()) {
        return Err(io::Error::new(ErrorKind::ResourceBusy, "another process has just been at work"));
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path())? } else { fs::remove_file(entry.path())? }
    }
    Ok(())
}

/// True if something in a directory has changed within the last minutes.
pub(super) fn is_at_work(path: &Path) -> bool {
    const LATELY: Duration = Duration::from_secs(5 * 60);
    let files = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_young = |path: &Path| {
        let changed = fs::metadata(path).and_then(|metadata| metadata.modified());
        changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age < LATELY))
    };
    is_young(path) || files.into_iter().any(|file| is_young(&file))
}
