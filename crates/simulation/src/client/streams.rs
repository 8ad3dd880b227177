//! Clients that share streams, each of which has one group of consumers: they add entries, some under an id of their
//! own until they are answered, take them, acknowledge them, hand them over, and give them back.
//!
//! What no order of requests could have brought about is found at once: an entry that is added twice, or given out as
//! new twice, or acknowledged twice, or had by anybody after it was acknowledged; ids and deliveries that go back; in
//! the end, an entry that anybody was told of and is not there.

use std::collections::{BTreeMap, BTreeSet};

use stdx::Prng;

use super::{Client, Expected, History};
use crate::SECOND;
use crate::reply::Reply;

/// Streams, each with a group.
pub const STREAM_COUNT: u64 = 2;

/// Deliveries that a client remembers, to do something with them.
const HELD_MAX: usize = 12;

/// For so long an entry is added again. Streams remember ids for twice as long.
const REPEATS_MAX: u64 = 50 * SECOND;

/// Name of a stream.
pub fn stream_name(stream: usize) -> String {
    format!("stream:{stream}")
}

/// An id of an entry.
type Id = (u64, u64);

/// What answers have told of one stream.
#[derive(Debug, Default)]
pub(super) struct StreamHistory {
    /// The value of each entry that was seen.
    values: BTreeMap<Id, i64>,
    ids: BTreeMap<i64, Id>,
    /// When clients were told that an entry had been added, and the highest of these so far.
    added_until: Vec<(u64, Id)>,
    /// Entries that were given out as new.
    given: BTreeSet<Id>,
    /// When that was, and the highest of these so far.
    given_until: Vec<(u64, Id)>,
    /// When it was told that an entry is acknowledged.
    acknowledged: BTreeMap<Id, u64>,
    /// All entries, as they were read in the end.
    last: Option<Vec<(Id, i64)>>,
}

/// The highest of those that were told before this moment.
fn highest(told: &[(u64, Id)], before: u64) -> Option<Id> {
    let count = told.partition_point(|(when, _)| *when < before);
    count.checked_sub(1).map(|place| told[place].1)
}

fn note_highest(told: &mut Vec<(u64, Id)>, now: u64, id: Id) {
    let before = told.last().map_or(id, |last| last.1);
    told.push((now, before.max(id)));
}

impl StreamHistory {
    /// An entry was seen.
    fn see(&mut self, id: Id, value: i64) -> Result<(), String> {
        let (known_value, known_id) = (*self.values.entry(id).or_insert(value), *self.ids.entry(value).or_insert(id));
        if known_value != value {
            return Err(format!("entry {id:?} was {known_value}, and is {value}"));
        }
        if known_id != id {
            return Err(format!("{value} was added once, and is there as {known_id:?} and as {id:?}"));
        }
        Ok(())
    }

    fn note_added(&mut self, called: u64, now: u64, id: Id, value: i64, is_first_try: bool) -> Result<(), String> {
        self.see(id, value)?;
        // An entry that is answered again was added earlier.
        if let Some(earlier) = highest(&self.added_until, called).filter(|earlier| is_first_try && *earlier >= id) {
            return Err(format!("{earlier:?} had been added, and then {id:?} was"));
        }
        note_highest(&mut self.added_until, now, id);
        Ok(())
    }

    fn note_given(&mut self, called: u64, now: u64, entry: &Given) -> Result<(), String> {
        let Given { id, value, is_new } = *entry;
        self.see(id, value)?;
        if let Some(when) = self.acknowledged.get(&id).filter(|when| **when < called) {
            return Err(format!("{id:?} was acknowledged at {when}, and had after {called}"));
        }
        if is_new {
            if !self.given.insert(id) {
                return Err(format!("{id:?} was given out as new twice"));
            }
            if let Some(earlier) = highest(&self.given_until, called).filter(|earlier| *earlier >= id) {
                return Err(format!("{earlier:?} had been given out, and then {id:?} was as new"));
            }
            note_highest(&mut self.given_until, now, id);
        }
        Ok(())
    }

    fn note_acknowledged(&mut self, now: u64, id: Id) -> Result<(), String> {
        match self.acknowledged.insert(id, now) {
            None => Ok(()),
            Some(when) => Err(format!("{id:?} was acknowledged at {when}, and again")),
        }
    }

