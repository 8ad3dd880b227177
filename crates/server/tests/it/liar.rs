//! Forged frames at the port for other nodes, sent with every kind of certificate, and with none.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, SystemTime};

use edge::{ClientOptions, ClientSecurity, SecureStream};
use stdx::leb128;

use crate::cluster::Cluster;
use crate::harness::{AT_ONCE, Authority, Folder, PATIENCE, say, wait_for_some};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);

/// What a node answers to a greeting: see docs/formats/peer-link.md.
const ACCEPTED: u8 = 0;
const REMOVED: u8 = 4;
const NOT_INVITED: u8 = 8;
const WRONG_NUMBER: u8 = 9;
const ANOTHER_LIFE: u8 = 16;
const COPY: u8 = 17;

/// The lane of elections and heartbeats.
const VITAL: u8 = 0;

/// A number that no node of the cluster has.
const STRANGER: u64 = 77;

/// What the directory of a node says of it.
pub(crate) struct Identity {
    cluster: u128,
    pub(crate) node: u64,
    groups: u32,
}

impl Identity {
    pub(crate) fn of(cluster: &Cluster, node: usize) -> Self {
        let text = std::fs::read_to_string(cluster.data_folder(node).join("identity")).expect("a member has one");
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).expect("it is there").to_owned();
        Self {
            cluster: u128::from_str_radix(&field("cluster "), 16).expect("a number"),
            node: field("node ").parse().expect("a number"),
            groups: field("groups ").parse().expect("a number"),
        }
    }
}

/// Somebody who has come by an authority, or by none.
struct Liar {
    folder: Folder,
    address: String,
    to: Identity,
    shown: Option<(PathBuf, PathBuf)>,
}

impl Liar {
    /// Calls the first node.
    fn new(cluster: &Cluster) -> Self {
        let (address, to) = (cluster.cluster_address(0), Identity::of(cluster, 0));
        Self { folder: Folder::new(), address, to, shown: None }
    }

    /// Shows a certificate of the cluster's own authority from now on: it names this node, was made so long ago, and
    /// was good for a year.
    fn show(&mut self, cluster: &Cluster, node: u64, age: Duration) {
        let authority = edge::Authority::read(&cluster.data_folder(0)).expect("a file").expect("there is one");
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock");
        let (chain, key) = authority.issue_for(node, (now - age).as_secs(), YEAR);
        let own = [self.folder.path().join("own.pem"), self.folder.path().join("own.key")];
        let chain: String = chain.iter().map(|certificate| pem("CERTIFICATE", certificate)).collect();
        std::fs::write(&own[0], chain).expect("a file");
        std::fs::write(&own[1], pem("PRIVATE KEY", key.secret_der())).expect("a file");
        let [certificate, key] = own;
        self.shown = Some((certificate, key));
    }

    fn connect(&self) -> io::Result<SecureStream> {
        let socket = TcpStream::connect(&self.address)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let options = ClientOptions { is_insecure: true, own: self.shown.clone(), ..ClientOptions::default() };
        ClientSecurity::new(&options).expect("good files").connect(socket)
    }

    /// Calls itself this node: the connection, and what the other end says to that, if anything.
    fn call_as(&self, node: u64, life: u64) -> io::Result<(SecureStream, u8)> {
        let mut stream = self.connect()?;
        stream.write_all(&self.greeting(node, life))?;
        stream.flush()?;
        let mut answer = [0; 52];
        stream.read_exact(&mut answer).map_err(edge::in_words)?;
        Ok((stream, answer[8]))
    }

