//! Sketches: what RedisBloom answers, from Bloom filters to t-digests.

mod bloom;
mod count_min;
mod cuckoo;
mod digest;
mod top_k;

use command::{Access, Flag, Group, KeySpec, Refusal};
use resp::{Args, Protocol, Writer};

use super::arguments::parse_integer;
use super::key_specs::{CHANGED_KEY, READ_KEY, key_at};
use super::{BLANK, DataCommand};

/// Lists of every command on sketches.
pub(super) const BLOOM_COMMANDS: &[&DataCommand] = bloom::COMMANDS;
pub(super) const CUCKOO_COMMANDS: &[&DataCommand] = cuckoo::COMMANDS;
pub(super) const COUNT_MIN_COMMANDS: &[&DataCommand] = count_min::COMMANDS;
pub(super) const TOP_K_COMMANDS: &[&DataCommand] = top_k::COMMANDS;
pub(super) const DIGEST_COMMANDS: &[&DataCommand] = digest::COMMANDS;

const MADE_KEY: &[KeySpec] = &[key_at(1, Access::ReadWrite, &["insert"])];

const GROWING: &[Flag] = &[Flag::Write, Flag::Denyoom];
const READING_FAST: &[Flag] = &[Flag::Readonly, Flag::Fast];

/// What all commands on sketches have in common.
const PLAIN: DataCommand = DataCommand {
    since: "1.0.0",
    group: Group::Bloom,
    complexity: "O(1)",
    syntax: "key",
    arity: 2,
    flags: &[Flag::Readonly],
    keys: READ_KEY,
    ..BLANK
};

/// Most bytes that SCANDUMP answers at once.
const CHUNK_BYTES: usize = 16 << 20;

/// The number that a word is; `complaint` if it is none.
fn number(word: &[u8], complaint: &'static str) -> Result<i64, Refusal> {
    parse_integer(word).ok_or(Refusal::new(complaint))
}

/// The number with a fraction that a word is; `complaint` if it is none.
fn double(word: &[u8], complaint: &'static str) -> Result<f64, Refusal> {
    crate::double::parse(word).filter(|number| !number.is_nan()).ok_or(Refusal::new(complaint))
}

fn is_resp3(writer: &Writer) -> bool {
    writer.protocol() == Protocol::Resp3
}

/// A number with a fraction, or `nan`.
fn write_double(writer: &mut Writer, number: f64) {
    if number.is_nan() {
        writer.double_text("nan");
    } else {
        super::write_double(writer, number);
    }
}

/// A number that cannot be larger than what memory holds, or that stays below 2⁶³.
fn write_number(writer: &mut Writer, number: u64) {
    writer.integer(number as i64);
}

/// The sketch of one type under a key.
macro_rules! find_as {
    ($name:ident, $variant:ident, $type:ty) => {
        /// The sketch of this type under a key, if the key exists.
        ///
        /// # Errors
        /// `WRONGTYPE` if the value is of another type.
        fn $name<'a>(view: &View<'a>, key: &[u8]) -> Result<Option<std::borrow::Cow<'a, $type>>, Refusal> {
            use std::borrow::Cow;
            match view.sketch(key)? {
                None => Ok(None),
                Some(Cow::Borrowed(Sketch::$variant(sketch))) => Ok(Some(Cow::Borrowed(sketch))),
                Some(Cow::Owned(Sketch::$variant(sketch))) => Ok(Some(Cow::Owned(sketch))),
                Some(_) => Err(Refusal::WRONG_TYPE),
            }
        }
    };
}
use find_as;

/// Refuses a request of too many words.
fn at_most(args: Args<'_>, most: usize, name: &str) -> Result<(), Refusal> {
    if args.len() > most { Err(Refusal::wrong_arity(name)) } else { Ok(()) }
}
