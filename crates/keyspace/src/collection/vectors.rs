//! Vector sets as values of keys. They are never packed: already the graph of a few elements is no string of bytes.

use std::fmt;

use command::Refusal;

use super::{Cell, Collection, Kind, Large, packed};
use crate::context::{Edit, View};
use crate::value::{CollectionValue, Kept, ValueRef};
use crate::vector::codec::ItemMaker;
use crate::vector::{Unfreed, VectorSet};

/// A vector set, or one that is being read.
#[derive(Clone, Debug)]
pub(crate) enum Vectors {
    Whole(Box<VectorSet>),
    Unfinished(Box<ItemMaker>),
}

impl Default for Vectors {
    fn default() -> Self {
        Self::Unfinished(Box::default())
    }
}

impl Large for Vectors {
    /// Its head and its elements.
    fn len(&self) -> usize {
        match self {
            Self::Whole(set) => set.item_count(),
            Self::Unfinished(maker) => maker.read(),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Whole(set) => set.len() == 0,
            Self::Unfinished(_) => true,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Whole(set) => crate::record::allocated_bytes(size_of::<VectorSet>()) + set.bytes(),
            Self::Unfinished(_) => 0,
        }
    }

    fn write_part(&self, from: usize, out: &mut Vec<u8>, end: usize) -> usize {
        match self {
            Self::Whole(set) => set.write_part(from, out, end),
            Self::Unfinished(_) => from,
        }
    }

    fn read_one(&mut self, items: &mut packed::Items<'_>) -> Option<()> {
        let Self::Unfinished(maker) = self else { return None };
        if let Some(set) = maker.read_one(items)? {
            *self = Self::Whole(Box::new(set));
        }
        Some(())
    }
}

impl Vectors {
    /// What must be freed.
    pub(super) fn into_unfreed(self) -> Option<Unfreed> {
        match self {
            Self::Whole(set) => Some(*set),
            Self::Unfinished(maker) => maker.into_set(),
        }
        .map(VectorSet::into_unfreed)
    }

    fn whole(&self) -> &VectorSet {
        match self {
            Self::Whole(set) => set,
            // Anyone who reads one refuses what is still empty at its end.
            Self::Unfinished(_) => unreachable!("what is stored has been read to its end"),
        }
    }
}

/// A vector set, as it is kept.
#[derive(Clone, Copy)]
pub struct Space<'a>(&'a Vectors);

impl<'a> Space<'a> {
    pub(super) fn new(vectors: &'a Vectors) -> Self {
        Self(vectors)
    }

    pub(crate) fn set(self) -> &'a VectorSet {
        self.0.whole()
    }
}

impl fmt::Debug for Space<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Vectors::Whole(set) => write!(formatter, "a vector set of {} elements", set.len()),
            Vectors::Unfinished(_) => formatter.write_str("a vector set that is being read"),
        }
    }
}

/// Vector sets are equal if they have the same elements in the same graph.
impl PartialEq for Space<'_> {
    fn eq(&self, other: &Self) -> bool {
        let bytes = |space: &Self| {
            let mut out = Vec::new();
            space.set().write_part(0, &mut out, usize::MAX);
            out
        };
        bytes(self) == bytes(other)
    }
}

impl Eq for Space<'_> {}

/// A vector set as it is kept when it is new.
pub(crate) fn fresh(set: VectorSet) -> CollectionValue {
    CollectionValue(Kept::Large(Box::new(Collection::Vectors(Vectors::Whole(Box::new(set))))))
}

impl<'a> View<'a> {
    /// The vector set under a key, if the key exists. Counts as a use.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is no vector set.
    pub(crate) fn vectors(&self, key: &[u8]) -> Result<Option<&'a VectorSet>, Refusal> {
        match self.entry(key).map(|entry| entry.value()) {
            None => Ok(None),
            Some(ValueRef::Vectors(space)) => Ok(Some(space.set())),
            Some(_) => Err(Refusal::WRONG_TYPE),
        }
    }
}

impl Edit<'_> {
    /// Changes the vector set under a key, or what `make` makes if there is none. Counts as a change.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is no vector set.
    pub(crate) fn change_vectors<R>(
        &mut self,
        key: &[u8],
        make: impl FnOnce() -> VectorSet,
        change: impl FnOnce(&mut VectorSet) -> R,
    ) -> Result<R, Refusal> {
        self.modify(key, Kind::Vectors, |cell| {
            if let Some(set) = whole_mut(cell) {
                return change(set);
            }
            let mut set = make();
            let result = change(&mut set);
            cell.grow_into(Collection::Vectors(Vectors::Whole(Box::new(set))));
            result
        })
    }
}

fn whole_mut<'c>(cell: &'c mut Cell<'_>) -> Option<&'c mut VectorSet> {
    match cell.large_mut() {
        Some(Collection::Vectors(Vectors::Whole(set))) => Some(set),
        _ => None,
    }
}
