//! Random conversations in what is newer than Redis 7.0, with servers that have it: `HOLDFAST_REDIS_8` is the program
//! of a Redis 8.6, `HOLDFAST_VALKEY_9` that of a Valkey 9.1, and `HOLDFAST_REDIS_JSON` a Redis and the module RedisJSON
//! 2.8, with a colon between them. Conversations with servers that are not named are passed over.
//!
//! Of refusals only the fact is compared: servers look at the words of a request in different orders. Their texts are
//! in the stories.

use resp::{Frame, Protocol};
use stdx::Prng;

use crate::conversation::conversation_count;
use crate::local::Local;
use crate::reference::Reference;
use crate::syntax::{Piece, generate, parse};
use crate::words;

const COMMANDS_EACH: usize = 1_000;
/// By how much the clocks of the two may differ when each looks, in milliseconds.
const CLOCK_DIFFERENCE_MAX_MS: i64 = 2_000;

type Words = Vec<Vec<u8>>;

/// What one conversation is about: the commands, in the notation of their records, and the values in them.
struct Topic {
    name: &'static str,
    commands: &'static [&'static str],
    value: fn(&str, &mut Prng, &mut Local) -> Vec<u8>,
}

const STRINGS: Topic = Topic {
    name: "strings",
    commands: &[
        "SET key value [NX | XX | IFEQ value | IFNE value | IFDEQ digest | IFDNE digest] [GET] \
         [EX seconds | PX milliseconds | EXAT unix-seconds | PXAT unix-milliseconds | KEEPTTL]",
        "SET key value [IFEQ value | IFNE value | IFDEQ digest | IFDNE digest] [GET]",
        "SET key value",
        "DELEX key [IFEQ value | IFNE value | IFDEQ digest | IFDNE digest]",
        "DIGEST key",
        "DIGEST key",
        "MSETEX numkeys key value [key value ...] [NX | XX] \
         [EX seconds | PX milliseconds | EXAT unix-seconds | PXAT unix-milliseconds | KEEPTTL]",
        "GET key",
        "TTL key",
        "PEXPIRETIME key",
        "PERSIST key",
        "APPEND key value",
        "INCR key",
        "SETRANGE key small value",
        "SETBIT key small bit",
        "DEL key",
        "RPUSH key value",
        "TYPE key",
        "OBJECT ENCODING key",
        "BITOP <AND | OR | XOR | NOT | DIFF | DIFF1 | ANDOR | ONE> key key [key ...]",
        "BITOP <DIFF | DIFF1 | ANDOR | ONE> key key [key ...]",
        "BITCOUNT key [small small [BYTE | BIT]]",
        "BITPOS key bit [small [small [BYTE | BIT]]]",
        "LCS key key [LEN | IDX]",
    ],
    value: string_value,
};

const FIELDS: Topic = Topic {
    name: "fields",
    commands: &[
        "HSET key field value [field value ...]",
        "HSET key field value",
        "HSETNX key field value",
        "HINCRBY key field small",
        "HINCRBYFLOAT key field small",
        "HDEL key field [field ...]",
        "HGET key field",
        "HMGET key field [field ...]",
        "HGETALL key",
        "HLEN key",
        "HEXISTS key field",
        "HSTRLEN key field",
        "HEXPIRE key seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
        "HPEXPIRE key milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
        "HEXPIREAT key unix-seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
        "HPEXPIREAT key unix-milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
        "HEXPIRE key seconds FIELDS numfields field [field ...] <NX | XX | GT | LT>",
        "HGETEX key FIELDS numfields field [field ...] <EX seconds | PXAT unix-milliseconds | PERSIST>",
        "HSETEX key [FNX] FIELDS numfields field value [field value ...] <EX seconds | KEEPTTL | FXX>",
        "HTTL key FIELDS numfields field [field ...]",
        "HPTTL key FIELDS numfields field [field ...]",
        "HEXPIRETIME key FIELDS numfields field [field ...]",
        "HPEXPIRETIME key FIELDS numfields field [field ...]",
        "HPERSIST key FIELDS numfields field [field ...]",
        "HGETDEL key FIELDS numfields field [field ...]",
        "HGETEX key [EX seconds | PX milliseconds | EXAT unix-seconds | PXAT unix-milliseconds | PERSIST] \
         FIELDS numfields field [field ...]",
        "HSETEX key [FNX | FXX] [EX seconds | PX milliseconds | EXAT unix-seconds | PXAT unix-milliseconds | KEEPTTL] \
         FIELDS numfields field value [field value ...]",
        "HSCAN key 0 COUNT 10000 [NOVALUES]",
        "COPY key key [REPLACE]",
        "RENAME key key",
        "DEL key",
        "SET key value",
        "TYPE key",
    ],
    value: field_value,
};

