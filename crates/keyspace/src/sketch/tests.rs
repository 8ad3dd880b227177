//! Sketches beside plain models of what they sketch.

use std::collections::{BTreeMap, BTreeSet};

use stdx::Prng;

use super::bloom::{Bloom, Full};
use super::count_min::CountMin;
use super::cuckoo::Cuckoo;
use super::digest::Digest;
use super::hash::{hash_32, hash_64};
use super::pages::{PAGE_BYTES, Pages};
use super::top_k::{Powers, TopK};
use super::{CELL_BYTES_MAX, Maker, Sketch, Species, Unfreed};
use crate::collection::packed::Items;

fn item(number: u64) -> Vec<u8> {
    format!("item:{number}").into_bytes()
}

/// The sketch written in parts of about this many bytes, and read.
fn through_parts(sketch: &Sketch, part_bytes: usize) -> Sketch {
    let mut maker = Maker::default();
    let mut from = 0;
    loop {
        let mut part = Vec::new();
        from = sketch.write_part(from, &mut part, part_bytes);
        let mut items = Items::new(&part);
        while !items.is_done() {
            if let Some(sketch) = maker.read_one(&mut items).expect("what was written can be read") {
                assert!(items.is_done());
                return sketch;
            }
        }
        assert!(from < sketch.len(), "the last item makes it whole");
    }
}

fn written(sketch: &Sketch) -> Vec<u8> {
    let mut out = Vec::new();
    assert_eq!(sketch.write_part(0, &mut out, usize::MAX), sketch.len());
    out
}

/// Sketches of every type, small and large, with something in them.
fn samples() -> Vec<Sketch> {
    let mut sketches = Vec::new();
    for (count, size) in [(0, 10), (50, 10), (20_000, 1_000)] {
        let mut bloom = Bloom::new(size, 0.01, 2, true).expect("it fits");
        let mut cuckoo = Cuckoo::new(size, 2, 20, 2).expect("it fits");
        let mut count_min = CountMin::new(size * 10, 3).expect("it fits");
        let mut top_k = TopK::new(5, size as u32, 3, 0.9).expect("it fits");
        let mut digest = Digest::new(size / 5 + 10).expect("it fits");
        let (powers, mut prng) = (Powers::new(0.9), Prng::new(7));
        for number in 0..count {
            bloom.add(&item(number)).expect("it grows");
            cuckoo.add(&item(number)).expect("it grows");
            count_min.add(&item(number), number);
            top_k.add(&item(number % 100), 1, &powers, &mut prng);
            digest.add(number as f64 * 1.5, 1).expect("few weigh little");
        }
        sketches.extend([
            Sketch::Bloom(bloom),
            Sketch::Cuckoo(cuckoo),
            Sketch::CountMin(count_min),
            Sketch::TopK(top_k),
            Sketch::Digest(digest),
        ]);
    }
    sketches
}

#[test]
fn hashes_are_those_of_others() {
    // From the authors' own implementation.
    assert_eq!(hash_32(b"", 0), 0);
    assert_eq!(hash_64(b"", 0), 0);
    assert_eq!(hash_64(b"foo", 0), 0xCDDE_3835_8FD2_5B01);
    assert_eq!(hash_64(b"hello, world", 0xC6A4_A793_5BD1_E995), 0x3EB8_28DD_01BE_3C18);
    assert_eq!(hash_32(b"hello, world", 1919), 0x19AA_DF03);
}

