//! What groups have done, on disk: the backlog from which other clusters follow this one.
//!
//! ```text
//!   .site-backlog/SEQUENCE.log = header │ frame │ frame …
//!   header                     = magic, version, length, checksum │ cluster, places, parts of transactions under way
//!   frame                      = length, checksum │ group, index, moment, steps
//! ```
//!
//! Files are filled one after the other, and the oldest goes when all together are too large. They outlive the
//! process: what comes behind a checkpoint is told again when the log is replayed, and no checkpoint takes the place of
//! log that is not here yet. So there is a hole only if a group was given a checkpoint by another node, or the files
//! were lost: then they start over, and anyone who lacks what was before must look for another node or take a copy.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use node::roster::GROUPS_MAX;
use node::{DatabaseKey, GatewayId, Phase, Requests, Step, Tape, TransactionId};
use site::{Admission, Book, Part, Place, beginning, reaches_back};
use stdx::UnixMillis;

use crate::fields::{Fields, put_bytes, put_u32, put_u64};

/// The directory within the data directory.
const DIRECTORY: &str = ".site-backlog";

const MAGIC: &[u8; 8] = b"HOLDSIT\n";
const VERSION: u32 = 1;

/// Magic, version, length and checksum.
const PREAMBLE_BYTES: usize = 20;

/// Length and checksum.
const FRAME_HEAD_BYTES: usize = 8;

/// No header or frame is longer: a damaged length takes no memory.
const FRAME_BYTES_MAX: usize = 1 << 30;

/// The backlog has so many files when it is full.
const SEGMENTS: u64 = 16;
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
const SEGMENT_BYTES_MAX: u64 = 64 << 20;

/// Keys of transactions under way that a mark may hold in memory.
const MARK_KEYS_BYTES_MAX: usize = 64 << 10;

/// A reader that is cut off reads no more than this twice.
const MARK_INTERVAL_BYTES: u64 = if cfg!(test) { 1 << 10 } else { 1 << 20 };

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub sequence: u64,
    /// Of all groups: where it begins.
    pub places: Vec<Place>,
    pub bytes: u64,
    /// Steps in it.
    pub steps: u64,
    /// Places in it where a reader can begin as well, as far as this process has written it.
    pub marks: Vec<Arc<Mark>>,
}

/// A place within a file: what a header would say there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    offset: u64,
    steps: u64,
    places: Vec<Place>,
    parts: Vec<Part>,
}

impl Segment {
    /// The last mark in front of what comes behind these places.
    pub fn mark_before(&self, places: &[u64]) -> Option<&Arc<Mark>> {
        self.marks.iter().rev().find(|mark| reaches_back(&mark.places, places))
    }
}

/// Writes it.
pub struct Backlog {
    directory: PathBuf,
    cluster: u128,
    size_max: u64,
    segments: VecDeque<Segment>,
    file: File,
    is_dirty: bool,
    book: Book,
    /// Bytes that were ever written here.
    pub written_bytes: u64,
}

