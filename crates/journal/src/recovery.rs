//! What to make of a log after a crash.
//!
//! A segment is read from its start. It stops where no record verifies, and then the question is what that means:
//! nothing was written there yet, or something was and is lost. If what is lost had been synced, somebody may have been
//! promised it, and the process must stop and say so. If it had not, nobody has, and it is cut off.
//!
//! Three things are looked at:
//!
//! * whether the last record is an `End`, which is synced before the next segment is first written to;
//! * whether the next segment is there, and has been written to;
//! * what headers verify behind the stop. Checksums cover directory, segment and offset, so old bytes of a recycled
//!   file never do. Every header tells up to where the segment had been synced when it was made.
//!
//! | letter | `End` | next segment | headers behind the stop    | verdict |
//! |--------|-------|--------------|----------------------------|---------|
//! | A      | yes   | there        | (nothing follows an `End`) | the log goes on in the next segment |
//! | B      | yes   | absent       | (nothing follows an `End`) | a segment is missing: stop |
//! | C      | no    | written to   | any                        | synced records are lost: stop |
//! | D      | no    | not written  | one says: synced beyond    | synced records are lost: stop |
//! | E      | no    | not written  | some, none says so         | the log ends here; a tail that was never synced is cut |
//! | F      | no    | not written  | none                       | the log ends here |
//!
//! Where only the end is lost ([`judge_tail`]), a mark outside of the log tells more: up to where it had been synced at
//! least. See [`crate::tail`]. And a `Seal`, which an idle journal writes, has a header that says the same of all
//! before it: see [`crate::Journal::seal`].
//!
//! What cannot be known: whether the very last record of E or F was half written when the power failed or turned bad
//! later, if neither has told of it yet. What remains of such a record is recognized, so that it is told, and so that a
//! node with others to ask does ask them.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::fault::Fault;
use crate::frame::{self, Frame};
use crate::record::{Place, RECORD_HEADER_BYTES, RECORDS_START, RecordKind, record_bytes};
use crate::types::{RecoveredGroup, is_nobody};

/// What verifies behind the place where a segment stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Nothing.
    Nothing,
    /// Headers that do not claim that what is lost had been synced.
    Unsynced,
    /// A header that does.
    Synced,
}

/// The records behind the place where a segment stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followers {
    /// What their headers say.
    pub word: Behind,
    /// One of them has a body.
    pub has_batch: bool,
    /// One of them holds entries or the mark of a checkpoint, or has a body that does not verify.
    pub has_entries: bool,
}

impl Followers {
    /// There are none.
    pub const NONE: Self = Self { word: Behind::Nothing, has_batch: false, has_entries: false };
}

/// The next segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// There is none.
    Absent,
    /// Prepared, and not yet used.
    Unwritten,
    /// It holds records.
    Written,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A.
    GoesOn,
    /// B.
    NextMissing,
    /// C.
    Damaged,
    /// D.
    DamagedWithin,
    /// E.
    EndsAfterCut,
    /// F.
    Ends,
}

/// What is lost of a log's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Nothing that anybody can have been promised.
    Whole,
    /// Something of which nothing says whether it had been synced.
    Questionable,
    /// Something that had been synced.
    Lost,
}

/// What to make of a log that ends here by its own account: `verdict` comes from [`judge`], and `is_marked` says that
/// the mark outside of the log vouches for more. None if the log does not end here, or if entries verify behind what is
/// lost: that is not its end.
pub fn judge_tail(verdict: Verdict, is_marked: bool, stop: &Stop) -> Option<Tail> {
    let is_bodiless = stop.remains.is_some_and(|kind| kind != RecordKind::Batch);
    match verdict {
        Verdict::DamagedWithin if stop.behind.has_entries => None,
        Verdict::DamagedWithin if is_bodiless && !stop.behind.has_batch => Some(Tail::Whole),
        Verdict::DamagedWithin => Some(Tail::Lost),
        Verdict::EndsAfterCut if is_marked && stop.behind.has_entries => None,
        Verdict::EndsAfterCut | Verdict::Ends if is_marked => Some(Tail::Lost),
        Verdict::EndsAfterCut => Some(Tail::Questionable),
        Verdict::Ends if stop.remains == Some(RecordKind::Batch) => Some(Tail::Questionable),
        Verdict::Ends => Some(Tail::Whole),
        Verdict::GoesOn | Verdict::NextMissing | Verdict::Damaged => None,
    }
}

