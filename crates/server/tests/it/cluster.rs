//! Three real processes: joined one after the other, killed one after the other, audited at the end.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use resp::Frame;

use crate::clients::{missing, output};
use crate::harness::{AT_ONCE, Client, Folder, PATIENCE, Server, ServerOptions, binary, both, free_port, say};
use crate::liar::Identity;

/// A cluster on this machine.
pub(crate) struct Cluster {
    pub(crate) options: Vec<ServerOptions>,
    pub(crate) nodes: Vec<Option<Server>>,
    /// For other nodes.
    ports: Vec<u16>,
    folders: Vec<Folder>,
}

impl Cluster {
    pub(crate) fn start(count: usize) -> Self {
        Self::start_with(&vec![2; count])
    }

    /// So many nodes, of which the first makes so many groups.
    pub(crate) fn start_with_groups(count: usize, groups: usize) -> Self {
        let mut this = Self { nodes: Vec::new(), options: Vec::new(), ports: Vec::new(), folders: Vec::new() };
        this.join_with(groups);
        this.wait_for_answer(0);
        (1..count).for_each(|_| this.join());
        this.wait_until("every group has all voters", |this| {
            let logs: Vec<String> = this.nodes.iter().flatten().map(Server::log).collect();
            logs.iter().all(|log| (0..groups as u32).all(|group| last_voters(log, group) == count))
        });
        this
    }

    /// A node for each number of cores, of which the first must be 2.
    fn start_with(cores: &[usize]) -> Self {
        let count = cores.len();
        let mut this = Self { nodes: Vec::new(), options: Vec::new(), ports: Vec::new(), folders: Vec::new() };
        for (node, cores) in cores.iter().enumerate() {
            this.join_with(*cores);
            if node == 0 {
                this.wait_for_answer(0);
            }
        }
        // One that is alone does not speak of voters.
        if count > 1 {
            this.wait_until("every group has all voters", |this| {
                this.nodes.iter().flatten().all(|node| {
                    let log = node.log();
                    (0..2).all(|group| last_voters(&log, group) == count)
                })
            });
        }
        this
    }

    /// Starts one more node; all but the first join the last that was started before.
    pub(crate) fn join(&mut self) {
        self.join_with(2);
    }

    fn join_with(&mut self, cores: usize) {
        self.join_as(cores, &[]);
    }

    /// A node for each of these, with further words.
    pub(crate) fn start_as(words: &[Vec<&str>]) -> Self {
        let mut this = Self { nodes: Vec::new(), options: Vec::new(), ports: Vec::new(), folders: Vec::new() };
        for (node, words) in words.iter().enumerate() {
            this.join_as(2, words);
            if node == 0 {
                this.wait_for_answer(0);
            }
        }
        let count = words.len();
        this.wait_until("every group has all voters", |this| {
            let logs: Vec<String> = this.nodes.iter().flatten().map(Server::log).collect();
            logs.iter().all(|log| (0..2).all(|group| last_voters(log, group) == count))
        });
        this
    }

    pub(crate) fn join_as(&mut self, cores: usize, more: &[&str]) {
        let (folder, port) = (Folder::new(), free_port());
        let mut words =
            ["--cores", &cores.to_string(), "--cluster-port", &port.to_string()].map(str::to_owned).to_vec();
        if let Some(other) = self.nodes.iter().rposition(Option::is_some) {
            words.extend(["--join".to_owned(), format!("127.0.0.1:{}", self.ports[other])]);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let options = ServerOptions::new(&folder.path().join("data")).extra(&words).extra(more);
        let options = options.invited_by(self.options.iter().map(|options| options.data_folder.as_path()));
        self.options.push(options);
        self.ports.push(port);
        self.folders.push(folder);
        self.nodes.push(Some(Server::spawn(self.options.last().expect("just pushed"))));
    }

    /// Starts a server that belongs to no cluster of several.
    fn stand_alone(&mut self, cores: usize, words: &[&str]) {
        let (folder, port) = (Folder::new(), free_port());
        let own = ["--cores".to_owned(), cores.to_string(), "--cluster-port".to_owned(), port.to_string()];
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        self.options.push(ServerOptions::new(&folder.path().join("data")).extra(&own).extra(words));
        self.ports.push(port);
        self.folders.push(folder);
        self.nodes.push(Some(Server::spawn(self.options.last().expect("just pushed"))));
        self.wait_for_answer(self.nodes.len() - 1);
    }

    /// Starts one more node that joins the first, with this token.
    pub(crate) fn join_by(&mut self, token: &str) {
        let (folder, port) = (Folder::new(), free_port());
        let (cluster_port, join) = (port.to_string(), self.cluster_address(0));
        let options = ServerOptions::new(&folder.path().join("data"));
        let mut options = options.extra(&["--cores", "2", "--cluster-port", &cluster_port, "--join", &join]);
        options.environment.push(("HOLDFAST_TOKEN".to_owned(), token.to_owned()));
        self.nodes.push(Some(Server::spawn(&options)));
        self.options.push(options);
        self.ports.push(port);
        self.folders.push(folder);
    }

    /// What a node is started with the next time.
    pub(crate) fn options_mut(&mut self, node: usize) -> &mut ServerOptions {
        &mut self.options[node]
    }

    /// Starts one that has been killed, and may never answer again.
    pub(crate) fn spawn_again(&self, node: usize) -> Server {
        Server::spawn(&self.options[node])
    }

    /// One that does not run has other ports from its next start on, and is told of no other one.
    pub(crate) fn readdress(&mut self, node: usize) {
        self.ports[node] = free_port();
        let port = self.ports[node].to_string();
        let options = &mut self.options[node];
        options.port = free_port();
        let words = options.extra.chunks(2).filter(|words| words[0] != "--join").map(<[String]>::to_vec);
        let mut words: Vec<Vec<String>> = words.collect();
        words.iter_mut().filter(|words| words[0] == "--cluster-port").for_each(|words| words[1].clone_from(&port));
        options.extra = words.concat();
    }

    /// From its next start on it looks for others there, or nowhere.
    pub(crate) fn point_to(&mut self, node: usize, addresses: &[String]) {
        let words = self.options[node].extra.chunks(2).filter(|words| words[0] != "--join");
        let mut words = words.map(<[String]>::to_vec).collect::<Vec<_>>().concat();
        if !addresses.is_empty() {
            words.extend(["--join".to_owned(), addresses.join(",")]);
        }
        self.options[node].extra = words;
    }

    /// Where other nodes find one.
    pub(crate) fn cluster_address(&self, node: usize) -> String {
        format!("127.0.0.1:{}", self.ports[node])
    }

    pub(crate) fn data_folder(&self, node: usize) -> PathBuf {
        self.options[node].data_folder.clone()
    }

    /// Leaves one key, with the value `mine`, in none of the groups that a node holds, and answers its name. Each group
    /// is on one node.
    pub(crate) fn set_away_from(&mut self, node: usize) -> String {
        let (mut client, mut there) = (self.client(0), self.client(node));
        assert_eq!(client.show("CONFIG SET replicas 1"), "OK");
        let (mut keys, mut key) = (0.., String::new());
        self.wait_until("a key is in none of the groups of the node", |this| {
            key = format!("key:{}", keys.next().expect("a number"));
            this.ask(&mut client, "FLUSHALL");
            this.ask(&mut client, &format!("SET {key} mine"));
            // Measured now and then.
            thread::sleep(Duration::from_millis(1_500));
            !there.show("INFO keyspace").contains("db0")
        });
        key
    }

    pub(crate) fn wait_until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            let logs: Vec<String> = self.nodes.iter().flatten().map(Server::log).collect();
            assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}\n{}", logs.join("\n----\n"));
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn wait_for_answer(&mut self, node: usize) {
        self.wait_until("the node answers", |this| {
            this.try_client(node)
                .and_then(|mut client| client.try_call(&["GET", "nothing"]))
                .is_some_and(|reply| !reply.is_error())
        });
    }

