//! What Redis kept small collections in before 7.0: ziplists and, before 2.6, zipmaps. They are only read.
//!
//! ```text
//! ziplist = bytes in all u32 │ offset of the last entry u32 │ entries u16 (65535: more) │ entry … │ 0xFF
//! entry   = length of the entry before: u8, or 0xFE and u32 │ head │ text or number
//! head    = 00llllll │ 01llllll llllllll │ 0x80, u32 big-endian      text of that length
//!         | 0xC0 i16 │ 0xD0 i32 │ 0xE0 i64 │ 0xF0 i24 │ 0xFE i8       number, little-endian
//!         | 1111nnnn, n from 1 to 13                                 the number n − 1
//!
//! zipmap  = pairs u8 (254 and above: more) │ pair … │ 0xFF
//! pair    = length, field │ length, unused u8, value, as many unused bytes
//! length  = u8 below 254, or 0xFE and u32
//! ```

use super::listpack::signed;
use crate::value::Str;

const HEADER_BYTES: usize = 10;
const END: u8 = 0xFF;

/// Announces a length of four bytes.
const WIDE: u8 = 0xFE;

/// The entries of a ziplist, or `None` if the bytes are none.
pub(super) fn read(bytes: &[u8]) -> Option<Vec<Str<'_>>> {
    let (header, entries) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let [l0, l1, l2, l3, t0, t1, t2, t3, c0, c1] = *header;
    let mut rest = entries.strip_suffix(&[END])?;
    if u32::from_le_bytes([l0, l1, l2, l3]) as usize != bytes.len() {
        return None;
    }
    let mut found = Vec::new();
    let (mut last_bytes, mut last_offset) = (0, HEADER_BYTES);
    while !rest.is_empty() {
        let before = rest;
        last_offset = bytes.len() - 1 - rest.len();
        if take_length(&mut rest)? != last_bytes {
            return None;
        }
        found.push(read_entry(&mut rest)?);
        last_bytes = before.len() - rest.len();
    }
    let count = usize::from(u16::from_le_bytes([c0, c1]));
    let is_counted = count == usize::from(u16::MAX) || count == found.len();
    (is_counted && u32::from_le_bytes([t0, t1, t2, t3]) as usize == last_offset).then_some(found)
}

fn read_entry<'a>(rest: &mut &'a [u8]) -> Option<Str<'a>> {
    let head = take(rest, 1)?[0];
    Some(match head {
        0..0x40 => Str::Bytes(take(rest, head.into())?),
        0x40..0x80 => {
            let low = take(rest, 1)?[0];
            Str::Bytes(take(rest, usize::from(head & 0x3F) << 8 | usize::from(low))?)
        }
        0x80 => {
            let length = u32::from_be_bytes(take(rest, 4)?.try_into().ok()?);
            Str::Bytes(take(rest, length as usize)?)
        }
        0xC0 => Str::Integer(signed(take(rest, 2)?)),
        0xD0 => Str::Integer(signed(take(rest, 4)?)),
        0xE0 => Str::Integer(signed(take(rest, 8)?)),
        0xF0 => Str::Integer(signed(take(rest, 3)?)),
        0xFE => Str::Integer(signed(take(rest, 1)?)),
        0xF1..=0xFD => Str::Integer(i64::from(head & 0x0F) - 1),
        _ => return None,
    })
}

/// The fields and values of a zipmap in turn, or `None` if the bytes are none.
pub(super) fn read_zipmap(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let (&count, pairs) = bytes.split_first()?;
    let mut rest = pairs.strip_suffix(&[END])?;
    let mut found = Vec::new();
    while !rest.is_empty() {
        let length = take_length(&mut rest)?;
        found.push(take(&mut rest, length)?);
        let length = take_length(&mut rest)?;
        let unused = take(&mut rest, 1)?[0];
        found.push(take(&mut rest, length)?);
        take(&mut rest, unused.into())?;
    }
    (count >= WIDE || usize::from(count) == found.len() / 2).then_some(found)
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(taken)
}

