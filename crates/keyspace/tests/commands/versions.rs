//! A command that changes nothing leaves the version of its key alone, so that it breaks no WATCH and keeps no old
//! image alive for a checkpoint; a command that changes something does not.

use crate::local::Local;
use crate::words;

#[test]
fn only_a_change_makes_a_new_version() {
    // What is under `k` before; the command; whether it changes `k`.
    let table = [
        ("SET k v", "GET k", false),
        ("SET k v", "SET k v", true),
        ("SET k v", "SET k w NX", false),
        ("SET k v", "SET k w NX GET", false),
        ("SET k v", "SET k w XX", true),
        ("SET k v", "SET k w EX 0", false),
        ("SET k v", "SETNX k w", false),
        ("SET k v", "MSETNX j w k w", false),
        ("SET k v", "GETSET k v", true),
        ("SET k v", "GETDEL k", true),
        ("SET k v", "GETEX k", false),
        ("SET k v", "GETEX k PERSIST", false),
        ("SET k v EX 10", "GETEX k PERSIST", true),
        ("SET k v", "GETEX k EX 10", true),
        ("SET k v", "GETEX k EXAT 1", true),
        ("SET k v", "GETEX k EX 0", false),
        ("SET k v", "INCR k", false),
        ("SET k 1", "INCRBY k 0", true),
        ("SET k 1", "INCRBY k x", false),
        ("SET k 9223372036854775807", "INCR k", false),
        ("SET k 1", "INCRBYFLOAT k inf", false),
        ("SET k v", "APPEND k w", true),
        ("SET k v", "SETRANGE k 0 \"\"", false),
        ("SET k v", "SETRANGE k 0 w", true),
        ("SET k v", "SETRANGE k 536870912 w", false),
        ("SET k v", "SETBIT k 0 0", false),
        ("SET k v", "SETBIT k 1 1", false),
        ("SET k v", "SETBIT k 0 1", true),
        ("SET k v", "SETBIT k 8 0", true),
        ("SET k 1", "SETBIT k 2 1", false),
        ("SET k v", "BITFIELD k GET u8 0", false),
        ("SET k v", "BITFIELD k SET u8 0 118 INCRBY u8 0 256 GET u4 1", false),
        ("SET k v", "BITFIELD k OVERFLOW FAIL INCRBY u8 0 256", false),
        ("SET k v", "BITFIELD k GET u8 0 SET u8 0 118 SET u8 0 119", true),
        ("SET k v", "BITFIELD k SET u8 8 0", true),
        ("SET k v", "BITOP NOT j k", false),
        ("SET k v", "BITOP OR k k", true),
        ("SET k v", "BITOP OR k missing", true),
        ("HSET k a 1", "HSET k a 1", true),
        ("HSET k a 1", "HSETNX k a 2", false),
        ("HSET k a 1", "HSETNX k b 2", true),
        ("HSET k a 1", "HDEL k b", false),
        ("HSET k a 1 b 2", "HDEL k b", true),
        ("HSET k a 1", "HDEL k a", true),
        ("HSET k a x", "HINCRBY k a 1", false),
        ("HSET k a 1", "HINCRBY k a 0", true),
        ("HSET k a x", "HINCRBYFLOAT k a 1", false),
        ("HSET k a 1", "SADD k a", false),
        ("HSET k a 1", "HRANDFIELD k 2", false),
        ("HSET k a 1", "HEXPIRE k 10 FIELDS 1 a", true),
        ("HSET k a 1", "HEXPIRE k 10 FIELDS 1 b", false),
        ("HSET k a 1", "HEXPIRE k 10 XX FIELDS 1 a", false),
        ("HSET k a 1 b 2", "HEXPIREAT k 1 FIELDS 1 a", true),
        ("HSET k a 1", "HPERSIST k FIELDS 1 a", false),
        ("HSETEX k EX 10 FIELDS 1 a 1", "HPERSIST k FIELDS 1 a", true),
        ("HSETEX k EX 10 FIELDS 1 a 1", "HSET k a 1", true),
        ("HSETEX k EX 10 FIELDS 1 a 1", "HSET k b 1", true),
        ("HSETEX k EX 10 FIELDS 1 a 1", "HTTL k FIELDS 1 a", false),
        ("HSETEX k EX 10 FIELDS 1 a 1", "HGETEX k FIELDS 1 a", false),
        ("HSETEX k EX 10 FIELDS 1 a 1", "HGETEX k PERSIST FIELDS 1 a", true),
        ("HSETEX k EX 10 FIELDS 1 a 1", "HSETEX k FNX FIELDS 1 a 2", false),
        ("HSETEX k EX 10 FIELDS 1 a 1", "HGETDEL k FIELDS 1 b", false),
        ("HSETEX k EX 10 FIELDS 1 a 1", "HGETDEL k FIELDS 1 a", true),
        ("RPUSH k a", "RPUSH k a", true),
        ("RPUSH k a", "LPUSHX j a", false),
        ("RPUSH k a", "LPOP k 0", false),
        ("RPUSH k a b", "LPOP k", true),
        ("RPUSH k a b", "LREM k 0 c", false),
        ("RPUSH k a b", "LREM k 0 b", true),
        ("RPUSH k a b", "LINSERT k AFTER c d", false),
        ("RPUSH k a b", "LMOVE k j LEFT LEFT", true),
        ("RPUSH k a b", "LRANGE k 0 -1", false),
        ("RPUSH k a b", "SORT k ALPHA STORE j", false),
        ("RPUSH k a b", "SORT k ALPHA STORE k", true),
        ("ZADD k 1 a", "ZADD k 1 a", false),
        ("ZADD k 1 a", "ZADD k 2 a", true),
        ("ZADD k 1 a", "ZADD k NX 2 a", false),
        ("ZADD k 1 a", "ZINCRBY k 0 a", false),
        ("ZADD k inf a", "ZINCRBY k -inf a", false),
        ("ZADD k 1 a 2 b", "ZREM k c", false),
        ("ZADD k 1 a 2 b", "ZREM k b", true),
        ("ZADD k 1 a 2 b", "ZPOPMIN k", true),
        ("ZADD k 1 a 2 b", "ZREMRANGEBYSCORE k 5 6", false),
        ("ZADD k 1 a 2 b", "ZUNIONSTORE j 1 k", false),
        ("SADD k 1", "SADD k 1", false),
        ("SADD k 1", "SADD k 1 a", true),
        ("SADD k 1 2", "SREM k 3", false),
        ("SADD k 1 2", "SREM k 2", true),
        ("SADD k 1 2", "SMOVE k j 3", false),
        ("SADD k 1 2", "SMOVE k j 2", true),
        ("SADD k 1 2", "SMOVE k k 2", false),
        ("SADD k 1 2", "SPOP k 0", false),
        ("SADD k 1 2", "SPOP k", true),
        ("SADD k 1 2", "SINTERSTORE j k", false),
        ("SADD k 1 2", "SINTERSTORE k k", true),
    ];
    for (before, command, changes) in table {
        let mut local = Local::new();
        local.call(&words::split(before));
        let old = local.version("k");
        assert!(old > 0, "{before} makes the key");
        local.call(&words::split(command));
        assert_eq!(local.version("k") != old, changes, "{before}; {command}");
    }
}

#[test]
fn a_command_that_makes_no_key_leaves_none() {
    for command in [
        "GET k",
        "SET k v XX",
        "SET k v XX GET",
        "SET k v PXAT 1",
        "GETDEL k",
        "GETEX k EX 10",
        "SETRANGE k 7 \"\"",
        "BITFIELD k GET u8 0",
        "BITFIELD k",
        "BITOP AND k missing missing",
        "INCRBY k x",
        "LCS k k",
        "HEXPIRE k 10 FIELDS 1 a",
        "HPERSIST k FIELDS 1 a",
        "HGETEX k EX 10 FIELDS 1 a",
        "HSETEX k FXX FIELDS 1 a 1",
        "HSETEX k EXAT 1 FIELDS 1 a 1",
        "HGETDEL k FIELDS 1 a",
    ] {
        let mut local = Local::new();
        local.call(&words::split(command));
        assert_eq!(local.version("k"), 0, "{command}");
    }
}
