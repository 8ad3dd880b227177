//! `holdfast import`: brings what a stock Redis has left in files into a server.
//!
//! The files are read twice: at first nothing is sent, so that what cannot be understood is refused before anything has
//! changed. Suggested order of reading: [`files`], [`sender`].

pub mod files;
pub mod sender;

use std::fs;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use resp::Frame;

use self::files::{Event, Walk};
pub use self::files::{Files, find};
use self::sender::Sender;
use crate::backup::grouped;
use crate::cluster::door::Door;
use crate::connection::{Connection, Refused};
use crate::waiting::{LINE_INTERVAL, SILENCE};

/// A server that says nothing for so long is not there.
const PATIENCE: Duration = Duration::from_secs(60);

/// Keys that are named of those that were left out.
const NAMED_MAX: usize = 10;

/// From one look of a terminal to the next.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Import an RDB or AOF file of Redis or Valkey, or a directory of them, into a server.
///
/// The whole input is read and checked before anything is sent. The server acknowledges it like any other write.
#[derive(clap::Args, Clone, Debug)]
pub struct ImportArguments {
    /// An RDB file, an AOF file, an AOF directory with its manifest, or a directory of Redis that holds them
    #[arg(value_name = "FILE-OR-DIRECTORY")]
    path: PathBuf,
    #[command(flatten)]
    door: Door,
    /// Import into a server that holds data: keys of the same name are replaced, others stay (RDB only)
    #[arg(long)]
    replace: bool,
    /// Continue an import of this file that was interrupted (RDB only)
    #[arg(long)]
    resume: bool,
    /// Stop where an AOF says that later requests follow: '2026-11-23 01:00:00' (UTC) or seconds of Unix time
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<i64>,
    /// Only read and check the files, and report what is in them
    #[arg(long)]
    check: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// What was found in files.
#[derive(Debug, Default)]
struct Findings {
    keys: u64,
    expired: u64,
    requests: u64,
    libraries: u64,
    databases: Vec<u64>,
    foreign: Omitted,
    auxiliary: Vec<String>,
    about: Vec<(String, String)>,
    has_times: bool,
    /// There is a request of an AOF, and no RDB file alone.
    is_log: bool,
    events: u64,
}

/// Keys that are left out.
#[derive(Debug, Default)]
struct Omitted {
    count: u64,
    named: Vec<String>,
}

impl Omitted {
    fn add(&mut self, database: u64, name: &[u8], what: &str) {
        self.count += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push(format!("{} (database {database}, {what})", String::from_utf8_lossy(name)));
        }
    }

    fn lines(&self, what: &str) -> Vec<String> {
        let Some(more) = self.count.checked_sub(self.named.len() as u64).filter(|_| self.count > 0) else {
            return Vec::new();
        };
        let mut lines = vec![format!("{} {what}:", grouped(self.count))];
        lines.extend(self.named.iter().map(|name| format!("  {name}")));
        if more > 0 {
            lines.push(format!("  and {} more", grouped(more)));
        }
        lines
    }
}

impl Findings {
    fn note(&mut self, event: &Event, now_ms: i64) {
        self.events += 1;
        match event {
            Event::Key(key) if !matches!(key.part, redis_files::rdb::Part::Whole | redis_files::rdb::Part::First) => {}
            Event::Key(key) => {
                self.keys += 1;
                self.expired += u64::from(key.expires_at_ms.is_some_and(|deadline| deadline <= now_ms));
                if !self.databases.contains(&key.database) {
                    self.databases.push(key.database);
                }
            }
            Event::Library(_) => self.libraries += 1,
            Event::Script(_) => {}
            Event::Requests { requests, .. } => {
                self.is_log = true;
                self.requests += requests.len() as u64;
            }
            Event::Time => self.has_times = true,
            Event::Foreign { database, name, what } => self.foreign.add(*database, name, what),
            Event::ModuleAux(name) => self.auxiliary.push(name.clone()),
            Event::About(name, value) => self.about.push((name.clone(), value.clone())),
        }
    }

    fn about(&self, name: &str) -> Option<&str> {
        self.about.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }
}

/// Runs `holdfast import`.
///
/// # Errors
/// What an operator must know.
pub fn run(arguments: &ImportArguments) -> Result<()> {
    let files = find(&arguments.path)?;
    let mut connection = None;
    if !arguments.check {
        connection = Some(arguments.door.connect(PATIENCE)?);
    }
    let plan = Plan {
        files: &files,
        replace: arguments.replace,
        resume: arguments.resume,
        until: arguments.until,
        is_quiet: arguments.quiet,
        server: Some(arguments.door.place()),
    };
    plan.run(connection.as_mut())?.iter().for_each(|line| say_line!("{line}"));
    Ok(())
}

