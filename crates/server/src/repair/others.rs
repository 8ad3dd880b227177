//! Whether the other nodes of a cluster have all that a damaged node had.

use std::collections::BTreeMap;
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
    /// The others say that the group has gone: nobody votes in it, and this node has nothing to remember of it.
    Gone,
}

/// What the others have said.
pub struct Others {
    /// What the node is to each group.
    pub groups: BTreeMap<u32, Standing>,
    /// Where they are found.
    pub contacts: Vec<Contact>,
}

impl Others {
    /// How many groups there are: those that have gone left out.
    pub fn group_count(&self) -> usize {
        self.groups.values().filter(|standing| **standing != Standing::Gone).count()
    }

    /// Asks until a majority of each group is known to have, without this node, all that there was at the first
    /// question.
    pub fn ask(door: &Door, identity: &Identity) -> Result<Self> {
        let mut connection = door.open().context(
            "another node of the cluster must say that the others have everything: name one with --host and --port",
        )?;
        let begun = Instant::now();
        let mut first: Option<(Value, Duration)> = None;
        let mut since = None;
        loop {
            let asked = begun.elapsed();
            let status = ask_status(&mut connection)?;
            // What leaders said before the first question may lack the last that this node took part in.
            let (first, _) = match first.take().filter(|(first, asked)| !is_older(first, *asked)) {
                Some(known) => first.insert(known),
                None => {
                    since = None;
                    first.insert((status.clone(), asked))
                }
            };
            match judge(first, &status, identity) {
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
    // A node that this one has promised something asks again: no group may be taken for another one, or for gone, that
    // this node may have taken part in.
    if !knows_all(first, status) {
        return Err(Obstacle::Passing("the node that was asked does not know all groups of the cluster".to_owned()));
    }
    let gone = list(status, "gone").iter().filter_map(|gone| u32::try_from(number(gone, "group")).ok());
    let mut groups: BTreeMap<u32, Standing> = gone.map(|group| (group, Standing::Gone)).collect();
    for group in list(status, "groups") {
        let id = number(group, "group");
        // It may have come into being just now.
        let before = list(first, "groups").iter().find(|before| number(before, "group") == id).unwrap_or(group);
        let id = u32::try_from(id).map_err(|_| Obstacle::Lasting(format!("no group has the number {id}")))?;
        groups.insert(id, standing(group, before, &own)?);
    }
    let count = groups.keys().next_back().map_or(0, |last| last + 1).max(identity.group_count);
    if let Some(unknown) = (0..count).find(|group| !groups.contains_key(group)) {
        return lasting(format!(
            "no node knows whether group {unknown} exists: a vote of node {own} in it could be forgotten"
        ));
    }
    let contacts = nodes.iter().filter(|node| text(node, "id") != own).filter_map(|node| {
        let cluster_address = text(node, "cluster").to_owned();
        Some(Contact { node: text(node, "id").parse().ok()?, cluster_address })
    });
    Ok(Others { groups, contacts: contacts.collect() })
}

/// True if a leader said what is in a status before the first question, which was asked so long before this one.
fn is_older(status: &Value, asked: Duration) -> bool {
    let mut ages = list(status, "groups").iter().map(|group| number(group, "told_ms"));
    // The others have no leader.
    ages.any(|age| age <= STALE_MS && u128::from(age) > asked.as_millis())
}

/// True if the node that was asked has all that the metadata group had decided at the first question.
fn knows_all(first: &Value, status: &Value) -> bool {
    let metadata = |status: &Value, field| {
        let group = list(status, "groups").iter().find(|group| number(group, "group") == 0);
        group.map_or(0, |group| number(group, field))
    };
    let here =
        list(status, "groups").iter().find(|group| number(group, "group") == 0).map_or("", |group| text(group, "here"));
    !matches!(here, "" | "loading" | "elsewhere") && metadata(status, "applied") >= metadata(first, "last")
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
                "group": 0, "leader": leader, "term": 4, "last": last, "told_ms": 0, "here": "following", "applied": last,
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
        assert_eq!(others.groups, [(0, Standing::Member { term: 4, last: 130 })].into());
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
    }

    #[test]
    fn a_group_that_lives_elsewhere_needs_nothing() {
        let mut elsewhere = status("1", 100, &[("2", 0, true)], 0);
        elsewhere["groups"][0]["voters"] = json!(["1", "2"]);
        let others = judge(&elsewhere, &elsewhere, &DAMAGED).expect("nothing is lost");
        assert_eq!(others.groups, [(0, Standing::Stranger { term: 4 })].into());
        elsewhere["groups"][0]["learners"] = json!(["3"]);
        let others = judge(&elsewhere, &elsewhere, &DAMAGED).expect("it had no say");
        assert_eq!(others.groups, [(0, Standing::Member { term: 4, last: 100 })].into());
    }

    #[test]
    fn groups_are_known_by_their_numbers_and_those_that_have_gone_are_told() {
        let first = status("1", 100, &[("2", 0, true)], 0);
        let mut later = first.clone();
        // Group 1 has gone, and group 2 has been founded since.
        let mut founded = first["groups"][0].clone();
        (founded["group"], founded["last"], founded["term"]) = (json!(2), json!(30), json!(1));
        later["groups"].as_array_mut().expect("groups").push(founded);
        let damaged = Identity { group_count: 2, ..DAMAGED };
        let Err(Obstacle::Lasting(why)) = judge(&first, &later, &damaged) else { panic!("a vote could be forgotten") };
        assert!(why.contains("no node knows whether group 1 exists"), "{why}");
        later["gone"] = json!([{"group": 1, "end": 70}]);
        let others = judge(&first, &later, &damaged).expect("nothing is lost");
        let expected = [
            (0, Standing::Member { term: 4, last: 100 }),
            (1, Standing::Gone),
            (2, Standing::Member { term: 1, last: 30 }),
        ];
        assert_eq!(others.group_count(), 2);
        assert_eq!(others.groups, expected.into());
        // One that has gone may have been the last of all.
        later["gone"] = json!([{"group": 1, "end": 70}, {"group": 4, "end": 7}]);
        assert!(matches!(judge(&first, &later, &damaged), Err(Obstacle::Lasting(_))), "nobody tells of group 3");
    }

    #[test]
    fn a_node_that_lacks_what_groups_there_are_is_not_believed() {
        let first = status("1", 100, &[("2", 0, true)], 0);
        for (field, value) in [("applied", json!(99)), ("here", json!("loading")), ("here", json!("elsewhere"))] {
            let mut later = first.clone();
            later["groups"][0][field] = value;
            assert!(matches!(judge(&first, &later, &DAMAGED), Err(Obstacle::Passing(_))), "{field}");
        }
        // What was said before the first question does not count as what there was then.
        let mut told = first.clone();
        for (age, asked, is_old) in
            [(0, 0, false), (200, 0, true), (200, 250, false), (900, 250, true), (60_000, 0, false)]
        {
            told["groups"][0]["told_ms"] = json!(age);
            assert_eq!(is_older(&told, Duration::from_millis(asked)), is_old, "{age}, {asked}");
        }
    }
}
