//! What a start finds of a log: which segments belong together, where it ends, and whether that end is whole.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::{FullSegment, PIECE_BYTES, Restated, Segment, read_identity, read_up_to};
use crate::buffer::BlockBuffer;
use crate::chore::Chore;
use crate::disk::{BLOCK_BYTES, Disk};
use crate::fault::{self, Fault};
use crate::frame::{self, Frame};
use crate::identity::Identity;
use crate::layout::{FileKind, IDENTITY_FILE, TAIL_FILE, checkpoint_file, classify, segment_file};
use crate::record::{
    Place, RECORD_HEADER_BYTES, RECORDS_START, RecordKind, check_segment_header, directory_of_segment,
};
use crate::recovery::{Behind, Next, Replay, Stop, Tail, Verdict, judge, judge_tail};
use crate::tail::{Found, TailMark};
use crate::types::{Options, Recovered, RecoveredGroup};

/// Whether what stands in the way of reading may be put in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mending {
    Allowed,
    Forbidden,
}

/// What is in a directory, and what to make of it.
pub(super) struct Examined {
    pub(super) identity: Identity,
    pub(super) segments: Vec<Segment>,
    /// Files that are worth nothing.
    pub(super) leftovers: Vec<String>,
    /// Segments that a checkpoint covers.
    pub(super) passed: VecDeque<FullSegment>,
    /// The mark outside of the log, as found.
    pub(super) mark: TailMark,
    pub(super) notes: Vec<String>,
    pub(super) replay: Replay,
    pub(super) full: VecDeque<FullSegment>,
    /// The segment before the one in which the log ends: its name, its bytes, where reading it stopped.
    pub(super) previous: Option<(String, Bytes, Stop)>,
    /// The segment in which the log ends, among all.
    pub(super) position: usize,
    /// Where it ends.
    pub(super) stop: Stop,
    /// Bytes of that segment.
    pub(super) current: Bytes,
    pub(super) tail: Tail,
    pub(super) tail_in_question: Option<String>,
}

impl Examined {
    pub(super) fn was_stopped_cleanly(&self) -> bool {
        let Self { stop, full, tail, mark, .. } = self;
        let is_at_rest = stop.last == Some(RecordKind::Stop) || (stop.last.is_none() && full.is_empty());
        is_at_rest && *tail == Tail::Whole && !mark.is_in_question
    }

    pub(super) fn into_recovered(self) -> Recovered {
        Recovered {
            identity: self.identity,
            is_new: false,
            was_stopped_cleanly: self.was_stopped_cleanly(),
            tail_in_question: self.tail_in_question,
            log_bytes: self.replay.log_bytes,
            groups: self.replay.groups.into_iter().map(|(group, state)| (group, state.found)).collect(),
            notes: self.notes,
        }
    }
}

/// The file of the mark outside of the log.
pub(super) struct MarkFile<F> {
    pub(super) file: F,
    pub(super) directory: u128,
    pub(super) buffer: BlockBuffer,
}

impl<F> MarkFile<F> {
    pub(super) fn new(file: F, identity: &Identity) -> Self {
        Self { file, directory: identity.directory, buffer: BlockBuffer::new(BLOCK_BYTES) }
    }

    pub(super) fn write<D: Disk<File = F>>(&mut self, disk: &D, mark: &TailMark) -> Result<(), Fault> {
        self.buffer.clear();
        self.buffer.push(&mark.encode(self.directory));
        disk.write_at(&self.file, 0, self.buffer.blocks()).map_err(Fault::io("write to", TAIL_FILE))
    }

    pub(super) fn sync<D: Disk<File = F>>(&self, disk: &D) -> Result<(), Fault> {
        disk.sync(&self.file).map_err(Fault::io("sync", TAIL_FILE))
    }
}

