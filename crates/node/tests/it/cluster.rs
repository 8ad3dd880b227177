//! Stories of three nodes: what clients see of changes of leader.

use std::collections::BTreeSet;

use group::group_status::GroupStatus;
use group::ids::{GroupId, NodeId, SessionId};
use node::roster::{Member, Roster};
use node::settings::Settings;
use node::slots::SlotMap;
use stdx::slot::Slot;
use stdx::{Duration, leb128};

use crate::host::Host;
use crate::split::keys_of;

/// Messages between nodes begin with their kind.
pub(crate) const REQUEST: u8 = 2;
pub(crate) const ANSWER: u8 = 3;
const REFUSED: u8 = 11;
const ANNOUNCE: u8 = 8;
const ASK: u8 = 15;
const LIFE: u8 = 16;

/// A moment stands behind an answer.
pub(crate) const STAMP_BYTES: usize = 8;

/// Where in an answer stands what is said to the request that it names.
pub(crate) fn answer_at(bytes: &[u8]) -> usize {
    let mut rest = &bytes[1..];
    for _ in ["boot", "group", "number"] {
        leb128::take(&mut rest).expect("a node has written it");
    }
    bytes.len() - rest.len()
}

/// Three nodes, and what is under way between them.
pub(crate) struct Nodes {
    hosts: Vec<Option<Host>>,
    under_way: Vec<(NodeId, NodeId, GroupId, Vec<u8>)>,
    /// A leader that hands over is not heard.
    holds_hand_over: bool,
    /// What has been said since somebody listens.
    overheard: Option<Vec<Vec<u8>>>,
}

impl Nodes {
    /// A cluster in which every group has a leader.
    pub(crate) fn new() -> Self {
        Self::with(&Settings::default())
    }

    /// The same with these settings.
    pub(crate) fn with(settings: &Settings) -> Self {
        Self::of_cores(1, settings)
    }

    /// The same with so many cores each, and as many groups.
    pub(crate) fn of_cores(core_count: u16, settings: &Settings) -> Self {
        let host = |node| Some(Host::of_nodes(core_count, settings.clone(), node, &[1, 2, 3]));
        let mut this =
            Self { hosts: (1..=3).map(host).collect(), under_way: Vec::new(), holds_hand_over: false, overheard: None };
        this.elect();
        this
    }

    /// Raises the level to the next one.
    pub(crate) fn upgrade(&mut self) {
        for (node, other) in [(1, 2), (1, 3), (2, 1), (2, 3), (3, 1), (3, 2)] {
            self.host(node).hear_levels_of(other);
        }
        self.pass(Duration::from_secs(5));
        let client = self.host(1).connect(0);
        let heard = self.run(1, client, "HOLDFAST UPGRADE");
        self.pass(Duration::from_secs(1));
        assert_eq!(heard + &self.host(1).received(client), "+OK");
    }

    pub(crate) fn host(&mut self, node: usize) -> &mut Host {
        self.hosts[node - 1].as_mut().expect("it runs")
    }

    /// The node that leads the first group, if one serves.
    pub(crate) fn leader(&self) -> Option<usize> {
        self.leader_of(GroupId(0))
    }

    pub(crate) fn leader_of(&self, group: GroupId) -> Option<usize> {
        (1..=3).find(|node| self.hosts[node - 1].as_ref().is_some_and(|host| host.is_serving(group)))
    }

    /// Lets time pass until one leads.
    pub(crate) fn elect(&mut self) -> usize {
        for _ in 0..100 {
            if let Some(leader) = self.leader() {
                self.pass(Duration::from_millis(200)); // the others hear of it
                return leader;
            }
            self.pass(Duration::from_millis(50));
        }
        panic!("nobody leads after five seconds");
    }

    pub(crate) fn pass(&mut self, duration: Duration) {
        self.pass_while(duration, |_, _, _| true);
    }

    /// Time passes, in which only what `passes` is delivered; the rest stays under way.
    pub(crate) fn pass_while(&mut self, duration: Duration, mut passes: impl FnMut(usize, usize, u8) -> bool) {
        let step = Duration::from_millis(50);
        for _ in 0..duration.as_millis().div_ceil(50) {
            self.hosts.iter_mut().flatten().for_each(|host| host.pass(step));
            self.exchange(&mut passes);
        }
    }

    /// Time passes, in which two nodes do not hear each other, and nothing is lost on the way.
    pub(crate) fn pass_apart(&mut self, duration: Duration, (one, other): (usize, usize)) {
        self.pass_while(duration, |from, to, _| (from, to) != (one, other) && (from, to) != (other, one));
    }

    /// Gathers what the nodes have sent.
    fn gather(&mut self) {
        for (from, host) in (1..).map(NodeId).zip(&mut self.hosts) {
            let Some(host) = host else { continue };
            if let Some(overheard) = &mut self.overheard {
                overheard.extend(host.sent.iter().map(|(.., bytes)| bytes.clone()));
            }
            let sent = host.sent.drain(..);
            self.under_way.extend(sent.map(|(to, group, bytes)| (from, to, group, bytes)));
        }
    }

    /// Delivers what passes, again and again until nothing is left that does; the rest stays under way.
    pub(crate) fn exchange(&mut self, mut passes: impl FnMut(usize, usize, u8) -> bool) {
        let holds_hand_over = self.holds_hand_over;
        self.exchange_where(|(from, to, _, bytes)| {
            !(holds_hand_over && is_hand_over(bytes)) && passes(from.0 as usize, to.0 as usize, bytes[0])
        });
    }

    fn exchange_where(&mut self, mut passes: impl FnMut(&(NodeId, NodeId, GroupId, Vec<u8>)) -> bool) {
        for _ in 0..1_000 {
            self.gather();
            let (now, rest) = std::mem::take(&mut self.under_way).into_iter().partition(&mut passes);
            self.under_way = rest;
            let now: Vec<_> = now;
            if now.is_empty() {
                return;
            }
            for (from, to, group, bytes) in now {
                if let Some(host) = &mut self.hosts[to.0 as usize - 1] {
                    host.hear(from, group, &bytes);
                }
            }
            self.hosts.iter_mut().flatten().for_each(Host::settle);
        }
        panic!("the nodes never stop talking");
    }

    /// Answers on their way that end in this reply say that a group was looked at, and not that it has committed. How
    /// many did say that.
    fn forge_answers(&mut self, reply: &[u8]) -> usize {
        const OBSERVED: u8 = 1;
        const COMMITTED: u8 = 2;
        let mut count = 0;
        for (.., bytes) in self.under_way.iter_mut().filter(|(.., bytes)| bytes[0] == ANSWER) {
            let end = bytes.len() - STAMP_BYTES;
            if bytes[..end].ends_with(reply) {
                let proof = &mut bytes[end - reply.len() - 1];
                assert_eq!(std::mem::replace(proof, OBSERVED), COMMITTED);
                count += 1;
            }
        }
        count
    }

    /// Turns the byte in front of a value, in what is under way. How often it was found.
    fn damage_value(&mut self, value: &[u8]) -> usize {
        let mut count = 0;
        for (.., bytes) in self.under_way.iter_mut().filter(|(.., bytes)| bytes[0] == ANSWER) {
            if let Some(at) = bytes.windows(value.len()).position(|window| window == value) {
                bytes[at - 1] ^= 1;
                count += 1;
            }
        }
        count
    }

    /// Delivers all, and of the answers that nodes give each other one with another end: that which comes when so many
    /// have been delivered as they are. Whether it did come.
    pub(crate) fn exchange_but_one_answer(&mut self, mut passed: usize, end: &[u8]) -> bool {
        let mut is_forged = false;
        for _ in 0..1_000 {
            self.gather();
            if self.under_way.is_empty() {
                return is_forged;
            }
            for (from, to, group, mut bytes) in std::mem::take(&mut self.under_way) {
                if bytes[0] == ANSWER && !is_forged {
                    if passed == 0 {
                        let (start, stamp_at) = (answer_at(&bytes), bytes.len() - STAMP_BYTES);
                        bytes.splice(start..stamp_at, end.iter().copied());
                        is_forged = true;
                    }
                    passed = passed.saturating_sub(1);
                }
                self.host(to.0 as usize).hear(from, group, &bytes);
            }
            self.hosts.iter_mut().flatten().for_each(Host::settle);
        }
        panic!("the nodes never stop talking");
    }

    /// Copies all that the nodes say to each other meanwhile.
    pub(crate) fn overhear(&mut self, copies: &mut Vec<Vec<u8>>, story: impl FnOnce(&mut Self)) {
        self.overheard = Some(Vec::new());
        story(self);
        copies.extend(self.overheard.take().into_iter().flatten());
    }

    /// A node is gone, with all that it had under way.
    pub(crate) fn kill(&mut self, node: usize) {
        self.gather();
        self.hosts[node - 1] = None;
        self.under_way.retain(|(from, ..)| from.0 as usize != node);
    }

    pub(crate) fn count(&mut self, kind: u8) -> usize {
        self.gather();
        self.under_way.iter().filter(|(.., bytes)| bytes[0] == kind).count()
    }

    pub(crate) fn run(&mut self, node: usize, session: SessionId, line: &str) -> String {
        self.host(node).send(session, format!("{line}\r\n").as_bytes());
        self.host(node).settle();
        self.exchange(|_, _, _| true);
        self.host(node).received(session)
    }
}

/// A message of the consensus, behind its group, by which a leader hands over.
fn is_hand_over(bytes: &[u8]) -> bool {
    bytes[0] == 1 && bytes[5] == 12
}

#[test]
fn a_read_does_not_overtake_a_write_of_its_pipeline_that_comes_back_from_a_leader_that_hands_over() {
    let mut nodes = Nodes::new();
    let leader = nodes.leader().expect("elected");
    let (successor, gateway) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    let client = nodes.host(gateway).connect(0);
    assert_eq!(nodes.run(gateway, client, "SET n 1"), "+OK");
    nodes.pass(Duration::from_secs(6));
    nodes.holds_hand_over = true;
    assert_eq!(nodes.run(gateway, client, &format!("HOLDFAST PREFER 0 {successor}")), "+OK");
    for _ in 0..100 {
        if nodes.under_way.iter().any(|(.., bytes)| is_hand_over(bytes)) {
            break;
        }
        nodes.pass(Duration::from_millis(50));
    }
    assert!(nodes.under_way.iter().any(|(.., bytes)| is_hand_over(bytes)), "it hands over");
    for line in ["SET n 2\r\n", "GET n\r\n"] {
        nodes.host(gateway).send(client, line.as_bytes());
        nodes.host(gateway).settle();
        nodes.exchange(|_, _, kind| kind != REFUSED);
    }
    assert_eq!(nodes.host(gateway).received(client), "");
    nodes.holds_hand_over = false;
    nodes.exchange(|_, _, _| true);
    nodes.pass(Duration::from_secs(3));
    assert_eq!(nodes.leader(), Some(successor));
    assert_eq!(nodes.host(gateway).received(client), "+OK $1 2");
}

