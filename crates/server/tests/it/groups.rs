//! A server that began with few cores starts with more: groups come into being, and take their share of the keys, while
//! clients go on and the process is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use resp::Frame;
use serde_json::Value;

use crate::harness::{Client, Folder, Server, ServerOptions, binary, both, free_port};

/// Longer than all of it takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Keys that nobody changes.
const FIXED: usize = 600;

/// Keys that are counted up.
const COUNTERS: usize = 60;

/// Slots of each of four groups.
const SHARE: usize = 16_384 / 4;

fn status(port: u16) -> Value {
    let output = Command::new(binary())
        .args(["cluster", "status", "--json", "--port", &port.to_string()])
        .output()
        .expect("the tool runs");
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

fn slot_count(group: &Value) -> usize {
    let runs = group["slots"].as_str().unwrap_or_default().split(',').filter(|run| !run.is_empty());
    let count = |run: &str| {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        last.parse::<usize>().expect("a slot") - first.parse::<usize>().expect("a slot") + 1
    };
    runs.map(count).sum()
}

fn groups_of(port: u16) -> Vec<Value> {
    status(port)["groups"].as_array().cloned().unwrap_or_default()
}

fn wait_for(what: &str, server: &Server, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}\n{}", server.log());
        thread::sleep(Duration::from_millis(50));
    }
}

/// All fixed keys, by one walk with SCAN; `None` if the server went away meanwhile.
fn walk(client: &mut Client) -> Option<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut cursor = "0".to_owned();
    loop {
        let Frame::Array(reply) = client.try_call(&["SCAN", &cursor, "MATCH", "fixed:*", "COUNT", "50"])? else {
            return None;
        };
        let [Frame::Bulk(next), Frame::Array(keys)] = &reply[..] else { return None };
        cursor = String::from_utf8_lossy(next).into_owned();
        found.extend(keys.iter().map(ToString::to_string));
        if cursor == "0" {
            return Some(found);
        }
    }
}

/// What one client has done: by counter, how often it was told that it had counted, and how often it had asked.
type Counted = Arc<Mutex<BTreeMap<usize, (i64, i64)>>>;

/// Counts and walks until it is told to end; whenever the server is gone it waits for the next.
fn use_it(port: u16, ends: &AtomicBool, counted: &Counted) -> usize {
    let (mut walks, mut turn) = (0, 0);
    while !ends.load(Ordering::Relaxed) {
        let Some(mut client) = Client::try_connect(port) else {
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        while !ends.load(Ordering::Relaxed) {
            let counter = turn % COUNTERS;
            turn += 1;
            counted.lock().expect("nobody panics").entry(counter).or_default().1 += 1;
            let reply = client.try_call(&["INCR", &format!("counter:{counter}")]);
            match reply {
                Some(Frame::Integer(_)) => counted.lock().expect("nobody panics").entry(counter).or_default().0 += 1,
                // It loads, or nobody leads the group yet.
                Some(Frame::Error(_)) => thread::sleep(Duration::from_millis(20)),
                _ => break,
            }
            if turn.is_multiple_of(20)
                && let Some(found) = walk(&mut client)
            {
                assert_eq!(found.len(), FIXED, "a walk missed keys that were there all the time");
                walks += 1;
            }
        }
    }
    walks
}

#[test]
fn a_server_that_starts_with_more_cores_gets_more_groups_and_loses_nothing() {
    let folder = Folder::new();
    let port = free_port().to_string();
    let options = ServerOptions::new(&folder.path().join("data")).extra(&["--cluster-port", &port]);
    let server = Server::start(&options.clone().extra(&["--cores", "2"]));
    let mut client = server.client();
    for place in 0..FIXED {
        client.call(&["SET".to_owned(), format!("fixed:{place}"), place.to_string()]);
    }
    assert_eq!(groups_of(server.port()).len(), 2);
    server.kill();

    let options = options.extra(&["--cores", "4"]);
    let server = Server::start(&options);
    let (ends, counted) = (Arc::new(AtomicBool::new(false)), Counted::default());
    let client_port = server.port();
    let users: Vec<_> = (0..2)
        .map(|_| {
            let (ends, counted) = (Arc::clone(&ends), Arc::clone(&counted));
            thread::spawn(move || use_it(client_port, &ends, &counted))
        })
        .collect();
    // Killed when the groups are there, and again while slots move to them.
    wait_for("there are four groups", &server, || groups_of(client_port).len() == 4);
    server.kill();
    let server = Server::start(&options);
    wait_for("a new group has slots", &server, || groups_of(client_port).get(2).is_some_and(|new| slot_count(new) > 0));
    server.kill();
    let server = Server::start(&options);
    wait_for("each group has its share", &server, || {
        let groups = groups_of(client_port);
        groups.len() == 4 && groups.iter().all(|group| slot_count(group).abs_diff(SHARE) <= 4)
    });
    ends.store(true, Ordering::Relaxed);
    let walks: usize = users.into_iter().map(|user| user.join().expect("it saw nothing wrong")).sum();
    assert!(walks > 0, "nobody ever walked");

    let mut client = server.client();
    for place in 0..FIXED {
        let reply = client.call(&["GET".to_owned(), format!("fixed:{place}")]);
        assert_eq!(reply.to_string(), format!("\"{place}\""));
    }
    let counted = counted.lock().expect("nobody panics");
    for (counter, (told, asked)) in counted.iter() {
        let Frame::Bulk(count) = client.call(&["GET".to_owned(), format!("counter:{counter}")]) else {
            panic!("counter {counter} is gone");
        };
        let count: i64 = String::from_utf8_lossy(&count).parse().expect("a number");
        assert!((*told..=*asked).contains(&count), "counter {counter} is {count}: told {told} times, asked {asked}");
    }
    assert_eq!(client.show("DBSIZE"), format!("(integer) {}", FIXED + counted.len()));
    assert!(server.stop().status.success());
}

#[test]
fn an_operator_asks_for_groups_and_gets_them() {
    let folder = Folder::new();
    let port = free_port().to_string();
    let options = ServerOptions::new(&folder.path().join("data"));
    let server = Server::start(&options.extra(&["--cores", "1", "--cluster-port", &port]));
    let mut client = server.client();
    for place in 0..100 {
        client.call(&["SET".to_owned(), format!("key:{place}"), place.to_string()]);
    }
    let ask = |count: &str| {
        let port = server.port().to_string();
        let words = ["cluster", "groups", count, "--port", &port];
        let output = Command::new(binary()).args(words).output().expect("the tool runs");
        (output.status.success(), both(&output))
    };
    let (is_done, told) = ask("3");
    assert!(is_done, "{told}");
    assert!(told.contains("there are 3 groups"), "{told}");
    let groups = groups_of(server.port());
    assert!(groups.iter().all(|group| slot_count(group) >= 16_384 / 3 - 3), "{groups:?}");
    assert_eq!(client.show("DBSIZE"), "(integer) 100");
    assert!(ask("3").0, "there are as many");
    for (count, why) in [("2", "HOLDFAST MERGE lets one go"), ("1025", "there can be 1 to 1024 groups")] {
        let (is_done, told) = ask(count);
        assert!(!is_done && told.contains(why), "{told}");
    }
    // What was one group's is a matter of three now.
    assert_eq!(client.show("FLUSHALL"), "OK");
    assert_eq!(client.show("DBSIZE"), "(integer) 0");
}
