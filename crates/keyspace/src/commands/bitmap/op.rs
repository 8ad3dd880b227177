//! BITOP: AND, OR, XOR, NOT and what is made of them, over whole strings.

use command::{Access, Begin, Find, Flag, Group, KeySpec, Refusal, Span};
use resp::{Args, Writer};

use crate::commands::arguments::is;
use crate::commands::{Body, DataCommand};
use crate::value::Text;
use crate::{Class, Edit, ItoaBuffer, StringValue, Value};

pub(super) const BITOP: DataCommand = DataCommand {
    name: "bitop",
    since: "2.6.0",
    group: Group::Bitmap,
    summary: "Combines strings bit by bit and stores the result under a key.",
    complexity: "O(N) where N is the number of bytes in all sources.",
    syntax: "<AND | OR | XOR | NOT | DIFF | DIFF1 | ANDOR | ONE> destkey key [key ...]",
    arity: -4,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[
        KeySpec {
            access: Access::Overwrite,
            begin: Begin::Index(2),
            find: Find::Range { last: 0, step: 1, limit: 0 },
            notes: &["update"],
        },
        KeySpec {
            access: Access::Read,
            begin: Begin::Index(3),
            find: Find::Range { last: -1, step: 1, limit: 0 },
            notes: &["access"],
        },
    ],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(bitop),
};

