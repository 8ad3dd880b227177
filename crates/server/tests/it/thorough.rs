//! CLIENT DURABILITY ALL with real processes: what was acknowledged is with every voter, and a voter that is away is
//! waited for once.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use resp::Frame;

use crate::cluster::Cluster;
use crate::harness::{Client, binary, say, wait_for};

/// A client of a node that wants all voters to have what it changes.
fn thorough(cluster: &mut Cluster, node: usize) -> Client {
    cluster.wait_until("the cluster is at its level", |this| {
        this.try_client(node).is_some_and(|mut client| client.show("CLIENT DURABILITY all") == "OK")
    });
    let mut client = cluster.client(node);
    assert_eq!(client.show("CLIENT DURABILITY all"), "OK");
    client
}

/// Two of three are killed in the middle of writes, and lost: the third alone has all that was acknowledged.
#[test]
fn what_was_acknowledged_with_all_is_with_each_that_is_left() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader_of("count");
    let (gateway, left) = ((leader + 1) % 3, (leader + 2) % 3);
    let mut setter = cluster.client(gateway);
    assert_eq!(cluster.ask(&mut setter, "CONFIG SET appendfsync everysec"), "OK");
    let mut client = thorough(&mut cluster, gateway);
    let done = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&done);
    let writer = thread::spawn(move || {
        let (mut count, mut sum) = (0, 0);
        while let Some(Frame::Integer(found)) = client.try_call(&["INCR", "count"]) {
            count = found;
            let text = found.to_string();
            match client.try_call(&["MSET", "many:a", &text, "many:b", &text, "many:c", &text]) {
                Some(reply) if !reply.is_error() => sum = found,
                _ => break,
            }
            counted.fetch_add(1, Ordering::Relaxed);
        }
        (count, sum)
    });
    wait_for("some of it is acknowledged", || done.load(Ordering::Relaxed) > 20);
    cluster.kill(gateway);
    cluster.kill(leader);
    cluster.kill(left);
    let (count, sum) = writer.join().expect("it does not panic");
    let directory = cluster.data_folder(left).display().to_string();
    let output = Command::new(binary()).args(["recover", "--accept-loss", "--data-dir", &directory]).output();
    let output = output.expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    cluster.options_mut(left).environment.clear();
    cluster.restart(left);
    let mut client = cluster.client(left);
    let mut kept = |key: &str| -> i64 {
        let text = cluster.ask(&mut client, &format!("GET {key}"));
        text.trim_matches('"').parse().unwrap_or_default()
    };
    let found = kept("count");
    let many = ["many:a", "many:b", "many:c"].map(&mut kept);
    say(&format!("acknowledged {count} and {sum}, kept {found} and {many:?}"));
    assert!(found == count || found == count + 1, "{found} of {count}");
    assert!(many.iter().all(|value| *value == sum || *value == sum + 1), "{many:?} of {sum}");
}

#[test]
fn a_voter_that_is_away_is_named_and_waited_for_once() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader_of("count");
    let (gateway, away) = ((leader + 1) % 3, (leader + 2) % 3);
    let mut client = thorough(&mut cluster, gateway);
    assert_eq!(cluster.ask(&mut client, "INCR count"), "(integer) 1");
    let mut plain = cluster.client(gateway);
    cluster.node(away).signal("STOP");
    let asked = Instant::now();
    let told = client.show("INCR count");
    let waited = asked.elapsed();
    say(&format!("{waited:?}: {told}"));
    let name = cluster.address(away);
    let begins =
        "(error) UNCONFIRMED The change is done, and a majority has it on disk, but not every voter 5 s later: ";
    assert!(told.starts_with(begins) && told.contains(&name), "{told}");
    assert!(waited >= Duration::from_secs(5), "{waited:?}");
    let told = client.show("INCR count");
    assert!(told.starts_with("(error) NOREPLICAS Not done: ") && told.contains(&name), "{told}");
    // Who does not ask for it goes on, and so does this client for one request.
    assert_eq!(cluster.ask(&mut plain, "INCR count"), "(integer) 3");
    assert_eq!(client.show("CLIENT DURABILITY disk ONCE"), "OK");
    assert_eq!(client.show("INCR count"), "(integer) 4");
    assert!(client.show("CLIENT INFO").contains("durability=all"));
    cluster.node(away).signal("CONT");
    cluster.wait_until("all voters are there", |_| client.show("SET {count}there yes") == "OK");
    let answer = client.show("INCR count");
    assert_eq!(answer, "(integer) 5");
}
