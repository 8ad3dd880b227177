//! Several cores with clients that ask for what lives on all of them, and with threads that step each other's cores.

use std::thread;
use std::time::Duration;

use crate::harness::{Client, Folder, Policy, Server, ServerOptions, wait_for};

const CLIENTS: usize = 8;
const ROUNDS: usize = 60;
const KEYS: usize = 12;

/// One client: rounds of a pipeline that changes and reads keys of all groups, and checks what comes back, in order.
fn play(mut client: Client, number: usize) {
    let key = |place: usize| format!("client:{number}:{place}");
    for round in 0..ROUNDS {
        for place in 0..KEYS {
            client.send(&["INCR".to_owned(), key(place)]).expect("a connection");
            // One of its own, behind its change, and one that nobody changes, which may be read before.
            client.send(&["GET".to_owned(), key(place)]).expect("a connection");
            client.send(&["GET".to_owned(), format!("fixed:{}", (place + number) % KEYS)]).expect("a connection");
        }
        for place in 0..KEYS {
            let count = (round + 1).to_string();
            let show = |client: &mut Client| client.receive().expect("a reply").to_string();
            assert_eq!(show(&mut client), format!("(integer) {count}").as_str(), "INCR {}", key(place));
            assert_eq!(show(&mut client), format!("\"{count}\""), "GET {}", key(place));
            assert_eq!(show(&mut client), format!("\"{}\"", (place + number) % KEYS));
        }
    }
}

fn figure(client: &mut Client, name: &str) -> u64 {
    let info = client.show("INFO stats");
    let (_, rest) = info.split_once(&format!("{name}:")).expect("a figure");
    rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a number")
}

#[test]
fn cores_that_step_each_other_answer_in_order_and_lose_nothing() {
    for policy in [Policy::Always, Policy::Everysec] {
        let folder = Folder::new();
        let options = ServerOptions::new(&folder.path().join("data")).policy(policy);
        let server = Server::start(&options.clone().extra(&["--cores", "3"]));
        let mut client = server.client();
        for place in 0..KEYS {
            client.call(&["SET".to_owned(), format!("fixed:{place}"), place.to_string()]);
        }
        let players: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let client = server.client();
                thread::spawn(move || play(client, number))
            })
            .collect();
        // They are spread and gathered meanwhile, all of them and some.
        for threads in [2, 3, 1, 3, 2, 1, 2] {
            thread::sleep(Duration::from_millis(30));
            assert_eq!(client.show(&format!("CONFIG SET core-threads {threads}")), "OK");
        }
        for player in players {
            player.join().expect("every reply in its place");
        }
        // Reports come four times a second. On a busy machine it may not have happened until now.
        let mut others = [0; 3].map(|_| server.client());
        wait_for("a core is stepped by the thread of another", || {
            for (number, other) in others.iter_mut().enumerate() {
                (0..KEYS)
                    .for_each(|place| other.send(&["GET".to_owned(), format!("fixed:{place}")]).expect("a socket"));
                (0..KEYS).for_each(|_| _ = other.receive().expect("a reply"));
                other.call(&["INCR".to_owned(), format!("other:{number}")]);
            }
            figure(&mut client, "core_helps") > 0
        });
        wait_for("there are as many threads as was said last", || figure(&mut client, "core_threads") == 2);
        assert!(server.stop().status.success());
        let again = Server::start(&options.extra(&["--cores", "1"]));
        let mut client = again.client();
        for number in 0..CLIENTS {
            for place in 0..KEYS {
                let reply = client.call(&["GET".to_owned(), format!("client:{number}:{place}")]);
                assert_eq!(reply.to_string(), format!("\"{ROUNDS}\""));
            }
        }
    }
}
