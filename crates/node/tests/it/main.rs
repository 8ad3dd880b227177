//! Stories of one node: what clients see, whichever core their keys live on.

mod acl;
mod backup;
mod blocking;
mod cluster;
mod collections;
mod describe;
mod durability;
mod founding;
mod fuzz;
mod host;
mod large;
mod merge;
mod monitor;
mod optimism;
mod outcomes;
mod pubsub;
mod quorum;
#[path = "../../../keyspace/tests/commands/reference.rs"]
#[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "the reference lives in real time")]
mod reference;
mod replica_reads;
mod request_ids;
mod scripts;
mod split;
mod statistics;
mod tracking;
mod troubles;
mod users;

use host::Host;
use node::settings::Settings;
use stdx::Duration;

pub(crate) fn settings(appendfsync: &str) -> Settings {
    let mut settings = Settings::default();
    settings.set("appendfsync", appendfsync).unwrap();
    settings
}

/// Runs a story on one core and on three, with and without waiting for the disk.
pub(crate) fn everywhere(story: impl Fn(&mut Host)) {
    for cores in [1, 3] {
        for policy in ["always", "no"] {
            story(&mut Host::new(cores, settings(policy)));
        }
    }
}

/// They would arrive at a far site as changes of its own records.
#[test]
fn records_of_sites_are_changed_by_nobody_where_changes_are_kept() {
    for cores in [1, 3] {
        let mut settings = settings("no");
        settings.set("site-backlog-size", "1mb").expect("a parameter");
        let mut host = Host::new(cores, settings);
        let client = host.connect(0);
        let refused = "-ERR The key {holdfast}:site belongs to sites that follow: only Holdfast itself changes it";
        for line in [
            "SET {holdfast}:site x",
            "DEL a {holdfast}:site",
            "MSET a 1 {holdfast}:site 2",
            "RENAME a {holdfast}:site",
            "EVAL \"return redis.call('set', KEYS[1], 'x')\" 1 {holdfast}:site",
        ] {
            let told = host.run(client, line);
            assert!(told.starts_with(refused), "{line}: {told}");
        }
        assert_eq!(host.run(client, "EXISTS {holdfast}:site a"), ":0");
        assert_eq!(host.run(client, "SET a {holdfast}:site"), "+OK");
        assert_eq!(host.run(client, "SITE WRITER"), "+OK");
        assert_eq!(host.run(client, "HSET {holdfast}:site phase promoted"), ":1");
    }
    everywhere(|host| {
        let client = host.connect(0);
        assert_eq!(host.run(client, "SET {holdfast}:site x"), "+OK");
    });
}

#[test]
fn a_watched_hash_changes_when_a_field_expires() {
    everywhere(|host| {
        let client = host.connect(0);
        host.run(client, "HSET a f 1 g 2");
        host.run(client, "HPEXPIRE a 50 FIELDS 1 f");
        host.run(client, "WATCH a");
        host.run(client, "MULTI");
        host.run(client, "HGET a g");
        assert_eq!(host.run(client, "EXEC"), "*1 $1 2");
        host.run(client, "WATCH a");
        host.pass(Duration::from_millis(60));
        host.run(client, "MULTI");
        host.run(client, "HGET a g");
        assert_eq!(host.run(client, "EXEC"), "*-1");
    });
}

#[test]
fn a_transaction_over_groups_sees_and_keeps_deadlines_of_fields() {
    everywhere(|host| {
        let client = host.connect(0);
        host.run(client, "HSETEX a PX 50 FIELDS 2 f 1 g 2");
        host.run(client, "HSET a h 3");
        host.run(client, "HSET b f 1");
        host.run(client, "MULTI");
        for line in ["HPTTL a FIELDS 1 h", "HPEXPIRE b 50 FIELDS 1 f", "HPERSIST a FIELDS 1 g", "COPY a c"] {
            assert_eq!(host.run(client, line), "+QUEUED");
        }
        assert_eq!(host.run(client, "EXEC"), "*4 *1 :-1 *1 :1 *1 :1 :1");
        host.pass(Duration::from_millis(60));
        assert_eq!(host.run(client, "HKEYS a"), "*2 $1 g $1 h");
        assert_eq!(host.run(client, "HKEYS c"), "*2 $1 g $1 h");
        assert_eq!(host.run(client, "EXISTS b"), ":0");
        assert_eq!(host.run(client, "EVAL \"return redis.call('HLEN',KEYS[1])\" 1 a"), ":2");
    });
}

#[test]
fn slots_tell_how_many_keys_they_have() {
    let mut settings = settings("no");
    settings.set("cluster-enabled", "yes").unwrap();
    let mut host = Host::new(2, settings);
    let client = host.connect(0);
    host.run(client, "MSET foo 1 bar 2 {bar}2 3");
    let stats = |host: &mut Host, rest: &str| host.run(client, &format!("CLUSTER SLOT-STATS {rest}"));
    assert_eq!(
        stats(&mut host, "SLOTSRANGE 12181 12182"),
        "*2 *2 :12181 *2 $9 key-count :0 *2 :12182 *2 $9 key-count :1"
    );
    assert_eq!(
        stats(&mut host, "ORDERBY KEY-COUNT LIMIT 3"),
        "*3 *2 :5061 *2 $9 key-count :2 *2 :12182 *2 $9 key-count :1 *2 :0 *2 $9 key-count :0"
    );
    assert_eq!(stats(&mut host, "ORDERBY key-count ASC LIMIT 1"), "*1 *2 :0 *2 $9 key-count :0");
    for (rest, error) in [
        ("SLOTSRANGE 5 4", "Start slot number 5 is greater than end slot number 4"),
        ("SLOTSRANGE 5 16384", "Invalid or out of range slot"),
        ("ORDERBY cpu-usec", "Unrecognized sort metric for ORDERBY."),
        ("ORDERBY key-count LIMIT 0", "Limit has to lie in between 1 and 16384 (maximum number of slots)."),
        ("ORDERBY key-count ASC DESC", "Multiple filters of the same type are disallowed."),
        ("ORDERBY key-count NONSENSE", "syntax error"),
    ] {
        assert_eq!(stats(&mut host, rest), format!("-ERR {error}"), "{rest}");
    }
}

