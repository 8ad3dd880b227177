//! The links to other nodes, and the one thread that serves them all.
//!
//! A node dials every other node it knows, once a lane, and sends on these connections only; on those that it accepted
//! it only listens. So who sends also looks after the connection: it dials again with growing pauses, knows why the
//! last one ended, and bounds what waits. Lanes have connections of their own, so that a checkpoint under way delays no
//! heartbeat.
//!
//! What cannot be sent is dropped, and the cores are told: their protocols ask again. Nothing is ever resent here.
//!
//! With `tls-cluster` every connection is encrypted, and either end shows a certificate. Whoever calls is known by his
//! first byte: who is not to be let in is told why, in words that he understands.

mod frame;
mod wire;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use journal::Identity;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use node::event::{Event, Lane, LinkReport, NodeId};
use node::roster::Member;
use socket2::SockRef;

use self::frame::{
    FRAME_HEADER_BYTES, HELLO_BYTES, Hello, MESSAGE_HEADER_BYTES, Malformed, Purpose, Verdict, WELCOME_BYTES, Welcome,
};
use self::wire::Wire;
use crate::host::Host;
use crate::limits::{
    LINK_CONNECT_MAX, LINK_FAREWELL_MAX, LINK_FRAME_BYTES, LINK_PAUSE_MAX, LINK_PAUSE_MIN, LINK_READ_BYTES,
    LINK_REFUSAL_INTERVAL, LINK_STUCK_MAX, lane_bytes_max,
};
use crate::mailbox::Mail;
use crate::tls::{self, LinkSecurity};

const WAKE: Token = Token(usize::MAX);
/// The first byte of whoever speaks TLS.
const TLS_HANDSHAKE: u8 = 22;

/// Refusals of which it is remembered when the log told of them.
const REFUSED_MAX: usize = 1_000;

const LANES: [Lane; 3] = [Lane::Vital, Lane::Log, Lane::Bulk];

/// A message of a core on its way out.
pub struct Outgoing {
    /// To whom.
    pub to: NodeId,
    /// Whose.
    pub group: u32,
    /// How.
    pub lane: Lane,
    /// What.
    pub bytes: Vec<u8>,
}

/// Where cores hand in what is for other nodes.
pub struct PeerQueue {
    waiting: Mutex<Waiting>,
    waker: Waker,
    reports: Mutex<Vec<LinkReport>>,
}

#[derive(Default)]
struct Waiting {
    messages: Vec<Outgoing>,
    contacts: Option<Vec<(NodeId, Member)>>,
    ends: bool,
    is_awake: bool,
}

impl PeerQueue {
    /// Hands in messages; `messages` is left empty.
    pub fn send(&self, messages: &mut Vec<Outgoing>) {
        self.put(|waiting| {
            if waiting.messages.is_empty() {
                std::mem::swap(&mut waiting.messages, messages);
            } else {
                waiting.messages.append(messages);
            }
        });
    }

    /// Says which nodes there are.
    pub fn meet(&self, contacts: Vec<(NodeId, Member)>) {
        self.put(|waiting| waiting.contacts = Some(contacts));
    }

    /// Ends the thread.
    pub fn end(&self) {
        self.put(|waiting| waiting.ends = true);
    }

    /// How the links are.
    pub fn reports(&self) -> Vec<LinkReport> {
        lock(&self.reports).clone()
    }

