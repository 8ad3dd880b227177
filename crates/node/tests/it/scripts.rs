//! Stories of scripts: whichever core their keys live on, one at a time or many at once.

use group::ids::SessionId;
use node::settings::Settings;
use stdx::Duration;

use crate::host::Host;
use crate::{everywhere, settings};

/// A request with words that may hold spaces.
fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

fn eval(host: &mut Host, client: SessionId, text: &str, rest: &[&str]) -> String {
    let words: Vec<_> = ["EVAL", text].into_iter().chain(rest.iter().copied()).collect();
    host.send(client, &request(&words));
    host.settle();
    host.received(client)
}

#[test]
fn libraries_can_be_changed_inside_a_transaction() {
    everywhere(|host| {
        let client = host.connect(0);
        let load = |name: &str| {
            format!(
                "FUNCTION LOAD \"#!lua name={name}\\nredis.register_function('{name}', function() return '{name}' end)\""
            )
        };
        for line in ["MULTI", "SET key1 a", &load("first"), "FUNCTION DELETE nosuch", &load("second"), "GET key1"] {
            host.run(client, line);
        }
        assert_eq!(host.run(client, "EXEC"), "*5 +OK $5 first -ERR Library not found $6 second $1 a");
        let other = host.connect(host.core_count() - 1);
        assert_eq!(host.run(other, "FCALL second 0"), "$6 second");
        for line in ["MULTI", "FUNCTION FLUSH", "PING"] {
            host.run(client, line);
        }
        assert_eq!(host.run(client, "EXEC"), "*2 +OK +PONG");
        assert_eq!(host.run(other, "FCALL first 0"), "-ERR Function not found");
    });
}

#[test]
fn a_script_does_not_wait() {
    everywhere(|host| {
        let client = host.connect(0);
        for line in ["'blpop', KEYS[1], 0", "'brpoplpush', KEYS[1], KEYS[1], 0", "'bzpopmin', KEYS[1], 0"] {
            assert_eq!(eval(host, client, &format!("return redis.call({line})"), &["1", "queue"]), "$-1", "{line}");
        }
        host.run(client, "XGROUP CREATE s g $ MKSTREAM");
        for line in [
            "'xread', 'block', 0, 'streams', KEYS[1], '$'",
            "'xreadgroup', 'group', 'g', 'c', 'block', 0, 'streams', KEYS[1], '>'",
        ] {
            assert_eq!(eval(host, client, &format!("return redis.call({line})"), &["1", "s"]), "$-1", "{line}");
        }
        assert_eq!(
            eval(host, client, "return {redis.call('wait', 1, 0), redis.call('waitaof', 0, 1, 0)}", &["0"]),
            "*2 :0 *2 :0 :0"
        );
        host.run(client, "RPUSH queue a b c");
        let text =
            "return {server.call('blpop', KEYS[1], 0), redis.call('blmovem', KEYS[1], KEYS[1], 'left', 'right', 0)}";
        assert_eq!(eval(host, client, text, &["1", "queue"]), "*2 *2 $5 queue $1 a *1 $1 b");
        assert_eq!(host.run(client, "LRANGE queue 0 -1"), "*2 $1 c $1 b");
    });
}

#[test]
fn the_text_of_a_script_is_shown() {
    everywhere(|host| {
        let client = host.connect(0);
        host.run(client, "SCRIPT LOAD \"return 1\"");
        let digest = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
        assert_eq!(host.run(client, &format!("SCRIPT SHOW {digest}")), "$8 return 1");
        assert_eq!(
            host.run(client, "SCRIPT SHOW 0123456789012345678901234567890123456789"),
            "-NOSCRIPT No matching script. Please use EVAL."
        );
    });
}

#[test]
fn a_script_reads_and_writes_its_keys() {
    everywhere(|host| {
        let client = host.connect(0);
        for key in ["a", "b", "c", "d", "e", "f"] {
            assert_eq!(eval(host, client, "return redis.call('set', KEYS[1], ARGV[1])", &["1", key, "5"]), "+OK");
            assert_eq!(eval(host, client, "return redis.call('incr', KEYS[1]) + 1", &["1", key]), ":7");
            assert_eq!(host.run(client, &format!("GET {key}")), "$1 6");
            let text = "redis.call('incr', KEYS[1]) redis.call('incr', KEYS[1]) return redis.call('get', KEYS[1])";
            assert_eq!(eval(host, client, text, &["1", key]), "$1 8");
        }
    });
}

