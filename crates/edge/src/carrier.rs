//! Carries keys to other servers (MIGRATE).
//!
//! A thread for each request is a client of its own node and of the other server: it reads the keys, sends them, and
//! deletes here what the other one has taken. No core waits for it, and no other client does.
//!
//! ```text
//!   here   WATCH keys ─ DUMP, PEXPIRETIME ┐                    ┌─ MULTI, DEL what was taken, EXEC
//!   there                                 └─ RESTORE … ─ +OK ──┘
//! ```
//!
//! **Nothing is lost.** A key is deleted only after the other server has said OK for the very value that is here: EXEC
//! does nothing if a key was changed since it was read. **Nothing is doubled**, as long as the other server answers:
//! a change in between is carried after the key, by another RESTORE, or by DEL if the key has gone. What is not known is
//! told: `IOERR` means, as it does in Redis, that keys may be at both. See decision 0054.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use keyspace::Limits;
use keyspace::rdb::{self, Dialect};
use node::event::{Event, MigrateRequest, MigrateWish};
use node::settings::Settings;
use resp::{Frame, FrameDecoder, encode_request};
use stdx::sha1::sha1;

use crate::clock;
use crate::host::Host;
use crate::host_session::HostSession;
use crate::limits::{CARRIER_LINE_REST, CARRIER_LINES_MAX, CARRIER_REPLY_BYTES_MAX, CARRIER_ROUNDS_MAX, CARRIERS_MAX};
use crate::mailbox::Mail;
use crate::tls::{ClientOptions, ClientSecurity, SecureStream};

/// Bytes of the version and the checksum behind a dumped value.
const FOOTER_BYTES: usize = 2 + 8;

/// What waits to be carried, and lines that can be used again.
#[derive(Default)]
pub struct Carrier {
    shared: Mutex<Shared>,
    has_work: Condvar,
    /// How other servers are reached, with `tls-replication yes`; or why they cannot be.
    security: Option<Result<ClientSecurity, String>>,
}

#[derive(Default)]
struct Shared {
    waiting: VecDeque<MigrateRequest>,
    /// Lines to other servers that nobody uses, the one that was used last behind the others.
    lines: Vec<Kept>,
    thread_count: usize,
    idle_count: usize,
}

struct Kept {
    /// Host and port.
    place: (String, String),
    line: Line,
    since: Instant,
}

impl Carrier {
    /// As the settings have it at the start.
    pub fn new(settings: &Settings) -> Self {
        let is_secure = settings.get("tls-replication") == "yes";
        let path = |name: &str| Some(settings.get(name)).filter(|path| !path.is_empty()).map(PathBuf::from);
        let options = || ClientOptions {
            authorities: path("tls-ca-cert-file"),
            authorities_directory: path("tls-ca-cert-dir"),
            own: path("tls-cert-file").zip(path("tls-key-file")),
            is_insecure: false,
        };
        Self { security: is_secure.then(|| ClientSecurity::new(&options())), ..Self::default() }
    }

    /// Lines that are kept.
    pub fn line_count(&self) -> usize {
        self.lock().lines.iter().filter(|kept| kept.since.elapsed() < CARRIER_LINE_REST).count()
    }

