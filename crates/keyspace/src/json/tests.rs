use serde_json::{Value, json};
use stdx::Prng;

use super::limits::DEPTH_MAX;
use super::parse::parse;
use super::path::Path;
use super::print::Style;
use super::{Hole, Json, Object, Step, Text, codec};
use crate::testing::Harness;

fn document(text: &str) -> Json {
    parse(text.as_bytes()).unwrap_or_else(|refusal| panic!("{text}: {}", refusal.text()))
}

fn printed(value: &Json) -> String {
    String::from_utf8(value.print_plain()).expect("text")
}

/// What it should weigh: the same values put together again.
fn rebuilt(value: &Json) -> Json {
    match value {
        Json::Array(array) => Json::array(array.items.iter().map(rebuilt).collect()),
        Json::Object(object) => {
            Json::object(object.iter().map(|(name, value)| (name.clone(), rebuilt(value))).collect())
        }
        scalar => scalar.clone(),
    }
}

/// All that a document knows of itself is true.
fn check(value: &Json) {
    assert_eq!(value.weight(), rebuilt(value).weight(), "{}", printed(value));
    if let Json::Object(object) = value {
        let mut ranked: Vec<_> = object.iter().map(|(name, _)| name.clone()).collect();
        ranked.sort();
        let indexed: Vec<_> = object.by_name.iter().map(|&place| object.entries[place as usize].0.clone()).collect();
        assert!(indexed.is_empty() && ranked.len() <= super::UNINDEXED_LEN_MAX || indexed == ranked, "{indexed:?}");
        object.iter().for_each(|(_, value)| check(value));
    }
    value.as_array().unwrap_or_default().iter().for_each(check);
}

#[test]
fn scalars_are_printed_as_they_were_written_or_in_the_shortest_form() {
    for (text, expected) in [
        ("1", "1"),
        ("-0", "-0.0"),
        ("1.0", "1.0"),
        ("1e2", "100.0"),
        ("0.1", "0.1"),
        ("1.7976931348623157e308", "1.7976931348623157e308"),
        ("9223372036854775807", "9223372036854775807"),
        ("9223372036854775808", "9223372036854775808"),
        ("18446744073709551615", "18446744073709551615"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("\"\\u00e9\\n\\u0001\\\"\\\\/\"", "\"é\\n\\u0001\\\"\\\\/\""),
        (" [ 1 , { \"b\" : null , \"a\" : true } ] ", "[1,{\"b\":null,\"a\":true}]"),
        ("{\"a\":1,\"b\":2,\"a\":3}", "{\"a\":3,\"b\":2}"),
    ] {
        assert_eq!(printed(&document(text)), expected, "{text}");
    }
}

#[test]
fn what_stands_between_parts_is_what_the_client_asks_for() {
    let style = Style { indent: b"\t", newline: b"\n", space: b" " };
    let text = document("{\"a\":[1,{}],\"b\":[]}").print(style).expect("short");
    assert_eq!(String::from_utf8_lossy(&text), "{\n\t\"a\": [\n\t\t1,\n\t\t{}\n\t],\n\t\"b\": []\n}");
}

#[test]
fn what_is_nested_too_deep_is_refused_and_what_is_not_can_be_used() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let deepest = document(&nested(DEPTH_MAX - 1));
    assert_eq!(deepest.depth(), DEPTH_MAX - 1);
    assert_eq!(codec::decode(&codec::encode(&deepest)), Some(deepest.clone()));
    assert_eq!(Path::read(b"$..*").expect("a path").values(&deepest).expect("few").len(), DEPTH_MAX - 2);
    for depth in [DEPTH_MAX, DEPTH_MAX + 1, 100_000] {
        let refusal = parse(nested(depth).as_bytes()).expect_err("too deep");
        assert!(refusal.text().starts_with("ERR recursion limit exceeded"), "{}", refusal.text());
        assert!(parse("{\"a\":".repeat(depth).as_bytes()).is_err());
        let bytes = [7, 1].repeat(depth);
        assert_eq!(codec::decode(&[&bytes[..], &[0]].concat()), None);
    }
    let mut harness = Harness::new();
    let half = nested(DEPTH_MAX / 2);
    assert_eq!(harness.run(&format!("JSON.SET k $ {{\"a\":{half}}}")), "+OK\r\n");
    let deep = format!("$.a{}", "[0]".repeat(DEPTH_MAX / 2 - 1));
    for line in [
        format!("JSON.ARRAPPEND k {deep} {half}"),
        format!("JSON.ARRINSERT k {deep} 0 {half}"),
        format!("JSON.SET k {deep} {half}"),
        format!("JSON.MERGE k {deep} {half}"),
    ] {
        assert_eq!(harness.run(&line), "-ERR recursion limit exceeded\r\n", "{line}");
    }
}

