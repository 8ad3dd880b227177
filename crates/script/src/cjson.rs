//! The library `cjson`, in the ways of lua-cjson 2.1: what it accepts, how it writes, what it says when it refuses.

use crate::lua::{Entry, Failure, Kind, Results, Stack};
use crate::number::general;

/// What the `encode_…` and `decode_…` functions set. A script's settings end with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    encode_depth_max: i32,
    decode_depth_max: i32,
    precision: i32,
    sparse_converts: bool,
    sparse_ratio: i32,
    sparse_safe: i32,
    encodes_invalid: Invalid,
    decodes_invalid: bool,
    keeps_buffer: bool,
}

/// What becomes of infinity and what is not a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Invalid {
    Refused,
    Written,
    Null,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            encode_depth_max: 1_000,
            decode_depth_max: 1_000,
            precision: 14,
            sparse_converts: false,
            sparse_ratio: 2,
            sparse_safe: 10,
            encodes_invalid: Invalid::Refused,
            decodes_invalid: true,
            keeps_buffer: true,
        }
    }
}

pub(crate) fn fill(stack: Stack) {
    let functions: &[Entry] = &[
        ("encode", |stack| stack.push_function(encode)),
        ("decode", |stack| stack.push_function(decode)),
        ("encode_max_depth", |stack| stack.push_function(encode_max_depth)),
        ("decode_max_depth", |stack| stack.push_function(decode_max_depth)),
        ("encode_number_precision", |stack| stack.push_function(encode_number_precision)),
        ("encode_sparse_array", |stack| stack.push_function(encode_sparse_array)),
        ("encode_keep_buffer", |stack| stack.push_function(encode_keep_buffer)),
        ("encode_invalid_numbers", |stack| stack.push_function(encode_invalid_numbers)),
        ("decode_invalid_numbers", |stack| stack.push_function(decode_invalid_numbers)),
        ("new", |stack| stack.push_function(new)),
    ];
    for (name, push) in functions {
        push(stack);
        stack.raw_set_field(-2, name);
    }
    stack.push_null();
    stack.raw_set_field(-2, "null");
    stack.push_bytes(b"cjson");
    stack.raw_set_field(-2, "_NAME");
    stack.push_bytes(b"2.1.0");
    stack.raw_set_field(-2, "_VERSION");
}

fn new(stack: Stack) -> Results {
    stack.push_table(0, 16);
    fill(stack);
    Ok(1)
}

// ---- settings -------------------------------------------------------------------------------------------------------

fn set_integer(
    stack: Stack,
    index: i32,
    name: &str,
    low: i32,
    high: i32,
    change: impl FnOnce(&mut Config, Option<i32>) -> i32,
) -> Result<(), Failure> {
    let mut given = None;
    if !matches!(stack.kind(index), Kind::None | Kind::Nil) {
        let value = stack.number(index) as i32;
        if !stack.is_number(index) || !(low..=high).contains(&value) {
            let text = format!("bad argument #{index} to '{name}' (expected integer between {low} and {high})");
            return Err(text.into());
        }
        given = Some(value);
    }
    let mut config = stack.shared().json.get();
    let now = change(&mut config, given);
    stack.shared().json.set(config);
    stack.push_number(f64::from(now));
    Ok(())
}

fn put<T: Copy>(place: &mut T, given: Option<T>) -> T {
    if let Some(value) = given {
        *place = value;
    }
    *place
}

fn set_switch(stack: Stack, index: i32, change: impl FnOnce(&mut Config, Option<bool>) -> bool) -> Result<(), Failure> {
    let given = match stack.kind(index) {
        Kind::None | Kind::Nil => None,
        Kind::String => Some(stack.bytes(index) == b"on"),
        _ => Some(stack.boolean(index)),
    };
    let mut config = stack.shared().json.get();
    let now = change(&mut config, given);
    stack.shared().json.set(config);
    stack.push_boolean(now);
    Ok(())
}

fn encode_max_depth(stack: Stack) -> Results {
    set_integer(stack, 1, "encode_max_depth", 1, i32::MAX, |config, given| put(&mut config.encode_depth_max, given))?;
    Ok(1)
}