/// Files that were read to their end, and found good.
pub struct Checked {
    findings: Findings,
    notes: Vec<String>,
}

/// Reads files to their end.
///
/// # Errors
/// What is wrong with them.
pub fn check(files: &Files) -> Result<Checked> {
    let mut progress = Progress::new("checks", files.bytes, false);
    let (findings, walk) = Plan::into_new(files).check(&mut progress)?;
    progress.end();
    Ok(Checked { findings, notes: walk.notes })
}

/// Brings files into a server that is new; answers what was done, for people. It cannot be continued half-way.
///
/// # Errors
/// What an operator must know.
pub fn into_new(files: &Files, checked: &Checked, connection: &mut Connection) -> Result<Vec<String>> {
    let begun = Instant::now();
    let plan = Plan::into_new(files);
    connection.wait_at_most(PATIENCE)?;
    plan.send(connection, &checked.findings)?;
    let lines = plan.lines(&checked.findings, Some(begun.elapsed()));
    Ok(checked.notes.iter().cloned().chain(lines).collect())
}

struct Plan<'a> {
    files: &'a Files,
    replace: bool,
    resume: bool,
    until: Option<i64>,
    is_quiet: bool,
    /// Of which the state of the import is noted beside the files, so that it can be continued.
    server: Option<String>,
}

impl<'a> Plan<'a> {
    /// For a server that holds nothing.
    fn into_new(files: &'a Files) -> Self {
        Self { files, replace: false, resume: false, until: None, is_quiet: false, server: None }
    }

    /// What was done, for people.
    fn run(&self, connection: Option<&mut Connection>) -> Result<Vec<String>> {
        let begun = Instant::now();
        let mut progress = Progress::new("checks", self.files.bytes, self.is_quiet);
        let (findings, walk) = self.check(&mut progress)?;
        progress.end();
        for note in &walk.notes {
            eprintln!("{note}");
        }
        if self.until.is_some() {
            ensure!(
                findings.has_times,
                "--until needs the times that Redis notes with aof-timestamp-enabled: none here"
            );
        }
        let Some(connection) = connection else { return Ok(self.lines(&findings, None)) };
        self.send(connection, &findings)?;
        Ok(self.lines(&findings, Some(begun.elapsed())))
    }

    fn check(&self, progress: &mut Progress) -> Result<(Findings, Walk)> {
        let mut findings = Findings::default();
        let now_ms = now_ms();
        let walk = self.files.walk(self.until, &mut |place, event| {
            findings.note(&event, now_ms);
            progress.show(place, findings.keys + findings.requests, 0);
            Ok(())
        })?;
        Ok((findings, walk))
    }

    fn send(&self, connection: &mut Connection, findings: &Findings) -> Result<()> {
        let state = self.server.as_deref().map(|server| State::new(self.files, server));
        let mut skip = 0;
        if findings.is_log {
            ensure!(!self.resume, "an AOF cannot be continued in the middle: empty the server and begin again");
            ensure!(
                !self.replace,
                "an AOF tells what happened to keys from the beginning on: it needs an empty server"
            );
        } else if self.resume {
            skip = state.as_ref().context("nothing says how far it was")?.read()?;
        } else if let Some(state) = state.as_ref().filter(|state| state.path.exists()) {
            bail!(
                "an import of this file was interrupted: continue it with --resume, or remove {} to start over",
                state.path.display()
            );
        }
        for database in &findings.databases {
            let reply = connection.call(&["SELECT", &database.to_string()]).context("the server has hung up")?;
            ensure!(
                !reply.is_error(),
                "the server has no database {database} ({reply}): start it with --databases {}",
                findings.databases.iter().max().map_or(1, |highest| highest + 1)
            );
        }
        if !self.replace && !self.resume {
            ensure_empty(connection).context("import into an empty server, or use --replace")?;
        }
        if findings.is_log {
            // A later request may still use a key that has expired by our clock.
            set_import_mode(connection, true)?;
        }
        let mut sender = Sender::new(connection, self.replace || self.resume);
        let mut progress = Progress::new("imports", self.files.bytes, self.is_quiet);
        let (mut seen, mut keys, mut saved) = (0, 0, Instant::now());
        let skipped = findings.foreign.count;
        let sent = self.files.walk(self.until, &mut |place, event| {
            seen += 1;
            if seen <= skip {
                return Ok(());
            }
            keys += u64::from(matches!(event, Event::Key(_) | Event::Requests { .. }));
            sender.send(seen, place, event)?;
            progress.show(place, keys, skipped);
            if let Some(state) = &state
                && !findings.is_log
                && saved.elapsed() > PROGRESS_INTERVAL
            {
                saved = Instant::now();
                state.write(sender.acknowledged().max(skip))?;
            }
            Ok(())
        });
        let sent = sent.and_then(|_| sender.finish());
        progress.end();
        match sent {
            Ok(()) => {
                if findings.is_log {
                    set_import_mode(connection, false)?;
                }
                state.iter().for_each(State::remove);
                Ok(())
            }
            Err(error) if findings.is_log => {
                // If the server is gone, it is in import mode when it is back, and the next import ends that.
                let _ = set_import_mode(connection, false);
                Err(error.context("the import has stopped half-way: empty the server before you begin again"))
            }
            Err(error) => match state {
                None => Err(error),
                Some(state) => {
                    state.write(sender.acknowledged().max(skip))?;
                    Err(error.context("the import has stopped half-way: --resume continues it"))
                }
            },
        }
    }

