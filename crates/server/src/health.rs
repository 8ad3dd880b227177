//! `holdfast health`: whether a node serves, as an exit code for supervisors and containers.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::cluster::door::{Door, ask};

/// Check whether a node serves; the exit code is 0 if it does.
#[derive(Debug, Args)]
pub struct HealthArguments {
    #[command(flatten)]
    door: Door,
    /// Also fail while a group of the node has no leader, or is more than so many milliseconds behind it.
    #[arg(long, value_name = "MILLISECONDS", num_args = 0..=1, default_missing_value = "5000")]
    caught_up: Option<u64>,
    /// Also fail while the node's cluster has fewer than so many nodes.
    #[arg(long, value_name = "N")]
    nodes: Option<u64>,
    /// Print nothing.
    #[arg(long, short)]
    quiet: bool,
}

/// Runs `holdfast health`.
///
/// # Errors
/// Says why the node does not serve.
pub fn run(arguments: &HealthArguments) -> Result<()> {
    let door = &arguments.door;
    let mut connection = if arguments.quiet { door.open_in_silence() } else { door.open() }?;
    ask(&mut connection, &["PING"])?;
    let info = ask(&mut connection, &["INFO"])?;
    let info = String::from_utf8_lossy(info.as_bytes().context("INFO was answered with no text")?).into_owned();
    let fields: BTreeMap<&str, &str> = info.lines().filter_map(|line| line.split_once(':')).collect();
    ensure!(fields.get("loading") == Some(&"0"), "the node loads its data");
    ensure!(fields.get("cluster_state") != Some(&"removed"), "the node has been removed from its cluster");
    if let Some(nodes_min) = arguments.nodes {
        check_nodes(&fields, nodes_min)?;
    }
    if let Some(millis_max) = arguments.caught_up {
        check_groups(&fields, millis_max)?;
    }
    if !arguments.quiet {
        let is_known = fields.get("holdfast_version");
        let name = if is_known.is_some() { "Holdfast" } else { "Redis" };
        let version = is_known.or_else(|| fields.get("redis_version")).copied().unwrap_or("of unknown version");
        say_line!("serves: {name} {version}");
    }
    Ok(())
}

/// The node's cluster has come together.
fn check_nodes(fields: &BTreeMap<&str, &str>, nodes_min: u64) -> Result<()> {
    let count: u64 = fields.get("cluster_nodes").and_then(|text| text.parse().ok()).unwrap_or(1);
    ensure!(count >= nodes_min, "the node's cluster has {count} of at least {nodes_min} nodes");
    Ok(())
}

/// Every group is led from here, or followed closely.
fn check_groups(fields: &BTreeMap<&str, &str>, millis_max: u64) -> Result<()> {
    for (name, value) in fields.iter().filter(|(name, _)| is_group(name)) {
        let parts: BTreeMap<&str, &str> = value.split(',').filter_map(|part| part.split_once('=')).collect();
        let staleness_ms: i64 = parts.get("staleness_ms").and_then(|text| text.parse().ok()).unwrap_or(-1);
        match parts.get("standing").copied() {
            // What lives on other nodes is asked of them.
            Some("serving" | "elsewhere") => {}
            Some("following") if staleness_ms >= 0 && staleness_ms.unsigned_abs() <= millis_max => {}
            Some("following") if staleness_ms >= 0 => bail!("{name} is {staleness_ms} ms behind its leader"),
            Some("following") => bail!("how far {name} is behind its leader is not known"),
            standing => bail!("{name} is {}", standing.unwrap_or("of unknown standing")),
        }
    }
    Ok(())
}

fn is_group(name: &str) -> bool {
    name.strip_prefix("group")
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_by_itself_is_a_cluster_of_one() {
        let complaint = |fields: &[(&'static str, &'static str)], nodes_min| {
            check_nodes(&fields.iter().copied().collect(), nodes_min).err().map(|error| error.to_string())
        };
        assert_eq!(complaint(&[], 1), None);
        assert_eq!(complaint(&[], 2).as_deref(), Some("the node's cluster has 1 of at least 2 nodes"));
        assert_eq!(complaint(&[("cluster_nodes", "3")], 3), None);
    }

    #[test]
    fn a_node_is_caught_up_if_every_group_is_led_or_followed_closely() {
        let complaint = |text: &'static str| {
            let fields =
                BTreeMap::from([("group0", "standing=serving,staleness_ms=0"), ("groups", "x"), ("group1", text)]);
            check_groups(&fields, 100).err().map(|error| error.to_string())
        };
        assert_eq!(complaint("standing=following,term=1,staleness_ms=100"), None);
        assert_eq!(complaint("standing=elsewhere,term=1,staleness_ms=-1"), None);
        assert_eq!(
            complaint("standing=following,term=1,staleness_ms=101").as_deref(),
            Some("group1 is 101 ms behind its leader")
        );
        assert!(complaint("standing=following,staleness_ms=-1").is_some());
        assert_eq!(complaint("standing=leaderless,staleness_ms=5").as_deref(), Some("group1 is leaderless"));
        assert_eq!(complaint("").as_deref(), Some("group1 is of unknown standing"));
    }
}
