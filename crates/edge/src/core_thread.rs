//! One core: its sockets and groups, turning.
//!
//! A turn is: wait for sockets and mail; read each readable socket once into the one buffer and step its bytes; read
//! what other nodes say to this core's groups; step the mail; step `Turn`; carry out what the core asks. So a client
//! with sixteen requests in flight costs one read and one write, and requests of many clients become one entry of the
//! log. A request alone costs three system calls: wait, read, write. Nothing here spins: with nothing to do the thread
//! sleeps in `epoll_wait`, and then threads of other cores may step this one; see `calling`.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use group::host::Persist;
use group::ids::{CoreId, Now, SessionId};
use journal::Append;
use mio::{Events, Interest, Poll, Registry, Token};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};
use node::Core;
use node::event::{Action, Event, Follower, UsersFile, Wish};
use node::settings::Settings;
use stdx::Instant;

use crate::black_box::TurnClock;
use crate::calling::{self, GUESTS, Places, Sockets, Stepped, Thread, WAKE, call_guests};
use crate::carrier::Carrier;
use crate::clock;
use crate::connection::{Connection, Connections, Written};
use crate::fault::Fault;
use crate::host::{End, Host};
use crate::limits::{
    HELP_EVENTS_MAX, HELP_LONG, HELP_LONG_WATCHED, HELP_MAIL_MAX, HELP_REST, HELP_SUSPECT, LINGER_MAX, READ_BYTES_MAX,
    SWEEP_INTERVAL, TURN_READ_BYTES_MAX, descriptors_reserved,
};
use crate::listener::Arrival;
use crate::mailbox::{Mail, Mailbox};
use crate::peers::{Heard, Inbound, Outgoing};
use crate::report;
use crate::run::Invited;
use crate::site::Site;
use crate::storage::Storage;
use crate::tls::{LinkMode, Security, Unfit};
use crate::trust;
use crate::users_file;

const INBOUND: usize = 1 << 32;

const STORAGE_FIRST: &str = "groups come after the storage they are loaded from";

/// A core and its surroundings: all but the wait.
pub struct CoreWork {
    id: CoreId,
    host: Arc<Host>,
    /// Comes by mail once the data directory is open; nothing is written before.
    storage: Option<Storage>,
    /// Parameters set before that, which it must be told.
    unheard: Vec<(&'static str, String)>,
    registry: Registry,
    /// The same, for the thread that steps the core to ask: an edge is told to the first who asks.
    edges: Epoll,
    core: Core,
    connections: Connections,
    /// On which other nodes speak to the groups of this core. Places are used again.
    inbound: Vec<Option<Box<Inbound>>>,
    /// Sockets that can be read without waiting for an edge.
    line: VecDeque<u32>,
    /// The one read buffer.
    buffer: Box<[u8]>,
    actions: Vec<Action>,
    /// What the core wants appended this turn, and whether it waits for it.
    appends: Vec<(Append, bool)>,
    /// What the core wants told to other nodes this turn.
    outgoing: Vec<Outgoing>,
    mail: Vec<Mail>,
    /// Places of connections that went since its own thread has last waited for events: the next ones may still name
    /// them.
    leaving: Vec<u32>,
    /// Places of those that had gone before it began to wait: free when that is over.
    left: Vec<u32>,
    now: Now,
    turn_clock: TurnClock,
    wake_at: Option<Instant>,
    sweep_at: Instant,
    /// Until when its own thread sleeps, if nothing wakes it.
    sleep: Rest,
    /// A wake-up meant for its own thread has been seen by another.
    must_wake: bool,
    /// Cores to which the thread that steps this one has been called.
    calls: Vec<usize>,
    /// Stepping it took long: until then its own thread does.
    helpless_until: Instant,
    /// Stepping it took long: until then it is measured what that takes of the processor.
    suspect_until: Instant,
    /// Replies of its own that had waited for no disk, when that was looked at last.
    prompt_reply_count: u64,
    /// Another thread waits for its sockets while its own sleeps.
    is_watched: bool,
    /// Some connections are only waiting for their output to be taken.
    has_lingering: bool,
    /// Some of its groups may lack the end of a log that was damaged, and it has not said otherwise yet.
    is_unsettled: bool,
    /// It could not be written down of what level its entries are: no more are written.
    floor_is_unwritten: bool,
    /// Something has been stepped since the last `Turn`.
    owes_turn: bool,
    /// Replies are gathered, since there may be several for a client.
    gathers: bool,
    /// Who has gathered some.
    unsent: Vec<SessionId>,
    reads: bool,
    ends: bool,
}

/// How long a core has nothing to do by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rest {
    /// Not at all.
    None,
    /// Until this moment.
    Until(Instant),
    /// Until something happens.
    Long,
}

impl Rest {
    /// When it is over, if that is known.
    fn end(self) -> Option<Instant> {
        match self {
            Self::Until(instant) => Some(instant),
            Self::None | Self::Long => None,
        }
    }
}

