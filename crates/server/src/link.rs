//! `holdfast link`: two Redis servers, far apart, of which one replicates from the other over a thin line.
//!
//! ```text
//!   near Redis ──PSYNC──▶ near end ══ line: zstd in TLS ══▶ far end ──PSYNC──▶ far Redis
//!                          │ disk                            │ disk
//!                          └ all that was not taken          └ copy and stream, for a Redis that comes back
//! ```
//!
//! Bytes of the stream are never changed, and keep their places and the name of their history: offsets mean the same at
//! all four. Suggested order of reading: [`store`], [`history`], [`line`], [`source`], [`near`], [`far`], [`replica`],
//! [`status`].

/// Tells the operator something.
macro_rules! end_log {
    ($($argument:tt)*) => { $crate::link::tell(format_args!($($argument)*)) };
}

mod far;
mod fault;
mod history;
mod lag;
mod line;
mod near;
mod replica;
mod source;
mod status;
mod store;

use std::fmt;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use edge::{LineOptions, LineSecurity, Supervisor};

use self::far::Far;
use self::fault::is_of_disk;
use self::line::{Effort, Receiver, Role, SILENCE_MAX, Sender, WINDOW_LOG_MAX};
use self::near::Near;
use self::status::{LineReport, Measured, Report};
use crate::migrate::source::{Address, SourceTls};

/// How often files are synced: what a crash of the machine may take.
const SYNC_INTERVAL: Duration = Duration::from_millis(200);

/// How often the log says how it goes.
const TELL_INTERVAL: Duration = Duration::from_secs(60);

/// Between attempts to make the line.
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// How long making the line may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(15);

/// Lines that are being made at once.
const HANDSHAKES_MAX: u64 = 32;

/// Carry replication between two Redis servers over a slow link: compressed, encrypted, across disconnections and
/// crashes
#[derive(clap::Args, Clone, Debug)]
pub struct LinkArguments {
    #[command(subcommand)]
    verb: LinkVerb,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum LinkVerb {
    /// Run an end of a link that the other end connects to
    Listen(EndArguments),
    /// Run an end of a link that connects to the other end
    Connect(EndArguments),
    /// Show the state of an end of a link; the exit code is 0 if its line and its Redis are connected
    Status(StatusArguments),
}

#[derive(clap::Args, Clone, Debug)]
struct EndArguments {
    /// Where the line is: the address to listen at, or that of the other end
    #[arg(value_name = "HOST:PORT")]
    line: String,
    #[command(flatten)]
    side: SideArguments,
    /// Directory for the backlog, positions and copies; of this end alone
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Most megabytes of the stream on disk; the oldest go
    #[arg(long, value_name = "MEGABYTES", default_value_t = 4_096, value_parser = clap::value_parser!(u64).range(1..))]
    backlog_mb: u64,
    /// Password to authenticate with, at the near Redis
    #[arg(long, env = "HOLDFAST_SOURCE_PASSWORD", hide_env_values = true)]
    source_password: Option<String>,
    #[command(flatten)]
    source_tls: SourceTls,
    /// Password that the far Redis must show (its masterauth)
    #[arg(long, env = "HOLDFAST_LINK_REPLICA_PASSWORD", hide_env_values = true, requires = "serve")]
    replica_password: Option<String>,
    #[command(flatten)]
    security: SecurityArguments,
    /// How hard to compress, from 1 to 19
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(i32).range(1..=19))]
    level: i32,
    /// Megabytes of the stream that compression looks back on; both ends need so much memory
    #[arg(long, value_name = "MEGABYTES", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    window_mb: u32,
    /// Milliseconds for which changes are collected before they are sent; more compresses better
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    batch_ms: u64,
    /// Serve /status, /metrics and /health by HTTP at this address
    #[arg(long, value_name = "HOST:PORT")]
    status: Option<String>,
    /// Print only warnings and results
    #[arg(long, short)]
    quiet: bool,
}

/// Which end it is.
#[derive(clap::Args, Clone, Debug)]
#[group(required = true, multiple = false)]
struct SideArguments {
    /// This is the near end: the Redis to follow, redis://[USER:PASSWORD@]HOST:PORT or rediss://; more than one, if it
    /// may fail over to another
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    from: Vec<String>,
    /// This is the far end: where the far Redis finds it with REPLICAOF
    #[arg(long, value_name = "HOST:PORT")]
    serve: Option<String>,
}

#[derive(clap::Args, Clone, Debug)]
struct SecurityArguments {
    /// File with a secret that both ends have, at least 16 bytes: the line is TLS, and certificates are not needed
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Certificates of the authorities one of which must have signed the other end's, in PEM form
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// Certificate to show to the other end
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// No TLS: anyone who reaches the line has all data. For lines that are secured otherwise
    #[arg(long, conflicts_with_all = ["secret_file", "cacert", "cert"])]
    plain: bool,
}

