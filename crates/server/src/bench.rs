//! `holdfast bench`: load for any server that speaks the Redis protocol, and what came of it.

mod keys;
pub mod page;
mod parts;
pub mod record;
mod report;
mod requests;
mod worker;

use std::io::{IsTerminal, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use edge::ClientSecurity;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::{Pid, SysconfVar, sysconf};
use resp::{Frame, FrameDecoder};

pub use keys::Distribution;
use keys::KeyChooser;
use parts::Part;
use record::{Interval, Second};
pub use record::{Latencies, Outcome};
pub use report::grouped;
pub use requests::Workload;
use requests::{ACCOUNT, KEY_DIGITS, KEYS_MAX, Requests};
use worker::{Orders, Report, Supply};

use crate::connection::Connection;
use crate::import::parse_time;
use crate::login::password_of;
use crate::tls::{Stream, TlsArguments};

/// Longest wait for a server's first words.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// Transfers under way when the load ends are done by then.
const SETTLING_TIME: Duration = Duration::from_secs(5);
/// Bytes on their way at once while keys are loaded, per connection.
const FILL_BYTES: usize = 256 * 1024;
/// Connections that load keys, per server.
const FILL_CLIENTS: usize = 8;

/// Put load on servers, and report throughput, latency and errors.
///
/// Works with Holdfast, Redis and Valkey. Latency counts from the moment a request is sent, or, at a fixed rate, from
/// the moment it should have been sent, so the wait for a stalled server counts.
#[derive(clap::Args, Clone, Debug)]
pub struct BenchArguments {
    /// Servers, as HOST:PORT, several with commas between them
    #[arg(value_name = "HOST:PORT", value_delimiter = ',', default_value = "127.0.0.1:6379")]
    pub hosts: Vec<String>,
    /// A server, as other tools name it; instead of HOST:PORT
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "hosts")]
    pub server: Option<String>,
    /// Host of a server; instead of HOST:PORT
    #[arg(long, conflicts_with_all = ["hosts", "server"])]
    pub host: Option<String>,
    /// Its port; instead of HOST:PORT
    #[arg(long, short, conflicts_with_all = ["hosts", "server"])]
    pub port: Option<u16>,
    /// Connections to each server
    #[arg(long, short, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub clients: u64,
    /// Seconds to measure
    #[arg(long, short, default_value_t = 10.0)]
    pub seconds: f64,
    /// What each client does
    #[arg(long, short, value_enum, default_value_t = Workload::GetSet)]
    pub workload: Workload,
    /// A request to send instead, written as for redis-cli; {key} stands for the number of a key, {value} for a value
    #[arg(long, conflicts_with = "workload", value_name = "REQUEST")]
    pub command: Option<String>,
    /// Operations that each client sends together before it waits for the replies
    #[arg(long, short = 'P', default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub pipeline: u64,
    /// Bytes of a value
    #[arg(long, short = 'd', default_value_t = 128, value_parser = clap::value_parser!(u64).range(0..=512 << 20))]
    pub value_bytes: u64,
    /// Different keys
    #[arg(long, short, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..KEYS_MAX))]
    pub keys: u64,
    /// How keys are chosen
    #[arg(long, value_enum, default_value_t = Distribution::Uniform)]
    pub distribution: Distribution,
    /// Share of GETs in the workload mixed
    #[arg(long, default_value_t = 0.75)]
    pub read_ratio: f64,
    /// Operations per second in total, started on schedule even if the server stalls; without it, clients wait for
    /// replies
    #[arg(long, short)]
    pub rate: Option<f64>,
    /// Seconds of load before measuring
    #[arg(long, default_value_t = 1.0)]
    pub warmup: f64,
    /// Threads for the clients [default: half of the processors]
    #[arg(long, short)]
    pub threads: Option<usize>,
    /// User to authenticate as
    #[arg(long)]
    pub user: Option<String>,
    /// Password to authenticate with; REDISCLI_AUTH is read as well
    #[arg(long, short = 'a', alias = "pass", env = "HOLDFAST_PASSWORD", hide_env_values = true)]
    pub password: Option<String>,
    #[command(flatten)]
    pub tls: TlsArguments,
    /// Database to select
    #[arg(long, default_value_t = 0)]
    pub database: u32,
    /// What each connection asks for with CLIENT DURABILITY, of a Holdfast server: disk, memory, all
    #[arg(long, value_name = "LEVEL")]
    pub durability: Option<String>,
    /// Do not load the keys first, even if the workload reads them
    #[arg(long)]
    pub no_load: bool,
    /// Seed of all choices
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Report the CPU use of this process, too, as of a server on this machine; may be repeated, and adds up
    #[arg(long, value_name = "PID")]
    pub server_pid: Vec<u32>,
    /// Write the figures as JSON to a file, or to the standard output with -
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// Write charts of throughput and latency as one HTML page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Play one part of the load, for example 2/3: that share of the clients, the rate and the keys. Other processes,
    /// on other machines, play the other parts with the same options
    #[arg(long, value_name = "I/N")]
    pub part: Option<Part>,
    /// Begin at this time, in seconds of Unix time or as '2026-11-23 01:00:00' (UTC), with the keys loaded before
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub at: Option<i64>,
    /// Report on the parts of a load together, which they wrote with --json; nothing is loaded
    #[arg(long, value_name = "FILE", num_args = 1..)]
    #[arg(conflicts_with_all = ["hosts", "server", "host", "port", "part", "at"])]
    pub merge: Vec<PathBuf>,
    /// Show no progress
    #[arg(long, short)]
    pub quiet: bool,
    /// Processor that the load runs on.
    #[arg(skip)]
    pub processor: Option<usize>,
}