    /// Begins to carry what a client asks for.
    pub fn take(host: &Arc<Host>, request: MigrateRequest) {
        let carrier = &host.carrier;
        let mut shared = carrier.lock();
        shared.waiting.push_back(request);
        carrier.has_work.notify_one();
        if shared.waiting.len() <= shared.idle_count || shared.thread_count >= CARRIERS_MAX {
            return;
        }
        let carrying = Arc::clone(host);
        let spawned = std::thread::Builder::new().name("carrier".to_owned()).spawn(move || run(&carrying));
        match spawned {
            Ok(_) => shared.thread_count += 1,
            // Another thread will take it, if there is one.
            Err(_) if shared.thread_count > 0 => {}
            Err(error) => {
                let request = shared.waiting.pop_back().expect("just put there");
                drop(shared);
                answer(host, request, Err(format!("ERR there is no thread for MIGRATE: {error}")));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next request; none if there has been none for a while.
    fn next(&self) -> Option<MigrateRequest> {
        let mut shared = self.lock();
        loop {
            shared.lines.retain(|kept| kept.since.elapsed() < CARRIER_LINE_REST);
            if let Some(request) = shared.waiting.pop_front() {
                return Some(request);
            }
            shared.idle_count += 1;
            let waited = self.has_work.wait_timeout(shared, CARRIER_LINE_REST);
            let (back, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            shared = back;
            shared.idle_count -= 1;
            let is_needed = !shared.lines.is_empty() || !shared.waiting.is_empty();
            if timeout.timed_out() && !is_needed {
                shared.thread_count -= 1;
                return None;
            }
        }
    }

    fn kept_line(&self, place: &(String, String)) -> Option<Line> {
        let mut shared = self.lock();
        loop {
            let found = shared.lines.iter().rposition(|kept| kept.place == *place)?;
            let kept = shared.lines.remove(found);
            if kept.since.elapsed() < CARRIER_LINE_REST && kept.line.is_open() {
                return Some(kept.line);
            }
        }
    }

    fn keep(&self, place: (String, String), line: Line) {
        let mut shared = self.lock();
        if shared.lines.len() >= CARRIER_LINES_MAX {
            shared.lines.remove(0);
        }
        shared.lines.push(Kept { place, line, since: Instant::now() });
    }
}

fn run(host: &Arc<Host>) {
    let mut own = None;
    while let Some(request) = host.carrier.next() {
        let outcome = carry(host, &mut own, &request.wish);
        answer(host, request, outcome);
    }
}

fn answer(host: &Host, request: MigrateRequest, answer: Result<&'static str, String>) {
    let event = Event::Migrated { session: request.session, ticket: request.ticket, answer };
    host.desks[usize::from(request.core.0)].mailbox.post(Mail::Event(event));
}

/// What the other server is known to have of a key: a digest of what was sent, and its deadline.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Taken {
    digest: [u8; 20],
    expires_at_ms: i64,
}

/// How it stands with one key.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct State {
    /// What the other server has of it, by our doing.
    taken: Option<Taken>,
    /// The other server would not take it: it stays.
    is_refused: bool,
}

/// A key as it is here.
struct Found {
    /// Its place among the keys.
    key: usize,
    dump: Vec<u8>,
    taken: Taken,
}

/// What the other server, or the line to it, has said that is no success.
#[derive(Default)]
struct Trouble {
    refusal: Option<String>,
    cut: Option<String>,
}

impl Trouble {
    fn is_any(&self) -> bool {
        self.refusal.is_some() || self.cut.is_some()
    }

    fn refused(&mut self, text: &[u8]) {
        let text = String::from_utf8_lossy(text).into_owned();
        self.refusal.get_or_insert(format!("ERR Target instance replied with error: {text}"));
    }
}

fn carry(host: &Host, own: &mut Option<Own>, wish: &MigrateWish) -> Result<&'static str, String> {
    // A session that has been kept may have been ended since.
    let kept = own.take().and_then(|mut own| own.select(wish.database).ok().map(|()| own));
    let mut here = match kept {
        Some(own) => own,
        None => {
            let mut own = Own::open(host)?;
            own.select(wish.database)?;
            own
        }
    };
    let keys = &wish.keys;
    let mut states = vec![State::default(); keys.len()];
    let mut line = None;
    let mut trouble = Trouble::default();
    let mut is_done = false;
    let mut has_found = false;
    for _ in 0..CARRIER_ROUNDS_MAX {
        let all: Vec<usize> = (0..keys.len()).filter(|key| !states[*key].is_refused).collect();
        let found = here.read(wish, &all, !wish.is_copy)?;
        if found.is_empty() && !has_found {
            here.unwatch(wish)?;
            *own = Some(here);
            return Ok("NOKEY");
        }
        has_found = true;
        if line.is_none() {
            match Line::to(host, wish) {
                Ok(open) => line = Some(open),
                Err(why) => trouble = why,
            }
        }
        if let Some(there) = &mut line {
            there.send(wish, &found, &mut states, &mut trouble);
        }
        if wish.is_copy {
            is_done = true;
            break;
        }
        let is_taken = |found: &&Found| states[found.key].taken == Some(found.taken);
        let taken: Vec<usize> = found.iter().filter(is_taken).map(|found| found.key).collect();
        if here.delete(keys, &taken)? {
            is_done = true;
            break;
        }
        if trouble.cut.is_some() || line.is_none() {
            // What was changed cannot be sent again.
            break;
        }
    }
    if !is_done {
        // Keys that nobody changes need not wait for those that somebody does.
        let mut rest = 0;
        for (key, state) in states.iter().enumerate() {
            let Some(taken) = state.taken else { continue };
            let found = here.read(wish, &[key], true)?;
            let is_same = found.first().is_some_and(|found| found.taken == taken);
            let is_gone = if is_same { here.delete(keys, &[key])? } else { found.is_empty() };
            if !is_same {
                here.unwatch(wish)?;
            }
            rest += usize::from(!is_gone);
        }
        if rest > 0 && !trouble.is_any() {
            trouble.cut = Some(format!(
                "IOERR {rest} of the keys were changed again and again while they were sent: they are still here, and \
                 older values of them are at the target"
            ));
        }
    }
    if let Some(line) = line.filter(|_| trouble.cut.is_none()) {
        host.carrier.keep((wish.host.clone(), wish.port.clone()), line);
    }
    *own = Some(here);
    match (trouble.refusal, trouble.cut) {
        (Some(text), _) | (None, Some(text)) => Err(text),
        (None, None) => Ok("OK"),
    }
}

/// This node, as a client of its own.
struct Own {
    session: HostSession,
}

impl Own {
    fn open(host: &Host) -> Result<Self, String> {
        Ok(Self { session: HostSession::open(host).map_err(no_answer)? })
    }

