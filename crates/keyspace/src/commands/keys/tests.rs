//! Each command's cases, many of them after Redis's own tests (tests/unit/{keyspace,expire,dump,scan,sort}.tcl).

use std::collections::BTreeSet;

use resp::Protocol;

use crate::testing::Harness;
use crate::{Policy, Tuning};

/// Runs command lines and compares the replies; their line ends are shown as blanks.
fn play(harness: &mut Harness, lines: &[(&str, &str)]) {
    for (line, expected) in lines {
        let reply = harness.run(line);
        let shown = reply.trim_end().replace("\r\n", " ");
        assert_eq!(shown, *expected, "the reply to {line}");
    }
}

fn played(lines: &[(&str, &str)]) -> Harness {
    let mut harness = Harness::new();
    play(&mut harness, lines);
    harness
}

const SYNTAX: &str = "-ERR syntax error";
const NOT_AN_INTEGER: &str = "-ERR value is not an integer or out of range";

#[test]
fn del_and_unlink_count_what_was_there() {
    played(&[
        ("SET a 1", "+OK"),
        ("SET b 2", "+OK"),
        ("SET c 3 PX 1", "+OK"),
        ("DEL a b a nothing", ":2"),
        ("EXISTS a b", ":0"),
        ("SET a 1", "+OK"),
        ("UNLINK a a", ":1"),
    ]);
}

#[test]
fn expired_keys_are_neither_seen_nor_counted() {
    let mut harness = played(&[("SET a 1 PX 10", "+OK"), ("EXISTS a", ":1")]);
    harness.now += 10;
    play(
        &mut harness,
        &[
            ("EXISTS a a", ":0"),
            ("TYPE a", "+none"),
            ("TOUCH a", ":0"),
            ("TTL a", ":-2"),
            ("EXPIRE a 10", ":0"),
            ("PERSIST a", ":0"),
            ("KEYS *", "*0"),
            ("SCAN 0", "*2 $1 0 *0"),
            ("RANDOMKEY", "$-1"),
            ("DUMP a", "$-1"),
            ("OBJECT ENCODING a", "$-1"),
            ("MEMORY USAGE a", "$-1"),
            ("RENAME a b", "-ERR no such key"),
            ("COPY a b", ":0"),
            ("MOVE a 1", ":0"),
            ("DEL a", ":0"),
            ("SET b 1", "+OK"),
            ("COPY b a", ":1"), // not in the way of anything either
        ],
    );
}

#[test]
fn exists_counts_a_key_as_often_as_it_is_named() {
    played(&[("SET a \"\"", "+OK"), ("EXISTS a a b", ":2"), ("TOUCH a b a", ":2")]);
}

#[test]
fn type_names_the_type() {
    played(&[("SET a 1", "+OK"), ("TYPE a", "+string"), ("TYPE b", "+none")]);
}

#[test]
fn rename_takes_the_expiry_along_and_replaces_the_target() {
    let mut harness = played(&[
        ("SET a 1 PX 5000", "+OK"),
        ("SET b 2 PX 9000", "+OK"),
        ("RENAME a b", "+OK"),
        ("EXISTS a", ":0"),
        ("GET b", "$1 1"),
        ("PTTL b", ":5000"),
        ("SET c 3", "+OK"),
        ("RENAME c b", "+OK"),
        ("PTTL b", ":-1"),
        ("RENAME b b", "+OK"),
        ("RENAME a a", "-ERR no such key"),
        ("RENAME a b", "-ERR no such key"),
        ("RENAMENX b b", ":0"),
        ("RENAMENX a b", "-ERR no such key"),
        ("RENAMENX b d", ":1"),
        ("SET b 4", "+OK"),
        ("RENAMENX b d", ":0"),
        ("GET b", "$1 4"),
        ("GET d", "$1 3"),
    ]);
    // How often a key was used is remembered under its new name.
    harness.keyspace.set_tuning(Tuning { policy: Policy::AllkeysLfu, lfu_log_factor: 0, ..Tuning::default() });
    play(&mut harness, &[("SET e 5", "+OK"), ("RENAME e d", "+OK"), ("OBJECT FREQ d", ":6"), ("MOVE d 1", ":1")]);
    harness.database = 1;
    play(&mut harness, &[("OBJECT FREQ d", ":7")]);
}

