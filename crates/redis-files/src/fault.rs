//! Why a file cannot be read.

use std::{error, fmt, io};

/// What is wrong with a file, and where.
#[derive(Debug)]
pub struct Fault {
    /// Bytes from the beginning of the file.
    pub offset: u64,
    /// What is wrong there.
    pub what: What,
}

/// What is wrong with a file.
#[derive(Debug)]
pub enum What {
    /// It cannot be read.
    Io(io::Error),
    /// It ends in the middle of something.
    Truncated,
    /// It does not begin as the file that was expected.
    Magic,
    /// Its version is not known. As it stands in the file.
    Version(String),
    /// A kind of value, or of record, that is not known.
    Kind(u8),
    /// Its checksum is not that of what it holds.
    Checksum,
    /// Something longer than [`crate::STRING_BYTES_MAX`].
    TooLong,
    /// Something else that the format does not allow.
    Malformed(&'static str),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: ", self.offset)?;
        match &self.what {
            What::Io(error) => write!(f, "cannot be read: {error}"),
            What::Truncated => f.write_str("the file ends in the middle of a record"),
            What::Magic => f.write_str("this is no RDB file: it begins with neither REDIS nor VALKEY"),
            What::Version(version) => write!(f, "RDB version {version} is not known"),
            What::Kind(kind) => write!(f, "records of type {kind} are not known"),
            What::Checksum => f.write_str("the checksum does not fit: the file is damaged"),
            What::TooLong => f.write_str("a string or a value is longer than 512 MiB"),
            What::Malformed(what) => f.write_str(what),
        }
    }
}

impl error::Error for Fault {}