#[test]
fn a_read_sees_no_change_that_its_pipeline_asks_for_later_although_the_leader_dies_between_them() {
    for pipeline in ["GET n\r\nINCR n\r\n", "GET n\r\nMULTI\r\nINCR n\r\nEXEC\r\n", "INCR n\r\nGET n\r\nINCR n\r\n"] {
        let mut nodes = Nodes::new();
        let leader = nodes.leader().expect("elected");
        let gateway = leader % 3 + 1;
        let client = nodes.host(gateway).connect(0);
        assert_eq!(nodes.run(gateway, client, "INCR n"), ":1");
        nodes.host(gateway).send(client, pipeline.as_bytes());
        nodes.host(gateway).settle();
        // Everything is carried out and committed, and no answer ever comes.
        nodes.exchange(|from, to, kind| kind != ANSWER || (from, to) != (leader, gateway));
        assert_eq!(nodes.host(gateway).received(client), "");
        nodes.kill(leader);
        nodes.elect();
        nodes.pass(Duration::from_millis(500));
        let expected = match pipeline {
            "GET n\r\nINCR n\r\n" => "$1 1 :2",
            "INCR n\r\nGET n\r\nINCR n\r\n" => ":2 $1 2 :3",
            _ => "$1 1 +OK +QUEUED *1 :2",
        };
        assert_eq!(nodes.host(gateway).received(client), expected, "{pipeline:?}");
    }
}

#[test]
fn a_node_that_has_only_looked_cannot_acknowledge_a_write() {
    let mut nodes = Nodes::new();
    let leader = nodes.leader().expect("elected");
    let gateway = 1 + leader % 3;
    let client = nodes.host(gateway).connect(0);
    for (request, reply) in [("SET k 1", "+OK\r\n"), ("INCR k", ":2\r\n"), ("MULTI\r\nINCR k\r\nEXEC", "*1\r\n:3\r\n")]
    {
        nodes.host(gateway).send(client, format!("{request}\r\n").as_bytes());
        nodes.host(gateway).settle();
        nodes.exchange(|_, _, kind| kind != ANSWER);
        for _ in 0..100 {
            if nodes.count(ANSWER) > 0 {
                break;
            }
            nodes.pass_while(Duration::from_millis(50), |_, _, kind| kind != ANSWER);
        }
        assert_eq!(nodes.forge_answers(reply.as_bytes()), 1, "{request}");
        nodes.exchange(|_, _, _| true);
        let said = nodes.host(gateway).received_bytes(client);
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains("-CLUSTERDOWN") && said.contains("unknown"), "{request}: {said}");
        assert!(!said.ends_with(reply), "{request}: {said}");
    }
    assert_eq!(nodes.run(gateway, client, "GET k"), "$1 3", "it was done, and who says what it saw is heard");
}

/// A transaction over groups is given values of which one cannot be read. There is a quorum, and it answered.
#[test]
fn who_is_sent_a_value_that_cannot_be_read_is_told_that() {
    let mut nodes = Nodes::of_cores(2, &Settings::default());
    nodes.pass(Duration::from_secs(5));
    let mut damaged_count = 0;
    for gateway in 1..=3 {
        let client = nodes.host(gateway).connect(0);
        assert_eq!(nodes.run(gateway, client, "MSET foo precious bar precious"), "+OK");
        nodes.host(gateway).send(client, b"MULTI\r\nAPPEND foo x\r\nAPPEND bar x\r\nGET foo\r\nEXEC\r\n");
        nodes.host(gateway).settle();
        nodes.exchange(|_, _, kind| kind != ANSWER);
        let damaged = nodes.damage_value(b"precious");
        damaged_count += damaged;
        nodes.exchange(|_, _, _| true);
        nodes.pass(Duration::from_secs(1));
        let told = nodes.host(gateway).received(client);
        let is_told = told.contains("-TRYAGAIN Group ")
            && told.ends_with(" answered with a value that cannot be read, and nothing was done");
        assert_eq!(is_told, damaged > 0, "{told}");
        assert_eq!(nodes.run(gateway, client, "GET bar"), if damaged > 0 { "$8 precious" } else { "$9 preciousx" });
    }
    assert!(damaged_count > 0, "a value travelled");
}

#[test]
fn a_change_waits_for_a_read_that_is_under_way() {
    let mut nodes = Nodes::new();
    let leader = nodes.leader().expect("elected");
    let gateway = leader % 3 + 1;
    let client = nodes.host(gateway).connect(0);
    assert_eq!(nodes.run(gateway, client, "SET n 1"), "+OK");
    let say = |nodes: &mut Nodes, line: &str| {
        nodes.host(gateway).send(client, line.as_bytes());
        nodes.host(gateway).settle();
    };
    say(&mut nodes, "GET n\r\n");
    assert_eq!(nodes.count(REQUEST), 1);
    say(&mut nodes, "INCR n\r\nGET n\r\n");
    assert_eq!(nodes.count(REQUEST), 1, "the read has no answer yet");
    nodes.exchange(|_, _, _| true);
    assert_eq!(nodes.host(gateway).received(client), "$1 1 :2 $1 2");
    // Reads wait for nothing.
    say(&mut nodes, "GET n\r\n");
    say(&mut nodes, "GET n\r\nGET n\r\n");
    assert_eq!(nodes.count(REQUEST), 3);
}

#[test]
fn a_checkpoint_for_which_there_is_no_room_is_put_off_until_there_is() {
    let founder = Host::new(1, Settings::default());
    let mut newcomer = Host::unloaded_with_seeds(1, Settings::default(), 2, &[1]);
    newcomer.load(2, &[]);
    newcomer.is_full = true;
    let mut nodes = Nodes {
        hosts: vec![Some(founder), Some(newcomer)],
        under_way: Vec::new(),
        holds_hand_over: false,
        overheard: None,
    };
    let client = nodes.host(1).connect(0);
    assert_eq!(nodes.run(1, client, "SET n 1"), "+OK");
    nodes.pass(Duration::from_secs(20));
    let told = |nodes: &mut Nodes, what: &str| nodes.host(2).log.iter().filter(|line| line.contains(what)).count();
    let refused = told(&mut nodes, "cannot keep the leader's checkpoint for now: no room");
    assert!((2..=10).contains(&refused), "refused {refused} times");
    assert_eq!(told(&mut nodes, "has the checkpoint"), 0);
    assert_eq!(nodes.run(1, client, "INCR n"), ":2", "the others go on");

    nodes.host(2).is_full = false;
    nodes.pass(Duration::from_secs(20));
    assert_eq!(told(&mut nodes, "has the checkpoint"), 1, "{:?}", nodes.host(2).log);
    let client = nodes.host(2).connect(0);
    assert_eq!(nodes.run(2, client, "GET n"), "$1 2");
}

/// A checkpoint of a group is on its way to a node when the group goes. The node knows that before the rest comes, and
/// takes no more: it would hold the group as it was before its end.
#[test]
fn a_checkpoint_that_is_under_way_when_its_group_goes_is_not_taken() {
    const CHUNK: u8 = 7;
    const GROUP: GroupId = GroupId(1);
    let founder = Host::new(2, Settings::default());
    let mut newcomer = Host::unloaded_with_seeds(2, Settings::default(), 2, &[1]);
    newcomer.load(2, &[]);
    let hosts = vec![Some(founder), Some(newcomer)];
    let mut nodes = Nodes { hosts, under_way: Vec::new(), holds_hand_over: false, overheard: None };
    let operator = nodes.host(1).connect(0);
    let pass = |nodes: &mut Nodes, holds: bool| {
        nodes.hosts.iter_mut().flatten().for_each(|host| host.pass(Duration::from_millis(100)));
        nodes.exchange_where(|(_, _, group, bytes)| !(holds && *group == GROUP && bytes[0] == CHUNK));
    };
    let ask = |nodes: &mut Nodes, line: &str| {
        nodes.host(1).send(operator, format!("{line}\r\n").as_bytes());
        (0..5).for_each(|_| pass(nodes, true));
        nodes.host(1).received(operator)
    };
    let is_told = |nodes: &mut Nodes, what: &str| nodes.host(2).log.iter().any(|line| line.starts_with(what));
    let key = &keys_of(8_192, 16_383, 1)[0];
    assert_eq!(ask(&mut nodes, "HOLDFAST BALANCE OFF"), "+OK");
    assert_eq!(ask(&mut nodes, &format!("SET {key} before")), "+OK");
    let comes = |nodes: &mut Nodes, is_there: &dyn Fn(&mut Nodes) -> bool| {
        let has_come = (0..300).any(|_| {
            pass(nodes, true);
            is_there(nodes)
        });
        assert!(has_come, "{:?}", nodes.host(2).log);
    };
    comes(&mut nodes, &|nodes| {
        is_told(nodes, "group 0: has the checkpoint") && is_told(nodes, "group 1: takes the checkpoint")
    });
    // It is refused for as long as something is in the way.
    comes(&mut nodes, &|nodes| ask(nodes, "HOLDFAST MERGE 1 0") == "+OK");
    comes(&mut nodes, &|nodes| nodes.host(2).roster().is_gone(GROUP));
    assert!(nodes.count(CHUNK) > 0, "nothing is under way any more");

    (0..50).for_each(|_| pass(&mut nodes, false));
    assert!(!is_told(&mut nodes, "group 1: has the checkpoint"), "{:?}", nodes.host(2).log);
    assert!(nodes.host(2).holds_nothing_of(GROUP));
    assert_eq!(ask(&mut nodes, &format!("GET {key}")), "$6 before");
}

