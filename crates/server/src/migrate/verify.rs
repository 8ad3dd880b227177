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
use super::filter::Filter;
use super::source::{Address, ask};
use super::target::RECORD;
use crate::backup::grouped;
use crate::connection::Connection;
use crate::import::now_ms;

/// Keys compared at a time.
const KEYS_AT_ONCE: usize = 200;

/// Keys that differ are read again so often, with pauses that add up to some seconds.
const ATTEMPTS_MAX: u32 = 10;
const PAUSE_MIN: Duration = Duration::from_millis(25);
const PAUSE_DOUBLINGS: u32 = 5;

/// Types of which the whole value is compared.
const READ_AS_A_WHOLE: [&[u8]; 7] = [b"string", b"list", b"set", b"hash", b"zset", b"stream", b"ReJSON-RL"];

/// A deadline that is reckoned from the time that is left may be off by so much.
const DEADLINE_SLACK_MS: u64 = 1_000;

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
    /// Of the keys that are the same, those with a value that cannot be read as a whole.
    pub by_outline: u64,
    /// And those of which one side does not tell the deadline.
    pub without_deadline: u64,
}

impl Comparison {
    fn note_same(&mut self, reading: &Reading, our: &Reading) {
        if is_absent(reading) {
            return;
        }
        let kind = reading[0].as_bytes().unwrap_or_default();
        self.same += 1;
        self.by_outline += u64::from(!READ_AS_A_WHOLE.contains(&kind));
        self.without_deadline += u64::from(reading[1] == Frame::Null || our[1] == Frame::Null);
    }

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
    /// They know deadlines of fields of hashes, as far as one can tell.
    knows_fields: bool,
    /// By how many milliseconds the clocks of servers are ahead of ours, where that was of interest.
    clocks: BTreeMap<usize, i64>,
}

impl From<Connection> for Side {
    fn from(connection: Connection) -> Self {
        let servers = vec![(String::new(), connection)];
        Self { servers, by_slot: Vec::new(), knows_fields: true, clocks: BTreeMap::new() }
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
        Ok(Self { servers, by_slot, knows_fields: true, clocks: BTreeMap::new() })
    }

    /// Which server has a key.
    fn server_of(&self, key: &[u8]) -> usize {
        self.by_slot.get(usize::from(slot_of(key).0)).copied().unwrap_or(0)
    }

    /// Selects a database. Those of a cluster have one.
    fn select(&mut self, database: u64) -> Result<()> {
        for (_, connection) in &mut self.servers {
            ask(connection, &["SELECT", &database.to_string()])?;
        }
        Ok(())
    }

    /// By how many milliseconds the clock of a server is ahead of ours; 0 if it does not tell.
    fn clock_of(&mut self, server: usize) -> Result<i64> {
        if let Some(ahead) = self.clocks.get(&server) {
            return Ok(*ahead);
        }
        let told = self.servers[server].1.call(&["TIME"])?;
        let number = |at: usize| std::str::from_utf8(told.elements()?.get(at)?.as_bytes()?).ok()?.parse::<i64>().ok();
        let ahead = match (number(0), number(1)) {
            (Some(seconds), Some(micros)) => seconds * 1_000 + micros / 1_000 - now_ms(),
            _ => 0,
        };
        self.clocks.insert(server, ahead);
        Ok(ahead)
    }

