//! The port for clients that ask a Sentinel where to go.
//!
//! One thread and one epoll loop serve all of them. It is a guest: it asks the first core what the node sees, ten times
//! a second while somebody listens and else when somebody asks, and changes nothing. Every node answers alike, since
//! what it sees follows from who leads the metadata. See decision 0039.

mod answers;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use node::landscape::Landscape;
use resp::{Args, Limits, Parsed, Protocol, RequestParser, Span, Writer};
use socket2::{SockRef, TcpKeepalive};

use self::answers::{Next, Talk, View};
use crate::fault::Fault;
use crate::host::Host;
use crate::limits::{
    ACCEPT_REST, SENTINEL_CONNECTIONS_MAX, SENTINEL_LOOK_INTERVAL, SENTINEL_OUTPUT_BYTES_MAX, SENTINEL_PATIENCE,
    SENTINEL_REQUEST_BYTES_MAX,
};
use crate::mailbox::Mail;
use crate::run::{start, system};

/// Channels, and patterns, that one client may listen to.
const SUBSCRIPTIONS_MAX: usize = 128;

/// A connection that has been silent for so long is probed.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Tokens below are listeners.
const CONNECTIONS: usize = 64;

/// What the port has to know beside the host.
pub struct SentinelOptions {
    /// TCP port; 0 is none.
    pub port: u16,
    /// The name under which clients ask for the cluster.
    pub master_name: String,
}

/// Serves on these sockets as long as the process lives. Nothing is done if there are none.
///
/// # Errors
/// If a thread cannot be started, or the sockets not be watched.
pub fn serve(host: &Arc<Host>, mut listeners: Vec<TcpListener>, options: &SentinelOptions) -> Result<(), Fault> {
    if listeners.is_empty() {
        return Ok(());
    }
    let poll = Poll::new().map_err(system("create an epoll instance"))?;
    for (place, listener) in listeners.iter_mut().enumerate() {
        poll.registry().register(listener, Token(place), Interest::READABLE).map_err(system("watch the listeners"))?;
    }
    let (host, name, port) = (Arc::clone(host), options.master_name.clone(), options.port);
    start("sentinel", move || {
        // Cores may still be loading: what they see comes when somebody asks.
        let mut server = Server {
            host,
            name,
            port,
            poll,
            listeners,
            view: None,
            looked: None,
            next_id: 0,
            clients: BTreeMap::new(),
        };
        server.run();
    })?;
    Ok(())
}

struct Server {
    host: Arc<Host>,
    name: String,
    port: u16,
    poll: Poll,
    listeners: Vec<TcpListener>,
    view: Option<View>,
    looked: Option<Instant>,
    next_id: usize,
    clients: BTreeMap<usize, Client>,
}

struct Client {
    stream: TcpStream,
    parser: RequestParser,
    input: Vec<u8>,
    writer: Writer,
    /// Bytes of the output that are on their way.
    output: Vec<u8>,
    talk: Talk,
    is_closing: bool,
}

impl Server {
    fn run(&mut self) {
        let mut events = Events::with_capacity(256);
        loop {
            let patience = (!self.clients.is_empty()).then_some(SENTINEL_LOOK_INTERVAL);
            if let Err(error) = self.poll.poll(&mut events, patience)
                && error.kind() != io::ErrorKind::Interrupted
            {
                self.host.log.warning(&format!("nobody answers at the sentinel port any more: {error}"));
                return;
            }
            if self.looked.is_none_or(|looked| looked.elapsed() >= SENTINEL_LOOK_INTERVAL / 2) {
                self.look();
            }
            for event in &events {
                match event.token().0 {
                    place if place < CONNECTIONS => self.accept(place),
                    id => self.serve(id, event),
                }
            }
        }
    }

    /// Asks the first core what it sees, and tells who listens.
    fn look(&mut self) {
        let Some(landscape) = ask(&self.host) else { return };
        self.looked = Some(Instant::now());
        let Some(view) = &mut self.view else {
            let master = landscape.leader;
            self.view = Some(View { name: self.name.clone(), port: self.port, landscape, master });
            return;
        };
        let news = view.look(landscape);
        if news.is_empty() {
            return;
        }
        for one in &news {
            self.host.log.notice(&format!("sentinel: {} {}", one.channel, one.text));
        }
        let ids: Vec<usize> = self.clients.keys().copied().collect();
        for id in ids {
            if let Some(client) = self.clients.get_mut(&id) {
                news.iter().for_each(|one| client.talk.tell(one, &mut client.writer));
                let is_kept = client.write();
                self.settle(id, is_kept);
            }
        }
    }

