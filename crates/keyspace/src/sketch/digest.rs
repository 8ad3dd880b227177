//! t-digests (Dunning, Ertl, 2019): how values are distributed, as a few weighted means that lie dense where quantiles
//! are extreme. Values gather behind the means that are there until there is no more room; then all are sorted and
//! merged. A query sees them merged, but does not merge them: that would be a change.

use std::borrow::Cow;
use std::f64::consts::PI;
use std::sync::Arc;

use super::{put_double, read_double};
use crate::collection::packed::{Items, put_number};
use crate::record::allocated_bytes;

/// Greatest compression: a digest is written as a whole.
pub(crate) const COMPRESSION_MAX: u64 = 65_536;

#[derive(Clone, Debug)]
pub(crate) struct Digest {
    pub(crate) compression: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// So many of the nodes, the first, have been merged.
    pub(crate) merged: usize,
    pub(crate) compressions: u64,
    pub(crate) merged_weight: i64,
    pub(crate) unmerged_weight: i64,
    pub(crate) nodes: Arc<Vec<Node>>,
}

/// A mean, and how many values it stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) mean: f64,
    pub(crate) weight: i64,
}

/// Weights beyond what a number can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overflow;

impl Digest {
    /// `None` if it were too large.
    pub(crate) fn new(compression: u64) -> Option<Self> {
        (1..=COMPRESSION_MAX).contains(&compression).then(|| Self {
            compression: compression as f64,
            min: f64::MAX,
            max: f64::MIN,
            merged: 0,
            compressions: 0,
            merged_weight: 0,
            unmerged_weight: 0,
            nodes: Arc::default(),
        })
    }

    /// What was written elsewhere; `None` if it cannot have been.
    pub(crate) fn of_parts(self, nodes: Vec<Node>) -> Option<Self> {
        let this = Self { nodes: Arc::new(nodes), ..self };
        let sum = |nodes: &[Node]| nodes.iter().try_fold(0i64, |sum, node| sum.checked_add(node.weight));
        let (merged, unmerged) = this.nodes.split_at_checked(this.merged)?;
        let is_sound = this.nodes.len() <= this.capacity()
            && this.nodes.iter().all(|node| node.mean.is_finite() && node.weight > 0)
            && merged.is_sorted_by(|left, right| left.mean <= right.mean)
            && sum(merged) == Some(this.merged_weight)
            && sum(unmerged) == Some(this.unmerged_weight)
            && this.merged_weight.checked_add(this.unmerged_weight).is_some()
            && (this.nodes.is_empty() || this.min <= this.max && this.min.is_finite() && this.max.is_finite());
        is_sound.then_some(this)
    }

    /// Most nodes.
    pub(crate) fn capacity(&self) -> usize {
        6 * self.compression as usize + 10
    }

    pub(crate) fn unmerged(&self) -> usize {
        self.nodes.len() - self.merged
    }

    /// Number of values.
    pub(crate) fn size(&self) -> i64 {
        self.merged_weight + self.unmerged_weight
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(crate) fn node_bytes(&self) -> usize {
        allocated_bytes(self.nodes.capacity() * size_of::<Node>())
    }

    pub(crate) fn add(&mut self, mean: f64, weight: i64) -> Result<(), Overflow> {
        if self.nodes.len() >= self.capacity() - 1 {
            self.compress();
        }
        let unmerged_weight = self.unmerged_weight.checked_add(weight).ok_or(Overflow)?;
        unmerged_weight.checked_add(self.merged_weight).ok_or(Overflow)?;
        self.min = self.min.min(mean);
        self.max = self.max.max(mean);
        let capacity = self.capacity();
        let nodes = Arc::make_mut(&mut self.nodes);
        if nodes.len() == nodes.capacity() {
            // As a vector grows, but not beyond what it may hold.
            nodes.reserve_exact(nodes.len().max(4).min(capacity - nodes.len()));
        }
        nodes.push(Node { mean, weight });
        self.unmerged_weight = unmerged_weight;
        Ok(())
    }

    /// Adds what another has seen.
    pub(crate) fn merge(&mut self, other: &Self) -> Result<(), Overflow> {
        self.compress();
        let other = other.compressed();
        other.nodes.iter().try_for_each(|node| self.add(node.mean, node.weight))
    }

    /// The digest with all of its nodes merged.
    pub(crate) fn compressed(&self) -> Cow<'_, Self> {
        if self.unmerged() == 0 {
            return Cow::Borrowed(self);
        }
        let mut copy = self.clone();
        copy.compress();
        Cow::Owned(copy)
    }

