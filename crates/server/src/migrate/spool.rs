//! What a source has sent and the target has not taken yet: a queue of bytes on disk, in bounded space.
//!
//! The source must not be made to keep it: its buffer for a replica is memory, and a replica that does not read is cut
//! off. The files have no names, so that nothing of them is left whatever ends the process.
//!
//! Where there is no room, in the bound or on the disk, the writer waits: the source keeps what comes meanwhile for as
//! long as it can.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Bytes of a file of the queue. One is given back when all of it has been read.
const SEGMENT_BYTES: u64 = 64 << 20;

/// A writer that waits for room looks so often.
const ROOM_INTERVAL: Duration = Duration::from_millis(200);

/// So much room there should be on a disk before anything is asked for.
const ROOM_BYTES: usize = 1 << 20;

/// The end of the queue that is written. When it is dropped, what was written can still be read, and then the queue
/// ends.
pub struct SpoolWriter {
    shared: Arc<Shared>,
}

/// The end that is read: it waits for bytes, and ends where the writer has.
pub struct SpoolReader {
    shared: Arc<Shared>,
}

struct Shared {
    directory: PathBuf,
    bytes_max: u64,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// The first holds the byte that is read next.
    segments: VecDeque<Arc<File>>,
    read: u64,
    written: u64,
    /// Nothing more is written.
    is_complete: bool,
    /// Nobody reads any more.
    is_abandoned: bool,
}

/// A queue of at most `bytes_max` bytes, in files in `directory`.
pub fn spool(directory: &Path, bytes_max: u64) -> (SpoolWriter, SpoolReader) {
    let state = State { segments: VecDeque::new(), read: 0, written: 0, is_complete: false, is_abandoned: false };
    let shared = Arc::new(Shared {
        directory: directory.to_path_buf(),
        bytes_max: bytes_max.max(1),
        state: Mutex::new(state),
        changed: Condvar::new(),
    });
    (SpoolWriter { shared: Arc::clone(&shared) }, SpoolReader { shared })
}

/// True if there may be room later.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Makes sure that there is some room: without any, no copy should be asked for.
///
/// # Errors
/// If there is none.
pub fn ensure_room(directory: &Path) -> io::Result<()> {
    let (writer, _reader) = spool(directory, 1 << 30);
    writer.write(&vec![0; ROOM_BYTES], &mut |full| match full {
        Some(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", directory.display()))),
        None => Ok(()),
    })
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread has panicked")
    }

    /// A file that has no name.
    fn new_segment(&self) -> io::Result<Arc<File>> {
        for attempt in 0.. {
            let path = self.directory.join(format!(".holdfast-migrate-{}-{attempt}", std::process::id()));
            match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => {
                    fs::remove_file(&path)?;
                    return Ok(Arc::new(file));
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists && attempt < 1_000 => {}
                Err(error) => {
                    return Err(io::Error::new(error.kind(), format!("{}: {error}", self.directory.display())));
                }
            }
        }
        unreachable!("an attempt ends the loop")
    }
}

