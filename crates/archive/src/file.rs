//! Reading one file of an archive.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use stdx::UnixMillis;
use stdx::log::Entry;

use crate::fault::Fault;
use crate::frame::{FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FileHeader, FrameHeader, Kind, take_entries};
use crate::key::Key;
use crate::manifest::Archive;
use crate::place::Source;

/// A frame of a log, as its header has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameInfo {
    /// Where in the file it begins.
    pub offset: u64,
    /// Bytes that it takes up.
    pub bytes: u64,
    /// Bytes of its content, before compression.
    pub raw_bytes: u64,
    /// Index of its first entry.
    pub first: u64,
    /// Index of its last entry.
    pub last: u64,
    /// Term of that.
    pub term: u64,
    /// The latest moment of its entries, and of those before them.
    pub moment: UnixMillis,
}

/// The frames of a file.
struct Frames {
    path: PathBuf,
    file: Source,
    length: u64,
    header: FileHeader,
    seed: u32,
    key: Option<Key>,
    offset: u64,
}

impl Frames {
    /// Opens a file, which must be of this archive.
    fn open(archive: &Archive, group: u32, kind: Kind, path: &Path) -> Result<(Self, FileHeader), Fault> {
        let told = |action| move |error| Fault::io(action, path, error);
        let file = archive.place().open(path).map_err(told("open"))?;
        let length = file.length();
        let mut bytes = [0; FILE_HEADER_BYTES];
        if length < FILE_HEADER_BYTES as u64 {
            return Err(Fault::damaged(path, length, "the file ends too early"));
        }
        file.read_exact_at(&mut bytes, 0).map_err(told("read"))?;
        let header = FileHeader::decode(kind, &bytes).map_err(|what| Fault::damaged(path, 0, what))?;
        if (header.archive, header.group) != (archive.manifest().name, group) {
            let what = format!("it is of group {} of the archive {:032x}", header.group, header.archive);
            return Err(Fault::damaged(path, 0, what));
        }
        let key = match (header.is_sealed, archive.key()) {
            (true, Some(key)) => Some(key.clone()),
            (false, None) => None,
            _ => {
                return Err(Fault::damaged(path, 0, "it is encrypted, and the archive is not, or the other way round"));
            }
        };
        let (path, offset) = (path.to_owned(), FILE_HEADER_BYTES as u64);
        let frames = Self { path, file, length, header, seed: header.seed(), key, offset };
        Ok((frames, header))
    }

    /// The header of the next frame, and where it is; none at the end of the file.
    fn next(&mut self) -> Result<Option<(u64, FrameHeader)>, Fault> {
        let offset = self.offset;
        if offset == self.length {
            return Ok(None);
        }
        let body_offset = offset + FRAME_HEADER_BYTES as u64;
        if body_offset > self.length {
            return Err(Fault::damaged(&self.path, offset, "the file ends within a frame"));
        }
        let mut bytes = [0; FRAME_HEADER_BYTES];
        self.file.read_exact_at(&mut bytes, offset).map_err(|error| Fault::io("read", &self.path, error))?;
        let damaged = |what| Fault::damaged(&self.path, offset, what);
        let header = FrameHeader::decode(self.seed, offset, &bytes)
            .ok_or_else(|| damaged("the header of a frame does not verify"))?;
        let end = body_offset + u64::from(header.body_bytes);
        if end > self.length {
            return Err(damaged("the file ends within a frame"));
        }
        self.offset = end;
        Ok(Some((offset, header)))
    }

    /// True if a frame begins behind this place.
    fn continues_behind(&self, offset: u64) -> Result<bool, Fault> {
        let start = offset + 1;
        let mut rest = vec![0; self.length.saturating_sub(start) as usize];
        self.file.read_exact_at(&mut rest, start).map_err(|error| Fault::io("read", &self.path, error))?;
        let mut places = rest.windows(FRAME_HEADER_BYTES).zip(start..);
        Ok(places.any(|(bytes, offset)| {
            let bytes = bytes.try_into().expect("a header's bytes");
            FrameHeader::decode(self.seed, offset, bytes).is_some()
        }))
    }

    /// The content of a frame.
    fn content(&self, offset: u64, header: &FrameHeader) -> Result<Bytes, Fault> {
        let mut body = vec![0; header.body_bytes as usize];
        self.file
            .read_exact_at(&mut body, offset + FRAME_HEADER_BYTES as u64)
            .map_err(|error| Fault::io("read", &self.path, error))?;
        let damaged = |what| Fault::damaged(&self.path, offset, what);
        if crc32c::crc32c(&body) != header.body_check {
            return Err(damaged("a frame does not verify"));
        }
        if let Some(key) = &self.key {
            let place = header.place(&self.header, offset);
            body = key.open(&place, body).ok_or_else(|| damaged("a frame is not what was encrypted"))?;
        }
        let raw = zstd::bulk::decompress(&body, header.raw_bytes as usize)
            .ok()
            .filter(|raw| raw.len() == header.raw_bytes as usize);
        raw.map(Bytes::from).ok_or_else(|| damaged("a frame verifies and cannot be decompressed"))
    }
}

/// A part of a group's log.
pub struct LogFile {
    frames: Frames,
    header: FileHeader,
}

