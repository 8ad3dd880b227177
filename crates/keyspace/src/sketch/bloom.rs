//! Bloom filters (Bloom, 1970) that grow: when the last *layer* holds what it was made for, another follows, as much
//! larger as the filter's growth says, and with half the error, so that all together err no more often than promised
//! (Almeida, Baquero, Preguiça, Hutchison, 2007).

use super::hash::{hash_32, hash_64};
use super::pages::Pages;
use super::{CELL_BYTES_MAX, put_double, read_double};
use crate::collection::packed::{Items, put_number};

/// Options, as RedisBloom numbers them in its dumps.
pub(crate) const NO_ROUND: u32 = 1;
const ENTRIES_ARE_BITS: u32 = 2;
pub(crate) const FORCE_64: u32 = 4;
pub(crate) const NO_SCALING: u32 = 8;

/// Each layer errs so much less often than the one before it.
const TIGHTENING: f64 = 0.5;

/// The natural logarithm of 2, and its square, as exact as RedisBloom has them: the number of hashes depends on it.
const LN_2: f64 = 693_147_180_559_945.0 / 1e15;
const LN_2_SQUARED: f64 = 0.480_453_013_918_201;

/// More hashes than the smallest error that there is needs.
const HASHES_MAX: u32 = 2048;

/// Most layers of a filter.
const LAYERS_MAX: u64 = 4096;

const HEADER_BYTES: usize = 20;
const LAYER_HEADER_BYTES: usize = 53;

#[derive(Clone, Debug)]
pub(crate) struct Bloom {
    /// Items added.
    pub(crate) size: u64,
    pub(crate) options: u32,
    pub(crate) growth: u32,
    pub(crate) layers: Vec<Layer>,
}

#[derive(Clone, Debug)]
pub(crate) struct Layer {
    /// Items for which it is made.
    pub(crate) capacity: u64,
    pub(crate) error: f64,
    pub(crate) hashes: u32,
    pub(crate) bits_per_item: f64,
    pub(crate) bits: u64,
    /// The logarithm of the number of bits that are used, if that is a power of two; else 0.
    pub(crate) log_bits: u8,
    /// Items added.
    pub(crate) size: u64,
    pub(crate) cells: Pages,
}

/// Why an item could not be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// It must not grow.
    NotScaling,
    /// It would grow beyond what a sketch may be.
    TooLarge,
}

#[derive(Clone, Copy)]
struct Trace {
    first: u64,
    step: u64,
}

impl Layer {
    fn new(capacity: u64, error: f64) -> Option<Self> {
        // Beyond `(0, 1)` or not a number.
        if capacity == 0 || !(error > 0.0 && error < 1.0) {
            return None;
        }
        let bits_per_item = (libm::log(error) / LN_2_SQUARED).abs();
        let bits = capacity as f64 * bits_per_item;
        if bits / 8.0 > CELL_BYTES_MAX as f64 {
            return None;
        }
        let bytes = (bits as u64).max(1).div_ceil(64) * 8;
        Some(Self {
            capacity,
            error,
            hashes: hashes_of(bits_per_item),
            bits_per_item,
            bits: bytes * 8,
            log_bits: 0,
            size: 0,
            cells: Pages::new(bytes as usize),
        })
    }

    /// The bits for an item.
    fn places(&self, trace: Trace) -> impl Iterator<Item = u64> + use<> {
        let bits = if self.log_bits > 0 { 1 << self.log_bits } else { self.bits };
        (0..u64::from(self.hashes)).map(move |nth| trace.first.wrapping_add(nth.wrapping_mul(trace.step)) % bits)
    }

    fn contains(&self, trace: Trace) -> bool {
        self.places(trace).all(|place| self.cells.byte((place / 8) as usize) & 1 << (place % 8) != 0)
    }

    /// True if it was not there.
    fn add(&mut self, trace: Trace) -> bool {
        let mut is_new = false;
        for place in self.places(trace) {
            let (at, bit) = ((place / 8) as usize, 1 << (place % 8));
            let byte = self.cells.byte(at);
            if byte & bit == 0 {
                self.cells.set_byte(at, byte | bit);
                is_new = true;
            }
        }
        is_new
    }

