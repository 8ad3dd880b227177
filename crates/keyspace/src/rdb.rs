//! Values as bytes, in the encoding of Redis's RDB files: one codec for checkpoints, DUMP and RESTORE, and for what is
//! exchanged with stock servers.
//!
//! What is written here has the bytes that Redis 7.0 would write, or Redis 7.4 where fields of hashes have deadlines,
//! 8.6 where streams remember producers, and 8.8 where something of them was released.
//! What is read here may come from anybody: every input that is not the encoding of a value is refused, and none makes
//! the reader allocate more than the value it describes.

mod hash;
mod list;
pub(crate) mod listpack;
pub mod module;
mod set;
mod sketch;
mod sorted_set;
mod stream;
#[cfg(test)]
mod testing;
mod vector;
mod ziplist;

use std::borrow::Cow;

use crate::collection::Limits;
use crate::collection::hash::expiring::NEVER;
use crate::crc64::crc64;
use crate::lzf;
use crate::value::{ItoaBuffer, Str, StringValue, Value, ValueRef, canonical_integer};

/// The version of the encoding that is written, Redis 7.0's.
pub const VERSION: u16 = 10;

/// The version of what Redis before 7.4 cannot read: hashes of which fields have deadlines.
const VERSION_OF_EXPIRING_FIELDS: u16 = 12;

/// The version of what Redis before 8.6 cannot read: streams that remember what producers have added.
const VERSION_OF_PRODUCERS: u16 = 13;

/// The version of what Redis before 8.8 cannot read: streams of which something was released.
const VERSION_OF_RELEASED: u16 = 14;

/// The latest version of Redis's encoding that is understood, Redis 8.10's. Versions add kinds of values and change
/// none: what is of a kind that is known can be read, whatever the version.
const VERSION_READABLE_MAX: u16 = 15;

/// The same for Valkey, which has counted from this version since 9.0. One of the numbers means another kind there.
pub const VERSION_OF_VALKEY: u16 = 80;

/// Bytes of the version and the checksum behind a dumped value.
const FOOTER_BYTES: usize = 2 + 8;

/// The first byte of an encoded value. The numbers are the format's.
mod kind {
    pub const STRING: u8 = 0;
    pub const LIST: u8 = 1;
    pub const SET: u8 = 2;
    pub const SORTED_SET: u8 = 3;
    pub const HASH: u8 = 4;
    pub const SORTED_SET_2: u8 = 5;
    /// Of a module: see [`super::module`].
    pub const MODULE_2: u8 = 7;
    /// Of Redis before 2.6; never written.
    pub const HASH_ZIPMAP: u8 = 9;
    /// Of Redis before 3.2; never written.
    pub const LIST_ZIPLIST: u8 = 10;
    pub const SET_INTSET: u8 = 11;
    /// Of Redis before 7.0, as the next two; never written.
    pub const SORTED_SET_ZIPLIST: u8 = 12;
    pub const HASH_ZIPLIST: u8 = 13;
    pub const LIST_QUICKLIST: u8 = 14;
    pub const STREAM_LISTPACKS: u8 = 15;
    pub const HASH_LISTPACK: u8 = 16;
    pub const SORTED_SET_LISTPACK: u8 = 17;
    pub const LIST_QUICKLIST_2: u8 = 18;
    pub const STREAM_LISTPACKS_2: u8 = 19;
    /// Of Redis 7.2; never written.
    pub const SET_LISTPACK: u8 = 20;
    /// Of Redis 7.2; never written.
    pub const STREAM_LISTPACKS_3: u8 = 21;
    /// Of the release candidates of Redis 7.4; never written.
    pub const HASH_METADATA_CANDIDATE: u8 = 22;
    /// Of Valkey 9, which has given its own kind the same number.
    pub const HASH_OF_VALKEY: u8 = 22;
    /// Of the release candidates of Redis 7.4; never written.
    pub const HASH_LISTPACK_EX_CANDIDATE: u8 = 23;
    pub const HASH_METADATA: u8 = 24;
    pub const HASH_LISTPACK_EX: u8 = 25;
    /// Of Redis 8.6: with what is remembered of producers.
    pub const STREAM_LISTPACKS_4: u8 = 26;
    /// Of Redis 8.8: with what was released.
    pub const STREAM_LISTPACKS_5: u8 = 27;
}

