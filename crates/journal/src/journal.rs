//! The log of all groups, as one stream of records over prewritten segments.

mod opening;
mod writing;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use stdx::Level;
use stdx::log::{HardState, Membership};

use crate::buffer::BlockBuffer;
use crate::chore::Chore;
use crate::disk::{BLOCK_BYTES, Disk};
use crate::fault::Fault;
use crate::frame::{self};
use crate::identity::Identity;
use crate::layout::{
    DIRECTORY, FileKind, IDENTITY_FILE, IDENTITY_FILE_NEW, SEGMENT_BYTES_MIN, TAIL_FILE, checkpoint_file, classify,
    segment_file,
};
use crate::reader::LogMap;
use crate::record::{Place, RECORD_HEADER_BYTES, RECORDS_START, RecordKind, record_bytes};
use crate::recovery::Behind;
use crate::tail::TailMark;
use crate::types::{Append, CheckpointMark, Options, Recovered, is_nobody};
use opening::{
    Examined, MarkFile, Mending, archive_holds, examine, is_prepared_well, is_stale_checkpoint, open_tail,
    refuse_unless_empty, wipe, write_again,
};

/// A record with a larger body is checksummed first and written piece by piece, so that a huge value is not copied as a
/// whole.
const WHOLE_BODY_BYTES_MAX: u64 = 4 << 20;

/// Size of such a piece.
const PIECE_BYTES: usize = 1 << 20;

/// Kept free at the end of each segment, for `End`, `Seal` and `Stop`.
const TAIL_BYTES: u64 = 4 * RECORD_HEADER_BYTES as u64;

/// Kept free for marks, which free segments: on a full disk they must fit where appends no longer do.
const MARKS_BYTES: u64 = 16 << 10;

/// Segments that are kept for use again beside the prepared one; more are removed. As many as a checkpoint frees that
/// is made after 256 MiB of log: to fill new ones with zeros would double what is written to the disk.
const RECYCLED_MAX: usize = 4;

/// The open log of a data directory.
///
/// One at a time: the host locks the directory. All calls block; a host calls from a thread of its own. After a fault
/// other than [`Fault::Full`] the journal must be dropped, and the process ended: what is on disk is then unknown.
pub struct Journal<D: Disk> {
    disk: D,
    identity: Identity,
    segment_bytes: u64,
    /// The segment being written.
    file: D::File,
    place: Place,
    sequence: u64,
    bytes: u64,
    /// Offset of the next record.
    end: u64,
    /// Everything before is on stable storage.
    synced: u64,
    /// The last record is a seal.
    is_sealed: bool,
    /// Offset of the last record with a body.
    content_start: u64,
    /// Offset behind it.
    content_end: u64,
    /// The mark outside of the log, as last written.
    tail: TailMark,
    /// None if the disk had no room for it when the directory was opened.
    tail_file: Option<MarkFile<D::File>>,
    /// Number of the next record.
    number: u64,
    /// The bytes of the last block that are already written, then what is being written. Starts at a block boundary.
    buffer: BlockBuffer,
    groups: BTreeMap<u32, Standing>,
    /// Full segments, oldest first.
    full: VecDeque<FullSegment>,
    /// Entries behind these indexes are kept, by group, although a checkpoint covers them.
    holds: BTreeMap<u32, u64>,
    /// The same for an archive.
    archive_holds: BTreeMap<u32, u64>,
    /// There is one, which may lack anything of a group that comes into being.
    is_archived: bool,
    held_bytes_max: u64,
    /// Grows when segments come or go.
    map_version: u64,
    successor: Successor<D::File>,
    /// Segments no longer needed, to be recycled.
    recycled: Vec<u64>,
    /// Files no longer needed, to be removed.
    doomed: Vec<String>,
    is_chore_out: bool,
    /// Bytes of records written since the journal was opened.
    written_bytes: u64,
}

/// A part of the log that is being synced.
#[derive(Clone, Copy, Debug)]
pub struct Syncing {
    sequence: u64,
    end: u64,
    content_end: u64,
}

