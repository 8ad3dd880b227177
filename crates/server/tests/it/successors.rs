//! Servers newer than Redis 7.0 as sources, and on the way back: `HOLDFAST_REDIS_8` is the program of a Redis 8.6,
//! `HOLDFAST_VALKEY_9` that of a Valkey 9.1. Tests with servers that are not named are passed over.

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use resp::Frame;
use stdx::Prng;

use crate::harness::{Client, Folder, PATIENCE, Server, ServerOptions, Stock, both, say, succeed, text};
use crate::migrate::{Follower, migrate, request, wait_until_following};

const ACCOUNTS: u64 = 20;
const ACCOUNT_START: u64 = 100;

/// A server that is newer than Redis 7.0.
struct Newer {
    program: OsString,
    is_redis: bool,
}

impl Newer {
    fn named(variable: &str, is_redis: bool) -> Option<Self> {
        let program = std::env::var_os(variable);
        if program.is_none() {
            say(&format!("passed over: {variable} names no server"));
        }
        program.map(|program| Self { program, is_redis })
    }

    fn start(&self, folder: &Folder, words: &[&str]) -> Stock {
        let folder = folder.path().join("source");
        Stock::of(&self.program, &folder, words).expect("the program that is named")
    }

    /// Keys of every type in every form that it has.
    fn fill(&self, client: &mut Client) {
        for line in [
            "SET number 12345",
            "SET long-number 9223372036854775807",
            "SET fleeting value EX 5000",
            "SETBIT bits 100000 1",
            "PFADD sketch a b c",
            "RPUSH list a 1 -5 70000 1099511627776 text",
            "SADD integers 1 70000 1099511627776",
            "SADD words a b 3",
            "ZADD zset 1.5 a -2 b inf c 0.1 d 1e300 e 3.3333333333333335 f",
            "GEOADD places 13.361389 38.115556 Palermo 15.087269 37.502669 Catania",
            "HSET hash field value number 5",
            "HSET fields a 1 b 2 c 3",
            "HPEXPIREAT fields 4102444800000 FIELDS 2 a b",
            "XADD stream 1-1 f v",
            "XADD stream 2-1 f v2",
            "XADD stream 3-1 f v3 g w",
            "XGROUP CREATE stream group 0",
            "XGROUP CREATE stream other 2-1 ENTRIESREAD 2",
            "XREADGROUP GROUP group alice COUNT 2 STREAMS stream >",
            "XGROUP CREATECONSUMER stream group idle",
            "XACK stream group 1-1",
            "XDEL stream 2-1",
            "XGROUP CREATE empty group $ MKSTREAM",
            "SELECT 3",
            "SET other database",
            "SELECT 0",
        ] {
            let reply = client.show(line);
            assert!(!reply.starts_with("(error)"), "{line}: {reply}");
        }
        for nth in 0..1_500 {
            client.call(&["HSET", "large:fields", &format!("field {nth}"), &format!("value {nth}")]);
            client.call(&["RPUSH", "large:list", &format!("element {nth} {}", "y".repeat(nth % 90))]);
            client.call(&["SADD", "large:set", &format!("member {nth}")]);
            client.call(&["ZADD", "large:zset", &format!("{}", nth as f64 / 7.0), &format!("member {nth}")]);
            client.call(&["XADD", "large:stream", &format!("{}-{}", nth + 1, nth % 3), "n", &nth.to_string()]);
            if nth < 700 {
                let deadline = (4_102_444_800_000 + nth as u64 * 1_000).to_string();
                client.call(&["HPEXPIREAT", "large:fields", &deadline, "FIELDS", "1", &format!("field {nth}")]);
            }
        }
        client.call(&["SET", "repeats", &"abc".repeat(5_000)]);
        let library =
            "#!lua name=lib\nredis.register_function{function_name='answer', callback=function() return 42 end}";
        assert!(!client.call(&["FUNCTION", "LOAD", library]).is_error());
        let own: &[&str] = if self.is_redis {
            &[
                "XADD produced IDMP p1 i1 * a 1",
                "XADD produced IDMP p1 i2 * a 2",
                "XADD produced IDMP p1 i1 * a 1",
                "XADD produced IDMPAUTO p2 * a 3 b 4",
                "VADD vectors VALUES 4 1 2 3 4 e1",
                "VADD vectors VALUES 4 1 -2 0.5 4 e2 SETATTR {\"year\":1980}",
                "VADD plain VALUES 3 1 2 3 e1 NOQUANT",
                "VADD binary VALUES 8 1 -2 3 4 5 -6 7 8 e1 BIN",
            ]
        } else {
            &["HSETEX fields PXAT 4102444900000 FIELDS 1 d 4"]
        };
        own.iter().for_each(|line| _ = client.show(line));
        for number in 0..ACCOUNTS {
            client.call(&["SET", &format!("account:{number}"), &ACCOUNT_START.to_string()]);
        }
    }

