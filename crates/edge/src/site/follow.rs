//! Follows another cluster: one thread, that carries out here what has been done there.
//!
//! It is a client of the near cluster, and a client of its own. How far it is stands in a hash,
//! `{holdfast}:site` in database 0, which each transaction changes together with the data: after any failure of either
//! side it says exactly where to go on. It also names the node that writes. Each transaction watches it, so that of
//! several nodes of this cluster one follows, and another takes over when that one is silent.

mod line;
mod record;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use node::event::SiteFollowing;
use node::settings::Settings;
use resp::{Frame as Reply, FrameDecoder, encode_request};
use site::{Batch, Frame, Heard, OtherGroups, State};
use stdx::{Level, UnixMillis};

use crate::clock;
use crate::fault::Fault;
use crate::host::Host;
use crate::host_session::HostSession;
use crate::limits::{
    SITE_CHAIN_PATIENCE, SITE_COPY_PATIENCE, SITE_PAUSE_MAX, SITE_PAUSE_MIN, SITE_RECORD_INTERVAL, SITE_WRITER_SILENCE,
};
use crate::run;
use crate::tls::{ClientOptions, ClientSecurity};
use line::{Address, Line, Wanted};
use record::{CopyPlace, ORIGIN, RECORD, Record};

/// Requests of a copy that are under way at a time.
const COPY_REQUESTS: usize = 500;
const COPY_BYTES: usize = 4 << 20;

/// Keys that are looked at at a time for deadlines that have passed.
const SWEEP_KEYS: &[u8] = b"200";

/// How long a batch is tried again where a cluster has no leader for a moment.
const COMMIT_PATIENCE: Duration = Duration::from_secs(60);

/// Refusals that pass.
const PASSING: [&str; 8] =
    ["CLUSTERDOWN", "TRYAGAIN", "LOADING", "MASTERDOWN", "NOREPLICAS", "MISCONF", "OOM", "BUSY "];

/// Starts to follow, if the settings name a site.
///
/// # Errors
/// If an address or a certificate is of no use.
pub(crate) fn start(host: &Arc<Host>, settings: &Settings) -> Result<(), Fault> {
    let text = settings.get("follow");
    if text.is_empty() {
        return Ok(());
    }
    let unfit = |cause: String| Fault::Setting { name: "follow", cause };
    let addresses = text.split([',', ' ']).filter(|address| !address.is_empty());
    let addresses = addresses.map(Address::parse).collect::<Result<Vec<_>, _>>().map_err(unfit)?;
    let security = if addresses.iter().any(|address| address.is_secure) {
        let path = |name: &str| Some(settings.get(name)).filter(|path| !path.is_empty()).map(PathBuf::from);
        let options = ClientOptions {
            authorities: path("tls-ca-cert-file"),
            authorities_directory: path("tls-ca-cert-dir"),
            own: path("tls-cert-file").zip(path("tls-key-file")),
            is_insecure: false,
        };
        Some(ClientSecurity::new(&options).map_err(unfit)?)
    } else {
        None
    };
    let secret = Some(settings.get("masterauth")).filter(|password| !password.is_empty());
    let login = secret.map(|password| match settings.get("masteruser") {
        "" => vec!["AUTH".to_owned(), password.to_owned()],
        user => vec!["AUTH".to_owned(), user.to_owned(), password.to_owned()],
    });
    let writer = crate::entropy::random_hex::<8>().map_err(run::system("read random numbers"))?;
    let following = Following {
        host: Arc::clone(host),
        addresses,
        security,
        login,
        writer,
        figures: SiteFollowing { state: "connecting", ..SiteFollowing::default() },
        heard: Instant::now(),
        gone: BTreeSet::new(),
        closed: BTreeSet::new(),
        copied: Some(Instant::now()),
        drain: (Instant::now(), 0),
    };
    run::start("follow", move || following.run())?;
    Ok(())
}

/// Why it does not go on for now.
enum End {
    /// The process ends, or this cluster follows no more.
    Over,
    /// Another node of this cluster follows.
    StandBy,
    /// The line, or the near side.
    Cut(String),
    /// What is lacking is not there any more.
    Gone(String),
    /// It is the cluster that the near one has followed, and this cluster is so far in what it has done.
    Origin(Box<Record>),
    /// This cluster cannot take it now.
    Here(String),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Cut(crate::tls::in_words(error).to_string())
    }
}

struct Following {
    host: Arc<Host>,
    addresses: Vec<Address>,
    security: Option<ClientSecurity>,
    login: Option<Vec<String>>,
    /// Names this process.
    writer: String,
    figures: SiteFollowing,
    /// When the near site was heard last, or this began.
    heard: Instant,
    /// Addresses at which what is lacking is not there any more.
    gone: BTreeSet<usize>,
    /// What has been changed so that clients do not write, as long as no record says that this cluster follows.
    closed: BTreeSet<&'static str>,
    /// When something of a copy has come last, or this began.
    copied: Option<Instant>,
    /// When, and how many bytes were lacking then: how fast it catches up.
    drain: (Instant, u64),
}

