//! Stories of large values that go to another group: others are served between their pieces.

use group::ids::SessionId;

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

/// Sends a line and takes turns until it is answered, four at a time; between them another client writes and reads,
/// and is answered at once. How often, and the answer.
fn run_among_others(host: &mut Host, client: SessionId, other: SessionId, line: &str) -> (usize, String) {
    host.send(client, format!("{line}\r\n").as_bytes());
    for count in 1.. {
        host.send(other, b"SET others x\r\nGET others\r\n");
        for _ in 0..4 {
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
        assert!(!(3..=7).contains(&count), "{count}");
        far_count += usize::from(count > 7);
    }
    assert!((1..4).contains(&far_count), "{far_count} of the keys are elsewhere");
    for key in ["e", "f", "g"] {
        let (_, answer) = run_among_others(host, client, other, &format!("RENAME large {key}"));
        assert_eq!(answer, "+OK");
        assert_eq!(digest(host, key), wanted);
        let (_, answer) = run_among_others(host, client, other, &format!("RENAME {key} large"));
        assert_eq!(answer, "+OK");
        let (_, answer) = run_among_others(host, client, other, &format!("EXISTS {key} large"));
        assert_eq!(answer, ":1");
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
    assert!(count > 30, "{count}");
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