    pub(crate) fn try_client(&self, node: usize) -> Option<Client> {
        let mut client = Client::try_connect(self.options[node].port)?;
        client.is_patient_for(PATIENCE);
        Some(client)
    }

    /// Asks until there is an answer: while nobody leads there may be refusals, which promise that nothing was done.
    #[track_caller]
    pub(crate) fn ask(&self, client: &mut Client, request: &str) -> String {
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
    pub(crate) fn client(&self, node: usize) -> Client {
        self.try_client(node).expect("a connection")
    }

    /// `holdfast cluster` with these words, at the port of a node: what it prints, and whether it did what it should.
    pub(crate) fn tool(&self, node: usize, words: &[&str]) -> (bool, String) {
        let port = self.options[node].port.to_string();
        let output = Command::new(binary()).arg("cluster").args(words).args(["--port", &port]).output();
        let output = output.expect("the binary runs");
        (output.status.success(), both(&output))
    }

    pub(crate) fn address(&self, node: usize) -> String {
        format!("127.0.0.1:{}", self.options[node].port)
    }

    /// A field of every group, as a node tells it in `holdfast cluster status --json`.
    pub(crate) fn of_groups(&self, node: usize, field: &str) -> Vec<String> {
        let (_, json) = self.tool(node, &["status", "--json"]);
        let groups = json.split("\"groups\": [").nth(1).unwrap_or_default();
        let beginning = format!("\"{field}\": ");
        let values = groups.split(&beginning).skip(1);
        values.map(|rest| rest.split(['\n', ',']).next().unwrap_or_default().trim_matches('"').to_owned()).collect()
    }

    /// Waits until each group is led by another node, and stays where it is: at first leaders go to where they belong.
    /// On a busy machine they may have reasons to be elsewhere, and stay there.
    pub(crate) fn wait_until_settled(&mut self) -> [Vec<String>; 2] {
        let standing = |this: &Self| ["leader", "term"].map(|field| this.of_groups(0, field));
        /// A leader that goes elsewhere does so earlier.
        const STAYS: Duration = Duration::from_secs(20);
        let (mut before, mut since) = (Default::default(), Instant::now());
        self.wait_until("each group is led, and its leader stays", |this| {
            // Longer than it takes one leader to follow another.
            thread::sleep(Duration::from_secs(2));
            let now = standing(this);
            let mut leaders = now[0].clone();
            leaders.sort();
            leaders.dedup();
            let is_led = !leaders.is_empty() && !leaders.contains(&"null".into());
            let is_spread = leaders.len() == now[0].len();
            if std::mem::replace(&mut before, now.clone()) != now {
                since = Instant::now();
                return false;
            }
            is_led && (is_spread || since.elapsed() > STAYS)
        });
        before
    }

    /// One that runs.
    pub(crate) fn node(&self, node: usize) -> &Server {
        self.nodes[node].as_ref().expect("it runs")
    }

    /// The node that leads the group of a key, once there is one.
    pub(crate) fn leader_of(&mut self, key: &str) -> usize {
        let slot = self.client(0).show(&format!("CLUSTER KEYSLOT {key}"));
        let slot: usize = slot.trim_start_matches("(integer) ").parse().expect("a slot");
        let group = usize::from(slot >= 8192);
        let is_of = |node: &str, folder: &PathBuf| {
            let identity = fs::read_to_string(folder.join("identity")).unwrap_or_default();
            identity.lines().any(|line| line.strip_prefix("node ") == Some(node))
        };
        let leader = |this: &Self| -> Option<usize> {
            let node = this.of_groups(0, "leader").get(group)?.clone();
            (0..this.nodes.len()).find(|index| is_of(&node, &this.data_folder(*index)))
        };
        self.wait_until("the group has a leader", |this| leader(this).is_some());
        leader(self).expect("just seen")
    }

    /// What one was started with.
    pub(crate) fn options_of(&self, node: usize) -> ServerOptions {
        self.options[node].clone()
    }

    pub(crate) fn kill(&mut self, node: usize) {
        self.nodes[node].take().expect("it runs").kill();
    }

    /// Starts one that has been killed, without waiting for it.
    pub(crate) fn respawn(&mut self, node: usize) {
        self.nodes[node] = Some(Server::spawn(&self.options[node]));
    }

    pub(crate) fn restart(&mut self, node: usize) {
        self.nodes[node] = Some(Server::spawn(&self.options[node]));
        self.wait_for_answer(node);
    }
}

/// How many voters a node's log last told of for a group.
pub(crate) fn last_voters(log: &str, group: u32) -> usize {
    let beginning = format!("group {group}: voters [");
    let Some(at) = log.rfind(&beginning) else { return 0 };
    let list = &log[at + beginning.len()..];
    list[..list.find(']').expect("a closed list")].split(", ").count()
}

#[test]
fn a_cluster_killed_as_a_whole_comes_back_when_all_are_there_or_an_operator_does_without_one() {
    let mut cluster = Cluster::start(3);
    for node in 0..3 {
        cluster.options[node] = cluster.options[node].clone().extra(&["--appendfsync", "everysec"]);
        cluster.kill(node);
    }
    for round in 0..2 {
        let started = 3 - round;
        for node in 0..started {
            cluster.nodes[node] = Some(Server::spawn(&cluster.options[node]));
        }
        if started < 3 {
            cluster.wait_until("they say which nodes they wait for", |this| {
                this.nodes.iter().flatten().all(|node| node.log().contains("not heard, or ahead of this node: "))
            });
            for node in 0..started {
                let answer = cluster.client(node).show("HOLDFAST TRUST");
                assert!(answer.starts_with("(integer) "), "{answer}");
            }
        }
        cluster.wait_for_answer(0);
        let mut client = cluster.client(0);
        assert_eq!(cluster.ask(&mut client, &format!("SET round {round}")), "OK");
        thread::sleep(Duration::from_millis(1500));
        (0..started).for_each(|node| cluster.kill(node));
    }
    (0..3).for_each(|node| cluster.nodes[node] = Some(Server::spawn(&cluster.options[node])));
    cluster.wait_for_answer(2);
    let mut client = cluster.client(2);
    assert_eq!(cluster.ask(&mut client, "GET round"), "\"1\"");
}

#[test]
fn three_nodes_hold_what_each_was_told_and_lose_nothing_when_one_dies() {
    // With unlike numbers of cores: what goes over one connection is for several of them.
    let mut cluster = Cluster::start_with(&[2, 1, 3]);
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
    // The leaders of groups say which nodes follow them and how far these have come. Who leads may change meanwhile.
    cluster.wait_until("leaders tell of their followers, and the others of a leader", |this| {
        let mut replicas = 0;
        let are_well = (0..3).all(|node| {
            let mut client = this.client(node);
            let (text, role) = (client.show("INFO replication"), client.show("ROLE"));
            replicas += text.matches("state=online").count();
            if text.contains("role:master") {
                role.starts_with("[\"master\"")
            } else {
                text.contains("master_link_status:up") && role.starts_with("[\"slave\", \"127.0.0.1\"")
            }
        });
        are_well && replicas >= 2
    });
    (0..3).for_each(|node| assert!(cluster.client(node).show("INFO cluster").contains("cluster_enabled:1")));
    cluster.kill(2);
    let gone = format!("127.0.0.1:{} ", ports[2]);
    cluster.wait_until("the death is seen, and the cause of the cut", |this| {
        let (_, page) = this.tool(0, &["status"]);
        let row = page.lines().find(|line| line.contains(&gone) && line.contains(" down "));
        row.is_some() && page.contains(&format!("the link to {}is down: ", gone)) && page.contains("silent for ")
    });
    let (is_well, json) = cluster.tool(1, &["status", "--json"]);
    assert!(is_well && json.contains("\"behind_bytes\""), "{json}");
    let (is_well, told) = cluster.tool(2, &["status"]);
    assert!(!is_well && told.contains("no answer from 127.0.0.1"), "{told}");
}

/// Writes some keys through a node, and reads them through another.
fn write(cluster: &Cluster, node: usize, prefix: &str) {
    let mut client = cluster.client(node);
    for key in 0..40 {
        assert_eq!(cluster.ask(&mut client, &format!("SET {prefix}:{key} {key}")), "OK");
    }
}

fn read(cluster: &Cluster, node: usize, prefix: &str) {
    let mut client = cluster.client(node);
    for key in 0..40 {
        assert_eq!(cluster.ask(&mut client, &format!("GET {prefix}:{key}")), format!("\"{key}\""), "{prefix}:{key}");
    }
}

#[test]
fn a_dead_node_is_replaced_by_a_new_one() {
    let mut cluster = Cluster::start(3);
    write(&cluster, 1, "before");
    cluster.kill(0);
    cluster.wait_for_answer(1);
    let (dead, alive) = (cluster.address(0), cluster.address(2));
    cluster.wait_until("the death is seen", |this| this.tool(1, &["status"]).1.contains(" down "));
    let (is_removed, told) = cluster.tool(1, &["remove", &alive]);
    assert!(!is_removed && told.contains("would lose its quorum without node "), "{told}");
    let (is_removed, told) = cluster.tool(1, &["remove", "127.0.0.1:1"]);
    assert!(!is_removed && told.contains("no node of this cluster is '127.0.0.1:1'"), "{told}");

    cluster.join();
    let (is_removed, told) = cluster.tool(2, &["remove", &dead]);
    assert!(is_removed && told.contains(&format!("{dead} is out")), "{told}");
    let (is_removed, told) = cluster.tool(2, &["remove", &dead]);
    assert!(!is_removed || told.contains("already"), "{told}");
    cluster.wait_until("the new one has taken its place", |this| {
        let (_, page) = this.tool(1, &["status"]);
        page.starts_with("3 nodes") && page.matches("  3       none").count() == 2
    });
    write(&cluster, 3, "after");

    // The old one comes back with its data: nobody takes it in, and nobody is disturbed.
    // By then every leader is where it stays.
    let (is_spread, told) = cluster.tool(1, &["rebalance"]);
    assert!(is_spread, "{told}");
    cluster.nodes[0] = Some(Server::spawn(&cluster.options[0]));
    cluster.wait_until("it learns that it is out", |this| {
        let mut client = match this.try_client(0) {
            Some(client) => client,
            None => return false,
        };
        let reply = client.try_call(&["GET", "before:1"]).map(|reply| reply.to_string());
        reply.is_some_and(|reply| reply.contains("CLUSTERDOWN This node has been removed from its cluster"))
    });
    let log = cluster.nodes[0].as_ref().expect("it runs").log();
    assert!(log.contains("this node has been removed from its cluster"), "{log}");
    let mut client = cluster.client(0);
    assert_eq!(client.show("PING"), "PONG");
    assert!(client.show("INFO cluster").contains("cluster_state:removed"));
    let (is_member, told) = cluster.tool(0, &["status"]);
    assert!(!is_member && told.contains("this node has been removed from its cluster; what follows"), "{told}");
    let place = format!("127.0.0.1:{}", cluster.nodes[0].as_ref().expect("it runs").port());
    let health = Command::new(binary()).args(["health", "-s", &place]).output();
    let health = health.expect("it runs");
    let told = String::from_utf8_lossy(&health.stderr);
    assert!(health.status.code() == Some(1) && told.contains("has been removed from its cluster"), "{told}");
    // One that called elections would do so all the time. Others may call one, if the machine is busy.
    let mut terms = Vec::new();
    cluster.wait_until("nobody is disturbed", |this| {
        thread::sleep(Duration::from_secs(3));
        let now = this.of_groups(1, "term");
        std::mem::replace(&mut terms, now.clone()) == now
    });
    // One more may die now.
    cluster.kill(2);
    cluster.wait_for_answer(3);
    read(&cluster, 3, "before");
    read(&cluster, 1, "after");
}

#[test]
fn a_replica_answers_reads_within_their_bound_also_when_it_is_the_last_that_runs() {
    let mut cluster = Cluster::start(3);
    write(&cluster, 0, "before");
    let mut near = cluster.client(0);
    assert_eq!(near.show("READONLY MAXSTALENESS 60000"), "OK");
    assert_eq!(near.show("SET before:1 again"), "OK");
    for node in 0..3 {
        let mut near = cluster.client(node);
        assert_eq!(near.show("READONLY"), "OK");
        cluster.wait_until("its replicas are known to be young", |_| {
            let info = near.show("INFO holdfast");
            (0..2).all(|group| info.contains(&format!("group{group}:"))) && !info.contains("staleness_ms=-1")
        });
        // What is younger than the bound may not have come yet.
        cluster.wait_until("it has what was written", |_| near.show("GET before:1") == "\"again\"");
        (0..100).for_each(|key| assert!(!near.show(&format!("GET before:{key}")).contains("error")));
    }
    let answered_here = |cluster: &Cluster, node| {
        let info = cluster.client(node).show("INFO stats");
        let count = info.split("replica_reads:").nth(1).expect("a count");
        let digits: String = count.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u64>().expect("a number")
    };
    // The other cores tell of it a few times a second.
    cluster.wait_until("replicas have answered", |this| (0..3).map(|node| answered_here(this, node)).sum::<u64>() > 50);
    cluster.kill(1);
    cluster.kill(2);
    // A node that has led the group itself waits for a quorum until it knows that there is none.
    let mut strict = cluster.client(0);
    cluster.wait_until("there is no quorum", |_| strict.show("GET before:1").contains("CLUSTERDOWN No quorum"));
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        assert_eq!(near.show("GET before:1"), "\"again\"");
        thread::sleep(Duration::from_millis(50));
    }
    let begun = Instant::now();
    assert!(strict.show("GET before:1").contains("CLUSTERDOWN No quorum of the group answers"));
    assert_eq!(strict.show("READONLY MAXSTALENESS 300"), "OK");
    assert!(strict.show("GET before:1").contains("may be older than the 300 ms that READONLY allows"));
    assert!(begun.elapsed() < AT_ONCE, "refused at once");
    assert_eq!(near.show("GET before:1"), "\"again\"");
}