impl Following {
    fn run(mut self) {
        let (mut pause, mut turn) = (SITE_PAUSE_MIN, 0);
        let mut told = String::new();
        while !self.is_over() {
            let before = self.figures.request_count;
            let end = self.attempt(turn % self.addresses.len());
            if self.figures.request_count != before {
                pause = SITE_PAUSE_MIN;
            }
            let log = &self.host.log;
            let why = match end {
                Err(End::Over) | Ok(()) => break,
                Err(End::StandBy) => {
                    self.set_state("standing-by");
                    thread::sleep(SITE_RECORD_INTERVAL);
                    continue;
                }
                Err(End::Here(why)) => {
                    self.figures.last_cut.clone_from(&why);
                    why
                }
                Err(End::Origin(_)) => unreachable!("an attempt goes on with it"),
                Err(End::Cut(why)) => {
                    self.figures.cut_count += 1;
                    self.figures.last_cut.clone_from(&why);
                    turn += 1;
                    format!("the connection to the followed site {} is lost: {why}", self.figures.address)
                }
                Err(End::Gone(why)) => {
                    self.gone.insert(turn % self.addresses.len());
                    turn += 1;
                    let what = format!("{} cannot go on from here: {why}", self.figures.address);
                    if self.gone.len() == self.addresses.len() { format!("{what}; a copy is taken") } else { what }
                }
            };
            if told != why {
                log.warning(&why);
                told = why;
            }
            self.set_state("connecting");
            thread::sleep(pause);
            pause = (pause * 2).min(SITE_PAUSE_MAX);
        }
    }

    fn is_over(&self) -> bool {
        self.host.has_stopped_accepting()
    }

    fn set_state(&mut self, state: &'static str) {
        self.figures.state = state;
        self.publish();
    }

    fn publish(&self) {
        self.host.site.tell_following(&self.figures, self.heard);
    }

    /// Follows over one line, until it is cut.
    fn attempt(&mut self, number: usize) -> Result<(), End> {
        let mut own = Own::open(&self.host)?;
        let found = own.record()?;
        let now = clock::now().unix.0;
        if let Some(record) = &found {
            self.closed.clear();
            if record.phase == "promoted" {
                own.open_for_writes()?;
                self.set_state("promoted");
                self.host.log.notice("this cluster was promoted: it follows no other one");
                return Err(End::Over);
            }
            let is_silent = now - record.written_ms > SITE_WRITER_SILENCE.as_millis() as i64;
            if record.writer != self.writer && !is_silent {
                return Err(End::StandBy);
            }
        } else {
            // What can be refused now is refused before any client notices.
            if let Err(why) = own.must_be_empty() {
                return Err(self.open_again(&mut own, why));
            }
        }
        own.close_for_writes(&mut self.closed)?;
        if found.is_none() {
            self.look_behind_closed_doors(&mut own)?;
        }
        let begun = found.as_ref().and_then(|record| Some((record.copy.clone()?, &record.address)));
        let is_soon = self.copied.is_some_and(|since| since.elapsed() < SITE_COPY_PATIENCE);
        // Another node has no such copy.
        let same = begun
            .as_ref()
            .filter(|_| is_soon)
            .and_then(|(_, asked)| self.addresses.iter().position(|address| address.place == **asked));
        let number = same.unwrap_or(number);
        let copy = begun.map(|(copy, _)| (copy.id, copy.offset));
        let address = self.addresses[number].clone();
        self.figures.address.clone_from(&address.place);
        let record = Record {
            phase: found.as_ref().map_or_else(|| "copying".to_owned(), |record| record.phase.clone()),
            writer: self.writer.clone(),
            written_ms: now,
            is_linked: false,
            address: address.place.clone(),
            ..found.clone().unwrap_or_default()
        };
        own.take_over(found.as_ref(), &record)?;
        self.closed.clear();
        if record.heard_ms > 0 {
            // Another process, or this one before the line was cut.
            let silence = Duration::from_millis((now - record.heard_ms).max(0).cast_unsigned());
            self.heard = Instant::now().checked_sub(silence).unwrap_or(self.heard);
        }
        self.figures.moment_ms = record.moment_ms;
        let needs_copy = record.phase != "following" || self.gone.len() == self.addresses.len();
        let wanted = if needs_copy { Wanted::Copy(copy) } else { Wanted::Behind(record.place()) };
        let line = Line::open(&address, self.security.as_ref(), self.login.as_deref(), &wanted)?;
        let sweep = Some(Sweep { database: 0, cursor: b"0".to_vec() });
        let mut link = Link {
            following: self,
            own,
            record,
            line,
            written: Instant::now(),
            sweep,
            goes_on: !needs_copy,
            origin: None,
            level: None,
        };
        match link.run(number) {
            Err(End::Origin(origin)) => {
                let Following { security, login, .. } = &*link.following;
                let wanted = Wanted::Behind(origin.place());
                link.line = Line::open(&address, security.as_ref(), login.as_deref(), &wanted)?;
                link.origin = Some(*origin);
                link.run(number)
            }
            outcome => outcome,
        }
    }
}

