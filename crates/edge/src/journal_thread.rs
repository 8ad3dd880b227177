//! The one thread that writes the log, for all cores.
//!
//! It takes whatever the cores have handed in since its last write, writes that as one record, and waits for the disk
//! once for all of it. No timer gathers a batch: while one write is under way, the next batch gathers by itself.
//!
//! Under `appendfsync everysec` and `no` the wait is for the operating system only: what it has taken outlives the
//! process. Another thread syncs it, once a second or after some MiB, so that writes go on meanwhile. And while this
//! thread has nothing else to do, cores write such batches themselves; see `on_core`.
//!
//! The queue is bounded by those who fill it: while too much is waiting, cores read no more from their clients, and so
//! let them feel the disk. They go on with everything else, above all with what other nodes say: a leader that waited
//! would be taken for dead. What comes from other nodes is bounded by the windows of these, since nothing is
//! acknowledged before it is written. Only when the disk is full does nobody hold back, because reads go on: then cores
//! are told to refuse writes, and hand in nothing but what they had admitted.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use journal::{Append, CheckpointMark, Chore, Fault, Journal, LogMap, Syncing};
use stdx::log::HardState;

use crate::disk::RealDisk;

mod on_core;

/// More than this waiting, and cores do not read from their clients. Several turns of large values; a small part of the
/// memory that even a small node has.
const QUEUE_BYTES_MAX: u64 = 64 << 20;

/// How long after a write `everysec` syncs.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// So many bytes that are not synced bring the sync forward, also where syncs are left to the operating system. The end
/// of a segment waits for all of it, and writes wait for that.
const SYNC_BYTES: u64 = 4 << 20;

/// A log that has been at rest for so long is sealed.
const SEAL_AFTER: Duration = Duration::from_millis(20);

/// How often a full disk is tried again.
const FULL_RETRY: Duration = Duration::from_secs(1);

/// Appends are put together into records of at most about this size.
const RECORD_BYTES_MAX: usize = 4 << 20;

/// When the next segment cannot be made for lack of room, writes are refused while there is still so much room in the
/// current one: what has been admitted by then still fits.
const RESERVE_BYTES: u64 = 16 << 20;

/// Rate at which a new segment is filled with zeros, in bytes per second: a segment in a fraction of a second, without
/// taking the disk from the log.
const FILL_RATE: u64 = 256 << 20;

/// What `appendfsync` asks of appends that need not be on disk to be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LazySync {
    /// Synced within about a second.
    EverySecond,
    /// Left to the operating system, but for syncs after so many bytes that the end of a segment holds up no writes: it
    /// must be on disk.
    Never,
}

/// What there is to tell of the log. Anyone who writes it tells, and goes on afterwards, so it must be quick.
pub enum Notice<'a> {
    /// These appends (group, ticket) are as safe as was asked for: durable, or with the system. In order within each
    /// group.
    Persisted(&'a [(u32, u64)]),
    /// The same, told by a core's thread, which has written them. It will see to the cores that it is called to, and
    /// adds their numbers to the list.
    WrittenOnCore(&'a [(u32, u64)], &'a mut Vec<usize>),
    /// [`JournalQueue::is_full`] is false again.
    TakesMore,
    /// Whether there is room for what may be admitted; none comes with the reason. Told when it changes.
    Room(Result<(), String>),
    /// The log cannot be written: what is on disk is unknown. The process must end without another acknowledgement.
    Failed(Fault),
}

/// Receives notices.
pub type Listener = Box<dyn FnMut(Notice<'_>) + Send>;

/// Called when a mark is durable, or cannot be.
pub type MarkDone = Box<dyn FnOnce(Result<(), String>) + Send>;

/// Numbers of the journal. Times in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalCounters {
    /// Writes; each holds all that was waiting.
    pub write_count: u64,
    /// How many of them cores have made themselves.
    pub core_write_count: u64,
    /// Bytes written since the start.
    pub written_bytes: u64,
    /// Syncs, counting durable writes.
    pub sync_count: u64,
    /// Duration of the last sync.
    pub sync_last_us: u64,
    /// Mean duration of a sync.
    pub sync_mean_us: u64,
    /// Longest sync.
    pub sync_max_us: u64,
    /// Appends waiting.
    pub queue_count: u64,
    /// Bytes waiting.
    pub queue_bytes: u64,
    /// Bytes of log that a restart would read.
    pub kept_bytes: u64,
    /// Bytes of log kept only for members that lack them.
    pub held_bytes: u64,
    /// Sequence of the segment being written.
    pub segment: u64,
    /// True if the next segment is prepared.
    pub is_spare_ready: bool,
    /// Prewritten bytes left.
    pub room_bytes: u64,
    /// Age of the oldest write that has not been synced; 0 if there is none.
    pub unsynced_us: u64,
}