impl Syncing {
    /// Makes it durable.
    ///
    /// # Errors
    /// Any error here means that what is on disk is unknown.
    pub fn run<D: Disk>(&self, disk: &D) -> Result<(), Fault> {
        let name = segment_file(self.sequence);
        match disk.open(&name) {
            Ok(file) => disk.sync(&file).map_err(Fault::io("sync", name)),
            // It has been left, and so was durable, and is used again.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Fault::io("open", name)(error)),
        }
    }
}

/// What is restated of a group at the start of each segment.
#[derive(Clone, Debug, Default)]
struct Standing {
    hard_state: HardState,
    membership: Option<Membership>,
    mark: Option<CheckpointMark>,
    last_index: u64,
}

struct FullSegment {
    sequence: u64,
    bytes: u64,
    used_bytes: u64,
    /// Last index of each group when the segment was full.
    last_indexes: Vec<(u32, u64)>,
}

impl FullSegment {
    /// What it holds of a group is needed by nobody: the group has been vacated since.
    fn give_up(&mut self, group: u32) {
        self.last_indexes.retain(|(other, _)| *other != group);
    }
}

enum Successor<F> {
    None,
    Ready { file: F, bytes: u64 },
}

impl<D: Disk> fmt::Debug for Journal<D> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Journal(segment {:016x}, end {})", self.sequence, self.end)
    }
}

/// A segment as found.
struct Segment {
    sequence: u64,
    name: String,
    length: u64,
}

impl<D: Disk> Journal<D> {
    /// Opens the log of a directory, or makes a new one if the directory is empty, and returns all that is in it.
    ///
    /// # Errors
    /// [`Fault`] if the directory is not ours, newer, or damaged: then nothing has been changed. Also for any error of
    /// the disk.
    pub fn open(disk: D, options: &Options) -> Result<(Self, Recovered), Fault> {
        assert!(options.segment_bytes >= SEGMENT_BYTES_MIN, "a segment of {} bytes", options.segment_bytes);
        assert!(options.segment_bytes.is_multiple_of(BLOCK_BYTES as u64), "a segment is a number of blocks");
        let names = list(&disk)?;
        if names.iter().any(|name| name == IDENTITY_FILE) {
            Self::open_existing(disk, options, &names)
        } else {
            refuse_unless_empty(&disk, &names)?;
            Self::make(disk, options, &names)
        }
    }

    fn make(disk: D, options: &Options, names: &[String]) -> Result<(Self, Recovered), Fault> {
        for name in names.iter().filter(|name| classify(name) != FileKind::Ignored) {
            disk.remove(name).map_err(Fault::io("remove", name))?;
        }
        let identity = options.new_identity;
        let chore = Chore::prepare(&identity, 1, options.segment_bytes, None);
        let file = chore.prepare_now(&disk)?;
        let tail_file = disk.create(TAIL_FILE, BLOCK_BYTES as u64).map_err(Fault::io("make", TAIL_FILE))?;
        let tail_file = MarkFile::new(tail_file, &identity);
        // The identity comes last: a directory that has one has a log.
        write_identity(&disk, &identity)?;
        let journal = Self {
            place: Place::new(identity.directory, 1),
            disk,
            identity,
            segment_bytes: options.segment_bytes,
            file,
            sequence: 1,
            bytes: options.segment_bytes,
            end: RECORDS_START,
            synced: RECORDS_START,
            is_sealed: false,
            content_start: RECORDS_START,
            content_end: RECORDS_START,
            tail: TailMark::default(),
            tail_file: Some(tail_file),
            number: 1,
            buffer: BlockBuffer::new(64 << 10),
            groups: BTreeMap::new(),
            full: VecDeque::new(),
            holds: BTreeMap::new(),
            archive_holds: archive_holds(options, &identity),
            is_archived: options.is_archived,
            held_bytes_max: options.held_bytes_max,
            map_version: 0,
            successor: Successor::None,
            recycled: Vec::new(),
            doomed: Vec::new(),
            is_chore_out: false,
            written_bytes: 0,
        };
        let recovered = Recovered {
            identity,
            is_new: true,
            was_stopped_cleanly: true,
            tail_in_question: None,
            groups: BTreeMap::new(),
            log_bytes: 0,
            notes: Vec::new(),
        };
        Ok((journal, recovered))
    }

