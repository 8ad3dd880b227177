//! A group splits while clients are at work with what goes and with what stays.

use group::ids::{GroupId, SessionId};
use node::settings::Settings;
use stdx::Duration;
use stdx::slot::slot_of;

use crate::host::Host;

pub(crate) const TICK: Duration = Duration::from_millis(100);

/// What group 0 of two must let go, as `HOLDFAST SPLIT` has it.
const GOING: &str = "4096-8191";

/// Some keys of slots from `first` to `last`.
pub(crate) fn keys_of(first: u16, last: u16, count: usize) -> Vec<String> {
    let keys = (0..).map(|number| format!("key:{number}"));
    keys.filter(|key| (first..=last).contains(&slot_of(key.as_bytes()).0)).take(count).collect()
}

/// Asks for a split, and again until that is taken for possible.
fn ask_for(host: &mut Host, operator: SessionId, words: &str) {
    for _ in 0..100 {
        let answer = host.run(operator, &format!("HOLDFAST SPLIT {words}"));
        if answer == "+OK" {
            return;
        }
        assert!(answer.starts_with("-TRYAGAIN"), "{answer}");
        host.pass(TICK);
    }
    panic!("it never was possible");
}

/// Lets time pass until a group is led here and holds so many slots.
fn wait_until_led(host: &mut Host, group: u32, slots: &str) {
    let operator = host.connect(0);
    for _ in 0..100 {
        host.pass(TICK);
        let status = host.run(operator, "HOLDFAST CLUSTER");
        if host.is_serving(GroupId(group)) && status.contains(&format!("slots ${} {slots}", slots.len())) {
            return;
        }
    }
    panic!("group {group} is not there: {}", host.run(operator, "HOLDFAST CLUSTER"));
}

/// A node of two cores, with leaders that have told how their groups are.
fn node_of_two() -> (Host, SessionId) {
    let mut host = Host::new(2, Settings::default());
    let operator = host.connect(0);
    assert_eq!(host.run(operator, "HOLDFAST BALANCE OFF"), "+OK");
    (host, operator)
}

#[test]
fn what_clients_have_begun_goes_on_in_both_halves() {
    let (mut host, operator) = node_of_two();
    let (goes, stays) = (keys_of(4096, 8191, 60), keys_of(0, 4095, 60));
    let client = host.connect(1);
    for (place, key) in goes.iter().chain(&stays).enumerate() {
        assert_eq!(host.run(client, &format!("SET {key} {place}")), "+OK");
    }
    let [list, timed, watched, counted] = [&goes[0], &goes[1], &goes[2], &goes[3]].map(String::as_str);
    host.run(client, &format!("DEL {list}"));
    assert_eq!(host.run(client, &format!("PEXPIRE {timed} 60000")), ":1");

    // One waits for an element, on a key that goes and on one that stays.
    let waiting = host.connect(0);
    host.send(waiting, format!("BLPOP {list} {{{list}}}other {list} 0\r\n").as_bytes());
    let patient = host.connect(1);
    host.send(patient, format!("BLMOVE {list}2 {list}2 LEFT LEFT 0\r\n").as_bytes());
    // One watches keys of both halves of which one will be changed, and one watches what nobody changes.
    let careful = host.connect(0);
    assert_eq!(host.run(careful, &format!("WATCH {watched} {}", stays[2])), "+OK");
    let lucky = host.connect(1);
    assert_eq!(host.run(lucky, &format!("WATCH {} {} {{{}}}absent", goes[4], stays[4], goes[4])), "+OK");
    // One keeps what it has read.
    let caching = host.connect(0);
    assert!(host.run(caching, "HELLO 3").starts_with('%'));
    assert_eq!(host.run(caching, "CLIENT TRACKING ON"), "+OK");
    host.run(caching, &format!("GET {}", goes[5]));
    host.run(caching, &format!("GET {}", stays[5]));
    // One is in the middle of a transaction over both.
    let queued = host.connect(1);
    assert_eq!(host.run(queued, "MULTI"), "+OK");
    assert_eq!(host.run(queued, &format!("INCR {counted}")), "+QUEUED");
    assert_eq!(host.run(queued, &format!("INCR {}", stays[3])), "+QUEUED");
    host.settle();

    ask_for(&mut host, operator, &format!("0 {GOING}"));
    wait_until_led(&mut host, 2, GOING);

    // A client that waits stands in line again where the keys are now.
    (0..20).for_each(|_| host.pass(TICK));
    assert_eq!(host.received(waiting), "");
    assert_eq!(host.run(client, &format!("RPUSH {list} first")), ":1");
    assert_eq!(host.received(waiting), format!("*2 ${} {list} $5 first", list.len()));
    assert_eq!(host.received(patient), "");
    assert_eq!(host.run(client, &format!("RPUSH {list}2 second")), ":1");
    assert_eq!(host.received(patient), "$6 second");

    assert_eq!(host.run(client, &format!("SET {watched} changed")), "+OK");
    for (session, kept) in [(careful, false), (lucky, true)] {
        assert_eq!(host.run(session, "MULTI"), "+OK");
        assert_eq!(host.run(session, &format!("SET {} by", goes[6])), "+QUEUED");
        assert_eq!(host.run(session, &format!("SET {} by", stays[6])), "+QUEUED");
        assert_eq!(host.run(session, "EXEC"), if kept { "*2 +OK +OK" } else { "*-1" });
    }
    assert_eq!(host.run(queued, "EXEC"), "*2 :4 :64");

    for key in [&goes[5], &stays[5]] {
        let before = host.received(caching);
        assert_eq!(host.run(client, &format!("SET {key} new")), "+OK");
        // A cache may have been told of the key by the split; then it has nothing to be told any more.
        let told = format!("{before} {}", host.received(caching));
        assert!(told.contains(&format!("${} {key}", key.len())) || told.contains("invalidate *-1"), "{key}: {told}");
    }

    let left: i64 = host.run(client, &format!("PTTL {timed}"))[1..].parse().expect("a number");
    assert!((1..60_000).contains(&left), "{left}");
    assert_eq!(host.run(client, "DBSIZE"), ":120");
    for _ in 0..7 {
        host.pass(Duration::from_secs(10));
    }
    assert_eq!(host.run(client, &format!("EXISTS {timed}")), ":0");
    assert_eq!(host.run(client, "DBSIZE"), ":119");
    for (place, key) in goes.iter().chain(&stays).enumerate().filter(|(place, _)| place % 60 > 6) {
        assert_eq!(host.run(client, &format!("GET {key}")), format!("${} {place}", place.to_string().len()));
    }
    assert_eq!(host.run(client, "FLUSHALL"), "+OK");
    assert_eq!(host.run(client, "DBSIZE"), ":0");
}