    /// Merges neighbours for as long as the share of the whole that a mean stands for is small enough where it lies.
    pub(crate) fn compress(&mut self) {
        if self.unmerged() == 0 {
            return;
        }
        let total = self.size();
        let nodes = Arc::make_mut(&mut self.nodes);
        nodes.sort_by(|left, right| left.mean.total_cmp(&right.mean));
        if total > 1 {
            let whole = total as f64;
            let normalizer = self.compression / (2.0 * PI * whole * libm::log(whole));
            let mut last = 0;
            let mut before = 0.0;
            for nth in 1..nodes.len() {
                let (kept, next) = (nodes[last], nodes[nth]);
                let weight = kept.weight as f64 + next.weight as f64;
                let (low, high) = (before / whole, (before + weight) / whole);
                let scaled = weight * normalizer;
                if scaled <= low * (1.0 - low) && scaled <= high * (1.0 - high) {
                    let weight = kept.weight + next.weight;
                    let mean = kept.mean + (next.mean - kept.mean) * next.weight as f64 / weight as f64;
                    nodes[last] = Node { mean, weight };
                } else {
                    before += kept.weight as f64;
                    last += 1;
                    nodes[last] = next;
                }
            }
            nodes.truncate(last + 1);
        }
        self.merged = nodes.len();
        self.merged_weight = total;
        self.unmerged_weight = 0;
        self.compressions += 1;
    }

    /// The share of values up to this one, half of those that equal it. Ask one that is merged.
    pub(crate) fn share_below(&self, value: f64) -> f64 {
        let whole = self.merged_weight as f64;
        let (Some(first), Some(last)) = (self.nodes.first(), self.nodes.last()) else { return f64::NAN };
        if value < self.min {
            return 0.0;
        }
        if value > self.max {
            return 1.0;
        }
        if self.nodes.len() == 1 {
            return 0.5;
        }
        if value < first.mean {
            // One value lies at the least.
            return if value == self.min {
                0.5 / whole
            } else {
                (1.0 + (value - self.min) / (first.mean - self.min) * (first.weight as f64 / 2.0 - 1.0)) / whole
            };
        }
        if value > last.mean {
            return if value == self.max {
                1.0 - 0.5 / whole
            } else {
                let part = (self.max - value) / (self.max - last.mean) * (last.weight as f64 / 2.0 - 1.0);
                1.0 - (1.0 + part) / whole
            };
        }
        let mut before = 0.0;
        for (nth, pair) in self.nodes.windows(2).enumerate() {
            let [left, right] = [pair[0], pair[1]];
            if left.mean == value {
                let equal = self.nodes[nth..].iter().take_while(|node| node.mean == value);
                let weight: f64 = equal.map(|node| node.weight as f64).sum();
                return (before + weight / 2.0) / whole;
            }
            if left.mean <= value && value < right.mean {
                let weight = (left.weight + right.weight) as f64 / 2.0;
                // A single value lies exactly at its mean.
                let (mut left_out, mut right_out) = (0.0, 0.0);
                match (left.weight, right.weight) {
                    (1, 1) => return (before + 1.0) / whole,
                    (1, _) => left_out = 0.5,
                    (_, 1) => right_out = 0.5,
                    _ => {}
                }
                let base = before + left.weight as f64 / 2.0 + left_out;
                let part = (weight - left_out - right_out) * (value - left.mean) / (right.mean - left.mean);
                return (base + part) / whole;
            }
            before += left.weight as f64;
        }
        1.0 - 0.5 / whole
    }

