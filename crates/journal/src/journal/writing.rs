//! How records come into the segments: whole, in pieces, or with the next segment begun.

use super::{FullSegment, Journal, MARKS_BYTES, PIECE_BYTES, Standing, Successor, TAIL_BYTES, WHOLE_BODY_BYTES_MAX};
use crate::buffer::BlockBuffer;
use crate::chore::Chore;
use crate::disk::{BLOCK_BYTES, Disk};
use crate::fault::Fault;
use crate::frame::{self, Sink};
use crate::layout::{checkpoint_file, segment_file};
use crate::record::{Place, RECORD_HEADER_BYTES, RECORDS_START, RecordHeader, RecordKind, record_bytes};
use crate::types::{Append, is_nobody};

/// Takes a checksum of what is written to it.
#[derive(Default)]
pub(super) struct Checksum {
    pub(super) value: u32,
    pub(super) length: u64,
}

impl Sink for Checksum {
    fn put(&mut self, bytes: &[u8]) {
        self.value = crc32c::crc32c_append(self.value, bytes);
        self.length += bytes.len() as u64;
    }
}

/// Writes what is written to it, a piece at a time.
pub(super) struct Pieces<'a, D: Disk> {
    pub(super) disk: &'a D,
    pub(super) file: &'a D::File,
    /// Where the buffer's first byte belongs.
    pub(super) offset: u64,
    pub(super) buffer: &'a mut BlockBuffer,
    pub(super) result: std::io::Result<()>,
}

impl<D: Disk> Sink for Pieces<'_, D> {
    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = PIECE_BYTES.saturating_sub(self.buffer.length());
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.buffer.reserve(now.len());
            self.buffer.push(now);
            bytes = later;
            if self.buffer.length() >= PIECE_BYTES {
                self.flush();
            }
        }
    }
}

impl<D: Disk> Pieces<'_, D> {
    pub(super) fn flush(&mut self) {
        if self.result.is_ok() {
            self.result = self.disk.write_at(self.file, self.offset, self.buffer.blocks());
        }
        self.offset += self.buffer.keep_partial_block() as u64;
    }
}

impl<D: Disk> Journal<D> {
    pub(super) fn write_appends(&mut self, appends: &[Append], is_durable: bool) -> Result<(), Fault> {
        let body_bytes: usize = appends.iter().map(frame::append_bytes).sum();
        let given_up: Vec<Append> = appends.iter().filter(|append| append.vacates()).cloned().collect();
        let given_up_bytes: usize = given_up.iter().map(frame::append_bytes).sum();
        let again_bytes = if given_up.is_empty() { 0 } else { record_bytes(given_up_bytes as u64) };
        self.make_room(body_bytes as u64, again_bytes + TAIL_BYTES + MARKS_BYTES)?;
        // What is restated is the state before this record, so it is taken before the appends are noted.
        let standing = self.restatement();
        let mut freed = Vec::new();
        for append in appends {
            freed.extend(self.note(append));
        }
        if body_bytes as u64 > WHOLE_BODY_BYTES_MAX {
            self.write_huge(&standing, appends)?;
            if is_durable {
                self.sync()?;
            }
        } else {
            let start = self.begin_record(&standing, body_bytes);
            for append in appends {
                frame::encode_append(append, &mut self.buffer);
            }
            self.finish_record(start, is_durable)?;
        }
        if given_up.is_empty() {
            return Ok(());
        }
        // As with a mark of a checkpoint: what is freed is gone afterwards, so it is said twice.
        let start = self.begin_record(&[], given_up_bytes);
        for append in &given_up {
            frame::encode_append(append, &mut self.buffer);
        }
        self.finish_record(start, true)?;
        for append in &given_up {
            self.full.iter_mut().for_each(|segment| segment.give_up(append.group));
            self.holds.remove(&append.group);
            self.archive_holds.remove(&append.group);
        }
        self.map_version += 1;
        self.doomed.append(&mut freed);
        self.free_segments();
        Ok(())
    }

