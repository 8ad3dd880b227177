//! CLIENT DURABILITY: each connection says when its changes count as kept.

use group::ids::GroupId;
use node::entry::{self, Durability, Item};
use stdx::Duration;
use stdx::log::{Entry, EntryKind};

use crate::cluster::Nodes;
use crate::host::Host;
use crate::settings;

/// What a client gets without a flush of the disk, and what with one.
fn answers(host: &mut Host, client: group::ids::SessionId, line: &str) -> (String, String) {
    host.send(client, format!("{line}\r\n").as_bytes());
    for _ in 0..10 {
        host.turn();
    }
    let early = host.received(client);
    host.settle();
    (early, host.received(client))
}

fn in_force(host: &mut Host, client: group::ids::SessionId) -> String {
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
    for wrong in ["WAITAOF 0 -1 0", "WAITAOF 0 x 0"] {
        assert_eq!(host.run(client, wrong), "-ERR value is out of range, must be positive");
    }
    assert_eq!(host.run(client, "WAITAOF 2 0 0"), "-ERR value is out of range, value must between 0 and 1");
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

/// Three nodes that hold their groups together, a client of one that leads none, and the node that has the slow disk.
struct Slow {
    nodes: Nodes,
    gateway: usize,
    slow: usize,
    client: group::ids::SessionId,
}

impl Slow {
    fn new(cores: u16) -> Self {
        let mut nodes = Nodes::of_cores(cores, &settings("everysec"));
        nodes.upgrade();
        let leader = nodes.leader().expect("elected");
        let (gateway, slow) = (leader % 3 + 1, (leader + 1) % 3 + 1);
        let client = nodes.host(gateway).connect(0);
        assert_eq!(nodes.run(gateway, client, "CLIENT DURABILITY all"), "+OK");
        Self { nodes, gateway, slow, client }
    }

    fn send(&mut self, line: &str) {
        let (gateway, client) = (self.gateway, self.client);
        self.nodes.host(gateway).send(client, format!("{line}\r\n").as_bytes());
        self.nodes.host(gateway).settle();
    }

    /// Time passes, while the disk of one node finishes nothing.
    fn pass_slowly(&mut self, duration: Duration) -> String {
        let (gateway, slow, client) = (self.gateway, self.slow, self.client);
        self.nodes.host(slow).holds_flushes = true;
        self.nodes.pass(duration);
        self.nodes.host(gateway).received(client)
    }

    /// It has finished all that it was given.
    fn finish(&mut self) -> String {
        let (gateway, slow, client) = (self.gateway, self.slow, self.client);
        self.nodes.host(slow).holds_flushes = false;
        self.nodes.host(slow).sync();
        self.nodes.host(slow).settle();
        self.nodes.pass(Duration::from_millis(200));
        self.nodes.host(gateway).received(client)
    }
}

#[test]
fn with_all_a_change_is_answered_when_every_voter_has_it_on_disk() {
    for (cores, line, reply) in [
        (1, "SET a 1", "+OK"),
        (1, "MULTI\r\nINCR a\r\nINCR a\r\nEXEC", "+OK +QUEUED +QUEUED *2 :1 :2"),
        (1, "EVAL \"return redis.call('incr','a')\" 1 a", ":1"),
        (1, "CLIENT REQUESTID x\r\nINCR a", "+OK :1"),
        (2, "MSET a 1 b 2 c 3", "+OK"),
        (2, "MULTI\r\nINCR a\r\nINCR b\r\nCLIENT GETNAME\r\nEXEC", "+OK +QUEUED +QUEUED +QUEUED *3 :1 :1 $-1"),
        (2, "EVAL \"redis.call('set','b',2) return redis.call('incr','a')\" 1 a", ":1"),
        (2, "FLUSHALL", "+OK"),
        (1, "LPUSH list x\r\nBLPOP list 0", ":1 *2 $4 list $1 x"),
    ] {
        let mut slow = Slow::new(cores);
        // Its own entries of the start are behind.
        slow.nodes.pass(Duration::from_secs(1));
        slow.nodes.host(slow.slow).holds_flushes = true;
        slow.send(line);
        let early = slow.pass_slowly(Duration::from_secs(2));
        let before = early.split(' ').filter(|word| *word == "+OK" || *word == "+QUEUED").count();
        assert!(early.len() < reply.len() && early.split(' ').count() == before.max(1), "{line}: {early}");
        let later = slow.finish();
        assert_eq!(format!("{early} {later}").trim(), reply, "{line}");
        assert_eq!(in_force(slow.nodes.host(slow.gateway), slow.client), "all");
    }
}

#[test]
fn with_all_a_pipeline_is_answered_in_order_and_reads_see_what_is_done() {
    let mut slow = Slow::new(1);
    slow.nodes.host(slow.slow).holds_flushes = true;
    slow.send("SET a 1\r\nGET a\r\nINCR a\r\nPING");
    assert_eq!(slow.pass_slowly(Duration::from_secs(1)), "");
    // Others see what a majority has.
    let other = slow.nodes.host(slow.gateway).connect(0);
    let gateway = slow.gateway;
    slow.nodes.host(gateway).send(other, b"GET a\r\nSET b 1\r\n");
    slow.nodes.host(gateway).settle();
    slow.nodes.pass(Duration::from_millis(200));
    assert_eq!(slow.nodes.host(gateway).received(other), "$1 2 +OK");
    assert_eq!(slow.finish(), "+OK $1 1 :2 +PONG");
}

/// Replies that wait are output of their client: they count, and are let go with it.
#[test]
fn with_all_replies_that_wait_count_as_memory_of_their_client() {
    let mut slow = Slow::new(1);
    let gateway = slow.gateway;
    let other = slow.nodes.host(gateway).connect(0);
    let large = format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$900000\r\n{}", "x".repeat(900_000));
    slow.nodes.host(gateway).send(other, large.as_bytes());
    slow.nodes.host(gateway).send(other, b"\r\nCONFIG SET maxmemory-clients 800000\r\n");
    slow.nodes.pass(Duration::from_secs(2));
    assert_eq!(slow.nodes.host(gateway).received(other), "+OK +OK");
    slow.nodes.host(slow.slow).holds_flushes = true;
    slow.send("CLIENT DURABILITY DISK ONCE\r\nGETSET a 1");
    slow.nodes.pass(Duration::from_millis(500));
    assert!(!slow.nodes.host(gateway).is_closed(slow.client), "what has been read does not count");
    slow.nodes.host(gateway).received(slow.client);
    slow.nodes.host(gateway).send(other, large.as_bytes());
    slow.nodes.host(gateway).send(other, b"\r\n");
    slow.nodes.pass(Duration::from_millis(500));
    assert_eq!(slow.nodes.host(gateway).received(other), "+OK");
    slow.send("GETSET a 1");
    slow.nodes.pass(Duration::from_millis(500));
    assert!(slow.nodes.host(gateway).is_closed(slow.client), "a reply that waits does");
    let text = slow.nodes.run(gateway, other, "INFO stats");
    assert!(text.contains("evicted_clients:1"), "{text}");
    assert_eq!(slow.nodes.run(gateway, other, "GET a"), "$1 1");
}

/// A voter that is gone is waited for once; then it is known, and what is asked for is not begun.
#[test]
fn with_all_a_change_that_a_voter_lacks_is_not_confirmed_and_the_next_is_refused_at_once() {
    let mut slow = Slow::new(1);
    slow.nodes.host(slow.slow).holds_flushes = true;
    slow.send("INCR a");
    assert_eq!(slow.pass_slowly(Duration::from_millis(4_800)), "");
    let told = slow.pass_slowly(Duration::from_millis(400));
    let lacks = format!("node {} lacks it of group 0", slow.slow);
    assert_eq!(
        told,
        format!(
            "-UNCONFIRMED The change is done, and a majority has it on disk, but not every voter 5 s later: {lacks}"
        )
    );
    for line in ["INCR a", "MULTI\r\nINCR a\r\nEXEC"] {
        slow.send(line);
        let told = slow.pass_slowly(Duration::from_millis(200));
        let refusal = "-NOREPLICAS Not done: not every voter has on disk what was done before: ";
        assert!(told.contains(&format!("{refusal}{lacks}")), "{line}: {told}");
    }
    slow.send("GET a");
    assert_eq!(slow.pass_slowly(Duration::from_millis(200)), "$1 1", "the first was done, the others were not");
    let text = slow.nodes.run(slow.gateway, slow.client, "INFO persistence");
    assert!(text.contains("durability_all_refused:3"), "{text}");
    assert_eq!(slow.finish(), "");
    slow.nodes.pass(Duration::from_millis(300));
    slow.send("INCR a");
    slow.nodes.pass(Duration::from_millis(200));
    assert_eq!(slow.nodes.host(slow.gateway).received(slow.client), ":2");
}

/// A client that goes while its reply is held back has got nothing: what it took is put back.
#[test]
fn what_a_blocked_client_took_goes_back_while_a_voter_is_waited_for() {
    let mut slow = Slow::new(1);
    let (gateway, client) = (slow.gateway, slow.client);
    let other = slow.nodes.host(gateway).connect(0);
    slow.send("BLPOP list 0");
    slow.nodes.pass(Duration::from_millis(200));
    slow.nodes.host(slow.slow).holds_flushes = true;
    slow.nodes.host(gateway).send(other, b"RPUSH list x\r\n");
    slow.nodes.host(gateway).settle();
    assert_eq!(slow.pass_slowly(Duration::from_secs(1)), "");
    assert_eq!(slow.nodes.host(gateway).received(other), ":1");
    assert_eq!(slow.nodes.run(gateway, other, "LLEN list"), ":0");
    slow.nodes.host(gateway).close(client);
    slow.nodes.host(gateway).settle();
    slow.nodes.host(slow.slow).holds_flushes = false;
    slow.nodes.host(slow.slow).sync();
    slow.nodes.pass(Duration::from_secs(2));
    assert_eq!(slow.nodes.run(gateway, other, "LRANGE list 0 -1"), "*1 $1 x");
}

/// The answer that is remembered is no surer than the change was when it was first answered.
#[test]
fn with_all_a_request_that_is_repeated_under_its_id_waits_as_well() {
    let mut slow = Slow::new(1);
    slow.nodes.host(slow.slow).holds_flushes = true;
    slow.send("CLIENT REQUESTID x\r\nINCR a");
    let told = slow.pass_slowly(Duration::from_millis(5_200));
    assert!(told.starts_with("+OK -UNCONFIRMED The change is done"), "{told}");
    // It may have been done, so that is not denied in advance.
    slow.send("CLIENT REQUESTID x\r\nINCR a");
    assert_eq!(slow.pass_slowly(Duration::from_secs(1)), "+OK");
    assert_eq!(slow.finish(), ":1");
}

#[test]
fn with_all_a_blocking_command_takes_nothing_that_a_voter_would_lack() {
    let mut slow = Slow::new(1);
    let (gateway, first) = (slow.gateway, slow.client);
    let other = slow.nodes.host(gateway).connect(0);
    assert_eq!(slow.nodes.run(gateway, other, "RPUSH list x y"), ":2");
    slow.nodes.host(slow.slow).holds_flushes = true;
    slow.send("BLPOP list 0");
    let told = slow.pass_slowly(Duration::from_millis(5_300));
    assert!(told.starts_with("-UNCONFIRMED An element was taken, and goes back"), "{told}");
    slow.send("BLPOP list 0");
    let told = slow.pass_slowly(Duration::from_millis(300));
    assert!(told.starts_with("-NOREPLICAS Not done"), "{told}");
    slow.client = other;
    slow.nodes.pass(Duration::from_millis(500));
    assert_eq!(slow.nodes.run(gateway, other, "LRANGE list 0 -1"), "*2 $1 x $1 y");
    slow.client = first;
    slow.finish();
    slow.nodes.pass(Duration::from_millis(300));
    slow.send("BLPOP list 0");
    slow.nodes.pass(Duration::from_millis(300));
    assert_eq!(slow.nodes.host(gateway).received(first), "*2 $4 list $1 x");
}

/// What a client took before, and has not read yet, is its own matter.
#[test]
fn with_all_a_change_that_is_not_confirmed_leaves_alone_what_was_taken_before() {
    let mut slow = Slow::new(1);
    let (gateway, client) = (slow.gateway, slow.client);
    let other = slow.nodes.host(gateway).connect(0);
    assert_eq!(slow.nodes.run(gateway, other, "RPUSH list x"), ":1");
    // It does not take what it gets.
    slow.nodes.host(gateway).backlog(client, 1_000);
    slow.send("BLPOP list 0");
    slow.nodes.pass(Duration::from_millis(300));
    assert_eq!(slow.nodes.host(gateway).received(client), "*2 $4 list $1 x");
    slow.nodes.host(slow.slow).holds_flushes = true;
    slow.send("INCR a");
    let told = slow.pass_slowly(Duration::from_millis(5_300));
    assert!(told.starts_with("-UNCONFIRMED The change is done"), "{told}");
    slow.nodes.host(gateway).close_unsent(client, 1_000);
    slow.client = other;
    slow.finish();
    slow.nodes.pass(Duration::from_secs(1));
    assert_eq!(slow.nodes.run(gateway, other, "LRANGE list 0 -1"), "*1 $1 x");
}

#[test]
fn all_means_the_one_disk_where_there_is_one_and_needs_a_level_where_there_are_several() {
    let mut host = Host::new(2, settings("everysec"));
    let client = host.connect(0);
    assert_eq!(host.run(client, "CLIENT DURABILITY ALL"), "+OK");
    for line in ["SET a 1", "SET b 1", "MSET a 1 b 2 c 3"] {
        assert_eq!(answers(&mut host, client, line), (String::new(), "+OK".to_owned()), "{line}");
    }
    let mut nodes = Nodes::new();
    let client = nodes.host(1).connect(0);
    let told = nodes.run(1, client, "CLIENT DURABILITY all");
    assert!(told.starts_with("-ERR CLIENT DURABILITY ALL needs level 2, and the cluster is at level 1"), "{told}");
}

#[test]
fn a_level_may_be_asked_for_one_request() {
    let mut host = Host::new(1, settings("everysec"));
    let client = host.connect(0);
    let ok = || "+OK".to_owned();
    // It comes and goes with its request, also in a pipeline.
    let line = "CLIENT DURABILITY disk ONCE\r\nSET a 1";
    assert_eq!(answers(&mut host, client, line), (ok(), ok()));
    assert_eq!(answers(&mut host, client, "SET a 2"), (ok(), String::new()));
    let (early, late) = answers(&mut host, client, &format!("SET a 3\r\n{line}\r\nPING\r\nCLIENT INFO"));
    assert!(!early.contains("PONG") && late.contains("+PONG") && !late.contains("durability="), "{early}, {late}");
    // What CLIENT says of itself does not use it up, nor does a transaction that is not at its end.
    assert_eq!(host.run(client, "CLIENT DURABILITY disk ONCE"), "+OK");
    assert_eq!(in_force(&mut host, client), "disk");
    assert_eq!(host.run(client, "CLIENT REQUESTID y"), "+OK");
    assert_eq!(answers(&mut host, client, "INCR b"), (String::new(), ":1".to_owned()));
    assert_eq!(in_force(&mut host, client), "server");
    let transaction = "CLIENT DURABILITY disk ONCE\r\nMULTI\r\nINCR b\r\nEXEC";
    assert_eq!(answers(&mut host, client, transaction), ("+OK +OK +QUEUED".to_owned(), "*1 :2".to_owned()));
    assert_eq!(in_force(&mut host, client), "server");
    let script = "CLIENT DURABILITY disk ONCE\r\nEVAL \"return redis.call('incr','b')\" 1 b";
    assert_eq!(answers(&mut host, client, script), (ok(), ":3".to_owned()));
    // One that is refused was one.
    assert_eq!(host.run(client, "CLIENT DURABILITY disk ONCE"), "+OK");
    assert!(host.run(client, "GET").starts_with("-ERR wrong number"), "it has no key");
    assert_eq!(answers(&mut host, client, "SET a 4"), (ok(), String::new()));
    assert_eq!(host.run(client, "CLIENT DURABILITY disk ONCE"), "+OK");
    assert!(host.run(client, "NOTHING").starts_with("-ERR unknown command"), "there is none");
    assert_eq!(answers(&mut host, client, "SET a 4"), (ok(), String::new()));
    // Behind it is what was before it.
    assert_eq!(host.run(client, "CLIENT DURABILITY disk"), "+OK");
    assert_eq!(
        answers(&mut host, client, "CLIENT DURABILITY server ONCE\r\nSET a 5"),
        ("+OK +OK".to_owned(), String::new())
    );
    assert_eq!(answers(&mut host, client, "SET a 6"), (String::new(), ok()));
    assert_eq!(host.run(client, "CLIENT DURABILITY server ONCE"), "+OK");
    assert_eq!(host.run(client, "CLIENT DURABILITY all ONCE"), "+OK");
    assert_eq!(in_force(&mut host, client), "all");
    assert_eq!(answers(&mut host, client, "SET a 7"), (String::new(), ok()));
    assert_eq!(in_force(&mut host, client), "disk");
    assert_eq!(host.run(client, "RESET"), "+RESET");
    assert_eq!(in_force(&mut host, client), "server");
    for (line, refusal) in [
        ("CLIENT DURABILITY disk TWICE", "-ERR syntax error"),
        ("CLIENT DURABILITY disk ONCE ONCE", "-ERR syntax error"),
        ("MULTI\r\nCLIENT DURABILITY disk ONCE\r\nEXEC", "+OK +QUEUED *1 -ERR CLIENT DURABILITY ... ONCE comes before"),
    ] {
        let told = host.run(client, line);
        assert!(told.starts_with(refusal), "{line}: {told}");
    }
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