    /// What RedisBloom asks of layers that it reads; and that they fit.
    fn is_sound(&self) -> bool {
        self.error > 0.0
            && self.error < 1.0
            && self.log_bits <= 63
            && (self.log_bits == 0 || self.bits >= 1 << self.log_bits)
            && self.bits > 0
            && self.bits <= self.cells.len() as u64 * 8
            && self.bits_per_item > 0.0
            && self.hashes <= HASHES_MAX
            && self.hashes == hashes_of(self.bits_per_item)
    }
}

/// How many bits each item sets.
fn hashes_of(bits_per_item: f64) -> u32 {
    (LN_2 * bits_per_item).ceil() as u32
}

impl Bloom {
    /// An empty filter; `None` if its error is none, or if it were too large.
    pub(crate) fn new(capacity: u64, error: f64, growth: u32, is_scaling: bool) -> Option<Self> {
        let (tightening, scaling) = if is_scaling { (TIGHTENING, 0) } else { (1.0, NO_SCALING) };
        let first = Layer::new(capacity, error * tightening)?;
        Some(Self { size: 0, options: FORCE_64 | NO_ROUND | scaling, growth, layers: vec![first] })
    }

    pub(crate) fn is_scaling(&self) -> bool {
        self.options & NO_SCALING == 0
    }

