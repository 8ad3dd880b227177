//! The end of the stream, on disk: a file of fixed size that is written round and round.
//!
//! It has no name, so nothing of it outlives the process; and what is read soon after it was written comes from the
//! system's cache.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Makes a file without a name.
///
/// # Errors
/// If it cannot be made in this directory.
pub fn nameless(directory: &Path) -> io::Result<File> {
    let path = directory.join(format!(".stream-{}", crate::entropy::random_hex::<8>()?));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

/// What the stream ends in.
#[derive(Debug)]
pub struct Backlog {
    file: File,
    size: u64,
    /// The first byte that is kept, counted from the beginning of the stream.
    begin: u64,
    /// Behind the last.
    end: u64,
}

impl Backlog {
    /// An empty one of at most so many bytes.
    ///
    /// # Errors
    /// If there can be no file.
    pub fn new(directory: &Path, size: u64) -> io::Result<Self> {
        Ok(Self { file: nameless(directory)?, size: size.max(1), begin: 0, end: 0 })
    }

    /// The first byte that is kept.
    pub fn begin(&self) -> u64 {
        self.begin
    }

    /// Behind the last byte.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Most bytes that are kept.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// True if what comes at this offset is here, or is the next to come.
    pub fn reaches(&self, offset: u64) -> bool {
        (self.begin..=self.end).contains(&offset)
    }

    /// Appends. What is too old to be kept goes.
    ///
    /// # Errors
    /// If it cannot be written: then nothing that is here can be relied on.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        // Of more than fits, the last stays.
        let skipped = (bytes.len() as u64).saturating_sub(self.size);
        let mut rest = &bytes[skipped as usize..];
        let mut at = self.end + skipped;
        while !rest.is_empty() {
            let place = at % self.size;
            let fits = rest.len().min(usize::try_from(self.size - place).unwrap_or(usize::MAX));
            self.file.write_all_at(&rest[..fits], place)?;
            at += fits as u64;
            rest = &rest[fits..];
        }
        self.end = at;
        self.begin = self.begin.max(at.saturating_sub(self.size));
        Ok(())
    }

    /// Reads from this offset as much as is there and `buffer` holds, or less.
    ///
    /// # Errors
    /// If it is not kept, or cannot be read.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.reaches(offset) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let place = offset % self.size;
        let there = (self.end - offset).min(self.size - place);
        let count = buffer.len().min(usize::try_from(there).unwrap_or(usize::MAX));
        self.file.read_exact_at(&mut buffer[..count], place)?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_bytes_stay_where_they_are_counted() {
        let mut backlog = Backlog::new(&std::env::temp_dir(), 10).expect("a file");
        let mut all = Vec::new();
        for round in 0..20u8 {
            let piece: Vec<u8> = (0..round % 13).map(|byte| byte + round).collect();
            backlog.append(&piece).expect("room on disk");
            all.extend_from_slice(&piece);
            assert_eq!(backlog.end(), all.len() as u64);
            assert_eq!(backlog.begin(), backlog.end().saturating_sub(10));
            for offset in backlog.begin()..backlog.end() {
                let mut buffer = [0; 4];
                let count = backlog.read(offset, &mut buffer).expect("kept");
                assert!(count > 0);
                assert_eq!(buffer[..count], all[offset as usize..offset as usize + count]);
            }
        }
        assert_eq!(backlog.read(backlog.end(), &mut [0; 4]).expect("the end"), 0);
        assert!(backlog.read(backlog.begin() - 1, &mut [0; 4]).is_err());
        assert!(backlog.read(backlog.end() + 1, &mut [0; 4]).is_err());
    }
}
