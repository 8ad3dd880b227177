//! Stories of values with elements: whichever core they live on, and however their forms are configured.

use group::ids::SessionId;
use node::settings::Settings;

use crate::everywhere;
use crate::host::Host;

fn encoding(host: &mut Host, client: SessionId, key: &str) -> String {
    let reply = host.run(client, &format!("OBJECT ENCODING {key}"));
    reply.split(' ').next_back().unwrap_or_default().to_owned()
}

#[test]
fn limits_of_forms_hold_for_what_comes_after_on_every_core() {
    everywhere(|host| {
        let client = host.connect(0);
        let other = host.connect(host.core_count() - 1);
        for key in ["a", "b", "c", "d", "e", "f"] {
            assert_eq!(host.run(client, &format!("HSET h{key} f1 1 f2 2 f3 3")), ":3");
            assert_eq!(host.run(client, &format!("SADD s{key} 1 2 3")), ":3");
        }
        assert_eq!(host.run(other, "CONFIG SET hash-max-ziplist-entries 3 set-max-intset-entries 3"), "+OK");
        assert_eq!(host.run(client, "CONFIG GET hash-max-listpack-entries"), "*2 $25 hash-max-listpack-entries $1 3");
        for key in ["a", "b", "c", "d", "e", "f"] {
            assert_eq!(encoding(host, client, &format!("h{key}")), "listpack");
            host.run(client, &format!("HSET h{key} f4 4"));
            assert_eq!(encoding(host, client, &format!("h{key}")), "hashtable");
            assert_eq!(encoding(host, client, &format!("s{key}")), "intset");
            host.run(client, &format!("SADD s{key} 4"));
            assert_eq!(encoding(host, client, &format!("s{key}")), "hashtable");
        }
        // A transaction over cores computes elsewhere, and by the same limits.
        for line in ["MULTI", "HSET x 1 1 2 2 3 3 4 4", "HSET y 1 1", "SADD z 1 2 3 4", "EXEC"] {
            host.run(client, line);
        }
        assert_eq!(encoding(host, client, "x"), "hashtable");
        assert_eq!(encoding(host, client, "y"), "listpack");
        assert_eq!(encoding(host, client, "z"), "hashtable");
        assert_eq!(host.run(other, "CONFIG SET hash-max-listpack-entries 512"), "+OK");
        assert_eq!(host.run(client, "DEL ha"), ":1");
        assert_eq!(host.run(client, "HSET ha 1 1 2 2 3 3 4 4"), ":4");
        assert_eq!(encoding(host, client, "ha"), "listpack");
    });
}

#[test]
fn what_is_called_a_listpack_is_configured_and_told_alike_everywhere() {
    everywhere(|host| {
        let client = host.connect(0);
        let other = host.connect(host.core_count() - 1);
        for key in ["a", "b", "c", "d"] {
            assert_eq!(host.run(client, &format!("SADD s{key} x y z")), ":3");
            assert_eq!(host.run(client, &format!("RPUSH l{key} x y z")), ":3");
            assert_eq!(encoding(host, client, &format!("s{key}")), "listpack");
            assert_eq!(encoding(host, client, &format!("l{key}")), "listpack");
        }
        assert_eq!(host.run(client, "CONFIG GET set-max-listpack-value"), "*2 $22 set-max-listpack-value $2 64");
        assert_eq!(host.run(other, "CONFIG SET set-max-listpack-entries 2 list-max-ziplist-size 2"), "+OK");
        assert_eq!(host.run(client, "CONFIG GET list-max-listpack-size"), "*2 $22 list-max-listpack-size $1 2");
        for key in ["a", "b", "c", "d"] {
            assert_eq!(encoding(host, client, &format!("s{key}")), "hashtable");
            assert_eq!(encoding(host, client, &format!("l{key}")), "quicklist");
            assert!(host.run(client, &format!("DEBUG OBJECT l{key}")).contains(" encoding:quicklist "));
        }
        // A transaction over cores computes elsewhere, and by the same limits.
        for line in ["MULTI", "SPOP sa", "RPOP lb", "OBJECT ENCODING sa", "OBJECT ENCODING lb", "OBJECT ENCODING lc"] {
            host.run(client, line);
        }
        assert!(host.run(client, "EXEC").ends_with("$8 listpack $8 listpack $9 quicklist"));
        let script = "EVAL \"return redis.call('OBJECT', 'ENCODING', KEYS[1])\" 1";
        assert_eq!(host.run(client, &format!("{script} lc")), "$9 quicklist");
        assert_eq!(host.run(client, &format!("{script} lb")), "$8 listpack");
        assert_eq!(
            host.run(client, "CONFIG SET set-max-listpack-entries many"),
            "-ERR CONFIG SET failed (possibly related to argument 'set-max-listpack-entries') - argument couldn't be parsed into an integer"
        );
        assert_eq!(host.run(client, "CONFIG SET set-max-listpack-value 0"), "+OK");
        assert_eq!(encoding(host, client, "sa"), "hashtable");
    });
}

