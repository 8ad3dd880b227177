//! JSON documents: trees with nodes that are shared until they change.
//!
//! Arrays and objects lie behind reference counts, so that a checkpoint, a copy of a key, or a value that is set in
//! several places takes hold of a part at no cost; a change copies the nodes on its way, and only those that somebody
//! else holds, too. Objects keep their keys in the order in which they came.
//!
//! Each array and object knows how many values are below it and how many bytes they take, so that both are told without
//! a walk. Nothing is deeper than [`limits::DEPTH_MAX`], which is why functions here may call themselves.

pub(crate) mod codec;
pub(crate) mod limits;
pub(crate) mod parse;
pub(crate) mod path;
pub(crate) mod print;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::ops::Range;

use stdx::Level;
use triomphe::Arc;

use crate::record::allocated_bytes;

/// Text inside a document.
pub(crate) type Text = Arc<str>;

/// What a reference count and a length add to a text or a node, in bytes.
const SHARED_BYTES: usize = 8;

/// Objects with more entries keep an index of their names.
const UNINDEXED_LEN_MAX: usize = 16;

/// A JSON value.
#[derive(Clone, Debug)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Integer(i64),
    /// A whole number above `i64::MAX`.
    Unsigned(u64),
    /// A finite number that was written with a fraction or an exponent, or is too large for the others.
    Double(f64),
    String(Text),
    Array(Arc<Array>),
    Object(Arc<Object>),
}

/// What a value takes: values, itself included, and bytes beyond its own slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Weight {
    pub(crate) nodes: usize,
    pub(crate) bytes: usize,
}

impl Weight {
    fn add(&mut self, other: Self) {
        self.nodes += other.nodes;
        self.bytes += other.bytes;
    }

    fn subtract(&mut self, other: Self) {
        self.nodes -= other.nodes;
        self.bytes -= other.bytes;
    }
}

/// Values one behind the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Array {
    items: Vec<Json>,
    inner: Weight,
}

/// Values by name, in the order in which the names came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Object {
    entries: Vec<(Text, Json)>,
    /// Places of all entries in the order of their names; empty while there are few.
    by_name: Vec<u32>,
    inner: Weight,
}

/// One step down into a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Name(Text),
    Index(usize),
}

/// Where a value is in its document.
pub(crate) type Place = Vec<Step>;

fn text_bytes(text: &Text) -> usize {
    allocated_bytes(SHARED_BYTES + text.len())
}

impl Json {
    pub(crate) fn text(text: &str) -> Self {
        Self::String(Text::from(text))
    }

    pub(crate) fn array(items: Vec<Self>) -> Self {
        Self::Array(Arc::new(Array::new(items)))
    }

    pub(crate) fn object(entries: Vec<(Text, Self)>) -> Self {
        Self::Object(Arc::new(Object::new(entries)))
    }

    pub(crate) fn weight(&self) -> Weight {
        match self {
            Self::Null | Self::Bool(_) | Self::Integer(_) | Self::Unsigned(_) | Self::Double(_) => {
                Weight { nodes: 1, bytes: 0 }
            }
            Self::String(text) => Weight { nodes: 1, bytes: text_bytes(text) },
            Self::Array(array) => {
                let own = allocated_bytes(SHARED_BYTES + size_of::<Array>())
                    + allocated_bytes(array.items.len() * size_of::<Self>());
                Weight { nodes: 1 + array.inner.nodes, bytes: own + array.inner.bytes }
            }
            Self::Object(object) => {
                let own = allocated_bytes(SHARED_BYTES + size_of::<Object>())
                    + allocated_bytes(object.entries.len() * size_of::<(Text, Self)>())
                    + allocated_bytes(object.by_name.len() * size_of::<u32>());
                Weight { nodes: 1 + object.inner.nodes, bytes: own + object.inner.bytes }
            }
        }
    }

