//! REPLICAOF: a server that follows a Redis by itself, through kills of either, until it is told to follow none.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use stdx::Prng;

use crate::cluster::Cluster;
use crate::harness::{
    AT_ONCE, Authority, Client, DiskFaults, Folder, IsOver, Server, ServerOptions, Stock, both, free_port, say,
    wait_for,
};
use crate::migrate::{migrate, request};

const READ_ONLY: &str = "(error) READONLY You can't write against a read only replica.";

fn field(client: &mut Client, section: &str, name: &str) -> String {
    let info = client.call(&["INFO", section]);
    let text = String::from_utf8_lossy(info.as_bytes().unwrap_or_default()).into_owned();
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned));
    found.unwrap_or_default()
}

/// A field of INFO replication.
fn told(client: &mut Client, name: &str) -> String {
    field(client, "replication", name)
}

/// Waits until ours has all that the Redis has told, while nobody writes.
#[track_caller]
fn wait_until_same(ours: &mut Client, theirs: &mut Client) {
    wait_for("ours has everything", || {
        told(ours, "slave_repl_offset") == told(theirs, "master_repl_offset")
            && told(ours, "master_link_status") == "up"
    });
}

#[track_caller]
fn verify(stock: &Stock, server: &Server) {
    let (from, place) = (format!("redis://127.0.0.1:{}", stock.port()), format!("127.0.0.1:{}", server.port()));
    let verified = migrate(&["verify", "--from", &from, "--server", &place]);
    assert!(verified.status.success(), "{}", both(&verified));
}

fn write(client: &mut Client, prng: &mut Prng, count: u64) {
    for _ in 0..count {
        let key = format!("k{}", prng.below(50));
        client.call(&request(prng, &key));
    }
}

/// Many small keys.
fn fill(client: &mut Client, count: u64) {
    let script = "for i = 1, tonumber(ARGV[1]) do redis.call('SET', 'fill:' .. i, string.rep('v', 100)) end";
    client.call(&["EVAL", script, "0", &count.to_string()]);
}

fn server_in(folder: &Path) -> Server {
    Server::start(&ServerOptions::new(folder).extra(&["--cores", "2"]))
}

/// Stands before a Redis, and sends no more than some bytes of what follows PSYNC.
struct Valve {
    port: u16,
    bytes_max: Arc<AtomicU64>,
}

impl Valve {
    fn before(stock: &Stock, bytes_max: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (port, to) = (listener.local_addr().expect("bound").port(), stock.port());
        let bytes_max = Arc::new(AtomicU64::new(bytes_max));
        let bound = Arc::clone(&bytes_max);
        thread::spawn(move || {
            for near in listener.incoming() {
                let (Ok(near), Ok(far)) = (near, TcpStream::connect(("127.0.0.1", to))) else { return };
                let is_stream = Arc::new(AtomicBool::new(false));
                let ends = (near.try_clone().expect("twice"), far.try_clone().expect("twice"));
                let (asks, bound) = (Arc::clone(&is_stream), Arc::clone(&bound));
                thread::spawn(move || {
                    pass(ends.0, ends.1, |bytes| {
                        let has_asked = bytes.windows(5).any(|word| word == b"PSYNC");
                        asks.fetch_or(has_asked, Ordering::SeqCst);
                        bytes.len()
                    });
                });
                let mut sent = 0;
                thread::spawn(move || {
                    pass(far, near, |bytes| {
                        if !is_stream.load(Ordering::SeqCst) {
                            return bytes.len();
                        }
                        let left = bound.load(Ordering::SeqCst).saturating_sub(sent);
                        let count = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                        sent += count as u64;
                        count
                    });
                });
            }
        });
        Self { port, bytes_max }
    }

    fn open(&self) {
        self.bytes_max.store(u64::MAX, Ordering::SeqCst);
    }
}

/// Passes bytes on: as many of those that have come as `allowed` says.
fn pass(mut from: TcpStream, mut to: TcpStream, mut allowed: impl FnMut(&[u8]) -> usize) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count) = from.read(&mut buffer) {
        let allowed = allowed(&buffer[..count]);
        if count == 0 || to.write_all(&buffer[..allowed]).is_err() {
            let _ = to.shutdown(std::net::Shutdown::Both);
            return;
        }
    }
}

/// Stands before a Redis as if that were loading its data: every request is refused, then only what is no INFO, as a
/// Redis does, then none.
struct Loading {
    port: u16,
    stage: Arc<AtomicU64>,
}

impl Loading {
    const REFUSES_ALL: u64 = 0;
    const ANSWERS_INFO: u64 = 1;
    const IS_OVER: u64 = 2;

