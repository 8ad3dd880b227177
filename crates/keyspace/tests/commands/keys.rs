//! Long random conversations about keys: a keyspace and a reference Redis hear the same and must say the same.
//!
//! Times are in the far future or the past and all different, so that the moments at which the two run a command, which
//! differ by the time that a message takes, decide nothing.

use std::collections::BTreeSet;

use resp::Frame;
use stdx::Prng;

use crate::local::Local;
use crate::reference::Reference;
use crate::words;

const KEYS: &[&[u8]] = &[b"a", b"b", b"c", b"{a}b", b"key:1", b"key:22", b"", b"[x]", b"\xFF\x80", b"K\\"];

const PATTERNS: &[&[u8]] = &[
    b"*",
    b"**",
    b"?",
    b"*?",
    b"[a-c]",
    b"[^a]*",
    b"[c-a]",
    b"key:*",
    b"*2",
    b"k*:?*",
    b"\\[x\\]",
    b"[[]*",
    b"\xFF*",
    b"[\x80-\xFF]*",
    b"[a-\xFF]*",
    b"*\\",
    b"K\\\\",
    b"[a",
    b"",
    b"*[^]",
];

/// None that is a time in the near future.
const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "",
    "x",
    "1.5",
    "007",
    " 1",
    "2147483647",
    "2147483648",
    "-2147483649",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "9223372036854776",
    "-9223372036854776",
];

/// Words that turn a valid command into a wrong one, or into another.
const JUNK: &[&str] =
    &["nx", "XX", "gt", "LT", "DB", "replace", "ABSTTL", "FREQ", "count", "store", "by", "get", "limit"];

const SEEDS: u64 = 3;
const TURNS: usize = 8_000;

/// How close two replies to the same question must be.
enum Likeness {
    Equal,
    /// Lists in any order.
    AnyOrder,
    /// Numbers at most so far apart.
    Near(i64),
    /// Both null, or neither: chance decides.
    SameKind,
}

struct Pair {
    local: Local,
    reference: Reference,
    prng: Prng,
    said: Vec<String>,
    /// Dumps seen so far, to restore from.
    dumps: Vec<Vec<u8>>,
    /// Compressed dumps, and those among them that did not have the same bytes.
    compressed: usize,
    unlike: usize,
}

type Words = Vec<Vec<u8>>;

macro_rules! words {
    ($($word:expr),* $(,)?) => { vec![$(AsRef::<[u8]>::as_ref(&$word).to_vec()),*] };
}

impl Pair {
    fn below(&mut self, bound: usize) -> usize {
        self.prng.below(bound as u64) as usize
    }

    fn pick<T: AsRef<[u8]> + ?Sized>(&mut self, choices: &[&T]) -> Vec<u8> {
        choices[self.below(choices.len())].as_ref().to_vec()
    }

    fn key(&mut self) -> Vec<u8> {
        self.pick(KEYS)
    }

    fn keys(&mut self) -> Words {
        (0..=self.below(3)).map(|_| self.key()).collect()
    }

    fn value(&mut self) -> Vec<u8> {
        match self.prng.below(6) {
            0 => self.pick(NUMBERS),
            1 => (self.prng.draw() as i64 >> self.prng.below(64)).to_string().into_bytes(),
            2 => vec![b'x'; self.below(60)],
            3 => (0..self.below(300)).map(|_| b"ab"[self.below(2)]).collect(),
            4 => (0..self.below(60)).map(|_| self.prng.draw() as u8).collect(),
            _ => b"some words, and some words again".repeat(self.below(200)),
        }
    }

    /// A time to live, or a point in time if `absolute`, in the unit that has `per_second` to the second.
    fn time(&mut self, absolute: bool, per_second: i64) -> Vec<u8> {
        if self.prng.chance(1, 4) {
            return self.pick(NUMBERS);
        }
        let base = if absolute { self.local.now_ms / 1000 } else { 0 };
        let far = 1_000_000 + self.prng.below(1_000_000_000) as i64;
        let seconds = if self.prng.chance(1, 10) { -far } else { far };
        ((base + seconds) * per_second).to_string().into_bytes()
    }

