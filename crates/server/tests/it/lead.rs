//! A stock Redis that follows ours: through cuts and restarts it holds what ours holds, sees no transaction torn, and
//! takes over when it is told to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use resp::Frame;
use stdx::Prng;

use crate::cluster::Cluster;
use crate::harness::{
    Client, Folder, PATIENCE, Policy, Server, ServerOptions, Stock, binary, both, free_port, number_from_environment,
    say, succeed,
};

/// Longer than any copy of a few keys, and any restart.
const ACCOUNTS: u64 = 20;
const ACCOUNT_START: i64 = 100;

fn migrate(words: &[&str]) -> Output {
    Command::new(binary()).arg("migrate").args(words).output().expect("the binary runs")
}

/// A field of INFO replication, if the server answers.
fn told(client: &mut Client, name: &str) -> Option<String> {
    let info = client.try_call(&["INFO", "replication"])?;
    let text = String::from_utf8_lossy(info.as_bytes()?).into_owned();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned))
}

fn number(client: &mut Client, name: &str) -> u64 {
    told(client, name).and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// Waits until a Redis follows.
#[track_caller]
fn wait_until_linked(stock: &Stock) {
    let begun = Instant::now();
    while told(&mut stock.client(), "master_link_status").as_deref() != Some("up") {
        assert!(begun.elapsed() < PATIENCE, "it does not follow");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until a Redis has all that ours has told, while nobody writes.
#[track_caller]
fn wait_until_same(server: &Server, stock: &Stock) {
    let begun = Instant::now();
    let (mut ours, mut theirs) = (server.client(), stock.client());
    let mut settled = Instant::now();
    let mut before = 0;
    loop {
        let (offset, followed) = (number(&mut ours, "stream_offset"), number(&mut theirs, "slave_repl_offset"));
        if offset != before || followed < offset {
            (before, settled) = (offset, Instant::now());
        }
        if settled.elapsed() > Duration::from_millis(800) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{followed} of {offset} bytes");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Compares all keys with their values and deadlines.
#[track_caller]
fn compare(server: &Server, stock: &Stock) -> String {
    let (from, place) = (format!("redis://127.0.0.1:{}", stock.port()), format!("127.0.0.1:{}", server.port()));
    let verified = migrate(&["verify", "--from", &from, "--server", &place]);
    assert!(verified.status.success(), "{}", both(&verified));
    both(&verified).lines().next().unwrap_or_default().to_owned()
}

/// One change of any kind.
fn change(client: &mut Client, prng: &mut Prng) -> Option<()> {
    let key = format!("k{}", prng.below(100));
    let other = format!("k{}", prng.below(100));
    let number = prng.below(1_000).to_string();
    let line = match prng.below(34) {
        0..=5 => return transfer(client, prng),
        6 => format!("SET s{key} {number} PX {}", 1 + prng.below(600)),
        7 => format!("RPUSH l{key} {number} {number} {number}"),
        8 => format!("LPOP l{key} 2"),
        9 => format!("BLPOP l{key} l{key} 0.01"),
        10 => format!("BLMOVE l{key} l{other} LEFT RIGHT 0.01"),
        11 => format!("SADD set{key} {number} a{number}"),
        12 => format!("SPOP set{key} 2"),
        13 => format!("HSET h{key} f{number} {number}"),
        14 => format!("HINCRBYFLOAT h{key} x 0.1"),
        15 => format!("ZADD z{key} {number} m{number}"),
        16 => format!("BZPOPMIN z{key} 0.01"),
        17 => format!("XADD x{key} MAXLEN ~ 20 * f {number}"),
        18 => format!("XGROUP CREATE x{key} g 0 MKSTREAM"),
        19 => format!("XREADGROUP GROUP g c{number} COUNT 3 STREAMS x{key} >"),
        20 => format!("XAUTOCLAIM x{key} g d 0 0 COUNT 2"),
        21 => format!("INCRBYFLOAT n{key} 0.5"),
        22 => format!("RENAME s{key} t{other}"),
        23 => format!("GETEX s{key} PX 300"),
        24 => {
            "EVAL return{redis.call('incr',KEYS[1]),redis.call('append',KEYS[2],'x'),redis.call('spop',KEYS[3])} 3"
                .to_owned()
                + &format!(" i{key} a{other} set{key}")
        }
        25 => format!("DEL l{key} t{key}"),
        26 => format!("COPY h{key} hh{other} REPLACE"),
        27 => format!("SUNIONSTORE set{other} set{key} set{other}"),
        28 => format!("MSETEX 2 s{key} 1 s{other} 2 PX 200"),
        29 => format!("PFADD pf{key} {number}"),
        30 => format!("EXPIRE h{key} 1"),
        31 => format!("GETDEL t{key}"),
        32 => format!("LMPOP 2 l{key} l{other} RIGHT COUNT 3"),
        _ => format!("APPEND a{key} {number}"),
    };
    client.try_call(&line.split(' ').collect::<Vec<_>>()).map(|_| ())
}

/// From one account to another, mostly of another group: the sum of all never changes.
fn transfer(client: &mut Client, prng: &mut Prng) -> Option<()> {
    let (from, to) = (prng.below(ACCOUNTS), prng.below(ACCOUNTS));
    client.try_call(&["MULTI"])?;
    client.try_call(&["DECR", &format!("account:{from}")])?;
    client.try_call(&["INCR", &format!("account:{to}")])?;
    client.try_call(&["EXEC"]).map(|_| ())
}

fn sum(client: &mut Client) -> Option<i64> {
    let mut words = vec!["MGET".to_owned()];
    words.extend((0..ACCOUNTS).map(|number| format!("account:{number}")));
    let reply = client.try_call(&words)?;
    let values = reply.elements()?.iter().map(|value| std::str::from_utf8(value.as_bytes()?).ok()?.parse::<i64>().ok());
    values.sum()
}

/// Clients that write until they are told to stop, to anyone who listens at this port.
struct Writers {
    threads: Vec<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
}

impl Writers {
    fn start(port: u16) -> Self {
        let (is_over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = (1..=3).map(|seed| {
            let (is_over, count) = (Arc::clone(&is_over), Arc::clone(&count));
            thread::spawn(move || {
                let mut prng = Prng::new(seed);
                while !is_over.load(Ordering::Relaxed) {
                    let Some(mut client) = Client::try_connect(port) else {
                        thread::sleep(Duration::from_millis(10));
                        continue;
                    };
                    while !is_over.load(Ordering::Relaxed) && change(&mut client, &mut prng).is_some() {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        });
        Self { threads: threads.collect(), is_over, count }
    }

    fn stop(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("a writer"));
        self.count.load(Ordering::Relaxed)
    }
}

/// Looks at the replica for a while: no transfer is ever seen torn.
fn look(stock: &Stock, duration: Duration) -> u64 {
    let (begun, mut sums) = (Instant::now(), 0);
    let mut client = stock.client();
    while begun.elapsed() < duration {
        if let Some(sum) = sum(&mut client) {
            assert_eq!(sum, ACCOUNTS as i64 * ACCOUNT_START, "a transaction was torn");
            sums += 1;
        }
    }
    sums
}

fn fill(server: &Server) {
    let mut ours = server.client();
    for number in 0..ACCOUNTS {
        ours.call(&["SET", &format!("account:{number}"), &ACCOUNT_START.to_string()]);
    }
    for number in 0..500 {
        ours.call(&["SET", &format!("old:{number}"), &"v".repeat(number % 300)]);
    }
    let library = "#!lua name=l\nredis.register_function{function_name='f', callback=function(k) return 1 end, flags={'no-writes'}}";
    ours.call(&["FUNCTION", "LOAD", library]);
    ours.call(&["SELECT", "3"]);
    ours.call(&["SET", "elsewhere", "1"]);
}

fn end(server: Server, is_killed: bool) {
    if is_killed {
        server.kill();
    } else {
        server.stop();
    }
}

#[test]
fn a_redis_that_follows_holds_what_ours_holds_through_cuts_and_restarts_and_takes_over() {
    let folder = Folder::new();
    let Some(mut stock) = Stock::start(&folder.path().join("redis"), &[]) else { return };
    let options = ServerOptions::new(&folder.path().join("data")).extra(&["--cores", "2"]);
    let mut server = Server::start(&options);
    fill(&server);
    let ours = server.port().to_string();
    let writers = Writers::start(server.port());
    stock.client().call(&["REPLICAOF", "127.0.0.1", &ours]);
    wait_until_linked(&stock);

    let mut sums = 0;
    for round in 0..7 {
        match round {
            // A replica that was away goes on where it was …
            0..=2 => {
                let before = number(&mut server.client(), "stream_continued");
                stock.client().call(&["CLIENT", "KILL", "TYPE", "master"]);
                let begun = Instant::now();
                while number(&mut server.client(), "stream_continued") == before {
                    assert!(begun.elapsed() < PATIENCE, "it does not go on where it was");
                    thread::sleep(Duration::from_millis(20));
                }
            }
            // … a new one takes a copy …
            3 => {
                drop(stock);
                stock = Stock::start(&folder.path().join("other"), &["--replicaof", "127.0.0.1", &ours])
                    .expect("there was one before");
            }
            // … one of a server that ends or dies goes on …
            4 | 5 => {
                end(server, round == 4);
                server = Server::start(&options);
                server.wait_for_log("goes on at byte");
            }
            // … and one of a server that has lost its stream takes a copy.
            _ => {
                server.kill();
                for name in [".redis-stream", ".redis-stream-state"] {
                    std::fs::remove_file(folder.path().join("data").join(name)).expect("it is there");
                }
                server = Server::start(&options);
            }
        }
        wait_until_linked(&stock);
        sums += look(&stock, Duration::from_millis(500));
    }
    let count = writers.stop();
    wait_until_same(&server, &stock);
    let compared = compare(&server, &stock);
    assert_eq!(stock.client().show("FCALL_RO f 0"), "(integer) 1");
    let role = server.client().show("ROLE");
    assert!(role.contains(&stock.port().to_string()), "{role}");

    // The copy that redis-cli takes is whole.
    let file = folder.path().join("copy.rdb");
    let taken = Command::new("redis-cli").args(["-p", &ours, "--rdb"]).arg(&file).output();
    if let Ok(taken) = taken {
        assert!(taken.status.success(), "{}", both(&taken));
        let checked = Command::new("redis-check-rdb").arg(&file).output().expect("it comes with redis-cli");
        assert!(checked.status.success(), "{}", both(&checked));
    }
    say(&format!("{count} changes, {sums} sums; {compared}"));

    // What redis-cli prints begins with a copy of nothing, as it asks for.
    let mut printing = Played::follow(server.port(), &["REPLCONF rdb-filter-only "]).expect("a copy");
    assert!(printing.copy.len() < 100, "{} bytes", printing.copy.len());
    server.client().call(&["SET", "printed", "1"]);
    // It is asked behind that how far it is.
    server.client().show("WAIT 2 50");
    assert!(printing.answer("SET printed 1", false).contains(&"SET printed 1".to_owned()));
    drop(printing);

    // And back: what is written until the end is there, and nothing after it is taken here.
    let (from, place) = (format!("redis://127.0.0.1:{}", stock.port()), format!("127.0.0.1:{ours}"));
    let prepared = migrate(&["back", "--prepare", "--from", &from, "--server", &place]);
    assert!(prepared.status.success(), "{}", both(&prepared));
    let writers = Writers::start(server.port());
    thread::sleep(Duration::from_millis(500));
    let back = migrate(&["back", "--from", &from, "--server", &place]);
    assert!(back.status.success(), "{}", both(&back));
    writers.stop();
    let refused = server.client().show("SET late 1");
    assert!(refused.contains("NOREPLICAS"), "{refused}");
    assert_eq!(stock.client().show("SET late 1"), "OK");
    stock.client().call(&["DEL", "late"]);
    assert_eq!(sum(&mut stock.client()), Some(ACCOUNTS as i64 * ACCOUNT_START));
    say(both(&back).lines().next().unwrap_or_default());
    server.stop();
}

/// The stream is that of before, byte for byte, whatever was under way: nothing is lost, and nothing comes twice.
#[test]
fn a_stream_goes_on_over_kills_stops_and_checkpoints() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("redis"), &[]) else { return };
    let words = ["--cores", "2", "--repl-backlog-size", "8mb"];
    let options = ServerOptions::new(&folder.path().join("data")).policy(Policy::Everysec).extra(&words);
    let mut server = Server::start(&options);
    fill(&server);
    let writers = Writers::start(server.port());
    stock.client().call(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
    wait_until_linked(&stock);
    let mut prng = Prng::new(21);
    let mut sums = 0;
    let rounds = number_from_environment("HOLDFAST_LEAD_KILLS", 6);
    for round in 0..rounds {
        sums += look(&stock, Duration::from_millis(100 + prng.below(700)));
        if prng.below(2) == 0 {
            server.client().call(&["BGSAVE"]);
            thread::sleep(Duration::from_millis(prng.below(60)));
        }
        end(server, round % 4 < 3);
        server = Server::start(&options);
        wait_until_linked(&stock);
        let begun = Instant::now();
        while number(&mut server.client(), "stream_continued") == 0 {
            assert_eq!(number(&mut server.client(), "stream_full_copies"), 0, "{}", server.log());
            assert!(begun.elapsed() < PATIENCE, "it does not go on where it was");
            thread::sleep(Duration::from_millis(20));
        }
    }
    let count = writers.stop();
    wait_until_same(&server, &stock);
    let compared = compare(&server, &stock);
    assert_eq!(number(&mut server.client(), "stream_full_copies"), 0, "{}", server.log());
    // What expires is gone there as well.
    let begun = Instant::now();
    while server.client().show("DBSIZE") != stock.client().show("DBSIZE") {
        assert!(begun.elapsed() < PATIENCE, "{} and {}", server.client().show("DBSIZE"), stock.client().show("DBSIZE"));
        thread::sleep(Duration::from_millis(50));
    }
    say(&format!("{rounds} kills and stops, {count} changes, {sums} sums; {compared}"));
    server.stop();
}

/// A group goes while a Redis follows, and the server is killed right behind that, and once more when nothing is left
/// of the group.
#[test]
fn a_redis_follows_on_where_a_group_has_gone() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("redis"), &[]) else { return };
    let cluster_port = free_port().to_string();
    let options = ServerOptions::new(&folder.path().join("data")).extra(&["--cores", "3", "--cluster-port"]);
    let options = options.extra(&[&cluster_port]);
    let mut server = Server::start(&options);
    fill(&server);
    let writers = Writers::start(server.port());
    stock.client().call(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
    wait_until_linked(&stock);
    let told = succeed(&["cluster", "merge", "2", "0", "--port", &server.port().to_string()]);
    assert!(told.contains("group 2 has been merged"), "{told}");
    let mut sums = look(&stock, Duration::from_millis(500));
    server.kill();
    server = Server::start(&options);
    wait_until_linked(&stock);
    sums += look(&stock, Duration::from_millis(500));
    server.wait_for_log("has given up its replica: the group has been merged");
    sums += look(&stock, Duration::from_millis(500));
    assert!(!server.log().contains("parts of a transaction have not come"), "{}", server.log());
    // The log that is told again begins behind the moves.
    assert_eq!(server.client().show("SAVE"), "OK");
    server.kill();
    server = Server::start(&options);
    wait_until_linked(&stock);
    let begun = Instant::now();
    while number(&mut server.client(), "stream_continued") == 0 {
        assert!(begun.elapsed() < PATIENCE, "it does not go on where it was: {}", server.log());
        thread::sleep(Duration::from_millis(20));
    }
    sums += look(&stock, Duration::from_millis(500));
    let count = writers.stop();
    wait_until_same(&server, &stock);
    assert_eq!(number(&mut server.client(), "stream_full_copies"), 0, "{}", server.log());
    say(&format!("{count} changes, {sums} sums; {}", compare(&server, &stock)));
    server.stop();
}

#[test]
fn a_redis_goes_on_with_a_node_of_three_that_was_killed() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("redis"), &[]) else { return };
    let mut cluster = Cluster::start(3);
    let (followed, written) = (2, 0);
    let port = |cluster: &Cluster, node: usize| cluster.nodes[node].as_ref().expect("it runs").port();
    let mut ours = Client::try_connect(port(&cluster, written)).expect("a node that listens");
    for number in 0..ACCOUNTS {
        ours.call(&["SET", &format!("account:{number}"), &ACCOUNT_START.to_string()]);
    }
    let writers = Writers::start(port(&cluster, written));
    stock.client().call(&["REPLICAOF", "127.0.0.1", &port(&cluster, followed).to_string()]);
    wait_until_linked(&stock);
    let mut sums = look(&stock, Duration::from_millis(500));
    for _ in 0..2 {
        cluster.nodes[followed].take().expect("it runs").kill();
        // The others go on without it, and it hears of that from them.
        thread::sleep(Duration::from_secs(2));
        cluster.restart(followed);
        wait_until_linked(&stock);
        sums += look(&stock, Duration::from_millis(500));
    }
    let count = writers.stop();
    let node = cluster.nodes[followed].as_ref().expect("it runs");
    let told = node.client().show("HOLDFAST STREAM 1 30000");
    assert!(told.ends_with(", (integer) 1]"), "{told}");
    wait_until_same(node, &stock);
    let compared = compare(node, &stock);
    assert_eq!(number(&mut node.client(), "stream_full_copies"), 0, "{}", node.log());
    say(&format!("{count} changes, {sums} sums; {compared}"));
}

#[test]
fn a_redis_follows_one_node_of_three_while_another_is_killed() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("redis"), &[]) else { return };
    let mut cluster = Cluster::start(3);
    let port = cluster.nodes[2].as_ref().expect("it was started").port();
    let mut ours = Client::try_connect(port).expect("a node that listens");
    for number in 0..ACCOUNTS {
        ours.call(&["SET", &format!("account:{number}"), &ACCOUNT_START.to_string()]);
    }
    let writers = Writers::start(port);
    stock.client().call(&["REPLICAOF", "127.0.0.1", &port.to_string()]);
    wait_until_linked(&stock);
    let mut sums = look(&stock, Duration::from_millis(500));
    cluster.nodes[0].take().expect("it runs").kill();
    sums += look(&stock, Duration::from_secs(4));
    let count = writers.stop();
    let node = cluster.nodes[2].as_ref().expect("it runs");
    wait_until_same(node, &stock);
    let compared = compare(node, &stock);
    assert_eq!(number(&mut ours, "stream_full_copies"), 1, "one copy was enough");
    // What was written at another node is there as soon as this one says so.
    let mut other =
        Client::try_connect(cluster.nodes[1].as_ref().expect("it runs").port()).expect("a node that listens");
    for value in 0..20 {
        other.call(&["SET", &format!("late:{value}"), "1"]);
        let told = ours.show("HOLDFAST STREAM 1 60000");
        assert!(told.ends_with(", (integer) 1]"), "{told}");
        assert_eq!(stock.client().show(&format!("GET late:{value}")), "\"1\"");
    }
    say(&format!("{count} changes, {sums} sums; {compared}"));
}

#[test]
fn who_may_follow_is_asked_for_a_password_and_for_permission() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("redis"), &[]) else { return };
    let options = ServerOptions::new(&folder.path().join("data")).extra(&["--requirepass", "secret"]);
    let server = Server::start(&options);
    let mut ours = server.client();
    assert!(ours.show("PSYNC ? -1").contains("NOAUTH"));
    ours.call(&["AUTH", "secret"]);
    // It may be loading yet: who has not said who it is hears nothing of that.
    let begun = Instant::now();
    while ours.show("SET a 1") != "OK" {
        assert!(begun.elapsed() < PATIENCE, "it does not take a write");
        thread::sleep(Duration::from_millis(10));
    }
    ours.call(&["ACL", "SETUSER", "reader", "on", ">word", "~*", "+@all", "-@dangerous"]);
    ours.call(&["ACL", "SETUSER", "replica", "on", ">word", "+psync", "+replconf", "+ping"]);
    let mut reader = server.client();
    reader.call(&["AUTH", "reader", "word"]);
    assert!(reader.show("PSYNC ? -1").contains("NOPERM"));
    assert!(reader.show("SYNC").contains("NOPERM"));
    for (user, password) in [("default", "secret"), ("replica", "word")] {
        let mut theirs = stock.client();
        theirs.call(&["CONFIG", "SET", "masteruser", user]);
        theirs.call(&["CONFIG", "SET", "masterauth", password]);
        theirs.call(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
        wait_until_linked(&stock);
        assert_eq!(theirs.call(&["GET", "a"]), Frame::Bulk(b"1".to_vec()));
        theirs.call(&["REPLICAOF", "NO", "ONE"]);
        theirs.call(&["FLUSHALL"]);
    }
    drop((ours, reader));
    server.stop();
}

#[test]
fn replicas_that_lie_stutter_and_never_read_cost_nobody_anything() {
    let folder = Folder::new();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    let mut ours = server.client();
    ours.call(&["SET", "a", "1"]);
    // A whole life of offsets that cannot be.
    for offset in ["0", "1", "-1", "9223372036854775807", "-9223372036854775808"] {
        for id in ["?", &"0".repeat(40), "x"] {
            let mut client = server.client();
            client.send(&["PSYNC", id, offset]).expect("a server that listens");
        }
    }
    // Who wants to go on with what is not there gets a copy.
    let mut stranger = server.client();
    stranger.send(&["PSYNC", &"0".repeat(40), "2"]).expect("a server that listens");
    let begun = Instant::now();
    while ours.show("INFO stats").contains("sync_partial_err:0") {
        assert!(begun.elapsed() < PATIENCE, "it is not counted");
        thread::sleep(Duration::from_millis(20));
    }
    drop(stranger);
    assert!(ours.show("PSYNC ? many").contains("not an integer"));
    assert!(ours.show("REPLCONF listening-port 99999").contains("not an integer"));
    assert!(ours.show("REPLCONF listening-port").contains("syntax"));
    assert_eq!(ours.show("REPLCONF capa eof capa psync2 unheard of"), "OK");
    // Some hundred that ask for a copy, say half of something, and never read.
    let silent: Vec<TcpStream> = (0..300)
        .map(|nth| {
            let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
            let rest: &[u8] = match nth % 3 {
                0 => b"",
                1 => b"*3\r\n$8\r\nREPLCONF\r\n$3\r\nACK\r\n$20\r\n123",
                _ => b"*2000000000\r\n$5\r\nhello",
            };
            stream.write_all(b"PSYNC ? -1\r\n").expect("it listens");
            // It may have been let go by then.
            let _ = stream.write_all(rest);
            stream
        })
        .collect();
    let value = "v".repeat(100_000);
    for number in 0..500 {
        ours.call(&["SET", &format!("large:{}", number % 10), &value]);
    }
    let used = ours.show("INFO memory");
    let used_bytes: u64 = used
        .split("used_memory:")
        .nth(1)
        .and_then(|rest| rest.split(|other: char| !other.is_ascii_digit()).next()?.parse().ok())
        .expect("a number");
    // What 50 MB of changes would take if they were kept for each of those who do not read.
    assert!(used_bytes < 1 << 30, "{used_bytes} bytes");
    drop(silent);
    let mut client = server.client();
    client.send(&["SYNC"]).expect("a server that listens");
    assert_eq!(ours.show("GET a"), "\"1\"");
    drop((client, ours));
    server.stop();
}

/// A replica that is played: it has got its copy, and reads the stream request by request.
struct Played {
    stream: BufReader<TcpStream>,
    /// The copy that it has got.
    copy: Vec<u8>,
    /// How far it has read, and where the last change ended.
    offset: u64,
    changed: u64,
}

impl Played {
    /// Follows a server; `Err` is the line with which it was turned away.
    fn follow(port: u16, words: &[&str]) -> Result<Self, String> {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("a server that listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut this = Self { stream: BufReader::new(stream), copy: Vec::new(), offset: 0, changed: 0 };
        for request in words.iter().chain(&["PSYNC ? -1"]) {
            this.say(request);
            let answer = this.line();
            if answer.starts_with('-') {
                return Err(answer);
            }
            if let Some(rest) = answer.strip_prefix("+FULLRESYNC ") {
                this.offset = rest.split(' ').nth(1).and_then(|offset| offset.parse().ok()).expect("an offset");
            }
        }
        let length = this.line().strip_prefix('$').and_then(|length| length.parse().ok()).expect("a length");
        this.copy = vec![0; length];
        this.stream.read_exact(&mut this.copy).expect("a copy");
        Ok(this)
    }

    fn say(&mut self, line: &str) {
        let mut bytes = Vec::new();
        resp::encode_request(&mut bytes, &line.split(' ').collect::<Vec<_>>());
        self.stream.get_mut().write_all(&bytes).expect("a server that listens");
    }

    /// The next line that is not empty.
    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).expect("a line");
            assert!(!line.is_empty(), "the connection was closed");
            if !line.trim_end().is_empty() {
                return line.trim_end().to_owned();
            }
        }
    }

    /// The next request of the stream; the offset is behind it then.
    fn request(&mut self) -> String {
        let mut words = Vec::new();
        let number = |this: &mut Self| {
            let line = this.line();
            this.offset += line.len() as u64 + 2;
            line[1..].parse::<usize>().expect("a number")
        };
        for _ in 0..number(self) {
            let length = number(self);
            let mut word = vec![0; length + 2];
            self.stream.read_exact(&mut word).expect("a word");
            self.offset += word.len() as u64;
            words.push(String::from_utf8_lossy(&word[..length]).into_owned());
        }
        words.join(" ")
    }

    /// Reads the stream until it is asked, behind this request, how far it is; answers each time as Redis does, without
    /// that question. What it was told besides.
    fn answer(&mut self, behind: &str, on_disk: bool) -> Vec<String> {
        let mut told = Vec::new();
        loop {
            let before = self.offset;
            let request = self.request();
            if request == "REPLCONF GETACK *" {
                let on_disk = if on_disk { format!(" FACK {before}") } else { String::new() };
                self.say(&format!("REPLCONF ACK {before}{on_disk}"));
                if behind.is_empty() || told.iter().any(|told| told == behind) {
                    return told;
                }
            } else if request != "PING" {
                self.changed = self.offset;
                told.push(request);
            }
        }
    }
}

