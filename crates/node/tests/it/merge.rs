//! A group goes while clients are at work with what it holds.

use group::ids::SessionId;
use node::settings::Settings;
use stdx::Duration;

use crate::host::Host;
use crate::split::{TICK, keys_of};

/// Asks for a merge, and again until that is taken for possible.
fn ask_for(host: &mut Host, operator: SessionId, words: &str) {
    for _ in 0..100 {
        let answer = host.run(operator, &format!("HOLDFAST MERGE {words}"));
        if answer == "+OK" {
            return;
        }
        assert!(answer.starts_with("-TRYAGAIN"), "{answer}");
        host.pass(TICK);
    }
    panic!("it never was possible");
}

/// True if a group has gone, and no other.
fn is_gone(host: &mut Host, operator: SessionId, group: u32) -> bool {
    let status = host.run(operator, "HOLDFAST CLUSTER");
    !status.contains(&format!("$5 group :{group} $11 merges_into")) && status.contains("$4 gone *1 ")
}

#[test]
fn what_clients_have_begun_goes_on_when_the_group_has_gone() {
    let mut host = Host::new(2, Settings::default());
    let operator = host.connect(0);
    assert_eq!(host.run(operator, "HOLDFAST BALANCE OFF"), "+OK");
    let (goes, stays) = (keys_of(8_192, 16_383, 60), keys_of(0, 8_191, 60));
    let client = host.connect(1);
    for (place, key) in goes.iter().chain(&stays).enumerate() {
        assert_eq!(host.run(client, &format!("SET {key} {place}")), "+OK");
    }
    let [list, timed, watched, counted] = [&goes[0], &goes[1], &goes[2], &goes[3]].map(String::as_str);
    host.run(client, &format!("DEL {list}"));
    assert_eq!(host.run(client, &format!("PEXPIRE {timed} 90000")), ":1");
    // One waits for an element, one watches what will be changed and one what is not, and one keeps what it has read.
    let waiting = host.connect(0);
    host.send(waiting, format!("BLPOP {list} {{{list}}}other {list} 0\r\n").as_bytes());
    let careful = host.connect(0);
    assert_eq!(host.run(careful, &format!("WATCH {watched} {}", stays[2])), "+OK");
    let lucky = host.connect(1);
    assert_eq!(host.run(lucky, &format!("WATCH {} {} {{{}}}absent", goes[4], stays[4], goes[4])), "+OK");
    let caching = host.connect(0);
    assert!(host.run(caching, "HELLO 3").starts_with('%'));
    assert_eq!(host.run(caching, "CLIENT TRACKING ON"), "+OK");
    host.run(caching, &format!("GET {}", goes[5]));
    host.run(caching, &format!("GET {}", stays[5]));
    host.settle();

    ask_for(&mut host, operator, "1 0");
    assert_eq!(host.run(operator, "HOLDFAST MERGE 1 0"), "+OK", "it is asked for already");
    let mut count = 0;
    while !is_gone(&mut host, operator, 1) {
        count += 1;
        assert!(count < 2_000, "it does not go: {}", host.run(operator, "HOLDFAST CLUSTER"));
        assert_eq!(host.run(client, &format!("INCR {counted}")), format!(":{}", 3 + count));
        assert_eq!(host.run(client, "DBSIZE"), ":119");
        host.pass(TICK);
    }
    for (words, why) in
        [("1 0", "group 1 has been merged"), ("0 1", "group 1 has been merged"), ("0 0", "cannot be merged")]
    {
        let told = host.run(operator, &format!("HOLDFAST MERGE {words}"));
        assert!(told.starts_with("-ERR") && told.contains(why), "{told}");
    }
    for key in [&goes[5], &stays[5]] {
        let before = host.received(caching);
        assert_eq!(host.run(client, &format!("SET {key} new")), "+OK");
        // A cache may have been told of the key by the move; then it has nothing to be told any more.
        let told = format!("{before} {}", host.received(caching));
        assert!(told.contains(&format!("${} {key}", key.len())) || told.contains("invalidate _"), "{key}: {told}");
    }
    // Until replicas are given up, and when they have been.
    for round in 0..2 {
        assert_eq!(host.run(client, "DBSIZE"), ":119");
        assert_eq!(host.run(client, &format!("MGET {} {}", goes[6], stays[6])), "*2 $1 6 $2 66");
        assert_eq!(host.run(client, "SELECT 3"), "+OK");
        assert_eq!(host.run(client, &format!("MSET {} a {} b", goes[7], stays[7])), "+OK");
        assert_eq!(host.run(client, "DBSIZE"), ":2");
        assert_eq!(host.run(client, "FLUSHDB"), "+OK");
        assert_eq!(host.run(client, "DBSIZE"), ":0");
        assert_eq!(host.run(client, "SELECT 0"), "+OK");
        if round == 0 {
            (0..30).for_each(|_| host.pass(Duration::from_millis(500)));
        }
    }

    assert_eq!(host.received(waiting), "");
    assert_eq!(host.run(client, &format!("RPUSH {list} first")), ":1");
    assert_eq!(host.received(waiting), format!("*2 ${} {list} $5 first", list.len()));
    assert_eq!(host.run(client, &format!("SET {watched} changed")), "+OK");
    for (session, kept) in [(careful, false), (lucky, true)] {
        assert_eq!(host.run(session, "MULTI"), "+OK");
        assert_eq!(host.run(session, &format!("SET {} by", goes[8])), "+QUEUED");
        assert_eq!(host.run(session, &format!("SET {} by", stays[8])), "+QUEUED");
        assert_eq!(host.run(session, "EXEC"), if kept { "*2 +OK +OK" } else { "*-1" });
    }
    let left: i64 = host.run(client, &format!("PTTL {timed}"))[1..].parse().expect("a number");
    assert!((1..90_000).contains(&left), "{left}");
    (0..10).for_each(|_| host.pass(Duration::from_secs(10)));
    assert_eq!(host.run(client, &format!("EXISTS {timed}")), ":0");
    assert_eq!(host.run(client, "DBSIZE"), ":118");
    assert_eq!(
        host.run(client, &format!("GET {counted}")),
        format!("${} {}", (3 + count).to_string().len(), 3 + count)
    );
    assert_eq!(host.run(client, "FLUSHALL"), "+OK");
    assert_eq!(host.run(client, "DBSIZE"), ":0");
    // What comes next has a number of its own.
    assert_eq!(host.run(operator, "HOLDFAST GROUPS 2"), "+OK");
}
