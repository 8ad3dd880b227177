//! A member's data directory is copied and started elsewhere: the copy is refused and ends, the member goes on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::cluster::Cluster;
use crate::harness::{Client, Folder, IsOver, PATIENCE, Server, ServerOptions, copy_folder, free_port, wait_for};

/// Asks through one node until told to stop; the first answer that is an error.
fn use_on(port: u16, is_over: &AtomicBool, count: &AtomicU64) -> Option<String> {
    let mut client = Client::try_connect(port)?;
    client.is_patient_for(PATIENCE);
    while !is_over.load(Ordering::Relaxed) {
        for request in ["INCR counter:a", "GET counter:a", "INCR counter:b", "MGET counter:a counter:b counter:c"] {
            let answer = client.show(request);
            if answer.starts_with("(error)") {
                return Some(format!("{request}: {answer}"));
            }
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
    None
}

/// Other nodes must find it elsewhere.
fn move_cluster_port(options: &mut ServerOptions) {
    let place = options.extra.iter().position(|word| word == "--cluster-port").expect("it has one");
    options.extra[place + 1] = free_port().to_string();
}

#[test]
fn a_copy_of_a_member_is_named_and_ends_and_no_client_of_the_member_notices() {
    let mut cluster = Cluster::start(3);
    let mut client = cluster.client(2);
    for number in 0..100 {
        assert_eq!(cluster.ask(&mut client, &format!("SET key:{number} {number}")), "OK");
    }
    let copy = Folder::new();
    let directory = copy.path().join("data");
    copy_folder(&cluster.data_folder(2), &directory);
    let mut options = cluster.options_of(2);
    (options.data_folder, options.port) = (directory, free_port());
    move_cluster_port(&mut options);

    let (is_over, count) = (&AtomicBool::new(false), &AtomicU64::new(0));
    let port = cluster.options_of(2).port;
    let error = thread::scope(|scope| {
        let _is_over = IsOver(is_over);
        let user = scope.spawn(move || use_on(port, is_over, count));
        let mut copy = Server::spawn(&options);
        copy.wait_for_log("this is a copy: another process is node");
        let exit = copy.wait();
        assert!(!exit.status.success(), "{}", exit.log);
        let before = count.load(Ordering::Relaxed);
        wait_for("the user gets answers", || user.is_finished() || count.load(Ordering::Relaxed) > before + 100);
        is_over.store(true, Ordering::Relaxed);
        user.join().expect("it does not panic")
    });
    assert_eq!(error, None);
    let number = std::fs::read_to_string(cluster.data_folder(2).join("identity")).expect("an identity");
    let number = number.lines().find_map(|line| line.strip_prefix("node ")).expect("a line").to_owned();
    let words = format!("refuses a copy of node {number} that calls from ");
    cluster.wait_until("the others name it", |this| (0..2).any(|node| this.node(node).log().contains(&words)));
    // The tools call nodes by where clients find them.
    let words = "refuses a copy of ";
    for node in 0..3 {
        cluster.wait_until("it is on the timeline", |this| this.tool(node, &["timeline"]).1.contains(words));
        cluster.wait_until("the status shows it", |this| this.tool(node, &["status"]).1.contains(words));
    }

    // The member itself goes where it likes, and starts again as fast as it can.
    for _ in 0..2 {
        cluster.kill(2);
        let port = free_port();
        let options = cluster.options_mut(2);
        options.port = port;
        move_cluster_port(options);
        cluster.restart(2);
        let mut client = cluster.client(2);
        assert_eq!(cluster.ask(&mut client, "GET key:99"), "\"99\"");
        cluster.wait_until("the others know where it is", |this| {
            this.tool(0, &["status"]).1.contains(&format!("127.0.0.1:{port} "))
        });
    }
}