impl Backlog {
    /// Opens what there is, or starts over. With what to say about that, if anything.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn open(
        data_directory: &Path,
        (cluster, group_count): (u128, u32),
        size_max: u64,
    ) -> io::Result<(Self, Option<String>)> {
        let directory = data_directory.join(DIRECTORY);
        fs::create_dir_all(&directory)?;
        let mut sequences = BTreeSet::new();
        for entry in fs::read_dir(&directory)? {
            let name = entry?.file_name();
            let digits = name.to_str().and_then(|name| name.strip_suffix(".log"));
            sequences.extend(digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()));
        }
        let mut segments: VecDeque<Segment> = VecDeque::new();
        let mut news = None;
        let mut book = Book::new(group_count);
        for (number, sequence) in sequences.iter().enumerate() {
            let is_last = number + 1 == sequences.len();
            let path = segment_path(&directory, *sequence);
            match scan(&path, cluster) {
                Ok(Scan { places, bytes, steps, is_whole, book: found }) if is_whole || is_last => {
                    if !is_whole {
                        let file = File::options().write(true).open(&path)?;
                        file.set_len(bytes)?;
                        file.sync_all()?;
                    }
                    book = found;
                    segments.push_back(Segment { sequence: *sequence, places, bytes, steps, marks: Vec::new() });
                }
                // The power went when it began, so nothing is in it.
                Err(_) if is_last && number > 0 && !has_begun(&path)? => fs::remove_file(&path)?,
                Ok(_) => news = Some(format!("{} is damaged", path.display())),
                Err(why) => news = Some(format!("{}: {why}", path.display())),
            }
            if news.is_some() {
                break;
            }
        }
        let next = sequences.last().map_or(0, |last| last + 1);
        let is_sound = news.is_none() && !segments.is_empty();
        if !is_sound {
            for sequence in &sequences {
                fs::remove_file(segment_path(&directory, *sequence))?;
            }
            segments.clear();
            book = Book::new(group_count);
        }
        let file = begin(&directory, next, cluster, &mut book)?;
        let (places, bytes) = (book.places().to_vec(), file.metadata()?.len());
        segments.push_back(Segment { sequence: next, places, bytes, steps: 0, marks: Vec::new() });
        let (is_dirty, written_bytes) = (true, 0);
        Ok((Self { directory, cluster, size_max, segments, file, is_dirty, book, written_bytes }, news))
    }

    /// How far groups are.
    pub fn places(&self) -> &[Place] {
        self.book.places()
    }

    /// The files, oldest first.
    pub fn segments(&self) -> &VecDeque<Segment> {
        &self.segments
    }

    /// Where files are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Appends what a group has done, if it is not here yet. If something before it is missing all begins again behind
    /// that.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn append(&mut self, mut tape: Tape) -> io::Result<Admission> {
        let admission = self.book.admit(&tape);
        match admission {
            Admission::GoesOn => {}
            Admission::Begins => self.begin_anew()?,
            Admission::IsRefused => return Ok(admission),
        }
        self.book.pass(&mut tape);
        let mut bytes = vec![0; FRAME_HEAD_BYTES];
        encode_frame(&mut bytes, &tape);
        seal_frame(&mut bytes)?;
        self.file.write_all(&bytes)?;
        self.is_dirty = true;
        self.written_bytes += bytes.len() as u64;
        let segment = self.segments.back_mut().expect("there is one to write to");
        segment.bytes += bytes.len() as u64;
        segment.steps += tape.steps.len() as u64;
        if segment.bytes - segment.marks.last().map_or(0, |mark| mark.offset) >= MARK_INTERVAL_BYTES {
            let (offset, steps) = (segment.bytes, segment.steps);
            let (places, parts) = self.book.begin_file();
            let keys = parts.iter().flat_map(|(_, step)| &step.keys);
            let keys_bytes: usize = keys.map(|(_, key)| key.len() + size_of::<DatabaseKey>()).sum();
            // Another tape ends behind large transactions.
            if keys_bytes <= MARK_KEYS_BYTES_MAX {
                let (places, parts) = (places.to_vec(), parts.into_iter().cloned().collect());
                segment.marks.push(Arc::new(Mark { offset, steps, places, parts }));
            }
        }
        if segment.bytes >= (self.size_max / SEGMENTS).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX) {
            self.next_segment()?;
        }
        Ok(admission)
    }

    /// What was written is on the disk.
    ///
    /// # Errors
    /// If that cannot be.
    pub fn sync(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_dirty) { self.file.sync_data() } else { Ok(()) }
    }

    fn begin_anew(&mut self) -> io::Result<()> {
        let old_count = self.segments.len();
        self.add_segment()?;
        (0..old_count).try_for_each(|_| self.remove_oldest())?;
        // A power cut must not bring back what another log had told.
        File::open(&self.directory)?.sync_all()
    }

    fn next_segment(&mut self) -> io::Result<()> {
        self.add_segment()?;
        while self.segments.len() > 2 && self.bytes() > self.size_max {
            self.remove_oldest()?;
        }
        Ok(())
    }

    fn remove_oldest(&mut self) -> io::Result<()> {
        let oldest = self.segments.pop_front().expect("there are several");
        fs::remove_file(segment_path(&self.directory, oldest.sequence))
    }

    fn add_segment(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        let sequence = self.segments.back().map_or(0, |segment| segment.sequence + 1);
        self.file = begin(&self.directory, sequence, self.cluster, &mut self.book)?;
        let bytes = self.file.metadata()?.len();
        let places = self.book.places().to_vec();
        self.segments.push_back(Segment { sequence, places, bytes, steps: 0, marks: Vec::new() });
        Ok(())
    }
}

