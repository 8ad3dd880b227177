//! Bitmaps: strings seen as rows of bits, the highest bit of the first byte first.

mod bit;
mod count;
mod field;
mod op;

use super::DataCommand;

/// Every bitmap command.
pub(super) const COMMANDS: &[&DataCommand] =
    &[&bit::SETBIT, &bit::GETBIT, &count::BITCOUNT, &count::BITPOS, &op::BITOP, &field::BITFIELD, &field::BITFIELD_RO];
