//! The cut.
use crate::keeper::Position;
use crate::record::Record;

/// Bytes are not what a checkpoint holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt {
    /// Offset of the record, in bytes.
    pub offset: usize,
}
pub(crate) struct Walk {}
pub(crate) struct Restoring {}
impl Walk {
    pub(crate) fn before_change(&mut self, _position: Position, _record: &Record) {}
    pub(crate) fn held_bytes(&self) -> usize {
        0
    }
    pub(crate) fn needs_table(&self, _rank: u32) -> bool {
        false
    }
}
