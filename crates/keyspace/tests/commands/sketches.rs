//! Sketches answer what RedisBloom answers, where there is one to ask: `HOLDFAST_REDISBLOOM` is the path of a module
//! that a Redis 7.0 can load.

use resp::Frame;
use stdx::Prng;

use crate::local::Local;
use crate::reference::Reference;
use crate::words::join;

/// Conversations that are held if nothing else is said.
const CONVERSATIONS: u64 = 200;
/// Lines of one.
const LINES: usize = 120;

type Line = Vec<String>;

fn line(words: &str) -> Line {
    words.split(' ').map(str::to_owned).collect()
}

fn told(frame: &Frame) -> String {
    frame.to_string()
}

fn items(prng: &mut Prng, most: u64) -> String {
    let count = 1 + prng.below(most);
    (0..count).map(|_| format!("item:{}", prng.below(400))).collect::<Vec<_>>().join(" ")
}

fn pick(prng: &mut Prng, words: &[&str]) -> String {
    words[prng.below(words.len() as u64) as usize].to_owned()
}

fn filter_line(prng: &mut Prng, key: &str) -> String {
    let some = items(prng, 6);
    let one = items(prng, 1);
    let error = pick(prng, &["0.01", "0.1", "0.0001", "0.9", "0", "x"]);
    let capacity = pick(prng, &["1", "10", "100", "300", "0"]);
    let option = pick(prng, &["", "", " NONSCALING", " EXPANSION 1", " EXPANSION 4", " EXPANSION 0", " EXPANSION"]);
    match prng.below(14) {
        0 => format!("BF.RESERVE {key} {error} {capacity}{option}"),
        1 => format!("BF.INSERT {key} CAPACITY {capacity} ERROR {error} ITEMS {some}"),
        2 => format!("BF.INSERT {key}{option} ITEMS {some}"),
        3 => format!("BF.INSERT {key} NOCREATE ITEMS {some}"),
        4 | 5 => format!("BF.ADD {key} {one}"),
        6..=8 => format!("BF.MADD {key} {some}"),
        9 => format!("BF.EXISTS {key} {one}"),
        10 => format!("BF.MEXISTS {key} {some}"),
        11 => format!("BF.INFO {key}"),
        12 => format!("BF.INFO {key} {}", pick(prng, &["CAPACITY", "SIZE", "filters", "ITEMS", "EXPANSION", "x"])),
        _ => format!("{} {key}", pick(prng, &["BF.CARD", "BF.CARD", "BF.INFO", "DEL"])),
    }
}

fn cuckoo_line(prng: &mut Prng, key: &str) -> String {
    let some = items(prng, 6);
    let one = items(prng, 1);
    let capacity = pick(prng, &["4", "16", "100", "300", "1", "x"]);
    let option = pick(prng, &["", "", " BUCKETSIZE 4", " EXPANSION 2", " EXPANSION 0", " MAXITERATIONS 3"]);
    match prng.below(14) {
        0 => format!("CF.RESERVE {key} {capacity}{option}"),
        1 => format!("CF.INSERT {key} CAPACITY 8 ITEMS {some}"),
        2 => format!("CF.INSERT {key} NOCREATE ITEMS {some}"),
        3 => format!("CF.INSERTNX {key} ITEMS {some}"),
        4 | 5 => format!("CF.ADD {key} {one}"),
        6 => format!("CF.ADDNX {key} {one}"),
        7 => format!("CF.EXISTS {key} {one}"),
        8 => format!("CF.MEXISTS {key} {some}"),
        9 => format!("CF.COUNT {key} {one}"),
        10 | 11 => format!("CF.DEL {key} {one}"),
        12 => format!("CF.COMPACT {key}"),
        _ => format!("{} {key}", pick(prng, &["CF.INFO", "CF.DEBUG", "CF.INFO", "DEL"])),
    }
}

fn count_min_line(prng: &mut Prng, key: &str) -> String {
    let (some, one) = (items(prng, 6), items(prng, 1));
    match prng.below(9) {
        0 => format!("CMS.INITBYDIM {key} {} {}", pick(prng, &["10", "50", "0"]), pick(prng, &["1", "3", "x"])),
        1 => format!("CMS.INITBYPROB {key} {} {}", pick(prng, &["0.1", "0.001", "1"]), pick(prng, &["0.01", "0.5"])),
        2..=4 => format!("CMS.INCRBY {key} {one} {}", pick(prng, &["1", "7", "4294967295", "-1", "x"])),
        5 => format!("CMS.QUERY {key} {some}"),
        6 => format!("CMS.MERGE {key} 2 m1 m2 WEIGHTS {} {}", pick(prng, &["1", "-1", "3"]), pick(prng, &["1", "2"])),
        7 => format!("CMS.MERGE {key} {} m1 m2", pick(prng, &["2", "1", "0", "x"])),
        _ => format!("{} {key}", pick(prng, &["CMS.INFO", "CMS.INFO", "CMS.INFO", "DEL"])),
    }
}