/// One core's lane, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Lane {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    appends: Vec<Append>,
    /// One of them must be made durable, and with it all before it.
    needs_sync: bool,
}

#[derive(Default)]
struct Controls {
    waiting: Vec<Control>,
    /// The thread has ended: nobody will take up what is handed in.
    is_closed: bool,
}

enum Control {
    Hold { group: u32, index: u64 },
    HoldForArchive { group: u32, index: u64 },
    Settle,
    Mark { group: u32, mark: CheckpointMark, hard_state: Option<HardState>, done: MarkDone },
    ChoreDone(Chore, Result<(), Fault>),
    Synced(Syncing, Instant, Result<(), Fault>),
    Flush(Sender<()>),
    Stop { may_note: bool, done: Sender<Result<(), Fault>> },
}

/// At work: nobody need wake the thread.
const AWAKE: u8 = 0;
/// Waits for anything.
const PARKED: u8 = 1;

struct Shared {
    lanes: Box<[Lane]>,
    controls: Mutex<Controls>,
    thread: OnceLock<Thread>,
    sleep: AtomicU8,
    /// Appends and controls handed in and not yet taken up.
    waiting: AtomicU64,
    /// Appends have been left of which the thread has not been told.
    has_unannounced: AtomicBool,
    /// Of the appends that have been left, one must be made durable.
    needs_sync: AtomicBool,
    queue_bytes: AtomicU64,
    queue_count: AtomicU64,
    /// What is waiting cannot be written, because the disk is full or the thread has ended.
    is_stalled: AtomicBool,
    is_writing: AtomicBool,
    /// The other thread syncs.
    is_syncing: AtomicBool,
    lazy_sync: AtomicU8,
    begun: Instant,
    write_count: AtomicU64,
    core_write_count: AtomicU64,
    written_bytes: AtomicU64,
    sync_count: AtomicU64,
    sync_last_us: AtomicU64,
    sync_total_us: AtomicU64,
    sync_max_us: AtomicU64,
    /// A mean in which the last ones weigh most.
    sync_usual_us: AtomicU64,
    kept_bytes: AtomicU64,
    held_bytes: AtomicU64,
    /// When what others held was let go last because the disk was full: microseconds from `begun`, plus one; 0 for
    /// never. Stored before it is let go.
    let_go_at: AtomicU64,
    /// Where the log is, for those that read it.
    map: Mutex<Arc<LogMap>>,
    segment: AtomicU64,
    is_spare_ready: AtomicBool,
    room_bytes: AtomicU64,
    /// Microseconds from `begun` to the oldest unsynced write, plus one; 0 if there is none.
    dirty_since: AtomicU64,
}

/// Where cores hand in appends. Clones are handles of the same queue.
#[derive(Clone)]
pub struct JournalQueue {
    shared: Arc<Shared>,
    seat: Seat,
}

/// The thread that holds it writes the log: that of the journal, which releases it while it sleeps, or a core's
/// meanwhile. Empty before the journal's thread has begun, and after it has ended.
type Seat = Arc<Mutex<Option<Writer>>>;

