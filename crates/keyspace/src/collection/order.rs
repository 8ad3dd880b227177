//! The order in which the members of large sets and the fields of large hashes lie.
//!
//! They are ordered by a hash of 32 bits, and those of one hash by their bytes. Cursors of SSCAN and HSCAN are places
//! in this order, and what SPOP takes follows from it. So the hash is part of what is replicated, the same on every
//! machine and in every version: it is defined here and not borrowed from a library.
//!
//! Nothing gets slow when many members have one hash: a search looks at their bytes. So the hash need not be secret.

use std::cmp::Ordering;
use std::ops::Range;

use crate::tree::{Descent, Element, Sought, Tree};

const FIRST: u64 = 0x9E37_79B9_7F4A_7C15;
const STEP: u64 = 0xA076_1D64_78BD_642F;
const LAST: u64 = 0xE703_7ED1_A0B4_28DB;

/// Both halves of a product, one over the other (a *folded multiply*, as in wyhash).
#[inline]
fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    product as u64 ^ (product >> 64) as u64
}

/// The place of a member.
#[inline]
pub(crate) fn place_of(member: &[u8]) -> u32 {
    let mut state = FIRST;
    let (words, tail) = member.as_chunks::<8>();
    for word in words {
        state = fold(state ^ u64::from_le_bytes(*word), STEP);
    }
    let mut word = [0; 8];
    word[..tail.len()].copy_from_slice(tail);
    state = fold(state ^ u64::from_le_bytes(word), STEP);
    (fold(state ^ member.len() as u64, LAST) >> 32) as u32
}

/// An element that lies in this order.
pub(crate) trait Placed: Element<Key = u32> {
    /// The member, or field: its place is the element's key.
    fn text(&self) -> &[u8];
}

/// A member, or field, that is looked for.
pub(crate) struct Wanted<'a> {
    place: u32,
    text: &'a [u8],
}

impl<'a> Wanted<'a> {
    #[inline]
    pub(crate) fn new(text: &'a [u8]) -> Self {
        Self { place: place_of(text), text }
    }
}

impl<T: Placed> Sought<T> for Wanted<'_> {
    #[inline]
    fn near(&self, place: u32) -> Ordering {
        place.cmp(&self.place)
    }

    #[inline]
    fn exact(&self, element: &T) -> Ordering {
        element.key().cmp(&self.place).then_with(|| element.text().cmp(self.text))
    }

    /// Places are spread evenly.
    #[inline]
    fn guess(&self, first: u32, last: u32, len: usize) -> Option<usize> {
        let (passed, all) = (u64::from(self.place.saturating_sub(first)), u64::from(last - first));
        Some((passed * (len - 1) as u64).checked_div(all).map_or(0, |guess| guess as usize))
    }
}

/// A member, or field, that is looked up ahead of the command that names it.
pub(crate) struct PrefetchedElement<'a, T: Placed> {
    wanted: Wanted<'a>,
    descent: Descent<'a, T>,
}

impl<'a, T: Placed> PrefetchedElement<'a, T> {
    /// `None` in a tree that is small enough to be near anyway.
    #[inline]
    pub(crate) fn new(tree: &'a Tree<T>, text: &'a [u8]) -> Option<Self> {
        (tree.len() >= GLIMPSED_LEN_MIN)
            .then(|| tree.descent())
            .flatten()
            .map(|descent| Self { wanted: Wanted::new(text), descent })
    }

    /// See [`Descent::step`].
    #[inline]
    pub(crate) fn step(&mut self) -> bool {
        self.descent.step(&self.wanted)
    }

    /// Reads from the element that was found, and tells nothing of value.
    #[inline]
    pub(crate) fn touch(&self) -> u8 {
        self.descent.element(&self.wanted).and_then(|element| element.text().first()).map_or(0, |first| *first)
    }
}

/// Trees of fewer elements are in the processor's caches as soon as they are used often.
const GLIMPSED_LEN_MIN: usize = 8192;

/// Cursors end here.
const CURSOR_END: u64 = 1 << 32;

/// Which elements one step of a scan visits, from `cursor` on: `count` of them, and those that share the last one's
/// place. With the cursor to go on from; 0 is the end. What exists during a whole walk is visited.
pub(crate) fn scan_range<T: Element<Key = u32>>(tree: &Tree<T>, cursor: u64, count: usize) -> (Range<usize>, u64) {
    let Some(start) = scan_start(tree, cursor) else { return (0..0, 0) };
    let Some(last) = tree.get(start.saturating_add(count.max(1) - 1)) else { return (start..tree.len(), 0) };
    let next = u64::from(last.key()) + 1;
    if next == CURSOR_END {
        return (start..tree.len(), 0);
    }
    let end = lower_bound(tree, next as u32);
    (start..end, if end == tree.len() { 0 } else { next })
}

/// The rank at which a step from `cursor` on begins; `None` if that is no cursor.
pub(crate) fn scan_start<T: Element<Key = u32>>(tree: &Tree<T>, cursor: u64) -> Option<usize> {
    u32::try_from(cursor).ok().map(|from| lower_bound(tree, from))
}

fn lower_bound<T: Element<Key = u32>>(tree: &Tree<T>, place: u32) -> usize {
    match tree.search(|key| key.cmp(&place), |element| element.key().cmp(&place).then(Ordering::Greater)) {
        Ok((rank, _)) | Err(rank) => rank,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_what_they_have_always_been() {
        // A change of any of these would reorder what other replicas and checkpoints hold.
        for (member, place) in
            [("", 3_876_945_003), ("a", 1_278_446_680), ("12345678", 90_412_106), ("a longer member", 2_268_835_145)]
        {
            assert_eq!(place_of(member.as_bytes()), place, "{member}");
        }
    }

    #[test]
    fn a_guess_is_close_where_places_are_spread_and_harmless_where_they_are_not() {
        let wanted = Wanted { place: 1000, text: b"" };
        let guess = |first, last, len| Sought::<Spot>::guess(&wanted, first, last, len).unwrap();
        assert_eq!(guess(0, 4000, 41), 10);
        assert_eq!(guess(1000, 1000, 64), 0, "all have one place");
        assert_eq!(guess(2000, 3000, 64), 0, "it lies before all");
        assert!(guess(0, 10, 64) >= 64, "it lies behind all");
    }

    #[derive(Clone)]
    struct Spot(u32);

    impl Element for Spot {
        type Key = u32;

        fn key(&self) -> u32 {
            self.0
        }

        fn heap_bytes(&self) -> usize {
            0
        }
    }

    impl Placed for Spot {
        fn text(&self) -> &[u8] {
            &[]
        }
    }

    #[test]
    fn places_are_spread_evenly() {
        let mut buckets = [0u32; 256];
        (0..256_000).for_each(|number| buckets[(place_of(format!("member:{number}").as_bytes()) >> 24) as usize] += 1);
        assert!(buckets.iter().all(|count| (800..1200).contains(count)), "{buckets:?}");
    }
}
