//! BITFIELD: integers of any width at any bit of a string.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use crate::commands::arguments::{integer, is, parse_integer, scaled_bit_offset};
use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, ItoaBuffer, View};

pub(super) const BITFIELD: DataCommand = DataCommand {
    name: "bitfield",
    since: "3.2.0",
    group: Group::Bitmap,
    summary: "Reads, writes and increments integers of any width at any bit of the string under a key.",
    complexity: "O(N) where N is the number of operations.",
    syntax: "key [GET encoding offset | [OVERFLOW <WRAP | SAT | FAIL>] <SET encoding offset value | INCRBY encoding \
             offset increment> [GET encoding offset | [OVERFLOW <WRAP | SAT | FAIL>] <SET encoding offset value | \
             INCRBY encoding offset increment> ...]]",
    arity: -2,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[first_key(
        Access::ReadWrite,
        &["access", "update", "variable_flags", "This command allows both access and modification of the key"],
    )],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(bitfield),
};

fn bitfield(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    let operations = parse(args)?;
    let length_min = operations.iter().map(Operation::length_min).max().unwrap_or(0);

    // As long as nothing changes, the string is read where it lies: operations that turn out to change nothing make no
    // new version and break no WATCH.
    let mut buffer = ItoaBuffer::new();
    let value = edit.string(key)?;
    let bytes = value.as_ref().map_or(b"".as_slice(), |value| value.to_bytes(&mut buffer));
    writer.array(operations.len());
    let mut rest = operations.as_slice();
    if bytes.len() >= length_min {
        while let [operation, behind @ ..] = rest {
            let Outcome { reply, change: None } = operation.run(bytes) else { break };
            write_reply(reply, writer);
            rest = behind;
        }
    }
    if rest.is_empty() {
        return Ok(());
    }
    edit.modify_string(key, |bytes| {
        if bytes.len() < length_min {
            bytes.resize(length_min, 0);
        }
        for operation in rest {
            let Outcome { reply, change } = operation.run(bytes);
            write_reply(reply, writer);
            if let Some(bits) = change {
                operation.field.write(bytes, bits);
            }
        }
    });
    edit.notify(Class::String, "setbit", key);
    Ok(())
}

pub(super) const BITFIELD_RO: DataCommand = DataCommand {
    name: "bitfield_ro",
    since: "6.0.0",
    group: Group::Bitmap,
    summary: "Reads integers of any width at any bit of the string under a key.",
    complexity: "O(N) where N is the number of operations.",
    syntax: "key [GET encoding offset [GET encoding offset ...]]",
    arity: -2,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(bitfield_ro),
};

fn bitfield_ro(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let operations = parse(args)?;
    if operations.iter().any(|operation| operation.action != Action::Get) {
        return Err(Refusal::new("ERR BITFIELD_RO only supports the GET subcommand"));
    }
    let mut buffer = ItoaBuffer::new();
    let value = view.string(args.at(1))?;
    let bytes = value.as_ref().map_or(b"".as_slice(), |value| value.to_bytes(&mut buffer));
    writer.array(operations.len());
    for operation in operations {
        write_reply(operation.run(bytes).reply, writer);
    }
    Ok(())
}

fn write_reply(reply: Option<i64>, writer: &mut Writer) {
    match reply {
        Some(number) => writer.integer(number),
        None => writer.null(),
    }
}

/// One GET, SET or INCRBY.
#[derive(Clone, Copy, Debug)]
struct Operation {
    field: Field,
    action: Action,
    overflow: Overflow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Get,
    Set(i64),
    Increment(i64),
}

/// What becomes of a number that the field cannot hold.
#[derive(Clone, Copy, Debug)]
enum Overflow {
    /// It loses its high bits.
    Wrap,
    /// It becomes the nearest number that fits.
    Saturate,
    /// The operation is not done.
    Fail,
}

/// What an operation answers, and the field's new bits if they differ from the old.
struct Outcome {
    reply: Option<i64>,
    change: Option<u64>,
}

