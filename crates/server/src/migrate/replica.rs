//! REPLICAOF: a server that follows a Redis by itself.
//!
//! What `migrate start` does in a process of its own is done within the server here, with the server as the target.
//! Clients may read meanwhile, and not write.
//!
//! Two things are on disk. A file in the data directory says which Redis is followed; it is there before anything is
//! changed, and goes before clients may write again: a server that starts takes no writes while it is there. The record
//! of the migration, a key, says how far the copy and the stream are; it changes with the data.
//!
//! | file | record | what a server that starts does |
//! | --- | --- | --- |
//! | none | none, or any | nothing: a record is that of `migrate start`, or has come with a backup |
//! | there | none, and no keys | begins the copy |
//! | there | none, and keys | removes the file: a tool has ended it, or given a part of a copy up |
//! | there | loading | begins the copy again: what there is are parts of it |
//! | there | following | continues the stream |
//! | there | failed | says why it cannot |
//! | there, `partial` | loading, failed | nothing: it was told to follow none, and what there is is not whole |
//! | there, `partial` | none | nothing, until it is told once more to follow none: a tool had begun to end it |

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use edge::{ClientOptions, ClientSecurity, Inside};
use node::event::{ReplicateRequest, SourceFigures};
use resp::Frame;

use super::check::config;
use super::filter::Filter;
use super::follow::{Plan, Standing, Tone, writer_name};
use super::source::{Address, Line, ask, info_field};
use super::target::{Phase, Record, TargetArguments, passes, read_record};
use super::{cutover, is_over};
use crate::cluster::door::{ask_status, list, place_of};
use crate::connection::Connection;
use crate::import::ensure_empty;

/// A source that does not answer for so long is asked again.
const PATIENCE: Duration = Duration::from_secs(10);

/// Cores that have not turned for so long are not waited for.
const CORE_PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks at how it is going.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Before a source that was away, or refused, is asked again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Most bytes of what the source has sent and this server has not taken, on disk.
const SPOOL_BYTES_MAX: u64 = 8 << 30;

/// What the name of such a writer begins with, in the record.
const WRITER: &str = "replicaof-";

/// The file that says which Redis is followed.
const MARK: &str = ".replicaof";

/// Second word of its only line if no copy is taken any more.
const PARTIAL: &str = "partial";

/// Why a copy is not whole that is not taken any more.
const CAME_TOO_EARLY: &str = "REPLICAOF NO ONE came before the copy was whole";

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    host: String,
    port: u16,
    /// REPLICAOF NO ONE came before the copy was whole.
    is_partial: bool,
}

impl Mark {
    /// Reads the file; none if there is none.
    fn read(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join(MARK);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| format!("{}", path.display()))?,
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let mark = match words[..] {
            [host, port] => port.parse().ok().map(|port| Self { host: host.to_owned(), port, is_partial: false }),
            [host, port, PARTIAL] => {
                port.parse().ok().map(|port| Self { host: host.to_owned(), port, is_partial: true })
            }
            _ => None,
        };
        let damaged = || format!("{} does not say which Redis this server follows (HOST PORT)", path.display());
        mark.map(Some).with_context(damaged)
    }

    /// Makes the file say this; it is on disk then.
    fn write(&self, directory: &Path) -> Result<()> {
        let Self { host, port, is_partial } = self;
        let text = format!("{host} {port}{}\n", if *is_partial { format!(" {PARTIAL}") } else { String::new() });
        let (path, new) = (directory.join(MARK), directory.join(format!("{MARK}.new")));
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(directory)?.sync_all()
        };
        write().with_context(|| format!("{} cannot be written", path.display()))
    }

    /// Removes the file, for good.
    fn remove(directory: &Path) -> Result<()> {
        let path = directory.join(MARK);
        match fs::remove_file(&path) {
            // It may be gone and not be so on disk.
            Err(error) if error.kind() == ErrorKind::NotFound => File::open(directory).and_then(|it| it.sync_all()),
            removed => removed.and_then(|()| File::open(directory)?.sync_all()),
        }
        .with_context(|| format!("{} cannot be removed", path.display()))
    }

    fn place(&self) -> String {
        place_of(&self.host, self.port)
    }

    fn figures(&self) -> SourceFigures {
        let Self { host, port, is_partial } = self.clone();
        SourceFigures { host, port, is_partial, is_copying: true, ..SourceFigures::default() }
    }
}

