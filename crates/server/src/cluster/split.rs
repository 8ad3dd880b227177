//! `holdfast cluster split`: a group becomes two, without a copy of what it holds.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::Value;
use stdx::slot::{Slot, text_of};

use super::door::{Door, ask_status, list, number, text};
use super::remove::{Watch, insist};
use super::slots::{count_of, parse_slots, slots_of, weigh};

/// Split a group: make another one on the same nodes, with some of its slots, whatever they hold. Clients continue, and
/// nothing is copied. Slots that are too large to move leave a group in this way.
#[derive(Debug, Args)]
pub struct SplitArguments {
    /// The group.
    group: u32,
    /// The slots of the new group, as in 5,100-200 [default: half of the bytes]
    #[arg(long, value_name = "SLOTS", value_parser = parse_runs)]
    slots: Option<String>,
    #[command(flatten)]
    door: Door,
    /// Do not wait until the new group serves.
    #[arg(long)]
    no_wait: bool,
}

fn parse_runs(text: &str) -> Result<String, String> {
    for run in text.split(',') {
        let (first, last) = parse_slots(run)?;
        if first > last {
            return Err(format!("slot {first} is behind slot {last}"));
        }
    }
    Ok(text.to_owned())
}

/// Asks, and waits until the new group serves.
pub fn run(arguments: &SplitArguments) -> Result<()> {
    let mut connection = arguments.door.open()?;
    let group = arguments.group;
    let status = ask_status(&mut connection)?;
    let groups = list(&status, "groups");
    let known = groups.iter().find(|of| number(of, "group") == u64::from(group));
    ensure!(known.is_some(), "no group of this cluster is '{group}'");
    let wanted = match &arguments.slots {
        Some(slots) => BTreeSet::from_iter(slots_of(slots)).into_iter().collect(),
        None => {
            let held = known.map(|of| slots_of(text(of, "slots"))).unwrap_or_default();
            ensure!(held.len() > 1, "group {group} has {} slots: there is nothing to split", held.len());
            half_of(&held, &weigh(&arguments.door, &mut connection, &status)?)
        }
    };
    let slots = text_of(wanted.into_iter().map(Slot));
    insist(&mut connection, &["HOLDFAST", "SPLIT", &group.to_string(), &slots])?;
    if arguments.no_wait {
        say_line!("a group splits off from group {group}, with slots {slots}");
        return Ok(());
    }
    let before: BTreeSet<u64> = groups.iter().map(|of| number(of, "group")).collect();
    let held = |of: &Value| {
        let runs = slots.split(',').filter_map(|run| parse_slots(run).ok());
        runs.map(|run| count_of(text(of, "slots"), run)).sum::<u64>()
    };
    // Some of the slots may have gone elsewhere meanwhile: by a move that was under way, say.
    let new_of = |status: &Value| {
        let new = list(status, "groups").iter().filter(|of| !before.contains(&number(of, "group")));
        new.max_by_key(|of| held(of)).cloned()
    };
    let is_done = |status: &Value| {
        let parent = list(status, "groups").iter().find(|of| number(of, "group") == u64::from(group));
        match new_of(status) {
            _ if parent.is_none_or(|parent| held(parent) > 0) => Err(format!("group {group} is about to split")),
            None => Err("the new group is not known yet".to_owned()),
            Some(of) if text(&of, "leader").is_empty() => {
                Err(format!("group {} has split off, and has no leader yet", number(&of, "group")))
            }
            Some(_) => Ok(()),
        }
    };
    let status = Watch::new(&arguments.door).until(is_done)?;
    if let Some(of) = new_of(&status) {
        say_line!("group {} has split off from group {group}, with {} slots", number(&of, "group"), held(&of));
    }
    Ok(())
}

/// The slots at the end of a group's that have about half of its bytes; half of the slots if there are no bytes. At
/// least one goes, and one stays.
fn half_of(held: &[u16], bytes: &[u64]) -> Vec<u16> {
    let weight = |slot: &u16| bytes[usize::from(*slot)];
    let all: u64 = held.iter().map(weight).sum();
    if all == 0 {
        return held[held.len() / 2..].to_vec();
    }
    let mut sum = 0;
    let mut first = held.len();
    while first > 1 {
        let next = sum + weight(&held[first - 1]);
        // A slot goes if that brings the half nearer.
        if first < held.len() && next.abs_diff(all / 2) > sum.abs_diff(all / 2) {
            break;
        }
        (sum, first) = (next, first - 1);
        if sum >= all / 2 {
            break;
        }
    }
    held[first..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_bytes_go_and_at_least_one_slot_stays() {
        let of = |pairs: &[(u16, u64)]| {
            let mut bytes = vec![0; 16_384];
            pairs.iter().for_each(|(slot, weight)| bytes[usize::from(*slot)] = *weight);
            bytes
        };
        let held = [3, 4, 5, 9];
        assert_eq!(half_of(&held, &of(&[])), [5, 9]);
        assert_eq!(half_of(&held, &of(&[(3, 10), (4, 10), (5, 10), (9, 10)])), [5, 9]);
        assert_eq!(half_of(&held, &of(&[(3, 1), (9, 100)])), [9]);
        assert_eq!(half_of(&held, &of(&[(3, 100), (9, 1)])), [4, 5, 9], "the large one stays");
        assert_eq!(half_of(&held, &of(&[(4, 100)])), [4, 5, 9]);
        assert!(parse_runs("3-5,9").is_ok() && parse_runs("5-3").is_err() && parse_runs("x").is_err());
    }
}
