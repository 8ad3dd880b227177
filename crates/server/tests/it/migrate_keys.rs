//! MIGRATE: keys that go to another server, one by one or several, and come back; and servers that refuse some of
//! them, fall silent, end the connection at any moment, or answer nonsense. No key is lost, whatever happens.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use resp::{Frame, FrameDecoder};

use crate::cluster::Cluster;
use crate::harness::{Client, Folder, Policy, Server, ServerOptions, Stock, wait_for};

fn start(folder: &Folder, words: &[&str]) -> Server {
    Server::start(&ServerOptions::new(&folder.path().join("data")).policy(Policy::No).extra(words))
}

/// MIGRATE, where `''` is the empty word.
fn migrate(client: &mut Client, port: u16, line: &str) -> String {
    let port = port.to_string();
    let mut words = vec!["MIGRATE", "127.0.0.1", &port];
    words.extend(line.split(' ').map(|word| if word == "''" { "" } else { word }));
    client.call(&words).to_string()
}

/// Keys of every kind, and one with a deadline.
const KINDS: [&str; 12] = [
    "SET text value",
    "SET number 12",
    "SET short value PX 60000",
    "RPUSH list a b c",
    "SADD set a b c",
    "SADD numbers 1 2 3",
    "HSET hash f v g w",
    "ZADD sorted 1 a 2.5 b",
    "XADD stream 1-1 f v",
    "XGROUP CREATE stream g 0",
    "XREADGROUP GROUP g c STREAMS stream >",
    "PFADD loglog a b c",
];

fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = KINDS[..9].iter().chain(&KINDS[11..]).map(|line| line.split(' ').nth(1).unwrap()).collect();
    names.dedup();
    names
}

fn digests(client: &mut Client) -> Vec<String> {
    names().iter().map(|key| client.show(&format!("DEBUG DIGEST-VALUE {key}"))).collect()
}

#[test]
fn keys_of_all_kinds_go_to_a_redis_and_come_back() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("stock"), &[]) else { return };
    let server = start(&folder, &["--cores", "2", "--enable-debug-command", "yes"]);
    let (mut here, mut there) = (server.client(), stock.client());
    KINDS.iter().for_each(|line| _ = here.show(line));
    // Streams are digested otherwise here: what is in them is looked at below.
    let before = digests(&mut here);
    let keys = names().join(" ");
    assert_eq!(here.show("INFO stats").matches("migrate_cached_sockets:0").count(), 1);
    assert_eq!(migrate(&mut here, stock.port(), &format!("'' 9 60000 KEYS {keys}")), "OK");
    // What the host tells is told to cores now and then.
    wait_for("a line is kept", || here.show("INFO stats").contains("migrate_cached_sockets:1"));
    assert_eq!(here.show("DBSIZE"), "(integer) 0");
    there.show("SELECT 9");
    let arrived = digests(&mut there);
    for (nth, name) in names().iter().enumerate().filter(|(_, name)| **name != "stream") {
        assert_eq!(arrived[nth], before[nth], "{name}");
    }
    assert!(there.show("XPENDING stream g").contains("1-1"));
    let Frame::Integer(lasts_ms) = there.call(&["PTTL", "short"]) else { panic!("a number") };
    assert!((50_000..=60_000).contains(&lasts_ms), "{lasts_ms}");
    assert_eq!(there.show("TTL text"), "(integer) -1");
    // And back, by the other server's MIGRATE.
    assert_eq!(migrate(&mut there, server.port(), &format!("'' 0 60000 KEYS {keys}")), "OK");
    assert_eq!((there.show("DBSIZE"), digests(&mut here)), ("(integer) 0".to_owned(), before));
    // One by one, as a copy, over what is there.
    assert_eq!(migrate(&mut here, stock.port(), "text 9 60000 copy"), "OK");
    assert_eq!((here.show("GET text"), there.show("GET text")), ("\"value\"".to_owned(), "\"value\"".to_owned()));
    let busy = "(error) ERR Target instance replied with error: BUSYKEY Target key name already exists.";
    assert_eq!(migrate(&mut here, stock.port(), "text 9 60000"), busy);
    assert_eq!(here.show("GET text"), "\"value\"");
    assert_eq!(migrate(&mut here, stock.port(), "text 9 60000 REPLACE"), "OK");
    assert_eq!(here.show("EXISTS text"), "(integer) 0");
    assert_eq!(migrate(&mut here, stock.port(), "text 9 60000"), "NOKEY");
    assert_eq!(migrate(&mut here, stock.port(), "'' 9 60000 KEYS text other"), "NOKEY");
    let range = migrate(&mut here, stock.port(), "number 99 60000");
    assert_eq!(range, "(error) ERR Target instance replied with error: ERR DB index is out of range");
    assert_eq!(here.show("EXISTS number"), "(integer) 1");
}