#[test]
fn who_has_acknowledged_early_doubts_its_log_whatever_it_is_started_with() {
    let mut cluster = Cluster::start(3);
    let notes = |cluster: &Cluster| {
        let folders = cluster.folders.iter();
        folders.filter(|folder| folder.path().join("data/.acknowledges-early").exists()).count()
    };
    assert_eq!(notes(&cluster), 0);
    assert_eq!(cluster.client(0).show("CONFIG SET appendfsync everysec"), "OK");
    write(&cluster, 0, "early");
    cluster.wait_until("every node has noted it", |this| notes(this) == 3);
    thread::sleep(Duration::from_secs(2));
    (0..3).for_each(|node| cluster.kill(node));
    // They are started with `always`, and do not trust themselves without the third.
    for node in [0, 1] {
        cluster.nodes[node] = Some(Server::spawn(&cluster.options[node]));
    }
    let standings = |cluster: &Cluster| {
        let told = cluster.try_client(0).map(|mut client| client.show("INFO holdfast")).unwrap_or_default();
        told.matches("standing=in-doubt").count()
    };
    cluster.wait_until("both groups are in doubt", |this| standings(this) == 2);
    // An end in good order does not settle that.
    cluster.nodes[0].take().expect("it runs").stop();
    cluster.nodes[0] = Some(Server::spawn(&cluster.options[0]));
    cluster.wait_until("both groups are in doubt again", |this| standings(this) == 2);
    cluster.restart(2);
    read(&cluster, 0, "early");
}

