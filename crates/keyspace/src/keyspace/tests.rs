use std::collections::BTreeMap;

use stdx::Prng;

use super::*;
use crate::{Expiry, Str, Value, ValueRef};

fn keyspace(layout: Layout) -> Keyspace {
    Keyspace::new(Options { databases: 2, hash_seed: 21, layout, tuning: Tuning::default() })
}

fn at(unix_ms: i64) -> Moment {
    Moment::at(unix_ms, 0)
}

fn text(entry: &Entry<'_>) -> Vec<u8> {
    let ValueRef::String(text) = entry.value() else { panic!("only strings are kept here") };
    text.to_vec()
}

/// A value and its deadline.
type Held = (Vec<u8>, Option<i64>);

/// A twin so simple that it cannot be wrong: ordered maps, and every key looked at for its deadline.
#[derive(Default)]
struct Twin {
    databases: [BTreeMap<Vec<u8>, Held>; 2],
}

impl Twin {
    fn advance(&mut self, now: i64) {
        for database in &mut self.databases {
            database.retain(|_, (_, deadline)| deadline.is_none_or(|deadline| deadline > now));
        }
    }
}

fn key_of(prng: &mut Prng) -> Vec<u8> {
    match prng.below(20) {
        0 => vec![],
        1 => vec![b'x'; 65_530 + prng.below(10) as usize],
        2..8 => format!("{{hot}}{}", prng.below(6000)).into_bytes(),
        _ => prng.below(3000).to_string().into_bytes(),
    }
}

fn value_of(prng: &mut Prng) -> Vec<u8> {
    match prng.below(10) {
        0 => (prng.draw() as i64).to_string().into_bytes(),
        1 => format!("0{}", prng.below(100)).into_bytes(),
        2 => vec![b'y'; 4090 + prng.below(12) as usize],
        _ => vec![b'z'; prng.below(70) as usize],
    }
}

/// Applies one random operation to both and compares what they answer.
fn step(keyspace: &mut Keyspace, twin: &mut Twin, now: &mut i64, prng: &mut Prng) {
    *now += prng.below(5) as i64;
    twin.advance(*now);
    let database = prng.below(2) as u16;
    let map = &mut twin.databases[usize::from(database)];
    let (key, value) = (key_of(prng), value_of(prng));
    let deadline = *now + prng.below(3000) as i64 - 50;
    let alive = deadline > *now;
    let mut edit = keyspace.edit(database, at(*now));
    match prng.below(100) {
        0..40 => {
            edit.set_string(&key, &value, Expiry::Clear);
            map.insert(key, (value, None));
        }
        40..55 => {
            edit.set_string(&key, &value, Expiry::At(UnixMillis(deadline)));
            map.remove(&key);
            if alive {
                map.insert(key, (value, Some(deadline)));
            }
        }
        55..60 => {
            let number = prng.draw() as i64;
            edit.set_integer(&key, number, Expiry::Keep);
            let kept = map.get(&key).and_then(|(_, deadline)| *deadline);
            map.insert(key, (number.to_string().into_bytes(), kept));
        }
        60..70 => {
            let length = edit.modify_string(&key, |bytes| {
                bytes.extend_from_slice(&value);
                bytes.len()
            });
            let (text, _) = map.entry(key).or_default();
            text.extend_from_slice(&value);
            assert_eq!(length, text.len());
        }
        70..80 => assert_eq!(edit.remove(&key), map.remove(&key).is_some()),
        80..90 => {
            let deadline = prng.chance(3, 4).then_some(deadline);
            assert_eq!(edit.set_expiry(&key, deadline.map(UnixMillis)), map.contains_key(&key));
            if deadline.is_some_and(|deadline| deadline <= *now) {
                map.remove(&key);
            } else if let Some((_, old)) = map.get_mut(&key) {
                *old = deadline;
            }
        }
        90..97 => {
            let taken = edit.take(database, &key);
            let expected = map.remove(&key);
            let found = taken.as_ref().map(|(value, deadline)| {
                let ValueRef::String(text) = value.as_ref() else { panic!("only strings are kept here") };
                (text.to_vec(), deadline.map(|deadline| deadline.0))
            });
            assert_eq!(found, expected);
            if let Some((value, deadline)) = taken {
                edit.put(1 - database, b"taken", value, deadline, None);
                twin.databases[usize::from(1 - database)].insert(b"taken".to_vec(), expected.unwrap());
            }
        }
        97 => {
            edit.swap(0, 1);
            twin.databases.swap(0, 1);
        }
        98 if prng.chance(1, 20) => {
            edit.flush(database);
            map.clear();
        }
        _ => _ = keyspace.collect(at(*now), prng.below(5000) as usize),
    }
}

