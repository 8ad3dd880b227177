//! The end of a replication stream, on disk: a queue of segments that is read from any place that is still there.
//!
//! ```text
//!   stream-0000000000000012345.seg        the name says where it begins
//!     ┌─────────┬─────────┬───────┐
//!     │ length  │ crc32c  │ bytes │ …    little endian; the checksum covers the length as well
//!     └─────────┴─────────┴───────┘
//! ```
//!
//! Readers wait for nothing but bytes. When there is no more room the oldest segment goes, whether it has been read or
//! not: who feeds the store is never held up. Opened after a crash, the store ends where the last whole record does.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const HEADER_BYTES: u64 = 8;

/// Longest record.
const RECORD_BYTES_MAX: usize = 256 << 10;

/// Bytes of a file, unless the store is small.
const SEGMENT_BYTES_MAX: u64 = 16 << 20;
const SEGMENT_BYTES_MIN: u64 = 64 << 10;

/// Between two places that are remembered for readers.
const INDEX_BYTES: u64 = 64 << 10;

const PREFIX: &str = "stream-";
const SUFFIX: &str = ".seg";

/// What there is behind a place.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// So many bytes; none if nothing more has come.
    Bytes(usize),
    /// It is no longer there, or not yet.
    Gone,
}

/// The store. Many threads may use it at once.
pub struct Store {
    directory: PathBuf,
    bytes_max: u64,
    segment_bytes: u64,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    segments: VecDeque<Segment>,
    /// Behind the last byte.
    end: u64,
    /// Up to here it survives a crash of the machine.
    synced: u64,
    /// Of all files.
    file_bytes: u64,
}

struct Segment {
    start: u64,
    file: Arc<File>,
    file_bytes: u64,
    /// Offsets and where their records begin in the file, in order.
    index: Vec<(u64, u64)>,
}

impl Store {
    /// The store of a directory, with what is there.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(directory: &Path, bytes_max: u64) -> io::Result<Self> {
        let segment_bytes = (bytes_max / 8).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        let mut starts: Vec<u64> = fs::read_dir(directory)?
            .map(|entry| Ok(start_of(&entry?.file_name().to_string_lossy())))
            .filter_map(io::Result::transpose)
            .collect::<io::Result<_>>()?;
        starts.sort_unstable();
        let mut inner = Inner::default();
        for (place, start) in starts.iter().enumerate() {
            let path = path_of(directory, *start);
            let file = OpenOptions::new().read(true).write(true).open(&path)?;
            let mut segment = Segment {
                start: *start,
                file_bytes: file.metadata()?.len(),
                file: Arc::new(file),
                index: vec![(*start, 0)],
            };
            if place + 1 == starts.len() {
                inner.end = segment.mend()?;
                segment.file.sync_data()?;
            }
            inner.file_bytes += segment.file_bytes;
            inner.segments.push_back(segment);
        }
        inner.synced = inner.end;
        let directory = directory.to_owned();
        Ok(Self { directory, bytes_max, segment_bytes, inner: Mutex::new(inner), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The places between which bytes are there.
    pub fn range(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.segments.front().map_or(inner.end, |segment| segment.start), inner.end)
    }

    /// True if it can be read from this place on.
    pub fn reaches(&self, offset: u64) -> bool {
        let (start, end) = self.range();
        (start..=end).contains(&offset)
    }

    /// Up to where a crash of the machine takes nothing.
    pub fn synced(&self) -> u64 {
        self.lock().synced
    }

    /// Bytes of its files, and most of them.
    pub fn used_bytes(&self) -> (u64, u64) {
        (self.lock().file_bytes, self.bytes_max)
    }

    /// Forgets everything, and begins at a place.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn reset(&self, offset: u64) -> io::Result<()> {
        let mut inner = self.lock();
        while let Some(segment) = inner.segments.pop_front() {
            fs::remove_file(path_of(&self.directory, segment.start))?;
        }
        *inner = Inner { end: offset, synced: offset, ..Inner::default() };
        self.begin_segment(&mut inner)?;
        drop(inner);
        self.changed.notify_all();
        Ok(())
    }

    fn begin_segment(&self, inner: &mut Inner) -> io::Result<()> {
        if let Some(segment) = inner.segments.back() {
            segment.file.sync_data()?;
            inner.synced = inner.end;
        }
        let path = path_of(&self.directory, inner.end);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        File::open(&self.directory)?.sync_all()?;
        let index = vec![(inner.end, 0)];
        inner.segments.push_back(Segment { start: inner.end, file: Arc::new(file), file_bytes: 0, index });
        Ok(())
    }

