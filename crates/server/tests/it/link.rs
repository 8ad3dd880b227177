//! Two stock Redis servers and a link between them: whatever is cut or killed, the far one holds what the near one
//! holds in the end, and the near one makes no copy that it need not make.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use stdx::Prng;

use crate::harness::{Authority, Client, Folder, PATIENCE, Stock, binary, fail, free_port, succeed, wait_for};

/// A line that can be cut: everybody who is on it loses the connection, and nobody gets a new one.
struct Line {
    port: u16,
    shared: Arc<LineShared>,
}

struct LineShared {
    is_cut: AtomicBool,
    is_over: AtomicBool,
    /// Bytes from the listening end to the connecting one.
    carried: AtomicU64,
    /// The line is cut when so many more have gone that way.
    budget: AtomicI64,
    sockets: Mutex<Vec<TcpStream>>,
}

impl Line {
    fn new(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(LineShared {
            is_cut: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            carried: AtomicU64::new(0),
            budget: AtomicI64::new(i64::MAX),
            sockets: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                if accepting.is_over.load(Ordering::Relaxed) {
                    return;
                }
                if accepting.is_cut.load(Ordering::Relaxed) {
                    continue;
                }
                let Ok(other) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                let mut sockets = accepting.sockets.lock().expect("no panic");
                for (from, to, counts) in [(&socket, &other, false), (&other, &socket, true)] {
                    let (from, to) = (from.try_clone().expect("a socket"), to.try_clone().expect("a socket"));
                    let shared = Arc::clone(&accepting);
                    thread::spawn(move || shared.carry(from, to, counts));
                }
                sockets.extend([socket, other]);
            }
        });
        Self { port, shared }
    }

    fn place(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn cut(&self) {
        self.shared.cut();
    }

    fn mend(&self) {
        self.shared.budget.store(i64::MAX, Ordering::SeqCst);
        self.shared.is_cut.store(false, Ordering::SeqCst);
    }

    /// Cuts it when so many more bytes have been carried.
    fn cut_after(&self, bytes: u64) {
        self.shared.budget.store(bytes as i64, Ordering::SeqCst);
        self.shared.is_cut.store(false, Ordering::SeqCst);
    }

    fn is_cut(&self) -> bool {
        self.shared.is_cut.load(Ordering::SeqCst)
    }

    fn carried(&self) -> u64 {
        self.shared.carried.load(Ordering::SeqCst)
    }
}

impl LineShared {
    fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        for socket in self.sockets.lock().expect("no panic").drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn carry(&self, mut from: TcpStream, mut to: TcpStream, counts: bool) {
        let mut buffer = [0; 16_384];
        while let Ok(length) = from.read(&mut buffer) {
            if length == 0 {
                break;
            }
            if counts {
                self.carried.fetch_add(length as u64, Ordering::SeqCst);
                if self.budget.fetch_sub(length as i64, Ordering::SeqCst) < length as i64 {
                    return self.cut();
                }
            }
            if to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.cut();
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// An end of a link, killed when dropped.
struct End {
    words: Vec<String>,
    status: u16,
    log: PathBuf,
    child: Option<Child>,
}

impl End {
    fn start(folder: &Path, name: &str, words: &[&str]) -> Self {
        let status = free_port();
        let mut all: Vec<String> = ["link"].iter().chain(words).map(|word| (*word).to_owned()).collect();
        let dir = folder.join(name).display().to_string();
        all.extend(["--dir".to_owned(), dir, "--status".to_owned(), format!("127.0.0.1:{status}")]);
        let mut end = Self { words: all, status, log: folder.join(format!("{name}.log")), child: None };
        end.restart();
        end
    }

    fn restart(&mut self) {
        assert!(self.child.is_none(), "it runs");
        let log = OpenOptions::new().create(true).append(true).open(&self.log).expect("a log");
        let child = Command::new(binary()).args(&self.words).stderr(log).stdout(Stdio::null()).spawn();
        self.child = Some(child.expect("the binary runs"));
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.status)).is_err() {
            assert!(begun.elapsed() < PATIENCE, "it does not start: {}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn get(&self, path: &str) -> String {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.status))?;
            stream.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes())?;
            let mut reply = String::new();
            stream.read_to_string(&mut reply)?;
            Ok(reply)
        };
        ask().unwrap_or_default()
    }

    fn status(&self) -> serde_json::Value {
        let reply = self.get("/status");
        reply.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str(body).ok()).unwrap_or_default()
    }

