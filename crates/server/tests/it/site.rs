//! A cluster that follows another one: through cuts of the line and kills of both sides it shows states that were,
//! takes one copy and no more, and knows what it lacks when it is promoted.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use resp::Frame;
use stdx::Prng;

use crate::cluster::Cluster;
use crate::harness::{
    Client, Folder, Server, ServerOptions, Writers, binary, fail, say, succeed, text, wait_for as wait_until,
};

const ACCOUNTS: u64 = 20;
const ACCOUNT_START: i64 = 100;

/// A line that can be cut, and made thin.
struct Line {
    port: u16,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
    is_down: Arc<AtomicBool>,
    carried: Arc<AtomicU64>,
    /// No more than so many bytes are carried.
    end: Arc<AtomicU64>,
    cut_count: Arc<AtomicU64>,
}

impl Line {
    /// A line to this port, which carries at most so many bytes a second in each direction; 0 is as many as it can.
    fn to(port: u16, rate: u64) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let line = Self {
            port: listener.local_addr().expect("bound").port(),
            sockets: Arc::default(),
            is_down: Arc::default(),
            carried: Arc::default(),
            end: Arc::new(AtomicU64::new(u64::MAX)),
            cut_count: Arc::default(),
        };
        let (sockets, is_down, carried) =
            (Arc::clone(&line.sockets), Arc::clone(&line.is_down), Arc::clone(&line.carried));
        let (end, cut_count) = (Arc::clone(&line.end), Arc::clone(&line.cut_count));
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if is_down.load(Ordering::Relaxed) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let mut kept = sockets.lock().expect("no test panics with it");
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) =
                        (from.try_clone().expect("a socket twice"), to.try_clone().expect("a socket twice"));
                    let (carried, end, cut_count) = (Arc::clone(&carried), Arc::clone(&end), Arc::clone(&cut_count));
                    let before = cut_count.load(Ordering::Relaxed);
                    // The line may be cut while it is held.
                    let is_held = move |carried: u64| {
                        carried >= end.load(Ordering::Relaxed) && cut_count.load(Ordering::Relaxed) == before
                    };
                    thread::spawn(move || carry(from, to, rate, &carried, is_held));
                }
                kept.extend([near, far]);
            }
        });
        line
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Nothing is carried beyond so many bytes, until the line is cut.
    fn hold_at(&self, bytes: u64) {
        self.end.store(bytes, Ordering::Relaxed);
    }

    fn cut(&self) {
        self.cut_count.fetch_add(1, Ordering::Relaxed);
        for socket in self.sockets.lock().expect("no test panics with it").drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::Relaxed);
        self.cut();
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, rate: u64, carried: &AtomicU64, is_held: impl Fn(u64) -> bool) {
    let mut buffer = [0; 4_096];
    while let Ok(count) = from.read(&mut buffer) {
        while is_held(carried.load(Ordering::Relaxed)) {
            thread::sleep(Duration::from_millis(1));
        }
        if count == 0 || to.write_all(&buffer[..count]).is_err() {
            break;
        }
        carried.fetch_add(count as u64, Ordering::Relaxed);
        thread::sleep(Duration::from_micros((count as u64 * 1_000_000).checked_div(rate).unwrap_or(0)));
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// A cluster of one node that keeps a backlog, and one that follows it over a line.
struct Sites {
    folder: Folder,
    near: ServerOptions,
    far: ServerOptions,
    line: Line,
}

impl Sites {
    fn new(rate: u64, words: &[&str]) -> Self {
        let folder = Folder::new();
        let near = ServerOptions::new(&folder.path().join("near"));
        let near = near.extra(&["--cores", "2", "--site-backlog-size", "256mb"]).extra(words);
        let line = Line::to(near.port, rate);
        let far = ServerOptions::new(&folder.path().join("far"));
        let far = far.extra(&["--cores", "3", "--follow", &line.address()]);
        Self { folder, near, far, line }
    }

    fn far_address(&self) -> String {
        format!("127.0.0.1:{}", self.far.port)
    }
}

/// A field of INFO, if the server answers.
fn told(client: &mut Client, name: &str) -> Option<String> {
    let info = client.try_call(&["INFO", "site"])?;
    let text = String::from_utf8_lossy(info.as_bytes()?).into_owned();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned))
}

fn get(port: u16, key: &str) -> Option<String> {
    let reply = Client::try_connect(port)?.try_call(&["GET", key])?;
    Some(String::from_utf8_lossy(reply.as_bytes()?).into_owned())
}

/// Waits until all that the near side has done up to now is at the far side.
#[track_caller]
fn wait_until_level(near: u16, far: u16, mark: &str) {
    wait_until("the near side takes a write", || {
        Client::try_connect(near)
            .and_then(|mut client| client.try_call(&["SET", "mark", mark]))
            .is_some_and(|reply| !reply.is_error())
    });
    wait_until("the far side has it", || get(far, "mark").as_deref() == Some(mark));
}

