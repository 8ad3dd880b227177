//! Cores that write the log themselves.
//!
//! A batch that is acknowledged when the system has it (`everysec`, `no`) takes a few microseconds to write. To wake a
//! thread for that, and to be woken by it, costs several times as much, and a client alone waits for both. So a core
//! that has left appends takes the seat, if nobody holds it, writes what all cores have left, and goes on with what
//! that allows, in the same turn.
//!
//! The thread of the journal keeps everything that can keep a core: appends that are waited for until they are durable,
//! large ones, new segments, syncs, marks of checkpoints, a disk that is full or failing. It is told of what falls due
//! by a core's write. A core writes only while the thread sleeps and nothing has been handed to it, and while nothing
//! is being synced, which writes may have to wait for. And a write that took long, because the system makes writers
//! wait for its disk or gave the processor to others, sends the next ones to the thread for a while: there they keep
//! nobody but those who asked for them.
//!
//! All who write do so with the seat, in the order in which appends were left, and tell of it before they let go. So
//! for the log, for tickets and for those who wait nothing differs but the thread. A core never waits for the seat.

use std::sync::TryLockError;

use super::*;

/// Larger batches are the thread's: from 64 KiB on they go past the page cache, and wait for the device.
const BATCH_BYTES_MAX: u64 = 48 << 10;

/// A core that writes for longer than this has waited for something.
const LONG: Duration = Duration::from_millis(1);

/// The same if it has waited for the disk.
const LONG_SYNC: Duration = Duration::from_millis(2);

/// Where the disk usually takes longer than this, in microseconds, no core waits for it.
const SYNC_SHORT_US: u64 = 400;

/// Then the thread writes for so long.
const REST: Duration = Duration::from_millis(100);

impl JournalQueue {
    /// Writes what cores have left, if that does not delay the caller; otherwise wakes the thread for it. True if it is
    /// written: those that waited have been told, and the caller must see to the cores in `called`. `may_sync` says
    /// that it may also wait for the disk, as long as that usually takes little.
    pub fn write_or_announce(&self, may_sync: bool, called: &mut Vec<usize>) -> bool {
        if !self.shared.has_unannounced.load(Ordering::SeqCst) {
            return false;
        }
        let may_sync = may_sync && self.disk_is_short();
        if !self.thread_is_idle() || (!may_sync && self.shared.needs_sync.load(Ordering::Relaxed)) {
            self.announce_appends();
            return false;
        }
        let mut seat = match self.seat.try_lock() {
            Ok(seat) => seat,
            Err(TryLockError::WouldBlock) => {
                self.announce_appends();
                return false;
            }
            Err(TryLockError::Poisoned(_)) => panic!("a writer of the log has panicked: nothing is known of it"),
        };
        let Some(writer) = &mut *seat else {
            drop(seat);
            self.announce_appends();
            return false;
        };
        if !writer.is_at_leisure() {
            drop(seat);
            self.announce_appends();
            return false;
        }
        let outcome = writer.write_on_core(may_sync, called);
        drop(seat);
        if outcome.needs_thread {
            self.announce();
        }
        outcome.has_written
    }

    /// True if the thread sleeps, has nothing handed to it, and no sync is under way. That may change at once: this is
    /// for the sake of those who gain nothing by being written here, not for safety.
    fn thread_is_idle(&self) -> bool {
        let shared = &*self.shared;
        shared.sleep.load(Ordering::SeqCst) == PARKED
            && shared.waiting.load(Ordering::SeqCst) == 0
            && !shared.is_syncing.load(Ordering::Relaxed)
    }

    /// True if the disk has recently taken little time for what must be durable. False as long as nothing is known.
    fn disk_is_short(&self) -> bool {
        (1..=SYNC_SHORT_US).contains(&self.shared.sync_usual_us.load(Ordering::Relaxed))
    }
}

/// What has come of a core's trial.
struct Outcome {
    has_written: bool,
    /// There is something for the thread.
    needs_thread: bool,
}