#[test]
fn it_answers_as_redis_does() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("stock"), &[]) else { return };
    let Some(target) = Stock::start(&folder.path().join("target"), &["--requirepass", "secret"]) else { return };
    let server = start(&folder, &[]);
    let closed = crate::harness::free_port();
    let mut clients = [server.client(), stock.client()];
    for (port, line) in [
        (closed, "k 0 20000"),
        (closed, "missing 0 20000"),
        (closed, "k x 500"),
        (closed, "k 0 y"),
        (closed, "k 0 20000 KEYS k"),
        (closed, "k 0 20000 NONSENSE"),
        (closed, "k 0 20000 AUTH"),
        (closed, "'' 0 20000 KEYS"),
        (target.port(), "k 0 20000"),
        (target.port(), "k 0 20000 AUTH wrong"),
        (target.port(), "k 0 20000 AUTH2 nobody secret"),
        (target.port(), "k 0 20000 COPY AUTH secret"),
        (target.port(), "k 0 20000 COPY REPLACE AUTH2 default secret"),
        (target.port(), "k 0 20000 COPY AUTH secret"),
        (target.port(), "'' 0 20000 AUTH secret KEYS k l missing m"),
        (target.port(), "'' 0 20000 AUTH secret KEYS l m"),
    ] {
        // What the case before has left there is not what is asked about.
        let mut there = target.client();
        there.show("AUTH secret");
        there.show("FLUSHALL");
        let answers = clients.each_mut().map(|client| {
            client.show("MSET k 1 l 2 m 3");
            let answer = migrate(client, port, line);
            let mut there = target.client();
            there.show("AUTH secret");
            let found = there.show("MGET k l m");
            if !line.contains("COPY") {
                there.show("FLUSHALL");
            }
            (answer, client.show("MGET k l m"), found)
        });
        // The copy of the first finds its key taken by the second.
        let [ours, theirs] = if line.contains("COPY AUTH secret") {
            let mut there = target.client();
            there.show("AUTH secret");
            there.show("FLUSHALL");
            clients.each_mut().map(|client| {
                there.show("DEL k");
                (migrate(client, port, line), client.show("MGET k l m"), there.show("MGET k l m"))
            })
        } else {
            answers
        };
        assert_eq!(ours, theirs, "{line}");
    }
    // What waits for another server is done neither in a transaction nor in a script.
    let mut here = server.client();
    here.show("MULTI");
    let refused = migrate(&mut here, target.port(), "k 0 20000");
    assert_eq!(refused, "(error) ERR Command not allowed inside a transaction");
    here.show("DISCARD");
    let scripted = here.call(&["EVAL", "return redis.call('migrate', 'h', 1, 'k', 0, 1)", "0"]).to_string();
    assert!(scripted.contains("This Redis command is not allowed from script"), "{scripted}");
    // A user may send only what it may read and delete.
    here.show("ACL SETUSER sender on nopass ~mine* +migrate");
    here.show("AUTH sender x");
    for line in ["k 0 20000", "'' 0 20000 KEYS mine k"] {
        assert!(migrate(&mut here, target.port(), line).contains("NOPERM"), "{line}");
    }
    assert_eq!(migrate(&mut here, target.port(), "'' 0 20000 KEYS mine"), "NOKEY");
}

/// A server of a few words, which does with each request what it is told to.
struct Fake {
    port: u16,
    is_over: Arc<AtomicBool>,
    /// Requests to store a key that it has been sent.
    stored: Arc<AtomicUsize>,
}

/// What a [`Fake`] does when it is asked to store the nth key.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    Says(&'static str),
    Hangs,
    Cuts,
}

impl Fake {
    fn start(manner: fn(usize) -> Manner) -> Self {
        Self::with(manner, || {})
    }