/// One change: of any type, in a transaction now and then, with deadlines that are moved in time.
fn change(client: &mut Client, prng: &mut Prng, _: u64) -> Option<()> {
    let (key, number) = (format!("k{}", prng.below(200)), prng.below(1_000).to_string());
    let words = match prng.below(16) {
        0..=2 => {
            let (from, to) = (prng.below(ACCOUNTS), prng.below(ACCOUNTS));
            client.try_call(&["MULTI"])?;
            client.try_call(&["DECR", &format!("account:{from}")])?;
            client.try_call(&["INCR", &format!("account:{to}")])?;
            return client.try_call(&["EXEC"]).map(|_| ());
        }
        3 => {
            client.try_call(&["SET", &format!("p{key}"), "1", "PX", "30"])?;
            client.try_call(&["INCR", &format!("p{key}")])?;
            return client.try_call(&["PERSIST", &format!("p{key}")]).map(|_| ());
        }
        4 => format!("SET s{key} {number} PX {}", 1 + prng.below(400)),
        5 => format!("RPUSH l{key} {number} {number}"),
        6 => format!("LPOP l{key}"),
        7 => format!("SADD set{key} {number} a{number}"),
        8 => format!("SPOP set{key}"),
        9 => format!("HSET h{key} f{number} {number}"),
        10 => format!("ZADD z{key} {number} m{number}"),
        11 => format!("XADD x{key} MAXLEN 20 * f {number}"),
        12 => format!("JSON.SET j{key} $ {{\"n\":{number}}}"),
        13 => format!("MSET a{key} {number} b{key} {number}"),
        14 => format!("DEL l{key} t{key} a{key}"),
        _ => format!("APPEND a{key} {number}"),
    };
    client.try_call(&words.split(' ').collect::<Vec<_>>()).map(|_| ())
}

fn sum(client: &mut Client) -> Option<i64> {
    let mut words = vec!["MGET".to_owned()];
    words.extend((0..ACCOUNTS).map(|number| format!("account:{number}")));
    let reply = client.try_call(&words)?;
    let values = reply.elements()?.iter().map(|value| std::str::from_utf8(value.as_bytes()?).ok()?.parse::<i64>().ok());
    values.sum()
}

/// Every key that does not expire, with its digest. When those that do are removed is another matter.
fn contents(port: u16) -> Vec<String> {
    let mut client = Client::try_connect(port).expect("it serves");
    let (mut lines, mut cursor) = (Vec::new(), "0".to_owned());
    loop {
        let reply = client.call(&["SCAN", &cursor, "COUNT", "1000"]);
        let elements = reply.elements().expect("a cursor and keys");
        for key in elements[1].elements().expect("keys") {
            let key = String::from_utf8_lossy(key.as_bytes().expect("a key")).into_owned();
            let digest = client.show(&format!("DEBUG DIGEST-VALUE {key}"));
            lines.push(format!("{key} {digest} {}", client.show(&format!("PEXPIRETIME {key}"))));
        }
        cursor = String::from_utf8_lossy(elements[0].as_bytes().expect("a cursor")).into_owned();
        if cursor == "0" {
            break;
        }
    }
    lines.retain(|line| !line.starts_with("{holdfast}:site ") && line.ends_with(" -1"));
    lines.sort();
    lines.dedup();
    lines
}

/// A pause of writers.
const PAUSE: Duration = Duration::from_micros(500);

fn open_accounts(port: u16) {
    let mut client = Client::try_connect(port).expect("it serves");
    let mut words = vec!["MSET".to_owned()];
    words.extend((0..ACCOUNTS).flat_map(|number| [format!("account:{number}"), ACCOUNT_START.to_string()]));
    assert_eq!(client.call(&words), Frame::Simple(b"OK".to_vec()));
}

/// Reads sums for so long; how many it has read.
fn watch(port: u16, duration: Duration) -> u64 {
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < duration {
        if let Some(sum) = Client::try_connect(port).and_then(|mut client| sum(&mut client)) {
            assert_eq!(sum, ACCOUNTS as i64 * ACCOUNT_START, "a transaction was torn");
            count += 1;
        }
        thread::sleep(Duration::from_millis(5));
    }
    count
}

#[test]
fn a_second_site_follows_through_cuts_and_kills_with_one_copy() {
    let sites = Sites::new(0, &["--checkpoint-log-bytes", "1048576"]);
    let mut near = Server::start(&sites.near);
    open_accounts(near.port());
    let mut client = near.client();
    client.call(&["HSET", "fields", "a", "1", "b", "2"]);
    client.call(&["HPEXPIRE", "fields", "1000000", "FIELDS", "1", "a"]);
    client.call(&["JSON.SET", "document", "$", "{\"a\":[1,2]}"]);
    client.call(&["FUNCTION", "LOAD", "#!lua name=l\nredis.register_function('f', function(k) return 1 end)"]);
    let mut far = Server::start(&sites.far);
    wait_until_level(near.port(), far.port(), "begin");
    let mut reader = far.client();
    let refused = reader.call(&["SET", "account:0", "0"]);
    assert!(refused.to_string().contains("READONLY"), "{refused}");
    assert!(reader.call(&["EVAL", "return redis.call('del', KEYS[1])", "1", "account:0"]).is_error());

    let writers = Writers::start(&[near.port()], 3, PAUSE, change);
    let (mut prng, mut sums) = (Prng::new(7), 0);
    for round in 0..8 {
        match round {
            2 | 5 => {
                near.kill();
                near = Server::start(&sites.near);
            }
            3 | 6 => {
                far.kill();
                far = Server::start(&sites.far);
            }
            _ => sites.line.cut(),
        }
        sums += watch(far.port(), Duration::from_millis(300 + prng.below(400)));
    }
    let count = writers.stop();
    wait_until_level(near.port(), far.port(), "end");
    // Keys with deadlines are removed where they are, and that is told.
    wait_until("both hold the same", || contents(near.port()) == contents(far.port()));
    let mut client = far.client();
    assert_eq!(told(&mut near.client(), "site_copies_sent").as_deref(), Some("0"), "since its last start");
    assert_eq!(told(&mut client, "site_copies_taken").as_deref(), Some("0"), "since its last start");
    assert!(client.show("FUNCTION LIST").contains("\"f\""), "functions are followed, too");
    wait_until("a sum is read at the far side", || watch(far.port(), Duration::from_millis(50)) > 0);
    say(&format!("{count} changes, {sums} sums at the far side, {} keys", contents(far.port()).len()));
    drop(sites.folder);
    far.stop();
    near.stop();
}

