//! Where clients come in: the listening sockets, and the thread that accepts from them and deals connections out.
//!
//! One thread accepts for all cores. Listening once per core with `SO_REUSEPORT` would leave the choice to a hash of
//! the address, and a few connections then often share one core while another idles; and a core that is busy with a
//! long command would keep its share of newcomers waiting. This thread deals each newcomer to the core with the fewest
//! clients. It sleeps unless somebody connects.
//!
//! It also agrees on keys with those who come to the TLS port, before any core hears of them: that takes a hundred
//! times as long as a request, and cores have others to serve meanwhile.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream, UnixListener};
use mio::{Events, Interest, Poll, Token, Waker};
use node::event::Peer;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::connection::Stream;
use crate::fault::Fault;
use crate::host::Host;
use crate::limits::{ACCEPT_REST, ACCEPTS_PER_TURN_MAX, HANDSHAKE_MAX, STRANGER_INTERVAL};
use crate::mailbox::Mail;
use crate::tls::{self, TlsStream};

/// Redis's words to a client too many.
const TOO_MANY: &[u8] = b"-ERR max number of clients reached\r\n";

/// Where to listen.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Addresses as `bind` has them: IPv4, IPv6 or a name of this machine, `*` and `::*` for all; with a leading `-` it
    /// may be missing on this machine.
    pub addresses: Vec<String>,
    /// TCP port; 0 listens on none.
    pub port: u16,
    /// TCP port for clients that speak TLS; 0 listens on none.
    pub tls_port: u16,
    /// Connections that the kernel keeps until they are accepted.
    pub backlog: i32,
    /// Path of a Unix socket.
    pub unix_socket: Option<PathBuf>,
    /// Its permissions, if not those of the process.
    pub unix_permissions: Option<u32>,
}

/// A client that has just connected.
pub struct Arrival {
    /// The session's number.
    pub serial: u64,
    /// Its socket.
    pub stream: Stream,
    /// Who it is.
    pub peer: Peer,
}

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// On a TCP port.
    Tcp(TcpListener),
    /// On a TCP port, for TLS.
    Tls(TcpListener),
    /// On a path, which goes when the listener goes.
    Unix(UnixListener, PathBuf),
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // Should it have been removed by hand there is nothing left to do.
            let _ = fs::remove_file(path);
        }
    }
}

/// Opens all listening sockets; from now on clients can connect, and wait in the backlog.
///
/// # Errors
/// An address that cannot be listened on, unless it was marked as optional.
pub fn listen(options: &ListenOptions) -> Result<Vec<Listener>, Fault> {
    let mut listeners: Vec<_> =
        listen_on_all(options, options.port, "--port")?.into_iter().map(Listener::Tcp).collect();
    listeners.extend(listen_on_all(options, options.tls_port, "--tls-port")?.into_iter().map(Listener::Tls));
    if let Some(path) = &options.unix_socket {
        let listener = listen_unix(path, options).map_err(|cause| Fault::Listen {
            address: path.display().to_string(),
            option: "--unixsocket",
            cause,
        })?;
        listeners.push(Listener::Unix(listener, path.clone()));
    }
    Ok(listeners)
}

/// Opens a port on all addresses, for clients or for other nodes; port 0 is none. `option` is what names it.
///
/// # Errors
/// As [`listen`].
pub fn listen_on_all(options: &ListenOptions, port: u16, option: &'static str) -> Result<Vec<TcpListener>, Fault> {
    let mut listeners = Vec::new();
    if port == 0 {
        return Ok(listeners);
    }
    for address in &options.addresses {
        let (address, is_optional) = match address.strip_prefix('-') {
            Some(address) => (address, true),
            None => (address.as_str(), false),
        };
        for socket_address in resolve(address, port)? {
            match listen_tcp(socket_address, options.backlog) {
                Ok(listener) => listeners.push(listener),
                Err(cause) if is_optional && is_absent(&cause) => {}
                Err(cause) => return Err(Fault::Listen { address: socket_address.to_string(), option, cause }),
            }
        }
    }
    Ok(listeners)
}

