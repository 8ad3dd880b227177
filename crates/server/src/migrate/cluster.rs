//! A Redis Cluster as a source: a stream from each primary, all of them carried out by one process, one transaction
//! after the other.
//!
//! ```text
//!   primary 0 ── link, spool ──▶ stream 0 ──┐
//!   primary 1 ── link, spool ──▶ stream 1 ──┼──▶ one thread ──▶ transactions, each with the places of all streams
//!   who has which slots ── asked twice a second ─┘
//! ```
//!
//! What happens when slots move is told in [`slots`], what happens when a primary fails in [`Follower::look`] and
//! [`Follower::opened`].

pub mod cutover;
pub mod keys;
mod look;
mod settle;
mod slots;
mod stream;
pub mod topology;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use redis_files::aof::Request;
use redis_files::rdb::Part;
use stdx::slot::slot_of;

use self::keys::Keys;
use self::slots::Slots;
use self::stream::{Event, News, OpenedCopy, Opening};
use self::topology::{Survey, Topology, ranges_of, read_ranges};
use super::copy::{Copy, Loaded};
use super::follow::{
    BATCH_BYTES, BATCH_REQUESTS, HAS_ENDED, PAUSE_MAX, PAUSE_MIN, Plan, READ_AHEAD, RECORD_INTERVAL, Report, Step,
};
use super::is_over;
use super::source::{Beginning, Figures};
use super::target::{Batch, Outcome, Phase, Place, Record, Target, is, is_taken_over, passes};
use crate::connection::Connection;
use crate::import::files::Event as FileEvent;
use crate::import::now_ms;

/// How often the nodes are asked who has which slots.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// How often slots are read that have moved.
const SETTLE_INTERVAL: Duration = Duration::from_millis(100);

/// Memory for what slots hold until their streams are there.
const READING_BYTES_MAX: usize = 64 << 20;

/// Keys that one request removes.
const KEYS_AT_ONCE: usize = 1_000;

/// Why following has ended.
enum End {
    /// The migration was cut over or stopped, or goes on in another process.
    Ended,
    /// The user has asked for it.
    Asked,
    /// The copy is begun again, for this reason.
    Broken(anyhow::Error),
}

/// How a stream is read.
enum Line {
    /// A link is being opened.
    Opening,
    Open,
    /// It is opened again then.
    Closed(Instant),
}

/// A stream, and the node that it is asked from: the place in the record is that of the node that it came from last.
struct Stream {
    node: String,
    place: String,
    line: Line,
    generation: u64,
    figures: Arc<Figures>,
    /// Where the stream was when the link was opened.
    base: u64,
    pause: Duration,
    /// That it is broken was told.
    is_told: bool,
    /// Why it was broken last.
    fault: String,
}

/// The process that follows all streams.
struct Follower<'a, 'b> {
    plan: &'a Plan<'a>,
    target: &'b mut Target<'a>,
    keys: Keys,
    slots: Slots,
    streams: BTreeMap<u32, Stream>,
    /// As they are with what is in `batch`.
    places: BTreeMap<u32, Option<Place>>,
    batch: Batch,
    /// When the oldest of the batch was read.
    oldest: Option<Instant>,
    topology: Topology,
    survey: Survey,
    events: SyncSender<Event>,
    /// Threads of this follower must end.
    is_closed: Arc<AtomicBool>,
    may_empty: bool,
    written: Instant,
    report: Report,
}