    /// Bytes that it takes, its own slot included.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.weight().bytes
    }

    /// How many arrays and objects lie within each other.
    pub(crate) fn depth(&self) -> usize {
        match self {
            Self::Array(array) => 1 + array.items.iter().map(Self::depth).max().unwrap_or(0),
            Self::Object(object) => 1 + object.iter().map(|(_, value)| value.depth()).max().unwrap_or(0),
            _ => 0,
        }
    }

    /// The type's name as JSON.TYPE prints it.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "boolean",
            Self::Integer(_) | Self::Unsigned(_) => "integer",
            Self::Double(_) => "number",
            Self::String(_) => "string",
            Self::Array(_) => "array",
            Self::Object(_) => "object",
        }
    }

    pub(crate) fn is_number(&self) -> bool {
        matches!(self, Self::Integer(_) | Self::Unsigned(_) | Self::Double(_))
    }

    /// The nearest number with a fraction; `None` if it is no number.
    pub(crate) fn as_double(&self) -> Option<f64> {
        match *self {
            Self::Integer(number) => Some(number as f64),
            Self::Unsigned(number) => Some(number as f64),
            Self::Double(number) => Some(number),
            _ => None,
        }
    }

    pub(crate) fn as_array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(array) => Some(&array.items),
            _ => None,
        }
    }

    pub(crate) fn as_object(&self) -> Option<&Object> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The order of two scalars of one type; numbers of all kinds are of one. `None` if they have none.
    pub(crate) fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Integer(left), Self::Integer(right)) => Some(left.cmp(right)),
            (Self::Unsigned(left), Self::Unsigned(right)) => Some(left.cmp(right)),
            (Self::String(left), Self::String(right)) => Some(left[..].cmp(&right[..])),
            (Self::Bool(left), Self::Bool(right)) => Some(left.cmp(right)),
            (Self::Null, Self::Null) => Some(Ordering::Equal),
            _ => self.as_double()?.partial_cmp(&other.as_double()?),
        }
    }

    pub(crate) fn array_mut(&mut self) -> Option<&mut Array> {
        match self {
            Self::Array(array) => Some(Arc::make_mut(array)),
            _ => None,
        }
    }

    pub(crate) fn object_mut(&mut self) -> Option<&mut Object> {
        match self {
            Self::Object(object) => Some(Arc::make_mut(object)),
            _ => None,
        }
    }

    /// What a step leads to.
    pub(crate) fn child(&self, step: &Step) -> Option<&Self> {
        match (self, step) {
            (Self::Array(array), Step::Index(index)) => array.items.get(*index),
            (Self::Object(object), Step::Name(name)) => object.get(name),
            _ => None,
        }
    }

    pub(crate) fn at(&self, place: &[Step]) -> Option<&Self> {
        place.iter().try_fold(self, Self::child)
    }

    /// Changes the value at a place. `None` if nothing is there.
    pub(crate) fn change_at<R>(&mut self, place: &[Step], change: impl FnOnce(&mut Self) -> R) -> Option<R> {
        let Some((step, rest)) = place.split_first() else { return Some(change(self)) };
        self.child(step)?;
        match (self, step) {
            (Self::Array(array), Step::Index(index)) => {
                let Array { items, inner } = Arc::make_mut(array);
                within(&mut items[*index], inner, |child| child.change_at(rest, change))
            }
            (Self::Object(object), Step::Name(name)) => {
                let object = Arc::make_mut(object);
                let index = object.find(name)?;
                within(&mut object.entries[index].1, &mut object.inner, |child| child.change_at(rest, change))
            }
            _ => None,
        }
    }

    /// Takes the value at a place out of what holds it. `None` if nothing is there, or it is the whole document.
    pub(crate) fn remove_at(&mut self, place: &[Step], hole: Hole) -> Option<Self> {
        let (last, above) = place.split_last()?;
        self.change_at(above, |holder| match (holder, last) {
            (Self::Array(array), Step::Index(index)) if *index < array.items.len() => {
                Arc::make_mut(array).take(*index..*index + 1).pop()
            }
            (Self::Object(object), Step::Name(name)) => Arc::make_mut(object).remove(name, hole),
            _ => None,
        })?
    }
}

