//! Replicas of other kinds: a stock Redis that says `REPLICAOF` to this node, `redis-cli --rdb`, and their like.
//!
//! ```text
//!   cores ── tapes ──▶ merge ──▶ backlog (disk) ──▶ links to followers
//!                        ▲                              ▲
//!                        └──────── cut ──── copy ───────┘   a backup of our own, as an RDB file (disk)
//! ```
//!
//! A core hands its groups' tapes over before it answers the one who asked for the changes, and does no more than that:
//! one thread brings them together, keeps the end of the stream on disk, and writes to followers what they take.
//! Nothing waits in memory for a follower; what waits to be brought together is bounded, and if it is too much the
//! stream ends and followers take a new copy. While nobody has followed for a while nothing is told, kept or written.
//!
//! A stream goes on after a restart of the node: what is told again of it is left out.

mod backlog;
pub(crate) mod copy;
mod follower;
mod merge;
mod resume;
mod waiting;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use journal::Identity;
use mio::{Events, Poll, Token, Waker};
use node::event::{Event, Follower, FollowersRequest, Following};
use node::settings::Settings;
use node::{Reader, Tape};

use crate::connection::Stream;
use crate::host::Host;
use crate::limits::{
    COPY_RETRY, FOLLOWER_CONSOLE, FOLLOWER_PIECE_BYTES, FOLLOWERS_MAX, STREAM_KEPT_PATIENCE, STREAM_UNFOLLOWED_MAX,
    STREAM_WAITING_BYTES_MAX, STREAM_WAITING_MAX,
};
use crate::mailbox::Mail;
use backlog::Backlog;
use copy::Copy;
use follower::Link;
use merge::Merger;
pub(crate) use merge::tape_bytes;
use waiting::Waiting;

const WAKE: Token = Token(usize::MAX);

/// How other threads reach the one that leads.
pub struct Lead {
    words: Sender<Word>,
    waker: Waker,
    is_parked: AtomicBool,
    /// Bytes of tapes that have not been taken yet.
    told_bytes: AtomicUsize,
    /// Tapes have been dropped, and the thread has not heard of it yet.
    has_dropped: AtomicBool,
    /// There is a stream with which another process may go on.
    has_stream: AtomicBool,
    knobs: Knobs,
    report: Mutex<Following>,
}

/// Settings, as configured last.
struct Knobs {
    backlog_bytes: AtomicU64,
    /// Seconds without followers after which the stream ends; 0 is never.
    ttl_s: AtomicU64,
    ping_s: AtomicU64,
    timeout_s: AtomicU64,
    rdb_version: AtomicU64,
    /// How long replicas that lack something are waited for at the end.
    shutdown_s: AtomicU64,
}

/// What the thread is told.
enum Word {
    Tape(Tape),
    /// So much was told that some of it was dropped.
    Dropped,
    Follow(Box<(Stream, Follower)>),
    /// Somebody waits until followers have something.
    Await(Box<FollowersRequest>),
    /// Somebody waits until the stream has what was told before.
    Keep(Sender<()>),
    /// The copy of this number was cut at these places of the groups' logs, or why it was not.
    Begun(u64, Result<Vec<u64>, String>),
    /// It is there, or why it is not.
    Copied(u64, Result<Copy, String>),
    End,
}

/// What the thread is made of.
pub struct Prepared {
    poll: Poll,
    words: Receiver<Word>,
}

/// Makes both ends.
///
/// # Errors
/// Those of epoll.
pub fn prepare(settings: &Settings) -> io::Result<(Lead, Prepared)> {
    let poll = Poll::new()?;
    let waker = Waker::new(poll.registry(), WAKE)?;
    let (told, words) = mpsc::channel();
    let number = |name| AtomicU64::new(settings.get(name).parse().unwrap_or_default());
    let knobs = Knobs {
        backlog_bytes: number("repl-backlog-size"),
        ttl_s: number("repl-backlog-ttl"),
        ping_s: number("repl-ping-replica-period"),
        timeout_s: number("repl-timeout"),
        rdb_version: number("replica-rdb-version"),
        shutdown_s: number("shutdown-timeout"),
    };
    let lead = Lead {
        words: told,
        waker,
        is_parked: AtomicBool::new(false),
        told_bytes: AtomicUsize::new(0),
        has_dropped: AtomicBool::new(false),
        has_stream: AtomicBool::new(false),
        knobs,
        report: Mutex::default(),
    };
    Ok((lead, Prepared { poll, words }))
}

