//! What faults are made with: a server, clients, control groups, a network between two namespaces. Each thing is undone
//! when it is dropped.

use std::cell::Cell;
use std::fmt;
use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::faults::needs;
use crate::interrupt;
use crate::process::{Family, output, run};

/// How long a server may take to answer its first request.
const START_MAX: Duration = Duration::from_secs(30);

/// How long a control group may take to become empty.
const REMOVAL_MAX: Duration = Duration::from_secs(5);

/// A packet is carried from one namespace to another by this program: kernels without sch_netem can delay none.
const CABLE: &str = include_str!("cable.py");

/// Slows syncs of one process: loaded before its libraries.
const SLOW_SYNC: &str = include_str!("slow_sync.c");

/// This machine does not permit something.
#[derive(Debug)]
pub struct NotPossible(pub String);

impl fmt::Display for NotPossible {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "not possible here: {}", self.0)
    }
}

impl std::error::Error for NotPossible {}

/// The same as an error.
pub fn not_possible(why: impl Into<String>) -> anyhow::Error {
    NotPossible(why.into()).into()
}

/// Where a fault takes place.
pub struct Ground {
    binary: PathBuf,
    redis: bool,
    folder: PathBuf,
    next: Cell<u32>,
}

impl Ground {
    pub fn new(binary: &Path, redis: bool, directory: &Path) -> Result<Self> {
        let folder = directory.join(format!("holdfast-doctor-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self { binary: binary.to_owned(), redis, folder, next: Cell::new(0) })
    }

    /// A file that goes with it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The processor with the highest number of those that this process may use, as taskset has it.
    pub fn last_processor(&self) -> Result<String> {
        let status = fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
        last_allowed(&status).map(str::to_owned).context("/proc/self/status does not tell Cpus_allowed_list")
    }

    /// Starts a server by way of `prefix`, with further words.
    pub fn start(&self, prefix: &[&str], words: &[&str]) -> Result<Case> {
        self.start_at("127.0.0.1", prefix, words, &[])
    }

    /// Starts one that doctor and clients reach by a network only.
    pub fn start_behind(&self, network: &Network) -> Result<Case> {
        let [far, near] = network.prefixes();
        let far: Vec<&str> = far.iter().map(String::as_str).collect();
        self.start_at(Network::SERVER, &far, &["--protected-mode", "no"], &near)
    }

    fn start_at(&self, host: &str, prefix: &[&str], words: &[&str], near: &[String]) -> Result<Case> {
        let port = free_port()?.to_string();
        self.next.set(self.next.get() + 1);
        let data_folder = self.folder.join(format!("data-{}", self.next.get()));
        fs::create_dir_all(&data_folder)?;
        let folder = data_folder.display().to_string();
        let binary = self.binary.display().to_string();
        let own: Vec<&str> = if self.redis {
            let words = ["--bind", host, "--port", &port, "--dir", &folder, "--appendonly", "yes"];
            let more = ["--appendfsync", "always", "--save", "", "--latency-monitor-threshold", "5"];
            ["redis-server"].into_iter().chain(words).chain(more).collect()
        } else {
            let words = ["serve", "--bind", host, "--port", &port, "--data-dir", &folder, "--cores", "1"];
            [binary.as_str()].into_iter().chain(words).collect()
        };
        if self.redis {
            needs("redis-server")?;
        }
        let words: Vec<&str> = prefix.iter().copied().chain(own).chain(words.iter().copied()).collect();
        let log = fs::File::create(self.folder.join("log"))?;
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let server = Family::spawn(&mut command)?;
        let case = Case {
            place: format!("{host}:{port}"),
            data_folder,
            binary: self.binary.clone(),
            near: near.to_vec(),
            kept: Vec::new(),
            _server: server,
            _group: None,
        };
        let begun = Instant::now();
        while !case.ask(&["PING"]).is_ok_and(|told| told.contains("PONG")) {
            let told = || fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            ensure!(begun.elapsed() < START_MAX, "the server does not answer: {}", told());
            interrupt::rest(Duration::from_millis(100))?;
        }
        Ok(case)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The last of the processors in what `/proc/self/status` tells.
fn last_allowed(status: &str) -> Option<&str> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.trim().rsplit([',', '-']).next().filter(|number| !number.is_empty())
}

fn free_port() -> Result<u16> {
    // Holdfast listens 10,000 higher, too.
    for port in (20_000..45_000).step_by(7).map(|port| port + (std::process::id() % 7) as u16) {
        let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free(port) && is_free(port + 10_000) {
            return Ok(port);
        }
    }
    bail!("there is no free port")
}

/// A server with its fault.
pub struct Case {
    /// `HOST:PORT`.
    pub place: String,
    /// Where its data are.
    pub data_folder: PathBuf,
    binary: PathBuf,
    /// How to start programs that reach it.
    near: Vec<String>,
    /// What makes the fault: undone before the server ends, the last first.
    kept: Vec<Box<dyn std::any::Any>>,
    _server: Family,
    /// What the server runs in, which cannot be removed before it has ended.
    _group: Option<ControlGroup>,
}

impl Case {
    /// Keeps something for as long as the case.
    pub fn keep(&mut self, thing: impl std::any::Any) {
        self.kept.push(Box::new(thing));
    }

    /// Keeps the control group that the server runs in.
    pub fn keep_group(&mut self, group: ControlGroup) {
        self._group = Some(group);
    }

    /// A command that starts a program where it reaches the server.
    pub fn command(&self, program: &Path) -> Command {
        match self.near.split_first() {
            None => Command::new(program),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        }
    }

    fn ask(&self, words: &[&str]) -> Result<String> {
        let mut command = self.command(&self.binary);
        output(command.args(["cli", "--server", &self.place]).args(words).stdin(Stdio::null()))
    }

    /// The number of the server's process.
    pub fn process_id(&self) -> Result<u32> {
        let told = self.ask(&["INFO", "server"])?;
        let number = told.lines().find_map(|line| line.trim().strip_prefix("process_id:"));
        number.and_then(|number| number.parse().ok()).context("INFO does not tell process_id")
    }

    /// What stock Redis has noted of itself.
    pub fn latency_events(&self) -> String {
        let told = self.ask(&["LATENCY", "LATEST"]).unwrap_or_default();
        let names = told.split_whitespace().filter(|word| word.contains(char::is_alphabetic));
        let names: Vec<&str> = names.map(|word| word.trim_matches('"')).collect();
        if names.is_empty() { "nothing".to_owned() } else { names.join(" ") }
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        while self.kept.pop().is_some() {}
    }
}

/// A client that reads whole replies and forgets them.
pub struct Client(BufReader<TcpStream>);

impl Client {
    pub fn connect(place: &str) -> Result<Self> {
        let stream = TcpStream::connect(place)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(Self(BufReader::with_capacity(1 << 16, stream)))
    }

    /// A request and its reply.
    pub fn call(&mut self, words: &[&str]) -> Result<()> {
        self.pipeline(words, 1)
    }

    /// The same request so many times at once.
    pub fn pipeline(&mut self, words: &[&str], count: usize) -> Result<()> {
        let mut request = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| request.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        self.0.get_mut().write_all(request.repeat(count).as_bytes())?;
        (0..count).try_for_each(|_| self.skip_reply())
    }

    fn skip_reply(&mut self) -> Result<()> {
        let mut line = String::new();
        ensure!(self.0.read_line(&mut line)? > 0, "the server has closed the connection");
        let number = || line[1..].trim().parse::<i64>().context("a malformed reply");
        match line.as_bytes()[0] {
            b'$' => {
                let length = u64::try_from(number()?).map_or(0, |length| length + 2);
                let read = std::io::copy(&mut self.0.by_ref().take(length), &mut std::io::sink())?;
                ensure!(read == length, "the reply ends early");
                Ok(())
            }
            b'*' => (0..number()?).try_for_each(|_| self.skip_reply()),
            b'-' => bail!("the server says: {}", line.trim()),
            _ => Ok(()),
        }
    }
}

/// Threads that do the same again and again.
pub struct Load {
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Clients that each do something again and again; who loses the connection makes a new one.
    pub fn start(count: usize, place: &str, work: impl Fn(&mut Client) -> Result<()> + Clone + Send + 'static) -> Self {
        let place = place.to_owned();
        let ends = Arc::new(AtomicBool::new(false));
        Self::with(count, &ends, {
            let ends = Arc::clone(&ends);
            move || {
                let Ok(mut client) = Client::connect(&place) else {
                    return thread::sleep(Duration::from_millis(100));
                };
                while !ends.load(Ordering::Relaxed) && work(&mut client).is_ok() {}
            }
        })
    }

    /// The same without a connection.
    pub fn repeat(count: usize, work: impl Fn() + Clone + Send + 'static) -> Self {
        Self::with(count, &Arc::new(AtomicBool::new(false)), work)
    }

    fn with(count: usize, ends: &Arc<AtomicBool>, work: impl Fn() + Clone + Send + 'static) -> Self {
        let threads = (0..count).map(|_| {
            let (ends, work) = (Arc::clone(ends), work.clone());
            thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    work();
                }
            })
        });
        Self { ends: Arc::clone(ends), threads: threads.collect() }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}

/// A control group of our own.
pub struct ControlGroup(PathBuf);

impl ControlGroup {
    /// With so many percent of a processor.
    pub fn with_quota(percent: u32) -> Result<Self> {
        let (period, quota) = ("100000", (percent * 1_000).to_string());
        Self::make(
            "cpu",
            &[("cpu.cfs_period_us", period), ("cpu.cfs_quota_us", &quota)],
            &[("cpu.max", &format!("{quota} {period}"))],
        )
    }