    /// What [`open`](Self::open) would find in a directory that has an identity, for somebody who only wants to know:
    /// nothing in it is changed, and the disk may be one that cannot be written to.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Fault::Missing`] if there is no identity.
    pub fn look(disk: &D, options: &Options) -> Result<Recovered, Fault> {
        let names = list(disk)?;
        if !names.iter().any(|name| name == IDENTITY_FILE) {
            let why = "the directory says of no node that it belongs to it".into();
            return Err(Fault::Missing { file: IDENTITY_FILE.into(), why });
        }
        Ok(examine(disk, options, &names, Mending::Forbidden)?.into_recovered())
    }

    fn open_existing(disk: D, options: &Options, names: &[String]) -> Result<(Self, Recovered), Fault> {
        let found = examine(&disk, options, names, Mending::Allowed)?;
        let was_stopped_cleanly = found.was_stopped_cleanly();
        let Examined {
            identity,
            segments,
            mut leftovers,
            mut passed,
            mut notes,
            replay,
            mut full,
            previous,
            position,
            stop,
            current,
            tail_in_question,
            ..
        } = found;
        let mut doomed = Vec::new();
        if options.is_archived {
            // The archive may lack what is in them.
            passed.append(&mut full);
            full = passed;
        } else {
            doomed.extend(passed.iter().map(|segment| segment_file(segment.sequence)));
        }
        let (sequence, name) = (segments[position].sequence, segments[position].name.clone());

        // From here on the directory is put in order; everything found makes sense.
        let segment_length = segments[position].length;
        let mut tail_file = open_tail(&disk, &identity, names, &mut notes)?;
        let is_in_question = tail_in_question.is_some();
        let tail_mark = TailMark { sequence, end: stop.content_end, is_in_question };
        if is_in_question {
            // First of all: what is cut off is not there to speak for itself at the next start.
            let full = || Fault::Full { file: TAIL_FILE.into(), bytes: BLOCK_BYTES as u64 };
            let file = tail_file.as_mut().ok_or_else(full)?;
            // It vouches for no more than is known to be durable: the rest is written again below, and this start may
            // end before that.
            let end = stop.synced.min(stop.content_end);
            file.write(&disk, &TailMark { end, ..tail_mark })?;
            file.sync(&disk)?;
        }
        // What was read may have been in the page cache only, and to sync it is not enough: after a flush that failed
        // the system calls pages clean that never reached the disk, and goes on showing them. From now on this content
        // is relied on, so it is written once more. The segment before counts too: the process may have ended between
        // writing its `End` and syncing it.
        if let Some((name, bytes, stop)) = &previous {
            let file = disk.open(name).map_err(Fault::io("open", name))?;
            write_again(&disk, &file, name, bytes, stop)?;
            disk.sync(&file).map_err(Fault::io("sync", name))?;
        }
        let name = &name;
        let file = disk.open(name).map_err(Fault::io("open", name))?;
        write_again(&disk, &file, name, &current, &stop)?;
        let block_start = stop.end as usize / BLOCK_BYTES * BLOCK_BYTES;
        let mut buffer = BlockBuffer::new(64 << 10);
        buffer.push(&current[block_start..stop.end as usize]);
        wipe(&disk, &file, name, &current, stop.end, stop.behind.word != Behind::Nothing, &mut buffer)?;
        disk.sync(&file).map_err(Fault::io("sync", name))?;
        disk.sync_directory().map_err(Fault::io("sync", DIRECTORY))?;
        if let Some(file) = &mut tail_file {
            file.write(&disk, &tail_mark)?;
        }

        let successor = successor_of(&disk, &identity, segments.get(position + 1), &mut leftovers)?;
        leftovers.extend(segments.iter().skip(position + 2).map(|segment| segment.name.clone()));
        leftovers.extend(names.iter().filter(|name| is_stale_checkpoint(name, &replay)).cloned());
        remove_leftovers(&disk, &leftovers, &mut notes)?;
        let groups = replay.groups.iter().map(|(group, state)| (*group, Standing::of(state))).collect();
        let mut archive_holds = archive_holds(options, &identity);
        if options.is_archived {
            replay.groups.keys().for_each(|group| _ = archive_holds.entry(*group).or_insert(0));
        }
        // The archive gets what a group has from those that hold it.
        archive_holds.retain(|group, _| replay.groups.get(group).is_none_or(|state| !state.found.is_vacated()));
        let mut journal = Self {
            place: Place::new(identity.directory, sequence),
            disk,
            identity,
            segment_bytes: options.segment_bytes,
            file,
            sequence,
            bytes: segment_length,
            end: stop.end,
            synced: stop.end,
            is_sealed: false,
            content_start: stop.content_end,
            content_end: stop.content_end,
            tail: tail_mark,
            tail_file,
            number: replay.number.unwrap_or(1),
            buffer,
            groups,
            full,
            holds: BTreeMap::new(),
            archive_holds,
            is_archived: options.is_archived,
            held_bytes_max: options.held_bytes_max,
            map_version: 0,
            successor,
            recycled: Vec::new(),
            doomed,
            is_chore_out: false,
            written_bytes: 0,
        };
        journal.free_segments();
        let recovered = Recovered {
            identity,
            is_new: false,
            was_stopped_cleanly,
            tail_in_question,
            log_bytes: replay.log_bytes,
            groups: replay.groups.into_iter().map(|(group, state)| (group, state.found)).collect(),
            notes,
        };
        Ok((journal, recovered))
    }