fn assert_same(keyspace: &Keyspace, twin: &Twin, now: i64) {
    for database in 0..2u16 {
        let mut found = BTreeMap::new();
        keyspace.for_each(database, at(now), |entry| {
            found.insert(entry.key().to_vec(), (text(&entry), entry.expires_at().map(|deadline| deadline.0)));
            assert!(keyspace.view(database, at(now)).contains(entry.key()));
        });
        assert!(found == twin.databases[usize::from(database)]);
    }
}

/// What a checkpoint of it is read back as, by one that has the limits of the default.
fn through_checkpoint(keyspace: &mut Keyspace) -> Keyspace {
    let mut records = Vec::new();
    keyspace.begin_checkpoint();
    while !keyspace.checkpoint_step(1_000, &mut records) {}
    let mut restored = keyspace.new_like();
    restored.set_limits(Limits::default());
    restored.restore(&records).expect("sound");
    restored
}

#[test]
fn a_keyspace_answers_as_its_naive_twin() {
    for (seed, layout) in [(1, Layout::Slots), (2, Layout::Scratch), (3, Layout::Slots)] {
        let (mut keyspace, mut twin) = (keyspace(layout), Twin::default());
        let (mut now, mut prng) = (1_000_000, Prng::new(seed));
        for round in 0..40_000 {
            step(&mut keyspace, &mut twin, &mut now, &mut prng);
            if round % 10_000 == 0 {
                assert_same(&keyspace, &twin, now);
            }
        }
        twin.advance(now);
        assert_same(&keyspace, &twin, now);
        assert_sums(&mut keyspace, now);
    }
}

/// What is kept incrementally must be what a count of everything gives, and end at nothing.
fn assert_sums(keyspace: &mut Keyspace, now: i64) {
    while keyspace.collect(at(now), 100_000) {}
    for table in &keyspace.databases {
        let slots = (0..).map_while(|slot| table.slot(slot));
        let tables: usize = slots.clone().map(|slot| slot.table_bytes() + size_of_val(slot)).sum();
        assert_eq!(table.bytes, tables + table.iter().map(Record::footprint).sum::<usize>());
        assert_eq!(table.count, table.iter().count());
        assert_eq!(table.expiring, table.iter().filter(|record| record.deadline().is_some()).count());
        for segment in slots.flat_map(|slot| slot.segments()) {
            let deadlines: Vec<i64> = segment.iter().filter_map(Record::deadline).collect();
            assert_eq!(segment.expiring as usize, deadlines.len());
            assert!(
                deadlines
                    .into_iter()
                    .min()
                    .is_none_or(|deadline| deadline >= segment.earliest && deadline >= table.wake - (64 << 10))
            );
        }
    }
    for database in 0..2 {
        keyspace.edit(0, at(now)).flush(database);
    }
    while keyspace.collect(at(now), 1_000) {}
    assert_eq!(keyspace.memory_bytes(), 0);
}

