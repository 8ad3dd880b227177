//! Groups split while clients go on, and processes are killed around it.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use resp::Frame;

use crate::cluster::Cluster;
use crate::harness::{Client, Folder, Server, ServerOptions, binary, both, free_port};
use crate::scale::{Load, PATIENCE, nodes_of, status};

/// Fields of a hash, each with a value of so many bytes: more than a slot may have that moves.
const FIELDS: usize = 72;
const FIELD_BYTES: usize = 1 << 20;

/// Keys that are counted up.
const COUNTERS: usize = 60;

fn tool(port: u16, words: &[&str]) -> (bool, String) {
    let port = port.to_string();
    let words = [&["cluster"], words, &["--port", &port]].concat();
    let output = Command::new(binary()).args(words).output().expect("the tool runs");
    (output.status.success(), both(&output))
}

/// The slots of a group as the status tells them; none if there is no such group.
fn slots_of(port: u16, group: usize) -> Option<String> {
    let (is_well, json) = tool(port, &["status", "--json"]);
    let status: serde_json::Value = if is_well { serde_json::from_str(&json).ok()? } else { return None };
    Some(status["groups"].get(group)?["slots"].as_str()?.to_owned())
}

fn wait_for(what: &str, server: &Server, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}\n{}", server.log());
        thread::sleep(Duration::from_millis(20));
    }
}

/// By counter, how often its client was told that it had counted, and how often it had asked.
pub(crate) type Counted = Arc<Mutex<BTreeMap<usize, (i64, i64)>>>;

