//! The links to other nodes, and the one thread that looks after them all.
//!
//! A node dials every other node it knows, once a lane, and sends on these connections only; on those that it accepted
//! it only listens. So who sends also looks after the connection: it dials again with growing pauses, knows why the
//! last one ended, and bounds what waits. Lanes have connections of their own, so that a checkpoint under way delays no
//! heartbeat.
//!
//! A core writes the little that it has to say itself, and reads the log's lane of its groups itself, and wakes nobody:
//! between nodes every hop of a thread is paid for by all clients that wait for a quorum. So this lane has a connection
//! for each core of the dialling node, and the node that accepted one gives it to the core with the groups that it
//! carries. What is large, and what a socket does not take, the thread writes; it reads the other lanes, so that no
//! heartbeat waits behind what a core does with entries.
//!
//! What cannot be sent is dropped, and the cores are told: their protocols ask again. Nothing is ever resent here.
//!
//! With `cluster-compression-level` what a connection carries is one compressed stream, except on the lane of
//! heartbeats. With `tls-cluster` every connection is encrypted, and either end shows a certificate. A caller is known
//! by its first byte: one that is not let in is told why, in words that it understands.

mod callers;
mod compression;
mod frame;
mod inbound;
mod link;
mod links;
mod seek;
mod version;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

use group::ids::{Lane, NodeId};
use journal::Identity;
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token, Waker};
use node::event::{Event, LinkReport};
use node::lives::Lives;
use node::roster::Member;
use stdx::{Level, Levels};

use self::frame::{HEAD_BYTES, HELLO_BYTES_MAX, Malformed, Purpose, Verdict, Welcome, hello_bytes, welcome_bytes};
pub use self::inbound::{Heard, Inbound};
use self::link::{Link, State};
use self::seek::Search;
pub use self::seek::each_place;
use self::version::Unspoken;
pub use self::version::Voice;
use crate::fault::Fault;
use crate::former::Former;
use crate::host::{End, Host};
use crate::limits::{CLIENT_PORT_PATIENCE, CORE_PACK_BYTES_MAX, LINK_READ_BYTES};
use crate::mailbox::Mail;
use crate::tls::{self, ClientSecurity, LinkSecurity};
use crate::trust::{self, AUTHORITY_BYTES_MAX, Authority, Token as Invitation};
use callers::{Caller, answered_in};
use links::hello;

const WAKE: Token = Token(usize::MAX);
/// The first byte of anyone who speaks TLS.
const TLS_HANDSHAKE: u8 = 22;

/// Refusals of which it is remembered when the log told of them.
const REFUSED_MAX: usize = 1_000;

/// A message of a core on its way out.
pub struct Outgoing {
    /// The node that gets it.
    pub to: NodeId,
    /// The group that it is about.
    pub group: u32,
    /// How.
    pub lane: Lane,
    /// What.
    pub bytes: Vec<u8>,
}

/// Where cores hand in what is for other nodes.
pub struct PeerQueue {
    /// The thread alone adds and removes.
    links: RwLock<BTreeMap<Place, Arc<SharedLink>>>,
    core_count: u32,
    waiting: Mutex<Waiting>,
    waker: Waker,
    reports: Mutex<Vec<LinkReport>>,
    /// Bytes that links have sent which are gone, as their nodes were removed.
    gone_bytes: AtomicU64,
}

/// Which node a link leads to, on which lane, and on the log's lane to which core's groups.
type Place = (NodeId, Lane, u32);

/// A link that cores write to beside the thread.
struct SharedLink {
    /// The thread may hold it for as long as a socket takes more: a core that finds it held does not wait.
    link: Mutex<Link>,
    /// Messages that cores have handed to the thread and that it has not put in yet: later ones must go behind them.
    handed_over_count: AtomicUsize,
}

