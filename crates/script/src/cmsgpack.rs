//! The library `cmsgpack`: MessagePack, in the ways of lua-cmsgpack.

use crate::lua::{Entry, Failure, Kind, Results, Stack};

/// Tables nested more deeply become nil.
const DEPTH_MAX: usize = 16;

/// Containers within containers that are read. Each takes a part of the thread's stack.
const UNPACKED_DEPTH_MAX: usize = 1_000;

pub(crate) fn fill(stack: Stack) {
    let functions: &[Entry] = &[
        ("pack", |stack| stack.push_function(pack)),
        ("unpack", |stack| stack.push_function(unpack)),
        ("unpack_one", |stack| stack.push_function(unpack_one)),
        ("unpack_limit", |stack| stack.push_function(unpack_limit)),
    ];
    for (name, push) in functions {
        push(stack);
        stack.raw_set_field(-2, name);
    }
    for (name, text) in [
        ("_NAME", "cmsgpack"),
        ("_VERSION", "lua-cmsgpack 0.4.0"),
        ("_DESCRIPTION", "MessagePack C implementation for Lua"),
    ] {
        stack.push_bytes(text.as_bytes());
        stack.raw_set_field(-2, name);
    }
}

// ---- packing --------------------------------------------------------------------------------------------------------

fn pack(stack: Stack) -> Results {
    let count = stack.top();
    if count == 0 {
        return Err("bad argument #0 to 'pack' (MessagePack pack needs input.)".into());
    }
    let mut out = Vec::new();
    for index in 1..=count {
        if !stack.reserve(3) {
            return Err("Too many arguments for MessagePack pack.".into());
        }
        stack.push_copy(index);
        put_value(stack, 0, &mut out);
    }
    stack.push_bytes(&out);
    Ok(1)
}

/// Writes the value on top and takes it away.
fn put_value(stack: Stack, depth: usize, out: &mut Vec<u8>) {
    match stack.kind(-1) {
        Kind::String => put_string(stack.bytes(-1), out),
        Kind::Boolean => out.push(if stack.boolean(-1) { 0xC3 } else { 0xC2 }),
        Kind::Number => put_number(stack.number(-1), out),
        Kind::Table if depth < DEPTH_MAX && stack.reserve(4) => put_table(stack, depth, out),
        _ => out.push(0xC0),
    }
    stack.pop(1);
}

/// A header with a count: in its lowest bits if it is small, else in 16 or 32 bits behind.
fn put_count(count: usize, small: u8, small_max: usize, code_16: u8, out: &mut Vec<u8>) {
    if count <= small_max {
        out.push(small | count as u8);
    } else if let Ok(count) = u16::try_from(count) {
        out.push(code_16);
        out.extend_from_slice(&count.to_be_bytes());
    } else {
        out.push(code_16 + 1);
        out.extend_from_slice(&(count as u32).to_be_bytes());
    }
}

fn put_string(bytes: &[u8], out: &mut Vec<u8>) {
    if (32..256).contains(&bytes.len()) {
        out.extend_from_slice(&[0xD9, bytes.len() as u8]);
    } else {
        put_count(bytes.len(), 0xA0, 31, 0xDA, out);
    }
    out.extend_from_slice(bytes);
}

fn put_number(value: f64, out: &mut Vec<u8>) {
    const EXACT_MAX: f64 = 9_223_372_036_854_775_808.0;
    if value.fract() == 0.0 && (-EXACT_MAX..EXACT_MAX).contains(&value) {
        return put_integer(value as i64, out);
    }
    let short = value as f32;
    if f64::from(short) == value {
        out.push(0xCA);
        out.extend_from_slice(&short.to_be_bytes());
    } else {
        out.push(0xCB);
        out.extend_from_slice(&value.to_be_bytes());
    }
}

