//! `holdfast cluster try`: a whole cluster on this machine, for as long as nobody presses Control-C.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use edge::Token;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::door::{Door, ask_status, list};
use super::invite::if_possible;
use crate::login::Login;
use crate::serve::TOKEN_VARIABLE;

/// Between the port of clients and that of other nodes.
const DISTANCE: u16 = 10_000;
/// Nodes that have not found each other by then will not.
const PATIENCE: Duration = Duration::from_secs(60);
/// A node that has been asked to end and has not by then is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(20);
const INTERVAL: Duration = Duration::from_millis(100);

/// Start nodes on this machine to try a cluster; Control-C stops them all.
#[derive(Debug, Args)]
pub struct TryArguments {
    /// How many.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    nodes: u16,
    /// Port of the first node; the others follow [default: the first free ones from 7001 on]
    #[arg(long)]
    port: Option<u16>,
    /// Where to keep data and logs; a second run continues with them. Without it, they are deleted at the end.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Groups of keys, and threads of each node.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    cores: u16,
}

/// Starts them, says where they are, and ends them.
pub fn run(arguments: &TryArguments) -> Result<()> {
    // From here on nothing can end the run without the nodes.
    let signals = watch_signals()?;
    let ports = ports(arguments)?;
    let place = Place::new(arguments.directory.as_deref())?;
    let mut nodes: Vec<Node> = Vec::new();
    for (port, number) in ports.iter().copied().zip(1..) {
        let token = match nodes.first_mut() {
            None => None,
            Some(first) => match first.wait_for_token(&place.path, &signals)? {
                None => return Ok(()),
                token => token,
            },
        };
        nodes.push(Node::start(number, port, ports[0], arguments.cores, &place.path, token.as_ref())?);
    }
    if !wait_until_formed(&mut nodes, &signals)? {
        return Ok(());
    }
    say_line!("{} nodes are one cluster. Any Redis client may talk to any of them:", nodes.len());
    for node in &nodes {
        say_line!("  redis-cli -p {}    process {}, log {}", node.port, node.child.id(), node.log.display());
    }
    say_line!("Kill one with `kill -9`, and the others continue; see `holdfast cluster status --port {}`.", ports[0]);
    match &arguments.directory {
        Some(directory) => say_line!("Control-C stops all nodes; their data stay in {}.", directory.display()),
        None => say_line!("Control-C stops all nodes and deletes their data."),
    }
    watch(&mut nodes, &signals);
    nodes.iter_mut().for_each(Node::ask_to_end);
    Ok(())
}

/// Hears when somebody asks this process to end.
pub(crate) fn watch_signals() -> Result<Receiver<()>> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for _ in signals.forever() {
            if sender.send(()).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}

/// A port for each node, where that for other nodes is free as well.
fn ports(arguments: &TryArguments) -> Result<Vec<u16>> {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let is_usable = |port: &u16| is_free(*port) && is_free(*port + DISTANCE);
    let highest = u16::MAX - DISTANCE;
    match arguments.port {
        Some(first) => {
            ensure!(first > 0 && first <= highest - arguments.nodes, "ports from {first} on leave no room for others");
            let ports: Vec<u16> = (first..first + arguments.nodes).collect();
            match ports.iter().find(|port| !is_usable(port)) {
                Some(port) => bail!("port {port} or {} is in use", port + DISTANCE),
                None => Ok(ports),
            }
        }
        None => {
            let ports: Vec<u16> = (7_001..highest).filter(is_usable).take(usize::from(arguments.nodes)).collect();
            ensure!(ports.len() == usize::from(arguments.nodes), "not enough free ports");
            Ok(ports)
        }
    }
}

/// Where data and logs are; a temporary one goes when it is dropped.
struct Place {
    path: PathBuf,
    is_temporary: bool,
}