/// False if the power went before the header of a file was on the disk.
fn has_begun(path: &Path) -> io::Result<bool> {
    let file = File::open(path)?;
    let mut head = [0; PREAMBLE_BYTES];
    if file.metadata()?.len() < head.len() as u64 {
        return Ok(false);
    }
    file.read_exact_at(&mut head, 0)?;
    let length = u32::from_le_bytes(head[12..16].try_into().expect("four bytes"));
    Ok(head != [0; PREAMBLE_BYTES] && file.metadata()?.len() >= head.len() as u64 + u64::from(length))
}

/// Where a file of the backlog is.
pub fn segment_path(directory: &Path, sequence: u64) -> PathBuf {
    directory.join(format!("{sequence:016x}.log"))
}

/// Makes a file and its header.
fn begin(directory: &Path, sequence: u64, cluster: u128, book: &mut Book) -> io::Result<File> {
    let (places, parts) = book.begin_file();
    let mut body = Vec::new();
    body.extend_from_slice(&cluster.to_le_bytes());
    put_u32(&mut body, places.len() as u32);
    for place in places {
        put_u64(&mut body, place.index);
        put_u32(&mut body, place.count);
        put_u64(&mut body, place.moment.0.cast_unsigned());
    }
    put_u32(&mut body, parts.len() as u32);
    for (group, step) in parts {
        put_u32(&mut body, *group);
        put_step(&mut body, step);
    }
    let mut bytes = MAGIC.to_vec();
    put_u32(&mut bytes, VERSION);
    put_u32(&mut bytes, body.len() as u32);
    put_u32(&mut bytes, crc32c::crc32c(&body));
    bytes.extend_from_slice(&body);
    let mut file = File::options().create(true).truncate(true).write(true).open(segment_path(directory, sequence))?;
    file.write_all(&bytes)?;
    file.sync_data()?;
    File::open(directory)?.sync_all()?;
    Ok(file)
}

/// What a file holds.
struct Scan {
    places: Vec<Place>,
    /// Up to here it can be read.
    bytes: u64,
    steps: u64,
    is_whole: bool,
    book: Book,
}

fn scan(path: &Path, cluster: u128) -> io::Result<Scan> {
    let mut reader = SegmentReader::open_path(path, cluster)?;
    let places = reader.places.clone();
    let mut book = Book::behind(&places, &reader.parts);
    let length = reader.file.metadata()?.len();
    loop {
        match reader.next(length) {
            Ok(None) => break,
            Ok(Some(tape)) => book.read(&tape),
            Err(_) => {
                let (bytes, steps) = (reader.offset, reader.steps);
                return Ok(Scan { places, bytes, steps, is_whole: false, book });
            }
        }
    }
    let (bytes, steps) = (reader.offset, reader.steps);
    Ok(Scan { places, bytes, steps, is_whole: bytes == length, book })
}

/// Reads a file. Copies read on from the same place, each for itself.
#[derive(Clone)]
pub struct SegmentReader {
    file: Arc<File>,
    offset: u64,
    steps: u64,
    /// Where it begins.
    pub places: Vec<Place>,
    /// Parts of transactions that were under way there.
    pub parts: Vec<Part>,
}

impl SegmentReader {
    /// Opens one of this directory.
    ///
    /// # Errors
    /// If it is gone, damaged, or of another cluster.
    pub fn open(directory: &Path, sequence: u64, cluster: u128) -> io::Result<Self> {
        Self::open_path(&segment_path(directory, sequence), cluster)
    }