/// What the low six bits mean in a string's first byte when the high two are set. The numbers are the format's.
mod special {
    pub const INT8: u8 = 0;
    pub const INT16: u8 = 1;
    pub const INT32: u8 = 2;
    pub const LZF: u8 = 3;
}

/// Strings up to this many bytes are never compressed: nothing shorter becomes smaller.
const INCOMPRESSIBLE_BYTES_MAX: usize = 20;

/// What compression must save to be worth it.
const SAVING_BYTES_MIN: usize = 4;

/// Longest string that is accepted in compressed form: a few kilobytes may stand for a hundred times as much, but not
/// for more than a client could have sent (Redis's default of `proto-max-bulk-len`).
const DECOMPRESSED_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// Strings longer than this are no integers of 32 bits.
const INTEGER_TEXT_BYTES_MAX: usize = 11;

/// Why bytes are not a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The version behind the value is unknown, or the checksum does not fit.
    Footer,
    /// There is no value in this form, or there is more than one.
    Value,
}

/// Whether long strings are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// As they are.
    None,
    /// LZF where it makes a string smaller, as Redis does unless told otherwise.
    Lzf,
}

/// `value` as DUMP answers it: the encoded value, the version and a checksum.
///
/// ```text
/// kind, payload │ version u16 │ CRC-64 of all before u64        (both little-endian)
/// ```
pub fn dump(value: ValueRef<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    write_object(&mut out, value, Compression::Lzf);
    let version = match out[0] {
        kind::HASH_METADATA | kind::HASH_LISTPACK_EX => VERSION_OF_EXPIRING_FIELDS,
        kind::STREAM_LISTPACKS_4 => VERSION_OF_PRODUCERS,
        kind::STREAM_LISTPACKS_5 => VERSION_OF_RELEASED,
        _ => VERSION,
    };
    out.extend_from_slice(&version.to_le_bytes());
    let checksum = crc64(0, &out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

/// The same for somebody who reads this version of the encoding, 9 to 12 of Redis or that of Valkey, in its dialect.
/// Deadlines of fields are left out if the dialect has none.
pub fn dump_for(value: ValueRef<'_>, dialect: Dialect, version: u16) -> Vec<u8> {
    let mut out = vec![kind_for(value, dialect)];
    write_payload_for(&mut out, value, dialect);
    out.extend_from_slice(&version.to_le_bytes());
    let checksum = crc64(0, &out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

/// The value that [`dump`], or a Redis or Valkey, made `bytes` of. Collections get the form that `limits` give them.
///
/// # Errors
/// [`Malformed`] if it is none, or is of a kind that does not exist here.
pub fn restore(bytes: &[u8], limits: &Limits) -> Result<Value, Malformed> {
    let value_length = bytes.len().checked_sub(FOOTER_BYTES).ok_or(Malformed::Footer)?;
    let (value, footer) = bytes.split_at(value_length);
    let version = u16::from_le_bytes([footer[0], footer[1]]);
    let checksum = crc64(0, &bytes[..value_length + 2]);
    let is_known = version <= VERSION_READABLE_MAX || version == VERSION_OF_VALKEY;
    if !is_known || checksum.to_le_bytes() != footer[2..] {
        return Err(Malformed::Footer);
    }
    let mut reader = Reader::new(value);
    let value = if version == VERSION_OF_VALKEY && value.first() == Some(&kind::HASH_OF_VALKEY) {
        reader.byte()?;
        hash::read_of_valkey(&mut reader, limits).map(Value::Collection)?
    } else {
        read_object(&mut reader, limits)?
    };
    if reader.is_empty() { Ok(value) } else { Err(Malformed::Value) }
}

/// Appends `value`: a byte for its kind, then its payload.
pub fn write_object(out: &mut Vec<u8>, value: ValueRef<'_>, compression: Compression) {
    out.push(kind_of(value));
    write_payload(out, value, compression);
}

fn kind_of(value: ValueRef<'_>) -> u8 {
    match value {
        ValueRef::String(_) => kind::STRING,
        ValueRef::Hash(hash) => hash::kind_of(hash),
        ValueRef::Set(set) => set::kind_of(set),
        ValueRef::List(_) => kind::LIST_QUICKLIST_2,
        ValueRef::SortedSet(set) => sorted_set::kind_of(set),
        ValueRef::Stream(stream) => stream::kind_of(stream),
        ValueRef::Json(_) | ValueRef::Sketch(_) | ValueRef::Vectors(_) => kind::MODULE_2,
    }
}

/// Number of bytes of `value`'s payload, what `DEBUG OBJECT` calls `serializedlength`.
pub fn payload_bytes(value: ValueRef<'_>) -> usize {
    let mut out = Vec::new();
    write_payload(&mut out, value, Compression::Lzf);
    out.len()
}

/// Reads what [`write_object`] has written, and leaves `reader` behind it.
///
/// # Errors
/// [`Malformed::Value`] if there is no such value; `reader` is then anywhere.
pub fn read_object(reader: &mut Reader<'_>, limits: &Limits) -> Result<Value, Malformed> {
    match reader.byte()? {
        kind::STRING => Ok(Value::String(match read_string(reader)? {
            Text::Integer(integer) => StringValue::integer(integer),
            Text::Bytes(bytes) => StringValue::bytes(bytes.into_owned()),
        })),
        kind @ (kind::HASH
        | kind::HASH_ZIPMAP
        | kind::HASH_ZIPLIST
        | kind::HASH_LISTPACK
        | kind::HASH_METADATA_CANDIDATE
        | kind::HASH_LISTPACK_EX_CANDIDATE
        | kind::HASH_METADATA
        | kind::HASH_LISTPACK_EX) => hash::read(kind, reader, limits).map(Value::Collection),
        kind @ (kind::SET | kind::SET_INTSET | kind::SET_LISTPACK) => {
            set::read(kind, reader, limits).map(Value::Collection)
        }
        kind @ (kind::LIST | kind::LIST_ZIPLIST | kind::LIST_QUICKLIST | kind::LIST_QUICKLIST_2) => {
            list::read(kind, reader).map(Value::Collection)
        }
        kind @ (kind::SORTED_SET | kind::SORTED_SET_2 | kind::SORTED_SET_ZIPLIST | kind::SORTED_SET_LISTPACK) => {
            sorted_set::read(kind, reader, limits).map(Value::Collection)
        }
        kind @ (kind::STREAM_LISTPACKS
        | kind::STREAM_LISTPACKS_2
        | kind::STREAM_LISTPACKS_3
        | kind::STREAM_LISTPACKS_4
        | kind::STREAM_LISTPACKS_5) => stream::read(kind, reader).map(Value::Collection),
        kind::MODULE_2 => module::read(reader).map(Value::Collection),
        _ => Err(Malformed::Value),
    }
}

fn write_payload(out: &mut Vec<u8>, value: ValueRef<'_>, compression: Compression) {
    match value {
        ValueRef::String(Str::Integer(integer)) => write_integer(out, integer),
        ValueRef::String(Str::Bytes(bytes)) => write_string(out, bytes, compression),
        ValueRef::Hash(hash) => hash::write(out, hash, compression),
        ValueRef::Set(set) => set::write(out, set, compression),
        ValueRef::List(list) => list::write(out, list, compression),
        ValueRef::SortedSet(set) => sorted_set::write(out, set, compression),
        ValueRef::Stream(stream) => stream::write(stream::kind_of(stream), out, stream, compression),
        ValueRef::Json(document) => module::write_json(out, document, compression),
        ValueRef::Sketch(outline) => sketch::write(out, outline, compression),
        ValueRef::Vectors(space) => vector::write(out, space, compression),
    }
}

/// A number in the shortest of the forms that a string may have.
fn write_integer(out: &mut Vec<u8>, integer: i64) {
    if !write_short_integer(out, integer) {
        let text = integer.to_string();
        write_length(out, text.len() as u64);
        out.extend_from_slice(text.as_bytes());
    }
}

/// Appends an integer of up to 32 bits; false, and nothing appended, if it is a larger one.
fn write_short_integer(out: &mut Vec<u8>, integer: i64) -> bool {
    if let Ok(short) = i8::try_from(integer) {
        out.push(0xC0 | special::INT8);
        out.extend_from_slice(&short.to_le_bytes());
    } else if let Ok(short) = i16::try_from(integer) {
        out.push(0xC0 | special::INT16);
        out.extend_from_slice(&short.to_le_bytes());
    } else if let Ok(short) = i32::try_from(integer) {
        out.push(0xC0 | special::INT32);
        out.extend_from_slice(&short.to_le_bytes());
    } else {
        return false;
    }
    true
}

/// A string: as a number if it is one, compressed if that helps, else as it is.
fn write_string(out: &mut Vec<u8>, bytes: &[u8], compression: Compression) {
    if bytes.len() <= INTEGER_TEXT_BYTES_MAX
        && canonical_integer(bytes).is_some_and(|integer| write_short_integer(out, integer))
    {
        return;
    }
    if compression == Compression::Lzf && bytes.len() > INCOMPRESSIBLE_BYTES_MAX {
        let mut compressed = Vec::with_capacity(bytes.len());
        if lzf::compress(bytes, &mut compressed, bytes.len() - SAVING_BYTES_MIN).is_some() {
            out.push(0xC0 | special::LZF);
            write_length(out, compressed.len() as u64);
            write_length(out, bytes.len() as u64);
            out.extend_from_slice(&compressed);
            return;
        }
    }
    write_length(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a string, in the shortest of the forms that it may have.
pub fn write_text(out: &mut Vec<u8>, bytes: &[u8]) {
    write_string(out, bytes, Compression::Lzf);
}

/// The reader that a file is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Redis from 7.0 on, and Valkey: what DUMP gives.
    Listpacks,
    /// Redis from 7.4 on, which has deadlines of fields of hashes besides.
    ExpiringFields,
    /// Valkey from 9.0 on, which has them in a form of its own.
    Valkey,
    /// Redis from 5.0 on, which knows no listpacks but those of streams: versions 9 and later.
    Plain,
}

/// Appends a key as it stands in a file: a byte for its kind, its name, its value. Deadlines of fields are left out if
/// the dialect has none. What streams remember of producers is left out, and a consumer without a name has what was
/// released: no version that is written has these.
pub fn write_named(out: &mut Vec<u8>, name: &[u8], value: ValueRef<'_>, dialect: Dialect) {
    out.push(kind_for(value, dialect));
    write_text(out, name);
    write_payload_for(out, value, dialect);
}

/// The kind of streams in a dialect: none has what came later.
fn kind_of_streams(dialect: Dialect) -> u8 {
    match dialect {
        Dialect::Listpacks | Dialect::ExpiringFields | Dialect::Valkey => kind::STREAM_LISTPACKS_2,
        Dialect::Plain => kind::STREAM_LISTPACKS,
    }
}

/// True for a hash that has deadlines in a dialect with a form of its own for these.
fn is_of_valkey(value: ValueRef<'_>, dialect: Dialect) -> bool {
    dialect == Dialect::Valkey && matches!(value, ValueRef::Hash(hash) if hash.next_deadline() != NEVER)
}

/// True for a hash that has deadlines which this dialect cannot tell, or a value of which it knows no listpack.
fn is_plain(value: ValueRef<'_>, dialect: Dialect) -> bool {
    match value {
        ValueRef::Hash(hash) if hash.next_deadline() != NEVER => dialect != Dialect::ExpiringFields,
        _ => dialect == Dialect::Plain,
    }
}

fn kind_for(value: ValueRef<'_>, dialect: Dialect) -> u8 {
    match value {
        ValueRef::Stream(_) => kind_of_streams(dialect),
        value if is_of_valkey(value, dialect) => kind::HASH_OF_VALKEY,
        value if !is_plain(value, dialect) => kind_of(value),
        ValueRef::Hash(_) => kind::HASH,
        ValueRef::List(_) => kind::LIST,
        ValueRef::SortedSet(_) => kind::SORTED_SET_2,
        other => kind_of(other),
    }
}

fn write_payload_for(out: &mut Vec<u8>, value: ValueRef<'_>, dialect: Dialect) {
    match value {
        ValueRef::Stream(stream) => stream::write(kind_of_streams(dialect), out, stream, Compression::Lzf),
        ValueRef::Hash(hash) if is_of_valkey(value, dialect) => hash::write_for_valkey(out, hash, Compression::Lzf),
        value if !is_plain(value, dialect) => write_payload(out, value, Compression::Lzf),
        ValueRef::Hash(hash) => hash::write_plain(out, hash, Compression::Lzf),
        ValueRef::List(list) => list::write_plain(out, list, Compression::Lzf),
        ValueRef::SortedSet(set) => sorted_set::write_plain(out, set, Compression::Lzf),
        other => write_payload(out, other, Compression::Lzf),
    }
}

/// A length, in one of four forms:
///
/// ```text
/// 00llllll                     below 2⁶
/// 01llllll llllllll            below 2¹⁴
/// 10000000 u32, big-endian     below 2³²
/// 10000001 u64, big-endian
/// ```
pub fn write_length(out: &mut Vec<u8>, length: u64) {
    match length {
        0..0x40 => out.push(length as u8),
        0x40..0x4000 => out.extend_from_slice(&(length as u16 | 0x4000).to_be_bytes()),
        _ => match u32::try_from(length) {
            Ok(length) => {
                out.push(0x80);
                out.extend_from_slice(&length.to_be_bytes());
            }
            Err(_) => {
                out.push(0x81);
                out.extend_from_slice(&length.to_be_bytes());
            }
        },
    }
}

/// A string as it was found.
enum Text<'a> {
    Integer(i64),
    Bytes(Cow<'a, [u8]>),
}

fn read_string<'a>(reader: &mut Reader<'a>) -> Result<Text<'a>, Malformed> {
    let head = reader.byte()?;
    if head >> 6 != 0b11 {
        let length = reader.length_from(head)?;
        return Ok(Text::Bytes(Cow::Borrowed(reader.take(length)?)));
    }
    match head & 0x3F {
        special::INT8 => Ok(Text::Integer(i64::from(i8::from_le_bytes(reader.array()?)))),
        special::INT16 => Ok(Text::Integer(i64::from(i16::from_le_bytes(reader.array()?)))),
        special::INT32 => Ok(Text::Integer(i64::from(i32::from_le_bytes(reader.array()?)))),
        special::LZF => {
            let compressed_length = reader.length()?;
            let length = reader.length()?;
            let compressed = reader.take(compressed_length)?;
            let bytes = usize::try_from(length)
                .ok()
                .filter(|_| length <= DECOMPRESSED_BYTES_MAX)
                .and_then(|length| lzf::decompress(compressed, length))
                .ok_or(Malformed::Value)?;
            Ok(Text::Bytes(Cow::Owned(bytes)))
        }
        _ => Err(Malformed::Value),
    }
}

impl<'a> Text<'a> {
    fn into_bytes(self) -> Cow<'a, [u8]> {
        match self {
            Self::Integer(number) => Cow::Owned(ItoaBuffer::new().format(number).to_vec()),
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// The next string, as text.
///
/// # Errors
/// [`Malformed::Value`] if there is none; `reader` is then anywhere.
pub fn read_text<'a>(reader: &mut Reader<'a>) -> Result<Cow<'a, [u8]>, Malformed> {
    read_string(reader).map(Text::into_bytes)
}

/// True if no two are alike.
fn are_distinct<T: Ord>(mut texts: Vec<T>) -> bool {
    texts.sort_unstable();
    texts.windows(2).all(|pair| pair[0] != pair[1])
}

/// Bytes still to be read.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `bytes` from the beginning.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// True if everything has been read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// What has not been read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(length).map_err(|_| Malformed::Value)?;
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Malformed::Value)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Malformed::Value)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        self.array().map(|[byte]| byte)
    }

    fn length(&mut self) -> Result<u64, Malformed> {
        let head = self.byte()?;
        self.length_from(head)
    }

    fn length_from(&mut self, head: u8) -> Result<u64, Malformed> {
        match head {
            0..0x40 => Ok(u64::from(head)),
            0x40..0x80 => Ok(u64::from(u16::from_be_bytes([head & 0x3F, self.byte()?]))),
            0x80 => Ok(u64::from(u32::from_be_bytes(self.array()?))),
            0x81 => Ok(u64::from_be_bytes(self.array()?)),
            _ => Err(Malformed::Value),
        }
    }
}