    fn put(&self, put: impl FnOnce(&mut Waiting)) {
        let mut waiting = lock(&self.waiting);
        put(&mut waiting);
        let must_wake = !std::mem::replace(&mut waiting.is_awake, true);
        drop(waiting);
        if must_wake {
            // An eventfd write fails only if its counter is full, and then the wake-up is already due.
            let _ = self.waker.wake();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread's socket watch, made before the cores that hand in.
pub struct PeerPoll(Poll);

/// A queue, and what its thread will be made of.
///
/// # Errors
/// Those of `epoll_create`.
pub fn prepare() -> io::Result<(PeerQueue, PeerPoll)> {
    let poll = Poll::new()?;
    let waker = Waker::new(poll.registry(), WAKE)?;
    let queue = PeerQueue { waiting: Mutex::default(), waker, reports: Mutex::default() };
    Ok((queue, PeerPoll(poll)))
}

/// A connection that this node dialled, for one lane to one node.
struct Link {
    address: String,
    lane: Lane,
    state: State,
    pause: Duration,
    /// Bytes to be sent, of which `sent` have been.
    out: VecDeque<Vec<u8>>,
    out_bytes: usize,
    sent: usize,
    /// When the socket last took something, or there was nothing to take.
    moved: Instant,
    is_writable: bool,
    welcome: Vec<u8>,
    report: LinkReport,
    /// A message has been dropped, and nobody told yet.
    has_dropped: bool,
}

enum State {
    Down { until: Instant },
    Greeting { wire: Wire, since: Instant },
    Up { wire: Wire },
}

/// A connection that another node dialled.
struct Caller {
    wire: Wire,
    /// Its first byte has been seen: it is known whether it speaks TLS.
    is_settled: bool,
    since: Instant,
    from: Option<NodeId>,
    input: Vec<u8>,
    used: usize,
    /// It has been told that it is not let in, and has time to read that.
    is_dismissed: bool,
}

/// See the module.
pub struct Peers {
    host: Arc<Host>,
    identity: Identity,
    poll: Poll,
    listeners: Vec<TcpListener>,
    /// By token: `3 × place + lane`.
    links: BTreeMap<usize, (NodeId, Link)>,
    tokens: BTreeMap<(NodeId, Lane), usize>,
    callers: BTreeMap<usize, Caller>,
    /// When the log last said of whom why he was turned away.
    refused: BTreeMap<(IpAddr, String), Instant>,
    /// Nodes that the cluster has removed.
    removed: BTreeSet<NodeId>,
    /// The cluster has removed this one, and the cores have been told.
    is_expelled: bool,
    next_token: usize,
    buffer: Vec<u8>,
    started: Instant,
}

impl Peers {
    /// Links to `contacts`, and whoever calls at `listeners`.
    ///
    /// # Errors
    /// Those of `epoll_ctl`.
    pub fn new(
        host: Arc<Host>,
        identity: Identity,
        PeerPoll(poll): PeerPoll,
        mut listeners: Vec<TcpListener>,
        contacts: Vec<(NodeId, Member)>,
    ) -> io::Result<Self> {
        for (token, listener) in listeners.iter_mut().enumerate() {
            poll.registry().register(listener, Token(token), Interest::READABLE)?;
        }
        let next_token = listeners.len();
        let mut this = Self {
            host,
            identity,
            poll,
            listeners,
            links: BTreeMap::new(),
            tokens: BTreeMap::new(),
            callers: BTreeMap::new(),
            refused: BTreeMap::new(),
            removed: BTreeSet::new(),
            is_expelled: false,
            next_token,
            buffer: vec![0; LINK_READ_BYTES],
            started: Instant::now(),
        };
        this.meet(contacts);
        Ok(this)
    }

    /// Serves until told to end.
    pub fn run(mut self) {
        let host = Arc::clone(&self.host);
        let mut events = Events::with_capacity(256);
        let mut messages = Vec::new();
        loop {
            let timeout = self.timeout();
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != ErrorKind::Interrupted
            {
                panic!("epoll_wait on a descriptor that is ours: {error}");
            }
            let contacts = {
                let mut waiting = lock(&host.peers.waiting);
                if waiting.ends {
                    return;
                }
                waiting.is_awake = true;
                std::mem::swap(&mut waiting.messages, &mut messages);
                waiting.contacts.take()
            };
            if let Some(contacts) = contacts {
                self.meet(contacts);
            }
            for event in &events {
                let token = event.token().0;
                if token < self.listeners.len() {
                    self.accept(token);
                } else if self.callers.contains_key(&token) {
                    self.hear(token);
                } else if event.token() != WAKE {
                    self.move_link(token, event.is_writable(), event.is_readable() || event.is_read_closed());
                }
            }
            self.queue(&mut messages);
            self.look_after_links();
            self.look_after_callers();
            self.tell_drops();
            self.publish();
            // From here on whoever hands in must wake; what came since is taken at once.
            let mut waiting = lock(&host.peers.waiting);
            waiting.is_awake = false;
            let has_more = !waiting.messages.is_empty() || waiting.contacts.is_some() || waiting.ends;
            drop(waiting);
            if has_more {
                let _ = host.peers.waker.wake();
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let now = Instant::now();
        let mut next = now + Duration::from_secs(1);
        for (_, link) in self.links.values() {
            if let State::Down { until } = link.state {
                next = next.min(until);
            }
        }
        Some(next.saturating_duration_since(now))
    }

    // ---- who there is ---------------------------------------------------------------------------------------------

    fn meet(&mut self, contacts: Vec<(NodeId, Member)>) {
        let own = NodeId(self.identity.node);
        self.removed = contacts.iter().filter(|(_, member)| member.is_removed).map(|(node, _)| *node).collect();
        // They call again, and are told then.
        let removed = &self.removed;
        self.callers.retain(|_, caller| caller.from.is_none_or(|node| !removed.contains(&node)));
        let known: BTreeMap<NodeId, String> = contacts
            .into_iter()
            .filter(|(node, member)| *node != own && !member.is_removed)
            .map(|(node, member)| (node, member.cluster_address))
            .collect();
        let gone: Vec<_> = self.tokens.keys().filter(|(node, _)| !known.contains_key(node)).copied().collect();
        for key in gone {
            let token = self.tokens.remove(&key).expect("just seen");
            self.links.remove(&token);
        }
        for (node, address) in known {
            for lane in LANES {
                if let Some(token) = self.tokens.get(&(node, lane)) {
                    let (_, link) = self.links.get_mut(token).expect("both tables agree");
                    if link.address != address {
                        link.address = address.clone();
                        link.report.address.clone_from(&address);
                        self.cut(*token, "its address has changed", Duration::ZERO);
                    }
                    continue;
                }
                let token = self.next_token;
                self.next_token += 1;
                self.tokens.insert((node, lane), token);
                self.links.insert(token, (node, Link::new(node, address.clone(), lane)));
            }
        }
    }

    // ---- sending --------------------------------------------------------------------------------------------------

    fn queue(&mut self, messages: &mut Vec<Outgoing>) {
        let mut touched = Vec::new();
        for Outgoing { to, group, lane, bytes } in messages.drain(..) {
            let Some(token) = self.tokens.get(&(to, lane)) else { continue };
            let (_, link) = self.links.get_mut(token).expect("both tables agree");
            if link.push(group, &bytes) && !touched.contains(token) {
                touched.push(*token);
            }
        }
        for token in touched {
            if let Some((_, link)) = self.links.get_mut(&token) {
                link.close_frame();
            }
            self.write(token);
        }
    }

    fn write(&mut self, token: usize) {
        let Some((_, link)) = self.links.get_mut(&token) else { return };
        if let Err(error) = link.write() {
            self.cut(token, &error.to_string(), LINK_PAUSE_MIN);
        }
    }

    fn move_link(&mut self, token: usize, is_writable: bool, is_readable: bool) {
        let hello = self.hello(token);
        let Some((_, link)) = self.links.get_mut(&token) else { return };
        if let State::Greeting { wire, .. } = &mut link.state {
            let result = greet(wire, &hello, &mut link.sent, &mut link.welcome, &mut self.buffer);
            match result {
                Ok(None) => {}
                Ok(Some(welcome)) if welcome.verdict == Verdict::Accepted => self.up(token),
                Ok(Some(welcome)) => {
                    if welcome.verdict == Verdict::Removed && !std::mem::replace(&mut self.is_expelled, true) {
                        self.tell_all(|| Event::Expelled);
                    }
                    self.cut(token, &welcome.verdict.to_string(), LINK_PAUSE_MAX);
                }
                Err(reason) => self.cut(token, &reason, LINK_PAUSE_MIN),
            }
            return;
        }
        if let State::Up { wire } = &mut link.state
            && is_readable
        {
            // Nothing is ever sent this way: whatever can be read is the end.
            match wire.read(&mut self.buffer) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Ok(0) => return self.cut(token, "the other end closed it", LINK_PAUSE_MIN),
                Ok(_) => return self.cut(token, "the other end spoke out of turn", LINK_PAUSE_MAX),
                Err(error) => return self.cut(token, &error.to_string(), LINK_PAUSE_MIN),
            }
        }
        if is_writable && let Some((_, link)) = self.links.get_mut(&token) {
            link.is_writable = true;
            self.write(token);
        }
    }

    fn hello(&self, token: usize) -> Vec<u8> {
        let Some((node, link)) = self.links.get(&token) else { return Vec::new() };
        Hello {
            purpose: Purpose::Carry(link.lane),
            cluster: self.identity.cluster,
            from: self.identity.node,
            to: node.0,
            group_count: self.identity.group_count,
        }
        .encode()
    }

    fn up(&mut self, token: usize) {
        let Some((node, link)) = self.links.get_mut(&token) else { return };
        let State::Greeting { wire, .. } = std::mem::replace(&mut link.state, State::Down { until: self.started })
        else {
            return;
        };
        link.report.is_encrypted = wire.is_encrypted();
        link.state = State::Up { wire };
        link.pause = LINK_PAUSE_MIN;
        link.sent = 0;
        link.is_writable = true;
        link.moved = Instant::now();
        link.report.is_up = true;
        link.report.count += 1;
        link.report.since_s = self.started.elapsed().as_secs();
        let (node, lane) = (*node, link.lane);
        if lane == Lane::Log {
            self.host.log.notice(&format!("linked to node {}", node.0));
            self.tell_all(|| Event::Reachable { node });
        }
    }

    fn cut(&mut self, token: usize, cause: &str, pause_min: Duration) {
        let Some((node, link)) = self.links.get_mut(&token) else { return };
        let was_up = matches!(link.state, State::Up { .. });
        link.pause = (link.pause * 2).clamp(LINK_PAUSE_MIN, LINK_PAUSE_MAX).max(pause_min);
        link.state = State::Down { until: Instant::now() + if pause_min.is_zero() { pause_min } else { link.pause } };
        link.out.clear();
        (link.out_bytes, link.sent) = (0, 0);
        link.welcome.clear();
        link.report.is_up = false;
        let is_news = was_up || link.report.last_cause != cause;
        link.report.last_cause = cause.to_owned();
        let (node, lane) = (*node, link.lane);
        if was_up {
            self.tell_all(|| Event::Unreachable { node });
        }
        if lane == Lane::Log && is_news {
            self.host.log.warning(&format!("no link to node {}: {cause}", node.0));
        }
    }

    fn tell_all(&self, event: impl Fn() -> Event<'static>) {
        for desk in &self.host.desks {
            desk.mailbox.post(Mail::Event(event()));
        }
    }

    fn tell_drops(&mut self) {
        let mut dropped = Vec::new();
        for (node, link) in self.links.values_mut() {
            if std::mem::take(&mut link.has_dropped) {
                dropped.push(*node);
            }
        }
        for node in dropped {
            self.tell_all(|| Event::Unreachable { node });
        }
    }

    /// Dials where it is time, and gives up what does not move.
    fn look_after_links(&mut self) {
        let now = Instant::now();
        let security = self.host.security();
        let tokens: Vec<usize> = self.links.keys().copied().collect();
        for token in tokens {
            let Some((_, link)) = self.links.get_mut(&token) else { continue };
            match &link.state {
                State::Down { until } if *until <= now => {
                    if let Err(error) = link.dial(self.poll.registry(), Token(token), security.links.as_ref()) {
                        self.cut(token, &error.to_string(), LINK_PAUSE_MIN);
                    }
                }
                State::Greeting { since, .. } if since.elapsed() > LINK_CONNECT_MAX => {
                    self.cut(token, "no answer", LINK_PAUSE_MIN);
                }
                State::Up { .. } if link.out_bytes > 0 && link.moved.elapsed() > LINK_STUCK_MAX => {
                    self.cut(token, "it takes nothing", LINK_PAUSE_MIN);
                }
                _ => {}
            }
        }
    }

    fn publish(&self) {
        let mut reports = lock(&self.host.peers.reports);
        reports.clear();
        reports.extend(
            self.links
                .values()
                .map(|(_, link)| LinkReport { waiting_bytes: link.out_bytes as u64, ..link.report.clone() }),
        );
    }

    // ---- listening ------------------------------------------------------------------------------------------------

    fn accept(&mut self, listener: usize) {
        loop {
            match self.listeners[listener].accept() {
                Ok((mut stream, _)) => {
                    let token = self.next_token;
                    self.next_token += 1;
                    let _ = stream.set_nodelay(true);
                    if self.poll.registry().register(&mut stream, Token(token), Interest::READABLE).is_ok() {
                        self.callers.insert(token, Caller::new(stream));
                        self.hear(token);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.host.log.warning(&format!("cannot accept a connection of another node: {error}"));
                    return;
                }
            }
        }
    }

    fn hear(&mut self, token: usize) {
        if !self.settle(token) {
            return;
        }
        loop {
            let Some(caller) = self.callers.get_mut(&token) else { return };
            let read = if caller.is_dismissed {
                caller.wire.socket_mut().read(&mut self.buffer)
            } else {
                caller.wire.read(&mut self.buffer)
            };
            match read {
                Ok(0) => break,
                Ok(_) if caller.is_dismissed => continue,
                Ok(count) => caller.input.extend_from_slice(&self.buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // What TLS does not let in; it has said so itself.
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    self.dismiss(token, None, &error.to_string());
                    continue;
                }
                Err(_) => break,
            }
            match self.read_input(token) {
                Ok(true) => {}
                Ok(false) => break,
                Err(malformed @ Malformed::Version(_)) => {
                    self.dismiss(token, Some(Verdict::WrongVersion), &malformed.to_string());
                }
                Err(malformed) => {
                    self.tell_refusal(token, &malformed.to_string());
                    break;
                }
            }
        }
        // It will be dialled again by the other end.
        self.callers.remove(&token);
    }

    /// Finds out whether a caller speaks TLS, and lets only those go on who do if they should, or do not if they should
    /// not. False if it cannot be heard yet, or not any more.
    fn settle(&mut self, token: usize) -> bool {
        let Some(caller) = self.callers.get(&token) else { return false };
        if caller.is_settled {
            return true;
        }
        let mut first = [0];
        let speaks_tls = match caller.wire.socket().peek(&mut first) {
            Ok(0) => None,
            Ok(_) => Some(first[0] == TLS_HANDSHAKE),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return false,
            Err(_) => None,
        };
        let Some(mut caller) = self.callers.remove(&token) else { return false };
        let Some(speaks_tls) = speaks_tls else { return false };
        caller.is_settled = true;
        let security = self.host.security();
        let refusal = match (speaks_tls, &security.links, caller.wire) {
            (true, Some(links), Wire::Plain(socket)) => match tls::accept(&links.accept, socket) {
                Ok(stream) => {
                    caller.wire = Wire::Tls(Box::new(stream));
                    None
                }
                Err(_) => return false,
            },
            (true, None, wire) => {
                caller.wire = wire;
                Some((Verdict::NoTls, "it speaks TLS, and this node does not (tls-cluster)"))
            }
            (false, Some(_), wire) => {
                caller.wire = wire;
                Some((Verdict::NeedsTls, "it speaks no TLS, and this node takes encrypted links only (tls-cluster)"))
            }
            (_, _, wire) => {
                caller.wire = wire;
                None
            }
        };
        self.callers.insert(token, caller);
        if let Some((verdict, cause)) = refusal {
            self.dismiss(token, Some(verdict), cause);
        }
        true
    }

    /// Tells a caller that it is not let in, and keeps the connection a moment: closed at once, with bytes that nobody
    /// has read, it would be reset, and the answer be lost.
    fn dismiss(&mut self, token: usize, verdict: Option<Verdict>, cause: &str) {
        self.tell_refusal(token, cause);
        let Some(caller) = self.callers.get_mut(&token) else { return };
        caller.is_dismissed = true;
        caller.since = Instant::now();
        if let Some(verdict) = verdict {
            // Who does not take it learns nothing.
            let _ = caller.wire.write_all(&Welcome::refusal(verdict).encode());
        }
        let _ = caller.wire.socket().shutdown(Shutdown::Write);
    }

    /// One line, but not the same one again and again: who is turned away dials on.
    fn tell_refusal(&mut self, token: usize, cause: &str) {
        let Some(address) = self.callers.get(&token).and_then(|caller| caller.wire.socket().peer_addr().ok()) else {
            return;
        };
        if self.refused.len() > REFUSED_MAX {
            self.refused.clear();
        }
        let key = (address.ip(), cause.to_owned());
        if self.refused.get(&key).is_none_or(|told| told.elapsed() >= LINK_REFUSAL_INTERVAL) {
            self.refused.insert(key, Instant::now());
            self.host.log.warning(&format!("cuts the link from {address}: {cause}"));
        }
    }

    /// Drops callers that never said who they are, or have been told to go.
    fn look_after_callers(&mut self) {
        self.callers.retain(|_, caller| {
            let is_late = caller.from.is_none() && caller.since.elapsed() > LINK_CONNECT_MAX + LINK_FAREWELL_MAX;
            let is_gone = caller.is_dismissed && caller.since.elapsed() > LINK_FAREWELL_MAX;
            !is_late && !is_gone
        });
    }

    /// Takes what is whole. False if the connection has done its work.
    fn read_input(&mut self, token: usize) -> Result<bool, Malformed> {
        let Some(caller) = self.callers.get_mut(&token) else { return Ok(false) };
        if caller.from.is_none() {
            frame::check_head(&caller.input)?;
            if caller.input.len() < HELLO_BYTES {
                return Ok(true);
            }
            let hello = Hello::decode(&caller.input[..HELLO_BYTES])?;
            let welcome = judge(&self.identity, &self.removed, &hello);
            // A fresh socket has room for so few bytes.
            let is_told = caller.wire.write_all(&welcome.encode()).is_ok();
            if !is_told || welcome.verdict != Verdict::Accepted || hello.purpose == Purpose::Ask {
                return Ok(false);
            }
            caller.from = Some(NodeId(hello.from));
            caller.used = HELLO_BYTES;
        }
        let from = caller.from.expect("just set");
        let core_count = self.host.desks.len();
        let mut mail: Vec<Vec<Mail>> = (0..core_count).map(|_| Vec::new()).collect();
        while let Some((mut body, taken)) = frame::next_frame(&caller.input[caller.used..])? {
            caller.used += taken;
            while !body.is_empty() {
                let (group, message, rest) = frame::next_message(body)?;
                body = rest;
                mail[group as usize % core_count].push(Mail::Peer { from, bytes: message.to_vec() });
            }
        }
        if caller.used > caller.input.len() / 2 {
            caller.input.drain(..caller.used);
            caller.used = 0;
        }
        for (desk, mut mail) in self.host.desks.iter().zip(mail) {
            if !mail.is_empty() {
                desk.mailbox.post_with(|box_| box_.append(&mut mail));
            }
        }
        Ok(true)
    }
}

/// Whether a greeting is welcome.
fn judge(identity: &Identity, removed: &BTreeSet<NodeId>, hello: &Hello) -> Welcome {
    let verdict = match hello.purpose {
        Purpose::Ask => Verdict::Accepted,
        Purpose::Carry(_) if hello.cluster != identity.cluster => Verdict::WrongCluster,
        Purpose::Carry(_) if removed.contains(&NodeId(hello.from)) => Verdict::Removed,
        Purpose::Carry(_) if hello.to != identity.node => Verdict::WrongNode,
        Purpose::Carry(_) if hello.group_count != identity.group_count => Verdict::WrongGroups,
        Purpose::Carry(_) => Verdict::Accepted,
    };
    Welcome {
        verdict,
        cluster: identity.cluster,
        node: identity.node,
        group_count: identity.group_count,
        hash_seed: identity.hash_seed,
    }
}

/// Greets and reads the answer, as far as the socket lets it.
fn greet(
    wire: &mut Wire,
    hello: &[u8],
    sent: &mut usize,
    answer: &mut Vec<u8>,
    buffer: &mut [u8],
) -> Result<Option<Welcome>, String> {
    if let Ok(Some(error)) | Err(error) = wire.socket().take_error() {
        return Err(error.to_string());
    }
    while *sent < hello.len() {
        match wire.write(&hello[*sent..]) {
            Ok(count) => *sent += count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected) => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    while answer.len() < WELCOME_BYTES {
        let wanted = WELCOME_BYTES - answer.len();
        match wire.read(&mut buffer[..wanted]) {
            Ok(0) => return Err("the other end closed it".to_owned()),
            Ok(count) => {
                answer.extend_from_slice(&buffer[..count]);
                frame::check_head(answer).map_err(|malformed| malformed.to_string())?;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Welcome::decode(answer).map(Some).map_err(|malformed| malformed.to_string())
}

impl Caller {
    fn new(stream: TcpStream) -> Self {
        Self {
            wire: Wire::Plain(stream),
            is_settled: false,
            since: Instant::now(),
            from: None,
            input: Vec::new(),
            used: 0,
            is_dismissed: false,
        }
    }
}

impl Link {
    fn new(node: NodeId, address: String, lane: Lane) -> Self {
        let now = Instant::now();
        Self {
            report: LinkReport { node, lane, address: address.clone(), ..LinkReport::default() },
            address,
            lane,
            state: State::Down { until: now },
            pause: LINK_PAUSE_MIN,
            out: VecDeque::new(),
            out_bytes: 0,
            sent: 0,
            moved: now,
            is_writable: false,
            welcome: Vec::new(),
            has_dropped: false,
        }
    }

    fn dial(&mut self, registry: &Registry, token: Token, security: Option<&LinkSecurity>) -> io::Result<()> {
        let address = resolve(&self.address)?;
        let mut stream = TcpStream::connect(address)?;
        let _ = stream.set_nodelay(true);
        // What nobody acknowledges is not waited for much longer than an election.
        let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(LINK_STUCK_MAX));
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        self.sent = 0;
        let wire = match security {
            None => Wire::Plain(stream),
            Some(security) => Wire::Tls(Box::new(security.dial.wrap(stream))),
        };
        self.state = State::Greeting { wire, since: Instant::now() };
        Ok(())
    }

    /// Takes a message, if the link is up and has room. A message larger than all room is taken alone.
    fn push(&mut self, group: u32, bytes: &[u8]) -> bool {
        let is_up = matches!(self.state, State::Up { .. });
        let length = bytes.len() + MESSAGE_HEADER_BYTES;
        if !is_up || (self.out_bytes > 0 && self.out_bytes + length > lane_bytes_max(self.lane)) {
            self.has_dropped |= is_up;
            self.report.dropped_count += 1;
            return false;
        }
        if self.out_bytes == 0 {
            self.moved = Instant::now();
        }
        let has_room = self.out.back().is_some_and(|frame| is_open(frame) && frame.len() + length <= LINK_FRAME_BYTES);
        if !has_room {
            self.close_frame();
            let mut fresh = Vec::with_capacity(FRAME_HEADER_BYTES + length.max(4 << 10));
            frame::begin_frame(&mut fresh);
            self.out_bytes += FRAME_HEADER_BYTES;
            self.out.push_back(fresh);
        }
        frame::push_message(self.out.back_mut().expect("just made"), group, bytes);
        self.out_bytes += length;
        self.report.message_count += 1;
        true
    }

    /// Ends the frame being gathered.
    fn close_frame(&mut self) {
        if let Some(open) = self.out.back_mut().filter(|frame| is_open(frame)) {
            frame::end_frame(open, 0);
        }
    }

    fn write(&mut self) -> io::Result<()> {
        let State::Up { wire } = &mut self.state else { return Ok(()) };
        while self.is_writable
            && let Some(front) = self.out.front()
        {
            match wire.write(&front[self.sent..]) {
                Ok(count) => {
                    self.sent += count;
                    self.out_bytes -= count;
                    self.report.sent_bytes += count as u64;
                    self.moved = Instant::now();
                    if self.sent == front.len() {
                        self.out.pop_front();
                        self.sent = 0;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.is_writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A frame that is still being gathered has no length yet.
fn is_open(frame: &[u8]) -> bool {
    frame[..4] == [0; 4]
}

fn resolve(address: &str) -> io::Result<SocketAddr> {
    if let Ok(address) = address.parse() {
        return Ok(address);
    }
    address.to_socket_addrs()?.next().ok_or_else(|| io::Error::new(ErrorKind::NotFound, "no such address"))
}

/// A connection that waits.
trait ReadWrite: Read + Write {}

impl<T: Read + Write> ReadWrite for T {}

/// Asks the node at an address what cluster it belongs to.
///
/// # Errors
/// One line that says why there is no answer.
pub fn ask(
    address: &str,
    security: Option<&LinkSecurity>,
    patience: Duration,
) -> Result<(u128, NodeId, u32, u64), String> {
    let told = |error: io::Error| format!("{address}: {}", tls::in_words(error));
    let place = resolve(address).map_err(told)?;
    let stream = std::net::TcpStream::connect_timeout(&place, patience).map_err(told)?;
    stream.set_read_timeout(Some(patience)).map_err(told)?;
    stream.set_write_timeout(Some(patience)).map_err(told)?;
    let hello = Hello { purpose: Purpose::Ask, cluster: 0, from: 0, to: 0, group_count: 0 };
    let mut answer = [0; WELCOME_BYTES];
    let mut exchange = |stream: &mut dyn ReadWrite| {
        stream.write_all(&hello.encode())?;
        stream.read_exact(&mut answer)
    };
    match security {
        None => exchange(&mut { stream }),
        Some(security) => security.dial.connect(stream).and_then(|mut stream| exchange(&mut stream)),
    }
    .map_err(told)?;
    let welcome = Welcome::decode(&answer).map_err(|malformed| format!("{address}: {malformed}"))?;
    if welcome.verdict != Verdict::Accepted {
        return Err(format!("{address}: {}", welcome.verdict));
    }
    Ok((welcome.cluster, NodeId(welcome.node), welcome.group_count, welcome.hash_seed))
}

/// The address of this machine that another one at `address` sees.
///
/// # Errors
/// Those of the sockets; nothing is sent.
pub fn own_address_towards(address: &str) -> io::Result<String> {
    let place = resolve(address)?;
    let any: SocketAddr = if place.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" }.parse().expect("an address");
    let socket = std::net::UdpSocket::bind(any)?;
    socket.connect(place)?;
    Ok(socket.local_addr()?.ip().to_string())
}
