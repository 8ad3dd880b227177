//! Vector sets: elements with vectors, and a graph in which those that are alike are found (HNSW: Malkov, Yashunin,
//! "Efficient and robust approximate nearest neighbor search using hierarchical navigable small world graphs", 2016).
//!
//! An element is a *body* (its name, its vector, its attributes) and *links* to others, on each layer that it is on.
//! Both have the element's *slot*, a number without gaps: when an element goes, the last one takes its place. Links
//! lead both ways. So an element can be taken out, and its neighbours can be joined, without a search.
//!
//! Every replica must build the same graph. An element's layers follow from its name and the number of elements when it
//! was added; what is equally far is told apart by slots; and sums are taken in one order (see [`measure`]). So the
//! graph is a function of what was added and removed, in what order. It is saved as it is: a load builds nothing.
//!
//! Bodies, links and names lie in arrays and trees that clones share until one side changes. A checkpoint, COPY or a
//! transaction takes hold of a set of millions at no cost, and copies only what is changed meanwhile.

pub(crate) mod codec;
pub(crate) mod filter;
pub(crate) mod graph;
pub(crate) mod measure;
pub(crate) mod shelf;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fmt;

use triomphe::ThinArc;
use twox_hash::XxHash3_64;

use crate::record::allocated_bytes;
use crate::tree::{self, Element, Tree};
use measure::{Direction, Encoded, Quantization};
use shelf::Shelf;

/// Links of an element on a layer, but for the lowest, which has twice as many (`M`).
pub(crate) const LINKS_DEFAULT: u32 = 16;
pub(crate) const LINKS_MIN: u32 = 4;
pub(crate) const LINKS_MAX: u32 = 4096;

/// The highest layer.
pub(crate) const LEVEL_MAX: usize = 16;

/// Most elements of a set: slots are numbers of 32 bits.
const ELEMENTS_MAX: usize = u32::MAX as usize;

/// Links take room for as many at a time.
const LINKS_STEP: usize = 8;

/// What all elements of a set have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) quantization: Quantization,
    /// Of the vectors that are kept.
    pub(crate) dimensions: u32,
    /// Of those that are given, if they are projected onto fewer; else 0.
    pub(crate) given_dimensions: u32,
    /// See [`LINKS_DEFAULT`].
    pub(crate) links: u32,
}

impl Shape {
    /// Bytes of a direction.
    pub(crate) fn direction_bytes(&self) -> usize {
        self.quantization.bytes(self.dimensions as usize)
    }

    /// Most links of an element on a layer.
    pub(crate) fn capacity(&self, layer: usize) -> usize {
        if layer == 0 { 2 * self.links as usize } else { self.links as usize }
    }

    #[inline]
    fn distance(&self, left: Direction<'_>, right: Direction<'_>) -> f32 {
        measure::distance(left, right, self.quantization, self.dimensions as usize)
    }
}

/// What stands before the bytes of a [`Body`].
#[derive(Clone, Copy, Debug)]
struct Head {
    /// The number under which it was added.
    id: u64,
    /// How long the vector was.
    length: f32,
    /// See [`Encoded::range`].
    range: f32,
    direction_len: u32,
    name_len: u32,
}

/// An element but for its links: in one piece of memory its direction, its name and its attributes.
#[derive(Clone, Debug)]
pub(crate) struct Body(ThinArc<Head, u8>);

impl Body {
    fn new(id: u64, encoded: &Encoded, name: &[u8], attributes: &[u8]) -> Self {
        let head = Head {
            id,
            length: encoded.length,
            range: encoded.range,
            direction_len: encoded.direction.len() as u32,
            name_len: name.len() as u32,
        };
        Self(ThinArc::from_header_and_slice(head, &[&encoded.direction, name, attributes].concat()))
    }

    #[inline]
    fn head(&self) -> &Head {
        &self.0.header.header
    }

    pub(crate) fn id(&self) -> u64 {
        self.head().id
    }

    pub(crate) fn length(&self) -> f32 {
        self.head().length
    }

