//! Compares what the source and the target hold, key by key, by reading the values: no digest of a server is trusted,
//! and none has to be switched on.
//!
//! While the source is written to, a key may differ because its change is on the way. So a key that differs is read
//! again, several times; one that has changed at the source meanwhile is counted as such, and as nothing else.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use resp::{Frame, encode_request};
use stdx::slot::slot_of;

use super::cluster::topology::{Claim, Topology};
use super::source::{Address, ask};
use super::target::RECORD;
use crate::backup::grouped;
use crate::connection::Connection;

/// Keys compared at a time.
const KEYS_AT_ONCE: usize = 200;

/// Keys that differ are read again so often, with pauses that add up to some seconds.
const ATTEMPTS_MAX: u32 = 10;
const PAUSE_MIN: Duration = Duration::from_millis(25);
const PAUSE_DOUBLINGS: u32 = 5;

/// So many keys that differ are enough to know that the two are not the same.
const DOUBTS_MAX: usize = 20_000;

/// Keys that are named.
const NAMED_MAX: usize = 10;

/// What a comparison has found.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Keys that were the same.
    pub same: u64,
    /// Keys that changed at the source whenever they were read.
    pub changing: u64,
    /// Keys that differ, or are missing at one side.
    pub different: u64,
    /// Some of them, with what is wrong.
    pub named: Vec<String>,
    /// All keys were compared.
    pub is_whole: bool,
    /// Keys of the target that were looked for at the source.
    pub looked_for: u64,
    /// Keys that differed and are read again.
    pub doubtful: usize,
}

impl Comparison {
    /// How far it is.
    pub fn progress(&self) -> String {
        let compared = format!("{} keys compared", grouped(self.same + self.changing + self.different));
        match (self.looked_for, self.doubtful) {
            (_, doubtful @ 1..) => format!("{compared}, {} that differ are read again", grouped(doubtful as u64)),
            (looked_for @ 1.., _) => {
                format!("{compared}, {} of the target looked for at the source", grouped(looked_for))
            }
            _ => compared,
        }
    }
}

/// One of the two sides: a server, or the primaries of a cluster.
pub struct Side {
    /// With their places.
    servers: Vec<(String, Connection)>,
    /// Which of them has a slot; empty if there is one only.
    by_slot: Vec<usize>,
}

impl From<Connection> for Side {
    fn from(connection: Connection) -> Self {
        Self { servers: vec![(String::new(), connection)], by_slot: Vec::new() }
    }
}

impl Side {
    /// The primaries of a cluster.
    ///
    /// # Errors
    /// If one of them does not answer.
    pub fn of_cluster(address: &Address, topology: &Topology, patience: Duration) -> Result<Self> {
        let mut servers = Vec::new();
        let mut numbers = BTreeMap::new();
        for claim in topology.primaries() {
            numbers.insert(&claim.node, servers.len());
            servers.push((claim.place.clone(), address.at(&claim.place).connect(patience)?));
        }
        let number_of = |owner: Option<&Claim>| owner.and_then(|claim| numbers.get(&claim.node).copied()).unwrap_or(0);
        let by_slot = topology.owners().into_iter().map(number_of).collect();
        Ok(Self { servers, by_slot })
    }

    /// Selects a database. Those of a cluster have one.
    fn select(&mut self, database: u64) -> Result<()> {
        for (_, connection) in &mut self.servers {
            ask(connection, &["SELECT", &database.to_string()])?;
        }
        Ok(())
    }

    /// The replies to requests about a key each, which stands behind the command.
    fn pipeline(&mut self, requests: impl Iterator<Item = Vec<Vec<u8>>>) -> Result<Vec<Frame>> {
        let mut bytes = vec![Vec::new(); self.servers.len()];
        let mut asked = Vec::new();
        for request in requests {
            let slot = usize::from(slot_of(&request[1]).0);
            let server = self.by_slot.get(slot).copied().unwrap_or(0);
            encode_request(&mut bytes[server], &request);
            asked.push((server, slot));
        }
        for ((_, connection), bytes) in self.servers.iter_mut().zip(bytes) {
            if !bytes.is_empty() {
                connection.send(&bytes)?;
            }
        }
        let mut replies = Vec::new();
        for (server, slot) in asked {
            let reply = self.servers[server].1.receive()?;
            // Its keys differ for now, and are read again there.
            if let Frame::Error(text) = &reply
                && let Some(place) = String::from_utf8_lossy(text).strip_prefix("MOVED ")
                && let Some(place) = place.split(' ').nth(1)
                && let Some(found) = self.servers.iter().position(|(known, _)| known == place)
                && let Some(owner) = self.by_slot.get_mut(slot)
            {
                *owner = found;
            }
            replies.push(reply);
        }
        Ok(replies)
    }
}