    /// Writes appends as one record: after a crash all of them are found or none. Not yet durable: see
    /// [`sync`](Self::sync).
    ///
    /// # Errors
    /// [`Fault::Full`] if there is no room: nothing has been written, and the call may be made again.
    ///
    /// # Panics
    /// If entries leave a gap in their group's log, or reach below its checkpoint.
    pub fn append(&mut self, appends: &[Append]) -> Result<(), Fault> {
        self.write_appends(appends, false)
    }

    /// As [`append`](Self::append), and everything written so far is durable on return: cheaper than the two calls.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    ///
    /// # Panics
    /// As [`append`](Self::append).
    pub fn append_durably(&mut self, appends: &[Append]) -> Result<(), Fault> {
        self.write_appends(appends, true)
    }

    /// Makes everything written so far durable.
    ///
    /// # Errors
    /// Any error here means that what is on disk is unknown.
    pub fn sync(&mut self) -> Result<(), Fault> {
        if self.synced < self.end {
            self.disk.sync(&self.file).map_err(|error| Fault::io("sync", self.file_name())(error))?;
            self.synced = self.end;
            self.mark_tail(self.content_end)?;
        }
        Ok(())
    }

    /// What must be synced of the segment being written, for another thread to do while this one writes on. None if all
    /// is durable.
    pub fn begin_sync(&self) -> Option<Syncing> {
        let Self { sequence, end, content_end, .. } = *self;
        (self.synced < end).then_some(Syncing { sequence, end, content_end })
    }

    /// What had to be synced is durable: [`Syncing::run`] has returned.
    ///
    /// # Errors
    /// Any error of the disk.
    pub fn end_sync(&mut self, syncing: Syncing) -> Result<(), Fault> {
        // A segment that has been left since was durable before that.
        if syncing.sequence == self.sequence && syncing.end > self.synced {
            self.synced = syncing.end;
            self.mark_tail(syncing.content_end)?;
        }
        Ok(())
    }

    /// The others have told every group what it may have lacked: the end of the log is in question no more.
    ///
    /// # Errors
    /// Any error of the disk.
    pub fn settle(&mut self) -> Result<(), Fault> {
        if !self.tail.is_in_question {
            return Ok(());
        }
        self.tail.is_in_question = false;
        let Some(file) = &mut self.tail_file else { return Ok(()) };
        file.write(&self.disk, &self.tail)?;
        file.sync(&self.disk)
    }

    /// What the log holds is less than what was promised, and the others must make up for it: every start is told so
    /// until [`settle`](Self::settle). For a directory that replaces one that is damaged.
    ///
    /// # Errors
    /// Any error of the disk; [`Fault::Full`] if there is no room for the mark that says so.
    pub fn put_in_question(&mut self) -> Result<(), Fault> {
        self.sync()?;
        self.tail.is_in_question = true;
        let full = || Fault::Full { file: TAIL_FILE.into(), bytes: BLOCK_BYTES as u64 };
        let file = self.tail_file.as_mut().ok_or_else(full)?;
        file.write(&self.disk, &self.tail)?;
        file.sync(&self.disk)
    }

