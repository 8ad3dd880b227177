//! Stories of READONLY: what the replica on a client's own node answers, and what it leaves to the leader.

use group::ids::{GroupId, SessionId};
use node::settings::Settings;
use stdx::Duration;

use crate::cluster::{Nodes, REQUEST};

const RAFT: u8 = 1;
const SOUND: u8 = 41;
const PLACE: u8 = 42;

/// Three nodes at rest, with a client of one that follows.
struct Story {
    nodes: Nodes,
    leader: usize,
    gateway: usize,
    client: SessionId,
}

impl Story {
    fn new() -> Self {
        Self::of(Nodes::new())
    }

    fn of(mut nodes: Nodes) -> Self {
        let leader = nodes.leader().expect("elected");
        let gateway = leader % 3 + 1;
        let writer = nodes.host(leader).connect(0);
        assert_eq!(nodes.run(leader, writer, "SET n 1"), "+OK");
        nodes.pass(Duration::from_secs(1));
        let client = nodes.host(gateway).connect(0);
        Self { nodes, leader, gateway, client }
    }

    fn run(&mut self, line: &str) -> String {
        self.nodes.run(self.gateway, self.client, line)
    }

    /// What the client's node answers without asking anybody; empty if it asks.
    fn here(&mut self, line: &str) -> String {
        self.nodes.host(self.gateway).send(self.client, format!("{line}\r\n").as_bytes());
        self.nodes.host(self.gateway).settle();
        self.nodes.host(self.gateway).received(self.client)
    }

    /// Lets everything pass but what the replica learns of the log.
    fn hold_log(&mut self) {
        let gateway = self.gateway;
        self.nodes.exchange(|_, to, kind| to != gateway || kind != RAFT);
    }

    fn lose_the_others(&mut self) {
        (1..=3)
            .filter(|node| *node != self.gateway)
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|node| self.nodes.kill(node));
    }
}

#[test]
fn a_replica_answers_who_has_said_readonly_and_nobody_else() {
    let mut story = Story::new();
    assert_eq!(story.here("GET n"), "");
    assert_eq!(story.nodes.count(REQUEST), 1, "the leader is asked");
    story.nodes.exchange(|_, _, _| true);
    assert_eq!(story.nodes.host(story.gateway).received(story.client), "$1 1");
    assert_eq!(story.here("READONLY"), "+OK");
    assert_eq!(story.here("GET n"), "$1 1");
    assert_eq!(story.here("STRLEN n"), ":1");
    assert_eq!(story.here("MGET n n"), "*2 $1 1 $1 1");
    assert!(story.here("CLIENT INFO").contains("flags=r "));
    assert!(story.here("INFO stats").contains("replica_reads:3"));
    assert_eq!(story.here("READWRITE"), "+OK");
    assert_eq!(story.here("GET n"), "");
}

#[test]
fn how_old_an_answer_may_be_is_said_or_configured() {
    let mut story = Story::new();
    for wrong in ["READONLY MAXSTALENESS", "READONLY SOON 5", "READONLY MAXSTALENESS 5 6"] {
        assert_eq!(story.here(wrong), "-ERR syntax error");
    }
    for wrong in ["-1", "x"] {
        assert_eq!(
            story.here(&format!("READONLY MAXSTALENESS {wrong}")),
            "-ERR value is not an integer or out of range"
        );
    }
    assert_eq!(story.here("READONLY MAXSTALENESS 86400001"), "+OK", "as much as a day");
    assert_eq!(story.here("READONLY MAXSTALENESS 0"), "+OK");
    assert_eq!(story.here("GET n"), "", "nothing is as young as that");
    story.nodes.exchange(|_, _, _| true);
    assert_eq!(story.nodes.host(story.gateway).received(story.client), "$1 1");

    // Nothing is heard of the leader any more.
    story.lose_the_others();
    let mut patient = Story { client: story.nodes.host(story.gateway).connect(0), ..story };
    assert_eq!(patient.here("READONLY MAXSTALENESS 3000"), "+OK");
    patient.nodes.pass(Duration::from_secs(2));
    assert_eq!(patient.here("GET n"), "$1 1");
    assert!(patient.here("INFO holdfast").contains("standing=leaderless"));
    let mut usual = Story { client: patient.nodes.host(patient.gateway).connect(0), ..patient };
    assert_eq!(usual.here("READONLY"), "+OK");
    assert_eq!(usual.here("GET n"), "", "that is a second unless configured");
}

