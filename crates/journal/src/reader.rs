//! Reading entries back from the log while it is being written: for members of a group that lack them.
//!
//! Segments are read by their names, without a word with the journal. Every record's checksum covers its segment and
//! its place in it, so what has been recycled meanwhile, or is being written at this moment, does not verify.

use std::collections::BTreeMap;

use bytes::Bytes;
use stdx::log::Entry;

use crate::disk::Disk;
use crate::fault::Fault;
use crate::frame::{self, Frame};
use crate::layout::segment_file;
use crate::record::{Place, RECORD_HEADER_BYTES, RECORDS_START, RecordHeader, RecordKind, record_bytes};
use crate::types::CheckpointMark;

/// How much is read from the disk at a time.
const WINDOW_BYTES: usize = 1 << 20;

/// Places that are remembered, so that a reader that reads on need not look for them.
const PLACES_MAX: usize = 256;

/// Where the entries of a log are: see [`Journal::map`](crate::Journal::map).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogMap {
    /// The directory.
    pub directory: u128,
    /// Full segments, oldest first, with the last index that each group had by their ends.
    pub full: Vec<(u64, Vec<(u32, u64)>)>,
    /// The segment being written.
    pub current: u64,
    /// The newest checkpoint of each group that has one.
    pub marks: Vec<(u32, CheckpointMark)>,
}

/// Which entries are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The group of the log.
    pub group: u32,
    /// Index of the first.
    pub first: u64,
    /// Index of the last.
    pub last: u64,
    /// Their terms, each with the index from which it counts: what stands in the log with another term has been
    /// replaced.
    pub terms: Vec<(u64, u64)>,
    /// Enough is read when it is so much.
    pub bytes_max: usize,
}

impl Span {
    fn term(&self, index: u64) -> Option<u64> {
        let position = self.terms.partition_point(|(from, _)| *from <= index);
        self.terms.get(position.checked_sub(1)?).map(|(_, term)| *term)
    }
}

/// Why entries could not be read.
#[derive(Debug)]
pub enum Unread {
    /// The log does not hold them any more.
    Gone,
    /// The disk.
    Fault(Fault),
}

/// Reads entries, on a thread of its own.
pub struct LogReader<D: Disk> {
    disk: D,
    open: Option<(u64, D::File)>,
    window: Window,
    /// Where entries stand, by group and index.
    places: BTreeMap<(u32, u64), (u64, u64)>,
}

/// A part of a segment in memory.
#[derive(Default)]
struct Window {
    sequence: u64,
    offset: u64,
    bytes: Bytes,
}

impl<D: Disk> LogReader<D> {
    /// A reader of the segments on this disk.
    pub fn new(disk: D) -> Self {
        Self { disk, open: None, window: Window::default(), places: BTreeMap::new() }
    }

    /// Reads the first entries of a span, in order; none if they have not been written yet.
    ///
    /// # Errors
    /// If the log does not hold them any more, or the disk fails.
    pub fn read(&mut self, map: &LogMap, span: &Span) -> Result<Vec<Entry>, Unread> {
        // What was read before may have been written over since.
        self.window = Window::default();
        let (mut sequence, mut offset) = self.start(map, span)?;
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        let mut next = span.first;
        while next <= span.last && bytes < span.bytes_max {
            let Some((header, body)) = self.record(map, sequence, offset)? else {
                // Not written yet; or recycled, if it is older than what is being written, or than a checkpoint. All
                // that is left of the log may be entries of a later term, or none.
                let is_covered = map.marks.iter().any(|(group, mark)| *group == span.group && mark.index >= next);
                if entries.is_empty() && (sequence < map.current || is_covered) {
                    return Err(Unread::Gone);
                }
                break;
            };
            if header.kind == RecordKind::End {
                (sequence, offset) = (sequence + 1, RECORDS_START);
                continue;
            }
            let mut position = 0;
            let mut has_more = false;
            while let Some((group, frame, end)) = frame::decode(&body, position, body.len()) {
                position = end;
                let Frame::Entry(entry) = frame else { continue };
                has_more |= group == span.group && entry.index > span.last;
                if group != span.group || span.term(entry.index) != Some(entry.term) {
                    continue;
                }
                if entry.index > next && entries.is_empty() {
                    return Err(Unread::Gone); // it stood before this one
                }
                if entry.index == next && next <= span.last {
                    next += 1;
                    bytes += frame::entry_bytes(&entry);
                    // A copy: the window holds what others have written, too.
                    entries.push(Entry { data: Bytes::copy_from_slice(&entry.data), ..entry });
                }
            }
            // A reader that reads on begins in this record, if it goes on behind the span. Before the span's end it
            // tells nothing to find later entries in it: they have been replaced.
            let is_done = next > span.last;
            if !(is_done && has_more) {
                offset += record_bytes(header.body_bytes.into());
            }
            if is_done {
                break;
            }
        }
        self.remember(span.group, next, (sequence, offset));
        Ok(entries)
    }

