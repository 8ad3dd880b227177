//! Where something is made that gets its name when it is whole.
//!
//! The process that makes it holds a lock of the file system on the directory, which goes with the process. So what
//! a killed process has left can be told from what is being made at this moment, and the next attempt clears it
//! away. Versions before this one took no lock: a mark in the directory says that its maker did. Where there is no
//! mark, somebody is at work as long as something changes there.

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

/// A process that has made a directory with this file holds a lock on it, or has ended. Nothing that is finished has
/// it.
const MARK: &str = ".locked-by-its-maker";

/// If nothing tells whether somebody is at work: what has not changed for so long has been left.
const LATELY: Duration = Duration::from_secs(5 * 60);

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

impl Staging {
    /// Gives it its name: it is whole.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn settle(&self, path: &Path) -> Result<()> {
        let mark = self.path.join(MARK);
        fs::remove_file(&mark).with_context(|| format!("cannot remove {}", mark.display()))?;
        super::settle(&self.path, path)
    }
}

impl AsRef<Path> for Staging {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// Makes a directory in which `what` is built that will become `path`. What another process has left there is removed
/// if that process has ended since.
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
        bail!("{} already exists: {what} is made in a directory that is new or empty", path.display());
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
    // A process that only lists directories holds it for a moment.
    let mut use_of = Use::Ours;
    for look in 0..LOOKS {
        if look > 0 {
            thread::sleep(LOOK_INTERVAL);
        }
        use_of = find_use(&staging, &lock, is_new);
        if use_of != Use::Locked {
            break;
        }
    }
    match use_of {
        Use::Ours => {}
        Use::Locked => bail!("{} is being made at this moment, by another process", staging.display()),
        Use::Changing => bail!(
            "{} has changed within the last {} minutes, and nothing tells whether another process is at work there: if \
             none is, remove it",
            staging.display(),
            LATELY.as_secs() / 60
        ),
    }
    if !is_new {
        empty(&staging, &lock)
            .with_context(|| format!("cannot clear {}, which was left unfinished", staging.display()))?;
    }
    fs::write(staging.join(MARK), []).with_context(|| format!("cannot write into {}", staging.display()))?;
    Ok(Staging { path: staging, _lock: lock })
}

/// True if nobody is at work in an unfinished directory.
pub(super) fn is_left_unfinished(path: &Path) -> bool {
    File::open(path).is_ok_and(|directory| find_use(path, &directory, false) == Use::Ours)
}

/// Who uses an unfinished directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Nobody else. It is ours until it is closed, if the file system knows locks.
    Ours,
    /// Its maker, or somebody who looks whether there is one.
    Locked,
    /// Nothing tells, and it has changed lately: its maker may have taken no lock.
    Changing,
}

fn find_use(path: &Path, directory: &File, is_new: bool) -> Use {
    let was_locked = match directory.try_lock() {
        Ok(()) => is_new || path.join(MARK).exists(),
        Err(TryLockError::WouldBlock) => return Use::Locked,
        Err(TryLockError::Error(_)) => is_new,
    };
    if was_locked || !is_at_work(path) { Use::Ours } else { Use::Changing }
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
        if entry.file_name() == MARK {
            continue; // it says so of us, too
        }
        if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path())? } else { fs::remove_file(entry.path())? }
    }
    Ok(())
}

/// True if something in a directory has changed within the last minutes.
pub(super) fn is_at_work(path: &Path) -> bool {
    let files = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_young = |path: &Path| {
        let changed = fs::metadata(path).and_then(|metadata| metadata.modified());
        changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age < LATELY))
    };
    is_young(path) || files.into_iter().any(|file| is_young(&file))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sets back when something has changed, by so many minutes.
    fn age(path: &Path, minutes: u64) {
        let then = std::time::SystemTime::now() - Duration::from_secs(60 * minutes);
        File::open(path).and_then(|file| file.set_modified(then)).expect("a file of ours");
    }

    #[test]
    fn what_an_older_version_is_making_is_not_cleared_away() {
        let folder = std::env::temp_dir().join(format!("holdfast-staging-{}", std::process::id()));
        let (path, unfinished) = (folder.join("backup"), folder.join("backup.unfinished"));
        // It has taken no lock.
        fs::create_dir_all(&unfinished).unwrap();
        let part = unfinished.join("group-0.log");
        fs::write(&part, "half of it").unwrap();
        for (directory_minutes, part_minutes) in [(0, 0), (9, 0), (0, 9)] {
            age(&part, part_minutes);
            age(&unfinished, directory_minutes);
            let refusal = staging(&path, "unfinished", "a backup").unwrap_err().to_string();
            assert!(refusal.contains("has changed within the last 5 minutes, and nothing tells"), "{refusal}");
            assert!(part.exists() && !is_left_unfinished(&unfinished));
        }
        age(&part, 9);
        age(&unfinished, 9);
        assert!(is_left_unfinished(&unfinished));
        let made = staging(&path, "unfinished", "a backup").unwrap();
        assert!(!part.exists(), "it has been left");
        fs::write(&part, "all of it").unwrap();
        let refusal = staging(&path, "unfinished", "a backup").unwrap_err().to_string();
        assert!(refusal.contains("is being made at this moment, by another process"), "{refusal}");
        assert!(!is_left_unfinished(&unfinished));
        // Killed: it is cleared away at once.
        drop(made);
        assert!(is_left_unfinished(&unfinished));
        let made = staging(&path, "unfinished", "a backup").unwrap();
        assert!(!part.exists());
        fs::write(&part, "all of it").unwrap();
        made.settle(&path).unwrap();
        let names: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["group-0.log"], "nothing else is left in it");
        fs::remove_dir_all(&folder).unwrap();
    }
}
