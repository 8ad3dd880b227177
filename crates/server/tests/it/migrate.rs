//! `holdfast migrate`: a stock Redis that is written to is followed through cuts and kills, and cut over, without a
//! key that differs.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use resp::{Frame, FrameDecoder};
use stdx::Prng;

use crate::harness::{
    Client, DiskFaults, Folder, PATIENCE, Server, ServerOptions, Stock, binary, both, free_port, say, wait_for,
};

const ACCOUNTS: u64 = 20;
const ACCOUNT_START: i64 = 100;

/// The process that follows, killed when dropped.
pub(crate) struct Follower {
    child: Child,
}

impl Follower {
    pub(crate) fn start(from: &str, server: &str, folder: &Folder, more: &[&str]) -> Self {
        Self::start_in(from, server, folder, more, &[])
    }

    /// The same with these variables of its environment.
    fn start_in(from: &str, server: &str, folder: &Folder, more: &[&str], environment: &[(String, String)]) -> Self {
        let log = File::options().create(true).append(true).open(folder.path().join("migrate.log")).expect("a log");
        let child = Command::new(binary())
            .args(["migrate", "start", "--from", from, "--server", server, "--spool-dir"])
            .arg(folder.path())
            .args(more)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the log twice"))
            .stderr(log)
            .spawn()
            .expect("the binary runs");
        Self { child }
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until it ends by itself.
    pub(crate) fn wait(&mut self) -> bool {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child to wait for") {
                return status.success();
            }
            assert!(begun.elapsed() < PATIENCE, "it still follows");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) fn migrate(words: &[&str]) -> Output {
    Command::new(binary()).arg("migrate").args(words).output().expect("the binary runs")
}

/// Waits until the stream is followed.
#[track_caller]
pub(crate) fn wait_until_following(server: &str, folder: &Folder) {
    let begun = Instant::now();
    loop {
        let output = migrate(&["status", "--server", server]);
        if output.status.success() && both(&output).contains("the stream is followed") {
            return;
        }
        let log = std::fs::read_to_string(folder.path().join("migrate.log")).unwrap_or_default();
        assert!(begun.elapsed() < PATIENCE, "{}\n{log}", both(&output));
        thread::sleep(Duration::from_millis(100));
    }
}

/// One change of the source: of any type, in a transaction now and then, with deadlines that are moved in time.
fn change(client: &mut Client, prng: &mut Prng) -> Option<()> {
    let key = format!("k{}", prng.below(200));
    let words = match prng.below(16) {
        0 => return transfer(client, prng),
        1 => return prolong(client, &key),
        _ => request(prng, &key),
    };
    client.try_call(&words).map(|_| ())
}

/// A request of any type, about keys with names that end with `key`.
pub(crate) fn request(prng: &mut Prng, key: &str) -> Vec<String> {
    let number = prng.below(1_000).to_string();
    match prng.below(14) {
        0 => format!("SET s{key} {number} PX {}", 1 + prng.below(400)),
        1 => format!("RPUSH l{key} {number} {number}"),
        2 => format!("LPOP l{key}"),
        3 => format!("SADD set{key} {number} a{number}"),
        4 => format!("SPOP set{key}"),
        5 => format!("HSET h{key} f{number} {number}"),
        6 => format!("ZADD z{key} {number} m{number}"),
        7 => format!("XADD x{key} MAXLEN 20 * f {number}"),
        8 => format!("INCRBYFLOAT n{key} 0.5"),
        9 => format!("RENAME s{key} t{key}"),
        10 => format!("GETEX s{key} PX 300"),
        11 => format!("EVAL return{{redis.call('incr',KEYS[1]),redis.call('append',KEYS[2],'x')}} 2 i{key} a{key}"),
        12 => format!("DEL l{key} t{key}"),
        _ => format!("APPEND a{key} {number}"),
    }
    .split(' ')
    .map(str::to_owned)
    .collect()
}

/// From one account to another: the sum of all never changes.
fn transfer(client: &mut Client, prng: &mut Prng) -> Option<()> {
    let (from, to) = (prng.below(ACCOUNTS), prng.below(ACCOUNTS));
    client.try_call(&["MULTI"])?;
    client.try_call(&["DECR", &format!("account:{from}")])?;
    client.try_call(&["INCR", &format!("account:{to}")])?;
    client.try_call(&["EXEC"]).map(|_| ())
}

/// A key that would expire gets a later deadline, or none, just in time.
fn prolong(client: &mut Client, key: &str) -> Option<()> {
    let key = format!("p{key}");
    client.try_call(&["SET", &key, "1", "PX", "30"])?;
    client.try_call(&["INCR", &key])?;
    client.try_call(&["PERSIST", &key]).map(|_| ())
}

fn sum(client: &mut Client) -> Option<i64> {
    let mut words = vec!["MGET".to_owned()];
    words.extend((0..ACCOUNTS).map(|number| format!("account:{number}")));
    let reply = client.try_call(&words)?;
    let values = reply.elements()?.iter().map(|value| std::str::from_utf8(value.as_bytes()?).ok()?.parse::<i64>().ok());
    values.sum()
}

#[test]
fn a_redis_that_is_written_to_is_followed_through_cuts_and_kills_and_cut_over() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("redis"), &["--repl-backlog-size", "64mb"]) else { return };
    let mut theirs = stock.client();
    for number in 0..ACCOUNTS {
        theirs.call(&["SET", &format!("account:{number}"), &ACCOUNT_START.to_string()]);
    }
    for number in 0..2_000 {
        theirs.call(&["SET", &format!("old:{number}"), &"v".repeat(number % 300)]);
    }
    theirs.call(&["FUNCTION", "LOAD", "#!lua name=l\nredis.register_function('f', function(k) return 1 end)"]);
    theirs.call(&["SELECT", "3"]);
    theirs.call(&["SET", "elsewhere", "1"]);
    let from = format!("redis://127.0.0.1:{}", stock.port());

    let options = ServerOptions::new(&folder.path().join("data")).extra(&["--cores", "2"]);
    let mut server = Server::start(&options);
    let place = format!("127.0.0.1:{}", server.port());
    let checked = migrate(&["check", "--from", &from, "--server", &place]);
    assert!(checked.status.success(), "{}", both(&checked));
    let mut follower = Follower::start(&from, &place, &folder, &[]);

    let is_over = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..3)
        .map(|nth| {
            let (mut client, is_over) = (stock.client(), Arc::clone(&is_over));
            thread::spawn(move || {
                let mut prng = Prng::new(nth + 1);
                let mut count = 0;
                while !is_over.load(Ordering::Relaxed) && change(&mut client, &mut prng).is_some() {
                    count += 1;
                    thread::sleep(Duration::from_micros(200));
                }
                count
            })
        })
        .collect();
    wait_until_following(&place, &folder);

    // No transaction of the source is ever seen torn, whatever happens to the link and to the processes.
    let mut prng = Prng::new(5);
    let mut sums = 0;
    for round in 0..6 {
        match round {
            0 | 3 => {
                server.kill();
                server = Server::start(&options);
            }
            1 => {
                follower.kill();
                // Another process is taken for alive for five seconds.
                thread::sleep(Duration::from_secs(6));
                follower = Follower::start(&from, &place, &folder, &[]);
            }
            _ => _ = stock.client().call(&["CLIENT", "KILL", "TYPE", "replica"]),
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(700 + prng.below(300)) {
            if let Some(sum) = Client::try_connect(server.port()).and_then(|mut client| sum(&mut client)) {
                assert_eq!(sum, ACCOUNTS as i64 * ACCOUNT_START, "a transaction was torn");
                sums += 1;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
    wait_until_following(&place, &folder);

    let cut_over = migrate(&["cutover", "--from", &from, "--server", &place]);
    assert!(cut_over.status.success(), "{}", both(&cut_over));
    is_over.store(true, Ordering::Relaxed);
    let count: u64 = writers.into_iter().map(|writer| writer.join().expect("a writer")).sum();
    assert!(follower.wait(), "it ends in good order");
    let refused = theirs.call(&["SET", "late", "1"]);
    assert!(refused.to_string().contains("NOREPLICAS"), "{refused}");
    let verified = migrate(&["verify", "--from", &from, "--server", &place]);
    assert!(verified.status.success(), "{}", both(&verified));
    let mut ours = server.client();
    assert_eq!(ours.show("FCALL f 0"), "(integer) 1");
    assert_eq!(ours.show("CONFIG GET import-mode"), "[\"import-mode\", \"no\"]");
    assert_eq!(ours.show("SET late 1"), "OK");
    assert!(!migrate(&["status", "--server", &place]).status.success(), "nothing is under way");
    say(&format!("{count} changes, {sums} sums: {}", both(&verified).lines().next().unwrap_or_default()));
    server.stop();
}

#[test]
fn what_a_source_cannot_continue_is_not_copied_again_unasked() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("redis"), &[]) else { return };
    stock.client().call(&["SET", "a", "1"]);
    let from = format!("redis://127.0.0.1:{}", stock.port());
    let options = ServerOptions::new(&folder.path().join("data"));
    let server = Server::start(&options);
    let place = format!("127.0.0.1:{}", server.port());

    // A target that holds something else is left alone.
    server.client().call(&["SET", "ours", "1"]);
    assert!(!Follower::start(&from, &place, &folder, &[]).wait());
    assert_eq!(server.client().call(&["GET", "ours"]), Frame::Bulk(b"1".to_vec()));
    server.client().call(&["DEL", "ours"]);

    let mut follower = Follower::start(&from, &place, &folder, &[]);
    wait_until_following(&place, &folder);
    // A second process is refused while the first one is there.
    assert!(!Follower::start(&from, &place, &folder, &[]).wait());
    follower.kill();
    // The source has another history now: that it is empty must not empty the target.
    stock.client().call(&["FLUSHALL"]);
    stock.client().call(&["DEBUG", "CHANGE-REPL-ID"]);
    stock.client().call(&["SET", "b", "2"]);
    thread::sleep(Duration::from_secs(6));
    assert!(!Follower::start(&from, &place, &folder, &[]).wait());
    assert_eq!(server.client().call(&["GET", "a"]), Frame::Bulk(b"1".to_vec()));
    let log = std::fs::read_to_string(folder.path().join("migrate.log")).expect("the log");
    assert!(log.contains("--resync"), "{log}");

    let mut follower = Follower::start(&from, &place, &folder, &["--resync"]);
    let begun = Instant::now();
    while server.client().show("MGET a b") != "[(nil), \"2\"]" {
        assert!(begun.elapsed() < PATIENCE, "it is not copied again");
        thread::sleep(Duration::from_millis(20));
    }
    wait_until_following(&place, &folder);

    // What cannot be carried out stops it, and says what and where.
    let mut theirs = stock.client();
    server.client().call(&["SET", "b", "x"]);
    theirs.call(&["INCR", "b"]);
    assert!(!follower.wait(), "the target cannot follow");
    let status = both(&migrate(&["status", "--server", &place]));
    assert!(status.contains("INCR b") && status.contains("failed"), "{status}");
    let stopped = migrate(&["stop", "--server", &place]);
    assert!(stopped.status.success(), "{}", both(&stopped));
    server.stop();
}

#[test]
fn only_the_keys_that_are_asked_for_are_taken_and_what_is_not_exact_stops() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("redis"), &[]) else { return };
    let mut theirs = stock.client();
    for line in ["MSET user:1 a user:2 b user:tmp:1 c other 1", "SELECT 3", "SET user:3 c", "SELECT 0"] {
        theirs.show(line);
    }
    let from = format!("redis://127.0.0.1:{}", stock.port());
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    let place = format!("127.0.0.1:{}", server.port());
    let filter = ["--match", "user:*", "--except", "user:tmp:*", "--database", "0"];
    let mut follower = Follower::start(&from, &place, &folder, &filter);
    wait_until_following(&place, &folder);
    for line in [
        "MSET user:4 d other 2 user:tmp:2 e",
        "DEL other user:2",
        "RENAME user:1 hidden",
        "SELECT 3",
        "SET user:5 x",
        "FLUSHDB",
        "SELECT 0",
        "SET user:last 1",
    ] {
        theirs.show(line);
    }
    let mut ours = server.client();
    let begun = Instant::now();
    while ours.show("GET user:last") != "\"1\"" {
        assert!(begun.elapsed() < PATIENCE, "it is not followed");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(ours.show("MGET user:1 user:2 user:4 other"), "[(nil), (nil), \"d\", (nil)]");
    assert_eq!(ours.show("DBSIZE"), "(integer) 3", "two keys and the record");
    let both_sides = ["--from", &from, "--server", &place];
    // The record remembers which keys are taken.
    let verified = both(&migrate(&[&["verify"][..], &both_sides].concat()));
    assert!(verified.contains("2 keys are the same") && verified.contains("0 differ"), "{verified}");
    follower.kill();
    thread::sleep(Duration::from_secs(6));
    assert!(!Follower::start(&from, &place, &folder, &["--match", "*"]).wait(), "with another filter");
    let mut follower = Follower::start(&from, &place, &folder, &[]);
    theirs.show("RENAME hidden user:1");
    assert!(!follower.wait(), "what is renamed is not here");
    let log = std::fs::read_to_string(folder.path().join("migrate.log")).expect("the log");
    assert!(log.contains("another filter") && log.contains("RENAME hidden is about keys"), "{log}");
    let mut follower = Follower::start(&from, &place, &folder, &["--resync"]);
    let begun = Instant::now();
    while ours.show("GET user:1") != "\"a\"" {
        assert!(begun.elapsed() < PATIENCE, "it is not copied again");
        thread::sleep(Duration::from_millis(20));
    }
    wait_until_following(&place, &folder);
    let cut_over = migrate(&[&["cutover"][..], &both_sides].concat());
    assert!(cut_over.status.success() && both(&cut_over).contains("not compared"), "{}", both(&cut_over));
    assert!(follower.wait(), "it ends in good order");
    let verified = migrate(&[&["verify"][..], &both_sides, &filter].concat());
    assert!(verified.status.success(), "{}", both(&verified));
    drop(ours);
    server.stop();
}

