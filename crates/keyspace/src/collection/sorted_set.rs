//! Sorted sets: members, each once and with a score, in the order of their scores; members of one score in that of
//! their bytes.
//!
//! Packed, a member is an item with its score behind it (see [`Score`]). Large, one tree has the members in order and
//! another, ordered as the members of large sets are, has the score of each.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use command::Refusal;

use super::order::{self, Placed};
use super::packed::{self, Head, Items};
use super::{Cell, Collection, Form as PackedForm, Kind, Large, Limits, PACKED_BYTES_MAX, Shape, write_elements};
use crate::context::{Edit, View};
use crate::double::exact_integer;
use crate::record::allocated_bytes;
use crate::tree::{self, Element, Tree};
use crate::value::{CollectionValue, Kept, ValueRef};

/// The bytes of a member: short ones lie in the tree, longer ones are shared by both trees.
#[derive(Clone, Debug)]
enum Name {
    Short { len: u8, bytes: [u8; SHORT_LEN_MAX] },
    Shared(Arc<[u8]>),
}

/// So that a name is three words.
const SHORT_LEN_MAX: usize = 22;

impl Name {
    fn new(name: &[u8]) -> Self {
        if name.len() > SHORT_LEN_MAX {
            return Self::Shared(name.into());
        }
        let mut bytes = [0; SHORT_LEN_MAX];
        bytes[..name.len()].copy_from_slice(name);
        Self::Short { len: name.len() as u8, bytes }
    }

    #[inline]
    fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Short { len, bytes } => &bytes[..usize::from(*len)],
            Self::Shared(bytes) => bytes,
        }
    }

    /// Half of what a shared one takes, as it is in two trees.
    fn heap_bytes(&self) -> usize {
        match self {
            Self::Short { .. } => 0,
            Self::Shared(bytes) => allocated_bytes(2 * size_of::<usize>() + bytes.len()) / 2,
        }
    }
}

/// A member in the tree that is ordered by scores.
#[derive(Clone, Debug)]
pub(crate) struct Ranked {
    score: f64,
    name: Name,
}

/// What that tree's branches know of a member: its score, and the beginning of its name as a number, which orders as
/// names do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankedKey {
    score: f64,
    prefix: u64,
}

#[inline]
fn prefix_of(name: &[u8]) -> u64 {
    match name.first_chunk() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => {
            let mut chunk = [0; 8];
            chunk[..name.len()].copy_from_slice(name);
            u64::from_be_bytes(chunk)
        }
    }
}

impl Element for Ranked {
    type Key = RankedKey;

    #[inline]
    fn key(&self) -> RankedKey {
        RankedKey { score: self.score, prefix: prefix_of(self.name.as_bytes()) }
    }

    fn heap_bytes(&self) -> usize {
        self.name.heap_bytes()
    }
}

/// A member in the tree that is ordered by places.
#[derive(Clone, Debug)]
pub(crate) struct Scored {
    place: u32,
    score: f64,
    name: Name,
}

impl Element for Scored {
    type Key = u32;

    #[inline]
    fn key(&self) -> u32 {
        self.place
    }

    fn heap_bytes(&self) -> usize {
        self.name.heap_bytes()
    }
}

impl Placed for Scored {
    #[inline]
    fn text(&self) -> &[u8] {
        self.name.as_bytes()
    }
}

/// No score is NaN.
#[inline]
fn compare_scores(left: f64, right: f64) -> Ordering {
    left.partial_cmp(&right).unwrap_or(Ordering::Equal)
}

/// The members of a large sorted set.
#[derive(Clone, Default)]
pub(crate) struct Members {
    by_score: Tree<Ranked>,
    by_name: Tree<Scored>,
}

/// What is left of them.
pub(crate) struct Unfreed {
    by_score: tree::Unfreed<Vec<Ranked>>,
    by_name: tree::Unfreed<Vec<Scored>>,
}

impl Unfreed {
    pub(crate) fn bytes(&self) -> usize {
        self.by_score.bytes() + self.by_name.bytes()
    }

    pub(crate) fn free(&mut self, budget: &mut usize) -> bool {
        self.by_score.free(budget) || self.by_name.free(budget)
    }
}

