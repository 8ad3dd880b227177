//! The comparison with the Redis that is installed: that it runs to its end and tells what it should, never what the
//! figures are.

use std::process::Command;

use serde_json::Value;

use crate::clients::{missing, output};
use crate::harness::{binary, say};

fn compare(words: &[&str]) -> Option<Value> {
    if missing("redis-server") {
        return None;
    }
    let text = output(Command::new(binary()).args(["compare", "--quiet", "--json", "-"]).args(words));
    Some(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

/// The same, for as many seconds as are needed for figures: how much is done in the first of these depends on the disk.
#[track_caller]
fn compare_until(words: &[&str], is_measured: impl Fn(&Value) -> bool) -> Option<Value> {
    for seconds in ["0.2", "1", "5", "20"] {
        let report = compare(&[words, &["--seconds", seconds]].concat())?;
        if is_measured(&report) {
            return Some(report);
        }
        say(&format!("too little in {seconds} s: {report:#}"));
    }
    panic!("{words:?}: nothing is measured");
}

fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value[name].as_array().expect("a list")
}

/// Operations were done.
fn has_done(server: &Value) -> bool {
    server["median"]["operations_per_s"].as_f64().is_some_and(|rate| rate > 0.0)
}

#[test]
fn a_scenario_is_measured_for_every_server() {
    let is_measured = |report: &Value| list(&report["scenarios"][0], "contenders").iter().all(has_done);
    let Some(report) = compare_until(&["--rounds", "1", "--only", "set, 50 clients, no fsync"], is_measured) else {
        return;
    };
    let scenarios = report["scenarios"].as_array().unwrap();
    assert_eq!(scenarios.len(), 1, "{report:#}");
    for contender in scenarios[0]["contenders"].as_array().unwrap() {
        assert_eq!(contender["median"]["errors"], 0, "{report:#}");
    }
}

#[test]
fn a_snapshot_is_measured_and_loses_no_request() {
    let has_waits = |server: &Value, phase: &str| server[phase]["p999_ms"].as_f64().is_some_and(|wait| wait > 0.0);
    let is_measured = |report: &Value| {
        list(report, "servers").iter().all(|server| has_waits(server, "no_snapshot") && has_waits(server, "snapshot"))
    };
    let Some(report) = compare_until(&["--snapshot", "--data-mb", "20"], is_measured) else { return };
    let servers = report["servers"].as_array().unwrap();
    assert!(servers.len() >= 2, "{report:#}");
    for server in servers {
        for phase in ["no_snapshot", "snapshot"] {
            assert_eq!(server[phase]["errors"], 0, "{report:#}");
        }
    }
}

#[test]
fn a_footprint_is_measured_and_a_restart_has_all_keys() {
    let Some(report) = compare(&["--footprint", "--keys", "50000"]) else { return };
    for server in report["servers"].as_array().unwrap() {
        let bytes = server["memory_bytes_per_key"].as_f64().unwrap();
        assert!((48.0..1000.0).contains(&bytes), "{report:#}");
        assert!(server["restart_s"].as_f64().unwrap() > 0.0, "{report:#}");
        let collections = server["memory_bytes_per_collection"].as_object().unwrap();
        assert!(collections.values().all(|bytes| (50.0..5000.0).contains(&bytes.as_f64().unwrap())), "{report:#}");
    }
}

#[test]
fn commands_are_measured_with_what_they_need_and_find_something() {
    let lacks = |server: &Value| server["lacks_command"] == true;
    let is_measured = |report: &Value| {
        let mut servers = list(report, "commands").iter().flat_map(|command| list(command, "servers"));
        servers.all(|server| lacks(server) || has_done(server))
    };
    let Some(report) = compare_until(&["--commands", "--rounds", "1"], is_measured) else { return };
    let commands = report["commands"].as_array().unwrap();
    assert_eq!(commands.len(), 22, "{report:#}");
    for command in commands {
        let name = command["name"].as_str().unwrap();
        // A Redis 7.0 knows nothing of the deadlines of fields, documents and filters.
        let is_newer = ["HSETEX", "HEXPIRE", "JSON", "BF"].iter().any(|start| name.starts_with(start));
        let servers = command["servers"].as_array().unwrap();
        assert!(!lacks(&servers[0]), "{report:#}");
        let redis = |server: &&Value| server["name"].as_str().is_some_and(|name| name.starts_with("redis 7.0"));
        assert!(servers.iter().filter(redis).all(|server| lacks(server) == is_newer), "{report:#}");
    }
    let measured = commands.iter().flat_map(|command| command["servers"].as_array().unwrap());
    for server in measured.filter(|server| !lacks(server)) {
        assert_eq!(server["median"]["errors"], 0, "{report:#}");
    }
}

#[test]
fn the_waits_beside_a_huge_collection_are_measured_in_every_phase() {
    let Some(report) = compare(&["--huge", "--elements", "20000"]) else { return };
    let servers = report["servers"].as_array().unwrap();
    assert!(servers.len() >= 2, "{report:#}");
    for kind in servers.iter().flat_map(|server| server["kinds"].as_array().unwrap()) {
        let phases = kind["phases"].as_array().unwrap();
        assert_eq!(phases.len(), 6, "{report:#}");
        assert!(phases.iter().any(|phase| phase["p50_ms"].as_f64().unwrap() > 0.0), "{report:#}");
    }
}

#[test]
fn three_nodes_are_measured_beside_a_primary_with_replicas() {
    // The time of processors is counted in hundredths of a second.
    let is_measured = |report: &Value| {
        list(report, "loads").iter().all(|load| {
            list(load, "servers").iter().all(has_done)
                && list(load, "ratios").iter().all(|ratio| ratio["server_cpu"].is_f64())
        })
    };
    let Some(report) = compare_until(&["--replicated", "--rounds", "1"], is_measured) else { return };
    let loads = report["loads"].as_array().unwrap();
    assert_eq!(loads.len(), 6, "{report:#}");
    for server in loads.iter().flat_map(|load| load["servers"].as_array().unwrap()) {
        assert_eq!(server["median"]["errors"], 0, "{report:#}");
    }
}