fn decode_max_depth(stack: Stack) -> Results {
    set_integer(stack, 1, "decode_max_depth", 1, i32::MAX, |config, given| put(&mut config.decode_depth_max, given))?;
    Ok(1)
}

fn encode_number_precision(stack: Stack) -> Results {
    set_integer(stack, 1, "encode_number_precision", 1, 14, |config, given| put(&mut config.precision, given))?;
    Ok(1)
}

fn encode_sparse_array(stack: Stack) -> Results {
    set_switch(stack, 1, |config, given| put(&mut config.sparse_converts, given))?;
    let name = "encode_sparse_array";
    set_integer(stack, 2, name, 0, i32::MAX, |config, given| put(&mut config.sparse_ratio, given))?;
    set_integer(stack, 3, name, 0, i32::MAX, |config, given| put(&mut config.sparse_safe, given))?;
    Ok(3)
}

fn encode_keep_buffer(stack: Stack) -> Results {
    set_switch(stack, 1, |config, given| put(&mut config.keeps_buffer, given))?;
    Ok(1)
}

fn encode_invalid_numbers(stack: Stack) -> Results {
    let given = match stack.kind(1) {
        Kind::None | Kind::Nil => None,
        Kind::String if stack.bytes(1) == b"null" => Some(Invalid::Null),
        Kind::String => Some(if stack.bytes(1) == b"on" { Invalid::Written } else { Invalid::Refused }),
        _ => Some(if stack.boolean(1) { Invalid::Written } else { Invalid::Refused }),
    };
    let mut config = stack.shared().json.get();
    let now = put(&mut config.encodes_invalid, given);
    stack.shared().json.set(config);
    match now {
        Invalid::Null => stack.push_bytes(b"null"),
        other => stack.push_boolean(other == Invalid::Written),
    }
    Ok(1)
}

fn decode_invalid_numbers(stack: Stack) -> Results {
    set_switch(stack, 1, |config, given| put(&mut config.decodes_invalid, given))?;
    Ok(1)
}

// ---- encoding -------------------------------------------------------------------------------------------------------

fn encode(stack: Stack) -> Results {
    if stack.top() != 1 {
        return Err("bad argument #1 to 'encode' (expected 1 argument)".into());
    }
    let mut out = Vec::new();
    put_value(stack, &stack.shared().json.get(), 0, &mut out)?;
    stack.push_bytes(&out);
    Ok(1)
}

/// Writes the value on top, which stays.
fn put_value(stack: Stack, config: &Config, depth: i32, out: &mut Vec<u8>) -> Result<(), Failure> {
    match stack.kind(-1) {
        Kind::String => put_string(stack.bytes(-1), out),
        Kind::Number => put_number(stack.number(-1), config, out)?,
        Kind::Boolean => out.extend_from_slice(if stack.boolean(-1) { b"true" } else { b"false" }),
        Kind::Nil | Kind::Pointer => out.extend_from_slice(b"null"),
        Kind::Table => {
            let depth = depth + 1;
            if depth > config.encode_depth_max || !stack.reserve(3) {
                return Err(format!("Cannot serialise, excessive depth ({depth})").into());
            }
            match array_length(stack, config)? {
                Some(length) if length > 0 => put_array(stack, config, depth, length, out)?,
                _ => put_object(stack, config, depth, out)?,
            }
        }
        kind => return Err(format!("Cannot serialise {}: type not supported", kind.name()).into()),
    }
    Ok(())
}

/// The greatest index, if all keys are positive whole numbers; refuses an array that is mostly holes.
fn array_length(stack: Stack, config: &Config) -> Result<Option<i32>, Failure> {
    let mut greatest = 0;
    let mut count = 0;
    stack.push_nil();
    while stack.next(-2) {
        let key = stack.number(-2);
        if stack.kind(-2) != Kind::Number || key < 1.0 || key.fract() != 0.0 {
            stack.pop(2);
            return Ok(None);
        }
        greatest = greatest.max(key.min(f64::from(i32::MAX)) as i32);
        count += 1;
        stack.pop(1);
    }
    let is_sparse = config.sparse_ratio > 0
        && i64::from(greatest) > count * i64::from(config.sparse_ratio)
        && greatest > config.sparse_safe;
    if !is_sparse {
        return Ok(Some(greatest));
    }
    if config.sparse_converts {
        return Ok(None);
    }
    Err("Cannot serialise table: excessively sparse array".into())
}