    fn before(stock: &Stock) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (port, to) = (listener.local_addr().expect("bound").port(), stock.port());
        let stage = Arc::new(AtomicU64::new(Self::REFUSES_ALL));
        let now = Arc::clone(&stage);
        thread::spawn(move || {
            for near in listener.incoming() {
                let Ok(near) = near else { return };
                let stage = now.load(Ordering::SeqCst);
                if stage != Self::IS_OVER {
                    thread::spawn(move || refuse(near, stage == Self::ANSWERS_INFO));
                    continue;
                }
                let Ok(far) = TcpStream::connect(("127.0.0.1", to)) else { return };
                let ends = (near.try_clone().expect("twice"), far.try_clone().expect("twice"));
                thread::spawn(move || pass(ends.0, ends.1, <[u8]>::len));
                thread::spawn(move || pass(far, near, <[u8]>::len));
            }
        });
        Self { port, stage }
    }

    fn goes_on_to(&self, stage: u64) {
        self.stage.store(stage, Ordering::SeqCst);
    }
}

/// Answers requests as a Redis that loads its data.
fn refuse(mut near: TcpStream, answers_info: bool) {
    let mut buffer = [0; 4_096];
    while let Ok(count @ 1..) = near.read(&mut buffer) {
        let is_info = buffer[..count].windows(4).any(|word| word == b"INFO");
        let answer: &[u8] = if is_info && answers_info {
            b"$0\r\n\r\n"
        } else {
            b"-LOADING Redis is loading the dataset in memory\r\n"
        };
        if near.write_all(answer).is_err() {
            return;
        }
    }
}

#[test]
fn a_new_server_follows_a_redis_over_a_kill_and_takes_writes_when_it_is_told_to() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("redis"), &[]) else { return };
    let mut theirs = stock.client();
    let mut prng = Prng::new(21);
    write(&mut theirs, &mut prng, 500);
    theirs.show("SET fixed 1");
    let port = stock.port().to_string();

    let server = server_in(&folder.path().join("data"));
    let mut ours = server.client();
    assert_eq!(ours.show("REPLICAOF NO ONE"), "OK");
    assert!(ours.show("REPLICAOF 127.0.0.1 0").contains("Invalid master port"));
    ours.show("SET own 1");
    let refused = ours.show(&format!("REPLICAOF 127.0.0.1 {port}"));
    assert!(refused.contains("holds nothing") && refused.contains("holdfast migrate"), "{refused}");
    assert_eq!(told(&mut ours, "role"), "master");
    assert_eq!(ours.show("DEL own"), "(integer) 1", "what is refused changes nothing");

    assert_eq!(ours.show(&format!("REPLICAOF 127.0.0.1 {port}")), "OK");
    assert!(ours.show(&format!("SLAVEOF 127.0.0.1 {port}")).contains("Already connected"));
    assert_eq!(ours.show("SET own 1"), READ_ONLY);
    assert!(ours.show("EVAL redis.call('SET','own','1') 0").contains("READONLY"));
    for nameless in ["EVAL", "EVALSHA", "FCALL"] {
        assert!(ours.show(nameless).contains("wrong number of arguments"), "{nameless}");
    }
    write(&mut theirs, &mut prng, 500);
    wait_until_same(&mut ours, &mut theirs);
    assert_eq!((told(&mut ours, "role"), told(&mut ours, "master_port")), ("slave".to_owned(), port.clone()));
    assert_eq!((told(&mut ours, "slave_read_only"), told(&mut ours, "master_copy")), ("1".into(), "whole".into()));
    assert_eq!(told(&mut ours, "master_sync_in_progress"), "0");
    let role = ours.show("ROLE");
    assert!(role.starts_with(&format!("[\"slave\", \"127.0.0.1\", (integer) {port}, \"connected\"")), "{role}");
    assert!(ours.show("HELLO 2").contains("\"replica\""));
    assert_eq!(ours.show("GET fixed"), "\"1\"");
    assert_eq!(ours.show("EVAL return(redis.call('GET','fixed')) 0"), "\"1\"", "reads are served");

    // Killed and started, it goes on where it was, and what came meanwhile is not lost.
    let config = folder.path().join("data").join("holdfast.conf");
    ours.show("CONFIG REWRITE");
    drop(ours);
    server.kill();
    let text = std::fs::read_to_string(&config).unwrap_or_default();
    assert!(!text.contains("read-only") && !text.contains("import-mode"), "{text}");
    write(&mut theirs, &mut prng, 500);
    let before = field(&mut theirs, "stats", "sync_full");
    let server = server_in(&folder.path().join("data"));
    let mut ours = server.client();
    assert_eq!(ours.show("SET own 1"), READ_ONLY);
    wait_until_same(&mut ours, &mut theirs);
    assert_eq!(field(&mut theirs, "stats", "sync_full"), before, "it has taken another copy");

    assert_eq!(ours.show("REPLICAOF NO ONE"), "OK");
    assert_eq!((told(&mut ours, "role"), ours.show("SET own 1")), ("master".to_owned(), "OK".to_owned()));
    assert_eq!(ours.show("DEL own"), "(integer) 1");
    verify(&stock, &server);
    assert_eq!(ours.show("EXISTS {holdfast}:migration"), "(integer) 0");
    assert_eq!(ours.show("CONFIG GET import-mode"), "[\"import-mode\", \"no\"]");
    theirs.show("SET late 1");
    drop(ours);
    server.kill();
    let server = server_in(&folder.path().join("data"));
    let mut ours = server.client();
    assert_eq!((told(&mut ours, "role"), ours.show("GET late")), ("master".to_owned(), "(nil)".to_owned()));
    assert_eq!(ours.show("SET own 2"), "OK");
    drop(ours);
    server.stop();
}

