//! Stories of what a node counts and measures of commands.

use group::ids::{Lane, NodeId};
use node::event::{HostReport, LinkReport};
use stdx::Duration;

use crate::host::Host;
use crate::{everywhere, settings};

/// What INFO says of a command: calls, rejected and failed ones.
fn calls(host: &mut Host, client: group::ids::SessionId, command: &str) -> String {
    let told = host.run(client, "INFO commandstats");
    let line = told.split_whitespace().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
    let fields: Vec<&str> = line.unwrap_or_default().split(',').filter(|field| !field.starts_with("usec")).collect();
    fields.join(",")
}

fn errors(host: &mut Host, client: group::ids::SessionId) -> Vec<String> {
    let told = host.run(client, "INFO errorstats");
    told.split_whitespace().filter_map(|line| Some(line.strip_prefix("errorstat_")?.to_owned())).collect()
}

#[test]
fn every_call_counts_once_no_matter_who_carries_it_out() {
    everywhere(|host| {
        let client = host.connect(0);
        for key in 0..20 {
            host.run(client, &format!("SET key{key} x"));
            host.run(client, &format!("GET key{key}"));
        }
        host.run(client, "MSET key1 a key2 b key3 c");
        host.run(client, "LPUSH key1 x");
        host.run(client, "GET");
        host.run(client, "DBSIZE");
        host.run(client, "CLIENT ID");
        assert_eq!(calls(host, client, "set"), "calls=20,rejected_calls=0,failed_calls=0");
        assert_eq!(calls(host, client, "get"), "calls=20,rejected_calls=1,failed_calls=0");
        assert_eq!(calls(host, client, "mset"), "calls=1,rejected_calls=0,failed_calls=0");
        assert_eq!(calls(host, client, "lpush"), "calls=1,rejected_calls=0,failed_calls=1");
        assert_eq!(calls(host, client, "dbsize"), "calls=1,rejected_calls=0,failed_calls=0");
        assert_eq!(calls(host, client, "client|id"), "calls=1,rejected_calls=0,failed_calls=0");
        assert_eq!(errors(host, client), ["ERR:count=1", "WRONGTYPE:count=1"]);
        assert_eq!(host.run(client, "CONFIG RESETSTAT"), "+OK");
        assert_eq!(calls(host, client, "set"), "");
        assert_eq!(calls(host, client, "config|resetstat"), "calls=1,rejected_calls=0,failed_calls=0");
        assert!(errors(host, client).is_empty());
    });
}

#[test]
fn requests_sent_ahead_of_their_replies_count_as_what_they_are() {
    everywhere(|host| {
        let client = host.connect(0);
        let mut lines = String::new();
        for key in 0..20 {
            lines.push_str(&format!("SET key{key} x\r\nGET key{key}\r\nLPUSH key{key} y\r\nNOSUCH\r\n"));
        }
        host.send(client, lines.as_bytes());
        host.settle();
        host.received(client);
        assert_eq!(calls(host, client, "set"), "calls=20,rejected_calls=0,failed_calls=0");
        assert_eq!(calls(host, client, "get"), "calls=20,rejected_calls=0,failed_calls=0");
        assert_eq!(calls(host, client, "lpush"), "calls=20,rejected_calls=0,failed_calls=20");
        assert_eq!(errors(host, client), ["ERR:count=20", "WRONGTYPE:count=20"]);
    });
}

#[test]
fn what_is_queued_counts_when_it_is_carried_out() {
    everywhere(|host| {
        let client = host.connect(0);
        for line in ["MULTI", "SET a 1", "SET b 2", "LPUSH a x", "CONFIG GET hz"] {
            host.run(client, line);
        }
        let watcher = host.connect(0);
        assert_eq!(calls(host, watcher, "set"), "");
        host.run(client, "EXEC");
        for line in ["MULTI", "SET", "EXEC", "EXEC", "DISCARD"] {
            host.run(client, line);
        }
        assert_eq!(calls(host, client, "set"), "calls=2,rejected_calls=1,failed_calls=0");
        assert_eq!(calls(host, client, "lpush"), "calls=1,rejected_calls=0,failed_calls=1");
        assert_eq!(calls(host, client, "config|get"), "calls=1,rejected_calls=0,failed_calls=0");
        assert_eq!(calls(host, client, "multi"), "calls=2,rejected_calls=0,failed_calls=0");
        assert_eq!(calls(host, client, "exec"), "calls=3,rejected_calls=0,failed_calls=2");
        assert_eq!(calls(host, client, "discard"), "calls=1,rejected_calls=0,failed_calls=1");
        assert_eq!(errors(host, client), ["ERR:count=3", "EXECABORT:count=1", "WRONGTYPE:count=1"]);
    });
}

