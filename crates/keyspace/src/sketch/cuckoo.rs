//! Cuckoo filters (Fan, Andersen, Kaminsky, Mitzenmacher, 2014), which items can be removed from. A byte of an item's
//! hash, its *print*, lies in one of two buckets; anyone who finds both full drives another print out to its other
//! bucket. When that does not end, another *layer* is put on top.

use super::CELL_BYTES_MAX;
use super::bloom::{fixed_16, fixed_64};
use super::hash::hash_64;
use super::pages::Pages;
use crate::collection::packed::{Items, put_number};

/// Most layers, as RedisBloom has it by default.
pub(crate) const LAYERS_MAX: usize = 32;
/// Most buckets of a layer.
const BUCKETS_MAX: u64 = (1 << 56) - 1;
/// Greatest growth.
pub(crate) const GROWTH_MAX: u16 = 32_768;

const HEADER_BYTES: usize = 38;

#[derive(Clone, Debug)]
pub(crate) struct Cuckoo {
    /// Buckets of the first layer, a power of two.
    pub(crate) buckets: u64,
    pub(crate) size: u64,
    pub(crate) removed: u64,
    /// Cells of a bucket.
    pub(crate) bucket_len: u16,
    /// Prints that are driven out before another layer is made.
    pub(crate) tries: u16,
    /// A layer has so many times the buckets of the one below it; 0 is no growth.
    pub(crate) growth: u16,
    pub(crate) layers: Vec<Layer>,
}

#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) buckets: u64,
    pub(crate) cells: Pages,
}

/// Why an item could not be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// It must not grow.
    NotGrowing,
    /// It would grow beyond what a sketch may be.
    TooLarge,
}

#[derive(Clone, Copy)]
struct Trace {
    print: u8,
    /// The two buckets, before they are brought into a layer's range.
    hashes: [u64; 2],
}

impl Trace {
    fn of(item: &[u8]) -> Self {
        let hash = hash_64(item, 0);
        let print = (hash % 255 + 1) as u8;
        Self { print, hashes: [hash, other(print, hash)] }
    }
}

/// The other bucket of a print.
fn other(print: u8, bucket: u64) -> u64 {
    bucket ^ u64::from(print).wrapping_mul(0x5BD1_E995)
}

impl Layer {
    fn new(buckets: u64, bucket_len: u16) -> Option<Self> {
        let bytes = buckets.checked_mul(bucket_len.into()).filter(|&bytes| bytes <= CELL_BYTES_MAX)?;
        Some(Self { buckets, cells: Pages::new(bytes as usize) })
    }

    /// Where the cells of a bucket lie.
    fn bucket(&self, hash: u64, bucket_len: u16) -> std::ops::Range<usize> {
        let begin = (hash % self.buckets) as usize * usize::from(bucket_len);
        begin..begin + usize::from(bucket_len)
    }

    /// The first cell of an item's buckets that holds this: a print, or zero, which is none.
    fn find(&self, trace: Trace, bucket_len: u16, print: u8) -> Option<usize> {
        let mut cells = trace.hashes.into_iter().flat_map(|hash| self.bucket(hash, bucket_len));
        cells.find(|&at| self.cells.byte(at) == print)
    }

    fn count(&self, trace: Trace, bucket_len: u16) -> u64 {
        let cells = trace.hashes.into_iter().flat_map(|hash| self.bucket(hash, bucket_len));
        cells.filter(|&at| self.cells.byte(at) == trace.print).count() as u64
    }
}

impl Cuckoo {
    /// An empty filter; `None` if it were too large.
    pub(crate) fn new(capacity: u64, bucket_len: u16, tries: u16, growth: u16) -> Option<Self> {
        let buckets = (capacity / u64::from(bucket_len.max(1))).max(1).next_power_of_two();
        // Zero is a power of two here, too.
        let growth = if growth == 0 { 0 } else { growth.next_power_of_two() };
        let first = Layer::new(buckets, bucket_len)?;
        Some(Self { buckets, size: 0, removed: 0, bucket_len, tries, growth, layers: vec![first] })
    }

