//! Writing what an archive holds of one group.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use stdx::UnixMillis;
use stdx::log::Entry;

use crate::bucket::{Bucket, Upload};
use crate::changes::ChangesSpan;
use crate::fault::Fault;
use crate::frame::{FILE_HEADER_BYTES, FileHeader, FrameHeader, Kind, put_entry};
use crate::group::End;
use crate::key::Key;
use crate::manifest::{Archive, draft_of, make_once, publish};
use crate::place::{Name, Place};

/// Content of a base's frame: less than this, and one chunk.
const BASE_FRAME_BYTES: usize = 1 << 20;

/// Writes entries of a group. Each writer makes files of its own.
pub struct GroupWriter {
    archive: Archive,
    group: u32,
    /// Tells drafts of several writers apart.
    mark: u128,
    level: i32,
    end: End,
    damage: Option<Fault>,
    open: Option<OpenFile>,
    raw: Vec<u8>,
}

struct OpenFile {
    path: PathBuf,
    sink: Sink,
    header: FileHeader,
    offset: u64,
}

/// Where a log is appended to.
enum Sink {
    File(File),
    /// All of the object, which is replaced as a whole.
    Object(Box<Bucket>, Vec<u8>),
}

/// Makes a frame of a file.
fn frame(
    header: FrameHeader,
    raw: &[u8],
    level: i32,
    (file, offset): (&FileHeader, u64),
    key: Option<&Key>,
) -> io::Result<Vec<u8>> {
    let mut body = zstd::bulk::compress(raw, level)?;
    let header = FrameHeader { raw_bytes: raw.len() as u32, ..header };
    if let Some(key) = key {
        body = key.seal(&header.place(file, offset), body)?;
    }
    let header = FrameHeader { body_check: crc32c::crc32c(&body), body_bytes: body.len() as u32, ..header };
    let mut out = header.encode(file.seed(), offset).to_vec();
    out.extend_from_slice(&body);
    Ok(out)
}

impl GroupWriter {
    /// A writer that goes on where the archive of the group ends. `mark` is random; `level` is how hard to compress.
    ///
    /// # Errors
    /// If the archive cannot be read.
    pub fn open(archive: &Archive, group: u32, mark: u128, level: i32) -> Result<Self, Fault> {
        make_directory(archive, group)?;
        let (end, damage) = archive.end_and_damage(group)?;
        Ok(Self { archive: archive.clone(), group, mark, level, end, damage, open: None, raw: Vec::new() })
    }

    /// What was damaged where this goes on, with more behind it.
    pub fn damage(&self) -> Option<&Fault> {
        self.damage.as_ref()
    }

    /// Where the archive ends.
    pub fn end(&self) -> End {
        self.end
    }

    /// Goes on behind another entry than the last: a base has, or will have, what is up to it.
    ///
    /// # Panics
    /// If the archive is further.
    pub fn skip_to(&mut self, index: u64, term: u64) {
        assert!(index >= self.end.index, "an archive does not go back");
        self.open = None;
        (self.end.index, self.end.term) = (index, term);
        if self.end.log_index == 0 {
            self.end.log_index = index;
        }
    }

