//! Deadlines of fields against a naive model, on replicas that remove what has expired at different paces.

use std::collections::BTreeMap;

use stdx::Prng;

use crate::testing::Harness;
use crate::{Class, Classes, Limits, Moment};

/// A hash as anybody would write it: fields with their values and deadlines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model(BTreeMap<String, (String, Option<i64>)>);

impl Model {
    fn expire(&mut self, now: i64) {
        self.0.retain(|_, (_, deadline)| deadline.is_none_or(|deadline| deadline > now));
    }

    fn set(&mut self, field: &str, value: &str) -> bool {
        self.0.insert(field.into(), (value.into(), None)).is_none()
    }

    fn value(&self, field: &str) -> String {
        self.0.get(field).map_or("$-1\r\n".into(), |(value, _)| bulk(value))
    }

    fn hexpire(&mut self, field: &str, condition: &str, deadline: i64, now: i64) -> i64 {
        let Some((_, old)) = self.0.get_mut(field) else { return -2 };
        let is_met = match condition {
            "NX" => old.is_none(),
            "XX" => old.is_some(),
            "GT" => old.is_some_and(|old| deadline > old),
            "LT" => old.is_none_or(|old| deadline < old),
            _ => true,
        };
        if !is_met {
            return 0;
        }
        *old = Some(deadline);
        if deadline <= now {
            self.0.remove(field);
            return 2;
        }
        1
    }
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn array(items: impl IntoIterator<Item = String>) -> String {
    let items: Vec<String> = items.into_iter().collect();
    format!("*{}\r\n{}", items.len(), items.concat())
}

fn integer(number: i64) -> String {
    format!(":{number}\r\n")
}

fn integers(numbers: impl IntoIterator<Item = i64>) -> String {
    array(numbers.into_iter().map(integer))
}

/// The bulk strings of a flat array.
fn words(reply: &str) -> Vec<String> {
    reply.split("\r\n").skip(1).filter(|line| !line.starts_with('$') && !line.is_empty()).map(str::to_owned).collect()
}

/// Replicas of one history.
struct Pair {
    quick: Harness,
    slow: Harness,
}

impl Pair {
    fn new(limits: Limits) -> Self {
        let new = || {
            let mut harness = Harness::new();
            harness.keyspace.set_limits(limits);
            harness
        };
        Self { quick: new(), slow: new() }
    }

    /// Runs a command on both, as entries of a log are; they must answer alike.
    fn run(&mut self, line: &str) -> String {
        let reply = self.quick.run(line);
        assert_eq!(self.slow.run(line), reply, "{line}");
        reply
    }

    fn run_words(&mut self, words: &[&[u8]]) -> Vec<u8> {
        let reply = self.quick.run_words(words);
        assert_eq!(self.slow.run_words(words), reply, "{words:?}");
        reply
    }

    fn now(&self) -> i64 {
        self.quick.now
    }

    fn wait(&mut self, millis: i64) {
        self.quick.now += millis;
        self.slow.now += millis;
    }

    fn collect(harness: &mut Harness, budget: usize) -> bool {
        harness.keyspace.collect(Moment::at(harness.now, 0), budget)
    }

    fn watched(&self, key: &str) -> u64 {
        let watched =
            |harness: &Harness| harness.keyspace.watched_version(0, key.as_bytes(), Moment::at(harness.now, 0));
        assert_eq!(watched(&self.quick), watched(&self.slow), "{key}");
        watched(&self.quick)
    }

    fn assert_same(&mut self) {
        // What is told of a digest holds for the moment of the latest entry.
        self.run("HSET tick f v");
        assert_eq!(self.quick.keyspace.digest(), self.slow.keyspace.digest());
    }