    fn expire(&mut self) -> Words {
        let (name, absolute, per_second) =
            [("EXPIRE", false, 1), ("PEXPIRE", false, 1000), ("EXPIREAT", true, 1), ("PEXPIREAT", true, 1000)]
                [self.below(4)];
        let mut words = words![name, self.key(), self.time(absolute, per_second)];
        for _ in 0..self.below(3) {
            words.push(self.pick(&["NX", "xx", "GT", "lt"]));
        }
        words
    }

    fn restore(&mut self) -> Words {
        let nth = self.below(self.dumps.len() + 1);
        let mut dump = self.dumps.get(nth).cloned().unwrap_or_else(|| b"...".to_vec());
        if self.prng.chance(1, 10) {
            let at = self.below(dump.len());
            dump[at] ^= 1 << self.prng.below(8);
        }
        let absolute = self.prng.chance(1, 2);
        let time = if self.prng.chance(1, 2) { b"0".to_vec() } else { self.time(absolute, 1000) };
        let mut words = words!["RESTORE", self.key(), time, dump];
        if absolute {
            words.push(b"absttl".to_vec());
        }
        if self.prng.chance(2, 3) {
            words.push(b"REPLACE".to_vec());
        }
        if self.prng.chance(1, 4) {
            words.extend(words![self.pick(&["IDLETIME", "freq"]), self.pick(&["0", "100", "-1", "256", "x"])]);
        }
        words
    }

    fn copy(&mut self) -> Words {
        let mut words = words!["COPY", self.key(), self.key()];
        for _ in 0..self.below(3) {
            if self.prng.chance(1, 2) {
                words.push(b"REPLACE".to_vec());
            } else {
                words.extend(words!["db", self.database()]);
            }
        }
        words
    }

    fn sort(&mut self) -> Words {
        let mut words = words![self.pick(&["SORT", "SORT_RO"]), self.key()];
        for _ in 0..self.below(4) {
            words.extend(match self.below(6) {
                0 => words!["ASC"],
                1 => words!["ALPHA", "desc"],
                2 => words!["LIMIT", self.pick(NUMBERS), "10"],
                3 => words!["BY", self.pick(PATTERNS)],
                4 => words!["get", self.pick(PATTERNS)],
                _ => words!["STORE", self.key()],
            });
        }
        words
    }

    fn database(&mut self) -> Vec<u8> {
        if self.prng.chance(1, 10) { self.pick(NUMBERS) } else { self.pick(&["0", "1", "2", "16"]) }
    }

    fn question(&mut self) -> Words {
        match self.below(26) {
            0 | 1 => words!["SET", self.key(), self.value()],
            2 => words!["SET", self.key(), self.value(), "PX", self.time(false, 1000)],
            3 => words!["APPEND", self.key(), self.pick(&["1", "", "x"])],
            4 => words!["GET", self.key()],
            5 => [words![self.pick(&["DEL", "UNLINK"])], self.keys()].concat(),
            6 => [words![self.pick(&["EXISTS", "TOUCH"])], self.keys()].concat(),
            7 => words!["TYPE", self.key()],
            8 => words![self.pick(&["RENAME", "RENAMENX"]), self.key(), self.key()],
            9 => self.copy(),
            10 => words!["MOVE", self.key(), self.database()],
            11 | 12 => self.expire(),
            13 => words![self.pick(&["TTL", "EXPIRETIME"]), self.key()],
            14 => words![self.pick(&["PTTL", "PEXPIRETIME"]), self.key()],
            15 => words!["PERSIST", self.key()],
            16 => words!["KEYS", self.pick(PATTERNS)],
            17 => words!["RANDOMKEY"],
            18 => words!["DBSIZE"],
            19 => words!["OBJECT", self.pick(&["ENCODING", "REFCOUNT", "freq"]), self.key()],
            20 => words!["OBJECT", "IDLETIME", self.key()],
            21 | 22 => words!["DUMP", self.key()],
            23 => self.restore(),
            24 => self.sort(),
            _ => match self.below(6) {
                0 => words!["FLUSHDB", self.pick(&["SYNC", "async", "now"])],
                1 => words!["FLUSHALL"],
                2 => words!["SWAPDB", self.database(), self.database()],
                3 => words!["MEMORY", "USAGE", "no such key", "samples", self.pick(NUMBERS)],
                4 => words!["SCAN", self.pick(NUMBERS), "COUNT", self.pick(&["0", "-1", "x", "9999999"])],
                _ => words!["SCAN", "0", "match"],
            },
        }
    }

