//! What streams have since Redis 8.4: what is released, what is added once, and which clients wait to claim.

use std::time::Duration;

use crate::cluster::Cluster;
use crate::harness::{Client, Folder, Server, ServerOptions};

/// A stream of five entries, of which three have been released, and one was added once.
fn fill(mut ask: impl FnMut(&str) -> String) -> String {
    assert_eq!(ask("XGROUP CREATE s g 0 MKSTREAM"), "OK");
    (1..=4).for_each(|nth| assert_eq!(ask(&format!("XADD s {nth}-0 f v")), format!("\"{nth}-0\"")));
    assert_eq!(ask("XCFGSET s IDMP-DURATION 86400"), "OK");
    let own = ask("XADD s IDMP p once * f v");
    ask("XREADGROUP GROUP g alice STREAMS s >");
    for id in ["3-0", "1-0", "4-0"] {
        assert_eq!(ask(&format!("XNACK s g FAIL IDS 1 {id}")), "(integer) 1");
    }
    assert_eq!(ask("XNACK s g FATAL IDS 1 3-0"), "(integer) 1");
    own
}

/// What is released, in the form in which XPENDING shows it.
const RELEASED: [&str; 3] = [
    "[\"1-0\", \"\", (integer) -1, (integer) 1]",
    "[\"3-0\", \"\", (integer) -1, (integer) 9223372036854775807]",
    "[\"4-0\", \"\", (integer) -1, (integer) 1]",
];

fn check(mut ask: impl FnMut(&str) -> String, own: &str) {
    let pending = ask("XPENDING s g - + 10");
    assert!(RELEASED.iter().all(|entry| pending.contains(entry)), "{pending}");
    assert_eq!(ask("XADD s IDMP p once * f v"), own, "it was added before");
    assert_eq!(ask("XLEN s"), "(integer) 5");
}

/// Released entries come in the order in which they were released.
fn check_order(given: &str) {
    let places: Vec<_> = ["1-0", "4-0", "3-0"].iter().map(|id| given.find(&format!("\"{id}\""))).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{given}");
}

#[test]
fn what_is_released_and_remembered_survives_a_kill_and_a_checkpoint() {
    let folder = Folder::new();
    let options = ServerOptions::new(&folder.path().join("data"));
    let mut server = Server::start(&options);
    let own = fill(|line| server.client().show(line));
    for round in 0..2 {
        server.kill();
        server = Server::start(&options);
        check(|line| server.client().show(line), &own);
        if round == 0 {
            assert_eq!(server.client().show("SAVE"), "OK");
        }
    }
    check_order(&server.client().show("XREADGROUP GROUP g bob COUNT 3 CLAIM 0 STREAMS s >"));
}

#[test]
fn what_is_released_and_remembered_survives_the_deaths_of_leaders() {
    let mut cluster = Cluster::start(3);
    let mut client = cluster.client(0);
    let own = fill(|line| cluster.ask(&mut client, line));
    for round in 0..3 {
        let leader = cluster.leader_of("s");
        if round == 1 {
            assert_eq!(cluster.client(leader).show("SAVE"), "OK");
        }
        cluster.kill(leader);
        let survivor = (leader + 1) % 3;
        cluster.wait_for_answer(survivor);
        let mut client = cluster.client(survivor);
        check(|line| cluster.ask(&mut client, line), &own);
        cluster.restart(leader);
    }
    let mut client = cluster.client(1);
    check_order(&cluster.ask(&mut client, "XREADGROUP GROUP g bob COUNT 3 CLAIM 0 STREAMS s >"));
}

#[test]
fn who_waits_to_claim_at_any_node_is_woken_in_time() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader_of("s");
    let mut client = cluster.client(leader);
    assert_eq!(cluster.ask(&mut client, "XGROUP CREATE s g $ MKSTREAM"), "OK");
    assert_eq!(cluster.ask(&mut client, "XADD s 1-0 f v"), "\"1-0\"");
    cluster.ask(&mut client, "XREADGROUP GROUP g alice STREAMS s >");
    for node in 0..3 {
        let mut waiter: Client = cluster.client(node);
        let given = waiter.show(&format!("XREADGROUP GROUP g c{node} BLOCK 60000 CLAIM 300 STREAMS s >"));
        assert!(given.contains("1-0") && given.contains(&format!("(integer) {}", node + 1)), "at node {node}: {given}");
    }
    // Nothing else happens to the stream, so only the release can wake it.
    let mut waiter = cluster.client((leader + 1) % 3);
    let waiting =
        std::thread::spawn(move || waiter.show("XREADGROUP GROUP g last BLOCK 60000 CLAIM 100000000 STREAMS s >"));
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(cluster.ask(&mut client, "XNACK s g SILENT IDS 1 1-0"), "(integer) 1");
    let given = waiting.join().expect("it waits");
    assert!(given.contains("1-0"), "{given}");
}

#[test]
fn a_server_at_level_1_refuses_what_came_with_level_2() {
    let folder = Folder::new();
    let options = ServerOptions::new(&folder.path().join("data")).extra(&["--level-max", "1"]);
    let server = Server::start(&options);
    let mut client = server.client();
    assert_eq!(client.show("XADD s 1-0 idmp v"), "\"1-0\"");
    for line in
        ["XNACK s g FAIL IDS 1 1-0", "XADD s IDMP p 1 * f v", "XCFGSET s IDMP-MAXSIZE 5", "XIDMPRECORD s p 1 1-0"]
    {
        let refusal = client.show(line);
        assert!(refusal.starts_with("(error)") && refusal.contains("level"), "{line}: {refusal}");
    }
}
