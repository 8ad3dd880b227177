//! Hashes: as a listpack of fields and values in turn, or as so many pairs of strings; with deadlines, as a listpack of
//! fields, values and deadlines in turn, or as so many triples.
//!
//! ```text
//! 25 HASH_LISTPACK_EX   earliest deadline u64 (0 if none), listpack of field, value, deadline (0 if none),
//!                       those that expire first before others, those without a deadline last
//! 24 HASH_METADATA      earliest deadline u64, number of fields, and of each:
//!                       0, or 1 + how much later it expires than the earliest as a length, field, value
//! ```
//!
//! Deadlines are in milliseconds since the epoch. The release candidates of Redis 7.4 had the same without the earliest
//! deadline in front (22 and 23), with absolute deadlines in 22. Valkey 9 uses 22 for something else: fields, values
//! and deadlines of eight bytes in turn, -1 for none; the version behind a dumped value tells which it is.

use super::{
    Compression, Malformed, Reader, are_distinct, kind, listpack, read_text, write_length, write_string, ziplist,
};
use crate::collection::hash::expiring::{self, Expiring, NEVER};
use crate::collection::hash::{Hash, to_pairs};
use crate::collection::{Collection, Form, Limits, PACKED_BYTES_MAX, packed};
use crate::value::{CollectionValue, ItoaBuffer, Kept, canonical_integer};

/// The latest deadline that is believed, in milliseconds since the epoch: Redis's `EB_EXPIRE_TIME_MAX`.
const DEADLINE_MAX: i64 = (1 << 48) - 2;

pub(super) fn kind_of(hash: Hash<'_>) -> u8 {
    match (hash.is_packed(), hash.next_deadline() != NEVER) {
        (true, false) => kind::HASH_LISTPACK,
        (true, true) => kind::HASH_LISTPACK_EX,
        (false, false) => kind::HASH,
        (false, true) => kind::HASH_METADATA,
    }
}