    pub(crate) fn cell_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.cells.len() as u64).sum()
    }

    pub(crate) fn contains(&self, item: &[u8]) -> bool {
        let trace = Trace::of(item);
        self.layers.iter().any(|layer| layer.find(trace, self.bucket_len, trace.print).is_some())
    }

    pub(crate) fn count(&self, item: &[u8]) -> u64 {
        let trace = Trace::of(item);
        self.layers.iter().map(|layer| layer.count(trace, self.bucket_len)).sum()
    }

    pub(crate) fn add(&mut self, item: &[u8]) -> Result<(), Full> {
        let trace = Trace::of(item);
        loop {
            if self.put_in_free(trace) || self.put_by_force(trace) {
                self.size += 1;
                return Ok(());
            }
            if self.growth == 0 {
                return Err(Full::NotGrowing);
            }
            self.grow().ok_or(Full::TooLarge)?;
        }
    }

    fn put_in_free(&mut self, trace: Trace) -> bool {
        for layer in self.layers.iter_mut().rev() {
            if let Some(at) = layer.find(trace, self.bucket_len, 0) {
                layer.cells.set_byte(at, trace.print);
                return true;
            }
        }
        false
    }

    /// Drives prints of the topmost layer out, each into its other bucket, until one is free. If that does not end they
    /// all go back.
    fn put_by_force(&mut self, trace: Trace) -> bool {
        let (bucket_len, tries) = (usize::from(self.bucket_len), self.tries);
        let Some(layer) = self.layers.last_mut() else { return false };
        let swap = |layer: &mut Layer, bucket: u64, victim: usize, print: u8| {
            let at = bucket as usize * bucket_len + victim;
            let driven_out = layer.cells.byte(at);
            layer.cells.set_byte(at, print);
            driven_out
        };
        let (mut print, mut victim, mut bucket) = (trace.print, 0, trace.hashes[0] % layer.buckets);
        for _ in 0..tries {
            print = swap(layer, bucket, victim, print);
            bucket = other(print, bucket) % layer.buckets;
            let begin = bucket as usize * bucket_len;
            if let Some(free) = (begin..begin + bucket_len).find(|&at| layer.cells.byte(at) == 0) {
                layer.cells.set_byte(free, print);
                return true;
            }
            victim = (victim + 1) % bucket_len;
        }
        for _ in 0..tries {
            victim = (victim + bucket_len - 1) % bucket_len;
            bucket = other(print, bucket) % layer.buckets;
            print = swap(layer, bucket, victim, print);
        }
        false
    }

    fn grow(&mut self) -> Option<()> {
        let times = u64::from(self.growth).checked_pow(self.layers.len() as u32)?;
        let buckets = self.buckets.checked_mul(times).filter(|&buckets| buckets <= BUCKETS_MAX)?;
        let layer = Layer::new(buckets, self.bucket_len)?;
        if self.cell_bytes() + layer.cells.len() as u64 > CELL_BYTES_MAX || self.layers.len() > usize::from(u16::MAX) {
            return None;
        }
        self.layers.push(layer);
        Some(())
    }

    /// True if it was there, or something that cannot be told from it.
    pub(crate) fn remove(&mut self, item: &[u8]) -> bool {
        let trace = Trace::of(item);
        let bucket_len = self.bucket_len;
        let found = self.layers.iter_mut().rev().find_map(|layer| {
            let at = layer.find(trace, bucket_len, trace.print)?;
            layer.cells.set_byte(at, 0);
            Some(())
        });
        if found.is_none() {
            return false;
        }
        self.size = self.size.saturating_sub(1);
        self.removed += 1;
        if self.layers.len() > 1 && self.removed as f64 > self.size as f64 * 0.10 {
            self.compact(false);
        }
        true
    }

    /// Moves prints to lower layers, and drops the topmost while it is empty. Where one stays, lower layers cannot be
    /// dropped: they are looked at only if `goes_on`.
    pub(crate) fn compact(&mut self, goes_on: bool) {
        for place in (1..self.layers.len()).rev() {
            if !self.compact_layer(place) && !goes_on {
                break;
            }
        }
        self.removed = 0;
    }

    /// True if nothing is left in the layer.
    fn compact_layer(&mut self, place: usize) -> bool {
        let bucket_len = self.bucket_len;
        let (lower, upper) = self.layers.split_at_mut(place);
        let layer = &mut upper[0];
        let mut is_empty = true;
        for page in 0..layer.cells.page_count() {
            // What was never set aside holds nothing.
            let Some(cells) = layer.cells.page(page).map(<[u8]>::to_vec) else { continue };
            for (nth, &print) in cells.iter().enumerate().filter(|(_, print)| **print != 0) {
                let at = page * super::pages::PAGE_BYTES + nth;
                let bucket = (at / usize::from(bucket_len)) as u64;
                let trace = Trace { print, hashes: [bucket, other(print, bucket)] };
                let home = lower.iter_mut().find_map(|lower| lower.find(trace, bucket_len, 0).map(|at| (lower, at)));
                match home {
                    Some((lower, free)) => {
                        lower.cells.set_byte(free, print);
                        layer.cells.set_byte(at, 0);
                    }
                    None => is_empty = false,
                }
            }
        }
        if is_empty && place + 1 == self.layers.len() {
            self.layers.pop();
        }
        is_empty
    }

    fn is_sound(&self) -> bool {
        let cells_fit =
            |layer: &Layer| layer.buckets > 0 && layer.buckets * u64::from(self.bucket_len) == layer.cells.len() as u64;
        (1..=255).contains(&self.bucket_len)
            && self.tries > 0
            && self.growth <= GROWTH_MAX
            && (1..=LAYERS_MAX + 1).contains(&self.layers.len())
            && (self.growth > 0 || self.layers.len() == 1)
            && self.buckets.is_power_of_two()
            && self.buckets <= BUCKETS_MAX
            && self.layers.iter().all(cells_fit)
            && self.cell_bytes() <= CELL_BYTES_MAX
    }

    pub(crate) fn checked(self) -> Option<Self> {
        self.is_sound().then_some(self)
    }

    /// A layer that is said to have so many buckets.
    pub(crate) fn layer_of(buckets: u64, bucket_len: u16) -> Option<Layer> {
        Layer::new(buckets, bucket_len)
    }

    pub(super) fn write_head(&self, out: &mut Vec<u8>) {
        let numbers = [
            self.buckets,
            self.size,
            self.removed,
            self.bucket_len.into(),
            self.tries.into(),
            self.growth.into(),
            self.layers.len() as u64,
        ];
        numbers
            .into_iter()
            .chain(self.layers.iter().map(|layer| layer.buckets))
            .for_each(|number| put_number(out, number));
    }

    pub(super) fn read_head(items: &mut Items<'_>) -> Option<Self> {
        let (buckets, size, removed) = (items.number()?, items.number()?, items.number()?);
        let bucket_len = items.number()?.try_into().ok()?;
        let (tries, growth) = (items.number()?.try_into().ok()?, items.number()?.try_into().ok()?);
        let count = items.number().filter(|&count| count <= LAYERS_MAX as u64 + 1)?;
        let layers = (0..count).map(|_| Layer::new(items.number()?, bucket_len)).collect::<Option<Vec<_>>>()?;
        Self { buckets, size, removed, bucket_len, tries, growth, layers }.checked()
    }

    // What CF.SCANDUMP answers first, all little-endian and without gaps:
    //
    //   items u64, buckets u64, removed u64, layers u64, cells of a bucket u16, tries u16, growth u16

    pub(crate) fn dump_header(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for number in [self.size, self.buckets, self.removed, self.layers.len() as u64] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.bucket_len, self.tries, self.growth] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out
    }

    /// True if the header is as long as one is.
    pub(crate) fn is_header(header: &[u8]) -> bool {
        header.len() == HEADER_BYTES
    }

    pub(crate) fn from_header(header: &[u8]) -> Option<Self> {
        let mut items = Items::new(header);
        let (size, buckets) = (fixed_64(&mut items)?, fixed_64(&mut items)?);
        let (removed, count) = (fixed_64(&mut items)?, fixed_64(&mut items)?);
        let (bucket_len, tries) = (fixed_16(&mut items)?, fixed_16(&mut items)?);
        let growth = fixed_16(&mut items).filter(|_| items.is_done() && count <= LAYERS_MAX as u64)?;
        let layers = (0..count as u32)
            .map(|nth| Layer::new(buckets.checked_mul(u64::from(growth).checked_pow(nth)?)?, bucket_len))
            .collect::<Option<Vec<_>>>()?;
        Self { buckets, size, removed, bucket_len, tries, growth, layers }.checked()
    }

    /// A part of the cells, from an offset over all layers on: up to `len` bytes, of one layer. Nothing at the end.
    pub(crate) fn dump_chunk(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        let (layer, within) = self.layer_at(offset)?;
        Some(self.layers[layer].cells.read(within, len))
    }

    /// Puts a part of the cells back. False if it does not fit.
    pub(crate) fn load_chunk(&mut self, offset: u64, chunk: &[u8]) -> bool {
        match self.layer_at(offset) {
            Some((layer, within)) if chunk.len() <= self.layers[layer].cells.len() - within => {
                self.layers[layer].cells.write(within, chunk);
                true
            }
            _ => false,
        }
    }

    fn layer_at(&self, offset: u64) -> Option<(usize, usize)> {
        let mut before = 0;
        for (place, layer) in self.layers.iter().enumerate() {
            let behind = before + layer.cells.len() as u64;
            if offset < behind {
                return Some((place, (offset - before) as usize));
            }
            before = behind;
        }
        None
    }
}
