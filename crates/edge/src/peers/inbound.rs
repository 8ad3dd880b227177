//! A connection that another node dialled and that has been let in: bytes become messages.

use std::io::ErrorKind;
use std::net::SocketAddr;

use group::ids::NodeId;
use mio::event::Source;

use super::compression::Decompressor;
use super::frame::{self, Malformed};
use super::wire::Wire;

/// See the module.
pub struct Inbound {
    from: NodeId,
    wire: Wire,
    /// What has been read; of these bytes, `used` have been taken.
    input: Vec<u8>,
    used: usize,
    /// For a link that is compressed.
    decompressor: Option<Decompressor>,
    /// There may be something to read: set by an edge, cleared by a read that did not fill the buffer.
    is_readable: bool,
    /// Its end may have made its edge already: a short read is followed by another, until there is nothing.
    may_have_ended: bool,
}

/// Room for input that is kept when it is not needed any more: one large entry must not pin its size forever.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// What a read gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Bytes; there may be more.
    More,
    /// Nothing more until the socket says so.
    All,
    /// The other end has closed it, or it broke: it will be dialled again.
    End,
}

impl Inbound {
    /// One from this node, that may have been read from already.
    pub fn new(from: NodeId, wire: Wire, decompressor: Option<Decompressor>) -> Self {
        let input = Vec::new();
        Self { from, wire, input, used: 0, decompressor, is_readable: true, may_have_ended: true }
    }

    /// Who speaks.
    pub fn from(&self) -> NodeId {
        self.from
    }

    /// Where the other end is.
    pub fn address(&self) -> Option<SocketAddr> {
        self.wire.socket().peer_addr().ok()
    }

    /// The socket, to be watched.
    pub fn source(&mut self) -> &mut impl Source {
        self.wire.socket_mut()
    }

    /// The socket has said that it can be read, or that there will be nothing more.
    pub fn note_edge(&mut self, has_ended: bool) {
        self.is_readable = true;
        self.may_have_ended |= has_ended;
    }

    /// True if there may be something to read.
    pub fn is_readable(&self) -> bool {
        self.is_readable
    }

