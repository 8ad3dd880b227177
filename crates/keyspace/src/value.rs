//! What a key can hold.

use std::sync::Arc;

use resp::Writer;

use crate::collection::{self, Collection, Form, Hash, List, Outline, Set, SortedSet, Space, Stream, Tree};

/// A string as it lies in the keyspace: Redis keeps canonical integers as numbers, and so do we.
#[derive(Clone, Copy, Debug)]
pub enum Str<'a> {
    /// The decimal text of this number.
    Integer(i64),
    /// These bytes.
    Bytes(&'a [u8]),
}

impl<'a> Str<'a> {
    /// Length of the text in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Integer(number) => ItoaBuffer::new().format(*number).len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    /// True if the text is empty.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Bytes([]))
    }

    /// The text. `buffer` is where an integer's digits go.
    pub fn to_bytes<'b>(&self, buffer: &'b mut ItoaBuffer) -> &'b [u8]
    where
        'a: 'b,
    {
        match *self {
            Self::Integer(number) => buffer.format(number),
            Self::Bytes(bytes) => bytes,
        }
    }

    /// The text, owned.
    pub fn to_vec(&self) -> Vec<u8> {
        self.to_bytes(&mut ItoaBuffer::new()).to_vec()
    }

    /// Writes the text as a bulk reply.
    #[inline]
    pub fn write_bulk(&self, writer: &mut Writer) {
        match *self {
            Self::Bytes(bytes) => writer.bulk(bytes),
            Self::Integer(number) => writer.bulk(ItoaBuffer::new().format(number)),
        }
    }
}

/// Two strings are equal if their texts are, whichever way they are kept.
impl PartialEq for Str<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.to_bytes(&mut ItoaBuffer::new()) == other.to_bytes(&mut ItoaBuffer::new())
    }
}

impl Eq for Str<'_> {}

/// Room for the digits of any 64-bit integer with its sign.
#[derive(Clone, Copy, Debug)]
pub struct ItoaBuffer([u8; 20]);

impl Default for ItoaBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl ItoaBuffer {
    /// An empty buffer.
    pub const fn new() -> Self {
        Self([0; 20])
    }

    /// The decimal text of `number`.
    pub fn format(&mut self, number: i64) -> &[u8] {
        let mut start = self.0.len();
        let mut rest = number.unsigned_abs();
        loop {
            start -= 1;
            self.0[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            start -= 1;
            self.0[start] = b'-';
        }
        &self.0[start..]
    }
}

/// The number of which `text` is the decimal form, if it is exactly what [`ItoaBuffer::format`] would write: no plus
/// sign, no leading zero, no `-0`.
#[inline]
pub fn canonical_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    // 19 digits are at most 9,999,999,999,999,999,999, which fits 64 bits without a sign.
    let mut magnitude = 0u64;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        magnitude = magnitude * 10 + u64::from(digit - b'0');
    }
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// A value outside the keyspace: being restored, copied, moved or renamed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A string.
    String(StringValue),
    /// Anything that has elements.
    Collection(CollectionValue),
}

impl Value {
    /// The value, borrowed.
    pub fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Self::String(string) => ValueRef::String(string.as_str()),
            Self::Collection(CollectionValue(Kept::Packed(form, bytes))) => collection::packed_ref(*form, bytes),
            Self::Collection(CollectionValue(Kept::Large(collection))) => collection.value(),
        }
    }
}

/// An owned collection. Large ones are shared with the keyspace rather than copied.
#[derive(Clone, Debug)]
pub struct CollectionValue(pub(crate) Kept);

/// A collection in one of its forms.
#[derive(Clone, Debug)]
pub(crate) enum Kept {
    Packed(Form, Vec<u8>),
    Large(Box<Collection>),
}

/// Collections are equal if they have the same elements in the same order, kept in the same way.
impl PartialEq for CollectionValue {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kept::Packed(form, bytes), Kept::Packed(other_form, other_bytes)) => {
                form == other_form && bytes == other_bytes
            }
            (Kept::Large(collection), Kept::Large(other)) => collection.value() == other.value(),
            _ => false,
        }
    }
}

impl Eq for CollectionValue {}

/// An owned string. Large ones are shared with the keyspace rather than copied.
#[derive(Clone, Debug)]
pub struct StringValue(pub(crate) Text);