#[test]
fn hostile_paths_are_refused_or_answered_and_never_break_anything() {
    let value = document("{\"a\":[1,{\"b\":\"text\",\"a\":[2,3]}],\"b\":{\"a\":null}}");
    for text in [
        format!("$[?{}@.a{}]", "(".repeat(100_000), ")".repeat(100_000)),
        format!("$[?{}@.a]", "!".repeat(100_000)),
        "$[?(@[?(@".repeat(10_000),
        format!("$.a[?(@.b =~ \"{}\")]", "(a{1000}){1000}".repeat(3)),
        format!("${}", "..*".repeat(10_000)),
        format!("${}", ".a".repeat(100_000)),
        format!("$[{}1]", "1,".repeat(100_000)),
        "$[99999999999999999999999:-99999999999999999999999:99999999999999999999]".into(),
    ] {
        if let Ok(path) = Path::read(text.as_bytes()) {
            assert!(path.values(&value).is_ok_and(|values| values.len() <= 100_001), "{}", &text[..40]);
        }
    }
    let mut prng = Prng::new(7);
    let pieces = [
        "$", ".", "..", "*", "[", "]", "?", "(", ")", "@", "a", "'b'", "\"", "0", "-1", ":", ",", "==", "=~", "!", "<",
        "&&", "||", "true", "1.5", " ", "\\", "é", "\u{0}",
    ];
    let mut read = 0;
    for _ in 0..100_000 {
        let count = 1 + prng.below(9);
        let text: String = (0..count).map(|_| pieces[prng.below(pieces.len() as u64) as usize]).collect();
        if let Ok(path) = Path::read(text.as_bytes()) {
            read += 1;
            let found = path.find(&value).expect("few values");
            for found in &found {
                assert_eq!(value.at(&found.place), Some(found.value), "{text}");
            }
            assert_eq!(found.len(), path.values(&value).expect("few values").len());
        }
    }
    assert!(read > 1_000, "{read} of them were paths");
}

#[test]
fn a_path_that_looks_at_too_many_values_is_refused() {
    let wide = format!("[{}0]", "0,".repeat(9_999));
    let deep = (0..20).fold(wide, |inner, _| format!("[{inner}]"));
    let path = Path::read(b"$..*..*..*..*..*").expect("a path");
    let refusal = path.values(&document(&deep)).expect_err("many ways lead to each value");
    assert!(refusal.text().contains("looks at too many values"), "{}", refusal.text());
}

