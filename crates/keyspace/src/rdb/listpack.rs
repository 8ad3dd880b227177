//! Redis's listpack: elements one behind the other, readable from both ends; how Redis keeps and dumps small
//! collections.
//!
//! ```text
//! bytes in all u32 │ elements u16 (65535: more) │ element … │ 0xFF
//! element = head, [number or text] │ length of both, readable backwards
//! ```

use crate::value::{Str, canonical_integer};

const HEADER_BYTES: usize = 6;
const END: u8 = 0xFF;

/// What is around the elements.
pub(crate) const FRAME_BYTES: usize = HEADER_BYTES + 1;

/// Appends an element; what is a number's text becomes a number.
#[inline]
pub(crate) fn put(out: &mut Vec<u8>, text: &[u8]) {
    match canonical_integer(text) {
        Some(number) => put_integer(out, number),
        None => put_text(out, text),
    }
}

/// Appends a number as an element.
#[inline]
pub(crate) fn put_integer(out: &mut Vec<u8>, number: i64) {
    match number {
        0..0x80 => out.extend_from_slice(&[number as u8, 1]),
        -0x1000..0x1000 => {
            let [high, low] = (number as u16 & 0x1FFF | 0xC000).to_be_bytes();
            out.extend_from_slice(&[high, low, 2]);
        }
        _ => {
            let (head, width) = match number {
                -0x8000..0x8000 => (0xF1, 2),
                -0x80_0000..0x80_0000 => (0xF2, 3),
                -0x8000_0000..0x8000_0000 => (0xF3, 4),
                _ => (0xF4, 8),
            };
            out.push(head);
            out.extend_from_slice(&number.to_le_bytes()[..width]);
            out.push(width as u8 + 1);
        }
    }
}

/// Bytes of a number as an element.
pub(crate) fn integer_bytes(number: i64) -> usize {
    match number {
        0..0x80 => 2,
        -0x1000..0x1000 => 3,
        -0x8000..0x8000 => 4,
        -0x80_0000..0x80_0000 => 5,
        -0x8000_0000..0x8000_0000 => 6,
        _ => 10,
    }
}

/// Bytes of what [`put`] appends.
pub(crate) fn element_bytes(text: &[u8]) -> usize {
    if let Some(number) = canonical_integer(text) {
        return integer_bytes(number);
    }
    let head_bytes = match text.len() {
        0..0x40 => 1,
        0x40..0x1000 => 2,
        _ => 5,
    };
    let bytes = head_bytes + text.len();
    bytes + backward_width(bytes)
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    let start = out.len();
    match text.len() {
        len @ 0..0x40 => out.push(0x80 | len as u8),
        len @ 0x40..0x1000 => out.extend_from_slice(&(0xE000 | len as u16).to_be_bytes()),
        len => {
            out.push(0xF0);
            out.extend_from_slice(&(len as u32).to_le_bytes());
        }
    }
    out.extend_from_slice(text);
    let (length, used) = backward_length(out.len() - start);
    out.extend_from_slice(&length[..used]);
}

/// A listpack of these elements, one part behind the other.
pub(crate) fn frame(parts: &[&[u8]]) -> Vec<u8> {
    let len = FRAME_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
    let mut count = 0;
    for mut rest in parts.iter().copied() {
        while !rest.is_empty() {
            skip(&mut rest);
            count += 1;
        }
    }
    let mut out = Vec::with_capacity(len);
    out.extend_from_slice(&u32::try_from(len).expect("what is packed is small").to_le_bytes());
    out.extend_from_slice(&u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.push(END);
    out
}

/// The first of bytes that are known to be elements; they are left behind it.
///
/// # Panics
/// If there is none.
#[inline]
pub(crate) fn take<'a>(rest: &mut &'a [u8]) -> Str<'a> {
    let before = rest.len();
    let element = read_element(rest).expect("an element follows");
    *rest = &rest[backward_width(before - rest.len())..];
    element
}

