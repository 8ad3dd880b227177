//! A sequence that knows every element's rank: a counted B+ tree with nodes that are shared until they change.
//!
//! Large collections are built on it. What it gives them:
//!
//! * **Ranks.** A branch knows how many elements lie under each of its children, so the element of a rank, and the rank
//!   of an element, are one descent away.
//! * **Order, if there is one.** A branch remembers the [`Element::Key`] of each child's first element. A search
//!   compares keys, which lie side by side, and looks at elements only in the leaf where it ends, or where keys are
//!   equal.
//! * **Clones in one step.** A clone shares all nodes; a change copies those on its path that are shared. So a
//!   checkpoint holds a collection of millions as it was while writes go on.
//! * **No stall.** Ranges are cut out and put together along one path, and [`Unfreed`] frees what is left over in
//!   steps.
//!
//! Leaves come in kinds: [`Tree`] has vectors of elements, and a [`Rope`] may be made of any [`Leaf`] that holds a run
//! of elements, packed ones for instance.
//!
//! All leaves are equally deep. Nodes split when they are full, at the edge of the sequence so that the inner part
//! stays full: what is built in order is tight. A node that has become thin joins a neighbour if both fit into one with
//! room to spare; no node is empty.

use std::cmp::Ordering;
use std::mem;
use std::ops::Range;

use triomphe::{Arc, UniqueArc};

use crate::record::allocated_bytes;

/// A leaf of elements splits when it has as many.
const LEAF_END: usize = 64;

/// A branch has at most as many children.
const CHILDREN_MAX: usize = 64;

/// What a [`Tree`] holds.
pub(crate) trait Element: Clone {
    /// What branches remember of an element to steer a search: a prefix, as it were, of what orders the elements.
    /// Different elements may have equal keys.
    type Key: Copy;

    /// This element's.
    fn key(&self) -> Self::Key;

    /// Bytes that the allocator spends on the element beyond its own size.
    fn heap_bytes(&self) -> usize;
}

/// An element that is looked for in a [`Tree`] that is in order.
pub(crate) trait Sought<T: Element> {
    /// How an element with this key stands to the one sought (`Less`: it lies before), or `Equal` if the key does not
    /// decide.
    fn near(&self, key: T::Key) -> Ordering;

    /// How an element stands to the one sought. If it is never `Equal`, a bound is sought.
    fn exact(&self, element: &T) -> Ordering;

    /// Where it probably lies among `len` elements with keys that run from `first` to `last`, if keys are spread in a
    /// known way.
    #[inline]
    fn guess(&self, _first: T::Key, _last: T::Key, _len: usize) -> Option<usize> {
        None
    }
}

/// An element sought by [`Sought::near`] and [`Sought::exact`] alone: nothing is known of its place.
struct By<N, E>(N, E);

impl<T: Element, N: Fn(T::Key) -> Ordering, E: Fn(&T) -> Ordering> Sought<T> for By<N, E> {
    #[inline]
    fn near(&self, key: T::Key) -> Ordering {
        self.0(key)
    }

    #[inline]
    fn exact(&self, element: &T) -> Ordering {
        self.1(element)
    }
}

/// A run of elements, as a [`Rope`] holds them. The default one is empty.
pub(crate) trait Leaf: Clone + Default {
    /// See [`Element::Key`].
    type Key: Copy;

    /// The first element's. Only asked of leaves that are not empty.
    fn key(&self) -> Self::Key;

    /// Number of elements.
    fn count(&self) -> usize;

    /// Bytes that the allocator spends on it beyond its own size.
    fn bytes(&self) -> usize;

    /// Before which element to divide a leaf that is too full; `None` if it is not. Both parts must have elements.
    fn overflow(&self, edge: Edge) -> Option<usize>;

    /// Takes away the elements from `at` on.
    fn split_off(&mut self, at: usize) -> Self;

    /// True if the leaf should join a neighbour.
    fn is_thin(&self) -> bool;

    /// True if the elements of both fit into one leaf with room to spare.
    fn fits(&self, next: &Self) -> bool;

    /// Puts the elements of the next leaf behind its own.
    fn append(&mut self, next: Self);
}

/// Whether a node is the first, or the last, of its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    first: bool,
    last: bool,
}

impl Edge {
    /// How many of `end` parts the lower half of a full node keeps: most of them if more are likely to come behind, few
    /// if in front.
    pub(crate) fn keeps(self, end: usize) -> usize {
        match (self.first, self.last) {
            (_, true) => end - 1,
            (true, false) => 1,
            (false, false) => end / 2,
        }
    }
}

/// Elements in a sequence, each with its rank.
pub(crate) type Tree<T> = Rope<Vec<T>>;