    #[inline]
    pub(crate) fn direction(&self) -> Direction<'_> {
        let head = self.head();
        Direction { bytes: &self.0.slice[..head.direction_len as usize], range: head.range }
    }

    #[inline]
    pub(crate) fn name(&self) -> &[u8] {
        let head = self.head();
        &self.0.slice[head.direction_len as usize..][..head.name_len as usize]
    }

    /// JSON, or what was given for it; nothing if there is none.
    pub(crate) fn attributes(&self) -> Option<&[u8]> {
        let head = self.head();
        let attributes = &self.0.slice[head.direction_len as usize + head.name_len as usize..];
        (!attributes.is_empty()).then_some(attributes)
    }

    /// Its vector as it is kept.
    pub(crate) fn encoded(&self) -> Encoded {
        let Direction { bytes, range } = self.direction();
        Encoded { direction: bytes.to_vec(), range, length: self.length() }
    }

    fn with_attributes(&self, attributes: &[u8]) -> Self {
        Self::new(self.id(), &self.encoded(), self.name(), attributes)
    }

    fn heap_bytes(&self) -> usize {
        // Counters of references and of bytes.
        allocated_bytes(2 * size_of::<usize>() + size_of::<Head>() + self.0.slice.len())
    }
}

/// Slots of an element's neighbours, on each layer that it is on.
#[derive(Clone, Debug, Default)]
struct Links {
    lowest: Vec<u32>,
    higher: Box<[Vec<u32>]>,
}

impl Links {
    fn new(level: usize) -> Self {
        Self { lowest: Vec::new(), higher: vec![Vec::new(); level].into() }
    }

    /// The highest layer that it is on.
    #[inline]
    fn level(&self) -> usize {
        self.higher.len()
    }

    #[inline]
    fn on(&self, layer: usize) -> &[u32] {
        if layer == 0 { &self.lowest } else { &self.higher[layer - 1] }
    }

    fn on_mut(&mut self, layer: usize) -> &mut Vec<u32> {
        if layer == 0 { &mut self.lowest } else { &mut self.higher[layer - 1] }
    }

    fn heap_bytes(&self) -> usize {
        let list = |links: &Vec<u32>| match links.len() {
            0 => 0,
            len => allocated_bytes(len.next_multiple_of(LINKS_STEP) * size_of::<u32>()),
        };
        let higher = if self.higher.is_empty() { 0 } else { allocated_bytes(size_of_val(&*self.higher)) };
        list(&self.lowest) + higher + self.higher.iter().map(list).sum::<usize>()
    }
}

/// Appends a link, with room for a few.
fn push_link(links: &mut Vec<u32>, slot: u32) {
    if links.len() == links.capacity() {
        links.reserve_exact(LINKS_STEP);
    }
    links.push(slot);
}

/// Takes a link out, and gives room back that is not needed.
fn remove_link(links: &mut Vec<u32>, slot: u32) {
    links.retain(|other| *other != slot);
    links.shrink_to(links.len().next_multiple_of(LINKS_STEP));
}

/// An element in the order of names.
#[derive(Clone, Debug)]
struct Named {
    body: Body,
    slot: u32,
}

/// The first eight bytes of a name, as a number that orders as they do.
#[inline]
fn beginning_of(name: &[u8]) -> u64 {
    let mut beginning = [0; 8];
    let len = name.len().min(8);
    beginning[..len].copy_from_slice(&name[..len]);
    u64::from_be_bytes(beginning)
}

impl Element for Named {
    type Key = u64;

    fn key(&self) -> u64 {
        beginning_of(self.body.name())
    }

    /// The body counts where it lies by its slot.
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// An end of a range of names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound<'a> {
    Lowest,
    From(&'a [u8]),
    Behind(&'a [u8]),
    Highest,
}

/// A vector set.
#[derive(Clone)]
pub(crate) struct VectorSet {
    shape: Shape,
    bodies: Shelf<Option<Body>>,
    links: Shelf<Links>,
    names: Tree<Named>,
    /// Where searches begin: the lowest slot on the highest layer.
    entry: u32,
    /// The number under which the last element was added.
    last_id: u64,
    attribute_count: u64,
    /// Allocated for bodies and lists of links.
    heap_bytes: usize,
}

impl fmt::Debug for VectorSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} elements of {:?}", self.len(), self.shape)
    }
}

impl VectorSet {
    pub(crate) fn new(shape: Shape) -> Self {
        Self {
            shape,
            bodies: Shelf::default(),
            links: Shelf::default(),
            names: Tree::new(),
            entry: 0,
            last_id: 0,
            attribute_count: 0,
            heap_bytes: 0,
        }
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.bodies.len()
    }