const STREAMS: Topic = Topic {
    name: "streams",
    commands: &[
        "XADD key next field value",
        "XADD key next field value",
        "XADD key next field value",
        "XADD key [NOMKSTREAM] [KEEPREF | DELREF | ACKED] [<MAXLEN | MINID> <[=] threshold>] next field value",
        "XADD key IDMP producer request next field value",
        "XADD key <IDMPAUTO producer | IDMP producer request> next field value [field value]",
        "XTRIM key <MAXLEN | MINID> <[=] threshold> [KEEPREF | DELREF | ACKED]",
        "XDEL key id [id ...]",
        "XDELEX key [KEEPREF | DELREF | ACKED] IDS numids id [id ...]",
        "XACKDEL key group [KEEPREF | DELREF | ACKED] IDS numids id [id ...]",
        "XACK key group id [id ...]",
        "XSETID key 240-0 [ENTRIESADDED number]",
        "XGROUP CREATE key group <id | $> [MKSTREAM] [ENTRIESREAD number]",
        "XGROUP CREATE key group 0 MKSTREAM",
        "XGROUP SETID key group <id | $> [ENTRIESREAD number]",
        "XGROUP DESTROY key group",
        "XGROUP CREATECONSUMER key group consumer",
        "XGROUP DELCONSUMER key group consumer",
        "XREADGROUP GROUP group consumer [COUNT count] [CLAIM idle] [NOACK] STREAMS key new",
        "XREADGROUP GROUP group consumer [COUNT count] [CLAIM idle] [NOACK] STREAMS key id",
        "XREADGROUP GROUP group consumer COUNT count STREAMS key key new new",
        "XREAD [COUNT count] STREAMS key <id | + | $>",
        "XREAD [COUNT count] STREAMS key key <id | +> <id | +>",
        "XCLAIM key group consumer idle id [id ...] [RETRYCOUNT number] [FORCE] [JUSTID] [LASTID id]",
        "XAUTOCLAIM key group consumer idle id [COUNT count] [JUSTID]",
        "XPENDING key group",
        "XPENDING key group - + count [consumer]",
        "XRANGE key - + [COUNT count]",
        "XREVRANGE key + - [COUNT count]",
        "XLEN key",
        "XINFO STREAM key",
        "XINFO STREAM key FULL [COUNT count]",
        "XINFO GROUPS key",
        "XINFO CONSUMERS key group",
        "XCFGSET key [IDMP-DURATION duration] [IDMP-MAXSIZE maxsize]",
        "COPY key key [REPLACE]",
        "DEL key",
        "SET key value",
    ],
    value: stream_value,
};

const RANKS: Topic = Topic {
    name: "ranks",
    commands: &[
        "ZADD key score member",
        "ZADD key [NX | XX] [GT | LT] [CH] [INCR] score member [score member]",
        "ZREM key member",
        "ZRANK key member [WITHSCORE]",
        "ZREVRANK key member [WITHSCORE]",
        "ZUNION numkeys key [key ...] [AGGREGATE <SUM | MIN | MAX>] [WITHSCORES]",
        "ZINTERSTORE key numkeys key key [WEIGHTS score score]",
        "ZMPOP numkeys key [key ...] <MIN | MAX> [COUNT count]",
        "ZSCORE key member",
        "ZRANGE key 0 -1 [REV] [WITHSCORES]",
        "ZDIFF numkeys key [key ...] [WITHSCORES]",
        "ZINTERCARD numkeys key [key ...] [LIMIT count]",
        "LMPOP numkeys key [key ...] <LEFT | RIGHT> [COUNT count]",
        "SINTERCARD numkeys key [key ...] [LIMIT count]",
        "RPUSH list member",
        "SADD set member",
        "OBJECT ENCODING key",
        "OBJECT ENCODING list",
        "OBJECT ENCODING set",
        "SET key value",
        "DEL key",
    ],
    value: rank_value,
};

const VECTORS: Topic = Topic {
    name: "vectors",
    commands: &[
        "VADD key VALUES 3 coordinate coordinate coordinate element NOQUANT [SETATTR json]",
        "VADD key VALUES 3 coordinate coordinate coordinate element NOQUANT",
        "VADD key VALUES 2 coordinate coordinate element NOQUANT",
        "VREM key element",
        "VCARD key",
        "VDIM key",
        "VEMB key element",
        "VSETATTR key element json",
        "VGETATTR key element",
        "VISMEMBER key element",
        "VRANGE key first last [count]",
        "VSIM key VALUES 3 coordinate coordinate coordinate WITHSCORES COUNT 1000 EF 1000 TRUTH",
        "VSIM key ELE element WITHSCORES COUNT 1000 TRUTH [FILTER filter]",
        "VSIM key ELE element COUNT 1000 WITHATTRIBS TRUTH [FILTER filter]",
        "VSIM key ELE element WITHSCORES COUNT 1000 TRUTH EPSILON epsilon",
        "DEL key",
        "SET key value",
        "TYPE key",
    ],
    value: vector_value,
};

