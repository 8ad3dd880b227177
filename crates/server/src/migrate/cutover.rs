//! The end of a migration: writes stop at the source, the target gets the rest, and clients move.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use resp::Frame;

use super::check::{config, databases_of, is_master, offset_of};
use super::follow::COPY_FIELD;
use super::source::{Address, ask, info, info_field, not_refused, pipeline};
use super::target::{Phase, RECORD, Record, TargetArguments, read_record};
use super::{PATIENCE, WRITER_SILENCE, age_of, cluster};
use crate::connection::{Connection, named};

/// A target that is further behind is not ready.
const LAG_MS_MAX: u64 = 5_000;

/// More good replicas than a source can have: it refuses all writes, also those of scripts and transactions.
pub const REPLICAS_NEVER_MET: &str = "1000000";

pub const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// So many are asked for their size together.
const DATABASES_AT_ONCE: usize = 256;

/// Cuts over.
///
/// # Errors
/// If the target is not ready, or does not get everything in time. Then the source takes writes as before.
pub fn run(address: &Address, arguments: &TargetArguments, pause: Duration, leaves_open: bool) -> Result<()> {
    let mut target = arguments.connect()?;
    let record = read_record(&mut target)?.context("no migration is under way")?;
    ensure!(record.phase == Phase::Following, "the copy is not complete: see `migrate status`");
    ensure!(age_of(&record) < WRITER_SILENCE, "nothing follows the source: start `migrate start` first");
    ensure!(record.lag_ms < LAG_MS_MAX, "the target is {} ms behind: wait until it has caught up", record.lag_ms);
    if !record.streams.is_empty() {
        return cluster::cutover::run(address, arguments, (target, &record), pause, leaves_open);
    }
    let mut source = address.connect(PATIENCE)?;
    ensure!(is_master(&mut source)?, "{} is a replica: writes can be stopped at its master only", address.place);
    let before = config(&mut source, "min-replicas-to-write")?.unwrap_or_else(|| "0".to_owned());
    ensure!(before != REPLICAS_NEVER_MET, "the source takes no writes since an earlier cut-over");

    let stopped = Instant::now();
    // Clients wait; those of a source before 6.2 are refused at once.
    let pause_ms = pause.as_millis().to_string();
    let waits = !call(&mut source, &["CLIENT", "PAUSE", &pause_ms, "WRITE"])?.is_error();
    if !waits {
        ask(&mut source, &["CONFIG", "SET", "min-replicas-to-write", REPLICAS_NEVER_MET])?;
    }
    let drained = drain(&mut source, &mut target, &record, pause);
    let outcome = drained.and_then(|_| {
        // From here on the source refuses what it would have to take alone.
        ask(&mut source, &["CONFIG", "SET", "min-replicas-to-write", REPLICAS_NEVER_MET])?;
        // The pause may have ended before.
        let offset = drain(&mut source, &mut target, &record, pause)?;
        let offset = same_counts(&mut source, &mut target, &record, pause, offset)?;
        fence(&mut target)?;
        Ok(offset)
    });
    let took = stopped.elapsed();
    let is_ended = outcome.is_err() && is_ended_by_another(&mut target);
    if outcome.is_err() && !is_ended || leaves_open {
        ask(&mut source, &["CONFIG", "SET", "min-replicas-to-write", &before])?;
    }
    if waits {
        ask(&mut source, &["CLIENT", "UNPAUSE"])?;
    }
    ensure!(!is_ended, ENDED_BY_ANOTHER);
    let offset = outcome.context("not cut over; the source accepts writes as before")?;
    open(&mut target)?;
    say_line!(
        "cut over at offset {offset} after {} ms: {} has everything and accepts writes",
        took.as_millis(),
        arguments.servers().join(",")
    );
    if leaves_open {
        say_line!("the source accepts writes again; they do not reach the target");
    } else {
        say_line!(
            "the source refuses writes (NOREPLICAS) until CONFIG SET min-replicas-to-write {before} there, or a restart"
        );
    }
    Ok(())
}

/// What is said when another process was faster. The source is left as that one has left it.
pub const ENDED_BY_ANOTHER: &str =
    "another process has ended this migration meanwhile, perhaps by a cut-over: nothing was changed at the source";

/// True if the target has no record of a migration any more: to let the source take writes would undo a cut-over.
pub fn is_ended_by_another(target: &mut Connection) -> bool {
    matches!(read_record(target), Ok(None))
}

/// A reply, also if it is an error.
///
/// # Errors
/// If there is none.
pub fn call(connection: &mut Connection, words: &[&str]) -> Result<Frame> {
    connection.call(words).with_context(|| format!("{} was not answered", named(words)))
}