/// A Valkey 9.1 that is played, so that none is needed: one hash with a deadline, and one request behind the copy.
struct Played {
    port: u16,
    /// What it was told, a line for each request.
    told: Arc<Mutex<Vec<String>>>,
    /// The copy is made.
    is_copied: Arc<AtomicBool>,
}

impl Played {
    /// It makes its copy until it is told to be done with that.
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (told, is_copied) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (heard, copied) = (Arc::clone(&told), Arc::clone(&is_copied));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (heard, copied) = (Arc::clone(&heard), Arc::clone(&copied));
                thread::spawn(move || Self::answer(stream, &heard, &copied));
            }
        });
        Self { port, told, is_copied }
    }

    fn has_heard(&self, line: &str) -> bool {
        self.told.lock().expect("a list").iter().any(|told| told == line)
    }

    fn answer(mut stream: TcpStream, heard: &Mutex<Vec<String>>, is_copied: &AtomicBool) -> Option<()> {
        let (mut decoder, mut buffer) = (FrameDecoder::new(), [0; 4096]);
        loop {
            let count = stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
            decoder.extend(&buffer[..count]);
            while let Some(frame) = decoder.next_frame().ok()? {
                let words = frame.elements()?.iter();
                let words: Vec<_> =
                    words.map(|word| String::from_utf8_lossy(word.as_bytes().unwrap_or_default())).collect();
                let line = words.join(" ");
                heard.lock().ok()?.push(line.clone());
                let info = "valkey_version:9.1.0\r\nredis_version:7.2.4\r\ncluster_enabled:0\r\nrole:master\r\n";
                match &*words[0] {
                    "INFO" => stream.write_all(format!("${}\r\n{info}\r\n", info.len()).as_bytes()).ok()?,
                    "PSYNC" => {
                        stream.write_all(format!("+FULLRESYNC {} 7\r\n", "a".repeat(40)).as_bytes()).ok()?;
                        while !is_copied.load(Ordering::Relaxed) {
                            stream.write_all(b"\n").ok()?;
                            thread::sleep(Duration::from_millis(100));
                        }
                        let copy = Self::copy();
                        stream.write_all(format!("${}\r\n", copy.len()).as_bytes()).ok()?;
                        stream.write_all(&[&copy[..], b"*3\r\n$3\r\nSET\r\n$1\r\ns\r\n$1\r\n1\r\n"].concat()).ok()?;
                    }
                    "REPLCONF" if words.get(1).is_some_and(|word| word == "ACK") => {}
                    _ => stream.write_all(b"+OK\r\n").ok()?,
                }
            }
        }
    }

    /// An RDB file as Valkey 9 writes it, without a checksum.
    fn copy() -> Vec<u8> {
        let deadline = 4_000_000_000_000_i64.to_le_bytes();
        [
            &b"VALKEY080\xfa\x0avalkey-ver\x059.1.0\xfe\x00\x16\x01h\x02\x01a\x01v"[..],
            &deadline,
            b"\x01b\x01w",
            &(-1_i64).to_le_bytes(),
            b"\xff\0\0\0\0\0\0\0\0",
        ]
        .concat()
    }
}

