//! What `COMMAND DOCS` says of a command's past: when it was given what, and what took its place.
//!
//! The facts are those of Redis 8.6 as far as they hold here; generators of clients and some clients read them.

/// Changes of commands, by full name: the version, and what it brought. Sorted by name.
const HISTORY: &[(&str, &[(&str, &str)])] = &[
    (
        "acl|getuser",
        &[
            ("6.2.0", "Added patterns of channels."),
            ("7.0.0", "Added selectors; patterns of keys and channels are told as rules."),
        ],
    ),
    ("acl|log", &[("7.2.0", "Added the `entry-id`, `timestamp-created` and `timestamp-last-updated` fields.")]),
    (
        "acl|setuser",
        &[
            ("6.2.0", "Added patterns of channels."),
            ("7.0.0", "Added selectors, and permissions to read or to write keys."),
        ],
    ),
    ("auth", &[("6.0.0", "Added the `username` argument.")]),
    ("bgsave", &[("3.2.2", "Added the `SCHEDULE` option.")]),
    ("bitcount", &[("7.0.0", "Added the `BYTE|BIT` option.")]),
    ("bitpos", &[("7.0.0", "Added the `BYTE|BIT` option.")]),
    ("blpop", &[("6.0.0", "A `timeout` may be a fraction of a second.")]),
    ("brpop", &[("6.0.0", "A `timeout` may be a fraction of a second.")]),
    ("brpoplpush", &[("6.0.0", "A `timeout` may be a fraction of a second.")]),
    ("bzpopmax", &[("6.0.0", "A `timeout` may be a fraction of a second.")]),
    ("bzpopmin", &[("6.0.0", "A `timeout` may be a fraction of a second.")]),
    (
        "client|kill",
        &[
            ("2.8.12", "Added filters of a name and a value."),
            ("2.8.12", "Added the `ID` filter."),
            ("3.2.0", "Added `master` as a `TYPE`."),
            ("5.0.0", "Added `replica` as a `TYPE`, with the meaning of `slave`."),
            ("6.2.0", "Added the `LADDR` filter."),
            ("7.4.0", "Added the `MAXAGE` filter."),
        ],
    ),
    (
        "client|list",
        &[
            ("2.8.12", "Added the `id` field."),
            ("5.0.0", "Added the `TYPE` filter."),
            ("6.0.0", "Added the `user` field."),
            ("6.2.0", "Added the `argv-mem`, `tot-mem`, `laddr` and `redir` fields, and the `ID` filter."),
            ("7.0.0", "Added the `resp`, `multi-mem`, `rbs` and `rbp` fields."),
            ("7.0.3", "Added the `ssub` field."),
            ("7.2.0", "Added the `lib-name` and `lib-ver` fields."),
            ("7.4.0", "Added the `watch` field."),
        ],
    ),
    ("client|pause", &[("6.2.0", "Added the `WRITE` and `ALL` modes.")]),
    ("cluster|slots", &[("4.0.0", "Added the ids of nodes."), ("7.0.0", "Added further addresses of nodes.")]),
    ("command|info", &[("7.0.0", "Without a name, all commands are described.")]),
    ("config|get", &[("7.0.0", "Takes several patterns.")]),
    ("config|set", &[("7.0.0", "Takes several parameters.")]),
    ("exists", &[("3.0.3", "Takes several `key` arguments.")]),
    ("expire", &[("7.0.0", "Added the `NX`, `XX`, `GT` and `LT` options.")]),
    ("expireat", &[("7.0.0", "Added the `NX`, `XX`, `GT` and `LT` options.")]),
    ("flushall", &[("4.0.0", "Added the `ASYNC` option."), ("6.2.0", "Added the `SYNC` option.")]),
    ("flushdb", &[("4.0.0", "Added the `ASYNC` option."), ("6.2.0", "Added the `SYNC` option.")]),
    ("geoadd", &[("6.2.0", "Added the `CH`, `NX` and `XX` options.")]),
    ("georadius", &[("6.2.0", "Added the `ANY` option for `COUNT`."), ("7.0.0", "Units may be in capital letters.")]),
    (
        "georadius_ro",
        &[("6.2.0", "Added the `ANY` option for `COUNT`."), ("7.0.0", "Units may be in capital letters.")],
    ),
    (
        "georadiusbymember",
        &[("6.2.0", "Added the `ANY` option for `COUNT`."), ("7.0.0", "Units may be in capital letters.")],
    ),
    (
        "georadiusbymember_ro",
        &[("6.2.0", "Added the `ANY` option for `COUNT`."), ("7.0.0", "Units may be in capital letters.")],
    ),
    ("geosearch", &[("7.0.0", "Units may be in capital letters.")]),
    ("geosearchstore", &[("7.0.0", "Units may be in capital letters.")]),
    ("hdel", &[("2.4.0", "Takes several `field` arguments.")]),
    ("hello", &[("6.2.0", "Without a version, the connection is described as it is.")]),
    ("hset", &[("4.0.0", "Takes several `field` and `value` arguments.")]),
    ("info", &[("7.0.0", "Takes several sections.")]),
    ("lpop", &[("6.2.0", "Added the `count` argument.")]),
    ("lpush", &[("2.4.0", "Takes several `element` arguments.")]),
    ("lpushx", &[("4.0.0", "Takes several `element` arguments.")]),
    (
        "migrate",
        &[
            ("3.0.0", "Added the `COPY` and `REPLACE` options."),
            ("3.0.6", "Added the `KEYS` option."),
            ("4.0.7", "Added the `AUTH` option."),
            ("6.0.0", "Added the `AUTH2` option."),
        ],
    ),
    ("pexpire", &[("7.0.0", "Added the `NX`, `XX`, `GT` and `LT` options.")]),
    ("pexpireat", &[("7.0.0", "Added the `NX`, `XX`, `GT` and `LT` options.")]),
    ("pttl", &[("2.8.0", "Answers -2 if there is no such key.")]),
    ("renamenx", &[("3.2.0", "Two equal names are no error.")]),
    (
        "restore",
        &[
            ("3.0.0", "Added the `REPLACE` option."),
            ("5.0.0", "Added the `ABSTTL` option."),
            ("5.0.0", "Added the `IDLETIME` and `FREQ` options."),
        ],
    ),
    ("rpop", &[("6.2.0", "Added the `count` argument.")]),
    ("rpush", &[("2.4.0", "Takes several `element` arguments.")]),
    ("rpushx", &[("4.0.0", "Takes several `element` arguments.")]),
    ("sadd", &[("2.4.0", "Takes several `member` arguments.")]),
    ("scan", &[("6.0.0", "Added the `TYPE` option.")]),
    ("script|flush", &[("6.2.0", "Added the `ASYNC` and `SYNC` options.")]),
    (
        "set",
        &[
            ("2.6.12", "Added the `EX`, `PX`, `NX` and `XX` options."),
            ("6.0.0", "Added the `KEEPTTL` option."),
            ("6.2.0", "Added the `GET`, `EXAT` and `PXAT` options."),
            ("7.0.0", "`NX` may be combined with `GET`."),
            ("8.4.0", "Added the `IFEQ`, `IFNE`, `IFDEQ` and `IFDNE` options."),
        ],
    ),
    ("shutdown", &[("7.0.0", "Added the `NOW`, `FORCE` and `ABORT` options.")]),
    ("slowlog|get", &[("4.0.0", "Added the address and name of the client.")]),
    ("spop", &[("3.2.0", "Added the `count` argument.")]),
    ("srandmember", &[("2.6.0", "Added the `count` argument.")]),
    ("srem", &[("2.4.0", "Takes several `member` arguments.")]),
    ("ttl", &[("2.8.0", "Answers -2 if there is no such key.")]),
    (
        "xadd",
        &[
            ("6.2.0", "Added the `NOMKSTREAM`, `MINID` and `LIMIT` options."),
            ("7.0.0", "An id may be `<ms>-*`."),
            ("8.2.0", "Added the `KEEPREF`, `DELREF` and `ACKED` options."),
        ],
    ),
    ("xautoclaim", &[("7.0.0", "Added a third element: ids of entries that were pending and have been deleted.")]),
    ("xgroup|create", &[("7.0.0", "Added the `ENTRIESREAD` option.")]),
    ("xgroup|setid", &[("7.0.0", "Added the `ENTRIESREAD` option.")]),
    ("xinfo|consumers", &[("7.2.0", "Added the `inactive` field; `idle` counts attempts, too.")]),
    ("xinfo|groups", &[("7.0.0", "Added the `entries-read` and `lag` fields.")]),
    (
        "xinfo|stream",
        &[
            ("6.0.0", "Added the `FULL` option."),
            ("7.0.0", "Added the `max-deleted-entry-id`, `entries-added` and `recorded-first-entry-id` fields."),
            ("7.0.0", "Added the `entries-read` and `lag` fields of groups."),
            ("7.2.0", "Added the `active-time` field; `seen-time` counts attempts, too."),
            ("8.6.0", "Added the fields of `IDMP`."),
        ],
    ),
    ("xpending", &[("6.2.0", "Added the `IDLE` option; bounds may be excluded.")]),
    ("xrange", &[("6.2.0", "Bounds may be excluded.")]),
    ("xrevrange", &[("6.2.0", "Bounds may be excluded.")]),
    ("xsetid", &[("7.0.0", "Added the `ENTRIESADDED` and `MAXDELETEDID` options.")]),
    (
        "xtrim",
        &[
            ("6.2.0", "Added the `MINID` and `LIMIT` options."),
            ("8.2.0", "Added the `KEEPREF`, `DELREF` and `ACKED` options."),
        ],
    ),
    (
        "zadd",
        &[
            ("2.4.0", "Takes several members."),
            ("3.0.2", "Added the `XX`, `NX`, `CH` and `INCR` options."),
            ("6.2.0", "Added the `GT` and `LT` options."),
        ],
    ),
    ("zrange", &[("6.2.0", "Added the `REV`, `BYSCORE`, `BYLEX` and `LIMIT` options.")]),
    ("zrangebyscore", &[("2.0.0", "Added the `WITHSCORES` option.")]),
    ("zrank", &[("7.2.0", "Added the `WITHSCORE` argument.")]),
    ("zrem", &[("2.4.0", "Takes several members.")]),
    ("zrevrangebyscore", &[("2.1.6", "Bounds may be excluded.")]),
    ("zrevrank", &[("7.2.0", "Added the `WITHSCORE` argument.")]),
];