#[test]
fn who_waits_has_called_once() {
    everywhere(|host| {
        let (waiter, pusher) = (host.connect(0), host.connect(0));
        for list in ["a", "b", "c"] {
            assert_eq!(host.run(waiter, "BLPOP a b c 0"), "");
            assert_eq!(calls(host, pusher, "blpop").split(',').count(), if list == "a" { 1 } else { 3 });
            host.run(pusher, &format!("RPUSH {list} x"));
            assert_ne!(host.received(waiter), "");
        }
        assert_eq!(calls(host, pusher, "blpop"), "calls=3,rejected_calls=0,failed_calls=0");
        host.run(waiter, "BLPOP a 0");
        host.run(pusher, "CLIENT UNBLOCK 1 ERROR");
        assert_eq!(calls(host, pusher, "blpop"), "calls=4,rejected_calls=0,failed_calls=1");
        assert_eq!(errors(host, pusher), ["UNBLOCKED:count=1"]);
    });
}

#[test]
fn an_error_in_a_script_counts_once() {
    everywhere(|host| {
        let client = host.connect(0);
        host.run(client, "SET text x");
        for line in [
            "EVAL \"redis.call('set', KEYS[1], 0) redis.call('expire', KEYS[1], 0)\" 1 key",
            "EVAL \"return redis.call('lpush', 'text', 'x')\" 0",
            "EVAL \"return redis.pcall('lpush', 'text', 'x')\" 0",
            "EVAL \"redis.pcall('lpush', 'text', 'x') return 1\" 0",
            "EVAL \"return redis.error_reply('MINE not yours')\" 0",
            "EVAL_RO \"return redis.call('set', 'x', 'y')\" 0",
            "EVALSHA 0123456789012345678901234567890123456789 0",
        ] {
            host.run(client, line);
        }
        assert_eq!(calls(host, client, "set"), "calls=2,rejected_calls=1,failed_calls=0");
        assert_eq!(calls(host, client, "expire"), "calls=1,rejected_calls=0,failed_calls=0");
        assert_eq!(calls(host, client, "lpush"), "calls=3,rejected_calls=0,failed_calls=3");
        assert_eq!(calls(host, client, "eval"), "calls=5,rejected_calls=0,failed_calls=3");
        assert_eq!(calls(host, client, "eval_ro"), "calls=1,rejected_calls=0,failed_calls=1");
        assert_eq!(calls(host, client, "evalsha"), "calls=1,rejected_calls=0,failed_calls=1");
        assert_eq!(errors(host, client), ["ERR:count=1", "MINE:count=1", "NOSCRIPT:count=1", "WRONGTYPE:count=3"]);
    });
}

