//! `holdfast cluster create`: makes one cluster of servers that run, however far that has come before.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use resp::Frame;
use serde_json::Value;

use super::add::add;
use super::door::{Door, ask, ask_status, is_final, list, text};
use crate::login::Login;

/// Between two attempts to reach a server that is not there yet.
const INTERVAL: Duration = Duration::from_millis(500);
/// What takes longer is reported while it goes on.
const REPORTED_AFTER: Duration = Duration::from_secs(2);

/// Make one cluster of running servers: the others, which must be empty, join the first one, or the cluster that some
/// of them already form. It can be repeated, and then only adds what is missing.
#[derive(Debug, Args)]
pub struct CreateArguments {
    /// The servers, each at its port for clients.
    #[arg(value_name = "HOST:PORT", required = true)]
    nodes: Vec<String>,
    #[command(flatten)]
    login: Login,
    /// How long to wait for servers that do not answer yet, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    wait: u64,
}

/// What a server said of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    address: String,
    /// Its node's number.
    id: String,
    /// All nodes of its cluster, itself among them.
    members: BTreeSet<String>,
    /// What it holds, if anything: joining would lose it.
    holds: Option<&'static str>,
}

/// What must be done.
#[derive(Debug, PartialEq, Eq)]
struct Plan<'a> {
    /// A node of the cluster that takes in the others.
    base: &'a str,
    /// Those that belong to it already, the base among them.
    members: Vec<&'a str>,
    newcomers: Vec<&'a str>,
}

/// Asks all of them what they are, and then one after the other to join.
pub fn run(arguments: &CreateArguments) -> Result<()> {
    let told = hear_all(arguments)?;
    let plan = plan(&told)?;
    for address in &plan.members {
        say_line!("{address} belongs to the cluster");
    }
    let door = Door::at(plan.base, &arguments.login);
    for address in &plan.newcomers {
        say_line!("{address} joins");
        add(address, &door, false).with_context(|| format!("{address} is not in the cluster"))?;
    }
    let count = plan.members.len() + plan.newcomers.len();
    say_line!("{count} of {count} servers form one cluster");
    Ok(())
}

fn hear_all(arguments: &CreateArguments) -> Result<Vec<Told>> {
    let patience = Duration::from_secs(arguments.wait);
    let begun = Instant::now();
    let mut told: Vec<Told> = Vec::new();
    for address in &arguments.nodes {
        let mut has_reported = false;
        let heard = loop {
            match hear(address, &arguments.login) {
                Ok(heard) => break heard,
                Err(error) if begun.elapsed() > patience || is_final(&error) => {
                    return Err(error.context(format!("{address} cannot be asked; nothing was changed")));
                }
                Err(error) if !has_reported && begun.elapsed() > REPORTED_AFTER => {
                    say_line!("waits for {address}: {error:#}");
                    has_reported = true;
                }
                Err(_) => {}
            }
            thread::sleep(INTERVAL);
        };
        ensure!(
            !told.iter().any(|other| other.id == heard.id && other.address != heard.address),
            "{address} is a server that was named before, by another address"
        );
        if !told.contains(&heard) {
            told.push(heard);
        }
    }
    Ok(told)
}

fn hear(address: &str, login: &Login) -> Result<Told> {
    let mut connection = Door::at(address, login).open()?;
    let holds = if ask(&mut connection, &["DBSIZE"])? != Frame::Integer(0) {
        Some("keys")
    } else if ask(&mut connection, &["FUNCTION", "LIST"])?.elements().is_none_or(|libraries| !libraries.is_empty()) {
        Some("functions")
    } else {
        None
    };
    let status = ask_status(&mut connection)?;
    let nodes = list(&status, "nodes");
    let is_here = |node: &&Value| text(node, "state") == "here";
    let own = nodes.iter().find(is_here).with_context(|| format!("{address} does not say which node it is"))?;
    Ok(Told {
        address: address.to_owned(),
        id: text(own, "id").to_owned(),
        members: nodes.iter().map(|node| text(node, "id").to_owned()).collect(),
        holds,
    })
}

/// Servers that belong to a cluster of several, or that hold something, must all be of one cluster: that one takes in
/// the others. Where there is none the first server is it.
fn plan(told: &[Told]) -> Result<Plan<'_>> {
    let settled: Vec<&Told> = told.iter().filter(|one| one.members.len() > 1 || one.holds.is_some()).collect();
    let base = settled.first().copied().or(told.first()).context("no server was named")?;
    if let Some(other) = settled.iter().find(|other| !base.members.contains(&other.id)) {
        let what = |one: &Told| match one.members.len() {
            1 => format!("holds {}", one.holds.unwrap_or_default()),
            count => format!("is one of {count} nodes of a cluster"),
        };
        bail!(
            "{} {} and {} {}: two clusters do not become one; nothing was changed",
            base.address,
            what(base),
            other.address,
            what(other)
        );
    }
    let addresses = |are_members: bool| {
        let of = told.iter().filter(|one| base.members.contains(&one.id) == are_members);
        of.map(|one| one.address.as_str()).collect()
    };
    Ok(Plan { base: &base.address, members: addresses(true), newcomers: addresses(false) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(address: &str, members: &[&str], holds: Option<&'static str>) -> Told {
        let members = members.iter().map(|member| (*member).to_owned()).collect();
        Told { address: address.to_owned(), id: address.to_owned(), members, holds }
    }

    #[test]
    fn the_first_of_blank_servers_takes_in_the_others() {
        let told = [told("a", &["a"], None), told("b", &["b"], None), told("c", &["c"], None)];
        assert_eq!(plan(&told).ok(), Some(Plan { base: "a", members: vec!["a"], newcomers: vec!["b", "c"] }));
    }

    #[test]
    fn a_cluster_or_a_server_with_keys_takes_in_the_others() {
        let pair = ["b", "c"];
        let three = [told("a", &["a"], None), told("b", &pair, None), told("c", &pair, Some("keys"))];
        assert_eq!(plan(&three).ok(), Some(Plan { base: "b", members: vec!["b", "c"], newcomers: vec!["a"] }));
        for holds in ["keys", "functions"] {
            let two = [told("a", &["a"], None), told("b", &["b"], Some(holds))];
            assert_eq!(plan(&two).ok(), Some(Plan { base: "b", members: vec!["b"], newcomers: vec!["a"] }));
        }
    }

    #[test]
    fn two_that_hold_something_stay_apart() {
        let two = [told("a", &["a"], Some("keys")), told("b", &["b", "x"], None)];
        let why = plan(&two).expect_err("two clusters").to_string();
        assert_eq!(
            why,
            "a holds keys and b is one of 2 nodes of a cluster: two clusters do not become one; nothing was changed"
        );
    }
}
