//! The library `struct`: values to bytes in C's layouts and back, after Roberto Ierusalimschy's.

use crate::lua::{Failure, Kind, Results, Stack};

const INTEGER_BYTES_MAX: usize = 32;
/// Alignment of a 64-bit machine.
const NATIVE_ALIGNMENT: usize = 8;

pub(crate) fn fill(stack: Stack) {
    stack.push_function(pack);
    stack.raw_set_field(-2, "pack");
    stack.push_function(unpack);
    stack.raw_set_field(-2, "unpack");
    stack.push_function(size);
    stack.raw_set_field(-2, "size");
}

/// One thing that a format asks for.
enum Field {
    Padding,
    Integer {
        size: usize,
        is_signed: bool,
    },
    /// Bytes of a fixed number; 0: as many as the number before says.
    Bytes(usize),
    /// Bytes up to a zero.
    Text,
    Float,
    Double,
}

struct Format<'a> {
    rest: &'a [u8],
    function: &'static str,
    is_little: bool,
    alignment: usize,
}

impl<'a> Format<'a> {
    fn new(stack: Stack, function: &'static str) -> Result<Self, Failure> {
        if !matches!(stack.kind(1), Kind::String | Kind::Number) {
            let found = stack.kind(1).name();
            return Err(format!("bad argument #1 to '{function}' (string expected, got {found})").into());
        }
        Ok(Self { rest: stack.bytes(1), function, is_little: true, alignment: 1 })
    }

    fn number(&mut self) -> Result<Option<usize>, Failure> {
        let mut number = None;
        while let Some((digit, rest)) = self.rest.split_first().filter(|(byte, _)| byte.is_ascii_digit()) {
            let value: usize = number.unwrap_or(0);
            let digit = usize::from(digit - b'0');
            if value > (i32::MAX as usize - digit) / 10 {
                return Err("integral size overflow".into());
            }
            number = Some(value * 10 + digit);
            self.rest = rest;
        }
        Ok(number)
    }

    fn integer(&mut self, default: usize) -> Result<usize, Failure> {
        let size = self.number()?.unwrap_or(default);
        if size > INTEGER_BYTES_MAX {
            return Err(format!("integral size {size} is larger than limit of {INTEGER_BYTES_MAX}").into());
        }
        Ok(size)
    }

    /// The next field, with its size for alignment.
    fn next(&mut self) -> Result<Option<(Field, usize)>, Failure> {
        while let Some((option, rest)) = self.rest.split_first() {
            self.rest = rest;
            let integer = |size, is_signed| Ok(Some((Field::Integer { size, is_signed }, size)));
            return match option {
                b'<' => {
                    self.is_little = true;
                    continue;
                }
                b'>' => {
                    self.is_little = false;
                    continue;
                }
                b'=' => {
                    self.is_little = cfg!(target_endian = "little");
                    continue;
                }
                b'!' => {
                    let alignment = self.number()?.unwrap_or(NATIVE_ALIGNMENT);
                    if !alignment.is_power_of_two() {
                        return Err(format!("alignment {alignment} is not a power of 2").into());
                    }
                    self.alignment = alignment;
                    continue;
                }
                b' ' => continue,
                b'b' => integer(1, true),
                b'B' => integer(1, false),
                b'h' => integer(2, true),
                b'H' => integer(2, false),
                b'l' => integer(8, true),
                b'L' | b'T' => integer(8, false),
                b'i' => {
                    let size = self.integer(4)?;
                    integer(size, true)
                }
                b'I' => {
                    let size = self.integer(4)?;
                    integer(size, false)
                }
                b'x' => Ok(Some((Field::Padding, 1))),
                b'c' => {
                    let size = self.number()?.unwrap_or(1);
                    Ok(Some((Field::Bytes(size), size)))
                }
                b's' => Ok(Some((Field::Text, 0))),
                b'f' => Ok(Some((Field::Float, 4))),
                b'd' => Ok(Some((Field::Double, 8))),
                other => {
                    let (function, other) = (self.function, *other as char);
                    Err(format!("bad argument #1 to '{function}' (invalid format option '{other}')").into())
                }
            };
        }
        Ok(None)
    }

    /// Bytes to leave free before a field at a place.
    fn gap(&self, field: &Field, size: usize, at: usize) -> usize {
        if size == 0 || matches!(field, Field::Bytes(_) | Field::Padding) {
            return 0;
        }
        let alignment = size.min(self.alignment);
        if alignment > 1 { (alignment - (at & (alignment - 1))) & (alignment - 1) } else { 0 }
    }
}

fn argument_error(function: &str, index: i32, text: &str) -> Failure {
    format!("bad argument #{index} to '{function}' ({text})").into()
}