    /// True until [`settle`](Self::settle), if the end of the log was in question when it was opened.
    pub fn is_in_question(&self) -> bool {
        self.tail.is_in_question
    }

    /// Tells outside of the log how far it has been synced.
    fn mark_tail(&mut self, end: u64) -> Result<(), Fault> {
        let mark = TailMark { sequence: self.sequence, end, ..self.tail };
        if mark != self.tail
            && let Some(file) = &mut self.tail_file
        {
            file.write(&self.disk, &mark)?;
            self.tail = mark;
        }
        Ok(())
    }

    /// Tells in the log itself how far it has been synced, so that later damage to the last record is not taken for a
    /// write cut short. To be called when the log has come to rest.
    ///
    /// # Errors
    /// Any error of the disk.
    pub fn seal(&mut self) -> Result<(), Fault> {
        if self.is_sealed() || self.end + RECORD_HEADER_BYTES as u64 + TAIL_BYTES > self.bytes {
            return Ok(());
        }
        self.write_small(RecordKind::Seal, true)
    }

    /// True if the log needs no seal: it ends with one, or is empty.
    pub fn is_sealed(&self) -> bool {
        self.is_sealed || self.end == RECORDS_START
    }

    /// Makes everything durable and notes that the process stopped in good order, if there is room for the note. No
    /// chore may be out.
    ///
    /// # Errors
    /// Any error of the disk.
    pub fn stop(mut self) -> Result<D, Fault> {
        self.sync()?;
        match self.make_room(0, TAIL_BYTES) {
            Ok(()) => self.write_small(RecordKind::Stop, true)?,
            // The log is whole without the note.
            Err(fault) if fault.is_full() => {}
            Err(fault) => return Err(fault),
        }
        self.settle()?;
        Ok(self.disk)
    }

    /// Notes durably that a checkpoint counts: its file is complete, synced and has its name. Entries up to its index
    /// are no longer needed, and neither is the group's previous checkpoint. A mark beyond the end of the group's log
    /// replaces the log (a checkpoint that came from a leader).
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn checkpointed(&mut self, group: u32, mark: CheckpointMark) -> Result<(), Fault> {
        self.install(group, mark, None)
    }

    /// As [`checkpointed`](Self::checkpointed), with a new hard state in the same record.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn install(&mut self, group: u32, mark: CheckpointMark, hard_state: Option<HardState>) -> Result<(), Fault> {
        let mut body = Vec::new();
        if let Some(hard_state) = &hard_state {
            frame::encode_hard_state(group, hard_state, &mut body);
        }
        let mark_start = body.len();
        frame::encode_mark(group, &mark, &mut body);
        self.make_room(body.len() as u64, TAIL_BYTES + record_bytes(body.len() as u64))?;
        let start = self.begin_record(&self.restatement(), body.len());
        self.buffer.push(&body);
        self.finish_record(start, false)?;
        // What it frees is gone afterwards. So it is said twice: the record that says it is not the last one, which a
        // start may cut off.
        let start = self.begin_record(&[], body.len() - mark_start);
        self.buffer.push(&body[mark_start..]);
        self.finish_record(start, true)?;