/// Follows a cluster until the migration ends.
///
/// # Errors
/// What stands in the way, and what can be done about it.
pub fn run(plan: &Plan<'_>, kept: Option<Connection>, found: Option<Record>) -> Result<()> {
    let mut target = plan.take(kept, found)?;
    if target.record.phase == Phase::Failed {
        target.record.phase = Phase::Loading;
    }
    let mut pause = PAUSE_MIN;
    let mut may_empty = plan.may_empty;
    while !is_over(plan.over) {
        let (events, received) = sync_channel(READ_AHEAD);
        let mut follower = Follower::new(plan, &mut target, events, may_empty)?;
        let end = follower.follow(&received);
        follower.close();
        if target.record.phase == Phase::Following {
            // What was asked for has been done.
            may_empty = false;
        }
        let end = match end {
            Err(error) if is_taken_over(&error) => End::Ended,
            end => end?,
        };
        match end {
            End::Ended => {
                say_line!("{HAS_ENDED}");
                return Ok(());
            }
            End::Asked => break,
            End::Broken(why) => {
                match target.record.phase {
                    Phase::Following => note_line!("{why:#}: asking again"),
                    _ => note_line!("{why:#}: the copy is begun again"),
                }
                thread::sleep(pause);
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
    target.say_that_all_was_heard();
    say_line!("interrupted: `migrate start` continues here");
    Ok(())
}

impl<'a, 'b> Follower<'a, 'b> {
    fn new(plan: &'a Plan<'a>, target: &'b mut Target<'a>, events: SyncSender<Event>, may_empty: bool) -> Result<Self> {
        let places = target.record.streams.clone();
        // The node that was named may be gone by now.
        let others = target.record.places().map(|(_, place)| place.place.clone()).collect::<Vec<_>>();
        let keys = Keys::of(&mut target.connect()?)?;
        Ok(Self {
            plan,
            keys,
            slots: Slots::new(),
            streams: BTreeMap::new(),
            places,
            batch: Batch::default(),
            oldest: None,
            topology: Topology::default(),
            survey: Survey::new(&plan.address, others),
            events,
            is_closed: Arc::new(AtomicBool::new(false)),
            may_empty,
            written: Instant::now(),
            report: Report::new(plan.is_quiet),
            target,
        })
    }

    /// Lets all threads end.
    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.streams.values().for_each(|stream| stream.figures.is_over.store(true, Ordering::Relaxed));
    }

    fn follow(&mut self, events: &Receiver<Event>) -> Result<End> {
        if self.target.record.phase == Phase::Following {
            self.resume()?;
        } else if let Some(end) = self.copy(events)? {
            return Ok(end);
        }
        self.watch()?;
        self.carry_on(events)
    }

    /// Takes up what the record says.
    fn resume(&mut self) -> Result<()> {
        let found: Vec<(u32, Place)> =
            self.target.record.places().map(|(number, place)| (number, place.clone())).collect();
        for (number, place) in found {
            read_ranges(&place.slots)?.into_iter().for_each(|slot| self.slots.assign(slot, number));
            self.add(number, &place.node, &place.place);
            self.open(number, false)?;
        }
        for slot in read_ranges(&self.target.record.unsettled)? {
            self.slots.unsettle(slot);
        }
        Ok(())
    }

    fn add(&mut self, number: u32, node: &str, place: &str) {
        let stream = Stream {
            node: node.to_owned(),
            place: place.to_owned(),
            line: Line::Opening,
            generation: 0,
            figures: Arc::default(),
            base: 0,
            pause: PAUSE_MIN,
            is_told: false,
            fault: String::new(),
        };
        self.streams.insert(number, stream);
    }

    /// Opens a link for a stream, from its place on if it has one.
    fn open(&mut self, number: u32, keeps_copy: bool) -> Result<()> {
        let place = self.places.get(&number).and_then(Option::as_ref).filter(|place| !place.id.is_empty());
        let behind = place.map(|place| (place.id.clone(), place.offset));
        let Some(stream) = self.streams.get_mut(&number) else { return Ok(()) };
        stream.figures.is_over.store(true, Ordering::Relaxed);
        stream.figures = Arc::default();
        stream.generation += 1;
        stream.line = Line::Opening;
        let opening = Opening {
            stream: number,
            generation: stream.generation,
            address: self.plan.address.at(&stream.place),
            behind,
            keeps_copy,
            spool_directory: self.plan.spool_directory.to_path_buf(),
            spool_bytes_max: self.plan.spool_bytes_max,
            figures: Arc::clone(&stream.figures),
            events: self.events.clone(),
        };
        opening.start().context("no thread for a stream")
    }

    /// Copies all nodes. `None` if all of it is there.
    fn copy(&mut self, events: &Receiver<Event>) -> Result<Option<End>> {
        self.places.clear();
        let topology = self.survey.look()?;
        let owners = topology.owners();
        let ownerless = ranges_of((0..).zip(&owners).filter(|(_, owner)| owner.is_none()).map(|(slot, _)| slot));
        let silent = topology.silent.iter().cloned().collect::<Vec<_>>().join(", ");
        ensure!(
            ownerless.is_empty(),
            "no node of the source that answers has the slots {ownerless}{}",
            if silent.is_empty() { String::new() } else { format!("; no answer comes from {silent}") }
        );
        let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
        for (slot, claim) in (0..).zip(owners.iter().flatten()) {
            let next = numbers.len() as u32;
            self.slots.assign(slot, *numbers.entry(&claim.node).or_insert(next));
        }
        topology.open().into_iter().for_each(|slot| _ = self.slots.unsettle(slot));
        for (node, number) in numbers {
            let place = &topology.claims[node].place;
            self.places.insert(number, Some(Place { node: node.to_owned(), place: place.clone(), ..Place::default() }));
            self.add(number, node, place);
            self.open(number, true)?;
        }
        if !self.plan.is_quiet {
            note_line!("{} primaries make a copy of their data", self.streams.len());
        }
        let mut opened = BTreeMap::new();
        while opened.len() < self.streams.len() {
            if is_over(self.plan.over) {
                return Ok(Some(End::Asked));
            }
            match events.recv_timeout(RECORD_INTERVAL) {
                Ok(Event::Link { stream, news: News::Opened { beginning, copy: Some(copy), go }, .. }) => {
                    let Beginning::Copy { id, offset } = beginning else {
                        bail!("a node continues a stream that was not begun");
                    };
                    opened.insert(stream, (id, offset, copy, go));
                }
                Ok(Event::Link { news: News::Ended { why, .. }, .. }) => return Ok(Some(End::Broken(why))),
                Ok(_) | Err(_) => {}
            }
        }
        self.target.record = Record {
            phase: Phase::Loading,
            id: String::new(),
            offset: 0,
            database: 0,
            written_ms: now_ms(),
            error: String::new(),
            fault: String::new(),
            heard: 0,
            unheard: String::new(),
            streams: BTreeMap::new(),
            unsettled: String::new(),
            ..self.target.record.clone()
        };
        self.target.empty()?;
        let mut ready = Vec::new();
        for (number, (id, offset, copy, go)) in opened {
            if let Some(end) = self.load(number, copy)? {
                return Ok(Some(end));
            }
            self.stand(number, id, offset);
            ready.push(go);
        }
        self.topology = topology;
        self.target.record.phase = Phase::Following;
        self.target.record = self.next_record();
        self.target.record.heard = self.target.record.offset;
        self.target.write()?;
        // One that has broken meanwhile says so itself.
        ready.into_iter().for_each(|go| _ = go.send(()));
        Ok(None)
    }

    /// Loads the copy of a node: what is its own. `None` if all of it is there.
    fn load(&mut self, number: u32, copy: OpenedCopy) -> Result<Option<End>> {
        let Self { plan, slots, streams, target, .. } = self;
        let has_functions = streams.keys().next() == Some(&number);
        let mut wants = |event: &FileEvent| match event {
            FileEvent::Key(key) => {
                let slot = slot_of(&key.name).0;
                let is_own = slots.owner(slot) == Some(number);
                if !is_own && matches!(key.part, Part::Whole | Part::First) {
                    slots.unsettle(slot);
                }
                is_own
            }
            _ => has_functions,
        };
        let loader = Copy {
            is_quiet: plan.is_quiet,
            tell: plan.tell,
            skips_modules: plan.skips_modules,
            over: plan.over,
            copy_bytes: copy.bytes,
        };
        let figures = &streams[&number].figures;
        match loader.load(target, copy.reader, figures, &mut wants) {
            // The target is away: what it has got of the copy is of no use.
            Err(error) if passes(&error) => Ok(Some(End::Broken(error))),
            Err(error) => Err(error.context(format!("the copy of {}", streams[&number].place))),
            Ok(Loaded::Whole) => Ok(None),
            Ok(Loaded::Truncated) => Ok(Some(End::Broken(anyhow!("{} has hung up", streams[&number].place)))),
            Ok(Loaded::Asked) => Ok(Some(End::Asked)),
        }
    }

    /// Asks twice a second who has which slots, in a thread of its own: a node that is away costs time.
    fn watch(&self) -> Result<()> {
        let known: Vec<String> = self.streams.values().map(|stream| stream.place.clone()).collect();
        let mut survey = Survey::new(&self.plan.address, known);
        let (events, is_closed) = (self.events.clone(), Arc::clone(&self.is_closed));
        let work = move || {
            while !is_closed.load(Ordering::Relaxed) {
                // If nobody answers, links break and say so.
                if let Ok(topology) = survey.look()
                    && events.send(Event::Topology(topology)).is_err()
                {
                    return;
                }
                thread::sleep(LOOK_INTERVAL);
            }
        };
        thread::Builder::new().name("topology".to_owned()).spawn(work).context("no thread to watch the source")?;
        Ok(())
    }

    /// Carries out what the source sends.
    fn carry_on(&mut self, events: &Receiver<Event>) -> Result<End> {
        let mut settled = Instant::now();
        loop {
            if is_over(self.plan.over) {
                return Ok(End::Asked);
            }
            let first = match events.recv_timeout(SETTLE_INTERVAL) {
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => bail!("no thread follows the source"),
            };
            let mut next = first;
            while let Some(event) = next {
                if let Some(end) = self.hear(event)? {
                    return Ok(end);
                }
                if self.batch.requests.len() >= BATCH_REQUESTS || self.batch.byte_count >= BATCH_BYTES {
                    break;
                }
                next = events.try_recv().ok();
            }
            if settled.elapsed() >= SETTLE_INTERVAL {
                self.read_slots();
                settled = Instant::now();
            }
            let numbers: Vec<u32> = self.streams.keys().copied().collect();
            for number in numbers {
                if let Some(end) = self.settle(number)? {
                    return Ok(end);
                }
            }
            if (self.oldest.is_some() || self.written.elapsed() >= RECORD_INTERVAL)
                && let Some(end) = self.commit()?
            {
                return Ok(end);
            }
            self.open_again()?;
        }
    }

    fn hear(&mut self, event: Event) -> Result<Option<End>> {
        let (number, generation, news) = match event {
            Event::Topology(topology) => return self.look(topology).map(|()| None),
            Event::Link { stream, generation, news } => (stream, generation, news),
        };
        // One that was given up says nothing more.
        if self.streams.get(&number).is_none_or(|stream| stream.generation != generation) {
            return Ok(None);
        }
        match news {
            News::Opened { beginning, go, .. } => {
                if let Some(end) = self.opened(number, beginning)? {
                    return Ok(Some(end));
                }
                // If it has broken meanwhile it says so itself.
                let _ = go.send(());
                Ok(None)
            }
            News::Step(step) => self.take(number, step),
            News::Ended { why, is_unreadable } => {
                if is_unreadable {
                    return Err(why);
                }
                if let Some(stream) = self.streams.get_mut(&number) {
                    stream.fault = format!("{}: {why:#}", stream.place);
                    if !std::mem::replace(&mut stream.is_told, true) {
                        note_line!("{}: {why:#}: asking again", stream.place);
                    }
                    stream.line = Line::Closed(Instant::now() + stream.pause);
                    stream.pause = (stream.pause * 2).min(PAUSE_MAX);
                }
                Ok(None)
            }
        }
    }

    /// Puts requests that belong together into the batch.
    fn take(&mut self, number: u32, step: Step) -> Result<Option<End>> {
        // What was read at the place before this step is behind it otherwise.
        if let Some(end) = self.settle(number)? {
            return Ok(Some(end));
        }
        let base = self.streams[&number].base;
        let end = base + step.end;
        let has_functions = self.streams.keys().next() == Some(&number);
        for request in step.requests {
            let is_one_of = |names: &[&str]| names.iter().any(|name| is(&request, name));
            if is_one_of(&["PING", "REPLCONF", "SELECT"]) {
                continue;
            }
            // All nodes have the same functions, and each tells of them.
            if is_one_of(&["FUNCTION", "SCRIPT"]) {
                if has_functions {
                    self.batch.push(request);
                }
                continue;
            }
            // Slots that move in one piece (Valkey 9, Redis 8.4): requests about their keys, and who has them then, say
            // the rest.
            if is(&request, "CLUSTER") {
                continue;
            }
            if let Some(slots) = trimmed_slots(&request) {
                let own = slots.into_iter().filter(|slot| self.slots.owner(*slot) == Some(number));
                own.collect::<Vec<_>>().into_iter().for_each(|slot| _ = self.slots.unsettle(slot));
                continue;
            }
            // It was meant for the keys of this node.
            if is_one_of(&["FLUSHALL", "FLUSHDB"]) {
                let own: Vec<u16> = self.slots.of(number).collect();
                own.into_iter().for_each(|slot| _ = self.slots.unsettle(slot));
                continue;
            }
            let request = as_own(request);
            let slots = self.keys.slots_of(&request);
            if self.slots.admits(number, end, &slots) {
                self.batch.push(request);
            }
        }
        self.oldest = self.oldest.or(Some(step.read_at));
        if let Some(place) = self.places.get_mut(&number).and_then(Option::as_mut) {
            place.offset = end;
            place.lag_ms = u64::try_from(step.read_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        }
        Ok(None)
    }

    /// Replaces slots that were read at the place where a stream is.
    fn settle(&mut self, number: u32) -> Result<Option<End>> {
        let Some(offset) = self.places.get(&number).and_then(Option::as_ref).map(|place| place.offset) else {
            return Ok(None);
        };
        if !self.slots.has_due(number, offset) {
            return Ok(None);
        }
        // The target must hold what came before.
        if let Some(end) = self.commit()? {
            return Ok(Some(end));
        }
        while let Some((slot, reading)) = self.slots.take_due(number, offset) {
            let there = self.target.keys_of_slot(slot)?;
            let kept: BTreeSet<&[u8]> = reading.keys.iter().map(|key| &*key.name).collect();
            let gone: Vec<&Vec<u8>> = there.iter().filter(|key| !kept.contains(key.as_slice())).collect();
            for some in gone.chunks(KEYS_AT_ONCE) {
                let mut words = vec![b"DEL".to_vec()];
                words.extend(some.iter().map(|key| key.to_vec()));
                self.batch.push(words);
            }
            for key in reading.keys {
                let deadline = key.deadline_ms.to_string().into_bytes();
                let words = [b"RESTORE".to_vec(), key.name, deadline, key.value];
                self.batch.push(words.into_iter().chain([b"REPLACE".to_vec(), b"ABSTTL".to_vec()]).collect());
            }
            self.oldest = self.oldest.or(Some(Instant::now()));
            if self.batch.byte_count >= BATCH_BYTES
                && let Some(end) = self.commit()?
            {
                return Ok(Some(end));
            }
        }
        self.commit()
    }

    /// The record as it is with what is in the batch.
    fn next_record(&mut self) -> Record {
        for (number, stream) in &self.streams {
            if let Some(Some(place)) = self.places.get_mut(number) {
                place.received = stream.figures.received.load(Ordering::Relaxed).max(place.offset);
                place.slots = ranges_of(self.slots.of(*number));
            }
        }
        let places = || self.places.values().flatten();
        let faults = self.streams.values().filter_map(|stream| match &stream.line {
            Line::Open => Some(stream.figures.fault()),
            Line::Opening | Line::Closed(_) if stream.is_told => Some(stream.fault.clone()),
            Line::Opening | Line::Closed(_) => None,
        });
        let faults: Vec<String> = faults.filter(|fault| !fault.is_empty()).collect();
        Record {
            fault: faults.join("; "),
            offset: places().map(|place| place.offset).sum(),
            received: places().map(|place| place.received).sum(),
            lag_ms: self.oldest.map_or(0, |oldest| oldest.elapsed().as_millis() as u64),
            written_ms: now_ms(),
            streams: self.places.clone(),
            unsettled: ranges_of(self.slots.unsettled().iter().copied()),
            ..self.target.record.clone()
        }
    }

    /// Carries out what is in the batch.
    fn commit(&mut self) -> Result<Option<End>> {
        let next = self.next_record();
        let batch = std::mem::take(&mut self.batch);
        self.oldest = None;
        let places = self.target.record.places();
        let behind =
            places.map(|(_, place)| format!("{} {}", place.place, place.offset)).collect::<Vec<_>>().join(", ");
        match self.target.commit(&batch, next)? {
            Outcome::Done => {}
            Outcome::Unheard => note_line!("{}", self.target.record.note_unheard()),
            Outcome::TakenOver => return Ok(Some(End::Ended)),
            Outcome::WentBack => {
                return Ok(Some(End::Broken(anyhow!("the target has gone back to before {behind}"))));
            }
            Outcome::Refused { why, is_carried_out } => {
                let why = format!("behind the offsets {behind} of the streams: {why}");
                if is_carried_out {
                    self.target.fail(&why)?;
                }
                bail!("{why}");
            }
        }
        self.written = Instant::now();
        let mut waiting_bytes = 0;
        for (number, stream) in &self.streams {
            if let Some(Some(place)) = self.places.get(number) {
                stream.figures.kept.store(place.offset, Ordering::Relaxed);
                self.slots.passed(*number, place.offset);
            }
            waiting_bytes += stream.figures.waiting_bytes.load(Ordering::Relaxed);
        }
        let count = batch.requests.len() as u64;
        self.report.note(count, self.target.record.lag_ms, waiting_bytes, &self.target.record);
        Ok(None)
    }
}

/// The slots with keys that a node drops since another one has them: `TRIMSLOTS RANGES count first last …`.
fn trimmed_slots(request: &Request) -> Option<BTreeSet<u16>> {
    if !is(request, "TRIMSLOTS") {
        return None;
    }
    let numbers: Vec<u16> =
        request.iter().skip(3).filter_map(|word| std::str::from_utf8(word).ok()?.parse().ok()).collect();
    let in_cluster = |slot: &u16| usize::from(*slot) < stdx::slot::SLOT_COUNT;
    Some(numbers.chunks_exact(2).flat_map(|range| range[0]..=range[1]).filter(in_cluster).collect())
}

/// A request as the target knows it: what MIGRATE brings is a RESTORE of its own kind.
fn as_own(mut request: Request) -> Request {
    if is(&request, "RESTORE-ASKING") {
        request[0] = b"RESTORE".to_vec();
        if !request.iter().skip(4).any(|word| word.eq_ignore_ascii_case(b"REPLACE")) {
            request.push(b"REPLACE".to_vec());
        }
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_says_which_slots_it_drops() {
        let of = |text: &str| trimmed_slots(&text.split(' ').map(|word| word.as_bytes().to_vec()).collect());
        assert_eq!(of("trimslots RANGES 2 0 2 16380 17000").map(|slots| slots.len()), Some(3 + 4));
        assert_eq!(of("TRIMSLOTS"), Some(BTreeSet::new()));
        assert_eq!(of("DEL RANGES 1 0 2"), None);
    }

    #[test]
    fn what_migrate_brings_replaces_what_is_there() {
        let own = |text: &str| {
            let words = as_own(text.split(' ').map(|word| word.as_bytes().to_vec()).collect());
            String::from_utf8(words.join(&b' ')).expect("text")
        };
        assert_eq!(own("RESTORE-ASKING k 0 v"), "RESTORE k 0 v REPLACE");
        assert_eq!(own("restore-asking REPLACE 5 v replace ABSTTL"), "RESTORE REPLACE 5 v replace ABSTTL");
        assert_eq!(own("RESTORE k 0 v"), "RESTORE k 0 v");
    }
}
