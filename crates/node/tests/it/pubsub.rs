//! Stories of channels and those who listen to them.

use node::settings::Settings;
use stdx::Duration;

use crate::everywhere;
use crate::host::Host;

/// A client on each of the host's cores, or three on the only one.
fn clients(host: &mut Host) -> [group::ids::SessionId; 3] {
    let last = host.core_count() - 1;
    [host.connect(0), host.connect(last), host.connect(last / 2)]
}

#[test]
fn a_message_reaches_everybody_who_listens_on_whatever_core() {
    everywhere(|host| {
        let [first, second, publisher] = clients(host);
        assert_eq!(host.run(first, "SUBSCRIBE news sport"), "*3 $9 subscribe $4 news :1 *3 $9 subscribe $5 sport :2");
        assert_eq!(host.run(second, "PSUBSCRIBE n*"), "*3 $10 psubscribe $2 n* :1");
        assert_eq!(host.run(publisher, "PUBLISH news hello"), ":2");
        assert_eq!(host.received(first), "*3 $7 message $4 news $5 hello");
        assert_eq!(host.received(second), "*4 $8 pmessage $2 n* $4 news $5 hello");
        assert_eq!(host.run(publisher, "PUBLISH sport x"), ":1");
        assert_eq!(host.run(publisher, "PUBLISH weather x"), ":0");
        assert_eq!(host.run(first, "UNSUBSCRIBE news"), "*3 $7 message $5 sport $1 x *3 $11 unsubscribe $4 news :1");
        assert_eq!(host.run(publisher, "PUBLISH news again"), ":1");
        assert_eq!(host.received(first), "");
    });
}

#[test]
fn one_who_listens_twice_hears_twice() {
    everywhere(|host| {
        let [listener, _, publisher] = clients(host);
        host.run(listener, "SUBSCRIBE foo.bar");
        assert_eq!(host.run(listener, "PSUBSCRIBE foo.*"), "*3 $10 psubscribe $5 foo.* :2");
        assert_eq!(host.run(listener, "SUBSCRIBE foo.bar"), "*3 $9 subscribe $7 foo.bar :2");
        assert_eq!(host.run(publisher, "PUBLISH foo.bar hi"), ":2");
        assert_eq!(host.received(listener), "*3 $7 message $7 foo.bar $2 hi *4 $8 pmessage $5 foo.* $7 foo.bar $2 hi");
    });
}

#[test]
fn shard_channels_are_a_name_space_of_their_own() {
    everywhere(|host| {
        let [first, second, publisher] = clients(host);
        assert_eq!(host.run(first, "SSUBSCRIBE a"), "*3 $10 ssubscribe $1 a :1");
        host.run(second, "SUBSCRIBE a");
        host.run(second, "PSUBSCRIBE *");
        assert_eq!(host.run(publisher, "SPUBLISH a 1"), ":1");
        assert_eq!(host.received(first), "*3 $8 smessage $1 a $1 1");
        assert_eq!(host.received(second), "");
        assert_eq!(host.run(publisher, "PUBLISH a 2"), ":2");
        assert_eq!(host.received(first), "");
        assert_eq!(host.run(publisher, "PUBSUB SHARDCHANNELS"), "*1 $1 a");
        assert_eq!(host.run(publisher, "PUBSUB SHARDNUMSUB a b"), "*4 $1 a :1 $1 b :0");
        assert_eq!(host.run(first, "SUNSUBSCRIBE"), "*3 $12 sunsubscribe $1 a :0");
        assert_eq!(host.run(first, "SUNSUBSCRIBE"), "*3 $12 sunsubscribe $-1 :0");
    });
}

