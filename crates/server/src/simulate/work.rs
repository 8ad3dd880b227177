//! `holdfast simulate --work`: what many nodes carry, in virtual time.

use std::collections::BTreeSet;
use std::time::Instant;

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};
use message::roster::GROUPS_MAX;
use serde_json::{Value, json};
use simulation::work::costs::{Costs, Surroundings};
use simulation::work::{Found, Shape, Trial, Workload, find, group_count};

/// What `--work` asks for.
#[derive(Clone, Debug, Args)]
pub struct WorkArguments {
    /// Nothing goes wrong, every step of a core takes time, and the report says what so many nodes (--nodes 1,3,8)
    /// carry, how long answers take, and what bounds it.
    #[arg(long, conflicts_with_all = [
        "canary", "changes", "moves", "growth", "levels", "liars", "clocks", "calm", "returns", "ailments", "waits", "trace", "repeats",
    ])]
    pub(super) work: bool,
    /// With --work: cores of each node.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    cores: u16,
    /// With --work: groups, for all numbers of nodes; as many as the balancer would found unless given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(GROUPS_MAX)))]
    groups: Option<u32>,
    /// With --work: nodes that hold each group, if there are so many.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=7))]
    replicas: u8,
    /// With --work: what clients do, one after the other.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Kind::Set, Kind::Get, Kind::Pair])]
    workload: Vec<Kind>,
    /// With --work: connections to each core.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    clients_per_core: u16,
    /// With --work: operations that a client sends at once.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pipeline: u64,
    /// With --work: clients know who leads which group, and ask there, as those of Redis Cluster do. Of a transaction
    /// they know it of the first key.
    #[arg(long)]
    aware: bool,
    /// With --work: bytes of a value.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(0..=1_048_576))]
    value_bytes: u32,
    /// With --work: milliseconds of virtual time that are measured.
    #[arg(long, default_value_t = 140, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    milliseconds: u64,
    /// With --work: percent of the throughput found at which latency is measured.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=95))]
    load: u64,
    /// With --work: what the processor time of an operation is made of.
    #[arg(long)]
    parts: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Set,
    Get,
    Mixed,
    Pair,
}

impl Kind {
    fn workload(self) -> Workload {
        match self {
            Self::Set => Workload::Set,
            Self::Get => Workload::Get,
            Self::Mixed => Workload::Mixed,
            Self::Pair => Workload::Pair,
        }
    }
}

/// Finds out what so many nodes carry, for one number after the other, and says so.
///
/// # Errors
/// If a client was told an error.
pub(super) fn run(
    arguments: &WorkArguments,
    nodes: &[usize],
    is_durable: bool,
    seed: u64,
    as_json: bool,
) -> Result<()> {
    let (costs, surroundings) = (Costs::SUPPOSED, Surroundings::RACK);
    let replicas = usize::from(arguments.replicas);
    // From the fewest on, each of them once.
    let nodes: BTreeSet<usize> = nodes.iter().copied().collect();
    let most = nodes.last().copied().unwrap_or(1);
    let trial = Trial {
        workloads: arguments.workload.iter().map(|kind| kind.workload()).collect(),
        clients_per_core: usize::from(arguments.clients_per_core),
        pipeline: arguments.pipeline,
        is_aware: arguments.aware,
        value_bytes: arguments.value_bytes as usize,
        milliseconds: arguments.milliseconds,
        load_percent: arguments.load,
    };
    let mut told = Vec::new();
    if !as_json {
        say_line!("{HEAD}");
    }
    // Of the fewest nodes that hold each group as often as all larger ones do.
    let mut bases: Vec<(Workload, usize, u64)> = Vec::new();
    for count in nodes {
        let groups = arguments.groups.unwrap_or_else(|| group_count(count, arguments.cores, replicas));
        let shape = Shape { nodes: count, cores: arguments.cores, groups, replicas, is_durable, seed };
        let begun = Instant::now();
        let mut rows = Vec::new();
        let (idle, digest) = find(&shape, &trial, (&costs, &surroundings), |found| rows.push(found.clone()))
            .map_err(|reason| anyhow!("{count} nodes: {reason}"))?;
        for found in &rows {
            let rate = found.full.rate();
            let is_base = count >= replicas.min(most);
            if is_base && bases.iter().all(|(workload, ..)| *workload != found.workload) {
                bases.push((found.workload, count, rate));
            }
            let base = bases.iter().find(|(workload, ..)| *workload == found.workload);
            let efficiency = base.map(|(_, base, of_base)| {
                let linear = *of_base as f64 * count as f64 / *base as f64;
                rate as f64 / linear
            });
            if as_json {
                told.push(row_json(&shape, found, efficiency, &costs, &surroundings));
            } else {
                say_line!("{}", row(&shape, found, efficiency, &surroundings));
                if arguments.parts {
                    show_parts(found, &costs);
                }
            }
        }
        let (idle_most, idle_median) = idle.busy_thousandths();
        if as_json {
            let seconds = begun.elapsed().as_secs_f64();
            told.push(json!({
                "nodes": count, "workload": "idle", "busiest_core_percent": percent(idle_most),
                "median_core_percent": percent(idle_median), "digest": format!("{digest:016x}"), "wall_seconds": seconds,
            }));
        } else {
            say_line!(
                "{:>5}   at rest: busiest core {} %, median {} %; digest {digest:016x}; {:.1} s",
                count,
                percent(idle_most),
                percent(idle_median),
                begun.elapsed().as_secs_f64()
            );
        }
    }
    if as_json {
        say_line!("{:#}", json!({ "rows": told }));
    }
    Ok(())
}

