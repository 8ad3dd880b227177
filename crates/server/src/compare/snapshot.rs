//! `holdfast compare --snapshot`: what clients notice of a snapshot of all data.
//!
//! Each server is filled, its capacity measured, and then loaded with half of that at a fixed rate, measured from the
//! moment at which each request was due: first with no snapshot being written, then with one under way all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::contender::{Contender, Durability, Folder, RunningServer};
use super::talk::{Talk, memory_bytes};
use crate::bench::{self, BenchArguments, Progress, Workload};

const VALUE_BYTES: u64 = 1000;
/// What a key, its value and their bookkeeping come to, about.
const KEY_BYTES: u64 = 1100;
const CLIENTS: u64 = 50;
/// Longest time for which the capacity is measured, in seconds.
const CAPACITY_SECONDS_MAX: f64 = 5.0;
/// How often it is asked whether a snapshot has ended, to begin the next.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Memory is looked at every so many times: the kernel walks all pages for it, which takes processor time from others.
const LOOKS_PER_MEMORY: u32 = 10;

/// What clients see at half of a server's capacity.
#[derive(Clone, Copy, Debug)]
struct Steady {
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    max_ms: f64,
    memory_bytes_max: u64,
    errors: u64,
}

/// One server's figures.
#[derive(Debug)]
pub struct SnapshotFigures {
    name: String,
    capacity: f64,
    quiet: Steady,
    saving: Steady,
    /// Length of the first snapshot; none if it outlasted the measurement.
    snapshot_seconds: Option<f64>,
}

/// Measures one server after the other.
pub fn measure(
    contenders: &[Contender],
    data_bytes: u64,
    seconds: f64,
    folder: &Folder,
    progress: &mut Progress,
) -> Result<Vec<SnapshotFigures>> {
    contenders
        .iter()
        .map(|contender| {
            measure_one(contender, data_bytes, seconds, folder, progress)
                .with_context(|| format!("{}: snapshot", contender.name))
        })
        .collect()
}

fn measure_one(
    contender: &Contender,
    data_bytes: u64,
    seconds: f64,
    folder: &Folder,
    progress: &mut Progress,
) -> Result<SnapshotFigures> {
    let name = &contender.name;
    let server = RunningServer::start(contender, Durability::Unsynced, folder)?;
    let load = BenchArguments {
        clients: CLIENTS,
        workload: Workload::GetSet,
        value_bytes: VALUE_BYTES,
        keys: (data_bytes / KEY_BYTES).max(1),
        seconds: seconds.min(CAPACITY_SECONDS_MAX),
        threads: Some(1),
        ..BenchArguments::for_host(server.address())
    };
    progress.show(&format!("{name}: filling with {} MB", data_bytes / 1_000_000));
    let capacity = super::measured(|| bench::measure(&load))?.rate();
    let load = BenchArguments { seconds, rate: Some(capacity / 2.0), no_load: true, ..load };

    let mut talk = Talk::new(&server.address())?;
    progress.show(&format!("{name}: waiting for snapshots that the filling has set off"));
    while talk.is_saving()? {
        std::thread::sleep(LOOK_INTERVAL);
    }
    progress.show(&format!("{name}: half of capacity, no snapshot"));
    let (quiet, _) = steady(&load, &server, false)?;
    progress.show(&format!("{name}: half of capacity, snapshot"));
    let (saving, snapshot_seconds) = steady(&load, &server, true)?;
    server.stop()?;
    Ok(SnapshotFigures { name: name.clone(), capacity, quiet, saving, snapshot_seconds })
}