    fn accept(&mut self, place: usize) {
        loop {
            match self.listeners[place].accept() {
                Ok((stream, _)) => self.welcome(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Out of descriptors, say: anyone who waits in line is accepted a little later.
                Err(_) => std::thread::sleep(ACCEPT_REST),
            }
        }
    }

    fn welcome(&mut self, mut stream: TcpStream) {
        if self.clients.len() >= SENTINEL_CONNECTIONS_MAX {
            // It may be gone already.
            let _ = stream.write(b"-ERR max number of clients reached\r\n");
            return;
        }
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
        let options = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
        self.next_id += 1;
        let token = CONNECTIONS + self.next_id;
        let interest = Interest::READABLE | Interest::WRITABLE;
        if options.and_then(|()| self.poll.registry().register(&mut stream, Token(token), interest)).is_err() {
            return;
        }
        let talk = Talk::new(self.next_id as i64);
        let client = Client {
            stream,
            parser: RequestParser::new(),
            input: Vec::new(),
            writer: Writer::new(Protocol::Resp2),
            output: Vec::new(),
            talk,
            is_closing: false,
        };
        self.clients.insert(token, client);
    }

    fn serve(&mut self, id: usize, event: &Event) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let mut is_kept = true;
        if event.is_readable() || event.is_read_closed() {
            is_kept = client.read(self.view.as_ref());
        }
        let is_kept = is_kept && client.write();
        self.settle(id, is_kept);
    }

    /// Lets go of a client that is gone or done.
    fn settle(&mut self, id: usize, is_kept: bool) {
        if !is_kept && let Some(mut client) = self.clients.remove(&id) {
            // The socket is closed next, which takes it out of the watch as well.
            let _ = self.poll.registry().deregister(&mut client.stream);
        }
    }
}

impl Client {
    /// Reads what there is and answers it. False if the client is gone, or says what no client says.
    fn read(&mut self, view: Option<&View>) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(count) => {
                    self.input.extend_from_slice(&buffer[..count]);
                    if !self.answer(view) {
                        return false;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    fn answer(&mut self, view: Option<&View>) -> bool {
        let limits = Limits {
            bulk_bytes_max: SENTINEL_REQUEST_BYTES_MAX,
            words_max: SUBSCRIPTIONS_MAX,
            request_bytes_max: SENTINEL_REQUEST_BYTES_MAX,
            authenticated: true,
        };
        let mut spans: Vec<Span> = Vec::new();
        let mut begun = 0;
        while !self.is_closing {
            let input = &self.input[begun..];
            let (consumed, line) = match self.parser.parse(input, &limits, &mut spans) {
                Ok(Parsed::Incomplete { .. }) => break,
                Ok(Parsed::Empty { consumed }) => {
                    begun += consumed;
                    continue;
                }
                Ok(Parsed::Request { consumed }) => (consumed, None),
                Ok(Parsed::Inline { consumed }) => (consumed, Some(self.parser.line().to_vec())),
                Err(error) => {
                    self.writer.error(&format!("ERR Protocol error: {error}"));
                    self.is_closing = true;
                    break;
                }
            };
            let args = Args::new(line.as_deref().unwrap_or(input), &spans);
            match view {
                Some(view) => self.is_closing = view.answer(&mut self.talk, args, &mut self.writer) == Next::Close,
                None => self.writer.error("LOADING Redis is loading the dataset in memory"),
            }
            begun += consumed;
            if self.output.len() + self.writer.len() > SENTINEL_OUTPUT_BYTES_MAX {
                return false;
            }
        }
        self.input.drain(..begun);
        self.input.len() <= SENTINEL_REQUEST_BYTES_MAX
    }

    /// Writes what there is. False if the client is gone or done, or does not read.
    fn write(&mut self) -> bool {
        self.output.append(&mut self.writer.take());
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return false,
                Ok(count) => _ = self.output.drain(..count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.output.len() <= SENTINEL_OUTPUT_BYTES_MAX;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        !self.is_closing
    }
}

/// What the node sees; none if its first core is too busy to say.
fn ask(host: &Host) -> Option<Landscape> {
    let (told, answer) = mpsc::channel();
    host.desks.first()?.mailbox.post(Mail::Look(told));
    answer.recv_timeout(SENTINEL_PATIENCE).ok()
}