const DOCUMENTS: Topic = Topic {
    name: "documents",
    commands: &[
        "JSON.SET key root whole",
        "JSON.SET key single scalar [NX | XX]",
        "JSON.SET key single document",
        "JSON.MSET key root whole key root whole",
        "JSON.MERGE key single document",
        "JSON.GET key",
        "JSON.GET key path",
        "JSON.GET key INDENT indent NEWLINE indent SPACE indent path",
        "JSON.MGET key key path",
        "JSON.DEL key [narrow]",
        "JSON.FORGET key narrow",
        "JSON.CLEAR key narrow",
        "JSON.TYPE key [path]",
        "JSON.NUMINCRBY key path number",
        "JSON.NUMMULTBY key path number",
        "JSON.TOGGLE key path",
        "JSON.STRAPPEND key [path] text",
        "JSON.STRLEN key [path]",
        "JSON.ARRAPPEND key path scalar [scalar ...]",
        "JSON.ARRINSERT key path index scalar [scalar ...]",
        "JSON.ARRINDEX key path scalar [index [index]]",
        "JSON.ARRLEN key [path]",
        "JSON.ARRPOP key [path [index]]",
        "JSON.ARRTRIM key path index index",
        "JSON.OBJKEYS key [path]",
        "JSON.OBJLEN key [path]",
        "JSON.RESP key path",
        "DEL key",
        "SET key value",
        "TYPE key",
    ],
    value: document_value,
};

const OF_VALKEY: Topic = Topic {
    name: "of Valkey",
    commands: &[
        "SET key value [IFEQ value] [GET]",
        "DELIFEQ key value",
        "GET key",
        "SET key value",
        "RPUSH key value",
        "DEL key",
        "GEOADD places longitude latitude member",
        "GEOADD places longitude latitude member",
        "GEOSEARCH places BYPOLYGON 3 longitude latitude longitude latitude longitude latitude ASC",
        "GEOSEARCH places BYPOLYGON vertices longitude latitude longitude latitude longitude latitude ASC [COUNT count] \
         [WITHCOORD]",
        "GEOSEARCH places BYPOLYGON 4 longitude latitude longitude latitude longitude latitude longitude latitude DESC",
        "GEOSEARCHSTORE found places BYPOLYGON 3 longitude latitude longitude latitude longitude latitude",
        "ZRANGE found 0 -1",
        "GEOPOS places member",
    ],
    value: valkey_value,
};

fn pick(words: &[&str], prng: &mut Prng) -> Vec<u8> {
    words[prng.below(words.len() as u64) as usize].into()
}

/// What many topics have in common: deadlines so far away that nothing expires meanwhile.
fn common_value(placeholder: &str, prng: &mut Prng) -> Vec<u8> {
    match placeholder {
        "seconds" => pick(&["1000", "5000", "100000", "0", "-1", "x", "9223372036854775807", "70368744177664"], prng),
        "milliseconds" => pick(&["1000000", "5000000", "0", "-5", "x", "9223372036854775807"], prng),
        "unix-seconds" => pick(&["4102444800", "4102444801", "1", "0", "-1", "x", "70368744177664"], prng),
        "unix-milliseconds" => pick(&["4102444800123", "4102444800999", "1", "0", "-1", "9223372036854775807"], prng),
        "numkeys" | "numfields" | "numids" => b"number".to_vec(),
        "small" => pick(&["0", "1", "2", "-1", "-2", "5", "100", "x", "1.5"], prng),
        "count" => pick(&["1", "2", "3", "10", "0", "-1", "x"], prng),
        "bit" => pick(&["0", "1", "1", "2"], prng),
        other => panic!("no values are known for the placeholder {other}"),
    }
}

fn string_value(placeholder: &str, prng: &mut Prng, local: &mut Local) -> Vec<u8> {
    match placeholder {
        "key" => pick(&["a", "b", "c", "d"], prng),
        "value" => {
            pick(&["1", "2", "text", "", "another text that is somewhat longer than the others are", "10"], prng)
        }
        "digest" if prng.chance(1, 4) => b"0000000000000000".to_vec(),
        "digest" => {
            let key = pick(&["a", "b", "c", "d"], prng);
            let digest = local.call(&[b"DIGEST".as_slice(), &key]);
            let digest = digest.as_bytes().filter(|_| !digest.is_error()).map(<[u8]>::to_vec);
            let digest = digest.unwrap_or_else(|| b"ABCDEF0123456789".to_vec());
            if prng.chance(1, 2) { digest.to_ascii_uppercase() } else { digest }
        }
        other => common_value(other, prng),
    }
}

fn field_value(placeholder: &str, prng: &mut Prng, _: &mut Local) -> Vec<u8> {
    match placeholder {
        "key" => pick(&["h", "h", "h", "i", "j"], prng),
        "field" if prng.chance(1, 300) => vec![b'f'; 70],
        "field" => pick(&["a", "b", "c", "d", "e", "1", "2"], prng),
        "value" if prng.chance(1, 200) => vec![b'v'; 70],
        "value" => pick(&["1", "2", "x", "", "3.5"], prng),
        other => common_value(other, prng),
    }
}