    /// What was found, or imported in that time, for people.
    fn lines(&self, findings: &Findings, took: Option<Duration>) -> Vec<String> {
        let done = if took.is_some() { "imported" } else { "found" };
        let what = if findings.keys == 1 { "key" } else { "keys" };
        let mut line = format!("{}: {} {what} {done}", self.files.path.display(), grouped(findings.keys));
        if findings.is_log {
            line.push_str(&format!(" and {} requests of the log", grouped(findings.requests)));
        }
        if findings.libraries > 0 {
            let what = if findings.libraries == 1 { "library" } else { "libraries" };
            line.push_str(&format!(", {} {what} of functions", findings.libraries));
        }
        if let Some(took) = took {
            let rate = (findings.keys + findings.requests) as f64 / took.as_secs_f64().max(0.001);
            line.push_str(&format!(", in {:.1} s ({} a second)", took.as_secs_f64(), grouped(rate as u64)));
        }
        let mut lines = vec![line];
        if findings.expired > 0 {
            lines.push(format!("{} of the keys have expired meanwhile", grouped(findings.expired)));
        }
        let writer = ["redis-ver", "valkey-ver"].iter().find_map(|name| Some((*name, findings.about(name)?)));
        if let Some((name, version)) = writer {
            let vendor = if name == "valkey-ver" { "Valkey" } else { "Redis" };
            lines.push(format!("written by {vendor} {version}"));
        }
        if let (Some(id), Some(offset)) = (findings.about("repl-id"), findings.about("repl-offset")) {
            lines.push(format!("replication id {id}, offset {offset}"));
        }
        lines.extend(findings.foreign.lines("keys of types that do not exist here left out"));
        let left_out = |module: &String| format!("what the module of type {module} keeps beside its keys was left out");
        lines.extend(findings.auxiliary.iter().map(left_out));
        lines
    }
}

/// Whether keys expire by the clock of the server.
fn set_import_mode(connection: &mut Connection, is_on: bool) -> Result<()> {
    let value = if is_on { "yes" } else { "no" };
    let reply = connection.call(&["CONFIG", "SET", "import-mode", value]).context("the server has hung up")?;
    ensure!(!reply.is_error(), "CONFIG SET import-mode {value} is refused: {reply}");
    Ok(())
}

/// Nothing may be there: neither keys nor functions.
///
/// # Errors
/// Says what is.
pub fn ensure_empty(connection: &mut Connection) -> Result<()> {
    let databases = match connection.call(&["CONFIG", "GET", "databases"]).context("the server has hung up")? {
        Frame::Array(words) => words.get(1).and_then(|word| String::from_utf8_lossy(word.as_bytes()?).parse().ok()),
        _ => None,
    };
    for database in 0..databases.unwrap_or(16_u64) {
        let reply = connection.call(&["SELECT", &database.to_string()]).context("the server has hung up")?;
        if reply.is_error() {
            break;
        }
        match connection.call(&["DBSIZE"]).context("the server has hung up")? {
            Frame::Integer(0) => {}
            Frame::Integer(count) => bail!("the server holds {count} keys in database {database}"),
            reply => {
                let shown = format!("the server does not say how many keys it holds: {reply}");
                return Err(Refused::new(shown, reply.as_bytes().unwrap_or_default()).into());
            }
        }
    }
    let libraries = connection.call(&["FUNCTION", "LIST"]).context("the server has hung up")?;
    ensure!(libraries.elements().is_none_or(<[Frame]>::is_empty), "the server holds functions");
    Ok(())
}

/// How far an import is, in a file beside the one that is imported.
struct State {
    path: PathBuf,
    identity: String,
}

impl State {
    fn new(files: &Files, server: &str) -> Self {
        let mut name = files.path.clone().into_os_string();
        name.push(".import-state");
        Self { path: PathBuf::from(name), identity: format!("{} to {server}", files.identity()) }
    }

