//! What a data directory remembers of its acknowledgements: whether some may have left before what they acknowledged
//! was on the disk (`appendfsync everysec` and `no`). After an unclean stop such a node may lack the end of its log,
//! whatever it is started with then.
//!
//! The file is there, and on the disk, before the first of them leaves. It goes at a start that follows an end in
//! good order.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The name of the file in a data directory.
pub const FILE: &str = ".acknowledges-early";

/// True if something may have been acknowledged in a data directory before it was on the disk.
///
/// # Errors
/// Those of the file system.
pub fn acknowledges_early(directory: &Path) -> io::Result<bool> {
    EarlyMark::of(directory).is_there()
}

/// The file of one directory.
#[derive(Debug)]
pub struct EarlyMark {
    directory: PathBuf,
    is_set: Mutex<bool>,
}

impl EarlyMark {
    /// That of this directory.
    pub fn of(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), is_set: Mutex::new(false) }
    }

    /// Where the file is, or would be.
    pub fn path(&self) -> PathBuf {
        self.directory.join(FILE)
    }

    /// True if it is there.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn is_there(&self) -> io::Result<bool> {
        self.path().try_exists()
    }

    /// Makes it, unless it has been made; it is on the disk then.
    ///
    /// # Errors
    /// Those of the file system; nothing may be acknowledged early then.
    pub fn set(&self) -> io::Result<()> {
        // A thread that comes second waits until it is on the disk.
        let mut is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_set {
            File::create(self.path())?.sync_all()?;
            File::open(&self.directory)?.sync_all()?;
            *is_set = true;
        }
        Ok(())
    }

    /// Removes it, unless it has been made meanwhile.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn clear(&self) -> io::Result<()> {
        let is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_set {
            return Ok(());
        }
        match fs::remove_file(self.path()) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(cause),
            _ => Ok(()),
        }
    }
}