#[test]
fn no_one_is_answered_at_once_in_every_phase_and_ok_means_that_the_copy_is_whole() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("redis"), &[]) else { return };
    let mut theirs = stock.client();
    theirs.show("CONFIG SET rdbcompression no");
    fill(&mut theirs, 40_000);
    let data = folder.path().join("data");
    let server = server_in(&data);
    let mut ours = server.client();
    assert!(ours.is_patient_for(AT_ONCE * 4));

    // Nobody is there: there is no copy of which a part could lack. A Redis answers the same.
    let nobody = free_port();
    let alone = Stock::start(&folder.path().join("alone"), &[]).expect("there was one");
    for client in [&mut alone.client(), &mut ours] {
        assert_eq!(client.show(&format!("REPLICAOF 127.0.0.1 {nobody}")), "OK");
        assert_eq!(client.show("SET own 1"), READ_ONLY);
        assert_eq!(client.show("REPLICAOF NO ONE"), "OK");
        assert_eq!((told(client, "role"), client.show("SET own 1")), ("master".to_owned(), "OK".to_owned()));
        client.show("DEL own");
    }
    // So it is if it has tried, and after a restart.
    assert_eq!(ours.show(&format!("REPLICAOF 127.0.0.1 {nobody}")), "OK");
    wait_for("it has tried", || !told(&mut ours, "master_link_fault").is_empty());
    drop(ours);
    server.kill();
    let server = server_in(&data);
    let place = format!("127.0.0.1:{}", server.port());
    let mut ours = server.client();
    assert!(ours.is_patient_for(AT_ONCE * 4));
    wait_for("it has tried again", || !told(&mut ours, "master_link_fault").is_empty());
    assert_eq!(ours.show("SET own 1"), READ_ONLY);
    assert_eq!(ours.show("REPLICAOF NO ONE"), "OK");
    assert_eq!(ours.show("SET own 1"), "OK");
    ours.show("DEL own");

    // The source begins a copy and sends nothing of it (it forks, and writes a file).
    assert_eq!(ours.show(&format!("REPLICAOF 127.0.0.1 {}", Valve::before(&stock, 70).port)), "OK");
    wait_for("it copies", || told(&mut ours, "master_sync_in_progress") == "1");
    assert_eq!(ours.show("SET own 1"), READ_ONLY);
    let ended = ours.show("REPLICAOF NO ONE");
    assert!(ended.contains("nothing of") && ended.contains("has been copied"), "{ended}");
    assert_eq!((told(&mut ours, "role"), ours.show("SET own 1")), ("master".to_owned(), "OK".to_owned()));
    assert_eq!(ours.show("REPLICAOF NO ONE"), "OK");
    ours.show("DEL own");

    // A part of the copy has come.
    let valve = Valve::before(&stock, 2_000_000);
    assert_eq!(ours.show(&format!("REPLICAOF 127.0.0.1 {}", valve.port)), "OK");
    let count = |ours: &mut Client| field(ours, "keyspace", "db0").contains("keys=") && ours.show("DBSIZE").len() > 12;
    wait_for("some keys have come", || count(&mut ours));
    let ended = ours.show("REPLICAOF NO ONE");
    assert!(ended.contains("is not whole"), "{ended}");
    assert_eq!(told(&mut ours, "master_copy"), "partial");
    assert!(ours.show("REPLICAOF NO ONE").contains("is not whole"), "it stays so");
    assert_eq!(ours.show("SET own 1"), READ_ONLY);
    let status = migrate(&["status", "--server", &place]);
    assert!(!status.status.success() && both(&status).contains("not whole"), "{}", both(&status));
    drop(ours);
    server.kill();
    let server = server_in(&data);
    let place = format!("127.0.0.1:{}", server.port());
    let mut ours = server.client();
    wait_for("it knows", || told(&mut ours, "master_copy") == "partial");
    assert_eq!(ours.show("SET own 1"), READ_ONLY, "a restart does not make it whole");

    // It can begin again, and end with all.
    valve.open();
    assert_eq!(ours.show(&format!("REPLICAOF 127.0.0.1 {}", valve.port)), "OK");
    wait_until_same(&mut ours, &mut theirs);
    assert_eq!(ours.show("REPLICAOF NO ONE"), "OK");
    verify(&stock, &server);

    // Or with what there is, if somebody says that this is enough.
    ours.show("FLUSHALL");
    let valve = Valve::before(&stock, 2_000_000);
    assert_eq!(ours.show(&format!("REPLICAOF 127.0.0.1 {}", valve.port)), "OK");
    wait_for("some keys have come", || count(&mut ours));
    let stopped = both(&migrate(&["stop", "--server", &place]));
    assert!(stopped.contains("was not whole"), "{stopped}");
    assert_eq!(ours.show("SET own 1"), "OK");
    assert_eq!(ours.show("EXISTS {holdfast}:migration"), "(integer) 0");
    drop(ours);
    server.stop();
}

