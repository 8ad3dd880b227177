//! What many nodes carry: the cores of `node` in virtual time, with a price for each step, so that they saturate,
//! queues form, and throughput and latency follow. Nothing goes wrong here; [`crate::run`] is for that.
//!
//! Suggested order of reading: [`costs`], [`fleet`], `load`.

pub mod costs;
pub mod fleet;
mod load;

use std::collections::{BTreeMap, BTreeSet};

use group::balance::{self, View};
use group::ids::NodeId;
use node::roster::{Member, Roster};

use crate::{MICROSECOND, MILLISECOND, SECOND};
use costs::{Costs, Surroundings};
use fleet::{Fleet, Stretch};

/// What the nodes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How many.
    pub nodes: usize,
    /// Cores of each.
    pub cores: u16,
    /// Groups of all together, which lie as if all had been founded at once.
    pub groups: u32,
    /// Nodes that hold each group, if there are so many.
    pub replicas: usize,
    /// Writes are on disk when they are answered (`appendfsync always`); otherwise within a second (`everysec`).
    pub is_durable: bool,
    /// Decides what chance decides.
    pub seed: u64,
}

/// What one operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// `SET` of a key.
    Set,
    /// `GET` of a key.
    Get,
    /// Four of five are `GET`, the others `SET`.
    Mixed,
    /// `MULTI`, `SET` of two keys of two groups, `EXEC`, sent together. Where there is one group, of two of its keys.
    Pair,
}

impl Workload {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Set => "set",
            Self::Get => "get",
            Self::Mixed => "mixed",
            Self::Pair => "pair",
        }
    }

    /// Keys of a group that clients choose from: so many for transactions that these seldom wait for each other.
    const fn keys_per_group(self) -> u64 {
        match self {
            Self::Pair => 20_000,
            _ => 1_000,
        }
    }
}

/// How clients ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asking {
    /// What.
    pub workload: Workload,
    /// Connections to each core of each node.
    pub clients_per_core: usize,
    /// Operations sent at once.
    pub pipeline: u64,
    /// Clients know who leads which group, as those of Redis Cluster do, and ask there.
    pub is_aware: bool,
    /// Nanoseconds between the questions of a client, on average; `None`: it asks when it has been answered.
    pub every: Option<u64>,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Keys of each group.
    pub keys_per_group: u64,
}

/// How many groups the balancer founds for such nodes.
pub fn group_count(nodes: usize, cores: u16, replicas: usize) -> u32 {
    let mut roster = Roster::default();
    (1..=nodes as u64).for_each(|node| _ = roster.enlist(NodeId(node), Member::default()));
    let view = View {
        roster: &roster,
        replicas,
        group_count: u32::from(cores),
        first_count: u32::from(cores),
        founds_groups: true,
        cores: (1..=nodes as u64).map(|node| (node, cores)).collect(),
        groups: BTreeMap::new(),
        heard: BTreeSet::new(),
        silent: BTreeSet::new(),
        lost: BTreeSet::new(),
    };
    balance::wanted_count(&view)
}

/// What a trial must find out.
#[derive(Clone, Debug)]
pub struct Trial {
    /// What clients do, one after the other.
    pub workloads: Vec<Workload>,
    /// Connections to each core.
    pub clients_per_core: usize,
    /// Operations sent at once.
    pub pipeline: u64,
    /// See [`Asking::is_aware`].
    pub is_aware: bool,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Virtual time that is measured, in milliseconds.
    pub milliseconds: u64,
    /// Percent of the throughput found, at which latency is measured.
    pub load_percent: u64,
}

/// What was found for one number of nodes and one workload.
#[derive(Clone, Debug)]
pub struct Found {
    /// What the clients did.
    pub workload: Workload,
    /// Connections.
    pub clients: usize,
    /// As much as they could.
    pub full: Stretch,
    /// A part of that, at times of their own.
    pub part: Stretch,
}

/// What cores do when nobody asks for anything.
const IDLE: u64 = SECOND;

