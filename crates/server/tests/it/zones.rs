//! Six nodes in three zones: copies of a group are in all of them, one zone dies, others take its place, and it
//! returns.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::Cluster;
use crate::scale::{Load, PATIENCE, nodes_of, status};

const ZONES: [&str; 6] = ["a", "b", "c", "a", "b", "c"];

/// The zone of each node, by its number, as a node tells it.
fn zones(status: &Value) -> BTreeMap<String, String> {
    let nodes = status["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    nodes.iter().map(|node| (text(&node["id"]), text(&node["zone"]))).collect()
}

/// True if every group has three voters, in all of these zones, and the balancer wants nothing else of it.
fn is_spread(status: &Value, wanted: &[&str]) -> bool {
    let zones = zones(status);
    let groups = status["groups"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_well = |group: &Value| {
        let voters = nodes_of(group, "voters");
        let held: BTreeSet<&str> = voters.iter().filter_map(|node| zones.get(*node)).map(String::as_str).collect();
        let is_placed = group["group"] == 0 || nodes_of(group, "placed") == voters;
        voters.len() == 3 && is_placed && wanted.iter().all(|zone| held.contains(zone)) && held.len() == wanted.len()
    };
    groups.len() > 1 && groups.iter().all(is_well)
}

fn wait_until(cluster: &Cluster, asked: usize, what: &str, holds: impl Fn(&Value) -> bool) {
    let begun = Instant::now();
    loop {
        let status = status(cluster, asked);
        if holds(&status) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}: {:#}", status["groups"]);
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_zone_dies_and_is_replaced_and_returns_while_clients_write() {
    let words = ZONES.map(|zone| vec!["--zone", zone, "--replace-after", "5"]);
    let mut cluster = Cluster::start_as(&words[..3]);
    words[3..].iter().for_each(|words| cluster.join_as(2, words));
    let (is_done, told) = cluster.tool(0, &["groups", "5", "--no-wait"]);
    assert!(is_done, "{told}");
    wait_until(&cluster, 0, "all have joined", |status| zones(status).len() == ZONES.len());
    wait_until(&cluster, 0, "a copy in each zone", |status| is_spread(status, &["a", "b", "c"]));
    let load = Load::begin(&cluster, &[0, 1, 3]);
    for node in [2, 5] {
        cluster.kill(node);
    }
    wait_until(&cluster, 0, "copies on those that are left", |status| is_spread(status, &["a", "b"]));
    let (_, page) = cluster.tool(0, &["status"]);
    assert!(page.matches("others take the places of ").count() == 2, "{page}");
    let (_, told) = cluster.tool(1, &["timeline", "--count", "200"]);
    assert!(told.contains("which nobody has heard for replace-after"), "{told}");
    for node in [2, 5] {
        cluster.respawn(node);
    }
    wait_until(&cluster, 0, "the zone is back", |status| is_spread(status, &["a", "b", "c"]));
    load.end();
    // Everything is there through every node, the ones that returned among them.
    for node in [0, 2, 5] {
        let mut client = cluster.client(node);
        for key in 0..50 {
            let values = [0, 1, 3].map(|of| cluster.ask(&mut client, &format!("GET load:{of}:{key}")));
            assert!(values.iter().all(|value| value.trim_matches('"').parse::<u64>().is_ok()), "{values:?}");
        }
    }
    // Leaders go to the zone that they should be in, and a node that is carried to another zone says so.
    let mut client = cluster.client(4);
    assert_eq!(client.show("CONFIG SET leader-zones b,a"), "OK");
    wait_until(&cluster, 3, "leaders in zone b", |status| {
        let zones = zones(status);
        let groups = status["groups"].as_array().map(Vec::as_slice).unwrap_or_default();
        groups
            .iter()
            .all(|group| group["leader"].as_str().and_then(|leader| zones.get(leader)).is_some_and(|zone| zone == "b"))
    });
    assert_eq!(client.show("CONFIG GET zone"), "[\"zone\", \"b\"]");
    assert!(client.show("INFO cluster").contains("cluster_zone:b"));
    cluster.kill(5);
    let place = cluster.options_mut(5).extra.iter().position(|word| word == "c").expect("its zone");
    cluster.options_mut(5).extra[place] = "d".to_owned();
    cluster.respawn(5);
    wait_until(&cluster, 0, "it is in zone d", |status| zones(status).values().any(|zone| zone == "d"));
}