impl Lead {
    fn tell(&self, word: Word) {
        // At the end of the process nobody listens.
        let _ = self.words.send(word);
        if self.is_parked.swap(false, Ordering::AcqRel) {
            // An eventfd write fails only if its counter is full, and then the wake-up is already due.
            let _ = self.waker.wake();
        }
    }

    /// A group has done something.
    pub fn hear(&self, tape: Tape) {
        let bytes = tape_bytes(&tape);
        if self.told_bytes.fetch_add(bytes, Ordering::AcqRel) + bytes <= STREAM_WAITING_BYTES_MAX {
            return self.tell(Word::Tape(tape));
        }
        self.told_bytes.fetch_sub(bytes, Ordering::AcqRel);
        // Once is enough: what is dropped until the thread hears of it, was done before it starts over.
        if !self.has_dropped.swap(true, Ordering::AcqRel) {
            self.tell(Word::Dropped);
        }
    }

    /// Somebody wants to be told what changes.
    pub fn follow(&self, stream: Stream, follower: Follower) {
        self.tell(Word::Follow(Box::new((stream, follower))));
    }

    /// Somebody waits until followers have something.
    pub fn await_followers(&self, request: FollowersRequest) {
        self.tell(Word::Await(Box::new(request)));
    }

    /// A checkpoint is about to take the place of log: the stream must have what the log has done before, or it cannot
    /// go on after a restart. That is not worth more than a short wait.
    pub fn wait_until_kept(&self) {
        if !self.has_stream.load(Ordering::Acquire) {
            return;
        }
        let (told, done) = mpsc::channel();
        self.tell(Word::Keep(told));
        // If nobody answers, the next start finds out what is missing.
        let _ = done.recv_timeout(STREAM_KEPT_PATIENCE);
    }

    /// A parameter has been changed.
    pub fn configure(&self, name: &str, value: u64) {
        let knob = match name {
            "repl-backlog-size" => &self.knobs.backlog_bytes,
            "repl-backlog-ttl" => &self.knobs.ttl_s,
            "repl-ping-replica-period" => &self.knobs.ping_s,
            "repl-timeout" => &self.knobs.timeout_s,
            "replica-rdb-version" => &self.knobs.rdb_version,
            "shutdown-timeout" => &self.knobs.shutdown_s,
            _ => return,
        };
        knob.store(value, Ordering::Relaxed);
    }

