//! How far the log was on stable storage, kept outside of the log: see `docs/formats/log.md`.
//!
//! A record says of those before it that they were synced, so damage to any but the last is told from a write that was
//! cut short. The last has nobody behind it. What speaks for it is a mark in a file of its own: damage to the log is
//! not damage to the mark. The mark is written after each sync and never synced itself. The death of a process cannot
//! take it back, and a power cut at most makes it older, which only takes proof away.

use crate::disk::BLOCK_BYTES;

const MAGIC: [u8; 8] = *b"HOLDTAIL";

const VERSION: u32 = 1;

/// Bytes that the check covers: within one sector, so that a mark is written as a whole or not at all.
const CHECKED_BYTES: usize = 60;

/// What the file says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TailMark {
    /// Segment of the last record with a body that is on stable storage; 0 if there is none.
    pub sequence: u64,
    /// Offset behind that record.
    pub end: u64,
    /// A start has given up the end of this log without knowing whether something in it had been acknowledged, and
    /// nobody has made good for it yet.
    pub is_in_question: bool,
}

/// What is found in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// No mark was ever written.
    Nothing,
    /// It does not verify, or is of another directory or version.
    Unreadable,
    /// A mark.
    Mark(TailMark),
}

impl TailMark {
    /// The block that says so, in a directory.
    pub fn encode(&self, directory: u128) -> [u8; BLOCK_BYTES] {
        let mut block = [0; BLOCK_BYTES];
        block[0..8].copy_from_slice(&MAGIC);
        block[8..12].copy_from_slice(&VERSION.to_le_bytes());
        block[12] = u8::from(self.is_in_question);
        block[16..32].copy_from_slice(&directory.to_le_bytes());
        block[32..40].copy_from_slice(&self.sequence.to_le_bytes());
        block[40..48].copy_from_slice(&self.end.to_le_bytes());
        let check = crc32c::crc32c(&block[..CHECKED_BYTES]);
        block[CHECKED_BYTES..CHECKED_BYTES + 4].copy_from_slice(&check.to_le_bytes());
        block
    }

    /// Reads the file of a directory.
    pub fn decode(bytes: &[u8], directory: u128) -> Found {
        let Some(block) = bytes.get(..BLOCK_BYTES) else {
            return if bytes.is_empty() { Found::Nothing } else { Found::Unreadable };
        };
        if block.iter().all(|byte| *byte == 0) {
            return Found::Nothing;
        }
        let u64_at = |offset: usize| u64::from_le_bytes(block[offset..offset + 8].try_into().expect("eight bytes"));
        let mark = Self { sequence: u64_at(32), end: u64_at(40), is_in_question: block[12] == 1 };
        if block[..CHECKED_BYTES + 4] == mark.encode(directory)[..CHECKED_BYTES + 4] {
            Found::Mark(mark)
        } else {
            Found::Unreadable
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written_and_not_otherwise() {
        let mark = TailMark { sequence: 7, end: 4096 + 88, is_in_question: true };
        let block = mark.encode(5);
        assert_eq!(TailMark::decode(&block, 5), Found::Mark(mark));
        assert_eq!(TailMark::decode(&block, 6), Found::Unreadable);
        assert_eq!(TailMark::decode(&[0; BLOCK_BYTES], 5), Found::Nothing);
        assert_eq!(TailMark::decode(&[], 5), Found::Nothing);
        assert_eq!(TailMark::decode(&block[..100], 5), Found::Unreadable);
        for bit in 0..(CHECKED_BYTES + 4) * 8 {
            let mut damaged = block;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(TailMark::decode(&damaged, 5), Found::Unreadable, "bit {bit}");
        }
    }
}
