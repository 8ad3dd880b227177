//! Groups that come into being while a node serves.

use std::collections::BTreeSet;

use group::ids::{GroupId, SessionId};
use node::settings::Settings;
use stdx::Duration;

use crate::host::Host;

const TICK: Duration = Duration::from_millis(100);

/// Asks for so many groups, and again until that is taken for possible.
fn ask_for(host: &mut Host, count: u32) {
    let operator = host.connect(0);
    for _ in 0..100 {
        let answer = host.run(operator, &format!("HOLDFAST GROUPS {count}"));
        if answer == "+OK" {
            return;
        }
        assert!(answer.starts_with("-TRYAGAIN"), "{answer}");
        host.pass(TICK);
    }
    panic!("it never was possible");
}

/// Lets time pass until each group holds slots, and nothing is left to move. Looks at what a client sees meanwhile.
fn wait_until_filled(host: &mut Host, count: usize, mut look: impl FnMut(&mut Host)) {
    let operator = host.connect(0);
    for _ in 0..1_000 {
        host.pass(TICK);
        look(host);
        let status = host.run(operator, "HOLDFAST CLUSTER");
        let groups = status.matches("to_give").count();
        if groups == count && status.matches("to_give :0").count() == count && !status.contains("slots $0") {
            return;
        }
    }
    panic!("groups have no slots: {}", host.run(operator, "HOLDFAST CLUSTER"));
}

/// All keys, by one walk.
fn walk(host: &mut Host, client: SessionId) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut cursor = "0".to_owned();
    loop {
        let reply = host.run(client, &format!("SCAN {cursor} COUNT 20"));
        // *2 $1 0 *3 $5 key:1 …
        let words: Vec<&str> = reply.split(' ').collect();
        assert_eq!(words[0], "*2", "{reply}");
        cursor = words[2].to_owned();
        found.extend(words[4..].iter().skip(1).step_by(2).map(|key| (*key).to_owned()));
        if cursor == "0" {
            return found;
        }
    }
}

/// A walk that takes its time.
struct SlowWalk {
    cursor: String,
    found: BTreeSet<String>,
    /// How often it has come to the end.
    ends: usize,
}

impl SlowWalk {
    fn new() -> Self {
        Self { cursor: "0".into(), found: BTreeSet::new(), ends: 0 }
    }

    /// One step. At the end each of so many keys has been found.
    fn step(&mut self, host: &mut Host, client: SessionId, key_count: usize) {
        let reply = host.run(client, &format!("CLUSTERSCAN {} COUNT 7", self.cursor));
        let words: Vec<&str> = reply.split(' ').collect();
        assert_eq!(words[0], "*2", "{reply}");
        self.cursor = words[2].to_owned();
        self.found.extend(words[4..].iter().skip(1).step_by(2).map(|key| (*key).to_owned()));
        if self.cursor == "0" {
            assert_eq!(std::mem::take(&mut self.found).len(), key_count);
            self.ends += 1;
        }
    }
}

#[test]
fn a_node_gets_groups_while_it_serves() {
    for cores in [1, 2, 3] {
        let mut host = Host::new(cores, Settings::default());
        let client = host.connect(usize::from(cores) - 1);
        for key in 0..200 {
            assert_eq!(host.run(client, &format!("SET key:{key} {key}")), "+OK");
        }
        // What was begun before goes on.
        let careful = host.connect(0);
        assert_eq!(host.run(careful, "WATCH key:1 key:2"), "+OK");
        ask_for(&mut host, 5);
        let mut round = 0;
        let mut slow = SlowWalk::new();
        wait_until_filled(&mut host, 5, |host| {
            (0..10).for_each(|_| slow.step(host, client, 200));
            round += 1;
            assert_eq!(host.run(client, "DBSIZE"), ":200");
            assert_eq!(walk(host, client).len(), 200);
            assert_eq!(host.run(client, "MSET key:1 1 key:7 7 key:100 100"), "+OK");
            assert_eq!(host.run(client, &format!("INCRBY key:{} 0", round % 200)), format!(":{}", round % 200));
        });
        assert!(slow.ends > 0, "no walk went through all slots while they moved");
        assert_eq!(host.run(careful, "MULTI"), "+OK");
        assert_eq!(host.run(careful, "SET key:3 3"), "+QUEUED");
        assert_eq!(host.run(careful, "EXEC"), "*-1", "key:1 was set meanwhile");
        for key in 0..200 {
            assert_eq!(host.run(client, &format!("GET key:{key}")), format!("${} {key}", key.to_string().len()));
        }
        assert_eq!(host.run(client, "EVAL \"return redis.call('DBSIZE')\" 0"), ":200");
        assert_eq!(host.run(client, "FLUSHALL"), "+OK");
        assert_eq!(host.run(client, "DBSIZE"), ":0");
    }
}

#[test]
fn a_replica_is_made_when_its_beginning_is_durable() {
    let mut host = Host::new(2, Settings::default());
    let operator = host.connect(0);
    assert!(host.run(operator, "HOLDFAST GROUPS 3").starts_with("-TRYAGAIN"), "it becomes a cluster of one");
    // Leaders tell how their groups are.
    (0..20).for_each(|_| host.pass(TICK));
    host.holds_disk = true;
    host.send(operator, b"HOLDFAST GROUPS 3\r\n");
    host.settle();
    // The entry that founds it is durable, and the beginning of the group waits for the disk.
    host.sync();
    assert_eq!(host.received(operator), "");
    host.settle();
    assert_eq!(host.received(operator), "+OK");
    (0..20).for_each(|_| host.pass(TICK));
    assert!(!host.is_serving(GroupId(2)), "it is led before it is on disk");
    host.holds_disk = false;
    host.pass(TICK);
    assert!(host.is_serving(GroupId(2)));
}

#[test]
fn groups_do_not_go_again_and_there_is_a_bound() {
    let mut host = Host::new(2, Settings::default());
    let operator = host.connect(0);
    for (count, why) in
        [("1", "HOLDFAST MERGE lets one go"), ("0", "there can be 1 to 1024"), ("x", "there can be 1 to 1024")]
    {
        let answer = host.run(operator, &format!("HOLDFAST GROUPS {count}"));
        assert!(answer.starts_with("-ERR") && answer.contains(why), "{answer}");
    }
    assert_eq!(host.run(operator, "HOLDFAST GROUPS 2"), "+OK");
    // With the balancer off they are founded, and get no slots.
    assert_eq!(host.run(operator, "HOLDFAST BALANCE OFF"), "+OK");
    ask_for(&mut host, 3);
    (0..50).for_each(|_| host.pass(TICK));
    assert!(host.is_serving(GroupId(2)));
    let status = host.run(operator, "HOLDFAST CLUSTER");
    assert!(status.contains("slots $0"), "{status}");
    assert_eq!(host.run(operator, "DBSIZE"), ":0");
}
