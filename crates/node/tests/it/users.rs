//! Users of a cluster: what is said through one node holds on all.

use group::ids::SessionId;
use node::settings::Settings;
use stdx::Duration;

use crate::cluster::Nodes;

fn say(nodes: &mut Nodes, node: usize, session: SessionId, line: &str) -> String {
    let heard = nodes.run(node, session, line);
    nodes.pass(Duration::from_millis(100));
    heard + &nodes.host(node).received(session)
}

#[test]
fn a_user_made_through_one_node_is_known_to_all_and_gone_from_all_when_removed() {
    let mut nodes = Nodes::new();
    let admins = [1, 2, 3].map(|node| nodes.host(node).connect(0));
    assert_eq!(say(&mut nodes, 2, admins[1], "ACL SETUSER alice on >wonder ~a* +@all"), "+OK");
    nodes.pass(Duration::from_millis(500));
    let clients = [1, 2, 3].map(|node| nodes.host(node).connect(0));
    for (node, client) in (1..).zip(clients) {
        assert_eq!(say(&mut nodes, node, client, "AUTH alice wonder"), "+OK", "node {node}");
        assert_eq!(say(&mut nodes, node, client, "SET a1 x"), "+OK");
        assert!(say(&mut nodes, node, client, "SET b1 x").starts_with("-NOPERM"));
    }
    // Each node adds to what the others have said.
    for (node, rule) in [(1, "~b*"), (3, "-set"), (2, "+get")] {
        let line = format!("ACL SETUSER alice {rule}");
        assert_eq!(say(&mut nodes, node, admins[node - 1], &line), "+OK");
    }
    nodes.pass(Duration::from_millis(500));
    let lists = [1, 2, 3].map(|node| say(&mut nodes, node, admins[node - 1], "ACL LIST"));
    assert!(lists.iter().all(|list| *list == lists[0]), "{lists:?}");
    assert!(lists[0].contains("~a* ~b*") && lists[0].contains("-set") && !lists[0].contains("wonder"), "{lists:?}");
    assert!(say(&mut nodes, 1, clients[0], "SET a1 x").starts_with("-NOPERM"), "also who is logged in");

    let refused = say(&mut nodes, 1, admins[0], "ACL SETUSER alice +nosuch");
    assert!(refused.starts_with("-ERR Error in ACL SETUSER modifier '+nosuch'"), "{refused}");
    assert_eq!(say(&mut nodes, 3, admins[2], "ACL DELUSER alice nobody"), ":1");
    assert_eq!(say(&mut nodes, 3, admins[2], "ACL DELUSER alice"), ":0");
    nodes.pass(Duration::from_millis(500));
    for (node, admin) in (1..).zip(admins) {
        assert_eq!(say(&mut nodes, node, admin, "ACL USERS"), "*1 $7 default");
        assert_eq!(say(&mut nodes, node, admin, "CONFIG GET user*"), "*0", "they are no parameters");
    }
}

#[test]
fn two_changes_of_one_user_at_the_same_time_are_both_made() {
    let mut nodes = Nodes::new();
    let admins = [1, 2, 3].map(|node| nodes.host(node).connect(0));
    for round in 0..5 {
        for (node, admin) in (1..).zip(admins) {
            let line = format!("ACL SETUSER bob ~n{node}:{round}:* on\r\n");
            nodes.host(node).send(admin, line.as_bytes());
            // A second one of the same node stands right behind it.
            let line = format!("ACL SETUSER bob ~m{node}:{round}:*\r\n");
            nodes.host(node).send(admin, line.as_bytes());
        }
        nodes.pass(Duration::from_secs(2));
        for (node, admin) in (1..).zip(admins) {
            assert_eq!(nodes.host(node).received(admin), "+OK +OK");
        }
    }
    let list = say(&mut nodes, 1, admins[0], "ACL LIST");
    for round in 0..5 {
        for node in 1..=3 {
            assert!(
                list.contains(&format!("~n{node}:{round}:*")) && list.contains(&format!("~m{node}:{round}:*")),
                "{list}"
            );
        }
    }
}

#[test]
fn a_password_set_in_a_cluster_is_for_all_nodes_and_one_to_start_with_is_a_nodes_own() {
    let mut settings = Settings::default();
    settings.set("requirepass", "own").expect("a password");
    let mut nodes = Nodes::with(&settings);
    let admin = nodes.host(1).connect(0);
    assert_eq!(say(&mut nodes, 1, admin, "AUTH own"), "+OK");
    assert_eq!(say(&mut nodes, 1, admin, "CONFIG SET requirepass all slowlog-max-len 7"), "+OK");
    nodes.pass(Duration::from_millis(500));
    for node in 1..=3 {
        let client = nodes.host(node).connect(0);
        assert!(say(&mut nodes, node, client, "AUTH own").starts_with("-WRONGPASS"), "node {node}");
        assert_eq!(say(&mut nodes, node, client, "AUTH all"), "+OK");
        assert!(say(&mut nodes, node, client, "CONFIG GET slowlog-max-len").ends_with(" 7"));
    }
    // Nobody to log it: it is refused, and nothing changes.
    let leader = nodes.leader().expect("elected");
    let gateway = leader % 3 + 1;
    nodes.kill(leader);
    nodes.kill(gateway % 3 + 1);
    let client = nodes.host(gateway).connect(0);
    assert_eq!(say(&mut nodes, gateway, client, "AUTH all"), "+OK");
    nodes.host(gateway).send(client, b"ACL SETUSER late on\r\n");
    nodes.pass(Duration::from_secs(7));
    let heard = nodes.host(gateway).received(client);
    assert!(heard.starts_with("-CLUSTERDOWN"), "{heard}");
    assert_eq!(say(&mut nodes, gateway, client, "ACL USERS"), "*1 $7 default");
}
