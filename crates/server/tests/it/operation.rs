//! What operators see, and what the cluster does by itself so that they need not do it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::harness::{
    Client, Folder, PATIENCE, Policy, Server, ServerOptions, binary, free_port, number_from_environment, say,
};

fn get(port: u16, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the port of figures is open");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    stream.write_all(request.as_bytes()).expect("a request is taken");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    (head.to_owned(), body.to_owned())
}

/// Reads a page as Prometheus does: samples by name and labels. Every sample stands behind its HELP and TYPE.
fn samples(page: &str) -> BTreeMap<String, f64> {
    let is_name = |name: &str| {
        (name.starts_with("holdfast_") || name.starts_with("redis_"))
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    };
    let mut samples = BTreeMap::new();
    let mut families = BTreeSet::new();
    let (mut family, mut kind) = (String::new(), "");
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, text) = help.split_once(' ').expect("a help text");
            assert!(is_name(name) && text.ends_with('.'), "{line}");
            let line = lines.next().and_then(|line| line.strip_prefix("# TYPE ")).expect("a type behind the help");
            kind = line.strip_prefix(name).expect("the type of the same").trim();
            assert!(["gauge", "counter", "histogram", "summary"].contains(&kind), "{kind}");
            // Names of redis_exporter are as they are.
            assert!(name.starts_with("redis_") || (kind == "counter") == name.ends_with("_total"), "{name}: {kind}");
            assert!(families.insert(name.to_owned()), "{name} comes twice");
            family = name.to_owned();
            continue;
        }
        let (key, value) = line.rsplit_once(' ').expect("a sample");
        let (name, labels) = key.split_once('{').unwrap_or((key, "}"));
        let is_compound = matches!(kind, "histogram" | "summary");
        let endings = ["_bucket", "_sum", "_count"];
        let base = endings.iter().find_map(|end| name.strip_suffix(end)).filter(|_| is_compound).unwrap_or(name);
        assert_eq!(base, family, "{line}");
        assert!(labels.ends_with('}') && labels.matches('"').count() % 2 == 0, "{line}");
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}: no number"));
        assert!(samples.insert(key.to_owned(), value).is_none(), "{line}: twice");
    }
    samples
}

