//! Writing RDB files of versions 9 to 12 of Redis, and 80 of Valkey.

use std::io::{self, Write};

use keyspace::ValueRef;
use keyspace::rdb::{self as codec, Dialect};
use stdx::crc64;

/// Bytes gathered before they are written.
const BUFFER_BYTES: usize = 1 << 20;

/// A file that is being written.
#[derive(Debug)]
pub struct RdbWriter<W> {
    file: W,
    buffer: Vec<u8>,
    checksum: u64,
    bytes: u64,
    dialect: Dialect,
}

impl<W: Write> RdbWriter<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn new(file: W, dialect: Dialect, version: u16) -> io::Result<Self> {
        let head =
            if dialect == Dialect::Valkey { format!("VALKEY{version:03}") } else { format!("REDIS{version:04}") };
        let buffer = head.into_bytes();
        let mut this = Self { file, buffer, checksum: 0, bytes: 0, dialect };
        this.flush()?;
        Ok(this)
    }

    /// Says something about the whole file.
    pub fn aux(&mut self, name: &str, value: &str) {
        self.buffer.push(250);
        codec::write_text(&mut self.buffer, name.as_bytes());
        codec::write_text(&mut self.buffer, value.as_bytes());
    }

    /// The code of a library of functions.
    pub fn library(&mut self, code: &[u8]) {
        self.buffer.push(245);
        codec::write_text(&mut self.buffer, code);
    }

    /// Begins a database of which it is not known how many keys it has, or goes on with it.
    pub fn select(&mut self, number: u16) {
        self.buffer.push(254);
        codec::write_length(&mut self.buffer, number.into());
    }

    /// Begins a database that has so many keys, of which so many expire.
    pub fn database(&mut self, number: u16, key_count: u64, expiring_count: u64) {
        self.buffer.push(254);
        codec::write_length(&mut self.buffer, number.into());
        self.buffer.push(251);
        codec::write_length(&mut self.buffer, key_count);
        codec::write_length(&mut self.buffer, expiring_count);
    }

    /// A key.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn key(&mut self, name: &[u8], expires_at_ms: Option<i64>, value: ValueRef<'_>) -> io::Result<()> {
        if let Some(deadline) = expires_at_ms {
            self.buffer.push(252);
            self.buffer.extend_from_slice(&deadline.to_le_bytes());
        }
        codec::write_named(&mut self.buffer, name, value, self.dialect);
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    /// Bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes + self.buffer.len() as u64
    }

    fn flush(&mut self) -> io::Result<()> {
        self.checksum = crc64::crc64(self.checksum, &self.buffer);
        self.file.write_all(&self.buffer)?;
        self.bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Ends the file, which is given back.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        self.buffer.push(255);
        self.flush()?;
        let checksum = self.checksum.to_le_bytes();
        self.file.write_all(&checksum)?;
        self.file.flush()?;
        Ok(self.file)
    }
}