    /// The highest layer on which there is an element.
    pub(crate) fn level(&self) -> usize {
        if self.len() == 0 { 0 } else { self.links.at(self.entry).level() }
    }

    pub(crate) fn last_id(&self) -> u64 {
        self.last_id
    }

    /// Elements that have attributes.
    pub(crate) fn attribute_count(&self) -> u64 {
        self.attribute_count
    }

    /// Bytes allocated for it.
    pub(crate) fn bytes(&self) -> usize {
        self.heap_bytes + self.bodies.bytes() + self.links.bytes() + self.names.bytes()
    }

    /// The element in a slot.
    #[inline]
    pub(crate) fn body(&self, slot: u32) -> &Body {
        self.bodies.at(slot).as_ref().expect("there is an element in every slot")
    }

    /// The element's neighbours on a layer.
    pub(crate) fn links(&self, slot: u32, layer: usize) -> &[u32] {
        self.links.at(slot).on(layer)
    }

    /// The highest layer on which an element is.
    pub(crate) fn level_of(&self, slot: u32) -> usize {
        self.links.at(slot).level()
    }

    fn search_name(&self, name: &[u8]) -> Result<(usize, u32), usize> {
        let beginning = beginning_of(name);
        let found = self.names.search(|key| key.cmp(&beginning), |named| named.body.name().cmp(name));
        found.map(|(rank, named)| (rank, named.slot))
    }

    /// The slot of an element.
    pub(crate) fn find(&self, name: &[u8]) -> Option<u32> {
        self.search_name(name).ok().map(|(_, slot)| slot)
    }

    /// Elements in the order of their names.
    pub(crate) fn range<'a>(
        &'a self,
        from: Bound<'_>,
        to: Bound<'_>,
    ) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let rank = |bound: Bound<'_>| match bound {
            Bound::Lowest => 0,
            Bound::Highest => self.names.len(),
            Bound::From(name) => self.search_name(name).map_or_else(|rank| rank, |(rank, _)| rank),
            Bound::Behind(name) => self.search_name(name).map_or_else(|rank| rank, |(rank, _)| rank + 1),
        };
        let end = rank(to);
        self.names.range(rank(from).min(end)..end).map(|named| named.body.name())
    }

    /// The vector of an element, roughly.
    pub(crate) fn vector(&self, slot: u32) -> Vec<f32> {
        let body = self.body(slot);
        let Direction { bytes, range } = body.direction();
        measure::decode(bytes, range, body.length(), self.shape.quantization, self.shape.dimensions as usize)
    }

    /// How far two elements are apart.
    pub(crate) fn distance_between(&self, left: u32, right: u32) -> f32 {
        self.shape.distance(self.body(left).direction(), self.body(right).direction())
    }

    /// Sets an element's attributes; none takes them away. True if they were others.
    pub(crate) fn set_attributes(&mut self, slot: u32, attributes: &[u8]) -> bool {
        let body = self.body(slot);
        if body.attributes().unwrap_or_default() == attributes {
            return false;
        }
        let (old_bytes, changed) = (body.heap_bytes(), body.with_attributes(attributes));
        self.attribute_count -= u64::from(body.attributes().is_some());
        self.attribute_count += u64::from(!attributes.is_empty());
        self.heap_bytes = self.heap_bytes - old_bytes + changed.heap_bytes();
        let (rank, _) = self.search_name(changed.name()).expect("every element has a name");
        self.names.update(rank, |named| named.body = changed.clone());
        *self.bodies.at_mut(slot) = Some(changed);
        true
    }

    /// Puts an element without links behind all others; its name must be new.
    fn place(&mut self, body: Body, level: usize) -> u32 {
        let slot = self.bodies.len() as u32;
        let links = Links::new(level);
        self.heap_bytes += body.heap_bytes() + links.heap_bytes();
        self.attribute_count += u64::from(body.attributes().is_some());
        let rank = self.search_name(body.name()).expect_err("the name is new");
        self.names.insert(rank, Named { body: body.clone(), slot });
        self.bodies.push(Some(body));
        self.links.push(links);
        slot
    }

    /// Takes an element without links out. The last one takes its slot.
    fn displace(&mut self, slot: u32) {
        let (rank, _) = self.search_name(self.body(slot).name()).expect("every element has a name");
        self.names.remove(rank);
        let last = self.len() as u32 - 1;
        let moved = self.bodies.pop().flatten().expect("there is an element in every slot");
        let links = self.links.pop().expect("every element has links");
        let (gone, gone_links) = if slot == last {
            (moved, links)
        } else {
            for layer in 0..=links.level() {
                for &neighbour in links.on(layer) {
                    let back = self.links.at_mut(neighbour).on_mut(layer);
                    back.iter_mut().filter(|other| **other == last).for_each(|other| *other = slot);
                }
            }
            let (rank, _) = self.search_name(moved.name()).expect("every element has a name");
            self.names.update(rank, |named| named.slot = slot);
            if self.entry == last || links.level() == self.level() && slot < self.entry {
                self.entry = slot;
            }
            let gone = self.bodies.at_mut(slot).replace(moved).expect("there is an element in every slot");
            (gone, std::mem::replace(self.links.at_mut(slot), links))
        };
        self.heap_bytes -= gone.heap_bytes() + gone_links.heap_bytes();
        self.attribute_count -= u64::from(gone.attributes().is_some());
    }

    /// Joins two elements on a layer, unless they are joined already.
    fn link(&mut self, left: u32, right: u32, layer: usize) {
        if left == right || self.links(left, layer).contains(&right) {
            return;
        }
        for (from, to) in [(left, right), (right, left)] {
            self.change_links(from, |links| push_link(links.on_mut(layer), to));
        }
    }

    /// Parts two elements on a layer.
    fn unlink(&mut self, left: u32, right: u32, layer: usize) {
        for (from, to) in [(left, right), (right, left)] {
            self.change_links(from, |links| remove_link(links.on_mut(layer), to));
        }
    }

    fn change_links(&mut self, slot: u32, change: impl FnOnce(&mut Links)) {
        let links = self.links.at_mut(slot);
        let before = links.heap_bytes();
        change(links);
        self.heap_bytes = self.heap_bytes - before + links.heap_bytes();
    }

    /// Elements that are no longer needed, to be freed in steps.
    pub(crate) fn into_unfreed(self) -> Unfreed {
        let element_count = self.len().max(1);
        Unfreed {
            element_bytes: (self.heap_bytes + self.bodies.bytes() + self.links.bytes()) / element_count,
            bodies: self.bodies,
            links: self.links,
            names: self.names.into_unfreed(),
        }
    }
}

