//! Real files: the journal's [`Disk`].
//!
//! Writes that must be durable, and large ones, go past the page cache where the file system can do that. The log is
//! written once and read at the next start, so caching it would only push out what others want; a checkpoint of
//! gigabytes would do so thoroughly, and its late flush would stand in the way of the log's. Small writes that nobody
//! waits for are another matter: the cache takes one for a few microseconds of CPU, the device for ten times that, and
//! the sync that comes a second later writes them all at once. See `docs/decisions/0007-log-writes.md`.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use journal::{BLOCK_BYTES, Disk, LOCK_FILE};
use nix::fcntl::{FallocateFlags, OFlag, PosixFadviseAdvice};

/// How much of a new file is filled with zeros by one write.
const ZERO_BYTES: usize = 256 << 10;

/// A write that need not be durable goes past the page cache from this size on: there copying it into the cache costs
/// more CPU than handing it to the device.
const DIRECT_BYTES_MIN: usize = 64 << 10;

/// Holds a data directory for this process, until dropped or until the process ends, however it ends.
#[derive(Debug)]
pub struct DirectoryLock {
    _file: File,
    path: PathBuf,
    /// False if the file was there before.
    is_new: bool,
}

impl DirectoryLock {
    /// Makes the directory if there is none, and locks it.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if another process holds it; any error of the file system.
    pub fn acquire(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let path = directory.join(LOCK_FILE);
        let is_new = !path.exists();
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file, path, is_new }),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Lets go of a directory that turned out to be somebody else's, and leaves nothing behind in it.
    pub fn abandon(self) {
        if self.is_new {
            // If it cannot be removed, an empty file stays, which hurts nobody.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A directory of real files. Clones are handles of the same directory.
#[derive(Clone, Debug)]
pub struct RealDisk {
    path: Arc<Path>,
    /// For syncing names.
    directory: Arc<File>,
    /// Bytes per second at which new files are filled; 0 is as fast as can be.
    fill_rate: u64,
    is_read_only: bool,
}

/// An open file: one descriptor through the page cache, and two past it that are opened when first needed.
#[derive(Debug)]
pub struct RealFile {
    path: PathBuf,
    cached: File,
    /// None if the file system cannot write past the page cache.
    direct: OnceLock<Option<File>>,
    /// The same; a write to it is durable on return.
    durable: OnceLock<Option<File>>,
}

impl RealDisk {
    /// Opens a directory, which must exist and should be [locked](DirectoryLock::acquire).
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn open_directory(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.into(), directory: Arc::new(File::open(path)?), fill_rate: 0, is_read_only: false })
    }

    /// Opens a directory for reading only: its files need not be writable.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn open_directory_to_read(path: &Path) -> io::Result<Self> {
        Ok(Self { is_read_only: true, ..Self::open_directory(path)? })
    }

    /// A handle that fills new files at no more than this many bytes per second, so that it can work beside a log that
    /// is being synced.
    pub fn with_fill_rate(&self, fill_rate: u64) -> Self {
        Self { fill_rate, ..self.clone() }
    }

    fn fill(&self, file: &RealFile, bytes: u64) -> io::Result<()> {
        // Allocating first tells at once whether there is room, and in large extents; the zeros then turn them into
        // written ones, since the first write to an unwritten extent would cost the log a change of metadata.
        match nix::fcntl::fallocate(file.cached.as_fd(), FallocateFlags::empty(), 0, to_offset(bytes)?) {
            Err(nix::errno::Errno::EOPNOTSUPP | nix::errno::Errno::ENOSYS) => {}
            result => result?,
        }
        let zeros = vec![0; ZERO_BYTES + BLOCK_BYTES];
        let start = zeros.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
        let zeros = &zeros[start..start + ZERO_BYTES];
        let begun = Instant::now();
        let mut offset = 0;
        while offset < bytes {
            let count = usize::try_from(bytes - offset).unwrap_or(ZERO_BYTES).min(ZERO_BYTES);
            self.write_at(file, offset, &zeros[..count])?;
            offset += count as u64;
            if let Some(due_us) = offset.saturating_mul(1_000_000).checked_div(self.fill_rate) {
                thread::sleep(Duration::from_micros(due_us).saturating_sub(begun.elapsed()));
            }
        }
        self.sync(file)
    }
}

