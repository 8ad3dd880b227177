//! Stories of three nodes, one of which should not lead.

use group::ids::{GroupId, Room, SessionId};
use node::settings::Settings;
use stdx::Duration;

use crate::cluster::Nodes;
use crate::host::Host;

const FULL: &str = "-MISCONF No room on disk for this write on node ";

/// A client of each node.
fn clients(nodes: &mut Nodes) -> [SessionId; 3] {
    [1, 2, 3].map(|node| nodes.host(node).connect(0))
}

fn fill(nodes: &mut Nodes, full: &[usize]) {
    full.iter().for_each(|node| nodes.host(*node).tell_room(&Room::None("it is full".to_owned())));
}

/// A client asks, and time passes until it has an answer, in steps of 50 ms. Answers how many milliseconds that took.
fn ask(nodes: &mut Nodes, node: usize, client: SessionId, line: &str) -> (String, u64) {
    ask_apart(nodes, (0, 0), node, client, line)
}

/// The same while two nodes do not hear each other.
fn ask_apart(
    nodes: &mut Nodes,
    (one, other): (usize, usize),
    node: usize,
    client: SessionId,
    line: &str,
) -> (String, u64) {
    nodes.host(node).send(client, format!("{line}\r\n").as_bytes());
    nodes.host(node).settle();
    nodes.exchange(|from, to, _| (from, to) != (one, other) && (from, to) != (other, one));
    let mut answer = nodes.host(node).received(client);
    let mut waited_ms = 0;
    while answer.is_empty() && waited_ms < 20_000 {
        nodes.pass_apart(Duration::from_millis(50), (one, other));
        waited_ms += 50;
        answer = nodes.host(node).received(client);
    }
    (answer, waited_ms)
}

#[test]
fn a_leader_without_room_hands_over_and_clients_of_all_nodes_go_on() {
    for cores in [1, 2] {
        let mut nodes = Nodes::of_cores(cores, &Settings::default());
        nodes.pass(Duration::from_secs(1));
        let leader = nodes.leader().expect("elected");
        let clients = clients(&mut nodes);
        for (node, client) in (1..).zip(clients) {
            assert_eq!(nodes.run(node, client, &format!("SET {{n}}{node} before")), "+OK");
        }
        fill(&mut nodes, &[leader]);
        for (node, client) in (1..).zip(clients) {
            for (line, expected) in
                [("GET {n}1", "$6 before"), ("SET {n}2 x", "+OK"), ("INCR {m}3", ""), ("MSET n 1 m 2 o 3", "+OK")]
            {
                let (answer, waited_ms) = ask(&mut nodes, node, client, line);
                assert!(answer.contains(expected) && !answer.starts_with('-'), "node {node}: {line}: {answer}");
                assert!(waited_ms <= 1_000, "node {node}: {line}: {waited_ms} ms");
            }
            let (answer, waited_ms) = ask(&mut nodes, node, client, "SET {n}1 before");
            assert!((answer.as_str(), waited_ms <= 1_000) == ("+OK", true), "node {node}: {answer}, {waited_ms} ms");
        }
        for group in (0..u32::from(cores)).map(GroupId) {
            assert!(nodes.leader_of(group).is_some_and(|now| now != leader));
        }
        // It stays away as long as it is full, and a little longer.
        nodes.pass(Duration::from_secs(20));
        assert!(nodes.leader().is_some_and(|now| now != leader));
        nodes.host(leader).tell_room(&Room::Enough);
        nodes.pass(Duration::from_secs(15));
        assert_eq!(nodes.leader_of(GroupId(0)), Some(1), "leaders are spread again");
    }
}

#[test]
fn with_all_disks_full_writes_are_refused_at_once_and_reads_go_on() {
    let mut nodes = Nodes::of_cores(2, &Settings::default());
    nodes.pass(Duration::from_secs(1));
    let clients = clients(&mut nodes);
    assert_eq!(nodes.run(1, clients[0], "MSET n 1 m 2 o 3 p 4"), "+OK");
    fill(&mut nodes, &[1, 2, 3]);
    nodes.pass(Duration::from_millis(50));
    for round in 0..3 {
        for (node, client) in (1..).zip(clients) {
            for line in
                ["SET n 2", "SET m 2", "MULTI\r\nINCR n\r\nEXEC", "EVAL \"return redis.call('SET', KEYS[1], 1)\" 1 n"]
            {
                let (answer, waited_ms) = ask(&mut nodes, node, client, line);
                assert!(
                    answer.contains(FULL) && waited_ms <= 300,
                    "{round}, node {node}: {line}: {answer}, {waited_ms}"
                );
            }
            let (answer, waited_ms) = ask(&mut nodes, node, client, "MSET n 2 m 2 o 2");
            assert!(
                answer.starts_with("-MISCONF") && waited_ms <= 300,
                "{round}, node {node}: {answer}, {waited_ms} ms"
            );
            assert_eq!(ask(&mut nodes, node, client, "GET n"), ("$1 1".to_owned(), 0), "node {node}");
            assert_eq!(ask(&mut nodes, node, client, "MGET n m"), ("*2 $1 1 $1 2".to_owned(), 0), "node {node}");
        }
        nodes.pass(Duration::from_secs(3));
    }
    (1..=3).for_each(|node| nodes.host(node).tell_room(&Room::Enough));
    nodes.pass(Duration::from_secs(1));
    for (node, client) in (1..).zip(clients) {
        assert_eq!(ask(&mut nodes, node, client, "SET n 2").0, "+OK");
    }
}