fn put_array(stack: Stack, config: &Config, depth: i32, length: i32, out: &mut Vec<u8>) -> Result<(), Failure> {
    out.push(b'[');
    for place in 1..=length {
        if place > 1 {
            out.push(b',');
        }
        stack.raw_get_at(-1, place);
        put_value(stack, config, depth, out)?;
        stack.pop(1);
    }
    out.push(b']');
    Ok(())
}

fn put_object(stack: Stack, config: &Config, depth: i32, out: &mut Vec<u8>) -> Result<(), Failure> {
    out.push(b'{');
    let mut is_first = true;
    stack.push_nil();
    while stack.next(-2) {
        if !is_first {
            out.push(b',');
        }
        is_first = false;
        match stack.kind(-2) {
            Kind::String => put_string(stack.bytes(-2), out),
            Kind::Number => {
                out.push(b'"');
                put_number(stack.number(-2), config, out)?;
                out.push(b'"');
            }
            kind => {
                let kind = kind.name();
                return Err(format!("Cannot serialise {kind}: table key must be a number or string").into());
            }
        }
        out.push(b':');
        put_value(stack, config, depth, out)?;
        stack.pop(1);
    }
    out.push(b'}');
    Ok(())
}

fn put_number(value: f64, config: &Config, out: &mut Vec<u8>) -> Result<(), Failure> {
    if !value.is_finite() {
        match config.encodes_invalid {
            Invalid::Refused => return Err("Cannot serialise number: must not be NaN or Inf".into()),
            Invalid::Null => {
                out.extend_from_slice(b"null");
                return Ok(());
            }
            Invalid::Written => {}
        }
    }
    out.extend_from_slice(general(value, config.precision as usize).as_bytes());
    Ok(())
}

fn put_string(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in bytes {
        match byte {
            b'"' | b'\\' | b'/' => out.extend_from_slice(&[b'\\', *byte]),
            8 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            12 => out.extend_from_slice(b"\\f"),
            b'\r' => out.extend_from_slice(b"\\r"),
            0..32 | 127 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(*byte),
        }
    }
    out.push(b'"');
}

// ---- decoding -------------------------------------------------------------------------------------------------------

/// A piece of the text.
#[derive(Clone, Debug, PartialEq)]
enum Token {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    String(Vec<u8>),
    Number(f64),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
    Wrong(&'static str),
}

impl Token {
    fn name(&self) -> &'static str {
        match self {
            Self::ObjectBegin => "T_OBJ_BEGIN",
            Self::ObjectEnd => "T_OBJ_END",
            Self::ArrayBegin => "T_ARR_BEGIN",
            Self::ArrayEnd => "T_ARR_END",
            Self::String(_) => "T_STRING",
            Self::Number(_) => "T_NUMBER",
            Self::Boolean(_) => "T_BOOLEAN",
            Self::Null => "T_NULL",
            Self::Colon => "T_COLON",
            Self::Comma => "T_COMMA",
            Self::End => "T_END",
            Self::Wrong(text) => text,
        }
    }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    /// Where the last token began, or what was wrong with it.
    token_at: usize,
    depth: i32,
    config: Config,
}

fn decode(stack: Stack) -> Results {
    if stack.top() != 1 {
        return Err("bad argument #1 to 'decode' (expected 1 argument)".into());
    }
    if !matches!(stack.kind(1), Kind::String | Kind::Number) {
        let found = stack.kind(1).name();
        return Err(format!("bad argument #1 to 'decode' (string expected, got {found})").into());
    }
    let text = stack.bytes(1);
    if text.len() >= 2 && (text[0] == 0 || text[1] == 0) {
        return Err("JSON parser does not support UTF-16 or UTF-32".into());
    }
    let mut parser = Parser { text, at: 0, token_at: 0, depth: 0, config: stack.shared().json.get() };
    let token = parser.next();
    parser.push_value(stack, token)?;
    match parser.next() {
        Token::End => Ok(1),
        token => Err(parser.error("the end", &token)),
    }
}