    /// Opens one.
    ///
    /// # Errors
    /// If it is gone, damaged, or of another cluster.
    pub fn open_path(path: &Path, cluster: u128) -> io::Result<Self> {
        let file = File::open(path)?;
        let mut head = [0; PREAMBLE_BYTES];
        file.read_exact_at(&mut head, 0)?;
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let length = number(12) as usize;
        if head[..8] != *MAGIC || number(8) != VERSION || length > FRAME_BYTES_MAX {
            return Err(damaged("it is no backlog that is known here"));
        }
        let body = read_vec(&file, PREAMBLE_BYTES as u64, length)?;
        if crc32c::crc32c(&body) != number(16) {
            return Err(damaged("its header is damaged"));
        }
        let mut fields = Fields(&body);
        let parse = |fields: &mut Fields<'_>| {
            let whose = fields.u128()?;
            let count = fields.u32()?;
            let place = |fields: &mut Fields<'_>| {
                Some(Place {
                    index: fields.u64()?,
                    count: fields.u32()?,
                    moment: UnixMillis(fields.u64()?.cast_signed()),
                })
            };
            let places = (0..count).map(|_| place(fields)).collect::<Option<Vec<_>>>()?;
            let part_count = fields.u32()?;
            let parts = (0..part_count).map(|_| Some((fields.u32()?, step(fields)?))).collect::<Option<Vec<_>>>()?;
            Some((whose, places, parts))
        };
        let (whose, places, parts) = parse(&mut fields).ok_or_else(|| damaged("its header is damaged"))?;
        if whose != cluster || places.len() > GROUPS_MAX as usize {
            return Err(damaged("it is the backlog of another cluster"));
        }
        let file = Arc::new(file);
        Ok(Self { file, offset: (PREAMBLE_BYTES + length) as u64, steps: 0, places, parts })
    }

    /// What a merger is given first: how far groups were where the file begins, and the parts of transactions that were
    /// under way there.
    pub fn beginning(&mut self) -> Vec<Tape> {
        beginning(&self.places, std::mem::take(&mut self.parts))
    }

    /// Begins at a place within the file.
    pub fn begin_at(&mut self, mark: &Mark) {
        let Mark { offset, steps, places, parts } = mark;
        (self.offset, self.steps) = (*offset, *steps);
        (self.places, self.parts) = (places.clone(), parts.clone());
    }

    /// Where it reads next.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Steps that it has read.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The next frame, of those that end at most here; none if there is no more.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn next(&mut self, end: u64) -> io::Result<Option<Tape>> {
        if self.offset >= end {
            return Ok(None);
        }
        let mut head = [0; FRAME_HEAD_BYTES];
        self.file.read_exact_at(&mut head, self.offset)?;
        let length = u32::from_le_bytes(head[..4].try_into().expect("four bytes")) as usize;
        if length > FRAME_BYTES_MAX || self.offset + (FRAME_HEAD_BYTES + length) as u64 > end {
            return Err(damaged("a frame is damaged"));
        }
        let body = read_vec(&self.file, self.offset + FRAME_HEAD_BYTES as u64, length)?;
        if crc32c::crc32c(&body).to_le_bytes() != head[4..] {
            return Err(damaged("a frame is damaged"));
        }
        let tape = decode_frame(&body).filter(|tape| tape.group < GROUPS_MAX);
        let tape = tape.ok_or_else(|| damaged("a frame is damaged"))?;
        self.offset += (FRAME_HEAD_BYTES + length) as u64;
        self.steps += tape.steps.len() as u64;
        Ok(Some(tape))
    }
}

fn read_vec(file: &File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    // A length that is wrong takes no memory.
    if file.metadata()?.len().saturating_sub(offset) < length as u64 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

fn damaged(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn seal_frame(bytes: &mut [u8]) -> io::Result<()> {
    let length = bytes.len() - FRAME_HEAD_BYTES;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other("one turn of a group has changed more than a gigabyte"));
    }
    let check = crc32c::crc32c(&bytes[FRAME_HEAD_BYTES..]);
    bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
    bytes[4..8].copy_from_slice(&check.to_le_bytes());
    Ok(())
}