impl Following {
    /// Clients may not write any more: from now on what is here stays as it is. If one has written in between, or that
    /// cannot be found out, this cluster is opened again.
    fn look_behind_closed_doors(&mut self, own: &mut Own) -> Result<(), End> {
        // Other nodes hear of it by the log.
        thread::sleep(SITE_PAUSE_MIN);
        // A change of everything, which changes nothing: what was let in before is done when it is.
        let looked = own.ask(&["SWAPDB", "0", "0"]).and_then(|_| own.must_be_empty());
        looked.map_err(|why| self.open_again(own, why))
    }

    /// This cluster does not begin to follow, at least not now, and why: clients may write again. What cannot be opened
    /// now is opened by the next attempt that finds out so much.
    fn open_again(&mut self, own: &mut Own, why: End) -> End {
        if self.closed.is_empty() {
            return why;
        }
        let mut open = || -> Result<bool, End> {
            if own.record()?.is_some() {
                return Ok(false);
            }
            for name in &self.closed {
                own.ask(&["CONFIG", "SET", name, "no"])?;
            }
            Ok(true)
        };
        match open() {
            // Another node has begun to follow, and these are the keys that it copies.
            Ok(false) => {
                self.closed.clear();
                End::StandBy
            }
            Ok(true) => {
                self.closed.clear();
                let log = &self.host.log;
                log.notice("this cluster has not begun to follow, and takes writes again");
                why
            }
            Err(_) => why,
        }
    }
}

/// This cluster, as a client of its own.
struct Own {
    connection: HostSession,
}

impl Own {
    fn open(host: &Host) -> Result<Self, End> {
        let connection = HostSession::open(host).map_err(|error| End::Here(error.to_string()))?;
        let mut own = Self { connection };
        own.ask(&["SITE", "WRITER"])?;
        Ok(own)
    }

    fn ask<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Result<Reply, End> {
        match self.connection.call(words) {
            Ok(Reply::Error(text)) => Err(End::Here(format!(
                "this cluster does not take what it follows: {}",
                String::from_utf8_lossy(&text)
            ))),
            Ok(reply) => Ok(reply),
            Err(error) => Err(End::Here(format!("this node does not answer itself: {error}"))),
        }
    }

    fn record(&mut self) -> Result<Option<Record>, End> {
        self.ask(&["SELECT", "0"])?;
        Ok(Record::read(&self.ask(&["HGETALL", RECORD])?))
    }

    /// The record of the near cluster, if that follows another one.
    fn origin(&mut self) -> Result<Option<Record>, End> {
        self.ask(&["SELECT", "0"])?;
        // A client of the near cluster may have put something else there: that says nothing.
        match self.ask(&["TYPE", ORIGIN])? {
            Reply::Simple(kind) if kind == b"hash" => Ok(Record::read(&self.ask(&["HGETALL", ORIGIN])?)),
            _ => Ok(None),
        }
    }

    /// A cluster that has data of its own is not emptied by mistake. All groups are asked: INFO tells of those
    /// that this node holds.
    fn must_be_empty(&mut self) -> Result<(), End> {
        let told = self.ask(&["CONFIG", "GET", "databases"])?;
        let count = told.elements().and_then(|words| words.get(1)?.as_bytes()).map(String::from_utf8_lossy);
        let count: Option<u32> = count.and_then(|count| count.parse().ok());
        let count = count.ok_or_else(|| End::Here("this node does not say how many databases it has".to_owned()))?;
        for database in 0..count {
            self.ask(&["SELECT", &database.to_string()])?;
            if !matches!(self.ask(&["DBSIZE"])?, Reply::Integer(0)) {
                return Err(End::Here("only an empty cluster can begin to follow, and this one has keys".to_owned()));
            }
        }
        self.ask(&["SELECT", "0"])?;
        if self.ask(&["FUNCTION", "LIST"])?.elements().is_none_or(|libraries| !libraries.is_empty()) {
            let why = "only an empty cluster can begin to follow, and this one has functions";
            return Err(End::Here(why.to_owned()));
        }
        Ok(())
    }

    /// From now on clients only read, and nothing expires by our clock. Notes what has to be changed for that.
    fn close_for_writes(&mut self, closed: &mut BTreeSet<&'static str>) -> Result<(), End> {
        if !self.is_configured("import-mode", "yes")? {
            closed.insert("import-mode");
            self.ask(&["CONFIG", "SET", "import-mode", "yes"])?;
        }
        // That this node was started so says nothing of the others.
        closed.insert("site-read-only");
        self.ask(&["CONFIG", "SET", "site-read-only", "yes"])?;
        Ok(())
    }

