//! What ails one node and costs the clients of the others little: a disk without room, a stop in good order; and what a
//! server says while it looks for its cluster.

use std::io::Read as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use resp::Frame;

use crate::cluster::Cluster;
use crate::harness::{Client, DiskFaults, Folder, Server, ServerOptions, free_port, say, token_of};

const PATIENCE: Duration = Duration::from_secs(30);

/// A pause that no client of a healthy node may see, however busy this machine is: without a hand-over there would be a
/// wait for the disk.
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// One that a hand-over is shorter than, and an election is not: nobody is elected before a lease has ended.
const HAND_OVER_MAX: Duration = Duration::from_millis(500);

/// Whatever the disks do, a request has an answer within five seconds, and this machine is busy.
const REFUSED_WITHIN: Duration = Duration::from_millis(5_500);

/// The longest until a log is full that cannot grow.
const FILL_MAX: Duration = Duration::from_secs(120);

/// What a client has seen that wrote and read all the time.
struct Seen {
    longest: Duration,
    answer_count: u64,
    errors: Vec<String>,
}

/// Writes values of so many bytes to keys of all groups through a node, and reads others, until it is told to stop.
fn keep_asking(
    cluster: &Cluster,
    node: usize,
    byte_count: usize,
    is_over: &Arc<AtomicBool>,
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
                if answer.is_error() {
                    seen.errors.push(answer.to_string());
                }
            }
        }
        seen
    })
}

/// Waits until each group is led by another node, and stays where it is.
fn wait_until_spread(cluster: &mut Cluster) {
    let mut before = Vec::new();
    cluster.wait_until("leaders are spread", |this| {
        let leaders = this.of_groups(0, "leader");
        let is_spread = leaders.len() == 2 && leaders[0] != leaders[1] && !leaders.contains(&"null".to_owned());
        let stays = is_spread && leaders == before;
        before = leaders;
        // Longer than it takes one leader to follow another.
        thread::sleep(Duration::from_secs(2));
        stays
    });
}

/// A node, as it is numbered here, that leads a group.
fn some_leader(cluster: &Cluster) -> usize {
    let leads = |node: &usize| cluster.client(*node).show("ROLE").starts_with("[\"master\"");
    (0..3).find(leads).expect("one leads")
}

#[test]
fn a_stop_in_good_order_hands_over_before_others_have_to_elect() {
    // A tenth of a second is usual on a busy machine; an election takes seven or more. Other tests may hold one up.
    let pauses = std::iter::repeat_with(pause_of_a_stop).take(3);
    let mut longer = Vec::new();
    for pause in pauses {
        if pause < HAND_OVER_MAX {
            return;
        }
        longer.push(pause);
    }
    panic!("clients waited for {longer:?}");
}

/// The longest that clients of the other nodes waited while one stopped.
fn pause_of_a_stop() -> Duration {
    let mut cluster = Cluster::start(3);
    wait_until_spread(&mut cluster);
    let leader = some_leader(&cluster);
    let is_over = Arc::new(AtomicBool::new(false));
    let others = (0..3).filter(|node| *node != leader).map(|node| keep_asking(&cluster, node, 100, &is_over));
    let others: Vec<_> = others.collect();
    thread::sleep(Duration::from_millis(500));
    let exit = cluster.nodes[leader].take().expect("it runs").stop();
    assert!(exit.status.success() && exit.log.contains("hands over to node"), "{}", exit.log);
    assert!(exit.log.contains("other nodes lead"), "{}", exit.log);
    thread::sleep(Duration::from_millis(1_500));
    is_over.store(true, Ordering::Release);
    let mut longest = Duration::ZERO;
    for asking in others {
        let seen = asking.join().expect("it does not panic");
        say(&format!("{} answers, the longest after {:?}", seen.answer_count, seen.longest));
        assert!(seen.errors.is_empty() && seen.longest < PAUSE_MAX, "{:?}, {:?}", seen.longest, seen.errors);
        longest = longest.max(seen.longest);
    }
    longest
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
    wait_until_spread(&mut cluster);
    let full = some_leader(&cluster);
    faults[full].set("create fail ENOSPC");
    let is_over = Arc::new(AtomicBool::new(false));
    let asking: Vec<_> = (0..3).map(|node| keep_asking(&cluster, node, 256 << 10, &is_over)).collect();
    let begun = Instant::now();
    // Until then the room that it has prepared for its log is filled.
    while !cluster.nodes[full].as_ref().is_some_and(|node| node.log().contains(" has no room: ")) {
        assert!(begun.elapsed() < FILL_MAX, "it has not handed over");
        thread::sleep(Duration::from_millis(20));
    }
    say(&format!("handed over {:?} after its log could not grow any more", begun.elapsed()));
    thread::sleep(Duration::from_secs(2));
    is_over.store(true, Ordering::Release);
    for asking in asking {
        let seen = asking.join().expect("it does not panic");
        say(&format!("{} answers, the longest after {:?}", seen.answer_count, seen.longest));
        assert!(seen.errors.is_empty() && seen.longest < PAUSE_MAX, "{:?}, {:?}", seen.longest, seen.errors);
    }
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
    wait_until_spread(&mut cluster);
    let leads = |node: &usize| cluster.client(*node).show("ROLE").starts_with("[\"master\"");
    let follower = (0..3).find(|node| !leads(node)).expect("two groups have two leaders");
    let is_over = Arc::new(AtomicBool::new(false));
    let others = (0..3).filter(|node| *node != follower);
    let asking: Vec<_> = others.clone().map(|node| keep_asking(&cluster, node, 256 << 10, &is_over)).collect();
    // Its cores take clients in turn.
    let mut sleepers = [0; 2].map(|_| cluster.client(follower));
    for sleeper in &mut sleepers {
        sleeper.send(&["DEBUG", "SLEEP", "6"]).expect("a connection");
    }
    for sleeper in &mut sleepers {
        assert_eq!(sleeper.receive().expect("an answer").to_string(), "OK");
    }
    thread::sleep(Duration::from_secs(1));
    is_over.store(true, Ordering::Release);
    for asking in asking {
        let seen = asking.join().expect("it does not panic");
        say(&format!("{} answers, the longest after {:?}", seen.answer_count, seen.longest));
        assert!(seen.errors.is_empty(), "{:?}", seen.errors);
    }
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
            let (options, _, _folder) = joining(&address, &[]);
            let mut server = Server::spawn(&options);
            let begun = Instant::now();
            while Client::try_connect(options.port).is_none() {
                assert!(begun.elapsed() < PATIENCE, "{}", server.log());
                thread::sleep(Duration::from_millis(20));
            }
            thread::sleep(Duration::from_millis(300));
            let told = Instant::now();
            server.signal(signal);
            let exit = server.wait();
            assert!(told.elapsed() < Duration::from_secs(1), "after {:?}", told.elapsed());
            assert!(exit.status.success() && exit.log.contains("stops, and has not joined"), "{}", exit.log);
        }
    }
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
            let asked = Instant::now();
            assert!(client.show(request).starts_with("(error) LOADING "), "{request}");
            assert!(asked.elapsed() < Duration::from_secs(1));
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