    /// A change of any type, some of them by commands that Redis 7.0 does not have.
    fn change(&self, client: &mut Client, prng: &mut Prng) -> Option<()> {
        let (key, n) = (format!("k{}", prng.below(100)), prng.below(1_000));
        let (field, entry) = (n % 30, n % 20);
        let line = match prng.below(24) {
            0 => {
                client.try_call(&["MULTI"])?;
                client.try_call(&["DECR", &format!("account:{}", prng.below(ACCOUNTS))])?;
                client.try_call(&["INCR", &format!("account:{}", prng.below(ACCOUNTS))])?;
                "EXEC".to_owned()
            }
            1 => format!("HSETEX h{key} EX 100 FIELDS 1 f{field} {n}"),
            2 => format!("HPEXPIRE h{key} {} FIELDS 1 f{field}", 200 + n),
            3 => format!("HGETEX h{key} PX 600 FIELDS 1 f{field}"),
            4 => format!("HINCRBYFLOAT h{key} sum 0.3"),
            5 => format!("ZADD z{key} {} m{}", n as f64 / 7.0, n % 50),
            6 => format!("XGROUP CREATE x{key} g 0 MKSTREAM"),
            7 => format!("XREADGROUP GROUP g c COUNT 3 STREAMS x{key} >"),
            8 => format!("XAUTOCLAIM x{key} g d 0 0 COUNT 2"),
            9 => format!("MSETEX 2 s{key} 1 t{key} 2 EX 50"),
            10 if self.is_redis => format!("XADD xi{key} IDMP p1 i{entry} * a {n}"),
            11 if self.is_redis => format!("XADD xi{key} IDMPAUTO p2 MAXLEN ~ 10 * a {entry}"),
            12 if self.is_redis => format!("VADD v{key} VALUES 3 {n} 1 2 e{}", n % 9),
            13 if self.is_redis => format!("VREM v{key} e{}", n % 9),
            14 if self.is_redis => format!("SET s{key} {n} IFNE 3"),
            15 if self.is_redis => format!("DELEX a{key} IFEQ x"),
            10..=12 if !self.is_redis => format!("SET s{key} {n} IFEQ 3"),
            13..=15 if !self.is_redis => format!("DELIFEQ a{key} x"),
            _ => return client.try_call(&request(prng, &key)).map(|_| ()),
        };
        client.try_call(&line.split(' ').collect::<Vec<_>>()).map(|_| ())
    }
}

fn sum(client: &mut Client) -> Option<u64> {
    let mut words = vec!["MGET".to_owned()];
    words.extend((0..ACCOUNTS).map(|number| format!("account:{number}")));
    let reply = client.try_call(&words)?;
    let values = reply.elements()?.iter().map(|value| std::str::from_utf8(value.as_bytes()?).ok()?.parse::<i64>().ok());
    u64::try_from(values.sum::<Option<i64>>()?).ok()
}