/// Commands that have been superseded, by full name: since when, and by what. Sorted by name.
const SUPERSEDED: &[(&str, &str, &str)] = &[
    ("brpoplpush", "6.2.0", "`BLMOVE` with `RIGHT` and `LEFT`"),
    ("cluster|slaves", "5.0.0", "`CLUSTER REPLICAS`"),
    ("cluster|slots", "7.0.0", "`CLUSTER SHARDS`"),
    ("georadius", "6.2.0", "`GEOSEARCH` and `GEOSEARCHSTORE` with `BYRADIUS`"),
    ("georadius_ro", "6.2.0", "`GEOSEARCH` with `BYRADIUS`"),
    ("georadiusbymember", "6.2.0", "`GEOSEARCH` and `GEOSEARCHSTORE` with `BYRADIUS` and `FROMMEMBER`"),
    ("georadiusbymember_ro", "6.2.0", "`GEOSEARCH` with `BYRADIUS` and `FROMMEMBER`"),
    ("getset", "6.2.0", "`SET` with `GET`"),
    ("hmset", "4.0.0", "`HSET` with several fields"),
    ("psetex", "2.6.12", "`SET` with `PX`"),
    ("quit", "7.2.0", "closing the connection"),
    ("rpoplpush", "6.2.0", "`LMOVE` with `RIGHT` and `LEFT`"),
    ("setex", "2.6.12", "`SET` with `EX`"),
    ("setnx", "2.6.12", "`SET` with `NX`"),
    ("slaveof", "5.0.0", "`REPLICAOF`"),
    ("substr", "2.0.0", "`GETRANGE`"),
    ("zrangebylex", "6.2.0", "`ZRANGE` with `BYLEX`"),
    ("zrangebyscore", "6.2.0", "`ZRANGE` with `BYSCORE`"),
    ("zrevrange", "6.2.0", "`ZRANGE` with `REV`"),
    ("zrevrangebylex", "6.2.0", "`ZRANGE` with `REV` and `BYLEX`"),
    ("zrevrangebyscore", "6.2.0", "`ZRANGE` with `REV` and `BYSCORE`"),
];