#[test]
fn scores_have_no_more_digits_than_needed_wherever_they_are_answered() {
    everywhere(|host| {
        let client = host.connect(0);
        assert_eq!(host.run(client, "ZADD z 0.1 a 3.3 b 1e20 c"), ":3");
        assert_eq!(host.run(client, "ZSCORE z a"), "$3 0.1");
        assert_eq!(host.run(client, "ZINCRBY z 0.2 b"), "$3 3.5");
        let script = "EVAL \"return redis.call('ZSCORE', KEYS[1], 'a')\" 1 z";
        assert_eq!(host.run(client, script), "$3 0.1");
        for line in ["MULTI", "SET other 1", "ZSCORE z a", "ZADD z INCR 0.5 a"] {
            host.run(client, line);
        }
        assert_eq!(host.run(client, "EXEC"), "*3 +OK $3 0.1 $3 0.6");
        host.run(client, "HELLO 3");
        assert_eq!(host.run(client, "ZSCORE z c"), ",1e+20");
        let script = "EVAL \"redis.setresp(3) return redis.call('ZSCORE', KEYS[1], 'a')\" 1 z";
        assert_eq!(host.run(client, script), ",0.6");
    });
}

#[test]
fn a_sort_never_overlooks_a_key_that_lives_on_another_core() {
    everywhere(|host| {
        let client = host.connect(0);
        host.run(client, "MSET w1 7 w2 6 w3 5 n1 one n2 two n3 three");
        host.run(client, "HSET h1 f 10 other x");
        host.run(client, "HSET h2 f 30");
        for key in ["a", "b", "c", "d", "{a}x"] {
            host.run(client, &format!("RPUSH {key} 1 2 3"));
            assert_eq!(host.run(client, &format!("SORT {key} BY w*")), "*3 $1 3 $1 2 $1 1");
            assert_eq!(host.run(client, &format!("SORT {key} BY none*")), "*3 $1 1 $1 2 $1 3");
            let found = host.run(client, &format!("SORT_RO {key} BY h*->f DESC GET # GET n* GET h*->other"));
            assert_eq!(found, "*9 $1 2 $3 two $-1 $1 1 $3 one $1 x $1 3 $5 three $-1");
            assert_eq!(host.run(client, &format!("SORT {key} BY w* LIMIT 0 2 GET n* STORE sorted")), ":2");
            assert_eq!(host.run(client, "LRANGE sorted 0 -1"), "*2 $5 three $3 two");
            assert!(host.run(client, &format!("SORT {key} BY w* LIMIT 0")).starts_with("-ERR syntax"));
            // What a transaction or a script has changed it sees.
            for line in ["MULTI", "SET w1 1", &format!("SORT {key} BY w*"), "SET w1 7"] {
                host.run(client, line);
            }
            assert_eq!(host.run(client, "EXEC"), "*3 +OK *3 $1 1 $1 3 $1 2 +OK");
            let script = "redis.call('set', 'w3', 8) local r = redis.call('sort', KEYS[1], 'BY', 'w*') \
                          redis.call('set', 'w3', 5) return r";
            assert_eq!(host.run(client, &format!("EVAL \"{script}\" 1 {key}")), "*3 $1 2 $1 1 $1 3");
            host.run(client, &format!("RENAME {key} {key}s"));
            host.run(client, &format!("DEL {key}s"));
        }
        host.run(client, "SET text v");
        assert!(host.run(client, "SORT text BY w*").starts_with("-WRONGTYPE"));
        assert_eq!(host.run(client, "SORT none BY w* GET n*"), "*0");
        for key in ["a", "b", "c", "d"] {
            host.run(client, &format!("RPUSH {key} 1 2"));
            host.run(client, &format!("MSET {{{key}}}w1 9 {{{key}}}w2 8"));
        }
        for key in ["a", "b", "c", "d"] {
            assert_eq!(host.run(client, &format!("SORT {key} BY {{{key}}}w*")), "*2 $1 2 $1 1");
            assert_eq!(host.run(client, &format!("SORT_RO {key} GET # GET {{{key}}}w*")), "*4 $1 1 $1 9 $1 2 $1 8");
        }
    });
}

