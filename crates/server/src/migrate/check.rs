//! What must be known before the first byte is copied: whether it can be done, and what the source must keep ready.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use resp::Frame;

use super::cluster::topology::{Survey, Topology, ranges_of};
use super::source::{Address, ask, info, info_field};
use super::target::{commands_of, read_record};
use crate::backup::grouped;
use crate::connection::Connection;

/// How long the source's rate of writes is measured.
const MEASURED: Duration = Duration::from_secs(2);

/// A cut of the line that a backlog should bridge, in seconds.
const BACKLOG_SECONDS_MIN: u64 = 60;

/// Commands that a replica is not sent, and that have no effect on data.
const HARMLESS: [&str; 12] = [
    "replconf",
    "psync",
    "sync",
    "module",
    "debug",
    "monitor",
    "sentinel",
    "pfselftest",
    "restore-asking",
    "asking",
    "replicaof",
    "slaveof",
];

/// How a point of the check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Fine,
    /// It can be done, and the operator should know this.
    Note,
    /// It cannot be done.
    Obstacle,
}

/// A point that was looked at.
#[derive(Debug)]
pub struct Point {
    pub subject: &'static str,
    pub verdict: Verdict,
    pub text: String,
}

/// The points of a check, in the order in which they are told.
#[derive(Debug, Default)]
pub struct Report {
    pub points: Vec<Point>,
    /// The node of a cluster that is looked at.
    place: Option<String>,
}

impl Report {
    fn add(&mut self, subject: &'static str, verdict: Verdict, text: String) {
        let text = self.place.as_ref().map_or(text.clone(), |place| format!("{place}: {text}"));
        self.points.push(Point { subject, verdict, text });
    }

    /// True if nothing stands in the way.
    pub fn is_possible(&self) -> bool {
        self.points.iter().all(|point| point.verdict != Verdict::Obstacle)
    }
}

/// Looks at both sides.
///
/// # Errors
/// If one of them does not answer.
pub fn check(address: &Address, target: &mut Connection, patience: Duration) -> Result<Report> {
    let mut report = Report::default();
    let mut source = address.connect(patience)?;
    if info_field(&info(&mut source, "cluster")?, "cluster_enabled").as_deref() != Some("1") {
        if check_source(&mut source, target, &mut report)? {
            check_target(target, &mut report)?;
        }
        return Ok(report);
    }
    let topology = Survey::new(address, []).look()?;
    check_cluster(&topology, &mut report);
    for claim in topology.primaries() {
        report.place = Some(claim.place.clone());
        let mut source = address.at(&claim.place).connect(patience)?;
        if !check_source(&mut source, target, &mut report)? {
            return Ok(report);
        }
    }
    report.place = None;
    check_target(target, &mut report)?;
    Ok(report)
}

/// Looks at a server that is followed. False if it is none that can be.
fn check_source(source: &mut Connection, target: &mut Connection, report: &mut Report) -> Result<bool> {
    let server = info(source, "server")?;
    let version = info_field(&server, "valkey_version")
        .map(|version| format!("Valkey {version}"))
        .or_else(|| info_field(&server, "redis_version").map(|version| format!("Redis {version}")))
        .context("the source tells no version")?;
    if info_field(&server, "holdfast_version").is_some() {
        let text = "the source is a Holdfast: copy it with `holdfast backup` and `holdfast restore`".to_owned();
        report.add("version", Verdict::Obstacle, text);
        return Ok(false);
    }
    report.add("version", Verdict::Fine, version);
    check_replication(source, report)?;
    check_data(source, target, report)?;
    check_commands(source, target, report)?;
    let users = source.call(&["ACL", "LIST"])?;
    let count = users.elements().map_or(1, <[Frame]>::len);
    if count > 1 {
        report.add("users", Verdict::Note, format!("{count} ACL users are not copied: load their file at the target"));
    }
    Ok(true)
}

/// Looks at which nodes have which slots of a cluster.
fn check_cluster(topology: &Topology, report: &mut Report) {
    let replicas = topology.claims.values().filter(|claim| !claim.is_primary).count();
    let text = format!("{} primaries with slots and {replicas} replicas answer", topology.primaries().count());
    report.add("cluster", Verdict::Fine, text);
    let owners = topology.owners();
    let ownerless = ranges_of((0..).zip(&owners).filter(|(_, owner)| owner.is_none()).map(|(slot, _)| slot));
    let silent = topology.silent.iter().cloned().collect::<Vec<_>>().join(", ");
    if !silent.is_empty() {
        report.add("nodes", Verdict::Note, format!("no answer from {silent}: reachable from here under that name?"));
    }
    if !ownerless.is_empty() {
        let text = format!("no node that answers has the slots {ownerless}");
        report.add("slots", Verdict::Obstacle, text);
    }
    let open = topology.open();
    if !open.is_empty() {
        let text = format!("being moved: {}; what they hold comes when that has ended", ranges_of(open));
        report.add("slots", Verdict::Note, text);
    }
    report.add("functions", Verdict::Note, "are taken from one primary: all should have the same".to_owned());
}