#[test]
fn a_newcomer_does_not_wait_for_a_backup_that_nobody_reads() {
    let founder = Host::new(1, Settings::default());
    let mut nodes =
        Nodes { hosts: vec![Some(founder)], under_way: Vec::new(), holds_hand_over: false, overheard: None };
    let client = nodes.host(1).connect(0);
    assert_eq!(nodes.run(1, client, "SET n 1"), "+OK");
    let begun = nodes.run(1, client, "BACKUP BEGIN 000102030405060708090a0b0c0d0e0f");
    assert!(begun.starts_with('*'), "{begun}");
    let mut newcomer = Host::unloaded_with_seeds(1, Settings::default(), 2, &[1]);
    newcomer.load(2, &[]);
    nodes.hosts.push(Some(newcomer));
    nodes.pass(Duration::from_secs(10));
    assert!(nodes.host(1).log.iter().any(|line| line.contains("a backup that nobody reads any more is ended")));
    let client = nodes.host(2).connect(0);
    assert_eq!(nodes.run(2, client, "GET n"), "$1 1");
}

#[test]
fn a_node_that_has_not_read_its_disk_does_not_answer_for_a_group() {
    let mut nodes = Nodes::new();
    let leader = nodes.leader().expect("elected");
    let gateway = leader % 3 + 1;
    let client = nodes.host(gateway).connect(0);
    nodes.host(gateway).send(client, b"INCR n\r\n");
    nodes.host(gateway).settle();
    nodes.gather();
    let (from, _, group, request) =
        nodes.under_way.iter().find(|(.., bytes)| bytes[0] == REQUEST).expect("it was sent").clone();
    let mut restarted = Host::unloaded(1, Settings::default(), leader as u64);
    restarted.hear(from, group, &request);
    restarted.settle();
    let kinds: Vec<u8> = restarted.sent.iter().map(|(.., bytes)| bytes[0]).collect();
    assert_eq!(kinds, [REFUSED], "whether the request was carried out it does not know");
}

#[test]
fn names_of_encodings_digits_and_words_are_those_of_the_level() {
    let mut nodes = Nodes::new();
    let client = nodes.host(2).connect(0);
    let say = |nodes: &mut Nodes, line: &str| {
        let heard = nodes.run(2, client, line);
        nodes.pass(Duration::from_millis(100));
        heard + &nodes.host(2).received(client)
    };
    assert_eq!(say(&mut nodes, "CONFIG SET set-max-listpack-entries 2"), "+OK");
    for line in ["SADD s a b", "RPUSH l a", "ZADD z 0.1 a"] {
        assert_eq!(say(&mut nodes, line)[..1], *":", "{line}");
    }
    assert_eq!(say(&mut nodes, "OBJECT ENCODING s"), "$9 hashtable");
    assert_eq!(say(&mut nodes, "OBJECT ENCODING l"), "$9 quicklist");
    assert_eq!(say(&mut nodes, "ZSCORE z a"), "$19 0.10000000000000001");
    assert_eq!(say(&mut nodes, "ZINCRBY z 0 a"), "$19 0.10000000000000001");
    let refused = "-ERR wrong number of arguments for 'hsetex' command";
    assert_eq!(say(&mut nodes, "HSETEX h FIELDS 1 a 1 KEEPTTL"), refused);
    // A script is told what the log will do.
    let script = "EVAL 'return {redis.pcall(\"HSETEX\",KEYS[1],\"FIELDS\",\"1\",\"a\",\"1\",\"KEEPTTL\").err, \
                  redis.call(\"ZINCRBY\",KEYS[2],\"0\",\"a\")}' 2 {z}h z";
    let heard = say(&mut nodes, script);
    assert!(heard.contains("wrong number of arguments") && heard.ends_with(" $19 0.10000000000000001"), "{heard}");
    assert_eq!(say(&mut nodes, "EXISTS {z}h"), ":0");
    nodes.upgrade();
    assert_eq!(say(&mut nodes, "OBJECT ENCODING s"), "$8 listpack");
    assert_eq!(say(&mut nodes, "OBJECT ENCODING l"), "$8 listpack");
    assert_eq!(say(&mut nodes, "ZSCORE z a"), "$3 0.1");
    assert_eq!(say(&mut nodes, "ZINCRBY z 0 a"), "$3 0.1");
    assert_eq!(say(&mut nodes, "HSETEX h FIELDS 1 a 1 KEEPTTL"), ":1");
    // What was configured before counts now.
    assert_eq!(say(&mut nodes, "SADD s c"), ":1");
    assert_eq!(say(&mut nodes, "OBJECT ENCODING s"), "$9 hashtable");
}

#[test]
fn a_parameter_of_the_cluster_is_set_for_all_nodes_and_one_of_a_node_for_that_node() {
    let mut nodes = Nodes::new();
    let leader = nodes.leader().expect("elected");
    let say = |nodes: &mut Nodes, node: usize, session: SessionId, line: &str| {
        let heard = nodes.run(node, session, line);
        nodes.pass(Duration::from_millis(100));
        heard + &nodes.host(node).received(session)
    };
    let clients = [1, 2, 3].map(|node| nodes.host(node).connect(0));
    for (turn, (node, client)) in (1..).zip(clients).enumerate() {
        let limit = turn + 3;
        let line =
            format!("CONFIG SET hash-max-ziplist-entries {limit} maxmemory {node}0000000 slowlog-max-len {node}");
        assert_eq!(say(&mut nodes, node, client, &line), "+OK");
        for (other, client) in (1..).zip(clients) {
            for (name, value) in [
                ("hash-max-listpack-entries", limit.to_string()),
                ("slowlog-max-len", node.to_string()),
                ("maxmemory", if other > node { "0".to_owned() } else { format!("{other}0000000") }),
            ] {
                let heard = say(&mut nodes, other, client, &format!("CONFIG GET {name}"));
                assert!(heard.ends_with(&format!(" {value}")), "node {other}: {heard}, not {value}");
            }
        }
        // The leader obeys, and replicas know.
        let fields: Vec<_> = (0..=limit).map(|field| format!("f{field} v")).collect();
        say(&mut nodes, node, client, &format!("HSET small{limit} {}", fields[1..].join(" ")));
        say(&mut nodes, node, client, &format!("HSET large{limit} {}", fields.join(" ")));
        assert!(say(&mut nodes, node, client, &format!("OBJECT ENCODING small{limit}")).contains("listpack"));
        assert!(say(&mut nodes, node, client, &format!("OBJECT ENCODING large{limit}")).contains("hashtable"));
    }
    // However often that is done.
    for turn in 0..60 {
        assert_eq!(say(&mut nodes, 2, clients[1], &format!("CONFIG SET slowlog-max-len {turn}")), "+OK");
    }
    // What is refused is refused before anything is set; in a transaction it is set as well.
    let (gateway, client) = (leader % 3 + 1, clients[leader % 3]);
    let refused = say(&mut nodes, gateway, client, "CONFIG SET slowlog-max-len 9 maxmemory lots");
    assert!(refused.starts_with("-ERR CONFIG SET failed"), "{refused}");
    for line in ["MULTI", "CONFIG SET slowlog-max-len 77 maxmemory 5000000", "SET a 1"] {
        say(&mut nodes, gateway, client, line);
    }
    assert_eq!(say(&mut nodes, gateway, client, "EXEC"), "*2 +OK +OK");
    for (node, client) in (1..).zip(clients) {
        assert!(say(&mut nodes, node, client, "CONFIG GET slowlog-max-len").ends_with(" 77"));
    }
    // Nobody to log it: it is refused, and nothing is set.
    nodes.kill(leader);
    nodes.kill(gateway % 3 + 1);
    nodes.host(gateway).send(client, b"CONFIG SET slowlog-max-len 5 maxmemory 6000000\r\n");
    nodes.pass(Duration::from_secs(7));
    let heard = nodes.host(gateway).received(client);
    assert!(heard.starts_with("-CLUSTERDOWN"), "{heard}");
    assert!(nodes.run(gateway, client, "CONFIG GET maxmemory").ends_with(" 5000000"));
}

#[test]
fn a_node_that_joins_does_not_let_go_of_whom_it_has_asked() {
    let mut host = Host::unloaded_with_seeds(1, Settings::default(), 9, &[7]);
    host.load(9, &[]);
    let mut hear_of = |node: u8| {
        host.hear(NodeId(7), GroupId(0), &[ANNOUNCE, node, 1, b'a', 1, b'b']);
        host.settle();
        host.peers.clone()
    };
    assert_eq!(hear_of(5), [NodeId(5), NodeId(7)]);
    assert_eq!(hear_of(7), [NodeId(5), NodeId(7)]);
    assert_eq!(hear_of(6), [NodeId(5), NodeId(6), NodeId(7)]);
}

/// Where the node is that is asked was said by an operator: a third one knows better only if nobody is heard there.
#[test]
fn a_node_that_joins_believes_nobody_else_where_the_one_is_that_it_has_asked() {
    const ANNOUNCE: u8 = 8;
    let mut host = Host::unloaded_with_seeds(1, Settings::default(), 9, &[7]);
    host.load(9, &[]);
    let is_moved = |host: &mut Host| {
        host.peers.clear();
        host.hear(NodeId(5), GroupId(0), &[ANNOUNCE, 7, 1, b'a', 1, b'b']);
        host.settle();
        !host.peers.is_empty()
    };
    assert!(!is_moved(&mut host));
    for _ in 0..12 {
        host.pass(Duration::from_millis(500));
    }
    assert!(is_moved(&mut host));
    // That was a lie, or may have been one: it is looked for again where the operator has said, however often a third
    // one says so.
    let mut times_named = 0;
    for _ in 0..60 {
        host.pass(Duration::from_millis(500));
        host.hear(NodeId(5), GroupId(0), &[ANNOUNCE, 7, 1, b'a', 1, b'b']);
        host.settle();
        times_named += usize::from(host.addresses == [""]);
    }
    assert!((20..=45).contains(&times_named), "{times_named} of 60 times");
}

