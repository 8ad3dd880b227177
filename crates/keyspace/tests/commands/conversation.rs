//! Long random conversations in which a keyspace and the reference must say the same.
//!
//! Commands are made from the syntax in the records, with values chosen where mistakes live: at the edges of 64 bits,
//! at the ends of strings, just not numbers. Now and then a word is lost, doubled or moved, so that refusals are
//! compared too.
//!
//! Left out is what Redis itself does not define: a signed BITFIELD SET within a field's size of the least 64-bit
//! number under `OVERFLOW SAT` (Redis answers with the greatest number, we with the least), and `#` offsets that leave
//! 64 bits when they are multiplied.

use command::{Flag, Group};
use keyspace::{COMMANDS, DataCommand, find};
use resp::{Frame, Protocol};
use stdx::Prng;

use crate::local::Local;
use crate::reference::{Reference, is_in_reference};
use crate::syntax::{Piece, generate, parse};
use crate::words;

const CONVERSATIONS: u64 = 24;
const COMMANDS_EACH: usize = 1_500;
const TOPICS: [Topic; 11] = [
    Topic::Strings,
    Topic::Bitmaps,
    Topic::Sketches,
    Topic::Hashes,
    Topic::Sets,
    Topic::Lists,
    Topic::SortedSets,
    Topic::Names,
    Topic::Positions,
    Topic::Entries,
    Topic::Groups,
];

/// Commands on streams that say nothing of groups.
const ENTRY_COMMANDS: &[&str] = &["xadd", "xtrim", "xdel", "xsetid", "xlen", "xrange", "xrevrange", "xread"];

/// What a conversation is about.
#[derive(Clone, Copy)]
enum Topic {
    /// Strings, and how they are kept.
    Strings,
    /// Strings and bitmaps. How they are kept is not compared: a SETBIT that changes nothing leaves a number a number
    /// here, and makes it text there.
    Bitmaps,
    /// HyperLogLogs, and the strings that they are.
    Sketches,
    /// Hashes. Where a form keeps no order, the order of replies is not compared.
    Hashes,
    /// Sets, compared in the same way.
    Sets,
    /// Lists, and what is sorted.
    Lists,
    /// Sorted sets, and sets in their place.
    SortedSets,
    /// Sorted sets by name. All scores are equal: what else a range of names holds, Redis does not define.
    Names,
    /// Positions.
    Positions,
    /// Streams without groups, and their dumps to the byte.
    Entries,
    /// Streams with groups. Times are not compared, as the two live at different ones.
    Groups,
}

/// Conversations on each topic; `HOLDFAST_CONVERSATIONS` asks for another number.
pub fn conversation_count() -> u64 {
    let asked = std::env::var("HOLDFAST_CONVERSATIONS").ok();
    asked.map_or(CONVERSATIONS, |number| number.parse().expect("a number of conversations"))
}

/// What stands in the syntax of a command that the reference knows, and is newer.
const NEWER_OPTIONS: &[(&str, &str)] = &[
    ("set", " | IFEQ ifeq-value | IFNE ifne-value | IFDEQ ifdeq-digest | IFDNE ifdne-digest"),
    ("bitop", " | DIFF | DIFF1 | ANDOR | ONE"),
    ("zrank", " [WITHSCORE]"),
    ("zrevrank", " [WITHSCORE]"),
    ("zunion", " | COUNT"),
    ("zinter", " | COUNT"),
    ("zunionstore", " | COUNT"),
    ("zinterstore", " | COUNT"),
    ("xadd", " [KEEPREF | DELREF | ACKED] [IDMPAUTO pid | IDMP pid iid]"),
    ("xtrim", " [KEEPREF | DELREF | ACKED]"),
    (
        "geosearch",
        " | BYPOLYGON num-vertices longitude latitude longitude latitude longitude latitude [longitude latitude ...]",
    ),
    (
        "geosearchstore",
        " | BYPOLYGON num-vertices longitude latitude longitude latitude longitude latitude [longitude latitude ...]",
    ),
];

/// The syntax of a command as the reference knows it.
fn old_syntax(command: &DataCommand) -> String {
    let newer = NEWER_OPTIONS.iter().find(|(name, _)| *name == command.name);
    newer.map_or(command.syntax.to_owned(), |(name, options)| {
        assert!(command.syntax.contains(options), "{name} has no such options");
        command.syntax.replace(options, "")
    })
}

