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
//! does nothing if a key was changed since it was read. The other server must have other keys than this one. It is
//! asked which keys it has. If it does not say, a key is deleted only if it was stored there and did not change here in
//! the same round. **Nothing is doubled**, as long as the other server answers: a change in between is carried after
//! the key, by another RESTORE, or by DEL if the key has gone. What is not known is told: `IOERR` means, as it does in
//! Redis, that keys may be at both. See decision 0054.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::mem;
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

/// Requests that may wait for a thread. More are refused.
const WAITING_MAX: usize = 1_000;
/// How long it may take to connect, whatever time-out a client names: a thread is held meanwhile.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Keys that are read, or sent, before answers are taken: anyone who answers need not hold more.
const PIECE_KEYS_MAX: usize = 256;
/// Bytes of requests to this node before its answers are taken. It must be able to take them while it waits until
/// answers are read.
const PIECE_ASKED_BYTES_MAX: usize = 16 << 10;
/// Bytes that are sent to another server before its answers are taken; a larger value goes by itself.
const PIECE_SENT_BYTES_MAX: usize = 8 << 20;

/// So often keys may look unchanged although the transaction that should have deleted them found a change. Then the
/// other server may have changed them, by storing what it was sent.
const SUSPICIONS_MAX: usize = 3;

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
    place: Place,
    line: Line,
    since: Instant,
}

/// Where a line leads, and who it is logged in as there.
#[derive(Clone, PartialEq, Eq)]
struct Place {
    host: String,
    port: String,
    login: Vec<Vec<u8>>,
}

impl Place {
    fn of(wish: &MigrateWish) -> Self {
        Self { host: wish.host.clone(), port: wish.port.clone(), login: wish.login.clone() }
    }
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
        if shared.waiting.len() >= WAITING_MAX {
            drop(shared);
            answer(host, request, Err("TRYAGAIN too many MIGRATEs wait".to_owned()));
            return;
        }
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

    fn kept_line(&self, place: &Place) -> Option<Line> {
        let mut shared = self.lock();
        loop {
            let found = shared.lines.iter().rposition(|kept| kept.place == *place)?;
            let kept = shared.lines.remove(found);
            if kept.since.elapsed() < CARRIER_LINE_REST && kept.line.is_open() {
                return Some(kept.line);
            }
        }
    }