    /// Drops, doubles or replaces a word behind the name now and then.
    fn garble(&mut self, words: &mut Words) {
        if words.len() == 1 || words[0] == b"OBJECT" || !self.prng.chance(1, 12) {
            return;
        }
        let kept = if words[0] == b"MEMORY" { 3 } else { 1 };
        let at = kept + self.below(words.len() - kept);
        match self.below(4) {
            0 => drop(words.remove(at)),
            1 => words.insert(at, words[at].clone()),
            2 => words.push(self.pick(JUNK)),
            _ => words[at] = self.pick(NUMBERS),
        }
    }

    fn ask(&mut self, words: &Words) {
        self.local.now_ms = now_ms();
        let (ours, theirs) = (self.local.call(words), self.reference.call(words));
        let alike = match likeness(words) {
            // In the reference, a client that uses a small number uses it for all keys that hold it.
            Likeness::Near(_) if words[0] == b"OBJECT" && self.holds_shared_number(&words[2]) => true,
            _ if words[0] == b"DUMP" => self.dumps_are_alike(&ours, &theirs),
            Likeness::Equal => ours == theirs,
            Likeness::AnyOrder => match (ours.elements(), theirs.elements()) {
                (Some(ours), Some(theirs)) => sorted(ours) == sorted(theirs),
                _ => ours == theirs,
            },
            Likeness::Near(distance) => match (&ours, &theirs) {
                (Frame::Integer(ours), Frame::Integer(theirs)) => ours.abs_diff(*theirs) <= distance as u64,
                _ => ours == theirs,
            },
            Likeness::SameKind => match (&ours, &theirs) {
                (Frame::Bulk(_), Frame::Bulk(_)) | (Frame::Array(_), Frame::Array(_)) => true,
                _ => ours == theirs,
            },
        };
        self.said.push(words::join(words));
        let lately = self.said[self.said.len().saturating_sub(30)..].join("\n");
        assert!(alike, "{lately}\n  reference {theirs}\n  we        {ours}");
    }

    fn holds_shared_number(&mut self, key: &[u8]) -> bool {
        self.local.call(&[b"OBJECT".as_slice(), b"REFCOUNT", key]) != Frame::Integer(1)
    }

    /// Dumps have the same bytes, except that the reference's compressor now and then finds in its table, which it does
    /// not clear, a place from an earlier string; then both must stand for the same value.
    fn dumps_are_alike(&mut self, ours: &Frame, theirs: &Frame) -> bool {
        let (Frame::Bulk(our_bytes), Frame::Bulk(their_bytes)) = (ours, theirs) else { return ours == theirs };
        self.dumps.push(their_bytes.clone());
        const COMPRESSED: u8 = 0xC3;
        if their_bytes.get(1) != Some(&COMPRESSED) {
            return our_bytes == their_bytes;
        }
        self.compressed += 1;
        self.unlike += usize::from(our_bytes != their_bytes);
        let exchange = words!["RESTORE", "exchange", "0", our_bytes, "REPLACE"];
        self.reference.call(&exchange);
        let theirs = self.reference.call(&["GET", "exchange"]);
        self.reference.call(&["DEL", "exchange"]);
        let exchange = words!["RESTORE", "exchange", "0", their_bytes, "REPLACE"];
        self.local.call(&exchange);
        let ours = self.local.call(&["GET", "exchange"]);
        self.local.call(&["DEL", "exchange"]);
        ours == theirs
    }