    /// Checks an append against what its group's log is, and keeps what will have to be restated. The checkpoint that
    /// it gives up, if it vacates the group.
    pub(super) fn note(&mut self, append: &Append) -> Option<String> {
        if append.is_empty() {
            return None;
        }
        if self.is_archived && !self.groups.contains_key(&append.group) {
            self.archive_holds.entry(append.group).or_insert(0);
        }
        let standing = self.groups.entry(append.group).or_default();
        if append.vacates() {
            assert!(append.entries.is_empty(), "entries of group {}, which is given up", append.group);
            let hard_state = append.hard_state.unwrap_or(standing.hard_state);
            let before = std::mem::replace(
                standing,
                Standing { hard_state, membership: append.membership.clone(), ..Standing::default() },
            );
            return before.mark.map(|mark| checkpoint_file(append.group, mark.index));
        }
        if let Some(first) = append.entries.first() {
            let mark_index = standing.mark.as_ref().map_or(0, |mark| mark.index);
            assert!(first.index > mark_index, "entry {} is below checkpoint {mark_index}", first.index);
            assert!(
                first.index <= standing.last_index + 1,
                "entry {} after entry {} of group {}",
                first.index,
                standing.last_index,
                append.group
            );
            let mut index = first.index;
            for entry in &append.entries {
                assert_eq!(entry.index, index, "a gap within an append of group {}", append.group);
                index += 1;
            }
            standing.last_index = index - 1;
            standing.membership.take_if(|membership| is_nobody(membership));
        }
        if let Some(hard_state) = append.hard_state {
            standing.hard_state = hard_state;
        }
        if let Some(membership) = &append.membership {
            standing.membership = Some(membership.clone());
        }
        None
    }

    /// Makes sure that a record with such a body fits the current segment and leaves `spare_bytes` of it, going to the
    /// next one if need be.
    pub(super) fn make_room(&mut self, body_bytes: u64, spare_bytes: u64) -> Result<(), Fault> {
        let fresh_bytes = RECORDS_START + record_bytes(body_bytes + self.standing_bytes_max()) + spare_bytes;
        let is_fresh = self.end == RECORDS_START;
        let needed = if is_fresh { fresh_bytes } else { self.end + record_bytes(body_bytes) + spare_bytes };
        if needed <= self.bytes {
            return Ok(());
        }
        let is_fit = matches!(&self.successor, Successor::Ready { bytes, .. } if fresh_bytes <= *bytes);
        if !is_fit {
            // Only then: a chore that removes files is out for all anybody cares.
            assert!(!self.is_chore_out, "the host waits for a chore before it writes what may need it");
            let bytes = self.segment_bytes.max(fresh_bytes.next_multiple_of(BLOCK_BYTES as u64));
            let sequence = self.sequence + 1;
            let recycle = if bytes == self.segment_bytes { self.recycled.pop() } else { None };
            if matches!(self.successor, Successor::Ready { .. }) {
                // It is too small for this record. It may not stand beside its replacement.
                self.successor = Successor::None;
                let name = segment_file(sequence);
                self.disk.remove(&name).map_err(Fault::io("remove", &name))?;
            }
            let file = Chore::prepare(&self.identity, sequence, bytes, recycle).prepare_now(&self.disk)?;
            self.successor = Successor::Ready { file, bytes };
        }
        self.roll()
    }

    /// Ends the current segment and goes to the prepared one.
    pub(super) fn roll(&mut self) -> Result<(), Fault> {
        // Nothing of the next segment may be on disk before all of this one is: a hole between them would look like
        // damage.
        self.write_small(RecordKind::End, true)?;
        let Successor::Ready { file, bytes } = std::mem::replace(&mut self.successor, Successor::None) else {
            unreachable!("a segment is only left for one that is ready");
        };
        self.full.push_back(FullSegment {
            sequence: self.sequence,
            bytes: self.bytes,
            used_bytes: self.end,
            last_indexes: self.groups.iter().map(|(group, standing)| (*group, standing.last_index)).collect(),
        });
        self.sequence += 1;
        self.map_version += 1;
        self.place = Place::new(self.identity.directory, self.sequence);
        self.file = file;
        self.bytes = bytes;
        self.end = RECORDS_START;
        self.synced = RECORDS_START;
        (self.content_start, self.content_end) = (RECORDS_START, RECORDS_START);
        self.is_sealed = false;
        self.buffer.clear();
        self.free_segments();
        Ok(())
    }

    /// What the next record begins with: if it is the first of its segment, all that is known of the groups.
    pub(super) fn restatement(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if self.end != RECORDS_START {
            return out;
        }
        for (group, standing) in &self.groups {
            frame::encode_standing(*group, standing.last_index, &mut out);
            frame::encode_hard_state(*group, &standing.hard_state, &mut out);
            if let Some(membership) = &standing.membership {
                frame::encode_membership(*group, membership, &mut out);
            }
            if let Some(mark) = &standing.mark {
                frame::encode_mark(*group, mark, &mut out);
            }
        }
        assert!(out.len() as u64 <= self.standing_bytes_max(), "a membership of very many nodes");
        out
    }