#[test]
fn keys_in_several_groups_and_keys_not_declared_are_all_the_same() {
    everywhere(|host| {
        let client = host.connect(0);
        let keys = ["a", "b", "c", "d", "e", "f"];
        let declared: Vec<_> = std::iter::once("6").chain(keys).collect();
        let text =
            "for i, key in ipairs(KEYS) do redis.call('set', key, i) end return redis.call('mget', unpack(KEYS))";
        assert_eq!(eval(host, client, text, &declared), "*6 $1 1 $1 2 $1 3 $1 4 $1 5 $1 6");
        let text =
            "local sum = 0 for key in ('abcdef'):gmatch('.') do sum = sum + redis.call('incr', key) end return sum";
        assert_eq!(eval(host, client, text, &["0"]), ":27");
        assert_eq!(eval(host, client, text, &["1", "a"]), ":33");
        // Each key leads to the next.
        host.run(client, "MSET first second second third third fourth fourth fifth fifth end");
        let text = "local key = 'first' while true do local next = redis.call('get', key) redis.call('set', key, 'x') \
                    if not next then return key end key = next end";
        assert_eq!(eval(host, client, text, &["0"]), "$3 end");
        assert_eq!(host.run(client, "MGET first third fifth end"), "*4 $1 x $1 x $1 x $1 x");
    });
}

#[test]
fn what_a_script_takes_by_chance_is_what_has_gone() {
    everywhere(|host| {
        let client = host.connect(0);
        let text = "local taken = redis.call('SPOP', KEYS[1], 2) taken[3] = redis.call('SPOP', KEYS[1]) return taken";
        let small: Vec<String> = (0..9).map(|number| number.to_string()).collect();
        let words: Vec<String> = (0..9).map(|number| format!("member-{number}")).collect();
        let large: Vec<String> = (0..900).map(|number| format!("member-{number}")).collect();
        for (key, members) in [("small", small), ("words", words), ("large", large)] {
            host.run(client, &format!("SADD {key} {} gone-before", members.join(" ")));
            host.run(client, &format!("SREM {key} gone-before {}", members[3]));
            let answer = eval(host, client, text, &["1", key]);
            let taken: Vec<&str> = answer.split_whitespace().skip(2).step_by(2).collect();
            assert_eq!(taken.len(), 3, "{answer}");
            for member in taken {
                assert_eq!(host.run(client, &format!("SISMEMBER {key} {member}")), ":0", "{answer}");
            }
            assert_eq!(host.run(client, &format!("SCARD {key}")), format!(":{}", members.len() - 4));
        }
    });
}

#[test]
fn a_script_that_fails_keeps_what_it_did_before_as_in_redis() {
    everywhere(|host| {
        let client = host.connect(0);
        let text = "redis.call('set', 'a', 1) redis.call('set', 'b', 1) return redis.call('incr', 'a', 'b')";
        assert!(eval(host, client, text, &["0"]).starts_with("-ERR Wrong number of args"));
        assert_eq!(host.run(client, "MGET a b"), "*2 $1 1 $1 1");
    });
}

#[test]
fn pipelined_scripts_see_one_another_and_what_is_sent_between_them() {
    everywhere(|host| {
        let client = host.connect(0);
        let incr = request(&["EVAL", "return redis.call('incr', KEYS[1])", "1", "n"]);
        let other = request(&["EVAL", "return redis.call('incr', 'other')", "0"]);
        let mut bytes = Vec::new();
        for _ in 0..3 {
            bytes.extend_from_slice(&incr);
            bytes.extend_from_slice(&other);
        }
        bytes.extend_from_slice(b"INCR n\r\n");
        bytes.extend_from_slice(&incr);
        bytes.extend_from_slice(b"GET n\r\nINCR other\r\n");
        bytes.extend_from_slice(&incr);
        host.send(client, &bytes);
        host.settle();
        host.settle();
        assert_eq!(host.received(client), ":1 :1 :2 :2 :3 :3 :4 :5 $1 5 :4 :6");
    });
}

#[test]
fn nothing_of_a_script_is_acknowledged_or_seen_before_it_is_on_disk() {
    let mut host = Host::new(1, settings("always"));
    let (writer, reader) = (host.connect(0), host.connect(0));
    host.run(writer, "SET n 1");
    host.holds_disk = true;
    assert_eq!(eval(&mut host, writer, "return redis.call('incr', 'n')", &["1", "n"]), "");
    assert_eq!(host.run(reader, "GET n"), "$1 1");
    // A second script sees the first one's change, and must wait for the disk even if it only reads.
    assert_eq!(eval(&mut host, reader, "return redis.call('get', 'n')", &["1", "n"]), "");
    host.holds_disk = false;
    host.settle();
    assert_eq!((host.received(writer), host.received(reader)), (":2".to_owned(), "$1 2".to_owned()));
}