/// Lists so wide that items do not meet; where they do chance decides.
fn top_k_line(prng: &mut Prng, key: &str) -> String {
    let (some, one) = (items(prng, 4), items(prng, 1));
    match prng.below(9) {
        0 => format!("TOPK.RESERVE {key} {} 200000 3 {}", pick(prng, &["3", "10", "0"]), pick(prng, &["0.9", "2"])),
        1..=3 => format!("TOPK.ADD {key} {one}"),
        4 => format!("TOPK.INCRBY {key} {one} {}", pick(prng, &["1", "7", "100000"])),
        5 => format!("TOPK.QUERY {key} {some}"),
        6 => format!("TOPK.COUNT {key} {some}"),
        _ => format!("TOPK.INFO {key}"),
    }
}

/// RedisBloom changes a digest when it is asked about it, so values are added first and questions come then.
fn digest_lines(prng: &mut Prng) -> Vec<Line> {
    let mut lines = vec![line("FLUSHALL")];
    for key in ["d1", "d2"] {
        lines.push(line(&format!("TDIGEST.CREATE {key} COMPRESSION {}", pick(prng, &["20", "100", "500", "0", "x"]))));
        for _ in 0..prng.below(30) {
            let values: Vec<String> = (0..1 + prng.below(60))
                .map(|_| format!("{}", prng.below(1 << 40) as f64 / 1024.0 - 300_000_000.0))
                .collect();
            lines.push(line(&format!("TDIGEST.ADD {key} {}", values.join(" "))));
        }
    }
    let option = pick(prng, &["", " COMPRESSION 50", " OVERRIDE", " OVERRIDE COMPRESSION 70", " COMPRESSION", " x"]);
    lines.push(line(&format!("TDIGEST.MERGE {} 2 d1 d2{option}", pick(prng, &["d3", "d1"]))));
    for key in ["d1", "d2", "d3", "d4"] {
        for word in ["TDIGEST.MIN", "TDIGEST.MAX"] {
            lines.push(line(&format!("{word} {key}")));
        }
        lines.push(line(&format!("TDIGEST.QUANTILE {key} 0 0.1 0.5 0.9 0.3 0.99 1 0.25")));
        lines.push(line(&format!("TDIGEST.QUANTILE {key} 0 1.1")));
        lines.push(line(&format!("TDIGEST.BYRANK {key} 0 1 7 100 1000000")));
        lines.push(line(&format!("TDIGEST.BYREVRANK {key} 0 1 7 100 1000000")));
        for word in ["TDIGEST.CDF", "TDIGEST.RANK", "TDIGEST.REVRANK"] {
            let values: Vec<_> =
                (0..6).map(|_| format!("{}", prng.below(800_000_000) as f64 - 400_000_000.0)).collect();
            lines.push(line(&format!("{word} {key} {}", values.join(" "))));
        }
        lines.push(line(&format!("TDIGEST.TRIMMED_MEAN {key} {} 0.9", pick(prng, &["0", "0.1", "0.95", "2"]))));
    }
    lines
}

fn conversation(seed: u64) -> Vec<Line> {
    let mut prng = Prng::new(seed);
    if seed.is_multiple_of(5) {
        return digest_lines(&mut prng);
    }
    let speak = [filter_line, cuckoo_line, count_min_line, top_k_line][(seed % 5) as usize - 1];
    let keys = [["b1", "b2"], ["c1", "c2"], ["m1", "m2"], ["t1", "t2"]][(seed % 5) as usize - 1];
    let mut lines = vec![line("FLUSHALL"), line("SET s 1")];
    for _ in 0..LINES {
        let key = if prng.chance(1, 40) { "s" } else { keys[prng.below(2) as usize] };
        lines.push(line(&speak(&mut prng, key)));
    }
    lines
}