/// Commands that reply with the elements in an order that is each side's own.
const UNORDERED: &[&str] =
    &["hgetall", "hkeys", "hvals", "hscan", "smembers", "sinter", "sunion", "sdiff", "sscan", "srandmember", "zscan"];

/// A HyperLogLog without the estimate that Redis keeps with it.
fn without_estimate(frame: &Frame) -> Frame {
    match frame {
        Frame::Bulk(bytes) if bytes.starts_with(b"HYLL") && bytes.len() >= 16 => {
            Frame::Bulk([&bytes[..8], &bytes[16..]].concat())
        }
        other => other.clone(),
    }
}

#[test]
fn conversations_agree_with_the_reference() {
    let Some(mut reference) = Reference::start() else { return };
    let mut errors = 0;
    let conversations = conversation_count() * TOPICS.len() as u64;
    for seed in 0..conversations {
        let topic = TOPICS[(seed % TOPICS.len() as u64) as usize];
        let said = converse(topic, seed);
        reference.call(&["FLUSHALL"]);
        let mut local = Local::new();
        if seed % 2 == 0 {
            reference.call(&["HELLO", "3"]);
            local.protocol = Protocol::Resp3;
        } else {
            reference.call(&["HELLO", "2"]);
        }
        for (nth, theirs) in reference.call_all(&said).iter().enumerate() {
            let ours = local.call(&said[nth]);
            errors += usize::from(ours.is_error());
            let name = String::from_utf8_lossy(&said[nth][0]).to_lowercase();
            // Redis 7.2 looks at all words before it looks for the key.
            let is_stricter = ours.is_error() && matches!(name.as_str(), "bitcount" | "bitpos");
            let is_same = &ours == theirs
                || matches!(topic, Topic::Sketches) && without_estimate(&ours) == without_estimate(theirs)
                || is_stricter && (theirs.is_error() || matches!(theirs, Frame::Integer(-1 | 0)))
                || matches!(topic, Topic::Groups)
                    && regardless_of_time(&without_newer(&ours)) == regardless_of_time(&without_newer(theirs))
                || UNORDERED.contains(&name.as_str()) && regardless_of_order(&ours) == regardless_of_order(theirs);
            assert!(is_same, "{}", disagreement(seed, &said[..=nth], &ours, theirs));
        }
    }
    // Both kinds of reply have been compared in numbers worth the name.
    let all = conversations as usize * COMMANDS_EACH;
    assert!((all / 20..all / 2).contains(&errors), "{errors} of {all} commands were refused");
}

/// What a reply holds, however its elements are ordered and nested.
fn regardless_of_order(frame: &Frame) -> Vec<String> {
    let mut parts = match frame {
        Frame::Array(elements) | Frame::Set(elements) => elements.iter().flat_map(regardless_of_order).collect(),
        Frame::Map(pairs) => pairs
            .iter()
            .flat_map(|(name, value)| [regardless_of_order(name), regardless_of_order(value)].concat())
            .collect(),
        other => vec![other.to_string()],
    };
    parts.sort();
    parts
}

/// A reply without what the reference does not tell, or otherwise: when a consumer was active, how far a group is
/// behind.
pub fn without_newer(frame: &Frame) -> Frame {
    // Redis 8 knows more often how far behind a group is.
    let is_newer =
        |name: &Frame| matches!(name.as_bytes(), Some(b"inactive" | b"active-time" | b"nacked-count" | b"lag"));
    match frame {
        Frame::Map(pairs) => {
            let kept = pairs.iter().filter(|(name, _)| !is_newer(name));
            Frame::Map(kept.map(|(name, value)| (name.clone(), without_newer(value))).collect())
        }
        Frame::Array(elements) => {
            let is_kept = |nth: usize| !is_newer(&elements[nth]) && (nth == 0 || !is_newer(&elements[nth - 1]));
            let kept = (0..elements.len()).filter(|nth| is_kept(*nth));
            Frame::Array(kept.map(|nth| without_newer(&elements[nth])).collect())
        }
        other => other.clone(),
    }
}