/// The way from the root to a place in a leaf.
trait Route<L: Leaf> {
    /// Which child it goes through.
    fn child(&mut self, branch: &Branch<L>) -> usize;

    /// Where in the leaf it ends.
    fn place(&mut self, leaf: &L) -> usize;
}

/// To the element of a rank, counted from what has been passed.
struct ToRank(usize);

impl<L: Leaf> Route<L> for ToRank {
    #[inline]
    fn child(&mut self, branch: &Branch<L>) -> usize {
        let (index, rest) = branch.locate(self.0);
        self.0 = rest;
        index
    }

    #[inline]
    fn place(&mut self, _: &L) -> usize {
        self.0
    }
}

/// Behind the last element: no counts need to be summed up to find it.
struct ToEnd;

impl<L: Leaf> Route<L> for ToEnd {
    #[inline]
    fn child(&mut self, branch: &Branch<L>) -> usize {
        branch.len() - 1
    }

    #[inline]
    fn place(&mut self, leaf: &L) -> usize {
        leaf.count()
    }
}

/// To what is sought, or where it belongs.
struct To<'s, S>(&'s S);

impl<T: Element, S: Sought<T>> Route<Vec<T>> for To<'_, S> {
    /// The last that does not begin behind it.
    #[inline]
    fn child(&mut self, branch: &Branch<Vec<T>>) -> usize {
        let Self(sought) = self;
        // No branch of the program depends on a comparison here: the processor could not foretell it.
        let before = branch.keys.partition_point(|key| sought.near(*key) == Ordering::Less);
        let undecided = |key: &&T::Key| sought.near(**key) == Ordering::Equal;
        if branch.keys.get(before).as_ref().is_none_or(|key| !undecided(key)) {
            return before.saturating_sub(1);
        }
        let count = branch.keys[before..].partition_point(|key| undecided(&key));
        let beginning = &branch.nodes[before..before + count];
        let more = beginning.partition_point(|node| sought.exact(first(node)) != Ordering::Greater);
        (before + more).saturating_sub(1)
    }

    #[inline]
    fn place(&mut self, leaf: &Vec<T>) -> usize {
        let Self(sought) = self;
        let is_before = |element: &T| sought.exact(element) == Ordering::Less;
        let ends = leaf.first().zip(leaf.last());
        match ends.and_then(|(first, last)| sought.guess(first.key(), last.key(), leaf.len())) {
            None => leaf.partition_point(is_before),
            // It is near, and what lies between shares a cache line or two.
            Some(guess) => {
                let mut place = guess.min(leaf.len());
                while place > 0 && !is_before(&leaf[place - 1]) {
                    place -= 1;
                }
                while place < leaf.len() && is_before(&leaf[place]) {
                    place += 1;
                }
                place
            }
        }
    }
}

/// Leaves in a sequence. Each of their elements has its rank.
#[derive(Clone)]
pub(crate) struct Rope<L: Leaf> {
    root: Option<Child<L>>,
}

/// A node with what its parent knows about it.
#[derive(Clone)]
struct Child<L: Leaf> {
    measure: Measure<L::Key>,
    node: Arc<Node<L>>,
}

/// What is known of a node from outside.
#[derive(Clone, Copy)]
struct Measure<K> {
    /// Elements under the node.
    count: usize,
    /// Bytes allocated for the node and all under it.
    bytes: usize,
    /// Of the first element.
    key: K,
}

#[derive(Clone)]
enum Node<L: Leaf> {
    Leaf(L),
    Branch(Branch<L>),
}

/// Children and their measures, each kind side by side: a search reads keys, a rank reads counts.
#[derive(Clone)]
struct Branch<L: Leaf> {
    keys: Vec<L::Key>,
    counts: Vec<usize>,
    bytes: Vec<usize>,
    nodes: Vec<Arc<Node<L>>>,
}

impl<L: Leaf> Default for Rope<L> {
    fn default() -> Self {
        Self::new()
    }
}

impl<L: Leaf> Rope<L> {
    /// An empty one; allocates nothing.
    pub(crate) const fn new() -> Self {
        Self { root: None }
    }

    /// One made of these leaves. Empty ones are left out.
    pub(crate) fn from_leaves(leaves: impl IntoIterator<Item = L>) -> Self {
        let mut level: Vec<Child<L>> =
            leaves.into_iter().filter(|leaf| leaf.count() > 0).map(|leaf| Child::new(Node::Leaf(leaf))).collect();
        while level.len() > 1 {
            let branches = level.len().div_ceil(CHILDREN_MAX);
            let mut children = level.drain(..);
            let total = children.len();
            let above = (0..branches)
                .map(|branch| {
                    let count = total * (branch + 1) / branches - total * branch / branches;
                    Child::new(Node::Branch(Branch::of(children.by_ref().take(count))))
                })
                .collect();
            drop(children);
            level = above;
        }
        Self { root: level.pop() }
    }