#[test]
fn groups_that_are_founded_at_the_near_side_are_followed_without_a_copy() {
    let sites = Sites::new(0, &["--checkpoint-log-bytes", "1048576"]);
    let mut near = Server::start(&sites.near);
    open_accounts(near.port());
    let far = Server::start(&sites.far);
    wait_until_level(near.port(), far.port(), "begin");
    let writers = Writers::start(&[near.port()], 2, PAUSE, change);
    let ask = |groups: &str| succeed(&["cluster", "groups", groups, "--port", &sites.near.port.to_string()]);
    assert!(ask("3").contains("there are 3 groups"));
    sites.line.cut();
    let mut sums = watch(far.port(), Duration::from_millis(500));
    // Killed while slots move to the fourth.
    assert_eq!(near.client().call(&["HOLDFAST", "GROUPS", "4"]), Frame::Simple(b"OK".to_vec()));
    sums += watch(far.port(), Duration::from_millis(500));
    near.kill();
    near = Server::start(&sites.near);
    assert!(ask("5").contains("there are 5 groups"));
    sums += watch(far.port(), Duration::from_millis(500));
    let count = writers.stop();
    wait_until_level(near.port(), far.port(), "end");
    wait_until("both hold the same", || contents(near.port()) == contents(far.port()));
    assert_eq!(told(&mut far.client(), "site_copies_taken").as_deref(), Some("1"), "the first");
    say(&format!("{count} changes, {sums} sums at the far side while groups were founded"));
    far.stop();
    near.stop();
}

/// Two groups of the near side go: one while the line is cut, and the near side dies right behind that.
#[test]
fn groups_of_the_near_side_go_and_the_far_side_follows_without_a_copy() {
    let sites = Sites::new(0, &["--checkpoint-log-bytes", "1048576"]);
    let mut near = Server::start(&sites.near);
    open_accounts(near.port());
    let far = Server::start(&sites.far);
    wait_until_level(near.port(), far.port(), "begin");
    let writers = Writers::start(&[near.port()], 2, PAUSE, change);
    let port = sites.near.port.to_string();
    let ask = |words: &[&str]| succeed(&[&["cluster"], words, &["--port", &port]].concat());
    assert!(ask(&["groups", "4"]).contains("there are 4 groups"));
    sites.line.cut();
    let mut sums = watch(far.port(), Duration::from_millis(500));
    assert!(ask(&["merge", "3", "0"]).contains("group 3 has been merged"));
    near.kill();
    near = Server::start(&sites.near);
    near.wait_for_log("has given up its replica: the group has been merged");
    sums += watch(far.port(), Duration::from_millis(500));
    assert!(ask(&["merge", "1", "2"]).contains("group 1 has been merged"));
    // What comes next has a number that the far side has not heard of.
    assert!(ask(&["groups", "3"]).contains("there are 3 groups"));
    sums += watch(far.port(), Duration::from_millis(500));
    let count = writers.stop();
    wait_until_level(near.port(), far.port(), "end");
    wait_until("both hold the same", || contents(near.port()) == contents(far.port()));
    assert_eq!(told(&mut far.client(), "site_copies_taken").as_deref(), Some("1"), "the first");
    say(&format!("{count} changes, {sums} sums at the far side while groups went"));
    far.stop();
    // The copy for another one is without them.
    let other = ServerOptions::new(&sites.folder.path().join("other"));
    let other = Server::start(&other.extra(&["--cores", "2", "--follow", &sites.line.address()]));
    wait_until_level(near.port(), other.port(), "other");
    wait_until("it holds the same", || contents(near.port()) == contents(other.port()));
    other.stop();
    near.stop();
}

