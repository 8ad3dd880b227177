//! What ails one node and costs the clients of the others little: a disk without room, a stop in good order; and what a
//! server says while it looks for its cluster.

use std::io::Read as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use resp::Frame;

use crate::cluster::Cluster;
use crate::harness::{Client, DiskFaults, Folder, PATIENCE, Server, ServerOptions, free_port, say, token_of, wait_for};

/// Whatever the disks do, a request has an answer within five seconds, and this machine may be very busy.
const REFUSED_WITHIN: Duration = Duration::from_secs(30);

/// The longest until a log is full that cannot grow.
const FILL_MAX: Duration = Duration::from_secs(300);

/// What a client has seen that wrote and read all the time.
struct Seen {
    longest: Duration,
    answer_count: u64,
    errors: Vec<String>,
}

/// Clients that ask all the time, of each node one.
struct Asking {
    is_over: Arc<AtomicBool>,
    answer_counts: Vec<Arc<AtomicU64>>,
    threads: Vec<thread::JoinHandle<Seen>>,
}

impl Asking {
    /// They write values of so many bytes to keys of all groups through these nodes, and read others.
    fn start(cluster: &Cluster, nodes: impl IntoIterator<Item = usize>, byte_count: usize) -> Self {
        let mut this = Self { is_over: Arc::default(), answer_counts: Vec::new(), threads: Vec::new() };
        for node in nodes {
            let answer_count = Arc::new(AtomicU64::new(0));
            this.answer_counts.push(Arc::clone(&answer_count));
            this.threads.push(keep_asking(cluster, node, byte_count, &this.is_over, answer_count));
        }
        this
    }

    /// Waits until each has had some more answers.
    fn wait_for_more(&self) {
        let counts = || self.answer_counts.iter().map(|count| count.load(Ordering::Relaxed));
        let before: Vec<u64> = counts().collect();
        wait_for("all clients get answers", || counts().zip(&before).all(|(now, before)| now > before + 20));
    }

    /// None of them has seen an error.
    fn stop(self) {
        self.is_over.store(true, Ordering::Release);
        for asking in self.threads {
            let seen = asking.join().expect("it does not panic");
            say(&format!("{} answers, the longest after {:?}", seen.answer_count, seen.longest));
            assert!(seen.errors.is_empty(), "{:?}", seen.errors);
        }
    }
}

fn keep_asking(
    cluster: &Cluster,
    node: usize,
    byte_count: usize,
    is_over: &Arc<AtomicBool>,
    answer_count: Arc<AtomicU64>,
) -> thread::JoinHandle<Seen> {
    let mut client = cluster.client(node);
    let is_over = Arc::clone(is_over);
    thread::spawn(move || {
        let mut seen = Seen { longest: Duration::ZERO, answer_count: 0, errors: Vec::new() };
        let value = "x".repeat(byte_count);
        while !is_over.load(Ordering::Acquire) {
            let number = seen.answer_count % 40;
            let (key, other) = (format!("{node}:{number}"), format!("small:{number}"));
            for words in [vec!["SET", &key, &value], vec!["GET", &other]] {
                let asked = Instant::now();
                let answer = client.call(&words);
                seen.longest = seen.longest.max(asked.elapsed());
                seen.answer_count += 1;
                answer_count.store(seen.answer_count, Ordering::Relaxed);
                if answer.is_error() {
                    seen.errors.push(answer.to_string());
                }
            }
        }
        seen
    })
}

/// A node, as it is numbered here, that leads a group.
fn some_leader(cluster: &Cluster) -> usize {
    let leads = |node: &usize| cluster.client(*node).show("ROLE").starts_with("[\"master\"");
    (0..3).find(leads).expect("one leads")
}

/// How often a group has got a leader because the one before had handed over, and because that had fallen silent, as
/// the timeline of a node has it.
fn changes_of_leaders(cluster: &Cluster, node: usize) -> (usize, usize) {
    let (_, told) = cluster.tool(node, &["timeline", "--count", "1000"]);
    (told.matches(" has handed over").count(), told.matches(" had been silent for ").count())
}

#[test]
fn a_stop_in_good_order_hands_over_before_others_have_to_elect() {
    let mut cluster = Cluster::start(3);
    // Others are elected only where a leader is silent for long. A busy machine may do that to one that does not stop.
    for _ in 0..5 {
        cluster.wait_until_settled();
        let leader = some_leader(&cluster);
        let other = (leader + 1) % 3;
        let before = changes_of_leaders(&cluster, other);
        let others = Asking::start(&cluster, (0..3).filter(|node| *node != leader), 100);
        others.wait_for_more();
        let exit = cluster.nodes[leader].take().expect("it runs").stop();
        assert!(exit.status.success() && exit.log.contains("hands over to node"), "{}", exit.log);
        assert!(exit.log.contains("other nodes lead"), "{}", exit.log);
        others.wait_for_more();
        others.stop();
        cluster.wait_until("it is told who leads, and why", |this| changes_of_leaders(this, other) != before);
        let (handed, elected) = changes_of_leaders(&cluster, other);
        say(&format!("{} times handed over, {} times elected", handed - before.0, elected - before.1));
        if handed > before.0 && elected == before.1 {
            return;
        }
        cluster.restart(leader);
    }
    panic!("nobody leads unless elected");
}