#[test]
fn what_was_begun_before_writes_nothing_afterwards() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("redis"), &[]) else { return };
    let mut theirs = stock.client();
    fill(&mut theirs, 1_000);
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")).extra(&["--cores", "4"]));
    let mut ours = server.client();
    let [mut queued, mut popping, mut moving, mut running] = [(); 4].map(|()| server.client());
    assert_eq!(queued.show("MULTI"), "OK");
    assert_eq!(queued.show("SET queued 1"), "QUEUED");
    popping.send(&["BLPOP", "list", "0"]).expect("sent");
    moving.send(&["BLMOVE", "list", "other", "LEFT", "LEFT", "0"]).expect("sent");
    wait_for("they wait", || field(&mut ours, "clients", "blocked_clients") == "2");
    // Writes at its end, which may come before REPLICAOF, or after it.
    let slow = "local n = 0; for i = 1, 3e6 do n = n + i end; return redis.call('SET', KEYS[1], n)";
    running.send(&["EVAL", slow, "1", "slow"]).expect("sent");

    let (is_over, has_followed, refused) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let _ends = IsOver(&is_over);
        // Leave nothing, so that the server is new at each moment.
        let writers: Vec<_> = (0..6_u64)
            .map(|number| {
                let (is_over, has_followed, refused) = (&is_over, &has_followed, &refused);
                let mut client = server.client();
                scope.spawn(move || {
                    let script = "redis.call('SET', KEYS[1], 1); redis.call('DEL', KEYS[1]); return 1";
                    let mut turn = number;
                    while !is_over.load(Ordering::SeqCst) {
                        turn += 1;
                        let key = format!("w{number}:{turn}");
                        let came_later = has_followed.load(Ordering::SeqCst);
                        let reply = if turn.is_multiple_of(2) {
                            client.show("MULTI");
                            client.show(&format!("SET {key} 1"));
                            client.show(&format!("SET {key}:2 1"));
                            client.show(&format!("DEL {key} {key}:2"));
                            client.show("EXEC")
                        } else {
                            client.call(&["EVAL", script, "1", &key]).to_string()
                        };
                        let is_refused = reply.contains("READONLY") || reply.contains("EXECABORT");
                        assert!(!came_later || is_refused, "{reply}");
                        refused.fetch_add(u64::from(is_refused && came_later), Ordering::SeqCst);
                    }
                })
            })
            .collect();
        wait_for("it is new at some moment", || {
            let reply = ours.show(&format!("REPLICAOF 127.0.0.1 {}", stock.port()));
            // Keys, a script that runs, an element of the two that wait, or a lock of those who write.
            let is_refused = ["holds nothing", "BUSY", "try again", "TRYAGAIN"].iter().any(|why| reply.contains(why));
            assert!(reply == "OK" || is_refused, "{reply}");
            if reply != "OK" {
                ours.show("DEL slow");
            }
            reply == "OK"
        });
        has_followed.store(true, Ordering::SeqCst);
        wait_until_same(&mut ours, &mut theirs);
        theirs.show("RPUSH list a b c");
        wait_until_same(&mut ours, &mut theirs);
        wait_for("writes come later", || refused.load(Ordering::SeqCst) > 20);
        is_over.store(true, Ordering::SeqCst);
        writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
    });
    let ended = queued.show("EXEC");
    assert!(ended.starts_with("(error) EXECABORT") && ended.contains("READONLY"), "{ended}");
    for client in [&mut popping, &mut moving] {
        let reply = client.receive().expect("an answer").to_string();
        assert!(reply.contains("UNBLOCKED"), "{reply}");
    }
    let reply = running.receive().expect("an answer").to_string();
    assert!(reply == "OK" || reply.contains("READONLY"), "{reply}");
    assert_eq!(ours.show("LRANGE list 0 -1"), "[\"a\", \"b\", \"c\"]");
    assert_eq!(ours.show("REPLICAOF NO ONE"), "OK");
    verify(&stock, &server);
    drop((ours, queued, popping, moving, running));
    server.stop();
}

