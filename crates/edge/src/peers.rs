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

mod compression;
mod frame;
mod inbound;
mod link;
mod version;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

use journal::Identity;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use node::event::{Event, Lane, LinkReport, NodeId};
use node::lives::{Judgement, Lives};
use node::roster::Member;
use rustls::pki_types::CertificateDer;
use socket2::{SockRef, TcpKeepalive};
use stdx::{Level, Levels};

use self::compression::Decompressor;
use self::frame::{
    HEAD_BYTES, HELLO_BYTES_MAX, Hello, Malformed, Purpose, Verdict, Welcome, hello_bytes, welcome_bytes,
};
pub use self::inbound::{Heard, Inbound};
use self::link::{Link, State, Ungreeted};
use self::version::Unspoken;
pub use self::version::Voice;
use self::wire::Wire;
use crate::clock;
use crate::fault::Fault;
use crate::former::Former;
use crate::host::{End, Host};
use crate::limits::{
    CLIENT_PORT_PATIENCE, CORE_PACK_BYTES_MAX, LINK_CONNECT_MAX, LINK_FAREWELL_MAX, LINK_FRAME_BYTES, LINK_KEEPALIVE,
    LINK_PACK_BYTES_MAX, LINK_PAUSE_MAX, LINK_PAUSE_MIN, LINK_READ_BYTES, LINK_REFUSAL_INTERVAL, LINK_REPORT_INTERVAL,
    LINK_RESOLVE_MAX,
};
use crate::mailbox::Mail;
use crate::tls::{self, ClientSecurity, LinkSecurity};
use crate::trust::{self, AUTHORITY_BYTES_MAX, Authority, Invalid, TOKEN_BYTES, Token as Invitation};

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
    let queue =
        PeerQueue { links: RwLock::default(), core_count, waiting: Mutex::default(), waker, reports: Mutex::default() };
    Ok((queue, PeerPoll(poll)))
}

/// A connection that another node dialled, and that has not been let in.
struct Caller {
    wire: Wire,
    /// Its first byte has been seen: it is known whether it speaks TLS.
    is_settled: bool,
    since: Instant,
    greeting: Vec<u8>,
    /// It has been told that it is not let in, and has time to read that.
    is_dismissed: bool,
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
    buffer: Vec<u8>,
    started: Instant,
    /// When the reports were last renewed; none if something has changed that they must not lack.
    reported: Option<Instant>,
}