#[track_caller]
fn verify(stock: &Stock, server: &Server) -> String {
    let (from, place) = (format!("redis://127.0.0.1:{}", stock.port()), format!("127.0.0.1:{}", server.port()));
    let verified = migrate(&["verify", "--from", &from, "--server", &place]);
    assert!(verified.status.success(), "{}", both(&verified));
    both(&verified).lines().next().unwrap_or_default().to_owned()
}

/// Files of every kind that it writes, in each of several configurations.
fn files_come_in(newer: &Newer) {
    for words in [
        &["--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lfu"][..],
        &["--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru", "--rdbcompression", "no", "--rdbchecksum", "no"],
        &["--hash-max-listpack-entries", "2", "--zset-max-listpack-entries", "1", "--list-max-listpack-size", "2"],
        &["--appendonly", "yes", "--aof-use-rdb-preamble", "no"],
    ] {
        let folder = Folder::new();
        let stock = newer.start(&folder, words);
        let mut theirs = stock.client();
        newer.fill(&mut theirs);
        let mut prng = Prng::new(4);
        for _ in 0..500 {
            newer.change(&mut theirs, &mut prng).expect("a reply");
        }
        // What has a deadline in a moment would not be the same when it is compared.
        thread::sleep(Duration::from_secs(2));
        assert_eq!(theirs.show("SAVE"), "OK");
        let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
        let path = folder.path().join("source");
        let told = succeed(&["import", text(&path), "--server", &format!("127.0.0.1:{}", server.port()), "--quiet"]);
        assert!(!told.contains("left out"), "{told}");
        say(&format!("{words:?}: {}", verify(&stock, &server)));
        let mut ours = server.client();
        assert_eq!(ours.show("FCALL answer 0"), "(integer) 42");
        let mut alike = vec!["OBJECT ENCODING integers", "XPENDING stream group", "HPEXPIRETIME fields FIELDS 3 a b c"];
        if newer.is_redis {
            alike.extend(["VCARD vectors", "VGETATTR vectors e2", "VSIM binary ELE e1", "VDIM plain"]);
        }
        for line in alike {
            assert_eq!(ours.show(line), theirs.show(line), "{line}");
        }
        if !newer.is_redis {
            let back = folder.path().join("back");
            std::fs::create_dir_all(&back).expect("a folder");
            let (file, place) = (back.join("dump.rdb"), format!("127.0.0.1:{}", server.port()));
            succeed(&["export", text(&file), "--server", &place, "--rdb-version", "80", "--quiet"]);
            let other = Stock::of(&newer.program, &back, &[]).expect("the program that is named");
            verify(&other, &server);
        }
        server.stop();
    }
}

