//! `holdfast cluster merge`: a group is merged into another one.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use serde_json::Value;

use super::door::{Door, list, number, text};
use super::remove::{Watch, insist};

/// Merge a group into another one: its slots move there, and then the group is removed. Clients continue meanwhile. The
/// number of the group is not used again. Group 0 cannot be merged.
#[derive(Debug, Args)]
pub struct MergeArguments {
    /// The group to remove.
    group: u32,
    /// The group that gets its slots.
    into: u32,
    #[command(flatten)]
    door: Door,
    /// Do not wait until it is removed.
    #[arg(long)]
    no_wait: bool,
}

/// Asks, and waits until the group is removed.
pub fn run(arguments: &MergeArguments) -> Result<()> {
    let mut connection = arguments.door.open()?;
    let MergeArguments { group, into, .. } = *arguments;
    insist(&mut connection, &["HOLDFAST", "MERGE", &group.to_string(), &into.to_string()])?;
    if arguments.no_wait {
        say_line!("group {group} is being merged into group {into}: its slots move");
        return Ok(());
    }
    let latest = Cell::new((u64::MAX, Instant::now()));
    let status = Watch::new(&arguments.door).until(|status| {
        let left = find(status, group).map_or(0, |of| number(of, "to_give"));
        if latest.get().0 != left {
            latest.set((left, Instant::now()));
        }
        missing(status, group).or_else(|why| if latest.get().1.elapsed() > PATIENCE { Ok(()) } else { Err(why) })
    })?;
    if let Err(why) = missing(&status, group) {
        bail!(
            "{why}, and nothing has changed for {} s: `holdfast cluster timeline` may say why. The cluster keeps \
             trying",
            PATIENCE.as_secs()
        );
    }
    say_line!("group {group} has been merged into group {into}");
    Ok(())
}

/// When nothing has changed for so long, the operator must know.
const PATIENCE: Duration = Duration::from_secs(120);

fn find(status: &Value, group: u32) -> Option<&Value> {
    list(status, "groups").iter().find(|of| number(of, "group") == u64::from(group))
}

/// What is still to be done until the group is removed.
fn missing(status: &Value, group: u32) -> Result<(), String> {
    let is_gone = list(status, "gone").iter().any(|of| number(of, "group") == u64::from(group));
    let Some(of) = find(status, group) else {
        return if is_gone { Ok(()) } else { Err(format!("nothing is told of group {group}")) };
    };
    if text(of, "merges_into").is_empty() {
        return Err(format!("group {group} is about to be merged"));
    }
    // Told in steps: every look would be a line otherwise.
    match number(of, "to_give").div_ceil(1_024) {
        0 => Err(format!("group {group} holds no slot any more, and is about to end")),
        thousands => Err(format!("up to {} slots of group {group} are still to move", thousands * 1_024)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_group_is_merged_when_that_is_told() {
        let status = |groups: &[Value]| json!({"groups": groups, "gone": []});
        let of = |into: &str, to_give: u64| json!({"group": 2, "merges_into": into, "to_give": to_give});
        assert!(missing(&status(&[of("", 0)]), 2).unwrap_err().contains("about to be merged"));
        assert!(missing(&status(&[of("1", 1_500)]), 2).unwrap_err().contains("up to 2048 slots"));
        assert!(missing(&status(&[of("1", 0)]), 2).unwrap_err().contains("about to end"));
        assert!(missing(&status(&[json!({"group": 1})]), 2).unwrap_err().contains("nothing is told"));
        let gone = json!({"groups": [{"group": 1}], "gone": [{"group": 2, "end": 70}]});
        assert_eq!(missing(&gone, 2), Ok(()));
    }
}