fn check_replication(source: &mut Connection, report: &mut Report) -> Result<()> {
    let replication = info(source, "replication")?;
    let number =
        |text: &str, name: &str| info_field(text, name).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
    if info_field(&replication, "role").as_deref() != Some("master") {
        let text = "the source is a replica: `cutover` can stop writes only at its master".to_owned();
        report.add("role", Verdict::Note, text);
    }
    let before = number(&replication, "master_repl_offset");
    thread::sleep(MEASURED);
    let after = number(&info(source, "replication")?, "master_repl_offset");
    let rate = after.saturating_sub(before) / MEASURED.as_secs();
    let backlog = config(source, "repl-backlog-size")?.and_then(|size| size.parse::<u64>().ok()).unwrap_or(0);
    let seconds = backlog / rate.max(1);
    let text = format!(
        "{} of backlog bridge a cut of {} at {} of changes a second",
        bytes(backlog),
        if rate == 0 { "any length".to_owned() } else { format!("{seconds} s") },
        bytes(rate)
    );
    if rate > 0 && seconds < BACKLOG_SECONDS_MIN {
        let wanted = (rate * BACKLOG_SECONDS_MIN).next_multiple_of(1 << 20) >> 20;
        report.add("backlog", Verdict::Note, format!("{text}: CONFIG SET repl-backlog-size {wanted}mb"));
    } else {
        report.add("backlog", Verdict::Fine, text);
    }
    Ok(())
}

fn check_data(source: &mut Connection, target: &mut Connection, report: &mut Report) -> Result<()> {
    let keyspace = info(source, "keyspace")?;
    let databases: Vec<(u64, u64)> = databases_of(&keyspace);
    let keys: u64 = databases.iter().map(|(_, keys)| keys).sum();
    let used = info_field(&info(source, "memory")?, "used_memory").and_then(|used| used.parse().ok()).unwrap_or(0);
    let text = format!("{} keys in {} databases, {} of memory", grouped(keys), databases.len(), bytes(used));
    report.add("data", Verdict::Fine, text);
    let room = config(target, "databases")?.and_then(|count| count.parse::<u64>().ok()).unwrap_or(16);
    if let Some((highest, _)) = databases.last().filter(|(highest, _)| *highest >= room) {
        let text = format!("the target has {room} databases: start it with --databases {}", highest + 1);
        report.add("databases", Verdict::Obstacle, text);
    }
    let bound = config(target, "maxmemory")?.and_then(|bound| bound.parse::<u64>().ok()).unwrap_or(0);
    if bound > 0 && bound < used {
        let text = format!("maxmemory of the target is {}, and the source uses {}", bytes(bound), bytes(used));
        report.add("memory", Verdict::Note, text);
    }
    let policy = config(source, "maxmemory-policy")?.unwrap_or_default();
    if policy != "noeviction" && config(target, "maxmemory-policy")?.as_deref() != Some(&policy) {
        let text = format!("the source evicts ({policy}), and the target not so: set its maxmemory-policy");
        report.add("eviction", Verdict::Note, text);
    }
    let is_valkey = info_field(&info(source, "server")?, "valkey_version").is_some();
    let foreign = foreign_modules(&source.call(&["MODULE", "LIST"])?, is_valkey);
    if !foreign.is_empty() {
        let text = format!("keys of the types of {} are not copied (start --skip-modules)", foreign.join(", "));
        report.add("modules", Verdict::Note, text);
    }
    Ok(())
}

/// Modules of a source with types that do not exist here. Those of Redis 8 that are built in do, and the engine of
/// scripts that Valkey has as a module has no types.
fn foreign_modules(list: &Frame, is_valkey: bool) -> Vec<String> {
    let known: &[&str] = if is_valkey { &["lua", "json"] } else { &["rejson", "bf", "vectorset"] };
    let name_of = |module: &Frame| {
        let facts = module.elements()?;
        let at = facts.iter().position(|fact| fact.as_bytes() == Some(b"name"))?;
        Some(String::from_utf8_lossy(facts.get(at + 1)?.as_bytes()?).into_owned())
    };
    let names = list.elements().unwrap_or_default().iter().filter_map(name_of);
    names.filter(|name| !known.contains(&name.to_ascii_lowercase().as_str())).collect()
}

