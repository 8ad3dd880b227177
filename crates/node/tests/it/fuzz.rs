//! Messages that no node would send, on their way between nodes that carry out requests.

use fuzzing::Fuzz;
use group::ids::{GroupId, NodeId};
use node::settings::Settings;
use stdx::Duration;

use crate::cluster::{ANSWER, Nodes, STAMP_BYTES, answer_at};

/// Messages of the consensus, and the words of a node that votes, are taken as the library takes them: from members.
const RAFT: u8 = 1;

/// What a client asks of a node that does not lead: together they make nodes say all that they can say of requests.
const STORY: &[&str] = &[
    "SET k value EX 100",
    "GET k",
    "MULTI\r\nINCR n\r\nGET k\r\nEXEC",
    "MSET a 1 b 2 c 3",
    "EVAL \"return redis.call('set', KEYS[1], ARGV[1])\" 1 s x",
    "FUNCTION LOAD \"#!lua name=lib\\nredis.register_function('f', function() return 1 end)\"",
    "DBSIZE",
    "WATCH k\r\nMULTI\r\nSET k other\r\nEXEC",
    "BLPOP list 0.05",
    "PUBLISH channel message",
    "WAIT 1 10",
    "CONFIG SET maxmemory 100mb",
    "XADD stream * field value",
    "HOLDFAST CLUSTER MOVE 1 1 0",
];

/// What the nodes say to each other in the story.
fn corpus() -> Vec<Vec<u8>> {
    let mut corpus = Vec::new();
    let mut nodes = Nodes::of_cores(2, &Settings::default());
    nodes.overhear(&mut corpus, |nodes| {
        let gateway = 1 + nodes.leader().expect("elected") % 3;
        let client = nodes.host(gateway).connect(0);
        for line in STORY {
            nodes.host(gateway).send(client, format!("{line}\r\n").as_bytes());
            nodes.host(gateway).settle();
            nodes.pass(Duration::from_millis(100));
        }
    });
    corpus.retain(|bytes| bytes[0] != RAFT);
    corpus.sort();
    corpus.dedup_by_key(|bytes| (bytes[0], bytes.len()));
    corpus
}

#[test]
fn fuzz_a_cluster() {
    let corpus = corpus();
    let kinds = corpus.iter().map(|bytes| bytes[0]).collect::<std::collections::BTreeSet<_>>();
    assert!(kinds.len() > 5, "the story makes them say {kinds:?}");
    let mut nodes = Nodes::of_cores(2, &Settings::default());
    let mut heard = 0;
    Fuzz::new("peer-stories", corpus).rounds(3_000).run(|input| {
        if input.first() == Some(&RAFT) {
            return 0;
        }
        heard += 1;
        if heard % 500 == 0 {
            nodes = Nodes::of_cores(2, &Settings::default());
        }
        let leader = nodes.leader().expect("what others say deposes nobody");
        let host = nodes.host(leader);
        for group in [GroupId(0), GroupId(1)] {
            host.hear(NodeId(1 + leader as u64 % 3), group, input);
        }
        host.settle();
        nodes.exchange(|_, _, _| true);
        u64::from(input.first().copied().unwrap_or_default())
    });
}

/// What a client asks of several groups and of leaders besides: each answer is of another form.
const QUESTIONS: &[&str] = &[
    "KEYS *",
    "SCAN 0 COUNT 2",
    "RANDOMKEY",
    "WATCH k a b c",
    "EVAL \"return redis.call('get', 'un' .. 'declared')\" 0",
    "MULTI\r\nDBSIZE\r\nSET a 1\r\nSET b 2\r\nKEYS *\r\nEXEC",
    "WATCH k a\r\nMULTI\r\nSET k 1\r\nCONFIG GET save\r\nEXEC",
    "RPUSH list a b\r\nBLMPOP 0.05 1 list LEFT\r\nBZPOPMIN none 0.05",
    "XREAD BLOCK 20 STREAMS stream $",
    "CLIENT REQUESTID 7\r\nMSET a 5 b 6",
    "SUNIONSTORE s1 s2 s3",
    "GETRANGE k 0 -1\r\nFCALL f 0",
    "DEBUG DIGEST",
];

