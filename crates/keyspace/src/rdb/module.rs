//! Values of modules. Of those there are, RedisJSON's, RedisBloom's and Redis's vector sets are read and written.
//!
//! ```text
//! kind 7, id of the module's type and version length, items: 1 signed length, 2 unsigned length, 3 f32, 4 f64,
//! 5 string; at the end 0
//! ```
//!
//! The id holds nine letters of six bits each and, in its low ten bits, the version of what follows.
//!
//! RedisJSON has written documents in three ways of a known form: 0, their values one by one; 2 and 3, their text. What
//! is written here is 3, which all its versions since 2.0 read. 4, of Redis 8.4 on, is the memory of a library, and
//! cannot be read.

use std::borrow::Cow;

use super::{Compression, Malformed, Reader, read_text, sketch, vector, write_length, write_string};
use crate::collection::Tree;
use crate::collection::json::fresh;
use crate::json::limits::DEPTH_MAX;
use crate::json::{Json, Text, parse};
use crate::value::CollectionValue;

pub(super) const END: u64 = 0;
const SIGNED: u64 = 1;
pub(super) const UNSIGNED: u64 = 2;
const DOUBLE: u64 = 4;
const STRING: u64 = 5;

/// The letters of which names of modules' types are made, each by the number for which it stands.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The version of documents that is written.
const JSON_VERSION: u64 = 3;
const JSON_VERSIONS: [u64; 3] = [0, 2, JSON_VERSION];

/// What RedisJSON calls its type.
const JSON_NAME: &str = "ReJSON-RL";

/// The name of a module's type, from its id.
pub fn name_of(id: u64) -> String {
    (0..9).map(|place| char::from(LETTERS[(id >> (58 - 6 * place) & 0x3F) as usize])).collect()
}

/// True if values of the module's type with this id can be read.
pub fn is_known(id: u64) -> bool {
    let (name, version) = (name_of(id), id & 0x3FF);
    name == JSON_NAME && JSON_VERSIONS.contains(&version)
        || id == id_of(vector::NAME, vector::VERSION)
        || sketch::species_of(&name, version).is_some()
}

pub(super) fn id_of(name: &str, version: u64) -> u64 {
    let number = |letter: u8| LETTERS.iter().position(|&other| other == letter).unwrap_or_default() as u64;
    name.bytes().fold(0, |id, letter| id << 6 | number(letter)) << 10 | version
}

pub(super) fn write_json(out: &mut Vec<u8>, document: Tree<'_>, compression: Compression) {
    write_length(out, id_of(JSON_NAME, JSON_VERSION));
    write_string_item(out, &document.text(), compression);
    write_length(out, END);
}

pub(super) fn write_number(out: &mut Vec<u8>, item: u64, number: u64) {
    write_length(out, item);
    write_length(out, number);
}

pub(super) fn write_double(out: &mut Vec<u8>, number: f64) {
    write_length(out, DOUBLE);
    out.extend_from_slice(&number.to_le_bytes());
}

pub(super) fn write_string_item(out: &mut Vec<u8>, bytes: &[u8], compression: Compression) {
    write_length(out, STRING);
    write_string(out, bytes, compression);
}

pub(super) fn read(reader: &mut Reader<'_>) -> Result<CollectionValue, Malformed> {
    let id = reader.length()?;
    if !is_known(id) {
        return Err(Malformed::Value);
    }
    let version = id & 0x3FF;
    let value = match sketch::species_of(&name_of(id), version) {
        Some(species) => sketch::read(species, version, reader)?,
        None if name_of(id) == vector::NAME => vector::read(reader)?,
        None => fresh(read_document(version, reader)?),
    };
    if reader.length()? == END { Ok(value) } else { Err(Malformed::Value) }
}