/// What has happened to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Edge {
    token: usize,
    is_readable: bool,
    is_writable: bool,
    is_read_closed: bool,
    is_write_closed: bool,
    is_error: bool,
}

impl Edge {
    fn of(event: &mio::event::Event) -> Self {
        Self {
            token: event.token().0,
            is_readable: event.is_readable(),
            is_writable: event.is_writable(),
            is_read_closed: event.is_read_closed(),
            is_write_closed: event.is_write_closed(),
            is_error: event.is_error(),
        }
    }

    /// The same where `mio` has not been asked: by the same rules.
    fn of_kernel(event: &EpollEvent) -> Self {
        let flags = event.events();
        let (input, output) = (flags.contains(EpollFlags::EPOLLIN), flags.contains(EpollFlags::EPOLLOUT));
        let has = |flag| flags.contains(flag);
        Self {
            token: usize::try_from(event.data()).expect("tokens are of this size"),
            is_readable: input || has(EpollFlags::EPOLLPRI),
            is_writable: output,
            is_read_closed: has(EpollFlags::EPOLLHUP) || (input && has(EpollFlags::EPOLLRDHUP)),
            is_write_closed: has(EpollFlags::EPOLLHUP)
                || (output && has(EpollFlags::EPOLLERR))
                || flags == EpollFlags::EPOLLERR,
            is_error: has(EpollFlags::EPOLLERR),
        }
    }
}

/// Makes a core, and turns it until its mail says to end. Its mailbox's waker is registered with `poll` as [`WAKE`].
///
/// # Panics
/// If the process has no descriptor left for the core.
pub fn run(id: CoreId, host: Arc<Host>, poll: Poll, core: Core) {
    const RESERVED: &str = "descriptors are reserved for cores";
    let registry = poll.registry().try_clone().expect(RESERVED);
    let edges = Epoll(nix::unistd::dup(&registry).expect(RESERVED));
    let work = CoreWork::new(id, Arc::clone(&host), (registry, edges), core);
    let work = calling::run(usize::from(id.0), &*host, poll, Box::new(work));
    host.note_end(&work.core);
}

impl Stepped for CoreWork {
    fn turn(&mut self, events: &Events) {
        self.must_wake = false;
        self.begin();
        let begun = self.now.instant;
        let ran = (begun < self.suspect_until).then(clock::thread_time);
        for index in self.left.drain(..) {
            self.connections.release(index);
        }
        self.read_sockets(events.iter().map(Edge::of));
        self.hear_nodes();
        self.step_mail();
        self.sweep();
        self.step_turn();
        self.carry_out_first();
        let end = clock::instant();
        if end.since(begun) > HELP_LONG {
            self.suspect_until = end + HELP_SUSPECT;
        }
        if ran.is_some_and(|ran| clock::thread_time() - ran > HELP_LONG_WATCHED) {
            self.host.spread(self.here(), end);
        }
        if self.calls.is_empty() {
            self.finish(Thread::Own);
        }
    }

    fn step_through(&mut self) {
        self.now = clock::now();
        self.step_mail();
        self.step_turn();
        self.carry_out_first();
    }

    fn finish(&mut self, by: Thread) {
        // What is written at once is answered at once.
        if self.write() && by == Thread::Own {
            self.step_mail();
            self.step_turn();
            self.carry_out_first();
        }
        self.gathers = true;
        self.carry_out_all();
        self.gathers = false;
        for session in std::mem::take(&mut self.unsent) {
            self.send_gathered(session);
        }
        // What that has brought about: a connection that has turned out broken.
        self.carry_out_all();
        self.write();
    }

    fn help(&mut self, reads: bool) {
        self.begin();
        let begun = self.now.instant;
        let ran = (begun < self.suspect_until).then(clock::thread_time);
        if reads {
            let mut found = [EpollEvent::empty(); HELP_EVENTS_MAX];
            self.host.desks[self.here()].sockets.take_up();
            // What cannot be told now is told to its own thread.
            let count = self.edges.wait(&mut found, EpollTimeout::ZERO).unwrap_or(0);
            if count == found.len() && self.is_watched {
                self.host.desks[self.here()].sockets.leave();
                self.must_wake = true;
            }
            let found = found[..count].iter().map(Edge::of_kernel);
            self.must_wake |= found.clone().any(|edge| edge.token == WAKE.0);
            // Its own thread waited for them, and will no longer be told.
            call_guests(&*self.host, found.clone().map(|edge| edge.token), &mut self.calls);
            self.read_sockets(found);
            self.hear_nodes();
        }
        self.step_mail();
        self.step_turn();
        self.carry_out_first();
        let end = clock::instant();
        // It may also have been the processor that was given to others: next time that is told apart.
        if end.since(begun) > HELP_LONG {
            self.suspect_until = end + HELP_SUSPECT;
        }
        let long = if self.is_watched { HELP_LONG_WATCHED } else { HELP_LONG };
        if ran.is_some_and(|ran| clock::thread_time() - ran > long) {
            self.helpless_until = end + HELP_REST;
        }
        self.turn_clock.sleeps(end, self.sleep.end());
        self.host.desks[self.here()].helped_count.fetch_add(1, Ordering::Relaxed);
    }

