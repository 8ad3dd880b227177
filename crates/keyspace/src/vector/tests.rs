use std::collections::BTreeMap;

use fuzzing::Fuzz;
use stdx::Prng;

use super::filter::Expression;
use super::graph::{BUILD_EFFORT_DEFAULT, Filter, SEARCH_EFFORT_DEFAULT};
use super::measure::{self, Quantization, decode, encode};
use super::*;
use crate::collection::packed::Items;

fn shape(quantization: Quantization, dimensions: u32) -> Shape {
    Shape { quantization, dimensions, given_dimensions: 0, links: LINKS_DEFAULT }
}

/// A number from -1 to 1.
fn number(prng: &mut Prng) -> f32 {
    prng.below(2_001) as f32 / 1_000.0 - 1.0
}

fn vector(prng: &mut Prng, dimensions: u32) -> Vec<f32> {
    (0..dimensions).map(|_| number(prng)).collect()
}

/// Asserts what holds of every graph.
fn check(set: &VectorSet) {
    let mut heap_bytes = 0;
    let highest = (0..set.len() as u32).rev().max_by_key(|&slot| set.level_of(slot));
    assert_eq!(set.entry, highest.unwrap_or(0));
    for slot in 0..set.len() as u32 {
        assert_eq!(set.find(set.body(slot).name()), Some(slot));
        assert!(set.level_of(slot) <= set.level(), "searches begin below an element");
        for layer in 0..=set.level_of(slot) {
            let links = set.links(slot, layer);
            assert!(links.len() <= 2 * set.shape.capacity(layer));
            for (place, &link) in links.iter().enumerate() {
                assert!(link != slot && !links[..place].contains(&link));
                assert!(set.links(link, layer).contains(&slot), "a link leads one way only");
            }
            assert!(layer > 0 || set.len() == 1 || !links.is_empty(), "nobody leads to an element");
        }
        heap_bytes += set.body(slot).heap_bytes() + set.links.at(slot).heap_bytes();
    }
    assert_eq!(set.heap_bytes, heap_bytes);
    assert_eq!(set.names.len(), set.len());
    let names: Vec<&[u8]> = set.range(Bound::Lowest, Bound::Highest).collect();
    assert!(names.is_sorted());
}

fn written(set: &VectorSet) -> Vec<u8> {
    let mut out = Vec::new();
    set.write_part(0, &mut out, usize::MAX);
    out
}

fn read(bytes: &[u8]) -> Option<VectorSet> {
    let mut items = Items::new(bytes);
    let mut maker = codec::ItemMaker::default();
    loop {
        if let Some(set) = maker.read_one(&mut items)? {
            return items.is_done().then_some(set);
        }
    }
}

/// How many of the ten nearest are found, of a hundred.
fn recall(set: &VectorSet, queries: &[Vec<f32>], effort: usize) -> usize {
    let mut found = 0;
    for query in queries {
        let query = encode(query, set.shape.quantization);
        let exact = set.scan(&query, 10, None);
        let farthest = exact.last().expect("there are elements").distance();
        found += set.search(&query, effort, None).iter().take(10).filter(|near| near.distance() <= farthest).count();
    }
    found * 10 / queries.len()
}

#[test]
fn vectors_come_back_about_as_they_were() {
    let given = [1.0, 4.32, 0.11, -2.5];
    for (quantization, most) in [(Quantization::Float, 1e-6), (Quantization::Byte, 0.02)] {
        let encoded = encode(&given, quantization);
        assert_eq!(encoded.direction.len(), quantization.bytes(4));
        let back = decode(&encoded.direction, encoded.range, encoded.length, quantization, 4);
        assert!(given.iter().zip(&back).all(|(given, back)| (given - back).abs() <= most), "{back:?}");
    }
    let bits = encode(&[1.0, 0.0, -1.0, 2.0], Quantization::Bit);
    assert_eq!(decode(&bits.direction, 0.0, 1.0, Quantization::Bit, 4), [1.0, -1.0, -1.0, 1.0]);
    // As Redis 8.2 keeps them.
    assert_eq!(encode(&[1.0, 2.0, 3.0], Quantization::Byte).direction, [42, 85, 127]);
    let zero = encode(&[0.0; 3], Quantization::Byte);
    let far = |left: &Encoded, right: &Encoded| {
        let [left, right] = [left, right].map(|one| Direction { bytes: &one.direction, range: one.range });
        measure::distance(left, right, Quantization::Byte, 3)
    };
    assert_eq!(far(&zero, &zero), 1.0);
    let one = encode(&[f32::MAX, f32::MAX, 0.0], Quantization::Byte);
    assert!(far(&one, &encode(&[2.0, 2.0, 0.0], Quantization::Byte)) < 1e-6);
    let projected = measure::project(&[1.0, 2.0, 3.0], 2);
    assert!((projected[0] - 3.464_101_6).abs() < 1e-6 && (projected[1] - 1.154_700_5).abs() < 1e-6, "{projected:?}");
}

