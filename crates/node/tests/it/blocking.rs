//! Stories of clients that wait for data.

use stdx::Duration;

use crate::host::Host;
use crate::{everywhere, settings};

#[test]
fn an_item_goes_to_the_one_who_waited_first() {
    everywhere(|host| {
        let waiters: Vec<_> = (0..3).map(|core| host.connect(core % host.core_count())).collect();
        let pusher = host.connect(0);
        for waiter in &waiters {
            assert_eq!(host.run(*waiter, "BLPOP queue 0"), "");
        }
        assert_eq!(host.run(pusher, "RPUSH queue a"), ":1");
        assert_eq!(host.received(waiters[0]), "*2 $5 queue $1 a");
        assert_eq!(host.run(pusher, "RPUSH queue b c d"), ":3");
        assert_eq!(host.received(waiters[1]), "*2 $5 queue $1 b");
        assert_eq!(host.received(waiters[2]), "*2 $5 queue $1 c");
        assert_eq!(host.run(pusher, "LRANGE queue 0 -1"), "*1 $1 d");
        assert_eq!(host.run(waiters[0], "BLPOP queue 0"), "*2 $5 queue $1 d");
        assert_eq!(host.run(pusher, "EXISTS queue"), ":0");
    });
}

#[test]
fn who_waits_for_keys_of_several_groups_gets_one_item_from_one_of_them() {
    everywhere(|host| {
        let (waiter, pusher) = (host.connect(0), host.connect(0));
        assert_eq!(host.run(waiter, "BRPOP a b c d e 0"), "");
        assert_eq!(host.run(pusher, "MULTI"), "+OK");
        for key in ["e", "d", "c"] {
            assert_eq!(host.run(pusher, &format!("RPUSH {key} {key}")), "+QUEUED");
        }
        assert_eq!(host.run(pusher, "EXEC"), "*3 :1 :1 :1");
        // All are there at one moment, so the order of the request decides.
        assert_eq!(host.received(waiter), "*2 $1 c $1 c");
        assert_eq!(host.run(pusher, "EXISTS c d e"), ":2");
        assert_eq!(host.run(pusher, "RPUSH a x"), ":1");
        assert_eq!(host.received(waiter), "");
    });
}

#[test]
fn a_consumer_that_waits_changes_nothing_until_it_gets_something() {
    everywhere(|host| {
        let [member, other] = [(); 2].map(|()| host.connect(0));
        host.run(other, "XGROUP CREATE s g $ MKSTREAM");
        assert_eq!(host.run(member, "XREADGROUP GROUP g waits BLOCK 0 STREAMS s >"), "");
        assert_eq!(host.run(other, "XINFO CONSUMERS s g"), "*0");
        assert_eq!(host.run(other, "XREADGROUP GROUP g asks STREAMS s >"), "*-1");
        assert!(host.run(other, "XINFO CONSUMERS s g").starts_with("*1"));
        host.run(other, "XADD s 1-0 f v");
        assert!(host.received(member).contains("1-0"));
        assert!(host.run(other, "XINFO CONSUMERS s g").starts_with("*2"));
    });
}

#[test]
fn who_waits_for_several_items_gets_them_at_once() {
    everywhere(|host| {
        let [first, second, pusher] = [(); 3].map(|()| host.connect(0));
        assert_eq!(host.run(first, "BLMOVEM queue done LEFT RIGHT 0 EXACTLY 3 BULK"), "");
        assert_eq!(host.run(second, "BLMOVEM queue other LEFT RIGHT 0 COUNT 5 OBO"), "");
        // A client that waits behind one that has not enough is served.
        assert_eq!(host.run(pusher, "RPUSH queue a b"), ":2");
        assert_eq!(host.received(second), "*2 $1 a $1 b");
        assert_eq!(host.received(first), "");
        host.run(pusher, "RPUSH queue c d");
        assert_eq!(host.received(first), "");
        host.run(pusher, "LINSERT queue BEFORE c x");
        assert_eq!(host.received(first), "*3 $1 x $1 c $1 d");
        assert_eq!(host.run(pusher, "LRANGE done 0 -1"), "*3 $1 x $1 c $1 d");
        assert_eq!(host.run(first, "BLMOVEM queue done LEFT RIGHT 0.1 EXACTLY 3 BULK"), "");
        host.pass(Duration::from_millis(100));
        assert_eq!(host.received(first), "*-1");
    });
}

