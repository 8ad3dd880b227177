//! Encrypted connections: of clients, and between nodes.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use edge::{ClientSecurity, SecureStream};
use resp::{Frame, FrameDecoder, encode_request};

use crate::clients::{missing, output};
use crate::cluster::last_voters;
use crate::harness::{Authority, Client, Folder, PATIENCE, Server, ServerOptions, Signed, binary, free_port, wait_for};

/// A client that speaks TLS.
struct TlsClient {
    stream: SecureStream,
    decoder: FrameDecoder,
}

impl TlsClient {
    fn connect(port: u16, security: &ClientSecurity) -> io::Result<Self> {
        let socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream: security.connect(socket)?, decoder: FrameDecoder::new() })
    }

    fn send<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<()> {
        let mut bytes = Vec::new();
        encode_request(&mut bytes, words);
        self.stream.write_all(&bytes)?;
        self.stream.flush()
    }

    fn receive(&mut self) -> io::Result<Frame> {
        let mut chunk = vec![0; 64 << 10];
        loop {
            if let Some(frame) = self.decoder.next_frame().map_err(io::Error::other)? {
                return Ok(frame);
            }
            match self.stream.read(&mut chunk).map_err(edge::in_words)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.decoder.extend(&chunk[..count]),
            }
        }
    }

    #[track_caller]
    fn call<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Frame {
        self.send(words).expect("a connection to send on");
        self.receive().expect("a reply")
    }

    #[track_caller]
    fn show(&mut self, request: &str) -> String {
        self.call(&request.split(' ').collect::<Vec<_>>()).to_string()
    }
}

/// The words that make a server speak TLS.
fn words(authority: &Authority, own: &Signed, more: &[&str]) -> Vec<String> {
    let words =
        ["--tls-cert-file", &own.certificate, "--tls-key-file", &own.key, "--tls-ca-cert-file", &authority.path()];
    words.iter().chain(more).map(|word| (*word).to_owned()).collect()
}

/// A server with a plain and a TLS port.
struct Stand {
    authority: Authority,
    port: u16,
    server: Server,
    folder: Folder,
}

impl Stand {
    fn new(more: &[&str]) -> Self {
        let (authority, folder, port) = (Authority::new("authority"), Folder::new(), free_port());
        let words = words(&authority, &authority.sign("server"), more);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let options = ServerOptions::new(&folder.path().join("data")).extra(&["--tls-port", &port.to_string()]);
        let server = Server::spawn(&options.extra(&words));
        let this = Self { authority, port, server, folder };
        let security = this.authority.client(Some(&this.own()));
        let begun = Instant::now();
        while !TlsClient::connect(port, &security).is_ok_and(|mut client| !client.call(&["DBSIZE"]).is_error()) {
            assert!(begun.elapsed() < PATIENCE, "no answer\n{}", this.server.log());
            thread::sleep(Duration::from_millis(10));
        }
        this
    }

    fn own(&self) -> Signed {
        self.authority.sign("client")
    }

    #[track_caller]
    fn client(&self) -> TlsClient {
        TlsClient::connect(self.port, &self.authority.client(Some(&self.own()))).expect("a connection")
    }

    /// Why a client is not let in.
    #[track_caller]
    fn refusal(&self, security: &ClientSecurity) -> String {
        let told = TlsClient::connect(self.port, security).and_then(|mut client| {
            client.send(&["PING"])?;
            client.receive()
        });
        told.expect_err("it should not be let in").to_string()
    }

    #[track_caller]
    fn wait_for_log(&self, words: &str) {
        wait_for_log(&self.server, words);
    }
}

