//! `holdfast compare --footprint`: memory per key, and how long a restart takes to have the keys back.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use resp::Frame;
use serde_json::{Value, json};

use super::contender::{Contender, Durability, Folder, RunningServer};
use super::talk::{Talk, memory_bytes};
use crate::bench::{self, BenchArguments, Progress, Workload};

const VALUE_BYTES: u64 = 32;

/// One server's figures.
#[derive(Debug)]
pub struct FootprintFigures {
    name: String,
    /// Memory of the process, less that of the same process without keys, per key.
    bytes_per_key: f64,
    snapshot_seconds: f64,
    /// From the start of the process until it has answered with the number of keys.
    restart_seconds: f64,
}

/// Measures one server after the other.
pub fn measure(
    contenders: &[Contender],
    keys: u64,
    folder: &Folder,
    progress: &mut Progress,
) -> Result<Vec<FootprintFigures>> {
    contenders
        .iter()
        .map(|contender| {
            measure_one(contender, keys, folder, progress).with_context(|| format!("{}: footprint", contender.name))
        })
        .collect()
}

fn measure_one(contender: &Contender, keys: u64, folder: &Folder, progress: &mut Progress) -> Result<FootprintFigures> {
    let name = &contender.name;
    let mut server = RunningServer::start(contender, Durability::Unsynced, folder)?;
    let empty_bytes = memory_bytes(server.pid()).context("the server has gone")?;
    let load = BenchArguments {
        workload: Workload::Get,
        value_bytes: VALUE_BYTES,
        keys,
        seconds: 0.1,
        warmup: 0.0,
        threads: Some(1),
        ..BenchArguments::for_host(server.address())
    };
    progress.show(&format!("{name}: setting {keys} keys"));
    bench::measure(&load)?;
    let mut talk = Talk::new(&server.address())?;
    while talk.is_saving()? {
        std::thread::sleep(Duration::from_millis(100));
    }
    let full_bytes = memory_bytes(server.pid()).context("the server has gone")?;
    progress.show(&format!("{name}: saving"));
    let started = Instant::now();
    talk.ask(&["SAVE"])?;
    let snapshot_seconds = started.elapsed().as_secs_f64();
    progress.show(&format!("{name}: killed and started again"));
    let restart_seconds = server.restart()?.as_secs_f64();
    let count = Talk::new(&server.address())?.ask(&["DBSIZE"])?;
    ensure!(count == Frame::Integer(keys as i64), "after the restart DBSIZE is {count:?}, not {keys}");
    server.stop()?;
    let bytes_per_key = full_bytes.saturating_sub(empty_bytes) as f64 / keys as f64;
    Ok(FootprintFigures { name: name.clone(), bytes_per_key, snapshot_seconds, restart_seconds })
}

/// The report that is printed.
pub fn text(figures: &[FootprintFigures], keys: u64) -> String {
    use std::fmt::Write;
    let mut out = format!(
        "{keys} keys of 16 bytes with {VALUE_BYTES}-byte values; SAVE, kill -9, start\n\n  {:<22}{:>16}{:>12}{:>12}\n",
        "", "memory B/key", "SAVE s", "start s"
    );
    for server in figures {
        let FootprintFigures { name, bytes_per_key, snapshot_seconds, restart_seconds } = server;
        let _ = writeln!(out, "  {name:<22}{bytes_per_key:>16.1}{snapshot_seconds:>12.2}{restart_seconds:>12.2}");
    }
    for peer in &figures[1..] {
        let _ = writeln!(
            out,
            "  {:<22}{:>15.2}x{:>11.2}x{:>11.2}x",
            format!("to {}", peer.name),
            figures[0].bytes_per_key / peer.bytes_per_key,
            figures[0].snapshot_seconds / peer.snapshot_seconds,
            figures[0].restart_seconds / peer.restart_seconds
        );
    }
    out
}

/// The report to be processed.
pub fn json(figures: &[FootprintFigures], keys: u64) -> Value {
    let servers = figures.iter().map(|server| {
        json!({
            "name": server.name,
            "memory_bytes_per_key": server.bytes_per_key,
            "save_s": server.snapshot_seconds,
            "restart_s": server.restart_seconds,
        })
    });
    json!({ "keys": keys, "value_bytes": VALUE_BYTES, "servers": servers.collect::<Vec<_>>() })
}
