//! `holdfast cluster prefer` and `rebalance`: which node leads which group, and which group holds how much.

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::Value;

use super::door::{Door, ask_status, list, number, text};
use super::remove::{Watch, insist};
use super::slots;
use super::status::name;
use crate::connection::Connection;

/// A node that has not taken over by then will do so when it can.
const PATIENCE: Duration = Duration::from_secs(60);

/// The node that is asked may hear of a change later than anyone who has answered for it: what is so must stay so.
const STEADY: Duration = Duration::from_secs(1);

const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Name the node that leads a group whenever it can: it takes over now, and again after every absence.
#[derive(Debug, Args)]
pub struct PreferArguments {
    /// The group.
    group: u32,
    /// The node, by its number, the first digits of it, or one of its addresses; "none" removes the preference.
    node: String,
    #[command(flatten)]
    door: Door,
}

/// Divide the slots evenly among the groups, and spread the leaders evenly over the nodes. Clients continue meanwhile.
#[derive(Debug, Args)]
pub struct RebalanceArguments {
    /// Divide the bytes of keys evenly instead of the number of slots.
    #[arg(long, conflicts_with = "leaders_only")]
    by_bytes: bool,
    /// Move no slots.
    #[arg(long)]
    leaders_only: bool,
    #[command(flatten)]
    door: Door,
}

/// Asks, and waits until the node leads.
pub fn prefer(arguments: &PreferArguments) -> Result<()> {
    let group = arguments.group.to_string();
    insist(&mut arguments.door.open()?, &["HOLDFAST", "PREFER", &group, &arguments.node])?;
    if arguments.node.eq_ignore_ascii_case("none") {
        say_line!("group {group} has no preferred node");
        return Ok(());
    }
    settle(&arguments.door)
}

/// Lets a node, to which the connection leads, lead every group, and waits until it does.
///
/// # Errors
/// If it does not in time.
pub fn lead_everything(connection: &mut Connection, address: &str) -> Result<()> {
    for group in list(&ask_status(connection)?, "groups") {
        insist(connection, &["HOLDFAST", "PREFER", &number(group, "group").to_string(), address])?;
    }
    let begun = Instant::now();
    let leads =
        |group: &Value| !text(group, "preferred").is_empty() && text(group, "preferred") == text(group, "leader");
    while !list(&ask_status(connection)?, "groups").iter().all(leads) {
        ensure!(begun.elapsed() < PATIENCE, "{address} does not take over");
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Asks, and waits until every group holds what it should, and every node leads what it should.
pub fn rebalance(arguments: &RebalanceArguments) -> Result<()> {
    if !arguments.leaders_only {
        slots::rebalance(&arguments.door, arguments.by_bytes)?;
    }
    insist(&mut arguments.door.open()?, &["HOLDFAST", "REBALANCE"])?;
    settle(&arguments.door)?;
    let status = ask_status(&mut arguments.door.open()?)?;
    for node in list(&status, "nodes") {
        say_line!("{} leads {}", name(&status, text(node, "id")), list(node, "leads").len());
    }
    Ok(())
}

/// Waits until the groups are led by the nodes that should lead them, as far as somebody has said so.
fn settle(door: &Door) -> Result<()> {
    let begun = Instant::now();
    let is_late = || begun.elapsed() > PATIENCE;
    let settled = Cell::new(None);
    let after = Watch::new(door).until(|status| match missing(status) {
        _ if is_late() => Ok(()),
        Some(missing) => {
            settled.set(None);
            Err(missing)
        }
        None => {
            let since = settled.get().unwrap_or_else(Instant::now);
            settled.set(Some(since));
            if since.elapsed() >= STEADY { Ok(()) } else { Err("every node takes note of it".to_owned()) }
        }
    })?;
    match missing(&after) {
        None => say_line!("every group is led by its preferred node"),
        Some(missing) => {
            say_line!("{missing}; it takes over when all voters of the group are there and have caught up")
        }
    }
    Ok(())
}

/// A group that another node should lead.
fn missing(status: &Value) -> Option<String> {
    let is_led_by_another = |group: &&Value| {
        let preferred = text(group, "preferred");
        !preferred.is_empty() && preferred != text(group, "leader")
    };
    let group = list(status, "groups").iter().find(is_led_by_another)?;
    let preferred = name(status, text(group, "preferred"));
    Some(format!("group {} waits for {preferred} to take over", number(group, "group")))
}
