//! What the data directory says of levels: the highest of anything in the logs here. It is on the disk before the first
//! entry of a level is, so that a version which does not know the level does not start on the directory; and links to
//! nodes that do not know it end.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use stdx::{Level, Levels};

use crate::disk::RealDisk;
use crate::fault::Fault;
use crate::peers::Voice;

/// The level of one directory.
#[derive(Debug)]
pub struct Floor {
    directory: PathBuf,
    voice: Mutex<Voice>,
}

impl Floor {
    /// That of this directory, with an identity that says `floor`, for a program that knows `levels`.
    pub fn of(directory: &Path, levels: Levels, floor: Level) -> Self {
        Self { directory: directory.to_owned(), voice: Mutex::new(Voice { levels, floor }) }
    }

    /// Which levels matter here.
    pub fn voice(&self) -> Voice {
        *self.voice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something of this level is about to be in a log. It is on the disk then that it may be. False if it was before.
    ///
    /// # Errors
    /// Those of the disk; nothing of the level may be written then.
    pub fn raise(&self, level: Level) -> Result<bool, Fault> {
        // A thread that comes second waits until it is on the disk.
        let mut voice = self.voice.lock().unwrap_or_else(PoisonError::into_inner);
        if level <= voice.floor {
            return Ok(false);
        }
        let told = |fault: journal::Fault| Fault::data(&self.directory, &fault);
        let disk = RealDisk::open_directory(&self.directory).map_err(|cause| Fault::File {
            path: self.directory.clone(),
            purpose: "open",
            cause,
        })?;
        journal::raise_level(&disk, level).map_err(told)?;
        voice.floor = level;
        Ok(true)
    }
}
