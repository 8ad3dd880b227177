//! What only the inside of a keyspace shows of streams.

use crate::collection::stream::Id;
use crate::collection::stream::idempotence::Idempotence;
use crate::testing::Harness;
use crate::{Class, Classes, Moment};

/// A stream of many blocks, with a group of two consumers that have most of it pending.
fn filled(entries: usize) -> Harness {
    let mut harness = Harness::new();
    harness.run("XGROUP CREATE s g 0 MKSTREAM");
    for nth in 0..entries {
        harness.run(&format!("XADD s {}-{} n {nth} text more", 1 + nth / 3, nth % 3));
    }
    harness.run(&format!("XREADGROUP GROUP g alice COUNT {} STREAMS s >", entries / 2));
    harness.run(&format!("XREADGROUP GROUP g bob COUNT {} STREAMS s >", entries / 4));
    harness
}

fn restored(records: &[u8]) -> Harness {
    let mut harness = Harness::new();
    harness.keyspace.restore(records).expect("whole records");
    harness
}

#[test]
fn a_checkpoint_holds_a_large_stream_as_it_was_while_it_changes() {
    let mut harness = filled(20_000);
    let before = harness.run("DUMP s");
    harness.keyspace.begin_checkpoint();
    let mut records = Vec::new();
    let mut steps = 0;
    while !harness.keyspace.checkpoint_step(1 << 16, &mut records) {
        harness.run(&format!("XADD s 90000-{steps} n x"));
        harness.run(&format!("XDEL s {}-1", 1 + steps * 7));
        harness.run(&format!("XACK s g {}-0", 1 + steps * 3));
        harness.run("XREADGROUP GROUP g carol COUNT 1 STREAMS s >");
        steps += 1;
    }
    assert!(steps > 5, "a stream of {} bytes in {steps} steps", records.len());
    let mut copy = restored(&records);
    assert!(copy.run("DUMP s") == before);
    assert!(harness.run("DUMP s") != before);
    // What came back goes on alike everywhere.
    let mut twin = restored(&records);
    for line in
        ["XADD s * n 1", "XREADGROUP GROUP g bob COUNT 3 STREAMS s >", "XTRIM s MAXLEN 50", "XINFO STREAM s FULL"]
    {
        assert_eq!(copy.run(line), twin.run(line), "{line}");
    }
}

#[test]
fn a_small_stream_is_kept_in_a_checkpoint_even_without_entries() {
    let mut harness = Harness::new();
    for line in ["XADD s 5-1 a 1", "XDEL s 5-1", "XGROUP CREATE s g $", "XGROUP CREATECONSUMER s g alice"] {
        harness.run(line);
    }
    harness.keyspace.begin_checkpoint();
    let mut records = Vec::new();
    while !harness.keyspace.checkpoint_step(1 << 20, &mut records) {}
    let mut copy = restored(&records);
    assert_eq!(copy.run("XINFO STREAM s FULL"), harness.run("XINFO STREAM s FULL"));
    for len in 0..records.len() {
        // Parts that are missing are noticed, or the stream is not there at all.
        let mut harness = Harness::new();
        if harness.keyspace.restore(&records[..len]).is_ok() {
            assert_eq!(harness.run("EXISTS s"), ":0\r\n");
        }
    }
}

#[test]
fn what_is_deleted_hides_nothing_that_was_added_below_it_later() {
    let mut harness = Harness::new();
    for id in [1, 5, 9] {
        harness.run(&format!("XADD s {id} n x"));
    }
    harness.run("XDEL s 9");
    // Since level 2 no id falls below what was deleted; logs of before may have it.
    harness.keyspace.set_level(stdx::Level::FIRST);
    harness.run("XSETID s 5");
    harness.run("XADD s 7 n x");
    assert_eq!(harness.run("XRANGE s (5 8 COUNT 1"), "*1\r\n*2\r\n$3\r\n7-0\r\n*2\r\n$1\r\nn\r\n$1\r\nx\r\n");
    assert_eq!(harness.run("XRANGE s 9 +"), "*0\r\n");
    harness.run("XTRIM s MINID 6");
    assert_eq!(harness.run("XLEN s"), ":1\r\n");
    assert_eq!(harness.run("XDEL s 7"), ":1\r\n");
}