    fn open_for_writes(&mut self) -> Result<(), End> {
        self.configure("site-read-only", "no")?;
        self.configure("import-mode", "no")?;
        Ok(())
    }

    /// The level of this cluster, once all groups of this node are at it.
    fn level(&mut self) -> Result<Option<Level>, End> {
        let reply = self.ask(&["INFO", "cluster"])?;
        let text = String::from_utf8_lossy(reply.as_bytes().unwrap_or_default()).into_owned();
        let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u8>().ok());
        let is_everywhere = number("cluster_groups_below_level:").unwrap_or(0) == 0;
        Ok(number("cluster_level:").filter(|_| is_everywhere).map(Level))
    }

    fn is_configured(&mut self, name: &str, value: &str) -> Result<bool, End> {
        let is = self.ask(&["CONFIG", "GET", name])?;
        Ok(is.elements().and_then(|words| words.get(1)).and_then(Reply::as_bytes) == Some(value.as_bytes()))
    }

    fn configure(&mut self, name: &str, value: &str) -> Result<(), End> {
        if !self.is_configured(name, value)? {
            self.ask(&["CONFIG", "SET", name, value])?;
        }
        Ok(())
    }

    /// Becomes the one who writes, unless somebody else has become so.
    fn take_over(&mut self, found: Option<&Record>, record: &Record) -> Result<(), End> {
        self.ask(&["WATCH", RECORD])?;
        if self.record()?.as_ref() != found {
            self.ask(&["UNWATCH"])?;
            return Err(End::StandBy);
        }
        self.ask(&["MULTI"])?;
        self.ask(&record.words())?;
        match self.ask(&["EXEC"])? {
            Reply::Null => Err(End::StandBy),
            _ => Ok(()),
        }
    }

    /// Empties this cluster, all of which comes from the near one.
    fn empty(&mut self, record: &Record) -> Result<(), End> {
        self.ask(&["FLUSHALL"])?;
        self.ask(&["FUNCTION", "FLUSH"])?;
        self.ask(&["SELECT", "0"])?;
        self.ask(&record.words())?;
        Ok(())
    }

    /// Makes the record `next`.
    fn note(&mut self, before: &Record, next: &Record) -> Result<(), End> {
        self.commit(before, &[], Source::Own, next)
    }

    /// Carries a batch out and makes the record `next`, both or neither.
    fn commit(&mut self, before: &Record, bytes: &[u8], source: Source, next: &Record) -> Result<(), End> {
        let mut transaction = Vec::new();
        encode_request(&mut transaction, &["MULTI"]);
        let mut count = 2;
        count += append_requests(&mut transaction, bytes, source)?;
        encode_request(&mut transaction, &["SELECT", "0"]);
        encode_request(&mut transaction, &next.words());
        encode_request(&mut transaction, &["EXEC"]);
        let begun = Instant::now();
        loop {
            match self.try_commit(before, (&transaction, count), next) {
                Err(End::Here(why))
                    if begun.elapsed() < COMMIT_PATIENCE && PASSING.iter().any(|word| why.contains(word)) =>
                {
                    thread::sleep(SITE_PAUSE_MIN);
                }
                outcome => return outcome,
            }
        }
    }

    fn try_commit(&mut self, before: &Record, (transaction, count): (&[u8], usize), next: &Record) -> Result<(), End> {
        self.ask(&["SELECT", "0"])?;
        self.ask(&["WATCH", RECORD])?;
        let there = self.record()?;
        // The reply to an attempt before may have been lost.
        if there.as_ref() == Some(next) {
            self.ask(&["UNWATCH"])?;
            return Ok(());
        }
        if there.as_ref() != Some(before) {
            self.ask(&["UNWATCH"])?;
            return Err(End::StandBy);
        }
        let broken = |error: io::Error| End::Here(format!("this node does not answer itself: {error}"));
        self.connection.send(transaction).map_err(broken)?;
        let mut refused = None;
        for _ in 0..=count {
            let reply = self.connection.receive().map_err(broken)?;
            if let Reply::Error(text) = reply {
                refused.get_or_insert_with(|| String::from_utf8_lossy(&text).into_owned());
            }
        }
        match self.connection.receive().map_err(broken)? {
            Reply::Error(text) => {
                let why = refused.unwrap_or_else(|| String::from_utf8_lossy(&text).into_owned());
                Err(End::Here(format!("this cluster does not take what it follows: {why}")))
            }
            Reply::Null => Err(End::Here("TRYAGAIN the record has changed meanwhile".to_owned())),
            reply => match reply.elements().unwrap_or_default().iter().find(|reply| reply.is_error()) {
                None => Ok(()),
                Some(error) => Err(End::Gone(format!("a change of the followed site is refused here: {error}"))),
            },
        }
    }
}

/// Who has made a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Own,
    Near,
}