/// Reads a directory that has an identity.
pub(super) fn examine<D: Disk>(
    disk: &D,
    options: &Options,
    names: &[String],
    mending: Mending,
) -> Result<Examined, Fault> {
    let identity = read_identity(disk)?;
    if !options.levels.contains(identity.level) {
        return Err(Fault::Level { level: identity.level, known: options.levels });
    }
    let (mut segments, leftovers) = find_chain(disk, names)?;
    let passed = pass_covered(disk, &identity, &mut segments)?;
    let mut notes = Vec::new();
    let mark = read_mark(disk, &identity, names, &mut notes)?;
    let mut replay = Replay::default();
    let mut full = VecDeque::new();
    let mut previous = None;

    // Read segment after segment until one says that the log ends there.
    let mut position = 0;
    let (stop, current, tail, letter) = loop {
        let segment = &segments[position];
        let place = Place::new(identity.directory, segment.sequence);
        let bytes = read_whole(disk, segment)?;
        check_segment_header(&segment.name, &bytes, identity.directory, segment.sequence, segment.length)?;
        let stop = replay.read_segment(&segment.name, place, &bytes)?;
        for (group, state) in &mut replay.groups {
            if std::mem::take(&mut state.was_vacated) {
                full.iter_mut().for_each(|before: &mut FullSegment| before.give_up(*group));
            }
        }
        let is_ended = stop.last == Some(RecordKind::End);
        let next = match segments.get(position + 1) {
            None => Next::Absent,
            Some(_) if is_ended => Next::Unwritten,
            Some(next) => look_ahead(disk, &identity, next)?,
        };
        if position == 0 && stop.last.is_none() && segment.sequence > 1 {
            let why = format!("{} holds nothing, so the log before it is not whole", segment.name);
            return Err(Fault::Missing { file: segment_file(segment.sequence - 1), why });
        }
        let (letter, verdict) = judge(is_ended, next, stop.behind.word);
        match verdict {
            Verdict::GoesOn => {
                full.push_back(FullSegment {
                    sequence: segment.sequence,
                    bytes: segment.length,
                    used_bytes: stop.end,
                    last_indexes: replay.groups.iter().map(|(group, state)| (*group, state.last_index)).collect(),
                });
                previous = Some((segment.name.clone(), bytes, stop));
                position += 1;
                // A prepared segment that was never written to may be anything: it is made again.
                let next = &segments[position];
                if !is_prepared_well(disk, &identity, next)? {
                    if (mark.sequence, mark.end) > (next.sequence, RECORDS_START) {
                        let what = "it had been written to, and neither its header nor its first record verifies";
                        return Err(Fault::damaged(&next.name, 0, what));
                    }
                    if mending == Mending::Forbidden {
                        let (_, current, stop) = previous.take().expect("just put there");
                        position -= 1;
                        break (stop, current, Tail::Whole, letter);
                    }
                    notes.push(format!("{} was not fit for use and has been made again", next.name));
                    let bytes = next.length.max(options.segment_bytes).next_multiple_of(BLOCK_BYTES as u64);
                    Chore::prepare(&identity, next.sequence, bytes, None).prepare_now(disk)?;
                    segments[position].length = bytes;
                }
            }
            Verdict::NextMissing => {
                let why = format!("{} says at offset {} that the log goes on there", segment.name, stop.end);
                return Err(Fault::Missing { file: segment_file(segment.sequence + 1), why });
            }
            Verdict::Damaged | Verdict::DamagedWithin | Verdict::EndsAfterCut | Verdict::Ends => {
                let is_marked = (mark.sequence, mark.end) > (segment.sequence, stop.end);
                let is_end = matches!(verdict, Verdict::EndsAfterCut | Verdict::Ends);
                let letter = if is_end && is_marked { 'G' } else { letter };
                match judge_tail(verdict, is_marked, &stop) {
                    Some(tail) => break (stop, bytes, tail, letter),
                    None => return Err(lost(&segment.name, stop.end, letter)),
                }
            }
        }
    };
    let found: Vec<&RecoveredGroup> = replay.groups.values().map(|state| &state.found).collect();
    let has_peers = (options.has_peers)(&identity, &found);
    let name = &segments[position].name;
    let tail_in_question = doubt(tail, (name, letter), &stop, (mark.is_in_question, has_peers), &mut notes)?;
    check_groups(&replay, &segments, names)?;
    Ok(Examined {
        identity,
        segments,
        leftovers,
        passed,
        mark,
        notes,
        replay,
        full,
        previous,
        position,
        stop,
        current,
        tail,
        tail_in_question,
    })
}