#[test]
fn copy_makes_an_independent_copy() {
    let mut harness = played(&[
        ("SET a 1 PX 5000", "+OK"),
        ("COPY a b", ":1"),
        ("PTTL b", ":5000"),
        ("APPEND b 2", ":2"),
        ("GET a", "$1 1"),
        ("COPY b a", ":0"),
        ("COPY b a replace", ":1"),
        ("GET a", "$2 12"),
        ("COPY nothing a REPLACE", ":0"),
        ("GET a", "$2 12"),
        ("COPY a a", "-ERR source and destination objects are the same"),
        ("COPY a a DB 0", "-ERR source and destination objects are the same"),
        ("COPY a a DB 3", ":1"),
        ("COPY a a DB 3", ":0"),
        ("COPY a a DB 3 REPLACE", ":1"),
        ("COPY a c DB 16", "-ERR DB index is out of range"),
        ("COPY a c DB -1", "-ERR DB index is out of range"),
        ("COPY a c DB x", NOT_AN_INTEGER),
        ("COPY a c DB 2147483648", "-ERR value is out of range, value must between -2147483648 and 2147483647"),
        ("COPY a c DB", SYNTAX),
        ("COPY a c BD 1", SYNTAX),
        ("COPY a c DB 3 DB 0", ":1"),
    ]);
    harness.database = 3;
    play(&mut harness, &[("KEYS *", "*1 $1 a"), ("GET a", "$2 12"), ("PTTL a", ":5000")]);
}

#[test]
fn move_leaves_nothing_behind_and_replaces_nothing() {
    let mut harness = played(&[
        ("SET a 1 PX 5000", "+OK"),
        ("MOVE a 0", "-ERR source and destination objects are the same"),
        ("MOVE a x", NOT_AN_INTEGER),
        ("MOVE a 16", "-ERR DB index is out of range"),
        ("MOVE a -3000000000", "-ERR value is out of range, value must between -2147483648 and 2147483647"),
        ("MOVE nothing 1", ":0"),
        ("MOVE a 1", ":1"),
        ("EXISTS a", ":0"),
        ("SET a 2", "+OK"),
        ("MOVE a 1", ":0"),
        ("GET a", "$1 2"),
    ]);
    harness.database = 1;
    play(&mut harness, &[("GET a", "$1 1"), ("PTTL a", ":5000"), ("DBSIZE", ":1")]);
}

#[test]
fn every_form_of_expire_sets_the_same_clock() {
    // The harness starts at 1,700,000,000,000 ms.
    for (line, deadline) in [
        ("EXPIRE a 10", 1_700_000_010_000i64),
        ("PEXPIRE a 10", 1_700_000_000_010),
        ("EXPIREAT a 1700000010", 1_700_000_010_000),
        ("PEXPIREAT a 1700000000010", 1_700_000_000_010),
    ] {
        let mut harness = played(&[("SET a 1", "+OK"), (line, ":1")]);
        assert_eq!(harness.run("PEXPIRETIME a"), format!(":{deadline}\r\n"), "{line}");
        assert_eq!(harness.run("EXPIRETIME a"), format!(":{}\r\n", (deadline + 500) / 1000));
        assert_eq!(harness.run("PTTL a"), format!(":{}\r\n", deadline - harness.now));
    }
}

#[test]
fn an_expiry_that_is_not_in_the_future_removes_the_key() {
    for line in [
        "EXPIRE a 0",
        "EXPIRE a -1",
        "PEXPIRE a -9223372036854775808",
        "EXPIREAT a 1700000000",
        "PEXPIREAT a -9223372036854770000",
        "PEXPIREAT a 1",
    ] {
        played(&[("SET a 1", "+OK"), (line, ":1"), ("EXISTS a", ":0"), ("DBSIZE", ":0"), (line, ":0")]);
    }
}

