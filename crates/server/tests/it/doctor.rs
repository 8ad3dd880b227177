//! `holdfast doctor` on this host, whatever its health, and against a server with faults that need no privilege.
//! Nothing is expected of the host: whether it is healthy is not for a test to say.

use std::net::TcpStream;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ::doctor::finding::CHECKS;
use serde_json::Value;

use crate::harness::{Folder, IsOver, Server, ServerOptions, binary};

fn doctor(words: &[&str]) -> Output {
    Command::new(binary()).arg("doctor").args(words).output().expect("it can be run")
}

/// The report as JSON, of an examination that could be made.
#[track_caller]
fn examine(words: &[&str]) -> Value {
    let output = doctor(&[words, &["--json", "--seconds", "2"]].concat());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|why| panic!("{why}: {output:?}"));
    let guilty = report["guilty"].as_u64().expect("a number");
    assert_eq!(output.status.code(), Some(i32::from(guilty > 0)), "{report}");
    for (check, _) in CHECKS {
        assert!(list(&report).iter().any(|finding| finding["check"] == *check), "{check} is not in {report}");
    }
    report
}

fn list(report: &Value) -> &[Value] {
    report["checks"].as_array().expect("a list")
}

#[track_caller]
fn finding<'r>(report: &'r Value, check: &str) -> &'r Value {
    let found = list(report).iter().find(|finding| finding["check"] == check);
    found.unwrap_or_else(|| panic!("{check} is not in {report}"))
}

#[track_caller]
fn is_guilty(report: &Value, check: &str, evidence: &str) {
    let finding = finding(report, check);
    assert_eq!(finding["verdict"], "guilty", "{finding}");
    assert!(finding["detail"].as_str().is_some_and(|detail| detail.contains(evidence)), "{finding}");
    assert!(finding["advice"].as_str().is_some_and(|advice| !advice.is_empty()), "{finding}");
    assert!(finding["rank"].as_u64().is_some(), "{finding}");
}

/// Does something again and again while something else is done.
fn meanwhile<T>(mut disturb: impl FnMut() + Send, work: impl FnOnce() -> T) -> T {
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                disturb();
            }
        });
        let _is_over = IsOver(&ends);
        work()
    })
}

#[test]
fn a_host_is_examined_without_a_server_and_nothing_is_left_behind() {
    let folder = Folder::new();
    let path = folder.path().display().to_string();
    let report = examine(&["--data-dir", &path]);
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0);
    // A disk may be too slow for a single sync in the time there is; it has been tried.
    assert_ne!(finding(&report, "disk.sync")["detail"], "no folder was named (--data-dir)", "{report}");
    assert_eq!(finding(&report, "load.big_keys")["verdict"], "unknown");
    assert_eq!(finding(&report, "load.big_keys")["detail"], "no server was named (--server)");
    let page = doctor(&["--seconds", "1"]);
    let text = String::from_utf8_lossy(&page.stdout).into_owned();
    let first = text.lines().next().unwrap_or_default();
    assert!(first.starts_with("guilty: ") || first.starts_with("nothing found: "), "{text}");
    assert!(CHECKS.iter().all(|(check, _)| text.contains(check)), "{text}");
    assert!(page.stderr.is_empty(), "nothing is told of progress within two seconds: {page:?}");
}

#[test]
fn what_cannot_be_examined_is_an_error_of_its_own() {
    let nobody = doctor(&["--server", "127.0.0.1:1", "--seconds", "1"]);
    let told = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert_eq!((nobody.status.code(), told.contains("no answer from 127.0.0.1:1")), (Some(2), true), "{nobody:?}");
    for words in [&["--seconds", "900"][..], &["--data-dir", "/nowhere"], &["--nosuchoption"], &["--cacert", "x"]] {
        assert_eq!(doctor(words).status.code(), Some(2), "{words:?}");
    }
}