impl Peers {
    /// Links to `contacts`, compressed so hard (1 to 19) or not at all, and anyone who calls at `listeners`.
    ///
    /// # Errors
    /// Those of `epoll_ctl`.
    pub fn new(
        host: Arc<Host>,
        (identity, former): (Identity, Option<Former>),
        life: u64,
        PeerPoll(poll): PeerPoll,
        mut listeners: Vec<TcpListener>,
        contacts: Vec<(NodeId, Member)>,
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
            let (contacts, resolved, misspoken, has_risen) = {
                let mut waiting = lock(&host.peers.waiting);
                if waiting.ends {
                    return;
                }
                waiting.is_awake = true;
                waiting.looks = false;
                std::mem::swap(&mut waiting.messages, &mut messages);
                let misspoken = std::mem::take(&mut waiting.misspoken);
                let has_risen = std::mem::take(&mut waiting.has_risen);
                (waiting.contacts.take(), std::mem::take(&mut waiting.resolved), misspoken, has_risen)
            };
            if has_risen {
                self.rise();
            }
            if let Some(contacts) = contacts {
                self.meet(contacts);
            }
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
            self.tell_drops();
            self.publish();
            // From here on anyone who hands in must wake; what came since is taken at once.
            let mut waiting = lock(&host.peers.waiting);
            waiting.is_awake = false;
            let has_more = !waiting.messages.is_empty()
                || waiting.contacts.is_some()
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

    fn meet(&mut self, contacts: Vec<(NodeId, Member)>) {
        let own = NodeId(self.identity.node);
        let removed = contacts.iter().filter(|(_, member)| member.is_removed).map(|(node, _)| *node).collect();
        let before = std::mem::replace(&mut self.removed, removed);
        // They call again, and are told then.
        let removed = &self.removed;
        self.inbound.retain(|_, heeded| !removed.contains(&heeded.inbound.from()));
        for node in removed.difference(&before) {
            self.host.desks.iter().for_each(|desk| desk.mailbox.post(Mail::HearNoMore(*node)));
        }
        let known: BTreeMap<NodeId, String> = contacts
            .into_iter()
            .filter(|(node, member)| *node != own && !member.is_removed)
            .map(|(node, member)| (node, member.cluster_address))
            .collect();
        let gone: Vec<_> = self.tokens.keys().filter(|(node, ..)| !known.contains_key(node)).copied().collect();
        for key in gone {
            let token = self.tokens.remove(&key).expect("just seen");
            self.links.remove(&token);
        }
        for (node, address) in known {
            let log = (0..self.core_count()).map(|core| (node, Lane::Log, core));
            for place in log.chain([(node, Lane::Vital, 0), (node, Lane::Bulk, 0)]) {
                if let Some(token) = self.tokens.get(&place) {
                    if lock(&self.links[token].link).readdress(&address) {
                        self.cut(*token, "its address has changed", Duration::ZERO);
                    }
                    continue;
                }
                let token = self.next_token;
                self.next_token += 1;
                self.tokens.insert(place, token);
                self.links.insert(token, SharedLink::new(Link::new(node, address.clone(), place.1, place.2)));
            }
        }
        let shared = self.tokens.iter().map(|(key, token)| (*key, Arc::clone(&self.links[token]))).collect();
        *self.host.peers.links.write().unwrap_or_else(PoisonError::into_inner) = shared;
    }

    fn core_count(&self) -> u32 {
        self.host.peers.core_count
    }

    // ---- sending --------------------------------------------------------------------------------------------------

    fn queue(&mut self, messages: &mut Vec<Outgoing>) {
        let mut touched = Vec::new();
        for Outgoing { to, group, lane, bytes } in messages.drain(..) {
            let Some(token) = self.tokens.get(&place(to, lane, group, self.core_count())) else { continue };
            let shared = &self.links[token];
            let pushed = if bytes.len() > LINK_FRAME_BYTES {
                let has_room = lock(&shared.link).has_room(bytes.len());
                // Cores need not wait while it is copied and its checksum made.
                let whole = has_room.then(|| frame::whole_frame(group, &bytes));
                lock(&shared.link).push_whole(whole)
            } else {
                lock(&shared.link).push(group, &bytes)
            };
            // A link that has come in the place of another one was not handed what that one was.
            let _ =
                shared.handed_over_count.try_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
            if pushed && !touched.contains(token) {
                touched.push(*token);
            }
        }
        for token in touched {
            // What has to be compressed waits for its turn among all links.
            lock(&self.links[&token].link).write(&mut 0);
        }
    }

    fn move_link(&mut self, token: usize, is_writable: bool, is_readable: bool) {
        let Some(shared) = self.links.get(&token).map(Arc::clone) else { return };
        let mut link = lock(&shared.link);
        if let State::Greeting { .. } = link.state {
            let (hello, node) = (self.hello(&link), link.node);
            let result = link.greet(&hello, &mut self.buffer);
            drop(link);
            match result {
                Ok(None) => {}
                Ok(Some(welcome)) if welcome.verdict == Verdict::Accepted => {
                    if self.voice.suits(welcome.voice) {
                        self.voices.insert(node, welcome.voice);
                        return self.up(token);
                    }
                    self.cut(token, &unsuited(self.voice, welcome.voice), LINK_PAUSE_MAX);
                }
                Ok(Some(welcome)) if welcome.verdict == Verdict::WrongLevel => {
                    self.cut(token, &unsuited(self.voice, welcome.voice), LINK_PAUSE_MAX);
                }
                Ok(Some(welcome)) => {
                    let is_given_up = matches!(welcome.verdict, Verdict::Removed | Verdict::LeftBehind);
                    if is_given_up && !std::mem::replace(&mut self.is_expelled, true) {
                        self.tell_all(|| Event::Expelled);
                    }
                    let pause = match welcome.verdict {
                        Verdict::Copy => {
                            self.be_a_copy();
                            LINK_PAUSE_MAX
                        }
                        Verdict::AnotherLife => LINK_PAUSE_MIN,
                        _ => LINK_PAUSE_MAX,
                    };
                    self.cut(token, &welcome.verdict.to_string(), pause);
                }
                Err(Ungreeted::Version(version)) => self.fall_back(token, node, version),
                Err(Ungreeted::Malformed(malformed)) => self.cut(token, &malformed.to_string(), LINK_PAUSE_MIN),
                Err(Ungreeted::Cut(reason)) => self.cut(token, &reason, LINK_PAUSE_MIN),
            }
            return;
        }
        if is_readable && let Err((cause, pause)) = link.listen(&mut self.buffer) {
            drop(link);
            return self.cut(token, &cause, pause);
        }
        if is_writable {
            link.is_writable = true;
            link.write(&mut 0);
        }
    }

    /// Another process is this node. Two would promise what neither knows of the other: this one ends at once.
    fn be_a_copy(&self) {
        self.host.end(End::Fault(Fault::Data(format!(
            "this is a copy: another process is node {} of the cluster at this moment, as other nodes hear, and they \
             refuse this one. Start the data directory in one place only. To have one more node, start it with an \
             empty directory and an invitation",
            self.identity.node
        ))));
    }

    /// The other end has answered in another version than it was greeted in: it is greeted in that one, if that is
    /// spoken here.
    fn fall_back(&mut self, token: usize, node: NodeId, version: u16) {
        if !self.voice.versions().contains(&version) {
            let unspoken = Unspoken { version, here: self.voice };
            self.speaks.remove(&node);
            return self.cut(token, &unspoken.to_string(), LINK_PAUSE_MAX);
        }
        if self.speaks.insert(node, version) != Some(version) {
            let latest = self.voice.latest();
            self.host.log.notice(&format!(
                "node {} speaks version {version} of the protocol, and this one up to {latest}: they talk in {version}",
                node.0
            ));
        }
        if let Some(shared) = self.links.get(&token) {
            lock(&shared.link).begin_again();
        }
    }

    /// What this node has in its logs is of a higher level than before: who does not know that is not talked to.
    fn rise(&mut self) {
        self.voice = self.host.floor.voice();
        let voice = self.voice;
        let is_fit = |version: u16| voice.versions().contains(&version);
        self.speaks.retain(|_, version| is_fit(*version));
        self.inbound.retain(|_, heeded| voice.suits(heeded.voice));
        let unfit: Vec<usize> = self
            .links
            .iter()
            .map(|(token, shared)| (*token, lock(&shared.link)))
            .filter(|(_, link)| !matches!(link.state, State::Down { .. }) && !is_fit(link.version()))
            .map(|(token, _)| token)
            .collect();
        for token in unfit {
            let floor = self.voice.floor;
            self.cut(
                token,
                &format!("the cluster is at level {floor}, which the node there does not know"),
                LINK_PAUSE_MAX,
            );
        }
        // Cores hear some of them as well. They call again, and are told then.
        for (node, _) in self.callers_voices.extract_if(.., |_, theirs| !voice.suits(*theirs)) {
            self.host.desks.iter().for_each(|desk| desk.mailbox.post(Mail::HearNoMore(node)));
        }
    }

    /// A node has greeted in this version. If that is later than the one in which it has answered so far, it is another
    /// program now, and is greeted in the later one. The other way round its answer tells.
    fn hear_version(&mut self, node: NodeId, version: u16) {
        if self.speaks.get(&node).is_none_or(|spoken| *spoken >= version) {
            return;
        }
        if version == self.voice.latest() {
            self.speaks.remove(&node);
        } else {
            self.speaks.insert(node, version);
        }
        let tokens: Vec<usize> =
            self.tokens.iter().filter(|((other, ..), _)| *other == node).map(|(_, token)| *token).collect();
        for token in tokens {
            let is_other = {
                let link = lock(&self.links[&token].link);
                !matches!(link.state, State::Down { .. }) && link.version() != version
            };
            if is_other {
                self.cut(
                    token,
                    "the other end speaks a later version of the protocol now, and is greeted in that",
                    Duration::ZERO,
                );
            }
        }
    }

    fn hello(&self, link: &Link) -> Vec<u8> {
        Hello {
            purpose: Purpose::Carry(link.lane),
            cluster: self.identity.cluster,
            from: self.identity.node,
            to: link.node.0,
            group_count: self.identity.group_count,
            is_compressed: link.is_compressed(),
            life: self.life,
            version: link.version(),
            voice: self.voice,
        }
        .encode()
    }

    fn up(&mut self, token: usize) {
        self.reported = None;
        let mut link = lock(&self.links[&token].link);
        link.up(self.started);
        let (node, lane) = (link.node, link.lane);
        let own_address = link.own_address();
        drop(link);
        // A node that is told a wrong address of this one does not call it.
        self.note_own_address(own_address);
        if lane == Lane::Log {
            // What waits for an answer is sent again then, over all of them.
            if self.log_links(node).all(|link| link.is_up()) {
                self.host.log.notice(&format!("linked to node {}", node.0));
                let levels = self.voices.get(&node).copied().unwrap_or(Voice::FIRST).levels;
                self.tell_all(|| Event::Reachable { node, levels });
            }
        }
    }

    fn cut(&mut self, token: usize, cause: &str, pause_min: Duration) {
        let Some(shared) = self.links.get(&token) else { return };
        self.reported = None;
        let mut link = lock(&shared.link);
        let (was_up, is_news) = link.cut(cause, pause_min);
        let (node, lane, core) = (link.node, link.lane, link.core);
        drop(link);
        if was_up {
            self.tell_unreachable((node, lane, core));
        }
        // Of several connections that go the same way at the same time one is told of.
        let is_like = |link: &MutexGuard<'_, Link>| !link.is_up() && link.last_cause() == cause;
        if lane == Lane::Log && is_news && self.log_links(node).filter(is_like).count() == 1 {
            self.host.log.warning(&format!("no link to node {}: {cause}", node.0));
        }
    }

    /// The connections of the log's lane to a node.
    fn log_links(&self, node: NodeId) -> impl Iterator<Item = MutexGuard<'_, Link>> {
        let places = (node, Lane::Log, 0)..=(node, Lane::Log, u32::MAX);
        self.tokens.range(places).map(|(_, token)| lock(&self.links[token].link))
    }