fn encode_frame(out: &mut Vec<u8>, tape: &Tape) {
    put_u32(out, tape.group);
    put_u64(out, tape.from);
    put_u64(out, tape.index);
    put_u64(out, tape.moment.0.cast_unsigned());
    put_u32(out, tape.steps.len() as u32);
    tape.steps.iter().for_each(|step| put_step(out, step));
}

fn decode_frame(bytes: &[u8]) -> Option<Tape> {
    let mut fields = Fields(bytes);
    let (group, from, index) = (fields.u32()?, fields.u64()?, fields.u64()?);
    let moment = UnixMillis(fields.u64()?.cast_signed());
    let count = fields.u32()?;
    let steps = (0..count).map(|_| step(&mut fields)).collect::<Option<Vec<_>>>()?;
    fields.0.is_empty().then_some(Tape {
        group,
        from,
        index,
        moment,
        has_gap: false,
        born: None,
        steps,
        standing: Vec::new(),
    })
}

const HAS_TRANSACTION: u8 = 1;
const IS_WHOLE: u8 = 2;
const IS_MOVE: u8 = 4;

fn put_step(out: &mut Vec<u8>, step: &Step) {
    put_u64(out, step.index);
    put_u64(out, step.moment.0.cast_unsigned());
    out.push(match step.phase {
        Phase::Done => 0,
        Phase::Prepared => 1,
        Phase::Dropped => 2,
        Phase::Swept => 3,
    });
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    out.push(
        flag(step.transaction.is_some(), HAS_TRANSACTION) | flag(step.is_whole, IS_WHOLE) | flag(step.is_move, IS_MOVE),
    );
    if let Some((TransactionId { gateway, number }, groups)) = &step.transaction {
        put_u64(out, gateway.node);
        put_u64(out, gateway.boot);
        put_u32(out, u32::from(gateway.core.0));
        put_u64(out, *number);
        put_u32(out, groups.len() as u32);
        groups.iter().for_each(|group| put_u32(out, *group));
    }
    // Anyone who reads it needs the keys only to find what concerns a transaction under way.
    let keys: &[DatabaseKey] = if matches!(step.phase, Phase::Prepared | Phase::Swept) { &step.keys } else { &[] };
    put_u32(out, keys.len() as u32);
    for (database, key) in keys {
        put_u32(out, u32::from(*database));
        put_bytes(out, key);
    }
    for requests in [&step.wide, &step.requests] {
        put_u32(out, requests.count as u32);
        put_u32(out, requests.runs.len() as u32);
        for (database, end) in &requests.runs {
            put_u32(out, u32::from(*database));
            put_u32(out, *end as u32);
        }
        put_bytes(out, &requests.bytes);
    }
}

fn database(fields: &mut Fields<'_>) -> Option<u16> {
    u16::try_from(fields.u32()?).ok()
}

fn requests(fields: &mut Fields<'_>) -> Option<Requests> {
    let count = fields.u32()? as usize;
    let run_count = fields.u32()?;
    let runs = (0..run_count).map(|_| Some((database(fields)?, fields.u32()? as usize))).collect::<Option<Vec<_>>>()?;
    let bytes = fields.bytes()?;
    let is_sound = runs.is_sorted_by_key(|(_, end)| *end) && runs.last().is_none_or(|(_, end)| *end == bytes.len());
    is_sound.then_some(Requests { bytes, runs, count })
}