    /// Before it answers that a key is stored, something else happens.
    fn with(manner: fn(usize) -> Manner, meanwhile: impl Fn() + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (is_over, stored) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (over, count, meanwhile) = (Arc::clone(&is_over), Arc::clone(&stored), Arc::new(meanwhile));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (count, meanwhile) = (Arc::clone(&count), Arc::clone(&meanwhile));
                thread::spawn(move || serve(stream, manner, &count, &*meanwhile));
            }
        });
        Self { port, is_over, stored }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn serve(mut stream: TcpStream, manner: fn(usize) -> Manner, stored: &AtomicUsize, meanwhile: &dyn Fn()) {
    let (mut decoder, mut buffer) = (FrameDecoder::new(), [0; 4096]);
    loop {
        while let Ok(Some(request)) = decoder.next_frame() {
            let words = request.elements().expect("a request");
            let manner = match words[0].as_bytes() {
                Some(b"RESTORE") => {
                    meanwhile();
                    manner(stored.fetch_add(1, Ordering::Relaxed))
                }
                Some(b"INFO") => Manner::Says("$-1\r\n-\r\n"),
                Some(b"DEL") => Manner::Says(":1\r\n"),
                _ => Manner::Says("+OK\r\n"),
            };
            match manner {
                Manner::Says("$-1\r\n-\r\n") => _ = stream.write_all(b"-NOPERM no\r\n"),
                Manner::Says(text) => _ = stream.write_all(text.as_bytes()),
                Manner::Hangs => thread::sleep(HANG),
                Manner::Cuts => return,
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(count) => decoder.extend(&buffer[..count]),
        }
    }
}

/// Much longer than the time-out of any MIGRATE here.
const HANG: Duration = Duration::from_secs(100);

#[test]
fn servers_that_fall_silent_cut_lie_or_refuse_cost_no_key() {
    const READING: &str = "(error) IOERR error or timeout reading from target instance";
    let folder = Folder::new();
    let server = start(&folder, &["--cores", "2"]);
    let mut client = server.client();
    type Case = (&'static str, fn(usize) -> Manner, &'static str, &'static str);
    let manners: [Case; 8] = [
        ("it takes all", |_| Manner::Says("+OK\r\n"), "OK", ""),
        (
            "it refuses every other",
            |nth| Manner::Says(if nth % 2 == 0 { "+OK\r\n" } else { "-OOM no room\r\n" }),
            "(error) ERR Target instance replied with error: OOM no room",
            "b",
        ),
        ("it ends before the first answer", |_| Manner::Cuts, READING, "a b c"),
        ("it ends after one", |nth| if nth == 0 { Manner::Says("+OK\r\n") } else { Manner::Cuts }, READING, "b c"),
        ("it hangs", |_| Manner::Hangs, READING, "a b c"),
        ("it hangs after two", |nth| if nth < 2 { Manner::Says("+OK\r\n") } else { Manner::Hangs }, READING, "c"),
        ("it answers something else", |_| Manner::Says(":1\r\n"), READING, "a b c"),
        ("it talks nonsense", |_| Manner::Says("what?\r\n"), READING, "a b c"),
    ];
    for (what, manner, expected, left) in manners {
        let fake = Fake::start(manner);
        client.show("MSET a 1 b 2 c 3");
        let begun = Instant::now();
        let waiting = {
            let (mut client, port) = (server.client(), fake.port);
            thread::spawn(move || migrate(&mut client, port, "'' 0 3000 KEYS a b c"))
        };
        // Nobody else waits meanwhile, not even for these keys: who did would get one answer, when it is over.
        let mut count = 0;
        while !waiting.is_finished() {
            client.show("GET a");
            count += usize::from(fake.stored.load(Ordering::Relaxed) > 0);
            thread::sleep(Duration::from_millis(5));
        }
        assert!(count > 2 || !what.contains("hangs"), "{what}: {count} reads were answered meanwhile");
        assert_eq!(waiting.join().expect("it ends"), expected, "{what}");
        assert!(begun.elapsed() < HANG / 2, "{what}: {:?}", begun.elapsed());
        let here: Vec<&str> =
            ["a", "b", "c"].into_iter().filter(|key| client.show(&format!("EXISTS {key}")) != "(integer) 0").collect();
        assert_eq!(here.join(" "), left, "{what}");
    }
}

#[test]
fn keys_are_deleted_as_durably_as_their_client_wants() {
    let folder = Folder::new();
    let server = start(&folder, &[]);
    let fake = Fake::start(|_| Manner::Says("+OK\r\n"));
    let mut client = server.client();
    // What is deleted is deleted by a client of the server's own.
    let is_synced = |client: &mut Client| {
        let list = client.show("CLIENT LIST");
        list.split("id=").any(|one| one.contains("addr=the host:0") && one.contains("durability=disk"))
    };
    for (level, expected) in [("SERVER", false), ("DISK", true)] {
        client.show(&format!("CLIENT DURABILITY {level}"));
        client.show("SET k v");
        assert_eq!(migrate(&mut client, fake.port, "k 0 20000"), "OK");
        assert_eq!(is_synced(&mut client), expected, "{level}");
    }
}

#[test]
fn what_changes_under_way_is_sent_again_and_what_goes_is_deleted_there() {
    let folder = Folder::new();
    let server = start(&folder, &["--cores", "2"]);
    let port = server.port();
    let change = move |line: &str| {
        let mut client = Client::try_connect(port).expect("a connection");
        client.show(line);
    };
    let mut client = server.client();
    client.show("MSET a 1 b 2");
    // Changed while the first value is under way: the second one follows, and only then are both deleted here.
    let changes = AtomicUsize::new(0);
    let fake = Fake::with(
        |_| Manner::Says("+OK\r\n"),
        move || {
            if changes.fetch_add(1, Ordering::Relaxed) == 0 {
                change("INCR a");
            }
        },
    );
    assert_eq!(migrate(&mut client, fake.port, "'' 0 20000 KEYS a b"), "OK");
    assert_eq!(client.show("EXISTS a b"), "(integer) 0");
    assert_eq!(fake.stored.load(Ordering::Relaxed), 3, "one of two was sent again");
    // Changed all the time: it stays, and so the last change is here.
    client.show("MSET a 1 b 2");
    let fake = Fake::with(|_| Manner::Says("+OK\r\n"), move || change("INCR a"));
    let answer = migrate(&mut client, fake.port, "'' 0 20000 KEYS a b");
    assert!(answer.starts_with("(error) IOERR 1 of the keys"), "{answer}");
    let sent = fake.stored.load(Ordering::Relaxed);
    assert_eq!(client.show("MGET a b"), format!("[\"{}\", (nil)]", sent + 1));
    // Deleted under way: it is not to live on there.
    client.show("MSET a 1 b 2");
    let fake = Fake::with(|_| Manner::Says("+OK\r\n"), move || change("DEL a"));
    assert_eq!(migrate(&mut client, fake.port, "'' 0 20000 KEYS a b"), "OK");
    // The other is sent again, since the server does not say which keys it has: it could have changed it here.
    assert_eq!((client.show("EXISTS a b"), fake.stored.load(Ordering::Relaxed)), ("(integer) 0".to_owned(), 3));
}

#[test]
fn a_target_that_has_the_same_keys_is_refused_or_costs_no_key() {
    const SAME: &str = "(error) ERR Target instance is this server, or belongs to its cluster";
    let cluster = Cluster::start(3);
    let ports = [0, 1, 2].map(|node| cluster.nodes[node].as_ref().expect("it runs").port());
    for node in 0..3 {
        // One that may not learn which keys a node has.
        cluster.client(node).show("ACL SETUSER mover on >secret ~* &* +@all -info");
    }
    let mut client = cluster.client(0);
    client.show("SET k 1");
    client.show("SET l 2");
    for port in ports {
        for line in ["k 0 5000", "k 0 5000 REPLACE", "k 0 5000 COPY REPLACE", "'' 0 5000 REPLACE KEYS k l"] {
            assert_eq!(migrate(&mut client, port, line), SAME, "{line}");
        }
        for line in ["k 0 5000 REPLACE AUTH2 mover secret", "'' 0 5000 REPLACE AUTH2 mover secret KEYS k l"] {
            let answer = migrate(&mut client, port, line);
            assert!(answer.starts_with("(error) IOERR"), "{line}: {answer}");
        }
        assert_eq!(client.show("MGET k l"), "[\"1\", \"2\"]");
    }
    // Another database has other keys.
    assert_eq!(migrate(&mut client, ports[0], "k 1 60000"), "OK");
    assert_eq!(migrate(&mut client, ports[1], "l 1 60000 AUTH2 mover secret"), "OK");
    assert_eq!(client.show("EXISTS k l"), "(integer) 0");
    client.show("SELECT 1");
    assert_eq!(client.show("MGET k l"), "[\"1\", \"2\"]");
}

#[test]
fn many_keys_go_at_once_and_each_once() {
    const COUNT: usize = 10_000;
    let folders = [Folder::new(), Folder::new()];
    let [server, target] = [0, 1].map(|nth| start(&folders[nth], &["--cores", "2"]));
    let (mut here, mut there) = (server.client(), target.client());
    let keys: Vec<String> = (0..COUNT).map(|nth| format!("a-key-of-some-length:{nth}")).collect();
    let value = "v".repeat(400);
    for keys in keys.chunks(1_000) {
        let mut words = vec!["MSET"];
        keys.iter().for_each(|key| words.extend([key.as_str(), &value]));
        assert_eq!(here.call(&words).to_string(), "OK");
    }
    // One of them twice.
    let line = format!("KEYS {} {}", keys.join(" "), keys[0]);
    assert_eq!(migrate(&mut here, target.port(), &format!("'' 0 60000 COPY {line}")), "OK");
    assert_eq!([&mut here, &mut there].map(|client| client.show("DBSIZE")), ["(integer) 10000"; 2]);
    assert_eq!(migrate(&mut here, target.port(), &format!("'' 0 60000 REPLACE {line}")), "OK");
    assert_eq!((here.show("DBSIZE"), there.show("DBSIZE")), ("(integer) 0".to_owned(), "(integer) 10000".to_owned()));
    assert_eq!(there.show(&format!("STRLEN {}", keys[0])), "(integer) 400");
}

#[test]
fn counters_that_clients_change_are_moved_without_losing_an_increment() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("stock"), &[]) else { return };
    let cluster = Cluster::start(3);
    let is_over = Arc::new(AtomicBool::new(false));
    let ports = [0, 1, 2].map(|node| cluster.nodes[node].as_ref().expect("it runs").port());
    let writers: Vec<_> = ports
        .iter()
        .map(|port| {
            let (is_over, port) = (Arc::clone(&is_over), *port);
            thread::spawn(move || {
                let (mut client, mut counts) = (Client::try_connect(port).expect("a connection"), [0i64; 8]);
                while !is_over.load(Ordering::Relaxed) {
                    for (key, count) in counts.iter_mut().enumerate() {
                        *count += i64::from(matches!(client.call(&["INCR", &format!("n{key}")]), Frame::Integer(_)));
                    }
                    thread::sleep(Duration::from_millis(4));
                }
                counts
            })
        })
        .collect();
    // From one node after the other; what has gone starts over here.
    let (mut there, mut moved, mut carried) = (stock.client(), 0, [0i64; 8]);
    let take = |client: &mut Client, key: usize| match client.call(&["GETDEL", &format!("n{key}")]) {
        Frame::Bulk(digits) => String::from_utf8_lossy(&digits).parse::<i64>().expect("a number"),
        _ => 0,
    };
    let mut round = 0;
    // On a slow disk there may be nothing to move for a while.
    while round < 12 || moved < 12 {
        round += 1;
        assert!(round < 1_000, "{moved} were moved");
        let mut client = cluster.client(round % 3);
        for (key, sum) in carried.iter_mut().enumerate() {
            let answer = migrate(&mut client, stock.port(), &format!("n{key} 0 60000"));
            let found = take(&mut there, key);
            match answer.as_str() {
                "OK" => (moved, *sum) = (moved + 1, *sum + found),
                "NOKEY" => {}
                // It was not deleted here: what is there is older, and no longer of use.
                error => assert!(error.starts_with("(error) IOERR 1 of the keys"), "{error}"),
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
    is_over.store(true, Ordering::Relaxed);
    let mut counted = [0i64; 8];
    for writer in writers {
        let counts = writer.join().expect("it writes");
        counted.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let mut client = cluster.client(0);
    carried.iter_mut().enumerate().for_each(|(key, sum)| *sum += take(&mut client, key));
    assert_eq!(carried, counted, "after {moved} moves");
}