#[test]
fn figures_are_collected_as_prometheus_wants_them() {
    let (folder, port) = (Folder::new(), free_port());
    let options = ServerOptions::new(&folder.path().join("data")).extra(&["--metrics-port", &port.to_string()]);
    let server = Server::start(&options);
    let mut client = server.client();
    for key in 0..10 {
        assert_eq!(client.show(&format!("SET key:{key} x")), "OK");
    }
    client.show("NOSUCHCOMMAND");
    let (head, page) = get(port, "GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("text/plain; version=0.0.4"), "{head}");
    let samples = samples(&page);
    assert_eq!(samples["holdfast_keys{database=\"0\"}"], 10.0);
    assert_eq!(samples["holdfast_error_replies_total{code=\"ERR\"}"], 1.0);
    assert!(samples["holdfast_commands_total"] >= 10.0);
    assert!(samples["holdfast_group_leads{group=\"0\"}"] == 1.0 && samples["holdfast_disk_has_room"] == 1.0);
    assert!(samples.contains_key("holdfast_log_sync_max_seconds") && samples["holdfast_uptime_seconds"] > 0.0);
    let (head, _) = get(port, "GET / HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    let (head, _) = get(port, "*1\r\n$4\r\nPING\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
    // A connection that says nothing does not keep others waiting for as long as it is there.
    let silent = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    assert!(get(port, "GET /metrics HTTP/1.1\r\n\r\n").0.contains("200 OK"));
    drop(silent);
    assert!(server.stop().status.success());
}

/// What the dashboard `grafana_prometheus_redis_dashboard.json` of redis_exporter, and the dashboard, the rules and the
/// alerts of its redis-mixin ask for (as of August 2026), with the labels that they group or select by. What only a
/// replica tells is in [`OF_REPLICAS`].
const OF_DASHBOARDS: &[(&str, &[&str])] = &[
    ("redis_up", &[]),
    ("redis_uptime_in_seconds", &[]),
    ("redis_connected_clients", &[]),
    ("redis_blocked_clients", &[]),
    ("redis_memory_used_bytes", &[]),
    ("redis_memory_used_rss_bytes", &[]),
    ("redis_memory_max_bytes", &[]),
    ("redis_total_system_memory_bytes", &[]),
    ("redis_commands_total", &["cmd"]),
    ("redis_commands_duration_seconds_total", &["cmd"]),
    ("redis_keyspace_hits_total", &[]),
    ("redis_keyspace_misses_total", &[]),
    ("redis_net_input_bytes_total", &[]),
    ("redis_net_output_bytes_total", &[]),
    ("redis_db_keys", &["db"]),
    ("redis_db_keys_expiring", &["db"]),
    ("redis_expired_keys_total", &[]),
    ("redis_evicted_keys_total", &[]),
    ("redis_connected_slaves", &[]),
    ("redis_cluster_slots_fail", &[]),
    ("redis_cluster_slots_pfail", &[]),
    ("redis_cluster_state", &[]),
];

/// The same, told by a node that leads nothing.
const OF_REPLICAS: &[(&str, &[&str])] = &[("redis_master_last_io_seconds_ago", &["master_host", "master_port"])];

/// Is there a sample of this name with just these labels?
fn has_sample(samples: &BTreeMap<String, f64>, name: &str, labels: &[&str]) -> bool {
    samples.keys().any(|key| {
        let (found, rest) = key.split_once('{').unwrap_or((key, ""));
        let names: Vec<&str> = rest.split("\",").filter_map(|part| Some(part.split_once('=')?.0)).collect();
        found == name && names == labels
    })
}

#[test]
fn dashboards_and_alerts_for_redis_exporter_find_what_they_ask_for() {
    let (folder, port) = (Folder::new(), free_port());
    let options = ServerOptions::new(&folder.path().join("data")).extra(&["--metrics-port", &port.to_string()]);
    let server = Server::start(&options);
    let mut client = server.client();
    for request in ["SET a 1 EX 1000", "SET b 2", "GET a", "GET nothing", "CONFIG SET slowlog-log-slower-than 0"] {
        client.show(request);
    }
    (0..100).for_each(|_| _ = client.show("LPUSH list x"));
    // One that takes more than a microsecond.
    client.call(&["EVAL", "local n = 0 for i = 1, 100000 do n = n + i end return n", "0"]);
    // What INFO and the page tell of the host is measured once a second.
    let deadline = Instant::now() + PATIENCE;
    let samples = loop {
        let samples = samples(&get(port, "GET /metrics HTTP/1.1\r\n\r\n").1);
        if samples["redis_memory_used_bytes"] > 0.0 && samples["redis_total_system_memory_bytes"] > 0.0 {
            break samples;
        }
        assert!(Instant::now() < deadline, "the host was not measured");
        thread::sleep(Duration::from_millis(100));
    };
    for (name, labels) in OF_DASHBOARDS {
        assert!(has_sample(&samples, name, labels), "{name} {labels:?}");
    }
    assert_eq!(samples["redis_up"], 1.0);
    assert_eq!(samples["redis_cluster_state"], 1.0);
    assert_eq!((samples["redis_db_keys{db=\"db0\"}"], samples["redis_db_keys_expiring{db=\"db0\"}"]), (3.0, 1.0));
    assert_eq!(samples["redis_commands_total{cmd=\"lpush\"}"], 100.0);
    assert!(samples["redis_commands_duration_seconds_total{cmd=\"lpush\"}"] > 0.0);
    assert_eq!(samples["redis_commands_total{cmd=\"config|set\"}"], 1.0);
    assert_eq!((samples["redis_keyspace_hits_total"], samples["redis_keyspace_misses_total"]), (1.0, 1.0));
    assert!(samples["redis_slowlog_length"] >= 100.0 && samples["redis_last_slow_execution_duration_seconds"] > 0.0);
    // Since the bound was set to 0 all calls are measured.
    let of = |part: &str| samples[&format!("holdfast_command_duration_seconds_{part}")];
    let all = of("count{cmd=\"lpush\"}");
    assert_eq!((all, of("bucket{cmd=\"lpush\",le=\"+Inf\"}")), (100.0, 100.0));
    let buckets: Vec<(f64, f64)> = samples
        .iter()
        .filter_map(|(key, count)| {
            let bound = key.strip_prefix("holdfast_command_duration_seconds_bucket{cmd=\"lpush\",le=\"")?;
            Some((bound.trim_end_matches("\"}").replace("+Inf", "inf").parse().expect("a bound"), *count))
        })
        .collect();
    assert_eq!(buckets.len(), 25);
    for (bound, count) in &buckets {
        assert!(buckets.iter().all(|(other, less)| other > bound || less <= count), "{buckets:?}");
    }
    assert!(server.stop().status.success());
}

#[test]
fn who_leads_nothing_tells_of_its_master_and_who_leads_of_its_followers() {
    let folders = [Folder::new(), Folder::new()];
    let ports: Vec<u16> = (0..4).map(|_| free_port()).collect();
    let start = |node: usize, more: &[&str]| {
        let (metrics, cluster) = (ports[node].to_string(), ports[node + 2].to_string());
        let words = ["--cores", "1", "--metrics-port", &metrics, "--cluster-port", &cluster];
        let options = ServerOptions::new(&folders[node].path().join("data")).extra(&words).extra(more);
        Server::start(&options)
    };
    let servers = [
        start(0, &["--tls-cluster", "no"]),
        start(1, &["--tls-cluster", "no", "--join", &format!("127.0.0.1:{}", ports[2])]),
    ];
    let deadline = Instant::now() + PATIENCE;
    // There is one group, and one of the two leads it.
    loop {
        let pages = [0, 1].map(|node| samples(&get(ports[node], "GET /metrics HTTP/1.1\r\n\r\n").1));
        let leads = |page: &BTreeMap<String, f64>| page.get("holdfast_group_leads{group=\"0\"}") == Some(&1.0);
        let of_leader = pages.iter().find(|page| leads(page));
        let of_other = pages.iter().find(|page| !leads(page));
        let is_told = of_leader.zip(of_other).is_some_and(|(leader, other)| {
            OF_REPLICAS.iter().all(|(name, labels)| has_sample(other, name, labels))
                && has_sample(other, "redis_master_link_up", &["master_host", "master_port"])
                && has_sample(leader, "redis_connected_slave_lag_seconds", &["slave_ip", "slave_port", "slave_state"])
                && has_sample(leader, "holdfast_follower_lag_seconds", &["group", "node"])
                && leader["redis_connected_slaves"] == 1.0
                && other.iter().any(|(key, value)| key.starts_with("redis_master_link_up") && *value == 1.0)
        });
        if is_told {
            break;
        }
        assert!(Instant::now() < deadline, "{pages:#?}");
        thread::sleep(Duration::from_millis(100));
    }
    for server in servers {
        assert!(server.stop().status.success());
    }
}

/// What `holdfast metrics VERB` prints.
fn metrics(verb: &str) -> String {
    let output = Command::new(binary()).args(["metrics", verb]).output().expect("it can be run");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn what_is_shipped_and_told_about_metrics_is_what_the_binary_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let updates = std::env::var_os("UPDATE_EXPECT").is_some();
    let page = root.join("docs/manual/metrics.md");
    let text = fs::read_to_string(&page).expect("the page");
    let (before, _) = text.split_once("| metric |").expect("a table");
    for (path, wanted) in [
        (page.clone(), format!("{before}{}", metrics("list"))),
        (root.join("packaging/grafana/holdfast-dashboard.json"), metrics("dashboard")),
        (root.join("packaging/grafana/holdfast-alerts.yaml"), metrics("alerts")),
    ] {
        if updates {
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(&path, &wanted).expect("written");
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(found == wanted, "{}: run with UPDATE_EXPECT=1", path.display());
    }
    let dashboard: serde_json::Value = serde_json::from_str(&metrics("dashboard")).expect("JSON");
    assert!(dashboard["panels"].as_array().expect("panels").len() > 20);
}

/// Writes through one node until told to stop, and counts answers and errors.
struct Writer {
    ends: Arc<AtomicBool>,
    error_count: Arc<AtomicU64>,
    thread: thread::JoinHandle<u64>,
}

impl Writer {
    fn start(mut client: Client) -> Self {
        let (ends, error_count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ended, errors) = (Arc::clone(&ends), Arc::clone(&error_count));
        let work = move || {
            let mut count = 0;
            while !ended.load(Ordering::Relaxed) {
                let answer = client.show(&format!("SET writer:{} x", count % 100));
                if answer != "OK" {
                    say(&format!("a client of a node that lives was told {answer}"));
                    errors.fetch_add(1, Ordering::Relaxed);
                }
                count += 1;
            }
            count
        };
        Self { ends, error_count, thread: thread::spawn(work) }
    }

    fn stop(self) -> (u64, u64) {
        self.ends.store(true, Ordering::Relaxed);
        let count = self.thread.join().expect("the writer does not panic");
        (count, self.error_count.load(Ordering::Relaxed))
    }
}

#[test]
fn the_layout_returns_by_itself_and_the_timeline_says_why() {
    let mut cluster = Cluster::start(3);
    cluster.wait_until("all are known", |this| this.tool(0, &["status"]).1.matches("  3       none").count() == 2);
    let wanted = cluster.address(2);
    for group in ["0", "1"] {
        let (is_done, told) = cluster.tool(0, &["prefer", group, &wanted]);
        assert!(is_done, "{told}");
    }
    let leaders = cluster.of_groups(0, "leader");
    let leads = |this: &Cluster| {
        let (_, json) = this.tool(0, &["timeline", "--json", "--count", "1000"]);
        json.matches("\"kind\": \"leader\"").count()
    };
    let cycles = number_from_environment("HOLDFAST_RETURNS", 2);
    let mut quiet_cycles = 0;
    // On a busy machine there may be an election more in a cycle. Where leaders go to and fro there is one in each.
    for cycle in 0..3 * cycles {
        let before = leads(&cluster);
        let writer = Writer::start(cluster.client(0));
        cluster.kill(2);
        cluster.wait_until("others lead", |this| {
            let now = this.of_groups(0, "leader");
            now.iter().all(|leader| !leader.is_empty() && leader != "null" && *leader != leaders[0])
        });
        let returned = Instant::now();
        cluster.restart(2);
        cluster.wait_until("the layout is back, and stays", |this| {
            let is_back = this.of_groups(0, "leader") == leaders;
            thread::sleep(Duration::from_secs(u64::from(is_back) * 2));
            is_back && this.of_groups(0, "leader") == leaders
        });
        let took = returned.elapsed();
        let (count, error_count) = writer.stop();
        let changes = leads(&cluster) - before;
        say(&format!("cycle {cycle}: back within {took:?}, {count} writes, {changes} changes of leaders"));
        assert_eq!(error_count, 0, "clients of nodes that live see no error");
        quiet_cycles += u64::from(changes <= 2 * leaders.len());
        if quiet_cycles == cycles {
            break;
        }
    }
    assert_eq!(quiet_cycles, cycles, "there are more changes of leaders than {}", 2 * leaders.len());
    // Every node tells the same, the one that was away too.
    for node in 0..3 {
        cluster.wait_until("all nodes know what has happened", |this| {
            let (is_well, told) = this.tool(node, &["timeline", "--count", "1000"]);
            let has = |text: &str| told.contains(text);
            is_well
                && has("had been silent for ")
                && has(&format!("hands over to {wanted}, which is preferred"))
                && has("has handed over")
                && has(" was cut: ")
                && has("is back")
                && has("has joined")
        });
    }
    let (_, page) = cluster.tool(1, &["status"]);
    assert!(page.contains("\nlatest events\n"), "{page}");
    let text = cluster.client(2).show("INFO cluster");
    assert!(text.contains("lag_ms=") && text.contains("resyncs=") && text.contains("last_cut="), "{text}");
}

#[test]
fn a_cluster_can_be_tried_out() {
    let mut child = Command::new(binary())
        .args(["cluster", "try", "--nodes", "3", "--cores", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut ports: Vec<u16> = Vec::new();
    for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
        let line = line.expect("a line");
        if let Some(rest) = line.trim_start().strip_prefix("redis-cli -p ") {
            ports.push(rest.split(' ').next().and_then(|port| port.parse().ok()).expect("a port"));
        }
        if line.contains("Control-C stops all nodes") {
            break;
        }
    }
    assert_eq!(ports.len(), 3);
    let client = |port: u16| Client::try_connect(port).expect("a connection");
    assert_eq!(client(ports[0]).show("SET city Lisbon"), "OK");
    assert_eq!(client(ports[2]).show("GET city"), "\"Lisbon\"");
    // Every command names a server in the same way.
    for words in [["cluster", "status"], ["cluster", "timeline"]] {
        let server = format!("127.0.0.1:{}", ports[1]);
        let output = Command::new(binary()).args(words).args(["--server", &server]).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
    }
    let told = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
    assert!(told.success() && child.wait().expect("it ends").success());
    assert!(ports.iter().all(|port| Client::try_connect(*port).is_none()), "a node was left behind");
}

#[test]
fn a_tool_whose_reader_has_left_goes_on_and_one_that_cannot_write_says_so() {
    let run = |output: Stdio| {
        let mut command = Command::new(binary());
        command.args(["simulate", "--seeds", "7", "--trace"]).stdout(output).stderr(Stdio::piped());
        let output = command.spawn().and_then(Child::wait_with_output).expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    assert_eq!(run(writer.into()), (Some(0), String::new()));
    let full = File::options().write(true).open("/dev/full").expect("Linux has it");
    let (code, told) = run(full.into());
    assert_eq!(code, Some(1));
    assert!(told.contains("cannot write to the standard output: No space left on device"), "{told}");
}

#[test]
fn a_log_of_json_has_an_object_a_line_and_names_the_durability() {
    let folder = Folder::new();
    let server = Server::start(
        &ServerOptions::new(&folder.path().join("data")).policy(Policy::Everysec).extra(&["--log-format", "json"]),
    );
    // It answers before it has said that it does.
    server.wait_for_log("ready to accept commands");
    let log = server.log();
    assert!(server.stop().status.success());
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|cause| panic!("{line}: {cause}"))).collect();
    assert!(lines.len() >= 3, "{log}");
    for line in &lines {
        let object = line.as_object().expect("an object");
        assert_eq!(object.keys().collect::<Vec<_>>(), ["level", "message", "pid", "time"], "{line}");
        assert!(line["time"].as_str().is_some_and(|time| time.len() == 24 && time.ends_with('Z')), "{line}");
        assert!(matches!(line["level"].as_str(), Some("notice" | "warning")), "{line}");
    }
    let messages: Vec<&str> = lines.iter().filter_map(|line| line["message"].as_str()).collect();
    assert!(messages.iter().any(|text| text.starts_with("durability:") && text.contains("within a second")), "{log}");
    assert!(messages.iter().any(|text| text.contains("ready to accept commands")), "{log}");
}

#[test]
fn why_a_server_does_not_start_is_in_its_log_file_as_well() {
    let folder = Folder::new();
    let log = folder.path().join("log");
    let (log_word, data) = (log.display().to_string(), folder.path().join("data").display().to_string());
    let start = |more: &[&str]| {
        let output = Command::new(binary())
            .args(["serve", "--logfile", &log_word, "--data-dir", &data])
            .args(more)
            .output()
            .expect("it can be run");
        assert!(!output.status.success());
        let text = fs::read_to_string(&log).expect("a log");
        fs::remove_file(&log).expect("removed");
        (String::from_utf8_lossy(&output.stderr).into_owned(), text)
    };
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let (told, logged) = start(&["--port", &port]);
    assert!(told.contains(&port) && logged.contains("warning ends: "), "{told}\n{logged}");
    assert!(logged.lines().any(|line| line.contains(told.trim_start_matches("holdfast: ").trim())), "{told}\n{logged}");
    let (told, logged) = start(&["--maxmemory", "lots"]);
    assert!(told.contains("maxmemory") && logged.contains("warning does not start: "), "{told}\n{logged}");
}

#[test]
fn a_supervisor_is_told_when_the_server_serves_lives_and_stops() {
    let folder = Folder::new();
    let place = folder.path().join("notify");
    let socket = UnixDatagram::bind(&place).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let hear = || {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).expect("a message");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let mut options = ServerOptions::new(&folder.path().join("data"));
    options.environment.push(("NOTIFY_SOCKET".to_owned(), place.display().to_string()));
    options.environment.push(("WATCHDOG_USEC".to_owned(), "4000000".to_owned()));
    let mut server = Server::spawn(&options);
    assert_eq!(hear(), "STATUS=loads\n");
    // It may have lived for some time before it serves.
    while hear() != "READY=1\nSTATUS=serves\n" {}
    assert_eq!(server.client().show("SET a 1"), "OK");
    assert_eq!(hear(), "WATCHDOG=1\n");
    server.signal("TERM");
    while hear() != "STOPPING=1\nSTATUS=stops\n" {}
    assert!(server.wait().status.success());
}
