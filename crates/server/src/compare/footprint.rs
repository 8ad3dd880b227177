//! `holdfast compare --footprint`: memory per key, and how long a restart takes to have the keys back.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use resp::Frame;
use serde_json::{Value, json};

use super::contender::{Contender, Durability, Folder, RunningServer};
use super::talk::{Talk, memory_bytes};
use crate::bench::{self, BenchArguments, Progress, Workload};

const VALUE_BYTES: u64 = 32;
/// Collections are so many times fewer than keys with strings, as they hold more.
const STRINGS_PER_COLLECTION: u64 = 10;
/// Fewer would drown in what a server takes once.
const COLLECTIONS_MIN: u64 = 100_000;
/// Bytes of a field's value.
const FIELD_BYTES: u64 = 10;

/// Collections that get their memory measured, and the request that makes one.
const COLLECTIONS: [(&str, &str); 2] = [
    (
        "hash of 5 fields",
        "HSET hash:{key} field:1 {value} field:2 {value} field:3 {value} field:4 {value} field:5 {value}",
    ),
    ("sorted set of 10 members", "ZADD zset:{key} 1 m:1 2 m:2 3 m:3 4 m:4 5 m:5 6 m:6 7 m:7 8 m:8 9 m:9 10 m:10"),
];

/// One server's figures.
#[derive(Debug)]
pub struct FootprintFigures {
    name: String,
    /// Memory of the process, less that of the same process without keys, per key.
    bytes_per_key: f64,
    snapshot_seconds: f64,
    /// From the start of the process until it has answered with the number of keys.
    restart_seconds: f64,
    /// Memory, in the same way, for each of [`COLLECTIONS`], each in a server of its own.
    bytes_per_collection: Vec<f64>,
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
    settle(&mut talk)?;
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
    let collections = COLLECTIONS.iter().map(|(kind, command)| {
        progress.show(&format!("{name}: making collections: {kind}"));
        bytes_per_collection(contender, command, collection_count(keys), folder)
    });
    let bytes_per_collection = collections.collect::<Result<_>>()?;
    Ok(FootprintFigures { name: name.clone(), bytes_per_key, snapshot_seconds, restart_seconds, bytes_per_collection })
}

fn collection_count(keys: u64) -> u64 {
    (keys / STRINGS_PER_COLLECTION).max(COLLECTIONS_MIN.min(keys))
}

fn bytes_per_collection(contender: &Contender, command: &str, count: u64, folder: &Folder) -> Result<f64> {
    let server = RunningServer::start(contender, Durability::Unsynced, folder)?;
    let empty_bytes = memory_bytes(server.pid()).context("the server has gone")?;
    bench::fill(&BenchArguments {
        workload: Workload::Command,
        command: Some(command.to_owned()),
        value_bytes: FIELD_BYTES,
        keys: count,
        threads: Some(1),
        ..BenchArguments::for_host(server.address())
    })?;
    let mut talk = Talk::new(&server.address())?;
    settle(&mut talk)?;
    let full_bytes = memory_bytes(server.pid()).context("the server has gone")?;
    let found = talk.ask(&["DBSIZE"])?;
    ensure!(found == Frame::Integer(count as i64), "DBSIZE is {found:?}, not {count}");
    server.stop()?;
    Ok(full_bytes.saturating_sub(empty_bytes) as f64 / count as f64)
}

/// Waits until no snapshot is being written.
fn settle(talk: &mut Talk) -> Result<()> {
    while talk.is_saving()? {
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// The report that is printed.
pub fn text(figures: &[FootprintFigures], keys: u64) -> String {
    use std::fmt::Write;
    let mut out = format!(
        "{keys} keys of 16 bytes with {VALUE_BYTES}-byte values; SAVE, kill -9, start\n\n  {:<22}{:>16}{:>12}{:>12}\n",
        "", "memory B/key", "SAVE s", "start s"
    );
    for server in figures {
        let FootprintFigures { name, bytes_per_key, snapshot_seconds, restart_seconds, .. } = server;
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
    let count = collection_count(keys);
    let _ = writeln!(out, "\n{count} collections of each kind: memory of one, in bytes\n");
    let _ = write!(out, "  {:<26}", "");
    for (index, server) in figures.iter().enumerate() {
        let _ = write!(out, "{:>18}{}", server.name, if index > 0 { "   ratio" } else { "" });
    }
    out.push('\n');
    for (at, (kind, _)) in COLLECTIONS.iter().enumerate() {
        let _ = write!(out, "  {kind:<26}");
        for (index, server) in figures.iter().enumerate() {
            let bytes = server.bytes_per_collection[at];
            let _ = write!(out, "{bytes:>18.1}");
            let ratio = figures[0].bytes_per_collection[at] / bytes;
            let _ = if index > 0 { write!(out, "{ratio:>7.2}x") } else { Ok(()) };
        }
        out.push('\n');
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
            "memory_bytes_per_collection": COLLECTIONS
                .iter()
                .zip(&server.bytes_per_collection)
                .map(|((kind, _), bytes)| ((*kind).to_owned(), json!(bytes)))
                .collect::<serde_json::Map<_, _>>(),
        })
    });
    json!({
        "keys": keys,
        "collections": collection_count(keys),
        "value_bytes": VALUE_BYTES,
        "servers": servers.collect::<Vec<_>>(),
    })
}
