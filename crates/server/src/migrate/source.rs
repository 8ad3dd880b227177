//! The Redis or Valkey that is followed: its address, and the link on which it sends what a replica gets.
//!
//! The link speaks the replica's side of PSYNC (Redis, `replication.c`). It does not say that it understands a copy
//! without a length known in advance (`capa eof`), so a copy comes with its length, and the stream begins right behind
//! it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use edge::{ClientOptions, ClientSecurity};
use resp::{Frame, encode_request};

use super::spool::SpoolWriter;
use crate::connection::{Connection, Refused, named};
use crate::login;
use crate::tls::Stream;
use crate::waiting;

/// A source that says nothing for so long is not there; it sends a PING every ten seconds (`repl-ping-replica-period`).
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// A copy may take long to be made: the source sends empty lines meanwhile.
const ACKNOWLEDGE_INTERVAL: Duration = Duration::from_secs(1);

/// The version of Valkey with files that are read here. From 9.1 on a source writes a copy for the version that a
/// replica tells, and none at all if fields of hashes have deadlines and it tells none.
pub const VALKEY_VERSION: &str = "9.1.0";

/// Bytes read from the link at once.
const CHUNK_BYTES: usize = 256 << 10;

/// Longest line of the hand-shake.
const LINE_BYTES_MAX: usize = 1_024;

/// Where the source is, and how one is let in: `redis://[USER:PASSWORD@]HOST:PORT`, or `rediss://` with TLS.
#[derive(Clone)]
pub struct Address {
    /// `HOST:PORT`.
    pub place: String,
    user: Option<String>,
    password: Option<String>,
    security: Option<Arc<ClientSecurity>>,
}

/// How TLS with the source is secured.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SourceTls {
    /// File with the certificates of trusted authorities for the source (with rediss://)
    #[arg(long, value_name = "FILE")]
    source_cacert: Option<PathBuf>,
    /// Client certificate for the source
    #[arg(long, value_name = "FILE", requires = "source_key")]
    source_cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "source_cert")]
    source_key: Option<PathBuf>,
}

/// The line to a source, which another thread may cut: then nobody waits for the source any more.
#[derive(Debug, Default)]
pub struct Line {
    state: Mutex<LineState>,
    /// A connection is being made. That cannot be interrupted, and nothing is changed meanwhile.
    pub is_dialing: AtomicBool,
}

#[derive(Debug, Default)]
struct LineState {
    is_cut: bool,
    socket: Option<TcpStream>,
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, LineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection to this source.
    ///
    /// # Errors
    /// If nobody answers, or the line has been cut.
    pub fn dial(&self, address: &Address, patience: Duration) -> Result<Stream> {
        self.is_dialing.store(true, Ordering::SeqCst);
        let outcome = self.dial_and_keep(address, patience);
        self.is_dialing.store(false, Ordering::SeqCst);
        outcome
    }

    fn dial_and_keep(&self, address: &Address, patience: Duration) -> Result<Stream> {
        ensure!(!self.lock().is_cut, "the line has been cut");
        let stream = address.dial(patience)?;
        let socket = stream.handle().context("the line")?;
        let mut state = self.lock();
        ensure!(!state.is_cut, "the line has been cut");
        state.socket = Some(socket);
        Ok(stream)
    }