#[test]
fn a_graph_finds_what_a_scan_finds() {
    for quantization in [Quantization::Float, Quantization::Byte, Quantization::Bit] {
        for clusters in [0, 20] {
            let mut prng = Prng::new(7);
            let mut set = VectorSet::new(shape(quantization, 64));
            let centres: Vec<Vec<f32>> = (0..clusters).map(|_| vector(&mut prng, 64)).collect();
            let some = |prng: &mut Prng| {
                let around = vector(prng, 64);
                match centres.is_empty() {
                    true => around,
                    false => {
                        let centre = &centres[prng.below(centres.len() as u64) as usize];
                        centre.iter().zip(around).map(|(centre, around)| centre + around / 4.0).collect()
                    }
                }
            };
            for element in 0..1_500 {
                let encoded = encode(&some(&mut prng), quantization);
                set.add(format!("e{element}").as_bytes(), &encoded, b"", 100);
            }
            check(&set);
            let queries: Vec<Vec<f32>> = (0..50).map(|_| some(&mut prng)).collect();
            let share = recall(&set, &queries, 100);
            assert!(share >= 95, "{share} of 100 with {quantization:?} and {clusters} clusters");
        }
    }
}

#[test]
fn a_graph_stays_whole_while_elements_come_and_go() {
    let mut prng = Prng::new(11);
    for links in [LINKS_MIN, LINKS_DEFAULT] {
        let mut set = VectorSet::new(Shape { links, ..shape(Quantization::Byte, 8) });
        let mut model = BTreeMap::new();
        for round in 0..1_500 {
            let name = format!("e{}", prng.below(250)).into_bytes();
            // Many are the same, so that distances tell little.
            let vector =
                vec![prng.below(3) as f32, prng.below(3) as f32, 1.0, 0.0, 0.0, 0.0, 0.0, prng.below(5) as f32];
            let encoded = encode(&vector, Quantization::Byte);
            match set.find(&name) {
                Some(slot) if round >= 1_000 || prng.chance(1, 2) => {
                    set.remove(slot);
                    model.remove(&name);
                }
                Some(slot) => {
                    assert!(set.set_attributes(slot, format!("{{\"n\":{round}}}").as_bytes()));
                    model.insert(name, (set.body(slot).encoded(), round));
                }
                None => {
                    set.add(&name, &encoded, b"", BUILD_EFFORT_DEFAULT);
                    model.insert(name, (encoded, 0));
                }
            }
            if round % 50 == 0 {
                check(&set);
            }
        }
        let names: Vec<&[u8]> = set.range(Bound::Lowest, Bound::Highest).collect();
        assert_eq!(names, model.keys().map(Vec::as_slice).collect::<Vec<_>>());
        assert_eq!(set.attribute_count(), model.values().filter(|(_, round)| *round > 0).count() as u64);
        for (name, (encoded, _)) in &model {
            assert_eq!(&set.body(set.find(name).expect("it is there")).encoded(), encoded);
        }
        let all = set.search(&encode(&[1.0; 8], Quantization::Byte), set.len(), None);
        assert_eq!(all.len(), set.len(), "some elements cannot be reached");
        while set.len() > 0 {
            set.remove(prng.below(set.len() as u64) as u32);
        }
        assert_eq!((set.heap_bytes, set.attribute_count(), set.names.len()), (0, 0, 0));
    }
}

#[test]
fn who_loses_its_only_link_to_a_new_element_is_joined_to_it_once() {
    let mut set = VectorSet::new(Shape { links: LINKS_MIN, ..shape(Quantization::Float, 20) });
    let add = |set: &mut VectorSet, name: &str, place: usize, weight: f32, effort: usize| {
        let mut vector = [0.0f32; 20];
        vector[0] = 1.0;
        vector[place] += weight;
        set.add(name.as_bytes(), &encode(&vector, Quantization::Float), b"", effort);
        check(set);
    };
    // A star: what is at its edge has one link.
    add(&mut set, "h", 0, 0.0, 1);
    (1..=15).for_each(|place| add(&mut set, &format!("l{place}"), place, 1.0, 1));
    add(&mut set, "g", 16, 1.2, 1);
    // It takes the place of the farthest one, and is near to that, too.
    add(&mut set, "c", 16, 0.44, BUILD_EFFORT_DEFAULT);
    for name in [b"c", b"g"] {
        set.remove(set.find(name).expect("it is there"));
        check(&set);
    }
    let hub = set.find(b"h").expect("it is there");
    let found = set.search(&set.body(hub).encoded(), SEARCH_EFFORT_DEFAULT, None);
    assert_eq!((found[0].slot(), found.len()), (hub, set.len()));
}

