//! What a batch record is made of: see `docs/formats/log.md`.

use bytes::Bytes;
use stdx::log::{Entry, EntryKind, HardState, Membership};

use crate::buffer::BlockBuffer;
use crate::types::{Append, CheckpointMark};

/// Bytes before a frame's payload: kind, detail, two zeros, group, payload length.
pub const FRAME_HEADER_BYTES: usize = 12;

/// Bytes of an entry's payload before its data: term and index.
const ENTRY_FIXED_BYTES: usize = 16;

const KIND_ENTRY: u8 = 1;
const KIND_HARD_STATE: u8 = 2;
const KIND_MEMBERSHIP: u8 = 3;
const KIND_MARK: u8 = 4;
const KIND_STANDING: u8 = 5;

/// One frame, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// An entry of the group's log.
    Entry(Entry),
    /// The group's hard state.
    HardState(HardState),
    /// The group's membership.
    Membership(Membership),
    /// The group's newest checkpoint.
    Mark(CheckpointMark),
    /// Where the group's log ended when this segment was begun. Opens the restatement of a group, which is all that is
    /// known of it from earlier segments but for its entries.
    Standing {
        /// Index of the last entry, or of the checkpoint.
        last_index: u64,
    },
}

/// Bytes an entry takes up.
pub fn entry_bytes(entry: &Entry) -> usize {
    FRAME_HEADER_BYTES + ENTRY_FIXED_BYTES + entry.data.len()
}

/// Bytes a whole append takes up.
pub fn append_bytes(append: &Append) -> usize {
    append.hard_state.map_or(0, |_| FRAME_HEADER_BYTES + 24)
        + append.membership.as_ref().map_or(0, |membership| FRAME_HEADER_BYTES + membership_bytes(membership))
        + append.entries.iter().map(entry_bytes).sum::<usize>()
}

fn membership_bytes(membership: &Membership) -> usize {
    lists(membership).iter().map(|list| 4 + 8 * list.len()).sum()
}

fn lists(membership: &Membership) -> [&Vec<u64>; 4] {
    [&membership.voters, &membership.learners, &membership.voters_outgoing, &membership.learners_next]
}

fn header(kind: u8, detail: u8, group: u32, payload_bytes: usize) -> [u8; FRAME_HEADER_BYTES] {
    let mut header = [kind, detail, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    header[4..8].copy_from_slice(&group.to_le_bytes());
    let payload_bytes = u32::try_from(payload_bytes).expect("a frame fits a record");
    header[8..12].copy_from_slice(&payload_bytes.to_le_bytes());
    header
}

/// The fixed part of an entry's frame; its data follow.
#[inline]
pub fn entry_header(group: u32, entry: &Entry) -> [u8; FRAME_HEADER_BYTES + ENTRY_FIXED_BYTES] {
    let detail = match entry.kind {
        EntryKind::Normal => 0,
        EntryKind::Membership => 1,
    };
    let mut fixed = [0; FRAME_HEADER_BYTES + ENTRY_FIXED_BYTES];
    fixed[..12].copy_from_slice(&header(KIND_ENTRY, detail, group, ENTRY_FIXED_BYTES + entry.data.len()));
    fixed[12..20].copy_from_slice(&entry.term.to_le_bytes());
    fixed[20..28].copy_from_slice(&entry.index.to_le_bytes());
    fixed
}

/// Where frames are written to.
pub trait Sink {
    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl Sink for BlockBuffer {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.push(bytes);
    }
}

/// Writes a whole append. Entries come first: a hard state that commits them may not be read without them.
pub fn encode_append(append: &Append, out: &mut impl Sink) {
    for entry in &append.entries {
        out.put(&entry_header(append.group, entry));
        out.put(&entry.data);
    }
    if let Some(membership) = &append.membership {
        encode_membership(append.group, membership, out);
    }
    if let Some(hard_state) = &append.hard_state {
        encode_hard_state(append.group, hard_state, out);
    }
}

/// Appends a hard state's frame.
pub fn encode_hard_state(group: u32, hard_state: &HardState, out: &mut impl Sink) {
    out.put(&header(KIND_HARD_STATE, 0, group, 24));
    for number in [hard_state.term, hard_state.vote, hard_state.commit] {
        out.put(&number.to_le_bytes());
    }
}

/// Appends a membership's frame.
pub fn encode_membership(group: u32, membership: &Membership, out: &mut impl Sink) {
    out.put(&header(KIND_MEMBERSHIP, 0, group, membership_bytes(membership)));
    put_membership(membership, out);
}

/// Appends a membership as it stands in frames and in checkpoint headers: four lists, each a count and its numbers.
pub fn put_membership(membership: &Membership, out: &mut impl Sink) {
    for list in lists(membership) {
        out.put(&u32::try_from(list.len()).expect("a membership is small").to_le_bytes());
        for node in list {
            out.put(&node.to_le_bytes());
        }
    }
}

/// Appends a mark's frame.
pub fn encode_mark(group: u32, mark: &CheckpointMark, out: &mut impl Sink) {
    out.put(&header(KIND_MARK, 0, group, 16 + membership_bytes(&mark.membership)));
    out.put(&mark.index.to_le_bytes());
    out.put(&mark.term.to_le_bytes());
    put_membership(&mark.membership, out);
}

/// Appends the frame that opens a group's restatement.
pub fn encode_standing(group: u32, last_index: u64, out: &mut impl Sink) {
    out.put(&header(KIND_STANDING, 0, group, 8));
    out.put(&last_index.to_le_bytes());
}

/// Reads numbers off the front of a slice.
pub struct Numbers<'a>(pub &'a [u8]);