/// A reply without what only the hour decides.
fn regardless_of_time(frame: &Frame) -> Frame {
    /// Milliseconds since the epoch, and no other numbers here, are greater.
    const TIME_MIN: i64 = 1_000_000_000_000;
    let is_idle = |name: &Frame| name.as_bytes() == Some(b"idle");
    match frame {
        Frame::Integer(TIME_MIN..) => Frame::Integer(0),
        Frame::Map(pairs) => {
            let without = |(name, value): &(Frame, Frame)| {
                (name.clone(), if is_idle(name) { Frame::Null } else { regardless_of_time(value) })
            };
            Frame::Map(pairs.iter().map(without).collect())
        }
        // XPENDING: an id, a consumer, how long ago, how often.
        Frame::Array(elements) => match &elements[..] {
            [Frame::Bulk(id), Frame::Bulk(consumer), Frame::Integer(_), count @ Frame::Integer(_)] => {
                Frame::Array(vec![Frame::Bulk(id.clone()), Frame::Bulk(consumer.clone()), Frame::Null, count.clone()])
            }
            elements => {
                let without = |(nth, element): (usize, &Frame)| {
                    if nth > 0 && is_idle(&elements[nth - 1]) { Frame::Null } else { regardless_of_time(element) }
                };
                Frame::Array(elements.iter().enumerate().map(without).collect())
            }
        },
        other => other.clone(),
    }
}

/// The commands of one conversation.
fn converse(topic: Topic, seed: u64) -> Vec<Vec<Vec<u8>>> {
    let mut prng = Prng::new(seed);
    let vocabulary = vocabulary(topic);
    let lines = (0..COMMANDS_EACH)
        .map(|nth| {
            let (name, syntax) = &vocabulary[prng.below(vocabulary.len() as u64) as usize];
            let mut line: Vec<Vec<u8>> = name.iter().map(|word| word.as_bytes().to_vec()).collect();
            generate(syntax, &mut prng, &mut |placeholder, prng| value(name[0], placeholder, prng), &mut line);
            // The time is another there.
            line.iter_mut().filter(|word| name[0] == "xadd" && word[..] == *b"*").for_each(|word| {
                *word = format!("{}-{}", nth / 4, pick(&["*", "0", "1"], &mut prng)).into_bytes();
            });
            count_keys(&mut line, &mut prng);
            if let Topic::Lists = topic {
                // A number out of range makes SORT there refuse the next numbers, too.
                line.iter_mut().filter(|word| word.ends_with(b"5000") || word.ends_with(b"4932")).for_each(Vec::clear);
            }
            // A spoiled ZADD would give other scores, and a spoiled scan might stop somewhere.
            let is_fixed = matches!(topic, Topic::Names) && name[0] == "zadd" || name[0].ends_with("scan");
            // With a word more than the reference takes they may be right.
            let is_fixed = is_fixed || name[0] == "zrank" || name[0] == "zrevrank";
            if prng.chance(1, 15) && !is_fixed {
                spoil(&mut line, name.len(), &mut prng);
            }
            line
        })
        .collect::<Vec<_>>();
    lines.into_iter().flat_map(with_consumer).collect()
}

/// A request, and before it one that makes the consumer it names: before Redis 7.2 requests that get nothing make none.
fn with_consumer(line: Vec<Vec<u8>>) -> impl Iterator<Item = Vec<Vec<u8>>> {
    let make = |key: usize, group: usize, consumer: usize| {
        let mut words = vec![b"xgroup".to_vec(), b"createconsumer".to_vec()];
        for at in [key, group, consumer] {
            words.push(line.get(at).cloned().unwrap_or_default());
        }
        words
    };
    let before = match line.first().map(Vec::as_slice) {
        Some(b"xclaim" | b"xautoclaim") => vec![make(1, 2, 3)],
        Some(b"xreadgroup") => {
            let streams = line.iter().position(|word| word.eq_ignore_ascii_case(b"streams")).unwrap_or(line.len());
            let keys = streams + 1..streams + 1 + line.len().saturating_sub(streams + 1) / 2;
            keys.map(|key| make(key, 2, 3)).collect()
        }
        _ => Vec::new(),
    };
    before.into_iter().chain([line])
}

