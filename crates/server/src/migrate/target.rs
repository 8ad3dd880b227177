//! Where a migration leads: the record that says how far it is, and the transactions that carry it on.
//!
//! The record is a hash in database 0. Each transaction holds requests of the source and the place up to which they
//! reach, so that the data and the place are never apart: after a crash, a change of leaders, or a cut, the record says
//! exactly where to go on. It also names the process that writes: another one that takes over, `cutover`, and `stop`
//! change the record, and since each transaction watches it, the one before finds out before it changes anything.
//!
//! See `docs/decisions/0022-migration-by-transactions.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use edge::Inside;
use redis_files::aof::Request;
use resp::{Frame, encode_request};
use stdx::slot::slot_of;

use super::filter::Filter;
use super::is_over;
use super::source::ask;
use crate::cluster::door::place_of;
use crate::connection::{Connection, Refused, named};
use crate::login::Login;
use crate::tls::Stream;

/// The key of the record.
pub const RECORD: &str = "{holdfast}:migration";

/// A server that answers nothing for so long is asked again over another connection.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a target that is away, or refuses, is asked again.
pub const INSISTENCE: Duration = Duration::from_secs(600);

const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// First words of refusals that pass: a change of leaders, a disk or a memory that is full for now, a script that is in
/// the way.
const PASSING: [&str; 9] =
    ["CLUSTERDOWN", "TRYAGAIN", "LOADING", "MASTERDOWN", "NOREPLICAS", "MISCONF", "OOM", "BUSY", "READONLY"];

/// How far a migration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The copy is being loaded.
    Loading,
    /// The stream is being followed.
    Following,
    /// Something of the stream could not be carried out.
    Failed,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Following => "following",
            Self::Failed => "failed",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::Loading, Self::Following, Self::Failed].into_iter().find(|phase| phase.name() == name)
    }
}

/// How far the stream of one node of a cluster is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The node's name in its cluster.
    pub node: String,
    /// `HOST:PORT`.
    pub place: String,
    /// Its replication id; empty before the first byte.
    pub id: String,
    /// As those of a [`Record`].
    pub offset: u64,
    pub received: u64,
    pub lag_ms: u64,
    /// Slots that are taken from it, as ranges.
    pub slots: String,
}

impl Place {
    fn text(&self) -> String {
        let Self { node, place, id, offset, received, lag_ms, slots } = self;
        let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        format!("{node} {place} {} {offset} {received} {lag_ms} {}", or_dash(id), or_dash(slots))
    }

    fn read(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let &[node, place, id, offset, received, lag_ms, slots] = &words[..] else { return None };
        let no_dash = |text: &str| if text == "-" { String::new() } else { text.to_owned() };
        Some(Self {
            node: node.to_owned(),
            place: place.to_owned(),
            id: no_dash(id),
            offset: offset.parse().ok()?,
            received: received.parse().ok()?,
            lag_ms: lag_ms.parse().ok()?,
            slots: no_dash(slots),
        })
    }
}

/// The record of a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// `HOST:PORT` of the source.
    pub from: String,
    pub phase: Phase,
    /// Names the process that carries it on.
    pub writer: String,
    /// The source's replication id; empty if it is a cluster.
    pub id: String,
    /// Bytes of the source's stream that are in the data; of a cluster those of all streams together.
    pub offset: u64,
    /// The database that the stream has selected there.
    pub database: u64,
    /// Bytes that the source had sent by then.
    pub received: u64,
    /// For how long the oldest of them that was not yet in the data had been there, in milliseconds.
    pub lag_ms: u64,
    /// When the record was written, in milliseconds since the epoch.
    pub written_ms: i64,
    /// Why it has failed.
    pub error: String,
    /// Why the source is not followed for now; empty if it is.
    pub fault: String,
    /// Up to where the replies to what the target has carried out have been read, in `offset`. Behind it a request may
    /// have been refused, and nobody knows.
    pub heard: u64,
    /// Between which offsets replies were lost for good: `FROM-TO`, the latest last.
    pub unheard: String,
    /// The streams of a cluster, by number; `None` for one that has ended.
    pub streams: BTreeMap<u32, Option<Place>>,
    /// Slots of a cluster that have to be read, as ranges.
    pub unsettled: String,
    /// Which keys are taken.
    pub filter: Filter,
}

