//! A session of the host at a core of its own, over a pair of sockets: for what the host does as a client would, such
//! as reading a backup. It needs no password, and no client can get at it.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mio::net::UnixStream as MioUnixStream;
use node::event::{BackupFigures, Peer, ReplicateRequest, SourceFigures};
use resp::{Frame, FrameDecoder, encode_request};

use crate::connection::Stream;
use crate::host::Host;
use crate::limits::COPY_PATIENCE;
use crate::listener::Arrival;
use crate::mailbox::Mail;
use crate::replicator;

/// One session.
#[derive(Debug)]
pub struct HostSession {
    stream: UnixStream,
    decoder: FrameDecoder,
}

impl HostSession {
    /// Opens one at the first core.
    ///
    /// # Errors
    /// If the system has no more sockets.
    pub fn open(host: &Host) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(COPY_PATIENCE))?;
        ours.set_write_timeout(Some(COPY_PATIENCE))?;
        theirs.set_nonblocking(true)?;
        let address = "the host:0".to_owned();
        let peer = Peer { local_address: address.clone(), address, is_local: true, descriptor: -1, is_host: true };
        let serial = host.next_serial.fetch_add(1, Ordering::Relaxed);
        let desk = &host.desks[0];
        desk.client_count.fetch_add(1, Ordering::Relaxed);
        let stream = Stream::Unix(MioUnixStream::from_std(theirs));
        desk.mailbox.post(Mail::Arrival(Box::new(Arrival { serial, stream, peer })));
        Ok(Self { stream: ours, decoder: FrameDecoder::new() })
    }

    /// The socket, for who speaks the protocol in a way of their own.
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }

    /// The reply to one request.
    ///
    /// # Errors
    /// If there is none in time.
    pub fn call<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<Frame> {
        let mut request = Vec::new();
        encode_request(&mut request, words);
        self.send(&request)?;
        self.receive()
    }

    /// Sends requests.
    ///
    /// # Errors
    /// If the session has ended, or takes nothing in time.
    pub fn send(&mut self, requests: &[u8]) -> io::Result<()> {
        self.stream.write_all(requests)
    }

    /// The next reply.
    ///
    /// # Errors
    /// If there is none in time.
    pub fn receive(&mut self) -> io::Result<Frame> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match self.decoder.next_frame() {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(malformed) => return Err(io::Error::new(io::ErrorKind::InvalidData, malformed.to_string())),
            }
            match self.stream.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.decoder.extend(&buffer[..count]),
            }
        }
    }
}

/// What a thread that works inside of a server, such as the one for scheduled backups, is given of it.
#[derive(Clone)]
pub struct Inside {
    host: Arc<Host>,
}

impl fmt::Debug for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inside")
    }
}

impl Inside {
    /// Of this host.
    pub(crate) fn new(host: Arc<Host>) -> Self {
        Self { host }
    }

    /// A session of the host.
    ///
    /// # Errors
    /// If the system has no more sockets.
    pub fn connect(&self) -> io::Result<HostSession> {
        HostSession::open(&self.host)
    }

    /// Shows how the backups are, in INFO, metrics and the timeline.
    pub fn show(&self, figures: BackupFigures) {
        self.host.show_backups(figures);
    }

    /// Tells all cores which Redis this node follows and how that is going, or that it follows none.
    pub fn tell_source(&self, source: Option<SourceFigures>) {
        self.host.replicator.tell(&self.host, source);
    }

    /// Waits until all cores have heard that. False if that takes longer than `patience`.
    pub fn is_source_heard_within(&self, patience: Duration) -> bool {
        self.host.replicator.is_heard_within(patience)
    }

    /// True if elements that clients took were on their way to them, or back, as the cores heard that a Redis is
    /// followed.
    pub fn owes_elements(&self) -> bool {
        self.host.replicator.owes()
    }

    /// Answers a client that has said REPLICAOF.
    pub fn answer(&self, request: &ReplicateRequest, answer: Result<&'static str, String>) {
        replicator::answer(&self.host, request, answer);
    }

    /// A line of the log.
    pub fn notice(&self, line: &str) {
        self.host.log.notice(line);
    }

    /// A line of the log that somebody must act on.
    pub fn warning(&self, line: &str) {
        self.host.log.warning(line);
    }
}