/// Gives a request of the near side's records the keys that they have here; false if it is of no use here.
fn is_wanted(words: &mut [&[u8]], database: &[u8]) -> bool {
    if database != b"0" {
        return true;
    }
    match words.get_mut(1) {
        Some(key) if *key == RECORD.as_bytes() => *key = ORIGIN.as_bytes(),
        // That of one further up.
        Some(key) if *key == ORIGIN.as_bytes() => return false,
        _ => {}
    }
    true
}

/// Appends what a batch holds, and answers how many requests that is. The record stays in its database.
fn append_requests(out: &mut Vec<u8>, bytes: &[u8], source: Source) -> Result<usize, End> {
    let mut decoder = FrameDecoder::new();
    decoder.extend(bytes);
    let (mut count, mut database) = (0, b"0".to_vec());
    let malformed = || End::Cut("a batch cannot be read".to_owned());
    while let Some(frame) = decoder.next_frame().map_err(|_| malformed())? {
        let words = frame.elements().ok_or_else(malformed)?;
        let mut words = words.iter().map(Reply::as_bytes).collect::<Option<Vec<_>>>().ok_or_else(malformed)?;
        let is = |name: &str| words.first().is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()));
        if is("SELECT") {
            database = words.get(1).ok_or_else(malformed)?.to_vec();
        }
        if is("SWAPDB") {
            encode_request(out, &["SELECT", "0"]);
            encode_request(out, &["DEL", RECORD]);
            encode_request(out, &[b"SELECT".as_slice(), &database]);
            count += 3;
        }
        if source == Source::Near && !is_wanted(&mut words, &database) {
            continue;
        }
        encode_request(out, &words);
        count += 1;
    }
    Ok(count)
}

/// One line to the near side.
struct Link<'a> {
    following: &'a mut Following,
    own: Own,
    record: Record,
    line: Line,
    written: Instant,
    sweep: Option<Sweep>,
    /// It was asked for what comes behind a place.
    goes_on: bool,
    /// Where this cluster is in what the one at the other end has done, if it goes on from there for the first time.
    origin: Option<Record>,
    /// What comes is of this level at most, as far as it is told.
    level: Option<Level>,
}

/// Looks for expired keys, again and again. A near node tells what it sweeps away; but what it had swept away before it
/// was started again, or before it was followed, it does not tell again.
struct Sweep {
    database: u16,
    cursor: Vec<u8>,
}

