//! Throws mutated bytes at whatever reads bytes.
//!
//! A test hands [`Fuzz`] a corpus of well-formed inputs and a function that reads one. The function may refuse an
//! input, and may not panic. It says what it made of the input as a number; an input of which it makes something new
//! joins the corpus, so that mutations pile up along the paths that lead deeper.
//!
//! An ordinary test does a fixed number of rounds from a fixed seed, so it is the same on every machine. `cargo xtask
//! fuzz` sets these:
//!
//! | variable | meaning |
//! |---|---|
//! | `HOLDFAST_FUZZ_SECONDS` | go on for so long instead |
//! | `HOLDFAST_FUZZ_SEED` | the seed |
//! | `HOLDFAST_FUZZ_INPUT` | read this file once, and nothing else |
//!
//! An input that makes the function panic is written to `target/fuzz`, and named with its seed and round.
//!
//! *Invariant:* the same seed and corpus give the same inputs, whatever time passes.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{env, fs};

use stdx::Prng;

/// Bytes of the longest input.
const INPUT_BYTES_MAX: usize = 64 << 10;

/// Inputs in the corpus.
const CORPUS_MAX: usize = 4_096;

/// Rounds between two looks at the clock.
const ROUNDS_PER_LOOK: u64 = 64;

/// Numbers at the edges of what fields can hold.
const EDGES: [u64; 16] = [
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x100,
    0x7FFF,
    0xFFFF,
    0x1_0000,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFF,
    0x1_0000_0000,
    0x7FFF_FFFF_FFFF_FFFF,
    0x8000_0000_0000_0000,
    0xFFFF_FFFF_FFFF_FFFF,
];

/// The same in digits, and what else may stand where digits are read.
const DIGITS: [&str; 12] = [
    "0",
    "-1",
    "1",
    "536870912",
    "2147483647",
    "2147483648",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551616",
    "00",
    "nan",
];

/// A target and what is thrown at it.
pub struct Fuzz<'a> {
    name: &'a str,
    corpus: Vec<Vec<u8>>,
    words: &'a [&'a [u8]],
    repair: Option<fn(&mut [u8])>,
    rounds: u64,
}

impl<'a> Fuzz<'a> {
    /// A target with this name, and inputs that it accepts.
    pub fn new(name: &'a str, corpus: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let corpus: Vec<_> = corpus.into_iter().collect();
        assert!(!corpus.is_empty(), "without one input there is nothing to mutate");
        Self { name, corpus, words: &[], repair: None, rounds: 20_000 }
    }