    pub(super) fn begin_record(&mut self, standing: &[u8], body_bytes: usize) -> usize {
        let start = self.buffer.length();
        self.buffer.reserve(RECORD_HEADER_BYTES + standing.len() + body_bytes + 8);
        self.buffer.extend(RECORD_HEADER_BYTES);
        self.buffer.push(standing);
        start
    }

    pub(super) fn finish_record(&mut self, start: usize, is_durable: bool) -> Result<(), Fault> {
        let body_start = start + RECORD_HEADER_BYTES;
        let body = self.buffer.tail(body_start);
        let header = self.header(RecordKind::Batch, body.len() as u64, crc32c::crc32c(body));
        self.put_header(start, &header);
        self.write_buffer(&header, is_durable)
    }

    pub(super) fn header(&self, kind: RecordKind, body_bytes: u64, body_check: u32) -> RecordHeader {
        let body_bytes = u32::try_from(body_bytes).expect("bounded by the largest record");
        RecordHeader { kind, body_bytes, body_check, number: self.number, synced: self.synced }
    }

    pub(super) fn put_header(&mut self, start: usize, header: &RecordHeader) {
        let place = self.place;
        let offset = self.end;
        place.encode(offset, header, &mut self.buffer.tail_mut(start)[..RECORD_HEADER_BYTES]);
    }

    /// A record without a body.
    pub(super) fn write_small(&mut self, kind: RecordKind, is_durable: bool) -> Result<(), Fault> {
        let start = self.buffer.length();
        self.buffer.reserve(RECORD_HEADER_BYTES);
        self.buffer.extend(RECORD_HEADER_BYTES);
        let header = self.header(kind, 0, 0);
        self.put_header(start, &header);
        self.write_buffer(&header, is_durable)
    }

    /// Writes out the one record that was put into the buffer.
    pub(super) fn write_buffer(&mut self, header: &RecordHeader, is_durable: bool) -> Result<(), Fault> {
        let bytes = record_bytes(header.body_bytes.into());
        let block_start = self.end / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let end = self.end + bytes;
        assert!(end <= self.bytes, "a record beyond the segment's end");
        let padding = (end - block_start) as usize - self.buffer.length();
        self.buffer.extend(padding).fill(0);
        let blocks = self.buffer.blocks();
        if is_durable && self.synced == self.end {
            self.disk.write_at_durably(&self.file, block_start, blocks)
        } else {
            self.disk.write_at(&self.file, block_start, blocks)
        }
        // To write the name of the file takes longer than to make the record, so only a failure has it.
        .map_err(|error| Fault::io("write to", segment_file(self.sequence))(error))?;
        if is_durable && self.synced != self.end {
            self.disk.sync(&self.file).map_err(|error| Fault::io("sync", segment_file(self.sequence))(error))?;
        }
        self.buffer.keep_partial_block();
        self.is_sealed = header.kind == RecordKind::Seal;
        self.number += 1;
        self.written_bytes += end - self.end;
        if header.kind == RecordKind::Batch {
            (self.content_start, self.content_end) = (self.end, end);
        }
        self.end = end;
        if is_durable {
            self.synced = end;
            self.mark_tail(self.content_end)?;
        }
        Ok(())
    }

    /// One record with a body too large to be gathered as a whole. Its checksum is taken first, so that the data is
    /// passed over twice and copied once.
    pub(super) fn write_huge(&mut self, standing: &[u8], appends: &[Append]) -> Result<(), Fault> {
        let mut check = Checksum::default();
        check.put(standing);
        for append in appends {
            frame::encode_append(append, &mut check);
        }
        let header = self.header(RecordKind::Batch, check.length, check.value);
        let block_start = self.end / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let start = self.buffer.length();
        self.buffer.reserve(PIECE_BYTES);
        self.buffer.extend(RECORD_HEADER_BYTES);
        self.put_header(start, &header);
        let end = self.end + record_bytes(check.length);
        assert!(end <= self.bytes, "a record beyond the segment's end");
        let mut pieces = Pieces {
            disk: &self.disk,
            file: &self.file,
            offset: block_start,
            buffer: &mut self.buffer,
            result: Ok(()),
        };
        pieces.put(standing);
        for append in appends {
            frame::encode_append(append, &mut pieces);
        }
        pieces.put(&[0; 8][..(end - self.end) as usize - RECORD_HEADER_BYTES - check.length as usize]);
        pieces.flush();
        pieces.result.map_err(Fault::io("write to", segment_file(self.sequence)))?;
        self.is_sealed = header.kind == RecordKind::Seal;
        self.number += 1;
        self.written_bytes += end - self.end;
        (self.content_start, self.content_end) = (self.end, end);
        self.end = end;
        Ok(())
    }
}
