//! Random conversations in commands that the reference does not know, with a model in commands that it knows: what the
//! documentation of the newer ones says, written down a second time.
//!
//! The model speaks with the reference: it asks what is there, decides, and changes it. In between are commands that
//! both know, so that what the newer ones leave behind is compared, too. Of refusals only the fact is compared; their
//! words are in the stories.

use resp::Frame;
use stdx::Prng;

use crate::conversation::{conversation_count, without_newer};
use crate::local::Local;
use crate::reference::Reference;
use crate::syntax::{generate, parse};
use crate::words;

const COMMANDS_EACH: usize = 600;

type Words = Vec<Vec<u8>>;

/// What is said, and how often: commands in the syntax of their records, or a part of it.
const NEWER: &[&str] = &[
    "SET key value [IFEQ value | IFNE value] [GET] [EX seconds | KEEPTTL]",
    "DELEX key [IFEQ value | IFNE value]",
    "DELIFEQ key value",
    "MSETEX numkeys key value [key value ...] [NX | XX] [EX seconds | KEEPTTL]",
    "INCREX key [BYINT increment] [LBOUND bound] [UBOUND bound] [SATURATE] [EX seconds [ENX] | PERSIST]",
    "LMOVEM key key <LEFT | RIGHT> <LEFT | RIGHT> [<COUNT count | EXACTLY count> <OBO | BULK>]",
    "SUNIONCARD numkeys key [key ...] [APPROX] [LIMIT count]",
    "SDIFFCARD numkeys key [key ...] [LIMIT count]",
    "ZUNIONSTORE key numkeys key key WEIGHTS weight weight AGGREGATE COUNT",
    "ZINTERSTORE key numkeys key key AGGREGATE COUNT",
    "ZRANK key member WITHSCORE",
    "ZREVRANK key member WITHSCORE",
    "BITOP <DIFF | DIFF1 | ANDOR | ONE> key key [key ...]",
    "XDELEX stream [KEEPREF | DELREF | ACKED] IDS numids id [id ...]",
    "XACKDEL stream group [KEEPREF | DELREF | ACKED] IDS numids id [id ...]",
    "XTRIM stream MAXLEN length <DELREF | ACKED>",
    "XREADGROUP GROUP group consumer COUNT count CLAIM 0 STREAMS stream new",
];

const OLDER: &[&str] = &[
    "SET key value",
    "GET key",
    "TTL key",
    "DEL key",
    "RPUSH list value [value ...]",
    "LRANGE list 0 -1",
    "SADD set member [member ...]",
    "ZADD zset weight member",
    "ZRANGE key 0 -1 WITHSCORES",
    "TYPE key",
    "XADD stream * field value",
    "XADD stream * field value",
    "XADD stream * field value",
    "XRANGE stream - +",
    "XLEN stream",
    "XGROUP CREATE stream group 0 MKSTREAM",
    "XREADGROUP GROUP group consumer COUNT count STREAMS stream new",
    "XREADGROUP GROUP group consumer COUNT count STREAMS stream new",
    "XACK stream group id",
    "XPENDING stream group",
    "XINFO GROUPS stream",
];

fn pick(words: &[&str], prng: &mut Prng) -> Vec<u8> {
    words[prng.below(words.len() as u64) as usize].into()
}

fn value(placeholder: &str, prng: &mut Prng) -> Vec<u8> {
    match placeholder {
        // Mostly of the type that is wanted.
        "key" => pick(&["a", "b", "c", "l1", "l2", "s1", "s2", "z1", "z2"], prng),
        "list" => pick(&["l1", "l2", "a"], prng),
        "set" => pick(&["s1", "s2", "a"], prng),
        "zset" => pick(&["z1", "z2", "b"], prng),
        "stream" => pick(&["x1", "x1", "x1", "x2", "a"], prng),
        "group" => pick(&["g", "h"], prng),
        "consumer" => pick(&["alice", "bob"], prng),
        "new" => b">".to_vec(),
        "value" => pick(&["1", "2", "3", "text", "", "ab"], prng),
        "field" => b"f".to_vec(),
        "member" => pick(&["1", "2", "3", "m", "n"], prng),
        "increment" => pick(&["1", "-2", "3", "9223372036854775807", "-9223372036854775808"], prng),
        "bound" => pick(&["-3", "0", "2", "5"], prng),
        "weight" => pick(&["1", "2.5", "-1"], prng),
        "seconds" => pick(&["1000", "5000", "0"], prng),
        "count" => pick(&["1", "2", "3", "0"], prng),
        "length" => pick(&["0", "1", "2", "4"], prng),
        "numkeys" | "numids" => b"number".to_vec(),
        "id" => format!("{}-1", prng.below(400)).into_bytes(),
        other => panic!("no values are known for the placeholder {other}"),
    }
}

