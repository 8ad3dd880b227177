//! More nodes than hold a group: each has its share, and clients go on while it is moved.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::Cluster;
use crate::harness::Client;

/// Groups of the cluster: the first lives everywhere, the others on three nodes each.
const GROUPS: usize = 8;

const KEYS: usize = 400;

/// Longer than all moves take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

pub(crate) fn status(cluster: &Cluster, node: usize) -> Value {
    let (is_well, json) = cluster.tool(node, &["status", "--json"]);
    if is_well { serde_json::from_str(&json).expect("JSON") } else { Value::Null }
}

pub(crate) fn nodes_of<'v>(group: &'v Value, role: &str) -> Vec<&'v str> {
    let nodes = group[role].as_array().map(Vec::as_slice).unwrap_or_default();
    nodes.iter().filter_map(Value::as_str).collect()
}

/// How many of the groups that are placed each node holds, if all are where they should be.
fn shares(status: &Value, count: usize) -> Option<BTreeMap<String, usize>> {
    let mut shares = BTreeMap::new();
    let groups = status["groups"].as_array()?;
    for group in groups.iter().filter(|group| group["group"] != 0) {
        let (voters, placed) = (nodes_of(group, "voters"), nodes_of(group, "placed"));
        let is_there = if count > 3 { voters == placed } else { placed.is_empty() || voters == placed };
        if !is_there || voters.len() != 3 || !nodes_of(group, "learners").is_empty() {
            return None;
        }
        voters.iter().for_each(|node| *shares.entry((*node).to_owned()).or_default() += 1);
    }
    (shares.len() == count).then_some(shares)
}

/// Waits until so many nodes hold as many groups as any other.
fn wait_until_even(cluster: &Cluster, asked: usize, count: usize) {
    let begun = Instant::now();
    loop {
        let status = status(cluster, asked);
        if let Some(shares) = shares(&status, count) {
            let (least, most) = (shares.values().min().unwrap(), shares.values().max().unwrap());
            if most - least <= 1 {
                return;
            }
        }
        assert!(begun.elapsed() < PATIENCE, "shares are not even: {:#}", status["groups"]);
        thread::sleep(Duration::from_millis(200));
    }
}

/// Keys that this node itself has in memory.
fn keys_here(client: &mut Client) -> usize {
    let text = client.show("INFO keyspace");
    let Some((_, rest)) = text.split_once("db0:keys=") else { return 0 };
    rest.split(',').next().unwrap().parse().expect("a number")
}

/// Somebody writes and reads without a pause, through these nodes.
pub(crate) struct Load {
    is_over: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<Result<(), String>>>,
}

impl Load {
    pub(crate) fn begin(cluster: &Cluster, nodes: &[usize]) -> Self {
        let (is_over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let start = |node: &usize| {
            let mut client = cluster.client(*node);
            let (is_over, count, node) = (Arc::clone(&is_over), Arc::clone(&count), *node);
            thread::spawn(move || {
                for number in 0u64.. {
                    let key = format!("load:{node}:{}", number % 50);
                    let requests = [
                        (format!("SET {key} {number}"), "OK".to_owned()),
                        (format!("GET {key}"), format!("\"{number}\"")),
                        (format!("INCR {key}"), format!("(integer) {}", number + 1)),
                    ];
                    for (request, expected) in requests {
                        let answer = client.show(&request);
                        if answer != expected {
                            return Err(format!("{request} was answered {answer}"));
                        }
                    }
                    count.fetch_add(3, Ordering::Relaxed);
                    if is_over.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    thread::sleep(Duration::from_millis(2));
                }
                Ok(())
            })
        };
        let threads = nodes.iter().map(start).collect();
        Self { is_over, count, threads }
    }

    pub(crate) fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            assert_eq!(thread.join().expect("it does not panic"), Ok(()));
        }
        assert!(self.count.load(Ordering::Relaxed) > 0);
    }
}

