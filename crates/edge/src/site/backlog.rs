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

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use node::roster::GROUPS_MAX;
use node::{DatabaseKey, GatewayId, Phase, Requests, Step, Tape, TransactionId};
use stdx::UnixMillis;

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

/// How far a group is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Up to this index of its log its steps are here.
    pub index: u64,
    /// So many of the steps of that entry: a tape may end in the middle of one. Sweeps do not count, as replicas sweep
    /// where they like.
    pub count: u32,
    /// Nothing of an earlier moment comes any more.
    pub moment: UnixMillis,
}

impl Place {
    /// Takes out of a tape what lies before this place, and moves on to its end. `told` is how far the teller of the
    /// tape has come: the index of an entry, and how many of its steps.
    pub fn pass(&mut self, told: &mut (u64, u32), tape: &mut Tape) {
        let known = (self.index, self.count);
        tape.steps.retain(|step| {
            if step.phase == Phase::Swept {
                return *told >= known;
            }
            *told = if step.index == told.0 { (told.0, told.1 + 1) } else { (step.index, 1) };
            *told > known
        });
        *told = (*told).max((tape.index, 0));
        (self.index, self.count) = known.max(*told);
        self.moment = self.moment.max(tape.moment);
    }
}

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub sequence: u64,
    /// Of all groups: where it begins.
    pub places: Vec<Place>,
    pub bytes: u64,
    /// Steps in it.
    pub steps: u64,
}

/// The log of a group that has been founded while the cluster served begins with an empty entry of this index, which
/// nobody needs to be told of.
pub const FOUNDING_INDEX: u64 = 1;

/// True if what begins behind `begin` has all that comes behind `places`, which lack groups that were founded since.
pub fn reaches_back(begin: &[Place], places: &[u64]) -> bool {
    let place = |group: usize| places.get(group).copied().unwrap_or(FOUNDING_INDEX);
    begin.iter().enumerate().all(|(group, begin)| begin.index <= place(group))
}

/// A part of a transaction that is under way: a step of a group.
type Part = (u32, Step);

/// Writes it.
pub struct Backlog {
    directory: PathBuf,
    cluster: u128,
    size_max: u64,
    segments: VecDeque<Segment>,
    file: File,
    is_dirty: bool,
    places: Vec<Place>,
    /// What groups have told since the process began, as in [`Place`]: they begin with what is here already.
    told: Vec<(u64, u32)>,
    /// Parts of transactions of which not all have ended.
    open: BTreeMap<TransactionId, Vec<Part>>,
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
        let mut end = (vec![Place::default(); group_count as usize], BTreeMap::new());
        for (number, sequence) in sequences.iter().enumerate() {
            let is_last = number + 1 == sequences.len();
            let path = segment_path(&directory, *sequence);
            match scan(&path, cluster) {
                Ok(Scan { places, bytes, steps, is_whole, end: found }) if is_whole || is_last => {
                    if !is_whole {
                        File::options().write(true).open(&path)?.set_len(bytes)?;
                    }
                    end = found;
                    segments.push_back(Segment { sequence: *sequence, places, bytes, steps });
                }
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
            end = (vec![Place::default(); group_count as usize], BTreeMap::new());
        }
        let (places, open) = end;
        let file = begin(&directory, next, cluster, &places, &open)?;
        segments.push_back(Segment { sequence: next, places: places.clone(), bytes: file.metadata()?.len(), steps: 0 });
        let told = vec![(0, 0); places.len()];
        let (is_dirty, written_bytes) = (true, 0);
        Ok((Self { directory, cluster, size_max, segments, file, is_dirty, places, told, open, written_bytes }, news))
    }