    fn greeting(&self, node: u64, life: u64) -> Vec<u8> {
        let mut bytes = b"HFPEER".to_vec();
        bytes.extend_from_slice(&10u16.to_le_bytes());
        bytes.push(VITAL);
        bytes.extend_from_slice(&self.to.cluster.to_le_bytes());
        bytes.extend_from_slice(&node.to_le_bytes());
        bytes.extend_from_slice(&self.to.node.to_le_bytes());
        bytes.extend_from_slice(&self.to.groups.to_le_bytes());
        bytes.push(0);
        bytes.extend_from_slice(&life.to_le_bytes());
        bytes.extend_from_slice(&[1, 2, 1]);
        let check = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&check.to_le_bytes());
        bytes
    }

    /// For each group: a heartbeat and a call for votes in a term near the end of all numbers, under the number of a
    /// member; and one with another life of that member. Whether all could be written.
    fn lie(&self, stream: &mut SecureStream, member: u64) -> bool {
        const HEARTBEAT: u8 = 7;
        const APPEND: u8 = 1;
        const VOTE: u8 = 5;
        let mut is_written = true;
        for group in 0..self.to.groups {
            for (kind, incarnation, term) in [(APPEND, 1, 1 << 62), (HEARTBEAT, 1 << 40, 1 << 61), (VOTE, 1, 1 << 61)] {
                let mut message = vec![1];
                message.extend_from_slice(&group.to_le_bytes());
                message.extend_from_slice(&[kind, 0]);
                for number in [member, self.to.node, incarnation, term, 0, 0, 1 << 50, 1 << 50, 0, 0] {
                    leb128::put(&mut message, number);
                }
                message.extend_from_slice(&[0, 0]);
                is_written &= stream.write_all(&frame(group, &message)).and_then(|()| stream.flush()).is_ok();
            }
        }
        is_written
    }
}

fn frame(group: u32, message: &[u8]) -> Vec<u8> {
    let mut body = group.to_le_bytes().to_vec();
    body.extend_from_slice(&u32::try_from(message.len()).expect("it is short").to_le_bytes());
    body.extend_from_slice(message);
    let mut frame = u32::try_from(body.len()).expect("it is short").to_le_bytes().to_vec();
    frame.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
    frame.extend_from_slice(&body);
    frame
}

fn pem(what: &str, bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for (place, chunk) in bytes.chunks(3).enumerate() {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | u32::from(chunk.get(at).copied().unwrap_or(0)));
        for at in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= chunk.len() { char::from(letter) } else { '=' });
        }
        if place % 16 == 15 {
            text.push('\n');
        }
    }
    format!("-----BEGIN {what}-----\n{text}\n-----END {what}-----\n")
}

/// Every group has the leader and the term that it had, and clients are served, after somebody has lied. On a busy
/// machine there may be an election that has nothing to do with that: so a lie that seems to disturb is told again, and
/// one that does would disturb each time.
#[track_caller]
fn is_undisturbed_by(cluster: &mut Cluster, before: &mut [Vec<String>; 2], story: &str, mut lie: impl FnMut()) {
    const TRIALS: usize = 4;
    for trial in 1..=TRIALS {
        lie();
        let mut client = cluster.client(0);
        for key in ["a", "b"] {
            let answer = cluster.ask(&mut client, &format!("INCR {key}"));
            assert!(answer.starts_with("(integer)"), "{story}: {answer}");
        }
        let after = standing(cluster);
        let is_believed = |term: &String| term.parse::<u64>().is_ok_and(|term| term > 1 << 60);
        assert!(!after[1].iter().any(is_believed), "{story}: {after:?}");
        if after == *before {
            return;
        }
        assert!(trial < TRIALS, "{story}: {before:?}, and then {after:?}");
        say(&format!("{story}: {before:?}, and then {after:?}: it is told again"));
        *before = cluster.wait_until_settled();
    }
}

fn standing(cluster: &Cluster) -> [Vec<String>; 2] {
    ["leader", "term"].map(|field| cluster.of_groups(0, field))
}