    fn keep(&self, place: Place, line: Line) {
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

impl Taken {
    /// Either of what was there and what was sent. No key here looks like that.
    const UNKNOWN: Self = Self { digest: [0; 20], expires_at_ms: i64::MIN };
}

/// How it stands with one key.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct State {
    /// What the other server has of it, by our doing.
    taken: Option<Taken>,
    /// It was taken after the key was last watched: if nothing has changed here when it is deleted, the other server
    /// has stored it elsewhere.
    is_fresh: bool,
    /// The other server would not take it: it stays.
    is_refused: bool,
    /// The other server has it, and it has been deleted here.
    is_over: bool,
}

/// A key as it is here.
struct Found {
    /// Its place among the keys.
    key: usize,
    /// Empty once it was sent.
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
    let kept = own.take().and_then(|mut own| own.prepare(wish).ok().map(|()| own));
    let mut here = match kept {
        Some(own) => own,
        None => {
            let mut own = Own::open(host)?;
            own.prepare(wish)?;
            own
        }
    };
    let mut journey = Journey::of(wish);
    let mut suspicions = 0;
    let mut is_done = false;
    let mut has_found = false;
    for round in 0..CARRIER_ROUNDS_MAX {
        let all = journey.keys_on_their_way();
        let mut found = journey.read(&mut here, &all)?;
        if found.is_empty() && !has_found {
            here.unwatch(wish)?;
            *own = Some(here);
            return Ok("NOKEY");
        }
        if !has_found {
            has_found = true;
            journey.open_line(host, &here.owner);
        }
        if round > 0 && !journey.is_elsewhere && !found.is_empty() && journey.has_all(&found) {
            suspicions += 1;
            if suspicions > SUSPICIONS_MAX {
                here.unwatch(wish)?;
                break;
            }
        }
        let gone = journey.gone(&found);
        journey.send(&mut found, &gone);
        if wish.is_copy {
            is_done = true;
            break;
        }
        let taken: Vec<usize> = found.iter().filter(|found| journey.may_go(found)).map(|found| found.key).collect();
        if here.delete(&wish.keys, &taken)? {
            is_done = true;
            break;
        }
        if taken.len() > 1 && !journey.is_elsewhere && journey.is_sound() {
            // If nobody changes this one, it shows that the other server's keys are not these, and the others need not
            // be sent again.
            journey.carry_alone(&mut here, taken[round % taken.len()])?;
        }
        if !journey.is_sound() {
            // What was changed cannot be sent again.
            break;
        }
    }
    if !is_done {
        // Keys that nobody changes need not wait for those that somebody does.
        let mut rest = 0;
        for key in 0..wish.keys.len() {
            let state = journey.states[key];
            if state.taken.is_some() && !state.is_over && !journey.carry_alone(&mut here, key)? {
                rest += 1;
            }
        }
        if rest > 0 && !journey.trouble.is_any() {
            journey.trouble.cut = Some(if suspicions > SUSPICIONS_MAX {
                format!(
                    "IOERR {rest} of the keys are still here, and are at the target as well: it does not say which \
                     keys it has, and they may be these"
                )
            } else {
                format!(
                    "IOERR {rest} of the keys were changed again and again while they were sent: they are still here, \
                     and older values of them are at the target"
                )
            });
        }
    }
    let Journey { line, trouble, .. } = journey;
    if let Some(line) = line.filter(|_| trouble.cut.is_none()) {
        host.carrier.keep(Place::of(wish), line);
    }
    *own = Some(here);
    match (trouble.refusal, trouble.cut) {
        (Some(text), _) | (None, Some(text)) => Err(text),
        (None, None) => Ok("OK"),
    }
}

/// A request that is carried out.
struct Journey<'a> {
    wish: &'a MigrateWish,
    /// Of each key.
    states: Vec<State>,
    line: Option<Line>,
    /// The other server's keys are known not to be these. Otherwise a key that changed here while it was sent is sent
    /// again in any case: the change may have been that the other server has stored it.
    is_elsewhere: bool,
    trouble: Trouble,
}

impl<'a> Journey<'a> {
    fn of(wish: &'a MigrateWish) -> Self {
        let states = vec![State::default(); wish.keys.len()];
        Self { wish, states, line: None, is_elsewhere: false, trouble: Trouble::default() }
    }

    fn keys_on_their_way(&self) -> Vec<usize> {
        let is_on_its_way = |state: &State| !state.is_refused && !state.is_over;
        (0..self.states.len()).filter(|key| is_on_its_way(&self.states[*key])).collect()
    }

    fn open_line(&mut self, host: &Host, own: &Owner) {
        match Line::to(host, self.wish) {
            Ok(line) => {
                let is_same_database = self.wish.target_database == i64::from(self.wish.database);
                match own.is_elsewhere(&line.owner, is_same_database) {
                    Some(false) => {
                        let text = "ERR Target instance is this server, or belongs to its cluster";
                        self.trouble.refusal = Some(text.to_owned());
                    }
                    known => {
                        self.is_elsewhere = known.is_some();
                        self.line = Some(line);
                    }
                }
            }
            Err(trouble) => self.trouble = trouble,
        }
    }

    /// Keys as they are here, watched from now on if they will be deleted.
    fn read(&mut self, here: &mut Own, keys: &[usize]) -> Result<Vec<Found>, String> {
        self.states.iter_mut().for_each(|state| state.is_fresh = false);
        here.read(self.wish, keys, !self.wish.is_copy)
    }

    /// The other server was sent all of these as they are.
    fn has_all(&self, found: &[Found]) -> bool {
        found.iter().all(|found| self.states[found.key].taken == Some(found.taken))
    }