#[derive(Clone, Debug)]
pub(crate) enum Text {
    Integer(i64),
    Bytes { bytes: Vec<u8>, raw: bool },
    Shared(Arc<Vec<u8>>),
}

impl StringValue {
    /// The decimal text of a number.
    pub fn integer(number: i64) -> Self {
        Self(Text::Integer(number))
    }

    /// These bytes, kept as a number if they are one's canonical text.
    pub fn bytes(bytes: Vec<u8>) -> Self {
        match canonical_integer(&bytes) {
            Some(number) => Self::integer(number),
            None => Self(Text::Bytes { bytes, raw: false }),
        }
    }

    /// The string, borrowed.
    pub fn as_str(&self) -> Str<'_> {
        match &self.0 {
            Text::Integer(number) => Str::Integer(*number),
            Text::Bytes { bytes, .. } => Str::Bytes(bytes),
            Text::Shared(bytes) => Str::Bytes(bytes),
        }
    }
}

impl PartialEq for StringValue {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for StringValue {}

/// A value inside the keyspace, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueRef<'a> {
    /// A string.
    String(Str<'a>),
    /// Fields with values.
    Hash(Hash<'a>),
    /// Members, each once.
    Set(Set<'a>),
    /// Items in a sequence.
    List(List<'a>),
    /// Members, each once and with a score.
    SortedSet(SortedSet<'a>),
    /// Entries by id, and groups that read them.
    Stream(&'a Stream),
    /// A document.
    Json(Tree<'a>),
    /// A Bloom filter or one of its kin.
    Sketch(Outline<'a>),
    /// Elements with vectors, of which similar ones are found.
    Vectors(Space<'a>),
}

impl ValueRef<'_> {
    /// The type's name as TYPE prints it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::String(_) => "string",
            Self::Hash(_) => "hash",
            Self::Set(_) => "set",
            Self::List(_) => "list",
            Self::SortedSet(_) => "zset",
            Self::Stream(_) => "stream",
            Self::Json(_) => "ReJSON-RL",
            Self::Sketch(outline) => outline.type_name(),
            Self::Vectors(_) => "vectorset",
        }
    }

    /// True if the type belongs to a module: a Redis that lacks the module can do nothing with it.
    pub fn is_of_module(&self) -> bool {
        matches!(self, Self::Json(_) | Self::Sketch(_) | Self::Vectors(_))
    }

    /// True if the value is a hash of which fields have deadlines: a Redis before 7.4 knows none.
    pub fn has_expiring_fields(&self) -> bool {
        matches!(self, Self::Hash(hash) if hash.next_deadline() != i64::MAX)
    }

    /// How Redis would call the representation; of a string, what its text alone tells.
    pub(crate) fn encoding(&self) -> &'static str {
        match self {
            Self::String(Str::Integer(_)) => "int",
            Self::String(Str::Bytes(_)) => "raw",
            Self::Hash(hash) => hash.encoding(),
            Self::Set(set) => set.encoding(),
            Self::List(list) => list.encoding(),
            Self::SortedSet(set) => set.encoding(),
            Self::Stream(_) => "stream",
            // What Redis calls all that belongs to modules.
            Self::Json(_) | Self::Sketch(_) | Self::Vectors(_) => "raw",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_text_of_a_number_is_one() {
        for number in [0, 1, -1, 9, 10, -10, i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1] {
            let mut buffer = ItoaBuffer::new();
            assert_eq!(canonical_integer(buffer.format(number)), Some(number));
            assert_eq!(buffer.format(number), number.to_string().as_bytes());
        }
        for text in [
            "",
            "-",
            "-0",
            "00",
            "01",
            "+1",
            " 1",
            "1 ",
            "1.0",
            "1e3",
            "9223372036854775808",
            "-9223372036854775809",
            "99999999999999999999",
            "18446744073709551616",
            "0x1",
        ] {
            assert_eq!(canonical_integer(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn strings_are_equal_by_their_text() {
        assert_eq!(Str::Integer(12), Str::Bytes(b"12"));
        assert_ne!(Str::Integer(12), Str::Bytes(b"012"));
        assert_eq!(StringValue::bytes(b"7".to_vec()), StringValue::integer(7));
    }
}