/// Why the end of the log is in question: of this verdict, in this file, for the reason that the letter names. None if
/// all that was synced is there.
fn doubt(
    tail: Tail,
    (name, letter): (&str, char),
    stop: &Stop,
    (was_in_question, has_peers): (bool, bool),
    notes: &mut Vec<String>,
) -> Result<Option<String>, Fault> {
    let end = stop.end;
    Ok(match tail {
        Tail::Whole if was_in_question && has_peers => Some(
            "an earlier start had to cut off the end of the log, and the others have not made good for it yet".into(),
        ),
        Tail::Whole => {
            if stop.behind.word != Behind::Nothing {
                notes.push(format!("{name} ends at offset {end}: a record there that holds nothing is damaged"));
            }
            None
        }
        Tail::Lost if !has_peers => return Err(lost(name, end, letter)),
        Tail::Lost => Some(format!(
            "{name} is damaged at offset {end}: a record that had been synced does not verify (case {letter} of docs/formats/log.md). It is \
             cut off, and this node is in doubt until the others have told it what was committed"
        )),
        Tail::Questionable if has_peers => Some(format!(
            "{name} ends at offset {end}: the record there does not verify, and nothing says whether it had been \
             synced. It is cut off, and this node is in doubt until the others have told it what was committed"
        )),
        Tail::Questionable => {
            let what = if stop.behind.word == Behind::Nothing {
                "the record there is torn and is cut off"
            } else {
                "what follows had not been synced and is cut off"
            };
            notes.push(format!("{name} ends at offset {end}: {what}"));
            None
        }
    })
}

/// Each group goes on where its checkpoint ends, and has it.
fn check_groups(replay: &Replay, segments: &[Segment], names: &[String]) -> Result<(), Fault> {
    for (group, state) in &replay.groups {
        state.check().map_err(|what| Fault::Missing {
            file: segment_file(segments[0].sequence.saturating_sub(1)),
            why: format!("of group {group}, {what}"),
        })?;
        if let Some(mark) = &state.found.checkpoint {
            let file = checkpoint_file(*group, mark.index);
            if !names.contains(&file) {
                let why = format!("the log counts on this checkpoint of group {group}");
                return Err(Fault::Missing { file, why });
            }
        }
    }
    Ok(())
}

/// The fault of a record that is lost although it had been synced.
pub(super) fn lost(file: &str, offset: u64, letter: char) -> Fault {
    let what =
        format!("a record that had been synced does not verify, or is missing (case {letter} of docs/formats/log.md)");
    Fault::damaged(file, offset, what)
}

/// Reads the mark outside of the log. A directory that was made before there was one has none, and vouches for nothing;
/// so does a mark that is damaged, which is told.
pub(super) fn read_mark<D: Disk>(
    disk: &D,
    identity: &Identity,
    names: &[String],
    notes: &mut Vec<String>,
) -> Result<TailMark, Fault> {
    if !names.iter().any(|name| name == TAIL_FILE) {
        return Ok(TailMark::default());
    }
    match TailMark::decode(&read_up_to(disk, TAIL_FILE, BLOCK_BYTES)?, identity.directory) {
        Found::Mark(mark) => Ok(mark),
        Found::Nothing => Ok(TailMark::default()),
        Found::Unreadable => {
            notes.push(format!("{TAIL_FILE} does not verify and is written again: it says how far the log was synced"));
            Ok(TailMark::default())
        }
    }
}

/// Opens the file of the mark, or makes it. None if there is no room for it: the log does without.
pub(super) fn open_tail<D: Disk>(
    disk: &D,
    identity: &Identity,
    names: &[String],
    notes: &mut Vec<String>,
) -> Result<Option<MarkFile<D::File>>, Fault> {
    if names.iter().any(|name| name == TAIL_FILE) {
        let file = disk.open(TAIL_FILE).map_err(Fault::io("open", TAIL_FILE))?;
        if disk.length(&file).map_err(Fault::io("measure", TAIL_FILE))? == BLOCK_BYTES as u64 {
            return Ok(Some(MarkFile::new(file, identity)));
        }
    }
    match disk.create(TAIL_FILE, BLOCK_BYTES as u64) {
        Ok(file) => Ok(Some(MarkFile::new(file, identity))),
        Err(error) if fault::is_full(&error) => {
            notes.push(format!("no room on the disk for {TAIL_FILE}: the next start will make it"));
            Ok(None)
        }
        Err(error) => Err(Fault::io("make", TAIL_FILE)(error)),
    }
}

/// A directory without an identity must be empty, or be what a crash left while one was being made.
pub(super) fn refuse_unless_empty<D: Disk>(disk: &D, names: &[String]) -> Result<(), Fault> {
    let identity_missing = |name: &str| Fault::Missing {
        file: IDENTITY_FILE.into(),
        why: format!("the directory holds {name}, so it was a data directory of Holdfast"),
    };
    for name in names {
        match classify(name) {
            FileKind::Ignored | FileKind::Unfinished | FileKind::Tail => {}
            FileKind::Segment { sequence: 1 } => {
                let start = read_up_to(disk, name, 2 * BLOCK_BYTES)?;
                let is_written =
                    directory_of_segment(&start).is_some_and(|directory| is_written(Place::new(directory, 1), &start));
                if is_written {
                    return Err(identity_missing(name));
                }
            }
            FileKind::Segment { .. } | FileKind::Checkpoint { .. } => return Err(identity_missing(name)),
            FileKind::Identity | FileKind::Unknown => return Err(Fault::Foreign { file: name.clone() }),
        }
    }
    Ok(())
}