/// The only node that it was told to ask may not be where others say. Somebody else may know this one, and who leads.
#[test]
fn a_node_that_joins_says_where_it_is_to_all_whom_it_has_heard_of() {
    let mut host = Host::unloaded_with_seeds(1, Settings::default(), 9, &[7]);
    host.load(9, &[]);
    host.hear(NodeId(7), GroupId(0), &[ANNOUNCE, 5, 1, b'a', 1, b'b']);
    host.sent.clear();
    host.pass(Duration::from_secs(1));
    let told: BTreeSet<_> = host.sent.iter().filter(|(.., bytes)| bytes[0] == ANNOUNCE).map(|(to, ..)| *to).collect();
    assert_eq!(told, BTreeSet::from([NodeId(5), NodeId(7)]));
    // Node 7 was named, and tells where the others are: a third one does not know better.
    host.hear(NodeId(6), GroupId(0), &[ANNOUNCE, 5, 1, b'x', 1, b'x']);
    host.settle();
    assert_eq!(host.addresses, ["a", ""]);
    // It knows itself.
    host.hear(NodeId(5), GroupId(0), &[ANNOUNCE, 5, 1, b'o', 1, b'o']);
    host.settle();
    assert_eq!(host.addresses, ["o", ""]);
}

/// When a replica gives up what it has of group 1, as node 7 says with these bytes that it leads. `answer` says what
/// member 8 answers when it is asked, and which node says so. Nobody else is asked, and nobody unless `is_asked`.
fn given_up_after(host: &mut Host, told: &[u8], answer: Option<(u64, u8)>, is_asked: bool) -> Option<i32> {
    const AM_MEMBER: u8 = 45;
    const NO_MEMBER: u8 = 46;
    let mut asked = BTreeSet::new();
    let after_s = (1..100).find(|_| {
        host.hear(NodeId(7), GroupId(0), told);
        host.settle();
        let questions = host.sent.drain(..).filter(|(.., bytes)| bytes[0] == AM_MEMBER);
        asked.extend(questions.map(|(to, ..)| to));
        if let Some((witness, index)) = answer.filter(|_| !asked.is_empty()) {
            host.hear(NodeId(witness), GroupId(1), &[NO_MEMBER, 1, index]);
        }
        host.pass(Duration::from_secs(1));
        host.holds_nothing_of(GroupId(1))
    });
    let expected = if is_asked { BTreeSet::from([NodeId(8)]) } else { BTreeSet::new() };
    assert_eq!(asked, expected, "asked");
    after_s
}

/// A replica that the roster wants here gives up what it has after two seconds if a second member says that it was let
/// go. As long as one could say so and does not, a single node that says it leads is not enough, however long nobody
/// else is heard.
#[test]
fn a_replica_that_was_let_go_asks_a_second_member() {
    let group_status = GroupStatus {
        group: GroupId(1),
        leader: NodeId(7),
        term: 3,
        applied: 20,
        last: 20,
        voters: vec![7, 8],
        ..GroupStatus::default()
    };
    let mut told = vec![30];
    group_status.put(&mut told);
    // Which levels member 8 knows; who answers, and up to which entry; after how many seconds the replica is given up.
    for (levels, answer, expected_s) in [
        (Some(stdx::Levels::KNOWN), None, None),
        (Some(stdx::Levels::KNOWN), Some((8, 20)), Some(2..=4)),
        (Some(stdx::Levels::KNOWN), Some((7, 20)), None),
        (Some(stdx::Levels::KNOWN), Some((8, 0)), None),
        // It may be of a version that does not answer, and never has been heard; to one that is, that is no message.
        (None, None, Some(30..=32)),
        (None, Some((8, 20)), Some(2..=4)),
        (Some(stdx::Levels::FIRST), None, Some(30..=32)),
    ] {
        let mut host = Host::of_nodes(2, Settings::default(), 9, &[7, 8, 9]);
        if let Some(levels) = levels {
            host.hear_levels(8, levels);
        }
        let after_s = given_up_after(&mut host, &told, answer, levels != Some(stdx::Levels::FIRST));
        let is_expected = match &expected_s {
            Some(range) => after_s.is_some_and(|after_s| range.contains(&after_s)),
            None => after_s.is_none(),
        };
        assert!(is_expected, "{levels:?}, {answer:?}: {after_s:?}");
    }
}

/// The roster may already say that the group is to live on other nodes, and this replica be a voter that nothing can be
/// decided without. Other nodes that are able to answer are asked at any level of the cluster.
#[test]
fn a_replica_that_is_to_move_is_not_talked_out_of_what_it_holds_by_one_node() {
    let group_status =
        GroupStatus { group: GroupId(1), leader: NodeId(7), term: 1 << 40, applied: 1 << 40, ..GroupStatus::default() };
    let mut told = vec![30];
    group_status.put(&mut told);
    // On which nodes the group is to live, which levels member 8 knows, whether it answers, and after how many seconds
    // the replica is given up.
    let cases: [(&[u64], _, _, _); 5] = [
        (&[7, 8], stdx::Levels::KNOWN, false, None),
        (&[7, 8], stdx::Levels::KNOWN, true, Some(2..=4)),
        (&[7, 8], stdx::Levels::FIRST, false, Some(2..=4)),
        (&[7], stdx::Levels::KNOWN, false, Some(2..=4)),
        // There can be no second member.
        (&[7, 9], stdx::Levels::KNOWN, false, Some(30..=32)),
    ];
    for (nodes, levels, answers, expected_s) in cases {
        let mut host = Host::of_nodes_placed(2, Settings::default(), 9, &[7, 8, 9], &[(GroupId(1), nodes)]);
        host.hear_levels(8, levels);
        let is_asked = nodes.contains(&8) && levels == stdx::Levels::KNOWN;
        let after_s = given_up_after(&mut host, &told, answers.then_some((8, 20)), is_asked);
        let is_expected = match &expected_s {
            Some(range) => after_s.is_some_and(|after_s| range.contains(&after_s)),
            None => after_s.is_none(),
        };
        assert!(is_expected, "{nodes:?}, {levels:?}, {answers}: {after_s:?}");
    }
}

fn found_at(host: &str) -> Member {
    let at = |port: u16| format!("{host}:{port}");
    Member { cluster_address: at(17001), client_address: at(7001), ..Member::default() }
}

/// A node that listens everywhere and has no way out of its network guesses that it is found at a loopback address. The
/// first that joins shows better, and after a restart the roster knows.
#[test]
fn a_node_that_does_not_know_where_it_is_found_learns_it() {
    const ANNOUNCE: u8 = 8;
    let joins = [ANNOUNCE, 2, 1, b'a', 1, b'b'];
    let shown = |host: &mut Host| {
        host.hear(NodeId(2), GroupId(0), &joins);
        host.settle();
        let client = host.connect(0);
        host.run(client, "CLUSTER NODES")
    };
    let machine = ["127.0.0.1", "172.17.0.1", "10.0.0.9"].map(|address| address.parse().expect("an address"));
    let mut host = Host::of_unknown_host(1, &found_at("127.0.0.1"), &machine);
    host.load_roster(1, None);
    host.found_at("10.0.0.9", &machine);
    let told = shown(&mut host);
    assert!(told.contains("10.0.0.9:7001") && !told.contains("127.0.0.1"), "{told}");
    let said = "a link to another node shows that this one is found at 10.0.0.9, and not at 127.0.0.1:17001, as was \
                assumed: nodes and clients are told 10.0.0.9:17001. Set cluster-announce-ip if they are to use another \
                address";
    assert_eq!(host.log.iter().filter(|line| *line == said).count(), 1, "{:?}", host.log);

    let mut roster = Roster::default();
    assert!(roster.enlist(NodeId(1), found_at("10.0.0.9")));
    let mut host = Host::of_unknown_host(1, &found_at("127.0.0.1"), &machine);
    host.load_roster(1, Some(roster.clone()));
    let told = shown(&mut host);
    assert!(told.contains("10.0.0.9:7001") && !told.contains("127.0.0.1"), "{told}");
    // One caller comes by a way that others do not have.
    host.found_at("172.17.0.1", &machine);
    host.pass(Duration::from_secs(10));
    let told = shown(&mut host);
    assert!(told.contains("10.0.0.9:7001") && !told.contains("172.17.0.1"), "{told}");
    // What is not used is no news, and neither is what is announced already.
    host.found_at("10.0.0.9", &machine);
    assert!(!host.log.iter().any(|line| line.contains("a link to another node shows")), "{:?}", host.log);

    // The caller comes before the roster has been read, and before the machine had its addresses.
    let mut host = Host::of_unknown_host(1, &found_at("127.0.0.1"), &machine[..1]);
    host.found_at("172.17.0.1", &machine);
    host.load_roster(1, Some(roster.clone()));
    let told = shown(&mut host);
    assert!(told.contains("10.0.0.9:7001") && !told.contains("172.17.0.1"), "{told}");
    // The roster has been read before the machine had its addresses.
    let mut host = Host::of_unknown_host(1, &found_at("127.0.0.1"), &machine[..1]);
    host.load_roster(1, Some(roster));
    host.found_at("172.17.0.1", &machine);
    let told = shown(&mut host);
    assert!(told.contains("10.0.0.9:7001") && !told.contains("172.17.0.1"), "{told}");
}

/// A member has told the cluster that this node is found at a host which is not of its machine.
#[test]
fn a_node_does_not_adopt_a_host_that_is_not_of_its_machine() {
    let machine = ["127.0.0.1", "10.0.0.9"].map(|address| address.parse().expect("an address"));
    let mut roster = Roster::default();
    assert!(roster.enlist(NodeId(1), found_at("192.0.2.66")));
    let mut host = Host::of_unknown_host(1, &found_at("127.0.0.1"), &machine);
    host.load_roster(1, Some(roster));
    let shown = |host: &mut Host| {
        host.pass(Duration::from_secs(10));
        let client = host.connect(0);
        let nodes = host.run(client, "CLUSTER NODES");
        let roster = host.roster().get(NodeId(1)).expect("it is in there").cluster_address.clone();
        (nodes.contains("192.0.2.66"), roster)
    };
    assert_eq!(shown(&mut host), (false, "192.0.2.66:17001".to_owned()), "a guess does not contradict the cluster");
    host.found_at("10.0.0.9", &machine);
    assert_eq!(shown(&mut host), (false, "10.0.0.9:17001".to_owned()), "a link does");
    assert_eq!(host.log.iter().filter(|line| line.contains("and not at 192.0.2.66:17001, as was assumed")).count(), 1);
}

#[test]
fn only_a_voter_says_that_another_node_is_no_member() {
    let mut host = Host::of_nodes(2, Settings::default(), 7, &[7, 8]);
    for (asks, is_told) in [(9, true), (8, false)] {
        host.hear(NodeId(asks), GroupId(1), &[45, 1]);
        let answer = host.sent.drain(..).find(|(.., bytes)| bytes[0] == 46);
        assert_eq!(answer.is_some_and(|(to, ..)| to == NodeId(asks)), is_told, "{asks}");
    }
}

