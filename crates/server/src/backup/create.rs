//! `holdfast backup create`: reads a backup from a running server, chunk by chunk, into files.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use edge::{HostSession, RealDisk};
use journal::CheckpointFile;
use resp::Frame;
use stdx::{Level, Levels, UnixMillis};

use super::manifest::{MANIFEST_FILE, Manifest, Part, identity, mark};
use super::{Pace, counted, grouped, staging, told};
use crate::cluster::door::Door;
use crate::connection::Connection;

/// What a directory's name ends in while its backup is being made.
pub const UNFINISHED_EXTENSION: &str = "unfinished";

/// A server that says nothing for so long is not there.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long it is tried to begin while other checkpoints are under way.
const BEGIN_PATIENCE: Duration = Duration::from_secs(600);

/// How long a cluster may have no quorum, one answer after the other: far longer than another leader takes.
const QUORUM_PATIENCE: Duration = Duration::from_secs(15);

/// How often it is started over if groups lose their leaders meanwhile.
const ATTEMPTS: usize = 3;

const POLL_INTERVAL: Duration = Duration::from_millis(50);
const RETRY_INTERVAL: Duration = Duration::from_millis(300);

/// Bytes written to a file at once.
const WRITE_BYTES: usize = 1 << 20;

/// Make a backup of a server, or of its whole cluster, as of one moment, while it serves.
///
/// The data are sent over the connection; the server needs no directory for them. The directory gets its name when all
/// data are on disk.
#[derive(clap::Args, Clone, Debug)]
pub struct CreateArguments {
    /// Where to write it: a new or empty directory
    #[arg(value_name = "BACKUP")]
    pub(super) backup: PathBuf,
    #[command(flatten)]
    pub(super) door: Door,
    /// Show no progress
    #[arg(long, short)]
    pub(super) quiet: bool,
}

/// Why an attempt came to nothing.
enum Failure {
    /// The servers could not, and may be able to the next time.
    Again(String),
    Final(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Final(error)
    }
}

/// Runs `holdfast backup create`.
pub fn run(arguments: &CreateArguments) -> Result<()> {
    let mut connection = arguments.connect()?;
    let staging = staging(&arguments.backup, UNFINISHED_EXTENSION, "a backup")?;
    let begun = Instant::now();
    let manifest = attempts(&mut connection, arguments.quiet, &staging)
        .and_then(|manifest| staging.settle(&arguments.backup).map(|()| manifest));
    match manifest {
        Ok(manifest) => {
            say_line!(
                "{}: {} as of {}, {} bytes in {:.1} s",
                arguments.backup.display(),
                counted(manifest.parts.len(), "group"),
                edge::utc(manifest.moment),
                grouped(manifest.parts.iter().map(|part| part.bytes).sum()),
                begun.elapsed().as_secs_f64()
            );
            Ok(())
        }
        Err(error) => {
            // What is left of it cannot be used, and hides the next attempt.
            let _ = fs::remove_dir_all(&staging);
            Err(error)
        }
    }
}

impl CreateArguments {
    pub(super) fn connect(&self) -> Result<Connection> {
        self.door.connect(PATIENCE)
    }
}

/// Somebody who answers requests.
pub(super) trait Answers {
    /// The reply to one of them.
    fn ask(&mut self, words: &[&str]) -> std::io::Result<Frame>;
}

impl Answers for Connection {
    fn ask(&mut self, words: &[&str]) -> std::io::Result<Frame> {
        self.call(words)
    }
}

impl Answers for HostSession {
    fn ask(&mut self, words: &[&str]) -> std::io::Result<Frame> {
        self.call(words)
    }
}

pub(super) fn attempts(connection: &mut dyn Answers, is_quiet: bool, staging: &Path) -> Result<Manifest> {
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        let name = u128::from_le_bytes(edge::random_bytes().context("cannot read random numbers")?);
        let (gone, pace, begun) = (Vec::new(), Pace::new(is_quiet), Instant::now());
        let mut attempt = Attempt { connection, name, group_count: 0, gone, staging, pace, begun };
        let outcome = attempt.run();
        attempt.pace.end();
        match outcome {
            Ok(manifest) => return Ok(manifest),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Again(why)) => last = why,
        }
    }
    bail!("the backup was begun {ATTEMPTS} times and did not come to an end; the last time: {last}")
}

struct Attempt<'a> {
    connection: &'a mut dyn Answers,
    name: u128,
    group_count: u32,
    /// Whether each group had gone when the backup began.
    gone: Vec<bool>,
    staging: &'a Path,
    pace: Pace,
    begun: Instant,
}

