//! A server under test: started on a free port, watched, asked to stop, or killed.

use std::fs::{self, File};
use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::{Client, Folder, PATIENCE};

/// When an acknowledged write is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Always,
    Everysec,
    No,
}

impl Policy {
    /// As `--appendfsync` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Everysec => "everysec",
            Self::No => "no",
        }
    }
}

/// What to start.
#[derive(Clone)]
pub struct ServerOptions {
    pub data_folder: PathBuf,
    pub policy: Policy,
    pub port: u16,
    pub extra: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// Its words go here: not to the data folder, which belongs to the server, nor to the same disk, which may be full.
    log_folder: Arc<Folder>,
}

impl ServerOptions {
    /// A server on a free port, with its data in `data_folder`.
    pub fn new(data_folder: &Path) -> Self {
        Self {
            data_folder: data_folder.to_path_buf(),
            policy: Policy::Always,
            port: free_port(),
            extra: Vec::new(),
            environment: Vec::new(),
            log_folder: Arc::new(Folder::new()),
        }
    }

    /// With another policy than `always`.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// With further words on the command line.
    pub fn extra(mut self, words: &[&str]) -> Self {
        self.extra.extend(words.iter().map(|word| (*word).to_owned()));
        self
    }

    /// Let in by anyone who made the cluster of the first of these folders that belongs to one with an authority.
    pub fn invited_by<'a>(mut self, data_folders: impl IntoIterator<Item = &'a Path>) -> Self {
        let inviter = data_folders.into_iter().find(|folder| folder.join(edge::AUTHORITY_FILE).exists());
        if let Some(folder) = inviter {
            self.environment.push(("HOLDFAST_TOKEN".to_owned(), token_of(folder, Duration::from_secs(3_600))));
        }
        self
    }

    fn command(&self) -> Command {
        let binary = binary();
        let mut command = Command::new(&binary);
        if binary.ends_with("redis-server") {
            // The tests themselves are tested against a stock server: what they demand must be possible, and what
            // they call a loss must be found where there is one.
            fs::create_dir_all(&self.data_folder).expect("a data folder");
            command.args(["--save", "", "--appendonly", "yes", "--dir"]);
        } else {
            command.args(["serve", "--data-dir"]);
        }
        command.arg(&self.data_folder);
        command.args(["--port", &self.port.to_string(), "--appendfsync", self.policy.name()]);
        command.args(&self.extra);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// A token of the cluster of a data folder, good for so long from now.
pub fn token_of(data_folder: &Path, duration: Duration) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock");
    edge::invite_from_directory(data_folder, now.as_secs(), duration).expect("an authority").to_text()
}

/// The binary under test: the release build if the caller made one, otherwise cargo's.
pub fn binary() -> PathBuf {
    std::env::var_os("HOLDFAST_BINARY").map_or_else(|| env!("CARGO_BIN_EXE_holdfast").into(), PathBuf::from)
}

/// Ports of tests. The tools take theirs from above; the system gives clients theirs, and tests' nodes have theirs for
/// one another, from elsewhere.
const PORTS: Range<u16> = 10_000..12_000;

/// A port nobody listens on at this moment, and no other test of this process is given for a long time.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Processes that are started together begin far from each other.
    let (count, first) = (u32::from(PORTS.end - PORTS.start), std::process::id().wrapping_mul(331));
    let mut offered = (0..count).map(|_| first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count);
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    offered.find_map(|nth| Some(PORTS.start + nth as u16).filter(|port| is_free(*port))).expect("a free port")
}

/// How a server ended, and what it said.
#[derive(Debug)]
pub struct Exit {
    pub status: ExitStatus,
    pub log: String,
}

/// A running server, killed when dropped.
pub struct Server {
    child: Child,
    options: ServerOptions,
    log: PathBuf,
}

impl Server {
    /// Starts one and waits until it answers.
    #[track_caller]
    pub fn start(options: &ServerOptions) -> Self {
        match Self::try_start(options) {
            Ok(server) => server,
            Err(exit) => panic!("the server ended at its start with {}:\n{}", exit.status, exit.log),
        }
    }

    /// Starts one and waits until it answers, or ends.
    #[track_caller]
    pub fn try_start(options: &ServerOptions) -> Result<Self, Exit> {
        let mut server = Self::spawn(options);
        let started = Instant::now();
        loop {
            // A patience of its own: what answers at the port may be a stranger.
            if let Some(mut client) = Client::try_connect(options.port)
                && client.is_patient_for(Duration::from_secs(1))
                && client.try_call(&["DBSIZE"]).is_some_and(|reply| !reply.is_error() || is_no_auth(&reply))
                && server.is_who_answers(&mut client)
            {
                return Ok(server);
            }
            if let Some(status) = server.child.try_wait().expect("a child to wait for") {
                return Err(Exit { status, log: server.log() });
            }
            assert!(started.elapsed() < PATIENCE, "no answer after {PATIENCE:?}:\n{}", server.log());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// False if the port is somebody else's, and this one will end because it has none.
    fn is_who_answers(&self, client: &mut Client) -> bool {
        let id = format!("process_id:{}", self.pid());
        client.try_call(&["INFO", "server"]).is_some_and(|reply| {
            let text = String::from_utf8_lossy(reply.as_bytes().unwrap_or_default());
            is_no_auth(&reply) || text.lines().any(|line| line == id)
        })
    }

    /// Starts one and waits for nothing.
    #[track_caller]
    pub fn spawn(options: &ServerOptions) -> Self {
        let log = options.log_folder.path().join("server.log");
        let file = File::options().create(true).append(true).open(&log).expect("a log file");
        let errors = file.try_clone().expect("the log file twice");
        let mut command = options.command();
        let child = command.stdin(Stdio::null()).stdout(file).stderr(errors).spawn();
        let child = child.unwrap_or_else(|error| panic!("cannot start {}: {error}", binary().display()));
        Self { child, options: options.clone(), log }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.options.port
    }

    /// A new connection.
    #[track_caller]
    pub fn client(&self) -> Client {
        Client::try_connect(self.options.port).expect("a connection to the server")
    }

    /// Everything it has said, over all its starts with these options.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has said this.
    #[track_caller]
    pub fn wait_for_log(&self, words: &str) {
        let begun = Instant::now();
        while !self.log().contains(words) {
            assert!(begun.elapsed() < PATIENCE, "not said: {words}\n{}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Resident memory, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("its status");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its resident memory");
        let kibibytes: u64 = line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number");
        kibibytes * 1024
    }

    /// Sends a signal by its name, such as `TERM`.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(status.expect("kill runs").success(), "no process took SIG{name}");
    }

    /// True while it has not ended.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child to wait for").is_none()
    }

    /// Waits until it ends by itself, or because it was asked to.
    #[track_caller]
    pub fn wait(&mut self) -> Exit {
        let asked = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child to wait for") {
                return Exit { status, log: self.log() };
            }
            assert!(asked.elapsed() < PATIENCE, "still there after {PATIENCE:?}:\n{}", self.log());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Asks it to stop, as an operator would, and waits.
    #[track_caller]
    pub fn stop(mut self) -> Exit {
        self.signal("TERM");
        self.wait()
    }

    /// Ends it without asking.
    pub fn kill(mut self) {
        self.child.kill().expect("a child to kill");
        self.child.wait().expect("a child to wait for");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_no_auth(reply: &resp::Frame) -> bool {
    reply.as_bytes().is_some_and(|text| text.starts_with(b"NOAUTH"))
}