/// Waits until the target has all that the source has written, and answers how much that is.
fn drain(source: &mut Connection, target: &mut Connection, begun: &Record, patience: Duration) -> Result<u64> {
    let deadline = Instant::now() + patience.mul_f64(0.8);
    loop {
        let offset = offset_of(source)?;
        loop {
            let record = read_record(target)?.context("another process has ended the migration")?;
            ensure!(record.id == begun.id, "the source has changed meanwhile");
            if record.offset >= offset {
                break;
            }
            if Instant::now() > deadline {
                bail!("the target has not got everything in time: {} of {offset} bytes", record.offset);
            }
            thread::sleep(POLL_INTERVAL);
        }
        // A write that was being carried out when the pause came may have been told later.
        if offset_of(source)? == offset {
            return Ok(offset);
        }
    }
}

/// Makes sure that both sides hold equally many keys. A source without a pause goes on to expire keys, and says so in
/// its stream.
fn same_counts(
    source: &mut Connection,
    target: &mut Connection,
    begun: &Record,
    patience: Duration,
    mut offset: u64,
) -> Result<u64> {
    const ATTEMPTS_MAX: usize = 3;
    if !begun.filter.is_all() {
        say_line!("only some keys were taken: their number is not compared, as `migrate verify` does");
        return Ok(offset);
    }
    for attempt in 1.. {
        let (theirs, ours) = (counts(source)?, counts(target)?);
        if theirs == ours {
            break;
        }
        ensure!(attempt < ATTEMPTS_MAX, "the databases differ: {theirs:?} at the source, {ours:?} at the target");
        offset = drain(source, target, begun, patience)?;
    }
    Ok(offset)
}

/// Numbers of the databases in which keys may be. INFO lists those of which this server itself holds keys: a node of a
/// larger cluster has not all groups. It is asked where the number of databases is not told, as some providers of Redis
/// refuse CONFIG.
fn databases(connection: &mut Connection) -> Result<Vec<u64>> {
    let count = config(connection, "databases")?.and_then(|count| count.parse().ok());
    match count {
        // Redis has only database 0 as a cluster, whatever it was told.
        Some(_) if info_field(&info(connection, "cluster")?, "cluster_enabled").as_deref() == Some("1") => Ok(vec![0]),
        Some(count) => Ok((0..count).collect()),
        None => Ok(databases_of(&info(connection, "keyspace")?).iter().map(|(number, _)| *number).collect()),
    }
}

/// Numbers of the databases that hold keys, with how many, the record not among them.
///
/// # Errors
/// If they are not told.
pub fn counts(connection: &mut Connection) -> Result<Vec<(u64, u64)>> {
    let mut counts = Vec::new();
    // Clients may be waiting for this: a round trip for each database would be felt.
    for numbers in databases(connection)?.chunks(DATABASES_AT_ONCE) {
        let select = |number: &u64| vec![b"SELECT".to_vec(), number.to_string().into_bytes()];
        let requests: Vec<_> = numbers.iter().flat_map(|number| [select(number), vec![b"DBSIZE".to_vec()]]).collect();
        let replies = pipeline(connection, requests.iter().cloned())?;
        let replies = requests.iter().zip(replies).map(|(words, reply)| not_refused(words, reply));
        for (number, pair) in numbers.iter().zip(replies.collect::<Result<Vec<_>>>()?.chunks(2)) {
            let Some(Frame::Integer(keys)) = pair.get(1) else { bail!("DBSIZE is answered with no number") };
            counts.push((*number, u64::try_from(*keys).unwrap_or(0)));
        }
    }
    if let Some((0, keys)) = counts.first_mut() {
        ask(connection, &["SELECT", "0"])?;
        if matches!(ask(connection, &["EXISTS", RECORD])?, Frame::Integer(1)) {
            *keys -= 1;
        }
    }
    counts.retain(|(_, keys)| *keys > 0);
    Ok(counts)
}

/// Ends a migration at the target: whatever process follows the source writes nothing more.
///
/// # Errors
/// If the target does not take it.
pub fn fence(target: &mut Connection) -> Result<()> {
    if info_field(&info(target, "replication")?, COPY_FIELD).is_some() {
        ask(target, &["REPLICAOF", "NO", "ONE"])?;
        return Ok(());
    }
    fence_by_record(target)
}

/// The same, of one that is not the server itself.
///
/// # Errors
/// As for [`fence`].
pub fn fence_by_record(target: &mut Connection) -> Result<()> {
    ask(target, &["SELECT", "0"])?;
    ask(target, &["DEL", RECORD])?;
    Ok(())
}

/// Lets keys of the target expire again.
///
/// # Errors
/// If the target does not take it; says what is left to do.
pub fn open(target: &mut Connection) -> Result<()> {
    ask(target, &["CONFIG", "SET", "import-mode", "no"])
        .context("keys of the target do not expire yet: CONFIG SET import-mode no")?;
    Ok(())
}