#[test]
fn in_resp2_a_listener_may_say_little_else() {
    everywhere(|host| {
        let [client, ..] = clients(host);
        host.run(client, "SUBSCRIBE a");
        assert_eq!(
            host.run(client, "GET key"),
            "-ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in \
             this context"
        );
        assert!(host.run(client, "CLIENT LIST").starts_with("-ERR Can't execute 'client|list': only"));
        assert_eq!(host.run(client, "PING"), "*2 $4 pong $0");
        assert_eq!(host.run(client, "PING hi"), "*2 $4 pong $2 hi");
        assert_eq!(host.run(client, "UNSUBSCRIBE"), "*3 $11 unsubscribe $1 a :0");
        assert_eq!(host.run(client, "PING"), "+PONG");
        assert_eq!(host.run(client, "UNSUBSCRIBE"), "*3 $11 unsubscribe $-1 :0");
        assert_eq!(host.run(client, "PUNSUBSCRIBE x"), "*3 $12 punsubscribe $1 x :0");
    });
}

#[test]
fn in_resp3_a_listener_goes_on_and_messages_are_pushes() {
    everywhere(|host| {
        let [client, other, _] = clients(host);
        host.run(client, "HELLO 3");
        assert_eq!(host.run(client, "SUBSCRIBE a"), ">3 $9 subscribe $1 a :1");
        assert_eq!(host.run(client, "SET key 1"), "+OK");
        assert_eq!(host.run(other, "PUBLISH a x"), ":1");
        assert_eq!(host.run(client, "GET key"), ">3 $7 message $1 a $1 x $1 1");
        // A client that publishes to itself reads the message before the count.
        assert_eq!(host.run(client, "PUBLISH a y"), ">3 $7 message $1 a $1 y :1");
        assert_eq!(host.run(client, "UNSUBSCRIBE"), ">3 $11 unsubscribe $1 a :0");
        assert_eq!(host.run(client, "UNSUBSCRIBE"), ">3 $11 unsubscribe _ :0");
    });
}

#[test]
fn messages_arrive_whatever_client_reply_says() {
    everywhere(|host| {
        let [client, other, _] = clients(host);
        host.run(client, "HELLO 3");
        assert_eq!(host.run(client, "CLIENT REPLY OFF"), "");
        assert_eq!(host.run(client, "PING"), "");
        assert_eq!(host.run(client, "SUBSCRIBE a"), ">3 $9 subscribe $1 a :1");
        host.run(other, "PUBLISH a x");
        assert_eq!(host.received(client), ">3 $7 message $1 a $1 x");
        assert_eq!(host.run(client, "CLIENT REPLY ON"), "+OK");
        assert_eq!(host.run(client, "CLIENT REPLY SKIP"), "");
        assert_eq!(host.run(client, "UNSUBSCRIBE a"), ">3 $11 unsubscribe $1 a :0");
        assert_eq!(host.run(client, "PING"), "+PONG");
    });
}

#[test]
fn a_message_published_behind_a_write_is_not_heard_before_the_write_is_kept() {
    for cores in [1, 3] {
        let mut settings = Settings::default();
        settings.set("appendfsync", "always").unwrap();
        let mut host = Host::new(cores, settings);
        let [listener, writer, reader] = clients(&mut host);
        host.run(listener, "SUBSCRIBE changed");
        host.holds_disk = true;
        host.send(writer, b"SET key new\r\nPUBLISH changed key\r\n");
        host.settle();
        assert_eq!(host.received(listener), "");
        host.holds_disk = false;
        host.settle();
        assert_eq!(host.received(listener), "*3 $7 message $7 changed $3 key");
        assert_eq!(host.received(writer), "+OK :1");
        assert_eq!(host.run(reader, "GET key"), "$3 new");
    }
}

#[test]
fn publishing_goes_on_without_waiting_for_answers_and_keeps_its_order() {
    everywhere(|host| {
        let [listener, publisher, _] = clients(host);
        host.run(listener, "SUBSCRIBE a");
        let requests: String = (0..200).map(|number| format!("PUBLISH a {number:03}\r\n")).collect();
        host.send(publisher, requests.as_bytes());
        host.settle();
        let expected: Vec<_> = (0..200).map(|number| format!("*3 $7 message $1 a $3 {number:03}")).collect();
        assert_eq!(host.received(listener), expected.join(" "));
        assert_eq!(host.received(publisher), vec![":1"; 200].join(" "));
    });
}