#[test]
fn a_script_waits_for_a_change_of_its_key_that_is_not_on_disk() {
    let mut host = Host::new(1, settings("always"));
    let (writer, other) = (host.connect(0), host.connect(0));
    eval(&mut host, other, "return 1", &["0"]);
    host.holds_disk = true;
    assert_eq!(host.run(writer, "SET n 41"), "");
    assert_eq!(eval(&mut host, other, "return redis.call('incr', KEYS[1])", &["1", "n"]), "");
    host.holds_disk = false;
    host.settle();
    assert_eq!((host.received(writer), host.received(other)), ("+OK".to_owned(), ":42".to_owned()));
}

#[test]
fn scripts_work_inside_transactions() {
    everywhere(|host| {
        let (client, other) = (host.connect(0), host.connect(0));
        host.run(client, "MULTI");
        host.run(client, "SET a 5");
        assert_eq!(eval(host, client, "return redis.call('incrby', KEYS[1], ARGV[1])", &["1", "a", "2"]), "+QUEUED");
        eval(host, client, "return redis.call('incr', 'b')", &["0"]);
        host.run(client, "EVALSHA ffffffffffffffffffffffffffffffffffffffff 0");
        host.run(client, "PING");
        host.run(client, "GET a");
        let no_script = "-NOSCRIPT No matching script. Please use EVAL.";
        assert_eq!(host.run(client, "EXEC"), format!("*6 +OK :7 :1 {no_script} +PONG $1 7"));
        host.run(client, "WATCH a");
        eval(host, other, "return redis.call('set', 'a', 'changed')", &["1", "a"]);
        host.run(client, "MULTI");
        eval(host, client, "return redis.call('set', 'a', 'mine')", &["1", "a"]);
        assert_eq!(host.run(client, "EXEC"), "*-1");
        host.run(client, "MULTI");
        eval(host, client, "return 1", &["0"]);
        assert_eq!(host.run(client, "EXEC"), "*1 :1");
    });
}

#[test]
fn a_script_is_called_by_its_digest_from_any_core() {
    everywhere(|host| {
        let client = host.connect(0);
        host.send(client, &request(&["SCRIPT", "LOAD", "return 'loaded'"]));
        host.settle();
        let sha = host.received(client).split(' ').nth(1).expect("a digest").to_owned();
        assert_eq!(host.run(client, &format!("EVALSHA {} 0", sha.to_uppercase())), "$6 loaded");
        assert_eq!(host.run(client, &format!("SCRIPT EXISTS {sha} {}", "0".repeat(40))), "*2 :1 :0");
        assert_eq!(host.run(client, "SCRIPT FLUSH"), "+OK");
        let no_script = "-NOSCRIPT No matching script. Please use EVAL.";
        assert_eq!(host.run(client, &format!("EVALSHA {sha} 0")), no_script);
        host.send(client, &request(&["SCRIPT", "LOAD", "bad syntax"]));
        host.settle();
        let refusal = "-ERR Error compiling script (new function): user_script:1: '=' expected near 'syntax'";
        assert_eq!(host.received(client), refusal);
        // EVAL leaves the script behind, too.
        assert_eq!(eval(host, client, "return 'loaded'", &["0"]), "$6 loaded");
        assert_eq!(host.run(client, &format!("EVALSHA {sha} 0")), "$6 loaded");
    });
}

#[test]
fn requests_that_make_no_sense_are_refused_in_redis_words() {
    everywhere(|host| {
        let client = host.connect(0);
        let cases: [(&[&str], &str); 6] = [
            (&["EVAL", "return 1", "a"], "-ERR value is not an integer or out of range"),
            (&["EVAL", "return 1", "-1"], "-ERR Number of keys can't be negative"),
            (&["EVAL", "return 1", "2", "a"], "-ERR Number of keys can't be greater than number of args"),
            (&["EVALSHA", "abc", "0"], "-NOSCRIPT No matching script. Please use EVAL."),
            (&["SCRIPT", "KILL"], "-NOTBUSY No scripts in execution right now."),
            (&["SCRIPT", "FLUSH", "a"], "-ERR SCRIPT FLUSH only support SYNC|ASYNC option"),
        ];
        for (words, refusal) in cases {
            host.send(client, &request(words));
            host.settle();
            assert_eq!(host.received(client), refusal);
        }
    });
}

