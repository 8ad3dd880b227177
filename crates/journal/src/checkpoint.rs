//! Checkpoint files: see `docs/formats/checkpoint.md`.

use crate::buffer::BlockBuffer;
use crate::disk::{BLOCK_BYTES, Disk};
use crate::fault::{self, Fault};
use crate::frame::{Numbers, put_membership};
use crate::identity::Identity;
use crate::layout::{DIRECTORY, FORMAT_VERSION, checkpoint_file, checkpoint_file_new};
use crate::types::CheckpointMark;

/// Largest chunk.
pub const CHUNK_BYTES_MAX: usize = 1 << 30;

const MAGIC: [u8; 8] = *b"HOLDCKP\n";

/// Bytes before a chunk: its length and its checksum.
const CHUNK_HEADER_BYTES: usize = 8;

/// Stands where a chunk's length would: what follows is the footer.
const FOOTER_LENGTH: u32 = u32::MAX;

/// Bytes of the footer: the mark above, its checksum, number of chunks, bytes of chunks.
const FOOTER_BYTES: usize = 24;

/// How much is read from the disk at a time.
const READ_BYTES: usize = 1 << 20;

/// Fixed part of the header: magic, version, length of all of the header, checksum, group, directory, index, term.
const HEADER_FIXED_BYTES: usize = 56;

fn encode_header(identity: &Identity, group: u32, mark: &CheckpointMark) -> Vec<u8> {
    let mut header = Vec::with_capacity(256);
    header.extend_from_slice(&MAGIC);
    header.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    header.extend_from_slice(&[0; 8]);
    header.extend_from_slice(&group.to_le_bytes());
    header.extend_from_slice(&identity.directory.to_le_bytes());
    header.extend_from_slice(&mark.index.to_le_bytes());
    header.extend_from_slice(&mark.term.to_le_bytes());
    debug_assert_eq!(header.len(), HEADER_FIXED_BYTES);
    put_membership(&mark.membership, &mut header);
    let length = u32::try_from(header.len()).expect("a membership is small");
    header[12..16].copy_from_slice(&length.to_le_bytes());
    let check = crc32c::crc32c(&header);
    header[16..20].copy_from_slice(&check.to_le_bytes());
    header
}

/// Start of every chunk's checksum: the file's own header, and where in the file the chunk is. Chunks of other
/// checkpoints, or in another order, do not verify.
fn place(header_check: u32, offset: u64) -> u32 {
    crc32c::crc32c_append(header_check, &offset.to_le_bytes())
}

/// A checkpoint that is being written. It counts for nothing until it is [finished](Self::finish) and
/// [marked](crate::Journal::checkpointed); dropped before, it is removed at the next start.
pub struct CheckpointFile<D: Disk> {
    disk: D,
    file: D::File,
    name: String,
    name_new: String,
    header_check: u32,
    buffer: BlockBuffer,
    /// Where in the file the buffer's first byte belongs.
    buffer_offset: u64,
    chunks: u64,
    chunk_bytes: u64,
    /// All of it is written and durable.
    is_complete: bool,
}

impl<D: Disk> CheckpointFile<D> {
    /// Begins a file under a name of its own. There may be one at a time for each group.
    ///
    /// # Errors
    /// [`Fault::Full`] if there is no room; any error of the disk.
    pub fn begin(disk: D, identity: &Identity, group: u32, mark: &CheckpointMark) -> Result<Self, Fault> {
        let (name, name_new) = (checkpoint_file(group, mark.index), checkpoint_file_new(group));
        let header = encode_header(identity, group, mark);
        let header_check = crc32c::crc32c(&header);
        let file = disk.create(&name_new, 0).map_err(Self::fault("make", &name_new, 0))?;
        let mut buffer = BlockBuffer::new(READ_BYTES);
        buffer.reserve(header.len());
        buffer.push(&header);
        Ok(Self {
            disk,
            file,
            name,
            name_new,
            header_check,
            buffer,
            buffer_offset: 0,
            chunks: 0,
            chunk_bytes: 0,
            is_complete: false,
        })
    }

    fn fault(action: &'static str, file: &str, bytes: u64) -> impl FnOnce(std::io::Error) -> Fault {
        let file = file.to_owned();
        move |error| {
            if fault::is_full(&error) { Fault::Full { file, bytes } } else { Fault::Io { action, file, error } }
        }
    }

    /// Takes a chunk in, to be written by [`write`](Self::write).
    ///
    /// # Panics
    /// If the chunk is empty, or larger than [`CHUNK_BYTES_MAX`].
    pub fn push(&mut self, chunk: &[u8]) {
        assert!(!chunk.is_empty() && chunk.len() <= CHUNK_BYTES_MAX, "a chunk of {} bytes", chunk.len());
        let length = (chunk.len() as u32).to_le_bytes();
        let offset = self.buffer_offset + self.buffer.length() as u64;
        let check = crc32c::crc32c_append(crc32c::crc32c_append(place(self.header_check, offset), &length), chunk);
        self.buffer.reserve(CHUNK_HEADER_BYTES + chunk.len());
        self.buffer.push(&length);
        self.buffer.push(&check.to_le_bytes());
        self.buffer.push(chunk);
        self.chunks += 1;
        self.chunk_bytes += chunk.len() as u64;
    }