#[test]
fn a_key_that_has_reached_its_deadline_is_gone_for_everybody_and_for_good() {
    let mut keyspace = keyspace(Layout::Slots);
    keyspace.edit(0, at(100)).set_string(b"key", b"value", Expiry::At(UnixMillis(200)));
    assert!(keyspace.view(0, at(199)).contains(b"key"));
    assert!(!keyspace.view(0, at(200)).contains(b"key"));
    assert_eq!(keyspace.version(0, b"key", at(199)), 1);
    assert_eq!(keyspace.version(0, b"key", at(200)), 0);
    // A change at 200 has been seen; a clock that went back must not bring the key back.
    keyspace.edit(0, at(200)).set_string(b"other", b"value", Expiry::Clear);
    assert!(!keyspace.view(0, at(150)).contains(b"key"));
    assert!(!keyspace.edit(0, at(150)).contains(b"key"));
    assert!(!keyspace.edit(0, at(150)).remove(b"key"));
}

#[test]
fn every_change_gives_a_key_the_number_of_the_change() {
    let mut keyspace = keyspace(Layout::Slots);
    let version = |keyspace: &Keyspace| keyspace.version(0, b"key", at(1));
    keyspace.edit(0, at(1)).set_string(b"key", b"one", Expiry::Clear);
    assert_eq!(version(&keyspace), 1);
    keyspace.edit(0, at(1)).set_string(b"key", b"two", Expiry::Clear);
    assert_eq!(version(&keyspace), 2);
    keyspace.edit(0, at(1)).set_string(b"other", b"two", Expiry::Clear);
    assert_eq!(version(&keyspace), 2);
    keyspace.edit(0, at(1)).modify_string(b"key", |bytes| bytes.push(b'!'));
    assert_eq!(version(&keyspace), 4);
    keyspace.edit(0, at(1)).set_expiry(b"key", Some(UnixMillis(1000)));
    assert_eq!(version(&keyspace), 5);
    keyspace.edit(0, at(1)).modify_string(b"key", |bytes| bytes.resize(10_000, 0));
    keyspace.edit(0, at(1)).modify_string(b"key", |bytes| bytes[0] = 1);
    assert_eq!(version(&keyspace), 7);
    keyspace.edit(0, at(1)).remove(b"key");
    assert_eq!((version(&keyspace), keyspace.sequence()), (0, 8));
}

#[test]
fn keys_expire_although_nothing_is_written() {
    let mut keyspace = keyspace(Layout::Slots);
    keyspace.edit(0, at(1)).set_string(b"key", b"value", Expiry::At(UnixMillis(10)));
    assert!(!keyspace.collect(at(10), 100));
    assert_eq!((keyspace.key_count(0), keyspace.latest()), (0, UnixMillis(10)));
}

#[test]
fn nothing_expires_while_it_is_imported() {
    let mut keyspace = keyspace(Layout::Slots);
    let importing = Limits { keeps_expired: true, ..Limits::default() };
    keyspace.set_limits(importing);
    keyspace.edit(0, at(1)).set_string(b"key", b"5", Expiry::At(UnixMillis(10)));
    keyspace.edit(0, at(20)).set_string(b"late", b"v", Expiry::At(UnixMillis(10)));
    assert!(!keyspace.collect(at(20), 100));
    assert_eq!((keyspace.key_count(0), keyspace.next_deadline()), (2, None));
    assert!(keyspace.edit(0, at(30)).set_expiry(b"late", Some(UnixMillis(15))));
    let digest = keyspace.digest();

    // A checkpoint has what would have expired, and says so itself.
    let restored = through_checkpoint(&mut keyspace);
    assert_eq!((restored.digest(), restored.limits()), (digest, importing));
    let mut written = Vec::new();
    importing.write(&mut written);
    assert_eq!(Limits::read(&written), Some(importing));

    // What got a later deadline in time is there in the end, and nothing else.
    keyspace.edit(0, at(40)).set_expiry(b"key", None);
    keyspace.set_limits(Limits::default());
    assert_eq!(keyspace.next_deadline().map(|at| at.0), Some(10));
    let view = keyspace.view(0, at(50));
    assert_eq!((view.peek(b"key").is_some(), view.peek(b"late").is_some()), (true, false));
    keyspace.collect(at(50), 100);
    assert_eq!(keyspace.key_count(0), 1);
}