/// The commands of a topic: the words that name each, and its syntax.
fn vocabulary(topic: Topic) -> Vec<(Vec<&'static str>, Vec<Piece>)> {
    let belongs = |command: &&&DataCommand| match topic {
        Topic::Strings => command.group == Group::String,
        Topic::Bitmaps => matches!(command.group, Group::String | Group::Bitmap),
        // A sketch's own test goes on for seconds in the reference.
        Topic::Sketches => command.group == Group::Hyperloglog && command.name != "pfselftest",
        // What chance chooses cannot be compared.
        Topic::Hashes => command.group == Group::Hash && !["hrandfield", "hscan"].contains(&command.name),
        Topic::Sets => command.group == Group::Set && !["spop", "srandmember", "sscan"].contains(&command.name),
        Topic::Lists => command.group == Group::List,
        Topic::SortedSets => {
            let by_chance_or_name = ["zrandmember", "zscan", "zrange", "zrangestore"].contains(&command.name);
            command.group == Group::SortedSet && !by_chance_or_name && !command.name.contains("lex")
        }
        Topic::Names => command.name.starts_with('z') && command.name.contains("lex"),
        Topic::Positions => command.group == Group::Geo,
        Topic::Entries => ENTRY_COMMANDS.contains(&command.name),
        Topic::Groups => command.group == Group::Stream && command.subcommands.is_empty(),
    };
    // The reference would wait.
    let waits = |command: &DataCommand| command.has(Flag::Blocking) && !command.name.starts_with("xread");
    let spoken =
        COMMANDS.iter().filter(|command| is_in_reference(command)).filter(belongs).filter(|command| !waits(command));
    let mut vocabulary: Vec<_> = spoken.map(|command| (vec![command.name], parse(&old_syntax(command)))).collect();
    // Values that commands work on come from SET, so it is said more often.
    let common: &[&str] = match topic {
        Topic::Strings | Topic::Bitmaps => &["set", "set", "set", "mset", "del", "exists", "persist", "type"],
        Topic::Sketches => &["set", "append", "del", "persist", "type"],
        Topic::Hashes => &["hset", "hset", "hset", "hset", "set", "del", "type", "rename", "copy", "hgetall"],
        Topic::Sets => &["sadd", "sadd", "sadd", "sadd", "sadd", "set", "del", "type", "rename", "smembers"],
        Topic::Lists => {
            &["rpush", "lpush", "rpush", "lpush", "rpush", "set", "hset", "del", "type", "rename", "lrange", "lrange"]
        }
        Topic::SortedSets => {
            &["zadd", "zadd", "zadd", "zadd", "zadd", "sadd", "set", "del", "type", "zrangebyscore", "zrangebyscore"]
        }
        Topic::Names => &["zrem", "del"],
        Topic::Positions => &["geoadd", "geoadd", "geoadd", "set", "del", "geosearch", "geosearch"],
        Topic::Entries => &["xadd", "xadd", "xadd", "xadd", "dump", "dump", "del", "copy"],
        Topic::Groups => &["xadd", "xadd", "xadd", "xadd", "xreadgroup", "xreadgroup", "xack", "del", "copy"],
    };
    for &name in common {
        let command = find(name.as_bytes()).expect("a command of this name");
        let syntax = if name == "set" { "key value".to_owned() } else { old_syntax(command) };
        vocabulary.push((vec![name], parse(&syntax)));
    }
    // Nobody waits here.
    vocabulary.iter_mut().filter(|(name, _)| name[0].starts_with("xread")).for_each(|(name, syntax)| {
        let group = if name[0] == "xread" { "" } else { "GROUP group consumer [NOACK] " };
        *syntax = parse(&format!("{group}[COUNT count] STREAMS <key id | key key id id>"));
    });
    if let Topic::Groups = topic {
        for name in ["xgroup", "xgroup", "xinfo"] {
            let container = find(name.as_bytes()).expect("a command of this name");
            let named = container.subcommands.iter().filter(|subcommand| subcommand.name != "help");
            vocabulary.extend(named.map(|subcommand| (vec![name, subcommand.name], parse(subcommand.syntax))));
        }
    }
    match topic {
        Topic::Strings => vocabulary.push((vec!["object", "encoding"], parse("key"))),
        Topic::Sketches => {
            for _ in 0..4 {
                vocabulary.push((vec!["pfadd"], parse("key element [element ...]")));
            }
            vocabulary.push((vec!["get"], parse("key")));
            vocabulary.push((vec!["strlen"], parse("key")));
        }
        Topic::Hashes | Topic::Sets => {
            vocabulary.push((vec!["object", "encoding"], parse("key")));
            // A step that sees everything.
            let name = if let Topic::Hashes = topic { "hscan" } else { "sscan" };
            vocabulary.push((vec![name], parse("key cursor [MATCH pattern] COUNT count")));
        }
        Topic::Bitmaps | Topic::Entries | Topic::Groups => {}
        Topic::Lists => {
            vocabulary.push((vec!["object", "encoding"], parse("key")));
            // By text and by what other keys hold at once, the order of those where they hold nothing is not defined.
            let by_text = "key [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] ALPHA";
            let by_number = "key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC]";
            let stored = "key [BY pattern] [LIMIT offset count] [GET pattern] [ASC | DESC] STORE destination";
            for syntax in [by_text, by_number] {
                vocabulary.push((vec!["sort_ro"], parse(syntax)));
                vocabulary.push((vec!["sort"], parse(syntax)));
            }
            vocabulary.push((vec!["sort"], parse(stored)));
        }
        Topic::SortedSets => {
            vocabulary.push((vec!["object", "encoding"], parse("key")));
            vocabulary.push((vec!["zscan"], parse("key cursor [MATCH pattern] COUNT count")));
            vocabulary.push((vec!["zrange"], parse("key rank-start rank-stop [REV] [WITHSCORES]")));
            vocabulary.push((vec!["zrange"], parse("key min max BYSCORE [REV] [LIMIT offset count] [WITHSCORES]")));
            vocabulary.push((vec!["zrangestore"], parse("dst src min max BYSCORE [REV] [LIMIT offset count]")));
            vocabulary.push((vec!["zrangestore"], parse("dst src rank-start rank-stop [REV]")));
        }
        Topic::Names => {
            vocabulary.push((vec!["object", "encoding"], parse("key")));
            let added = "key [NX | XX] [CH] equal-score member [equal-score member ...]";
            (0..4).for_each(|_| vocabulary.push((vec!["zadd"], parse(added))));
            vocabulary.push((vec!["zrange"], parse("key first last BYLEX [REV] [LIMIT offset count]")));
            vocabulary.push((vec!["zrangestore"], parse("dst src first last BYLEX [REV] [LIMIT offset count]")));
        }
        // Without scores: distances that are stored may differ in their last digit.
        Topic::Positions => vocabulary.push((vec!["zrange"], parse("key rank-start rank-stop [REV]"))),
    }
    vocabulary
}

