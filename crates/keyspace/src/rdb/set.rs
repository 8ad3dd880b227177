//! Sets: as an intset, or as so many strings.

use std::borrow::Cow;

use super::{
    Compression, Malformed, Reader, are_distinct, kind, listpack, read_text, write_integer, write_length, write_string,
};
use crate::collection::Limits;
use crate::collection::set::{self, Set};
use crate::value::{CollectionValue, Str};

pub(super) fn kind_of(set: Set<'_>) -> u8 {
    if set.as_integers().is_some() { kind::SET_INTSET } else { kind::SET }
}

pub(super) fn write(out: &mut Vec<u8>, set: Set<'_>, compression: Compression) {
    if let Some(integers) = set.as_integers() {
        // Width and number of numbers, then these, all little-endian.
        let mut bytes = Vec::with_capacity(8 + integers.bytes().len());
        bytes.extend_from_slice(&(integers.width() as u32).to_le_bytes());
        bytes.extend_from_slice(&(set.len() as u32).to_le_bytes());
        bytes.extend_from_slice(integers.bytes());
        return write_string(out, &bytes, compression);
    }
    write_length(out, set.len() as u64);
    for member in set.iter() {
        match member {
            Str::Integer(number) => write_integer(out, number),
            Str::Bytes(bytes) => write_string(out, bytes, compression),
        }
    }
}

pub(super) fn read(kind: u8, reader: &mut Reader<'_>, limits: &Limits) -> Result<CollectionValue, Malformed> {
    if kind == kind::SET_INTSET {
        let bytes = read_text(reader)?;
        return read_integers(&bytes, limits).ok_or(Malformed::Value);
    }
    if kind == kind::SET_LISTPACK {
        let bytes = read_text(reader)?;
        let members = listpack::read(&bytes).ok_or(Malformed::Value)?;
        return build(&members, limits);
    }
    let count = reader.length()?;
    let mut members = Vec::new();
    for _ in 0..count {
        members.push(read_text(reader)?);
    }
    let members: Vec<Str<'_>> = members.iter().map(|member| Str::Bytes(member)).collect();
    build(&members, limits)
}

/// A set of these members, if there are any and none comes twice.
fn build(members: &[Str<'_>], limits: &Limits) -> Result<CollectionValue, Malformed> {
    fn text<'a>(member: &Str<'a>) -> Cow<'a, [u8]> {
        match *member {
            Str::Bytes(bytes) => Cow::Borrowed(bytes),
            Str::Integer(_) => Cow::Owned(member.to_vec()),
        }
    }
    if members.is_empty() || !are_distinct(members.iter().map(text).collect()) {
        return Err(Malformed::Value);
    }
    Ok(set::build(members, limits))
}

fn read_integers(bytes: &[u8], limits: &Limits) -> Option<CollectionValue> {
    let (width, rest) = bytes.split_first_chunk::<4>()?;
    let (count, numbers) = rest.split_first_chunk::<4>()?;
    let width = u8::try_from(u32::from_le_bytes(*width)).ok()?;
    let integers = set::integers_of(width, numbers)?;
    let count = u32::from_le_bytes(*count);
    let set = Set::integers(&integers);
    if count == 0 || set.len() as u64 != u64::from(count) {
        return None;
    }
    Some(set::build(&set.iter().collect::<Vec<_>>(), limits))
}

#[cfg(test)]
mod tests {
    use crate::rdb::testing::{check_golden, check_refused};

    #[test]
    fn dumps_have_the_bytes_that_redis_gave_them() {
        check_golden(&[
            ("SADD h 1 2 3", "0b0e02000000030000000100020003000a00a5025ce26d6e4d1b"),
            (
                "SADD h 1 70000 -5 9223372036854775807",
                "0bc31d28040800000004200301fbff80000001200b40000170118009801501ff7f0a00f59a3a3adb057b83",
            ),
            ("SADD h a", "020101610a006296e97e44d21a6d"),
            ("SADD h text", "020104746578740a00705e844b42f04c37"),
        ]);
    }

    #[test]
    fn what_is_no_set_is_refused() {
        check_refused(&[
            (b"\x02\x00", "no member"),
            (b"\x14\x07\x07\0\0\0\0\0\xff", "an empty listpack"),
            (b"\x14\x0b\x0b\0\0\0\x02\0\x01\x01\x01\x01\xff", "a member of a listpack twice"),
            (b"\x02\x02\x01a\x01a", "a member twice"),
            (b"\x02\x02\x01a", "a member missing"),
            (b"\x0b\x08\x02\0\0\0\0\0\0\0", "no integer"),
            (b"\x0b\x0c\x02\0\0\0\x02\0\0\0\x02\0\x01\0", "out of order"),
            (b"\x0b\x0c\x02\0\0\0\x02\0\0\0\x01\0\x01\0", "a number twice"),
            (b"\x0b\x0a\x02\0\0\0\x02\0\0\0\x01\0", "a number missing"),
            (b"\x0b\x0b\x03\0\0\0\x01\0\0\0\x01\0\0", "a width that does not exist"),
        ]);
    }
}
