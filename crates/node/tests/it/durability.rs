//! CLIENT DURABILITY: each connection says when its changes count as kept.

use node::GroupId;
use node::entry::{self, Durability, Item};
use stdx::Duration;
use stdx::log::{Entry, EntryKind};

use crate::cluster::Nodes;
use crate::host::Host;
use crate::settings;

/// What a client gets without a flush of the disk, and what with one.
fn answers(host: &mut Host, client: node::SessionId, line: &str) -> (String, String) {
    host.send(client, format!("{line}\r\n").as_bytes());
    for _ in 0..10 {
        host.turn();
    }
    let early = host.received(client);
    host.settle();
    (early, host.received(client))
}

fn in_force(host: &mut Host, client: node::SessionId) -> String {
    let text = host.run(client, "CLIENT INFO");
    text.split_whitespace().find_map(|word| word.strip_prefix("durability=")).unwrap_or("server").to_owned()
}

#[test]
fn a_connection_may_ask_for_more_than_the_servers_level_and_waits_for_its_own_flush_alone() {
    let mut host = Host::new(1, settings("everysec"));
    let (plain, strict) = (host.connect(0), host.connect(0));
    assert_eq!(in_force(&mut host, strict), "server");
    assert_eq!(host.run(strict, "CLIENT DURABILITY disk"), "+OK");
    assert_eq!((in_force(&mut host, plain), in_force(&mut host, strict)), ("server".to_owned(), "disk".to_owned()));
    let ok = || "+OK".to_owned();
    assert_eq!(answers(&mut host, plain, "SET a 1"), (ok(), String::new()));
    assert_eq!(answers(&mut host, strict, "SET a 2"), (String::new(), ok()));
    assert_eq!(answers(&mut host, strict, "GET a").0, "$1 2", "a read waits for nothing");
    let transaction = "MULTI\r\nINCR a\r\nEXEC";
    assert_eq!(answers(&mut host, strict, transaction), ("+OK +QUEUED".to_owned(), "*1 :3".to_owned()));
    let script = "EVAL \"return redis.call('incr','a')\" 1 a";
    assert_eq!(answers(&mut host, strict, script), (String::new(), ":4".to_owned()));
    // With an id it is a transaction of its gateway.
    let named = "CLIENT REQUESTID x\r\nINCR a";
    assert_eq!(answers(&mut host, strict, named), (ok(), ":5".to_owned()));
    assert_eq!(host.run(strict, "CLIENT DURABILITY server"), "+OK");
    assert_eq!(answers(&mut host, strict, "SET a 3"), (ok(), String::new()));
    host.run(strict, "CLIENT DURABILITY disk");
    host.run(strict, "RESET");
    assert_eq!(in_force(&mut host, strict), "server");
    assert_eq!(host.run(strict, "CLIENT DURABILITY paper"), "-ERR syntax error");
}

#[test]
fn a_transaction_over_groups_is_as_durable_as_its_connection_asks() {
    let mut host = Host::new(3, settings("no"));
    let client = host.connect(0);
    assert_eq!(answers(&mut host, client, "MSET a 1 b 2 c 3").0, "+OK");
    host.run(client, "CLIENT DURABILITY disk");
    assert_eq!(answers(&mut host, client, "MSET a 1 b 2 c 3"), (String::new(), "+OK".to_owned()));
}