impl Numbers<'_> {
    /// The next u32.
    pub fn u32(&mut self) -> Option<u32> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*number))
    }

    /// The next u64.
    pub fn u64(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    /// The next membership.
    pub fn membership(&mut self) -> Option<Membership> {
        let mut list = || -> Option<Vec<u64>> {
            let count = self.u32()? as usize;
            // The count is believed only as far as the bytes reach.
            if count > self.0.len() / 8 {
                return None;
            }
            (0..count).map(|_| self.u64()).collect()
        };
        Some(Membership { voters: list()?, learners: list()?, voters_outgoing: list()?, learners_next: list()? })
    }
}

/// Reads the frame at `offset` of a segment; the record's body ends at `body_end`. Returns the group, the frame and the
/// offset behind it; None if there is no such thing.
#[inline]
pub fn decode(segment: &Bytes, offset: usize, body_end: usize) -> Option<(u32, Frame, usize)> {
    let frame = segment.get(offset..body_end)?;
    let (header, rest) = frame.split_first_chunk::<FRAME_HEADER_BYTES>()?;
    let mut numbers = Numbers(&header[4..]);
    let (group, payload_bytes) = (numbers.u32()?, numbers.u32()? as usize);
    let payload = rest.get(..payload_bytes)?;
    let payload_start = offset + FRAME_HEADER_BYTES;
    let end = payload_start + payload_bytes;
    let mut numbers = Numbers(payload);
    let frame = match header[..4] {
        [KIND_ENTRY, detail @ (0 | 1), 0, 0] => {
            let (term, index) = (numbers.u64()?, numbers.u64()?);
            let kind = if detail == 0 { EntryKind::Normal } else { EntryKind::Membership };
            let data = segment.slice(payload_start + ENTRY_FIXED_BYTES..end);
            return Some((group, Frame::Entry(Entry { term, index, kind, data }), end));
        }
        [KIND_HARD_STATE, 0, 0, 0] => {
            Frame::HardState(HardState { term: numbers.u64()?, vote: numbers.u64()?, commit: numbers.u64()? })
        }
        [KIND_MEMBERSHIP, 0, 0, 0] => Frame::Membership(numbers.membership()?),
        [KIND_MARK, 0, 0, 0] => Frame::Mark(CheckpointMark {
            index: numbers.u64()?,
            term: numbers.u64()?,
            membership: numbers.membership()?,
        }),
        [KIND_STANDING, 0, 0, 0] => Frame::Standing { last_index: numbers.u64()? },
        _ => return None,
    };
    numbers.0.is_empty().then_some((group, frame, end))
}