#[test]
fn expired_keys_are_removed_within_the_budget_and_the_rest_stays() {
    let mut keyspace = keyspace(Layout::Slots);
    for number in 0..20_000 {
        let expiry = if number % 2 == 0 { Expiry::At(UnixMillis(1_000 + number)) } else { Expiry::Clear };
        keyspace.edit(0, at(1)).set_string(number.to_string().as_bytes(), b"v", expiry);
    }
    assert_eq!(keyspace.next_deadline(), Some(UnixMillis(1_000)));
    assert!(!keyspace.collect(at(999), 1_000_000));
    keyspace.edit(0, at(30_000)).remove(b"no such key");
    let mut calls = 0;
    while keyspace.collect(at(30_000), 100) {
        calls += 1;
        assert!(keyspace.key_count(0) + calls * 200 >= 20_000, "more was done than asked for");
    }
    assert_eq!((keyspace.key_count(0), keyspace.expiring_count(0), keyspace.next_deadline()), (10_000, 0, None));
}

#[test]
fn collecting_ends_although_keys_expire_all_the_time() {
    let mut keyspace = keyspace(Layout::Scratch);
    for number in 0..1_500 {
        let expiry = Expiry::At(UnixMillis(1_000 + 10 * number));
        keyspace.edit(0, at(1)).set_string(number.to_string().as_bytes(), b"v", expiry);
    }
    let mut sweeps = 0;
    for now in 1_000..20_000 {
        keyspace.edit(0, at(now)).remove(b"no such key");
        while keyspace.collect(at(now), 100_000) {}
        sweeps += usize::from(keyspace.next_deadline().is_none_or(|next| next.0 > now + 1));
        assert!(keyspace.next_deadline().is_none_or(|next| next.0 > now), "what is due is collected");
        let overdue = keyspace.databases[0].iter().filter(|record| !record.is_alive(now)).count();
        assert!(overdue <= 700, "{overdue} keys wait to be removed");
    }
    assert!(sweeps > 18_000, "not every millisecond is worth a sweep");
    assert_eq!(keyspace.key_count(0), 0);
}

#[test]
fn an_emptied_keyspace_is_filled_like_a_new_one() {
    let mut keyspace = keyspace(Layout::Scratch);
    let large = vec![b'x'; 1 << 20];
    let mut bytes_when_full = Vec::new();
    for _ in 0..2 {
        for number in 0..5_000 {
            let expiry = if number % 3 == 0 { Expiry::At(UnixMillis(1_000 + number)) } else { Expiry::Clear };
            keyspace.edit(0, at(1)).set_string(number.to_string().as_bytes(), b"v", expiry);
        }
        keyspace.edit(1, at(1)).set_string(b"large", &large, Expiry::Clear);
        assert_eq!((keyspace.key_count(0), keyspace.expiring_count(0), keyspace.key_count(1)), (5_000, 1_667, 1));
        bytes_when_full.push(keyspace.memory_bytes());
        keyspace.empty();
        assert_eq!((keyspace.key_count(0), keyspace.expiring_count(0), keyspace.key_count(1)), (0, 0, 0));
        assert_eq!((keyspace.next_deadline(), keyspace.view(0, at(1)).contains(b"1")), (None, false));
        while keyspace.collect(at(1), 1_000) {}
    }
    assert_eq!(bytes_when_full[0], bytes_when_full[1]);
    assert!(keyspace.memory_bytes() < 200 << 10, "only tables are left");
}