#[test]
fn a_valkey_is_told_what_we_read_and_a_second_process_is_refused_while_the_copy_is_made() {
    let folder = Folder::new();
    let source = Played::start();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    let (from, place) = (format!("redis://127.0.0.1:{}", source.port), format!("127.0.0.1:{}", server.port()));
    let mut follower = Follower::start(&from, &place, &folder, &[]);
    wait_for("the source is asked", || source.has_heard("PSYNC ? -1"));
    assert!(source.has_heard("REPLCONF version 9.1.0"));
    let mut ours = server.client();
    let written = |ours: &mut Client| ours.show("HGET {holdfast}:migration written-ms");
    let before = written(&mut ours);
    let spool = folder.path().to_str().expect("a path").to_owned();
    let second = migrate(&["start", "--from", &from, "--server", &place, "--spool-dir", &spool]);
    assert!(!second.status.success() && both(&second).contains("another process copies"), "{}", both(&second));
    // While the copy is made it is seen that somebody waits for it.
    wait_for("a sign of life", || written(&mut ours) != before);
    source.is_copied.store(true, Ordering::Relaxed);
    wait_until_following(&place, &folder);
    wait_for("the stream is followed", || ours.show("GET s") == "\"1\"");
    let deadlines = ours.show("HPEXPIRETIME h FIELDS 2 a b");
    assert_eq!(deadlines, "[(integer) 4000000000000, (integer) -1]");
    follower.kill();
    drop(ours);
    server.stop();
}