    fn note_last(&mut self, entries: Vec<(Id, i64)>) -> Result<(), String> {
        entries.iter().try_for_each(|(id, value)| self.see(*id, *value))?;
        let found: BTreeSet<Id> = entries.iter().map(|(id, _)| *id).collect();
        // Nobody deletes entries: whatever anybody was ever told of has to be there.
        if let Some(id) = self.values.keys().find(|id| !found.contains(id)) {
            return Err(format!("{id:?} was there, and is not there in the end"));
        }
        match &self.last {
            Some(last) if *last != entries => Err("two nodes hold different entries".to_owned()),
            _ => {
                self.last = Some(entries);
                Ok(())
            }
        }
    }
}

/// An entry that somebody has got.
struct Given {
    id: Id,
    value: i64,
    /// For the first time, as far as the answer tells.
    is_new: bool,
}

/// A client's part in it.
#[derive(Debug)]
pub(super) struct Streams {
    /// Its number, which names it as a consumer and as a producer.
    client: u64,
    prng: Prng,
    /// What it has been given.
    held: Vec<(usize, Id)>,
    /// An entry that it adds under its value as an id until it is answered, and since when.
    pending: Option<(usize, i64, u64)>,
}

/// A request about a stream.
#[derive(Debug)]
pub(super) struct Awaited {
    stream: usize,
    called: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// XGROUP CREATE.
    Create,
    /// XADD of this value.
    Add {
        value: i64,
        is_once: bool,
        is_first_try: bool,
    },
    /// XREADGROUP, of what is new or also of what has been idle.
    Read,
    /// XCLAIM or XNACK of this entry.
    Claim,
    Release,
    /// XACK of it.
    Acknowledge(Id),
    /// All that is there in the end.
    Last,
}

impl Client {
    /// Makes it one that shares streams with others, with chance of its own.
    pub fn share_streams(&mut self, client: u64, prng: Prng) {
        self.streams = Some(Streams { client, prng, held: Vec::new(), pending: None });
    }

    /// Asks for something to be done to a stream; false if it does not.
    pub(super) fn ask_stream(&mut self, now: u64, history: &mut History, out: &mut Vec<u8>) -> bool {
        let Some(mut streams) = self.streams.take() else { return false };
        let is_due = streams.prng.chance(1, 3);
        if is_due {
            let (stream, kind, words) = streams.draw(now, history);
            let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
            self.command(&words, Expected::Stream(Awaited { stream, called: now, kind }), out);
        }
        self.streams = Some(streams);
        is_due
    }

    /// Asks for all of a stream.
    pub(super) fn last_stream(&mut self, now: u64, stream: usize, out: &mut Vec<u8>) {
        let name = stream_name(stream);
        let awaited = Awaited { stream, called: now, kind: Kind::Last };
        self.command(&[b"XRANGE", name.as_bytes(), b"-", b"+"], Expected::Stream(awaited), out);
    }

    /// The answer to a request about a stream. True if it was the last of all.
    pub(super) fn stream_answered(
        &mut self,
        now: u64,
        awaited: &Awaited,
        reply: &Reply,
        history: &mut History,
    ) -> Result<bool, String> {
        let Awaited { stream, called, kind } = awaited;
        let known = &mut history.streams[*stream];
        let absurd = || Err(format!("to {awaited:?} the server said {reply:?}"));
        match kind {
            Kind::Create if *reply == Reply::Simple("OK".into()) => {}
            Kind::Add { value, is_once, is_first_try } => {
                let Some(id) = id_of(reply) else { return absurd() };
                known.note_added(*called, now, id, *value, *is_first_try)?;
                if let Some(streams) = self.streams.as_mut().filter(|_| *is_once) {
                    streams.pending = None;
                }
            }
            Kind::Read => {
                let Some(entries) = entries_of_read(reply) else { return absurd() };
                for entry in &entries {
                    known.note_given(*called, now, entry)?;
                }
                let given = entries.iter().map(|entry| (*stream, entry.id));
                self.streams.as_mut().expect("it shares streams").hold(given);
            }
            Kind::Claim => {
                let entries = array(reply).map(|entries| entries.iter().map(|entry| given(entry, false)));
                let Some(entries) = entries.and_then(Iterator::collect::<Option<Vec<_>>>) else { return absurd() };
                entries.iter().try_for_each(|entry| known.note_given(*called, now, entry))?;
                let given = entries.iter().map(|entry| (*stream, entry.id));
                self.streams.as_mut().expect("it shares streams").hold(given);
            }
            Kind::Release if matches!(reply, Reply::Integer(0 | 1)) => {}
            Kind::Acknowledge(id) => match reply {
                Reply::Integer(0) => {}
                Reply::Integer(1) => known.note_acknowledged(now, *id)?,
                _ => return absurd(),
            },
            Kind::Last => {
                let entries = array(reply).map(|entries| entries.iter().map(|entry| given(entry, false)));
                let Some(entries) = entries.and_then(Iterator::collect::<Option<Vec<_>>>) else { return absurd() };
                known.note_last(entries.iter().map(|entry| (entry.id, entry.value)).collect())?;
                return Ok(true);
            }
            Kind::Create | Kind::Release => return absurd(),
        }
        Ok(false)
    }
}