/// The thread, and those that work in the background for it.
pub struct JournalThread {
    queue: JournalQueue,
    writer: JoinHandle<()>,
    keeper: JoinHandle<()>,
    syncer: JoinHandle<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl JournalThread {
    /// Starts the threads. Cores are numbered from 0.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(
        journal: Journal<RealDisk>,
        core_count: usize,
        lazy_sync: LazySync,
        listener: Listener,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            lanes: (0..core_count).map(|_| Lane::default()).collect(),
            controls: Mutex::default(),
            thread: OnceLock::new(),
            sleep: AtomicU8::new(AWAKE),
            waiting: AtomicU64::new(0),
            has_unannounced: AtomicBool::new(false),
            needs_sync: AtomicBool::new(false),
            queue_bytes: AtomicU64::new(0),
            queue_count: AtomicU64::new(0),
            is_stalled: AtomicBool::new(false),
            is_writing: AtomicBool::new(false),
            is_syncing: AtomicBool::new(false),
            lazy_sync: AtomicU8::new(lazy_sync as u8),
            begun: Instant::now(),
            write_count: AtomicU64::new(0),
            core_write_count: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            sync_count: AtomicU64::new(0),
            sync_last_us: AtomicU64::new(0),
            sync_total_us: AtomicU64::new(0),
            sync_max_us: AtomicU64::new(0),
            sync_usual_us: AtomicU64::new(0),
            kept_bytes: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
            let_go_at: AtomicU64::new(0),
            map: Mutex::new(Arc::new(journal.map())),
            segment: AtomicU64::new(0),
            is_spare_ready: AtomicBool::new(false),
            room_bytes: AtomicU64::new(0),
            dirty_since: AtomicU64::new(0),
        });
        let queue = JournalQueue { shared: Arc::clone(&shared), seat: Seat::default() };
        let (chores, chores_wanted) = mpsc::channel();
        let background_disk = journal.disk().with_fill_rate(FILL_RATE);
        let background_queue = queue.clone();
        let keeper = thread::Builder::new()
            .name("keeper".into())
            .spawn(move || keep(&background_disk, &chores_wanted, &background_queue))?;
        let (syncs, syncs_wanted) = mpsc::channel();
        let (sync_disk, sync_queue) = (journal.disk().clone(), queue.clone());
        let syncer =
            thread::Builder::new().name("syncer".into()).spawn(move || sync(&sync_disk, &syncs_wanted, &sync_queue))?;
        let writer = thread::Builder::new().name("journal".into()).spawn({
            let seat = Arc::clone(&queue.seat);
            let writer = Writer::new(shared, journal, listener, chores, syncs);
            move || writer.run(&seat)
        })?;
        queue.shared.thread.get_or_init(|| writer.thread().clone());
        // It may have gone to sleep before it had a name to be woken by.
        writer.thread().unpark();
        Ok(Self { queue, writer, keeper, syncer })
    }

    /// A handle for handing in.
    pub fn queue(&self) -> &JournalQueue {
        &self.queue
    }

    /// Writes and syncs what has been handed in, notes that the process stops in good order if it may, and ends the
    /// threads.
    ///
    /// # Errors
    /// If the log could not be brought to that point.
    pub fn stop(self, may_note: bool) -> Result<(), Fault> {
        let (done, stopped) = mpsc::channel();
        self.queue.control(Control::Stop { may_note, done });
        // No answer means that the thread has failed before, and has told its listener.
        let result = stopped.recv().unwrap_or(Ok(()));
        let is_well = self.writer.join().is_ok() && self.keeper.join().is_ok() && self.syncer.join().is_ok();
        assert!(is_well, "the journal's threads do not panic");
        result
    }
}

impl JournalQueue {
    /// Hands in a turn's appends of a core, in order; those marked `true` are told of when they are durable, the others
    /// when the system has them. Leaves `appends` empty. The thread need not hear of it before
    /// [`JournalQueue::announce_appends`].
    pub fn leave(&self, core: usize, appends: &mut Vec<(Append, bool)>) {
        if appends.is_empty() {
            return;
        }
        let shared = &*self.shared;
        // Counted before the thread can take them up: it would take off what is not on the account yet, and a core that
        // looks just then would find far too much, and wait for what has long been written.
        shared.queue_count.fetch_add(appends.len() as u64, Ordering::Relaxed);
        let bytes = appends.iter().map(|(append, _)| append.weight_bytes() as u64).sum();
        shared.queue_bytes.fetch_add(bytes, Ordering::Relaxed);
        {
            let mut waiting = lock(&shared.lanes[core].waiting);
            for (append, is_synced) in appends.drain(..) {
                waiting.needs_sync |= is_synced;
                waiting.appends.push(append);
            }
            if waiting.needs_sync {
                shared.needs_sync.store(true, Ordering::Relaxed);
            }
        }
        // Last: anyone who finds it set finds the appends.
        shared.has_unannounced.store(true, Ordering::SeqCst);
    }

    /// Wakes the thread for what has been submitted, if it has not taken that up by itself.
    pub fn announce_appends(&self) {
        let has_unannounced = &self.shared.has_unannounced;
        if has_unannounced.load(Ordering::SeqCst) && has_unannounced.swap(false, Ordering::SeqCst) {
            self.announce();
        }
    }

    /// Both at once.
    #[cfg(test)]
    pub fn submit(&self, core: usize, appends: &mut Vec<(Append, bool)>) {
        self.leave(core, appends);
        self.announce_appends();
    }

    /// True while so much is waiting that no more should be admitted. [`Notice::TakesMore`] follows.
    pub fn is_full(&self) -> bool {
        let shared = &*self.shared;
        shared.queue_bytes.load(Ordering::Relaxed) > QUEUE_BYTES_MAX && !shared.is_stalled.load(Ordering::Relaxed)
    }

    /// Hands in a checkpoint's mark: its file is durable and has its name. A leader's comes with a hard state.
    pub fn mark(&self, group: u32, mark: CheckpointMark, hard_state: Option<HardState>, done: MarkDone) {
        self.control(Control::Mark { group, mark, hard_state, done });
    }

    /// Entries of a group behind `index` must be kept for members that lack them.
    pub fn hold(&self, group: u32, index: u64) {
        self.control(Control::Hold { group, index });
    }

    /// Entries of a group behind `index` must be kept because the archive lacks them.
    pub fn hold_for_archive(&self, group: u32, index: u64) {
        self.control(Control::HoldForArchive { group, index });
    }