/// Finds out what nodes of this shape carry. The first stretch is that in which nobody asks for anything.
///
/// # Errors
/// If the groups do not come to be led, or a client is told an error.
pub fn find(
    shape: &Shape,
    trial: &Trial,
    (costs, surroundings): (&Costs, &Surroundings),
    mut tell: impl FnMut(&Found),
) -> Result<(Stretch, u64), String> {
    let mut fleet = Fleet::found(shape.clone(), costs, surroundings)?;
    fleet.measure();
    fleet.live(IDLE);
    let idle = fleet.measured();
    let seats = shape.nodes * usize::from(shape.cores);
    for workload in trial.workloads.iter().copied() {
        let asking = Asking {
            workload,
            clients_per_core: trial.clients_per_core,
            pipeline: trial.pipeline,
            is_aware: trial.is_aware,
            every: None,
            value_bytes: trial.value_bytes,
            keys_per_group: workload.keys_per_group(),
        };
        let full = stretch(&mut fleet, asking.clone(), trial.milliseconds)?;
        // Each client's part of so many percent of what all of them were answered.
        let clients = (seats * trial.clients_per_core) as u64;
        let all = u128::from(full.length) * u128::from(trial.pipeline) * u128::from(clients) * 100;
        let every = all / u128::from((full.answered * trial.load_percent).max(1));
        let every = every.min(u128::from(PAUSE_MAX)) as u64;
        let part = stretch(&mut fleet, Asking { every: Some(every), ..asking }, trial.milliseconds)?;
        tell(&Found { workload, clients: seats * trial.clients_per_core, full, part });
    }
    Ok((idle, fleet.digest()))
}

/// Lets clients ask for a while, and measures the end of it.
fn stretch(fleet: &mut Fleet, asking: Asking, milliseconds: u64) -> Result<Stretch, String> {
    fleet.begin(asking);
    fleet.live(WARM_UP);
    fleet.measure();
    fleet.live(milliseconds * MILLISECOND);
    let found = fleet.measured();
    fleet.end();
    fleet.live(REST);
    match &found.error {
        Some(error) => Err(format!("{} errors, among them: {error}", found.errors)),
        None if found.answered == 0 => Err("nobody was answered".to_owned()),
        None => Ok(found),
    }
}

/// The longest mean time between the questions of a client.
const PAUSE_MAX: u64 = 3_600 * SECOND;

/// Until queues are as long as they will be.
const WARM_UP: u64 = 10 * MILLISECOND;

/// Until what is under way has come to its end.
const REST: u64 = 50 * MILLISECOND;

impl Stretch {
    /// Operations in a second.
    pub fn rate(&self) -> u64 {
        (u128::from(self.answered) * u128::from(SECOND) / u128::from(self.length.max(1))) as u64
    }

    /// So many of a thousand answers took no longer, in microseconds.
    pub fn latency_us(&self, thousandths: usize) -> u64 {
        let last = self.latencies.len().saturating_sub(1);
        let place = (self.latencies.len() * thousandths / 1_000).min(last);
        self.latencies.get(place).copied().unwrap_or(0) / MICROSECOND
    }

    /// How long, of a thousand, the core that was at work longest was so, and the one in the middle.
    pub fn busy_thousandths(&self) -> (u64, u64) {
        let mut busy = self.busy.clone();
        busy.sort_unstable();
        let part = |busy: Option<&u64>| busy.copied().unwrap_or(0) * 1_000 / self.length.max(1);
        (part(busy.last()), part(busy.get(busy.len() / 2)))
    }

    /// The same of the log of a node: the longest.
    pub fn log_thousandths(&self) -> u64 {
        self.log_busy.iter().max().copied().unwrap_or(0) * 1_000 / self.length.max(1)
    }

    /// The same of the network card of a node that sends so many bytes in a second.
    pub fn net_thousandths(&self, bytes_per_second: u64) -> u64 {
        let most = self.sent_bytes.iter().max().copied().unwrap_or(0);
        (u128::from(most) * 1_000 * u128::from(SECOND)
            / (u128::from(self.length.max(1)) * u128::from(bytes_per_second))) as u64
    }

    /// So many of something, in hundredths, for each operation.
    pub fn hundredths_per_operation(&self, count: u64) -> u64 {
        count * 100 / self.answered.max(1)
    }

    /// Processor time of all cores for an operation, in nanoseconds.
    pub fn ns_per_operation(&self) -> u64 {
        self.busy.iter().sum::<u64>() / self.answered.max(1)
    }
}
