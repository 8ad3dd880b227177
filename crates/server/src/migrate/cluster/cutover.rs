//! The end of a migration from a cluster: writes stop at all primaries, the target gets the rest of all streams, and
//! clients move.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use resp::Frame;

use super::topology::{Survey, Topology, ranges_of};
use crate::connection::Connection;
use crate::migrate::PATIENCE;
use crate::migrate::check::config;
use crate::migrate::cutover::{
    ENDED_BY_ANOTHER, POLL_INTERVAL, REPLICAS_NEVER_MET, call, counts, fence, is_ended_by_another, open,
};
use crate::migrate::source::{Address, ask, info, info_field};
use crate::migrate::target::{Record, TargetArguments, read_record};

/// A node of the source, and what it was set to before.
struct Node {
    name: String,
    place: String,
    connection: Connection,
    is_primary: bool,
    replicas_wanted: String,
    is_paused: bool,
}

/// Cuts over from the cluster that the record is about.
///
/// # Errors
/// If the target is not ready, or does not get everything in time. Then the source takes writes as before.
pub fn run(
    address: &Address,
    arguments: &TargetArguments,
    (mut target, record): (Connection, &Record),
    pause: Duration,
    leaves_open: bool,
) -> Result<()> {
    let mut survey = Survey::new(address, record.places().map(|(_, place)| place.place.clone()));
    let topology = survey.look()?;
    ensure_same(&topology, record)?;
    let mut nodes = connect_all(address, &topology)?;

    let stopped = Instant::now();
    let outcome = stop(&mut nodes, pause).and_then(|()| {
        drain(&mut nodes, &mut target, pause)?;
        refuse_all(&mut nodes)?;
        // The pause of one may have ended before it refused.
        drain(&mut nodes, &mut target, pause)?;
        same_counts(&mut nodes, &mut target, pause)?;
        // A replica that was promoted meanwhile was not stopped.
        let record = read_record(&mut target)?.context("another process has ended the migration")?;
        let after = survey.look()?;
        ensure_same(&after, &record)?;
        ensure!(epochs(&after) == epochs(&topology), "a primary of the source has failed or changed meanwhile");
        fence(&mut target)
    });
    let took = stopped.elapsed();
    let is_ended = outcome.is_err() && is_ended_by_another(&mut target);
    let reopened = if outcome.is_err() && !is_ended || leaves_open { take_writes(&mut nodes) } else { Ok(()) };
    for node in nodes.iter_mut().filter(|node| node.is_paused) {
        // The pause ends by itself otherwise.
        let _ = ask(&mut node.connection, &["CLIENT", "UNPAUSE"]);
    }
    if let Err(why) = outcome {
        ensure!(!is_ended, ENDED_BY_ANOTHER);
        reopened.context("some nodes of the source refuse writes yet: CONFIG SET min-replicas-to-write there")?;
        return Err(why.context("not cut over; the source accepts writes as before"));
    }
    open(&mut target)?;
    say_line!(
        "cut over from {} primaries after {} ms: {} has everything and accepts writes",
        record.places().count(),
        took.as_millis(),
        arguments.servers().join(",")
    );
    if leaves_open {
        say_line!("the source accepts writes again; they do not reach the target");
        return reopened.context("some nodes of the source refuse writes yet");
    }
    let before = nodes.iter().map(|node| format!("{} on {}", node.replicas_wanted, node.place)).collect::<Vec<_>>();
    say_line!(
        "all nodes of the source refuse writes (NOREPLICAS) until CONFIG SET min-replicas-to-write, or a restart: {}",
        before.join(", ")
    );
    for place in &topology.silent {
        say_line!("{place} does not answer: if it comes back and is promoted it takes writes");
    }
    Ok(())
}

/// Makes sure that the record is about the cluster as it is: all primaries are followed, and no slot is being moved.
fn ensure_same(topology: &Topology, record: &Record) -> Result<()> {
    let open = topology.open();
    ensure!(open.is_empty(), "the slots {} are being moved at the source: end that first", ranges_of(open));
    ensure!(
        record.unsettled.is_empty(),
        "the slots {} have moved at the source and are not copied yet: see `migrate status`",
        record.unsettled
    );
    let mut slots: BTreeMap<&str, Vec<u16>> = BTreeMap::new();
    for (slot, owner) in (0..).zip(topology.owners()) {
        if let Some(claim) = owner {
            slots.entry(&claim.node).or_default().push(slot);
        }
    }
    let theirs: BTreeMap<&str, String> = slots.into_iter().map(|(node, slots)| (node, ranges_of(slots))).collect();
    let with_slots = record.places().filter(|(_, place)| !place.slots.is_empty());
    let ours: BTreeMap<&str, String> = with_slots.map(|(_, place)| (&*place.node, place.slots.clone())).collect();
    ensure!(theirs == ours, "the source has other primaries, or other slots, than are followed: see `migrate status`");
    Ok(())
}

fn epochs(topology: &Topology) -> BTreeMap<&str, u64> {
    topology.primaries().map(|claim| (&*claim.node, claim.epoch)).collect()
}