    /// Number of elements.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.root.as_ref().map_or(0, |root| root.measure.count)
    }

    /// True if there are none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Bytes allocated for nodes and elements; what is shared counts for each that shares it.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.root.as_ref().map_or(0, |root| root.measure.bytes)
    }

    /// The leaf that holds the element of this rank, and the element's place in it.
    ///
    /// # Panics
    /// If there are not that many elements.
    #[inline]
    pub(crate) fn leaf_at(&self, rank: usize) -> (&L, usize) {
        assert!(rank < self.len(), "no element has this rank");
        let mut node = &*self.root.as_ref().expect("it is not empty").node;
        let mut rank = rank;
        loop {
            match node {
                Node::Leaf(leaf) => return (leaf, rank),
                Node::Branch(branch) => {
                    let (index, rest) = branch.locate(rank);
                    (node, rank) = (&branch.nodes[index], rest);
                }
            }
        }
    }

    /// Changes the leaf in which the element of this rank is, or the leaf that an element of this rank belongs in; the
    /// element's place in the leaf is told. `change` returns, beside its result, by how much [`Leaf::bytes`] has grown;
    /// it may add, alter and remove elements as long as their order holds.
    ///
    /// # Panics
    /// If there are fewer elements than `rank`.
    pub(crate) fn edit_leaf<R>(&mut self, rank: usize, change: impl FnOnce(&mut L, usize) -> (R, isize)) -> R {
        assert!(rank <= self.len(), "nothing has or could have this rank");
        if rank == self.len() {
            return self.edit_last_leaf(change);
        }
        self.edit_at(&mut ToRank(rank), change)
    }

    /// The same for the last leaf, at the place behind its last element.
    pub(crate) fn edit_last_leaf<R>(&mut self, change: impl FnOnce(&mut L, usize) -> (R, isize)) -> R {
        self.edit_at(&mut ToEnd, change)
    }

    /// See [`Rope::edit_leaf`].
    #[inline]
    fn edit_at<R>(&mut self, route: &mut impl Route<L>, change: impl FnOnce(&mut L, usize) -> (R, isize)) -> R {
        let Some(root) = &mut self.root else {
            let mut leaf = L::default();
            let (result, _) = change(&mut leaf, 0);
            let mut parts = Vec::new();
            divide(leaf, Edge { first: true, last: true }, &mut parts);
            *self = Self::from_leaves(parts);
            return result;
        };
        let (result, siblings) =
            edit(&mut root.node, &mut root.measure, route, Edge { first: true, last: true }, change);
        if !siblings.is_empty() || root.measure.count == 0 || root.only_child().is_some() {
            let root = self.root.take().expect("it has just been changed");
            self.set_root(root, siblings);
        }
        result
    }

    /// Takes away everything from `rank` on.
    ///
    /// # Panics
    /// If there are fewer elements.
    pub(crate) fn split_off(&mut self, rank: usize) -> Self {
        assert!(rank <= self.len(), "there are fewer elements");
        if rank == self.len() {
            return Self::new();
        }
        if rank == 0 {
            return mem::take(self);
        }
        let (lower, upper) = self.root.take().expect("it is not empty").split(rank);
        self.set_root(lower, Vec::new());
        let mut rest = Self::new();
        rest.set_root(upper, Vec::new());
        rest
    }

    /// Puts the elements of another one behind its own.
    pub(crate) fn append(&mut self, next: Self) {
        let Some(upper) = next.root else { return };
        let Some(mut lower) = self.root.take() else {
            self.root = Some(upper);
            return;
        };
        let seam = lower.measure.count;
        let (below, above) = (lower.height(), upper.height());
        if below >= above {
            let sibling = lower.append(upper, below - above);
            self.set_root(lower, sibling.into_iter().collect());
        } else {
            let mut upper = upper;
            let sibling = upper.prepend(lower, above - below);
            self.set_root(upper, sibling.into_iter().collect());
        }
        // What met at the seam may be thin.
        self.edit_leaf(seam - 1, |_, _| ((), 0));
        self.edit_leaf(seam, |_, _| ((), 0));
    }

    /// Takes a range of elements out.
    ///
    /// # Panics
    /// If there are fewer elements than the range wants.
    pub(crate) fn take_range(&mut self, range: Range<usize>) -> Self {
        let behind = self.split_off(range.end);
        let taken = self.split_off(range.start);
        self.append(behind);
        taken
    }

    /// Gives up the tree, to be freed in steps.
    pub(crate) fn into_unfreed(self) -> Unfreed<L> {
        let bytes = self.bytes();
        Unfreed { bytes, nodes: self.root.into_iter().map(|root| (root.measure.bytes, root.node)).collect() }
    }

    fn set_root(&mut self, mut root: Child<L>, siblings: Vec<Child<L>>) {
        if !siblings.is_empty() {
            let mut level = vec![root];
            level.extend(siblings);
            while level.len() > 1 {
                // One change makes few siblings, but a leaf may have been given much at once.
                let mut above = Vec::new();
                let mut children = level.into_iter();
                while children.len() > 0 {
                    above.push(Child::new(Node::Branch(Branch::of(children.by_ref().take(CHILDREN_MAX)))));
                }
                level = above;
            }
            root = level.pop().expect("there was one");
        }
        self.root = Some(root).filter(|root| root.measure.count > 0);
        while let Some(only) = self.root.as_ref().and_then(Child::only_child) {
            self.root = Some(only);
        }
    }
}