    fn tell_all(&self, event: impl Fn() -> Event<'static>) {
        for desk in &self.host.desks {
            desk.mailbox.post(Mail::Event(event()));
        }
    }

    /// Something has been lost on a link: the groups that it carries start over.
    fn tell_unreachable(&self, (node, lane, core): Place) {
        if lane == Lane::Log {
            self.host.desks[core as usize].mailbox.post(Mail::Event(Event::Unreachable { node }));
        } else {
            self.tell_all(|| Event::Unreachable { node });
        }
    }

    fn tell_drops(&mut self) {
        for shared in self.links.values() {
            let mut link = lock(&shared.link);
            let place = (link.node, link.lane, link.core);
            let has_dropped = std::mem::take(&mut link.has_dropped);
            drop(link);
            if has_dropped {
                self.tell_unreachable(place);
            }
        }
    }

    /// Dials where it is time, writes what cores have left, and gives up what is broken or does not move.
    fn look_after_links(&mut self) {
        let now = Instant::now();
        let mut to_cut = Vec::new();
        let mut pack_bytes = LINK_PACK_BYTES_MAX;
        // Another one is first each time.
        self.turn_count += 1;
        let first = self.turn_count % self.links.len().max(1);
        for (token, shared) in self.links.iter().cycle().skip(first).take(self.links.len()) {
            let mut link = lock(&shared.link);
            let failure = match &link.state {
                State::Down { until } if *until <= now => {
                    let address = link.address().to_owned();
                    let dialled = match address.parse() {
                        Ok(address) => self.dial(*token, link, address),
                        Err(_) => {
                            link.state = State::Down { until: now + LINK_RESOLVE_MAX };
                            drop(link);
                            if self.resolving.contains(token) {
                                continue;
                            }
                            let asked = resolve_aside(Arc::clone(&self.host), *token, address);
                            if asked.is_ok() {
                                self.resolving.insert(*token);
                            }
                            asked
                        }
                    };
                    dialled.err().map(|error| error.to_string())
                }
                State::Greeting { since, .. } if since.elapsed() > LINK_CONNECT_MAX => Some("no answer".to_owned()),
                State::Up { .. } if link.is_stuck() => Some("it takes nothing".to_owned()),
                State::Up { .. } => {
                    link.write(&mut pack_bytes);
                    link.failure.take()
                }
                _ => None,
            };
            to_cut.extend(failure.map(|cause| (*token, cause)));
        }
        for (token, cause) in to_cut {
            self.cut(token, &cause, LINK_PAUSE_MIN);
        }
    }

