//! Stories of a leader that is cut off: it does not know that another one leads, and tells nobody what it remembers.

use group::ids::SessionId;
use node::settings::Settings;
use stdx::Duration;

use crate::cluster::Nodes;

/// A node that led and is cut off with a client, and another one that leads since and has taken more keys of a slot.
struct Apart {
    nodes: Nodes,
    former: usize,
    client: SessionId,
}

impl Apart {
    fn new() -> Self {
        let mut settings = Settings::default();
        settings.set("cluster-enabled", "yes").expect("a parameter");
        let mut nodes = Nodes::with(&settings);
        let former = nodes.leader().expect("elected");
        let client = nodes.host(former).connect(0);
        assert_eq!(nodes.run(former, client, "SET foo 1"), "+OK");
        nodes.pass(Duration::from_secs(1));
        Self { nodes, former, client }
    }

    fn pass(&mut self, duration: Duration) {
        let former = self.former;
        self.nodes.pass_while(duration, |from, to, _| from != former && to != former);
    }

    fn send(&mut self, line: &str) {
        let client = self.client;
        let host = self.nodes.host(self.former);
        host.send(client, format!("{line}\r\n").as_bytes());
        host.settle();
    }

    /// What the cut off client is told within so long, and what is acknowledged to others meanwhile makes it wrong.
    fn told(&mut self, line: &str, duration: Duration) -> String {
        let successor = self.former % 3 + 1;
        let other = self.nodes.host(successor).connect(0);
        self.nodes.host(successor).send(other, b"SET {foo}2 1\r\n");
        self.nodes.host(successor).settle();
        for _ in 0..200 {
            if self.nodes.host(successor).received(other) == "+OK" {
                self.send(line);
                self.pass(duration);
                let client = self.client;
                return self.nodes.host(self.former).received(client);
            }
            self.pass(Duration::from_millis(20));
        }
        panic!("no other node leads");
    }
}

#[test]
fn keys_of_slots_are_those_that_have_been_acknowledged() {
    for line in
        ["CLUSTER COUNTKEYSINSLOT 12182", "CLUSTER GETKEYSINSLOT 12182 9", "CLUSTER SLOT-STATS SLOTSRANGE 12182 12182"]
    {
        let mut apart = Apart::new();
        apart.send(line);
        apart.pass(Duration::from_millis(20));
        let client = apart.client;
        let former = apart.former;
        assert!(apart.nodes.host(former).received(client).contains('1'), "{line}: under a lease it is answered");
        let told = apart.told(line, Duration::from_secs(7));
        assert!(told.starts_with("-CLUSTERDOWN") || told == "*0", "{line}: {told}");
    }
}