    /// Writes entries that follow on the end of the archive, durably. `moment` is the latest of theirs. How many bytes
    /// that took.
    ///
    /// # Errors
    /// If they cannot be written, or somebody else has gone on from here; the writer is of no use then.
    ///
    /// # Panics
    /// If they do not follow.
    pub fn append(&mut self, entries: &[Entry], moment: Option<UnixMillis>) -> Result<u64, Fault> {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return Ok(0) };
        assert_eq!(first.index, self.end.index + 1, "entries of an archive follow on each other");
        self.raw.clear();
        for (entry, index) in entries.iter().zip(first.index..) {
            assert_eq!(entry.index, index, "entries of an archive follow on each other");
            put_entry(&mut self.raw, entry);
        }
        if self.open.as_ref().is_some_and(|open| open.offset >= self.archive.place().log_bytes_max()) {
            self.open = None;
        }
        let moment = moment.map_or(self.end.moment, |moment| moment.max(self.end.moment));
        let header = FrameHeader {
            body_check: 0,
            body_bytes: 0,
            raw_bytes: 0,
            first: first.index,
            last: last.index,
            moment,
            term: last.term,
        };
        let written = match self.open.take() {
            Some(open) => self.append_to(open, header)?,
            None => self.begin(first.index, header)?,
        };
        let log_first = self.open.as_ref().map_or(0, |open| open.header.index);
        self.end = End { index: last.index, term: last.term, moment, log_index: last.index, log_first };
        Ok(written)
    }

    fn append_to(&mut self, mut open: OpenFile, header: FrameHeader) -> Result<u64, Fault> {
        let (at, key) = ((&open.header, open.offset), self.archive.key());
        let written = frame(header, &self.raw, self.level, at, key).and_then(|bytes| {
            match &mut open.sink {
                Sink::File(file) => {
                    file.write_all_at(&bytes, open.offset)?;
                    file.sync_data()?;
                }
                Sink::Object(bucket, content) => {
                    content.extend_from_slice(&bytes);
                    bucket.put(self.archive.place().name(&open.path), content, false)?;
                }
            }
            Ok(bytes.len() as u64)
        });
        let written = written.map_err(|error| Fault::io("write", &open.path, error))?;
        open.offset += written;
        self.open = Some(open);
        Ok(written)
    }

    fn begin(&mut self, first: u64, header: FrameHeader) -> Result<u64, Fault> {
        let file_header = FileHeader {
            kind: Kind::Log,
            is_sealed: self.archive.key().is_some(),
            archive: self.archive.manifest().name,
            group: self.group,
            index: first,
            other: self.end.log_index,
            moment: self.end.moment,
        };
        let path = self.archive.path_of(self.group, &Name::Log { first, previous: file_header.other });
        let offset = FILE_HEADER_BYTES as u64;
        let bytes = frame(header, &self.raw, self.level, (&file_header, offset), self.archive.key())
            .map_err(|error| Fault::io("compress for", &path, error))?;
        let written = offset + bytes.len() as u64;
        let sink = match self.archive.place() {
            Place::Directory(_) => {
                make_once(&path, self.mark, |file| {
                    file.write_all_at(&file_header.encode(), 0)?;
                    file.write_all_at(&bytes, offset)
                })?;
                let file = File::options().write(true).open(&path);
                Sink::File(file.map_err(|error| Fault::io("open", &path, error))?)
            }
            Place::Bucket(bucket) => {
                let content = [file_header.encode().as_slice(), &bytes].concat();
                let put = bucket.put(self.archive.place().name(&path), &content, true);
                put.map_err(|error| Fault::io("write", &path, error))?;
                Sink::Object(bucket.clone(), content)
            }
        };
        self.open = Some(OpenFile { path, sink, header: file_header, offset: written });
        Ok(written)
    }
}

/// Where a group's files are is made before the first of them. A bucket has no directories.
fn make_directory(archive: &Archive, group: u32) -> Result<(), Fault> {
    make(archive, &archive.group_directory(group))
}

fn make(archive: &Archive, directory: &Path) -> Result<(), Fault> {
    if archive.place().is_remote() {
        return Ok(());
    }
    fs::create_dir_all(directory).map_err(|error| Fault::io("make", directory, error))
}

/// Writes a base, or changes. It counts for nothing until it is finished.
pub struct BaseWriter {
    path: PathBuf,
    draft: Draft,
    header: FileHeader,
    key: Option<Key>,
    level: i32,
    offset: u64,
    raw: Vec<u8>,
    /// Chunks written in frames, and taken in.
    written: u64,
    taken: u64,
}

/// A base that is not finished.
enum Draft {
    File(PathBuf, File),
    Upload(Box<Upload>),
}

impl Draft {
    /// Writes behind what is there, which are `offset` bytes.
    fn write(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self {
            Self::File(_, file) => file.write_all_at(bytes, offset),
            Self::Upload(upload) => upload.push(bytes),
        }
    }
}