/// So many places where replies were lost are kept.
const UNHEARD_MAX: usize = 10;

/// What the name of a stream's field begins with.
const STREAM: &str = "stream:";

impl Record {
    /// The streams that there are.
    pub fn places(&self) -> impl Iterator<Item = (u32, &Place)> {
        self.streams.iter().filter_map(|(number, place)| Some((*number, place.as_ref()?)))
    }

    fn words(&self) -> Vec<Vec<u8>> {
        let Self {
            from,
            phase,
            writer,
            id,
            offset,
            database,
            received,
            lag_ms,
            written_ms,
            error,
            fault,
            heard,
            unheard,
            ..
        } = self;
        let fields: [(&str, String); 13] = [
            ("from", from.clone()),
            ("phase", phase.name().to_owned()),
            ("writer", writer.clone()),
            ("id", id.clone()),
            ("offset", offset.to_string()),
            ("database", database.to_string()),
            ("received", received.to_string()),
            ("lag-ms", lag_ms.to_string()),
            ("written-ms", written_ms.to_string()),
            ("error", error.clone()),
            ("fault", fault.clone()),
            ("heard", heard.to_string()),
            ("unheard", unheard.clone()),
        ];
        let mut words = vec![b"HSET".to_vec(), RECORD.into()];
        words.extend(fields.into_iter().flat_map(|(name, value)| [name.as_bytes().to_vec(), value.into_bytes()]));
        if !self.filter.is_all() {
            words.extend([b"filter".to_vec(), self.filter.text().into_bytes()]);
        }
        if !self.streams.is_empty() {
            words.extend([b"unsettled".to_vec(), self.unsettled.clone().into_bytes()]);
        }
        for (number, place) in &self.streams {
            let text = place.as_ref().map_or_else(String::new, Place::text);
            words.extend([format!("{STREAM}{number}").into_bytes(), text.into_bytes()]);
        }
        words
    }

    /// True if it is that record, or one that its writer has written without going on.
    fn is_place_of(&self, other: &Self) -> bool {
        let is_there = (&self.writer, self.offset, self.written_ms) == (&other.writer, other.offset, other.written_ms);
        is_there && self.streams == other.streams && self.unsettled == other.unsettled
    }

    /// Notes that nobody has read what was answered behind `heard`; says so in a line.
    pub fn note_unheard(&mut self) -> String {
        let window = format!("{}-{}", self.heard, self.offset);
        let line = format!(
            "the replies to what came between offsets {} and {} were lost: whether all of it could be carried out is not \
             known, and `migrate verify` compares",
            self.heard, self.offset
        );
        let before = self.unheard.split(' ').filter(|window| !window.is_empty());
        let mut windows: Vec<&str> = before.chain([&*window]).collect();
        windows.drain(..windows.len().saturating_sub(UNHEARD_MAX));
        self.unheard = windows.join(" ");
        self.heard = self.offset;
        line
    }