        let standing = self.groups.entry(group).or_default();
        standing.last_index = standing.last_index.max(mark.index);
        if let Some(hard_state) = hard_state {
            standing.hard_state = hard_state;
        }
        standing.hard_state.commit = standing.hard_state.commit.max(mark.index);
        self.map_version += 1;
        standing.membership.take_if(|membership| is_nobody(membership));
        let name = checkpoint_file(group, mark.index);
        self.doomed.retain(|doomed| *doomed != name);
        if let Some(old) = standing.mark.replace(mark)
            && Some(old.index) != standing.mark.as_ref().map(|mark| mark.index)
        {
            self.doomed.push(checkpoint_file(group, old.index));
        }
        self.free_segments();
        Ok(())
    }

    /// Entries of the group behind `index` are kept although a checkpoint covers them, as far as
    /// [`Options::held_bytes_max`] goes; until told otherwise, or until the directory is opened again.
    pub fn hold(&mut self, group: u32, index: u64) {
        self.holds.insert(group, index);
        self.free_segments();
    }

    /// Keeps nothing for others any more, until told to again: the disk is full.
    pub fn let_go(&mut self) {
        self.holds.clear();
        self.archive_holds.clear();
        self.free_segments();
    }

    /// Keeps entries of a group behind `index`, because an archive lacks them: as [`hold`](Self::hold) for members.
    pub fn hold_for_archive(&mut self, group: u32, index: u64) {
        self.archive_holds.insert(group, index);
        self.free_segments();
    }

    /// Where the entries of the log are, for a [`LogReader`](crate::LogReader).
    pub fn map(&self) -> LogMap {
        let full = self.full.iter().map(|segment| (segment.sequence, segment.last_indexes.clone())).collect();
        let mark = |(group, standing): (&u32, &Standing)| Some((*group, standing.mark.clone()?));
        let marks = self.groups.iter().filter_map(mark).collect();
        LogMap { directory: self.identity.directory, full, current: self.sequence, marks }
    }

    /// Grows whenever [`map`](Self::map) changes.
    pub fn map_version(&self) -> u64 {
        self.map_version
    }

    /// Bytes of segments that are kept only because somebody holds them.
    pub fn held_bytes(&self) -> u64 {
        let held = self.full.iter().take_while(|segment| self.is_covered(segment));
        held.map(|segment| segment.bytes).sum()
    }

    /// Work for the background: preparing the next segment, removing files. At most one chore is out at a time; it is
    /// handed back with [`chore_done`](Self::chore_done) after [`Chore::run`].
    pub fn chore(&mut self) -> Option<Chore> {
        if self.is_chore_out {
            return None;
        }
        let chore = if matches!(self.successor, Successor::None) {
            let recycle = self.recycled.pop();
            Chore::prepare(&self.identity, self.sequence + 1, self.segment_bytes, recycle)
        } else {
            while self.recycled.len() > RECYCLED_MAX {
                self.doomed.extend(self.recycled.pop().map(segment_file));
            }
            if self.doomed.is_empty() {
                return None;
            }
            Chore::remove(std::mem::take(&mut self.doomed))
        };
        self.is_chore_out = true;
        Some(chore)
    }

    /// Takes back a chore and how it went. A chore that failed for lack of room is wanted again by the next call of
    /// [`chore`](Self::chore).
    ///
    /// # Errors
    /// The chore's own fault.
    pub fn chore_done(&mut self, chore: Chore, result: Result<(), Fault>) -> Result<(), Fault> {
        self.is_chore_out = false;
        result?;
        if let Some((sequence, bytes)) = chore.prepared() {
            assert_eq!(sequence, self.sequence + 1, "a segment was prepared for another time");
            let name = segment_file(sequence);
            let file = self.disk.open(&name).map_err(Fault::io("open", &name))?;
            self.successor = Successor::Ready { file, bytes };
        }
        Ok(())
    }

    /// Does all chores at once.
    ///
    /// # Errors
    /// [`Fault::Full`] if there is no room for the next segment; any error of the disk.
    pub fn prepare_spare(&mut self) -> Result<(), Fault> {
        while let Some(chore) = self.chore() {
            let result = chore.run(&self.disk);
            self.chore_done(chore, result)?;
        }
        Ok(())
    }

    /// True if appends with such a weight (see [`Append::weight_bytes`]) can be written without making a segment first.
    /// If not, and a chore is out, it has to be waited for before the call.
    pub fn fits(&self, weight_bytes: u64) -> bool {
        let bytes = weight_bytes + RECORD_HEADER_BYTES as u64 + TAIL_BYTES + MARKS_BYTES;
        let successor_bytes = match &self.successor {
            Successor::Ready { bytes, .. } => *bytes,
            Successor::None => 0,
        };
        let fresh_bytes = RECORDS_START + bytes + self.standing_bytes_max();
        let needed = if self.end == RECORDS_START { fresh_bytes } else { self.end + bytes };
        needed <= self.bytes || fresh_bytes <= successor_bytes
    }

    /// True if appends with such a weight go into the segment that is being written: then
    /// [`append`](Self::append) is one write, as long as none of them gives up a group.
    pub fn fits_segment(&self, weight_bytes: u64) -> bool {
        let bytes = weight_bytes + RECORD_HEADER_BYTES as u64 + TAIL_BYTES + MARKS_BYTES;
        let start = if self.end == RECORDS_START { RECORDS_START + self.standing_bytes_max() } else { self.end };
        start + bytes <= self.bytes
    }

    /// Prewritten bytes left for appends. What is admitted beyond them may find the disk full.
    pub fn room_bytes(&self) -> u64 {
        let kept_bytes = TAIL_BYTES + MARKS_BYTES;
        let successor = match &self.successor {
            Successor::Ready { bytes, .. } => {
                bytes.saturating_sub(RECORDS_START + kept_bytes + self.standing_bytes_max())
            }
            Successor::None => 0,
        };
        self.bytes.saturating_sub(self.end + kept_bytes) + successor
    }

    /// True if the next segment is prepared.
    pub fn is_spare_ready(&self) -> bool {
        matches!(self.successor, Successor::Ready { .. })
    }

    /// Sequence of the segment being written.
    pub fn segment_sequence(&self) -> u64 {
        self.sequence
    }

    /// Bytes of log that a restart would have to read.
    pub fn log_bytes(&self) -> u64 {
        let needed = self.full.iter().skip_while(|segment| self.is_covered(segment));
        needed.map(|segment| segment.used_bytes).sum::<u64>() + self.end
    }

    /// The file of the segment being written, and where in it the last record with a body that was written since the
    /// journal was opened begins and ends: for those who damage it on purpose.
    pub fn last_content(&self) -> (String, std::ops::Range<u64>) {
        (self.file_name(), self.content_start..self.content_end)
    }

    /// Bytes written that are not yet durable.
    pub fn dirty_bytes(&self) -> u64 {
        self.end - self.synced
    }

    /// Bytes of records written since the journal was opened.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// True if something written is not yet durable.
    pub fn is_dirty(&self) -> bool {
        self.synced < self.end
    }

    /// Index of the group's last entry, or of its checkpoint; 0 if there is neither.
    pub fn last_index(&self, group: u32) -> u64 {
        self.groups.get(&group).map_or(0, |standing| standing.last_index)
    }

    /// The group that lacks a newer checkpoint and so keeps the oldest segment from being freed: the one to write a
    /// checkpoint of first.
    pub fn pinning_group(&self) -> Option<u32> {
        let oldest = self.full.iter().find(|segment| !self.is_covered(segment))?;
        oldest.last_indexes.iter().find(|(group, last_index)| self.mark_index(*group) < *last_index).map(|pin| pin.0)
    }

    /// The directory's identity.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The disk.
    pub fn disk(&self) -> &D {
        &self.disk
    }

    fn file_name(&self) -> String {
        segment_file(self.sequence)
    }

    fn mark_index(&self, group: u32) -> u64 {
        self.groups.get(&group).and_then(|standing| standing.mark.as_ref()).map_or(0, |mark| mark.index)
    }

    fn free_segments(&mut self) {
        let mut held_bytes = self.held_bytes();
        while let Some(oldest) = self.full.front() {
            if !self.is_covered(oldest) || (self.is_held(oldest) && held_bytes <= self.held_bytes_max) {
                break;
            }
            held_bytes -= oldest.bytes;
            self.map_version += 1;
            let oldest = self.full.pop_front().expect("it was looked at");
            if oldest.bytes == self.segment_bytes {
                self.recycled.push(oldest.sequence);
            } else {
                self.doomed.push(segment_file(oldest.sequence));
            }
        }
    }

    /// True if all entries of a segment are in checkpoints as well.
    fn is_covered(&self, segment: &FullSegment) -> bool {
        segment.last_indexes.iter().all(|(group, last_index)| self.mark_index(*group) >= *last_index)
    }

    fn is_held(&self, segment: &FullSegment) -> bool {
        let holds = [&self.holds, &self.archive_holds];
        let is_held = |(group, last_index): &(u32, u64)| {
            holds.iter().any(|holds| holds.get(group).is_some_and(|held| held < last_index))
        };
        segment.last_indexes.iter().any(is_held)
    }

    /// Upper bound of what restating all groups takes.
    fn standing_bytes_max(&self) -> u64 {
        // Per group: three fixed frames and two memberships, of at most some dozens of nodes.
        self.groups.len() as u64 * 4096
    }
}

