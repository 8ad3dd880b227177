//! A blocking client with time limits, and nothing that could hide what the server did.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use resp::{Frame, FrameDecoder, encode_request};

use super::PATIENCE;

/// One connection.
pub struct Client {
    stream: TcpStream,
    decoder: FrameDecoder,
}

impl Client {
    /// A connection to this machine, if somebody listens.
    pub fn try_connect(port: u16) -> Option<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_nodelay(true).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.set_write_timeout(Some(PATIENCE)).ok()?;
        Some(Self { stream, decoder: FrameDecoder::new() })
    }

    /// Waits no longer than this for a reply from now on. False if the connection is gone.
    pub fn is_patient_for(&mut self, limit: Duration) -> bool {
        self.stream.set_read_timeout(Some(limit)).is_ok()
    }

    /// The reply to one request; the connection must hold.
    #[track_caller]
    pub fn call<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Frame {
        self.send(words).expect("a connection to send on");
        self.receive().expect("a reply")
    }

    /// The reply to one request as redis-cli would show it.
    #[track_caller]
    pub fn show(&mut self, request: &str) -> String {
        self.call(&request.split(' ').collect::<Vec<_>>()).to_string()
    }

    /// The reply to one request, if the connection holds.
    pub fn try_call<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Option<Frame> {
        self.send(words).ok()?;
        self.receive().ok()
    }

    /// Sends a request and waits for nothing.
    pub fn send<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<()> {
        let mut bytes = Vec::new();
        encode_request(&mut bytes, words);
        self.send_bytes(&bytes)
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next reply; an error if the connection ends first.
    pub fn receive(&mut self) -> io::Result<Frame> {
        let mut bytes = [0; 16 * 1024];
        loop {
            if let Some(frame) = self.decoder.next_frame().map_err(io::Error::other)? {
                return Ok(frame);
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.decoder.extend(&bytes[..length]),
                // A socket with a time limit is not asked again by the system after a signal.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// True if the server has closed the connection, or does so within `limit`.
    pub fn is_closed_within(&mut self, limit: Duration) -> bool {
        self.is_patient_for(limit);
        let closed = match self.stream.read(&mut [0; 1024]) {
            Ok(length) => length == 0,
            Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
        };
        self.is_patient_for(PATIENCE);
        closed
    }

    /// Ends the connection from another thread's point of view as well.
    pub fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
