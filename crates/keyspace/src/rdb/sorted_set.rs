//! Sorted sets: as a listpack of members and scores in turn, or as so many strings, each with a double.

use std::borrow::Cow;

use super::{Compression, Malformed, Reader, kind, listpack, read_text, write_length, write_string, ziplist};
use crate::collection::Limits;
use crate::collection::sorted_set::{SortedSet, from_members};
use crate::double;
use crate::value::{CollectionValue, Str};

pub(super) fn kind_of(set: SortedSet<'_>) -> u8 {
    if set.is_packed() { kind::SORTED_SET_LISTPACK } else { kind::SORTED_SET_2 }
}

pub(super) fn write(out: &mut Vec<u8>, set: SortedSet<'_>, compression: Compression) {
    if set.is_packed() {
        let mut builder = listpack::Builder::new();
        for (member, score) in set.iter() {
            builder.push(member);
            match double::exact_integer(score) {
                Some(integer) => builder.push_integer(integer),
                None => builder.push(double::print(score).as_bytes()),
            }
        }
        return write_string(out, &builder.finish(), compression);
    }
    write_plain(out, set, compression);
}

/// Writes a sorted set as members and doubles, whatever its form.
pub(super) fn write_plain(out: &mut Vec<u8>, set: SortedSet<'_>, compression: Compression) {
    write_length(out, set.len() as u64);
    // Redis begins with the highest score, which makes its own reading quick.
    for (member, score) in set.range_back(0..set.len()) {
        write_string(out, member, compression);
        out.extend_from_slice(&score.to_bits().to_le_bytes());
    }
}

pub(super) fn read(kind: u8, reader: &mut Reader<'_>, limits: &Limits) -> Result<CollectionValue, Malformed> {
    let mut members: Vec<(Cow<'_, [u8]>, f64)> = Vec::new();
    let mut limits = *limits;
    if kind == kind::SORTED_SET_LISTPACK || kind == kind::SORTED_SET_ZIPLIST {
        let bytes = read_text(reader)?;
        let elements = if kind == kind::SORTED_SET_ZIPLIST { ziplist::read(&bytes) } else { listpack::read(&bytes) };
        let elements = elements.filter(|elements| elements.len() % 2 == 0).ok_or(Malformed::Value)?;
        for pair in elements.chunks_exact(2) {
            let score = match pair[1] {
                Str::Integer(number) => number as f64,
                Str::Bytes(text) => double::parse(text).ok_or(Malformed::Value)?,
            };
            members.push((Cow::Owned(pair[0].to_vec()), score));
        }
        // Redis looks at the number of members here, and not at their length.
        limits.sorted_set_value_bytes = u64::MAX;
    } else {
        let count = reader.length()?;
        for _ in 0..count {
            let member = read_text(reader)?;
            let score = match kind {
                kind::SORTED_SET_2 => f64::from_bits(u64::from_le_bytes(reader.array()?)),
                _ => read_score_text(reader)?,
            };
            members.push((member, score));
        }
    }
    let members = members.iter().map(|(member, score)| (&**member, *score)).collect();
    from_members(members, &limits).ok_or(Malformed::Value)
}

/// A score in the form of old: the length of its text, or a number that stands for what has none.
fn read_score_text(reader: &mut Reader<'_>) -> Result<f64, Malformed> {
    match reader.byte()? {
        255 => Ok(f64::NEG_INFINITY),
        254 => Ok(f64::INFINITY),
        253 => Err(Malformed::Value),
        length => double::parse(reader.take(length.into())?).ok_or(Malformed::Value),
    }
}

#[cfg(test)]
mod tests {
    use crate::rdb::testing::{check_golden, check_refused, check_same};

    #[test]
    fn dumps_have_the_bytes_that_redis_gave_them() {
        check_golden(&[
            ("ZADD h 1 a", "110c0c00000002008161020101ff0a00a805ceb8d7a93302"),
            (
                "ZADD h 1.5 a -2 b inf c -inf d 12345678901 e 0.1 f 1e300 g",
                "11c3405440671c670000000e00816402842d696e6605816202dffe0281660293302e3130e00500123114816102\
             83312e3504816502f4351cdcdf02203c060981670297312ee0052a0b3031652b333030188163028320560104ff\
             0a004007e3cb88fa72ed",
            ),
            (
                "ZADD h 3 yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy 2.5 b",
                "0502c3094041017979e034000179790000000000000840016200000000000004400a003643c3c3e5527822",
            ),
        ]);
    }

    #[test]
    fn the_forms_of_old_are_read() {
        check_same(
            "ZADD h -inf a 1.5 b",
            &[
                b"\x03\x02\x01b\x031.5\x01a\xff",
                b"\x0c\x1c\x1c\0\0\0\x16\0\0\0\x04\0\0\x01a\x03\x04-inf\x06\x01b\x03\x031.5\xff",
            ],
        );
    }

    #[test]
    fn what_is_no_sorted_set_is_refused() {
        check_refused(&[
            (b"\x05\x00", "no member"),
            (b"\x05\x02\x01a\0\0\0\0\0\0\0\0\x01a\0\0\0\0\0\0\0\0", "a member twice"),
            (b"\x05\x01\x01a\0\0\0\0\0\0\xf8\x7f", "a score that is no number"),
            (b"\x05\x01\x01a\0\0\0", "a score cut short"),
            (b"\x03\x01\x01a\xfd", "a score of old that is no number"),
            (b"\x11\x0b\x0b\0\0\0\x01\0\x81a\x02\xff", "a member without a score"),
            (b"\x11\x07\x07\0\0\0\0\0\xff", "an empty listpack"),
            (b"\x0c\x0b\x0b\0\0\0\x0a\0\0\0\0\0\xff", "an empty ziplist"),
            (b"\x0c\x11\x11\0\0\0\x0d\0\0\0\x02\0\0\x01a\x03\x01x\xff", "a score that is no number"),
        ]);
    }
}