    fn takes_help(&self) -> bool {
        // Hardly ever has one been helpless, and then the clock need not be read.
        let is_helpless = self.helpless_until != Instant::ZERO && clock::instant() < self.helpless_until;
        !self.ends && !self.core.is_at_long_work() && !is_helpless
    }

    fn let_go(&mut self, is_watched: bool) -> Option<Duration> {
        self.is_watched = is_watched;
        self.left.append(&mut self.leaving);
        self.sleep = if self.actions.is_empty() { self.rest() } else { Rest::None };
        let now = clock::instant();
        let timeout = match self.sleep {
            Rest::None => Some(Duration::ZERO),
            Rest::Until(instant) => Some(instant.since(now)),
            Rest::Long => None,
        };
        if timeout == Some(Duration::ZERO) || !self.host.desks[self.here()].mailbox.rest() {
            self.sleep = Rest::None;
            return Some(Duration::ZERO);
        }
        self.turn_clock.sleeps(now, self.sleep.end());
        timeout
    }

    fn lets_sleep(&mut self) -> bool {
        let must_wake = std::mem::take(&mut self.must_wake);
        let lets_sleep = !must_wake && !self.ends && self.rest() >= self.sleep;
        if !lets_sleep {
            // It is woken once.
            self.sleep = Rest::None;
        }
        lets_sleep
    }

    fn has_ended(&self) -> bool {
        self.ends
    }

    fn calls(&mut self) -> &mut Vec<usize> {
        &mut self.calls
    }
}

impl Places for Host {
    type Work = CoreWork;

    fn place(&self, core: usize) -> (&Mailbox, &Mutex<Option<Box<CoreWork>>>) {
        (&self.desks[core].mailbox, &self.desks[core].work)
    }

    fn sockets(&self, core: usize) -> &Sockets {
        &self.desks[core].sockets
    }
}

impl CoreWork {
    fn new(id: CoreId, host: Arc<Host>, (registry, edges): (Registry, Epoll), core: Core) -> Self {
        let now = clock::now();
        let turn_clock = TurnClock::new(usize::from(id.0), &host.black_box, now.instant);
        Self {
            id,
            host,
            turn_clock,
            storage: None,
            unheard: Vec::new(),
            registry,
            edges,
            core,
            connections: Connections::default(),
            inbound: Vec::new(),
            line: VecDeque::new(),
            buffer: vec![0; READ_BYTES_MAX].into_boxed_slice(),
            actions: Vec::new(),
            appends: Vec::new(),
            outgoing: Vec::new(),
            mail: Vec::new(),
            leaving: Vec::new(),
            left: Vec::new(),
            now,
            wake_at: None,
            sweep_at: now.instant + SWEEP_INTERVAL,
            sleep: Rest::None,
            must_wake: false,
            calls: Vec::new(),
            helpless_until: Instant::ZERO,
            suspect_until: Instant::ZERO,
            prompt_reply_count: 0,
            is_watched: false,
            has_lingering: false,
            is_unsettled: false,
            floor_is_unwritten: false,
            owes_turn: true,
            gathers: false,
            unsent: Vec::new(),
            reads: true,
            ends: false,
        }
    }

    /// A turn begins.
    fn begin(&mut self) {
        self.now = clock::now();
        self.turn_clock.begins(self.now.instant, &self.host.black_box, |since| self.core.heaviest_since(since));
    }

    /// How long there is nothing to do, as long as no mail comes and no socket can be read.
    fn rest(&self) -> Rest {
        let hears_more = self.inbound.iter().flatten().any(|inbound| inbound.is_readable());
        let reads_more = !self.line.is_empty() && !self.is_held_up();
        if reads_more || self.owes_turn || hears_more {
            return Rest::None;
        }
        // Unless somebody can be overdue there is nothing to sweep, and the thread sleeps through.
        let sweep_at = (self.has_lingering || self.idle_max().is_some()).then_some(self.sweep_at);
        let until = match (self.wake_at, sweep_at) {
            (Some(wake_at), Some(sweep_at)) => Some(wake_at.min(sweep_at)),
            (wake_at, sweep_at) => wake_at.or(sweep_at),
        };
        until.map_or(Rest::Long, Rest::Until)
    }

    fn here(&self) -> usize {
        usize::from(self.id.0)
    }

    /// Hands an event to the core; what it asks for is carried out at the end of the turn.
    fn step(&mut self, event: Event<'_>) {
        self.owes_turn = true;
        self.core.step(self.now, event, &mut self.actions);
    }