fn read_document(version: u64, reader: &mut Reader<'_>) -> Result<Json, Malformed> {
    if version == 0 {
        return read_value(reader, DEPTH_MAX);
    }
    let text = read_text_item(reader)?;
    // What once belonged to the index of a search.
    if version == 2 && read_number(reader, UNSIGNED)? > 0 {
        read_text_item(reader)?;
        read_text_item(reader)?;
    }
    parse::parse(text.as_bytes()).map_err(|_| Malformed::Value)
}

/// A document of version 0: a number for its type, then what it holds.
fn read_value(reader: &mut Reader<'_>, depth_left: usize) -> Result<Json, Malformed> {
    let depth_left = depth_left.checked_sub(1).ok_or(Malformed::Value)?;
    let no_value = || Malformed::Value;
    match read_number(reader, UNSIGNED)? {
        0x01 => Ok(Json::Null),
        0x02 => read_text_item(reader).map(Json::String),
        0x04 => {
            let number = read_double(reader)?;
            if number.is_finite() { Ok(Json::Double(number)) } else { Err(Malformed::Value) }
        }
        0x08 => read_signed(reader).map(Json::Integer),
        0x10 => Ok(Json::Bool(read_text_item(reader)?.as_bytes().first().ok_or_else(no_value)? == &b'1')),
        0x20 => {
            let mut entries = Vec::new();
            for _ in 0..read_number(reader, UNSIGNED)? {
                if read_number(reader, UNSIGNED)? != 0x80 {
                    return Err(Malformed::Value);
                }
                entries.push((read_text_item(reader)?, read_value(reader, depth_left)?));
            }
            Ok(Json::object(entries))
        }
        0x40 => {
            let len = read_number(reader, UNSIGNED)?;
            (0..len).map(|_| read_value(reader, depth_left)).collect::<Result<_, _>>().map(Json::array)
        }
        _ => Err(Malformed::Value),
    }
}

fn expect(reader: &mut Reader<'_>, item: u64) -> Result<(), Malformed> {
    if reader.length()? == item { Ok(()) } else { Err(Malformed::Value) }
}

pub(super) fn read_number(reader: &mut Reader<'_>, item: u64) -> Result<u64, Malformed> {
    expect(reader, item)?;
    reader.length()
}

/// A number that may be below zero. Redis has a kind of item for them, and writes them as unsigned ones.
pub(super) fn read_signed(reader: &mut Reader<'_>) -> Result<i64, Malformed> {
    match reader.length()? {
        SIGNED | UNSIGNED => reader.length().map(|number| number as i64),
        _ => Err(Malformed::Value),
    }
}

pub(super) fn read_double(reader: &mut Reader<'_>) -> Result<f64, Malformed> {
    expect(reader, DOUBLE)?;
    Ok(f64::from_le_bytes(reader.array()?))
}

pub(super) fn read_string_item<'a>(reader: &mut Reader<'a>) -> Result<Cow<'a, [u8]>, Malformed> {
    expect(reader, STRING)?;
    read_text(reader)
}

fn read_text_item(reader: &mut Reader<'_>) -> Result<Text, Malformed> {
    let text = read_string_item(reader)?;
    std::str::from_utf8(&text).map(Text::from).map_err(|_| Malformed::Value)
}

#[cfg(test)]
mod tests {
    use super::super::{dump, kind, read_object, restore};
    use super::*;
    use crate::Limits;
    use crate::testing::Harness;
    use crate::value::{Value, ValueRef};

    /// A value of a module: its kind, its id, and items.
    fn value(name: &str, version: u64, items: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = vec![kind::MODULE_2];
        write_length(&mut out, id_of(name, version));
        items(&mut out);
        write_length(&mut out, END);
        out
    }

    fn put_string(out: &mut Vec<u8>, text: &str) {
        write_length(out, STRING);
        write_string(out, text.as_bytes(), Compression::None);
    }

    fn put_number(out: &mut Vec<u8>, item: u64, number: u64) {
        write_length(out, item);
        write_length(out, number);
    }