/// Cuts a leaf into parts none of which is too full.
fn divide<L: Leaf>(mut leaf: L, edge: Edge, parts: &mut Vec<L>) {
    match leaf.overflow(edge) {
        None => parts.push(leaf),
        Some(at) => {
            let upper = leaf.split_off(at);
            divide(leaf, Edge { last: false, ..edge }, parts);
            divide(upper, Edge { first: false, ..edge }, parts);
        }
    }
}

impl<L: Leaf> Child<L> {
    /// A node that is not empty.
    fn new(node: Node<L>) -> Self {
        Self { measure: node.measure(), node: Arc::new(node) }
    }

    /// Levels of branches above the leaves.
    fn height(&self) -> usize {
        let (mut node, mut height) = (&*self.node, 0);
        while let Node::Branch(branch) = node {
            (node, height) = (&branch.nodes[0], height + 1);
        }
        height
    }

    /// The child, if there is but one.
    fn only_child(&self) -> Option<Self> {
        match &*self.node {
            Node::Branch(branch) if branch.len() == 1 => Some(branch.child(0)),
            _ => None,
        }
    }

    /// Cuts the node in two; both get elements.
    fn split(self, rank: usize) -> (Self, Self) {
        match Arc::unwrap_or_clone(self.node) {
            Node::Leaf(mut leaf) => {
                let upper = leaf.split_off(rank);
                (Self::new(Node::Leaf(leaf)), Self::new(Node::Leaf(upper)))
            }
            Node::Branch(mut branch) => {
                let (index, rest) = branch.locate(rank);
                let mut upper = branch.split_off(index);
                if rest > 0 {
                    let (below, above) = upper.remove(0).split(rest);
                    branch.insert(branch.len(), below);
                    upper.insert(0, above);
                }
                (Self::new(Node::Branch(branch)), Self::new(Node::Branch(upper)))
            }
        }
    }

    /// Puts a node behind, as the last one that lies `depth` levels below this one. Gives back what splits off behind.
    fn append(&mut self, next: Self, depth: usize) -> Option<Self> {
        if depth == 0 {
            return Some(next);
        }
        let Node::Branch(branch) = Arc::make_mut(&mut self.node) else { unreachable!("leaves have no depth") };
        let last = branch.len() - 1;
        let mut child = branch.remove(last);
        let sibling = child.append(next, depth - 1);
        branch.insert(last, child);
        if let Some(sibling) = sibling {
            branch.insert(last + 1, sibling);
        }
        let sibling = branch.overflow(Edge { first: false, last: true });
        self.measure = self.node.measure();
        sibling
    }

    /// Puts a node in front, as the first one that lies `depth` levels below this one. Gives back what splits off
    /// behind.
    fn prepend(&mut self, previous: Self, depth: usize) -> Option<Self> {
        if depth == 0 {
            return Some(mem::replace(self, previous));
        }
        let Node::Branch(branch) = Arc::make_mut(&mut self.node) else { unreachable!("leaves have no depth") };
        let mut child = branch.remove(0);
        let sibling = child.prepend(previous, depth - 1);
        branch.insert(0, child);
        if let Some(sibling) = sibling {
            branch.insert(1, sibling);
        }
        let sibling = branch.overflow(Edge { first: true, last: false });
        self.measure = self.node.measure();
        sibling
    }
}