impl Members {
    /// Members that are in order.
    fn of(ordered: &[(&[u8], f64)]) -> Self {
        let by_score: Vec<Ranked> =
            ordered.iter().map(|&(name, score)| Ranked { score, name: Name::new(name) }).collect();
        let mut by_name: Vec<Scored> = by_score
            .iter()
            .map(|Ranked { score, name }| Scored {
                place: order::place_of(name.as_bytes()),
                score: *score,
                name: name.clone(),
            })
            .collect();
        by_name.sort_unstable_by(|left, right| {
            (left.place, left.name.as_bytes()).cmp(&(right.place, right.name.as_bytes()))
        });
        Self { by_score: by_score.into_iter().collect(), by_name: by_name.into_iter().collect() }
    }

    pub(crate) fn into_unfreed(self) -> Unfreed {
        Unfreed { by_score: self.by_score.into_unfreed(), by_name: self.by_name.into_unfreed() }
    }

    #[inline]
    fn score(&self, name: &[u8]) -> Option<f64> {
        self.by_name.find_sought(&order::Wanted::new(name)).map(|found| found.score)
    }

    #[inline]
    fn find(&self, name: &[u8]) -> Result<(usize, f64), usize> {
        self.by_name.search_sought(&order::Wanted::new(name)).map(|(rank, found)| (rank, found.score))
    }

    /// The rank of a member with this score, or the one that it would have.
    #[inline]
    fn rank(&self, name: &[u8], score: f64) -> Result<usize, usize> {
        let prefix = prefix_of(name);
        let near = |key: RankedKey| compare_scores(key.score, score).then(key.prefix.cmp(&prefix));
        let exact = |found: &Ranked| compare_scores(found.score, score).then_with(|| found.name.as_bytes().cmp(name));
        self.by_score.search(near, exact).map(|(rank, _)| rank)
    }

    fn insert(&mut self, place_rank: usize, name: &[u8], score: f64) {
        let name_kept = Name::new(name);
        let place = order::place_of(name);
        self.by_name.insert(place_rank, Scored { place, score, name: name_kept.clone() });
        let rank = self.rank(name, score).unwrap_or_else(|rank| rank);
        self.by_score.insert(rank, Ranked { score, name: name_kept });
    }

    fn move_to(&mut self, place_rank: usize, name: &[u8], old: f64, new: f64) {
        self.by_name.update(place_rank, |found| found.score = new);
        let rank = self.rank(name, old).expect("both trees have the same members");
        let mut ranked = self.by_score.remove(rank);
        ranked.score = new;
        let rank = self.rank(name, new).unwrap_or_else(|rank| rank);
        self.by_score.insert(rank, ranked);
    }

    fn remove(&mut self, name: &[u8]) -> bool {
        let Ok((place_rank, score)) = self.find(name) else { return false };
        self.by_name.remove(place_rank);
        let rank = self.rank(name, score).expect("both trees have the same members");
        self.by_score.remove(rank);
        true
    }

    /// Takes a range out.
    fn take_range(&mut self, ranks: Range<usize>) -> Self {
        if ranks.len() == self.by_score.len() {
            return std::mem::take(self);
        }
        let by_score = self.by_score.take_range(ranks);
        for ranked in by_score.iter() {
            let (place_rank, _) = self.find(ranked.name.as_bytes()).expect("both trees have the same members");
            self.by_name.remove(place_rank);
        }
        Self { by_score, by_name: Tree::new() }
    }
}

impl Large for Members {
    fn len(&self) -> usize {
        self.by_score.len()
    }

    fn bytes(&self) -> usize {
        self.by_score.bytes() + self.by_name.bytes()
    }

    fn write_part(&self, from: usize, out: &mut Vec<u8>, end: usize) -> usize {
        let put = |ranked: &Ranked, out: &mut Vec<u8>| {
            packed::put(out, ranked.name.as_bytes());
            out.extend_from_slice(&ranked.score.to_bits().to_le_bytes());
        };
        let elements = self.by_score.range(from..self.by_score.len());
        from + write_elements(elements, |ranked| ranked.name.as_bytes(), put, out, end)
    }

