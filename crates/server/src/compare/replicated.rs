//! `holdfast compare --replicated`: three nodes beside a primary with two replicas.
//!
//! What an OK means is chosen on both sides: on the disks of a quorum, in the memory of a quorum, and, for the peers,
//! nothing beyond the primary. All servers and the load share this machine's processors, so the CPU that a write takes
//! of all servers together says more than the throughput does.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use resp::Frame;
use serde_json::{Value, json};
use stdx::Prng;

use super::contender::{Contender, Durability, Folder, RunningServer};
use super::talk::Talk;
use super::{Figures, KEYS, VALUE_BYTES, warmup};
use crate::bench::{self, BenchArguments, Progress, Workload};
use crate::cluster::lead::lead_everything;
use crate::connection::Connection;
use crate::torture::cluster;

const NODES: usize = 3;
/// Servers that have not found one another by then will not.
const FORM_TIMEOUT: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// What is asked of the servers.
struct Load {
    clients: u64,
    /// Writes that each sends together.
    pipeline: u64,
    /// Transactions instead of writes.
    transaction: Option<Workload>,
}

const LOADS: [Load; 6] = [
    Load { clients: 50, pipeline: 1, transaction: None },
    Load { clients: 200, pipeline: 1, transaction: None },
    Load { clients: 50, pipeline: 16, transaction: None },
    Load { clients: 200, pipeline: 16, transaction: None },
    Load { clients: 100, pipeline: 1, transaction: Some(Workload::Trans) },
    Load { clients: 100, pipeline: 1, transaction: Some(Workload::TransPair) },
];

impl Load {
    fn name(&self) -> String {
        match self.transaction {
            None => format!("SET, {} clients x pipeline {}", self.clients, self.pipeline),
            Some(workload) => format!("{}, {} clients", workload.name(), self.clients),
        }
    }

    /// Transactions are compared with those of one server, as replicas promise nothing of them.
    fn suits(&self, promise: Promise, is_holdfast: bool) -> bool {
        match self.transaction {
            None => promise != Promise::Alone,
            Some(_) => promise == if is_holdfast { Promise::Disk } else { Promise::Alone },
        }
    }
}

/// What an OK means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    /// It is on the disks of a quorum.
    Disk,
    /// It is in the memory of a quorum.
    Memory,
    /// It is in the memory of the primary.
    Primary,
    /// It is on the disk of the only server.
    Alone,
}

/// Our promise beside a peer's, as they are compared.
const PAIRS: [(Promise, Promise); 5] = [
    (Promise::Disk, Promise::Alone),
    (Promise::Disk, Promise::Disk),
    (Promise::Memory, Promise::Memory),
    (Promise::Disk, Promise::Memory),
    (Promise::Memory, Promise::Primary),
];

/// What servers of one kind that make one promise did: for each of `LOADS`, a run for each round.
pub struct ReplicatedFigures {
    contender: Contender,
    promise: Promise,
    runs: Vec<Vec<Figures>>,
}

/// Three servers that are one.
struct Cluster {
    /// The first is the one that clients talk to.
    servers: Vec<RunningServer>,
    workload: Workload,
}

impl Promise {
    fn words(self, is_holdfast: bool) -> &'static str {
        match (self, is_holdfast) {
            (Self::Disk, true) => "on disk on a quorum: appendfsync always",
            (Self::Disk, false) => "on disk here and on a replica: appendfsync always, WAIT 1",
            (Self::Memory, true) => "in memory on a quorum: appendfsync everysec",
            (Self::Memory, false) => "in memory here and on a replica: no log, WAIT 1",
            (Self::Primary, _) => "in memory here: no log, asynchronous replicas",
            (Self::Alone, _) => "on disk here, no replicas: appendfsync always",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Memory => "memory",
            Self::Primary => "primary",
            Self::Alone => "alone",
        }
    }

    fn durability(self, is_holdfast: bool) -> Durability {
        match self {
            Self::Disk | Self::Alone => Durability::Always,
            Self::Memory if is_holdfast => Durability::EverySecond,
            Self::Memory | Self::Primary => Durability::Unsynced,
        }
    }
}

impl ReplicatedFigures {
    fn name(&self) -> String {
        format!("{}: {}", self.contender.name, self.promise.words(self.contender.is_holdfast))
    }