impl Streams {
    fn hold(&mut self, given: impl Iterator<Item = (usize, Id)>) {
        self.held.extend(given);
        let surplus = self.held.len().saturating_sub(HELD_MAX);
        self.held.drain(..surplus);
    }

    fn draw(&mut self, now: u64, history: &mut History) -> (usize, Kind, Vec<String>) {
        let stream = self.prng.below(STREAM_COUNT) as usize;
        let (name, consumer) = (stream_name(stream), format!("client:{}", self.client));
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let held = match self.held.len() as u64 {
            0 => None,
            count => Some(self.prng.below(count) as usize),
        };
        // No longer than the stream remembers it.
        self.pending.take_if(|(.., since)| now > *since + REPEATS_MAX);
        if let Some((stream, value, _)) = self.pending {
            let kind = Kind::Add { value, is_once: true, is_first_try: false };
            return (stream, kind, words(&add_once(stream, self.client, value)));
        }
        match (self.prng.below(16), held) {
            (0, _) => (stream, Kind::Create, words(&format!("XGROUP CREATE {name} g 0 MKSTREAM"))),
            (1..=3, _) => {
                let value = history.unique_value();
                let kind = Kind::Add { value, is_once: false, is_first_try: true };
                (stream, kind, words(&format!("XADD {name} * v {value}")))
            }
            (4 | 5, _) => {
                let value = history.unique_value();
                self.pending = Some((stream, value, now));
                let kind = Kind::Add { value, is_once: true, is_first_try: true };
                (stream, kind, words(&add_once(stream, self.client, value)))
            }
            (6, _) => {
                let line = format!("XREADGROUP GROUP g {consumer} COUNT 2 CLAIM 50 STREAMS {name} >");
                (stream, Kind::Read, words(&line))
            }
            (7..=9, Some(place)) => {
                let (stream, id) = self.held.swap_remove(place);
                let name = stream_name(stream);
                (stream, Kind::Acknowledge(id), words(&format!("XACK {name} g {}-{}", id.0, id.1)))
            }
            (10, Some(place)) => {
                let (stream, id) = self.held.swap_remove(place);
                let mode = ["SILENT", "FAIL", "FATAL"][self.prng.below(3) as usize];
                let line = format!("XNACK {} g {mode} IDS 1 {}-{}", stream_name(stream), id.0, id.1);
                (stream, Kind::Release, words(&line))
            }
            (11, _) if !history.streams[stream].given.is_empty() => {
                // Of anybody.
                let given = &history.streams[stream].given;
                let nth = self.prng.below(given.len() as u64) as usize;
                let id = given.iter().nth(nth).expect("there are so many");
                let line = format!("XCLAIM {name} g {consumer} {} {}-{}", self.prng.below(100), id.0, id.1);
                (stream, Kind::Claim, words(&line))
            }
            _ => {
                let count = 1 + self.prng.below(3);
                let line = format!("XREADGROUP GROUP g {consumer} COUNT {count} STREAMS {name} >");
                (stream, Kind::Read, words(&line))
            }
        }
    }
}

fn add_once(stream: usize, client: u64, value: i64) -> String {
    format!("XADD {} IDMP client:{client} {value} * v {value}", stream_name(stream))
}

fn array(reply: &Reply) -> Option<&[Reply]> {
    match reply {
        Reply::Array(Some(replies)) => Some(replies),
        _ => None,
    }
}