#[derive(Default)]
struct Waiting {
    messages: Vec<Outgoing>,
    contacts: Option<Vec<(NodeId, Member)>>,
    /// Where nodes may be beside where they are said to be.
    other_places: Option<BTreeMap<NodeId, Vec<String>>>,
    /// Who answers where `--join` says, or why nobody does; and whether that was all.
    sought: Vec<Sought>,
    has_sought: bool,
    /// Of links to be dialled, by token: the address that was asked for, and what it means now.
    resolved: Vec<(usize, String, io::Result<SocketAddr>)>,
    /// Who has spoken to a core in a way that it does not understand.
    misspoken: Vec<(SocketAddr, String)>,
    /// What this node has in its logs is of a higher level than before.
    has_risen: bool,
    /// A core has left something on a link for the thread to see to.
    looks: bool,
    ends: bool,
    is_awake: bool,
}

impl PeerQueue {
    /// Hands in messages; `messages` is left empty.
    pub fn send(&self, messages: &mut Vec<Outgoing>) {
        let links = self.links.read().unwrap_or_else(PoisonError::into_inner);
        let mut touched: Vec<&SharedLink> = Vec::new();
        let mut needs_thread = false;
        messages.retain(|message| {
            let place = place(message.to, message.lane, message.group, self.core_count);
            let Some(shared) = links.get(&place) else { return false };
            let Some(mut link) = shared.if_takes(message.bytes.len()) else {
                shared.handed_over_count.fetch_add(1, Ordering::SeqCst);
                return true;
            };
            if !link.push(message.group, &message.bytes) {
                needs_thread |= link.has_dropped;
            } else if !touched.iter().any(|other| std::ptr::eq(*other, &raw const **shared)) {
                touched.push(shared);
            }
            false
        });
        for shared in touched {
            match shared.try_lock() {
                Some(mut link) => {
                    let mut pack_bytes = CORE_PACK_BYTES_MAX;
                    link.write(&mut pack_bytes);
                    needs_thread |= link.failure.is_some() || link.owes();
                }
                None => needs_thread = true,
            }
        }
        drop(links);
        if needs_thread || !messages.is_empty() {
            self.put(|waiting| {
                waiting.looks = true;
                if waiting.messages.is_empty() {
                    std::mem::swap(&mut waiting.messages, messages);
                } else {
                    waiting.messages.append(messages);
                }
            });
        }
    }

    /// Says which nodes there are.
    pub fn meet(&self, contacts: Vec<(NodeId, Member)>) {
        self.put(|waiting| waiting.contacts = Some(contacts));
    }

    /// Says where nodes may be beside where they are said to be. Replaces what was said before.
    pub fn also_try(&self, places: Vec<(NodeId, Vec<String>)>) {
        self.put(|waiting| waiting.other_places = Some(places.into_iter().collect()));
    }

    /// What this node has in its logs is of a higher level than before: who does not know it gets nothing more, from
    /// the next message on.
    pub fn rise(&self, voice: Voice) {
        for shared in self.links.read().unwrap_or_else(PoisonError::into_inner).values() {
            lock(&shared.link).mute_below(*voice.versions().start());
        }
        self.put(|waiting| waiting.has_risen = true);
    }

    /// A core has cut a connection of another node, for this reason.
    pub fn misspoken(&self, address: SocketAddr, cause: String) {
        self.put(|waiting| waiting.misspoken.push((address, cause)));
    }

    /// Ends the thread.
    pub fn end(&self) {
        self.put(|waiting| waiting.ends = true);
    }

    /// How the links are.
    pub fn reports(&self) -> Vec<LinkReport> {
        lock(&self.reports).clone()
    }