#[test]
fn killed_at_any_moment_it_is_new_or_follows() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("redis"), &[]) else { return };
    let mut theirs = stock.client();
    fill(&mut theirs, 30_000);
    let mut prng = Prng::new(7);
    let data = folder.path().join("data");
    let follow = format!("REPLICAOF 127.0.0.1 {}", stock.port());
    let mut has_followed = false;
    for round in 0..10 {
        let server = server_in(&data);
        let mut ours = server.client();
        wait_for("it has looked", || !ours.show("DBSIZE").contains("LOADING"));
        let role = told(&mut ours, "role");
        assert!(!has_followed || role == "slave", "round {round}: it has forgotten what it follows");
        if role == "master" {
            assert_eq!(ours.show("DBSIZE"), "(integer) 0", "round {round}");
        } else {
            assert_eq!(ours.show("SET own 1"), READ_ONLY, "round {round}");
        }
        // One of three is killed while it is asked.
        let answers = round % 3 != 0;
        ours.send(&follow.split(' ').collect::<Vec<_>>()).expect("sent");
        if answers {
            let reply = ours.receive().expect("an answer").to_string();
            assert!(reply.starts_with("OK") || reply.contains("loaded its data"), "{reply}");
            has_followed |= reply.starts_with("OK");
        }
        write(&mut theirs, &mut prng, 20);
        thread::sleep(Duration::from_millis(prng.below(if round % 2 == 0 { 60 } else { 900 })));
        drop(ours);
        server.kill();
    }
    let server = server_in(&data);
    let mut ours = server.client();
    wait_for("it is asked", || ours.show(&follow).starts_with("OK"));
    wait_until_same(&mut ours, &mut theirs);
    assert_eq!(ours.show("REPLICAOF NO ONE"), "OK");
    verify(&stock, &server);
    drop(ours);
    server.stop();
}

#[test]
fn refusals_of_a_source_pass_and_nothing_is_removed() {
    let folder = Folder::new();
    let redis = folder.path().join("redis");
    let Some(stock) = Stock::start(&redis, &["--requirepass", "secret"]) else { return };
    let mut theirs = stock.client();
    assert_eq!(theirs.show("AUTH secret"), "OK");
    theirs.show("SET a 1");
    let data = folder.path().join("data");
    let server = server_in(&data);
    let mut ours = server.client();
    assert_eq!(ours.show(&format!("REPLICAOF 127.0.0.1 {}", stock.port())), "OK");
    wait_for("it says why", || told(&mut ours, "master_link_fault").contains("NOAUTH"));
    assert_eq!(told(&mut ours, "master_link_status"), "down");
    ours.show("CONFIG SET masterauth wrong");
    wait_for("it says why", || told(&mut ours, "master_link_fault").contains("WRONGPASS"));
    ours.show("CONFIG SET masterauth secret");
    wait_until_same(&mut ours, &mut theirs);
    assert_eq!(ours.show("GET a"), "\"1\"");

    // The password changes while it follows.
    theirs.show("CONFIG SET requirepass other");
    theirs.show("CLIENT KILL TYPE replica");
    wait_for("it says why", || told(&mut ours, "master_link_fault").contains("WRONGPASS"));
    assert_eq!(ours.show("GET a"), "\"1\"", "it is not emptied");
    theirs.show("SET b 2");
    ours.show("CONFIG SET masterauth other");
    wait_until_same(&mut ours, &mut theirs);
    assert_eq!(ours.show("GET b"), "\"2\"");

    // The source ends in good order, and comes back elsewhere with its data: the stream goes on.
    let _ = theirs.send(&["SHUTDOWN", "SAVE"]);
    wait_for("the link is down", || told(&mut ours, "master_link_status") == "down");
    assert_eq!(ours.show("GET b"), "\"2\"");
    drop(stock);
    let stock = Stock::start(&redis, &[]).expect("there was one");
    let mut theirs = stock.client();
    assert_eq!(theirs.show("GET b"), "\"2\"");
    ours.call(&["CONFIG", "SET", "masterauth", ""]);
    assert_eq!(ours.show(&format!("REPLICAOF localhost {}", stock.port())), "OK");
    theirs.show("SET c 3");
    wait_until_same(&mut ours, &mut theirs);
    assert_eq!(field(&mut theirs, "stats", "sync_full"), "0", "it has taken another copy");
    assert_eq!(told(&mut ours, "master_host"), "localhost");

    // It comes back without: that is another history, and nothing is removed for it.
    let mut prng = Prng::new(3);
    drop(theirs);
    drop(stock);
    let stock = Stock::start(&folder.path().join("empty"), &[]).expect("there was one");
    let mut theirs = stock.client();
    write(&mut theirs, &mut prng, 10);
    assert_eq!(ours.show(&format!("REPLICAOF localhost {}", stock.port())), "OK");
    wait_for("it says why", || told(&mut ours, "master_link_fault").contains("cannot continue its stream"));
    assert_eq!((ours.show("GET c"), ours.show("SET own 1")), ("\"3\"".to_owned(), READ_ONLY.to_owned()));
    drop(ours);
    server.kill();
    let server = server_in(&data);
    let mut ours = server.client();
    wait_for("it says why", || told(&mut ours, "master_link_fault").contains("cannot continue its stream"));
    assert_eq!((ours.show("GET c"), ours.show("SET own 1")), ("\"3\"".to_owned(), READ_ONLY.to_owned()));
    assert_eq!(ours.show("REPLICAOF NO ONE"), "OK");
    assert_eq!((ours.show("GET c"), ours.show("SET own 1")), ("\"3\"".to_owned(), "OK".to_owned()));
    drop(ours);
    server.stop();
}