pub(crate) fn count_up(port: u16, ends: &AtomicBool, counted: &Counted) {
    let mut turn = 0;
    while !ends.load(Ordering::Relaxed) {
        let Some(mut client) = Client::try_connect(port) else {
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        while !ends.load(Ordering::Relaxed) {
            turn += 1;
            let counter = turn % COUNTERS;
            counted.lock().expect("nobody panics").entry(counter).or_default().1 += 1;
            match client.try_call(&["INCR", &format!("counter:{counter}")]) {
                Some(Frame::Integer(_)) => counted.lock().expect("nobody panics").entry(counter).or_default().0 += 1,
                // It loads, or nobody leads the group yet.
                Some(Frame::Error(_)) => thread::sleep(Duration::from_millis(20)),
                _ => break,
            }
        }
    }
}

/// Each counter is what its clients were told, or what they had asked for and not heard of.
#[track_caller]
pub(crate) fn verify_counted(client: &mut Client, counted: &Counted) {
    for (counter, (told, asked)) in counted.lock().expect("nobody panics").iter() {
        let Frame::Bulk(count) = client.call(&["GET".to_owned(), format!("counter:{counter}")]) else {
            panic!("counter {counter} is gone");
        };
        let count: i64 = String::from_utf8_lossy(&count).parse().expect("a number");
        assert!((*told..=*asked).contains(&count), "counter {counter} is {count}: told {told} times, asked {asked}");
    }
}

#[test]
fn a_server_splits_its_groups_and_is_killed_right_behind_each_split() {
    let folder = Folder::new();
    let port = free_port().to_string();
    let options = ServerOptions::new(&folder.path().join("data")).extra(&["--cores", "2", "--cluster-port", &port]);
    let mut server = Server::start(&options);
    let client_port = server.port();
    let mut client = server.client();
    for place in 0..500 {
        client.call(&["SET".to_owned(), format!("fixed:{place}"), place.to_string()]);
        client.call(&["HSET".to_owned(), "{fixed:7}hash".to_owned(), format!("field{place}"), place.to_string()]);
    }
    let (ends, counted) = (Arc::new(AtomicBool::new(false)), Counted::default());
    let user = {
        let (ends, counted) = (Arc::clone(&ends), Arc::clone(&counted));
        thread::spawn(move || count_up(client_port, &ends, &counted))
    };
    for (group, slots, pause_ms) in [("0", "4096-8191", 0), ("1", "8192-9000,12000-12500", 60), ("2", "4096-5000", 300)]
    {
        let (is_done, told) = tool(client_port, &["split", group, "--slots", slots, "--no-wait"]);
        assert!(is_done, "{told}");
        thread::sleep(Duration::from_millis(pause_ms));
        server.kill();
        server = Server::start(&options);
        let before: usize = group.parse().expect("a number");
        wait_for("a group has split off", &server, || {
            (2..6).any(|new| new != before && slots_of(client_port, new).as_deref() == Some(slots))
        });
        // Found again as it is now, without a split to apply.
        server.kill();
        server = Server::start(&options);
    }
    ends.store(true, Ordering::Relaxed);
    user.join().expect("it saw nothing wrong");
    let mut client = server.client();
    for place in 0..500 {
        assert_eq!(client.show(&format!("GET fixed:{place}")), format!("\"{place}\""));
        assert_eq!(client.show(&format!("HGET {{fixed:7}}hash field{place}")), format!("\"{place}\""));
    }
    verify_counted(&mut client, &counted);
    let counted = counted.lock().expect("nobody panics");
    assert_eq!(client.show("DBSIZE"), format!("(integer) {}", 501 + counted.len()));
    for (words, why) in [
        (["split", "9", "--slots", "1"], "no group of this cluster is '9'"),
        (["split", "0", "--slots", "9000"], "group 0 does not hold slot 9000"),
        (["split", "0", "--slots", "0-4095"], "would be left with no slot"),
        (["split", "0", "--slots", "7-5"], "slot 7 is behind slot 5"),
    ] {
        let (is_done, told) = tool(client_port, &words);
        assert!(!is_done && told.contains(why), "{told}");
    }
    assert!(server.stop().status.success());
}

#[test]
fn a_slot_that_is_too_large_to_move_splits_off_and_goes_to_other_nodes() {
    let mut cluster = Cluster::start(3);
    let mut client = cluster.client(0);
    let value = "v".repeat(FIELD_BYTES);
    // Slot 0 belongs to group 0, and must leave it.
    let key = "{06S}hash";
    for field in 0..FIELDS {
        assert_eq!(client.show(&format!("HSET {key} field{field} {value}")), "(integer) 1");
    }
    assert_eq!(client.show(&format!("CLUSTER KEYSLOT {key}")), "(integer) 0");
    let load = Load::begin(&cluster, &[0, 2]);
    // One who writes to the slot sees nothing of it.
    let ends = Arc::new(AtomicBool::new(false));
    let writer = {
        let (ends, mut client) = (Arc::clone(&ends), cluster.client(2));
        thread::spawn(move || {
            let mut count = 0;
            // A busy machine may be done with the split before the writer has begun.
            while !ends.load(Ordering::Relaxed) || count <= 10 {
                count += 1;
                assert_eq!(client.show("INCR {06S}count"), format!("(integer) {count}"));
            }
            count
        })
    };
    let (is_done, told) = cluster.tool(1, &["split", "0", "--slots", "0"]);
    assert!(is_done && told.contains("group 2 has split off from group 0, with 1 slots"), "{told}");
    assert_eq!(client.show(&format!("HSET {key} more 1")), "(integer) 1");
    ends.store(true, Ordering::Relaxed);
    let count = writer.join().expect("nothing went wrong");
    assert!(count > 10, "{count}");
    assert_eq!(client.show("GET {06S}count"), format!("\"{count}\""));
    load.end();
    // A node that is killed now has the beginning of the group in the log of the other one, or a checkpoint of its own.
    cluster.kill(1);
    assert_eq!(client.show(&format!("HINCRBY {key} more 1")), "(integer) 2");
    cluster.restart(1);
    cluster.wait_until("the group has all its voters again", |cluster| {
        let status = status(cluster, 0);
        status["groups"].get(2).is_some_and(|group| nodes_of(group, "voters").len() == 3)
    });
    let before = client.show(&format!("HLEN {key}"));
    assert_eq!(before, format!("(integer) {}", FIELDS + 1));
    // With its replica the slot goes to a node that did not have it.
    cluster.join();
    let begun = Instant::now();
    loop {
        let status = status(&cluster, 0);
        let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
        let ids: Vec<&str> = nodes.iter().filter_map(|node| node["id"].as_str()).collect();
        let placed = status["groups"].get(2).map(|group| nodes_of(group, "placed").len());
        if ids.len() == 4 && placed == Some(3) {
            let words = [&["place", "2"], &ids[1..]].concat();
            let (is_done, told) = cluster.tool(0, &words);
            assert!(is_done, "{told}");
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "group 2 is not placed: {status:#}");
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(client.show(&format!("HLEN {key}")), before);
    assert_eq!(client.show(&format!("HSTRLEN {key} field5")), format!("(integer) {FIELD_BYTES}"));
}

/// Keys of 10 kB, three megabytes in all: half of them in each of two groups.
const LARGE_KEYS: usize = 300;

#[test]
fn groups_that_are_too_large_split_by_themselves_while_clients_write() {
    let mut cluster = Cluster::start(3);
    let mut client = cluster.client(0);
    assert_eq!(client.show("CONFIG SET balance-split-bytes 1mb"), "OK");
    assert_eq!(cluster.ask(&mut client, "HOLDFAST BALANCE OFF"), "OK");
    let value = "v".repeat(10_000);
    for place in 0..LARGE_KEYS {
        assert_eq!(client.show(&format!("SET large:{place} {value}{place}")), "OK");
    }
    let load = Load::begin(&cluster, &[0, 2]);
    let slot_counts = |cluster: &Cluster| -> Vec<usize> {
        let status = status(cluster, 1);
        let groups = status["groups"].as_array().cloned().unwrap_or_default();
        let led = groups.iter().filter(|group| group["leader"].as_str().is_some_and(|leader| !leader.is_empty()));
        led.map(|group| count(group["slots"].as_str().unwrap_or_default())).collect()
    };
    // On a busy machine a group may be without a leader when one looks.
    let group_count = |cluster: &Cluster| status(cluster, 1)["groups"].as_array().map_or(0, Vec::len);
    thread::sleep(Duration::from_secs(3));
    assert_eq!(group_count(&cluster), 2, "the balancer is off");
    assert_eq!(cluster.ask(&mut client, "HOLDFAST BALANCE ON"), "OK");
    cluster.wait_until("both groups have split", |cluster| {
        let counts = slot_counts(cluster);
        counts.len() == 4 && counts.iter().all(|count| (2_500..5_700).contains(count))
    });
    thread::sleep(Duration::from_secs(3));
    assert_eq!(group_count(&cluster), 4, "halves are small enough");
    load.end();
    for place in 0..LARGE_KEYS {
        assert_eq!(
            client.show(&format!("STRLEN large:{place}")),
            format!("(integer) {}", 10_000 + place.to_string().len())
        );
    }
    let (is_done, told) = cluster.tool(2, &["timeline"]);
    assert!(is_done, "{told}");
    for parent in [0, 1] {
        let split = told.lines().find(|line| line.contains(&format!("will split off from group {parent}, with ")));
        let split = split.unwrap_or_else(|| panic!("group {parent} split for no reason: {told}"));
        assert!(split.contains(" KiB of keys: that one holds 1") && split.ends_with("balance-split-bytes is 1024 KiB"));
    }
    let plan = (true, "no group has to move\n".to_owned());
    cluster.wait_until("nothing is left to do", |this| this.tool(0, &["plan"]) == plan);
}

/// How many slots a status names.
fn count(runs: &str) -> usize {
    let ends = |run: &str| {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        Some(last.parse::<usize>().ok()? + 1 - first.parse::<usize>().ok()?)
    };
    runs.split(',').filter_map(ends).sum()
}