    /// Bytes that links to nodes have sent which have been removed since.
    pub fn gone_bytes(&self) -> u64 {
        self.gone_bytes.load(Ordering::Relaxed)
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

/// The link that a message takes.
fn place(to: NodeId, lane: Lane, group: u32, core_count: u32) -> Place {
    (to, lane, if lane == Lane::Log { group % core_count } else { 0 })
}

impl SharedLink {
    fn new(link: Link) -> Arc<Self> {
        Arc::new(Self { link: Mutex::new(link), handed_over_count: AtomicUsize::new(0) })
    }

    /// The link, if a core may put a message of so many bytes in itself now.
    fn if_takes(&self, length: usize) -> Option<MutexGuard<'_, Link>> {
        if self.handed_over_count.load(Ordering::SeqCst) > 0 {
            return None;
        }
        self.try_lock().filter(|link| link.takes_directly(length))
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Link>> {
        match self.link.try_lock() {
            Ok(link) => Some(link),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread's socket watch, made before the cores that hand in.
pub struct PeerPoll(Poll);

/// A queue for so many cores, and what its thread will be made of.
///
/// # Errors
/// Those of `epoll_create`.
pub fn prepare(core_count: u32) -> io::Result<(PeerQueue, PeerPoll)> {
    let poll = Poll::new()?;
    let waker = Waker::new(poll.registry(), WAKE)?;
    let queue = PeerQueue {
        links: RwLock::default(),
        core_count,
        waiting: Mutex::default(),
        waker,
        reports: Mutex::default(),
        gone_bytes: AtomicU64::new(0),
    };
    Ok((queue, PeerPoll(poll)))
}

/// A connection that this thread reads.
struct Heeded {
    inbound: Inbound,
    is_for_core: bool,
    /// Of the process that speaks.
    life: u64,
    /// Which levels matter to it.
    voice: Voice,
}

/// See the module.
pub struct Peers {
    host: Arc<Host>,
    identity: Identity,
    /// The cluster that this one was recovered from, if it was.
    former: Option<Former>,
    /// Drawn when the process started.
    life: u64,
    /// Which processes the other nodes are.
    lives: Lives,
    /// Which levels matter here.
    voice: Voice,
    /// The versions in which other nodes are greeted, where that is not the latest.
    speaks: BTreeMap<NodeId, u16>,
    /// Which levels matter to them, as they have answered last.
    voices: BTreeMap<NodeId, Voice>,
    /// The same, as they have said when they called.
    callers_voices: BTreeMap<NodeId, Voice>,
    poll: Poll,
    listeners: Vec<TcpListener>,
    /// By token. The same as those of the queue.
    links: BTreeMap<usize, Arc<SharedLink>>,
    tokens: BTreeMap<Place, usize>,
    callers: BTreeMap<usize, Caller>,
    /// Those that have been let in and that no core reads: whether a core should, once it is known which.
    inbound: BTreeMap<usize, Heeded>,
    /// Invitations that have let a node in, until they would expire: until when, and which node.
    used: BTreeMap<[u8; 8], (u64, u64)>,
    /// Who was turned away and why: when that was told, and how often it was not.
    refused: BTreeMap<(IpAddr, String), (Instant, u64)>,
    /// Nodes that the cluster has removed.
    removed: BTreeSet<NodeId>,
    /// Links with an address that somebody is being asked for.
    resolving: BTreeSet<usize>,
    /// Listeners that could not accept all callers, and when to try again.
    unaccepted: BTreeMap<usize, Instant>,
    /// When that was told last.
    unaccepted_told: Option<Instant>,
    /// Turns of the thread.
    turn_count: usize,
    /// The cluster has removed this one, and the cores have been told.
    is_expelled: bool,
    next_token: usize,
    /// At which host this node is found has to be learnt from others.
    seeks_own_host: bool,
    /// How hard links are compressed, if they are.
    compression_level: Option<i32>,
    /// For nodes that are not linked, where the operator says.
    search: Search,
    buffer: Vec<u8>,
    started: Instant,
    /// When the reports were last renewed; none if something has changed that they must not lack.
    reported: Option<Instant>,
}

impl Peers {
    /// Links to `contacts`, compressed so hard (1 to 19) or not at all, and anyone who calls at `listeners`. Nodes that
    /// are not linked are looked for at `joins`.
    ///
    /// # Errors
    /// Those of `epoll_ctl`.
    pub fn new(
        host: Arc<Host>,
        (identity, former): (Identity, Option<Former>),
        life: u64,
        PeerPoll(poll): PeerPoll,
        mut listeners: Vec<TcpListener>,
        (contacts, joins): (Vec<(NodeId, Member)>, Vec<String>),
        compression_level: Option<i32>,
    ) -> io::Result<Self> {
        let voice = host.floor.voice();
        for (token, listener) in listeners.iter_mut().enumerate() {
            poll.registry().register(listener, Token(token), Interest::READABLE)?;
        }
        let next_token = listeners.len();
        let mut this = Self {
            host,
            identity,
            former,
            life,
            lives: Lives::default(),
            voice,
            speaks: BTreeMap::new(),
            voices: BTreeMap::new(),
            callers_voices: BTreeMap::new(),
            poll,
            listeners,
            links: BTreeMap::new(),
            tokens: BTreeMap::new(),
            callers: BTreeMap::new(),
            inbound: BTreeMap::new(),
            used: BTreeMap::new(),
            refused: BTreeMap::new(),
            removed: BTreeSet::new(),
            is_expelled: false,
            next_token,
            seeks_own_host: false,
            compression_level,
            search: Search::new(joins),
            resolving: BTreeSet::new(),
            unaccepted: BTreeMap::new(),
            unaccepted_told: None,
            turn_count: 0,
            buffer: vec![0; LINK_READ_BYTES],
            started: Instant::now(),
            reported: None,
        };
        this.meet(contacts);
        Ok(this)
    }

    /// The first link to a node of another machine shows at which host this one is found.
    pub fn learn_own_host(&mut self) {
        self.seeks_own_host = true;
    }

    /// A link to a member, or a call of an invited node, has this address at this end. One that is good on a single
    /// line only says nothing.
    fn note_own_address(&mut self, address: io::Result<SocketAddr>) {
        let is_reachable = |host: &IpAddr| match host {
            IpAddr::V4(host) => !host.is_loopback() && !host.is_link_local(),
            IpAddr::V6(host) => !host.is_loopback() && !host.is_unicast_link_local(),
        };
        let Some(host) = address.ok().map(|address| address.ip().to_canonical()).filter(is_reachable) else {
            return;
        };
        if std::mem::take(&mut self.seeks_own_host) {
            let host = if host.is_ipv6() { format!("[{host}]") } else { host.to_string() };
            let machine_addresses: Arc<[IpAddr]> = crate::interfaces::addresses().into();
            self.tell_all(|| Event::FoundAt { host: host.clone(), machine_addresses: Arc::clone(&machine_addresses) });
        }
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
            let (contacts, other_places, sought, resolved, misspoken, has_risen) = {
                let mut waiting = lock(&host.peers.waiting);
                if waiting.ends {
                    return;
                }
                waiting.is_awake = true;
                waiting.looks = false;
                std::mem::swap(&mut waiting.messages, &mut messages);
                let misspoken = std::mem::take(&mut waiting.misspoken);
                let has_risen = std::mem::take(&mut waiting.has_risen);
                let resolved = std::mem::take(&mut waiting.resolved);
                let sought = (std::mem::take(&mut waiting.sought), std::mem::take(&mut waiting.has_sought));
                (waiting.contacts.take(), waiting.other_places.take(), sought, resolved, misspoken, has_risen)
            };
            if has_risen {
                self.rise();
            }
            if let Some(contacts) = contacts {
                self.meet(contacts);
            }
            if let Some(places) = other_places {
                self.also_try(&places);
            }
            self.hear_of(sought);
            let now = Instant::now();
            let again: Vec<_> = self.unaccepted.extract_if(.., |_, at| *at <= now).collect();
            for (listener, _) in again {
                self.accept(listener);
            }
            for event in &events {
                let token = event.token().0;
                if token < self.listeners.len() {
                    self.accept(token);
                } else if self.callers.contains_key(&token) {
                    self.greet(token);
                } else if let Some(heeded) = self.inbound.get_mut(&token) {
                    heeded.inbound.note_edge(event.is_read_closed() || event.is_error());
                    self.hear(token);
                } else if event.token() != WAKE {
                    self.move_link(token, event.is_writable(), event.is_readable() || event.is_read_closed());
                }
            }
            self.queue(&mut messages);
            for (token, address, meaning) in resolved {
                self.resolved(token, &address, meaning);
            }
            for (address, cause) in misspoken {
                self.tell_refusal(Some(address), &cause);
            }
            self.look_after_links();
            self.look_after_callers();
            self.seek();
            self.tell_drops();
            self.publish();
            // From here on anyone who hands in must wake; what came since is taken at once.
            let mut waiting = lock(&host.peers.waiting);
            waiting.is_awake = false;
            let has_more = !waiting.messages.is_empty()
                || waiting.contacts.is_some()
                || waiting.other_places.is_some()
                || !waiting.sought.is_empty()
                || waiting.has_sought
                || !waiting.resolved.is_empty()
                || !waiting.misspoken.is_empty()
                || waiting.has_risen
                || waiting.looks
                || waiting.ends;
            drop(waiting);
            if has_more {
                let _ = host.peers.waker.wake();
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let now = Instant::now();
        let mut next = now + Duration::from_secs(1);
        for link in self.links.values() {
            let link = lock(&link.link);
            match link.state {
                State::Down { until } => next = next.min(until),
                _ if link.owes() => next = now,
                _ => {}
            }
        }
        Some(next.saturating_duration_since(now))
    }

    // ---- who there is ---------------------------------------------------------------------------------------------

    fn core_count(&self) -> u32 {
        self.host.peers.core_count
    }

    // ---- sending --------------------------------------------------------------------------------------------------

    /// Another process is this node. Two would promise what neither knows of the other: this one ends at once.
    fn be_a_copy(&self) {
        self.host.end(End::Fault(Fault::Data(format!(
            "this is a copy: another process is node {} of the cluster at this moment, as other nodes hear, and they \
             refuse this one. Start the data directory in one place only. To have one more node, start it with an \
             empty directory and an invitation",
            self.identity.node
        ))));
    }

    fn tell_all(&self, event: impl Fn() -> Event<'static>) {
        for desk in &self.host.desks {
            desk.mailbox.post(Mail::Event(event()));
        }
    }

    // ---- listening ------------------------------------------------------------------------------------------------
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

/// An address that was asked, and what was answered.
type Sought = (String, Result<Answer, Unanswered>);

/// What a node says of its cluster.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The cluster.
    pub cluster: u128,
    /// The node that was asked.
    pub node: NodeId,
    /// Groups of the cluster.
    pub group_count: u32,
    /// Seed of the keyspace's hash.
    pub hash_seed: u64,
    /// The level of the cluster, as far as that node has something of it in its logs.
    pub level: Level,
}

/// The node that asks.
#[derive(Clone, Copy, Debug)]
pub struct Asker {
    /// The number of the node.
    pub node: u64,
    /// The levels that its program knows.
    pub levels: Levels,
}

/// Why a node says nothing of its cluster.
#[derive(Clone, Debug)]
pub struct Unanswered {
    /// One line.
    pub cause: String,
    /// Asking again will not help.
    pub is_final: bool,
}

/// Asks the node at an address what cluster it belongs to.
///
/// # Errors
/// Why there is no answer.
pub fn ask(
    address: &str,
    security: Option<&LinkSecurity>,
    own: Asker,
    patience: Duration,
) -> Result<Answer, Unanswered> {
    let dial = security.map(|security| &security.dial);
    let words = |version| hello(Purpose::Ask, own, version).encode();
    exchange(address, dial, own.levels, &words, patience, |_| Ok(())).map(|(answer, ())| answer)
}

/// Asks the node at an address to let in this one, which has an invitation. Nothing is said of the invitation before
/// the other end has shown that it belongs to the cluster that this is for.
///
/// # Errors
/// Why not.
pub fn enter(
    address: &str,
    token: &Invitation,
    own: Asker,
    patience: Duration,
) -> Result<(Answer, Authority), Unanswered> {
    let words = |version| [hello(Purpose::Enter, own, version).encode(), token.encode()].concat();
    let dial = ClientSecurity::pinned(token.fingerprint());
    exchange(address, Some(&dial), own.levels, &words, patience, |stream| {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        let invalid = || io::Error::new(ErrorKind::InvalidData, "what it gives is no authority of a cluster");
        if length > AUTHORITY_BYTES_MAX {
            return Err(invalid());
        }
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes)?;
        let authority = Authority::decode(&bytes).ok_or_else(invalid)?;
        if trust::fingerprint(authority.certificate()) == token.fingerprint() { Ok(authority) } else { Err(invalid()) }
    })
}

/// Asks the node at an address whether it would let in this one.
///
/// # Errors
/// Why not.
pub fn knock(address: &str, token: &Invitation, own: Asker, patience: Duration) -> Result<Answer, Unanswered> {
    let words = |version| [hello(Purpose::Knock, own, version).encode(), token.encode()].concat();
    let dial = ClientSecurity::pinned(token.fingerprint());
    exchange(address, Some(&dial), own.levels, &words, patience, |_| Ok(())).map(|(answer, ())| answer)
}

/// The answer to a node that calls while this one looks for a cluster itself, by what it has sent so far; `None` as
/// long as that is not known.
pub fn turn_away(input: &[u8]) -> Option<Vec<u8>> {
    const TLS_HANDSHAKE: u8 = 22;
    let version = answered_in(input, Voice::fresh(Levels::KNOWN));
    match input.first() {
        None => None,
        Some(&TLS_HANDSHAKE) => Some(Vec::new()),
        Some(_) if input.len() < hello_bytes(version).min(HELLO_BYTES_MAX) => None,
        Some(_) => Some(Welcome::refusal(Verdict::Joining).encode(version)),
    }
}

/// True if clients are served at an address: what is no greeting of nodes is answered.
fn is_for_clients(place: SocketAddr) -> bool {
    let ask = || {
        let mut stream = std::net::TcpStream::connect_timeout(&place, CLIENT_PORT_PATIENCE)?;
        stream.set_read_timeout(Some(CLIENT_PORT_PATIENCE))?;
        stream.write_all(b"PING\r\n")?;
        let mut answer = [0];
        stream.read_exact(&mut answer).map(|()| matches!(answer, [b'+' | b'-']))
    };
    let answer: io::Result<bool> = ask();
    answer.is_ok_and(|is_for_clients| is_for_clients)
}

/// Why the port for clients is no use.
fn wrong_port(address: &str, place: SocketAddr) -> Unanswered {
    let other = place.port().checked_add(10_000).map_or(String::new(), |port| format!(", {port} unless it was set"));
    let cause = format!("{address} is a port for clients: name the port for other nodes (--cluster-port{other})");
    Unanswered { cause, is_final: true }
}

/// Says something to the node at an address, in the latest version or in that in which the node has refused it, and
/// reads its answer and what follows that.
fn exchange<T>(
    address: &str,
    security: Option<&ClientSecurity>,
    levels: Levels,
    words: &dyn Fn(u16) -> Vec<u8>,
    patience: Duration,
    read: impl Fn(&mut dyn ReadWrite) -> io::Result<T>,
) -> Result<(Answer, T), Unanswered> {
    let here = Voice::fresh(levels);
    let mut version = here.latest();
    loop {
        match exchange_in(version, here, address, security, &words(version), patience, &read) {
            Err(NoExchange::Version(other)) if other < version && here.versions().contains(&other) => version = other,
            Err(NoExchange::Version(version)) => {
                let cause = format!("{address}: {}", Unspoken { version, here });
                return Err(Unanswered { cause, is_final: false });
            }
            Err(NoExchange::Unanswered(unanswered)) => return Err(unanswered),
            Ok(exchanged) => return Ok(exchanged),
        }
    }
}

/// Why a node has not answered in a version.
enum NoExchange {
    /// It speaks this one.
    Version(u16),
    Unanswered(Unanswered),
}

impl From<Unanswered> for NoExchange {
    fn from(unanswered: Unanswered) -> Self {
        Self::Unanswered(unanswered)
    }
}

fn exchange_in<T>(
    version: u16,
    here: Voice,
    address: &str,
    security: Option<&ClientSecurity>,
    words: &[u8],
    patience: Duration,
    read: &impl Fn(&mut dyn ReadWrite) -> io::Result<T>,
) -> Result<(Answer, T), NoExchange> {
    let told = |error: io::Error| {
        let cause = match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => format!("{address}: no answer within {patience:?}"),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => {
                format!("{address}: the connection was closed there, as a node does that looks for a cluster itself")
            }
            _ => format!("{address}: {}", tls::in_words(error)),
        };
        Unanswered { cause, is_final: false }
    };
    let place = resolve(address).map_err(told)?;
    // A server that does not speak the protocol of nodes may speak that of clients.
    let told_behind = |error: io::Error| match error {
        error if tls::is_about_trust(&error) || !is_for_clients(place) => told(error),
        _ => wrong_port(address, place),
    };
    let mut stream = std::net::TcpStream::connect_timeout(&place, patience).map_err(told)?;
    stream.set_read_timeout(Some(patience)).map_err(told)?;
    stream.set_write_timeout(Some(patience)).map_err(told)?;
    let mut secured;
    let stream: &mut dyn ReadWrite = match security {
        None => &mut stream,
        Some(security) => {
            secured = security.connect(stream).map_err(told_behind)?;
            &mut secured
        }
    };
    let mut answer = vec![0; HEAD_BYTES];
    stream.write_all(words).and_then(|()| stream.read_exact(&mut answer)).map_err(told_behind)?;
    let malformed = |malformed: Malformed| match malformed {
        Malformed::Foreign if is_for_clients(place) => wrong_port(address, place),
        malformed => Unanswered { cause: format!("{address}: {malformed}"), is_final: false },
    };
    match frame::version_in(&answer).map_err(malformed)? {
        Some(seen) if seen != version => return Err(NoExchange::Version(seen)),
        _ => {}
    }
    answer.resize(welcome_bytes(version), 0);
    stream.read_exact(&mut answer[HEAD_BYTES..]).map_err(told)?;
    let welcome = Welcome::decode(&answer, version).map_err(malformed)?;
    if welcome.verdict == Verdict::WrongLevel
        || welcome.verdict == Verdict::Accepted && !here.levels.contains(welcome.voice.floor)
    {
        let cause = format!("{address}: {}", Verdict::WrongLevel);
        return Err(Unanswered { cause, is_final: true }.into());
    }
    if welcome.verdict != Verdict::Accepted {
        let cause = format!("{address}: {}", welcome.verdict);
        return Err(Unanswered { cause, is_final: welcome.verdict.is_final() }.into());
    }
    let Welcome { cluster, node, group_count, hash_seed, voice, .. } = welcome;
    let more = read(stream).map_err(told)?;
    Ok((Answer { cluster, node: NodeId(node), group_count, hash_seed, level: voice.floor }, more))
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

#[cfg(test)]
mod tests {
    use super::callers::judge_caller;
    use super::frame::Hello;
    use super::*;
    use std::io::ErrorKind;

    const LOG: Place = (NodeId(2), Lane::Log, 1);

    fn linked() -> (PeerQueue, PeerPoll, std::net::TcpStream) {
        let (queue, poll) = prepare(2).expect("epoll");
        let (link, other) = link::tests::pair(LOG.0, LOG.1);
        queue.links.write().expect("nobody panicked").insert(LOG, SharedLink::new(link));
        (queue, poll, other)
    }

    #[test]
    fn a_node_speaks_under_the_number_in_its_certificate_and_under_no_other() {
        let identity = Identity {
            directory: 5,
            cluster: 7,
            node: 1,
            group_count: 2,
            hash_seed: 9,
            has_joined: false,
            level: Level::FIRST,
        };
        let authority = Authority::make().expect("a key");
        let (chain, _) = authority.issue(2, 1_800_000_000);
        let voice = Voice::fresh(Levels::KNOWN);
        let version = voice.latest();
        let hello = |from, purpose| Hello {
            purpose,
            cluster: 7,
            from,
            to: 1,
            group_count: 2,
            is_compressed: false,
            life: 1,
            version,
            voice,
        };
        let carry = Purpose::Carry(Lane::Log);
        let verdict = |removed: &[u64], shown, hello: &Hello| {
            let removed = removed.iter().copied().map(NodeId).collect();
            judge_caller(&identity, &removed, shown, hello, voice).verdict
        };
        let own = Some(Some(&chain[0]));
        assert_eq!(verdict(&[], own, &hello(2, carry)), Verdict::Accepted);
        assert_eq!(verdict(&[], own, &hello(3, carry)), Verdict::WrongNumber, "a lie");
        assert_eq!(verdict(&[], own, &hello(1, carry)), Verdict::WrongNumber, "our own number");
        assert_eq!(verdict(&[2], own, &hello(2, carry)), Verdict::Removed);
        assert_eq!(verdict(&[2], own, &hello(2, Purpose::Ask)), Verdict::Removed, "it is told nothing either");
        assert_eq!(verdict(&[], Some(None), &hello(2, carry)), Verdict::NotInvited);
        assert_eq!(verdict(&[], Some(None), &hello(2, Purpose::Ask)), Verdict::NotInvited);
        // Where links are plain a number is all there is.
        assert_eq!(verdict(&[], None, &hello(3, carry)), Verdict::Accepted);
        // A node that has in its logs what is not known here is not let in.
        let levels = Levels { lowest: Level(2), highest: Level(3) };
        let later = Hello { voice: Voice { levels, floor: Level(3) }, ..hello(2, carry) };
        assert_eq!(verdict(&[], own, &later), Verdict::WrongLevel);
    }

    fn outgoing(bytes: &[u8]) -> Outgoing {
        Outgoing { to: LOG.0, group: 3, lane: LOG.1, bytes: bytes.to_vec() }
    }

    fn arrived(other: &mut std::net::TcpStream) -> Vec<Vec<u8>> {
        other.set_nonblocking(true).expect("a socket");
        let mut bytes = Vec::new();
        match other.read_to_end(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => panic!("the link is up: {other:?}"),
        }
        let mut messages = Vec::new();
        let mut rest = &bytes[..];
        while let Some((mut body, taken)) = frame::next_frame(rest).expect("whole frames") {
            while !body.is_empty() {
                let (group, message, behind) = frame::next_message(body).expect("whole messages");
                assert_eq!(group, 3);
                messages.push(message.to_vec());
                body = behind;
            }
            rest = &rest[taken..];
        }
        assert!(rest.is_empty());
        messages
    }

    #[test]
    fn a_core_sends_what_is_small_itself() {
        let (queue, _poll, mut other) = linked();
        let mut messages = vec![outgoing(b"one"), outgoing(b"two")];
        queue.send(&mut messages);
        assert_eq!(arrived(&mut other), [b"one", b"two"]);
        assert!(messages.is_empty() && lock(&queue.waiting).messages.is_empty());
    }

    #[test]
    fn what_is_handed_to_the_thread_is_not_overtaken() {
        let (queue, _poll, mut other) = linked();
        let large = vec![1; crate::limits::LINK_DIRECT_BYTES_MAX];
        queue.send(&mut vec![outgoing(b"small"), outgoing(&large), outgoing(b"behind")]);
        queue.send(&mut vec![outgoing(b"later")]);
        assert_eq!(arrived(&mut other), [b"small"]);
        let waiting: Vec<usize> = lock(&queue.waiting).messages.iter().map(|message| message.bytes.len()).collect();
        assert_eq!(waiting, [large.len(), 6, 5]);
    }

    #[test]
    fn a_core_waits_for_nobody_who_holds_a_link() {
        let (queue, _poll, mut other) = linked();
        let shared = Arc::clone(&queue.links.read().expect("nobody panicked")[&LOG]);
        let held = lock(&shared.link);
        queue.send(&mut vec![outgoing(b"meanwhile")]);
        drop(held);
        assert!(arrived(&mut other).is_empty());
        assert_eq!(lock(&queue.waiting).messages.len(), 1);
    }

    #[test]
    fn who_is_not_known_is_sent_nothing() {
        let (queue, _poll, _other) = linked();
        queue.send(&mut vec![Outgoing { to: NodeId(9), ..outgoing(b"lost") }]);
        assert!(lock(&queue.waiting).messages.is_empty());
    }
}