/// Commands that are not for users, by full name. Sorted.
const INTERNAL: &[&str] = &["debug", "pfdebug", "pfselftest", "replconf"];

/// The names of all commands of which something is known here.
pub fn names() -> impl Iterator<Item = &'static str> {
    let superseded = SUPERSEDED.iter().map(|(name, ..)| *name);
    HISTORY.iter().map(|(name, _)| *name).chain(superseded).chain(INTERNAL.iter().copied())
}

/// The changes of a command since it came, oldest first: the version, and what it brought.
pub fn history(full_name: &str) -> &'static [(&'static str, &'static str)] {
    HISTORY.binary_search_by_key(&full_name, |(name, _)| name).map_or(&[], |place| HISTORY[place].1)
}

/// Since which version another command takes the place of this one, and which.
pub fn superseded(full_name: &str) -> Option<(&'static str, &'static str)> {
    let place = SUPERSEDED.binary_search_by_key(&full_name, |(name, ..)| name).ok()?;
    Some((SUPERSEDED[place].1, SUPERSEDED[place].2))
}

/// True for a command that is not for users.
pub fn is_internal(full_name: &str) -> bool {
    INTERNAL.binary_search(&full_name).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted() {
        assert!(HISTORY.is_sorted_by(|one, next| one.0 < next.0));
        assert!(SUPERSEDED.is_sorted_by(|one, next| one.0 < next.0));
        assert!(INTERNAL.is_sorted_by(|one, next| one < next));
        for (name, changes) in HISTORY {
            assert!(!changes.is_empty() && changes.iter().all(|(_, change)| !change.is_empty()), "{name}");
        }
    }

    #[test]
    fn what_is_known_of_a_command_is_found() {
        assert_eq!(history("zrank"), [("7.2.0", "Added the `WITHSCORE` argument.")]);
        assert_eq!(history("sort"), []);
        assert_eq!(superseded("substr"), Some(("2.0.0", "`GETRANGE`")));
        assert_eq!(superseded("get"), None);
        assert!(is_internal("replconf") && !is_internal("set"));
    }
}