    /// Makes the slow replica again from a checkpoint of one of both, while which the other work goes on.
    fn restore_slow(&mut self, from_slow: bool, prng: &mut Prng) {
        let source = if from_slow { &mut self.slow } else { &mut self.quick };
        let mut bytes = Vec::new();
        source.keyspace.begin_checkpoint();
        loop {
            let done = source.keyspace.checkpoint_step(200, &mut bytes);
            Self::collect(source, prng.below(50) as usize);
            if done {
                break;
            }
        }
        let mut restored = Harness::new();
        restored.keyspace.restore(&bytes).expect("a checkpoint");
        restored.now = self.slow.now;
        self.slow = restored;
    }
}

fn read_deadlines(pair: &mut Pair, model: &Model, key: &str, (field, other): (&str, &str), prng: &mut Prng) {
    let now = pair.now();
    let of = |tell: fn(i64, i64) -> i64| {
        [field, other].map(|field| match model.0.get(field) {
            None => -2,
            Some((_, None)) => -1,
            Some((_, Some(deadline))) => tell(*deadline, now),
        })
    };
    let (command, expected) = match prng.below(4) {
        0 => ("HTTL", of(|deadline, now| (deadline - now + 999) / 1000)),
        1 => ("HPTTL", of(|deadline, now| deadline - now)),
        2 => ("HEXPIRETIME", of(|deadline, _| (deadline + 999) / 1000)),
        _ => ("HPEXPIRETIME", of(|deadline, _| deadline)),
    };
    assert_eq!(pair.run(&format!("{command} {key} FIELDS 2 {field} {other}")), integers(expected));
}

/// HGETEX, which may change the deadlines of what it reads.
fn get_and_keep(
    pair: &mut Pair,
    model: &mut Model,
    key: &str,
    (field, other): (&str, &str),
    deadline: i64,
    prng: &mut Prng,
) {
    let now = pair.now();
    let expected = array([field, other].map(|field| model.value(field)));
    let option = match prng.below(4) {
        0 => {
            [field, other].into_iter().for_each(|field| {
                if let Some((_, deadline)) = model.0.get_mut(field) {
                    *deadline = None;
                }
            });
            "PERSIST".to_owned()
        }
        1 => String::new(),
        // The second of two that are one sees what has become of the first.
        _ if field != other => {
            [field, other].into_iter().for_each(|field| _ = model.hexpire(field, "", deadline, now));
            format!("PXAT {deadline}")
        }
        _ => String::new(),
    };
    let line = format!("HGETEX {key} {option} FIELDS 2 {field} {other}");
    assert_eq!(pair.run(&line), expected, "{line}");
}

/// Carries out one command that the generator makes up, here and in the model.
fn converse(pair: &mut Pair, model: &mut Model, key: &str, spread: u64, prng: &mut Prng) {
    let now = pair.now();
    model.expire(now);
    let field = format!("f{}", prng.below(spread));
    let other = format!("f{}", prng.below(spread));
    let value = match prng.below(6) {
        0 => "v".repeat(prng.below(90) as usize + 1),
        _ => prng.below(1_000).to_string(),
    };
    let deadline = now + prng.below(60) as i64 - 4;
    match prng.below(24) {
        0..3 => {
            let is_new = model.set(&field, &value);
            assert_eq!(pair.run(&format!("HSET {key} {field} {value}")), integer(is_new.into()));
        }
        3 => {
            let removed = [&field, &other].into_iter().filter(|field| model.0.remove(*field).is_some()).count();
            assert_eq!(pair.run(&format!("HDEL {key} {field} {other}")), integer(removed as i64));
        }
        4..8 => {
            let condition = ["", "NX", "XX", "GT", "LT"][prng.below(5) as usize];
            let expected = [&field, &other].map(|field| model.hexpire(field, condition, deadline, now));
            let rest = format!("{condition} FIELDS 2 {field} {other}");
            let line = match prng.below(2) {
                0 if deadline >= now => format!("HPEXPIRE {key} {} {rest}", deadline - now),
                _ => format!("HPEXPIREAT {key} {deadline} {rest}"),
            };
            assert_eq!(pair.run(&line), integers(expected), "{line}");
        }
        8 => {
            let persist = |field: &String| match model.0.get_mut(field) {
                None => -2,
                Some((_, None)) => -1,
                Some((_, deadline)) => {
                    *deadline = None;
                    1
                }
            };
            let expected = [&field, &other].map(persist);
            assert_eq!(pair.run(&format!("HPERSIST {key} FIELDS 2 {field} {other}")), integers(expected));
        }
        9..11 => read_deadlines(pair, model, key, (&field, &other), prng),
        11 => get_and_keep(pair, model, key, (&field, &other), deadline, prng),
        12..14 => {
            let condition = ["", "FNX", "FXX"][prng.below(3) as usize];
            let (first, second) = (model.0.contains_key(&field), model.0.contains_key(&other));
            let is_met = match condition {
                "FNX" => !first && !second,
                "FXX" => first && second,
                _ => true,
            };
            let keeping = prng.below(3);
            let option = match keeping {
                0 => String::new(),
                1 => "KEEPTTL".to_owned(),
                _ => format!("PXAT {deadline}"),
            };
            if is_met {
                for field in [&field, &other] {
                    let old = model.0.get(field).and_then(|(_, deadline)| *deadline);
                    let new = [None, old, Some(deadline)][keeping as usize];
                    model.0.insert(field.clone(), (value.clone(), new));
                }
                model.expire(now);
            }
            let line = format!("HSETEX {key} {condition} {option} FIELDS 2 {field} {value} {other} {value}");
            assert_eq!(pair.run(&line), integer(is_met.into()), "{line}");
        }
        14 => {
            let mut take = |field: &str| {
                let value = model.value(field);
                model.0.remove(field);
                value
            };
            let expected = array([take(&field), take(&other)]);
            assert_eq!(pair.run(&format!("HGETDEL {key} FIELDS 2 {field} {other}")), expected);
        }
        15 => {
            let old = model.0.get(&field).map_or(Some(0), |(value, _)| value.parse::<i64>().ok());
            let reply = pair.run(&format!("HINCRBY {key} {field} 7"));
            match old {
                None => assert!(reply.starts_with("-ERR hash value"), "{reply}"),
                Some(old) => {
                    assert_eq!(reply, integer(old + 7));
                    let deadline = model.0.get(&field).and_then(|(_, deadline)| *deadline);
                    model.0.insert(field, ((old + 7).to_string(), deadline));
                }
            }
        }
        drawn @ 16..22 => read(pair, model, key, (&field, &other), drawn - 16, prng),
        22 => {
            // A copy shares what is large; the original changes first.
            pair.run(&format!("COPY {key} copy REPLACE"));
            if !model.0.is_empty() {
                pair.run(&format!("HSET {key} {field} changed"));
                pair.run(&format!("RENAME copy {key}"));
            }
        }
        _ => {
            let dump = pair.run_words(&[b"DUMP", key.as_bytes()]);
            if !model.0.is_empty() {
                let start = dump.iter().position(|byte| *byte == b'\n').expect("a length") + 1;
                let dump = &dump[start..dump.len() - 2];
                let reply = pair.run_words(&[b"RESTORE", key.as_bytes(), b"0", dump, b"REPLACE"]);
                assert_eq!(reply, b"+OK\r\n");
            }
        }
    }
}

/// Carries out a command that reads.
fn read(pair: &mut Pair, model: &Model, key: &str, (field, other): (&str, &str), drawn: u64, prng: &mut Prng) {
    match drawn {
        0 => {
            assert_eq!(pair.run(&format!("HGET {key} {field}")), model.value(field));
            let length = model.0.get(field).map_or(0, |(value, _)| value.len());
            assert_eq!(pair.run(&format!("HSTRLEN {key} {field}")), integer(length as i64));
            assert_eq!(pair.run(&format!("HEXISTS {key} {field}")), integer(model.0.contains_key(field).into()));
        }
        1 => {
            let expected = array([field, other].map(|field| model.value(field)));
            assert_eq!(pair.run(&format!("HMGET {key} {field} {other}")), expected);
        }
        2 => {
            let found = words(&pair.run(&format!("HGETALL {key}")));
            let found: BTreeMap<&str, &str> = found.chunks(2).map(|pair| (&*pair[0], &*pair[1])).collect();
            assert_eq!(found, model.0.iter().map(|(field, (value, _))| (&**field, &**value)).collect());
            assert_eq!(words(&pair.run(&format!("HKEYS {key}"))).len(), model.0.len());
            assert_eq!(words(&pair.run(&format!("HVALS {key}"))).len(), model.0.len());
        }
        3 => {
            assert_eq!(pair.run(&format!("HLEN {key}")), integer(model.0.len() as i64));
            assert_eq!(pair.run(&format!("EXISTS {key}")), integer(i64::from(!model.0.is_empty())));
        }
        4 => {
            let count = prng.below(12);
            let mut drawn = words(&pair.run(&format!("HRANDFIELD {key} {count}")));
            assert_eq!(drawn.len(), model.0.len().min(count as usize));
            drawn.sort();
            drawn.dedup();
            assert_eq!(drawn.len(), model.0.len().min(count as usize), "none twice");
            drawn.extend(words(&pair.run(&format!("HRANDFIELD {key} -{count}"))));
            assert!(drawn.iter().all(|field| model.0.contains_key(field)), "{drawn:?}");
            pair.run(&format!("HRANDFIELD {key}"));
        }
        _ => {
            let (mut cursor, mut seen) = ("0".to_owned(), Vec::new());
            loop {
                let reply = pair.run(&format!("HSCAN {key} {cursor} COUNT 5 NOVALUES"));
                let mut found = reply.split("\r\n").filter(|line| !line.starts_with(['*', '$']) && !line.is_empty());
                cursor = found.next().expect("a cursor").to_owned();
                seen.extend(found.map(str::to_owned));
                if cursor == "0" {
                    break;
                }
            }
            seen.sort();
            assert_eq!(seen, model.0.keys().cloned().collect::<Vec<_>>());
        }
    }
}

#[test]
fn conversations_agree_with_a_naive_model_on_replicas_of_any_pace() {
    let mut prng = Prng::new(24);
    let limits = Limits { hash_entries: 16, ..Limits::default() };
    let keys = [("tiny", 3), ("small", 12), ("large", 60)];
    let mut pair = Pair::new(limits);
    let mut models = keys.map(|_| Model::default());
    let mut seen = [0usize; 3];
    let mut watched = keys.map(|_| (0, Model::default()));
    for round in 0..150_000u32 {
        let which = prng.below(3) as usize;
        let (key, spread) = keys[which];
        converse(&mut pair, &mut models[which], key, spread, &mut prng);
        if prng.chance(1, 4) {
            pair.wait(prng.below(12) as i64);
        }
        if prng.chance(1, 400) {
            pair.wait(100);
        }
        Pair::collect(&mut pair.quick, 64);
        if prng.chance(1, 50) {
            Pair::collect(&mut pair.slow, prng.below(40) as usize + 1);
        }
        if round % 20 == 0 {
            // A watch sees every change, one by time alone, too.
            models[which].expire(pair.now());
            let version = pair.watched(key);
            let (old, model) = &watched[which];
            assert!(*old != version || *model == models[which], "{key}: {model:?} {:?}", models[which]);
            watched[which] = (version, models[which].clone());
        }
        if round % 500 == 0 {
            pair.assert_same();
            for (index, encoding) in ["listpackex", "hashtable", "listpack"].into_iter().enumerate() {
                let found = keys.map(|(key, _)| pair.run(&format!("OBJECT ENCODING {key}")));
                seen[index] += found.iter().filter(|found| found.contains(&format!("\r\n{encoding}\r\n"))).count();
            }
        }
        if round % 3_000 == 0 {
            pair.restore_slow(prng.chance(1, 2), &mut prng);
            pair.assert_same();
        }
    }
    assert!(seen.iter().all(|count| *count > 10), "all forms were met: {seen:?}");
}

fn memory_usage(harness: &mut Harness, key: &str) -> i64 {
    let reply = harness.run(&format!("MEMORY USAGE {key}"));
    reply[1..].trim().parse().expect("a number")
}

fn fill(harness: &mut Harness, key: &str, count: usize) {
    for thousand in 0..count.div_ceil(1000) {
        let pairs: Vec<String> =
            (thousand * 1000..count.min((thousand + 1) * 1000)).map(|n| format!("f{n} {n}")).collect();
        harness.run(&format!("HSET {key} {}", pairs.join(" ")));
    }
}

fn fields(range: std::ops::Range<usize>) -> String {
    let names: Vec<String> = range.clone().map(|number| format!("f{number}")).collect();
    format!("FIELDS {} {}", range.len(), names.join(" "))
}

#[test]
fn a_hash_with_very_many_expired_fields_is_swept_in_small_steps() {
    let mut harness = Harness::new();
    fill(&mut harness, "h", 50_001);
    for thousand in 0..50 {
        harness.run(&format!("HPEXPIRE h 100 {}", fields(thousand * 1000..(thousand + 1) * 1000)));
    }
    assert_eq!(harness.keyspace.expiring_hash_count(0), 1);
    let usage = |harness: &mut Harness| memory_usage(harness, "h");
    let before = usage(&mut harness);
    harness.now += 100;
    assert_eq!(harness.run("HLEN h"), ":1\r\n");
    assert_eq!(harness.run("HRANDFIELD h 5"), "*1\r\n$6\r\nf50000\r\n");
    let mut steps = 0;
    while harness.keyspace.collect(Moment::at(harness.now, 0), 1_000) {
        steps += 1;
    }
    assert!((48..=60).contains(&steps), "{steps}");
    assert_eq!(harness.keyspace.removals().expired_fields, 50_000);
    assert_eq!(
        (harness.keyspace.expiring_hash_count(0), harness.run("HGETALL h")),
        (0, array([bulk("f50000"), bulk("50000")]))
    );
    assert!(usage(&mut harness) < before / 1000);
    // With the last field the key goes, at once and as a whole.
    fill(&mut harness, "gone", 20_000);
    for thousand in 0..20 {
        harness.run(&format!("HPEXPIRE gone 100 {}", fields(thousand * 1000..(thousand + 1) * 1000)));
    }
    harness.now += 100;
    assert_eq!(harness.run("EXISTS gone"), ":0\r\n");
    assert_eq!(harness.run("SCAN 0 COUNT 100"), array([bulk("0"), array([bulk("h")])]));
    while harness.keyspace.collect(Moment::at(harness.now, 0), 100) {}
    assert_eq!((harness.run("DBSIZE"), harness.keyspace.removals().expired_fields), (integer(1), 70_000));
}

#[test]
fn sweeps_of_many_hashes_stay_within_their_budget_and_come_to_an_end() {
    let mut harness = Harness::new();
    for key in 0..1_500 {
        harness.run(&format!("HSET {{one}}key{key} a 1 b 2 c 3"));
        harness.run(&format!("HPEXPIRE {{one}}key{key} 50 FIELDS 2 a b"));
    }
    harness.now += 2_000;
    let mut removed = 0;
    // One that is large among many keys is not put off because little else expires.
    fill(&mut harness, "{one}large", 5_000);
    for thousand in 0..4 {
        harness.run(&format!("HPEXPIRE {{one}}large 1 {}", fields(thousand * 1000..(thousand + 1) * 1000)));
    }
    harness.now += 1;
    while harness.keyspace.collect(Moment::at(harness.now, 0), 16) {
        let now_removed = harness.keyspace.removals().expired_fields;
        assert!((1..=258).contains(&(now_removed - removed)), "{removed} {now_removed}");
        removed = now_removed;
    }
    assert_eq!(harness.keyspace.removals().expired_fields, 7_000);
    assert_eq!(harness.keyspace.expiring_hash_count(0), 0);
    assert_eq!(harness.run("HGETALL {one}key7"), array([bulk("c"), bulk("3")]));
}

#[test]
fn a_checkpoint_under_way_keeps_the_fields_that_expire_meanwhile() {
    let mut harness = Harness::new();
    for key in 0..200 {
        harness.run(&format!("HSET key{key} stays v goes w"));
        harness.run(&format!("HPEXPIRE key{key} 50 FIELDS 1 goes"));
    }
    harness.keyspace.begin_checkpoint();
    let mut bytes = Vec::new();
    harness.keyspace.checkpoint_step(300, &mut bytes);
    let (now, digest) = (harness.now, harness.keyspace.digest());
    harness.now += 60;
    while harness.keyspace.collect(Moment::at(harness.now, 0), 1_000) {}
    let held = harness.keyspace.expiring_hash_count(0);
    assert!((100..200).contains(&held), "those that have been written are swept: {held}");
    while !harness.keyspace.checkpoint_step(300, &mut bytes) {}
    let mut restored = Harness::new();
    restored.keyspace.restore(&bytes).expect("a checkpoint");
    assert_eq!((restored.keyspace.digest(), restored.keyspace.latest().0), (digest, now));
    restored.now = now;
    assert_eq!(restored.run("HGET key7 goes"), bulk("w"));
    // Afterwards the rest goes.
    harness.now += 200;
    while harness.keyspace.collect(Moment::at(harness.now, 0), 1_000) {}
    assert_eq!(harness.keyspace.expiring_hash_count(0), 0);
}

#[test]
fn what_happens_to_fields_is_told_in_redis_s_words() {
    let mut harness = Harness::new();
    harness.keyspace.listen(Classes::ALL);
    let told = |harness: &mut Harness, line: &str| {
        if !line.is_empty() {
            harness.run(line);
        }
        let notices = harness.keyspace.take_notices();
        notices.iter().map(|notice| notice.name).collect::<Vec<_>>().join(" ")
    };
    for (line, expected) in [
        ("HSET h a 1 b 2 c 3", "hset"),
        ("HEXPIRE h 100 FIELDS 2 a x", "hexpire"),
        ("HEXPIRE h 100 NX FIELDS 1 a", ""),
        ("HPERSIST h FIELDS 2 a b", "hpersist"),
        ("HPERSIST h FIELDS 1 a", ""),
        ("HGETEX h FIELDS 1 a", ""),
        ("HGETEX h EX 100 FIELDS 1 a", "hexpire"),
        ("HGETEX h PERSIST FIELDS 1 a", "hpersist"),
        ("HGETEX h EXAT 1 FIELDS 1 a", "hdel"),
        ("HEXPIREAT h 1 FIELDS 1 b", "hdel"),
        ("HGETDEL h FIELDS 1 x", ""),
        ("HGETDEL h FIELDS 1 c", "hdel del"),
        ("HSETEX h FXX EX 10 FIELDS 1 a 1", ""),
        ("HSETEX h FNX FIELDS 1 a 1", "hset"),
        ("HSETEX h EX 10 FIELDS 2 a 1 b 2", "hset hexpire"),
        ("HSETEX h EXAT 1 FIELDS 2 a 1 b 2", "hset hdel del"),
        ("HSETEX h PX 10 FIELDS 2 a 1 b 2", "hset hexpire"),
        ("HSET h c 3", "hset"),
    ] {
        assert_eq!(told(&mut harness, line), expected, "{line}");
    }
    harness.now += 10;
    // A command that changes a small hash removes what had expired.
    assert_eq!(told(&mut harness, "HSETEX h PX 10 FIELDS 1 c 3"), "hexpired hset hexpire");
    harness.now += 10;
    while harness.keyspace.collect(Moment::at(harness.now, 0), 64) {}
    assert_eq!(told(&mut harness, ""), "hexpired del");
    assert_eq!(told(&mut harness, "HSETEX h PX 10 FIELDS 1 c 3"), "hset hexpire");
    harness.now += 10;
    assert_eq!(told(&mut harness, "SET h text"), "hexpired del set");
    // Of a large hash the last field that exists may go before those that have expired are removed.
    harness.keyspace.listen(Classes::NONE);
    harness.run("DEL h");
    fill(&mut harness, "h", 600);
    harness.run(&format!("HPEXPIRE h 10 {}", fields(0..599)));
    harness.now += 10;
    harness.keyspace.listen(Classes::ALL.with(Class::Changed));
    assert_eq!(told(&mut harness, "HDEL h f599"), "hdel del");
    assert_eq!(harness.run("EXISTS h"), ":0\r\n");
}

#[test]
fn a_plain_hash_does_not_pay_for_deadlines() {
    let mut harness = Harness::new();
    fill(&mut harness, "plain", 2_000);
    fill(&mut harness, "timed", 2_000);
    harness.run("HPEXPIRE timed 1000000 FIELDS 1 f7");
    let (plain, timed) = (memory_usage(&mut harness, "plain"), memory_usage(&mut harness, "timed"));
    assert!(timed > plain && timed < plain + 200, "{plain} {timed}");
}