#[test]
fn without_a_quorum_reads_are_refused_at_once_and_old_ones_with_the_bound() {
    let mut story = Story::new();
    assert_eq!(story.here("READONLY MAXSTALENESS 2500"), "+OK");
    assert_eq!(story.here("GET n"), "$1 1");
    story.lose_the_others();
    story.nodes.pass(Duration::from_secs(2));
    assert_eq!(story.here("GET n"), "$1 1", "it is not older than that");
    story.nodes.pass(Duration::from_secs(1));
    assert_eq!(story.here("GET n"), "", "a leader may be found yet");
    story.nodes.pass(Duration::from_secs(6));
    let refusal = "-CLUSTERDOWN No quorum of the group answers, and this node's replica may be older than the 2500 ms that \
                   READONLY allows here";
    assert_eq!(story.nodes.host(story.gateway).received(story.client), refusal);
    assert_eq!(story.here("GET n"), refusal, "at once");
    let strict = story.nodes.host(story.gateway).connect(0);
    let mut strict = Story { client: strict, ..story };
    let refusal = "-CLUSTERDOWN No quorum of the group answers: group 0 has had no leader for ";
    for line in ["GET n", "SET n 2", "MGET n m o p", "DBSIZE", "WATCH n", "EVAL \"return 1\" 1 n", "BLPOP l m n 0"] {
        let told = strict.here(line);
        assert!(told.starts_with(refusal), "{line}: {told}");
    }
    for line in ["GET n", "INCR n", "MSET n 1 m 2 o 3", "EVAL \"return 1\" 0"] {
        let multi = format!("MULTI\r\n{line}\r\nEXEC\r\nPING");
        let told = strict.here(&multi);
        assert!(told.starts_with(&format!("+OK +QUEUED {refusal}")) && told.ends_with(" +PONG"), "{line}: {told}");
    }
    assert_eq!(strict.here("READONLY MAXSTALENESS 60000"), "+OK");
    assert_eq!(strict.here("GET n"), "$1 1", "that is old enough");
}

/// What no replica answers is not refused for the age of one, whether it has waited for a leader or not.
#[test]
fn a_refusal_names_the_bound_only_where_a_replica_may_answer() {
    let with_bound =
        "-CLUSTERDOWN No quorum of the group answers, and this node's replica may be older than the 500 ms";
    let without = "-CLUSTERDOWN No quorum of the group answers: group 0 has had no leader for ";
    let mut story = Story::new();
    story.lose_the_others();
    story.nodes.pass(Duration::from_secs(2));
    let lines = ["GET n", "BLPOP n 0", "XREAD BLOCK 0 STREAMS n $", "SCAN 0", "SET n 2", "EVAL_RO \"return 1\" 1 n"];
    for (bound, near) in [("READONLY MAXSTALENESS 500", with_bound), ("READONLY MAXSTALENESS 0", without)] {
        let mut clients = lines.map(|line| (line, story.nodes.host(story.gateway).connect(0)));
        for (line, client) in &mut clients {
            story.client = *client;
            assert_eq!(story.here(bound), "+OK");
            assert_eq!(story.here(line), "", "{line}: a leader may be found yet");
        }
        story.nodes.pass(Duration::from_secs(6));
        for (line, client) in clients {
            story.client = client;
            let expected = if line == "GET n" { near } else { without };
            let told = story.nodes.host(story.gateway).received(client);
            assert!(told.starts_with(expected), "{bound}, {line}, after a while: {told}");
            let told = story.here(line);
            assert!(told.starts_with(expected), "{bound}, {line}, at once: {told}");
        }
        // Another one has been there meanwhile.
        story = Story::new();
        story.lose_the_others();
        story.nodes.pass(Duration::from_secs(2));
    }
}

#[test]
fn a_client_sees_its_own_writes_and_never_less_than_it_has_seen() {
    let mut story = Story::new();
    assert_eq!(story.here("READONLY"), "+OK");
    assert_eq!(story.here("SET n 2"), "");
    story.hold_log();
    assert_eq!(story.nodes.host(story.gateway).received(story.client), "+OK");
    assert_eq!(story.here("GET n"), "", "the replica does not know of it yet");
    story.hold_log();
    assert_eq!(story.nodes.host(story.gateway).received(story.client), "$1 2");
    let other = Story { client: story.nodes.host(story.gateway).connect(0), ..story };
    let mut other = other;
    // A client that has seen the newer value by another way must not see the older one, no matter who wrote it.
    assert_eq!(other.here("GET n"), "");
    other.hold_log();
    assert_eq!(other.nodes.host(other.gateway).received(other.client), "$1 2");
    assert_eq!(other.here("READONLY"), "+OK");
    assert_eq!(other.here("GET n"), "");
    other.nodes.exchange(|_, _, _| true);
    assert_eq!(other.nodes.host(other.gateway).received(other.client), "$1 2");
    assert_eq!(other.here("GET n"), "$1 2", "it has caught up");
}

#[test]
fn a_pipeline_is_answered_in_its_order_no_matter_who_answers() {
    let mut story = Story::new();
    assert_eq!(story.here("READONLY"), "+OK");
    assert_eq!(
        story.run("GET n\r\nINCR n\r\nGET n\r\nGET n\r\nEVAL_RO \"return redis.call('GET',KEYS[1])\" 1 n\r\nGET n"),
        "$1 1 :2 $1 2 $1 2 $1 2 $1 2"
    );
    assert_eq!(story.run("MULTI\r\nGET n\r\nEXEC\r\nINCR n\r\nREADWRITE\r\nGET n"), "+OK +QUEUED *1 $1 2 :3 +OK $1 3");
}

