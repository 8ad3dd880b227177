//! Groups go again while clients go on, and while a node is away.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use resp::Frame;
use stdx::Prng;

use crate::cluster::Cluster;
use crate::harness::{
    Client, Folder, Server, ServerOptions, Writers, binary, both, free_port, succeed, text, wait_for,
};
use crate::scale::{Load, PATIENCE, status};
use crate::split::{Counted, count_up, verify_counted};

const KEYS: usize = 400;

/// The groups that a node tells of.
fn groups(cluster: &Cluster, node: usize) -> Vec<u64> {
    let status = status(cluster, node);
    let groups = status["groups"].as_array().cloned().unwrap_or_default();
    groups.iter().filter_map(|group| group["group"].as_u64()).collect()
}

/// Checkpoints of a group in the directory of a node.
fn checkpoints(cluster: &Cluster, node: usize, group: u32) -> usize {
    let files = fs::read_dir(cluster.data_folder(node)).expect("there is a directory");
    let names = files.filter_map(|file| file.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&format!("checkpoint-{group:05}"))).count()
}

fn wait_for_burial(cluster: &Cluster, nodes: &[usize], group: u32) {
    let begun = Instant::now();
    let is_left = |node: &usize| {
        let told = cluster.node(*node).log();
        checkpoints(cluster, *node, group) > 0 || !told.contains("has given up its replica: the group has been merged")
    };
    while nodes.iter().any(is_left) {
        assert!(begun.elapsed() < PATIENCE, "something of group {group} is left");
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_group_goes_while_clients_write_and_one_that_was_away_gives_it_up() {
    let mut cluster = Cluster::start_with_groups(3, 3);
    let mut client = cluster.client(0);
    for place in 0..KEYS {
        assert_eq!(client.show(&format!("SET fixed:{place} {place}")), "OK");
    }
    for node in 0..3 {
        assert_eq!(cluster.client(node).show("SAVE"), "OK");
    }
    let load = Load::begin(&cluster, &[0, 1]);
    cluster.kill(2);
    let (is_done, told) = cluster.tool(0, &["merge", "2", "1"]);
    assert!(is_done && told.contains("group 2 has been merged into group 1"), "{told}");
    assert_eq!((groups(&cluster, 0), groups(&cluster, 1)), (vec![0, 1], vec![0, 1]));
    wait_for_burial(&cluster, &[0, 1], 2);
    assert_eq!(client.show("SAVE"), "OK", "of the groups that there are");
    assert!(client.show("INFO cluster").contains("cluster_groups:2\\r"), "{}", client.show("INFO cluster"));
    let (is_done, told) = cluster.tool(1, &["status"]);
    assert!(is_done && !told.lines().any(|line| line.starts_with("2 ")), "{told}");
    let (is_done, told) = cluster.tool(1, &["plan"]);
    assert!(is_done && !told.contains("group 2"), "{told}");
    for place in 0..KEYS {
        assert_eq!(client.show(&format!("GET fixed:{place}")), format!("\"{place}\""));
    }
    load.end();
    let count = |node: usize| cluster.client(node).show("DBSIZE");
    let keys = count(0);
    assert_eq!(keys, format!("(integer) {}", KEYS + 100));
    // It has the log and the checkpoint of the group that has gone.
    assert!(checkpoints(&cluster, 2, 2) > 0);
    let folder = Folder::new();
    let old = folder.path().join("old");
    let copy = Command::new("cp").args(["-r", "--sparse=always"]).arg(cluster.data_folder(2)).arg(&old).status();
    assert!(copy.expect("cp runs").success());
    cluster.restart(2);
    wait_for_burial(&cluster, &[2], 2);
    cluster.wait_until("the node that was away counts all keys", |cluster| cluster.client(2).show("DBSIZE") == keys);
    assert_eq!(groups(&cluster, 2), [0, 1]);
    // Everything that is about all groups goes on without it, also after a restart of all.
    for node in 0..3 {
        cluster.kill(node);
    }
    for node in 0..3 {
        cluster.respawn(node);
    }
    (0..3).for_each(|node| cluster.wait_for_answer(node));
    cluster.wait_until("all keys are counted again", |cluster| {
        cluster.try_client(1).is_some_and(|mut client| cluster.ask(&mut client, "DBSIZE") == keys)
    });
    let mut client = cluster.client(1);
    assert_eq!(cluster.ask(&mut client, "SET {a}x 1"), "OK");
    assert_eq!(cluster.ask(&mut client, "FLUSHALL"), "OK");
    assert_eq!(cluster.ask(&mut client, "DBSIZE"), "(integer) 0");
    for (words, why) in [
        (["merge", "2", "1"], "group 2 has been merged"),
        (["merge", "1", "2"], "group 2 has been merged"),
        (["merge", "7", "1"], "no group of this cluster is '7'"),
        (["merge", "0", "1"], "it cannot be merged"),
        (["merge", "1", "1"], "cannot merge into itself"),
    ] {
        let (is_done, told) = cluster.tool(0, &words);
        assert!(!is_done && told.contains(why), "{told}");
    }
    // The next group has a number of its own.
    let (is_done, told) = cluster.tool(0, &["groups", "3"]);
    assert!(is_done, "{told}");
    assert_eq!(groups(&cluster, 0), [0, 1, 3]);
    let slots = cluster.client(0).show("CLUSTER SLOTS");
    assert!(slots.contains("16383"), "{slots}");
    for place in 0..KEYS {
        assert_eq!(cluster.ask(&mut client, &format!("SET fixed:{place} {place}")), "OK");
    }
    // A backup has all, and so has what is recovered from one survivor.
    let (backup, restored) = (folder.path().join("backup"), folder.path().join("restored"));
    succeed(&["backup", "create", "--quiet", "--server", &cluster.address(1), text(&backup)]);
    succeed(&["restore", "--quiet", text(&backup), "--data-dir", text(&restored)]);
    let server = Server::start(&ServerOptions::new(&restored).extra(&["--cores", "2"]));
    assert_eq!(server.client().show("DBSIZE"), format!("(integer) {KEYS}"));
    server.kill();
    (0..3).for_each(|node| cluster.kill(node));
    // What has the log of a merged group is not further for that.
    let survivor = cluster.data_folder(0);
    let told = succeed(&["recover", "--compare", text(&old), text(&survivor)]);
    let expected = format!("{} has most of every group: recover this one.", survivor.display());
    assert!(told.contains(&expected) && told.contains("merged"), "{told}");
    succeed(&["recover", "--data-dir", text(&survivor), "--accept-loss"]);
    cluster.options_mut(0).environment.clear();
    cluster.restart(0);
    let mut client = cluster.client(0);
    assert_eq!(cluster.ask(&mut client, "DBSIZE"), format!("(integer) {KEYS}"));
    for place in 0..KEYS {
        assert_eq!(cluster.ask(&mut client, &format!("GET fixed:{place}")), format!("\"{place}\""));
    }
    assert_eq!(groups(&cluster, 0), [0, 1, 3]);
}

/// Keys with a few kilobytes each, so that moves take a while.
fn fill(cluster: &Cluster, keys: usize) {
    let mut client = cluster.client(0);
    let value = "v".repeat(4_000);
    for place in 0..keys {
        assert_eq!(client.show(&format!("SET large:{place} {value}{place}")), "OK");
    }
}

/// Counts two keys of different slots up in one transaction, and a third one that is watched.
fn change_together(client: &mut Client, prng: &mut Prng, _: u64) -> Option<()> {
    let place = prng.below(20);
    client.try_call(&["MULTI"])?;
    client.try_call(&["INCR", &format!("left:{place}")])?;
    client.try_call(&["INCR", &format!("right:{place}")])?;
    client.try_call(&["EXEC"])?;
    let both = client.try_call(&["MGET", &format!("left:{place}"), &format!("right:{place}")])?;
    if let Frame::Array(both) = &both {
        assert_eq!(both[0], both[1], "half of a transaction was seen");
    }
    Some(())
}

/// What a client sees who has begun before a group goes, and goes on behind it.
struct Onlooker {
    tracking: Client,
    watching: Client,
    blocked: Client,
    subscribed: Client,
}

impl Onlooker {
    const KEYS: usize = 20;

    fn begin(cluster: &Cluster) -> Self {
        let [mut tracking, mut watching, mut blocked, mut subscribed] = [(); 4].map(|()| cluster.client(0));
        for key in 0..Self::KEYS {
            assert_eq!(cluster.ask(&mut tracking, &format!("SET seen:{key} old")), "OK");
        }
        assert!(!tracking.call(&["HELLO", "3"]).is_error());
        assert_eq!(tracking.show("CLIENT TRACKING ON"), "OK");
        for key in 0..Self::KEYS {
            assert_eq!(tracking.show(&format!("GET seen:{key}")), "\"old\"");
            assert_eq!(watching.show(&format!("WATCH seen:{key}")), "OK");
        }
        let words: Vec<String> = (0..Self::KEYS).map(|key| format!("queue:{key}")).collect();
        let words = [vec!["BLPOP".to_owned()], words, vec!["0".to_owned()]].concat();
        blocked.send(&words).expect("a connection");
        assert!(subscribed.show("SUBSCRIBE news").contains("news"));
        Self { tracking, watching, blocked, subscribed }
    }

    /// All that it waits for comes.
    fn end(mut self, cluster: &Cluster) {
        let mut client = cluster.client(1);
        for key in 0..Self::KEYS {
            assert_eq!(cluster.ask(&mut client, &format!("SET seen:{key} new")), "OK");
        }
        let mut dropped = BTreeSet::new();
        for key in 0..Self::KEYS {
            self.tracking.send(&["GET", &format!("seen:{key}")]).expect("a connection");
            loop {
                match self.tracking.receive().expect("an answer") {
                    Frame::Push(words) => dropped.insert(Frame::Array(words).to_string()),
                    answer => {
                        assert_eq!(answer, Frame::Bulk(b"new".to_vec()));
                        break;
                    }
                };
            }
        }
        let is_dropped =
            |key: usize| dropped.iter().any(|told| told.contains(&format!("\"seen:{key}\"")) || told.contains("(nil)"));
        assert!((0..Self::KEYS).all(is_dropped), "not all keys were told to have changed: {dropped:?}");
        assert_eq!(self.watching.show("MULTI"), "OK");
        assert_eq!(self.watching.show("SET seen:0 overwritten"), "QUEUED");
        assert_eq!(self.watching.show("EXEC"), "(nil)", "a watched key has changed");
        assert_eq!(cluster.ask(&mut client, "RPUSH queue:7 first"), "(integer) 1");
        let popped = self.blocked.receive().expect("an answer").to_string();
        assert!(popped.contains("queue:7") && popped.contains("first"), "{popped}");
        assert!(client.show("PUBLISH news now").starts_with("(integer)"));
        assert!(self.subscribed.receive().expect("a message").to_string().contains("now"));
    }
}

#[test]
fn everybody_goes_on_while_a_group_goes_and_nodes_are_killed() {
    let mut cluster = Cluster::start_with_groups(3, 3);
    fill(&cluster, 1_500);
    let ports: Vec<u16> = (0..3).map(|node| cluster.options_of(node).port).collect();
    let (ends, counted) = (Arc::new(AtomicBool::new(false)), Counted::default());
    let users: Vec<_> = (0..3)
        .map(|node| {
            let (ends, counted, port) = (Arc::clone(&ends), Arc::clone(&counted), ports[node]);
            thread::spawn(move || count_up(port, &ends, &counted))
        })
        .collect();
    let writers = Writers::start(&ports, 2, Duration::from_millis(2), change_together);
    let onlooker = Onlooker::begin(&cluster);
    let (is_done, told) = cluster.tool(0, &["merge", "2", "0", "--no-wait"]);
    assert!(is_done && told.contains("group 2 is being merged into group 0: its slots move"), "{told}");
    let (is_well, page) = cluster.tool(1, &["status"]);
    assert!(is_well, "{page}");
    // Twice is as good as once; elsewhere it cannot go meanwhile, nor get anything.
    let (is_done, told) = cluster.tool(1, &["merge", "2", "0", "--no-wait"]);
    assert!(is_done || told.contains("group 2 has been merged"), "{told}");
    for (words, why) in [
        (["merge", "2", "1"], "group 2 merges into group 0 already"),
        (["merge", "1", "2"], "group 2 is being merged itself"),
        (["place", "2", "1"], "no group of this cluster is '2'"),
    ] {
        let (is_done, told) = cluster.tool(1, &words);
        assert!(!is_done && (told.contains(why) || told.contains("group 2 has been merged")), "{told}");
    }
    // The one who leads it, and the one who leads what takes part in everything.
    let of_groups = |cluster: &Cluster, group: usize| cluster.of_groups(0, "leader").get(group).cloned();
    for group in [2, 0] {
        let leader = of_groups(&cluster, group).and_then(|leader| place_of(&cluster, &leader));
        let killed = leader.filter(|node| *node != 0).unwrap_or(1);
        cluster.kill(killed);
        thread::sleep(Duration::from_millis(300));
        cluster.restart(killed);
    }
    // Someone who lost patience asks again, and waits.
    let waiting = Command::new(binary())
        .args(["cluster", "merge", "2", "0", "--port", &ports[0].to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the tool runs");
    let told = waiting.wait_with_output().expect("it ends");
    let text = both(&told);
    assert!(text.contains("group 2 has been merged"), "{text}");
    assert_eq!(groups(&cluster, 0), [0, 1]);
    onlooker.end(&cluster);
    wait_for_burial(&cluster, &[0, 1, 2], 2);
    ends.store(true, Ordering::Relaxed);
    users.into_iter().for_each(|user| user.join().expect("it saw nothing wrong"));
    assert!(writers.stop() > 0);
    let mut client = cluster.client(1);
    verify_counted(&mut client, &counted);
    for place in 0..20 {
        let [left, right] = ["left", "right"].map(|side| cluster.ask(&mut client, &format!("GET {side}:{place}")));
        assert_eq!(left, right);
    }
    for place in 0..1_500 {
        let length = 4_000 + place.to_string().len();
        assert_eq!(cluster.ask(&mut client, &format!("STRLEN large:{place}")), format!("(integer) {length}"));
    }
    verify_scan(&cluster);
    // Every node starts without it, one after the other.
    for node in 0..3 {
        cluster.kill(node);
        cluster.restart(node);
        cluster.node(node).wait_for_log("ready to accept commands");
        wait_for("the node tells of two groups", || groups(&cluster, node) == [0, 1]);
    }
    verify_counted(&mut cluster.client(2), &counted);
    // What comes next has a number of its own.
    let (is_done, told) = cluster.tool(2, &["split", "1"]);
    assert!(is_done && told.contains("group 3 has split off from group 1"), "{told}");
    let (is_done, told) = cluster.tool(1, &["merge", "3", "1"]);
    assert!(is_done && told.contains("group 3 has been merged"), "{told}");
    let (is_done, told) = cluster.tool(0, &["split", "0"]);
    assert!(is_done && told.contains("group 4 has split off from group 0"), "{told}");
    assert_eq!(groups(&cluster, 1), [0, 1, 4]);
    verify_counted(&mut cluster.client(0), &counted);
    verify_scan(&cluster);
    // A start knows that a group has gone which was not there when the cluster began.
    for node in 0..3 {
        cluster.kill(node);
        cluster.restart(node);
        wait_for("the node counts all keys", || {
            cluster.try_client(node).is_some_and(|mut client| client.show("DBSIZE").starts_with("(integer)"))
        });
    }
    verify_scan(&cluster);
}

/// The place of a node with this number.
fn place_of(cluster: &Cluster, number: &str) -> Option<usize> {
    (0..3).find(|node| {
        let identity = fs::read_to_string(cluster.data_folder(*node).join("identity")).unwrap_or_default();
        identity.lines().any(|line| line.strip_prefix("node ") == Some(number))
    })
}

/// Every node counts as many keys as a walk finds, each once.
fn verify_scan(cluster: &Cluster) {
    for node in 0..3 {
        let mut client = cluster.client(node);
        let (mut cursor, mut found) = ("0".to_owned(), BTreeSet::new());
        loop {
            let Frame::Array(page) = client.call(&["SCAN", &cursor, "COUNT", "1000"]) else { panic!("no page") };
            let Frame::Array(keys) = &page[1] else { panic!("no keys") };
            found.extend(keys.iter().map(|key| key.as_bytes().expect("a key").to_vec()));
            cursor = String::from_utf8_lossy(page[0].as_bytes().expect("a cursor")).into_owned();
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(cluster.ask(&mut client, "DBSIZE"), format!("(integer) {}", found.len()));
    }
}

/// All chunks of a group's part of a backup, or why there are none.
fn read_part(client: &mut Client, name: &str, group: &str) -> Result<Vec<Vec<u8>>, String> {
    let mut chunks: Vec<Vec<u8>> = Vec::new();
    loop {
        match client.call(&["BACKUP", "READ", name, group, &chunks.len().to_string()]) {
            Frame::Integer(_) => thread::sleep(Duration::from_millis(20)),
            Frame::Bulk(chunk) => chunks.push(chunk),
            Frame::Null => return Ok(chunks),
            other => return Err(other.to_string()),
        }
    }
}

/// Begins a backup: the places of groups.
fn begin_backup(client: &mut Client, name: &str) -> Vec<i64> {
    let begun = Instant::now();
    loop {
        let reply = client.call(&["BACKUP", "BEGIN", name]);
        if let Frame::Array(numbers) = &reply {
            let places = numbers[3..].iter().map(|number| match number {
                Frame::Integer(place) => *place,
                other => panic!("{other} is no place"),
            });
            return places.collect();
        }
        assert!(reply.to_string().contains("TRYAGAIN") && begun.elapsed() < PATIENCE, "{reply}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// A backup that was begun before a group goes has its part: the group ends when that has been read. One that is begun
/// later has none.
#[test]
fn a_backup_is_whole_whether_a_group_goes_meanwhile_or_has_gone() {
    let folder = Folder::new();
    let cluster_port = free_port().to_string();
    let options = ServerOptions::new(&folder.path().join("data")).extra(&["--cores", "3", "--cluster-port"]);
    let server = Server::start(&options.extra(&[&cluster_port]));
    let port = server.port().to_string();
    let mut client = server.client();
    let value = "v".repeat(3_000);
    for place in 0..300 {
        assert_eq!(client.show(&format!("SET key:{place} {value}{place}")), "OK");
    }
    let [first, second] = [1, 2].map(|number| format!("{number:032x}"));
    assert!(begin_backup(&mut client, &first).iter().all(|place| *place > 0));
    let asked = Instant::now();
    loop {
        let reply = client.show("HOLDFAST MERGE 2 0");
        if !reply.contains("TRYAGAIN") {
            assert!(!reply.contains("ERR"), "{reply}");
            break;
        }
        assert!(asked.elapsed() < PATIENCE, "{reply}");
        thread::sleep(Duration::from_millis(50));
    }
    // All that it held has moved, and it still has its part.
    wait_for("it holds nothing any more", || succeed(&["cluster", "status", "--port", &port]).contains("about to end"));
    let sizes = ["0", "1", "2"].map(|group| {
        let part = read_part(&mut client, &first, group).unwrap_or_else(|why| panic!("group {group}: {why}"));
        part.iter().map(Vec::len).sum::<usize>()
    });
    assert!(sizes[2] > 150_000, "{sizes:?}");
    for group in ["0", "1", "2"] {
        assert_eq!(client.show(&format!("BACKUP END {first} {group}")), "OK");
    }
    let told = succeed(&["cluster", "merge", "2", "0", "--port", &port]);
    assert!(told.contains("group 2 has been merged"), "{told}");
    // What one might take for the end of a part is none.
    let why = read_part(&mut client, &first, "2").expect_err("it has gone");
    assert!(why.contains("Group 2 has been merged"), "{why}");
    let places = begin_backup(&mut client, &second);
    assert!(places[..2].iter().all(|place| *place > 0) && places[2] < 0, "{places:?}");
    for group in ["0", "1"] {
        read_part(&mut client, &second, group).unwrap_or_else(|why| panic!("group {group}: {why}"));
    }
    (0..3).for_each(|group| assert_eq!(client.show(&format!("BACKUP END {second} {group}")), "OK"));
    let (backup, restored) = (folder.path().join("backup"), folder.path().join("restored"));
    succeed(&["backup", "create", "--quiet", "--port", &port, text(&backup)]);
    succeed(&["restore", "--quiet", text(&backup), "--data-dir", text(&restored)]);
    let whole = Server::start(&ServerOptions::new(&restored).extra(&["--cores", "2"]));
    assert_eq!(whole.client().show("DBSIZE"), "(integer) 300");
    whole.stop();
    server.stop();
}
