//! The journal, its thread and the cores that write beside it, on real files.

use bytes::Bytes;
use journal::{Identity, Options};
use stdx::log::{Entry, EntryKind};

use super::*;
use crate::disk::tests::Scratch;

pub(super) fn open(scratch: &Scratch) -> (Journal<RealDisk>, journal::Recovered) {
    open_with(scratch, 1 << 20)
}

fn open_with(scratch: &Scratch, segment_bytes: u64) -> (Journal<RealDisk>, journal::Recovered) {
    let identity = Identity {
        directory: 5,
        cluster: 1,
        node: 1,
        group_count: 2,
        hash_seed: 1,
        has_joined: false,
        level: stdx::Level::FIRST,
    };
    let options = Options { segment_bytes, ..Options::new(identity) };
    Journal::open(scratch.disk(), &options).unwrap()
}

pub(super) fn append(group: u32, index: u64, bytes: usize) -> Append {
    let data = Bytes::from(vec![index as u8; bytes]);
    let entry = Entry { term: 1, index, kind: EntryKind::Normal, data };
    Append { group, ticket: index, entries: vec![entry], ..Append::default() }
}

pub(super) fn start(scratch: &Scratch, lazy_sync: LazySync) -> (JournalThread, Receiver<(u32, u64)>) {
    start_on(open(scratch).0, lazy_sync)
}

fn start_on(journal: Journal<RealDisk>, lazy_sync: LazySync) -> (JournalThread, Receiver<(u32, u64)>) {
    let (told, tickets) = mpsc::channel();
    let listener: Listener = Box::new(move |notice| match notice {
        Notice::Persisted(tickets) | Notice::WrittenOnCore(tickets, _) => {
            tickets.iter().for_each(|ticket| told.send(*ticket).unwrap());
        }
        Notice::TakesMore => {}
        Notice::Room(room) => panic!("{room:?}"),
        Notice::Failed(fault) => panic!("{fault}"),
    });
    (JournalThread::start(journal, 2, lazy_sync, listener).unwrap(), tickets)
}

#[test]
fn who_waits_is_told_in_order_and_it_is_all_there_after_a_stop() {
    let scratch = Scratch::new();
    let (thread, tickets) = start(&scratch, LazySync::EverySecond);
    // Enough for several segments; both cores at once.
    thread::scope(|scope| {
        for core in 0..2 {
            let queue = thread.queue().clone();
            scope.spawn(move || {
                for index in 1..=300 {
                    queue.submit(core, &mut vec![(append(core as u32, index, 10_000), true)]);
                }
            });
        }
    });
    let mut last = [0, 0];
    while last != [300, 300] {
        let (group, ticket) = tickets.recv().unwrap();
        assert_eq!(ticket, last[group as usize] + 1);
        last[group as usize] = ticket;
    }
    let counters = thread.queue().counters();
    assert!(counters.sync_count > 0 && counters.queue_bytes == 0 && counters.unsynced_us == 0, "{counters:?}");
    thread.stop(true).unwrap();
    let (journal, recovered) = open(&scratch);
    assert!(recovered.was_stopped_cleanly && journal.segment_sequence() > 1);
    for group in 0..2 {
        let entries = &recovered.groups[&group].entries;
        assert!(entries.iter().map(|entry| entry.index).eq(1..=300));
        assert!(entries.iter().all(|entry| entry.data == vec![entry.index as u8; 10_000]));
    }
}

#[test]
fn what_need_not_be_durable_is_told_when_it_is_written() {
    for lazy_sync in [LazySync::EverySecond, LazySync::Never] {
        let scratch = Scratch::new();
        let (thread, tickets) = start(&scratch, lazy_sync);
        for index in 1..=100 {
            thread.queue().submit(0, &mut vec![(append(0, index, 100), false)]);
            assert_eq!(tickets.recv().unwrap(), (0, index));
            // It is in its file, no matter who reads that.
            let data = [index as u8; 100];
            let log = std::fs::read(scratch.0.join("log-0000000000000001")).unwrap();
            assert!(log.windows(100).any(|window| window == data), "append {index} is not written");
        }
        thread.queue().flush();
        let counters = thread.queue().counters();
        assert_eq!((counters.queue_bytes, counters.unsynced_us), (0, 0));
        // An append that must be durable also makes all before it durable.
        thread.queue().submit(1, &mut vec![(append(1, 1, 100), false), (append(1, 2, 100), true)]);
        assert_eq!([tickets.recv().unwrap(), tickets.recv().unwrap()], [(1, 1), (1, 2)]);
        thread.stop(true).unwrap();
        let recovered = open(&scratch).1;
        assert_eq!((recovered.groups[&0].entries.len(), recovered.groups[&1].entries.len()), (100, 2));
    }
}

