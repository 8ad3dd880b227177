//! Three real processes: joined one after the other, killed one after the other, audited at the end.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{Client, Folder, Server, ServerOptions, binary, free_port};

/// Longer than any election and any transfer of a few keys.
const PATIENCE: Duration = Duration::from_secs(30);

/// A cluster on this machine.
struct Cluster {
    options: Vec<ServerOptions>,
    nodes: Vec<Option<Server>>,
    _folders: Vec<Folder>,
}

impl Cluster {
    fn start(count: usize) -> Self {
        let folders: Vec<Folder> = (0..count).map(|_| Folder::new()).collect();
        let ports: Vec<u16> = (0..count).map(|_| free_port()).collect();
        let options: Vec<ServerOptions> = folders
            .iter()
            .zip(&ports)
            .map(|(folder, port)| {
                let join = format!("127.0.0.1:{}", ports[0]);
                let words = ["--cores", "2", "--cluster-port", &port.to_string()].map(str::to_owned);
                let mut words = words.to_vec();
                if *port != ports[0] {
                    words.extend(["--join".to_owned(), join]);
                }
                ServerOptions::new(&folder.path().join("data"))
                    .extra(&words.iter().map(String::as_str).collect::<Vec<_>>())
            })
            .collect();
        let mut this = Self { nodes: Vec::new(), options, _folders: folders };
        for node in 0..count {
            this.nodes.push(Some(Server::spawn(&this.options[node])));
            if node == 0 {
                this.wait_for_answer(0);
            }
        }
        this.wait_until("every group has all voters", |this| {
            this.nodes.iter().flatten().all(|node| {
                let log = node.log();
                (0..2).all(|group| last_voters(&log, group) == count)
            })
        });
        this
    }

    fn wait_until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            let logs: Vec<String> = self.nodes.iter().flatten().map(Server::log).collect();
            assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}\n{}", logs.join("\n----\n"));
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn wait_for_answer(&mut self, node: usize) {
        self.wait_until("the node answers", |this| {
            this.try_client(node)
                .and_then(|mut client| client.try_call(&["GET", "nothing"]))
                .is_some_and(|reply| !reply.is_error())
        });
    }

    fn try_client(&self, node: usize) -> Option<Client> {
        let mut client = Client::try_connect(self.options[node].port)?;
        client.is_patient_for(PATIENCE);
        Some(client)
    }

    /// Asks until there is an answer: while nobody leads there may be refusals, which promise that nothing was done.
    #[track_caller]
    fn ask(&self, client: &mut Client, request: &str) -> String {
        let begun = Instant::now();
        loop {
            let answer = client.show(request);
            if !answer.starts_with("(error)") {
                return answer;
            }
            assert!(begun.elapsed() < PATIENCE, "{request}: {answer}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    fn client(&self, node: usize) -> Client {
        self.try_client(node).expect("a connection")
    }

    /// `holdfast cluster` with these words, at the port of a node: what it prints, and whether it did what it should.
    fn tool(&self, node: usize, words: &[&str]) -> (bool, String) {
        let port = self.options[node].port.to_string();
        let output = Command::new(binary()).arg("cluster").args(words).args(["--port", &port]).output();
        let output = output.expect("the binary runs");
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        (output.status.success(), text)
    }

    fn kill(&mut self, node: usize) {
        self.nodes[node].take().expect("it runs").kill();
    }

    fn restart(&mut self, node: usize) {
        self.nodes[node] = Some(Server::spawn(&self.options[node]));
        self.wait_for_answer(node);
    }
}

/// How many voters a node's log last told of for a group.
fn last_voters(log: &str, group: u32) -> usize {
    let beginning = format!("group {group}: voters [");
    let Some(at) = log.rfind(&beginning) else { return 0 };
    let list = &log[at + beginning.len()..];
    list[..list.find(']').expect("a closed list")].split(", ").count()
}

#[test]
fn three_nodes_hold_what_each_was_told_and_lose_nothing_when_one_dies() {
    let mut cluster = Cluster::start(3);
    for round in 0..3 {
        for node in 0..3 {
            let mut client = cluster.client(node);
            for key in 0..20 {
                let (key, value) = (format!("key:{round}:{node}:{key}"), format!("{round}"));
                assert_eq!(cluster.ask(&mut client, &format!("SET {key} {value}")), "OK");
            }
        }
        let victim = round % 3;
        cluster.kill(victim);
        let survivor = (victim + 1) % 3;
        cluster.wait_for_answer(survivor);
        let mut client = cluster.client(survivor);
        for seen in 0..=round {
            for node in 0..3 {
                for key in 0..20 {
                    let found = cluster.ask(&mut client, &format!("GET key:{seen}:{node}:{key}"));
                    assert_eq!(found, format!("\"{seen}\""), "key:{seen}:{node}:{key} after round {round}");
                }
            }
        }
        cluster.restart(victim);
    }
}

#[test]
fn any_node_tells_how_the_cluster_is() {
    let mut cluster = Cluster::start(3);
    let mut client = cluster.client(0);
    for key in 0..20 {
        assert_eq!(cluster.ask(&mut client, &format!("SET key:{key} x")), "OK");
    }
    let ports: Vec<u16> = cluster.options.iter().map(|options| options.port).collect();
    for node in 0..3 {
        cluster.wait_until("a node knows all", |this| {
            let (is_well, page) = this.tool(node, &["status"]);
            let all = ports.iter().all(|port| page.contains(&format!("127.0.0.1:{port} ")));
            is_well && all && page.starts_with("3 nodes, 2 groups") && page.matches("none").count() == 2
        });
    }
    // The leaders of groups say which nodes follow them and how far these have come.
    let mut replicas = 0;
    for node in 0..3 {
        let text = cluster.client(node).show("INFO replication");
        let role = cluster.client(node).show("ROLE");
        if text.contains("role:master") {
            replicas += text.matches("state=online").count();
            assert!(role.starts_with("[\"master\""), "{role}");
        } else {
            assert!(text.contains("master_link_status:up"), "{text}");
            assert!(role.starts_with("[\"slave\", \"127.0.0.1\""), "{role}");
        }
        assert!(cluster.client(node).show("INFO cluster").contains("cluster_enabled:1"));
    }
    assert!(replicas >= 2, "{replicas}");
    cluster.kill(2);
    let gone = format!("127.0.0.1:{} ", ports[2]);
    cluster.wait_until("the death is seen, and the cause of the cut", |this| {
        let (_, page) = this.tool(0, &["status"]);
        let row = page.lines().find(|line| line.contains(&gone) && line.contains(" down "));
        row.is_some() && page.contains(&format!("the link to {}is cut: ", gone)) && page.contains("silent for ")
    });
    let (is_well, json) = cluster.tool(1, &["status", "--json"]);
    assert!(is_well && json.contains("\"behind_bytes\""), "{json}");
    let (is_well, told) = cluster.tool(2, &["status"]);
    assert!(!is_well && told.contains("no answer from 127.0.0.1"), "{told}");
}
