//! Versions side by side: a cluster is rolled from one to the next and back under load, the level is raised, and from
//! then on nobody goes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use resp::Frame;

use crate::cluster::Cluster;
use crate::harness::{Client, Server};

/// Makes a server act as one that knows level 1 alone, as the version does that knew of no levels.
const OLDER: [&str; 2] = ["--level-max", "1"];

const NODES: usize = 3;

/// Stops a node in good order, and starts it as the older version or as the newer one.
fn roll(cluster: &mut Cluster, node: usize, is_newer: bool) {
    cluster.nodes[node].take().expect("it runs").stop();
    let extra = &mut cluster.options_mut(node).extra;
    extra.retain(|word| !OLDER.contains(&word.as_str()));
    if !is_newer {
        extra.extend(OLDER.map(str::to_owned));
    }
    cluster.respawn(node);
    cluster.wait_for_answer(node);
    cluster.wait_until("every group is led, and every node is heard", |this| {
        let (is_well, page) = this.tool(node, &["status"]);
        is_well && !page.contains("nobody") && !page.contains(" down ")
    });
}

/// Counts up until it is told to end, through whichever node answers. What it was told, and what it may have done.
fn count(ports: &[u16], key: &str, ends: &AtomicBool, told: &AtomicI64, asked: &AtomicI64) {
    let mut turn = 0;
    while !ends.load(Ordering::Relaxed) {
        turn += 1;
        let Some(mut client) = Client::try_connect(ports[turn % ports.len()]) else {
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        while !ends.load(Ordering::Relaxed) {
            asked.fetch_add(1, Ordering::Relaxed);
            match client.try_call(&["INCR", key]) {
                Some(Frame::Integer(_)) => told.fetch_add(1, Ordering::Relaxed),
                _ => break,
            };
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn info(cluster: &Cluster, node: usize, field: &str) -> String {
    let page = cluster.client(node).show("INFO cluster");
    let value = page.split("\\r\\n").find_map(|line| line.strip_prefix(&format!("{field}:")));
    value.unwrap_or_else(|| panic!("no {field} in {page}")).trim_end_matches('"').to_owned()
}

#[test]
fn a_cluster_is_rolled_forward_back_and_forward_and_then_nobody_goes_back() {
    let mut cluster = Cluster::start_as(&vec![OLDER.to_vec(); NODES]);
    let ports: Vec<u16> = (0..NODES).map(|node| cluster.node(node).port()).collect();
    let ends = Arc::new(AtomicBool::new(false));
    let counters: Vec<_> = (0..2)
        .map(|number| {
            let (told, asked) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
            let (ports, key, ends) = (ports.clone(), format!("counter:{number}"), Arc::clone(&ends));
            let counting = {
                let (key, told, asked) = (key.clone(), Arc::clone(&told), Arc::clone(&asked));
                thread::spawn(move || count(&ports, &key, &ends, &told, &asked))
            };
            (key, told, asked, counting)
        })
        .collect();
    assert_eq!(info(&cluster, 0, "cluster_level"), "1");
    roll(&mut cluster, 0, true);
    let (is_raised, why) = cluster.tool(0, &["upgrade", "--yes"]);
    assert!(!is_raised && why.contains("not known by"), "two nodes do not know it: {why}");
    // What older versions do not know waits for the level.
    let (is_done, why) = cluster.tool(0, &["merge", "1", "0"]);
    assert!(!is_done && why.contains("groups merge at level 2, and the cluster is at level 1"), "{why}");
    roll(&mut cluster, 0, false);
    (0..NODES).for_each(|node| roll(&mut cluster, node, true));
    assert_eq!(info(&cluster, 0, "cluster_level"), "1", "it does not rise by itself");
    let (is_fit, page) = cluster.tool(1, &["upgrade", "--check"]);
    assert!(is_fit && page.contains("it can be raised"), "{page}");
    let (is_raised, why) = cluster.tool(1, &["upgrade"]);
    assert!(!is_raised && why.contains("--yes"), "nobody was asked: {why}");
    let (is_raised, page) = cluster.tool(1, &["upgrade", "--yes"]);
    assert!(is_raised && page.contains("the cluster is at level 2"), "{page}");
    cluster.wait_until("every group of every node is at the level", |this| {
        let is_risen =
            |node| info(this, node, "cluster_level") == "2" && info(this, node, "cluster_groups_below_level") == "0";
        (0..NODES).all(is_risen)
    });
    let (is_raised, page) = cluster.tool(2, &["upgrade", "--yes"]);
    assert!(is_raised && page.contains("there is nothing to do"), "{page}");

    // No way back: the older version names the level, and changes nothing.
    cluster.nodes[2].take().expect("it runs").stop();
    let mut older = cluster.options_of(2);
    older.extra.extend(OLDER.map(str::to_owned));
    let exit = Server::try_start(&older).err().expect("it must not start");
    assert!(exit.log.contains("written at level 2") && exit.log.contains("knows level 1"), "{}", exit.log);
    cluster.respawn(2);
    cluster.wait_for_answer(2);

    ends.store(true, Ordering::Relaxed);
    for (key, told, asked, counting) in counters {
        counting.join().expect("it counts");
        let Frame::Bulk(count) = cluster.client(2).call(&["GET", &key]) else { panic!("{key} is gone") };
        let count: i64 = String::from_utf8_lossy(&count).parse().expect("a number");
        let (told, asked) = (told.load(Ordering::Relaxed), asked.load(Ordering::Relaxed));
        assert!(told > 0 && told <= count && count <= asked, "{key}: told {told}, asked {asked}, there are {count}");
    }
}

/// What a new server makes is at the highest level, and an older version cannot join it.
#[test]
fn a_new_cluster_begins_at_the_highest_level_and_an_older_version_cannot_join() {
    let mut cluster = Cluster::start(1);
    // Each group says so at its first entry.
    cluster.wait_until("it is at the highest level", |this| info(this, 0, "cluster_level") == "2");
    cluster.join();
    let mut older = cluster.options_of(1);
    cluster.wait_for_answer(1);
    assert_eq!(info(&cluster, 1, "cluster_level_highest"), "2");
    older.data_folder = older.data_folder.with_file_name("older");
    older.port = crate::harness::free_port();
    older.extra.extend(OLDER.map(str::to_owned));
    older.extra.extend(["--cluster-port".to_owned(), crate::harness::free_port().to_string()]);
    let mut server = Server::spawn(&older);
    cluster.wait_until("the older version is refused by name", |this| {
        let told = server.log();
        told.contains("version 10 of the protocol") && this.node(0).log().contains("start a version there that knows")
    });
    assert!(server.is_running(), "it asks again");
    server.kill();
}