/// What stands for a number of keys until they are there.
const KEY_COUNT: &[u8] = b"number of keys";

/// Puts the number of keys where it belongs, mostly the right one.
fn count_keys(line: &mut [Vec<u8>], prng: &mut Prng) {
    let Some(at) = line.iter().position(|word| word == KEY_COUNT) else { return };
    let count = line[at + 1..].iter().take_while(|word| word.starts_with(b"key")).count();
    line[at] = match prng.below(8) {
        0 => pick(&["1", "2", "0", "-1", "3", "x"], prng).into_bytes(),
        _ => count.to_string().into_bytes(),
    };
}

/// Loses, doubles or exchanges a word behind the first `fixed`.
fn spoil(line: &mut Vec<Vec<u8>>, fixed: usize, prng: &mut Prng) {
    let count = line.len() - fixed;
    if count < 2 {
        return;
    }
    let place = fixed + prng.below(count as u64) as usize;
    match prng.below(3) {
        0 => drop(line.remove(place)),
        1 => line.insert(place, line[place].clone()),
        _ => line.swap(place, fixed + prng.below(count as u64) as usize),
    }
    // What was a value may now stand where an offset is wanted, and would make a string of half a gigabyte.
    for word in &mut line[fixed..] {
        let text = String::from_utf8_lossy(word);
        if text.parse::<u64>().is_ok_and(|number| number > 5_000 && number / 8 < 1 << 29) {
            *word = b"4999".to_vec();
        }
    }
}