#[test]
fn who_is_told_to_end_ends_while_the_target_is_away() {
    let folder = Folder::new();
    let place = format!("127.0.0.1:{}", free_port());
    let mut follower = Follower::start("redis://127.0.0.1:1", &place, &folder, &[]);
    // It answers signals from the moment on in which it has asked for the first time.
    let begun = Instant::now();
    let log = || std::fs::read_to_string(folder.path().join("migrate.log")).unwrap_or_default();
    while !log().contains("is asked again") {
        assert!(begun.elapsed() < PATIENCE, "it does not insist");
        thread::sleep(Duration::from_millis(50));
    }
    let pid = follower.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs").success());
    assert!(!follower.wait(), "it has done nothing");
    assert!(log().contains("no server answers"), "{}", log());
}

/// A way to a server that can become deaf: from a request with this word on, replies stay away.
struct DeafLine {
    port: u16,
    word: Arc<Mutex<Option<&'static [u8]>>>,
}

impl DeafLine {
    fn to(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let line = Self { port: listener.local_addr().expect("bound").port(), word: Arc::default() };
        let word = Arc::clone(&line.word);
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let is_deaf = Arc::new(AtomicBool::new(false));
                let (mut from, mut to) = (near.try_clone().expect("a socket"), far.try_clone().expect("a socket"));
                let (word, heard) = (Arc::clone(&word), Arc::clone(&is_deaf));
                thread::spawn(move || {
                    pass(&mut from, &mut to, |bytes| {
                        let mut word = word.lock().expect("no test panics with it");
                        if word.is_some_and(|word| bytes.windows(word.len()).any(|some| some == word)) {
                            *word = None;
                            heard.store(true, Ordering::SeqCst);
                        }
                        true
                    });
                });
                let (mut from, mut to) = (far, near);
                thread::spawn(move || pass(&mut from, &mut to, |_| !is_deaf.load(Ordering::SeqCst)));
            }
        });
        line
    }

    /// The reply to the next request with this word is lost.
    fn lose_reply_to(&self, word: &'static [u8]) {
        *self.word.lock().expect("no test panics with it") = Some(word);
    }

    fn has_lost(&self) -> bool {
        self.word.lock().expect("no test panics with it").is_none()
    }
}

