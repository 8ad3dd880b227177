//! `holdfast cluster groups`: how many groups there are.

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use super::door::{Door, ask_status, list, number, text};
use super::remove::{Watch, insist};

/// Make more groups, and wait until each holds its share of the slots. Clients continue meanwhile. `cluster merge`
/// removes a group.
#[derive(Debug, Args)]
pub struct GroupsArguments {
    /// Number of groups in total: one to four for each core of a node serve well.
    count: u32,
    #[command(flatten)]
    door: Door,
    /// Do not wait.
    #[arg(long)]
    no_wait: bool,
}

/// Asks, and waits until every group is led and has slots, if the balancer may move them.
pub fn run(arguments: &GroupsArguments) -> Result<()> {
    let count = arguments.count;
    insist(&mut arguments.door.open()?, &["HOLDFAST", "GROUPS", &count.to_string()])?;
    if arguments.no_wait {
        say_line!("there are going to be {count} groups");
        return Ok(());
    }
    Watch::new(&arguments.door).until(|status| missing(status, count))?;
    let status = ask_status(&mut arguments.door.open()?)?;
    if number(&status, "balancing") == 0 {
        say_line!("there are {count} groups; balancing is off: those without slots get none by themselves");
    } else {
        say_line!("there are {count} groups, each with its share of the slots");
    }
    Ok(())
}

/// What is still to be done until there are so many groups that serve.
fn missing(status: &Value, count: u32) -> Result<(), String> {
    let groups = list(status, "groups");
    if (groups.len() as u64) < u64::from(count) {
        return Err(format!("there are {} groups so far", groups.len()));
    }
    let led = groups.iter().filter(|group| !text(group, "leader").is_empty()).count();
    if led < groups.len() {
        return Err(format!("{led} of {} groups have a leader", groups.len()));
    }
    if number(status, "balancing") == 0 {
        return Ok(());
    }
    let filled = groups.iter().filter(|group| !text(group, "slots").is_empty()).count();
    let moving: u64 = groups.iter().map(|group| number(group, "to_give")).sum();
    // Told in steps: every look would be a line otherwise.
    match (filled < groups.len(), moving.div_ceil(1_024)) {
        (true, _) => Err(format!("{filled} of {} groups have slots", groups.len())),
        (false, 0) => Ok(()),
        (false, thousands) => Err(format!("up to {} slots are still to move", thousands * 1_024)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn groups_are_there_when_all_are_led_and_hold_their_slots() {
        let group =
            |leader: &str, slots: &str, to_give: u64| json!({"leader": leader, "slots": slots, "to_give": to_give});
        let status = |balancing: u64, groups: &[Value]| json!({"balancing": balancing, "groups": groups});
        let old = group("1", "0-8191", 0);
        assert!(missing(&status(1, std::slice::from_ref(&old)), 2).unwrap_err().contains("1 groups so far"));
        let unled = [old.clone(), group("", "", 0)];
        assert!(missing(&status(1, &unled), 2).unwrap_err().contains("1 of 2 groups have a leader"));
        let empty = [old.clone(), group("1", "", 0)];
        assert!(missing(&status(1, &empty), 2).unwrap_err().contains("1 of 2 groups have slots"));
        assert_eq!(missing(&status(0, &empty), 2), Ok(()), "nothing moves by itself");
        let giving = [group("1", "0-8191", 5), group("1", "8192-16383", 0)];
        assert!(missing(&status(1, &giving), 2).unwrap_err().contains("up to 1024 slots"));
        assert_eq!(missing(&status(1, &[old, group("1", "8192-16383", 0)]), 2), Ok(()));
    }
}
