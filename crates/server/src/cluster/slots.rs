//! `holdfast cluster move`, and the slots of `rebalance`: which group holds which slots.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use resp::Frame;
use serde_json::Value;

use super::door::{Door, ask, ask_status, list, number, text};
use super::remove::{Watch, insist};
use crate::connection::Connection;

/// Move slots to another group, while clients continue. The cluster stores the request: if a leader or this command
/// stops, the move continues.
#[derive(Debug, Args)]
pub struct MoveArguments {
    /// The slots: one, or FIRST-LAST.
    #[arg(long, value_parser = parse_slots)]
    slots: (u16, u16),
    /// The group to move them to.
    #[arg(long)]
    to: u32,
    #[command(flatten)]
    door: Door,
    /// Do not wait until they have moved.
    #[arg(long)]
    no_wait: bool,
}

pub(super) fn parse_slots(text: &str) -> Result<(u16, u16), String> {
    let number = |word: &str| word.parse::<u16>().map_err(|error| format!("'{word}': {error}"));
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Ok((number(first)?, number(last)?))
}

/// Asks, and waits until the slots are where they should be.
pub fn run(arguments: &MoveArguments) -> Result<()> {
    let (first, last) = arguments.slots;
    ensure!(first <= last, "slot {first} is behind slot {last}");
    let words = [first.to_string(), last.to_string(), arguments.to.to_string()];
    let [from, behind, group] = &words;
    insist(&mut arguments.door.open()?, &["HOLDFAST", "MOVE", from, behind, group])
        .with_context(|| format!("slots {first}-{last} do not move to group {group}"))?;
    if arguments.no_wait {
        say_line!("slots {first}-{last} move to group {group}");
        return Ok(());
    }
    let holds = |status: &Value| {
        let groups = list(status, "groups");
        let target = groups.iter().find(|of| number(of, "group") == u64::from(arguments.to));
        let held = target.map_or(0, |of| count_of(text(of, "slots"), (first, last)));
        let all = u64::from(last - first) + 1;
        // Told in tenths: every look would be a line otherwise.
        let percent = held * 10 / all * 10;
        if held == all { Ok(()) } else { Err(format!("group {group} has {percent} % of the slots")) }
    };
    Watch::new(&arguments.door).until(holds)?;
    say_line!("group {group} holds slots {first}-{last}");
    Ok(())
}

/// Divides slots, or the bytes of their keys, evenly among the groups, and waits until they are there.
pub fn rebalance(door: &Door, by_bytes: bool) -> Result<()> {
    // Moves that were asked for already go first: only what is held after them can be divided.
    let waiting = |status: &Value| list(status, "groups").iter().map(|of| number(of, "to_give")).sum::<u64>();
    let latest = Cell::new((0, Instant::now()));
    let status = Watch::new(door).until(|status| {
        let count = waiting(status);
        if latest.get().0 != count {
            latest.set((count, Instant::now()));
        }
        if count == 0 || latest.get().1.elapsed() > PATIENCE {
            Ok(())
        } else {
            Err(format!("{count} slots are still to move, as was asked for before"))
        }
    })?;
    ensure!(waiting(&status) == 0, "{}", stuck(waiting(&status)));
    let mut connection = door.open()?;
    // One that is to go gets nothing, and gives what it has anyway.
    let groups: Vec<&Value> = list(&status, "groups").iter().filter(|of| text(of, "merges_into").is_empty()).collect();
    let held: Vec<Vec<u16>> = groups.iter().map(|of| slots_of(text(of, "slots"))).collect();
    let weights = if by_bytes { weigh(door, &mut connection, &status)? } else { vec![1; SLOT_COUNT] };
    let ids: Vec<u64> = groups.iter().map(|of| number(of, "group")).collect();
    let mut moves = plan(&held, &weights, &portions(&status, &ids), by_bytes);
    moves.iter_mut().for_each(|of| of.to = number(groups[of.to], "group") as usize);
    for Move { slots: (first, last), to } in &moves {
        let [first, last, to] = [u64::from(*first), u64::from(*last), *to as u64].map(|number| number.to_string());
        insist(&mut connection, &["HOLDFAST", "MOVE", &first, &last, &to])?;
    }
    let all: u64 = moves.iter().map(Move::count).sum();
    if all > 0 {
        say_line!("{all} slots move");
        let latest = Cell::new((0, Instant::now()));
        let after = Watch::new(door).until(|status| {
            let there: u64 = moves.iter().map(|of| of.count_in(status)).sum();
            if latest.get().0 != there {
                latest.set((there, Instant::now()));
            }
            let is_stuck = latest.get().1.elapsed() > PATIENCE;
            if there == all || is_stuck {
                Ok(())
            } else {
                Err(format!("{} % of them are there", there * 10 / all * 10))
            }
        })?;
        let missing = all - moves.iter().map(|of| of.count_in(&after)).sum::<u64>();
        ensure!(missing == 0, "{}", stuck(missing));
    }
    let status = ask_status(&mut door.open()?)?;
    let what = |slots: &[u16]| slots.iter().map(|slot| weights[usize::from(*slot)]).sum::<u64>();
    for of in list(&status, "groups") {
        let slots = slots_of(text(of, "slots"));
        let bytes = if by_bytes { format!(", {} bytes of keys", what(&slots)) } else { String::new() };
        say_line!("group {} holds {} slots{bytes}", number(of, "group"), slots.len());
    }
    Ok(())
}