fn parse(args: Args<'_>) -> Result<Vec<Operation>, Refusal> {
    let mut operations = Vec::new();
    let mut overflow = Overflow::Wrap;
    let mut index = 2;
    while index < args.len() {
        let behind = args.len() - index - 1;
        let word = args.at(index);
        if is(word, "overflow") && behind >= 1 {
            overflow = Overflow::parse(args.at(index + 1))?;
            index += 2;
            continue;
        }
        let takes_number = is(word, "set") || is(word, "incrby");
        if !(is(word, "get") && behind >= 2 || takes_number && behind >= 3) {
            return Err(Refusal::SYNTAX);
        }
        let field = Field::parse(args.at(index + 1), args.at(index + 2))?;
        let action = if !takes_number {
            Action::Get
        } else if is(word, "set") {
            Action::Set(integer(args.at(index + 3))?)
        } else {
            Action::Increment(integer(args.at(index + 3))?)
        };
        operations.push(Operation { field, action, overflow });
        index += if takes_number { 4 } else { 3 };
    }
    Ok(operations)
}

impl Overflow {
    fn parse(word: &[u8]) -> Result<Self, Refusal> {
        [("wrap", Self::Wrap), ("sat", Self::Saturate), ("fail", Self::Fail)]
            .into_iter()
            .find_map(|(name, overflow)| is(word, name).then_some(overflow))
            .ok_or_else(|| Refusal::new("ERR Invalid OVERFLOW type specified"))
    }
}

impl Operation {
    /// How many bytes the string has after this operation, at least.
    fn length_min(&self) -> usize {
        match self.action {
            Action::Get => 0,
            Action::Set(_) | Action::Increment(_) => self.field.end().div_ceil(8) as usize,
        }
    }

    fn run(&self, bytes: &[u8]) -> Outcome {
        let field = self.field;
        let old = field.read(bytes);
        let (wished, reply_old) = match self.action {
            Action::Get => return Outcome { reply: Some(old), change: None },
            // An unsigned field takes a negative number for the large one that its bits spell.
            Action::Set(number) if !field.signed => (i128::from(number as u64), true),
            Action::Set(number) => (i128::from(number), true),
            Action::Increment(number) => (i128::from(old) + i128::from(number), false),
        };
        let Some(new) = field.fit(wished, self.overflow) else { return Outcome { reply: None, change: None } };
        Outcome { reply: Some(if reply_old { old } else { new }), change: (new != old).then_some(new as u64) }
    }
}

/// Where an integer lies and how it reads.
#[derive(Clone, Copy, Debug)]
struct Field {
    signed: bool,
    /// In `1..=64`, or `1..=63` if unsigned: replies are signed numbers.
    width_bits: u32,
    offset_bits: u64,
}

impl Field {
    fn parse(encoding: &[u8], offset: &[u8]) -> Result<Self, Refusal> {
        let (signed, width) = match encoding {
            [b'i', width @ ..] => (true, width),
            [b'u', width @ ..] => (false, width),
            _ => (false, b"".as_slice()),
        };
        let width_max = if signed { 64 } else { 63 };
        let width_bits = parse_integer(width).filter(|width| (1..=width_max).contains(width)).ok_or_else(|| {
            Refusal::new(
                "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
            )
        })? as u32;
        let offset_bits = match offset {
            [b'#', number @ ..] => scaled_bit_offset(number, u64::from(width_bits))?,
            number => scaled_bit_offset(number, 1)?,
        };
        Ok(Self { signed, width_bits, offset_bits })
    }

    /// The bit behind the last one.
    fn end(self) -> u64 {
        self.offset_bits + u64::from(self.width_bits)
    }

    /// The sixteen bytes from the field's first one on, as one number; behind the string's end all is zero. A field
    /// touches nine of them at most.
    fn window(self, bytes: &[u8]) -> u128 {
        let start = (self.offset_bits / 8) as usize;
        let rest = bytes.get(start..).unwrap_or_default();
        let mut window = [0; 16];
        let length = rest.len().min(16);
        window[..length].copy_from_slice(&rest[..length]);
        u128::from_be_bytes(window)
    }