    /// The terms of a group's entries from `first` on, as the log has them last: each with the index from which it
    /// counts. A caller that knows that entries are committed, but not in which terms, learns it here; the whole log
    /// from there on is read.
    ///
    /// # Errors
    /// If the log does not hold the first of them any more, or the disk fails.
    pub fn terms(&mut self, map: &LogMap, group: u32, first: u64) -> Result<Vec<(u64, u64)>, Unread> {
        self.window = Window::default();
        let (mut sequence, mut offset) = (Self::segment_of(map, group, first), RECORDS_START);
        let mut terms: Vec<(u64, u64)> = Vec::new();
        while let Some((header, body)) = self.record(map, sequence, offset)? {
            if header.kind == RecordKind::End {
                (sequence, offset) = (sequence + 1, RECORDS_START);
                continue;
            }
            offset += record_bytes(header.body_bytes.into());
            let mut position = 0;
            while let Some((whose, frame, end)) = frame::decode(&body, position, body.len()) {
                position = end;
                let Frame::Entry(entry) = frame else { continue };
                if whose != group || entry.index < first {
                    continue;
                }
                if terms.is_empty() && entry.index > first {
                    return Err(Unread::Gone);
                }
                // It replaces what stood there and behind it.
                while terms.last().is_some_and(|(from, _)| *from >= entry.index) {
                    terms.pop();
                }
                if terms.last().is_none_or(|(_, term)| *term != entry.term) {
                    terms.push((entry.index, entry.term));
                }
            }
        }
        if terms.is_empty() || sequence < map.current { Err(Unread::Gone) } else { Ok(terms) }
    }

    /// Where to begin looking for the first entry.
    fn start(&mut self, map: &LogMap, span: &Span) -> Result<(u64, u64), Unread> {
        let oldest = map.full.first().map_or(map.current, |(sequence, _)| *sequence);
        if let Some(place) = self.places.remove(&(span.group, span.first))
            && place.0 >= oldest
        {
            return Ok(place);
        }
        Ok((Self::segment_of(map, span.group, span.first), RECORDS_START))
    }

    /// The first segment that may hold an entry.
    fn segment_of(map: &LogMap, group: u32, index: u64) -> u64 {
        let last_index = |indexes: &[(u32, u64)]| {
            indexes.iter().find(|(whose, _)| *whose == group).map_or(0, |(_, last_index)| *last_index)
        };
        let full = map.full.iter().find(|(_, indexes)| last_index(indexes) >= index);
        full.map_or(map.current, |(sequence, _)| *sequence)
    }

    fn remember(&mut self, group: u32, next: u64, place: (u64, u64)) {
        if self.places.len() >= PLACES_MAX {
            self.places.pop_first();
        }
        self.places.insert((group, next), place);
    }

    /// The record at a place; none if there is none that verifies.
    fn record(&mut self, map: &LogMap, sequence: u64, offset: u64) -> Result<Option<(RecordHeader, Bytes)>, Unread> {
        let place = Place::new(map.directory, sequence);
        let Some(header) = self.bytes(sequence, offset, RECORD_HEADER_BYTES)? else { return Ok(None) };
        let Some(header) = place.header_at(offset, &header) else { return Ok(None) };
        let body_offset = offset + RECORD_HEADER_BYTES as u64;
        let Some(body) = self.bytes(sequence, body_offset, header.body_bytes as usize)? else { return Ok(None) };
        Ok((crc32c::crc32c(&body) == header.body_check).then_some((header, body)))
    }

    /// Bytes of a segment; none if it does not reach so far, or is not there.
    fn bytes(&mut self, sequence: u64, offset: u64, count: usize) -> Result<Option<Bytes>, Unread> {
        let window = &self.window;
        let is_within = window.sequence == sequence
            && offset >= window.offset
            && offset + count as u64 <= window.offset + window.bytes.len() as u64;
        if !is_within {
            let name = segment_file(sequence);
            let told = |error| Unread::Fault(Fault::Io { action: "read", file: name.clone(), error });
            if self.open.as_ref().is_none_or(|(open, _)| *open != sequence) {
                self.open = match self.disk.open(&name) {
                    Ok(file) => Some((sequence, file)),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                    Err(error) => return Err(told(error)),
                };
            }
            let (_, file) = self.open.as_ref().expect("just opened");
            let mut bytes = vec![0; count.max(WINDOW_BYTES)];
            let read = self.disk.read_at(file, offset, &mut bytes).map_err(told)?;
            bytes.truncate(read);
            self.window = Window { sequence, offset, bytes: Bytes::from(bytes) };
        }
        let start = (offset - self.window.offset) as usize;
        let is_whole = start + count <= self.window.bytes.len();
        Ok(is_whole.then(|| self.window.bytes.slice(start..start + count)))
    }
}
