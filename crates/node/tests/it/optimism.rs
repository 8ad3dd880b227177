//! Clients that watch a key, while others change it again and again.

use group::ids::SessionId;
use node::settings::Settings;
use stdx::Duration;

use crate::cluster::Nodes;
use crate::everywhere;
use crate::host::Host;

/// The client watches a key and is too late, so often that the next time it is helped.
fn fail_twice(host: &mut Host, client: SessionId, writer: SessionId) {
    for _ in 0..2 {
        host.run(client, "WATCH k");
        host.run(writer, "INCR k");
        assert_eq!(host.run(client, "MULTI\r\nSET k 0\r\nEXEC"), "+OK +QUEUED *-1");
    }
}

/// Somebody asks for a change that he has to wait for.
fn asks_in_vain(host: &mut Host, writer: SessionId, line: &str) {
    assert_eq!(host.run(writer, line), "", "{line}");
}

fn count(host: &mut Host, client: SessionId, line: &str) -> u64 {
    let info = host.run(client, "INFO stats");
    let found = info.split(' ').find_map(|word| word.strip_prefix(&format!("{line}:"))?.parse().ok());
    found.unwrap_or_else(|| panic!("no {line} in {info}"))
}

const SCRIPT: &str = "EVAL \"return redis.call('INCR', KEYS[1])\" 1 k";

#[test]
fn one_who_has_failed_twice_changes_what_it_watches_before_those_who_change_it_in_a_loop() {
    everywhere(|host| {
        let [client, writer, script, both, reader] = [(); 5].map(|()| host.connect(0));
        fail_twice(host, client, writer);
        assert_eq!(host.run(client, "WATCH k"), "+OK");
        asks_in_vain(host, writer, "INCR k");
        asks_in_vain(host, script, SCRIPT);
        asks_in_vain(host, both, "MSET k 9 other 9");
        for line in ["GET k", "STRLEN k", "MULTI\r\nGET k\r\nEXEC", "EVAL_RO \"return redis.call('GET', KEYS[1])\" 1 k"]
        {
            assert!(host.run(reader, line).ends_with(['1', '2']), "who reads does not wait: {line}");
        }
        assert_eq!(host.run(reader, "INCR other"), ":1", "nor who changes something else");
        assert_eq!(host.run(client, "GET k"), "$1 2");
        assert_eq!(host.run(client, "MULTI\r\nINCRBY k 10\r\nEXEC"), "+OK +QUEUED *1 :12");
        assert_eq!(host.received(writer), ":13");
        assert!(host.received(script).starts_with(':'), "it has no order with the next one");
        assert_eq!(host.received(both), "+OK");
        // It has succeeded: it is like all others again.
        assert_eq!(host.run(client, "WATCH k"), "+OK");
        assert!(host.run(writer, "INCR k").starts_with(':'));
        assert_eq!(count(host, reader, "watch_reservations"), 1);
        assert_eq!(count(host, reader, "watch_reservations_lapsed"), 0);
    });
}

#[test]
fn what_is_under_way_does_not_break_the_watch_of_one_who_is_helped() {
    everywhere(|host| {
        let [client, writer] = [(); 2].map(|()| host.connect(0));
        fail_twice(host, client, writer);
        host.holds_disk = true;
        host.send(writer, b"INCR k\r\n");
        host.settle();
        assert_eq!(host.run(client, "WATCH k"), "", "it begins behind that");
        host.holds_disk = false;
        host.settle();
        assert_eq!(host.received(client), "+OK");
        assert_eq!(host.received(writer), ":3");
        asks_in_vain(host, writer, SCRIPT);
        assert_eq!(host.run(client, "MULTI\r\nINCRBY k 10\r\nEXEC"), "+OK +QUEUED *1 :13");
        assert_eq!(host.received(writer), ":14");
    });
}