impl BaseWriter {
    /// Begins the base of a group that has the entries up to `index`, which is of this term, in it.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn begin(
        archive: &Archive,
        group: u32,
        (index, term, moment): (u64, u64, UnixMillis),
        mark: u128,
        level: i32,
    ) -> Result<Self, Fault> {
        make_directory(archive, group)?;
        let path = archive.path_of(group, &Name::Base { index, term, moment });
        let name = archive.manifest().name;
        let is_sealed = archive.key().is_some();
        let header = FileHeader { kind: Kind::Base, is_sealed, archive: name, group, index, other: term, moment };
        Self::begin_at(archive, path, header, mark, level)
    }

    /// Begins a file with what changed, of which `changes` says what its name says. The chunks are in any pieces.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn begin_changes(archive: &Archive, changes: &ChangesSpan, mark: u128, level: i32) -> Result<Self, Fault> {
        let directory = archive.changes_directory();
        make(archive, &directory)?;
        let ChangesSpan { from, until, closed, writer } = *changes;
        let path = directory.join(Name::Changes { from, until, closed, writer }.encode());
        let header = FileHeader {
            kind: Kind::Changes,
            is_sealed: archive.key().is_some(),
            archive: archive.manifest().name,
            group: 0,
            index: writer,
            other: until.0.cast_unsigned(),
            moment: from,
        };
        Self::begin_at(archive, path, header, mark, level)
    }

    fn begin_at(archive: &Archive, path: PathBuf, header: FileHeader, mark: u128, level: i32) -> Result<Self, Fault> {
        let begun = match archive.place() {
            Place::Directory(_) => {
                let draft = draft_of(&path, mark);
                File::create(&draft).map(|file| Draft::File(draft, file))
            }
            Place::Bucket(bucket) => {
                bucket.begin(archive.place().name(&path)).map(|upload| Draft::Upload(Box::new(upload)))
            }
        };
        let begun = begun.and_then(|mut draft| draft.write(&header.encode(), 0).map(|()| draft));
        let draft = begun.map_err(|error| Fault::io("write", &path, error))?;
        let (key, offset) = (archive.key().cloned(), FILE_HEADER_BYTES as u64);
        Ok(Self { path, draft, header, key, level, offset, raw: Vec::new(), written: 0, taken: 0 })
    }

    /// Takes a chunk in.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), Fault> {
        self.raw.extend_from_slice(&(chunk.len() as u32).to_le_bytes());
        self.raw.extend_from_slice(chunk);
        self.taken += 1;
        if self.raw.len() >= BASE_FRAME_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), Fault> {
        let header = FrameHeader {
            body_check: 0,
            body_bytes: 0,
            raw_bytes: 0,
            first: self.written,
            last: self.taken,
            moment: UnixMillis(0),
            term: 0,
        };
        let at = (&self.header, self.offset);
        let written = frame(header, &self.raw, self.level, at, self.key.as_ref()).and_then(|bytes| {
            self.draft.write(&bytes, self.offset)?;
            Ok(bytes.len() as u64)
        });
        self.offset += written.map_err(|error| Fault::io("write", &self.path, error))?;
        self.raw.clear();
        self.written = self.taken;
        Ok(())
    }

    /// Makes all of it durable, and gives it its name. Bytes that it takes up.
    ///
    /// # Errors
    /// If it cannot be written. That somebody else has made the same is as well.
    pub fn finish(mut self) -> Result<u64, Fault> {
        if !self.raw.is_empty() {
            self.write()?;
        }
        self.write()?;
        match self.draft {
            Draft::File(draft, file) => {
                file.sync_all().map_err(|error| Fault::io("sync", &draft, error))?;
                match publish(&draft, &self.path) {
                    Ok(()) => Ok(self.offset),
                    Err(fault) if fault.is_taken() => Ok(self.offset),
                    Err(fault) => Err(fault),
                }
            }
            Draft::Upload(upload) => {
                upload.finish().map_err(|error| Fault::io("write", &self.path, error))?;
                Ok(self.offset)
            }
        }
    }

    /// Throws it away.
    pub fn abandon(self) {
        match self.draft {
            // What is left of it hinders nobody.
            Draft::File(path, _) => drop(fs::remove_file(path)),
            Draft::Upload(upload) => upload.abandon(),
        }
    }
}
