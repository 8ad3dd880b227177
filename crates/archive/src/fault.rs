//! What can be wrong with an archive.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why an archive cannot be read or written: names the file, and the offset in it where there is one.
#[derive(Debug)]
pub struct Fault {
    file: PathBuf,
    offset: Option<u64>,
    what: String,
    cause: Option<io::Error>,
}

impl Fault {
    /// The system does not let us.
    pub fn io(action: &str, file: &Path, cause: io::Error) -> Self {
        Self { file: file.to_owned(), offset: None, what: format!("cannot {action}"), cause: Some(cause) }
    }

    /// The content is not what was written.
    pub fn damaged(file: &Path, offset: u64, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), offset: Some(offset), what: what.into(), cause: None }
    }

    /// Something else is wrong with it.
    pub fn wrong(file: &Path, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), offset: None, what: what.into(), cause: None }
    }

    /// The place in the file, where there is one.
    pub fn offset(&self) -> Option<u64> {
        self.offset
    }

    /// True if somebody else has made the file.
    pub fn is_taken(&self) -> bool {
        self.cause.as_ref().is_some_and(|cause| cause.kind() == io::ErrorKind::AlreadyExists)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Some(cause) => return write!(out, "{} {}: {cause}", self.what, self.file.display()),
            None => write!(out, "{}", self.file.display())?,
        }
        if let Some(offset) = self.offset {
            write!(out, " at offset {offset}")?;
        }
        write!(out, ": {}", self.what)
    }
}

impl std::error::Error for Fault {}