    /// Reads the reply of HGETALL. `None` if there is no record.
    fn read(reply: &Frame) -> Result<Option<Self>> {
        let words: Vec<String> = match reply {
            Frame::Array(elements) => elements
                .iter()
                .map(|word| String::from_utf8_lossy(word.as_bytes().unwrap_or_default()).into())
                .collect(),
            other => bail!("the record of the migration cannot be read: {other}"),
        };
        let fields: BTreeMap<&str, &str> = words.chunks_exact(2).map(|pair| (&*pair[0], &*pair[1])).collect();
        if fields.is_empty() {
            return Ok(None);
        }
        let text = |name: &str| fields.get(name).copied().unwrap_or_default().to_owned();
        let damaged = || anyhow!("{RECORD} is not a record of a migration: delete it if it is not yours");
        let number = |name: &str| text(name).parse::<u64>().map_err(|_| damaged());
        let mut streams = BTreeMap::new();
        for (name, value) in &fields {
            if let Some(name) = name.strip_prefix(STREAM) {
                let place = if value.is_empty() { None } else { Some(Place::read(value).ok_or_else(damaged)?) };
                streams.insert(name.parse().map_err(|_| damaged())?, place);
            }
        }
        Ok(Some(Self {
            from: text("from"),
            phase: Phase::named(&text("phase")).ok_or_else(damaged)?,
            writer: text("writer"),
            id: text("id"),
            offset: number("offset")?,
            database: number("database")?,
            received: number("received")?,
            lag_ms: number("lag-ms")?,
            written_ms: text("written-ms").parse().map_err(|_| damaged())?,
            error: text("error"),
            fault: text("fault"),
            // A version before this one did not say.
            heard: if fields.contains_key("heard") { number("heard")? } else { number("offset")? },
            unheard: text("unheard"),
            streams,
            unsettled: text("unsettled"),
            filter: Filter::read(&text("filter"))?,
        }))
    }
}

/// How the target is reached.
#[derive(Clone, Debug, clap::Args)]
pub struct TargetArguments {
    /// The target, a Holdfast server; several nodes of a cluster with commas
    #[arg(long, short, value_name = "HOST:PORT[,HOST:PORT]", value_delimiter = ',', conflicts_with_all = ["host", "port"])]
    server: Vec<String>,
    /// Host of the target, instead of --server
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Its port for clients
    #[arg(long, short, default_value_t = 6379)]
    port: u16,
    #[command(flatten)]
    login: Login,
    /// The user has asked for the end: what fails is not tried again.
    #[arg(skip)]
    pub over: Arc<AtomicBool>,
    /// It is the server of this very process.
    #[arg(skip)]
    inside: Option<Inside>,
    /// Why it refuses what it is sent, and is asked again; empty while it does not.
    #[arg(skip)]
    pub refusal: Arc<Mutex<String>>,
}

impl TargetArguments {
    /// The server of this very process.
    pub fn of_this_process(inside: Inside) -> Self {
        let (server, host, over, refusal) = (Vec::new(), "this server".to_owned(), Arc::default(), Arc::default());
        Self { server, host, port: 0, login: Login::default(), over, inside: Some(inside), refusal }
    }

    fn note_refusal(&self, why: String) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// True if it is the server of this very process.
    pub fn is_inside(&self) -> bool {
        self.inside.is_some()
    }

    /// Each as `HOST:PORT`; at least one.
    pub fn servers(&self) -> Vec<String> {
        match self.server.as_slice() {
            [] => vec![place_of(&self.host, self.port)],
            named => named.to_vec(),
        }
    }

    /// Connects to the first that answers.
    ///
    /// # Errors
    /// Why none does.
    pub fn connect(&self) -> Result<Connection> {
        if let Some(inside) = &self.inside {
            let mut connection = Connection::over(Stream::Local(inside.connect()?.into_stream()));
            connection.wait_at_most(PATIENCE)?;
            // Clients may not write while a server follows another.
            ask(&mut connection, &["SITE", "WRITER"])?;
            return Ok(connection);
        }
        let mut last = None;
        for server in self.servers() {
            match self.login.connect(&server, PATIENCE) {
                Ok(connection) => return Ok(connection),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| anyhow!("no server was named")))
    }

    /// Connects to this one of them.
    ///
    /// # Errors
    /// Why it does not answer.
    pub fn connect_to(&self, server: &str) -> Result<Connection> {
        self.login.connect(server, PATIENCE)
    }

    /// What another server shows to be let in: a user, if it is not the default one, and a password.
    pub fn secret(&self) -> Option<(Option<&str>, &str)> {
        self.login.secret()
    }
}

/// Requests of the source that are carried out together.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub requests: Vec<Request>,
    pub byte_count: usize,
}

impl Batch {
    pub fn push(&mut self, request: Request) {
        self.byte_count += request.iter().map(|word| word.len() + 16).sum::<usize>();
        self.requests.push(request);
    }
}

