//! What `redis-cli` does besides sending commands works as against a Redis.

use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{Folder, PATIENCE, Server, ServerOptions, Stock, both};

fn cli(port: u16, words: &[&str]) -> Output {
    let output = Command::new("redis-cli").args(["-p", &port.to_string()]).args(words).stdin(Stdio::null()).output();
    output.expect("it comes with redis-server")
}

/// What a form that never ends says, until it has said this.
fn says(port: u16, words: &[&str], expected: &str) -> String {
    let child = Command::new("redis-cli")
        .args(["-p", &port.to_string()])
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.expect("it comes with redis-server");
    let mut stdout = child.stdout.take().expect("a pipe");
    let reader = thread::spawn({
        let expected = expected.to_owned();
        move || {
            let (mut said, mut piece) = (String::new(), [0; 4096]);
            while !said.contains(&expected) {
                match stdout.read(&mut piece) {
                    Ok(count) if count > 0 => said.push_str(&String::from_utf8_lossy(&piece[..count])),
                    _ => break,
                }
            }
            said
        }
    });
    let begun = Instant::now();
    while !reader.is_finished() && begun.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(20));
    }
    child.kill().expect("it runs");
    child.wait().expect("it was killed");
    let said = reader.join().expect("a reader");
    assert!(said.contains(expected), "{words:?}: {said}");
    said
}

/// The lines that do not depend on the order in which keys are found, or on how they are kept.
fn summary(output: &Output) -> Vec<String> {
    let text = both(output);
    let is_stable = |line: &&str| line.starts_with("Sampled") || line.starts_with("Total") || line.contains("avg size");
    text.lines().filter(is_stable).map(str::to_owned).collect()
}

/// Names of keys without what is said of each.
fn names(output: &Output) -> Vec<String> {
    let text = both(output);
    let of_line = |line: &str| Some(line.split_once("keyname: ")?.1.to_owned());
    let mut names: Vec<_> = text.lines().filter(|line| line.contains("with counter")).filter_map(of_line).collect();
    names.sort();
    names
}

#[test]
fn what_redis_cli_finds_out_it_finds_out_here() {
    let folder = Folder::new();
    let words = ["--maxmemory", "200mb", "--maxmemory-policy", "allkeys-lfu"];
    let Some(stock) = Stock::start(&folder.path().join("redis"), &words) else { return };
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")).extra(&words));
    let ports = [server.port(), stock.port()];

    // Thousands of requests that do not wait for each other, two of them wrong.
    let mut lines = String::new();
    for number in 1..2_000 {
        lines += &format!("SET key:{number} {}\nRPUSH l{} {number}\n", "v".repeat(1 + number % 49), number % 7);
        lines +=
            &format!("SADD s{} {number}\nHSET h{} f{number} 1\nZADD z {number} m{number}\n", number % 3, number % 4);
    }
    lines += "NOSUCH\nSET a\nXADD x * f v\n";
    for port in ports {
        let child = Command::new("redis-cli")
            .args(["-p", &port.to_string(), "--pipe"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.expect("it comes with redis-server");
        child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("it reads");
        let piped = both(&child.wait_with_output().expect("it ends"));
        assert!(piped.contains("errors: 2, replies: 9998"), "{piped}");
    }
    for words in [&["--bigkeys"][..], &["--memkeys"], &["--memkeys-samples", "3"]] {
        let [ours, theirs] = ports.map(|port| cli(port, words));
        assert!(ours.status.success(), "{}", both(&ours));
        let (ours, theirs) = (summary(&ours), summary(&theirs));
        if words[0] == "--bigkeys" {
            assert_eq!(ours, theirs);
        }
        assert_eq!(ours.len(), theirs.len(), "{ours:?} and {theirs:?}");
        assert!(ours.len() > 6, "{ours:?}");
    }
    let [ours, theirs] = ports.map(|port| names(&cli(port, &["--hotkeys"])));
    assert!(!ours.is_empty() && ours.iter().filter(|name| theirs.contains(name)).count() * 2 > ours.len(), "{ours:?}");
    for port in ports {
        let latency = both(&cli(port, &["--latency", "-i", "1"]));
        assert_eq!(latency.split_whitespace().count(), 4, "{latency}");
        assert!(both(&cli(port, &["--scan", "--pattern", "h?"])).contains("h3"));
        assert!(both(&cli(port, &["--intrinsic-latency", "1"])).contains("total runs"));
    }
    let ours = server.port();
    says(ours, &["--latency-dist", "-i", "1"], "#");
    says(ours, &["--stat", "-i", "0.1"], "clients");
    let file = folder.path().join("functions.rdb");
    let taken = cli(ours, &["--functions-rdb", file.to_str().expect("a path")]);
    assert!(taken.status.success(), "{}", both(&taken));
    let checked = Command::new("redis-check-rdb").arg(&file).output().expect("it comes with redis-server");
    assert!(checked.status.success(), "{}", both(&checked));
    // It prints what changes, and pings each few seconds.
    let over = thread::spawn(move || says(ours, &["--replica"], "\"late\""));
    let mut client = server.client();
    while !over.is_finished() {
        client.call(&["SET", "late", "1"]);
        thread::sleep(Duration::from_millis(50));
    }
    over.join().expect("it prints");
    drop(client);
    server.stop();
}