#[derive(clap::Args, Clone, Debug)]
struct StatusArguments {
    /// The end's status port
    #[arg(value_name = "HOST:PORT")]
    place: String,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// An end of a link.
trait End: Send + Sync {
    /// A connection is there: the number by which it is known.
    fn begin_session(&self) -> u64;

    /// Serves it until it is over. `hang_up` ends it for both directions.
    fn session(&self, number: u64, sender: Sender, receiver: Receiver, hang_up: &(dyn Fn() + Sync)) -> Result<()>;

    /// Makes durable what has come.
    fn sync(&self) -> Result<()>;

    /// How it is.
    fn measure(&self) -> Measured;
}

/// Tells the operator something, with the time.
fn tell(text: fmt::Arguments<'_>) {
    eprintln!("{} link: {text}", edge::utc(edge::unix_millis()));
}

/// Runs `holdfast link`.
///
/// # Errors
/// What an operator must know.
pub fn run(arguments: &LinkArguments) -> Result<()> {
    match &arguments.verb {
        LinkVerb::Listen(end) => run_end(end, false),
        LinkVerb::Connect(end) => run_end(end, true),
        LinkVerb::Status(status) => status::show(&status.place, status.json),
    }
}

impl SecurityArguments {
    fn security(&self) -> Result<Option<LineSecurity>> {
        if self.plain {
            return Ok(None);
        }
        let secret = match &self.secret_file {
            None => None,
            Some(path) => {
                let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
                Some(bytes.trim_ascii().to_vec())
            }
        };
        let own = self.cert.clone().zip(self.key.clone());
        let options = LineOptions { secret, authorities: self.cacert.clone(), own };
        let security = LineSecurity::new(&options).map_err(|why| anyhow!(why));
        security.context("the line needs --secret-file, --cacert with --cert and --key, or --plain").map(Some)
    }
}

/// What connections of the line are made with.
struct Line {
    security: Option<LineSecurity>,
    role: Role,
    effort: Effort,
    report: LineReport,
}

impl Line {
    /// Serves a connection until it is over; fails if it was of no use from the beginning.
    fn carry(&self, end: &dyn End, socket: TcpStream, is_caller: bool) -> Result<()> {
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(HANDSHAKE_MAX))?;
        socket.set_write_timeout(Some(SILENCE_MAX))?;
        let below = socket.try_clone()?;
        let halves = match &self.security {
            Some(security) => security.secure(socket, is_caller).context("the line cannot be secured")?,
            None => edge::plain_line(socket),
        };
        let (sender, receiver) = line::greet(halves, self.role, self.effort, &self.report.sent, &self.report.received)?;
        below.set_read_timeout(Some(SILENCE_MAX))?;
        let number = end.begin_session();
        self.report.note_up(number);
        let place = below.peer_addr().map_or_else(|_| "nowhere".to_owned(), |address| address.to_string());
        end_log!("the line with {place} is up");
        let hang_up = || {
            // It may be over already.
            let _ = below.shutdown(Shutdown::Both);
        };
        let ended = end.session(number, sender, receiver, &hang_up);
        self.note_cut(Some(number), &ended.err().unwrap_or_else(|| anyhow!("the other end has hung up")));
        Ok(())
    }

    fn note_cut(&self, session: Option<u64>, error: &anyhow::Error) {
        let why = format!("{error:#}");
        if self.report.note_cut(session, &why) {
            end_log!("the line is down: {why}");
        }
        if is_of_disk(error) {
            fail(error);
        }
    }
}

/// Ends the process: who supervises it starts it again when there is a disk.
fn fail(error: &anyhow::Error) -> ! {
    end_log!("ends: {error:#}");
    std::process::exit(1)
}

fn listen_at(place: &str) -> Result<TcpListener> {
    TcpListener::bind(place).with_context(|| format!("nothing can listen at {place}"))
}

fn is_local(listener: &TcpListener) -> bool {
    listener.local_addr().is_ok_and(|address| address.ip().is_loopback())
}

