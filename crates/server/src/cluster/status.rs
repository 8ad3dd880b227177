//! `holdfast cluster status`.

use std::fmt::Write as _;

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::Value;

use super::door::{Door, ask_status, ask_timeline, list, number, text};
use super::{timeline, upgrade};
use crate::output::table;

/// Happenings that are shown with a status.
const HAPPENING_COUNT: usize = 5;

/// Happenings among which the cause of a move is looked for.
const CAUSE_COUNT: usize = 200;

/// Show nodes, links and groups, and how far followers are behind.
#[derive(Debug, Args)]
pub struct StatusArguments {
    #[command(flatten)]
    door: Door,
    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
}

/// Asks and prints.
pub fn run(arguments: &StatusArguments) -> Result<()> {
    let mut connection = arguments.door.open()?;
    let status = ask_status(&mut connection)?;
    if arguments.json {
        say_line!("{}", serde_json::to_string_pretty(&status)?);
        return check_membership(&status);
    }
    let mut happenings = ask_timeline(&mut connection, CAUSE_COUNT)?;
    say!("{}{}", page(&status), causes(&status, &happenings));
    happenings.truncate(HAPPENING_COUNT);
    if !happenings.is_empty() {
        say!("\nlatest events\n{}", timeline::lines(&happenings, Some(&status)));
    }
    check_membership(&status)
}

/// True if the node that was asked has been removed: it hears of nothing that happens in the cluster any more.
fn is_removed(status: &Value) -> bool {
    let own = text(status, "node");
    let is_own = |id: &Value| id.as_str() == Some(own);
    list(status, "removed").iter().any(is_own)
        || list(status, "nodes").iter().any(|node| text(node, "id") == own && text(node, "state") == "removed")
}

fn check_membership(status: &Value) -> Result<()> {
    ensure!(!is_removed(status), "this node has been removed from its cluster: ask another node");
    Ok(())
}

/// A status as people read it.
pub fn page(status: &Value) -> String {
    let (nodes, groups) = (list(status, "nodes"), list(status, "groups"));
    let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut page = String::new();
    if is_removed(status) {
        page.push_str("this node has been removed from its cluster; what follows is the last that it has heard\n\n");
    }
    let _ = write!(page, "{}, {}", count(nodes.len(), "node"), count(groups.len(), "group"));
    let _ = write!(page, ", level {}, as node {} sees it\n\n", number(status, "level"), text(status, "node"));
    write_nodes(nodes, &mut page);
    for remark in upgrade::remarks(status) {
        let _ = writeln!(page, "{remark}");
    }
    for node in nodes.iter().filter(|node| number(node, "replaced") == 1) {
        let _ = writeln!(page, "others take the places of {}", name(status, text(node, "id")));
    }
    for node in nodes.iter().filter(|node| !text(node, "last_cut").is_empty()) {
        let link = if number(node, "linked") == 1 { "was last lost" } else { "is down" };
        let _ = writeln!(page, "the link to {} {link}: {}", name(status, text(node, "id")), text(node, "last_cut"));
    }
    for (stage, what) in [("writing", "writes a checkpoint"), ("due", "waits for its turn to write a checkpoint")] {
        for node in nodes.iter().filter(|node| text(node, "checkpoint") == stage) {
            let _ = writeln!(page, "{} {what}", name(status, text(node, "id")));
        }
    }
    page.push('\n');
    let mut rows = vec![
        ["group", "slots", "leader", "term", "applied", "held by", "voters", "furthest behind"].map(str::to_owned),
    ];
    for group in groups {
        let leader = match text(group, "leader") {
            "" => "nobody".to_owned(),
            leader => name(status, leader),
        };
        rows.push([
            number(group, "group").to_string(),
            text(group, "slots").to_owned(),
            leader,
            number(group, "term").to_string(),
            number(group, "applied").to_string(),
            holders(group),
            list(group, "voters").len().to_string(),
            // What the last leader said of that is not so any more.
            if text(group, "leader").is_empty() { "unknown".to_owned() } else { furthest_behind(status, group) },
        ]);
    }
    table(&rows, &mut page);
    for group in groups.iter().filter(|group| text(group, "leader").is_empty() && number(group, "leaderless_ms") > 0) {
        let (id, seconds) = (number(group, "group"), number(group, "leaderless_ms") / 1_000);
        let missing = list(group, "not_heard").iter().filter_map(Value::as_str).map(|node| name(status, node));
        let missing: Vec<_> = missing.collect();
        let of = list(group, "voters").len();
        let _ = match missing.len() {
            0 if of == 0 => {
                writeln!(page, "group {id} has had no leader for {seconds} s, and who votes in it is not known here")
            }
            0 => writeln!(page, "group {id} has had no leader for {seconds} s, although all its {of} voters are heard"),
            count => {
                let nodes = missing.join(", ");
                writeln!(
                    page,
                    "group {id} has had no leader for {seconds} s: {count} of its {of} voters not heard: {nodes}"
                )
            }
        };
    }
    page.push_str(&under_way(status));
    page
}