/// It is written to, followed through cuts and kills, and cut over; then it follows, and takes over again.
fn comes_in_and_goes_back(newer: &Newer) {
    let folder = Folder::new();
    let stock = newer.start(&folder, &["--repl-backlog-size", "64mb"]);
    newer.fill(&mut stock.client());
    let from = format!("redis://127.0.0.1:{}", stock.port());
    let options = ServerOptions::new(&folder.path().join("data")).extra(&["--cores", "2"]);
    let mut server = Server::start(&options);
    let place = format!("127.0.0.1:{}", server.port());
    let both_sides = ["--from", &from, "--server", &place];
    let checked = both(&migrate(&[&["check"][..], &both_sides].concat()));
    assert!(!checked.contains("modules") && checked.contains("knows every command"), "{checked}");

    let mut follower = Follower::start(&from, &place, &folder, &[]);
    let (is_over, port) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(stock.port().into())));
    let writers: Vec<_> = (0..3)
        .map(|nth| {
            let (program, is_redis) = (newer.program.clone(), newer.is_redis);
            let (is_over, port) = (Arc::clone(&is_over), Arc::clone(&port));
            thread::spawn(move || {
                let newer = Newer { program, is_redis };
                let mut prng = Prng::new(nth + 1);
                let (mut client, mut count, mut at) = (None, 0_u64, 0);
                while !is_over.load(Ordering::Relaxed) {
                    let now = port.load(Ordering::Relaxed);
                    if now != at {
                        (client, at) = (Client::try_connect(now as u16), now);
                    }
                    match client.as_mut().and_then(|client| newer.change(client, &mut prng)) {
                        Some(()) => count += 1,
                        None => at = 0,
                    }
                    thread::sleep(Duration::from_micros(500));
                }
                count
            })
        })
        .collect();
    wait_until_following(&place, &folder);
    let mut sums = 0;
    for round in 0..4 {
        if round == 1 {
            server.kill();
            server = Server::start(&options);
        } else {
            stock.client().call(&["CLIENT", "KILL", "TYPE", "replica"]);
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(800) {
            if let Some(sum) = Client::try_connect(server.port()).and_then(|mut client| sum(&mut client)) {
                assert_eq!(sum, ACCOUNTS * ACCOUNT_START, "a transaction was torn");
                sums += 1;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
    wait_until_following(&place, &folder);
    let cut_over = migrate(&[&["cutover"][..], &both_sides].concat());
    let log = || std::fs::read_to_string(folder.path().join("migrate.log")).unwrap_or_default();
    assert!(cut_over.status.success(), "{}\n{}", both(&cut_over), log());
    assert!(follower.wait(), "it ends in good order");
    let verified = verify(&stock, &server);
    say(&format!("{sums} sums; {}; {verified}", both(&cut_over).lines().next().unwrap_or_default()));

    // The way back. Vector sets are not told to a Redis.
    port.store(server.port().into(), Ordering::Relaxed);
    let prepared = migrate(&[&["back", "--prepare"][..], &both_sides].concat());
    assert!(prepared.status.success(), "{}", both(&prepared));
    let expected = if newer.is_redis { "replica-rdb-version is 12" } else { "replica-rdb-version is 80" };
    assert!(both(&prepared).contains(expected), "{}", both(&prepared));
    thread::sleep(Duration::from_secs(2));
    is_over.store(true, Ordering::Relaxed);
    let count: u64 = writers.into_iter().map(|writer| writer.join().expect("a writer")).sum();
    let mut ours = server.client();
    let reply = ours.call(&["KEYS", "*"]);
    for key in reply.elements().expect("keys").iter().filter_map(Frame::as_bytes) {
        if ours.call(&[&b"TYPE"[..], key]).to_string().contains("vectorset") {
            ours.call(&[&b"DEL"[..], key]);
        }
    }
    let begun = Instant::now();
    let back = loop {
        let back = migrate(&[&["back"][..], &both_sides].concat());
        if back.status.success() || begun.elapsed() > PATIENCE {
            break back;
        }
    };
    assert!(back.status.success(), "{}", both(&back));
    let verified = verify(&stock, &server);
    say(&format!("{count} changes; {}; {verified}", both(&back).lines().next().unwrap_or_default()));
    let mut theirs = stock.client();
    assert_eq!(theirs.show("SET late 1"), "OK");
    let deadlines = "HPEXPIRETIME fields FIELDS 3 a b c";
    assert_eq!(theirs.show(deadlines), ours.show(deadlines));
    drop((ours, theirs));
    server.stop();
}

#[test]
fn files_of_a_redis_8_come_in() {
    if let Some(newer) = Newer::named("HOLDFAST_REDIS_8", true) {
        files_come_in(&newer);
    }
}

#[test]
fn files_of_a_valkey_9_come_in() {
    if let Some(newer) = Newer::named("HOLDFAST_VALKEY_9", false) {
        files_come_in(&newer);
    }
}

#[test]
fn a_redis_8_comes_in_and_goes_back() {
    if let Some(newer) = Newer::named("HOLDFAST_REDIS_8", true) {
        comes_in_and_goes_back(&newer);
    }
}

#[test]
fn a_valkey_9_comes_in_and_goes_back() {
    if let Some(newer) = Newer::named("HOLDFAST_VALKEY_9", false) {
        comes_in_and_goes_back(&newer);
    }
}