#[test]
fn transactions_publish_and_subscribe() {
    everywhere(|host| {
        let [listener, client, _] = clients(host);
        host.run(listener, "SUBSCRIBE a");
        for line in ["MULTI", "SET key 1", "PUBLISH a x", "SUBSCRIBE b", "SSUBSCRIBE c", "GET key"] {
            host.run(client, line);
        }
        assert_eq!(
            host.run(client, "EXEC"),
            "*5 +OK :1 *3 $9 subscribe $1 b :1 -ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client $1 1"
        );
        assert_eq!(host.received(listener), "*3 $7 message $1 a $1 x");
    });
}

#[test]
fn who_is_gone_or_reset_listens_no_more() {
    everywhere(|host| {
        let [first, second, publisher] = clients(host);
        host.run(first, "SUBSCRIBE a");
        host.run(first, "PSUBSCRIBE a*");
        host.run(second, "SUBSCRIBE a");
        assert_eq!(host.run(first, "RESET"), "+RESET");
        assert_eq!(host.run(publisher, "PUBLISH a x"), ":1");
        host.run(second, "QUIT");
        assert_eq!(host.run(publisher, "PUBLISH a x"), ":0");
        assert_eq!(host.run(publisher, "PUBSUB CHANNELS"), "*0");
        assert_eq!(host.run(publisher, "PUBSUB NUMPAT"), ":0");
    });
}

#[test]
fn what_is_listened_to_can_be_asked() {
    everywhere(|host| {
        let [first, second, other] = clients(host);
        host.run(first, "SUBSCRIBE b a");
        host.run(second, "SUBSCRIBE a");
        host.run(first, "PSUBSCRIBE x* y*");
        host.run(second, "PSUBSCRIBE x*");
        assert_eq!(host.run(other, "PUBSUB CHANNELS"), "*2 $1 a $1 b");
        assert_eq!(host.run(other, "PUBSUB CHANNELS [b]"), "*1 $1 b");
        assert_eq!(host.run(other, "PUBSUB NUMSUB a b c"), "*6 $1 a :2 $1 b :1 $1 c :0");
        assert_eq!(host.run(other, "PUBSUB NUMSUB"), "*0");
        assert_eq!(host.run(other, "PUBSUB NUMPAT"), ":2");
        let info = host.run(other, "INFO stats");
        assert!(info.contains("pubsub_channels:2 pubsub_patterns:2 pubsubshard_channels:0"), "{info}");
        let list = host.run(other, "CLIENT LIST TYPE pubsub");
        assert!(list.contains("flags=P db=0 sub=2 psub=2 ssub=0"), "{list}");
        assert!(list.contains("flags=P db=0 sub=1 psub=1 ssub=0"), "{list}");
        assert!(!list.contains("sub=0 psub=0"), "{list}");
        assert!(host.run(other, "CLIENT LIST").contains("flags=N db=0 sub=0 psub=0 ssub=0"));
        assert_eq!(host.run(other, "CLIENT KILL TYPE pubsub"), ":2");
        assert_eq!(host.run(other, "PUBSUB CHANNELS"), "*0");
    });
}

fn limited(limit: &str) -> Settings {
    let mut settings = Settings::default();
    settings.set("client-output-buffer-limit", limit).unwrap();
    settings
}

