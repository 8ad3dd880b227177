//! Reads of groups that live on other cores, while nobody steps these.

use node::settings::Settings;

use crate::host::Host;
use crate::settings;

/// Cores that lend each other their groups.
fn host(core_count: u16, settings: Settings) -> Host {
    let mut host = Host::new(core_count, settings);
    host.lends = true;
    host
}

/// Keys for groups of all of three cores.
const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn posted(host: &mut Host, act: impl FnOnce(&mut Host)) -> u64 {
    let before = host.posted_count;
    act(host);
    host.posted_count - before
}

#[test]
fn a_read_of_a_group_of_another_core_needs_no_envelope() {
    let mut host = host(3, settings("always"));
    let client = host.connect(0);
    for key in KEYS {
        assert_eq!(host.run(client, &format!("SET {key} {key}")), "+OK");
    }
    let count = posted(&mut host, |host| {
        for key in KEYS {
            assert_eq!(host.run(client, &format!("GET {key}")), format!("$1 {key}"));
        }
        let all = KEYS.map(|key| format!("GET {key}")).join("\r\n");
        assert_eq!(host.run(client, &all), KEYS.map(|key| format!("$1 {key}")).join(" "));
    });
    assert_eq!(count, 0);
    host.lends = false;
    let count = posted(&mut host, |host| {
        KEYS.iter().for_each(|key| assert_eq!(host.run(client, &format!("GET {key}")), format!("$1 {key}")));
    });
    assert!(count > 0, "the keys live on several cores");
}

#[test]
fn a_read_does_not_overtake_a_change_of_its_client_that_is_on_its_way() {
    let mut host = host(3, settings("always"));
    let client = host.connect(0);
    for key in KEYS {
        host.send(client, format!("SET {key} 1\r\nGET {key}\r\nINCR {key}\r\nGET {key}\r\n").as_bytes());
    }
    host.settle();
    assert_eq!(host.received(client), ["+OK $1 1 :2 $1 2"; KEYS.len()].join(" "));
}

#[test]
fn a_read_of_a_borrowed_group_overtakes_no_change_that_waits_in_the_outbox() {
    let mut host = host(3, settings("always"));
    let client = host.connect(0);
    let changes =
        ["SET {key} 1", "MULTI\r\nSET {key} 1\r\nEXEC", "EVAL \"return redis.call('SET', KEYS[1], 1)\" 1 {key}"];
    for line in changes {
        for key in KEYS {
            assert_eq!(host.run(client, &format!("SET {key} 0")), "+OK");
            // What it sends waits there until the turn ends.
            host.send(client, format!("{}\r\n", line.replace("{key}", key)).as_bytes());
            host.send(client, format!("GET {key}\r\n").as_bytes());
            host.settle();
            let told = host.received(client);
            assert!(told.ends_with("$1 1"), "{line}: {told}");
        }
    }
}

#[test]
fn what_has_not_been_acknowledged_is_not_read() {
    let mut host = host(3, settings("always"));
    let [writer, reader] = [host.connect(0), host.connect(1)];
    KEYS.iter().for_each(|key| assert_eq!(host.run(writer, &format!("SET {key} old")), "+OK"));
    host.holds_disk = true;
    KEYS.iter().for_each(|key| host.send(writer, format!("SET {key} new\r\n").as_bytes()));
    KEYS.iter().for_each(|key| assert_eq!(host.run(reader, &format!("GET {key}")), "$3 old"));
    host.holds_disk = false;
    host.settle();
    assert_eq!(host.received(writer), ["+OK"; KEYS.len()].join(" "));
    KEYS.iter().for_each(|key| assert_eq!(host.run(reader, &format!("GET {key}")), "$3 new"));
}

#[test]
fn who_tracks_is_told_of_what_was_read_on_any_core() {
    let mut host = host(3, settings("no"));
    let [reader, writer] = [host.connect(0), host.connect(1)];
    assert!(host.run(reader, "HELLO 3").contains("server"));
    assert_eq!(host.run(reader, "CLIENT TRACKING ON"), "+OK");
    for key in KEYS {
        assert_eq!(host.run(reader, &format!("GET {key}")), "_");
        assert_eq!(host.run(writer, &format!("SET {key} 1")), "+OK");
        assert_eq!(host.received(reader), format!(">2 $10 invalidate *1 $1 {key}"));
    }
}

#[test]
fn a_read_of_a_key_that_a_transaction_holds_waits_for_it() {
    let mut host = host(3, settings("always"));
    let [writer, reader] = [host.connect(0), host.connect(1)];
    let pairs = |value: u32| format!("MSET {}", KEYS.map(|key| format!("{key} {value}")).join(" "));
    assert_eq!(host.run(writer, &pairs(1)), "+OK");
    host.holds_disk = true;
    host.send(writer, format!("{}\r\n", pairs(2)).as_bytes());
    host.settle();
    for key in KEYS {
        assert_eq!(host.run(reader, &format!("GET {key}")), "", "{key} is prepared");
    }
    host.holds_disk = false;
    host.settle();
    assert_eq!(host.received(writer), "+OK");
    assert_eq!(host.received(reader), ["$1 2"; KEYS.len()].join(" "));
}

#[test]
fn reads_on_other_cores_are_counted_and_use_keys() {
    let mut host = host(3, settings("no"));
    let client = host.connect(0);
    for key in KEYS {
        assert_eq!(host.run(client, &format!("SET {key} 1 PX 100")), "+OK");
        assert_eq!(host.run(client, &format!("GET {key}")), "$1 1");
    }
    let info = host.run(client, "INFO all");
    assert!(info.contains("cmdstat_get:calls=6,"), "{info}");
    assert!(info.contains("keyspace_hits:6 "), "{info}");
    host.pass(stdx::Duration::from_millis(200));
    for key in KEYS {
        assert_eq!(host.run(client, &format!("GET {key}")), "$-1", "its time is over");
    }
    assert!(host.run(client, "INFO stats").contains("keyspace_misses:6 "));
}