    /// With so much memory.
    pub fn with_memory(bytes: u64) -> Result<Self> {
        let bytes = bytes.to_string();
        Self::make("memory", &[("memory.limit_in_bytes", &bytes)], &[("memory.max", &bytes)])
    }

    /// By version 1 if the controller is there, otherwise by version 2.
    fn make(controller: &str, first: &[(&str, &str)], second: &[(&str, &str)]) -> Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let (base, settings) =
            if root.join(controller).is_dir() { (root.join(controller), first) } else { (root.to_owned(), second) };
        let group = Self(base.join(format!("holdfast-doctor-{}", std::process::id())));
        let refused = |what: &str, error: &std::io::Error| {
            not_possible(format!("a control group for {controller} {what} ({error})"))
        };
        fs::create_dir_all(&group.0).map_err(|error| refused("cannot be made", &error))?;
        for (name, value) in settings {
            fs::write(group.0.join(name), value).map_err(|error| refused("cannot be limited", &error))?;
        }
        Ok(group)
    }

    /// Where it is.
    pub fn path(&self) -> String {
        self.0.display().to_string()
    }

    /// What a command begins with that is to run in it.
    pub fn enter(&self) -> Vec<&str> {
        let folder = self.0.to_str().expect("a name in UTF-8");
        vec!["sh", "-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"", folder]
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // All that ran in it has been killed, and the kernel may not be done with that.
        let begun = Instant::now();
        while let Err(error) = fs::remove_dir(&self.0) {
            if error.kind() == ErrorKind::NotFound {
                return;
            }
            if begun.elapsed() >= REMOVAL_MAX {
                eprintln!("the control group {} cannot be removed: {error}", self.0.display());
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// A process that others stop again and again: it goes on when this is dropped, which is to be after them.
pub struct Continued(pub u32);

impl Drop for Continued {
    fn drop(&mut self) {
        let number = self.0.to_string();
        let _ = run(Command::new("kill").args(["-CONT", &number]).stderr(Stdio::null()).process_group(0));
    }
}

/// A setting of the host, which becomes what it was.
pub struct Setting {
    path: &'static str,
    before: String,
}

impl Setting {
    pub fn write(path: &'static str, value: &str) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|error| not_possible(format!("{path}: {error}")))?;
        // The chosen one stands in brackets.
        let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(text.trim(), |(it, _)| it);
        let before = chosen.to_owned();
        fs::write(path, value).map_err(|error| not_possible(format!("{path}: {error}")))?;
        Ok(Self { path, before })
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::write(self.path, &self.before);
    }
}

/// Two hosts: network namespaces with a cable between them that delays and loses packets, and carries only so many.
pub struct Network {
    names: [String; 2],
    _cable: Option<Family>,
}

impl Network {
    /// The address of the host of the server.
    pub const SERVER: &'static str = "10.213.0.2";

    /// With so many milliseconds each way, so many percent lost, so many bytes a second; 0 for none.
    pub fn start(ground: &Ground, delay_ms: u32, loss_percent: u32, bytes_per_second: u32) -> Result<Self> {
        needs("ip")?;
        needs("python3")?;
        ensure!(Path::new("/dev/net/tun").exists(), not_possible("there is no /dev/net/tun"));
        let names = ["near", "far"].map(|name| format!("holdfast-{}-{name}", std::process::id()));
        let mut network = Self { names, _cable: None };
        for name in &network.names {
            let made = output(Command::new("ip").args(["netns", "add", name]).process_group(0));
            made.map_err(|error| not_possible(format!("a network namespace cannot be made ({error:#})")))?;
        }
        let (script, ready) = (ground.file("cable.py"), ground.file("cable-ready"));
        fs::write(&script, CABLE)?;
        let _ = fs::remove_file(&ready);
        let numbers = [delay_ms, loss_percent, bytes_per_second].map(|number| number.to_string());
        let mut command = Command::new("python3");
        command.arg(&script).args(&network.names).args(["10.213.0.1/24", "10.213.0.2/24"]).args(&numbers).arg(&ready);
        network._cable = Some(Family::spawn(command.stdin(Stdio::null()))?);
        let begun = Instant::now();
        while !ready.exists() {
            ensure!(begun.elapsed() < START_MAX, not_possible("the cable between the namespaces does not come up"));
            interrupt::rest(Duration::from_millis(50))?;
        }
        Ok(network)
    }

    /// What commands begin with that run at the server's host, and at the other one.
    fn prefixes(&self) -> [Vec<String>; 2] {
        let [near, far] = &self.names;
        [far, near].map(|name| ["ip", "netns", "exec", name].map(str::to_owned).to_vec())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self._cable = None;
        for name in &self.names {
            let _ = run(Command::new("ip").args(["netns", "delete", name]).stderr(Stdio::null()).process_group(0));
        }
    }
}

/// A library that makes each sync of a process take so many milliseconds longer.
pub fn slow_sync(ground: &Ground, milliseconds: u32) -> Result<PathBuf> {
    needs("cc")?;
    let (source, library) = (ground.file("slow_sync.c"), ground.file("slow_sync.so"));
    fs::write(&source, SLOW_SYNC)?;
    let delay = format!("-DDELAY_MS={milliseconds}");
    let mut command = Command::new("cc");
    command.args(["-O2", "-shared", "-fPIC", &delay, "-o"]).arg(&library).arg(&source).arg("-ldl");
    output(&mut command).map_err(|error| not_possible(format!("the library cannot be compiled ({error:#})")))?;
    Ok(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_processor_is_the_last_of_those_that_are_allowed() {
        let status = |list: &str| format!("Cpus_allowed:\tff\nCpus_allowed_list:\t{list}\nMems_allowed_list:\t0\n");
        for (list, last) in [("0", "0"), ("0-3", "3"), ("0-1,8", "8"), ("1,4-7", "7")] {
            assert_eq!(last_allowed(&status(list)), Some(last));
        }
        assert_eq!(last_allowed(&status("")), None);
        assert_eq!(last_allowed("Name:\tsh\n"), None);
    }

    #[test]
    fn a_control_group_that_was_never_made_is_not_waited_for() {
        let begun = Instant::now();
        drop(ControlGroup(std::env::temp_dir().join(format!("holdfast-no-group-{}", std::process::id()))));
        assert!(begun.elapsed() < REMOVAL_MAX);
    }
}
