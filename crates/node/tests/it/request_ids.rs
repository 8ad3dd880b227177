//! Requests with an id: carried out once, however often they are sent, and to any node.

use group::ids::{GroupId, SessionId};
use node::settings::Settings;
use stdx::Duration;

use crate::cluster::Nodes;
use crate::everywhere;
use crate::host::Host;

/// What is answered to a request under an id.
fn under(host: &mut Host, client: SessionId, id: &str, line: &str) -> String {
    assert_eq!(host.run(client, &format!("CLIENT REQUESTID {id}")), "+OK");
    host.run(client, line)
}

fn info(host: &mut Host, client: SessionId, field: &str) -> u64 {
    let text = host.run(client, "INFO stats");
    let value = text.split_whitespace().find_map(|word| word.strip_prefix(field)?.strip_prefix(':'));
    value.expect("a field of INFO").parse().expect("a number")
}

#[test]
fn a_request_is_carried_out_once_under_its_id_and_answered_as_before_on_any_connection() {
    everywhere(|host| {
        let (client, other) = (host.connect(0), host.connect(host.core_count() - 1));
        assert_eq!(under(host, client, "a", "INCR n"), ":1");
        assert_eq!(host.run(client, "INCR n"), ":2", "the id was for one request");
        assert_eq!(under(host, other, "a", "INCR n"), ":1");
        assert_eq!(
            under(host, other, "a", "INCRBY n 1"),
            "-ERR Another request has been carried out under this \
                                                            request id"
        );
        assert_eq!(under(host, other, "b", "MSET n 7 m 8 o 9"), "+OK");
        assert_eq!(under(host, other, "c", "SET n 10"), "+OK");
        assert_eq!(under(host, client, "b", "MSET n 7 m 8 o 9"), "+OK");
        assert_eq!(host.run(client, "GET n"), "$2 10");
        // What failed, failed under its id.
        assert_eq!(
            under(host, client, "d", "LPUSH n x"),
            "-WRONGTYPE Operation against a key holding the wrong kind \
                                                           of value"
        );
        host.run(client, "DEL n");
        assert!(under(host, client, "d", "LPUSH n x").starts_with("-WRONGTYPE"));
        // What changes nothing is answered as before, too.
        assert_eq!(under(host, client, "e", "SETNX m x"), ":0");
        host.run(client, "DEL m");
        assert_eq!(under(host, client, "e", "SETNX m x"), ":0");
        assert_eq!(under(host, client, "f", "FLUSHALL"), "+OK");
        host.run(client, "SET n 1");
        assert_eq!(under(host, client, "f", "FLUSHALL"), "+OK");
        assert_eq!(host.run(client, "GET n"), "$1 1");
        assert_eq!(info(host, client, "request_ids"), 6);
        assert_eq!(info(host, client, "request_ids_repeated"), 5);
        assert!(info(host, client, "request_ids_bytes") > 600);
    });
}

#[test]
fn a_transaction_and_a_script_are_carried_out_once_under_their_id() {
    everywhere(|host| {
        let client = host.connect(0);
        let transfer = |host: &mut Host, id: &str, amount: u32| {
            assert_eq!(under(host, client, id, "MULTI"), "+OK");
            assert_eq!(host.run(client, &format!("DECRBY from {amount}")), "+QUEUED");
            assert_eq!(host.run(client, &format!("INCRBY to {amount}")), "+QUEUED");
            host.run(client, "EXEC")
        };
        assert_eq!(transfer(host, "t", 5), "*2 :-5 :5");
        assert_eq!(transfer(host, "t", 5), "*2 :-5 :5");
        assert!(transfer(host, "t", 6).starts_with("-ERR Another request"));
        assert_eq!(transfer(host, "u", 6), "*2 :-11 :11");
        // One that is given up does not use its id.
        under(host, client, "v", "MULTI");
        host.run(client, "DISCARD");
        assert_eq!(transfer(host, "v", 1), "*2 :-12 :12");
        let script = "EVAL \"redis.call('incr','hidden') return redis.call('incr',KEYS[1])\" 1 counted";
        assert_eq!(under(host, client, "s", script), ":1");
        assert_eq!(under(host, client, "s", script), ":1");
        assert_eq!(host.run(client, "MGET counted hidden"), "*2 $1 1 $1 1");
        let keyless = "EVAL \"return redis.call('incr','hidden')\" 0";
        assert_eq!(under(host, client, "k", keyless), ":2");
        assert_eq!(under(host, client, "k", keyless), ":2");
        assert_eq!(host.run(client, "GET hidden"), "$1 2");
    });
}