#[test]
fn pages_hold_what_was_written_and_take_memory_only_then() {
    let mut prng = Prng::new(1);
    for len in [1, 100, PAGE_BYTES, 3 * PAGE_BYTES + 17, 600 * PAGE_BYTES] {
        let (mut pages, mut model) = (Pages::new(len), vec![0; len]);
        assert!(pages.bytes() < 200, "{} bytes for {len}", pages.bytes());
        for _ in 0..20 {
            let from = prng.below(len as u64) as usize;
            let some = (prng.below(3 * PAGE_BYTES as u64) as usize).min(len - from);
            let bytes: Vec<u8> = (0..some).map(|_| prng.draw() as u8 & 1).collect();
            pages.write(from, &bytes);
            model[from..from + some].copy_from_slice(&bytes);
            assert_eq!(pages.read(from / 2, len), model[from / 2..]);
        }
        // A copy shares what does not change.
        let (copy, at) = (pages.clone(), len / 2);
        let before = pages.byte(at);
        pages.set_byte(at, before ^ 1);
        assert_eq!((copy.byte(at), pages.byte(at)), (before, before ^ 1));
    }
    let huge = Pages::new(CELL_BYTES_MAX as usize);
    assert!(huge.bytes() < 32 << 10, "{} bytes for {CELL_BYTES_MAX}", huge.bytes());
}

#[test]
fn bloom_filters_forget_nothing_and_seldom_invent() {
    for (error, capacity, growth) in [(0.01, 1_000, 2), (0.001, 100, 4), (0.1, 5_000, 1)] {
        let mut filter = Bloom::new(capacity, error, growth, true).expect("it fits");
        let mut refused = 0;
        for number in 0..10_000 {
            refused += u64::from(!filter.add(&item(number)).expect("it grows"));
        }
        assert!((0..10_000).all(|number| filter.contains(&item(number))));
        assert_eq!(filter.size + refused, 10_000);
        let invented = (10_000..60_000).filter(|number| filter.contains(&item(*number))).count();
        assert!((invented as f64) < 50_000.0 * error * 1.2, "{invented} of 50,000 at {error}");
    }
    let mut full = Bloom::new(10, 0.001, 2, false).expect("it fits");
    let answers: BTreeSet<_> = (0..100).filter_map(|number| full.add(&item(number)).err().map(|_| number)).collect();
    assert_eq!(answers.first(), Some(&10));
    assert_eq!(full.add(b"another"), Err(Full::NotScaling));
    assert_eq!(full.add(&item(3)), Ok(false));
}

#[test]
fn bloom_filters_take_what_theory_says() {
    for (error, bits) in [(0.01f64, 9.585), (0.001, 14.378)] {
        let filter = Bloom::new(1_000_000, error, 2, false).expect("it fits");
        let taken = filter.cell_bytes() as f64 * 8.0 / 1_000_000.0;
        assert!((taken - bits).abs() < 0.01, "{taken} bits for {error}");
    }
}

#[test]
fn cuckoo_filters_count_and_forget() {
    for (capacity, bucket_len, growth) in [(64, 2, 1), (1_000, 4, 2), (16, 1, 1)] {
        let mut prng = Prng::new(capacity);
        let mut filter = Cuckoo::new(capacity, bucket_len, 20, growth).expect("it fits");
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        for _ in 0..3_000 {
            let number = prng.below(300);
            if prng.chance(2, 3) || model.get(&number).is_none_or(|count| *count == 0) {
                if filter.add(&item(number)).is_ok() {
                    *model.entry(number).or_default() += 1;
                }
            } else {
                assert!(filter.remove(&item(number)));
                *model.entry(number).or_default() -= 1;
            }
            let (number, count) = (number, model.get(&number).copied().unwrap_or_default());
            assert!(filter.count(&item(number)) >= count);
        }
        for (number, count) in &model {
            assert!(filter.count(&item(*number)) >= *count);
        }
        assert_eq!(filter.size, model.values().sum::<u64>());
    }
    let mut full = Cuckoo::new(8, 2, 20, 0).expect("it fits");
    let before = |filter: &Cuckoo| filter.dump_chunk(0, 100);
    let refused = (0..100).any(|number| {
        let was = before(&full);
        full.add(&item(number)).is_err() && before(&full) == was
    });
    assert!(refused, "what finds no room has changed nothing");
}