    /// It is known now what the name of a node means, or why not.
    fn resolved(&mut self, token: usize, address: &str, meaning: io::Result<SocketAddr>) {
        self.resolving.remove(&token);
        let Some(shared) = self.links.get(&token).map(Arc::clone) else { return };
        let mut link = lock(&shared.link);
        if !matches!(link.state, State::Down { .. }) {
            return;
        }
        if link.address() != address {
            // It is somewhere else meanwhile.
            link.state = State::Down { until: Instant::now() };
            return;
        }
        let dialled = match meaning {
            Ok(address) => self.dial(token, link, address),
            Err(error) => {
                drop(link);
                Err(error)
            }
        };
        if let Err(error) = dialled {
            self.cut(token, &error.to_string(), LINK_PAUSE_MIN);
        }
    }

    fn dial(&self, token: usize, mut link: MutexGuard<'_, Link>, address: SocketAddr) -> io::Result<()> {
        let security = self.host.security();
        // Heartbeats are few and small, and wait for nothing.
        let lane = link.lane;
        link.compress(self.compression_level.filter(|_| lane != Lane::Vital))?;
        let version = self.speaks.get(&link.node).copied().unwrap_or(self.voice.latest());
        link.dial(address, self.poll.registry(), Token(token), security.links.as_ref(), version)
    }

