//! The process that follows a source: copies it, carries out its stream, and begins again where it was when a link
//! breaks.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use redis_files::Source;
use redis_files::aof::{self, AofReader, Request};

use super::check::bytes;
use super::cluster::keys::Keys;
use super::copy::{Copy, Loaded};
use super::filter::Filter;
use super::source::{Address, Beginning, Figures, Line, Link, VALKEY_VERSION, ask, info, info_field};
use super::spool::{SpoolReader, ensure_room, spool};
use super::target::{
    Batch, Outcome, Phase, Record, Target, TargetArguments, database_of, insist, is, is_taken_over, passes, read_record,
};
use super::{PATIENCE, WRITER_SILENCE, age_of, cluster, is_over};
use crate::backup::grouped;
use crate::connection::Connection;
use crate::import::files::Event;
use crate::import::{ensure_empty, now_ms};

/// A transaction has at most so many requests of the source,
pub const BATCH_REQUESTS: usize = 2_000;

/// or so many bytes, unless a transaction of the source is longer.
pub const BATCH_BYTES: usize = 1 << 20;

/// Requests that have been read and wait for a transaction.
pub const READ_AHEAD: usize = 4_096;

/// The record is written at least so often: others see by it that somebody follows.
pub const RECORD_INTERVAL: Duration = Duration::from_secs(1);

const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Pauses between attempts to reach the source.
pub const PAUSE_MIN: Duration = Duration::from_millis(100);
pub const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A field of INFO that only a server tells which follows by REPLICAOF: what it has of a copy.
pub const COPY_FIELD: &str = "master_copy";

/// What is said when there is nothing left to follow.
pub const HAS_ENDED: &str = "the migration has ended: it was cut over or stopped, or another process continues it";

/// What to follow, and how.
pub struct Plan<'a> {
    pub address: Address,
    pub target: &'a TargetArguments,
    pub spool_directory: &'a Path,
    pub spool_bytes_max: u64,
    pub skips_modules: bool,
    /// Which keys are taken, if the migration is begun.
    pub filter: &'a Filter,
    /// The target may be emptied for another copy.
    pub may_empty: bool,
    pub is_quiet: bool,
    pub over: &'a AtomicBool,
    /// Names the process that writes.
    pub writer: String,
    /// Hears what happens, a line each.
    pub tell: Tell<'a>,
    pub standing: &'a Standing,
    /// Where the source is, and how one is let in, if that may change meanwhile; else `address` says it.
    pub look_up: Option<&'a (dyn Fn() -> Option<Address> + Sync)>,
}

/// Hears a line: one that is the outcome of something, or one about how it is going.
pub type Tell<'a> = &'a (dyn Fn(Tone, &str) + Sync);

/// See [`Tell`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Outcome,
    Going,
}

/// Tells lines as a tool does.
pub fn tell_as_tool(tone: Tone, line: &str) {
    match tone {
        Tone::Outcome => say_line!("{line}"),
        Tone::Going => note_line!("{line}"),
    }
}

/// How following a single server is going, for others to see.
#[derive(Default)]
pub struct Standing {
    /// There is a link, on which the source sends.
    pub is_linked: AtomicBool,
    /// The target has a whole copy, and follows the stream.
    pub is_whole: AtomicBool,
    /// Bytes of the source's stream that the target has.
    pub offset: AtomicU64,
    /// What the link tells of itself.
    pub figures: Mutex<Arc<Figures>>,
    /// Why there is no link; empty if there is one.
    pub fault: Mutex<String>,
    pub line: Line,
}

impl Standing {
    fn note_fault(&self, text: String) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}

/// Requests of the source that belong together, and where its stream is behind them.
pub struct Step {
    pub requests: Vec<Request>,
    /// Bytes of the stream since the link was opened.
    pub end: u64,
    pub read_at: Instant,
}

/// Why following has ended for now.
enum End {
    /// It is begun again, for this reason; none if the source sends nothing more.
    Broken(Option<anyhow::Error>),
    /// The migration was cut over or stopped, or goes on in another process.
    Ended,
    /// The user has asked for it.
    Asked,
}

