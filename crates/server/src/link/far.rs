//! The far end: keeps on disk what comes over the line, and is what the far Redis replicates from.
//!
//! It has the copy and the stream behind it on its own disk, so a far Redis that restarts, or comes with nothing, is
//! served from here and costs the line nothing. Only what is not here is asked of the near end.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::End;
use super::fault::on_disk;
use super::history::{Copy, Ids, State, copy_path};
use super::line::{Begin, Message, Progress, Receiver, Sender, Want};
use super::store::Store;

/// How often the near end hears something.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// After so many bytes of a copy its place is made durable, and after so long.
const COPY_SYNC_BYTES: u64 = 16 << 20;
const COPY_SYNC_INTERVAL: Duration = Duration::from_millis(500);

/// One that a Redis follows.
pub struct Far {
    directory: PathBuf,
    pub store: Store,
    pub state: Mutex<FarState>,
    pub changed: Condvar,
    near_end: AtomicU64,
    is_source_there: AtomicBool,
    received_bytes: AtomicU64,
    copies: AtomicU64,
    pub replica_cuts: AtomicU64,
}

#[derive(Default)]
pub struct FarState {
    /// None as long as there is no stream, or its copy is not whole.
    pub ids: Option<Ids>,
    pub copy: Option<Copy>,
    copy_ids: Option<Ids>,
    /// Counts streams that do not go on from the one before.
    pub epoch: u64,
    /// What a Redis has asked for as long as there is nothing.
    pub ask: Option<Want>,
    /// A Redis needs a copy that is not here.
    pub needs_copy: bool,
    /// The near end sends what it was asked for.
    is_served: bool,
    /// Up to where each Redis that follows has carried the stream out.
    pub replicas: BTreeMap<u64, u64>,
    /// Of the slowest, when there was one last.
    applied: u64,
    session: u64,
    pub replica_fault: String,
}

impl FarState {
    /// What to ask the near end for.
    fn want(&self, end: u64) -> Option<Want> {
        if self.needs_copy {
            return Some(Want::Copy);
        }
        if self.is_served {
            return None;
        }
        match (&self.copy, &self.ids) {
            (Some(copy), None) => Some(Want::RestOfCopy(copy.number, copy.bytes)),
            (_, Some(ids)) => Some(Want::Stream(ids.id.clone(), end)),
            (None, None) => self.ask.clone(),
        }
    }
}

/// A copy that is being written.
struct Writing {
    file: File,
    synced: u64,
    synced_at: Instant,
}