fn to_offset(bytes: u64) -> io::Result<i64> {
    i64::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

impl RealFile {
    fn new(path: PathBuf, cached: File) -> Self {
        Self { path, cached, direct: OnceLock::new(), durable: OnceLock::new() }
    }

    /// The descriptor for a write past the page cache; none if this write cannot be one.
    fn past_cache<'a>(&'a self, slot: &'a OnceLock<Option<File>>, flags: OFlag, bytes: &[u8]) -> Option<&'a File> {
        let is_aligned = bytes.as_ptr().align_offset(BLOCK_BYTES) == 0 && bytes.len().is_multiple_of(BLOCK_BYTES);
        if !is_aligned {
            return None;
        }
        // A file system without this refuses the flag; then everything goes through the cache.
        let open = || OpenOptions::new().write(true).custom_flags(flags.bits()).open(&self.path).ok();
        slot.get_or_init(open).as_ref()
    }
}

impl Disk for RealDisk {
    type File = RealFile;

    fn list(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<RealFile> {
        let path = self.path.join(name);
        let cached = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
        let file = RealFile::new(path, cached);
        if bytes > 0
            && let Err(error) = self.fill(&file, bytes)
        {
            // What cannot be whole must not take up the little room there is.
            let _ = fs::remove_file(&file.path);
            return Err(error);
        }
        Ok(file)
    }

    fn open(&self, name: &str) -> io::Result<RealFile> {
        let path = self.path.join(name);
        let cached = OpenOptions::new().read(true).write(!self.is_read_only).open(&path)?;
        Ok(RealFile::new(path, cached))
    }

    fn length(&self, file: &RealFile) -> io::Result<u64> {
        Ok(file.cached.metadata()?.len())
    }

    fn read_at(&self, file: &RealFile, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if offset == 0 {
            // Only a hint: read ahead boldly.
            let _ = nix::fcntl::posix_fadvise(&file.cached, 0, 0, PosixFadviseAdvice::POSIX_FADV_SEQUENTIAL);
        }
        let mut count = 0;
        while count < buffer.len() {
            match file.cached.read_at(&mut buffer[count..], offset + count as u64) {
                Ok(0) => break,
                Ok(read) => count += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    fn write_at(&self, file: &RealFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let direct =
            if bytes.len() < DIRECT_BYTES_MIN { None } else { file.past_cache(&file.direct, OFlag::O_DIRECT, bytes) };
        direct.unwrap_or(&file.cached).write_all_at(bytes, offset)
    }

    fn write_at_durably(&self, file: &RealFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match file.past_cache(&file.durable, OFlag::O_DIRECT | OFlag::O_DSYNC, bytes) {
            Some(durable) => durable.write_all_at(bytes, offset),
            None => {
                file.cached.write_all_at(bytes, offset)?;
                file.cached.sync_data()
            }
        }
    }

    fn sync(&self, file: &RealFile) -> io::Result<()> {
        file.cached.sync_data()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.directory.sync_all()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A directory of its own for a test, removed when dropped.
    pub(crate) struct Scratch(pub(crate) PathBuf);

    impl Scratch {
        pub(crate) fn new() -> Self {
            static NEXT: AtomicU64 = AtomicU64::new(0);
            let name = format!("holdfast-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        pub(crate) fn disk(&self) -> RealDisk {
            RealDisk::open_directory(&self.0).unwrap()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn two_cannot_hold_one_directory() {
        let scratch = Scratch::new();
        let lock = DirectoryLock::acquire(&scratch.0).unwrap();
        assert_eq!(DirectoryLock::acquire(&scratch.0).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        DirectoryLock::acquire(&scratch.0).unwrap();
    }

    #[test]
    fn every_way_of_writing_reads_back() {
        let scratch = Scratch::new();
        let disk = scratch.disk();
        let file = disk.create("file", 1 << 20).unwrap();
        assert_eq!(disk.length(&file).unwrap(), 1 << 20);
        let bytes = vec![7; DIRECT_BYTES_MIN + 2 * BLOCK_BYTES];
        let start = bytes.as_ptr().align_offset(BLOCK_BYTES);
        let mut expected = vec![0; 1 << 20];
        // Through the cache, past it, past it and durably; each over a block that another way has written.
        for (number, (count, is_durable)) in
            [(BLOCK_BYTES, false), (DIRECT_BYTES_MIN, false), (BLOCK_BYTES, true), (BLOCK_BYTES, false), (100, true)]
                .into_iter()
                .enumerate()
        {
            let offset = number / 2 * BLOCK_BYTES;
            let part = &bytes[start..start + count];
            let write = if is_durable { RealDisk::write_at_durably } else { RealDisk::write_at };
            write(&disk, &file, offset as u64, part).unwrap();
            expected[offset..offset + count].copy_from_slice(part);
        }
        disk.sync(&file).unwrap();
        disk.rename("file", "name").unwrap();
        disk.sync_directory().unwrap();
        let mut found = vec![1; (1 << 20) + 10];
        let count = disk.read_at(&disk.open("name").unwrap(), 0, &mut found).unwrap();
        assert!(found[..count] == expected);
        disk.remove("name").unwrap();
        disk.remove("name").unwrap();
        assert_eq!(disk.list().unwrap(), [""; 0]);
        assert_eq!(disk.open("name").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_log_of_a_new_directory_is_written_past_the_page_cache() {
        let scratch = Scratch::new();
        let disk = scratch.disk();
        let probe = disk.create("probe", BLOCK_BYTES as u64).unwrap();
        if probe.past_cache(&probe.durable, OFlag::O_DIRECT | OFlag::O_DSYNC, &[]).is_none() {
            return; // the file system cannot do it
        }
        let identity = journal::Identity {
            directory: 5,
            cluster: 1,
            node: 1,
            group_count: 1,
            hash_seed: 1,
            has_joined: false,
            level: stdx::Level::FIRST,
        };
        let options = journal::Options { segment_bytes: 1 << 20, ..journal::Options::new(identity) };
        let (mut journal, _) = journal::Journal::open(disk, &options).unwrap();
        let hard_state = Some(stdx::log::HardState { term: 1, vote: 1, commit: 0 });
        journal.append_durably(&[journal::Append { hard_state, ..journal::Append::default() }]).unwrap();
        let is_durable = |entry: fs::DirEntry| {
            let path = format!("/proc/self/fdinfo/{}", entry.file_name().display());
            let flags = fs::read_to_string(path).unwrap_or_default();
            let octal = flags.lines().find_map(|line| line.strip_prefix("flags:")).map_or("", str::trim);
            let bits = i32::from_str_radix(octal, 8).unwrap_or(0);
            fs::read_link(entry.path()).is_ok_and(|to| to.starts_with(&scratch.0))
                && OFlag::from_bits_retain(bits).contains(OFlag::O_DSYNC)
        };
        assert!(fs::read_dir("/proc/self/fd").unwrap().flatten().any(is_durable));
    }
}