impl SpoolWriter {
    /// Appends bytes; waits while there is no room. `waits` is called several times a second then, with the error if it
    /// is the disk that is full, and ends the waiting with an error of its own.
    ///
    /// # Errors
    /// Those of the file system and of `waits`, and [`ErrorKind::BrokenPipe`] if nobody reads any more.
    pub fn write(
        &self,
        mut bytes: &[u8],
        waits: &mut dyn FnMut(Option<&io::Error>) -> io::Result<()>,
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write_some(bytes) {
                Ok(0) => {
                    waits(None)?;
                    self.wait_for_reader();
                }
                Ok(length) => bytes = &bytes[length..],
                Err(error) if is_full(&error) => {
                    waits(Some(&error))?;
                    // What is read by then gives room.
                    self.wait_for_reader();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Appends as many bytes as one file takes; none if the queue is full.
    fn write_some(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.shared.lock();
        if state.is_abandoned {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if state.written - state.read >= self.shared.bytes_max {
            return Ok(0);
        }
        let within = state.written % SEGMENT_BYTES;
        // One may have been begun, and the disk have been full then.
        let needed = state.written / SEGMENT_BYTES - state.read / SEGMENT_BYTES + 1;
        if (state.segments.len() as u64) < needed {
            let segment = self.shared.new_segment()?;
            state.segments.push_back(segment);
        }
        let file = Arc::clone(state.segments.back().expect("there is one to write"));
        drop(state);
        let length = bytes.len().min((SEGMENT_BYTES - within) as usize);
        file.write_all_at(&bytes[..length], within)?;
        self.shared.lock().written += length as u64;
        self.shared.changed.notify_all();
        Ok(length)
    }

    fn wait_for_reader(&self) {
        let state = self.shared.lock();
        if !state.is_abandoned {
            drop(self.shared.changed.wait_timeout(state, ROOM_INTERVAL).expect("no thread has panicked"));
        }
    }

    /// Bytes that wait to be read.
    pub fn waiting_bytes(&self) -> u64 {
        let state = self.shared.lock();
        state.written - state.read
    }
}

impl Drop for SpoolWriter {
    fn drop(&mut self) {
        self.shared.lock().is_complete = true;
        self.shared.changed.notify_all();
    }
}

impl Read for SpoolReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.shared.lock();
        while state.read == state.written {
            if state.is_complete || buffer.is_empty() {
                return Ok(0);
            }
            state = self.shared.changed.wait(state).expect("no thread has panicked");
        }
        let within = state.read % SEGMENT_BYTES;
        let there = (state.written - state.read).min(SEGMENT_BYTES - within);
        let file = Arc::clone(state.segments.front().expect("there is one to read"));
        drop(state);
        let length = buffer.len().min(usize::try_from(there).unwrap_or(usize::MAX));
        file.read_exact_at(&mut buffer[..length], within)?;
        let mut state = self.shared.lock();
        state.read += length as u64;
        if state.read.is_multiple_of(SEGMENT_BYTES) {
            state.segments.pop_front();
        }
        drop(state);
        self.shared.changed.notify_all();
        Ok(length)
    }
}

impl Drop for SpoolReader {
    fn drop(&mut self) {
        self.shared.lock().is_abandoned = true;
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn bytes_come_out_as_they_went_in_across_files_and_through_a_small_bound() {
        let directory = std::env::temp_dir();
        let (writer, mut reader) = spool(&directory, 1 << 20);
        let total = 2 * SEGMENT_BYTES as usize + 12_345;
        let sender = thread::spawn(move || {
            let mut sent = 0;
            while sent < total {
                let length = (total - sent).min(100_003);
                let bytes: Vec<u8> = (sent..sent + length).map(|at| (at % 251) as u8).collect();
                writer.write(&bytes, &mut |_| Ok(())).expect("written");
                assert!(writer.waiting_bytes() <= (1 << 20) + 100_003);
                sent += length;
            }
        });
        let (mut received, mut buffer) = (0, vec![0; 65_536]);
        loop {
            let length = reader.read(&mut buffer).expect("read");
            if length == 0 {
                break;
            }
            assert!(buffer[..length].iter().enumerate().all(|(at, byte)| *byte == ((received + at) % 251) as u8));
            received += length;
        }
        assert_eq!(received, total);
        sender.join().expect("all was sent");
    }

    #[test]
    fn a_writer_that_nobody_reads_does_not_wait_for_ever() {
        let (writer, reader) = spool(&std::env::temp_dir(), 10);
        writer.write(b"0123456789", &mut |_| Ok(())).expect("there is room");
        let waiting = thread::spawn(move || writer.write(b"x", &mut |_| Ok(())).expect_err("nobody reads").kind());
        drop(reader);
        assert_eq!(waiting.join().expect("no panic"), ErrorKind::BrokenPipe);
        let (writer, _reader) = spool(Path::new("/nowhere"), 10);
        let refused = writer.write(b"x", &mut |_| Ok(()));
        assert!(refused.expect_err("no such directory").to_string().contains("/nowhere"));
    }
}
