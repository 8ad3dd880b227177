//! The one thread that writes checkpoint files, for all groups.
//!
//! It is slow on purpose. The log is being synced on the same disk while it works, so it writes small pieces past the
//! page cache, one at a time, at no more than a set rate, and lets a write of the log that is under way go first; it
//! syncs every few pieces, so that no large flush ever builds up. A core hands in its next chunk when an earlier one is
//! written: that is what slows the core's walk to the pace of the disk, and bounds the memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use group::host::{CheckpointNews, CheckpointStep};
use group::ids::{GroupId, NodeId};
use journal::{CheckpointFile, CheckpointMark, CheckpointReader, Fault, Identity};
use node::event::Event;

use crate::disk::RealDisk;
use crate::journal_thread::JournalQueue;

/// Bytes per second at which checkpoints are written unless set.
pub const RATE_DEFAULT: u64 = 96 << 20;

/// One write. The log waits behind at most one of these.
const PIECE_BYTES: usize = 128 << 10;

/// What is written is synced after so many bytes.
const SYNC_BYTES: u64 = 4 << 20;

/// How often, and at most how many times for one piece, the log is let go first.
const YIELD_INTERVAL: Duration = Duration::from_micros(100);
const YIELDS_MAX: u32 = 10;

/// Time not used for writing is not saved up beyond this, so that a late chunk is not followed by a burst.
const CREDIT_MAX: Duration = Duration::from_millis(20);

/// Receives news of a group's checkpoints. Called on the writer's and on the journal's thread.
pub type NewsListener = Arc<dyn Fn(GroupId, Event<'static>) + Send + Sync>;

/// Files that are being read for other nodes and kept open between their chunks.
const READERS_MAX: usize = 16;

/// Where cores hand in steps. Clones are handles of the same queue.
#[derive(Clone)]
pub struct CheckpointQueue {
    steps: Sender<Order>,
    shared: Arc<Shared>,
}

/// The thread.
pub struct CheckpointThread {
    queue: CheckpointQueue,
    thread: JoinHandle<()>,
}

struct Shared {
    /// Bytes per second; 0 is as fast as can be.
    rate: AtomicU64,
    written_bytes: AtomicU64,
}

enum Order {
    Step { group: GroupId, id: u64, step: CheckpointStep },
    Read { group: GroupId, mark: CheckpointMark, chunk: u64, to: NodeId },
    Stop,
}

impl CheckpointThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(
        disk: RealDisk,
        identity: Identity,
        journal: JournalQueue,
        listener: NewsListener,
        before_finish: Box<dyn Fn() + Send>,
    ) -> std::io::Result<Self> {
        let (steps, orders) = mpsc::channel();
        let shared = Arc::new(Shared { rate: AtomicU64::new(RATE_DEFAULT), written_bytes: AtomicU64::new(0) });
        let queue = CheckpointQueue { steps, shared: Arc::clone(&shared) };
        let writer = Writer {
            disk,
            identity,
            journal,
            listener,
            shared,
            before_finish,
            files: BTreeMap::new(),
            readers: BTreeMap::new(),
            due: Instant::now(),
        };
        let thread = thread::Builder::new().name("checkpoint".into()).spawn(move || writer.run(&orders))?;
        Ok(Self { queue, thread })
    }

    /// A handle for handing in.
    pub fn queue(&self) -> &CheckpointQueue {
        &self.queue
    }

    /// Ends the thread. Checkpoints under way are thrown away.
    pub fn stop(self) {
        // The thread lives until it is told this.
        let _ = self.queue.steps.send(Order::Stop);
        assert!(self.thread.join().is_ok(), "the checkpoint writer does not panic");
    }
}

impl CheckpointQueue {
    /// Hands in a step of a group's checkpoint. Steps of one checkpoint come in order.
    pub fn submit(&self, group: GroupId, id: u64, step: CheckpointStep) {
        // After the end nobody listens for an answer either.
        let _ = self.steps.send(Order::Step { group, id, step });
    }

    /// Asks for a chunk of a checkpoint that is on disk.
    pub fn read(&self, group: GroupId, mark: CheckpointMark, chunk: u64, to: NodeId) {
        let _ = self.steps.send(Order::Read { group, mark, chunk, to });
    }

    /// Sets the rate, in bytes per second; 0 is as fast as can be.
    pub fn set_rate(&self, rate: u64) {
        self.shared.rate.store(rate, Ordering::Relaxed);
    }

    /// Bytes written since the start.
    pub fn written_bytes(&self) -> u64 {
        self.shared.written_bytes.load(Ordering::Relaxed)
    }
}

/// A checkpoint under way.
struct Open {
    id: u64,
    mark: CheckpointMark,
    file: CheckpointFile<RealDisk>,
    unsynced_bytes: u64,
}