    /// Who follows, and how far they are.
    pub fn report(&self) -> Following {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replicas that lack something are not waited for at the end.
    pub fn wait_for_nobody(&self) {
        self.knobs.shutdown_s.store(0, Ordering::Relaxed);
    }

    fn shutdown_s(&self) -> u64 {
        self.knobs.shutdown_s.load(Ordering::Relaxed)
    }

    /// Ends the thread, after what was told before has been written to followers as far as they take it.
    pub fn end(&self) {
        self.tell(Word::End);
    }
}

/// The thread that leads replicas of other kinds.
pub struct Leading {
    host: Arc<Host>,
    poll: Poll,
    words: Receiver<Word>,
    directory: PathBuf,
    identity: Identity,
    merger: Merger,
    /// The reader that cores record their work for, if they have been asked to.
    recording: Option<Reader>,
    stream: Option<LivingStream>,
    links: BTreeMap<usize, Link>,
    waiting: Vec<Waiting>,
    /// Who waits until the stream has what groups had done up to these places.
    keepers: Vec<(Sender<()>, Vec<u64>)>,
    next_token: usize,
    copying: Copying,
    /// Of the copy that was begun last.
    copy_number: u64,
    /// A copy that is there before the stream has come to its place.
    early: Option<Copy>,
    /// The first word to look at.
    first_word: Option<Word>,
    /// No copy begins before.
    copy_at: Instant,
    /// Since when nobody has followed.
    alone_since: Instant,
    /// Since when something waits for parts that do not come.
    waits_since: Option<Instant>,
    consoled: Instant,
    counts: Counts,
    buffer: Box<[u8]>,
    ends: bool,
}

/// A stream that has a name, and can be followed.
struct LivingStream {
    id: String,
    backlog: Backlog,
    /// It is not on record yet what was last put into it.
    is_new: bool,
    /// Somebody has followed it, and not only taken a copy.
    is_followed: bool,
    /// When something was last put into it.
    fed: Instant,
    /// Behind the last change: what comes behind it asks after replicas, and changes nothing. None until the first copy
    /// was cut: what was done before is in that copy, and nobody has any of it yet.
    told: Option<u64>,
}

/// How far a copy is.
#[derive(Debug, PartialEq, Eq)]
enum Copying {
    /// There is none.
    None,
    /// Groups are being cut, and nothing is taken meanwhile.
    Beginning,
    /// Groups were cut, and the stream has not come to that place.
    Cutting,
    /// It is being written.
    Reading,
}

#[derive(Debug, Default)]
struct Counts {
    copies: u64,
    continued: u64,
    refused: u64,
}

/// The first of Valkey that has deadlines of fields of hashes.
const VALKEY_WITH_EXPIRING_FIELDS: u32 = 9;

/// Why a follower of this version, if it has told one, cannot read what is written for such a reader. None if it can,
/// as far as one can tell.
fn why_unread(version: Option<&str>, wants_copy_only: bool, reader: Reader) -> Option<String> {
    let unread = reader.rdb_version();
    let Some(version) = version else {
        // A Redis tells no version, and would lose its data. What wants a copy only has none to lose.
        let is_lost = reader == Reader::Valkey9 && !wants_copy_only;
        return is_lost.then(|| {
            format!(
                "a server that tells no version, such as a Redis, cannot read RDB version {unread}: \
                 replica-rdb-version must be 10, or 12 from Redis 7.4 on"
            )
        });
    };
    let major = version.split('.').next().and_then(|number| number.parse::<u32>().ok()).unwrap_or(0);
    if reader < Reader::Redis74 || reader == Reader::Valkey9 && major >= VALKEY_WITH_EXPIRING_FIELDS {
        return None;
    }
    let wanted = if major >= VALKEY_WITH_EXPIRING_FIELDS { "10 or 80" } else { "10" };
    Some(format!("a Valkey ({version}) cannot read RDB version {unread}: replica-rdb-version must be {wanted}"))
}

/// Turns away a follower that cannot read what is written for such a reader. False if it can.
fn turns_away(link: &mut Link, reader: Reader, log: &crate::log::Log) -> bool {
    let Some(why) = why_unread(link.version(), link.wants_copy_only(), reader) else { return false };
    link.turn_away(&why);
    log.warning(&format!("replica {} is turned away: {why}", link.name()));
    true
}

impl Leading {
    /// The thread of such a node. Cores must not have begun to load anything yet: if there is a stream that goes on,
    /// they tell all that they do.
    pub fn new(host: Arc<Host>, prepared: Prepared, directory: &Path, identity: Identity) -> Self {
        let now = Instant::now();
        let mut this = Self {
            host,
            poll: prepared.poll,
            words: prepared.words,
            directory: directory.to_owned(),
            identity,
            merger: Merger::new(identity.group_count as usize),
            recording: None,
            stream: None,
            links: BTreeMap::new(),
            waiting: Vec::new(),
            keepers: Vec::new(),
            next_token: 0,
            copying: Copying::None,
            copy_number: 0,
            early: None,
            first_word: None,
            copy_at: now,
            alone_since: now,
            waits_since: None,
            consoled: now,
            counts: Counts::default(),
            buffer: vec![0; FOLLOWER_PIECE_BYTES].into_boxed_slice(),
            ends: false,
        };
        this.go_on();
        this
    }