    /// Bytes taken in that fill whole blocks and are not yet written.
    pub fn pending_bytes(&self) -> usize {
        self.buffer.length() / BLOCK_BYTES * BLOCK_BYTES
    }

    /// Bytes of the file written so far.
    pub fn written_bytes(&self) -> u64 {
        self.buffer_offset
    }

    /// Writes what is pending, or its first `bytes_max` bytes (rounded down to whole blocks, at least one). Returns how
    /// many were written.
    ///
    /// # Errors
    /// [`Fault::Full`] if there is no room; any error of the disk.
    pub fn write(&mut self, bytes_max: usize) -> Result<usize, Fault> {
        let count = self.pending_bytes().min(bytes_max.max(BLOCK_BYTES) / BLOCK_BYTES * BLOCK_BYTES);
        if count > 0 {
            self.disk.write_at(&self.file, self.buffer_offset, &self.buffer.tail(0)[..count]).map_err(Self::fault(
                "write to",
                &self.name_new,
                count as u64,
            ))?;
            self.buffer.forget_front(count);
            self.buffer_offset += count as u64;
        }
        Ok(count)
    }

    /// Makes what was written so far durable: done now and then, so that the last sync has little left to do.
    ///
    /// # Errors
    /// Any error of the disk.
    pub fn sync(&mut self) -> Result<(), Fault> {
        self.disk.sync(&self.file).map_err(Self::fault("sync", &self.name_new, 0))
    }

    /// Writes the rest and makes all of it durable. Nothing can be added any more, and it still counts for nothing:
    /// what is left for [`finish`](Self::finish) takes no room. Doing it again changes nothing.
    ///
    /// # Errors
    /// [`Fault::Full`] if there is no room; any error of the disk.
    pub fn complete(&mut self) -> Result<(), Fault> {
        if self.is_complete {
            return Ok(());
        }
        let offset = self.buffer_offset + self.buffer.length() as u64;
        let mut footer = [0; FOOTER_BYTES];
        footer[0..4].copy_from_slice(&FOOTER_LENGTH.to_le_bytes());
        footer[8..16].copy_from_slice(&self.chunks.to_le_bytes());
        footer[16..24].copy_from_slice(&self.chunk_bytes.to_le_bytes());
        let check = crc32c::crc32c_append(place(self.header_check, offset), &footer);
        footer[4..8].copy_from_slice(&check.to_le_bytes());
        self.buffer.reserve(FOOTER_BYTES);
        self.buffer.push(&footer);
        while self.write(READ_BYTES)? > 0 {}
        self.disk.write_at(&self.file, self.buffer_offset, self.buffer.tail(0)).map_err(Self::fault(
            "write to",
            &self.name_new,
            BLOCK_BYTES as u64,
        ))?;
        self.sync()?;
        self.buffer_offset = offset + FOOTER_BYTES as u64;
        self.is_complete = true;
        Ok(())
    }

    /// Completes it and gives it its name. Returns the size of the file in bytes.
    ///
    /// # Errors
    /// [`Fault::Full`] if there is no room; any error of the disk.
    pub fn finish(mut self) -> Result<u64, Fault> {
        self.complete()?;
        self.disk.rename(&self.name_new, &self.name).map_err(Self::fault("rename", &self.name_new, 0))?;
        self.disk.sync_directory().map_err(Self::fault("sync", DIRECTORY, 0))?;
        Ok(self.buffer_offset)
    }

    /// Throws it away.
    ///
    /// # Errors
    /// Any error of the disk.
    pub fn abandon(self) -> Result<(), Fault> {
        drop(self.file);
        self.disk.remove(&self.name_new).map_err(Self::fault("remove", &self.name_new, 0))
    }
}

/// A checkpoint that is being read, chunk by chunk. Nothing of it counts until [`next`](Self::next) has returned
/// `None`: only then is it known to be whole.
pub struct CheckpointReader<D: Disk> {
    disk: D,
    file: D::File,
    name: String,
    header_check: u32,
    mark: CheckpointMark,
    length: u64,
    /// Read and not yet used; starts at `offset` in the file.
    buffer: Vec<u8>,
    /// How much of `buffer` has been used.
    used: usize,
    offset: u64,
    chunks: u64,
    chunk_bytes: u64,
}

