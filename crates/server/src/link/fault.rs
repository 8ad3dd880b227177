//! Faults of this machine's disk: nobody else's, and no reason to go on.

use std::fmt;

use anyhow::Result;

#[derive(Debug)]
struct DiskFault;

impl fmt::Display for DiskFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the files of the link cannot be used")
    }
}

/// Marks a failure as one of the disk.
pub fn on_disk<T>(done: Result<T>) -> Result<T> {
    done.map_err(|error| error.context(DiskFault))
}

/// True if the process should end.
pub fn is_of_disk(error: &anyhow::Error) -> bool {
    error.downcast_ref::<DiskFault>().is_some()
}