/// A node without a replica sees no slot move. It asks the only node that says that it leads the group, and believes
/// nobody else.
#[test]
fn a_node_without_a_replica_asks_the_leader_where_slots_are() {
    let status_of = |leader: u64| {
        let (group, leader) = (GroupId(1), NodeId(leader));
        let group_status = GroupStatus { group, leader, term: 1, voters: vec![7, 8], ..GroupStatus::default() };
        let mut told = vec![30];
        group_status.put(&mut told);
        told
    };
    // Slot 5, which group 0 holds in the beginning, has come to group 1.
    let held: &[u8] = &[48, 1, 1, 5, 1, 1];
    for (is_contradicted, answers, is_learnt) in [(false, 7, true), (false, 8, false), (true, 7, false)] {
        let mut host = Host::of_nodes_placed(2, Settings::default(), 9, &[7, 8], &[(GroupId(1), &[7, 8])]);
        host.hear_levels(7, stdx::Levels::KNOWN);
        host.hear_levels(8, stdx::Levels::KNOWN);
        let mut asked = Vec::new();
        for second in 0..8 {
            host.hear(NodeId(7), GroupId(1), &status_of(7));
            if is_contradicted {
                host.hear(NodeId(8), GroupId(1), &status_of(8));
            }
            host.pass(Duration::from_secs(1));
            let questions = host.sent.drain(..).filter(|(.., bytes)| bytes[0] == 47);
            asked.extend(questions.map(|(to, group, _)| (second, to, group)));
        }
        assert!(
            asked.iter().all(|(second, to, group)| (*second, *to, *group) >= (3, NodeId(7), GroupId(1))),
            "{asked:?}"
        );
        assert_eq!(asked.is_empty(), is_contradicted, "{asked:?}");
        host.hear(NodeId(answers), GroupId(1), held);
        host.settle();
        let known = host.known_groups_of(Slot(5));
        assert_eq!(known, vec![GroupId(u32::from(is_learnt)); 2], "{is_contradicted}, {answers}");
        // It speaks of its own group alone.
        host.hear(NodeId(answers), GroupId(1), &[48, 1, 1, 6, 0, 9]);
        host.settle();
        assert_eq!(host.known_groups_of(Slot(6)), vec![GroupId(0); 2]);
    }
}

#[test]
fn a_leader_tells_its_slots_to_a_node_that_believes_others() {
    let mut host = Host::of_nodes(2, Settings::default(), 7, &[7]);
    host.pass(Duration::from_secs(3));
    let cover = SlotMap::even(2).cover_of(GroupId(1));
    for (believed, is_told) in [(cover, false), (cover ^ 1, true)] {
        let question = [&[47, 1][..], &believed.to_le_bytes()].concat();
        host.hear(NodeId(9), GroupId(1), &question);
        let answer = host.sent.drain(..).find(|(.., bytes)| bytes[0] == 48);
        assert_eq!(answer.map(|(to, _, bytes)| (to, bytes)), is_told.then(|| (NodeId(9), vec![48, 1, 0])));
    }
}

/// A node was elsewhere for a while, as it said itself while nobody could enter that, and is back.
#[test]
fn a_node_that_has_come_back_is_called_where_the_roster_says() {
    const ANNOUNCE: u8 = 8;
    let mut host = Host::of_nodes(1, Settings::default(), 1, &[1, 2, 3]);
    let mut is_met_again = |message: &[u8]| {
        host.peers.clear();
        host.hear(NodeId(2), GroupId(0), message);
        host.settle();
        !host.peers.is_empty()
    };
    assert!(is_met_again(&[ANNOUNCE, 2, 1, b'a', 1, b'b']), "it is called there");
    assert!(!is_met_again(&[ANNOUNCE, 2, 1, b'a', 1, b'b']), "it is called there already");
    assert!(is_met_again(&[ANNOUNCE, 2, 0, 0]), "it is called where it was before");
    assert!(!is_met_again(&[ANNOUNCE, 2, 0, 0]));
}

/// A node that announces itself although it is known is told who the others are, the one who tells among them: to that
/// word it may answer in the same way.
#[test]
fn nodes_that_know_each_other_do_not_introduce_each_other_for_ever() {
    let mut nodes = Nodes::new();
    for node in [2, 3] {
        nodes.host(1).hear(NodeId(u64::from(node)), GroupId(0), &[ANNOUNCE, node, 0, 0]);
    }
    assert!(nodes.host(1).sent.iter().any(|(.., bytes)| bytes[0] == ANNOUNCE), "they are introduced");
    nodes.exchange(|_, _, _| true);
}

/// Somebody has told the others that it is elsewhere. To put that right takes a leader, who may lack its vote.
#[test]
fn a_node_is_called_where_it_says_itself_although_nobody_leads() {
    let mut nodes = Nodes::new();
    let leader = nodes.leader().expect("elected");
    let (node, other) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    let word = |address: u8| [ANNOUNCE, node as u8, 1, address, 1, b'x'];
    nodes.kill(leader);
    nodes.pass(Duration::from_millis(50));
    assert_eq!(nodes.host(other).addresses.len(), 3);
    let place = nodes.host(other).peers.iter().position(|peer| peer.0 == node as u64).expect("it is known");
    for (from, address, is_believed) in [(leader, b'f', false), (node, b't', true)] {
        nodes.host(other).hear(NodeId(from as u64), GroupId(0), &word(address));
        nodes.host(other).settle();
        let is_called = nodes.host(other).addresses[place].as_bytes() == [address];
        assert_eq!(is_called, is_believed, "node {from} says so");
    }
}

/// The addresses of all nodes have changed. What an operator shows, and what those say who have found each other, is
/// tried as well, and replaces nothing: it may be wrong.
#[test]
fn where_others_say_that_a_node_is_is_tried_as_well() {
    let at = |node: usize, address: u8| [ANNOUNCE, node as u8, 1, address, 1, b'x'];
    let mut nodes = Nodes::new();
    let leader = nodes.leader().expect("elected");
    let (node, deaf) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    let id = NodeId(node as u64);
    nodes.pass_while(Duration::from_secs(6), |_, to, _| to != deaf);
    let host = nodes.host(deaf);
    let places = host.addresses.clone();
    host.hear(NodeId(leader as u64), GroupId(0), &at(node, b'n'));
    host.find(node as u64, "shown");
    assert_eq!(host.also_at, [(id, vec!["n".to_owned(), "shown".to_owned()])]);
    assert_eq!(host.addresses, places);
    // It speaks for itself, and the others are told.
    host.hear(id, GroupId(0), &at(node, b'n'));
    host.sent.clear();
    host.pass(Duration::from_secs(3));
    let is_told = |to: usize| {
        let is_word = |bytes: &[u8]| bytes.starts_with(&[ANNOUNCE, node as u8]);
        host.sent.iter().any(|(other, _, bytes)| *other == NodeId(to as u64) && is_word(bytes))
    };
    assert!(is_told(leader) && !is_told(node), "{:?}", host.sent);
}

/// All were shown the same node, which cannot be elected: those who can must find each other.
#[test]
fn nodes_with_other_addresses_that_all_know_the_same_one_find_each_other() {
    const NODES: [u64; 5] = [1, 2, 3, 4, 5];
    let place = |node: u64| format!("new:{node}");
    let mut hosts: Vec<Host> = NODES.map(|node| Host::moved_to(&place(node), node, &NODES)).into();
    hosts[1..].iter_mut().for_each(|host| host.find(1, &place(1)));
    let reaches = |host: &Host, node: u64| {
        let addresses = host.peers.iter().zip(&host.addresses).filter(|(peer, _)| peer.0 == node);
        let hints = host.also_at.iter().filter(|(other, _)| other.0 == node).flat_map(|(_, places)| places);
        addresses.map(|(_, address)| address).chain(hints).any(|address| *address == place(node))
    };
    let pass = |hosts: &mut Vec<Host>, seconds: u64, passes: fn(u8) -> bool| {
        for _ in 0..seconds * 20 {
            hosts.iter_mut().for_each(|host| host.pass(Duration::from_millis(50)));
            for from in NODES {
                let sent: Vec<_> = hosts[from as usize - 1].sent.drain(..).collect();
                for (to, group, bytes) in sent {
                    if passes(bytes[0]) && reaches(&hosts[from as usize - 1], to.0) {
                        hosts[to.0 as usize - 1].hear(NodeId(from), group, &bytes);
                    }
                }
            }
            hosts.iter_mut().for_each(Host::settle);
        }
    };
    pass(&mut hosts, 10, |kind| kind == ANNOUNCE);
    for (host, node) in hosts.iter().zip(NODES) {
        let found: Vec<u64> = NODES.into_iter().filter(|other| *other != node && reaches(host, *other)).collect();
        assert_eq!(found.len(), 4, "node {node} finds {found:?}");
    }
    pass(&mut hosts, 10, |_| true);
    for host in &hosts {
        let roster = host.roster();
        let told = NODES.map(|node| roster.get(NodeId(node)).map(|member| member.cluster_address.clone()));
        assert_eq!(told, NODES.map(|node| Some(place(node))));
        assert!(host.also_at.is_empty(), "{:?}", host.also_at);
    }
}

/// It has joined a cluster and was stopped before the cluster had taken it in: only the operator knows where that is.
#[test]
fn a_node_that_knows_nobody_looks_where_the_operator_says() {
    let mut host = Host::unloaded(1, Settings::default(), 7);
    host.find(7, "own");
    assert!(host.peers.is_empty());
    host.find(3, "shown");
    assert_eq!((&host.peers[..], &host.addresses[..]), (&[NodeId(3)][..], &["shown".to_owned()][..]));
    host.find(3, "later");
    assert_eq!(host.addresses, ["later"]);
}

#[test]
fn a_node_that_hears_no_leader_for_long_says_where_it_is() {
    let mut nodes = Nodes::new();
    let leader = nodes.leader().expect("elected");
    let deaf = leader % 3 + 1;
    let mut said_after = |milliseconds| {
        nodes.pass_while(Duration::from_millis(milliseconds), |_, to, kind| to != deaf && kind != ANNOUNCE);
        nodes.count(ANNOUNCE)
    };
    assert_eq!(said_after(3_000), 0, "it may be an election");
    assert!(said_after(3_000) > 0);
}

