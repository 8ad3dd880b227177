//! Which thread steps a core: its own, or while that sleeps, the thread of another core that has mail for it.
//!
//! Half of what clients ask a core of two is for groups of the other one. To wake a thread for that, and to be woken
//! for the answer, costs as much as the request itself. So everything of a core except the wait is behind a lock, which
//! its own thread releases while it sleeps in `epoll_wait`. A thread that leaves mail for a resting core is *called* to
//! it: a thread of a core steps the other core when its own turn is over, on whatever sockets that has, and then comes
//! back to the answers. All other callers wake the core's own thread. A core that works is left alone: the thread that
//! steps it looks for mail before it releases the lock.
//!
//! That no mail is forgotten rests on this: while there is mail, either the core's stance is *working*, and somebody
//! who has the lock or has been woken for it will look into the box; or it is *called*, and the one who has been called
//! will come. It becomes *resting* only under the lock, with an empty box. A thread holds one lock at a time, so there
//! is no circle of waiting.
//!
//! What a thread does for others is bounded, since its own clients wait meanwhile: long envelopes (see `core_thread`),
//! cores at long work, and mail that keeps coming are for the core's own thread. If this thread waits for a core's
//! sockets, mail that keeps coming for that core is this thread's, and waits for the next batch or turn.

use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};

use crate::limits::{CALL_BATCHES_MAX, CALL_ROUNDS_MAX, EVENTS_PER_WAIT_MAX, HELP_TURNS_MAX};
use crate::mailbox::{Call, Mailbox};

/// The token of a core's waker.
pub const WAKE: Token = Token(usize::MAX);

/// From here on tokens belong to other cores: those that have this thread wait for their sockets.
pub const GUESTS: usize = 1 << 48;

/// A core's sockets: the epoll instance in which they are, and the thread that waits for it.
#[derive(Debug)]
pub struct Sockets {
    registry: Registry,
    /// The core with the thread that waits for them.
    watcher: AtomicUsize,
    /// Its watcher has been told that there is something to read, and nobody has looked since.
    is_unread: AtomicBool,
}

impl Sockets {
    /// The sockets of a core. Its own thread waits for them at first.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn new(core: usize, poll: &Poll) -> io::Result<Self> {
        let registry = poll.registry().try_clone()?;
        Ok(Self { registry, watcher: AtomicUsize::new(core), is_unread: AtomicBool::new(false) })
    }

    /// The core with the thread that waits for them.
    pub fn watcher(&self) -> usize {
        self.watcher.load(Ordering::Acquire)
    }

    /// The thread of this core waits for them from now on. False if it already does; if true, the core's own thread,
    /// which sees to it, must be woken.
    #[must_use]
    pub fn entrust(&self, watcher: usize) -> bool {
        self.watcher.swap(watcher, Ordering::AcqRel) != watcher
    }

    /// Its own thread, which is about to be woken, must wait for them.
    fn give_back(&self, core: usize) {
        self.watcher.store(core, Ordering::Release);
    }

    /// Who is about to read all that can be read says so before.
    pub fn take_up(&self) {
        self.is_unread.store(false, Ordering::SeqCst);
    }

    /// Something may be left: the core's own thread looks before it sleeps.
    pub fn leave(&self) {
        self.is_unread.store(true, Ordering::SeqCst);
    }

    fn is_unread(&self) -> bool {
        self.is_unread.load(Ordering::SeqCst)
    }
}

/// Which thread does something for a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// The core's own.
    Own,
    /// One that helps. Meanwhile the core's own thread may have had a turn, and be asleep again.
    Other,
}

/// All of a core but the wait.
pub trait Stepped {
    /// A turn with these events, by its own thread. If it is called by that, what others need not wait for is left for
    /// [`Stepped::finish`].
    fn turn(&mut self, events: &Events);

    /// A turn without sockets, by its own thread, before it finishes.
    fn step_through(&mut self);

    /// The thread that has stepped it has answered all calls: what has been left is done now. May bring about further
    /// calls. Its own thread may take mail once more, and looks into the box later anyway. Another thread must not: it
    /// does not let the core rest afterwards. It is called to this core itself instead.
    fn finish(&mut self, by: Thread);

    /// A turn by another thread, which will have it finished. `reads` says whether sockets that can be read are, too.
    fn help(&mut self, reads: bool);

    /// False if only its own thread should step it now.
    fn takes_help(&self) -> bool;

    /// Its own thread is about to wait: says how long it may. Its mailbox rests, or the time is zero. `is_watched` says
    /// that another thread waits for its sockets meanwhile.
    fn let_go(&mut self, is_watched: bool) -> Option<Duration>;

    /// Whether its own thread, which sleeps for the time that [`Stepped::let_go`] has told, may go on doing so. Asked
    /// after each step by another thread, and again after what [`Stepped::finish`] did.
    fn lets_sleep(&mut self) -> bool;

    /// It has been told to end.
    fn has_ended(&self) -> bool;

    /// Cores to which the thread that steps it has been called.
    fn calls(&mut self) -> &mut Vec<usize>;
}