#[test]
fn a_wait_ends_with_its_time() {
    everywhere(|host| {
        let (waiter, pusher) = (host.connect(0), host.connect(0));
        assert_eq!(host.run(waiter, "BLPOP queue 0.5"), "");
        host.pass(Duration::from_millis(499));
        assert_eq!(host.received(waiter), "");
        host.pass(Duration::from_millis(1));
        assert_eq!(host.received(waiter), "*-1");
        assert_eq!(host.run(pusher, "RPUSH queue a"), ":1");
        assert_eq!(host.received(waiter), "");
        assert_eq!(host.run(pusher, "LLEN queue"), ":1");
        for line in ["BLPOP queue x", "BLPOP queue -1"] {
            assert!(host.run(waiter, line).starts_with("-ERR timeout is"), "{line}");
        }
    });
}

#[test]
fn who_has_gone_takes_nothing() {
    everywhere(|host| {
        let (first, second, pusher) = (host.connect(0), host.connect(host.core_count() - 1), host.connect(0));
        assert_eq!(host.run(first, "BLPOP queue other 0"), "");
        assert_eq!(host.run(second, "BLPOP queue 0"), "");
        host.close(first);
        assert_eq!(host.run(pusher, "RPUSH queue a"), ":1");
        assert_eq!(host.received(second), "*2 $5 queue $1 a");
        assert_eq!(host.run(pusher, "RPUSH other b"), ":1");
        assert_eq!(host.run(pusher, "LLEN other"), ":1");
    });
}

#[test]
fn requests_behind_a_wait_wait_too() {
    everywhere(|host| {
        let (waiter, pusher) = (host.connect(0), host.connect(0));
        host.send(waiter, b"SET a 1\r\nBLPOP queue 0\r\nGET a\r\nSET a 2\r\n");
        host.settle();
        assert_eq!(host.received(waiter), "+OK");
        assert_eq!(host.run(pusher, "GET a"), "$1 1");
        assert_eq!(host.run(pusher, "LPUSH queue x"), ":1");
        assert_eq!(host.received(waiter), "*2 $5 queue $1 x $1 1 +OK");
    });
}

#[test]
fn nobody_waits_inside_a_transaction() {
    everywhere(|host| {
        let client = host.connect(0);
        assert_eq!(host.run(client, "MULTI"), "+OK");
        assert_eq!(host.run(client, "BLPOP queue 0"), "+QUEUED");
        assert_eq!(host.run(client, "BLMOVE queue other LEFT RIGHT 0"), "+QUEUED");
        assert_eq!(host.run(client, "EXEC"), "*2 *-1 $-1");
    });
}

#[test]
fn a_key_that_comes_and_goes_within_a_transaction_wakes_nobody() {
    everywhere(|host| {
        let (waiter, pusher) = (host.connect(0), host.connect(0));
        assert_eq!(host.run(waiter, "BLPOP queue 0"), "");
        for line in ["MULTI", "LPUSH queue a", "DEL queue", "EXEC"] {
            host.run(pusher, line);
        }
        assert_eq!(host.received(waiter), "");
        for line in ["MULTI", "LPUSH queue a", "DEL queue", "LPUSH queue b", "EXEC"] {
            host.run(pusher, line);
        }
        assert_eq!(host.received(waiter), "*2 $5 queue $1 b");
    });
}

#[test]
fn a_string_under_the_name_leaves_the_waiter_in_peace() {
    everywhere(|host| {
        let (waiter, pusher) = (host.connect(0), host.connect(0));
        assert_eq!(host.run(waiter, "BLPOP queue 0"), "");
        assert_eq!(host.run(pusher, "SET queue text"), "+OK");
        assert_eq!(host.received(waiter), "");
        assert_eq!(host.run(pusher, "DEL queue"), ":1");
        assert_eq!(host.run(pusher, "RPUSH other a"), ":1");
        assert_eq!(host.run(pusher, "RENAME other queue"), "+OK");
        assert_eq!(host.received(waiter), "*2 $5 queue $1 a");
    });
}

#[test]
fn items_move_along_a_chain_of_waiters() {
    everywhere(|host| {
        let (first, second, pusher) = (host.connect(0), host.connect(host.core_count() - 1), host.connect(0));
        assert_eq!(host.run(first, "BLMOVE one two LEFT RIGHT 0"), "");
        assert_eq!(host.run(second, "BRPOPLPUSH two three 0"), "");
        assert_eq!(host.run(pusher, "RPUSH one a"), ":1");
        assert_eq!(host.received(first), "$1 a");
        assert_eq!(host.received(second), "$1 a");
        assert_eq!(host.run(pusher, "LRANGE three 0 -1"), "*1 $1 a");
        assert_eq!(host.run(pusher, "EXISTS one two"), ":0");
    });
}

