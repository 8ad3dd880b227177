//! What a shell, a supervisor and a measurement ask of the binary.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::harness::{Folder, Server, ServerOptions, binary};

fn run(words: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new(binary()).args(words).envs(environment.iter().copied()).output().expect("it can be run")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn version_completions_and_man_pages_come_from_the_command_line_itself() {
    let told = run(&["version"], &[]);
    assert!(told.status.success());
    assert_eq!(told.stdout, run(&["--version"], &[]).stdout);
    assert!(text(&told).starts_with(&format!("holdfast {}", env!("CARGO_PKG_VERSION"))), "{told:?}");
    for (shell, sign) in
        [("bash", "complete -F _holdfast"), ("zsh", "#compdef holdfast"), ("fish", "complete -c holdfast")]
    {
        let script = run(&["completions", shell], &[]);
        assert!(script.status.success() && text(&script).contains(sign), "{shell}");
        assert!(text(&script).contains("rebalance"), "{shell}");
    }
    assert!(!run(&["completions", "nosuchshell"], &[]).status.success());
    let folder = Folder::new();
    let pages = folder.path().join("man1");
    assert!(run(&["man", &pages.display().to_string()], &[]).status.success());
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap_or_else(|cause| panic!("{name}: {cause}"));
    assert!(page("holdfast.1").contains(".TH holdfast 1"));
    assert!(page("holdfast-cluster-status.1").contains("\\-\\-server"));
    assert!(page("holdfast-bench.1").contains("NAME") && page("holdfast-serve.1").contains("NAME"));
}

#[test]
fn health_is_an_exit_code() {
    let folder = Folder::new();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    assert_eq!(server.client().call(&["CONFIG", "SET", "requirepass", "open sesame"]).to_string(), "OK");
    let (port, place) = (server.port().to_string(), format!("127.0.0.1:{}", server.port()));
    let refused = run(&["health", "-p", &port], &[]);
    assert!(!refused.status.success() && text(&refused).contains("asks for a password (NOAUTH)"), "{refused:?}");
    // A server that lets nobody in does not do so later, either: it is not waited for.
    let refused = run(&["cluster", "create", &place, "--wait", "86400"], &[]);
    assert!(!refused.status.success() && text(&refused).contains("asks for a password (NOAUTH)"), "{refused:?}");
    for (words, environment) in [
        (&["health", "-p", &port, "-a", "open sesame"][..], &[][..]),
        (&["health", "-s", &place], &[("REDISCLI_AUTH", "open sesame")]),
        (&["health", "-s", &place, "--caught-up"], &[("HOLDFAST_PASSWORD", "open sesame"), ("REDISCLI_AUTH", "wrong")]),
    ] {
        let told = run(words, environment);
        assert!(told.status.success() && text(&told).starts_with("serves: Holdfast "), "{words:?}: {told:?}");
    }
    let quiet = run(&["health", "-q", "-p", &port, "--pass", "open sesame"], &[]);
    assert!(quiet.status.success() && text(&quiet).is_empty(), "{quiet:?}");
    assert!(server.stop().status.success());
    let gone = run(&["health", "-p", &port], &[]);
    assert!(!gone.status.success() && text(&gone).contains("no answer from"), "{gone:?}");
}

#[test]
fn a_measurement_says_of_what_it_is() {
    let folder = Folder::new();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    let port = server.port().to_string();
    let words = ["bench", "-p", &port, "--seconds", "0.2", "--warmup", "0", "--keys", "10", "--clients", "1"];
    let told = text(&run(&words, &[]));
    let expected = format!("server:               Holdfast {}, synced-before-reply", env!("CARGO_PKG_VERSION"));
    assert!(told.contains(&expected), "{told}");
    let words = [&words[..], &["--json", "-"]].concat();
    let told: serde_json::Value = serde_json::from_slice(&run(&words, &[]).stdout).expect("JSON");
    assert_eq!(told["servers"].as_array().map(Vec::len), Some(1), "{told}");
    assert!(server.stop().status.success());
}

#[test]
fn a_port_that_accepts_and_says_nothing_is_named_by_every_tool() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port().to_string();
    let place = format!("127.0.0.1:{port}");
    let folder = Folder::new();
    let url = format!("redis://{place}");
    let [backup, record] = ["backup", "record"].map(|name| folder.path().join(name).display().to_string());
    std::fs::write(&record, "{\"op\": \"set\", \"key\": \"a\", \"value\": \"b\", \"outcome\": \"ok\"}\n")
        .expect("room");
    let verbs: &[&[&str]] = &[
        &["cluster", "status", "-p", &port],
        &["cluster", "timeline", "-p", &port],
        &["health", "-p", &port],
        &["doctor", "-p", &port],
        &["backup", "create", &backup, "-p", &port],
        &["site", "status", "-p", &port],
        &["audit", &record, "-p", &port],
        &["migrate", "check", "--from", &url, "-p", &port],
        &["migrate", "verify", "--from", &url, "-p", &port],
    ];
    let mut children: Vec<_> = verbs
        .iter()
        .map(|words| {
            let mut command = Command::new(binary());
            command.args(*words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
            command.spawn().expect("it can be run")
        })
        .collect();
    for (child, words) in children.iter_mut().zip(verbs) {
        let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut told = lines.map_while(Result::ok);
        let found = told.find(|line| line.contains("for an answer of"));
        assert!(found.is_some_and(|line| line.contains(&place)), "{words:?}");
        child.kill().expect("it still waits");
        child.wait().expect("it ends");
    }
    // Nobody looks on.
    let quiet = Command::new(binary()).args(["health", "-q", "-p", &port]).stderr(Stdio::piped()).spawn();
    let mut quiet = quiet.expect("it can be run");
    std::thread::sleep(Duration::from_secs(3));
    quiet.kill().expect("it still waits");
    let told = quiet.wait_with_output().expect("it ends");
    assert!(told.stderr.is_empty(), "{told:?}");
}

/// What a program prints that is given these lines.
fn fed(program: &str, words: &[&str], lines: &[u8]) -> Output {
    let mut child = Command::new(program)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it can be run");
    child.stdin.take().expect("piped").write_all(lines).expect("it reads");
    child.wait_with_output().expect("it ends")
}

#[test]
fn replies_look_as_in_redis_cli() {
    const LINES: &[u8] = br#"
SET a "x\"y\n\x00\xff"
GET a
HSET h f 1 g 2
HGETALL h
LRANGE nothing 0 -1
EVAL "return {1,{2,'a',{}},false,'z'}" 0
EVAL "redis.setresp(3); return {map={a={},b={map={c={1,2}}}}}" 0
GET missing
INCR a
ZADD z 1.5 m 2 k
ZRANGE z 0 -1 WITHSCORES
SMEMBERS none
SADD s q
SMEMBERS s
XADD st 1-1 f v
XRANGE st - +
XINFO STREAM st
MULTI
GET h
INCR n
EXEC
COMMAND DOCS get
CONFIG GET maxmemory
"#;
    let folder = Folder::new();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    let port = server.port().to_string();
    let empty = || assert_eq!(server.client().call(&["FLUSHALL"]).to_string(), "OK");
    for options in [&["--no-raw"][..], &["--raw"], &["-3", "--no-raw"], &["-3", "--raw"]] {
        let ours = fed(&binary().display().to_string(), &[&["cli", "-p", &port], options].concat(), LINES);
        empty();
        let theirs = fed("redis-cli", &[&["-p", &port], options].concat(), LINES);
        empty();
        assert!(ours.status.success() && theirs.status.success(), "{options:?}: {}", text(&ours));
        assert_eq!(text(&ours), text(&theirs), "{options:?}");
    }
    let cli = |words: &[&str]| run(&[&["cli", "-p", &port], words].concat(), &[]);
    assert_eq!(text(&cli(&["-r", "3", "INCR", "n"])), "1\n2\n3\n");
    assert_eq!(text(&cli(&["--json", "HSET", "h", "f", "1"])), "1\n");
    assert_eq!(text(&cli(&["-3", "--json", "HGETALL", "h"])), "{\"f\":\"1\"}\n");
    assert!(cli(&["INCR"]).status.success() && !cli(&["-e", "INCR"]).status.success());
    let last = fed(&binary().display().to_string(), &["cli", "-p", &port, "-x", "SET", "k"], b"two\nlines\n");
    assert_eq!(text(&last), "OK\n");
    assert_eq!(text(&cli(&["--no-raw", "GET", "k"])), "\"two\\nlines\\n\"\n");
    let unbalanced = fed(&binary().display().to_string(), &["cli", "-p", &port], b"SET a \"b\n");
    assert!(!unbalanced.status.success() && text(&unbalanced).contains("Invalid argument(s)"), "{unbalanced:?}");
    assert!(server.stop().status.success());
    let gone = cli(&["PING"]);
    assert!(!gone.status.success() && text(&gone).contains("no answer from"), "{gone:?}");
}

#[test]
fn an_audit_finds_what_is_not_as_the_application_was_told() {
    let folder = Folder::new();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")));
    let port = server.port().to_string();
    let mut client = server.client();
    for words in
        [&["SET", "name", "new"][..], &["INCRBY", "count", "7"], &["RPUSH", "jobs", "a", "b"], &["SADD", "tags", "red"]]
    {
        assert!(!client.call(words).is_error(), "{words:?}");
    }
    let record = r#"
{"op": "set", "key": "name", "value": "old", "outcome": "ok"}
{"op": "set", "key": "name", "value": "new", "outcome": "ok"}
{"op": "set", "key": "gone", "value": "x", "outcome": "ok"}
{"op": "del", "key": "gone", "outcome": "unknown"}
{"op": "incr", "key": "count", "value": 5, "outcome": "ok"}
{"op": "incr", "key": "count", "value": 2, "outcome": "unknown"}
{"op": "push", "key": "jobs", "value": "a", "outcome": "ok"}
{"op": "push", "key": "jobs", "value": "b", "outcome": "unknown"}
{"op": "add", "key": "tags", "value": "red", "outcome": "ok"}
"#;
    let audit = |lines: &str, words: &[&str]| {
        fed(&binary().display().to_string(), &[&["audit", "-", "-p", &port], words].concat(), lines.as_bytes())
    };
    let clean = audit(record, &[]);
    assert_eq!(clean.status.code(), Some(0), "{clean:?}");
    assert!(text(&clean).starts_with("6 acknowledged, 0 refused, 3 unknown; 5 keys\n0 lost, 0 doubled"), "{clean:?}");
    for words in [&["SET", "name", "old"][..], &["INCRBY", "count", "10"], &["LPOP", "jobs"], &["SADD", "tags", "blue"]]
    {
        assert!(!client.call(words).is_error(), "{words:?}");
    }
    let found = audit(record, &[]);
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    for line in [
        "2 lost, 1 doubled, 0 refused but there, 1 altered",
        "lost: jobs: \"a\": expected 1 to 1 of it, found 0",
        "lost: name: expected \"new\", found \"old\"",
        "doubled: count: expected 5 to 7, found 17",
        "altered: tags: \"blue\" was never asked for",
    ] {
        assert!(text(&found).lines().any(|told| told == line), "{line}: {}", text(&found));
    }
    let told: serde_json::Value = serde_json::from_slice(&audit(record, &["--json"]).stdout).expect("JSON");
    assert_eq!((&told["faults"]["lost"], &told["faults"]["doubled"]), (&2.into(), &1.into()), "{told}");
    let torn = audit("{\"op\": \"set\", \"ke", &[]);
    assert_eq!(torn.status.code(), Some(2));
    assert!(text(&torn).contains("line 1: is not JSON"), "{torn:?}");
    assert!(server.stop().status.success());
    assert_eq!(audit(record, &[]).status.code(), Some(2));
}
