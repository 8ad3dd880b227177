//! The way back: the old server follows the new one as a replica, and becomes what it was.
//!
//! Two steps, with as much time between them as one likes: `--prepare` makes the old server a replica, which takes a
//! copy and then the stream; without it writes stop here, the old server gets the rest, and takes writes again.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use resp::Frame;

use super::PATIENCE;
use super::check::{config, is_master};
use super::cutover::{REPLICAS_NEVER_MET, call, counts};
use super::source::{Address, ask, info, info_field};
use super::target::{TargetArguments, read_record};
use crate::connection::Connection;

/// How long the old server may take to get a copy without a word that it is getting on.
const COPY_PATIENCE: Duration = Duration::from_secs(600);

const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Between two looks at how far the old server is while clients wait for it.
const DRAIN_INTERVAL: Duration = Duration::from_millis(5);

/// Lets the old server follow.
///
/// # Errors
/// If it still takes writes, or does not get a copy.
pub fn prepare(address: &Address, arguments: &TargetArguments, place: Option<&str>) -> Result<()> {
    let mut ours = arguments.connect()?;
    ensure!(read_record(&mut ours)?.is_none(), "the migration is under way: cut over first, and go back then");
    let mut old = address.connect(PATIENCE)?;
    ensure!(
        info_field(&info(&mut old, "cluster")?, "cluster_enabled").as_deref() != Some("1"),
        "{} is a node of a Redis Cluster, which can follow no other server: `holdfast export` is the way back",
        address.place
    );
    if is_master(&mut old)? {
        let refuses = config(&mut old, "min-replicas-to-write")?.is_some_and(|number| number == REPLICAS_NEVER_MET);
        ensure!(
            refuses,
            "{} takes writes, and would lose them: stop them with CONFIG SET min-replicas-to-write {REPLICAS_NEVER_MET}",
            address.place
        );
        choose_version(&mut ours, &info(&mut old, "server")?)?;
        let servers = arguments.servers();
        let first = &servers[0];
        let (host, port) = place.unwrap_or(first).rsplit_once(':').context("a server is HOST:PORT")?;
        if let Some((user, password)) = arguments.secret() {
            if let Some(user) = user {
                ask(&mut old, &["CONFIG", "SET", "masteruser", user])?;
            }
            ask(&mut old, &["CONFIG", "SET", "masterauth", password])?;
        }
        ask(&mut old, &["REPLICAOF", host, port])?;
    }
    let begun = Instant::now();
    while !is_linked(&mut old)? {
        ensure!(
            begun.elapsed() < COPY_PATIENCE,
            "{} gets no copy: its log says why; REPLICAOF NO ONE there makes it what it was",
            address.place
        );
        thread::sleep(POLL_INTERVAL);
    }
    say_line!("{} follows; `migrate verify` compares, `migrate back` goes back", address.place);
    Ok(())
}

/// Sets the version of copies, and of the stream, to what the old server reads.
fn choose_version(ours: &mut Connection, server: &str) -> Result<()> {
    let (name, wanted) = readable(server);
    let now = config(ours, "replica-rdb-version")?.unwrap_or_default();
    let others_follow = info(ours, "replication")?.contains("type=stream");
    let chosen = if others_follow { read_by_both(wanted, &now) } else { wanted };
    if chosen != now {
        ask(ours, &["CONFIG", "SET", "replica-rdb-version", chosen])?;
        say_line!("the old server is a {name}: replica-rdb-version is {chosen} now");
    }
    if ["9", "10"].contains(&chosen) {
        say_line!("deadlines of fields of hashes (HEXPIRE) are not told to it");
    }
    Ok(())
}

/// The newest version that servers read of which each reads one of these.
fn read_by_both<'v>(left: &'v str, right: &'v str) -> &'v str {
    const VERSIONS: [&str; 4] = ["9", "10", "12", "80"];
    let rank = |version: &str| VERSIONS.iter().position(|known| *known == version).unwrap_or(0);
    match (rank(left), rank(right)) {
        (one, other) if one == other => left,
        // Redis and Valkey have gone different ways since version 11.
        (2.., 2..) => "10",
        (one, other) if one < other => left,
        _ => right,
    }
}

/// What a server calls itself in INFO server, and the newest version of RDB files that we write and it reads.
fn readable(server: &str) -> (String, &'static str) {
    let version = info_field(server, "redis_version").unwrap_or_default();
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    let numbers = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match info_field(server, "valkey_version") {
        Some(version) => {
            let major = version.split('.').next().and_then(|number| number.parse::<u32>().ok()).unwrap_or(0);
            (format!("Valkey {version}"), if major >= 9 { "80" } else { "10" })
        }
        None if numbers < (7, 0) => (format!("Redis {version}"), "9"),
        None if numbers < (7, 4) => (format!("Redis {version}"), "10"),
        None => (format!("Redis {version}"), "12"),
    }
}

