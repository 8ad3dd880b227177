//! The comparison with the Redis that is installed: that it runs to its end and tells what it should, never what the
//! figures are.

use std::process::Command;

use serde_json::Value;

use crate::clients::{missing, output};
use crate::harness::binary;

fn compare(words: &[&str]) -> Option<Value> {
    if missing("redis-server") {
        return None;
    }
    let text = output(Command::new(binary()).args(["compare", "--quiet", "--json", "-"]).args(words));
    Some(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

#[test]
fn a_scenario_is_measured_for_every_server() {
    let Some(report) = compare(&["--rounds", "1", "--seconds", "0.2", "--only", "set, 50 clients, no fsync"]) else {
        return;
    };
    let scenarios = report["scenarios"].as_array().unwrap();
    assert_eq!(scenarios.len(), 1, "{report:#}");
    for contender in scenarios[0]["contenders"].as_array().unwrap() {
        assert!(contender["median"]["operations_per_s"].as_f64().unwrap() > 0.0, "{report:#}");
        assert_eq!(contender["median"]["errors"], 0, "{report:#}");
    }
}

#[test]
fn a_snapshot_is_measured_and_loses_no_request() {
    let Some(report) = compare(&["--snapshot", "--data-mb", "20", "--seconds", "0.5"]) else { return };
    let servers = report["servers"].as_array().unwrap();
    assert!(servers.len() >= 2, "{report:#}");
    for server in servers {
        for phase in ["no_snapshot", "snapshot"] {
            assert_eq!(server[phase]["errors"], 0, "{report:#}");
            assert!(server[phase]["p999_ms"].as_f64().unwrap() > 0.0, "{report:#}");
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
    let Some(report) = compare(&["--commands", "--rounds", "1", "--seconds", "0.1"]) else { return };
    let commands = report["commands"].as_array().unwrap();
    assert_eq!(commands.len(), 22, "{report:#}");
    let lacks = |server: &Value| server["lacks_command"] == true;
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
        assert!(server["median"]["operations_per_s"].as_f64().unwrap() > 0.0, "{report:#}");
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
    let Some(report) = compare(&["--replicated", "--rounds", "1", "--seconds", "0.2"]) else { return };
    let loads = report["loads"].as_array().unwrap();
    assert_eq!(loads.len(), 6, "{report:#}");
    for server in loads.iter().flat_map(|load| load["servers"].as_array().unwrap()) {
        assert!(server["median"]["operations_per_s"].as_f64().unwrap() > 0.0, "{report:#}");
        assert_eq!(server["median"]["errors"], 0, "{report:#}");
    }
    for ratio in loads.iter().flat_map(|load| load["ratios"].as_array().unwrap()) {
        assert!(ratio["server_cpu"].as_f64().is_some(), "{report:#}");
    }
}