/// A key with what tells its state: a type, a deadline, and the value.
type Reading = Vec<Frame>;

/// A key that differed when it was read last.
struct Doubt {
    database: u64,
    key: Vec<u8>,
    /// As it was at the source.
    reading: Reading,
    changes: bool,
}

/// Compares all keys of both sides, in all databases; `tell` hears of the progress. Ends early if nearly everything
/// differs.
///
/// # Errors
/// If one of them does not answer.
pub fn compare(
    source: &mut Side,
    target: &mut Side,
    databases: &[u64],
    mut tell: impl FnMut(&Comparison),
) -> Result<Comparison> {
    let mut found = Comparison::default();
    let mut doubts = Vec::new();
    for &database in databases {
        select(source, target, database)?;
        walk(source, |source, keys| {
            for some in keys.chunks(KEYS_AT_ONCE) {
                compare_some(source, target, some, database, &mut found, &mut doubts)?;
                tell(&found);
            }
            Ok(doubts.len() < DOUBTS_MAX)
        })?;
        // What is at the target alone was not seen there.
        walk(target, |target, keys| {
            for some in keys.chunks(KEYS_AT_ONCE) {
                let there = source.pipeline(some.iter().map(|key| vec![b"EXISTS".to_vec(), key.clone()]))?;
                let extra = some.iter().zip(there).filter(|(_, reply)| !matches!(reply, Frame::Integer(1)));
                let extra: Vec<Vec<u8>> = extra.map(|(key, _)| key.clone()).collect();
                compare_some(source, target, &extra, database, &mut found, &mut doubts)?;
                found.looked_for += some.len() as u64;
                tell(&found);
            }
            Ok(doubts.len() < DOUBTS_MAX)
        })?;
    }
    found.is_whole = doubts.len() < DOUBTS_MAX;
    for attempt in 0..ATTEMPTS_MAX {
        if doubts.is_empty() {
            break;
        }
        found.doubtful = doubts.len();
        tell(&found);
        thread::sleep(PAUSE_MIN * 2_u32.pow(attempt.min(PAUSE_DOUBLINGS)));
        doubts = read_again(source, target, doubts, &mut found)?;
    }
    for Doubt { database, key, reading, changes } in doubts {
        if changes {
            found.changing += 1;
            continue;
        }
        found.different += 1;
        if found.named.len() < NAMED_MAX {
            select(source, target, database)?;
            let ours = read(target, std::slice::from_ref(&key))?.remove(0);
            let (name, theirs) = (String::from_utf8_lossy(&key), &reading[0]);
            let what = if *theirs == ours[0] {
                "the same type, another value or deadline".to_owned()
            } else {
                format!("{theirs} at the source, {} at the target", ours[0])
            };
            found.named.push(format!("{name} (database {database}): {what}"));
        }
    }
    Ok(found)
}

fn select(source: &mut Side, target: &mut Side, database: u64) -> Result<()> {
    source.select(database)?;
    target.select(database)
}

/// Compares keys of the database that is selected.
fn compare_some(
    source: &mut Side,
    target: &mut Side,
    keys: &[Vec<u8>],
    database: u64,
    found: &mut Comparison,
    doubts: &mut Vec<Doubt>,
) -> Result<()> {
    let (theirs, ours) = (read(source, keys)?, read(target, keys)?);
    for ((key, reading), our) in keys.iter().zip(theirs).zip(ours) {
        if is_same(&reading, &our) {
            found.same += u64::from(!is_absent(&reading));
        } else {
            doubts.push(Doubt { database, key: key.clone(), reading, changes: false });
        }
    }
    Ok(())
}