#[test]
fn a_slow_line_costs_the_near_side_disk_alone_and_is_told() {
    let sites = Sites::new(20_000, &[]);
    let near = Server::start(&sites.near);
    open_accounts(near.port());
    let far = Server::start(&sites.far);
    wait_until_level(near.port(), far.port(), "begin");
    let mut client = near.client();
    let mut prng = Prng::new(3);
    for number in 0..3_000_u64 {
        let value: String = (0..40).map(|_| char::from(b'a' + prng.below(26) as u8)).collect();
        assert_eq!(client.call(&["SET", &format!("order:{}", number % 1_000), &value]), Frame::Simple(b"OK".to_vec()));
    }
    // What was written without waiting is not there yet, and that is said.
    wait_until("it is told what is lacking", || {
        told(&mut far.client(), "site_lag_ms").and_then(|lag| lag.parse::<u64>().ok()).is_some_and(|lag| lag > 0)
    });
    let shown = succeed(&["site", "status", "--server", &sites.far_address()]);
    assert!(shown.contains("follows") && shown.contains("ratio"), "{shown}");
    wait_until_level(near.port(), far.port(), "end");
    assert_eq!(contents(near.port()), contents(far.port()));
    far.stop();
    near.stop();
}

#[test]
fn a_second_site_is_promoted_when_the_first_is_lost_and_not_before() {
    let sites = Sites::new(0, &[]);
    let near = Server::start(&sites.near);
    open_accounts(near.port());
    let far = Server::start(&sites.far);
    wait_until_level(near.port(), far.port(), "begin");
    let address = sites.far_address();
    // That the copy is whole is known at the far side somewhat later than its last key is there.
    wait_until("the far side has its copy and hears the near one", || {
        let told = succeed(&["site", "status", "--server", &address]);
        told.contains("phase         following") && told.contains("link          up")
    });
    let told = fail(&["site", "promote", "--server", &address]);
    assert!(told.contains("still serves"), "{told}");
    let told = fail(&["site", "tail", "--from", &format!("127.0.0.1:{}", near.port()), "--server", &address]);
    assert!(told.contains("was not promoted"), "{told}");
    // What is written behind the cut is lost, and nobody at the far side can know of it.
    sites.line.set_down(true);
    near.client().call(&["SET", "late", "1"]);
    near.kill();
    wait_until("the far side knows of the cut", || {
        succeed(&["site", "status", "--server", &address]).contains("link          down")
    });
    let told = succeed(&["site", "promote", "--server", &address]);
    assert!(told.contains("promoted") && told.contains("nothing was known to be missing"), "{told}");
    let mut client = far.client();
    assert_eq!(client.show("SET late 2"), "OK");
    assert_eq!(client.show("CONFIG GET import-mode"), "[\"import-mode\", \"no\"]");
    assert_eq!(sum(&mut client), Some(ACCOUNTS as i64 * ACCOUNT_START));
    // It stays so, whatever the command line says, and also if the first site comes back.
    far.kill();
    let near = Server::start(&sites.near);
    sites.line.set_down(false);
    let far = Server::start(&sites.far);
    wait_until("it takes writes", || far.client().show("SET late 3") == "OK");
    assert!(fail(&["site", "promote", "--server", &address]).contains("promoted already"));
    // What it was promoted without is found at the first site.
    let tail = succeed(&["site", "tail", "--from", &format!("127.0.0.1:{}", near.port()), "--server", &address]);
    let events: Vec<serde_json::Value> = tail.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let [event] = &events[..] else { panic!("{tail}") };
    assert_eq!(event["effects"][0]["command"], serde_json::json!(["SET", "late", "1"]));
    assert!(tail.contains("1 transaction with 1 change"), "{tail}");
    let told = fail(&["site", "tail", "--from", &address, "--server", &address]);
    assert!(told.contains("CHANGES is refused"), "{told}");
    far.stop();
    near.stop();
}

#[test]
fn a_site_is_handed_over_without_loss_while_clients_write() {
    let sites = Sites::new(0, &[]);
    let near = Server::start(&sites.near);
    open_accounts(near.port());
    let far = Server::start(&sites.far);
    wait_until_level(near.port(), far.port(), "begin");
    let is_over = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..3)
        .map(|nth| {
            let (mut client, is_over) = (near.client(), Arc::clone(&is_over));
            thread::spawn(move || {
                let mut last = 0;
                while !is_over.load(Ordering::Relaxed) {
                    match client.call(&["INCR", &format!("counter:{nth}")]) {
                        Frame::Integer(number) => last = number,
                        refused => assert!(refused.to_string().contains("NOREPLICAS"), "{refused}"),
                    }
                }
                last
            })
        })
        .collect();
    let (from, address) = (format!("127.0.0.1:{}", near.port()), sites.far_address());
    wait_until("the far side has its copy and hears the near one", || {
        let told = succeed(&["site", "status", "--server", &address]);
        told.contains("phase         following") && told.contains("link          up")
    });
    let told = succeed(&["site", "handover", "--from", &from, "--server", &address, "--pause", "60"]);
    is_over.store(true, Ordering::Relaxed);
    for (nth, writer) in writers.into_iter().enumerate() {
        let acknowledged = writer.join().expect("a writer");
        assert_eq!(get(far.port(), &format!("counter:{nth}")), Some(acknowledged.to_string()), "{told}");
    }
    assert_eq!(far.client().show("INCR counter:0").split(' ').next(), Some("(integer)"));
    say(told.trim());
    far.stop();
    near.stop();
}

