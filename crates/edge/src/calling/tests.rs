//! Toy cores with hops as their mail: the thread that steps a core sends each piece on to another one, until it has
//! hopped enough. They turn, rest, call and help by the code that real cores use, on real threads, without a time-out:
//! mail that is forgotten once stops the test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use nix::sys::epoll::{Epoll, EpollEvent, EpollTimeout};
use stdx::Prng;

use super::*;
use crate::core_waker::CoreWaker;
use crate::mailbox::Mail;

const CORES: usize = 3;
const PIECES: usize = 24;
const HOPS: usize = 3_000;

/// Longer than anything takes that comes about at all, on any machine.
const PATIENCE: Duration = Duration::from_secs(120);

const SOCKET: Token = Token(0);

struct Toys {
    places: Vec<(Mailbox, Mutex<Option<Box<Toy>>>)>,
    sockets: Vec<Sockets>,
    /// What can be read from each core's one socket: pieces, of which an edge tells once.
    readable: Vec<(CoreWaker, Mutex<Vec<usize>>)>,
    /// Pieces of mail that have hopped enough.
    arrived: AtomicUsize,
    /// Turns that its own thread took.
    turns: AtomicUsize,
    /// Turns that somebody else took.
    helped: AtomicUsize,
    all_arrived: Mutex<Sender<()>>,
}

struct Toy {
    here: usize,
    toys: Arc<Toys>,
    prng: Prng,
    edges: Epoll,
    calls: Vec<usize>,
    mail: Vec<Mail>,
    /// Somebody is stepping it: nobody else may.
    is_stepped: AtomicBool,
    /// Its own thread sleeps until it is woken.
    sleeps: bool,
    /// It has something to do that only its own thread does.
    needs_its_own: bool,
    /// Pieces that have hopped enough and are counted when the thread that steps it finishes.
    unfinished: usize,
    /// Pieces of which it learns only when it is finished that its own thread must see to them.
    unowned: usize,
    /// The same, once it knows.
    owned: usize,
    /// Pieces that are sent on when it is finished, some of them to itself, as news of what has been written are.
    later: Vec<usize>,
    ends: bool,
}

impl Toys {
    fn new() -> (Arc<Self>, Vec<Poll>, std::sync::mpsc::Receiver<()>) {
        let polls: Vec<_> = (0..CORES).map(|_| Poll::new().expect("epoll")).collect();
        let waker = |poll: &Poll, token| {
            let waker = CoreWaker::new().expect("eventfd");
            waker.register(poll.registry(), token).expect("epoll_ctl");
            waker
        };
        let places = polls.iter().map(|poll| (Mailbox::new(waker(poll, WAKE)), Mutex::new(None))).collect();
        let sockets = polls.iter().enumerate().map(|(core, poll)| Sockets::new(core, poll).expect("descriptors"));
        let sockets = sockets.collect();
        let readable = polls.iter().map(|poll| (waker(poll, SOCKET), Mutex::default())).collect();
        let (told, listener) = channel();
        let (arrived, turns, helped) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let all_arrived = Mutex::new(told);
        (Arc::new(Self { places, sockets, readable, arrived, turns, helped, all_arrived }), polls, listener)
    }

    fn start(self: &Arc<Self>, polls: Vec<Poll>, seed: u64) -> Vec<JoinHandle<()>> {
        let start = |(here, poll): (usize, Poll)| {
            let edges = Epoll(nix::unistd::dup(poll.registry()).expect("descriptors"));
            let toys = Arc::clone(self);
            thread::spawn(move || {
                let toy = Toy {
                    here,
                    toys: Arc::clone(&toys),
                    prng: Prng::new(seed + here as u64),
                    edges,
                    calls: Vec::new(),
                    mail: Vec::new(),
                    is_stepped: AtomicBool::new(false),
                    sleeps: false,
                    needs_its_own: false,
                    unfinished: 0,
                    unowned: 0,
                    owned: 0,
                    later: Vec::new(),
                    ends: false,
                };
                drop(run(here, &*toys, poll, Box::new(toy)));
            })
        };
        polls.into_iter().enumerate().map(start).collect()
    }
}

impl Places for Toys {
    type Work = Toy;