#[test]
fn a_server_that_runs_and_holds_nothing_is_added() {
    let mut cluster = Cluster::start(1);
    write(&cluster, 0, "before");
    cluster.stand_alone(1, &[]);
    let address = cluster.address(1);
    let mut other = cluster.client(1);
    assert_eq!(other.show("SET own 1"), "OK");
    let (is_added, told) = cluster.tool(0, &["add", &address]);
    assert!(!is_added && told.contains("This node has data of its own, 1 keys and 0 libraries"), "{told}");
    assert_eq!(other.show("GET own"), "\"1\"", "nothing is lost");
    assert!(other.show("HOLDFAST JOIN 127.0.0.1").contains("HOST:PORT"));
    assert_eq!(other.show("DEL own"), "(integer) 1");
    // Nobody is there, or it is the node itself: it goes on.
    let nobody = format!("127.0.0.1:{}", free_port());
    let own = format!("127.0.0.1:{}", cluster.ports[1]);
    for wrong in [&nobody, &own] {
        assert_eq!(other.show(&format!("HOLDFAST JOIN {wrong}")), "OK");
        cluster.wait_until("it says why it does not", |this| {
            this.nodes[1].as_ref().is_some_and(|node| node.log().contains(&format!("does not join {wrong}")))
        });
        assert_eq!(other.show("GET own"), "(nil)");
    }
    let (is_added, told) = cluster.tool(0, &["add", &address]);
    assert!(is_added && told.contains("votes in 2 of 2 groups"), "{told}");
    read(&cluster, 1, "before");
    write(&cluster, 1, "after");
    read(&cluster, 0, "after");
    let (is_added, told) = cluster.tool(0, &["add", &address]);
    assert!(!is_added && told.contains("is a node of this cluster already"), "{told}");
    assert!(cluster.client(1).show("HOLDFAST JOIN 127.0.0.1:1").contains("belongs to a cluster of several"));
    // It comes back without being told again where it belongs.
    cluster.kill(1);
    cluster.restart(1);
    cluster.wait_for_answer(1);
    read(&cluster, 1, "after");
}

#[test]
fn servers_that_run_are_made_one_cluster_and_doing_so_again_changes_nothing() {
    let mut cluster = Cluster::start_with(&[]);
    (0..3).for_each(|_| cluster.stand_alone(2, &[]));
    let create = |cluster: &Cluster, nodes: &[usize], more: &[&str]| {
        let addresses: Vec<String> = nodes.iter().map(|node| cluster.address(*node)).collect();
        let mut command = Command::new(binary());
        let output = command.args(["cluster", "create"]).args(&addresses).args(more).output().expect("the binary runs");
        (output.status.success(), both(&output))
    };
    // One that does not answer: nothing begins.
    let nobody = format!("127.0.0.1:{}", free_port());
    let (is_made, told) = create(&cluster, &[0, 1], &[&nobody, "--wait", "1"]);
    assert!(!is_made && told.contains(&format!("{nobody} cannot be asked; nothing was changed")), "{told}");
    assert!(!cluster.client(1).show("INFO cluster").contains("cluster_nodes:2"));
    // The one that holds keys takes in the others, at any place in the list.
    assert_eq!(cluster.client(1).show("SET kept yes"), "OK");
    let (is_made, told) = create(&cluster, &[0, 1, 2], &[]);
    assert!(is_made && told.contains("3 of 3 servers form one cluster"), "{told}");
    for node in 0..3 {
        cluster.wait_for_answer(node);
        let mut client = cluster.client(node);
        assert_eq!(cluster.ask(&mut client, "GET kept"), "\"yes\"");
    }
    let (is_made, told) = create(&cluster, &[2, 0, 1, 1], &[]);
    assert!(is_made && !told.contains("joins") && told.contains("3 of 3 servers form one cluster"), "{told}");
    // More of them; and one that holds something else.
    cluster.stand_alone(2, &[]);
    assert_eq!(cluster.client(3).show("SET own 1"), "OK");
    let (is_made, told) = create(&cluster, &[0, 1, 2, 3], &[]);
    assert!(!is_made && told.contains("holds keys: two clusters do not become one"), "{told}");
    let mut other = cluster.client(3);
    assert_eq!(other.show("DEL own"), "(integer) 1");
    let library = "#!lua name=l\nredis.register_function('f', function() return 1 end)";
    assert!(!other.call(&["FUNCTION", "LOAD", library]).is_error());
    let (is_made, told) = create(&cluster, &[3, 1], &[]);
    assert!(!is_made && told.contains("holds functions and"), "{told}");
    assert_eq!(other.show("FCALL f 0"), "(integer) 1");
    assert_eq!(other.show("FUNCTION FLUSH"), "OK");
    drop(other);
    let (is_made, told) = create(&cluster, &[3, 1], &[]);
    assert!(is_made && told.contains("2 of 2 servers form one cluster"), "{told}");
    cluster.wait_until("all know of four", |this| {
        (0..4).all(|node| this.client(node).show("INFO cluster").contains("cluster_nodes:4"))
    });
}

