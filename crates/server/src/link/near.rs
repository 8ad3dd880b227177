//! The near end: reads all that the near Redis sends, as fast as it comes, keeps it on disk, and sends it over the line
//! as fast as that takes it.
//!
//! The two have nothing to do with each other but the disk between them, so a line that is slow or cut costs the near
//! Redis no memory. What the near Redis is told as acknowledged is what the far Redis has carried out.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::End;
use super::fault::{is_of_disk, on_disk};
use super::history::{Copy, Ids, State, copy_path};
use super::lag::Marks;
use super::line::{Begin, Message, PIECE_BYTES, Progress, Receiver, Sender, Want};
use super::source::{Answer, Feed};
use super::store::{Found, Store};
use crate::migrate::source::Address;

/// The source is told at least so often how far it is.
const ACKNOWLEDGE_INTERVAL: Duration = Duration::from_secs(1);

/// And at most so often.
const ACKNOWLEDGE_PAUSE: Duration = Duration::from_millis(10);

/// How often the other end hears something.
const PULSE_INTERVAL: Duration = Duration::from_secs(1);

/// Longest wait that does not look at what else has happened.
const GLANCE: Duration = Duration::from_millis(100);

/// Between attempts to reach a source.
const SOURCE_RETRY_MIN: Duration = Duration::from_millis(100);
const SOURCE_RETRY_MAX: Duration = Duration::from_secs(5);

/// One that follows a Redis.
pub struct Near {
    directory: PathBuf,
    store: Store,
    addresses: Vec<Address>,
    /// What is there is collected for so long before it is sent.
    batch: Duration,
    state: Mutex<NearState>,
    changed: Condvar,
    marks: Mutex<Marks>,
    /// What the far Redis has carried out, as far as known.
    applied: AtomicU64,
    kept: AtomicU64,
    replicas: AtomicU64,
    is_source_there: AtomicBool,
    /// The far end has said how far it is with this stream.
    is_progress_known: AtomicBool,
    source_cuts: AtomicU64,
    copies: AtomicU64,
    received_bytes: AtomicU64,
    copy_sent_bytes: AtomicU64,
}

#[derive(Default)]
struct NearState {
    ids: Option<Ids>,
    copy: Option<Copy>,
    /// Counts streams that do not go on from the one before.
    epoch: u64,
    /// What to ask the source for as long as there is no stream.
    ask: Option<Option<(String, u64)>>,
    /// The source must be left, and asked as above.
    is_given_up: bool,
    /// The connection that is served.
    session: u64,
    source_fault: String,
}

/// What the connection to the far end has heard.
#[derive(Default)]
struct Desk {
    want: Option<Want>,
    fault: Option<anyhow::Error>,
}