impl Writer {
    /// True if nothing is in its hands that comes before new appends, or keeps them.
    fn is_at_leisure(&self) -> bool {
        self.failed.is_none()
            && self.stop.is_none()
            && self.stalled_until.is_none()
            && self.spare_wanted_at.is_none()
            && self.has_room
            && self.appends.is_empty()
            && self.marks.is_empty()
            && self.flushes.is_empty()
    }

    fn write_on_core(&mut self, may_sync: bool, called: &mut Vec<usize>) -> Outcome {
        let begun = Instant::now();
        if self.cores_wait_until.is_some_and(|until| begun < until) {
            return Outcome { has_written: false, needs_thread: true };
        }
        self.cores_wait_until = None;
        // As in `collect`: what is left from now on is announced, if once too often.
        self.shared.has_unannounced.store(false, Ordering::SeqCst);
        self.collect_appends();
        if self.appends.is_empty() {
            return Outcome { has_written: false, needs_thread: false };
        }
        let weight_bytes = self.appends.iter().map(|append| append.weight_bytes() as u64).sum();
        let is_small = weight_bytes <= BATCH_BYTES_MAX && self.journal.fits_segment(weight_bytes);
        let may_sync = may_sync && !self.journal.is_dirty();
        if !is_small || (self.needs_sync && !may_sync) || self.appends.iter().any(Append::vacates) {
            // They stay in line, and the thread takes them from there.
            return Outcome { has_written: false, needs_thread: true };
        }
        let (was_clean, was_sealed) = (self.dirty_since.is_none(), self.journal.is_sealed());
        let long = if self.needs_sync { LONG_SYNC } else { LONG };
        let before = self.journal.written_bytes();
        self.shared.is_writing.store(true, Ordering::Relaxed);
        let result = self.write_appends(Some(called));
        self.shared.is_writing.store(false, Ordering::Relaxed);
        if let Err(fault) = result {
            // The thread ends the process. Nobody is told of these appends, and nobody writes behind them.
            self.failed = Some(fault);
            return Outcome { has_written: false, needs_thread: true };
        }
        let has_written = self.appends.is_empty();
        if self.written_at.duration_since(begun) > long {
            self.cores_wait_until = Some(self.written_at + REST);
        }
        let shared = &*self.shared;
        shared.core_write_count.fetch_add(u64::from(has_written), Ordering::Relaxed);
        let written_bytes = self.journal.written_bytes();
        shared.written_bytes.store(written_bytes, Ordering::Relaxed);
        shared.kept_bytes.fetch_add(written_bytes - before, Ordering::Relaxed);
        shared.room_bytes.store(self.journal.room_bytes(), Ordering::Relaxed);
        if was_clean != self.dirty_since.is_none() {
            self.publish_dirtiness();
        }
        // It sleeps until something is due, and did not know of this.
        let has_become_due = was_clean != self.dirty_since.is_none() || (was_sealed && !self.journal.is_sealed());
        let needs_thread = !has_written || has_become_due || self.journal.dirty_bytes() >= SYNC_BYTES;
        Outcome { has_written, needs_thread }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{append, open, start};
    use super::*;
    use crate::disk::tests::Scratch;

    /// Longer than any disk keeps the thread.
    const PATIENCE: Duration = Duration::from_secs(120);

    /// Leaves an append as a core does at the end of a turn. True if the core wrote it itself.
    fn write(queue: &JournalQueue, core: usize, append: Append, is_synced: bool) -> bool {
        queue.leave(core, &mut vec![(append, is_synced)]);
        queue.write_or_announce(false, &mut Vec::new())
    }

    fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < PATIENCE, "{what} never came");
            thread::yield_now();
        }
    }

    /// Waits until the thread rests. Afterwards a core may write: a busy machine may have taken the processor from the
    /// last one that did, which is not the matter where this is called.
    fn wait_for_rest(queue: &JournalQueue) {
        wait_until("rest", || queue.thread_is_idle());
        if let Some(writer) = &mut *take_seat(&queue.seat) {
            writer.cores_wait_until = None;
        }
    }

    #[test]
    fn what_a_core_writes_is_told_at_once_and_synced_by_the_thread() {
        for lazy_sync in [LazySync::EverySecond, LazySync::Never] {
            let scratch = Scratch::new();
            let (thread, tickets) = start(&scratch, lazy_sync);
            let queue = thread.queue();
            let (mut index, mut written_count) = (0, 0);
            // The disk may keep the thread just when the core would write.
            wait_until("the hundredth write by the core", || {
                wait_for_rest(queue);
                index += 1;
                if write(queue, 0, append(0, index, 100), false) {
                    // Nobody else need do anything for it.
                    assert_eq!(tickets.try_recv(), Ok((0, index)));
                    let data = [index as u8; 100];
                    let log = std::fs::read(scratch.0.join("log-0000000000000001")).unwrap();
                    assert!(log.windows(100).any(|window| window == data), "append {index} is not written");
                    written_count += 1;
                } else {
                    assert_eq!(tickets.recv(), Ok((0, index)));
                }
                written_count == 100
            });
            let counters = queue.counters();
            assert_eq!((counters.core_write_count, counters.write_count), (written_count, index));
            assert_eq!((counters.queue_bytes, counters.queue_count), (0, 0));
            if lazy_sync == LazySync::EverySecond {
                wait_until("a sync", || queue.counters().unsynced_us == 0);
            }
            thread.stop(true).unwrap();
            let entries = &open(&scratch).1.groups[&0].entries;
            assert!(entries.iter().map(|entry| entry.index).eq(1..=index));
        }
    }

    #[test]
    fn no_matter_who_writes_the_order_of_each_group_is_kept() {
        const COUNT: u64 = 3_000;
        /// After so many the cores wait until one of them has written itself. A disk may leave them no turn until then.
        const PART: u64 = 500;
        let scratch = Scratch::new();
        let (thread, tickets) = start(&scratch, LazySync::EverySecond);
        let arrived = AtomicU64::new(0);
        let meet = |nth| {
            arrived.fetch_add(1, Ordering::SeqCst);
            wait_until("the other core", || arrived.load(Ordering::SeqCst) >= 2 * nth);
        };
        let counts = thread::scope(|scope| {
            let cores = [0, 1].map(|core| {
                let (queue, meet) = (thread.queue().clone(), &meet);
                scope.spawn(move || {
                    let (mut index, mut written_count) = (0, 0);
                    for part in 1..=COUNT / PART {
                        while index < part * PART {
                            index += 1;
                            // Some are waited for, some are large, segments end.
                            let bytes = if index % 100 == 7 { 60_000 } else { 300 };
                            let is_synced = index % 50 == 3;
                            written_count +=
                                u64::from(write(&queue, core, append(core as u32, index, bytes), is_synced));
                            if index % 16 == 0 {
                                thread::sleep(Duration::from_micros(200));
                            }
                        }
                        meet(2 * part - 1);
                        if part % 2 == core as u64 {
                            wait_until("a write by a core", || {
                                wait_for_rest(&queue);
                                index += 1;
                                let has_written = write(&queue, core, append(core as u32, index, 300), false);
                                written_count += u64::from(has_written);
                                has_written
                            });
                        }
                        meet(2 * part);
                    }
                    (index, written_count)
                })
            });
            cores.map(|core| core.join().expect("no panic"))
        });
        let mut last = [0, 0];
        while last != counts.map(|(count, _)| count) {
            let (group, ticket) = tickets.recv_timeout(PATIENCE).expect("an append was forgotten");
            assert_eq!(ticket, last[group as usize] + 1);
            last[group as usize] = ticket;
        }
        let counters = thread.queue().counters();
        // Large ones and those that are waited for are the thread's, so both have written.
        assert_eq!(counters.core_write_count, counts[0].1 + counts[1].1);
        assert!(counters.core_write_count >= COUNT / PART && counters.core_write_count < counters.write_count);
        assert_eq!((counters.queue_bytes, counters.queue_count), (0, 0));
        thread.stop(true).unwrap();
        let recovered = open(&scratch).1;
        for (group, (count, _)) in (0..).zip(counts) {
            assert!(recovered.groups[&group].entries.iter().map(|entry| entry.index).eq(1..=count));
        }
    }

    #[test]
    fn a_core_that_wrote_for_long_leaves_the_next_ones_to_the_thread() {
        let scratch = Scratch::new();
        let (thread, tickets) = start(&scratch, LazySync::Never);
        let queue = thread.queue();
        wait_until("rest", || queue.thread_is_idle());
        take_seat(&queue.seat).as_mut().unwrap().cores_wait_until = Some(Instant::now() + Duration::from_secs(3600));
        for index in 1..=10 {
            assert!(!write(queue, 0, append(0, index, 100), false));
            assert_eq!(tickets.recv(), Ok((0, index)));
        }
        take_seat(&queue.seat).as_mut().unwrap().cores_wait_until = Some(Instant::now());
        let mut index = 10;
        wait_until("a write by the core", || {
            wait_until("rest", || queue.thread_is_idle());
            index += 1;
            let has_written = write(queue, 0, append(0, index, 100), false);
            assert_eq!(tickets.recv(), Ok((0, index)));
            has_written
        });
        thread.stop(true).unwrap();
    }

    #[test]
    fn a_core_waits_for_a_quick_disk_if_that_keeps_nobody() {
        let scratch = Scratch::new();
        let (thread, tickets) = start(&scratch, LazySync::EverySecond);
        let queue = thread.queue();
        let shared = &queue.shared;
        let (mut index, mut round_count, mut written_count) = (0, 0, 0);
        let mut round = |may_sync: bool, usual_us: u64| {
            wait_for_rest(queue);
            shared.sync_usual_us.store(usual_us, Ordering::Relaxed);
            index += 1;
            queue.leave(0, &mut vec![(append(0, index, 100), true)]);
            let has_written = queue.write_or_announce(may_sync, &mut Vec::new());
            let ticket = if has_written { tickets.try_recv().ok() } else { tickets.recv().ok() };
            assert_eq!(ticket, Some((0, index)));
            has_written
        };
        wait_until("the fiftieth write by the core", || {
            round_count += 1;
            written_count += u64::from(round(true, 100));
            assert!(!round(false, 100), "somebody would be kept");
            assert!(!round(true, SYNC_SHORT_US + 1), "the disk is slow");
            assert!(!round(true, 0), "nothing is known of the disk");
            written_count == 50
        });
        let counters = queue.counters();
        assert_eq!((counters.core_write_count, counters.sync_count), (written_count, 4 * round_count));
        assert_eq!(counters.unsynced_us, 0);
        // A log at rest is sealed no matter who wrote last.
        wait_until("one more write by the core", || round(true, 100));
        wait_until("a seal", || take_seat(&queue.seat).as_ref().unwrap().journal.is_sealed());
        thread.stop(true).unwrap();
        assert!(open(&scratch).1.groups[&0].entries.iter().map(|entry| entry.index).eq(1..=index));
    }

    #[test]
    fn nobody_writes_behind_a_failure_and_nobody_is_told() {
        let scratch = Scratch::new();
        let (told, notices) = mpsc::channel();
        let listener: Listener = Box::new(move |notice| match notice {
            Notice::Persisted(tickets) | Notice::WrittenOnCore(tickets, _) => told.send(Ok(tickets.to_vec())).unwrap(),
            Notice::Failed(fault) => told.send(Err(fault.to_string())).unwrap(),
            Notice::TakesMore | Notice::Room(_) => {}
        });
        let thread = JournalThread::start(open(&scratch).0, 1, LazySync::EverySecond, listener).unwrap();
        let queue = thread.queue();
        wait_until("rest", || queue.thread_is_idle());
        // As after a write of a core that has failed: the thread has not heard of it yet.
        let fault = || Fault::Io { action: "write to", file: "log".into(), error: std::io::Error::other("torn") };
        take_seat(&queue.seat).as_mut().unwrap().failed = Some(fault());
        for index in 1..=10 {
            assert!(!write(queue, 0, append(0, index, 100), false));
        }
        assert_eq!(notices.recv(), Ok(Err(fault().to_string())));
        assert!(!write(queue, 0, append(0, 11, 100), false));
        thread.stop(true).unwrap();
        assert!(notices.try_recv().is_err(), "something was told behind the failure");
        assert!(!open(&scratch).1.groups.contains_key(&0));
    }
}