#[test]
fn times_to_live_are_rounded_to_the_nearest_second() {
    let mut harness = played(&[("SET a 1", "+OK"), ("TTL a", ":-1"), ("PTTL a", ":-1"), ("EXPIRETIME a", ":-1")]);
    play(&mut harness, &[("PEXPIRETIME a", ":-1"), ("PEXPIRETIME b", ":-2"), ("PTTL b", ":-2")]);
    for (millis, seconds) in [(1, 0), (499, 0), (500, 1), (1_499, 1), (1_500, 2), (100_000, 100)] {
        harness.run(&format!("PEXPIRE a {millis}"));
        assert_eq!(harness.run("TTL a"), format!(":{seconds}\r\n"), "{millis}");
    }
    play(
        &mut harness,
        &[
            ("PEXPIREAT a 9223372036854775807", ":1"),
            ("PEXPIRETIME a", ":9223372036854775807"),
            ("EXPIRETIME a", ":9223372036854775"),
        ],
    );
}

#[test]
fn expiries_that_do_not_fit_are_refused_by_name() {
    let mut harness = played(&[("SET a 1", "+OK")]);
    for (line, name) in [
        ("EXPIRE a 9223370399119966", "expire"),
        ("EXPIRE a 9223372036854776", "expire"),
        ("EXPIRE a -9223372036854776", "expire"),
        ("EXPIRE a 9223372036854775807", "expire"),
        ("EXPIREAT a 9223372036854776", "expireat"),
        ("PEXPIRE a 9223372036854770000", "pexpire"),
    ] {
        assert_eq!(harness.run(line), format!("-ERR invalid expire time in '{name}' command\r\n"), "{line}");
    }
    play(
        &mut harness,
        &[
            ("TTL a", ":-1"),
            ("EXPIRE a \"\"", NOT_AN_INTEGER),
            ("EXPIRE a 1.5", NOT_AN_INTEGER),
            ("EXPIRE a 9223372036854775808", NOT_AN_INTEGER),
            ("PEXPIREAT a 9223372036854770000", ":1"),
        ],
    );
}

#[test]
fn expire_conditions_fill_a_table() {
    // For each condition, whether it lets a deadline of 200 s pass over none, an earlier and a later one.
    for (condition, [over_none, over_earlier, over_equal, over_later]) in [
        ("", [true, true, true, true]),
        ("NX", [true, false, false, false]),
        ("xx", [false, true, true, true]),
        ("gt", [false, true, false, false]),
        ("LT", [true, false, false, true]),
        ("XX GT", [false, true, false, false]),
        ("XX LT", [false, false, false, true]),
        ("NX NX", [true, false, false, false]),
    ] {
        for (before, passes) in [
            ("PERSIST a", over_none),
            ("EXPIRE a 100", over_earlier),
            ("EXPIRE a 200", over_equal),
            ("EXPIRE a 300", over_later),
        ] {
            let mut harness = played(&[("SET a 1", "+OK")]);
            harness.run(before);
            let ttl = harness.run("TTL a");
            let reply = harness.run(&format!("EXPIRE a 200 {condition}"));
            assert_eq!(reply, if passes { ":1\r\n" } else { ":0\r\n" }, "{condition} after {before}");
            assert_eq!(harness.run("TTL a"), if passes { ":200\r\n".to_owned() } else { ttl });
        }
    }
    played(&[
        ("EXPIRE a 1 AB", "-ERR Unsupported option AB"),
        ("EXPIRE a x AB", "-ERR Unsupported option AB"),
        ("EXPIRE a 1 NX XX", "-ERR NX and XX, GT or LT options at the same time are not compatible"),
        ("EXPIRE a 1 GT NX", "-ERR NX and XX, GT or LT options at the same time are not compatible"),
        ("EXPIRE a 1 GT LT", "-ERR GT and LT options at the same time are not compatible"),
        ("EXPIRE a 1 NX GT LT", "-ERR NX and XX, GT or LT options at the same time are not compatible"),
        ("EXPIRE nothing 1 NX", ":0"),
        // A negative time is earlier than never.
        ("SET a 1", "+OK"),
        ("EXPIRE a -1 LT", ":1"),
        ("EXISTS a", ":0"),
    ]);
}

#[test]
fn persist_undoes_an_expiry_once() {
    played(&[
        ("SET a 1 EX 50", "+OK"),
        ("PERSIST a", ":1"),
        ("PERSIST a", ":0"),
        ("TTL a", ":-1"),
        ("PERSIST nothing", ":0"),
    ]);
}