/// Passes bytes on, as long as that is wanted.
fn pass(from: &mut TcpStream, to: &mut TcpStream, mut is_wanted: impl FnMut(&[u8]) -> bool) {
    let mut buffer = [0; 4_096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if !is_wanted(&buffer[..count]) || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Both);
}

#[test]
fn what_was_refused_is_not_forgotten_with_the_reply() {
    let folder = Folder::new();
    let words = ["--repl-ping-replica-period", "3600", "--repl-backlog-size", "1mb"];
    let Some(stock) = Stock::start(&folder.path().join("redis"), &words) else { return };
    let mut theirs = stock.client();
    theirs.call(&["SET", "b", "1"]);
    let from = format!("redis://127.0.0.1:{}", stock.port());
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    let place = format!("127.0.0.1:{}", server.port());
    let line = DeafLine::to(server.port());
    let through = format!("127.0.0.1:{}", line.port);
    let mut follower = Follower::start(&from, &through, &folder, &[]);
    wait_until_following(&place, &folder);
    let mut ours = server.client();
    ours.call(&["SET", "b", "no number"]);
    let status = || both(&migrate(&["status", "--server", &place]));
    let unheard = || status().lines().find(|line| line.starts_with("unheard")).unwrap_or_default().to_owned();
    assert_eq!(unheard(), "");

    // The reply is lost: it goes on, and says so.
    line.lose_reply_to(b"INCR");
    theirs.call(&["INCR", "b"]);
    wait_for("it says what it does not know", || unheard().contains("verify"));
    let first = unheard();
    theirs.call(&["SET", "after", "1"]);
    wait_for("it goes on", || ours.show("GET after") == "\"1\"");

    // The process is lost with the reply: the next one says so.
    line.lose_reply_to(b"INCR");
    theirs.call(&["INCR", "b"]);
    wait_for("the request has come", || line.has_lost());
    follower.kill();
    thread::sleep(Duration::from_secs(6));
    let mut follower = Follower::start(&from, &through, &folder, &[]);
    wait_until_following(&place, &folder);
    let second = unheard();
    assert!(second != first && second.contains(first.split(':').next().expect("a part")), "{first} {second}");

    // One that ends in good order leaves nothing open.
    theirs.call(&["SET", "last", "1"]);
    wait_for("it follows", || ours.show("GET last") == "\"1\"");
    let pid = follower.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs").success());
    assert!(follower.wait(), "it ends in good order");
    thread::sleep(Duration::from_secs(6));
    let mut follower = Follower::start(&from, &place, &folder, &[]);
    wait_until_following(&place, &folder);
    assert_eq!(unheard(), second);

    // What is heard to be refused ends it, at the place up to where all else was carried out.
    theirs.call(&["INCR", "b"]);
    assert!(!follower.wait(), "the target cannot follow");
    assert!(status().contains("INCR b"), "{}", status());
    let info = theirs.call(&["INFO", "replication"]);
    let info = String::from_utf8_lossy(info.as_bytes().expect("text")).into_owned();
    let offset = info.lines().find_map(|line| line.strip_prefix("master_repl_offset:")).expect("an offset");
    assert_eq!(ours.show("HGET {holdfast}:migration offset"), format!("\"{offset}\""));
    server.stop();
}