#[test]
fn a_server_is_added_to_three_that_have_all_votes_while_nobody_writes() {
    let mut cluster = Cluster::start(3);
    cluster.stand_alone(2, &[]);
    let address = cluster.address(3);
    let port = cluster.options[0].port.to_string();
    let mut tool = Command::new(binary())
        .args(["cluster", "add", &address, "--port", &port])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let begun = Instant::now();
    while tool.try_wait().expect("a child").is_none() {
        if begun.elapsed() > PATIENCE {
            let _ = tool.kill();
            let _ = tool.wait();
            panic!("it waits on: {}", cluster.client(0).show("INFO cluster"));
        }
        thread::sleep(Duration::from_millis(50));
    }
    let told = tool.wait_with_output().expect("a child");
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains("groups move to it one after the other"), "{told}");
}

#[test]
fn a_node_leaves_while_clients_write_through_the_others() {
    let mut cluster = Cluster::start(3);
    write(&cluster, 0, "before");
    let writer = {
        let port = cluster.options[0].port;
        thread::spawn(move || {
            let mut client = Client::try_connect(port).expect("a connection");
            let begun = Instant::now();
            let mut count = 0;
            while begun.elapsed() < Duration::from_secs(4) {
                let reply = client.show(&format!("INCR count:{}", count % 10));
                assert!(!reply.contains("error"), "{reply}");
                count += 1;
            }
            count
        })
    };
    thread::sleep(Duration::from_millis(300));
    let leaving = cluster.address(1);
    let (is_removed, told) = cluster.tool(1, &["remove", &leaving]);
    assert!(is_removed && told.contains("is out; "), "{told}");
    let count: i64 = writer.join().expect("no error while it left");
    let mut client = cluster.client(2);
    let sum: i64 = (0..10)
        .map(|key| {
            cluster.ask(&mut client, &format!("GET count:{key}")).trim_matches('"').parse::<i64>().expect("a number")
        })
        .sum();
    assert_eq!(sum, count, "counted once each");
    read(&cluster, 2, "before");
    cluster.wait_until("it says so", |this| this.client(1).show("GET before:1").contains("CLUSTERDOWN This node has"));
    let last = cluster.address(2);
    let (is_removed, told) = cluster.tool(0, &["remove", &last]);
    assert!(is_removed, "{told}");
    read(&cluster, 0, "before");
    let last = cluster.address(0);
    let (is_removed, told) = cluster.tool(0, &["remove", &last]);
    assert!(!is_removed && told.contains("is the last one"), "{told}");
}

/// What one client did to the keys of its own, without an error.
fn work_on(port: u16, client_number: usize, until: Instant) -> (usize, Duration) {
    let mut client = Client::try_connect(port).expect("a connection");
    let (mut rounds, mut longest) = (0, Duration::ZERO);
    while Instant::now() < until {
        let begun = Instant::now();
        let key = rounds % 50;
        let mut expect = |request: &str, expected: &str| {
            let reply = client.show(request);
            assert!(!reply.contains("error") && (expected.is_empty() || reply == expected), "{request}: {reply}");
        };
        expect(&format!("INCR count:{client_number}:{key}"), &format!("(integer) {}", rounds / 50 + 1));
        expect(&format!("MSET a:{client_number}:{key} {rounds} b:{client_number}:{key} {rounds}"), "OK");
        expect(
            &format!("MGET a:{client_number}:{key} b:{client_number}:{key}"),
            &format!("[\"{rounds}\", \"{rounds}\"]"),
        );
        expect("MULTI", "OK");
        expect(&format!("RPUSH list:{client_number}:{key} {rounds}"), "QUEUED");
        expect(&format!("INCR sum:{client_number}"), "QUEUED");
        expect("EXEC", "");
        expect(&format!("EVAL return\tredis.call('incr',KEYS[1]) 1 script:{client_number}:{key}"), "");
        rounds += 1;
        longest = longest.max(begun.elapsed());
    }
    (rounds, longest)
}

