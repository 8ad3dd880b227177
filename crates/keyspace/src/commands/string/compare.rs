//! DIGEST, DELEX and DELIFEQ: strings compared, whole or by their digests.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};
use twox_hash::XxHash3_64;

use super::first_key;
use crate::commands::arguments::is;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, ItoaBuffer, Str, View};

/// Hexadecimal digits of a digest.
const DIGEST_DIGITS: usize = 16;

/// The digest of a string: XXH3 of 64 bits with seed 0, the highest digit first.
fn digest(value: Str<'_>) -> String {
    let hash = XxHash3_64::oneshot(value.to_bytes(&mut ItoaBuffer::new()));
    format!("{hash:0DIGEST_DIGITS$x}")
}

/// What a string must be, or must not be, for a change of it.
#[derive(Clone, Copy)]
pub(super) struct Comparison<'a> {
    with: With,
    is_negative: bool,
    operand: &'a [u8],
}

/// What the operand is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum With {
    Value,
    Digest,
}

impl<'a> Comparison<'a> {
    /// The comparison that a word asks for. `None` if it is no such word.
    pub(super) fn named(word: &[u8], operand: &'a [u8]) -> Option<Self> {
        let (with, is_negative) = match () {
            () if is(word, "ifeq") => (With::Value, false),
            () if is(word, "ifne") => (With::Value, true),
            () if is(word, "ifdeq") => (With::Digest, false),
            () if is(word, "ifdne") => (With::Digest, true),
            () => return None,
        };
        Some(Self { with, is_negative, operand })
    }

    /// True if it asks for a difference.
    pub(super) fn is_negative(self) -> bool {
        self.is_negative
    }

    /// True if the other is asked for by the same word.
    pub(super) fn is_same_kind(self, other: Self) -> bool {
        (self.with, self.is_negative) == (other.with, other.is_negative)
    }

    /// True if the string is as it must be.
    ///
    /// # Errors
    /// If the operand must be a digest and is too long or too short for one.
    pub(super) fn holds(self, value: Str<'_>) -> Result<bool, Refusal> {
        let is_equal = match self.with {
            With::Value => value.to_bytes(&mut ItoaBuffer::new()) == self.operand,
            With::Digest if self.operand.len() == DIGEST_DIGITS => {
                self.operand.eq_ignore_ascii_case(digest(value).as_bytes())
            }
            With::Digest => {
                return Err(Refusal::new(format!("ERR must be exactly {DIGEST_DIGITS} hexadecimal characters")));
            }
        };
        Ok(is_equal != self.is_negative)
    }
}

pub(super) const DIGEST: DataCommand = DataCommand {
    name: "digest",
    since: "8.4.0",
    group: Group::String,
    summary: "Returns the digest of the string under a key.",
    complexity: "O(N) where N is the length of the string.",
    syntax: "key",
    arity: 2,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(digest_of_key),
};

fn digest_of_key(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    match view.string(args.at(1))? {
        Some(value) => writer.bulk(digest(value).as_bytes()),
        None => writer.null(),
    }
    Ok(())
}

pub(super) const DELEX: DataCommand = DataCommand {
    name: "delex",
    since: "8.4.0",
    group: Group::String,
    summary: "Removes a key if its string, or the digest of that, equals, or does not equal, the given one.",
    complexity: "O(N) where N is the length of the string.",
    syntax: "key [IFEQ ifeq-value | IFNE ifne-value | IFDEQ ifdeq-digest | IFDNE ifdne-digest]",
    arity: -2,
    flags: &[Flag::Write, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(delex),
};

fn delex(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    let goes = match (args.get(2), args.get(3), args.get(4)) {
        (None, ..) => edit.contains(key),
        (Some(word), Some(operand), None) => match edit.reading().string(key) {
            Ok(None) => false,
            Ok(Some(value)) => {
                let comparison = Comparison::named(word, operand);
                comparison
                    .ok_or_else(|| Refusal::new("ERR Invalid condition. Use IFEQ, IFNE, IFDEQ, or IFDNE"))?
                    .holds(value)?
            }
            Err(_) => return Err(Refusal::new("ERR Key should be of string type if conditions are specified")),
        },
        _ => return Err(Refusal::wrong_arity("delex")),
    };
    remove_if(edit, key, goes, writer);
    Ok(())
}

/// Removes a key if it must go, and answers how many keys went.
fn remove_if(edit: &mut Edit<'_>, key: &[u8], goes: bool, writer: &mut Writer) {
    if goes {
        edit.remove(key);
        edit.notify(Class::Generic, "del", key);
    }
    writer.integer(i64::from(goes));
}

pub(super) const DELIFEQ: DataCommand = DataCommand {
    name: "delifeq",
    since: "9.0.0",
    group: Group::String,
    summary: "Removes a key if its string equals the given one.",
    complexity: "O(1)",
    syntax: "key value",
    arity: 3,
    flags: &[Flag::Write, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["delete"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(delifeq),
};

fn delifeq(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    let value = edit.reading().string(key)?;
    let goes = value.is_some_and(|value| value.to_bytes(&mut ItoaBuffer::new()) == args.at(2));
    remove_if(edit, key, goes, writer);
    Ok(())
}
