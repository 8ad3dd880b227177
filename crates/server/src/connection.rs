//! One client connection: blocking, with a time limit, and nothing that could hide what a server did.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use edge::ClientSecurity;
use resp::{Frame, FrameDecoder, encode_request};

use crate::tls::Stream;
use crate::waiting;

/// Bytes read at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// A request as errors name it: the command and its subcommand. What follows may be a password.
pub fn named<W: AsRef<[u8]>>(words: &[W]) -> String {
    let first = words.first().map_or(&b""[..], AsRef::as_ref);
    let has_secret_next = [&b"AUTH"[..], b"HELLO"].iter().any(|name| first.eq_ignore_ascii_case(name));
    let shown = words.iter().take(if has_secret_next { 1 } else { 2 });
    shown.map(|word| String::from_utf8_lossy(word.as_ref())).collect::<Vec<_>>().join(" ")
}

/// What an EXEC that is refused says before the reason.
const DISCARDED: &[u8] = b"EXECABORT Transaction discarded because of: ";

/// First byte of what a server that expects TLS sends to a client without it. No reply of Redis's begins so.
const TLS_ALERT: u8 = 0x15;

/// An error reply, as it is shown. Its first word tells what it is: the rest is free text, which may hold anything.
#[derive(Debug)]
pub struct Refused {
    shown: String,
    reply: Vec<u8>,
}

impl Refused {
    /// A reply with this text.
    pub fn new(shown: String, reply: &[u8]) -> Self {
        Self { shown, reply: reply.to_vec() }
    }

    /// The reply as it came.
    pub fn reply(&self) -> &[u8] {
        &self.reply
    }

    /// Its first word; that of the reason, if a transaction was refused for one.
    pub fn code(&self) -> &[u8] {
        let reason = self.reply.strip_prefix(DISCARDED).unwrap_or(&self.reply);
        reason.split(|byte| *byte == b' ').next().unwrap_or_default()
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl std::error::Error for Refused {}

/// One connection.
pub struct Connection {
    stream: Stream,
    decoder: FrameDecoder,
    chunk: Vec<u8>,
    /// Something has come.
    has_heard: bool,
    /// The server, if a long wait for its first answer is told.
    told_place: Option<String>,
    /// The server has said that it is not the one to ask.
    pub misplaced: bool,
}

/// An error of a socket with a time limit, in words: the system says that it should be tried again.
pub fn in_time(error: io::Error, late: &str) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => io::Error::new(error.kind(), late),
        _ => error,
    }
}

impl Connection {
    /// Connects; every reply is waited for no longer than `patience`.
    pub fn open(address: SocketAddr, patience: Duration) -> io::Result<Self> {
        Self::open_secured(address, patience, None)
    }

    /// The same, with TLS if there is something to secure it with.
    pub fn open_secured(
        address: SocketAddr,
        patience: Duration,
        security: Option<&ClientSecurity>,
    ) -> io::Result<Self> {
        Ok(Self::over(Stream::connect(address, patience, security)?))
    }

    /// Over a stream that is there already.
    pub fn over(stream: Stream) -> Self {
        let (decoder, chunk) = (FrameDecoder::new(), vec![0; CHUNK_BYTES]);
        Self { stream, decoder, chunk, has_heard: false, told_place: None, misplaced: false }
    }

    /// Somebody looks on: a wait for the first answer of `place` is told if it takes long.
    pub fn tell_of(mut self, place: &str) -> Self {
        self.told_place = Some(place.to_owned());
        self
    }

    /// From now on.
    pub fn wait_at_most(&mut self, patience: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(patience)?;
        self.stream.set_write_timeout(patience)
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    /// The next reply; an error if the connection ends or the time runs out first.
    pub fn receive(&mut self) -> io::Result<Frame> {
        match self.told_place.take_if(|_| !self.has_heard) {
            Some(place) => {
                let outcome = waiting::during(&format!("waits for an answer of {place}"), || self.next_reply());
                self.told_place = Some(place);
                outcome
            }
            None => self.next_reply(),
        }
    }

    fn next_reply(&mut self) -> io::Result<Frame> {
        loop {
            if let Some(frame) = self.decoder.next_frame().map_err(io::Error::other)? {
                // A replica that was the primary a moment ago: another server must be asked.
                self.misplaced |= matches!(&frame, Frame::Error(text) if text.starts_with(b"READONLY"));
                return Ok(frame);
            }
            match self.stream.read(&mut self.chunk) {
                Ok(0) => {
                    let hint =
                        if self.has_heard { "" } else { " without an answer (a port for TLS does that: see --tls)" };
                    let what = format!("the server closed the connection{hint}");
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
                }
                Ok(_) if !self.has_heard && self.chunk[0] == TLS_ALERT => {
                    let what = "the server answers with TLS: use --tls, or name its port without TLS";
                    return Err(io::Error::new(io::ErrorKind::InvalidData, what));
                }
                Ok(length) => {
                    self.has_heard = true;
                    self.decoder.extend(&self.chunk[..length]);
                }
                // A socket with a time limit is not asked again by the system after a signal.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(in_time(error, "there was no reply in time")),
            }
        }
    }

    /// The reply to one request.
    pub fn call<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<Frame> {
        let mut bytes = Vec::new();
        encode_request(&mut bytes, words);
        self.send(&bytes)?;
        self.receive()
    }

    /// The reply to one request, which is asked again while it is refused: a cluster may be without a leader for a
    /// moment.
    pub fn insist<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<Frame> {
        let begun = Instant::now();
        loop {
            match self.call(words)? {
                Frame::Error(text) if begun.elapsed() > INSISTENCE => {
                    let name = String::from_utf8_lossy(words.first().map_or(b"", AsRef::as_ref)).into_owned();
                    return Err(io::Error::other(format!("{name} is refused: {}", String::from_utf8_lossy(&text))));
                }
                Frame::Error(_) => thread::sleep(Duration::from_millis(50)),
                reply => return Ok(reply),
            }
        }
    }
}

/// An answer that is refused so long is not to be had.
const INSISTENCE: Duration = Duration::from_secs(20);

/// Keys that are asked for to see whether a server serves: some for each of its parts.
const PROBES: u32 = 16;

/// True if a server there has loaded its data and answers.
pub fn serves(address: SocketAddr, patience: Duration) -> bool {
    let replies = Connection::open(address, patience).and_then(|mut connection| {
        (0..PROBES).map(|probe| connection.call(&["GET", &format!("probe:{probe}")])).collect::<io::Result<Vec<_>>>()
    });
    replies.is_ok_and(|replies| !replies.iter().any(Frame::is_error))
}