    fn read_sockets(&mut self, edges: impl Iterator<Item = Edge>) {
        for edge in edges {
            if edge.token >= GUESTS {
                continue;
            }
            if edge.token >= INBOUND {
                if let Some(Some(inbound)) = self.inbound.get_mut(edge.token - INBOUND) {
                    inbound.note_edge(edge.is_read_closed || edge.is_error);
                }
                continue;
            }
            let index = u32::try_from(edge.token).expect("tokens are indices");
            let Some(connection) = self.connections.at(index) else { continue };
            if edge.is_writable && connection.backlog_bytes() > 0 {
                self.flush(index);
            }
            if edge.is_readable || edge.is_read_closed || edge.is_error {
                let Some(connection) = self.connections.at(index) else { continue };
                connection.is_readable = true;
                connection.has_ended |= edge.is_read_closed || edge.is_error;
                if edge.is_write_closed && edge.is_read_closed && connection.is_paused {
                    // Both directions are gone: there is nobody to wait for.
                    self.close(index);
                } else {
                    self.enter_line(index);
                }
            }
        }
        if self.is_held_up() {
            return;
        }
        let mut budget = TURN_READ_BYTES_MAX;
        for _ in 0..self.line.len() {
            if budget < READ_BYTES_MAX {
                break;
            }
            let Some(index) = self.line.pop_front() else { break };
            budget -= self.read(index);
        }
    }

    /// Too much waits for the disk: clients with changes that would join it are not read. The core is told when that is
    /// over.
    fn is_held_up(&self) -> bool {
        self.storage.as_ref().is_some_and(Storage::is_full) && self.core.adds_to_its_log()
    }

    fn enter_line(&mut self, index: u32) {
        let reads = self.reads;
        let Some(connection) = self.connections.at(index) else { return };
        if reads && connection.wants_reading() && !connection.is_in_line {
            connection.is_in_line = true;
            self.line.push_back(index);
        }
    }