#[test]
fn a_listener_that_does_not_read_is_cut_off() {
    let mut host = Host::new(1, limited("pubsub 100000 0 0"));
    let (slow, quick, publisher) = (host.connect(0), host.connect(0), host.connect(0));
    host.run(slow, "SUBSCRIBE a");
    host.run(quick, "SUBSCRIBE a");
    let body = "x".repeat(1_000);
    let mut counts = Vec::new();
    let mut waiting = 0;
    for _ in 0..120 {
        counts.push(host.run(publisher, &format!("PUBLISH a {body}")));
        waiting += host.received(slow).len() + 20;
        host.backlog(slow, waiting);
        host.received(quick);
    }
    assert_eq!(counts.first().map(String::as_str), Some(":2"));
    assert_eq!(counts.last().map(String::as_str), Some(":1"));
    let cut = counts.iter().position(|count| count == ":1").expect("it was cut off");
    assert!((90..=105).contains(&cut), "cut after {cut} messages");
    assert!(host.log.iter().any(|line| line.contains("has left too much output unread")), "{:?}", host.log);
    assert!(host.run(publisher, "INFO stats").contains("client_output_buffer_limit_disconnections:1"));
}

#[test]
fn a_flood_within_one_turn_is_bounded_too() {
    let mut host = Host::new(1, limited("pubsub 100000 0 0"));
    let (slow, publisher) = (host.connect(0), host.connect(0));
    host.run(slow, "SUBSCRIBE a");
    let request = format!("PUBLISH a {}\r\n", "x".repeat(1_000));
    host.send(publisher, request.repeat(300).as_bytes());
    assert!(host.output_bytes(slow) < 110_000);
    host.settle();
    assert_eq!(host.received(slow), "");
}

#[test]
fn a_listener_that_lags_for_too_long_is_cut_off_and_one_that_catches_up_is_not() {
    let mut host = Host::new(1, limited("pubsub 0 10000 5"));
    let (first, second, publisher) = (host.connect(0), host.connect(0), host.connect(0));
    for client in [first, second] {
        host.run(client, "SUBSCRIBE a");
        host.backlog(client, 20_000);
    }
    host.run(publisher, "PUBLISH a x");
    host.pass(Duration::from_secs(4));
    host.backlog(second, 500);
    assert_eq!(host.run(publisher, "PUBLISH a x"), ":2");
    host.pass(Duration::from_secs(2));
    assert_eq!(host.run(publisher, "PUBLISH a x"), ":1");
}

#[test]
fn limits_of_some_kinds_are_set_and_the_others_stay() {
    let mut host = Host::new(1, Settings::default());
    let client = host.connect(0);
    assert_eq!(host.run(client, "CONFIG SET client-output-buffer-limit \"pubsub 1mb 0 0 normal 5mb 4 3\""), "+OK");
    let shown = "normal 5242880 4 3 slave 268435456 67108864 60 pubsub 1048576 0 0";
    let expected = format!("*2 $26 client-output-buffer-limit ${} {shown}", shown.len());
    assert_eq!(host.run(client, "CONFIG GET client-output-buffer-limit"), expected);
    for (wrong, why) in [
        ("wrong 1 1 1", "Invalid client class specified in buffer limit configuration."),
        ("normal 1 1", "Wrong number of arguments in buffer limit configuration."),
        ("normal x 1 1", "Error in hard, soft or soft_seconds setting in buffer limit configuration."),
    ] {
        let told = host.run(client, &format!("CONFIG SET client-output-buffer-limit \"{wrong}\""));
        assert!(told.ends_with(why), "{told}");
    }
}

// ---- other nodes --------------------------------------------------------------------------------------------------