#[test]
fn the_tools_of_a_migration_agree_with_it() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("redis"), &[]) else { return };
    let mut theirs = stock.client();
    fill(&mut theirs, 100);
    let server = server_in(&folder.path().join("data"));
    let mut ours = server.client();
    let (from, place) = (format!("redis://127.0.0.1:{}", stock.port()), format!("127.0.0.1:{}", server.port()));
    let follow = format!("REPLICAOF 127.0.0.1 {}", stock.port());
    assert_eq!(ours.show(&follow), "OK");
    wait_until_same(&mut ours, &mut theirs);
    let status = migrate(&["status", "--server", &place]);
    assert!(status.status.success() && both(&status).contains("REPLICAOF of the server itself"), "{}", both(&status));
    let spool = folder.path().display().to_string();
    let second = migrate(&["start", "--from", &from, "--server", &place, "--spool-dir", &spool]);
    assert!(!second.status.success() && both(&second).contains("REPLICAOF NO ONE"), "{}", both(&second));

    let stopped = migrate(&["stop", "--server", &place]);
    assert!(stopped.status.success(), "{}", both(&stopped));
    assert_eq!((told(&mut ours, "role"), ours.show("SET own 1")), ("master".to_owned(), "OK".to_owned()));
    ours.show("FLUSHALL");
    assert_eq!(ours.show(&follow), "OK");
    wait_until_same(&mut ours, &mut theirs);
    let cut_over = migrate(&["cutover", "--from", &from, "--server", &place]);
    assert!(cut_over.status.success(), "{}", both(&cut_over));
    assert_eq!((told(&mut ours, "role"), ours.show("SET own 1")), ("master".to_owned(), "OK".to_owned()));
    assert!(theirs.show("SET own 1").contains("NOREPLICAS"));
    assert_eq!(ours.show("CONFIG GET import-mode"), "[\"import-mode\", \"no\"]");
    drop(ours);
    server.stop();
}

/// Values of half a megabyte each: together more than a file of the log, or of what waits, holds.
fn write_large(client: &mut Client, round: u64) {
    for nth in 0..300 {
        let value = format!("{:08}", 1_000 * round + nth).repeat(64 << 10);
        assert_eq!(client.call(&["SET", &format!("large:{}", nth % 8), &value]).to_string(), "OK");
    }
}

#[test]
fn a_full_disk_holds_the_copy_and_the_stream_up_and_nothing_is_lost() {
    let folder = Folder::new();
    // It keeps what is missed meanwhile; one that does not ends what follows it.
    let words = ["--repl-backlog-size", "1gb"];
    let Some(stock) = Stock::start(&folder.path().join("redis"), &words) else { return };
    let mut theirs = stock.client();
    let mut prng = Prng::new(28);
    write(&mut theirs, &mut prng, 300);
    let mut options = ServerOptions::new(&folder.path().join("data")).extra(&["--cores", "1"]);
    std::fs::create_dir_all(&options.data_folder).expect("a data folder");
    let faults = DiskFaults::arrange(&folder, &mut options);
    let server = Server::start(&options);
    let mut ours = server.client();
    let follow = format!("REPLICAOF 127.0.0.1 {}", stock.port());
    let why = "No space left on device";

    // What is followed cannot be remembered, so it is not followed.
    faults.set("create fail ENOSPC");
    let refused = ours.show(&follow);
    assert!(refused.contains(".replicaof") && refused.contains(why), "{refused}");
    assert_eq!((told(&mut ours, "role"), ours.show("SET own 1")), ("master".to_owned(), "OK".to_owned()));
    ours.show("DEL own");
    faults.clear();
    assert_eq!(ours.show(&follow), "OK");
    wait_until_same(&mut ours, &mut theirs);

    // Neither what comes nor the log can be written any more, sooner or later.
    faults.set("create fail ENOSPC");
    write_large(&mut theirs, 1);
    let mut said = String::new();
    wait_for("the operator is told", || {
        said = told(&mut ours, "master_link_fault");
        said.contains(why) || said.contains("MISCONF")
    });
    say(&format!("told: {said}"));
    assert_eq!((told(&mut ours, "role"), ours.show("SET own 1")), ("slave".to_owned(), READ_ONLY.to_owned()));
    assert!(!ours.show("DBSIZE").contains("error"), "reads go on");
    theirs.show("SET late 1");
    assert_eq!(ours.show("GET late"), "(nil)");

    // There is room again; then once more none, and a kill amid that.
    faults.clear();
    wait_until_same(&mut ours, &mut theirs);
    wait_for("there is no fault any more", || told(&mut ours, "master_link_fault").is_empty());
    verify(&stock, &server);
    faults.set("create fail ENOSPC");
    write_large(&mut theirs, 2);
    wait_for("the operator is told again", || !told(&mut ours, "master_link_fault").is_empty());
    drop(ours);
    server.kill();
    faults.clear();
    let server = Server::start(&options);
    let mut ours = server.client();
    wait_until_same(&mut ours, &mut theirs);
    assert_eq!(ours.show("REPLICAOF NO ONE"), "OK");
    verify(&stock, &server);
    drop(ours);
    server.stop();
}