/// Leaves out the first of bytes that are known to be elements.
#[inline]
pub(crate) fn skip(rest: &mut &[u8]) {
    match *rest {
        [0..0x80, ..] => *rest = &rest[2..],
        _ => _ = take(rest),
    }
}

/// Takes the first of bytes that are known to be elements. True if it is this text.
pub(crate) fn take_if_equal(rest: &mut &[u8], text: &[u8]) -> bool {
    match take(rest) {
        Str::Integer(number) => canonical_integer(text) == Some(number),
        Str::Bytes(bytes) => bytes == text,
    }
}

/// Builds a listpack.
pub(crate) struct Builder {
    bytes: Vec<u8>,
    count: usize,
}

impl Builder {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; HEADER_BYTES], count: 0 }
    }

    /// Adds an element; what is a number's text becomes a number.
    pub(crate) fn push(&mut self, text: &[u8]) {
        put(&mut self.bytes, text);
        self.count += 1;
    }

    /// Adds a number.
    pub(crate) fn push_integer(&mut self, number: i64) {
        put_integer(&mut self.bytes, number);
        self.count += 1;
    }

    /// Bytes that it has when it is finished now.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + 1
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(END);
        let len = u32::try_from(self.bytes.len()).expect("what is packed is small");
        self.bytes[..4].copy_from_slice(&len.to_le_bytes());
        let count = u16::try_from(self.count).unwrap_or(u16::MAX);
        self.bytes[4..HEADER_BYTES].copy_from_slice(&count.to_le_bytes());
        self.bytes
    }
}

/// The length of an element as it stands behind it: seven bits a byte, the highest first, all but the first marked.
/// With the number of bytes. The limits of the widths are Redis's, each one below what would fit.
fn backward_length(len: usize) -> ([u8; 5], usize) {
    let used = backward_width(len);
    let mut bytes = [0; 5];
    for (index, byte) in bytes[..used].iter_mut().enumerate() {
        *byte = (len >> (7 * (used - 1 - index)) & 0x7F) as u8 | if index > 0 { 0x80 } else { 0 };
    }
    (bytes, used)
}

/// How many bytes that takes.
#[inline]
fn backward_width(len: usize) -> usize {
    match len {
        0..=0x7F => 1,
        0x80..0x3FFF => 2,
        0x3FFF..0x1F_FFFF => 3,
        0x1F_FFFF..0xFFF_FFFF => 4,
        _ => 5,
    }
}

/// The elements of a listpack, or `None` if the bytes are none.
pub(crate) fn read(bytes: &[u8]) -> Option<Vec<Str<'_>>> {
    let (header, elements) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let [l0, l1, l2, l3, c0, c1] = *header;
    let rest = elements.strip_suffix(&[END])?;
    if u32::from_le_bytes([l0, l1, l2, l3]) as usize != bytes.len() {
        return None;
    }
    let found = read_elements(rest)?;
    let count = usize::from(u16::from_le_bytes([c0, c1]));
    (count == usize::from(u16::MAX) || count == found.len()).then_some(found)
}

/// Elements without what is around them in a listpack.
pub(crate) fn read_elements(mut rest: &[u8]) -> Option<Vec<Str<'_>>> {
    let mut found = Vec::new();
    while !rest.is_empty() {
        let before = rest.len();
        found.push(read_element(&mut rest)?);
        let (length, used) = backward_length(before - rest.len());
        rest = rest.strip_prefix(&length[..used])?;
    }
    Some(found)
}

