//! Configuration files of others: what a `redis.conf` does to a server here.

use std::fs;

use crate::harness::{Folder, Server, ServerOptions, fail, succeed, text};

/// What stands in the file of Debian's package of Redis 7.0, without the places that differ here.
const DEBIAN: &str = "\
bind 127.0.0.1 -::1
protected-mode yes
port 6379
tcp-backlog 511
timeout 0
tcp-keepalive 300
daemonize yes
loglevel notice
databases 16
always-show-logo no
set-proc-title yes
proc-title-template \"{title} {listen-addr} {server-mode}\"
stop-writes-on-bgsave-error yes
rdbcompression yes
rdbchecksum yes
dbfilename dump.rdb
rdb-del-sync-files no
replica-serve-stale-data yes
replica-read-only yes
repl-diskless-sync yes
repl-diskless-sync-delay 5
repl-diskless-sync-max-replicas 0
repl-diskless-load disabled
repl-disable-tcp-nodelay no
replica-priority 100
acllog-max-len 128
lazyfree-lazy-eviction no
lazyfree-lazy-expire no
lazyfree-lazy-server-del no
replica-lazy-flush no
lazyfree-lazy-user-del no
lazyfree-lazy-user-flush no
oom-score-adj no
oom-score-adj-values 0 200 800
disable-thp yes
appendonly no
appendfilename \"appendonly.aof\"
appenddirname \"appendonlydir\"
appendfsync everysec
no-appendfsync-on-rewrite no
auto-aof-rewrite-percentage 100
auto-aof-rewrite-min-size 64mb
aof-load-truncated yes
aof-use-rdb-preamble yes
aof-timestamp-enabled no
slowlog-log-slower-than 10000
slowlog-max-len 128
latency-monitor-threshold 0
notify-keyspace-events \"\"
hash-max-listpack-entries 512
hash-max-listpack-value 64
list-max-listpack-size -2
list-compress-depth 0
set-max-intset-entries 512
zset-max-listpack-entries 128
zset-max-listpack-value 64
hll-sparse-max-bytes 3000
stream-node-max-bytes 4096
stream-node-max-entries 100
activerehashing yes
client-output-buffer-limit normal 0 0 0
client-output-buffer-limit replica 256mb 64mb 60
client-output-buffer-limit pubsub 32mb 8mb 60
hz 10
dynamic-hz yes
aof-rewrite-incremental-fsync yes
rdb-save-incremental-fsync yes
jemalloc-bg-thread yes
";

/// Where Debian's package puts its file.
const INSTALLED: &str = "/etc/redis/redis.conf";

#[test]
fn the_file_of_debian_starts_a_server_that_says_what_it_does_not_do() {
    let folder = Folder::new();
    let kept = folder.path().join("redis.conf");
    fs::write(&kept, DEBIAN).expect("a file");
    let mut files = vec![kept.clone()];
    if fs::read(INSTALLED).is_ok() {
        files.push(INSTALLED.into());
    }
    for (number, file) in files.iter().enumerate() {
        let name = text(file);
        let table = succeed(&["config", "check", name]);
        for words in ["no effect  line", "daemonize yes", "appendfsync everysec", " 0 refused"] {
            assert!(table.contains(words), "{words}: {table}");
        }
        let brief = succeed(&["config", "check", name, "--quiet"]);
        assert!(!brief.contains("tcp-backlog") && brief.contains("daemonize yes"), "{brief}");

        let elsewhere = ["--config", name, "--logfile", "", "--pidfile", "", "--appendfsync", "everysec"];
        let options = ServerOptions::new(&folder.path().join(format!("data-{number}"))).extra(&elsewhere);
        let server = Server::start(&options);
        assert_eq!(server.client().show("CONFIG GET appendfsync"), "[\"appendfsync\", \"everysec\"]");
        let log = server.log();
        for words in [
            "daemonize has no effect here: the process stays in the foreground",
            "appendonly has no effect here: the log is always on",
            "appendfsync everysec is obeyed: what was acknowledged since the last sync is lost if the machine dies",
            "directives have no effect here and ask for nothing unusual",
        ] {
            assert!(log.contains(words), "{words}: {log}");
        }
        assert!(!log.contains("supervised has no effect"), "{log}");
    }
}