    /// True if the log has been shortened within this time because the disk was full, though somebody held it.
    pub fn let_go_within(&self, time: Duration) -> bool {
        let at_us = self.shared.let_go_at.load(Ordering::Acquire);
        let ago_us = (self.shared.begun.elapsed().as_micros() as u64).saturating_sub(at_us);
        at_us > 0 && u128::from(ago_us) < time.as_micros()
    }

    /// The end of the log is in question no more.
    pub fn settle(&self) {
        self.control(Control::Settle);
    }

    /// Where the log is.
    pub fn map(&self) -> Arc<LogMap> {
        Arc::clone(&lock(&self.shared.map))
    }

    /// Waits until all that was handed in before is durable, but for what a full disk does not take.
    pub fn flush(&self) {
        let (done, flushed) = mpsc::channel();
        self.control(Control::Flush(done));
        // No answer means that the thread has failed, and has told its listener.
        let _ = flushed.recv();
    }

    /// Changes what is asked for appends that need not be on disk to be acknowledged.
    pub fn set_lazy_sync(&self, lazy_sync: LazySync) {
        self.shared.lazy_sync.store(lazy_sync as u8, Ordering::Relaxed);
        self.announce();
    }

    /// True while the log is being written or synced: others who use the disk should wait.
    pub fn is_writing(&self) -> bool {
        self.shared.is_writing.load(Ordering::Relaxed) || self.shared.is_syncing.load(Ordering::Relaxed)
    }

    /// What has been counted.
    pub fn counters(&self) -> JournalCounters {
        let shared = &*self.shared;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let sync_count = load(&shared.sync_count);
        let now_us = shared.begun.elapsed().as_micros() as u64;
        let dirty_since = load(&shared.dirty_since);
        JournalCounters {
            write_count: load(&shared.write_count),
            core_write_count: load(&shared.core_write_count),
            written_bytes: load(&shared.written_bytes),
            sync_count,
            sync_last_us: load(&shared.sync_last_us),
            sync_mean_us: load(&shared.sync_total_us).checked_div(sync_count).unwrap_or(0),
            sync_max_us: load(&shared.sync_max_us),
            queue_count: load(&shared.queue_count),
            queue_bytes: load(&shared.queue_bytes),
            kept_bytes: load(&shared.kept_bytes),
            held_bytes: load(&shared.held_bytes),
            segment: load(&shared.segment),
            is_spare_ready: shared.is_spare_ready.load(Ordering::Relaxed),
            room_bytes: load(&shared.room_bytes),
            unsynced_us: if dirty_since == 0 { 0 } else { now_us.saturating_sub(dirty_since - 1) },
        }
    }

    fn control(&self, control: Control) {
        let mut controls = lock(&self.shared.controls);
        if controls.is_closed {
            // Dropping it tells anyone who waits for an answer.
            return;
        }
        controls.waiting.push(control);
        drop(controls);
        self.announce();
    }

    /// Says that something was handed in, and wakes the thread if it would not look by itself.
    ///
    /// The thread announces its sleep and then looks at the count; this counts and then looks whether it sleeps. With
    /// all four sequentially consistent, at least one sees the other.
    fn announce(&self) {
        let shared = &*self.shared;
        shared.waiting.fetch_add(1, Ordering::SeqCst);
        if shared.sleep.load(Ordering::SeqCst) == PARKED
            && shared.sleep.swap(AWAKE, Ordering::SeqCst) != AWAKE
            && let Some(thread) = shared.thread.get()
        {
            thread.unpark();
        }
    }
}

/// The background: does chores one after another.
fn keep(disk: &RealDisk, chores: &Receiver<Chore>, queue: &JournalQueue) {
    while let Ok(chore) = chores.recv() {
        let result = chore.run(disk);
        queue.control(Control::ChoreDone(chore, result));
    }
}

/// The other background: syncs what has been written, while the thread writes on.
fn sync(disk: &RealDisk, syncs: &Receiver<(Syncing, Instant)>, queue: &JournalQueue) {
    while let Ok((syncing, begun)) = syncs.recv() {
        let result = syncing.run(disk);
        queue.control(Control::Synced(syncing, begun, result));
    }
}