impl Far {
    /// The far end with its files in this directory.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn open(directory: PathBuf, bytes_max: u64) -> Result<Self> {
        let state = State::read(&directory)?;
        let store = Store::open(&directory, bytes_max).with_context(|| directory.display().to_string())?;
        let (start, end) = store.range();
        match (&state.ids, &state.copy) {
            (Some(_), _) => end_log!("continues at byte {end}; bytes from {start} on are on disk"),
            (None, Some(copy)) => end_log!("continues a copy at its byte {}", copy.bytes),
            (None, None) => end_log!("is empty, and waits for a Redis that is told to replicate from it (REPLICAOF)"),
        }
        let State { ids, copy, copy_ids } = state;
        let state = FarState { ids, copy, copy_ids, ..FarState::default() };
        Ok(Self {
            directory,
            store,
            state: Mutex::new(state),
            changed: Condvar::new(),
            near_end: AtomicU64::new(0),
            is_source_there: AtomicBool::new(false),
            received_bytes: AtomicU64::new(0),
            copies: AtomicU64::new(0),
            replica_cuts: AtomicU64::new(0),
        })
    }

    pub fn lock(&self) -> MutexGuard<'_, FarState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn save(&self, state: &FarState) -> Result<()> {
        let (ids, copy, copy_ids) = (state.ids.clone(), state.copy.clone(), state.copy_ids.clone());
        on_disk(State { ids, copy, copy_ids }.write(&self.directory))
    }

    fn disk<T>(&self, done: std::io::Result<T>) -> Result<T> {
        on_disk(done.with_context(|| self.directory.display().to_string()))
    }

    /// A Redis has carried the stream out up to here.
    pub fn note_applied(&self, replica: u64, offset: u64) {
        let mut state = self.lock();
        if state.replicas.get(&replica).is_some_and(|before| offset > *before) {
            state.replicas.insert(replica, offset);
            drop(state);
            self.changed.notify_all();
        }
    }

    fn progress(&self, state: &mut FarState) -> Progress {
        if let Some(applied) = state.replicas.values().min() {
            state.applied = *applied;
        }
        Progress {
            kept: if state.ids.is_some() { self.store.synced() } else { 0 },
            applied: state.applied,
            replicas: state.replicas.len() as u32,
            is_copied: state.ids.is_some(),
        }
    }

    /// Tells the near end what is needed and how far this end is, until the connection is over.
    fn tell(&self, sender: &mut Sender, session: u64) -> Result<()> {
        let (mut asked, mut told, mut told_at) = (None, None, Instant::now());
        loop {
            let mut state = self.lock();
            ensure!(state.session == session, "another near end has taken its place");
            let want = state.want(self.store.range().1);
            let progress = self.progress(&mut state);
            let is_asking = want.is_some() && want != asked;
            if !is_asking && told == Some(progress) && told_at.elapsed() < PROGRESS_INTERVAL {
                drop(self.changed.wait_timeout(state, Duration::from_millis(50)));
                continue;
            }
            drop(state);
            if let Some(want) = want.clone().filter(|_| is_asking) {
                sender.send(&Message::Want(want)).context("the line is cut")?;
            }
            asked = want;
            sender.send(&Message::Progress(progress)).and_then(|()| sender.flush()).context("the line is cut")?;
            (told, told_at) = (Some(progress), Instant::now());
        }
    }

    fn hear(&self, receiver: &mut Receiver, session: u64) -> Result<()> {
        let mut writing = None;
        let heard = self.hear_into(receiver, session, &mut writing);
        if let Some(writing) = writing {
            // The next connection, or the next process, goes on from here.
            let state = self.lock();
            if state.session == session {
                self.disk(writing.file.sync_data())?;
                self.save(&state)?;
            }
        }
        heard
    }

    fn hear_into(&self, receiver: &mut Receiver, session: u64, writing: &mut Option<Writing>) -> Result<()> {
        loop {
            let message = receiver.receive()?;
            ensure!(self.lock().session == session, "another near end has taken its place");
            match message {
                Message::Begin(begin) => *writing = self.begin(begin)?,
                Message::Copy(place, bytes) => {
                    let writing = writing.as_mut().context("the near end sends a copy that it has not begun")?;
                    self.write_copy(writing, place, &bytes)?;
                }
                Message::CopyEnd(total) => {
                    let writing = writing.take().context("the near end ends a copy that it has not begun")?;
                    self.end_copy(&writing, total)?;
                }
                Message::Stream(place, bytes) => {
                    ensure!(self.lock().ids.is_some(), "the near end sends a stream that it has not begun");
                    let (_, end) = self.store.range();
                    ensure!(place == end, "the near end sends byte {place} of the stream instead of {end}");
                    self.disk(self.store.append(&bytes))?;
                    self.received_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                }
                Message::Ids(ids) => self.rename(ids)?,
                Message::Heartbeat { end, is_source_there } => {
                    self.near_end.store(end, Ordering::Relaxed);
                    self.is_source_there.store(is_source_there, Ordering::Relaxed);
                }
                other => bail!("the near end says what only a far end says: {other:?}"),
            }
        }
    }

    fn begin(&self, begin: Begin) -> Result<Option<Writing>> {
        let mut state = self.lock();
        let path = copy_path(&self.directory);
        let Some((number, there)) = begin.copy else {
            if state.ids.is_none() {
                // A Redis has asked for this place: it has all that comes before.
                ensure!(state.copy.is_none(), "the near end forgets the copy");
                self.disk(self.store.reset(begin.offset))?;
                state.epoch += 1;
            }
            let (_, end) = self.store.range();
            ensure!(begin.offset == end, "the near end begins at byte {} instead of {end}", begin.offset);
            end_log!("the stream {} goes on at byte {end}", begin.ids.id);
            if state.ids.as_ref() != Some(&begin.ids) {
                state.ids = Some(begin.ids);
                self.save(&state)?;
            }
            state.is_served = true;
            drop(state);
            self.changed.notify_all();
            return Ok(None);
        };
        let partial = state.copy.as_ref().filter(|copy| !copy.is_whole && copy.number == number);
        let goes_on = there > 0;
        ensure!(!goes_on || partial.is_some_and(|copy| copy.bytes >= there), "the near end skips some of a copy");
        if goes_on {
            end_log!("the copy goes on at its byte {there}");
        } else {
            end_log!(
                "a copy of everything comes, and the stream {} behind it from byte {} on",
                begin.ids.id,
                begin.offset
            );
            self.copies.fetch_add(1, Ordering::Relaxed);
            // A Redis may be reading the former one.
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => self.disk(Err(error))?,
                _ => {}
            }
        }
        let mut file = self.disk(OpenOptions::new().create(true).truncate(false).write(true).open(path))?;
        self.disk(file.set_len(there))?;
        self.disk(file.seek(SeekFrom::Start(there)))?;
        if state.ids.is_some() || !goes_on {
            state.epoch += 1;
        }
        state.applied = 0;
        (state.ids, state.copy_ids, state.needs_copy, state.is_served) = (None, Some(begin.ids), false, true);
        state.copy = Some(Copy { number, offset: begin.offset, bytes: there, is_whole: false });
        self.save(&state)?;
        drop(state);
        self.changed.notify_all();
        Ok(Some(Writing { file, synced: there, synced_at: Instant::now() }))
    }

    fn write_copy(&self, writing: &mut Writing, place: u64, bytes: &[u8]) -> Result<()> {
        let mut state = self.lock();
        let copy = state.copy.as_mut().context("the near end sends a copy that it has not begun")?;
        ensure!(copy.bytes == place, "the near end sends byte {place} of the copy instead of {}", copy.bytes);
        self.disk(writing.file.write_all(bytes))?;
        copy.bytes += bytes.len() as u64;
        let at = copy.bytes;
        if at - writing.synced >= COPY_SYNC_BYTES || writing.synced_at.elapsed() >= COPY_SYNC_INTERVAL {
            self.disk(writing.file.sync_data())?;
            self.save(&state)?;
            (writing.synced, writing.synced_at) = (at, Instant::now());
        }
        Ok(())
    }

    fn end_copy(&self, writing: &Writing, total: u64) -> Result<()> {
        let mut state = self.lock();
        let ids = state.copy_ids.take();
        let copy = state.copy.as_mut().context("the near end ends a copy that it has not begun")?;
        ensure!(copy.bytes == total, "the near end ends a copy of {} bytes at {total}", copy.bytes);
        let offset = copy.offset;
        self.disk(writing.file.sync_all())?;
        copy.is_whole = true;
        self.disk(self.store.reset(offset))?;
        state.ids = ids;
        self.save(&state)?;
        end_log!("the copy of {total} bytes is on disk");
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    fn rename(&self, ids: Ids) -> Result<()> {
        let mut state = self.lock();
        ensure!(state.ids.is_some(), "the near end renames a stream that it has not begun");
        end_log!("the near Redis has failed over: the stream is called {} now", ids.id);
        state.ids = Some(ids);
        self.save(&state)?;
        drop(state);
        self.changed.notify_all();
        Ok(())
    }
}