/// No node would say these. A member that is broken, or wants to break others, might.
#[test]
fn an_answer_that_does_not_fit_is_as_good_as_none() {
    const OBSERVED: u8 = 1;
    const COMMITTED: u8 = 2;
    let mut nodes = Nodes::of_cores(2, &Settings::default());
    let gateway = 1 + nodes.leader().expect("elected") % 3;
    for (request, proof, answer) in [
        ("GET k", OBSERVED, b"$5\r\nab\r\n".to_vec()),
        ("GET k", OBSERVED, Vec::new()),
        ("GET k", OBSERVED, b"*2000000000\r\n".to_vec()),
        ("SET k 1", COMMITTED, b"+OK\r\n+OK\r\n".to_vec()),
        ("SET k 1", COMMITTED, vec![0, 1]),
        ("WATCH k a b c", OBSERVED, Vec::new()),
        ("WATCH k a b c", OBSERVED, vec![0xFF; 12]),
        ("MULTI\r\nSET k 1\r\nCONFIG GET save\r\nSET k 2\r\nEXEC", COMMITTED, b"*1\r\n+OK\r\n".to_vec()),
        ("EVAL \"return redis.call('get', KEYS[1])\" 1 k", COMMITTED, vec![1, 0, 1, 0xFF, 0xFF, 3, 1, b'k']),
        ("KEYS *", OBSERVED, [&[0; 9][..], b"$3\r\nabc\r\n"].concat()),
        ("SCAN 0", OBSERVED, [&[0; 9][..], b"*2\r\n:1\r\n*1\r\n:1\r\n"].concat()),
        ("DBSIZE", OBSERVED, [&[0; 9][..], b":9223372036854775807\r\n"].concat()),
        ("MSET a 1 b 2 c 3", OBSERVED, vec![1, 1, 1, 1, 1, 2, 0xFF, 0xFF, 0]),
    ] {
        let client = nodes.host(gateway).connect(0);
        nodes.host(gateway).send(client, format!("{request}\r\n").as_bytes());
        nodes.host(gateway).settle();
        // The place, no toll, and the proof stand before it.
        let end = [&[0; 10][..], &[proof], &answer].concat();
        assert!(nodes.exchange_but_one_answer(0, &end), "{request}: another node is asked");
        let said = nodes.host(gateway).received(client);
        assert!(said.contains("-CLUSTERDOWN"), "{request} and {answer:?}: {said}");
        nodes.pass(Duration::from_millis(500));
        let said = nodes.run(gateway, client, "MGET k a b c");
        assert!(said.starts_with("*4 "), "{request}: it goes on: {said}");
    }
}

/// A group's leader tokens locks, and says of the values what nobody can read. Under a grant that the group has given
/// the transaction is refused: nothing is computed from what cannot be read. Under another grant the locks are not the
/// transaction's, which the group says when it is asked whether they lasted: then it begins again.
#[test]
fn values_that_cannot_be_read_write_nothing() {
    for (number, is_granted) in [(1, true), (9, false)] {
        let mut nodes = Nodes::of_cores(2, &Settings::default());
        let gateway = 1 + nodes.leader().expect("elected") % 3;
        let client = nodes.host(gateway).connect(0);
        nodes.host(gateway).send(client, b"MSET a 1 b 2 c 3\r\n");
        nodes.host(gateway).settle();
        // The place, no toll, and that it has been looked at; the grant, two values, and no answers to queries.
        let value = [1, 2, 0xFF, 0xFF];
        let end = [&[0; 10][..], &[1], &[1, 1, number, 2], &value, &value, &[0]].concat();
        assert!(nodes.exchange_but_one_answer(0, &end));
        nodes.pass(Duration::from_millis(500));
        let said = nodes.host(gateway).received(client);
        let (is_said, held) = match is_granted {
            true => (said.contains("with a value that cannot be read, and nothing was done"), "*3 $-1 $-1 $-1"),
            false => (said == "+OK", "*3 $1 1 $1 2 $1 3"),
        };
        assert!(is_said, "token {number}: {said}");
        for node in 1..=3 {
            let other = nodes.host(node).connect(0);
            assert_eq!(nodes.run(node, other, "MGET a b c"), held, "token {number}, node {node}");
        }
        assert_eq!(nodes.run(gateway, client, "MSET a 4 b 5 c 6"), "+OK", "no lock is left");
    }
}

#[test]
fn what_fails_in_a_script_counts_at_the_node_that_was_asked() {
    let mut nodes = Nodes::new();
    let leader = nodes.leader().expect("elected");
    let gateway = leader % 3 + 1;
    let (asked, other) = (nodes.host(gateway).connect(0), nodes.host(leader).connect(0));
    assert_eq!(nodes.run(gateway, asked, "SET text x"), "+OK");
    for (line, reply) in [
        ("EVAL \"return redis.pcall('lpush', KEYS[1], 'x')\" 1 text", "-WRONGTYPE"),
        ("EVAL \"redis.pcall('select', 99) return redis.error_reply('MINE alone')\" 1 text", "-MINE alone"),
        ("EVAL \"return redis.call('get', KEYS[1])\" 1 text", "$1 x"),
    ] {
        let answer = nodes.run(gateway, asked, line);
        assert!(answer.starts_with(reply), "{line} gave {answer}");
    }
    let told = nodes.run(gateway, asked, "INFO errorstats");
    assert!(told.contains("errorstat_ERR:count=1 errorstat_MINE:count=1 errorstat_WRONGTYPE:count=1"), "{told}");
    let told = nodes.run(gateway, asked, "INFO commandstats");
    assert!(told.contains("cmdstat_lpush:calls=1,"), "{told}");
    let told = nodes.run(leader, other, "INFO errorstats");
    assert!(!told.contains("errorstat_"), "{told}");
}

/// How many calls of a command a node says that it has measured, or counted without.
fn calls_in_histogram(nodes: &mut Nodes, node: usize, client: SessionId, command: &str) -> Option<u64> {
    let told = nodes.run(node, client, &format!("LATENCY HISTOGRAM {command}"));
    let words: Vec<&str> = told.split_whitespace().collect();
    let place = words.iter().position(|word| *word == "calls")?;
    words[place + 1].strip_prefix(':')?.parse().ok()
}

#[test]
fn commands_count_and_are_measured_at_the_node_that_was_asked_no_matter_who_leads() {
    let mut nodes = Nodes::new();
    let leader = nodes.leader().expect("elected");
    for gateway in 1..=3 {
        let clients: Vec<_> = (1..=3).map(|node| nodes.host(node).connect(0)).collect();
        for node in 1..=3 {
            assert_eq!(nodes.run(node, clients[node - 1], "CONFIG RESETSTAT"), "+OK");
        }
        let client = clients[gateway - 1];
        for line in [
            "SET text x",
            "GET text",
            "SET text y",
            "LPUSH text x",
            "MULTI",
            "INCR number",
            "GET text",
            "EXEC",
            "KEYS *",
            "EVAL \"redis.call('set', KEYS[1], 1) redis.call('set', KEYS[1], 2) return redis.call('get', KEYS[1])\" 1 k",
            "RPUSH list x",
            "BLPOP list 0",
        ] {
            let reply = nodes.run(gateway, client, line);
            assert!(!reply.is_empty() && (!reply.starts_with('-') || line.starts_with("LPUSH")), "{line}: {reply}");
        }
        for (command, calls) in
            [("set", 4), ("get", 3), ("lpush", 1), ("incr", 1), ("keys", 1), ("eval", 1), ("rpush", 1), ("blpop", 1)]
        {
            let told = nodes.run(gateway, client, "INFO commandstats");
            assert!(told.contains(&format!("cmdstat_{command}:calls={calls},")), "{command}: {told}");
            let measured = calls_in_histogram(&mut nodes, gateway, client, command);
            assert_eq!(measured, Some(calls), "{command}, asked node {gateway}, led by {leader}");
        }
        for other in (1..=3).filter(|other| *other != gateway) {
            let client = clients[other - 1];
            let told = nodes.run(other, client, "INFO everything");
            for command in ["set", "get", "lpush", "incr", "keys", "eval", "rpush", "blpop"] {
                for field in ["cmdstat", "latency_percentiles_usec"] {
                    assert!(!told.contains(&format!("{field}_{command}:")), "{command} at node {other}: {told}");
                }
            }
        }
    }
}

#[test]
fn slow_commands_are_remembered_with_their_client_at_the_node_that_was_asked() {
    let mut nodes = Nodes::new();
    let leader = nodes.leader().expect("elected");
    let gateway = leader % 3 + 1;
    let (asked, other) = (nodes.host(gateway).connect(0), nodes.host(leader).connect(0));
    // What is slow is for the node to say that was asked.
    nodes.run(leader, other, "CONFIG SET slowlog-log-slower-than -1");
    nodes.run(gateway, asked, "CONFIG SET slowlog-log-slower-than 0");
    for line in ["CLIENT SETNAME me", "SLOWLOG RESET", "SET a 1", "GET a", "MULTI", "INCR a", "EXEC", "KEYS *"] {
        nodes.run(gateway, asked, line);
    }
    nodes.run(gateway, asked, "EVAL \"return redis.call('get', KEYS[1])\" 1 a");
    let told = nodes.run(gateway, asked, "SLOWLOG GET -1").to_lowercase();
    for words in ["*3 $3 set $1 a $1 1", "*2 $3 get $1 a", "*2 $4 incr $1 a", "*2 $4 keys $1 *", "*4 $4 eval"] {
        assert_eq!(told.matches(words).count(), 1, "{words} in {told}");
    }
    let entries = nodes.run(gateway, asked, "SLOWLOG LEN");
    let named = nodes.run(gateway, asked, "SLOWLOG GET -1").matches("$2 me").count();
    assert_eq!(format!(":{}", named - 1), entries, "SLOWLOG LEN itself is one more");
    assert_eq!(nodes.run(leader, other, "SLOWLOG LEN"), ":0");
}

/// Members of a set that is large enough to travel in pieces.
const LARGE_COUNT: usize = 50_000;

fn large_script(key: &str) -> String {
    let body = format!("for i = 1, {LARGE_COUNT} do redis.call('SADD', KEYS[1], 'member-' .. i) end");
    format!("EVAL \"{body}\" 1 {key}")
}

