//! Segment headers and record headers: see `docs/formats/log.md`.

use crate::disk::BLOCK_BYTES;
use crate::fault::Fault;
use crate::layout::{FORMAT_VERSION, RECORD_BODY_BYTES_MAX};

/// Offset of the first record of a segment.
pub const RECORDS_START: u64 = BLOCK_BYTES as u64;

/// Bytes before a record's body.
pub const RECORD_HEADER_BYTES: usize = 32;

const MAGIC: [u8; 8] = *b"HOLDLOG\n";

/// What a record is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// Frames, to be taken all or not at all.
    Batch = 1,
    /// Nothing; its `synced` says what it says.
    Seal = 2,
    /// The log goes on in the next segment.
    End = 3,
    /// The process stopped in good order.
    Stop = 4,
}

/// A record's header, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// What it is for.
    pub kind: RecordKind,
    /// Length of the body.
    pub body_bytes: u32,
    /// CRC-32C of the body.
    pub body_check: u32,
    /// Place in the log, counted over all segments from 1.
    pub number: u64,
    /// Everything of this segment before this offset was on stable storage when the record was made.
    pub synced: u64,
}

/// The start of every checksum in a segment: directory and sequence. Makes the same bytes in another directory, segment
/// or place fail to verify.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    seed: u32,
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
}

impl Place {
    /// For a segment of a directory.
    pub fn new(directory: u128, sequence: u64) -> Self {
        Self { seed: crc32c::crc32c_append(crc32c::crc32c(&directory.to_le_bytes()), &sequence.to_le_bytes()) }
    }

    fn check(self, offset: u64, header: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c_append(self.seed, &offset.to_le_bytes()), &header[4..RECORD_HEADER_BYTES])
    }

    /// Writes a header for a record at `offset`.
    pub fn encode(self, offset: u64, header: &RecordHeader, out: &mut [u8]) {
        out[4..8].copy_from_slice(&header.body_check.to_le_bytes());
        out[8..12].copy_from_slice(&header.body_bytes.to_le_bytes());
        out[12..16].copy_from_slice(&[header.kind as u8, 0, 0, 0]);
        out[16..24].copy_from_slice(&header.number.to_le_bytes());
        out[24..32].copy_from_slice(&header.synced.to_le_bytes());
        let check = self.check(offset, out);
        out[0..4].copy_from_slice(&check.to_le_bytes());
    }

    /// Reads the header of a record at `offset` of a segment. None if there is none that verifies.
    #[inline]
    pub fn decode_header(self, segment: &[u8], offset: usize) -> Option<RecordHeader> {
        self.header_at(offset as u64, segment.get(offset..offset + RECORD_HEADER_BYTES)?)
    }

    /// Reads a header that stands at `offset` of its segment.
    #[inline]
    pub fn header_at(self, offset: u64, header: &[u8]) -> Option<RecordHeader> {
        // Cheap first: this runs at every eighth byte behind the log's end, most of which are zero.
        let kind = match header[12..16] {
            [1, 0, 0, 0] => RecordKind::Batch,
            [2, 0, 0, 0] => RecordKind::Seal,
            [3, 0, 0, 0] => RecordKind::End,
            [4, 0, 0, 0] => RecordKind::Stop,
            _ => return None,
        };
        (u32_at(header, 0) == self.check(offset, header)).then(|| RecordHeader {
            kind,
            body_bytes: u32_at(header, 8),
            body_check: u32_at(header, 4),
            number: u64_at(header, 16),
            synced: u64_at(header, 24),
        })
    }

    /// What stands at `offset` of a segment where record `number` should be and no record verifies: the remains of one,
    /// as far as they tell. A header of which one bit is wrong is recognized by its check, one of which more is wrong
    /// by the number. Old bytes of a segment that is used again are none: their check covers another segment, and their
    /// numbers are smaller.
    pub fn remains(self, segment: &[u8], offset: usize, number: Option<u64>) -> Option<RecordKind> {
        let mut header: [u8; RECORD_HEADER_BYTES] =
            segment.get(offset..offset + RECORD_HEADER_BYTES)?.try_into().expect("a header's length");
        if let Some(header) = self.header_at(offset as u64, &header) {
            return Some(header.kind);
        }
        for bit in 0..RECORD_HEADER_BYTES * 8 {
            header[bit / 8] ^= 1 << (bit % 8);
            if let Some(header) = self.header_at(offset as u64, &header) {
                return Some(header.kind);
            }
            header[bit / 8] ^= 1 << (bit % 8);
        }
        (number == Some(u64_at(&header, 16))).then_some(RecordKind::Batch)
    }

    /// Reads the header and checks the body of a record at `offset` of a segment given whole. Returns the header and
    /// the end of the body; none if there is no record that verifies.
    pub fn decode(self, segment: &[u8], offset: usize) -> Option<(RecordHeader, usize)> {
        let header = self.decode_header(segment, offset)?;
        let body_start = offset + RECORD_HEADER_BYTES;
        let body = segment.get(body_start..body_start + header.body_bytes as usize)?;
        (crc32c::crc32c(body) == header.body_check).then_some((header, body_start + body.len()))
    }
}