#[test]
fn what_is_published_goes_to_the_other_nodes_once() {
    for cores in [1, 3] {
        let mut here = Host::of_nodes(cores, Settings::default(), 1, &[1, 2, 3]);
        let mut there = Host::of_nodes(cores, Settings::default(), 2, &[1, 2, 3]);
        let [publisher, own, _] = clients(&mut here);
        let [first, second, _] = clients(&mut there);
        here.run(own, "SUBSCRIBE a");
        there.run(first, "SUBSCRIBE a");
        there.run(second, "PSUBSCRIBE *");
        here.sent.clear();
        // As in a cluster of Redis, the count is that of the node.
        assert_eq!(here.run(publisher, "PUBLISH a hi"), ":1");
        let sent: Vec<_> = here.sent.drain(..).filter(|(_, _, bytes)| bytes[0] == 4).collect();
        assert_eq!(sent.iter().map(|(to, ..)| to.0).collect::<Vec<_>>(), [2, 3]);
        let (_, group, bytes) = &sent[0];
        there.hear(group::ids::NodeId(1), *group, bytes);
        there.settle();
        assert_eq!(there.received(first), "*3 $7 message $1 a $2 hi");
        assert_eq!(there.received(second), "*4 $8 pmessage $1 * $1 a $2 hi");
        assert!(there.sent.iter().all(|(_, _, bytes)| bytes[0] != 4), "what was heard is not said again");
    }
}

// ---- what happens to keys -----------------------------------------------------------------------------------------

fn listening(host: &mut Host, letters: &str, client: group::ids::SessionId) {
    assert_eq!(host.run(client, &format!("CONFIG SET notify-keyspace-events {letters}")), "+OK");
    host.run(client, "PSUBSCRIBE __key*");
}

/// The events among the messages a client has received: channel and message.
fn events(host: &mut Host, client: group::ids::SessionId) -> Vec<String> {
    let received = host.received(client);
    let words: Vec<_> = received.split(' ').collect();
    words.chunks(9).filter(|chunk| chunk.len() == 9).map(|chunk| format!("{} {}", chunk[6], chunk[8])).collect()
}

#[test]
fn changes_of_keys_are_told_once_wherever_they_live() {
    everywhere(|host| {
        let [client, writer, _] = clients(host);
        listening(host, "KEA", client);
        for key in ["a", "b", "c", "d"] {
            host.run(writer, &format!("SET {key} 1"));
            assert_eq!(
                events(host, client),
                [format!("__keyspace@0__:{key} set"), format!("__keyevent@0__:set {key}")]
            );
        }
        host.run(writer, "SELECT 3");
        host.run(writer, "SET a 1");
        assert_eq!(events(host, client), ["__keyspace@3__:a set", "__keyevent@3__:set a"]);
        host.run(writer, "GET a");
        assert_eq!(events(host, client), [""; 0]);
    });
}

#[test]
fn a_command_or_a_transaction_over_several_cores_tells_each_event_once() {
    everywhere(|host| {
        let [client, writer, _] = clients(host);
        listening(host, "EA", client);
        host.run(writer, "MSET a 1 b 2 c 3 d 4");
        assert_eq!(events(host, client), ["a", "b", "c", "d"].map(|key| format!("__keyevent@0__:set {key}")));
        for line in ["MULTI", "INCR a", "DEL b none", "RENAME c e", "EXPIRE d 100", "EXEC"] {
            host.run(writer, line);
        }
        assert_eq!(
            events(host, client),
            [
                "__keyevent@0__:incrby a",
                "__keyevent@0__:del b",
                "__keyevent@0__:rename_from c",
                "__keyevent@0__:rename_to e",
                "__keyevent@0__:expire d"
            ]
        );
        host.run(writer, "WATCH a");
        host.run(client, "RESET");
        host.run(client, "SET a 5");
        listening(host, "EA", client);
        for line in ["MULTI", "INCR a", "INCR d", "EXEC"] {
            host.run(writer, line);
        }
        assert_eq!(events(host, client), [""; 0], "nothing happened");
    });
}

#[test]
fn nothing_is_told_before_it_is_kept() {
    let mut settings = Settings::default();
    settings.set("appendfsync", "always").unwrap();
    let mut host = Host::new(1, settings);
    let (client, writer) = (host.connect(0), host.connect(0));
    listening(&mut host, "EA", client);
    host.holds_disk = true;
    host.run(writer, "SET a 1");
    assert_eq!(events(&mut host, client), [""; 0]);
    host.holds_disk = false;
    host.settle();
    assert_eq!(events(&mut host, client), ["__keyevent@0__:set a"]);
}