/// The table. Returns the letter and what it means.
pub fn judge(is_ended: bool, next: Next, behind: Behind) -> (char, Verdict) {
    match (is_ended, next, behind) {
        (true, Next::Unwritten | Next::Written, _) => ('A', Verdict::GoesOn),
        (true, Next::Absent, _) => ('B', Verdict::NextMissing),
        (false, Next::Written, _) => ('C', Verdict::Damaged),
        (false, Next::Absent | Next::Unwritten, Behind::Synced) => ('D', Verdict::DamagedWithin),
        (false, Next::Absent | Next::Unwritten, Behind::Unsynced) => ('E', Verdict::EndsAfterCut),
        (false, Next::Absent | Next::Unwritten, Behind::Nothing) => ('F', Verdict::Ends),
    }
}

/// Where reading a segment stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Offset behind the last record that verifies.
    pub end: u64,
    /// What that record was for; none if there is no record.
    pub last: Option<RecordKind>,
    /// What verifies behind it.
    pub behind: Followers,
    /// What a record left that does not verify any more, at the end itself.
    pub remains: Option<RecordKind>,
    /// Offset behind the last record with a body; the start of the records if there is none.
    pub content_end: u64,
    /// Everything before this offset is on stable storage, by the word of a record.
    pub synced: u64,
}

/// Looks for records behind `end`.
pub fn look_behind(place: Place, segment: &Bytes, end: u64) -> Followers {
    let mut behind = Followers::NONE;
    for offset in (end as usize + 8..segment.len().saturating_sub(RECORD_HEADER_BYTES - 1)).step_by(8) {
        if let Some(header) = place.decode_header(segment, offset) {
            if header.kind == RecordKind::Batch {
                behind.has_batch = true;
                behind.has_entries |= may_hold_entries(place, segment, offset);
            }
            if header.synced > end {
                behind.word = Behind::Synced;
            } else if behind.word == Behind::Nothing {
                behind.word = Behind::Unsynced;
            }
        }
    }
    behind
}

/// False if the record there verifies as a whole and holds no entry, and no mark, which would have freed some.
fn may_hold_entries(place: Place, segment: &Bytes, offset: usize) -> bool {
    let Some((_, body_end)) = place.decode(segment, offset) else { return true };
    let mut position = offset + RECORD_HEADER_BYTES;
    while let Some((_, frame, next)) = frame::decode(segment, position, body_end) {
        if matches!(frame, Frame::Entry(_) | Frame::Mark(_)) {
            return true;
        }
        position = next;
    }
    position < body_end
}

/// One group while the log is read.
#[derive(Debug, Default)]
pub struct ReplayedGroup {
    /// As it will be handed out.
    pub found: RecoveredGroup,
    /// Index of the last entry, whether or not it is still needed.
    pub last_index: u64,
    /// The segment that is being read gives up what those before it hold of the group.
    pub was_vacated: bool,
}

/// The log, read so far.
#[derive(Debug, Default)]
pub struct Replay {
    /// Groups by number.
    pub groups: BTreeMap<u32, ReplayedGroup>,
    /// Number of the next record; none before the first.
    pub number: Option<u64>,
    /// Bytes of records read.
    pub log_bytes: u64,
}

