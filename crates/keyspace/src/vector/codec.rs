//! A vector set as bytes: items, one behind the other, for checkpoints and for transactions over groups.
//!
//! ```text
//! head    = version 1 u8, quantization, dimensions, given dimensions, links, last id, entry, elements
//! element = id, length f32, range f32, level, for each layer from the lowest: number of links, their slots;
//!           direction, name item, attributes
//! ```
//!
//! Elements come in the order of their slots. Numbers are varints unless a type stands beside them; those are
//! little-endian. How many bytes a direction has follows from the head.

use crate::collection::packed::{self, Items};

use super::measure::{DIMENSIONS_MAX, Encoded, Quantization};
use super::{Body, LEVEL_MAX, LINKS_MAX, LINKS_MIN, Shape, VectorSet, push_link};

/// The version of the form.
const VERSION: u8 = 1;

/// Most links on a layer that are read: more are never made.
const READ_LINKS_MAX: usize = 4 * LINKS_MAX as usize;

impl VectorSet {
    /// Number of items as which it is written.
    pub(crate) fn item_count(&self) -> usize {
        1 + self.len()
    }

    /// Appends items from the `from`th on until `out` reaches the length `end`, at least one if there is one, and
    /// answers which comes next.
    pub(crate) fn write_part(&self, from: usize, out: &mut Vec<u8>, end: usize) -> usize {
        let (mut at, mut item) = (from, Vec::new());
        while at < self.item_count() && (at == from || out.len() < end) {
            item.clear();
            match at.checked_sub(1) {
                None => self.write_head(&mut item),
                Some(slot) => self.write_element(slot as u32, &mut item),
            }
            packed::put(out, &item);
            at += 1;
        }
        at
    }

    fn write_head(&self, out: &mut Vec<u8>) {
        let Shape { quantization, dimensions, given_dimensions, links } = self.shape;
        out.push(VERSION);
        let of_shape = [quantization as u64, dimensions.into(), given_dimensions.into(), links.into()];
        let of_graph = [self.last_id, self.entry.into(), self.len() as u64];
        of_shape.into_iter().chain(of_graph).for_each(|number| packed::put_number(out, number));
    }

    fn write_element(&self, slot: u32, out: &mut Vec<u8>) {
        let body = self.body(slot);
        packed::put_number(out, body.id());
        out.extend_from_slice(&body.length().to_le_bytes());
        out.extend_from_slice(&body.direction().range.to_le_bytes());
        packed::put_number(out, self.level_of(slot) as u64);
        for layer in 0..=self.level_of(slot) {
            let links = self.links(slot, layer);
            packed::put_number(out, links.len() as u64);
            links.iter().for_each(|&link| packed::put_number(out, link.into()));
        }
        out.extend_from_slice(body.direction().bytes);
        packed::put(out, body.name());
        out.extend_from_slice(body.attributes().unwrap_or_default());
    }
}

/// An element with its links, as it is read.
pub(crate) struct Element<'a> {
    pub(crate) id: u64,
    pub(crate) encoded: Encoded,
    pub(crate) name: &'a [u8],
    pub(crate) attributes: &'a [u8],
    /// Slots on each layer.
    pub(crate) layers: Vec<Vec<u32>>,
}

/// A vector set that is being read, an element at a time.
#[derive(Clone, Debug)]
pub(crate) struct Maker {
    set: VectorSet,
    /// Elements that there will be.
    count: u32,
    /// Links to elements that have not been read, and links back that have been found: at the end as many.
    ahead: u64,
    back: u64,
}

impl Maker {
    /// A set of `count` elements. `None` if there can be none of this shape.
    pub(crate) fn new(shape: Shape, count: u64) -> Option<Self> {
        let count = u32::try_from(count).ok().filter(|&count| count > 0)?;
        let are_dimensions = |number: u32| (1..=DIMENSIONS_MAX).contains(&(number as usize));
        let is_projection = shape.given_dimensions == 0
            || are_dimensions(shape.given_dimensions) && shape.dimensions <= shape.given_dimensions;
        let is_valid =
            are_dimensions(shape.dimensions) && is_projection && (LINKS_MIN..=LINKS_MAX).contains(&shape.links);
        is_valid.then(|| Self { set: VectorSet::new(shape), count, ahead: 0, back: 0 })
    }

    /// Elements that have been read.
    pub(crate) fn len(&self) -> usize {
        self.set.len()
    }