    /// Reads a socket once and steps what it gave; says how much that was.
    fn read(&mut self, index: u32) -> usize {
        let Some(connection) = self.connections.at(index) else { return 0 };
        connection.is_in_line = false;
        if !connection.wants_reading() {
            return 0;
        }
        let session = connection.session;
        let count = loop {
            match connection.read(&mut self.buffer) {
                Ok(0) => {
                    self.end_of_stream(session);
                    return 0;
                }
                Ok(count) => break count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    connection.is_readable = false;
                    return 0;
                }
                Err(_) => {
                    self.close(index);
                    return 0;
                }
            }
        };
        // A read that left room in the buffer has drained the socket: what comes later makes an edge of its own. Only
        // the end of the stream may have made its edge already.
        connection.is_readable = count == self.buffer.len() || connection.has_ended;
        connection.heard_at = self.now.instant;
        self.owes_turn = true;
        self.core.step(self.now, Event::Bytes { session, bytes: &self.buffer[..count] }, &mut self.actions);
        self.enter_line_again(index);
        count
    }

    /// A client that has sent its last gets what it is still owed (`printf … | nc …`), and then its connection closed.
    fn end_of_stream(&mut self, session: SessionId) {
        let is_owed = self.core.owes(session);
        let Some(connection) = self.connections.of(session) else { return };
        if is_owed || connection.backlog_bytes() > 0 {
            connection.closing_since.get_or_insert(self.now.instant);
            self.has_lingering = true;
        } else {
            self.close(session.index);
        }
    }

    fn enter_line_again(&mut self, index: u32) {
        if self.connections.at(index).is_some_and(|connection| connection.is_readable) {
            self.enter_line(index);
        }
    }

    /// Reads what other nodes have said.
    fn hear_nodes(&mut self) {
        for place in 0..self.inbound.len() {
            let Some(mut inbound) = self.inbound[place].take_if(|inbound| inbound.is_readable()) else { continue };
            if self.hear(&mut inbound) {
                self.inbound[place] = Some(inbound);
            }
        }
    }

    /// Reads some of what one node has said, and steps it; false if there will be nothing more.
    fn hear(&mut self, inbound: &mut Inbound) -> bool {
        let (from, host) = (inbound.from(), Arc::clone(&self.host));
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut heard = Ok(Heard::More);
        for _ in 0..TURN_READ_BYTES_MAX / READ_BYTES_MAX {
            heard = inbound.hear(&mut buffer, |group, bytes| match host.core_of(group) {
                core if core == self.here() => self.step(Event::Peer { from, bytes }),
                // A node with another number of cores puts groups of several on one connection.
                core => host.desks[core].mailbox.post(Mail::Peer { from, bytes: bytes.to_vec() }),
            });
            if heard != Ok(Heard::More) {
                break;
            }
        }
        self.buffer = buffer;
        if let (Err(cause), Some(address)) = (&heard, inbound.address()) {
            self.host.peers.misspoken(address, cause.clone());
        }
        heard.is_ok_and(|heard| heard != Heard::End)
    }

    /// Reads what another node says on this connection from now on. If it cannot, it is dropped, and dialled again.
    fn welcome(&mut self, mut inbound: Box<Inbound>) {
        let vacancy = self.inbound.iter().position(Option::is_none);
        let place = vacancy.unwrap_or_else(|| {
            self.inbound.push(None);
            self.inbound.len() - 1
        });
        match self.registry.register(inbound.source(), Token(INBOUND + place), Interest::READABLE) {
            Ok(()) => self.inbound[place] = Some(inbound),
            Err(error) => self.host.log.warning(&format!("cannot watch a connection of another node: {error}")),
        }
    }

    fn step_mail(&mut self) {
        let mut mail = std::mem::take(&mut self.mail);
        self.host.desks[self.here()].mailbox.collect(&mut mail);
        for one in mail.drain(..) {
            match one {
                Mail::Event(event) => self.step(event),
                Mail::Call(other) => self.calls.push(other),
                Mail::Peer { from, bytes } => self.step(Event::Peer { from, bytes: &bytes }),
                Mail::Inbound(inbound) => self.welcome(inbound),
                Mail::HearNoMore(node) => {
                    for place in &mut self.inbound {
                        place.take_if(|inbound| inbound.from() == node);
                    }
                }
                Mail::Measure(told) => {
                    // The thread that asked may have stopped waiting.
                    let _ = told.send(self.core.measure());
                }
                Mail::Describe(gathered, told) => {
                    let _ = told.send(self.core.describe(&gathered));
                }
                Mail::Look(told) => {
                    let _ = told.send(self.core.landscape());
                }
                Mail::Arrival(arrival) => self.open(*arrival),
                Mail::Storage(storage) => {
                    self.storage = Some(storage);
                    self.is_unsettled = self.host.is_unsettled();
                    for (name, value) in std::mem::take(&mut self.unheard) {
                        self.configure(name, value);
                    }
                }
                // Its line is looked at in the next turn.
                Mail::StorageTakesMore => {}
                Mail::StopReading => {
                    self.reads = false;
                    self.line.clear();
                }
                Mail::Fence(reached) => {
                    // What was posted before is carried out before the fence counts.
                    self.end_turn();
                    // The main thread may have stopped waiting.
                    let _ = reached.send(());
                }
                Mail::End => self.ends = true,
            }
        }
        self.mail = mail;
    }

    fn open(&mut self, arrival: Arrival) {
        let session = SessionId { serial: arrival.serial, index: self.connections.vacancy() };
        let mut connection = Connection::new(session, arrival.stream, self.now.instant);
        if let Err(error) = connection.register(&self.registry, Token(session.index as usize)) {
            self.host.log.warning(&format!("cannot watch a new connection: {error}: it is closed"));
            self.connections.release(session.index);
            self.count_one_less();
            return;
        }
        self.connections.insert(connection);
        self.step(Event::Opened { session, peer: arrival.peer });
        self.enter_line_again(session.index);
    }

    /// Drops a connection, no matter who ended it.
    fn close(&mut self, index: u32) {
        // Closing the descriptor takes it out of epoll as well.
        let Some(connection) = self.connections.remove(index) else { return };
        self.leaving.push(index);
        self.count_one_less();
        let unsent_bytes = (connection.backlog_bytes() + connection.gathered.len()) as u64;
        self.step(Event::Closed { session: connection.session, unsent_bytes });
    }

    fn count_one_less(&self) {
        self.host.desks[self.here()].client_count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Writes of a backlog what the socket takes now.
    fn flush(&mut self, index: u32) {
        let Some(connection) = self.connections.at(index) else { return };
        let session = connection.session;
        let before = connection.backlog_bytes();
        let is_broken = connection.flush().is_err();
        let after = connection.backlog_bytes();
        if let Some(since) = &mut connection.closing_since
            && after < before
        {
            *since = self.now.instant;
        }
        let is_over = connection.closing_since.is_some() && after == 0 && !self.core.owes(session);
        if after < before {
            self.step(Event::Backlog { session, bytes: after });
        }
        if is_broken || is_over {
            self.close(index);
        }
    }

    /// Ends connections that are idle for longer than `timeout` allows, or that should be closed and take no output.
    fn sweep(&mut self) {
        if self.now.instant < self.sweep_at {
            return;
        }
        self.sweep_at = self.now.instant + SWEEP_INTERVAL;
        let idle_max = self.idle_max();
        if !self.has_lingering && idle_max.is_none() {
            return;
        }
        self.has_lingering = false;
        let now = self.now.instant;
        let mut overdue = Vec::new();
        for connection in self.connections.iter() {
            self.has_lingering |= connection.closing_since.is_some();
            let is_idle = idle_max.is_some_and(|idle_max| now.since(connection.heard_at) > idle_max)
                && !self.core.may_be_silent(connection.session);
            let is_stuck = connection.closing_since.is_some_and(|since| now.since(since) > LINGER_MAX);
            if is_idle || is_stuck {
                overdue.push(connection.session.index);
            }
        }
        for index in overdue {
            self.close(index);
        }
    }

    fn idle_max(&self) -> Option<Duration> {
        match self.host.knobs.idle_s.load(Ordering::Relaxed) {
            0 => None,
            seconds => Some(Duration::from_secs(seconds)),
        }
    }

    /// The end of a turn by itself.
    fn end_turn(&mut self) {
        self.step_turn();
        self.carry_out_all();
        self.announce();
    }

    /// Writes what has been handed in, by this core and by those that have been stepped with it, or has it written.
    /// True if it is written.
    fn write(&mut self) -> bool {
        let count = self.core.prompt_reply_count();
        if std::mem::replace(&mut self.prompt_reply_count, count) != count {
            self.host.note_read(self.now.instant);
        }
        // Clients that wait for no disk would wait for this one.
        let is_wanted = self.host.knobs.sync_on_core.load(Ordering::Relaxed) == 1;
        let may_sync = is_wanted && self.core.is_alone() && !self.host.is_being_read(self.now.instant);
        self.storage.as_ref().is_some_and(|storage| storage.write(may_sync, &mut self.calls))
    }

    /// The journal must write what has been handed in.
    fn announce(&self) {
        if let Some(storage) = &self.storage {
            storage.announce();
        }
    }

    fn step_turn(&mut self) {
        let is_due = self.wake_at.is_some_and(|wake_at| wake_at <= self.now.instant);
        if is_due {
            self.wake_at = None;
        }
        if is_due || self.owes_turn {
            // What is answered in a turn was asked before this reading: leases depend on it.
            self.now = clock::now();
            self.core.step(self.now, Event::Turn, &mut self.actions);
            let desk = &self.host.desks[self.here()];
            desk.client_bytes.store(self.core.client_bytes(), Ordering::Relaxed);
            desk.request_count.store(self.core.request_count(), Ordering::Relaxed);
            self.owes_turn = false;
            self.settle();
        }
    }

    /// The disks, ours and those of other nodes, and sibling cores are set to work before replies are written, which
    /// takes longer. But what is sent may acknowledge early, and must not leave before it is remembered that it may.
    fn carry_out_first(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        let is_first = |action: &mut Action| {
            matches!(
                action,
                Action::Configured { .. }
                    | Action::Floor(_)
                    | Action::Append { .. }
                    | Action::Send { .. }
                    | Action::Post { .. }
                    | Action::Tape(_)
            )
        };
        for action in actions.extract_if(.., is_first) {
            self.carry_out(action);
        }
        self.hand_over_appends();
        if !self.outgoing.is_empty() {
            self.host.peers.send(&mut self.outgoing);
        }
        // What it has brought about comes behind.
        actions.append(&mut self.actions);
        self.actions = actions;
    }

    fn carry_out_all(&mut self) {
        // Carrying out may step further events (a connection that turns out broken). Their actions come after.
        while !self.actions.is_empty() {
            self.carry_out_first();
            let mut actions = std::mem::take(&mut self.actions);
            for action in actions.drain(..) {
                self.carry_out(action);
            }
            if self.actions.is_empty() {
                self.actions = actions;
            }
        }
    }

    /// Says once that its groups have been told what they may have lacked.
    fn settle(&mut self) {
        if self.is_unsettled && self.core.is_loaded() && !self.core.is_in_doubt() {
            self.is_unsettled = false;
            if self.host.settle_core() {
                self.storage.as_ref().expect(STORAGE_FIRST).settle();
                self.host.log.notice("lacks nothing at the end of its log any more");
            }
        }
    }

    fn hand_over_appends(&mut self) {
        if !self.appends.is_empty() {
            let core = self.here();
            self.storage.as_ref().expect(STORAGE_FIRST).append(core, &mut self.appends);
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Reply { session, bytes } => self.reply(session, bytes),
            Action::Close { session } => {
                self.send_gathered(session);
                self.close_when_written(session);
            }
            Action::Abort { session } => {
                if self.connections.of(session).is_some() {
                    self.close(session.index);
                }
            }
            Action::Follow { session, follower } => self.let_follow(session, *follower),
            Action::Changes(request) => self.host.site.tell_changes(*request),
            Action::Migrate(request) => Carrier::take(&self.host, *request),
            Action::Replicate(request) => self.host.replicator.take(&self.host, *request),
            Action::SourceHeard { owes } => self.host.replicator.heard(owes),
            Action::AwaitFollowers(request) => self.host.lead.await_followers(*request),
            Action::Tape(tape) if self.host.site.is_on() => self.host.site.hear(*tape),
            Action::Tape(tape) => self.host.lead.hear(*tape),
            Action::Pause { session } => {
                if let Some(connection) = self.connections.of(session) {
                    connection.is_paused = true;
                }
            }
            Action::Resume { session } => {
                if let Some(connection) = self.connections.of(session) {
                    connection.is_paused = false;
                    self.enter_line(session.index);
                }
            }
            Action::Send { to, group, lane, bytes } => {
                self.outgoing.push(Outgoing { to, group: group.0, lane, bytes });
            }
            Action::Peers(contacts) => self.host.peers.meet(contacts),
            Action::AlsoAt(places) => self.host.peers.also_try(places),
            Action::ReadCheckpoint { group, mark, chunk, to } => {
                self.storage.as_ref().expect(STORAGE_FIRST).read_checkpoint(group, mark, chunk, to);
            }
            Action::ReadLog(span) => self.storage.as_ref().expect(STORAGE_FIRST).read_log(span),
            Action::Archive(news) => self.storage.as_ref().expect(STORAGE_FIRST).archive(news),
            Action::KeepLog { group, index } => self.storage.as_ref().expect(STORAGE_FIRST).keep_log(group, index),
            Action::Post { to, envelope } => {
                // If this thread waits for its sockets as well, it steps it anyway.
                let is_near = self.host.watcher(usize::from(to.0)) == self.host.watcher(self.here());
                let is_long = envelope.pieces.len() > HELP_MAIL_MAX && !is_near;
                let event = Event::Envelope { from: self.id, envelope };
                let (place, mailbox) = (usize::from(to.0), &self.host.desks[usize::from(to.0)].mailbox);
                if is_long {
                    mailbox.post(Mail::Event(event));
                } else if mailbox.leave(Mail::Event(event)) {
                    self.calls.push(place);
                }
            }
            Action::Floor(level) => self.raise_floor(level),
            // What the directory does not say must not be in it.
            Action::Append { .. } if self.floor_is_unwritten => {}
            Action::Append { append, persist } => self.appends.push((append, persist == Persist::Synced)),
            Action::Checkpoint { group, id, step } => {
                self.storage.as_ref().expect(STORAGE_FIRST).checkpoint(group, id, step);
            }
            Action::WakeAt { instant } => {
                self.wake_at = Some(self.wake_at.map_or(instant, |wake_at| wake_at.min(instant)));
            }
            Action::Configured { name, value } => self.configure(name, value),
            Action::UsersFile { path, step } => self.work_on_users_file(path, step),
            Action::Secure { id, settings } => self.secure(id, settings),
            Action::Log { level, line } => self.host.log.write(level, &line),
            Action::Fatal { line } => self.host.end(End::Fault(Fault::Data(line))),
            Action::Shutdown { waits } => {
                if !waits {
                    self.host.lead.wait_for_nobody();
                }
                self.host.end(End::Command);
            }
            Action::Join { address, token } => {
                let token = token.and_then(|token| trust::Token::parse(&token).ok());
                self.host.end(End::Join(Invited { address, token }));
            }
            Action::Sleep { duration } => {
                // Nobody waits for a thread that has been called and sleeps.
                for other in self.calls.drain(..) {
                    self.host.desks[other].mailbox.wake();
                }
                self.announce();
                std::thread::sleep(duration);
            }
        }
    }

    /// Something of this level is about to be written here.
    fn raise_floor(&mut self, level: stdx::Level) {
        match self.host.floor.raise(level) {
            Ok(true) => {
                let line =
                    format!("writes at level {level} from now on: versions that do not know it cannot start here");
                self.host.log.notice(&line);
                self.host.peers.rise(self.host.floor.voice());
            }
            Ok(false) => {}
            Err(fault) => {
                self.floor_is_unwritten = true;
                self.host.end(End::Fault(fault));
            }
        }
    }

    /// Hands a client over that wants to be told what changes.
    fn let_follow(&mut self, session: SessionId, follower: Follower) {
        // What it was told before comes first.
        self.send_gathered(session);
        if self.connections.of(session).is_none() {
            return;
        }
        let Some(connection) = self.connections.remove(session.index) else { return };
        self.leaving.push(session.index);
        self.count_one_less();
        self.step(Event::Closed { session, unsent_bytes: connection.backlog_bytes() as u64 });
        // One that has not even read what it was told before is no great loss.
        if let Some(stream) = connection.into_stream(&self.registry) {
            match follower.wish {
                Some(Wish::Site { .. }) => Site::follow(&self.host, stream, follower),
                _ => self.host.lead.follow(stream, follower),
            }
        }
    }

    /// A thread of its own reads and writes: a slow disk stops no client.
    fn work_on_users_file(&self, path: String, step: UsersFile) {
        let (host, here) = (Arc::clone(&self.host), self.here());
        let work = move || {
            let outcome = users_file::carry_out(&path, step).map_err(|error| error.to_string());
            host.desks[here].mailbox.post(Mail::Event(Event::UsersFile(outcome)));
        };
        if let Err(error) = std::thread::Builder::new().name("users".to_owned()).spawn(work) {
            let outcome = Err(format!("no thread for it: {error}"));
            self.host.desks[self.here()].mailbox.post(Mail::Event(Event::UsersFile(outcome)));
        }
    }

    /// The same for certificates. Connections that there are keep what they have.
    fn secure(&self, id: u64, settings: Box<Settings>) {
        let (host, here) = (Arc::clone(&self.host), self.here());
        let work = move || {
            let lacks_authority = LinkMode::of(&settings) == LinkMode::Own && host.credentials.is_none();
            let outcome = match Security::new(&settings, host.credentials.as_ref()) {
                Ok(_) if lacks_authority => {
                    let name = "tls-cluster";
                    let cause = "this cluster has no certificate authority of its own, and tls-cert-file is not set";
                    Err(Unfit { name, cause: cause.to_owned() }.to_string())
                }
                Ok(security) => {
                    host.secure(security);
                    Ok(())
                }
                Err(unfit) => {
                    host.log.warning(&format!("TLS stays as it was: {unfit}"));
                    Err(unfit.to_string())
                }
            };
            host.desks[here].mailbox.post(Mail::Event(Event::Secured { id, outcome }));
        };
        if let Err(error) = std::thread::Builder::new().name("tls".to_owned()).spawn(work) {
            let outcome = Err(format!("no thread for it: {error}"));
            self.host.desks[self.here()].mailbox.post(Mail::Event(Event::Secured { id, outcome }));
        }
    }

    fn reply(&mut self, session: SessionId, bytes: Vec<u8>) {
        let Some(connection) = self.connections.of(session).filter(|_| self.gathers) else {
            return self.send(session, bytes);
        };
        if connection.gathered.is_empty() {
            connection.gathered = bytes;
            self.unsent.push(session);
        } else {
            connection.gathered.extend_from_slice(&bytes);
            self.core.recycle(bytes);
        }
    }

    fn send_gathered(&mut self, session: SessionId) {
        let Some(connection) = self.connections.of(session) else { return };
        let bytes = std::mem::take(&mut connection.gathered);
        if !bytes.is_empty() {
            self.send(session, bytes);
        }
    }

    fn send(&mut self, session: SessionId, bytes: Vec<u8>) {
        let Some(connection) = self.connections.of(session) else { return };
        match connection.send(bytes) {
            Written::All(buffer) => {
                let is_closing = connection.closing_since.is_some();
                self.core.recycle(buffer);
                if is_closing && !self.core.owes(session) {
                    self.close(session.index);
                }
            }
            Written::Partly => {
                let bytes = connection.backlog_bytes();
                self.step(Event::Backlog { session, bytes });
            }
            Written::Broken => self.close(session.index),
        }
    }

    fn close_when_written(&mut self, session: SessionId) {
        let Some(connection) = self.connections.of(session) else { return };
        if connection.backlog_bytes() == 0 {
            self.close(session.index);
        } else {
            connection.closing_since.get_or_insert(self.now.instant);
            self.has_lingering = true;
        }
    }

    /// The core acknowledges early from now on: it must be remembered before the first acknowledgement leaves. If that
    /// cannot be, the process ends, and none leaves.
    fn remember_early(&self) {
        if let Err(cause) = self.host.early.set() {
            let path = self.host.early.path();
            self.host.end(End::Fault(Fault::File { path, purpose: "note early acknowledgements in", cause }));
            loop {
                std::thread::park();
            }
        }
    }

    fn configure(&mut self, name: &'static str, value: String) {
        let knobs = &self.host.knobs;
        let number = value.parse().ok();
        if (name == "appendfsync" && value != "always") || (name == "client-durability-min" && value == "memory") {
            self.remember_early();
        }
        match (name, number) {
            ("maxclients", Some(number)) => {
                // It was checked against what is possible, so it can be done.
                report::allow_descriptors(number + descriptors_reserved(self.host.desks.len()));
                knobs.clients_max.store(number, Ordering::Relaxed);
            }
            ("timeout", Some(number)) => knobs.idle_s.store(number, Ordering::Relaxed),
            ("sync-on-core", _) => knobs.sync_on_core.store(u64::from(value == "yes"), Ordering::Relaxed),
            ("core-threads", Some(number)) => {
                knobs.core_threads.store(number, Ordering::Relaxed);
                self.host.gather(self.host.thread_count());
            }
            ("tcp-keepalive", Some(number)) => knobs.keepalive_s.store(number, Ordering::Relaxed),
            ("loglevel", _) => self.host.log.set_quiet(value == "warning"),
            (
                "repl-backlog-size"
                | "repl-backlog-ttl"
                | "repl-ping-replica-period"
                | "repl-timeout"
                | "replica-rdb-version"
                | "shutdown-timeout",
                Some(number),
            ) => self.host.lead.configure(name, number),
            ("site-compression-level", Some(number)) => self.host.site.set_level(number),
            ("appendfsync" | "checkpoint-rate-bytes" | "archive-keep-days" | "archive-keep-bytes", _) => {
                match (&self.storage, number) {
                    (None, _) => self.unheard.push((name, value)),
                    (Some(storage), Some(days)) if name == "archive-keep-days" => storage.set_archive_days(days),
                    (Some(storage), Some(bytes)) if name == "archive-keep-bytes" => storage.set_archive_bytes(bytes),
                    (Some(storage), Some(rate)) => storage.set_checkpoint_rate(rate),
                    (Some(storage), None) => storage.set_policy(&value),
                }
            }
            _ => {}
        }
    }
}