    fn select(&mut self, database: u16) -> Result<(), String> {
        sound(self.session.call(&["SELECT".to_owned(), database.to_string()]).map_err(no_answer)?).map(|_| ())
    }

    /// Those of these keys that are here, as they are now; from then on it is seen whether they change, if that is
    /// wished.
    fn read(&mut self, wish: &MigrateWish, keys: &[usize], watches: bool) -> Result<Vec<Found>, String> {
        let mut bytes = Vec::new();
        if watches && !keys.is_empty() {
            let mut words = vec![b"WATCH".as_slice()];
            words.extend(keys.iter().map(|key| wish.keys[*key].as_slice()));
            encode_request(&mut bytes, &words);
        } else {
            // All of one moment.
            encode_request(&mut bytes, &["MULTI"]);
        }
        for key in keys {
            encode_request(&mut bytes, &[b"PEXPIRETIME".as_slice(), &wish.keys[*key]]);
            encode_request(&mut bytes, &[b"DUMP".as_slice(), &wish.keys[*key]]);
        }
        let is_transaction = !watches || keys.is_empty();
        if is_transaction {
            encode_request(&mut bytes, &["EXEC"]);
        }
        self.session.send(&bytes).map_err(no_answer)?;
        sound(self.session.receive().map_err(no_answer)?)?;
        let mut replies = Vec::with_capacity(2 * keys.len());
        for _ in 0..2 * keys.len() {
            replies.push(self.session.receive().map_err(no_answer)?);
        }
        if is_transaction {
            replies = match sound(self.session.receive().map_err(no_answer)?)? {
                Frame::Array(replies) => replies,
                other => return Err(unexpected(&other)),
            };
        }
        let mut found = Vec::new();
        let mut replies = replies.into_iter();
        for key in keys {
            let (Some(deadline), Some(dump)) = (replies.next(), replies.next()) else { break };
            match (sound(deadline)?, sound(dump)?) {
                (Frame::Integer(expires_at_ms), Frame::Bulk(dump)) => {
                    let taken = Taken { digest: sha1(&dump), expires_at_ms };
                    found.push(Found { key: *key, dump, taken });
                }
                // It was not there, or has just gone.
                (_, Frame::Null) => {}
                (_, other) => return Err(unexpected(&other)),
            }
        }
        Ok(found)
    }

    fn unwatch(&mut self, wish: &MigrateWish) -> Result<(), String> {
        if wish.is_copy {
            return Ok(());
        }
        sound(self.session.call(&["UNWATCH"]).map_err(no_answer)?).map(|_| ())
    }