fn step(fields: &mut Fields<'_>) -> Option<Step> {
    let (index, moment) = (fields.u64()?, UnixMillis(fields.u64()?.cast_signed()));
    let phase = match fields.u8()? {
        0 => Phase::Done,
        1 => Phase::Prepared,
        2 => Phase::Dropped,
        3 => Phase::Swept,
        _ => return None,
    };
    let flags = fields.u8()?;
    let transaction = if flags & HAS_TRANSACTION == 0 {
        None
    } else {
        let (node, boot) = (fields.u64()?, fields.u64()?);
        let core = group::ids::CoreId(u16::try_from(fields.u32()?).ok()?);
        let number = fields.u64()?;
        let count = fields.u32()?;
        let groups = (0..count).map(|_| fields.u32()).collect::<Option<Vec<_>>>()?;
        Some((TransactionId { gateway: GatewayId { node, boot, core }, number }, groups))
    };
    let key_count = fields.u32()?;
    let keys = (0..key_count).map(|_| Some((database(fields)?, fields.bytes()?))).collect::<Option<Vec<_>>>()?;
    let (is_whole, is_move) = (flags & IS_WHOLE != 0, flags & IS_MOVE != 0);
    let (wide, requests) = (requests(fields)?, requests(fields)?);
    Some(Step { index, moment, phase, transaction, keys, is_whole, is_move, wide, requests })
}

#[cfg(test)]
mod tests {
    use stdx::Prng;

    use super::*;

    const WHOSE: (u128, u32) = (7, 1);

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("holdfast-site-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).expect("a directory");
            Self(path)
        }