    /// Words that mean something to the target: they are put in now and then.
    #[must_use]
    pub fn words(self, words: &'a [&'a [u8]]) -> Self {
        Self { words, ..self }
    }

    /// What makes three of four mutated inputs pass as undamaged, such as a checksum put right.
    #[must_use]
    pub fn repair(self, repair: fn(&mut [u8])) -> Self {
        Self { repair: Some(repair), ..self }
    }

    /// Rounds of an ordinary test.
    #[must_use]
    pub fn rounds(self, rounds: u64) -> Self {
        Self { rounds, ..self }
    }

    /// Throws.
    ///
    /// # Panics
    /// As the target does, when the input has been written down.
    pub fn run(mut self, mut target: impl FnMut(&[u8]) -> u64) {
        if let Ok(path) = env::var("HOLDFAST_FUZZ_INPUT") {
            let input = fs::read(&path).unwrap_or_else(|cause| panic!("cannot read {path}: {cause}"));
            target(&input);
            return;
        }
        let seed = number("HOLDFAST_FUZZ_SEED").unwrap_or(1);
        let limit = number("HOLDFAST_FUZZ_SECONDS").map(Duration::from_secs);
        let started = Instant::now();
        let mut prng = Prng::new(seed);
        let mut seen = BTreeSet::new();
        let mut round = 0;
        for place in 0..self.corpus.len() {
            let input = self.corpus[place].clone();
            seen.insert(self.throw(&mut target, &input, (seed, 0)));
        }
        loop {
            let is_over = match limit {
                Some(limit) => round % ROUNDS_PER_LOOK == 0 && started.elapsed() >= limit,
                None => round == self.rounds,
            };
            if is_over {
                break;
            }
            round += 1;
            let input = self.mutant(&mut prng);
            if seen.insert(self.throw(&mut target, &input, (seed, round))) && self.corpus.len() < CORPUS_MAX {
                self.corpus.push(input);
            }
        }
        if limit.is_some() {
            println!(
                "{}: {round} inputs from seed {seed} in {} s, {} kinds of outcome, {} inputs kept",
                self.name,
                started.elapsed().as_secs(),
                seen.len(),
                self.corpus.len()
            );
        }
    }

    fn throw(&self, target: &mut impl FnMut(&[u8]) -> u64, input: &[u8], (seed, round): (u64, u64)) -> u64 {
        match catch_unwind(AssertUnwindSafe(|| target(input))) {
            Ok(outcome) => outcome,
            Err(panic) => {
                let path = folder().join(format!("{}-{seed}-{round}", self.name));
                let kept = fs::create_dir_all(folder()).and_then(|()| fs::write(&path, input));
                let place =
                    kept.map_or_else(|cause| format!("(not written: {cause})"), |()| path.display().to_string());
                eprintln!(
                    "{}: seed {seed}, round {round}: {} bytes in {place}\n{}",
                    self.name,
                    input.len(),
                    hex(input)
                );
                resume_unwind(panic);
            }
        }
    }

    /// One of the corpus, changed in some places.
    fn mutant(&self, prng: &mut Prng) -> Vec<u8> {
        let mut input = self.choose(prng).to_vec();
        // Mostly one or two changes: more seldom get past the first check.
        let most = 1 + prng.below(8);
        let count = 1 + prng.below(most);
        for _ in 0..count {
            self.mutate(&mut input, prng);
        }
        input.truncate(INPUT_BYTES_MAX);
        if let Some(repair) = self.repair
            && prng.chance(3, 4)
        {
            repair(&mut input);
        }
        input
    }

    fn choose(&self, prng: &mut Prng) -> &[u8] {
        &self.corpus[prng.below(self.corpus.len() as u64) as usize]
    }

    fn mutate(&self, input: &mut Vec<u8>, prng: &mut Prng) {
        let at = prng.below(input.len() as u64 + 1) as usize;
        let longest = 1 + prng.below(64);
        let length = 1 + prng.below(longest) as usize;
        let end = (at + length).min(input.len());
        let edge = EDGES[prng.below(EDGES.len() as u64) as usize];
        match prng.below(12) {
            0 if at < input.len() => input[at] ^= 1 << prng.below(8),
            1 if at < input.len() => input[at] = prng.draw() as u8,
            2 if at < input.len() => input[at] = input[at].wrapping_add([1, 255, 16, 240][prng.below(4) as usize]),
            3 => drop(input.drain(at..end)),
            4 => input.truncate(at),
            5 => {
                let again = input[at..end].to_vec();
                drop(input.splice(at..at, again));
            }
            6 => {
                // A number of fixed width.
                let width = [1, 2, 4, 8][prng.below(4) as usize];
                let mut bytes = edge.to_le_bytes();
                if prng.chance(1, 4) {
                    bytes[..width].reverse();
                }
                let end = (at + width).min(input.len());
                drop(input.splice(at..end, bytes[..width].iter().copied()));
            }
            7 => {
                // A number in LEB128, in the place of another.
                let end = (at..input.len()).find(|place| input[*place] < 0x80).map_or(input.len(), |last| last + 1);
                drop(input.splice(at..end, leb128(edge)));
            }
            8 => {
                // A number in digits, in the place of another.
                let Some(start) = (at..input.len()).find(|place| input[*place].is_ascii_digit()) else { return };
                let count = input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                let digits = DIGITS[prng.below(DIGITS.len() as u64) as usize];
                drop(input.splice(start..start + count, digits.bytes()));
            }
            9 => {
                // The end of another one.
                let other = self.choose(prng);
                let from = prng.below(other.len() as u64 + 1) as usize;
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            10 => {
                // A piece of another one.
                let other = self.choose(prng);
                let from = prng.below(other.len() as u64 + 1) as usize;
                let piece = &other[from..(from + length).min(other.len())];
                drop(input.splice(at..at, piece.iter().copied()));
            }
            _ if !self.words.is_empty() => {
                let word = self.words[prng.below(self.words.len() as u64) as usize];
                drop(input.splice(at..at, word.iter().copied()));
            }
            _ => input.insert(at, prng.draw() as u8),
        }
    }
}

fn leb128(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// Where inputs are kept that were not borne.
fn folder() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from);
    target.join("fuzz")
}

/// For a test of what was found.
fn hex(input: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 256;
    let mut text = String::new();
    for byte in input.iter().take(SHOWN_BYTES_MAX) {
        write!(text, "\\x{byte:02x}").expect("a string takes all");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_throws_the_same_inputs() {
        let run = || {
            let mut thrown = Vec::new();
            Fuzz::new("same", [b"*1\r\n$4\r\nPING\r\n".to_vec()]).rounds(500).run(|input| {
                thrown.push(input.to_vec());
                input.len() as u64
            });
            thrown
        };
        let first = run();
        assert_eq!(first, run());
        assert!(first.iter().collect::<BTreeSet<_>>().len() > 400, "most are different");
    }

    #[test]
    fn a_reader_that_trusts_a_length_is_found_out() {
        let trusting = |input: &[u8]| {
            let Some((length, rest)) = input.split_first() else { return 0 };
            let body = &rest[..usize::from(*length)];
            body.len() as u64
        };
        let outcome = catch_unwind(|| Fuzz::new("trusting", [b"\x02ab".to_vec()]).rounds(1_000).run(trusting));
        assert!(outcome.is_err());
        fs::read_dir(folder()).expect("it was written").for_each(|file| {
            let path = file.expect("a file").path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("trusting-")) {
                fs::remove_file(path).expect("just written");
            }
        });
    }

    #[test]
    fn a_depth_that_takes_several_steps_is_reached_along_outcomes() {
        let mut deepest = 0;
        Fuzz::new("deep", [vec![0; 8]]).rounds(60_000).run(|input| {
            let depth = input.iter().zip(b"deep").take_while(|(byte, wanted)| byte == wanted).count() as u64;
            deepest = deepest.max(depth);
            depth
        });
        assert_eq!(deepest, 4);
    }
}
