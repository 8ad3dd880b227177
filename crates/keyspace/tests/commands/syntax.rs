//! The syntax in each record is the truth: its arity follows from it, and whatever it allows is accepted.
//!
//! The notation is that of the Redis reference: lower-case words stand for values, others for themselves; `[…]` may be
//! left out, of `<A | B>` and `[A | B]` one is chosen, `…` written as three dots before a closing bracket lets what is
//! inside stand several times.

use keyspace::{Body, COMMANDS, DataCommand};
use stdx::Prng;

use crate::local::Local;
use crate::words;

/// One piece of a syntax.
#[derive(Debug)]
pub enum Piece {
    /// Stands for itself.
    Token(String),
    /// Stands for a value; this is its name.
    Value(String),
    /// One of several sequences.
    Choice { alternatives: Vec<Vec<Self>>, optional: bool, repeated: bool },
}

pub fn parse(syntax: &str) -> Vec<Piece> {
    let spaced = ["[", "]", "<", ">", "|"]
        .iter()
        .fold(syntax.to_string(), |text, mark| text.replace(mark, &format!(" {mark} ")));
    let marks: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = marks.as_slice();
    let (mut alternatives, repeated) = parse_alternatives(&mut rest);
    assert!(rest.is_empty() && alternatives.len() == 1 && !repeated, "the syntax is a sequence: {syntax}");
    alternatives.remove(0)
}

/// Reads up to a closing bracket or the end: what stands between the bars, and whether it may stand several times.
fn parse_alternatives(rest: &mut &[&str]) -> (Vec<Vec<Piece>>, bool) {
    let (mut alternatives, mut repeated) = (vec![Vec::new()], false);
    while let [mark, behind @ ..] = *rest {
        if matches!(*mark, "]" | ">") {
            break;
        }
        *rest = behind;
        let piece = match *mark {
            "|" => {
                alternatives.push(Vec::new());
                continue;
            }
            "..." => {
                repeated = true;
                continue;
            }
            "[" | "<" => {
                let (alternatives, repeated) = parse_alternatives(rest);
                let [_, behind @ ..] = *rest else { panic!("a bracket is not closed") };
                *rest = behind;
                Piece::Choice { alternatives, optional: *mark == "[", repeated }
            }
            word if word.chars().any(char::is_lowercase) => Piece::Value(word.into()),
            word => Piece::Token(word.into()),
        };
        alternatives.last_mut().expect("never empty").push(piece);
    }
    (alternatives, repeated)
}

/// The least number of words, and whether there may be more.
fn extent(pieces: &[Piece]) -> (usize, bool) {
    pieces.iter().fold((0, false), |(least, open), piece| match piece {
        Piece::Token(_) | Piece::Value(_) => (least + 1, open),
        Piece::Choice { optional: true, .. } => (least, true),
        Piece::Choice { alternatives, repeated, .. } => {
            let extents = || alternatives.iter().map(|pieces| extent(pieces));
            let shortest = extents().map(|(least, _)| least).min().expect("a choice of something");
            let differs = extents().any(|(least, open)| open || least != shortest);
            (least + shortest, open || *repeated || differs)
        }
    })
}

/// Appends one of the sequences that a syntax allows. `value` makes up what a placeholder stands for.
pub fn generate(
    pieces: &[Piece],
    prng: &mut Prng,
    value: &mut impl FnMut(&str, &mut Prng) -> Vec<u8>,
    out: &mut Vec<Vec<u8>>,
) {
    for piece in pieces {
        match piece {
            Piece::Token(word) if prng.chance(1, 2) => out.push(word.to_lowercase().into_bytes()),
            Piece::Token(word) => out.push(word.clone().into_bytes()),
            Piece::Value(name) => out.push(value(name, prng)),
            Piece::Choice { alternatives, optional, repeated } => {
                let least = u64::from(!optional);
                let most = if *repeated { 3 } else { 1 };
                for _ in 0..least + prng.below(most - least + 1) {
                    generate(&alternatives[prng.below(alternatives.len() as u64) as usize], prng, value, out);
                }
            }
        }
    }
}