#[test]
fn five_nodes_hold_three_fifths_each_and_three_hold_all_again() {
    let mut cluster = Cluster::start_with_groups(3, GROUPS);
    let mut client = cluster.client(0);
    for key in 0..KEYS {
        assert_eq!(cluster.ask(&mut client, &format!("SET key:{key} {key}")), "OK");
    }
    let load = Load::begin(&cluster, &[2]);
    for count in 4..=5 {
        cluster.join();
        wait_until_even(&cluster, 0, count);
        cluster.wait_for_answer(count - 1);
    }
    load.end();
    // What checkpoints have carried is told as well: this node has given some to the newcomers.
    let told = client.show("INFO ALL");
    let figure = |part: &str, name: &str| -> u64 {
        let (_, rest) = part.split_once(name).expect("a figure");
        rest.split(|of: char| !of.is_ascii_digit()).next().expect("it ends").parse().expect("a number")
    };
    let by_links: u64 = told.split("cluster_link_node").skip(1).map(|link| figure(link, "sent_bytes=")).sum();
    assert_eq!(by_links, figure(&told, "total_net_repl_output_bytes:"));
    // Each holds the first group, and its share of the others.
    let shares = shares(&status(&cluster, 0), 5).expect("they are even");
    assert!(shares.values().all(|share| (4..=5).contains(share)), "{shares:?}");
    let whole: usize = {
        let answer = client.show("DBSIZE");
        answer.trim_start_matches("(integer) ").parse().expect("a number")
    };
    assert_eq!(whole, KEYS + 50, "counted through a node that holds but a part");
    for node in 0..5 {
        assert_eq!(cluster.client(node).show("SAVE"), "OK", "node {node} has nothing of some groups to save");
    }
    for node in 0..5 {
        let mut client = cluster.client(node);
        assert_eq!(client.show("DBSIZE"), format!("(integer) {whole}"));
        // Five of seven groups at most, and the first one; slots are not equally full.
        let mut here = keys_here(&mut client);
        let begun = Instant::now();
        while here > whole * 9 / 10 && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(200));
            here = keys_here(&mut client);
        }
        assert!((whole * 4 / 10..=whole * 9 / 10).contains(&here), "node {node} has {here} of {whole} keys");
        for key in (0..KEYS).step_by(7) {
            assert_eq!(client.show(&format!("GET key:{key}")), format!("\"{key}\""), "through node {node}");
        }
        // Transactions and scripts over groups that live elsewhere.
        let sum = "EVAL return(redis.call('GET',KEYS[1])+redis.call('GET',KEYS[2])) 2 key:1 key:2";
        assert_eq!(client.show(sum), "(integer) 3");
    }
    let plan = (true, "no group has to move\n".to_owned());
    cluster.wait_until("nothing is left to do", |this| this.tool(1, &["plan"]) == plan);
    let (is_well, page) = cluster.tool(4, &["status"]);
    assert!(is_well && page.contains("held by"), "{page}");

    // A node that has given up groups, and is killed, does not take part in them when it returns.
    cluster.kill(1);
    cluster.restart(1);
    let load = Load::begin(&cluster, &[4]);
    for node in [0, 3] {
        let address = cluster.address(node);
        let begun = Instant::now();
        loop {
            let (is_done, told) = cluster.tool(4, &["remove", &address]);
            if is_done {
                assert!(told.contains("is out"), "{told}");
                break;
            }
            // The one that has just been started counts when its leaders have heard it.
            assert!(told.contains("would lose its quorum") && begun.elapsed() < PATIENCE, "{told}");
            thread::sleep(Duration::from_millis(200));
        }
    }
    wait_until_even(&cluster, 4, 3);
    load.end();
    for node in [1, 2, 4] {
        let mut client = cluster.client(node);
        for key in 0..KEYS {
            let found = cluster.ask(&mut client, &format!("GET key:{key}"));
            assert_eq!(found, format!("\"{key}\""), "through node {node}");
        }
    }
    let (_, timeline) = cluster.tool(4, &["timeline", "--count", "1000"]);
    assert!(timeline.contains("is assigned to nodes") && timeline.contains("which leaves"), "{timeline}");
}