    fn place(&self, core: usize) -> (&Mailbox, &Mutex<Option<Box<Toy>>>) {
        (&self.places[core].0, &self.places[core].1)
    }

    fn sockets(&self, core: usize) -> &Sockets {
        &self.sockets[core]
    }
}

impl Toy {
    fn step_mail(&mut self) {
        assert!(!self.is_stepped.swap(true, Ordering::AcqRel), "two step one core");
        let mut mail = std::mem::take(&mut self.mail);
        self.toys.places[self.here].0.collect(&mut mail);
        for one in mail.drain(..) {
            match one {
                Mail::Call(0) if self.prng.below(2) == 0 => self.unowned += 1,
                Mail::Call(0) => self.unfinished += 1,
                Mail::Call(hops) if self.prng.below(4) == 0 => self.later.push(hops - 1),
                Mail::Call(hops) => self.send_on(hops - 1),
                Mail::End => self.ends = true,
                _ => unreachable!("nothing else is sent"),
            }
        }
        self.mail = mail;
        assert!(self.is_stepped.swap(false, Ordering::AcqRel));
    }

    /// Sends on what its socket has, if it can be read according to these tokens.
    fn read(&mut self, tokens: impl Iterator<Item = usize>) {
        if tokens.into_iter().any(|token| token == SOCKET.0) {
            let pieces = std::mem::take(&mut *self.toys.readable[self.here].1.lock().expect("no panic"));
            pieces.into_iter().for_each(|hops| self.send_on(hops));
        }
    }

    fn send_on(&mut self, hops: usize) {
        let other = (self.here + 1 + self.prng.below(CORES as u64 - 1) as usize) % CORES;
        let mailbox = &self.toys.places[other].0;
        match self.prng.below(8) {
            0 => mailbox.post(Mail::Call(hops)),
            2 | 3 => {
                let (waker, pieces) = &self.toys.readable[other];
                pieces.lock().expect("no panic").push(hops);
                waker.wake();
            }
            chance => {
                if mailbox.leave(Mail::Call(hops)) {
                    self.calls.push(other);
                }
                self.needs_its_own |= chance == 1;
            }
        }
        if self.prng.below(64) == 0 {
            thread::yield_now();
        }
    }
}

impl Stepped for Toy {
    fn turn(&mut self, events: &Events) {
        self.toys.turns.fetch_add(1, Ordering::Relaxed);
        self.sleeps = false;
        self.needs_its_own = false;
        self.unfinished += std::mem::take(&mut self.owned);
        self.read(events.iter().map(|event| event.token().0));
        self.step_mail();
        if self.calls.is_empty() {
            self.finish(Thread::Own);
        }
    }

    fn step_through(&mut self) {
        self.step_mail();
    }

    fn finish(&mut self, by: Thread) {
        for hops in std::mem::take(&mut self.later) {
            let other = self.prng.below(CORES as u64) as usize;
            if self.toys.places[other].0.leave(Mail::Call(hops)) {
                self.calls.push(other);
            }
        }
        if by == Thread::Own && self.prng.below(2) == 0 {
            self.step_mail();
        }
        self.owned += std::mem::take(&mut self.unowned);
        let arrived = std::mem::take(&mut self.unfinished);
        if self.toys.arrived.fetch_add(arrived, Ordering::AcqRel) + arrived == PIECES && arrived > 0 {
            let _ = self.toys.all_arrived.lock().expect("no panic").send(());
        }
    }

    fn help(&mut self, reads: bool) {
        self.toys.helped.fetch_add(1, Ordering::Relaxed);
        if reads {
            let toys = Arc::clone(&self.toys);
            toys.sockets[self.here].take_up();
            let mut found = [EpollEvent::empty(); 4];
            let count = self.edges.wait(&mut found, EpollTimeout::ZERO).expect("epoll_wait");
            let tokens = found[..count].iter().map(|event| event.data() as usize);
            self.needs_its_own |= tokens.clone().any(|token| token == WAKE.0);
            call_guests(&*toys, tokens.clone(), &mut self.calls);
            self.read(tokens);
        }
        self.step_mail();
    }

    fn takes_help(&self) -> bool {
        !self.ends && !self.needs_its_own
    }