#[test]
fn sorted_sets_are_waited_for() {
    everywhere(|host| {
        let (lowest, highest, pusher) = (host.connect(0), host.connect(0), host.connect(0));
        assert_eq!(host.run(lowest, "BZPOPMIN scores 0"), "");
        assert_eq!(host.run(highest, "BZMPOP 0 1 scores MAX COUNT 2"), "");
        assert_eq!(host.run(pusher, "ZADD scores 1 a 2 b 3 c"), ":3");
        assert_eq!(host.received(lowest), "*3 $6 scores $1 a $1 1");
        assert_eq!(host.received(highest), "*2 $6 scores *2 *2 $1 c $1 3 *2 $1 b $1 2");
    });
}

#[test]
fn a_client_can_be_released_by_another() {
    everywhere(|host| {
        let (waiter, other) = (host.connect(host.core_count() - 1), host.connect(0));
        let number = host.run(waiter, "CLIENT ID").trim_start_matches(':').to_owned();
        assert_eq!(host.run(other, &format!("CLIENT UNBLOCK {number}")), ":0");
        assert_eq!(host.run(waiter, "BLPOP queue 0"), "");
        assert!(host.run(other, "INFO clients").contains("blocked_clients:1"));
        assert_eq!(host.run(other, &format!("CLIENT UNBLOCK {number}")), ":1");
        assert_eq!(host.received(waiter), "*-1");
        assert_eq!(host.run(waiter, "BLPOP queue 0"), "");
        assert_eq!(host.run(other, &format!("CLIENT UNBLOCK {number} ERROR")), ":1");
        assert_eq!(host.received(waiter), "-UNBLOCKED client unblocked via CLIENT UNBLOCK");
        assert!(host.run(other, "INFO clients").contains("blocked_clients:0"));
    });
}

#[test]
fn an_item_is_given_only_when_it_is_safe() {
    let mut host = Host::new(1, settings("always"));
    let (waiter, pusher) = (host.connect(0), host.connect(0));
    assert_eq!(host.run(waiter, "BLPOP queue 0"), "");
    host.holds_disk = true;
    assert_eq!(host.run(pusher, "RPUSH queue a"), "");
    assert_eq!(host.received(waiter), "");
    // The push is on disk, and the pop that it has set off is not.
    host.sync();
    host.settle();
    assert_eq!(host.received(pusher), ":1");
    assert_eq!(host.received(waiter), "");
    host.holds_disk = false;
    host.settle();
    assert_eq!(host.received(waiter), "*2 $5 queue $1 a");
}

#[test]
fn what_is_taken_for_one_who_has_gone_meanwhile_goes_back() {
    for (request, fill, look, whole) in [
        ("BLPOP queue 0", "RPUSH queue a b c", "LRANGE queue 0 -1", "*3 $1 a $1 b $1 c"),
        ("BRPOP other queue 0", "RPUSH queue a b c", "LRANGE queue 0 -1", "*3 $1 a $1 b $1 c"),
        ("BLMPOP 0 1 queue LEFT COUNT 2", "RPUSH queue a b c", "LRANGE queue 0 -1", "*3 $1 a $1 b $1 c"),
        ("BLMPOP 0 1 queue RIGHT COUNT 3", "RPUSH queue a b c", "LRANGE queue 0 -1", "*3 $1 a $1 b $1 c"),
        ("BZPOPMAX queue 0", "ZADD queue 1 a 2.5 b", "ZRANGE queue 0 -1 WITHSCORES", "*4 $1 a $1 1 $1 b $3 2.5"),
        ("BZMPOP 0 1 queue MIN COUNT 9", "ZADD queue 1 a 2 b", "ZRANGE queue 0 -1", "*2 $1 a $1 b"),
        // It is where others may have seen it.
        ("BLMOVE queue target LEFT LEFT 0", "RPUSH queue a b c", "LRANGE target 0 -1", "*1 $1 a"),
    ] {
        let mut host = Host::new(1, settings("always"));
        let (waiter, pusher) = (host.connect(0), host.connect(0));
        assert_eq!(host.run(waiter, request), "");
        host.holds_disk = true;
        assert_eq!(host.run(pusher, fill), "");
        // What fills it is on disk, and the try that it has set off is not.
        host.sync();
        host.settle();
        host.close(waiter);
        host.holds_disk = false;
        host.settle();
        host.received(pusher);
        assert_eq!(host.run(pusher, look), whole, "{request}");
    }
}