struct Writer {
    shared: Arc<Shared>,
    journal: Journal<RealDisk>,
    listener: Listener,
    chores: Sender<Chore>,
    is_chore_out: bool,
    syncs: Sender<(Syncing, Instant)>,
    /// Handed in and not yet written.
    appends: VecDeque<Append>,
    /// One of these must be made durable.
    needs_sync: bool,
    /// Those that have not been told of, in order.
    tickets: Vec<(u32, u64)>,
    marks: VecDeque<(u32, CheckpointMark, Option<HardState>, MarkDone)>,
    /// The first of them had no room, and cannot be given up. When to try again.
    marks_wanted_at: Option<Instant>,
    flushes: Vec<Sender<()>>,
    /// To end: whether that may be noted as good order, and who is told.
    stop: Option<(bool, Sender<Result<(), Fault>>)>,
    /// The disk is full, and what is waiting does not fit. When to try again.
    stalled_until: Option<Instant>,
    /// How the disk said so.
    stalled_by: Option<Fault>,
    /// The next segment could not be made for lack of room. When to try again.
    spare_wanted_at: Option<Instant>,
    has_room: bool,
    /// Since when something written is not synced.
    dirty_since: Option<Instant>,
    written_at: Instant,
    record: Vec<Append>,
    /// Of the map that is published.
    map_version: u64,
    /// A core could not write the log.
    failed: Option<Fault>,
    /// A write by a core took long: until then the thread writes.
    cores_wait_until: Option<Instant>,
}

impl Writer {
    fn new(
        shared: Arc<Shared>,
        journal: Journal<RealDisk>,
        listener: Listener,
        chores: Sender<Chore>,
        syncs: Sender<(Syncing, Instant)>,
    ) -> Self {
        Self {
            shared,
            journal,
            listener,
            chores,
            is_chore_out: false,
            syncs,
            appends: VecDeque::new(),
            needs_sync: false,
            tickets: Vec::new(),
            marks: VecDeque::new(),
            marks_wanted_at: None,
            flushes: Vec::new(),
            stop: None,
            stalled_until: None,
            stalled_by: None,
            spare_wanted_at: None,
            has_room: true,
            dirty_since: None,
            written_at: Instant::now(),
            record: Vec::new(),
            map_version: 0,
            failed: None,
            cores_wait_until: None,
        }
    }

    /// The thread: turns and sleeps until it is told to stop, or cannot write.
    fn run(self, seat: &Mutex<Option<Self>>) {
        let shared = Arc::clone(&self.shared);
        *take_seat(seat) = Some(self);
        let (writer, outcome) = loop {
            let until = {
                let mut seat = take_seat(seat);
                let writer = seat.as_mut().expect("only this thread takes it away");
                let outcome = match writer.turn() {
                    Ok(false) => None,
                    Ok(true) => Some(Ok(())),
                    Err(fault) => Some(Err(fault)),
                };
                // Nobody may write behind a failure, nor behind the end: the seat is left empty at once.
                if let Some(outcome) = outcome {
                    break (seat.take().expect("just seen"), outcome);
                }
                writer.next_due()
            };
            sleep(&shared, until);
        };
        writer.end(outcome);
    }

    /// The end of the thread.
    fn end(mut self, outcome: Result<(), Fault>) {
        let shared = Arc::clone(&self.shared);
        self.stall();
        let controls =
            std::mem::replace(&mut *lock(&shared.controls), Controls { waiting: Vec::new(), is_closed: true });
        if let Err(fault) = outcome {
            (self.listener)(Notice::Failed(fault));
            return;
        }
        drop(controls);
        let Some((may_note, done)) = self.stop.take() else { return };
        let outcome = match self.stalled_by.take().filter(|_| !self.appends.is_empty()) {
            Some(fault) => self.journal.sync().and(Err(fault)),
            None if may_note => self.journal.stop().map(drop),
            None => self.journal.sync(),
        };
        // Nobody waits any more if the receiver is gone.
        let _ = done.send(outcome);
    }

    /// Takes up what there is, and writes it. True when it is time to end.
    fn turn(&mut self) -> Result<bool, Fault> {
        if let Some(fault) = self.failed.take() {
            return Err(fault);
        }
        self.collect()?;
        let now = Instant::now();
        let is_stalled = self.stalled_until.is_some_and(|until| now < until);
        if !self.appends.is_empty() && !is_stalled {
            self.shared.is_writing.store(true, Ordering::Relaxed);
            let result = self.write_appends(None);
            self.shared.is_writing.store(false, Ordering::Relaxed);
            result?;
        }
        self.write_marks()?;
        self.sync_if_due()?;
        self.look_after_room()?;
        self.publish();
        self.answer_flushes();
        if self.appends.is_empty() {
            self.stalled_until = None;
        }
        if self.stop.is_some() && !self.is_chore_out && self.has_written_what_it_can() {
            return Ok(true);
        }
        Ok(false)
    }