    /// Keys that the other server has been sent and that are not among these, which are in order.
    fn gone(&self, found: &[Found]) -> Vec<usize> {
        let is_gone = |key: &usize| {
            let state = self.states[*key];
            let is_here = found.binary_search_by_key(key, |found| found.key).is_ok();
            state.taken.is_some() && !state.is_over && !is_here
        };
        (0..self.states.len()).filter(is_gone).collect()
    }

    /// Sends the other server what it does not have yet, and deletes there what has gone.
    fn send(&mut self, found: &mut [Found], gone: &[usize]) {
        if let Some(line) = self.line.as_mut().filter(|_| self.trouble.cut.is_none()) {
            line.send(self.wish, found, gone, !self.is_elsewhere, &mut self.states, &mut self.trouble);
        }
    }

    /// This may be deleted here, if it has not changed since it was read.
    fn may_go(&self, found: &Found) -> bool {
        let state = self.states[found.key];
        state.taken == Some(found.taken) && (state.is_fresh || self.is_elsewhere)
    }

    /// More can be sent.
    fn is_sound(&self) -> bool {
        self.line.is_some() && self.trouble.cut.is_none()
    }

    /// Carries one of the keys by itself; true if it is not here any more, and an older value is not there.
    fn carry_alone(&mut self, here: &mut Own, key: usize) -> Result<bool, String> {
        let mut found = self.read(here, &[key])?;
        if found.is_empty() {
            here.unwatch(self.wish)?;
            if self.states[key].taken.is_some() {
                self.send(&mut found, &[key]);
            }
            return Ok(self.states[key].taken.is_none());
        }
        if !self.states[key].is_refused {
            self.send(&mut found, &[]);
        }
        if !found.iter().all(|found| self.may_go(found)) {
            here.unwatch(self.wish)?;
            return Ok(false);
        }
        let is_deleted = here.delete(&self.wish.keys, &[key])?;
        self.states[key].is_over = is_deleted;
        // It was stored there, and did not change here.
        self.is_elsewhere |= is_deleted;
        Ok(is_deleted)
    }
}

/// This node, as a client of its own.
struct Own {
    session: HostSession,
    owner: Owner,
}

impl Own {
    fn open(host: &Host) -> Result<Self, String> {
        let mut session = HostSession::open(host).map_err(no_answer)?;
        let owner = match session.call(&["INFO", "server"]).map_err(no_answer)? {
            Frame::Bulk(info) | Frame::Verbatim { text: info, .. } => Owner::of(&String::from_utf8_lossy(&info)),
            _ => Owner::Unknown,
        };
        Ok(Self { session, owner })
    }

    /// Sets the session up as the client's: its durability and database.
    fn prepare(&mut self, wish: &MigrateWish) -> Result<(), String> {
        let durability = if wish.is_synced { "DISK" } else { "SERVER" };
        sound(self.session.call(&["CLIENT", "DURABILITY", durability]).map_err(no_answer)?)?;
        sound(self.session.call(&["SELECT".to_owned(), wish.database.to_string()]).map_err(no_answer)?).map(|_| ())
    }