/// See [`Rope::edit_leaf`]. Gives back what splits off behind; an emptied node is left to the caller.
fn edit<L: Leaf, R>(
    node: &mut Arc<Node<L>>,
    measure: &mut Measure<L::Key>,
    route: &mut impl Route<L>,
    edge: Edge,
    change: impl FnOnce(&mut L, usize) -> (R, isize),
) -> (R, Vec<Child<L>>) {
    let is_shared = !node.is_unique();
    let node = Arc::make_mut(node);
    if is_shared {
        // A copy may take less than what it was made of.
        *measure = node.measure();
    }
    match node {
        Node::Leaf(leaf) => {
            let place = route.place(leaf);
            let (result, growth) = change(leaf, place);
            measure.count = leaf.count();
            measure.bytes = measure.bytes.wrapping_add_signed(growth);
            if measure.count > 0 {
                measure.key = leaf.key();
            }
            if leaf.overflow(edge).is_none() {
                return (result, Vec::new());
            }
            let mut parts = Vec::new();
            divide(mem::take(leaf), edge, &mut parts);
            let mut parts = parts.into_iter();
            *leaf = parts.next().expect("what is too full has parts");
            *measure = node.measure();
            (result, parts.map(|part| Child::new(Node::Leaf(part))).collect())
        }
        Node::Branch(branch) => {
            let index = route.child(branch);
            let before = branch.measure(index);
            let mut after = before;
            let within = Edge { first: edge.first && index == 0, last: edge.last && index + 1 == branch.len() };
            let (result, siblings) = edit(&mut branch.nodes[index], &mut after, route, within, change);
            branch.set_measure(index, after);
            if siblings.is_empty() && after.count > 0 && !branch.mend(index) {
                measure.count = measure.count + after.count - before.count;
                measure.bytes = measure.bytes + after.bytes - before.bytes;
                measure.key = branch.keys[0];
                return (result, Vec::new());
            }
            if after.count == 0 {
                branch.remove(index);
            }
            for (sibling, at) in siblings.into_iter().zip(index + 1..) {
                branch.insert(at, sibling);
            }
            let mut split = Vec::new();
            while let Some(sibling) = branch.overflow(edge) {
                split.insert(0, sibling);
            }
            if branch.len() > 0 {
                *measure = node.measure();
            } else {
                measure.count = 0;
            }
            (result, split)
        }
    }
}

impl<L: Leaf> Node<L> {
    fn measure(&self) -> Measure<L::Key> {
        let own_bytes = allocated_bytes(size_of::<usize>() + size_of::<Self>());
        match self {
            Self::Leaf(leaf) => Measure { count: leaf.count(), bytes: own_bytes + leaf.bytes(), key: leaf.key() },
            Self::Branch(branch) => Measure {
                count: branch.counts.iter().sum(),
                bytes: own_bytes + branch.own_bytes() + branch.bytes.iter().sum::<usize>(),
                key: branch.keys[0],
            },
        }
    }

    fn is_thin(&self) -> bool {
        match self {
            Self::Leaf(leaf) => leaf.is_thin(),
            Self::Branch(branch) => branch.len() <= CHILDREN_MAX / 4,
        }
    }

    fn fits(&self, next: &Self) -> bool {
        match (self, next) {
            (Self::Leaf(leaf), Self::Leaf(next)) => leaf.fits(next),
            (Self::Branch(branch), Self::Branch(next)) => branch.len() + next.len() <= CHILDREN_MAX / 4 * 3,
            _ => unreachable!("neighbours are equally high"),
        }
    }
}

impl<L: Leaf> Branch<L> {
    fn of(children: impl Iterator<Item = Child<L>>) -> Self {
        let size = children.size_hint().0;
        let mut branch = Self {
            keys: Vec::with_capacity(size),
            counts: Vec::with_capacity(size),
            bytes: Vec::with_capacity(size),
            nodes: Vec::with_capacity(size),
        };
        for child in children {
            branch.insert(branch.len(), child);
        }
        branch
    }

    #[inline]
    fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The child that has the element of this rank, and the element's rank in the child. The end belongs to the last.
    #[inline]
    fn locate(&self, rank: usize) -> (usize, usize) {
        let mut rest = rank;
        for (index, &count) in self.counts.iter().enumerate() {
            if rest < count {
                return (index, rest);
            }
            rest -= count;
        }
        let last = self.len() - 1;
        (last, rest + self.counts[last])
    }

    fn measure(&self, index: usize) -> Measure<L::Key> {
        Measure { count: self.counts[index], bytes: self.bytes[index], key: self.keys[index] }
    }

    fn set_measure(&mut self, index: usize, measure: Measure<L::Key>) {
        self.counts[index] = measure.count;
        self.bytes[index] = measure.bytes;
        self.keys[index] = measure.key;
    }

    fn child(&self, index: usize) -> Child<L> {
        Child { measure: self.measure(index), node: Arc::clone(&self.nodes[index]) }
    }

    fn insert(&mut self, index: usize, child: Child<L>) {
        self.keys.insert(index, child.measure.key);
        self.counts.insert(index, child.measure.count);
        self.bytes.insert(index, child.measure.bytes);
        self.nodes.insert(index, child.node);
    }