impl Parser<'_> {
    fn error(&self, expected: &str, found: &Token) -> Failure {
        format!("Expected {expected} but found {} at character {}", found.name(), self.token_at + 1).into()
    }

    fn push_value(&mut self, stack: Stack, token: Token) -> Result<(), Failure> {
        match token {
            Token::String(bytes) => stack.push_bytes(&bytes),
            Token::Number(value) => stack.push_number(value),
            Token::Boolean(value) => stack.push_boolean(value),
            Token::Null => stack.push_null(),
            Token::ObjectBegin => return self.push_object(stack),
            Token::ArrayBegin => return self.push_array(stack),
            token => return Err(self.error("value", &token)),
        }
        Ok(())
    }

    fn descend(&mut self, stack: Stack) -> Result<(), Failure> {
        self.depth += 1;
        if self.depth > self.config.decode_depth_max || !stack.reserve(3) {
            let (depth, at) = (self.depth, self.at);
            return Err(format!("Found too many nested data structures ({depth}) at character {at}").into());
        }
        stack.push_table(0, 0);
        Ok(())
    }

    fn push_object(&mut self, stack: Stack) -> Result<(), Failure> {
        self.descend(stack)?;
        let mut token = self.next();
        if token != Token::ObjectEnd {
            loop {
                let Token::String(key) = token else { return Err(self.error("object key string", &token)) };
                stack.push_bytes(&key);
                match self.next() {
                    Token::Colon => {}
                    token => return Err(self.error("colon", &token)),
                }
                let value = self.next();
                self.push_value(stack, value)?;
                stack.raw_set(-3);
                match self.next() {
                    Token::ObjectEnd => break,
                    Token::Comma => token = self.next(),
                    token => return Err(self.error("comma or object end", &token)),
                }
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn push_array(&mut self, stack: Stack) -> Result<(), Failure> {
        self.descend(stack)?;
        let mut token = self.next();
        if token != Token::ArrayEnd {
            for place in 1.. {
                self.push_value(stack, token)?;
                stack.raw_set_at(-2, place);
                match self.next() {
                    Token::ArrayEnd => break,
                    Token::Comma => token = self.next(),
                    token => return Err(self.error("comma or array end", &token)),
                }
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn next(&mut self) -> Token {
        while self.text.get(self.at).is_some_and(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        self.token_at = self.at;
        let rest = &self.text[self.at..];
        let Some(first) = rest.first() else { return Token::End };
        let (token, length) = match first {
            b'{' => (Token::ObjectBegin, 1),
            b'}' => (Token::ObjectEnd, 1),
            b'[' => (Token::ArrayBegin, 1),
            b']' => (Token::ArrayEnd, 1),
            b':' => (Token::Colon, 1),
            b',' => (Token::Comma, 1),
            b'"' => return self.string(),
            b'-' | b'0'..=b'9' => return self.number(),
            _ if rest.starts_with(b"true") => (Token::Boolean(true), 4),
            _ if rest.starts_with(b"false") => (Token::Boolean(false), 5),
            _ if rest.starts_with(b"null") => (Token::Null, 4),
            _ if self.config.decodes_invalid && is_invalid_number(rest) => return self.number(),
            _ => (Token::Wrong("invalid token"), 0),
        };
        self.at += length;
        token
    }

    fn string(&mut self) -> Token {
        let mut bytes = Vec::new();
        self.at += 1;
        loop {
            let Some(byte) = self.text.get(self.at) else {
                self.token_at = self.at;
                return Token::Wrong("unexpected end of string");
            };
            match byte {
                b'"' => {
                    self.at += 1;
                    return Token::String(bytes);
                }
                b'\\' => {
                    if let Err(text) = self.escape(&mut bytes) {
                        self.token_at = self.at;
                        return Token::Wrong(text);
                    }
                }
                _ => {
                    bytes.push(*byte);
                    self.at += 1;
                }
            }
        }
    }

    /// What a backslash begins.
    fn escape(&mut self, bytes: &mut Vec<u8>) -> Result<(), &'static str> {
        let byte = match self.text.get(self.at + 1) {
            Some(b'u') => return self.unicode(bytes),
            Some(byte @ (b'"' | b'\\' | b'/')) => *byte,
            Some(b'b') => 8,
            Some(b't') => b'\t',
            Some(b'n') => b'\n',
            Some(b'f') => 12,
            Some(b'r') => b'\r',
            _ => return Err("invalid escape code"),
        };
        bytes.push(byte);
        self.at += 2;
        Ok(())
    }

    fn unicode(&mut self, bytes: &mut Vec<u8>) -> Result<(), &'static str> {
        const WRONG: &str = "invalid unicode escape code";
        let unit = |at: usize| {
            let text = self.text.get(at..at + 6)?;
            let digits = std::str::from_utf8(text.strip_prefix(b"\\u")?).ok()?;
            digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, 16).ok())?
        };
        let high = unit(self.at).ok_or(WRONG)?;
        let mut length = 6;
        let code = match high {
            0xD800..0xDC00 => {
                let low = unit(self.at + 6).filter(|low| (0xDC00..0xE000).contains(low)).ok_or(WRONG)?;
                length = 12;
                0x10000 + ((high & 0x3FF) << 10) + (low & 0x3FF)
            }
            0xDC00..0xE000 => return Err(WRONG),
            code => code,
        };
        let letter = char::from_u32(code).ok_or(WRONG)?;
        bytes.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
        self.at += length;
        Ok(())
    }

    /// As much as reads as a number, as C's `strtod` takes it.
    fn number(&mut self) -> Token {
        let rest = &self.text[self.at..];
        if !self.config.decodes_invalid && is_invalid_number(rest) {
            return Token::Wrong("invalid number");
        }
        match leading_number(rest) {
            Some((value, length)) => {
                self.at += length;
                Token::Number(value)
            }
            None => Token::Wrong("invalid number"),
        }
    }
}

/// What strict JSON does not know as a number although C does: infinity, hexadecimal digits, leading zeros.
fn is_invalid_number(text: &[u8]) -> bool {
    let (sign, text) = match text {
        [b'+', ..] => return true,
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    match text {
        [b'0', b'x' | b'X', ..] => true,
        [b'0', next, ..] => next.is_ascii_digit(),
        [b'0'..=b'9', ..] => false,
        _ => {
            let starts = |word: &[u8]| text.len() >= word.len() && text[..word.len()].eq_ignore_ascii_case(word);
            starts(b"inf") || starts(b"nan") || (sign && text.is_empty())
        }
    }
}

fn leading_number(text: &[u8]) -> Option<(f64, usize)> {
    let sign_length = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let sign = if text.first() == Some(&b'-') { -1.0 } else { 1.0 };
    let body = &text[sign_length..];
    let starts = |word: &[u8]| body.len() >= word.len() && body[..word.len()].eq_ignore_ascii_case(word);
    for (word, value) in [(&b"infinity"[..], f64::INFINITY), (b"inf", f64::INFINITY), (b"nan", f64::NAN)] {
        if starts(word) {
            return Some((sign * value, sign_length + word.len()));
        }
    }
    let count = |from: usize, is_digit: fn(&u8) -> bool| body[from..].iter().take_while(|byte| is_digit(byte)).count();
    if starts(b"0x") {
        let digits = count(2, u8::is_ascii_hexdigit);
        let value = body[2..2 + digits].iter().fold(0.0, |value, digit| {
            value * 16.0 + f64::from((*digit as char).to_digit(16).expect("a hexadecimal digit"))
        });
        return (digits > 0).then_some((sign * value, sign_length + 2 + digits));
    }
    let mut length = count(0, u8::is_ascii_digit);
    let mut digits = length;
    if body.get(length) == Some(&b'.') {
        let decimals = count(length + 1, u8::is_ascii_digit);
        digits += decimals;
        length += 1 + decimals;
    }
    if digits == 0 {
        return None;
    }
    if matches!(body.get(length), Some(b'e' | b'E')) {
        let exponent_sign = usize::from(matches!(body.get(length + 1), Some(b'+' | b'-')));
        let exponent = count((length + 1 + exponent_sign).min(body.len()), u8::is_ascii_digit);
        if exponent > 0 {
            length += 1 + exponent_sign + exponent;
        }
    }
    let value: f64 = std::str::from_utf8(&body[..length]).ok()?.parse().ok()?;
    Some((sign * value, sign_length + length))
}