impl Near {
    /// The near end with its files in this directory.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn open(directory: PathBuf, bytes_max: u64, addresses: Vec<Address>, batch: Duration) -> Result<Self> {
        let mut state = State::read(&directory)?;
        let store = Store::open(&directory, bytes_max).with_context(|| directory.display().to_string())?;
        if state.copy.as_ref().is_some_and(|copy| !copy.is_whole) {
            // The source does not go on with a copy that it has begun.
            state = State::default();
        }
        let (start, end) = store.range();
        if state.ids.is_some() {
            end_log!("continues at byte {end}; bytes from {start} on are on disk");
        }
        let inner = NearState { ids: state.ids, copy: state.copy, ..NearState::default() };
        let near = Self {
            directory,
            store,
            addresses,
            batch,
            state: Mutex::new(inner),
            changed: Condvar::new(),
            marks: Mutex::default(),
            applied: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            replicas: AtomicU64::new(0),
            is_source_there: AtomicBool::new(false),
            is_progress_known: AtomicBool::new(false),
            source_cuts: AtomicU64::new(0),
            copies: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            copy_sent_bytes: AtomicU64::new(0),
        };
        if end > start {
            near.note_mark(end);
        }
        Ok(near)
    }

    fn lock(&self) -> MutexGuard<'_, NearState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_mark(&self, end: u64) {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner).note(end);
    }

    fn save(&self, state: &NearState) -> Result<()> {
        State { ids: state.ids.clone(), copy: state.copy.clone(), copy_ids: None }.write(&self.directory)
    }

    /// Follows the source without end.
    ///
    /// # Errors
    /// Those of the disk: everything else is tried again.
    pub fn follow(&self) -> Result<()> {
        let (mut retry, mut refusals) = (SOURCE_RETRY_MIN, 0);
        for address in self.addresses.iter().cycle() {
            let behind = self.place_to_ask();
            let has_history = self.lock().ids.is_some();
            let opened = Feed::open(address, behind.as_ref().map(|(id, offset)| (id.as_str(), *offset)));
            let fault = match opened {
                // Another one may be able to go on where this one is not.
                Ok((_, Answer::Copy { .. })) if has_history && refusals + 1 < self.addresses.len() => {
                    refusals += 1;
                    anyhow::anyhow!(
                        "{} cannot continue from byte {}",
                        address.place,
                        behind.map_or(0, |(_, offset)| offset)
                    )
                }
                Ok((feed, answer)) => {
                    (retry, refusals) = (SOURCE_RETRY_MIN, 0);
                    match self.take(feed, answer, behind, &address.place) {
                        Err(error) if is_of_disk(&error) => return Err(error),
                        Err(error) => error,
                        Ok(()) => continue,
                    }
                }
                Err(error) => error,
            };
            self.is_source_there.store(false, Ordering::Relaxed);
            self.source_cuts.fetch_add(1, Ordering::Relaxed);
            let text = format!("{fault:#}");
            let mut state = self.lock();
            if state.source_fault != text {
                end_log!("{text}; tries again until it works");
            }
            state.source_fault = text;
            drop(state);
            thread::sleep(retry);
            retry = (retry * 2).min(SOURCE_RETRY_MAX);
        }
        bail!("there is no source")
    }

    /// The place to ask the source for; waits until there is something to ask for.
    fn place_to_ask(&self) -> Option<(String, u64)> {
        let mut state = self.lock();
        state.is_given_up = false;
        loop {
            if let Some(ids) = &state.ids {
                return Some((ids.id.clone(), self.store.range().1));
            }
            if let Some(ask) = state.ask.clone() {
                return ask;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes what a source sends until it is gone or given up.
    fn take(&self, mut feed: Feed, answer: Answer, behind: Option<(String, u64)>, place: &str) -> Result<()> {
        match answer {
            Answer::Stream { id } => {
                let (asked, offset) = behind.context("the near Redis continues what was not begun")?;
                let mut state = self.lock();
                let before = state.ids.clone();
                let ids = before.clone().unwrap_or_else(|| Ids::new(&asked));
                let ids = id.map_or_else(|| ids.clone(), |id| ids.renamed(&id, offset));
                if before.is_none() {
                    self.disk(self.store.reset(offset))?;
                    state.epoch += 1;
                }
                if before.as_ref() != Some(&ids) {
                    state.ids = Some(ids.clone());
                    on_disk(self.save(&state))?;
                }
                end_log!("{place} continues its stream {} at byte {offset}", ids.id);
            }
            Answer::Copy { id, offset } => self.take_copy(&mut feed, &id, offset, place)?,
        }
        self.lock().source_fault.clear();
        self.is_source_there.store(true, Ordering::Relaxed);
        self.changed.notify_all();
        self.take_stream(&mut feed)
    }

    fn take_copy(&self, feed: &mut Feed, id: &str, offset: u64, place: &str) -> Result<()> {
        end_log!("{place} sends a copy of everything, and its stream {id} from byte {offset} on");
        let path = copy_path(&self.directory);
        let mut state = self.lock();
        // Nothing of what was there before is of use, and a crash must not leave halves of two streams.
        on_disk(State::default().write(&self.directory))?;
        self.disk(self.store.reset(offset))?;
        // The line may still be sending the former one.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => self.disk(Err(error))?,
            _ => {}
        }
        let mut file = self.disk(File::create(&path))?;
        self.applied.store(0, Ordering::Relaxed);
        self.is_progress_known.store(false, Ordering::Relaxed);
        state.epoch += 1;
        state.ids = Some(Ids::new(id));
        let number = self.disk(edge::random_id())?;
        state.copy = Some(Copy { number, offset, bytes: 0, is_whole: false });
        drop(state);
        self.copies.fetch_add(1, Ordering::Relaxed);
        self.is_source_there.store(true, Ordering::Relaxed);
        self.changed.notify_all();
        let taken = feed.copy(|bytes| {
            self.disk(file.write_all(bytes))?;
            let mut state = self.lock();
            ensure!(!state.is_given_up, "the copy is given up");
            if let Some(copy) = &mut state.copy {
                copy.bytes += bytes.len() as u64;
            }
            drop(state);
            self.changed.notify_all();
            Ok(())
        });
        let mut state = self.lock();
        if let Err(error) = taken {
            // It does not go on with a copy that was cut.
            (state.ids, state.copy) = (None, None);
            state.ask = Some(None);
            state.epoch += 1;
            return Err(error);
        }
        self.disk(file.sync_all())?;
        if let Some(copy) = &mut state.copy {
            copy.is_whole = true;
            end_log!("the copy of {} bytes is on disk", copy.bytes);
        }
        on_disk(self.save(&state))
    }

    fn take_stream(&self, feed: &mut Feed) -> Result<()> {
        let (mut told, mut told_at) = (u64::MAX, Instant::now());
        loop {
            let bytes = feed.read()?;
            if !bytes.is_empty() {
                self.disk(self.store.append(bytes))?;
                self.received_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            }
            let end = self.store.range().1;
            self.note_mark(end);
            if self.lock().is_given_up {
                return Ok(());
            }
            let applied = self.applied.load(Ordering::Relaxed);
            let since = told_at.elapsed();
            if told == u64::MAX || (applied != told && since >= ACKNOWLEDGE_PAUSE) || since >= ACKNOWLEDGE_INTERVAL {
                feed.acknowledge(applied)?;
                (told, told_at) = (applied, Instant::now());
            }
        }
    }

    fn disk<T>(&self, done: std::io::Result<T>) -> Result<T> {
        on_disk(done.with_context(|| self.directory.display().to_string()))
    }

    /// What the far end gets: where it begins, and the number of the stream. Waits until that is known.
    fn decide(&self, sender: &mut Sender, desk: &Mutex<Desk>, session: u64) -> Result<(Begin, u64)> {
        let (mut want, mut pulsed) = (None, Instant::now());
        loop {
            self.check(desk, session)?;
            if let Some(new) = desk.lock().unwrap_or_else(PoisonError::into_inner).want.take() {
                want = Some(new);
            }
            if let Some(want) = &want {
                let mut state = self.lock();
                if let Some(begin) = self.answer(&mut state, want) {
                    return Ok((begin, state.epoch));
                }
                self.changed.notify_all();
            }
            if pulsed.elapsed() >= PULSE_INTERVAL {
                pulsed = Instant::now();
                self.heartbeat(sender)?;
            }
            drop(self.changed.wait_timeout(self.lock(), GLANCE));
        }
    }

    /// What a wish gets, if anything yet; otherwise the source is asked for what is missing.
    fn answer(&self, state: &mut NearState, want: &Want) -> Option<Begin> {
        let Some(ids) = state.ids.clone() else {
            let ask = match want {
                Want::Stream(id, offset) => Some((id.clone(), *offset)),
                _ => None,
            };
            state.ask.get_or_insert(ask);
            return None;
        };
        let (_, end) = self.store.range();
        match want {
            Want::Stream(id, offset) if ids.covers(id, *offset) && self.store.reaches(*offset) => {
                return Some(Begin { ids, offset: *offset, copy: None });
            }
            // The end of what was received was lost with the machine, and the source has it still: it will come.
            Want::Stream(id, offset) if ids.covers(id, *offset) && *offset > end => return None,
            _ => {}
        }
        if let Some(copy) = state.copy.as_ref().filter(|copy| self.store.reaches(copy.offset)) {
            let there = match want {
                Want::RestOfCopy(number, bytes) if *number == copy.number && *bytes <= copy.bytes => *bytes,
                _ => 0,
            };
            return Some(Begin { ids, offset: copy.offset, copy: Some((copy.number, there)) });
        }
        self.give_up(state, "the far end needs what is no longer here");
        None
    }

    /// Begins again with a copy.
    fn give_up(&self, state: &mut NearState, why: &str) {
        end_log!("{why}: the near Redis is asked for a copy of everything");
        (state.ids, state.copy, state.ask, state.is_given_up) = (None, None, Some(None), true);
        state.epoch += 1;
    }

    fn heartbeat(&self, sender: &mut Sender) -> Result<()> {
        let (end, is_source_there) = (self.store.range().1, self.is_source_there.load(Ordering::Relaxed));
        sender.send(&Message::Heartbeat { end, is_source_there }).context("the line is cut")?;
        sender.flush().context("the line is cut")
    }

    /// Ends what is done for a connection that is over.
    fn check(&self, desk: &Mutex<Desk>, session: u64) -> Result<()> {
        if let Some(fault) = desk.lock().unwrap_or_else(PoisonError::into_inner).fault.take() {
            return Err(fault);
        }
        ensure!(self.lock().session == session, "another far end has taken its place");
        Ok(())
    }

    fn send_all(&self, sender: &mut Sender, desk: &Mutex<Desk>, session: u64) -> Result<()> {
        loop {
            let (begin, epoch) = self.decide(sender, desk, session)?;
            let offset = begin.offset;
            match begin.copy {
                None => end_log!("the far end gets the stream from byte {offset} on"),
                Some((_, there)) => {
                    end_log!(
                        "the far end gets the copy from its byte {there} on, and the stream from byte {offset} on"
                    );
                }
            }
            let copy = begin.copy;
            sender.send(&Message::Begin(begin)).and_then(|()| sender.flush()).context("the line is cut")?;
            if let Some((_, there)) = copy
                && !self.send_copy(sender, desk, session, epoch, there)?
            {
                continue;
            }
            self.send_stream(sender, desk, session, epoch, offset)?;
        }
    }

    /// True if something else must be sent.
    fn is_changed(&self, desk: &Mutex<Desk>, epoch: u64) -> bool {
        self.lock().epoch != epoch || desk.lock().unwrap_or_else(PoisonError::into_inner).want.is_some()
    }

    /// True if all of it has been sent.
    fn send_copy(&self, sender: &mut Sender, desk: &Mutex<Desk>, session: u64, epoch: u64, from: u64) -> Result<bool> {
        let file = File::open(copy_path(&self.directory)).context("the copy cannot be read")?;
        let (mut at, mut pulsed) = (from, Instant::now());
        loop {
            self.check(desk, session)?;
            if self.is_changed(desk, epoch) {
                ensure!(self.lock().epoch == epoch, "the copy of the near Redis was cut, and begins again");
                return Ok(false);
            }
            let Some(copy) = self.lock().copy.clone() else { bail!("the copy is no longer there") };
            if at < copy.bytes {
                let mut bytes = vec![0; usize::try_from(copy.bytes - at).unwrap_or(usize::MAX).min(PIECE_BYTES)];
                file.read_exact_at(&mut bytes, at).context("the copy cannot be read")?;
                let length = bytes.len() as u64;
                sender.send(&Message::Copy(at, bytes)).and_then(|()| sender.flush()).context("the line is cut")?;
                at += length;
                self.copy_sent_bytes.store(at, Ordering::Relaxed);
            } else if copy.is_whole {
                sender.send(&Message::CopyEnd(at)).and_then(|()| sender.flush()).context("the line is cut")?;
                return Ok(true);
            } else {
                drop(self.changed.wait_timeout(self.lock(), GLANCE));
            }
            if pulsed.elapsed() >= PULSE_INTERVAL {
                pulsed = Instant::now();
                self.heartbeat(sender)?;
            }
        }
    }

    /// Sends the stream until something else must be sent.
    fn send_stream(&self, sender: &mut Sender, desk: &Mutex<Desk>, session: u64, epoch: u64, from: u64) -> Result<()> {
        let mut at = from;
        let mut ids = self.lock().ids.clone();
        let (mut pulsed, mut sent) = (Instant::now(), Instant::now());
        loop {
            self.check(desk, session)?;
            if self.is_changed(desk, epoch) {
                ensure!(self.lock().epoch == epoch, "the stream of the near Redis begins again");
                return Ok(());
            }
            let now = self.lock().ids.clone();
            if let Some(now) = now.filter(|now| ids.as_ref() != Some(now)) {
                sender.send(&Message::Ids(now.clone())).and_then(|()| sender.flush()).context("the line is cut")?;
                ids = Some(now);
            }
            if pulsed.elapsed() >= PULSE_INTERVAL {
                pulsed = Instant::now();
                self.heartbeat(sender)?;
            }
            // Little at a time is hard to compress; much is not made to wait.
            let rest = self.batch.saturating_sub(sent.elapsed());
            if self.store.range().1.saturating_sub(at) < PIECE_BYTES as u64 && !rest.is_zero() {
                thread::sleep(rest.min(GLANCE));
                continue;
            }
            let mut bytes = Vec::new();
            let found = self.store.read(at, PIECE_BYTES, &mut bytes).inspect_err(|error| {
                if error.kind() == ErrorKind::InvalidData {
                    self.give_up(&mut self.lock(), &error.to_string());
                }
            });
            match found? {
                Found::Gone => {
                    bail!(
                        "the backlog is exhausted: byte {at} of the stream is no longer there, and the far end needs a copy"
                    )
                }
                Found::Bytes(0) => self.store.wait(at, GLANCE),
                Found::Bytes(_) => {
                    for bytes in bytes.chunks(PIECE_BYTES) {
                        sender.send(&Message::Stream(at, bytes.to_vec())).context("the line is cut")?;
                        at += bytes.len() as u64;
                    }
                    sender.flush().context("the line is cut")?;
                    sent = Instant::now();
                }
            }
        }
    }

    fn hear(&self, receiver: &mut Receiver, desk: &Mutex<Desk>) -> Result<()> {
        loop {
            match receiver.receive()? {
                Message::Want(want) => {
                    desk.lock().unwrap_or_else(PoisonError::into_inner).want = Some(want);
                    self.changed.notify_all();
                }
                Message::Progress(progress) => self.note_progress(progress)?,
                other => bail!("the far end says what only a near end says: {other:?}"),
            }
        }
    }

    fn note_progress(&self, progress: Progress) -> Result<()> {
        let (_, end) = self.store.range();
        // It may have more than was synced here before the machine lost its power, but not for the near Redis to see.
        self.applied.store(progress.applied.min(end), Ordering::Relaxed);
        self.kept.store(progress.kept.min(end), Ordering::Relaxed);
        self.replicas.store(progress.replicas.into(), Ordering::Relaxed);
        self.is_progress_known.store(progress.is_copied, Ordering::Relaxed);
        let mut state = self.lock();
        let is_done = |copy: &Copy| copy.is_whole && progress.is_copied && progress.kept >= copy.offset;
        if state.copy.as_ref().is_some_and(is_done) {
            end_log!("the far end has the copy: it is removed here");
            self.drop_copy(&mut state)?;
        }
        Ok(())
    }

    fn drop_copy(&self, state: &mut NearState) -> Result<()> {
        state.copy = None;
        on_disk(self.save(state))?;
        self.disk(fs::remove_file(copy_path(&self.directory)))
    }
}

impl End for Near {
    fn begin_session(&self) -> u64 {
        let mut state = self.lock();
        state.session += 1;
        state.session
    }

    fn session(
        &self,
        number: u64,
        mut sender: Sender,
        mut receiver: Receiver,
        hang_up: &(dyn Fn() + Sync),
    ) -> Result<()> {
        let desk = Mutex::new(Desk::default());
        thread::scope(|scope| {
            scope.spawn(|| {
                let fault = self.hear(&mut receiver, &desk).err();
                desk.lock().unwrap_or_else(PoisonError::into_inner).fault = fault;
                hang_up();
                self.changed.notify_all();
            });
            let ended = self.send_all(&mut sender, &desk, number);
            hang_up();
            ended
        })
    }

    fn sync(&self) -> Result<()> {
        self.disk(self.store.sync())?;
        let mut state = self.lock();
        let is_stale = |copy: &Copy| copy.is_whole && !self.store.reaches(copy.offset);
        if state.copy.as_ref().is_some_and(is_stale) {
            end_log!("the copy is removed: the stream behind it is no longer there");
            self.drop_copy(&mut state)?;
        }
        Ok(())
    }

    fn measure(&self) -> super::status::Measured {
        let (start, end) = self.store.range();
        let (applied, kept) = (self.applied.load(Ordering::Relaxed), self.kept.load(Ordering::Relaxed));
        let state = self.lock();
        let lag = self.marks.lock().unwrap_or_else(PoisonError::into_inner).lag(applied);
        let (file_bytes, bytes_max) = self.store.used_bytes();
        super::status::Measured {
            role: "near",
            stream: state.ids.as_ref().map(|ids| ids.id.clone()),
            start,
            end,
            kept,
            applied,
            is_progress_known: self.is_progress_known.load(Ordering::Relaxed),
            lag,
            file_bytes,
            bytes_max,
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            copy_bytes: state.copy.as_ref().map_or(0, |copy| copy.bytes),
            copy_done_bytes: if state.copy.is_some() { self.copy_sent_bytes.load(Ordering::Relaxed) } else { 0 },
            copies: self.copies.load(Ordering::Relaxed),
            is_redis_there: self.is_source_there.load(Ordering::Relaxed),
            redis_cuts: self.source_cuts.load(Ordering::Relaxed),
            redis_fault: state.source_fault.clone(),
            replicas: self.replicas.load(Ordering::Relaxed),
        }
    }
}