    /// Cuts it, now and for good.
    pub fn cut(&self) {
        let mut state = self.lock();
        state.is_cut = true;
        if let Some(socket) = &state.socket {
            // One that has ended by itself need not be cut.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

impl Address {
    /// The one at this place, which lets one in as this user, if one is named, with this password.
    pub fn of_master(
        place: String,
        user: Option<String>,
        password: Option<String>,
        security: Option<Arc<ClientSecurity>>,
    ) -> Self {
        Self { place, user, password, security }
    }

    /// Reads it from a command line. A password in the environment is less visible than one in the list of processes.
    ///
    /// # Errors
    /// One line.
    pub fn parse(text: &str, password: Option<&str>, tls: &SourceTls) -> Result<Self> {
        let (is_secure, rest) = match text.split_once("://") {
            None => (false, text),
            Some(("redis", rest)) => (false, rest),
            Some(("rediss", rest)) => (true, rest),
            Some((scheme, _)) => bail!("--from begins with redis:// or rediss://, and not with {scheme}://"),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (given, place) = match rest.rsplit_once('@') {
            None => (None, rest),
            Some((given, place)) => (Some(given), place),
        };
        let (user, own_password) = match given.map(|given| given.split_once(':').unwrap_or(("", given))) {
            None => (None, None),
            Some((user, password)) => {
                (Some(user).filter(|user| !user.is_empty()).map(str::to_owned), Some(password.to_owned()))
            }
        };
        ensure!(!place.contains('/'), "--from names a server, not a database: redis://HOST:PORT");
        let has_port = place.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let place = if has_port { place.to_owned() } else { format!("{place}:6379") };
        let security = if is_secure {
            ensure!(tls.source_cacert.is_some(), "rediss:// needs --source-cacert: whom to trust");
            let own = tls.source_cert.clone().zip(tls.source_key.clone());
            let options = ClientOptions { authorities: tls.source_cacert.clone(), own, ..ClientOptions::default() };
            Some(Arc::new(ClientSecurity::new(&options).map_err(|why| anyhow!(why))?))
        } else {
            None
        };
        Ok(Self { place, user, password: own_password.or_else(|| password.map(str::to_owned)), security })
    }

    /// Another server, which lets one in like this one.
    pub fn at(&self, place: &str) -> Self {
        Self { place: place.to_owned(), ..self.clone() }
    }

    /// The request that lets one in, if there is a password.
    pub fn login(&self) -> Option<Vec<&str>> {
        let password = self.password.as_deref()?;
        Some(match &self.user {
            Some(user) => vec!["AUTH", user, password],
            None => vec!["AUTH", password],
        })
    }

    /// A connection that has said nothing yet.
    ///
    /// # Errors
    /// If nobody answers.
    pub fn dial(&self, patience: Duration) -> Result<Stream> {
        login::dial(&self.place, patience, self.security.as_deref())
            .with_context(|| format!("the source {} does not answer", self.place))
    }

    /// A connection for requests.
    ///
    /// # Errors
    /// If there is no server, or it does not let us in.
    pub fn connect(&self, patience: Duration) -> Result<Connection> {
        let stream = waiting::during(&format!("connects to {}", self.place), || self.dial(patience))?;
        let mut connection = Connection::over(stream).tell_of(&self.place);
        if let Some(words) = self.login() {
            ask(&mut connection, &words).with_context(|| format!("the source {}", self.place))?;
        }
        Ok(connection)
    }
}

/// The reply to a request; an error reply is an error.
///
/// # Errors
/// The same, and those of the connection.
pub fn ask<W: AsRef<[u8]>>(connection: &mut Connection, words: &[W]) -> Result<Frame> {
    let reply = connection.call(words).with_context(|| format!("{} was not answered", named(words)))?;
    not_refused(words, reply)
}

/// The reply to this request.
///
/// # Errors
/// If it is an error.
pub fn not_refused<W: AsRef<[u8]>>(words: &[W], reply: Frame) -> Result<Frame> {
    match reply {
        Frame::Error(text) => {
            Err(Refused::new(format!("{} is refused: {}", named(words), String::from_utf8_lossy(&text)), &text).into())
        }
        reply => Ok(reply),
    }
}

/// The replies to requests that are sent together, errors among them. So many of them must fit into what both sides
/// buffer.
///
/// # Errors
/// If they are not answered.
pub fn pipeline(connection: &mut Connection, requests: impl Iterator<Item = Vec<Vec<u8>>>) -> Result<Vec<Frame>> {
    let (mut bytes, mut count) = (Vec::new(), 0_usize);
    for request in requests {
        encode_request(&mut bytes, &request);
        count += 1;
    }
    connection.send(&bytes).context("the server has hung up")?;
    (0..count).map(|_| connection.receive().context("the server does not answer")).collect()
}

/// A field of INFO.
pub fn info_field(info: &str, name: &str) -> Option<String> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(|value| value.trim().to_owned()))
}

/// INFO, or a section of it.
///
/// # Errors
/// As for [`ask`].
pub fn info(connection: &mut Connection, section: &str) -> Result<String> {
    let reply = ask(connection, &["INFO", section])?;
    Ok(String::from_utf8_lossy(reply.as_bytes().unwrap_or_default()).into_owned())
}

/// What a link tells those who follow it.
#[derive(Default)]
pub struct Figures {
    /// Bytes of the source's stream up to which the link has read.
    pub received: AtomicU64,
    /// Up to which the target has kept it; what the source is told.
    pub kept: AtomicU64,
    /// Bytes of a copy that have been read, and all of them.
    pub copied_bytes: AtomicU64,
    pub copy_bytes: AtomicU64,
    /// Bytes on disk that the target has not taken.
    pub waiting_bytes: AtomicU64,
    /// The link must end.
    pub is_over: AtomicBool,
    /// Why nothing more can be kept for now; empty if it can.
    pub full: Mutex<String>,
}

impl Figures {
    /// Why nothing more can be kept for now; empty if it can.
    pub fn fault(&self) -> String {
        self.full.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note_full(&self, full: Option<&io::Error>) {
        let text = full.map_or_else(String::new, |error| format!("what the source sends cannot be kept: {error}"));
        *self.full.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }
}

/// How the source goes on.
pub enum Beginning {
    /// With a copy of everything, of so many bytes, and then its stream from `offset` on.
    Copy { id: String, offset: u64 },
    /// With its stream, from where it was asked to.
    Continued { id: String },
}

/// A link on which the source is about to send.
pub struct Link {
    stream: Stream,
    buffer: Vec<u8>,
    position: usize,
}

impl Link {
    /// Asks the source for its stream behind a place, or for everything, as a replica of this version of Valkey if one
    /// is told.
    ///
    /// # Errors
    /// If it is not there or refuses.
    pub fn open(
        line: &Line,
        address: &Address,
        behind: Option<(&str, u64)>,
        version: Option<&str>,
    ) -> Result<(Self, Beginning)> {
        let stream = line.dial(address, SILENCE_MAX)?;
        let mut link = Self { stream, buffer: Vec::new(), position: 0 };
        if let Some(words) = address.login() {
            link.tell(&words)?;
        }
        link.tell(&["PING"])?;
        link.tell(&["REPLCONF", "capa", "psync2"])?;
        if let Some(version) = version {
            // Servers other than Valkey do not know it, and refuse it or do not care.
            link.request(&["REPLCONF", "version", version])?;
        }
        let (id, offset) = match behind {
            None => ("?".to_owned(), "-1".to_owned()),
            Some((id, offset)) => (id.to_owned(), (offset + 1).to_string()),
        };
        let answer = link.request(&["PSYNC", &id, &offset])?;
        let mut words = answer.split(' ');
        match (words.next(), words.next(), words.next()) {
            (Some("+FULLRESYNC"), Some(id), Some(offset)) => {
                let offset = offset.parse().with_context(|| format!("the source answers PSYNC with '{answer}'"))?;
                Ok((link, Beginning::Copy { id: id.to_owned(), offset }))
            }
            (Some("+CONTINUE"), id, _) => {
                let id = id.or(behind.map(|(id, _)| id)).context("the source continues what was not begun")?;
                let id = id.to_owned();
                Ok((link, Beginning::Continued { id }))
            }
            _ => bail!("the source answers PSYNC with '{answer}'"),
        }
    }

    /// The answer to a request of the hand-shake, a line.
    fn request(&mut self, words: &[&str]) -> Result<String> {
        let mut bytes = Vec::new();
        encode_request(&mut bytes, words);
        self.stream.write_all(&bytes).and_then(|()| self.stream.flush()).context("the source has hung up")?;
        self.line(&mut || {})
    }

    fn tell(&mut self, words: &[&str]) -> Result<()> {
        let answer = self.request(words)?;
        ensure!(!answer.starts_with('-'), "the source refuses {}: {}", words[0], &answer[1..]);
        Ok(())
    }

    /// The next line that is not empty; `heard` is called for those that are.
    fn line(&mut self, heard: &mut dyn FnMut()) -> Result<String> {
        let mut line = Vec::new();
        loop {
            if self.position == self.buffer.len() {
                self.buffer.resize(CHUNK_BYTES, 0);
                let length = self.stream.read(&mut self.buffer);
                self.position = 0;
                self.buffer.truncate(*length.as_ref().unwrap_or(&0));
                ensure!(length.context("the source says nothing")? > 0, "the source has hung up");
            }
            let byte = self.buffer[self.position];
            self.position += 1;
            match byte {
                b'\n' if line.is_empty() => heard(),
                b'\n' => return Ok(String::from_utf8_lossy(line.trim_ascii_end()).into_owned()),
                _ if line.len() == LINE_BYTES_MAX => bail!("the source answers with a line without an end"),
                byte => line.push(byte),
            }
        }
    }

    /// Length of the copy that follows. The source may take long to make it, and says now and then that it does:
    /// `heard` is called then.
    ///
    /// # Errors
    /// If none does.
    pub fn copy_bytes(&mut self, mut heard: impl FnMut()) -> Result<u64> {
        let line = self.line(&mut heard).context("the source makes a copy of its data")?;
        let length = line.strip_prefix('$').and_then(|text| text.parse().ok());
        length.with_context(|| format!("the source announces a copy with '{line}'"))
    }

    /// Passes on what the source sends, until it is over or the link breaks: first `copy_bytes` to `copy`, then its
    /// stream. Says regularly how far the target is.
    ///
    /// # Errors
    /// Why it has ended.
    pub fn run(
        mut self,
        copy_bytes: u64,
        copy: Option<SpoolWriter>,
        stream: &SpoolWriter,
        figures: &Figures,
    ) -> Result<()> {
        self.stream.set_read_timeout(ACKNOWLEDGE_INTERVAL).context("the link")?;
        let mut copy = copy.filter(|_| copy_bytes > 0);
        let mut rest = copy_bytes;
        let (mut heard, mut told) = (Instant::now(), Instant::now());
        while !figures.is_over.load(Ordering::Relaxed) {
            let bytes = &self.buffer[self.position..];
            if !bytes.is_empty() {
                let link = &mut self.stream;
                let mut waits = |full: Option<&io::Error>| {
                    figures.note_full(full);
                    if figures.is_over.load(Ordering::Relaxed) {
                        return Err(ErrorKind::BrokenPipe.into());
                    }
                    // Who says nothing for too long is let go.
                    acknowledge(link, &mut told, figures)
                };
                let length = bytes.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
                if let Some(writer) = copy.as_ref() {
                    writer.write(&bytes[..length], &mut waits).context("what the source sends cannot be kept")?;
                }
                rest -= length as u64;
                figures.copied_bytes.fetch_add(length as u64, Ordering::Relaxed);
                if rest == 0 {
                    copy = None;
                }
                let bytes = &bytes[length..];
                stream.write(bytes, &mut waits).context("what the source sends cannot be kept")?;
                figures.note_full(None);
                figures.received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            }
            self.buffer.clear();
            self.position = 0;
            figures.waiting_bytes.store(stream.waiting_bytes(), Ordering::Relaxed);
            acknowledge(&mut self.stream, &mut told, figures).context("the source has hung up")?;
            self.buffer.resize(CHUNK_BYTES, 0);
            let read = self.stream.read(&mut self.buffer);
            self.buffer.truncate(*read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => bail!("the source has hung up"),
                Ok(_) => heard = Instant::now(),
                Err(error) if is_pause(&error) => {
                    ensure!(heard.elapsed() < SILENCE_MAX, "the source has said nothing for {SILENCE_MAX:?}");
                }
                Err(error) => return Err(error).context("the link to the source is broken"),
            }
        }
        Ok(())
    }
}

/// Says how far the target is, if it is time.
fn acknowledge(stream: &mut Stream, told: &mut Instant, figures: &Figures) -> io::Result<()> {
    if told.elapsed() < ACKNOWLEDGE_INTERVAL {
        return Ok(());
    }
    *told = Instant::now();
    let mut bytes = Vec::new();
    let kept = figures.kept.load(Ordering::Relaxed).to_string();
    encode_request(&mut bytes, &["REPLCONF", "ACK", &kept]);
    stream.write_all(&bytes).and_then(|()| stream.flush())
}

fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let read = |text: &str| Address::parse(text, Some("given"), &SourceTls::default());
        let address = read("redis://anna:secret@redis-1:7000/").expect("one");
        assert_eq!(address.place, "redis-1:7000");
        assert_eq!(address.login(), Some(vec!["AUTH", "anna", "secret"]));
        let address = read("10.0.0.7").expect("one");
        assert_eq!((&*address.place, address.login()), ("10.0.0.7:6379", Some(vec!["AUTH", "given"])));
        assert_eq!(read("redis://:p@h:1").expect("one").login(), Some(vec!["AUTH", "p"]));
        assert_eq!(read("[::1]:7000").expect("one").place, "[::1]:7000");
        assert!(read("http://h:1").is_err());
        assert!(read("rediss://h:1").is_err_and(|why| why.to_string().contains("--source-cacert")));
        assert!(read("redis://h:1/3").is_err());
    }
}