impl<D: Disk> CheckpointReader<D> {
    /// Opens a group's checkpoint and checks that it is the one that the mark speaks of.
    ///
    /// # Errors
    /// [`Fault::Missing`], [`Fault::Newer`], [`Fault::Damaged`]; any error of the disk.
    pub fn open(disk: D, identity: &Identity, group: u32, mark: &CheckpointMark) -> Result<Self, Fault> {
        let name = checkpoint_file(group, mark.index);
        let file = disk.open(&name).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Fault::Missing {
                file: name.clone(),
                why: format!("the log counts on this checkpoint of group {group}"),
            },
            _ => Fault::io("open", &name)(error),
        })?;
        let length = disk.length(&file).map_err(Fault::io("measure", &name))?;
        let mut reader = Self {
            disk,
            file,
            name,
            header_check: 0,
            mark: mark.clone(),
            length,
            buffer: Vec::new(),
            used: 0,
            offset: 0,
            chunks: 0,
            chunk_bytes: 0,
        };
        let fixed = reader.take(HEADER_FIXED_BYTES)?;
        let version = u32::from_le_bytes(fixed[8..12].try_into().expect("four bytes"));
        if fixed[..8] == MAGIC && version > FORMAT_VERSION {
            return Err(Fault::Newer { file: reader.name, version: version.into(), known: FORMAT_VERSION });
        }
        let expected = encode_header(identity, group, mark);
        let mut header = fixed.to_vec();
        header.extend_from_slice(reader.take(expected.len() - HEADER_FIXED_BYTES)?);
        if header != expected {
            return Err(Fault::damaged(reader.name, 0, Self::explain(&header)));
        }
        reader.header_check = crc32c::crc32c(&expected);
        Ok(reader)
    }

    /// Why a header is not the one expected.
    fn explain(header: &[u8]) -> String {
        let mut zeroed = header.to_vec();
        zeroed[16..20].fill(0);
        let is_intact = header[16..20] == crc32c::crc32c(&zeroed).to_le_bytes();
        let mut numbers = Numbers(&header[20..]);
        match (is_intact, numbers.u32(), numbers.u64(), numbers.u64(), numbers.u64()) {
            (true, Some(group), Some(low), Some(high), Some(index)) => format!(
                "it is a checkpoint of group {group} at index {index} of directory {high:016x}{low:016x}, and not the \
                 one that the log counts on"
            ),
            _ => "its header does not verify".into(),
        }
    }

    /// The next chunk, or none after the last, when the whole file has been found to be in order.
    ///
    /// # Errors
    /// [`Fault::Damaged`] with the offset of the chunk that does not verify; any error of the disk.
    #[expect(clippy::should_implement_trait, reason = "a chunk is lent, which an iterator cannot do")]
    pub fn next(&mut self) -> Result<Option<&[u8]>, Fault> {
        let start = self.offset + self.used as u64;
        let damaged = |name: &str| Fault::damaged(name, start, "a chunk does not verify");
        let header: [u8; CHUNK_HEADER_BYTES] =
            self.take(CHUNK_HEADER_BYTES)?.try_into().expect("as many as were asked for");
        let length = u32::from_le_bytes(header[0..4].try_into().expect("four bytes"));
        let check = u32::from_le_bytes(header[4..8].try_into().expect("four bytes"));
        let check_start = place(self.header_check, start);
        if length == FOOTER_LENGTH {
            let counts: [u8; 16] = self.take(16)?.try_into().expect("as many as were asked for");
            let mut footer = [0; FOOTER_BYTES];
            footer[0..4].copy_from_slice(&header[0..4]);
            footer[8..24].copy_from_slice(&counts);
            let mut numbers = Numbers(&counts);
            let is_whole = check == crc32c::crc32c_append(check_start, &footer)
                && numbers.u64() == Some(self.chunks)
                && numbers.u64() == Some(self.chunk_bytes);
            if !is_whole {
                return Err(Fault::damaged(&self.name, start, "the footer does not verify"));
            }
            let end = self.offset + self.used as u64;
            if end != self.length {
                return Err(Fault::damaged(&self.name, end, "there is something behind the footer"));
            }
            return Ok(None);
        }
        let end = start + CHUNK_HEADER_BYTES as u64 + u64::from(length);
        if length == 0 || end > self.length {
            return Err(damaged(&self.name));
        }
        let chunk = self.take(length as usize)?;
        if check != crc32c::crc32c_append(crc32c::crc32c_append(check_start, &header[0..4]), chunk) {
            return Err(damaged(&self.name));
        }
        self.chunks += 1;
        self.chunk_bytes += u64::from(length);
        Ok(Some(&self.buffer[self.used - length as usize..self.used]))
    }

    /// How much of the file has been read, and its size, in bytes: for showing progress.
    pub fn progress(&self) -> (u64, u64) {
        (self.offset + self.used as u64, self.length)
    }

    /// The mark it was opened with.
    pub fn mark(&self) -> &CheckpointMark {
        &self.mark
    }

    /// The next `count` bytes of the file.
    fn take(&mut self, count: usize) -> Result<&[u8], Fault> {
        let left = self.buffer.len() - self.used;
        if left < count {
            self.buffer.copy_within(self.used.., 0);
            self.offset += self.used as u64;
            self.used = 0;
            let wanted = count.max(READ_BYTES);
            self.buffer.resize(wanted, 0);
            let position = self.offset + left as u64;
            let read = self
                .disk
                .read_at(&self.file, position, &mut self.buffer[left..])
                .map_err(Fault::io("read", &self.name))?;
            self.buffer.truncate(left + read);
            if self.buffer.len() < count {
                let end = self.offset + self.buffer.len() as u64;
                return Err(Fault::damaged(&self.name, end, "the file ends too early"));
            }
        }
        self.used += count;
        Ok(&self.buffer[self.used - count..self.used])
    }
}