fn stream_value(placeholder: &str, prng: &mut Prng, _: &mut Local) -> Vec<u8> {
    match placeholder {
        "key" => pick(&["s", "s", "s", "t"], prng),
        "group" => pick(&["g", "g", "h"], prng),
        "consumer" => pick(&["alice", "bob"], prng),
        "field" => pick(&["a", "a", "b"], prng),
        "value" => pick(&["1", "2", "text"], prng),
        "next" => b"next".to_vec(),
        "new" => b">".to_vec(),
        "threshold" if prng.chance(1, 2) => pick(&["0", "3", "5", "10"], prng),
        "threshold" | "id" => match prng.below(12) {
            0 => pick(&["x", "0", "1-1-1", "18446744073709551615-18446744073709551615"], prng),
            _ => format!("{}-{}", prng.below(250), prng.below(2)).into_bytes(),
        },
        "number" => pick(&["0", "1", "5", "100", "1000000", "-1", "-2", "x"], prng),
        "idle" => pick(&["0", "0", "100000000", "-1", "x"], prng),
        "duration" => pick(&["1", "100", "86400", "86401", "0", "x", "-1"], prng),
        "maxsize" => pick(&["1", "2", "100", "10000", "10001", "0", "x"], prng),
        "producer" => pick(&["p", "q", ""], prng),
        "request" => pick(&["r1", "r2", "r3", ""], prng),
        other => common_value(other, prng),
    }
}

fn rank_value(placeholder: &str, prng: &mut Prng, _: &mut Local) -> Vec<u8> {
    match placeholder {
        "key" => pick(&["z", "y", "list", "set", "nothing"], prng),
        "list" => b"list".to_vec(),
        "set" => b"set".to_vec(),
        "member" => pick(&["a", "b", "c", "1", "2", "3"], prng),
        "score" => pick(&["1", "2", "2.5", "-1", "inf", "x", "1e20"], prng),
        "value" => b"text".to_vec(),
        other => common_value(other, prng),
    }
}