#[test]
fn a_read_only_script_writes_nothing() {
    everywhere(|host| {
        let client = host.connect(0);
        for words in [
            &["EVAL_RO", "return redis.call('set', KEYS[1], 1)", "1", "a"][..],
            &["EVAL", "#!lua flags=no-writes\nreturn redis.call('set', KEYS[1], 1)", "1", "a"],
        ] {
            host.send(client, &request(words));
            host.settle();
            assert!(host.received(client).starts_with("-ERR Write commands are not allowed from read-only scripts."));
        }
        assert_eq!(host.run(client, "EXISTS a"), ":0");
        host.send(client, &request(&["EVAL_RO", "#!lua\nreturn 1", "0"]));
        host.settle();
        assert_eq!(host.received(client), "-ERR Can not execute a script with write flag using *_ro command.");
    });
}

#[test]
fn a_script_sees_and_empties_whole_databases() {
    everywhere(|host| {
        let client = host.connect(0);
        host.run(client, "MSET a 1 b 2 c 3 d 4");
        assert_eq!(eval(host, client, "redis.call('set', 'e', 5) return redis.call('dbsize')", &["0"]), ":5");
        assert_eq!(eval(host, client, "return #redis.call('keys', '*')", &["0"]), ":5");
        let text = "redis.call('select', 1) redis.call('set', 'x', 1) return redis.call('dbsize')";
        assert_eq!(eval(host, client, text, &["0"]), ":1");
        assert_eq!(host.run(client, "DBSIZE"), ":5");
        let text =
            "redis.call('flushdb') redis.call('set', 'z', 1) return {redis.call('dbsize'), redis.call('get', 'a')}";
        assert_eq!(eval(host, client, text, &["0"]), "*2 :1 $-1");
        assert_eq!(host.run(client, "KEYS *"), "*1 $1 z");
    });
}

#[test]
fn a_command_that_a_script_may_not_call_says_so() {
    everywhere(|host| {
        let client = host.connect(0);
        for command in ["multi", "exec", "subscribe", "eval", "config", "client", "script"] {
            let text = format!("return redis.pcall('{command}', 'a', 'b', 'c').err");
            let answer = eval(host, client, &text, &["0"]);
            assert!(!answer.starts_with('-') && answer.contains("ERR"), "{command}: {answer}");
        }
        assert_eq!(eval(host, client, "return redis.call('ping')", &["0"]), "+PONG");
        assert_eq!(eval(host, client, "return redis.call('time')[1]", &["0"]), "$10 1700000000");
    });
}

#[test]
fn the_moment_of_a_script_is_the_moment_of_its_changes() {
    everywhere(|host| {
        let client = host.connect(0);
        let text = "redis.call('set', KEYS[1], 1, 'px', 1500) return redis.call('pttl', KEYS[1])";
        assert_eq!(eval(host, client, text, &["1", "a"]), ":1500");
        assert_eq!(host.run(client, "PEXPIRETIME a"), ":1700000001500");
        host.pass(Duration::from_millis(1_499));
        assert_eq!(eval(host, client, "return redis.call('exists', KEYS[1])", &["1", "a"]), ":1");
        host.pass(Duration::from_millis(1));
        assert_eq!(eval(host, client, "return redis.call('exists', KEYS[1])", &["1", "a"]), ":0");
    });
}

#[test]
fn a_script_that_waits_for_time_ends() {
    everywhere(|host| {
        let client = host.connect(0);
        let now = "local function now() local t = redis.call('time') return t[1] * 1000000 + t[2] end ";
        let waits = format!("{now} local start = now() repeat until now() - start >= 20000 return 'done'");
        host.send(client, &request(&["EVAL", &waits, "0"]));
        let mut told = String::new();
        for _ in 0..100 {
            host.settle();
            told += &host.received(client);
        }
        assert_eq!(told, "$4 done");
        let twice = format!("{now} local start = now() return now() - start");
        assert_eq!(eval(host, client, &twice, &["0"]), ":1");
        // The next one begins at its own moment.
        assert_eq!(eval(host, client, "return redis.call('time')[1]", &["0"]), "$10 1700000000");
    });
}

#[test]
fn a_sleep_within_a_script_comes_after_it() {
    everywhere(|host| {
        let client = host.connect(0);
        let sleep = "return redis.call('debug', 'sleep', ARGV[1])";
        assert!(eval(host, client, sleep, &["0", "0"]).contains("not allowed"));
        host.run(client, "DEBUG SET-DISABLE-DENY-SCRIPTS 1");
        assert!(eval(host, client, sleep, &["0", "soon"]).starts_with("-ERR value is not a valid float"));
        let text = "redis.call('set', KEYS[1], 'v', 'px', '1') redis.call('debug', 'sleep', '0.01') \
                    return redis.call('exists', KEYS[1])";
        assert_eq!(eval(host, client, text, &["1", "key"]), ":1");
        assert_eq!(host.run(client, "EXISTS key"), ":0");
    });
}

