//! Frames: compressed pieces of a file, each of which verifies by itself and only at its place.

use bytes::Bytes;
use stdx::UnixMillis;
use stdx::log::{Entry, EntryKind};

/// Bytes before a frame's body.
pub(crate) const FRAME_HEADER_BYTES: usize = 48;

/// Bytes of a file before its first frame.
pub(crate) const FILE_HEADER_BYTES: usize = 64;

/// Most bytes of a frame's content, before compression.
pub(crate) const RAW_BYTES_MAX: usize = 1 << 30;

const VERSION: u32 = 1;

/// The version of a file with frames that are encrypted.
const VERSION_SEALED: u32 = 2;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Log,
    Base,
    /// A part of what changes: see [`crate::ChangesInfo`].
    Changes,
}

impl Kind {
    fn magic(self) -> [u8; 8] {
        match self {
            Self::Log => *b"HOLDARL\n",
            Self::Base => *b"HOLDARB\n",
            Self::Changes => *b"HOLDARC\n",
        }
    }
}

/// What the header of a file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub kind: Kind,
    /// Its frames are encrypted.
    pub is_sealed: bool,
    /// The archive's name.
    pub archive: u128,
    pub group: u32,
    /// Of a log: index of its first entry. Of a base: index of the last entry that it has in it. Of changes: the node
    /// that wrote them.
    pub index: u64,
    /// Of a log: index of the last entry before it, of the archive or of a base. Of a base: the term of its entry.
    /// Of changes: the moment behind which nothing of them is.
    pub other: u64,
    /// Of a base: the group's moment. Of changes: that behind which they have everything.
    pub moment: UnixMillis,
}

impl FileHeader {
    pub(crate) fn encode(&self) -> [u8; FILE_HEADER_BYTES] {
        let mut out = [0; FILE_HEADER_BYTES];
        out[..8].copy_from_slice(&self.kind.magic());
        let version = if self.is_sealed { VERSION_SEALED } else { VERSION };
        out[8..12].copy_from_slice(&version.to_le_bytes());
        out[16..32].copy_from_slice(&self.archive.to_le_bytes());
        out[32..36].copy_from_slice(&self.group.to_le_bytes());
        out[40..48].copy_from_slice(&self.index.to_le_bytes());
        out[48..56].copy_from_slice(&self.other.to_le_bytes());
        out[56..64].copy_from_slice(&self.moment.0.to_le_bytes());
        let check = crc32c::crc32c(&out);
        out[12..16].copy_from_slice(&check.to_le_bytes());
        out
    }

    /// Reads it back; or what is wrong.
    pub(crate) fn decode(kind: Kind, bytes: &[u8; FILE_HEADER_BYTES]) -> Result<Self, String> {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let version = number(8) as u32;
        let header = Self {
            kind,
            is_sealed: version == VERSION_SEALED,
            archive: u128::from_le_bytes(bytes[16..32].try_into().expect("sixteen bytes")),
            group: number(32) as u32,
            index: number(40),
            other: number(48),
            moment: UnixMillis(number(56).cast_signed()),
        };
        if bytes[..8] == kind.magic() && version > VERSION_SEALED {
            return Err(format!(
                "it has format {version}, and this version of Holdfast knows formats up to {VERSION_SEALED}"
            ));
        }
        if header.encode() == *bytes { Ok(header) } else { Err("its header does not verify".into()) }
    }

    /// Start of every frame's checksum: frames of other files do not verify.
    pub(crate) fn seed(&self) -> u32 {
        crc32c::crc32c(&self.encode())
    }
}

/// What the header of a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub body_check: u32,
    pub body_bytes: u32,
    pub raw_bytes: u32,
    /// Of a log: its first and last entry. Of a base: number of the first chunk, and one past the last.
    pub first: u64,
    pub last: u64,
    /// Of a log: the latest moment of its entries, and of those before them in the file.
    pub moment: UnixMillis,
    /// Of a log: the term of its last entry.
    pub term: u64,
}

impl FrameHeader {
    pub(crate) fn encode(&self, seed: u32, offset: u64) -> [u8; FRAME_HEADER_BYTES] {
        let mut out = [0; FRAME_HEADER_BYTES];
        out[4..8].copy_from_slice(&self.body_check.to_le_bytes());
        out[8..12].copy_from_slice(&self.body_bytes.to_le_bytes());
        out[12..16].copy_from_slice(&self.raw_bytes.to_le_bytes());
        out[16..24].copy_from_slice(&self.first.to_le_bytes());
        out[24..32].copy_from_slice(&self.last.to_le_bytes());
        out[32..40].copy_from_slice(&self.moment.0.to_le_bytes());
        out[40..48].copy_from_slice(&self.term.to_le_bytes());
        let check = crc32c::crc32c_append(crc32c::crc32c_append(seed, &offset.to_le_bytes()), &out[4..]);
        out[..4].copy_from_slice(&check.to_le_bytes());
        out
    }

    /// Where the body of the frame belongs: that it stands there is sealed with it.
    pub(crate) fn place(&self, file: &FileHeader, offset: u64) -> Vec<u8> {
        // Not the checksum and length of the body, which are of what has been sealed.
        [file.encode().as_slice(), &offset.to_le_bytes(), &self.encode(0, 0)[12..]].concat()
    }

    pub(crate) fn decode(seed: u32, offset: u64, bytes: &[u8; FRAME_HEADER_BYTES]) -> Option<Self> {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let half = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let header = Self {
            body_check: half(4),
            body_bytes: half(8),
            raw_bytes: half(12),
            first: number(16),
            last: number(24),
            moment: UnixMillis(number(32).cast_signed()),
            term: number(40),
        };
        (header.encode(seed, offset) == *bytes && header.raw_bytes as usize <= RAW_BYTES_MAX).then_some(header)
    }
}

/// Appends an entry to a frame's content.
pub(crate) fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    out.push(match entry.kind {
        EntryKind::Normal => 0,
        EntryKind::Membership => 1,
    });
    out.extend_from_slice(&entry.term.to_le_bytes());
    out.extend_from_slice(&entry.index.to_le_bytes());
    out.extend_from_slice(&(entry.data.len() as u32).to_le_bytes());
    out.extend_from_slice(&entry.data);
}

/// Bytes of an entry before its data.
pub(crate) const ENTRY_HEADER_BYTES: usize = 21;

/// The entries of a frame's content. `None` unless they are exactly these.
pub(crate) fn take_entries(raw: &Bytes, first: u64, last: u64) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut position = 0;
    for index in first..=last {
        let header = raw.get(position..position + ENTRY_HEADER_BYTES)?;
        let kind = match header[0] {
            0 => EntryKind::Normal,
            1 => EntryKind::Membership,
            _ => return None,
        };
        let term = u64::from_le_bytes(header[1..9].try_into().ok()?);
        let found = u64::from_le_bytes(header[9..17].try_into().ok()?);
        let length = u32::from_le_bytes(header[17..21].try_into().ok()?) as usize;
        position += ENTRY_HEADER_BYTES;
        if found != index || raw.len() - position < length {
            return None;
        }
        entries.push(Entry { term, index, kind, data: raw.slice(position..position + length) });
        position += length;
    }
    (position == raw.len()).then_some(entries)
}
