//! A stock Redis that is fed with what a state says it has done holds what the state holds.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test starts a stock server to compare with; what it tests does not"
)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use keyspace::Moment;
use keyspace::debug::value_digest;
use message::entry::Builder;
use resp::{Args, Frame, FrameDecoder, Protocol, Span, Writer};
use state::{Ignored, Phase, Reader, State, Step};
use stdx::log::{Entry, EntryKind};
use stdx::{Level, Prng, UnixMillis};

use super::state;

/// A Redis, ended when dropped.
struct Stock {
    process: Child,
    directory: PathBuf,
    stream: UnixStream,
    decoder: FrameDecoder,
}

impl Stock {
    fn start(name: &str) -> Option<Self> {
        let directory = std::env::temp_dir().join(format!("effects-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let socket = directory.join("socket");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--enable-debug-command", "yes", "--unixsocket"]).arg(&socket);
        command.arg("--dir").arg(&directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(process) = command.spawn() else {
            eprintln!("passed over: there is no redis-server to compare with");
            let _ = std::fs::remove_dir_all(&directory);
            return None;
        };
        let begun = Instant::now();
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(error) => assert!(begun.elapsed() < Duration::from_secs(120), "no Redis answers: {error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        Some(Self { process, directory, stream, decoder: FrameDecoder::new() })
    }

    fn call<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Frame {
        let mut bytes = Vec::new();
        resp::encode_request(&mut bytes, words);
        self.stream.write_all(&bytes).expect("a Redis that listens");
        self.receive()
    }

    fn receive(&mut self) -> Frame {
        let mut buffer = [0; 64 << 10];
        loop {
            if let Some(frame) = self.decoder.next_frame().expect("the protocol") {
                return frame;
            }
            let count = self.stream.read(&mut buffer).expect("an answer");
            assert!(count > 0, "the Redis has gone");
            self.decoder.extend(&buffer[..count]);
        }
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Words of a request, laid out as a client's.
fn with_args<W: AsRef<[u8]>, R>(words: &[W], run: impl FnOnce(Args<'_>) -> R) -> R {
    let (mut buffer, mut spans) = (Vec::new(), Vec::new());
    for word in words {
        let start = buffer.len() as u32;
        buffer.extend_from_slice(word.as_ref());
        spans.push(Span { start, end: buffer.len() as u32 });
    }
    run(Args::new(&buffer, &spans))
}

/// Requests of any kind, on few keys, so that they meet. N stands for a number.
const LINES: &[&str] = &[
    "SET s vN",
    "SET s N EX 9",
    "SET s vN PX 40 GET",
    "SET s N NX",
    "SET s vN KEEPTTL",
    "SETEX s 5 N",
    "PSETEX s 30 N",
    "GETSET s N",
    "GETDEL s",
    "GETEX s PX 60",
    "GETEX s PERSIST",
    "APPEND s N",
    "SETRANGE s 3 N",
    "INCR n",
    "DECRBY n N",
    "INCRBYFLOAT n 0.5",
    "INCRBYFLOAT n 1e3",
    "SETBIT b N 1",
    "BITFIELD b SET u8 N 7",
    "BITOP XOR b2 b s",
    "BITOP ANDOR b2 b s n",
    "MSET s N n N",
    "MSETNX m1 N m2 N",
    "SETNX s N",
    "SETNX m1 N",
    "INCREX n EX 10",
    "DELEX n IFEQ 3",
    "MSETEX 2 s N m1 N PX 50",
    "DEL s",
    "UNLINK s n",
    "EXPIRE s 1",
    "PEXPIRE l 20",
    "PEXPIRE h 25",
    "EXPIRE z 100 NX",
    "PEXPIREAT set 5",
    "PERSIST l",
    "RENAME s s2",
    "RENAMENX s s2",
    "COPY l l3 REPLACE",
    "COPY s s2",
    "MOVE m1 1",
    "COPY s t DB 2",
    "LPUSH l N N N",
    "RPUSH l N",
    "LPUSHX l N",
    "LPOP l",
    "RPOP l",
    "LPOP l 2",
    "RPOP l 3",
    "LINSERT l BEFORE N N",
    "LSET l 0 N",
    "LREM l 1 N",
    "LTRIM l 0 20",
    "LMOVE l l2 LEFT RIGHT",
    "LMOVE l2 l2 LEFT LEFT",
    "LMOVE l l2 RIGHT LEFT",
    "RPOPLPUSH l2 l",
    "LMPOP 2 l l2 LEFT COUNT 3",
    "BLPOP l l2 0",
    "BRPOP l2 0",
    "BLMOVE l2 l RIGHT RIGHT 0",
    "BRPOPLPUSH l l2 0",
    "BLMPOP 0 1 l RIGHT COUNT 2",
    "HSET h fN N fN N",
    "HSETNX h fN N",
    "HDEL h fN fN",
    "HINCRBY h i N",
    "HINCRBYFLOAT h i 0.25",
    "HMSET h fN N",
    "HGETDEL h FIELDS 1 fN",
    "HEXPIRE h 1 FIELDS 1 fN",
    "HPEXPIRE h 30 FIELDS 2 fN fN",
    "HPERSIST h FIELDS 1 fN",
    "HPEXPIREAT h 5 FIELDS 1 fN",
    "HSETEX h PX 20 FIELDS 1 fN N",
    "HGETEX h PX 10 FIELDS 1 fN",
    "SADD set N N aN",
    "SREM set N aN",
    "SPOP set",
    "SPOP set 2",
    "SPOP set 100",
    "SMOVE set set2 N",
    "SINTERSTORE set3 set set2",
    "SUNIONSTORE set2 set set3",
    "SDIFFSTORE set3 set2 set",
    "SADD set2 N",
    "ZADD z N mN N mN",
    "ZADD z GT N mN",
    "ZADD z NX INCR N mN",
    "ZINCRBY z 0.1 mN",
    "ZREM z mN",
    "ZPOPMIN z",
    "ZPOPMAX z 2",
    "ZMPOP 1 z MIN COUNT 2",
    "BZPOPMIN z 0",
    "BZMPOP 0 1 z MAX",
    "ZREMRANGEBYRANK z 30 -1",
    "ZREMRANGEBYSCORE z N 50",
    "ZUNIONSTORE z2 2 z set WEIGHTS 0.3 2",
    "ZINTERSTORE z2 2 z z2",
    "ZRANGESTORE z3 z 0 5",
    "ZDIFFSTORE z3 2 z z2",
    "GEOADD g N.5 1.N p N.1 2.N q",
    "GEOSEARCHSTORE g2 g FROMLONLAT 1 1 BYRADIUS 9000 km ASC",
    "GEORADIUS g 1 1 9000 km STORE g3",
    "PFADD hll N N N",
    "PFADD hll2 N",
    "PFMERGE hll3 hll hll2",
    "PFCOUNT hll",
    "SORT l ALPHA STORE sorted",
    "XADD x * f N",
    "XADD x MAXLEN 5 * f N",
    "XADD x NOMKSTREAM MAXLEN ~ 3 * f N g N",
    "XADD x N-* f N",
    "XTRIM x MAXLEN 4",
    "XTRIM x MAXLEN ~ 2",
    "XGROUP CREATE x gr 0 MKSTREAM",
    "XGROUP CREATE x gr2 $ MKSTREAM",
    "XGROUP SETID x gr 0",
    "XGROUP DELCONSUMER x gr c1",
    "XGROUP CREATECONSUMER x gr c3",
    "XREADGROUP GROUP gr c1 COUNT 2 STREAMS x >",
    "XREADGROUP GROUP gr2 c2 NOACK STREAMS x >",
    "XREADGROUP GROUP gr c2 STREAMS x 0",
    "XREADGROUP GROUP gr c1 BLOCK 0 STREAMS x >",
    "XAUTOCLAIM x gr c2 0 0 COUNT 2",
    "XAUTOCLAIM x gr c1 5 0 JUSTID",
    "XNACK x gr SILENT IDS 2 N-0 N-1 FORCE",
    "XNACK x gr FATAL IDS 1 N-1 RETRYCOUNT N",
    "XREADGROUP GROUP gr c3 COUNT 2 CLAIM 0 STREAMS x >",
    "XADD x IDMP pN N * f N",
    "XADD x IDMPAUTO p MAXLEN 5 * f N",
    "XCFGSET x IDMP-MAXSIZE 3",
    "XDEL x N-1",
    "XSETID x 99999999999999-1",
    "XGROUP DESTROY x gr2",
];

/// One of [`LINES`], or a rare one.
fn request(prng: &mut Prng) -> Vec<String> {
    let number = if prng.below(40) == 0 { return rare(prng) } else { prng.below(12) };
    let line = LINES[prng.below(LINES.len() as u64) as usize];
    let fill = |word: &str| word.replace('N', &number.to_string());
    let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    words.iter_mut().skip(1).for_each(|word| {
        let is_option = word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase());
        if !is_option {
            *word = fill(word);
        }
    });
    words
}

fn rare(prng: &mut Prng) -> Vec<String> {
    let line = ["FLUSHDB", "SWAPDB 0 1", "SWAPDB 1 2", "FLUSHALL", "SWAPDB 0 0"][prng.below(5) as usize];
    // Otherwise there is never much there.
    let line = if line.starts_with("FLUSH") && prng.below(4) > 0 { "SWAPDB 1 0" } else { line };
    line.split(' ').map(str::to_owned).collect()
}

/// What a state answers to a request that reads.
fn read(state: &mut State, database: u16, moment: Moment, words: &[&str]) -> Frame {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let mut writer = Writer::new(Protocol::Resp2);
    with_args(&words, |args| {
        let command = keyspace::resolve(args).expect("a command of ours");
        state.read(database, command, args, moment, &mut writer);
    });
    let mut decoder = FrameDecoder::new();
    decoder.extend(writer.bytes());
    decoder.next_frame().expect("a reply").expect("a whole one")
}

/// A reply about a stream without the consumer that has what was released: there it has no name, and here there is
/// none.
fn without_nobody(frame: &Frame) -> Frame {
    let Frame::Array(elements) = frame else { return frame.clone() };
    let is_nobody = |element: &Frame| {
        let name = element.elements().and_then(|parts| parts.first()?.as_bytes());
        name.is_some_and(<[u8]>::is_empty)
    };
    let is_count = |nth: usize| nth > 0 && elements[nth - 1].as_bytes() == Some(b"consumers");
    let kept = (0..elements.len()).filter(|&nth| !is_nobody(&elements[nth]) && !is_count(nth));
    Frame::Array(kept.map(|nth| without_nobody(&elements[nth])).collect())
}

/// Pairs of an array, whatever their order.
fn sorted(frame: &Frame) -> Vec<String> {
    let elements = frame.elements().expect("an array");
    let mut pairs: Vec<String> = elements.chunks(2).map(|pair| format!("{} {}", pair[0], pair[1])).collect();
    pairs.sort();
    pairs
}

fn compare(state: &mut State, stock: &mut Stock, reader: Reader, story: &[String]) {
    let moment = state.moment();
    // The last lines that name a key, or anything at all.
    let tail_of = |name: &str| {
        let lines: Vec<_> = story.iter().filter(|line| line.contains(name)).map(String::as_str).collect();
        lines[lines.len().saturating_sub(12)..].join("\n  ")
    };
    for database in 0..3 {
        stock.call(&["SELECT", &database.to_string()]);
        let mut keys: Vec<Vec<u8>> = Vec::new();
        state.keyspace().for_each(database, moment, |entry| keys.push(entry.key().to_vec()));
        let size = stock.call(&["DBSIZE"]);
        assert_eq!(size, Frame::Integer(keys.len() as i64), "database {database}, after\n  {}", tail_of(""));
        for key in keys {
            let name = String::from_utf8_lossy(&key).into_owned();
            let kind = read(state, database, moment, &["TYPE", &name]).to_string();
            let is_stream = kind.contains("stream");
            if kind.contains("hash") {
                // Without the deadlines of fields, which no Redis below 7.4 has.
                let ours = sorted(&read(state, database, moment, &["HGETALL", &name]));
                assert_eq!(ours, sorted(&stock.call(&["HGETALL", &name])), "{name}, after\n  {}", tail_of(&name));
            } else if !is_stream {
                let theirs = stock.call(&["DEBUG", "DIGEST-VALUE", &name]).to_string();
                let ours = value_digest(&state.keyspace().view(database, moment), &key).to_string();
                assert!(
                    theirs.contains(&ours),
                    "{name} of {database}: {theirs}, here {ours}, after\n  {}",
                    tail_of(&name)
                );
            }
            let deadline = state.keyspace().view(database, moment).peek(&key).and_then(|entry| entry.expires_at());
            let told = stock.call(&["PEXPIRETIME", &name]);
            assert_eq!(told, Frame::Integer(deadline.map_or(-1, |at| at.0)), "{name}, after\n  {}", tail_of(&name));
            // Our digest of a stream covers its groups, too; theirs does not.
            let questions: &[&[&str]] = &[
                &["XRANGE", &name, "-", "+"],
                &["XPENDING", &name, "gr"],
                &["XPENDING", &name, "gr2"],
                &["XINFO", "GROUPS", &name],
            ];
            // Redis 5 does not know how much a group has read, or which consumers have asked for nothing yet.
            let questions = if reader >= Reader::Redis7 { questions } else { &questions[..3] };
            for words in questions.iter().filter(|_| is_stream) {
                let (ours, theirs) = (without_nobody(&read(state, database, moment, words)), stock.call(words));
                let theirs = without_nobody(&theirs);
                assert_eq!(ours.to_string(), theirs.to_string(), "{words:?}, after\n  {}", tail_of(&name));
            }
        }
    }
}

/// Carries out what was done, and writes it down.
fn feed(stock: &mut Stock, steps: Vec<Step>, story: &mut Vec<String>) {
    for requests in steps.into_iter().flat_map(|step| [step.wide, step.requests]) {
        let mut begin = 0;
        for (database, end) in requests.runs {
            stock.call(&["SELECT", &database.to_string()]);
            let mut decoder = FrameDecoder::new();
            decoder.extend(&requests.bytes[begin..end]);
            begin = end;
            while let Some(frame) = decoder.next_frame().expect("requests") {
                let words = frame.elements().expect("words").iter();
                let words: Vec<_> = words.map(|word| word.as_bytes().expect("a word")).collect();
                let reply = stock.call(&words);
                story.push(format!("    {frame} -> {reply}"));
                assert!(!reply.is_error(), "{}", story[story.len().saturating_sub(6)..].join("\n"));
            }
        }
    }
}

fn converse(reader: Reader, name: &str) {
    let Some(mut stock) = Stock::start(name) else { return };
    // Far ahead of the clock of the Redis, so that nothing expires there unless it is told to.
    let mut unix_ms = 4_000_000_000_000;
    for seed in 1..=24 {
        stock.call(&["FLUSHALL"]);
        let (mut prng, mut state, mut story) = (Prng::new(seed), state(), Vec::new());
        state.record(Some(reader));
        for index in 1..=600 {
            unix_ms += prng.below(30) as i64;
            let mut builder = Builder::default();
            let database = if prng.below(8) == 0 { prng.below(3) as u16 } else { 0 };
            let words: Vec<_> = (0..1 + prng.below(3)).map(|_| request(&mut prng)).collect();
            for words in &words {
                story.push(format!("{database}: {}", words.join(" ")));
                with_args(words, |args| builder.command(Protocol::Resp2, database, args));
            }
            let moment = Moment { unix: UnixMillis(unix_ms), seed: prng.draw() };
            let entry = Entry { term: 1, index, kind: EntryKind::Normal, data: builder.finish(moment) };
            state.apply(&entry, &mut Ignored);
            if prng.below(10) == 0 {
                let moment = state.moment();
                while state.upkeep().collect(moment, 64) {}
            }
            let tape = state.take_tape().expect("there is an entry more");
            feed(&mut stock, tape.steps, &mut story);
            if prng.below(25) == 0 || index == 600 {
                let moment = state.moment();
                while state.upkeep().collect(moment, 64) {}
                let tape = state.take_tape().unwrap_or_default();
                feed(&mut stock, tape.steps, &mut story);
                compare(&mut state, &mut stock, reader, &story);
            }
        }
    }
}

#[test]
fn a_redis_of_today_holds_what_the_state_holds() {
    converse(Reader::Redis7, "7");
}

#[test]
fn so_does_one_that_is_told_only_what_redis_5_knows() {
    converse(Reader::Redis5, "5");
}

/// A request that changes a document, a sketch or a vector set, or where one is.
fn request_of_module(prng: &mut Prng) -> Vec<String> {
    let mut number = |below: u64| prng.below(below).to_string();
    let (key, other, item, place) = (number(2), number(2), number(50), number(9));
    let path = ["$.a", "$.b", "$..a"][prng.below(3) as usize];
    let text = match prng.below(28) {
        0 | 1 => format!("JSON.SET json:{key} $ {{\"a\":{item},\"b\":[{item}]}}"),
        2 => format!("JSON.SET json:{key} {path} [{item},1.5]"),
        3 => format!("JSON.NUMINCRBY json:{key} {path} {item}"),
        4 => format!("JSON.ARRAPPEND json:{key} {path} {item}"),
        5 => format!("JSON.DEL json:{key} {path}"),
        6 => format!("JSON.MSET json:{key} $ {item} json:{other} $ {{\"a\":{{}}}}"),
        7 => format!("JSON.MERGE json:{key} $ {{\"b\":{item}}}"),
        8..=10 => format!("BF.ADD bloom:{key} {item}"),
        11 => format!("BF.RESERVE bloom:{key} 0.01 10 EXPANSION 2"),
        12 => format!("CMS.INITBYDIM cms:{key} 50 3"),
        13 | 14 => format!("CMS.INCRBY cms:{key} {item} 3 x 1"),
        15 => format!("CMS.MERGE cms:{key} 2 cms:{other} cms:{key} WEIGHTS 1 2"),
        16 => format!("CF.ADD cuckoo:{key} {item}"),
        17 => format!("TOPK.RESERVE topk:{key} 3 10 4 0.9"),
        18 => format!("TOPK.ADD topk:{key} {item} x"),
        19..=22 => format!("VADD vector:{key} VALUES 2 {item} {place} e{item} M 4 EF 5"),
        23 => format!("VADD vector:{key} VALUES 2 1 {item} e{place} M 4 SETATTR {{}}"),
        24 | 25 => format!("VREM vector:{key} e{item}"),
        26 => format!("COPY vector:{key} vector:{other} REPLACE"),
        _ => format!("DEL json:{key} bloom:{key} cms:{key} topk:{key}"),
    };
    text.split(' ').map(str::to_owned).collect()
}

#[test]
fn a_state_that_does_the_same_again_holds_the_same_documents_sketches_and_vectors() {
    let mut repeated = 0;
    for seed in 1..=20 {
        let (mut prng, mut near, mut far, mut far_index) = (Prng::new(seed), state(), state(), 0);
        near.record(Some(Reader::Holdfast));
        for index in 1..=300 {
            let words = request_of_module(&mut prng);
            let moment = Moment { unix: UnixMillis(4_000_000_000_000 + index as i64), seed: prng.draw() };
            near.apply(&entry_of(index, &[words], moment), &mut Ignored);
            let tape = near.take_tape().expect("there is an entry more");
            for words in requests_of(tape.steps) {
                repeated += usize::from(words[0] != b"RESTORE");
                // Another clock, and other chance.
                let moment = Moment { unix: UnixMillis(3_000_000_000_000 + index as i64), seed: prng.draw() };
                far_index += 1;
                far.apply(&entry_of(far_index, &[words], moment), &mut Ignored);
            }
        }
        let (near_moment, far_moment) = (near.moment(), far.moment());
        for family in ["json", "bloom", "cms", "cuckoo", "topk"] {
            for number in 0..2 {
                let words = ["DUMP", &format!("{family}:{number}")];
                let (here, there) = (read(&mut near, 0, near_moment, &words), read(&mut far, 0, far_moment, &words));
                assert_eq!(here, there, "seed {seed}: {}", words[1]);
            }
        }
        // A dump holds the numbers under which elements were added, of which the highest may be gone.
        for key in ["vector:0", "vector:1"] {
            let digest = |state: &State, moment| value_digest(&state.keyspace().view(0, moment), key.as_bytes());
            assert_eq!(digest(&near, near_moment), digest(&far, far_moment), "seed {seed}: {key}");
        }
    }
    assert!(repeated > 1_000, "{repeated}");
}

#[test]
fn what_is_given_up_is_given_up_for_a_second_site_as_well() {
    let mut near = state();
    near.record(Some(Reader::Holdfast));
    let mut told = Vec::new();
    for (index, line) in [
        "XGROUP CREATE s g 0 MKSTREAM",
        "XADD s 1-0 f v",
        "XREADGROUP GROUP g c STREAMS s >",
        "XNACK s g FATAL IDS 1 1-0",
        "XNACK s g FAIL IDS 1 1-0 RETRYCOUNT 7",
    ]
    .iter()
    .enumerate()
    {
        let words = line.split(' ').map(str::to_owned).collect();
        let moment = Moment { unix: UnixMillis(4_000_000_000_000), seed: 1 };
        near.apply(&entry_of(index as u64 + 1, &[words], moment), &mut Ignored);
        let steps = near.take_tape().expect("there is an entry more").steps;
        told.extend(requests_of(steps).iter().map(|words| words.join(&b' ').escape_ascii().to_string()));
    }
    let told = &told[told.len() - 2..];
    assert_eq!(told, ["XNACK s g FATAL IDS 1 1-0 FORCE", "XNACK s g FAIL IDS 1 1-0 RETRYCOUNT 7 FORCE"]);
}

/// A request about hashes and strings, fields and keys of which expire soon.
fn request_that_expires(prng: &mut Prng) -> Vec<String> {
    let mut number = |below: u64| prng.below(below).to_string();
    let (key, field, other, soon) = (number(3), number(4), number(4), number(40));
    let text = match prng.below(16) {
        0..=2 => format!("HSET hash:{key} {field} {soon} {other} 7"),
        3 => format!("HEXPIRE hash:{key} 1 FIELDS 2 {field} {other}"),
        4 | 5 => format!("HPEXPIRE hash:{key} {soon} NX FIELDS 1 {field}"),
        6 => format!("HPEXPIREAT hash:{key} 4000000000{soon:0>3} FIELDS 2 {field} {other}"),
        7 => format!("HPERSIST hash:{key} FIELDS 1 {field}"),
        8 => format!("HGETEX hash:{key} PX {soon} FIELDS 2 {field} {other}"),
        9 => format!("HGETEX hash:{key} PERSIST FIELDS 1 {field}"),
        10 => format!("HDEL hash:{key} {field}"),
        11 => format!("HINCRBYFLOAT hash:{key} {field} 1.5"),
        12 => format!("HSETEX hash:{key} PX {soon} FIELDS 1 {field} {other}"),
        13 => format!("SET string:{key} {field} PX 1{soon}"),
        14 => format!("PEXPIRE hash:{key} {soon}"),
        // It reads what it does not change.
        _ => format!("SMOVE string:{key} string:{other} x"),
    };
    text.split(' ').map(str::to_owned).collect()
}

#[test]
fn deadlines_of_fields_reach_a_state_that_expires_nothing_by_itself() {
    let mut deadlines = 0;
    for seed in 1..=40 {
        let (mut prng, mut near, mut far, mut far_index) = (Prng::new(seed), state(), state(), 0);
        near.record(Some(Reader::Holdfast));
        let mut story = Vec::new();
        for index in 1..=300 {
            let words = request_that_expires(&mut prng);
            story.push(words.join(" "));
            let moment = Moment { unix: UnixMillis(4_000_000_000_000 + index as i64 * 3), seed: prng.draw() };
            near.apply(&entry_of(index, &[words], moment), &mut Ignored);
            if prng.below(8) == 0 {
                let moment = near.moment();
                while near.upkeep().collect(moment, 64) {}
            }
            for words in requests_of(near.take_tape().expect("there is an entry more").steps) {
                // A clock far behind, so that nothing expires there unless it is told to.
                let moment = Moment { unix: UnixMillis(3_000_000_000_000 + index as i64), seed: prng.draw() };
                far_index += 1;
                story.push(format!("    {}", words.join(&b' ').escape_ascii()));
                far.apply(&entry_of(far_index, &[words], moment), &mut Ignored);
            }
        }
        let moment = near.moment();
        while near.upkeep().collect(moment, 64) {}
        for words in requests_of(near.take_tape().unwrap_or_default().steps) {
            far_index += 1;
            let moment = Moment { unix: UnixMillis(3_000_000_001_000), seed: prng.draw() };
            far.apply(&entry_of(far_index, &[words], moment), &mut Ignored);
        }
        let (near_moment, far_moment) = (near.moment(), far.moment());
        for number in 0..3 {
            let key = format!("hash:{number}");
            for words in [&["HGETALL", &key][..], &["HPEXPIRETIME", &key, "FIELDS", "4", "0", "1", "2", "3"]] {
                let (here, there) = (read(&mut near, 0, near_moment, words), read(&mut far, 0, far_moment, words));
                let told: Vec<_> = story.iter().filter(|line| line.contains(&key)).map(String::as_str).collect();
                let tail = told[told.len().saturating_sub(12)..].join("\n");
                let order =
                    |frame: &Frame| if words[0] == "HGETALL" { sorted(frame).join(" ") } else { frame.to_string() };
                assert_eq!(order(&here), order(&there), "seed {seed}: {words:?}, after\n{tail}");
                deadlines += here.to_string().matches("(integer) 4000").count();
            }
        }
    }
    assert!(deadlines > 50, "{deadlines}");
}

#[test]
fn replicas_that_sweep_at_other_times_count_the_same_steps() {
    let mut swept = 0;
    for seed in 1..=40 {
        let (mut prng, mut tidy, mut lazy) = (Prng::new(seed), state(), state());
        tidy.record(Some(Reader::Holdfast));
        lazy.record(Some(Reader::Holdfast));
        for index in 1..=300 {
            let words: Vec<_> = (0..1 + prng.below(2)).map(|_| request_that_expires(&mut prng)).collect();
            let moment = Moment { unix: UnixMillis(4_000_000_000_000 + index as i64 * 9), seed: prng.draw() };
            let mut counted = Vec::new();
            for state in [&mut tidy, &mut lazy] {
                state.apply(&entry_of(index, &words, moment), &mut Ignored);
                let steps = state.take_tape().expect("there is an entry more").steps;
                swept += steps.iter().filter(|step| step.phase == Phase::Swept).count();
                counted.push(steps.iter().filter(|step| step.phase != Phase::Swept).count());
            }
            assert_eq!(counted[0], counted[1], "seed {seed}, entry {index}: {words:?}");
            let moment = tidy.moment();
            while tidy.upkeep().collect(moment, 64) {}
            let _ = tidy.take_tape();
        }
    }
    assert!(swept > 100, "{swept}");
}

/// An entry with these requests.
fn entry_of<W: AsRef<[u8]>>(index: u64, requests: &[Vec<W>], moment: Moment) -> Entry {
    let mut builder = Builder::default();
    for words in requests {
        with_args(words, |args| builder.command(Protocol::Resp2, 0, args));
    }
    Entry { term: 1, index, kind: EntryKind::Normal, data: builder.finish(moment) }
}

/// The words of all requests, in order.
fn requests_of(steps: Vec<Step>) -> Vec<Vec<Vec<u8>>> {
    let mut decoder = FrameDecoder::new();
    for step in steps {
        decoder.extend(&step.wide.bytes);
        decoder.extend(&step.requests.bytes);
    }
    let frames = std::iter::from_fn(|| decoder.next_frame().expect("requests"));
    let words = |frame: Frame| {
        let words = frame.elements().expect("words").iter();
        words.map(|word| word.as_bytes().expect("a word").to_vec()).collect()
    };
    frames.map(words).collect()
}

#[test]
fn options_behind_fields_are_not_told_as_fields() {
    let told = |reader: Reader, lines: &[&str]| {
        let mut near = state();
        near.record(Some(reader));
        let moment = Moment { unix: UnixMillis(4_000_000_000_000), seed: 0 };
        let mut builder = Builder::default();
        builder.rise(Level(2));
        near.apply(&Entry { term: 1, index: 1, kind: EntryKind::Normal, data: builder.finish(moment) }, &mut Ignored);
        let mut told = Vec::new();
        for (index, line) in (2..).zip(lines) {
            let words: Vec<&str> = line.split(' ').collect();
            let mut builder = Builder::default();
            builder.set_level(Level(2));
            with_args(&words, |args| builder.command(Protocol::Resp2, 0, args));
            let entry = Entry { term: 1, index, kind: EntryKind::Normal, data: builder.finish(moment) };
            near.apply(&entry, &mut Ignored);
            let steps = near.take_tape().expect("there is an entry more").steps;
            told.extend(
                requests_of(steps).into_iter().map(|words| String::from_utf8_lossy(&words.join(&b' ')).into_owned()),
            );
        }
        told
    };
    // Two of the fields have the names of options, and one has a deadline.
    let lines = [
        "HSET h f 1 nx 2 persist 3",
        "HPEXPIREAT h 4100000000000 FIELDS 1 persist",
        "HPEXPIREAT h 4100000000000 FIELDS 1 f NX",
        "HGETEX h FIELDS 1 f PERSIST",
        "HGETEX h FIELDS 1 f PXAT 4200000000000",
    ];
    let expected = [
        "HSET h f 1 nx 2 persist 3",
        "HPEXPIREAT h 4100000000000 FIELDS 1 persist",
        "HPEXPIREAT h 4100000000000 FIELDS 1 f",
        "HPERSIST h FIELDS 1 f",
        "HPEXPIREAT h 4200000000000 FIELDS 1 f",
    ];
    assert_eq!(told(Reader::Holdfast, &lines), expected);
    assert_eq!(told(Reader::Redis74, &lines), expected);
    // Where deadlines of fields are unknown it is told when a field goes, whatever its name is.
    let lines = ["HSET h f 1 persist 2", "HGETEX h FIELDS 1 f PERSIST", "HGETEX h PXAT 1 FIELDS 1 persist"];
    let told = told(Reader::Redis7, &lines);
    assert_eq!((told.len(), &told[0]), (2, &lines[0].to_owned()), "{told:?}");
    assert!(told[1].starts_with("RESTORE h "), "{told:?}");
}

#[test]
fn a_field_that_is_incremented_keeps_its_deadline_at_one_who_knows_deadlines() {
    let told = |reader: Reader| {
        let mut near = state();
        near.record(Some(reader));
        let mut told = Vec::new();
        let requests =
            ["HSET h f 1.5", "HPEXPIREAT h 4100000000000 FIELDS 1 f", "HINCRBYFLOAT h f 1", "HPERSIST h FIELDS 1 f"];
        for (index, line) in (1..).zip(requests) {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let moment = Moment { unix: UnixMillis(4_000_000_000_000), seed: index };
            near.apply(&entry_of(index, &[words], moment), &mut Ignored);
            let steps = near.take_tape().expect("there is an entry more").steps;
            told.extend(
                requests_of(steps).into_iter().map(|words| String::from_utf8_lossy(&words.join(&b' ')).into_owned()),
            );
        }
        told
    };
    let expected = [
        "HSET h f 1.5",
        "HPEXPIREAT h 4100000000000 FIELDS 1 f",
        "HSET h f 2.5",
        "HPEXPIREAT h 4100000000000 FIELDS 1 f",
        "HPERSIST h FIELDS 1 f",
    ];
    assert_eq!(told(Reader::Holdfast), expected);
    assert_eq!(told(Reader::Redis74), expected);
    assert_eq!(told(Reader::Redis7), ["HSET h f 1.5", "HSET h f 2.5"]);
}

/// A second site at level 2 that follows a group at level 1 would do something else with the same words.
#[test]
fn words_that_mean_something_else_at_another_level_are_told_as_values() {
    let told = |level: Level| {
        let mut near = state();
        near.record(Some(Reader::Holdfast));
        let moment = Moment { unix: UnixMillis(4_000_000_000_000), seed: 0 };
        let mut index = 0;
        let mut apply = |near: &mut State, builder: Builder| {
            index += 1;
            let data = builder.finish(moment);
            near.apply(&Entry { term: 1, index, kind: EntryKind::Normal, data }, &mut Ignored);
        };
        if level > Level::FIRST {
            let mut builder = Builder::default();
            builder.rise(level);
            apply(&mut near, builder);
        }
        let requests = [
            "XADD x 1-0 f v",
            "XADD x 2-0 f v",
            "XDEL x 2-0",
            "XSETID x 1-0",
            "XGROUP CREATE x g 0 ENTRIESREAD 9",
            "PFADD p a",
            r#"JSON.SET d $ {"a":1,"b":2,"c":3}"#,
            "JSON.DEL d $.a",
            r#"JSON.MERGE d $ {"b":null}"#,
        ];
        let mut names = Vec::new();
        for line in requests {
            let words: Vec<&str> = line.split(' ').collect();
            let mut builder = Builder::default();
            builder.set_level(level);
            with_args(&words, |args| builder.command(Protocol::Resp2, 0, args));
            apply(&mut near, builder);
            let steps = near.take_tape().expect("there is an entry more").steps;
            names
                .extend(requests_of(steps).into_iter().map(|words| String::from_utf8(words[0].clone()).expect("text")));
        }
        names.join(" ")
    };
    assert_eq!(told(Level(1)), "XADD XADD XDEL RESTORE RESTORE PFADD JSON.SET RESTORE RESTORE");
    // XSETID is refused.
    assert_eq!(told(Level(2)), "XADD XADD XDEL XGROUP PFADD JSON.SET JSON.DEL JSON.MERGE");
}
