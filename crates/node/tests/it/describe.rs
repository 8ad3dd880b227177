//! COMMAND beside that of a Redis 7.0: what generators of clients read.

use std::collections::{BTreeMap, BTreeSet};

use resp::{Frame, FrameDecoder};

use crate::host::Host;
use crate::reference::{Reference, is_in_reference};
use crate::settings;

/// What Redis 7.0 has and this server does not.
const MISSING: &[(&str, &str)] = &[
    ("cluster|addslots", "slots are divided when the cluster is made"),
    ("cluster|addslotsrange", "as above"),
    ("cluster|delslots", "a slot always has a holder"),
    ("cluster|delslotsrange", "as above"),
    ("cluster|flushslots", "a slot always has a holder"),
    ("cluster|forget", "HOLDFAST REMOVE"),
    ("cluster|meet", "a node joins with --join"),
    ("cluster|replicate", "every node has all groups, or is given them"),
    ("cluster|reset", "a directory belongs to its cluster"),
    ("cluster|set-config-epoch", "epochs are terms of the log"),
    ("cluster|setslot", "HOLDFAST MOVE"),
    ("restore-asking", "no slot is ever between two nodes"),
];

/// What this server has and Redis 7.0 does not. (DEBUG has subcommands there, too, but no records of them.)
const ADDED: &[(&str, &str)] = &[
    ("backup", "Holdfast's own"),
    ("changes", "Holdfast's own"),
    ("holdfast", "Holdfast's own"),
    ("client|durability", "Holdfast's own"),
    ("site", "Holdfast's own"),
    ("client|no-touch", "Redis 7.2"),
    ("client|requestid", "Holdfast's own"),
    ("client|setinfo", "Redis 7.2"),
    ("cluster|myshardid", "Redis 7.2"),
    ("waitaof", "Redis 7.2"),
    ("script|show", "Valkey 8.0"),
    ("clusterscan", "Valkey 9.1"),
    ("commandlog", "Valkey 8.1"),
    ("hotkeys", "Redis 8.6"),
    ("cluster|slot-stats", "Redis 8.2"),
    ("debug|", "one record in Redis"),
    ("json.", "RedisJSON"),
    ("bf.", "RedisBloom"),
    ("cf.", "RedisBloom"),
    ("cms.", "RedisBloom"),
    ("topk.", "RedisBloom"),
    ("tdigest.", "RedisBloom"),
];

/// Fields that differ for a reason.
const DIFFERENT: &[(&str, &str, &str)] = &[
    ("cluster|countkeysinslot", "flags", "answers while data are loaded"),
    ("cluster|getkeysinslot", "flags", "as above"),
    ("cluster|info", "flags", "as above"),
    ("cluster|keyslot", "flags", "as above"),
    ("cluster|links", "flags", "as above"),
    ("cluster|myid", "flags", "as above"),
    ("cluster|nodes", "flags", "as above"),
    ("cluster|shards", "flags", "as above"),
    ("cluster|slots", "flags", "as above"),
    ("command|getkeys", "arity", "7.2: a command without arguments may have no keys, and is told so"),
    ("command|getkeysandflags", "arity", "as above"),
    ("readonly", "arity", "MAXSTALENESS"),
    ("zrank", "arity", "7.2: WITHSCORE"),
    ("zrevrank", "arity", "as above"),
    ("migrate", "flags", "neither in a transaction nor in a script: it waits for another server"),
    ("replicaof", "flags", "not in a transaction: it waits for another thread"),
    ("slaveof", "flags", "as above"),
    ("blmove", "flags", "7.2: scripts may ask, and do not wait"),
    ("blpop", "flags", "as above"),
    ("brpop", "flags", "as above"),
    ("brpoplpush", "flags", "as above"),
    ("bzpopmax", "flags", "as above"),
    ("bzpopmin", "flags", "as above"),
    ("wait", "flags", "as above, and it is told to block"),
    ("wait", "categories", "as above"),
    ("acl|deluser", "tips", "7.2: where clients of a cluster send it, and what they make of the answers"),
    ("acl|save", "tips", "as above"),
    ("acl|setuser", "tips", "as above"),
    ("client|setname", "tips", "as above"),
    ("config|resetstat", "tips", "as above"),
    ("config|rewrite", "tips", "as above"),
    ("latency|reset", "tips", "as above"),
    ("msetnx", "tips", "as above"),
    ("randomkey", "tips", "as above"),
    ("scan", "tips", "as above"),
];

