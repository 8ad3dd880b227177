//! Documents as bytes: their values one behind the other, each before what it holds. So a small document is packed, and
//! so a large one is written to a checkpoint, a part at a time.
//!
//! ```text
//! value = [name item, if an object holds it] kind u8, and
//!   0 null, 1 false, 2 true    nothing
//!   3 integer                  zigzag varint
//!   4 unsigned                 varint
//!   5 double                   f64, little-endian
//!   6 string                   item
//!   7 array, 8 object          number of values varint; they follow
//! ```
//!
//! An item is its length as a varint and its bytes, in UTF-8. The numbers are part of records and checkpoints.

use super::limits::DEPTH_MAX;
use super::{Json, Text};
use crate::collection::packed::{self, Items};

const NULL: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const INTEGER: u8 = 3;
const UNSIGNED: u8 = 4;
const DOUBLE: u8 = 5;
const STRING: u8 = 6;
const ARRAY: u8 = 7;
const OBJECT: u8 = 8;

/// Memory is set aside ahead for up to this many values on the word of a count.
const RESERVED_MAX: usize = 1024;

/// The bytes of a document.
pub(crate) fn encode(document: &Json) -> Vec<u8> {
    let mut out = Vec::new();
    write_from(document, 0, &mut out, usize::MAX);
    out
}

/// The document that these bytes are; `None` if they are none.
pub(crate) fn decode(bytes: &[u8]) -> Option<Json> {
    let mut items = Items::new(bytes);
    let mut maker = Maker::default();
    let document = loop {
        if let Some(document) = maker.read_one(&mut items)? {
            break document;
        }
    };
    items.is_done().then_some(document)
}

/// Appends values of a document from the `from`th on until `out` reaches the length `end`, at least one if there is
/// one, and answers which comes next.
pub(crate) fn write_from(document: &Json, from: usize, out: &mut Vec<u8>, end: usize) -> usize {
    let mut walk = Walk { skip: from, written: 0, end, out };
    walk.write(None, document);
    from + walk.written
}

struct Walk<'o> {
    /// Values to pass over.
    skip: usize,
    written: usize,
    end: usize,
    out: &'o mut Vec<u8>,
}

impl Walk<'_> {
    /// False if there is no room for more.
    fn write(&mut self, name: Option<&Text>, value: &Json) -> bool {
        let nodes = value.weight().nodes;
        if self.skip >= nodes {
            self.skip -= nodes;
            return true;
        }
        if self.skip > 0 {
            self.skip -= 1;
        } else {
            if self.written > 0 && self.out.len() >= self.end {
                return false;
            }
            if let Some(name) = name {
                packed::put(self.out, name.as_bytes());
            }
            self.write_head(value);
            self.written += 1;
        }
        match value {
            Json::Array(array) => {
                let passed = self.pass_scalars(nodes - 1, array.len());
                array.items[passed..].iter().all(|item| self.write(None, item))
            }
            Json::Object(object) => {
                let passed = self.pass_scalars(nodes - 1, object.len());
                object.entries[passed..].iter().all(|(name, value)| self.write(Some(name), value))
            }
            _ => true,
        }
    }

    /// Where nothing but scalars follow, those to be passed over need not be looked at.
    fn pass_scalars(&mut self, nodes: usize, len: usize) -> usize {
        let passed = if nodes == len { self.skip.min(len) } else { 0 };
        self.skip -= passed;
        passed
    }

    fn write_head(&mut self, value: &Json) {
        let out = &mut *self.out;
        match value {
            Json::Null => out.push(NULL),
            Json::Bool(false) => out.push(FALSE),
            Json::Bool(true) => out.push(TRUE),
            Json::Integer(number) => {
                out.push(INTEGER);
                packed::put_number(out, (*number << 1 ^ *number >> 63) as u64);
            }
            Json::Unsigned(number) => {
                out.push(UNSIGNED);
                packed::put_number(out, *number);
            }
            Json::Double(number) => {
                out.push(DOUBLE);
                out.extend_from_slice(&number.to_le_bytes());
            }
            Json::String(text) => {
                out.push(STRING);
                packed::put(out, text.as_bytes());
            }
            Json::Array(array) => {
                out.push(ARRAY);
                packed::put_number(out, array.len() as u64);
            }
            Json::Object(object) => {
                out.push(OBJECT);
                packed::put_number(out, object.len() as u64);
            }
        }
    }
}

/// A document that is being read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Maker {
    open: Vec<Open>,
    /// Values that have been read.
    pub(crate) read: usize,
}

/// An array or object of which values are missing.
#[derive(Clone, Debug)]
struct Open {
    /// What it is called in the object that holds it.
    name: Option<Text>,
    values: Values,
    missing: usize,
}

#[derive(Clone, Debug)]
enum Values {
    Array(Vec<Json>),
    Object(Vec<(Text, Json)>),
}

impl Maker {
    /// Reads the next value. The whole document, if it was the last; `None` if it is none.
    pub(crate) fn read_one(&mut self, items: &mut Items<'_>) -> Option<Option<Json>> {
        let mut name = match self.open.last() {
            Some(Open { values: Values::Object(_), .. }) => Some(text(items)?),
            _ => None,
        };
        let mut value = match items.byte()? {
            NULL => Json::Null,
            FALSE => Json::Bool(false),
            TRUE => Json::Bool(true),
            INTEGER => {
                let number = items.number()?;
                Json::Integer((number >> 1) as i64 ^ -((number & 1) as i64))
            }
            UNSIGNED => Json::Unsigned(items.number().filter(|&number| i64::try_from(number).is_err())?),
            DOUBLE => {
                let bytes = items.take(8)?;
                Json::Double(Some(f64::from_le_bytes(bytes.try_into().ok()?)).filter(|number| number.is_finite())?)
            }
            STRING => Json::String(text(items)?),
            kind @ (ARRAY | OBJECT) => {
                if self.open.len() + 1 >= DEPTH_MAX {
                    return None;
                }
                let missing = usize::try_from(items.number()?).ok().filter(|&len| u32::try_from(len).is_ok())?;
                let values = match kind {
                    ARRAY => Values::Array(Vec::with_capacity(missing.min(RESERVED_MAX))),
                    _ => Values::Object(Vec::with_capacity(missing.min(RESERVED_MAX))),
                };
                if missing > 0 {
                    self.open.push(Open { name, values, missing });
                    self.read += 1;
                    return Some(None);
                }
                finish(values)?
            }
            _ => return None,
        };
        self.read += 1;
        loop {
            let Some(Open { values, missing, .. }) = self.open.last_mut() else { return Some(Some(value)) };
            match values {
                Values::Array(items) => items.push(value),
                Values::Object(entries) => entries.push((name.take()?, value)),
            }
            *missing -= 1;
            if *missing > 0 {
                return Some(None);
            }
            let full = self.open.pop().expect("it was just looked at");
            (name, value) = (full.name, finish(full.values)?);
        }
    }
}

/// An array or object with all of its values; names must differ.
fn finish(values: Values) -> Option<Json> {
    match values {
        Values::Array(items) => Some(Json::array(items)),
        Values::Object(entries) => {
            let len = entries.len();
            let object = Json::object(entries);
            (object.as_object()?.len() == len).then_some(object)
        }
    }
}

fn text(items: &mut Items<'_>) -> Option<Text> {
    std::str::from_utf8(items.next()?).ok().map(Text::from)
}