fn text(reply: &Reply) -> Option<&str> {
    match reply {
        Reply::Bulk(Some(bytes)) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

fn id_of(reply: &Reply) -> Option<Id> {
    let (ms, seq) = text(reply)?.split_once('-')?;
    Some((ms.parse().ok()?, seq.parse().ok()?))
}

/// An entry with one field; behind it may stand for how long it was idle, and how often it has been given out before.
fn given(entry: &Reply, is_new: bool) -> Option<Given> {
    let [id, fields, rest @ ..] = array(entry)? else { return None };
    let [_, value] = array(fields)? else { return None };
    let is_new = match rest {
        [] => is_new,
        [Reply::Integer(idle_ms), Reply::Integer(times)] => is_new && *idle_ms == 0 && *times == 0,
        _ => return None,
    };
    Some(Given { id: id_of(id)?, value: text(value)?.parse().ok()?, is_new })
}

/// What XREADGROUP answers.
fn entries_of_read(reply: &Reply) -> Option<Vec<Given>> {
    if *reply == Reply::Array(None) || *reply == Reply::Bulk(None) {
        return Some(Vec::new());
    }
    let [stream] = array(reply)? else { return None };
    let [_, entries] = array(stream)? else { return None };
    array(entries)?.iter().map(|entry| given(entry, true)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an answer tells: when it was asked for, when it came, the entry and its value.
    enum Told {
        Added(u64, u64, u64, i64),
        New(u64, u64, u64, i64),
        Again(u64, u64, u64, i64),
        Acknowledged(u64, u64),
        Last(&'static [(u64, i64)]),
    }

    use Told::{Acknowledged, Added, Again, Last, New};

    fn tell(history: &mut StreamHistory, told: &Told) -> Result<(), String> {
        let entry = |number, value, is_new| Given { id: (number, 0), value, is_new };
        match *told {
            Added(called, now, number, value) => history.note_added(called, now, (number, 0), value, true),
            New(called, now, number, value) => history.note_given(called, now, &entry(number, value, true)),
            Again(called, now, number, value) => history.note_given(called, now, &entry(number, value, false)),
            Acknowledged(now, number) => history.note_acknowledged(now, (number, 0)),
            Last(entries) => history.note_last(entries.iter().map(|(number, value)| ((*number, 0), *value)).collect()),
        }
    }

    #[test]
    fn what_may_happen_is_taken() {
        let mut history = StreamHistory::default();
        let last = &[(1, 1), (2, 2), (3, 3)];
        for told in [
            Added(0, 3, 2, 2),
            // They were asked for at the same time.
            Added(1, 4, 1, 1),
            New(5, 6, 1, 1),
            New(5, 7, 3, 3),
            New(5, 8, 2, 2),
            Again(8, 9, 1, 1),
            Acknowledged(10, 2),
            // It was asked for before that.
            Again(8, 11, 2, 2),
            Last(last),
            Last(last),
        ] {
            tell(&mut history, &told).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    #[test]
    fn each_contradiction_is_found() {
        let cases: [(&str, &[Told]); 10] = [
            ("was 1, and is 2", &[Added(0, 1, 1, 1), Again(1, 2, 1, 2)]),
            ("was added once", &[Added(0, 1, 1, 1), Added(1, 2, 2, 1)]),
            ("had been added, and then", &[Added(0, 1, 5, 1), Added(2, 3, 4, 2)]),
            ("and had after", &[New(0, 1, 1, 1), Acknowledged(2, 1), Again(3, 4, 1, 1)]),
            ("as new twice", &[New(0, 1, 1, 1), New(0, 2, 1, 1)]),
            ("had been given out, and then", &[New(0, 1, 5, 1), New(2, 3, 4, 2)]),
            ("and again", &[Acknowledged(1, 1), Acknowledged(2, 1)]),
            ("is not there in the end", &[Added(0, 1, 1, 1), Last(&[])]),
            ("is not there in the end", &[New(0, 1, 1, 1), Last(&[])]),
            ("hold different entries", &[Last(&[]), Last(&[(1, 1)])]),
        ];
        for (complaint, told) in cases {
            let mut history = StreamHistory::default();
            let (last, before) = told.split_last().expect("something is told");
            before.iter().for_each(|told| tell(&mut history, told).expect("nothing is wrong yet"));
            let error = tell(&mut history, last).expect_err(complaint);
            assert!(error.contains(complaint), "{error}");
        }
    }
}