impl BenchArguments {
    /// The defaults, for a server at `host`.
    pub fn for_host(host: String) -> Self {
        Self {
            hosts: vec![host],
            server: None,
            host: None,
            port: None,
            clients: 50,
            seconds: 10.0,
            workload: Workload::GetSet,
            command: None,
            pipeline: 1,
            value_bytes: 128,
            keys: 100_000,
            distribution: Distribution::Uniform,
            read_ratio: 0.75,
            rate: None,
            warmup: 1.0,
            threads: None,
            user: None,
            password: None,
            tls: TlsArguments::default(),
            database: 0,
            durability: None,
            no_load: false,
            seed: 1,
            server_pid: Vec::new(),
            json: None,
            html: None,
            part: None,
            at: None,
            merge: Vec::new(),
            quiet: true,
            processor: None,
        }
    }

    fn validate(&self) -> Result<()> {
        ensure!(self.seconds.is_finite() && self.seconds >= 0.1, "--seconds must be at least 0.1");
        ensure!(self.warmup.is_finite() && self.warmup >= 0.0, "--warmup must not be negative");
        ensure!((0.0..=1.0).contains(&self.read_ratio), "--read-ratio must be between 0 and 1");
        ensure!(self.threads != Some(0), "--threads must be at least 1");
        ensure!(self.rate.is_none_or(|rate| rate.is_finite() && rate > 0.0), "--rate must be above 0");
        let part = self.part();
        ensure!(part.share_of(self.clients) > 0, "--part {part} of {} clients has none", self.clients);
        assert_eq!(self.workload == Workload::Command, self.command.is_some(), "one comes with the other");
        ensure!(
            self.workload.steps().is_empty() || self.pipeline == 1,
            "{} makes several round trips for each transaction: use --workload trans_at_once with --pipeline",
            self.workload.name()
        );
        Ok(())
    }

    fn part(&self) -> Part {
        self.part.unwrap_or(Part::WHOLE)
    }
}

