//! What an operator must act on.

use std::fmt;
use std::io;

use stdx::{Level, Levels};

/// Why a journal cannot go on.
#[derive(Debug)]
pub enum Fault {
    /// The disk refused.
    Io {
        /// What was being done, as in "cannot … FILE".
        action: &'static str,
        /// Which file.
        file: String,
        /// What the disk said.
        error: io::Error,
    },
    /// There is no room. Nothing was written; the same call may be made again later.
    Full {
        /// The file that should have been made.
        file: String,
        /// Bytes it needs.
        bytes: u64,
    },
    /// What is on disk is not what was written there.
    Damaged {
        /// Which file.
        file: String,
        /// Where in it.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// A file that must be there is not.
    Missing {
        /// Which file.
        file: String,
        /// How it is known that it should be there.
        why: String,
    },
    /// The directory was written by a newer version of this program.
    Newer {
        /// Which file says so.
        file: String,
        /// Its format version.
        version: u64,
        /// The latest that this program knows.
        known: u32,
    },
    /// The directory holds what was written at a level that this program does not know.
    Level {
        /// The level.
        level: Level,
        /// Those that it knows.
        known: Levels,
    },
    /// The directory holds something else.
    Foreign {
        /// A file found in it.
        file: String,
    },
}

impl Fault {
    pub(crate) fn io(action: &'static str, file: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let file = file.into();
        move |error| Self::Io { action, file, error }
    }

    pub(crate) fn damaged(file: impl Into<String>, offset: u64, what: impl Into<String>) -> Self {
        Self::Damaged { file: file.into(), offset, what: what.into() }
    }

    /// True if there is merely no room, and the call may be made again.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full { .. })
    }
}

/// True if the error says that the disk or the quota is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { action, file, error } => write!(out, "cannot {action} {file}: {error}"),
            Self::Full { file, bytes } => write!(out, "no room on the disk for {file} of {bytes} bytes"),
            Self::Damaged { file, offset, what } => write!(out, "{file} is damaged at offset {offset}: {what}"),
            Self::Missing { file, why } => write!(out, "{file} is missing: {why}"),
            Self::Newer { file, version, known } => {
                write!(out, "{file} has format {version}, and this version of Holdfast knows formats up to {known}")
            }
            Self::Level { level, known } => write!(
                out,
                "what is here was written at level {level}, and this version of Holdfast knows {known}: nothing has \
                 been changed; start the version that was here before, or a later one"
            ),
            Self::Foreign { file } => write!(
                out,
                "the data directory holds {file} but no identity, so it is not a data directory of Holdfast; give an \
                 empty one"
            ),
        }
    }
}

impl std::error::Error for Fault {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}