fn resolve(address: &str, port: u16) -> Result<Vec<SocketAddr>, Fault> {
    let ip: IpAddr = match address {
        "*" => Ipv4Addr::UNSPECIFIED.into(),
        "::*" => Ipv6Addr::UNSPECIFIED.into(),
        _ => match address.parse() {
            Ok(ip) => ip,
            Err(_) => {
                let mut found: Vec<SocketAddr> =
                    (address, port).to_socket_addrs().map(Iterator::collect).unwrap_or_default();
                found.dedup();
                return if found.is_empty() { Err(Fault::Address { address: address.to_owned() }) } else { Ok(found) };
            }
        },
    };
    Ok(vec![SocketAddr::new(ip, port)])
}

/// Whether the machine merely lacks this address or its whole family.
fn is_absent(cause: &io::Error) -> bool {
    cause.kind() == ErrorKind::AddrNotAvailable
        || matches!(cause.raw_os_error(), Some(nix::libc::EAFNOSUPPORT | nix::libc::EPROTONOSUPPORT))
}

fn listen_tcp(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // IPv4 has listeners of its own.
        socket.set_only_v6(true)?;
    }
    // A port can be taken as soon as its last server has gone; one that is being listened on cannot.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    Ok(TcpListener::from_std(socket.into()))
}

fn listen_unix(path: &Path, options: &ListenOptions) -> io::Result<UnixListener> {
    if let Ok(found) = fs::symlink_metadata(path) {
        let is_socket = found.file_type().is_socket();
        if !is_socket || std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(ErrorKind::AddrInUse.into());
        }
        // Left behind by a server that was killed: nobody answers there.
        fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&socket2::SockAddr::unix(path)?)?;
    if let Some(permissions) = options.unix_permissions {
        fs::set_permissions(path, fs::Permissions::from_mode(permissions))?;
    }
    socket.listen(options.backlog)?;
    Ok(UnixListener::from_std(socket.into()))
}

const WAKE: Token = Token(usize::MAX);

/// The thread that accepts.
pub struct Acceptor {
    host: Arc<Host>,
    poll: Poll,
    listeners: Vec<Watched>,
    /// Who has come to the TLS port, until keys are agreed; by token.
    newcomers: BTreeMap<usize, Newcomer>,
    next_token: usize,
    next_core: usize,
    is_exhaustion_told: bool,
    /// When a line was last written about a newcomer that could not be let in, and how many there have been since.
    stranger_told: Option<Instant>,
    strangers_untold: u64,
}

struct Newcomer {
    stream: Box<TlsStream<TcpStream>>,
    peer: Peer,
    since: Instant,
}

struct Watched {
    listener: Listener,
    // Edge-triggered: there may be more until an accept would block.
    has_more: bool,
}

impl Watched {
    fn is_for_tls(&self) -> bool {
        matches!(self.listener, Listener::Tls(_))
    }
}