#[test]
fn keys_lists_what_fits() {
    let mut harness = Harness::new();
    for key in ["key_x", "key_y", "key_z", "foo_a", "foo_b", "foo_c", "\"\""] {
        harness.run(&format!("SET {key} hello"));
    }
    assert_eq!(listed(&harness.run("KEYS foo*")), ["foo_a", "foo_b", "foo_c"].map(str::to_owned).into());
    assert_eq!(listed(&harness.run("KEYS *")).len(), 7);
    assert_eq!(listed(&harness.run("KEYS **")).len(), 6, "but one star alone lets the empty key pass");
    assert_eq!(listed(&harness.run("KEYS ?[!-~]?_[^xb]")).len(), 4);
    assert_eq!(harness.run("KEYS nothing"), "*0\r\n");
    harness.database = 1;
    assert_eq!(harness.run("KEYS *"), "*0\r\n");
}

/// The elements of an array of strings.
fn listed(reply: &str) -> BTreeSet<String> {
    let elements: Vec<&str> = reply.split("\r\n").skip(1).collect();
    elements.chunks_exact(2).map(|pair| pair[1].to_owned()).collect()
}

/// Walks from cursor 0 until it returns; counts the steps.
fn walk(harness: &mut Harness, options: &str) -> (Vec<String>, usize) {
    let (mut cursor, mut keys, mut steps) = ("0".to_owned(), vec![], 0);
    loop {
        let reply = harness.run(&format!("SCAN {cursor} {options}"));
        let mut parts = reply.splitn(4, "\r\n").skip(2);
        cursor = parts.next().expect("a cursor").to_owned();
        keys.extend(listed(parts.next().expect("an array")));
        steps += 1;
        if cursor == "0" {
            return (keys, steps);
        }
    }
}

#[test]
fn scan_sees_every_key_once() {
    let mut harness = Harness::new();
    let all: BTreeSet<String> = (0..1000).map(|number| format!("key:{number}")).collect();
    for key in &all {
        harness.run(&format!("SET {key} 1"));
    }
    for (options, steps_min) in [("", 50), ("COUNT 5", 100), ("COUNT 1000000", 1), ("TYPE string", 50), ("MATCH *", 50)]
    {
        let (keys, steps) = walk(&mut harness, options);
        assert_eq!(keys.len(), 1000, "{options}");
        assert_eq!(keys.into_iter().collect::<BTreeSet<_>>(), all, "{options}");
        assert!(steps >= steps_min, "{options}: {steps}");
    }
    assert_eq!(walk(&mut harness, "MATCH key:1??").0.len(), 100);
    assert_eq!(walk(&mut harness, "TYPE list").0.len(), 0);
    assert_eq!(walk(&mut harness, "TYPE STRING MATCH key:* COUNT 10").0.len(), 1000);
}

#[test]
fn walks_end_with_the_last_element() {
    let mut harness = Harness::new();
    let long = "x".repeat(100);
    for number in 0..600 {
        harness.run(&format!("HSET h {number} {long}"));
        harness.run(&format!("SADD s {number}{long}"));
        harness.run(&format!("ZADD z {number} {number}{long}"));
        harness.run(&format!("SET k{number} 1"));
    }
    for (command, len) in [("HSCAN h", 1200), ("SSCAN s", 600), ("ZSCAN z", 1200)] {
        for count in [600, 601, 1_000_000] {
            let reply = harness.run(&format!("{command} 0 COUNT {count}"));
            assert!(reply.starts_with(&format!("*2\r\n$1\r\n0\r\n*{len}\r\n")), "{command} COUNT {count}");
        }
        let reply = harness.run(&format!("{command} 0 COUNT 599"));
        assert!(!reply.starts_with("*2\r\n$1\r\n0\r\n"), "{command}");
    }
    for count in [603, 604] {
        assert!(harness.run(&format!("SCAN 0 COUNT {count}")).starts_with("*2\r\n$1\r\n0\r\n*603\r\n"), "{count}");
    }
    assert!(!harness.run("SCAN 0 COUNT 602").starts_with("*2\r\n$1\r\n0\r\n"));
}