/// The leader is heard, and what it logs does not arrive: the replica here never gets to where the leader is.
#[test]
fn a_question_to_a_replica_that_does_not_catch_up_has_an_end() {
    const RAFT: u8 = 1;
    let mut nodes = Nodes::new();
    let leader = nodes.leader().expect("elected");
    let follower = leader % 3 + 1;
    let writer = nodes.host(leader).connect(0);
    assert_eq!(nodes.run(leader, writer, "SET foo 1"), "+OK");
    nodes.pass(Duration::from_secs(1));
    let is_held_back = |_: usize, to: usize, kind: u8| to != follower || kind != RAFT;
    nodes.host(leader).send(writer, b"SET {foo}2 1\r\n");
    nodes.host(leader).settle();
    nodes.pass_while(Duration::from_millis(50), is_held_back);
    assert_eq!(nodes.host(leader).received(writer), "+OK");
    let lines = [
        "CLUSTER COUNTKEYSINSLOT 12182",
        "CLUSTER GETKEYSINSLOT 12182 9",
        "DEBUG DIGEST",
        "MULTI\r\nCLUSTER COUNTKEYSINSLOT 12182\r\nEXEC",
    ];
    let clients = lines.map(|line| {
        let client = nodes.host(follower).connect(0);
        nodes.host(follower).send(client, format!("{line}\r\nPING\r\n").as_bytes());
        nodes.host(follower).settle();
        (line, client)
    });
    nodes.pass_while(Duration::from_millis(4_500), is_held_back);
    for (line, client) in clients {
        let told = nodes.host(follower).received(client);
        assert!(told.is_empty() || told == "+OK +QUEUED", "{line}: it may catch up yet: {told}");
    }
    nodes.pass_while(Duration::from_millis(1_000), is_held_back);
    for (line, client) in clients {
        let told = nodes.host(follower).received(client);
        assert!(told.contains("-CLUSTERDOWN No quorum of the group answers: group 0 "), "{line}: {told}");
        assert!(told.ends_with(" +PONG"), "{line}: {told}");
    }
    // A replica that does catch up answers.
    for (line, client) in clients {
        nodes.host(follower).send(client, format!("{line}\r\n").as_bytes());
        nodes.host(follower).settle();
    }
    nodes.pass_while(Duration::from_secs(1), is_held_back);
    nodes.pass(Duration::from_secs(4));
    for (line, client) in clients {
        let told = nodes.host(follower).received(client);
        assert!(!told.is_empty() && !told.contains("CLUSTERDOWN"), "{line}: {told}");
    }
}

/// The leader is heard, and there is a quorum: only the disk of this node keeps its replica behind.
#[test]
fn who_asks_a_replica_behind_a_leader_in_reach_is_told_that_and_not_that_there_is_no_quorum() {
    let mut nodes = Nodes::new();
    let leader = nodes.leader().expect("elected");
    let follower = leader % 3 + 1;
    let writer = nodes.host(leader).connect(0);
    let client = nodes.host(follower).connect(0);
    nodes.pass(Duration::from_secs(1));
    nodes.host(follower).holds_disk = true;
    assert_eq!(nodes.run(leader, writer, "SET foo 1"), "+OK");
    nodes.pass(Duration::from_millis(500));
    nodes.host(follower).send(client, b"CLUSTER COUNTKEYSINSLOT 12182\r\n");
    nodes.host(follower).settle();
    nodes.pass(Duration::from_millis(5_500));
    let told = nodes.host(follower).received(client);
    let text = "-TRYAGAIN Group 0 did not answer in time, and nothing was done: it is led by ";
    assert!(told.starts_with(text), "{told}");
    assert!(told.ends_with("which is in reach. The replica of this node has not caught up with it"), "{told}");
}

/// When it is known that nobody can answer, no kind of request waits for its time to pass.
#[test]
fn what_concerns_the_whole_cluster_is_refused_at_once_as_everything_else_is() {
    let mut apart = Apart::new();
    apart.pass(Duration::from_secs(10));
    for line in [
        "SET foo 2",
        "GET foo",
        "MSET foo 1 bar 2",
        "EVAL 'return redis.call(\"get\",KEYS[1])' 1 foo",
        "MULTI\r\nSET foo 3\r\nEXEC",
        "HOLDFAST REMOVE 2",
        "HOLDFAST REBALANCE",
        "CONFIG SET replace-after 600",
        "ACL SETUSER alice on",
        "FUNCTION FLUSH",
        "MULTI\r\nFUNCTION FLUSH\r\nEXEC",
        "BACKUP READ 0123456789abcdef0123456789abcdef 0 0",
        "DBSIZE",
    ] {
        apart.send(line);
        apart.pass(Duration::from_millis(100));
        let (client, former) = (apart.client, apart.former);
        let told = apart.nodes.host(former).received(client);
        assert!(told.contains("-CLUSTERDOWN No quorum of the group answers: group 0 "), "{line}: {told}");
    }
}

#[test]
fn others_are_not_counted_by_who_does_not_know_what_they_hold() {
    let mut apart = Apart::new();
    let told = apart.told("WAIT 2 100", Duration::from_secs(1));
    assert_eq!(told, ":0");
}