/// What goes on: groups that move, merge or split, and slots that are on their way to other groups.
pub fn under_way(status: &Value) -> String {
    let groups = list(status, "groups");
    let mut lines = String::new();
    let lists = |group: &Value, role: &str| list(group, role).to_vec();
    let moves = |group: &&Value| !list(group, "placed").is_empty() && lists(group, "placed") != lists(group, "voters");
    for group in groups.iter().filter(moves) {
        let nodes = list(group, "placed").iter().filter_map(Value::as_str).map(|node| name(status, node));
        let nodes: Vec<_> = nodes.collect();
        let _ = writeln!(lines, "group {} moves to {}", number(group, "group"), nodes.join(" "));
        lines.push_str(&on_its_way(status, group));
    }
    for group in groups.iter().filter(|group| list(group, "placed").is_empty()) {
        let copies = on_its_way(status, group);
        if !copies.is_empty() {
            let _ = writeln!(lines, "group {} is copied", number(group, "group"));
            lines.push_str(&copies);
        }
    }
    let goes = |group: &&Value| !text(group, "merges_into").is_empty();
    for group in groups.iter().filter(goes) {
        let (id, into) = (number(group, "group"), text(group, "merges_into"));
        let _ = match number(group, "to_give") {
            0 => writeln!(lines, "group {id} merges into group {into}: all slots have moved, and it is about to end"),
            count => writeln!(lines, "group {id} merges into group {into}: {count} slots are still to move"),
        };
    }
    for group in groups.iter().filter(|group| number(group, "to_give") > 0 && !goes(group)) {
        let (id, going) = (number(group, "group"), number(group, "to_split"));
        let count = number(group, "to_give").saturating_sub(going);
        let _ = match (going, count) {
            (0, _) => writeln!(lines, "group {id} has {count} slots to give to others"),
            (_, 0) => writeln!(lines, "group {id} is about to split: another group takes {going} of its slots"),
            _ => writeln!(
                lines,
                "group {id} is about to split: another group takes {going} of its slots. {count} more, which others are to \
                 have, wait for that"
            ),
        };
    }
    lines
}

/// A line for each node. Zones are shown where there are any.
fn write_nodes(nodes: &[Value], page: &mut String) {
    let has_zones = nodes.iter().any(|node| !text(node, "zone").is_empty());
    let row = |[id, clients, cluster, state, zone, leads, votes]: [String; 7]| match has_zones {
        true => vec![id, clients, cluster, state, zone, leads, votes],
        false => vec![id, clients, cluster, state, leads, votes],
    };
    let heads = ["node", "clients", "other nodes", "state", "zone", "leads", "votes in"];
    let mut rows = vec![row(heads.map(str::to_owned))];
    for node in nodes {
        let [id, clients, cluster, state, zone] =
            ["id", "clients", "cluster", "state", "zone"].map(|field| text(node, field).to_owned());
        let leads = list(node, "leads").len().to_string();
        rows.push(row([id, clients, cluster, state, zone, leads, number(node, "votes").to_string()]));
    }
    table(&rows, page);
}

/// How far the nodes are that are being given a group.
fn on_its_way(status: &Value, group: &Value) -> String {
    let bytes = number(group, "bytes");
    let megabytes = |bytes: u64| bytes.div_ceil(1_000_000);
    let mut lines = String::new();
    for follower in list(group, "followers").iter().filter(|follower| text(follower, "feed") == "checkpoint") {
        let node = name(status, text(follower, "node"));
        let given = bytes.saturating_sub(number(follower, "behind_bytes"));
        let _ = writeln!(lines, "  {node} has been given {} of about {} MB", megabytes(given), megabytes(bytes));
    }
    lines
}

