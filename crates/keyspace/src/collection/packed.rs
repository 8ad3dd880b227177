//! Items one behind the other in a string of bytes: each its length, with seven bits a byte and the lowest first, and
//! then its bytes. To be read forwards only.

use std::ops::Range;

/// Appends an item.
pub(crate) fn put(out: &mut Vec<u8>, item: &[u8]) {
    out.extend_from_slice(Head::of(item.len()).bytes());
    out.extend_from_slice(item);
}

/// Appends a number as an item's length is written.
pub(crate) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// What stands before an item of some length.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    bytes: [u8; 10],
    len: u8,
}

impl Head {
    #[inline]
    pub(crate) fn of(item_len: usize) -> Self {
        let mut head = Self { bytes: [0; 10], len: 0 };
        let mut rest = item_len;
        loop {
            let more = rest >= 0x80;
            head.bytes[usize::from(head.len)] = (rest & 0x7F) as u8 | if more { 0x80 } else { 0 };
            head.len += 1;
            rest >>= 7;
            if !more {
                return head;
            }
        }
    }

    /// The same, its last byte first.
    #[inline]
    pub(crate) fn reversed(mut self) -> Self {
        self.bytes[..usize::from(self.len)].reverse();
        self
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Reads items from the beginning. Every method answers `None` at the end, and where there is none.
#[derive(Clone, Debug)]
pub(crate) struct Items<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Items<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Where the next item begins.
    #[inline]
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// What has not been read.
    pub(crate) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    #[inline]
    pub(crate) fn number(&mut self) -> Option<u64> {
        let first = self.byte()?;
        if first < 0x80 {
            return Some(u64::from(first));
        }
        let mut number = u64::from(first & 0x7F);
        for shift in (7..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    /// This many bytes.
    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let taken = self.bytes[self.at..].get(..len)?;
        self.at += len;
        Some(taken)
    }

    /// The next item and where it lies, with its length.
    #[inline]
    pub(crate) fn next_with_range(&mut self) -> Option<(&'a [u8], Range<usize>)> {
        let start = self.at;
        let item = self.next()?;
        Some((item, start..self.at))
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let start = self.at;
        let item = self.number().and_then(|len| self.take(usize::try_from(len).ok()?));
        if item.is_none() {
            self.at = start;
        }
        item
    }
}

/// Number of items, if there is nothing else.
pub(crate) fn count_checked(bytes: &[u8]) -> Option<usize> {
    let mut items = Items::new(bytes);
    let count = items.by_ref().count();
    items.is_done().then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_any_length_come_back_with_their_places() {
        let items: Vec<Vec<u8>> =
            [0usize, 1, 127, 128, 16_383, 16_384, 70_000].into_iter().map(|len| vec![len as u8; len]).collect();
        let mut bytes = Vec::new();
        items.iter().for_each(|item| put(&mut bytes, item));
        assert_eq!(count_checked(&bytes), Some(items.len()));
        let mut reader = Items::new(&bytes);
        for item in &items {
            let (read, range) = reader.next_with_range().unwrap();
            assert_eq!(read, item);
            assert_eq!(Items::new(&bytes[range]).next(), Some(&item[..]));
        }
        assert!(reader.is_done() && reader.next().is_none());
    }

    #[test]
    fn what_is_cut_short_is_no_sequence_of_items() {
        let mut bytes = Vec::new();
        put(&mut bytes, b"one");
        put(&mut bytes, &[7; 300]);
        for len in 0..bytes.len() {
            assert_eq!(count_checked(&bytes[..len]).is_some(), len == 0 || len == 4, "{len}");
        }
        assert_eq!(count_checked(&[0xFF; 12]), None);
    }
}