#[test]
fn one_who_is_helped_and_does_nothing_is_not_waited_for() {
    everywhere(|host| {
        let [client, writer] = [(); 2].map(|()| host.connect(0));
        fail_twice(host, client, writer);
        host.run(client, "WATCH k");
        asks_in_vain(host, writer, "INCR k");
        host.pass(Duration::from_millis(55));
        assert_eq!(host.received(writer), ":3");
        assert_eq!(host.run(client, "MULTI\r\nSET k 0\r\nEXEC"), "+OK +QUEUED *-1", "the watch holds all the same");
        assert_eq!(count(host, writer, "watch_reservations_lapsed"), 1);
        // For a while it is not helped again, and then it is.
        fail_twice(host, client, writer);
        host.run(client, "WATCH k");
        assert_eq!(host.run(writer, "INCR k"), ":6");
        host.run(client, "UNWATCH");
        host.pass(Duration::from_millis(250));
        host.run(client, "WATCH k");
        asks_in_vain(host, writer, "INCR k");
        assert_eq!(host.run(client, "MULTI\r\nSET k 0\r\nEXEC"), "+OK +QUEUED *1 +OK");
        assert_eq!(host.received(writer), ":1");
    });
}

#[test]
fn one_who_is_helped_and_does_not_try_lets_others_go_on_at_once() {
    everywhere(|host| {
        for ending in
            ["UNWATCH", "MULTI\r\nDISCARD", "RESET", "MULTI\r\nNONSENSE\r\nEXEC", "MULTI\r\nGET k\r\nEXEC", ""]
        {
            let [client, writer] = [(); 2].map(|()| host.connect(0));
            fail_twice(host, client, writer);
            host.run(client, "WATCH k");
            asks_in_vain(host, writer, "INCR k");
            match ending {
                "" => host.close(client),
                _ => _ = host.run(client, ending),
            }
            assert!(host.received(writer).starts_with(':'), "{ending}");
        }
    });
}

#[test]
fn one_reservation_at_a_time_is_made_of_a_key() {
    everywhere(|host| {
        let [first, second, writer] = [(); 3].map(|()| host.connect(0));
        fail_twice(host, first, writer);
        fail_twice(host, second, writer);
        host.run(first, "WATCH k");
        assert_eq!(host.run(second, "WATCH k"), "+OK", "it does not wait for another");
        assert_eq!(host.run(second, "MULTI\r\nSET k 5\r\nEXEC"), "+OK +QUEUED", "it waits like all others");
        assert_eq!(host.run(first, "MULTI\r\nINCR k\r\nEXEC"), "+OK +QUEUED *1 :5");
        assert_eq!(host.received(second), "*-1");
        host.run(second, "WATCH k");
        asks_in_vain(host, writer, "INCR k");
    });
}

#[test]
fn a_transaction_over_groups_uses_what_was_reserved_and_ends_it() {
    everywhere(|host| {
        let [client, writer] = [(); 2].map(|()| host.connect(0));
        fail_twice(host, client, writer);
        host.run(client, "WATCH k");
        asks_in_vain(host, writer, "INCR k");
        let exec = "MULTI\r\nINCRBY k 10\r\nINCR other\r\nINCR third\r\nEXEC";
        assert_eq!(host.run(client, exec), "+OK +QUEUED +QUEUED +QUEUED *3 :12 :1 :1");
        assert_eq!(host.received(writer), ":13");
        assert_eq!(count(host, writer, "watch_reservations_lapsed"), 0);
    });
}

#[test]
fn nobody_keeps_a_key_for_longer_by_watching_more() {
    everywhere(|host| {
        let [client, writer] = [(); 2].map(|()| host.connect(0));
        fail_twice(host, client, writer);
        host.run(client, "WATCH k");
        asks_in_vain(host, writer, "INCR k");
        for more in ["a", "b", "c", "d"] {
            host.pass(Duration::from_millis(15));
            host.run(client, &format!("WATCH {more}"));
        }
        assert_eq!(host.received(writer), ":3");
    });
}

