//! The benchmark against a small server of its own, which behaves badly on request.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::thread::{self, JoinHandle};

use resp::{Args, Limits, Parsed, Protocol, RequestParser, Writer};

use super::*;

/// How the server treats its clients.
#[derive(Clone, Copy, Default)]
struct Manners {
    /// Every so many EXECs are answered with nil.
    abort_every: Option<u64>,
    /// Every so many requests a connection is cut.
    cut_every: Option<u64>,
    /// INCRBY is forgotten.
    forgets_credit: bool,
    /// INCR is refused.
    refuses_incr: bool,
    /// Every request before this one is answered at once, this one after the given time; others wait behind it.
    stall: Option<(u64, Duration)>,
    /// Clients must say it.
    password: Option<&'static str>,
}

#[derive(Default)]
struct Memory {
    values: HashMap<Vec<u8>, Vec<u8>>,
    requests: u64,
    transactions: u64,
}

/// A server on a free port of the loopback, with a thread for each connection.
struct Server {
    address: SocketAddr,
    memory: Arc<Mutex<Memory>>,
    ending: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
}

impl Server {
    fn start(manners: Manners) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").expect("the loopback has a free port");
        let address = socket.local_addr().expect("it is bound");
        let (memory, ending) = (Arc::new(Mutex::new(Memory::default())), Arc::new(AtomicBool::new(false)));
        let (shared, end) = (Arc::clone(&memory), Arc::clone(&ending));
        let listener = thread::spawn(move || {
            for stream in socket.incoming() {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                let (memory, stream) = (Arc::clone(&shared), stream.expect("a connection can be accepted"));
                thread::spawn(move || serve(stream, &memory, manners));
            }
        });
        Self { address, memory, ending, listener: Some(listener) }
    }

    /// A short load on this server.
    fn load(&self, workload: Workload) -> BenchArguments {
        BenchArguments {
            clients: 4,
            seconds: 0.3,
            warmup: 0.0,
            keys: 100,
            value_bytes: 10,
            workload,
            ..BenchArguments::for_host(self.address.to_string())
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address); // wakes the listener
        self.listener.take().map(JoinHandle::join);
    }
}