/// Why groups move that are on their way, as the timeline tells it.
pub fn causes(status: &Value, happenings: &[Value]) -> String {
    let mut lines = String::new();
    for group in list(status, "groups").iter().filter(|group| list(group, "placed") != list(group, "voters")) {
        let number = number(group, "group");
        let is_it = |happening: &&Value| {
            text(happening, "kind") == "placement" && happening.get("group").and_then(Value::as_u64) == Some(number)
        };
        let of_group = happenings.iter().filter(is_it).map(|happening| text(happening, "text"));
        // Nodes of older versions say it in the second way.
        let tells =
            |text: &&str| ["is assigned to nodes ", "is to live on nodes "].iter().any(|it| text.starts_with(it));
        let cause = of_group.filter(tells).find_map(|text| text.split_once(": "));
        if let Some((_, cause)) = cause.filter(|_| !list(group, "placed").is_empty()) {
            let _ = writeln!(lines, "group {number} moves because {}", timeline::named(cause, Some(status)));
        }
    }
    lines
}

/// The nodes that hold a group, by their numbers.
fn holders(group: &Value) -> String {
    let members = ["voters", "learners"].iter().flat_map(|role| list(group, role));
    let mut nodes: Vec<&str> = members.filter_map(Value::as_str).collect();
    nodes.sort_by_key(|node| (node.len(), *node));
    nodes.join(" ")
}

/// The member of a group that lacks most.
fn furthest_behind(status: &Value, group: &Value) -> String {
    let followers = list(group, "followers");
    let lag = |other: &&Value| (number(other, "active") == 0, number(other, "behind_entries"));
    let Some(last) = followers.iter().max_by_key(lag) else { return String::new() };
    let name = name(status, text(last, "node"));
    let (entries, bytes) = (number(last, "behind_entries"), number(last, "behind_bytes"));
    let silent_s = number(last, "silent_ms") / 1_000;
    match (number(last, "active"), text(last, "feed"), entries) {
        (0, _, _) => format!("{name}: silent for {silent_s} s, lacks {entries} entries ({bytes} bytes)"),
        (_, "checkpoint", _) => format!("{name}: is given a checkpoint"),
        (_, _, 0) => "none".to_owned(),
        (_, "disk", _) => format!("{name}: {entries} entries ({bytes} bytes), fed from disk"),
        _ => format!("{name}: {entries} entries ({bytes} bytes)"),
    }
}