#[test]
fn a_leader_whose_disk_takes_nothing_hands_over_to_one_whose_disk_does() {
    let mut nodes = Nodes::new();
    nodes.pass(Duration::from_secs(1));
    let leader = nodes.leader().expect("elected");
    let clients = clients(&mut nodes);
    assert_eq!(nodes.run(leader, clients[leader - 1], "SET n 1"), "+OK");
    nodes.host(leader).holds_disk = true;
    for (node, client) in (1..).zip(clients) {
        let (answer, waited_ms) = ask(&mut nodes, node, client, &format!("SET n{node} 1"));
        assert!(answer == "+OK" && waited_ms <= 1_500, "node {node}: {answer}, {waited_ms} ms");
        let (answer, waited_ms) = ask(&mut nodes, node, client, "GET n");
        assert!(answer == "$1 1" && waited_ms <= 1_000, "node {node}: {answer}, {waited_ms} ms");
    }
    assert!(nodes.leader().is_some_and(|now| now != leader));
}

/// Whenever its disk stops: all clients of its groups wait for as long as it takes to notice that.
#[test]
fn a_leader_looks_at_its_disk_at_every_tick_while_that_takes_nothing() {
    for phase in 0..6 {
        let mut nodes = Nodes::new();
        nodes.pass(Duration::from_secs(1));
        let leader = nodes.leader().expect("elected");
        let clients = clients(&mut nodes);
        nodes.pass(Duration::from_millis(35 * phase));
        assert_eq!(nodes.run(leader, clients[leader - 1], "SET n 1"), "+OK");
        nodes.host(leader).holds_disk = true;
        let (answer, waited_ms) = ask(&mut nodes, leader, clients[leader - 1], "SET n 2");
        assert!(answer == "+OK" && waited_ms <= 800, "{phase}: {answer}, {waited_ms} ms");
    }
}

#[test]
fn whatever_the_disks_do_everybody_has_an_answer_within_five_seconds() {
    let mut nodes = Nodes::new();
    nodes.pass(Duration::from_secs(1));
    let clients = clients(&mut nodes);
    assert_eq!(nodes.run(1, clients[0], "SET n 1"), "+OK");
    // The leader's disk takes nothing, and those of the others know nothing of room either: nobody can lead instead.
    (1..=3).for_each(|node| nodes.host(node).holds_disk = true);
    for (node, client) in (1..).zip(clients) {
        nodes.host(node).send(client, b"SET n 2\r\n");
    }
    fill(&mut nodes, &[1, 2, 3]);
    let readers = [1, 2, 3].map(|node| nodes.host(node).connect(0));
    let mut answers = [const { String::new() }; 3];
    for _ in 0..110 {
        nodes.pass(Duration::from_millis(50));
        // Others go on reading, and that writes are refused is an answer, too.
        for (place, reader) in readers.into_iter().enumerate() {
            nodes.host(place + 1).send(reader, b"GET n\r\nSET n 3\r\n");
            nodes.host(place + 1).received(reader);
            answers[place] += &nodes.host(place + 1).received(clients[place]);
        }
    }
    for answer in &answers {
        assert!(answer.starts_with("-CLUSTERDOWN ") || answer.starts_with(FULL), "{answers:?}");
    }
}

