//! The graph of a vector set: searching, and what joins elements when one comes or goes.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::measure::{Direction, Encoded};
use super::{Body, ELEMENTS_MAX, Near, VectorSet, level_for};

/// How many near elements a new one looks at, if nothing else is said.
pub(crate) const BUILD_EFFORT_DEFAULT: usize = 200;
/// How many a search keeps in view, if nothing else is said.
pub(crate) const SEARCH_EFFORT_DEFAULT: usize = 100;
/// Most that either keeps in view, whatever is said, unless more must be found: this bounds how long it takes.
pub(crate) const EFFORT_MAX: usize = 10_000;

/// Bytes of directions that are compared at most when an element is joined to others or taken from them; what then is
/// not joined yet takes the nearest without comparing more. Reached only with far more links than usual.
const COMPARED_BYTES_MAX: usize = 1 << 28;
/// Bytes that a direction counts for at least: also a short one has to be fetched.
const COMPARED_BYTES_MIN: usize = 256;

/// Links that an element keeps at least when others give up theirs to it.
const LINKS_KEPT: usize = 2;

/// Neighbours of an element that goes which are joined to each other, at most.
const JOINED_MAX: usize = 64;

/// Which elements a search may find.
pub(crate) struct Filter<'f> {
    /// Tells whether an element may be found.
    pub(crate) accepts: &'f dyn Fn(&Body) -> bool,
    /// Most elements that are asked about.
    pub(crate) effort: usize,
}

/// Slots that a search has seen.
struct Seen(Vec<u64>);