#[test]
fn a_connection_gets_less_than_the_servers_level_only_where_that_is_allowed() {
    let mut host = Host::new(1, settings("always"));
    let (client, other) = (host.connect(0), host.connect(0));
    let refusal = "-ERR This server keeps changes on disk before it answers, and client-durability-min allows no less";
    assert_eq!(host.run(client, "CLIENT DURABILITY memory"), refusal);
    host.run(client, "CONFIG SET client-durability-min memory");
    assert_eq!(host.run(client, "CLIENT DURABILITY memory"), "+OK");
    assert_eq!((in_force(&mut host, client), in_force(&mut host, other)), ("memory".to_owned(), "server".to_owned()));
    assert_eq!(answers(&mut host, client, "SET a 1"), ("+OK".to_owned(), String::new()));
    assert_eq!(answers(&mut host, other, "SET a 2"), (String::new(), "+OK".to_owned()));
    assert_eq!(host.run(client, "WAITAOF 0 0 0"), "*2 :0 :0");
    // What is gathered in one entry waits for the strictest.
    for (session, key) in [(client, "a"), (other, "b")] {
        host.send(session, format!("SET {key} 3\r\n").as_bytes());
    }
    (0..10).for_each(|_| host.turn());
    assert_eq!(host.received(client), "");
    host.settle();
    assert_eq!((host.received(client), host.received(other)), ("+OK".to_owned(), "+OK".to_owned()));
    // The administrator takes it back: connections that have it are as all others.
    host.run(other, "CONFIG SET client-durability-min server");
    assert_eq!(in_force(&mut host, client), "disk");
    assert_eq!(answers(&mut host, client, "SET a 4"), (String::new(), "+OK".to_owned()));
}

#[test]
fn the_level_goes_with_a_request_to_the_node_that_leads_and_with_its_entry_to_all_others() {
    let mut nodes = Nodes::with(&settings("everysec"));
    nodes.pass(Duration::from_secs(3));
    let leader = nodes.leader_of(GroupId(0)).expect("elected");
    let gateway = leader % 3 + 1;
    let client = nodes.host(gateway).connect(0);
    assert_eq!(nodes.run(gateway, client, "SET a 1"), "+OK");
    assert_eq!(nodes.run(gateway, client, "CLIENT DURABILITY disk"), "+OK");
    // Nobody's disk finishes anything, and one flush of three is no majority.
    (1..=3).for_each(|node| nodes.host(node).holds_flushes = true);
    assert_eq!(nodes.run(gateway, client, "SET a 2"), "");
    nodes.host(leader).sync();
    nodes.host(leader).settle();
    nodes.exchange(|_, _, _| true);
    assert_eq!(nodes.host(gateway).received(client), "");
    nodes.host(gateway).sync();
    nodes.host(gateway).settle();
    nodes.exchange(|_, _, _| true);
    nodes.host(gateway).settle();
    assert_eq!(nodes.host(gateway).received(client), "+OK");
}

/// How durable the entries are that end transactions of a group, since it had logged so many.
fn durability_of_ends(host: &Host, group: u32, since: usize) -> Vec<Durability> {
    let ends = |entry: &&Entry| {
        let mut spans = Vec::new();
        let Some((_, mut reader)) = entry::open(&entry.data).filter(|_| entry.kind == EntryKind::Normal) else {
            return false;
        };
        std::iter::from_fn(|| reader.item(&mut spans).map(|item| matches!(item, Item::Resolve { .. }))).any(|is| is)
    };
    host.logged(GroupId(group))[since..].iter().filter(ends).map(|entry| entry::durability(&entry.data)).collect()
}

#[test]
fn the_end_of_a_move_of_slots_is_on_disk_before_it_counts_whatever_the_level() {
    let mut host = Host::new(2, settings("no"));
    let client = host.connect(0);
    assert!(host.run(client, "HOLDFAST SPLIT 0 1").starts_with("-TRYAGAIN"), "it becomes a cluster of one");
    let key = stdx::slot::tag_of(stdx::slot::Slot(5));
    assert_eq!(host.run(client, &format!("MSET {key} 1 foo 1")), "+OK");
    for group in 0..2 {
        assert_eq!(durability_of_ends(&host, group, 0), [Durability::Server], "group {group}: a transaction of keys");
    }
    let since = [0, 1].map(|group| host.logged(GroupId(group)).len());
    assert_eq!(host.run(client, "HOLDFAST MOVE 5 5 1"), "+OK");
    for _ in 0..50 {
        host.pass(Duration::from_millis(100));
    }
    for (group, since) in (0..).zip(since) {
        assert_eq!(durability_of_ends(&host, group, since), [Durability::Disk], "group {group}: a move");
    }
    assert_eq!(host.run(client, &format!("GET {key}")), "$1 1");
}