        fn open(&self, size_max: u64) -> (Backlog, Option<String>) {
            Backlog::open(&self.0, WHOSE, size_max).expect("a disk")
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// True if nothing is missing.
    fn keep(backlog: &mut Backlog, tape: Tape) -> bool {
        let admission = backlog.append(tape).expect("a disk");
        assert_ne!(admission, Admission::IsRefused);
        admission == Admission::GoesOn
    }

    /// What the log does: an entry has up to three steps.
    fn log(count: u64) -> Vec<Step> {
        let mut prng = Prng::new(count);
        let steps = (1..=count).flat_map(|index| {
            let number = prng.below(4);
            (0..number).map(move |nth| {
                let mut bytes = Vec::new();
                resp::encode_request(&mut bytes, &["SET".to_owned(), format!("{index}"), format!("{nth}")]);
                let requests = Requests { runs: vec![(0, bytes.len())], bytes, count: 1 };
                Step { index, moment: UnixMillis(index as i64), requests, ..Step::default() }
            })
        });
        steps.collect()
    }

    /// Everything that can be read.
    fn read(backlog: &Backlog) -> Vec<Step> {
        let mut steps = Vec::new();
        for segment in backlog.segments() {
            let mut reader =
                SegmentReader::open(backlog.directory(), segment.sequence, WHOSE.0).expect("a file of this backlog");
            while let Some(tape) = reader.next(segment.bytes).expect("sound") {
                steps.extend(tape.steps);
            }
        }
        steps
    }

    #[test]
    fn a_log_that_is_told_again_after_crashes_is_kept_once() {
        for seed in 0..100 {
            let scratch = Scratch::new(&format!("crashes-{seed}"));
            let mut prng = Prng::new(seed);
            let log = log(60);
            let (mut told, mut checkpoint) = (0, 0);
            while told < 60 {
                let (mut backlog, news) = scratch.open(1 << 30);
                assert_eq!(news, None);
                // Each life tells from the checkpoint on, in tapes of any size, and ends anywhere.
                let (mut from, mut is_first) = (checkpoint, true);
                for _ in 0..prng.below(12) + 1 {
                    let index = (from + prng.below(9)).min(60);
                    let steps = log.iter().filter(|step| step.index > from && step.index <= index).cloned().collect();
                    let moment = UnixMillis(index as i64);
                    let tape = Tape {
                        group: 0,
                        from,
                        index,
                        moment,
                        has_gap: is_first,
                        born: None,
                        steps,
                        standing: Vec::new(),
                    };
                    assert!(keep(&mut backlog, tape), "seed {seed}: nothing is missing");
                    (from, is_first) = (index, false);
                }
                told = told.max(from);
                // A checkpoint never covers more than is kept.
                checkpoint = prng.below(told + 1).max(checkpoint);
                let newest = backlog.segments().back().expect("a file").sequence;
                drop(backlog);
                if prng.below(3) == 0 {
                    // A crash of the machine takes the end of the newest file with it, as far as it was not synced.
                    let path = segment_path(&scratch.0.join(DIRECTORY), newest);
                    let length = fs::metadata(&path).expect("a file").len();
                    let header = SegmentReader::open_path(&path, WHOSE.0).expect("its header is synced");
                    let cut = length - prng.below((length - header.offset()).min(9) + 1);
                    let file = File::options().write(true).open(&path).expect("a file");
                    file.set_len(cut).expect("a shorter file");
                    let (backlog, _) = scratch.open(1 << 30);
                    let there = backlog.places()[0].index;
                    checkpoint = checkpoint.min(there);
                    told = there;
                }
            }
            let (backlog, _) = scratch.open(1 << 30);
            assert!(read(&backlog) == log, "seed {seed}");
        }
    }

    #[test]
    fn a_file_that_had_not_quite_begun_takes_nothing_with_it() {
        let scratch = Scratch::new("short");
        let (mut backlog, _) = scratch.open(1 << 30);
        let steps = log(20);
        let tape = Tape { group: 0, index: 20, moment: UnixMillis(20), steps, ..Tape::default() };
        assert!(keep(&mut backlog, tape));
        drop(backlog);
        for content in [&b""[..], b"HOLDS", &[0; 40]] {
            let (backlog, _) = scratch.open(1 << 30);
            let path = segment_path(backlog.directory(), backlog.segments().back().expect("a file").sequence);
            drop(backlog);
            fs::write(&path, content).expect("a file");
            let (backlog, news) = scratch.open(1 << 30);
            assert_eq!((news, backlog.places()[0].index), (None, 20));
            assert_eq!(read(&backlog), log(20));
        }
    }

    #[test]
    fn a_reader_begins_in_the_middle_of_a_file() {
        let scratch = Scratch::new("marks");
        let (mut backlog, _) = scratch.open(1 << 30);
        let log = log(400);
        for index in 1..=400 {
            let steps = log.iter().filter(|step| step.index == index).cloned().collect();
            let (from, moment) = (index - 1, UnixMillis(index as i64));
            let tape =
                Tape { group: 0, from, index, moment, has_gap: index == 1, born: None, steps, standing: Vec::new() };
            assert!(keep(&mut backlog, tape));
        }
        let segment = backlog.segments().back().expect("a file");
        assert!(segment.marks.len() > 5, "{}", segment.marks.len());
        for place in [0, 1, 57, 200, 399, 400] {
            let mut reader = SegmentReader::open(backlog.directory(), segment.sequence, WHOSE.0).expect("a file");
            let mark = segment.mark_before(&[place]);
            mark.iter().for_each(|mark| reader.begin_at(mark));
            let mut steps = Vec::new();
            while let Some(tape) = reader.next(segment.bytes).expect("sound") {
                steps.extend(tape.steps);
            }
            let is_behind = |step: &&Step| step.index > place;
            let awaited: Vec<&Step> = log.iter().filter(is_behind).collect();
            assert_eq!(steps.iter().filter(is_behind).collect::<Vec<_>>(), awaited, "behind {place}");
            assert!(steps.len() < awaited.len() + 50, "behind {place} it reads {} steps", steps.len());
        }
    }

    #[test]
    fn a_hole_and_damage_are_noticed_and_the_oldest_goes() {
        let scratch = Scratch::new("hole");
        let (mut backlog, _) = scratch.open(1 << 20);
        let tape = |from: u64, index: u64, has_gap| {
            let mut bytes = vec![b'x'; 40_000];
            bytes[..4].copy_from_slice(b"*1\r\n");
            let requests = Requests { runs: vec![(0, bytes.len())], bytes, count: 1 };
            let moment = UnixMillis(index as i64);
            let steps = vec![Step { index, moment, requests, ..Step::default() }];
            Tape { group: 0, from, index, moment, has_gap, born: None, steps, standing: Vec::new() }
        };
        assert!(keep(&mut backlog, tape(0, 1, true)));
        assert!(!keep(&mut backlog, tape(5, 6, true)), "entries 2 to 5 are missing");
        // None of what is missing is later than what comes first: that is all that is known of it.
        let begin = backlog.segments().front().expect("a file").places[0];
        assert_eq!(begin, Place { index: 5, count: 0, moment: UnixMillis(6) });
        for index in 6..100 {
            assert!(keep(&mut backlog, tape(index, index + 1, false)));
        }
        assert!(backlog.bytes() <= (1 << 20) + 70_000, "{}", backlog.bytes());
        let first = backlog.segments().front().expect("a file").clone();
        assert!(first.places[0].index > 50);
        // A hole is noticed where the files are as large as they may be, too.
        let mut from = 100;
        for count in 0..30 {
            (0..count).for_each(|_| {
                from += 1;
                backlog.append(tape(from - 1, from, false)).expect("room");
            });
            from += 10;
            assert!(!keep(&mut backlog, tape(from - 1, from, true)));
            assert_eq!(backlog.segments().len(), 1);
        }
        for _ in 0..60 {
            from += 1;
            assert!(keep(&mut backlog, tape(from - 1, from, false)));
        }
        let first = backlog.segments().front().expect("a file").clone();
        drop(backlog);
        let path = segment_path(&scratch.0.join(DIRECTORY), first.sequence);
        let mut bytes = fs::read(&path).expect("a file");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, &bytes).expect("a file");
        let (backlog, news) = scratch.open(1 << 20);
        assert!(news.is_some_and(|news| news.contains("damaged")));
        assert_eq!(backlog.places()[0], Place::default());
        let (_, news) =
            Backlog::open(&scratch.0, (8, 1), 1 << 20).map(|(backlog, news)| (backlog.bytes(), news)).expect("a disk");
        assert!(news.is_some_and(|news| news.contains("another cluster")));
    }