/// Commands that were used at the source, and that the target lacks.
fn check_commands(source: &mut Connection, target: &mut Connection, report: &mut Report) -> Result<()> {
    let used = info(source, "commandstats")?;
    let known = commands_of(target)?;
    let mut missing: Vec<&str> = used
        .lines()
        .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':').map(|(name, _)| name))
        .map(|name| name.split('|').next().unwrap_or(name))
        .filter(|name| {
            // Commands of modules may be written in capitals.
            let name = name.to_ascii_lowercase();
            !HARMLESS.contains(&name.as_str()) && !known.contains(name.as_bytes())
        })
        .collect();
    missing.dedup();
    if missing.is_empty() {
        let text = "the target knows every command that was used at the source".to_owned();
        report.add("commands", Verdict::Fine, text);
    } else {
        let text = format!("used at the source and unknown at the target: {}", missing.join(", "));
        report.add("commands", Verdict::Note, text);
    }
    Ok(())
}

fn check_target(target: &mut Connection, report: &mut Report) -> Result<()> {
    if info_field(&info(target, "server")?, "holdfast_version").is_none() {
        report.add("target", Verdict::Obstacle, "the target is not a Holdfast".to_owned());
        return Ok(());
    }
    if let Some(record) = read_record(target)? {
        let text = format!("a migration from {} is under way: `migrate start` continues it", record.from);
        report.add("target", Verdict::Note, text);
        return Ok(());
    }
    match crate::import::ensure_empty(target) {
        Ok(()) => report.add("target", Verdict::Fine, "the target is empty".to_owned()),
        Err(why) => report.add("target", Verdict::Obstacle, format!("{why:#}")),
    }
    Ok(())
}

/// Numbers and keys of the databases that INFO keyspace lists.
pub fn databases_of(keyspace: &str) -> Vec<(u64, u64)> {
    let read = |line: &str| {
        let (number, facts) = line.strip_prefix("db")?.split_once(':')?;
        let keys = facts.split(',').find_map(|fact| fact.strip_prefix("keys="))?;
        Some((number.parse().ok()?, keys.parse().ok()?))
    };
    keyspace.lines().filter_map(|line| read(line.trim())).collect()
}

/// A parameter, if the server tells it.
///
/// # Errors
/// If it does not answer.
pub fn config(connection: &mut Connection, name: &str) -> Result<Option<String>> {
    let reply = connection.call(&["CONFIG", "GET", name]).context("CONFIG GET was not answered")?;
    let value = reply.elements().and_then(|words| words.get(1)).and_then(Frame::as_bytes);
    Ok(value.map(|value| String::from_utf8_lossy(value).into_owned()))
}

/// Bytes in a unit that suits them.
pub fn bytes(count: u64) -> String {
    match count {
        0..10_000 => format!("{count} B"),
        10_000..10_000_000 => format!("{} kB", grouped(count / 1_000)),
        _ => format!("{} MB", grouped(count / 1_000_000)),
    }
}

/// Bytes of its stream that the source has written, or passed on if it is a replica itself.
///
/// # Errors
/// As for [`ask`].
pub fn offset_of(source: &mut Connection) -> Result<u64> {
    let replication = info(source, "replication")?;
    let is_master = info_field(&replication, "role").as_deref() == Some("master");
    let name = if is_master { "master_repl_offset" } else { "slave_repl_offset" };
    info_field(&replication, name).and_then(|offset| offset.parse().ok()).context("the source tells no offset")
}

/// True if it is the master.
///
/// # Errors
/// As for [`ask`].
pub fn is_master(source: &mut Connection) -> Result<bool> {
    let reply = ask(source, &["ROLE"])?;
    Ok(reply.elements().and_then(|words| words.first()?.as_bytes()) == Some(b"master"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_are_read() {
        let text = "# Keyspace\r\ndb0:keys=12,expires=0,avg_ttl=0\r\ndb7:keys=1,expires=1,avg_ttl=5\r\n";
        assert_eq!(databases_of(text), [(0, 12), (7, 1)]);
        assert!(databases_of("# Keyspace\r\n").is_empty());
    }
}