#[test]
fn slots_move_between_groups_while_clients_write_and_nothing_is_lost_or_doubled() {
    const CLIENTS: usize = 4;
    let mut cluster = Cluster::start(3);
    let until = Instant::now() + Duration::from_secs(6);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let port = cluster.options[number % 3].port;
            thread::spawn(move || work_on(port, number, until))
        })
        .collect();
    let mut watcher = cluster.client(0);
    assert_eq!(watcher.show("SET watched 1"), "OK");
    assert_eq!(watcher.show("WATCH watched"), "OK");
    let mut waiter = cluster.client(1);
    waiter.send(&["BLPOP", "awaited", "0"]).expect("a connection");
    for (slots, to) in [("0-8191", "1"), ("8192-16383", "0"), ("4000-12000", "1")] {
        let (is_done, told) = cluster.tool(1, &["move", "--slots", slots, "--to", to]);
        assert!(is_done && told.contains(&format!("group {to} holds slots {slots}")), "{told}");
    }
    cluster.wait_until("another node knows of it", |this| {
        let (_, page) = this.tool(2, &["status"]);
        this.of_groups(2, "to_give") == ["0", "0"] && (page.contains("0-8191") || page.contains("0-12000"))
    });
    // What was watched before is as it was.
    assert_eq!(watcher.show("MULTI"), "OK");
    assert_eq!(watcher.show("SET watched 2"), "QUEUED");
    assert_eq!(watcher.show("EXEC"), "[OK]");
    assert_eq!(cluster.client(2).show("RPUSH awaited here"), "(integer) 1");
    assert_eq!(waiter.receive().expect("a reply").to_string(), "[\"awaited\", \"here\"]");
    let done: Vec<_> = clients.into_iter().map(|client| client.join().expect("no error while slots moved")).collect();
    say(&format!("rounds and the longest of each client: {done:?}"));
    let check = |cluster: &Cluster, node: usize| {
        let mut client = cluster.client(node);
        for (number, (rounds, _)) in done.iter().enumerate() {
            assert_eq!(cluster.ask(&mut client, &format!("GET sum:{number}")), format!("\"{rounds}\""));
            for key in 0..50.min(*rounds) {
                let of_key: Vec<String> = (key..*rounds).step_by(50).map(|round| format!("\"{round}\"")).collect();
                let list = cluster.ask(&mut client, &format!("LRANGE list:{number}:{key} 0 -1"));
                assert_eq!(list, format!("[{}]", of_key.join(", ")));
                for name in ["count", "script"] {
                    let count = cluster.ask(&mut client, &format!("GET {name}:{number}:{key}"));
                    assert_eq!(count, format!("\"{}\"", of_key.len()));
                }
            }
        }
        let key_count: usize = done.iter().map(|(rounds, _)| 1 + 5 * 50.min(*rounds)).sum();
        assert_eq!(cluster.ask(&mut client, "DBSIZE"), format!("(integer) {}", key_count + 1));
        let mut seen = std::collections::BTreeSet::new();
        let mut cursor = "0".to_owned();
        loop {
            let Frame::Array(step) = client.call(&["SCAN", &cursor, "COUNT", "100"]) else { panic!("no step") };
            let Frame::Array(keys) = &step[1] else { panic!("no keys") };
            seen.extend(keys.iter().map(Frame::to_string));
            cursor = step[0].to_string().trim_matches('"').to_owned();
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(seen.len(), key_count + 1, "SCAN finds every key");
    };
    check(&cluster, 2);
    // The map survives.
    for node in 0..3 {
        cluster.kill(node);
    }
    for node in 0..3 {
        cluster.nodes[node] = Some(Server::spawn(&cluster.options[node]));
    }
    cluster.wait_for_answer(0);
    cluster.wait_until("all groups answer", |this| {
        this.try_client(0).is_some_and(|mut client| !client.show("DBSIZE").contains("error"))
    });
    check(&cluster, 0);
    assert!(!cluster.tool(0, &["move", "--slots", "5-3", "--to", "0"]).0);
    assert!(!cluster.tool(0, &["move", "--slots", "0-3", "--to", "9"]).0);
}

#[test]
fn leaders_go_where_they_are_wanted() {
    let mut cluster = Cluster::start(3);
    cluster.wait_until("all are known", |this| this.tool(0, &["status"]).1.matches("  3       none").count() == 2);
    let wanted = cluster.address(2);
    for group in ["0", "1"] {
        // It gives up after a minute, which a busy machine may take.
        cluster.wait_until("groups are led by the node that is preferred", |this| {
            let (is_done, told) = this.tool(0, &["prefer", group, &wanted]);
            is_done && told.contains("every group is led by its preferred node")
        });
    }
    let leaders = cluster.of_groups(1, "leader");
    assert_eq!(leaders[0], leaders[1]);
    assert_eq!(leaders, cluster.of_groups(1, "preferred"));
    // It comes back to what it is preferred for.
    cluster.kill(2);
    cluster.wait_for_answer(0);
    cluster.restart(2);
    cluster.wait_until("it leads again", |this| this.of_groups(1, "leader") == leaders);
    // Its leader knows by then that the others are there.
    cluster.wait_until("all are there", |this| this.tool(1, &["status"]).1.matches("  3       none").count() == 2);
    let (is_done, told) = cluster.tool(1, &["rebalance"]);
    assert!(is_done && told.matches("leads 1").count() == 2, "{told}");
    assert!(!cluster.tool(0, &["prefer", "7", &wanted]).0);
    let (is_done, _) = cluster.tool(0, &["prefer", "0", "none"]);
    assert!(is_done);
}

#[test]
fn cluster_failover_makes_a_replica_lead_what_its_master_leads() {
    let mut cluster = redirecting();
    cluster.stand_alone(1, &[]);
    assert!(cluster.client(3).show("CLUSTER FAILOVER").contains("cluster support disabled"));
    let role = |this: &Cluster, node: usize| this.client(node).show("ROLE");
    // Two groups have two leaders.
    cluster
        .wait_until("one leads nothing", |this| (0..3).filter(|node| role(this, *node).contains("slave")).count() == 1);
    let replica = (0..3).find(|node| role(&cluster, *node).contains("slave")).expect("one leads nothing");
    let master = (0..3)
        .filter(|node| *node != replica)
        .find(|node| {
            let id = cluster.client(*node).show("CLUSTER MYID");
            cluster.client(replica).show("CLUSTER MYSHARDID") == id
        })
        .expect("it is shown as a replica of one of them");
    let told = cluster.client(master).show("CLUSTER FAILOVER");
    assert_eq!(told, "(error) ERR You should send CLUSTER FAILOVER to a replica");
    assert_eq!(cluster.client(replica).show("CLUSTER FAILOVER NOW"), "(error) ERR syntax error");
    assert_eq!(cluster.client(replica).show("CLUSTER FAILOVER TAKEOVER"), "OK");
    // The other group may go to the node that led this one: leaders are spread over those that are left.
    cluster.wait_until("it leads what its master led", |this| role(this, replica).contains("master"));
    let leaders = cluster.of_groups(replica, "leader");
    let preferred = cluster.of_groups(replica, "preferred");
    let is_obeyed = |(leader, preferred): (&String, &String)| leader == preferred;
    assert_eq!(leaders.iter().zip(&preferred).filter(|pair| is_obeyed(*pair)).count(), 1, "{leaders:?} {preferred:?}");
    assert_eq!(preferred.iter().filter(|node| !node.is_empty() && *node != "null").count(), 1, "{preferred:?}");
}

#[test]
fn without_a_quorum_no_backup_is_waited_for() {
    let mut cluster = Cluster::start(3);
    assert_eq!(cluster.client(0).show("SET city Lisbon"), "OK");
    cluster.kill(1);
    cluster.kill(2);
    cluster
        .wait_until("the one that is left knows", |this| this.client(0).show("SET city Porto").contains("CLUSTERDOWN"));
    let folder = Folder::new();
    let place = folder.path().join("backup");
    let attempt = Command::new(binary())
        .args(["backup", "create", "--quiet", "--server", &cluster.address(0)])
        .arg(&place)
        .output()
        .expect("the binary runs");
    let errors = String::from_utf8_lossy(&attempt.stderr);
    assert!(!attempt.status.success() && errors.contains("No quorum"), "{errors}");
    let left = fs::read_dir(folder.path()).expect("it is there").filter_map(Result::ok);
    assert!(left.into_iter().all(|entry| !entry.file_name().to_string_lossy().contains("backup")));
}