#[test]
fn another_node_tells_on_when_the_one_that_was_followed_dies() {
    let mut near = Cluster::start_with_groups(3, 2);
    for node in 0..3 {
        near.options_mut(node).extra.extend(["--site-backlog-size".to_owned(), "64mb".to_owned()]);
        near.kill(node);
        near.restart(node);
    }
    near.wait_for_answer(0);
    near.wait_until("accounts are open", |this| {
        let mut words = vec!["MSET".to_owned()];
        words.extend((0..ACCOUNTS).flat_map(|number| [format!("account:{number}"), ACCOUNT_START.to_string()]));
        this.try_client(0).and_then(|mut client| client.try_call(&words)).is_some_and(|reply| !reply.is_error())
    });
    let addresses: Vec<String> = (0..3).map(|node| near.address(node)).collect();
    let ports: Vec<u16> = (0..3).map(|node| near.node(node).port()).collect();
    let folder = Folder::new();
    let options = ServerOptions::new(&folder.path().join("far"));
    let far = Server::start(&options.extra(&["--cores", "1", "--follow", &addresses.join(",")]));
    wait_until("the far side has a copy", || get(far.port(), "account:0").is_some());
    let writers = Writers::start(&ports[1..], 2, PAUSE, change);
    let mut sums = watch(far.port(), Duration::from_millis(700));
    near.kill(0);
    sums += watch(far.port(), Duration::from_millis(1_500));
    let count = writers.stop();
    wait_until_level(ports[1], far.port(), "end");
    wait_until("both hold the same", || contents(ports[1]) == contents(far.port()));
    assert_eq!(told(&mut far.client(), "site_copies_taken").as_deref(), Some("1"), "{}", far.log());
    say(&format!("{count} changes, {sums} sums at the far side"));
    far.stop();
}

/// Words that compress badly.
fn noise(prng: &mut Prng, length: usize) -> String {
    (0..length).map(|_| char::from(b'0' + prng.below(75) as u8)).collect()
}

#[test]
fn a_copy_goes_on_where_it_was_cut() {
    let sites = Sites::new(500_000, &[]);
    let near = Server::start(&sites.near);
    open_accounts(near.port());
    let (mut client, mut prng) = (near.client(), Prng::new(11));
    client.call(&["FUNCTION", "LOAD", "#!lua name=l\nredis.register_function('f', function(k) return 1 end)"]);
    for key in 0..300_u64 {
        client.call(&["SELECT", &(key % 3).to_string()]);
        client.call(&["SET", &format!("k{key}"), &noise(&mut prng, 8_000)]);
        client.call(&["RPUSH", &format!("l{key}"), "a", "b"]);
    }
    // It is held there, so that it is cut there.
    sites.line.hold_at(20 * 16_000);
    let mut far = Server::start(&sites.far);
    for (percent, next) in [(20, 50), (50, 70), (70, 90), (90, u64::MAX / 16_000)] {
        wait_until("so much of the copy has come", || sites.line.carried.load(Ordering::Relaxed) >= percent * 16_000);
        sites.line.hold_at(next * 16_000);
        if percent == 70 {
            far.kill();
            far = Server::start(&sites.far);
        } else {
            sites.line.cut();
        }
        // What changes meanwhile comes behind the copy.
        client.call(&["RPUSH", "l0", &percent.to_string()]);
    }
    wait_until_level(near.port(), far.port(), "end");
    assert_eq!(contents(near.port()), contents(far.port()));
    let log = far.log();
    let count = |words: &str| log.matches(words).count();
    assert_eq!(count("takes a copy of the followed site"), 1, "{log}");
    assert_eq!((count("continues the copy"), count("the copy of the followed site is complete")), (4, 1), "{log}");
    assert!(far.client().show("FUNCTION LIST").contains("\"f\""));
    say(&format!("{} bytes were carried", sites.line.carried.load(Ordering::Relaxed)));
    far.stop();
    near.stop();
}

#[test]
fn a_chain_goes_on_without_its_middle() {
    let sites = Sites::new(0, &[]);
    let near = Server::start(&sites.near);
    open_accounts(near.port());
    let middle = Server::start(&sites.far.clone().extra(&["--site-backlog-size", "64mb"]));
    wait_until_level(near.port(), middle.port(), "middle");
    let options = ServerOptions::new(&sites.folder.path().join("end"));
    let addresses = format!("127.0.0.1:{},127.0.0.1:{}", middle.port(), near.port());
    let end = Server::start(&options.extra(&["--cores", "2", "--follow", &addresses]));
    wait_until_level(near.port(), end.port(), "end");
    let shown = succeed(&["site", "status", "--server", &format!("127.0.0.1:{}", end.port())]);
    assert!(shown.contains("which follows"), "{shown}");
    // While the middle is behind, the end is: a deadline that was moved meanwhile is no deadline. A busy machine may
    // take longer than there is until the deadline.
    let mut deadlines_ms = [4_000, 16_000, 64_000].into_iter();
    let deadline_ms = loop {
        let deadline_ms = deadlines_ms.next().expect("the end has it before it expires");
        near.client().call(&["SET", "kept", "1", "PX", &deadline_ms.to_string()]);
        let begun = Instant::now();
        while get(end.port(), "kept").is_none() && begun.elapsed() < Duration::from_millis(deadline_ms) {
            thread::sleep(Duration::from_millis(10));
        }
        sites.line.set_down(true);
        if near.client().show("PERSIST kept") == "(integer) 1" && get(end.port(), "kept").is_some() {
            break deadline_ms;
        }
        sites.line.set_down(false);
    };
    thread::sleep(Duration::from_millis(deadline_ms + 1_500));
    sites.line.set_down(false);
    wait_until_level(near.port(), end.port(), "persisted");
    assert_eq!(get(end.port(), "kept").as_deref(), Some("1"));
    let writers = Writers::start(&[near.port()], 2, PAUSE, change);
    let mut sums = watch(end.port(), Duration::from_millis(700));
    middle.kill();
    sums += watch(end.port(), Duration::from_millis(700));
    let count = writers.stop();
    wait_until_level(near.port(), end.port(), "over");
    wait_until("both hold the same", || contents(near.port()) == contents(end.port()));
    assert_eq!(told(&mut end.client(), "site_copies_taken").as_deref(), Some("1"), "{}", end.log());
    assert!(end.log().contains("which the site before has followed"), "{}", end.log());
    assert_eq!(end.client().show("EXISTS {holdfast}:origin"), "(integer) 0");
    say(&format!("{count} changes, {sums} sums at the end of the chain"));
    end.stop();
    near.stop();
}

