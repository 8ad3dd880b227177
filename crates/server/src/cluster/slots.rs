//! `holdfast cluster move`: which group holds which slots.

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;

use super::door::{Door, list, number};
use super::remove::{Watch, insist};

/// Let slots move to another group, while clients go on. What has been asked for is kept by the cluster: whoever leads
/// goes on with it, whatever stops in between.
#[derive(Debug, Args)]
pub struct MoveArguments {
    /// The slots: one, or FIRST-LAST.
    #[arg(long, value_parser = parse_slots)]
    slots: (u16, u16),
    /// The group that is to hold them.
    #[arg(long)]
    to: u32,
    #[command(flatten)]
    door: Door,
    /// Do not wait until they are there.
    #[arg(long)]
    no_wait: bool,
}

fn parse_slots(text: &str) -> Result<(u16, u16), String> {
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
        println!("slots {first}-{last} move to group {group}");
        return Ok(());
    }
    let holds = |status: &Value| {
        let groups = list(status, "groups");
        let target = groups.iter().find(|of| number(of, "group") == u64::from(arguments.to));
        let held = target.map_or(0, |of| count_of(super::door::text(of, "slots"), (first, last)));
        let all = u64::from(last - first) + 1;
        // Told in tenths: every look would be a line otherwise.
        let percent = held * 10 / all * 10;
        if held == all { Ok(()) } else { Err(format!("group {group} has {percent} % of the slots")) }
    };
    Watch::new(&arguments.door).until(holds)?;
    println!("group {group} holds slots {first}-{last}");
    Ok(())
}

/// How many of the slots from `first` to `last` are among those of a text such as `0-5,7`.
fn count_of(text: &str, (first, last): (u16, u16)) -> u64 {
    let runs = text.split(',').filter_map(|run| parse_slots(run).ok());
    let common = runs.map(|(from, to)| (from.max(first), to.min(last))).filter(|(from, to)| from <= to);
    common.map(|(from, to)| u64::from(to - from) + 1).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_counted_in_the_runs_that_a_status_tells() {
        for (text, count) in [("", 0), ("0-16383", 11), ("5,9-12,20-30", 5), ("21-22", 0)] {
            assert_eq!(count_of(text, (5, 15)), count, "{text}");
        }
        assert_eq!(parse_slots("7"), Ok((7, 7)));
        assert!(parse_slots("a-b").is_err());
    }
}