#[test]
fn what_was_taken_goes_back_until_one_byte_of_the_reply_is_with_the_system() {
    everywhere(|host| {
        let pusher = host.connect(0);
        let reply_bytes = "*2\r\n$5\r\nqueue\r\n$1\r\na\r\n".len() as u64;
        for (unsent_bytes, is_back) in [(reply_bytes - 1, false), (reply_bytes, true), (reply_bytes + 900, true)] {
            let waiter = host.connect(host.core_count() - 1);
            assert_eq!(host.run(waiter, "BLPOP queue 0"), "");
            // It does not take what it gets.
            host.backlog(waiter, 1_000);
            host.run(pusher, "RPUSH queue a b");
            host.close_unsent(waiter, unsent_bytes);
            let left = if is_back { "*2 $1 a $1 b" } else { "*1 $1 b" };
            assert_eq!(host.run(pusher, "LRANGE queue 0 -1"), left, "{unsent_bytes}");
            host.run(pusher, "DEL queue");
        }
    });
}

#[test]
fn what_goes_back_is_for_the_next_in_line_and_what_cannot_is_told() {
    everywhere(|host| {
        let (first, second, pusher) = (host.connect(0), host.connect(0), host.connect(0));
        for waiter in [first, second] {
            assert_eq!(host.run(waiter, "BLPOP queue 0"), "");
        }
        host.backlog(first, 1_000);
        assert_eq!(host.run(pusher, "RPUSH queue a"), ":1");
        assert_eq!(host.received(second), "");
        host.close_unsent(first, 1_000);
        assert_eq!(host.received(second), "*2 $5 queue $1 a");

        let third = host.connect(0);
        assert_eq!(host.run(third, "BLPOP queue 0"), "");
        host.backlog(third, 1_000);
        host.run(pusher, "RPUSH queue a");
        assert_eq!(host.run(pusher, "SET queue text"), "+OK");
        host.close_unsent(third, 1_000);
        assert_eq!(host.run(pusher, "GET queue"), "$4 text");
        assert!(host.log.iter().any(|line| line.contains("BLPOP had taken, which cannot be put back: WRONGTYPE")));
    });
}

#[test]
fn entries_of_streams_are_waited_for() {
    everywhere(|host| {
        let (reader, member, other, writer) = (host.connect(0), host.connect(0), host.connect(0), host.connect(0));
        assert_eq!(host.run(writer, "XADD s 1-1 f a"), "$3 1-1");
        assert_eq!(host.run(writer, "XGROUP CREATE s g $"), "+OK");
        // The dollar is the end of the stream when the wait begins, not when it is looked at again.
        assert_eq!(host.run(reader, "XREAD BLOCK 0 STREAMS none s $ $"), "");
        assert_eq!(host.run(member, "XREADGROUP GROUP g m BLOCK 0 STREAMS s >"), "");
        assert_eq!(host.run(other, "XREAD BLOCK 100 STREAMS s $"), "");
        host.pass(Duration::from_millis(100));
        assert_eq!(host.received(other), "*-1");
        assert_eq!(host.run(writer, "XADD s 1-2 f b"), "$3 1-2");
        let entry = "*1 *2 $1 s *1 *2 $3 1-2 *2 $1 f $1 b";
        assert_eq!(host.received(reader), entry);
        assert_eq!(host.received(member), entry);
    });
}

#[test]
fn who_reads_for_a_group_is_told_when_the_stream_or_the_group_has_gone() {
    everywhere(|host| {
        let [first, second, reader, writer] = [(); 4].map(|()| host.connect(0));
        let no_group = "-NOGROUP No such key 's' or consumer group 'g' in XREADGROUP with GROUP option";
        let wrong_type = "-WRONGTYPE Operation against a key holding the wrong kind of value";
        for (lines, told) in [
            (&["DEL s"][..], no_group),
            (&["XGROUP DESTROY s g"], no_group),
            (&["FLUSHALL"], no_group),
            (&["PEXPIREAT s 1"], no_group),
            (&["SET s v"], wrong_type),
            (&["MULTI", "DEL s", "RPUSH s v", "EXEC"], wrong_type),
        ] {
            host.run(writer, "DEL s");
            assert_eq!(host.run(writer, "XGROUP CREATE s g $ MKSTREAM"), "+OK");
            assert_eq!(host.run(first, "XREADGROUP GROUP g a BLOCK 0 STREAMS s >"), "");
            assert_eq!(host.run(second, "XREADGROUP GROUP g b BLOCK 0 STREAMS s >"), "");
            for line in lines {
                host.run(writer, line);
            }
            assert_eq!([host.received(first), host.received(second)], [told; 2], "{lines:?}");
        }
        // Who reads for itself waits on.
        host.run(writer, "DEL s");
        assert_eq!(host.run(writer, "XADD s 1-1 f a"), "$3 1-1");
        assert_eq!(host.run(reader, "XREAD BLOCK 0 STREAMS s 1-1"), "");
        assert_eq!(host.run(writer, "DEL s"), ":1");
        assert_eq!(host.received(reader), "");
        assert_eq!(host.run(writer, "XADD s 1-2 f b"), "$3 1-2");
        assert_eq!(host.received(reader), "*1 *2 $1 s *1 *2 $3 1-2 *2 $1 f $1 b");
    });
}