/// All cores, each with its mailbox. There is no work before a core's thread has begun, nor after it has ended.
pub trait Places {
    /// What is behind the locks.
    type Work: Stepped;

    /// A core's.
    fn place(&self, core: usize) -> (&Mailbox, &Mutex<Option<Box<Self::Work>>>);

    /// A core's.
    fn sockets(&self, core: usize) -> &Sockets;
}

/// Where a core's own thread waits: for the core's sockets, or only to be woken, while another thread waits for them.
struct Berth<'a, P> {
    here: usize,
    places: &'a P,
    poll: Poll,
    /// In which nothing but the waker is.
    bed: Poll,
    /// Who waits for the sockets.
    watcher: usize,
}

const OWN_DESCRIPTORS: &str = "epoll_ctl on descriptors that are ours";

impl<'a, P: Places> Berth<'a, P> {
    fn new(here: usize, places: &'a P, poll: Poll) -> Self {
        let bed = Poll::new().expect("descriptors are reserved for cores");
        places.place(here).0.waker().register(bed.registry(), WAKE).expect(OWN_DESCRIPTORS);
        Self { here, places, poll, bed, watcher: here }
    }

    /// Lets the thread wait for the sockets that is to. True if it is another one.
    fn settle(&mut self) -> bool {
        let (mailbox, sockets) = (self.places.place(self.here).0, self.places.sockets(self.here));
        let wanted = sockets.watcher();
        if wanted != self.watcher {
            let own = sockets.registry.as_raw_fd();
            if self.watcher == self.here {
                mailbox.waker().deregister(&sockets.registry).expect(OWN_DESCRIPTORS);
            } else {
                let registry = &self.places.sockets(self.watcher).registry;
                registry.deregister(&mut SourceFd(&own)).expect(OWN_DESCRIPTORS);
            }
            self.watcher = wanted;
            if wanted == self.here {
                sockets.take_up();
                mailbox.waker().register(&sockets.registry, WAKE).expect(OWN_DESCRIPTORS);
            } else {
                let registry = &self.places.sockets(wanted).registry;
                let token = Token(GUESTS + self.here);
                registry.register(&mut SourceFd(&own), token, Interest::READABLE).expect(OWN_DESCRIPTORS);
            }
        }
        self.watcher != self.here
    }

    /// Sleeps until something happens, or the time is up.
    fn wait(&mut self, events: &mut Events, timeout: Option<Duration>) {
        if self.watcher == self.here {
            return wait(&mut self.poll, events, timeout);
        }
        let sockets = self.places.sockets(self.here);
        if !sockets.is_unread() {
            wait(&mut self.bed, events, timeout);
        }
        // The watcher may be busy with something else, or have found this core in the hands of its own thread. Being
        // awake anyway, this one looks as well.
        sockets.take_up();
        wait(&mut self.poll, events, Some(Duration::ZERO));
        if events.iter().count() == EVENTS_PER_WAIT_MAX {
            sockets.leave();
        }
    }
}

fn wait(poll: &mut Poll, events: &mut Events, timeout: Option<Duration>) {
    if let Err(error) = poll.poll(events, timeout)
        && error.kind() != ErrorKind::Interrupted
    {
        panic!("epoll_wait on a descriptor that is ours: {error}");
    }
}

/// Calls this thread to the other cores that these tokens name: it waits for their sockets, and has been told of them.
pub fn call_guests<P: Places>(places: &P, tokens: impl Iterator<Item = usize>, calls: &mut Vec<usize>) {
    for guest in tokens.filter(|&token| token >= GUESTS && token != WAKE.0).map(|token| token - GUESTS) {
        places.sockets(guest).leave();
        let mailbox = places.place(guest).0;
        match mailbox.call() {
            Call::Yours => calls.push(guest),
            // A thread that comes looks at the note that has just been left.
            Call::Others => {}
            // The thread that has it may have read its sockets already.
            Call::InHands => mailbox.wake(),
        }
    }
}

/// A core's own thread: turns until the core ends, and hands it back.
///
/// # Panics
/// If another core has panicked while this one stepped it, or the other way round.
pub fn run<P: Places>(here: usize, places: &P, poll: Poll, work: Box<P::Work>) -> Box<P::Work> {
    let (mailbox, place) = places.place(here);
    *lock(place) = Some(work);
    let mut events = Events::with_capacity(EVENTS_PER_WAIT_MAX);
    let (mut calls, mut later) = (Vec::new(), Vec::new());
    let mut berth = Berth::new(here, places, poll);
    loop {
        let is_watched = berth.settle();
        let timeout = match &mut *lock(place) {
            Some(work) if !work.has_ended() => work.let_go(is_watched),
            _ => break,
        };
        // Cores wait that have been left for this turn.
        let timeout = if calls.is_empty() { timeout } else { Some(Duration::ZERO) };
        berth.wait(&mut events, timeout);
        call_guests(places, events.iter().map(|event| event.token().0), &mut calls);
        if let Some(work) = &mut *lock(place) {
            // A thread that is called meanwhile need not come.
            mailbox.take_up();
            work.calls().append(&mut calls);
            work.turn(&events);
            calls.append(work.calls());
        }
        let mut rounds = 0;
        while !calls.is_empty() {
            // Its own clients are answered when all others have been seen to, and get all their replies at once.
            while rounds < CALL_ROUNDS_MAX && !calls.is_empty() {
                answer(here, places, rounds == 0, &mut calls);
                rounds += 1;
            }
            for other in calls.drain(..) {
                if places.sockets(other).watcher() == here {
                    later.push(other);
                } else {
                    places.place(other).0.wake();
                }
            }
            if let Some(work) = &mut *lock(place) {
                work.finish(Thread::Own);
                calls.append(work.calls());
            }
        }
        // The cores with sockets that it waits for are its work, and come again when its own sockets have been read. If
        // their threads were woken, they would do it side by side, and have more and more mail for each other.
        calls.append(&mut later);
    }
    for other in calls.drain(..) {
        places.place(other).0.wake();
    }
    lock(place).take().expect("only this thread takes it away")
}