    #[test]
    fn a_group_that_is_founded_is_kept_from_its_beginning_on() {
        let scratch = Scratch::new("founded");
        let (mut backlog, _) = scratch.open(1 << 20);
        let tape = |group: u32, from: u64, index: u64| {
            let step = Step { index, moment: UnixMillis(index as i64), ..Step::default() };
            Tape {
                group,
                from,
                index,
                moment: UnixMillis(index as i64),
                has_gap: from == 0,
                born: None,
                steps: vec![step],
                standing: Vec::new(),
            }
        };
        assert!(keep(&mut backlog, tape(0, 0, 5)));
        // It has told of its first entry nothing.
        assert!(keep(&mut backlog, tape(2, 1, 4)));
        assert!(keep(&mut backlog, tape(1, 0, 3)));
        backlog.sync().expect("a disk");
        let indices = |backlog: &Backlog| backlog.places().iter().map(|place| place.index).collect::<Vec<_>>();
        assert_eq!(indices(&backlog), [5, 3, 4]);
        drop(backlog);
        let (backlog, news) = scratch.open(1 << 20);
        assert_eq!((news, indices(&backlog)), (None, vec![5, 3, 4]));
        assert_eq!(read(&backlog).len(), 3);
        // One that has split off sweeps an expired key away before it has logged anything.
        let (mut backlog, _) = scratch.open(1 << 20);
        let swept = Step { index: 1, moment: UnixMillis(9), phase: Phase::Swept, ..Step::default() };
        let first = Tape { moment: UnixMillis(9), index: 1, has_gap: true, steps: vec![swept], ..tape(3, 1, 1) };
        assert!(keep(&mut backlog, first), "nothing is missing");
        assert_eq!(read(&backlog).len(), 4);
        drop(backlog);
        let (backlog, _) = scratch.open(1 << 20);
        // A reader that knew of one group goes on; one that has seen less of it does not.
        let begins: Vec<_> = backlog.segments().iter().map(|segment| segment.places.clone()).collect();
        assert!(
            reaches_back(&begins[0], &[0]) && !reaches_back(&begins[1], &[5]) && !reaches_back(&begins[1], &[4, 3, 4])
        );
        assert!(reaches_back(&begins[1], &[5, 3, 4]));
        assert!(reaches_back(&begins[3], &[5, 3, 4, 1]) && reaches_back(&begins[3], &[5, 3, 4]));
    }
}