#[test]
fn scan_keeps_its_promise_while_keys_come_and_go() {
    let mut harness = Harness::new();
    for number in 0..500 {
        harness.run(&format!("SET stays:{number} 1"));
    }
    let (mut cursor, mut seen, mut step) = ("0".to_owned(), BTreeSet::new(), 0);
    loop {
        // Enough newcomers in one slot that its table is split while the walk is inside.
        for number in 0..100 {
            harness.run(&format!("SET {{tag}}:{step}:{number} 1"));
            harness.run(&format!("DEL {{tag}}:{}:{number}", step - 3));
        }
        let reply = harness.run(&format!("SCAN {cursor} COUNT 20"));
        let mut parts = reply.splitn(4, "\r\n").skip(2);
        cursor = parts.next().expect("a cursor").to_owned();
        seen.extend(listed(parts.next().expect("an array")));
        step += 1;
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen.iter().filter(|key| key.starts_with("stays:")).count(), 500);
}

#[test]
fn scan_refuses_in_redis_words() {
    played(&[
        ("SCAN", "-ERR wrong number of arguments for 'scan' command"),
        ("SCAN x", "-ERR invalid cursor"),
        ("SCAN \" 0\"", "-ERR invalid cursor"),
        ("SCAN 0x1", "-ERR invalid cursor"),
        ("SCAN -", "-ERR invalid cursor"),
        ("SCAN 18446744073709551616", "-ERR invalid cursor"),
        ("SCAN \"\"", "*2 $1 0 *0"),
        ("SCAN +0", "*2 $1 0 *0"),
        ("SCAN 18446744073709551615", "*2 $1 0 *0"),
        ("SCAN -1", "*2 $1 0 *0"),
        ("SCAN 0 COUNT 0", SYNTAX),
        ("SCAN 0 COUNT -1", SYNTAX),
        ("SCAN 0 COUNT x", NOT_AN_INTEGER),
        ("SCAN 0 COUNT", SYNTAX),
        ("SCAN 0 MATCH", SYNTAX),
        ("SCAN 0 FOO bar", SYNTAX),
        ("SCAN 0 COUNT 9223372036854775807", "*2 $1 0 *0"),
    ]);
}

#[test]
fn randomkey_names_a_key_that_is_there() {
    let mut harness = played(&[("RANDOMKEY", "$-1"), ("SET a 1", "+OK"), ("RANDOMKEY", "$1 a"), ("DEL a", ":1")]);
    play(&mut harness, &[("RANDOMKEY", "$-1")]);
    harness.protocol = Protocol::Resp3;
    play(&mut harness, &[("RANDOMKEY", "_")]);
}

#[test]
fn object_tells_what_redis_would() {
    let long = "x".repeat(45);
    let mut harness = Harness::new();
    harness.run(&format!("SET raw {long}"));
    play(
        &mut harness,
        &[
            ("SET int 12345", "+OK"),
            ("SET small 9999", "+OK"),
            ("SET text abc", "+OK"),
            ("OBJECT ENCODING int", "$3 int"),
            ("OBJECT ENCODING text", "$6 embstr"),
            ("OBJECT ENCODING raw", "$3 raw"),
            ("OBJECT ENCODING nothing", "$-1"),
            ("OBJECT REFCOUNT int", ":1"),
            ("OBJECT REFCOUNT small", ":2147483647"),
            ("OBJECT REFCOUNT text", ":1"),
            ("OBJECT REFCOUNT nothing", "$-1"),
            ("OBJECT FREQ nothing", "$-1"),
            (
                "OBJECT FREQ text",
                "-ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
                 switching between policies at runtime LRU and LFU data will take some time to adjust.",
            ),
        ],
    );
    harness.now += 7_000;
    play(&mut harness, &[("OBJECT IDLETIME text", ":7"), ("EXISTS text", ":1"), ("OBJECT IDLETIME text", ":7")]);
    play(&mut harness, &[("TOUCH text", ":1"), ("OBJECT IDLETIME text", ":0")]);

    harness.keyspace.set_tuning(Tuning { policy: Policy::AllkeysLfu, ..Tuning::default() });
    play(
        &mut harness,
        &[
            ("SET new 1", "+OK"),
            ("OBJECT FREQ new", ":5"),
            ("OBJECT REFCOUNT new", ":1"),
            (
                "OBJECT IDLETIME new",
                "-ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching \
                 between policies at runtime LRU and LFU data will take some time to adjust.",
            ),
        ],
    );
    assert!(harness.run("OBJECT HELP").starts_with("*15\r\n+OBJECT <subcommand> [<arg> [value] [opt] ...]. Sub"));
}