/// Whether ids start over in the same block or in a new one, and whether anything follows.
#[test]
fn a_stream_with_ids_below_what_is_deleted_comes_back() {
    // A block has 100 entries.
    for (count, follows) in [(10, true), (100, true), (10, false)] {
        let mut harness = Harness::new();
        harness.keyspace.set_level(stdx::Level::FIRST);
        (1..=count).for_each(|id| _ = harness.run(&format!("XADD s {} n x", 2 * id)));
        let (last, before, top) = (2 * count, 2 * count - 2, 2 * count - 4);
        harness.run(&format!("XDEL s {last} {before}"));
        assert_eq!(harness.run(&format!("XSETID s {top}")), "+OK\r\n");
        if follows {
            harness.run(&format!("XADD s {} n x", top + 1));
            harness.run(&format!("XADD s {before} n y"));
        }
        let seen = harness.run("XINFO STREAM s FULL");
        harness.keyspace.begin_checkpoint();
        let mut records = Vec::new();
        while !harness.keyspace.checkpoint_step(1 << 16, &mut records) {}
        let mut copy = restored(&records);
        assert_eq!(copy.run("XINFO STREAM s FULL"), seen, "{count}, {follows}");
        let dump = harness.run_words(&[b"DUMP", b"s"]);
        let dump = &dump[dump.iter().position(|byte| *byte == b'\n').expect("a length") + 1..dump.len() - 2];
        assert_eq!(harness.run_words(&[b"RESTORE", b"t", b"0", dump]), b"+OK\r\n", "{count}, {follows}");
        assert_eq!(harness.run("XRANGE t - +"), harness.run("XRANGE s - +"), "{count}, {follows}");
        let (id, next) = (format!("{}-0", last + 9), harness.run(&format!("XADD s {} n x", last + 9)));
        assert!(next.contains(&id) && copy.run(&format!("XADD s {id} n x")) == next, "{next}");
    }
}

#[test]
fn what_is_cut_off_is_freed_in_steps() {
    let mut bare = Harness::new();
    bare.run("SET s x");
    bare.run("DEL s");
    for line in ["DEL s", "XTRIM s MAXLEN 10", "XGROUP DESTROY s g", "SET s x", "XGROUP DELCONSUMER s g alice"] {
        let mut harness = filled(150_000);
        let full = harness.keyspace.memory_bytes();
        harness.run(line);
        let moment = Moment::at(harness.now, 1);
        while harness.keyspace.collect(moment, 10_000) {}
        assert!(harness.keyspace.memory_bytes() < full, "{line}");
        harness.run("DEL s");
        while harness.keyspace.collect(moment, 10_000) {}
        assert_eq!(harness.keyspace.memory_bytes(), bare.keyspace.memory_bytes(), "{line}");
    }
}

#[test]
fn a_copy_does_not_change_with_the_original() {
    let mut harness = filled(1_000);
    harness.run("COPY s t");
    let before = harness.run("DUMP t");
    for line in ["XADD s 900-1 n 1", "XDEL s 5-1", "XACK s g 1-0 1-1", "XTRIM s MAXLEN 30", "XGROUP DESTROY s g"] {
        harness.run(line);
    }
    assert!(harness.run("DUMP t") == before);
}