    fn read_one(&mut self, items: &mut Items<'_>) -> Option<()> {
        let name = items.next()?;
        let score = f64::from_bits(u64::from_le_bytes(*items.take(8)?.first_chunk()?));
        let is_behind = |last: &Ranked| {
            compare_scores(last.score, score).then_with(|| last.name.as_bytes().cmp(name)) == Ordering::Less
        };
        let last = self.by_score.len().checked_sub(1).and_then(|last| self.by_score.get(last));
        if score.is_nan() || !last.is_none_or(is_behind) {
            return None;
        }
        let Err(place_rank) = self.find(name) else { return None };
        let name_kept = Name::new(name);
        self.by_name.insert(place_rank, Scored { place: order::place_of(name), score, name: name_kept.clone() });
        self.by_score.push(Ranked { score, name: name_kept });
        Some(())
    }
}

/// A score as it lies behind a packed member. Its first byte is
///
/// * an integer below [`Score::WIDE`] itself, or
/// * `WIDE` and the number of bytes of the integer that follows, [`Score::NEGATIVE`] more if that is below zero, or
/// * [`Score::DOUBLE`], and the eight bytes of a double follow.
///
/// As in Redis, -0 becomes 0 here.
struct Score {
    bytes: [u8; 9],
    len: usize,
}

impl Score {
    const WIDE: u8 = 0xE0;
    const NEGATIVE: u8 = 0x10;
    const DOUBLE: u8 = 0xFF;

    fn new(score: f64) -> Self {
        let mut bytes = [0; 9];
        let Some(integer) = exact_integer(score) else {
            bytes[0] = Self::DOUBLE;
            bytes[1..].copy_from_slice(&score.to_bits().to_le_bytes());
            return Self { bytes, len: 9 };
        };
        let magnitude = integer.unsigned_abs();
        if integer >= 0 && magnitude < u64::from(Self::WIDE) {
            bytes[0] = magnitude as u8;
            return Self { bytes, len: 1 };
        }
        let width = 8 - magnitude.leading_zeros() as usize / 8;
        bytes[0] = Self::WIDE + width as u8 + if integer < 0 { Self::NEGATIVE } else { 0 };
        bytes[1..].copy_from_slice(&magnitude.to_le_bytes());
        Self { bytes, len: 1 + width }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    #[inline]
    fn read(items: &mut Items<'_>) -> Option<f64> {
        let first = items.byte()?;
        if first < Self::WIDE {
            return Some(f64::from(first));
        }
        if first == Self::DOUBLE {
            return Some(f64::from_bits(u64::from_le_bytes(*items.take(8)?.first_chunk()?)));
        }
        let is_negative = first & Self::NEGATIVE != 0;
        let width = usize::from(first & 0x0F);
        let mut bytes = [0; 8];
        bytes.get_mut(..width)?.copy_from_slice(items.take(width)?);
        let magnitude = u64::from_le_bytes(bytes) as f64;
        Some(if is_negative { -magnitude } else { magnitude })
    }
}

/// Reads packed members from the beginning.
#[derive(Clone, Debug)]
pub(crate) struct Pairs<'a>(Items<'a>);

impl<'a> Pairs<'a> {
    #[inline]
    fn new(bytes: &'a [u8]) -> Self {
        Self(Items::new(bytes))
    }

    /// The next member with its score, and where both lie.
    #[inline]
    fn next_with_range(&mut self) -> Option<(&'a [u8], f64, Range<usize>)> {
        let start = self.0.position();
        let name = self.0.next()?;
        let score = Score::read(&mut self.0)?;
        Some((name, score, start..self.0.position()))
    }
}

impl<'a> Iterator for Pairs<'a> {
    type Item = (&'a [u8], f64);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        Some((self.0.next()?, Score::read(&mut self.0)?))
    }
}

/// True if these bytes are a packed sorted set.
pub(crate) fn is_packed(bytes: &[u8]) -> bool {
    let mut pairs = Pairs::new(bytes);
    let mut ordered: Vec<(&[u8], f64)> = Vec::new();
    for (name, score) in pairs.by_ref() {
        let is_behind = ordered.last().is_none_or(|&last| compare(last, (name, score)) == Ordering::Less);
        if score.is_nan() || !is_behind {
            return false;
        }
        ordered.push((name, score));
    }
    let mut names: Vec<&[u8]> = ordered.into_iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    pairs.0.is_done() && names.is_sorted_by(|left, right| left < right)
}