#[test]
fn paths_mean_what_they_mean_in_redisjson() {
    let store = document(
        "{\"store\":{\"book\":[{\"title\":\"A\",\"price\":8.95,\"tags\":[\"x\",\"y\"]},{\"title\":\"B\",\"price\":12},\
         {\"title\":\"C\",\"price\":8,\"isbn\":\"1\"}],\"car\":{\"price\":19.95}},\"limit\":10,\"a b\":{\"c.d\":true}}",
    );
    for (path, expected) in [
        ("$.store.book[*].title", "[\"A\",\"B\",\"C\"]"),
        ("$..price", "[8.95,12,8,19.95]"),
        ("$..book[-1].title", "[\"C\"]"),
        ("$..book[0,2].title", "[\"A\",\"C\"]"),
        ("$..book[:2].title", "[\"A\",\"B\"]"),
        ("$..book[::2].title", "[\"A\",\"C\"]"),
        ("$..book[1:].title", "[\"B\",\"C\"]"),
        ("$..book[-2:-1].title", "[\"B\"]"),
        ("$..book[?(@.price<$.limit)].title", "[\"A\",\"C\"]"),
        ("$..book[?@.price >= 12 || @.isbn].title", "[\"B\",\"C\"]"),
        ("$..book[?(@.price<10 && !(@.isbn))].title", "[\"A\"]"),
        ("$..book[?(@.price==8 || @.price==12.0)].title", "[\"B\",\"C\"]"),
        ("$..book[?(@.title =~ \"^[AB]$\")].price", "[8.95,12]"),
        ("$..book[?(@.title=='B')].price", "[12]"),
        ("$..book[?(@.tags[*]=='y')].title", "[\"A\"]"),
        ("$..book[?(@.none!=1)].title", "[\"A\",\"B\",\"C\"]"),
        ("$['a b'][\"c.d\"]", "[true]"),
        ("$[\"limit\",\"a b\"]", "[10,{\"c.d\":true}]"),
        ("$.store.*[?(@.price==19.95)]", "[]"),
        ("$.store[?(@.price==19.95)].price", "[19.95]"),
        ("$.nowhere", "[]"),
        ("$..*[5]", "[]"),
        (".store.book[1].price", "[12]"),
        ("store..title", "[\"A\",\"B\",\"C\"]"),
        ("[\"limit\"]", "[10]"),
    ] {
        let path = Path::read(path.as_bytes()).unwrap_or_else(|refusal| panic!("{path}: {}", refusal.text()));
        let values = path.values(&store).expect("few values").into_iter().cloned().collect();
        assert_eq!(printed(&Json::array(values)), expected, "{path:?}");
    }
    for text in ["$.", "$.a[", "$[a]", "$.a b", "", "$[?(@.a==)]", "$[?(@.a]", "$['a]", "$[1:2:0]", "a..", "$.ä"] {
        let refusal = Path::read(text.as_bytes()).expect_err(text);
        assert!(refusal.text().starts_with("ERR Error occurred at position "), "{text}: {}", refusal.text());
    }
}

#[test]
fn no_bytes_make_decoding_panic() {
    let whole = codec::encode(&document(
        "{\"a\":[1,-1,2.5,18446744073709551615,\"text\",null,true,false,{},[]],\"b\":{\"c\":0}}",
    ));
    let mut prng = Prng::new(3);
    for len in 0..whole.len() {
        assert_eq!(codec::decode(&whole[..len]), None);
    }
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + prng.below(4) {
            let place = prng.below(bytes.len() as u64) as usize;
            bytes[place] = prng.draw() as u8;
        }
        if let Some(document) = codec::decode(&bytes) {
            check(&document);
            assert_eq!(codec::decode(&codec::encode(&document)), Some(document));
        }
    }
}

#[test]
fn a_document_is_written_from_any_value_on() {
    let mut prng = Prng::new(11);
    for _ in 0..50 {
        let value = random(&mut prng, 0);
        let (whole, nodes) = (codec::encode(&value), value.weight().nodes);
        let mut parts = Vec::new();
        let mut next = 0;
        while next < nodes {
            let end = parts.len() + prng.below(60) as usize;
            let after = codec::write_from(&value, next, &mut parts, end);
            assert!(after > next, "nothing was written");
            next = after;
        }
        assert_eq!(parts, whole);
    }
}

#[test]
fn objects_have_the_order_of_their_level_and_find_every_name() {
    check_order(Hole::Closed);
    check_order(Hole::TakenByLast);
}

fn check_order(hole: Hole) {
    let mut prng = Prng::new(5);
    let mut object = Object::new(Vec::new());
    let mut twin: Vec<(String, i64)> = Vec::new();
    for round in 0..4_000 {
        let name = format!("name{}", prng.below(if round < 2_000 { 60 } else { 12 }));
        if prng.chance(2, 3) {
            object.set(&Text::from(&*name), Json::Integer(round));
            match twin.iter_mut().find(|(other, _)| *other == name) {
                Some((_, value)) => *value = round,
                None => twin.push((name, round)),
            }
        } else {
            let removed = object.remove(&name, hole).is_some();
            let place = twin.iter().position(|(other, _)| *other == name);
            assert_eq!(removed, place.is_some());
            match (place, hole) {
                (None, _) => {}
                (Some(place), Hole::Closed) => _ = twin.remove(place),
                (Some(place), Hole::TakenByLast) => _ = twin.swap_remove(place),
            }
        }
        let entries: Vec<_> = object.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
        let expected: Vec<_> = twin.iter().map(|(name, value)| (name.clone(), Json::Integer(*value))).collect();
        assert_eq!(entries, expected);
        assert!(twin.iter().all(|(name, value)| object.get(name) == Some(&Json::Integer(*value))));
    }
}