#[test]
fn slow_commands_of_all_kinds_are_remembered_without_passwords() {
    everywhere(|host| {
        let client = host.connect(0);
        host.run(client, "CONFIG SET slowlog-log-slower-than 0");
        host.run(client, "CLIENT SETNAME me");
        for line in [
            "SLOWLOG RESET",
            "SET a 1",
            "GET a",
            "MSET a 1 b 2 c 3",
            "PING",
            "AUTH default secret",
            "ACL SETUSER other >secret",
            "CONFIG SET requirepass \"\"",
            "KEYS *",
            "EVAL \"return 1\" 0",
            "LPUSH a x",
            "CONFIG SET nosuch secret",
            "CONFIG SET masteruser secret",
            "ACL SETUSER other nonsense",
        ] {
            host.run(client, line);
        }
        let told = host.run(client, "SLOWLOG GET -1");
        assert_eq!(told.matches("secret").count(), 1, "only what is no parameter's value is told: {told}");
        for words in [
            "*2 $7 slowlog $5 reset",
            "*3 $3 set $1 a $1 1",
            "*2 $3 get $1 a",
            "*7 $4 mset",
            "*1 $4 ping",
            "*3 $4 auth $10 (redacted) $10 (redacted)",
            "*4 $3 acl $7 setuser $10 (redacted) $10 (redacted)",
            "*4 $6 config $3 set $11 requirepass $10 (redacted)",
            "*2 $4 keys $1 *",
            "*3 $4 eval",
            "*3 $5 lpush $1 a $1 x",
            "*4 $6 config $3 set $6 nosuch",
            "*4 $6 config $3 set $10 masteruser $10 (redacted)",
        ] {
            assert!(told.to_lowercase().contains(words), "{words} is not in {told}");
        }
        assert_eq!(told.matches("$2 me").count(), 14, "{told}");
        assert_eq!(host.run(client, "COMMANDLOG LEN slow"), ":15");
        assert!(host.run(client, "COMMANDLOG GET -1 SLOW").contains("*3 $10 COMMANDLOG $3 LEN $4 slow"));
        assert_eq!(
            host.run(client, "COMMANDLOG GET 1 quick"),
            "-ERR type should be one of the following: slow, large-request, large-reply"
        );
        assert!(host.run(client, "COMMANDLOG RESET large-reply").starts_with("-ERR Large requests"));
        host.run(client, "CONFIG SET slowlog-log-slower-than -1");
        assert_eq!(host.run(client, "COMMANDLOG RESET slow"), "+OK");
        host.run(client, "PING");
        assert_eq!(host.run(client, "SLOWLOG LEN"), ":0");
    });
}

#[test]
fn long_delays_are_told_by_their_cause() {
    let mut settings = settings("always");
    settings.set("enable-debug-command", "yes").unwrap();
    let host = &mut Host::new(2, settings);
    let client = host.connect(1);
    host.run(client, "DEBUG SLEEP 0.3");
    assert_eq!(host.run(client, "LATENCY LATEST"), "*0");
    assert!(host.run(client, "LATENCY DOCTOR").contains("latency-monitor-threshold"));
    host.run(client, "CONFIG SET latency-monitor-threshold 200");
    host.run(client, "DEBUG SLEEP 0.1");
    host.run(client, "DEBUG SLEEP 0.3");
    assert_eq!(host.run(client, "LATENCY LATEST"), "*1 *4 $7 command :1700000000 :300 :300");
    assert_eq!(host.run(client, "LATENCY HISTORY command"), "*1 *2 :1700000000 :300");
    assert_eq!(host.run(client, "LATENCY HISTORY other"), "*0");
    assert!(host.run(client, "LATENCY GRAPH command").contains("all time high 300 ms"));
    assert!(host.run(client, "LATENCY GRAPH other").starts_with("-ERR No samples available"));
    assert!(host.run(client, "LATENCY DOCTOR").contains("command: 1 delays"));
    assert_eq!(host.run(client, "LATENCY RESET other"), ":0");
    assert_eq!(host.run(client, "LATENCY RESET"), ":1");
    assert_eq!(host.run(client, "LATENCY LATEST"), "*0");
}

#[test]
fn how_long_commands_take_is_told_by_percentiles() {
    let mut settings = settings("always");
    settings.set("enable-debug-command", "yes").unwrap();
    let host = &mut Host::new(2, settings);
    let client = host.connect(0);
    for seconds in ["0.001", "0.002", "0.004"] {
        host.run(client, &format!("DEBUG SLEEP {seconds}"));
    }
    let told = host.run(client, "LATENCY HISTOGRAM debug");
    assert_eq!(told, "*2 $11 debug|sleep *4 $5 calls :3 $14 histogram_usec *6 :1024 :1 :2048 :2 :4096 :3");
    assert_eq!(host.run(client, "LATENCY HISTOGRAM nosuch|thing"), "*0");
    let told = host.run(client, "INFO latencystats");
    assert!(told.contains("latency_percentiles_usec_debug|sleep:p50=20"), "{told}");
    assert!(host.run(client, "CONFIG SET latency-tracking-info-percentiles \"50 101\"").starts_with("-ERR"));
    host.run(client, "CONFIG SET latency-tracking-info-percentiles \"0.0 100.0\"");
    let told = host.run(client, "INFO latencystats");
    assert!(told.contains("latency_percentiles_usec_debug|sleep:p0=10"), "{told}");
    host.run(client, "CONFIG SET latency-tracking no");
    assert!(!host.run(client, "INFO latencystats").contains("percentiles"));
    assert!(!host.run(client, "INFO").contains("cmdstat"));
    assert!(
        host.run(client, "INFO everything").contains("cmdstat_debug|sleep:calls=3,usec=7000,usec_per_call=2333.33")
    );
}

