//! Hashes: as a listpack of fields and values in turn, or as so many pairs of strings.

use super::{
    Compression, Malformed, Reader, are_distinct, kind, listpack, read_text, write_length, write_string, ziplist,
};
use crate::collection::hash::{Hash, to_pairs};
use crate::collection::{Collection, Form, Limits, PACKED_BYTES_MAX, packed};
use crate::value::{CollectionValue, ItoaBuffer, Kept};

pub(super) fn kind_of(hash: Hash<'_>) -> u8 {
    if hash.is_packed() { kind::HASH_LISTPACK } else { kind::HASH }
}

pub(super) fn write(out: &mut Vec<u8>, hash: Hash<'_>, compression: Compression) {
    if hash.is_packed() {
        let mut builder = listpack::Builder::new();
        for (field, value) in hash.iter() {
            builder.push(field);
            builder.push(value);
        }
        return write_string(out, &builder.finish(), compression);
    }
    write_plain(out, hash, compression);
}

/// Writes a hash as pairs of strings, whatever its form.
pub(super) fn write_plain(out: &mut Vec<u8>, hash: Hash<'_>, compression: Compression) {
    write_length(out, hash.len() as u64);
    for (field, value) in hash.iter() {
        write_string(out, field, compression);
        write_string(out, value, compression);
    }
}

pub(super) fn read(kind: u8, reader: &mut Reader<'_>, limits: &Limits) -> Result<CollectionValue, Malformed> {
    if kind == kind::HASH_ZIPMAP {
        let bytes = read_text(reader)?;
        let texts = ziplist::read_zipmap(&bytes).ok_or(Malformed::Value)?;
        return build(&texts.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>(), limits);
    }
    if kind == kind::HASH_LISTPACK || kind == kind::HASH_ZIPLIST {
        let bytes = read_text(reader)?;
        let elements = if kind == kind::HASH_ZIPLIST { ziplist::read(&bytes) } else { listpack::read(&bytes) };
        let elements = elements.filter(|elements| elements.len() % 2 == 0).ok_or(Malformed::Value)?;
        let mut buffers = (ItoaBuffer::new(), ItoaBuffer::new());
        let mut pairs = Vec::with_capacity(elements.len() / 2);
        for pair in elements.chunks_exact(2) {
            pairs.push((pair[0].to_bytes(&mut buffers.0).to_vec(), pair[1].to_bytes(&mut buffers.1).to_vec()));
        }
        // Redis looks at the number of fields here, and not at their length.
        let limits = Limits { hash_value_bytes: u64::MAX, ..*limits };
        return build(&pairs, &limits);
    }
    let count = reader.length()?;
    let mut pairs = Vec::new();
    for _ in 0..count {
        pairs.push((read_text(reader)?, read_text(reader)?));
    }
    build(&pairs, limits)
}

/// A hash of these pairs, if there are any and no field comes twice.
fn build<T: AsRef<[u8]>>(pairs: &[(T, T)], limits: &Limits) -> Result<CollectionValue, Malformed> {
    if pairs.is_empty() || !are_distinct(pairs.iter().map(|(field, _)| field.as_ref()).collect()) {
        return Err(Malformed::Value);
    }
    let pairs = pairs.iter().map(|(field, value)| (field.as_ref(), value.as_ref()));
    let bytes: usize = pairs.clone().map(|(field, value)| field.len() + value.len()).sum();
    let is_short = |(field, value): (&[u8], &[u8])| field.len().max(value.len()) as u64 <= limits.hash_value_bytes;
    let fits = pairs.len() as u64 <= limits.hash_entries && bytes <= PACKED_BYTES_MAX && pairs.clone().all(is_short);
    if !fits {
        return Ok(CollectionValue(Kept::Large(Box::new(Collection::Hash(to_pairs(pairs))))));
    }
    let mut out = Vec::with_capacity(bytes + 2 * pairs.len());
    for (field, value) in pairs {
        packed::put(&mut out, field);
        packed::put(&mut out, value);
    }
    Ok(CollectionValue(Kept::Packed(Form::Hash, out)))
}

#[cfg(test)]
mod tests {
    use crate::rdb::testing::{check_golden, check_refused, check_same};

    #[test]
    fn dumps_have_the_bytes_that_redis_gave_them() {
        check_golden(&[
            ("HSET h f v", "100d0d0000000200816602817602ff0a0020f13d442354089d"),
            (
                "HSET h a 1 b -1 c 5000 d text e xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
                "10c32f40681f680000000a008161020101816202dfff02816302f188130381640284746578740605816502e04078e036000142ff\
                 0a0068c091b246eaf1c2",
            ),
            (
                "HSET h b yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy",
                "04010162c3094041017979e034000179790a002cd641f1905cfaca",
            ),
        ]);
    }

    #[test]
    fn the_forms_of_old_are_read() {
        check_same(
            "HSET h a 1 b text",
            &[
                b"\x09\x0f\x02\x01a\x01\x001\x01b\x04\0text\xff",
                b"\x0d\x19\x19\0\0\0\x12\0\0\0\x04\0\0\x01a\x03\xf2\x02\x01b\x03\x04text\xff",
            ],
        );
    }

    #[test]
    fn what_is_no_hash_is_refused() {
        check_refused(&[
            (b"\x04\x00", "no field"),
            (b"\x04\x02\x01a\x01b\x01a\x01c", "a field twice"),
            (b"\x04\x02\x01a\x01b", "a pair missing"),
            (b"\x10\x0b\x0b\0\0\0\x01\0\x81a\x02\xff", "a field without a value"),
            (b"\x10\x07\x07\0\0\0\0\0\xff", "an empty listpack"),
            (b"\x10\x08\x07\0\0\0\0\0\xff\xff", "more than a listpack"),
            (b"\x0d\x0e\x0e\0\0\0\x0a\0\0\0\x01\0\0\x01a\xff", "a field of a ziplist without a value"),
            (b"\x0d\x0b\x0b\0\0\0\x0a\0\0\0\0\0\xff", "an empty ziplist"),
            (b"\x09\x02\0\xff", "an empty zipmap"),
            (b"\x09\x0c\x02\x01a\x01\0b\x01a\x01\0c\xff", "a field of a zipmap twice"),
        ]);
    }
}