    /// Of its runs under one of `LOADS`, if there are any.
    fn median(&self, load: usize) -> Option<Figures> {
        Some(&self.runs[load]).filter(|runs| !runs.is_empty()).map(|runs| Figures::median(runs))
    }
}

/// Measures all of them in turns.
pub fn measure(
    contenders: &[Contender],
    rounds: usize,
    seconds: f64,
    folder: &Folder,
    progress: &mut Progress,
) -> Result<Vec<ReplicatedFigures>> {
    let mut prng = Prng::new(u64::from(std::process::id()));
    let mut results = Vec::new();
    let mut clusters = Vec::new();
    for contender in contenders {
        let promises: &[Promise] = if contender.is_holdfast {
            &[Promise::Disk, Promise::Memory]
        } else {
            &[Promise::Disk, Promise::Memory, Promise::Primary, Promise::Alone]
        };
        for &promise in promises {
            let figures =
                ReplicatedFigures { contender: contender.clone(), promise, runs: vec![Vec::new(); LOADS.len()] };
            progress.show(&format!("starting {}", figures.name()));
            let cluster = Cluster::start(contender, promise, folder, &mut prng)
                .with_context(|| format!("cannot start {}", figures.name()))?;
            clusters.push(cluster);
            results.push(figures);
        }
    }
    for round in 0..rounds {
        for (index, load) in LOADS.iter().enumerate() {
            for turn in 0..clusters.len() {
                let which = (turn + round) % clusters.len(); // another begins in each round
                let (cluster, result) = (&clusters[which], &mut results[which]);
                if !load.suits(result.promise, result.contender.is_holdfast) {
                    continue;
                }
                progress.show(&format!("round {}/{rounds}: {}: {}", round + 1, load.name(), result.name()));
                let outcome = super::measured(|| bench::measure(&cluster.arguments(load, seconds)))?;
                result.runs[index].push(Figures::of(&outcome));
            }
        }
    }
    for server in clusters.into_iter().flat_map(|cluster| cluster.servers) {
        server.stop()?;
    }
    Ok(results)
}

impl Cluster {
    fn start(contender: &Contender, promise: Promise, folder: &Folder, prng: &mut Prng) -> Result<Self> {
        let mut addresses = Vec::new();
        for _ in 0..if promise == Promise::Alone { 1 } else { NODES } {
            addresses.push(SocketAddr::from((Ipv4Addr::LOCALHOST, cluster::free_port(prng)?)));
        }
        let mut servers = Vec::new();
        for (node, address) in addresses.iter().enumerate() {
            let words = if contender.is_holdfast {
                cluster::words(node, &addresses, &RunningServer::data_of(folder, addresses[0].port()))?
            } else if node > 0 {
                let port = addresses[0].port().to_string();
                ["--replicaof", "127.0.0.1", &port].map(str::to_owned).to_vec()
            } else {
                ["--repl-diskless-sync-delay", "0"].map(str::to_owned).to_vec()
            };
            let durability = promise.durability(contender.is_holdfast);
            servers.push(RunningServer::start_on(contender, durability, address.port(), words, folder)?);
        }
        let asks_for_more = !contender.is_holdfast && matches!(promise, Promise::Disk | Promise::Memory);
        let workload = if asks_for_more { Workload::SetWait } else { Workload::Set };
        let cluster = Self { servers, workload };
        let started = Instant::now();
        while !cluster.is_formed(contender.is_holdfast)? {
            ensure!(started.elapsed() < FORM_TIMEOUT, "the servers have not found one another");
            std::thread::sleep(LOOK_INTERVAL);
        }
        if contender.is_holdfast {
            // As those of the peer do, the clients talk to who leads.
            let mut connection = Connection::open(addresses[0], FORM_TIMEOUT)?;
            lead_everything(&mut connection, &addresses[0].to_string())?;
        }
        Ok(cluster)
    }