#[cfg(test)]
mod tests {
    use stdx::Prng;

    use super::*;

    /// What DUMP of Redis 7.0.15 answered, in hexadecimal, after SET of each value.
    const GOLDEN: &[(&str, &str)] = &[
        ("bar", "00036261720a00e6be4960ee66fd17"),
        ("", "00000a005d9b5c400f7fa2da"),
        ("0", "00c0000a009840a778f8500308"),
        ("-1", "00c0ff0a000c937e2485089dc5"),
        ("127", "00c07f0a000db5eb315254c514"),
        ("-128", "00c0800a009966326d2f0c5bd9"),
        ("128", "00c180000a00eb7ab3b510cf4b65"),
        ("-32768", "00c100800a00b540064753bb1ace"),
        ("32768", "00c2008000000a0045d82eedd5bda910"),
        ("2147483647", "00c2ffffff7f0a002c74e59ee02eada1"),
        ("-2147483648", "00c2000000800a00c74f873e33558187"),
        ("2147483648", "000a323134373438333634380a00e7b129a34c1d76ee"),
        ("9223372036854775807", "0013393232333337323033363835343737353830370a003a657e9481e85f22"),
        ("012", "00033031320a008f5463e9547eeb0c"),
        ("-0", "00022d300a00d5411fd9d6d050cc"),
        ("aaaaaaaaaaaaaaaaaaaa", "001461616161616161616161616161616161616161610a0083b46b5e1b11acf1"),
        ("aaaaaaaaaaaaaaaaaaaaa", "00c30615016161e00a000a00fd0cb36807413f68"),
        ("ababababababababababx", "00c30a1502616261e007010162780a00f71e4c224cc43ffa"),
        ("abcabcabcabcabcabcabc", "00c30b150361626361e006020162630a000201710c8eebf946"),
        (
            "the quick brown fox jumps over the lazy dog; the quick brown fox jumps again",
            "00c338404c1f74686520717569636b2062726f776e20666f78206a756d7073206f7665722074201e086c617a7920646f673b600d\
             e00d2c04616761696e0a00423ce467cc5c36b1",
        ),
        (
            "!#%')+-/13579;=?ACEGIKMOQSUWY[]_acegikmoqsuwy{}\"$&(*,.02468:<>@B",
            "00404021232527292b2d2f31333537393b3d3f41434547494b4d4f51535557595b5d5f61636567696b6d6f71737577797b7d2224\
             26282a2c2e30323436383a3c3e40420a00ec450cf07096e915",
        ),
    ];

