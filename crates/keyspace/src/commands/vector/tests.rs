//! Random commands against a model that looks at everything.

use std::collections::BTreeMap;

use resp::{Frame, FrameDecoder, Protocol};
use stdx::Prng;

use crate::Moment;
use crate::testing::Harness;

const DIMENSIONS: usize = 3;

#[derive(Clone, Debug, PartialEq)]
struct Element {
    vector: [f64; DIMENSIONS],
    attributes: String,
}

fn call(harness: &mut Harness, words: &[String]) -> Frame {
    let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
    let mut decoder = FrameDecoder::new();
    decoder.extend(&harness.run_words(&words));
    decoder.next_frame().expect("a reply").expect("all of it")
}

fn line(words: &str) -> Vec<String> {
    words.split(' ').map(str::to_owned).collect()
}

fn texts(frame: &Frame) -> Vec<String> {
    let elements = frame.elements().unwrap_or_else(|| panic!("{frame:?}"));
    elements
        .iter()
        .map(|element| String::from_utf8_lossy(element.as_bytes().unwrap_or_default()).into_owned())
        .collect()
}

/// From 0 to 1, as WITHSCORES tells it.
fn score(left: &[f64], right: &[f64]) -> f64 {
    let dot = |left: &[f64], right: &[f64]| left.iter().zip(right).map(|(left, right)| left * right).sum::<f64>();
    let length = (dot(left, left) * dot(right, right)).sqrt();
    if length == 0.0 { 0.5 } else { 0.5 + dot(left, right) / length / 2.0 }
}

#[test]
fn sets_answer_as_a_model_that_looks_at_everything() {
    for seed in 0..4 {
        let mut prng = Prng::new(seed);
        let mut harness = Harness::new();
        let mut model: BTreeMap<String, Element> = BTreeMap::new();
        for _ in 0..600 {
            let name = format!("e{}", prng.below(60));
            let vector = [(); DIMENSIONS].map(|()| prng.below(41) as f64 - 20.0);
            let given = format!("VALUES 3 {} {} {}", vector[0], vector[1], vector[2]);
            let attributes = format!("{{\"n\":{}}}", prng.below(10));
            match prng.below(10) {
                0..=3 => {
                    let reply = call(&mut harness, &line(&format!("VADD v {given} {name} NOQUANT EF 20")));
                    assert_eq!(reply, Frame::Integer(i64::from(!model.contains_key(&name))));
                    let attributes = model.get(&name).map(|element| element.attributes.clone()).unwrap_or_default();
                    model.insert(name, Element { vector, attributes });
                }
                4 => {
                    call(&mut harness, &line(&format!("VADD v {given} {name} NOQUANT SETATTR {attributes}")));
                    model.insert(name, Element { vector, attributes });
                }
                5 => {
                    let reply = call(&mut harness, &line(&format!("VREM v {name}")));
                    assert_eq!(reply, Frame::Integer(i64::from(model.remove(&name).is_some())));
                }
                6 => {
                    let attributes = if prng.chance(1, 4) { String::new() } else { attributes };
                    let words = [line(&format!("VSETATTR v {name}")), vec![attributes.clone()]].concat();
                    let found = model.get_mut(&name).map(|element| element.attributes = attributes).is_some();
                    assert_eq!(call(&mut harness, &words), Frame::Integer(i64::from(found)));
                }
                7 => {
                    let expected: Vec<_> = model.keys().filter(|other| **other >= name).take(5).cloned().collect();
                    assert_eq!(texts(&call(&mut harness, &line(&format!("VRANGE v [{name} + 5")))), expected);
                }
                _ => {
                    let bound = prng.below(10) as f64;
                    let filter = if prng.chance(1, 2) { format!(" FILTER .n>={bound}") } else { String::new() };
                    let truth = if prng.chance(1, 2) { " TRUTH" } else { " FILTER-EF 100" };
                    let request = format!("VSIM v {given} WITHSCORES COUNT 8{truth}{filter}");
                    let found = texts(&call(&mut harness, &line(&request)));
                    let matches = |element: &&Element| {
                        let number = element.attributes.get(5..6).and_then(|digit| digit.parse::<f64>().ok());
                        filter.is_empty() || number.is_some_and(|number| number >= bound)
                    };
                    let mut scores: Vec<f64> =
                        model.values().filter(matches).map(|element| score(&element.vector, &vector)).collect();
                    scores.sort_by(|left, right| right.total_cmp(left));
                    scores.truncate(8);
                    assert_eq!(found.len(), 2 * scores.len(), "{request}");
                    for (pair, expected) in found.chunks_exact(2).zip(scores) {
                        let told: f64 = pair[1].parse().expect("a score");
                        // So few elements are all within reach of a search.
                        assert!((told - expected).abs() < 1e-5, "{request}: {pair:?}, not {expected}");
                        assert!((score(&model[&pair[0]].vector, &vector) - told).abs() < 1e-5);
                    }
                }
            }
            assert_eq!(call(&mut harness, &line("VCARD v")), Frame::Integer(model.len() as i64));
        }
        for (name, element) in &model {
            let told = call(&mut harness, &line(&format!("VGETATTR v {name}")));
            assert_eq!(told.as_bytes().unwrap_or_default(), element.attributes.as_bytes());
        }
    }
}

