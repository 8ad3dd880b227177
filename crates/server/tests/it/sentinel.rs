//! Clients that ask a Sentinel where to go: every node tells them, and the next leader is found when one dies.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::clients::{missing, output};
use crate::cluster::Cluster;
use crate::harness::{Client, Folder, PATIENCE, Server, ServerOptions, free_port, say};

const ASK: &str = "SENTINEL get-master-addr-by-name mymaster";

/// Three nodes with a sentinel port each.
fn start() -> (Cluster, Vec<u16>) {
    let ports: Vec<u16> = (0..3).map(|_| free_port()).collect();
    let texts: Vec<String> = ports.iter().map(u16::to_string).collect();
    let words: Vec<Vec<&str>> = texts.iter().map(|port| vec!["--sentinel-port", port]).collect();
    (Cluster::start_as(&words), ports)
}

fn sentinel(port: u16) -> Client {
    let mut client = Client::try_connect(port).expect("a sentinel port");
    client.is_patient_for(PATIENCE);
    client
}

/// The node that all these sentinels name.
fn agreed(cluster: &mut Cluster, ports: &[u16]) -> usize {
    let mut named = None;
    cluster.wait_until("all name one node", |this| {
        let said: Vec<String> = ports.iter().map(|port| sentinel(*port).show(ASK)).collect();
        let is_of = |node: &usize| {
            let (host, port) =
                this.address(*node).split_once(':').map(|(a, b)| (a.to_owned(), b.to_owned())).expect("two");
            said.iter().all(|said| *said == format!("[\"{host}\", \"{port}\"]"))
        };
        named = (0..3).find(is_of);
        named.is_some()
    });
    named.expect("just seen")
}

#[test]
fn every_node_names_the_leader_and_tells_when_there_is_another() {
    let (mut cluster, ports) = start();
    let leader = agreed(&mut cluster, &ports);
    // What clients look at when they get there.
    assert!(cluster.client(leader).show("ROLE").starts_with("[\"master\""));
    let survivors: Vec<usize> = (0..3).filter(|node| *node != leader).collect();
    let left: Vec<u16> = survivors.iter().map(|node| ports[*node]).collect();

    let mut listener = sentinel(left[0]);
    assert!(listener.show("SUBSCRIBE +switch-master").contains("subscribe"));
    let mut other = sentinel(left[1]);
    cluster.wait_until("all nodes are heard", |_| {
        other.show("SENTINEL MASTERS").contains("\"num-slaves\", \"2\"")
            && other.show("SENTINEL CKQUORUM mymaster").starts_with("OK 3 usable")
    });
    assert!(other.show("SENTINEL MASTER nobody").contains("No such master with that name"));
    // What no client says ends its connection, and no other.
    let mut hostile = sentinel(left[1]);
    hostile.send_bytes(b"*1\r\n$999999999\r\n").expect("it is sent");
    assert!(hostile.receive().is_ok_and(|reply| reply.is_error()));
    assert!(hostile.is_closed_within(PATIENCE));
    let mut endless = sentinel(left[1]);
    // It may be cut off before all has been sent.
    let _ = endless.send_bytes(&[b'a'; 100_000]);
    assert!(endless.is_closed_within(PATIENCE));

    cluster.kill(leader);
    let gone = format!("[\"127.0.0.1\", \"{}\"]", cluster.address(leader).rsplit(':').next().unwrap_or_default());
    cluster.wait_until("another one is named", |_| left.iter().all(|port| sentinel(*port).show(ASK) != gone));
    let mut next = agreed(&mut cluster, &left);
    assert_ne!(next, leader);
    let mut client = cluster.client(next);
    assert_eq!(cluster.ask(&mut client, "SET written afterwards"), "OK");
    let port = |node: usize| cluster.address(node).rsplit(':').next().unwrap_or_default().to_owned();
    // Somebody else may have led for a moment before.
    let from_leader = format!("mymaster 127.0.0.1 {} 127.0.0.1 ", port(leader));
    while !listener.receive().expect("a message").to_string().contains(&from_leader) {}
    let replicas = other.show("SENTINEL REPLICAS mymaster");
    assert!(replicas.contains("s_down,slave,disconnected"), "{replicas}");

    cluster.restart(leader);
    cluster.wait_until("all are there again", |_| !other.show("SENTINEL REPLICAS mymaster").contains("s_down"));
    next = agreed(&mut cluster, &ports);
    if missing("redis-cli") {
        return;
    }
    let text = ports[2].to_string();
    let cli = output(Command::new("redis-cli").args(["-p", &text]).args(ASK.split(' ')));
    let port = cluster.address(next).rsplit(':').next().unwrap_or_default().to_owned();
    assert_eq!(cli.trim_end(), format!("127.0.0.1\n{port}"));
}

#[test]
fn the_python_client_of_a_sentinel_finds_the_next_leader() {
    let python = std::env::var_os("HOLDFAST_PYTHON").unwrap_or_else(|| "python3".into());
    let imports = Command::new(&python).args(["-c", "import redis"]).stderr(Stdio::null()).status();
    if !imports.is_ok_and(|status| status.success()) {
        say("SKIPPED: python3 cannot import redis; cargo xtask test sees to it");
        return;
    }
    let (mut cluster, ports) = start();
    agreed(&mut cluster, &ports);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/clients/redis_py_sentinel.py");
    let words: Vec<String> = ports.iter().map(u16::to_string).collect();
    let mut client =
        Command::new(&python).arg(&script).args(&words).stdout(Stdio::piped()).spawn().expect("python starts");
    let mut lines = BufReader::new(client.stdout.take().expect("a pipe")).lines();
    let ready = lines.next().and_then(Result::ok).unwrap_or_default();
    // Another node may lead by the time that the client asks.
    let named = ready.strip_prefix("ready ").expect("it names a leader");
    let port = |node: usize| cluster.address(node).rsplit(':').next().unwrap_or_default().to_owned();
    let leader = (0..ports.len()).find(|node| port(*node) == named).expect("a node of the cluster");
    cluster.kill(leader);
    let said = lines.next().and_then(Result::ok).unwrap_or_default();
    assert!(client.wait().expect("it ends").success() && said.starts_with("found "), "{said}");
    say(&said);
}

#[test]
fn a_node_by_itself_names_itself() {
    let folder = Folder::new();
    let port = free_port();
    let options = ServerOptions::new(&folder.path().join("data"));
    let words = ["--sentinel-port", &port.to_string(), "--sentinel-master-name", "cache"];
    let server = Server::start(&options.extra(&words));
    let mut client = sentinel(port);
    let named = client.show("SENTINEL get-master-addr-by-name cache");
    assert_eq!(named, format!("[\"127.0.0.1\", \"{}\"]", server.port()));
    assert_eq!(client.show(ASK), "(nil)");
    assert_eq!(client.show("SENTINEL REPLICAS cache"), "[]");
}