#[test]
fn ids_and_times_are_those_of_the_moment() {
    let mut harness = Harness::new();
    harness.now = 1_700_000_000_000;
    assert_eq!(harness.run("XADD s * a 1"), "$15\r\n1700000000000-0\r\n");
    assert_eq!(harness.run("XADD s * a 1"), "$15\r\n1700000000000-1\r\n");
    // Clocks may go back; ids do not.
    harness.now -= 5;
    assert_eq!(harness.run("XADD s * a 1"), "$15\r\n1700000000000-2\r\n");
    harness.now += 5;
    harness.run("XGROUP CREATE s g 0");
    harness.run("XREADGROUP GROUP g alice COUNT 1 STREAMS s >");
    harness.now += 1_000;
    assert!(harness.run("XPENDING s g - + 10").ends_with("$5\r\nalice\r\n:1000\r\n:1\r\n"));
    assert_eq!(harness.run("XPENDING s g IDLE 1001 - + 10"), "*0\r\n");
    assert!(harness.run("XINFO CONSUMERS s g").ends_with("$4\r\nidle\r\n:1000\r\n$8\r\ninactive\r\n:1000\r\n"));
    assert_eq!(harness.run("XCLAIM s g bob 1001 1700000000000-0 JUSTID"), "*0\r\n");
    assert!(harness.run("XCLAIM s g bob 1000 1700000000000-0 JUSTID").starts_with("*1\r\n"));
}

#[test]
fn what_changes_nothing_is_no_change() {
    let mut harness = filled(10);
    harness.keyspace.listen(Classes::ALL);
    let version = |harness: &mut Harness| harness.keyspace.version(0, b"s", Moment::at(harness.now, 0));
    let before = version(&mut harness);
    for line in [
        "XDEL s 77-1",
        "XACK s g 77-1",
        "XTRIM s MAXLEN 100",
        "XCLAIM s g bob 99999999 1-0",
        "XAUTOCLAIM s g bob 99999999 -",
        "XGROUP CREATECONSUMER s g alice",
        "XGROUP DELCONSUMER s g nobody",
        "XGROUP DESTROY s none",
        "XADD s 1-1 a 1",
    ] {
        harness.run(line);
        assert_eq!(version(&mut harness), before, "{line}");
    }
    assert!(harness.keyspace.take_notices().is_empty());
}

#[test]
fn changes_are_reported_in_redis_s_words() {
    let mut harness = Harness::new();
    harness.keyspace.listen(Classes::NONE.with(Class::Stream));
    let cases: &[(&str, &[&str])] = &[
        ("XADD s 1-1 a 1", &["xadd"]),
        ("XADD s MAXLEN 1 1-2 a 1", &["xadd", "xtrim"]),
        ("XADD s MAXLEN 5 1-3 a 1", &["xadd"]),
        ("XGROUP CREATE s g 0", &["xgroup-create"]),
        ("XGROUP CREATECONSUMER s g alice", &["xgroup-createconsumer"]),
        ("XREADGROUP GROUP g bob COUNT 1 STREAMS s >", &["xgroup-createconsumer"]),
        ("XREADGROUP GROUP g bob COUNT 1 STREAMS s >", &[]),
        ("XCLAIM s g carol 0 1-2", &["xgroup-createconsumer"]),
        ("XAUTOCLAIM s g dave 0 -", &["xgroup-createconsumer"]),
        ("XACK s g 1-2", &[]),
        ("XGROUP SETID s g 0", &["xgroup-setid"]),
        ("XGROUP DELCONSUMER s g dave", &["xgroup-delconsumer"]),
        ("XGROUP DESTROY s g", &["xgroup-destroy"]),
        ("XSETID s 7", &["xsetid"]),
        ("XDEL s 1-3", &["xdel"]),
        ("XTRIM s MAXLEN 0", &["xtrim"]),
        ("XADD s 9-1 a 1", &["xadd"]),
        ("XADD s 9-2 a 1", &["xadd"]),
        ("XGROUP CREATE s g 0", &["xgroup-create"]),
        ("XREADGROUP GROUP g alice COUNT 1 STREAMS s >", &["xgroup-createconsumer"]),
        ("XDELEX s ACKED IDS 2 9-1 9-2", &[]),
        ("XTRIM s MAXLEN 0 ACKED", &[]),
        ("XACKDEL s g ACKED IDS 1 9-1", &["xdel"]),
        ("XREADGROUP GROUP g bob CLAIM 0 STREAMS s >", &["xgroup-createconsumer"]),
        ("XREADGROUP GROUP g carol STREAMS s >", &["xgroup-createconsumer"]),
        ("XDELEX s DELREF IDS 1 9-2", &["xdel"]),
    ];
    for (line, expected) in cases {
        harness.run(line);
        let told: Vec<_> = harness.keyspace.take_notices().iter().map(|notice| notice.name).collect();
        assert_eq!(told, *expected, "{line}");
    }
}