    /// Appends bytes; those that were there first go if there is no more room.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn append(&self, bytes: &[u8]) -> io::Result<()> {
        for bytes in bytes.chunks(RECORD_BYTES_MAX) {
            let length = (bytes.len() as u32).to_le_bytes();
            let checksum = crc32c::crc32c_append(crc32c::crc32c(&length), bytes).to_le_bytes();
            let record = [&length, &checksum, bytes].concat();
            let mut inner = self.lock();
            if inner.segments.back().is_none_or(|segment| segment.file_bytes >= self.segment_bytes) {
                self.begin_segment(&mut inner)?;
            }
            let (end, size) = (inner.end, record.len() as u64);
            let segment = inner.segments.back_mut().expect("it was begun");
            segment.file.write_all_at(&record, segment.file_bytes)?;
            segment.remember(end, segment.file_bytes);
            segment.file_bytes += size;
            inner.file_bytes += size;
            inner.end += bytes.len() as u64;
            while inner.file_bytes > self.bytes_max && inner.segments.len() > 1 {
                let oldest = inner.segments.pop_front().expect("there are two");
                inner.file_bytes -= oldest.file_bytes;
                fs::remove_file(path_of(&self.directory, oldest.start))?;
            }
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Makes what has been appended survive a crash of the machine.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn sync(&self) -> io::Result<()> {
        let inner = self.lock();
        let (end, file) = (inner.end, inner.segments.back().map(|segment| Arc::clone(&segment.file)));
        if end == inner.synced {
            return Ok(());
        }
        drop(inner);
        if let Some(file) = file {
            file.sync_data()?;
        }
        let mut inner = self.lock();
        // It may have been reset meanwhile.
        inner.synced = inner.synced.max(end.min(inner.end));
        drop(inner);
        self.changed.notify_all();
        Ok(())
    }

    /// Waits until something has come behind a place, or something else has happened, and not longer than this.
    pub fn wait(&self, offset: u64, limit: Duration) {
        let inner = self.lock();
        if inner.end <= offset {
            drop(self.changed.wait_timeout(inner, limit));
        }
    }

    /// Appends to `out` what follows a place, up to about `bytes_max`.
    ///
    /// # Errors
    /// Those of the file system; [`ErrorKind::InvalidData`] if what is there is not what was written.
    pub fn read(&self, offset: u64, bytes_max: usize, out: &mut Vec<u8>) -> io::Result<Found> {
        let inner = self.lock();
        if offset == inner.end {
            return Ok(Found::Bytes(0));
        }
        let place = inner.segments.partition_point(|segment| segment.start <= offset);
        let Some(segment) = place.checked_sub(1).map(|place| &inner.segments[place]).filter(|_| offset < inner.end)
        else {
            return Ok(Found::Gone);
        };
        let next = segment.index.partition_point(|(known, _)| *known <= offset);
        let (mut at, mut position) = segment.index[next - 1];
        let (start, file, file_bytes) = (segment.start, Arc::clone(&segment.file), segment.file_bytes);
        let ends = inner.segments.get(place).map(|next| next.start);
        drop(inner);
        let before = out.len();
        let mut chunk = Vec::new();
        while position < file_bytes && out.len() - before < bytes_max {
            let size = (file_bytes - position).min(2 * RECORD_BYTES_MAX as u64);
            chunk.resize(size as usize, 0);
            file.read_exact_at(&mut chunk, position)?;
            let mut rest = &chunk[..];
            while let Some((bytes, behind)) = split_record(rest)? {
                if out.len() - before >= bytes_max {
                    break;
                }
                let end = at + bytes.len() as u64;
                if end > offset {
                    out.extend_from_slice(&bytes[usize::try_from(offset.saturating_sub(at)).unwrap_or(usize::MAX)..]);
                }
                position += HEADER_BYTES + bytes.len() as u64;
                (at, rest) = (end, behind);
            }
            if rest.len() == chunk.len() {
                return Err(damaged("a record is cut short"));
            }
        }
        if out.len() == before || (position == file_bytes && ends.is_some_and(|ends| ends != at)) {
            return Err(damaged("a segment does not reach the next"));
        }
        let mut inner = self.lock();
        if let Some(segment) = inner.segments.iter_mut().find(|segment| segment.start == start) {
            segment.remember(at, position);
        }
        Ok(Found::Bytes(out.len() - before))
    }
}

impl Segment {
    fn remember(&mut self, offset: u64, position: u64) {
        let last = self.index.last().map_or(0, |(_, position)| *position);
        if position >= last + INDEX_BYTES {
            self.index.push((offset, position));
        }
    }