impl Attempt<'_> {
    fn run(&mut self) -> Result<Manifest, Failure> {
        let mut manifest = self.begin()?;
        let read = self.read(&mut manifest);
        // In any case the servers need not keep it; they find out by themselves if they do not hear this.
        for group in 0..self.group_count {
            let _ = self.call(&["BACKUP", "END", &format!("{:032x}", self.name), &group.to_string()]);
        }
        read?;
        self.write_manifest(&manifest)?;
        Ok(manifest)
    }

    fn call(&mut self, words: &[&str]) -> Result<Frame> {
        self.connection.ask(words).context("the server has hung up, or does not answer")
    }

    /// The moment is chosen: all groups begin to write their parts.
    fn begin(&mut self) -> Result<Manifest, Failure> {
        let mut quorum_seen = Instant::now();
        let reply = loop {
            match self.call(&["BACKUP", "BEGIN", &format!("{:032x}", self.name)])? {
                Frame::Error(text) => {
                    let text = String::from_utf8_lossy(&text).into_owned();
                    let passes = ["TRYAGAIN", "LOADING", "CLUSTERDOWN"].iter().any(|word| text.starts_with(word));
                    if !passes {
                        return Err(anyhow!("the server makes no backup: {text}").into());
                    }
                    if !text.starts_with("CLUSTERDOWN") {
                        quorum_seen = Instant::now();
                    } else if quorum_seen.elapsed() > QUORUM_PATIENCE {
                        let seconds = QUORUM_PATIENCE.as_secs();
                        return Err(anyhow!("the cluster has made no backup for {seconds} s: {text}").into());
                    }
                    if self.begun.elapsed() > BEGIN_PATIENCE {
                        return Err(Failure::Again(text));
                    }
                    self.pace.show(|| format!("waits: {text}"));
                    thread::sleep(RETRY_INTERVAL);
                }
                reply => break reply,
            }
        };
        let Some([Frame::Integer(groups), Frame::Integer(databases), Frame::Integer(moment), ..]) = reply.elements()
        else {
            return Err(anyhow!("this is no server that makes backups: it answered {reply}").into());
        };
        let (Ok(group_count), Ok(databases)) = (u32::try_from(*groups), u16::try_from(*databases)) else {
            return Err(anyhow!("this is no server that makes backups: it answered {reply}").into());
        };
        self.group_count = group_count;
        // Of a group that has gone there is no part: its place is negative.
        let is_gone = |place: &Frame| matches!(place, Frame::Integer(place) if *place < 0);
        self.gone = reply.elements().into_iter().flatten().skip(3).map(is_gone).collect();
        let parts = vec![Part::default(); group_count as usize];
        let moment = UnixMillis(*moment);
        // It never falls, so what has been cut is of no higher one.
        let level = self.level()?;
        Ok(Manifest { name: self.name, moment, databases, level, parts })
    }

    /// The level of the cluster: the first one if the server knows nothing of levels, the highest that is known here if
    /// it does not say.
    fn level(&mut self) -> Result<Level, Failure> {
        let Frame::Bulk(page) = self.call(&["INFO", "cluster"])? else { return Ok(Levels::KNOWN.highest) };
        let page = String::from_utf8_lossy(&page).into_owned();
        let told = page.lines().find_map(|line| line.trim_end().strip_prefix("cluster_level:"));
        Ok(told.and_then(|level| level.parse().ok()).map_or(Level::FIRST, Level))
    }

    /// Reads a chunk of each group in turn, so that none waits long enough to be given up.
    fn read(&mut self, manifest: &mut Manifest) -> Result<(), Failure> {
        let staging = self.staging;
        let told = |fault: journal::Fault| Failure::Final(told(staging, &fault));
        let disk = RealDisk::open_directory(staging).with_context(|| format!("cannot open {}", staging.display()))?;
        let identity = identity(self.name, self.group_count);
        let mut files = Vec::new();
        for group in 0..self.group_count {
            let file = CheckpointFile::begin(disk.clone(), &identity, group, &mark()).map_err(told)?;
            if self.gone.get(group as usize) == Some(&true) {
                file.finish().map_err(told)?;
                files.push(None);
            } else {
                files.push(Some(file));
            }
        }
        while files.iter().any(Option::is_some) {
            let mut is_waiting = true;
            let mut written = 100;
            for (group, place) in files.iter_mut().enumerate() {
                let Some(file) = place else { continue };
                let part = &mut manifest.parts[group];
                let words =
                    ["BACKUP", "READ", &format!("{:032x}", self.name), &group.to_string(), &part.chunks.to_string()];
                match self.connection.ask(&words).context("the server has hung up, or does not answer")? {
                    Frame::Integer(percent) => written = written.min(percent),
                    Frame::Bulk(chunk) if !chunk.is_empty() => {
                        is_waiting = false;
                        part.chunks += 1;
                        part.bytes += chunk.len() as u64;
                        file.push(&chunk);
                        if file.pending_bytes() >= WRITE_BYTES {
                            file.write(WRITE_BYTES).map_err(told)?;
                        }
                    }
                    Frame::Null => {
                        is_waiting = false;
                        place.take().expect("just seen").finish().map_err(told)?;
                    }
                    Frame::Error(text) => return Err(Failure::Again(String::from_utf8_lossy(&text).into_owned())),
                    other => return Err(anyhow!("the server answered {other} instead of a chunk").into()),
                }
            }
            let bytes: u64 = manifest.parts.iter().map(|part| part.bytes).sum();
            self.pace.show(|| match written {
                100 => format!("reads: {} MB so far", bytes / 1_000_000),
                _ => format!("the server writes its checkpoints: {written} %; {} MB read", bytes / 1_000_000),
            });
            if is_waiting {
                thread::sleep(POLL_INTERVAL);
            }
        }
        Ok(())
    }

    fn write_manifest(&self, manifest: &Manifest) -> Result<()> {
        let path = self.staging.join(MANIFEST_FILE);
        let write = || {
            let mut file = fs::File::create_new(&path)?;
            file.write_all(manifest.encode().as_bytes())?;
            file.sync_all()?;
            fs::File::open(self.staging)?.sync_all()
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }
}
