//! Which nodes may join: a stranger tries the port for other nodes in every way that there is, and gets in by none.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime};

use crate::cluster::Cluster;
use crate::harness::{Authority, Folder, Server, ServerOptions, free_port, token_of, wait_for};

const HOUR: Duration = Duration::from_secs(3_600);

/// Somebody with an empty directory who knows where a node is.
struct Stranger {
    server: Server,
    _folder: Folder,
}

impl Stranger {
    fn start(cluster: &Cluster, token: Option<&str>, words: &[&str]) -> Self {
        let folder = Folder::new();
        let (port, join) = (free_port().to_string(), cluster.cluster_address(0));
        let options = ServerOptions::new(&folder.path().join("data"));
        let mut options = options.extra(&["--cores", "2", "--cluster-port", &port, "--join", &join]).extra(words);
        options.environment.extend(token.map(|token| ("HOLDFAST_TOKEN".to_owned(), token.to_owned())));
        Self { server: Server::spawn(&options), _folder: folder }
    }

    #[track_caller]
    fn says(&self, words: &str) {
        self.server.wait_for_log(words);
    }
}

/// The cluster has as many nodes as it had, answers, and has said this of the stranger.
#[track_caller]
fn is_undisturbed(cluster: &Cluster, words: &str) {
    cluster.nodes[0].as_ref().expect("it runs").wait_for_log(words);
    let mut client = cluster.client(0);
    let count = cluster.nodes.iter().flatten().count();
    let told = client.show("INFO cluster");
    // One that is alone counts nobody.
    let is_alone = count == 1 && !told.contains("cluster_nodes:2");
    assert!(is_alone || told.contains(&format!("cluster_nodes:{count}")), "{told}");
    assert_eq!(cluster.ask(&mut client, "GET secret"), "\"kept\"");
    assert_eq!(cluster.ask(&mut client, "INCR counter").split(' ').next(), Some("(integer)"));
}

fn cluster_with_a_secret(count: usize) -> Cluster {
    let cluster = Cluster::start(count);
    let mut client = cluster.client(0);
    assert_eq!(cluster.ask(&mut client, "SET secret kept"), "OK");
    cluster
}

#[test]
fn a_stranger_is_let_in_by_nothing_but_a_good_token() {
    let cluster = cluster_with_a_secret(1);
    let data = cluster.data_folder(0);
    // Nothing at all: it does not even ask.
    Stranger::start(&cluster, None, &[]).says("join: a token is needed");
    // As it was before there were authorities.
    Stranger::start(&cluster, None, &["--tls-cluster", "no"]).says("takes encrypted links only");
    is_undisturbed(&cluster, "it speaks no TLS, and this node takes encrypted links only");
    // A certificate of somebody else's authority, which it trusts itself.
    let authority = Authority::new("stranger");
    let own = authority.sign("stranger");
    let files = ["--tls-cluster", "yes", "--tls-cert-file", &own.certificate, "--tls-key-file", &own.key];
    let stranger = Stranger::start(&cluster, None, &[&files[..], &["--tls-ca-cert-file", &authority.path()]].concat());
    stranger.says("certificate is signed by nobody who is trusted here");
    // A token of the past.
    let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock") - 2 * HOUR;
    let late = edge::invite_from_directory(&data, before.as_secs(), HOUR).expect("an authority");
    Stranger::start(&cluster, Some(&late.to_text()), &[]).says("the token has expired");
    is_undisturbed(&cluster, &format!("its invitation {} has expired", late.name()));
    // One of another cluster: the stranger does not even say it.
    let other = cluster_with_a_secret(1);
    let foreign = token_of(&other.data_folder(0), HOUR);
    Stranger::start(&cluster, Some(&foreign), &[]).says("certificate is signed by nobody who is trusted here");
    is_undisturbed(&cluster, "does not trust who has signed this side's certificate");
    // One with a longer time than it was given.
    let mut bytes = late.encode();
    bytes[40] = 1;
    let forged = edge::Token::decode(&bytes).expect("its form is good").to_text();
    Stranger::start(&cluster, Some(&forged), &[]).says("no member of the cluster has made this token");
    is_undisturbed(&cluster, "no member of this cluster has made its invitation");
    // What is no token is refused before anything is asked.
    Stranger::start(&cluster, Some("secret"), &[]).says("HOLDFAST_TOKEN: this is not a token");
}