/// One of the stories, and which answer of it is not as it was.
fn tell(nodes: &mut Nodes, story: u8, passed: u8, end: &[u8]) -> bool {
    let line = STORY.iter().chain(QUESTIONS).nth(usize::from(story) % (STORY.len() + QUESTIONS.len()));
    let gateway = 1 + nodes.leader().expect("who answers leads") % 3;
    let client = nodes.host(gateway).connect(0);
    nodes.host(gateway).send(client, format!("{}\r\n", line.expect("one of them")).as_bytes());
    nodes.host(gateway).settle();
    let is_forged = nodes.exchange_but_one_answer(usize::from(passed), end);
    nodes.pass(Duration::from_millis(100));
    let said = nodes.host(gateway).received_bytes(client);
    assert!(said.is_empty() || said.ends_with(b"\r\n"), "a client is told {:?}", String::from_utf8_lossy(&said));
    is_forged
}

/// The node that was asked says what no node would say to what it was asked.
#[test]
fn fuzz_answers() {
    let mut corpus = Vec::new();
    let mut nodes = Nodes::of_cores(2, &Settings::default());
    for story in 0..(STORY.len() + QUESTIONS.len()) as u8 {
        let mut said = Vec::new();
        nodes.overhear(&mut said, |nodes| _ = tell(nodes, story, u8::MAX, &[]));
        let answers = said.iter().filter(|bytes| bytes[0] == ANSWER);
        corpus.extend((0..).zip(answers).map(|(passed, bytes)| {
            let end = &bytes[answer_at(bytes)..bytes.len() - STAMP_BYTES];
            [&[story, passed], end].concat()
        }));
    }
    assert!(corpus.len() > 30, "{} answers", corpus.len());
    let (mut told, mut forged) = (0, 0);
    Fuzz::new("peer-answers", corpus).rounds(1_500).run(|input| {
        let Some((&[story, passed], end)) = input.split_first_chunk() else { return 0 };
        told += 1;
        if told % 300 == 0 {
            nodes = Nodes::of_cores(2, &Settings::default());
        }
        let is_forged = tell(&mut nodes, story, passed % 8, end);
        forged += usize::from(is_forged);
        u64::from(story) << 8 | u64::from(is_forged)
    });
    assert!(forged > told / 4, "{forged} of {told}");
}

#[test]
fn fuzz_parameters() {
    let lines = [
        "maxmemory 100mb",
        "maxmemory-policy allkeys-lru",
        "appendfsync everysec",
        "save 900 1 300 10",
        "client-output-buffer-limit normal 0 0 0 pubsub 32mb 8mb 60",
        "notify-keyspace-events KEA",
        "latency-tracking-info-percentiles 50 99 99.9",
        "bind 127.0.0.1 -::1",
        "min-replicas-to-write 1",
        "slowlog-log-slower-than -1",
        "proto-max-bulk-len 1gb",
        "databases 16",
        "timeout 0",
        "requirepass secret",
        "tls-protocols TLSv1.2 TLSv1.3",
        "hash-max-listpack-entries 128",
    ];
    let corpus: Vec<_> = lines.iter().map(|line| line.as_bytes().to_vec()).collect();
    let words: [&[u8]; 6] = [b"gb", b"kb", b" normal", b" pubsub ", b"-", b"%"];
    Fuzz::new("configuration", corpus).words(&words).run(|input| {
        let line = String::from_utf8_lossy(input);
        let (name, value) = line.split_once(' ').unwrap_or((&line, ""));
        let mut settings = Settings::default();
        match settings.set(name, value) {
            Err(why) => {
                assert!(!why.is_empty());
                why.len() as u64 % 128
            }
            // What it is then can be set, and stays as it is.
            Ok(()) => {
                let name = Settings::parameter(name).expect("it has been set").name;
                let set = settings.get(name).to_string();
                settings.set(name, &set).unwrap_or_else(|why| panic!("{name} {set:?}: {why}"));
                assert_eq!(settings.get(name).to_string(), set, "{name}");
                128 + name.len() as u64 * 64 + set.len() as u64
            }
        }
    });
}
