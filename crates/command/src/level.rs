//! Which commands came with a level.
//!
//! What is logged is carried out by every replica, so a command that changes data and that the version before does not
//! know must not be logged while a node of that version may belong to the cluster. Such a command is named here, and is
//! refused as long as the level in force is lower: by the gateway that is asked, by scripts, and by the leader that
//! would log it. The same holds for a new form of an old command. In a cluster a gateway refuses such reads too: a
//! leader of the version before could not answer them.

use resp::Args;
use stdx::Level;

/// A command, or a form of one, that is new since level 1.
struct Newcomer {
    /// Lower-case name of the command.
    name: &'static str,
    /// True for words that make the new form of it; every form is new if there is none.
    is_new_form: Option<fn(Args<'_>) -> bool>,
    /// The level that brought it.
    level: Level,
}

/// All that are new since level 1. One line for each, such as
/// `Newcomer { name: "xnack", is_new_form: None, level: Level(2) }`.
const NEWCOMERS: &[Newcomer] = &[
    Newcomer { name: "clusterscan", is_new_form: None, level: Level(2) },
    Newcomer { name: "geosearchstore", is_new_form: Some(has_polygon), level: Level(2) },
    Newcomer { name: "restore", is_new_form: Some(restores_newer_value), level: Level(2) },
    Newcomer { name: "vadd", is_new_form: None, level: Level(2) },
    Newcomer { name: "vcard", is_new_form: None, level: Level(2) },
    Newcomer { name: "vdim", is_new_form: None, level: Level(2) },
    Newcomer { name: "vemb", is_new_form: None, level: Level(2) },
    Newcomer { name: "vgetattr", is_new_form: None, level: Level(2) },
    Newcomer { name: "vinfo", is_new_form: None, level: Level(2) },
    Newcomer { name: "vismember", is_new_form: None, level: Level(2) },
    Newcomer { name: "vlinks", is_new_form: None, level: Level(2) },
    Newcomer { name: "vrandmember", is_new_form: None, level: Level(2) },
    Newcomer { name: "vrange", is_new_form: None, level: Level(2) },
    Newcomer { name: "vrem", is_new_form: None, level: Level(2) },
    Newcomer { name: "vsetattr", is_new_form: None, level: Level(2) },
    Newcomer { name: "vsim", is_new_form: None, level: Level(2) },
    Newcomer { name: "xadd", is_new_form: Some(adds_once), level: Level(2) },
    Newcomer { name: "xcfgset", is_new_form: None, level: Level(2) },
    Newcomer { name: "xidmprecord", is_new_form: None, level: Level(2) },
    Newcomer { name: "xnack", is_new_form: None, level: Level(2) },
    Newcomer { name: "xread", is_new_form: Some(reads_last_or_so_much), level: Level(2) },
    Newcomer { name: "xreadgroup", is_new_form: Some(reads_last_or_so_much), level: Level(2) },
];

fn has_polygon(args: Args<'_>) -> bool {
    args.iter().any(|word| word.eq_ignore_ascii_case(b"bypolygon"))
}

/// What the dump of a vector set begins with: the kind of a module's value, and the type's id.
const VECTOR_SET: [u8; 10] = [7, 0x81, 0xBD, 0xE7, 0x2D, 0xA2, 0xBB, 0x1E, 0xB4, 0];

/// True for a vector set, and for a stream as Redis 8.6 and 8.8 dump it: the first byte of a dump is its kind.
fn restores_newer_value(args: Args<'_>) -> bool {
    args.get(3).is_some_and(|dump| matches!(dump.first(), Some(26 | 27)) || dump.starts_with(&VECTOR_SET))
}

/// True for XADD with IDMP or IDMPAUTO among its options: what stands behind the id is data.
fn adds_once(args: Args<'_>) -> bool {
    let options = args.iter().skip(2).take_while(|word| *word != b"*");
    let mut options = options.map(|word| word.to_ascii_lowercase());
    loop {
        match options.next().as_deref() {
            Some(b"idmp" | b"idmpauto") => return true,
            Some(b"nomkstream" | b"keepref" | b"delref" | b"acked") => {}
            Some(b"limit") => _ = options.next(),
            Some(b"maxlen" | b"minid") => {
                if matches!(options.next().as_deref(), Some(b"~" | b"=")) {
                    _ = options.next();
                }
            }
            _ => return false,
        }
    }
}

/// True for XREAD and XREADGROUP with MAXCOUNT or MAXSIZE among their options, or `+` among their ids. XREAD changes
/// nothing, but a script may go by what it answers.
fn reads_last_or_so_much(args: Args<'_>) -> bool {
    let mut words = args.iter().skip(1);
    while let Some(word) = words.next() {
        match word.to_ascii_lowercase().as_slice() {
            b"maxcount" | b"maxsize" => return true,
            b"streams" => break,
            b"group" => _ = words.nth(1),
            b"count" | b"block" | b"claim" => _ = words.next(),
            _ => {}
        }
    }
    let rest: Vec<&[u8]> = words.collect();
    rest[rest.len() / 2..].contains(&b"+".as_slice())
}

/// The level that brought a request in the form in which it is made.
pub fn level_of(name: &str, args: Args<'_>) -> Level {
    find(NEWCOMERS, name, args)
}

fn find(newcomers: &[Newcomer], name: &str, args: Args<'_>) -> Level {
    let is_it = |newcomer: &&Newcomer| newcomer.name == name && newcomer.is_new_form.is_none_or(|is_new| is_new(args));
    newcomers.iter().filter(is_it).map(|newcomer| newcomer.level).max().unwrap_or(Level::FIRST)
}

#[cfg(test)]
mod tests {
    use resp::Span;