/// What becomes of the place of a name that is removed from an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hole {
    /// The names behind it move up: so it was at level 1.
    Closed,
    /// The last name takes it, as RedisJSON has it.
    TakenByLast,
}

impl Hole {
    /// At this level.
    pub(crate) fn at(level: Level) -> Self {
        if level == Level::FIRST { Self::Closed } else { Self::TakenByLast }
    }
}

/// Changes a child, and what its holder knows of what it takes.
fn within<R>(child: &mut Json, inner: &mut Weight, change: impl FnOnce(&mut Json) -> R) -> R {
    inner.subtract(child.weight());
    let result = change(child);
    inner.add(child.weight());
    result
}

/// Values are equal if they are of one type and alike; unlike in comparisons, 1 is not 1.0. The order of names does not
/// matter.
impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(left), Self::Bool(right)) => left == right,
            (Self::Integer(left), Self::Integer(right)) => left == right,
            (Self::Unsigned(left), Self::Unsigned(right)) => left == right,
            (Self::Double(left), Self::Double(right)) => left == right,
            (Self::String(left), Self::String(right)) => left[..] == right[..],
            (Self::Array(left), Self::Array(right)) => Arc::ptr_eq(left, right) || left.items == right.items,
            (Self::Object(left), Self::Object(right)) => {
                Arc::ptr_eq(left, right)
                    || left.len() == right.len()
                        && left.iter().all(|(name, value)| right.get(name).is_some_and(|other| value == other))
            }
            _ => false,
        }
    }
}

impl Array {
    pub(crate) fn new(items: Vec<Json>) -> Self {
        let mut inner = Weight::default();
        items.iter().for_each(|item| inner.add(item.weight()));
        Self { items, inner }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Puts values before the one at `index`, which is at most the length.
    pub(crate) fn insert(&mut self, index: usize, values: &[Json]) {
        values.iter().for_each(|value| self.inner.add(value.weight()));
        self.items.splice(index..index, values.iter().cloned());
    }

    /// Takes values out.
    pub(crate) fn take(&mut self, range: Range<usize>) -> Vec<Json> {
        let taken: Vec<_> = self.items.drain(range).collect();
        taken.iter().for_each(|value| self.inner.subtract(value.weight()));
        taken
    }
}

impl Object {
    /// Of entries with one name the last is kept, in the place of the first.
    pub(crate) fn new(entries: Vec<(Text, Json)>) -> Self {
        let mut object = Self { entries, by_name: Vec::new(), inner: Weight::default() };
        object.sort();
        let name_at = |entries: &[(Text, Json)], place: u32| entries[place as usize].0.clone();
        let is_repeated = |pair: &[u32]| name_at(&object.entries, pair[0]) == name_at(&object.entries, pair[1]);
        if object.by_name.windows(2).any(is_repeated) {
            // Runs of one name lie together, in the order in which they came.
            let mut kept: Vec<Option<u32>> = (0..object.entries.len()).map(|_| None).collect();
            for run in object.by_name.chunk_by(|left, right| is_repeated(&[*left, *right])) {
                kept[run[0] as usize] = run.last().copied();
            }
            let last = |place: u32| object.entries[place as usize].clone();
            object.entries = kept.into_iter().flatten().map(last).collect();
            object.sort();
        }
        if object.entries.len() <= UNINDEXED_LEN_MAX {
            object.by_name = Vec::new();
        }
        for (name, value) in &object.entries {
            object.inner.add(value.weight());
            object.inner.bytes += text_bytes(name);
        }
        object
    }

    fn sort(&mut self) {
        // A document has fewer bytes than places have numbers.
        self.by_name = (0..self.entries.len() as u32).collect();
        let entries = &self.entries;
        self.by_name.sort_by(|&left, &right| entries[left as usize].0[..].cmp(&entries[right as usize].0[..]));
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&Text, &Json)> {
        self.entries.iter().map(|(name, value)| (name, value))
    }

    /// Where the name is in the order of names: its rank, or the rank that it would have.
    fn rank(&self, name: &str) -> Result<usize, usize> {
        self.by_name.binary_search_by(|&place| self.entries[place as usize].0[..].cmp(name))
    }

