//! The waist to the file system.

use std::io;

/// Unit of writes: offsets and lengths are multiples of it, and so are the addresses of the buffers, so that a host may
/// write past the page cache. Only the last write to a file that grows may be shorter.
pub const BLOCK_BYTES: usize = 4096;

/// One flat directory of files, as a journal needs it.
///
/// Every call blocks until it is done. A host that has threads clones the disk for each.
///
/// Durability: bytes written with [`write_at`](Self::write_at) may be lost in any subset of 512-byte sectors until a
/// [`sync`](Self::sync) of the file has returned. Names made, changed or removed may or may not be so after a crash
/// until [`sync_directory`](Self::sync_directory) has returned. An error of `sync` leaves all of that open for good:
/// calling it again proves nothing, and callers stop the process.
pub trait Disk {
    /// An open file.
    type File;

    /// Names of all files, in any order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes or replaces a file of `bytes` zeros that are really written and synced, so that later writes into it
    /// allocate nothing. With `bytes` 0 the file grows as it is written.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`] or `QuotaExceeded` if there is no room; then nothing under that name is kept.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Self::File>;

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is none.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Length of the file in bytes.
    fn length(&self, file: &Self::File) -> io::Result<u64>;

    /// Reads into all of `buffer`, or to the end of the file; returns the number of bytes read.
    fn read_at(&self, file: &Self::File, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `bytes`. Offset, length and address are multiples of [`BLOCK_BYTES`], but for the length of the
    /// last write to a file that grows.
    fn write_at(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Like [`write_at`](Self::write_at), and these bytes are on stable storage on return. Says nothing about bytes
    /// written before.
    fn write_at_durably(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_at(file, offset, bytes)?;
        self.sync(file)
    }

    /// All that was written to the file is on stable storage on return.
    fn sync(&self, file: &Self::File) -> io::Result<()>;

    /// Removes a file; none of that name is not an error.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Renames a file, replacing one that has the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// All names are on stable storage on return.
    fn sync_directory(&self) -> io::Result<()>;
}