    fn let_go(&mut self, _: bool) -> Option<Duration> {
        let is_idle = !self.needs_its_own && self.unfinished + self.unowned + self.owned + self.later.len() == 0;
        self.sleeps = is_idle && self.toys.places[self.here].0.rest();
        if self.sleeps { None } else { Some(Duration::ZERO) }
    }

    fn lets_sleep(&mut self) -> bool {
        !self.ends && !self.needs_its_own && self.owned == 0
    }

    fn has_ended(&self) -> bool {
        self.ends
    }

    fn calls(&mut self) -> &mut Vec<usize> {
        &mut self.calls
    }
}

#[test]
fn no_mail_is_forgotten_and_no_core_is_stepped_by_two() {
    let (mut helped, mut seed) = (0, 0);
    // Where there is but one processor, a thread may rarely come to step the core of another.
    while seed < 8 || (helped == 0 && seed < 100) {
        seed += 1;
        let (toys, polls, listener) = Toys::new();
        let threads = toys.start(polls, seed);
        // Some comes from a thread that steps nobody, while they are at it.
        for piece in 0..PIECES {
            toys.places[piece % CORES].0.post(Mail::Call(HOPS));
        }
        // And one changes who waits for sockets all the while, in an order that may make a line of those who wait.
        let is_over = Arc::new(AtomicBool::new(false));
        let meddler = thread::spawn({
            let (toys, is_over) = (Arc::clone(&toys), Arc::clone(&is_over));
            let mut prng = Prng::new(seed + 1_000);
            move || {
                while !is_over.load(Ordering::Acquire) {
                    let core = 1 + prng.below(CORES as u64 - 1) as usize;
                    if toys.sockets[core].entrust(prng.below(core as u64 + 1) as usize) {
                        toys.places[core].0.wake();
                    }
                    thread::sleep(Duration::from_micros(prng.below(500)));
                }
            }
        });
        listener.recv_timeout(PATIENCE).expect("mail was forgotten");
        is_over.store(true, Ordering::Release);
        meddler.join().expect("no panic");
        // With nothing to do all of them sleep, once they have got there.
        let begun = Instant::now();
        loop {
            let before = toys.turns.load(Ordering::Relaxed);
            thread::sleep(Duration::from_millis(50));
            let more = toys.turns.load(Ordering::Relaxed) - before;
            if more < 100 {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "{more} turns with nothing to do");
        }
        for (mailbox, _) in &toys.places {
            mailbox.post(Mail::End);
        }
        for thread in threads {
            thread.join().expect("no panic");
        }
        assert_eq!(toys.arrived.load(Ordering::Acquire), PIECES);
        helped += toys.helped.load(Ordering::Relaxed);
    }
    assert!(helped > 0, "none was ever stepped by another thread");
}

mod batches;

/// The stances of a mailbox and the lock beside it, as a model that is checked in every interleaving: one core with its
/// own thread that turns, rests and sleeps, and senders who leave mail, are called and come.
mod model {
    use std::collections::BTreeSet;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Stance {
        Working,
        Resting,
        Called,
    }

