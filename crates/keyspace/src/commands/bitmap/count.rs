//! BITCOUNT and BITPOS: counting and finding bits in a range.

use std::ops::RangeInclusive;

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use crate::commands::arguments::{index_range, integer, is};
use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};
use crate::{ItoaBuffer, View};

pub(super) const BITCOUNT: DataCommand = DataCommand {
    name: "bitcount",
    since: "2.6.0",
    group: Group::Bitmap,
    summary: "Counts the set bits of the string under a key.",
    complexity: "O(N) where N is the number of bytes in the range.",
    syntax: "key [start end [BYTE | BIT]]",
    arity: -2,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(bitcount),
};

fn bitcount(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let (start, end, unit) = match args.len() {
        2 => (0, -1, Unit::Bits),
        4 | 5 => (integer(args.at(2))?, integer(args.at(3))?, Unit::parse(args.get(4))?),
        _ => return Err(Refusal::SYNTAX),
    };
    let mut buffer = ItoaBuffer::new();
    let Some(value) = view.string(args.at(1))? else {
        writer.integer(0);
        return Ok(());
    };
    let bytes = value.to_bytes(&mut buffer);
    // Ends that cross before the beginning are clamped to it and would meet there.
    let is_crossed = start < 0 && end < 0 && start > end;
    let bits = if is_crossed { None } else { bit_range(start, end, unit, bytes.len()) };
    writer.count(bits.map_or(0, |bits| count(bytes, bits)));
    Ok(())
}

pub(super) const BITPOS: DataCommand = DataCommand {
    name: "bitpos",
    since: "2.8.7",
    group: Group::Bitmap,
    summary: "Finds the first set or clear bit of the string under a key.",
    complexity: "O(N) where N is the number of bytes in the range.",
    syntax: "key bit [start [end [BYTE | BIT]]]",
    arity: -3,
    flags: &[Flag::Readonly],
    categories: &[],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(bitpos),
};

fn bitpos(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let wanted = match integer(args.at(2))? {
        0 => false,
        1 => true,
        _ => return Err(Refusal::new("ERR The bit argument must be 1 or 0.")),
    };
    if args.len() > 6 {
        return Err(Refusal::SYNTAX);
    }
    let start = args.get(3).map_or(Ok(0), integer)?;
    let unit = Unit::parse(args.get(5))?;
    let end = args.get(4).map(integer).transpose()?;
    let mut buffer = ItoaBuffer::new();
    let Some(value) = view.string(args.at(1))? else {
        // An endless row of clear bits.
        writer.integer(if wanted { -1 } else { 0 });
        return Ok(());
    };
    let bytes = value.to_bytes(&mut buffer);
    let range = bit_range(start, end.unwrap_or(-1), unit, bytes.len());
    let position = match range.clone().and_then(|bits| find(bytes, bits, wanted)) {
        Some(position) => position as i64,
        // A row without a stated end goes on with clear bits behind the string.
        None if range.is_some() && !wanted && end.is_none() => bytes.len() as i64 * 8,
        None => -1,
    };
    writer.integer(position);
    Ok(())
}

/// What the ends of a range count.
#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    Bits,
}

impl Unit {
    fn parse(word: Option<&[u8]>) -> Result<Self, Refusal> {
        match word {
            None => Ok(Self::Bytes),
            Some(word) if is(word, "byte") => Ok(Self::Bytes),
            Some(word) if is(word, "bit") => Ok(Self::Bits),
            Some(_) => Err(Refusal::SYNTAX),
        }
    }
}

/// The bits that a range in either unit covers, in a string of `length` bytes.
fn bit_range(start: i64, end: i64, unit: Unit, length: usize) -> Option<RangeInclusive<u64>> {
    let length = length as u64;
    match unit {
        Unit::Bits => index_range(start, end, length * 8),
        Unit::Bytes => index_range(start, end, length).map(|bytes| bytes.start() * 8..=bytes.end() * 8 + 7),
    }
}

/// The bytes that hold `bits`, and which bits of the first and the last of them are meant.
fn cover(bits: &RangeInclusive<u64>) -> (RangeInclusive<usize>, u8, u8) {
    let bytes = (bits.start() / 8) as usize..=(bits.end() / 8) as usize;
    (bytes, 0xFF >> (bits.start() % 8), !(0x7F >> (bits.end() % 8)))
}

