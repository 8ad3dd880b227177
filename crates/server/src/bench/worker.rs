//! One thread that plays many clients.
//!
//! It shares its machine with the server it measures, so it must cost little: one epoll loop, requests copied from
//! templates, replies scanned where they lie, no allocation on the way. A wake-up reads until the socket is short of
//! bytes, then writes once.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use edge::{ClientSecurity, TlsStream};
use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use resp::{ReplyScanner, Scanned};

use super::keys::KeyChooser;
use super::record::Interval;
use super::requests::{Request, Requests, TRANSACTION, Workload, half_of};

/// Bytes read at once.
const READ_BYTES_MAX: usize = 256 * 1024;
/// Different error texts that a thread passes on.
const ERROR_TEXTS_MAX: usize = 5;
/// First and longest pause before a connection is tried again, in nanoseconds.
const RETRY_NS: std::ops::RangeInclusive<u64> = 10_000_000..=500_000_000;
/// The timer's token; connections have their index.
const TIMER: Token = Token(usize::MAX);
const SECOND_NS: u64 = 1_000_000_000;

/// When an operation begins.
pub enum Supply {
    /// As soon as the connection's last batch has been answered.
    Closed,
    /// At a fixed rate, whatever the server does: the n-th at `first_ns + n * period_ns`. An operation that finds no
    /// free connection waits, and its wait is part of its latency.
    Rate {
        /// When the first is due, since the epoch.
        first_ns: u64,
        /// Time between two.
        period_ns: f64,
        /// How many have been begun.
        begun: u64,
    },
    /// Every key once, for each address: no measuring.
    Fill {
        /// The next key for each address.
        next: Vec<u64>,
        /// Distance between this thread's keys.
        step: u64,
        /// The first key that is not to be filled.
        bound: u64,
        /// Keys that are there, over all threads.
        done: Arc<AtomicU64>,
    },
}

/// A thread's orders.
pub struct Orders {
    /// Where times count from.
    pub epoch: Instant,
    /// The servers.
    pub addresses: Vec<SocketAddr>,
    /// For each connection, which address.
    pub connections: Vec<usize>,
    /// What they are secured with, if at all.
    pub security: Option<ClientSecurity>,
    /// Sent on every new connection.
    pub greeting: Vec<u8>,
    /// Replies that it gets.
    pub greeting_replies: usize,
    /// What the clients do.
    pub workload: Workload,
    /// Share of GETs in [`Workload::Mixed`].
    pub read_ratio: f64,
    /// Operations sent together.
    pub pipeline: usize,
    /// The requests as bytes.
    pub requests: Arc<Requests>,
    /// The keys they are about.
    pub keys: KeyChooser,
    /// When they begin.
    pub supply: Supply,
    /// When the warm-up ends, since the epoch.
    pub measured_from_ns: u64,
    /// When to stop, since the epoch.
    pub end_ns: u64,
    /// Where reports go.
    pub reports: Sender<Report>,
}

/// What a thread reports.
pub enum Report {
    /// A second's figures; seconds count from the end of the warm-up.
    Interval(usize, Box<Interval>),
    /// An error not seen before.
    Error(String),
    /// The thread has ended, leaving this many operations unsent.
    End {
        /// Operations that were due and had not been sent.
        unsent: u64,
    },
}

/// What the next reply of a connection is an answer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Greeting,
    Read,
    Write,
    /// Part of a transaction that waits for this reply before its next request.
    Step,
    /// Part of an operation that was sent at once.
    Part,
    Exec,
}

#[derive(Clone, Copy)]
struct Expected {
    role: Role,
    start_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Open,
    Waiting { until_ns: u64 },
}

/// What goes to and from a server.
enum Line {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Line {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.socket(),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }
}

struct Connection {
    address: usize,
    line: Option<Line>,
    state: State,
    retry_ns: u64,
    out: Vec<u8>,
    out_sent: usize,
    /// The beginning of a reply that has not come to its end.
    rest: Vec<u8>,
    scanner: ReplyScanner,
    expected: VecDeque<Expected>,
    /// Operations begun and not completed.
    open: usize,
    /// Requests sent of the transaction that is under way, its keys and start.
    step: usize,
    key: u64,
    other_key: u64,
    start_ns: u64,
    /// The key of the SET that follows a GET.
    set_follows: Option<u64>,
    /// In the queue of those that could take an operation.
    queued: bool,
}

