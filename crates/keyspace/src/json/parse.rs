//! Text to values.

use std::fmt;

use command::Refusal;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::limits::DOCUMENT_BYTES_MAX;
use super::{Json, Text};

/// The value that a text is.
///
/// # Errors
/// What is wrong and where: also that arrays and objects lie too deep within each other, or that the document would
/// take too much memory.
pub(crate) fn parse(text: &[u8]) -> Result<Json, Refusal> {
    let text = utf8(text)?;
    let value: Json = serde_json::from_str(text).map_err(|error| Refusal::new(format!("ERR {error}")))?;
    if value.bytes() > DOCUMENT_BYTES_MAX { Err(too_large()) } else { Ok(value) }
}

/// A word of a request as text.
///
/// # Errors
/// If it is none in UTF-8.
pub(crate) fn utf8(word: &[u8]) -> Result<&str, Refusal> {
    std::str::from_utf8(word).map_err(|_| Refusal::new("ERR Couldn't parse as UTF-8 string"))
}

/// The document would be larger than documents may be.
pub(crate) fn too_large() -> Refusal {
    Refusal::new("ERR JSON document exceeds maximum allowed size")
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Builder)
    }
}

struct Builder;

impl<'de> Visitor<'de> for Builder {
    type Value = Json;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Json, E> {
        Ok(Json::Integer(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Json, E> {
        Ok(i64::try_from(number).map_or(Json::Unsigned(number), Json::Integer))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Json, E> {
        Ok(Json::Double(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        items.shrink_to_fit();
        Ok(Json::array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut entries = Vec::new();
        while let Some(Name(name)) = access.next_key()? {
            entries.push((name, access.next_value()?));
        }
        entries.shrink_to_fit();
        Ok(Json::object(entries))
    }
}

struct Name(Text);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfName;
        impl Visitor<'_> for OfName {
            type Value = Name;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a name")
            }

            fn visit_str<E>(self, text: &str) -> Result<Name, E> {
                Ok(Name(Text::from(text)))
            }
        }
        deserializer.deserialize_str(OfName)
    }
}