#[test]
fn what_is_released_is_given_out_first_and_in_order() {
    let mut harness = Harness::new();
    harness.run("XGROUP CREATE s g 0 MKSTREAM");
    (1..=5).for_each(|nth| _ = harness.run(&format!("XADD s {nth}-0 n {nth}")));
    harness.run("XREADGROUP GROUP g alice STREAMS s >");
    harness.run("XCLAIM s g alice 0 2-0 TIME 0");
    for id in ["4-0", "1-0", "3-0", "4-0"] {
        assert_eq!(harness.run(&format!("XNACK s g FAIL IDS 1 {id}")), ":1\r\n");
    }
    let given = harness.run("XREADGROUP GROUP g bob CLAIM 0 STREAMS s >");
    let ids: Vec<_> = given.split("\r\n").filter(|word| word.ends_with("-0")).collect();
    // The one that was released again is the last of those; then what has been idle for longest.
    assert_eq!(ids, ["1-0", "3-0", "4-0", "2-0", "5-0"]);
}

#[test]
fn what_is_released_and_remembered_is_in_dumps_and_checkpoints() {
    let mut harness = filled(9_000);
    for nth in 0..500 {
        harness.run(&format!("XNACK s g FAIL IDS 1 {}-1", 1_000 - nth));
        harness.run(&format!("XADD s IDMP p{} i{nth} * n {nth}", nth % 7));
        harness.run(&format!("XADD s IDMPAUTO q{} * n {nth}", nth % 3));
    }
    harness.run("XNACK s g FATAL IDS 1 1-0");
    harness.run("XADD s IDMP p0 i497 * n 0");
    let facts = |harness: &mut Harness| {
        (harness.run("XINFO STREAM s FULL COUNT 5"), harness.run("XPENDING s g - + 10000"), harness.run("DUMP s"))
    };
    let before = facts(&mut harness);
    assert!(before.0.contains("iids-duplicates\r\n:1\r\n"), "{}", before.0);
    assert!(before.0.contains("nacked-count\r\n:501\r\n"), "{}", before.0);
    for step_bytes in [1, 100, 1 << 20] {
        harness.keyspace.begin_checkpoint();
        let mut records = Vec::new();
        while !harness.keyspace.checkpoint_step(step_bytes, &mut records) {}
        let mut copy = restored(&records);
        assert!(facts(&mut copy) == before, "in steps of {step_bytes} bytes");
        let claim = "XREADGROUP GROUP g dora COUNT 100 CLAIM 0 STREAMS s >";
        let add = "XADD s IDMP p0 i497 * n 0";
        let mut twin = restored(&records);
        assert_eq!(copy.run(claim), twin.run(claim));
        assert_eq!(copy.run(add), twin.run(add));
    }
    let stream = harness.keyspace.view(0, Moment::default()).stream(b"s").expect("a stream").cloned();
    let stream = stream.expect("there is one");
    let dump = crate::rdb::dump(crate::ValueRef::Stream(&stream));
    assert_eq!((dump[0], dump[dump.len() - 10]), (27, 14));
    assert_eq!(harness.run_words(&[b"RESTORE", b"again", b"0", &dump]), b"+OK\r\n");
    let again = harness.keyspace.view(0, Moment::default()).stream(b"again").expect("a stream").cloned();
    assert_eq!(again, Some(stream.clone()));
    // To a Redis that knows nothing of either, somebody without a name has it.
    let old = crate::rdb::dump_for(crate::ValueRef::Stream(&stream), crate::rdb::Dialect::Listpacks, 11);
    assert_eq!(old[0], 19);
    assert_eq!(harness.run_words(&[b"RESTORE", b"old", b"0", &old]), b"+OK\r\n");
    let pending = harness.run("XPENDING old g - + 10000");
    assert!(pending.contains("\r\n$0\r\n\r\n:"), "{}", &pending[..200]);
}

