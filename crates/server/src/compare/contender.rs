//! The servers that are compared: found, started, ended.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::unistd::Pid;

use super::CompareArguments;
use super::talk::Talk;
use crate::bench;
use crate::torture::cluster;

/// A server that has not answered by then will not.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The same for one that has data to read first.
const RESTART_TIMEOUT: Duration = Duration::from_secs(600);
/// A server that has been asked to end and has not by then is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// What a server is asked to do before it says OK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Redis and Valkey keep no log at all; Holdfast writes its own and never syncs it.
    Unsynced,
    /// Redis and Valkey keep no log at all; Holdfast syncs its own within a second.
    EverySecond,
    /// Each write is on disk before it is acknowledged.
    Always,
}

/// A server program.
#[derive(Clone, Debug)]
pub struct Contender {
    /// Its name and version.
    pub name: String,
    pub program: PathBuf,
    pub is_holdfast: bool,
    /// Cores that Holdfast is told to have; `None`: as many as it takes by itself.
    pub cores: Option<u16>,
}

impl Contender {
    /// True if it has a use for more than one processor at a time.
    pub fn wants_all_processors(&self) -> bool {
        self.is_holdfast && self.cores != Some(1)
    }

    /// The same Holdfast with one core.
    pub fn with_one_core(&self) -> Self {
        Self { name: "holdfast, 1 core".to_owned(), cores: Some(1), ..self.clone() }
    }
}

/// Holdfast first, then its peers.
pub fn find(arguments: &CompareArguments) -> Result<Vec<Contender>> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let mut contenders = vec![Contender {
        name: format!("holdfast {}", env!("CARGO_PKG_VERSION")),
        program: arguments.holdfast.clone().unwrap_or(own),
        is_holdfast: true,
        cores: arguments.cores,
    }];
    let programs = if arguments.peer.is_empty() { installed() } else { arguments.peer.clone() };
    for program in programs {
        let output = Command::new(&program)
            .arg("--version")
            .output()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let words = String::from_utf8_lossy(&output.stdout).into_owned();
        let kind = if words.starts_with("Valkey") { "valkey" } else { "redis" };
        let version = words.split_whitespace().find_map(|word| word.strip_prefix("v=")).unwrap_or("?");
        let name = format!("{kind} {version}");
        // One may be a link to the other.
        if contenders.iter().all(|known| known.name != name) {
            contenders.push(Contender { name, program, is_holdfast: false, cores: None });
        }
    }
    ensure!(
        contenders.len() > 1,
        "no redis-server or valkey-server in PATH: install one, or name a program with --peer"
    );
    Ok(contenders)
}

/// Links are left as they are: these programs look at the name they were called by.
fn installed() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = |name| std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    ["redis-server", "valkey-server"].into_iter().filter_map(in_path).collect()
}

/// What must not stay behind, whatever ends the comparison.
static LEFTOVERS: Mutex<Leftovers> = Mutex::new(Leftovers { servers: Vec::new(), folder: None });

struct Leftovers {
    servers: Vec<u32>,
    folder: Option<PathBuf>,
}

fn leftovers() -> std::sync::MutexGuard<'static, Leftovers> {
    LEFTOVERS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// From here on, Control-C and SIGTERM end the servers and remove their data before they end this process.
pub fn clean_up_on_signals() -> Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let left = leftovers(); // kept, so that no server can be started any more
            for &server in &left.servers {
                let _ = kill(Pid::from_raw(server as i32), Signal::SIGKILL);
            }
            if let Some(folder) = &left.folder {
                let _ = fs::remove_dir_all(folder);
            }
            std::process::exit(128 + signal);
        }
    })?;
    Ok(())
}

/// A temporary directory, removed when it is dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(parent: Option<&Path>) -> Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let path = parent.join(format!("holdfast-compare-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        leftovers().folder = Some(path.clone());
        Ok(Self(path))
    }

    /// True if nothing here is ever on a disk, so that fsync costs nothing and promises nothing.
    pub fn is_on_memory_disk(&self) -> bool {
        statfs(&self.0).is_ok_and(|system| system.filesystem_type() == TMPFS_MAGIC)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // what cannot be removed is the system's to clear
    }
}

/// The data directory of a Holdfast, in its folder.
const DATA_NAME: &str = "data";
/// What a server says goes here, in its folder.
const LOG_NAME: &str = "log.txt";
/// The option of a Holdfast for the port of its cluster.
const CLUSTER_PORT: &str = "--cluster-port";

