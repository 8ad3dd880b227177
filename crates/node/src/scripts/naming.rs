//! How scripts and functions are named, and how libraries change.

/// How a script is named by the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// By its text.
    Text,
    /// By its SHA-1.
    Digest,
    /// As a function of a library.
    Function,
}

/// How to change libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changing {
    /// FUNCTION LOAD
    Load,
    /// FUNCTION DELETE
    Delete,
    /// FUNCTION FLUSH
    Flush,
    /// FUNCTION RESTORE
    Restore,
}

/// A script that is running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its name.
    pub name: String,
    /// The command that called it.
    pub words: Vec<Vec<u8>>,
    /// Milliseconds since it began.
    pub duration_ms: u64,
    /// True for a function.
    pub is_function: bool,
}