#[test]
fn dump_and_restore_are_each_others_inverse() {
    let mut harness = played(&[("SET a bar", "+OK"), ("DUMP nothing", "$-1")]);
    let dumped = harness.run_words(&[b"DUMP", b"a"]);
    assert_eq!(dumped, b"$15\r\n\x00\x03bar\x0A\x00\xE6\xBE\x49\x60\xEE\x66\xFD\x17\r\n");
    let bar = r#""\x00\x03bar\x0A\x00\xE6\xBE\x49\x60\xEE\x66\xFD\x17""#;
    let now = harness.now;
    let absolute = format!("RESTORE a {} {bar} ABSTTL REPLACE", now + 3_000);
    let past = format!("RESTORE a {} {bar} absttl replace", now - 3_000);
    play(
        &mut harness,
        &[
            (&format!("RESTORE a 0 {bar}"), "-BUSYKEY Target key name already exists."),
            (&format!("RESTORE a 0 {bar} REPLACE"), "+OK"),
            ("TTL a", ":-1"),
            ("DEL a", ":1"),
            (&format!("RESTORE a 2569591501 {bar}"), "+OK"),
            ("PTTL a", ":2569591501"),
            ("GET a", "$3 bar"),
            (&absolute, "+OK"),
            ("PTTL a", ":3000"),
            (&past, "+OK"),
            ("EXISTS a", ":0"),
            (&format!("RESTORE a 0 {bar} IDLETIME 1000"), "+OK"),
            ("OBJECT IDLETIME a", ":1000"),
            (&format!("RESTORE a 0 {bar} FREQ 100 REPLACE"), "+OK"),
            ("OBJECT IDLETIME a", ":0"),
            // Every refusal in its turn: options, the key, the time to live, the checksum, the value.
            ("RESTORE a -1 ... INVALID", SYNTAX),
            ("RESTORE a 0 ... IDLETIME", SYNTAX),
            ("RESTORE a 0 ... FREQ 1 IDLETIME 1", SYNTAX),
            ("RESTORE a 0 ... IDLETIME 1 FREQ 1", SYNTAX),
            ("RESTORE a 0 ... IDLETIME -1", "-ERR Invalid IDLETIME value, must be >= 0"),
            ("RESTORE a 0 ... FREQ 256", "-ERR Invalid FREQ value, must be >= 0 and <= 255"),
            ("RESTORE a 0 ... FREQ -1", "-ERR Invalid FREQ value, must be >= 0 and <= 255"),
            ("RESTORE a 0 ... FREQ x", NOT_AN_INTEGER),
            ("RESTORE a x ...", "-BUSYKEY Target key name already exists."),
            ("RESTORE b x ...", NOT_AN_INTEGER),
            ("RESTORE b -1 ...", "-ERR Invalid TTL value, must be >= 0"),
            ("RESTORE b 0 ...", "-ERR DUMP payload version or checksum are wrong"),
            ("EXISTS b", ":0"),
        ],
    );
    let huge = format!("RESTORE huge 9223372036854775807 {bar}");
    play(&mut harness, &[(&huge, "+OK"), ("PEXPIRETIME huge", ":9223372036854775807")]);
    harness.keyspace.set_tuning(Tuning { policy: Policy::VolatileLfu, ..Tuning::default() });
    let frequent = format!("RESTORE c 0 {bar} FREQ 100");
    play(&mut harness, &[(&frequent, "+OK"), ("OBJECT FREQ c", ":100")]);
}

#[test]
fn restore_refuses_what_is_well_sealed_but_no_value() {
    let mut harness = Harness::new();
    for value in [b"".as_slice(), b"\x00", b"\x00\x04bar", b"\x00\x03barb", b"\xFE\x03bar", b"\x00\xC3\x01\x05a"] {
        let mut sealed = [value, b"\x0A\x00"].concat();
        sealed.extend_from_slice(&crate::crc64::crc64(0, &sealed).to_le_bytes());
        let reply = harness.run_words(&[b"RESTORE", b"a", b"0", &sealed]);
        assert_eq!(reply, b"-ERR Bad data format\r\n", "{value:?}");
    }
}