    /// Deletes keys; false, and none is deleted, if one of those that were read has changed.
    fn delete(&mut self, all: &[Vec<u8>], keys: &[usize]) -> Result<bool, String> {
        let mut bytes = Vec::new();
        encode_request(&mut bytes, &["MULTI"]);
        if !keys.is_empty() {
            let mut words = vec![b"DEL".as_slice()];
            words.extend(keys.iter().map(|key| all[*key].as_slice()));
            encode_request(&mut bytes, &words);
        }
        encode_request(&mut bytes, &["EXEC"]);
        self.session.send(&bytes).map_err(no_answer)?;
        let mut refused = None;
        for _ in 0..=usize::from(!keys.is_empty()) {
            if let Err(text) = sound(self.session.receive().map_err(no_answer)?) {
                refused.get_or_insert(text);
            }
        }
        match (sound(self.session.receive().map_err(no_answer)?), refused) {
            (Ok(Frame::Null), _) => Ok(false),
            (Ok(reply), None) => {
                match reply.elements().and_then(|replies| replies.iter().find(|reply| reply.is_error())) {
                    Some(error) => Err(String::from_utf8_lossy(error.as_bytes().unwrap_or_default()).into_owned()),
                    None => Ok(true),
                }
            }
            (Ok(_), Some(text)) | (Err(_), Some(text)) | (Err(text), None) => Err(text),
        }
    }
}

fn no_answer(error: io::Error) -> String {
    format!("IOERR this node does not answer itself: {error}")
}

fn unexpected(reply: &Frame) -> String {
    format!("ERR an answer of this node makes no sense: {reply}")
}

fn sound(reply: Frame) -> Result<Frame, String> {
    match reply {
        Frame::Error(text) => Err(String::from_utf8_lossy(&text).into_owned()),
        reply => Ok(reply),
    }
}

/// A connection to another server.
struct Line {
    wire: Wire,
    decoder: FrameDecoder,
    /// The database that is selected there.
    database: Option<i64>,
    form: Form,
    /// The other server is a node of a Redis Cluster: it may not own a slot yet that is being moved there.
    is_clustered: bool,
}

enum Wire {
    Plain(TcpStream),
    Secure(Box<SecureStream>),
}

/// In which form the other server can read values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// As DUMP has them.
    Dumped,
    /// As Redis before 7.0 had them, in this version of the encoding.
    Old(u16),
}

impl Form {
    /// What a server's INFO says. Who does not say is taken for a Redis of today.
    fn of(info: &str) -> Self {
        let field =
            |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        if field("holdfast_version").is_some() || field("valkey_version").is_some() {
            return Self::Dumped;
        }
        let major = field("redis_version").and_then(|version| version.split('.').next()?.parse::<u16>().ok());
        match major {
            Some(..=3) => Self::Old(6),
            Some(4) => Self::Old(8),
            Some(5 | 6) => Self::Old(9),
            Some(_) | None => Self::Dumped,
        }
    }

    /// A value in this form. One of a kind that the other server cannot know stays as it is, and is refused there.
    fn of_dump(self, dump: &[u8]) -> Cow<'_, [u8]> {
        let Self::Old(version) = self else { return dump.into() };
        let footer = dump.len().checked_sub(FOOTER_BYTES).map(|at| u16::from_le_bytes([dump[at], dump[at + 1]]));
        let is_of_redis_7 = footer.is_some_and(|version| version <= rdb::VERSION);
        match rdb::restore(dump, &Limits::default()) {
            Ok(value) if is_of_redis_7 => rdb::dump_for(value.as_ref(), Dialect::Plain, version).into(),
            _ => dump.into(),
        }
    }
}

/// What a line fails with.
enum Failure {
    Connect,
    Write,
    Read,
}

impl Failure {
    /// In Redis's words.
    fn text(&self) -> String {
        let what = match self {
            Self::Connect => "connecting to the client",
            Self::Write => "writing to target instance",
            Self::Read => "reading from target instance",
        };
        format!("IOERR error or timeout {what}")
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self { refusal: None, cut: Some(failure.text()) }
    }
}

impl Line {
    /// A line that is ready to take the keys of a request.
    fn to(host: &Host, wish: &MigrateWish) -> Result<Self, Trouble> {
        let timeout = Duration::from_millis(wish.timeout_ms);
        let place = (wish.host.clone(), wish.port.clone());
        if let Some(mut line) = host.carrier.kept_line(&place) {
            match line.log_in(wish, timeout) {
                Ok(()) => return Ok(line),
                Err(trouble) if trouble.refusal.is_some() => return Err(trouble),
                // It was cut while nobody looked.
                Err(_) => {}
            }
        }
        let mut line = Self::open(host, wish, timeout)?;
        line.log_in(wish, timeout)?;
        Ok(line)
    }