impl Replay {
    /// Reads one segment, given whole.
    ///
    /// # Errors
    /// [`Fault::Damaged`] if a record verifies and yet does not make sense.
    pub fn read_segment(&mut self, file: &str, place: Place, segment: &Bytes) -> Result<Stop, Fault> {
        let mut offset = RECORDS_START as usize;
        let mut last = None;
        let mut synced = RECORDS_START;
        let mut content_end = RECORDS_START;
        while let Some((header, body_end)) = place.decode(segment, offset) {
            if let Some(number) = self.number
                && number != header.number
            {
                let what = format!("record {} stands where record {number} should be", header.number);
                return Err(Fault::damaged(file, offset as u64, what));
            }
            let next = header.number.checked_add(1);
            self.number =
                Some(next.ok_or_else(|| Fault::damaged(file, offset as u64, "a record has the last number"))?);
            synced = synced.max(header.synced);
            last = Some(header.kind);
            let mut position = offset + RECORD_HEADER_BYTES;
            while position < body_end {
                let malformed = |what: &str| Fault::damaged(file, position as u64, what);
                let (group, frame, next) = frame::decode(segment, position, body_end)
                    .ok_or_else(|| malformed("a record holds a frame of no known form"))?;
                self.groups.entry(group).or_default().take(frame).map_err(|what| malformed(&what))?;
                position = next;
            }
            let bytes = record_bytes(header.body_bytes.into());
            self.log_bytes += bytes;
            offset += bytes as usize;
            if header.kind == RecordKind::Batch {
                content_end = offset as u64;
            }
            if header.kind == RecordKind::End {
                break;
            }
        }
        let end = offset as u64;
        let is_ended = last == Some(RecordKind::End);
        let behind = if is_ended { Followers::NONE } else { look_behind(place, segment, end) };
        let remains = place.remains(segment, offset, self.number);
        Ok(Stop { end, last, behind, remains, content_end, synced })
    }
}

impl ReplayedGroup {
    #[inline]
    fn take(&mut self, frame: Frame) -> Result<(), String> {
        let found = &mut self.found;
        match frame {
            Frame::Entry(entry) => {
                let mark_index = found.checkpoint.as_ref().map_or(0, |mark| mark.index);
                if entry.index > self.last_index + 1 || entry.index <= mark_index {
                    return Err(format!(
                        "entry {} follows entry {} and checkpoint {mark_index}",
                        entry.index, self.last_index
                    ));
                }
                if entry.index <= self.last_index {
                    let keep = found.entries.partition_point(|kept| kept.index < entry.index);
                    found.entries.truncate(keep);
                }
                self.last_index = entry.index;
                found.membership.take_if(|membership| is_nobody(membership));
                found.entries.push(entry);
            }
            Frame::HardState(hard_state) => found.hard_state = hard_state,
            Frame::Membership(membership) => {
                if is_nobody(&membership) {
                    (found.checkpoint, self.last_index) = (None, 0);
                    found.entries.clear();
                    self.was_vacated = true;
                }
                found.membership = Some(membership);
            }
            Frame::Mark(mark) => {
                // A mark beyond the log is a checkpoint that came from a leader: it replaces the log.
                self.last_index = self.last_index.max(mark.index);
                let covered = found.entries.partition_point(|entry| entry.index <= mark.index);
                found.entries.drain(..covered);
                found.hard_state.commit = found.hard_state.commit.max(mark.index);
                found.checkpoint = Some(mark);
                found.membership.take_if(|membership| is_nobody(membership));
            }
            Frame::Standing { last_index } => {
                // A group first heard of here has its earlier entries in segments that are gone, so in its checkpoint.
                let is_first_heard = *found == RecoveredGroup::default() && self.last_index == 0;
                if !is_first_heard && self.last_index != last_index {
                    return Err(format!("its log ended at entry {}, not at {last_index}", self.last_index));
                }
                self.last_index = last_index;
            }
        }
        Ok(())
    }