fn put_integer(value: i64, out: &mut Vec<u8>) {
    match value {
        0..=127 => out.push(value as u8),
        128..=0xFF => out.extend_from_slice(&[0xCC, value as u8]),
        0x100..=0xFFFF => {
            out.push(0xCD);
            out.extend_from_slice(&(value as u16).to_be_bytes());
        }
        0x1_0000..=0xFFFF_FFFF => {
            out.push(0xCE);
            out.extend_from_slice(&(value as u32).to_be_bytes());
        }
        0x1_0000_0000.. => {
            out.push(0xCF);
            out.extend_from_slice(&value.to_be_bytes());
        }
        -32..=-1 => out.push(value as i8 as u8),
        -128..=-33 => out.extend_from_slice(&[0xD0, value as i8 as u8]),
        -0x8000..=-129 => {
            out.push(0xD1);
            out.extend_from_slice(&(value as i16).to_be_bytes());
        }
        -0x8000_0000..=-0x8001 => {
            out.push(0xD2);
            out.extend_from_slice(&(value as i32).to_be_bytes());
        }
        _ => {
            out.push(0xD3);
            out.extend_from_slice(&value.to_be_bytes());
        }
    }
}

fn put_table(stack: Stack, depth: usize, out: &mut Vec<u8>) {
    let (pair_count, is_array) = measure(stack);
    if is_array {
        put_count(pair_count, 0x90, 15, 0xDC, out);
        for place in 1..=pair_count {
            stack.raw_get_at(-1, place as i32);
            put_value(stack, depth + 1, out);
        }
        return;
    }
    put_count(pair_count, 0x80, 15, 0xDE, out);
    stack.push_nil();
    while stack.next(-2) {
        stack.push_copy(-2);
        put_value(stack, depth + 1, out);
        put_value(stack, depth + 1, out);
    }
}

/// How many pairs the table on top has, and whether its keys are 1 to that number.
fn measure(stack: Stack) -> (usize, bool) {
    let mut count = 0;
    let mut greatest = 0.0f64;
    let mut is_array = true;
    stack.push_nil();
    while stack.next(-2) {
        stack.pop(1);
        let key = stack.number(-1);
        is_array &= stack.kind(-1) == Kind::Number && key > 0.0 && key.fract() == 0.0;
        greatest = greatest.max(key);
        count += 1;
    }
    (count, is_array && greatest == count as f64)
}

// ---- unpacking ------------------------------------------------------------------------------------------------------

fn unpack(stack: Stack) -> Results {
    unpack_some(stack, "unpack", 0, 0)
}

fn whole(stack: Stack, index: i32, default: i64) -> i64 {
    if matches!(stack.kind(index), Kind::None | Kind::Nil) { default } else { stack.number(index) as i64 }
}

fn unpack_one(stack: Stack) -> Results {
    let offset = whole(stack, 2, 0);
    unpack_some(stack, "unpack_one", 1, offset)
}

fn unpack_limit(stack: Stack) -> Results {
    if !stack.is_number(2) {
        let found = stack.kind(2).name();
        return Err(format!("bad argument #2 to 'unpack_limit' (number expected, got {found})").into());
    }
    let (limit, offset) = (whole(stack, 2, 0), whole(stack, 3, 0));
    unpack_some(stack, "unpack_limit", limit, offset)
}

/// Unpacks up to `limit` values (0: all) from an offset. With a limit the first result is where to go on, or -1.
fn unpack_some(stack: Stack, name: &str, limit: i64, offset: i64) -> Results {
    if !matches!(stack.kind(1), Kind::String | Kind::Number) {
        let found = stack.kind(1).name();
        return Err(format!("bad argument #1 to '{name}' (string expected, got {found})").into());
    }
    let data = stack.bytes(1);
    if offset < 0 || limit < 0 {
        let text = format!("Invalid request to unpack with offset of {offset} and limit of {}.", data.len());
        return Err(text.into());
    }
    let offset = offset as usize;
    if offset > data.len() {
        return Err(format!("Start offset {offset} greater than input length {}.", data.len()).into());
    }
    let mut reader = Reader { rest: &data[offset..], depth: 0 };
    let first = stack.top() + 1;
    let mut count = 0;
    while !reader.rest.is_empty() && (limit == 0 || count < limit) {
        if !stack.reserve(4) {
            return Err("too many return values at once; use unpack_one or unpack_limit instead.".into());
        }
        reader.push_value(stack)?;
        count += 1;
    }
    if limit > 0 {
        let next = data.len() - reader.rest.len();
        stack.push_number(if reader.rest.is_empty() { -1.0 } else { next as f64 });
        stack.insert(first);
        count += 1;
    }
    Ok(count as i32)
}