#[test]
fn a_scan_visits_each_key_once_though_others_come_and_go() {
    let mut keyspace = keyspace(Layout::Slots);
    let mut prng = Prng::new(4);
    let lasting = |number: u64| {
        let tag = if number.is_multiple_of(3) { "" } else { "{hot}" };
        format!("{tag}lasting{number}").into_bytes()
    };
    for number in 0..6_000 {
        keyspace.edit(0, at(1)).set_integer(&lasting(number), 1, Expiry::Clear);
    }
    for count in [1usize, 10, 1_000] {
        let (mut cursor, mut calls) = (0, 0);
        let mut seen = BTreeMap::new();
        loop {
            let mut visited = 0;
            cursor = keyspace.scan(0, cursor, count, at(1), |entry| {
                visited += 1;
                *seen.entry(entry.key().to_vec()).or_insert(0) += 1;
            });
            calls += 1;
            assert!(cursor < 1 << 52);
            assert!(visited <= count + 2);
            if cursor == 0 {
                break;
            }
            for _ in 0..prng.below(10) {
                let passing = format!("{{hot}}passing{}", prng.below(8_000));
                if prng.chance(2, 3) {
                    keyspace.edit(0, at(1)).set_integer(passing.as_bytes(), 2, Expiry::Clear);
                } else {
                    keyspace.edit(0, at(1)).remove(passing.as_bytes());
                }
            }
        }
        assert!((0..6_000).all(|number| seen.get(&lasting(number)) == Some(&1)));
        assert!(calls <= 2 + 14_000 / count + 1_000, "{calls} calls for a count of {count}");
    }
    for cursor in [u64::MAX, 1 << 52, (1 << 52) - 1, 1 << 38] {
        keyspace.scan(0, cursor, 10, at(1), |_| ());
    }
}

#[test]
fn every_key_is_drawn_about_equally_often() {
    let mut keyspace = keyspace(Layout::Slots);
    for number in 0..100 {
        keyspace.edit(0, at(1)).set_integer(format!("{{hot}}{number}").as_bytes(), 1, Expiry::Clear);
        keyspace.edit(0, at(1)).set_integer(format!("{number}").as_bytes(), 1, Expiry::Clear);
    }
    let mut drawn = BTreeMap::new();
    for seed in 0..40_000 {
        *drawn.entry(keyspace.random_key(0, seed, at(1)).unwrap()).or_insert(0) += 1;
    }
    assert_eq!(drawn.len(), 200);
    assert!(drawn.values().all(|times| (130..280).contains(times)), "{drawn:?}");
    assert_eq!(keyspace.random_key(1, 1, at(1)), None);
}

#[test]
fn an_expired_key_is_never_drawn() {
    let mut keyspace = keyspace(Layout::Slots);
    for number in 0..1_000 {
        keyspace.edit(0, at(1)).set_integer(format!("{number}").as_bytes(), 1, Expiry::At(UnixMillis(10)));
    }
    keyspace.edit(0, at(1)).set_integer(b"lasting", 1, Expiry::Clear);
    assert_eq!(keyspace.random_key(0, 1, at(10)), Some(&b"lasting"[..]));
    keyspace.edit(0, at(1)).remove(b"lasting");
    assert_eq!(keyspace.random_key(0, 1, at(10)), None);
}

#[test]
fn the_digest_knows_data_and_nothing_else() {
    let build = |order: &[usize], value: &[u8]| {
        let mut keyspace = keyspace(Layout::Slots);
        for number in order {
            keyspace.edit(0, at(1)).set_string(format!("key{number}").as_bytes(), value, Expiry::Clear);
        }
        keyspace
    };
    let (one, mut two) = (build(&[1, 2, 3], b"v"), build(&[3, 1, 2], b"v"));
    assert_eq!(one.digest(), two.digest());
    assert_ne!(one.digest(), build(&[1, 2, 3], b"w").digest());
    assert_ne!(one.digest(), build(&[1, 2], b"v").digest());
    two.edit(0, at(1)).set_expiry(b"key1", Some(UnixMillis(100)));
    assert_ne!(one.digest(), two.digest());
    // Expired, and removed or not: the same.
    two.edit(0, at(1)).set_expiry(b"key1", None);
    two.edit(0, at(1)).set_string(b"brief", b"v", Expiry::At(UnixMillis(5)));
    two.edit(0, at(5)).remove(b"no such key");
    assert_eq!(one.digest(), two.digest());
    two.edit(0, at(5)).swap(0, 1);
    assert_ne!(one.digest(), two.digest());
}