#[test]
fn a_full_disk_at_a_leader_costs_clients_a_pause_and_full_disks_everywhere_the_writes_alone() {
    let mut cluster = Cluster::start(3);
    let folders = [0; 3].map(|_| Folder::new());
    let mut faults = Vec::new();
    for (node, folder) in folders.iter().enumerate() {
        cluster.nodes[node].take().expect("it runs").stop();
        faults.push(DiskFaults::arrange(folder, cluster.options_mut(node)));
        cluster.restart(node);
    }
    cluster.wait_until_settled();
    let full = some_leader(&cluster);
    faults[full].set("create fail ENOSPC");
    let asking = Asking::start(&cluster, 0..3, 256 << 10);
    let begun = Instant::now();
    // Until then the room that it has prepared for its log is filled.
    while !cluster.nodes[full].as_ref().is_some_and(|node| node.log().contains(" has no room: ")) {
        assert!(begun.elapsed() < FILL_MAX, "it has not handed over");
        thread::sleep(Duration::from_millis(20));
    }
    say(&format!("handed over {:?} after its log could not grow any more", begun.elapsed()));
    // Without a hand-over it would refuse what it leads.
    asking.wait_for_more();
    asking.stop();
    // Now the others.
    faults.iter().for_each(|faults| faults.set("create fail ENOSPC"));
    let value = vec![b'x'; 256 << 10];
    let mut client = cluster.client(0);
    let mut count = 0;
    let refusal = loop {
        let asked = Instant::now();
        let answer = client.call(&[b"SET".as_slice(), format!("f:{count}").as_bytes(), &value]);
        assert!(asked.elapsed() < REFUSED_WITHIN, "answered after {:?}", asked.elapsed());
        if let Frame::Error(text) = answer {
            break String::from_utf8_lossy(&text).into_owned();
        }
        count += 1;
        // Segments that were written before, and are free, are written again: some of each node.
        assert!(count < 6_000, "1.5 GB were acknowledged although no log can grow");
    };
    say(&format!("after {count} values of 256 KiB: {refusal}"));
    assert!(refusal.starts_with("MISCONF "), "{refusal}");
    cluster.wait_until("every node refuses writes, at once, and answers reads", |this| {
        (0..3).all(|node| {
            let mut client = this.client(node);
            let answers = ["SET a 1", "SET b 1"].map(|words| {
                let asked = Instant::now();
                let answer = client.show(words);
                assert!(asked.elapsed() < REFUSED_WITHIN, "{words}: {:?}: {answer}", asked.elapsed());
                answer
            });
            client.show("GET f:0").starts_with("\"xxx")
                && answers.iter().all(|answer| answer.starts_with("(error) MISCONF "))
        })
    });
    // Elections need little, and what they need was kept free: also after all have been killed.
    (0..3).for_each(|node| cluster.kill(node));
    (0..3).for_each(|node| cluster.nodes[node] = Some(Server::spawn(&cluster.options_mut(node).clone())));
    for node in 0..3 {
        cluster.wait_until("reads are answered after a start with full disks", |this| {
            this.try_client(node).is_some_and(|mut client| client.show("GET f:0").starts_with("\"xxx"))
        });
    }
    faults.iter().for_each(DiskFaults::clear);
    for node in 0..3 {
        let mut client = cluster.client(node);
        assert_eq!(cluster.ask(&mut client, "SET a 2"), "OK");
    }
}

#[test]
fn a_core_that_is_busy_for_six_seconds_keeps_its_links() {
    let mut cluster = Cluster::start(3);
    cluster.wait_until_settled();
    let leads = |node: &usize| cluster.client(*node).show("ROLE").starts_with("[\"master\"");
    let follower = (0..3).find(|node| !leads(node)).expect("two groups have two leaders");
    let others = (0..3).filter(|node| *node != follower);
    let asking = Asking::start(&cluster, others.clone(), 256 << 10);
    // Its cores take clients in turn.
    let mut sleepers = [0; 2].map(|_| cluster.client(follower));
    for sleeper in &mut sleepers {
        sleeper.send(&["DEBUG", "SLEEP", "6"]).expect("a connection");
    }
    for sleeper in &mut sleepers {
        assert_eq!(sleeper.receive().expect("an answer").to_string(), "OK");
    }
    asking.wait_for_more();
    asking.stop();
    for node in others {
        let log = cluster.node(node).log();
        assert!(!log.contains("no link to node"), "{log}");
    }
}

/// A server that is told to join this address.
fn joining(address: &str, words: &[&str]) -> (ServerOptions, u16, Folder) {
    let (folder, port) = (Folder::new(), free_port());
    let options = ServerOptions::new(&folder.path().join("data"));
    let cluster_port = port.to_string();
    let options = options.extra(&["--cores", "2", "--cluster-port", &cluster_port, "--tls-cluster", "no"]).extra(words);
    let options = if address.is_empty() { options } else { options.extra(&["--join", address]) };
    (options, port, folder)
}

