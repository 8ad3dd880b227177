//! `holdfast cluster upgrade`: which formats and semantics are in force.

use std::io::{IsTerminal, Write as _};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use super::door::{Door, ask_status, list, number, text};
use super::remove::{Watch, insist};
use super::status::name;
use crate::output::table;

/// Raise the level of the cluster, if all nodes run a version that knows the next one. It cannot be lowered again.
#[derive(Debug, Args)]
pub struct UpgradeArguments {
    #[command(flatten)]
    door: Door,
    /// Only report whether it can be raised.
    #[arg(long)]
    check: bool,
    /// Do not ask for confirmation.
    #[arg(long, conflicts_with = "check")]
    yes: bool,
}

/// Shows what is known, asks for confirmation, raises the level, and waits until all groups have it.
pub fn run(arguments: &UpgradeArguments) -> Result<()> {
    let mut connection = arguments.door.open()?;
    let status = ask_status(&mut connection)?;
    say!("{}", page(&status));
    let level = number(&status, "level");
    ensure!(level > 0, "the node that was asked runs a version that knows nothing of levels: ask a newer one");
    let highest = list(&status, "nodes").iter().map(|node| number(node, "level_highest")).max().unwrap_or(level);
    if level >= highest {
        say_line!("level {level} is the highest that any node knows: there is nothing to do");
        return Ok(());
    }
    let next = level + 1;
    let lacking = lacking(&status, next);
    ensure!(lacking.is_empty(), "the level cannot be raised to {next}: it is not known by {}", lacking.join(", "));
    insist(&mut connection, &["HOLDFAST", "UPGRADE", "CHECK"])
        .map_err(refusal)
        .with_context(|| format!("the level cannot be raised to {next}"))?;
    if arguments.check {
        say_line!("every node knows level {next}: it can be raised");
        return Ok(());
    }
    say_line!(
        "once the level is {next}, no node can go back to a version that does not know it: for that there would be"
    );
    say_line!("only a backup that was made before");
    if !arguments.yes && !is_wanted(next)? {
        bail!("nothing has been changed");
    }
    insist(&mut connection, &["HOLDFAST", "UPGRADE"])
        .map_err(refusal)
        .with_context(|| format!("the level cannot be raised to {next}"))?;
    Watch::new(&arguments.door).until(|status| missing(status, next))?;
    say_line!("the cluster is at level {next}");
    Ok(())
}

/// A refusal of the cluster, without the word for programs in front.
fn refusal(error: anyhow::Error) -> anyhow::Error {
    let text = format!("{error:#}");
    anyhow::anyhow!(text.strip_prefix("ERR ").unwrap_or(&text).to_owned())
}

/// Asks who sits there.
fn is_wanted(next: u64) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!("there is no terminal to ask for confirmation: use --yes; nothing has been changed");
    }
    say!("raise the level to {next}? [y/N] ");
    std::io::stdout().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Which level is in force, and which nodes know what.
fn page(status: &Value) -> String {
    let mut page = format!("the cluster is at level {}\n\n", number(status, "level"));
    let mut rows = vec![["node", "clients", "state", "knows levels"].map(str::to_owned)];
    for node in list(status, "nodes") {
        let [id, clients, state] = [text(node, "id"), text(node, "clients"), text(node, "state")].map(str::to_owned);
        rows.push([id, clients, state, known(node)]);
    }
    table(&rows, &mut page);
    page.push('\n');
    page
}

/// The levels that a node knows, as it has said.
fn known(node: &Value) -> String {
    match (number(node, "level_lowest"), number(node, "level_highest")) {
        (0, _) => "unknown".to_owned(),
        (lowest, highest) if lowest == highest => lowest.to_string(),
        (lowest, highest) => format!("{lowest} to {highest}"),
    }
}

/// What is still below a level, as the node sees it that is asked.
fn missing(status: &Value, level: u64) -> Result<(), String> {
    if number(status, "level") < level {
        return Err(format!("the cluster is at level {} so far", number(status, "level")));
    }
    let is_below = |group: &&Value| (1..level).contains(&number(group, "level"));
    let below: Vec<String> =
        list(status, "groups").iter().filter(is_below).map(|group| number(group, "group").to_string()).collect();
    if below.is_empty() { Ok(()) } else { Err(format!("groups {} are below level {level} so far", below.join(", "))) }
}

/// The nodes that are not known to know a level.
fn lacking(status: &Value, level: u64) -> Vec<String> {
    let lacks = |node: &&Value| number(node, "level_highest") < level;
    list(status, "nodes").iter().filter(lacks).map(|node| name(status, text(node, "id"))).collect()
}

/// A line for each node that does not know the highest level that some node knows, for `status`.
pub fn remarks(status: &Value) -> Vec<String> {
    let level = number(status, "level");
    let highest = list(status, "nodes").iter().map(|node| number(node, "level_highest")).max().unwrap_or(level);
    if highest <= level {
        return Vec::new();
    }
    let lacking = lacking(status, highest);
    if lacking.is_empty() {
        return vec![format!("all nodes know level {highest}: `holdfast cluster upgrade` raises it")];
    }
    vec![format!("level {highest} is not known by {}", lacking.join(", "))]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(level: u64, highest: [u64; 2], groups: &[u64]) -> Value {
        let node = |id: &str, highest: u64| {
            let lowest = u64::from(highest > 0);
            json!({"id": id, "clients": format!("h{id}:6379"), "state": "up", "level_lowest": lowest,
                   "level_highest": highest})
        };
        let groups: Vec<Value> =
            groups.iter().zip(0_u64..).map(|(level, group)| json!({"group": group, "level": level})).collect();
        json!({"node": "1", "level": level, "nodes": [node("1", highest[0]), node("2", highest[1])], "groups": groups})
    }

    #[test]
    fn a_rise_is_over_when_every_group_has_it() {
        assert_eq!(missing(&status(1, [2, 2], &[1, 1]), 2).unwrap_err(), "the cluster is at level 1 so far");
        assert_eq!(missing(&status(2, [2, 2], &[2, 1]), 2).unwrap_err(), "groups 1 are below level 2 so far");
        assert_eq!(missing(&status(2, [2, 2], &[2, 2]), 2), Ok(()));
        assert_eq!(missing(&status(2, [2, 2], &[2, 0]), 2), Ok(()), "that one lives elsewhere");
    }

    #[test]
    fn what_nodes_know_is_shown() {
        let page = page(&status(1, [2, 1], &[]));
        assert!(page.starts_with("the cluster is at level 1\n"), "{page}");
        assert!(page.contains("1 to 2"), "{page}");
        assert_eq!(known(&status(1, [2, 0], &[])["nodes"][1]), "unknown");
        assert_eq!(remarks(&status(1, [2, 1], &[])), ["level 2 is not known by h2:6379"]);
        assert!(remarks(&status(1, [2, 2], &[]))[0].contains("holdfast cluster upgrade"));
        assert!(remarks(&status(2, [2, 2], &[])).is_empty());
    }
}