    /// Bits of the hashes.
    pub(crate) fn hash_bits(&self) -> u32 {
        if self.options & FORCE_64 != 0 { 64 } else { 32 }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.capacity))
    }

    /// Bytes of its cells, whether they have been set aside or not.
    pub(crate) fn cell_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.cells.len() as u64).sum()
    }

    fn trace(&self, item: &[u8]) -> Trace {
        if self.options & FORCE_64 != 0 {
            let first = hash_64(item, 0xC6A4_A793_5BD1_E995);
            Trace { first, step: hash_64(item, first) }
        } else {
            let first = hash_32(item, 0x9747_B28C);
            Trace { first: first.into(), step: hash_32(item, first).into() }
        }
    }

    pub(crate) fn contains(&self, item: &[u8]) -> bool {
        let trace = self.trace(item);
        self.layers.iter().rev().any(|layer| layer.contains(trace))
    }

    /// True if it was not there.
    pub(crate) fn add(&mut self, item: &[u8]) -> Result<bool, Full> {
        let trace = self.trace(item);
        if self.layers.iter().rev().any(|layer| layer.contains(trace)) {
            return Ok(false);
        }
        let cell_bytes = self.cell_bytes();
        let last = self.layers.last().ok_or(Full::TooLarge)?;
        if last.size >= last.capacity {
            if !self.is_scaling() {
                return Err(Full::NotScaling);
            }
            let capacity = last.capacity.checked_mul(self.growth.into()).ok_or(Full::TooLarge)?;
            let next = Layer::new(capacity, last.error * TIGHTENING).ok_or(Full::TooLarge)?;
            let is_too_large = cell_bytes + next.cells.len() as u64 > CELL_BYTES_MAX;
            if is_too_large || self.layers.len() as u64 >= LAYERS_MAX {
                return Err(Full::TooLarge);
            }
            self.layers.push(next);
        }
        let last = self.layers.last_mut().ok_or(Full::TooLarge)?;
        let is_new = last.add(trace);
        last.size += u64::from(is_new);
        self.size += u64::from(is_new);
        Ok(is_new)
    }

    fn is_sound(&self) -> bool {
        let known = NO_ROUND | ENTRIES_ARE_BITS | FORCE_64 | NO_SCALING;
        let sum = self.layers.iter().try_fold(0u64, |sum, layer| sum.checked_add(layer.size));
        !self.layers.is_empty()
            && self.options & !known == 0
            && sum == Some(self.size)
            && self.layers.iter().all(Layer::is_sound)
            && self.cell_bytes() <= CELL_BYTES_MAX
    }

    /// The filter, if it could have been made; what is read from outside goes through here.
    pub(crate) fn checked(self) -> Option<Self> {
        self.is_sound().then_some(self)
    }

    /// Cells for a layer that is said to have so many bytes.
    pub(crate) fn cells_of(bytes: u64) -> Option<Pages> {
        (bytes <= CELL_BYTES_MAX).then(|| Pages::new(bytes as usize))
    }

    pub(super) fn write_head(&self, out: &mut Vec<u8>) {
        for number in [self.size, self.options.into(), self.growth.into(), self.layers.len() as u64] {
            put_number(out, number);
        }
        for layer in &self.layers {
            put_number(out, layer.capacity);
            put_double(out, layer.error);
            put_number(out, layer.hashes.into());
            put_double(out, layer.bits_per_item);
            for number in [layer.bits, layer.log_bits.into(), layer.cells.len() as u64, layer.size] {
                put_number(out, number);
            }
        }
    }

    pub(super) fn read_head(items: &mut Items<'_>) -> Option<Self> {
        let (size, options, growth) = (items.number()?, items.number()?, items.number()?);
        let count = items.number().filter(|&count| count <= LAYERS_MAX)?;
        let layers = (0..count).map(|_| Self::read_layer(items)).collect::<Option<Vec<_>>>()?;
        Self { size, options: options.try_into().ok()?, growth: growth.try_into().ok()?, layers }.checked()
    }

    fn read_layer(items: &mut Items<'_>) -> Option<Layer> {
        let (capacity, error) = (items.number()?, read_double(items)?);
        let (hashes, bits_per_item) = (items.number()?.try_into().ok()?, read_double(items)?);
        let (bits, log_bits) = (items.number()?, items.number()?.try_into().ok()?);
        let cells = Self::cells_of(items.number()?)?;
        Some(Layer { capacity, error, hashes, bits_per_item, bits, log_bits, size: items.number()?, cells })
    }

    // What BF.SCANDUMP answers first, all little-endian and without gaps:
    //
    //   items u64, layers u32, options u32, growth u32; each layer:
    //   bytes u64, bits u64, items u64, error f64, bits of an item f64, hashes u32, capacity u64, logarithm u8

    pub(crate) fn dump_header(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&self.size.to_le_bytes());
        for number in [self.layers.len() as u32, self.options, self.growth] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for layer in &self.layers {
            for number in [layer.cells.len() as u64, layer.bits, layer.size] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            put_double(&mut out, layer.error);
            put_double(&mut out, layer.bits_per_item);
            out.extend_from_slice(&layer.hashes.to_le_bytes());
            out.extend_from_slice(&layer.capacity.to_le_bytes());
            out.push(layer.log_bits);
        }
        out
    }

    pub(crate) fn from_header(header: &[u8]) -> Option<Self> {
        let mut items = Items::new(header);
        let size = fixed_64(&mut items)?;
        let (count, options, growth) = (fixed_32(&mut items)?, fixed_32(&mut items)?, fixed_32(&mut items)?);
        let expected_len = HEADER_BYTES as u64 + LAYER_HEADER_BYTES as u64 * u64::from(count);
        if u64::from(count) > LAYERS_MAX || header.len() as u64 != expected_len {
            return None;
        }
        let layers = (0..count)
            .map(|_| {
                let (bytes, bits, size) = (fixed_64(&mut items)?, fixed_64(&mut items)?, fixed_64(&mut items)?);
                let (error, bits_per_item) = (read_double(&mut items)?, read_double(&mut items)?);
                let (hashes, capacity, log_bits) = (fixed_32(&mut items)?, fixed_64(&mut items)?, items.byte()?);
                let cells = Self::cells_of(bytes).filter(|_| bits == bytes * 8)?;
                Some(Layer { capacity, error, hashes, bits_per_item, bits, log_bits, size, cells })
            })
            .collect::<Option<Vec<_>>>()?;
        Self { size, options, growth, layers }.checked()
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

pub(super) fn fixed_64(items: &mut Items<'_>) -> Option<u64> {
    Some(u64::from_le_bytes(items.take(8)?.try_into().ok()?))
}

pub(super) fn fixed_32(items: &mut Items<'_>) -> Option<u32> {
    Some(u32::from_le_bytes(items.take(4)?.try_into().ok()?))
}

pub(super) fn fixed_16(items: &mut Items<'_>) -> Option<u16> {
    Some(u16::from_le_bytes(items.take(2)?.try_into().ok()?))
}