/// Runs the benchmark and prints its report.
pub fn run(mut arguments: BenchArguments) -> Result<()> {
    if arguments.command.is_some() {
        arguments.workload = Workload::Command;
    }
    if let Some(server) = arguments.server.take() {
        arguments.hosts = vec![server];
    } else if arguments.host.is_some() || arguments.port.is_some() {
        let host = arguments.host.as_deref().unwrap_or("127.0.0.1");
        arguments.hosts = vec![place(host, arguments.port.unwrap_or(6379))];
    }
    let outcome = if arguments.merge.is_empty() {
        measure(&arguments)?
    } else {
        let (asked_for, outcome) = parts::merge(&arguments.merge)?;
        arguments = BenchArguments { json: arguments.json, html: arguments.html, ..asked_for };
        outcome
    };
    let json_alone = arguments.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
    if !json_alone {
        say!("{}", report::text(&arguments, &outcome));
    }
    if let Some(path) = &arguments.json {
        let text = match arguments.part {
            // It is long, and for the program that puts the parts together.
            Some(part) => parts::json_of(&arguments, part, &outcome).to_string(),
            None => format!("{:#}", report::json(&arguments, &outcome)),
        };
        if json_alone {
            say_line!("{text}");
        } else {
            std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    if let Some(path) = &arguments.html {
        let html = report::html(&arguments, &outcome);
        std::fs::write(path, html).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Runs the benchmark: checks the servers, loads the keys, warms up, measures.
pub fn measure(arguments: &BenchArguments) -> Result<Outcome> {
    let mut progress = Progress::new(arguments.quiet);
    let crew = Crew::new(arguments)?;
    if arguments.workload.reads() && !arguments.no_load {
        if arguments.quiet || progress.is_wanted() {
            crew.load_keys(&mut progress)?;
        } else {
            crate::waiting::during("loading keys", || crew.load_keys(&mut progress))?;
        }
    }
    let before = crew.totals()?;
    // A server that does not tell may still be measured.
    let servers = crew.addresses.iter().map(|address| crew.greeting.identify(*address).unwrap_or_default()).collect();
    let outcome = Outcome { servers, ..crew.measure(&mut progress)? };
    crew.compare_totals(&before)?;
    Ok(outcome)
}

/// Makes the request of `arguments`, or sets a value, once for each key.
pub fn fill(arguments: &BenchArguments) -> Result<()> {
    Crew::new(arguments)?.load_keys(&mut Progress::new(arguments.quiet))
}

struct Greeting {
    security: Option<ClientSecurity>,
    bytes: Vec<u8>,
    replies: usize,
    /// What connections ask for with CLIENT DURABILITY.
    durability: Option<String>,
}

impl Greeting {
    fn new(arguments: &BenchArguments) -> Result<Self> {
        let security = arguments.tls.security()?;
        let mut greeting = Self { security, bytes: Vec::new(), replies: 0, durability: None };
        match (&arguments.user, &password_of(arguments.password.as_deref())) {
            (Some(user), password) => greeting.say(&["AUTH", user, password.as_deref().unwrap_or_default()]),
            (None, Some(password)) => greeting.say(&["AUTH", password]),
            (None, None) => {}
        }
        if arguments.database != 0 {
            greeting.say(&["SELECT", &arguments.database.to_string()]);
        }
        if let Some(level) = &arguments.durability {
            greeting.say(&["CLIENT", "DURABILITY", level]);
            greeting.durability = Some(level.clone());
        }
        Ok(greeting)
    }

    fn say(&mut self, words: &[&str]) {
        resp::encode_request(&mut self.bytes, words);
        self.replies += 1;
    }

    /// The sum of all accounts of a server.
    fn total(&self, address: SocketAddr, accounts: u64) -> Result<i64> {
        const AT_ONCE: u64 = 1_000;
        let mut stream = Stream::connect(address, GREETING_TIMEOUT, self.security.as_ref())?;
        let mut bytes = self.bytes.clone();
        for first in (0..accounts).step_by(AT_ONCE as usize) {
            let names =
                (first..accounts.min(first + AT_ONCE)).map(|account| format!("{ACCOUNT}{account:0KEY_DIGITS$}"));
            let words: Vec<String> = std::iter::once("MGET".to_owned()).chain(names).collect();
            resp::encode_request(&mut bytes, &words);
        }
        stream.write_all(&bytes)?;
        stream.flush()?;
        let (mut decoder, mut chunk) = (FrameDecoder::new(), vec![0; 64 << 10]);
        let (mut replies, mut total) = (0, 0);
        while replies < self.replies as u64 + accounts.div_ceil(AT_ONCE) {
            let Some(reply) = decoder.next_frame()? else {
                let len = stream.read(&mut chunk).context("no answer to MGET")?;
                ensure!(len > 0, "the server closed the connection");
                decoder.extend(&chunk[..len]);
                continue;
            };
            replies += 1;
            ensure!(!reply.is_error(), "the accounts cannot be read: {reply}");
            let balances = reply.elements().unwrap_or_default().iter().filter_map(Frame::as_bytes);
            for balance in balances {
                let number = std::str::from_utf8(balance).ok().and_then(|text| text.parse::<i64>().ok());
                total += number.with_context(|| format!("an account holds {}", balance.escape_ascii()))?;
            }
        }
        Ok(total)
    }

    /// What a server is, and when what it acknowledges is on disk, as far as it tells.
    fn identify(&self, address: SocketAddr) -> Result<String> {
        let mut connection = Connection::open_secured(address, GREETING_TIMEOUT, self.security.as_ref())?;
        connection.send(&self.bytes)?;
        for _ in 0..self.replies {
            connection.receive()?;
        }
        let mut text = |words: &[&str]| -> Result<String> {
            let reply = connection.call(words)?;
            let words: Vec<&[u8]> = match reply.elements() {
                Some(elements) => elements.iter().filter_map(Frame::as_bytes).collect(),
                None => reply.as_bytes().filter(|_| !reply.is_error()).into_iter().collect(),
            };
            Ok(words.iter().map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" "))
        };
        let info = text(&["INFO"])?;
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.map(|value| value.trim().to_owned())
        };
        let version = match (field("holdfast_version"), field("valkey_version"), field("redis_version")) {
            (Some(version), ..) => format!("Holdfast {version}"),
            (_, Some(version), _) => format!("Valkey {version}"),
            (.., Some(version)) => format!("Redis {version}"),
            _ => "a server of unknown version".to_owned(),
        };
        let durability = match (field("durability"), field("aof_enabled").as_deref()) {
            (Some(durability), _) => durability,
            (_, Some("0")) => "no log (appendonly no)".to_owned(),
            _ => text(&["CONFIG", "GET", "appendfsync"])?,
        };
        let durability = match &self.durability {
            Some(level) => format!("{durability}; connections ask for {level}"),
            None => durability,
        };
        Ok(if durability.is_empty() { version } else { format!("{version}, {durability}") })
    }

    /// Greets a server and asks for a PONG, so that what is wrong is told before the load begins.
    fn try_on(&self, address: SocketAddr) -> Result<()> {
        let mut stream = Stream::connect(address, GREETING_TIMEOUT, self.security.as_ref())?;
        let mut bytes = self.bytes.clone();
        resp::encode_request(&mut bytes, &["PING"]);
        stream.write_all(&bytes)?;
        stream.flush()?;
        let mut decoder = FrameDecoder::new();
        let mut chunk = [0; 4096];
        let mut replies = 0;
        while replies <= self.replies {
            match decoder.next_frame()? {
                Some(Frame::Error(text)) => bail!("{}", String::from_utf8_lossy(&text)),
                Some(_) => replies += 1,
                None => {
                    let len = stream.read(&mut chunk).context("no answer to PING")?;
                    ensure!(len > 0, "the server closed the connection");
                    decoder.extend(&chunk[..len]);
                }
            }
        }
        Ok(())
    }
}

/// HOST:PORT, with brackets around an IPv6 address.
fn place(host: &str, port: u16) -> String {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn resolve(host: &str) -> Result<SocketAddr> {
    let with_port = if host.contains(':') { host.to_owned() } else { format!("{host}:6379") };
    let mut addresses = with_port.to_socket_addrs().with_context(|| format!("cannot resolve {host}"))?;
    addresses.next().with_context(|| format!("{host} has no address"))
}

/// Those who play the clients.
struct Crew<'a> {
    arguments: &'a BenchArguments,
    greeting: Greeting,
    addresses: Vec<SocketAddr>,
    requests: Arc<Requests>,
    threads: usize,
}

impl<'a> Crew<'a> {
    /// Checks what is asked for, and the servers.
    fn new(arguments: &'a BenchArguments) -> Result<Self> {
        arguments.validate()?;
        let requests = Arc::new(Requests::new(arguments.value_bytes as usize, arguments.command.as_deref())?);
        let greeting = Greeting::new(arguments)?;
        let mut addresses = Vec::new();
        for host in &arguments.hosts {
            let address = resolve(host)?;
            greeting.try_on(address).with_context(|| format!("cannot use the server at {host}"))?;
            addresses.push(address);
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let connections = arguments.part().share_of(arguments.clients) as usize * addresses.len();
        let threads = arguments.threads.unwrap_or((processors / 2).max(1)).min(connections);
        Ok(Self { arguments, greeting, addresses, requests, threads })
    }

    /// What all accounts of each server hold together, if that is what the workload is about.
    fn totals(&self) -> Result<Vec<i64>> {
        // Of a part, the transfers of the others are under way: what all hold now cannot be read account by account.
        if self.arguments.workload != Workload::Transfer || self.arguments.part.is_some() {
            return Ok(Vec::new());
        }
        self.addresses.iter().map(|address| self.greeting.total(*address, self.arguments.keys)).collect()
    }

    /// Fails if money was made or lost. The last transfers may still be under way.
    fn compare_totals(&self, before: &[i64]) -> Result<()> {
        let begun = Instant::now();
        loop {
            let after = self.totals()?;
            if after == before {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < SETTLING_TIME,
                "all accounts held {before:?} before the transfers and {after:?} after them: money was made or lost"
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// How many threads there are in all parts of the load, if each has as many as this one.
    fn places(&self) -> u64 {
        self.arguments.part().of * self.threads as u64
    }

    /// Orders for the thread `share`, which plays every `threads`-th of `clients` on each server.
    fn orders(&self, share: usize, clients: usize, epoch: Instant, supply: Supply, reports: Reports) -> Orders {
        let arguments = self.arguments;
        let connections = clients * self.addresses.len();
        Orders {
            epoch,
            addresses: self.addresses.clone(),
            connections: (share..connections).step_by(self.threads).map(|index| index % self.addresses.len()).collect(),
            security: self.greeting.security.clone(),
            greeting: self.greeting.bytes.clone(),
            greeting_replies: self.greeting.replies,
            workload: arguments.workload,
            read_ratio: arguments.read_ratio,
            pipeline: arguments.pipeline as usize,
            requests: Arc::clone(&self.requests),
            keys: KeyChooser::new(
                arguments.distribution,
                arguments.keys,
                arguments.seed,
                arguments.part().place_of(share as u64),
                self.places(),
            ),
            supply,
            measured_from_ns: u64::MAX,
            end_ns: u64::MAX,
            reports,
        }
    }

    fn start(&self, orders: Orders) -> Result<std::thread::JoinHandle<std::io::Result<()>>> {
        let processor = self.arguments.processor;
        let thread = std::thread::Builder::new().name("clients".to_owned()).spawn(move || {
            if let Some(processor) = processor {
                pin_this_thread(&[processor])?;
            }
            worker::run(orders)
        })?;
        Ok(thread)
    }

    fn load_keys(&self, progress: &mut Progress) -> Result<()> {
        let epoch = Instant::now();
        let (reports, mail) = channel();
        let done = Arc::new(AtomicU64::new(0));
        let (keys, part) = (self.arguments.keys, self.arguments.part());
        let wanted = part.share_of(keys) * self.addresses.len() as u64;
        let clients = FILL_CLIENTS.max(self.threads).min(self.arguments.clients as usize).max(self.threads);
        let mut threads = Vec::new();
        for share in 0..self.threads {
            let supply = Supply::Fill {
                next: vec![part.place_of(share as u64); self.addresses.len()],
                step: self.places(),
                bound: keys,
                done: Arc::clone(&done),
            };
            let mut orders = self.orders(share, clients, epoch, supply, reports.clone());
            // Every thread fills its share of the keys at every server, so it needs a connection to each.
            orders.connections = (0..clients.div_ceil(self.threads) * self.addresses.len())
                .map(|index| index % self.addresses.len())
                .collect();
            orders.pipeline = (FILL_BYTES / (self.arguments.value_bytes as usize + 64)).clamp(1, 256);
            threads.push(self.start(orders)?);
        }
        drop(reports);
        let mut error = None;
        loop {
            match mail.recv_timeout(Duration::from_millis(100)) {
                Ok(Report::Error(text)) => {
                    // The threads end with the process: nothing can be measured without the keys.
                    bail!("cannot load the keys: {text}");
                }
                Ok(Report::Interval(..) | Report::End { .. }) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let done = done.load(Ordering::Relaxed);
                    let percent = done as f64 * 100.0 / wanted as f64;
                    progress.show(&format!("loading keys: {percent:.0} % of {}", grouped(wanted as f64, 0)));
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        for thread in threads {
            if let Err(failure) = thread.join().expect("a thread that plays clients does not panic") {
                error.get_or_insert(failure);
            }
        }
        if let Some(error) = error {
            return Err(error).context("cannot load the keys");
        }
        Ok(())
    }

    fn measure(&self, progress: &mut Progress) -> Result<Outcome> {
        let arguments = self.arguments;
        let (part, clients) = (arguments.part(), arguments.part().share_of(arguments.clients) as usize);
        if let Some(at) = arguments.at {
            wait_until(at, progress)?;
        }
        let begun_at_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let epoch = Instant::now();
        let nanoseconds = |seconds: f64| (seconds * 1e9) as u64;
        let measured_from_ns = nanoseconds(arguments.warmup);
        let end_ns = measured_from_ns + nanoseconds(arguments.seconds);
        let (reports, mail) = channel();
        let mut threads = Vec::new();
        for share in 0..self.threads {
            let supply = match arguments.rate {
                None => Supply::Closed,
                // Threads take turns, so that all together begin evenly.
                Some(rate) => Supply::Rate {
                    first_ns: (part.place_of(share as u64) as f64 / rate * 1e9) as u64,
                    period_ns: self.places() as f64 / rate * 1e9,
                    begun: 0,
                },
            };
            let mut orders = self.orders(share, clients, epoch, supply, reports.clone());
            orders.measured_from_ns = measured_from_ns;
            orders.end_ns = end_ns;
            threads.push(self.start(orders)?);
        }
        drop(reports);

        if arguments.warmup >= 0.5 {
            progress.show("warming up");
        }
        std::thread::sleep(Duration::from_nanos(measured_from_ns).saturating_sub(epoch.elapsed()));
        let cpu_now = || (cpu_seconds(std::process::id()), cpu_seconds_of(&arguments.server_pid));
        let cpu_before = cpu_now();
        let mut cpu_after = None;
        let mut seconds = Seconds::new(self.threads, arguments.seconds);
        let mut intervals: Vec<Interval> = Vec::new();
        let mut unsent = 0;
        let mut error_texts: Vec<String> = Vec::new();
        loop {
            let left = Duration::from_nanos(end_ns).saturating_sub(epoch.elapsed());
            if left.is_zero() && cpu_after.is_none() {
                cpu_after = Some(cpu_now());
            }
            match mail.recv_timeout(left.max(Duration::from_millis(1))) {
                Ok(Report::Interval(second, interval)) => {
                    if arguments.part.is_some() {
                        if intervals.len() <= second {
                            intervals.resize_with(second + 1, Interval::new);
                        }
                        intervals[second].merge(&interval);
                    }
                    if let Some(row) = seconds.add(second, &interval) {
                        progress.show(&report::progress_line(second + 1, arguments, &row));
                    }
                }
                Ok(Report::Error(text)) => {
                    if error_texts.len() < 5 && !error_texts.contains(&text) {
                        error_texts.push(text);
                    }
                }
                Ok(Report::End { unsent: more }) => unsent += more,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        progress.clear();
        for thread in threads {
            thread.join().expect("a thread that plays clients does not panic").context("a client thread failed")?;
        }
        let cpu_after = cpu_after.unwrap_or_else(cpu_now);
        let spent = |before: Option<f64>, after: Option<f64>| Some(after? - before?);
        Ok(Outcome {
            servers: Vec::new(),
            begun_at_unix_ms,
            elapsed_seconds: arguments.seconds,
            total: seconds.total,
            seconds: seconds.rows,
            intervals,
            unsent,
            error_texts,
            client_cpu_seconds: spent(cpu_before.0, cpu_after.0).unwrap_or(0.0),
            server_cpu_seconds: spent(cpu_before.1, cpu_after.1),
        })
    }
}

/// Waits for a second of Unix time.
fn wait_until(at: i64, progress: &mut Progress) -> Result<()> {
    let at = UNIX_EPOCH + Duration::from_secs(u64::try_from(at).context("--at lies before 1970")?);
    if let Ok(late) = SystemTime::now().duration_since(at) {
        bail!("--at was {:.1} s ago when the keys were loaded and the servers had answered", late.as_secs_f64());
    }
    while let Ok(left) = at.duration_since(SystemTime::now()) {
        if left.is_zero() {
            break;
        }
        progress.show(&format!("begins in {:.0} s", left.as_secs_f64()));
        std::thread::sleep(left.min(Duration::from_secs(1)));
    }
    Ok(())
}

type Reports = std::sync::mpsc::Sender<Report>;

/// Puts the threads' seconds together.
struct Seconds {
    threads: usize,
    length_seconds: f64,
    total: Interval,
    rows: Vec<Second>,
    /// Seconds that some thread has reported and some thread has not.
    partial: std::collections::BTreeMap<usize, (usize, Interval)>,
}

impl Seconds {
    fn new(threads: usize, length_seconds: f64) -> Self {
        Self { threads, length_seconds, total: Interval::new(), rows: Vec::new(), partial: Default::default() }
    }

    /// Adds a thread's second; the row, if that was the last thread.
    fn add(&mut self, second: usize, interval: &Interval) -> Option<Second> {
        self.total.merge(interval);
        let (reported, sum) = self.partial.entry(second).or_insert_with(|| (0, Interval::new()));
        *reported += 1;
        sum.merge(interval);
        if *reported < self.threads {
            return None;
        }
        let (_, sum) = self.partial.remove(&second)?;
        let row = Second::of(&sum, second, self.length_seconds);
        if self.rows.len() <= second {
            self.rows.resize(second + 1, Second::default());
        }
        self.rows[second] = row;
        Some(row)
    }
}

/// One line on a terminal that keeps changing; nothing where the output is no terminal.
pub struct Progress {
    shown: bool,
    wanted: bool,
}

impl Progress {
    /// Shows nothing if `quiet`, or if nobody could see it.
    pub fn new(quiet: bool) -> Self {
        Self { shown: false, wanted: !quiet && std::io::stderr().is_terminal() }
    }

    /// True if somebody sees it.
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Replaces the line.
    pub fn show(&mut self, line: &str) {
        if self.wanted {
            eprint!("\r\x1b[2K{line}");
            self.shown = true;
        }
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            eprint!("\r\x1b[2K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// True if a server there answers questions about its data: one that is up may still be loading them.
pub fn serves(address: SocketAddr) -> bool {
    let mut greeting = Greeting { security: None, bytes: Vec::new(), replies: 0, durability: None };
    greeting.say(&["DBSIZE"]);
    greeting.try_on(address).is_ok()
}

/// CPU time of a process since its start, user and system, of all its threads; none if there is no such process.
pub fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything; the fields behind it are numbers (proc(5)).
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    let ticks_per_second = sysconf(SysconfVar::CLK_TCK).ok()??;
    Some(ticks as f64 / ticks_per_second as f64)
}

/// CPU time of several processes in all; none if there are none, or one of them has ended.
fn cpu_seconds_of(pids: &[u32]) -> Option<f64> {
    if pids.is_empty() {
        return None;
    }
    pids.iter().map(|&pid| cpu_seconds(pid)).sum()
}

/// Keeps the calling thread, and all that it starts later, on some of the processors.
pub fn pin_this_thread(processors: &[usize]) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    for &processor in processors {
        set.set(processor)?;
    }
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

#[cfg(test)]
mod tests;