#[test]
fn a_server_that_looks_for_its_cluster_ends_at_once_when_it_is_told_to() {
    for signal in ["TERM", "INT"] {
        // Nobody listens there; and there somebody does, and never says anything.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let silent_address = silent.local_addr().expect("an address").to_string();
        for address in [format!("127.0.0.1:{}", free_port()), silent_address] {
            // It waits for two seconds for an answer, or half a second before it asks again. Once it need be at once.
            let took = (0..5).map(|_| time_to_stop(&address, signal)).find(|took| *took < Duration::from_secs(1));
            assert!(took.is_some(), "it waits for {address} when it is told to end");
        }
    }
}

/// How long a server that looks for its cluster at this address takes to end.
fn time_to_stop(address: &str, signal: &str) -> Duration {
    let (options, _, _folder) = joining(address, &[]);
    let mut server = Server::spawn(&options);
    wait_for("it listens", || Client::try_connect(options.port).is_some());
    thread::sleep(Duration::from_millis(300));
    let told = Instant::now();
    server.signal(signal);
    let exit = server.wait();
    assert!(exit.status.success() && exit.log.contains("stops, and has not joined"), "{}", exit.log);
    told.elapsed()
}

#[test]
fn two_servers_that_join_each_other_say_so_and_answer_clients() {
    let (mut one, one_port, _one) = joining("", &[]);
    let (other, other_port, _other) = joining(&format!("127.0.0.1:{one_port}"), &[]);
    one = one.extra(&["--join", &format!("127.0.0.1:{other_port}")]);
    let servers = [Server::spawn(&one), Server::spawn(&other)];
    for server in &servers {
        server.wait_for_log("looks for a cluster to join itself: one of them must be started without --join");
        let mut client = server.client();
        for request in ["PING", "SET a 1", "GET a"] {
            assert!(client.show(request).starts_with("(error) LOADING "), "{request}");
        }
    }
    // Nothing is lost: one of them is started again, as it should have been, and the other finds it.
    let [first, second] = servers;
    first.stop();
    let mut without_join = one.clone();
    without_join.extra.truncate(one.extra.len() - 2);
    let first = Server::start(&without_join);
    second.wait_for_log("ready to accept commands");
    assert_eq!(first.client().show("SET a 1"), "OK");
    let mut client = second.client();
    // It said that it was ready: the first answer is the right one.
    assert_eq!(client.show("GET a"), "\"1\"", "{}", second.log());
}

#[test]
fn joining_at_a_port_for_clients_is_told() {
    let folder = Folder::new();
    let founder = ServerOptions::new(&folder.path().join("data"));
    let server = Server::start(&founder);
    let token = token_of(&founder.data_folder, Duration::from_secs(600));
    let address = format!("127.0.0.1:{}", server.port());
    for words in [&[][..], &["--tls-cluster", "auto"]] {
        let (mut options, _, _folder) = joining(&address, words);
        options.environment.push(("HOLDFAST_TOKEN".to_owned(), token.clone()));
        let mut joiner = Server::spawn(&options);
        let exit = joiner.wait();
        let told = format!("{address} is a port for clients: name the port for other nodes");
        assert!(!exit.status.success() && exit.log.contains(&told), "{}", exit.log);
    }
    assert_eq!(server.client().show("PING"), "PONG");
    // A greeting is no request.
    let mut stream = TcpStream::connect(&address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_millis(200))).expect("a time-out");
    assert!(stream.read(&mut [0]).is_err());
}

#[test]
fn a_node_that_is_stopped_again_and_again_gives_its_groups_to_another_and_says_why() {
    let mut cluster = Cluster::start(3);
    cluster.wait_until("all are known", |this| this.tool(0, &["status"]).1.matches("none").count() >= 2);
    let first = cluster.address(0);
    for group in ["0", "1"] {
        let (is_done, told) = cluster.tool(0, &["prefer", group, &first]);
        assert!(is_done, "{told}");
    }
    let is_told = |this: &Cluster| {
        let (_, told) = this.tool(1, &["timeline", "--count", "1000"]);
        told.contains("its host has stalled") && told.contains("a signal stopped it")
    };
    let begun = Instant::now();
    // Short enough for no election: a leader that is silent for so long is waited for.
    while !is_told(&cluster) {
        for _ in 0..4 {
            cluster.node(0).signal("STOP");
            thread::sleep(Duration::from_millis(250));
            cluster.node(0).signal("CONT");
            thread::sleep(Duration::from_millis(150));
        }
        assert!(begun.elapsed() < PATIENCE * 3, "{}", cluster.tool(1, &["timeline", "--count", "100"]).1);
    }
    // Clients are served, through the node that was stopped as well.
    let mut client = cluster.client(0);
    assert_eq!(cluster.ask(&mut client, "SET after yes"), "OK");
}