fn read_element<'a>(rest: &mut &'a [u8]) -> Option<Str<'a>> {
    let (&head, behind) = rest.split_first()?;
    *rest = behind;
    let mut take = |len: usize| {
        let (taken, behind) = rest.split_at_checked(len)?;
        *rest = behind;
        Some(taken)
    };
    let number = |bytes: &[u8]| Str::Integer(signed(bytes));
    match head {
        0..0x80 => Some(Str::Integer(head.into())),
        0x80..0xC0 => take(usize::from(head & 0x3F)).map(Str::Bytes),
        // Thirteen bits: the sign and four more in the head.
        0xC0..0xE0 => take(1).map(|low| Str::Integer(i64::from(i16::from_be_bytes([head, low[0]]) << 3 >> 3))),
        0xE0..0xF0 => {
            let low = take(1)?[0];
            take(usize::from(head & 0x0F) << 8 | usize::from(low)).map(Str::Bytes)
        }
        0xF0 => {
            let len = u32::from_le_bytes(take(4)?.try_into().ok()?);
            take(len as usize).map(Str::Bytes)
        }
        0xF1 => take(2).map(number),
        0xF2 => take(3).map(number),
        0xF3 => take(4).map(number),
        0xF4 => take(8).map(number),
        _ => None,
    }
}

/// A number of one to eight bytes, little-endian, its sign spread over the rest.
pub(super) fn signed(bytes: &[u8]) -> i64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let unused = 64 - 8 * bytes.len() as u32;
    i64::from_le_bytes(wide) << unused >> unused
}

#[cfg(test)]
mod tests {
    use stdx::Prng;

    use super::*;

    fn round_trip(texts: &[Vec<u8>]) {
        let mut builder = Builder::new();
        texts.iter().for_each(|text| builder.push(text));
        let bytes = builder.finish();
        let found: Vec<_> = read(&bytes).unwrap().iter().map(Str::to_vec).collect();
        assert_eq!(found, texts);
        assert_eq!(bytes.len(), FRAME_BYTES + texts.iter().map(|text| element_bytes(text)).sum::<usize>());
    }

    #[test]
    fn elements_of_every_width_come_back() {
        for power in 0..63 {
            for number in [-(1i64 << power) - 1, -(1 << power), (1 << power) - 1, 1 << power, i64::MAX, i64::MIN] {
                round_trip(&[number.to_string().into_bytes(), b"next".to_vec()]);
            }
        }
        for len in [0, 1, 63, 64, 125, 126, 127, 128, 4095, 4096, 16_376, 16_377, 16_378, 16_379, 16_380, 2_097_150] {
            round_trip(&[vec![b'x'; len], b"next".to_vec()]);
        }
        round_trip(&vec![b"more than the header can count".to_vec(); 70_000]);
    }

    #[test]
    fn the_bytes_are_those_of_redis() {
        // What DUMP of Redis 7.0.15 holds of a hash after HSET h a 1 b -1 c 5000 d text.
        let mut builder = Builder::new();
        ["a", "1", "b", "-1", "c", "5000", "d", "text"].iter().for_each(|text| builder.push(text.as_bytes()));
        let expected =
            b"\x22\0\0\0\x08\0\x81a\x02\x01\x01\x81b\x02\xdf\xff\x02\x81c\x02\xf1\x88\x13\x03\x81d\x02\x84text\x05\xff";
        assert_eq!(builder.finish(), expected);
    }

    #[test]
    fn no_bytes_make_the_reader_panic() {
        let mut builder = Builder::new();
        ["a", "1", "-1", "5000", "70000", "-70000", "9999999999", "text"]
            .iter()
            .for_each(|text| builder.push(text.as_bytes()));
        builder.push(&[b'y'; 100]);
        builder.push(&[b'z'; 5000]);
        let golden = builder.finish();
        let mut prng = Prng::new(5);
        let mut accepted = 0;
        for _ in 0..20_000 {
            let mut bytes = golden.clone();
            for _ in 0..=prng.below(2) {
                let at = prng.below(bytes.len() as u64) as usize;
                bytes[at] = prng.draw() as u8;
            }
            accepted += usize::from(read(&bytes).is_some());
        }
        assert!((1..20_000).contains(&accepted), "{accepted}");
        assert!((0..golden.len()).all(|len| read(&golden[..len]).is_none()));
    }
}