struct Reader<'a> {
    rest: &'a [u8],
    depth: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Failure> {
        let (taken, rest) =
            self.rest.split_at_checked(count).ok_or_else(|| Failure::from("Missing bytes in input."))?;
        self.rest = rest;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Failure> {
        Ok(self.take(N)?.try_into().expect("just taken"))
    }

    fn push_value(&mut self, stack: Stack) -> Result<(), Failure> {
        if self.depth > UNPACKED_DEPTH_MAX || !stack.reserve(4) {
            return Err("Bad data format in input.".into());
        }
        self.depth += 1;
        self.push_nested(stack)?;
        self.depth -= 1;
        Ok(())
    }

    fn push_nested(&mut self, stack: Stack) -> Result<(), Failure> {
        let code = self.take(1)?[0];
        match code {
            0x00..=0x7F => stack.push_number(f64::from(code)),
            0x80..=0x8F => return self.push_map(stack, usize::from(code & 15)),
            0x90..=0x9F => return self.push_array(stack, usize::from(code & 15)),
            0xA0..=0xBF => stack.push_bytes(self.take(usize::from(code & 31))?),
            0xC0 => stack.push_nil(),
            0xC2 => stack.push_boolean(false),
            0xC3 => stack.push_boolean(true),
            0xC4 | 0xD9 => {
                let length = self.fixed::<1>()?[0];
                stack.push_bytes(self.take(usize::from(length))?);
            }
            0xC5 | 0xDA => {
                let length = u16::from_be_bytes(self.fixed()?);
                stack.push_bytes(self.take(usize::from(length))?);
            }
            0xC6 | 0xDB => {
                let length = u32::from_be_bytes(self.fixed()?);
                stack.push_bytes(self.take(length as usize)?);
            }
            0xCA => stack.push_number(f64::from(f32::from_be_bytes(self.fixed()?))),
            0xCB => stack.push_number(f64::from_be_bytes(self.fixed()?)),
            0xCC => stack.push_number(f64::from(self.fixed::<1>()?[0])),
            0xCD => stack.push_number(f64::from(u16::from_be_bytes(self.fixed()?))),
            0xCE => stack.push_number(f64::from(u32::from_be_bytes(self.fixed()?))),
            0xCF => stack.push_number(u64::from_be_bytes(self.fixed()?) as f64),
            0xD0 => stack.push_number(f64::from(i8::from_be_bytes(self.fixed()?))),
            0xD1 => stack.push_number(f64::from(i16::from_be_bytes(self.fixed()?))),
            0xD2 => stack.push_number(f64::from(i32::from_be_bytes(self.fixed()?))),
            0xD3 => stack.push_number(i64::from_be_bytes(self.fixed()?) as f64),
            0xDC => {
                let count = u16::from_be_bytes(self.fixed()?);
                return self.push_array(stack, usize::from(count));
            }
            0xDD => {
                let count = u32::from_be_bytes(self.fixed()?);
                return self.push_array(stack, count as usize);
            }
            0xDE => {
                let count = u16::from_be_bytes(self.fixed()?);
                return self.push_map(stack, usize::from(count));
            }
            0xDF => {
                let count = u32::from_be_bytes(self.fixed()?);
                return self.push_map(stack, count as usize);
            }
            0xE0..=0xFF => stack.push_number(f64::from(code as i8)),
            _ => return Err("Bad data format in input.".into()),
        }
        Ok(())
    }

    fn push_array(&mut self, stack: Stack, count: usize) -> Result<(), Failure> {
        stack.push_table(count.min(self.rest.len()), 0);
        for place in 1..=count {
            self.push_value(stack)?;
            stack.raw_set_at(-2, place as i32);
        }
        Ok(())
    }

    fn push_map(&mut self, stack: Stack, count: usize) -> Result<(), Failure> {
        stack.push_table(0, count.min(self.rest.len()));
        for _ in 0..count {
            self.push_value(stack)?;
            self.push_value(stack)?;
            let is_key = match stack.kind(-2) {
                Kind::Nil => false,
                Kind::Number => !stack.number(-2).is_nan(),
                _ => true,
            };
            if is_key { stack.raw_set(-3) } else { stack.pop(2) }
        }
        Ok(())
    }
}