/// Goes back.
///
/// # Errors
/// If the old server does not follow, or does not get everything in time. Then writes are taken here as before.
pub fn run(address: &Address, arguments: &TargetArguments, pause: Duration) -> Result<()> {
    let mut old = address.connect(PATIENCE)?;
    ensure!(!is_master(&mut old)?, "{} does not follow: `migrate back --prepare` first", address.place);
    ensure!(is_linked(&mut old)?, "{} has no link to the server that it follows: see its log", address.place);
    // The offset is that of the node that the old server is linked to.
    let first = &mut arguments.connect_to(&arguments.servers()[0])?;
    let before = config(first, "min-replicas-to-write")?.unwrap_or_else(|| "0".to_owned());
    ensure!(before != REPLICAS_NEVER_MET, "this server takes no writes since an earlier way back");

    let stopped = Instant::now();
    // Refused from here on, and nothing is lost: clients that have not moved hear NOREPLICAS.
    ask(first, &["CONFIG", "SET", "min-replicas-to-write", REPLICAS_NEVER_MET])?;
    let counted = drain(first, &mut old, pause).and_then(|_| same_counts(first, &mut old, pause));
    let outcome = counted.and_then(|()| {
        // A write that was on its way through the log when writes were refused may have been done since.
        let offset = drain(first, &mut old, pause)?;
        ask(&mut old, &["REPLICAOF", "NO", "ONE"])?;
        Ok(offset)
    });
    if outcome.is_err() {
        ask(first, &["CONFIG", "SET", "min-replicas-to-write", &before])?;
    }
    let offset = outcome.context("not gone back; writes are taken here as before")?;
    ask(&mut old, &["CONFIG", "SET", "min-replicas-to-write", "0"])
        .context("the old server refuses writes yet: CONFIG SET min-replicas-to-write 0 there")?;
    if arguments.secret().is_some() {
        let _ = call(&mut old, &["CONFIG", "SET", "masterauth", ""])?;
    }
    say_line!(
        "back at offset {offset} after {} ms: {} has everything and accepts writes",
        stopped.elapsed().as_millis(),
        address.place
    );
    say_line!("this server refuses writes (NOREPLICAS) until CONFIG SET min-replicas-to-write {before}");
    Ok(())
}

fn is_linked(old: &mut Connection) -> Result<bool> {
    let told = info(old, "replication")?;
    Ok(info_field(&told, "master_link_status").is_some_and(|status| status == "up"))
}

fn offset_in(told: &str, name: &str) -> Option<u64> {
    info_field(told, name)?.parse().ok()
}

/// Waits until the old server has carried out all that was done here before, and answers how far that is.
fn drain(ours: &mut Connection, old: &mut Connection, patience: Duration) -> Result<u64> {
    let begun = Instant::now();
    let patience_ms = patience.as_millis().to_string();
    // It asks the leaders of all groups up to where they are, and waits until this node has told as much.
    let reply = ask(ours, &["HOLDFAST", "STREAM", "0", &patience_ms])?;
    let told = match reply.elements() {
        Some([Frame::Integer(offset), _]) => u64::try_from(*offset).ok(),
        _ => None,
    };
    let told = told.context("this server leads no stream, or has not told in time what was done here")?;
    loop {
        let there = info(old, "replication")?;
        // Offsets are of a stream: another one, for which it has no copy yet, begins at 0.
        let stream = info_field(&info(ours, "replication")?, "stream_replid");
        let is_same = stream.is_some() && stream == info_field(&there, "master_replid");
        let is_up = info_field(&there, "master_link_status").is_some_and(|status| status == "up");
        let theirs = offset_in(&there, "slave_repl_offset").filter(|_| is_same && is_up);
        if theirs.is_some_and(|theirs| theirs >= told) {
            return Ok(told);
        }
        if begun.elapsed() > patience {
            bail!("the old server has not got everything in time: {} of {told} bytes", theirs.unwrap_or(0));
        }
        thread::sleep(DRAIN_INTERVAL);
    }
}

/// Makes sure that both hold equally many keys. What has expired may be on its way.
fn same_counts(ours: &mut Connection, old: &mut Connection, patience: Duration) -> Result<()> {
    let begun = Instant::now();
    loop {
        let (here, there) = (counts(ours)?, counts(old)?);
        if here == there {
            return Ok(());
        }
        ensure!(begun.elapsed() < patience, "the databases differ: {here:?} here, {there:?} at the old server");
        thread::sleep(DRAIN_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::{read_by_both, readable};

    #[test]
    fn each_server_gets_what_it_reads() {
        let version = |info: &str| readable(info).1;
        assert_eq!(version("redis_version:5.0.14\r\n"), "9");
        assert_eq!(version("redis_version:6.2.16\r\n"), "9");
        assert_eq!(version("redis_version:7.0.15\r\n"), "10");
        assert_eq!(version("redis_version:7.2.6\r\n"), "10");
        assert_eq!(version("redis_version:7.4.0\r\n"), "12");
        assert_eq!(version("redis_version:8.10.1\r\n"), "12");
        assert_eq!(version("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.4\r\n"), "10");
        assert_eq!(version("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.0.0\r\n"), "80");
        for (left, right, both) in
            [("80", "80", "80"), ("80", "12", "10"), ("12", "80", "10"), ("80", "9", "9"), ("10", "12", "10")]
        {
            assert_eq!((read_by_both(left, right), read_by_both(right, left)), (both, both));
        }
    }
}