/// What was begun before the disks took nothing is never carried out, and what comes later is refused all the time.
#[test]
fn refusals_of_what_comes_later_keep_nobody_waiting() {
    let mut nodes = Nodes::new();
    nodes.pass(Duration::from_secs(1));
    let leader = nodes.leader().expect("elected");
    let gateways = [leader % 3 + 1, (leader + 1) % 3 + 1];
    let writers = gateways.map(|node| nodes.host(node).connect(0));
    let others = gateways.map(|node| nodes.host(node).connect(0));
    assert_eq!(nodes.run(gateways[0], writers[0], "SET n 1"), "+OK");
    (1..=3).for_each(|node| nodes.host(node).holds_disk = true);
    for (node, client) in gateways.into_iter().zip(writers) {
        nodes.host(node).send(client, b"SET n 2\r\n");
        nodes.host(node).settle();
    }
    nodes.exchange(|_, _, _| true);
    fill(&mut nodes, &[1, 2, 3]);
    let mut answered_ms = [None; 2];
    let mut refused_count = 0;
    for ms in (50..=10_000).step_by(50) {
        nodes.pass(Duration::from_millis(50));
        for (place, (node, client)) in gateways.into_iter().zip(writers).enumerate() {
            nodes.host(node).send(others[place], b"GET n\r\nSET m 3\r\n");
            refused_count += nodes.host(node).received(others[place]).matches(FULL).count();
            if !nodes.host(node).received(client).is_empty() {
                answered_ms[place].get_or_insert(ms);
            }
        }
    }
    assert!(refused_count > 50, "{refused_count}");
    assert!(answered_ms.iter().all(|ms| ms.is_some_and(|ms| ms <= 5_200)), "{answered_ms:?}");
}

#[test]
fn who_is_cut_off_from_a_leader_has_another_within_an_election() {
    for cut in [(1, 2), (2, 3), (1, 3)] {
        let mut nodes = Nodes::of_cores(3, &Settings::default());
        // Leaders are spread: each node leads a group.
        nodes.pass(Duration::from_secs(20));
        let leaders = |nodes: &Nodes| [0, 1, 2].map(|group| nodes.leader_of(GroupId(group)));
        assert_eq!(leaders(&nodes), [Some(1), Some(2), Some(3)]);
        let clients = clients(&mut nodes);
        // One key of each group.
        let keys = ["{bar}1", "b", "a"];
        for key in keys {
            assert_eq!(nodes.run(1, clients[0], &format!("SET {key} 0")), "+OK");
        }
        let mut worst_ms = 0;
        for round in 0..100 {
            for (node, client) in (1..).zip(clients) {
                for line in keys.map(|key| format!("INCR {key}")) {
                    let (answer, waited_ms) = ask_apart(&mut nodes, cut, node, client, &line);
                    assert!(answer.starts_with(':'), "cut {cut:?}, round {round}, node {node}: {line}: {answer}");
                    worst_ms = worst_ms.max(waited_ms);
                }
            }
            nodes.pass_apart(Duration::from_millis(100), cut);
        }
        assert!(worst_ms <= 1_500, "cut {cut:?}: {worst_ms} ms");
        let between = 6 - cut.0 - cut.1;
        assert_eq!(leaders(&nodes), [Some(between); 3], "all are led by the node that sees both");
        // It stays so as long as they are cut off, and not longer.
        nodes.pass_apart(Duration::from_secs(30), cut);
        assert_eq!(leaders(&nodes), [Some(between); 3]);
        nodes.pass(Duration::from_secs(30));
        assert_eq!(leaders(&nodes), [Some(1), Some(2), Some(3)]);
    }
}

#[test]
fn who_is_heard_by_nobody_moves_no_leader() {
    let mut nodes = Nodes::of_cores(3, &Settings::default());
    nodes.pass(Duration::from_secs(20));
    // A node that is cut off from all others loses its own group and changes nothing else.
    for _ in 0..100 {
        nodes.pass_while(Duration::from_millis(100), |from, to, _| from != 3 && to != 3);
        assert_eq!([0, 1].map(|group| nodes.leader_of(GroupId(group))), [Some(1), Some(2)]);
    }
}

#[test]
fn a_node_that_stops_hands_over_before_anybody_has_to_elect() {
    let mut nodes = Nodes::of_cores(2, &Settings::default());
    nodes.pass(Duration::from_secs(10));
    let clients = clients(&mut nodes);
    assert_eq!(nodes.run(2, clients[1], "MSET n 1 m 1 o 1"), "+OK");
    nodes.host(1).leave();
    nodes.host(1).settle();
    nodes.exchange(|_, _, _| true);
    for group in [0, 1].map(GroupId) {
        assert!(nodes.leader_of(group).is_some_and(|leader| leader != 1), "no time has passed");
    }
    for (node, client) in (1..).zip(clients) {
        for key in ["n", "m", "o"] {
            let (answer, waited_ms) = ask(&mut nodes, node, client, &format!("INCR {key}"));
            assert!(answer.starts_with(':') && waited_ms <= 50, "node {node}: {answer}, {waited_ms} ms");
        }
    }
    nodes.pass(Duration::from_secs(20));
    for group in [0, 1].map(GroupId) {
        assert!(nodes.leader_of(group).is_some_and(|leader| leader != 1), "it is given nothing back");
    }
}