#[test]
fn sort_knows_its_options_and_that_there_is_nothing_to_sort() {
    played(&[
        ("SORT nothing", "*0"),
        ("SORT nothing LIMIT 0 10 BY w_* GET # GET o_* ASC DESC ALPHA", "*0"),
        ("SORT_RO nothing LIMIT 0 10 BY w_* GET # GET o_* ASC DESC ALPHA", "*0"),
        ("SET text abc", "+OK"),
        ("SORT text", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("SORT_RO text", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ("SORT text FOO", SYNTAX),
        ("SORT nothing LIMIT 0", SYNTAX),
        ("SORT nothing LIMIT 0 x", NOT_AN_INTEGER),
        ("SORT nothing BY", SYNTAX),
        ("SORT nothing GET", SYNTAX),
        ("SORT nothing STORE", SYNTAX),
        ("SORT_RO nothing STORE text", SYNTAX),
        ("SORT nothing STORE text", ":0"),
        ("EXISTS text", ":0"),
        ("SORT nothing STORE text", ":0"),
    ]);
}

#[test]
fn sort_names_its_destination_among_its_keys() {
    for (line, expected) in [
        ("SORT abc", vec![1]),
        ("SORT abc STORE def", vec![1, 3]),
        ("SORT abc STORE stored STORE def", vec![1, 5]),
        ("SORT abc BY store STORE def", vec![1, 5]),
        ("SORT abc LIMIT store store ALPHA", vec![1]),
        ("SORT abc STORE", vec![1]),
        ("SORT_RO abc GET store", vec![1]),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let buffer = words.concat();
        let mut end = 0;
        let spans: Vec<resp::Span> = words
            .iter()
            .map(|word| {
                let start = end;
                end += word.len() as u32;
                resp::Span { start, end }
            })
            .collect();
        let args = resp::Args::new(buffer.as_bytes(), &spans);
        let mut keys = vec![];
        crate::resolve(args).expect("a command").for_each_key(args, |index, _| keys.push(index));
        assert_eq!(keys, expected, "{line}");
    }
}

#[test]
fn flushing_and_swapping_work_on_whole_databases() {
    let mut harness = played(&[
        ("SET a 0", "+OK"),
        ("COPY a a DB 1", ":1"),
        ("COPY a b DB 1", ":1"),
        ("DBSIZE", ":1"),
        ("SWAPDB 0 1", "+OK"),
        ("DBSIZE", ":2"),
        ("SWAPDB 0 0", "+OK"),
        ("SWAPDB 0 16", "-ERR DB index is out of range"),
        ("SWAPDB -1 0", "-ERR DB index is out of range"),
        ("SWAPDB x 0", "-ERR invalid first DB index"),
        ("SWAPDB 0 2147483648", "-ERR invalid second DB index"),
        ("FLUSHDB now", SYNTAX),
        ("FLUSHDB sync async", SYNTAX),
        ("FLUSHALL now", SYNTAX),
        ("FLUSHDB async", "+OK"),
        ("DBSIZE", ":0"),
        ("KEYS *", "*0"),
        ("SET c 1", "+OK"),
        ("DBSIZE", ":1"),
    ]);
    harness.database = 1;
    play(&mut harness, &[("DBSIZE", ":1"), ("FLUSHALL SYNC", "+OK"), ("DBSIZE", ":0")]);
    harness.database = 0;
    play(&mut harness, &[("DBSIZE", ":0"), ("GET c", "$-1")]);
}

#[test]
fn memory_usage_grows_with_the_value() {
    let mut harness = played(&[
        ("SET a 1", "+OK"),
        ("MEMORY USAGE nothing", "$-1"),
        ("MEMORY USAGE a SAMPLES", SYNTAX),
        ("MEMORY USAGE a SAMPLES -1", SYNTAX),
        ("MEMORY USAGE a SAMPLES x", NOT_AN_INTEGER),
        ("MEMORY USAGE a FOO 1", SYNTAX),
    ]);
    let usage = |harness: &mut Harness, line: &str| -> usize {
        harness.run(line).trim_start_matches(':').trim_end().parse().expect("a number")
    };
    let small = usage(&mut harness, "MEMORY USAGE a");
    harness.run(&format!("SET a {}", "x".repeat(40_000)));
    let large = usage(&mut harness, "MEMORY USAGE a SAMPLES 0 SAMPLES 5");
    assert!((16..200).contains(&small), "{small}");
    assert!((40_000..42_000).contains(&large), "{large}");
}