    /// The value below which this share of all lie. Ask one that is merged.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        match self.nodes.as_slice() {
            [] => f64::NAN,
            [only] => only.mean,
            _ if share * (self.merged_weight as f64) < 1.0 => self.min,
            _ => Walk::new(self).value_at(share * self.merged_weight as f64),
        }
    }

    /// The values below which these shares of all lie, which must not fall. Ask one that is merged.
    pub(crate) fn quantiles(&self, shares: &[f64]) -> Vec<f64> {
        match self.nodes.as_slice() {
            [] => vec![f64::NAN; shares.len()],
            [only] => vec![only.mean; shares.len()],
            _ => {
                let mut walk = Walk::new(self);
                shares.iter().map(|share| walk.value_at(share * self.merged_weight as f64)).collect()
            }
        }
    }

    /// The mean of the values between two shares. Ask one that is merged.
    pub(crate) fn trimmed_mean(&self, low: f64, high: f64) -> f64 {
        if let [only] = self.nodes.as_slice() {
            return only.mean;
        }
        let from = (self.merged_weight as f64 * low).floor();
        let to = (self.merged_weight as f64 * high).ceil();
        let (mut before, mut sum, mut count) = (0.0, 0.0, 0.0);
        for node in self.nodes.iter() {
            let mut part = node.weight as f64;
            part -= (from - before).max(0.0).min(part);
            part = (to - before).max(0.0).min(part);
            before += node.weight as f64;
            sum += node.mean * part;
            count += part;
            if before >= to {
                break;
            }
        }
        sum / count
    }

    pub(super) fn write_head(&self, out: &mut Vec<u8>) {
        [self.compression, self.min, self.max].into_iter().for_each(|number| put_double(out, number));
        let weights = [self.merged_weight as u64, self.unmerged_weight as u64];
        let numbers = [self.merged as u64, self.compressions].into_iter().chain(weights);
        numbers.chain([self.nodes.len() as u64]).for_each(|number| put_number(out, number));
        for node in self.nodes.iter() {
            put_double(out, node.mean);
            put_number(out, node.weight as u64);
        }
    }

    pub(super) fn read_head(items: &mut Items<'_>) -> Option<Self> {
        let compression = read_double(items)?;
        let empty = Self::new(compression as u64).filter(|empty| empty.compression == compression)?;
        let (min, max) = (read_double(items)?, read_double(items)?);
        let (merged, compressions) = (items.number()?.try_into().ok()?, items.number()?);
        let (merged_weight, unmerged_weight) = (items.number()?.try_into().ok()?, items.number()?.try_into().ok()?);
        let count = items.number().filter(|&count| count <= empty.capacity() as u64)?;
        let node = |_| Some(Node { mean: read_double(items)?, weight: items.number()?.try_into().ok()? });
        let nodes = (0..count).map(node).collect::<Option<Vec<_>>>()?;
        Self { min, max, merged, compressions, merged_weight, unmerged_weight, ..empty }.of_parts(nodes)
    }
}

/// A way along the nodes, for quantiles that rise.
struct Walk<'a> {
    digest: &'a Digest,
    nth: usize,
    before: f64,
}

impl<'a> Walk<'a> {
    fn new(digest: &'a Digest) -> Self {
        let first = digest.nodes.first().map_or(0, |node| node.weight);
        Self { digest, nth: 0, before: first as f64 / 2.0 }
    }

    /// The value at a place in the order of all values. There are at least two nodes.
    fn value_at(&mut self, place: f64) -> f64 {
        let Digest { min, max, .. } = *self.digest;
        let nodes = self.digest.nodes();
        let (first, last) = (nodes[0], nodes[nodes.len() - 1]);
        let (first_weight, last_weight) = (first.weight as f64, last.weight as f64);
        let whole = self.digest.merged_weight as f64;
        if first_weight > 1.0 && place < first_weight / 2.0 {
            return min + (place - 1.0) / (first_weight / 2.0 - 1.0) * (first.mean - min);
        }
        if place > whole - 1.0 {
            return max;
        }
        if last_weight > 1.0 && whole - place <= last_weight / 2.0 {
            return max - (whole - place - 1.0) / (last_weight / 2.0 - 1.0) * (max - last.mean);
        }
        while self.nth + 1 < nodes.len() {
            let (left, right) = (nodes[self.nth], nodes[self.nth + 1]);
            let weight = (left.weight as f64 + right.weight as f64) / 2.0;
            if self.before + weight > place {
                let (mut left_unit, mut right_unit) = (0.0, 0.0);
                if left.weight == 1 {
                    if place - self.before < 0.5 {
                        return left.mean;
                    }
                    left_unit = 0.5;
                }
                if right.weight == 1 {
                    if self.before + weight - place <= 0.5 {
                        return right.mean;
                    }
                    right_unit = 0.5;
                }
                let from_left = place - self.before - left_unit;
                let to_right = self.before + weight - place - right_unit;
                return weighted(left.mean, to_right, right.mean, from_left);
            }
            self.before += weight;
            self.nth += 1;
        }
        let from_last = place - whole - last_weight / 2.0;
        weighted(last.mean, from_last, max, last_weight / 2.0 - from_last)
    }
}

/// The mean of two numbers of which the first is the lesser or equal, and never beyond them.
fn weighted(left: f64, left_weight: f64, right: f64, right_weight: f64) -> f64 {
    if left > right {
        return weighted(right, right_weight, left, left_weight);
    }
    let mean = (left * left_weight + right * right_weight) / (left_weight + right_weight);
    left.max(mean.min(right))
}
