//! Sketches as values of keys: packed while they are small, and then changed where they lie.
//!
//! A packed one is what the sketch writes; anyone who reads it takes it apart.

use std::borrow::Cow;

use command::Refusal;

use super::{Cell, Collection, Form, Kind, Large, Shape, packed};
use crate::context::{Edit, View};
use crate::sketch::{Maker, Sketch, Species};
use crate::value::{CollectionValue, Kept, ValueRef};

/// A sketch that is no longer packed, or one that is being read.
#[derive(Clone, Debug)]
pub(crate) enum Cells {
    Whole(Box<Sketch>),
    Unfinished(Maker),
}

impl Default for Cells {
    fn default() -> Self {
        Self::Unfinished(Maker::default())
    }
}

impl Large for Cells {
    /// Its head and its pages.
    fn len(&self) -> usize {
        match self {
            Self::Whole(sketch) => sketch.len(),
            Self::Unfinished(maker) => maker.read,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Whole(sketch) => crate::record::allocated_bytes(size_of::<Sketch>()) + sketch.bytes(),
            Self::Unfinished(_) => 0,
        }
    }

    fn write_part(&self, from: usize, out: &mut Vec<u8>, end: usize) -> usize {
        match self {
            Self::Whole(sketch) => sketch.write_part(from, out, end),
            Self::Unfinished(_) => from,
        }
    }

    fn read_one(&mut self, items: &mut packed::Items<'_>) -> Option<()> {
        let Self::Unfinished(maker) = self else { return None };
        if let Some(sketch) = maker.read_one(items)? {
            *self = Self::Whole(Box::new(sketch));
        }
        Some(())
    }
}

impl Cells {
    /// What must be freed.
    pub(super) fn into_unfreed(self) -> crate::sketch::Unfreed {
        match self {
            Self::Whole(sketch) => crate::sketch::Unfreed::of(*sketch),
            Self::Unfinished(maker) => crate::sketch::Unfreed::of_unfinished(maker),
        }
    }
}

/// A sketch, as it is kept.
#[derive(Clone, Copy, Debug)]
pub struct Outline<'a>(Repr<'a>);

#[derive(Clone, Copy, Debug)]
enum Repr<'a> {
    Packed(&'a [u8]),
    Large(&'a Cells),
}

impl<'a> Outline<'a> {
    pub(crate) fn packed(bytes: &'a [u8]) -> Self {
        Self(Repr::Packed(bytes))
    }

    pub(super) fn large(cells: &'a Cells) -> Self {
        Self(Repr::Large(cells))
    }

    /// What RedisBloom calls its type.
    pub fn type_name(self) -> &'static str {
        let species = match self.0 {
            Repr::Packed(bytes) => Species::of_packed(bytes),
            Repr::Large(Cells::Whole(sketch)) => Some(sketch.species()),
            Repr::Large(Cells::Unfinished(_)) => None,
        };
        species.expect("what is stored has been read to its end").name()
    }

    /// The sketch, which of a packed one is made.
    pub(crate) fn sketch(self) -> Cow<'a, Sketch> {
        match self.0 {
            Repr::Packed(bytes) => Cow::Owned(Sketch::unpack(bytes).expect("only sketches are packed")),
            Repr::Large(Cells::Whole(sketch)) => Cow::Borrowed(sketch),
            Repr::Large(Cells::Unfinished(_)) => unreachable!("what is stored has been read to its end"),
        }
    }

    /// All that it holds, as it is written.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut out = Vec::new();
        self.sketch().write_part(0, &mut out, usize::MAX);
        out
    }
}

/// Sketches are equal if they hold the same and are kept in the same way.
impl PartialEq for Outline<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self.0, other.0) {
            (Repr::Packed(bytes), Repr::Packed(other)) => bytes == other,
            (Repr::Large(_), Repr::Large(_)) => self.to_bytes() == other.to_bytes(),
            _ => false,
        }
    }
}

impl Eq for Outline<'_> {}

pub(super) fn is_packed(bytes: &[u8]) -> bool {
    Sketch::unpack(bytes).is_some()
}

/// A sketch as it is kept when it is new.
pub(crate) fn fresh(sketch: Sketch) -> CollectionValue {
    CollectionValue(match sketch.pack() {
        Some(bytes) => Kept::Packed(Form::Sketch, bytes),
        None => Kept::Large(Box::new(Collection::Sketch(Cells::Whole(Box::new(sketch))))),
    })
}

impl<'a> View<'a> {
    /// The sketch under a key, if the key exists. Counts as a use.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is no sketch.
    pub(crate) fn sketch(&self, key: &[u8]) -> Result<Option<Cow<'a, Sketch>>, Refusal> {
        match self.entry(key).map(|entry| entry.value()) {
            None => Ok(None),
            Some(ValueRef::Sketch(outline)) => Ok(Some(outline.sketch())),
            Some(_) => Err(Refusal::WRONG_TYPE),
        }
    }
}

impl Edit<'_> {
    /// Stores a sketch under a key that has none or another one; the deadline stays.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is no sketch.
    pub(crate) fn set_sketch(&mut self, key: &[u8], sketch: Sketch) -> Result<(), Refusal> {
        self.modify(key, Kind::Sketch, |cell| match whole_mut(cell) {
            Some(kept) => {
                let old = std::mem::replace(kept, sketch);
                cell.free_later(Collection::Sketch(Cells::Whole(Box::new(old))));
            }
            None => keep(cell, sketch),
        })
    }

    /// Changes the sketch under a key, which must be there.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is no sketch.
    pub(crate) fn change_sketch<R>(&mut self, key: &[u8], change: impl FnOnce(&mut Sketch) -> R) -> Result<R, Refusal> {
        self.modify(key, Kind::Sketch, |cell| {
            if let Some(sketch) = whole_mut(cell) {
                return change(sketch);
            }
            let Shape::Packed(_, bytes) = cell.shape() else { unreachable!("what is not large is packed") };
            let mut sketch = Outline::packed(bytes).sketch().into_owned();
            let result = change(&mut sketch);
            keep(cell, sketch);
            result
        })
    }
}

fn keep(cell: &mut Cell<'_>, sketch: Sketch) {
    match sketch.pack() {
        Some(bytes) => cell.repack(Form::Sketch, &bytes),
        None => cell.grow_into(Collection::Sketch(Cells::Whole(Box::new(sketch)))),
    }
}

fn whole_mut<'c>(cell: &'c mut Cell<'_>) -> Option<&'c mut Sketch> {
    match cell.large_mut() {
        Some(Collection::Sketch(Cells::Whole(sketch))) => Some(sketch),
        _ => None,
    }
}