#[test]
fn only_what_is_wanted_is_told() {
    everywhere(|host| {
        let [client, writer, _] = clients(host);
        listening(host, "Eg", client);
        host.run(writer, "SET a 1 EX 100");
        host.run(writer, "DEL a");
        assert_eq!(events(host, client), ["__keyevent@0__:expire a", "__keyevent@0__:del a"]);
        // Without K or E there is no channel to tell it on.
        host.run(client, "RESET");
        listening(host, "A", client);
        host.run(writer, "SET a 1");
        assert_eq!(events(host, client), [""; 0]);
    });
}

#[test]
fn expired_keys_are_told() {
    everywhere(|host| {
        let [client, writer, _] = clients(host);
        listening(host, "Ex", client);
        host.run(writer, "SET a 1 PX 50");
        host.run(writer, "SET b 1 PX 50");
        assert_eq!(events(host, client), [""; 0]);
        host.pass(Duration::from_millis(300));
        let mut told = events(host, client);
        told.sort();
        assert_eq!(told, ["__keyevent@0__:expired a", "__keyevent@0__:expired b"]);
    });
}

#[test]
fn expired_fields_are_told_and_the_key_that_goes_with_the_last() {
    everywhere(|host| {
        let [client, writer, _] = clients(host);
        host.run(writer, "HSET a f 1 g 2");
        host.run(writer, "HPEXPIRE a 50 FIELDS 1 f");
        host.run(writer, "HSETEX b PX 50 FIELDS 1 f 1");
        listening(host, "EA", client);
        assert_eq!(events(host, client), [""; 0]);
        host.pass(Duration::from_millis(300));
        let mut told = events(host, client);
        told.sort();
        let expected = ["__keyevent@0__:del b", "__keyevent@0__:hexpired a", "__keyevent@0__:hexpired b"];
        assert_eq!(told, expected);
        let info = host.run(writer, "INFO keyspace");
        assert!(info.contains("subexpiry=0"), "{info}");
    });
}

#[test]
fn new_keys_and_misses_are_told_to_those_who_ask_for_them() {
    everywhere(|host| {
        let [client, writer, _] = clients(host);
        listening(host, "E$nm", client);
        host.run(writer, "SET a 1");
        host.run(writer, "SET a 2");
        host.run(writer, "MSET a 1 b 2");
        assert_eq!(
            events(host, client),
            [
                "__keyevent@0__:new a",
                "__keyevent@0__:set a",
                "__keyevent@0__:set a",
                "__keyevent@0__:new b",
                "__keyevent@0__:set a",
                "__keyevent@0__:set b"
            ]
        );
        host.run(writer, "GET a");
        host.run(writer, "GET none");
        assert_eq!(events(host, client), ["__keyevent@0__:keymiss none"]);
        host.run(writer, "SELECT 0");
        host.run(writer, "COPY a a2 DB 2");
        assert_eq!(events(host, client), ["__keyevent@2__:new a2"]);
    });
}

#[test]
fn the_letters_are_shown_as_redis_shows_them() {
    let mut host = Host::new(1, Settings::default());
    let client = host.connect(0);
    for (given, shown) in
        [("gKE", "gKE"), ("$lshzxeKE", "$lshzxeKE"), ("KA", "AK"), ("EA", "AE"), ("mEg$lshzxetd", "AEm")]
    {
        host.run(client, &format!("CONFIG SET notify-keyspace-events {given}"));
        let expected = format!("*2 $22 notify-keyspace-events ${} {shown}", shown.len());
        assert_eq!(host.run(client, "CONFIG GET notify-keyspace-events"), expected);
    }
    let told = host.run(client, "CONFIG SET notify-keyspace-events KEX");
    assert!(told.contains("Invalid event class character. Use 'Ag$lshzxeKEtmdn'."), "{told}");
}