/// Sees to the cores to which the thread of `here` has been called, and to the answers for its own.
///
/// In batches, each in the order of the cores: all that are called are stepped before one is stepped again. So a core
/// that is stepped late in a batch finds the envelopes of all that were stepped before it, and a batch later all
/// others: two batches carry what many cores have for each other, and each core turns once in each of them. Anyone who
/// followed each call at once would step a core once for each envelope. What is left after several batches stays among
/// the calls.
///
/// Sockets are read in the first round only. What is read causes more to be finished, so that a thread that read in
/// each round would never come to an end, and would at last wake all the others.
fn answer<P: Places>(here: usize, places: &P, reads: bool, calls: &mut Vec<usize>) {
    let (mut batch, mut helped) = (Vec::new(), Vec::new());
    for _ in 0..CALL_BATCHES_MAX {
        if calls.is_empty() {
            break;
        }
        std::mem::swap(&mut batch, calls);
        batch.sort_unstable();
        for other in batch.drain(..) {
            if !help(here, other, (places, reads), calls, &mut helped) {
                places.place(other).0.wake();
            }
        }
        // What has come back is looked at before sockets are: clients wait for it.
        let (mailbox, place) = places.place(here);
        if !mailbox.is_empty()
            && let Some(work) = &mut *lock(place)
            && !work.has_ended()
        {
            work.step_through();
            calls.append(work.calls());
        }
    }
    for other in helped {
        let (mailbox, place) = places.place(other);
        match try_lock(place) {
            None => mailbox.wake(),
            Some(mut place) => {
                if let Some(work) = &mut *place {
                    work.finish(Thread::Other);
                    calls.append(work.calls());
                    // What has been left for the end may have been a deadline, or a client that must be read again.
                    if !work.lets_sleep() {
                        mailbox.wake();
                    }
                }
            }
        }
    }
}

/// Steps another core while its own thread sleeps, and notes it among those to be finished; false if its own thread
/// must be woken.
fn help<P: Places>(
    here: usize,
    other: usize,
    (places, reads): (&P, bool),
    calls: &mut Vec<usize>,
    helped: &mut Vec<usize>,
) -> bool {
    let (mailbox, place) = places.place(other);
    // A thread that has it looks for mail, unless it has already done so and is about to release it.
    let Some(mut place) = try_lock(place) else { return !mailbox.awaits_the_called() };
    // One that has ended or has not begun looks after itself, and one that somebody has seen to is left alone.
    let Some(work) = &mut *place else { return true };
    if !mailbox.awaits_the_called() {
        return true;
    }
    if !work.takes_help() {
        places.sockets(other).give_back(other);
        return false;
    }
    // Its sockets are read once: those of this thread's own core wait meanwhile. Of those for which this thread waits
    // it has been told, if there is anything to read.
    let sockets = places.sockets(other);
    let is_first = !helped.contains(&other);
    if is_first {
        helped.push(other);
    }
    let mut reads = sockets.is_unread() || (reads && is_first && sockets.watcher() != here);
    for _ in 0..HELP_TURNS_MAX {
        work.help(std::mem::take(&mut reads));
        calls.append(work.calls());
        if mailbox.rest() {
            // What its watcher has noted meanwhile, its own thread reads.
            return work.lets_sleep() && !sockets.is_unread();
        }
    }
    if sockets.watcher() == here {
        // It is this thread's work, and comes again in the next batch.
        mailbox.stay_called();
        calls.push(other);
        return true;
    }
    sockets.give_back(other);
    false
}

const ONE_PANICKED: &str = "a core has panicked: nothing is known of its groups";

fn lock<W>(place: &Mutex<Option<Box<W>>>) -> MutexGuard<'_, Option<Box<W>>> {
    place.lock().expect(ONE_PANICKED)
}

fn try_lock<W>(place: &Mutex<Option<Box<W>>>) -> Option<MutexGuard<'_, Option<Box<W>>>> {
    match place.try_lock() {
        Ok(place) => Some(place),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Poisoned(_)) => panic!("{ONE_PANICKED}"),
    }
}

#[cfg(test)]
mod tests;