#[test]
fn replies_have_the_types_of_each_protocol() {
    let mut harness = Harness::new();
    for words in ["VADD v VALUES 2 1 0 a NOQUANT", "VADD v VALUES 2 0 1 b NOQUANT SETATTR {}"] {
        call(&mut harness, &line(words));
    }
    harness.protocol = Protocol::Resp3;
    for (words, reply) in [
        ("VADD v VALUES 2 1 0 a NOQUANT", "#f\r\n"),
        ("VISMEMBER v a", "#t\r\n"),
        ("VREM v c", "#f\r\n"),
        ("VSETATTR v c x", "#f\r\n"),
        ("VGETATTR v a", "_\r\n"),
        ("VINFO none", "_\r\n"),
        ("VSIM v ELE a", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
        ("VSIM v ELE a WITHSCORES", "%2\r\n$1\r\na\r\n,1\r\n$1\r\nb\r\n,0.5\r\n"),
        ("VSIM v ELE a WITHATTRIBS", "%2\r\n$1\r\na\r\n_\r\n$1\r\nb\r\n$2\r\n{}\r\n"),
        ("VSIM v ELE b WITHSCORES WITHATTRIBS COUNT 1", "%1\r\n$1\r\nb\r\n*2\r\n,1\r\n$2\r\n{}\r\n"),
        ("VEMB v a", "*2\r\n,1\r\n,0\r\n"),
        ("VEMB v b RAW", "*3\r\n+f32\r\n$8\r\n\0\0\0\0\0\0\u{fffd}?\r\n,1\r\n"),
        ("VLINKS v a WITHSCORES", "*1\r\n%1\r\n$1\r\nb\r\n,0.5\r\n"),
    ] {
        let told = harness.run(words);
        // On how many layers an element is, its name decides.
        let told =
            if words.starts_with("VLINKS") { format!("*1\r\n{}", &told[told.rfind('%').unwrap_or(0)..]) } else { told };
        assert_eq!(told, reply, "{words}");
    }
    let info = harness.run("VINFO v");
    assert!(info.starts_with("%9\r\n+quant-type\r\n+f32\r\n+hnsw-m\r\n:16\r\n+vector-dim\r\n:2\r\n"), "{info}");
    harness.protocol = Protocol::Resp2;
    assert_eq!(harness.run("VINFO none"), "*-1\r\n");
    assert_eq!(harness.run("VSIM v ELE b WITHSCORES WITHATTRIBS COUNT 1"), "*3\r\n$1\r\nb\r\n$1\r\n1\r\n$2\r\n{}\r\n");
    let blob = [&b"VADD"[..], b"v", b"FP32", &[0, 0, 0x80, 0x3F, 0, 0, 0, 0], b"c", b"NOQUANT"];
    assert_eq!(harness.run_words(&blob), b":1\r\n");
    assert_eq!(harness.run("VEMB v c"), "*2\r\n$1\r\n1\r\n$1\r\n0\r\n");
    let blob = [&b"VADD"[..], b"v", b"FP32", &[0, 0, 0x80, 0x7F, 0, 0, 0, 0], b"d", b"NOQUANT"];
    assert_eq!(harness.run_words(&blob), b"-ERR invalid vector specification\r\n");
}

#[test]
fn what_changes_nothing_is_no_change() {
    let mut harness = Harness::new();
    let version = |harness: &Harness| harness.keyspace.version(0, b"v", Moment::at(harness.now, 0));
    harness.run("VADD v VALUES 2 1 2 a SETATTR {}");
    let before = version(&harness);
    for words in ["VADD v VALUES 2 1 2 a", "VADD v VALUES 2 2 4 a EF", "VSETATTR v a {}", "VREM v b", "VSIM v ELE a"] {
        harness.run(words);
        assert_eq!(version(&harness), before, "{words}");
    }
    harness.run("VADD v VALUES 2 2 4 a");
    assert!(version(&harness) > before, "the vector has become longer");
    assert_eq!(harness.run("VGETATTR v a"), "$2\r\n{}\r\n");
}