/// How two members stand to each other in a sorted set.
#[inline]
pub(crate) fn compare(left: (&[u8], f64), right: (&[u8], f64)) -> Ordering {
    compare_scores(left.1, right.1).then_with(|| left.0.cmp(right.0))
}

/// A place between members.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cut<'a> {
    /// Before all of them.
    Start,
    /// Behind all of them.
    End,
    /// Before those of this score.
    BeforeScore(f64),
    /// Behind those of this score.
    BehindScore(f64),
    /// Before this member, if all have one score.
    BeforeName(&'a [u8]),
    /// Behind this member, if all have one score.
    BehindName(&'a [u8]),
}

impl Cut<'_> {
    /// True if a member lies before the cut.
    #[inline]
    fn is_behind(&self, name: &[u8], score: f64) -> bool {
        match *self {
            Self::Start => false,
            Self::End => true,
            Self::BeforeScore(at) => score < at,
            Self::BehindScore(at) => score <= at,
            Self::BeforeName(at) => name < at,
            Self::BehindName(at) => name <= at,
        }
    }
}

/// A sorted set, borrowed.
#[derive(Clone, Copy)]
pub struct SortedSet<'a>(Form<'a>);

#[derive(Clone, Copy)]
enum Form<'a> {
    Packed(&'a [u8]),
    Large(&'a Members),
}

impl<'a> SortedSet<'a> {
    #[inline]
    pub(crate) fn packed(bytes: &'a [u8]) -> Self {
        Self(Form::Packed(bytes))
    }

    #[inline]
    pub(crate) fn large(members: &'a Members) -> Self {
        Self(Form::Large(members))
    }

    pub(crate) fn encoding(&self) -> &'static str {
        match self.0 {
            Form::Packed(_) => "listpack",
            Form::Large(_) => "skiplist",
        }
    }

    /// True if it is kept packed.
    pub(crate) fn is_packed(&self) -> bool {
        matches!(self.0, Form::Packed(_))
    }

    /// Number of members; never 0 in a keyspace.
    #[expect(clippy::len_without_is_empty, reason = "a sorted set without members does not exist")]
    pub fn len(&self) -> usize {
        match self.0 {
            Form::Packed(bytes) => Pairs::new(bytes).count(),
            Form::Large(members) => members.by_score.len(),
        }
    }

    /// The score of a member.
    #[inline]
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        match self.0 {
            Form::Packed(bytes) => Pairs::new(bytes).find(|&(name, _)| name == member).map(|(_, score)| score),
            Form::Large(members) => members.score(member),
        }
    }

    /// The rank of a member, counted from the lowest score, and its score.
    pub fn rank(&self, member: &[u8]) -> Option<(usize, f64)> {
        match self.0 {
            Form::Packed(bytes) => Pairs::new(bytes)
                .enumerate()
                .find(|(_, (name, _))| *name == member)
                .map(|(rank, (_, score))| (rank, score)),
            Form::Large(members) => {
                let score = members.score(member)?;
                Some((members.rank(member, score).expect("both trees have the same members"), score))
            }
        }
    }

    /// How many members lie before a cut.
    pub(crate) fn count_before(&self, cut: Cut<'_>) -> usize {
        match self.0 {
            Form::Packed(bytes) => Pairs::new(bytes).take_while(|&(name, score)| cut.is_behind(name, score)).count(),
            Form::Large(members) => {
                let decide = |is_before| if is_before { Ordering::Less } else { Ordering::Greater };
                let near = |key: RankedKey| match cut {
                    Cut::BeforeName(at) | Cut::BehindName(at) => key.prefix.cmp(&prefix_of(at)),
                    _ => decide(cut.is_behind(&[], key.score)),
                };
                let exact = |found: &Ranked| decide(cut.is_behind(found.name.as_bytes(), found.score));
                members.by_score.search(near, exact).map_or_else(|rank| rank, |(rank, _)| rank)
            }
        }
    }

    /// The ranks between two cuts.
    pub(crate) fn between(&self, from: Cut<'_>, to: Cut<'_>) -> Range<usize> {
        let start = self.count_before(from);
        start..self.count_before(to).max(start)
    }

    /// Members with their scores, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], f64)> + use<'a> {
        self.every()
    }

    fn every(&self) -> Iter<'a> {
        match self.0 {
            Form::Packed(bytes) => Iter::Packed(Pairs::new(bytes), usize::MAX),
            Form::Large(members) => Iter::Large(members.by_score.iter()),
        }
    }

    /// The members of these ranks, the lowest first.
    pub(crate) fn range(&self, ranks: Range<usize>) -> Iter<'a> {
        match self.0 {
            Form::Packed(bytes) => {
                let mut pairs = Pairs::new(bytes);
                (0..ranks.start).for_each(|_| _ = pairs.next());
                Iter::Packed(pairs, ranks.len())
            }
            Form::Large(members) => Iter::Large(members.by_score.range(ranks)),
        }
    }

    /// The members of these ranks, the highest first.
    pub(crate) fn range_back(&self, ranks: Range<usize>) -> Iter<'a> {
        match self.0 {
            Form::Packed(bytes) => {
                let found: Vec<_> = Pairs::new(bytes).skip(ranks.start).take(ranks.len()).collect();
                Iter::PackedBack(found.into_iter())
            }
            Form::Large(members) => Iter::LargeBack(members.by_score.range(ranks)),
        }
    }

    /// The member of a rank, which is below [`SortedSet::len`]. Quick only if the set is large.
    pub(crate) fn nth(&self, rank: usize) -> (&'a [u8], f64) {
        self.range(rank..rank + 1).next().expect("a rank is below the length")
    }

    /// The members that one step of ZSCAN visits, and the cursor to go on from; 0 is the end.
    pub(crate) fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(&'a [u8], f64)) -> u64 {
        match self.0 {
            Form::Packed(bytes) => {
                Pairs::new(bytes).for_each(|(name, score)| visit(name, score));
                0
            }
            Form::Large(members) => {
                let (range, next) = order::scan_range(&members.by_name, cursor, count);
                members.by_name.range(range).for_each(|found| visit(found.name.as_bytes(), found.score));
                next
            }
        }
    }
}

