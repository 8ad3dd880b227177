//! `holdfast cluster add`: the counterpart of `serve --join` for a server that runs already.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use edge::INVITATION_DEFAULT;
use serde_json::Value;

use super::door::{Door, ask_status, list, number, text};
use super::invite::ask_for;
use super::remove::{Watch, insist};
use super::status::name;

/// A node that has not come by then says in its log why.
const PATIENCE: Duration = Duration::from_secs(60);

/// Let a running, empty server join a cluster: it restarts as a node of it. A server that holds data is refused, and
/// continues with its data.
#[derive(Debug, Args)]
pub struct AddArguments {
    /// The server, at its port for clients.
    #[arg(value_name = "HOST:PORT")]
    node: String,
    #[command(flatten)]
    door: Door,
    /// Do not wait until it has all its data and votes.
    #[arg(long)]
    no_wait: bool,
}

/// Asks the server, and waits until it has what the others have.
pub fn run(arguments: &AddArguments) -> Result<()> {
    let AddArguments { node, door, no_wait } = arguments;
    add(node, door, *no_wait)
}

/// Lets the server at `HOST:PORT` join the cluster behind the door.
pub fn add(node: &str, door: &Door, no_wait: bool) -> Result<()> {
    let before = ask_status(&mut door.open()?)?;
    let known: Vec<&str> = list(&before, "nodes").iter().map(|node| text(node, "id")).collect();
    let own = list(&before, "nodes").iter().find(|other| text(other, "state") == "here").context("it names no node")?;
    let newcomer = Door { server: Some(node.to_owned()), ..door.clone() };
    let mut connection = newcomer.open()?;
    let status = ask_status(&mut connection)?;
    let is_member = list(&status, "nodes").iter().any(|other| text(other, "id") == text(own, "id"));
    ensure!(!is_member, "{node} is a node of this cluster already");
    let mut words = vec!["HOLDFAST", "JOIN", text(own, "cluster")];
    // A cluster from before there were authorities knows none, and asks for none.
    let token = match ask_for(door, INVITATION_DEFAULT) {
        Ok(token) => Some(token),
        Err(error) if error.to_string().contains("knows no invitations") => None,
        Err(error) => return Err(error.context("the cluster gives no token for it")),
    };
    words.extend(token.as_deref());
    insist(&mut connection, &words).with_context(|| format!("{node} does not join"))?;
    if no_wait {
        say_line!("{node} joins");
        return Ok(());
    }
    let begun = Instant::now();
    let after = Watch::new(door).until(|status| match find(status, &known) {
        None if begun.elapsed() > PATIENCE => Ok(()),
        None => Err(format!("{node} starts over")),
        Some(newcomer) => missing(status, newcomer),
    })?;
    let Some(newcomer) = find(&after, &known) else {
        bail!("{node} has not come within {} s: its log says why", PATIENCE.as_secs())
    };
    let (votes, groups) = (number(newcomer, "votes"), list(&after, "groups").len());
    say_line!("{} votes in {votes} of {groups} groups", name(&after, text(newcomer, "id")));
    if votes == 0 {
        say_line!(
            "{} hold each group: groups move to it one after the other, `holdfast cluster plan` shows which",
            number(&after, "replicas")
        );
    }
    Ok(())
}

/// A node that was not there before.
fn find<'v>(status: &'v Value, known: &[&str]) -> Option<&'v Value> {
    list(status, "nodes").iter().find(|node| !known.contains(&text(node, "id")))
}

/// What a node that joins still lacks.
fn missing(status: &Value, newcomer: &Value) -> Result<(), String> {
    let id = text(newcomer, "id");
    let replicas = number(status, "replicas") as usize;
    let groups = list(status, "groups");
    let has = |group: &&Value, field: &str| list(group, field).iter().any(|member| member.as_str() == Some(id));
    let votes = groups.iter().filter(|group| has(group, "voters")).count();
    // Where others have all votes there are, it must have all data.
    let is_fed = |group: &&Value| {
        has(group, "learners")
            && list(group, "voters").len() >= replicas
            && list(group, "followers").iter().any(|of| text(of, "node") == id && text(of, "feed") == "streaming")
    };
    let fed = groups.iter().filter(is_fed).count();
    // Groups that live elsewhere come to it as the balancer lets them, which may take long.
    let elsewhere = groups.iter().filter(|group| {
        let placed = list(group, "placed");
        !placed.is_empty() && !placed.iter().any(|node| node.as_str() == Some(id))
    });
    if votes + fed + elsewhere.count() == groups.len() && !groups.is_empty() {
        return Ok(());
    }
    let learns = groups.iter().filter(|group| has(group, "learners")).count();
    let behind: u64 = groups
        .iter()
        .flat_map(|group| list(group, "followers"))
        .filter(|of| text(of, "node") == id)
        .map(|of| number(of, "behind_bytes"))
        .sum();
    Err(format!(
        "{} votes in {votes} of {} groups, listens to {learns} more, and lacks {} MB of the log",
        name(status, id),
        groups.len(),
        behind >> 20
    ))
}