/// What became of a batch.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// It was carried out, and what was answered is lost.
    Unheard,
    /// One of its requests was refused, for good.
    Refused {
        /// Which, and the reply.
        why: String,
        /// All others were carried out, and the record says so; otherwise none.
        is_carried_out: bool,
    },
    /// The record is gone or names another writer.
    TakenOver,
    /// The target has lost what it had taken last: the record is what it was before that.
    WentBack,
}

/// The record is gone or names another writer: nothing was changed.
#[derive(Debug)]
pub struct TakenOver;

impl fmt::Display for TakenOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the migration was cut over or stopped, or another process continues it")
    }
}

impl std::error::Error for TakenOver {}

/// True if that is why something has failed.
pub fn is_taken_over(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<TakenOver>())
}

/// A target to which one process writes.
pub struct Target<'a> {
    arguments: &'a TargetArguments,
    connection: Option<Connection>,
    /// As it was written last.
    pub record: Record,
}

/// Number of the database that a SELECT names.
pub fn database_of(request: &Request) -> Option<u64> {
    std::str::from_utf8(request.get(1)?).ok()?.parse().ok()
}

/// Watches the record and reads it.
fn watch_record(connection: &mut Connection) -> Result<Option<Record>> {
    let mut bytes = Vec::new();
    encode_request(&mut bytes, &["SELECT", "0"]);
    encode_request(&mut bytes, &["WATCH", RECORD]);
    encode_request(&mut bytes, &["HGETALL", RECORD]);
    connection.send(&bytes).context("the target has hung up")?;
    let mut replies = Vec::new();
    for _ in 0..3 {
        replies.push(connection.receive().context("the target has hung up, or does not answer")?);
    }
    if let Some(Frame::Error(text)) = replies.iter().find(|reply| reply.is_error()) {
        let shown = format!("{RECORD} cannot be read: {}", String::from_utf8_lossy(text));
        return Err(Refused::new(shown, text).into());
    }
    Record::read(&replies[2])
}

/// Reads the record.
///
/// # Errors
/// If the target is not there, or there is another thing under the key.
pub fn read_record(connection: &mut Connection) -> Result<Option<Record>> {
    ask(connection, &["SELECT", "0"])?;
    Record::read(&ask(connection, &["HGETALL", RECORD])?)
}

/// Does something until it succeeds, with a new connection after each failure that may pass.
///
/// # Errors
/// The last failure, when the time is over, or one that does not pass.
pub fn insist<T>(
    arguments: &TargetArguments,
    kept: &mut Option<Connection>,
    mut act: impl FnMut(&mut Connection) -> Result<T>,
) -> Result<T> {
    let begun = Instant::now();
    let mut told = false;
    loop {
        let attempt = match kept.take() {
            Some(connection) => Ok(connection),
            None => arguments.connect(),
        };
        let outcome = attempt.and_then(|mut connection| {
            let value = act(&mut connection)?;
            *kept = Some(connection);
            Ok(value)
        });
        match outcome {
            Ok(value) => {
                if told {
                    arguments.note_refusal(String::new());
                }
                return Ok(value);
            }
            Err(error) if begun.elapsed() < INSISTENCE && passes(&error) && !is_over(&arguments.over) => {
                if !told && begun.elapsed() > Duration::from_secs(2) {
                    told = true;
                    match &arguments.inside {
                        Some(inside) => inside.warning(&format!("this server does not take what it copies: {error:#}")),
                        None => note_line!("the target refuses for now, and is asked again: {error:#}"),
                    }
                }
                if told {
                    arguments.note_refusal(format!("{error:#}"));
                }
                thread::sleep(RETRY_INTERVAL);
            }
            Err(error) => {
                if told {
                    arguments.note_refusal(String::new());
                }
                return Err(error);
            }
        }
    }
}

/// A failure of a connection may pass, and some refusals.
pub fn passes(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<std::io::Error>() || cause.downcast_ref::<Refused>().is_some_and(is_passing))
}

fn is_passing(refused: &Refused) -> bool {
    PASSING.iter().any(|word| refused.code() == word.as_bytes())
}