/// Puts the number of keys or ids where it belongs.
fn count(line: &mut [Vec<u8>]) {
    let name = line[0].to_ascii_uppercase();
    let Some(at) = line.iter().position(|word| word == b"number") else { return };
    let options: &[&[u8]] = &[b"nx", b"xx", b"ex", b"keepttl", b"approx", b"limit", b"weights", b"aggregate"];
    let behind = line[at + 1..].iter().take_while(|word| !options.contains(&word.to_ascii_lowercase().as_slice()));
    let number = behind.count() / if name == b"MSETEX" { 2 } else { 1 };
    line[at] = number.to_string().into_bytes();
}

fn lines(seed: u64) -> Vec<Words> {
    let mut prng = Prng::new(seed);
    let (newer, older): (Vec<_>, Vec<_>) =
        (NEWER.iter().map(|line| parse(line)).collect(), OLDER.iter().map(|line| parse(line)).collect());
    (0..COMMANDS_EACH)
        .map(|nth| {
            let syntaxes = if prng.chance(1, 2) { &newer } else { &older };
            let mut line = Words::new();
            let syntax = &syntaxes[prng.below(syntaxes.len() as u64) as usize];
            generate(syntax, &mut prng, &mut value, &mut line);
            count(&mut line);
            if line[0].eq_ignore_ascii_case(b"xadd") {
                line[2] = format!("{}-1", nth * 400 / COMMANDS_EACH).into_bytes();
            }
            line
        })
        .collect()
}

#[test]
fn conversations_in_newer_commands_agree_with_a_model() {
    let Some(mut reference) = Reference::start() else { return };
    let (mut refused, mut all) = (0, 0);
    for seed in 0..conversation_count() {
        reference.call(&["FLUSHALL"]);
        let mut local = Local::new();
        let said = lines(seed);
        for (nth, line) in said.iter().enumerate() {
            let ours = without_newer(&local.call(line));
            let theirs = without_newer(&Model(&mut reference).answer(line));
            (refused, all) = (refused + usize::from(ours.is_error()), all + 1);
            let is_same = ours == theirs || ours.is_error() && theirs.is_error();
            let lines: Vec<_> = said[..=nth].iter().rev().take(25).rev().map(|line| words::join(line)).collect();
            assert!(is_same, "conversation {seed}:\n{}\n  ours  {ours}\n  model {theirs}", lines.join("\n"));
        }
    }
    assert!(refused * 20 > all && refused * 2 < all, "{refused} of {all} commands were refused");
}

struct Model<'r>(&'r mut Reference);

fn error() -> Frame {
    Frame::Error(b"ERR".to_vec())
}

fn text(frame: &Frame) -> String {
    String::from_utf8_lossy(frame.as_bytes().unwrap_or_default()).into_owned()
}

/// The two numbers of an id.
fn parts(id: &str) -> (u64, u64) {
    let (ms, seq) = id.split_once('-').expect("an id");
    (ms.parse().expect("milliseconds"), seq.parse().expect("a number"))
}

fn number(frame: &Frame) -> i64 {
    let Frame::Integer(number) = frame else { panic!("no number: {frame}") };
    *number
}

fn is(word: &[u8], keyword: &str) -> bool {
    word.eq_ignore_ascii_case(keyword.as_bytes())
}

/// The word behind a keyword.
fn behind<'l>(line: &'l [Vec<u8>], keyword: &str) -> Option<&'l [u8]> {
    let at = line.iter().position(|word| is(word, keyword))?;
    line.get(at + 1).map(Vec::as_slice)
}

fn has(line: &[Vec<u8>], keyword: &str) -> bool {
    line.iter().any(|word| is(word, keyword))
}

fn parsed(word: &[u8]) -> i64 {
    std::str::from_utf8(word).ok().and_then(|word| word.parse().ok()).expect("a number is drawn")
}

