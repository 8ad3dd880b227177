use std::collections::{BTreeMap, BTreeSet};

use stdx::Prng;

use crate::testing::Harness;

fn fill(harness: &mut Harness, key: &str, count: u32) {
    for number in 0..count {
        harness.run(&format!("HSET {key} field:{number} {number}"));
    }
}

/// The bulk strings of a reply, however they are nested.
fn words(reply: &str) -> Vec<String> {
    let mut lines = reply.split("\r\n");
    let mut words = Vec::new();
    while let Some(line) = lines.next() {
        if line.starts_with('$') {
            words.push(lines.next().expect("a text behind its length").to_owned());
        }
    }
    words
}

#[test]
fn a_hash_of_any_size_is_one_of_a_naive_map() {
    let mut prng = Prng::new(1);
    let mut harness = Harness::new();
    let mut map: BTreeMap<String, String> = BTreeMap::new();
    for round in 0..20_000 {
        let spread = if round % 5_000 < 2_500 { 2_000 } else { 40 };
        let field = format!("f{}", prng.below(spread));
        let longest = if prng.chance(1, 500) { 100 } else { 10 };
        let value = "v".repeat(prng.below(longest) as usize);
        match prng.below(10) {
            0..5 => {
                let is_new = map.insert(field.clone(), value.clone()).is_none();
                assert_eq!(harness.run(&format!("HSET h {field} \"{value}\"")), format!(":{}\r\n", u8::from(is_new)));
            }
            5..9 => {
                let was_there = map.remove(&field).is_some();
                assert_eq!(harness.run(&format!("HDEL h {field}")), format!(":{}\r\n", u8::from(was_there)));
            }
            _ => {
                let expected =
                    map.get(&field).map_or("$-1\r\n".into(), |value| format!("${}\r\n{value}\r\n", value.len()));
                assert_eq!(harness.run(&format!("HGET h {field}")), expected);
            }
        }
        if round % 100 == 0 {
            assert_eq!(harness.run("HLEN h"), format!(":{}\r\n", map.len()));
            let all = words(&harness.run("HGETALL h"));
            let all: BTreeMap<String, String> = all.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
            assert_eq!(all, map);
            let exists = harness.run("EXISTS h");
            assert_eq!(exists, format!(":{}\r\n", u8::from(!map.is_empty())));
        }
    }
}

#[test]
fn a_walk_visits_what_exists_all_the_time_whatever_comes_and_goes() {
    let mut harness = Harness::new();
    fill(&mut harness, "h", 3_000);
    let mut seen = BTreeSet::new();
    let (mut cursor, mut steps) = ("0".to_owned(), 0);
    loop {
        let reply = words(&harness.run(&format!("HSCAN h {cursor} COUNT 50")));
        cursor.clone_from(&reply[0]);
        seen.extend(reply[1..].iter().step_by(2).cloned());
        steps += 1;
        harness.run(&format!("HDEL h field:{}", 2_000 + steps));
        harness.run(&format!("HSET h new:{steps} 1"));
        if cursor == "0" {
            break;
        }
    }
    assert!((40..100).contains(&steps), "{steps}");
    assert!((0..2_000).all(|number| seen.contains(&format!("field:{number}"))));
    assert_eq!(words(&harness.run("HSCAN h 99999999999"))[0], "0");
}

#[test]
fn fields_are_drawn_with_and_without_repetition_from_either_form() {
    let mut harness = Harness::new();
    for count in [20, 1_000] {
        fill(&mut harness, "h", count);
        let drawn = words(&harness.run("HRANDFIELD h 10 WITHVALUES"));
        let fields: BTreeSet<&String> = drawn.iter().step_by(2).collect();
        assert_eq!((drawn.len(), fields.len()), (20, 10));
        assert!(drawn.chunks(2).all(|pair| pair[0] == format!("field:{}", pair[1])));
        assert_eq!(words(&harness.run(&format!("HRANDFIELD h {}", count * 2))).len(), count as usize);
        let drawn = words(&harness.run("HRANDFIELD h -3000"));
        assert_eq!(drawn.len(), 3_000);
        assert!(drawn.iter().collect::<BTreeSet<_>>().len() as u32 > count / 2);
    }
}

#[test]
fn chance_differs_from_command_to_command_of_one_moment() {
    let mut harness = Harness::new();
    fill(&mut harness, "h", 400);
    let drawn: BTreeSet<String> = (0..20).map(|_| harness.run("HRANDFIELD h")).collect();
    assert!(drawn.len() > 10, "{drawn:?}");
}
