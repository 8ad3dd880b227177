//! Reads what slots hold, with the place of the stream at which they hold it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use resp::Frame;

use super::slots::{Kept, Reading};
use super::topology::{Claim, Survey, read_nodes};
use crate::connection::Connection;
use crate::migrate::source::{ask, info, info_field, pipeline};

/// Keys that are read at once, unless one slot has more.
const KEYS_AT_ONCE: u64 = 5_000;

/// Slots that are read at once.
pub const SLOTS_AT_ONCE: usize = 256;

/// Where a node's stream is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    pub claim: Claim,
    pub id: String,
    pub offset: u64,
}

/// What the nodes of all streams say of themselves, and then how far their streams are: what a node has said of a slot
/// that it had given away before is below that.
///
/// # Errors
/// If one of them does not answer.
pub fn standings(survey: &mut Survey, places: &BTreeMap<u32, String>) -> Result<BTreeMap<u32, Standing>> {
    let mut found = BTreeMap::new();
    for (number, place) in places {
        let mut stand = || {
            let connection = survey.connection(place)?;
            let nodes = ask(connection, &["CLUSTER", "NODES"])?;
            let (claim, _) = read_nodes(&String::from_utf8_lossy(nodes.as_bytes().unwrap_or_default()), place)?;
            let (id, offset) = place_in(&info(connection, "replication")?)?;
            Ok(Standing { claim, id, offset })
        };
        let stood = stand().inspect_err(|_: &anyhow::Error| survey.forget(place))?;
        found.insert(*number, stood);
    }
    Ok(found)
}

/// True if a stream's node has a slot at both times, and had it all the while: anyone who takes a slot over gets a new
/// epoch. No slot is open at any node.
pub fn is_kept(slot: u16, number: u32, before: &BTreeMap<u32, Standing>, after: &BTreeMap<u32, Standing>) -> bool {
    let has = |standing: &Standing| standing.claim.is_primary && standing.claim.slots.binary_search(&slot).is_ok();
    let is_open = |standing: &Standing| standing.claim.is_primary && standing.claim.open.contains(&slot);
    let holds = |standings: &BTreeMap<u32, Standing>| {
        standings.get(&number).is_some_and(has)
            && standings.iter().all(|(other, standing)| !is_open(standing) && (*other == number || !has(standing)))
    };
    let epoch = |standings: &BTreeMap<u32, Standing>| standings.get(&number).map(|standing| standing.claim.epoch);
    holds(before) && holds(after) && epoch(before) == epoch(after)
}

/// The history and the place of a primary's stream, from INFO replication.
fn place_in(told: &str) -> Result<(String, u64)> {
    let id = info_field(told, "master_replid").context("a node tells no replication id")?;
    let offset = info_field(told, "master_repl_offset").and_then(|offset| offset.parse().ok());
    Ok((id, offset.context("a node tells no offset")?))
}