/// What the operator must know when so many slots do not move.
fn stuck(count: u64) -> String {
    format!(
        "{count} slots have not moved for {} s: the logs of the nodes that lead their groups say why. They keep trying",
        PATIENCE.as_secs()
    )
}

/// When not a single slot has moved for so long, the operator must know.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of keys of a slot beyond which it does not move.
const MOVE_BYTES_MAX: u64 = group::limits::MOVE_BYTES_MAX as u64;

/// Slots there are.
const SLOT_COUNT: usize = 16_384;

/// Slots that a node is asked about at a time.
const SLOTS_ASKED: usize = 16;

/// Groups are even enough if their bytes differ by no more than this part of what each should hold.
const EVEN_PART: u64 = 20;

/// A run of slots that must move.
#[derive(Debug, PartialEq, Eq)]
struct Move {
    slots: (u16, u16),
    to: usize,
}

impl Move {
    fn count(&self) -> u64 {
        u64::from(self.slots.1 - self.slots.0) + 1
    }

    /// How many of them are where they should be.
    fn count_in(&self, status: &Value) -> u64 {
        let target = list(status, "groups").iter().find(|of| number(of, "group") == self.to as u64);
        target.map_or(0, |of| count_of(text(of, "slots"), self.slots))
    }
}

/// Bytes of keys of each slot. A node knows those of the groups that live there; where the one that is asked lacks
/// some, all are asked.
pub(super) fn weigh(door: &Door, connection: &mut Connection, status: &Value) -> Result<Vec<u64>> {
    let mut bytes = slot_bytes(connection)?;
    if list(status, "groups").iter().all(|group| text(group, "here") != "elsewhere") {
        return Ok(bytes);
    }
    for node in list(status, "nodes").iter().filter(|node| text(node, "state") == "up") {
        let server = Some(text(node, "clients").to_owned());
        let there = slot_bytes(&mut Door { server, ..door.clone() }.open()?)?;
        bytes.iter_mut().zip(there).for_each(|(known, there)| *known = (*known).max(there));
    }
    Ok(bytes)
}