#[test]
fn a_walk_through_many_producers_goes_on_where_it_was() {
    let mut memory = Idempotence::new();
    for producer in 0..3_000 {
        assert!(memory.put_producer(format!("p{producer:04}").as_bytes()));
        (0..producer % 4).for_each(|own| {
            assert!(memory.put_id(format!("p{producer:04}").as_bytes(), &[own as u8], Id::MIN));
        });
    }
    let mut part = 0;
    while part < 1 + memory.part_count() {
        let (place, own) = memory.producer_at_part(part);
        memory.note_part(place, own);
        // From where it was it is never further than to the next one.
        assert!(part == 0 || (own..=own + 3).contains(&part), "part {part} belongs to {place}, which is {own}");
        part += 1;
    }
    assert_eq!(memory.producer_at_part(part - 1), (2_999, part - 4));
    // Backwards, from another copy, and after a change it is found as well.
    assert_eq!(memory.clone().producer_at_part(2), (1, 2));
    memory.record(b"a", b"1", Id::MIN, 0);
    assert_eq!(memory.producer_at_part(1), (0, 1));
    assert_eq!(memory.producer_at_part(3), (1, 3));
}

#[test]
fn of_more_ids_than_are_remembered_a_dump_brings_the_last() {
    let mut harness = Harness::new();
    (1..=50).for_each(|nth| _ = harness.run(&format!("XADD s IDMP p i{nth} * a b")));
    let stream = harness.keyspace.view(0, Moment::default()).stream(b"s").expect("a stream").cloned();
    let mut dump = crate::rdb::dump(crate::ValueRef::Stream(&stream.expect("there is one")));
    // The duration of 100 s, 100 ids, one producer.
    let head = b"\x40\x64\x40\x64\x01\x01p";
    let place = dump.windows(head.len()).position(|bytes| bytes == head).expect("it is in there");
    dump[place + 3] = 20;
    let end = dump.len() - 8;
    let sum = crate::crc64::crc64(0, &dump[..end]);
    dump[end..].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(harness.run_words(&[b"RESTORE", b"t", b"0", &dump]), b"+OK\r\n");
    let facts = harness.run("XINFO STREAM t");
    assert!(facts.contains("iids-tracked\r\n:20\r\n") && facts.contains("idmp-maxsize\r\n:20\r\n"), "{facts}");
    let length = harness.run("XLEN t");
    harness.run("XADD t IDMP p i31 * a b");
    assert_eq!(harness.run("XLEN t"), length, "the last twenty are known");
    harness.run("XADD t IDMP p i30 * a b");
    assert_ne!(harness.run("XLEN t"), length);
}

#[test]
fn digests_tell_the_order_of_what_is_released_and_who_has_added() {
    let digest = |lines: &[&str]| {
        let mut harness = Harness::new();
        harness.run("XGROUP CREATE s g 0 MKSTREAM");
        ["1-0", "2-0"].iter().for_each(|id| _ = harness.run(&format!("XADD s {id} f v")));
        harness.run("XREADGROUP GROUP g c STREAMS s >");
        lines.iter().for_each(|line| _ = harness.run(line));
        crate::debug::value_digest(&harness.keyspace.view(0, Moment::at(harness.now, 0)), b"s").to_string()
    };
    let [first, second] = ["XNACK s g SILENT IDS 1 1-0", "XNACK s g SILENT IDS 1 2-0"];
    assert_ne!(digest(&[first, second]), digest(&[second, first]));
    let add = |own: &str| digest(&[&format!("XADD s IDMP p {own} * f v")]);
    assert_ne!(add("a"), add("b"));
    assert_eq!(add("a"), add("a"));
}

