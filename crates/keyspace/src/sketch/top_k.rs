//! The items that were seen most often, by HeavyKeeper (Gong, Yang, Zhang, Li, Uhlig, Chen, Uden, Li, 2018): rows of
//! counters, each with the print of one item; others that meet it make it decay, the less likely the higher it is. The
//! best lie in a heap.

use std::sync::Arc;

use stdx::Prng;

use super::hash::hash_32;
use super::pages::Pages;
use super::{CELL_BYTES_MAX, put_double, read_double};
use crate::collection::packed::{self, Items, put_number};
use crate::record::allocated_bytes;

/// Most items of a list: each addition may look at all of them.
pub(crate) const K_MAX: u64 = 100_000;

/// Most rows: each item is looked up in all of them.
pub(crate) const DEPTH_MAX: u32 = 1024;

/// A counter: print and count, each of 32 bits.
const COUNTER_BYTES: u64 = 8;

/// Seed of the print.
const PRINT_SEED: u32 = 1919;

/// Powers of the decay that are kept.
const POWERS: usize = 256;

/// Bytes beside those of an item's text: two counters of references.
const SHARE_BYTES: usize = 16;

#[derive(Clone, Debug)]
pub(crate) struct TopK {
    pub(crate) k: u32,
    pub(crate) width: u32,
    pub(crate) depth: u32,
    pub(crate) decay: f64,
    pub(crate) cells: Pages,
    /// A heap of `k` places, the least count first.
    heap: Arc<Vec<Place>>,
    /// Bytes of the texts in the heap.
    text_bytes: usize,
}

/// A place of the heap; one without an item has the count 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    pub(crate) print: u32,
    pub(crate) count: u32,
    pub(crate) item: Option<Arc<[u8]>>,
}

impl TopK {
    /// `None` if it were too large.
    pub(crate) fn new(k: u32, width: u32, depth: u32, decay: f64) -> Option<Self> {
        let bytes = u64::from(width).checked_mul(depth.into())?.checked_mul(COUNTER_BYTES)?;
        let fits = bytes > 0 && depth <= DEPTH_MAX && bytes <= CELL_BYTES_MAX && k > 0 && u64::from(k) <= K_MAX;
        let is_decay = decay > 0.0 && decay <= 1.0;
        (fits && is_decay).then(|| Self {
            k,
            width,
            depth,
            decay,
            cells: Pages::new(bytes as usize),
            heap: Arc::new(vec![Place::default(); k as usize]),
            text_bytes: 0,
        })
    }