impl Place {
    fn new(named: Option<&Path>) -> Result<Self> {
        let temporary = || std::env::temp_dir().join(format!("holdfast-try-{}", std::process::id()));
        let path = named.map_or_else(temporary, Path::to_owned);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self { path, is_temporary: named.is_none() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_temporary {
            let _ = fs::remove_dir_all(&self.path); // what cannot be removed is the system's to clear
        }
    }
}

/// One of the nodes. Ended when dropped.
struct Node {
    number: u16,
    port: u16,
    log: PathBuf,
    child: Child,
    is_asked_to_end: bool,
    has_ended: bool,
}

impl Node {
    fn start(number: u16, port: u16, first: u16, cores: u16, place: &Path, token: Option<&Token>) -> Result<Self> {
        let log = place.join(format!("node-{number}.log"));
        let output = File::options().create(true).append(true).open(&log)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--port", &port.to_string(), "--cluster-port", &(port + DISTANCE).to_string()]);
        command.args(["--cores", &cores.to_string(), "--data-dir"]).arg(place.join(format!("node-{number}")));
        if number > 1 {
            command.args(["--join", &format!("127.0.0.1:{}", first + DISTANCE)]);
        }
        if let Some(token) = token {
            command.env(TOKEN_VARIABLE, token.to_text());
        }
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        // Control-C on the terminal is for us alone: they are asked to end, once.
        command.process_group(0);
        let child = command.spawn().context("cannot start a node")?;
        Ok(Self { number, port, log, child, is_asked_to_end: false, has_ended: false })
    }

    fn door(&self) -> Door {
        Door::at(&format!("127.0.0.1:{}", self.port), &Login::default())
    }

    /// A token of the cluster that the first node makes, as soon as it has; none if nobody wants it any more.
    fn wait_for_token(&mut self, place: &Path, signals: &Receiver<()>) -> Result<Option<Token>> {
        let begun = Instant::now();
        loop {
            if let Some(token) = if_possible(&place.join("node-1"))? {
                return Ok(Some(token));
            }
            if self.has_just_ended() {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                bail!("node 1 has ended: {}", log.lines().last().unwrap_or_default());
            }
            ensure!(begun.elapsed() < PATIENCE, "node 1 makes no cluster within {} s", PATIENCE.as_secs());
            if signals.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
                return Ok(None);
            }
        }
    }

    /// Asks it to end, once: a second time it would take for impatience.
    fn ask_to_end(&mut self) {
        if !self.has_ended && !std::mem::replace(&mut self.is_asked_to_end, true) {
            let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        }
    }

    /// True when it has just been found to have ended.
    fn has_just_ended(&mut self) -> bool {
        let is_gone = self.child.try_wait().is_ok_and(|status| status.is_some());
        is_gone && !std::mem::replace(&mut self.has_ended, true)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let asked = Instant::now();
        self.ask_to_end();
        while asked.elapsed() < STOP_PATIENCE && !self.has_just_ended() {
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until the nodes are one cluster; false if they are not wanted any more.
fn wait_until_formed(nodes: &mut [Node], signals: &Receiver<()>) -> Result<bool> {
    let begun = Instant::now();
    loop {
        let formed = nodes[0].door().open().and_then(|mut connection| ask_status(&mut connection));
        if formed.as_ref().is_ok_and(|status| is_formed(status, nodes.len())) {
            return Ok(true);
        }
        for node in nodes.iter_mut() {
            if node.has_just_ended() {
                let log = fs::read_to_string(&node.log).unwrap_or_default();
                bail!("node {} has ended: {}", node.number, log.lines().last().unwrap_or_default());
            }
        }
        ensure!(begun.elapsed() < PATIENCE, "the nodes do not become a cluster within {} s", PATIENCE.as_secs());
        if signals.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout) {
            return Ok(false);
        }
    }
}

fn is_formed(status: &Value, count: usize) -> bool {
    let replicas = status.get("replicas").and_then(Value::as_u64).unwrap_or(1) as usize;
    let groups = list(status, "groups");
    list(status, "nodes").len() == count
        && !groups.is_empty()
        && (count == 1 || groups.iter().all(|group| list(group, "voters").len() == count.min(replicas)))
}

/// Until somebody has had enough.
fn watch(nodes: &mut [Node], signals: &Receiver<()>) {
    while signals.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        for node in nodes.iter_mut() {
            if node.has_just_ended() {
                say_line!("node {} at port {} has ended", node.number, node.port);
            }
        }
        if nodes.iter().all(|node| node.has_ended) {
            return;
        }
    }
}