    fn open(host: &Host, wish: &MigrateWish, timeout: Duration) -> Result<Self, Trouble> {
        let port: u16 = wish.port.trim().parse().map_err(|_| Failure::Write)?;
        let addresses = (wish.host.as_str(), port).to_socket_addrs().map_err(|_| Failure::Connect)?;
        let mut last = Failure::Connect;
        let mut socket = None;
        for address in addresses {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(stream) => {
                    socket = Some(stream);
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => last = Failure::Connect,
                // Redis connects without waiting, and learns of a refusal when it writes.
                Err(_) => last = Failure::Write,
            }
        }
        let Some(socket) = socket else { return Err(last.into()) };
        let set_up = |socket: &TcpStream| {
            socket.set_nodelay(true)?;
            socket.set_write_timeout(Some(timeout))?;
            socket.set_read_timeout(Some(timeout))
        };
        set_up(&socket).map_err(|_| Failure::Connect)?;
        let wire = match &host.carrier.security {
            None => Wire::Plain(socket),
            Some(Ok(security)) => Wire::Secure(Box::new(security.connect(socket).map_err(|_| Failure::Connect)?)),
            Some(Err(why)) => {
                return Err(Trouble {
                    refusal: Some(format!("ERR TLS to the target cannot be used: {why}")),
                    cut: None,
                });
            }
        };
        let decoder = FrameDecoder::new();
        Ok(Self { wire, decoder, database: None, form: Form::Dumped, is_clustered: false })
    }

    /// Says who asks, and where the keys are to go. A new line is asked what the other server is.
    fn log_in(&mut self, wish: &MigrateWish, timeout: Duration) -> Result<(), Trouble> {
        self.set_timeouts(timeout).map_err(|_| Failure::Write)?;
        let is_new = self.database.is_none();
        let selects = self.database != Some(wish.target_database);
        self.database = None;
        let mut bytes = Vec::new();
        if !wish.login.is_empty() {
            let mut words = vec![b"AUTH".as_slice()];
            words.extend(wish.login.iter().map(Vec::as_slice));
            encode_request(&mut bytes, &words);
        }
        if selects {
            encode_request(&mut bytes, &["SELECT".to_owned(), wish.target_database.to_string()]);
        }
        if is_new {
            encode_request(&mut bytes, &["INFO", "server"]);
        }
        self.write(&bytes).map_err(|_| Failure::Write)?;
        let mut trouble = Trouble::default();
        for _ in 0..usize::from(!wish.login.is_empty()) + usize::from(selects) {
            match self.read(timeout).map_err(|_| Failure::Read)? {
                Frame::Error(text) => trouble.refused(&text),
                Frame::Simple(_) => {}
                _ => return Err(Failure::Read.into()),
            }
        }
        if is_new {
            match self.read(timeout).map_err(|_| Failure::Read)? {
                Frame::Bulk(info) | Frame::Verbatim { text: info, .. } => {
                    let info = String::from_utf8_lossy(&info);
                    self.form = Form::of(&info);
                    let is_ours = info.contains("holdfast_version:");
                    self.is_clustered = info.lines().any(|line| line.trim() == "redis_mode:cluster") && !is_ours;
                }
                // It is not told to everybody.
                Frame::Error(_) => {}
                _ => return Err(Failure::Read.into()),
            }
        }
        if trouble.is_any() {
            return Err(trouble);
        }
        self.database = Some(wish.target_database);
        Ok(())
    }