#[test]
fn who_stops_a_copy_that_is_being_made_keeps_what_is_written_then() {
    let folder = Folder::new();
    let words = ["--rdb-key-save-delay", "30000"];
    let Some(stock) = Stock::start(&folder.path().join("redis"), &words) else { return };
    let mut theirs = stock.client();
    for number in 0..100 {
        theirs.call(&["SET", &format!("theirs:{number}"), "1"]);
    }
    let from = format!("redis://127.0.0.1:{}", stock.port());
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    let place = format!("127.0.0.1:{}", server.port());
    let mut follower = Follower::start(&from, &place, &folder, &[]);
    let mut ours = server.client();
    wait_for("the copy is begun", || ours.show("EXISTS {holdfast}:migration") == "(integer) 1");
    let stopped = migrate(&["stop", "--server", &place]);
    assert!(stopped.status.success(), "{}", both(&stopped));
    assert_eq!(ours.show("SET mine 1"), "OK");
    assert!(follower.wait(), "it finds out");
    assert_eq!((ours.show("GET mine"), ours.show("DBSIZE")), ("\"1\"".to_owned(), "(integer) 1".to_owned()));
    let log = std::fs::read_to_string(folder.path().join("migrate.log")).expect("the log");
    assert!(log.contains("the migration has ended"), "{log}");
    server.stop();
}