#[test]
fn who_wants_it_so_reads_without_using() {
    everywhere(|host| {
        let (client, other) = (host.connect(0), host.connect(0));
        host.run(client, "SET a 1");
        host.run(client, "SADD b 1");
        host.pass(Duration::from_secs(10));
        assert_eq!(host.run(client, "CLIENT NO-TOUCH ON"), "+OK");
        assert!(host.run(client, "CLIENT INFO").contains("flags=T "));
        for line in ["GET a", "STRLEN a", "SCARD b", "EXISTS b"] {
            host.run(client, line);
        }
        for key in ["a", "b"] {
            assert_eq!(host.run(other, &format!("OBJECT IDLETIME {key}")), ":10");
        }
        // In transactions that are logged and that are not, over one group and several, and in scripts; writes, too.
        for lines in [
            &["MULTI", "GET a", "STRLEN a", "EXEC"][..],
            &["MULTI", "GET a", "SCARD b", "EXEC"],
            &["MULTI", "GET a", "SET {a}c 1", "EXEC"],
            &["MULTI", "GET a", "SCARD b", "SET c 1", "EXEC"],
            &[r#"EVAL "return{redis.call('get',KEYS[1])}" 1 a"#],
            &[r#"EVAL "return{redis.call('incr',KEYS[2]),redis.call('get',KEYS[1])}" 2 a {a}d"#],
            &[
                r#"EVAL "return{redis.call('get',KEYS[1]),redis.call('scard',KEYS[2]),redis.call('incr',KEYS[3])}" 3 a b d"#,
            ],
            &["SADD b 2", "INCR a", "SREM b 2", "DECR a"],
        ] {
            let replies: Vec<_> = lines.iter().map(|line| host.run(client, line)).collect();
            assert!(replies.iter().all(|reply| !reply.contains('-')), "{lines:?}: {replies:?}");
            for key in ["a", "b"] {
                assert_eq!(host.run(other, &format!("OBJECT IDLETIME {key}")), ":10", "{key} after {lines:?}");
            }
        }
        // What is there to use a key does so.
        assert_eq!(host.run(client, "MULTI"), "+OK");
        host.run(client, "TOUCH a");
        assert_eq!(host.run(client, "EXEC"), "*1 :1");
        assert_eq!(host.run(other, "OBJECT IDLETIME a"), ":0");
        host.pass(Duration::from_secs(10));
        assert_eq!(host.run(client, "TOUCH a"), ":1");
        assert_eq!(host.run(other, "OBJECT IDLETIME a"), ":0");
        host.run(client, "CLIENT NO-TOUCH OFF");
        host.run(client, "SCARD b");
        assert_eq!(host.run(other, "OBJECT IDLETIME b"), ":0");
        assert_eq!(host.run(client, "CLIENT NO-TOUCH MAYBE"), "-ERR syntax error");
    });
}

#[test]
fn newer_commands_are_transactions_over_their_keys() {
    everywhere(|host| {
        let (client, other) = (host.connect(0), host.connect(0));
        assert_eq!(host.run(client, "MSETEX 5 a 1 b 2 c 3 d 4 e 5 PX 50 NX"), ":1");
        assert_eq!(host.run(client, "MSETEX 2 x 1 e 2 NX"), ":0");
        assert_eq!(host.run(client, "MGET a b c d e x"), "*6 $1 1 $1 2 $1 3 $1 4 $1 5 $-1");
        host.pass(Duration::from_millis(60));
        assert_eq!(host.run(client, "EXISTS a b c d e"), ":0");
        host.run(client, "RPUSH a 1 2 3 4");
        assert_eq!(host.run(client, "LMOVEM a b LEFT LEFT EXACTLY 3 OBO"), "*3 $1 3 $1 2 $1 1");
        assert_eq!(host.run(client, "LMOVEM a b LEFT LEFT EXACTLY 2 OBO"), "*-1");
        host.run(client, "SADD c 1 2 3");
        host.run(client, "SADD d 3 4");
        assert_eq!(host.run(client, "SUNIONCARD 2 c d"), ":4");
        assert_eq!(host.run(client, "SDIFFCARD 2 c d LIMIT 1"), ":1");
        host.run(client, "SET e x");
        assert_eq!(host.run(client, "BITOP ONE x e e"), ":1");
        // What compares breaks a watch only if it changes something.
        for (line, reply) in [("DELEX e IFEQ y", "*2 :1 :1"), ("SET e y IFEQ x", "*-1")] {
            host.run(client, "WATCH e");
            host.run(other, line);
            host.run(client, "MULTI");
            host.run(client, "DELEX x IFNE 0");
            host.run(client, "MSETEX 2 x 1 y 2");
            assert_eq!(host.run(client, "EXEC"), reply, "{line}");
        }
        host.run(client, "XADD s 1-1 f v");
        host.run(client, "XGROUP CREATE s g 0");
        let text = "redis.call('xreadgroup', 'group', 'g', 'me', 'streams', KEYS[1], '>') \
                    return {redis.call('increx', KEYS[2], 'ubound', '1'), redis.call('delifeq', KEYS[3], 'y'), \
                    redis.call('xackdel', KEYS[1], 'g', 'acked', 'ids', 1, '1-1')}";
        host.send(client, format!("EVAL \"{text}\" 3 s n e\r\n").as_bytes());
        host.settle();
        assert_eq!(host.received(client), "*3 *2 :1 :1 :1 *1 :1");
        assert_eq!(host.run(client, "XLEN s"), ":0");
    });
}

#[test]
fn what_was_set_is_read_back() {
    everywhere(|host| {
        let client = host.connect(0);
        for key in 0..20 {
            assert_eq!(host.run(client, &format!("SET key{key} {key}")), "+OK");
        }
        for key in 0..20 {
            let text = key.to_string();
            assert_eq!(host.run(client, &format!("GET key{key}")), format!("${} {text}", text.len()));
        }
    });
}

/// On the disk with `always`; with the others in the hands of the system, which is for the host to know.
#[test]
fn nothing_is_acknowledged_or_seen_before_the_journal_has_it() {
    for policy in ["always", "everysec", "no"] {
        let mut host = Host::new(1, settings(policy));
        let (writer, reader) = (host.connect(0), host.connect(0));
        host.holds_disk = true;
        assert_eq!(host.run(writer, "SET city Lisbon"), "");
        assert_eq!(host.run(reader, "GET city"), "$-1");
        host.holds_disk = false;
        host.settle();
        assert_eq!(host.received(writer), "+OK");
        assert_eq!(host.run(reader, "GET city"), "$6 Lisbon");
    }
}

#[test]
fn a_node_by_itself_is_a_master_without_replicas() {
    let mut host = Host::new(3, settings("always"));
    let client = host.connect(1);
    // Nothing is counted for replicas as long as none has asked, whatever is written.
    assert_eq!(host.run(client, "SET city Lisbon"), "+OK");
    assert_eq!(host.run(client, "ROLE"), "*3 $6 master :0 *0");
    let info = host.run(client, "INFO replication");
    assert!(info.contains("master_repl_offset:0 "), "{info}");
    assert!(info.contains("role:master connected_slaves:0 master_failover_state:no-failover"), "{info}");
    assert!(host.run(client, "INFO cluster").contains("cluster_enabled:0"));
    let told = host.run(client, "HOLDFAST CLUSTER");
    assert!(told.starts_with("*20 $4 node $1 1 "), "{told}");
    assert!(told.contains("$5 slots $10 5462-10922 $6 leader $1 1 $9 preferred $-1 $4 here $7 serving"), "{told}");
}

#[test]
fn replies_leave_in_the_order_of_requests() {
    everywhere(|host| {
        let client = host.connect(0);
        host.send(client, b"SET a 1\r\nGET a\r\nINCR b\r\nGET b\r\nSET c x\r\nPING\r\nGET c\r\nINCR c\r\nGET a\r\n");
        host.settle();
        assert_eq!(
            host.received(client),
            "+OK $1 1 :1 $1 1 +OK +PONG $1 x -ERR value is not an integer or out of range $1 1"
        );
    });
}

#[test]
fn a_transaction_is_one_step() {
    everywhere(|host| {
        let client = host.connect(0);
        assert_eq!(host.run(client, "MULTI"), "+OK");
        assert_eq!(host.run(client, "SET a 1"), "+QUEUED");
        assert_eq!(host.run(client, "INCR b"), "+QUEUED");
        assert_eq!(host.run(client, "GET a"), "+QUEUED");
        assert_eq!(host.run(client, "INCRBY c x"), "+QUEUED");
        assert_eq!(host.run(client, "EXEC"), "*4 +OK :1 $1 1 -ERR value is not an integer or out of range");
        assert_eq!(host.run(client, "EXEC"), "-ERR EXEC without MULTI");
        assert_eq!(host.run(client, "GET b"), "$1 1");
    });
}

#[test]
fn a_watched_key_that_changed_stops_a_transaction() {
    everywhere(|host| {
        let other = host.connect(0);
        host.run(other, "SET a 1");
        let mut client = other;
        for (change, expected) in [("PING", "*1 +OK"), ("SET a 2", "*-1"), ("DEL a", "*-1"), ("SET a 3", "*-1")] {
            client = host.connect(0); // one that has failed twice is helped
            assert_eq!(host.run(client, "WATCH a never"), "+OK");
            host.run(other, change);
            host.run(client, "MULTI");
            host.run(client, "SET b 1");
            assert_eq!(host.run(client, "EXEC"), expected, "after {change}");
        }
        host.run(client, "WATCH a never");
        host.run(client, "UNWATCH");
        host.run(other, "SET a 9");
        host.run(client, "MULTI");
        host.run(client, "SET b 2");
        assert_eq!(host.run(client, "EXEC"), "*1 +OK");
    });
}

#[test]
fn a_refused_command_breaks_the_transaction() {
    everywhere(|host| {
        let client = host.connect(0);
        host.run(client, "MULTI");
        assert!(host.run(client, "SET a").starts_with("-ERR wrong number of arguments for 'set' command"));
        assert_eq!(host.run(client, "EXEC"), "-EXECABORT Transaction discarded because of previous errors.");
        host.run(client, "MULTI");
        assert!(host.run(client, "nosuch a b").starts_with("-ERR unknown command 'nosuch', with args beginning with:"));
        assert!(host.run(client, "EXEC").starts_with("-EXECABORT"));
    });
}

#[test]
fn commands_over_several_cores_are_atomic() {
    everywhere(|host| {
        let client = host.connect(0);
        assert_eq!(host.run(client, "MSET a 1 b 2 c 3 d 4 e 5"), "+OK");
        assert_eq!(host.run(client, "MGET a b c d e nope"), "*6 $1 1 $1 2 $1 3 $1 4 $1 5 $-1");
        assert_eq!(host.run(client, "MSETNX x 1 a 2"), ":0");
        assert_eq!(host.run(client, "RENAME a z"), "+OK");
        assert_eq!(host.run(client, "EXISTS a b c z"), ":3");
        assert_eq!(host.run(client, "DEL b c d nope"), ":3");
        assert_eq!(host.run(client, "DBSIZE"), ":2");
        assert_eq!(host.run(client, "GET z"), "$1 1");
        assert_eq!(host.run(client, "BITOP OR dest z e"), ":1");
        assert_eq!(host.run(client, "COPY z y DB 3"), ":1");
        assert_eq!(host.run(client, "SELECT 3"), "+OK");
        assert_eq!(host.run(client, "GET y"), "$1 1");
        assert_eq!(host.run(client, "FLUSHALL"), "+OK");
        assert_eq!(host.run(client, "DBSIZE"), ":0");
    });
}

#[test]
fn a_transaction_works_in_the_databases_that_it_selects() {
    everywhere(|host| {
        let (client, other) = (host.connect(0), host.connect(0));
        host.run(client, "SELECT 2");
        let lines =
            ["SET a 2", "SELECT 1", "SET a 1", "GET a", "SELECT x", "SELECT 99", "SET b 1", "SELECT 2", "GET a"];
        host.run(client, "MULTI");
        lines.iter().for_each(|line| assert_eq!(host.run(client, line), "+QUEUED"));
        host.run(client, "EVAL \"return redis.call('GET', KEYS[1])\" 1 a");
        host.run(client, "SELECT 1");
        let selects = "-ERR value is not an integer or out of range -ERR DB index is out of range";
        let done = format!("*11 +OK +OK +OK $1 1 {selects} +OK +OK $1 2 $1 2 +OK");
        assert_eq!(host.run(client, "EXEC"), done);
        assert_eq!(host.run(client, "MGET a b"), "*2 $1 1 $1 1");
        assert_eq!(host.run(other, "EXISTS a b"), ":0");
        let low = "-ERR value is out of range, value must between -2147483648 and 2147483647";
        assert_eq!(host.run(client, "SELECT -2147483649"), low);
        // What is not carried out selects nothing.
        assert_eq!(host.run(client, "MULTI\r\nSELECT 7\r\nDISCARD\r\nGET b"), "+OK +QUEUED +OK $1 1");
    });
}

#[test]
fn control_commands_take_effect_inside_a_transaction_at_their_place() {
    everywhere(|host| {
        let client = host.connect(0);
        host.run(client, "MULTI");
        host.run(client, "SET a 1");
        host.run(client, "PING hello");
        host.run(client, "GET a");
        assert_eq!(host.run(client, "EXEC"), "*3 +OK $5 hello $1 1");
        host.run(client, "MULTI");
        host.run(client, "PING");
        assert_eq!(host.run(client, "EXEC"), "*1 +PONG");
    });
}

#[test]
fn scan_finds_every_key_of_every_core() {
    everywhere(|host| {
        let client = host.connect(0);
        for key in 0..200 {
            host.run(client, &format!("SET key{key} {key}"));
        }
        let (mut cursor, mut found) = ("0".to_owned(), 0);
        loop {
            let reply = host.run(client, &format!("SCAN {cursor} COUNT 10"));
            let words: Vec<_> = reply.split(' ').collect();
            found += reply.matches("key").count();
            cursor = words[2].to_owned();
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(found, 200);
        assert_eq!(host.run(client, "KEYS key1?").matches("key").count(), 10);
        assert!(host.run(client, "RANDOMKEY").contains("key"));
    });
}

#[test]
fn cluster_scan_walks_through_all_slots_in_order_and_finds_every_key_once() {
    everywhere(|host| {
        let client = host.connect(0);
        for key in 0..300 {
            host.run(client, &format!("SET key{key} {key}"));
        }
        assert_eq!(host.run(client, "CLUSTERSCAN 0"), "*2 $9 0-{06S}-0 *0");
        let (mut cursor, mut found, mut last) = ("0-{06S}-0".to_owned(), Vec::new(), 0);
        while cursor != "0" {
            let reply = host.run(client, &format!("CLUSTERSCAN {cursor} COUNT 7"));
            let words: Vec<_> = reply.split(' ').collect();
            found.extend(words[4..].iter().filter(|word| word.starts_with("key")).map(|key| (*key).to_owned()));
            cursor = words[2].to_owned();
            if cursor != "0" {
                let slot = stdx::slot::slot_of(cursor.as_bytes()).0;
                assert!(slot >= last, "{slot} after {last}");
                last = slot;
            }
        }
        assert_eq!(found.len(), 300);
        found.sort();
        found.dedup();
        assert_eq!(found.len(), 300);
        // A slot by itself, also the last one; a pattern that names one; a place in an order that is not known here.
        for key in 0..30 {
            host.run(client, &format!("SADD {{6ZJ}}{key} a"));
        }
        assert!(host.run(client, "CLUSTERSCAN 0-{6ZJ}-0 SLOT 16383 COUNT 100").starts_with("*2 $1 0 *30 "));
        assert!(host.run(client, "CLUSTERSCAN 0-{6ZJ}-0 COUNT 100").starts_with("*2 $1 0 *30 "));
        assert!(host.run(client, "CLUSTERSCAN other-{6ZJ}-99999999999999 COUNT 100").starts_with("*2 $1 0 *30 "));
        assert_eq!(host.run(client, "CLUSTERSCAN 0-{6ZJ}-0 COUNT 100 TYPE string"), "*2 $1 0 *0");
        assert_eq!(host.run(client, "CLUSTERSCAN 0 MATCH {6ZJ}*"), "*2 $9 0-{6ZJ}-0 *0");
        assert_eq!(host.run(client, "CLUSTERSCAN 0-{06S}-0 MATCH {6ZJ}2"), "*2 $9 0-{6ZJ}-0 *0");
        assert_eq!(host.run(client, "CLUSTERSCAN 0-{6ZJ}-0 MATCH {6ZJ}2 COUNT 100"), "*2 $1 0 *1 $6 {6ZJ}2");
        assert_eq!(host.run(client, "CLUSTERSCAN 0-{Qi}-0 MATCH {06S}*"), "*2 $1 0 *0");
        assert_eq!(host.run(client, "CLUSTERSCAN 0 SLOT 5 MATCH {06S}*"), "*2 $1 0 *0");
        assert_eq!(host.run(client, "CLUSTERSCAN 0 SLOT 1"), "*2 $8 0-{Qi}-0 *0");
        let reply = host.run(client, "CLUSTERSCAN 0-{6ZJ}-0 SLOT 16383 COUNT 10");
        assert!(reply.contains("-{6ZJ}-") && reply.contains(" *10 "), "{reply}");
        for (words, text) in [
            ("invalid", "ERR Invalid cursor"),
            ("0-", "ERR Invalid cursor"),
            ("0-{0}", "ERR Invalid cursor"),
            ("abc-def-ghi", "ERR Invalid cursor"),
            ("0-{06S}-x", "ERR Invalid cursor"),
            ("0-{}-1", "ERR Invalid cursor"),
            ("0-{06S}-0 SLOT 1", "ERR Cursor slot mismatch"),
            ("0 SLOT 16384", "ERR Invalid or out of range slot"),
            ("0 SLOT -1", "ERR Invalid or out of range slot"),
            ("0 SLOT 1 SLOT 1", "ERR SLOT option can only be specified once"),
            ("0 COUNT 0", "ERR syntax error"),
            ("0 NOTHING", "ERR syntax error"),
        ] {
            assert_eq!(host.run(client, &format!("CLUSTERSCAN {words}")), format!("-{text}"));
        }
        assert_eq!(host.run(client, "SCAN 0 SLOT 1"), "-ERR syntax error");
        // A cursor is no key.
        assert_eq!(host.run(client, "ACL SETUSER default resetkeys ~other"), "+OK");
        assert!(host.run(client, "CLUSTERSCAN 0-{6ZJ}-0 COUNT 100").starts_with("*2 $1 0 *30 "));
    });
}

#[test]
fn scan_ends_with_its_first_step_where_count_allows_that() {
    everywhere(|host| {
        let client = host.connect(0);
        assert_eq!(host.run(client, "SCAN 0"), "*2 $1 0 *0");
        assert_eq!(host.run(client, "SCAN 0 COUNT 1"), "*2 $1 0 *0");
        // The key is the only one, no matter which group it is in.
        for key in ["a", "b", "c", "d", "e"] {
            host.run(client, &format!("SET {key} 1"));
            assert_eq!(host.run(client, "SCAN 0 COUNT 1000"), format!("*2 $1 0 *1 $1 {key}"));
            assert_eq!(host.run(client, "SCAN 0 COUNT 1"), format!("*2 $1 0 *1 $1 {key}"));
            assert_eq!(host.run(client, "SCAN 0 MATCH x COUNT 1"), "*2 $1 0 *0");
            host.run(client, &format!("DEL {key}"));
        }
        for key in 0..300 {
            host.run(client, &format!("SET key{key} {key}"));
        }
        assert!(host.run(client, "SCAN 0 COUNT 300").starts_with("*2 $1 0 *300 "));
        // Groups that end do not make a step larger than it was asked for, but by the keys of one slot.
        for count in [1, 7, 50, 100, 299] {
            let (mut cursor, mut found, mut steps) = ("0".to_owned(), Vec::new(), 0);
            loop {
                let reply = host.run(client, &format!("SCAN {cursor} COUNT {count}"));
                let words: Vec<_> = reply.split(' ').collect();
                cursor = words[2].to_owned();
                let keys: Vec<_> = words[4..].iter().filter(|word| word.starts_with("key")).collect();
                assert!(keys.len() <= count + 3, "{count}: {}", keys.len());
                found.extend(keys.into_iter().map(|key| (*key).to_owned()));
                steps += 1;
                if cursor == "0" {
                    break;
                }
            }
            assert_eq!((found.len(), steps), (300, steps.min(300 / count + host.core_count() + 1)), "{count}");
            found.sort();
            found.dedup();
            assert_eq!(found.len(), 300, "{count}: each once");
        }
    });
}

#[test]
fn keys_expire_by_the_moment_of_the_log() {
    everywhere(|host| {
        let client = host.connect(0);
        host.run(client, "SET a 1 PX 500");
        assert_eq!(host.run(client, "GET a"), "$1 1");
        host.pass(Duration::from_millis(600));
        assert_eq!(host.run(client, "GET a"), "$-1");
        assert_eq!(host.run(client, "DBSIZE"), ":0");
    });
}

#[test]
fn nothing_expires_in_import_mode_and_what_is_due_goes_at_its_end() {
    everywhere(|host| {
        let client = host.connect(0);
        assert_eq!(host.run(client, "CONFIG SET import-mode yes"), "+OK");
        assert_eq!(host.run(client, "SET a 5 PX 500"), "+OK");
        assert_eq!(host.run(client, "SET b 5 PX 500"), "+OK");
        assert_eq!(host.run(client, "SET past 5 PXAT 1"), "+OK");
        assert_eq!(host.run(client, "HSET h f 1"), ":1");
        assert_eq!(host.run(client, "HPEXPIRE h 500 FIELDS 1 f"), "*1 :1");
        host.pass(Duration::from_millis(600));
        assert_eq!(host.run(client, "INCR a"), ":6");
        assert_eq!(host.run(client, "HINCRBY h f 1"), ":2");
        assert_eq!(host.run(client, "EVAL \"return redis.call('incr', KEYS[1])\" 1 a"), ":7");
        assert_eq!(host.run(client, "PTTL a"), ":0");
        assert_eq!(host.run(client, "HPTTL h FIELDS 1 f"), "*1 :0");
        assert_eq!(host.run(client, "PERSIST a"), ":1");
        assert_eq!(host.run(client, "DBSIZE"), ":4");
        host.run(client, "MULTI");
        host.run(client, "PEXPIREAT b 1");
        host.run(client, "RENAME past later");
        assert_eq!(host.run(client, "EXEC"), "*2 :1 +OK");
        // What is due exists for transactions and scripts over groups as well.
        for (from, to) in [("1", "2"), ("2", "3")] {
            host.run(client, "MULTI");
            for key in ["r", "s", "t", "u"] {
                if from == "1" {
                    host.run(client, &format!("SET {key}1 v PXAT 1"));
                }
                host.run(client, &format!("RENAME {key}{from} {key}{to}"));
            }
            assert!(!host.run(client, "EXEC").contains("no such key"));
        }
        let script =
            "for _, k in ipairs(KEYS) do redis.call('rename', k, k .. 'x') end return redis.call('get', 'r3x')";
        assert_eq!(host.run(client, &format!("EVAL \"{script}\" 4 r3 s3 t3 u3")), "$1 v");
        assert_eq!(host.run(client, "EXISTS r3x s3x t3x u3x"), ":4");
        assert_eq!(host.run(client, "CONFIG SET import-mode no"), "+OK");
        assert_eq!(host.run(client, "MGET a b later"), "*3 $1 7 $-1 $-1");
        assert_eq!(host.run(client, "EXISTS h"), ":0");
        host.pass(Duration::from_millis(200));
        assert_eq!(host.run(client, "DBSIZE"), ":1");
    });
}

#[test]
fn protocol_errors_close_the_connection() {
    let mut host = Host::new(1, settings("no"));
    let client = host.connect(0);
    host.send(client, b"*1\r\nPING\r\n");
    host.settle();
    assert_eq!(host.received(client), "-ERR Protocol error: expected '$', got 'P'");
}

#[test]
fn a_pipeline_of_large_answers_does_not_stop_half_way() {
    // Each answer alone exceeds what a client may leave unread; this host takes all of it at once, and has no backlog
    // to tell of.
    let bytes = node::limits::OUTPUT_BYTES_MAX + 1;
    let mut host = Host::new(1, settings("no"));
    let client = host.connect(0);
    let value = "x".repeat(bytes);
    host.send(client, format!("*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n${bytes}\r\n{value}\r\n").as_bytes());
    host.settle();
    assert_eq!(host.received(client), "+OK");
    host.send(client, "GET big\r\n".repeat(5).as_bytes());
    host.settle();
    let answers = host.received(client);
    assert_eq!(answers.matches(&value).count(), 5);
}

#[test]
fn a_flush_that_is_refused_flushes_nothing() {
    everywhere(|host| {
        let client = host.connect(0);
        host.run(client, "MSET a 1 b 2 c 3 d 4");
        assert_eq!(host.run(client, "FLUSHALL SOON"), "-ERR syntax error");
        assert_eq!(host.run(client, "FLUSHDB SOON"), "-ERR syntax error");
        assert_eq!(host.run(client, "DBSIZE"), ":4");
    });
}

#[test]
fn a_database_that_does_not_exist_is_refused_wherever_the_keys_live() {
    everywhere(|host| {
        let client = host.connect(0);
        host.run(client, "MSET a 1 b 2 c 3 d 4");
        for other in ["b", "c", "d"] {
            assert_eq!(host.run(client, &format!("COPY a {other} DB 999")), "-ERR DB index is out of range");
        }
        assert_eq!(host.run(client, "DBSIZE"), ":4");
    });
}

#[test]
fn a_client_that_wants_no_replies_gets_none_whichever_core_answers_first() {
    everywhere(|host| {
        let client = host.connect(0);
        host.send(client, b"CLIENT REPLY OFF\r\n");
        host.settle();
        host.send(client, b"SET a 1\r\nSET b 2\r\nSET c 3\r\nGET a\r\nGET b\r\nGET c\r\n");
        host.settle();
        assert_eq!(host.received(client), "");
        assert_eq!(host.run(client, "CLIENT REPLY ON"), "+OK");
        host.send(client, b"CLIENT REPLY SKIP\r\nGET a\r\nGET b\r\nGET c\r\n");
        host.settle();
        assert_eq!(host.received(client), "$1 2 $1 3");
    });
}

#[test]
fn a_reset_inside_a_transaction_forgets_it() {
    everywhere(|host| {
        let client = host.connect(0);
        host.run(client, "WATCH a");
        host.run(client, "MULTI");
        host.run(client, "SET a 1");
        assert_eq!(host.run(client, "RESET"), "+RESET");
        assert_eq!(host.run(client, "EXEC"), "-ERR EXEC without MULTI");
        assert_eq!(host.run(client, "GET a"), "$-1");
    });
}

#[test]
fn queries_of_a_whole_database_see_what_their_transaction_has_done() {
    everywhere(|host| {
        let client = host.connect(0);
        host.run(client, "MSET a 1 b 2 c 3");
        let exec = |host: &mut Host, lines: &[&str]| {
            host.run(client, "MULTI");
            for line in lines {
                assert_eq!(host.run(client, line), "+QUEUED");
            }
            host.run(client, "EXEC")
        };
        assert_eq!(
            exec(host, &["DBSIZE", "MSET d 4 e 5", "DBSIZE", "DEL a b", "DBSIZE", "KEYS d", "KEYS a"]),
            "*7 :3 +OK :5 :2 :3 *1 $1 d *0"
        );
        assert_eq!(
            exec(host, &["DBSIZE", "FLUSHDB", "DBSIZE", "RANDOMKEY", "SET z 1", "DBSIZE", "RANDOMKEY", "KEYS *"]),
            "*8 :3 +OK :0 $-1 +OK :1 $1 z *1 $1 z"
        );
        assert_eq!(exec(host, &["SWAPDB 0 1", "DBSIZE", "SET y 1", "DBSIZE", "KEYS *"]), "*5 +OK :0 +OK :1 *1 $1 y");
        assert_eq!(exec(host, &["SWAPDB 0 1", "DBSIZE", "KEYS *"]), "*3 +OK :1 *1 $1 z");
        host.run(client, "MSET a 1 b 2 c 3");
        let scanned = exec(host, &["DEL a", "SET q 1", "SCAN 0 COUNT 100"]);
        assert!(!scanned.contains("$1 a"), "{scanned}");
        assert_eq!(exec(host, &["DBSIZE", "SCAN nonsense", "DEL q b c z"]), "*3 :4 -ERR invalid cursor :4");
    });
}

#[test]
fn a_client_that_runs_ahead_of_the_disk_is_stopped_wherever_its_keys_live() {
    for core in 0..3 {
        let mut host = Host::new(3, settings("always"));
        let client = host.connect(core);
        host.holds_disk = true;
        let value = "x".repeat(1 << 20);
        let request = format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n${}\r\n{value}\r\n", value.len());
        for _ in 0..64 {
            host.send(client, request.as_bytes());
            host.settle();
        }
        assert!(host.is_paused(client), "a client of core {core}");
        host.holds_disk = false;
        for _ in 0..10 {
            host.settle();
        }
        assert_eq!(host.received(client).matches("+OK").count(), 64);
        assert!(!host.is_paused(client));
    }
}

#[test]
fn a_read_waits_for_nobody_elses_flush_wherever_its_key_lives() {
    let mut host = Host::new(2, settings("always"));
    let (writer, readers) = (host.connect(0), [host.connect(0), host.connect(1)]);
    for key in 0..8 {
        host.run(writer, &format!("SET key{key} old"));
    }
    host.holds_disk = true;
    for key in 0..8 {
        host.run(writer, &format!("SET key{key} new"));
    }
    for reader in readers {
        for key in 0..8 {
            assert_eq!(host.run(reader, &format!("GET key{key}")), "$3 old");
        }
    }
    // The writer itself reads what it has written, and so waits.
    assert_eq!(host.run(writer, "GET key0"), "");
    host.holds_disk = false;
    host.settle();
    assert!(host.received(writer).ends_with("$3 new"));
}

#[test]
fn while_loading_only_those_commands_answer_that_redis_answers() {
    const LOADING: &str = "-LOADING Holdfast is loading the dataset in memory";
    for cores in [1, 3] {
        let mut host = Host::unloaded(cores, settings("always"), 1);
        let client = host.connect(0);
        for line in ["PING", "GET city", "DBSIZE", "FLUSHALL"] {
            assert_eq!(host.run(client, line), LOADING, "{line}");
        }
        for line in ["HELLO", "SELECT 1", "CLIENT ID", "ECHO x", "INFO server", "COMMAND COUNT", "RESET"] {
            assert!(!host.run(client, line).starts_with("-LOADING"), "{line}");
        }
        assert_eq!(host.run(client, "MULTI"), "+OK");
        assert_eq!(host.run(client, "PING"), LOADING);
        assert!(host.run(client, "EXEC").starts_with("-EXECABORT"));
        host.load(1, &[1]);
        assert_eq!(host.run(client, "PING"), "+PONG");
        assert_eq!(host.run(client, "SET city Lisbon"), "+OK");
    }
}

#[test]
fn no_core_says_that_it_is_there_while_another_still_loads() {
    const LOADING: &str = "-LOADING Holdfast is loading the dataset in memory";
    let mut host = Host::unloaded(3, settings("always"), 1);
    let clients = [0, 1, 2].map(|core| host.connect(core));
    for core in [2, 0, 1] {
        for client in clients {
            for line in ["PING", "GET a", "GET b", "GET c", "SET d 1"] {
                assert_eq!(host.run(client, line), LOADING, "{line}, before core {core} has loaded");
            }
        }
        host.load_core(core, 1, &[1]);
        host.settle();
    }
    for client in clients {
        assert_eq!(host.run(client, "PING"), "+PONG");
        assert_eq!(host.run(client, "MGET a b c"), "*3 $-1 $-1 $-1");
    }
}

#[test]
fn a_watched_key_that_came_and_went_stops_a_transaction() {
    let stories: [(&[&str], bool); 9] = [
        (&[], false),
        (&["SET other 1", "DEL other"], false),
        (&["FLUSHALL"], false),
        (&["DEL city"], false),
        (&["SET city x", "DEL city"], true),
        (&["SET city x", "RENAME city elsewhere"], true),
        (&["SET city x", "FLUSHALL"], true),
        (&["SET city x PX 1", "pause"], true),
        (&["SET city x PX 1", "pause", "SET other 1"], true),
    ];
    everywhere(|host| {
        let other = host.connect(0);
        for (round, (changes, stops)) in stories.iter().enumerate() {
            let client = host.connect(0); // one that has failed twice is helped
            // What was before the watch does not count.
            host.run(other, "SET city y");
            host.run(other, "DEL city");
            assert_eq!(host.run(client, "WATCH city"), "+OK");
            for change in *changes {
                if *change == "pause" {
                    host.pass(Duration::from_millis(500));
                } else {
                    assert!(!host.run(other, change).starts_with('-'));
                }
            }
            host.run(client, "MULTI");
            host.run(client, &format!("SET mine {round}"));
            let expected = if *stops { "*-1" } else { "*1 +OK" };
            assert_eq!(host.run(client, "EXEC"), expected, "{changes:?}");
        }
    });
}

#[test]
fn a_pause_for_writes_lets_a_transaction_pass_that_only_reads() {
    everywhere(|host| {
        let (reader, writer, other) = (host.connect(0), host.connect(0), host.connect(0));
        for (client, line) in [(reader, "GET city"), (writer, "SET city x")] {
            host.run(client, "MULTI");
            assert_eq!(host.run(client, line), "+QUEUED");
        }
        host.run(other, "CLIENT PAUSE 10000 WRITE");
        assert_eq!(host.run(reader, "EXEC"), "*1 $-1");
        assert_eq!(host.run(writer, "EXEC"), "");
        host.run(other, "CLIENT UNPAUSE");
        assert_eq!(host.received(writer), "*1 +OK");
    });
}

#[test]
fn a_scan_behind_a_flush_in_one_transaction_finds_all_that_came_after() {
    everywhere(|host| {
        let client = host.connect(0);
        for key in 0..50 {
            host.run(client, &format!("SET old{key} 1"));
        }
        host.run(client, "MULTI");
        host.run(client, "FLUSHDB");
        for key in 0..40 {
            host.run(client, &format!("SET new{key} 1"));
        }
        host.run(client, "SCAN 0");
        let replies = host.run(client, "EXEC");
        if replies.contains("*2 $1 0 *40 ") {
            for key in 0..40 {
                assert!(replies.contains(&format!(" new{key}")), "{key}: {replies}");
            }
        } else {
            // In a single group the walk is an ordinary one, in steps.
            assert!(replies.contains(" new"), "{replies}");
        }
    });
}

#[test]
fn a_query_of_the_whole_database_waits_for_no_transaction_that_comes_later() {
    let mut host = Host::new(3, settings("always"));
    let clients: Vec<_> = (0..8).map(|core| host.connect(core % 3)).collect();
    let (asking, watching) = (host.connect(1), host.connect(2));
    // Every client keeps a transaction over all groups going, over the same keys; the disk takes one step at a time.
    host.holds_disk = true;
    let mset = b"*7\r\n$4\r\nMSET\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2\r\n$1\r\nc\r\n$1\r\n3\r\n";
    let (mut size, mut watch) = (String::new(), String::new());
    for step in 0..40 {
        for client in &clients {
            if step == 0 || host.received(*client) == "+OK" {
                host.send(*client, mset);
            }
        }
        if step == 5 {
            host.send(asking, b"DBSIZE\r\n");
            host.send(watching, b"WATCH a b c\r\n");
        }
        host.turn();
        host.sync();
        host.turn();
        size += &host.received(asking);
        watch += &host.received(watching);
    }
    assert_eq!((size, watch), (":3".into(), "+OK".into()), "transactions that came later were let pass");
}

#[test]
fn what_a_command_does_to_its_keys_is_told_in_words_where_redis_does() {
    let mut host = Host::new(1, settings("no"));
    let client = host.connect(0);
    let reply = host.run(client, "COMMAND INFO getex set bitfield sort sort_ro");
    for (note, times) in [
        ("RW and UPDATE because it changes the TTL", 1),
        ("RW and ACCESS due to the optional `GET` argument", 1),
        ("This command allows both access and modification of the key", 1),
        (
            "For the optional BY/GET keyword. It is marked 'unknown' because the key names derive from the content of the \
          key we sort",
            2,
        ),
        (
            "For the optional STORE keyword. It is marked 'unknown' because the keyword can appear anywhere in the argument \
          array",
            1,
        ),
    ] {
        assert_eq!(reply.matches(note).count(), times, "{note}: {reply}");
    }
}

#[test]
fn a_transaction_that_waited_for_a_lock_sees_all_of_the_entry_that_freed_it() {
    // Two groups: {bar} lives in the first, foo in the second. The second transaction waits for {bar}j; meanwhile
    // somebody appends to {bar}k, at every possible moment, also so that this is behind the first transaction's end in
    // the very same entry.
    for moment in 0..40 {
        let mut host = Host::new(2, settings("always"));
        let (first, second, third) = (host.connect(1), host.connect(1), host.connect(0));
        host.holds_disk = true;
        host.send(first, b"MSET {bar}j 1 foo 1\r\n");
        host.send(second, b"MULTI\r\nAPPEND {bar}k b\r\nAPPEND {bar}j b\r\nSET foo 2\r\nEXEC\r\n");
        for step in 0..moment {
            match step % 3 {
                2 => host.sync(),
                core => host.turn_core(core),
            }
        }
        host.send(third, b"APPEND {bar}k c\r\n");
        host.holds_disk = false;
        host.settle();
        let found = host.run(third, "GET {bar}k");
        assert!(found.ends_with("$2 bc") || found.ends_with("$2 cb"), "after {moment} steps: {found}");
    }
}

#[test]
fn commands_on_scripts_are_described_as_such() {
    let mut host = Host::new(1, Settings::default());
    let client = host.connect(0);
    assert_eq!(host.run(client, "COMMAND GETKEYS EVAL text 0"), "*0");
    assert_eq!(host.run(client, "COMMAND GETKEYS EVAL text 1 key"), "*1 $3 key");
    let listed = host.run(client, "COMMAND LIST FILTERBY ACLCAT scripting");
    assert!(["eval", "script|kill", "function|load"].iter().all(|name| listed.contains(name)), "{listed}");
}

#[test]
fn parameters_of_tls_count_when_the_host_obeys_them() {
    everywhere(|host| {
        let (client, other) = (host.connect(0), host.connect(host.core_count() - 1));
        let shown = |host: &mut Host| {
            let names = ["tls-cert-file", "timeout"];
            names.map(|name| host.run(other, &format!("CONFIG GET {name}"))).join(" ")
        };
        let before = shown(host);
        host.tls = None;
        assert_eq!(host.run(client, "CONFIG SET tls-cert-file a.pem timeout 7"), "");
        assert_eq!(shown(host), before);
        host.tls = Some(Err("a.pem holds no certificate".to_owned()));
        host.settle();
        assert_eq!(
            host.received(client),
            "-ERR CONFIG SET failed (possibly related to argument 'tls-cert-file') - Unable to update TLS \
             configuration: a.pem holds no certificate"
        );
        assert_eq!(shown(host), before);
        host.tls = Some(Ok(()));
        assert_eq!(host.run(client, "CONFIG SET tls-cert-file a.pem timeout 7"), "+OK");
        assert_eq!(shown(host), "*2 $13 tls-cert-file $5 a.pem *2 $7 timeout $1 7");
        // A client that leaves meanwhile is missed by nobody.
        host.tls = None;
        assert_eq!(host.run(client, "CONFIG SET tls-cert-file b.pem"), "");
        host.close(client);
        host.tls = Some(Ok(()));
        host.settle();
    });
}