fn vector_value(placeholder: &str, prng: &mut Prng, _: &mut Local) -> Vec<u8> {
    match placeholder {
        "key" => pick(&["v", "v", "w"], prng),
        "element" => format!("e{}", prng.below(12)).into_bytes(),
        "coordinate" if prng.chance(1, 100) => pick(&["x", "0"], prng),
        "coordinate" => format!("{}", prng.below(2_000) as f64 / 8.0 - 125.0).into_bytes(),
        "json" => {
            pick(&[r#"{"a":1,"b":"x"}"#, r#"{"a":2}"#, r#"{"b":"y","t":["u","v"]}"#, "text", r#"{"a":true}"#], prng)
        }
        "filter" => pick(
            &[".a == 1", ".a > 1", r#".b == "x""#, r#""u" in .t"#, "not .a", ".a and .b", ".a +", ".a * 2 == 4"],
            prng,
        ),
        "first" | "last" => pick(&["-", "+", "[e1", "(e1", "[e5", "(e9", "e1", "["], prng),
        "epsilon" => pick(&["0.1", "0.5", "1", "-1", "x"], prng),
        "value" => b"text".to_vec(),
        other => common_value(other, prng),
    }
}

fn document_value(placeholder: &str, prng: &mut Prng, _: &mut Local) -> Vec<u8> {
    match placeholder {
        "key" => pick(&["d", "d", "d", "e", "f"], prng),
        "root" => pick(&["$", "$", "."], prng),
        // No values inside of others that are meant, too: each side takes those in its own order.
        "path" => pick(
            &[
                "$",
                ".",
                "$.a",
                "$.b",
                ".a",
                "a",
                "$.a.b",
                "a.b",
                "$.*",
                "$[0]",
                "$[-1]",
                "[0]",
                "$.a[0]",
                "$.a[1:]",
                "$.a[-2:]",
                "$.a[*]",
                "$['a']",
                "$['a','b']",
                "$[\"b\"]",
                "$.a[0,1]",
                "$.c.a",
                "$.nothing",
                ".nothing",
                "$.a[5]",
                "$[?(@.a)]",
                "$.a[::2]",
                ".a[-1]",
                "c.b[0]",
            ],
            prng,
        ),
        // What leaves the root something: here a document with an empty root goes with its last value.
        "narrow" => pick(&["$.a", "$.b", ".a", "$.a.b", "$.a[0]", "$.a[*]", "$.c.a", "$.c[*]", "$.nothing"], prng),
        // One value: RedisJSON 2.8 ends with the server if it is to set one inside of another that it sets.
        "single" => pick(&["$.a", "$.b", ".a", "$.a.b", "$.a[0]", "$.c.a", "$.nothing"], prng),
        "whole" => format!("{{\"keep\":true,\"a\":{},\"c\":{}}}", document(prng, 1), document(prng, 1)).into_bytes(),
        "scalar" => pick(
            &[
                "1",
                "-2",
                "2.5",
                "1e10",
                "\"x\"",
                "\"\"",
                "true",
                "false",
                "null",
                "[]",
                "{}",
                "[1,2,3]",
                "{\"a\":1}",
                "\"\\u00e9\\n\"",
                "9223372036854775807",
                "18446744073709551615",
            ],
            prng,
        ),
        "document" => document(prng, 0).into_bytes(),
        "number" => pick(&["1", "-1", "2.5", "0", "7"], prng),
        "text" => pick(&["\"x\"", "\"\"", "\"yz\""], prng),
        "index" => pick(&["0", "1", "-1", "2", "-3", "100", "-100"], prng),
        "indent" => pick(&["", " ", "\t", "-"], prng),
        "value" => b"text".to_vec(),
        other => common_value(other, prng),
    }
}

fn document(prng: &mut Prng, depth: u64) -> String {
    const SCALARS: [&str; 12] =
        ["1", "2", "-3", "2.5", "\"x\"", "\"text\"", "true", "false", "null", "[]", "{}", "1000000000000"];
    match prng.below(if depth < 3 { 5 } else { 1 }) {
        1 | 2 => {
            let count = prng.below(5) as usize;
            let names: Vec<_> = ["a", "b", "c", "d"].into_iter().filter(|_| prng.chance(1, 2)).take(count).collect();
            let pairs: Vec<_> = names.iter().map(|name| format!("\"{name}\":{}", document(prng, depth + 1))).collect();
            format!("{{{}}}", pairs.join(","))
        }
        3 => {
            let elements: Vec<_> = (0..prng.below(4)).map(|_| document(prng, depth + 1)).collect();
            format!("[{}]", elements.join(","))
        }
        4 if depth == 0 => format!("{{\"a\":{},\"c\":{}}}", document(prng, 1), document(prng, 1)),
        _ => SCALARS[prng.below(SCALARS.len() as u64) as usize].to_owned(),
    }
}

fn valkey_value(placeholder: &str, prng: &mut Prng, _: &mut Local) -> Vec<u8> {
    match placeholder {
        "key" => pick(&["a", "b", "places"], prng),
        "value" => pick(&["1", "2", "text", ""], prng),
        "longitude" => format!("{}", prng.below(200) as f64 / 10.0).into_bytes(),
        "latitude" => format!("{}", prng.below(200) as f64 / 10.0).into_bytes(),
        "member" => format!("m{}", prng.below(40)).into_bytes(),
        "found" | "places" => placeholder.into(),
        "vertices" => pick(&["3", "3", "2", "4", "0", "x", "-1"], prng),
        other => common_value(other, prng),
    }
}

/// Puts the number of keys, fields or ids where it belongs: mostly the right one.
fn count(line: &mut [Vec<u8>], prng: &mut Prng) {
    let Some(at) = line.iter().position(|word| word == b"number") else { return };
    let options: &[&[u8]] = &[
        b"nx",
        b"xx",
        b"ex",
        b"px",
        b"exat",
        b"pxat",
        b"keepttl",
        b"persist",
        b"gt",
        b"lt",
        b"fxx",
        b"fnx",
        b"limit",
        b"weights",
        b"aggregate",
        b"withscores",
        b"min",
        b"max",
        b"left",
        b"right",
        b"count",
    ];
    let name = line[0].to_ascii_lowercase();
    let behind = line[at + 1..]
        .iter()
        .take_while(|word| name.starts_with(b"x") || !options.contains(&word.to_ascii_lowercase().as_slice()));
    let number = behind.count() / if name == b"msetex" || name == b"hsetex" { 2 } else { 1 };
    line[at] = match prng.below(30) {
        // More than there are, and Redis 8.6 may end.
        0 => pick(&["0", "-1", "1", "x"], prng),
        _ => number.to_string().into_bytes(),
    };
}

/// Loses, doubles or exchanges a word behind the name.
fn spoil(line: &mut Words, prng: &mut Prng) {
    let count = line.len() - 1;
    if count < 2 {
        return;
    }
    let place = 1 + prng.below(count as u64) as usize;
    match prng.below(3) {
        0 => drop(line.remove(place)),
        1 => line.insert(place, line[place].clone()),
        _ => line.swap(place, 1 + prng.below(count as u64) as usize),
    }
}

/// What both sides' replies are reduced to before they are compared.
fn told(line: &[Vec<u8>], frame: &Frame) -> Frame {
    const TIME_MIN: i64 = 1_700_000_000_000;
    const TIME_MAX: i64 = 4_000_000_000_000;
    let name = line[0].to_ascii_lowercase();
    let told_all = |frames: &[Frame]| frames.iter().map(|frame| told(line, frame)).collect::<Vec<_>>();
    let is_of_time =
        |name: &Frame| matches!(name.as_bytes(), Some(b"idle" | b"inactive" | b"seen-time" | b"active-time"));
    // How a radix tree would look, and what is shown only for streams that have had such requests. What trimming with
    // ACKED deletes counts as deleted here, and not there.
    let is_left_out = |name: &Frame| {
        let text = name.as_bytes().unwrap_or_default();
        [b"radix-tree-keys".as_slice(), b"radix-tree-nodes", b"nacked-count", b"max-deleted-entry-id"].contains(&text)
            || [b"idmp-".as_slice(), b"pids-", b"iids-"].iter().any(|start| text.starts_with(start))
    };
    match frame {
        Frame::Integer(TIME_MIN..TIME_MAX) => Frame::Integer(TIME_MIN),
        Frame::Map(pairs) if name == b"xinfo" => {
            let kept = pairs.iter().filter(|(name, _)| !is_left_out(name));
            let value = |name: &Frame, value: &Frame| if is_of_time(name) { Frame::Null } else { told(line, value) };
            Frame::Map(kept.map(|(name, text)| (name.clone(), value(name, text))).collect())
        }
        Frame::Array(elements) if name == b"xinfo" => {
            let is_kept =
                |nth: &usize| !is_left_out(&elements[*nth]) && (*nth == 0 || !is_left_out(&elements[nth - 1]));
            let value = |nth: usize| {
                if nth > 0 && is_of_time(&elements[nth - 1]) { Frame::Null } else { told(line, &elements[nth]) }
            };
            Frame::Array((0..elements.len()).filter(is_kept).map(value).collect())
        }
        Frame::Array(elements) => match &elements[..] {
            // XPENDING: an id, a consumer, how long ago, how often.
            [id @ Frame::Bulk(_), consumer @ Frame::Bulk(_), Frame::Integer(_), count @ Frame::Integer(_)]
                if name == b"xpending" =>
            {
                Frame::Array(vec![id.clone(), consumer.clone(), Frame::Null, count.clone()])
            }
            // XREADGROUP CLAIM: an id, fields, how long ago, how often.
            [id @ Frame::Bulk(_), fields, Frame::Integer(_), count @ Frame::Integer(_)] if name == b"xreadgroup" => {
                Frame::Array(vec![id.clone(), fields.clone(), Frame::Null, count.clone()])
            }
            elements => {
                let mut told = told_all(elements);
                if [b"hgetall".as_slice(), b"hscan", b"zunion", b"zdiff"].contains(&name.as_slice()) {
                    told.sort_by_key(ToString::to_string);
                }
                Frame::Array(told)
            }
        },
        Frame::Map(pairs) if name == b"hgetall" => {
            let mut pairs = pairs.clone();
            pairs.sort_by_key(|(name, _)| name.to_string());
            Frame::Map(pairs)
        }
        Frame::Map(pairs) => {
            Frame::Map(pairs.iter().map(|(name, value)| (told(line, name), told(line, value))).collect())
        }
        other => other.clone(),
    }
}

/// True if the replies are alike; times that are left may differ by what the clocks differ.
fn is_alike(line: &[Vec<u8>], ours: &Frame, theirs: &Frame) -> bool {
    let unit_ms = match line[0].to_ascii_lowercase().as_slice() {
        b"httl" | b"hexpiretime" | b"ttl" => Some(1000),
        b"hpttl" | b"hpexpiretime" | b"pttl" | b"pexpiretime" => Some(1),
        _ => None,
    };
    match (ours, theirs) {
        (Frame::Integer(one), Frame::Integer(other)) => {
            let distance = one.saturating_sub(*other).saturating_abs();
            one == other || *one > 0 && unit_ms.is_some_and(|unit| distance * unit <= CLOCK_DIFFERENCE_MAX_MS)
        }
        (Frame::Double(one), Frame::Double(other)) => (one - other).abs() <= 1e-6 || one == other,
        (Frame::Array(ours), Frame::Array(theirs)) => {
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(one, other)| is_alike(line, one, other))
        }
        (Frame::Map(ours), Frame::Map(theirs)) => {
            ours.len() == theirs.len()
                && ours
                    .iter()
                    .zip(theirs)
                    .all(|(one, other)| is_alike(line, &one.0, &other.0) && is_alike(line, &one.1, &other.1))
        }
        (Frame::Bulk(one), Frame::Bulk(other)) if line[0].starts_with(b"V") || line[0].starts_with(b"v") => {
            let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok().and_then(|text| text.parse::<f64>().ok());
            one == other
                || matches!((number(one), number(other)), (Some(one), Some(other)) if (one - other).abs() < 1e-4)
        }
        _ => ours == theirs,
    }
}

/// Differences that are meant.
fn is_known(topic: &Topic, line: &[Vec<u8>], ours: &Frame, theirs: &Frame) -> bool {
    // How a value came to be as it is shows in Redis's name of its encoding: a text that SETBIT made, for instance.
    if topic.name == "strings" && line[0].eq_ignore_ascii_case(b"object") {
        return matches!((ours.as_bytes(), theirs.as_bytes()), (Some(b"embstr" | b"int"), Some(b"raw")));
    }
    // In RESP3 RedisJSON answers nil where a path of the older form leads to no number.
    let is_nil = |frame: &Frame| frame.elements().is_some_and(|all| all.iter().all(|one| *one == Frame::Null));
    // The order of names in an object is each side's own.
    let is_same = regardless_of_names(ours) == regardless_of_names(theirs);
    topic.name == "documents" && (is_same || ours.is_error() && (is_nil(theirs) || *theirs == Frame::Null))
}

/// A reply about documents in which the order of characters does not count.
fn regardless_of_names(frame: &Frame) -> Frame {
    match frame {
        Frame::Bulk(text) => {
            let mut text = text.clone();
            text.sort_unstable();
            Frame::Bulk(text)
        }
        Frame::Array(elements) => {
            let mut elements: Vec<_> = elements.iter().map(regardless_of_names).collect();
            elements.sort_by_key(ToString::to_string);
            Frame::Array(elements)
        }
        other => other.clone(),
    }
}

fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_millis()).expect("a moment of our time")
}

