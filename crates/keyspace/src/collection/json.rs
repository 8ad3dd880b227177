//! Documents of JSON as values of keys: packed while they are small, and then trees that are changed where they lie.
//!
//! A packed one is what [`codec`] writes; anyone who reads it takes it apart, so it is kept small. Both forms hold the
//! same values in the same order, so that nobody can tell them apart by what commands answer, but for memory.

use std::borrow::Cow;

use command::Refusal;

use super::{Cell, Collection, Form, Kind, Large, Shape, packed};
use crate::context::{Edit, View};
use crate::json::limits::PACKED_BYTES_MAX;
use crate::json::{Json, codec};
use crate::value::{CollectionValue, Kept, ValueRef};

/// A document that is no longer packed, or one that is being read.
#[derive(Clone, Debug)]
pub(crate) enum Document {
    Whole(Json),
    Unfinished(codec::Maker),
}

impl Default for Document {
    fn default() -> Self {
        Self::Unfinished(codec::Maker::default())
    }
}

impl Large for Document {
    /// Values, those included that hold others.
    fn len(&self) -> usize {
        match self {
            Self::Whole(document) => document.weight().nodes,
            Self::Unfinished(maker) => maker.read,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Whole(document) => document.weight().bytes,
            Self::Unfinished(_) => 0,
        }
    }

    fn write_part(&self, from: usize, out: &mut Vec<u8>, end: usize) -> usize {
        match self {
            Self::Whole(document) => codec::write_from(document, from, out, end),
            Self::Unfinished(_) => from,
        }
    }

    fn read_one(&mut self, items: &mut packed::Items<'_>) -> Option<()> {
        let Self::Unfinished(maker) = self else { return None };
        if let Some(document) = maker.read_one(items)? {
            *self = Self::Whole(document);
        }
        Some(())
    }
}

impl Document {
    /// The document; null if it has not been read to its end.
    pub(super) fn into_json(self) -> Json {
        match self {
            Self::Whole(document) => document,
            Self::Unfinished(_) => Json::Null,
        }
    }
}

/// A document of JSON, as it is kept.
#[derive(Clone, Copy, Debug)]
pub struct Tree<'a>(Repr<'a>);

#[derive(Clone, Copy, Debug)]
enum Repr<'a> {
    Packed(&'a [u8]),
    Large(&'a Document),
}

impl<'a> Tree<'a> {
    pub(crate) fn packed(bytes: &'a [u8]) -> Self {
        Self(Repr::Packed(bytes))
    }

    pub(super) fn large(document: &'a Document) -> Self {
        Self(Repr::Large(document))
    }

    /// The document, which of a packed one is made.
    pub(crate) fn json(self) -> Cow<'a, Json> {
        match self.0 {
            Repr::Packed(bytes) => Cow::Owned(codec::decode(bytes).expect("only documents are packed")),
            Repr::Large(Document::Whole(document)) => Cow::Borrowed(document),
            Repr::Large(Document::Unfinished(_)) => unreachable!("what is stored has been read to its end"),
        }
    }

    /// The document's text, as JSON.GET answers it.
    pub fn text(self) -> Vec<u8> {
        self.json().print_plain()
    }
}

/// Documents are equal if they have the same values in the same order and are kept in the same way.
impl PartialEq for Tree<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self.0, other.0) {
            (Repr::Packed(bytes), Repr::Packed(other)) => bytes == other,
            (Repr::Large(_), Repr::Large(_)) => codec::encode(&self.json()) == codec::encode(&other.json()),
            _ => false,
        }
    }
}

impl Eq for Tree<'_> {}

pub(super) fn is_packed(bytes: &[u8]) -> bool {
    codec::decode(bytes).is_some()
}

/// A document as it is kept when it is new.
pub(crate) fn fresh(document: Json) -> CollectionValue {
    CollectionValue(match pack(&document) {
        Some(bytes) => Kept::Packed(Form::Json, bytes),
        None => Kept::Large(Box::new(Collection::Json(Document::Whole(document)))),
    })
}

/// The document packed, if it is small enough.
fn pack(document: &Json) -> Option<Vec<u8>> {
    // Each value is at least a byte.
    if document.weight().nodes > PACKED_BYTES_MAX {
        return None;
    }
    let mut bytes = Vec::new();
    let end = codec::write_from(document, 0, &mut bytes, PACKED_BYTES_MAX + 1);
    (end == document.weight().nodes && bytes.len() <= PACKED_BYTES_MAX).then_some(bytes)
}

impl<'a> View<'a> {
    /// The document under a key, if the key exists. Counts as a use.
    ///
    /// # Errors
    /// If the value is no document.
    pub(crate) fn json(&self, key: &[u8]) -> Result<Option<Cow<'a, Json>>, Refusal> {
        match self.entry(key).map(|entry| entry.value()) {
            None => Ok(None),
            Some(ValueRef::Json(tree)) => Ok(Some(tree.json())),
            Some(_) => Err(Refusal::NO_DOCUMENT),
        }
    }
}

impl Edit<'_> {
    /// Stores a document under a key that has none or another one; the deadline stays.
    ///
    /// # Errors
    /// If the value is no document.
    pub(crate) fn set_json(&mut self, key: &[u8], document: Json) -> Result<(), Refusal> {
        self.modify(key, Kind::Json, |cell| match pack(&document) {
            Some(bytes) => {
                let old = take_large(cell);
                cell.repack(Form::Json, &bytes);
                old.into_iter().for_each(|old| cell.free_later(Collection::Json(Document::Whole(old))));
            }
            None => match whole_mut(cell) {
                Some(kept) => {
                    let old = std::mem::replace(kept, document);
                    cell.free_later(Collection::Json(Document::Whole(old)));
                }
                None => cell.grow_into(Collection::Json(Document::Whole(document))),
            },
        })
    }

    /// Changes the document under a key. What `change` leaves in the list that it is given is freed in steps.
    ///
    /// # Errors
    /// If the value is no document.
    pub(crate) fn change_json<R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut Json, &mut Vec<Json>) -> R,
    ) -> Result<R, Refusal> {
        self.modify(key, Kind::Json, |cell| {
            let mut removed = Vec::new();
            let result = match whole_mut(cell) {
                Some(document) => change(document, &mut removed),
                None => {
                    let Shape::Packed(_, bytes) = cell.shape() else { unreachable!("what is not large is packed") };
                    let mut document = Tree::packed(bytes).json().into_owned();
                    let result = change(&mut document, &mut removed);
                    match pack(&document) {
                        Some(bytes) => cell.repack(Form::Json, &bytes),
                        None => cell.grow_into(Collection::Json(Document::Whole(document))),
                    }
                    result
                }
            };
            removed.into_iter().for_each(|part| cell.free_later(Collection::Json(Document::Whole(part))));
            result
        })
    }
}

fn whole_mut<'c>(cell: &'c mut Cell<'_>) -> Option<&'c mut Json> {
    match cell.large_mut() {
        Some(Collection::Json(Document::Whole(document))) => Some(document),
        _ => None,
    }
}

/// Takes a large document out; what is left must be replaced.
fn take_large(cell: &mut Cell<'_>) -> Option<Json> {
    whole_mut(cell).map(|document| std::mem::replace(document, Json::Null))
}