    use super::*;

    fn spans_of(words: &str) -> Vec<Span> {
        let mut start = 0;
        let span_of = |word: &str| {
            let span = Span { start, end: start + word.len() as u32 };
            start = span.end + 1;
            span
        };
        words.split(' ').map(span_of).collect()
    }

    #[test]
    fn a_command_or_a_form_of_one_has_the_level_that_brought_it() {
        let newcomers = [
            Newcomer { name: "new", is_new_form: None, level: Level(2) },
            Newcomer { name: "old", is_new_form: Some(|args| args.len() > 3), level: Level(2) },
            Newcomer { name: "old", is_new_form: Some(|args| args.at(1) == b"later"), level: Level(3) },
        ];
        let level = |words: &str| {
            let spans = spans_of(words);
            let args = Args::new(words.as_bytes(), &spans);
            find(&newcomers, &words[..words.find(' ').expect("a key")], args).0
        };
        assert_eq!(level("new key"), 2);
        assert_eq!(level("old key value"), 1);
        assert_eq!(level("old key value more"), 2);
        assert_eq!(level("old later value more"), 3);
        assert_eq!(level("other key value more"), 1);
    }

    #[test]
    fn a_vector_set_that_is_restored_is_as_new_as_its_commands() {
        let level = |dump: &[u8]| {
            let (mut buffer, mut spans) = (Vec::new(), Vec::new());
            for word in [&b"restore"[..], b"k", b"0", dump] {
                let start = buffer.len() as u32;
                buffer.extend_from_slice(word);
                spans.push(Span { start, end: buffer.len() as u32 });
            }
            level_of("restore", Args::new(&buffer, &spans)).0
        };
        assert_eq!(level(&[&VECTOR_SET[..], &[2, 3]].concat()), 2);
        // The id of documents of JSON.
        assert_eq!(level(&[7, 0x81, 0x45, 0xE2, 0x74, 0xE3, 0x6F, 0x91, 0x2C, 3]), 1);
        assert_eq!(level_of("vsim", Args::new(b"", &[])).0, 2);
    }

    #[test]
    fn what_looks_like_a_new_form_is_told_from_one() {
        let is_new = |words: &str| {
            let spans = spans_of(words);
            let name = words.split(' ').next().unwrap_or_default();
            level_of(name, Args::new(words.as_bytes(), &spans)) == Level(2)
        };
        assert!(is_new("restore k 0 \u{1b}..."));
        assert!(is_new("restore k 0 \u{1a}..."));
        assert!(!is_new("restore k 0 \u{13}..."));
        assert!(is_new("xadd s IDMP p 1 * f v"));
        assert!(is_new("xadd s nomkstream maxlen ~ 5 limit 3 acked idmpauto p * f v"));
        assert!(is_new("xadd s minid 5 idmpauto p * f v"));
        assert!(!is_new("xadd s * idmp v"));
        assert!(!is_new("xadd s 5-* idmp v"));
        assert!(!is_new("xadd s maxlen = 5 * f idmp"));
        assert!(!is_new("xadd idmp 1-1 f v"));
        assert!(!is_new("xdel s 1-1"));
        assert!(is_new("xread streams s t 0 +"));
        assert!(is_new("xread count 1 maxcount 5 streams s 0"));
        assert!(is_new("xreadgroup group maxsize c noack MAXSIZE 5 streams s >"));
        assert!(!is_new("xreadgroup group maxsize maxcount count 5 streams maxsize >"));
        assert!(!is_new("xread count maxcount block maxsize streams + + 0 $"));
        assert!(!is_new("xread streams"));
    }
}