/// What all connections of a thread share.
struct Desk {
    orders: Orders,
    interval: Interval,
    error_texts: Vec<String>,
    /// Connections with room for an operation, at a fixed rate.
    idle: VecDeque<usize>,
}

/// Plays its clients until the end.
pub fn run(orders: Orders) -> io::Result<()> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(1024);
    let mut connections = Vec::new();
    for &address in &orders.connections {
        connections.push(Connection::new(address));
    }
    let timer = match orders.supply {
        Supply::Rate { .. } => Some(Timer::new(&poll)?),
        Supply::Closed | Supply::Fill { .. } => None,
    };
    let mut desk = Desk { orders, interval: Interval::new(), error_texts: Vec::new(), idle: VecDeque::new() };
    let mut scratch = vec![0; READ_BYTES_MAX];
    for (index, connection) in connections.iter_mut().enumerate() {
        connection.connect(index, &poll, &mut desk);
    }

    let mut measured = None; // the second being measured
    let mut armed_ns = 0;
    let mut boundary_ns = desk.orders.measured_from_ns;
    loop {
        let mut now = desk.now_ns();
        while now >= boundary_ns {
            let interval = std::mem::replace(&mut desk.interval, Interval::new());
            if let Some(second) = measured {
                desk.report(Report::Interval(second, Box::new(interval)));
            }
            if boundary_ns >= desk.orders.end_ns {
                break;
            }
            measured = Some(measured.map_or(0, |second| second + 1));
            boundary_ns = (boundary_ns + SECOND_NS).min(desk.orders.end_ns);
        }
        if now >= desk.orders.end_ns || desk.is_filled(&connections) {
            break;
        }
        let mut wake_ns = boundary_ns;
        for (index, connection) in connections.iter_mut().enumerate() {
            if let State::Waiting { until_ns } = connection.state {
                if now >= until_ns {
                    connection.connect(index, &poll, &mut desk);
                } else {
                    wake_ns = wake_ns.min(until_ns);
                }
            }
        }
        desk.begin_due(&mut connections, now);
        if let (Some(timer), Some(due_ns)) = (&timer, desk.next_due_ns())
            && !desk.idle.is_empty()
            && armed_ns != due_ns
        {
            now = desk.now_ns();
            timer.set(due_ns.saturating_sub(now))?;
            armed_ns = due_ns;
        }
        let timeout = Duration::from_nanos(wake_ns.saturating_sub(now));
        match poll.poll(&mut events, Some(timeout)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        }
        for event in &events {
            if event.token() == TIMER {
                armed_ns = 0; // expired; it need not be read, for the next expiry is a new edge
                continue;
            }
            let index = event.token().0;
            let connection = &mut connections[index];
            if event.is_writable() {
                connection.on_writable(&mut desk);
            }
            if event.is_readable() || event.is_read_closed() || event.is_error() {
                connection.on_readable(event.is_read_closed() || event.is_error(), &mut scratch, &mut desk);
            }
            connection.refill(index, &mut desk);
            connection.flush(&mut desk);
        }
    }
    let unsent = desk.overdue(desk.now_ns());
    desk.report(Report::End { unsent });
    Ok(())
}

impl Connection {
    fn new(address: usize) -> Self {
        Self {
            address,
            line: None,
            state: State::Waiting { until_ns: 0 },
            retry_ns: *RETRY_NS.start(),
            out: Vec::new(),
            out_sent: 0,
            rest: Vec::new(),
            scanner: ReplyScanner::new(),
            expected: VecDeque::new(),
            open: 0,
            step: 0,
            key: 0,
            other_key: 0,
            start_ns: 0,
            set_follows: None,
            queued: false,
        }
    }

    fn connect(&mut self, index: usize, poll: &Poll, desk: &mut Desk) {
        let attempt = TcpStream::connect(desk.orders.addresses[self.address]).and_then(|mut stream| {
            poll.registry().register(&mut stream, Token(index), Interest::READABLE | Interest::WRITABLE)?;
            Ok(match &desk.orders.security {
                None => Line::Plain(stream),
                Some(security) => Line::Tls(Box::new(security.wrap(stream))),
            })
        });
        match attempt {
            Ok(line) => {
                self.line = Some(line);
                self.state = State::Connecting;
            }
            Err(error) => self.lose(desk, &format!("cannot connect: {error}")),
        }
    }

