//! Sketches: what was seen, roughly, in little memory. Bloom filters and cuckoo filters tell whether, count-min
//! sketches how often, top-k lists what most often, and t-digests how values are distributed. Each reckons as
//! RedisBloom does, with the same hashes, so that it gives the same answers, and its dumps can be exchanged.
//!
//! A sketch is a *head*, what its type needs beside its cells, and cells in [`pages`] that are set aside when they are
//! first written: to reserve a gigabyte costs a few kilobytes and no time. Everything is a function of what was added;
//! the only chance there is, in top-k lists, comes from the entry of the log.
//!
//! As bytes a sketch is items, one behind the other: its head, then each page, empty if it has not been set aside.
//!
//! ```text
//! head = kind u8, and
//!   1 Bloom filter     items, options, growth, layers; each: capacity, error f64, hashes, bits of an item f64, bits,
//!                      logarithm of the bits or 0, bytes, items
//!   2 cuckoo filter    buckets, items, removed, cells of a bucket, tries, growth, layers; each: buckets
//!   3 count-min sketch width, depth, sum
//!   4 top-k list       k, width, depth, decay f64, places in use; each: its number, fingerprint, count, item
//!   5 t-digest         compression f64, minimum f64, maximum f64, merged, compressions, merged weight,
//!                      unmerged weight, nodes; each: mean f64, weight
//! ```
//!
//! Numbers are varints unless a type stands beside them; those are little-endian.

pub(crate) mod bloom;
pub(crate) mod count_min;
pub(crate) mod cuckoo;
pub(crate) mod digest;
pub(crate) mod hash;
pub(crate) mod pages;
#[cfg(test)]
mod tests;
pub(crate) mod top_k;

use crate::collection::packed::{self, Items};
use bloom::Bloom;
use count_min::CountMin;
use cuckoo::Cuckoo;
use digest::Digest;
use pages::Pages;
use top_k::TopK;

/// Most bytes that the cells of a sketch may take, whether they have been set aside or not.
pub(crate) const CELL_BYTES_MAX: u64 = 2 << 30;

/// Sketches of up to this many bytes, as they are written, lie packed in their records.
pub(crate) const PACKED_BYTES_MAX: usize = 1024;

/// A sketch.
#[derive(Clone, Debug)]
pub(crate) enum Sketch {
    Bloom(Bloom),
    Cuckoo(Cuckoo),
    CountMin(CountMin),
    TopK(TopK),
    Digest(Digest),
}

/// Which type of sketch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Species {
    Bloom = 1,
    Cuckoo = 2,
    CountMin = 3,
    TopK = 4,
    Digest = 5,
}

impl Species {
    fn of(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Bloom),
            2 => Some(Self::Cuckoo),
            3 => Some(Self::CountMin),
            4 => Some(Self::TopK),
            5 => Some(Self::Digest),
            _ => None,
        }
    }

    /// What RedisBloom calls the type.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bloom => "MBbloom--",
            Self::Cuckoo => "MBbloomCF",
            Self::CountMin => "CMSk-TYPE",
            Self::TopK => "TopK-TYPE",
            Self::Digest => "TDIS-TYPE",
        }
    }

    /// The type of a sketch from how it is written.
    pub(crate) fn of_packed(bytes: &[u8]) -> Option<Self> {
        Items::new(bytes).next().and_then(|head| head.first().copied()).and_then(Self::of)
    }
}

impl Sketch {
    pub(crate) fn species(&self) -> Species {
        match self {
            Self::Bloom(_) => Species::Bloom,
            Self::Cuckoo(_) => Species::Cuckoo,
            Self::CountMin(_) => Species::CountMin,
            Self::TopK(_) => Species::TopK,
            Self::Digest(_) => Species::Digest,
        }
    }

    fn parts(&self) -> Vec<&Pages> {
        match self {
            Self::Bloom(filter) => filter.layers.iter().map(|layer| &layer.cells).collect(),
            Self::Cuckoo(filter) => filter.layers.iter().map(|layer| &layer.cells).collect(),
            Self::CountMin(sketch) => vec![&sketch.cells],
            Self::TopK(list) => vec![&list.cells],
            Self::Digest(_) => Vec::new(),
        }
    }

    fn parts_mut(&mut self) -> Vec<&mut Pages> {
        match self {
            Self::Bloom(filter) => filter.layers.iter_mut().map(|layer| &mut layer.cells).collect(),
            Self::Cuckoo(filter) => filter.layers.iter_mut().map(|layer| &mut layer.cells).collect(),
            Self::CountMin(sketch) => vec![&mut sketch.cells],
            Self::TopK(list) => vec![&mut list.cells],
            Self::Digest(_) => Vec::new(),
        }
    }

    pub(crate) fn into_parts(mut self) -> Vec<Pages> {
        self.parts_mut().into_iter().map(std::mem::take).collect()
    }

    /// Bytes allocated for it.
    pub(crate) fn bytes(&self) -> usize {
        let head = match self {
            Self::Bloom(filter) => crate::record::allocated_bytes(filter.layers.capacity() * size_of::<bloom::Layer>()),
            Self::Cuckoo(filter) => {
                crate::record::allocated_bytes(filter.layers.capacity() * size_of::<cuckoo::Layer>())
            }
            Self::CountMin(_) => 0,
            Self::TopK(list) => list.heap_bytes(),
            Self::Digest(digest) => digest.node_bytes(),
        };
        head + self.parts().iter().map(|cells| cells.bytes()).sum::<usize>()
    }