/// A node that was away, and finds nobody, has no more than what the far side has. What comes behind that must not be
/// carried out again.
#[test]
fn a_node_that_lacks_what_the_far_side_has_takes_nothing_back() {
    let mut near = Cluster::start_with_groups(3, 1);
    for node in 0..3 {
        near.options_mut(node).extra.extend(["--site-backlog-size".to_owned(), "64mb".to_owned()]);
        near.kill(node);
        near.restart(node);
    }
    let folder = Folder::new();
    let addresses = format!("{},{}", near.address(1), near.address(0));
    let options = ServerOptions::new(&folder.path().join("far"));
    let far = Server::start(&options.extra(&["--cores", "1", "--follow", &addresses]));
    wait_until_level(near.node(0).port(), far.port(), "begin");
    near.kill(1);
    near.wait_until("a write is taken", |this| {
        this.try_client(0).is_some_and(|mut client| !client.call(&["SET", "a", "1"]).is_error())
    });
    let mut client = near.node(0).client();
    (0..200).for_each(|number| assert!(!client.call(&["RPUSH", "list", &number.to_string()]).is_error()));
    wait_until("the far side has all of it", || far.client().show("LLEN list") == "(integer) 200");
    near.kill(0);
    near.kill(2);
    near.respawn(1);
    let is_heard = || {
        let mut client = far.client();
        told(&mut client, "site_state").as_deref() == Some("following")
            && told(&mut client, "site_lag_ms").is_some_and(|lag| lag != "0")
    };
    wait_until("it hears a node that lacks something", is_heard);
    thread::sleep(Duration::from_millis(1_500));
    near.kill(1);
    (0..3).for_each(|node| near.respawn(node));
    near.wait_for_answer(0);
    wait_until_level(near.node(0).port(), far.port(), "end");
    assert_eq!(far.client().show("LLEN list"), "(integer) 200");
    assert_eq!(told(&mut far.client(), "site_copies_taken").as_deref(), Some("1"), "{}", far.log());
    far.stop();
}

#[test]
fn a_rehearsal_is_taken_back() {
    let sites = Sites::new(0, &[]);
    let near = Server::start(&sites.near);
    open_accounts(near.port());
    let far = Server::start(&sites.far);
    wait_until_level(near.port(), far.port(), "begin");
    let (address, directory) = (sites.far_address(), sites.folder.path().join("drill"));
    wait_until("its copy is complete", || {
        succeed(&["site", "status", "--server", &address]).contains("phase         following")
    });
    let script = "\"$0\" cli -p \"${HOLDFAST_DRILL##*:}\" SET account:0 7 && \"$0\" cli -p \"${HOLDFAST_DRILL##*:}\" GET account:1";
    let mut words = vec!["site", "drill", "--server", &address, "--directory", text(&directory)];
    let binary = binary();
    words.extend(["--", "sh", "-c", script, text(&binary)]);
    let told = succeed(&words);
    assert!(told.contains("OK") && told.contains("100") && told.contains("its data are deleted"), "{told}");
    assert!(!directory.exists());
    assert_eq!(get(far.port(), "account:0").as_deref(), Some("100"), "the second site knows nothing of it");
    wait_until_level(near.port(), far.port(), "end");
    let last = words.len() - 5;
    let refused = fail(&[&words[..last], &["--", "false"]].concat());
    assert!(refused.contains("false has failed"), "{refused}");
    assert!(!directory.exists());
    let refused = fail(&["site", "drill", "--server", &format!("127.0.0.1:{}", near.port())]);
    assert!(refused.contains("follows no other one"), "{refused}");
    far.stop();
    near.stop();
}

