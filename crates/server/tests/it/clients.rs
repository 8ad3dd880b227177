//! The clients people have: they must work unmodified.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{Folder, Server, ServerOptions, say};

#[track_caller]
pub fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        // At once as well: what a failed test has said comes last in a long run, and may be cut off.
        say(&format!("{command:?} ended with {}:\n{errors}", output.status));
        panic!("{command:?} ended with {}:\n{text}\n{errors}", output.status);
    }
    text
}

fn server(folder: &Folder) -> Server {
    Server::start(&ServerOptions::new(&folder.path().join("data")))
}

/// `cargo xtask test` installs what is missing here; a plain `cargo test` on a bare machine says what it left out.
pub fn missing(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
    let missing = !found.is_ok_and(|status| status.success());
    if missing {
        say(&format!("SKIPPED: {program} is not installed; cargo xtask test installs it"));
    }
    missing
}

#[test]
fn redis_cli_talks_to_it() {
    if missing("redis-cli") {
        return;
    }
    let folder = Folder::new();
    let server = server(&folder);
    let cli = |words: &[&str]| {
        let port = server.port().to_string();
        output(Command::new("redis-cli").args(["-p", &port]).args(words)).trim_end().to_owned()
    };
    assert_eq!(cli(&["SET", "city", "Lisbon"]), "OK");
    assert_eq!(cli(&["GET", "city"]), "Lisbon");
    assert!(cli(&["-3", "HELLO"]).contains("proto 3"), "RESP3");
    assert_eq!(cli(&["--raw", "INCRBY", "visits", "41"]), "41");
    assert!(cli(&["INFO", "server"]).contains("redis_version:"));
    assert_eq!(cli(&["--scan", "--pattern", "ci*"]), "city");
    assert!(cli(&["GET"]).starts_with("ERR wrong number of arguments for 'get' command"));
}

#[test]
fn redis_benchmark_runs_against_it() {
    if missing("redis-benchmark") {
        return;
    }
    let folder = Folder::new();
    let server = server(&folder);
    let port = server.port().to_string();
    for pipeline in ["1", "16"] {
        let tests = "ping_inline,ping_mbulk,set,get,incr,mset";
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &port, "-q", "-n", "2000", "-c", "20", "-P", pipeline, "-r", "100", "-t", tests]);
        let report = output(&mut command);
        for name in ["PING_INLINE", "PING_MBULK", "SET", "GET", "INCR", "MSET"] {
            let line = report.split(['\r', '\n']).rev().find(|line| line.starts_with(name));
            assert!(line.is_some_and(|line| line.contains("requests per second")), "{name} is missing:\n{report}");
        }
    }
    assert_eq!(server.client().show("EXISTS key:000000000001"), "(integer) 1");
}

#[test]
fn the_python_client_works_with_it() {
    let python = std::env::var_os("HOLDFAST_PYTHON").unwrap_or_else(|| "python3".into());
    let imports = Command::new(&python).args(["-c", "import redis"]).stderr(Stdio::null()).status();
    if !imports.is_ok_and(|status| status.success()) {
        say("SKIPPED: python3 cannot import redis; cargo xtask test sees to it");
        return;
    }
    let folder = Folder::new();
    let server = server(&folder);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/clients/redis_py.py");
    for protocol in ["2", "3"] {
        server.client().call(&["FLUSHALL"]);
        let said = output(Command::new(&python).arg(&script).args([&server.port().to_string(), protocol]));
        assert_eq!(said.trim_end(), "all well");
    }
}