impl End for Far {
    fn begin_session(&self) -> u64 {
        let mut state = self.lock();
        state.session += 1;
        state.is_served = false;
        state.session
    }

    fn session(
        &self,
        number: u64,
        mut sender: Sender,
        mut receiver: Receiver,
        hang_up: &(dyn Fn() + Sync),
    ) -> Result<()> {
        thread::scope(|scope| {
            let telling = scope.spawn(move || {
                let told = self.tell(&mut sender, number);
                hang_up();
                told
            });
            let heard = self.hear(&mut receiver, number);
            hang_up();
            let mut state = self.lock();
            if state.session == number {
                // Anyone who tells ends when it sees that.
                state.session += 1;
            }
            drop(state);
            self.changed.notify_all();
            let told = telling.join().expect("a thread that does not panic");
            heard.and(told)
        })
    }

    fn sync(&self) -> Result<()> {
        self.disk(self.store.sync())?;
        self.changed.notify_all();
        let mut state = self.lock();
        let is_stale = |copy: &Copy| copy.is_whole && !self.store.reaches(copy.offset);
        if state.ids.is_some() && state.copy.as_ref().is_some_and(is_stale) {
            end_log!("the copy is removed: the stream behind it is no longer there");
            state.copy = None;
            self.save(&state)?;
            self.disk(fs::remove_file(copy_path(&self.directory)))?;
        }
        Ok(())
    }

    fn measure(&self) -> super::status::Measured {
        let mut state = self.lock();
        let (start, end) = self.store.range();
        let progress = self.progress(&mut state);
        let (file_bytes, bytes_max) = self.store.used_bytes();
        super::status::Measured {
            role: "far",
            stream: state.ids.as_ref().map(|ids| ids.id.clone()),
            start,
            end,
            kept: progress.kept,
            applied: progress.applied,
            is_progress_known: state.ids.is_some(),
            lag: Duration::ZERO,
            file_bytes,
            bytes_max,
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            copy_bytes: state.copy.as_ref().map_or(0, |copy| copy.bytes),
            copy_done_bytes: state.copy.as_ref().map_or(0, |copy| copy.bytes),
            copies: self.copies.load(Ordering::Relaxed),
            is_redis_there: !state.replicas.is_empty(),
            redis_cuts: self.replica_cuts.load(Ordering::Relaxed),
            redis_fault: state.replica_fault.clone(),
            replicas: state.replicas.len() as u64,
        }
    }
}
