//! The servers under torture: started, hurt, healed, ended.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use resp::Frame;
use stdx::Prng;

use super::cluster;
use super::network::Network;
use super::process::{Folder, Process};
use super::schedule::{Fault, Kind};
use super::{Against, Policy, TortureArguments};
use crate::connection::{self, Connection};

/// A server that does not serve by then will not.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// A replica that has not caught up by then is left behind.
const RESYNC_TIMEOUT: Duration = Duration::from_secs(60);
/// A primary of Redis that is silent for so long is given up and a replica is promoted: quick, as fail-over tools go.
const FAIL_OVER_PATIENCE: Duration = Duration::from_secs(2);
/// Waiting for the reply to a word of ours.
const WORD_TIMEOUT: Duration = Duration::from_secs(2);
/// The port of servers with a host of their own.
const OWN_PORT: u16 = 6379;

/// Where clients turn to. Shared with them.
pub struct Directory {
    doors: Vec<Door>,
    /// The only one that takes writes; [`ANYBODY`] if all do.
    leader: AtomicUsize,
}

struct Door {
    address: SocketAddr,
    /// Odd while the node is being hurt.
    harm: AtomicU64,
}

const ANYBODY: usize = usize::MAX;

impl Directory {
    /// Of servers at these addresses. If there is a leader, only that one takes writes.
    pub fn new(addresses: impl Iterator<Item = SocketAddr>, leader: Option<usize>) -> Self {
        let doors = addresses.map(|address| Door { address, harm: AtomicU64::new(0) }).collect();
        Self { doors, leader: AtomicUsize::new(leader.unwrap_or(ANYBODY)) }
    }

    /// The address to try for the `attempt`-th time in a row, and the node that it is.
    pub fn choose(&self, client: usize, attempt: usize) -> (usize, SocketAddr) {
        let node = match self.leader.load(Ordering::Relaxed) {
            ANYBODY => (client + attempt) % self.doors.len(),
            leader => leader,
        };
        (node, self.doors[node].address)
    }

    /// Grows when a node begins to be hurt and when it has recovered; odd in between.
    pub fn harm_of(&self, node: usize) -> u64 {
        self.doors[node].harm.load(Ordering::Relaxed)
    }

    fn begin_harm(&self, node: usize) {
        self.doors[node].harm.fetch_add(1, Ordering::Relaxed);
    }

    fn end_harm(&self, node: usize) {
        self.doors[node].harm.fetch_add(1, Ordering::Relaxed);
    }
}

struct Node {
    address: SocketAddr,
    data: PathBuf,
    log: PathBuf,
    process: Option<Process>,
}

/// A fault that was inflicted.
#[derive(Clone, Debug)]
pub struct Event {
    pub kind: Kind,
    pub node: usize,
    /// When it began.
    pub from_ns: u64,
    /// No answer of the hurt server can be read after this: its words may be on the way when it is already dead.
    pub silent_ns: u64,
    /// When the node was well again.
    pub until_ns: u64,
    /// What else happened.
    pub note: String,
}

/// Servers, and all that can be done to them.
pub struct Stand {
    nodes: Vec<Node>,
    against: Against,
    program: PathBuf,
    /// Behind the words of every start.
    words: Vec<String>,
    primary: usize,
    directory: Arc<Directory>,
    network: Option<Network>,
    epoch: Instant,
    over: Arc<AtomicBool>,
    /// What no server should do.
    pub mishaps: Vec<String>,
    folder: Folder,
}