#[test]
fn a_script_without_an_end_lets_others_work_and_can_be_killed() {
    for cores in [1, 3] {
        let mut host = Host::new(cores, settings("always"));
        let (client, other) = (host.connect(0), host.connect(usize::from(cores - 1)));
        host.send(client, &request(&["EVAL", "redis.call('set', 'a', 1) while true do end", "1", "a"]));
        host.settle();
        assert_eq!(host.run(other, "SET b 1"), "+OK", "others work");
        assert_eq!(host.run(other, "SET a 2"), "", "its key is locked");
        host.pass(Duration::from_secs(6));
        let busy = "-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.";
        let third = host.connect(0);
        assert_eq!(host.run(third, "PING"), busy);
        host.run(third, "MULTI");
        assert_eq!(host.run(third, "GET a"), busy);
        assert_eq!(host.run(third, "EXEC"), format!("-EXECABORT Transaction discarded because of: {}", &busy[1..]));
        assert_eq!(host.run(third, "SCRIPT KILL"), "+OK");
        host.settle();
        assert_eq!(host.received(client), "-ERR Script killed by user with SCRIPT KILL.");
        assert_eq!(host.received(other), "+OK");
        assert_eq!(host.run(third, "GET a"), "$1 2", "nothing of the script remains");
        assert_eq!(host.run(client, "PING"), "+PONG");
    }
}

/// A long script says again and again that it needs its keys. A transaction that waits for them is given up after as
/// long as a request waits, and lets go what it has locked elsewhere: others need not wait for the script on its
/// account.
#[test]
fn who_waits_for_a_long_script_keeps_nobody_waiting_for_longer_than_a_request_may() {
    let mut host = Host::new(3, settings("always"));
    let clients = [0, 1, 2].map(|core| host.connect(core));
    let group_of = |key: &str| stdx::slot::slot_of(key.as_bytes()).0 * 3 / 16_384;
    let key_of =
        |group: u16| (0..).map(|number| format!("k{number}")).find(|key| group_of(key) == group).expect("a key");
    let [first, last] = [key_of(0), key_of(2)];
    assert_eq!(host.run(clients[0], "CONFIG SET busy-reply-threshold 1000000"), "+OK");
    host.send(clients[0], &request(&["EVAL", "redis.call('set', KEYS[1], 1) while true do end", "1", &last]));
    host.pass(Duration::from_millis(100));
    host.send(clients[1], &request(&["MSET", &first, "mset", &last, "mset"]));
    host.pass(Duration::from_millis(100));
    host.send(clients[2], &request(&["APPEND", &first, "x"]));
    let pass = |host: &mut Host, steps: u32| (0..steps).for_each(|_| host.pass(Duration::from_millis(100)));
    pass(&mut host, 40);
    assert_eq!(host.received(clients[1]), "", "the script may end");
    assert_eq!(host.received(clients[2]), "", "the lock is a living transaction's");
    pass(&mut host, 30);
    let told = host.received(clients[1]);
    assert!(
        told.starts_with("-TRYAGAIN Group 2 did not answer in time, and nothing was done: it is led by "),
        "{told}"
    );
    assert_eq!(host.received(clients[2]), ":1", "and has been let go");
    assert_eq!(host.run(clients[2], "SCRIPT KILL"), "+OK");
    pass(&mut host, 100);
    assert!(host.received(clients[0]).starts_with("-ERR Script killed by user"));
    assert_eq!(host.run(clients[2], &format!("MGET {first} {last}")), "*2 $1 x $-1");
}

#[test]
fn a_long_script_ends_as_a_short_one_does() {
    everywhere(|host| {
        let (client, other) = (host.connect(0), host.connect(0));
        let text = "for i = 1, 300000 do end redis.call('incr', KEYS[1]) pcall(function() for i = 1, 300000 do end end) \
                    return redis.call('incr', KEYS[1])";
        let mut bytes = request(&["EVAL", text, "1", "n"]);
        bytes.extend_from_slice(b"INCR n\r\nGET n\r\n");
        host.send(client, &bytes);
        host.send(other, b"INCR m\r\n");
        host.settle();
        host.settle();
        assert_eq!(host.received(other), ":1");
        assert_eq!(host.received(client), ":2 :3 $1 3");
    });
}

