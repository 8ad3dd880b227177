//! One reused buffer, aligned to the block size, so that a host can write it past the page cache.

use crate::disk::BLOCK_BYTES;

/// Bytes gathered for a write at a block boundary.
pub struct BlockBuffer {
    bytes: Vec<u8>,
    /// Where in `bytes` the first aligned address is.
    base: usize,
    /// Bytes gathered.
    length: usize,
}

impl BlockBuffer {
    /// Room for `capacity` bytes, and more when needed.
    pub fn new(capacity: usize) -> Self {
        // One block to align the start, one to pad the end.
        let bytes = vec![0; capacity.next_multiple_of(BLOCK_BYTES) + 2 * BLOCK_BYTES];
        // Miri and other interpreters may refuse to align; then a host's own check falls back to copying.
        let base = bytes.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
        Self { bytes, base, length: 0 }
    }

    /// Bytes gathered.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The bytes gathered from `from` on.
    pub fn tail(&self, from: usize) -> &[u8] {
        &self.bytes[self.base + from..self.base + self.length]
    }

    /// The same, to be filled in.
    pub fn tail_mut(&mut self, from: usize) -> &mut [u8] {
        &mut self.bytes[self.base + from..self.base + self.length]
    }

    /// Makes room for `more` bytes behind those gathered.
    pub fn reserve(&mut self, more: usize) {
        let needed = self.length + more;
        if self.base + needed + BLOCK_BYTES > self.bytes.len() {
            let mut larger = Self::new(needed.next_power_of_two());
            larger.push(self.tail(0));
            *self = larger;
        }
    }

    /// Appends bytes, for which there must be room.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        let start = self.base + self.length;
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Appends `count` bytes (of any value) and returns them to be filled in.
    #[inline]
    pub fn extend(&mut self, count: usize) -> &mut [u8] {
        let start = self.base + self.length;
        self.length += count;
        &mut self.bytes[start..start + count]
    }

    /// Everything gathered, with zeros up to the next block boundary.
    pub fn blocks(&mut self) -> &[u8] {
        let padded = self.length.next_multiple_of(BLOCK_BYTES);
        self.bytes[self.base + self.length..self.base + padded].fill(0);
        &self.bytes[self.base..self.base + padded]
    }

    /// Forgets all whole blocks and keeps the bytes of the last, partial one. Returns the number of bytes forgotten.
    pub fn keep_partial_block(&mut self) -> usize {
        let whole = self.length / BLOCK_BYTES * BLOCK_BYTES;
        if whole > 0 {
            self.bytes.copy_within(self.base + whole..self.base + self.length, self.base);
            self.length -= whole;
        }
        whole
    }

    /// Forgets the first `count` bytes and moves the others to the front.
    pub fn forget_front(&mut self, count: usize) {
        self.bytes.copy_within(self.base + count..self.base + self.length, self.base);
        self.length -= count;
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.length = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partial_block_stays_and_the_address_is_aligned() {
        let mut buffer = BlockBuffer::new(1);
        let bytes: Vec<u8> = (0..10_000u32).map(|number| number as u8).collect();
        buffer.reserve(bytes.len());
        buffer.push(&bytes);
        let blocks = buffer.blocks();
        assert_eq!(blocks.as_ptr().align_offset(BLOCK_BYTES), 0);
        assert_eq!(blocks.len(), 3 * BLOCK_BYTES);
        assert_eq!((&blocks[..10_000], &blocks[10_000..]), (&bytes[..], &[0; 2288][..]));
        assert_eq!(buffer.keep_partial_block(), 2 * BLOCK_BYTES);
        assert_eq!(buffer.tail(0), &bytes[2 * BLOCK_BYTES..]);
    }
}