#[test]
fn slow_scripts_and_big_keys_are_named() {
    let folder = Folder::new();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    let mut client = server.client();
    assert_eq!(client.call(&["CONFIG", "SET", "requirepass", "open sesame"]).to_string(), "OK");
    client.call(&["SETRANGE", "whale", "52428799", "x"]);
    let script = "local sum = 0 for i = 1, 1e8 do sum = sum + i end return sum";
    let begun = Instant::now();
    client.call(&["EVAL", script, "0"]);
    let took = begun.elapsed();
    let port = server.port().to_string();
    assert_eq!(doctor(&["-p", &port, "--seconds", "1"]).status.code(), Some(2), "without the password");
    let report = examine(&["-p", &port, "-a", "open sesame"]);
    is_guilty(&report, "load.big_keys", "whale");
    if took > Duration::from_millis(150) {
        is_guilty(&report, "load.slow_commands", "EVAL");
    }
    assert_eq!(finding(&report, "persistence.fork")["value"], "never forks");
    assert_eq!(finding(&report, "persistence.durability")["value"], "synced-before-reply");
    let place = format!("127.0.0.1:{port}");
    assert_eq!(report["servers"][0]["place"], place.as_str(), "{report}");
    // It runs here, so its process has been found and looked at.
    for check in ["cpu.waiting", "server.stops", "limits.files", "memory.swapped"] {
        assert_ne!(finding(&report, check)["verdict"], "unknown", "{report}");
        assert_eq!(finding(&report, check)["place"], place.as_str());
    }
    assert!(server.stop().status.success());
}

#[test]
fn storms_of_connections_and_stopped_processes_are_named() {
    let folder = Folder::new();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    let place = format!("127.0.0.1:{}", server.port());
    // A busy machine may be kept from making as many connections as are a storm.
    let storm = || meanwhile(|| drop(TcpStream::connect(&place)), || examine(&["--server", &place, "--alone"]));
    let mut reports = (0..5).map(|_| storm());
    let is_named = |report: &Value| finding(report, "load.connections")["verdict"] == "guilty";
    let report = reports.find(is_named).expect("a storm that is named");
    is_guilty(&report, "load.connections", "are connected");
    let stop = || {
        server.signal("STOP");
        thread::sleep(Duration::from_millis(200));
        server.signal("CONT");
        thread::sleep(Duration::from_millis(200));
    };
    let report = meanwhile(stop, || examine(&["--server", &place]));
    is_guilty(&report, "server.stops", "");
    assert_eq!(finding(&report, "server.answers")["verdict"], "guilty", "{report}");
    assert!(server.stop().status.success());
}

#[test]
fn the_hottest_key_is_named() {
    let folder = Folder::new();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    let mut client = server.client();
    (0..300).for_each(|nth| _ = client.call(&["RPUSH", "hot", &nth.to_string()]));
    let place = format!("127.0.0.1:{}", server.port());
    let load = || _ = client.call(&["LRANGE", "hot", "0", "-1"]);
    let report = meanwhile(load, || examine(&["--server", &place]));
    let found = finding(&report, "load.hot_keys");
    assert_ne!(found["verdict"], "unknown", "{report}");
    // How much of a core's time one client takes is not for a test to say.
    assert!(found["detail"].as_str().is_some_and(|detail| detail.starts_with("hot: ")), "{found}");
    assert!(server.stop().status.success());
}

#[test]
fn servers_are_compared() {
    let folder = Folder::new();
    let start = |name: &str, slow: &str| {
        let options = ServerOptions::new(&folder.path().join(name)).extra(&["--slowlog-log-slower-than", slow]);
        Server::start(&options)
    };
    let (one, other) = (start("one", "10000"), start("other", "20000"));
    let places = format!("127.0.0.1:{},127.0.0.1:{}", one.port(), other.port());
    let report = examine(&["--server", &places]);
    is_guilty(&report, "fleet.configuration", "slowlog-log-slower-than: \"10000\"");
    assert_eq!(finding(&report, "fleet.versions")["verdict"], "fine");
    assert_eq!(report["servers"].as_array().map(Vec::len), Some(2), "{report}");
    assert!(one.stop().status.success() && other.stop().status.success());
}