#[test]
fn a_node_that_stops_leaves_a_running_script_in_peace() {
    let mut host = Host::new(1, Settings::default());
    let client = host.connect(0);
    host.send(client, &request(&["EVAL", "while true do pcall(function() while true do end end) end", "0"]));
    host.settle();
    drop(host);
}

fn answer(host: &mut Host, client: SessionId, words: &[&str]) -> String {
    host.send(client, &request(words));
    host.settle();
    host.received(client)
}

const LIBRARY: &str = "#!lua name=counters\nlocal function add(keys, args) return redis.call('incrby', keys[1], args[1]) end\n\
                       redis.register_function('add', add)\n\
                       redis.register_function{function_name='look', callback=function(keys) return redis.call('get', \
                       keys[1]) end, flags={'no-writes'}, description='looks'}";

#[test]
fn a_function_is_called_from_any_core_as_soon_as_its_library_is_loaded() {
    everywhere(|host| {
        let client = host.connect(0);
        let other = host.connect(if host.core_count() > 1 { 2 } else { 0 });
        assert_eq!(answer(host, client, &["FUNCTION", "LOAD", LIBRARY]), "$8 counters");
        for key in ["a", "b", "c", "d"] {
            assert_eq!(answer(host, other, &["FCALL", "add", "1", key, "5"]), ":5");
            assert_eq!(answer(host, client, &["FCALL", "ADD", "1", key, "1"]), ":6");
            assert_eq!(answer(host, client, &["FCALL_RO", "look", "1", key]), "$1 6");
        }
        let refusal = "-ERR Can not execute a script with write flag using *_ro command.";
        assert_eq!(answer(host, client, &["FCALL_RO", "add", "1", "a", "1"]), refusal);
        assert_eq!(answer(host, client, &["FUNCTION", "LOAD", LIBRARY]), "-ERR Library 'counters' already exists");
        let changed = LIBRARY.replace("incrby", "decrby");
        assert_eq!(answer(host, other, &["FUNCTION", "LOAD", "REPLACE", &changed]), "$8 counters");
        assert_eq!(answer(host, client, &["FCALL", "add", "1", "a", "1"]), ":5");
        let clash = "#!lua name=second\nredis.register_function('look', function() end)";
        assert_eq!(answer(host, client, &["FUNCTION", "LOAD", clash]), "-ERR Function look already exists");
        assert_eq!(answer(host, client, &["FCALL", "nosuch", "0"]), "-ERR Function not found");
        assert_eq!(answer(host, client, &["FCALL", "add", "x"]), "-ERR Bad number of keys provided");
        host.run(client, "MULTI");
        assert_eq!(answer(host, client, &["FCALL", "add", "1", "b", "1"]), "+QUEUED");
        assert_eq!(answer(host, client, &["FCALL", "nosuch", "0"]), "+QUEUED");
        assert_eq!(host.run(client, "EXEC"), "*2 :5 -ERR Function not found");
    });
}

#[test]
fn libraries_are_listed_and_go() {
    everywhere(|host| {
        let client = host.connect(0);
        answer(host, client, &["FUNCTION", "LOAD", LIBRARY]);
        let list = answer(host, client, &["FUNCTION", "LIST", "LIBRARYNAME", "count*", "WITHCODE"]);
        for part in ["$8 counters", "$3 LUA", "$3 add", "$4 look", "+no-writes", "$5 looks", "library_code"] {
            assert!(list.contains(part), "{list}");
        }
        assert_eq!(answer(host, client, &["FUNCTION", "LIST", "LIBRARYNAME", "x*"]), "*0");
        assert!(
            answer(host, client, &["FUNCTION", "STATS"]).ends_with("$15 libraries_count :1 $15 functions_count :2")
        );
        assert_eq!(answer(host, client, &["FUNCTION", "DELETE", "nosuch"]), "-ERR Library not found");
        assert_eq!(answer(host, client, &["FUNCTION", "DELETE", "counters"]), "+OK");
        assert_eq!(answer(host, client, &["FCALL", "add", "1", "a", "1"]), "-ERR Function not found");
        answer(host, client, &["FUNCTION", "LOAD", LIBRARY]);
        assert_eq!(answer(host, client, &["FUNCTION", "FLUSH", "SYNC"]), "+OK");
        assert_eq!(answer(host, client, &["FUNCTION", "LIST"]), "*0");
        let refusal = "-ERR DUMP payload version or checksum are wrong";
        assert_eq!(answer(host, client, &["FUNCTION", "RESTORE", "damaged and long"]), refusal);
        let refusal = "-ERR Error compiling function: user_function:2: '=' expected near 'syntax'";
        assert_eq!(answer(host, client, &["FUNCTION", "LOAD", "#!lua name=x\nbad syntax"]), refusal);
    });
}