fn next_line(topic: &Topic, vocabulary: &[Vec<Piece>], nth: usize, prng: &mut Prng, local: &mut Local) -> Words {
    let syntax = &vocabulary[prng.below(vocabulary.len() as u64) as usize];
    let mut line = Words::new();
    generate(syntax, prng, &mut |placeholder, prng| (topic.value)(placeholder, prng, local), &mut line);
    for word in &mut line {
        if word == b"next" {
            *word = format!("{}-{}", nth * 250 / COMMANDS_EACH, pick(&["*", "0", "1"], prng)[0] as char).into_bytes();
        }
    }
    count(&mut line, prng);
    // What scans might stop somewhere, and a deadline might come at once.
    let is_container =
        ["hscan", "xgroup", "xinfo", "object"].iter().any(|name| line[0].eq_ignore_ascii_case(name.as_bytes()));
    let is_fixed = is_container || topic.name == "documents";
    if prng.chance(1, 15) && !is_fixed {
        spoil(&mut line, prng);
    }
    line
}

/// Holds the conversations with the server that a variable names. One that ends by a command, as some do, is replaced,
/// and the conversation is not gone on with.
fn converse(topic: &Topic, variable: &str) {
    let Some(mut reference) = server(variable) else { return };
    let vocabulary: Vec<_> = topic.commands.iter().map(|line| parse(line)).collect();
    let (mut refused, mut all, mut ended) = (0, 0, 0);
    for seed in 0..conversation_count() {
        reference.call(&["FLUSHALL"]);
        let mut local = Local::newer();
        local.protocol = if seed % 2 == 0 { Protocol::Resp3 } else { Protocol::Resp2 };
        reference.call(&["HELLO", if seed % 2 == 0 { "3" } else { "2" }]);
        let mut prng = Prng::new(seed);
        let mut said = Vec::new();
        for nth in 0..COMMANDS_EACH {
            local.now_ms = now_ms();
            let line = next_line(topic, &vocabulary, nth, &mut prng, &mut local);
            let ours = local.call(&line);
            let Some(theirs) = reference.try_call(&line) else {
                ended += 1;
                reference = server(variable).expect("it was there before");
                break;
            };
            (refused, all) = (refused + usize::from(ours.is_error()), all + 1);
            let is_same = is_alike(&line, &told(&line, &ours), &told(&line, &theirs))
                || ours.is_error() && theirs.is_error()
                || is_known(topic, &line, &ours, &theirs);
            said.push(line);
            if !is_same {
                let lines: Vec<_> = said.iter().rev().take(40).rev().map(|line| words::join(line)).collect();
                panic!(
                    "{}, conversation {seed}:\n{}\n  ours   {ours}\n  theirs {theirs}",
                    topic.name,
                    lines.join("\n")
                );
            }
        }
    }
    assert!(refused * 50 > all && refused * 4 < 3 * all, "{}: {refused} of {all} were refused", topic.name);
    println!("{}: {all} commands in agreement, {refused} of them refused; {ended} servers ended", topic.name);
}