/// Reads keys again that have differed, and answers those that still do.
fn read_again(source: &mut Side, target: &mut Side, doubts: Vec<Doubt>, found: &mut Comparison) -> Result<Vec<Doubt>> {
    let mut left = Vec::new();
    let mut doubts = doubts.into_iter().peekable();
    while let Some(first) = doubts.next() {
        let database = first.database;
        let mut some = vec![first];
        while some.len() < KEYS_AT_ONCE
            && let Some(next) = doubts.next_if(|next| next.database == database)
        {
            some.push(next);
        }
        select(source, target, database)?;
        let keys: Vec<Vec<u8>> = some.iter().map(|doubt| doubt.key.clone()).collect();
        let (theirs, ours) = (read(source, &keys)?, read(target, &keys)?);
        for ((doubt, reading), our) in some.into_iter().zip(theirs).zip(ours) {
            if is_same(&reading, &our) {
                found.same += u64::from(!is_absent(&reading));
            } else {
                let changes = doubt.changes || !is_same(&doubt.reading, &reading);
                left.push(Doubt { reading, changes, ..doubt });
            }
        }
    }
    Ok(left)
}

/// True if there is no such key.
fn is_absent(reading: &Reading) -> bool {
    reading[0].as_bytes() == Some(b"none")
}

/// Shows all keys of the database that is selected, as long as `visit` answers true.
fn walk(side: &mut Side, mut visit: impl FnMut(&mut Side, &[Vec<u8>]) -> Result<bool>) -> Result<()> {
    for server in 0..side.servers.len() {
        let mut cursor = b"0".to_vec();
        loop {
            let reply = ask(&mut side.servers[server].1, &[&b"SCAN"[..], &cursor, b"COUNT", b"1000"])?;
            let Some([next, keys]) = reply.elements() else { bail!("SCAN is answered with {reply}") };
            let keys = keys.elements().unwrap_or_default().iter().filter_map(|key| Some(key.as_bytes()?.to_vec()));
            let keys: Vec<Vec<u8>> = keys.filter(|key| key != RECORD.as_bytes()).collect();
            if !visit(side, &keys)? {
                return Ok(());
            }
            cursor = next.as_bytes().unwrap_or(b"0").to_vec();
            if cursor == b"0" {
                break;
            }
        }
    }
    Ok(())
}

/// True if type, deadline and value are the same; a deadline that one side cannot tell is not compared.
fn is_same(left: &Reading, right: &Reading) -> bool {
    let is_untold = left[1] == Frame::Null || right[1] == Frame::Null;
    left[0] == right[0] && left[2] == right[2] && (is_untold || left[1] == right[1])
}

/// The states of keys: types and deadlines first, then values as these need it.
fn read(side: &mut Side, keys: &[Vec<u8>]) -> Result<Vec<Reading>> {
    let ask_all =
        |side: &mut Side, command: &[u8]| side.pipeline(keys.iter().map(|key| vec![command.to_vec(), key.clone()]));
    let kinds = ask_all(side, b"TYPE")?;
    let deadlines = ask_all(side, b"PEXPIRETIME")?;
    let mut requests = Vec::new();
    for (key, kind) in keys.iter().zip(&kinds) {
        let words: &[&[u8]] = match kind.as_bytes() {
            Some(b"string") => &[b"GET", key],
            Some(b"list") => &[b"LRANGE", key, b"0", b"-1"],
            Some(b"set") => &[b"SMEMBERS", key],
            Some(b"hash") => &[b"HGETALL", key],
            Some(b"zset") => &[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"],
            Some(b"stream") => &[b"XRANGE", key, b"-", b"+"],
            Some(b"ReJSON-RL") => &[b"JSON.GET", key],
            _ => &[b"EXISTS", key],
        };
        requests.push(words.iter().map(|word| word.to_vec()).collect::<Vec<_>>());
    }
    let values = side.pipeline(requests.into_iter())?;
    let mut readings = Vec::new();
    for ((kind, deadline), value) in kinds.into_iter().zip(deadlines).zip(values) {
        let value = match (kind.as_bytes(), value) {
            (Some(b"set"), Frame::Array(members)) => Frame::Array(sorted(members, 1)),
            (Some(b"hash"), Frame::Array(pairs)) => Frame::Array(sorted(pairs, 2)),
            (_, value) => value,
        };
        // Redis before 7.0 has no PEXPIRETIME.
        let deadline = if deadline.is_error() { Frame::Null } else { deadline };
        readings.push(vec![kind, deadline, value]);
    }
    Ok(readings)
}

/// What is in no order gets one.
fn sorted(elements: Vec<Frame>, width: usize) -> Vec<Frame> {
    let mut groups: Vec<Vec<Frame>> = elements.chunks(width).map(<[Frame]>::to_vec).collect();
    groups.sort_by(|left, right| left[0].as_bytes().cmp(&right[0].as_bytes()));
    groups.concat()
}