#[test]
fn a_token_lets_in_one_node_and_shows_in_no_log() {
    let mut cluster = cluster_with_a_secret(1);
    let (is_made, token) = cluster.tool(0, &["invite", "--expires", "10m"]);
    assert!(is_made, "{token}");
    let token = token.trim().to_owned();
    cluster.join_by(&token);
    cluster.wait_until("there are two nodes", |this| {
        this.try_client(0).is_some_and(|mut client| client.show("INFO cluster").contains("cluster_nodes:2"))
    });
    Stranger::start(&cluster, Some(&token), &[]).says("the token has let in another node already");
    is_undisturbed(&cluster, "has let in another node");
    for node in cluster.nodes.iter().flatten() {
        assert!(!node.log().contains(&token[9..]), "{}", node.log());
    }
    let mode = |node: usize| {
        use std::os::unix::fs::MetadataExt as _;
        let path = cluster.data_folder(node).join(edge::AUTHORITY_FILE);
        std::fs::metadata(path).expect("each member keeps it").mode() & 0o777
    };
    assert_eq!((mode(0), mode(1)), (0o600, 0o600));
    // Only who may administrate gets one.
    let mut client = cluster.client(0);
    client.show("ACL SETUSER reader on >word ~* +@all -@admin");
    let (is_made, told) = cluster.tool(0, &["invite", "--user", "reader", "--password", "word"]);
    assert!(!is_made && told.contains("NOPERM"), "{told}");
    for wrong in ["0", "2592001", "x", "-1"] {
        let told = client.show(&format!("HOLDFAST INVITE {wrong}"));
        assert!(told.contains("an invitation is good for 1 to 2592000 seconds"), "{told}");
    }
}

#[test]
fn a_node_that_was_removed_has_a_certificate_that_is_worth_nothing() {
    let mut cluster = cluster_with_a_secret(3);
    let address = cluster.address(2);
    let (is_out, told) = cluster.tool(0, &["remove", &address]);
    assert!(is_out, "{told}");
    cluster.kill(2);
    let removed = cluster.spawn_again(2);
    removed.wait_for_log("has been removed from its cluster");
    is_undisturbed(&cluster, "has been removed from the cluster");
    drop(removed);
}

#[test]
fn a_cluster_without_an_authority_goes_on_says_so_and_is_given_one() {
    let folder = Folder::new();
    let port = free_port().to_string();
    let options = ServerOptions::new(&folder.path().join("data")).extra(&["--cores", "2", "--cluster-port", &port]);
    let plain = options.clone().extra(&["--tls-cluster", "no"]);
    let server = Server::start(&plain);
    assert_eq!(server.client().show("SET secret kept"), "OK");
    server.wait_for_log("for other nodes: open to anyone who reaches it");
    assert!(server.client().show("HOLDFAST INVITE").contains("knows no invitations"));
    server.kill();
    // Without being told so it goes on, with a warning.
    let server = Server::start(&options);
    server.wait_for_log("holds no certificate authority of its cluster");
    assert_eq!(server.client().show("GET secret"), "\"kept\"");
    assert!(server.client().show("CONFIG SET tls-cluster yes").contains("no certificate authority of its own"));
    server.kill();
    let data = folder.path().join("data");
    let secure = || {
        let mut command = std::process::Command::new(crate::harness::binary());
        command.args(["cluster", "secure"]).arg(&data).output().expect("it runs")
    };
    assert!(secure().status.success());
    assert!(!secure().status.success(), "there is one already, and it stays");
    let server = Server::start(&options);
    server.wait_for_log("nodes must show a certificate of the cluster's authority");
    assert_eq!(server.client().show("GET secret"), "\"kept\"");
    assert!(server.client().show("HOLDFAST INVITE").contains("holdfast-"));
}

/// Writes that are acknowledged.
fn write_through(cluster: &Cluster, node: usize, prefix: &str) {
    let mut client = cluster.client(node);
    for key in 0..100 {
        assert_eq!(cluster.ask(&mut client, &format!("SET {prefix}:{key} {key}")), "OK");
    }
}

