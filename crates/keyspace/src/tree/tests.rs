//! The tree against a plain vector, under histories drawn from seeds.

use stdx::Prng;

use super::*;

/// An element of which few bits are its key, so that keys are often equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    number: u64,
    text: Vec<u8>,
}

impl Element for Item {
    type Key = u64;

    fn key(&self) -> u64 {
        self.number >> 6
    }

    fn heap_bytes(&self) -> usize {
        self.text.capacity()
    }
}

fn item(number: u64) -> Item {
    Item { number, text: vec![7; (number % 5) as usize] }
}

fn search(tree: &Tree<Item>, number: u64) -> Result<usize, usize> {
    tree.search(|key| key.cmp(&(number >> 6)), |item| item.number.cmp(&number)).map(|(rank, found)| {
        assert_eq!(found.number, number);
        rank
    })
}

/// What is sought with a guess that may be as wrong as can be.
struct Guessed {
    number: u64,
    guess: Option<usize>,
}

impl Sought<Item> for Guessed {
    fn near(&self, key: u64) -> Ordering {
        key.cmp(&(self.number >> 6))
    }

    fn exact(&self, item: &Item) -> Ordering {
        item.number.cmp(&self.number)
    }

    fn guess(&self, _: u64, _: u64, len: usize) -> Option<usize> {
        self.guess.map(|guess| guess % (2 * len))
    }
}

/// Checks what holds of every tree, and the elements.
fn check(tree: &Tree<Item>, model: &[Item]) {
    assert_eq!(tree.len(), model.len());
    assert_eq!(tree.is_empty(), model.is_empty());
    assert!(tree.iter().eq(model), "other elements");
    if let Some(root) = &tree.root {
        check_node(&root.node, &root.measure, root.height());
        assert!(root.only_child().is_none(), "a root with one child");
    }
}

fn check_node(node: &Node<Vec<Item>>, measure: &Measure<u64>, height: usize) {
    let known = node.measure();
    assert_eq!((known.count, known.bytes, known.key), (measure.count, measure.bytes, measure.key));
    match node {
        Node::Leaf(leaf) => {
            assert_eq!(height, 0, "a leaf above the others");
            assert!(!leaf.is_empty() && leaf.len() < LEAF_END);
        }
        Node::Branch(branch) => {
            assert!((1..=CHILDREN_MAX).contains(&branch.len()));
            for index in 0..branch.len() {
                check_node(&branch.nodes[index], &branch.measure(index), height - 1);
            }
        }
    }
}

#[test]
fn it_is_a_vector_with_a_search() {
    for seed in 0..20 {
        let mut prng = Prng::new(seed);
        let (mut tree, mut model): (Tree<Item>, Vec<Item>) = (Tree::new(), Vec::new());
        let mut kept: Option<(Tree<Item>, Vec<Item>)> = None;
        for step in 0..4000 {
            // Sizes swing, so that nodes split, thin out and vanish.
            let grows = (step / 1000) % 2 == 0;
            let number = prng.below(5000);
            let rank = prng.below(model.len() as u64 + 1) as usize;
            match prng.below(if grows { 12 } else { 8 }) {
                0 if rank < model.len() => assert_eq!(tree.remove(rank), model.remove(rank)),
                1 | 2 if !grows => {
                    for _ in 0..8.min(model.len()) {
                        let rank = prng.below(model.len() as u64) as usize;
                        assert_eq!(tree.remove(rank), model.remove(rank));
                    }
                }
                3 if rank < model.len() => {
                    tree.update(rank, |item| item.text.push(1));
                    model[rank].text.push(1);
                }
                4 => {
                    let end = rank + prng.below((model.len() - rank) as u64 + 1) as usize;
                    let (from_front, from_back) = (prng.chance(1, 2), prng.chance(1, 2));
                    assert!(tree.range(rank..end).eq(&model[rank..end]));
                    assert!(tree.range(rank..end).rev().eq(model[rank..end].iter().rev()));
                    let mut range = tree.range(rank..end);
                    let mut slice = model[rank..end].iter();
                    for _ in 0..prng.below(200) {
                        assert_eq!(range.len(), slice.len());
                        match (from_front && prng.chance(1, 2), from_back) {
                            (true, _) => assert_eq!(range.next(), slice.next()),
                            (false, true) => assert_eq!(range.next_back(), slice.next_back()),
                            (false, false) => assert_eq!(range.next(), slice.next()),
                        }
                    }
                }
                5 if step % 40 == 0 => {
                    let end = rank + prng.below((model.len() - rank).min(300) as u64 + 1) as usize;
                    let taken = tree.take_range(rank..end);
                    let expected: Vec<Item> = model.drain(rank..end).collect();
                    check(&taken, &expected);
                    if prng.chance(1, 2) {
                        // Back in, the order being that of the model still.
                        let behind = tree.split_off(rank);
                        tree.append(taken);
                        tree.append(behind);
                        model.splice(rank..rank, expected);
                    }
                    check(&tree, &model);
                }
                6 if step % 100 == 0 => {
                    if let Some((tree, model)) = &kept {
                        check(tree, model);
                    }
                    kept = Some((tree.clone(), model.clone()));
                }
                _ => {
                    let expected = model.binary_search_by_key(&number, |item| item.number);
                    assert_eq!(search(&tree, number), expected);
                    let found = tree.find(|key| key.cmp(&(number >> 6)), |item| item.number.cmp(&number));
                    assert_eq!(found, expected.ok().map(|rank| &model[rank]));
                    let guess = prng.chance(1, 2).then(|| prng.below(200) as usize);
                    let sought = Guessed { number, guess };
                    assert_eq!(tree.search_sought(&sought).map(|(rank, _)| rank), expected);
                    if prng.chance(1, 2) {
                        let is_new = tree.put(&sought, |item| item.text.push(1), || item(number));
                        assert_eq!(is_new, expected.is_err());
                        match expected {
                            Ok(rank) => model[rank].text.push(1),
                            Err(rank) => model.insert(rank, item(number)),
                        }
                    } else if let Err(rank) = expected {
                        tree.insert(rank, item(number));
                        model.insert(rank, item(number));
                    }
                }
            }
            if rank < model.len() {
                assert_eq!(tree.get(rank), Some(&model[rank]));
            }
            if step % 250 == 0 {
                check(&tree, &model);
            }
        }
        check(&tree, &model);
    }
}

