//! The library `bit`: operations on 32-bit words, after Mike Pall's BitOp.

use crate::lua::{Entry, Failure, Kind, Results, Stack};

pub(crate) fn fill(stack: Stack) {
    let functions: &[Entry] = &[
        ("tobit", |stack| stack.push_function(tobit)),
        ("bnot", |stack| stack.push_function(bnot)),
        ("band", |stack| stack.push_function(band)),
        ("bor", |stack| stack.push_function(bor)),
        ("bxor", |stack| stack.push_function(bxor)),
        ("lshift", |stack| stack.push_function(lshift)),
        ("rshift", |stack| stack.push_function(rshift)),
        ("arshift", |stack| stack.push_function(arshift)),
        ("rol", |stack| stack.push_function(rol)),
        ("ror", |stack| stack.push_function(ror)),
        ("bswap", |stack| stack.push_function(bswap)),
        ("tohex", |stack| stack.push_function(tohex)),
    ];
    for (name, push) in functions {
        push(stack);
        stack.raw_set_field(-2, name);
    }
}

/// An argument, rounded and reduced to 32 bits.
fn word(stack: Stack, index: i32, name: &str) -> Result<u32, Failure> {
    let kind = stack.kind(index);
    if kind != Kind::Number && !stack.is_number(index) {
        let found = kind.name();
        return Err(format!("bad argument #{index} to '{name}' (number expected, got {found})").into());
    }
    let value = stack.number(index).round_ties_even();
    Ok(if value.abs() < 9.2e18 { value as i64 as u32 } else { value.rem_euclid(4_294_967_296.0) as u32 })
}

fn push(stack: Stack, value: u32) -> Results {
    stack.push_number(f64::from(value as i32));
    Ok(1)
}

fn tobit(stack: Stack) -> Results {
    push(stack, word(stack, 1, "tobit")?)
}

fn bnot(stack: Stack) -> Results {
    push(stack, !word(stack, 1, "bnot")?)
}

fn fold(stack: Stack, name: &str, join: fn(u32, u32) -> u32) -> Results {
    let mut joined = word(stack, 1, name)?;
    for index in 2..=stack.top() {
        joined = join(joined, word(stack, index, name)?);
    }
    push(stack, joined)
}

fn band(stack: Stack) -> Results {
    fold(stack, "band", |left, right| left & right)
}

fn bor(stack: Stack) -> Results {
    fold(stack, "bor", |left, right| left | right)
}

fn bxor(stack: Stack) -> Results {
    fold(stack, "bxor", |left, right| left ^ right)
}

fn shift(stack: Stack, name: &str, shift: fn(u32, u32) -> u32) -> Results {
    let value = word(stack, 1, name)?;
    push(stack, shift(value, word(stack, 2, name)? & 31))
}

fn lshift(stack: Stack) -> Results {
    shift(stack, "lshift", |value, by| value << by)
}

fn rshift(stack: Stack) -> Results {
    shift(stack, "rshift", |value, by| value >> by)
}

fn arshift(stack: Stack) -> Results {
    shift(stack, "arshift", |value, by| ((value as i32) >> by) as u32)
}

fn rol(stack: Stack) -> Results {
    shift(stack, "rol", u32::rotate_left)
}

fn ror(stack: Stack) -> Results {
    shift(stack, "ror", u32::rotate_right)
}

fn bswap(stack: Stack) -> Results {
    push(stack, word(stack, 1, "bswap")?.swap_bytes())
}

fn tohex(stack: Stack) -> Results {
    let value = word(stack, 1, "tohex")?;
    let digits = if stack.kind(2) == Kind::None { 8 } else { word(stack, 2, "tohex")? as i32 };
    let count = digits.unsigned_abs().min(8) as usize;
    let text = if digits < 0 { format!("{value:08X}") } else { format!("{value:08x}") };
    stack.push_bytes(&text.as_bytes()[8 - count..]);
    Ok(1)
}