    /// The replies to requests about a key each, which stands behind the command, or behind the subcommand of XINFO.
    fn pipeline(&mut self, requests: impl Iterator<Item = Vec<Vec<u8>>>) -> Result<Vec<Frame>> {
        let mut bytes = vec![Vec::new(); self.servers.len()];
        let mut asked = Vec::new();
        for request in requests {
            let key = &request[if request[0] == b"XINFO" { 2 } else { 1 }];
            let slot = usize::from(slot_of(key).0);
            let server = self.server_of(key);
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

/// What tells the state of a key: a type, a deadline, the value, and what belongs to it: deadlines of the fields of a
/// hash, groups of a stream.
type Reading = Vec<Frame>;

/// A key that differed when it was read last.
struct Doubt {
    database: u64,
    key: Vec<u8>,
    /// As it was at the source.
    reading: Reading,
    changes: bool,
}

/// Compares all keys of both sides that are taken, in these databases; `tell` hears of the progress. Ends early if
/// nearly everything differs.
///
/// # Errors
/// If one of them does not answer.
pub fn compare(
    source: &mut Side,
    target: &mut Side,
    (databases, filter): (&[u64], &Filter),
    mut tell: impl FnMut(&Comparison),
) -> Result<Comparison> {
    let mut found = Comparison::default();
    let mut doubts = Vec::new();
    for &database in databases {
        select(source, target, database)?;
        walk(source, filter, |source, keys| {
            for some in keys.chunks(KEYS_AT_ONCE) {
                compare_some(source, target, some, database, &mut found, &mut doubts)?;
                tell(&found);
            }
            Ok(doubts.len() < DOUBTS_MAX)
        })?;
        // What is at the target alone was not seen there.
        walk(target, filter, |target, keys| {
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
            let what = match reading.iter().chain(&ours).find(|frame| frame.is_error()) {
                Some(refused) => format!("it cannot be read: {refused}"),
                None if *theirs == ours[0] => "the same type, another value or deadline".to_owned(),
                None => format!("{theirs} at the source, {} at the target", ours[0]),
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
            found.note_same(&reading, &our);
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
                found.note_same(&reading, &our);
            } else {
                let changes = doubt.changes || !is_alike(&doubt.reading, &reading);
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

/// Shows all keys that are taken of the database that is selected, as long as `visit` answers true.
fn walk(side: &mut Side, filter: &Filter, mut visit: impl FnMut(&mut Side, &[Vec<u8>]) -> Result<bool>) -> Result<()> {
    for server in 0..side.servers.len() {
        let mut cursor = b"0".to_vec();
        loop {
            let reply = ask(&mut side.servers[server].1, &[&b"SCAN"[..], &cursor, b"COUNT", b"1000"])?;
            let Some([next, keys]) = reply.elements() else { bail!("SCAN is answered with {reply}") };
            let keys = keys.elements().unwrap_or_default().iter().filter_map(|key| Some(key.as_bytes()?.to_vec()));
            let keys: Vec<Vec<u8>> = keys.filter(|key| key != RECORD.as_bytes() && filter.takes_name(key)).collect();
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

/// True if all is the same, and was read: of what both sides refuse to tell nothing is known.
fn is_same(left: &Reading, right: &Reading) -> bool {
    !left.iter().chain(right).any(Frame::is_error) && is_alike(left, right)
}

/// True if the replies are the same; what one side cannot tell, as it has no command for it, is not compared.
fn is_alike(left: &Reading, right: &Reading) -> bool {
    let is_told = left[3] != Frame::Null && right[3] != Frame::Null;
    let is_more_alike = !is_told || left[3] == right[3];
    left[0] == right[0] && left[2] == right[2] && is_deadline_alike(&left[1], &right[1]) && is_more_alike
}

/// See [`deadlines`].
fn is_deadline_alike(left: &Frame, right: &Frame) -> bool {
    let told = |deadline: &Frame| match deadline {
        Frame::Integer(at) => Some((*at, false)),
        Frame::Array(reckoned) => match reckoned.first() {
            Some(Frame::Integer(at)) => Some((*at, true)),
            _ => None,
        },
        _ => None,
    };
    match (told(left), told(right)) {
        (Some((left, false)), Some((right, false))) => left == right,
        (Some((left, _)), Some((right, _))) => (left < 0) == (right < 0) && left.abs_diff(right) <= DEADLINE_SLACK_MS,
        _ => true,
    }
}

/// The states of keys: types and deadlines first, then values as these need it.
fn read(side: &mut Side, keys: &[Vec<u8>]) -> Result<Vec<Reading>> {
    let kinds = side.pipeline(keys.iter().map(|key| vec![b"TYPE".to_vec(), key.clone()]))?;
    let deadlines = deadlines(side, keys)?;
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
            Some(b"vectorset") => &[b"VCARD", key],
            _ => &[b"EXISTS", key],
        };
        requests.push(words.iter().map(|word| word.to_vec()).collect::<Vec<_>>());
    }
    let values = side.pipeline(requests.into_iter())?;
    let mut readings = Vec::new();
    let mut requests = Vec::new();
    for (((kind, deadline), value), key) in kinds.into_iter().zip(deadlines).zip(values).zip(keys) {
        let value = match (kind.as_bytes(), value) {
            (Some(b"set"), Frame::Array(members)) => Frame::Array(sorted(members, 1)),
            (Some(b"hash"), Frame::Array(pairs)) => Frame::Array(sorted(pairs, 2)),
            (Some(b"zset"), Frame::Array(pairs)) => Frame::Array(pairs.into_iter().enumerate().map(as_score).collect()),
            (_, value) => value,
        };
        requests.extend(request_for_more(key, &kind, &value, side.knows_fields).map(|words| (readings.len(), words)));
        readings.push(vec![kind, deadline, value, Frame::Null]);
    }
    let replies = side.pipeline(requests.iter().map(|(_, words)| words.clone()))?;
    for ((nth, words), reply) in requests.into_iter().zip(replies) {
        readings[nth][3] = match reply {
            // Redis before 7.4 and Valkey before 9.0 have no deadlines of fields.
            Frame::Error(text) if text.starts_with(b"ERR unknown command") => {
                side.knows_fields = false;
                Frame::Null
            }
            reply if words[0] == b"XINFO" => groups(&reply),
            reply => reply,
        };
    }
    Ok(readings)
}

/// The deadlines of keys; in an array those that are reckoned from the time that is left, as Redis before 7.0 has no
/// PEXPIRETIME, and a user may not be allowed to say it. Nothing where that is not told either.
fn deadlines(side: &mut Side, keys: &[Vec<u8>]) -> Result<Vec<Frame>> {
    let mut deadlines = side.pipeline(keys.iter().map(|key| vec![b"PEXPIRETIME".to_vec(), key.clone()]))?;
    let untold: Vec<usize> = (0..deadlines.len()).filter(|nth| deadlines[*nth].is_error()).collect();
    let now_ms = now_ms();
    let left = side.pipeline(untold.iter().map(|nth| vec![b"PTTL".to_vec(), keys[*nth].clone()]))?;
    for (nth, left_ms) in untold.into_iter().zip(left) {
        deadlines[nth] = match left_ms {
            Frame::Integer(left_ms) if left_ms >= 0 => {
                let server = side.server_of(&keys[nth]);
                Frame::Array(vec![Frame::Integer(now_ms + left_ms + side.clock_of(server)?)])
            }
            // There is none, or no such key.
            Frame::Integer(none) => Frame::Integer(none),
            _ => Frame::Null,
        };
    }
    Ok(deadlines)
}

/// What asks for the deadlines of the fields of a hash, or for the groups of a stream.
fn request_for_more(key: &[u8], kind: &Frame, value: &Frame, knows_fields: bool) -> Option<Vec<Vec<u8>>> {
    match kind.as_bytes()? {
        b"stream" => Some(vec![b"XINFO".to_vec(), b"GROUPS".to_vec(), key.to_vec()]),
        b"hash" if knows_fields => {
            let fields = value.elements()?.iter().step_by(2).filter_map(Frame::as_bytes);
            let fields: Vec<Vec<u8>> = fields.map(<[u8]>::to_vec).collect();
            let mut words = vec![b"HPEXPIRETIME".to_vec(), key.to_vec(), b"FIELDS".to_vec()];
            words.push(fields.len().to_string().into_bytes());
            words.extend(fields);
            Some(words).filter(|words| words.len() > 4)
        }
        _ => None,
    }
}

/// Of what is told of groups, what every version tells and no time is part of: their names, how many entries are
/// pending, and which were the last that they were given.
fn groups(reply: &Frame) -> Frame {
    let Some(groups) = reply.elements() else { return reply.clone() };
    let outline = |group: &Frame| {
        let facts = group.elements().unwrap_or_default().chunks(2);
        let is_of_interest =
            |fact: &&[Frame]| matches!(fact[0].as_bytes(), Some(b"name" | b"pending" | b"last-delivered-id"));
        Frame::Array(facts.filter(is_of_interest).flatten().cloned().collect())
    };
    Frame::Array(groups.iter().map(outline).collect())
}

/// A score as a number: servers write the same one with different digits (0.1 or 0.10000000000000001).
fn as_score((nth, word): (usize, Frame)) -> Frame {
    let text = word.as_bytes().filter(|_| nth % 2 == 1).and_then(|text| std::str::from_utf8(text).ok());
    match text.and_then(|text| text.parse::<f64>().ok()) {
        Some(score) => Frame::Bulk(score.to_string().into_bytes()),
        None => word,
    }
}

/// What is in no order gets one.
fn sorted(elements: Vec<Frame>, width: usize) -> Vec<Frame> {
    let mut groups: Vec<Vec<Frame>> = elements.chunks(width).map(<[Frame]>::to_vec).collect();
    groups.sort_by(|left, right| left[0].as_bytes().cmp(&right[0].as_bytes()));
    groups.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Frame {
        Frame::Bulk(text.as_bytes().to_vec())
    }

    #[test]
    fn scores_are_compared_as_numbers_and_members_as_they_are() {
        let read = |words: &[&str]| words.iter().map(|word| bulk(word)).enumerate().map(as_score).collect::<Vec<_>>();
        assert_eq!(
            read(&["m", "0.1", "n", "1e+300"]),
            read(&["m", "0.10000000000000001", "n", "1.0000000000000001e+300"])
        );
        assert_eq!(read(&["m", "inf", "n", "-inf"]), [bulk("m"), bulk("inf"), bulk("n"), bulk("-inf")]);
        assert_ne!(read(&["m", "0.1"]), read(&["m", "0.10000000000000002"]));
        assert_ne!(read(&["0.1", "1"]), read(&["0.10000000000000001", "1"]));
    }

    #[test]
    fn what_one_side_cannot_tell_is_not_compared() {
        let hash = |deadlines: Frame| vec![bulk("hash"), Frame::Integer(-1), Frame::Array(Vec::new()), deadlines];
        let told = |deadline| hash(Frame::Array(vec![Frame::Integer(deadline)]));
        assert!(is_same(&told(5), &told(5)) && !is_same(&told(5), &told(-1)));
        assert!(is_same(&told(5), &hash(Frame::Null)));
    }

    #[test]
    fn deadlines_that_are_reckoned_are_compared_within_a_second() {
        let text = |deadline: Frame| vec![bulk("string"), deadline, bulk("v"), Frame::Null];
        let (told, reckoned) = (Frame::Integer, |at: i64| Frame::Array(vec![Frame::Integer(at)]));
        assert!(!is_same(&text(told(5_000)), &text(told(5_001))));
        assert!(is_same(&text(reckoned(5_000)), &text(told(6_000))));
        assert!(!is_same(&text(reckoned(5_000)), &text(told(6_001))));
        assert!(!is_same(&text(reckoned(500)), &text(told(-1))), "one has none");
        let mut found = Comparison::default();
        assert!(is_same(&text(Frame::Null), &text(told(5_000))));
        found.note_same(&text(Frame::Null), &text(told(5_000)));
        found.note_same(&text(reckoned(5_000)), &text(told(5_000)));
        assert_eq!((found.same, found.without_deadline), (2, 1), "and it is counted");
    }

    #[test]
    fn what_neither_side_lets_one_read_differs_and_does_not_change() {
        let refused = || Frame::Error(b"NOPERM this user has no permissions".to_vec());
        let reading = vec![bulk("string"), Frame::Integer(-1), refused(), Frame::Null];
        assert!(!is_same(&reading, &reading) && is_alike(&reading, &reading));
    }
}