    /// Goes on with the stream that an earlier process has left, if there is one.
    fn go_on(&mut self) {
        let found = match Backlog::reopen(&self.directory, &self.identity) {
            // What cores tell is for another cluster.
            _ if self.host.site.is_on() => Ok(None),
            Ok(Some(backlog)) if backlog.about().reader != self.wanted_reader() => {
                Err("replica-rdb-version is another one".to_owned())
            }
            Ok(Some(backlog)) => {
                let progress = backlog.about().progress.as_deref().unwrap_or_default();
                let merger = resume::take(progress, self.identity.group_count as usize);
                merger.map(|merger| Some((backlog, merger))).ok_or_else(|| "its state cannot be read".to_owned())
            }
            Ok(None) => Ok(None),
            Err(why) => Err(why),
        };
        match found {
            Ok(Some((backlog, merger))) => {
                let (id, told, end) = (backlog.about().id.clone(), backlog.about().told, backlog.end());
                self.log().notice(&format!("the stream {id} for replicas goes on at byte {end}"));
                self.record(Some(backlog.about().reader));
                self.merger = merger;
                self.stream =
                    Some(LivingStream { id, backlog, is_new: false, is_followed: true, fed: Instant::now(), told });
                self.host.lead.has_stream.store(true, Ordering::Release);
                return;
            }
            Ok(None) => {}
            Err(why) => self.log().notice(&format!("the stream for replicas does not go on: {why}")),
        }
        if let Err(error) = backlog::discard(&self.directory) {
            self.log().warning(&format!("what is left of the stream for replicas cannot be removed: {error}"));
        }
    }

    /// Works until it is told to end.
    pub fn run(mut self) {
        let mut events = Events::with_capacity(FOLLOWERS_MAX);
        let mut more = false;
        match self.stream.as_mut().map(|stream| stream.backlog.is_sound()) {
            None | Some(Ok(true)) => {}
            Some(Ok(false)) => self.break_stream("its file is damaged"),
            Some(Err(error)) => self.break_stream(&format!("its file cannot be read: {error}")),
        }
        while !self.ends {
            let timeout = self.timeout(more);
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != io::ErrorKind::Interrupted
            {
                panic!("epoll_wait on a descriptor that is ours: {error}");
            }
            self.host.lead.is_parked.store(false, Ordering::Release);
            for event in &events {
                if let Some(link) = self.links.get_mut(&event.token().0) {
                    link.note_edge(event);
                }
            }
            while let Some(word) = self.first_word.take().or_else(|| self.words.try_recv().ok()) {
                self.hear(word);
            }
            self.take_steps();
            self.pass_time();
            self.ask_followers();
            self.keep();
            more = self.serve();
            self.answer_waiting();
            self.tell();
        }
        self.part();
        self.leave_stream();
    }

    /// Puts on record what is in the stream, before anyone is sent it; tells those who wait for that.
    fn keep(&mut self) {
        if let Some(stream) = self.stream.as_mut().filter(|stream| stream.is_new) {
            stream.is_new = false;
            let mut progress = Vec::new();
            // A stream of which nobody has a copy yet is of no use to another process.
            let can_go_on = stream.told.is_some() && resume::put(&self.merger, &mut progress);
            if let Err(error) = stream.backlog.keep(stream.told, can_go_on.then_some(progress)) {
                self.break_stream(&format!("it cannot be written to disk: {error}"));
            }
        }
        self.host.lead.has_stream.store(self.stream.is_some(), Ordering::Release);
        // While a copy begins nothing is taken, and the copy may wait for the one who waits here.
        let is_held = self.stream.is_none() || matches!(self.copying, Copying::Beginning | Copying::Cutting);
        let merger = &self.merger;
        self.keepers.retain(|(keeper, places)| {
            let is_done = is_held || merger.has_taken_done(places);
            if is_done {
                // It may have lost its patience.
                let _ = keeper.send(());
            }
            !is_done
        });
    }