impl Plan<'_> {
    /// Follows until the migration ends.
    ///
    /// # Errors
    /// What stands in the way, and what can be done about it.
    pub fn run(&self) -> Result<()> {
        let mut kept = None;
        let found = insist(self.target, &mut kept, read_record)?;
        self.refuse_beside_replicaof(&mut kept)?;
        if self.is_cluster(found.as_ref())? {
            ensure!(
                self.filter.is_all(),
                "{} is a node of a Redis Cluster: --match, --except and --database are for a server by itself",
                self.address.place
            );
            return cluster::run(self, kept, found);
        }
        let outcome = self.take(kept, found).and_then(|mut target| self.follow_on(&mut target));
        match outcome {
            Err(error) if is_taken_over(&error) => {
                (self.tell)(Tone::Outcome, HAS_ENDED);
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Follows over one link after the other.
    fn follow_on(&self, target: &mut Target<'_>) -> Result<()> {
        let mut may_empty = self.may_empty;
        let mut pause = PAUSE_MIN;
        let mut is_told = false;
        while !is_over(self.over) {
            let attempt = self.follow(target, &mut may_empty, &mut || {
                if std::mem::take(&mut is_told) {
                    (self.tell)(Tone::Going, "the source is followed again");
                }
                pause = PAUSE_MIN;
            });
            match attempt? {
                End::Ended => {
                    (self.tell)(Tone::Outcome, HAS_ENDED);
                    return Ok(());
                }
                End::Asked => break,
                End::Broken(why) => {
                    let why = why.unwrap_or_else(|| anyhow!("{} sends nothing more", self.address.place));
                    self.standing.note_fault(format!("{why:#}"));
                    if !std::mem::replace(&mut is_told, true) && !is_over(self.over) {
                        (self.tell)(Tone::Going, &format!("{why:#}: asking again"));
                    }
                    target.record.fault = format!("{why:#}");
                    let begun = Instant::now();
                    while begun.elapsed() < pause && !is_over(self.over) {
                        thread::sleep(Duration::from_millis(20));
                        // The source may be away for long.
                        if age_of(&target.record) > RECORD_INTERVAL {
                            self.note(target)?;
                        }
                    }
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
        target.say_that_all_was_heard();
        let offset = target.record.offset;
        (self.tell)(Tone::Outcome, &format!("interrupted at offset {offset}: `migrate start` continues here"));
        Ok(())
    }

    /// A server that follows by itself is no target.
    fn refuse_beside_replicaof(&self, kept: &mut Option<Connection>) -> Result<()> {
        if self.target.is_inside() {
            return Ok(());
        }
        let told = insist(self.target, kept, |connection| info(connection, "replication"))?;
        if info_field(&told, COPY_FIELD).is_some() {
            let of = |name: &str| info_field(&told, name).unwrap_or_default();
            bail!(
                "the target follows {}:{} by REPLICAOF: REPLICAOF NO ONE there ends that",
                of("master_host"),
                of("master_port")
            );
        }
        Ok(())
    }

    /// True if the source is a cluster, or was one when the migration was begun: then the node that was named may be
    /// gone.
    fn is_cluster(&self, found: Option<&Record>) -> Result<bool> {
        if self.target.is_inside() {
            return Ok(false);
        }
        if let Some(found) = found.filter(|found| found.phase == Phase::Following) {
            return Ok(!found.streams.is_empty());
        }
        let told = info(&mut self.address.connect(PATIENCE)?, "cluster")?;
        Ok(info_field(&told, "cluster_enabled").as_deref() == Some("1"))
    }

    /// What begins again.
    fn way_out(&self) -> &'static str {
        match self.target.is_inside() {
            true => "REPLICAOF NO ONE, FLUSHALL and REPLICAOF take another copy",
            false => "--resync empties the target and copies again",
        }
    }

    /// Becomes the process that writes.
    pub fn take(&self, mut kept: Option<Connection>, found: Option<Record>) -> Result<Target<'_>> {
        let writer = self.writer.clone();
        let is_begun = found.is_some();
        let mut record = match found {
            None => {
                insist(self.target, &mut kept, |connection| {
                    ensure_empty(connection).context("a migration begins with an empty target")
                })?;
                Record {
                    from: self.address.place.clone(),
                    phase: Phase::Loading,
                    writer,
                    id: String::new(),
                    offset: 0,
                    database: 0,
                    received: 0,
                    lag_ms: 0,
                    written_ms: now_ms(),
                    error: String::new(),
                    fault: String::new(),
                    heard: 0,
                    unheard: String::new(),
                    streams: BTreeMap::new(),
                    unsettled: String::new(),
                    filter: self.filter.clone(),
                }
            }
            Some(found) => {
                ensure!(
                    found.phase != Phase::Failed || self.may_empty,
                    "the migration has failed: {}; {}",
                    found.error,
                    self.way_out()
                );
                let filter = if self.may_empty && !self.filter.is_all() { self.filter } else { &found.filter };
                ensure!(
                    self.filter.is_all() || self.filter == filter,
                    "the migration was begun with another filter; --resync empties the target and copies again"
                );
                let phase = if *filter == found.filter { found.phase } else { Phase::Loading };
                let found = Record { filter: filter.clone(), phase, ..found };
                if !self.may_empty && !self.target.is_inside() {
                    self.wait_for_the_end_of_another(&mut kept, &found)?;
                }
                Record { from: self.address.place.clone(), writer, written_ms: now_ms(), ..found }
            }
        };
        if record.phase == Phase::Following && record.heard < record.offset {
            (self.tell)(Tone::Going, &record.note_unheard());
        }
        // Nothing may expire by our clock: only the source knows what has happened in time.
        insist(self.target, &mut kept, |connection| {
            ask(connection, &["CONFIG", "SET", "import-mode", "yes"]).map(|_| ())
        })?;
        Target::take(self.target, is_begun, record)
    }

    /// A process that has just ended seems to be at work for some seconds.
    fn wait_for_the_end_of_another(&self, kept: &mut Option<Connection>, found: &Record) -> Result<()> {
        let begun = Instant::now();
        while age_of(found) <= WRITER_SILENCE && begun.elapsed() <= WRITER_SILENCE && !is_over(self.over) {
            thread::sleep(Duration::from_millis(200));
            let now = insist(self.target, kept, read_record)?;
            ensure!(
                now.is_some_and(|now| now.written_ms == found.written_ms),
                "another process {} {} ({}): end it first",
                if found.phase == Phase::Loading { "copies" } else { "follows" },
                found.from,
                found.writer
            );
        }
        Ok(())
    }

    /// One link, from its opening to its end.
    fn follow(&self, target: &mut Target<'_>, may_empty: &mut bool, began: &mut dyn FnMut()) -> Result<End> {
        let ended = self.follow_one(target, may_empty, began);
        self.standing.is_linked.store(false, Ordering::Relaxed);
        ended
    }

    fn follow_one(&self, target: &mut Target<'_>, may_empty: &mut bool, began: &mut dyn FnMut()) -> Result<End> {
        let address = self.look_up.and_then(|look_up| look_up()).unwrap_or_else(|| self.address.clone());
        let can_continue = target.record.phase == Phase::Following;
        let place = (target.record.id.clone(), target.record.offset);
        let behind = can_continue.then_some((&*place.0, place.1));
        if let Err(error) = ensure_room(self.spool_directory) {
            return Ok(End::Broken(Some(anyhow!("what the source sends cannot be kept: {error}"))));
        }
        let opened = Link::open(&self.standing.line, &address, behind, Some(VALKEY_VERSION));
        let (mut link, beginning) = match opened {
            Ok(opened) => opened,
            Err(error) => return Ok(End::Broken(Some(error))),
        };
        if is_over(self.over) {
            return Ok(End::Asked);
        }
        let figures = Arc::new(Figures::default());
        *self.standing.figures.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&figures);
        self.standing.is_linked.store(true, Ordering::Relaxed);
        self.standing.note_fault(String::new());
        let (stream_writer, stream_reader) = spool(self.spool_directory, self.spool_bytes_max);
        let mut copy = None;
        let (base, database) = match &beginning {
            Beginning::Continued { id } => {
                target.record.id.clone_from(id);
                (target.record.offset, target.record.database)
            }
            Beginning::Copy { id, offset } => {
                // In the same history, what it has now is a later state of what is here.
                let is_later = *id == target.record.id && *offset >= target.record.offset;
                ensure!(
                    !can_continue || *may_empty || is_later,
                    "{} cannot continue its stream from offset {}: its backlog is gone, or it is another server; {}",
                    self.address.place,
                    target.record.offset,
                    self.way_out()
                );
                if can_continue && !*may_empty {
                    let behind = target.record.offset;
                    (self.tell)(
                        Tone::Going,
                        &format!(
                            "the backlog of {} no longer has offset {behind}: another copy is taken",
                            self.address.place
                        ),
                    );
                }
                if !self.is_quiet {
                    (self.tell)(Tone::Going, &format!("{} makes a copy of its data", self.address.place));
                }
                let mut noted = Ok(());
                let copy_bytes = link.copy_bytes(|| {
                    if noted.is_ok() && age_of(&target.record) > RECORD_INTERVAL {
                        noted = self.note(target);
                    }
                });
                noted?;
                let copy_bytes = match copy_bytes {
                    Ok(copy_bytes) => copy_bytes,
                    Err(error) => return Ok(End::Broken(Some(error))),
                };
                if is_over(self.over) {
                    return Ok(End::Asked);
                }
                figures.copy_bytes.store(copy_bytes, Ordering::Relaxed);
                let (writer, reader) = spool(self.spool_directory, self.spool_bytes_max);
                copy = Some((id.clone(), *offset, copy_bytes, writer, reader));
                (*offset, 0)
            }
        };
        began();
        target.record.fault.clear();
        figures.received.store(base, Ordering::Relaxed);
        figures.kept.store(base, Ordering::Relaxed);
        let (copied, copy_bytes, copy_writer) = match copy {
            None => (None, 0, None),
            Some((id, offset, copy_bytes, writer, reader)) => (Some((id, offset, reader)), copy_bytes, Some(writer)),
        };
        let link_thread = {
            let figures = Arc::clone(&figures);
            thread::Builder::new()
                .name("link".to_owned())
                .spawn(move || link.run(copy_bytes, copy_writer, &stream_writer, &figures))?
        };
        let read_thread = {
            let (sender, receiver) = sync_channel(READ_AHEAD);
            let thread = thread::Builder::new()
                .name("stream".to_owned())
                .spawn(move || read_stream(stream_reader, &mut |step| sender.send(step).is_ok()))?;
            (thread, receiver)
        };
        let outcome = match copied {
            None => self.note(target).map(|()| None),
            Some((id, offset, reader)) => self.begin(target, id, offset, (reader, copy_bytes), &figures),
        };
        let outcome = match outcome {
            Ok(None) => {
                *may_empty = false;
                self.standing.offset.store(target.record.offset, Ordering::Relaxed);
                self.standing.is_whole.store(true, Ordering::Relaxed);
                self.carry_on(target, base, database, &read_thread.1, &figures)
            }
            Ok(Some(end)) => Ok(end),
            Err(error) => Err(error),
        };
        // Dropping the receiver ends the reader of the stream, and that ends the link.
        figures.is_over.store(true, Ordering::Relaxed);
        drop(read_thread.1);
        let read = read_thread.0.join().map_err(|_| anyhow!("the thread that reads the stream has panicked"))?;
        let linked = link_thread.join().map_err(|_| anyhow!("the thread of the link has panicked"))?;
        match outcome? {
            End::Broken(None) => {
                // What cannot be read will not be readable the next time.
                read?;
                Ok(End::Broken(linked.err()))
            }
            end => Ok(end),
        }
    }

    /// Writes the record as it is now.
    pub fn note(&self, target: &mut Target<'_>) -> Result<()> {
        target.record.written_ms = now_ms();
        target.write()
    }

    /// Loads a copy of so many bytes, and notes from which place of the stream it goes on. `None` if all of it is
    /// there.
    fn begin(
        &self,
        target: &mut Target<'_>,
        id: String,
        offset: u64,
        (reader, copy_bytes): (SpoolReader, u64),
        figures: &Figures,
    ) -> Result<Option<End>> {
        let (is_quiet, skips_modules, over, tell) = (self.is_quiet, self.skips_modules, self.over, self.tell);
        let copy = Copy { is_quiet, skips_modules, over, copy_bytes, tell };
        target.record.phase = Phase::Loading;
        target.record.written_ms = now_ms();
        let emptied = target.empty();
        self.standing.is_whole.store(false, Ordering::Relaxed);
        let filter = target.record.filter.clone();
        let mut wants = |event: &Event| match event {
            Event::Key(key) => filter.takes(key.database, &key.name),
            _ => true,
        };
        let ended = match emptied.and_then(|()| copy.load(target, reader, figures, &mut wants)) {
            // The target is away: what it has got of the copy is of no use.
            Err(error) if passes(&error) => Some(End::Broken(Some(error))),
            Err(error) => return Err(error),
            Ok(Loaded::Whole) => None,
            Ok(Loaded::Truncated) => Some(End::Broken(None)),
            Ok(Loaded::Asked) => Some(End::Asked),
        };
        if ended.is_none() {
            let (phase, error, unheard) = (Phase::Following, String::new(), String::new());
            let (database, heard) = (0, offset);
            target.record = Record { phase, id, offset, database, error, heard, unheard, ..target.record.clone() };
            self.note(target)?;
        }
        Ok(ended)
    }

    /// Carries out what the source sends.
    fn carry_on(
        &self,
        target: &mut Target<'_>,
        base: u64,
        mut database: u64,
        steps: &Receiver<Step>,
        figures: &Figures,
    ) -> Result<End> {
        let filter = target.record.filter.clone();
        // Where keys stand in requests is asked once: what the target lacks, it refuses.
        let keys = if filter.is_all() { Keys::default() } else { Keys::of(&mut target.connect()?)? };
        let mut report = Report::new(self.is_quiet);
        let mut written = Instant::now();
        let mut end = target.record.offset;
        let mut is_told = false;
        loop {
            if is_over(self.over) {
                return Ok(End::Asked);
            }
            let first = match steps.recv_timeout(RECORD_INTERVAL.saturating_sub(written.elapsed())) {
                Ok(step) => Some(step),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return Ok(End::Broken(None)),
            };
            let mut batch = Batch::default();
            let mut oldest = None;
            let mut next = first;
            while let Some(step) = next {
                end = base + step.end;
                oldest = oldest.or(Some(step.read_at));
                for request in step.requests {
                    if is(&request, "PING") || is(&request, "REPLCONF") {
                        continue;
                    }
                    if is(&request, "SELECT") {
                        database =
                            database_of(&request).with_context(|| format!("offset {end}: a SELECT of nothing"))?;
                    }
                    let sifted = match filter.sift(&keys, database, request) {
                        Ok(sifted) => sifted,
                        Err(why) => {
                            let why = format!("before offset {end} of the stream: {why}");
                            target.fail(&why)?;
                            bail!("{why}");
                        }
                    };
                    sifted.into_iter().for_each(|request| batch.push(request));
                }
                if batch.requests.len() >= BATCH_REQUESTS || batch.byte_count >= BATCH_BYTES {
                    break;
                }
                next = steps.try_recv().ok();
            }
            // Also a PING alone is noted at once: a cut-over waits for the last byte of the stream.
            if oldest.is_none() && written.elapsed() < RECORD_INTERVAL {
                continue;
            }
            let fault = figures.fault();
            if !fault.is_empty() && !std::mem::replace(&mut is_told, true) {
                (self.tell)(Tone::Going, &format!("{fault}: waiting for room"));
            } else if fault.is_empty() && std::mem::take(&mut is_told) {
                (self.tell)(Tone::Going, "there is room again");
            }
            let lag = oldest.map_or(Duration::ZERO, |oldest| oldest.elapsed());
            let count = batch.requests.len();
            let next = Record {
                phase: Phase::Following,
                offset: end,
                database,
                received: figures.received.load(Ordering::Relaxed),
                lag_ms: u64::try_from(lag.as_millis()).unwrap_or(u64::MAX),
                written_ms: now_ms(),
                fault,
                ..target.record.clone()
            };
            let behind = target.record.offset;
            match target.commit(&batch, next)? {
                Outcome::Done => {}
                Outcome::Unheard => (self.tell)(Tone::Going, &target.record.note_unheard()),
                Outcome::TakenOver => return Ok(End::Ended),
                Outcome::WentBack => {
                    return Ok(End::Broken(Some(anyhow!(
                        "the target has gone back from offset {behind} to {}",
                        target.record.offset
                    ))));
                }
                Outcome::Refused { why, is_carried_out } => {
                    let why = format!("between offsets {behind} and {end} of the stream: {why}");
                    if is_carried_out {
                        target.fail(&why)?;
                    }
                    bail!("{why}");
                }
            }
            written = Instant::now();
            figures.kept.store(end, Ordering::Relaxed);
            self.standing.offset.store(end, Ordering::Relaxed);
            let waiting_bytes = figures.waiting_bytes.load(Ordering::Relaxed);
            report.note(count as u64, target.record.lag_ms, waiting_bytes, &target.record);
        }
    }
}

/// Reads requests until the stream ends, or nobody takes them: `take` answers false.
pub fn read_stream(stream: SpoolReader, take: &mut dyn FnMut(Step) -> bool) -> Result<()> {
    let mut source = Source::new(stream);
    let mut reader = AofReader::new(&mut source);
    loop {
        let item = reader.next_item().map_err(|fault| anyhow!("the stream of the source {fault}"))?;
        let end = reader.offset();
        match item {
            aof::Item::Requests { requests, .. } => {
                if !take(Step { requests, end, read_at: Instant::now() }) {
                    return Ok(());
                }
            }
            aof::Item::Time(_) => {}
            aof::Item::End { .. } => return Ok(()),
        }
    }
}

/// A line now and then.
pub struct Report {
    is_quiet: bool,
    is_terminal: bool,
    told: Instant,
    requests: u64,
    lag_max_ms: u64,
}

impl Report {
    pub fn new(is_quiet: bool) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { is_quiet, is_terminal, told: Instant::now(), requests: 0, lag_max_ms: 0 }
    }

    /// So many requests were carried out; so many bytes wait on disk.
    pub fn note(&mut self, count: u64, lag_ms: u64, waiting_bytes: u64, record: &Record) {
        self.requests += count;
        self.lag_max_ms = self.lag_max_ms.max(lag_ms);
        let interval = if self.is_terminal { RECORD_INTERVAL } else { REPORT_INTERVAL };
        if self.is_quiet || self.told.elapsed() < interval {
            return;
        }
        let rate = self.requests as f64 / self.told.elapsed().as_secs_f64();
        let line = format!(
            "following: offset {}, {} requests/s, at most {} ms behind, {} wait",
            record.offset,
            grouped(rate as u64),
            self.lag_max_ms,
            bytes(waiting_bytes)
        );
        if self.is_terminal {
            crate::output::note(format_args!("\r\x1b[2K{line}"));
        } else {
            note_line!("{line}");
        }
        (self.told, self.requests, self.lag_max_ms) = (Instant::now(), 0, 0);
    }
}

/// A name for a process that writes to a target, which no other has.
pub fn writer_name() -> String {
    format!("{}-{}-{}", std::process::id(), now_ms(), hostname())
}

fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}