    /// All keys of a database, by a full walk on either side.
    fn walk(&mut self) {
        let pattern = self.pick(PATTERNS);
        let count = self.pick(&["1", "3", "100"]);
        let type_name = self.pick(&["string", "STRING", "list"]);
        let options = words!["MATCH", pattern, "COUNT", count, "TYPE", type_name];
        let ours = walked(&options, |words| self.local.call(words));
        let theirs = walked(&options, |words| self.reference.call(words));
        assert_eq!(ours, theirs, "SCAN 0 {}", words::join(&options));
    }

    fn select(&mut self, database: u16) {
        self.local.database = database;
        self.reference.call(&["SELECT", &database.to_string()]);
    }

    /// Every key, value and deadline in every database that the questions name.
    fn compare_all(&mut self) {
        for database in 0..3 {
            self.select(database);
            self.ask(&words!["KEYS", "*"]);
            for key in KEYS {
                self.ask(&words!["GET", key]);
                self.ask(&words!["PEXPIRETIME", key]);
                self.ask(&words!["OBJECT", "ENCODING", key]);
            }
        }
    }
}

fn likeness(words: &Words) -> Likeness {
    let name = String::from_utf8_lossy(&words[0]).to_uppercase();
    match name.as_str() {
        "TTL" | "EXPIRETIME" => Likeness::Near(2),
        "PTTL" | "PEXPIRETIME" => Likeness::Near(2_000),
        "OBJECT" if words[1] == b"IDLETIME" => Likeness::Near(2),
        "OBJECT" if words[1] == b"REFCOUNT" => Likeness::Near(0),
        "KEYS" => Likeness::AnyOrder,
        "RANDOMKEY" | "SCAN" => Likeness::SameKind,
        _ => Likeness::Equal,
    }
}

/// True of a RESTORE with a time to live or idle time that overflows in the reference. Its result there is arbitrary.
fn overflows(words: &Words) -> bool {
    let number = |word: &Vec<u8>| std::str::from_utf8(word).ok()?.parse::<i64>().ok();
    let any_above = |words: &[Vec<u8>], limit| words.iter().filter_map(number).any(|number| number > limit);
    words[0] == b"RESTORE" && (any_above(words, i64::MAX / 2) || any_above(words.get(4..).unwrap_or_default(), 1 << 24))
}

fn sorted(frames: &[Frame]) -> Vec<String> {
    let mut texts: Vec<String> = frames.iter().map(ToString::to_string).collect();
    texts.sort();
    texts
}

fn walked(options: &Words, mut call: impl FnMut(&Words) -> Frame) -> BTreeSet<Vec<u8>> {
    let mut found = BTreeSet::new();
    let mut cursor = b"0".to_vec();
    loop {
        let reply = call(&[words!["SCAN", cursor], options.clone()].concat());
        let Some([Frame::Bulk(next), keys]) = reply.elements() else { panic!("SCAN replied {reply}") };
        found.extend(keys.elements().expect("a list of keys").iter().filter_map(|key| key.as_bytes()).map(Vec::from));
        cursor.clone_from(next);
        if cursor == b"0" {
            return found;
        }
    }
}

#[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "the reference lives in real time")]
fn now_ms() -> i64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since_epoch.expect("a clock after 1970").as_millis() as i64
}

#[test]
fn conversations_about_keys_agree() {
    for seed in 1..=SEEDS {
        let Some(reference) = Reference::start() else { return };
        let mut pair = Pair {
            local: Local::new(),
            reference,
            prng: Prng::new(seed),
            said: Vec::new(),
            dumps: Vec::new(),
            compressed: 0,
            unlike: 0,
        };
        for turn in 0..TURNS {
            if turn % 50 == 0 {
                let database = pair.below(3) as u16;
                pair.select(database);
                pair.walk();
            }
            if turn % 1_000 == 999 {
                pair.compare_all();
            }
            let mut words = pair.question();
            pair.garble(&mut words);
            if !overflows(&words) {
                pair.ask(&words);
            }
        }
        let Pair { compressed, unlike, .. } = pair;
        assert!(compressed > 30 && unlike * 20 <= compressed, "{unlike} of {compressed} dumps differ, seed {seed}");
    }
}