impl<'a> Target<'a> {
    /// Takes the migration over: from here on this process writes, and any other finds out. `found` is true if there
    /// was a record.
    ///
    /// # Errors
    /// If the target is not there or refuses, or the migration has been ended or begun meanwhile: [`TakenOver`].
    pub fn take(arguments: &'a TargetArguments, found: bool, record: Record) -> Result<Self> {
        let mut this = Self { arguments, connection: None, record };
        let writer = this.record.writer.clone();
        let is_so = |there: Option<&Record>| there.is_some() == found || there.is_some_and(|it| it.writer == writer);
        this.change(is_so, &[])?;
        Ok(this)
    }

    /// The same target over another connection.
    pub fn again(&self) -> Self {
        Self { arguments: self.arguments, connection: None, record: self.record.clone() }
    }

    /// Makes the record what it is here, behind these requests, all of it or nothing, if the record that is there is as
    /// it should be.
    fn change(&mut self, is_so: impl Fn(Option<&Record>) -> bool, requests: &[&[&str]]) -> Result<()> {
        let words = self.record.words();
        insist(self.arguments, &mut self.connection, |connection| {
            if !is_so(watch_record(connection)?.as_ref()) {
                return Err(TakenOver.into());
            }
            ask(connection, &["MULTI"])?;
            for request in requests {
                ask(connection, request)?;
            }
            ask(connection, &words)?;
            let reply = ask(connection, &["EXEC"])?;
            if reply == Frame::Null {
                return Err(Refused::new("the record has changed meanwhile".to_owned(), b"TRYAGAIN").into());
            }
            match reply.elements().unwrap_or_default().iter().find(|reply| reply.is_error()) {
                Some(Frame::Error(text)) => {
                    let shown = format!("the target refuses: {}", String::from_utf8_lossy(text));
                    Err(Refused::new(shown, text).into())
                }
                _ => Ok(()),
            }
        })
    }

    /// Writes the record as it is.
    ///
    /// # Errors
    /// If the target is not there or refuses, or [`TakenOver`].
    pub fn write(&mut self) -> Result<()> {
        let writer = self.record.writer.clone();
        self.change(|there| there.is_some_and(|there| there.writer == writer), &[])
    }

    /// Who goes on need not know of replies that were lost: all have been read. If it cannot be said, nobody minds.
    pub fn say_that_all_was_heard(&mut self) {
        if self.record.phase == Phase::Following {
            let _ = self.write();
        }
    }

    /// Empties the target, of which all belongs to the migration.
    ///
    /// # Errors
    /// As for [`Target::write`].
    pub fn empty(&mut self) -> Result<()> {
        let writer = self.record.writer.clone();
        // The record never goes: after a crash it says what this target is for.
        let requests: [&[&str]; 2] = [&["SELECT", "0"], &["FLUSHALL"]];
        self.change(|there| there.is_some_and(|there| there.writer == writer), &requests)
            .context("the target cannot be emptied")?;
        insist(self.arguments, &mut self.connection, |connection| ask(connection, &["FUNCTION", "FLUSH"]).map(|_| ()))
    }

    /// Keys of a slot that the target holds.
    ///
    /// # Errors
    /// As for [`Target::write`].
    pub fn keys_of_slot(&mut self, slot: u16) -> Result<Vec<Vec<u8>>> {
        insist(self.arguments, &mut self.connection, |connection| {
            ask(connection, &["SELECT", "0"])?;
            let mut keys = Vec::new();
            // SCAN goes from slot to slot.
            let mut cursor = keyspace::cursor_at_slot(slot.into());
            loop {
                let reply = ask(connection, &["SCAN", &cursor.to_string(), "COUNT", "1000"])?;
                let Some([next, some]) = reply.elements() else { bail!("SCAN is answered with {reply}") };
                let some = some.elements().unwrap_or_default().iter().filter_map(Frame::as_bytes);
                let is_meant = |key: &&[u8]| slot_of(key).0 == slot && *key != RECORD.as_bytes();
                keys.extend(some.filter(is_meant).map(<[u8]>::to_vec));
                cursor = next.as_bytes().and_then(|next| std::str::from_utf8(next).ok()?.parse().ok()).unwrap_or(0);
                if cursor == 0 || keyspace::slot_of_cursor(cursor).0 != slot {
                    return Ok(keys);
                }
            }
        })
    }