    /// Leaves the stream to the next process.
    fn leave_stream(&mut self) {
        self.keep();
        let Some(stream) = self.stream.take() else { return };
        if let Err(error) = stream.backlog.close() {
            self.log().warning(&format!("the stream {} ends, as it cannot be written to disk: {error}", stream.id));
        }
    }

    /// How long the next wait may last; announces a sleep to those who tell something.
    fn timeout(&mut self, more: bool) -> Option<Duration> {
        if more {
            return Some(Duration::ZERO);
        }
        self.host.lead.is_parked.store(true, Ordering::SeqCst);
        // Somebody may have told something before it knew of the sleep.
        self.first_word = self.words.try_recv().ok();
        if self.first_word.is_some() {
            return Some(Duration::ZERO);
        }
        let is_at_work = self.recording.is_some() || !self.links.is_empty() || !self.waiting.is_empty();
        let pause = if self.copying == Copying::None { FOLLOWER_CONSOLE } else { COPY_RETRY };
        let until = self.waiting.iter().map(|waiting| waiting.until).min();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        is_at_work.then_some(left.map_or(pause, |left| left.min(pause)))
    }

    fn log(&self) -> &crate::log::Log {
        &self.host.log
    }

    fn hear(&mut self, word: Word) {
        match word {
            Word::Tape(tape) => {
                self.host.lead.told_bytes.fetch_sub(tape_bytes(&tape), Ordering::AcqRel);
                if self.recording.is_some()
                    && let Err(why) = self.merger.push(tape)
                {
                    self.break_stream(why);
                }
            }
            Word::Dropped => {
                self.host.lead.has_dropped.store(false, Ordering::Release);
                self.break_stream("more has changed than could be written in time");
            }
            Word::Follow(newcomer) => self.welcome(newcomer.0, newcomer.1),
            Word::Await(request) => self.wait_for_followers(*request),
            Word::Keep(keeper) => self.keepers.push((keeper, self.merger.places())),
            // Of a copy that was given up nobody wants to hear.
            Word::Begun(number, begun) if number == self.copy_number => self.copy_begun(begun),
            Word::Copied(number, copied) if number == self.copy_number => self.copy_ended(copied),
            Word::Begun(..) | Word::Copied(..) => {}
            Word::End => self.ends = true,
        }
    }

    fn welcome(&mut self, stream: Stream, follower: Follower) {
        let mut link = Link::new(stream, follower);
        let name = link.name();
        if self.links.len() >= FOLLOWERS_MAX {
            return self.log().warning(&format!("replica {name} is turned away: there are {FOLLOWERS_MAX} already"));
        }
        if turns_away(&mut link, self.wanted_reader(), self.log()) {
            return;
        }
        let token = self.next_token;
        if let Err(error) = link.register(self.poll.registry(), Token(token)) {
            return self.log().warning(&format!("replica {name} cannot be watched, and is turned away: {error}"));
        }
        self.next_token += 1;
        let goes_on = match (&self.stream, link.wanted()) {
            (Some(stream), Some((id, wanted))) if id.eq_ignore_ascii_case(&stream.id) => {
                // It counts from one.
                wanted.checked_sub(1).filter(|offset| stream.backlog.reaches(*offset))
            }
            _ => None,
        };
        match (goes_on, &self.stream) {
            (Some(offset), Some(stream)) => {
                self.log().notice(&format!("replica {name} goes on at byte {offset} of stream {}", stream.id));
                link.go_on(&stream.id, offset);
                self.counts.continued += 1;
            }
            _ => {
                self.counts.refused += u64::from(link.wanted().is_some());
                self.log().notice(&format!("replica {name} gets a copy"));
            }
        }
        self.links.insert(token, link);
    }