/// Sorted sets are equal if they have the same members with the same scores.
impl PartialEq for SortedSet<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for SortedSet<'_> {}

impl fmt::Debug for SortedSet<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_map().entries(self.iter()).finish()
    }
}

/// Members with their scores.
#[derive(Clone)]
pub(crate) enum Iter<'a> {
    /// At most so many of packed ones.
    Packed(Pairs<'a>, usize),
    PackedBack(std::vec::IntoIter<(&'a [u8], f64)>),
    Large(tree::Iter<'a, Ranked>),
    LargeBack(tree::Iter<'a, Ranked>),
}

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a [u8], f64);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Packed(pairs, left) => {
                *left = left.checked_sub(1)?;
                pairs.next()
            }
            Self::PackedBack(found) => found.next_back(),
            Self::Large(members) => members.next().map(|found| (found.name.as_bytes(), found.score)),
            Self::LargeBack(members) => members.next_back().map(|found| (found.name.as_bytes(), found.score)),
        }
    }
}

/// A sorted set that is being changed.
pub(crate) struct SortedSetMut<'c, 'a>(&'c mut Cell<'a>);

impl SortedSetMut<'_, '_> {
    /// The sorted set as it is now.
    #[inline]
    pub(crate) fn as_ref(&self) -> SortedSet<'_> {
        match self.0.shape() {
            Shape::Packed(_, bytes) => SortedSet::packed(bytes),
            Shape::Large(Collection::SortedSet(members)) => SortedSet::large(members),
            Shape::Large(_) => unreachable!("the type was checked"),
        }
    }

    /// Gives a member the score that `decide` makes of the one it has; `None` leaves everything as it is. The score
    /// that it had.
    pub(crate) fn update(&mut self, member: &[u8], decide: impl FnOnce(Option<f64>) -> Option<f64>) -> Option<f64> {
        match self.as_ref().0 {
            Form::Packed(bytes) => {
                let mut pairs = Pairs::new(bytes);
                let (mut found, mut count) = (None, 0u64);
                while let Some((name, score, range)) = pairs.next_with_range() {
                    if name == member {
                        found = Some((score, range));
                        break;
                    }
                    count += 1;
                }
                let old = found.as_ref().map(|&(score, _)| score);
                if let Some(score) = decide(old)
                    && old != Some(score)
                {
                    self.put_packed(member, score, found.map(|(_, range)| range), count);
                }
                old
            }
            Form::Large(members) => {
                let found = members.find(member);
                let old = found.ok().map(|(_, score)| score);
                if let Some(score) = decide(old)
                    && old != Some(score)
                {
                    match found {
                        Ok((place_rank, old)) => self.members().move_to(place_rank, member, old, score),
                        Err(place_rank) => self.members().insert(place_rank, member, score),
                    }
                }
                old
            }
        }
    }

    /// Puts a member, which lies in `found` or is none of `count`, where its new score wants it.
    fn put_packed(&mut self, member: &[u8], score: f64, found: Option<Range<usize>>, count: u64) {
        let Form::Packed(bytes) = self.as_ref().0 else { unreachable!("asked by one who has looked") };
        let limits = self.0.limits();
        if found.is_none()
            && (count >= limits.sorted_set_entries
                || member.len() as u64 > limits.sorted_set_value_bytes
                || bytes.len() + member.len() + 20 > PACKED_BYTES_MAX)
        {
            self.grow();
            self.update(member, |_| Some(score));
            return;
        }
        let (head, text) = (Head::of(member.len()), Score::new(score));
        let pair = [head.bytes(), member, text.as_bytes()];
        let mut pairs = Pairs::new(bytes);
        let mut at = bytes.len();
        while let Some((name, other, range)) = pairs.next_with_range() {
            if compare((name, other), (member, score)) == Ordering::Greater && found.as_ref() != Some(&range) {
                at = range.start;
                break;
            }
        }
        match found {
            None => self.0.splice(at..at, &pair),
            Some(range) if at == range.end || at == range.start => self.0.splice(range, &pair),
            Some(range) => {
                let at = if at > range.end { at - range.len() } else { at };
                self.0.splice(range, &[]);
                self.0.splice(at..at, &pair);
            }
        }
    }

    /// Takes a member away. True if it was one.
    pub(crate) fn remove(&mut self, member: &[u8]) -> bool {
        match self.as_ref().0 {
            Form::Packed(bytes) => {
                let mut pairs = Pairs::new(bytes);
                let range = loop {
                    match pairs.next_with_range() {
                        Some((name, _, range)) if name == member => break range,
                        Some(_) => {}
                        None => return false,
                    }
                };
                self.0.splice(range, &[]);
                true
            }
            Form::Large(members) => members.score(member).is_some() && self.members().remove(member),
        }
    }

    /// Takes away the members of these ranks.
    pub(crate) fn remove_range(&mut self, ranks: Range<usize>) {
        if ranks.is_empty() {
            return;
        }
        match self.as_ref().0 {
            Form::Packed(bytes) => {
                let mut pairs = Pairs::new(bytes);
                (0..ranks.start).for_each(|_| _ = pairs.next());
                let start = pairs.0.position();
                (0..ranks.len()).for_each(|_| _ = pairs.next());
                let end = pairs.0.position();
                self.0.splice(start..end, &[]);
            }
            Form::Large(_) => {
                let taken = self.members().take_range(ranks);
                self.0.free_later(Collection::SortedSet(taken));
            }
        }
    }

    /// Becomes large.
    fn grow(&mut self) {
        let ordered: Vec<_> = self.as_ref().iter().collect();
        let members = Members::of(&ordered);
        self.0.grow_into(Collection::SortedSet(members));
    }

    fn members(&mut self) -> &mut Members {
        match self.0.large_mut() {
            Some(Collection::SortedSet(members)) => members,
            _ => unreachable!("it has just become one, or was"),
        }
    }
}

