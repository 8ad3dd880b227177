//! The bill of materials of the program: every library that is compiled into it, with version, source, checksum and
//! licence, as CycloneDX 1.5 has it (<https://cyclonedx.org/docs/1.5/json/>).
//!
//! Cargo says what is needed for this system, by `cargo metadata`; the checksums are those of `Cargo.lock`. What is
//! only needed to build or to test is left out: it is not in the program.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::package::Build;
use crate::process::{cargo, output};

/// The bill for a build, for the system that it runs on.
///
/// # Errors
/// If cargo does not say what is needed.
pub fn of(build: &Build) -> Result<String> {
    let version = output(Command::new("rustc").arg("-vV").current_dir(crate::root()))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    let told = output(cargo().args(["metadata", "--format-version", "1", "--locked", "--filter-platform", host]))?;
    let metadata = serde_json::from_str(&told).context("cargo metadata is no JSON")?;
    let lock = fs::read_to_string(crate::root().join("Cargo.lock")).context("cannot read Cargo.lock")?;
    let bill = write(&metadata, &checksums(&lock)?, &build.version, &build.created)?;
    Ok(serde_json::to_string_pretty(&bill)? + "\n")
}

/// By name and version, of each package that comes from a registry.
fn checksums(lock: &str) -> Result<BTreeMap<(String, String), String>> {
    let lock: toml::Table = lock.parse().context("Cargo.lock is no TOML")?;
    let packages = lock.get("package").and_then(toml::Value::as_array).context("Cargo.lock names no package")?;
    let field = |package: &toml::Value, name: &str| package.get(name)?.as_str().map(str::to_owned);
    let checksum = |package| Some(((field(package, "name")?, field(package, "version")?), field(package, "checksum")?));
    Ok(packages.iter().filter_map(checksum).collect())
}

fn write(
    metadata: &Value,
    checksums: &BTreeMap<(String, String), String>,
    version: &str,
    created: &str,
) -> Result<Value> {
    let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let text = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let packages: BTreeMap<String, Value> =
        list(metadata, "packages").into_iter().map(|package| (text(&package, "id"), package)).collect();
    let needs: BTreeMap<String, Vec<String>> = list(&metadata["resolve"], "nodes")
        .iter()
        .map(|node| {
            let runs = |needed: &Value| list(needed, "dep_kinds").iter().any(|kind| kind["kind"].is_null());
            let needed = list(node, "deps").into_iter().filter(runs).map(|needed| text(&needed, "pkg"));
            (text(node, "id"), needed.collect())
        })
        .collect();
    let program = packages.iter().find(|(_, package)| text(package, "name") == "server" && package["source"].is_null());
    let (program, _) = program.context("the workspace has no package 'server'")?;
    let mut found = BTreeSet::from([program.clone()]);
    let mut open = vec![program.clone()];
    while let Some(package) = open.pop() {
        for needed in needs.get(&package).into_iter().flatten() {
            if found.insert(needed.clone()) {
                open.push(needed.clone());
            }
        }
    }
    ensure!(found.len() > 1, "the program needs nothing, which cannot be");
    let name = |id: &String| {
        let package = &packages[id];
        let (name, version) = (text(package, "name"), text(package, "version"));
        if package["source"].is_null() {
            format!("holdfast:{name}@{version}")
        } else {
            format!("pkg:cargo/{name}@{version}")
        }
    };
    let component = |id: &String| {
        let package = &packages[id];
        let key = (text(package, "name"), text(package, "version"));
        let mut component = json!({
            "type": "library", "bom-ref": name(id), "name": key.0, "version": key.1, "scope": "required",
        });
        if !package["license"].is_null() {
            component["licenses"] = json!([{ "expression": text(package, "license").replace('/', " OR ") }]);
        }
        if !package["source"].is_null() {
            component["purl"] = name(id).into();
        }
        if let Some(checksum) = checksums.get(&key) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        }
        component
    };
    let mut components: Vec<Value> = found.iter().filter(|id| *id != program).map(component).collect();
    components.sort_by_key(|component| text(component, "bom-ref"));
    let mut dependencies: Vec<Value> = found
        .iter()
        .map(|id| {
            let mut on: Vec<String> = needs.get(id).into_iter().flatten().map(name).collect();
            on.sort();
            on.dedup();
            json!({ "ref": if id == program { "holdfast".to_owned() } else { name(id) }, "dependsOn": on })
        })
        .collect();
    dependencies.sort_by_key(|dependency| text(dependency, "ref"));
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": created,
            "component": {
                "type": "application", "bom-ref": "holdfast", "name": "holdfast", "version": version,
                "licenses": [{ "license": { "id": "Apache-2.0" } }],
            },
        },
        "components": components,
        "dependencies": dependencies,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_is_listed_and_what_builds_or_tests_is_not() {
        let package = |id: &str, name: &str, source: Value| json!({"id": id, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0", "source": source});
        let registry = || json!("registry+https://example.org");
        let needs = |pkg: &str, kind: Value| json!({"pkg": pkg, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [
                package("s", "server", Value::Null), package("e", "edge", Value::Null),
                package("r", "runs", registry()), package("b", "builds", registry()), package("t", "tests", registry()),
            ],
            "resolve": {"nodes": [
                {"id": "s", "deps": [needs("e", Value::Null), needs("t", json!("dev"))]},
                {"id": "e", "deps": [needs("r", Value::Null), needs("b", json!("build"))]},
                {"id": "r", "deps": []}, {"id": "b", "deps": []}, {"id": "t", "deps": []},
            ]},
        });
        let lock = "[[package]]\nname = \"runs\"\nversion = \"1.0.0\"\nchecksum = \"abc\"\n";
        let bill = write(&metadata, &checksums(lock).expect("a lock"), "0.1.0", "then").expect("a bill");
        let names: Vec<&str> =
            bill["components"].as_array().expect("a list").iter().filter_map(|one| one["name"].as_str()).collect();
        assert_eq!(names, ["edge", "runs"]);
        assert_eq!(bill["components"][1]["hashes"][0]["content"], "abc");
        assert_eq!(bill["components"][1]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(bill["components"][0].get("purl"), None);
        assert_eq!(bill["dependencies"].as_array().expect("a list").len(), 3);
        assert_eq!(write(&metadata, &BTreeMap::new(), "0.1.0", "then").expect("a bill")["version"], 1);
    }

    #[test]
    fn this_workspace_has_a_bill() {
        let build = Build {
            binary: std::path::PathBuf::new(),
            version: "1.2.3".to_owned(),
            native: std::path::PathBuf::new(),
            machine: crate::machine::Machine::of(&std::env::current_exe().expect("a program")).expect("it runs"),
            moment: "0".to_owned(),
            created: "1970-01-01T00:00:00Z".to_owned(),
        };
        let bill: Value = serde_json::from_str(&of(&build).expect("a bill")).expect("JSON");
        let components = bill["components"].as_array().expect("a list");
        let is_there = |name: &str| components.iter().any(|one| one["name"] == name);
        assert!(is_there("raft") && is_there("rustls") && is_there("keyspace"));
        assert!(!is_there("xtask"));
        for component in components.iter().filter(|one| one.get("purl").is_some()) {
            assert!(component.get("hashes").is_some(), "no checksum: {component}");
            assert!(component.get("licenses").is_some(), "no licence: {component}");
        }
    }
}