#[test]
fn a_member_of_a_cluster_and_a_holdfast_are_refused() {
    let cluster = Cluster::start(3);
    let mut client = cluster.client(0);
    let refused = client.show("REPLICAOF 127.0.0.1 6379");
    assert!(refused.contains("holdfast migrate start"), "{refused}");
    assert_eq!(client.show("REPLICAOF NO ONE"), "OK");
    let folder = Folder::new();
    let server = server_in(folder.path());
    let mut ours = server.client();
    assert_eq!(ours.show(&format!("REPLICAOF 127.0.0.1 {}", server.port())), "OK");
    wait_for("it says why", || told(&mut ours, "master_link_fault").contains("is a Holdfast"));
    assert_eq!(ours.show("REPLICAOF NO ONE"), "OK");
    assert_eq!(ours.show("SET own 1"), "OK");
    drop(ours);
    server.stop();
}

#[test]
fn a_redis_that_speaks_tls_is_followed_and_shown_a_certificate() {
    let folder = Folder::new();
    let redis = folder.path().join("redis");
    let Some(plain) = Stock::start(&redis, &[]) else { return };
    if !plain.client().show("CONFIG GET tls-port").contains("tls-port") {
        say("redis-server speaks no TLS here: nothing to follow");
        return;
    }
    drop(plain);
    let (authority, stranger) = (Authority::new("authority"), Authority::new("stranger"));
    let (theirs_shown, ours_shown, trusted) = (authority.sign("redis"), authority.sign("holdfast"), authority.path());
    let port = free_port().to_string();
    let files = ["--tls-cert-file", &theirs_shown.certificate, "--tls-key-file", &theirs_shown.key];
    let more = ["--tls-port", &port, "--tls-ca-cert-file", &trusted, "--tls-auth-clients", "yes"];
    let stock = Stock::start(&redis, &[&files[..], &more[..]].concat()).expect("there was one");
    let mut theirs = stock.client();
    let mut prng = Prng::new(5);
    write(&mut theirs, &mut prng, 300);

    let data = folder.path().join("data");
    let server = server_in(&data);
    let mut ours = server.client();
    assert_eq!(ours.show("CONFIG SET tls-replication yes"), "OK");
    assert_eq!(ours.show(&format!("REPLICAOF 127.0.0.1 {port}")), "OK");
    wait_for("it trusts nobody", || told(&mut ours, "master_link_fault").contains("whom to trust"));
    assert_eq!(ours.show(&format!("CONFIG SET tls-ca-cert-file {}", stranger.path())), "OK");
    wait_for("it trusts another", || told(&mut ours, "master_link_fault").contains("signed by nobody"));
    assert_eq!(ours.show(&format!("CONFIG SET tls-ca-cert-file {trusted}")), "OK");
    wait_for("it shows no certificate", || {
        let fault = told(&mut ours, "master_link_fault");
        !fault.is_empty() && !fault.contains("signed by nobody")
    });
    assert_eq!((told(&mut ours, "master_link_status"), ours.show("DBSIZE")), ("down".into(), "(integer) 0".into()));
    let set = ["tls-cert-file", &ours_shown.certificate, "tls-key-file", &ours_shown.key];
    assert_eq!(ours.show(&format!("CONFIG SET {}", set.join(" "))), "OK");
    wait_until_same(&mut ours, &mut theirs);
    write(&mut theirs, &mut prng, 300);
    wait_until_same(&mut ours, &mut theirs);

    // The same from the command line.
    drop(ours);
    server.kill();
    write(&mut theirs, &mut prng, 300);
    let before = field(&mut theirs, "stats", "sync_full");
    let files = ["--tls-cert-file", &ours_shown.certificate, "--tls-key-file", &ours_shown.key];
    let more = ["--cores", "2", "--tls-replication", "yes", "--tls-ca-cert-file", &trusted];
    let server = Server::start(&ServerOptions::new(&data).extra(&files).extra(&more));
    let mut ours = server.client();
    wait_until_same(&mut ours, &mut theirs);
    assert_eq!(field(&mut theirs, "stats", "sync_full"), before, "it has taken another copy");
    assert_eq!(told(&mut ours, "master_port"), port);
    assert_eq!(ours.show("REPLICAOF NO ONE"), "OK");
    verify(&stock, &server);
    drop(ours);
    server.stop();
}