    /// All who follow must take a new copy: something is missing in the stream.
    fn break_stream(&mut self, why: &str) {
        self.merger.clear();
        self.waits_since = None;
        (self.copying, self.early) = (Copying::None, None);
        // What comes of a copy under way is of no use.
        self.copy_number += 1;
        if let Some(stream) = self.stream.take() {
            self.log().warning(&format!("the stream {} ends: {why}; its replicas take a new copy", stream.id));
            self.remove(stream);
        }
        self.links.retain(|_, link| link.is_waiting());
        self.forget_targets();
    }

    /// Removes the files of a stream that has ended.
    fn remove(&self, stream: LivingStream) {
        if let Err(error) = stream.backlog.end_it() {
            self.log().warning(&format!("what is left of the stream {} cannot be removed: {error}", stream.id));
        }
    }

    /// Asks cores to tell what they do, or to stop telling.
    fn record(&mut self, reader: Option<Reader>) {
        self.recording = reader;
        self.merger.forget();
        for desk in &self.host.desks {
            desk.mailbox.post(Mail::Event(Event::Record(reader)));
        }
    }

    fn wanted_reader(&self) -> Reader {
        match self.host.lead.knobs.rdb_version.load(Ordering::Relaxed) {
            9 => Reader::Redis5,
            12 => Reader::Redis74,
            80 => Reader::Valkey9,
            _ => Reader::Redis7,
        }
    }

    /// Puts into the stream what can be.
    fn take_steps(&mut self) {
        let mut out = Vec::new();
        self.merger.take(&mut out);
        self.tell_changes(&out);
        if self.copying == Copying::Cutting && self.merger.take_cut() {
            self.copying = Copying::Reading;
            let stream = self.stream.as_mut().expect("it was made when the copy began");
            stream.told.get_or_insert(stream.backlog.end());
            stream.is_new = true;
            for link in self.links.values_mut() {
                link.be_cut(&stream.id, stream.backlog.end());
            }
            out.clear();
            self.merger.take(&mut out);
            self.tell_changes(&out);
            if let Some(copy) = self.early.take() {
                self.copy_ended(Ok(copy));
            }
        }
        if !self.merger.is_waiting() {
            self.waits_since = None;
        } else if self.waits_since.get_or_insert_with(Instant::now).elapsed() > STREAM_WAITING_MAX {
            self.break_stream("parts of a transaction have not come");
        } else if self.merger.waiting_bytes() > STREAM_WAITING_BYTES_MAX {
            self.break_stream("too much waits for parts of a transaction");
        }
    }

    /// Puts changes into the stream.
    fn tell_changes(&mut self, bytes: &[u8]) {
        self.feed(bytes);
        if let Some(stream) = self.stream.as_mut().filter(|_| !bytes.is_empty()) {
            stream.told = Some(stream.backlog.end());
        }
    }

    fn feed(&mut self, bytes: &[u8]) {
        let Some(stream) = self.stream.as_mut().filter(|_| !bytes.is_empty()) else { return };
        (stream.fed, stream.is_new) = (Instant::now(), true);
        if let Err(error) = stream.backlog.append(bytes) {
            self.break_stream(&format!("it cannot be written to disk: {error}"));
        }
    }