fn take_length(rest: &mut &[u8]) -> Option<usize> {
    match take(rest, 1)?[0] {
        WIDE => Some(u32::from_le_bytes(take(rest, 4)?.try_into().ok()?) as usize),
        END => None,
        short => Some(short.into()),
    }
}

#[cfg(test)]
mod tests {
    use stdx::Prng;

    use super::*;

    /// A ziplist of these entries, each a head with what follows it.
    fn ziplist(entries: &[&[u8]]) -> Vec<u8> {
        let mut body = Vec::new();
        let (mut last_bytes, mut last_offset) = (0, HEADER_BYTES);
        for entry in entries {
            last_offset = HEADER_BYTES + body.len();
            if last_bytes < usize::from(WIDE) {
                body.push(last_bytes as u8);
            } else {
                body.push(WIDE);
                body.extend_from_slice(&(last_bytes as u32).to_le_bytes());
            }
            body.extend_from_slice(entry);
            last_bytes = HEADER_BYTES + body.len() - last_offset;
        }
        let mut bytes = ((HEADER_BYTES + body.len() + 1) as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(&(last_offset as u32).to_le_bytes());
        bytes.extend_from_slice(&(entries.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes.push(END);
        bytes
    }

    fn of_every_form() -> Vec<u8> {
        let middle = [&[0x41, 0x2C][..], &[b'm'; 300]].concat();
        let long = [&[0x80, 0, 0, 0x40, 0x01][..], &[b'l'; 0x4001]].concat();
        ziplist(&[
            b"\x03one",
            &middle,
            &long,
            b"\xC0\xFE\xFF",
            b"\xD0\x00\x00\x00\x80",
            b"\xE0\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F",
            b"\xF0\x00\x00\x80",
            b"\xFE\x80",
            b"\xF1",
            b"\xFD",
            b"\x00",
        ])
    }

    #[test]
    fn entries_of_every_form_are_read() {
        let bytes = of_every_form();
        let found: Vec<_> = read(&bytes).expect("a ziplist").iter().map(Str::to_vec).collect();
        let expected: [&[u8]; 11] = [
            b"one",
            &[b'm'; 300],
            &[b'l'; 0x4001],
            b"-2",
            b"-2147483648",
            b"9223372036854775807",
            b"-8388608",
            b"-128",
            b"0",
            b"12",
            b"",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_zipmap_is_read_with_what_it_does_not_use() {
        let long = [b'v'; 300];
        let mut bytes = b"\x02\x01a\x01\x02b..\x02cd\xFE\x2C\x01\0\0\0".to_vec();
        bytes.extend_from_slice(&long);
        bytes.push(END);
        assert_eq!(read_zipmap(&bytes), Some(vec![&b"a"[..], b"b", b"cd", &long]));
        bytes[0] = 3;
        assert_eq!(read_zipmap(&bytes), None, "a count that does not hold");
        bytes[0] = WIDE;
        assert!(read_zipmap(&bytes).is_some(), "a count that is not known");
    }

    #[test]
    fn what_is_no_ziplist_is_refused() {
        let golden = ziplist(&[b"\x01a", b"\x01b"]);
        assert!(read(&golden).is_some());
        for (at, why) in [(0, "a length"), (4, "an offset"), (8, "a count"), (10, "a first length"), (13, "a length")] {
            let mut bytes = golden.clone();
            bytes[at] += 1;
            assert_eq!(read(&bytes), None, "{why}");
        }
        assert!((0..golden.len()).all(|length| read(&golden[..length]).is_none()));
    }

    #[test]
    fn no_bytes_make_the_readers_panic() {
        let goldens = [of_every_form(), b"\x02\x01a\x01\x02b..\x02cd\x01\0x\xFF".to_vec()];
        let mut prng = Prng::new(12);
        let mut accepted = 0;
        for round in 0..20_000 {
            let mut bytes = goldens[round % 2].clone();
            for _ in 0..=prng.below(2) {
                let at = prng.below(bytes.len().min(400) as u64) as usize;
                bytes[at] = prng.draw() as u8;
            }
            accepted += usize::from(read(&bytes).is_some()) + usize::from(read_zipmap(&bytes).is_some());
        }
        assert!((1..20_000).contains(&accepted), "{accepted}");
    }
}