#[test]
fn who_follows_lets_no_node_in_until_it_follows_none() {
    let folder = Folder::new();
    let data = folder.path().join("data");
    let cluster_port = free_port().to_string();
    let options = ServerOptions::new(&data).extra(&["--cores", "2", "--cluster-port", &cluster_port]);
    let server = Server::start(&options);
    let mut ours = server.client();
    let follow = format!("REPLICAOF 127.0.0.1 {}", free_port());
    assert_eq!(ours.show(&follow), "OK");

    let (port, place) = (free_port().to_string(), format!("127.0.0.1:{cluster_port}"));
    let options = ServerOptions::new(&folder.path().join("other"));
    let options = options.extra(&["--cores", "2", "--cluster-port", &port, "--join", &place]);
    let other = Server::spawn(&options.invited_by([data.as_path()]));
    server.wait_for_log("this node follows a Redis, and lets no other in until REPLICAOF NO ONE");
    other.wait_for_log("cannot join yet");
    assert_eq!((told(&mut ours, "role"), ours.show("SET own 1")), ("slave".to_owned(), READ_ONLY.to_owned()));
    assert!(!ours.show("INFO cluster").contains("cluster_nodes:2"));

    // It asks again, and its invitation is as good as it was.
    assert_eq!(ours.show("REPLICAOF NO ONE"), "OK");
    wait_for("there are two nodes", || ours.show("INFO cluster").contains("cluster_nodes:2"));
    let refused = ours.show(&follow);
    assert!(refused.contains("holdfast migrate start"), "{refused}");
}

#[test]
fn a_directory_that_follows_starts_for_no_cluster_and_no_second_site() {
    let folder = Folder::new();
    let data = folder.path().join("data");
    let server = server_in(&data);
    let (port, nobody) = (free_port(), format!("127.0.0.1:{}", free_port()));
    assert_eq!(server.client().show(&format!("REPLICAOF 127.0.0.1 {port}")), "OK");
    server.kill();
    for word in ["--join", "--follow"] {
        let options = ServerOptions::new(&data).extra(&["--cores", "2", word, &nobody]);
        let exit = Server::try_start(&options).err().expect("it should not start");
        let expected = format!("this server follows 127.0.0.1:{port} by REPLICAOF, and such a server is no member");
        assert!(!exit.status.success() && exit.log.contains(&expected), "{word}: {}", exit.log);
        assert!(exit.log.contains("say REPLICAOF NO ONE first"), "{word}: {}", exit.log);
    }
    let server = server_in(&data);
    let mut ours = server.client();
    assert_eq!((told(&mut ours, "role"), ours.show("SET own 1")), ("slave".to_owned(), READ_ONLY.to_owned()));
    assert_eq!(told(&mut ours, "master_port"), port.to_string());
    drop(ours);
    server.stop();
}

#[test]
fn a_redis_that_loads_its_data_is_asked_again() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("redis"), &[]) else { return };
    let mut theirs = stock.client();
    fill(&mut theirs, 1_000);
    let server = server_in(&folder.path().join("data"));
    let mut ours = server.client();
    let loading = Loading::before(&stock);
    assert_eq!(ours.show(&format!("REPLICAOF 127.0.0.1 {}", loading.port)), "OK");
    wait_for("INFO is refused", || told(&mut ours, "master_link_fault").contains("INFO is refused: LOADING"));
    loading.goes_on_to(Loading::ANSWERS_INFO);
    wait_for("PING is refused", || told(&mut ours, "master_link_fault").contains("refuses PING: LOADING"));
    assert_eq!((told(&mut ours, "master_link_status"), ours.show("SET own 1")), ("down".into(), READ_ONLY.into()));
    loading.goes_on_to(Loading::IS_OVER);
    wait_until_same(&mut ours, &mut theirs);
    wait_for("there is no fault any more", || told(&mut ours, "master_link_fault").is_empty());
    assert_eq!(ours.show("REPLICAOF NO ONE"), "OK");
    verify(&stock, &server);
    drop(ours);
    server.stop();
}

#[test]
fn a_server_does_not_follow_itself() {
    let folder = Folder::new();
    let options = ServerOptions::new(&folder.path().join("data"));
    let options = options.extra(&["--cores", "2", "--requirepass", "secret"]);
    let server = Server::start(&options);
    let mut ours = server.client();
    assert_eq!(ours.show("AUTH secret"), "OK");
    // Behind the password it may still be loading.
    wait_for("it has loaded", || !ours.show("DBSIZE").contains("LOADING"));
    assert_eq!(ours.show(&format!("REPLICAOF localhost {}", server.port())), "OK");
    wait_for("it does not let itself in", || told(&mut ours, "master_link_fault").contains("NOAUTH"));
    assert_eq!(ours.show("CONFIG SET masterauth secret"), "OK");
    wait_for("it says why", || told(&mut ours, "master_link_fault").contains("is a Holdfast"));
    assert_eq!((told(&mut ours, "master_link_status"), ours.show("SET own 1")), ("down".into(), READ_ONLY.into()));
    drop(ours);
    server.kill();
    let server = Server::start(&options);
    let mut ours = server.client();
    assert_eq!(ours.show("AUTH secret"), "OK");
    wait_for("it does not let itself in", || told(&mut ours, "master_link_fault").contains("NOAUTH"));
    assert_eq!(ours.show("REPLICAOF NO ONE"), "OK");
    assert_eq!((told(&mut ours, "role"), ours.show("SET own 1")), ("master".to_owned(), "OK".to_owned()));
    drop(ours);
    server.stop();
}