#[track_caller]
fn is_there(cluster: &Cluster, node: usize, prefix: &str) {
    let mut client = cluster.client(node);
    for key in 0..100 {
        assert_eq!(cluster.ask(&mut client, &format!("GET {prefix}:{key}")), format!("\"{key}\""), "{prefix}:{key}");
    }
}

/// Where a node says that nodes are.
fn wait_for_addresses(cluster: &mut Cluster, nodes: &[usize]) {
    let addresses: Vec<String> = (0..3).map(|node| cluster.cluster_address(node)).collect();
    cluster.wait_until("each is known where it is", |this| {
        nodes.iter().all(|node| {
            let (_, told) = this.tool(*node, &["status", "--json"]);
            addresses.iter().all(|address| told.contains(&format!("\"{address}\"")))
        })
    });
}

/// Each has been shown one other, which is not there yet when it starts.
#[test]
fn a_cluster_of_which_all_addresses_have_changed_is_one_again() {
    let mut cluster = cluster_with_a_secret(3);
    write_through(&cluster, 1, "before");
    (0..3).for_each(|node| cluster.kill(node));
    (0..3).for_each(|node| cluster.readdress(node));
    for node in 0..3 {
        let next = cluster.cluster_address((node + 1) % 3);
        cluster.point_to(node, &[next]);
    }
    (0..3).for_each(|node| cluster.respawn(node));
    for node in 0..3 {
        cluster.wait_for_answer(node);
        is_there(&cluster, node, "before");
    }
    write_through(&cluster, 2, "after");
    wait_for_addresses(&mut cluster, &[0, 1, 2]);
    // From now on nobody needs to be shown anything.
    (0..3).for_each(|node| cluster.kill(node));
    (0..3).for_each(|node| cluster.point_to(node, &[]));
    (0..3).for_each(|node| cluster.respawn(node));
    for node in 0..3 {
        cluster.wait_for_answer(node);
        is_there(&cluster, node, "before");
        is_there(&cluster, node, "after");
    }
}

/// At one of the addresses that it was shown a node of another cluster is by now. That one misleads nobody.
#[test]
fn with_other_addresses_a_majority_goes_on_and_the_rest_comes_later() {
    let mut cluster = cluster_with_a_secret(3);
    let stranger = cluster_with_a_secret(1);
    write_through(&cluster, 0, "before");
    (0..3).for_each(|node| cluster.kill(node));
    (0..3).for_each(|node| cluster.readdress(node));
    // The first is shown nothing, and says who it misses, and what to do.
    cluster.respawn(0);
    cluster.wait_until("the first has read its log", |this| {
        let (_, told) = this.tool(0, &["status"]);
        told.contains("2 of its 3 voters not heard")
    });
    cluster.node(0).wait_for_log("no other node has answered where it was last");
    cluster.kill(0);
    let mut everywhere: Vec<String> = (0..3).map(|node| cluster.cluster_address(node)).collect();
    everywhere.insert(0, stranger.cluster_address(0));
    (0..3).for_each(|node| cluster.point_to(node, &everywhere));
    for node in 0..2 {
        cluster.respawn(node);
    }
    for node in 0..2 {
        cluster.wait_for_answer(node);
        is_there(&cluster, node, "before");
        cluster.node(node).wait_for_log("certificate is signed by nobody who is trusted here");
    }
    write_through(&cluster, 0, "meanwhile");
    cluster.respawn(2);
    cluster.wait_for_answer(2);
    is_there(&cluster, 2, "before");
    is_there(&cluster, 2, "meanwhile");
    wait_for_addresses(&mut cluster, &[0, 1, 2]);
    is_undisturbed(&stranger, "cuts the link from");
}