const FIELDS: [&str; 9] = ["name", "arity", "flags", "first key", "last key", "step", "categories", "tips", "keys"];

/// All commands and subcommands, by name. The order of flags and categories means nothing.
fn table(reply: &Frame) -> BTreeMap<String, Vec<String>> {
    let mut table = BTreeMap::new();
    let mut rest = vec![reply];
    while let Some(Frame::Array(commands)) = rest.pop() {
        for command in commands {
            let Frame::Array(fields) = command else { panic!("a record is an array: {command}") };
            let text = |field: &Frame, name: &str| match field {
                Frame::Array(words) if name == "flags" || name == "categories" => {
                    format!("{:?}", words.iter().map(Frame::to_string).collect::<BTreeSet<_>>())
                }
                field => field.to_string(),
            };
            let name = fields[0].to_string().trim_matches('"').to_owned();
            let told = fields.iter().zip(FIELDS).map(|(field, name)| text(field, name)).collect();
            assert!(table.insert(name.clone(), told).is_none(), "{name} is there twice");
            rest.push(&fields[9]);
        }
    }
    table
}

/// The tokens of a command's arguments, at any depth of the tree, and how many arguments are keys.
fn tokens(docs: &Frame, tokens: &mut BTreeSet<String>) {
    let Frame::Array(fields) = docs else { return };
    for pair in fields.chunks(2) {
        match pair[0].to_string().trim_matches('"') {
            "token" => _ = tokens.insert(pair[1].to_string().trim_matches('"').to_ascii_uppercase()),
            "arguments" => {
                let Frame::Array(arguments) = &pair[1] else { panic!("arguments are an array") };
                arguments.iter().for_each(|argument| self::tokens(argument, tokens));
            }
            _ => {}
        }
    }
}

/// The arguments' tokens by command; of containers, those of their subcommands.
fn documented(reply: &Frame, by_name: &mut BTreeMap<String, BTreeSet<String>>) {
    let Frame::Array(commands) = reply else { panic!("documents are a map") };
    for pair in commands.chunks(2) {
        let mut found = BTreeSet::new();
        tokens(&pair[1], &mut found);
        by_name.insert(pair[0].to_string().trim_matches('"').to_owned(), found);
        let Frame::Array(fields) = &pair[1] else { panic!("a document is a map") };
        for field in fields.chunks(2) {
            if field[0].to_string() == "\"subcommands\"" {
                documented(&field[1], by_name);
            }
        }
    }
}

/// What is told of the past of each command and subcommand, as far as Redis 7.0 could know it: versions, and the names
/// of what took its place. The words around them are our own.
fn pasts(reply: &Frame, by_name: &mut BTreeMap<String, Vec<String>>) {
    let Frame::Array(commands) = reply else { panic!("documents are a map") };
    let text = |frame: &Frame| frame.to_string().trim_matches('"').to_owned();
    let version = |change: &Frame| {
        let Frame::Array(change) = change else { panic!("a change is a version and a text") };
        text(&change[0])
    };
    let is_old = |change: &&Frame| {
        let version: Vec<u32> = version(change).split('.').map(|part| part.parse().expect("a number")).collect();
        version <= [7, 0, 99].to_vec()
    };
    let name = |quoted: &str| quoted.trim_start_matches('!').to_owned();
    for pair in commands.chunks(2) {
        let Frame::Array(fields) = &pair[1] else { panic!("a document is a map") };
        let mut past = Vec::new();
        for field in fields.chunks(2) {
            match (text(&field[0]).as_str(), &field[1]) {
                ("history", Frame::Array(changes)) => {
                    past.extend(changes.iter().filter(is_old).map(version));
                    past.dedup();
                }
                ("doc_flags" | "deprecated_since", told) => past.push(told.to_string()),
                // What stands in quotes: names of commands and options.
                ("replaced_by", told) => past.extend(text(told).split('`').skip(1).step_by(2).map(name)),
                ("subcommands", subcommands) => pasts(subcommands, by_name),
                _ => {}
            }
        }
        by_name.insert(text(&pair[0]), past);
    }
}

