//! One client's socket and the output it has not yet taken.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};

use group::ids::SessionId;
use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use stdx::Instant;

use crate::tls::TlsStream;

/// A client's socket.
pub enum Stream {
    /// Over the network or loopback.
    Tcp(TcpStream),
    /// Through a Unix socket.
    Unix(UnixStream),
    /// Over the network or loopback, encrypted; keys have been agreed.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
            Self::Tls(stream) => stream.socket_mut(),
        }
    }

    /// Watches the socket for both directions.
    ///
    /// # Errors
    /// Those of `epoll_ctl`, such as too little kernel memory.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.source().register(registry, token, Interest::READABLE | Interest::WRITABLE)
    }

    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }
}

/// What became of a write.
#[derive(Debug, PartialEq, Eq)]
pub enum Written {
    /// The socket took all; here is the buffer again.
    All(Vec<u8>),
    /// The connection holds the rest.
    Partly,
    /// The socket is gone, and has taken nothing: these bytes count as backlog.
    Broken,
}

/// What is known of one client's connection.
///
/// The socket is registered once, edge-triggered and for both directions; from then on its state is kept here, and
/// neither pausing nor a backlog needs a system call. (An edge for writing comes only after a write met a full buffer,
/// so the second direction costs nothing.)
pub struct Connection {
    /// Who.
    pub session: SessionId,
    stream: Stream,
    /// There may be something to read: set by an edge, cleared by a read that did not fill the buffer.
    pub is_readable: bool,
    /// The client will send nothing more, but what it sent may not have been read yet.
    pub has_ended: bool,
    /// The core does not want to hear it now.
    pub is_paused: bool,
    /// It stands in the core's line of sockets to be read without waiting for an edge.
    pub is_in_line: bool,
    /// When the core asked for its end, or when output last moved after that.
    pub closing_since: Option<Instant>,
    /// When the client last sent anything.
    pub heard_at: Instant,
    /// Replies of this turn, to be sent together.
    pub gathered: Vec<u8>,
    output: VecDeque<Vec<u8>>,
    // How much of the front of `output` has been written.
    front_written: usize,
    backlog_bytes: usize,
}

impl Connection {
    /// A connection just accepted.
    pub fn new(session: SessionId, stream: Stream, now: Instant) -> Self {
        // What came together with the last of the keys has been taken from the socket already, and makes no edge.
        let is_readable = matches!(stream, Stream::Tls(_));
        Self {
            session,
            stream,
            is_readable,
            has_ended: false,
            is_paused: false,
            is_in_line: false,
            closing_since: None,
            heard_at: now,
            gathered: Vec::new(),
            output: VecDeque::new(),
            front_written: 0,
            backlog_bytes: 0,
        }
    }

    /// Registers the socket for both directions.
    ///
    /// # Errors
    /// Those of `epoll_ctl`, such as too little kernel memory.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.stream.register(registry, token)
    }

    /// The socket, watched by nobody any more; none if it has output left.
    pub fn into_stream(mut self, registry: &Registry) -> Option<Stream> {
        let is_free = self.stream.source().deregister(registry).is_ok() && self.backlog_bytes == 0;
        is_free.then_some(self.stream)
    }

    /// Reads what there is.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer);
        if let Stream::Tls(stream) = &self.stream {
            // It may say so before its socket does.
            self.has_ended |= stream.has_ended();
        }
        read
    }

    /// Bytes that the socket has not taken yet.
    pub fn backlog_bytes(&self) -> usize {
        self.backlog_bytes
    }

    /// Whether its bytes are wanted now.
    pub fn wants_reading(&self) -> bool {
        self.is_readable && !self.is_paused && self.closing_since.is_none()
    }

    /// Writes behind what was written before, and keeps what the socket does not take.
    pub fn send(&mut self, bytes: Vec<u8>) -> Written {
        let mut written = 0;
        if self.output.is_empty() {
            written = match self.write_some(&bytes) {
                Ok(written) if written == bytes.len() => return Written::All(bytes),
                Ok(written) => written,
                Err(_) => {
                    self.backlog_bytes += bytes.len();
                    return Written::Broken;
                }
            };
            self.front_written = written;
        }
        self.backlog_bytes += bytes.len() - written;
        self.output.push_back(bytes);
        Written::Partly
    }

    /// Writes of the backlog what the socket takes.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn flush(&mut self) -> io::Result<()> {
        while let Some(front) = self.output.pop_front() {
            let rest = front.len() - self.front_written;
            let written = self.write_some(&front[self.front_written..])?;
            self.backlog_bytes -= written;
            if written < rest {
                self.front_written += written;
                self.output.push_front(front);
                return Ok(());
            }
            self.front_written = 0;
        }
        Ok(())
    }

    /// One write; a full socket takes nothing.
    fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.stream.write(bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
                other => return other,
            }
        }
    }
}