/// The Redis that a server on this directory followed, and was not told to leave.
///
/// # Errors
/// If the file that says it cannot be read: whether clients may write is not known then.
pub fn source_of(directory: &Path) -> Result<Option<SourceFigures>> {
    Ok(Mark::read(directory)?.map(|mark| mark.figures()))
}

/// Follows as clients wish, until the process ends.
pub fn run(inside: Inside, directory: &Path, wishes: &Receiver<ReplicateRequest>) {
    let mark = Mark::read(directory).unwrap_or(None);
    let mut replica = Replica { inside, directory: directory.to_owned(), has_looked: false, following: None };
    replica.following = mark.map(Following::of);
    loop {
        // One that follows none has nothing to look at.
        let wish = match replica.following {
            Some(_) => wishes.recv_timeout(LOOK_INTERVAL),
            None => wishes.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match wish {
            Ok(wish) => {
                let answer = match &wish.source {
                    Some((host, port)) => replica.follow(host, *port),
                    None => replica.follow_none().map(|()| "OK"),
                };
                // Who has the answer finds INFO and ROLE saying the same.
                replica.show();
                let _ = replica.inside.is_source_heard_within(CORE_PATIENCE);
                replica.inside.answer(&wish, answer.map_err(|why| format!("ERR {why:#}")));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        replica.look();
        replica.show();
    }
}

struct Replica {
    inside: Inside,
    directory: PathBuf,
    /// It is known what an earlier process has left.
    has_looked: bool,
    following: Option<Following>,
}

/// A Redis that is followed, or was until something stopped it.
struct Following {
    mark: Mark,
    over: Arc<AtomicBool>,
    standing: Arc<Standing>,
    /// Why this server does not take what has come.
    refusal: Arc<Mutex<String>>,
    thread: Option<JoinHandle<Result<()>>>,
    /// Why it is followed no longer.
    fault: String,
    /// Bytes that have come, and when there was last one more.
    heard: (u64, Option<Instant>),
    /// Since when there is no link.
    down: Instant,
    /// As it was told last.
    told: Option<SourceFigures>,
}

impl Following {
    fn of(mark: Mark) -> Self {
        Self {
            mark,
            over: Arc::default(),
            standing: Arc::default(),
            refusal: Arc::default(),
            thread: None,
            fault: String::new(),
            heard: (0, None),
            down: Instant::now(),
            told: None,
        }
    }

    fn figures(&mut self) -> SourceFigures {
        let standing = &self.standing;
        let figures = Arc::clone(&standing.figures.lock().unwrap_or_else(PoisonError::into_inner));
        let is_linked = standing.is_linked.load(Ordering::Relaxed);
        let copied_bytes = figures.copied_bytes.load(Ordering::Relaxed);
        let count = copied_bytes + figures.received.load(Ordering::Relaxed);
        if self.heard.0 != count {
            self.heard = (count, Some(Instant::now()));
        }
        if is_linked {
            self.down = Instant::now();
        }
        let text = |of: &Mutex<String>| of.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let faults = [self.fault.clone(), text(&standing.fault), text(&self.refusal), figures.fault()];
        let fault = faults.into_iter().find(|fault| !fault.is_empty()).unwrap_or_default();
        SourceFigures {
            is_linked,
            is_copying: !standing.is_whole.load(Ordering::Relaxed),
            offset: standing.offset.load(Ordering::Relaxed),
            copy_bytes: figures.copy_bytes.load(Ordering::Relaxed),
            copied_bytes,
            silent_s: self.heard.1.map(|heard| heard.elapsed().as_secs()),
            down_s: self.down.elapsed().as_secs(),
            fault: fault.replace(['\r', '\n'], " "),
            ..self.mark.figures()
        }
    }

    /// Ends the thread that follows, if there is one: nothing is written by it any more.
    fn stop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.over.store(true, Ordering::SeqCst);
        self.standing.line.cut();
        // One that tries to reach the source has nothing else under way, and finds the line cut.
        while !thread.is_finished() && !self.standing.line.is_dialing.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        self.standing.is_linked.store(false, Ordering::Relaxed);
    }
}

impl Replica {
    fn connect(&self) -> Result<Connection> {
        TargetArguments::of_this_process(self.inside.clone()).connect()
    }

    /// Goes on with what an earlier process followed, and sees how it is going.
    fn look(&mut self) {
        self.look_once();
        let Some(following) = &mut self.following else { return };
        if !following.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            return;
        }
        let ended = following.thread.take().map_or(Ok(Ok(())), JoinHandle::join);
        match ended.unwrap_or_else(|_| Err(anyhow!("its thread has panicked"))) {
            // A tool has removed the record.
            Ok(()) => {
                let place = following.mark.place();
                if let Err(why) = self.connect().and_then(|mut connection| self.let_write(&mut connection)) {
                    self.inside.warning(&format!("clients may not write yet: {why:#}"));
                    if let Some(following) = &mut self.following {
                        following.fault = format!("{why:#}");
                    }
                } else {
                    self.inside.notice(&format!("follows {place} no longer: a tool has ended it"));
                }
            }
            Err(why) => {
                following.fault = format!("{why:#}");
                let place = following.mark.place();
                self.inside.warning(&format!(
                    "{place} is followed no longer: {why:#}. Clients may not write. REPLICAOF NO ONE keeps what there is; \
                     REPLICAOF HOST PORT tries again"
                ));
            }
        }
    }

    /// Tells all cores how it is going, if that is news.
    fn show(&mut self) {
        let Some(following) = &mut self.following else { return };
        let figures = following.figures();
        if following.told.as_ref() != Some(&figures) {
            self.inside.tell_source(Some(figures.clone()));
            following.told = Some(figures);
        }
    }

    /// Does what the table at the top says.
    fn go_on(&mut self) -> Result<()> {
        let Some(following) = &self.following else { return Ok(()) };
        let mut connection = self.connect()?;
        let record = read_record(&mut connection)?;
        let own = record.as_ref().filter(|record| record.writer.starts_with(WRITER));
        if own.is_none() && !is_empty(&mut connection)? {
            self.inside.notice(&format!("follows {} no longer: a tool has ended it", following.mark.place()));
            return self.let_write(&mut connection);
        }
        let mark = following.mark.clone();
        if own.is_some_and(is_whole) {
            following.standing.is_whole.store(true, Ordering::Relaxed);
            following.standing.offset.store(own.map_or(0, |record| record.offset), Ordering::Relaxed);
        }
        if mark.is_partial {
            return Ok(());
        }
        self.inside.notice(&format!("continues to follow {}: clients may not write", mark.place()));
        self.start(mark)
    }

    /// Begins a thread that follows.
    fn start(&mut self, mark: Mark) -> Result<()> {
        let mut following = Following::of(mark);
        if let Some(before) = &self.following {
            let (then, now) = (&before.standing, &following.standing);
            now.is_whole.store(then.is_whole.load(Ordering::Relaxed), Ordering::Relaxed);
            now.offset.store(then.offset.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let work = Work {
            inside: self.inside.clone(),
            directory: self.directory.clone(),
            mark: following.mark.clone(),
            over: Arc::clone(&following.over),
            standing: Arc::clone(&following.standing),
            refusal: Arc::clone(&following.refusal),
        };
        let thread = thread::Builder::new().name("replica".to_owned()).spawn(move || work.run())?;
        following.thread = Some(thread);
        self.following = Some(following);
        Ok(())
    }

    /// Follows none any more, with what there is. The file goes last: a server that starts in between finds no record,
    /// and does the rest.
    fn let_write(&mut self, connection: &mut Connection) -> Result<()> {
        cutover::fence_by_record(connection)?;
        cutover::open(connection)?;
        Mark::remove(&self.directory)?;
        self.following = None;
        self.tell_none()
    }

    fn tell_none(&self) -> Result<()> {
        self.inside.tell_source(None);
        ensure!(self.inside.is_source_heard_within(CORE_PATIENCE), "a core of this server does not turn");
        Ok(())
    }

    fn wait_until_looked(&mut self) -> Result<()> {
        self.look_once();
        ensure!(self.has_looked, "this server has not loaded its data yet");
        Ok(())
    }

    /// Finds out what an earlier process has left, if that is not known yet. A server that does not serve yet is asked
    /// again.
    fn look_once(&mut self) {
        if self.has_looked {
            return;
        }
        let looked = self.go_on();
        self.has_looked = looked.is_ok();
        if let Some(following) = &mut self.following {
            following.fault = match looked {
                Err(why) => format!("{why:#}"),
                Ok(()) if following.mark.is_partial => CAME_TOO_EARLY.to_owned(),
                Ok(()) => String::new(),
            };
        }
    }

    /// Begins to follow a Redis.
    fn follow(&mut self, host: &str, port: u16) -> Result<&'static str> {
        self.wait_until_looked()?;
        let mark = Mark { host: host.to_owned(), port, is_partial: false };
        if let Some(following) = &mut self.following {
            if following.thread.as_ref().is_some_and(|thread| !thread.is_finished()) && following.mark == mark {
                return Ok("OK Already connected to specified master");
            }
            following.stop();
            if let Err(why) = mark.write(&self.directory) {
                let before = following.mark.clone();
                self.start(before)?;
                return Err(why);
            }
            self.inside.notice(&format!("follows {} as a client has asked, instead", mark.place()));
            self.start(mark)?;
            return Ok("OK");
        }
        // What can be refused now is refused before any client notices.
        ensure_new(&mut self.connect()?)?;
        // From here on nothing of a client is taken, and so what is looked at stays as it is.
        self.inside.tell_source(Some(mark.figures()));
        if let Err(why) = self.begin(&mark) {
            // A core that does not turn hears it when it does.
            self.inside.tell_source(None);
            return Err(why);
        }
        self.inside.notice(&format!("follows {} as a client has asked: clients may not write", mark.place()));
        Ok("OK")
    }

    fn begin(&mut self, mark: &Mark) -> Result<()> {
        ensure!(self.inside.is_source_heard_within(CORE_PATIENCE), "a core of this server does not turn");
        ensure!(
            !self.inside.owes_elements(),
            "elements that a client took are on their way to it, or back into their list: try again"
        );
        // Another node may have been let in before all had heard.
        ensure!(is_alone(self.connect()?)?, "this node is a member of a cluster now: use `holdfast migrate start`");
        let mut connection = self.connect()?;
        // A change of everything, which changes nothing: what was taken before is done when it is.
        ask(&mut connection, &["SWAPDB", "0", "0"])?;
        ensure_new(&mut connection)?;
        mark.write(&self.directory)?;
        self.start(mark.clone()).or_else(|why| {
            Mark::remove(&self.directory)?;
            Err(why)
        })
    }

    /// Follows no Redis any more, and lets clients write, if the copy is whole.
    fn follow_none(&mut self) -> Result<()> {
        self.wait_until_looked()?;
        let Some(following) = &mut self.following else { return Ok(()) };
        following.stop();
        let left = self.leave();
        if let Err(why) = &left
            && let Some(following) = &mut self.following
            && following.fault.is_empty()
        {
            following.fault = format!("{why:#}");
        }
        left
    }

    /// What is left to do when the thread that followed has ended.
    fn leave(&mut self) -> Result<()> {
        let Some(following) = &mut self.following else { return Ok(()) };
        let mark = following.mark.clone();
        let place = mark.place();
        let mut connection = self.connect()?;
        let record = read_record(&mut connection)?;
        let failure = record.as_ref().filter(|record| record.phase == Phase::Failed).map(|record| record.error.clone());
        let is_empty = is_empty(&mut connection)?;
        // Without its record a copy was ended before: by a tool, or by an attempt of this that broke off.
        let is_ended = record.is_none() && (mark.is_partial || !is_empty);
        if is_ended || record.as_ref().is_some_and(is_whole) && failure.is_none() {
            self.let_write(&mut connection)?;
            self.inside.notice(&format!("follows {place} no longer, as a client has asked"));
            return Ok(());
        }
        if is_empty {
            self.let_write(&mut connection)?;
            self.inside.notice(&format!("follows {place} no longer, and has copied nothing of it"));
            // The record is there since the source was first found to be one that can be followed. Before, no copy had
            // been begun, and this server is what it was.
            if record.is_none() {
                return Ok(());
            }
            bail!("nothing of {place} has been copied: this server follows none now, is empty, and takes writes");
        }
        Mark { is_partial: true, ..mark.clone() }.write(&self.directory)?;
        if let Some(following) = &mut self.following {
            following.mark.is_partial = true;
            following.fault = CAME_TOO_EARLY.to_owned();
        }
        self.inside.warning(&format!("follows {place} no longer, and its copy is not whole: clients may not write"));
        if let Some(failure) = failure {
            bail!(
                "something that {place} sent could not be carried out ({failure}): this server follows none now, and keeps \
                 what has come, which clients may read; `holdfast migrate stop` lets them write to it"
            );
        }
        bail!(
            "the copy of {place} is not whole: this server follows none now, and keeps what has come, which clients may \
             read; REPLICAOF {} {} begins the copy again, and `holdfast migrate stop` lets clients write to this part",
            mark.host,
            mark.port
        )
    }
}

/// This server must hold nothing, and no other process may copy anything into it.
fn ensure_new(connection: &mut Connection) -> Result<()> {
    if let Some(record) = read_record(connection)? {
        bail!("a migration from {} is under way: `holdfast migrate stop` ends it", record.from);
    }
    ensure_empty(connection).context(
        "REPLICAOF is for a server that holds nothing: empty it (FLUSHALL, FUNCTION FLUSH), or use `holdfast migrate` \
         with another one",
    )
}

/// True if this node is no member of a cluster with others.
fn is_alone(mut connection: Connection) -> Result<bool> {
    // With names for what is answered.
    ask(&mut connection, &["HELLO", "3"])?;
    Ok(list(&ask_status(&mut connection)?, "nodes").len() < 2)
}

/// True if all of the copy has come.
fn is_whole(record: &Record) -> bool {
    record.phase != Phase::Loading
}

/// True if this server holds nothing but the record.
fn is_empty(connection: &mut Connection) -> Result<bool> {
    let held = ask(connection, &["FUNCTION", "LIST"])?;
    Ok(cutover::counts(connection)?.is_empty() && held.elements().is_none_or(<[Frame]>::is_empty))
}

/// Where the source is, and what it is shown: `masterauth`, `masteruser` and `tls-replication` of this server.
fn address_of(connection: &mut Connection, mark: &Mark) -> Result<Address> {
    let mut told = |name: &str| Ok::<_, anyhow::Error>(config(connection, name)?.filter(|value| !value.is_empty()));
    let mut security = None;
    if told("tls-replication")?.as_deref() == Some("yes") {
        let path = |value: Option<String>| value.map(PathBuf::from);
        let own = path(told("tls-cert-file")?).zip(path(told("tls-key-file")?));
        let options = ClientOptions {
            authorities: path(told("tls-ca-cert-file")?),
            authorities_directory: path(told("tls-ca-cert-dir")?),
            own,
            ..ClientOptions::default()
        };
        security = Some(Arc::new(ClientSecurity::new(&options).map_err(|why| anyhow!("tls-replication: {why}"))?));
    }
    Ok(Address::of_master(mark.place(), told("masteruser")?, told("masterauth")?, security))
}

/// Whether this source can be followed so. What it does not want to tell is no obstacle.
///
/// # Errors
/// If it is not there, or refuses; the inner ones are for good.
fn look_at(line: &Line, address: &Address) -> Result<Result<()>> {
    let mut connection = Connection::over(line.dial(address, PATIENCE)?);
    if let Some(words) = address.login() {
        ask(&mut connection, &words)?;
    }
    let mut told = |section: &str, field: &str| match connection.call(&["INFO", section])? {
        Frame::Error(text) if text.starts_with(b"NOPERM") => Ok(None),
        Frame::Error(text) => bail!("INFO is refused: {}", String::from_utf8_lossy(&text)),
        reply => Ok(info_field(&String::from_utf8_lossy(reply.as_bytes().unwrap_or_default()), field)),
    };
    if told("server", "holdfast_version")?.is_some() {
        return Ok(Err(anyhow!("{} is a Holdfast: serve --follow follows another cluster", address.place)));
    }
    if told("cluster", "cluster_enabled")?.as_deref() == Some("1") {
        let place = &address.place;
        let what = "`holdfast migrate start` follows all of its primaries";
        return Ok(Err(anyhow!("{place} is a node of a Redis Cluster: {what}")));
    }
    Ok(Ok(()))
}

/// What a thread needs to follow.
struct Work {
    inside: Inside,
    directory: PathBuf,
    mark: Mark,
    over: Arc<AtomicBool>,
    standing: Arc<Standing>,
    refusal: Arc<Mutex<String>>,
}

impl Work {
    /// Follows until it is told to end, or something stops it.
    fn run(&self) -> Result<()> {
        let mut target = TargetArguments::of_this_process(self.inside.clone());
        target.over = Arc::clone(&self.over);
        target.refusal = Arc::clone(&self.refusal);
        let tell = |_: Tone, line: &str| {
            if !is_over(&self.over) {
                self.inside.notice(line);
            }
        };
        let look_up = || target.connect().and_then(|mut connection| address_of(&mut connection, &self.mark)).ok();
        let mut told = String::new();
        while !is_over(&self.over) {
            let why = match self.follow(&target, &tell, &look_up) {
                Ok(ended) => return ended,
                Err(why) => format!("{why:#}"),
            };
            if why != told && !is_over(&self.over) {
                self.inside.warning(&format!("{why}: asking again"));
            }
            *self.standing.fault.lock().unwrap_or_else(PoisonError::into_inner) = why.clone();
            told = why;
            let begun = Instant::now();
            while begun.elapsed() < RETRY_INTERVAL && !is_over(&self.over) {
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// How it has ended.
    ///
    /// # Errors
    /// What may pass.
    fn follow(
        &self,
        target: &TargetArguments,
        tell: &(dyn Fn(Tone, &str) + Sync),
        look_up: &(dyn Fn() -> Option<Address> + Sync),
    ) -> Result<Result<()>> {
        let address = address_of(&mut target.connect()?, &self.mark)?;
        if let Err(why) = look_at(&self.standing.line, &address)? {
            return Ok(Err(why));
        }
        if is_over(&self.over) {
            return Ok(Ok(()));
        }
        let plan = Plan {
            address,
            target,
            spool_directory: &self.directory,
            spool_bytes_max: SPOOL_BYTES_MAX,
            skips_modules: false,
            filter: &Filter::default(),
            may_empty: false,
            is_quiet: true,
            over: &self.over,
            writer: format!("{WRITER}{}", writer_name()),
            tell,
            standing: &self.standing,
            look_up: Some(look_up),
        };
        match plan.run() {
            Err(why) if passes(&why) => Err(why),
            ended => Ok(ended),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_says_what_was_written_and_damage_is_no_permission_to_write() {
        let directory = std::env::temp_dir().join(format!("holdfast-replicaof-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        assert_eq!(Mark::read(&directory).expect("none"), None);
        Mark::remove(&directory).expect("there is none to remove");
        for is_partial in [false, true] {
            let mark = Mark { host: "::1".to_owned(), port: 6379, is_partial };
            mark.write(&directory).expect("written");
            assert_eq!(Mark::read(&directory).expect("one"), Some(mark));
        }
        fs::write(directory.join(MARK), "redis\n").expect("written");
        assert!(source_of(&directory).is_err());
        Mark::remove(&directory).expect("removed");
        assert_eq!(source_of(&directory).expect("none"), None);
        fs::remove_dir_all(&directory).expect("removed");
    }
}