#[test]
fn what_cannot_be_done_once_is_refused_by_name_and_uses_up_the_id() {
    everywhere(|host| {
        let client = host.connect(0);
        assert_eq!(host.run(client, "CLIENT REQUESTID \"\""), "-ERR A request id has 1 to 64 bytes");
        let long = format!("CLIENT REQUESTID {}", "x".repeat(65));
        assert_eq!(host.run(client, &long), "-ERR A request id has 1 to 64 bytes");
        let refused = "-ERR 'publish' cannot be given a request id: it changes no keys";
        assert_eq!(under(host, client, "a", "PUBLISH channel text"), refused);
        assert_eq!(host.run(client, "PUBLISH channel text"), ":0");
        assert_eq!(under(host, client, "a", "BLPOP list 1"), "-ERR 'blpop' cannot be given a request id: it waits");
        assert_eq!(under(host, client, "a", "GET n"), "$-1", "what only reads may be repeated");
        assert_eq!(under(host, client, "a", "NONSENSE").split(' ').next(), Some("-ERR"));
        assert_eq!(host.run(client, "PUBLISH channel text"), ":0");
        under(host, client, "a", "MULTI");
        host.run(client, "SET n 1");
        host.run(client, "CLIENT SETNAME me");
        let refused = "-EXECABORT Transaction discarded because of: A transaction with a request id may contain \
                       commands on data and scripts only";
        assert_eq!(host.run(client, "EXEC"), refused);
        assert_eq!(host.run(client, "GET n"), "$-1");
        host.run(client, "CLIENT REQUESTID a");
        host.run(client, "RESET");
        assert_eq!(host.run(client, "PUBLISH channel text"), ":0");
        assert_eq!(info(host, client, "request_ids"), 0);
    });
}

#[test]
fn answers_are_kept_for_their_time_and_in_their_memory() {
    everywhere(|host| {
        let client = host.connect(0);
        host.run(client, "CONFIG SET request-id-ttl 60");
        assert_eq!(under(host, client, "a", "INCR n"), ":1");
        host.pass(Duration::from_secs(59));
        assert_eq!(under(host, client, "a", "INCR n"), ":1");
        host.run(client, "CONFIG SET request-id-maxmemory 1");
        let refused = "-TRYAGAIN No room for another request id: answers take as much memory as request-id-maxmemory \
                       allows, and are kept for as long as request-id-ttl says";
        assert_eq!(under(host, client, "b", "INCR n"), refused);
        assert_eq!(under(host, client, "a", "INCR n"), ":1", "what is known is answered");
        assert_eq!(host.run(client, "INCR n"), ":2");
        host.pass(Duration::from_secs(2));
        assert_eq!(info(host, client, "request_ids"), 0, "forgotten although nobody writes");
        assert_eq!(under(host, client, "b", "INCR n"), ":3");
        host.run(client, "CONFIG SET request-id-maxmemory 1mb");
        // A reply that is too long to be kept is found out before anything has been changed.
        host.run(client, "SET long x");
        host.run(client, "SETRANGE long 1048576 x");
        under(host, client, "c", "MULTI");
        host.run(client, "GET long");
        host.run(client, "DEL long");
        assert!(host.run(client, "EXEC").starts_with("-ERR The reply is too long"));
        assert_eq!(host.run(client, "EXISTS long"), ":1");
    });
}

#[test]
fn a_request_whose_gateway_dies_on_the_way_is_found_carried_out_or_is_carried_out_later() {
    // The gateway dies after so many steps; the client asks another node.
    for steps in 0..12 {
        let mut nodes = Nodes::of_cores(2, &Settings::default());
        nodes.pass(Duration::from_secs(3));
        let leader = nodes.leader().expect("elected");
        assert!(nodes.leader_of(GroupId(1)).is_some());
        let (gateway, second) = (leader % 3 + 1, (leader + 1) % 3 + 1);
        let lines = ["CLIENT REQUESTID once", "MULTI", "INCR bar", "INCR foo", "EXEC"];
        let client = nodes.host(gateway).connect(0);
        for line in lines {
            nodes.host(gateway).send(client, format!("{line}\r\n").as_bytes());
        }
        nodes.host(gateway).settle();
        let mut left = steps;
        nodes.exchange(|from, to, _| {
            let passes = left > 0 || (from != gateway && to != gateway);
            left -= usize::from(left > 0 && (from == gateway || to == gateway));
            passes
        });
        nodes.kill(gateway);
        nodes.pass(Duration::from_secs(4));
        let other = nodes.host(second).connect(1);
        for line in &lines[..4] {
            nodes.run(second, other, line);
        }
        let mut answer = nodes.run(second, other, "EXEC");
        nodes.pass(Duration::from_secs(4));
        answer.push_str(&nodes.host(second).received(other));
        assert_eq!(answer, "*2 :1 :1", "after {steps} steps");
        assert_eq!(nodes.run(second, other, "MGET bar foo"), "*2 $1 1 $1 1", "after {steps} steps");
        assert_eq!(nodes.run(second, other, "CLIENT REQUESTID once"), "+OK");
        assert!(nodes.run(second, other, "INCR bar").starts_with("-ERR Another"));
    }
}