/// The ports that a process listens on, and its Unix sockets, as the kernel tells them.
fn listening(pid: u32) -> (BTreeSet<u16>, BTreeSet<String>) {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process");
    let sockets: BTreeSet<String> = descriptors
        .filter_map(|descriptor| std::fs::read_link(descriptor.ok()?.path()).ok())
        .filter_map(|target| Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let lines = |table: &str| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        text.lines().skip(1).map(|line| line.split_whitespace().map(str::to_owned).collect()).collect::<Vec<Vec<_>>>()
    };
    const LISTEN: &str = "0A";
    const ACCEPTS: &str = "00010000";
    let tcp = lines("tcp").into_iter().chain(lines("tcp6"));
    let ports = tcp.filter(|words| words[3] == LISTEN && sockets.contains(&words[9])).map(|words| {
        let port = words[1].rsplit(':').next().expect("an address has a port");
        u16::from_str_radix(port, 16).expect("a number")
    });
    let unix = lines("unix").into_iter();
    let paths = unix
        .filter(|words| words[3] == ACCEPTS && sockets.contains(&words[6]))
        .filter_map(|mut words| (words.len() > 7).then(|| words.swap_remove(7)));
    (ports.collect(), paths.collect())
}

#[test]
fn the_log_names_every_socket_that_listens_and_what_protects_it() {
    let (folder, authority) = (Folder::new(), Authority::new("authority"));
    let signed = authority.sign("server");
    let ports = [0; 5].map(|_| free_port());
    let [tls, cluster, console, metrics, sentinel] = ports.map(|port| port.to_string());
    let socket = folder.path().join("socket").to_str().expect("a name in UTF-8").to_owned();
    let options = ServerOptions::new(&folder.path().join("data")).extra(&[
        "--tls-port",
        &tls,
        "--tls-cert-file",
        &signed.certificate,
        "--tls-key-file",
        &signed.key,
        "--tls-ca-cert-file",
        &authority.path(),
        "--cluster-port",
        &cluster,
        "--console-port",
        &console,
        "--metrics-port",
        &metrics,
        "--sentinel-port",
        &sentinel,
        "--unixsocket",
        &socket,
        "--unixsocketperm",
        "700",
    ]);
    let server = Server::start(&options);
    server.wait_for_log("ready to accept commands");
    let log = server.log();
    let (listening, paths) = listening(server.pid());
    let expected: BTreeSet<u16> = ports.into_iter().chain([server.port()]).collect();
    assert_eq!(listening, expected);
    for port in listening {
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(&format!("port {port} of 127.0.0.1"))).collect();
        assert!(lines.iter().any(|line| line.contains(", for ") && line.contains(": ")), "port {port}:\n{log}");
    }
    assert_eq!(paths, BTreeSet::from([socket.clone()]));
    for words in [
        ", for clients that ask a Sentinel: not encrypted; no password is asked for".to_owned(),
        format!("Unix socket {socket}, for clients: for processes that may write to the file (permissions 700)"),
    ] {
        assert!(log.contains(&words), "{words}:\n{log}");
    }
}

/// Somebody opens connections to the port for other nodes, and says nothing.
#[test]
fn silent_callers_take_few_descriptors_and_keep_no_node_out() {
    let mut cluster = cluster_with_a_secret(1);
    let address = cluster.cluster_address(0);
    let begun = Instant::now();
    let mut callers: Vec<TcpStream> = Vec::new();
    for _ in 0..300 {
        callers.push(TcpStream::connect(&address).expect("a connection"));
    }
    cluster.node(0).wait_for_log("too many callers have not said who they are");
    for caller in &mut callers {
        caller.set_nonblocking(true).expect("a socket");
    }
    let mut closed = 0;
    wait_for("those for whom there is no room are dropped", || {
        callers.retain_mut(|caller| !matches!(caller.read(&mut [0]), Ok(0)));
        closed = 300 - callers.len();
        closed >= 44
    });
    // Those that stay are dropped when they have said nothing for four seconds. A slow machine may get there.
    assert!(closed <= 100 || begun.elapsed() > Duration::from_secs(4), "{closed} of 300 were dropped");
    // A node is let in meanwhile.
    let calling = std::thread::spawn(move || {
        for _ in 0..10 {
            let more: Vec<_> = (0..300).map(|_| TcpStream::connect(&address)).collect();
            std::thread::sleep(Duration::from_millis(200));
            drop(more);
        }
    });
    cluster.join();
    cluster.wait_until("there are two nodes", |this| {
        this.try_client(0).is_some_and(|mut client| client.show("INFO cluster").contains("cluster_nodes:2"))
    });
    calling.join().expect("it only calls");
    is_undisturbed(&cluster, "too many callers have not said who they are");
}