/// A sorted set of members that are in order, in the form that the limits give it.
fn keep(ordered: &[(&[u8], f64)], limits: &Limits) -> Kept {
    let fits = ordered.len() as u64 <= limits.sorted_set_entries
        && ordered.iter().all(|(name, _)| name.len() as u64 <= limits.sorted_set_value_bytes)
        && ordered.iter().map(|(name, _)| name.len() + 20).sum::<usize>() <= PACKED_BYTES_MAX;
    if !fits {
        return Kept::Large(Box::new(Collection::SortedSet(Members::of(ordered))));
    }
    let mut bytes = Vec::new();
    for (name, score) in ordered {
        packed::put(&mut bytes, name);
        bytes.extend_from_slice(Score::new(*score).as_bytes());
    }
    Kept::Packed(PackedForm::SortedSet, bytes)
}

/// A sorted set of these members in any order, in the form that the limits give it. `None` if there are none, if one
/// comes twice, or if a score is no number.
pub(crate) fn from_members(mut members: Vec<(&[u8], f64)>, limits: &Limits) -> Option<CollectionValue> {
    members.sort_unstable_by(|left, right| left.0.cmp(right.0));
    let is_sound = !members.is_empty()
        && members.is_sorted_by(|left, right| left.0 < right.0)
        && !members.iter().any(|(_, score)| score.is_nan());
    if !is_sound {
        return None;
    }
    members.sort_unstable_by(|left, right| compare(*left, *right));
    Some(CollectionValue(keep(&members, limits)))
}

