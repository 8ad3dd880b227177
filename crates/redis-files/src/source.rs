//! Bytes of a file in order, with their number and their checksum.

use std::io::{ErrorKind, Read};

use stdx::crc64;

use crate::fault::{Fault, What};

/// Bytes read from the file at once, and memory that is taken in advance of what has been read.
const BUFFER_BYTES: usize = 256 << 10;

/// A file that is being read.
#[derive(Debug)]
pub struct Source<R> {
    file: R,
    buffer: Vec<u8>,
    position: usize,
    /// Of the first byte of the buffer.
    base: u64,
    checksum: u64,
    /// Up to here the buffer is in the checksum.
    summed: usize,
    tape: Option<Vec<u8>>,
}

impl<R: Read> Source<R> {
    /// Reads `file` from where it stands.
    pub fn new(file: R) -> Self {
        Self { file, buffer: Vec::new(), position: 0, base: 0, checksum: 0, summed: 0, tape: None }
    }

    /// Bytes that have been taken.
    pub fn offset(&self) -> u64 {
        self.base + self.position as u64
    }

    /// A fault at this place.
    pub(crate) fn fault(&self, what: What) -> Fault {
        Fault { offset: self.offset(), what }
    }

    /// The CRC-64 of all that has been taken.
    pub(crate) fn checksum(&mut self) -> u64 {
        self.checksum = crc64::crc64(self.checksum, &self.buffer[self.summed..self.position]);
        self.summed = self.position;
        self.checksum
    }

    /// Keeps what is taken from now on.
    pub(crate) fn record(&mut self) {
        self.tape = Some(Vec::new());
    }

    /// Bytes kept so far.
    pub(crate) fn recorded(&self) -> usize {
        self.tape.as_ref().map_or(0, Vec::len)
    }

    /// What has been kept; nothing more is.
    pub(crate) fn recording(&mut self) -> Vec<u8> {
        self.tape.take().unwrap_or_default()
    }

    /// Reads on. False at the end of the file.
    fn fill(&mut self) -> Result<bool, Fault> {
        self.checksum();
        self.base += self.position as u64;
        self.buffer.clear();
        (self.position, self.summed) = (0, 0);
        self.buffer.resize(BUFFER_BYTES, 0);
        let read = loop {
            match self.file.read(&mut self.buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        let length = *read.as_ref().unwrap_or(&0);
        self.buffer.truncate(length);
        read.map(|length| length > 0).map_err(|error| self.fault(What::Io(error)))
    }

    /// True if there is no more.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn is_at_end(&mut self) -> Result<bool, Fault> {
        Ok(self.position == self.buffer.len() && !self.fill()?)
    }

    /// The next byte, which is left there.
    pub(crate) fn peek(&mut self) -> Result<Option<u8>, Fault> {
        Ok(if self.is_at_end()? { None } else { Some(self.buffer[self.position]) })
    }

    /// Takes so many bytes and shows them piece by piece.
    fn pass(&mut self, mut length: u64, mut show: impl FnMut(&[u8])) -> Result<(), Fault> {
        while length > 0 {
            if self.is_at_end()? {
                return Err(self.fault(What::Truncated));
            }
            let rest = &self.buffer[self.position..];
            let piece = &rest[..rest.len().min(usize::try_from(length).unwrap_or(usize::MAX))];
            show(piece);
            if let Some(tape) = &mut self.tape {
                tape.extend_from_slice(piece);
            }
            self.position += piece.len();
            length -= piece.len() as u64;
        }
        Ok(())
    }

    pub(crate) fn skip(&mut self, length: u64) -> Result<(), Fault> {
        self.pass(length, |_| {})
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut array = [0; N];
        let mut filled = 0;
        self.pass(N as u64, |piece| {
            array[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
        })?;
        Ok(array)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Fault> {
        self.array().map(|[byte]| byte)
    }

    /// Takes so many bytes. Memory is taken as they are found to be there.
    pub(crate) fn take(&mut self, length: u64) -> Result<Vec<u8>, Fault> {
        let mut taken = Vec::with_capacity(usize::try_from(length).unwrap_or(BUFFER_BYTES).min(BUFFER_BYTES));
        self.pass(length, |piece| taken.extend_from_slice(piece))?;
        Ok(taken)
    }
}
