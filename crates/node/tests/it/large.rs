//! Stories of large values that go to another group: others are served between their pieces.

use node::SessionId;
use stdx::Duration;
use stdx::slot::{SLOT_COUNT, slot_of};

use crate::host::Host;
use crate::settings;

/// Members of a set that is large enough to travel in pieces.
const COUNT: usize = 100_000;

fn fill(host: &mut Host, client: SessionId, key: &str) {
    for thousand in 0..COUNT / 1_000 {
        let members: Vec<_> = (0..1_000).map(|number| format!("member-{}", thousand * 1_000 + number)).collect();
        assert_eq!(host.run(client, &format!("SADD {key} {}", members.join(" "))), ":1000");
    }
}

/// Sends a line and takes turns until it is answered, three at a time; between them another client writes and reads,
/// and is answered at once. How often, and the answer.
fn run_among_others(host: &mut Host, client: SessionId, other: SessionId, line: &str) -> (usize, String) {
    host.send(client, format!("{line}\r\n").as_bytes());
    for count in 1.. {
        host.send(other, b"SET others x\r\nGET others\r\n");
        for _ in 0..3 {
            host.turn();
        }
        assert_eq!(host.received(other), "+OK $1 x", "beside {line}");
        let answer = host.received(client);
        if !answer.is_empty() {
            return (count, answer);
        }
        assert!(count < 1_000, "{line} is not answered");
    }
    unreachable!("it is answered, or the story ends")
}

#[test]
fn a_large_value_goes_to_another_group_while_others_are_served() {
    let mut settings = settings("no");
    settings.set("enable-debug-command", "yes").unwrap();
    let host = &mut Host::new(3, settings);
    let [client, other] = [host.connect(0), host.connect(1)];
    fill(host, client, "large");
    let digest = |host: &mut Host, key: &str| host.run(client, &format!("DEBUG DIGEST-VALUE {key}"));
    let wanted = digest(host, "large");
    let mut far_count = 0;
    for key in ["a", "b", "c", "d"] {
        let (count, answer) = run_among_others(host, client, other, &format!("COPY large {key}"));
        assert_eq!(answer, ":1");
        assert_eq!(digest(host, key), wanted);
        // Within a group it is shared; to another it travels.
        assert!(!(3..=10).contains(&count), "{count}");
        far_count += usize::from(count > 10);
    }
    assert!((1..4).contains(&far_count), "{far_count} of the keys are elsewhere");
    for key in ["e", "f", "g"] {
        let (_, answer) = run_among_others(host, client, other, &format!("RENAME large {key}"));
        assert_eq!(answer, "+OK");
        assert_eq!(digest(host, key), wanted);
        let (_, answer) = run_among_others(host, client, other, &format!("RENAME {key} large"));
        assert_eq!(answer, "+OK");
        assert_eq!(host.run(client, &format!("EXISTS {key} large")), ":1");
    }
    let (_, answer) = run_among_others(host, client, other, "SDIFFSTORE none a b c d");
    assert_eq!(answer, ":0");
    let (_, answer) = run_among_others(host, client, other, "SUNIONSTORE all a b c d large");
    assert_eq!(answer, format!(":{COUNT}"));
}

#[test]
fn a_script_that_makes_a_large_value_lets_others_be_served() {
    let host = &mut Host::new(3, settings("no"));
    let [client, other] = [host.connect(0), host.connect(1)];
    let script = format!("for i = 1, {COUNT} do redis.call('SADD', KEYS[1], 'member-' .. i) end");
    let (count, answer) = run_among_others(host, client, other, &format!("EVAL \"{script}\" 1 large"));
    assert_eq!(answer, "$-1");
    assert!(count > 40, "{count}");
    assert_eq!(host.run(client, "SCARD large"), format!(":{COUNT}"));
}

#[test]
fn what_large_work_leaves_behind_does_not_keep_locks() {
    let host = &mut Host::new(3, settings("always"));
    let client = host.connect(0);
    fill(host, client, "large");
    for key in ["a", "b", "c", "d"] {
        host.send(client, format!("COPY large {key}\r\n").as_bytes());
        (0..20).for_each(|_| host.settle());
        assert_eq!(host.received(client), ":1");
        assert_eq!(host.run(client, &format!("SADD {key} another")), ":1");
        assert_eq!(host.run(client, &format!("SCARD {key}")), format!(":{}", COUNT + 1));
    }
    assert_eq!(host.run(client, "SCARD large"), format!(":{COUNT}"));
}

/// A key that lives in this group, of so many.
pub(crate) fn key_of(group: usize, group_count: usize) -> String {
    let is_there = |key: &String| usize::from(slot_of(key.as_bytes()).0) * group_count / SLOT_COUNT == group;
    (0..).map(|number| format!("key-{number}")).find(is_there).expect("there are many")
}

/// Takes turns that last so long until a client is answered.
fn answer_after_turns(host: &mut Host, client: SessionId, turn: Duration) -> String {
    for _ in 0..2_000 {
        host.turn_after(turn);
        let answer = host.received(client);
        if !answer.is_empty() {
            return answer;
        }
    }
    panic!("it is not answered");
}

#[test]
fn who_has_prepared_first_waits_for_the_large_values_of_all_others() {
    const GROUPS: usize = 6;
    // So slow that the bytes have to be counted, and so slow that only news of the gateway helps.
    for turn_ms in [30, 80] {
        let host = &mut Host::new(GROUPS as u16, settings("no"));
        let client = host.connect(0);
        fill(host, client, "large");
        assert_eq!(host.run(client, "MULTI"), "+OK");
        for group in 0..GROUPS {
            assert_eq!(host.run(client, &format!("COPY large {}", key_of(group, GROUPS))), "+QUEUED");
        }
        host.send(client, b"EXEC\r\n");
        let answer = answer_after_turns(host, client, Duration::from_millis(turn_ms));
        assert_eq!(answer, "*6 :1 :1 :1 :1 :1 :1", "with turns of {turn_ms} ms");
        for group in 0..GROUPS {
            assert_eq!(host.run(client, &format!("SCARD {}", key_of(group, GROUPS))), format!(":{COUNT}"));
        }
    }
}

#[test]
fn locks_that_were_granted_first_last_while_a_large_value_of_another_group_is_read() {
    let host = &mut Host::new(3, settings("no"));
    let [client, other] = [host.connect(0), host.connect(0)];
    let (first, large) = (key_of(0, 3), key_of(2, 3));
    fill(host, client, &large);
    for line in ["MULTI".to_owned(), format!("GET {first}"), format!("SCARD {large}")] {
        host.run(client, &line);
    }
    host.send(client, b"EXEC\r\n");
    host.turn();
    host.send(other, format!("SET {first} x\r\n").as_bytes());
    let answer = answer_after_turns(host, client, Duration::from_millis(1_300));
    assert_eq!(answer, format!("*2 $-1 :{COUNT}"));
    assert_eq!(host.received(other), "", "it waits until the locks are let go");
    host.settle();
    assert_eq!(host.received(other), "+OK");
}