impl<'a> View<'a> {
    /// The sorted set under a key, if the key exists. Counts as a use.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is no sorted set.
    #[inline]
    pub fn sorted_set(&self, key: &[u8]) -> Result<Option<SortedSet<'a>>, Refusal> {
        match self.entry(key).map(|entry| entry.value()) {
            None => Ok(None),
            Some(ValueRef::SortedSet(set)) => Ok(Some(set)),
            Some(_) => Err(Refusal::WRONG_TYPE),
        }
    }
}

impl Edit<'_> {
    /// Changes the sorted set under a key, starting from one without members if the key does not exist; if none are
    /// left the key is removed. Counts as a use.
    ///
    /// # Errors
    /// `WRONGTYPE` if the value is no sorted set.
    #[inline]
    pub(crate) fn modify_sorted_set<R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut SortedSetMut<'_, '_>) -> R,
    ) -> Result<R, Refusal> {
        self.modify(key, Kind::SortedSet, |cell| change(&mut SortedSetMut(cell)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use stdx::Prng;

    use super::*;
    use crate::Moment;
    use crate::testing::Harness;

    fn set(harness: &Harness) -> Option<SortedSet<'_>> {
        harness.keyspace.view(0, Moment::at(harness.now, 0)).sorted_set(b"set").unwrap()
    }

    fn ordered(model: &BTreeMap<Vec<u8>, f64>) -> Vec<(&[u8], f64)> {
        let mut members: Vec<(&[u8], f64)> = model.iter().map(|(name, score)| (&**name, *score)).collect();
        members.sort_by(|left, right| compare(*left, *right));
        members
    }

    fn check(harness: &Harness, model: &BTreeMap<Vec<u8>, f64>, prng: &mut Prng) {
        let Some(set) = set(harness) else { return assert!(model.is_empty()) };
        let expected = ordered(model);
        assert_eq!(set.len(), expected.len());
        assert!(set.iter().eq(expected.iter().copied()), "other members");
        assert!(set.range_back(0..set.len()).eq(expected.iter().rev().copied()), "other members backwards");
        for (rank, &(name, score)) in expected.iter().enumerate() {
            assert_eq!((set.score(name), set.rank(name)), (Some(score), Some((rank, score))));
        }
        for _ in 0..20 {
            let score = score(prng);
            for cut in [Cut::BeforeScore(score), Cut::BehindScore(score), Cut::Start, Cut::End] {
                let before = expected.iter().filter(|(name, score)| cut.is_behind(name, *score)).count();
                assert_eq!(set.count_before(cut), before);
            }
            let start = prng.below(set.len() as u64 + 1) as usize;
            let end = start + prng.below((set.len() - start) as u64 + 1) as usize;
            assert!(set.range(start..end).eq(expected[start..end].iter().copied()));
            assert!(set.range_back(start..end).eq(expected[start..end].iter().rev().copied()));
        }
    }

    fn score(prng: &mut Prng) -> f64 {
        match prng.below(8) {
            0 => f64::INFINITY,
            1 => -(prng.below(1 << 40) as f64),
            2 => prng.below(1000) as f64 / 7.0,
            3 => 1e300,
            _ => prng.below(40) as f64 - 20.0,
        }
    }

    #[test]
    fn it_is_a_map_with_an_order() {
        for seed in 0..12 {
            let mut prng = Prng::new(seed);
            let (mut harness, mut model) = (Harness::new(), BTreeMap::new());
            // Some stay packed.
            let names = if seed % 3 == 0 { 100 } else { 2_000 };
            for step in 0..4_000 {
                let moment = Moment::at(harness.now, 0);
                let name = match prng.below(20) {
                    0 if seed % 3 != 0 => vec![b'n'; prng.below(100) as usize],
                    _ => format!("{}", prng.below(names)).into_bytes(),
                };
                let score = score(&mut prng);
                let grows = (step / 1000) % 2 == 0;
                harness
                    .keyspace
                    .edit(0, moment)
                    .modify_sorted_set(b"set", |set| match prng.below(if grows { 10 } else { 4 }) {
                        0 | 1 => assert_eq!(set.remove(&name), model.remove(&name).is_some()),
                        2 if step % 50 == 0 => {
                            let len = model.len();
                            let start = prng.below(len as u64 + 1) as usize;
                            let end = start + prng.below((len - start) as u64 + 1) as usize;
                            set.remove_range(start..end);
                            let gone: Vec<Vec<u8>> =
                                ordered(&model)[start..end].iter().map(|(name, _)| name.to_vec()).collect();
                            gone.iter().for_each(|name| _ = model.remove(name));
                        }
                        3 => assert_eq!(set.update(&name, |_| None), model.get(&name).copied()),
                        _ => assert_eq!(set.update(&name, |_| Some(score)), model.insert(name, score)),
                    })
                    .unwrap();
                if step % 200 == 0 {
                    check(&harness, &model, &mut prng);
                }
            }
            check(&harness, &model, &mut prng);
        }
    }

    #[test]
    fn cuts_by_name_find_their_place_among_equal_scores() {
        let mut harness = Harness::new();
        let mut prng = Prng::new(3);
        let mut names: Vec<Vec<u8>> =
            (0..1_000).map(|_| (0..prng.below(14)).map(|_| b'a' + prng.below(3) as u8).collect()).collect();
        names.extend([b"aaaaaaaa\0".to_vec(), b"aaaaaaaa".to_vec(), b"aaaa\0".to_vec()]);
        for name in &names {
            let moment = Moment::at(harness.now, 0);
            harness.keyspace.edit(0, moment).modify_sorted_set(b"set", |set| set.update(name, |_| Some(1.0))).unwrap();
        }
        let set = set(&harness).unwrap();
        let expected: Vec<&[u8]> = set.iter().map(|(name, _)| name).collect();
        for at in names.iter().map(Vec::as_slice).chain([&b""[..], b"b", b"zz", b"aaaaaaaa\0\0"]) {
            let before = expected.iter().filter(|&&name| name < at).count();
            assert_eq!(set.count_before(Cut::BeforeName(at)), before);
            assert_eq!(set.count_before(Cut::BehindName(at)), before + usize::from(expected.contains(&at)));
        }
    }

    #[test]
    fn packed_scores_of_every_width_come_back() {
        let wide =
            (0..62).flat_map(|power| [(1i64 << power) as f64, -((1i64 << power) as f64), (1i64 << power) as f64 - 1.0]);
        let odd = [0.5, -0.1, 1e300, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE, 223.0, 224.0];
        for score in wide.chain(odd) {
            let written = Score::new(score);
            let mut items = Items::new(written.as_bytes());
            assert_eq!(Score::read(&mut items), Some(score));
            assert!(items.is_done());
        }
    }
}