#[test]
fn a_bound_is_found_that_no_element_equals() {
    let tree: Tree<Item> = (0..1000).map(|number| item(number / 10)).collect();
    // Ten elements are equal; the bounds lie before and behind them.
    for number in 0..100 {
        let below = tree.search(
            |key| key.cmp(&(number >> 6)),
            |item| if item.number < number { Ordering::Less } else { Ordering::Greater },
        );
        let above = tree.search(
            |key| key.cmp(&(number >> 6)),
            |item| if item.number <= number { Ordering::Less } else { Ordering::Greater },
        );
        assert_eq!((below.unwrap_err(), above.unwrap_err()), (number as usize * 10, number as usize * 10 + 10));
    }
}

#[test]
fn what_comes_in_order_is_packed_tightly_from_either_end() {
    let mut ways: Vec<Tree<Item>> = vec![(0..100_000).map(item).collect(), Tree::new(), Tree::new()];
    for number in 0..100_000 {
        ways[1].push(item(number));
        ways[2].insert(0, item(99_999 - number));
    }
    let model: Vec<Item> = (0..100_000).map(item).collect();
    for tree in &ways {
        check(tree, &model);
        let payload = model.len() * size_of::<Item>() + model.iter().map(|item| item.text.len()).sum::<usize>();
        assert!(tree.bytes() < payload + payload / 8, "{} bytes for {payload}", tree.bytes());
    }
}

#[test]
fn emptied_one_by_one_it_gives_everything_back() {
    let mut prng = Prng::new(3);
    for order in 0..3 {
        let mut tree: Tree<Item> = (0..20_000).map(item).collect();
        let mut model: Vec<Item> = (0..20_000).map(item).collect();
        while !model.is_empty() {
            let rank = match order {
                0 => 0,
                1 => model.len() - 1,
                _ => prng.below(model.len() as u64) as usize,
            };
            assert_eq!(tree.remove(rank), model.remove(rank));
            if model.len().is_multiple_of(4999) {
                check(&tree, &model);
                let own = model.len() * (size_of::<Item>() + 8);
                assert!(tree.bytes() < 5 * own + 1000, "{} bytes are kept for {}", tree.bytes(), model.len());
            }
        }
        assert_eq!(tree.bytes(), 0);
    }
}

#[test]
fn a_clone_stays_as_it_was_and_shares_what_did_not_change() {
    let mut tree: Tree<Item> = (0..200_000).map(item).collect();
    let clone = tree.clone();
    tree.remove(100_000);
    tree.update(5, |item| item.text.push(1));
    assert_eq!(clone.get(100_000), Some(&item(100_000)));
    assert_eq!(clone.get(5), Some(&item(5)));
    let own = owned(&clone.root.as_ref().unwrap().node);
    assert!(own <= 8, "{own} nodes were copied");
}

/// Nodes that only one tree has: their number, seen from a tree of two.
fn owned(node: &Arc<Node<Vec<Item>>>) -> usize {
    let below = match &**node {
        Node::Branch(branch) if Arc::strong_count(node) == 1 => branch.nodes.iter().map(owned).sum(),
        _ => 0,
    };
    usize::from(Arc::strong_count(node) == 1) + below
}

#[test]
fn what_is_unfreed_goes_in_bounded_steps_and_leaves_to_others_what_is_theirs() {
    let tree: Tree<Item> = (0..50_000).map(item).collect();
    let clone = tree.clone();
    let mut unfreed = tree.into_unfreed();
    let mut budget = 100;
    assert!(!unfreed.free(&mut budget), "all of it is shared");
    assert!(budget >= 99);
    check(&clone, &(0..50_000).map(item).collect::<Vec<_>>());

    let mut unfreed = clone.into_unfreed();
    let (mut steps, mut bytes) = (0, unfreed.bytes());
    loop {
        let mut budget = 1000;
        let more = unfreed.free(&mut budget);
        assert!(unfreed.bytes() < bytes);
        bytes = unfreed.bytes();
        steps += 1;
        if !more {
            break;
        }
    }
    assert_eq!(bytes, 0);
    assert!((50..60).contains(&steps), "{steps} steps");
}