#[test]
fn clients_that_take_too_much_memory_are_cut_off_the_largest_first() {
    everywhere(|host| {
        let [large, small, kept, admin] = [0; 4].map(|core| host.connect(core));
        host.run(kept, "CLIENT NO-EVICT ON");
        for (client, bytes) in [(large, 900_000), (small, 10_000), (kept, 900_000)] {
            host.send(
                client,
                format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${bytes}\r\n{}", "x".repeat(bytes / 10 * 9)).as_bytes(),
            );
        }
        assert!(host.run(admin, "CONFIG SET maxmemory-clients 101%").starts_with("-ERR"));
        host.run(admin, "CONFIG SET maxmemory 3000000 maxmemory-clients 40%");
        host.pass(Duration::from_millis(200));
        assert!(host.run(admin, "INFO stats").contains("evicted_clients:1"));
        assert!(host.run(admin, "CLIENT LIST").contains("flags=e"));
        assert!(host.log.iter().any(|line| line.contains("takes too much memory")));
    });
}

#[test]
fn clients_of_all_cores_count_together_and_one_large_request_is_nobodys_fault() {
    let mut host = Host::new(4, settings("no"));
    let [large, admin] = [0; 2].map(|core| host.connect(core));
    host.run(admin, "CONFIG SET maxmemory-clients 3000000");
    host.send(large, format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2000000\r\n{}", "x".repeat(1_900_000)).as_bytes());
    host.pass(Duration::from_millis(200));
    assert!(!host.is_closed(large), "it takes more than a quarter, but others take nothing");
    host.report(&HostReport { client_bytes: 3_500_000, ..HostReport::default() });
    host.pass(Duration::from_millis(200));
    assert!(host.is_closed(large) && !host.is_closed(admin));
}

#[test]
fn bytes_sent_to_other_nodes_count_on_all_lanes_and_after_a_node_is_removed() {
    let mut host = Host::new(1, settings("no"));
    let client = host.connect(0);
    let link = |lane: Lane, sent_bytes: u64| LinkReport { node: NodeId(7), lane, sent_bytes, ..LinkReport::default() };
    let links = vec![link(Lane::Vital, 1), link(Lane::Log, 20), link(Lane::Bulk, 300)];
    host.report(&HostReport { links, ..HostReport::default() });
    let told = host.run(client, "INFO stats");
    assert!(told.contains("total_net_repl_output_bytes:321"), "{told}");
    host.report(&HostReport { gone_link_bytes: 321, ..HostReport::default() });
    assert!(host.run(client, "INFO stats").contains("total_net_repl_output_bytes:321"), "it never falls");
}

#[test]
fn who_speaks_http_is_cut_off_before_anything_of_its_body_is_done() {
    everywhere(|host| {
        let client = host.connect(0);
        let attack = "POST / HTTP/1.1\r\nHost: 127.0.0.1:6379\r\nContent-Length: 20\r\n\r\nSET stolen yes\r\n";
        host.send(client, attack.as_bytes());
        host.settle();
        assert!(host.is_closed(client));
        let client = host.connect(0);
        host.send(client, b"GET / HTTP/1.1\r\nHost: 127.0.0.1:6379\r\n\r\nSET stolen yes\r\n");
        host.settle();
        assert!(host.is_closed(client));
        let client = host.connect(0);
        host.send(client, b"*2\r\n$5\r\nhOsT:\r\n$1\r\nx\r\n*3\r\n$3\r\nSET\r\n$6\r\nstolen\r\n$1\r\n1\r\n");
        host.settle();
        assert!(host.is_closed(client));
        let admin = host.connect(0);
        assert_eq!(host.run(admin, "GET stolen"), "$-1");
        assert!(host.run(admin, "INFO stats").contains("http_disconnections:3"));
        let told =
            |host: &Host| host.log.iter().filter(|line| line.contains("Possible SECURITY ATTACK detected")).count();
        assert_eq!(told(host), 1, "no more than once a minute");
    });
}

#[test]
fn who_does_not_authenticate_gives_way_when_places_are_scarce() {
    everywhere(|host| {
        let admin = host.connect(0);
        host.run(admin, "CONFIG SET maxclients 20 requirepass secret");
        let idle = host.connect(0);
        host.report(&HostReport { client_count: 17, ..HostReport::default() });
        host.pass(Duration::from_secs(11));
        assert!(!host.is_closed(idle), "there is room");
        let fresh = host.connect(0);
        host.report(&HostReport { client_count: 18, ..HostReport::default() });
        host.pass(Duration::from_secs(1));
        assert!(host.is_closed(idle) && !host.is_closed(fresh) && !host.is_closed(admin));
        assert!(host.run(admin, "INFO stats").contains("unauthenticated_disconnections:1"));
        // Without a password no client has to authenticate.
        host.run(admin, "CONFIG SET requirepass \"\"");
        host.pass(Duration::from_secs(11));
        assert!(!host.is_closed(fresh));
    });
}

#[test]
fn who_may_change_data_waits_while_writes_are_paused_and_counts_as_blocked() {
    everywhere(|host| {
        let [admin, reader, writer] = [0; 3].map(|core| host.connect(core));
        let waiting = ["SET a 1", "PUBLISH news x", "PFCOUNT a", "EVAL \"return 1\" 0", "EVAL \"#!lua\\nreturn 1\" 0"];
        for line in ["MULTI", "EVAL \"return 1\" 0"] {
            host.run(writer, line);
        }
        assert_eq!(host.run(admin, "CLIENT PAUSE 60000 WRITE"), "+OK");
        assert_eq!(host.run(reader, "GET a"), "$-1");
        assert_eq!(host.run(reader, "EVAL \"#!lua flags=no-writes\\nreturn 1\" 0"), ":1");
        assert_eq!(host.run(reader, "EVAL_RO \"return 1\" 0"), ":1");
        let clients: Vec<_> = waiting.iter().map(|_| host.connect(0)).collect();
        for (client, line) in clients.iter().zip(waiting) {
            assert_eq!(host.run(*client, line), "", "{line}");
        }
        assert_eq!(host.run(writer, "EXEC"), "");
        assert!(host.run(admin, "INFO clients").contains("blocked_clients:6"));
        assert_eq!(host.run(admin, "CLIENT UNPAUSE"), "+OK");
        assert_eq!(host.received(writer), "*1 :1");
        for client in clients {
            assert_ne!(host.received(client), "");
        }
        assert!(host.run(admin, "INFO clients").contains("blocked_clients:0"));
    });
}

#[test]
fn info_tells_who_waits_watches_and_listens_and_what_was_denied() {
    everywhere(|host| {
        let admin = host.connect(0);
        let last = host.core_count() - 1;
        let [waiting, consumer, watching, listening, stranger] = [last, 0, last, 0, 0].map(|core| host.connect(core));
        let fields = |host: &mut Host, names: &[&str]| {
            let told = host.run(admin, "INFO everything");
            let field = |name: &&str| {
                let field = told.split_whitespace().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                field.unwrap_or_else(|| panic!("no {name}")).to_owned()
            };
            names.iter().map(field).collect::<Vec<_>>().join(" ")
        };
        let clients = [
            "pubsub_clients",
            "watching_clients",
            "total_watched_keys",
            "clients_in_timeout_table",
            "total_blocking_keys",
            "total_blocking_keys_on_nokey",
        ];
        let denied = ["auth", "cmd", "key", "channel"].map(|of| format!("acl_access_denied_{of}"));
        let denied: Vec<_> = denied.iter().map(String::as_str).collect();
        assert_eq!(fields(host, &clients), "0 0 0 0 0 0");
        assert_eq!(fields(host, &denied), "0 0 0 0");
        host.run(admin, "XGROUP CREATE s g $ MKSTREAM");
        host.run(admin, "ACL SETUSER bob on nopass ~mine resetchannels +get +subscribe");
        assert_eq!(host.run(waiting, "BLPOP a b 100"), "");
        assert_eq!(host.run(consumer, "XREADGROUP GROUP g c BLOCK 0 STREAMS s >"), "");
        host.run(watching, "WATCH x y z");
        host.run(listening, "SUBSCRIBE news");
        assert_eq!(fields(host, &clients), "1 1 3 1 3 1");
        for line in ["AUTH nobody x", "AUTH bob x", "SET mine 1", "GET other", "GET other", "SUBSCRIBE news"] {
            host.run(stranger, line);
        }
        assert_eq!(fields(host, &denied), "1 1 2 1");
        host.run(watching, "UNWATCH");
        host.run(admin, "RPUSH b 1");
        host.run(listening, "UNSUBSCRIBE");
        assert_eq!(fields(host, &clients), "0 0 0 0 1 1");
        // What a Redis 7.2 has beside these, and monitoring may ask for.
        let others = [
            "used_memory_startup",
            "used_memory_functions",
            "mem_replication_backlog",
            "mem_clients_slaves",
            "sync_full",
            "sync_partial_ok",
            "sync_partial_err",
            "expired_stale_perc",
            "expired_time_cap_reached_count",
            "expire_cycle_cpu_milliseconds",
            "client_query_buffer_limit_disconnections",
            "total_eviction_exceeded_time",
            "current_eviction_exceeded_time",
            "total_active_defrag_time",
            "current_active_defrag_time",
            "dump_payload_sanitizations",
            "reply_buffer_shrinks",
            "reply_buffer_expands",
        ];
        assert_eq!(fields(host, &others).split(' ').count(), others.len());
    });
}

/// What INFO says of keys that were looked up: found and missed.
fn lookups(host: &mut Host, client: group::ids::SessionId) -> (u64, u64) {
    let told = host.run(client, "INFO stats");
    let number = |name: &str| {
        let field = told.split_whitespace().find_map(|line| line.strip_prefix(name)).expect("it is told");
        field.parse().expect("a number")
    };
    (number("keyspace_hits:"), number("keyspace_misses:"))
}

#[test]
fn keys_that_reads_find_and_miss_are_counted_as_redis_does() {
    everywhere(|host| {
        let client = host.connect(0);
        for line in ["MSET a 1 b 2", "SADD s x", "SADD t y", "ZADD z 1 m", "SET bits foobar", "LPUSH list 3 1 2"] {
            host.run(client, line);
        }
        assert_eq!(lookups(host, client), (0, 0));
        for (line, found, missed) in [
            ("GET a", 1, 0),
            ("GET nope", 0, 1),
            ("MGET a b nope no", 2, 2),
            ("EXISTS a nope a", 2, 1),
            ("TTL nope", 0, 1),
            ("TYPE a", 1, 0),
            ("INCR a", 0, 0),
            ("APPEND b x", 0, 0),
            ("SET b 1 GET", 1, 0),
            ("GETSET b 2", 1, 0),
            ("GETEX b", 1, 0),
            ("SCARD s", 1, 0),
            ("SUNIONSTORE u s t nope", 2, 1),
            ("SINTERSTORE u s t", 2, 0),
            ("COPY s v", 1, 0),
            ("RENAME v w", 0, 0),
            ("ZUNIONSTORE y 2 z nope", 1, 1),
            ("ZRANGESTORE y z 0 -1", 1, 0),
            ("BITOP AND c bits nope", 1, 1),
            ("SORT list", 1, 0),
            ("SPOP t", 0, 0),
            ("LPOP list", 0, 0),
            ("PFADD p 1", 0, 0),
            ("PFCOUNT p nope", 1, 1),
            ("OBJECT ENCODING a", 1, 0),
            ("GETDEL b", 1, 0),
            ("EVAL \"redis.call('get', KEYS[1]) return redis.call('get', 'nope')\" 1 a", 1, 1),
            ("EVAL \"redis.call('set', KEYS[1], 5) return redis.call('get', KEYS[1])\" 1 a", 1, 0),
        ] {
            let (found_before, missed_before) = lookups(host, client);
            assert!(!host.run(client, line).starts_with('-'), "{line}");
            let after = lookups(host, client);
            assert_eq!((after.0 - found_before, after.1 - missed_before), (found, missed), "{line}");
        }
        host.run(client, "CONFIG RESETSTAT");
        assert_eq!(lookups(host, client), (0, 0));
    });
}

#[test]
fn hot_keys_are_counted_while_somebody_wants_to_know() {
    everywhere(|host| {
        let client = host.connect(0);
        let far = host.connect(host.core_count() - 1);
        assert_eq!(host.run(client, "HOTKEYS GET"), "$-1");
        assert_eq!(host.run(client, "HOTKEYS STOP"), "$-1");
        assert_eq!(host.run(client, "HOTKEYS RESET"), "+OK");
        for (words, text) in [
            ("", "METRICS parameter is required"),
            ("METRICS 0", "METRICS count must be positive"),
            ("METRICS 2 CPU", "METRICS count does not match number of metric types provided"),
            ("METRICS 3 CPU NET", "METRICS count does not match number of metric types provided"),
            ("METRICS 1 CPU NET", "syntax error"),
            ("METRICS 2 GPU NYET", "METRICS no valid metrics passed"),
            ("METRICS 2 NET NET", "METRICS NET defined more than once"),
            ("METRICS 1 NET COUNT 0", "COUNT must be between 1 and 64"),
            ("METRICS 1 NET COUNT 100", "COUNT must be between 1 and 64"),
            ("METRICS 1 NET SAMPLE 0", "SAMPLE ratio must be positive"),
            ("METRICS 1 NET SLOTS 1 1", "SLOTS parameter cannot be used in non-cluster mode"),
        ] {
            assert_eq!(host.run(client, &format!("HOTKEYS START {words}")), format!("-ERR {text}"));
        }
        host.run(client, "SET early 1");
        assert_eq!(host.run(client, "HOTKEYS START METRICS 2 CPU NET COUNT 2"), "+OK");
        assert_eq!(host.run(far, "HOTKEYS START METRICS 1 NET"), "-ERR hotkey tracking session already in progress");
        assert_eq!(host.run(far, "HOTKEYS RESET"), "-ERR hotkey tracking session in progress, stop tracking first");
        // 32 bytes and 5, thrice; 24 and 7 twice.
        for asked in [client, far, client] {
            host.run(asked, "SET heavy 12345");
        }
        host.run(far, "GET light\r\nGET light");
        host.run(client, "MULTI\r\nSET third 1\r\nEXEC");
        host.run(client, "PING");
        assert_eq!(host.run(client, "HOTKEYS STOP"), "+OK");
        host.run(client, "SET late 1");
        let found = host.run(far, "HOTKEYS GET");
        assert!(found.starts_with("*1 *"), "{found}");
        assert!(
            found.contains("$15 tracking-active :0 $12 sample-ratio :1 $14 selected-slots *1 *2 :0 :16383"),
            "{found}"
        );
        assert!(found.contains("$14 by-cpu-time-us *4 "), "{found}");
        let heavy = 3 * ("*3\r\n$3\r\nSET\r\n$5\r\nheavy\r\n$5\r\n12345\r\n".len() + "+OK\r\n".len());
        let light = 2 * ("*2\r\n$3\r\nGET\r\n$5\r\nlight\r\n".len() + "$-1\r\n".len());
        assert!(found.ends_with(&format!("$12 by-net-bytes *4 $5 heavy :{heavy} $5 light :{light}")), "{found}");
        assert_eq!(host.run(far, "HOTKEYS RESET"), "+OK");
        assert_eq!(host.run(client, "HOTKEYS GET"), "$-1");
        // It ends by itself.
        assert_eq!(host.run(client, "HOTKEYS START METRICS 1 NET DURATION 1"), "+OK");
        host.pass(Duration::from_millis(1_500));
        host.run(client, "SET late 1");
        let found = host.run(client, "HOTKEYS GET");
        assert!(found.contains("tracking-active :0") && found.contains("collection-duration-ms :1000"), "{found}");
        assert!(!found.contains("late") && !found.contains("by-cpu-time-us"), "{found}");
        assert_eq!(host.run(client, "HOTKEYS RESET"), "+OK");
    });
}