/// True if the first record's header verifies. `start` is the beginning of the segment.
pub(super) fn is_written(place: Place, start: &[u8]) -> bool {
    place.decode_header(start, RECORDS_START as usize).is_some()
}

/// The newest run of segments without a gap, and older ones, which are left over: segments are freed oldest first, and
/// a crash may have brought some of them back.
pub(super) fn find_chain<D: Disk>(disk: &D, names: &[String]) -> Result<(Vec<Segment>, Vec<String>), Fault> {
    let mut segments: Vec<Segment> = Vec::new();
    let mut leftovers = Vec::new();
    for name in names {
        match classify(name) {
            FileKind::Segment { sequence } => {
                if segments.last().is_some_and(|last| last.sequence + 1 != sequence) {
                    leftovers.extend(segments.drain(..).map(|segment| segment.name));
                }
                let file = disk.open(name).map_err(Fault::io("open", name))?;
                let length = disk.length(&file).map_err(Fault::io("measure", name))?;
                segments.push(Segment { sequence, name: name.clone(), length });
            }
            FileKind::Unfinished => leftovers.push(name.clone()),
            _ => {}
        }
    }
    if segments.is_empty() {
        let why = "the directory has an identity and no log".into();
        return Err(Fault::Missing { file: segment_file(1), why });
    }
    Ok((segments, leftovers))
}

/// An archive may lack anything that is there, until it says what it has.
pub(super) fn archive_holds(options: &Options, identity: &Identity) -> BTreeMap<u32, u64> {
    (0..identity.group_count).filter(|_| options.is_archived).map(|group| (group, 0)).collect()
}

/// Passes over the oldest segments that hold only entries covered by checkpoints: they were kept for others, and the
/// log is whole without them. Returns them.
pub(super) fn pass_covered<D: Disk>(
    disk: &D,
    identity: &Identity,
    segments: &mut Vec<Segment>,
) -> Result<VecDeque<FullSegment>, Fault> {
    let mut passed = VecDeque::new();
    if segments.len() < 3 {
        return Ok(passed);
    }
    let mut marks = None;
    for segment in segments.iter().rev() {
        marks = restated(disk, identity, segment)?;
        if marks.is_some() {
            break;
        }
    }
    // A group that has been vacated needs nothing of what came before.
    let reach = |(last_index, mark_index)| if last_index == 0 { u64::MAX } else { mark_index };
    let marks: BTreeMap<u32, u64> =
        marks.into_iter().flatten().map(|(group, standing)| (group, reach(standing))).collect();
    while let [segment, next, ..] = &segments[passed.len()..] {
        let Some(standing) = restated(disk, identity, next)? else { break };
        let covers =
            |(group, (last_index, _)): (&u32, &(u64, u64))| marks.get(group).is_some_and(|at| at >= last_index);
        if standing.is_empty() || !standing.iter().all(covers) {
            break;
        }
        passed.push_back(FullSegment {
            sequence: segment.sequence,
            bytes: segment.length,
            used_bytes: segment.length,
            last_indexes: standing.iter().map(|(group, (last_index, _))| (*group, *last_index)).collect(),
        });
    }
    segments.drain(..passed.len());
    Ok(passed)
}

/// What the first record of a segment restates. None if the record does not verify.
pub(super) fn restated<D: Disk>(disk: &D, identity: &Identity, segment: &Segment) -> Result<Option<Restated>, Fault> {
    let place = Place::new(identity.directory, segment.sequence);
    let start = read_up_to(disk, &segment.name, 2 * BLOCK_BYTES)?;
    let Some(header) = place.decode_header(&start, RECORDS_START as usize) else { return Ok(None) };
    let bytes = RECORDS_START as usize + RECORD_HEADER_BYTES + header.body_bytes as usize;
    let start = Bytes::from(read_up_to(disk, &segment.name, bytes)?);
    let Some((_, body_end)) = place.decode(&start, RECORDS_START as usize) else { return Ok(None) };
    let mut found = Restated::new();
    let mut offset = RECORDS_START as usize + RECORD_HEADER_BYTES;
    while let Some((group, frame, next)) = frame::decode(&start, offset, body_end) {
        match frame {
            Frame::Standing { last_index } => _ = found.insert(group, (last_index, 0)),
            Frame::Mark(mark) => _ = found.entry(group).and_modify(|known| known.1 = mark.index),
            _ => {}
        }
        offset = next;
    }
    Ok(Some(found))
}