    /// Where a thread is in what it does.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum At {
        /// The own thread: wants the lock for a turn; has it; has taken its mail; looks whether it may rest.
        WantsTurn,
        TakesUp,
        Collects,
        Rests,
        /// It lets go, and sleeps or looks again; it sleeps until it is woken.
        LetsGo(bool),
        Sleeps,
        /// A sender: leaves mail; has been called; has found the lock taken; has the lock; has stepped; lets go.
        Leaves,
        IsCalled,
        FoundItTaken,
        Helps,
        HasStepped(u8),
        Releases(bool),
        Done,
    }

    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct World {
        stance: Stance,
        mail: u8,
        is_locked: bool,
        is_woken: bool,
        /// How often a socket may still wake its own thread.
        edges: u8,
        own: At,
        senders: [At; 3],
    }

    const TURNS_MAX: u8 = 2;

    /// All that may happen next. A thread that has been called may give up when the lock is taken, or come again when
    /// mail keeps coming.
    fn next(world: &World, gives_up: bool, comes_again: bool) -> Vec<World> {
        let mut worlds = Vec::new();
        let mut with = |act: &dyn Fn(&mut World)| {
            let mut next = world.clone();
            act(&mut next);
            worlds.push(next);
        };
        match world.own {
            At::WantsTurn if !world.is_locked => with(&|world| {
                (world.is_locked, world.own) = (true, At::TakesUp);
            }),
            At::TakesUp => with(&|world| {
                (world.stance, world.own) = (Stance::Working, At::Collects);
            }),
            At::Collects => with(&|world| {
                (world.stance, world.mail, world.own) = (Stance::Working, 0, At::Rests);
            }),
            At::Rests => with(&|world| {
                world.stance = if world.mail == 0 { Stance::Resting } else { Stance::Working };
                world.own = At::LetsGo(world.mail == 0);
            }),
            At::LetsGo(sleeps) => with(&|world| {
                (world.is_locked, world.own) = (false, if sleeps { At::Sleeps } else { At::WantsTurn });
            }),
            At::Sleeps if !world.is_woken && world.edges > 0 => with(&|world| {
                (world.edges, world.own) = (world.edges - 1, At::WantsTurn);
            }),
            At::Sleeps if world.is_woken => with(&|world| {
                (world.is_woken, world.own) = (false, At::WantsTurn);
            }),
            _ => {}
        }
        for place in 0..world.senders.len() {
            let mut with = |act: &dyn Fn(&mut World) -> At| {
                let mut next = world.clone();
                next.senders[place] = act(&mut next);
                worlds.push(next);
            };
            match world.senders[place] {
                At::Leaves => with(&|world| {
                    world.mail += 1;
                    if world.stance != Stance::Resting {
                        return At::Done;
                    }
                    world.stance = Stance::Called;
                    At::IsCalled
                }),
                At::IsCalled if world.is_locked => with(&|_| At::FoundItTaken),
                At::IsCalled => with(&|world| {
                    world.is_locked = true;
                    At::Helps
                }),
                At::FoundItTaken => with(&|world| {
                    world.is_woken |= world.stance == Stance::Called && !gives_up;
                    At::Done
                }),
                At::Helps => with(&|world| match world.stance {
                    Stance::Called => {
                        (world.stance, world.mail) = (Stance::Working, 0);
                        At::HasStepped(1)
                    }
                    _ => At::Releases(false),
                }),
                At::HasStepped(turns) => with(&|world| {
                    world.stance = if world.mail == 0 { Stance::Resting } else { Stance::Working };
                    match (world.mail, turns) {
                        (0, _) => At::Releases(false),
                        (_, TURNS_MAX) if comes_again => {
                            (world.stance, world.is_locked) = (Stance::Called, false);
                            At::IsCalled
                        }
                        (_, TURNS_MAX) => At::Releases(true),
                        _ => {
                            world.mail = 0;
                            At::HasStepped(turns + 1)
                        }
                    }
                }),
                At::Releases(wakes) => with(&|world| {
                    world.is_locked = false;
                    world.is_woken |= wakes;
                    At::Done
                }),
                _ => {}
            }
        }
        worlds
    }

    /// Worlds in which nothing happens any more.
    fn ends(gives_up: bool, comes_again: bool) -> (usize, Vec<World>) {
        let first = World {
            stance: Stance::Working,
            mail: 0,
            is_locked: false,
            is_woken: false,
            edges: 2,
            own: At::WantsTurn,
            senders: [At::Leaves; 3],
        };
        let (mut seen, mut ahead, mut ends) = (BTreeSet::from([first.clone()]), vec![first], Vec::new());
        while let Some(world) = ahead.pop() {
            let following = next(&world, gives_up, comes_again);
            if following.is_empty() {
                ends.push(world);
                continue;
            }
            ahead.extend(following.into_iter().filter(|next| seen.insert(next.clone())));
        }
        (seen.len(), ends)
    }

    #[test]
    fn whatever_the_order_no_mail_is_left_when_all_sleep() {
        for comes_again in [false, true] {
            let (seen, ends) = ends(false, comes_again);
            assert!(seen > 500 && !ends.is_empty(), "{seen} worlds");
            for end in ends {
                let what = (end.mail, end.is_locked, end.own, end.stance);
                assert_eq!(what, (0, false, At::Sleeps, Stance::Resting), "{end:?}");
            }
        }
    }

    #[test]
    fn one_who_gives_up_when_the_lock_is_taken_leaves_mail() {
        assert!(ends(true, false).1.iter().any(|end| end.mail > 0));
    }
}