    /// Cuts off what is no whole record. The offset behind the last.
    fn mend(&mut self) -> io::Result<u64> {
        let (mut at, mut position) = (self.start, 0);
        let mut chunk = Vec::new();
        loop {
            let size = (self.file_bytes - position).min(2 * RECORD_BYTES_MAX as u64);
            chunk.resize(size as usize, 0);
            self.file.read_exact_at(&mut chunk, position)?;
            let mut rest = &chunk[..];
            while let Ok(Some((bytes, behind))) = split_record(rest) {
                self.remember(at, position);
                at += bytes.len() as u64;
                position += HEADER_BYTES + bytes.len() as u64;
                rest = behind;
            }
            if rest.len() == chunk.len() {
                break;
            }
        }
        if position < self.file_bytes {
            self.file.set_len(position)?;
            self.file_bytes = position;
        }
        Ok(at)
    }
}

/// The bytes of the first record, and what follows it; none if it is not there in full.
fn split_record(bytes: &[u8]) -> io::Result<Option<(&[u8], &[u8])>> {
    let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES as usize) else { return Ok(None) };
    let (length, checksum) = header.split_at(4);
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    let size = number(length) as usize;
    if size == 0 || size > RECORD_BYTES_MAX {
        return Err(damaged("a record has no such length"));
    }
    let Some((bytes, rest)) = rest.split_at_checked(size) else { return Ok(None) };
    if crc32c::crc32c_append(crc32c::crc32c(length), bytes) != number(checksum) {
        return Err(damaged("a record has another checksum"));
    }
    Ok(Some((bytes, rest)))
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the backlog on disk is damaged: {what}"))
}

fn path_of(directory: &Path, start: u64) -> PathBuf {
    directory.join(format!("{PREFIX}{start:020}{SUFFIX}"))
}

fn start_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("holdfast-link-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder");
        path
    }

    fn bytes(from: u64, count: u64) -> Vec<u8> {
        (from..from + count).map(|at| (at % 251) as u8).collect()
    }

    fn read_all(store: &Store, mut at: u64) -> u64 {
        let mut out = Vec::new();
        loop {
            out.clear();
            match store.read(at, 100_000, &mut out).expect("sound") {
                Found::Bytes(0) => return at,
                Found::Bytes(count) => {
                    assert!(out == bytes(at, count as u64), "at {at}");
                    at += count as u64;
                }
                Found::Gone => panic!("{at} is gone"),
            }
        }
    }

    #[test]
    fn it_is_read_from_any_place_and_the_oldest_goes() {
        let path = folder("oldest");
        let store = Store::open(&path, 1 << 20).expect("a store");
        store.reset(1_000).expect("begun");
        let mut at = 1_000;
        for round in 0..4_000 {
            let count = 1 + (round * 37) % 900;
            store.append(&bytes(at, count)).expect("appended");
            at += count;
        }
        let (start, end) = store.range();
        assert!(start > 1_000 && end == at && store.used_bytes().0 <= 1 << 20);
        for from in [start, start + 1, start + 77_777, end - 1, end] {
            assert_eq!(read_all(&store, from), end);
        }
        assert_eq!(store.read(start - 1, 10, &mut Vec::new()).expect("sound"), Found::Gone);
        assert_eq!(store.read(end + 1, 10, &mut Vec::new()).expect("sound"), Found::Gone);
        drop(store);
        let store = Store::open(&path, 1 << 20).expect("a store");
        assert_eq!(store.range(), (start, end));
        assert_eq!(read_all(&store, start + 5), end);
        fs::remove_dir_all(path).expect("removed");
    }

    #[test]
    fn a_torn_end_is_cut_off_and_damage_before_it_is_named() {
        let path = folder("torn");
        let store = Store::open(&path, 1 << 20).expect("a store");
        store.reset(7).expect("begun");
        for round in 0..3 {
            store.append(&bytes(7 + round * 1_000, 1_000)).expect("appended");
        }
        drop(store);
        let file = OpenOptions::new().write(true).open(path_of(&path, 7)).expect("the segment");
        // As a machine leaves it that lost its power: the length is there, and the bytes are not.
        file.write_all_at(&[0; 500], 2 * 1_008 + 300).expect("written");
        let store = Store::open(&path, 1 << 20).expect("a store");
        assert_eq!(store.range(), (7, 2_007));
        assert_eq!(store.synced(), 2_007);
        store.append(&bytes(2_007, 10)).expect("appended");
        assert_eq!(read_all(&store, 7), 2_017);
        file.write_all_at(&[1], 500).expect("written");
        let why = store.read(7, 10, &mut Vec::new()).expect_err("damaged").to_string();
        assert!(why.contains("checksum"), "{why}");
        fs::remove_dir_all(path).expect("removed");
    }
}