#[test]
fn a_sync_comes_each_second_and_after_some_bytes_and_writes_go_on_meanwhile() {
    let scratch = Scratch::new();
    let (thread, tickets) = start_on(open_with(&scratch, 16 << 20).0, LazySync::EverySecond);
    thread.queue().submit(0, &mut vec![(append(0, 1, 100), false)]);
    tickets.recv().unwrap();
    let wait_for_sync = |count| {
        let begun = Instant::now();
        while thread.queue().counters().sync_count < count {
            assert!(begun.elapsed() < Duration::from_secs(120), "sync {count} never came");
            thread::yield_now();
        }
    };
    wait_for_sync(1);
    while thread.queue().counters().unsynced_us > 0 {
        thread::yield_now();
    }
    // Many more bytes than a sync waits for, over several segments.
    for index in 2..=60 {
        thread.queue().submit(0, &mut vec![(append(0, index, 500_000), false)]);
    }
    while tickets.recv().unwrap() != (0, 60) {}
    wait_for_sync(2);
    thread.stop(true).unwrap();
    assert_eq!(open(&scratch).1.groups[&0].entries.len(), 60);
}

/// A segment of 64 MiB that was synced at its end only held up all writes for a tenth of a second.
#[test]
fn what_is_left_to_the_system_does_not_wait_for_the_end_of_a_segment() {
    let scratch = Scratch::new();
    let (thread, tickets) = start_on(open_with(&scratch, 64 << 20).0, LazySync::Never);
    for index in 1..=20 {
        thread.queue().submit(0, &mut vec![(append(0, index, 500_000), false)]);
    }
    while tickets.recv().unwrap() != (0, 20) {}
    let begun = Instant::now();
    while thread.queue().counters().sync_count == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "no sync within the segment");
        thread::yield_now();
    }
    thread.stop(true).unwrap();
}

#[test]
fn what_is_written_at_once_has_been_counted_before() {
    let scratch = Scratch::new();
    let (thread, _tickets) = start(&scratch, LazySync::Never);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // A thread that is never let sleep takes up what is handed in at any moment.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                thread.queue().set_lazy_sync(LazySync::Never);
            }
        });
        for index in 1..=30_000 {
            thread.queue().submit(0, &mut vec![(append(0, index, 10), false)]);
            let begun = Instant::now();
            while thread.queue().counters().queue_count > 0 && begun.elapsed() < Duration::from_secs(120) {
                thread::yield_now();
            }
            if thread.queue().counters().queue_count > 0 {
                is_over.store(true, Ordering::Relaxed);
                panic!("the thread has not written append {index}");
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    thread.queue().flush();
    assert_eq!(thread.queue().counters().queue_bytes, 0);
    thread.stop(true).unwrap();
}

#[test]
fn who_hands_in_too_much_is_not_kept_but_told_when_the_queue_takes_more() {
    let scratch = Scratch::new();
    let (told, notices) = mpsc::channel();
    let listener: Listener = Box::new(move |notice| match notice {
        Notice::TakesMore => told.send(()).unwrap(),
        Notice::Persisted(_) | Notice::WrittenOnCore(..) => {}
        Notice::Room(room) => panic!("{room:?}"),
        Notice::Failed(fault) => panic!("{fault}"),
    });
    let thread = JournalThread::start(open(&scratch).0, 1, LazySync::Never, listener).unwrap();
    let mut appends: Vec<_> = (1..=12).map(|index| (append(0, index, 10 << 20), false)).collect();
    thread.queue().submit(0, &mut appends);
    notices.recv().unwrap();
    assert!(!thread.queue().is_full());
    thread.queue().flush();
    assert!(notices.try_recv().is_err(), "it was full once");
    thread.stop(true).unwrap();
    assert_eq!(open(&scratch).1.groups[&0].entries.len(), 12);
}

#[test]
fn a_log_at_rest_is_sealed() {
    let scratch = Scratch::new();
    let (thread, tickets) = start(&scratch, LazySync::EverySecond);
    thread.queue().submit(0, &mut vec![(append(0, 1, 100), true)]);
    tickets.recv().unwrap();
    let before = thread.queue().counters().written_bytes;
    // A seal is the only thing that is written now.
    while thread.queue().counters().written_bytes == before {
        thread::yield_now();
    }
    thread.stop(true).unwrap();
    assert_eq!(open(&scratch).1.groups[&0].entries.len(), 1);
}

#[test]
fn a_mark_frees_the_log() {
    let scratch = Scratch::new();
    let (thread, tickets) = start(&scratch, LazySync::EverySecond);
    for index in 1..=50 {
        thread.queue().submit(0, &mut vec![(append(0, index, 100_000), true)]);
    }
    while tickets.recv().unwrap() != (0, 50) {}
    thread.queue().flush();
    let kept_bytes = thread.queue().counters().kept_bytes;
    std::fs::write(scratch.0.join(journal::checkpoint_file(0, 49)), b"").unwrap();
    let (done, marked) = mpsc::channel();
    let mark = CheckpointMark { index: 49, term: 1, ..CheckpointMark::default() };
    thread.queue().mark(0, mark.clone(), None, Box::new(move |result| done.send(result).unwrap()));
    assert_eq!(marked.recv().unwrap(), Ok(()));
    thread.queue().flush();
    assert!(thread.queue().counters().kept_bytes <= kept_bytes - 100_000);
    thread.stop(true).unwrap();
    let recovered = open(&scratch).1;
    assert_eq!(recovered.groups[&0].checkpoint, Some(mark));
    assert_eq!(recovered.groups[&0].entries.len(), 1);
}