    /// Sends what the other server does not have yet, deletes there what has gone here meanwhile, and notes what it
    /// says.
    fn send(&mut self, wish: &MigrateWish, found: &[Found], states: &mut [State], trouble: &mut Trouble) {
        let timeout = Duration::from_millis(wish.timeout_ms);
        let now_ms = clock::now().unix.0;
        let mut asked = Vec::new();
        let mut bytes = Vec::new();
        for (key, state) in states.iter().enumerate() {
            if state.taken.is_some() && !found.iter().any(|found| found.key == key) {
                encode_request(&mut bytes, &[b"DEL".as_slice(), &wish.keys[key]]);
                asked.push((key, None));
            }
        }
        for found in found {
            let state = states[found.key];
            let lasts_ms = found.taken.expires_at_ms.saturating_sub(now_ms).max(1);
            if state.taken == Some(found.taken) {
                continue;
            }
            let dump = self.form.of_dump(&found.dump);
            let ttl = if found.taken.expires_at_ms < 0 { 0 } else { lasts_ms }.to_string();
            let command = if self.is_clustered { "RESTORE-ASKING" } else { "RESTORE" };
            let key = &wish.keys[found.key];
            let mut words = vec![command.as_bytes(), key.as_slice(), ttl.as_bytes(), &dump];
            // What is there by our doing is replaced.
            if wish.replaces || state.taken.is_some() {
                words.push(b"REPLACE");
            }
            encode_request(&mut bytes, &words);
            asked.push((found.key, Some(found.taken)));
        }
        if self.write(&bytes).is_err() {
            trouble.cut.get_or_insert(Failure::Write.text());
            return;
        }
        for (key, taken) in asked {
            let state = &mut states[key];
            match self.read(timeout) {
                Ok(Frame::Simple(text)) if text == b"OK" && taken.is_some() => state.taken = taken,
                Ok(Frame::Integer(_)) if taken.is_none() => state.taken = None,
                Ok(Frame::Error(text)) => {
                    trouble.refused(&text);
                    state.is_refused = true;
                }
                // Anything else is no answer to what was asked: whatever follows means nothing.
                Ok(_) | Err(_) => {
                    trouble.cut.get_or_insert(Failure::Read.text());
                    return;
                }
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.wire {
            Wire::Plain(socket) => socket.write_all(bytes),
            Wire::Secure(stream) => {
                stream.write_all(bytes)?;
                stream.flush()
            }
        }
    }

    fn socket(&self) -> &TcpStream {
        match &self.wire {
            Wire::Plain(socket) => socket,
            Wire::Secure(stream) => &stream.sock,
        }
    }

    fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        self.socket().set_write_timeout(Some(timeout))?;
        self.socket().set_read_timeout(Some(timeout))
    }

    /// True if the other server has not ended it, and has said nothing of its own accord.
    fn is_open(&self) -> bool {
        let socket = self.socket();
        let mut byte = [0];
        let is_silent = socket.set_nonblocking(true).is_ok()
            && matches!(socket.peek(&mut byte), Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        socket.set_nonblocking(false).is_ok() && is_silent
    }

    /// The next reply, whole within so long.
    fn read(&mut self, timeout: Duration) -> io::Result<Frame> {
        let until = Instant::now() + timeout;
        let mut buffer = vec![0; 16 << 10];
        let mut taken_bytes = 0;
        loop {
            match self.decoder.next_frame() {
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) => {}
                Err(malformed) => return Err(io::Error::new(io::ErrorKind::InvalidData, malformed.to_string())),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || taken_bytes > CARRIER_REPLY_BYTES_MAX {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.socket().set_read_timeout(Some(left))?;
            let read = match &mut self.wire {
                Wire::Plain(socket) => socket.read(&mut buffer),
                Wire::Secure(stream) => stream.read(&mut buffer),
            };
            match read? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => {
                    taken_bytes += count;
                    self.decoder.extend(&buffer[..count]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_one_that_the_other_server_reads() {
        for (info, form) in [
            ("# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n", Form::Dumped),
            ("redis_version:6.2.14\r\n", Form::Old(9)),
            ("redis_version:5.0.3\r\n", Form::Old(9)),
            ("redis_version:4.0.9\r\n", Form::Old(8)),
            ("redis_version:3.2.1\r\n", Form::Old(6)),
            ("redis_version:255.255.255\r\n", Form::Dumped),
            // What they say of Redis is for clients.
            ("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.0\r\n", Form::Dumped),
            ("redis_version:6.0.0\r\nholdfast_version:1\r\n", Form::Dumped),
            ("redis_version:what?\r\n", Form::Dumped),
            ("", Form::Dumped),
        ] {
            assert_eq!(Form::of(info), form, "{info}");
        }
    }

    /// A value as DUMP has it, in this version.
    fn sealed(value: &[u8], version: u16) -> Vec<u8> {
        let mut out = [value, &version.to_le_bytes()].concat();
        let sum = stdx::crc64::crc64(0, &out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    #[test]
    fn values_are_written_plainly_for_an_old_server_and_what_it_cannot_know_is_not_touched() {
        // A hash of one field, in a listpack: 11 bytes, two elements, `f`, `v`.
        let hash = sealed(b"\x10\x0D\x0D\x00\x00\x00\x02\x00\x81f\x02\x81v\x02\xFF", 10);
        let plain = Form::Old(9).of_dump(&hash);
        assert_eq!(&*plain, sealed(b"\x04\x01\x01f\x01v", 9), "{}", plain.escape_ascii());
        assert_eq!(Form::Dumped.of_dump(&hash), hash);
        // The same with a deadline came with Redis 7.4.
        let newer = sealed(b"\x18 whatever", 12);
        assert_eq!(Form::Old(9).of_dump(&newer), newer);
        let short = b"short".to_vec();
        assert_eq!(Form::Old(9).of_dump(&short), short);
    }
}