    #[track_caller]
    fn wait_for(&self, what: &str, is_so: impl Fn(&serde_json::Value) -> bool) {
        let begun = Instant::now();
        loop {
            let status = self.status();
            if is_so(&status) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "not {what}: {status:#}\n{}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Two Redis servers, a line, and both ends.
struct Stand {
    folder: Folder,
    near_redis: Stock,
    far_redis: Stock,
    line: Line,
    near: End,
    far: End,
    serve: u16,
}

impl Stand {
    /// None if there is no Redis on this machine.
    fn new(near_words: &[&str], far_words: &[&str], extra: &[&str]) -> Option<Self> {
        let folder = Folder::new();
        let words = [&["--repl-backlog-size", "64mb", "--repl-diskless-sync-delay", "0"], near_words].concat();
        let near_redis = Stock::start(&folder.path().join("near-redis"), &words)?;
        let far_redis = Stock::start(&folder.path().join("far-redis"), far_words)?;
        let secret = folder.path().join("secret");
        fs::write(&secret, "a secret of more than sixteen bytes\n").expect("a file");
        let secret = secret.display().to_string();
        let (port, serve) = (free_port(), free_port());
        let line = Line::new(port);
        let (from, place) = (format!("redis://127.0.0.1:{}", near_redis.port()), format!("127.0.0.1:{port}"));
        let security = ["--secret-file", &secret, "--quiet"];
        let words = [&["listen", &place, "--from", &from], &security[..], extra].concat();
        let near = End::start(folder.path(), "near", &words);
        let serve_place = format!("127.0.0.1:{serve}");
        let line_place = line.place();
        let words = [&["connect", &line_place, "--serve", &serve_place], &security[..], extra].concat();
        let far = End::start(folder.path(), "far", &words);
        Some(Self { folder, near_redis, far_redis, line, near, far, serve })
    }

    fn follow(&self) {
        let reply = self.far_redis.client().show(&format!("REPLICAOF 127.0.0.1 {}", self.serve));
        assert_eq!(reply, "OK");
    }

    /// Writes, waits until the far Redis has it, by the count of the near one, and compares.
    #[track_caller]
    fn settle(&self) {
        let mut client = self.near_redis.client();
        client.show("INCR settled");
        let begun = Instant::now();
        while client.show("WAIT 1 1000") != "(integer) 1" {
            assert!(begun.elapsed() < PATIENCE, "{}\n{}", self.near.log(), self.far.log());
        }
        self.compare();
    }

    #[track_caller]
    fn compare(&self) {
        let begun = Instant::now();
        let (mut near, mut far) = (self.near_redis.client(), self.far_redis.client());
        loop {
            let (ours, theirs) = (near.show("DEBUG DIGEST"), far.show("DEBUG DIGEST"));
            if ours == theirs {
                return;
            }
            let logs = || format!("{}\n{}", self.near.log(), self.far.log());
            assert!(begun.elapsed() < PATIENCE, "{ours} {theirs}\n{}", logs());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Copies that the near Redis has made.
    fn copies(&self) -> u64 {
        info(&mut self.near_redis.client(), "stats", "sync_full").parse().expect("a number")
    }
}

/// A field of INFO.
fn info(client: &mut Client, section: &str, name: &str) -> String {
    let reply = client.call(&["INFO", section]);
    let text = String::from_utf8_lossy(reply.as_bytes().expect("a text")).into_owned();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned));
    value.unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// Clients that write all kinds of things, some in transactions, until they are told to stop.
struct Writers {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
}

impl Writers {
    fn start(port: u16) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let begin = |seed: u64| {
            let over = Arc::clone(&over);
            thread::spawn(move || {
                let (mut prng, mut count) = (Prng::new(seed), 0);
                let mut client = Client::try_connect(port).expect("a connection");
                while !over.load(Ordering::Relaxed) {
                    let (key, number) = (prng.below(200), prng.below(1_000));
                    let line = match prng.below(7) {
                        0 => format!("SET text:{key} {number} PX {}", 200 + number),
                        1 => format!("RPUSH list:{key} {number}"),
                        2 => format!("LPOP list:{key}"),
                        3 => format!("HSET hash:{key} field:{number} {number}"),
                        4 => format!("SPOP set:{key}"),
                        5 => format!("SADD set:{key} {number}"),
                        _ => format!("EVAL redis.call('incr',KEYS[1])redis.call('incr',KEYS[2]) 2 a:{key} b:{key}"),
                    };
                    client.call(&line.split(' ').collect::<Vec<_>>());
                    count += 1;
                    if count % 20 == 0 {
                        thread::sleep(Duration::from_millis(2));
                    }
                }
                count
            })
        };
        let threads = [1, 2].map(begin).into();
        Self { over, threads }
    }

    fn stop(self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    }
}

#[test]
fn cuts_and_kills_cost_no_copy() {
    let Some(mut stand) = Stand::new(&[], &[], &[]) else { return };
    stand.near_redis.client().show("DEBUG POPULATE 2000 before 50");
    let writers = Writers::start(stand.near_redis.port());
    stand.follow();
    stand.near.wait_for("followed", |status| status["applied_offset_bytes"].as_u64() > Some(0));
    let mut applied = 0;
    for round in 0..4 {
        stand.line.cut();
        stand.near.wait_for("cut", |status| status["line_up"] == 0 && status["last_cut_cause"].is_string());
        stand.line.mend();
        stand.near.wait_for("mended", |status| status["line_up"] == 1);
        stand.near.kill();
        stand.near.restart();
        stand.near.wait_for("there again", |status| status["line_up"] == 1 && status["redis_up"] == 1);
        stand.far.kill();
        stand.far.restart();
        // Once with the files it has, and once with none.
        let folder = stand.folder.path().join(format!("far-redis-{}", round / 2));
        stand.far_redis = Stock::start(&folder, &[]).expect("there was one");
        stand.follow();
        stand.near.wait_for("followed", |status| status["applied_offset_bytes"].as_u64() > Some(applied));
        applied = stand.near.status()["applied_offset_bytes"].as_u64().expect("a number");
    }
    assert!(writers.stop() > 100);
    stand.settle();
    assert_eq!(stand.copies(), 1, "{}\n{}", stand.near.log(), stand.far.log());
    // What the near Redis is told as acknowledged is what the far one has carried out.
    let mut near = stand.near_redis.client();
    let followed = info(&mut near, "replication", "slave0");
    let (_, offset) = followed.split_once("offset=").expect("an offset");
    let told: u64 = offset.split(',').next().and_then(|text| text.parse().ok()).expect("a number");
    let carried_out: u64 =
        info(&mut stand.far_redis.client(), "replication", "slave_repl_offset").parse().expect("one");
    assert!(told <= carried_out && told > 0, "{followed} {carried_out}");
    assert_eq!(
        info(&mut near, "replication", "master_replid"),
        info(&mut stand.far_redis.client(), "replication", "master_replid")
    );
    let place = format!("127.0.0.1:{}", stand.near.status);
    assert!(succeed(&["link", "status", &place]).contains("backlog_bytes"));
    assert!(stand.near.get("/metrics").contains("\nholdfast_link_ratio{role=\"near\"} "));
    assert!(stand.near.get("/health").starts_with("HTTP/1.1 200 "));
    stand.far.kill();
    stand.near.wait_for("cut", |status| status["line_up"] == 0);
    assert!(stand.near.get("/health").starts_with("HTTP/1.1 503 "));
    assert!(fail(&["link", "status", &place]).contains("the line is down"));
}

#[test]
fn a_first_copy_goes_on_where_it_was_cut() {
    for (diskless, level) in [("yes", "1"), ("no", "3")] {
        let extra = ["--level", level];
        let Some(mut stand) = Stand::new(&["--repl-diskless-sync", diskless], &[], &extra) else { return };
        let mut client = stand.near_redis.client();
        let mut prng = Prng::new(7);
        let mut bytes = 0;
        for number in 0..64 {
            // What cannot be compressed, so that places on the line are places in the copy.
            let value: Vec<u8> = (0..16_384).flat_map(|_| prng.below(u64::MAX).to_le_bytes()).collect();
            bytes += value.len() as u64;
            client.call(&[b"SET", format!("key:{number}").as_bytes(), &value]);
        }
        stand.line.cut_after(bytes / 10);
        stand.follow();
        for (share, is_kill) in [(4, false), (4, true), (1, false)] {
            let begun = Instant::now();
            while !stand.line.is_cut() {
                assert!(begun.elapsed() < PATIENCE, "{}\n{}", stand.near.log(), stand.far.log());
                thread::sleep(Duration::from_millis(10));
            }
            stand.near_redis.client().show(&format!("SET meanwhile {share}"));
            if is_kill {
                // What has come is synced twice a second, once it has been taken from the line.
                stand.far.wait_for("at the end of what has come", |status| status["line_up"] == 0);
                thread::sleep(Duration::from_millis(600));
                stand.far.kill();
                stand.far.restart();
                let begun = Instant::now();
                while !stand.near.log().contains("bytes is on disk") {
                    assert!(begun.elapsed() < PATIENCE, "{}", stand.near.log());
                    thread::sleep(Duration::from_millis(20));
                }
                stand.near.kill();
                stand.near.restart();
            }
            stand.line.cut_after(bytes / 10 * share);
        }
        stand.line.mend();
        stand.settle();
        assert_eq!(stand.copies(), 1, "{}", stand.near.log());
        let carried = stand.line.carried();
        assert!(carried < bytes + bytes / 5, "{carried} bytes for a copy of {bytes}\n{}", stand.far.log());
        assert!(stand.far.log().contains("the copy goes on at its byte"), "{}", stand.far.log());
    }
}

#[test]
fn a_failover_of_the_near_redis_is_followed() {
    // What the first has told only one of its replicas when it dies would make them differ.
    let quiet = ["--repl-ping-replica-period", "3600"];
    let Some(mut stand) = Stand::new(&quiet, &[], &["--batch-ms", "0"]) else { return };
    let second = Stock::start(&stand.folder.path().join("second"), &[]).expect("there was one");
    second.client().show(&format!("REPLICAOF 127.0.0.1 {}", stand.near_redis.port()));
    let from = stand.near.words.iter().position(|word| word == "--from").expect("an option");
    stand.near.words[from + 1].push_str(&format!(",redis://127.0.0.1:{}", second.port()));
    stand.near.kill();
    stand.near.restart();
    stand.follow();
    let writers = Writers::start(stand.near_redis.port());
    thread::sleep(Duration::from_millis(300));
    writers.stop();
    let begun = Instant::now();
    while !stand.near_redis.client().show("INFO keyspace").contains(",expires=0,") {
        assert!(begun.elapsed() < PATIENCE, "keys do not expire");
        thread::sleep(Duration::from_millis(20));
    }
    while stand.near_redis.client().show("WAIT 2 1000") != "(integer) 2" {
        assert!(begun.elapsed() < PATIENCE, "{}", stand.near.log());
    }
    let copies = stand.copies();
    let id = info(&mut stand.far_redis.client(), "replication", "master_replid");
    // The first is gone for good, and the second leads under a name of its own.
    stand.near_redis = second;
    assert_eq!(stand.near_redis.client().show("REPLICAOF NO ONE"), "OK");
    let writers = Writers::start(stand.near_redis.port());
    thread::sleep(Duration::from_millis(300));
    writers.stop();
    stand.settle();
    let renamed = info(&mut stand.far_redis.client(), "replication", "master_replid");
    assert_ne!(id, renamed);
    assert_eq!(renamed, info(&mut stand.near_redis.client(), "replication", "master_replid"));
    assert_eq!((copies, stand.copies()), (2, 0), "one for the second and one for the link, and none afterwards");
    assert_eq!(stand.far.status()["copies_total"], 1);
}

#[test]
fn what_a_crash_of_the_machine_takes_comes_again() {
    let Some(mut stand) = Stand::new(&[], &[], &["--batch-ms", "0"]) else { return };
    stand.follow();
    let root = stand.folder.path().to_owned();
    let newest_segment = |name: &str| {
        let files = fs::read_dir(root.join(name)).expect("a folder").map(|entry| entry.expect("a file").path());
        let segment = files.filter(|path| path.extension().is_some_and(|end| end == "seg")).max()?;
        let length = fs::metadata(&segment).expect("a file").len();
        Some((segment, length))
    };
    let writers = Writers::start(stand.near_redis.port());
    wait_for("both ends have written enough to lose some of it", || {
        ["near", "far"].into_iter().all(|name| newest_segment(name).is_some_and(|(_, length)| length > 2_000))
    });
    writers.stop();
    stand.settle();
    for name in ["near", "far"] {
        stand.near.kill();
        stand.far.kill();
        let (segment, length) = newest_segment(name).expect("a segment");
        // The end was not synced: some of it is not there, and some is not what was written.
        let file = OpenOptions::new().write(true).open(&segment).expect("a file");
        file.set_len(length - 700).expect("cut");
        let mut file = OpenOptions::new().append(true).open(&segment).expect("a file");
        file.write_all(&[0; 333]).expect("written");
        stand.near_redis.client().show(&format!("SET after {name}"));
        stand.near.restart();
        stand.far.restart();
        stand.settle();
    }
    assert_eq!(stand.copies(), 1, "{}\n{}", stand.near.log(), stand.far.log());
}

#[test]
fn a_backlog_that_is_exhausted_costs_the_near_redis_no_memory() {
    let Some(stand) = Stand::new(&[], &[], &["--backlog-mb", "1"]) else { return };
    stand.follow();
    stand.settle();
    stand.near.wait_for("the far end has told where it is", |status| status["lag_bytes"].is_u64());
    stand.line.cut();
    let mut client = stand.near_redis.client();
    let text = "x".repeat(50_000);
    for number in 0..100 {
        client.call(&["SET", &format!("key:{number}"), &text]);
    }
    let end: u64 = info(&mut client, "replication", "master_repl_offset").parse().expect("a number");
    stand.near.wait_for("all on disk", |status| status["stream_offset_bytes"].as_u64() >= Some(end));
    let status = stand.near.status();
    assert!(status["backlog_disk_bytes"].as_u64() <= Some(1 << 20), "{status:#}");
    assert!(status["lag_bytes"].as_u64() > Some(4 << 20), "{status:#}");
    let clients = client.show("CLIENT LIST TYPE replica");
    let waiting = clients.split(" omem=").nth(1).and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    assert!(waiting < Some(1 << 20), "{clients}");
    stand.line.mend();
    stand.settle();
    assert_eq!(stand.copies(), 2, "{}", stand.near.log());
    assert!(stand.near.log().contains("the far end needs what is no longer here"), "{}", stand.near.log());
}

#[test]
fn who_is_no_other_end_is_turned_away() {
    let Some(stand) = Stand::new(&[], &[], &[]) else { return };
    stand.follow();
    stand.settle();
    let near: u16 = stand.near.words[2].rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    let mut sockets = Vec::new();
    for bytes in [&b"HFLINK01\x01\x17"[..], b"GET / HTTP/1.1\r\n\r\n", &[0x16, 3, 1, 255, 255], &[0; 100]] {
        let mut socket = TcpStream::connect(("127.0.0.1", near)).expect("a port");
        socket.write_all(bytes).expect("sent");
        sockets.push(socket);
    }
    for bytes in [&b"*1000000000\r\n"[..], b"*3\r\n$5\r\nPSYNC\r\n$1\r\n?\r\n$99999999999\r\n", &[b'x'; 5_000]] {
        let mut socket = TcpStream::connect(("127.0.0.1", stand.serve)).expect("a port");
        socket.write_all(bytes).expect("sent");
        sockets.push(socket);
    }
    let mut reader = Client::try_connect(stand.serve).expect("a port");
    assert_eq!(reader.show("GET secret"), "(error) ERR this is the far end of a link, for REPLICAOF and nothing else");
    let other = stand.folder.path().join("other-secret");
    fs::write(&other, "another secret of sixteen bytes").expect("a file");
    let (other, place) = (other.display().to_string(), format!("127.0.0.1:{near}"));
    let serve = format!("127.0.0.1:{}", free_port());
    let words = ["connect", &place, "--serve", &serve, "--secret-file", &other];
    let thief = End::start(stand.folder.path(), "thief", &words);
    thief.wait_for("refused", |status| {
        status["last_cut_cause"].as_str().is_some_and(|why| why.contains("do both have the same?"))
    });
    // Nobody of them has disturbed the line.
    assert_eq!(stand.near.status()["line_cuts_total"], 0, "{}", stand.near.log());
    stand.near_redis.client().show("SET still there");
    stand.settle();
    let dir = stand.folder.path().join("none").display().to_string();
    let open = ["link", "connect", &place, "--serve", "0.0.0.0:0", "--dir", &dir, "--secret-file", &other];
    assert!(fail(&open).contains("--replica-password"));
    assert!(fail(&["link", "connect", &place, "--serve", &serve, "--dir", &dir]).contains("--secret-file"));
    let taken = stand.folder.path().join("far").display().to_string();
    assert!(fail(&["link", "connect", &place, "--serve", &serve, "--dir", &taken, "--plain"]).contains("in use"));
}

#[test]
fn certificates_and_passwords_let_in_who_has_them() {
    let folder = Folder::new();
    let words = ["--repl-diskless-sync-delay", "0"];
    let Some(near_redis) = Stock::start(&folder.path().join("near-redis"), &words) else { return };
    let mut client = near_redis.client();
    client.show("SET a 1");
    client.show("CONFIG SET requirepass near-word");
    let far_redis =
        Stock::start(&folder.path().join("far-redis"), &["--masterauth", "far-word"]).expect("there was one");
    let authority = Authority::new("ours");
    let (one, two) = (authority.sign("near"), authority.sign("far"));
    let other_authority = Authority::new("theirs");
    let stranger = other_authority.sign("far");
    let (line, serve) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
    let cacert = authority.path();
    let from = format!("redis://127.0.0.1:{}", near_redis.port());
    let secured = |cert: &str, key: &str| ["--cacert", &cacert, "--cert", cert, "--key", key].map(str::to_owned);
    let as_words = |words: &[String]| words.to_vec();
    // The near end calls this time.
    let mut words = as_words(&["connect".into(), line.clone(), "--from".into(), from]);
    words.extend(["--source-password".to_owned(), "near-word".to_owned()]);
    words.extend(secured(&one.certificate, &one.key));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let near = End::start(folder.path(), "near", &words);
    let listen = |name: &str, cert: &str, key: &str| {
        let mut words = as_words(&["listen".into(), line.clone(), "--serve".into(), serve.clone()]);
        words.extend(["--replica-password".to_owned(), "far-word".to_owned()]);
        words.extend(secured(cert, key));
        End::start(folder.path(), name, &words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let mut stranger = listen("stranger", &stranger.certificate, &stranger.key);
    near.wait_for("refused", |status| {
        status["last_cut_cause"].as_str().is_some_and(|why| why.contains("the line cannot be secured"))
    });
    stranger.kill();
    let far = listen("far", &two.certificate, &two.key);
    far.wait_for("up", |status| status["line_up"] == 1);
    let port = serve.rsplit(':').next().expect("a port");
    far_redis.client().show(&format!("REPLICAOF 127.0.0.1 {port}"));
    near.wait_for("followed", |status| status["replicas"] == 1);
    let begun = Instant::now();
    while far_redis.client().show("GET a") != "\"1\"" {
        assert!(begun.elapsed() < PATIENCE, "{}", far.log());
        thread::sleep(Duration::from_millis(20));
    }
}