    /// Items that were acknowledged.
    fn read(&self) -> Result<u64> {
        let path = &self.path;
        let text = fs::read_to_string(path)
            .with_context(|| format!("there is nothing to continue: cannot read {}", path.display()))?;
        let (identity, count) = text.trim_end().split_once('\n').context("the state of the import is damaged")?;
        ensure!(
            identity == self.identity,
            "{} is about another file or server: '{identity}' instead of '{}'",
            path.display(),
            self.identity
        );
        count.parse().with_context(|| format!("{} is damaged", path.display()))
    }

    fn write(&self, count: u64) -> Result<()> {
        let path = &self.path;
        let fresh = path.with_extension("import-state.new");
        fs::write(&fresh, format!("{}\n{count}\n", self.identity))
            .and_then(|()| fs::rename(&fresh, path))
            .with_context(|| format!("cannot note in {} how far the import is", path.display()))
    }

    fn remove(&self) {
        // It may never have been written.
        let _ = fs::remove_file(&self.path);
    }
}

/// A line about work that takes long: on a terminal each second, elsewhere seldom.
struct Progress {
    what: &'static str,
    total: u64,
    begun: Instant,
    told: Instant,
    is_quiet: bool,
    is_terminal: bool,
    calls: u32,
}

impl Progress {
    /// About work on so many bytes.
    fn new(what: &'static str, total: u64, is_quiet: bool) -> Self {
        let now = Instant::now();
        let is_terminal = std::io::stderr().is_terminal();
        Self { what, total, begun: now, told: now, is_quiet, is_terminal, calls: 0 }
    }

    fn show(&mut self, bytes: u64, keys: u64, skipped: u64) {
        self.calls = self.calls.wrapping_add(1);
        if self.is_quiet || !self.calls.is_multiple_of(64) {
            return;
        }
        let elapsed = self.begun.elapsed();
        let is_first = self.told == self.begun;
        let pause = if self.is_terminal || is_first { PROGRESS_INTERVAL } else { LINE_INTERVAL };
        if elapsed < SILENCE || self.told.elapsed() < pause {
            return;
        }
        self.told = Instant::now();
        let seconds = elapsed.as_secs_f64();
        let rest = self.total.saturating_sub(bytes) as f64 * seconds / bytes.max(1) as f64;
        let line = format!(
            "{}: {} keys, {} of {} MB, {} keys/s, {:.0} s left{}",
            self.what,
            grouped(keys),
            grouped(bytes / 1_000_000),
            grouped(self.total / 1_000_000),
            grouped((keys as f64 / seconds) as u64),
            rest,
            if skipped > 0 { format!(", {} skipped", grouped(skipped)) } else { String::new() }
        );
        if self.is_terminal {
            eprint!("\r\x1b[2K{line}");
        } else {
            eprintln!("{line}");
        }
    }

    fn end(&self) {
        if self.is_terminal && self.told > self.begun {
            eprint!("\r\x1b[2K");
        }
    }
}

/// Milliseconds since the epoch.
pub fn now_ms() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

/// Seconds of Unix time, or a date with a time of day in UTC.
pub fn parse_time(text: &str) -> Result<i64, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(seconds);
    }
    let wrong = || "neither seconds of Unix time nor like '2026-11-23 01:00:00'".to_owned();
    let figures: Vec<i64> = text
        .trim_end_matches('Z')
        .split(['-', ' ', 'T', ':'])
        .map(|figure| figure.parse().map_err(|_| wrong()))
        .collect::<Result<_, _>>()?;
    let &[year, month, day, hour, minute, second] = &figures[..] else { return Err(wrong()) };
    let is_date = (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !is_date || !(0..24).contains(&hour) || !(0..60).contains(&minute) || !(0..=60).contains(&second) {
        return Err(wrong());
    }
    // Days since 1970 of the Gregorian calendar, with years that begin in March.
    let (shifted, place) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * shifted + shifted / 4 - shifted / 100 + shifted / 400 + (153 * place + 2) / 5 + day - 1 - 719_468;
    Ok(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::parse_time;

    #[test]
    fn times_are_read() {
        assert_eq!(parse_time("1700000000"), Ok(1_700_000_000));
        assert_eq!(parse_time("1970-01-01 00:00:00"), Ok(0));
        assert_eq!(parse_time("2026-11-23 01:00:00"), Ok(1_795_395_600));
        assert_eq!(parse_time("2024-02-29T12:00:00Z"), Ok(1_709_208_000));
        assert!(parse_time("yesterday").is_err());
        assert!(parse_time("2026-13-01 00:00:00").is_err());
    }
}