/// Some value, not deep.
fn random(prng: &mut Prng, depth: usize) -> Json {
    match prng.below(if depth < 4 { 9 } else { 6 }) {
        0 => Json::Null,
        1 => Json::Bool(prng.chance(1, 2)),
        2 => Json::Integer(prng.below(2_000) as i64 - 1_000),
        3 => Json::Double(prng.below(1_000) as f64 / 8.0),
        4 => Json::Unsigned(u64::MAX - prng.below(5)),
        5 => Json::text(&"tä\"".repeat(prng.below(20) as usize)),
        6 | 7 => Json::array((0..prng.below(12)).map(|_| random(prng, depth + 1)).collect()),
        _ => Json::object((0..prng.below(30)).map(|_| (Text::from(&*name(prng)), random(prng, depth + 1))).collect()),
    }
}

fn name(prng: &mut Prng) -> String {
    format!("n{}", prng.below(24))
}

/// A place in the twin, found by chance, and the path to it.
fn place(twin: &Value, prng: &mut Prng) -> (String, String) {
    let (mut value, mut path, mut pointer) = (twin, "$".to_owned(), String::new());
    while prng.chance(3, 4) {
        match value {
            Value::Array(items) if !items.is_empty() => {
                let index = prng.below(items.len() as u64) as usize;
                (value, path, pointer) = (&items[index], format!("{path}[{index}]"), format!("{pointer}/{index}"));
            }
            Value::Object(entries) if !entries.is_empty() => {
                let nth = prng.below(entries.len() as u64) as usize;
                let (name, inner) = entries.iter().nth(nth).expect("one of them");
                let step = if prng.chance(1, 2) { format!(".{name}") } else { format!("['{name}']") };
                (value, path, pointer) = (inner, format!("{path}{step}"), format!("{pointer}/{name}"));
            }
            _ => break,
        }
    }
    (path, pointer)
}