fn value(command: &str, placeholder: &str, prng: &mut Prng) -> Vec<u8> {
    if command.starts_with('x') {
        return stream_value(placeholder, prng);
    }
    let text = match placeholder {
        _ if placeholder.contains("key") && placeholder != "numkeys" => format!("key{}", prng.below(6)),
        "source" | "destination" | "src" | "dst" => format!("key{}", prng.below(6)),
        "numkeys" => return KEY_COUNT.to_vec(),
        "element" if command.starts_with("pf") => (prng.draw() >> (44 + prng.below(16))).to_string(),
        // Redis lets SORT look at texts up to a zero byte only.
        "element" | "pivot" => return element(prng).into_iter().map(|byte| byte.max(1)).collect(),
        "rank" => pick(&["1", "2", "-1", "-2", "3", "0", "x", "-9223372036854775807"], prng),
        "num-matches" | "len" => pick(&["0", "1", "2", "100", "-1", "x"], prng),
        "score" | "weight" => score(prng),
        "increment" if command == "zincrby" => score(prng),
        "min" | "max" | "start" if command.contains("lex") => return name_bound(prng),
        "first" | "last" => return name_bound(prng),
        "equal-score" => pick(&["0", "0", "0", "0", "0", "0", "0", "0", "x"], prng),
        "rank-start" | "rank-stop" => index(prng),
        "min" | "max" => score_bound(prng),
        "m" | "km" | "ft" | "mi" if prng.chance(1, 30) => "x".into(),
        "m" | "km" | "ft" | "mi" => placeholder.into(),
        "longitude" => degrees(200, prng),
        "latitude" => degrees(90, prng),
        "radius" | "width" | "height" => pick(&["1", "100", "0", "5000", "0.5", "3000.25", "-1", "x", "200000"], prng),
        "pattern" if command.starts_with("sort") => {
            pick(&["#", "key*", "*", "key*->a", "nowhere", "key*->", "key1", "k*y"], prng)
        }
        "count" if command.ends_with("scan") => "100000".into(),
        "count" if command.starts_with('l') || command.starts_with('r') || command.starts_with('z') => {
            pick(&["1", "2", "0", "-1", "-2", "3", "10", "x", "9223372036854775807"], prng)
        }
        "count" if command.starts_with('g') => pick(&["1", "2", "3", "10", "0", "-1", "x"], prng),
        "count" | "offset" if command.starts_with("sort") => pick(&["0", "1", "2", "-1", "5", "x"], prng),
        "offset" if command.starts_with('z') => pick(&["0", "0", "1", "2", "-1", "5", "x"], prng),
        "limit" => pick(&["0", "1", "2", "10", "-1", "x"], prng),
        "cursor" => pick(&["0", "0", "0", "0", "x", "-"], prng),
        "pattern" => pick(&["*", "*1*", "[a-b]*", "?", ""], prng),
        "count" => pick(&["1000", "100000", "1000", "0", "-1", "x"], prng),
        "destination-db" => pick(&["0", "0", "16", "x"], prng),
        "field" => return element(prng),
        "member" | "member1" | "member2" => return element(prng),
        "encoding" => encoding(prng),
        "subcommand" if prng.chance(1, 20) => "getreg".into(),
        "subcommand" => pick(&["encoding", "encoding", "decode", "decode", "todense", "x"], prng),
        "offset" => return offset(command, prng),
        "start" | "stop" | "end" | "index" => index(prng),
        "bit" => pick(&["0", "1", "1", "0", "2", "x"], prng),
        "value" if command == "setbit" => pick(&["0", "1", "1", "0", "2", "-1", "x"], prng),
        // See the top of the file for what is left out here.
        "value" if command.starts_with("bitfield") => {
            integer(prng).replace("-9223372036854775807", "-4611686018427387904")
        }
        "value" => return string(prng),
        "increment" if command == "incrbyfloat" || command == "hincrbyfloat" => number(prng),
        "increment" | "decrement" => integer(prng),
        "seconds" => {
            pick(&["100000", "5000000", "0", "-1", "9223372036854775", "9223372036854775807", "1.5", "x"], prng)
        }
        "milliseconds" => pick(&["100000000", "0", "-5", "9223372036854775807", "9223372036854775808", "x"], prng),
        "unix-time-seconds" => pick(&["32503680000", "1", "0", "-1", "9223372036854776", "x"], prng),
        "unix-time-milliseconds" => pick(&["32503680000123", "1", "0", "-1", "9223372036854775807", "x"], prng),
        "min-match-len" => pick(&["0", "1", "3", "-1", "9223372036854775807", "x"], prng),
        other => panic!("no values are known for the placeholder {other}"),
    };
    text.into_bytes()
}