impl Link<'_> {
    fn run(&mut self, number: usize) -> Result<(), End> {
        let outcome = self.hear_all(number);
        if !matches!(outcome, Err(End::StandBy)) {
            // An operator who wants to promote this cluster must know that the near side is not heard.
            let next = Record { is_linked: false, written_ms: clock::now().unix.0, ..self.record.clone() };
            let _ = self.own.note(&self.record.clone(), &next);
            self.record = next;
        }
        outcome
    }

    fn hear_all(&mut self, number: usize) -> Result<(), End> {
        let mut cluster = 0;
        loop {
            if self.following.is_over() {
                return Err(End::Over);
            }
            match self.line.read()? {
                Frame::Hello { cluster: whose, level } => {
                    cluster = whose;
                    self.reach_level(level)?;
                    self.meet(whose)?;
                }
                Frame::Copy { places, moment, bytes } => {
                    let behind = Record { cluster, places, moment_ms: moment.0, ..Record::default() };
                    self.take_copy(bytes, None, behind)?;
                }
                Frame::CopyFrom { id, offset, places, moment, bytes } => {
                    let behind = Record { cluster, places, moment_ms: moment.0, ..Record::default() };
                    self.take_copy(bytes, Some((id, offset)), behind)?;
                }
                Frame::Batch(batch) => {
                    self.following.gone.remove(&number);
                    self.settle_at_origin()?;
                    self.take(&batch)?;
                }
                Frame::State(state) => {
                    self.reach_level(state.level)?;
                    self.settle_at_origin()?;
                    self.hear_state(&state)?;
                }
                Frame::Refused { needs_copy: true, why } => return Err(End::Gone(why)),
                Frame::Refused { why, .. } => return Err(End::Cut(why)),
                Frame::Piece(_) => return Err(End::Cut("a piece of no copy has come".to_owned())),
            }
            self.sweep_some()?;
            self.following.heard = Instant::now();
            let figures = &mut self.following.figures;
            (figures.raw_bytes, figures.carried_bytes) = self.line.counts();
            self.following.publish();
        }
    }

    /// What comes from now on may be of this level. A cluster below it cannot carry that out: it waits until it is
    /// raised. One above it can: the near side sends values where the same words would do something else.
    fn reach_level(&mut self, level: Option<Level>) -> Result<(), End> {
        let Some(level) = level.filter(|level| self.level.is_none_or(|known| known < *level)) else { return Ok(()) };
        let known = self.following.host.floor.voice().levels;
        if level > known.highest {
            return Err(End::Here(format!(
                "the followed site is at level {level}, and this version of Holdfast knows {known}: nothing of that level \
                 has been taken; start a version that knows it on all nodes, and raise the level of this site"
            )));
        }
        match self.own.level()? {
            Some(own) if own >= level => {}
            own => {
                let own = own.map_or_else(|| "on its way there".to_owned(), |own| format!("at level {own}"));
                return Err(End::Here(format!(
                    "the followed site is at level {level}, and this one {own}: nothing of that level has been taken; raise \
                     the level of this site (holdfast cluster upgrade)"
                )));
            }
        }
        self.level = Some(level);
        Ok(())
    }

    /// The near side has said who it is. If it is the cluster that the near one has followed, this one can go on there
    /// without a copy; but a near one that comes back soon keeps what follows it.
    fn meet(&mut self, whose: u128) -> Result<(), End> {
        if !self.goes_on || self.origin.is_some() || whose == self.record.cluster {
            return Ok(());
        }
        let Some(origin) = self.own.origin()? else { return Ok(()) };
        if origin.cluster != whose || origin.phase != "following" {
            return Ok(());
        }
        let silence_ms = clock::now().unix.0 - self.record.heard_ms;
        if silence_ms < SITE_CHAIN_PATIENCE.as_millis() as i64 {
            let patience = SITE_CHAIN_PATIENCE.as_secs();
            return Err(End::Cut(format!("it is followed once the nearer site has been silent for {patience} s")));
        }
        Err(End::Origin(Box::new(origin)))
    }

    /// The cluster that the near one has followed goes on telling: from now on that is the near one.
    fn settle_at_origin(&mut self) -> Result<(), End> {
        let Some(origin) = self.origin.take() else { return Ok(()) };
        let now = clock::now().unix.0;
        let next = Record {
            cluster: origin.cluster,
            places: origin.places,
            moment_ms: origin.moment_ms,
            written_ms: now,
            heard_ms: now,
            ..self.record.clone()
        };
        let mut bytes = Vec::new();
        encode_request(&mut bytes, &["DEL", ORIGIN]);
        self.commit(&bytes, Source::Own, next)?;
        self.following.figures.moment_ms = self.record.moment_ms;
        let address = &self.following.figures.address;
        self.following
            .host
            .log
            .notice(&format!("continues with {address}, which the site before has followed, without a copy"));
        Ok(())
    }

    /// Takes a copy, or the rest of one, and stands `behind` it then.
    fn take_copy(&mut self, bytes: u64, place: Option<(u128, u64)>, behind: Record) -> Result<(), End> {
        self.following.set_state("copying");
        let (log, address) = (&self.following.host.log, &self.following.figures.address);
        let is_here = |known: &CopyPlace| {
            place.is_some_and(|(id, offset)| offset > 0 && (id, offset) == (known.id, known.offset))
        };
        let begun = match (self.record.copy.clone().filter(is_here), place) {
            (Some(known), _) => {
                log.notice(&format!(
                    "continues the copy of the followed site {address} at byte {} of {bytes}",
                    known.offset
                ));
                Some(known)
            }
            (None, Some((_, 1..))) => return Err(End::Cut("a copy goes on where this cluster is not".to_owned())),
            (None, _) => {
                log.notice(&format!("takes a copy of the followed site {address}: {bytes} bytes"));
                let now = clock::now().unix.0;
                let copy = place.map(|(id, _)| CopyPlace { id, offset: 0, database: 0 });
                let next = Record {
                    phase: "copying".to_owned(),
                    written_ms: now,
                    heard_ms: now,
                    is_linked: true,
                    copy: copy.clone(),
                    ..self.record.clone()
                };
                // A site that has been promoted meanwhile is not emptied.
                self.own.note(&self.record, &next)?;
                self.record = next;
                self.own.empty(&self.record.clone())?;
                copy
            }
        };
        // What is noted as here must be on disk.
        self.own.ask(&["CLIENT", "DURABILITY", "disk"])?;
        let mut loading = Loading::new(begun);
        let copied = self.copy(bytes, &mut loading);
        if let Err(End::Cut(_)) = copied
            && loading.place.is_some()
        {
            self.load(&mut loading)?;
            let next = Record { copy: loading.place, ..self.record.clone() };
            self.commit(&[], Source::Own, next)?;
        }
        copied?;
        self.own.ask(&["CLIENT", "DURABILITY", "server"])?;
        let now = clock::now().unix.0;
        let next = Record {
            phase: "following".to_owned(),
            cluster: behind.cluster,
            places: behind.places,
            moment_ms: behind.moment_ms,
            written_ms: now,
            heard_ms: now,
            copy: None,
            ..self.record.clone()
        };
        let moment = UnixMillis(next.moment_ms);
        self.commit(&[], Source::Own, next)?;
        self.following.figures.copy_count += 1;
        self.following.gone.clear();
        self.following.host.log.notice("the copy of the followed site is complete");
        self.line.acknowledge(moment)?;
        Ok(())
    }

    /// What is here shows the state of this moment, also where the near side follows another one and is behind.
    fn shown_ms(&mut self) -> Result<i64, End> {
        self.own.ask(&["SELECT", "0"])?;
        // One that was promoted follows nobody, and shows what it does itself.
        let follows = |origin: &Record| ["following", "copying"].contains(&origin.phase.as_str());
        let origin = self.own.origin()?.filter(follows).map_or(i64::MAX, |origin| origin.moment_ms);
        Ok(origin.min(self.record.moment_ms))
    }

    /// Removes some of the keys with deadlines that are not behind the moment that is shown: at the near side nobody
    /// sees them any more.
    fn sweep_some(&mut self) -> Result<(), End> {
        if self.record.phase != "following" {
            return Ok(());
        }
        let Some(Sweep { database, cursor }) = self.sweep.take() else { return Ok(()) };
        let shown_ms = self.shown_ms()?;
        if self.own.ask(&["SELECT", &database.to_string()]).is_err() {
            // It was the last: what has not come to its time yet is looked at again.
            self.sweep = Some(Sweep { database: 0, cursor: b"0".to_vec() });
            return Ok(());
        }
        let reply = self.own.ask(&[&b"SCAN"[..], &cursor, b"COUNT", SWEEP_KEYS])?;
        let Some([next, keys]) = reply.elements() else { return Ok(()) };
        let mut bytes = Vec::new();
        encode_request(&mut bytes, &["SELECT".to_owned(), database.to_string()]);
        let mut has_any = false;
        for key in keys.elements().unwrap_or_default().iter().filter_map(Reply::as_bytes) {
            let deadline = self.own.ask(&[b"PEXPIRETIME", key])?;
            if matches!(deadline, Reply::Integer(at) if at >= 0 && at < shown_ms) {
                encode_request(&mut bytes, &[b"DEL", key]);
                has_any = true;
            }
        }
        let next = next.as_bytes().unwrap_or(b"0").to_vec();
        let database = if next == b"0" { database + 1 } else { database };
        if has_any {
            let next = Record { written_ms: clock::now().unix.0, ..self.record.clone() };
            self.commit(&bytes, Source::Own, next)?;
        }
        self.sweep = Some(Sweep { database, cursor: next });
        Ok(())
    }

    fn commit(&mut self, bytes: &[u8], source: Source, next: Record) -> Result<(), End> {
        let outcome = self.own.commit(&self.record, bytes, source, &next);
        if let Err(End::Gone(_)) = &outcome {
            // It was carried out but for what was refused: only a copy puts that right.
            let copying = Record { phase: "copying".to_owned(), ..next.clone() };
            self.own.note(&next, &copying)?;
            self.record = copying;
        }
        outcome?;
        self.record = next;
        self.written = Instant::now();
        Ok(())
    }

    fn take(&mut self, batch: &Batch) -> Result<(), End> {
        let behind = self.record.position().behind(batch);
        let position = behind.map_err(|OtherGroups| End::Gone("it has other groups than before".to_owned()))?;
        let now = clock::now().unix.0;
        let next = Record {
            places: position.places,
            moment_ms: position.moment.0,
            request_count: self.record.request_count + batch.requests,
            transaction_count: self.record.transaction_count + batch.transactions,
            written_ms: now,
            heard_ms: now,
            is_linked: true,
            ..self.record.clone()
        };
        self.commit(&batch.bytes, Source::Near, next)?;
        let figures = &mut self.following.figures;
        figures.state = "following";
        figures.moment_ms = batch.moment.0;
        figures.request_count = self.record.request_count;
        self.line.acknowledge(batch.moment)?;
        Ok(())
    }

    fn hear_state(&mut self, state: &State) -> Result<(), End> {
        let State { now: near, pending_bytes, pending_steps, .. } = *state;
        let is_following = self.record.phase == "following";
        let Heard { is_level, position } = match is_following {
            true => self.record.position().hear(state),
            false => Heard { is_level: false, position: self.record.position() },
        };
        let figures = &mut self.following.figures;
        figures.state = if is_following { "following" } else { "copying" };
        figures.pending_bytes = pending_bytes;
        // Nothing is lacking, or what is shown is so old by the clock over there.
        figures.lag_ms = if is_level { 0 } else { (near.0 - self.record.moment_ms).max(0).cast_unsigned() };
        let (since, before) = self.following.drain;
        if is_level {
            figures.catch_up_ms = 0;
        } else if since.elapsed() >= SITE_RECORD_INTERVAL {
            let less = before.saturating_sub(pending_bytes);
            let took_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
            let left = pending_bytes.saturating_mul(took_ms).checked_div(less);
            figures.catch_up_ms = left.map_or(-1, |left| i64::try_from(left).unwrap_or(i64::MAX));
            self.following.drain = (Instant::now(), pending_bytes);
        }
        let is_further = position.places != self.record.places;
        if self.written.elapsed() >= SITE_RECORD_INTERVAL || !self.record.is_linked || is_further {
            let now = clock::now().unix.0;
            let lag_ms = self.following.figures.lag_ms;
            let next = Record {
                written_ms: now,
                heard_ms: now,
                is_linked: true,
                pending_bytes,
                pending_steps,
                lag_ms,
                places: position.places,
                moment_ms: position.moment.0,
                ..self.record.clone()
            };
            self.commit(&[], Source::Own, next)?;
            self.following.figures.moment_ms = self.record.moment_ms;
            self.line.acknowledge(UnixMillis(self.record.moment_ms))?;
        }
        Ok(())
    }

    /// Loads a copy of so many bytes, or what of it is not here yet.
    fn copy(&mut self, bytes: u64, loading: &mut Loading) -> Result<(), End> {
        let mut left = bytes.saturating_sub(loading.offset);
        let mut decoder = FrameDecoder::new();
        let mut noted = Instant::now();
        self.own.ask(&["SELECT", &loading.database.to_string()])?;
        loop {
            while let Some(frame) = decoder.next_frame().map_err(|_| End::Cut("the copy cannot be read".to_owned()))? {
                loading.append(&frame).ok_or_else(|| End::Cut("the copy cannot be read".to_owned()))?;
                if loading.count >= COPY_REQUESTS || loading.requests.len() >= COPY_BYTES {
                    self.load(loading)?;
                }
            }
            if left == 0 {
                return self.load(loading);
            }
            match self.line.read()? {
                Frame::Piece(piece) => {
                    left = left.saturating_sub(piece.len() as u64);
                    decoder.extend(&piece);
                }
                Frame::Refused { why, .. } => return Err(End::Cut(why)),
                _ => return Err(End::Cut("something else came in the middle of a copy".to_owned())),
            }
            self.following.heard = Instant::now();
            self.following.copied = Some(Instant::now());
            let figures = &mut self.following.figures;
            figures.pending_bytes = left;
            (figures.raw_bytes, figures.carried_bytes) = self.line.counts();
            self.following.publish();
            if noted.elapsed() >= SITE_RECORD_INTERVAL {
                noted = Instant::now();
                self.load(loading)?;
                let now = clock::now().unix.0;
                let next = Record {
                    written_ms: now,
                    heard_ms: now,
                    is_linked: true,
                    pending_bytes: left,
                    copy: loading.place.clone(),
                    ..self.record.clone()
                };
                // The copy selects databases as it goes.
                let mut other = Own::open(&self.following.host)?;
                other.note(&self.record, &next)?;
                self.record = next;
            }
        }
    }

    fn load(&mut self, loading: &mut Loading) -> Result<(), End> {
        let broken = |error: io::Error| End::Here(format!("this node does not answer itself: {error}"));
        self.own.connection.send(&loading.requests).map_err(broken)?;
        for _ in 0..loading.count {
            if let Reply::Error(text) = self.own.connection.receive().map_err(broken)? {
                return Err(End::Here(format!("the copy is refused here: {}", String::from_utf8_lossy(&text))));
            }
        }
        loading.become_loaded();
        Ok(())
    }
}