impl Acceptor {
    /// An acceptor of `listeners`, and what wakes it when [`Host::stop_accepting`] has been called.
    ///
    /// # Errors
    /// Those of `epoll_create` and `epoll_ctl`.
    pub fn new(host: Arc<Host>, listeners: Vec<Listener>) -> io::Result<(Self, Waker)> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKE)?;
        let mut watched = Vec::new();
        for mut listener in listeners {
            let token = Token(watched.len());
            match &mut listener {
                Listener::Tcp(listener) | Listener::Tls(listener) => {
                    poll.registry().register(listener, token, Interest::READABLE)?;
                }
                Listener::Unix(listener, _) => poll.registry().register(listener, token, Interest::READABLE)?,
            }
            watched.push(Watched { listener, has_more: false });
        }
        let this = Self {
            host,
            poll,
            next_token: watched.len(),
            listeners: watched,
            newcomers: BTreeMap::new(),
            next_core: 0,
            is_exhaustion_told: false,
            stranger_told: None,
            strangers_untold: 0,
        };
        Ok((this, waker))
    }

    /// Accepts until the host stops accepting; then the listening sockets are closed.
    pub fn run(mut self) {
        let mut events = Events::with_capacity(64);
        let mut timeout = None;
        while !self.host.has_stopped_accepting() {
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != ErrorKind::Interrupted
            {
                self.host.log.warning(&format!("acceptor: epoll_wait: {error}"));
                std::thread::sleep(ACCEPT_REST);
            }
            for event in &events {
                if let Some(watched) = self.listeners.get_mut(event.token().0) {
                    watched.has_more = true;
                } else {
                    self.shake_hands(event.token().0);
                }
            }
            timeout = self.accept_from_all();
            if let Some(left) = self.dismiss_the_slow() {
                timeout = Some(timeout.map_or(left, |timeout| timeout.min(left)));
            }
        }
    }

    /// Begins to agree on keys with somebody at the TLS port.
    fn greet(&mut self, socket: TcpStream, peer: Peer) {
        if self.is_full() {
            // Nothing can be told before there are keys.
            self.host.rejected_count.fetch_add(1, Ordering::Relaxed);
            return;
        }
        tune(&socket, self.host.knobs.keepalive_s.load(Ordering::Relaxed));
        let security = self.host.security();
        let Some(config) = &security.clients else { return };
        let token = self.next_token;
        self.next_token += 1;
        let begun = tls::accept(config, socket).and_then(|mut stream| {
            let interests = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(stream.socket_mut(), Token(token), interests)?;
            Ok(Box::new(stream))
        });
        match begun {
            Ok(stream) => {
                self.newcomers.insert(token, Newcomer { stream, peer, since: Instant::now() });
            }
            Err(error) => self.host.log.warning(&format!("cannot watch a new connection: {error}: it is closed")),
        }
    }

    fn shake_hands(&mut self, token: usize) {
        let Some(newcomer) = self.newcomers.get_mut(&token) else { return };
        match newcomer.stream.shake_hands() {
            Ok(false) => {}
            Ok(true) => {
                let Some(mut newcomer) = self.newcomers.remove(&token) else { return };
                match self.poll.registry().deregister(newcomer.stream.socket_mut()) {
                    Ok(()) => self.deal(Stream::Tls(newcomer.stream), newcomer.peer),
                    Err(error) => self.host.log.warning(&format!("cannot pass a new connection on: {error}")),
                }
            }
            Err(error) => self.dismiss(token, &error.to_string()),
        }
    }

    fn dismiss(&mut self, token: usize, cause: &str) {
        let Some(newcomer) = self.newcomers.remove(&token) else { return };
        if self.stranger_told.is_some_and(|told| told.elapsed() < STRANGER_INTERVAL) {
            self.strangers_untold += 1;
            return;
        }
        self.stranger_told = Some(Instant::now());
        let more = match std::mem::take(&mut self.strangers_untold) {
            0 => String::new(),
            count => format!("; so were {count} others since the last such line"),
        };
        let address = &newcomer.peer.address;
        self.host.log.warning(&format!("a client at {address} was cut before keys were agreed: {cause}{more}"));
    }

    /// Ends the wait for those who take too long, and says how long to wait for the next.
    fn dismiss_the_slow(&mut self) -> Option<Duration> {
        loop {
            // The first in the table has come first.
            let (token, newcomer) = self.newcomers.first_key_value()?;
            let (token, waited) = (*token, newcomer.since.elapsed());
            if waited < HANDSHAKE_MAX {
                return Some(HANDSHAKE_MAX.saturating_sub(waited));
            }
            self.dismiss(token, "it took too long");
        }
    }

    fn is_full(&self) -> bool {
        let count = self.host.client_count() + self.newcomers.len() as u64;
        count >= self.host.knobs.clients_max.load(Ordering::Relaxed)
    }

    /// Takes newcomers from all listeners, and says how long to wait before the next time at most.
    fn accept_from_all(&mut self) -> Option<Duration> {
        for index in 0..self.listeners.len() {
            for _ in 0..ACCEPTS_PER_TURN_MAX {
                if !self.listeners[index].has_more {
                    break;
                }
                match accept(&self.listeners[index].listener) {
                    Ok((Stream::Tcp(socket), peer)) if self.listeners[index].is_for_tls() => self.greet(socket, peer),
                    Ok((stream, peer)) => self.deal(stream, peer),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        self.listeners[index].has_more = false;
                        self.is_exhaustion_told = false;
                    }
                    Err(error) if is_of_one_connection(&error) => {}
                    Err(error) => {
                        self.tell_exhaustion(&error);
                        return Some(ACCEPT_REST);
                    }
                }
            }
        }
        self.listeners.iter().any(|watched| watched.has_more).then_some(Duration::ZERO)
    }

    fn tell_exhaustion(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.is_exhaustion_told, true) {
            self.host.log.warning(&format!(
                "cannot accept connections for now: {error}: raise the limit of open files or lower maxclients"
            ));
        }
    }

    fn deal(&mut self, mut stream: Stream, peer: Peer) {
        let host = &*self.host;
        if self.is_full() {
            host.rejected_count.fetch_add(1, Ordering::Relaxed);
            // A fresh socket has room for one line; if not, its client learns from the close.
            let _ = stream.write(TOO_MANY);
            return;
        }
        if let Stream::Tcp(stream) = &stream {
            tune(stream, host.knobs.keepalive_s.load(Ordering::Relaxed));
        }
        // Among equals in turn, so that sessions that come and go do not all meet on the first core.
        let core_count = host.desks.len();
        let chosen = (0..core_count)
            .map(|step| (self.next_core + step) % core_count)
            .min_by_key(|&core| host.desks[core].client_count.load(Ordering::Relaxed))
            .unwrap_or_default();
        self.next_core = (chosen + 1) % core_count;
        let desk = &host.desks[chosen];
        desk.client_count.fetch_add(1, Ordering::Relaxed);
        let serial = host.next_serial.fetch_add(1, Ordering::Relaxed);
        desk.mailbox.post(Mail::Arrival(Box::new(Arrival { serial, stream, peer })));
    }
}