    /// A connection of its own, for the copy.
    ///
    /// # Errors
    /// If the target is not there.
    pub fn connect(&self) -> Result<Connection> {
        self.arguments.connect()
    }

    /// Carries a batch out and makes the record `next`, both or neither.
    ///
    /// # Errors
    /// If the target is away for longer than [`INSISTENCE`].
    pub fn commit(&mut self, batch: &Batch, mut next: Record) -> Result<Outcome> {
        let before = self.record.clone();
        // Those to what came before have been read.
        next.heard = if batch.requests.is_empty() { next.offset } else { before.offset };
        let mut bytes = Vec::with_capacity(batch.byte_count + 1_024);
        encode_request(&mut bytes, &["MULTI"]);
        // What each of the requests between MULTI and EXEC is about.
        let mut about: Vec<String> = Vec::new();
        let mut put = |bytes: &mut Vec<u8>, words: &[Vec<u8>]| {
            encode_request(bytes, words);
            about.push(named(words).chars().take(120).collect());
        };
        let select = |database: u64| vec![b"SELECT".to_vec(), database.to_string().into_bytes()];
        let mut database = before.database;
        if !batch.requests.is_empty() {
            put(&mut bytes, &select(database));
        }
        for request in &batch.requests {
            if is(request, "SELECT") {
                database = database_of(request).unwrap_or(database);
            }
            // The record must stay in its database; it is written again at the end.
            if is(request, "SWAPDB") {
                put(&mut bytes, &select(0));
                put(&mut bytes, &[b"DEL".to_vec(), RECORD.into()]);
                put(&mut bytes, &select(database));
            }
            put(&mut bytes, request);
        }
        put(&mut bytes, &select(0));
        put(&mut bytes, &next.words());
        encode_request(&mut bytes, &["EXEC"]);

        let mut may_have_been_sent = false;
        let mut gone_back = None;
        let outcome = insist(self.arguments, &mut self.connection, |connection| {
            match watch_record(connection)? {
                Some(there) if there.is_place_of(&before) => {}
                // The reply to an earlier attempt was lost.
                Some(there) if may_have_been_sent && there == next => return Ok(Outcome::Unheard),
                // Nobody else writes under this name.
                Some(there) if there.writer == before.writer => {
                    gone_back = Some(there);
                    return Ok(Outcome::WentBack);
                }
                _ => return Ok(Outcome::TakenOver),
            }
            let was_sent_before = std::mem::replace(&mut may_have_been_sent, true);
            connection.send(&bytes).context("the target has hung up")?;
            let mut refused = None;
            for number in 0..=about.len() {
                let reply = connection.receive().context("the target has hung up, or does not answer")?;
                if reply.is_error() && refused.is_none() {
                    refused = Some((number.saturating_sub(1), reply));
                }
            }
            let reply = connection.receive().context("the target has hung up, or does not answer")?;
            match (&reply, refused) {
                // A request was not even taken up: nothing was carried out.
                (Frame::Error(_), Some((at, why))) => {
                    let shown = format!("{}: {why}", about[at]);
                    let refused = Refused::new(shown, why.as_bytes().unwrap_or_default());
                    if is_passing(&refused) {
                        return Err(refused.into());
                    }
                    Ok(Outcome::Refused { why: refused.to_string(), is_carried_out: false })
                }
                (Frame::Error(text), None) => {
                    let shown = format!("EXEC is refused: {}", String::from_utf8_lossy(text));
                    Err(Refused::new(shown, text).into())
                }
                // The earlier attempt may have come through just now: the record tells.
                (Frame::Null, _) if was_sent_before => {
                    Err(Refused::new("the record has changed meanwhile".to_owned(), b"TRYAGAIN").into())
                }
                (Frame::Null, _) => Ok(Outcome::TakenOver),
                (reply, _) => {
                    let replies = reply.elements().unwrap_or_default();
                    Ok(match replies.iter().position(Frame::is_error) {
                        None => Outcome::Done,
                        Some(at) => {
                            let why = format!("{}: {}", about[at.min(about.len() - 1)], replies[at]);
                            Outcome::Refused { why, is_carried_out: true }
                        }
                    })
                }
            }
        })?;
        match &outcome {
            Outcome::Done | Outcome::Refused { is_carried_out: true, .. } => {
                self.record = Record { heard: next.offset, ..next };
            }
            Outcome::Unheard => {
                self.record = next;
                if batch.requests.is_empty() {
                    return Ok(Outcome::Done);
                }
            }
            Outcome::WentBack => self.record = gone_back.unwrap_or(before),
            Outcome::Refused { .. } | Outcome::TakenOver => {}
        }
        Ok(outcome)
    }