fn serve(mut stream: TcpStream, memory: &Mutex<Memory>, manners: Manners) {
    let (mut parser, mut spans, limits) = (RequestParser::new(), Vec::new(), Limits::default());
    let (mut input, mut chunk) = (Vec::new(), vec![0; 65_536]);
    let (mut queued, mut admitted) = (None, manners.password.is_none());
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return,
            Ok(len) => input.extend_from_slice(&chunk[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
        let mut writer = Writer::new(Protocol::Resp2);
        let mut taken = 0;
        while let Ok(Parsed::Request { consumed }) = parser.parse(&input[taken..], &limits, &mut spans) {
            let words = Args::new(&input[taken..taken + consumed], &spans);
            let mut memory = memory.lock().expect("no thread panics with the memory");
            memory.requests += 1;
            if manners.cut_every.is_some_and(|every| memory.requests.is_multiple_of(every)) {
                return;
            }
            if let Some((_, pause)) = manners.stall.filter(|(nth, _)| *nth == memory.requests) {
                thread::sleep(pause); // with the memory locked: everybody waits
            }
            answer(words, &mut memory, &mut queued, &mut admitted, manners, &mut writer);
            taken += consumed;
        }
        input.drain(..taken);
        if stream.write_all(writer.bytes()).is_err() {
            return;
        }
    }
}

fn answer(
    words: Args<'_>,
    memory: &mut Memory,
    queued: &mut Option<Vec<(Vec<u8>, Vec<u8>)>>,
    admitted: &mut bool,
    manners: Manners,
    writer: &mut Writer,
) {
    match words.at(0) {
        b"AUTH" => {
            *admitted = manners.password.map(str::as_bytes) == words.get(1);
            if *admitted { writer.ok() } else { writer.error("WRONGPASS invalid") }
        }
        _ if !*admitted => writer.error("NOAUTH Authentication required."),
        b"PING" => writer.simple("PONG"),
        b"INFO" => writer.bulk(b"redis_version:7.0.15\r\naof_enabled:0\r\n"),
        b"GET" => writer.bulk_or_null(memory.values.get(words.at(1)).map(Vec::as_slice)),
        b"SET" => {
            let (key, value) = (words.at(1).to_vec(), words.at(2).to_vec());
            match queued {
                Some(queue) => {
                    queue.push((key, value));
                    writer.simple("QUEUED");
                }
                None => {
                    memory.values.insert(key, value);
                    writer.ok();
                }
            }
        }
        b"MGET" => {
            writer.array(words.len() - 1);
            (1..words.len()).for_each(|at| writer.bulk_or_null(memory.values.get(words.at(at)).map(Vec::as_slice)));
        }
        b"DECRBY" | b"INCRBY" => {
            let by = if words.at(0) == b"DECRBY" { CHANGE_DOWN } else { CHANGE_UP };
            let is_forgotten = by == CHANGE_UP && manners.forgets_credit;
            let change = if is_forgotten { Vec::new() } else { by.to_vec() };
            queued.as_mut().expect("accounts change inside MULTI").push((words.at(1).to_vec(), change));
            writer.simple("QUEUED");
        }
        b"INCR" if manners.refuses_incr => writer.error("OOM command not allowed"),
        b"INCR" => writer.integer(1),
        b"WATCH" => writer.ok(),
        b"WAIT" => writer.integer(1),
        b"MULTI" => {
            *queued = Some(Vec::new());
            writer.ok();
        }
        b"EXEC" => {
            memory.transactions += 1;
            let queue = queued.take().expect("EXEC comes after MULTI");
            if manners.abort_every.is_some_and(|every| memory.transactions.is_multiple_of(every)) {
                return writer.null_array();
            }
            writer.array(queue.len());
            for (key, value) in queue {
                let by = match &value[..] {
                    CHANGE_UP => 1,
                    CHANGE_DOWN => -1,
                    [] => 0,
                    _ => {
                        memory.values.insert(key, value);
                        writer.ok();
                        continue;
                    }
                };
                let old = memory.values.get(&key).and_then(|old| String::from_utf8_lossy(old).parse::<i64>().ok());
                let new = old.unwrap_or(0) + by;
                memory.values.insert(key, new.to_string().into_bytes());
                writer.integer(new);
            }
        }
        other => panic!("the benchmark sent {}", other.escape_ascii()),
    }
}

/// What a queued INCRBY or DECRBY of 1 looks like.
const CHANGE_UP: &[u8] = b"\0+";
const CHANGE_DOWN: &[u8] = b"\0-";

#[test]
fn every_workload_runs_and_adds_up() {
    for workload in <Workload as clap::ValueEnum>::value_variants() {
        for pipeline in [1, 7] {
            if !workload.steps().is_empty() && pipeline > 1 {
                continue;
            }
            let server = Server::start(Manners::default());
            let load = BenchArguments { pipeline, ..server.load(*workload) };
            let outcome = measure(&load).expect("the server behaves");
            let counts = outcome.total.counts;
            let name = workload.name();
            assert!(counts.operations > 0, "{name}");
            assert_eq!((counts.errors, counts.misses, counts.aborts, counts.connections_lost), (0, 0, 0, 0), "{name}");
            assert_eq!(outcome.total.all().count(), counts.operations, "{name}");
            let parts = match workload {
                Workload::Transfer => 4,
                Workload::SetWait => 2,
                Workload::TransPair => 6,
                workload if workload.is_transactional() => 5,
                _ => 1,
            };
            // Transactions that were under way at the end have had some of their replies.
            let open = 4 * pipeline * (parts - 1);
            assert!((0..=open).contains(&(counts.requests - counts.operations * parts)), "{name}: {counts:?}");
            assert!(server.memory.lock().expect("unpoisoned").requests >= counts.requests);
            let summed: f64 = outcome.seconds.iter().map(|second| second.operations_per_second).sum();
            assert!(summed >= counts.operations as f64, "{name}: the one second was short");
        }
    }
}

#[test]
fn keys_are_loaded_before_they_are_read() {
    let server = Server::start(Manners::default());
    measure(&server.load(Workload::Get)).expect("the server behaves");
    assert_eq!(server.memory.lock().expect("unpoisoned").values.len(), 100);
    let empty = Server::start(Manners::default());
    let load = BenchArguments { no_load: true, ..empty.load(Workload::Get) };
    let counts = measure(&load).expect("the server behaves").total.counts;
    assert_eq!(counts.misses, counts.operations);
}

#[test]
fn a_request_of_the_users_own_is_made_and_can_fill_every_key_once() {
    let server = Server::start(Manners::default());
    let asking = |command: &str| BenchArguments { command: Some(command.to_owned()), ..server.load(Workload::Command) };
    fill(&asking("SET mine:{key} {value}")).expect("the server behaves");
    let filled = server.memory.lock().expect("unpoisoned").values.clone();
    assert_eq!(filled.len(), 100);
    assert_eq!(filled.get(b"mine:000000000099".as_slice()).map(Vec::len), Some(10));
    let counts = measure(&asking("GET mine:{key}")).expect("the server behaves").total.counts;
    assert!(counts.operations > 0);
    assert_eq!((counts.errors, counts.misses), (0, 0));
    let Err(error) = measure(&asking("GET 'mine")) else { panic!("half a request was made") };
    assert!(error.to_string().contains("unbalanced quotes"), "{error}");
}

#[test]
fn several_servers_and_threads_share_the_load() {
    let servers = [Server::start(Manners::default()), Server::start(Manners::default())];
    let hosts = servers.iter().map(|server| server.address.to_string()).collect();
    let load = BenchArguments { hosts, threads: Some(3), ..servers[0].load(Workload::GetSet) };
    let outcome = measure(&load).expect("the servers behave");
    assert_eq!(outcome.total.counts.misses, 0);
    for server in servers {
        let memory = server.memory.lock().expect("unpoisoned");
        assert_eq!(memory.values.len(), 100);
        assert!(memory.requests > 200);
    }
}

#[test]
fn money_that_is_lost_between_accounts_is_found() {
    let server = Server::start(Manners { forgets_credit: true, ..Manners::default() });
    let Err(error) = measure(&server.load(Workload::Transfer)) else { panic!("the loss was not noticed") };
    assert!(error.to_string().contains("money was made or lost"), "{error}");
}

#[test]
fn aborts_are_counted() {
    for workload in [Workload::Trans, Workload::TransAtOnce, Workload::TransPair] {
        let server = Server::start(Manners { abort_every: Some(4), ..Manners::default() });
        let counts = measure(&server.load(workload)).expect("the server behaves").total.counts;
        let share = counts.aborts as f64 / counts.operations as f64;
        assert!((0.2..0.3).contains(&share) || counts.operations < 40, "{counts:?}");
        assert!(counts.aborts > 0 && counts.errors == 0);
    }
}

#[test]
fn errors_are_counted_and_told_and_are_no_operations() {
    let server = Server::start(Manners { refuses_incr: true, ..Manners::default() });
    let outcome = measure(&server.load(Workload::Incr)).expect("errors end no benchmark");
    assert_eq!(outcome.total.counts.operations, 0);
    assert!(outcome.total.counts.errors > 0);
    assert_eq!(outcome.error_texts, ["OOM command not allowed"]);
}

#[test]
fn lost_connections_are_counted_and_made_anew() {
    let server = Server::start(Manners { cut_every: Some(50), ..Manners::default() });
    let outcome = measure(&server.load(Workload::Set)).expect("a cut ends no benchmark");
    let counts = outcome.total.counts;
    // Four connections, each of which came back at least twice.
    assert!(counts.connections_lost > 8, "{counts:?}");
    assert!(counts.unanswered > 0 && counts.operations > 0, "{counts:?}");
}

#[test]
fn a_stall_is_felt_by_all_who_should_have_been_served_meanwhile() {
    let pause = Duration::from_millis(200);
    let server = Server::start(Manners { stall: Some((100, pause)), ..Manners::default() });
    let load = BenchArguments { rate: Some(1000.0), clients: 2, seconds: 0.8, ..server.load(Workload::Set) };
    let outcome = measure(&load).expect("the server recovers");
    let all = outcome.total.all();
    assert!(all.max_ms() >= 200.0);
    // 200 operations were due during the stall, though two connections could ask for no more than two of them: a
    // quarter of all 800 waited, on average for half of it.
    let slow = all.percentile_ms(80.0);
    assert!(slow > 20.0, "80 % within {slow} ms: what was due during the stall was not counted");
}

#[test]
fn what_a_server_cannot_serve_in_time_is_told() {
    let server = Server::start(Manners { stall: Some((10, Duration::from_secs(2))), ..Manners::default() });
    let load = BenchArguments { rate: Some(1000.0), seconds: 0.5, ..server.load(Workload::Set) };
    let outcome = measure(&load).expect("the benchmark ends in time");
    assert!(outcome.unsent > 300, "{} unsent", outcome.unsent);
}

#[test]
fn a_password_is_said_or_its_lack_is_told_at_once() {
    let server = Server::start(Manners { password: Some("open sesame"), ..Manners::default() });
    let load = server.load(Workload::Set);
    let error = measure(&load).err().expect("a password is needed");
    assert!(format!("{error:#}").contains("NOAUTH"), "{error:#}");
    let load = BenchArguments { password: Some("open sesame".to_owned()), ..load };
    assert_eq!(measure(&load).expect("the password is right").total.counts.errors, 0);
}

#[test]
fn the_reports_tell_the_figures() {
    let server = Server::start(Manners { abort_every: Some(2), ..Manners::default() });
    let load = server.load(Workload::Trans);
    let outcome = measure(&load).expect("the server behaves");
    let text = report::text(&load, &outcome);
    for name in [
        "total transactions:",
        "total requests:",
        "total latency:",
        "average latency:",
        "maximum latency:",
        "elapsed time:",
        "requests/s:",
        "aborts:",
        "errors:",
    ] {
        assert!(text.contains(name), "{name} in\n{text}");
    }
    let json = report::json(&load, &outcome);
    assert_eq!(json["operations"], outcome.total.counts.operations);
    assert_eq!(json["aborts"], outcome.total.counts.aborts);
    assert_eq!(json["seconds"].as_array().map(Vec::len), Some(1));
    assert!(report::html(&load, &outcome).contains("</html>"));
}

#[test]
fn parts_of_a_load_make_one_report() {
    let server = Server::start(Manners::default());
    let folder = std::env::temp_dir().join(format!("holdfast-bench-parts-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary directory can be made");
    let whole =
        BenchArguments { rate: Some(900.0), clients: 5, keys: 90, seconds: 1.2, ..server.load(Workload::GetSet) };
    let play = |index: u64| {
        let part = Part { index, of: 3 };
        // A part has as many threads as its machine has processors.
        let load = BenchArguments { part: Some(part), threads: Some(index as usize + 1), ..whole.clone() };
        let outcome = measure(&load).expect("the server behaves");
        let file = folder.join(format!("{index}.json"));
        std::fs::write(&file, parts::json_of(&load, part, &outcome).to_string()).expect("the file can be written");
        (file, outcome)
    };
    let played = thread::scope(|scope| {
        let players: Vec<_> = (0..3).map(|index| scope.spawn(move || play(index))).collect();
        players.into_iter().map(|player| player.join().expect("it ends")).collect::<Vec<_>>()
    });
    let files: Vec<PathBuf> = played.iter().map(|(file, _)| file.clone()).collect();
    assert_eq!(server.memory.lock().expect("nobody panicked").values.len(), 90, "every key is loaded by some part");

    let (arguments, outcome) = parts::merge(&files).expect("they are the parts of one load");
    let sum = |of: fn(&Outcome) -> u64| played.iter().map(|(_, outcome)| of(outcome)).sum::<u64>();
    assert_eq!(outcome.total.counts.operations, sum(|outcome| outcome.total.counts.operations));
    assert_eq!(outcome.unsent, sum(|outcome| outcome.unsent));
    let (all, parts) = (outcome.total.all(), played.iter().map(|(_, outcome)| outcome.total.all()));
    let mut expected = Latencies::new();
    parts.for_each(|latencies| expected.merge(&latencies));
    assert_eq!(
        (all.count(), all.max_ms(), all.sum_seconds(), all.percentile_ms(99.0)),
        (expected.count(), expected.max_ms(), expected.sum_seconds(), expected.percentile_ms(99.0))
    );
    assert_eq!(outcome.seconds.len(), 2);
    let text = report::text(&arguments, &outcome);
    for line in ["get_set, 5 clients, pipeline 1", "900.0 operations/s", "elapsed time:         1.20 s"] {
        assert!(text.contains(line), "{line} in\n{text}");
    }

    let refused = |files: &[PathBuf]| format!("{:#}", parts::merge(files).err().expect("no whole load"));
    assert_eq!(refused(&files[..2]), "a part is missing: 3/3");
    assert!(refused(&[files[0].clone(), files[0].clone()]).contains("part 1/3 is given twice"));
    let changed = |from: &str, to: &str| {
        let text = std::fs::read_to_string(&files[2]).expect("it was written");
        assert!(text.contains(from), "{from} in {text}");
        let file = folder.join("changed.json");
        std::fs::write(&file, text.replacen(from, to, 1)).expect("the file can be written");
        refused(&[files[0].clone(), files[1].clone(), file])
    };
    assert!(changed(r#""pipeline":1"#, r#""pipeline":2"#).contains("has pipeline 2"));
    assert!(changed(r#""begun_at_unix_ms":1"#, r#""begun_at_unix_ms":2"#).contains("start them with --at"));
    assert!(changed(r#""sum_ns""#, r#""sum""#).contains("damaged"));
    assert!(changed(r#""part":{"#, r#""piece":{"#).contains("not a part of a load"));
    assert!(changed("{", "").contains("is not JSON"));
    std::fs::remove_dir_all(&folder).expect("the directory is there");
}

#[test]
fn a_load_that_should_have_begun_is_refused() {
    let server = Server::start(Manners::default());
    let error = measure(&BenchArguments { at: Some(1_700_000_000), ..server.load(Workload::Set) }).err();
    let text = format!("{:#}", error.expect("the time has passed"));
    assert!(text.starts_with("--at was ") && text.contains(" s ago"), "{text}");
    let load = BenchArguments { part: "3/3".parse().ok(), clients: 2, ..server.load(Workload::Set) };
    let text = format!("{:#}", measure(&load).err().expect("two clients make no three parts"));
    assert_eq!(text, "--part 3/3 of 2 clients has none");
}