    /// What is due.
    fn pass_time(&mut self) {
        let now = Instant::now();
        if self.consoled.elapsed() >= FOLLOWER_CONSOLE {
            self.consoled = now;
            self.links.values_mut().for_each(Link::console);
        }
        if !self.links.is_empty() {
            self.alone_since = now;
        }
        let knobs = &self.host.lead.knobs;
        let (ttl_s, ping_s) = (knobs.ttl_s.load(Ordering::Relaxed), knobs.ping_s.load(Ordering::Relaxed));
        if let Some(stream) = &mut self.stream {
            stream.is_followed |= self.links.values().any(Link::is_to_acknowledge);
        }
        // Who has only taken a copy does not come back for the rest.
        let is_followed = self.stream.as_ref().is_some_and(|stream| stream.is_followed);
        let ttl = Duration::from_secs(ttl_s).min(if is_followed { Duration::MAX } else { STREAM_UNFOLLOWED_MAX });
        let is_over = ttl_s > 0 && self.alone_since.elapsed() >= ttl;
        if self.recording.is_some() && is_over {
            let s = ttl.as_secs();
            self.log().notice(&format!("no replica has come for {s} s (repl-backlog-ttl): the stream ends"));
            if let Some(stream) = self.stream.take() {
                self.remove(stream);
            }
            self.record(None);
        }
        let is_silent =
            self.stream.as_ref().is_some_and(|stream| stream.fed.elapsed() >= Duration::from_secs(ping_s.max(1)));
        if is_silent && !self.links.is_empty() && self.copying != Copying::Cutting {
            let mut ping = Vec::new();
            resp::encode_request(&mut ping, &["PING"]);
            self.feed(&ping);
        }
        self.begin_copy(now);
    }

    /// Begins a copy if somebody waits for one.
    fn begin_copy(&mut self, now: Instant) {
        if self.copying != Copying::None || now < self.copy_at || !self.links.values().any(Link::is_waiting) {
            return;
        }
        let reader = self.wanted_reader();
        // The parameter may have been changed while they waited.
        let log = &self.host.log;
        self.links.retain(|_, link| !link.is_waiting() || !turns_away(link, reader, log));
        if self.recording != Some(reader) {
            self.break_stream("replica-rdb-version was changed");
            return self.record(Some(reader));
        }
        if !self.merger.has_heard_all() {
            return; // cores are asked, or are still loading
        }
        let size = self.host.lead.knobs.backlog_bytes.load(Ordering::Relaxed);
        if self.stream.is_none() {
            let made = crate::entropy::random_hex::<20>().and_then(|id| {
                let backlog = Backlog::new(&self.directory, &self.identity, (id.clone(), reader), size)?;
                Ok(LivingStream { id, backlog, is_new: true, is_followed: false, fed: now, told: None })
            });
            match made {
                Ok(stream) => self.stream = Some(stream),
                Err(error) => {
                    self.copy_at = now + COPY_RETRY * 10;
                    return self.log().warning(&format!("replicas get no stream, as there is no file for it: {error}"));
                }
            }
        }
        self.copy_number += 1;
        let number = self.copy_number;
        let (begun, copied) = (Arc::clone(&self.host), Arc::clone(&self.host));
        let started = copy::start(
            &self.host,
            &self.directory,
            reader,
            move |places| begun.lead.tell(Word::Begun(number, places)),
            move |copy| copied.lead.tell(Word::Copied(number, copy)),
        );
        match started {
            Ok(()) => {
                self.copying = Copying::Beginning;
                self.merger.freeze();
            }
            Err(error) => {
                self.copy_at = now + COPY_RETRY * 10;
                self.log().warning(&format!("replicas get no copy, as there is no thread for it: {error}"));
            }
        }
    }

    fn copy_begun(&mut self, begun: Result<Vec<u64>, String>) {
        if self.copying != Copying::Beginning {
            return; // the stream for which it was begun has ended
        }
        match begun {
            Ok(places) if self.merger.cut(&places) => self.copying = Copying::Cutting,
            Ok(_) => self.give_copy_up("groups were cut before the beginning of the stream"),
            Err(why) => self.give_copy_up(&why),
        }
    }

    fn give_copy_up(&mut self, why: &str) {
        self.copying = Copying::None;
        self.copy_at = Instant::now() + COPY_RETRY;
        self.merger.thaw();
        let is_patient = ["TRYAGAIN", "LOADING"].iter().any(|word| why.starts_with(word));
        if !is_patient {
            self.log().warning(&format!("a copy for replicas is started over: {why}"));
        }
    }