const HEAD: &str = "nodes groups clients  work      op/s   of linear |  p50 µs  p99 µs | at load: p50   p99 | µs/op | \
                    core max  med   log   net % | messages  link writes  envelopes  turns /op";

fn percent(thousandths: u64) -> f64 {
    thousandths as f64 / 10.0
}

fn per_operation(found: &Found, count: u64) -> f64 {
    found.full.hundredths_per_operation(count) as f64 / 100.0
}

fn row(shape: &Shape, found: &Found, efficiency: Option<f64>, surroundings: &Surroundings) -> String {
    let full = &found.full;
    let (most, median) = full.busy_thousandths();
    format!(
        "{:>5} {:>6} {:>7}  {:<5} {:>9}   {:>9} | {:>7} {:>7} | {:>12} {:>5} | {:>5.1} | {:>8} {:>4} {:>5} {:>5}   | {:>8.2}  {:>11.2}  {:>9.2}  {:>5.2}",
        shape.nodes,
        shape.groups,
        found.clients,
        found.workload.name(),
        full.rate(),
        efficiency.map_or_else(|| "-".to_owned(), |efficiency| format!("{efficiency:.2}")),
        full.latency_us(500),
        full.latency_us(990),
        found.part.latency_us(500),
        found.part.latency_us(990),
        full.ns_per_operation() as f64 / 1e3,
        percent(most),
        percent(median),
        percent(full.log_thousandths()),
        percent(full.net_thousandths(surroundings.bytes_per_second)),
        per_operation(found, full.counts.messages_out),
        per_operation(found, full.counts.link_writes),
        per_operation(found, full.counts.envelopes) / 2.0,
        per_operation(found, full.counts.turns),
    )
}

/// What an operation is made of, what takes most first.
fn show_parts(found: &Found, costs: &Costs) {
    let mut parts = costs.parts(&found.full.counts);
    parts.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    for (name, ns) in parts.into_iter().filter(|(_, ns)| *ns > 0) {
        say_line!("{:>38} {:>8.3} µs", name, ns as f64 / found.full.answered as f64 / 1e3);
    }
}

fn row_json(
    shape: &Shape,
    found: &Found,
    efficiency: Option<f64>,
    costs: &Costs,
    surroundings: &Surroundings,
) -> Value {
    let full = &found.full;
    let (most, median) = full.busy_thousandths();
    let parts: serde_json::Map<String, Value> = costs
        .parts(&full.counts)
        .into_iter()
        .map(|(name, ns)| (name.to_owned(), json!(ns as f64 / full.answered as f64)))
        .collect();
    json!({
        "nodes": shape.nodes,
        "groups": shape.groups,
        "clients": found.clients,
        "workload": found.workload.name(),
        "operations_per_second": full.rate(),
        "of_linear": efficiency,
        "p50_us": full.latency_us(500),
        "p99_us": full.latency_us(990),
        "at_load_p50_us": found.part.latency_us(500),
        "at_load_p99_us": found.part.latency_us(990),
        "ns_per_operation": full.ns_per_operation(),
        "busiest_core_percent": percent(most),
        "median_core_percent": percent(median),
        "log_percent": percent(full.log_thousandths()),
        "net_percent": percent(full.net_thousandths(surroundings.bytes_per_second)),
        "messages_per_operation": per_operation(found, full.counts.messages_out),
        "parts_ns": parts,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::simulate::SimulateArguments;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: SimulateArguments,
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let parse = |words: &[&str]| Line::try_parse_from(["simulate", "--work"].iter().chain(words).copied());
        for (groups, replicas) in [("1", "1"), ("1024", "7")] {
            let line = parse(&["--groups", groups, "--replicas", replicas]).unwrap_or_else(|error| panic!("{error}"));
            let work = &line.arguments.work;
            assert_eq!(work.groups.map(|count| count.to_string()).as_deref(), Some(groups));
            assert_eq!(work.replicas.to_string(), replicas);
        }
        for wrong in [
            ["--groups", "0"],
            ["--groups", "1025"],
            ["--replicas", "0"],
            ["--replicas", "8"],
            ["--cores", "0"],
            ["--nodes", "3,0"],
            ["--clients-per-core", "0"],
            ["--pipeline", "0"],
            ["--milliseconds", "0"],
            ["--load", "0"],
        ] {
            assert!(parse(&wrong).is_err(), "{wrong:?}");
        }
    }
}