/// Commands of which more is told than Redis 7.0 told.
const OTHER_PASTS: &[(&str, &str)] = &[
    ("georadius_ro", "told since Redis 7.2"),
    ("georadiusbymember", "as above"),
    ("georadiusbymember_ro", "as above"),
    ("psetex", "superseded, as Redis 8 tells"),
    ("setex", "as above"),
    ("setnx", "as above"),
    ("quit", "superseded since Redis 7.2"),
];

/// Commands with tokens that differ for a reason.
const OTHER_TOKENS: &[(&str, &str)] = &[
    ("readonly", "MAXSTALENESS"),
    ("migrate", "Redis 7.0 loses the quotes of its empty key; 7.2 does not"),
    ("hscan", "NOVALUES has come with Redis 7.4"),
    ("set", "IFEQ and its kin have come with Redis 8.4"),
    ("xadd", "KEEPREF and its kin have come with Redis 8.2, IDMP with 8.6"),
    ("xtrim", "as above, with 8.2"),
    ("xread", "MAXCOUNT and MAXSIZE have come with Redis 8.10"),
    ("xreadgroup", "as above, and CLAIM with 8.4"),
    ("zinter", "COUNT has come with Redis 8.8"),
    ("zinterstore", "as above"),
    ("zunion", "as above"),
    ("zunionstore", "as above"),
    ("zrank", "WITHSCORE has come with Redis 7.2"),
    ("zrevrank", "as above"),
    ("bitop", "Redis 7.0 takes the operation for a text; 7.2 names it"),
    ("client|kill", "SKIPME takes YES or NO; SLAVE is the old word"),
    ("geodist", "units are values, in small letters"),
    ("georadius", "as above"),
    ("georadius_ro", "as above"),
    ("georadiusbymember", "as above"),
    ("georadiusbymember_ro", "as above"),
    ("geosearch", "as above; and BYPOLYGON has come with Valkey 9.0"),
    ("geosearchstore", "as above; and STOREDIST and BYPOLYGON"),
    ("replicaof", "NO ONE stands in the place of host and port"),
    ("slaveof", "as above"),
    ("script|debug", "small words"),
];

fn frame_of(bytes: &[u8]) -> Frame {
    let mut decoder = FrameDecoder::new();
    decoder.extend(bytes);
    decoder.next_frame().expect("it is the protocol").expect("it is whole")
}