#[test]
fn a_graph_of_little_and_of_much_effort_stays_whole() {
    let mut prng = Prng::new(29);
    let add = |set: &mut VectorSet, element: u32, place: usize, weight: f32, effort: usize| {
        let mut vector = [0.0f32; 20];
        vector[0] = 1.0;
        vector[place] += weight;
        set.add(format!("e{element}").as_bytes(), &encode(&vector, Quantization::Float), b"", effort);
        check(set);
    };
    for trial in 0..1_000 {
        // A star that is full, and then others near its hub, of which some are near to each other.
        let mut set = VectorSet::new(Shape { links: LINKS_MIN, ..shape(Quantization::Float, 20) });
        let first = 100 * trial;
        add(&mut set, first, 0, 0.0, 1);
        (1..16).for_each(|place| add(&mut set, first + place, place as usize, 1.0, 1));
        for element in first + 16..first + 26 {
            if prng.chance(1, 4) {
                set.remove(1 + prng.below(set.len() as u64 - 1) as u32);
                check(&set);
            } else {
                let weight = (2 + prng.below(12)) as f32 / 10.0;
                let effort = if prng.chance(1, 2) { 1 } else { BUILD_EFFORT_DEFAULT };
                add(&mut set, element, 16 + prng.below(4) as usize, weight, effort);
            }
        }
        while set.len() > 0 {
            set.remove(prng.below(set.len() as u64) as u32);
            check(&set);
        }
    }
}

#[test]
fn a_set_that_is_read_is_the_one_that_was_written_and_goes_on_alike() {
    let mut prng = Prng::new(13);
    for quantization in [Quantization::Float, Quantization::Byte, Quantization::Bit] {
        let mut set = VectorSet::new(shape(quantization, 12));
        for element in 0..300 {
            let encoded = encode(&vector(&mut prng, 12), quantization);
            set.add(format!("e{element}").as_bytes(), &encoded, if element % 3 == 0 { b"{}" } else { b"" }, 50);
            if element % 5 == 4 {
                set.remove(prng.below(set.len() as u64) as u32);
            }
        }
        let mut again = read(&written(&set)).expect("a set");
        check(&again);
        assert_eq!(again.heap_bytes, set.heap_bytes);
        for element in 300..350 {
            let encoded = encode(&vector(&mut prng, 12), quantization);
            for set in [&mut set, &mut again] {
                set.add(format!("e{element}").as_bytes(), &encoded, b"", 50);
                set.remove(element % set.len() as u32);
            }
        }
        assert_eq!(written(&set), written(&again));
        // In parts it is the same.
        let (mut parts, mut at) = (Vec::new(), 0);
        while at < set.item_count() {
            let end = parts.len() + 500;
            at = set.write_part(at, &mut parts, end);
        }
        assert_eq!(parts, written(&set));
    }
}

#[test]
fn a_clone_stays_as_it_was() {
    let mut prng = Prng::new(17);
    let mut set = VectorSet::new(shape(Quantization::Byte, 6));
    let mut add = |set: &mut VectorSet, element: u32| {
        let encoded = encode(&vector(&mut prng, 6), Quantization::Byte);
        set.add(format!("e{element}").as_bytes(), &encoded, b"", 50);
    };
    (0..1_100).for_each(|element| add(&mut set, element));
    let (kept, before) = (set.clone(), written(&set));
    for element in 1_100..1_200 {
        add(&mut set, element);
        set.remove(element % 900);
    }
    assert_eq!(written(&kept), before);
    check(&set);
    let mut unfreed = kept.into_unfreed();
    let mut steps = 0;
    while unfreed.free(&mut 100) {
        steps += 1;
    }
    assert!(steps > 10 && unfreed.bytes() == 0, "{steps} steps, {} bytes are left", unfreed.bytes());
    check(&set);
}

#[test]
fn what_is_no_set_is_refused() {
    let mut prng = Prng::new(19);
    let mut set = VectorSet::new(shape(Quantization::Byte, 4));
    for element in 0..20 {
        let encoded = encode(&vector(&mut prng, 4), Quantization::Byte);
        set.add(format!("e{element}").as_bytes(), &encoded, b"", 50);
    }
    let bytes = written(&set);
    (0..bytes.len()).for_each(|end| assert!(read(&bytes[..end]).is_none()));
    Fuzz::new("vector-set", [bytes]).rounds(3_000).run(|bytes| {
        // Whatever is accepted must be one that nothing fails on.
        let Some(mut set) = read(bytes) else { return 0 };
        let len = set.len();
        let dimensions = set.shape.dimensions;
        let encoded = encode(&vec![1.0; dimensions as usize], set.shape.quantization);
        set.search(&encoded, 10, None);
        if set.find(b"new").is_none() {
            set.add(b"new", &encoded, b"", 10);
        }
        while set.len() > 0 {
            set.remove(0);
        }
        len as u64
    });
}