fn accept(listener: &Listener) -> io::Result<(Stream, Peer)> {
    match listener {
        Listener::Tcp(listener) | Listener::Tls(listener) => {
            let (stream, address) = listener.accept()?;
            let local_address = stream.local_addr().map(|local| local.to_string()).unwrap_or_default();
            let peer = Peer {
                address: address.to_string(),
                local_address,
                is_local: address.ip().is_loopback(),
                descriptor: i64::from(stream.as_raw_fd()),
                is_host: false,
            };
            Ok((Stream::Tcp(stream), peer))
        }
        Listener::Unix(listener, path) => {
            let (stream, _) = listener.accept()?;
            let address = format!("{}:0", path.display());
            let peer = Peer {
                local_address: address.clone(),
                address,
                is_local: true,
                descriptor: i64::from(stream.as_raw_fd()),
                is_host: false,
            };
            Ok((Stream::Unix(stream), peer))
        }
    }
}

/// Errors that belong to the connection that would have been accepted (accept(2), "Error handling"): the next may be
/// well.
fn is_of_one_connection(error: &io::Error) -> bool {
    use nix::libc;
    matches!(
        error.raw_os_error(),
        Some(
            libc::EINTR
                | libc::ECONNABORTED
                | libc::EPERM
                | libc::EPROTO
                | libc::ENETDOWN
                | libc::ENOPROTOOPT
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::EHOSTUNREACH
                | libc::EOPNOTSUPP
                | libc::ENETUNREACH
        )
    )
}

/// Small replies leave at once, and a client that vanished without a word is found out. Neither is worth refusing a
/// client for.
fn tune(stream: &TcpStream, keepalive_s: u64) {
    let _ = stream.set_nodelay(true);
    if keepalive_s > 0 {
        let third = Duration::from_secs((keepalive_s / 3).max(1));
        let keepalive =
            TcpKeepalive::new().with_time(Duration::from_secs(keepalive_s)).with_interval(third).with_retries(3);
        let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_vanishes_is_found_out_as_the_parameter_says() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        for (seconds, interval) in [(300, 100), (60, 20), (2, 1)] {
            let _client = std::net::TcpStream::connect(address).expect("a connection");
            let (accepted, _) = listener.accept().expect("a connection");
            let stream = TcpStream::from_std(accepted);
            tune(&stream, 0);
            assert!(!SockRef::from(&stream).keepalive().expect("an option"), "0 is never");
            tune(&stream, seconds);
            let socket = SockRef::from(&stream);
            assert!(socket.keepalive().expect("an option"));
            assert_eq!(socket.tcp_keepalive_time().expect("an option"), Duration::from_secs(seconds));
            assert_eq!(socket.tcp_keepalive_interval().expect("an option"), Duration::from_secs(interval));
            assert_eq!(socket.tcp_keepalive_retries().expect("an option"), 3);
        }
    }
}