/// Loads a server, with a snapshot always under way or with none, and watches its memory.
fn steady(load: &BenchArguments, server: &RunningServer, saving: bool) -> Result<(Steady, Option<f64>)> {
    let over = Arc::new(AtomicBool::new(false));
    let memory_bytes_max = Arc::new(AtomicU64::new(0));
    let watcher = {
        let (over, memory_bytes_max) = (Arc::clone(&over), Arc::clone(&memory_bytes_max));
        let (pid, mut talk) = (server.pid(), Talk::new(&server.address())?);
        std::thread::spawn(move || -> Result<Option<f64>> {
            let (started, mut first_seconds) = (Instant::now(), None);
            if saving {
                talk.ask(&["BGSAVE"])?;
            }
            for look in 1u32.. {
                std::thread::sleep(LOOK_INTERVAL);
                if over.load(Ordering::Relaxed) {
                    break;
                }
                if look.is_multiple_of(LOOKS_PER_MEMORY) {
                    memory_bytes_max.fetch_max(memory_bytes(pid).unwrap_or(0), Ordering::Relaxed);
                }
                if saving && !talk.is_saving()? {
                    first_seconds.get_or_insert(started.elapsed().as_secs_f64());
                    talk.ask(&["BGSAVE"])?;
                }
            }
            Ok(first_seconds)
        })
    };
    let outcome = bench::measure(load);
    over.store(true, Ordering::Relaxed);
    let first_seconds = watcher.join().expect("the watcher does not panic")?;
    let total = outcome?.total;
    let all = total.all();
    let figures = Steady {
        p50_ms: all.percentile_ms(50.0),
        p99_ms: all.percentile_ms(99.0),
        p999_ms: all.percentile_ms(99.9),
        max_ms: all.max_ms(),
        memory_bytes_max: memory_bytes_max.load(Ordering::Relaxed),
        errors: total.counts.errors + total.counts.connections_lost,
    };
    Ok((figures, first_seconds))
}

/// The report that is printed.
pub fn text(figures: &[SnapshotFigures], data_bytes: u64, seconds: f64) -> String {
    use std::fmt::Write;
    let mut out = format!(
        "{:.1} GB of {VALUE_BYTES}-byte values, GET and SET by turns from {CLIENTS} clients at half of each server's \
         capacity, {seconds} s each; no fsync; memory with children, shared pages counted once\n",
        data_bytes as f64 / 1e9
    );
    for server in figures {
        let snapshot = match server.snapshot_seconds {
            Some(seconds) => format!("a snapshot took {seconds:.1} s"),
            None => "the snapshot took longer".to_owned(),
        };
        let _ = writeln!(out, "\n{}: capacity {:.0}/s; {snapshot}", server.name, server.capacity);
        let columns = ["p50 ms", "p99 ms", "p99.9 ms", "max ms", "memory MB"];
        let _ = write!(out, "  {:<18}", "");
        for column in columns {
            let _ = write!(out, "{column:>11}");
        }
        out.push('\n');
        for (label, steady) in [("no snapshot", &server.quiet), ("snapshot", &server.saving)] {
            let _ = write!(out, "  {label:<18}");
            for value in [steady.p50_ms, steady.p99_ms, steady.p999_ms, steady.max_ms] {
                let _ = write!(out, "{value:>11.3}");
            }
            let _ = write!(out, "{:>11.0}", steady.memory_bytes_max as f64 / 1e6);
            let _ = if steady.errors > 0 { writeln!(out, "   {} errors", steady.errors) } else { writeln!(out) };
        }
        let _ = write!(out, "  {:<18}", "ratio");
        for value in server.ratios() {
            let _ = write!(out, "{value:>10.2}x");
        }
        out.push('\n');
    }
    out
}

/// The report to be processed.
pub fn json(figures: &[SnapshotFigures], data_bytes: u64, seconds: f64) -> Value {
    let steady = |steady: &Steady| {
        json!({
            "p50_ms": steady.p50_ms,
            "p99_ms": steady.p99_ms,
            "p999_ms": steady.p999_ms,
            "max_ms": steady.max_ms,
            "memory_bytes_max": steady.memory_bytes_max,
            "errors": steady.errors,
        })
    };
    let servers = figures.iter().map(|server| {
        json!({
            "name": server.name,
            "capacity_per_s": server.capacity,
            "snapshot_s": server.snapshot_seconds,
            "no_snapshot": steady(&server.quiet),
            "snapshot": steady(&server.saving),
        })
    });
    json!({
        "data_bytes": data_bytes,
        "value_bytes": VALUE_BYTES,
        "clients": CLIENTS,
        "seconds": seconds,
        "servers": servers.collect::<Vec<_>>(),
    })
}

impl SnapshotFigures {
    /// With a snapshot to without: p50, p99, p99.9, maximum, memory.
    fn ratios(&self) -> [f64; 5] {
        let (quiet, saving) = (&self.quiet, &self.saving);
        [
            saving.p50_ms / quiet.p50_ms,
            saving.p99_ms / quiet.p99_ms,
            saving.p999_ms / quiet.p999_ms,
            saving.max_ms / quiet.max_ms,
            saving.memory_bytes_max as f64 / quiet.memory_bytes_max as f64,
        ]
    }
}