/// Reads as many of these slots of a stream's node as go at once. Answers each with the history that its place is in;
/// slots that change just now are missing.
///
/// # Errors
/// If the node does not answer as it should.
pub fn read(connection: &mut Connection, stream: u32, slots: &[u16]) -> Result<Vec<(u16, String, Reading)>> {
    let version = info_field(&info(connection, "server")?, "redis_version").unwrap_or_default();
    let has_deadlines = version.split('.').next().and_then(|major| major.parse::<u32>().ok()).unwrap_or(0) >= 7;
    let counted = pipeline(connection, slots.iter().map(|slot| words(&["CLUSTER", "COUNTKEYSINSLOT"], *slot)))?;
    let mut chosen = Vec::new();
    let mut sum = 0;
    for (slot, count) in slots.iter().zip(counted) {
        let Frame::Integer(count) = count else { bail!("CLUSTER COUNTKEYSINSLOT is answered with {count}") };
        let count = u64::try_from(count).unwrap_or(0);
        sum += count;
        if !chosen.is_empty() && sum > KEYS_AT_ONCE {
            break;
        }
        chosen.push((*slot, count));
    }
    // Some more, for keys that have come meanwhile.
    let list = |slot: u16, count: u64| {
        let mut request = words(&["CLUSTER", "GETKEYSINSLOT"], slot);
        request.push((count + 1_000).to_string().into_bytes());
        request
    };
    let listed = pipeline(connection, chosen.iter().map(|(slot, count)| list(*slot, *count)))?;
    let names: Vec<Vec<Vec<u8>>> = listed.iter().map(names_in).collect();
    let mut requests = Vec::new();
    let mut ends = Vec::new();
    for ((slot, count), names) in chosen.iter().zip(&names) {
        requests.push(vec![b"MULTI".to_vec()]);
        for name in names {
            requests.push(vec![b"DUMP".to_vec(), name.clone()]);
            let deadline = if has_deadlines { &b"PEXPIRETIME"[..] } else { b"PTTL" };
            requests.push(vec![deadline.to_vec(), name.clone()]);
        }
        // Keys that have expired are gone by now.
        requests.push(list(*slot, *count));
        requests.push(vec![b"TIME".to_vec()]);
        requests.push(vec![b"INFO".to_vec(), b"replication".to_vec()]);
        requests.push(vec![b"EXEC".to_vec()]);
        ends.push(requests.len() - 1);
    }
    let replies = pipeline(connection, requests.into_iter())?;
    let mut found = Vec::new();
    for (((slot, _), names), end) in chosen.iter().zip(names).zip(ends) {
        if let Some((id, offset, keys)) = reading_of(&replies[end], &names, has_deadlines)? {
            found.push((*slot, id, Reading { stream, offset, keys }));
        }
    }
    Ok(found)
}

/// The keys of a slot and its place, from the reply to EXEC. `None` if keys have come or gone since they were listed.
fn reading_of(reply: &Frame, names: &[Vec<u8>], has_deadlines: bool) -> Result<Option<(String, u64, Vec<Kept>)>> {
    let Some(replies) = reply.elements().filter(|replies| replies.len() == 2 * names.len() + 3) else {
        return Ok(None);
    };
    let (values, rest) = replies.split_at(2 * names.len());
    let now_ms = match rest[1].elements() {
        Some([seconds, micros]) => {
            let number = |frame: &Frame| std::str::from_utf8(frame.as_bytes()?).ok()?.parse::<i64>().ok();
            number(seconds).unwrap_or(0) * 1_000 + number(micros).unwrap_or(0) / 1_000
        }
        _ => 0,
    };
    let mut keys = Vec::new();
    for (name, value) in names.iter().zip(values.chunks_exact(2)) {
        let (Some(payload), Frame::Integer(deadline)) = (value[0].as_bytes(), &value[1]) else { continue };
        let deadline_ms = match *deadline {
            deadline if deadline < 0 => 0,
            deadline if has_deadlines => deadline,
            left => now_ms + left,
        };
        keys.push(Kept { name: name.clone(), deadline_ms, value: payload.to_vec() });
    }
    let there: BTreeSet<Vec<u8>> = names_in(&rest[0]).into_iter().collect();
    if there.len() != keys.len() || !keys.iter().all(|key| there.contains(&key.name)) {
        return Ok(None);
    }
    let (id, offset) = place_in(&String::from_utf8_lossy(rest[2].as_bytes().unwrap_or_default()))?;
    Ok(Some((id, offset, keys)))
}

fn names_in(reply: &Frame) -> Vec<Vec<u8>> {
    reply.elements().unwrap_or_default().iter().filter_map(|name| Some(name.as_bytes()?.to_vec())).collect()
}

fn words(command: &[&str], slot: u16) -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = command.iter().map(|word| word.as_bytes().to_vec()).collect();
    words.push(slot.to_string().into_bytes());
    words
}