    fn publish(&mut self) {
        if self.reported.is_some_and(|reported| reported.elapsed() < LINK_REPORT_INTERVAL) {
            return;
        }
        self.reported = Some(Instant::now());
        let mut reports = lock(&self.host.peers.reports);
        reports.clear();
        for ((_, _, core), token) in &self.tokens {
            let report = lock(&self.links[token].link).report();
            match reports.last_mut() {
                Some(lane_report) if *core > 0 => lane_report.add(&report),
                _ => reports.push(report),
            }
        }
    }

    // ---- listening ------------------------------------------------------------------------------------------------

    fn accept(&mut self, listener: usize) {
        loop {
            match self.listeners[listener].accept() {
                Ok((mut stream, _)) => {
                    let token = self.next_token;
                    self.next_token += 1;
                    let _ = stream.set_nodelay(true);
                    // It only listens: without this it would never learn that the other end is no more.
                    let keepalive = TcpKeepalive::new().with_time(LINK_KEEPALIVE);
                    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
                    if self.poll.registry().register(&mut stream, Token(token), Interest::READABLE).is_ok() {
                        self.callers.insert(token, Caller::new(stream));
                        self.greet(token);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // One caller that has gone again: others may wait behind it.
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(error) => {
                    if self.unaccepted_told.is_none_or(|told| told.elapsed() >= LINK_REFUSAL_INTERVAL) {
                        self.unaccepted_told = Some(Instant::now());
                        self.host.log.warning(&format!("cannot accept a connection of another node: {error}"));
                    }
                    // Nobody says a second time that somebody waits there.
                    self.unaccepted.insert(listener, Instant::now() + LINK_PAUSE_MAX);
                    return;
                }
            }
        }
    }

    /// Hears who a caller is.
    fn greet(&mut self, token: usize) {
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
            let count = match read {
                Ok(0) => break,
                Ok(_) if caller.is_dismissed => continue,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // What TLS does not let in; it has said so itself.
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    self.dismiss(token, None, &error.to_string());
                    continue;
                }
                Err(_) => break,
            };
            caller.greeting.extend_from_slice(&self.buffer[..count]);
            match self.let_in(token) {
                Ok(true) => {}
                Ok(false) => break,
                Err(malformed @ Malformed::Version(_)) => {
                    self.dismiss(token, Some(Verdict::WrongVersion), &malformed.to_string());
                }
                Err(malformed) => {
                    self.tell_refusal(self.address_of(token), &malformed.to_string());
                    break;
                }
            }
        }
        // It will be dialled again by the other end.
        self.callers.remove(&token);
    }

    fn address_of(&self, caller: usize) -> Option<SocketAddr> {
        self.callers.get(&caller)?.wire.socket().peer_addr().ok()
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
        self.tell_refusal(self.address_of(token), cause);
        let Some(caller) = self.callers.get_mut(&token) else { return };
        caller.is_dismissed = true;
        caller.since = Instant::now();
        if let Some(verdict) = verdict {
            // A node that does not take it learns nothing.
            let version = match verdict {
                // It sees from the version of the answer what is spoken here.
                Verdict::WrongVersion => self.voice.latest(),
                _ => answered_in(&caller.greeting, self.voice),
            };
            let _ = caller.wire.write_all(&Welcome::refusal(verdict).encode(version));
        }
        let _ = caller.wire.socket().shutdown(Shutdown::Write);
    }

    /// One line, but not the same one again and again: who is turned away dials on, and is counted meanwhile.
    fn tell_refusal(&mut self, address: Option<SocketAddr>, cause: &str) {
        let Some(address) = address else { return };
        if self.refused.len() > REFUSED_MAX {
            self.refused.clear();
        }
        let entry = self.refused.entry((address.ip(), cause.to_owned()));
        let mut is_news = false;
        let (told, more) = entry.or_insert_with(|| {
            is_news = true;
            (Instant::now(), 0)
        });
        if is_news {
            self.host.log.warning(&format!("cuts the link from {address}: {cause}"));
            return;
        }
        *more += 1;
        if told.elapsed() >= LINK_REFUSAL_INTERVAL {
            let line = format!(
                "cuts the link from {address}: {cause}; {more} times in the last {} s",
                told.elapsed().as_secs()
            );
            self.host.log.warning(&line);
            (*told, *more) = (Instant::now(), 0);
        }
    }