/// The node that follows holds none of the groups that have keys: they are seen all the same.
#[test]
fn only_an_empty_cluster_begins_to_follow_whatever_its_node_holds() {
    let mut cluster = Cluster::start_with_groups(2, 4);
    cluster.set_away_from(1);
    let (mut client, mut other) = (cluster.client(0), cluster.client(1));
    assert_eq!(cluster.ask(&mut other, "DBSIZE"), "(integer) 1");
    cluster.kill(1);
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = nobody.local_addr().expect("an address").to_string();
    let options = cluster.options[1].clone().extra(&["--follow", &address]);
    let follower = Server::start(&options);
    wait_until("it says why it does not follow", || {
        follower.log().contains("only an empty cluster can begin to follow, and this one has keys")
    });
    assert_eq!(cluster.ask(&mut client, "DBSIZE"), "(integer) 1");
    assert_eq!(cluster.ask(&mut client, "SET other mine"), "OK", "it is not closed for writes");
    follower.stop();
}

/// Functions are data, too: a copy of the near site would remove them.
#[test]
fn a_site_that_holds_functions_alone_does_not_begin_to_follow() {
    let sites = Sites::new(0, &[]);
    let near = Server::start(&sites.near);
    let mut alone = sites.far.clone();
    alone.extra.truncate(2); // without --follow
    let far = Server::start(&alone);
    let library = "#!lua name=mine\nredis.register_function('f', function() return 1 end)";
    assert!(!far.client().call(&["FUNCTION", "LOAD", library]).is_error());
    far.stop();
    let far = Server::start(&sites.far);
    far.wait_for_log("only an empty cluster can begin to follow, and this one has functions");
    assert!(far.client().show("FUNCTION LIST").contains("mine"), "nothing is removed");
    far.stop();
    let far = Server::start(&alone);
    assert_eq!(far.client().show("FCALL f 0"), "(integer) 1");
    assert_eq!(far.client().show("FUNCTION FLUSH"), "OK");
    far.stop();
    let far = Server::start(&sites.far);
    assert_eq!(near.client().show("SET first 1"), "OK");
    wait_until("it follows now", || get(far.port(), "first").is_some());
    far.stop();
    near.stop();
}

/// A cluster that closes itself for clients looks whether it is empty behind closed doors: what was answered before is
/// not lost, and what was queued before is not done afterwards. Not all of its nodes know that it is about to follow.
#[test]
fn what_a_client_writes_while_a_site_closes_itself_is_not_lost() {
    let sites = Sites::new(0, &[]);
    let near = Server::start(&sites.near);
    near.client().call(&["SET", "mark", "1"]);
    let mut cluster = Cluster::start_with_groups(2, 2);
    let (mut client, mut queued) = (cluster.client(0), cluster.client(0));
    assert_eq!(cluster.ask(&mut client, "SET own 1"), "OK");
    assert_eq!((queued.show("MULTI"), queued.show("SET late 1")), ("OK".to_owned(), "QUEUED".to_owned()));
    cluster.kill(1);
    let follows = cluster.options[1].clone().extra(&["--follow", &sites.line.address()]);
    let follower = Server::start(&follows);
    let (mut is_there, mut writes) = (true, 0);
    let begun = Instant::now();
    while client.show("GET mark") != "\"1\"" {
        assert!(begun.elapsed() < Duration::from_secs(100), "it does not follow: {is_there}");
        for _ in 0..20 {
            match client.show(if is_there { "DEL own" } else { "SET own 1" }).as_str() {
                "(integer) 1" | "OK" => (is_there, writes) = (!is_there, writes + 1),
                refused if refused.contains("READONLY") => {}
                // Nobody leads for a moment.
                _ => is_there = cluster.ask(&mut client, "EXISTS own") == "(integer) 1",
            }
        }
    }
    assert!(!is_there, "a client was told that its key is there, and then this cluster was emptied");
    let answer = queued.show("EXEC");
    assert!(answer.contains("READONLY"), "{answer}");
    assert_eq!(client.show("EXISTS late"), "(integer) 0");
    say(&format!("{writes} writes were answered"));
    follower.stop();
    near.stop();
}

/// Whether it is empty cannot be found out behind closed doors, as it takes no write: then it does not stay closed.
#[test]
fn a_site_that_cannot_look_behind_closed_doors_is_opened_again() {
    let sites = Sites::new(0, &[]);
    let near = Server::start(&sites.near);
    let options = ServerOptions::new(&sites.folder.path().join("alone"));
    let words = ["--cores", "1", "--min-replicas-to-write", "1", "--follow", &sites.line.address()];
    let far = Server::start(&options.extra(&words));
    far.wait_for_log("this cluster has not begun to follow, and takes writes again");
    far.wait_for_log("this cluster does not take what it follows: NOREPLICAS");
    let mut client = far.client();
    wait_until("clients are not refused as those of a site", || client.show("SET own 1").contains("NOREPLICAS"));
    wait_until("deadlines are kept", || client.show("CONFIG GET import-mode").contains("\"no\""));
    assert_eq!(near.client().show("SET first 1"), "OK");
    assert_eq!(client.show("CONFIG SET min-replicas-to-write 0"), "OK");
    wait_until("it follows now", || get(far.port(), "first").is_some());
    assert!(client.show("SET own 1").contains("READONLY"));
    far.stop();
    near.stop();
}