/// Bytes a record with such a body takes up.
pub fn record_bytes(body_bytes: u64) -> u64 {
    assert!(body_bytes <= RECORD_BODY_BYTES_MAX, "a record of {body_bytes} bytes");
    (RECORD_HEADER_BYTES as u64 + body_bytes).next_multiple_of(8)
}

/// The first block of a segment.
pub fn encode_segment_header(directory: u128, sequence: u64, segment_bytes: u64) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    block[0..8].copy_from_slice(&MAGIC);
    block[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    block[16..32].copy_from_slice(&directory.to_le_bytes());
    block[32..40].copy_from_slice(&sequence.to_le_bytes());
    block[40..48].copy_from_slice(&segment_bytes.to_le_bytes());
    let check = crc32c::crc32c(&block);
    block[12..16].copy_from_slice(&check.to_le_bytes());
    block
}

/// Checks the first block of a segment of `length` bytes.
pub fn check_segment_header(
    file: &str,
    block: &[u8],
    directory: u128,
    sequence: u64,
    length: u64,
) -> Result<(), Fault> {
    if block.len() < BLOCK_BYTES {
        return Err(Fault::damaged(file, length, "the file ends within its header"));
    }
    let version = u32_at(block, 8);
    if block[..8] == MAGIC && version > FORMAT_VERSION {
        return Err(Fault::Newer { file: file.into(), version: version.into(), known: FORMAT_VERSION });
    }
    let segment_bytes = u64_at(block, 40);
    if block[..BLOCK_BYTES] == encode_segment_header(directory, sequence, segment_bytes) {
        return if segment_bytes == length {
            Ok(())
        } else {
            Err(Fault::damaged(file, length, format!("the file has {length} bytes and should have {segment_bytes}")))
        };
    }
    let directory_found = u128::from_le_bytes(block[16..32].try_into().expect("sixteen bytes"));
    let sequence_found = u64_at(block, 32);
    let is_intact = block[..BLOCK_BYTES] == encode_segment_header(directory_found, sequence_found, segment_bytes);
    Err(match is_intact {
        true if directory_found != directory => Fault::damaged(file, 16, "it belongs to another data directory"),
        true => Fault::damaged(file, 32, format!("it is segment {sequence_found:016x} under another name")),
        false => Fault::damaged(file, 0, "its header does not verify"),
    })
}

/// The directory a segment says it belongs to, if its header is intact.
pub fn directory_of_segment(block: &[u8]) -> Option<u128> {
    let directory = u128::from_le_bytes(block.get(16..32)?.try_into().ok()?);
    let header = encode_segment_header(directory, u64_at(block.get(..48)?, 32), u64_at(block, 40));
    (block.get(..BLOCK_BYTES)? == header).then_some(directory)
}