#[test]
fn what_a_producer_sends_again_is_not_added_until_it_is_forgotten() {
    let mut harness = Harness::new();
    let first = harness.run("XADD s IDMP p 1 * a b");
    assert_eq!(harness.run("XADD s IDMP p 1 * c d"), first);
    assert_ne!(harness.run("XADD s IDMP q 1 * c d"), first, "of another producer");
    let made = harness.run("XADD s IDMPAUTO p * a b c d");
    assert_eq!(harness.run("XADD s IDMPAUTO p * c d a b"), made, "the order does not matter");
    assert_ne!(harness.run("XADD s IDMPAUTO p * c da b x"), made);
    assert_eq!(harness.run("XDEL s 0-1"), ":0\r\n");
    harness.run("XTRIM s MAXLEN 0");
    assert_eq!(harness.run("XADD s IDMP p 1 * c d"), first, "also when the entry has gone");
    assert_eq!(harness.run("XCFGSET s IDMP-DURATION 100"), "+OK\r\n");
    assert_eq!(harness.run("XADD s IDMP p 1 * c d"), first, "nothing has changed");
    assert_eq!(harness.run("XCFGSET s IDMP-MAXSIZE 2"), "+OK\r\n");
    let second = harness.run("XADD s IDMP p 1 * c d");
    assert_ne!(second, first, "a change forgets all");
    harness.run("XADD s IDMP p 2 * c d");
    assert_eq!(harness.run("XADD s IDMP p 1 * c d"), second);
    harness.run("XADD s IDMP p 3 * c d");
    assert_ne!(harness.run("XADD s IDMP p 1 * c d"), second, "the oldest of more than two");
}

#[test]
fn an_id_is_remembered_for_as_long_as_is_said_and_no_memory_is_left_behind() {
    let mut harness = Harness::new();
    let first = harness.run("XADD s IDMP p 1 * a b");
    harness.run("XCFGSET s IDMP-DURATION 10");
    let second = harness.run("XADD s IDMP p 1 * a b");
    assert_ne!(first, second);
    harness.now += 9_999;
    assert_eq!(harness.run("XADD s IDMP p 1 * a b"), second);
    harness.now += 1;
    assert!(harness.run("XINFO STREAM s").contains("iids-tracked\r\n:0\r\n"));
    assert_ne!(harness.run("XADD s IDMP p 1 * a b"), second);
    // A clock that has gone back forgets nothing early.
    harness.now = 5;
    assert!(harness.run("XINFO STREAM s").contains("iids-tracked\r\n:1\r\n"));
    harness.now = 1_800_000_000_000;
    // Producers that come once and never again do not add up.
    for nth in 0..2_000 {
        harness.now += 100;
        harness.run(&format!("XADD s MAXLEN 5 IDMP once{nth} 1 * a b"));
    }
    let view = harness.keyspace.view(0, Moment::default());
    let stream = view.stream(b"s").expect("a stream").expect("it is there");
    let parts = stream.idempotence().expect("it remembers").part_count();
    assert!((200..=600).contains(&parts), "of each of 100 producers that still count, itself and one id: {parts}");
}

#[test]
fn a_plus_stands_for_the_last_entry_that_is_there() {
    let mut harness = Harness::new();
    let entry = |key: &str, id: &str| {
        let entry = format!("*2\r\n$3\r\n{id}\r\n*2\r\n$1\r\nf\r\n$1\r\nv\r\n");
        format!("*2\r\n$1\r\n{key}\r\n*1\r\n{entry}")
    };
    assert_eq!(harness.run("XREAD STREAMS s +"), "*-1\r\n");
    for line in ["XADD s 1-0 f v", "XADD s 1-1 f v", "XADD s 2-0 f v", "XADD t 0-1 f v"] {
        harness.run(line);
    }
    assert_eq!(
        harness.run("XREAD COUNT 5 STREAMS s none t + + +"),
        format!("*2\r\n{}{}", entry("s", "2-0"), entry("t", "0-1"))
    );
    harness.run("XDEL s 2-0");
    assert_eq!(harness.run("XREAD STREAMS s +"), format!("*1\r\n{}", entry("s", "1-1")), "what is deleted is no entry");
    harness.run("XTRIM s MAXLEN 0");
    assert_eq!(harness.run("XREAD STREAMS s +"), "*-1\r\n");
    harness.run("XGROUP CREATE t g 0");
    assert!(harness.run("XREADGROUP GROUP g c STREAMS t +").starts_with("-ERR The + ID is meaningless"));
}