#[test]
fn commands_are_described_as_redis_describes_them() {
    let Some(mut reference) = Reference::start() else { return };
    let mut host = Host::new(1, settings("no"));
    let client = host.connect(0);
    host.run(client, "PING");
    let mut ask = |line: &str| {
        host.send(client, format!("{line}\r\n").as_bytes());
        host.settle();
        frame_of(&host.received_bytes(client))
    };
    let (theirs, ours) = (table(&reference.call(&["COMMAND"])), table(&ask("COMMAND")));
    let mut failures = String::new();
    for (name, told) in &theirs {
        let Some(own) = ours.get(name) else {
            if !MISSING.iter().any(|(missing, _)| missing == name) {
                failures += &format!("{name} is missing\n");
            }
            continue;
        };
        for ((field, told), own) in FIELDS.iter().zip(told).zip(own) {
            let may_differ = DIFFERENT.iter().any(|(other, of, _)| other == name && of == field);
            if (told != own) != may_differ {
                failures += &format!("{name} {field}:\n  Redis    {told}\n  Holdfast {own}\n");
            }
        }
    }
    // What is newer than the reference is not there.
    let is_as_old = |name: &str| keyspace::find(name.as_bytes()).is_none_or(is_in_reference);
    for name in ours.keys().filter(|name| !theirs.contains_key(*name) && is_as_old(name)) {
        if !ADDED.iter().any(|(added, _)| name.starts_with(added)) {
            failures += &format!("{name} is new\n");
        }
    }
    for (name, reason) in MISSING.iter().filter(|(name, _)| ours.contains_key(*name)) {
        failures += &format!("{name} is there, though said to be missing: {reason}\n");
    }
    let (mut their_docs, mut our_docs) = (BTreeMap::new(), BTreeMap::new());
    documented(&reference.call_all(&[["COMMAND", "DOCS"]])[0], &mut their_docs);
    documented(&ask("COMMAND DOCS"), &mut our_docs);
    for (name, told) in &their_docs {
        let Some(own) = our_docs.get(name) else { continue };
        let may_differ = OTHER_TOKENS.iter().any(|(other, _)| other == name);
        if (told != own) != may_differ {
            failures += &format!("{name} tokens:\n  Redis    {told:?}\n  Holdfast {own:?}\n");
        }
    }
    let (mut their_pasts, mut our_pasts) = (BTreeMap::new(), BTreeMap::new());
    pasts(&reference.call_all(&[["COMMAND", "DOCS"]])[0], &mut their_pasts);
    pasts(&ask("COMMAND DOCS"), &mut our_pasts);
    for (name, told) in &their_pasts {
        let Some(own) = our_pasts.get(name) else { continue };
        let may_differ = OTHER_PASTS.iter().any(|(other, _)| other == name);
        if (told != own) != may_differ {
            failures += &format!("{name} past:\n  Redis    {told:?}\n  Holdfast {own:?}\n");
        }
    }
    for name in command::history::names().filter(|name| !our_pasts.contains_key(*name)) {
        failures += &format!("{name} has a past and is not there\n");
    }
    // A name alone finds what the whole table has.
    for name in ["memory", "memory|usage", "memory|stats", "config|set", "get"] {
        let Frame::Array(found) = ask(&format!("COMMAND INFO {name}")) else { panic!("no array") };
        let Frame::Array(fields) = &found[0] else { panic!("{name} is not found") };
        assert_eq!(fields[0].to_string(), format!("\"{name}\""));
    }
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn keys_of_commands_are_found_as_redis_finds_them() {
    let Some(mut reference) = Reference::start() else { return };
    let mut host = Host::new(1, settings("no"));
    let client = host.connect(0);
    let mut failures = String::new();
    for line in [
        "GET a",
        "MSET a 1 b 2",
        "MGET a b c",
        "SORT k STORE d",
        "SORT k BY x_* GET y_* LIMIT 0 1 STORE d",
        "SORT k",
        "EVAL x 2 a b c",
        "EVAL x 0",
        "EVALSHA_RO x 1 a",
        "FCALL f 2 a b c",
        "ZUNIONSTORE d 2 a b WEIGHTS 1 2",
        "ZUNION 2 a b",
        "ZINTERCARD 1 a",
        "XREAD COUNT 1 STREAMS a b 0 0",
        "XREADGROUP GROUP g c STREAMS a >",
        "XADD s * f v",
        "GEORADIUS k 1 1 1 km STORE d",
        "GEORADIUS k 1 1 1 km STOREDIST d",
        "GEORADIUS k 1 1 1 km",
        "GEORADIUSBYMEMBER k m 1 km STORE d",
        "LMPOP 2 a b LEFT",
        "BLMPOP 0 2 a b LEFT",
        "BZMPOP 0 1 a MIN",
        "BLPOP a b 0",
        "OBJECT ENCODING a",
        "MEMORY USAGE a",
        "XGROUP CREATE s g 0",
        "XINFO STREAM s",
        "BITOP AND d a b",
        "SET a 1 GET",
        "SET a 1",
        "COPY a b",
        "RENAME a b",
        "LCS a b",
        "PFMERGE d a b",
        "PFCOUNT a b",
        "MIGRATE h 1 a 0 1",
        "SINTERCARD 2 a b",
        "WATCH a b",
        "PUBLISH a b",
        "PING",
        "NOSUCH a",
        "GET",
        "SET a",
        "ECHO a",
        "DEBUG OBJECT a",
        "BITFIELD a GET u8 0",
        "BITFIELD a SET u8 0 1",
        "GETEX a",
        "HSET a b c",
        "GEOSEARCHSTORE d a FROMMEMBER m BYRADIUS 1 km",
        "SMOVE a b c",
    ] {
        for subcommand in ["GETKEYS", "GETKEYSANDFLAGS"] {
            if line == "PING" || line.starts_with("MIGRATE") || line == "GET" {
                // MIGRATE is not there; a single word is too little for Redis 7.0.
                continue;
            }
            let mut words = vec!["COMMAND", subcommand];
            words.extend(line.split(' '));
            let told = reference.call(&words).to_string();
            host.send(client, format!("COMMAND {subcommand} {line}\r\n").as_bytes());
            host.settle();
            let own = frame_of(&host.received_bytes(client)).to_string();
            if told != own {
                failures += &format!("{subcommand} {line}\n  Redis    {told}\n  Holdfast {own}\n");
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn small_questions_are_answered_as_redis_answers_them() {
    let Some(mut reference) = Reference::start() else { return };
    let mut host = Host::new(1, settings("no"));
    let client = host.connect(0);
    let mut failures = String::new();
    for line in [
        "MEMORY PURGE",
        "MEMORY STATS x",
        "MEMORY NOSUCH",
        "CLIENT PAUSE -1",
        "CLIENT PAUSE x",
        "CLIENT PAUSE 0",
        "FAILOVER",
        "FAILOVER ABORT",
        "FAILOVER TIMEOUT 0",
        "FAILOVER TIMEOUT x",
        "FAILOVER TIMEOUT 10",
        "FAILOVER TO h 1",
        "FAILOVER NOSUCH",
        "CLUSTER REPLICAS x",
        "CLUSTER SAVECONFIG",
        "CLUSTER SLAVES",
        "CLUSTER BUMPEPOCH",
        "CLUSTER BUMPEPOCH x",
        "MODULE LOAD",
        "MODULE LOAD /no/such/module.so",
        "MODULE LOAD /no/such/module.so one two",
        "MODULE LOADEX /no/such/module.so CONFIG a b ARGS c",
        "MODULE LOADEX /no/such/module.so NOSUCH",
        "MODULE UNLOAD nosuch",
        "MODULE UNLOAD nosuch x",
        "MODULE NOSUCH",
        "SHUTDOWN NOSAVE SAVE",
        "SHUTDOWN NOW ABORT",
        "SHUTDOWN ABORT",
        "SHUTDOWN ABORT ABORT",
        "SHUTDOWN NOSUCH",
        "SELECT abc",
        "SELECT -1",
        "SELECT 99",
        "SELECT 2147483648",
        "ROLE",
        "ZADD z 1 a 2 b 3 c",
        "ZRANK z b",
        "ZREVRANK z c",
        "ZRANK z x",
    ] {
        let words: Vec<_> = line.split(' ').collect();
        let told = reference.call(&words).to_string();
        host.send(client, format!("{line}\r\n").as_bytes());
        host.settle();
        let own = frame_of(&host.received_bytes(client)).to_string();
        if told != own {
            failures += &format!("{line}\n  Redis    {told}\n  Holdfast {own}\n");
        }
    }
    // What MEMORY STATS names is there, but for a line for each database, by which only Redis's form of tables is told.
    let names = |frame: &Frame| -> BTreeSet<String> {
        let Frame::Array(fields) = frame else { panic!("a map: {frame}") };
        fields.chunks(2).map(|pair| pair[0].to_string()).filter(|name| !name.starts_with("\"db.")).collect()
    };
    let told = names(&reference.call(&["MEMORY", "STATS"]));
    host.send(client, b"MEMORY STATS\r\n");
    host.settle();
    let own = names(&frame_of(&host.received_bytes(client)));
    assert_eq!(told, own);
    assert!(failures.is_empty(), "{failures}");
    assert_eq!(host.run(client, "DEBUG ERROR 'MYERR of two lines'"), "-MYERR of two lines");
    assert!(host.run(client, "MEMORY DOCTOR").contains("too little"));
    let why = "module \"/no/such/module.so\" is not loaded: no modules are";
    assert!(host.log.iter().any(|line| line.starts_with(why)), "{:?}", host.log);
    // As Redis 8 answers of what is part of it.
    let stays = "-ERR Error unloading module: the module can't be unloaded";
    assert_eq!(host.run(client, "MODULE UNLOAD vectorset"), stays);
    assert!(host.run(client, "MEMORY MALLOC-STATS").contains("jemalloc"));
}

#[test]
fn a_client_tells_the_library_that_it_was_written_with() {
    let mut host = Host::new(2, settings("no"));
    let (client, other) = (host.connect(0), host.connect(1));
    assert!(host.run(client, "CLIENT INFO").ends_with("resp=2 lib-name= lib-ver="));
    assert_eq!(host.run(client, "CLIENT SETINFO lib-name redis-py"), "+OK");
    assert_eq!(host.run(client, "CLIENT SETINFO LIB-VER 5.0.1"), "+OK");
    assert!(host.run(client, "CLIENT INFO").ends_with("lib-name=redis-py lib-ver=5.0.1"));
    assert!(host.run(other, "CLIENT LIST").contains("lib-name=redis-py lib-ver=5.0.1"));
    assert_eq!(host.run(client, "CLIENT SETINFO foo bar"), "-ERR Unrecognized option 'foo'");
    for (option, value) in [("lib-name", "'a b'"), ("LIB-VER", "\"a\\nb\"")] {
        assert_eq!(
            host.run(client, &format!("CLIENT SETINFO {option} {value}")),
            format!("-ERR {option} cannot contain spaces, newlines or special characters.")
        );
    }
    assert_eq!(
        host.run(client, "CLIENT SETINFO lib-name"),
        "-ERR wrong number of arguments for 'client|setinfo' command"
    );
    // The library is the same whatever becomes of the connection; nothing takes it back.
    assert_eq!(host.run(client, "RESET"), "+RESET");
    assert!(host.run(client, "CLIENT INFO").ends_with("lib-name=redis-py lib-ver=5.0.1"));
    assert_eq!(host.run(client, "CLIENT SETINFO lib-name ''"), "+OK");
    assert!(host.run(client, "CLIENT INFO").ends_with("lib-name= lib-ver=5.0.1"));
}

#[test]
fn names_of_masters_users_are_not_told() {
    let mut host = Host::new(1, settings("no"));
    let client = host.connect(0);
    host.run(client, "CONFIG SET slowlog-log-slower-than 0");
    host.run(client, "CONFIG SET masteruser somebody masterauth secret");
    let told = host.run(client, "SLOWLOG GET 10");
    assert!(told.contains("masteruser $10 (redacted) $10 masterauth $10 (redacted)"), "{told}");
    assert!(!told.contains("somebody"), "{told}");
}
