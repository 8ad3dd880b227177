//! Sketches outlive a crash, from a checkpoint and from the log, and come the same again from every replay.

use crate::harness::{Client, Folder, Server, ServerOptions};

const KEYS: [&str; 7] = ["bloom", "large", "cuckoo", "counts", "top", "latency", "sum"];

fn add(client: &mut Client, round: u64) {
    for number in 0..100 {
        let item = format!("item:{}", round * 50 + number);
        let lines = [
            format!("BF.ADD bloom {item}"),
            format!("BF.ADD large {item}"),
            format!("CF.ADD cuckoo {item}"),
            format!("CMS.INCRBY counts {item} {number}"),
            format!("TDIGEST.ADD latency {number}.25 {round}"),
            // Counters meet here, so that chance decides; and in a script it must decide twice the same.
            format!("TOPK.ADD top {item}"),
        ];
        for line in &lines {
            client.send(&line.split(' ').collect::<Vec<_>>()).expect("a connection");
        }
        lines.iter().for_each(|_| _ = client.receive().expect("a reply"));
        let script = "redis.call('TOPK.ADD', KEYS[1], ARGV[1]) return redis.call('TOPK.ADD', KEYS[1], ARGV[1], 'x')";
        client.call(&["EVAL", script, "1", "top", &item]);
    }
    client.show("MULTI");
    client.show("TDIGEST.MERGE sum 1 latency");
    client.show("CF.DEL cuckoo item:1");
    assert!(!client.show("EXEC").contains("error"), "a transaction on sketches");
}

fn digests(client: &mut Client) -> Vec<String> {
    KEYS.iter().map(|key| client.show(&format!("DEBUG DIGEST-VALUE {key}"))).collect()
}

#[test]
fn sketches_are_the_same_after_a_crash() {
    let folder = Folder::new();
    let options = ServerOptions::new(&folder.path().join("data"));
    let mut server = Server::start(&options);
    let mut client = server.client();
    assert_eq!(client.show("BF.RESERVE large 0.001 500000000"), "OK");
    let reserved: u64 =
        client.show("MEMORY USAGE large").trim_start_matches("(integer) ").parse().expect("a number of bytes");
    assert!(reserved < 64 << 10, "{reserved} bytes for a filter in which nothing is");
    assert_eq!(client.show("CMS.INITBYDIM counts 5000 4"), "OK");
    assert_eq!(client.show("TOPK.RESERVE top 5 3 2 0.9"), "OK");
    assert_eq!(client.show("TDIGEST.CREATE latency"), "OK");
    assert_eq!(client.show("TDIGEST.CREATE sum COMPRESSION 50"), "OK");
    for round in 0..3 {
        add(&mut client, round);
        if round == 1 {
            assert_eq!(client.show("SAVE"), "OK");
        }
        let before = digests(&mut client);
        server.kill();
        server = Server::start(&options);
        client = server.client();
        assert_eq!(digests(&mut client), before, "round {round}");
    }
    assert_eq!(client.show("BF.MEXISTS large item:1 item:199 other"), "[(integer) 1, (integer) 1, (integer) 0]");
    assert_eq!(client.show("CMS.QUERY counts item:10"), "[(integer) 10]");
    let modules = client.show("MODULE LIST");
    assert!(["ReJSON", "bf"].iter().all(|name| modules.contains(name)), "{modules}");
    assert!(client.show("HELLO 2").contains("ReJSON") && client.show("INFO modules").contains("name=bf,ver=20800"));
}