/// Bytes of keys of each slot, as the node that is asked has them.
fn slot_bytes(connection: &mut Connection) -> Result<Vec<u64>> {
    let mut bytes = Vec::with_capacity(SLOT_COUNT);
    for first in (0..SLOT_COUNT).step_by(SLOTS_ASKED) {
        let last = first + SLOTS_ASKED - 1;
        let reply = ask(connection, &["HOLDFAST", "SLOTS", &first.to_string(), &last.to_string()])?;
        let Frame::Array(counts) = reply else { continue };
        bytes.extend(counts.iter().map(|count| match count {
            Frame::Integer(count) => count.unsigned_abs(),
            _ => 0,
        }));
    }
    ensure!(bytes.len() == SLOT_COUNT, "the node tells of {} slots", bytes.len());
    Ok(bytes)
}

/// How much each of these groups is to hold, in proportion to the others: alike, as long as every node holds every
/// group. Where there are more nodes, the first group still lives on all of them: its copies together are to be as
/// large as those of another group.
fn portions(status: &Value, groups: &[u64]) -> Vec<u64> {
    let staying = list(status, "nodes").iter().filter(|node| !["leaving", "removed"].contains(&text(node, "state")));
    let nodes = (staying.count() as u64).max(1);
    let replicas = number(status, "replicas").clamp(1, nodes);
    groups.iter().map(|group| if *group == 0 { replicas } else { nodes }).collect()
}

/// What has to move so that each group holds its portion: the group that has most beyond it gives from its end to the
/// one that lacks most, as long as neither crosses its share.
fn plan(held: &[Vec<u16>], weights: &[u64], portions: &[u64], by_bytes: bool) -> Vec<Move> {
    let weight = |slot: u16| weights[usize::from(slot)];
    let mut held: Vec<Vec<u16>> = held.to_vec();
    let mut sums: Vec<u64> = held.iter().map(|slots| slots.iter().map(|slot| weight(*slot)).sum()).collect();
    let all = sums.iter().sum::<u64>();
    let even_enough = if by_bytes { all / sums.len().max(1) as u64 / EVEN_PART } else { 0 };
    let parts = u128::from(portions.iter().sum::<u64>().max(1));
    let shares: Vec<u64> =
        portions.iter().map(|portion| (u128::from(all) * u128::from(*portion) / parts) as u64).collect();
    let beyond = |of: &(usize, u64)| i128::from(of.1) - i128::from(shares[of.0]);
    let mut moved: Vec<(u16, usize)> = Vec::new();
    while let Some((giver, most)) = sums.iter().copied().enumerate().max_by_key(beyond)
        && let Some((taker, least)) = sums.iter().copied().enumerate().min_by_key(beyond)
    {
        let mut room = most.saturating_sub(shares[giver]).min(shares[taker].saturating_sub(least));
        let count = moved.len();
        if room > even_enough {
            // From its end, so that what stays and what goes are runs.
            let slots = std::mem::take(&mut held[giver]);
            for slot in slots.into_iter().rev() {
                if (1..=room.min(MOVE_BYTES_MAX)).contains(&weight(slot)) {
                    room -= weight(slot);
                    moved.push((slot, taker));
                } else {
                    held[giver].push(slot);
                }
            }
            held[giver].reverse();
        }
        if moved.len() == count {
            break;
        }
        let sum: u64 = moved[count..].iter().map(|(slot, _)| weight(*slot)).sum();
        (sums[giver], sums[taker]) = (most - sum, least + sum);
    }
    moved.sort_unstable();
    let mut moves: Vec<Move> = Vec::new();
    for (slot, to) in moved {
        match moves.last_mut() {
            Some(last) if last.to == to && last.slots.1 + 1 == slot => last.slots.1 = slot,
            _ => moves.push(Move { slots: (slot, slot), to }),
        }
    }
    moves
}

/// The slots of a text such as `0-5,7`.
pub(super) fn slots_of(text: &str) -> Vec<u16> {
    text.split(',').filter_map(|run| parse_slots(run).ok()).flat_map(|(first, last)| first..=last).collect()
}