#[test]
fn a_group_that_has_split_off_splits_again() {
    for cores in [1, 2, 3] {
        let mut host = Host::new(cores, Settings::default());
        let operator = host.connect(0);
        assert_eq!(host.run(operator, "HOLDFAST BALANCE OFF"), "+OK");
        let client = host.connect(usize::from(cores) - 1);
        let keys = keys_of(0, 16_383, 300);
        for key in &keys {
            assert_eq!(host.run(client, &format!("SET {key} {key}")), "+OK");
        }
        let first = u32::from(cores);
        let splits =
            [(first, 0, "2048-5000"), (first + 1, first, "4096-5000"), (first + 2, first + 1, "4600-4601,4700-4710")];
        for (new, parent, slots) in splits {
            ask_for(&mut host, operator, &format!("{parent} {slots}"));
            // What is about everything is carried out on everything, whatever it knows of groups when it is asked for.
            host.send(client, b"DBSIZE\r\nINCRBY n 1\r\nEVAL \"return redis.call('DBSIZE')\" 0\r\nDEL n\r\n");
            wait_until_led(&mut host, new, slots);
            assert_eq!(host.received(client), ":300 :1 :301 :1", "{cores} cores, group {new}");
        }
        for key in &keys {
            assert_eq!(host.run(client, &format!("GET {key}")), format!("${} {key}", key.len()));
        }
    }
}

#[test]
fn nobody_leads_the_new_group_before_its_beginning_is_durable() {
    let (mut host, operator) = node_of_two();
    let words = format!("HOLDFAST SPLIT 0 {GOING}");
    assert!(host.run(operator, &words).starts_with("-TRYAGAIN"), "it becomes a cluster of one");
    (0..20).for_each(|_| host.pass(TICK));
    host.holds_disk = true;
    host.send(operator, format!("{words}\r\n").as_bytes());
    // What is logged is made durable until the beginning of the group waits for the disk, and for nothing else.
    for _ in 0..20 {
        if host.has_logged(GroupId(2)) {
            break;
        }
        host.sync();
        host.turn();
    }
    assert!(host.has_logged(GroupId(2)));
    for _ in 0..20 {
        host.pass(TICK);
        assert!(!host.is_serving(GroupId(2)), "it is led before it is on disk");
    }
    let client = host.connect(1);
    host.send(client, format!("SET {} 1\r\n", keys_of(4096, 8191, 1)[0]).as_bytes());
    host.pass(TICK);
    assert_eq!(host.received(client), "");
    host.holds_disk = false;
    wait_until_led(&mut host, 2, GOING);
    assert_eq!(host.received(client), "+OK");
}