fn spawn(contender: &Contender, durability: Durability, port: u16, more: &[String], data: &Path) -> Result<Child> {
    let log = fs::OpenOptions::new().create(true).append(true).open(data.join(LOG_NAME))?;
    let mut command = Command::new(&contender.program);
    if contender.is_holdfast {
        let policy = match durability {
            Durability::Unsynced => "no",
            Durability::EverySecond => "everysec",
            Durability::Always => "always",
        };
        command.args(["serve", "--port", &port.to_string(), "--bind", "127.0.0.1"]);
        // Without a word it would be one from which the system gives clients theirs, and may be taken.
        if !more.iter().any(|word| word == CLUSTER_PORT) {
            let address = cluster::cluster_address(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
            command.args([CLUSTER_PORT, &address.port().to_string()]);
        }
        if let Some(cores) = contender.cores {
            command.args(["--cores", &cores.to_string()]);
        }
        command.args(["--appendfsync", policy, "--data-dir"]).arg(data.join(DATA_NAME));
    } else {
        let log = if durability == Durability::Always { "yes" } else { "no" };
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--daemonize", "no", "--save", ""]);
        command.args(["--appendonly", log, "--appendfsync", "always", "--dir"]).arg(data);
        // A rewrite would fork in the middle of a measurement.
        command.args(["--auto-aof-rewrite-percentage", "0"]);
    }
    command.args(more).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut left = leftovers();
    let child = command.spawn()?;
    left.servers.push(child.id());
    Ok(child)
}

/// A server that is up. It is ended when this is dropped.
pub struct RunningServer {
    child: Child,
    contender: Contender,
    durability: Durability,
    port: u16,
    /// More options for the program.
    more: Vec<String>,
    data: PathBuf,
}

impl RunningServer {
    /// Starts a server on a free port with an empty data directory and waits until it answers.
    pub fn start(contender: &Contender, durability: Durability, folder: &Folder) -> Result<Self> {
        Self::start_on(contender, durability, cluster::some_free_port()?, Vec::new(), folder)
    }

    /// Starts a server on this port, with options beside the usual ones.
    pub fn start_on(
        contender: &Contender,
        durability: Durability,
        port: u16,
        more: Vec<String>,
        folder: &Folder,
    ) -> Result<Self> {
        let data = Self::place_of(folder, port);
        fs::create_dir(&data)?;
        let child = spawn(contender, durability, port, &more, &data)?;
        let mut server = Self { child, contender: contender.clone(), durability, port, more, data };
        server.wait_until_up(START_TIMEOUT)?;
        Ok(server)
    }

    /// Where what belongs to the server at this port is.
    fn place_of(folder: &Folder, port: u16) -> PathBuf {
        folder.0.join(port.to_string())
    }

    /// The data directory of the Holdfast at this port.
    pub fn data_of(folder: &Folder, port: u16) -> PathBuf {
        Self::place_of(folder, port).join(DATA_NAME)
    }

    /// Kills the server without a word, starts it again with the same data, and waits until it serves them. Returns how
    /// long that took from the start on.
    pub fn restart(&mut self) -> Result<Duration> {
        let old = self.child.id();
        self.child.kill()?;
        self.child.wait()?;
        leftovers().servers.retain(|&server| server != old);
        let started = Instant::now();
        self.child = spawn(&self.contender, self.durability, self.port, &self.more, &self.data)?;
        self.wait_until_up(RESTART_TIMEOUT)?;
        Ok(started.elapsed())
    }

    /// Where it listens, as HOST:PORT.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// What it has said so far.
    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.data.join(LOG_NAME))?)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_until_up(&mut self, timeout: Duration) -> Result<()> {
        let started = Instant::now();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        loop {
            let ended = self.child.try_wait()?;
            if ended.is_none() && bench::serves(address) && self.is_who_answers() {
                return Ok(());
            }
            if ended.is_some() || started.elapsed() > timeout {
                let words = self.log().unwrap_or_default();
                let tail: Vec<&str> = words.lines().rev().take(5).collect();
                let state = if ended.is_some() { "it ended" } else { "it does not answer" };
                bail!("{state}, saying: {}", tail.into_iter().rev().collect::<Vec<_>>().join(" | "));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// False if the port is somebody else's, and this server will end because it has none.
    fn is_who_answers(&self) -> bool {
        let told = Talk::new(&self.address()).and_then(|mut talk| talk.info("server", "process_id"));
        told.is_ok_and(|told| told == self.pid().to_string())
    }

    /// Asks the server to end, waits for it, and removes its data.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_none() {
            let asked = Instant::now();
            kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM)?;
            while self.child.try_wait()?.is_none() {
                if asked.elapsed() > STOP_TIMEOUT {
                    self.child.kill()?;
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
        let mut left = leftovers();
        left.servers.retain(|&server| server != self.child.id());
        drop(left);
        let _ = fs::remove_dir_all(&self.data); // its parent is removed in the end
        Ok(())
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        if self.end().is_err() {
            let _ = self.child.kill();
        }
    }
}