fn stream_value(placeholder: &str, prng: &mut Prng) -> Vec<u8> {
    let number = prng.below(COMMANDS_EACH as u64 / 4);
    let text = match placeholder {
        "key" => format!("key{}", prng.below(3)),
        "field" => pick(&["a", "a", "a", "b", "12"], prng),
        "value" => return string(prng),
        "group" => pick(&["g", "g", "h"], prng),
        "consumer" => pick(&["alice", "bob", "a consumer with a longer name"], prng),
        "threshold" if prng.chance(1, 2) => prng.below(50).to_string(),
        "count" => pick(&["1", "2", "5", "20", "0", "-1", "x"], prng),
        "start" | "end" if prng.chance(1, 2) => pick(&["-", "+", "-", "+", "(5", "(-", "(0-0", "x"], prng),
        "id" if prng.chance(1, 4) => pick(&["0", ">", ">", ">", "$", "x", "18446744073709551615-5"], prng),
        "min-idle-time" => pick(&["0", "0", "0", "50000", "10000000000", "-1", "x"], prng),
        "ms" => pick(&["0", "100000", "-1", "x"], prng),
        "unix-time-milliseconds" => pick(&["1", "0", "9999999999999999", "x"], prng),
        "entries-added" | "entries-read" => pick(&["0", "5", "1000", "-1", "x"], prng),
        _ => format!("{number}-{}", prng.below(2)),
    };
    text.into_bytes()
}

fn pick(words: &[&str], prng: &mut Prng) -> String {
    words[prng.below(words.len() as u64) as usize].into()
}

fn encoding(prng: &mut Prng) -> String {
    match prng.below(20) {
        0 => pick(&["u64", "i65", "u0", "i0", "x8", "I8", "u", "", "u08", "i-1", "8"], prng),
        nth if nth % 2 == 0 => format!("i{}", 1 + prng.below(64)),
        _ => format!("u{}", 1 + prng.below(63)),
    }
}

/// Offsets that make strings of moderate length, or none at all.
fn offset(command: &str, prng: &mut Prng) -> Vec<u8> {
    let near = prng.below(400);
    match prng.below(20) {
        0 => pick(
            &["-1", "4294967296", "9223372036854775807", "9223372036854775808", "x", "", "01", "#", "#-1", "#x"],
            prng,
        ),
        1..=4 if command.starts_with("bitfield") => format!("#{}", near / 32),
        _ => near.to_string(),
    }
    .into_bytes()
}

fn index(prng: &mut Prng) -> String {
    match prng.below(12) {
        0 => pick(&["9223372036854775807", "-9223372036854775808", "9223372036854775808", "x", "", "4294967296"], prng),
        1..=3 => (prng.below(3_000) as i64 - 1_500).to_string(),
        _ => (prng.below(60) as i64 - 30).to_string(),
    }
}

fn integer(prng: &mut Prng) -> String {
    match prng.below(10) {
        0 => pick(&["9223372036854775807", "-9223372036854775807", "9223372036854775808", "4611686018427387904"], prng),
        1 => pick(&["1.0", "x", "", "+1", "01", " 1", "1e3", "-0"], prng),
        2 | 3 => (prng.draw() as i64 >> prng.below(60) << prng.below(2)).clamp(i64::MIN / 2, i64::MAX).to_string(),
        _ => (prng.below(600) as i64 - 300).to_string(),
    }
}