impl LogFile {
    /// Opens it.
    ///
    /// # Errors
    /// If it cannot be read, or is not what its name says.
    pub fn open(archive: &Archive, group: u32, path: &Path) -> Result<Self, Fault> {
        let (frames, header) = Frames::open(archive, group, Kind::Log, path)?;
        Ok(Self { frames, header })
    }

    /// Index of its first entry.
    pub fn first(&self) -> u64 {
        self.header.index
    }

    /// What the archive had before: index of the last entry of its log, or of a base. Smaller than the entry before
    /// the first if the log did not hold what was between.
    pub fn previous(&self) -> u64 {
        self.header.other
    }

    /// The next frame, of which only the header is read; none at the end of the file.
    ///
    /// # Errors
    /// Names where the file does not verify; it cannot be read on from there.
    #[expect(clippy::should_implement_trait, reason = "it may fail")]
    pub fn next(&mut self) -> Result<Option<FrameInfo>, Fault> {
        let Some((offset, header)) = self.frames.next()? else { return Ok(None) };
        Ok(Some(FrameInfo {
            offset,
            bytes: FRAME_HEADER_BYTES as u64 + u64::from(header.body_bytes),
            raw_bytes: header.raw_bytes.into(),
            first: header.first,
            last: header.last,
            term: header.term,
            moment: header.moment,
        }))
    }

    /// True if this fault is no write that was cut short: there are frames behind, and each is on disk before the next
    /// one is written. Nor is what cannot be read.
    pub(crate) fn is_damaged_by(&self, fault: &Fault) -> bool {
        fault.offset().is_none_or(|offset| self.frames.continues_behind(offset).unwrap_or(true))
    }

    /// The entries of a frame.
    ///
    /// # Errors
    /// Names the frame if it does not verify.
    pub fn entries(&self, frame: &FrameInfo) -> Result<Vec<Entry>, Fault> {
        let path = &self.frames.path;
        let mut bytes = [0; FRAME_HEADER_BYTES];
        self.frames.file.read_exact_at(&mut bytes, frame.offset).map_err(|error| Fault::io("read", path, error))?;
        let header = FrameHeader::decode(self.frames.seed, frame.offset, &bytes)
            .ok_or_else(|| Fault::damaged(path, frame.offset, "the header of a frame does not verify"))?;
        let raw = self.frames.content(frame.offset, &header)?;
        take_entries(&raw, frame.first, frame.last)
            .ok_or_else(|| Fault::damaged(path, frame.offset, "a frame verifies and does not hold its entries"))
    }
}

/// A base that is being read, or a file with changes.
pub struct BaseReader {
    frames: Frames,
    header: FileHeader,
    chunks: u64,
}

impl BaseReader {
    /// Opens it.
    ///
    /// # Errors
    /// If it cannot be read, or is not what its name says.
    pub fn open(archive: &Archive, group: u32, path: &Path) -> Result<Self, Fault> {
        let (frames, header) = Frames::open(archive, group, Kind::Base, path)?;
        Ok(Self { frames, header, chunks: 0 })
    }

    /// Opens a file with what changed.
    ///
    /// # Errors
    /// If it cannot be read, or is not what its name says.
    pub fn open_changes(archive: &Archive, path: &Path) -> Result<Self, Fault> {
        let (frames, header) = Frames::open(archive, 0, Kind::Changes, path)?;
        Ok(Self { frames, header, chunks: 0 })
    }

    /// The last entry that it has in it: index and term.
    pub fn position(&self) -> (u64, u64) {
        (self.header.index, self.header.other)
    }

    /// The moment of that, or of the last one before it that has a moment.
    pub fn moment(&self) -> UnixMillis {
        self.header.moment
    }

    /// The next chunks; none when all of it has been found to be whole.
    ///
    /// # Errors
    /// Names the frame that does not verify.
    pub fn next_chunks(&mut self) -> Result<Option<Vec<Bytes>>, Fault> {
        let path = self.frames.path.clone();
        let Some((offset, header)) = self.frames.next()? else {
            return Err(Fault::damaged(&path, self.frames.offset, "the file ends too early"));
        };
        let damaged = |what| Fault::damaged(&path, offset, what);
        if header.first != self.chunks {
            return Err(damaged("a frame is not in its place"));
        }
        let raw = self.frames.content(offset, &header)?;
        if header.first == header.last {
            let is_end = raw.is_empty() && self.frames.offset == self.frames.length;
            return if is_end { Ok(None) } else { Err(damaged("there is something behind the end")) };
        }
        let mut chunks = Vec::new();
        let mut position = 0;
        while let Some(length) = raw.get(position..position + 4) {
            let length = u32::from_le_bytes(length.try_into().expect("four bytes")) as usize;
            position += 4;
            if raw.len() - position < length {
                return Err(damaged("a frame verifies and does not hold its chunks"));
            }
            chunks.push(raw.slice(position..position + length));
            position += length;
        }
        self.chunks += chunks.len() as u64;
        if position != raw.len() || self.chunks != header.last {
            return Err(damaged("a frame verifies and does not hold its chunks"));
        }
        Ok(Some(chunks))
    }

    /// How much of it has been read, and its size, in bytes.
    pub fn progress(&self) -> (u64, u64) {
        (self.frames.offset, self.frames.length)
    }
}