fn bitop(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let operation = Operation::parse(args.at(1))?;
    if operation == Operation::Not && args.len() != 4 {
        return Err(Refusal::new("ERR BITOP NOT must be called with a single source key."));
    }
    if operation.needs_two() && args.len() < 5 {
        let name = String::from_utf8_lossy(args.at(1)).to_uppercase();
        return Err(Refusal::new(format!("ERR BITOP {name} must be called with at least two source keys.")));
    }
    let mut sources = Vec::with_capacity(args.len() - 3);
    for key in args.iter().skip(3) {
        sources.push((edit.reading().string(key)?, ItoaBuffer::new()));
    }
    // A key that is not there counts as an empty string.
    let sources: Vec<&[u8]> = sources
        .iter_mut()
        .map(|(value, buffer)| value.as_ref().map_or(b"".as_slice(), |value| value.to_bytes(buffer)))
        .collect();
    let result = operation.run(&sources);
    let destination = args.at(2);
    writer.count(result.len());
    if result.is_empty() {
        if edit.remove(destination) {
            edit.notify(Class::Generic, "del", destination);
        }
    } else {
        let database = edit.view().database();
        // Kept as text even if the bits happen to spell a number.
        let result = StringValue(Text::Bytes { bytes: result, raw: true });
        edit.put(database, destination, Value::String(result), None, None);
        edit.notify(Class::String, "set", destination);
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    And,
    Or,
    Xor,
    Not,
    /// In the first, and in none of the others.
    Difference,
    /// In one of the others at least, and not in the first.
    ReverseDifference,
    /// In the first, and in one of the others at least.
    AndOr,
    /// In exactly one.
    One,
}

/// Bytes of the result worked on at a time: they stay in the first cache while one source after the other passes.
const BLOCK_BYTES: usize = 16 * 1024;

impl Operation {
    fn parse(word: &[u8]) -> Result<Self, Refusal> {
        let names = [
            ("and", Self::And),
            ("or", Self::Or),
            ("xor", Self::Xor),
            ("not", Self::Not),
            ("diff", Self::Difference),
            ("diff1", Self::ReverseDifference),
            ("andor", Self::AndOr),
            ("one", Self::One),
        ];
        let named = names.into_iter().find_map(|(name, operation)| is(word, name).then_some(operation));
        named.ok_or(Refusal::SYNTAX)
    }

    /// True if it says nothing of one source alone.
    fn needs_two(self) -> bool {
        matches!(self, Self::Difference | Self::ReverseDifference | Self::AndOr)
    }

    /// The result, as long as the longest source; shorter ones go on with clear bits. There is at least one source.
    fn run(self, sources: &[&[u8]]) -> Vec<u8> {
        let length = sources.iter().map(|source| source.len()).max().unwrap_or(0);
        let (first, others) = sources.split_first().expect("the arity asks for a source");
        let mut result = Vec::with_capacity(length);
        result.extend_from_slice(first);
        result.resize(length, 0);
        // Bits that are in one of the other sources at least; for the last operation, in two of all at least.
        let mut seen = vec![0; if self.needs_two() || self == Self::One { length.min(BLOCK_BYTES) } else { 0 }];
        for (nth, block) in result.chunks_mut(BLOCK_BYTES).enumerate() {
            if self == Self::Not {
                block.iter_mut().for_each(|byte| *byte = !*byte);
            }
            seen.fill(0);
            for source in others {
                let rest = source.get(nth * BLOCK_BYTES..).unwrap_or_default();
                let (common, behind) = block.split_at_mut(rest.len().min(block.len()));
                self.combine(common, &mut seen, rest);
                if self == Self::And {
                    behind.fill(0);
                }
            }
            self.finish(block, &seen);
        }
        result
    }

    /// Combines each byte with the one of `source` in the same place; plain enough to be done by the compiler with
    /// the widest registers it may use.
    fn combine(self, block: &mut [u8], seen: &mut [u8], source: &[u8]) {
        match self {
            Self::And => block.iter_mut().zip(source).for_each(|(byte, other)| *byte &= other),
            Self::Or => block.iter_mut().zip(source).for_each(|(byte, other)| *byte |= other),
            Self::Xor => block.iter_mut().zip(source).for_each(|(byte, other)| *byte ^= other),
            Self::Not => {}
            Self::Difference | Self::ReverseDifference | Self::AndOr => {
                seen[..block.len()].iter_mut().zip(source).for_each(|(byte, other)| *byte |= other);
            }
            Self::One => {
                for ((byte, twice), other) in block.iter_mut().zip(seen).zip(source) {
                    *twice |= *byte & other;
                    *byte ^= other;
                }
            }
        }
    }

    /// What is left to do when all sources have been looked at.
    fn finish(self, block: &mut [u8], seen: &[u8]) {
        let pairs = block.iter_mut().zip(seen);
        match self {
            Self::And | Self::Or | Self::Xor | Self::Not => {}
            Self::Difference | Self::One => pairs.for_each(|(byte, seen)| *byte &= !seen),
            Self::ReverseDifference => pairs.for_each(|(byte, seen)| *byte = seen & !*byte),
            Self::AndOr => pairs.for_each(|(byte, seen)| *byte &= seen),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_give_what_byte_by_byte_gives() {
        let mut prng = stdx::Prng::new(9);
        for _ in 0..40 {
            let sources: Vec<Vec<u8>> = (0..1 + prng.below(5))
                .map(|_| {
                    let length = [0, 1, 7, 16 * 1024, 16 * 1024 + 1, 40_000][prng.below(6) as usize];
                    (0..length).map(|_| prng.draw() as u8).collect()
                })
                .collect();
            let slices: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
            let length = sources.iter().map(Vec::len).max().expect("at least one");
            let at = |source: &Vec<u8>, place: usize| source.get(place).copied().unwrap_or(0);
            let naive = |combine: fn(u8, u8) -> u8| -> Vec<u8> {
                (0..length)
                    .map(|place| sources.iter().map(|source| at(source, place)).reduce(combine).expect("at least one"))
                    .collect()
            };
            assert!(Operation::And.run(&slices) == naive(|a, b| a & b));
            assert!(Operation::Or.run(&slices) == naive(|a, b| a | b));
            assert!(Operation::Xor.run(&slices) == naive(|a, b| a ^ b));
            let bit_by_bit = |is_set: fn(bool, usize) -> bool| -> Vec<u8> {
                let byte = |place: usize| {
                    (0..8).fold(0, |byte, bit| {
                        let has = |source: &Vec<u8>| at(source, place) >> bit & 1 == 1;
                        let others = sources[1..].iter().filter(|source| has(source)).count();
                        byte | u8::from(is_set(has(&sources[0]), others)) << bit
                    })
                };
                (0..length).map(byte).collect()
            };
            assert!(Operation::Difference.run(&slices) == bit_by_bit(|first, others| first && others == 0));
            assert!(Operation::ReverseDifference.run(&slices) == bit_by_bit(|first, others| !first && others > 0));
            assert!(Operation::AndOr.run(&slices) == bit_by_bit(|first, others| first && others > 0));
            assert!(Operation::One.run(&slices) == bit_by_bit(|first, others| usize::from(first) + others == 1));
            let inverted: Vec<u8> = sources[0].iter().map(|byte| !byte).collect();
            assert!(Operation::Not.run(&slices[..1]) == inverted);
        }
    }
}
