//! SETBIT and GETBIT: one bit.

use command::{Access, Flag, Group, Refusal, Span};
use resp::{Args, Writer};

use crate::commands::arguments::{bit_offset, parse_integer};
use crate::commands::string::first_key;
use crate::commands::{Body, DataCommand};
use crate::{Class, Edit, ItoaBuffer, View};

pub(super) const SETBIT: DataCommand = DataCommand {
    name: "setbit",
    since: "2.2.0",
    group: Group::Bitmap,
    summary: "Sets or clears one bit of the string under a key and returns the old one.",
    complexity: "O(1)",
    syntax: "key offset value",
    arity: 4,
    flags: &[Flag::Write, Flag::Denyoom],
    categories: &[],
    keys: &[first_key(Access::ReadWrite, &["access", "update"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Mutate(setbit),
};

fn setbit(edit: &mut Edit<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let key = args.at(1);
    let offset = bit_offset(args.at(2))?;
    let on = match parse_integer(args.at(3)) {
        Some(0) => false,
        Some(1) => true,
        _ => return Err(Refusal::BIT_VALUE),
    };
    let mut buffer = ItoaBuffer::new();
    let old = edit.string(key)?.and_then(|value| bit(value.to_bytes(&mut buffer), offset));
    // A bit that is there and stays as it is changes nothing: no new version, no broken WATCH.
    if old != Some(on) {
        edit.modify_string(key, |bytes| {
            let place = (offset / 8) as usize;
            if bytes.len() <= place {
                bytes.resize(place + 1, 0);
            }
            bytes[place] = if on { bytes[place] | mask(offset) } else { bytes[place] & !mask(offset) };
        });
        edit.notify(Class::String, "setbit", key);
    }
    writer.integer(i64::from(old.unwrap_or(false)));
    Ok(())
}

pub(super) const GETBIT: DataCommand = DataCommand {
    name: "getbit",
    since: "2.2.0",
    group: Group::Bitmap,
    summary: "Returns one bit of the string under a key.",
    complexity: "O(1)",
    syntax: "key offset",
    arity: 3,
    flags: &[Flag::Readonly, Flag::Fast],
    categories: &[],
    keys: &[first_key(Access::Read, &["access"])],
    tips: &[],
    span: Span::Keys,
    subcommands: &[],
    body: Body::Query(getbit),
};

fn getbit(view: &View<'_>, args: Args<'_>, writer: &mut Writer) -> Result<(), Refusal> {
    let offset = bit_offset(args.at(2))?;
    let mut buffer = ItoaBuffer::new();
    let on = view.string(args.at(1))?.and_then(|value| bit(value.to_bytes(&mut buffer), offset));
    writer.integer(i64::from(on.unwrap_or(false)));
    Ok(())
}

/// The bit at `offset`, if the string is long enough.
fn bit(bytes: &[u8], offset: u64) -> Option<bool> {
    bytes.get((offset / 8) as usize).map(|byte| byte & mask(offset) != 0)
}

fn mask(offset: u64) -> u8 {
    0x80 >> (offset % 8)
}
