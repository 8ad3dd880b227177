//! Whether the other nodes of a cluster have all that a damaged node had.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use edge::Contact;
use journal::Identity;
use serde_json::Value;

use crate::cluster::door::{Door, ask_status, list, number, text};

/// How long the others may take until a majority without the damaged node has all that there was when they were first
/// asked.
const PATIENCE: Duration = Duration::from_secs(30);
/// What they say must hold for so long: a member that has just come back is believed for a moment what it had before.
const PROOF: Duration = Duration::from_secs(3);
const INTERVAL: Duration = Duration::from_millis(250);
/// What a leader has said longer ago counts no more.
const STALE_MS: u64 = 3_000;

/// What a damaged node is to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The others hold the group, and it is one of them: they have a log that reaches so far.
    Member {
        /// In which term.
        term: u64,
        /// Up to which entry.
        last: u64,
    },
    /// The group lives on other nodes.
    Stranger {
        /// In which term.
        term: u64,
    },
}

/// What the others have said.
pub struct Others {
    /// What the node is to each group.
    pub groups: Vec<Standing>,
    /// Where they are found.
    pub contacts: Vec<Contact>,
}

impl Others {
    /// Asks until a majority of each group is known to have, without this node, all that there was at the first
    /// question.
    pub fn ask(door: &Door, identity: &Identity) -> Result<Self> {
        let mut connection = door.open().context(
            "another node of the cluster must say that the others have everything: name one with --host and --port",
        )?;
        let first = ask_status(&mut connection)?;
        let begun = Instant::now();
        let mut since = None;
        loop {
            let status = ask_status(&mut connection)?;
            match judge(&first, &status, identity) {
                Ok(others) => {
                    if since.get_or_insert_with(Instant::now).elapsed() >= PROOF {
                        return Ok(others);
                    }
                }
                Err(Obstacle::Lasting(why)) => bail!("{why}"),
                Err(Obstacle::Passing(why)) => {
                    since = None;
                    ensure!(begun.elapsed() < PATIENCE, "{why}");
                }
            }
            thread::sleep(INTERVAL);
        }
    }
}

/// Why a node cannot be repaired.
#[derive(Debug, PartialEq, Eq)]
enum Obstacle {
    /// It cannot be.
    Lasting(String),
    /// Not now.
    Passing(String),
}

/// Compares what the others have with what they had at first.
fn judge(first: &Value, status: &Value, identity: &Identity) -> Result<Others, Obstacle> {
    let lasting = |why: String| Err(Obstacle::Lasting(why));
    let own = identity.node.to_string();
    let cluster = format!("{:032x}", identity.cluster);
    if text(status, "cluster") != cluster {
        return lasting(format!("the node that was asked is of another cluster, {}", text(status, "cluster")));
    }
    if text(status, "node") == own {
        return lasting(format!("the node that was asked is node {own} itself, from another directory"));
    }
    let nodes = list(status, "nodes");
    let Some(node) = nodes.iter().find(|node| text(node, "id") == own) else {
        return lasting(format!("node {own} belongs to the cluster no more: use an empty directory, and join again"));
    };
    if number(node, "linked") == 1 {
        return Err(Obstacle::Passing(format!("a process runs as node {own}, and the others hear it: stop it first")));
    }
    let groups = list(status, "groups");
    if groups.len() != identity.group_count as usize {
        return lasting(format!("the cluster has {} groups, and the directory {}", groups.len(), identity.group_count));
    }
    let standings = groups.iter().zip(list(first, "groups")).map(|(group, before)| standing(group, before, &own));
    let contacts = nodes.iter().filter(|node| text(node, "id") != own).filter_map(|node| {
        let cluster_address = text(node, "cluster").to_owned();
        Some(Contact { node: text(node, "id").parse().ok()?, cluster_address })
    });
    Ok(Others { groups: standings.collect::<Result<_, _>>()?, contacts: contacts.collect() })
}