fn beside_a_cluster(level_2: bool, story: impl FnOnce(&mut Nodes, usize, usize)) {
    let mut nodes = Nodes::of_cores(1, &Settings::default());
    nodes.pass(Duration::from_secs(3));
    if level_2 {
        nodes.upgrade();
    }
    let leader = nodes.leader().expect("elected");
    story(&mut nodes, leader, leader % 3 + 1);
}

fn fail_twice_at(nodes: &mut Nodes, (gateway, client): (usize, SessionId), (node, writer): (usize, SessionId)) {
    for _ in 0..2 {
        assert_eq!(nodes.run(gateway, client, "WATCH k"), "+OK");
        nodes.run(node, writer, "INCR k");
        assert_eq!(nodes.run(gateway, client, "MULTI\r\nSET k 0\r\nEXEC"), "+OK +QUEUED *-1");
    }
}

#[test]
fn clients_of_all_nodes_are_helped_and_at_an_old_level_none() {
    for level_2 in [false, true] {
        beside_a_cluster(level_2, |nodes, leader, gateway| {
            let client = nodes.host(gateway).connect(0);
            let writer = nodes.host(leader).connect(0);
            fail_twice_at(nodes, (gateway, client), (leader, writer));
            assert_eq!(nodes.run(gateway, client, "WATCH k"), "+OK");
            if !level_2 {
                assert_eq!(nodes.run(leader, writer, "INCR k"), ":3");
                return;
            }
            assert_eq!(nodes.run(leader, writer, SCRIPT), "");
            assert_eq!(nodes.run(gateway, client, "MULTI\r\nINCRBY k 10\r\nEXEC"), "+OK +QUEUED *1 :12");
            nodes.pass(Duration::from_millis(50));
            assert_eq!(nodes.host(leader).received(writer), ":13");
            fail_twice_at(nodes, (gateway, client), (leader, writer));
            assert_eq!(nodes.run(gateway, client, "WATCH k"), "+OK");
            assert_eq!(nodes.run(leader, writer, "INCR k"), "");
            assert_eq!(nodes.run(gateway, client, "UNWATCH"), "+OK");
            nodes.exchange(|_, _, _| true);
            assert_eq!(nodes.host(leader).received(writer), ":16");
        });
    }
}

#[test]
fn a_node_that_dies_with_a_client_who_is_helped_is_not_waited_for() {
    beside_a_cluster(true, |nodes, leader, gateway| {
        let client = nodes.host(gateway).connect(0);
        let writer = nodes.host(leader).connect(0);
        fail_twice_at(nodes, (gateway, client), (leader, writer));
        assert_eq!(nodes.run(gateway, client, "WATCH k"), "+OK");
        assert_eq!(nodes.run(leader, writer, "INCR k"), "");
        nodes.kill(gateway);
        nodes.pass(Duration::from_millis(150));
        assert_eq!(nodes.host(leader).received(writer), ":3");
    });
}

#[test]
fn the_next_leader_knows_of_no_reservation_and_the_watch_is_looked_at_all_the_same() {
    for changes in [false, true] {
        beside_a_cluster(true, |nodes, leader, gateway| {
            let client = nodes.host(gateway).connect(0);
            let other = gateway % 3 + 1;
            let other = if other == leader { other % 3 + 1 } else { other };
            let writer = nodes.host(other).connect(0);
            fail_twice_at(nodes, (gateway, client), (other, writer));
            assert_eq!(nodes.run(gateway, client, "WATCH k"), "+OK");
            if changes {
                assert_eq!(nodes.run(other, writer, "INCR k"), "");
            }
            nodes.kill(leader);
            nodes.pass(Duration::from_secs(3));
            if changes {
                assert_eq!(nodes.host(other).received(writer), ":3", "it was sent to the next leader");
            }
            let done = nodes.run(gateway, client, "MULTI\r\nINCRBY k 10\r\nEXEC");
            nodes.pass(Duration::from_millis(100));
            let done = done + &nodes.host(gateway).received(client);
            let expected = if changes { "+OK +QUEUED *-1" } else { "+OK +QUEUED *1 :12" };
            assert_eq!(done.replace("  ", " "), expected);
        });
    }
}