/// A checkpoint being read.
struct Reading {
    reader: CheckpointReader<RealDisk>,
    /// The chunk that comes next.
    next: u64,
}

struct Writer {
    disk: RealDisk,
    identity: Identity,
    journal: JournalQueue,
    listener: NewsListener,
    shared: Arc<Shared>,
    /// Called before a checkpoint takes the place of log.
    before_finish: Box<dyn Fn() + Send>,
    files: BTreeMap<u32, Open>,
    /// By group and the node that reads.
    readers: BTreeMap<(u32, u64), Reading>,
    /// When the next piece may be written.
    due: Instant,
}

impl Writer {
    fn run(mut self, orders: &Receiver<Order>) {
        while let Ok(order) = orders.recv() {
            match order {
                Order::Stop => break,
                Order::Read { group, mark, chunk, to } => {
                    let index = mark.index;
                    let read = self.read(group, mark, chunk, to).map_err(|fault| {
                        self.readers.remove(&(group.0, to.0));
                        fault.to_string()
                    });
                    (self.listener)(group, Event::CheckpointRead { group, index, chunk, to, read });
                }
                Order::Step { group, id, step } => {
                    if let Err(fault) = self.carry_out(group, id, step) {
                        if let Some(open) = self.files.remove(&group.0) {
                            // What is left of it is removed at the next start at the latest.
                            let _ = open.file.abandon();
                        }
                        self.tell(group, id, CheckpointNews::Failed(fault.to_string()));
                    }
                }
            }
        }
        for (_, open) in std::mem::take(&mut self.files) {
            let _ = open.file.abandon();
        }
    }

    fn tell(&self, group: GroupId, id: u64, news: CheckpointNews) {
        (self.listener)(group, Event::Checkpoint { group, id, news });
    }

    /// Reads a chunk for another node. Usually it is the one behind the last that was read.
    fn read(&mut self, group: GroupId, mark: CheckpointMark, chunk: u64, to: NodeId) -> Result<Option<Vec<u8>>, Fault> {
        let key = (group.0, to.0);
        let fits = |reading: &Reading| *reading.reader.mark() == mark && reading.next <= chunk;
        if !self.readers.get(&key).is_some_and(fits) {
            if self.readers.len() >= READERS_MAX {
                self.readers.pop_first();
            }
            let reader = CheckpointReader::open(self.disk.clone(), &self.identity, group.0, &mark)?;
            self.readers.insert(key, Reading { reader, next: 0 });
        }
        let reading = self.readers.get_mut(&key).expect("just made");
        while reading.next < chunk {
            reading.reader.next()?;
            reading.next += 1;
        }
        reading.next += 1;
        let read = reading.reader.next()?.map(<[u8]>::to_vec);
        if read.is_none() {
            self.readers.remove(&key);
        }
        Ok(read)
    }