    fn is_formed(&self, is_holdfast: bool) -> Result<bool> {
        if is_holdfast {
            let logs: Vec<String> = self.servers.iter().map(RunningServer::log).collect::<Result<_>>()?;
            return Ok(cluster::is_formed(&logs));
        }
        for replica in &self.servers[1..] {
            let Frame::Array(role) = Talk::new(&replica.address())?.ask(&["ROLE"])? else { return Ok(false) };
            if role.get(3).and_then(Frame::as_bytes) != Some(b"connected") {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn arguments(&self, load: &Load, seconds: f64) -> BenchArguments {
        BenchArguments {
            clients: load.clients,
            workload: load.transaction.unwrap_or(self.workload),
            pipeline: load.pipeline,
            seconds,
            warmup: warmup(seconds),
            value_bytes: VALUE_BYTES,
            keys: KEYS,
            threads: Some(1),
            server_pid: self.servers.iter().map(RunningServer::pid).collect(),
            ..BenchArguments::for_host(self.servers[0].address())
        }
    }
}

/// Throughput of ours to a peer's, and CPU of ours to a peer's.
fn ratios(ours: &Figures, theirs: &Figures) -> (f64, f64) {
    (ours.operations_per_second / theirs.operations_per_second, ours.server_cpu_us / theirs.server_cpu_us)
}

/// Our figures beside a peer's, for every pair of promises that is compared.
fn pairs(results: &[ReplicatedFigures]) -> impl Iterator<Item = (&ReplicatedFigures, &ReplicatedFigures)> {
    let of = |promise: Promise, is_ours: bool| {
        results.iter().filter(move |result| result.promise == promise && result.contender.is_holdfast == is_ours)
    };
    PAIRS.into_iter().flat_map(move |(ours, theirs)| {
        of(ours, true).flat_map(move |our| of(theirs, false).map(move |their| (our, their)))
    })
}

/// The report that is printed.
pub fn text(results: &[ReplicatedFigures], rounds: usize, seconds: f64) -> String {
    use std::fmt::Write;
    let mut out = format!(
        "Three servers, values of {VALUE_BYTES} bytes; {}; servers and load share all processors; clients talk to the \
         node that leads; CPU of all servers\n",
        super::report::rounds_of(rounds, seconds)
    );
    for (index, load) in LOADS.iter().enumerate() {
        let _ = writeln!(
            out,
            "\n{:<74}{:>10}{:>10}{:>10}{:>10}{:>12}",
            load.name(),
            "ops/s",
            "p50 ms",
            "p99.9 ms",
            "max ms",
            "CPU µs/op"
        );
        for result in results {
            let Some(Figures { operations_per_second, p50_ms, p999_ms, max_ms, server_cpu_us, errors, .. }) =
                result.median(index)
            else {
                continue;
            };
            let _ = write!(
                out,
                "  {:<72}{operations_per_second:>10.0}{p50_ms:>10.3}{p999_ms:>10.3}{max_ms:>10.3}{server_cpu_us:>12.2}",
                result.name()
            );
            let _ = if errors > 0 { writeln!(out, "   {errors} errors") } else { writeln!(out) };
        }
        for (ours, theirs) in pairs(results) {
            let (Some(our), Some(their)) = (ours.median(index), theirs.median(index)) else { continue };
            let (throughput, cpu) = ratios(&our, &their);
            let label = format!("{} to {}: {}", ours.promise.name(), theirs.contender.name, theirs.promise.name());
            let _ = writeln!(out, "  {label:<72}{throughput:>9.2}x{cpu:>41.2}x");
        }
    }
    out
}

/// The report to be processed, with every run.
pub fn json(results: &[ReplicatedFigures], rounds: usize, seconds: f64) -> Value {
    let loads = LOADS.iter().enumerate().map(|(index, load)| {
        let servers = results.iter().filter_map(|result| {
            Some(json!({
                "name": result.contender.name,
                "promise": result.promise.name(),
                "median": result.median(index)?.json(),
                "runs": result.runs[index].iter().map(Figures::json).collect::<Vec<_>>(),
            }))
        });
        let ratios = pairs(results).filter_map(|(ours, theirs)| {
            let (throughput, cpu) = ratios(&ours.median(index)?, &theirs.median(index)?);
            Some(json!({
                "holdfast": ours.promise.name(),
                "peer": theirs.contender.name,
                "peer_promise": theirs.promise.name(),
                "throughput": throughput,
                "server_cpu": cpu,
            }))
        });
        json!({
            "workload": load.transaction.unwrap_or(Workload::Set).name(),
            "clients": load.clients,
            "pipeline": load.pipeline,
            "servers": servers.collect::<Vec<_>>(),
            "ratios": ratios.collect::<Vec<_>>(),
        })
    });
    json!({
        "rounds": rounds,
        "seconds": seconds,
        "value_bytes": VALUE_BYTES,
        "loads": loads.collect::<Vec<_>>(),
    })
}