    /// Takes in the next element. `None` if it is none that can follow.
    pub(crate) fn push(&mut self, element: Element<'_>) -> Option<()> {
        let slot = self.set.len() as u32;
        let is_fitting = slot < self.count
            && element.encoded.direction.len() == self.set.shape.direction_bytes()
            && element.encoded.length.is_finite()
            && element.encoded.range.is_finite()
            && (1..=LEVEL_MAX + 1).contains(&element.layers.len());
        if !is_fitting || self.set.find(element.name).is_some() {
            return None;
        }
        for (layer, links) in element.layers.iter().enumerate() {
            let mut sorted = links.clone();
            sorted.sort_unstable();
            if !sorted.is_sorted_by(|left, right| left < right) {
                return None;
            }
            for &link in links {
                if link == slot || link >= self.count {
                    return None;
                }
                if link > slot {
                    self.ahead += 1;
                } else if layer <= self.set.level_of(link) && self.set.links(link, layer).contains(&slot) {
                    self.back += 1;
                } else {
                    return None;
                }
            }
        }
        let body = Body::new(element.id, &element.encoded, element.name, element.attributes);
        self.set.place(body, element.layers.len() - 1);
        for (layer, links) in element.layers.iter().enumerate() {
            self.set.change_links(slot, |own| links.iter().for_each(|&link| push_link(own.on_mut(layer), link)));
        }
        self.set.last_id = self.set.last_id.max(element.id);
        Some(())
    }

    /// The set, if all of it has been read. Searches begin at `entry`, or at the first element on the highest layer.
    pub(crate) fn finish(&mut self, entry: Option<u32>) -> Option<VectorSet> {
        if self.set.len() as u32 != self.count || self.ahead != self.back {
            return None;
        }
        let highest = || (0..self.count).rev().max_by_key(|&slot| self.set.level_of(slot));
        self.set.entry = entry.filter(|&entry| entry < self.count).or_else(highest)?;
        let shape = self.set.shape;
        Some(std::mem::replace(&mut self.set, VectorSet::new(shape)))
    }

    /// What has been read.
    pub(crate) fn into_set(self) -> VectorSet {
        self.set
    }
}

/// A vector set that is being read from items.
#[derive(Clone, Debug, Default)]
pub(crate) struct ItemMaker {
    maker: Option<(Maker, u64, u32)>,
}

impl ItemMaker {
    /// Items read.
    pub(crate) fn read(&self) -> usize {
        self.maker.as_ref().map_or(0, |(maker, ..)| 1 + maker.len())
    }

    /// Reads the next item, and hands out the set when it was the last. `None` if it is none that can follow.
    pub(crate) fn read_one(&mut self, items: &mut Items<'_>) -> Option<Option<VectorSet>> {
        let mut item = Items::new(items.next()?);
        let Some((maker, last_id, entry)) = &mut self.maker else {
            self.maker = Some(read_head(&mut item)?);
            return item.is_done().then_some(None);
        };
        let element = read_element(&mut item, &maker.set.shape)?;
        maker.push(element)?;
        if maker.set.len() as u32 != maker.count {
            return Some(None);
        }
        let mut set = maker.finish(Some(*entry))?;
        if set.last_id > *last_id {
            return None;
        }
        set.last_id = *last_id;
        Some(Some(set))
    }

    /// What has been read.
    pub(crate) fn into_set(self) -> Option<VectorSet> {
        self.maker.map(|(maker, ..)| maker.into_set())
    }
}

fn read_head(item: &mut Items<'_>) -> Option<(Maker, u64, u32)> {
    if item.byte()? != VERSION {
        return None;
    }
    let quantization = Quantization::of(item.number()?)?;
    let mut small = || item.number().and_then(|number| u32::try_from(number).ok());
    let shape = Shape { quantization, dimensions: small()?, given_dimensions: small()?, links: small()? };
    let (last_id, entry) = (item.number()?, u32::try_from(item.number()?).ok()?);
    let count = item.number()?;
    (u64::from(entry) < count).then_some(())?;
    Some((Maker::new(shape, count)?, last_id, entry))
}

fn read_element<'a>(item: &mut Items<'a>, shape: &Shape) -> Option<Element<'a>> {
    let id = item.number()?;
    let mut float = || Some(f32::from_le_bytes(item.take(4)?.try_into().ok()?));
    let (length, range) = (float()?, float()?);
    let level = usize::try_from(item.number()?).ok().filter(|&level| level <= LEVEL_MAX)?;
    let mut layers = Vec::with_capacity(level + 1);
    for _ in 0..=level {
        let count = usize::try_from(item.number()?).ok().filter(|&count| count <= READ_LINKS_MAX)?;
        let links = (0..count).map(|_| u32::try_from(item.number()?).ok()).collect::<Option<_>>()?;
        layers.push(links);
    }
    let direction = item.take(shape.direction_bytes())?.to_vec();
    let (name, attributes) = (item.next()?, item.rest());
    Some(Element { id, encoded: Encoded { direction, range, length }, name, attributes, layers })
}
