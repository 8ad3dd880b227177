use std::collections::{BTreeMap, BTreeSet};

use stdx::slot::Slot;
use stdx::{Prng, UnixMillis};

use super::*;
use crate::context::Edit;
use crate::json::Hole;
use crate::json::parse::parse;
use crate::sketch::Sketch;
use crate::sketch::cuckoo::Cuckoo;
use crate::vector::measure::{Quantization, encode};
use crate::vector::{LINKS_MIN, Shape, VectorSet};
use crate::{Access, End, Expiry, Layout, Options, Tuning};

/// Everything about every key that is replicated.
type Picture = BTreeMap<(u16, Vec<u8>), (Vec<u8>, &'static str, Option<UnixMillis>, u64)>;

const DATABASES: u16 = 3;

fn keyspace() -> Keyspace {
    Keyspace::new(Options { databases: DATABASES, hash_seed: 11, layout: Layout::Slots, tuning: Tuning::default() })
}

fn picture(keyspace: &Keyspace) -> Picture {
    let moment = Moment::at(keyspace.latest, 0);
    let mut picture = Picture::new();
    for database in 0..DATABASES {
        keyspace.for_each(database, moment, |entry| {
            let content = match entry.value() {
                ValueRef::String(text) => text.to_vec(),
                // Their elements, in their order.
                collection => format!("{collection:?}").into_bytes(),
            };
            let facts = (content, entry.encoding(), entry.expires_at(), entry.version());
            assert!(picture.insert((database, entry.key().to_vec()), facts).is_none(), "a key was visited twice");
        });
    }
    picture
}

fn restored(records: &[u8]) -> Keyspace {
    let mut keyspace = keyspace();
    keyspace.restore(records).unwrap();
    assert!(!keyspace.is_restore_incomplete());
    keyspace
}

/// Keys of a few slots, one of which holds most.
fn key(prng: &mut Prng) -> Vec<u8> {
    match prng.below(10) {
        0..7 => format!("{{hot}}{}", prng.below(4000)).into_bytes(),
        7..9 => format!("cold{}", prng.below(500)).into_bytes(),
        _ => vec![b'x'; prng.below(3) as usize * 40_000],
    }
}

fn value(prng: &mut Prng) -> Vec<u8> {
    let len = match prng.below(1000) {
        0 => 700_000,
        1..20 => 5_000,
        20..100 => 500,
        _ => prng.below(40),
    };
    (0..len).map(|_| prng.draw() as u8).collect()
}

/// One random change of any kind.
fn change(keyspace: &mut Keyspace, now: &mut i64, prng: &mut Prng) {
    *now += prng.below(20) as i64;
    let database = prng.below(u64::from(DATABASES)) as u16;
    let moment = Moment::at(*now, prng.draw());
    let key = key(prng);
    let mut edit = keyspace.edit(database, moment);
    let at = UnixMillis(*now + prng.below(4000) as i64 - 100);
    match prng.below(1000) {
        0 => edit.flush(database),
        1..4 => edit.swap(database, prng.below(u64::from(DATABASES)) as u16),
        4..100 => _ = edit.remove(&key),
        100..200 => _ = edit.set_expiry(&key, prng.chance(2, 3).then_some(at)),
        200..250 => rename(&mut edit, &key, prng),
        250..350 if edit.string(&key).is_ok() => edit.modify_string(&key, |bytes| bytes.extend_from_slice(b"more")),
        350..400 => edit.set_integer(&key, prng.draw() as i64, Expiry::Keep),
        400..420 => _ = edit.set_access(&key, Access::IdleSeconds(prng.below(100))),
        420..520 => change_collection(&mut edit, &key, prng),
        520..600 => edit.set_string(&key, &value(prng), Expiry::At(at)),
        600..620 => _ = keyspace.collect(moment, 200),
        _ => edit.set_string(&key, &value(prng), Expiry::Clear),
    }
}

/// Adds to or takes from a collection, which may be of any size; what has another type is left alone.
fn change_collection(edit: &mut Edit<'_>, key: &[u8], prng: &mut Prng) {
    let count = match prng.below(40) {
        0 => 3_000,
        1..4 => 200,
        _ => prng.below(8),
    };
    let element = |prng: &mut Prng| match prng.below(3) {
        0 => vec![b'e'; prng.below(90) as usize],
        _ => prng.below(2 * count + 2).to_string().into_bytes(),
    };
    let adds = prng.chance(2, 3);
    let done = match key.last().map_or(0, |byte| byte % 7) {
        0 => edit.modify_hash(key, |hash| {
            for _ in 0..count {
                let field = element(prng);
                if adds {
                    hash.set(&field, &element(prng))
                } else {
                    hash.remove(&field)
                };
            }
        }),
        1 => edit.modify_list(key, |list| {
            for _ in 0..count {
                let end = if prng.chance(1, 2) { End::Left } else { End::Right };
                if adds {
                    list.push(end, &element(prng));
                } else {
                    list.pop(end);
                }
            }
        }),
        2 => edit.modify_sorted_set(key, |set| {
            for _ in 0..count {
                let member = element(prng);
                if adds {
                    set.update(&member, |_| Some(prng.below(50) as f64 / 4.0));
                } else {
                    set.remove(&member);
                }
            }
        }),
        3 => {
            let name = |prng: &mut Prng| String::from_utf8(element(prng)).expect("elements are text");
            let entry = |prng: &mut Prng| format!("\"{}\":[\"{}\",1.5]", name(prng), name(prng));
            let entries: Vec<_> = (0..count).map(|_| entry(prng)).collect();
            let patch = parse(format!("{{{}}}", entries.join(",")).as_bytes()).expect("a document");
            match edit.view().json(key).map(|document| document.is_some()) {
                Ok(true) => edit.change_json(key, |document, removed| {
                    let object = document.object_mut().expect("documents here are objects");
                    for (name, value) in patch.as_object().expect("it is one, too").iter() {
                        removed.extend(if adds {
                            object.set(name, value.clone())
                        } else {
                            object.remove(name, Hole::TakenByLast)
                        });
                    }
                }),
                _ => edit.set_json(key, patch),
            }
        }
        4 => {
            let change = |prng: &mut Prng, filter: &mut Cuckoo| {
                for _ in 0..count {
                    let item = element(prng);
                    if adds || !filter.remove(&item) {
                        filter.add(&item).expect("it grows");
                    }
                }
            };
            match edit.view().sketch(key).map(|sketch| sketch.is_some()) {
                Ok(true) => edit.change_sketch(key, |sketch| match sketch {
                    Sketch::Cuckoo(filter) => change(prng, filter),
                    other => panic!("{other:?}"),
                }),
                _ => {
                    let mut filter = Cuckoo::new(1 << (4 + 8 * prng.below(2)), 2, 20, 2).expect("it fits");
                    change(prng, &mut filter);
                    edit.set_sketch(key, Sketch::Cuckoo(filter))
                }
            }
        }
        5 => {
            let shape =
                Shape { quantization: Quantization::Byte, dimensions: 2, given_dimensions: 0, links: LINKS_MIN };
            // Each costs more than an element of another type.
            let change = |set: &mut VectorSet| {
                for _ in 0..count.min(80) {
                    let name = element(prng);
                    match set.find(&name) {
                        Some(slot) if !adds => set.remove(slot),
                        Some(slot) => _ = set.set_attributes(slot, &element(prng)),
                        None if adds => {
                            let encoded = encode(&[prng.below(9) as f32, 1.0], Quantization::Byte);
                            set.add(&name, &encoded, b"", 10);
                        }
                        None => {}
                    }
                }
            };
            edit.change_vectors(key, || VectorSet::new(shape), change)
        }
        _ => edit.modify_set(key, |set| {
            for _ in 0..count {
                let member = element(prng);
                if adds {
                    set.add(&member)
                } else {
                    set.remove(&member)
                };
            }
        }),
    };
    if let Err(refusal) = done {
        assert_eq!(refusal, Refusal::WRONG_TYPE);
    }
}

fn rename(edit: &mut Edit<'_>, from: &[u8], prng: &mut Prng) {
    let database = edit.database();
    if let Some((value, expires_at)) = edit.take(database, from) {
        edit.put(prng.below(u64::from(DATABASES)) as u16, &key(prng), value, expires_at, None);
    }
}

/// Fills a keyspace, cuts, and goes on changing it while it is walked in random slices; what was written must be
/// the state at the cut and nothing else.
fn check_cut(seed: u64, filling: usize, slice_bytes_max: u64) {
    let mut prng = Prng::new(seed);
    let mut keyspace = keyspace();
    let mut now = 1_000_000;
    for _ in 0..filling {
        change(&mut keyspace, &mut now, &mut prng);
    }
    if prng.chance(1, 4) {
        keyspace.begin_checkpoint();
        keyspace.checkpoint_step(20_000, &mut vec![]);
        change(&mut keyspace, &mut now, &mut prng);
    }
    let expected = picture(&keyspace);
    let sequence = keyspace.sequence();
    keyspace.begin_checkpoint();
    let mut records = vec![];
    loop {
        for _ in 0..prng.below(40) {
            change(&mut keyspace, &mut now, &mut prng);
        }
        let (passed, total) = keyspace.checkpoint_progress().expect("it is under way");
        assert!(passed <= total);
        if keyspace.checkpoint_step(1 + prng.below(slice_bytes_max) as usize, &mut records) {
            break;
        }
    }
    assert_eq!(keyspace.checkpoint_progress(), None);
    let restored = restored(&records);
    assert_eq!(restored.sequence(), sequence);
    assert!(picture(&restored) == expected, "seed {seed}: not the state at the cut");
    while keyspace.collect(Moment::at(now, 0), 10_000) {}
    let live = picture(&keyspace);
    keyspace.begin_checkpoint();
    let mut records = vec![];
    while !keyspace.checkpoint_step(usize::MAX >> 1, &mut records) {}
    assert!(picture(&self::restored(&records)) == live);
}

#[test]
fn a_checkpoint_is_the_state_at_its_cut_whatever_happens_during_the_walk() {
    for seed in 0..20 {
        check_cut(seed, Prng::new(seed).below(10_000) as usize, 60_000);
    }
}

#[test]
fn no_bytes_make_restoring_panic() {
    let mut prng = Prng::new(5);
    for _ in 0..20_000 {
        let mut chunk: Vec<u8> = (0..1 + prng.below(40)).map(|_| prng.draw() as u8 >> prng.below(8)).collect();
        chunk[0] = prng.below(8) as u8;
        let _ = keyspace().restore(&chunk);
        let _ = keyspace().import(0, b"key", Some(&chunk), Moment::default());
    }
}

#[test]
fn a_walk_of_single_bytes_a_slice_is_exact_too() {
    check_cut(3, 6_000, 2);
}

#[test]
fn splits_of_a_slot_during_the_walk_lose_nothing() {
    let mut keyspace = keyspace();
    let moment = Moment::at(1, 0);
    let name = |number: u32| format!("{{hot}}{number}").into_bytes();
    for number in 0..1_700 {
        keyspace.edit(0, moment).set_string(&name(number), &[b'v'; 400], Expiry::Clear);
    }
    let expected = picture(&keyspace);
    keyspace.begin_checkpoint();
    let mut records = vec![];
    for number in 1_700.. {
        for offset in 0..20 {
            keyspace.edit(0, moment).set_string(&name(number * 20 + offset), b"new", Expiry::Clear);
        }
        if keyspace.checkpoint_step(3_000, &mut records) {
            break;
        }
    }
    assert!(keyspace.databases[0].slot(usize::from(stdx::slot::slot_of(b"{hot}").0)).unwrap().segments().len() > 1);
    assert!(picture(&restored(&records)) == expected);
}

#[test]
fn a_value_of_many_parts_is_written_a_part_at_a_time_and_shared_meanwhile() {
    let mut keyspace = keyspace();
    let moment = Moment::at(1, 0);
    let bytes: Vec<u8> = (0..10 * PART_BYTES as u32 + 7).map(|number| number as u8).collect();
    keyspace.edit(0, moment).set_string(b"big", &bytes, Expiry::Clear);
    let before = keyspace.memory_bytes();
    let expected = picture(&keyspace);
    keyspace.begin_checkpoint();
    keyspace.edit(0, moment).set_string(b"big", b"small", Expiry::Clear);
    assert!(keyspace.memory_bytes() < before + PART_BYTES, "the old image is not a copy");
    let mut records = vec![];
    loop {
        let start = records.len();
        let done = keyspace.checkpoint_step(1, &mut records);
        assert!(records.len() - start < PART_BYTES + 64);
        if done {
            break;
        }
    }
    assert!(picture(&restored(&records)) == expected);
    while keyspace.collect(moment, 100_000) {}
    assert!(keyspace.memory_bytes() < before / 2, "the old value is freed when it has been written");
}

#[test]
fn a_flushed_database_is_written_first_and_freed_after() {
    let mut keyspace = keyspace();
    let moment = Moment::at(1, 0);
    for number in 0..5_000 {
        keyspace.edit(1, moment).set_integer(format!("{number}").as_bytes(), number, Expiry::Clear);
    }
    let (expected, before) = (picture(&keyspace), keyspace.memory_bytes());
    keyspace.begin_checkpoint();
    keyspace.edit(0, moment).flush(1);
    assert_eq!(keyspace.key_count(1), 0);
    while keyspace.collect(moment, 10_000) {}
    assert_eq!(keyspace.memory_bytes(), before);
    let mut records = vec![];
    while !keyspace.checkpoint_step(10_000, &mut records) {}
    assert!(picture(&restored(&records)) == expected);
    while keyspace.collect(moment, 10_000) {}
    assert_eq!(keyspace.memory_bytes(), 0);
}

#[test]
fn damage_is_named_by_its_place() {
    let mut keyspace = keyspace();
    keyspace.edit(0, Moment::at(1, 0)).set_string(b"key", b"value", Expiry::Clear);
    keyspace.begin_checkpoint();
    let mut records = vec![];
    assert!(keyspace.checkpoint_step(1 << 20, &mut records));
    let head_bytes = 1 + 1 + 8;
    let mut limits = vec![];
    Limits::default().write(&mut limits);
    let limits_end = head_bytes + 1 + limits.len();
    for cut in 1..records.len() {
        let mut keyspace = self::keyspace();
        let expected = match cut {
            _ if cut < head_bytes => Err(Corrupt { offset: 0 }),
            _ if cut == head_bytes || cut == limits_end => Ok(()),
            _ if cut < limits_end => Err(Corrupt { offset: head_bytes }),
            _ => Err(Corrupt { offset: limits_end }),
        };
        assert_eq!(keyspace.restore(&records[..cut]), expected, "cut at {cut}");
    }
    assert_eq!(self::keyspace().restore(&[PART, 1, 0]), Err(Corrupt { offset: 0 }));
    assert_eq!(self::keyspace().restore(&[9]), Err(Corrupt { offset: 0 }));
}

#[test]
fn an_exported_key_comes_back_as_it_was() {
    let mut source = keyspace();
    let moment = Moment::at(1_000, 0);
    let mut edit = source.edit(0, moment);
    edit.set_string(b"text", b"value", Expiry::At(UnixMillis(5_000)));
    edit.set_integer(b"number", -5, Expiry::Clear);
    edit.modify_string(b"raw", |bytes| bytes.extend_from_slice(b"12"));
    edit.set_string(b"large", &[7; 1 << 20], Expiry::Clear);
    edit.set_string(b"gone", b"value", Expiry::At(UnixMillis(1_001)));
    edit.modify_hash(b"hash", |hash| hash.set(b"field", b"value")).unwrap();
    edit.modify_set(b"integers", |set| [&b"5"[..], b"-70000"].map(|member| set.add(member))).unwrap();
    edit.modify_set(b"set", |set| [&b"a"[..], b"1", b""].map(|member| set.add(member))).unwrap();
    for number in 0..2_000u32 {
        edit.modify_hash(b"large hash", |hash| hash.set(&number.to_le_bytes(), b"value")).unwrap();
        edit.modify_set(b"large set", |set| set.add(&number.to_le_bytes())).unwrap();
        edit.modify_list(b"large list", |list| list.push(End::Left, &number.to_le_bytes())).unwrap();
        edit.modify_sorted_set(b"large sorted set", |set| set.update(&number.to_be_bytes(), |_| Some(-0.5))).unwrap();
    }
    edit.modify_list(b"list", |list| ["a", "", "b"].map(|item| list.push(End::Right, item.as_bytes()))).unwrap();
    edit.modify_sorted_set(b"sorted set", |set| [1.0, -0.5].map(|score| set.update(&[score as u8], |_| Some(score))))
        .unwrap();
    // It has become a large one once, and stays that.
    edit.modify_hash(b"once large", |hash| [hash.set(b"a", &[0; 65]), hash.set(b"a", b"b")]).unwrap();
    let mut target = Keyspace::new(Options {
        databases: DATABASES,
        hash_seed: 5,
        layout: Layout::Scratch,
        tuning: Tuning::default(),
    });
    target.edit(1, moment).set_string(b"gone", b"old", Expiry::Clear);
    let collections = [
        "hash",
        "integers",
        "set",
        "list",
        "sorted set",
        "large hash",
        "large set",
        "large list",
        "large sorted set",
        "once large",
    ];
    for name in ["text", "number", "raw", "large", "gone"].into_iter().chain(collections) {
        let exported = source.export(0, name.as_bytes(), Moment::at(1_001, 0));
        let sequence = target.sequence();
        target.import(1, name.as_bytes(), exported.as_deref(), moment).unwrap();
        let (here, there) = (source.view(0, Moment::at(1_001, 0)), target.view(1, Moment::at(1_001, 0)));
        let [here, there] = [here, there].map(|view| {
            let entry = view.peek(name.as_bytes())?;
            Some((entry.value(), entry.encoding(), entry.expires_at()))
        });
        assert_eq!(here, there, "{name}");
        assert_eq!(target.sequence(), sequence + 1);
    }
    assert_eq!(target.import(1, b"text", Some(&[0]), moment), Err(Corrupt { offset: 0 }));
    assert!(target.view(1, moment).contains(b"text"));
}

#[test]
fn uses_survive_a_checkpoint() {
    let mut keyspace = keyspace();
    let mut edit = keyspace.edit(0, Moment::at(1_000_000, 0));
    edit.set_string(b"key", b"value", Expiry::Clear);
    edit.set_access(b"key", Access::IdleSeconds(300));
    keyspace.begin_checkpoint();
    let mut records = vec![];
    assert!(keyspace.checkpoint_step(1 << 20, &mut records));
    let later = Moment::at(1_005_000, 0);
    let restored = restored(&records);
    assert_eq!(restored.view(0, later).peek(b"key").unwrap().idle_seconds(later), 305);
}

#[test]
fn a_large_collection_is_written_a_part_at_a_time_as_it_was_at_the_cut() {
    let mut keyspace = keyspace();
    let moment = Moment::at(1, 0);
    for number in 0..30_000u32 {
        let name = number.to_le_bytes();
        keyspace.edit(0, moment).modify_hash(b"hash", |hash| hash.set(&name, &name)).unwrap();
        keyspace.edit(0, moment).modify_set(b"set", |set| set.add(&name)).unwrap();
        keyspace.edit(0, moment).modify_list(b"list", |list| list.push(End::Right, &name)).unwrap();
        let score = f64::from(number % 100);
        keyspace.edit(0, moment).modify_sorted_set(b"zset", |set| set.update(&name, |_| Some(score))).unwrap();
    }
    let before = keyspace.memory_bytes();
    let expected = picture(&keyspace);
    keyspace.begin_checkpoint();
    let mut records = vec![];
    for number in 0u32.. {
        // One goes element by element, the other at once.
        keyspace.edit(0, moment).modify_hash(b"hash", |hash| hash.remove(&number.to_le_bytes())).unwrap();
        keyspace.edit(0, moment).modify_list(b"list", |list| list.pop(End::Left)).unwrap();
        keyspace.edit(0, moment).modify_sorted_set(b"zset", |set| set.remove_range(5..7)).unwrap();
        if number == 10 {
            keyspace.edit(0, moment).remove(b"set");
        }
        let start = records.len();
        let done = keyspace.checkpoint_step(1, &mut records);
        assert!(records.len() - start < ELEMENTS_BYTES + 1024, "{}", records.len() - start);
        if done {
            break;
        }
        assert!(keyspace.memory_bytes() < 2 * before, "the old images are shared");
    }
    let restored = restored(&records);
    assert!(picture(&restored) == expected);
    assert_eq!(restored.digest(), {
        let mut again = self::keyspace();
        again.restore(&records).unwrap();
        again.digest()
    });
    for key in ["hash", "list", "zset"] {
        keyspace.edit(0, moment).remove(key.as_bytes());
    }
    while keyspace.collect(moment, 1_000) {}
    let rest = keyspace.memory_bytes();
    keyspace.edit(0, moment).flush(0);
    while keyspace.collect(moment, 1_000) {}
    assert_eq!((keyspace.memory_bytes(), rest < before / 2), (0, true), "what has been written is freed");
}

#[test]
fn limits_are_part_of_a_checkpoint() {
    let mut keyspace = keyspace();
    let limits = Limits {
        hash_entries: 7,
        hash_value_bytes: 1 << 40,
        set_integers: 0,
        sorted_set_entries: 3,
        sorted_set_value_bytes: 9,
        ..Limits::default()
    };
    keyspace.set_limits(limits);
    keyspace.begin_checkpoint();
    keyspace.set_limits(Limits::default());
    let mut records = vec![];
    assert!(keyspace.checkpoint_step(1 << 20, &mut records));
    assert_eq!(restored(&records).limits(), limits);
}

#[test]
fn a_slot_takes_its_keys_with_their_versions_along_and_is_no_part_of_a_checkpoint_begun_before() {
    let hot = stdx::slot::slot_of(b"{hot}");
    for seed in 0..20 {
        let mut prng = Prng::new(seed);
        let (mut giver, mut taker) = (keyspace(), keyspace());
        let mut now = 1_000_000;
        for _ in 0..2_000 {
            change(&mut giver, &mut now, &mut prng);
        }
        for _ in 0..500 {
            change(&mut taker, &mut now, &mut prng);
        }
        taker.drop_slot(hot);
        taker.advance_to(Moment::at(now, 0));
        giver.advance_to(Moment::at(now, 0));
        let is_hot = |(_, key): &(u16, Vec<u8>)| stdx::slot::slot_of(key) == hot;
        let mut expected = picture(&giver);
        expected.retain(|name, _| is_hot(name));
        let before = picture(&taker);
        taker.begin_checkpoint();
        let mut written = Vec::new();
        let _ = taker.checkpoint_step(1 + prng.below(20_000) as usize, &mut written);

        let records = giver.export_slot(hot);
        assert!(giver.slot_bytes(hot) > 0);
        taker.import_slot(hot, giver.sequence(), giver.gone_from(hot), &records).unwrap();
        giver.drop_slot(hot);
        assert_eq!(giver.slot_bytes(hot), 0);
        assert!(taker.sequence() >= giver.sequence());
        let mut taken = picture(&taker);
        let rest = taken.extract_if(.., |name, _| !is_hot(name)).collect::<Picture>();
        assert_eq!(taken, expected, "seed {seed}");
        assert_eq!(rest, before);
        assert!(!picture(&giver).keys().any(is_hot));
        // What is changed there next is newer than all that was ever seen of it.
        let latest = expected.values().map(|(.., version)| *version).max().unwrap_or(0);
        taker.edit(0, Moment::at(now, 0)).set_integer(b"{hot}new", 1, Expiry::Keep);
        assert!(taker.version(0, b"{hot}new", Moment::at(now, 0)) > latest);
        while !taker.checkpoint_step(5_000, &mut written) {}
        assert_eq!(picture(&restored(&written)), before, "seed {seed}");
    }
}

#[test]
fn sums_of_slots_are_those_of_their_keys_whatever_changes_and_splits_off() {
    let check = |keyspace: &Keyspace| keyspace.databases.iter().for_each(Table::check_sums);
    for seed in 0..5 {
        let mut prng = Prng::new(seed);
        let (mut keyspace, mut now) = (keyspace(), 1_000_000);
        for round in 0..3_000 {
            change(&mut keyspace, &mut now, &mut prng);
            if prng.chance(1, 20) {
                let mut edit = keyspace.edit(0, Moment::at(now, 0));
                let field = prng.below(300).to_string();
                let hash = format!("{{hot}}hash{}", prng.below(9));
                let due = now + prng.below(3_000) as i64;
                let timed = edit.modify_hash(hash.as_bytes(), |hash| {
                    hash.set(field.as_bytes(), b"value");
                    hash.set_deadline(field.as_bytes(), due)
                });
                assert!(timed.is_ok());
            }
            if round % 300 == 0 {
                _ = keyspace.collect(Moment::at(now, 0), 200);
                check(&keyspace);
            }
        }
        // More than one segment holds.
        let hot = stdx::slot::slot_of(b"{hot}");
        for number in 0..2_500 {
            let expiry = if number % 3 == 0 { Expiry::At(UnixMillis(now + number)) } else { Expiry::Clear };
            keyspace.edit(0, Moment::at(now, 0)).set_string(format!("{{hot}}more{number}").as_bytes(), b"v", expiry);
        }
        assert!(keyspace.databases[0].slot(hot.0.into()).unwrap().segments().len() > 1);
        check(&keyspace);
        _ = keyspace.collect(Moment::at(now + 1_000, 0), 100_000);
        check(&keyspace);
        let mut slots: BTreeSet<Slot> = (0..stdx::slot::SLOT_COUNT as u16).map(Slot).collect();
        slots.retain(|slot| *slot == hot || prng.chance(1, 2));
        let (before, all) = (picture(&keyspace), keyspace.memory_bytes());
        let bytes = slots.iter().map(|slot| keyspace.slot_bytes(*slot)).sum::<usize>();
        let other = keyspace.split_off(&slots);
        check(&keyspace);
        check(&other);
        assert!(bytes > 0 && keyspace.memory_bytes() <= all - bytes);
        assert_eq!(slots.iter().map(|slot| keyspace.slot_bytes(*slot)).sum::<usize>(), 0);
        assert_eq!(slots.iter().map(|slot| other.slot_bytes(*slot)).sum::<usize>(), bytes);
        let mut halves = picture(&keyspace);
        halves.extend(picture(&other));
        assert_eq!(halves, before, "seed {seed}");
    }
}