#[test]
fn who_would_claim_is_woken_when_something_has_been_pending_for_long_enough() {
    everywhere(|host| {
        let [alice, bob, carol, other] = [(); 4].map(|()| host.connect(0));
        host.run(other, "XGROUP CREATE s g $ MKSTREAM");
        let claim = |name: &str, ms: u32| format!("XREADGROUP GROUP g {name} BLOCK 0 CLAIM {ms} STREAMS s >");
        // Nothing is pending when they begin to wait.
        assert_eq!(host.run(bob, &claim("bob", 50)), "");
        assert_eq!(host.run(carol, &claim("carol", 80)), "");
        host.run(other, "XADD s 1-0 f v");
        assert_eq!(host.received(bob), "*1 *2 $1 s *1 *4 $3 1-0 *2 $1 f $1 v :0 :0");
        assert_eq!(host.run(bob, &claim("bob", 50)), "");
        host.pass(Duration::from_millis(49));
        assert_eq!(host.received(bob), "");
        host.pass(Duration::from_millis(1));
        assert_eq!(host.received(bob), "*1 *2 $1 s *1 *4 $3 1-0 *2 $1 f $1 v :50 :1");
        // It was given out once more, so the other one's time starts over.
        host.pass(Duration::from_millis(79));
        assert_eq!(host.received(carol), "");
        host.pass(Duration::from_millis(1));
        assert_eq!(host.received(carol), "*1 *2 $1 s *1 *4 $3 1-0 *2 $1 f $1 v :80 :2");
        // So is who waits when something is said to have been pending for long, or becomes pending by force.
        assert_eq!(host.run(bob, &claim("bob", 5_000)), "");
        host.run(other, "XCLAIM s g dave 0 1-0 IDLE 6000");
        assert_eq!(host.received(bob), "*1 *2 $1 s *1 *4 $3 1-0 *2 $1 f $1 v :6000 :4");
        host.run(other, "XACK s g 1-0");
        assert_eq!(host.run(bob, &claim("bob", 30)), "");
        host.run(other, "XCLAIM s g dave 0 1-0 FORCE RETRYCOUNT 3");
        host.pass(Duration::from_millis(30));
        assert_eq!(host.received(bob), "*1 *2 $1 s *1 *4 $3 1-0 *2 $1 f $1 v :30 :3");
        // What is acknowledged is claimed by nobody.
        assert_eq!(host.run(alice, &claim("alice", 20)), "");
        assert_eq!(host.run(other, "XACK s g 1-0"), ":1");
        host.pass(Duration::from_millis(200));
        assert_eq!(host.received(alice), "");
    });
}

#[test]
fn a_request_that_would_wait_for_no_key_is_refused() {
    everywhere(|host| {
        let client = host.connect(0);
        for (line, why) in [
            ("BZMPOP 0 0 key MIN", "numkeys should be greater than 0"),
            ("BZMPOP 0 a key MIN", "numkeys should be greater than 0"),
            ("BZMPOP 0 7 key MIN", "syntax error"),
            ("BLMPOP 0 -1 key LEFT", "numkeys should be greater than 0"),
            ("BLMPOP 0 9223372036854775807 key LEFT", "syntax error"),
            ("XREAD BLOCK 0 COUNT 1 STREAM key $", "syntax error"),
            (
                "XREAD BLOCK 0 STREAMS key",
                "Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.",
            ),
        ] {
            assert_eq!(host.run(client, line), format!("-ERR {why}"), "{line}");
            assert!(host.run(client, "INFO clients").contains("blocked_clients:0"));
        }
    });
}