#[test]
fn what_would_not_be_what_its_author_wants_is_refused() {
    let folder = Folder::new();
    let file = folder.path().join("redis.conf");
    let inner = folder.path().join("inner.conf");
    let name = text(&file).to_owned();
    fs::write(&inner, "sentinel monitor mymaster 127.0.0.1 6379 2\n").expect("a file");
    let cases = [
        ("replicaof 10.0.0.1 6379", "holdfast migrate start"),
        ("slaveof 10.0.0.1 6379", "holdfast migrate start"),
        ("rename-command FLUSHALL \"\"", "-flushall"),
        ("loadmodule /usr/lib/redis/rejson.so", "JSON"),
        ("unixsocketgroup redis", "the group of the socket"),
        ("maxmemory lots", "memory value"),
        ("no-such-thing 1", "Unknown option"),
        ("port \"1", "unbalanced quotes"),
        ("user alice +nosuch", "nosuch"),
        (&format!("include {}", text(&inner)), "sentinel-port 26379"),
        (&format!("include {}/none.conf", folder.path().display()), "No such file"),
    ];
    for (line, words) in cases {
        fs::write(&file, format!("timeout 7\n{line}\nmasterauth hush\nrequirepass hush\n")).expect("a file");
        let told = fail(&["config", "check", &name]);
        assert!(told.contains(words) && told.contains("REFUSED") && told.contains(" 1 refused"), "{line}: {told}");
        assert!(told.contains("timeout 7") && !told.contains("hush"), "{line}: {told}");
        let options = ServerOptions::new(&folder.path().join("data")).extra(&["--config", &name]);
        match Server::try_start(&options) {
            Ok(_) => panic!("it started with {line}"),
            Err(exit) => assert!(exit.log.contains(words), "{line}: {}", exit.log),
        }
        assert!(!folder.path().join("data").exists(), "{line}: nothing is made");
    }
    fs::write(&file, "replicaof no one\nprimaryauth hush\ncommandlog-execution-slower-than 7\n").expect("a file");
    let table = succeed(&["config", "check", &name]);
    assert!(table.contains("primaryauth …") && table.contains(" 0 refused"), "{table}");
    let told = fail(&["config", "check", &format!("{name}.none")]);
    assert!(told.contains("cannot read the configuration file"), "{told}");
}

#[test]
fn a_file_is_written_anew_with_what_holds_and_keeps_what_its_author_wrote() {
    let folder = Folder::new();
    let (place, data) = (folder.path().join("etc"), folder.path().join("data"));
    fs::create_dir(&place).expect("a folder");
    let file = place.join("holdfast.conf");
    fs::write(&file, "# of mine\ntimeout 7\n\nmaxmemory 1gb # no comment\n").expect("a file");
    let options = ServerOptions::new(&data).extra(&["--config", text(&file)]);
    assert!(Server::try_start(&options).is_err(), "there is no comment behind a value");
    fs::write(&file, "# of mine\ntimeout 7\n\nmaxmemory 1gb\n").expect("a file");
    let server = Server::start(&options);
    let mut client = server.client();
    assert_eq!(client.show("CONFIG SET maxmemory 5mb slowlog-max-len 9"), "OK");
    assert_eq!(client.show("ACL SETUSER alice on >wonder ~* +@all"), "OK");
    // Two at once: one after the other.
    let mut other = server.client();
    for one in [&mut client, &mut other] {
        one.send(&["CONFIG", "REWRITE"]).expect("it is sent");
    }
    for one in [&mut client, &mut other] {
        assert_eq!(one.receive().expect("an answer").to_string(), "OK");
    }
    let written = fs::read_to_string(&file).expect("the file");
    assert!(written.starts_with("# of mine\ntimeout 7\n\nmaxmemory 5242880\n"), "{written}");
    assert!(
        written.contains("\nslowlog-max-len 9\n") && written.contains("\nuser alice on sanitize-payload #"),
        "{written}"
    );
    assert!(!written.contains("wonder") && !written.contains("\ncores "), "{written}");
    assert_eq!(fs::read_dir(&place).expect("the folder").count(), 1);
    server.kill();

    let server = Server::start(&options);
    let mut client = server.client();
    assert_eq!(client.show("CONFIG GET slowlog-max-len"), "[\"slowlog-max-len\", \"9\"]");
    assert_eq!(client.show("CONFIG GET maxmemory"), "[\"maxmemory\", \"5242880\"]");
    assert_eq!(client.show("AUTH alice wonder"), "OK");
    assert_eq!(client.show("CONFIG REWRITE"), "OK");
    assert_eq!(fs::read_to_string(&file).expect("the file"), written, "nothing has changed");
    fs::remove_dir_all(&place).expect("ours");
    let refused = client.show("CONFIG REWRITE");
    assert!(refused.contains("ERR Rewriting config file: "), "{refused}");
    server.wait_for_log("could not be written");
}

#[test]
fn without_a_file_the_data_directory_keeps_what_is_written() {
    let folder = Folder::new();
    let options = ServerOptions::new(&folder.path().join("data"));
    let server = Server::start(&options);
    let mut client = server.client();
    assert_eq!(client.show("CONFIG SET requirepass hush timeout 77"), "OK");
    assert_eq!(client.show("CONFIG REWRITE"), "OK");
    server.kill();
    let server = Server::start(&options.clone().extra(&["--timeout", "78"]));
    let mut client = server.client();
    assert!(client.show("GET a").contains("NOAUTH"));
    assert_eq!(client.show("AUTH hush"), "OK");
    assert_eq!(client.show("CONFIG GET timeout"), "[\"timeout\", \"78\"]", "the command line has the last word");
    server.kill();
    // Another file takes its place.
    let file = folder.path().join("other.conf");
    fs::write(&file, "timeout 5\n").expect("a file");
    let server = Server::start(&options.extra(&["--config", text(&file)]));
    assert_eq!(server.client().show("CONFIG GET timeout"), "[\"timeout\", \"5\"]");
}