#[test]
fn a_value_moves_between_keys_without_a_copy() {
    let mut keyspace = keyspace(Layout::Slots);
    let mut edit = keyspace.edit(0, at(1));
    edit.set_string(b"from", &[3; 1 << 20], Expiry::Clear);
    let address = |text: Str<'_>| match text {
        Str::Bytes(bytes) => bytes.as_ptr(),
        Str::Integer(_) => panic!("bytes were stored"),
    };
    let before = address(edit.string(b"from").unwrap().unwrap());
    let (value, expires_at) = edit.take(0, b"from").unwrap();
    edit.put(0, b"to", value, expires_at, None);
    assert_eq!(address(edit.string(b"to").unwrap().unwrap()), before);
    let (value, _) = edit.clone_value(b"to").unwrap();
    assert_eq!(value, Value::String(crate::StringValue::bytes(vec![3; 1 << 20])));
    edit.put(1, b"copy", value, None, None);
    edit.modify_string(b"to", |bytes| bytes[0] = 9);
    let copy = edit.at(1);
    assert_eq!(
        copy.string(b"copy").unwrap().unwrap(),
        Str::Bytes(&[3; 1 << 20]),
        "a copy is not changed with the original"
    );
}

#[test]
fn a_large_value_is_changed_where_it_is_and_freed_in_pieces() {
    let mut keyspace = keyspace(Layout::Slots);
    keyspace.edit(0, at(1)).set_string(b"key", &vec![1; 64 << 20], Expiry::Clear);
    let address = |keyspace: &Keyspace| match keyspace.view(0, at(1)).string(b"key").unwrap().unwrap() {
        Str::Bytes(bytes) => bytes.as_ptr(),
        Str::Integer(_) => panic!("bytes were stored"),
    };
    let before = address(&keyspace);
    keyspace.edit(0, at(1)).modify_string(b"key", |bytes| bytes[12] = 5);
    assert_eq!(address(&keyspace), before);
    assert!(keyspace.edit(0, at(1)).remove(b"key"));
    assert!(keyspace.memory_bytes() > 60 << 20, "what has not been freed counts");
    assert!(keyspace.collect(at(1), 256));
    assert!(keyspace.memory_bytes() > 50 << 20);
    while keyspace.collect(at(1), 256) {}
    assert!(keyspace.memory_bytes() < 2 << 20);
    for value in [&vec![1; 64 << 20], &vec![2; 64 << 20], &vec![3; 3]] {
        keyspace.edit(0, at(1)).set_string(b"key", value, Expiry::Clear);
    }
    assert!(keyspace.memory_bytes() > 120 << 20, "what was overwritten has not been freed at once");
    while keyspace.collect(at(1), 256) {}
    assert!(keyspace.memory_bytes() < 2 << 20);
}

#[test]
fn encodings_are_named_as_redis_names_them() {
    let mut keyspace = keyspace(Layout::Slots);
    let mut edit = keyspace.edit(0, at(1));
    edit.set_string(b"a", b"123", Expiry::Clear);
    edit.set_string(b"b", &[b'x'; 44], Expiry::Clear);
    edit.set_string(b"c", &[b'x'; 45], Expiry::Clear);
    edit.modify_string(b"d", |bytes| bytes.extend_from_slice(b"12"));
    edit.set_text(b"e", b"12", Expiry::Clear);
    edit.set_string(b"f", &[b'x'; 9000], Expiry::Clear);
    let names = ["a", "b", "c", "d", "e", "f"].map(|key| edit.peek(key.as_bytes()).unwrap().encoding());
    assert_eq!(names, ["int", "embstr", "raw", "raw", "embstr", "raw"]);
}