#[test]
fn who_waits_hears_at_once_what_a_replica_has() {
    let folder = Folder::new();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    let mut ours = server.client();
    assert_eq!(ours.show("WAIT 1 60000"), "(integer) 0", "nobody follows, and nobody is waited for");
    let mut replica = Played::follow(server.port(), &["REPLCONF listening-port 7777"]).expect("a copy");
    // It has its copy, and has not said that it has carried it out.
    assert_eq!(ours.show("WAIT 1 50"), "(integer) 0");
    replica.answer("", false);
    for (value, (request, on_disk)) in
        [("WAIT 1 60000", false), ("WAITAOF 0 1 60000", true), ("HOLDFAST STREAM 1 60000", false)].iter().enumerate()
    {
        let (port, request) = (server.port(), *request);
        let waiting = thread::spawn(move || {
            let mut client = Client::try_connect(port).expect("a server that listens");
            assert_eq!(client.show(&format!("SET a {value}")), "OK");
            client.show(request)
        });
        replica.answer(&format!("SET a {value}"), *on_disk);
        let expected = match value {
            0 => "(integer) 1".to_owned(),
            1 => "[(integer) 1, (integer) 1]".to_owned(),
            _ => format!("[(integer) {}, (integer) 1]", replica.changed),
        };
        assert_eq!(waiting.join().expect("a client"), expected, "{request}");
    }
    let offset = replica.changed;
    // What is known need not be asked for, and nobody waits for a second one for longer than its time-out.
    assert_eq!(ours.show("HOLDFAST STREAM 1 60000"), format!("[(integer) {offset}, (integer) 1]"));
    assert_eq!(ours.show("HOLDFAST STREAM 0 60000"), format!("[(integer) {offset}, (integer) 1]"));
    assert_eq!(ours.show("WAIT 2 50"), "(integer) 1");
    assert!(ours.show("HOLDFAST STREAM 1 -1").contains("timeout is negative"));
    let begun = Instant::now();
    let line = loop {
        let line = told(&mut ours, "slave0").expect("it is listed");
        if line.contains(&format!("offset={offset}")) || begun.elapsed() > PATIENCE {
            break line;
        }
        thread::sleep(Duration::from_millis(20));
    };
    let expected = |lag: u8| format!("ip=127.0.0.1,port=7777,state=online,offset={offset},lag={lag},type=stream");
    assert!((0..100).any(|lag| line == expected(lag)), "{line}");

    // At the end it is waited for.
    assert_eq!(ours.show("SET last 1"), "OK");
    drop(ours);
    let last = thread::spawn(move || replica.answer("SET last 1", false));
    server.stop();
    last.join().expect("a replica that is asked");
}