    fn find(&self, name: &str) -> Option<usize> {
        if self.by_name.is_empty() {
            return self.entries.iter().position(|(other, _)| other[..] == *name);
        }
        self.rank(name).ok().map(|rank| self.by_name[rank] as usize)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Json> {
        self.find(name).map(|index| &self.entries[index].1)
    }

    /// Stores a value under a name, and gives back the one that was there.
    pub(crate) fn set(&mut self, name: &Text, value: Json) -> Option<Json> {
        self.inner.add(value.weight());
        if let Some(index) = self.find(name) {
            let old = std::mem::replace(&mut self.entries[index].1, value);
            self.inner.subtract(old.weight());
            return Some(old);
        }
        self.inner.bytes += text_bytes(name);
        let place = self.entries.len() as u32;
        self.entries.push((name.clone(), value));
        if !self.by_name.is_empty() {
            let (Ok(rank) | Err(rank)) = self.rank(name);
            self.by_name.insert(rank, place);
        } else if self.entries.len() > UNINDEXED_LEN_MAX {
            self.sort();
        }
        None
    }

    /// Changes the value under a name, which is null if there was none.
    pub(crate) fn change<R>(&mut self, name: &Text, change: impl FnOnce(&mut Json) -> R) -> R {
        let index = self.find(name).unwrap_or_else(|| {
            self.set(name, Json::Null);
            self.entries.len() - 1
        });
        within(&mut self.entries[index].1, &mut self.inner, change)
    }

    pub(crate) fn remove(&mut self, name: &str, hole: Hole) -> Option<Json> {
        let index = self.find(name)?;
        let (name, value) = match hole {
            Hole::Closed => self.entries.remove(index),
            Hole::TakenByLast => self.entries.swap_remove(index),
        };
        self.inner.subtract(value.weight());
        self.inner.bytes -= text_bytes(&name);
        let (index, last) = (index as u32, self.entries.len() as u32);
        if self.entries.len() <= UNINDEXED_LEN_MAX {
            self.by_name = Vec::new();
        }
        self.by_name.retain(|&place| place != index);
        match hole {
            Hole::Closed => self.by_name.iter_mut().filter(|place| **place > index).for_each(|place| *place -= 1),
            Hole::TakenByLast => {
                self.by_name.iter_mut().filter(|place| **place == last).for_each(|place| *place = index)
            }
        }
        Some(value)
    }
}

/// Parts of documents that are no longer used.
pub(crate) struct Unfreed {
    rest: Vec<Rest>,
    bytes: usize,
}

enum Rest {
    Items(std::vec::IntoIter<Json>),
    Entries(std::vec::IntoIter<(Text, Json)>),
}

impl Unfreed {
    pub(crate) fn of(document: Json) -> Self {
        Self { bytes: document.bytes(), rest: vec![Rest::Items(vec![document].into_iter())] }
    }

    /// Bytes that are not free yet, as far as they are told apart: those of what others share count as freed.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Frees up to about `budget` values, and counts them down. True if something is left.
    pub(crate) fn free(&mut self, budget: &mut usize) -> bool {
        while let Some(rest) = self.rest.last_mut() {
            if *budget == 0 {
                return true;
            }
            let next = match rest {
                Rest::Items(items) => items.next(),
                Rest::Entries(entries) => entries.next().map(|(_, value)| value),
            };
            *budget -= 1;
            match next {
                None => _ = self.rest.pop(),
                Some(Json::Array(array)) => {
                    if let Ok(array) = Arc::try_unwrap(array) {
                        self.rest.push(Rest::Items(array.items.into_iter()));
                    }
                }
                Some(Json::Object(object)) => {
                    if let Ok(object) = Arc::try_unwrap(object) {
                        self.rest.push(Rest::Entries(object.entries.into_iter()));
                    }
                }
                Some(scalar) => {
                    self.bytes = self.bytes.saturating_sub(size_of::<Json>() + scalar.weight().bytes);
                }
            }
        }
        self.bytes = 0;
        false
    }
}
