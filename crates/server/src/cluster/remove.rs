//! `holdfast cluster remove`, and the watching of what it sets going.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use super::door::{Door, ask, ask_status, list, number, text};
use super::status::name;
use crate::connection::Connection;

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(200);
/// What takes longer is reported while it goes on.
const REPORTED_AFTER: Duration = Duration::from_secs(2);
/// A refusal that may pass by itself is not taken for an answer before this.
const INSISTENCE: Duration = Duration::from_secs(15);

/// Remove a node permanently, whether it runs or not. Others first take over the groups that it leads and its votes.
#[derive(Debug, Args)]
pub struct RemoveArguments {
    /// The node, by its number, the first digits of it, or one of its addresses.
    node: String,
    #[command(flatten)]
    door: Door,
    /// Do not wait until it is removed.
    #[arg(long)]
    no_wait: bool,
}

/// Asks, and waits until the node is out.
pub fn run(arguments: &RemoveArguments) -> Result<()> {
    let mut connection = arguments.door.open()?;
    let before = ask_status(&mut connection)?;
    insist(&mut connection, &["HOLDFAST", "REMOVE", &arguments.node])?;
    let Some(id) = find(&before, &arguments.node) else {
        say_line!("{} has been removed already", arguments.node);
        return Ok(());
    };
    let who = name(&before, &id);
    if arguments.no_wait {
        say_line!("{who} leaves");
        return Ok(());
    }
    let mut watch = Watch::new(&arguments.door);
    let after = watch.until(|status| {
        let is_out = list(status, "removed").iter().any(|removed| removed.as_str() == Some(&id));
        let node = list(status, "nodes").iter().find(|node| text(node, "id") == id);
        // It may be the one that is asked.
        if is_out || node.is_some_and(|node| text(node, "state") == "removed") {
            return Ok(());
        }
        let node = node.unwrap_or(&Value::Null);
        let (votes, learns, leads) = (number(node, "votes"), number(node, "learns"), list(node, "leads").len());
        Err(format!("{who} leaves: it leads {leads} groups, votes in {votes} and listens to {learns} more"))
    })?;
    let left = list(&after, "nodes").iter().filter(|node| text(node, "id") != id).count();
    let replicas = number(&after, "replicas");
    say_line!("{who} is out; {left} {} left", if left == 1 { "node is" } else { "nodes are" });
    if (left as u64) < replicas {
        say_line!("{replicas} should vote in each group: add one with `holdfast serve --join`");
    }
    Ok(())
}

/// The number of the node that is meant.
fn find(status: &Value, meant: &str) -> Option<String> {
    let is_meant = |node: &&Value| {
        [text(node, "id"), text(node, "clients"), text(node, "cluster")].contains(&meant)
            || text(node, "name").starts_with(meant)
    };
    list(status, "nodes").iter().find(is_meant).map(|node| text(node, "id").to_owned())
}

/// Asks; a refusal that may pass by itself, such as during an election, is not taken for an answer at once.
pub fn insist(connection: &mut Connection, words: &[&str]) -> Result<()> {
    let begun = Instant::now();
    loop {
        match ask(connection, words) {
            Ok(_) => return Ok(()),
            Err(error) if error.to_string().starts_with("TRYAGAIN") && begun.elapsed() < INSISTENCE => {
                thread::sleep(INTERVAL);
            }
            Err(error) => bail!("{error:#}"),
        }
    }
}

/// Looks at a cluster until it is as it should be, and says what is still to be done if that takes its time.
pub struct Watch<'a> {
    door: &'a Door,
    begun: Instant,
    said: String,
    failing: Option<Instant>,
}

impl<'a> Watch<'a> {
    /// Of the cluster behind this door.
    pub fn new(door: &'a Door) -> Self {
        Self { door, begun: Instant::now(), said: String::new(), failing: None }
    }

    /// Until `done` says that nothing is missing any more.
    pub fn until(&mut self, done: impl Fn(&Value) -> Result<(), String>) -> Result<Value> {
        loop {
            match self.door.open().and_then(|mut connection| ask_status(&mut connection)) {
                Ok(status) => {
                    self.failing = None;
                    match done(&status) {
                        Ok(()) => return Ok(status),
                        Err(missing) if self.begun.elapsed() > REPORTED_AFTER && missing != self.said => {
                            say_line!("{missing}");
                            self.said = missing;
                        }
                        Err(_) => {}
                    }
                }
                Err(error) => {
                    let since = *self.failing.get_or_insert_with(Instant::now);
                    ensure!(since.elapsed() < INSISTENCE, "it goes on, but cannot be watched: {error:#}");
                }
            }
            thread::sleep(INTERVAL);
        }
    }
}