#[test]
fn without_a_quorum_it_is_told_which_group_has_no_leader_who_is_missed_and_since_when() {
    let mut nodes = Nodes::new();
    nodes.pass(Duration::from_secs(2));
    let client = nodes.host(1).connect(0);
    assert_eq!(nodes.run(1, client, "SET n 1"), "+OK");
    let status = |nodes: &mut Nodes| nodes.run(1, client, "HOLDFAST CLUSTER");
    let well = status(&mut nodes);
    assert!(well.contains("$5 state $2 up") && !well.contains("$5 state $4 down"), "{well}");
    let cut_off = |from: usize, to: usize, _: u8| from != 1 && to != 1;
    nodes.pass_while(Duration::from_secs(10), cut_off);
    nodes.host(1).send(client, b"GET n\r\n");
    nodes.pass_while(Duration::from_secs(6), cut_off);
    let told = nodes.host(1).received(client);
    assert!(told.starts_with("-CLUSTERDOWN No quorum of the group answers: group 0 has had no leader for "), "{told}");
    assert!(told.contains(" s; not heard: node 2 for ") && told.contains(" s, node 3 for 1"), "{told}");
    // What the last leader had said contradicts nothing of this.
    nodes.host(1).send(client, b"HOLDFAST CLUSTER\r\nINFO replication\r\nINFO cluster\r\n");
    nodes.host(1).settle();
    let told = nodes.host(1).received(client);
    assert_eq!(told.matches("$5 state $4 down").count(), 2, "{told}");
    assert!(told.contains("$6 leader $-1") && !told.contains("$5 leads *1"), "{told}");
    assert!(told.contains("$9 not_heard *2 $1 2 $1 3") && !told.contains("$6 active :1"), "{told}");
    assert!(told.contains("leader=none,") && !told.contains(" active=1,"), "{told}");
    assert!(!told.contains("role:master connected_slaves:2"), "{told}");
    nodes.pass(Duration::from_secs(3));
    let well = status(&mut nodes);
    assert!(well.contains("$5 state $2 up") && !well.contains("$5 state $4 down"), "{well}");
    assert!(well.contains("$13 leaderless_ms :0") && well.contains("$9 not_heard *0"), "{well}");
}

#[test]
fn the_archive_is_told_when_a_leader_whose_log_may_be_shortened_has_no_room() {
    let mut settings = Settings::default();
    settings.set("archive", "/somewhere").expect("a parameter of ours");
    let mut nodes = Nodes::of_cores(1, &settings);
    // What each node has told last since then, that of the leader first.
    let said = |nodes: &mut Nodes, lead: &dyn Fn(&mut Nodes)| {
        (1..=3).for_each(|node| nodes.host(node).archived.clear());
        lead(nodes);
        nodes.pass(Duration::from_secs(3));
        let leader = nodes.leader().expect("one leads");
        let last = |node| nodes.host(node).archived.last().map(|news| news.lacks_room);
        [leader, leader % 3 + 1, (leader + 1) % 3 + 1].map(last)
    };
    said(&mut nodes, &|_| ());
    let told = said(&mut nodes, &|nodes| fill(nodes, &[1, 2, 3]));
    assert!(told[0] == Some(true) && !told[1..].contains(&Some(true)), "{told:?}");
    let told = said(&mut nodes, &|nodes| (1..=3).for_each(|node| nodes.host(node).tell_room(&Room::Enough)));
    assert!(told[0] == Some(false) && !told[1..].contains(&Some(true)), "{told:?}");
    // Nobody else has what a node by itself lacks.
    let mut alone = Host::new(1, settings);
    alone.tell_room(&Room::None("it is full".to_owned()));
    (0..30).for_each(|_| alone.pass(Duration::from_millis(100)));
    assert!(!alone.archived.is_empty() && alone.archived.iter().all(|news| !news.has_others));
    assert!(nodes.host(1).archived.iter().all(|news| news.has_others));
}

/// Nodes that know their cluster say every few hundred milliseconds how they are. A leader that leaves, or loses its
/// group to another node, waits until a voter has: one that does not know the cluster yet would lead, and take nothing
/// further.
#[test]
fn a_node_that_may_not_know_its_cluster_is_not_given_a_group() {
    const VITALS: u8 = 43;
    let mut nodes = Nodes::new();
    nodes.pass(Duration::from_secs(6));
    let leader = nodes.leader().expect("elected");
    let gateway = leader % 3 + 1;
    let client = nodes.host(gateway).connect(0);
    let silent = |_: usize, _: usize, kind: u8| kind != VITALS;
    nodes.pass_while(Duration::from_secs(2), silent);
    nodes.host(gateway).send(client, format!("HOLDFAST REMOVE {leader}\r\n").as_bytes());
    nodes.host(gateway).settle();
    nodes.pass_while(Duration::from_secs(5), silent);
    assert_eq!(nodes.leader(), Some(leader), "nobody has said that it could");
    assert_eq!(nodes.host(gateway).received(client), "+OK");
    nodes.pass(Duration::from_secs(3));
    assert!(nodes.leader().is_some_and(|next| next != leader), "{:?}", nodes.leader());
}