#[test]
fn count_min_sketches_never_count_too_little() {
    let (width, depth) = CountMin::dimensions(0.001, 0.01);
    let mut sketch = CountMin::new(width, depth).expect("it fits");
    let mut model: BTreeMap<u64, u64> = BTreeMap::new();
    let mut prng = Prng::new(3);
    for _ in 0..20_000 {
        let number = prng.below(5_000);
        sketch.add(&item(number), 2);
        *model.entry(number).or_default() += 2;
    }
    assert_eq!(sketch.sum, 40_000);
    let beyond = model.iter().filter(|(number, count)| {
        let counted = u64::from(sketch.count(&item(**number)));
        assert!(counted >= **count);
        counted > **count + 40
    });
    assert!(beyond.count() <= model.len() / 100);
    let twice = CountMin::merged(width, depth, &[(&sketch, 3), (&sketch, -1)]).expect("it fits");
    assert!(model.keys().all(|number| twice.count(&item(*number)) == 2 * sketch.count(&item(*number))));
    assert!(CountMin::merged(width, depth, &[(&sketch, -1)]).is_none());
    assert!(CountMin::merged(width, depth, &[(&sketch, i64::MAX)]).is_none());
    assert_eq!(sketch.add(b"much", u64::MAX), u32::MAX);
}

#[test]
fn top_k_lists_find_what_is_frequent() {
    let (powers, mut prng) = (Powers::new(0.9), Prng::new(5));
    let mut list = TopK::new(10, 1_000, 5, 0.9).expect("it fits");
    for _ in 0..50_000 {
        // The number n comes about twice as often as 2n.
        let number = 1_000 / (1 + prng.below(1_000));
        list.add(&item(number), 1, &powers, &mut prng);
    }
    let found: Vec<_> = list.list().iter().map(|place| place.item.as_deref().expect("it has one").to_vec()).collect();
    assert_eq!(found.len(), 10);
    assert!((1..=5).all(|number| found.contains(&item(number))), "{found:?}");
    assert!(list.list().is_sorted_by(|left, right| left.count >= right.count));
}

#[test]
fn digests_are_right_at_the_ends() {
    let mut prng = Prng::new(9);
    let mut digest = Digest::new(100).expect("it fits");
    let mut values: Vec<f64> = (0..50_000).map(|_| prng.below(1 << 30) as f64).collect();
    values.iter().try_for_each(|value| digest.add(*value, 1)).expect("few weigh little");
    values.sort_by(f64::total_cmp);
    let merged = digest.compressed();
    assert_eq!((merged.min, merged.max), (values[0], values[49_999]));
    assert!(merged.nodes().len() <= merged.capacity());
    for share in [0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999] {
        let rank = values.partition_point(|value| *value <= merged.quantile(share)) as f64 / 50_000.0;
        let most = 0.05 * share * (1.0 - share) + 0.0005;
        assert!((rank - share).abs() < most, "{rank} for {share}");
        let value = values[(share * 50_000.0) as usize];
        assert!((merged.share_below(value) - share).abs() < most);
    }
    // To ask changes nothing.
    assert_eq!(digest.unmerged() + digest.merged, digest.nodes().len());
    assert!(digest.unmerged() > 0);
}

#[test]
fn sketches_come_back_as_they_were() {
    for sketch in samples() {
        let bytes = written(&sketch);
        for part_bytes in [1, 100, 10_000, usize::MAX] {
            let back = through_parts(&sketch, part_bytes);
            assert_eq!(written(&back), bytes);
            assert_eq!((back.len(), back.species()), (sketch.len(), sketch.species()));
        }
        assert_eq!(Species::of_packed(&bytes), Some(sketch.species()));
        if let Some(packed) = sketch.pack() {
            assert_eq!(packed, bytes);
            assert_eq!(written(&Sketch::unpack(&packed).expect("it is one")), bytes);
        }
    }
}