/// What OBJECT IDLETIME and FREQ tell is each replica's own: they are answered once, as the leader sees it, and that is
/// kept everywhere.
#[test]
fn how_a_key_was_used_is_told_in_transactions_as_alone_and_kept_the_same_by_all() {
    for core_count in [1, 2] {
        let mut nodes = Nodes::of_cores(core_count, &Settings::default());
        nodes.upgrade();
        let leader = nodes.leader().expect("elected");
        let gateway = leader % 3 + 1;
        let clients = [leader, gateway].map(|node| (node, nodes.host(node).connect(0)));
        let (_, client) = clients[1];
        assert_eq!(nodes.run(gateway, client, "MSET foo 1 bar 2 baz 3"), "+OK");
        nodes.pass(Duration::from_secs(40));
        // Only the leader's replica sees that.
        assert_eq!(nodes.run(leader, clients[0].1, "GET foo"), "$1 1");
        nodes.pass(Duration::from_secs(20));
        let idle = |reply: &str| reply.trim_start_matches(':').parse::<u64>().expect("a number");
        for (node, client) in clients {
            for id in ["", "CLIENT REQUESTID one", "CLIENT REQUESTID one"] {
                let mut told: Vec<u64> = Vec::new();
                for key in ["foo", "bar"] {
                    told.push(idle(&nodes.run(node, client, &format!("OBJECT IDLETIME {key}"))));
                }
                if !id.is_empty() {
                    assert_eq!(nodes.run(node, client, id), "+OK");
                }
                for line in ["MULTI", "OBJECT IDLETIME foo", "OBJECT IDLETIME bar", "SET baz 4"] {
                    nodes.run(node, client, line);
                }
                let reply = nodes.run(node, client, "EXEC");
                let words: Vec<&str> = reply.split(' ').collect();
                assert_eq!((words[0], words[3]), ("*3", "+OK"), "{reply}");
                let within: Vec<u64> = words[1..3].iter().map(|word| idle(word)).collect();
                assert!((19..50).contains(&told[0]) && told[1] >= told[0] + 35, "{told:?}");
                assert!(
                    within.iter().zip(&told).all(|(within, told)| within.abs_diff(*told) <= 5),
                    "{within:?} {told:?}"
                );
                nodes.pass(Duration::from_secs(1));
            }
        }
        // A read has no place in the log before a change of its pipeline either.
        let pipeline = "OBJECT IDLETIME foo\r\nSET foo 2\r\nOBJECT IDLETIME foo\r\n";
        nodes.host(gateway).send(client, pipeline.as_bytes());
        nodes.host(gateway).settle();
        nodes.exchange(|_, _, _| true);
        nodes.pass(Duration::from_secs(1));
        let replies = nodes.host(gateway).received(client);
        let replies: Vec<&str> = replies.split(' ').collect();
        assert!(idle(replies[0]) >= 20 && replies[1..] == ["+OK", ":0"], "{replies:?}");
        // A policy that counts uses.
        let heard = nodes.run(gateway, client, "CONFIG SET maxmemory-policy allkeys-lfu");
        nodes.pass(Duration::from_secs(1));
        assert_eq!(heard + &nodes.host(gateway).received(client), "+OK");
        (0..9).for_each(|_| drop(nodes.run(gateway, client, "GET bar")));
        let alone = nodes.run(gateway, client, "OBJECT FREQ bar");
        for line in ["MULTI", "OBJECT FREQ bar", "SET foo 5", "SET baz 5"] {
            nodes.run(gateway, client, line);
        }
        assert_eq!(nodes.run(gateway, client, "EXEC"), format!("*3 {alone} +OK +OK"));
        nodes.pass(Duration::from_secs(2));
        for group in (0..u32::from(core_count)).map(GroupId) {
            let digests = [1, 2, 3].map(|node| nodes.host(node).digest(group));
            assert!(digests.iter().all(|digest| *digest == digests[0]), "{group:?}: {digests:?}");
        }
    }
}