    /// Drops callers that never said who they are, or have been told to go.
    fn look_after_callers(&mut self) {
        self.callers.retain(|_, caller| {
            let is_late = caller.since.elapsed() > LINK_CONNECT_MAX + LINK_FAREWELL_MAX;
            let is_gone = caller.is_dismissed && caller.since.elapsed() > LINK_FAREWELL_MAX;
            !is_late && !is_gone
        });
    }

    /// Answers a greeting, once it is whole. False if the connection has done its work.
    fn let_in(&mut self, token: usize) -> Result<bool, Malformed> {
        let Some(caller) = self.callers.get_mut(&token) else { return Ok(true) };
        let Some(version) = frame::check_head(&caller.greeting, self.voice)? else { return Ok(true) };
        if caller.greeting.len() < hello_bytes(version) {
            return Ok(true);
        }
        let (hello, early) = caller.greeting.split_at(hello_bytes(version));
        let hello = Hello::decode(hello, version)?;
        if hello.purpose.has_invitation() && early.len() < TOKEN_BYTES {
            return Ok(true);
        }
        // The node that dials waits for the answer.
        let is_whole = early.len() == if hello.purpose.has_invitation() { TOKEN_BYTES } else { 0 };
        if !is_whole {
            return Err(Malformed::Damaged);
        }
        let security = self.host.security();
        let authority = security.links.as_ref().and_then(|links| links.authority.as_deref());
        // First of all: the certificate of such a caller has been verified, and is good for nothing but this answer.
        if self.former.as_ref().is_some_and(|former| former.has(caller.wire.certificate(), hello.cluster)) {
            let _ = caller.wire.write_all(&Welcome::refusal(Verdict::LeftBehind).encode(version));
            let address = caller.wire.socket().peer_addr().ok();
            let cause =
                format!("node {} is of the cluster that this one was recovered from, and was given up", hello.from);
            self.tell_refusal(address, &cause);
            return Ok(false);
        }
        if hello.purpose.has_invitation() {
            let invitation = Invitation::decode(early);
            self.admit(token, &hello, invitation.as_ref(), authority);
            return Ok(false);
        }
        let shown = authority.map(|_| caller.wire.certificate());
        let mut welcome = judge_caller(&self.identity, &self.removed, shown, &hello, self.voice);
        let address = caller.wire.socket().peer_addr().ok();
        if welcome.verdict == Verdict::Accepted && matches!(hello.purpose, Purpose::Carry(_)) {
            welcome.verdict = self.judge_life(&hello, address);
        }
        let Some(caller) = self.callers.get_mut(&token) else { return Ok(true) };
        // A fresh socket has room for so few bytes.
        let is_told = caller.wire.write_all(&welcome.encode(version)).is_ok();
        let cause = match welcome.verdict {
            Verdict::NotInvited => Some("it shows no certificate of this cluster, and has no invitation".to_owned()),
            Verdict::WrongNumber => {
                Some(format!("it calls itself node {}, and its certificate is that of another one", hello.from))
            }
            Verdict::Removed => Some(format!("node {} has been removed from the cluster", hello.from)),
            Verdict::WrongLevel => Some(unsuited(self.voice, hello.voice)),
            _ => None,
        };
        if let Some(cause) = cause {
            self.tell_refusal(address, &cause);
            return Ok(false);
        }
        if !is_told || welcome.verdict != Verdict::Accepted || hello.purpose == Purpose::Ask {
            return Ok(false);
        }
        let Ok(decompressor) = hello.is_compressed.then(Decompressor::new).transpose() else { return Ok(false) };
        let Some(caller) = self.callers.remove(&token) else { return Ok(false) };
        self.note_own_address(caller.wire.socket().local_addr());
        let is_for_core = hello.purpose == Purpose::Carry(Lane::Log);
        let inbound = Inbound::new(NodeId(hello.from), caller.wire, decompressor);
        self.inbound.insert(token, Heeded { inbound, is_for_core, life: hello.life, voice: hello.voice });
        self.callers_voices.insert(NodeId(hello.from), hello.voice);
        self.hear_version(NodeId(hello.from), version);
        self.hear(token);
        Ok(true)
    }

    /// Whether who calls is the process that is the node.
    fn judge_life(&mut self, hello: &Hello, from: Option<SocketAddr>) -> Verdict {
        let from = from.map(|address| address.to_string()).unwrap_or_default();
        match self.lives.greet(NodeId(hello.from), hello.life, &from, clock::instant()) {
            Judgement::Welcome => Verdict::Accepted,
            Judgement::Wait => Verdict::AnotherLife,
            Judgement::Copy { address, is_news } => {
                if is_news {
                    let node = hello.from;
                    let itself = format!("node {node} itself is heard from {address}");
                    let text = format!("refuses a copy of node {node} that calls from {from}: {itself}");
                    self.host.log.warning(&text);
                    self.host.desks[0].mailbox.post(Mail::Event(Event::Imposture { text }));
                }
                Verdict::Copy
            }
        }
    }