    /// Reads once into `buffer`, and hands out what is whole by then: each message with its group.
    ///
    /// # Errors
    /// Why nothing more must be read from there.
    pub fn hear(&mut self, buffer: &mut [u8], take: impl FnMut(u32, &[u8])) -> Result<Heard, String> {
        let count = loop {
            match self.wire.read(buffer) {
                Ok(0) => return Ok(Heard::End),
                Ok(count) => break count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    (self.is_readable, self.may_have_ended) = (false, false);
                    return Ok(Heard::All);
                }
                // What TLS does not let in; it has said so itself.
                Err(error) if error.kind() == ErrorKind::InvalidData => return Err(error.to_string()),
                Err(_) => return Ok(Heard::End),
            }
        };
        self.is_readable = count == buffer.len() || self.may_have_ended;
        self.take_in(&buffer[..count], take).map_err(|malformed| malformed.to_string())?;
        Ok(if self.is_readable { Heard::More } else { Heard::All })
    }

    /// Takes bytes that have been read, and hands out what is whole by then.
    fn take_in(&mut self, mut bytes: &[u8], mut take: impl FnMut(u32, &[u8])) -> Result<(), Malformed> {
        loop {
            let mut has_more = false;
            match &mut self.decompressor {
                None => self.input.extend_from_slice(bytes),
                Some(decompressor) => {
                    let unpacked = decompressor.unpack(bytes, &mut self.input);
                    let (taken, is_left) = unpacked.map_err(|_| Malformed::Damaged)?;
                    (bytes, has_more) = (&bytes[taken..], is_left);
                }
            }
            self.hand_out(&mut take)?;
            if !has_more {
                return Ok(());
            }
        }
    }

    fn hand_out(&mut self, take: &mut impl FnMut(u32, &[u8])) -> Result<(), Malformed> {
        while let Some((mut body, taken)) = frame::next_frame(&self.input[self.used..])? {
            self.used += taken;
            while !body.is_empty() {
                let (group, message, rest) = frame::next_message(body)?;
                body = rest;
                take(group, message);
            }
        }
        if self.used > self.input.len() / 2 {
            self.input.drain(..self.used);
            self.used = 0;
            if self.input.len() < KEPT_BYTES_MAX {
                self.input.shrink_to(KEPT_BYTES_MAX);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::peers::compression::Compressor;

    fn pair(decompressor: Option<Decompressor>) -> (Inbound, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let other = TcpStream::connect(listener.local_addr().expect("it has one")).expect("somebody listens");
        let (stream, _) = listener.accept().expect("it has just connected");
        stream.set_nonblocking(true).expect("a socket");
        let wire = Wire::Plain(mio::net::TcpStream::from_std(stream));
        (Inbound::new(NodeId(2), wire, decompressor), other)
    }

    type Messages = Vec<(u32, Vec<u8>)>;

    /// What has come by the time that something ends it, or that this many messages are there.
    fn hear(inbound: &mut Inbound, count: usize) -> (Messages, Result<Heard, String>) {
        let (mut messages, mut buffer) = (Vec::new(), [0; 16]);
        let begun = Instant::now();
        loop {
            let heard = inbound.hear(&mut buffer, |group, message| messages.push((group, message.to_vec())));
            let is_over = messages.len() >= count || !matches!(heard, Ok(Heard::More | Heard::All));
            if is_over || begun.elapsed() > Duration::from_secs(120) {
                return (messages, heard);
            }
            if heard == Ok(Heard::All) {
                std::thread::yield_now();
            }
        }
    }

    /// What is heard as long as there may be more.
    fn hear_at_once(inbound: &mut Inbound) -> (Messages, Result<Heard, String>) {
        let (mut messages, mut buffer) = (Vec::new(), [0; 64]);
        loop {
            let heard = inbound.hear(&mut buffer, |group, message| messages.push((group, message.to_vec())));
            if heard != Ok(Heard::More) {
                return (messages, heard);
            }
        }
    }

    fn frame(messages: &[(u32, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        let start = frame::begin_frame(&mut out);
        messages.iter().for_each(|(group, message)| frame::push_message(&mut out, *group, message));
        frame::end_frame(&mut out, start);
        out
    }

    #[test]
    fn messages_are_whole_whatever_pieces_they_come_in() {
        let (mut inbound, mut other) = pair(None);
        let long = vec![b'x'; 100];
        let bytes = [frame(&[(1, b"one"), (3, b"three")]), frame(&[(1, &long)])].concat();
        for piece in bytes.chunks(7) {
            other.write_all(piece).expect("a socket");
        }
        let (messages, _) = hear(&mut inbound, 3);
        assert_eq!(messages, [(1, b"one".to_vec()), (3, b"three".to_vec()), (1, long)]);
        drop(other);
        assert_eq!(hear(&mut inbound, 1), (vec![], Ok(Heard::End)));
    }

    #[test]
    fn an_end_that_comes_with_the_last_message_is_seen() {
        let (mut inbound, mut other) = pair(None);
        let mut poll = mio::Poll::new().expect("epoll");
        let mut events = mio::Events::with_capacity(1);
        poll.registry().register(inbound.source(), mio::Token(0), mio::Interest::READABLE).expect("a socket");
        assert_eq!(hear_at_once(&mut inbound), (vec![], Ok(Heard::All)));
        other.write_all(&frame(&[(0, b"last")])).expect("a socket");
        drop(other);
        poll.poll(&mut events, Some(Duration::from_secs(120))).expect("epoll_wait");
        let edge = events.iter().next().expect("an edge");
        inbound.note_edge(edge.is_read_closed() || edge.is_error());
        assert!(inbound.is_readable());
        assert_eq!(hear_at_once(&mut inbound), (vec![(0, b"last".to_vec())], Ok(Heard::End)));
    }

    #[test]
    fn what_is_compressed_is_brought_back() {
        let (mut inbound, mut other) = pair(Some(Decompressor::new().expect("memory")));
        let mut compressor = Compressor::new(3).expect("memory");
        let message = vec![b'y'; 300_000];
        compressor.pack(&frame(&[(0, &message), (2, b"behind")]), true).expect("packed");
        other.write_all(compressor.ready()).expect("a socket");
        assert_eq!(hear(&mut inbound, 2).0, [(0, message), (2, b"behind".to_vec())]);
    }

    #[test]
    fn who_says_what_does_not_verify_is_heard_no_more() {
        let (mut inbound, mut other) = pair(None);
        let mut bytes = [frame(&[(0, b"sound")]), frame(&[(0, b"damaged")])].concat();
        *bytes.last_mut().expect("bytes") ^= 1;
        other.write_all(&bytes).expect("a socket");
        let (messages, heard) = hear(&mut inbound, 2);
        assert_eq!(messages, [(0, b"sound".to_vec())]);
        assert_eq!(heard, Err("bytes from the other end do not verify".to_owned()));
    }
}