    /// Those of these keys that are here, as they are now; from then on it is seen whether they change, if that is
    /// wished.
    fn read(&mut self, wish: &MigrateWish, keys: &[usize], watches: bool) -> Result<Vec<Found>, String> {
        let is_transaction = !watches || keys.is_empty();
        let mut bytes = Vec::new();
        if is_transaction {
            // All of one moment.
            encode_request(&mut bytes, &["MULTI"]);
        } else {
            let mut words = vec![b"WATCH".as_slice()];
            words.extend(keys.iter().map(|key| wish.keys[*key].as_slice()));
            encode_request(&mut bytes, &words);
        }
        self.session.send(&bytes).map_err(no_answer)?;
        sound(self.session.receive().map_err(no_answer)?)?;
        let mut replies = Vec::with_capacity(2 * keys.len());
        let mut rest = keys;
        while !rest.is_empty() {
            bytes.clear();
            let mut count = 0;
            for key in rest.iter().take(PIECE_KEYS_MAX) {
                encode_request(&mut bytes, &[b"PEXPIRETIME".as_slice(), &wish.keys[*key]]);
                encode_request(&mut bytes, &[b"DUMP".as_slice(), &wish.keys[*key]]);
                count += 1;
                if bytes.len() >= PIECE_ASKED_BYTES_MAX {
                    break;
                }
            }
            rest = &rest[count..];
            self.session.send(&bytes).map_err(no_answer)?;
            for _ in 0..2 * count {
                let reply = self.session.receive().map_err(no_answer)?;
                // In a transaction this only says that it was queued.
                if !is_transaction {
                    replies.push(reply);
                }
            }
        }
        if is_transaction {
            replies = match sound(self.session.call(&["EXEC"]).map_err(no_answer)?)? {
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
    /// Which keys the other server has.
    owner: Owner,
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

/// What a server's INFO says under this name.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Which keys a server has.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Owner {
    /// It does not say.
    Unknown,
    /// Those of a cluster of Holdfast with this name, which a server by itself has, too.
    Cluster(String),
    /// It is no Holdfast.
    Other,
}

impl Owner {
    /// What a server's INFO says.
    fn of(info: &str) -> Self {
        match field(info, "cluster_id").filter(|id| !id.is_empty()) {
            Some(id) => Self::Cluster(id.to_owned()),
            // An older one does not say it.
            None if field(info, "holdfast_version").is_some() => Self::Unknown,
            None if field(info, "redis_version").is_some() && field(info, "run_id").is_some() => Self::Other,
            None => Self::Unknown,
        }
    }

    /// The other server's keys are not these, or are these, if one can know that.
    fn is_elsewhere(&self, other: &Self, is_same_database: bool) -> Option<bool> {
        match (self, other) {
            (Self::Cluster(own), Self::Cluster(other)) => Some(own != other || !is_same_database),
            (_, Self::Other) => Some(true),
            _ => None,
        }
    }
}

impl Form {
    /// What a server's INFO says. A server that does not say is taken for a Redis of today.
    fn of(info: &str) -> Self {
        let field = |name: &str| field(info, name);
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

/// Requests that are sent at once.
#[derive(Default)]
struct Piece {
    bytes: Vec<u8>,
    /// For each key, what to store; nothing, if it must be deleted.
    asked: Vec<(usize, Option<Taken>)>,
}

impl Piece {
    fn is_full(&self) -> bool {
        self.asked.len() >= PIECE_KEYS_MAX || self.bytes.len() >= PIECE_SENT_BYTES_MAX
    }
}

impl Line {
    /// A line that is ready to take the keys of a request.
    fn to(host: &Host, wish: &MigrateWish) -> Result<Self, Trouble> {
        let timeout = Duration::from_millis(wish.timeout_ms);
        if let Some(mut line) = host.carrier.kept_line(&Place::of(wish)) {
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
        let timeout = timeout.min(CONNECT_MAX);
        let until = Instant::now() + timeout;
        let mut last = Failure::Connect;
        let mut socket = None;
        for address in addresses {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                last = Failure::Connect;
                break;
            }
            match TcpStream::connect_timeout(&address, left) {
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
        Ok(Self { wire, decoder, database: None, form: Form::Dumped, owner: Owner::Unknown, is_clustered: false })
    }

    /// Names the user, and where the keys must go. A new line is asked what the other server is.
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
                    self.owner = Owner::of(&info);
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

    /// Sends what the other server does not have yet (or all, if so wished), deletes there what has gone here
    /// meanwhile, and notes what it says. What was sent is not kept.
    fn send(
        &mut self,
        wish: &MigrateWish,
        found: &mut [Found],
        gone: &[usize],
        sends_all: bool,
        states: &mut [State],
        trouble: &mut Trouble,
    ) {
        let timeout = Duration::from_millis(wish.timeout_ms);
        let mut piece = Piece::default();
        for key in gone {
            encode_request(&mut piece.bytes, &[b"DEL".as_slice(), &wish.keys[*key]]);
            piece.asked.push((*key, None));
            if piece.is_full() && !self.exchange(&mut piece, timeout, states, trouble) {
                return;
            }
        }
        for found in found {
            let dump = mem::take(&mut found.dump);
            let state = states[found.key];
            if state.taken == Some(found.taken) && !sends_all {
                continue;
            }
            let lasts_ms = found.taken.expires_at_ms.saturating_sub(clock::now().unix.0).max(1);
            let ttl = if found.taken.expires_at_ms < 0 { 0 } else { lasts_ms }.to_string();
            let command = if self.is_clustered { "RESTORE-ASKING" } else { "RESTORE" };
            let value = self.form.of_dump(&dump);
            let mut words = vec![command.as_bytes(), wish.keys[found.key].as_slice(), ttl.as_bytes(), &value];
            // What is there by our doing is replaced.
            if wish.replaces || state.taken.is_some() {
                words.push(b"REPLACE");
            }
            encode_request(&mut piece.bytes, &words);
            drop(value);
            drop(dump);
            piece.asked.push((found.key, Some(found.taken)));
            if piece.is_full() && !self.exchange(&mut piece, timeout, states, trouble) {
                return;
            }
        }
        self.exchange(&mut piece, timeout, states, trouble);
    }

    /// Sends what has been gathered, and notes the answers; false if the line has been cut.
    fn exchange(&mut self, piece: &mut Piece, timeout: Duration, states: &mut [State], trouble: &mut Trouble) -> bool {
        let Piece { bytes, asked } = mem::take(piece);
        if asked.is_empty() {
            return true;
        }
        // A server that was sent another value and does not answer may have it or not.
        let forget = |unanswered: &[(usize, Option<Taken>)], states: &mut [State]| {
            for (key, _) in unanswered {
                states[*key].taken = states[*key].taken.map(|_| Taken::UNKNOWN);
                states[*key].is_fresh = false;
            }
        };
        if self.write(&bytes).is_err() {
            forget(&asked, states);
            trouble.cut.get_or_insert(Failure::Write.text());
            return false;
        }
        drop(bytes);
        for (nth, (key, taken)) in asked.iter().copied().enumerate() {
            let state = &mut states[key];
            match self.read(timeout) {
                Ok(Frame::Simple(text)) if text == b"OK" && taken.is_some() => {
                    state.taken = taken;
                    state.is_fresh = true;
                }
                Ok(Frame::Integer(_)) if taken.is_none() => state.taken = None,
                Ok(Frame::Error(text)) => {
                    trouble.refused(&text);
                    state.is_refused = true;
                }
                // Anything else is no answer to what was asked: whatever follows means nothing.
                Ok(_) | Err(_) => {
                    forget(&asked[nth..], states);
                    trouble.cut.get_or_insert(Failure::Read.text());
                    return false;
                }
            }
        }
        true
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

    /// True if the other server has not ended it, and has sent nothing unasked.
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

    #[test]
    fn keys_of_the_same_cluster_and_database_are_known() {
        let own = Owner::of("redis_version:7.2.4\r\nholdfast_version:1\r\nrun_id:a\r\ncluster_id:0a\r\n");
        assert_eq!(own, Owner::Cluster("0a".to_owned()));
        for (info, of_same, of_other) in [
            ("holdfast_version:1\r\ncluster_id:0a\r\n", Some(false), Some(true)),
            ("holdfast_version:1\r\ncluster_id:0b\r\n", Some(true), Some(true)),
            ("redis_version:7.2.4\r\nholdfast_version:0.9\r\nrun_id:a\r\n", None, None),
            ("redis_version:7.2.4\r\nrun_id:a\r\n", Some(true), Some(true)),
            ("# Proxy\r\n", None, None),
        ] {
            let other = Owner::of(info);
            let known = [true, false].map(|is_same_database| own.is_elsewhere(&other, is_same_database));
            assert_eq!(known, [of_same, of_other], "{info}");
        }
        assert_eq!(Owner::Unknown.is_elsewhere(&own, true), None);
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