impl Standing {
    fn of(state: &crate::recovery::ReplayedGroup) -> Self {
        Self {
            hard_state: state.found.hard_state,
            membership: state.found.membership.clone(),
            mark: state.found.checkpoint.clone(),
            last_index: state.last_index,
        }
    }
}

/// The segment that is filled next, if one is ready. One that is not fit for use is left over.
fn successor_of<D: Disk>(
    disk: &D,
    identity: &Identity,
    next: Option<&Segment>,
    leftovers: &mut Vec<String>,
) -> Result<Successor<D::File>, Fault> {
    Ok(match next {
        Some(next) if is_prepared_well(disk, identity, next)? => {
            Successor::Ready { file: disk.open(&next.name).map_err(Fault::io("open", &next.name))?, bytes: next.length }
        }
        Some(next) => {
            leftovers.push(next.name.clone());
            Successor::None
        }
        None => Successor::None,
    })
}

fn remove_leftovers<D: Disk>(disk: &D, leftovers: &[String], notes: &mut Vec<String>) -> Result<(), Fault> {
    for name in leftovers {
        notes.push(format!("{name} was left over and has been removed"));
        disk.remove(name).map_err(Fault::io("remove", name))?;
    }
    Ok(())
}

fn list<D: Disk>(disk: &D) -> Result<Vec<String>, Fault> {
    let mut names = disk.list().map_err(Fault::io("list", DIRECTORY))?;
    names.sort_unstable();
    Ok(names)
}