/// A copy that is being loaded.
struct Loading {
    /// Requests that were read and not carried out yet, and how many.
    requests: Vec<u8>,
    count: usize,
    /// So many bytes of the copy were read: whole requests.
    offset: u64,
    /// What comes there belongs to this database.
    database: u16,
    /// So much of it is here; none if it cannot be gone on with.
    place: Option<CopyPlace>,
}

impl Loading {
    fn new(place: Option<CopyPlace>) -> Self {
        let (offset, database) = place.as_ref().map_or((0, 0), |place| (place.offset, place.database));
        Self { requests: Vec::new(), count: 0, offset, database, place }
    }

    /// Takes a request; none if it is no request.
    fn append(&mut self, frame: &Reply) -> Option<()> {
        let mut words = frame.elements()?.iter().map(Reply::as_bytes).collect::<Option<Vec<_>>>()?;
        let begin = self.requests.len();
        encode_request(&mut self.requests, &words);
        self.offset += (self.requests.len() - begin) as u64;
        if let [b"SELECT", database] = words[..] {
            self.database = std::str::from_utf8(database).ok()?.parse().ok()?;
        }
        let key = words.get(1).copied();
        let is_wanted = is_wanted(&mut words, self.database.to_string().as_bytes());
        if !is_wanted || words.get(1).copied() != key {
            self.requests.truncate(begin);
        }
        if is_wanted && self.requests.len() == begin {
            encode_request(&mut self.requests, &words);
        }
        self.count += usize::from(is_wanted);
        Some(())
    }

    fn become_loaded(&mut self) {
        self.requests.clear();
        self.count = 0;
        if let Some(place) = &mut self.place {
            (place.offset, place.database) = (self.offset, self.database);
        }
    }
}