#[track_caller]
fn wait_for_log(server: &Server, words: &str) {
    let begun = Instant::now();
    while !server.log().contains(words) {
        assert!(begun.elapsed() < PATIENCE, "not told: {words}\n{}", server.log());
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn clients_speak_tls_beside_those_who_do_not() {
    let stand = Stand::new(&[]);
    let (mut secret, mut plain) = (stand.client(), stand.server.client());
    assert_eq!(secret.show("SET city Lisbon"), "OK");
    assert_eq!(plain.show("GET city"), "\"Lisbon\"");
    // A pipeline, and values larger than any buffer, both ways.
    for turn in 0..2_000 {
        secret.send(&["INCRBY", "sum", &turn.to_string()]).expect("a connection");
    }
    let replies: Vec<Frame> = (0..2_000).map(|_| secret.receive().expect("a reply")).collect();
    assert_eq!(replies[1_999], Frame::Integer(1_999_000));
    let large: Vec<u8> = (0..100_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    assert_eq!(secret.call(&[b"SET".as_slice(), b"large", &large]), Frame::Simple(b"OK".to_vec()));
    assert!(secret.call(&["GET", "large"]).as_bytes() == Some(&large), "it came back as another");
    // Pushes.
    secret.call(&["SUBSCRIBE", "news"]);
    assert_eq!(plain.show("PUBLISH news rain"), "(integer) 1");
    assert!(secret.receive().expect("a push").to_string().contains("rain"));
    let told = plain.call(&["INFO", "clients"]).to_string();
    assert!(told.contains("connected_clients:2"), "{told}");
}

#[test]
fn who_is_let_in_is_the_operators_choice() {
    let stand = Stand::new(&[]);
    let stranger = Authority::new("stranger");
    let with = |own: &Signed| stand.authority.client(Some(own));
    assert!(stand.refusal(&stand.authority.client(None)).contains("asks for a certificate"));
    assert!(stand.refusal(&with(&stranger.sign("stranger"))).contains("does not trust who has signed"));
    assert!(stand.refusal(&with(&stand.authority.sign_until("late", 2001))).contains("has expired"));
    assert!(stand.refusal(&stranger.client(None)).contains("signed by nobody who is trusted here"));
    stand.wait_for_log("was cut before keys were agreed: the other side shows no certificate");
    let mut admin = stand.client();
    assert_eq!(admin.show("CONFIG SET tls-auth-clients optional"), "OK");
    let mut nobody = TlsClient::connect(stand.port, &stand.authority.client(None)).expect("a connection");
    assert_eq!(nobody.show("PING"), "PONG");
    assert!(stand.refusal(&with(&stranger.sign("other"))).contains("does not trust who has signed"));
    assert_eq!(admin.show("CONFIG SET tls-auth-clients no"), "OK");
    let mut anybody = TlsClient::connect(stand.port, &with(&stranger.sign("third"))).expect("a connection");
    assert_eq!(anybody.show("PING"), "PONG");
    assert_eq!(nobody.show("PING"), "PONG");
}

#[test]
fn who_speaks_no_tls_or_says_nothing_is_cut_and_nothing_else_happens() {
    let stand = Stand::new(&[]);
    let mut silent = TcpStream::connect(("127.0.0.1", stand.port)).expect("a connection");
    let mut client = Client::try_connect(stand.port).expect("a connection");
    client.send(&["SET", "city", "Porto"]).expect("a connection");
    assert!(client.receive().is_err());
    stand.wait_for_log("was cut before keys were agreed: the other side speaks no TLS");
    let mut good = stand.client();
    assert_eq!(good.show("EXISTS city"), "(integer) 0");
    silent.set_read_timeout(Some(PATIENCE)).expect("a socket");
    assert!(matches!(silent.read(&mut [0]), Ok(0) | Err(_)));
    stand.wait_for_log("it took too long");
    // One that goes away in the middle of agreeing on keys. Lines about strangers come at most a few a second.
    thread::sleep(Duration::from_millis(500));
    silent = TcpStream::connect(("127.0.0.1", stand.port)).expect("a connection");
    silent.write_all(&[22, 3, 1, 2, 0, 1]).expect("room");
    drop(silent);
    stand.wait_for_log("closed the connection before keys were agreed");
    assert_eq!(good.show("PING"), "PONG");
}

#[test]
fn a_client_that_does_not_read_costs_the_server_little() {
    let stand = Stand::new(&[]);
    let mut client = stand.client();
    let value = vec![b'x'; 1 << 20];
    assert_eq!(client.call(&[b"SET".as_slice(), b"large", &value]), Frame::Simple(b"OK".to_vec()));
    let before = stand.server.resident_bytes();
    let mut slow = stand.client();
    slow.stream.sock.set_write_timeout(Some(Duration::from_secs(2))).expect("a socket");
    // Four gigabytes of answers; the server stops reading long before.
    for _ in 0..4_000 {
        if slow.send(&["GET", "large"]).is_err() {
            break;
        }
    }
    assert_eq!(client.show("PING"), "PONG");
    let grown = stand.server.resident_bytes().saturating_sub(before);
    assert!(grown < 200 << 20, "{grown} bytes for a client that does not read");
    // It goes on where it was.
    for _ in 0..50 {
        assert_eq!(slow.receive().expect("a reply").as_bytes().map(<[u8]>::len), Some(value.len()));
    }
}

#[test]
fn certificates_are_exchanged_while_it_serves() {
    let stand = Stand::new(&[]);
    let mut before = stand.client();
    let next = Authority::new("next");
    let own = next.sign("server");
    let set = ["tls-cert-file", &own.certificate, "tls-key-file", &own.key, "tls-ca-cert-file", &next.path()];
    let refused = before.show(&format!("CONFIG SET {}", set[..2].join(" ")));
    assert!(refused.contains("Unable to update TLS configuration"), "{refused}");
    assert!(refused.contains("does not belong to the private key"), "{refused}");
    assert!(before.show("CONFIG GET tls-ca-cert-file").contains(&stand.authority.path()));
    assert_eq!(before.show(&format!("CONFIG SET {}", set.join(" "))), "OK");
    assert!(stand.refusal(&stand.authority.client(Some(&stand.own()))).contains("signed by nobody"));
    let mut after = TlsClient::connect(stand.port, &next.client(Some(&next.sign("client")))).expect("a connection");
    assert_eq!(after.show("PING"), "PONG");
    assert_eq!(before.show("PING"), "PONG");
    // The same names with other contents count as well.
    let renewed = next.sign_until("server", 2001);
    assert_eq!(renewed.certificate, own.certificate);
    assert_eq!(after.show(&format!("CONFIG SET tls-cert-file {} tls-key-file {}", own.certificate, own.key)), "OK");
    assert!(stand.refusal(&next.client(Some(&next.sign("client")))).contains("has expired"));
}

#[test]
fn a_server_says_what_keeps_it_from_speaking_tls() {
    let (authority, folder) = (Authority::new("authority"), Folder::new());
    let own = authority.sign("server");
    let start = |words: &[&str]| {
        let options = ServerOptions::new(&folder.path().join("data")).extra(&["--tls-port", "1"]).extra(words);
        let exit = Server::try_start(&options).err().expect("it should not start");
        exit.log.lines().last().unwrap_or_default().to_owned()
    };
    assert_eq!(start(&[]), "holdfast: tls-cert-file: needed for TLS, and not set");
    let (certificate, key) = (own.certificate.as_str(), own.key.as_str());
    let told = start(&["--tls-cert-file", certificate, "--tls-key-file", certificate]);
    assert_eq!(
        told,
        format!("holdfast: tls-key-file: {certificate} holds no private key in PEM form without a password")
    );
    let told = start(&["--tls-cert-file", certificate, "--tls-key-file", key]);
    assert!(told.starts_with("holdfast: tls-ca-cert-file: this or tls-ca-cert-dir must name"), "{told}");
    let told = start(&["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-key-file-pass", "x"]);
    assert!(told.starts_with("holdfast: tls-key-file-pass: keys with a password cannot be read"), "{told}");
}

#[test]
fn redis_cli_and_openssl_talk_to_it() {
    if missing("redis-cli") || missing("openssl") {
        return;
    }
    let stand = Stand::new(&["--port", "0"]);
    let (own, authority) = (stand.own(), stand.authority.path());
    let port = stand.port.to_string();
    let cli = |words: &[&str]| {
        let secured = ["-p", &port, "--tls", "--cacert", &authority, "--cert", &own.certificate, "--key", &own.key];
        output(Command::new("redis-cli").args(secured).args(words)).trim_end().to_owned()
    };
    assert_eq!(cli(&["SET", "city", "Lisbon"]), "OK");
    assert_eq!(cli(&["GET", "city"]), "Lisbon");
    assert!(cli(&["INFO", "server"]).contains(&format!("tcp_port:{port}")));
    let mut talk = Command::new("openssl")
        .args(["s_client", "-quiet", "-connect", &format!("127.0.0.1:{port}"), "-CAfile", &authority])
        .args(["-cert", &own.certificate, "-key", &own.key, "-tls1_2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl runs");
    talk.stdin.as_mut().expect("a pipe").write_all(b"GET city\r\nQUIT\r\n").expect("a pipe that is read");
    let told = talk.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&told.stdout), "$6\r\nLisbon\r\n+OK\r\n");
}

#[test]
fn certificates_made_as_the_manual_says_are_good() {
    if missing("openssl") {
        return;
    }
    let page = include_str!("../../../../docs/manual/tls.md");
    let lines: Vec<&str> =
        page.lines().skip_while(|line| !line.starts_with("openssl")).take_while(|line| *line != "```").collect();
    assert_eq!(lines.len(), 4);
    let folder = Folder::new();
    output(Command::new("sh").current_dir(folder.path()).args(["-e", "-c", &lines.join("\n")]));
    let file = |name: &str| folder.path().join(name).display().to_string();
    let port = free_port();
    let options = ServerOptions::new(&folder.path().join("data")).extra(&["--tls-port", &port.to_string()]).extra(&[
        "--tls-cert-file",
        &file("node1.pem"),
        "--tls-key-file",
        &file("node1.key"),
        "--tls-ca-cert-file",
        &file("ca.pem"),
    ]);
    let _server = Server::start(&options);
    let options = edge::ClientOptions {
        authorities: Some(file("ca.pem").into()),
        own: Some((file("node1.pem").into(), file("node1.key").into())),
        ..edge::ClientOptions::default()
    };
    let security = ClientSecurity::new(&options).expect("good files");
    assert_eq!(TlsClient::connect(port, &security).expect("a connection").show("PING"), "PONG");
}

#[test]
fn the_tools_of_the_binary_speak_tls() {
    let stand = Stand::new(&[]);
    let own = stand.own();
    let server = format!("127.0.0.1:{}", stand.port);
    let authority = stand.authority.path();
    let secured = ["--tls", "--cacert", &authority, "--cert", &own.certificate, "--key", &own.key];
    let run = |words: &[&str]| output(Command::new(binary()).args(words).args(secured));
    stand.client().call(&["SET", "city", "Lisbon"]);
    assert!(run(&["cluster", "status", "--server", &server]).starts_with("1 node"));
    let backup = stand.folder.path().join("backup");
    let told = run(&["backup", "create", backup.to_str().expect("a name"), "--server", &server]);
    assert!(told.contains("groups as of"), "{told}");
    let told = run(&["bench", &server, "--clients", "4", "--seconds", "0.5", "--warmup", "0", "--keys", "100"]);
    assert!(!told.contains("errors: 1"), "{told}");
    let refused = Command::new(binary()).args(["cluster", "status", "--server", &server, "--tls"]).output();
    let refused = String::from_utf8_lossy(&refused.expect("it runs").stderr).into_owned();
    assert!(refused.contains("whom to trust"), "{refused}");
}

/// Nodes on this machine, each with its own words.
struct Nodes {
    servers: Vec<Server>,
    ports: Vec<u16>,
    folders: Vec<Folder>,
}

impl Nodes {
    fn new() -> Self {
        Self { servers: Vec::new(), ports: Vec::new(), folders: Vec::new() }
    }

    /// Starts a node that joins the first.
    fn join(&mut self, more: &[String]) -> &Server {
        let (folder, port) = (Folder::new(), free_port());
        let mut words = ["--cores", "2", "--cluster-port", &port.to_string()].map(str::to_owned).to_vec();
        if let Some(first) = self.ports.first() {
            words.extend(["--join".to_owned(), format!("127.0.0.1:{first}")]);
        }
        words.extend_from_slice(more);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let is_first = self.servers.is_empty();
        let options = ServerOptions::new(&folder.path().join("data")).extra(&words);
        let others: Vec<_> = self.folders.iter().map(|folder| folder.path().join("data")).collect();
        let options = options.invited_by(others.iter().map(|data| data.as_path()));
        self.servers.push(if is_first { Server::start(&options) } else { Server::spawn(&options) });
        self.ports.push(port);
        self.folders.push(folder);
        self.servers.last().expect("just pushed")
    }

    /// Waits until a node says something of another.
    #[track_caller]
    fn wait_for_info(&self, node: usize, words: &str) -> String {
        let begun = Instant::now();
        loop {
            let told = Client::try_connect(self.servers[node].port())
                .and_then(|mut client| client.try_call(&["INFO", "cluster"]))
                .map(|reply| reply.to_string())
                .unwrap_or_default();
            if told.contains(words) {
                return told;
            }
            assert!(begun.elapsed() < PATIENCE, "not told: {words}\n{told}\n{}", self.servers[node].log());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until a figure of a node's links is at least so large.
    #[track_caller]
    fn wait_for_figure(&self, node: usize, name: &str, least: u64) -> String {
        let begun = Instant::now();
        loop {
            let told = self.wait_for_info(node, name);
            if link_figure(&told, name) >= least {
                return told;
            }
            assert!(begun.elapsed() < PATIENCE, "{name} below {least}\n{told}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the last node knows of so many voters in each group.
    #[track_caller]
    fn wait_for_voters(&self, count: usize) {
        let begun = Instant::now();
        let last = self.servers.last().expect("there are nodes");
        while (0..2).any(|group| last_voters(&last.log(), group) < count) {
            assert!(begun.elapsed() < PATIENCE, "not {count} voters\n{}", last.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    fn say(&self, node: usize, request: &str) -> String {
        let begun = Instant::now();
        loop {
            let answer = self.servers[node].client().show(request);
            if !answer.starts_with("(error)") {
                return answer;
            }
            assert!(begun.elapsed() < PATIENCE, "{request}: {answer}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn nodes_that_show_certificates_of_one_authority_make_a_cluster() {
    let authority = Authority::new("authority");
    let secured = |name: &str| words(&authority, &authority.sign(name), &["--tls-cluster", "yes", "--replicas", "3"]);
    let mut nodes = Nodes::new();
    for name in ["one", "two", "three"] {
        nodes.join(&secured(name));
    }
    nodes.wait_for_info(0, "cluster_nodes:3");
    nodes.wait_for_info(0, "up=1,tls=1");
    let value = "x".repeat(300_000);
    for key in 0..20 {
        assert_eq!(nodes.say(key % 3, &format!("SET key{key} {value}{key}")), "OK");
    }
    for key in 0..20 {
        assert_eq!(
            nodes.say((key + 1) % 3, &format!("STRLEN key{key}")),
            format!("(integer) {}", 300_000 + key.to_string().len())
        );
    }
    // A node that speaks no TLS, one that nobody knows, and one that comes too late.
    let plain = nodes.join(&["--tls-cluster", "no"].map(str::to_owned));
    wait_for_log(plain, "cannot join yet");
    wait_for_log(plain, "takes encrypted links only");
    wait_for_log(&nodes.servers[0], "it speaks no TLS, and this node takes encrypted links only");
    let stranger = Authority::new("stranger");
    let mut words_of_stranger = words(&authority, &stranger.sign("stranger"), &["--tls-cluster", "yes"]);
    wait_for_log(nodes.join(&words_of_stranger), "does not trust who has signed this side's certificate");
    words_of_stranger = words(&stranger, &stranger.sign("deaf"), &["--tls-cluster", "yes"]);
    wait_for_log(nodes.join(&words_of_stranger), "certificate is signed by nobody who is trusted here");
    let late = words(&authority, &authority.sign_until("late", 2001), &["--tls-cluster", "yes"]);
    wait_for_log(nodes.join(&late), "this side's certificate has expired");
    assert_eq!(nodes.say(0, "SET still there"), "OK");
}

/// A figure of all links that a node tells of, together: nodes have random numbers, so none of them is the first.
fn link_figure(told: &str, name: &str) -> u64 {
    told.split("cluster_link_node")
        .skip(1)
        .map(|link| {
            let (_, rest) = link.split_once(&format!("{name}=")).expect("a figure");
            rest.split(',').next().expect("it ends").parse::<u64>().expect("a number")
        })
        .sum()
}

#[test]
fn links_are_compressed_within_tls_and_without_and_each_end_decides_for_itself() {
    let authority = Authority::new("authority");
    let compressed = ["--cluster-compression-level", "3"].map(str::to_owned);
    let secured = words(&authority, &authority.sign("node"), &["--tls-cluster", "yes"]);
    let plain = ["--tls-cluster", "no"].map(str::to_owned).to_vec();
    let own = (vec![], "up=1,tls=1,compressed=1");
    for (words, expected) in [(plain, "up=1,tls=0,compressed=1"), (secured, "up=1,tls=1,compressed=1"), own] {
        let mut nodes = Nodes::new();
        nodes.join(&[&words[..], &compressed].concat());
        nodes.join(&words);
        nodes.join(&[&words[..], &compressed].concat());
        nodes.wait_for_info(0, "cluster_nodes:3");
        nodes.wait_for_info(0, expected);
        nodes.wait_for_info(1, &expected.replace("compressed=1", "compressed=0"));
        nodes.wait_for_voters(3);
        let regular = "customer:000123:balance;".repeat(4);
        let mut noise = 1u64;
        let random = std::iter::repeat_with(|| {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(b'a' + (noise >> 59) as u8 % 26)
        });
        let random: String = random.take(300_000).collect();
        // Much that becomes little, little that stays as it is, and a few large ones of either kind.
        for key in 0..300 {
            assert_eq!(nodes.say(key % 3, &format!("SET customer:{key:06} {regular}{key}")), "OK");
        }
        // No matter who leads, these go over a link of the node that is asked, and figures may be a second old.
        let (regular, count) = (regular.repeat(1_000), 20);
        for key in 0..count {
            assert_eq!(nodes.say(key % 2, &format!("SET customers:{key} {regular}")), "OK");
        }
        let expected = (count * regular.len() / 2) as u64;
        let told = nodes.wait_for_figure(0, "carried_bytes", expected);
        let (sent, carried) = (link_figure(&told, "sent_bytes"), link_figure(&told, "carried_bytes"));
        assert!(sent > 5_000 && sent * 2 < carried, "{told}");
        nodes.wait_for_figure(1, "carried_bytes", expected);
        wait_for("what is not compressed is sent as it is", || {
            let told = nodes.wait_for_info(1, "carried_bytes");
            link_figure(&told, "sent_bytes") == link_figure(&told, "carried_bytes")
        });
        for key in 0..3 {
            assert_eq!(nodes.say(key, &format!("SET random{key} {random}{key}")), "OK");
            assert_eq!(nodes.say(key, &format!("SETRANGE zeros{key} 20000000 end")), "(integer) 20000003");
        }
        // What was cut starts over.
        nodes.servers.pop().expect("three").kill();
        assert_eq!(nodes.say(0, "SET meanwhile yes"), "OK");
        let data = nodes.folders[2].path().join("data");
        let port = nodes.ports[2].to_string();
        let mut last = vec!["--cores".to_owned(), "2".to_owned(), "--cluster-port".to_owned(), port];
        last.extend(words.iter().chain(&compressed).cloned());
        let last: Vec<&str> = last.iter().map(String::as_str).collect();
        nodes.servers.push(Server::start(&ServerOptions::new(&data).extra(&last)));
        assert_eq!(nodes.say(2, "GET meanwhile"), "\"yes\"");
        for key in 0..3 {
            assert_eq!(nodes.say((key + 1) % 3, &format!("STRLEN random{key}")), "(integer) 300001");
            assert_eq!(nodes.say((key + 1) % 3, &format!("GETRANGE zeros{key} 20000000 -1")), "\"end\"");
        }
    }
}

#[test]
fn a_node_that_forgets_tls_says_so_and_comes_back_with_it() {
    let authority = Authority::new("authority");
    let secured = |name: &str| words(&authority, &authority.sign(name), &["--tls-cluster", "yes"]);
    let mut nodes = Nodes::new();
    nodes.join(&secured("one"));
    nodes.join(&secured("two"));
    nodes.wait_for_info(0, "up=1,tls=1");
    nodes.wait_for_voters(2);
    assert_eq!(nodes.say(0, "SET city Lisbon"), "OK");
    let port = nodes.ports[1];
    let data = nodes.folders[1].path().join("data");
    nodes.servers.remove(1).kill();
    // The same node without TLS: either side says why there is no link.
    let options = ServerOptions::new(&data).extra(&["--cores", "2", "--cluster-port", &port.to_string()]);
    let forgetful = Server::spawn(&options);
    nodes.wait_for_info(0, "last_cut=the other side speaks no TLS");
    wait_for_log(&forgetful, "the other side takes encrypted links only, and this node speaks no TLS (tls-cluster)");
    wait_for_log(&forgetful, "it speaks TLS, and this node does not (tls-cluster)");
    forgetful.kill();
    let mut again = secured("two");
    again.extend(["--cores", "2", "--cluster-port", &port.to_string()].map(str::to_owned));
    let again: Vec<&str> = again.iter().map(String::as_str).collect();
    nodes.servers.push(Server::spawn(&ServerOptions::new(&data).extra(&again)));
    nodes.wait_for_info(0, "up=1,tls=1");
    assert_eq!(nodes.say(0, "GET city"), "\"Lisbon\"");
}