/// What the two levels do with the same words must be the same at both sites.
fn change_by_level(client: &mut Client, round: &str) {
    let stream = format!("stream:{round}");
    for number in 1..=5 {
        client.call(&["XADD", &stream, &format!("{number}-0"), "f", "v"]);
    }
    client.call(&["XDEL", &stream, "4-0", "5-0"]);
    client.call(&["XSETID", &stream, "3-0"]);
    client.call(&["XGROUP", "CREATE", &stream, "g", "0", "ENTRIESREAD", "1000"]);
    client.call(&["XGROUP", "CREATE", &stream, "h", "0"]);
    client.call(&["XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "STREAMS", &stream, ">"]);
    client.call(&["XREADGROUP", "GROUP", "h", "c", "COUNT", "2", "STREAMS", &stream, ">"]);
    client.call(&["PFADD", &format!("sketch:{round}"), "a", "b"]);
    client.call(&["PFCOUNT", &format!("sketch:{round}")]);
    let document = format!("document:{round}");
    client.call(&["JSON.SET", &document, "$", r#"{"a":1,"b":2,"c":3,"d":{"x":1,"y":2,"z":3},"10":1,"9":1}"#]);
    client.call(&["JSON.DEL", &document, "$.a"]);
    client.call(&["JSON.DEL", &document, "$.d['x','y']"]);
    client.call(&["JSON.MERGE", &document, "$", r#"{"b":null,"e":5}"#]);
}

fn show_by_level(port: u16, round: &str) -> Vec<String> {
    let mut client = Client::try_connect(port).expect("it serves");
    // What else a group tells depends on the level at which it is asked.
    let stream = client.show(&format!("XINFO STREAM stream:{round} FULL"));
    let field = |name: &str| {
        let at = stream.find(&format!("\"{name}\"")).unwrap_or_else(|| panic!("{name}: {stream}"));
        stream[at..].chars().take(60).collect::<String>()
    };
    vec![
        field("last-generated-id"),
        field("max-deleted-entry-id"),
        field("entries-added"),
        client.show(&format!("GET sketch:{round}")),
        client.show(&format!("JSON.GET document:{round}")),
    ]
}

fn level_of(port: u16) -> String {
    let info = Client::try_connect(port).expect("it serves").show("INFO cluster");
    let at = info.find("cluster_level:").expect("a level") + "cluster_level:".len();
    info[at..].chars().take_while(char::is_ascii_digit).collect()
}

fn raise(port: u16) {
    let mut client = Client::try_connect(port).expect("it serves");
    client.show("HOLDFAST UPGRADE");
    wait_until("the level is raised", || level_of(port) == "2");
}

#[test]
fn sites_of_different_levels_do_the_same() {
    let sites = Sites::new(0, &[]);
    let older = sites.near.clone().extra(&["--level-max", "1"]);
    let near = Server::start(&older);
    assert_eq!(level_of(near.port()), "1");
    let far = Server::start(&sites.far);
    wait_until("the level of a new cluster", || level_of(far.port()) == "2");
    wait_until_level(near.port(), far.port(), "begin");
    change_by_level(&mut near.client(), "1");
    wait_until_level(near.port(), far.port(), "first");
    assert_eq!(show_by_level(near.port(), "1"), show_by_level(far.port(), "1"));
    assert!(show_by_level(near.port(), "1")[4].contains(r#"\"c\":3,\"d\":{\"z\":3},\"10\":1,\"9\":1,\"e\":5"#));

    // It rises, and what comes then is done as the higher level has it.
    near.stop();
    let near = Server::start(&sites.near);
    raise(near.port());
    change_by_level(&mut near.client(), "2");
    wait_until_level(near.port(), far.port(), "second");
    assert_eq!(show_by_level(near.port(), "2"), show_by_level(far.port(), "2"));
    // `9` has come into the place of `a`, and then `10` into that of `b`.
    let document = &show_by_level(near.port(), "2")[4];
    assert!(document.contains(r#"{\"9\":1,\"10\":1,\"c\":3,\"d\":{\"z\":3},\"e\":5}"#), "{document}");
    assert_eq!(told(&mut far.client(), "site_copies_taken").as_deref(), Some("1"));
    far.stop();
    near.stop();
}

#[test]
fn a_site_below_the_level_of_the_followed_one_waits_and_says_so() {
    let sites = Sites::new(0, &[]);
    let near = Server::start(&sites.near);
    near.client().call(&["SET", "mark", "1"]);
    let older = sites.far.clone().extra(&["--level-max", "1"]);
    let far = Server::start(&older);
    let last = |far: &Server, what: &str| {
        told(&mut far.client(), "site_last_cut").is_some_and(|why| why.contains(what) && why.contains("at level 2"))
    };
    wait_until("it says what it does not know", || last(&far, "knows level 1"));
    assert_eq!(far.client().show("EXISTS mark"), "(integer) 0");
    far.stop();

    let far = Server::start(&sites.far);
    wait_until("it says that its level must be raised", || last(&far, "holdfast cluster upgrade"));
    assert_eq!(far.client().show("EXISTS mark"), "(integer) 0");
    raise(far.port());
    wait_until("it follows", || far.client().show("GET mark") == "\"1\"");
    far.stop();
    near.stop();
}
