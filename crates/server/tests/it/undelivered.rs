//! A client that waits for an element is gone before it can have got it: the element goes back.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::harness::{Client, Folder, Server, ServerOptions, say, wait_for};

/// More than any system takes for a client that reads nothing.
const REQUESTS_MAX: usize = 5_000;

/// Bytes that wait for a client because its socket takes no more.
fn waiting_bytes(other: &mut Client, address: &str) -> u64 {
    let list = other.show("CLIENT LIST");
    let line = list.split("\\n").find(|line| line.contains(&format!(" addr={address} "))).unwrap_or_default();
    let field = line.split(' ').find_map(|field| field.strip_prefix("omem="));
    field.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

#[test]
fn an_element_behind_what_a_client_does_not_read_goes_back_when_it_is_cut_off() {
    let folder = Folder::new();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")).extra(&["--cores", "2"]));
    let mut other = server.client();
    assert_eq!(other.show(&format!("SET large {}", "x".repeat(10_000))), "OK");
    assert_eq!(other.show("RPUSH queue b c"), "(integer) 2");

    let mut silent = be_silent(server.port(), &mut other);
    silent.write_all(b"BLMPOP 0 1 queue LEFT COUNT 2\r\n").expect("a socket");
    wait_for("the elements are taken", || other.show("LLEN queue") == "(integer) 0");
    assert_eq!(other.show("RPUSH queue d"), "(integer) 1");
    drop(silent);
    wait_for("they are back", || other.show("LLEN queue") == "(integer) 3");
    assert_eq!(other.show("LRANGE queue 0 -1"), "[\"b\", \"c\", \"d\"]");
    server.wait_for_log("was gone before it got what BLMPOP had taken: it is back");
}

/// Asks for something large, and reads nothing, until the system takes no more for it.
fn be_silent(port: u16, other: &mut Client) -> TcpStream {
    let mut silent = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    let address = silent.local_addr().expect("an address").to_string();
    let mut count = 0;
    while waiting_bytes(other, &address) == 0 {
        silent.write_all(b"GET large\r\n").expect("a socket");
        count += 1;
        assert!(count < REQUESTS_MAX, "the system takes everything");
        thread::sleep(Duration::from_millis(2));
    }
    // Until all has been answered.
    let mut before = 0;
    wait_for("it is at rest", || {
        thread::sleep(Duration::from_millis(100));
        let now = waiting_bytes(other, &address);
        std::mem::replace(&mut before, now) == now
    });
    assert!(before < 1 << 20, "{before} bytes: what it asks for next would wait");
    silent
}

#[test]
fn in_a_cluster_it_goes_back_wherever_the_list_is_led() {
    let mut cluster = Cluster::start(3);
    let mut other = cluster.client(0);
    assert_eq!(cluster.ask(&mut other, &format!("SET large {}", "x".repeat(10_000))), "OK");
    // Keys of both groups, which two nodes lead.
    for key in ["queue:1", "queue:2", "queue:3", "queue:4"] {
        let leader = cluster.leader_of(key);
        let mut silent = be_silent(cluster.options_of(0).port, &mut other);
        silent.write_all(format!("BRPOP {key} 0\r\n").as_bytes()).expect("a socket");
        thread::sleep(Duration::from_millis(50));
        assert_eq!(cluster.ask(&mut other, &format!("RPUSH {key} a b")), "(integer) 2");
        wait_for("it is taken", || other.show(&format!("LLEN {key}")) == "(integer) 1");
        drop(silent);
        wait_for("it is back", || other.show(&format!("LLEN {key}")) == "(integer) 2");
        let list = other.show(&format!("LRANGE {key} 0 -1"));
        assert_eq!(list, "[\"a\", \"b\"]", "{key}, led by node {leader}");
    }
}

#[test]
fn no_element_is_lost_or_doubled_while_clients_that_wait_come_and_go() {
    let folder = Folder::new();
    let server = Server::start(&ServerOptions::new(&folder.path().join("data")).extra(&["--cores", "2"]));
    let (mut pusher, port) = (server.client(), server.port());
    for number in 0..300 {
        // It may be cut off before, while or after something is taken for it, and reads nothing.
        let mut waiter = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        waiter.write_all(b"BLPOP queue 0\r\n").expect("a socket");
        if number % 3 == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        pusher.send(&["RPUSH", "queue", &number.to_string()]).expect("a connection");
        drop(waiter);
        pusher.receive().expect("an answer");
    }
    let left = |pusher: &mut Client, queue: &str| -> Vec<u64> {
        let left = pusher.show(&format!("LRANGE {queue} 0 -1"));
        left.split('"').filter_map(|word| word.parse().ok()).collect()
    };
    let all_have_gone = |pusher: &mut Client| {
        let told = pusher.show("INFO clients");
        told.contains("connected_clients:1\\r") && told.contains("blocked_clients:0\\r")
    };
    wait_for("those who waited have gone", || all_have_gone(&mut pusher));
    thread::sleep(Duration::from_millis(200));
    let found = left(&mut pusher, "queue");
    let mut sorted = found.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), found.len(), "an element is there twice: {found:?}");
    // Those that read what they are sent before they go: each element is with one of them, or in the list.
    let mut seen = Vec::new();
    for number in 1_000..1_300_u64 {
        let mut waiter = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        waiter.write_all(b"BLPOP other 0\r\n").expect("a socket");
        if number % 3 == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        pusher.send(&["RPUSH", "other", &number.to_string()]).expect("a connection");
        waiter.shutdown(Shutdown::Write).expect("a socket");
        pusher.receive().expect("an answer");
        let mut heard = String::new();
        waiter.read_to_string(&mut heard).expect("its end");
        seen.extend(heard.split("\r\n").filter_map(|line| line.parse::<u64>().ok()));
    }
    wait_for("those who waited have gone", || all_have_gone(&mut pusher));
    // An element that goes back may be under way.
    let mut all = Vec::new();
    wait_for("no element is lost, or there twice", || {
        all = [seen.clone(), left(&mut pusher, "other")].concat();
        all.sort_unstable();
        all.len() >= 300
    });
    assert_eq!(all, (1_000..1_300).collect::<Vec<_>>(), "an element is lost, or there twice");
    say(&format!("{} of 300 were read by those that waited", seen.len()));
}