    /// Notes that the migration cannot go on behind what the target has.
    ///
    /// # Errors
    /// As for [`Target::write`].
    pub fn fail(&mut self, why: &str) -> Result<()> {
        self.record.phase = Phase::Failed;
        self.record.error = why.to_owned();
        self.write()
    }
}

/// True if a request begins with this word.
pub fn is(request: &Request, name: &str) -> bool {
    request.first().is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()))
}

/// Names of all commands that a server knows, in lower case.
///
/// # Errors
/// If it does not tell.
pub fn commands_of(connection: &mut Connection) -> Result<BTreeSet<Vec<u8>>> {
    let reply = ask(connection, &["COMMAND"])?;
    let names = reply.elements().unwrap_or_default().iter().filter_map(|command| {
        let name = command.elements()?.first()?.as_bytes()?;
        Some(name.to_ascii_lowercase())
    });
    Ok(names.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let place = Place {
            node: "n".to_owned(),
            place: "redis:7000".to_owned(),
            offset: 5,
            received: 6,
            slots: "0-9,11".to_owned(),
            ..Place::default()
        };
        let record = Record {
            from: "redis:6379".to_owned(),
            phase: Phase::Following,
            writer: "w".to_owned(),
            id: "abc".to_owned(),
            offset: 7,
            database: 3,
            received: 9,
            lag_ms: 1,
            written_ms: 12,
            error: String::new(),
            fault: "f".to_owned(),
            heard: 6,
            unheard: "1-2".to_owned(),
            streams: BTreeMap::from([(0, Some(place)), (1, None)]),
            unsettled: "5-7".to_owned(),
            filter: Filter::read("match a*").expect("a filter"),
        };
        let words = record.words().into_iter().skip(2).map(Frame::Bulk).collect();
        assert_eq!(Record::read(&Frame::Array(words)).expect("sound"), Some(record));
        assert_eq!(Record::read(&Frame::Array(Vec::new())).expect("nothing"), None);
        let foreign = Frame::Array(vec![Frame::Bulk(b"a".to_vec()), Frame::Bulk(b"1".to_vec())]);
        assert!(Record::read(&foreign).is_err());
    }

    #[test]
    fn what_may_pass_is_told_from_what_does_not() {
        let refused = |reply: &str| {
            let refused = Refused::new(format!("SET OOM is refused: {reply}"), reply.as_bytes());
            anyhow::Error::from(refused).context("the copy cannot be loaded")
        };
        assert!(passes(&refused("CLUSTERDOWN The cluster is down")) && passes(&refused("BUSY a script runs")));
        assert!(passes(&refused("EXECABORT Transaction discarded because of: BUSY a script runs")));
        for reply in ["ERR TRYAGAIN is no number", "BUSYKEY Target key name already exists", "WRONGTYPE OOM", ""] {
            assert!(!passes(&refused(reply)), "{reply}");
        }
        assert!(passes(&anyhow::Error::from(std::io::Error::other("reset")).context("the target has hung up")));
        assert!(!passes(&anyhow!("no server was named READONLY")));
    }
}