    fn on_writable(&mut self, desk: &mut Desk) {
        if self.state == State::Connecting {
            let Some(stream) = self.line.as_ref().map(Line::socket) else { return };
            let failed = match stream.take_error() {
                Ok(None) => stream.peer_addr().and_then(|_| stream.set_nodelay(true)).err(),
                Ok(error) => error,
                Err(error) => Some(error),
            };
            match failed {
                None => {}
                Some(error) if error.kind() == io::ErrorKind::NotConnected => return,
                Some(error) => return self.lose(desk, &format!("cannot connect: {error}")),
            }
            self.state = State::Open;
            self.retry_ns = *RETRY_NS.start();
            self.out.extend_from_slice(&desk.orders.greeting);
            let start_ns = desk.now_ns();
            let greeting = Expected { role: Role::Greeting, start_ns };
            self.expected.extend(std::iter::repeat_n(greeting, desk.orders.greeting_replies));
        }
        self.flush(desk);
    }

    fn on_readable(&mut self, closing: bool, scratch: &mut [u8], desk: &mut Desk) {
        while let (State::Open, Some(line)) = (self.state, &mut self.line) {
            match line.read(scratch) {
                Ok(0) => self.lose(desk, "the server closed the connection"),
                Ok(len) => {
                    self.take(&scratch[..len], desk);
                    // The socket is empty, unless its end must still be read.
                    if len < scratch.len() && !closing {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.lose(desk, &format!("cannot read: {error}")),
            }
        }
    }

    fn take(&mut self, bytes: &[u8], desk: &mut Desk) {
        let now = desk.now_ns();
        if self.rest.is_empty() {
            let used = self.take_replies(bytes, now, desk);
            if self.state == State::Open {
                self.rest.extend_from_slice(&bytes[used..]);
            }
        } else {
            let mut gathered = std::mem::take(&mut self.rest);
            gathered.extend_from_slice(bytes);
            let used = self.take_replies(&gathered, now, desk);
            if self.state == State::Open {
                gathered.drain(..used);
                self.rest = gathered;
            }
        }
    }

    fn take_replies(&mut self, bytes: &[u8], now: u64, desk: &mut Desk) -> usize {
        let mut used = 0;
        while used < bytes.len() {
            match self.scanner.scan(&bytes[used..]) {
                Ok(None) => break,
                Ok(Some(scanned)) => {
                    let reply = &bytes[used..used + scanned.len];
                    used += scanned.len;
                    if scanned.kind != b'>' {
                        self.on_reply(scanned, reply, now, desk);
                    }
                }
                Err(malformed) => {
                    self.lose(desk, &format!("not the Redis protocol: {malformed}"));
                    break;
                }
            }
        }
        used
    }

    fn on_reply(&mut self, scanned: Scanned, reply: &[u8], now: u64, desk: &mut Desk) {
        let Some(Expected { role, start_ns }) = self.expected.pop_front() else {
            return self.lose(desk, "a reply that nobody asked for");
        };
        let failed = match scanned.kind {
            b'-' | b'!' => Some(reply),
            // The last reply of a transaction that was carried out says whether its SET was.
            b'*' if role == Role::Exec => {
                let first = reply.strip_prefix(b"*1\r\n").or_else(|| reply.strip_prefix(b"*2\r\n"));
                first.filter(|reply| reply.starts_with(b"-"))
            }
            _ => None,
        };
        if let Some(text) = failed {
            desk.on_error(text);
        }
        if role == Role::Greeting {
            return;
        }
        let interval = &mut desk.interval;
        interval.counts.requests += 1;
        let latency_ns = now.saturating_sub(start_ns);
        match role {
            Role::Step => {
                let steps = desk.orders.workload.steps();
                let request = steps[self.step];
                self.step += 1;
                let role = if self.step == steps.len() { Role::Exec } else { Role::Step };
                let key = if request == Request::SetOther { self.other_key } else { self.key };
                self.send(request, key, role, self.start_ns, &desk.orders.requests);
                return;
            }
            Role::Part | Role::Greeting => return,
            Role::Read | Role::Write | Role::Exec => {}
        }
        self.open -= 1;
        if role == Role::Exec {
            self.step = 0;
        }
        if failed.is_some() {
            return;
        }
        interval.counts.operations += 1;
        match role {
            Role::Read => {
                interval.counts.misses += u64::from(scanned.null);
                interval.reads.record(latency_ns);
            }
            _ => {
                interval.counts.aborts += u64::from(scanned.null);
                interval.writes.record(latency_ns);
            }
        }
        if let Supply::Fill { done, .. } = &desk.orders.supply {
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Begins what the supply has for this connection.
    fn refill(&mut self, index: usize, desk: &mut Desk) {
        if self.state != State::Open {
            return;
        }
        match &mut desk.orders.supply {
            Supply::Closed => {
                if self.open == 0 {
                    let now = desk.now_ns();
                    for _ in 0..desk.orders.pipeline {
                        self.begin(now, desk);
                    }
                }
            }
            Supply::Rate { .. } => {
                let now = desk.now_ns();
                while self.open < desk.orders.pipeline {
                    match desk.take_due(now) {
                        Some(due_ns) => self.begin(due_ns, desk),
                        None => break,
                    }
                }
                if self.open < desk.orders.pipeline && !self.queued {
                    self.queued = true;
                    desk.idle.push_back(index);
                }
            }
            Supply::Fill { next, step, bound, .. } => {
                if self.open == 0 {
                    let next = &mut next[self.address];
                    let request = match desk.orders.workload {
                        Workload::Command => Request::Command,
                        _ => Request::Set,
                    };
                    for _ in 0..desk.orders.pipeline {
                        if *next < *bound {
                            self.open += 1;
                            self.send(request, *next, Role::Write, 0, &desk.orders.requests);
                            *next += *step;
                        }
                    }
                }
            }
        }
    }

    /// Begins one operation, to be measured from `start_ns`.
    fn begin(&mut self, start_ns: u64, desk: &mut Desk) {
        self.open += 1;
        let key = self.set_follows.unwrap_or_else(|| desk.orders.keys.draw());
        let (request, role) = match desk.orders.workload {
            Workload::Get => (Request::Get, Role::Read),
            Workload::Set => (Request::Set, Role::Write),
            Workload::SetWait => {
                self.send(Request::Set, key, Role::Part, start_ns, &desk.orders.requests);
                (Request::Wait, Role::Write)
            }
            Workload::Incr => (Request::Incr, Role::Write),
            Workload::Ping => (Request::Ping, Role::Read),
            Workload::Command => (Request::Command, Role::Read),
            Workload::Mixed if desk.orders.keys.chance(desk.orders.read_ratio) => (Request::Get, Role::Read),
            Workload::Mixed => (Request::Set, Role::Write),
            Workload::GetSet if self.set_follows.take().is_some() => (Request::Set, Role::Write),
            Workload::GetSet => {
                self.set_follows = Some(key);
                (Request::Get, Role::Read)
            }
            Workload::Trans | Workload::TransPair => {
                self.step = 1;
                self.key = key;
                if desk.orders.workload == Workload::TransPair {
                    self.other_key = desk.orders.keys.draw_until(|other| half_of(other) != half_of(key));
                }
                self.start_ns = start_ns;
                (desk.orders.workload.steps()[0], Role::Step)
            }
            Workload::Transfer => {
                let other = desk.orders.keys.draw();
                for (part, key) in [(Request::Multi, key), (Request::Debit, key), (Request::Credit, other)] {
                    self.send(part, key, Role::Part, start_ns, &desk.orders.requests);
                }
                (Request::Exec, Role::Exec)
            }
            Workload::TransAtOnce => {
                let (last, parts) = TRANSACTION.split_last().expect("a transaction has requests");
                for &part in parts {
                    self.send(part, key, Role::Part, start_ns, &desk.orders.requests);
                }
                (*last, Role::Exec)
            }
        };
        self.send(request, key, role, start_ns, &desk.orders.requests);
    }

    #[inline]
    fn send(&mut self, request: Request, key: u64, role: Role, start_ns: u64, requests: &Requests) {
        requests.append(&mut self.out, request, key);
        self.expected.push_back(Expected { role, start_ns });
    }

    fn flush(&mut self, desk: &mut Desk) {
        while self.state == State::Open && self.out_sent < self.out.len() {
            let Some(line) = &mut self.line else { return };
            match line.write(&self.out[self.out_sent..]) {
                Ok(len) => self.out_sent += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.lose(desk, &format!("cannot write: {error}")),
            }
        }
        self.out.clear();
        self.out_sent = 0;
    }

    /// Gives the connection up, to be made again after a pause.
    fn lose(&mut self, desk: &mut Desk, reason: &str) {
        if self.state == State::Open {
            desk.interval.counts.connections_lost += 1;
            desk.interval.counts.unanswered += self.open as u64;
        }
        desk.pass_on(reason);
        let until_ns = desk.now_ns() + self.retry_ns;
        let retry_ns = (self.retry_ns * 2).min(*RETRY_NS.end());
        // Its place in the queue stays, and with it the mark.
        *self = Self { retry_ns, state: State::Waiting { until_ns }, queued: self.queued, ..Self::new(self.address) };
    }
}

impl Desk {
    fn now_ns(&self) -> u64 {
        self.orders.epoch.elapsed().as_nanos() as u64
    }

    fn report(&self, report: Report) {
        // Nobody listens any more when the run has been given up.
        let _ = self.orders.reports.send(report);
    }

    #[cold]
    fn on_error(&mut self, reply: &[u8]) {
        self.interval.counts.errors += 1;
        if self.error_texts.len() < ERROR_TEXTS_MAX {
            let line = reply.split(|&byte| byte == b'\r').next().unwrap_or_default();
            self.pass_on(&String::from_utf8_lossy(line.strip_prefix(b"-").unwrap_or(line)));
        }
    }

    #[cold]
    fn pass_on(&mut self, text: &str) {
        if self.error_texts.len() < ERROR_TEXTS_MAX && !self.error_texts.iter().any(|known| known == text) {
            self.error_texts.push(text.to_owned());
            self.report(Report::Error(text.to_owned()));
        }
    }

    /// The time of the next operation if it is due, which counts as begun.
    fn take_due(&mut self, now: u64) -> Option<u64> {
        let due_ns = self.next_due_ns()?;
        if let Supply::Rate { begun, .. } = &mut self.orders.supply
            && due_ns <= now
        {
            *begun += 1;
            return Some(due_ns);
        }
        None
    }

    fn next_due_ns(&self) -> Option<u64> {
        match self.orders.supply {
            Supply::Rate { first_ns, period_ns, begun } => Some(first_ns + (begun as f64 * period_ns) as u64),
            Supply::Closed | Supply::Fill { .. } => None,
        }
    }

    /// Operations that are due and not begun.
    fn overdue(&self, now: u64) -> u64 {
        match self.orders.supply {
            Supply::Rate { first_ns, period_ns, begun } => {
                let due = (now.min(self.orders.end_ns).saturating_sub(first_ns) as f64 / period_ns) as u64;
                due.saturating_sub(begun)
            }
            Supply::Closed | Supply::Fill { .. } => 0,
        }
    }

    /// Gives operations that are due to connections with room, in turn.
    fn begin_due(&mut self, connections: &mut [Connection], now: u64) {
        while self.next_due_ns().is_some_and(|due_ns| due_ns <= now) {
            let Some(index) = self.idle.pop_front() else { return };
            let connection = &mut connections[index];
            connection.queued = false;
            if connection.state != State::Open {
                continue;
            }
            if let Some(due_ns) = self.take_due(now) {
                connection.begin(due_ns, self);
            }
            connection.flush(self);
            if connection.state == State::Open && connection.open < self.orders.pipeline {
                connection.queued = true;
                self.idle.push_back(index);
            }
        }
    }

    /// True if every key has been filled.
    fn is_filled(&self, connections: &[Connection]) -> bool {
        match &self.orders.supply {
            Supply::Fill { next, bound, .. } => {
                next.iter().all(|next| next >= bound) && connections.iter().all(|connection| connection.open == 0)
            }
            Supply::Closed | Supply::Rate { .. } => false,
        }
    }
}

/// Wakes the loop more finely than epoll's milliseconds.
struct Timer(TimerFd);

impl Timer {
    fn new(poll: &Poll) -> io::Result<Self> {
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        poll.registry().register(&mut SourceFd(&timer.as_fd().as_raw_fd()), TIMER, Interest::READABLE)?;
        Ok(Self(timer))
    }

    fn set(&self, after_ns: u64) -> io::Result<()> {
        let after = TimeSpec::from(Duration::from_nanos(after_ns.max(1))); // zero would disarm it
        Ok(self.0.set(Expiration::OneShot(after), TimerSetTimeFlags::empty())?)
    }
}