    fn from_hexadecimal(text: &str) -> Vec<u8> {
        text.as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("two digits"))
            .collect()
    }

    fn string(bytes: &[u8]) -> Value {
        Value::String(StringValue::bytes(bytes.to_vec()))
    }

    fn with_footer(mut value: Vec<u8>, version: u16) -> Vec<u8> {
        value.extend_from_slice(&version.to_le_bytes());
        let checksum = crc64(0, &value);
        value.extend_from_slice(&checksum.to_le_bytes());
        value
    }

    #[test]
    fn dumps_have_the_bytes_that_redis_gave_them() {
        for (value, golden) in GOLDEN {
            let golden = from_hexadecimal(golden);
            assert_eq!(dump(string(value.as_bytes()).as_ref()), golden, "{value}");
            assert_eq!(restore(&golden, &Limits::default()), Ok(string(value.as_bytes())));
        }
    }

    #[test]
    fn a_long_text_is_compressed_as_redis_does() {
        let line = |number: u64| format!("line {number} of a longer text, {}\n", number * number);
        let value: String = (0..2_000).map(line).collect();
        let dumped = dump(string(value.as_bytes()).as_ref());
        assert_eq!((value.len(), dumped.len()), (69_427, 19_055));
        assert_eq!(dumped[19_055 - 8..], from_hexadecimal("1477c25f6c2f7ef9"));
        assert_eq!(restore(&dumped, &Limits::default()), Ok(string(value.as_bytes())));
    }

    #[test]
    fn every_string_comes_back() {
        let mut prng = Prng::new(10);
        for round in 0..5_000u64 {
            let magnitude = prng.below(15);
            let length = prng.below(1 << magnitude) as usize;
            let alphabet = [b"0123456789-".as_slice(), b"ab", b"\0\x01\xFEabcdefgh"][round as usize % 3];
            let bytes: Vec<u8> = (0..length).map(|_| alphabet[prng.below(alphabet.len() as u64) as usize]).collect();
            let value = string(&bytes);
            assert_eq!(restore(&dump(value.as_ref()), &Limits::default()).as_ref(), Ok(&value));

            let compression = [Compression::None, Compression::Lzf][round as usize % 2];
            let mut out = b"before".to_vec();
            write_object(&mut out, value.as_ref(), compression);
            out.extend_from_slice(b"behind");
            let mut reader = Reader::new(&out[6..]);
            assert_eq!(read_object(&mut reader, &Limits::default()), Ok(value));
            assert_eq!(reader.rest(), b"behind");
        }
    }

    #[test]
    fn integers_of_every_width_come_back() {
        for power in 0..63 {
            for integer in [-(1i64 << power) - 1, -(1 << power), (1 << power) - 1, 1 << power, i64::MAX, i64::MIN] {
                let mut out = Vec::new();
                write_object(&mut out, ValueRef::String(Str::Integer(integer)), Compression::Lzf);
                let value = Value::String(StringValue::integer(integer));
                assert_eq!(read_object(&mut Reader::new(&out), &Limits::default()), Ok(value));
                assert_eq!(payload_bytes(ValueRef::String(Str::Integer(integer))), out.len() - 1);
            }
        }
    }

    #[test]
    fn lengths_take_the_shortest_form_and_come_back() {
        for (length, bytes) in [
            (0, 1),
            (63, 1),
            (64, 2),
            (16_383, 2),
            (16_384, 5),
            (u64::from(u32::MAX), 5),
            (u64::from(u32::MAX) + 1, 9),
            (u64::MAX, 9),
        ] {
            let mut out = Vec::new();
            write_length(&mut out, length);
            assert_eq!(out.len(), bytes, "{length}");
            let mut reader = Reader::new(&out);
            assert_eq!(reader.length(), Ok(length));
            assert!(reader.is_empty());
        }
    }

    #[test]
    fn what_is_no_value_is_refused_for_the_right_reason() {
        use Malformed::{Footer, Value};
        let bar = b"\x00\x03bar".to_vec();
        let mut flipped = with_footer(bar.clone(), 10);
        flipped[2] ^= 1;
        for (bytes, expected, why) in [
            (Vec::new(), Footer, "nothing"),
            (b"...".to_vec(), Footer, "no room for a footer"),
            (flipped, Footer, "a flipped bit"),
            (with_footer(bar.clone(), 16), Footer, "a version from the future"),
            (with_footer(bar.clone(), 81), Footer, "a version of Valkey from the future"),
            (with_footer(Vec::new(), 10), Value, "a footer alone"),
            (with_footer(b"\x00".to_vec(), 10), Value, "a kind alone"),
            (with_footer(b"\xFE\x03bar".to_vec(), 10), Value, "an unknown kind"),
            (with_footer(b"\x00\x04bar".to_vec(), 10), Value, "a length that reaches into the footer"),
            (with_footer(b"\x00\x03barb".to_vec(), 10), Value, "more than one value"),
            (with_footer(b"\x00\x82\x03bar".to_vec(), 10), Value, "an unknown form of length"),
            (with_footer(b"\x00\x81\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF".to_vec(), 10), Value, "an absurd length"),
            (with_footer(b"\x00\xC4\x01".to_vec(), 10), Value, "an unknown special form"),
            (with_footer(b"\x00\xC2\x01".to_vec(), 10), Value, "an integer cut short"),
            (with_footer(b"\x00\xC3\x02\x80\x20\x00\x00\x01\x00a".to_vec(), 10), Value, "a bomb that is a dud"),
        ] {
            assert_eq!(restore(&bytes, &Limits::default()), Err(expected), "{why}");
        }
        for version in [1, 6, 9, 11, 12, 15, 80] {
            let dumped = with_footer(bar.clone(), version);
            assert!(restore(&dumped, &Limits::default()).is_ok(), "all versions dump strings alike: {version}");
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic() {
        let mut prng = Prng::new(11);
        let mut accepted = 0;
        for _ in 0..30_000 {
            let (_, golden) = GOLDEN[prng.below(GOLDEN.len() as u64) as usize];
            let mut bytes = from_hexadecimal(golden);
            bytes.truncate(bytes.len() - FOOTER_BYTES);
            for _ in 0..prng.below(4) {
                let at = prng.below(bytes.len() as u64) as usize;
                match prng.below(3) {
                    0 => bytes[at] = prng.draw() as u8,
                    1 => bytes.truncate(at + 1),
                    _ => bytes.insert(at, prng.draw() as u8),
                }
            }
            accepted += usize::from(restore(&with_footer(bytes, 10), &Limits::default()).is_ok());
        }
        assert!((1..30_000).contains(&accepted), "{accepted}");
    }
}
