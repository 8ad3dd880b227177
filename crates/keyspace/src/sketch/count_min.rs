//! Count-min sketches (Cormode, Muthukrishnan, 2005): rows of counters, of which each item has one in every row. The
//! least of them is never too small, and seldom much too large.

use super::CELL_BYTES_MAX;
use super::hash::hash_32;
use super::pages::{PAGE_BYTES, Pages};
use crate::collection::packed::{Items, put_number};

const COUNTER_BYTES: u64 = 4;

/// Most rows: each item is looked up in all of them.
pub(crate) const DEPTH_MAX: u64 = 1024;

#[derive(Clone, Debug)]
pub(crate) struct CountMin {
    pub(crate) width: u64,
    pub(crate) depth: u64,
    /// Sum of all that was added.
    pub(crate) sum: u64,
    pub(crate) cells: Pages,
}

impl CountMin {
    /// `None` if it were too large.
    pub(crate) fn new(width: u64, depth: u64) -> Option<Self> {
        let bytes = width.checked_mul(depth)?.checked_mul(COUNTER_BYTES).filter(|&bytes| bytes <= CELL_BYTES_MAX)?;
        (bytes > 0 && depth <= DEPTH_MAX).then(|| Self { width, depth, sum: 0, cells: Pages::new(bytes as usize) })
    }

    /// Width and depth for an error, as a share of the sum, and the probability that it is larger.
    pub(crate) fn dimensions(error: f64, probability: f64) -> (u64, u64) {
        let depth = libm::log10f(probability as f32) / libm::log10f(0.5);
        ((2.0 / error).ceil() as u64, depth.ceil() as u64)
    }

    fn places(&self, item: &[u8]) -> impl Iterator<Item = usize> {
        let width = self.width;
        let places = (0..self.depth).map(move |row| row * width + u64::from(hash_32(item, row as u32)) % width);
        places.map(|place| (place * COUNTER_BYTES) as usize)
    }

    /// Counts an item, and answers how often it was counted; [`u32::MAX`] is more than can be told.
    pub(crate) fn add(&mut self, item: &[u8], count: u64) -> u32 {
        let mut least = u32::MAX;
        let places: Vec<usize> = self.places(item).collect();
        for at in places {
            let counter = u64::from(self.cells.number(at)).saturating_add(count).min(u32::MAX.into()) as u32;
            self.cells.set_number(at, counter);
            least = least.min(counter);
        }
        self.sum = self.sum.wrapping_add(count);
        least
    }

    pub(crate) fn count(&self, item: &[u8]) -> u32 {
        self.places(item).map(|at| self.cells.number(at)).min().unwrap_or_default()
    }

    /// What sketches of these dimensions are together, each so many times; `None` if a counter would be less than
    /// nothing or more than it can hold.
    pub(crate) fn merged(width: u64, depth: u64, sources: &[(&Self, i64)]) -> Option<Self> {
        let mut merged = Self::new(width, depth)?;
        let mut sum = 0i64;
        for (source, weight) in sources {
            sum = i64::try_from(source.sum).ok()?.checked_mul(*weight)?.checked_add(sum)?;
        }
        merged.sum = sum.try_into().ok()?;
        for page in 0..merged.cells.page_count() {
            // Where nobody has counted there is nothing to add.
            if sources.iter().all(|(source, _)| source.cells.page(page).is_none()) {
                continue;
            }
            let begin = page * PAGE_BYTES;
            for at in (begin..merged.cells.len().min(begin + PAGE_BYTES)).step_by(COUNTER_BYTES as usize) {
                let mut counter = 0i64;
                for (source, weight) in sources {
                    counter = i64::from(source.cells.number(at)).checked_mul(*weight)?.checked_add(counter)?;
                }
                let counter = u32::try_from(counter).ok()?;
                if counter > 0 {
                    merged.cells.set_number(at, counter);
                }
            }
        }
        Some(merged)
    }

    pub(super) fn write_head(&self, out: &mut Vec<u8>) {
        [self.width, self.depth, self.sum].into_iter().for_each(|number| put_number(out, number));
    }

    pub(super) fn read_head(items: &mut Items<'_>) -> Option<Self> {
        let mut sketch = Self::new(items.number()?, items.number()?)?;
        sketch.sum = items.number()?;
        Some(sketch)
    }
}