impl Model<'_> {
    fn call<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Frame {
        self.0.call(words)
    }

    fn list(&mut self, words: &[&[u8]]) -> Vec<Frame> {
        self.call(words).elements().map(<[Frame]>::to_vec).unwrap_or_default()
    }

    fn answer(&mut self, line: &[Vec<u8>]) -> Frame {
        match line[0].to_ascii_lowercase().as_slice() {
            b"set" if has(line, "ifeq") || has(line, "ifne") => self.set(line),
            b"delex" | b"delifeq" => self.delete(line),
            b"msetex" => self.set_several(line),
            b"increx" => self.increment(line),
            b"lmovem" => self.move_items(line),
            b"sunioncard" => self.cardinality(line, "SUNION"),
            b"sdiffcard" => self.cardinality(line, "SDIFF"),
            b"zunionstore" => self.count_members(line, true),
            b"zinterstore" => self.count_members(line, false),
            b"zrank" | b"zrevrank" => self.rank(line),
            b"bitop" => self.bits(line),
            b"xdelex" => self.delete_entries(line, 1, None),
            b"xackdel" => self.delete_entries(line, 2, Some(&line[2])),
            b"xtrim" => self.trim(line),
            b"xreadgroup" if has(line, "claim") => self.claim(line),
            b"xreadgroup" => {
                self.call(&["XGROUP".as_bytes(), b"CREATECONSUMER", &line[7], &line[2], &line[3]]);
                self.call(line)
            }
            _ => self.call(line),
        }
    }

    /// True if the string under a key is as it must be. An error if there is another type.
    fn holds(&mut self, key: &[u8], operand: &[u8], is_negative: bool) -> Result<bool, Frame> {
        match self.call(&[b"GET", key]) {
            Frame::Null => Ok(is_negative),
            Frame::Bulk(value) => Ok((value == operand) != is_negative),
            other => Err(other),
        }
    }

    fn set(&mut self, line: &[Vec<u8>]) -> Frame {
        let is_negative = has(line, "ifne");
        let operand = behind(line, if is_negative { "ifne" } else { "ifeq" }).expect("it is there");
        if behind(line, "ex") == Some(b"0") {
            return error();
        }
        let holds = match self.holds(&line[1], operand, is_negative) {
            Ok(holds) => holds,
            Err(refusal) => return refusal,
        };
        let old = self.call(&[b"GET", line[1].as_slice()]);
        let at = line.iter().position(|word| is(word, "ifeq") || is(word, "ifne")).expect("it is there");
        let plain: Words = [&line[..at], &line[at + 2..]].concat();
        match (holds, has(line, "get")) {
            (true, _) => self.call(&plain),
            (false, true) => old,
            (false, false) => Frame::Null,
        }
    }

    fn delete(&mut self, line: &[Vec<u8>]) -> Frame {
        let held = match line.len() {
            2 => Ok(true),
            3 => self.holds(&line[1], &line[2], false),
            _ => self.holds(&line[1], &line[3], is(&line[2], "ifne")),
        };
        match held {
            Ok(true) => self.call(&[b"DEL", line[1].as_slice()]),
            Ok(false) => Frame::Integer(0),
            Err(refusal) => refusal,
        }
    }

    fn set_several(&mut self, line: &[Vec<u8>]) -> Frame {
        let count = parsed(&line[1]) as usize;
        let (pairs, options) = line[2..].split_at(2 * count);
        if behind(options, "ex") == Some(b"0") {
            return error();
        }
        let keys: Vec<&[u8]> = pairs.iter().step_by(2).map(Vec::as_slice).collect();
        let exists: Vec<bool> = keys.iter().map(|key| self.call(&[b"EXISTS", *key]) == Frame::Integer(1)).collect();
        if has(options, "nx") && exists.contains(&true) || has(options, "xx") && exists.contains(&false) {
            return Frame::Integer(0);
        }
        let lifetime: Words = options.iter().filter(|word| !is(word, "nx") && !is(word, "xx")).cloned().collect();
        for pair in pairs.chunks(2) {
            self.call(&[&[b"SET".to_vec()], pair, &lifetime].concat());
        }
        Frame::Integer(1)
    }

    fn increment(&mut self, line: &[Vec<u8>]) -> Frame {
        let key = line[1].as_slice();
        let bound = |keyword, unsaid: i64| behind(line, keyword).map_or(unsaid, parsed);
        let (lower, upper) = (bound("lbound", i64::MIN), bound("ubound", i64::MAX));
        if lower > upper || behind(line, "ex") == Some(b"0") {
            return error();
        }
        let old: i64 = match self.call(&[b"GET", key]) {
            Frame::Null => 0,
            Frame::Bulk(value) => match String::from_utf8_lossy(&value).parse() {
                Ok(number) => number,
                Err(_) => return error(),
            },
            other => return other,
        };
        let wanted = i128::from(old) + i128::from(bound("byint", 1));
        let new = wanted.clamp(lower.into(), upper.into());
        if new != wanted && !has(line, "saturate") {
            return Frame::Array(vec![Frame::Integer(old), Frame::Integer(0)]);
        }
        let Ok(added) = i64::try_from(new - i128::from(old)) else { return error() };
        let ends = number(&self.call(&[b"TTL", key])) >= 0;
        self.call(&[b"SET", key, new.to_string().as_bytes(), b"KEEPTTL"]);
        match behind(line, "ex") {
            Some(seconds) if !(ends && has(line, "enx")) => drop(self.call(&[b"EXPIRE", key, seconds])),
            None if has(line, "persist") => drop(self.call(&[b"PERSIST", key])),
            _ => {}
        }
        Frame::Array(vec![Frame::Integer(new as i64), Frame::Integer(added)])
    }

    fn move_items(&mut self, line: &[Vec<u8>]) -> Frame {
        let (source, destination) = (line[1].as_slice(), line[2].as_slice());
        let count = line.get(6).map_or(1, |word| parsed(word));
        let is_exact = has(line, "exactly");
        if count == 0 {
            return error();
        }
        let len = match self.call(&[b"LLEN", source]) {
            Frame::Integer(len) => len,
            refusal => return refusal,
        };
        if len == 0 || is_exact && len < count {
            return Frame::Null;
        }
        if let refusal @ Frame::Error(_) = self.call(&[b"LLEN", destination]) {
            return refusal;
        }
        let moves = count.min(len);
        if has(line, "bulk") {
            // One by one to the other end of a list of their own, and from there in their order.
            let (first, back) = if is(&line[3], "left") { ("LEFT", "RIGHT") } else { ("RIGHT", "LEFT") };
            for _ in 0..moves {
                self.call(&["LMOVE".as_bytes(), source, b"batch", first.as_bytes(), back.as_bytes()]);
            }
            let items = self.call(&["LRANGE", "batch", "0", "-1"]);
            let (from, to) = if is(&line[4], "left") { ("RIGHT", "LEFT") } else { ("LEFT", "RIGHT") };
            for _ in 0..moves {
                self.call(&["LMOVE".as_bytes(), b"batch", destination, from.as_bytes(), to.as_bytes()]);
            }
            return items;
        }
        let mut items = Vec::new();
        if source == destination && line[3].eq_ignore_ascii_case(&line[4]) {
            // All are taken before the first is put back.
            let (pop, push) = if is(&line[3], "left") { ("LPOP", "LPUSH") } else { ("RPOP", "RPUSH") };
            items = self.list(&[pop.as_bytes(), source, moves.to_string().as_bytes()]);
            let texts = items.iter().map(|item| item.as_bytes().unwrap_or_default().to_vec());
            self.call(&[vec![push.as_bytes().to_vec(), source.to_vec()], texts.collect()].concat());
        }
        while items.len() < moves as usize {
            items.push(self.call(&["LMOVE".as_bytes(), source, destination, &line[3], &line[4]]));
        }
        if is(&line[4], "left") {
            items.reverse();
        }
        Frame::Array(items)
    }

    fn cardinality(&mut self, line: &[Vec<u8>], command: &str) -> Frame {
        let keys = &line[2..2 + parsed(&line[1]) as usize];
        let limit = behind(line, "limit").map_or(0, parsed);
        match self.call(&[&[command.as_bytes().to_vec()], keys].concat()) {
            Frame::Array(members) => {
                let count = members.len() as i64;
                Frame::Integer(if limit == 0 { count } else { count.min(limit) })
            }
            refusal => refusal,
        }
    }

    /// The members of a set or of a sorted set.
    fn members(&mut self, key: &[u8]) -> Result<Vec<Vec<u8>>, Frame> {
        let kind = text(&self.call(&[b"TYPE", key]));
        let words: &[&[u8]] = match kind.as_str() {
            "set" => &[b"SMEMBERS", key],
            "zset" => &[b"ZRANGE", key, b"0", b"-1"],
            "none" => return Ok(Vec::new()),
            _ => return Err(error()),
        };
        Ok(self.list(words).iter().map(|member| member.as_bytes().unwrap_or_default().to_vec()).collect())
    }

    fn count_members(&mut self, line: &[Vec<u8>], is_union: bool) -> Frame {
        let weights = line.iter().position(|word| is(word, "weights"));
        let mut scores = std::collections::BTreeMap::<Vec<u8>, (f64, usize)>::new();
        for (nth, key) in line[3..5].iter().enumerate() {
            let weight = weights.map_or("1".into(), |at| String::from_utf8_lossy(&line[at + 1 + nth]));
            let members = match self.members(key) {
                Ok(members) => members,
                Err(refusal) => return refusal,
            };
            for member in members {
                let (score, count) = scores.entry(member).or_default();
                *score += weight.parse::<f64>().expect("a weight is drawn");
                *count += 1;
            }
        }
        scores.retain(|_, (_, count)| is_union || *count == 2);
        self.call(&[b"DEL", line[1].as_slice()]);
        for (member, (score, _)) in &scores {
            self.call(&[b"ZADD", line[1].as_slice(), score.to_string().as_bytes(), member]);
        }
        Frame::Integer(scores.len() as i64)
    }

    fn rank(&mut self, line: &[Vec<u8>]) -> Frame {
        match self.call(&line[..3]) {
            rank @ Frame::Integer(_) => Frame::Array(vec![rank, self.call(&[b"ZSCORE", line[1].as_slice(), &line[2]])]),
            other => other,
        }
    }

    fn bits(&mut self, line: &[Vec<u8>]) -> Frame {
        let mut sources = Vec::new();
        if line.len() == 4 && !is(&line[1], "one") {
            return error();
        }
        for key in &line[3..] {
            match self.call(&[b"GET", key.as_slice()]) {
                Frame::Null => sources.push(Vec::new()),
                Frame::Bulk(value) => sources.push(value),
                refusal => return refusal,
            }
        }
        let length = sources.iter().map(Vec::len).max().unwrap_or(0);
        let bit = |place: usize, bit: usize| {
            let has = |source: &Vec<u8>| source.get(place).is_some_and(|byte| byte >> bit & 1 == 1);
            let (first, others) = (has(&sources[0]), sources[1..].iter().filter(|source| has(source)).count());
            match line[1].to_ascii_lowercase().as_slice() {
                b"diff" => first && others == 0,
                b"diff1" => !first && others > 0,
                b"andor" => first && others > 0,
                _ => usize::from(first) + others == 1,
            }
        };
        let byte = |place| (0..8).fold(0u8, |byte, nth| byte | u8::from(bit(place, nth)) << nth);
        let result: Vec<u8> = (0..length).map(byte).collect();
        self.call(&[b"DEL", line[2].as_slice()]);
        if !result.is_empty() {
            // As bits, which are kept as text even if they spell a number.
            self.call(&[b"SETRANGE", line[2].as_slice(), b"0", &result]);
        }
        Frame::Integer(length as i64)
    }

    /// The groups of a stream, and the last id that each has read.
    fn groups(&mut self, stream: &[u8]) -> Vec<(Vec<u8>, (u64, u64))> {
        let groups = self.list(&[b"XINFO", b"GROUPS", stream]);
        let fact = |group: &Frame, at: usize| group.elements().expect("facts")[at].clone();
        let name = |group: &Frame| fact(group, 1).as_bytes().unwrap_or_default().to_vec();
        groups.iter().map(|group| (name(group), parts(&text(&fact(group, 7))))).collect()
    }

    fn is_pending(&mut self, stream: &[u8], group: &[u8], id: &[u8]) -> bool {
        !self.list(&[b"XPENDING", stream, group, id, id, b"1"]).is_empty()
    }

    /// What becomes of one entry: deleted, still referred to, or unknown.
    fn delete_entry(&mut self, stream: &[u8], id: &[u8], line: &[Vec<u8>]) -> i64 {
        let entry = parts(&String::from_utf8_lossy(id));
        for (group, last) in self.groups(stream) {
            if has(line, "acked") && (last < entry || self.is_pending(stream, &group, id)) {
                return 2;
            }
            if has(line, "delref") {
                self.call(&[b"XACK", stream, &group, id]);
            }
        }
        if self.call(&[b"XDEL", stream, id]) == Frame::Integer(1) { 1 } else { -1 }
    }

    fn delete_entries(&mut self, line: &[Vec<u8>], from: usize, group: Option<&Vec<u8>>) -> Frame {
        let stream = line[1].as_slice();
        if let refusal @ Frame::Error(_) = self.call(&[b"XLEN", stream]) {
            return refusal;
        }
        let at = from + line[from..].iter().position(|word| is(word, "ids")).expect("ids are said");
        let mut outcomes = Vec::new();
        for id in &line[at + 2..] {
            let outcome = match group {
                None => self.delete_entry(stream, id, line),
                Some(group) if self.call(&[b"XACK", stream, group, id]) == Frame::Integer(1) => {
                    self.delete_entry(stream, id, line).abs()
                }
                Some(_) => -1,
            };
            outcomes.push(Frame::Integer(outcome));
        }
        Frame::Array(outcomes)
    }

    fn trim(&mut self, line: &[Vec<u8>]) -> Frame {
        let stream = line[1].as_slice();
        let mut left = match self.call(&[b"XLEN", stream]) {
            Frame::Integer(len) => len,
            refusal => return refusal,
        };
        let keep = parsed(&line[3]);
        let groups = self.groups(stream);
        let entries = self.list(&[b"XRANGE", stream, b"-", b"+"]);
        if has(line, "delref") || groups.is_empty() {
            for entry in entries.iter().take((left - keep).max(0) as usize) {
                let id = text(&entry.elements().expect("an id and fields")[0]).into_bytes();
                for (group, _) in &groups {
                    self.call(&[b"XACK", stream, group, &id]);
                }
            }
            return self.call(&[b"XTRIM", stream, b"MAXLEN", &line[3]]);
        }
        let mut gone = 0;
        for entry in entries {
            let id = text(&entry.elements().expect("an id and fields")[0]).into_bytes();
            if left > keep && self.delete_entry(stream, &id, line) == 1 {
                (left, gone) = (left - 1, gone + 1);
            }
        }
        Frame::Integer(gone)
    }

    fn claim(&mut self, line: &[Vec<u8>]) -> Frame {
        let (group, consumer, stream) = (line[2].as_slice(), line[3].as_slice(), line[9].as_slice());
        let count = match parsed(&line[5]) {
            0 => i64::MAX,
            count => count,
        };
        if self.call(&[b"XGROUP", b"CREATECONSUMER".as_slice(), stream, group, consumer]).is_error() {
            return error();
        }
        let mut entries = Vec::new();
        for pending in self.list(&[b"XPENDING", stream, group, b"-", b"+", b"1000"]) {
            let facts = pending.elements().expect("four facts").to_vec();
            let id = facts[0].as_bytes().unwrap_or_default().to_vec();
            let found = self.list(&[b"XRANGE", stream, &id, &id]);
            if let [entry] = &found[..]
                && (entries.len() as i64) < count
            {
                self.call(&[b"XCLAIM", stream, group, consumer, b"0", &id]);
                let mut parts = entry.elements().expect("an id and fields").to_vec();
                // At whatever time it is: here all is done at one moment.
                parts.extend([Frame::Integer(0), facts[3].clone()]);
                entries.push(Frame::Array(parts));
            }
        }
        let left = (count - entries.len() as i64).to_string();
        if left != "0" {
            let new = self.list(&[
                b"XREADGROUP",
                b"GROUP",
                group,
                consumer,
                b"COUNT",
                left.as_bytes(),
                b"STREAMS",
                stream,
                b">",
            ]);
            for entry in new.iter().flat_map(|of_stream| of_stream.elements().expect("a key and entries")[1].elements())
            {
                entries.extend(entry.iter().map(|entry| {
                    let parts = entry.elements().expect("an id and fields");
                    Frame::Array([parts, &[Frame::Integer(0), Frame::Integer(0)]].concat())
                }));
            }
        }
        if entries.is_empty() {
            return Frame::Null;
        }
        Frame::Array(vec![Frame::Array(vec![Frame::Bulk(stream.to_vec()), Frame::Array(entries)])])
    }
}
