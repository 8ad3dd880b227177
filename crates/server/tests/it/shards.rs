//! Six nodes as clients of Redis Cluster see them: each that leads nothing is the replica of one master, and every
//! master has one. All nodes and all commands show the same. A cluster of Redis is held to the same.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use resp::Frame;

use crate::clients::{missing, output};
use crate::cluster::Cluster;
use crate::harness::{Client, Folder, PATIENCE, Stock, free_port};

/// Names of masters with those of their replicas.
type Shards = BTreeMap<String, BTreeSet<String>>;

fn text(frame: &Frame) -> String {
    String::from_utf8_lossy(frame.as_bytes().unwrap_or_default()).into_owned()
}

fn field<'f>(pairs: &'f Frame, name: &str) -> Option<&'f Frame> {
    let pairs = pairs.elements()?;
    pairs.chunks(2).find(|pair| text(&pair[0]) == name).map(|pair| &pair[1])
}

/// What CLUSTER NODES says.
fn of_nodes(client: &mut Client) -> Shards {
    let lines = text(&client.call(&["CLUSTER", "NODES"]));
    let mut shards = Shards::new();
    for words in lines.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()) {
        let flags: Vec<&str> = words[2].split(',').collect();
        if flags.contains(&"slave") {
            shards.entry(words[3].to_owned()).or_default().insert(words[0].to_owned());
        } else {
            shards.entry(words[0].to_owned()).or_default();
        }
    }
    shards
}

/// What CLUSTER SLOTS says.
fn of_slots(client: &mut Client) -> Shards {
    let mut shards = Shards::new();
    for range in client.call(&["CLUSTER", "SLOTS"]).elements().unwrap_or_default() {
        let range = range.elements().expect("a range");
        let mut names = range[2..].iter().map(|node| text(&node.elements().expect("a node")[2]));
        shards.entry(names.next().expect("a master")).or_default().extend(names);
    }
    shards
}

/// What CLUSTER SHARDS says.
fn of_shards(client: &mut Client) -> Shards {
    let mut shards = Shards::new();
    for shard in client.call(&["CLUSTER", "SHARDS"]).elements().unwrap_or_default() {
        let nodes = field(shard, "nodes").and_then(Frame::elements).expect("nodes");
        let of = |role: &str| -> Vec<String> {
            let of = nodes.iter().filter(|node| field(node, "role").is_some_and(|is| text(is) == role));
            of.map(|node| text(field(node, "id").expect("a name"))).collect()
        };
        for master in of("master") {
            shards.entry(master).or_default().extend(of("replica"));
        }
    }
    shards
}

/// What CLUSTER REPLICAS says of each master.
fn of_replicas(client: &mut Client) -> Shards {
    let masters: Vec<String> = of_nodes(client).into_keys().collect();
    let replicas = |master: String, client: &mut Client| {
        let lines = client.call(&["CLUSTER", "REPLICAS", &master]);
        let names = lines.elements().unwrap_or_default().iter().map(|line| text(line)[..40].to_owned()).collect();
        (master, names)
    };
    masters.into_iter().map(|master| replicas(master, client)).collect()
}

/// What this node and INFO say of itself fits.
fn is_as_shown(client: &mut Client, shards: &Shards) -> bool {
    let own = text(&client.call(&["CLUSTER", "MYID"]));
    let role = text(&client.call(&["INFO", "replication"]));
    match shards.contains_key(&own) {
        true => role.contains("role:master"),
        false => role.contains("role:slave"),
    }
}

/// Every master has its share of the replicas, at every node and by every command.
fn is_even(clients: &mut [Client]) -> Result<(), String> {
    let first = of_nodes(&mut clients[0]);
    let counts = || first.values().map(BTreeSet::len);
    let (fewest, most) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
    // Where leaders are is the balancer's business.
    if first.len() < 2 || counts().sum::<usize>() + first.len() != 6 || fewest == 0 || most - fewest > 1 {
        return Err(format!("{first:?}"));
    }
    for (node, client) in clients.iter_mut().enumerate() {
        let told = [of_nodes(client), of_slots(client), of_shards(client), of_replicas(client)];
        if told.iter().any(|told| *told != first) || !is_as_shown(client, &first) {
            return Err(format!("node {node}: {told:?}"));
        }
    }
    Ok(())
}

fn wait_until_even(whose: &str, mut clients: impl FnMut() -> Vec<Client>) {
    let begun = Instant::now();
    while let Err(why) = is_even(&mut clients()) {
        assert!(begun.elapsed() < PATIENCE, "{whose}: {why}");
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn replicas_are_spread_over_masters_as_in_a_cluster_of_redis() {
    let mut cluster = Cluster::start_with_groups(3, 3);
    (0..3).for_each(|_| cluster.join());
    (3..6).for_each(|node| cluster.wait_for_answer(node));
    for node in 0..6 {
        assert_eq!(cluster.client(node).show("CONFIG SET cluster-redirect yes"), "OK");
    }
    wait_until_even("ours", || (0..6).map(|node| cluster.client(node)).collect());

    // A replica answers for the groups of its master alone, and reads there see what the master has.
    let shards = of_nodes(&mut cluster.client(0));
    let ids: Vec<String> = (0..6).map(|node| text(&cluster.client(node).call(&["CLUSTER", "MYID"]))).collect();
    let node_of = |id: &String| ids.iter().position(|other| other == id).expect("one of six");
    for key in 0..60 {
        let answers = (0..6).filter(|node| cluster.client(*node).show(&format!("SET key:{key} x")) == "OK").count();
        assert_eq!(answers, 1, "key:{key}");
    }
    for (master, replicas) in &shards {
        let replica = replicas.iter().map(node_of).next().expect("each has one");
        let (mut there, mut here) = (cluster.client(node_of(master)), cluster.client(replica));
        assert_eq!(there.show("DBSIZE"), here.show("DBSIZE"));
        assert_eq!(here.show("READONLY"), "OK");
        for key in 0..60 {
            if there.show(&format!("GET key:{key}")) == "\"x\"" {
                assert_eq!(here.show(&format!("GET key:{key}")), "\"x\"", "key:{key}");
            }
        }
    }
}

#[test]
fn a_cluster_of_redis_shows_the_same() {
    if missing("redis-cli") {
        return;
    }
    let folder = Folder::new();
    let mut nodes = Vec::new();
    for node in 0..6 {
        let bus = free_port().to_string();
        let words = ["--cluster-enabled", "yes", "--cluster-port", &bus];
        match Stock::start(&folder.path().join(format!("redis{node}")), &words) {
            Some(stock) => nodes.push(stock),
            None => return,
        }
    }
    let addresses: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let mut create = Command::new("redis-cli");
    create.args(["--cluster", "create"]).args(&addresses).args(["--cluster-replicas", "1", "--cluster-yes"]);
    let made = output(&mut create);
    assert!(made.contains("All 16384 slots covered"), "{made}");
    wait_until_even("Redis", || nodes.iter().map(Stock::client).collect());
}