fn read_up_to<D: Disk>(disk: &D, name: &str, bytes_max: usize) -> Result<Vec<u8>, Fault> {
    let file = disk.open(name).map_err(Fault::io("open", name))?;
    let length = disk.length(&file).map_err(Fault::io("measure", name))?;
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX).min(bytes_max)];
    let count = disk.read_at(&file, 0, &mut bytes).map_err(Fault::io("read", name))?;
    bytes.truncate(count);
    Ok(bytes)
}

fn read_identity<D: Disk>(disk: &D) -> Result<Identity, Fault> {
    Identity::decode(&read_up_to(disk, IDENTITY_FILE, BLOCK_BYTES)?)
}

/// Writes into a directory that something of a level is about to be in its log. That is on the disk on return, and a
/// version that does not know the level does not open the directory any more. Does nothing if it says so already.
///
/// # Errors
/// Those of the disk; the directory may say either then.
pub fn raise_level<D: Disk>(disk: &D, level: Level) -> Result<(), Fault> {
    let identity = read_identity(disk)?;
    if identity.level < level {
        write_identity(disk, &Identity { level, ..identity })?;
    }
    Ok(())
}

fn write_identity<D: Disk>(disk: &D, identity: &Identity) -> Result<(), Fault> {
    let text = identity.encode();
    let mut buffer = BlockBuffer::new(BLOCK_BYTES);
    buffer.push(text.as_bytes());
    let file = disk.create(IDENTITY_FILE_NEW, 0).map_err(Fault::io("make", IDENTITY_FILE_NEW))?;
    disk.write_at(&file, 0, buffer.tail(0)).map_err(Fault::io("write to", IDENTITY_FILE_NEW))?;
    disk.sync(&file).map_err(Fault::io("sync", IDENTITY_FILE_NEW))?;
    disk.rename(IDENTITY_FILE_NEW, IDENTITY_FILE).map_err(Fault::io("rename", IDENTITY_FILE_NEW))?;
    disk.sync_directory().map_err(Fault::io("sync", DIRECTORY))
}

/// By group, its last index before a segment, and the index of its newest checkpoint.
type Restated = BTreeMap<u32, (u64, u64)>;
