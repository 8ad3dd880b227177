//! The line to the near side: a socket, encrypted or not, and what comes over it, compressed.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};

use resp::encode_request;
use site::Frame;
use site::wire::WINDOW_LOG;
use stdx::UnixMillis;

use super::End;
use crate::limits::SITE_SILENCE_MAX;
use crate::tls::{ClientSecurity, SecureStream};

/// Where a near node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) place: String,
    pub(super) is_secure: bool,
}

impl Address {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (is_secure, place) = match text.split_once("://") {
            None => (false, text),
            Some(("redis" | "holdfast", place)) => (false, place),
            Some(("rediss" | "holdfasts", place)) => (true, place),
            Some((scheme, _)) => return Err(format!("{scheme}:// is not known: redis:// or rediss://")),
        };
        let has_port = place.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if !has_port || place.contains(['@', '/']) {
            return Err(format!("{place} is no HOST:PORT; user and password are masteruser and masterauth"));
        }
        Ok(Self { place: place.to_owned(), is_secure })
    }
}

/// A socket, encrypted or not.
enum Wire {
    Plain(TcpStream),
    Tls(Box<SecureStream>),
}

/// Counts what comes.
struct Counted {
    wire: Wire,
    bytes: u64,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match &mut self.wire {
            Wire::Plain(stream) => stream.read(buffer),
            Wire::Tls(stream) => stream.read(buffer),
        }?;
        self.bytes += count as u64;
        Ok(count)
    }
}

impl Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.wire {
            Wire::Plain(stream) => stream.write_all(bytes),
            Wire::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }
}

/// The line to the near side.
pub(super) struct Line {
    decoder: zstd::stream::read::Decoder<'static, BufReader<Counted>>,
    raw_bytes: u64,
}

/// What a near node is asked for.
pub(super) enum Wanted {
    /// What comes behind these places of the logs of this cluster; a moment stands behind them.
    Behind((u128, Vec<u64>)),
    /// A copy: the rest of this one from this byte on, if it is still there.
    Copy(Option<(u128, u64)>),
}

impl Line {
    pub(super) fn open(
        address: &Address,
        security: Option<&ClientSecurity>,
        login: Option<&[String]>,
        wanted: &Wanted,
    ) -> Result<Self, End> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        let mut socket = None;
        for found in address.place.to_socket_addrs()? {
            match TcpStream::connect_timeout(&found, SITE_SILENCE_MAX) {
                Ok(stream) => {
                    socket = Some(stream);
                    break;
                }
                Err(error) => last = error,
            }
        }
        let Some(socket) = socket else { return Err(last.into()) };
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(SITE_SILENCE_MAX))?;
        socket.set_write_timeout(Some(SITE_SILENCE_MAX))?;
        let wire = match (address.is_secure, security) {
            (true, Some(security)) => Wire::Tls(Box::new(security.connect(socket)?)),
            _ => Wire::Plain(socket),
        };
        let mut stream = BufReader::new(Counted { wire, bytes: 0 });
        let mut request = Vec::new();
        if let Some(login) = login {
            encode_request(&mut request, login);
            stream.get_mut().write(&request)?;
            let mut reply = String::new();
            stream.read_line(&mut reply)?;
            if !reply.starts_with('+') {
                return Err(End::Cut(reply.trim_end().trim_start_matches('-').to_owned()));
            }
            request.clear();
        }
        match wanted {
            Wanted::Copy(known) => {
                let (id, offset) = known.unwrap_or_default();
                encode_request(&mut request, &["SITE", "FOLLOW", "?", &format!("{id:032x}:{offset}")]);
            }
            Wanted::Behind((cluster, places)) => {
                let places: Vec<String> = places.iter().map(u64::to_string).collect();
                encode_request(&mut request, &["SITE", "FOLLOW", &format!("{cluster:032x}"), &places.join(",")]);
            }
        }
        stream.get_mut().write(&request)?;
        // What it tells does not begin like a refusal.
        if stream.fill_buf()?.first() == Some(&b'-') {
            let mut reply = String::new();
            stream.read_line(&mut reply)?;
            return Err(End::Cut(reply.trim_end().trim_start_matches('-').to_owned()));
        }
        let mut decoder = zstd::stream::read::Decoder::with_buffer(stream)?;
        decoder.window_log_max(WINDOW_LOG)?;
        Ok(Self { decoder, raw_bytes: 0 })
    }

    pub(super) fn read(&mut self) -> io::Result<Frame> {
        let mut counting = Counting { stream: &mut self.decoder, bytes: 0 };
        let frame = Frame::read(&mut counting);
        self.raw_bytes += counting.bytes;
        frame
    }

    pub(super) fn acknowledge(&mut self, moment: UnixMillis) -> io::Result<()> {
        self.decoder.get_mut().get_mut().write(&moment.0.to_le_bytes())
    }

    pub(super) fn counts(&self) -> (u64, u64) {
        (self.raw_bytes, self.decoder.get_ref().get_ref().bytes)
    }
}

struct Counting<'a, R> {
    stream: &'a mut R,
    bytes: u64,
}

impl<R: Read> Read for Counting<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.bytes += count as u64;
        Ok(count)
    }
}