    /// Number of items as which it is written.
    pub(crate) fn len(&self) -> usize {
        1 + self.parts().iter().map(|cells| cells.page_count()).sum::<usize>()
    }

    /// Appends items from the `from`th on until `out` reaches the length `end`, at least one if there is one, and
    /// answers which comes next.
    pub(crate) fn write_part(&self, from: usize, out: &mut Vec<u8>, end: usize) -> usize {
        let mut at = from;
        if at == 0 {
            let mut head = vec![self.species() as u8];
            self.write_head(&mut head);
            packed::put(out, &head);
            at += 1;
        }
        let mut before = 1;
        for cells in self.parts() {
            let behind = before + cells.page_count();
            while at < behind {
                if at > from && out.len() >= end {
                    return at;
                }
                packed::put(out, cells.page(at - before).unwrap_or_default());
                at += 1;
            }
            before = behind;
        }
        at
    }

    fn write_head(&self, out: &mut Vec<u8>) {
        match self {
            Self::Bloom(filter) => filter.write_head(out),
            Self::Cuckoo(filter) => filter.write_head(out),
            Self::CountMin(sketch) => sketch.write_head(out),
            Self::TopK(list) => list.write_head(out),
            Self::Digest(digest) => digest.write_head(out),
        }
    }

    /// A sketch without its pages, from what stands at its head.
    fn read_head(head: &[u8]) -> Option<Self> {
        let mut items = Items::new(head);
        let species = Species::of(items.byte()?)?;
        let sketch = match species {
            Species::Bloom => Self::Bloom(Bloom::read_head(&mut items)?),
            Species::Cuckoo => Self::Cuckoo(Cuckoo::read_head(&mut items)?),
            Species::CountMin => Self::CountMin(CountMin::read_head(&mut items)?),
            Species::TopK => Self::TopK(TopK::read_head(&mut items)?),
            Species::Digest => Self::Digest(Digest::read_head(&mut items)?),
        };
        items.is_done().then_some(sketch)
    }

    /// The sketch packed, if it is small enough.
    pub(crate) fn pack(&self) -> Option<Vec<u8>> {
        if self.bytes() > 2 * PACKED_BYTES_MAX {
            return None;
        }
        let mut out = Vec::new();
        let end = self.write_part(0, &mut out, PACKED_BYTES_MAX + 1);
        (end == self.len() && out.len() <= PACKED_BYTES_MAX).then_some(out)
    }

    /// The sketch that these bytes are; `None` if they are none.
    pub(crate) fn unpack(bytes: &[u8]) -> Option<Self> {
        let mut items = Items::new(bytes);
        let mut maker = Maker::default();
        let sketch = loop {
            if let Some(sketch) = maker.read_one(&mut items)? {
                break sketch;
            }
        };
        items.is_done().then_some(sketch)
    }
}

/// A sketch that is being read, an item at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Maker {
    sketch: Option<Sketch>,
    /// Items read.
    pub(crate) read: usize,
}

impl Maker {
    /// Reads the next item, and hands out the sketch when it was the last. `None` if it is none that can follow.
    pub(crate) fn read_one(&mut self, items: &mut Items<'_>) -> Option<Option<Sketch>> {
        let item = items.next()?;
        match &mut self.sketch {
            None => self.sketch = Some(Sketch::read_head(item)?),
            Some(sketch) => {
                let mut place = self.read - 1;
                for cells in sketch.parts_mut() {
                    if place < cells.page_count() {
                        cells.set_page(place, item)?;
                        break;
                    }
                    place -= cells.page_count();
                }
            }
        }
        self.read += 1;
        let is_whole = self.sketch.as_ref().is_some_and(|sketch| sketch.len() == self.read);
        Some(if is_whole { self.sketch.take() } else { None })
    }
}

/// What is left of a sketch.
pub(crate) struct Unfreed {
    parts: Vec<Pages>,
}

impl Unfreed {
    pub(crate) fn of(sketch: Sketch) -> Self {
        Self { parts: sketch.into_parts() }
    }

    pub(crate) fn of_unfinished(maker: Maker) -> Self {
        Self { parts: maker.sketch.map(Sketch::into_parts).unwrap_or_default() }
    }

    /// Bytes that are not free yet.
    pub(crate) fn bytes(&self) -> usize {
        self.parts.iter().map(Pages::bytes).sum()
    }

    /// Frees up to about `budget` pages, and counts them down. True if something is left.
    pub(crate) fn free(&mut self, budget: &mut usize) -> bool {
        while let Some(cells) = self.parts.last_mut() {
            if *budget == 0 {
                return true;
            }
            if !cells.free_some(budget) {
                self.parts.pop();
            }
        }
        false
    }
}

fn put_double(out: &mut Vec<u8>, number: f64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn read_double(items: &mut Items<'_>) -> Option<f64> {
    Some(f64::from_le_bytes(items.take(8)?.try_into().ok()?))
}