/// The program that a variable names, and a module behind a colon.
fn server(variable: &str) -> Option<Reference> {
    let Some(named) = std::env::var_os(variable) else {
        eprintln!("passed over: {variable} names no server to compare with");
        return None;
    };
    let named = named.into_string().expect("a path in UTF-8");
    let (program, options) = match named.split_once(':') {
        Some((program, module)) => (program, vec!["--loadmodule", module]),
        None => (named.as_str(), Vec::new()),
    };
    Some(Reference::of(program.as_ref(), &options).expect("the program is there"))
}

/// Every command of documents refuses a value of another kind in RedisJSON's words, and other commands a document in
/// those of Redis.
#[test]
fn values_of_another_kind_are_refused_in_the_words_of_redis_json() {
    const LINES: [&str; 42] = [
        "JSON.GET s",
        "JSON.GET s $",
        "JSON.SET s $ 1",
        "JSON.SET s $.a 1",
        "JSON.SET s $ 1 NX",
        "JSON.SET s $ 1 XX",
        "JSON.MGET s d $",
        "JSON.MSET s $ 1",
        "JSON.MSET d $ 1 s $.a 1",
        "JSON.MERGE s $ 1",
        "JSON.MERGE s $.a 1",
        "JSON.DEL s",
        "JSON.DEL s $",
        "JSON.FORGET s $.a",
        "JSON.CLEAR s",
        "JSON.TYPE s",
        "JSON.STRLEN s",
        "JSON.STRLEN s $",
        "JSON.STRAPPEND s $ '\"a\"'",
        "JSON.NUMINCRBY s $ 1",
        "JSON.NUMMULTBY s $ 1",
        "JSON.TOGGLE s $",
        "JSON.ARRAPPEND s $ 1",
        "JSON.ARRINDEX s $ 1",
        "JSON.ARRINSERT s $ 0 1",
        "JSON.ARRLEN s",
        "JSON.ARRLEN s $",
        "JSON.ARRPOP s",
        "JSON.ARRPOP s $",
        "JSON.ARRTRIM s $ 0 1",
        "JSON.OBJKEYS s",
        "JSON.OBJKEYS s $",
        "JSON.OBJLEN s",
        "JSON.OBJLEN s $",
        "JSON.RESP s",
        "JSON.DEBUG MEMORY s",
        "JSON.NUMINCRBY s . x",
        "GET d",
        "APPEND d 1",
        "HSET d a 1",
        "LLEN d",
        "GET s",
    ];
    let mut local = Local::newer();
    let mut reference = server("HOLDFAST_REDIS_JSON");
    for line in ["SET s text", r#"JSON.SET d $ {"a":1}"#] {
        local.call(&words::split(line));
        reference.iter_mut().for_each(|reference| drop(reference.call(&words::split(line))));
    }
    for line in LINES {
        let words = words::split(line);
        let ours = local.call(&words).to_string();
        if let Some(reference) = &mut reference {
            assert_eq!(ours, reference.call(&words).to_string(), "{line}");
        }
        if line.starts_with("JSON") && !line.starts_with("JSON.MGET") && !line.ends_with(" x") {
            assert_eq!(ours, "(error) Existing key has wrong Redis type", "{line}");
        }
    }
}