/// The ids in a reply, stream by stream.
fn ids_of(reply: &str) -> Vec<String> {
    let is_id = |word: &&str| word.split_once('-').is_some_and(|(ms, _)| !ms.is_empty());
    reply.split("\r\n").filter(is_id).map(str::to_owned).collect()
}

#[test]
fn an_answer_has_at_most_so_many_entries_and_bytes_over_all_streams() {
    let mut harness = Harness::new();
    for key in ["s", "t"] {
        (1..=100).for_each(|ms| _ = harness.run(&format!("XADD {key} {ms}-1 f 12345678")));
        harness.run(&format!("XGROUP CREATE {key} g 0"));
    }
    // One entry takes *2 $3 1-1 *2 $1 f $8 12345678 with its ends of lines.
    let size = "*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nf\r\n$8\r\n12345678\r\n".len();
    let mut read = |line: &str| ids_of(&harness.run(line)).len();
    assert_eq!(read("XREAD COUNT 3 MAXCOUNT 4 STREAMS s t 0 0"), 4);
    assert_eq!(read("XREAD MAXCOUNT 150 STREAMS s t 0 0"), 150);
    assert_eq!(read("XREAD MAXCOUNT 300 STREAMS s t 0 0"), 200);
    assert_eq!(read("XREAD MAXSIZE 1 STREAMS s t 0 0"), 1, "the first is answered however large it is");
    assert_eq!(read(&format!("XREAD MAXSIZE {} STREAMS s t 0 0", 5 * size)), 5);
    assert_eq!(read(&format!("XREAD COUNT 3 MAXSIZE {} STREAMS s t 0 0", 5 * size + 1)), 5);
    assert_eq!(read(&format!("XREAD MAXCOUNT 2 MAXSIZE {} STREAMS s t 0 0", 5 * size)), 2);

    // A group gives out no more than what is answered, and the rest afterwards.
    let mut ids = |line: &str| ids_of(&harness.run(line));
    let first = ids("XREADGROUP GROUP g c COUNT 3 MAXCOUNT 4 STREAMS s t > >");
    assert_eq!(first, ["1-1", "2-1", "3-1", "1-1"]);
    assert_eq!(ids(&format!("XREADGROUP GROUP g c MAXSIZE {} STREAMS s t > >", 2 * size)), ["4-1", "5-1"]);
    assert_eq!(ids("XREADGROUP GROUP g c MAXCOUNT 6 STREAMS s t 0 0"), ["1-1", "2-1", "3-1", "4-1", "5-1", "1-1"]);
    assert_eq!(ids("XREADGROUP GROUP g c MAXSIZE 1 STREAMS t s 0 0"), ["1-1"]);
    assert_eq!(ids("XPENDING t g - + 10"), ["1-1"]);
    harness.now += 1_000;
    let mut ids = |line: &str| ids_of(&harness.run(line));
    assert_eq!(ids("XREADGROUP GROUP g d MAXCOUNT 2 CLAIM 500 STREAMS t s > >"), ["1-1", "2-1"]);
    assert_eq!(ids("XPENDING t g - + 10 d"), ["1-1", "2-1"]);
    assert_eq!(ids("XPENDING s g - + 10 d"), [""; 0]);

    for (line, error) in [
        ("XREAD MAXCOUNT 0 STREAMS s 0", "-ERR MAXCOUNT must be a positive integer\r\n"),
        ("XREAD MAXSIZE x STREAMS s 0", "-ERR MAXSIZE must be a positive integer\r\n"),
        ("XREAD COUNT 3 MAXCOUNT 2 STREAMS s 0", "-ERR MAXCOUNT must be greater than or equal to COUNT\r\n"),
    ] {
        assert_eq!(harness.run(line), error);
    }
}