pub(super) fn read_whole<D: Disk>(disk: &D, segment: &Segment) -> Result<Bytes, Fault> {
    let file = disk.open(&segment.name).map_err(Fault::io("open", &segment.name))?;
    let length = usize::try_from(segment.length).expect("a file fits the address space");
    let mut bytes = vec![0; length];
    let count = disk.read_at(&file, 0, &mut bytes).map_err(Fault::io("read", &segment.name))?;
    bytes.truncate(count);
    Ok(Bytes::from(bytes))
}

/// Looks whether a segment behind the one being read has been written to.
pub(super) fn look_ahead<D: Disk>(disk: &D, identity: &Identity, next: &Segment) -> Result<Next, Fault> {
    let start = read_up_to(disk, &next.name, 2 * BLOCK_BYTES)?;
    let is_written = is_written(Place::new(identity.directory, next.sequence), &start);
    Ok(if is_written { Next::Written } else { Next::Unwritten })
}

/// True unless the segment is unwritten and its header or size is wrong.
pub(super) fn is_prepared_well<D: Disk>(disk: &D, identity: &Identity, next: &Segment) -> Result<bool, Fault> {
    let start = read_up_to(disk, &next.name, 2 * BLOCK_BYTES)?;
    if is_written(Place::new(identity.directory, next.sequence), &start) {
        return Ok(true);
    }
    Ok(check_segment_header(&next.name, &start, identity.directory, next.sequence, next.length).is_ok())
}

pub(super) fn is_stale_checkpoint(name: &str, replay: &Replay) -> bool {
    let FileKind::Checkpoint { group, index } = classify(name) else { return false };
    let marked = replay.groups.get(&group).and_then(|state| state.found.checkpoint.as_ref());
    marked.is_none_or(|mark| mark.index != index)
}

/// Writes the records of a segment again that may not have reached stable storage, with the bytes that are there. The
/// block of the log's end is written as it is found, with what is behind the end.
pub(super) fn write_again<D: Disk>(
    disk: &D,
    file: &D::File,
    name: &str,
    segment: &[u8],
    stop: &Stop,
) -> Result<(), Fault> {
    let mut offset = stop.synced as usize / BLOCK_BYTES * BLOCK_BYTES;
    let limit = (stop.end as usize).next_multiple_of(BLOCK_BYTES);
    let mut buffer = BlockBuffer::new(PIECE_BYTES.min(limit.saturating_sub(offset)));
    while stop.synced < stop.end && offset < limit {
        let piece = &segment[offset..limit.min(offset + PIECE_BYTES)];
        buffer.clear();
        buffer.push(piece);
        disk.write_at(file, offset as u64, buffer.blocks()).map_err(Fault::io("write to", name))?;
        offset += piece.len();
    }
    Ok(())
}

/// Overwrites what is behind the end of the log with zeros, so that no header left there can ever pass for one of a
/// record written later. The buffer holds the bytes of the end's block that stay.
pub(super) fn wipe<D: Disk>(
    disk: &D,
    file: &D::File,
    name: &str,
    segment: &[u8],
    end: u64,
    is_all: bool,
    buffer: &mut BlockBuffer,
) -> Result<(), Fault> {
    let block_start = end / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    let first_blocks = &segment[end as usize..segment.len().min(block_start as usize + 2 * BLOCK_BYTES)];
    if !is_all && first_blocks.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    let limit = if is_all { segment.len() as u64 } else { end + first_blocks.len() as u64 };
    // The end's own block first, then large pieces.
    let kept = buffer.tail(0).to_vec();
    disk.write_at(file, block_start, buffer.blocks()).map_err(Fault::io("write to", name))?;
    buffer.clear();
    let mut offset = block_start + BLOCK_BYTES as u64;
    while offset < limit {
        let count = usize::try_from(limit - offset).unwrap_or(usize::MAX).min(PIECE_BYTES);
        buffer.clear();
        buffer.reserve(count);
        buffer.extend(count).fill(0);
        disk.write_at(file, offset, buffer.blocks()).map_err(Fault::io("write to", name))?;
        offset += count as u64;
    }
    buffer.clear();
    buffer.push(&kept);
    Ok(())
}