/// A cluster of nodes that send clients to leaders.
fn redirecting() -> Cluster {
    let mut cluster = Cluster::start(3);
    for node in 0..3 {
        assert_eq!(cluster.client(node).show("CONFIG SET cluster-redirect yes"), "OK");
    }
    cluster.wait_until_settled();
    cluster.wait_until("all leaders are known", |this| {
        (0..3).all(|node| this.client(node).show("CLUSTER INFO").contains("cluster_state:ok"))
    });
    cluster
}

#[test]
fn clients_can_find_leaders_themselves() {
    let mut cluster = redirecting();
    let mut ids = Vec::new();
    for node in 0..3 {
        let mut client = cluster.client(node);
        let id = client.show("CLUSTER MYID").trim_matches('"').to_owned();
        assert_eq!(id.len(), 40);
        let nodes = client.show("CLUSTER NODES");
        assert_eq!(nodes.matches("\\n").count(), 3, "{nodes}");
        assert!(nodes.contains(&format!("{id} {}@{} myself,", cluster.address(node), cluster.ports[node])), "{nodes}");
        ids.push(id);
        assert_eq!(client.show("CLUSTER KEYSLOT city"), "(integer) 11479");
        assert!(client.show("INFO server").contains("redis_mode:cluster"));
        assert_eq!(client.show("CONFIG GET cluster-enabled"), "[\"cluster-enabled\", \"yes\"]");
    }
    // Each slot has one leader; the others name it.
    let mut moved = 0;
    for key in 0..20 {
        let answers: Vec<String> = (0..3).map(|node| cluster.client(node).show(&format!("SET key:{key} x"))).collect();
        assert_eq!(answers.iter().filter(|answer| *answer == "OK").count(), 1, "{answers:?}");
        moved += answers.iter().filter(|answer| answer.starts_with("(error) MOVED ")).count();
        let leader = answers.iter().position(|answer| answer == "OK").expect("one");
        for answer in answers.iter().filter(|answer| *answer != "OK") {
            assert!(answer.ends_with(&cluster.address(leader)), "{answer}");
        }
    }
    assert_eq!(moved, 40);
    // So it is for what watches keys, and for scripts, with the keys that they declare.
    for request in ["WATCH key:7", "EVAL return(1) 1 key:7", "EVAL_RO return(1) 1 key:7", "MULTI"] {
        let answers: Vec<String> = (0..3).map(|node| cluster.client(node).show(request)).collect();
        let moved = answers.iter().filter(|answer| answer.starts_with("(error) MOVED ")).count();
        assert_eq!(moved, if request == "MULTI" { 0 } else { 2 }, "{request}: {answers:?}");
    }
    let mut client = cluster.client(0);
    assert!(client.show("WATCH a b").contains("CROSSSLOT"));
    assert!(client.show("EVAL return(1) 2 a b").contains("CROSSSLOT"));
    assert_eq!(client.show("EVAL return(1) 0"), "(integer) 1");
    assert_eq!(client.show("MSET a 1 b 2"), "(error) CROSSSLOT Keys in request don't hash to the same slot");
    let sizes: i64 = (0..3)
        // One that leads nothing answers for another.
        .filter(|node| !cluster.client(*node).show("CLUSTER NODES").contains("myself,slave"))
        .map(|node| {
            cluster.client(node).show("DBSIZE").trim_start_matches("(integer) ").parse::<i64>().expect("a number")
        })
        .sum();
    assert_eq!(sizes, 20, "every key is counted by one node");
    let slot = client.show("CLUSTER KEYSLOT key:7").trim_start_matches("(integer) ").to_owned();
    cluster.wait_until("followers have it as well", |this| {
        (0..3).all(|node| {
            let mut client = this.client(node);
            client.show(&format!("CLUSTER COUNTKEYSINSLOT {slot}")) == "(integer) 1"
                && client.show(&format!("CLUSTER GETKEYSINSLOT {slot} 10")) == "[\"key:7\"]"
        })
    });
    let links = client.show("CLUSTER LINKS");
    // There is a connection of each end, for each of three lanes and for the log's lane one for each core.
    let count = |direction: &str| links.matches(&format!("\"{direction}\", \"node\", \"{}\"", ids[1])).count();
    assert!(count("to") >= 3 && count("to") == count("from"), "{links}");
    assert!(client.show("CLUSTER SHARDS").contains("\"role\", \"master\""));
    assert_eq!(client.show("ASKING"), "OK");
    let mut transaction = |key: &str| {
        client.show("MULTI");
        client.show("GET {a}1");
        client.show(&format!("GET {key}"));
        client.show("EXEC")
    };
    let answer = transaction("{b}1");
    assert!(answer.contains("CROSSSLOT") || answer.contains("EXECABORT"), "{answer}");
    // Without redirection, any node does.
    for node in 0..3 {
        assert_eq!(cluster.client(node).show("CONFIG SET cluster-redirect no"), "OK");
        assert_eq!(cluster.client(node).show("MSET a 1 b 2 c 3 d 4"), "OK");
    }
}