    /// Bits of the window below the field.
    fn shift(self) -> u32 {
        128 - (self.offset_bits % 8) as u32 - self.width_bits
    }

    fn mask(self) -> u64 {
        u64::MAX >> (64 - self.width_bits)
    }

    fn read(self, bytes: &[u8]) -> i64 {
        let bits = (self.window(bytes) >> self.shift()) as u64 & self.mask();
        self.interpret(bits)
    }

    /// Writes the lowest bits of `bits`. The field must lie inside `bytes`.
    fn write(self, bytes: &mut [u8], bits: u64) {
        let mask = u128::from(self.mask()) << self.shift();
        let value = u128::from(bits & self.mask()) << self.shift();
        let window = (self.window(bytes) & !mask | value).to_be_bytes();
        let covered = (self.offset_bits / 8) as usize..self.end().div_ceil(8) as usize;
        let length = covered.len();
        bytes[covered].copy_from_slice(&window[..length]);
    }

    /// The number that `bits`, none of them above the field's width, spell.
    fn interpret(self, bits: u64) -> i64 {
        if self.signed {
            let unused = 64 - self.width_bits;
            (bits << unused) as i64 >> unused
        } else {
            bits as i64
        }
    }

    /// `number` if the field can hold it, or what `overflow` makes of it.
    fn fit(self, number: i128, overflow: Overflow) -> Option<i64> {
        let (least, most) = if self.signed {
            (-(1i128 << (self.width_bits - 1)), (1i128 << (self.width_bits - 1)) - 1)
        } else {
            (0, (1i128 << self.width_bits) - 1)
        };
        if (least..=most).contains(&number) {
            return Some(number as i64);
        }
        match overflow {
            Overflow::Wrap => Some(self.interpret(number as u64 & self.mask())),
            Overflow::Saturate => Some(number.clamp(least, most) as i64),
            Overflow::Fail => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_reads_back_what_was_written_and_leaves_its_neighbours_alone() {
        let mut prng = stdx::Prng::new(11);
        for _ in 0..20_000 {
            let signed = prng.chance(1, 2);
            let width_bits = 1 + prng.below(if signed { 64 } else { 63 }) as u32;
            let field = Field { signed, width_bits, offset_bits: prng.below(80) };
            let length = field.end().div_ceil(8) + prng.below(3);
            let before: Vec<u8> = (0..length).map(|_| prng.draw() as u8).collect();
            let bits = prng.draw() & field.mask();
            let mut after = before.clone();
            field.write(&mut after, bits);
            assert_eq!(field.read(&after), field.interpret(bits));
            for place in 0..length * 8 {
                let bit = |bytes: &[u8]| bytes[(place / 8) as usize] >> (7 - place % 8) & 1;
                if (field.offset_bits..field.end()).contains(&place) {
                    assert_eq!(u64::from(bit(&after)), bits >> (field.end() - 1 - place) & 1);
                } else {
                    assert_eq!(bit(&after), bit(&before));
                }
            }
        }
    }

    #[test]
    fn numbers_that_do_not_fit_wrap_saturate_or_fail() {
        let table = [
            // signed, width, number, wrapped, saturated
            (false, 8, 256, 0, 255),
            (false, 8, -1, 255, 0),
            (true, 8, 128, -128, 127),
            (true, 8, -129, 127, -128),
            (true, 64, i128::from(i64::MAX) + 1, i64::MIN, i64::MAX),
            (true, 64, i128::from(i64::MIN) - 1, i64::MAX, i64::MIN),
            (false, 63, 1 << 63, 0, i64::MAX),
            (false, 1, 3, 1, 1),
            (true, 1, 1, -1, 0),
        ];
        for (signed, width_bits, number, wrapped, saturated) in table {
            let field = Field { signed, width_bits, offset_bits: 0 };
            assert_eq!(field.fit(number, Overflow::Wrap), Some(wrapped), "{number} in {field:?}");
            assert_eq!(field.fit(number, Overflow::Saturate), Some(saturated), "{number} in {field:?}");
            assert_eq!(field.fit(number, Overflow::Fail), None, "{number} in {field:?}");
        }
    }
}