fn pack(stack: Stack) -> Results {
    let mut format = Format::new(stack, "pack")?;
    let mut out: Vec<u8> = Vec::new();
    let mut index = 2;
    while let Some((field, size)) = format.next()? {
        out.resize(out.len() + format.gap(&field, size, out.len()), 0);
        let number = || {
            if stack.is_number(index) {
                return Ok(stack.number(index));
            }
            let text = format!("number expected, got {}", stack.kind(index).name());
            Err(argument_error("pack", index, &text))
        };
        let bytes = || {
            if matches!(stack.kind(index), Kind::String | Kind::Number) {
                return Ok(stack.bytes(index));
            }
            let text = format!("string expected, got {}", stack.kind(index).name());
            Err(argument_error("pack", index, &text))
        };
        match field {
            Field::Padding => {
                out.push(0);
                continue;
            }
            Field::Integer { size, .. } => {
                let value = number()?;
                let value = if value < 0.0 { value as i64 as u64 } else { value as u64 };
                put_integer(&mut out, value, size, format.is_little);
            }
            Field::Bytes(count) => {
                let bytes = bytes()?;
                let count = if count == 0 { bytes.len() } else { count };
                if bytes.len() < count {
                    return Err(argument_error("pack", index, "string too short"));
                }
                out.extend_from_slice(&bytes[..count]);
            }
            Field::Text => {
                out.extend_from_slice(bytes()?);
                out.push(0);
            }
            Field::Float => {
                let value = number()? as f32;
                out.extend_from_slice(&if format.is_little { value.to_le_bytes() } else { value.to_be_bytes() });
            }
            Field::Double => {
                let value = number()?;
                out.extend_from_slice(&if format.is_little { value.to_le_bytes() } else { value.to_be_bytes() });
            }
        }
        index += 1;
    }
    stack.push_bytes(&out);
    Ok(1)
}

fn put_integer(out: &mut Vec<u8>, value: u64, size: usize, is_little: bool) {
    let mut bytes = [0; INTEGER_BYTES_MAX];
    bytes[..8].copy_from_slice(&value.to_le_bytes());
    if is_little {
        out.extend_from_slice(&bytes[..size]);
    } else {
        out.extend(bytes[..size].iter().rev());
    }
}

fn take_integer(bytes: &[u8], is_little: bool, is_signed: bool) -> f64 {
    let mut value = 0u64;
    let digits: &mut dyn Iterator<Item = &u8> = if is_little { &mut bytes.iter().rev() } else { &mut bytes.iter() };
    for byte in digits {
        value = value << 8 | u64::from(*byte);
    }
    if !is_signed {
        return value as f64;
    }
    let unused = 64 - 8 * bytes.len().min(8) as u32;
    if unused == 64 { 0.0 } else { ((value << unused) as i64 >> unused) as f64 }
}

fn unpack(stack: Stack) -> Results {
    let mut format = Format::new(stack, "unpack")?;
    if !matches!(stack.kind(2), Kind::String | Kind::Number) {
        let text = format!("string expected, got {}", stack.kind(2).name());
        return Err(argument_error("unpack", 2, &text));
    }
    let data = stack.bytes(2);
    let position = if stack.kind(3) == Kind::None { 1.0 } else { stack.number(3) };
    if position < 1.0 {
        return Err(argument_error("unpack", 3, "offset must be 1 or greater"));
    }
    let mut at = position as usize - 1;
    let mut count = 0;
    while let Some((field, size)) = format.next()? {
        at = at.saturating_add(format.gap(&field, size, at));
        let short = || argument_error("unpack", 2, "data string too short");
        if at > data.len() || size > data.len() - at {
            return Err(short());
        }
        if !stack.reserve(2) {
            return Err("too many results".into());
        }
        let here = &data[at..at + size];
        let mut taken = size;
        match field {
            Field::Padding => {
                at += 1;
                continue;
            }
            Field::Integer { is_signed, .. } => {
                stack.push_number(take_integer(here, format.is_little, is_signed));
            }
            Field::Bytes(0) => {
                if count == 0 || stack.kind(-1) != Kind::Number {
                    return Err("format 'c0' needs a previous size".into());
                }
                let length = stack.number(-1);
                stack.pop(1);
                count -= 1;
                if length < 0.0 || length > (data.len() - at) as f64 {
                    return Err(short());
                }
                taken = length as usize;
                stack.push_bytes(&data[at..at + taken]);
            }
            Field::Bytes(_) => stack.push_bytes(here),
            Field::Text => {
                let Some(length) = data[at..].iter().position(|byte| *byte == 0) else {
                    return Err("unfinished string in data".into());
                };
                stack.push_bytes(&data[at..at + length]);
                taken = length + 1;
            }
            Field::Float => {
                let bytes: [u8; 4] = here.try_into().expect("four bytes");
                let value = if format.is_little { f32::from_le_bytes(bytes) } else { f32::from_be_bytes(bytes) };
                stack.push_number(f64::from(value));
            }
            Field::Double => {
                let bytes: [u8; 8] = here.try_into().expect("eight bytes");
                stack.push_number(if format.is_little { f64::from_le_bytes(bytes) } else { f64::from_be_bytes(bytes) });
            }
        }
        at += taken;
        count += 1;
    }
    stack.push_number((at + 1) as f64);
    Ok(count + 1)
}

fn size(stack: Stack) -> Results {
    let mut format = Format::new(stack, "size")?;
    let mut at = 0usize;
    while let Some((field, size)) = format.next()? {
        let text = match field {
            Field::Text => "variable-size format in 'size'",
            Field::Bytes(0) => "variable-length format",
            _ => {
                at = at.saturating_add(format.gap(&field, size, at)).saturating_add(size);
                continue;
            }
        };
        return Err(argument_error("size", 1, text));
    }
    stack.push_number(at as f64);
    Ok(1)
}