    /// Checks that the checkpoint and the entries make one whole.
    pub fn check(&self) -> Result<(), String> {
        let mark_index = self.found.checkpoint.as_ref().map_or(0, |mark| mark.index);
        let first_index = self.found.entries.first().map_or(self.last_index + 1, |entry| entry.index);
        if first_index != mark_index + 1 {
            return Err(format!("entries {} to {} are in no file", mark_index + 1, first_index - 1));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use fuzzing::Fuzz;
    use stdx::log::{Entry, EntryKind, HardState, Membership};

    use super::*;
    use crate::disk::BLOCK_BYTES;
    use crate::record::RecordHeader;
    use crate::types::{Append, CheckpointMark};

    #[test]
    fn what_is_lost_of_an_end_goes_by_the_mark_and_by_what_remains() {
        let kinds = [None, Some(RecordKind::Batch), Some(RecordKind::Seal)];
        let mut rows = String::new();
        for verdict in [Verdict::Damaged, Verdict::DamagedWithin, Verdict::EndsAfterCut, Verdict::Ends] {
            for is_marked in [false, true] {
                for remains in kinds {
                    let stop = Stop {
                        end: 5000,
                        last: None,
                        behind: Followers::NONE,
                        remains,
                        content_end: 5000,
                        synced: 5000,
                    };
                    let tail = judge_tail(verdict, is_marked, &stop);
                    if verdict == Verdict::DamagedWithin {
                        let votes = Followers { has_batch: true, ..Followers::NONE };
                        let entries = Followers { has_entries: true, ..votes };
                        let judge = |behind| judge_tail(verdict, is_marked, &Stop { behind, ..stop });
                        assert_eq!((judge(votes), judge(entries)), (Some(Tail::Lost), None));
                    }
                    if verdict == Verdict::EndsAfterCut {
                        let behind = Followers { word: Behind::Unsynced, has_batch: true, has_entries: true };
                        let expected = if is_marked { None } else { Some(Tail::Questionable) };
                        assert_eq!(judge_tail(verdict, is_marked, &Stop { behind, ..stop }), expected);
                    }
                    rows += &format!("{verdict:?} marked {is_marked} {remains:?}: {tail:?}\n");
                }
            }
        }
        assert_eq!(
            rows,
            "\
Damaged marked false None: None
Damaged marked false Some(Batch): None
Damaged marked false Some(Seal): None
Damaged marked true None: None
Damaged marked true Some(Batch): None
Damaged marked true Some(Seal): None
DamagedWithin marked false None: Some(Lost)
DamagedWithin marked false Some(Batch): Some(Lost)
DamagedWithin marked false Some(Seal): Some(Whole)
DamagedWithin marked true None: Some(Lost)
DamagedWithin marked true Some(Batch): Some(Lost)
DamagedWithin marked true Some(Seal): Some(Whole)
EndsAfterCut marked false None: Some(Questionable)
EndsAfterCut marked false Some(Batch): Some(Questionable)
EndsAfterCut marked false Some(Seal): Some(Questionable)
EndsAfterCut marked true None: Some(Lost)
EndsAfterCut marked true Some(Batch): Some(Lost)
EndsAfterCut marked true Some(Seal): Some(Lost)
Ends marked false None: Some(Whole)
Ends marked false Some(Batch): Some(Questionable)
Ends marked false Some(Seal): Some(Whole)
Ends marked true None: Some(Lost)
Ends marked true Some(Batch): Some(Lost)
Ends marked true Some(Seal): Some(Lost)
"
        );
    }

    #[test]
    fn the_table_has_a_letter_for_everything_that_can_be_found() {
        let mut rows = String::new();
        for is_ended in [true, false] {
            for next in [Next::Absent, Next::Unwritten, Next::Written] {
                for behind in [Behind::Nothing, Behind::Unsynced, Behind::Synced] {
                    let (letter, verdict) = judge(is_ended, next, behind);
                    rows += &format!("{is_ended:5} {next:?} {behind:?}: {letter} {verdict:?}\n");
                }
            }
        }
        assert_eq!(
            rows,
            "\
true  Absent Nothing: B NextMissing
true  Absent Unsynced: B NextMissing
true  Absent Synced: B NextMissing
true  Unwritten Nothing: A GoesOn
true  Unwritten Unsynced: A GoesOn
true  Unwritten Synced: A GoesOn
true  Written Nothing: A GoesOn
true  Written Unsynced: A GoesOn
true  Written Synced: A GoesOn
false Absent Nothing: F Ends
false Absent Unsynced: E EndsAfterCut
false Absent Synced: D DamagedWithin
false Unwritten Nothing: F Ends
false Unwritten Unsynced: E EndsAfterCut
false Unwritten Synced: D DamagedWithin
false Written Nothing: C Damaged
false Written Unsynced: C Damaged
false Written Synced: C Damaged
"
        );
    }

    /// A segment with two records of several frames.
    fn segment() -> Vec<u8> {
        let membership = Membership { voters: vec![1, 2, 3], learners: vec![4], ..Membership::default() };
        let entry = |index, data: &'static [u8]| Entry {
            term: 3,
            index,
            kind: EntryKind::Normal,
            data: Bytes::from_static(data),
        };
        let append = Append {
            group: 1,
            ticket: 0,
            hard_state: Some(HardState { term: 3, vote: 1, commit: 2 }),
            membership: Some(membership.clone()),
            entries: vec![entry(1, b"one"), entry(2, b"two and more")],
        };
        let (mut first, mut second) = (Vec::new(), Vec::new());
        frame::encode_standing(1, 0, &mut first);
        frame::encode_append(&append, &mut first);
        frame::encode_mark(1, &CheckpointMark { index: 1, term: 3, membership }, &mut second);
        frame::encode_append(&Append { group: 2, entries: vec![entry(1, b"other")], ..Append::default() }, &mut second);
        let mut segment = vec![0; RECORDS_START as usize];
        for (number, body) in [first, second].into_iter().enumerate() {
            let offset = segment.len();
            let header = RecordHeader {
                kind: RecordKind::Batch,
                body_bytes: body.len() as u32,
                body_check: 0,
                number: number as u64 + 1,
                synced: offset as u64,
            };
            segment.resize(offset + RECORD_HEADER_BYTES, 0);
            Place::new(7, 1).encode(offset as u64, &header, &mut segment[offset..]);
            segment.extend_from_slice(&body);
            segment.resize(offset + record_bytes(body.len() as u64) as usize, 0);
        }
        verify(&mut segment);
        segment
    }

    /// Puts the checksums of all records right, as far as they can be followed.
    fn verify(segment: &mut [u8]) {
        let mut offset = RECORDS_START as usize;
        while let Some(header) = segment.get(offset..offset + RECORD_HEADER_BYTES) {
            let number_at = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
            let (number, synced) = (number_at(16), number_at(24));
            let body_bytes = u32::from_le_bytes(header[8..12].try_into().expect("four bytes"));
            let kind = match header[12] {
                2 => RecordKind::Seal,
                3 => RecordKind::End,
                4 => RecordKind::Stop,
                _ => RecordKind::Batch,
            };
            let start = offset + RECORD_HEADER_BYTES;
            let Some(body) = segment.get(start..start + body_bytes as usize) else { return };
            let header = RecordHeader { kind, body_bytes, body_check: crc32c::crc32c(body), number, synced };
            Place::new(7, 1).encode(offset as u64, &header, &mut segment[offset..]);
            offset += record_bytes(body_bytes.into()) as usize;
        }
    }

    #[test]
    fn a_record_behind_which_there_is_no_number_is_damage() {
        let mut segment = segment();
        let number_at = RECORDS_START as usize + 16;
        segment[number_at..number_at + 8].fill(0xFF);
        verify(&mut segment);
        let read = Replay::default().read_segment("a segment", Place::new(7, 1), &Bytes::from(segment));
        assert!(read.is_err_and(|fault| fault.to_string().contains("the last number")));
    }

    #[test]
    fn fuzz_segments() {
        let read = |input: &[u8]| {
            let mut replay = Replay::default();
            let read = replay.read_segment("a segment", Place::new(7, 1), &Bytes::copy_from_slice(input));
            let entries = replay.groups.values().map(|group| group.found.entries.len() as u64).sum::<u64>();
            match read {
                Ok(stop) => {
                    assert!(stop.end as usize <= input.len() + RECORD_HEADER_BYTES + BLOCK_BYTES);
                    let is_sound = u64::from(replay.groups.values().all(|group| group.check().is_ok()));
                    1 + is_sound + 2 * (entries + 64 * replay.groups.len() as u64 + 4_096 * stop.end)
                }
                Err(fault) => fault.to_string().len() as u64 % 8 * 2 + 1_000_000 * (1 + entries),
            }
        };
        let corpus = [segment()];
        assert!(read(&corpus[0]) > 1_000, "it is read to its end");
        Fuzz::new("journal-segments", corpus).repair(verify).rounds(10_000).run(read);
    }
}