/// Clients match these texts. As in RedisBloom, some have no code.
#[test]
fn errors_about_sketches_have_the_texts_of_redisbloom() {
    let mut local = Local::new();
    for (request, reply) in [
        ("CMS.QUERY m x", "CMS: key does not exist"),
        ("CMS.INITBYDIM m 0 1", "CMS: invalid width"),
        ("CMS.INITBYPROB m 0.1 2", "CMS: invalid prob value"),
        ("TOPK.ADD t x", "TopK: key does not exist"),
        ("TOPK.RESERVE t 0", "TopK: invalid k"),
        ("BF.INFO b", "ERR not found"),
        ("BF.RESERVE b x 1", "ERR bad error rate"),
        ("BF.RESERVE b 0.1 10 NONSCALING EXPANSION 2", "Nonscaling filters cannot expand"),
        ("BF.INSERT b CAPACITY x ITEMS a", "Bad capacity"),
        ("BF.LOADCHUNK b x y", "ERR Second argument must be numeric"),
        ("CF.RESERVE c x", "Bad capacity"),
        ("CF.RESERVE c 10 BUCKETSIZE x", "Couldn't parse BUCKETSIZE"),
        ("CF.DEL c a", "Not found"),
        ("CF.LOADCHUNK c 1 y", "Invalid header"),
        ("TDIGEST.ADD d 1", "ERR T-Digest: key does not exist"),
    ] {
        assert_eq!(told(&local.call(&line(request))), format!("(error) {reply}"), "{request}");
    }
}

#[test]
fn conversations_about_sketches_agree_with_redisbloom() {
    let Some(module) = std::env::var_os("HOLDFAST_REDISBLOOM") else {
        eprintln!("passed over: HOLDFAST_REDISBLOOM names no module to compare with");
        return;
    };
    let Some(mut reference) = Reference::start() else { return };
    let loaded = reference.call(&["MODULE", "LOAD", &module.to_string_lossy()]);
    assert_eq!(told(&loaded), "OK");
    let count = std::env::var_os("CONVERSATIONS").and_then(|count| count.to_str()?.parse().ok());
    let mut commands = 0;
    for seed in 1..=count.unwrap_or(CONVERSATIONS) {
        let mut local = Local::new();
        let lines = conversation(seed);
        for (nth, line) in lines.iter().enumerate() {
            let (ours, theirs) = (local.call(line), reference.call(line));
            let said: Vec<_> = lines[..=nth].iter().map(|line| join(line)).collect();
            assert_eq!(told(&ours), told(&theirs), "seed {seed}:\n{}", said.join("\n"));
        }
        commands += lines.len();
        exchange_dumps(seed, &mut local, &mut reference);
    }
    println!("{commands} commands in agreement");
}

/// What one has dumped the other restores, and answers alike.
fn exchange_dumps(seed: u64, local: &mut Local, reference: &mut Reference) {
    for key in ["b1", "c1", "m1", "t1", "d2"] {
        let ours = local.call(&["DUMP", key]);
        let Some(bytes) = ours.as_bytes().map(<[u8]>::to_vec) else { continue };
        let theirs = reference.call(&["DUMP", key]).as_bytes().expect("both have it").to_vec();
        let restore = |dump: &[u8]| [b"RESTORE".to_vec(), b"copy".to_vec(), b"0".to_vec(), dump.to_vec()];
        assert_eq!(told(&reference.call(&restore(&bytes))), "OK", "seed {seed}, {key}");
        assert_eq!(told(&local.call(&restore(&theirs))), "OK", "seed {seed}, {key}");
        let mut questions = vec![line("TYPE copy")];
        let some: Vec<_> = (0..400).map(|number| format!("item:{number}")).collect();
        let (some, name) = (some.join(" "), key.as_bytes()[0]);
        let texts = match name {
            b'b' => vec!["BF.INFO copy".to_owned(), format!("BF.MEXISTS copy {some}"), format!("BF.MADD copy {some}")],
            // More at once and RedisBloom makes more layers than it then works with.
            b'c' => vec!["CF.INFO copy".to_owned(), format!("CF.MEXISTS copy {some}"), "CF.ADD copy new".to_owned()],
            b'm' => vec!["CMS.INFO copy".to_owned(), format!("CMS.QUERY copy {some}")],
            b't' => {
                vec!["TOPK.INFO copy".to_owned(), format!("TOPK.COUNT copy {some}"), format!("TOPK.ADD copy {some}")]
            }
            _ => vec!["TDIGEST.INFO copy".to_owned(), "TDIGEST.QUANTILE copy 0.1 0.5 0.99".to_owned()],
        };
        questions.extend(texts.iter().map(|text| line(text)));
        questions.push(line("DEL copy"));
        for question in &questions {
            let (ours, theirs) = (local.call(question), reference.call(question));
            assert_eq!(told(&ours), told(&theirs), "seed {seed}, {key}: {}", join(question));
        }
    }
}