/// Number of set bits among `bits`, all of which lie in `bytes`.
fn count(bytes: &[u8], bits: RangeInclusive<u64>) -> usize {
    let (covered, first_mask, last_mask) = cover(&bits);
    let whole = &bytes[covered];
    let outside = |byte: u8, mask: u8| (byte & !mask).count_ones() as usize;
    count_all(whole) - outside(whole[0], first_mask) - outside(whole[whole.len() - 1], last_mask)
}

/// Number of set bits. A plain sum over words: the compiler makes it as wide as the machine's registers, which beats
/// adders in software.
fn count_all(bytes: &[u8]) -> usize {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: usize = words.iter().map(|word| u64::from_ne_bytes(*word).count_ones() as usize).sum();
    words + rest.iter().map(|byte| byte.count_ones() as usize).sum::<usize>()
}

/// Where the first bit that is `wanted` stands among `bits`, all of which lie in `bytes`.
fn find(bytes: &[u8], bits: RangeInclusive<u64>, wanted: bool) -> Option<u64> {
    let (covered, first_mask, last_mask) = cover(&bits);
    let (first, last) = (*covered.start(), *covered.end());
    // Turned so that the wanted bits are the set ones.
    let flip = if wanted { 0 } else { 0xFF };
    let in_byte = |place: usize, mask: u8| {
        let byte = (bytes[place] ^ flip) & mask;
        (byte != 0).then(|| place as u64 * 8 + u64::from(byte.leading_zeros()))
    };
    if first == last {
        return in_byte(first, first_mask & last_mask);
    }
    in_byte(first, first_mask)
        .or_else(|| in_byte(first + 1 + position_other_than(flip, &bytes[first + 1..last])?, 0xFF))
        .or_else(|| in_byte(last, last_mask))
}

/// Where the first byte that is not `common` stands.
fn position_other_than(common: u8, bytes: &[u8]) -> Option<usize> {
    // A block without an early exit is compared with the widest registers there are.
    let (blocks, _) = bytes.as_chunks::<128>();
    let differs = |block: &&[u8; 128]| block.iter().fold(0, |differs, byte| differs | (byte ^ common)) != 0;
    let skipped = blocks.iter().take_while(|block| !differs(block)).count() * 128;
    bytes[skipped..].iter().position(|&byte| byte != common).map(|place| skipped + place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bit(bytes: &[u8], place: u64) -> bool {
        bytes[(place / 8) as usize] >> (7 - place % 8) & 1 == 1
    }

    #[test]
    fn every_range_counts_and_finds_as_bit_by_bit() {
        let mut prng = stdx::Prng::new(5);
        for round in 0..60 {
            let length = prng.below(30);
            let sparse = round % 3;
            let bytes: Vec<u8> = (0..length)
                .map(|_| match sparse {
                    0 => prng.draw() as u8,
                    1 => u8::from(prng.chance(1, 20)) << prng.below(8),
                    _ => !(u8::from(prng.chance(1, 20)) << prng.below(8)),
                })
                .collect();
            for start in 0..length * 8 {
                for end in start..length * 8 {
                    let naive = (start..=end).filter(|&place| bit(&bytes, place)).count();
                    assert_eq!(count(&bytes, start..=end), naive, "{bytes:?} {start}..={end}");
                    for wanted in [false, true] {
                        let naive = (start..=end).find(|&place| bit(&bytes, place) == wanted);
                        assert_eq!(find(&bytes, start..=end, wanted), naive, "{bytes:?} {start}..={end} {wanted}");
                    }
                }
            }
        }
    }

    #[test]
    fn long_strings_are_counted_and_searched_to_their_ends() {
        let mut bytes = vec![0; 100_003];
        for place in [9, 50_000, 100_002] {
            bytes[place] |= 0x10;
        }
        assert_eq!(count(&bytes, 0..=100_003 * 8 - 1), 3);
        assert_eq!(find(&bytes, 80..=100_003 * 8 - 1, true), Some(50_000 * 8 + 3));
        assert_eq!(find(&bytes, 50_001 * 8..=100_003 * 8 - 1, true), Some(100_002 * 8 + 3));
        assert_eq!(find(&bytes, 50_001 * 8..=100_002 * 8 - 1, true), None);
        let full = vec![0xFF; 100_003];
        assert_eq!(count(&full, 0..=100_003 * 8 - 1), 100_003 * 8);
        assert_eq!(find(&full, 3..=100_003 * 8 - 1, false), None);
    }
}