/// What people know a node by: where clients find it.
pub fn name(status: &Value, id: &str) -> String {
    let node = list(status, "nodes").iter().find(|node| text(node, "id") == id);
    match node.map(|node| text(node, "clients")) {
        Some("") | None => format!("node {id}"),
        Some(address) => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_page_names_nodes_by_where_clients_find_them() {
        let node = |id: &str, state: &str, cut: &str| {
            json!({"id": id, "clients": format!("10.0.0.{id}:6379"), "cluster": format!("10.0.0.{id}:16379"),
                   "state": state, "leads": ["0"], "votes": 1, "linked": 0, "last_cut": cut})
        };
        let follower = json!({"node": "2", "active": 0, "feed": "probing", "behind_entries": 7, "behind_bytes": 90,
                              "silent_ms": 3500});
        let group = json!({"group": 0, "slots": "0-16383", "leader": "1", "term": 4, "applied": 12,
                           "voters": ["1", "2"], "followers": [follower]});
        let status = json!({"node": "1", "level": 2, "nodes": [node("1", "here", ""), node("2", "down", "refused")],
                            "groups": [group]});
        let expected = "\
2 nodes, 1 group, level 2, as node 1 sees it

node  clients        other nodes     state  leads  votes in
1     10.0.0.1:6379  10.0.0.1:16379  here   1      1
2     10.0.0.2:6379  10.0.0.2:16379  down   1      1
the link to 10.0.0.2:6379 is down: refused

group  slots    leader         term  applied  held by  voters  furthest behind
0      0-16383  10.0.0.1:6379  4     12       1 2      2       10.0.0.2:6379: silent for 3 s, lacks 7 entries (90 bytes)
";
        assert_eq!(page(&status), expected);
    }

    #[test]
    fn a_node_that_was_removed_says_so_first() {
        let node = |state: &str| json!({"id": "2", "clients": "a:1", "cluster": "a:2", "state": state, "leads": []});
        let told = |state: &str, removed: Value| {
            let status = json!({"node": "2", "level": 2, "nodes": [node(state)], "groups": [], "removed": removed});
            (page(&status).starts_with("this node has been removed"), check_membership(&status).is_err())
        };
        assert_eq!(told("here", json!(["3"])), (false, false));
        assert_eq!(told("removed", json!([])), (true, true));
        assert_eq!(told("here", json!(["2"])), (true, true));
    }

    #[test]
    fn a_move_is_shown_with_its_cause_and_how_far_it_is() {
        let node = |id: &str, zone: &str| {
            json!({"id": id, "clients": format!("10.0.0.{id}:6379"), "cluster": "", "state": "up", "zone": zone,
                   "leads": [], "votes": 1, "replaced": u8::from(id == "2"), "linked": 1, "last_cut": ""})
        };
        let follower = json!({"node": "3", "active": 1, "feed": "checkpoint", "behind_bytes": 30_000_000});
        let group = json!({"group": 1, "slots": "", "leader": "1", "voters": ["1", "2"], "placed": ["1", "3"],
                           "bytes": 80_000_000, "followers": [follower]});
        let status = json!({"node": "1", "nodes": [node("1", "a"), node("2", ""), node("3", "b")], "groups": [group]});
        let page = page(&status);
        assert!(page.contains("node  clients        other nodes  state  zone  leads  votes in\n"), "{page}");
        assert!(page.contains("others take the places of 10.0.0.2:6379\n"), "{page}");
        let told = "group 1 moves to 10.0.0.1:6379 10.0.0.3:6379\n  10.0.0.3:6379 has been given 50 of about 80 MB\n";
        assert!(page.ends_with(told), "{page}");
        let happening = |text: &str| json!({"kind": "placement", "group": 1, "text": text});
        let cause = "is assigned to nodes 1, 3: zone b has no copy of group 1, and zone a has 2";
        let older = "is to live on nodes 1, 2: node 2 comes to it";
        let told = causes(&status, &[happening("is founded"), happening(cause), happening(older)]);
        assert_eq!(told, "group 1 moves because zone b has no copy of group 1, and zone a has 2\n");
        let told =
            causes(&status, &[happening("is assigned to nodes 1, 3: node 3 takes the place of node 9, which leaves")]);
        let expected = "group 1 moves because 10.0.0.3:6379 takes the place of node 9, which leaves\n";
        assert_eq!(told, expected, "nodes are named by where clients find them");
    }

    #[test]
    fn moves_that_wait_for_a_split_are_said_to_do_so() {
        let told = |to_give: u64, to_split: u64| {
            let group = json!({"group": 3, "slots": "0-16383", "leader": "1", "voters": ["1"], "to_give": to_give,
                               "to_split": to_split});
            let page = page(&json!({"node": "1", "nodes": [], "groups": [group]}));
            page.lines().last().unwrap_or_default().to_owned()
        };
        assert_eq!(told(7, 0), "group 3 has 7 slots to give to others");
        let splits = "group 3 is about to split: another group takes 40 of its slots";
        assert_eq!(told(40, 40), splits);
        assert_eq!(told(47, 40), format!("{splits}. 7 more, which others are to have, wait for that"));
    }

    #[test]
    fn a_group_without_a_leader_is_said_to_have_none_since_when_and_who_is_missed() {
        let node = |id: &str, state: &str| {
            json!({"id": id, "clients": format!("10.0.0.{id}:6379"), "cluster": "", "state": state, "leads": [],
                   "votes": 1, "linked": 0, "last_cut": ""})
        };
        let follower = json!({"node": "2", "active": 1, "feed": "streaming", "behind_entries": 0, "behind_bytes": 0,
                              "silent_ms": 3});
        let group = json!({"group": 0, "slots": "0-16383", "leader": null, "term": 4, "applied": 12,
                           "leaderless_ms": 12_345, "not_heard": ["2", "3"], "voters": ["1", "2", "3"],
                           "followers": [follower]});
        let nodes = [node("1", "here"), node("2", "down"), node("3", "down")];
        let page = page(&json!({"node": "1", "nodes": nodes, "groups": [group]}));
        assert!(page.contains("0      0-16383  nobody  4     12       1 2 3    3       unknown\n"), "{page}");
        let unknown = json!({"group": 0, "slots": "0-16383", "leader": null, "leaderless_ms": 9_000, "voters": []});
        let told = super::page(&json!({"node": "1", "nodes": [], "groups": [unknown]}));
        assert!(told.ends_with("has had no leader for 9 s, and who votes in it is not known here\n"), "{told}");
        let line = "group 0 has had no leader for 12 s: 2 of its 3 voters not heard: 10.0.0.2:6379, 10.0.0.3:6379\n";
        assert!(page.ends_with(line), "{page}");
    }
}