    fn remove(&mut self, index: usize) -> Child<L> {
        Child {
            measure: Measure {
                key: self.keys.remove(index),
                count: self.counts.remove(index),
                bytes: self.bytes.remove(index),
            },
            node: self.nodes.remove(index),
        }
    }

    fn split_off(&mut self, at: usize) -> Self {
        Self {
            keys: self.keys.split_off(at),
            counts: self.counts.split_off(at),
            bytes: self.bytes.split_off(at),
            nodes: self.nodes.split_off(at),
        }
    }

    /// Splits off the last part of a branch that has too many children.
    fn overflow(&mut self, edge: Edge) -> Option<Child<L>> {
        if self.len() <= CHILDREN_MAX {
            return None;
        }
        // At most as many as one node may have, whatever came.
        let at = edge.keeps(self.len()).max(self.len().saturating_sub(CHILDREN_MAX));
        Some(Child::new(Node::Branch(self.split_off(at))))
    }

    /// Lets a child that is thin join a neighbour, if they fit into one. True if they did.
    #[inline]
    fn mend(&mut self, index: usize) -> bool {
        if !self.nodes[index].is_thin() {
            return false;
        }
        let pairs = [(index, index + 1), (index.wrapping_sub(1), index)];
        for (left, right) in pairs {
            if left < right && right < self.len() && self.nodes[left].fits(&self.nodes[right]) {
                let next = self.remove(right);
                let node = Arc::make_mut(&mut self.nodes[left]);
                match (&mut *node, Arc::unwrap_or_clone(next.node)) {
                    (Node::Leaf(leaf), Node::Leaf(next)) => leaf.append(next),
                    (Node::Branch(branch), Node::Branch(next)) => {
                        branch.keys.extend(next.keys);
                        branch.counts.extend(next.counts);
                        branch.bytes.extend(next.bytes);
                        branch.nodes.extend(next.nodes);
                    }
                    _ => unreachable!("neighbours are equally high"),
                }
                let measure = node.measure();
                self.set_measure(left, measure);
                return true;
            }
        }
        false
    }

    fn own_bytes(&self) -> usize {
        allocated_bytes(self.keys.capacity() * size_of::<L::Key>())
            + 2 * allocated_bytes(self.counts.capacity() * size_of::<usize>())
            + allocated_bytes(self.nodes.capacity() * size_of::<usize>())
    }
}

/// What is left of a rope that nobody needs, as nodes that wait to be freed.
pub(crate) struct Unfreed<L: Leaf> {
    bytes: usize,
    nodes: Vec<(usize, Arc<Node<L>>)>,
}

impl<L: Leaf> Unfreed<L> {
    /// Bytes that have not been freed; what others hold counts as freed when its turn has come.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Frees about as many elements as `budget` says, and takes what it spent off it. True if something is left.
    pub(crate) fn free(&mut self, budget: &mut usize) -> bool {
        while *budget > 0
            && let Some((bytes, node)) = self.nodes.pop()
        {
            self.bytes -= bytes;
            let spent = match Arc::into_unique(node).map(UniqueArc::into_inner) {
                // Others have it and will free it.
                None => 1,
                Some(Node::Leaf(leaf)) => leaf.count(),
                Some(Node::Branch(branch)) => {
                    self.bytes += branch.bytes.iter().sum::<usize>();
                    self.nodes.extend(branch.bytes.into_iter().zip(branch.nodes));
                    1
                }
            };
            *budget = budget.saturating_sub(spent);
        }
        !self.nodes.is_empty()
    }
}

impl<T: Element> Leaf for Vec<T> {
    type Key = T::Key;

    #[inline]
    fn key(&self) -> T::Key {
        self[0].key()
    }

    #[inline]
    fn count(&self) -> usize {
        self.len()
    }

    fn bytes(&self) -> usize {
        self.capacity() * size_of::<T>() + self.iter().map(T::heap_bytes).sum::<usize>()
    }

    #[inline]
    fn overflow(&self, edge: Edge) -> Option<usize> {
        (self.len() >= LEAF_END).then(|| edge.keeps(self.len()))
    }

    fn split_off(&mut self, at: usize) -> Self {
        let upper = self.split_off(at);
        self.shrink_to_fit();
        upper
    }

    #[inline]
    fn is_thin(&self) -> bool {
        self.len() <= LEAF_END / 4
    }

    fn fits(&self, next: &Self) -> bool {
        self.len() + next.len() <= LEAF_END / 4 * 3
    }

    fn append(&mut self, next: Self) {
        self.reserve_exact(next.len());
        self.extend(next);
    }
}