#[test]
fn a_large_value_arrives_at_all_replicas() {
    let mut nodes = Nodes::new();
    let leader = nodes.leader().expect("elected");
    let gateway = leader % 3 + 1;
    let client = nodes.host(gateway).connect(0);
    nodes.host(gateway).send(client, format!("{}\r\n", large_script("large")).as_bytes());
    let mut answer = String::new();
    for _ in 0..200 {
        nodes.pass(Duration::from_millis(50));
        answer = nodes.host(gateway).received(client);
        if !answer.is_empty() {
            break;
        }
    }
    assert_eq!(answer, "$-1");
    assert_eq!(nodes.leader(), Some(leader), "nobody took it for dead");
    nodes.pass(Duration::from_secs(1));
    let digests: Vec<_> = (1..=3).map(|node| nodes.host(node).digest(GroupId(0))).collect();
    assert_eq!(digests, vec![digests[0]; 3]);
    nodes.kill(leader);
    nodes.elect();
    assert_eq!(nodes.run(gateway, client, "SCARD large"), format!(":{LARGE_COUNT}"));
}

#[test]
fn a_large_value_is_whole_or_not_there_when_its_leader_dies() {
    for turns in [1, 4, 8, 12] {
        let mut nodes = Nodes::new();
        let leader = nodes.leader().expect("elected");
        let gateway = leader % 3 + 1;
        let client = nodes.host(gateway).connect(0);
        nodes.host(gateway).send(client, format!("{}\r\n", large_script("large")).as_bytes());
        for _ in 0..turns {
            nodes.pass(Duration::from_millis(50));
        }
        nodes.kill(leader);
        nodes.elect();
        let mut answer = String::new();
        for _ in 0..400 {
            nodes.pass(Duration::from_millis(50));
            answer = nodes.host(gateway).received(client);
            if !answer.is_empty() {
                break;
            }
        }
        let count = nodes.run(gateway, client, "SCARD large");
        match answer.as_str() {
            "$-1" => assert_eq!(count, format!(":{LARGE_COUNT}"), "killed after {turns} rounds"),
            answer => {
                assert!(answer.starts_with('-'), "{answer}");
                assert!(count == ":0" || count == format!(":{LARGE_COUNT}"), "{count}");
            }
        }
    }
}

/// Two groups, with `bar` in the first and `foo` in the second. A gateway has locked `bar`, and has not heard of it
/// yet; a client of another node wants to write to it.
struct Forsaken {
    nodes: Nodes,
    leader: usize,
    gateway: usize,
    other: SessionId,
}

impl Forsaken {
    fn new() -> Self {
        let mut nodes = Nodes::of_cores(2, &Settings::default());
        nodes.pass(Duration::from_secs(3));
        let leader = nodes.leader().expect("elected");
        assert!(nodes.leader_of(GroupId(1)).is_some());
        let gateway = leader % 3 + 1;
        let client = nodes.host(gateway).connect(0);
        nodes.host(gateway).send(client, b"MSET bar 1 foo 1\r\n");
        nodes.host(gateway).settle();
        nodes.exchange(|_, to, kind| kind != ANSWER || to != gateway);
        let other = nodes.host(leader).connect(0);
        assert_eq!(nodes.run_without(gateway, leader, other, "SET bar 2"), "", "it is locked");
        Self { nodes, leader, gateway, other }
    }

    /// What the other client hears while so much time passes, and answers to the gateway do not.
    fn heard_in(&mut self, duration: Duration, mut passes: impl FnMut(usize, usize, u8) -> bool) -> String {
        let gateway = self.gateway;
        self.nodes.pass_while(duration, |from, to, kind| (kind != ANSWER || to != gateway) && passes(from, to, kind));
        self.nodes.host(self.leader).received(self.other)
    }
}

impl Nodes {
    /// Runs a command while answers to a gateway wait.
    fn run_without(&mut self, gateway: usize, node: usize, session: SessionId, line: &str) -> String {
        self.host(node).send(session, format!("{line}\r\n").as_bytes());
        self.host(node).settle();
        self.exchange(|_, to, kind| kind != ANSWER || to != gateway);
        self.host(node).received(session)
    }
}

#[test]
fn locks_of_a_gateway_that_died_before_it_prepared_are_let_go_in_less_than_two_seconds() {
    let mut story = Forsaken::new();
    let gateway = story.gateway;
    story.nodes.kill(gateway);
    assert_eq!(story.heard_in(Duration::from_millis(1_000), |_, _, _| true), "", "it may be slow");
    assert_eq!(story.heard_in(Duration::from_millis(900), |_, _, _| true), "+OK");
}

#[test]
fn locks_of_a_gateway_that_lives_and_waits_are_kept() {
    let mut story = Forsaken::new();
    assert_eq!(story.heard_in(Duration::from_secs(4), |_, _, _| true), "");
}

#[test]
fn locks_of_a_gateway_that_has_another_life_now_are_let_go_at_once() {
    let mut story = Forsaken::new();
    assert_eq!(story.heard_in(Duration::from_millis(600), |_, _, kind| kind != ASK), "");
    let (gateway, leader) = (story.gateway, story.leader);
    let question = story.nodes.under_way.iter().find(|(.., bytes)| bytes[0] == ASK);
    let (.., group, mut life) = question.expect("asked").clone();
    life[0] = LIFE;
    life.push(0);
    // Nobody but the gateway's node is believed.
    story.nodes.host(leader).hear(NodeId(leader as u64), group, &life);
    story.nodes.host(leader).settle();
    assert_eq!(story.nodes.host(leader).received(story.other), "");
    story.nodes.host(leader).hear(NodeId(gateway as u64), group, &life);
    assert_eq!(story.heard_in(Duration::from_millis(50), |_, _, kind| kind != ASK), "+OK");
}

#[test]
fn a_gateway_that_only_seemed_dead_begins_anew_although_a_late_copy_of_its_request_is_granted_the_locks_again() {
    let mut nodes = Nodes::of_cores(2, &Settings::default());
    nodes.pass(Duration::from_secs(3));
    let leader = nodes.leader().expect("elected");
    let gateway = leader % 3 + 1;
    let client = nodes.host(gateway).connect(0);
    nodes.host(gateway).send(client, b"MULTI\r\nINCR bar\r\nINCR foo\r\nEXEC\r\n");
    nodes.host(gateway).settle();
    nodes.gather();
    let is_copied = |(from, to, _, bytes): &&(NodeId, NodeId, GroupId, Vec<u8>)| {
        (from.0 as usize, to.0 as usize, bytes[0]) == (gateway, leader, REQUEST)
    };
    let (from, _, group, copy) = nodes.under_way.iter().find(is_copied).expect("it wants to lock bar").clone();
    let other = nodes.host(leader).connect(0);
    nodes.exchange(|_, to, kind| kind != ANSWER || to != gateway);
    nodes.host(leader).send(other, b"INCR bar\r\n");
    nodes.host(leader).settle();
    nodes.pass_apart(Duration::from_secs(2), (gateway, leader));
    assert_eq!(nodes.host(leader).received(other), ":1");
    nodes.host(leader).hear(from, group, &copy);
    nodes.host(leader).settle();
    nodes.pass(Duration::from_secs(3));
    assert_eq!(nodes.host(gateway).received(client), "+OK +QUEUED +QUEUED *2 :2 :1");
    assert_eq!(nodes.run(leader, other, "GET bar"), "$1 2");
}

#[test]
fn what_was_read_for_locks_that_were_taken_away_is_not_told_under_the_same_ones_granted_again() {
    let mut nodes = Nodes::of_cores(2, &Settings::default());
    nodes.pass(Duration::from_secs(3));
    let leader = nodes.leader().expect("elected");
    let gateway = leader % 3 + 1;
    let [client, first, second] = [gateway, leader, leader].map(|node| nodes.host(node).connect(0));
    let followers = [gateway, gateway % 3 + 1];
    followers.iter().for_each(|node| nodes.host(*node).holds_disk = true);
    // The locks are granted at once, and the key is read as soon as the first change to it is applied.
    assert_eq!(nodes.run(leader, first, "INCR bar"), "");
    assert_eq!(nodes.run(gateway, client, "MULTI\r\nINCR bar\r\nINCR foo\r\nEXEC"), "+OK +QUEUED +QUEUED");
    assert_eq!(nodes.run(leader, second, "INCR bar"), "");
    nodes.pass_apart(Duration::from_secs(2), (gateway, leader));
    // The second change is under way now. The gateway asks again, and is granted the locks again.
    nodes.pass(Duration::from_secs(2));
    followers.iter().for_each(|node| nodes.host(*node).holds_disk = false);
    nodes.pass(Duration::from_secs(2));
    let told = [(leader, first), (leader, second), (gateway, client)].map(|(node, id)| nodes.host(node).received(id));
    assert_eq!(told, [":1", ":2", "*2 :3 :1"]);
}

#[test]
fn a_watch_of_a_key_that_does_not_exist_outlives_its_leader() {
    let mut nodes = Nodes::of_cores(1, &Settings::default());
    nodes.pass(Duration::from_secs(3));
    let leader = nodes.leader().expect("elected");
    let gateway = leader % 3 + 1;
    let [first, second, writer] = [(); 3].map(|()| nodes.host(gateway).connect(0));
    assert_eq!(nodes.run(gateway, writer, "SET old x\r\nDEL old"), "+OK :1");
    assert_eq!(nodes.run(gateway, first, "WATCH absent old"), "+OK");
    assert_eq!(nodes.run(gateway, second, "WATCH absent came"), "+OK");
    assert_eq!(nodes.run(gateway, writer, "SET came x\r\nDEL came\r\nSET other x\r\nDEL other"), "+OK :1 +OK :1");
    nodes.kill(leader);
    nodes.pass(Duration::from_secs(3));
    assert_eq!(nodes.run(gateway, first, "MULTI\r\nSET absent 1\r\nEXEC"), "+OK +QUEUED *1 +OK");
    assert_eq!(nodes.run(gateway, second, "MULTI\r\nSET came 1\r\nEXEC"), "+OK +QUEUED *-1");
}