#[test]
fn tools_for_clusters_of_redis_accept_it() {
    if missing("redis-cli") {
        return;
    }
    let mut cluster = redirecting();
    let port = cluster.options[1].port.to_string();
    let check = output(Command::new("redis-cli").args(["--cluster", "check", &format!("127.0.0.1:{port}")]));
    assert!(check.contains("[OK] All nodes agree about slots configuration."), "{check}");
    assert!(check.contains("[OK] All 16384 slots covered."), "{check}");
    let info = output(Command::new("redis-cli").args(["--cluster", "info", &format!("127.0.0.1:{port}")]));
    assert!(info.contains("keys in "), "{info}");
    for key in ["city", "country", "continent"] {
        let set = output(Command::new("redis-cli").args(["-c", "-p", &port, "SET", key, "Lisbon"]));
        assert!(set.contains("OK"), "{set}");
    }
    let get = output(Command::new("redis-cli").args(["-c", "-p", &port, "GET", "country"]));
    assert!(get.contains("Lisbon"), "{get}");
    // What it would change is refused, with the verb that does it.
    // One that leads nothing: of the others redis-cli says itself that they hold slots.
    let idle = (0..3).find(|node| cluster.client(*node).show("ROLE").starts_with("[\"slave\""));
    let idle = cluster.client(idle.expect("two groups have two leaders")).show("CLUSTER MYID");
    let address = format!("127.0.0.1:{port}");
    let refused = |words: &[&str]| {
        let output = Command::new("redis-cli").arg("--cluster").args(words).output().expect("redis-cli runs");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let remove = refused(&["del-node", &address, idle.trim_matches('"')]);
    assert!(remove.contains("holdfast cluster remove lets a node leave"), "{remove}");
    cluster.stand_alone(2, &["--cluster-enabled", "yes"]);
    let newcomer = cluster.address(3);
    let add = refused(&["add-node", &newcomer, &address]);
    assert!(add.contains("holdfast cluster add lets one join"), "{add}");
    let mut client = cluster.client(0);
    for (request, verb) in [
        ("CLUSTER ADDSLOTSRANGE 1 2", "holdfast cluster move"),
        ("cluster setslot 1 node abc", "holdfast cluster move"),
        ("CLUSTER FAILOVER NOW", "syntax error"),
        ("CLUSTER REPLICATE abc", "--replicas"),
        ("CLUSTER NONSENSE", "unknown subcommand 'NONSENSE'. Try CLUSTER HELP."),
    ] {
        let told = client.show(request);
        assert!(told.starts_with("(error) ERR ") && told.contains(verb), "{told}");
    }
    cluster.kill(2);
    // They send clients to each other: what one of them does not lead it does not answer itself.
    cluster.wait_until("the others lead", |this| {
        [0, 1].into_iter().all(|node| this.client(node).show("CLUSTER INFO").contains("cluster_state:ok"))
    });
}

#[test]
fn the_cluster_client_of_redis_py_works_through_a_change_of_leaders() {
    let python = std::env::var("HOLDFAST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has_redis = Command::new(&python).args(["-c", "import redis.cluster"]).output();
    if !has_redis.is_ok_and(|output| output.status.success()) {
        say("SKIPPED: python3 has no module redis; cargo xtask test installs it");
        return;
    }
    let mut cluster = redirecting();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/clients/redis_py_cluster.py");
    let run = |cluster: &Cluster, node: usize, step: &str| {
        output(Command::new(&python).args([script, &cluster.options[node].port.to_string(), step]))
    };
    assert!(run(&cluster, 0, "write").contains("written"));
    let gone = Identity::of(&cluster, 1).node.to_string();
    cluster.kill(1);
    // The keys of a group that goes elsewhere while they are counted may be counted twice.
    cluster.wait_until_settled();
    cluster.wait_until("the others lead", |this| {
        [0, 2].into_iter().all(|node| {
            let leaders = this.of_groups(node, "leader");
            !leaders.is_empty() && leaders.iter().all(|leader| *leader != gone && leader != "null")
        })
    });
    assert!(run(&cluster, 2, "read").contains("read"));
}

/// Whichever way a write takes, it is refused at once while too few replicas are there; reads are not.
fn refuses_every_write(client: &mut Client) {
    let refuses = |client: &mut Client, words: &[&str]| {
        let begun = Instant::now();
        let reply = client.call(words).to_string();
        assert!(reply.contains("NOREPLICAS Not enough good replicas to write."), "{words:?}: {reply}");
        assert!(begun.elapsed() < AT_ONCE, "{words:?} waited");
    };
    for key in ["a", "b", "c"] {
        refuses(client, &["SET", key, "x"]);
        refuses(client, &["EVAL", "return redis.call('SET', KEYS[1], 'x')", "1", key]);
        refuses(client, &["EVAL", "return redis.call('SET', 'd', 'x')", "1", key]);
    }
    refuses(client, &["MSET", "a", "1", "b", "2", "c", "3", "d", "4", "e", "5", "f", "6"]);
    refuses(client, &["EVAL", "return redis.call('MSET', unpack(ARGV))", "0", "a", "1", "b", "2", "c", "3", "d", "4"]);
    refuses(client, &["RENAME", "before:1", "b"]);
    refuses(client, &["COPY", "before:1", "c"]);
    refuses(client, &["PFMERGE", "d", "a", "b"]);
    refuses(client, &["FLUSHALL"]);
    refuses(client, &["FLUSHDB"]);
    refuses(client, &["SWAPDB", "0", "1"]);
    refuses(client, &["FUNCTION", "LOAD", "#!lua name=lib\nredis.register_function('f', function() end)"]);
    for commands in [&["SET a x"][..], &["SET a x", "SET b x", "SET c x", "SET d x", "GET before:1"][..]] {
        assert_eq!(client.show("MULTI"), "OK");
        commands.iter().for_each(|command| assert_eq!(client.show(command), "QUEUED"));
        refuses(client, &["EXEC"]);
    }
    assert_eq!(client.show("MGET before:1 a b c d"), "[\"1\", (nil), (nil), (nil), (nil)]");
    assert_eq!(client.call(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "before:1"]).to_string(), "\"1\"");
    assert_eq!(client.show("MULTI"), "OK");
    ["GET before:1", "EXISTS a b c d e"].iter().for_each(|read| assert_eq!(client.show(read), "QUEUED"));
    assert_eq!(client.show("EXEC"), "[\"1\", (integer) 0]");
}

#[test]
fn who_waits_hears_how_many_others_hold_its_writes() {
    let mut cluster = Cluster::start(3);
    write(&cluster, 0, "before");
    let mut client = cluster.client(0);
    assert_eq!(client.show("WAIT 2 60000"), "(integer) 2");
    assert_eq!(client.show("WAITAOF 1 2 60000"), "[(integer) 1, (integer) 2]");
    cluster.kill(2);
    cluster.wait_for_answer(0);
    write(&cluster, 0, "after");
    assert_eq!(client.show("WAIT 1 60000"), "(integer) 1");
    assert_eq!(client.show("WAIT 2 300"), "(integer) 1");
    assert_eq!(client.show("WAIT 0 0"), "(integer) 1");
    // The leader refuses writes while fewer are there than are asked for.
    for node in 0..2 {
        let setting = "CONFIG SET min-replicas-to-write 2 min-replicas-max-lag 1";
        assert_eq!(cluster.client(node).show(setting), "OK");
    }
    cluster.wait_until("writes are refused", |this| {
        (0..10).all(|key| this.client(0).show(&format!("SET key:{key} x")).contains("NOREPLICAS Not enough good"))
    });
    assert_eq!(cluster.ask(&mut client, "GET before:1"), "\"1\"");
    refuses_every_write(&mut client);
    for node in 0..2 {
        assert_eq!(cluster.client(node).show("CONFIG SET min-replicas-to-write 1"), "OK");
    }
    assert_eq!(cluster.ask(&mut client, "SET key:1 x"), "OK");
    assert_eq!(client.show("EXISTS a b c d e f g h"), "(integer) 0", "nothing was done in part");
    assert_eq!(client.show("FUNCTION LIST"), "[]");
}

#[test]
fn a_node_of_another_version_is_told_so_at_once() {
    let (folder, port) = (Folder::new(), free_port());
    let options = ServerOptions::new(&folder.path().join("data")).extra(&[
        "--cluster-port",
        &port.to_string(),
        "--tls-cluster",
        "no",
    ]);
    let server = Server::start(&options);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    // The beginning that all versions have in common, and no more: how long the rest is, only that version knows.
    stream.write_all(b"HFPEER\xFF\x7F").expect("room");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer and its end");
    assert_eq!(&answer[..6], b"HFPEER");
    let version = u16::from_le_bytes([answer[6], answer[7]]);
    assert!(version > 1 && version < 0x7FFF);
    let told = format!("the other end speaks version 32767 of the protocol, and this node version {version}");
    server.wait_for_log(&told);
}