#[test]
fn a_function_without_an_end_is_killed_as_a_function() {
    let mut host = Host::new(3, settings("always"));
    let (client, other) = (host.connect(0), host.connect(1));
    let library = "#!lua name=l\nredis.register_function('forever', function() while true do end end)";
    answer(&mut host, client, &["FUNCTION", "LOAD", library]);
    host.send(client, &request(&["FCALL", "forever", "0"]));
    host.settle();
    host.pass(Duration::from_secs(6));
    let busy = "-BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.";
    assert_eq!(host.run(other, "PING"), busy);
    assert_eq!(host.run(other, "SCRIPT KILL"), busy);
    let stats = answer(&mut host, other, &["FUNCTION", "STATS"]);
    assert!(stats.contains("$7 forever $7 command *3 $5 FCALL $7 forever $1 0 $11 duration_ms :6"), "{stats}");
    assert_eq!(host.run(other, "FUNCTION KILL"), "+OK");
    host.settle();
    assert_eq!(host.received(client), "-ERR Script killed by user with FUNCTION KILL.");
    assert_eq!(host.run(other, "PING"), "+PONG");
}

#[test]
fn a_full_memory_refuses_scripts_that_would_add_to_it() {
    // What is used is known to each core for itself until the host reports.
    let host = &mut Host::new(1, settings("always"));
    let client = host.connect(0);
    host.run(client, "SET a 1");
    host.run(client, "CONFIG SET maxmemory 1");
    let text = "return redis.call('set', KEYS[1], 1)";
    assert!(eval(host, client, text, &["1", "a"]).starts_with("-OOM command not allowed"));
    assert_eq!(eval(host, client, "return redis.call('get', KEYS[1])", &["1", "a"]), "$1 1");
    let refusal = "-OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'";
    assert_eq!(eval(host, client, "#!lua\nreturn 1", &["0"]), refusal);
    let text = "#!lua flags=allow-oom\nreturn redis.call('set', KEYS[1], 1)";
    assert_eq!(eval(host, client, text, &["1", "a"]), "+OK");
    assert_eq!(eval(host, client, "return redis.call('del', KEYS[1])", &["1", "a"]), ":1");
}

#[test]
fn a_script_may_do_what_its_user_may() {
    everywhere(|host| {
        let (admin, client) = (host.connect(0), host.connect(0));
        assert_eq!(host.run(admin, "ACL SETUSER anna on nopass ~own:* +@scripting +get +set"), "+OK");
        assert_eq!(host.run(client, "AUTH anna x"), "+OK");
        assert_eq!(eval(host, client, "return redis.call('set', KEYS[1], 1)", &["1", "own:a"]), "+OK");
        let text = "return redis.pcall('set', 'other', 1).err";
        let refusal = "ERR ACL failure in script: No permissions to access a key";
        assert!(eval(host, client, text, &["0"]).ends_with(refusal));
        assert!(eval(host, client, "return 1", &["1", "other"]).starts_with("-NOPERM"));
        let text = "return redis.pcall('incr', KEYS[1]).err";
        let refusal = "ERR ACL failure in script: User anna has no permissions to run the 'incr' command";
        assert!(eval(host, client, text, &["1", "own:a"]).ends_with(refusal));
        let text = "return {redis.acl_check_cmd('set', 'own:x', 1), redis.acl_check_cmd('set', 'x', 1)}";
        assert_eq!(eval(host, client, text, &["0"]), "*2 :1 $-1");
    });
}

#[test]
fn what_a_script_publishes_is_heard_when_it_has_ended() {
    everywhere(|host| {
        let last = host.core_count() - 1;
        let (client, listener) = (host.connect(0), host.connect(last));
        host.run(listener, "SUBSCRIBE news");
        for keys in [&["1", "a"][..], &["2", "a", "b"], &["0"]] {
            let text = "redis.call('set', 'a', 1) return redis.call('publish', 'news', 'set')";
            assert_eq!(eval(host, client, text, keys), ":0");
            assert_eq!(host.received(listener), "*3 $7 message $4 news $3 set");
        }
        assert_eq!(eval(host, client, "return redis.call('publish', 'news', 'none')", &["0"]), ":0");
        assert_eq!(host.received(listener), "*3 $7 message $4 news $4 none");
        let refusal = answer(host, client, &["EVAL_RO", "return redis.call('publish', 'news', 'x')", "0"]);
        assert!(refusal.starts_with("-ERR Write commands are not allowed"), "{refusal}");
    });
}