pub(super) fn write(out: &mut Vec<u8>, hash: Hash<'_>, compression: Compression) {
    let earliest = hash.next_deadline();
    if earliest != NEVER {
        return write_expiring(out, hash, earliest, compression);
    }
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

fn write_expiring(out: &mut Vec<u8>, hash: Hash<'_>, earliest: i64, compression: Compression) {
    out.extend_from_slice(&earliest.to_le_bytes());
    if hash.is_packed() {
        let mut fields: Vec<_> = hash.iter_with_deadlines().collect();
        fields.sort_by_key(|&(_, _, deadline)| deadline);
        let mut builder = listpack::Builder::new();
        for (field, value, deadline) in fields {
            builder.push(field);
            builder.push(value);
            builder.push(ItoaBuffer::new().format(if deadline == NEVER { 0 } else { deadline }));
        }
        return write_string(out, &builder.finish(), compression);
    }
    write_length(out, hash.len() as u64);
    for (field, value, deadline) in hash.iter_with_deadlines() {
        write_length(out, if deadline == NEVER { 0 } else { (deadline - earliest) as u64 + 1 });
        write_string(out, field, compression);
        write_string(out, value, compression);
    }
}

/// Writes a hash as Valkey 9 does if fields have deadlines, behind the kind.
pub(super) fn write_for_valkey(out: &mut Vec<u8>, hash: Hash<'_>, compression: Compression) {
    write_length(out, hash.len() as u64);
    for (field, value, deadline) in hash.iter_with_deadlines() {
        write_string(out, field, compression);
        write_string(out, value, compression);
        let deadline = if deadline == NEVER { -1 } else { deadline };
        out.extend_from_slice(&deadline.to_le_bytes());
    }
}

pub(super) fn read(kind: u8, reader: &mut Reader<'_>, limits: &Limits) -> Result<CollectionValue, Malformed> {
    match kind {
        kind::HASH_METADATA => {
            let earliest = u64::from_le_bytes(reader.array()?);
            return read_triples(reader, limits, |relative| match relative {
                0 => Some(0),
                relative => earliest.checked_add(relative - 1),
            });
        }
        kind::HASH_METADATA_CANDIDATE => return read_triples(reader, limits, Some),
        kind::HASH_LISTPACK_EX => {
            reader.array::<8>()?;
            return read_listpack_of_triples(reader, limits);
        }
        kind::HASH_LISTPACK_EX_CANDIDATE => return read_listpack_of_triples(reader, limits),
        _ => {}
    }
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

/// A field, a value, and a deadline.
type TripleOf<T> = (T, T, i64);

/// What a deadline is here: 0 stands for none.
fn known_deadline(deadline: u64) -> Result<i64, Malformed> {
    match i64::try_from(deadline) {
        Ok(0) => Ok(NEVER),
        Ok(deadline) if deadline <= DEADLINE_MAX => Ok(deadline),
        _ => Err(Malformed::Value),
    }
}

fn read_triples(
    reader: &mut Reader<'_>,
    limits: &Limits,
    absolute: impl Fn(u64) -> Option<u64>,
) -> Result<CollectionValue, Malformed> {
    let count = reader.length()?;
    let mut triples = Vec::new();
    for _ in 0..count {
        let deadline = known_deadline(absolute(reader.length()?).ok_or(Malformed::Value)?)?;
        triples.push((read_text(reader)?, read_text(reader)?, deadline));
    }
    build_expiring(&triples, limits)
}

fn read_listpack_of_triples(reader: &mut Reader<'_>, limits: &Limits) -> Result<CollectionValue, Malformed> {
    let bytes = read_text(reader)?;
    let elements = listpack::read(&bytes).filter(|elements| elements.len() % 3 == 0).ok_or(Malformed::Value)?;
    let mut triples = Vec::with_capacity(elements.len() / 3);
    for triple in elements.chunks_exact(3) {
        let text = |index: usize| triple[index].to_bytes(&mut ItoaBuffer::new()).to_vec();
        let deadline = canonical_integer(&text(2)).and_then(|deadline| u64::try_from(deadline).ok());
        triples.push((text(0), text(1), known_deadline(deadline.ok_or(Malformed::Value)?)?));
    }
    let limits = Limits { hash_value_bytes: u64::MAX, ..*limits };
    build_expiring(&triples, &limits)
}

/// Reads what Valkey 9 writes as its kind 22, behind the kind.
pub(super) fn read_of_valkey(reader: &mut Reader<'_>, limits: &Limits) -> Result<CollectionValue, Malformed> {
    let count = reader.length()?;
    let mut triples = Vec::new();
    for _ in 0..count {
        let (field, value) = (read_text(reader)?, read_text(reader)?);
        let deadline = match i64::from_le_bytes(reader.array()?) {
            -1 => NEVER,
            deadline => known_deadline(u64::try_from(deadline).map_err(|_| Malformed::Value)?)?,
        };
        triples.push((field, value, deadline));
    }
    build_expiring(&triples, limits)
}

/// The same as [`build`] where fields may have deadlines.
fn build_expiring<T: AsRef<[u8]>>(triples: &[TripleOf<T>], limits: &Limits) -> Result<CollectionValue, Malformed> {
    if triples.iter().all(|(_, _, deadline)| *deadline == NEVER) {
        let pairs: Vec<(&[u8], &[u8])> =
            triples.iter().map(|(field, value, _)| (field.as_ref(), value.as_ref())).collect();
        return build(&pairs, limits);
    }
    if !are_distinct(triples.iter().map(|(field, ..)| field.as_ref()).collect()) {
        return Err(Malformed::Value);
    }
    let fields = triples.iter().map(|(field, value, deadline)| (field.as_ref(), value.as_ref(), *deadline));
    let is_short =
        |(field, value, _): (&[u8], &[u8], i64)| field.len().max(value.len()) as u64 <= limits.hash_value_bytes;
    if triples.len() as u64 <= limits.hash_entries && fields.clone().all(is_short) {
        let packed = expiring::pack(fields.clone());
        if packed.len() <= PACKED_BYTES_MAX {
            return Ok(CollectionValue(Kept::Packed(Form::ExpiringHash, packed)));
        }
    }
    Ok(CollectionValue(Kept::Large(Box::new(Collection::ExpiringHash(Expiring::of(fields))))))
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
    use crate::collection::Limits;
    use crate::rdb::testing::{check_golden, check_refused, check_same};
    use crate::rdb::{Dialect, FOOTER_BYTES, VERSION_OF_VALKEY, dump, dump_for, restore};
    use crate::testing::Harness;
    use crate::{Moment, Value, ValueRef};

    /// A dump without its version and checksum, and the version.
    fn dumped(harness: &Harness, key: &str) -> (Vec<u8>, u16) {
        let view = harness.keyspace.view(0, Moment::at(harness.now, 0));
        let mut bytes = dump(view.peek(key.as_bytes()).expect("it exists").value());
        bytes.truncate(bytes.len() - 8);
        let version = bytes.split_off(bytes.len() - 2);
        (bytes, u16::from_le_bytes([version[0], version[1]]))
    }

    /// What RESTORE makes of such a value behind this version.
    fn restored(value: &[u8], version: u16, limits: &Limits) -> Value {
        let mut bytes = [value, &version.to_le_bytes()].concat();
        bytes.extend_from_slice(&crate::crc64::crc64(0, &bytes).to_le_bytes());
        restore(&bytes, limits).unwrap_or_else(|malformed| panic!("{malformed:?}: {value:?}"))
    }

    /// Fields, values and deadlines of what was restored.
    fn fields(value: &Value) -> Vec<(&str, &str, i64)> {
        let ValueRef::Hash(hash) = value.as_ref() else { panic!("no hash: {value:?}") };
        let text = |bytes| std::str::from_utf8(bytes).expect("a text");
        hash.iter_with_deadlines().map(|(field, value, deadline)| (text(field), text(value), deadline)).collect()
    }

    const FIRST: i64 = 1_800_000_000_000;

    /// An element of a listpack that is a text of one character.
    fn letter(letter: u8) -> [u8; 3] {
        [0x81, letter, 2]
    }

    /// One that is a number of eight bytes.
    fn long(number: i64) -> Vec<u8> {
        [&[0xF4][..], &number.to_le_bytes(), &[9]].concat()
    }

    /// A small hash of three fields as Redis 7.4 writes it: those that expire first stand first.
    fn small() -> Vec<u8> {
        let elements = [
            &letter(b'b')[..],
            &letter(b'w'),
            &long(FIRST),
            &letter(b'a'),
            &letter(b'v'),
            &long(FIRST + 5),
            &letter(b'c'),
            &letter(b'x'),
            &[0, 1],
        ]
        .concat();
        let len = 6 + elements.len() as u32 + 1;
        [&[len as u8][..], &len.to_le_bytes(), &9u16.to_le_bytes(), &elements, &[0xFF]].concat()
    }

    #[test]
    fn deadlines_are_dumped_as_redis_7_4_does() {
        let mut harness = Harness::new();
        harness.run("HSET h a v b w c x");
        let plain = dumped(&harness, "h");
        assert_eq!(plain.1, 10);
        harness.run(&format!("HPEXPIREAT h {} FIELDS 1 a", FIRST + 5));
        harness.run(&format!("HPEXPIREAT h {FIRST} FIELDS 1 b"));
        let expected = [&[25][..], &FIRST.to_le_bytes(), &small()].concat();
        assert_eq!(dumped(&harness, "h"), (expected, 12));
        // Without deadlines it is what any Redis 7.0 reads.
        harness.run("HPERSIST h FIELDS 2 a b");
        assert_eq!(dumped(&harness, "h"), plain);

        harness.keyspace.set_limits(Limits { hash_entries: 2, ..Limits::default() });
        harness.run("HSET large a v b w c x");
        let plain = dumped(&harness, "large");
        harness.run(&format!("HPEXPIREAT large {} FIELDS 1 a", FIRST + 5));
        harness.run(&format!("HPEXPIREAT large {FIRST} FIELDS 1 b"));
        let (bytes, version) = dumped(&harness, "large");
        assert_eq!((&bytes[..10], version), (&[&[24][..], &FIRST.to_le_bytes(), &[3]].concat()[..], 12));
        // In whatever order the fields lie.
        let mut triples: Vec<&[u8]> = bytes[10..].chunks(5).collect();
        triples.sort();
        assert_eq!(triples, [b"\x00\x01c\x01x", b"\x01\x01b\x01w", b"\x06\x01a\x01v"]);
        harness.run("HPERSIST large FIELDS 2 a b");
        assert_eq!(dumped(&harness, "large"), plain);
    }

    #[test]
    fn what_newer_servers_and_candidates_dump_is_restored() {
        let large = Limits { hash_entries: 2, ..Limits::default() };
        let expected = [("a", "v", FIRST + 5), ("b", "w", FIRST), ("c", "x", i64::MAX)];
        let length = |number: i64| [&[0x81][..], &number.to_be_bytes()].concat();
        let triples = b"\x03\x06\x01a\x01v\x01\x01b\x01w\x00\x01c\x01x".to_vec();
        let absolute =
            [b"\x03", &length(FIRST + 5)[..], b"\x01a\x01v", &length(FIRST), b"\x01b\x01w\x00\x01c\x01x"].concat();
        let of_valkey = [
            &b"\x03\x01a\x01v"[..],
            &(FIRST + 5).to_le_bytes(),
            b"\x01b\x01w",
            &FIRST.to_le_bytes(),
            b"\x01c\x01x",
            &(-1i64).to_le_bytes(),
        ]
        .concat();
        for (value, version) in [
            ([&[25][..], &FIRST.to_le_bytes(), &small()].concat(), 12),
            ([&[23][..], &small()].concat(), 12),
            ([&[24][..], &FIRST.to_le_bytes(), &triples].concat(), 12),
            ([&[22][..], &absolute].concat(), 12),
            ([&[22][..], &of_valkey].concat(), 80),
        ] {
            for (limits, encoding) in [(Limits::default(), "listpackex"), (large, "hashtable")] {
                let value = restored(&value, version, &limits);
                let mut found = fields(&value);
                found.sort();
                assert_eq!(found, expected);
                assert_eq!(value.as_ref().encoding(), encoding);
                // What is written for Valkey is of the same kind, whatever it was.
                let written = dump_for(value.as_ref(), Dialect::Valkey, VERSION_OF_VALKEY);
                assert_eq!((written[0], written.len()), (22, 1 + of_valkey.len() + FOOTER_BYTES));
                let again = restore(&written, &limits).expect("a value");
                let mut found = fields(&again);
                found.sort();
                assert_eq!(found, expected);
            }
        }
        // Fields that have expired on the way do not come; if there are no others the key does not.
        let mut harness = Harness::new();
        harness.now = FIRST;
        harness.run(&format!("HSETEX h PXAT {} FIELDS 1 a v", FIRST + 5));
        harness.run(&format!("HSETEX h PXAT {} FIELDS 1 b w", FIRST + 9));
        let moment = Moment::at(FIRST, 0);
        let bytes = dump(harness.keyspace.view(0, moment).peek(b"h").expect("it exists").value());
        harness.now = FIRST + 5;
        assert_eq!(harness.run_words(&[b"RESTORE", b"i", b"0", &bytes]), b"+OK\r\n");
        assert_eq!(harness.run("HKEYS i"), "*1\r\n$1\r\nb\r\n");
        harness.now = FIRST + 9;
        assert_eq!(harness.run_words(&[b"RESTORE", b"i", b"0", &bytes, b"REPLACE"]), b"+OK\r\n");
        assert_eq!(harness.run("DBSIZE"), ":1\r\n", "h, which is not swept, and no i");
        assert_eq!(harness.run("EXISTS h i"), ":0\r\n");
    }

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
            (b"\x18\0\0\0\0\0\0\0\0\x00", "no field with deadlines"),
            (b"\x18\0\0\0\0\0\x01\0\0\x02\x01\x01a\x01b\x02\x01a\x01c", "a field with deadlines twice"),
            (b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02\x01a\x01b", "a deadline beyond 64 bits"),
            (b"\x18\xff\xff\xff\xff\xff\xff\xff\x7f\x01\x01\x01a\x01b", "a deadline too far away"),
            (b"\x19\0\0\0\0\0\0\0\0\x0d\x0d\0\0\0\x02\0\x81a\x02\x81b\x02\xff", "a field without a deadline's place"),
            (b"\x19\0\0\0\0\0\0\0\0\x10\x10\0\0\0\x03\0\x81a\x02\x81b\x02\x81c\x02\xff", "a deadline that is none"),
        ]);
    }
}