impl<T: Element> Tree<T> {
    /// The element of a rank.
    #[inline]
    pub(crate) fn get(&self, rank: usize) -> Option<&T> {
        (rank < self.len()).then(|| {
            let (leaf, place) = self.leaf_at(rank);
            &leaf[place]
        })
    }

    /// Looks for an element in a sequence that is in order. See [`Sought`] for what `near` and `exact` tell.
    #[cfg(test)]
    fn find(&self, near: impl Fn(T::Key) -> Ordering, exact: impl Fn(&T) -> Ordering) -> Option<&T> {
        self.find_sought(&By(near, exact))
    }

    /// The same with the rank: that of the element which is there, or else the one that it would get.
    #[inline]
    pub(crate) fn search(
        &self,
        near: impl Fn(T::Key) -> Ordering,
        exact: impl Fn(&T) -> Ordering,
    ) -> Result<(usize, &T), usize> {
        self.search_sought(&By(near, exact))
    }

    /// Looks for an element in a sequence that is in order.
    #[inline]
    pub(crate) fn find_sought(&self, sought: &impl Sought<T>) -> Option<&T> {
        let (leaf, place, _) = self.descend(sought, false)?;
        leaf.get(place).filter(|element| sought.exact(element) == Ordering::Equal)
    }

    /// The same with the rank: that of the element which is there, or else the one that it would get.
    #[inline]
    pub(crate) fn search_sought(&self, sought: &impl Sought<T>) -> Result<(usize, &T), usize> {
        let Some((leaf, place, before)) = self.descend(sought, true) else { return Err(0) };
        match leaf.get(place) {
            Some(element) if sought.exact(element) == Ordering::Equal => Ok((before + place, element)),
            _ => Err(before + place),
        }
    }

    /// A search at its beginning; `None` in an empty sequence.
    #[inline]
    pub(crate) fn descent(&self) -> Option<Descent<'_, T>> {
        self.root.as_ref().map(|root| Descent(&root.node))
    }

    /// The leaf in which an element belongs, its place there, and, if wanted, how many elements lie before the leaf.
    #[inline]
    fn descend(&self, sought: &impl Sought<T>, ranked: bool) -> Option<(&Vec<T>, usize, usize)> {
        let mut route = To(sought);
        let mut node = &*self.root.as_ref()?.node;
        let mut before = 0;
        loop {
            match node {
                Node::Leaf(leaf) => return Some((leaf, route.place(leaf), before)),
                Node::Branch(branch) => {
                    let index = route.child(branch);
                    if ranked {
                        before += branch.counts[..index].iter().sum::<usize>();
                    }
                    node = &branch.nodes[index];
                }
            }
        }
    }

    /// Changes an element of a sequence that is in order, which must not change by it, or puts a new one in. True if it
    /// is new.
    pub(crate) fn put(
        &mut self,
        sought: &impl Sought<T>,
        change: impl FnOnce(&mut T),
        make: impl FnOnce() -> T,
    ) -> bool {
        self.edit_at(&mut To(sought), |leaf, place| match leaf.get_mut(place) {
            Some(found) if sought.exact(found) == Ordering::Equal => (false, updated(found, change).1),
            _ => (true, inserted(leaf, place, make())),
        })
    }

    /// Puts an element in, so that it gets this rank.
    ///
    /// # Panics
    /// If there are fewer elements than `rank`.
    pub(crate) fn insert(&mut self, rank: usize, element: T) {
        self.edit_leaf(rank, |leaf, place| ((), inserted(leaf, place, element)));
    }

    /// Puts an element behind all others.
    pub(crate) fn push(&mut self, element: T) {
        self.insert(self.len(), element);
    }

    /// Takes an element out.
    ///
    /// # Panics
    /// If no element has this rank.
    pub(crate) fn remove(&mut self, rank: usize) -> T {
        assert!(rank < self.len(), "no element has this rank");
        self.edit_leaf(rank, |leaf, place| {
            let before = leaf.capacity();
            let element = leaf.remove(place);
            if before > 2 * leaf.len() + 8 {
                leaf.shrink_to(leaf.len() + 4);
            }
            let shrunk = (before - leaf.capacity()) * size_of::<T>() + element.heap_bytes();
            (element, -(shrunk as isize))
        })
    }

    /// Changes an element where it is. The order must not change by it.
    ///
    /// # Panics
    /// If no element has this rank.
    pub(crate) fn update<R>(&mut self, rank: usize, change: impl FnOnce(&mut T) -> R) -> R {
        assert!(rank < self.len(), "no element has this rank");
        self.edit_leaf(rank, |leaf, place| updated(&mut leaf[place], change))
    }

    /// All elements in order.
    pub(crate) fn iter(&self) -> Iter<'_, T> {
        self.range(0..self.len())
    }

    /// The elements of these ranks, from either end.
    ///
    /// # Panics
    /// If there are fewer elements.
    pub(crate) fn range(&self, ranks: Range<usize>) -> Iter<'_, T> {
        assert!(ranks.start <= ranks.end && ranks.end <= self.len(), "there are fewer elements");
        Iter { tree: self, ranks, front: Default::default(), back: Default::default() }
    }
}

