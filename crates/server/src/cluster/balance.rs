//! `holdfast cluster plan`, `balance` and `place`: which node holds which group.

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::Value;

use super::door::{Door, ask, ask_status, list, number, text, value_of};
use super::remove::{Watch, insist};
use super::status::{name, under_way};
use super::timeline::named;

/// Show which groups move between nodes or split next, why, and how many bytes are copied.
#[derive(Debug, Args)]
pub struct PlanArguments {
    #[command(flatten)]
    door: Door,
    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
}

/// Switch the balancer on or off. It moves groups so that each node holds its share, and splits groups that are too
/// large.
#[derive(Debug, Args)]
pub struct BalanceArguments {
    /// Whether the balancer is on.
    switch: Switch,
    #[command(flatten)]
    door: Door,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    /// Groups move, and split.
    On,
    /// Groups stay, except those of nodes that leave, and none is split.
    Off,
}

/// Name the nodes that hold a group, and wait until they do. Clients continue meanwhile.
#[derive(Debug, Args)]
pub struct PlaceArguments {
    /// The group.
    group: u32,
    /// Its nodes, by number, the first digits of it, or address; as many as the parameter `replicas` says.
    #[arg(required = true)]
    nodes: Vec<String>,
    /// Do not wait.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    door: Door,
}

/// Asks and prints.
pub fn plan(arguments: &PlanArguments) -> Result<()> {
    let mut connection = arguments.door.open()?;
    let status = ask_status(&mut connection)?;
    let steps = value_of(&ask(&mut connection, &["HOLDFAST", "PLAN"])?);
    if arguments.json {
        say_line!("{}", serde_json::to_string_pretty(&steps)?);
        return Ok(());
    }
    say!("{}", page(&status, &steps));
    Ok(())
}

fn page(status: &Value, steps: &Value) -> String {
    let steps = steps.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut page = String::new();
    if number(status, "balancing") == 0 {
        page.push_str("balancing is off: groups move only away from nodes that leave\n");
    }
    let under_way = under_way(status);
    if !under_way.is_empty() {
        page.push_str("under way\n");
        under_way.lines().for_each(|line| page.push_str(&format!("  {line}\n")));
    }
    if steps.is_empty() {
        page.push_str(if under_way.is_empty() { "no group has to move\n" } else { "nothing else is planned so far\n" });
        return page;
    }
    for step in steps {
        let nodes = list(step, "nodes").iter().filter_map(Value::as_str).map(|node| name(status, node));
        let nodes: Vec<_> = nodes.collect();
        page.push_str(&format!(
            "group {} to {}, {}: {}\n",
            number(step, "group"),
            nodes.join(" "),
            travels(number(step, "bytes"), number(step, "seconds")),
            named(text(step, "reason"), Some(status))
        ));
    }
    let sum = |name: &str| steps.iter().map(|step| number(step, name)).sum();
    page.push_str(&format!("{} steps, {} in all\n", steps.len(), travels(sum("bytes"), sum("seconds"))));
    page
}

/// How much is copied, and about how long that takes at `balance-rate-bytes`, if there is such a bound.
fn travels(bytes: u64, seconds: u64) -> String {
    let megabytes = bytes.div_ceil(1_000_000);
    match seconds {
        0 => format!("{megabytes} MB"),
        1..120 => format!("{megabytes} MB in about {seconds} s"),
        _ => format!("{megabytes} MB in about {} min", seconds.div_ceil(60)),
    }
}

/// Asks.
pub fn switch(arguments: &BalanceArguments) -> Result<()> {
    let (word, told) = match arguments.switch {
        Switch::On => ("ON", "groups move between nodes so that each holds its share"),
        Switch::Off => ("OFF", "groups stay where they are, but for those of nodes that leave"),
    };
    insist(&mut arguments.door.open()?, &["HOLDFAST", "BALANCE", word])?;
    say_line!("{told}");
    Ok(())
}

/// Asks, and waits until these nodes hold the group and no others do.
pub fn place(arguments: &PlaceArguments) -> Result<()> {
    let group = arguments.group.to_string();
    let mut words = vec!["HOLDFAST", "PLACE", &group];
    words.extend(arguments.nodes.iter().map(String::as_str));
    insist(&mut arguments.door.open()?, &words)?;
    if arguments.no_wait {
        say_line!("group {group} moves");
        return Ok(());
    }
    let after = Watch::new(&arguments.door).until(|status| missing(status, arguments.group))?;
    let status = &after;
    let found = list(status, "groups").iter().find(|found| number(found, "group") == u64::from(arguments.group));
    let nodes = found.map(|found| list(found, "voters")).unwrap_or_default();
    let nodes: Vec<_> = nodes.iter().filter_map(Value::as_str).map(|node| name(status, node)).collect();
    say_line!("group {group} lives on {}", nodes.join(" "));
    Ok(())
}

