//! `holdfast migrate` from a Redis Cluster: its primaries are followed while slots move, a primary fails, and another
//! one gets its first slots; then it is cut over, without a key that differs.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use resp::Frame;
use stdx::Prng;
use stdx::slot::slot_of;

use crate::cluster::Cluster;
use crate::harness::{Client, Folder, PATIENCE, Stock, both, free_port, say};
use crate::migrate::{Follower, migrate, request, wait_until_following};

const ACCOUNTS: u64 = 10;
const ACCOUNT_START: i64 = 100;

/// Primaries that have slots from the beginning on. Behind them comes one without slots, and a replica of the first.
const PRIMARIES: usize = 3;

/// A Redis Cluster on this machine; dead nodes are `None`.
struct Source {
    nodes: Vec<Option<Stock>>,
    names: Vec<String>,
}

impl Source {
    /// Starts one; none if there is no Redis here.
    fn start(folder: &Path) -> Option<Self> {
        let mut nodes = Vec::new();
        for node in 0..PRIMARIES + 2 {
            let bus = free_port().to_string();
            let words = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--repl-backlog-size", "64mb"];
            let more = ["--cluster-node-timeout", "60000", "--repl-diskless-sync-delay", "0"];
            nodes.push(Some(Stock::start(&folder.join(format!("redis{node}")), &[&words[..], &more].concat())?));
        }
        let mut this = Self { nodes, names: Vec::new() };
        for node in 0..this.nodes.len() {
            let name = this.call(node, "CLUSTER MYID");
            this.names.push(String::from_utf8_lossy(name.as_bytes().expect("a name")).into_owned());
            this.call(node, &format!("CLUSTER SET-CONFIG-EPOCH {}", node + 1));
            let share = 16_384 / PRIMARIES + 1;
            if node < PRIMARIES {
                let last = (share * (node + 1)).min(16_384) - 1;
                this.call(node, &format!("CLUSTER ADDSLOTSRANGE {} {last}", share * node));
            }
            if node > 0 {
                let info = this.call(0, "CONFIG GET cluster-port");
                let bus = String::from_utf8_lossy(info.elements().expect("a pair")[1].as_bytes().expect("a port"))
                    .into_owned();
                this.call(node, &format!("CLUSTER MEET 127.0.0.1 {} {bus}", this.port(0)));
            }
        }
        this.wait_until("all nodes know each other", |this| {
            (0..this.nodes.len()).all(|node| {
                let known = this.call(node, "CLUSTER INFO");
                let known = String::from_utf8_lossy(known.as_bytes().unwrap_or_default()).into_owned();
                known.contains("cluster_state:ok") && known.contains(&format!("cluster_known_nodes:{}", PRIMARIES + 2))
            })
        });
        let first = this.names[0].clone();
        this.wait_until("the replica follows", |this| {
            let replica = PRIMARIES + 1;
            let told = this.call(replica, "INFO replication");
            let told = String::from_utf8_lossy(told.as_bytes().unwrap_or_default()).into_owned();
            // Said twice, it begins the copy again.
            if told.contains("role:master") {
                let _ = this.client(replica).call(&["CLUSTER", "REPLICATE", &first]);
            }
            told.contains("master_link_status:up")
        });
        Some(this)
    }

    fn port(&self, node: usize) -> u16 {
        self.nodes[node].as_ref().expect("a node that runs").port()
    }

    fn client(&self, node: usize) -> Client {
        self.nodes[node].as_ref().expect("a node that runs").client()
    }

    #[track_caller]
    fn call(&self, node: usize, request: &str) -> Frame {
        let reply = self.client(node).call(&request.split(' ').collect::<Vec<_>>());
        assert!(!reply.is_error(), "{request}: {reply}");
        reply
    }

