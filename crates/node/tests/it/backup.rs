//! The cut of a backup, and changes of leader meanwhile.

use group::ids::GroupId;
use node::settings::Settings;
use stdx::Duration;

use crate::cluster::{ANSWER, Nodes, REQUEST};

const BEGIN: &str = "BACKUP BEGIN 000102030405060708090a0b0c0d0e0f";

/// A key of each of two groups.
const KEYS: [&str; 2] = ["b", "a"];

/// The first group's leader is not heard by its voters any more, and does not know it yet. They elect another, which
/// carries out a transaction that the first has not heard of. What the first would give to a backup is older than what
/// the second group gives.
#[test]
fn a_leader_that_has_been_replaced_and_does_not_know_it_gives_no_part_of_a_backup() {
    let mut nodes = Nodes::of_cores(2, &Settings::default());
    let mut met_count = 0;
    for attempt in 0..40 {
        let leaders = |nodes: &Nodes| [0, 1].map(|group| nodes.leader_of(GroupId(group)));
        for _ in 0..60 {
            nodes.pass(Duration::from_secs(1));
            if leaders(&nodes) == [Some(1), Some(2)] {
                break;
            }
        }
        nodes.pass(Duration::from_millis(1_000 + 50 * (attempt % 20)));
        assert_eq!(leaders(&nodes), [Some(1), Some(2)], "each node leads what it should");
        met_count += u32::from(begin_behind_the_back(&mut nodes));
        if met_count == 3 {
            return;
        }
    }
    panic!("nobody was elected before the old leader knew: met {met_count} times");
}

/// True if the story came about.
fn begin_behind_the_back(nodes: &mut Nodes) -> bool {
    let (operator, client) = (nodes.host(1).connect(0), nodes.host(2).connect(0));
    assert_eq!(nodes.run(2, client, &format!("MSET {} 100 {} 100", KEYS[0], KEYS[1])), "+OK");
    let is_between_others = |from: usize, to: usize| from != 1 && to != 1;
    nodes.host(1).send(operator, format!("{BEGIN}\r\n").as_bytes());
    nodes.host(1).settle();
    // The first group is locked, and the question to the second is under way.
    let mut is_elected = false;
    while !is_elected && nodes.host(1).is_serving(GroupId(0)) {
        nodes.pass_while(Duration::from_millis(50), |from, to, _| is_between_others(from, to));
        is_elected = [2, 3].into_iter().any(|node| nodes.host(node).is_serving(GroupId(0)));
    }
    nodes.host(2).send(client, format!("MSET {} 50 {} 150\r\n", KEYS[0], KEYS[1]).as_bytes());
    nodes.host(2).settle();
    nodes.exchange(|from, to, _| is_between_others(from, to));
    let is_met = nodes.host(2).received(client) == "+OK" && nodes.host(1).is_serving(GroupId(0));

    // The request reaches the second group, and its answer the gateway; all else between them is late.
    nodes.exchange(|from, to, kind| {
        is_between_others(from, to) || (from, to, kind) == (1, 2, REQUEST) || (from, to, kind) == (2, 1, ANSWER)
    });
    let mut begun = nodes.host(1).received(operator);
    assert!(!is_met || begun.is_empty(), "nobody has confirmed that the first leader still leads: {begun}");
    // It begins again where the groups are led now.
    nodes.pass(Duration::from_secs(4));
    begun += &nodes.host(1).received(operator);
    assert!(begun.starts_with("*5 :2 :16 ") || (!is_met && begun.starts_with('-')), "{begun}");
    for group in 0..2 {
        let end = BEGIN.replace("BEGIN", "END") + &format!(" {group}");
        nodes.run(1, operator, &end);
    }
    is_met
}