/// A plausible value for a placeholder of this name.
fn value(name: &str, prng: &mut Prng) -> Vec<u8> {
    let number = prng.below(200);
    match name {
        _ if name.contains("key") => format!("key{}", prng.below(4)),
        "encoding" if prng.chance(1, 2) => format!("i{}", 1 + prng.below(64)),
        "encoding" => format!("u{}", 1 + prng.below(63)),
        "offset" => number.to_string(),
        "count" => (1 + number).to_string(),
        "subcommand" => ["getreg", "decode", "encoding", "todense"][prng.below(4) as usize].into(),
        "value" if prng.chance(1, 2) => format!("text {number}"),
        // Zero, one and so on suit where a number, a bit, a count or a name is wanted.
        _ => prng.below(3).to_string(),
    }
    .into_bytes()
}

/// Puts the number of fields where it belongs: behind FIELDS, before the fields, or fields and values, to the end.
fn count_fields(line: &mut [Vec<u8>]) {
    let Some(at) = line.iter().position(|word| word.eq_ignore_ascii_case(b"fields")) else { return };
    let each = if line[0] == b"hsetex" { 2 } else { 1 };
    line[at + 1] = ((line.len() - at - 2) / each).to_string().into_bytes();
}

/// Puts the number of ids where it belongs: behind IDS, before the ids, to the end.
fn count_ids(line: &mut [Vec<u8>]) {
    if let Some(at) = line.iter().position(|word| word.eq_ignore_ascii_case(b"ids")) {
        line[at + 1] = (line.len() - at - 2).to_string().into_bytes();
    }
}

/// Puts the number of corners where it belongs: behind BYPOLYGON, before the corners.
fn count_vertices(line: &mut [Vec<u8>]) {
    let Some(at) = line.iter().position(|word| word.eq_ignore_ascii_case(b"bypolygon")) else { return };
    let is_number = |word: &&Vec<u8>| word.iter().all(u8::is_ascii_digit);
    let numbers = line[at + 2..].iter().take_while(is_number).count();
    line[at + 1] = (numbers / 2).to_string().into_bytes();
}

/// Calls `visit` with every command that does something, and the words that name it.
fn for_each_command(mut visit: impl FnMut(&'static DataCommand, Vec<&'static str>)) {
    for command in COMMANDS {
        if !matches!(command.body, Body::Container) {
            visit(command, vec![command.name]);
        }
        for subcommand in command.subcommands {
            visit(subcommand, vec![command.name, subcommand.name]);
        }
    }
}

#[test]
fn the_arity_follows_from_the_syntax() {
    for_each_command(|command, name| {
        let (least, open) = extent(&parse(command.syntax));
        let words = (least + name.len()) as i32;
        let expected = if open { -words } else { words };
        assert_eq!(command.arity, expected, "{}: {}", name.join(" "), command.syntax);
    });
}

#[test]
fn whatever_the_syntax_allows_is_no_syntax_error() {
    let mut prng = Prng::new(13);
    for_each_command(|command, name| {
        let syntax = parse(command.syntax);
        let mut local = Local::new();
        for _ in 0..300 {
            let mut line: Vec<Vec<u8>> = name.iter().map(|word| word.as_bytes().to_vec()).collect();
            generate(&syntax, &mut prng, &mut value, &mut line);
            count_fields(&mut line);
            count_ids(&mut line);
            count_vertices(&mut line);
            let reply = local.call(&line).to_string();
            // Where a comma follows, it tells which options do not go together; no syntax does.
            let refused = reply.ends_with("syntax error") || reply.contains("wrong number of arguments");
            assert!(!refused, "{} => {reply}", words::join(&line));
        }
    });
}

#[test]
fn one_word_too_many_or_too_few_is_refused() {
    for_each_command(|command, name| {
        let (least, open) = extent(&parse(command.syntax));
        let mut local = Local::new();
        let call = |words: usize, local: &mut Local| {
            let mut line: Vec<Vec<u8>> = name.iter().map(|word| word.as_bytes().to_vec()).collect();
            line.extend((0..words).map(|_| b"1".to_vec()));
            local.call(&line).to_string()
        };
        if least > 0 {
            let reply = call(least - 1, &mut local);
            assert!(reply.contains("wrong number of arguments for"), "{} => {reply}", name.join(" "));
        }
        if !open {
            let reply = call(least + 1, &mut local);
            assert!(reply.contains("wrong number of arguments for"), "{} => {reply}", name.join(" "));
        }
    });
}