    fn copy_ended(&mut self, copied: Result<Copy, String>) {
        if !matches!(self.copying, Copying::Cutting | Copying::Reading) {
            return;
        }
        match copied {
            Ok(copy) if self.copying == Copying::Reading => {
                self.log().notice(&format!("a copy for replicas is ready: {} bytes", copy.bytes));
                if copy.left_out > 0 {
                    self.log().warning(&format!(
                        "{} keys are not in the copy for replicas: their types (JSON, sketches, vector sets) are those of modules",
                        copy.left_out
                    ));
                }
                if copy.without_deadlines > 0 {
                    self.log().warning(&format!(
                        "{} hashes are in the copy for replicas without the deadlines of their fields: Redis has these \
                         from 7.4 on (replica-rdb-version 12), and Valkey from 9.0 on (80)",
                        copy.without_deadlines
                    ));
                }
                self.counts.copies += 1;
                self.copying = Copying::None;
                let copy = Arc::new(copy);
                self.links.values_mut().for_each(|link| link.send_copy(&copy));
            }
            Ok(copy) => self.early = Some(copy),
            Err(why) => {
                self.give_copy_up(&why);
                self.links.retain(|_, link| link.lose_copy());
            }
        }
    }

    /// Hears followers, and writes to them what they take. True if there is more to do at once.
    fn serve(&mut self) -> bool {
        let backlog = self.stream.as_ref().map(|stream| &stream.backlog);
        let end = backlog.map_or(0, Backlog::end);
        let timeout = Duration::from_secs(self.host.lead.knobs.timeout_s.load(Ordering::Relaxed).max(1));
        let mut more = false;
        let mut gone = Vec::new();
        for (token, link) in &mut self.links {
            let served = link
                .hear(end, &mut self.buffer)
                .and_then(|hears_more| Ok(link.flush(backlog, &mut self.buffer)? | hears_more));
            match served {
                Ok(is_more) => more |= is_more,
                Err(why) => gone.push((*token, why)),
            }
            if link.is_done() {
                gone.push((*token, follower::DONE.to_owned()));
            }
            if link.is_to_acknowledge() && link.heard.elapsed() > timeout {
                gone.push((*token, "it has acknowledged nothing for repl-timeout seconds".to_owned()));
            }
        }
        for (token, why) in gone {
            if let Some(link) = self.links.remove(&token) {
                let line = format!("replica {} is let go: {why}", link.name());
                if why == follower::DONE { self.log().notice(&line) } else { self.log().warning(&line) }
            }
        }
        more
    }

    fn tell(&self) {
        let stream = self.stream.as_ref();
        let following = Following {
            id: stream.map(|stream| stream.id.clone()).unwrap_or_default(),
            offset: stream.map_or(0, |stream| stream.backlog.end()),
            first: stream.map_or(0, |stream| stream.backlog.begin() + 1),
            kept_bytes_max: stream.map_or(0, |stream| stream.backlog.size()),
            followers: self.links.values().map(Link::report).collect(),
            copy_count: self.counts.copies,
            continued_count: self.counts.continued,
            refused_count: self.counts.refused,
        };
        *self.host.lead.report.lock().unwrap_or_else(PoisonError::into_inner) = following;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_read_what_is_sent_is_told_so_and_keeps_its_data() {
        let is_refused = |version, reader| why_unread(version, false, reader).is_some();
        for reader in [Reader::Redis5, Reader::Redis7] {
            assert!(!is_refused(None, reader) && !is_refused(Some("8.0.1"), reader));
        }
        assert!(!is_refused(None, Reader::Redis74), "most that tell no version are a Redis");
        assert!(is_refused(Some("8.0.1"), Reader::Redis74) && is_refused(Some("9.1.0"), Reader::Redis74));
        assert!(!is_refused(Some("9.0.0"), Reader::Valkey9) && is_refused(Some("8.1.4"), Reader::Valkey9));
        assert!(is_refused(None, Reader::Valkey9));
        assert_eq!(why_unread(None, true, Reader::Valkey9), None, "it has nothing to lose");
    }
}