#[test]
fn the_log_of_the_other_group_stays_until_the_new_one_has_a_checkpoint() {
    let (mut host, operator) = node_of_two();
    let client = host.connect(1);
    for key in keys_of(0, 8191, 50) {
        assert_eq!(host.run(client, &format!("SET {key} 1")), "+OK");
    }
    host.is_full = true; // no checkpoint can be kept
    ask_for(&mut host, operator, &format!("0 {GOING}"));
    wait_until_led(&mut host, 2, GOING);
    // A backup would have to pass over what the log holds. One that asks again and again keeps no group from its
    // checkpoint.
    let begin = "BACKUP BEGIN 000102030405060708090a0b0c0d0e0f";
    let answer = host.run(operator, begin);
    assert_eq!(answer, "-TRYAGAIN A group that has split off from group 0 is being written to disk");
    host.is_full = false;
    for _ in 0..300 {
        host.pass(Duration::from_secs(1));
        let answer = host.run(operator, begin);
        if answer.starts_with('*') {
            return;
        }
        assert!(answer.starts_with("-TRYAGAIN"), "{answer}");
    }
    panic!("no backup ever began: {}", host.run(operator, begin));
}

/// Whatever else is to leave the group waits for the split, and an operator learns why.
#[test]
fn a_split_that_waits_is_told_with_what_it_waits_for() {
    let (mut host, operator) = node_of_two();
    host.holds_checkpoints = true;
    assert!(host.run(operator, "BGSAVE").starts_with('+'));
    ask_for(&mut host, operator, &format!("0 {GOING}"));
    assert_eq!(host.run(operator, "HOLDFAST MOVE 0 1 1"), "+OK");
    let told = "is to split off from group 0, and has waited for 5 s: a checkpoint is being written. Other moves of slots \
                out of group 0 wait for that";
    for (seconds, is_told) in [(4, 0), (26, 1)] {
        (0..seconds).for_each(|_| host.pass(Duration::from_secs(1)));
        let timeline = host.run(operator, "HOLDFAST TIMELINE");
        assert_eq!(timeline.matches(told).count(), is_told, "after {seconds} s: {timeline}");
        let status = host.run(operator, "HOLDFAST CLUSTER");
        assert!(status.contains("to_give :4098") && status.contains("to_split :4096"), "{status}");
    }
    host.write_checkpoints();
    wait_until_led(&mut host, 2, GOING);
    wait_until_led(&mut host, 0, "2-4095");
    assert!(!host.run(operator, "HOLDFAST CLUSTER").contains("to_split :4096"));
}

#[test]
fn what_cannot_be_split_is_refused_in_words() {
    let (mut host, operator) = node_of_two();
    ask_for(&mut host, operator, &format!("0 {GOING}"));
    wait_until_led(&mut host, 2, GOING);
    for (words, why) in [
        ("9 1", "-ERR no group of this cluster is '9'"),
        ("x 1", "-ERR no group of this cluster is 'x'"),
        ("0 4096", "-ERR group 0 does not hold slot 4096: group 2 does"),
        ("0 0-4095", "-ERR group 0 would be left with no slot"),
        ("0 7-5", "-ERR '7-5' names no slots: one, or FIRST-LAST, is expected"),
        ("0 16384", "-ERR '16384' names no slots: one, or FIRST-LAST, is expected"),
        ("0 1,,2", "-ERR '' names no slots: one, or FIRST-LAST, is expected"),
    ] {
        assert_eq!(host.run(operator, &format!("HOLDFAST SPLIT {words}")), why);
    }
}

#[test]
fn nothing_splits_below_the_level_that_brought_it() {
    let mut host = Host::unloaded(2, Settings::default(), 1);
    host.load(1, &[1]);
    let operator = host.connect(0);
    assert_eq!(
        host.run(operator, &format!("HOLDFAST SPLIT 0 {GOING}")),
        "-ERR groups split at level 2, and the cluster is at level 1: see HOLDFAST UPGRADE"
    );
}