#[test]
fn who_watches_sees_a_script_and_then_what_it_calls() {
    everywhere(|host| {
        let (client, watcher) = (host.connect(0), host.connect(0));
        host.run(watcher, "MONITOR");
        for keys in [&["1", "a"][..], &["0"]] {
            eval(host, client, "redis.call('set', 'a', 1) redis.call('select', 3)", keys);
            let seen = host.received(watcher);
            let (script, calls) = (seen.find("\"EVAL\""), seen.find("[0 lua] \"set\" \"a\" \"1\""));
            assert!(script.is_some() && script < calls, "{seen}");
            assert!(seen.contains(" lua] \"select\" \"3\""), "{seen}");
        }
    });
}

#[test]
fn the_log_tells_what_a_script_was_denied() {
    everywhere(|host| {
        let (admin, client) = (host.connect(0), host.connect(0));
        host.run(admin, "ACL SETUSER anna on nopass ~own:* +@scripting +get");
        host.run(client, "AUTH anna x");
        eval(host, client, "return redis.call('get', 'other')", &["0"]);
        let log = host.run(admin, "ACL LOG");
        assert!(log.contains("$6 reason $3 key $7 context $3 lua $6 object $5 other $8 username $4 anna"), "{log}");
    });
}

#[test]
fn a_cache_hears_of_what_a_script_has_read() {
    everywhere(|host| {
        let (client, other) = (host.connect(0), host.connect(0));
        host.run(client, "HELLO 3");
        host.run(client, "CLIENT TRACKING ON");
        for keys in [&["1", "a"][..], &["2", "a", "b"], &["0"]] {
            eval(host, client, "redis.call('set', 'c', 1) return redis.call('get', 'a')", keys);
            host.received(client);
            host.run(other, "SET a 1");
            let news = host.received(client);
            assert!(news.contains("invalidate *1 $1 a"), "{keys:?}: {news}");
        }
        eval(host, client, "redis.call('set', 'c', 1)", &["1", "a"]);
        host.received(client);
        host.run(other, "SET a 2");
        assert_eq!(host.received(client), "", "nothing was read");
    });
}

/// A cluster closes itself for clients, and changes everything at once: what was let in before is done by then, or
/// never. The script waits for a key at its group, and the transaction for its locks, while something else is on its
/// way to the disk; at every possible moment.
#[test]
fn what_has_waited_since_before_a_site_closed_is_refused() {
    let text = "return redis.call('set', KEYS[1], 'late')";
    let (mut done, mut refused) = ([0, 0], [0, 0]);
    for moment in 0..80 {
        let mut host = Host::new(2, settings("always"));
        let (first, script, transaction) = (host.connect(1), host.connect(0), host.connect(1));
        let site = host.connect(0);
        assert_eq!(host.run(site, "SITE WRITER"), "+OK");
        host.holds_disk = true;
        host.send(first, b"MSET {bar}j 1 foo 1\r\n");
        (0..moment % 8).for_each(|_| host.turn());
        host.send(script, &request(&["EVAL", text, "1", "{bar}j"]));
        host.send(transaction, b"MSET {bar}j late foo late\r\n");
        for step in 0..3 * (moment / 8) {
            match step % 3 {
                2 => host.sync(),
                core => host.turn_core(core),
            }
        }
        let mut answers = [String::new(), String::new()];
        for line in ["CONFIG SET site-read-only yes", "SWAPDB 0 0"] {
            host.send(site, format!("{line}\r\n").as_bytes());
            let is_answered = (0..200).any(|_| {
                host.turn();
                host.sync();
                host.received(site) == "+OK"
            });
            assert!(is_answered, "{moment}: {line}");
        }
        // Cores have told each other what is on the disk by now.
        (0..4).for_each(|_| host.turn());
        for (client, answer) in [script, transaction].into_iter().zip(&mut answers) {
            *answer += &host.received(client);
        }
        let before = answers.clone();
        host.holds_disk = false;
        host.settle();
        for (index, client) in [script, transaction].into_iter().enumerate() {
            answers[index] += &host.received(client);
            let is_done = answers[index] == "+OK";
            assert!(is_done || answers[index].contains("READONLY"), "{moment}: {answers:?}");
            assert!(!is_done || before[index] == "+OK", "{moment}: {index} was done afterwards");
            done[index] += usize::from(is_done);
            refused[index] += usize::from(!is_done);
        }
    }
    assert!(done[0] > 0 && refused.into_iter().all(|count| count > 0), "{done:?} {refused:?}");
}