/// Connects to all nodes: a replica may be promoted later, and must refuse writes then, too.
fn connect_all(address: &Address, topology: &Topology) -> Result<Vec<Node>> {
    let mut nodes = Vec::new();
    for claim in topology.claims.values() {
        let mut connection = address.at(&claim.place).connect(PATIENCE)?;
        let replicas_wanted = config(&mut connection, "min-replicas-to-write")?.unwrap_or_else(|| "0".to_owned());
        ensure!(
            replicas_wanted != REPLICAS_NEVER_MET,
            "{} takes no writes since an earlier cut-over: CONFIG SET min-replicas-to-write 0 there",
            claim.place
        );
        nodes.push(Node {
            name: claim.node.clone(),
            place: claim.place.clone(),
            connection,
            is_primary: claim.is_primary && !claim.slots.is_empty(),
            replicas_wanted,
            is_paused: false,
        });
    }
    Ok(nodes)
}

/// Pauses writes at all primaries. Clients wait; those of a source before 6.2 are refused at once.
fn stop(nodes: &mut [Node], pause: Duration) -> Result<()> {
    let pause_ms = pause.as_millis().to_string();
    for node in nodes.iter_mut().filter(|node| node.is_primary) {
        node.is_paused = !call(&mut node.connection, &["CLIENT", "PAUSE", &pause_ms, "WRITE"])?.is_error();
        if !node.is_paused {
            ask(&mut node.connection, &["CONFIG", "SET", "min-replicas-to-write", REPLICAS_NEVER_MET])?;
        }
    }
    Ok(())
}

fn refuse_all(nodes: &mut [Node]) -> Result<()> {
    for node in nodes {
        ask(&mut node.connection, &["CONFIG", "SET", "min-replicas-to-write", REPLICAS_NEVER_MET])
            .with_context(|| node.place.clone())?;
    }
    Ok(())
}

/// Sets all nodes that answer to what they were.
fn take_writes(nodes: &mut [Node]) -> Result<()> {
    let mut outcome = Ok(());
    for node in nodes {
        let words = ["CONFIG", "SET", "min-replicas-to-write", &node.replicas_wanted];
        if let Err(why) = ask(&mut node.connection, &words) {
            outcome = Err(why.context(node.place.clone()));
        }
    }
    outcome
}

/// Where the streams of all primaries are, by the names of the nodes.
fn offsets(nodes: &mut [Node]) -> Result<BTreeMap<String, (String, u64)>> {
    let mut found = BTreeMap::new();
    for node in nodes.iter_mut().filter(|node| node.is_primary) {
        let told = info(&mut node.connection, "replication")?;
        ensure!(
            info_field(&told, "role").is_some_and(|role| role == "master"),
            "{} is no primary any more",
            node.place
        );
        let id = info_field(&told, "master_replid").context("a node tells no replication id")?;
        let offset = info_field(&told, "master_repl_offset").and_then(|offset| offset.parse().ok());
        found.insert(node.name.clone(), (id, offset.context("a node tells no offset")?));
    }
    Ok(found)
}

/// Waits until the target has all that the primaries have written.
fn drain(nodes: &mut [Node], target: &mut Connection, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience.mul_f64(0.8);
    loop {
        let wanted = offsets(nodes)?;
        loop {
            let record = read_record(target)?.context("another process has ended the migration")?;
            let lacking = wanted.iter().find(|(node, (id, offset))| {
                !record.places().any(|(_, place)| place.node == **node && place.id == *id && place.offset >= *offset)
            });
            let Some((node, (_, offset))) = lacking else { break };
            if Instant::now() > deadline {
                let place = nodes.iter().find(|other| other.name == *node).map_or("", |node| &node.place);
                bail!("the target has not got everything in time: not all {offset} bytes of {place}");
            }
            thread::sleep(POLL_INTERVAL);
        }
        // A write that was being carried out when the pause came may have been told later.
        if offsets(nodes)? == wanted {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the source writes in spite of the pause");
    }
}

/// Makes sure that both sides hold equally many keys. A source without a pause goes on to expire keys, and says so in
/// its streams.
fn same_counts(nodes: &mut [Node], target: &mut Connection, patience: Duration) -> Result<()> {
    const ATTEMPTS_MAX: usize = 3;
    for attempt in 1.. {
        let mut theirs = 0;
        for node in nodes.iter_mut().filter(|node| node.is_primary) {
            let reply = ask(&mut node.connection, &["DBSIZE"])?;
            let Frame::Integer(keys) = reply else { bail!("DBSIZE is answered with {reply}") };
            theirs += u64::try_from(keys).unwrap_or(0);
        }
        let ours = counts(target)?.iter().map(|(_, keys)| keys).sum::<u64>();
        if theirs == ours {
            break;
        }
        ensure!(attempt < ATTEMPTS_MAX, "the numbers of keys differ: {theirs} at the source, {ours} at the target");
        drain(nodes, target, patience)?;
    }
    Ok(())
}
