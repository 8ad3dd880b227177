//! `holdfast torture` in small: that it keeps its verdict honest, and leaves nothing behind.
//!
//! These are the tests of kill -9, too: an acknowledged write is there after each, as far as the policy promises.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Folder, binary, number_from_environment, say, wait_for};

/// A run that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(600);

struct Run {
    report: Value,
    code: Option<i32>,
    errors: String,
}

fn start(folder: &Folder, options: &str) -> Child {
    let mut command = Command::new(binary());
    command.args(["torture", "--quiet", "--json", "-", "--directory"]).arg(folder.path());
    command.args(options.split_whitespace());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

#[track_caller]
fn finish(mut child: Child) -> Run {
    let begun = Instant::now();
    while child.try_wait().expect("a child to wait for").is_none() {
        if begun.elapsed() > LIMIT {
            let _ = child.kill();
            panic!("no end after {LIMIT:?}");
        }
        thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().expect("its output");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let report = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    Run { report, code: output.status.code(), errors }
}

#[track_caller]
fn run(options: &str) -> Run {
    let folder = Folder::new();
    let child = start(&folder, options);
    let id = child.id();
    let run = finish(child);
    say(&format!("{options}: {}", run.report["line"]));
    if run.code == Some(0) {
        assert_eq!(files_in(folder.path()), [] as [PathBuf; 0], "files are left");
    }
    assert_eq!(children_of(id), 0, "servers are left");
    run
}

#[track_caller]
fn keeps(options: &str, faults: usize) {
    let seed = number_from_environment("HOLDFAST_TORTURE_SEED", 1);
    // On a slow disk little may be written in a few seconds.
    for seconds in [5, 20, 80] {
        let run = run(&format!("{options} --seconds {seconds} --seed {seed}"));
        assert_eq!(run.code, Some(0), "{:#}\n{}", run.report, run.errors);
        assert_eq!(run.report["verdict"], "kept");
        assert_eq!(run.report["faults"].as_array().map(Vec::len), Some(faults));
        if run.report["acknowledged"].as_u64() > Some(100) {
            return;
        }
        say(&format!("next to nothing was written: {:#}", run.report));
    }
    panic!("next to nothing is written");
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
}

/// Processes with a command line that names the folder of that run.
fn children_of(id: u32) -> usize {
    let name = format!("holdfast-torture-{id}/");
    let processes = std::fs::read_dir("/proc").expect("the processes").filter_map(Result::ok);
    let lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(&name)).count()
}

#[test]
fn kills_and_stops_lose_nothing_with_always() {
    keeps("--kills 4 --stops 1 --lengths 0.2..0.5 --clients 8", 5);
}

#[test]
fn kills_lose_nothing_with_everysec() {
    keeps("--kills 3 --clients 16 --appendfsync everysec", 3);
}

#[test]
fn kills_lose_nothing_with_no() {
    keeps("--kills 3 --clients 16 --appendfsync no", 3);
}

#[test]
fn kills_lose_nothing_of_large_values() {
    keeps("--kills 2 --clients 4 --value-bytes 110000", 2);
}

#[test]
fn transfers_are_whole_through_kills() {
    keeps("--workload transfer --kills 3 --clients 8", 3);
}

#[test]
fn transactions_stay_strictly_serializable_through_kills() {
    keeps("--workload append --kills 3 --clients 8", 3);
}

#[test]
fn a_server_that_keeps_nothing_is_found_out() {
    if Command::new("redis-server").arg("--version").output().is_err() {
        return say("SKIPPED: redis-server is not installed; cargo xtask test installs it");
    }
    let options = "--against redis --nodes 1 --option save= --kills 1 --seconds 2 --seed 1";
    for workload in ["register", "transfer", "append"] {
        let run = run(&format!("{options} --workload {workload}"));
        assert_eq!(run.code, Some(1), "{:#}\n{}", run.report, run.errors);
        assert_eq!(run.report["verdict"], "broken");
        assert!(run.report["lost"].as_u64() > Some(0), "{workload}: {:#}", run.report);
    }
}

#[test]
fn an_interrupt_ends_the_load_and_audits_and_a_second_one_ends_at_once() {
    let folder = Folder::new();
    let child = start(&folder, "--stops 1 --lengths 60..60 --seconds 100 --clients 4 --seed 1");
    let id = child.id().to_string();
    wait_for("there is load", || has_clients(child.id()));
    // In the stop, or just before it.
    thread::sleep(Duration::from_secs(1));
    interrupt(&id);
    let run = finish(child);
    assert_eq!(run.code, Some(0), "{:#}\n{}", run.report, run.errors);
    assert_eq!(run.report["ended_early"], true);

    let mut child = start(&folder, "--stops 1 --lengths 60..60 --seconds 100 --clients 4 --seed 1");
    let number = child.id();
    thread::sleep(Duration::from_secs(1));
    interrupt(&number.to_string());
    // Two signals may be taken for one.
    while child.try_wait().expect("a child to wait for").is_none() {
        interrupt(&number.to_string());
    }
    assert_ne!(finish(child).code, Some(0));
    assert_eq!(files_in(folder.path()), [] as [PathBuf; 0], "files are left");
    assert_eq!(children_of(number), 0, "servers are left");
}

/// True while a run has its clients.
fn has_clients(id: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
    names.into_iter().any(|name| name.starts_with("client "))
}

fn interrupt(id: &str) {
    let status = Command::new("kill").args(["-INT", id]).status().expect("kill runs");
    assert!(status.success());
    thread::sleep(Duration::from_millis(50));
}