    /// Answers a newcomer with an invitation: lets it in by giving it the cluster's authority, or says why not.
    fn admit(&mut self, token: usize, hello: &Hello, invitation: Option<&Invitation>, authority: Option<&Authority>) {
        let now_s = clock::unix_seconds();
        self.used.retain(|_, (expires_s, _)| *expires_s > now_s);
        let Some(caller) = self.callers.get_mut(&token) else { return };
        let verdict = match (authority, invitation) {
            (None, _) => Verdict::NoInvitations,
            (Some(_), _) if !caller.wire.is_encrypted() => Verdict::NeedsTls,
            (Some(_), None) => Verdict::ForgedInvitation,
            (Some(_), Some(_)) if self.removed.contains(&NodeId(hello.from)) => Verdict::Removed,
            (Some(_), Some(_)) if !self.voice.suits(hello.voice) => Verdict::WrongLevel,
            (Some(authority), Some(invitation)) => match authority.verify(invitation, now_s) {
                Err(Invalid::Forged) => Verdict::ForgedInvitation,
                Err(Invalid::Expired) => Verdict::ExpiredInvitation,
                // One that has not got the answer asks again.
                Ok(()) => match self.used.get(&invitation.id()) {
                    Some((_, node)) if *node != hello.from => Verdict::UsedInvitation,
                    _ => Verdict::Accepted,
                },
            },
        };
        let address = caller.wire.socket().peer_addr().ok();
        let name = invitation.map(Invitation::name).unwrap_or_default();
        let (Verdict::Accepted, Some(authority), Some(invitation)) = (verdict, authority, invitation) else {
            let _ = caller.wire.write_all(&Welcome::refusal(verdict).encode(hello.version));
            let cause = match verdict {
                Verdict::NoInvitations => {
                    "it has an invitation, and this cluster has no authority of its own".to_owned()
                }
                Verdict::ExpiredInvitation => format!("its invitation {name} has expired"),
                Verdict::UsedInvitation => format!("its invitation {name} has let in another node"),
                Verdict::Removed => format!("node {} has been removed from the cluster", hello.from),
                Verdict::WrongLevel => unsuited(self.voice, hello.voice),
                _ => "no member of this cluster has made its invitation".to_owned(),
            };
            return self.tell_refusal(address, &cause);
        };
        let mut answer = welcome(&self.identity, Verdict::Accepted, self.voice).encode(hello.version);
        if hello.purpose == Purpose::Enter {
            let authority = authority.encode();
            answer.extend_from_slice(&u32::try_from(authority.len()).expect("a certificate and a key").to_le_bytes());
            answer.extend_from_slice(&authority);
            self.used.insert(invitation.id(), (invitation.expires_s(), hello.from));
            let from = address.map(|address| address.to_string()).unwrap_or_default();
            self.host.log.notice(&format!("invitation {name} lets in node {} from {from}", hello.from));
        }
        let _ = caller.wire.write_all(&answer);
        let called_at = caller.wire.socket().local_addr();
        self.note_own_address(called_at);
    }

    /// Reads what another node says. What is for a core goes to it with the first message, which shows which it is.
    fn hear(&mut self, token: usize) {
        let Some(Heeded { mut inbound, is_for_core, life, voice }) = self.inbound.remove(&token) else { return };
        let from = inbound.from();
        let mut mail: Vec<Vec<Mail>> = self.host.desks.iter().map(|_| Vec::new()).collect();
        loop {
            let mut spoken_to = None;
            let heard = inbound.hear(&mut self.buffer, |group, message| {
                let core = self.host.core_of(group);
                mail[core].push(Mail::Peer { from, bytes: message.to_vec() });
                spoken_to.get_or_insert(core);
            });
            if spoken_to.is_some() {
                self.lives.hear(from, life, clock::instant());
            }
            for (desk, mail) in self.host.desks.iter().zip(&mut mail) {
                if !mail.is_empty() {
                    desk.mailbox.post_with(|box_| box_.append(mail));
                }
            }
            match (heard, spoken_to) {
                (Ok(Heard::End), _) => return self.note_end(from, life),
                (Err(cause), _) => {
                    self.note_end(from, life);
                    return self.tell_refusal(inbound.address(), &cause);
                }
                (Ok(_), Some(core)) if is_for_core => {
                    // If it cannot be taken off, it cannot be put on: it is dialled again.
                    if self.poll.registry().deregister(inbound.source()).is_ok() {
                        self.host.desks[core].mailbox.post(Mail::Inbound(Box::new(inbound)));
                    }
                    return;
                }
                (Ok(Heard::More), _) => {}
                (Ok(Heard::All), _) => break,
            }
        }
        self.inbound.insert(token, Heeded { inbound, is_for_core, life, voice });
    }