impl Stand {
    /// Starts the servers and waits until they serve.
    pub fn raise(arguments: &TortureArguments, over: &Arc<AtomicBool>) -> Result<Self> {
        let count = arguments.node_count();
        let network = if arguments.needs_network() { Some(Network::make(count)?) } else { None };
        let folder = Folder::new(arguments.directory.as_deref(), arguments.keep)?;
        let mut prng = Prng::new(u64::from(std::process::id()));
        let mut nodes = Vec::new();
        for number in 0..count {
            let place = folder.path().join(format!("node-{}", number + 1));
            fs::create_dir_all(place.join("data"))?;
            let address = match &network {
                Some(network) => SocketAddr::new(network.address(number), OWN_PORT),
                None => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), cluster::free_port(&mut prng)?),
            };
            nodes.push(Node { address, data: place.join("data"), log: place.join("log.txt"), process: None });
        }
        let leader = (arguments.against == Against::Redis).then_some(0);
        let directory = Arc::new(Directory::new(nodes.iter().map(|node| node.address), leader));
        let mut stand = Self {
            nodes,
            against: arguments.against,
            program: program(arguments)?,
            words: words(arguments, network.is_some()),
            primary: 0,
            directory,
            network,
            epoch: Instant::now(),
            over: Arc::clone(over),
            mishaps: Vec::new(),
            folder,
        };
        for node in 0..count {
            stand.start(node)?;
            stand.wait_until_serving(node)?;
        }
        stand.wait_for_replicas();
        stand.wait_until_formed()?;
        Ok(stand)
    }

    /// A cluster has the copies that it is going to have.
    fn wait_until_formed(&mut self) -> Result<()> {
        let started = Instant::now();
        while self.is_cluster() {
            let logs: Vec<String> = self.nodes.iter().map(|node| text_of(&node.log)).collect();
            if cluster::is_formed(&logs) {
                return Ok(());
            }
            self.look_for_the_dead();
            if let Some(mishap) = self.mishaps.first() {
                bail!("{mishap}");
            }
            ensure!(
                started.elapsed() < START_TIMEOUT,
                "the nodes do not become a cluster: {}",
                last_lines(&self.nodes[0].log)
            );
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    pub fn directory(&self) -> Arc<Directory> {
        Arc::clone(&self.directory)
    }

    /// The load begins: time is counted from here.
    pub fn start_clock(&mut self) -> Instant {
        self.epoch = Instant::now();
        self.epoch
    }

    /// What the servers say they are.
    pub fn version(&self) -> String {
        match self.against {
            Against::Holdfast => format!("holdfast {}", env!("CARGO_PKG_VERSION")),
            Against::Redis => {
                let reply = self.tell(self.primary, &["INFO", "server"]).unwrap_or(Frame::Null);
                let text = String::from_utf8_lossy(reply.as_bytes().unwrap_or_default()).into_owned();
                let version = text.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("?");
                format!("redis {version}")
            }
        }
    }

    /// Its files will stay; answers where.
    pub fn keep_files(&mut self) -> &Path {
        self.folder.keep();
        self.folder.path()
    }

    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn is_replicated(&self) -> bool {
        self.against == Against::Redis && self.nodes.len() > 1
    }

    fn is_cluster(&self) -> bool {
        self.against == Against::Holdfast && self.nodes.len() > 1
    }

    fn start(&mut self, number: usize) -> Result<()> {
        let node = &self.nodes[number];
        let mut command = match &self.network {
            Some(network) => network.command(number, &self.program),
            None => Command::new(&self.program),
        };
        let (host, port) = (node.address.ip().to_string(), node.address.port().to_string());
        match self.against {
            Against::Holdfast => command.args(["serve", "--data-dir"]).arg(&node.data),
            Against::Redis => command.args(["--daemonize", "no", "--dir"]).arg(&node.data),
        };
        command.args(["--bind", &host, "--port", &port]).args(&self.words);
        if self.is_replicated() && number != self.primary {
            let primary = self.nodes[self.primary].address;
            command.args(["--replicaof", &primary.ip().to_string(), &primary.port().to_string()]);
        }
        if self.against == Against::Holdfast {
            let addresses: Vec<SocketAddr> = self.nodes.iter().map(|node| node.address).collect();
            command.args(cluster::words(number, &addresses, &self.nodes[0].data)?);
        }
        let process = Process::start(&mut command, &node.log)?;
        self.nodes[number].process = Some(process);
        Ok(())
    }

    fn wait_until_serving(&mut self, number: usize) -> Result<()> {
        let started = Instant::now();
        let node = &mut self.nodes[number];
        while !connection::serves(node.address, WORD_TIMEOUT) {
            let ended = node.process.as_mut().and_then(Process::ended);
            if ended.is_some() || started.elapsed() > START_TIMEOUT {
                let state = match ended {
                    Some(status) => format!("ended ({status})"),
                    None => format!("does not serve after {} s", START_TIMEOUT.as_secs()),
                };
                bail!("node {} {state}, saying: {}", number + 1, last_lines(&node.log));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Does what the schedule says and waits until the node is well again.
    pub fn inflict(&mut self, fault: &Fault) -> Result<Event> {
        // Of Redis, only the primary matters to anybody.
        let node = if self.is_replicated() { self.primary } else { (fault.node % self.nodes.len() as u64) as usize };
        if let Some(lead) = fault.checkpoint {
            let _ = self.tell(node, &["BGSAVE"]); // one may be under way
            self.pause(lead);
        }
        let counts_as_harm = fault.kind.hurts_its_clients();
        if counts_as_harm {
            self.directory.begin_harm(node);
        }
        let mut event =
            Event { kind: fault.kind, node, from_ns: self.now_ns(), silent_ns: 0, until_ns: 0, note: String::new() };
        let outcome = match fault.kind {
            Kind::Kill => self.kill(node, fault.length, &mut event),
            Kind::Stop => self.stop_for_a_while(node, fault.length, &mut event),
            Kind::CutOff | Kind::CutFromPeers | Kind::Mute | Kind::CutPair | Kind::Slow => {
                self.disconnect(node, fault, &mut event)
            }
        };
        if counts_as_harm {
            self.directory.end_harm(node);
        }
        outcome?;
        event.until_ns = self.now_ns();
        if event.silent_ns == 0 {
            event.silent_ns = event.until_ns;
        }
        self.wait_for_replicas();
        self.look_for_the_dead();
        Ok(event)
    }

    fn kill(&mut self, node: usize, away: Duration, event: &mut Event) -> Result<()> {
        if let Some(process) = self.nodes[node].process.take() {
            process.kill();
        }
        if self.is_replicated() {
            self.pause(FAIL_OVER_PATIENCE);
            event.silent_ns = self.now_ns();
            self.promote(event)?;
        }
        self.pause(away);
        if event.silent_ns == 0 {
            event.silent_ns = self.now_ns();
        }
        let started = Instant::now();
        self.start(node)?;
        self.wait_until_serving(node)?;
        event.note.push_str(&format!("up again within {} ms", started.elapsed().as_millis()));
        Ok(())
    }

    fn stop_for_a_while(&mut self, node: usize, length: Duration, event: &mut Event) -> Result<()> {
        self.signal(node, Signal::SIGSTOP)?;
        let outcome = self.sit_out(length, event);
        self.signal(node, Signal::SIGCONT)?;
        outcome?;
        self.wait_until_serving(node)?;
        self.demote(node)
    }

    fn disconnect(&mut self, node: usize, fault: &Fault, event: &mut Event) -> Result<()> {
        let network = self.network.as_ref().context("there is no network to cut")?;
        match fault.kind {
            Kind::CutFromPeers => network.cut_from_peers(node)?,
            Kind::Mute => network.mute(node)?,
            Kind::CutPair => {
                network.cut_pair(node)?;
                event.note = format!("from node {}", (node + 1) % self.nodes.len() + 1);
            }
            Kind::Slow => network.slow_down(node)?,
            _ => network.cut_off(node)?,
        }
        let outcome = match fault.kind {
            Kind::Slow => {
                self.pause(fault.length);
                Ok(())
            }
            _ => self.sit_out(fault.length, event),
        };
        self.network.as_ref().context("there is no network to heal")?.heal()?;
        outcome?;
        self.wait_until_serving(node)?;
        self.demote(node)
    }

    /// Lets a fault last; a primary of Redis that is away for too long is replaced.
    fn sit_out(&mut self, length: Duration, event: &mut Event) -> Result<()> {
        let is_replaced = self.is_replicated() && length > FAIL_OVER_PATIENCE;
        if is_replaced {
            self.pause(FAIL_OVER_PATIENCE);
            self.promote(event)?;
        }
        self.pause(length - if is_replaced { FAIL_OVER_PATIENCE } else { Duration::ZERO });
        Ok(())
    }

    /// The replica that has most becomes primary, as a fail-over tool would have it.
    fn promote(&mut self, event: &mut Event) -> Result<()> {
        let others = (0..self.nodes.len()).filter(|node| *node != self.primary);
        let heir = others.max_by_key(|node| self.replication(*node, "slave_repl_offset:").parse::<u64>().unwrap_or(0));
        let heir = heir.context("there is no replica to promote")?;
        self.tell(heir, &["REPLICAOF", "NO", "ONE"])?;
        let old = std::mem::replace(&mut self.primary, heir);
        for node in (0..self.nodes.len()).filter(|node| ![old, heir].contains(node)) {
            self.follow(node)?;
        }
        self.directory.leader.store(heir, Ordering::Relaxed);
        event.note.push_str(&format!("node {} promoted; ", heir + 1));
        Ok(())
    }

    /// One that was the primary follows the new one.
    fn demote(&self, node: usize) -> Result<()> {
        if self.is_replicated() && node != self.primary { self.follow(node) } else { Ok(()) }
    }

    fn follow(&self, node: usize) -> Result<()> {
        let primary = self.nodes[self.primary].address;
        self.tell(node, &["REPLICAOF", &primary.ip().to_string(), &primary.port().to_string()])?;
        Ok(())
    }

    /// The next fault is for replicas that have caught up with the last one.
    fn wait_for_replicas(&mut self) {
        let started = Instant::now();
        for node in (0..self.nodes.len()).filter(|_| self.is_replicated()) {
            while node != self.primary && self.replication(node, "master_link_status:") != "up" {
                if started.elapsed() > RESYNC_TIMEOUT {
                    self.mishaps.push(format!("node {} does not follow the primary after a minute", node + 1));
                    return;
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    fn replication(&self, node: usize, field: &str) -> String {
        let reply = self.tell(node, &["INFO", "replication"]).unwrap_or(Frame::Null);
        let text = String::from_utf8_lossy(reply.as_bytes().unwrap_or_default()).into_owned();
        text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default().trim().to_owned()
    }

    fn tell(&self, node: usize, words: &[&str]) -> Result<Frame> {
        let reply = Connection::open(self.nodes[node].address, WORD_TIMEOUT)
            .and_then(|mut connection| connection.call(words))
            .with_context(|| format!("node {} does not answer to {}", node + 1, words.join(" ")))?;
        ensure!(!reply.is_error(), "node {} answers {reply} to {}", node + 1, words.join(" "));
        Ok(reply)
    }

    fn signal(&self, node: usize, signal: Signal) -> Result<()> {
        self.nodes[node].process.as_ref().map_or(Ok(()), |process| process.signal(signal))
    }

    /// Waits, unless the run must end.
    pub fn pause(&self, length: Duration) {
        let begun = Instant::now();
        while !self.over.load(Ordering::Relaxed) {
            let left = length.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(Duration::from_millis(20)));
        }
    }

    /// No server ends unless it is told to.
    pub fn look_for_the_dead(&mut self) {
        for (number, node) in self.nodes.iter_mut().enumerate() {
            if let Some(status) = node.process.as_mut().and_then(Process::ended) {
                let words = last_lines(&node.log);
                self.mishaps.push(format!("node {} ended by itself ({status}), saying: {words}", number + 1));
                node.process = None;
            }
        }
    }

    /// Ends the servers in good order. One that cannot end so is a mishap.
    pub fn end(&mut self) {
        self.look_for_the_dead();
        for number in 0..self.nodes.len() {
            let Some(process) = self.nodes[number].process.take() else { continue };
            let status = process.stop();
            if self.against == Against::Holdfast && !status.is_some_and(|status| status.success()) {
                let words = last_lines(&self.nodes[number].log);
                let how = status.map_or("did not end".to_owned(), |status| format!("ended with {status}"));
                self.mishaps.push(format!("node {} was asked to end and {how}, saying: {words}", number + 1));
            }
        }
    }
}

fn program(arguments: &TortureArguments) -> Result<PathBuf> {
    match (&arguments.program, arguments.against) {
        (Some(program), _) => Ok(program.clone()),
        (None, Against::Holdfast) => std::env::current_exe().context("cannot find this program"),
        (None, Against::Redis) => Ok(PathBuf::from("redis-server")),
    }
}

/// What every server is told, besides where it lives.
fn words(arguments: &TortureArguments, has_network: bool) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut add = |name: &str, value: &str| words.extend([format!("--{name}"), value.to_owned()]);
    let policy = arguments.appendfsync.map(Policy::name);
    match arguments.against {
        Against::Holdfast => add("appendfsync", policy.unwrap_or("always")),
        Against::Redis => {
            if let Some(policy) = policy {
                add("appendonly", "yes");
                add("appendfsync", policy);
            }
        }
    }
    if has_network {
        add("protected-mode", "no");
    }
    for option in &arguments.option {
        let (name, value) = option.split_once('=').unwrap_or((option, "yes"));
        add(name, value);
    }
    words
}

fn text_of(log: &Path) -> String {
    String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned()
}

fn last_lines(log: &Path) -> String {
    let text = text_of(log);
    let lines: Vec<&str> = text.lines().rev().filter(|line| !line.trim().is_empty()).take(4).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
}