#[test]
fn deadlines_of_fields_are_told_to_who_knows_them_and_to_nobody_else() {
    let folder = Folder::new();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    let mut ours = server.client();
    ours.call(&["HSET", "h", "f", "1.5", "g", "2"]);
    ours.call(&["HPEXPIREAT", "h", "4000000000000", "FIELDS", "1", "f"]);
    let has = |copy: &[u8], bytes: &[u8]| copy.windows(bytes.len()).any(|window| window == bytes);

    let mut old = Played::follow(server.port(), &["REPLCONF version 8.0.1"]).expect("a copy");
    assert!(has(&old.copy, b"REDIS0010") && has(&old.copy, b"\x04\x01h\x02"), "{:?}", old.copy);
    server.wait_for_log("1 hashes are in the copy for replicas without the deadlines of their fields");
    ours.call(&["HPEXPIREAT", "h", "4100000000000", "FIELDS", "1", "f"]);
    ours.call(&["HINCRBYFLOAT", "h", "f", "1"]);
    assert_eq!(ours.show("WAIT 1 50"), "(integer) 0");
    assert_eq!(old.answer("", false), ["SELECT 0", "HSET h f 2.5"]);

    assert_eq!(ours.show("CONFIG SET replica-rdb-version 12"), "OK");
    let refused = Played::follow(server.port(), &["REPLCONF version 8.0.1"]).err();
    assert!(refused.is_some_and(|why| why.contains("a Valkey (8.0.1) cannot read RDB version 12")));
    let mut new = Played::follow(server.port(), &["REPLCONF capa eof capa psync2"]).expect("a copy");
    let kind = [&[25][..], b"\x01h", &4_100_000_000_000_u64.to_le_bytes()].concat();
    assert!(has(&new.copy, b"REDIS0012") && has(&new.copy, &kind), "{:?}", new.copy);
    ours.call(&["HPEXPIREAT", "h", "4200000000000", "FIELDS", "1", "g"]);
    ours.call(&["HINCRBYFLOAT", "h", "f", "1"]);
    ours.call(&["HPERSIST", "h", "FIELDS", "1", "f"]);
    assert_eq!(ours.show("WAIT 1 50"), "(integer) 0");
    let expected = [
        "SELECT 0",
        "HPEXPIREAT h 4200000000000 FIELDS 1 g",
        "MULTI",
        "HSET h f 3.5",
        "HPEXPIREAT h 4100000000000 FIELDS 1 f",
        "EXEC",
        "HPERSIST h FIELDS 1 f",
    ];
    assert_eq!(new.answer("", false), expected);

    assert_eq!(ours.show("CONFIG SET replica-rdb-version 80"), "OK");
    let refused = Played::follow(server.port(), &["REPLCONF version 8.1.4"]).err();
    assert!(refused.is_some_and(|why| why.contains("a Valkey (8.1.4) cannot read RDB version 80")));
    let refused = Played::follow(server.port(), &["REPLCONF capa eof capa psync2"]).err();
    assert!(refused.is_some_and(|why| why.contains("tells no version")));
    let mut valkey = Played::follow(server.port(), &["REPLCONF version 9.1.2"]).expect("a copy");
    let field = [&b"\x01g\xC0\x02"[..], &4_200_000_000_000_u64.to_le_bytes()].concat();
    assert!(has(&valkey.copy, b"VALKEY080") && has(&valkey.copy, b"\x16\x01h\x02"), "{:?}", valkey.copy);
    assert!(has(&valkey.copy, &field) && has(&valkey.copy, &(-1_i64).to_le_bytes()), "{:?}", valkey.copy);
    ours.call(&["HPEXPIREAT", "h", "4300000000000", "FIELDS", "1", "g"]);
    assert_eq!(ours.show("WAIT 1 50"), "(integer) 0");
    assert_eq!(valkey.answer("", false), ["SELECT 0", "HPEXPIREAT h 4300000000000 FIELDS 1 g"]);
    drop((ours, old, new, valkey));
    server.stop();
}