/// The highest layer for an element: each has a quarter of the elements of the one below. It follows from the name and
/// from how many elements there are, which also a copy that came as a dump knows.
fn level_for(count: usize, name: &[u8]) -> usize {
    (XxHash3_64::oneshot_with_seed(count as u64, name).trailing_zeros() as usize / 2).min(LEVEL_MAX)
}

/// What is left of a vector set.
pub(crate) struct Unfreed {
    bodies: Shelf<Option<Body>>,
    links: Shelf<Links>,
    names: tree::Unfreed<Vec<Named>>,
    /// For each element, on average.
    element_bytes: usize,
}

impl Unfreed {
    /// Bytes that are not free yet.
    pub(crate) fn bytes(&self) -> usize {
        self.names.bytes() + self.bodies.len().max(self.links.len()) * self.element_bytes
    }

    /// Frees up to about `budget` elements, and counts them down. True if something is left.
    pub(crate) fn free(&mut self, budget: &mut usize) -> bool {
        // Links first: bodies are what names share with them.
        self.names.free(budget) || self.links.free_some(budget) || self.bodies.free_some(budget)
    }
}

/// An element that was found, and how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Near(u64);

impl Near {
    /// The bits of numbers that are not below zero order as the numbers do.
    #[inline]
    fn new(distance: f32, slot: u32) -> Self {
        Self(u64::from(distance.to_bits()) << 32 | u64::from(slot))
    }

    #[inline]
    pub(crate) fn distance(self) -> f32 {
        f32::from_bits((self.0 >> 32) as u32)
    }

    #[inline]
    pub(crate) fn slot(self) -> u32 {
        self.0 as u32
    }
}

impl Ord for Near {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.cmp(&other.0)
    }
}

impl PartialOrd for Near {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