/// All connections of a core, by their small index.
#[derive(Default)]
pub struct Connections {
    places: Vec<Option<Connection>>,
    free: Vec<u32>,
}

impl Connections {
    /// The lowest place that nobody holds, or nearly: where the next connection goes.
    pub fn vacancy(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            u32::try_from(self.places.len() - 1).expect("descriptors are counted in 32 bits")
        })
    }

    /// Takes a place that [`Self::vacancy`] gave.
    pub fn insert(&mut self, connection: Connection) {
        let place = &mut self.places[connection.session.index as usize];
        debug_assert!(place.is_none());
        *place = Some(connection);
    }

    /// The connection at a place.
    pub fn at(&mut self, index: u32) -> Option<&mut Connection> {
        self.places.get_mut(index as usize)?.as_mut()
    }

    /// The connection of a session, unless it has gone.
    pub fn of(&mut self, session: SessionId) -> Option<&mut Connection> {
        self.at(session.index).filter(|connection| connection.session == session)
    }

    /// Takes a connection out. Its place is not given away before [`Self::release`].
    pub fn remove(&mut self, index: u32) -> Option<Connection> {
        self.places.get_mut(index as usize)?.take()
    }

    /// Gives a place free.
    pub fn release(&mut self, index: u32) {
        debug_assert!(self.places[index as usize].is_none());
        self.free.push(index);
    }

    /// All there are.
    pub fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.places.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream as StdUnixStream;

    fn pair() -> (Connection, StdUnixStream) {
        let (ours, theirs) = StdUnixStream::pair().expect("a socket pair");
        ours.set_nonblocking(true).expect("a socket option");
        let session = SessionId { serial: 1, index: 0 };
        (Connection::new(session, Stream::Unix(UnixStream::from_std(ours)), Instant::ZERO), theirs)
    }

    #[test]
    fn what_the_socket_takes_at_once_gives_the_buffer_back() {
        let (mut connection, mut client) = pair();
        assert_eq!(connection.send(b"+OK\r\n".to_vec()), Written::All(b"+OK\r\n".to_vec()));
        let mut read = [0; 5];
        client.read_exact(&mut read).expect("five bytes");
        assert_eq!(&read, b"+OK\r\n");
    }

    #[test]
    fn a_backlog_keeps_its_order_and_is_counted() {
        let (mut connection, mut client) = pair();
        let parts: Vec<Vec<u8>> = (0..4u8).map(|part| vec![part; 300_000]).collect();
        for part in &parts {
            assert_ne!(connection.send(part.clone()), Written::Broken);
        }
        assert!(connection.backlog_bytes() > 0);
        let expected = parts.concat();
        let mut read = Vec::new();
        let mut piece = vec![0; 64 * 1024];
        while read.len() < expected.len() {
            let taken_before = expected.len() - connection.backlog_bytes();
            assert!(read.len() < taken_before);
            let count = client.read(&mut piece).expect("bytes");
            read.extend_from_slice(&piece[..count]);
            connection.flush().expect("an open socket");
        }
        assert_eq!(connection.backlog_bytes(), 0);
        assert!(read == expected);
    }

    #[test]
    fn a_socket_that_is_gone_is_told() {
        let (mut connection, client) = pair();
        drop(client);
        assert_eq!(connection.send(b"x".to_vec()), Written::Broken);
        assert_eq!(connection.backlog_bytes(), 1, "nobody got it");
    }

    #[test]
    fn an_old_session_does_not_reach_its_successor() {
        let mut connections = Connections::default();
        let (connection, _client) = pair();
        let index = connections.vacancy();
        connections.insert(connection);
        let successor = SessionId { serial: 2, index };
        assert!(connections.of(successor).is_none());
        assert!(connections.of(SessionId { serial: 1, index }).is_some());
        connections.remove(index);
        connections.release(index);
        assert_eq!(connections.vacancy(), index);
    }
}