    fn carry_out(&mut self, group: GroupId, id: u64, step: CheckpointStep) -> Result<(), Fault> {
        match step {
            CheckpointStep::Begin(mark) => {
                if let Some(previous) = self.files.remove(&group.0) {
                    previous.file.abandon()?;
                }
                let file = CheckpointFile::begin(self.disk.clone(), &self.identity, group.0, &mark)?;
                self.files.insert(group.0, Open { id, mark, file, unsynced_bytes: 0 });
            }
            CheckpointStep::Chunk(chunk) => {
                // Steps of a checkpoint that has failed are still on their way for a while.
                let Some(mut open) = self.take(group, id) else { return Ok(()) };
                if !chunk.is_empty() {
                    open.file.push(&chunk);
                }
                let result = self.write_pending(&mut open);
                self.files.insert(group.0, open);
                result?;
                self.tell(group, id, CheckpointNews::Written(chunk.len()));
            }
            CheckpointStep::Keep => {
                let Some(mut open) = self.take(group, id) else { return Ok(()) };
                let result = open.file.complete();
                self.files.insert(group.0, open);
                result?;
                self.tell(group, id, CheckpointNews::Kept);
            }
            CheckpointStep::Finish | CheckpointStep::Install(_) => {
                let Some(open) = self.take(group, id) else { return Ok(()) };
                (self.before_finish)();
                open.file.finish()?;
                let hard_state = match step {
                    CheckpointStep::Install(hard_state) => Some(hard_state),
                    _ => None,
                };
                let listener = Arc::clone(&self.listener);
                let done = move |result: Result<(), String>| {
                    let news = match result {
                        Ok(()) => CheckpointNews::Finished,
                        Err(reason) => CheckpointNews::Failed(reason),
                    };
                    listener(group, Event::Checkpoint { group, id, news });
                };
                self.journal.mark(group.0, open.mark, hard_state, Box::new(done));
            }
            CheckpointStep::Abandon => {
                if let Some(open) = self.take(group, id) {
                    open.file.abandon()?;
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, group: GroupId, id: u64) -> Option<Open> {
        if self.files.get(&group.0)?.id != id {
            return None;
        }
        self.files.remove(&group.0)
    }

    /// Writes all whole pieces that are pending, each when it is due.
    fn write_pending(&mut self, open: &mut Open) -> Result<(), Fault> {
        while open.file.pending_bytes() >= PIECE_BYTES {
            self.wait_until_due();
            let count = open.file.write(PIECE_BYTES)? as u64;
            self.shared.written_bytes.fetch_add(count, Ordering::Relaxed);
            self.charge(count);
            open.unsynced_bytes += count;
            if open.unsynced_bytes >= SYNC_BYTES {
                open.unsynced_bytes = 0;
                open.file.sync()?;
            }
        }
        Ok(())
    }

    fn wait_until_due(&mut self) {
        thread::sleep(self.due.saturating_duration_since(Instant::now()));
        for _ in 0..YIELDS_MAX {
            if !self.journal.is_writing() {
                break;
            }
            thread::sleep(YIELD_INTERVAL);
        }
    }

    fn charge(&mut self, bytes: u64) {
        let rate = self.shared.rate.load(Ordering::Relaxed);
        let Some(cost_us) = bytes.saturating_mul(1_000_000).checked_div(rate) else { return };
        let now = Instant::now();
        let earliest = now.checked_sub(CREDIT_MAX).unwrap_or(now);
        self.due = self.due.max(earliest) + Duration::from_micros(cost_us);
    }
}

#[cfg(test)]
mod tests {
    use journal::{Journal, Options};

    use super::*;
    use crate::disk::tests::Scratch;
    use crate::journal_thread::{JournalThread, LazySync};

    const IDENTITY: Identity = Identity {
        directory: 5,
        cluster: 1,
        node: 1,
        group_count: 2,
        hash_seed: 1,
        has_joined: false,
        level: stdx::Level::FIRST,
    };

    #[test]
    fn a_checkpoint_is_written_acknowledged_chunk_by_chunk_and_counts_at_the_end() {
        let scratch = Scratch::new();
        let (journal, _) = Journal::open(scratch.disk(), &Options::new(IDENTITY)).unwrap();
        let journal_thread = JournalThread::start(journal, 1, LazySync::Never, Box::new(|_| {})).unwrap();
        let (told, news) = mpsc::channel();
        let told = std::sync::Mutex::new(told);
        let listener: NewsListener = Arc::new(move |_, event| {
            let Event::Checkpoint { group, id, news } = event else { panic!("nothing was asked for") };
            told.lock().unwrap().send((group, id, news)).unwrap();
        });
        let thread = CheckpointThread::start(
            scratch.disk(),
            IDENTITY,
            journal_thread.queue().clone(),
            listener,
            Box::new(|| {}),
        )
        .unwrap();
        let queue = thread.queue();
        queue.set_rate(0);
        let mark = |index| CheckpointMark { index, term: 1, ..CheckpointMark::default() };
        let chunk = |byte: u8| vec![byte; 300_000];

        // One is abandoned, one replaced while under way, one finished. Steps of those that are gone do nothing.
        queue.submit(GroupId(0), 1, CheckpointStep::Begin(mark(7)));
        queue.submit(GroupId(1), 2, CheckpointStep::Begin(mark(8)));
        queue.submit(GroupId(1), 3, CheckpointStep::Begin(mark(9)));
        queue.submit(GroupId(1), 2, CheckpointStep::Chunk(chunk(9)));
        for byte in 0..20 {
            queue.submit(GroupId(1), 3, CheckpointStep::Chunk(chunk(byte)));
            assert_eq!(news.recv().unwrap(), (GroupId(1), 3, CheckpointNews::Written(300_000)));
        }
        queue.submit(GroupId(0), 1, CheckpointStep::Abandon);
        queue.submit(GroupId(1), 3, CheckpointStep::Finish);
        assert_eq!(news.recv().unwrap(), (GroupId(1), 3, CheckpointNews::Finished));
        thread.stop();
        journal_thread.stop(true).unwrap();

        let (_, recovered) = Journal::open(scratch.disk(), &Options::new(IDENTITY)).unwrap();
        assert_eq!(recovered.groups[&1].checkpoint, Some(mark(9)));
        assert_eq!(recovered.notes, [""; 0]);
        let mut reader = CheckpointReader::open(scratch.disk(), &IDENTITY, 1, &mark(9)).unwrap();
        for byte in 0..20 {
            assert!(reader.next().unwrap().unwrap() == chunk(byte));
        }
        assert!(reader.next().unwrap().is_none());
    }
}
