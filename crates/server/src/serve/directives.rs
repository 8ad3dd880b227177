//! What becomes of every directive of a `redis.conf`: the one source for the log, for `holdfast config check` and for
//! the manual.
//!
//! Named here are directives that are not simply obeyed. What is in none of the lists is a parameter that is.

use node::settings::Settings;

/// What becomes of a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It is obeyed.
    Obeyed,
    /// It is obeyed, and means here what its author may not expect: the text says it.
    Told,
    /// It has no effect here; the text says what does instead.
    WithoutEffect,
    /// A server does not start with it, since it would not be what its author wants; the text says what to do.
    Refused,
}

impl Class {
    /// One word for a table.
    pub fn word(self) -> &'static str {
        match self {
            Self::Obeyed | Self::Told => "obeyed",
            Self::WithoutEffect => "no effect",
            Self::Refused => "REFUSED",
        }
    }
}

/// A directive that is not simply obeyed.
#[derive(Debug)]
pub struct Directive {
    /// Its name, lower case.
    pub name: &'static str,
    /// What becomes of it.
    pub class: Class,
    /// Values that ask for nothing but what is so here anyway, beside those that this server has by default.
    harmless: &'static [&'static str],
    /// What does instead, or what to do.
    pub text: &'static str,
}

const fn told(name: &'static str, harmless: &'static [&'static str], text: &'static str) -> Directive {
    Directive { name, class: Class::Told, harmless, text }
}

const fn without(name: &'static str, harmless: &'static [&'static str], text: &'static str) -> Directive {
    Directive { name, class: Class::WithoutEffect, harmless, text }
}

const fn refused(name: &'static str, harmless: &'static [&'static str], text: &'static str) -> Directive {
    Directive { name, class: Class::Refused, harmless, text }
}

const FOLLOWS: &str = "a server does not start as a replica of a Redis, since it would be an empty master: start it \
                       without, and say REPLICAOF to it once, which it remembers, or use `holdfast migrate start`";
const MASTER: &str = "for the Redis that is followed by REPLICAOF or `follow`; nodes of a cluster know each other by \
                      certificates: see `join` and `token`";
const DEFRAGMENTATION: &str = "memory is not defragmented";
const AOF: &str = "there is no append-only file; the log is always on and removes its old parts itself";
const RDB: &str = "there is no dump file; checkpoints are made as the log grows";
const LAZY: &str = "large values are always freed in small steps";
const REPLICA: &str = "nodes of a cluster replicate by consensus, and none of them is a replica in this sense";
const FULL_COPY: &str = "followers get copies from the backlog on disk, without a fork";
const MESH: &str = "nodes agree by consensus and not by Redis Cluster's gossip";
const PROCESSORS: &str = "the service manager chooses processors: CPUAffinity= in the unit";
const THREADS: &str = "the number of threads that serve clients follows the load; `cores N` sets the maximum";
const DEBUGGING: &str = "this is for developers of Redis";
const SHUTDOWN: &str = "every stop is orderly and loses nothing";
const ENCODING: &str = "this collection has one encoding here";
const NAME: &str = "only the name that OBJECT ENCODING tells depends on it";
const PROTECTED: &str = "users decide who may do what: `user default … -debug`, for instance";

/// All directives that are not simply obeyed, by name.
pub static DIRECTIVES: &[Directive] = &[
    without("active-defrag-cycle-max", &[], DEFRAGMENTATION),
    without("active-defrag-cycle-min", &[], DEFRAGMENTATION),
    without("active-defrag-cycle-us", &[], DEFRAGMENTATION),
    without("active-defrag-ignore-bytes", &[], DEFRAGMENTATION),
    without("active-defrag-max-scan-fields", &[], DEFRAGMENTATION),
    without("active-defrag-threshold-lower", &[], DEFRAGMENTATION),
    without("active-defrag-threshold-upper", &[], DEFRAGMENTATION),
    without("active-expire-effort", &[], "expired keys are removed as fast as other work allows"),
    without("activedefrag", &[], DEFRAGMENTATION),
    without("activerehashing", &[], "tables of keys always grow in small steps"),
    without("always-show-logo", &[], "there is no logo"),
    without("aof-disable-auto-gc", &[], AOF),
    without("aof-load-truncated", &[], "the end of the log is always checked by its checksums"),
    without("aof-rewrite-cpulist", &[], PROCESSORS),
    without("aof-rewrite-incremental-fsync", &[], AOF),
    without("aof-timestamp-enabled", &[], "`archive` keeps what is needed to go back to a moment"),
    without("aof-use-rdb-preamble", &[], AOF),
    without("aof_rewrite_cpulist", &[], PROCESSORS),
    without("appenddirname", &[], AOF),
    without("appendfilename", &[], AOF),
    told(
        "appendfsync",
        &["always"],
        "what was acknowledged since the last sync is lost if the machine dies; `always` syncs before it acknowledges",
    ),
    without("appendonly", &["yes"], "the log is always on: what is acknowledged survives a restart"),
    without("auto-aof-rewrite-min-size", &[], "`checkpoint-log-bytes` says when the next checkpoint is made"),
    without("auto-aof-rewrite-percentage", &[], "`checkpoint-log-bytes` says when the next checkpoint is made"),
    without("availability-zone", &[], "clients are not told of zones"),
    without("bgsave-cpulist", &[], PROCESSORS),
    without("bgsave_cpulist", &[], PROCESSORS),
    without("bind-source-addr", &[], "the system chooses the address that nodes call each other from"),
    without("bio-cpulist", &[], PROCESSORS),
    without("bio_cpulist", &[], PROCESSORS),
    without("client-default-resp", &["2"], "clients begin with RESP2 and change with HELLO"),
    without("client-query-buffer-limit", &[], "`proto-max-bulk-len` and `maxmemory-clients` bound what a client takes"),
    without("cluster-allow-pubsubshard-when-down", &[], MESH),
    without("cluster-allow-reads-when-down", &[], "`replica-read-max-staleness-ms` bounds reads without a leader"),
    without("cluster-allow-replica-migration", &[], MESH),
    without("cluster-announce-client-ipv4", &[], "`cluster-announce-ip` is the address for clients and nodes"),
    without("cluster-announce-client-ipv6", &[], "`cluster-announce-ip` is the address for clients and nodes"),
    without("cluster-announce-hostname", &[], "`cluster-announce-ip` may be the name of a host"),
    without("cluster-announce-human-nodename", &[], "nodes are known by their addresses"),
    without("cluster-blacklist-ttl", &[], MESH),
    without("cluster-config-file", &[], "what a node knows of its cluster is in its data directory"),
    told(
        "cluster-enabled",
        &["no"],
        "nodes meet with `join` or `holdfast cluster create`; every node takes every command, and clients are sent to \
         leaders only with `cluster-redirect yes`",
    ),
    without("cluster-link-sendbuf-limit", &[], "what is sent between nodes is always bounded"),
    without("cluster-migration-barrier", &[], MESH),
    without("cluster-node-timeout", &[], "a silent leader is replaced within about a second"),
    without("cluster-ping-interval", &[], MESH),
    without("cluster-preferred-endpoint-type", &[], "`cluster-announce-ip` may be the name of a host"),
    without("cluster-replica-no-failover", &[], MESH),
    without("cluster-replica-validity-factor", &[], MESH),
    without("cluster-require-full-coverage", &[], "groups without a leader answer with an error, the others serve"),
    without("cluster-slave-no-failover", &[], MESH),
    without("cluster-slave-validity-factor", &[], MESH),
    without("cluster-slot-stats-enabled", &[], "`INFO` and the metrics tell about groups of slots"),
    without("commandlog-large-reply-max-len", &[], "large replies are not noted"),
    without("commandlog-large-request-max-len", &[], "large requests are not noted"),
    without("commandlog-reply-larger-than", &[], "large replies are not noted"),
    without("commandlog-request-larger-than", &[], "large requests are not noted"),
    without("crash-log-enabled", &[], "a crash is always logged"),
    without("crash-memcheck-enabled", &[], "memory is not tested after a crash"),
    without(
        "daemonize",
        &[],
        "the process stays in the foreground: let a service manager start it, as the unit of the package does",
    ),
    without("dbfilename", &[], RDB),
    without("debug-context", &[], DEBUGGING),
    without("disable-thp", &[], "`holdfast doctor` says whether huge pages harm"),
    without("dual-channel-replication-enabled", &[], REPLICA),
    without("dynamic-hz", &[], "nothing is done at a fixed rate"),
    without("enable-debug-assert", &[], DEBUGGING),
    without("enable-debug-command", &[], PROTECTED),
    without("enable-module-command", &["no"], "modules are not loaded"),
    without("enable-protected-configs", &[], PROTECTED),
    without("events-per-io-thread", &[], THREADS),
    without("extended-redis-compatibility", &[], "clients are always told a version of Redis"),
    without(
        "hide-user-data-from-log",
        &[],
        "the log contains clients and nodes, but no data; lines of `redis.log` are as scripts wrote them",
    ),
    without("hz", &[], "nothing is done at a fixed rate"),
    without("ignore-warnings", &[], "a warning does not keep the server from starting"),
    without("io-threads", &["1"], THREADS),
    without("io-threads-do-reads", &[], THREADS),
    without("jemalloc-bg-thread", &[], "the allocator gives memory back by itself"),
    without("key-load-delay", &[], DEBUGGING),
    without("lazyfree-lazy-eviction", &[], LAZY),
    without("lazyfree-lazy-expire", &[], LAZY),
    without("lazyfree-lazy-server-del", &[], LAZY),
    without("lazyfree-lazy-user-del", &[], LAZY),
    without("lazyfree-lazy-user-flush", &[], LAZY),
    without("list-compress-depth", &[], ENCODING),
    told("list-max-listpack-size", &[], NAME),
    without("list-max-ziplist-entries", &[], ENCODING),
    told("list-max-ziplist-size", &[], NAME),
    without("list-max-ziplist-value", &[], ENCODING),
    without("loading-process-events-interval-bytes", &[], DEBUGGING),
    refused(
        "loadmodule",
        &[],
        "modules of Redis cannot be loaded; JSON (`JSON.SET` and its relatives) is built in: remove the line",
    ),
    without("locale-collate", &[], "SORT ALPHA compares bytes"),
    without("log-timestamp-format", &[], "times of the log are in UTC, to the millisecond"),
    without("lua-replicate-commands", &["yes"], "scripts always replicate their effects"),
    told("masterauth", &[], MASTER),
    told("masteruser", &[], MASTER),
    without("max-new-connections-per-cycle", &[], "a thread of its own accepts connections"),
    without("max-new-tls-connections-per-cycle", &[], "a thread of its own accepts connections"),
    without("maxmemory-eviction-tenacity", &[], "eviction never holds up clients for long"),
    without("no-appendfsync-on-rewrite", &[], "checkpoints yield to the log on disk"),
    without("oom-score-adj", &[], "the service manager sets it: OOMScoreAdjust= in the unit"),
    without("oom-score-adj-values", &[], "the service manager sets it: OOMScoreAdjust= in the unit"),
    without("prefetch-batch-max-size", &[], "keys are always looked up in advance"),
    without("primaryauth", &[], "nodes of a cluster know each other by certificates: see `join` and `token`"),
    without("primaryuser", &[], "nodes of a cluster know each other by certificates: see `join` and `token`"),
    without("proc-title-template", &[], "the title of the process is its command line"),
    without("propagation-error-behavior", &[], "replicas apply a log that nodes have agreed on"),
    without("rdb-del-sync-files", &[], RDB),
    without("rdb-key-save-delay", &[], DEBUGGING),
    without("rdb-save-incremental-fsync", &[], RDB),
    without("rdb-version-check", &[], "a file that cannot be read is refused by name"),
    without("rdbchecksum", &["yes"], "checksums are always written and checked"),
    without("rdbcompression", &[], RDB),
    refused(
        "rename-command",
        &[],
        "commands keep their names: take forbidden commands away from the users, as in `user default on >PASSWORD ~* \
         &* +@all -flushall`, and remove the line",
    ),
    without("repl-disable-tcp-nodelay", &["no"], "what is sent to other nodes is never held back"),
    without("repl-diskless-load", &[], REPLICA),
    without("repl-diskless-sync", &[], FULL_COPY),
    without("repl-diskless-sync-delay", &[], FULL_COPY),
    without("repl-diskless-sync-max-replicas", &[], FULL_COPY),
    without("replica-announce-ip", &[], "`cluster-announce-ip` is the address for clients and nodes"),
    without("replica-announce-port", &[], "`cluster-announce-port` is the port for clients"),
    without("replica-announced", &[], REPLICA),
    without("replica-ignore-disk-write-errors", &[], "a log that cannot be written stops the node"),
    without("replica-ignore-maxmemory", &[], REPLICA),
    without("replica-lazy-flush", &[], REPLICA),
    without("replica-read-only", &[], "every node takes writes, and sends them to the leader"),
    without("replica-serve-stale-data", &[], "`replica-read-max-staleness-ms` says how old a read may be"),
    refused("replicaof", &["", "no one"], FOLLOWS),
    without("req-res-logfile", &[], DEBUGGING),
    without("sanitize-dump-payload", &["yes"], "what RESTORE is given is always checked"),
    without("save", &[""], RDB),
    refused("sentinel", &[], "this belongs to a Sentinel: nodes answer its clients with `sentinel-port 26379`"),
    without("server-cpulist", &[], PROCESSORS),
    without("server_cpulist", &[], PROCESSORS),
    told("set-max-listpack-entries", &[], NAME),
    told("set-max-listpack-value", &[], NAME),
    without("set-proc-title", &[], "the title of the process is its command line"),
    without("shutdown-on-sigint", &[], SHUTDOWN),
    without("shutdown-on-sigterm", &[], SHUTDOWN),
    without("slave-announce-ip", &[], "`cluster-announce-ip` is the address for clients and nodes"),
    without("slave-announce-port", &[], "`cluster-announce-port` is the port for clients"),
    without("slave-ignore-maxmemory", &[], REPLICA),
    without("slave-lazy-flush", &[], REPLICA),
    without("slave-read-only", &[], "every node takes writes, and sends them to the leader"),
    without("slave-serve-stale-data", &[], "`replica-read-max-staleness-ms` says how old a read may be"),
    refused("slaveof", &["", "no one"], FOLLOWS),
    without("socket-mark-id", &[], "this exists only on FreeBSD and OpenBSD"),
    without("stop-writes-on-bgsave-error", &["yes"], "writes are always refused when the disk has no room"),
    without(
        "supervised",
        &["no", "systemd", "auto"],
        "the server notifies systemd by itself when it is ready; other ways are not supported",
    ),
    without("syslog-enabled", &[], "the log goes to the standard output, where journald takes it, or to `logfile`"),
    without("syslog-facility", &[], "the log goes to the standard output, where journald takes it, or to `logfile`"),
    without("syslog-ident", &[], "the log goes to the standard output, where journald takes it, or to `logfile`"),
    without("tls-dh-params-file", &[], "keys are agreed on over elliptic curves"),
    told(
        "tls-replication",
        &[],
        "for the Redis that is followed by REPLICAOF; between nodes all is encrypted unless `tls-cluster no` says otherwise",
    ),
    without("tls-session-cache-timeout", &[], "the number of kept sessions is limited, not their age"),
    refused(
        "unixsocketgroup",
        &[""],
        "the group of the socket is that of the process: set it in the unit, or remove the line",
    ),
    without("use-exit-on-panic", &[], DEBUGGING),
    without("watchdog-period", &["0"], "a black box always records what held up a core: see INFO"),
];

/// Names that others have given to parameters of ours.
const ALIASES: &[(&str, &str)] = &[
    ("commandlog-execution-slower-than", "slowlog-log-slower-than"),
    ("commandlog-slow-execution-max-len", "slowlog-max-len"),
];

/// Directives of a file that are no parameters, and are obeyed.
const STATEMENTS: &[&str] =
    &["include", "user", "join", "token", "token-file", "requirepass-file", "data-dir", "dir", "cores", "level-max"];

/// The name under which a directive is a parameter here.
pub fn own_name(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, own)| own)
}

/// What becomes of a directive with this value, and the text that goes with it if there is anything to be said.
/// `None` if nobody knows such a directive.
pub fn fate(name: &str, value: &str) -> Option<(Class, &'static str)> {
    let name = own_name(name);
    let parameter = Settings::parameter(name);
    let Some(directive) = find(name) else {
        return (parameter.is_some() || STATEMENTS.contains(&name)).then_some((Class::Obeyed, ""));
    };
    let asks_nothing = directive.harmless.iter().any(|harmless| harmless.eq_ignore_ascii_case(value));
    Some(match directive.class {
        Class::Told | Class::Refused if asks_nothing => (Class::Obeyed, ""),
        class => (class, directive.text),
    })
}

/// True if a directive without effect asks for something that is not so here anyway: its author should know.
pub fn is_news(name: &str, value: &str) -> bool {
    let Some(directive) = find(name) else { return false };
    let is_default = Settings::default().would_keep(name, value);
    !is_default && !directive.harmless.iter().any(|harmless| harmless.eq_ignore_ascii_case(value))
}

fn find(name: &str) -> Option<&'static Directive> {
    DIRECTIVES.iter().find(|directive| directive.name == name)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn directives_stand_in_order_and_once() {
        assert!(DIRECTIVES.is_sorted_by(|one, next| one.name < next.name));
    }

    /// Names of the parameters of Redis 7.2 and Valkey 8, and what else stands in their files.
    #[test]
    fn every_directive_of_redis_and_valkey_is_known() {
        let names = include_str!("directives.txt");
        let unknown: Vec<_> = names.split_whitespace().filter(|name| fate(name, "1").is_none()).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        assert!(names.split_whitespace().count() > 230, "the list is whole");
    }

    #[test]
    fn values_decide_as_well() {
        let cases = [
            ("appendfsync", "everysec", Some(Class::Told)),
            ("appendfsync", "always", Some(Class::Obeyed)),
            ("replicaof", "10.0.0.1 6379", Some(Class::Refused)),
            ("replicaof", "NO ONE", Some(Class::Obeyed)),
            ("rename-command", "FLUSHALL ", Some(Class::Refused)),
            ("maxmemory", "2gb", Some(Class::Obeyed)),
            ("include", "other.conf", Some(Class::Obeyed)),
            ("commandlog-execution-slower-than", "5", Some(Class::Obeyed)),
            ("io-threads", "4", Some(Class::WithoutEffect)),
            ("no-such", "1", None),
        ];
        for (name, value, class) in cases {
            assert_eq!(fate(name, value).map(|(class, _)| class), class, "{name} {value}");
        }
        assert!(is_news("io-threads", "4") && is_news("daemonize", "yes") && is_news("appendonly", "no"));
        assert!(!is_news("daemonize", "no") && !is_news("supervised", "systemd") && !is_news("hz", "10"));
    }

    /// `UPDATE_EXPECT=1` writes the table again.
    #[test]
    fn the_manual_has_the_table() {
        const BEGIN: &str = "<!-- directives -->\n";
        const END: &str = "<!-- end of directives -->";
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/manual/redis-conf.md");
        let page = fs::read_to_string(&path).expect("the page of the manual");
        let (head, rest) = page.split_once(BEGIN).expect("where the table begins");
        let (table, tail) = rest.split_once(END).expect("where the table ends");
        let mut wanted = "| directive | effect | |\n| --- | --- | --- |\n".to_owned();
        for Directive { name, class, harmless, text } in DIRECTIVES {
            let values = match (class, harmless) {
                (Class::Refused | Class::Told, [_, ..]) => {
                    let shown: Vec<_> =
                        harmless.iter().filter(|value| !value.is_empty()).map(|value| format!("`{value}`")).collect();
                    if shown.is_empty() { String::new() } else { format!(", unless {}", shown.join(" or ")) }
                }
                _ => String::new(),
            };
            let word = class.word().to_lowercase();
            let _ = writeln!(wanted, "| `{name}` | {word}{values} | {text} |");
        }
        if table != wanted && std::env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(&path, format!("{head}{BEGIN}{wanted}{END}{tail}")).expect("the page can be written");
        } else {
            assert_eq!(table, wanted, "UPDATE_EXPECT=1 writes it again");
        }
    }
}