#[test]
fn what_is_more_than_a_read_of_one_group_is_the_leaders() {
    let mut story = Story::new();
    assert_eq!(story.here("READONLY"), "+OK");
    for line in ["EVAL_RO \"return 1\" 1 n", "MULTI\r\nGET n\r\nEXEC", "WATCH n"] {
        let before = story.here("GET n");
        assert_eq!(before, "$1 1");
        assert!(!story.here(line).contains('1'), "{line} is answered by the leader");
        story.nodes.exchange(|_, _, _| true);
        story.nodes.host(story.gateway).received(story.client);
        story.run("PING");
    }
    assert_eq!(story.here("GET n"), "", "what is read under a watch is as new as the watch");
    story.nodes.exchange(|_, _, _| true);
    assert_eq!(story.nodes.host(story.gateway).received(story.client), "$1 1");
    story.run("UNWATCH");
    story.nodes.pass(Duration::from_millis(200));
    assert_eq!(story.here("GET n"), "$1 1");
}

#[test]
fn a_key_expires_at_a_replica_by_the_leaders_clock() {
    let mut story = Story::new();
    assert_eq!(story.run("SET brief 1 PX 400"), "+OK");
    story.run("READONLY");
    story.nodes.pass(Duration::from_millis(200));
    assert_eq!(story.here("GET brief"), "$1 1");
    story.nodes.pass(Duration::from_millis(600));
    assert_eq!(story.here("GET brief"), "$-1");
    assert!(story.here("GET n").contains('1'));
}

#[test]
fn a_replica_is_as_old_as_its_question_and_not_as_the_answer() {
    let mut story = Story::new();
    assert_eq!(story.here("READONLY MAXSTALENESS 500"), "+OK");
    assert_eq!(story.here("GET n"), "$1 1");
    // A question is asked, and its answer is under way for longer than the bound; later questions wait.
    story.nodes.host(story.gateway).pass(Duration::from_millis(100));
    story.nodes.exchange(|_, _, kind| kind == SOUND);
    for _ in 0..12 {
        story.nodes.host(story.gateway).pass(Duration::from_millis(50));
        story.nodes.exchange(|_, _, _| false);
    }
    story.nodes.exchange(|_, _, kind| kind == PLACE);
    assert_eq!(story.here("GET n"), "");
    story.nodes.exchange(|_, _, _| true);
    assert_eq!(story.nodes.host(story.gateway).received(story.client), "$1 1");
    assert_eq!(story.here("GET n"), "$1 1", "the others are answered by now");
}

#[test]
fn a_client_made_for_redis_cluster_reads_from_a_replica() {
    let mut settings = Settings::default();
    settings.set("cluster-redirect", "yes").expect("a parameter of ours");
    let mut nodes = Nodes::with(&settings);
    let leader = nodes.leader().expect("elected");
    nodes.pass(Duration::from_secs(1));
    let writer = nodes.host(leader).connect(0);
    assert_eq!(nodes.run(leader, writer, "SET n 1"), "+OK");
    nodes.pass(Duration::from_secs(1));
    let gateway = leader % 3 + 1;
    let client = nodes.host(gateway).connect(0);
    let mut story = Story { nodes, leader, gateway, client };
    assert!(story.here("GET n").starts_with("-MOVED "));
    assert_eq!(story.here("READONLY"), "+OK");
    assert_eq!(story.here("GET n"), "$1 1");
    assert!(story.here("SET n 2").starts_with("-MOVED "));
    assert_eq!(story.here("READWRITE"), "+OK");
    assert!(story.here("GET n").starts_with("-MOVED "));
    assert!(!story.nodes.host(story.gateway).is_serving(GroupId(0)) && story.leader != story.gateway);
}

#[test]
fn no_leader_answers_less_than_a_replica_has_answered() {
    let mut story = Story::new();
    let leader = story.leader;
    assert_eq!(story.here("READONLY MAXSTALENESS 60000"), "+OK");
    // The leader's disk is slower than those of a quorum: the others apply what it does not hold itself yet.
    story.nodes.host(leader).holds_disk = true;
    let writer = story.nodes.host(leader).connect(0);
    story.nodes.host(leader).send(writer, b"SET n 2\r\n");
    story.nodes.pass(Duration::from_millis(100));
    assert_eq!(story.nodes.host(leader).received(writer), "");
    assert_eq!(story.here("GET n"), "$1 2");
    assert_eq!(story.run("READWRITE\r\nGET n"), "+OK", "the leader does not know it yet");
    story.nodes.host(leader).holds_disk = false;
    story.nodes.host(leader).sync();
    story.nodes.pass(Duration::from_millis(100));
    assert_eq!(story.nodes.host(leader).received(writer), "+OK");
    assert_eq!(story.nodes.host(story.gateway).received(story.client), "$1 2");
}