    #[track_caller]
    fn wait_until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < PATIENCE, "{what}: not yet");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// The primary that says that it has a slot.
    fn owner_of(&self, slot: u16) -> usize {
        let has = |node: &usize| {
            let nodes = self.call(*node, "CLUSTER NODES");
            let text = String::from_utf8_lossy(nodes.as_bytes().unwrap_or_default()).into_owned();
            let own = text.lines().find(|line| line.contains("myself,master")).unwrap_or_default();
            own.split(' ').skip(8).filter(|word| !word.starts_with('[')).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                (first.parse().unwrap_or(u16::MAX)..=last.parse().unwrap_or(0)).contains(&slot)
            })
        };
        (0..self.nodes.len()).filter(|node| self.nodes[*node].is_some()).find(has).expect("an owner")
    }

    /// Moves a slot to another primary as `redis-cli --cluster reshard` does; `between` comes when half of it is there.
    fn move_slot(&self, slot: u16, to: usize, between: impl FnOnce()) {
        let from = self.owner_of(slot);
        self.call(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {}", self.names[from]));
        self.call(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {}", self.names[to]));
        let mut between = Some(between);
        loop {
            let keys = self.call(from, &format!("CLUSTER GETKEYSINSLOT {slot} 4"));
            let keys: Vec<&[u8]> = keys.elements().expect("keys").iter().filter_map(Frame::as_bytes).collect();
            if keys.is_empty() {
                break;
            }
            let port = self.port(to).to_string();
            let mut words = vec![&b"MIGRATE"[..], b"127.0.0.1", port.as_bytes(), b"", b"0", b"10000", b"KEYS"];
            words.extend(keys);
            let reply = self.client(from).call(&words);
            assert!(!reply.is_error(), "{reply}");
            if let Some(between) = between.take() {
                between();
            }
        }
        for node in [to, from] {
            self.call(node, &format!("CLUSTER SETSLOT {slot} NODE {}", self.names[to]));
        }
    }
}

/// A client that goes where a cluster sends it.
struct Wanderer {
    ports: Vec<u16>,
    clients: BTreeMap<u16, Client>,
    by_slot: BTreeMap<u16, u16>,
}

impl Wanderer {
    fn new(source: &Source) -> Self {
        let ports = (0..source.nodes.len()).map(|node| source.port(node)).collect();
        Self { ports, clients: BTreeMap::new(), by_slot: BTreeMap::new() }
    }

    fn at(&mut self, port: u16) -> Option<&mut Client> {
        match self.clients.entry(port) {
            Entry::Occupied(entry) => Some(entry.into_mut()),
            Entry::Vacant(entry) => Some(entry.insert(Client::try_connect(port)?)),
        }
    }

    /// Sends requests about one slot together; the replies, if it was taken by a node.
    fn call(&mut self, slot: u16, requests: &[Vec<String>]) -> Option<Vec<Frame>> {
        let mut port = self.by_slot.get(&slot).copied().unwrap_or(self.ports[0]);
        let mut asks = false;
        for _ in 0..6 {
            let Some(replies) = self.at(port).and_then(|client| {
                if std::mem::take(&mut asks) {
                    client.try_call(&["ASKING"])?;
                }
                requests.iter().map(|words| client.try_call(words)).collect::<Option<Vec<_>>>()
            }) else {
                // It is dead.
                self.clients.remove(&port);
                self.by_slot.remove(&slot);
                port = self.ports[another_of(self.ports.len(), port)];
                continue;
            };
            let text = replies.iter().find(|reply| reply.is_error()).map(ToString::to_string).unwrap_or_default();
            let place = text
                .rsplit_once(':')
                .and_then(|(_, port)| port.trim_matches(|c: char| !c.is_ascii_digit()).parse().ok());
            match place {
                Some(place) if text.contains("MOVED ") => {
                    self.by_slot.insert(slot, place);
                    port = place;
                }
                // ASKING holds for one request only.
                Some(place) if text.contains("ASK ") && requests.len() == 1 => (port, asks) = (place, true),
                _ => return Some(replies),
            }
        }
        None
    }
}

/// Another of so many than the one at a port.
fn another_of(count: usize, port: u16) -> usize {
    (usize::from(port) + 1) % count
}

fn account(number: u64) -> String {
    format!("account{{bank}}:{number}")
}

/// Writers, each until it is told to end.
fn write(source: &Source, is_over: &Arc<AtomicBool>) -> Vec<JoinHandle<u64>> {
    let writer = |nth| {
        let (mut client, is_over) = (Wanderer::new(source), Arc::clone(is_over));
        thread::spawn(move || {
            let mut prng = Prng::new(nth);
            let mut count = 0;
            let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
            while !is_over.load(Ordering::Relaxed) {
                let done = if prng.below(8) == 0 {
                    let (from, to) = (account(prng.below(ACCOUNTS)), account(prng.below(ACCOUNTS)));
                    let requests =
                        [words("MULTI"), words(&format!("DECR {from}")), words(&format!("INCR {to}")), words("EXEC")];
                    client.call(slot_of(from.as_bytes()).0, &requests)
                } else {
                    let key = format!("{{k{}}}", prng.below(100));
                    client.call(slot_of(key.as_bytes()).0, &[request(&mut prng, &key)])
                };
                count += u64::from(done.is_some_and(|replies| !replies.iter().any(Frame::is_error)));
                thread::sleep(Duration::from_micros(500));
            }
            count
        })
    };
    (1..=3).map(writer).collect()
}

/// The sum of all accounts; none if one is not there.
fn sum(client: &mut Client) -> Option<i64> {
    let mut words = vec!["MGET".to_owned()];
    words.extend((0..ACCOUNTS).map(account));
    let reply = client.try_call(&words)?;
    let values = reply.elements()?.iter().map(|value| std::str::from_utf8(value.as_bytes()?).ok()?.parse::<i64>().ok());
    values.sum()
}

/// No transaction of the source is seen torn at a node of the target; answers how often all accounts were there.
fn watch(cluster: &Cluster, duration: Duration) -> u64 {
    let begun = Instant::now();
    let mut sums = 0;
    while begun.elapsed() < duration {
        if let Some(sum) = cluster.try_client(1).and_then(|mut client| sum(&mut client)) {
            assert_eq!(sum, ACCOUNTS as i64 * ACCOUNT_START, "a transaction was torn");
            sums += 1;
        }
        thread::sleep(Duration::from_millis(5));
    }
    sums
}

/// Waits until `migrate status` says something, or no longer.
#[track_caller]
fn wait_for_status(places: &str, folder: &Folder, what: &str, is_said: bool) {
    let begun = Instant::now();
    loop {
        let status = both(&migrate(&["status", "--server", places]));
        if status.contains("the stream is followed") && status.contains(what) == is_said {
            return;
        }
        let log = std::fs::read_to_string(folder.path().join("migrate.log")).unwrap_or_default();
        assert!(begun.elapsed() < PATIENCE, "{what}: {is_said}: {status}\n{log}");
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_redis_cluster_is_followed_while_slots_move_and_a_primary_fails_and_cut_over() {
    let folder = Folder::new();
    let Some(mut source) = Source::start(folder.path()) else { return };
    let mut theirs = Wanderer::new(&source);
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for number in 0..ACCOUNTS {
        let name = account(number);
        theirs.call(slot_of(name.as_bytes()).0, &[words(&format!("SET {name} {ACCOUNT_START}"))]).expect("taken");
    }
    for number in 0..1_000 {
        let key = format!("old:{number}");
        theirs
            .call(slot_of(key.as_bytes()).0, &[words(&format!("SET {key} {}", "v".repeat(number % 300)))])
            .expect("taken");
    }
    for node in 0..=PRIMARIES {
        let code = "#!lua name=l\nredis.register_function('f', function(k) return 1 end)";
        source.client(node).call(&["FUNCTION", "LOAD", code]);
    }
    let from = format!("redis://127.0.0.1:{}", source.port(1));

    let target = Cluster::start(3);
    let places = (0..3).map(|node| format!("127.0.0.1:{}", target.node(node).port())).collect::<Vec<_>>().join(",");
    let checked = both(&migrate(&["check", "--from", &from, "--server", &places]));
    assert!(checked.contains("3 primaries with slots and 1 replicas answer"), "{checked}");
    let mut follower = Follower::start(&from, &places, &folder, &[]);
    let is_over = Arc::new(AtomicBool::new(false));
    let writers = write(&source, &is_over);
    wait_until_following(&places, &folder);
    let mut sums = watch(&target, Duration::from_millis(500));

    // Lines are cut.
    for node in 0..PRIMARIES {
        source.call(node, "CLIENT KILL TYPE replica");
    }
    sums += watch(&target, Duration::from_millis(500));

    // Slots move, one of them to a node that had none, while the process that follows is killed.
    let bank = slot_of(b"bank").0;
    let to = (source.owner_of(bank) + 1) % PRIMARIES;
    source.move_slot(bank, to, || {
        follower.kill();
        // Another process is taken for alive for five seconds.
        thread::sleep(Duration::from_secs(6));
        follower = Follower::start(&from, &places, &folder, &[]);
        sums += watch(&target, Duration::from_millis(700));
    });
    for number in 0..12 {
        let slot = slot_of(format!("k{number}").as_bytes()).0;
        let to = if number % 3 == 0 { PRIMARIES } else { (source.owner_of(slot) + 1) % PRIMARIES };
        source.move_slot(slot, to, || thread::sleep(Duration::from_millis(30)));
    }
    wait_for_status(&places, &folder, "moving", false);
    wait_for_status(&places, &folder, &format!("127.0.0.1:{} at", source.port(PRIMARIES)), true);
    // On, and back, at once.
    source.move_slot(bank, 1, || ());
    source.move_slot(bank, to, || ());
    source.move_slot(bank, 1, || ());
    sums += watch(&target, Duration::from_millis(500));

    // A primary dies, and its replica takes over.
    source.nodes[0] = None;
    source.call(PRIMARIES + 1, "CLUSTER FAILOVER TAKEOVER");
    wait_for_status(&places, &folder, &format!("127.0.0.1:{} at", source.port(PRIMARIES + 1)), true);
    sums += watch(&target, Duration::from_millis(500));
    // One forgets all that it has: as much as others have goes at the target.
    source.call(2, "FLUSHALL");
    thread::sleep(Duration::from_millis(600));

    let begun = Instant::now();
    loop {
        wait_for_status(&places, &folder, "moving", false);
        let cut_over = migrate(&["cutover", "--from", &from, "--server", &places]);
        if cut_over.status.success() {
            say(both(&cut_over).lines().next().unwrap_or_default());
            break;
        }
        let log = std::fs::read_to_string(folder.path().join("migrate.log")).unwrap_or_default();
        assert!(begun.elapsed() < PATIENCE, "{}\n{log}", both(&cut_over));
        thread::sleep(Duration::from_millis(500));
    }
    is_over.store(true, Ordering::Relaxed);
    let count: u64 = writers.into_iter().map(|writer| writer.join().expect("a writer")).sum();
    assert!(follower.wait(), "it ends in good order");
    for node in 1..=PRIMARIES + 1 {
        let refused = source.client(node).call(&["FLUSHALL"]);
        assert!(refused.to_string().contains("NOREPLICAS"), "{refused}");
    }
    let verified = migrate(&["verify", "--from", &from, "--server", &places]);
    assert!(verified.status.success(), "{}", both(&verified));
    let mut ours = target.client(2);
    assert_eq!(sum(&mut ours), Some(ACCOUNTS as i64 * ACCOUNT_START));
    assert_eq!(ours.show("FCALL f 0"), "(integer) 1");
    assert_eq!(ours.show("CONFIG GET import-mode"), "[\"import-mode\", \"no\"]");
    assert_eq!(ours.show("SET late 1"), "OK");
    say(&format!("{count} changes, {sums} sums: {}", both(&verified).lines().next().unwrap_or_default()));
}

/// The node that is asked holds none of the groups that have keys: they are compared all the same.
#[test]
fn keys_that_the_asked_node_does_not_hold_are_compared() {
    let folder = Folder::new();
    let Some(stock) = Stock::start(&folder.path().join("redis"), &[]) else { return };
    let from = format!("redis://127.0.0.1:{}", stock.port());
    let mut target = Cluster::start_with_groups(2, 4);
    let key = target.set_away_from(1);
    let place = target.address(1);
    let verified = migrate(&["verify", "--from", &from, "--server", &place]);
    assert!(!verified.status.success() && both(&verified).contains("1 differ"), "{}", both(&verified));
    stock.client().show(&format!("SET {key} mine"));
    let verified = migrate(&["verify", "--from", &from, "--server", &place]);
    assert!(verified.status.success() && both(&verified).contains("1 keys are the same"), "{}", both(&verified));
}