fn merge(old: &mut Value, patch: &Value) {
    let Value::Object(names) = patch else {
        *old = patch.clone();
        return;
    };
    if !old.is_object() {
        *old = json!({});
    }
    for (name, value) in names {
        let object = old.as_object_mut().expect("made one");
        if value.is_null() {
            object.remove(name);
        } else {
            merge(object.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

fn say(harness: &mut Harness, words: &[Vec<u8>]) -> String {
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    String::from_utf8_lossy(&harness.run_words(&words)).into_owned()
}

/// The document under a key as it is kept, its own text, and that of the twin.
fn compare(harness: &mut Harness, key: &str, twin: &Value, line: &str) {
    let moment = crate::Moment::at(harness.now, 0);
    let view = harness.keyspace.view(harness.database, moment);
    let document = view.json(key.as_bytes()).expect("a document").unwrap_or_else(|| panic!("{line}: it is gone"));
    check(&document);
    let told: Value = serde_json::from_slice(&document.print_plain()).expect("JSON");
    assert_eq!(&told, twin, "{line}");
}

fn words(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// A command drawn by chance that changes the document `k`, done to its twin; or a copy. Nothing where that which was
/// drawn does not fit what is at its place.
fn change(twin: &mut Value, prng: &mut Prng) -> Option<Vec<Vec<u8>>> {
    let (path, pointer) = place(twin, prng);
    let new = printed(&random(prng, 2));
    let new_twin: Value = serde_json::from_str(&new).expect("JSON");
    let below = name(prng);
    let old = twin.pointer_mut(&pointer).expect("it is there");
    Some(match prng.below(10) {
        0 | 1 if path != "$" => {
            *old = new_twin;
            words(&["JSON.SET", "k", &path, &new])
        }
        2 => {
            if let Value::Object(object) = old {
                object.insert(below.clone(), new_twin);
                words(&["JSON.SET", "k", &format!("{path}.{below}"), &new])
            } else {
                return None;
            }
        }
        3 if path != "$" => {
            let (above, last) = pointer.rsplit_once('/').expect("a step");
            match twin.pointer_mut(above).expect("it is there") {
                Value::Object(object) => _ = object.remove(last),
                Value::Array(items) => _ = items.remove(last.parse().expect("an index")),
                _ => unreachable!("something was below it"),
            }
            words(&["JSON.DEL", "k", &path])
        }
        4 => {
            if let Value::Array(items) = old {
                let index = prng.below(items.len() as u64 + 1) as usize;
                items.insert(index, new_twin);
                words(&["JSON.ARRINSERT", "k", &path, &index.to_string(), &new])
            } else {
                return None;
            }
        }
        5 => {
            if let Value::Array(items) = old {
                items.pop();
                words(&["JSON.ARRPOP", "k", &path])
            } else {
                return None;
            }
        }
        6 if path != "$" || new_twin.is_object() => {
            merge(old, &new_twin);
            words(&["JSON.MERGE", "k", &path, &new])
        }
        7 => match old {
            Value::Number(number) if number.as_i64().is_some() => {
                *old = json!(number.as_i64().expect("it is one") + 7);
                words(&["JSON.NUMINCRBY", "k", &path, "7"])
            }
            Value::String(text) => {
                text.push_str("ü!");
                words(&["JSON.STRAPPEND", "k", &path, "\"ü!\""])
            }
            Value::Bool(truth) => {
                *truth = !*truth;
                words(&["JSON.TOGGLE", "k", &path])
            }
            _ => return None,
        },
        8 => {
            if let Value::Array(items) = old {
                let (start, stop) = (prng.below(9) as i64 - 4, prng.below(9) as i64 - 4);
                let len = items.len() as i64;
                let from_front = |index: i64| if index < 0 { (index + len).max(0) } else { index };
                let mut place = -1;
                items.retain(|_| {
                    place += 1;
                    from_front(start) <= place && place <= from_front(stop)
                });
                words(&["JSON.ARRTRIM", "k", &path, &start.to_string(), &stop.to_string()])
            } else {
                return None;
            }
        }
        _ => words(&["COPY", "k", "copy", "REPLACE"]),
    })
}

/// Commands drawn by chance do to a document what a naive twin does to a tree of maps and vectors, whatever form it
/// has, while copies of it stay as they were.
#[test]
fn documents_change_as_their_naive_twins() {
    for seed in 0..60 {
        let mut prng = Prng::new(seed);
        let mut harness = Harness::new();
        let first = loop {
            let value = random(&mut prng, 0);
            if matches!(&value, Json::Object(object) if object.len() > 1) {
                break printed(&value);
            }
        };
        let mut twin: Value = serde_json::from_str(&first).expect("JSON");
        say(&mut harness, &words(&["JSON.SET", "k", "$", &first]));
        let mut copied = twin.clone();
        for _ in 0..80 {
            let Some(line) = change(&mut twin, &mut prng) else { continue };
            if line[0] == b"COPY" {
                copied = twin.clone();
            }
            let told = line.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ");
            let reply = say(&mut harness, &line);
            assert!(!reply.starts_with('-'), "{told}: {reply}");
            if twin.as_object().is_some_and(serde_json::Map::is_empty) {
                break;
            }
            compare(&mut harness, "k", &twin, &told);
            if line[0] == b"COPY" {
                // A dump knows the values and their order, not the form.
                let moment = crate::Moment::at(harness.now, 0);
                let view = harness.keyspace.view(0, moment);
                let dump = crate::rdb::dump(view.entry(b"k").expect("it is there").value());
                let text = view.json(b"k").expect("a document").expect("it is there").print_plain();
                say(
                    &mut harness,
                    &[b"RESTORE".to_vec(), b"restored".to_vec(), b"0".to_vec(), dump, b"REPLACE".to_vec()],
                );
                let view = harness.keyspace.view(0, moment);
                assert_eq!(view.json(b"restored").expect("a document").expect("it is there").print_plain(), text);
            }
        }
        if harness.run("EXISTS copy") == ":1\r\n" {
            compare(&mut harness, "copy", &copied, "the copy");
        }
    }
}

#[test]
fn what_is_removed_is_freed_in_steps_and_what_is_shared_stays() {
    let text = format!("[{}]", vec!["{\"a\":[1,\"text\"]}"; 20_000].join(","));
    let whole = document(&text);
    let kept = whole.child(&Step::Index(7)).expect("an item").clone();
    let mut unfreed = super::Unfreed::of(whole);
    let mut steps = 0;
    let mut left = unfreed.bytes();
    loop {
        let mut budget = 256;
        let more = unfreed.free(&mut budget);
        assert!(unfreed.bytes() <= left);
        left = unfreed.bytes();
        steps += 1;
        if !more {
            break;
        }
    }
    assert!(steps > 200 && left == 0, "{steps} steps, {left} bytes");
    assert_eq!(printed(&kept), "{\"a\":[1,\"text\"]}");
}