/// How many of the slots from `first` to `last` are among those of a text such as `0-5,7`.
pub(super) fn count_of(text: &str, (first, last): (u16, u16)) -> u64 {
    let runs = text.split(',').filter_map(|run| parse_slots(run).ok());
    let common = runs.map(|(from, to)| (from.max(first), to.min(last))).filter(|(from, to)| from <= to);
    common.map(|(from, to)| u64::from(to - from) + 1).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn slots_are_counted_in_the_runs_that_a_status_tells() {
        for (text, count) in [("", 0), ("0-16383", 11), ("5,9-12,20-30", 5), ("21-22", 0)] {
            assert_eq!(count_of(text, (5, 15)), count, "{text}");
        }
        assert_eq!(slots_of("5,9-11"), [5, 9, 10, 11]);
        assert_eq!(parse_slots("7"), Ok((7, 7)));
        assert!(parse_slots("a-b").is_err());
    }

    #[test]
    fn slots_are_divided_evenly_with_as_few_moves_as_that_takes() {
        let all: Vec<u16> = (0..SLOT_COUNT as u16).collect();
        let even = vec![1; SLOT_COUNT];
        assert_eq!(plan(std::slice::from_ref(&all), &even, &[1], false), []);
        assert_eq!(plan(&[all[..8_192].to_vec(), all[8_192..].to_vec()], &even, &[1, 1], false), []);
        let thirds = [all[..5_461].to_vec(), all[5_461..10_923].to_vec(), all[10_923..].to_vec()];
        assert_eq!(plan(&thirds, &even, &[1, 1, 1], false), []);
        let one = plan(&[all.clone(), Vec::new()], &even, &[1, 1], false);
        assert_eq!(one, [Move { slots: (8_192, 16_383), to: 1 }]);
        let three = plan(&[all, Vec::new(), Vec::new()], &even, &[1, 1, 1], false);
        let count_to = |to| three.iter().filter(|of| of.to == to).map(Move::count).sum::<u64>();
        assert_eq!((count_to(0), count_to(1), count_to(2)), (0, 5_461, 5_461));
    }

    #[test]
    fn the_group_that_lives_everywhere_is_left_less() {
        let node = |id: u32, state: &str| json!({"id": id.to_string(), "state": state});
        let mut nodes = vec![node(1, "here"), node(2, "up"), node(3, "up")];
        assert_eq!(portions(&json!({"replicas": 3, "nodes": nodes}), &[0, 1, 2]), [3, 3, 3], "all live everywhere");
        nodes.extend([node(4, "up"), node(5, "down"), node(6, "up"), node(7, "leaving")]);
        let portions = portions(&json!({"replicas": 3, "nodes": nodes}), &[0, 1, 4]);
        assert_eq!(portions, [3, 6, 6]);
        let all: Vec<u16> = (0..SLOT_COUNT as u16).collect();
        let thirds = [all[..5_461].to_vec(), all[5_461..10_923].to_vec(), all[10_923..].to_vec()];
        let moves = plan(&thirds, &vec![1; SLOT_COUNT], &portions, false);
        let count_to = |to| moves.iter().filter(|of| of.to == to).map(Move::count).sum::<u64>();
        assert_eq!((count_to(0), count_to(1), count_to(2)), (0, 1_091, 1_092), "a fifth of all stays in it");
    }

    #[test]
    fn bytes_are_divided_as_evenly_as_slots_allow() {
        let mut weights = vec![0; SLOT_COUNT];
        weights[..6].copy_from_slice(&[10, 30, 0, 20, 40, 100]);
        let first: Vec<u16> = (0..5).collect();
        let moves = plan(&[first.clone(), Vec::new()], &weights, &[1, 1], true);
        let moved: u64 =
            moves.iter().flat_map(|of| of.slots.0..=of.slots.1).map(|slot| weights[usize::from(slot)]).sum();
        assert_eq!(moved, 50, "{moves:?}");
        // One slot that holds nearly everything stays where it is.
        assert_eq!(plan(&[vec![5], vec![0]], &weights, &[1, 1], true), []);
    }
}
