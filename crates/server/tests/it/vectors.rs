//! Vector sets outlive a crash with their graph, from a checkpoint and from the log, and go to another server and back.

use resp::Frame;

use crate::harness::{Client, Folder, Server, ServerOptions};

fn add(client: &mut Client, round: u64) {
    for number in 0..60 {
        let place = round * 50 + number;
        let (x, y) = (place * 37 % 101, place * 53 % 89);
        client.show(&format!("VADD places VALUES 3 {x} {y} 7 place:{place} SETATTR {{\"n\":{place}}}"));
        client.show(&format!("VADD bits VALUES 3 {x}.5 -{y} 1 place:{place} BIN"));
    }
    client.show("MULTI");
    client.show("VREM places place:1");
    client.show("COPY places copy REPLACE");
    assert!(!client.show("EXEC").contains("error"), "a transaction on vector sets");
    let script = "return redis.call('VSIM', KEYS[1], 'VALUES', '3', '1', '2', '3', 'COUNT', '2')";
    assert_eq!(client.call(&["EVAL", script, "1", "places"]).elements().map(<[Frame]>::len), Some(2));
}

fn told(client: &mut Client) -> Vec<String> {
    let digests = ["places", "bits", "copy"].map(|key| client.show(&format!("DEBUG DIGEST-VALUE {key}")));
    let found =
        ["places VALUES 3 50 60 7", "bits VALUES 3 1 -1 1"].map(|of| client.show(&format!("VSIM {of} WITHSCORES")));
    digests.into_iter().chain(found).collect()
}

#[test]
fn vector_sets_are_the_same_after_a_crash_and_elsewhere() {
    let folder = Folder::new();
    let options = ServerOptions::new(&folder.path().join("data"));
    let mut server = Server::start(&options);
    let mut client = server.client();
    for round in 0..3 {
        add(&mut client, round);
        if round == 1 {
            assert_eq!(client.show("SAVE"), "OK");
        }
        let before = told(&mut client);
        server.kill();
        server = Server::start(&options);
        client = server.client();
        assert_eq!(told(&mut client), before, "round {round}");
    }
    assert!(client.show("VINFO places").contains("int8"));
    let other = Server::start(&ServerOptions::new(&folder.path().join("other")));
    let mut there = other.client();
    for key in ["places", "bits", "copy"] {
        let dump = client.call(&["DUMP", key]);
        let reply = there.call(&[&b"RESTORE"[..], key.as_bytes(), b"0", dump.as_bytes().expect("a dump")]);
        assert_eq!(reply, Frame::Simple("OK".into()), "{key}");
    }
    // The graph goes on alike.
    add(&mut client, 3);
    add(&mut there, 3);
    assert_eq!(told(&mut there), told(&mut client));
}