fn standing(group: &Value, before: &Value, own: &str) -> Result<Standing, Obstacle> {
    let id = number(group, "group");
    let leader = text(group, "leader");
    if leader.is_empty() || leader == own || number(group, "told_ms") > STALE_MS {
        return Err(Obstacle::Passing(format!("group {id} has no leader: too few of its other nodes are there")));
    }
    let has = |role: &str| list(group, role).iter().any(|node| node.as_str() == Some(own));
    let term = number(group, "term");
    let last = number(group, "last");
    if !has("voters") {
        return Ok(if has("learners") { Standing::Member { term, last } } else { Standing::Stranger { term } });
    }
    let voters = list(group, "voters");
    let wanted = number(before, "last");
    // The node that is asked may be a leader, and then its word is current.
    let holds = |voter: &str| {
        voter == leader
            || list(group, "followers").iter().any(|follower| {
                text(follower, "node") == voter
                    && number(follower, "active") == 1
                    && text(follower, "feed") != "checkpoint"
                    && last.saturating_sub(number(follower, "behind_entries")) >= wanted
            })
    };
    let holders = voters.iter().filter_map(Value::as_str).filter(|voter| *voter != own && holds(voter)).count();
    let needed = voters.len() / 2 + 1;
    if holders < needed {
        return Err(Obstacle::Passing(format!(
            "group {id} could lose what was acknowledged: without node {own}, {holders} of its {} voters hold all of it, and \
             {needed} must",
            voters.len()
        )));
    }
    Ok(Standing::Member { term, last })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const DAMAGED: Identity = Identity {
        directory: 1,
        cluster: 7,
        node: 3,
        group_count: 1,
        hash_seed: 4,
        has_joined: true,
        level: stdx::Level::FIRST,
    };

    /// A cluster of three; followers with what they lack and whether they are heard.
    fn status(leader: &str, last: u64, followers: &[(&str, u64, bool)], linked: u64) -> Value {
        let followers: Vec<Value> = followers
            .iter()
            .map(|(node, behind, active)| {
                json!({"node": node, "active": u64::from(*active), "feed": "streaming", "behind_entries": behind})
            })
            .collect();
        json!({
            "node": "1",
            "cluster": format!("{:032x}", 7),
            "nodes": [
                {"id": "1", "cluster": "a:1", "linked": 1},
                {"id": "2", "cluster": "b:1", "linked": 1},
                {"id": "3", "cluster": "c:1", "linked": linked},
            ],
            "groups": [{
                "group": 0, "leader": leader, "term": 4, "last": last, "told_ms": 0,
                "voters": ["1", "2", "3"], "learners": [], "followers": followers,
            }],
        })
    }

    #[test]
    fn a_node_is_replaced_only_if_a_majority_of_the_others_has_everything() {
        let first = status("1", 100, &[("2", 40, true), ("3", 0, false)], 0);
        let passing = |status: &Value| matches!(judge(&first, status, &DAMAGED), Err(Obstacle::Passing(_)));
        let good = status("1", 130, &[("2", 30, true), ("3", 60, false)], 0);
        let others = judge(&first, &good, &DAMAGED).expect("2 holds what there was");
        assert_eq!(others.groups, [Standing::Member { term: 4, last: 130 }]);
        let places: Vec<_> = others.contacts.iter().map(|other| (other.node, &other.cluster_address[..])).collect();
        assert_eq!(places, [(1, "a:1"), (2, "b:1")]);
        assert!(passing(&first), "2 lacks forty entries");
        assert!(passing(&status("1", 130, &[("2", 0, false), ("3", 0, false)], 0)), "2 is not heard");
        assert!(passing(&status("", 130, &[("2", 0, true)], 0)), "nobody leads");
        assert!(passing(&status("3", 130, &[("2", 0, true)], 0)), "the node itself leads");
        assert!(passing(&status("1", 130, &[("2", 0, true), ("3", 0, false)], 1)), "it runs");
    }

    #[test]
    fn what_is_no_node_of_the_cluster_is_refused_at_once() {
        let good = status("1", 100, &[("2", 0, true)], 0);
        let lasting = |identity: &Identity| matches!(judge(&good, &good, identity), Err(Obstacle::Lasting(_)));
        assert!(lasting(&Identity { cluster: 8, ..DAMAGED }));
        assert!(lasting(&Identity { node: 9, ..DAMAGED }), "it was removed");
        assert!(lasting(&Identity { node: 1, ..DAMAGED }), "it runs, and is asked");
        assert!(lasting(&Identity { group_count: 2, ..DAMAGED }));
    }

    #[test]
    fn a_group_that_lives_elsewhere_needs_nothing() {
        let mut elsewhere = status("1", 100, &[("2", 0, true)], 0);
        elsewhere["groups"][0]["voters"] = json!(["1", "2"]);
        let others = judge(&elsewhere, &elsewhere, &DAMAGED).expect("nothing is lost");
        assert_eq!(others.groups, [Standing::Stranger { term: 4 }]);
        elsewhere["groups"][0]["learners"] = json!(["3"]);
        let others = judge(&elsewhere, &elsewhere, &DAMAGED).expect("it had no say");
        assert_eq!(others.groups, [Standing::Member { term: 4, last: 100 }]);
    }
}