    /// How far groups are.
    pub fn places(&self) -> &[Place] {
        &self.places
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

    /// Appends what a group has done, if it is not here yet. False if something before it is missing: then all begins
    /// again behind that.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn append(&mut self, mut tape: Tape) -> io::Result<bool> {
        let group = tape.group as usize;
        if group >= self.places.len() {
            // It has been founded. What it told first is all that it has done.
            let founded = Place { index: tape.from.min(FOUNDING_INDEX), ..Place::default() };
            self.places.resize(group + 1, founded);
            self.told.resize(group + 1, (founded.index, 0));
        }
        let place = self.places[group];
        // What is told again has the moments that it had. If it is later, a log has lost its end, and has another one.
        // Sweeps are told where a replica likes, also before a group that has split off has logged anything.
        let is_other =
            |step: &Step| step.phase != Phase::Swept && step.index <= place.index && step.moment > place.moment;
        let has_other_past = tape.steps.iter().any(is_other);
        let is_whole = tape.from <= place.index && !has_other_past;
        if !is_whole {
            // What came before is not here, and none of it is later than the first thing that is.
            let moment = tape.steps.first().map_or(tape.moment, |step| step.moment);
            self.places[group] = Place { index: tape.from, count: 0, moment: place.moment.max(moment) };
            self.open.clear();
            self.begin_anew()?;
        }
        let (place, told) = (&mut self.places[group], &mut self.told[group]);
        if tape.has_gap || !is_whole {
            *told = (tape.from, 0);
        }
        place.pass(told, &mut tape);
        for step in &tape.steps {
            note_part(&mut self.open, tape.group, step);
        }
        let mut bytes = vec![0; FRAME_HEAD_BYTES];
        encode_frame(&mut bytes, &tape);
        seal_frame(&mut bytes)?;
        self.file.write_all(&bytes)?;
        self.is_dirty = true;
        self.written_bytes += bytes.len() as u64;
        let segment = self.segments.back_mut().expect("there is one to write to");
        segment.bytes += bytes.len() as u64;
        segment.steps += tape.steps.len() as u64;
        if segment.bytes >= (self.size_max / SEGMENTS).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX) {
            self.next_segment()?;
        }
        Ok(is_whole)
    }

    /// What was written is on the disk.
    ///
    /// # Errors
    /// If that cannot be.
    pub fn sync(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_dirty) { self.file.sync_data() } else { Ok(()) }
    }

    fn begin_anew(&mut self) -> io::Result<()> {
        let old: Vec<u64> = self.segments.iter().map(|segment| segment.sequence).collect();
        self.next_segment()?;
        self.segments.drain(..old.len());
        old.into_iter().try_for_each(|sequence| fs::remove_file(segment_path(&self.directory, sequence)))
    }

    fn next_segment(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        let sequence = self.segments.back().map_or(0, |segment| segment.sequence + 1);
        self.file = begin(&self.directory, sequence, self.cluster, &self.places, &self.open)?;
        let bytes = self.file.metadata()?.len();
        self.segments.push_back(Segment { sequence, places: self.places.clone(), bytes, steps: 0 });
        while self.segments.len() > 2 && self.bytes() > self.size_max {
            let oldest = self.segments.pop_front().expect("there are several");
            fs::remove_file(segment_path(&self.directory, oldest.sequence))?;
        }
        Ok(())
    }
}

/// Keeps parts of transactions until all have ended: a file begins with them.
fn note_part(open: &mut BTreeMap<TransactionId, Vec<Part>>, group: u32, step: &Step) {
    let Some((transaction, groups)) = &step.transaction else { return };
    let parts = open.entry(*transaction).or_default();
    match step.phase {
        Phase::Dropped => parts.retain(|(other, _)| *other != group),
        // What it has done was told where it was done.
        _ => parts.push((group, Step { requests: Requests::default(), wide: Requests::default(), ..step.clone() })),
    }
    let done_count = parts.iter().filter(|(_, step)| step.phase == Phase::Done).count();
    if parts.is_empty() || done_count == groups.len() {
        open.remove(transaction);
    }
}

/// Where a file of the backlog is.
pub fn segment_path(directory: &Path, sequence: u64) -> PathBuf {
    directory.join(format!("{sequence:016x}.log"))
}

/// Makes a file and its header.
fn begin(
    directory: &Path,
    sequence: u64,
    cluster: u128,
    places: &[Place],
    open: &BTreeMap<TransactionId, Vec<Part>>,
) -> io::Result<File> {
    let mut body = Vec::new();
    body.extend_from_slice(&cluster.to_le_bytes());
    put_u32(&mut body, places.len() as u32);
    for place in places {
        put_u64(&mut body, place.index);
        put_u32(&mut body, place.count);
        put_u64(&mut body, place.moment.0.cast_unsigned());
    }
    let parts: Vec<&Part> = open.values().flatten().collect();
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
    end: (Vec<Place>, BTreeMap<TransactionId, Vec<Part>>),
}

fn scan(path: &Path, cluster: u128) -> io::Result<Scan> {
    let mut reader = SegmentReader::open_path(path, cluster)?;
    let places = reader.places.clone();
    let mut end = places.clone();
    let mut open = BTreeMap::new();
    for (group, step) in &reader.parts {
        note_part(&mut open, *group, step);
    }
    let length = reader.file.metadata()?.len();
    loop {
        match reader.next(length) {
            Ok(None) => break,
            Ok(Some(tape)) => {
                let group = tape.group as usize;
                if group >= end.len() {
                    end.resize(group + 1, Place::default());
                }
                let place = &mut end[group];
                for step in &tape.steps {
                    note_part(&mut open, tape.group, step);
                    if step.phase != Phase::Swept {
                        place.count = if step.index == place.index { place.count + 1 } else { 1 };
                        place.index = step.index;
                    }
                }
                if tape.index > place.index {
                    (place.index, place.count) = (tape.index, 0);
                }
                place.moment = place.moment.max(tape.moment);
            }
            Err(_) => {
                let (bytes, steps) = (reader.offset, reader.steps);
                return Ok(Scan { places, bytes, steps, is_whole: false, end: (end, open) });
            }
        }
    }
    let (bytes, steps) = (reader.offset, reader.steps);
    Ok(Scan { places, bytes, steps, is_whole: bytes == length, end: (end, open) })
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
            let parts = (0..part_count).map(|_| Some((fields.u32()?, fields.step()?))).collect::<Option<Vec<_>>>()?;
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
        let places = (0..).zip(&self.places);
        let mut tapes: Vec<Tape> =
            places.map(|(group, place)| Tape { group, moment: place.moment, ..Tape::default() }).collect();
        let parts = std::mem::take(&mut self.parts).into_iter();
        tapes.extend(parts.map(|(group, step)| Tape {
            group,
            steps: vec![step],
            moment: UnixMillis(i64::MIN),
            ..Tape::default()
        }));
        tapes
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
    let steps = (0..count).map(|_| fields.step()).collect::<Option<Vec<_>>>()?;
    fields.0.is_empty().then_some(Tape { group, from, index, moment, has_gap: false, born: None, steps })
}