#[test]
fn filters_find_who_matches_within_their_effort() {
    let mut prng = Prng::new(23);
    let mut set = VectorSet::new(shape(Quantization::Float, 8));
    for element in 0..500 {
        let encoded = encode(&vector(&mut prng, 8), Quantization::Float);
        set.add(format!("e{element}").as_bytes(), &encoded, format!("{{\"n\":{element}}}").as_bytes(), 50);
    }
    let query = encode(&[1.0; 8], Quantization::Float);
    let is_even = |body: &Body| body.name().last().is_some_and(|digit| digit % 2 == 0);
    let exact = set.scan(&query, 10, Some(&is_even));
    let found = set.search(&query, 100, Some(&Filter { accepts: &is_even, effort: 1_000 }));
    assert_eq!(found[..10], exact[..]);
    let nobody = |_: &Body| false;
    assert!(set.search(&query, 100, Some(&Filter { accepts: &nobody, effort: 1_000 })).is_empty());
    let asked = std::cell::Cell::new(0);
    let counts = |_: &Body| {
        asked.set(asked.get() + 1);
        false
    };
    set.search(&query, 100, Some(&Filter { accepts: &counts, effort: 7 }));
    assert_eq!(asked.get(), 7);
}

fn matches(expression: &str, attributes: &str) -> bool {
    let expression = Expression::read(expression.as_bytes()).unwrap_or_else(|wrong| panic!("{expression}: {wrong:?}"));
    expression.accepts(Some(attributes.as_bytes()))
}

#[test]
fn expressions_tell_who_matches() {
    let alice = "{\"age\":25,\"name\":\"Alice\",\"active\":true,\"scores\":[85,90,\"x\"],\"none\":null,\"lines\":\"a\\nb\",\"deep\":{\"a\":1}}";
    for expression in [
        ".age == 25",
        ".age != 26",
        ".age >= 25 and .age <= 25",
        "!(.age > 25)",
        "not .none",
        ".active",
        ".active == 1",
        ".name == 'Alice'",
        ".name in [\"Alice\", 'Bob']",
        "'lic' in .name",
        "'' in ''",
        ".age in [-1, 25]",
        "85 in .scores and 'x' in .scores",
        "'25' in ['x', 5e1, 25]",
        "'' in .name",
        ".scores",
        ".age + 10 > 34",
        ".age * 2 - 1 == 49",
        ".age / 5 == 5",
        ".age % 2 == 1",
        "2 ** 3 ** 2 == 512",
        "1 + 2 * 3 == 7",
        "(1 + 2) * 3 == 9",
        "5-3 == 2 && 5 -3 == 2",
        "-5 + 3 == -2",
        "10 > -5",
        "1 || 0 and 0",
        "!!1",
        ".age == '25'",
        "null == .none",
        ".none != 3",
        "1.5e1 == 15",
        "'a\\'b' == \"a'b\"",
        ".lines == 'a\\nb'",
    ] {
        assert!(matches(expression, alice), "{expression}");
    }
    for expression in [
        ".age > 25",
        ".missing",
        ".missing or 1",
        ".deep",
        ".name in ''",
        ".name",
        "'z' in .name",
        "'25x' in [25, '25']",
        ".none in [1]",
        "3 in 3",
        "'Alice' > 3",
    ] {
        let attributes = if expression == ".name" { "{\"name\":\"\"}" } else { alice };
        assert!(!matches(expression, attributes), "{expression}");
    }
    assert!(!matches("1", "no JSON") && !Expression::read(b"1").expect("one").accepts(None));
    for (wrong, at) in [
        ("", 0),
        (".a >", 0),
        ("1 2", 0),
        ("(1", 0),
        ("1)", 0),
        ("'open", 5),
        ("[1, 2", 5),
        ("[a]", 1),
        (".", 0),
        ("1 ~ 2", 2),
        ("1 + foo + 2", 7),
        ("and", 0),
        ("1.2.3 + 1", 5),
    ] {
        assert_eq!(Expression::read(wrong.as_bytes()).err(), Some(filter::Wrong(at)), "{wrong}");
    }
    let deep = format!("{}1{}", "(".repeat(20_000), ")".repeat(20_000));
    assert!(matches(&deep, "{}"));
    let text = b"(.age >= -2.5 and not 'x' in [1, \"y\"]) or null == .b ** 2".to_vec();
    Fuzz::new("vector-filter", [text]).words(&[b"in", b"not", b".age", b"("]).run(|text| {
        match Expression::read(text) {
            Ok(expression) => expression.accepts(Some(alice.as_bytes())).into(),
            Err(filter::Wrong(at)) => 2 + at.min(8) as u64,
        }
    });
}