    fn read_text_of(bytes: &[u8]) -> Option<String> {
        let mut reader = Reader::new(bytes);
        let value = read_object(&mut reader, &Limits::default()).ok().filter(|_| reader.is_empty())?;
        match value.as_ref() {
            ValueRef::Json(document) => Some(String::from_utf8(document.text()).expect("text")),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_of_types_are_in_their_ids() {
        assert_eq!(name_of(id_of(JSON_NAME, 3)), JSON_NAME);
        assert_eq!(name_of(id_of("MBbloom--", 4)), "MBbloom--");
        assert!(is_known(id_of(JSON_NAME, 3)) && !is_known(id_of(JSON_NAME, 4)) && !is_known(id_of("MBbloom--", 5)));
    }

    #[test]
    fn documents_are_read_in_every_form_that_is_known() {
        let text = "{\"a\":[1,-2,2.5,true,null,\"ä\"]}";
        assert_eq!(read_text_of(&value(JSON_NAME, 3, |out| put_string(out, text))).as_deref(), Some(text));
        for indexed in [false, true] {
            let old = value(JSON_NAME, 2, |out| {
                put_string(out, text);
                put_number(out, UNSIGNED, indexed.into());
                if indexed {
                    put_string(out, "index");
                    put_string(out, "path");
                }
            });
            assert_eq!(read_text_of(&old).as_deref(), Some(text));
        }
        let oldest = value(JSON_NAME, 0, |out| {
            put_number(out, UNSIGNED, 0x20);
            put_number(out, UNSIGNED, 1);
            put_number(out, UNSIGNED, 0x80);
            put_string(out, "a");
            put_number(out, UNSIGNED, 0x40);
            put_number(out, UNSIGNED, 6);
            put_number(out, UNSIGNED, 0x08);
            put_number(out, SIGNED, 1);
            put_number(out, UNSIGNED, 0x08);
            put_number(out, UNSIGNED, -2i64 as u64);
            put_number(out, UNSIGNED, 0x04);
            write_length(out, DOUBLE);
            out.extend_from_slice(&2.5f64.to_le_bytes());
            put_number(out, UNSIGNED, 0x10);
            put_string(out, "1");
            put_number(out, UNSIGNED, 0x01);
            put_number(out, UNSIGNED, 0x02);
            put_string(out, "ä");
        });
        assert_eq!(read_text_of(&oldest).as_deref(), Some(text));
        for bytes in [
            value(JSON_NAME, 4, |out| put_string(out, text)),
            value("MBbloom--", 4, |out| put_number(out, UNSIGNED, 1)),
            value(JSON_NAME, 3, |out| put_string(out, "{")),
            value(JSON_NAME, 3, |out| put_string(out, &"[".repeat(100_000))),
            value(JSON_NAME, 0, |out| {
                (0..100_000).for_each(|_| {
                    put_number(out, UNSIGNED, 0x40);
                    put_number(out, UNSIGNED, 1);
                });
            }),
        ] {
            assert_eq!(read_text_of(&bytes), None);
        }
        for end in 0..oldest.len() {
            assert_eq!(read_text_of(&oldest[..end]), None);
        }
    }

    #[test]
    fn documents_of_every_size_come_back_from_their_dumps() {
        let mut harness = Harness::new();
        for len in [0, 10, 1_000, 100_000] {
            let text = format!("{{\"a\":[{}0],\"b\":1.5}}", "1,".repeat(len));
            harness.run(&format!("JSON.SET k $ {text}"));
            let moment = crate::Moment::at(harness.now, 0);
            let view = harness.keyspace.view(0, moment);
            let dumped = dump(view.entry(b"k").expect("it is there").value());
            let Ok(Value::Collection(restored)) = restore(&dumped, &Limits::default()) else { panic!("a document") };
            let restored = Value::Collection(restored);
            let ValueRef::Json(document) = restored.as_ref() else { panic!("a document") };
            assert_eq!(String::from_utf8(document.text()).expect("text"), text);
            // What was made by one command is kept as what was restored.
            let kept = view.entry(b"k").expect("it is there");
            assert_eq!(kept.value(), restored.as_ref());
        }
    }
}