#[test]
fn a_full_disk_under_the_spool_is_waited_for_also_if_the_source_keeps_little() {
    let folder = Folder::new();
    let words = ["--repl-backlog-size", "16kb", "--repl-ping-replica-period", "1"];
    let Some(stock) = Stock::start(&folder.path().join("redis"), &words) else { return };
    let mut theirs = stock.client();
    theirs.call(&["SET", "a", "1"]);
    let from = format!("redis://127.0.0.1:{}", stock.port());
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    let mut ours = server.client();
    let place = format!("127.0.0.1:{}", server.port());
    let mut options = ServerOptions::new(folder.path());
    let faults = DiskFaults::arrange(&folder, &mut options);
    let copies = |theirs: &mut Client| {
        let info = theirs.call(&["INFO", "stats"]);
        let info = String::from_utf8_lossy(info.as_bytes().expect("text")).into_owned();
        info.lines().find_map(|line| line.strip_prefix("sync_full:")).expect("a number").to_owned()
    };
    let write = |theirs: &mut Client, round: u64| {
        for number in 0..300 {
            theirs.call(&["SET", &format!("k{number}"), &format!("{round:04}").repeat(2_000)]);
        }
        theirs.call(&["SET", "round", &round.to_string()]);
    };
    let told = || {
        let output = migrate(&["status", "--server", &place]);
        (output.status.success(), both(&output))
    };
    let is_told = || matches!(told(), (false, text) if text.contains("No space left on device"));

    // From the beginning.
    faults.set("write fail ENOSPC");
    let mut follower = Follower::start_in(&from, &place, &folder, &[], &options.environment);
    wait_for("it says that there is no room", is_told);
    assert_eq!(copies(&mut theirs), "0", "no copy is asked for that cannot be kept");
    faults.clear();
    wait_until_following(&place, &folder);

    // While the link is there, it waits.
    faults.set("write fail ENOSPC");
    write(&mut theirs, 1);
    wait_for("it says that there is no room", is_told);
    thread::sleep(Duration::from_secs(3));
    faults.clear();
    wait_for("it goes on", || ours.show("GET round") == "\"1\"");
    wait_until_following(&place, &folder);
    assert_eq!(copies(&mut theirs), "1", "the link was there all the time");

    // The source has let it go, and what it lacks is gone: a later state of the same history is taken.
    faults.set("write fail ENOSPC");
    write(&mut theirs, 2);
    wait_for("it says that there is no room", is_told);
    theirs.call(&["CLIENT", "KILL", "TYPE", "replica"]);
    write(&mut theirs, 3);
    theirs.call(&["DEL", "a"]);
    thread::sleep(Duration::from_secs(2));
    assert!(is_told(), "{:?}", told());
    assert_eq!(copies(&mut theirs), "1", "no copy is asked for that cannot be kept");
    faults.clear();
    wait_for("there is another copy", || ours.show("GET round") == "\"3\"");
    wait_until_following(&place, &folder);
    assert_eq!((copies(&mut theirs), ours.show("EXISTS a")), ("2".to_owned(), "(integer) 0".to_owned()));
    write(&mut theirs, 4);
    wait_for("it goes on", || ours.show("GET round") == "\"4\"");
    let cut_over = migrate(&["cutover", "--from", &from, "--server", &place]);
    assert!(cut_over.status.success(), "{}", both(&cut_over));
    assert!(follower.wait(), "it ends in good order");
    let verified = migrate(&["verify", "--from", &from, "--server", &place]);
    assert!(verified.status.success(), "{}", both(&verified));
    server.stop();
}