    fn collect(&mut self) -> Result<(), Fault> {
        self.shared.waiting.store(0, Ordering::SeqCst);
        // Before the appends are taken: what is left meanwhile is announced, if once too often.
        self.shared.has_unannounced.store(false, Ordering::SeqCst);
        // Controls first: what was handed in before one of them is then taken up with it.
        let controls = std::mem::take(&mut lock(&self.shared.controls).waiting);
        self.collect_appends();
        for control in controls {
            match control {
                Control::Mark { group, mark, hard_state, done } => {
                    self.marks.push_back((group, mark, hard_state, done));
                }
                Control::Hold { group, index } => self.journal.hold(group, index),
                Control::HoldForArchive { group, index } => self.journal.hold_for_archive(group, index),
                Control::Settle => self.journal.settle()?,
                Control::Flush(done) => self.flushes.push(done),
                Control::Stop { may_note, done } => {
                    self.stop = Some((may_note, done));
                    // There may be room again: what waits is tried once more.
                    self.stalled_until = None;
                }
                Control::ChoreDone(chore, result) => self.take_chore_back(chore, result)?,
                Control::Synced(syncing, begun, result) => {
                    self.shared.is_syncing.store(false, Ordering::Relaxed);
                    result?;
                    self.journal.end_sync(syncing)?;
                    self.note_sync(begun);
                    self.dirty_since = self.journal.is_dirty().then_some(begun);
                }
            }
        }
        Ok(())
    }

    fn collect_appends(&mut self) {
        self.shared.needs_sync.store(false, Ordering::Relaxed);
        for lane in &self.shared.lanes {
            let mut waiting = lock(&lane.waiting);
            self.tickets.extend(waiting.appends.iter().map(|append| (append.group, append.ticket)));
            self.appends.extend(waiting.appends.drain(..));
            self.needs_sync |= std::mem::take(&mut waiting.needs_sync);
        }
    }

    /// Writes all appends that are waiting, and syncs if one of them must be made durable. A core that does so is
    /// called by the listener to cores that rest.
    fn write_appends(&mut self, mut called: Option<&mut Vec<usize>>) -> Result<(), Fault> {
        while !self.appends.is_empty() {
            let mut bytes = 0;
            while let Some(append) = self.appends.front() {
                let weight = append.weight_bytes();
                if bytes > 0 && bytes + weight > RECORD_BYTES_MAX {
                    break;
                }
                bytes += weight;
                self.record.extend(self.appends.pop_front());
            }
            let is_last = self.appends.is_empty();
            if !self.journal.fits(bytes as u64) {
                self.wait_for_chore()?;
            }
            let begun = Instant::now();
            let is_synced = self.needs_sync && is_last;
            let result =
                if is_synced { self.journal.append_durably(&self.record) } else { self.journal.append(&self.record) };
            match result {
                Ok(()) => {}
                Err(fault) if fault.is_full() => {
                    // Nothing was written; it stays in line.
                    self.let_go();
                    for append in self.record.drain(..).rev() {
                        self.appends.push_front(append);
                    }
                    self.stalled_until = Some(Instant::now() + FULL_RETRY);
                    self.stall();
                    self.tell_room(Err(fault.to_string()));
                    self.stalled_by = Some(fault);
                    return Ok(());
                }
                Err(fault) => return Err(fault),
            }
            self.stalled_until = None;
            self.shared.is_stalled.store(false, Ordering::Relaxed);
            self.written_at = Instant::now();
            self.dirty_since.get_or_insert(begun);
            if is_synced {
                self.needs_sync = false;
                self.note_sync(begun);
            }
            self.shared.write_count.fetch_add(1, Ordering::Relaxed);
            self.shared.queue_count.fetch_sub(self.record.len() as u64, Ordering::Relaxed);
            self.take_off(bytes as u64);
            if is_last {
                (self.listener)(match &mut called {
                    None => Notice::Persisted(&self.tickets),
                    Some(called) => Notice::WrittenOnCore(&self.tickets, called),
                });
                self.tickets.clear();
            }
            // Those who wait have been told before this memory is given back.
            self.record.clear();
        }
        Ok(())
    }