#[test]
fn scan_of_each_node_ends_with_its_first_step_where_clients_ask_every_leader() {
    let mut settings = Settings::default();
    settings.set("cluster-enabled", "yes").expect("a parameter of ours");
    settings.set("cluster-redirect", "yes").expect("a parameter of ours");
    let mut nodes = Nodes::of_cores(2, &settings);
    nodes.pass(Duration::from_secs(5));
    let clients: Vec<_> = (1..=3).map(|node| nodes.host(node).connect(0)).collect();
    // The numbers of keys that the nodes find, first those of nodes that lead something.
    let found = |nodes: &mut Nodes| -> Vec<(bool, usize)> {
        let mut counts = Vec::new();
        for node in 1..=3 {
            let client = clients[node - 1];
            let step = nodes.run(node, client, "SCAN 0 COUNT 1000");
            assert!(step.starts_with("*2 $1 0 *"), "{step}");
            let count = step.matches("key").count();
            assert_eq!(nodes.run(node, client, "DBSIZE"), format!(":{count}"));
            let info = nodes.run(node, client, "INFO keyspace");
            assert_eq!(info.contains("db0:"), count > 0, "{info}");
            assert!(count == 0 || info.contains(&format!("db0:keys={count},")), "{info}");
            counts.push((nodes.run(node, client, "CLUSTER NODES").contains("myself,slave"), count));
        }
        counts.sort_unstable();
        counts
    };
    assert!(found(&mut nodes).iter().all(|(_, count)| *count == 0));
    for key in 0..100 {
        let done = (1..=3).filter(|node| nodes.run(*node, clients[node - 1], &format!("SET key{key} 1")) == "+OK");
        assert_eq!(done.count(), 1, "one node leads its group");
    }
    let counts = found(&mut nodes);
    let of_leaders = counts.iter().filter(|(is_replica, _)| !is_replica);
    assert_eq!(of_leaders.map(|(_, count)| count).sum::<usize>(), 100);
    // There are two groups, so one node at least leads nothing: it tells what the one that it follows leads.
    let (is_replica, count) = counts[2];
    assert!(is_replica && counts.contains(&(false, count)), "{counts:?}");

    // Where no leader is known nothing is answered: clients would add it up.
    (1..=2).for_each(|node| nodes.kill(node));
    nodes.pass(Duration::from_secs(10));
    let client = nodes.host(3).connect(0);
    for words in ["SCAN 0", "DBSIZE", "KEYS *", "RANDOMKEY"] {
        assert_eq!(nodes.run(3, client, words), "-CLUSTERDOWN No leader of any group is known", "{words}");
    }
}

#[test]
fn pfcount_keeps_its_estimate_until_every_node_knows_that_it_need_not() {
    let mut nodes = Nodes::new();
    let client = nodes.host(2).connect(0);
    // The highest bit of byte 15: no estimate is kept.
    let is_stale = |nodes: &mut Nodes| nodes.run(2, client, "GETBIT sketch 120") == ":1";
    assert_eq!(nodes.run(2, client, "PFADD sketch a b c"), ":1");
    assert!(is_stale(&mut nodes));
    assert_eq!(nodes.run(2, client, "PFCOUNT sketch"), ":3");
    assert!(!is_stale(&mut nodes));
    assert_eq!(
        nodes.run(2, client, "PFADD sketch d\r\nMULTI\r\nSET k 1\r\nPFCOUNT sketch\r\nEXEC"),
        ":1 +OK +QUEUED +QUEUED *2 +OK :4"
    );
    assert!(!is_stale(&mut nodes), "what is logged at level 1 means what it meant there");
    nodes.pass(Duration::from_secs(1));
    let digests: Vec<u64> = (1..=3).map(|node| nodes.host(node).digest(GroupId(0))).collect();
    assert!(digests.iter().all(|digest| *digest == digests[0]));
    nodes.upgrade();
    assert_eq!(nodes.run(2, client, "PFCOUNT sketch"), ":4");
    assert_eq!(nodes.run(2, client, "PFADD sketch e"), ":1");
    let before = nodes.host(1).digest(GroupId(0));
    assert_eq!(nodes.run(2, client, "PFCOUNT sketch"), ":5");
    nodes.pass(Duration::from_secs(1));
    assert_eq!(nodes.host(1).digest(GroupId(0)), before, "a read changes nothing");
    assert_eq!(nodes.run(2, client, "MULTI\r\nSET k 1\r\nPFCOUNT sketch\r\nEXEC"), "+OK +QUEUED +QUEUED *2 +OK :5");
    assert!(is_stale(&mut nodes));
}

#[test]
fn a_cursor_of_cluster_scan_means_the_same_at_the_next_leader() {
    let mut nodes = Nodes::of_cores(2, &Settings::default());
    nodes.pass(Duration::from_secs(5));
    let client = nodes.host(3).connect(0);
    let early = nodes.run(3, client, "CLUSTERSCAN 0");
    assert!(early.starts_with("-ERR 'clusterscan' in this form needs level 2"), "{early}");
    nodes.upgrade();
    for key in 0..100 {
        assert_eq!(nodes.run(3, client, &format!("SET {{tag}}{key} 1")), "+OK");
    }
    let slot = stdx::slot::slot_of(b"tag");
    let first = format!("CLUSTERSCAN 0-{{tag}}-0 SLOT {} COUNT 40", slot.0);
    let step = |reply: &str| -> (String, Vec<String>) {
        let words: Vec<&str> = reply.split(' ').collect();
        (words[2].to_owned(), words[4..].iter().skip(1).step_by(2).map(|key| (*key).to_owned()).collect())
    };
    let (cursor, mut found) = step(&nodes.run(3, client, &first));
    assert_eq!(found.len(), 40);
    let leader = (1..=3).find(|node| nodes.host(*node).is_serving(GroupId(0))).expect("a leader");
    if leader != 3 {
        nodes.kill(leader);
    }
    let other = (1..3).find(|node| *node != leader).expect("three nodes");
    nodes.pass(Duration::from_secs(5));
    let client = nodes.host(other).connect(0);
    let (cursor, rest) = step(&nodes.run(other, client, &format!("CLUSTERSCAN {cursor} SLOT {} COUNT 100", slot.0)));
    assert_eq!((cursor.as_str(), rest.len()), ("0", 60));
    found.extend(rest);
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 100);
}

#[test]
fn what_a_cluster_client_sends_to_every_node_about_functions_is_done_once_and_refused_by_none() {
    let mut nodes = Nodes::new();
    let clients: Vec<_> = (1..=3).map(|node| nodes.host(node).connect(0)).collect();
    let load = |name: &str, text: &str| {
        format!(
            "FUNCTION LOAD \"#!lua name={name}\\nredis.register_function('{name}', function() return '{text}' end)\""
        )
    };
    let ask = |nodes: &mut Nodes, node: usize, line: &str| nodes.run(node, clients[node - 1], line);
    for node in [2, 1, 3] {
        assert_eq!(ask(&mut nodes, node, &load("lib", "a")), "$3 lib", "node {node}");
    }
    // A node that has had its answer is refused, as Redis refuses; and so is another text, by all.
    for node in 1..=3 {
        assert_eq!(ask(&mut nodes, node, &load("lib", "a")), "-ERR Library 'lib' already exists");
        assert_eq!(ask(&mut nodes, node, &load("lib", "b")), "-ERR Library 'lib' already exists");
    }
    assert_eq!(ask(&mut nodes, 1, "FCALL lib 0"), "$1 a");
    for node in [3, 2, 1] {
        assert_eq!(ask(&mut nodes, node, "FUNCTION DELETE lib"), "+OK", "node {node}");
    }
    assert_eq!(ask(&mut nodes, 2, "FUNCTION DELETE lib"), "-ERR Library not found");
    // What came long after the first is no echo; nor is one of what has been undone.
    assert_eq!(ask(&mut nodes, 1, &load("lib", "a")), "$3 lib");
    nodes.pass(Duration::from_secs(11));
    assert_eq!(ask(&mut nodes, 2, &load("lib", "a")), "-ERR Library 'lib' already exists");
    assert_eq!(ask(&mut nodes, 1, "FUNCTION DELETE lib"), "+OK");
    assert_eq!(ask(&mut nodes, 2, &load("lib", "a")), "$3 lib");
    assert_eq!(ask(&mut nodes, 3, "FUNCTION DELETE lib"), "+OK", "it is there again: this removes it");
    for node in 1..=3 {
        assert_eq!(ask(&mut nodes, node, "FUNCTION LIST"), "*0");
        assert_eq!(ask(&mut nodes, node, "FUNCTION FLUSH"), "+OK");
    }
    // A new leader, too, knows what has been made.
    assert_eq!(ask(&mut nodes, 1, &load("other", "a")), "$5 other");
    let leader = nodes.leader().expect("one leads");
    nodes.kill(leader);
    nodes.elect();
    let alive: Vec<_> = (1..=3).filter(|node| *node != leader && *node != 1).collect();
    assert_eq!(ask(&mut nodes, alive[0], &load("other", "a")), "$5 other");
}

/// That a node holds nothing of a group is believed of the time when it said so. If it has been a member since, it must
/// say so again before it becomes one again.
#[test]
fn a_node_that_was_let_go_at_once_comes_again_when_it_says_that_it_holds_nothing() {
    const VACANT: u8 = 44;
    let mut settings = Settings::default();
    settings.set("replicas", "2").expect("a parameter of ours");
    let mut host = Host::of_nodes_placed(3, settings, 1, &[1], &[(GroupId(1), &[1, 2]), (GroupId(2), &[1, 3])]);
    let client = host.connect(0);
    let is_member = |host: &Host| {
        let told = host.log.iter().rfind(|line| line.starts_with("group 1: voters "));
        told.is_some_and(|line| line.ends_with("learners [2]"))
    };
    let pass = |host: &mut Host, tenths: u64| (0..tenths).for_each(|_| host.pass(Duration::from_millis(100)));
    pass(&mut host, 20);
    assert!(!is_member(&host), "it has not said anything: {:?}", host.log);
    host.hear(NodeId(2), GroupId(1), &[VACANT, 1]);
    pass(&mut host, 3);
    assert!(is_member(&host), "{:?}", host.log);
    for nodes in ["1 3", "1 2"] {
        assert_eq!(host.run(client, &format!("HOLDFAST PLACE 1 {nodes}")), "+OK");
        pass(&mut host, 4);
        assert!(!is_member(&host), "{nodes}: {:?}", host.log);
    }
    host.hear(NodeId(2), GroupId(1), &[VACANT, 1]);
    pass(&mut host, 3);
    assert!(is_member(&host), "{:?}", host.log);
}