fn number(prng: &mut Prng) -> String {
    let sign = if prng.chance(1, 3) { "-" } else { "" };
    match prng.below(10) {
        0 => pick(
            &["inf", "-inf", "nan", "1e5000", "1e-5000", "x", "", " 1", "1 ", "0x1.8p3", "1e4932", "+5", ".", "-0"],
            prng,
        ),
        1 => integer(prng),
        2 => format!("{sign}{}e{}", prng.below(1_000_000), prng.below(60) as i64 - 30),
        3 => format!("{sign}{}.{}", prng.draw(), prng.draw()),
        4 => format!("{sign}.{}", prng.below(1_000)),
        _ => format!("{sign}{}.{}", prng.below(1_000), prng.below(1_000)),
    }
}

fn score(prng: &mut Prng) -> String {
    match prng.below(6) {
        0 => pick(
            &["inf", "-inf", "nan", "1e400", "1e-400", "x", "", " 1", "0x1p3", "-0", "1e17", "12345678901234567890"],
            prng,
        ),
        1 => number(prng),
        2 => (prng.draw() as i64 >> prng.below(60)).to_string(),
        3 => format!("{}e{}", prng.below(1_000_000), prng.below(60) as i64 - 30),
        _ => (prng.below(20) as i64 - 5).to_string(),
    }
}

fn score_bound(prng: &mut Prng) -> String {
    let open = if prng.chance(1, 3) { "(" } else { "" };
    match prng.below(4) {
        0 => pick(&["-inf", "+inf", "(inf", "(", "", "1e400", "((1", "[1", "(-inf", " 3"], prng),
        _ => format!("{open}{}", prng.below(24) as i64 - 8),
    }
}

fn name_bound(prng: &mut Prng) -> Vec<u8> {
    match prng.below(6) {
        0 => pick(&["-", "+", "-x", "", "a", "(", "["], prng).into_bytes(),
        1 => pick(&["-", "+"], prng).into_bytes(),
        nth => [if nth % 2 == 0 { b"[" } else { b"(" }.as_slice(), &element(prng)].concat(),
    }
}

fn degrees(most: u64, prng: &mut Prng) -> String {
    match prng.below(10) {
        0 => pick(&["0", "180", "-180", "85.05112878", "85.06", "x", "-85.05112878"], prng),
        1 => (prng.below(2 * most) as i64 - most as i64).to_string(),
        // Near each other, so that something is found.
        _ => format!("{}.{}", 10 + prng.below(3), prng.below(1_000_000)),
    }
}

/// A field or a member: often one that has been met before, sometimes too long for a small form.
fn element(prng: &mut Prng) -> Vec<u8> {
    match prng.below(40) {
        0 => vec![b'x'; 63 + prng.below(3) as usize],
        1..4 => string(prng),
        4..20 => (prng.below(30) as i64 - 5).to_string().into_bytes(),
        20..23 => integer(prng).into_bytes(),
        _ => pick(&["a", "b", "c", "ab", "abc", "x1", "x2"], prng).into_bytes(),
    }
}

fn string(prng: &mut Prng) -> Vec<u8> {
    let length = match prng.below(10) {
        0 => prng.below(400),
        1 => 40 + prng.below(10),
        _ => prng.below(12),
    };
    match prng.below(6) {
        0 => integer(prng).into_bytes(),
        1 => number(prng).into_bytes(),
        2 => (0..length).map(|_| prng.draw() as u8).collect(),
        3 => (0..length).map(|_| if prng.chance(1, 30) { 0x10 } else { 0 }).collect(),
        4 => (0..length).map(|_| if prng.chance(1, 30) { 0xFE } else { 0xFF }).collect(),
        _ => (0..length).map(|_| b'a' + prng.below(4) as u8).collect(),
    }
}

/// What was said last about the keys in question, and the two replies.
fn disagreement(seed: u64, said: &[Vec<Vec<u8>>], ours: &Frame, theirs: &Frame) -> String {
    let last = said.last().expect("something was said");
    let keys: Vec<&Vec<u8>> = last.iter().filter(|word| word.starts_with(b"key")).collect();
    let about = said.iter().filter(|line| line.iter().any(|word| keys.contains(&word)));
    let lines: Vec<String> = about.map(|line| words::join(line)).collect();
    let lines = lines[lines.len().saturating_sub(20)..].join("\n");
    format!("conversation {seed}, command {}:\n{lines}\n  ours   {ours}\n  theirs {theirs}", said.len())
}