    /// So many bytes do not wait any more.
    ///
    /// # Panics
    /// If they had never been handed in.
    fn take_off(&mut self, bytes: u64) {
        let before = self.shared.queue_bytes.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "{bytes} bytes were taken off an account of {before}");
        if before > QUEUE_BYTES_MAX && before - bytes <= QUEUE_BYTES_MAX {
            (self.listener)(Notice::TakesMore);
        }
    }

    /// What is waiting stays where it is, and nobody must wait for that.
    fn stall(&mut self) {
        self.shared.is_stalled.store(true, Ordering::Relaxed);
        (self.listener)(Notice::TakesMore);
    }

    fn write_marks(&mut self) -> Result<(), Fault> {
        if self.marks_wanted_at.is_some_and(|at| Instant::now() < at) {
            return Ok(());
        }
        self.marks_wanted_at = None;
        while let Some((group, mark, hard_state, done)) = self.marks.pop_front() {
            // What still waits, because the disk is full, needs no writing where the checkpoint covers it; nor where
            // others have replaced it, which it may not outlive.
            let (mut replaced_from, mut gone_bytes) = (u64::MAX, 0);
            for append in self.appends.iter_mut().rev().filter(|append| append.group == group) {
                let before = append.weight_bytes();
                let first = append.entries.first().map_or(u64::MAX, |entry| entry.index);
                append.entries.retain(|entry| entry.index > mark.index && entry.index < replaced_from);
                replaced_from = replaced_from.min(first);
                gone_bytes += before - append.weight_bytes();
            }
            self.take_off(gone_bytes as u64);
            self.wait_for_chore()?;
            match self.journal.install(group, mark.clone(), hard_state) {
                Ok(()) => {
                    self.dirty_since = None;
                    self.stalled_until = None;
                    // It may have freed a segment to be used again.
                    self.spare_wanted_at = self.spare_wanted_at.map(|_| Instant::now());
                    done(Ok(()));
                }
                // A leader's checkpoint is all that its group has: there is no way back.
                Err(fault) if fault.is_full() && hard_state.is_some() => {
                    self.tell_room(Err(fault.to_string()));
                    self.marks.push_front((group, mark, hard_state, done));
                    self.marks_wanted_at = Some(Instant::now() + FULL_RETRY);
                    return Ok(());
                }
                Err(fault) if fault.is_full() => done(Err(fault.to_string())),
                Err(fault) => return Err(fault),
            }
        }
        Ok(())
    }

    fn sync_if_due(&mut self) -> Result<(), Fault> {
        let is_flush = !self.flushes.is_empty() && self.has_written_what_it_can();
        let is_every_second = self.shared.lazy_sync.load(Ordering::Relaxed) == LazySync::EverySecond as u8;
        if self.dirty_since.is_some() && is_flush {
            let begun = Instant::now();
            self.shared.is_writing.store(true, Ordering::Relaxed);
            let result = self.journal.sync();
            self.shared.is_writing.store(false, Ordering::Relaxed);
            result?;
            self.note_sync(begun);
        }
        let is_old = is_every_second && self.dirty_since.is_some_and(|since| since.elapsed() >= SYNC_INTERVAL);
        if (is_old || self.journal.dirty_bytes() >= SYNC_BYTES)
            && !self.shared.is_syncing.load(Ordering::Relaxed)
            && let Some(syncing) = self.journal.begin_sync()
        {
            self.shared.is_syncing.store(true, Ordering::Relaxed);
            self.syncs.send((syncing, Instant::now())).expect("the syncer lives as long as this thread");
        }
        if self.dirty_since.is_none() && self.written_at.elapsed() >= SEAL_AFTER && !self.journal.is_sealed() {
            self.journal.seal()?;
        }
        Ok(())
    }

    /// What cannot be written for now is not waited for: the disk may stay full.
    fn has_written_what_it_can(&self) -> bool {
        self.appends.is_empty() || self.stalled_until.is_some()
    }

    fn answer_flushes(&mut self) {
        if self.has_written_what_it_can() {
            for flush in self.flushes.drain(..) {
                // The one who asked may be gone.
                let _ = flush.send(());
            }
        }
    }

    fn note_sync(&mut self, begun: Instant) {
        self.dirty_since = None;
        let duration_us = begun.elapsed().as_micros() as u64;
        self.shared.sync_count.fetch_add(1, Ordering::Relaxed);
        self.shared.sync_last_us.store(duration_us, Ordering::Relaxed);
        self.shared.sync_total_us.fetch_add(duration_us, Ordering::Relaxed);
        self.shared.sync_max_us.fetch_max(duration_us, Ordering::Relaxed);
        let usual_us = self.shared.sync_usual_us.load(Ordering::Relaxed);
        let usual_us = if usual_us == 0 { duration_us } else { (usual_us * 15 + duration_us + 8) / 16 };
        self.shared.sync_usual_us.store(usual_us.max(1), Ordering::Relaxed);
    }

    /// Gives work to the background, and tells cores when the room is about to run out, or is back.
    fn look_after_room(&mut self) -> Result<(), Fault> {
        let may_ask = self.spare_wanted_at.is_none_or(|at| at <= Instant::now());
        if !self.is_chore_out
            && self.stop.is_none()
            && may_ask
            && let Some(chore) = self.journal.chore()
        {
            self.is_chore_out = true;
            self.chores.send(chore).expect("the keeper lives as long as this thread");
        }
        let is_short = self.spare_wanted_at.is_some()
            && !self.journal.is_spare_ready()
            && self.journal.room_bytes() < RESERVE_BYTES + self.shared.queue_bytes.load(Ordering::Relaxed);
        if is_short && self.has_room {
            self.tell_room(Err("no room on the disk for the next log segment".to_owned()));
        } else if !is_short && self.stalled_until.is_none() && self.marks_wanted_at.is_none() {
            self.tell_room(Ok(()));
        }
        Ok(())
    }

    fn tell_room(&mut self, room: Result<(), String>) {
        if self.has_room != room.is_ok() {
            self.has_room = room.is_ok();
            (self.listener)(Notice::Room(room));
        }
    }

    /// Keeps nothing for others any more, because the disk is full.
    fn let_go(&mut self) {
        let since_us = self.shared.begun.elapsed().as_micros() as u64 + 1;
        self.shared.let_go_at.store(since_us, Ordering::Release);
        self.journal.let_go();
    }

    fn take_chore_back(&mut self, chore: Chore, result: Result<(), Fault>) -> Result<(), Fault> {
        self.is_chore_out = false;
        match self.journal.chore_done(chore, result) {
            Ok(()) => {
                self.spare_wanted_at = None;
                self.stalled_until = None;
                Ok(())
            }
            Err(fault) if fault.is_full() => {
                // What is kept for others makes room first, and then there may be some at once.
                let is_freed = self.journal.held_bytes() > 0;
                self.let_go();
                self.spare_wanted_at = Some(if is_freed { Instant::now() } else { Instant::now() + FULL_RETRY });
                Ok(())
            }
            Err(fault) => Err(fault),
        }
    }

    /// Waits for the background, if it is at work: what comes next may need what it makes.
    fn wait_for_chore(&mut self) -> Result<(), Fault> {
        while self.is_chore_out {
            let done = {
                let waiting = &mut lock(&self.shared.controls).waiting;
                let position = waiting.iter().position(|control| matches!(control, Control::ChoreDone(..)));
                position.map(|position| waiting.remove(position))
            };
            match done {
                Some(Control::ChoreDone(chore, result)) => self.take_chore_back(chore, result)?,
                // The keeper unparks through `announce` only a thread that is seen to sleep.
                _ => {
                    self.shared.sleep.store(PARKED, Ordering::SeqCst);
                    thread::park_timeout(Duration::from_millis(1));
                    self.shared.sleep.store(AWAKE, Ordering::SeqCst);
                }
            }
        }
        Ok(())
    }

    fn publish(&mut self) {
        let shared = &*self.shared;
        if self.map_version != self.journal.map_version() {
            self.map_version = self.journal.map_version();
            *lock(&shared.map) = Arc::new(self.journal.map());
        }
        shared.held_bytes.store(self.journal.held_bytes(), Ordering::Relaxed);
        shared.written_bytes.store(self.journal.written_bytes(), Ordering::Relaxed);
        shared.kept_bytes.store(self.journal.log_bytes(), Ordering::Relaxed);
        shared.segment.store(self.journal.segment_sequence(), Ordering::Relaxed);
        shared.is_spare_ready.store(self.journal.is_spare_ready(), Ordering::Relaxed);
        shared.room_bytes.store(self.journal.room_bytes(), Ordering::Relaxed);
        self.publish_dirtiness();
    }

    fn publish_dirtiness(&self) {
        let shared = &*self.shared;
        let since = self.dirty_since.map_or(0, |since| since.duration_since(shared.begun).as_micros() as u64 + 1);
        shared.dirty_since.store(since, Ordering::Relaxed);
    }

    /// When something must be done although nothing is handed in.
    fn next_due(&self) -> Option<Instant> {
        let is_every_second = self.shared.lazy_sync.load(Ordering::Relaxed) == LazySync::EverySecond as u8;
        let may_sync = is_every_second && !self.shared.is_syncing.load(Ordering::Relaxed);
        let sync_at = self.dirty_since.filter(|_| may_sync).map(|since| since + SYNC_INTERVAL);
        let is_unsealed = self.dirty_since.is_none() && !self.journal.is_sealed();
        let seal_at = is_unsealed.then(|| self.written_at + SEAL_AFTER);
        let ask_at = self.spare_wanted_at.filter(|_| !self.is_chore_out);
        [sync_at, seal_at, self.stalled_until, self.marks_wanted_at, ask_at].into_iter().flatten().min()
    }
}

/// The thread of the journal sleeps until this moment, or until something is handed in.
fn sleep(shared: &Shared, until: Option<Instant>) {
    shared.sleep.store(PARKED, Ordering::SeqCst);
    if shared.waiting.load(Ordering::SeqCst) == 0 {
        match until {
            Some(until) => thread::park_timeout(until.saturating_duration_since(Instant::now())),
            None => thread::park(),
        }
    }
    shared.sleep.store(AWAKE, Ordering::SeqCst);
}

/// Waits for the seat.
fn take_seat(seat: &Mutex<Option<Writer>>) -> MutexGuard<'_, Option<Writer>> {
    seat.lock().expect("a core has panicked as it wrote: nothing is known of the log")
}

#[cfg(test)]
mod tests;
