//! `holdfast cluster timeline`.

use std::fmt::Write as _;

use anyhow::Result;
use clap::Args;
use serde_json::Value;
use stdx::UnixMillis;

use super::door::{Door, ask_status, ask_timeline, list, text};
use super::status::name;

/// Show the events of the cluster with their causes, the latest first.
#[derive(Debug, Args)]
pub struct TimelineArguments {
    #[command(flatten)]
    door: Door,
    /// Number of events to show.
    #[arg(long, default_value_t = 100)]
    count: usize,
    /// Print them as JSON.
    #[arg(long)]
    json: bool,
}

/// Asks and prints.
pub fn run(arguments: &TimelineArguments) -> Result<()> {
    let mut connection = arguments.door.open()?;
    let happenings = ask_timeline(&mut connection, arguments.count)?;
    if arguments.json {
        say_line!("{}", serde_json::to_string_pretty(&happenings)?);
    } else {
        let status = ask_status(&mut connection)?;
        say!("{}", lines(&happenings, Some(&status)));
    }
    Ok(())
}

/// Happenings as people read them; nodes are named by where clients find them, if it is known how the cluster is.
pub fn lines(happenings: &[Value], status: Option<&Value>) -> String {
    let mut out = String::new();
    for happening in happenings {
        let unix = happening.get("unix_ms").and_then(Value::as_i64).unwrap_or_default();
        let group =
            happening.get("group").and_then(Value::as_u64).map_or(String::new(), |group| format!("group {group}: "));
        let teller = match status {
            Some(status) => name(status, text(happening, "node")),
            None => format!("node {}", text(happening, "node")),
        };
        let told = named(text(happening, "text"), status);
        let _ =
            writeln!(out, "{}  {:<10}  {teller}: {group}{told}", edge::utc(UnixMillis(unix)), text(happening, "kind"));
    }
    out
}

/// Puts in addresses where nodes are named by their numbers.
pub fn named(told: &str, status: Option<&Value>) -> String {
    let Some(status) = status else { return told.to_owned() };
    let mut out = String::new();
    let mut rest = told;
    while let Some(at) = rest.find("node ") {
        let (before, after) = rest.split_at(at);
        let digits = after["node ".len()..].chars().take_while(char::is_ascii_digit).count();
        let (whole, tail) = after.split_at("node ".len() + digits);
        out.push_str(before);
        if digits > 0 {
            out.push_str(&name(status, &whole["node ".len()..]))
        } else {
            out.push_str(whole)
        }
        rest = tail;
    }
    with_addresses(&(out + rest), status)
}

/// Numbers of nodes have so many digits, or nearly; few other numbers do.
const NUMBER_DIGITS_MIN: usize = 12;

/// Puts in addresses for numbers of nodes in lists, such as `voters [1, 2]`.
fn with_addresses(told: &str, status: &Value) -> String {
    let is_digit = |letter: char| letter.is_ascii_digit();
    let mut out = String::new();
    let mut rest = told;
    while let Some(at) = rest.find(is_digit) {
        let (before, after) = rest.split_at(at);
        let (number, tail) = after.split_at(after.find(|letter| !is_digit(letter)).unwrap_or(after.len()));
        out.push_str(before);
        let is_node = || list(status, "nodes").iter().any(|node| text(node, "id") == number);
        match number.len() >= NUMBER_DIGITS_MIN && is_node() {
            true => out.push_str(&name(status, number)),
            false => out.push_str(number),
        }
        rest = tail;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_says_when_who_and_why() {
        let happening = json!({"unix_ms": 86_400_000_i64, "node": "2", "kind": "leader", "group": 3,
                               "text": "node 2 leads in term 7: node 1 had been silent for 800 ms"});
        let status = json!({"nodes": [{"id": "1", "clients": "a:1"}, {"id": "2", "clients": "b:2"}]});
        let expected = "leader      b:2: group 3: b:2 leads in term 7: a:1 had been silent for 800 ms\n";
        let told = lines(std::slice::from_ref(&happening), Some(&status));
        assert!(told.starts_with("1970-01-02") && told.ends_with(expected), "{told}");
        let (one, other) = ("1700649912866440679", "2434350439230061380");
        let change = json!({"unix_ms": 0, "node": one, "kind": "member", "group": 3,
                            "text": format!("voters [{one}, {other}], learners [9999999999999999999] at 10000000000000 ms")});
        let status = json!({"nodes": [{"id": one, "clients": "a:1"}, {"id": other, "clients": "b:2"}]});
        let told = lines(&[change], Some(&status));
        let expected = "a:1: group 3: voters [a:1, b:2], learners [9999999999999999999] at 10000000000000 ms\n";
        assert!(told.ends_with(expected), "{told}");
        assert!(lines(&[happening], None).contains("node 2: group 3: node 2 leads"));
    }
}
