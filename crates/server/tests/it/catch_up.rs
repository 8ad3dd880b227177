//! A node that stops for a while: the others keep what it lacks on disk, and it needs no checkpoint.

use std::time::Instant;

use crate::cluster::Cluster;
use crate::harness::{Client, say, wait_for};

/// More than the leaders of two groups keep in memory between them.
const VALUES: usize = 1_200;
const VALUE_BYTES: usize = 64 << 10;

fn figure(client: &mut Client, section: &str, name: &str) -> u64 {
    let text = client.show(&format!("INFO {section}"));
    let beginning = format!("{name}:");
    let at = text.find(&beginning).unwrap_or_else(|| panic!("no {name} in {text}")) + beginning.len();
    text[at..].chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a number")
}

#[test]
fn a_node_that_has_stopped_for_a_while_is_fed_from_the_disk() {
    let mut cluster = Cluster::start(3);
    let mut client = cluster.client(0);
    let value = "v".repeat(VALUE_BYTES);
    for key in 0..10 {
        assert_eq!(cluster.ask(&mut client, &format!("SET before:{key} {value}")), "OK");
    }
    // Nodes that join are given checkpoints.
    let given = |cluster: &Cluster| {
        let log = cluster.node(2).log();
        (log.matches("takes the checkpoint at index").count(), log)
    };
    let (given_before, _) = given(&cluster);
    cluster.nodes[2].as_ref().expect("it runs").signal("STOP");
    // What it led is led by another soon.
    for key in 0..VALUES {
        assert_eq!(cluster.ask(&mut client, &format!("SET during:{key} {value}")), "OK");
    }
    // Who leads then knows of it from others, or of nothing but the own log.
    cluster.kill(0);
    cluster.restart(0);
    // Without it the log could go now.
    for node in 0..2 {
        assert_eq!(cluster.client(node).show("SAVE"), "OK");
    }
    wait_for("log is kept for the node that has stopped", || {
        (0..2).any(|node| figure(&mut cluster.client(node), "persistence", "log_held_bytes") > 0)
    });
    let begun = Instant::now();
    cluster.nodes[2].as_ref().expect("it runs").signal("CONT");
    cluster.wait_until("it has caught up", |this| {
        let (is_well, page) = this.tool(0, &["status"]);
        is_well && page.matches("  3       none").count() == 2
    });
    say(&format!("it had caught up after {:?}", begun.elapsed()));
    let (given_after, log) = given(&cluster);
    assert_eq!(given_after, given_before, "a node that the log reaches back to was given a checkpoint:\n{log}");
    // What was kept for it goes.
    wait_for("no log is kept any more", || {
        (0..3).all(|node| figure(&mut cluster.client(node), "persistence", "log_held_bytes") == 0)
    });
    let mut client = cluster.client(2);
    for key in (0..VALUES).step_by(50) {
        assert_eq!(cluster.ask(&mut client, &format!("STRLEN during:{key}")), format!("(integer) {VALUE_BYTES}"));
    }
}
