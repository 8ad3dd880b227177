//! Requests with an id, against everything that makes a client ask again: cut connections, killed leaders, restarts.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use resp::Frame;
use stdx::Prng;

use crate::cluster::Cluster;
use crate::harness::{Client, IsOver, PATIENCE, say};

/// How long a client waits for an answer before it asks another node.
const ANSWER_MAX: Duration = Duration::from_secs(3);

/// What each client counts up, by one request and by a transaction over two keys.
const KEYS: [&str; 3] = ["counter", "left", "right"];

/// Where a client may go: `None` while the node is down.
type Ports = Vec<Option<u16>>;

/// Sends what one id stands for, from its beginning. An answer is the reply to its last command.
fn attempt(client: &mut Client, id: &str, words: &[&[&str]], cut_after: Option<Duration>) -> Option<Frame> {
    client.send(&["CLIENT", "REQUESTID", id]).ok()?;
    words.iter().try_for_each(|words| client.send(words)).ok()?;
    if let Some(pause) = cut_after {
        thread::sleep(pause);
        client.close();
        return None;
    }
    let mut last = client.receive().ok()?;
    for _ in words {
        last = client.receive().ok()?;
    }
    Some(last)
}

/// Asks one node after the other until there is an answer, and says how often it had to ask.
fn once(ports: &Ports, prng: &mut Prng, id: &str, words: &[&[&str]]) -> (Frame, u32) {
    let begun = Instant::now();
    for asked in 1.. {
        assert!(begun.elapsed() < PATIENCE, "no answer to {id}");
        let port = ports[prng.below(ports.len() as u64) as usize];
        let Some(mut client) = port.and_then(Client::try_connect) else { continue };
        client.is_patient_for(ANSWER_MAX);
        let is_cut = asked == 1 && prng.chance(1, 2);
        let pause = is_cut.then(|| Duration::from_micros(prng.below(3_000)));
        match attempt(&mut client, id, words, pause) {
            Some(answer) if !answer.is_error() => return (answer, asked),
            Some(answer) => {
                let text = answer.to_string();
                let may_pass = ["TRYAGAIN", "CLUSTERDOWN", "LOADING", "EXECABORT"];
                assert!(may_pass.iter().any(|name| text.contains(name)), "{id}: {text}");
                thread::sleep(Duration::from_millis(20));
            }
            None => {}
        }
    }
    unreachable!("it asks until it is answered")
}

#[test]
fn every_id_counts_once_although_connections_are_cut_and_leaders_killed() {
    const CLIENTS: usize = 4;
    const IDS: u64 = 60;
    const KILLS: usize = 3;
    let mut cluster = Cluster::start(3);
    let ports: Ports = (0..3).map(|node| Some(cluster.node(node).port())).collect();
    let (done, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut again = 0;
    thread::scope(|scope| {
        let _is_over = IsOver(&is_over);
        let count = |seed: usize| {
            let (ports, done, is_over) = (&ports, &done, &is_over);
            scope.spawn(move || {
                let mut prng = Prng::new(seed as u64 + 1);
                let mut again = 0;
                let mut number = 0;
                // Until all kills have been seen, and no fewer than so many.
                while number < IDS || !is_over.load(Ordering::Acquire) {
                    let (one, two) = (format!("{seed}:{number}:one"), format!("{seed}:{number}:two"));
                    let (answer, asked) = once(ports, &mut prng, &one, &[&["INCR", KEYS[0]]]);
                    assert!(matches!(answer, Frame::Integer(_)), "{answer}");
                    let both: &[&[&str]] = &[&["MULTI"], &["INCR", KEYS[1]], &["INCR", KEYS[2]], &["EXEC"]];
                    let (answer, asked_both) = once(ports, &mut prng, &two, both);
                    let text = answer.to_string();
                    again += asked + asked_both - 2;
                    assert!(!text.is_empty());
                    number += 1;
                    done.fetch_add(1, Ordering::AcqRel);
                }
                (number, again)
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(count).collect();
        for _ in 0..KILLS {
            let before = done.load(Ordering::Acquire);
            let begun = Instant::now();
            while done.load(Ordering::Acquire) < before + CLIENTS * 10 && begun.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(5));
            }
            let leader = cluster.leader_of(KEYS[0]);
            cluster.kill(leader);
            cluster.restart(leader);
        }
        is_over.store(true, Ordering::Release);
        let mut total = 0;
        for client in clients {
            let (number, asked_again) = client.join().expect("it does not panic");
            total += number;
            again += asked_again;
        }
        assert!(again > 0, "nobody had to ask again");
        say(&format!("{total} ids of each kind, asked {again} times again"));
        // And once more after all nodes have been killed at once: the answers are on disk.
        (0..3).for_each(|node| cluster.kill(node));
        for node in 0..3 {
            cluster.nodes[node] = Some(cluster.spawn_again(node));
        }
        cluster.wait_for_answer(0);
        let mut prng = Prng::new(99);
        for seed in 0..CLIENTS {
            let (answer, _) = once(&ports, &mut prng, &format!("{seed}:0:one"), &[&["INCR", KEYS[0]]]);
            assert!(matches!(answer, Frame::Integer(_)), "{answer}");
        }
        let mut client = cluster.client(0);
        for key in KEYS {
            let counted = cluster.ask(&mut client, &format!("GET {key}"));
            assert_eq!(counted, format!("\"{total}\""), "{key}: each id counts once");
        }
    });
}