#[test]
fn forged_frames_do_nothing_whatever_certificate_they_come_with() {
    let mut cluster = Cluster::start(3);
    let log = |cluster: &Cluster| cluster.nodes[0].as_ref().expect("it runs").log();
    let member = Identity::of(&cluster, 1).node;

    let mut before = cluster.wait_until_settled();
    // None: who has no invitation is not let in.
    let mut liar = Liar::new(&cluster);
    is_undisturbed_by(&mut cluster, &mut before, "no certificate", || {
        let (mut stream, answer) = liar.call_as(member, 1).expect("an answer");
        assert_eq!(answer, NOT_INVITED);
        liar.lie(&mut stream, member);
    });

    // One that has expired.
    liar.show(&cluster, member, 2 * YEAR);
    is_undisturbed_by(&mut cluster, &mut before, "an expired certificate", || {
        let refused = liar.call_as(member, 1).err().map(|error| error.to_string());
        assert!(refused.as_deref().is_some_and(|why| why.contains("expired")), "{refused:?}");
    });

    // One of another authority.
    let authority = Authority::new("foreign");
    let foreign = authority.sign("node");
    liar.shown = Some((foreign.certificate.into(), foreign.key.into()));
    is_undisturbed_by(&mut cluster, &mut before, "a foreign certificate", || {
        let refused = liar.call_as(member, 1).err().map(|error| error.to_string());
        assert!(refused.as_deref().is_some_and(|why| why.contains("does not trust who has signed")), "{refused:?}");
    });

    // One of another node.
    liar.show(&cluster, STRANGER, Duration::ZERO);
    is_undisturbed_by(&mut cluster, &mut before, "a certificate of another node", || {
        let (mut stream, answer) = liar.call_as(member, 1).expect("an answer");
        assert_eq!(answer, WRONG_NUMBER);
        liar.lie(&mut stream, member);
    });

    // A good one of a member that runs: it is taken for a copy of that.
    liar.show(&cluster, member, Duration::ZERO);
    is_undisturbed_by(&mut cluster, &mut before, "a copy", || {
        let (mut stream, answer) = liar.call_as(member, 1).expect("an answer");
        assert!([ANOTHER_LIFE, COPY].contains(&answer), "{answer}");
        liar.lie(&mut stream, member);
    });

    // A good one of a node of its own, as every owner of the authority can make it. It is heard, and not believed.
    liar.show(&cluster, STRANGER, Duration::ZERO);
    for speaks_as in [member, STRANGER] {
        is_undisturbed_by(
            &mut cluster,
            &mut before,
            &format!("a node that nobody knows speaks as {speaks_as}"),
            || {
                let (mut stream, answer) = liar.call_as(STRANGER, 1).expect("an answer");
                assert_eq!(answer, ACCEPTED);
                liar.lie(&mut stream, speaks_as);
                thread::sleep(Duration::from_millis(500));
            },
        );
    }

    // A member that the cluster removes is cut off, and is not let in again.
    let removed = Identity::of(&cluster, 2).node;
    let address = cluster.address(2);
    cluster.kill(2);
    liar.show(&cluster, removed, Duration::ZERO);
    let mut stream = wait_for_some("it is taken for the member that is gone", || {
        let (stream, answer) = liar.call_as(removed, 1).expect("an answer");
        (answer == ACCEPTED).then_some(stream)
    });
    let (is_out, told) = cluster.tool(0, &["remove", &address]);
    assert!(is_out, "{told}");
    stream.sock.set_read_timeout(Some(AT_ONCE)).expect("a socket");
    let read = stream.read(&mut [0]);
    assert!(matches!(read, Ok(0)) || read.is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock), "cut off");
    liar.lie(&mut stream, removed);
    let (mut stream, answer) = liar.call_as(removed, 2).expect("an answer");
    assert_eq!(answer, REMOVED);
    liar.lie(&mut stream, removed);
    let mut client = cluster.client(0);
    assert!(cluster.ask(&mut client, "INCR a").starts_with("(integer)"));
    for words in
        ["it shows no certificate of this cluster", "has expired", "nobody who is trusted", "is that of another one"]
    {
        assert!(log(&cluster).contains(words), "{words}:\n{}", log(&cluster));
    }
}