    /// Bytes allocated for the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        allocated_bytes(self.heap.len() * size_of::<Place>()) + self.text_bytes
    }

    pub(crate) fn heap(&self) -> &[Place] {
        &self.heap
    }

    fn cell(&self, item: &[u8], row: u32) -> usize {
        let place = u64::from(row) * u64::from(self.width) + u64::from(hash_32(item, row) % self.width);
        (place * COUNTER_BYTES) as usize
    }

    fn place_of(&self, print: u32, item: &[u8]) -> Option<usize> {
        self.heap.iter().rposition(|place| place.print == print && place.item.as_deref() == Some(item))
    }

    pub(crate) fn contains(&self, item: &[u8]) -> bool {
        self.place_of(print_of(item), item).is_some()
    }

    pub(crate) fn count(&self, item: &[u8]) -> u32 {
        let print = print_of(item);
        let least = if self.contains(item) { self.heap[0].count } else { 0 };
        let cells = (0..self.depth).map(|row| self.cell(item, row)).filter(|&at| self.cells.number(at) == print);
        cells.map(|at| self.cells.number(at + 4)).filter(|&count| count >= least).max().unwrap_or_default()
    }

    /// Counts an item, and answers which one it has driven out of the list.
    pub(crate) fn add(&mut self, item: &[u8], count: u32, powers: &Powers, prng: &mut Prng) -> Option<Arc<[u8]>> {
        let print = print_of(item);
        let mut most = 0;
        for row in 0..self.depth {
            let at = self.cell(item, row);
            let (holder, held) = (self.cells.number(at), self.cells.number(at + 4));
            let mut left = held;
            if held == 0 || holder == print {
                left = held.saturating_add(count);
                self.cells.set_number(at, print);
                most = most.max(left);
            } else {
                for rest in (1..=count).rev() {
                    if prng.draw() as f64 / u64::MAX as f64 >= powers.of(left) {
                        continue;
                    }
                    left -= 1;
                    if left == 0 {
                        self.cells.set_number(at, print);
                        left = rest;
                        most = most.max(left);
                        break;
                    }
                }
            }
            if left != held {
                self.cells.set_number(at + 4, left);
            }
        }
        if most < self.heap[0].count {
            return None;
        }
        let known = self.place_of(print, item);
        let heap = Arc::make_mut(&mut self.heap);
        match known {
            Some(place) => {
                heap[place].count = most;
                sink(heap, place);
                None
            }
            None => {
                self.text_bytes += text_bytes(item.len());
                let new = Place { print, count: most, item: Some(item.into()) };
                let driven_out = std::mem::replace(&mut heap[0], new).item;
                self.text_bytes -= driven_out.as_ref().map_or(0, |item| text_bytes(item.len()));
                sink(heap, 0);
                driven_out
            }
        }
    }

    /// The items, those seen most often first.
    pub(crate) fn list(&self) -> Vec<&Place> {
        let mut list: Vec<_> = self.heap.iter().filter(|place| place.count > 0 && place.item.is_some()).collect();
        list.sort_by_key(|place| std::cmp::Reverse(place.count));
        list
    }

    /// Sets a place of the heap, which must be empty. False if there is no such place.
    pub(crate) fn set_place(&mut self, nth: usize, print: u32, count: u32, item: &[u8]) -> bool {
        let Some(place) = Arc::make_mut(&mut self.heap).get_mut(nth) else { return false };
        *place = Place { print, count, item: Some(item.into()) };
        self.text_bytes += text_bytes(item.len());
        true
    }

    pub(super) fn write_head(&self, out: &mut Vec<u8>) {
        [self.k, self.width, self.depth].into_iter().for_each(|number| put_number(out, number.into()));
        put_double(out, self.decay);
        let used = self.heap.iter().enumerate().filter_map(|(nth, place)| Some((nth, place, place.item.as_ref()?)));
        put_number(out, used.clone().count() as u64);
        for (nth, place, item) in used {
            put_number(out, nth as u64);
            put_number(out, place.print.into());
            put_number(out, place.count.into());
            packed::put(out, item);
        }
    }

    pub(super) fn read_head(items: &mut Items<'_>) -> Option<Self> {
        let mut number = || items.number()?.try_into().ok();
        let (k, width, depth) = (number()?, number()?, number()?);
        let mut list = Self::new(k, width, depth, read_double(items)?)?;
        for _ in 0..items.number()? {
            let nth = items.number()?.try_into().ok()?;
            let (print, count) = (items.number()?.try_into().ok()?, items.number()?.try_into().ok()?);
            if !list.set_place(nth, print, count, items.next()?) {
                return None;
            }
        }
        Some(list)
    }
}

fn text_bytes(len: usize) -> usize {
    allocated_bytes(len + SHARE_BYTES)
}

pub(crate) fn print_of(item: &[u8]) -> u32 {
    hash_32(item, PRINT_SEED)
}

/// Lets what lies at a place of the heap sink below what is less.
fn sink(heap: &mut [Place], mut at: usize) {
    loop {
        let (left, right) = (2 * at + 1, 2 * at + 2);
        let Some(mut least) = heap.get(left).map(|_| left) else { return };
        if right < heap.len() && heap[left].count > heap[right].count {
            least = right;
        }
        if heap[least].count > heap[at].count {
            return;
        }
        // As in RedisBloom an equal one is passed at the first step and at no later one.
        heap.swap(at, least);
        at = least;
        if !may_sink_on(heap, at) {
            return;
        }
    }
}

/// True if something below a place is less than what lies there.
fn may_sink_on(heap: &[Place], at: usize) -> bool {
    [2 * at + 1, 2 * at + 2].into_iter().filter_map(|child| heap.get(child)).any(|child| child.count < heap[at].count)
}

/// Powers of a decay: how likely a counter is to lose one.
pub(crate) struct Powers([f64; POWERS]);

impl Powers {
    pub(crate) fn new(decay: f64) -> Self {
        let mut power = 1.0;
        Self(std::array::from_fn(|_| {
            let this = power;
            power *= decay;
            this
        }))
    }

    fn of(&self, count: u32) -> f64 {
        let count = count as usize;
        match self.0.get(count) {
            Some(power) => *power,
            None => libm::pow(self.0[POWERS - 1], (count / (POWERS - 1)) as f64) * self.0[count % (POWERS - 1)],
        }
    }
}