    /// A connection has ended. With its last one, but for those that cores read, a process is gone.
    fn note_end(&mut self, from: NodeId, life: u64) {
        let is_its_own = |heeded: &Heeded| heeded.inbound.from() == from && heeded.life == life;
        if !self.inbound.values().any(is_its_own) {
            self.lives.gone(from, life);
        }
    }
}

/// Whether a caller is welcome. Where certificates name nodes, `shown` is the verified one of the caller, if any.
fn judge_caller(
    identity: &Identity,
    removed: &BTreeSet<NodeId>,
    shown: Option<Option<&CertificateDer<'_>>>,
    hello: &Hello,
    voice: Voice,
) -> Welcome {
    match shown {
        None => judge(identity, removed, hello, voice),
        Some(None) => Welcome::refusal(Verdict::NotInvited),
        // From here on it is who it says, or holds the authority itself.
        Some(Some(certificate)) if !tls::is_of_node(certificate, hello.from) => Welcome::refusal(Verdict::WrongNumber),
        Some(Some(_)) if removed.contains(&NodeId(hello.from)) => Welcome::refusal(Verdict::Removed),
        Some(Some(_)) => judge(identity, removed, hello, voice),
    }
}

/// Whether a greeting is welcome.
fn judge(identity: &Identity, removed: &BTreeSet<NodeId>, hello: &Hello, voice: Voice) -> Welcome {
    let verdict = match hello.purpose {
        Purpose::Ask => Verdict::Accepted,
        Purpose::Carry(_) if !voice.suits(hello.voice) => Verdict::WrongLevel,
        Purpose::Enter | Purpose::Knock => Verdict::NoInvitations,
        Purpose::Carry(_) if hello.cluster != identity.cluster => Verdict::WrongCluster,
        Purpose::Carry(_) if removed.contains(&NodeId(hello.from)) => Verdict::Removed,
        Purpose::Carry(_) if hello.to != identity.node => Verdict::WrongNode,
        Purpose::Carry(_) if hello.group_count != identity.group_count => Verdict::WrongGroups,
        Purpose::Carry(_) => Verdict::Accepted,
    };
    welcome(identity, verdict, voice)
}

/// An answer that says who this is.
fn welcome(identity: &Identity, verdict: Verdict, voice: Voice) -> Welcome {
    Welcome {
        voice,
        verdict,
        cluster: identity.cluster,
        node: identity.node,
        group_count: identity.group_count,
        hash_seed: identity.hash_seed,
    }
}

/// Why two nodes have nothing to say to each other, at one of them.
fn unsuited(here: Voice, there: Voice) -> String {
    if here.levels.contains(there.floor) {
        format!("the cluster is at level {}, and the node there knows {}", here.floor, there.levels)
    } else {
        format!(
            "the cluster is at level {}, and this version of Holdfast knows {}: start a version that knows level {0}",
            there.floor, here.levels
        )
    }
}

/// The version in which a caller is answered, by what has come of its greeting.
fn answered_in(greeting: &[u8], here: Voice) -> u16 {
    frame::check_head(greeting, here).ok().flatten().unwrap_or(here.latest())
}

impl Caller {
    fn new(stream: TcpStream) -> Self {
        Self {
            wire: Wire::Plain(stream),
            is_settled: false,
            since: Instant::now(),
            greeting: Vec::new(),
            is_dismissed: false,
        }
    }
}

/// Asks what a name means on a thread of its own: it may take long, and meanwhile other nodes have to be heard.
fn resolve_aside(host: Arc<Host>, token: usize, address: String) -> io::Result<()> {
    let resolver = std::thread::Builder::new().name("resolver".into());
    resolver
        .spawn(move || {
            let meaning = resolve(&address);
            host.peers.put(|waiting| waiting.resolved.push((token, address, meaning)));
        })
        .map(drop)
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

fn hello(purpose: Purpose, own: Asker, version: u16) -> Hello {
    let voice = Voice::fresh(own.levels);
    Hello { purpose, cluster: 0, from: own.node, to: 0, group_count: 0, is_compressed: false, life: 0, version, voice }
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