/// A search that goes down when it is told, so that several can go side by side.
pub(crate) struct Descent<'a, T: Element>(&'a Node<Vec<T>>);

impl<'a, T: Element> Descent<'a, T> {
    /// Goes down one level. False if it has arrived at a leaf.
    #[inline]
    pub(crate) fn step(&mut self, sought: &impl Sought<T>) -> bool {
        let Node::Branch(branch) = self.0 else { return false };
        self.0 = &branch.nodes[To(sought).child(branch)];
        true
    }

    /// The first element of the leaf, if the search has arrived at one, that is not before what is sought.
    #[inline]
    pub(crate) fn element(&self, sought: &impl Sought<T>) -> Option<&'a T> {
        let Node::Leaf(leaf) = self.0 else { return None };
        leaf.get(To(sought).place(leaf))
    }
}

/// Puts an element into a leaf; by how many bytes the leaf has grown.
#[inline]
fn inserted<T: Element>(leaf: &mut Vec<T>, place: usize, element: T) -> isize {
    let before = leaf.capacity();
    if before == leaf.len() {
        let wanted = (before + before / 2).next_multiple_of(4).clamp(4, LEAF_END.max(before + 1));
        leaf.reserve_exact(wanted - before);
    }
    let growth = (leaf.capacity() - before) * size_of::<T>() + element.heap_bytes();
    leaf.insert(place, element);
    growth as isize
}

/// Changes an element; with the result, by how many bytes it has grown.
#[inline]
fn updated<T: Element, R>(element: &mut T, change: impl FnOnce(&mut T) -> R) -> (R, isize) {
    let before = element.heap_bytes();
    let result = change(element);
    (result, element.heap_bytes() as isize - before as isize)
}

/// The first element under a node.
fn first<T: Element>(node: &Node<Vec<T>>) -> &T {
    match node {
        Node::Leaf(leaf) => &leaf[0],
        Node::Branch(branch) => first(&branch.nodes[0]),
    }
}

impl<T: Element> FromIterator<T> for Tree<T> {
    /// Elements that come in order are packed tightly.
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Self {
        let mut elements = elements.into_iter();
        Self::from_leaves(std::iter::from_fn(|| {
            let mut leaf = Vec::with_capacity(elements.size_hint().0.min(LEAF_END - 1));
            leaf.extend(elements.by_ref().take(LEAF_END - 1));
            leaf.shrink_to_fit();
            Some(leaf).filter(|leaf| !leaf.is_empty())
        }))
    }
}

/// Elements of a range of ranks; see [`Tree::range`].
pub(crate) struct Iter<'a, T: Element> {
    tree: &'a Tree<T>,
    /// Those that have not been looked up.
    ranks: Range<usize>,
    front: std::slice::Iter<'a, T>,
    back: std::slice::Iter<'a, T>,
}

impl<T: Element> Clone for Iter<'_, T> {
    fn clone(&self) -> Self {
        Self { tree: self.tree, ranks: self.ranks.clone(), front: self.front.clone(), back: self.back.clone() }
    }
}

impl<'a, T: Element> Iterator for Iter<'a, T> {
    type Item = &'a T;

    #[inline]
    fn next(&mut self) -> Option<&'a T> {
        if let Some(element) = self.front.next() {
            return Some(element);
        }
        if self.ranks.is_empty() {
            return self.back.next();
        }
        let (leaf, place) = self.tree.leaf_at(self.ranks.start);
        let end = leaf.len().min(place + self.ranks.len());
        self.front = leaf[place..end].iter();
        self.ranks.start += end - place;
        self.front.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.front.len() + self.ranks.len() + self.back.len();
        (left, Some(left))
    }
}

impl<T: Element> DoubleEndedIterator for Iter<'_, T> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        if let Some(element) = self.back.next_back() {
            return Some(element);
        }
        if self.ranks.is_empty() {
            return self.front.next_back();
        }
        let (leaf, place) = self.tree.leaf_at(self.ranks.end - 1);
        let start = (place + 1).saturating_sub(self.ranks.len());
        self.back = leaf[start..=place].iter();
        self.ranks.end -= place + 1 - start;
        self.back.next_back()
    }
}

impl<T: Element> ExactSizeIterator for Iter<'_, T> {}

#[cfg(test)]
mod tests;