impl Seen {
    fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    /// True if it was not seen before.
    #[inline]
    fn note(&mut self, slot: u32) -> bool {
        let word = &mut self.0[slot as usize / 64];
        let bit = 1 << (slot % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

impl VectorSet {
    #[inline]
    fn distance_to(&self, query: Direction<'_>, slot: u32) -> f32 {
        self.shape.distance(query, self.body(slot).direction())
    }

    #[inline]
    fn near(&self, query: Direction<'_>, slot: u32) -> Near {
        Near::new(self.distance_to(query, slot), slot)
    }

    /// The elements nearest to a vector, the nearest first: as many as `effort`, or fewer if not all are found.
    pub(crate) fn search(&self, query: &Encoded, effort: usize, filter: Option<&Filter<'_>>) -> Vec<Near> {
        if self.len() == 0 {
            return Vec::new();
        }
        let query = Direction { bytes: &query.direction, range: query.range };
        let start = self.descend(query, self.level(), 0);
        self.explore(query, &[start], effort.max(1), 0, filter)
    }

    /// The same by looking at all elements.
    pub(crate) fn scan(&self, query: &Encoded, count: usize, accepts: Option<&dyn Fn(&Body) -> bool>) -> Vec<Near> {
        let query = Direction { bytes: &query.direction, range: query.range };
        let mut found = BinaryHeap::new();
        for slot in 0..self.len() as u32 {
            let near = self.near(query, slot);
            let is_near = found.len() < count || found.peek().is_some_and(|farthest| near < *farthest);
            if is_near && accepts.is_none_or(|accepts| accepts(self.body(slot))) {
                found.push(near);
                if found.len() > count {
                    found.pop();
                }
            }
        }
        found.into_sorted_vec()
    }

    /// Goes from the entry towards a vector, from one layer to below another, and answers where it arrives.
    fn descend(&self, query: Direction<'_>, from: usize, to: usize) -> Near {
        let mut here = self.near(query, self.entry);
        for layer in (to + 1..=from).rev() {
            loop {
                let next = self.links(here.slot(), layer).iter().map(|&slot| self.near(query, slot)).min();
                match next.filter(|next| *next < here) {
                    Some(next) => here = next,
                    None => break,
                }
            }
        }
        here
    }

    /// Looks around on a layer, keeping the nearest `effort` elements in view; these, the nearest first.
    fn explore(
        &self,
        query: Direction<'_>,
        starts: &[Near],
        effort: usize,
        layer: usize,
        filter: Option<&Filter<'_>>,
    ) -> Vec<Near> {
        let mut seen = Seen::new(self.len());
        let mut asked = 0;
        // None when no more elements may be asked about.
        let mut accepts = |slot: u32| match filter {
            None => Some(true),
            Some(filter) if asked == filter.effort => None,
            Some(filter) => {
                asked += 1;
                Some((filter.accepts)(self.body(slot)))
            }
        };
        let (mut open, mut found) = (BinaryHeap::new(), BinaryHeap::new());
        for &start in starts {
            seen.note(start.slot());
            open.push(Reverse(start));
            if accepts(start.slot()) == Some(true) {
                found.push(start);
            }
        }
        let mut fresh = Vec::new();
        while let Some(Reverse(here)) = open.pop() {
            if found.len() >= effort && found.peek().is_some_and(|farthest| here > *farthest) {
                break;
            }
            fresh.clear();
            fresh.extend(self.links(here.slot(), layer).iter().copied().filter(|&slot| seen.note(slot)));
            for near in fresh.iter().map(|&slot| self.near(query, slot)) {
                if found.len() >= effort && found.peek().is_some_and(|farthest| near > *farthest) {
                    continue;
                }
                open.push(Reverse(near));
                match accepts(near.slot()) {
                    Some(true) => found.push(near),
                    Some(false) => {}
                    None => return found.into_sorted_vec(),
                }
                if found.len() > effort {
                    found.pop();
                }
            }
        }
        found.into_sorted_vec()
    }

    /// Adds an element. Its name must be new.
    ///
    /// # Panics
    /// If there are as many elements as there are slots.
    pub(crate) fn add(&mut self, name: &[u8], encoded: &Encoded, attributes: &[u8], effort: usize) {
        assert!(self.len() < ELEMENTS_MAX, "a set of so many elements takes hundreds of gigabytes");
        self.last_id = self.last_id.saturating_add(1);
        let level = level_for(self.len(), name);
        let (is_first, top) = (self.len() == 0, self.level());
        let query = Direction { bytes: &encoded.direction, range: encoded.range };
        let mut layers = Vec::new();
        if !is_first {
            let mut starts = vec![self.descend(query, top, level)];
            for layer in (0..=level.min(top)).rev() {
                starts = self.explore(query, &starts, effort.clamp(1, EFFORT_MAX), layer, None);
                layers.push((layer, starts.clone()));
            }
        }
        let slot = self.place(Body::new(self.last_id, encoded, name, attributes), level);
        let mut budget = self.budget();
        for (layer, found) in layers {
            self.join(slot, &found, layer, &mut budget);
        }
        if is_first || level > top {
            self.entry = slot;
        }
    }

    /// Takes an element out.
    pub(crate) fn remove(&mut self, slot: u32) {
        let mut parted = Vec::new();
        for layer in 0..=self.level_of(slot) {
            let neighbours = self.links(slot, layer).to_vec();
            neighbours.iter().for_each(|&neighbour| self.unlink(slot, neighbour, layer));
            parted.push(neighbours);
        }
        if self.len() > 1 {
            let mut budget = self.budget();
            for (layer, neighbours) in parted.iter().enumerate() {
                self.mend(neighbours, layer, &mut budget);
            }
            // Only now those that it led to can be reached from each other again.
            if self.entry == slot {
                self.entry = self.entry_without(slot, &parted);
            }
            for &neighbour in &parted[0] {
                // It may have got one when another one was brought back.
                if self.links(neighbour, 0).is_empty() {
                    self.bring_back(neighbour, slot, &mut budget);
                }
            }
        }
        self.displace(slot);
    }

    /// Where searches begin when `gone`, which had these neighbours on its layers, is there no more: the lowest slot on
    /// the highest layer. In a set that is too large to look at all of it, of those that can be reached.
    fn entry_without(&self, gone: u32, parted: &[Vec<u32>]) -> u32 {
        let others = || (0..self.len() as u32).filter(move |&slot| slot != gone);
        if self.len() <= EFFORT_MAX {
            let highest = others().max_by_key(|&slot| (self.level_of(slot), Reverse(slot)));
            return highest.expect("there are others");
        }
        match parted.iter().enumerate().rev().find_map(|(layer, neighbours)| Some((layer, *neighbours.first()?))) {
            Some((layer, start)) => self.lowest_around(start, layer),
            None => others().next().expect("there are others"),
        }
    }

    /// Of those that can be reached from an element on a layer: on the highest layer, the one with the lowest slot.
    /// This is the highest layer that there is, on which there are few; if there are many it stops.
    fn lowest_around(&self, start: u32, layer: usize) -> u32 {
        let mut reached = BTreeSet::from([start]);
        let mut open = vec![start];
        while let Some(here) = open.pop().filter(|_| reached.len() < EFFORT_MAX) {
            open.extend(self.links(here, layer).iter().copied().filter(|&slot| reached.insert(slot)));
        }
        let highest = reached.into_iter().max_by_key(|&slot| (self.level_of(slot), Reverse(slot)));
        highest.expect("the start is among them")
    }

    fn budget(&self) -> Budget {
        Budget(COMPARED_BYTES_MAX / self.shape.direction_bytes().max(COMPARED_BYTES_MIN))
    }

    /// Joins a new element to the best of those that were found near it.
    fn join(&mut self, slot: u32, found: &[Near], layer: usize, budget: &mut Budget) {
        let chosen = self.choose(found, self.shape.links as usize, budget);
        for (nth, near) in chosen.into_iter().enumerate() {
            // Without a way to the nearest one it might not be found.
            if self.make_room(near.slot(), Near::new(near.distance(), slot), layer, nth == 0, budget) {
                self.link(slot, near.slot(), layer);
            }
        }
    }

    /// Chooses up to `count` of those that were found, so that they lie in different directions: none is nearer to
    /// another one that was chosen. If there are too few of these the nearest others.
    fn choose(&self, found: &[Near], count: usize, budget: &mut Budget) -> Vec<Near> {
        let (mut chosen, mut passed) = (Vec::<Near>::new(), Vec::new());
        for &near in found {
            if chosen.len() == count {
                break;
            }
            let is_covered = chosen
                .iter()
                .any(|kept| budget.spend() && self.distance_between(kept.slot(), near.slot()) < near.distance());
            if is_covered { passed.push(near) } else { chosen.push(near) }
        }
        let missing = count - chosen.len();
        chosen.extend(passed.into_iter().take(missing));
        chosen
    }

    /// Sees to it that an element has room for one more, `comer`, which is as far from it as it says. The one that has
    /// to go is the farthest one that another one, nearer to both, leads to. False if that is the newcomer itself,
    /// unless it must stay. An element that has no other link is joined to the newcomer instead.
    fn make_room(&mut self, lazy_free: u32, comer: Near, layer: usize, must: bool, budget: &mut Budget) -> bool {
        let capacity = self.shape.capacity(layer);
        let count = self.links(lazy_free, layer).len();
        if count < capacity || self.links(lazy_free, layer).contains(&comer.slot()) {
            return true;
        }
        if !budget.spend_many(count) && !must {
            return false;
        }
        let near = |slot: u32| Near::new(self.distance_between(lazy_free, slot), slot);
        let mut members: Vec<Near> = self.links(lazy_free, layer).iter().map(|&slot| near(slot)).collect();
        members.push(comer);
        members.sort_unstable();
        let may_go = |near: &Near| match near.slot() == comer.slot() {
            true => !must,
            false => self.links(near.slot(), layer).len() > LINKS_KEPT,
        };
        let mut is_covered = |place: usize| {
            let far = members[place];
            members[..place]
                .iter()
                .any(|kept| budget.spend() && self.distance_between(kept.slot(), far.slot()) < far.distance())
        };
        let from_far = || (0..members.len()).rev().filter(|&place| may_go(&members[place]));
        let goes = from_far().find(|&place| is_covered(place)).or_else(|| from_far().next());
        let goes = match goes {
            Some(place) => members[place].slot(),
            // Nobody can do without. A few more do no harm.
            None if count < 2 * capacity => return true,
            None => members.iter().rev().find(|near| near.slot() != comer.slot()).expect("it is full").slot(),
        };
        if goes == comer.slot() {
            return false;
        }
        self.unlink(lazy_free, goes, layer);
        if self.links(goes, layer).is_empty() {
            self.link(goes, comer.slot(), layer);
        }
        true
    }

    /// Joins elements to each other that have lost a common neighbour, so that they are still connected and have about
    /// as many links as before: the nearest pairs first.
    fn mend(&mut self, neighbours: &[u32], layer: usize, budget: &mut Budget) {
        let mut neighbours = neighbours.to_vec();
        neighbours.sort_unstable_by_key(|&slot| (self.links(slot, layer).len(), slot));
        neighbours.dedup();
        neighbours.truncate(JOINED_MAX);
        // By place among the neighbours: which are connected, by the lowest place of theirs; and what each has got.
        let mut parts: Vec<usize> = (0..neighbours.len()).collect();
        let mut is_given = vec![false; neighbours.len()];
        let unite = |parts: &mut Vec<usize>, left: usize, right: usize| {
            let (lower, upper) = (parts[left].min(parts[right]), parts[left].max(parts[right]));
            parts.iter_mut().filter(|part| **part == upper).for_each(|part| *part = lower);
        };
        let mut pairs = Vec::new();
        for left in 0..neighbours.len() {
            for right in left + 1..neighbours.len() {
                if self.links(neighbours[left], layer).contains(&neighbours[right]) {
                    unite(&mut parts, left, right);
                } else if budget.spend() {
                    let distance = self.distance_between(neighbours[left], neighbours[right]);
                    pairs.push((Near::new(distance, 0), left, right));
                }
            }
        }
        pairs.sort_unstable();
        let capacity = self.shape.capacity(layer);
        for (_, left, right) in pairs {
            let is_wanted = parts[left] != parts[right] || !is_given[left] && !is_given[right];
            let has_room = |set: &Self, place: usize| set.links(neighbours[place], layer).len() < capacity;
            if is_wanted && has_room(self, left) && has_room(self, right) {
                self.link(neighbours[left], neighbours[right], layer);
                unite(&mut parts, left, right);
                (is_given[left], is_given[right]) = (true, true);
            }
        }
    }

    /// Joins an element that has no links any more to the nearest one that can be found; `gone` is none.
    fn bring_back(&mut self, slot: u32, gone: u32, budget: &mut Budget) {
        let encoded = self.body(slot).encoded();
        let found = if self.entry == slot { Vec::new() } else { self.search(&encoded, LINKS_KEPT, None) };
        let nearest = found.into_iter().find(|near| near.slot() != slot && near.slot() != gone);
        // What cannot be reached yet is reached over this one then.
        let anybody = (0..self.len() as u32).find(|&other| other != slot && other != gone);
        let Some(other) = nearest.map(Near::slot).or(anybody) else { return };
        let distance = self.distance_between(slot, other);
        self.make_room(other, Near::new(distance, slot), 0, true, budget);
        self.link(slot, other, 0);
    }
}

/// How many directions may still be compared.
struct Budget(usize);

impl Budget {
    /// False if none.
    #[inline]
    fn spend(&mut self) -> bool {
        self.spend_many(1)
    }

    fn spend_many(&mut self, count: usize) -> bool {
        let is_enough = self.0 >= count;
        self.0 = self.0.saturating_sub(count);
        is_enough
    }
}