#[test]
fn small_sets_and_lists_are_listpacks_by_the_limits_that_are_configured() {
    let mut keyspace = keyspace(Layout::Slots);
    let mut run = |line: &str| {
        let (mut buffer, mut spans) = (Vec::new(), Vec::new());
        for word in line.split(' ') {
            let start = buffer.len() as u32;
            buffer.extend_from_slice(word.as_bytes());
            spans.push(resp::Span { start, end: buffer.len() as u32 });
        }
        let (args, mut writer) = (Args::new(&buffer, &spans), Writer::default());
        keyspace.mutate(0, crate::resolve(args).unwrap(), args, at(1), &mut writer);
    };
    let many = |count: usize, start: &str| (0..count).map(|nth| format!(" {start}{nth}")).collect::<String>();
    run("sadd integers 1 2 3");
    run("sadd few 1 2 a");
    run(&format!("sadd hundred{}", many(100, "m")));
    run(&format!("sadd full{}", many(128, "m")));
    run(&format!("sadd many{}", many(129, "m")));
    run(&format!("sadd long {}", "x".repeat(65)));
    run(&format!("sadd numbers{}", many(513, "")));
    run("rpush short a 1");
    run(&format!("rpush page {} {}", "x".repeat(4_000), "x".repeat(4_000)));
    run(&format!("rpush pages {} {}", "x".repeat(4_100), "x".repeat(4_100)));
    let names = |keyspace: &Keyspace, keys: &[&str]| {
        let view = keyspace.view(0, at(1));
        keys.iter().map(|key| view.peek(key.as_bytes()).unwrap().encoding()).collect::<Vec<_>>().join(" ")
    };
    let (sets, lists) = (["integers", "few", "hundred", "full", "many", "long", "numbers"], ["short", "page", "pages"]);
    assert_eq!(names(&keyspace, &sets), "intset listpack listpack listpack hashtable hashtable hashtable");
    assert_eq!(names(&keyspace, &lists), "listpack listpack quicklist");

    let limits = Limits { set_listpack_entries: 100, list_listpack_size: 1, ..Limits::default() };
    keyspace.set_limits(limits);
    assert_eq!(names(&keyspace, &sets), "intset listpack listpack hashtable hashtable hashtable hashtable");
    assert_eq!(names(&keyspace, &lists), "quicklist quicklist quicklist");
    let more = Limits { set_listpack_entries: 1_000, set_listpack_value_bytes: 65, list_listpack_size: -5, ..limits };
    keyspace.set_limits(more);
    // Too many integers became a hash table, and stay one.
    assert_eq!(names(&keyspace, &sets), "intset listpack listpack listpack listpack listpack hashtable");
    assert_eq!(names(&keyspace, &lists), "listpack listpack listpack");
    let other = Limits { list_listpack_size: 1_000, ..limits };
    keyspace.set_limits(other);
    assert_eq!(names(&keyspace, &lists), "listpack listpack quicklist");
    keyspace.set_limits(more);

    // They are in the log and in a checkpoint.
    for limits in [limits, Limits { keeps_expired: true, ..more }] {
        let mut written = Vec::new();
        limits.write(&mut written);
        assert_eq!(Limits::read(&written), Some(limits));
        keyspace.set_limits(limits);
        let restored = through_checkpoint(&mut keyspace);
        assert_eq!(restored.limits(), limits);
    }

    keyspace.set_level(Level::FIRST);
    assert_eq!(names(&keyspace, &sets), "intset hashtable hashtable hashtable hashtable hashtable hashtable");
    assert_eq!(names(&keyspace, &lists), "quicklist quicklist quicklist");
}

#[test]
fn a_keyspace_can_be_given_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<Keyspace>();
}