#[test]
fn what_is_no_sketch_is_refused_and_harms_nothing() {
    let mut prng = Prng::new(11);
    for sketch in samples() {
        let bytes = written(&sketch);
        let bytes = &bytes[..bytes.len().min(2_000)];
        for _ in 0..300 {
            let mut spoilt = bytes[..prng.below(bytes.len() as u64 + 1) as usize].to_vec();
            if let Some(at) = (!spoilt.is_empty()).then(|| prng.below(spoilt.len().min(100) as u64) as usize) {
                spoilt[at] = prng.draw() as u8;
            }
            // Whatever is accepted can be used.
            if let Some(mut sketch) = Sketch::unpack(&spoilt) {
                match &mut sketch {
                    Sketch::Bloom(filter) => _ = filter.add(b"x"),
                    Sketch::Cuckoo(filter) => _ = filter.add(b"x"),
                    Sketch::CountMin(sketch) => _ = sketch.add(b"x", 1),
                    Sketch::TopK(list) => _ = list.add(b"x", 1, &Powers::new(0.5), &mut prng),
                    Sketch::Digest(digest) => _ = (digest.add(1.0, 1), digest.compressed().quantile(0.5)),
                }
            }
        }
    }
}

#[test]
fn headers_from_outside_are_checked() {
    let mut prng = Prng::new(12);
    let mut bloom = Bloom::new(100, 0.01, 2, true).expect("it fits");
    let mut cuckoo = Cuckoo::new(100, 2, 20, 2).expect("it fits");
    for number in 0..1_000 {
        bloom.add(&item(number)).expect("it grows");
        cuckoo.add(&item(number)).expect("it grows");
    }
    for _ in 0..2_000 {
        let mut header = bloom.dump_header();
        let at = prng.below(header.len() as u64) as usize;
        header[at] = prng.draw() as u8;
        if let Some(mut filter) = Bloom::from_header(&header) {
            assert!(filter.cell_bytes() <= CELL_BYTES_MAX);
            let _ = filter.add(b"x");
            assert!(!filter.load_chunk(filter.cell_bytes(), b"x"));
            assert!(!filter.load_chunk(u64::MAX, b"x"));
        }
        let mut header = cuckoo.dump_header();
        let at = prng.below(header.len() as u64) as usize;
        header[at] = prng.draw() as u8;
        if let Some(mut filter) = Cuckoo::from_header(&header) {
            assert!(filter.cell_bytes() <= CELL_BYTES_MAX);
            let _ = (filter.add(b"x"), filter.remove(b"x"));
            assert!(!filter.load_chunk(filter.cell_bytes(), b"x"));
        }
    }
}

#[test]
fn filters_go_through_chunks() {
    let mut bloom = Bloom::new(1_000, 0.01, 2, true).expect("it fits");
    let mut cuckoo = Cuckoo::new(1_000, 2, 20, 1).expect("it fits");
    for number in 0..5_000 {
        bloom.add(&item(number)).expect("it grows");
        cuckoo.add(&item(number)).expect("it grows");
    }
    let mut bloom_copy = Bloom::from_header(&bloom.dump_header()).expect("a header");
    let mut cuckoo_copy = Cuckoo::from_header(&cuckoo.dump_header()).expect("a header");
    let (mut at, mut offset) = (0, 0);
    while let Some(chunk) = bloom.dump_chunk(at, 700) {
        assert!(bloom_copy.load_chunk(at, &chunk));
        at += chunk.len() as u64;
    }
    while let Some(chunk) = cuckoo.dump_chunk(offset, 700) {
        assert!(cuckoo_copy.load_chunk(offset, &chunk));
        offset += chunk.len() as u64;
    }
    assert_eq!(written(&Sketch::Bloom(bloom_copy)), written(&Sketch::Bloom(bloom)));
    assert_eq!(written(&Sketch::Cuckoo(cuckoo_copy)), written(&Sketch::Cuckoo(cuckoo)));
}

#[test]
fn sketches_are_freed_in_steps() {
    let mut sketch = CountMin::new(10_000_000, 2).expect("it fits");
    (0..50_000).for_each(|number| _ = sketch.add(&item(number), 1));
    let mut unfreed = Unfreed::of(Sketch::CountMin(sketch));
    let mut steps = 0;
    while {
        let mut budget = 300;
        unfreed.free(&mut budget)
    } {
        steps += 1;
    }
    assert!(steps > 10, "{steps} steps");
    assert_eq!(unfreed.bytes(), 0);
}