/// What is still to be done until a group lives where it is to live.
fn missing(status: &Value, group: u32) -> Result<(), String> {
    let found = list(status, "groups").iter().find(|found| number(found, "group") == u64::from(group));
    let Some(found) = found else { return Ok(()) };
    let (voters, placed) = (list(found, "voters"), list(found, "placed"));
    if voters == placed && list(found, "learners").is_empty() {
        return Ok(());
    }
    let names = |nodes: &[Value]| {
        let names: Vec<_> = nodes.iter().filter_map(Value::as_str).map(|node| name(status, node)).collect();
        names.join(" ")
    };
    Err(format!("group {group} must be on {}, and is on {}", names(placed), names(voters)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status() -> Value {
        let node = |id: u32| json!({"id": id.to_string(), "clients": format!("10.0.0.{id}:6379")});
        let group = json!({"group": 2, "voters": ["1", "2"], "placed": ["1", "3"], "learners": ["3"]});
        json!({"balancing": 1, "nodes": [node(1), node(2), node(3)], "groups": [group]})
    }

    /// The same when the group has come.
    fn at_rest() -> Value {
        let mut status = status();
        status["groups"][0] = json!({"group": 2, "voters": ["1", "3"], "placed": ["1", "3"], "learners": []});
        status
    }

    #[test]
    fn a_plan_names_nodes_reasons_and_bytes() {
        let steps = json!([{"group": 2, "nodes": ["1", "3"], "bytes": 2_500_000, "reason": "node 3 is empty"}]);
        let expected = "\
group 2 to 10.0.0.1:6379 10.0.0.3:6379, 3 MB: 10.0.0.3:6379 is empty
1 steps, 3 MB in all
";
        assert_eq!(page(&at_rest(), &steps), expected);
        assert_eq!(page(&at_rest(), &json!([])), "no group has to move\n");
        assert!(page(&json!({"balancing": 0}), &json!([])).starts_with("balancing is off"));
    }

    #[test]
    fn a_plan_without_steps_is_not_at_rest_while_something_is_under_way() {
        let expected = "\
under way
  group 2 moves to 10.0.0.1:6379 10.0.0.3:6379
nothing else is planned so far
";
        assert_eq!(page(&status(), &json!([])), expected);
        let mut giving = at_rest();
        giving["groups"][0]["to_give"] = json!(7);
        assert!(page(&giving, &json!([])).contains("  group 2 has 7 slots to give to others\nnothing else"));
        // A node that has just joined is given the metadata first: what comes after that nobody knows yet.
        let mut joins = at_rest();
        let follower = json!({"node": "3", "feed": "checkpoint", "behind_bytes": 1_000_000});
        joins["groups"][0] = json!({"group": 0, "bytes": 3_000_000, "placed": [], "followers": [follower]});
        let expected = "\
under way
  group 0 is copied
    10.0.0.3:6379 has been given 2 of about 3 MB
nothing else is planned so far
";
        assert_eq!(page(&joins, &json!([])), expected);
    }

    #[test]
    fn a_plan_names_a_group_that_is_to_split_off() {
        let reason = "will split off from group 2, with 40 slots and 5000 MiB of keys";
        let steps = json!([{"group": 3, "nodes": ["1", "2"], "bytes": 0, "seconds": 0, "reason": reason}]);
        let expected = format!("group 3 to 10.0.0.1:6379 10.0.0.2:6379, 0 MB: {reason}\n1 steps, 0 MB in all\n");
        assert_eq!(page(&at_rest(), &steps), expected);
    }

    #[test]
    fn a_plan_says_how_long_it_takes_at_the_pace_that_is_set() {
        let step = |bytes: u64, seconds: u64| json!({"group": 2, "nodes": ["3"], "bytes": bytes, "seconds": seconds, "reason": "node 3 is empty"});
        let expected = "\
group 2 to 10.0.0.3:6379, 200 MB in about 3 s: 10.0.0.3:6379 is empty
group 2 to 10.0.0.3:6379, 20000 MB in about 5 min: 10.0.0.3:6379 is empty
2 steps, 20200 MB in about 6 min in all
";
        assert_eq!(page(&at_rest(), &json!([step(200_000_000, 3), step(20_000_000_000, 299)])), expected);
    }

    #[test]
    fn a_group_has_come_when_its_nodes_vote_and_no_others_do() {
        let told = missing(&status(), 2).unwrap_err();
        let expected = "group 2 must be on 10.0.0.1:6379 10.0.0.3:6379, and is on 10.0.0.1:6379 10.0.0.2:6379";
        assert_eq!(told, expected);
        let there = json!({"groups": [{"group": 2, "voters": ["1", "3"], "placed": ["1", "3"], "learners": []}]});
        assert_eq!(missing(&there, 2), Ok(()));
    }
}