#[test]
fn limits_of_the_configuration_hold_from_the_start() {
    let mut settings = Settings::default();
    settings.set("hash-max-listpack-value", "4").unwrap();
    let mut host = Host::new(3, settings);
    let client = host.connect(1);
    for key in ["a", "b", "c", "d"] {
        assert_eq!(host.run(client, &format!("HSET {key} f 12345")), ":1");
        assert_eq!(encoding(&mut host, client, key), "hashtable");
    }
}

#[test]
fn collections_move_between_cores_as_they_are() {
    everywhere(|host| {
        let client = host.connect(0);
        let fields: Vec<String> = (0..2_000).map(|number| format!("field:{number} {number}")).collect();
        assert_eq!(host.run(client, &format!("HSET large {}", fields.join(" "))), ":2000");
        assert_eq!(host.run(client, "HSET small a 1 b 2"), ":2");
        assert_eq!(host.run(client, "SADD numbers 3 1 2"), ":3");
        assert_eq!(host.run(client, "SADD names x y"), ":2");
        for key in ["small", "numbers", "names", "large"] {
            let old = host.run(client, &format!("DUMP {key}"));
            for target in ["one", "two", "three"] {
                assert_eq!(host.run(client, &format!("COPY {key} {target} REPLACE")), ":1");
                assert_eq!(host.run(client, &format!("DUMP {target}")), old);
                assert_eq!(host.run(client, &format!("RENAME {target} {target}{target}")), "+OK");
                assert_eq!(host.run(client, &format!("DUMP {target}{target}")), old);
            }
        }
        assert_eq!(host.run(client, "HGET oneone field:1999"), "$4 1999");
        assert_eq!(host.run(client, "HLEN twotwo"), ":2000");
        assert_eq!(host.run(client, "SMOVE numbers names 1"), ":1");
        assert_eq!(host.run(client, "SINTERCARD 2 numbers names"), ":0");
        assert_eq!(host.run(client, "SUNIONSTORE all numbers names"), ":5");
        assert_eq!(host.run(client, "SDIFFSTORE rest all names"), ":2");
        assert_eq!(host.run(client, "SMEMBERS rest"), "*2 $1 2 $1 3");
        // What is emptied is gone.
        for line in ["MULTI", "HDEL small a b", "SREM numbers 2 3", "HSET fresh a 1", "EXEC"] {
            host.run(client, line);
        }
        assert_eq!(host.run(client, "EXISTS small numbers fresh"), ":1");
    });
}
