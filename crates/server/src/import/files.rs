//! Which files there are, and what is in them, in order.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, anyhow, bail};
use redis_files::aof::{self, AofReader, Request};
use redis_files::rdb::{self, Key, RdbReader};
use redis_files::{Fault, Source, manifest};

/// What is met in files.
pub enum Event {
    Key(Key),
    /// The code of a library of functions.
    Library(Vec<u8>),
    /// A script that was known to Redis before 5.0.
    Script(Vec<u8>),
    Foreign {
        database: u64,
        name: Vec<u8>,
        /// What it is.
        what: String,
    },
    ModuleAux(String),
    About(String, String),
    Requests {
        requests: Vec<Request>,
        is_transaction: bool,
    },
    /// A time was noted here.
    Time,
}

/// Files to be read one after the other.
pub struct Files {
    /// What the user has named.
    pub path: PathBuf,
    paths: Vec<PathBuf>,
    /// Of all files together.
    pub bytes: u64,
}

/// How reading went.
#[derive(Debug, Default)]
pub struct Walk {
    /// What the user must know.
    pub notes: Vec<String>,
}

/// Finds the files that `path` stands for.
///
/// # Errors
/// If there are none, or it cannot be told which.
pub fn find(path: &Path) -> Result<Files> {
    let metadata = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
    let paths = if metadata.is_dir() { in_directory(path)? } else { vec![path.to_path_buf()] };
    let mut bytes = 0;
    for path in &paths {
        bytes += fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
    }
    Ok(Files { path: path.to_path_buf(), paths, bytes })
}

fn in_directory(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut manifests = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))? {
        let path = entry.with_context(|| format!("cannot list {}", directory.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "manifest") {
            manifests.push(path);
        }
    }
    match &manifests[..] {
        [] => {}
        [one] => {
            let text = fs::read_to_string(one).with_context(|| format!("cannot read {}", one.display()))?;
            let entries = manifest::parse(&text).map_err(|why| anyhow!("{}: {why}", one.display()))?;
            return Ok(entries.iter().map(|entry| directory.join(&entry.name)).collect());
        }
        _ => bail!("{} holds more than one manifest: name the file that is wanted", directory.display()),
    }
    let appended = directory.join("appendonlydir");
    if appended.is_dir() {
        return in_directory(&appended);
    }
    for name in ["appendonly.aof", "dump.rdb"] {
        let path = directory.join(name);
        if path.is_file() {
            return Ok(vec![path]);
        }
    }
    bail!("{} holds neither a manifest, appendonlydir, appendonly.aof nor dump.rdb", directory.display())
}

impl Files {
    /// Tells files apart: their paths, lengths and times.
    pub fn identity(&self) -> String {
        let mut identity = String::new();
        for path in &self.paths {
            let metadata = fs::metadata(path).ok();
            let changed = metadata.as_ref().and_then(|metadata| metadata.modified().ok());
            let nanoseconds = changed.and_then(|changed| Some(changed.duration_since(UNIX_EPOCH).ok()?.as_nanos()));
            let length = metadata.map_or(0, |metadata| metadata.len());
            identity.push_str(&format!("{} ({length} bytes, {}) ", path.display(), nanoseconds.unwrap_or(0)));
        }
        identity.trim_end().to_owned()
    }

    /// Reads everything in order and shows it, with the number of bytes read so far. Ends at the first time after
    /// `until`.
    ///
    /// # Errors
    /// If a file is not what it should be, with its name and offset, or if `visit` fails.
    pub fn walk(&self, until: Option<i64>, visit: &mut dyn FnMut(u64, Event) -> Result<()>) -> Result<Walk> {
        let mut walk = Walk::default();
        let mut before = 0;
        for (nth, path) in self.paths.iter().enumerate() {
            let is_last = nth + 1 == self.paths.len();
            let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            let length = file.metadata().map_or(0, |metadata| metadata.len());
            let may_be_empty = self.paths.len() > 1;
            let one = OneFile { path, before, until, walk: &mut walk, is_last, length, may_be_empty };
            let is_over = one.read(file, visit)?;
            if is_over {
                break;
            }
            before += length;
        }
        Ok(walk)
    }
}

struct OneFile<'a> {
    path: &'a Path,
    before: u64,
    until: Option<i64>,
    walk: &'a mut Walk,
    is_last: bool,
    length: u64,
    /// The files of a log in parts may hold nothing yet.
    may_be_empty: bool,
}

impl OneFile<'_> {
    /// True if `until` has been reached.
    fn read(self, mut file: File, visit: &mut dyn FnMut(u64, Event) -> Result<()>) -> Result<bool> {
        let told = |fault: Fault| anyhow!("{}: {fault}", self.path.display());
        let mut head = [0; 6];
        let length = file.read(&mut head).with_context(|| format!("cannot read {}", self.path.display()))?;
        let has_rdb = head.starts_with(b"REDIS") || head.starts_with(b"VALKEY");
        if length == 0 && !self.may_be_empty {
            bail!("{} is empty", self.path.display());
        }
        if !has_rdb && length > 0 && !matches!(head[0], b'*' | b'#') {
            bail!("{} is neither an RDB nor an AOF file", self.path.display());
        }
        let mut source = Source::new(head[..length].chain(file));
        if has_rdb {
            let mut reader = RdbReader::new(&mut source).map_err(told)?;
            loop {
                let item = reader.next_item().map_err(told)?;
                let place = self.before + reader.offset();
                let event = match item {
                    rdb::Item::Key(key) => Event::Key(key),
                    rdb::Item::Library(code) => Event::Library(code),
                    rdb::Item::Aux { name, value } if name == b"lua" => Event::Script(value),
                    rdb::Item::Aux { name, value } => {
                        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                        Event::About(text(&name), text(&value))
                    }
                    rdb::Item::Foreign { database, name, what } => Event::Foreign { database, name, what },
                    rdb::Item::ModuleAux(name) => Event::ModuleAux(name),
                    rdb::Item::End { .. } => break,
                };
                visit(place, event)?;
            }
            if source.is_at_end().map_err(told)? {
                return Ok(false);
            }
        }
        let mut reader = AofReader::new(&mut source);
        loop {
            match reader.next_item().map_err(told)? {
                aof::Item::Requests { requests, is_transaction, .. } => {
                    visit(self.before + reader.offset(), Event::Requests { requests, is_transaction })?;
                }
                aof::Item::Time(seconds) => {
                    visit(self.before + reader.offset(), Event::Time)?;
                    if self.until.is_some_and(|until| seconds > until) {
                        return Ok(true);
                    }
                }
                aof::Item::End { torn_at: None, .. } => return Ok(false),
                aof::Item::End { torn_at: Some(offset), is_open_transaction } => {
                    let what = if is_open_transaction { "a transaction" } else { "a request" };
                    let (path, lost) = (self.path.display(), self.length.saturating_sub(offset));
                    if !self.is_last {
                        bail!("{path}: at byte {offset}: the file ends in the middle of {what}, and others follow it");
                    }
                    self.walk.notes.push(format!(
                        "{path} ends in the middle of {what}: {lost} bytes from byte {offset} on are left out"
                    ));
                    return Ok(false);
                }
            }
        }
    }
}
