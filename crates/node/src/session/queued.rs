//! A command that waits for EXEC.

use crate::known::Known;
use crate::stats::calls::Asked;

/// A command queued by MULTI.
#[derive(Debug)]
pub struct Queued {
    /// Which.
    pub command: Known,
    /// Its words, laid out by `entry::put_words` with the database selected when it was queued.
    pub words: Vec<u8>,
    /// What it counts as.
    pub(crate) asked: Asked,
    /// Why it is not carried out after all: its user may no longer do it.
    pub refusal: Option<String>,
}
