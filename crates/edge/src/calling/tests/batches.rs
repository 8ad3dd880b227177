//! Many cores with sockets that one thread waits for. All of them have something for each other: how often each of them
//! is stepped. There is one thread, so that the numbers are always the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::*;
use crate::core_waker::CoreWaker;
use crate::mailbox::Mail;

const CORES: usize = 16;

/// A reply is the number of the core that gives it, and this.
const REPLY: usize = 1_000;

struct Office {
    desks: Arc<[Desk]>,
    works: Vec<Mutex<Option<Box<Clerk>>>>,
    _polls: Vec<Poll>,
}

struct Desk {
    mailbox: Mailbox,
    sockets: Sockets,
    /// What can be read from its sockets, each of which makes it ask all others.
    wishes: AtomicUsize,
    replies: AtomicUsize,
    steps: AtomicUsize,
    reads: AtomicUsize,
}

/// A core.
struct Clerk {
    here: usize,
    desks: Arc<[Desk]>,
    calls: Vec<usize>,
}

impl Office {
    /// All cores rest, and the thread of the first one waits for the sockets of all.
    fn new() -> Self {
        let polls: Vec<_> = (0..CORES).map(|_| Poll::new().expect("epoll")).collect();
        let desk = |(core, poll): (usize, &Poll)| Desk {
            mailbox: Mailbox::new(CoreWaker::new().expect("eventfd")),
            sockets: Sockets::new(core, poll).expect("descriptors"),
            wishes: AtomicUsize::new(0),
            replies: AtomicUsize::new(0),
            steps: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
        };
        let desks: Arc<[Desk]> = polls.iter().enumerate().map(desk).collect();
        for (core, desk) in desks.iter().enumerate() {
            assert!(desk.mailbox.rest());
            assert_eq!(desk.sockets.entrust(0), core != 0);
        }
        let clerk = |here| Mutex::new(Some(Box::new(Clerk { here, desks: Arc::clone(&desks), calls: Vec::new() })));
        let works = (0..CORES).map(clerk).collect();
        Self { desks, works, _polls: polls }
    }

    /// These cores have one wish each, and the thread of the first core has been told; it takes its own turn, and then
    /// sees to the others.
    fn serve(&self, wishes: &[usize]) {
        for &core in wishes {
            self.desks[core].wishes.fetch_add(1, Ordering::Relaxed);
        }
        let mut calls = Vec::new();
        call_guests(self, wishes.iter().filter(|&&core| core != 0).map(|core| GUESTS + core), &mut calls);
        self.desks[0].mailbox.take_up();
        let mut own = lock(&self.works[0]);
        let clerk = own.as_mut().expect("it has not ended");
        clerk.read();
        calls.append(&mut clerk.calls);
        drop(own);
        answer(0, self, true, &mut calls);
        assert!(self.desks[0].mailbox.rest(), "mail is left");
    }

    fn counts(&self, of: impl Fn(&Desk) -> &AtomicUsize) -> Vec<usize> {
        self.desks.iter().map(|desk| of(desk).swap(0, Ordering::Relaxed)).collect()
    }
}

impl Places for Office {
    type Work = Clerk;

    fn place(&self, core: usize) -> (&Mailbox, &Mutex<Option<Box<Clerk>>>) {
        (&self.desks[core].mailbox, &self.works[core])
    }

    fn sockets(&self, core: usize) -> &Sockets {
        &self.desks[core].sockets
    }
}

impl Clerk {
    fn read(&mut self) {
        let desks = Arc::clone(&self.desks);
        let here = &desks[self.here];
        here.reads.fetch_add(1, Ordering::Relaxed);
        here.sockets.take_up();
        for _ in 0..here.wishes.swap(0, Ordering::Relaxed) {
            for core in 0..CORES {
                if core != self.here {
                    self.send(core, self.here);
                }
            }
        }
    }

    fn send(&mut self, to: usize, piece: usize) {
        if self.desks[to].mailbox.leave(Mail::Call(piece)) {
            self.calls.push(to);
        }
    }
}

impl Stepped for Clerk {
    fn turn(&mut self, _: &Events) {
        unreachable!("no thread runs but that of the test");
    }

    fn step_through(&mut self) {
        self.desks[self.here].steps.fetch_add(1, Ordering::Relaxed);
        let mut mail = Vec::new();
        self.desks[self.here].mailbox.collect(&mut mail);
        for one in mail {
            match one {
                Mail::Call(asker) if asker < REPLY => self.send(asker, REPLY + self.here),
                Mail::Call(_) => drop(self.desks[self.here].replies.fetch_add(1, Ordering::Relaxed)),
                _ => unreachable!("nothing else is sent"),
            }
        }
    }

    fn finish(&mut self, _: Thread) {}

    fn help(&mut self, reads: bool) {
        if reads {
            self.read();
        }
        self.step_through();
    }

    fn takes_help(&self) -> bool {
        true
    }

    fn let_go(&mut self, _: bool) -> Option<Duration> {
        None
    }

    fn lets_sleep(&mut self) -> bool {
        true
    }

    fn has_ended(&self) -> bool {
        false
    }

    fn calls(&mut self) -> &mut Vec<usize> {
        &mut self.calls
    }
}

#[test]
fn two_batches_carry_what_all_cores_have_for_each_other() {
    let office = Office::new();
    let all: Vec<usize> = (0..CORES).collect();
    office.serve(&all);
    assert_eq!(office.counts(|desk| &desk.replies), [CORES - 1; CORES]);
    assert_eq!(office.counts(|desk| &desk.reads), [1; CORES]);
    let steps = office.counts(|desk| &desk.steps);
    assert!(steps.iter().all(|&steps| steps <= 2), "{steps:?}");
}

#[test]
fn sockets_of_which_nothing_was_told_are_not_asked() {
    let office = Office::new();
    office.serve(&[0, 3]);
    let replies = office.counts(|desk| &desk.replies);
    assert_eq!((replies[0], replies[3], replies.iter().sum()), (CORES - 1, CORES - 1, 2 * (CORES - 1)));
    let reads = office.counts(|desk| &desk.reads);
    assert_eq!((reads[0], reads[3], reads.iter().sum()), (1, 1, 2));
}

#[test]
fn sockets_that_another_thread_waits_for_are_read_in_the_first_round_only() {
    let office = Office::new();
    assert!(office.desks[5].sockets.entrust(5));
    for (is_first_round, expected) in [(true, 1), (false, 0)] {
        assert!(office.desks[5].mailbox.leave(Mail::Call(1)));
        answer(0, &office, is_first_round, &mut vec![5]);
        assert_eq!(office.counts(|desk| &desk.reads)[5], expected);
        assert_eq!(office.counts(|desk| &desk.replies)[1], 1);
    }
}