fn run_end(arguments: &EndArguments, is_caller: bool) -> Result<()> {
    let security = arguments.security.security()?;
    let role = if arguments.side.serve.is_some() { Role::Far } else { Role::Near };
    let window_log = (arguments.window_mb.ilog2() + 20).min(WINDOW_LOG_MAX);
    let effort = Effort { level: arguments.level, window_log };
    let line = Arc::new(Line { security, role, effort, report: LineReport::default() });
    std::fs::create_dir_all(&arguments.dir).with_context(|| arguments.dir.display().to_string())?;
    let _lock = edge::DirectoryLock::acquire(&arguments.dir).map_err(|error| {
        let dir = arguments.dir.display();
        match error.kind() {
            std::io::ErrorKind::WouldBlock => anyhow!("{dir} is in use by another process"),
            _ => anyhow!("{dir}: {error}"),
        }
    })?;
    let bytes_max = arguments.backlog_mb << 20;
    let line_listener = if is_caller { None } else { Some(listen_at(&arguments.line)?) };
    let status_listener = arguments.status.as_deref().map(listen_at).transpose()?;
    let end: Arc<dyn End> = match &arguments.side.serve {
        Some(place) => {
            let listener = listen_at(place)?;
            ensure!(
                arguments.replica_password.is_some() || is_local(&listener),
                "{place} gives all data to anyone: set a password that the far Redis shows (--replica-password, \
                 and masterauth there), or listen at a loopback address"
            );
            let far = Arc::new(Far::open(arguments.dir.clone(), bytes_max)?);
            let (serving, password) = (Arc::clone(&far), arguments.replica_password.clone());
            thread::spawn(move || replica::serve(&serving, &listener, password.as_deref()));
            far
        }
        None => {
            let password = arguments.source_password.as_deref();
            let address = |text: &String| Address::parse(text, password, &arguments.source_tls);
            let addresses = arguments.side.from.iter().map(address).collect::<Result<Vec<_>>>()?;
            let batch = Duration::from_millis(arguments.batch_ms);
            let near = Arc::new(Near::open(arguments.dir.clone(), bytes_max, addresses, batch)?);
            let following = Arc::clone(&near);
            thread::spawn(move || {
                if let Err(error) = following.follow() {
                    fail(&error)
                }
            });
            near
        }
    };
    if let Some(listener) = status_listener {
        let (end, line) = (Arc::clone(&end), Arc::clone(&line));
        thread::spawn(move || status::serve(&listener, &|| Report::new(&end.measure(), &line.report)));
    }
    let (lines_end, lines, place) = (Arc::clone(&end), Arc::clone(&line), arguments.line.clone());
    match line_listener {
        Some(listener) => thread::spawn(move || accept_lines(&lines, &lines_end, &listener)),
        None => thread::spawn(move || make_lines(&lines, &*lines_end, &place)),
    };
    supervise(&*end, &line, arguments.quiet)
}

/// Makes the line again and again.
fn make_lines(line: &Line, end: &dyn End, place: &str) {
    let mut retry = RETRY_MIN;
    loop {
        match dial(place).and_then(|socket| line.carry(end, socket, true)) {
            Ok(()) => retry = RETRY_MIN,
            Err(error) => line.note_cut(None, &error),
        }
        thread::sleep(retry);
        retry = (retry * 2).min(RETRY_MAX);
    }
}

fn dial(place: &str) -> Result<TcpStream> {
    let addresses: Vec<SocketAddr> =
        place.to_socket_addrs().with_context(|| format!("{place} is no HOST:PORT"))?.collect();
    let mut last = anyhow!("{place} has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, HANDSHAKE_MAX) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = anyhow!("{place} does not answer: {error}"),
        }
    }
    Err(last)
}

/// Serves anyone who makes the line. The last one counts: the one before may be dead without having been told.
fn accept_lines(line: &Arc<Line>, end: &Arc<dyn End>, listener: &TcpListener) {
    let there = Arc::new(AtomicU64::new(0));
    loop {
        let socket = match listener.accept() {
            Ok((socket, _)) => socket,
            Err(_) => {
                thread::sleep(RETRY_MIN);
                continue;
            }
        };
        if there.fetch_add(1, Ordering::Relaxed) >= HANDSHAKES_MAX {
            there.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (line, end, there) = (Arc::clone(line), Arc::clone(end), Arc::clone(&there));
        thread::spawn(move || {
            let carried = line.carry(&*end, socket, false);
            there.fetch_sub(1, Ordering::Relaxed);
            // What is no other end must not look like a cut of the line that there is.
            if let Err(error) = carried {
                end_log!("a connection to the line is turned away: {error:#}");
            }
        });
    }
}

/// Keeps an end in order until the process is told to end.
fn supervise(end: &dyn End, line: &Line, is_quiet: bool) -> Result<()> {
    let over = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&over))?;
    }
    let supervisor = Supervisor::of_environment();
    supervisor.ready();
    let (mut sampled, mut told) = (Instant::now(), Instant::now());
    while !over.load(Ordering::Relaxed) {
        thread::sleep(SYNC_INTERVAL);
        if let Err(error) = end.sync() {
            fail(&error);
        }
        if sampled.elapsed() >= Duration::from_secs(1) {
            sampled = Instant::now();
            let measured = end.measure();
            line.report.sample(&measured);
            let text = Report::new(&measured, &line.report).line();
            supervisor.lives();
            supervisor.status(&text);
            if told.elapsed() >= TELL_INTERVAL && !is_quiet {
                told = Instant::now();
                tell(format_args!("{text}"));
            }
        }
    }
    supervisor.stopping();
    end.sync()?;
    tell(format_args!("stopped; everything received is on disk"));
    Ok(())
}