fn put_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, bytes.len() as u32);
    out.extend_from_slice(bytes);
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

/// Reads fields one behind the other; none where there is too little.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take(&mut self, count: usize) -> Option<&[u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn u128(&mut self) -> Option<u128> {
        Some(u128::from_le_bytes(self.take(16)?.try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let length = self.u32()? as usize;
        self.take(length).map(<[u8]>::to_vec)
    }

    fn database(&mut self) -> Option<u16> {
        u16::try_from(self.u32()?).ok()
    }

    fn requests(&mut self) -> Option<Requests> {
        let count = self.u32()? as usize;
        let run_count = self.u32()?;
        let runs =
            (0..run_count).map(|_| Some((self.database()?, self.u32()? as usize))).collect::<Option<Vec<_>>>()?;
        let bytes = self.bytes()?;
        let is_sound = runs.is_sorted_by_key(|(_, end)| *end) && runs.last().is_none_or(|(_, end)| *end == bytes.len());
        is_sound.then_some(Requests { bytes, runs, count })
    }

    fn step(&mut self) -> Option<Step> {
        let (index, moment) = (self.u64()?, UnixMillis(self.u64()?.cast_signed()));
        let phase = match self.u8()? {
            0 => Phase::Done,
            1 => Phase::Prepared,
            2 => Phase::Dropped,
            3 => Phase::Swept,
            _ => return None,
        };
        let flags = self.u8()?;
        let transaction = if flags & HAS_TRANSACTION == 0 {
            None
        } else {
            let (node, boot) = (self.u64()?, self.u64()?);
            let core = node::event::CoreId(u16::try_from(self.u32()?).ok()?);
            let number = self.u64()?;
            let count = self.u32()?;
            let groups = (0..count).map(|_| self.u32()).collect::<Option<Vec<_>>>()?;
            Some((TransactionId { gateway: GatewayId { node, boot, core }, number }, groups))
        };
        let key_count = self.u32()?;
        let keys = (0..key_count).map(|_| Some((self.database()?, self.bytes()?))).collect::<Option<Vec<_>>>()?;
        let (is_whole, is_move) = (flags & IS_WHOLE != 0, flags & IS_MOVE != 0);
        let (wide, requests) = (self.requests()?, self.requests()?);
        Some(Step { index, moment, phase, transaction, keys, is_whole, is_move, wide, requests })
    }
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
                    let tape = Tape { group: 0, from, index, moment, has_gap: is_first, born: None, steps };
                    assert!(backlog.append(tape).expect("room"), "seed {seed}: nothing is missing");
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
    fn a_hole_and_damage_are_noticed_and_the_oldest_goes() {
        let scratch = Scratch::new("hole");
        let (mut backlog, _) = scratch.open(1 << 20);
        let tape = |from: u64, index: u64, has_gap| {
            let mut bytes = vec![b'x'; 40_000];
            bytes[..4].copy_from_slice(b"*1\r\n");
            let requests = Requests { runs: vec![(0, bytes.len())], bytes, count: 1 };
            let moment = UnixMillis(index as i64);
            let steps = vec![Step { index, moment, requests, ..Step::default() }];
            Tape { group: 0, from, index, moment, has_gap, born: None, steps }
        };
        assert!(backlog.append(tape(0, 1, true)).expect("room"));
        assert!(!backlog.append(tape(5, 6, true)).expect("room"), "entries 2 to 5 are missing");
        // None of what is missing is later than what comes first: that is all that is known of it.
        let begin = backlog.segments().front().expect("a file").places[0];
        assert_eq!(begin, Place { index: 5, count: 0, moment: UnixMillis(6) });
        for index in 6..100 {
            assert!(backlog.append(tape(index, index + 1, false)).expect("room"));
        }
        assert!(backlog.bytes() <= (1 << 20) + 70_000, "{}", backlog.bytes());
        let first = backlog.segments().front().expect("a file").clone();
        assert!(first.places[0].index > 50);
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
            }
        };
        assert!(backlog.append(tape(0, 0, 5)).expect("a disk"));
        // It has told of its first entry nothing.
        assert!(backlog.append(tape(2, 1, 4)).expect("a disk"));
        assert!(backlog.append(tape(1, 0, 3)).expect("a disk"));
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
        assert!(backlog.append(first).expect("a disk"), "nothing is missing");
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