/// What only newer servers refuse or bound is as it was in what was logged before level 2.
#[test]
fn what_streams_are_told_of_themselves_is_bounded_since_level_2() {
    let mut levels = [Local::new(), Local::newer()];
    let mut told = |line: &str| levels.each_mut().map(|local| local.call(&words::split(line)).to_string());
    for line in ["XADD s 1-1 a 1", "XADD s 3-1 a 1", "XADD s 5-1 a 1", "XDEL s 5-1"] {
        told(line);
    }
    assert_eq!(told("XGROUP CREATE s g 0 ENTRIESREAD 7"), ["OK", "OK"]);
    let [before, now] = told("XINFO GROUPS s");
    assert!(
        before.contains("entries-read, (integer) 7") || before.contains(r#""entries-read", (integer) 7"#),
        "{before}"
    );
    assert!(now.contains("(integer) 3") && !now.contains("(integer) 7"), "{now}");
    assert_eq!(told("XGROUP SETID s g 0 ENTRIESREAD 2"), ["OK", "OK"]);
    let refused = "(error) ERR The ID specified in XSETID is smaller than current max_deleted_entry_id";
    assert_eq!(told("XSETID s 5-0"), ["OK", refused]);
    assert_eq!(told("XSETID s 3-0")[1], refused);
    // What was trimmed before a group has read it.
    for line in [
        "XADD t 1-1 a 1",
        "XADD t 2-1 a 1",
        "XADD t 3-1 a 1",
        "XGROUP CREATE t g 1-1 ENTRIESREAD 1",
        "XTRIM t MAXLEN 1",
    ] {
        told(line);
    }
    let [before, now] = told("XINFO GROUPS t");
    assert!(before.contains(r#""lag", (integer) 2"#) && now.contains(r#""lag", (integer) 1"#), "{before} {now}");
    told("XREADGROUP GROUP g c STREAMS t >");
    let [before, now] = told("XINFO GROUPS t");
    assert!(before.contains(r#""entries-read", (integer) 2"#) && now.contains(r#""entries-read", (integer) 3"#));
}

#[test]
fn strings_agree_with_redis_8() {
    converse(&STRINGS, "HOLDFAST_REDIS_8");
}

#[test]
fn fields_with_deadlines_agree_with_redis_8() {
    converse(&FIELDS, "HOLDFAST_REDIS_8");
}

#[test]
fn streams_agree_with_redis_8() {
    converse(&STREAMS, "HOLDFAST_REDIS_8");
}

#[test]
fn ranks_agree_with_redis_8() {
    converse(&RANKS, "HOLDFAST_REDIS_8");
}

#[test]
fn vectors_agree_with_redis_8() {
    converse(&VECTORS, "HOLDFAST_REDIS_8");
}

#[test]
fn documents_agree_with_redis_json() {
    converse(&DOCUMENTS, "HOLDFAST_REDIS_JSON");
}

#[test]
fn what_valkey_brought_agrees_with_it() {
    converse(&OF_VALKEY, "HOLDFAST_VALKEY_9");
}
