//! Bytes to requests, on the server's side of a connection.
//!
//! The parser looks at a slice that somebody else owns and answers with spans of it: nothing is copied. When a request
//! has not come in full the parser remembers how far it understood, so that every byte is looked at once however the
//! stream was cut. Arrays of bulk strings are what clients send; a line of words, quoted as a shell would, is what a
//! person types into a raw connection. Limits, leniencies and error texts are those of Redis 7.0 (`networking.c`,
//! `sdssplitargs`).

use std::fmt;

use crate::args::Span;

/// Largest bulk string unless configured otherwise (`proto-max-bulk-len`), in bytes.
pub const BULK_BYTES_MAX: usize = 512 * 1024 * 1024;
/// Most words in a request.
pub const WORDS_MAX: usize = 1024 * 1024;
/// Longest line: an inline request, or the count in front of an array or a bulk string, in bytes.
pub const LINE_BYTES_MAX: usize = 64 * 1024;
/// Largest request in all, in bytes; spans could reach 4 GiB.
pub const REQUEST_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// Most words in a request of a client that has yet to authenticate.
pub const UNAUTHENTICATED_WORDS_MAX: usize = 10;
/// Largest bulk string of a client that has yet to authenticate, in bytes.
pub const UNAUTHENTICATED_BULK_BYTES_MAX: usize = 16_384;
/// Room that is worth reserving on a client's word alone, in bytes; beyond it, bytes must have come.
const RESERVE_BYTES_MAX: usize = 64 * 1024;
/// Spans kept allocated for the next request.
const SPANS_KEPT_MAX: usize = 1024;

const _: () = assert!(REQUEST_BYTES_MAX < u32::MAX as usize, "a span must reach the end of any request");
const _: () = assert!(BULK_BYTES_MAX < REQUEST_BYTES_MAX && LINE_BYTES_MAX < REQUEST_BYTES_MAX);

/// What a request may be at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest bulk string, in bytes (`proto-max-bulk-len`).
    pub bulk_bytes_max: usize,
    /// Most words.
    pub words_max: usize,
    /// Largest request in all, in bytes, at most [`REQUEST_BYTES_MAX`].
    pub request_bytes_max: usize,
    /// False until the client has shown who it is, where that is asked for: then
    /// [`UNAUTHENTICATED_WORDS_MAX`] and [`UNAUTHENTICATED_BULK_BYTES_MAX`] hold as well.
    pub authenticated: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bulk_bytes_max: BULK_BYTES_MAX,
            words_max: WORDS_MAX,
            request_bytes_max: REQUEST_BYTES_MAX,
            authenticated: true,
        }
    }
}

/// What the parser made of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The request at the input's start has not come in full. Call again with the same bytes and more behind them.
    Incomplete {
        /// Bytes, from the input's start, worth having room for: what is known to be needed, but never more than
        /// twice what has come (or 64 KiB), so that a large announcement alone costs no memory.
        need: usize,
    },
    /// A request without a word, to be passed over.
    Empty {
        /// Bytes it took.
        consumed: usize,
    },
    /// A request; its words are spans of the input.
    Request {
        /// Bytes it took.
        consumed: usize,
    },
    /// A request typed as a line; its words are spans of [`RequestParser::line`], which holds them with quotes and
    /// escapes resolved.
    Inline {
        /// Bytes it took.
        consumed: usize,
    },
}

/// Why a connection cannot go on: the bytes no longer say where the next request begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The array's length is not a number in range.
    InvalidMultibulkLength,
    /// More words than a client may send before it authenticates.
    UnauthenticatedMultibulkLength,
    /// The array's length does not end.
    TooBigMultibulkCount,
    /// A bulk string's length does not end.
    TooBigBulkCount,
    /// Something other than a bulk string inside a request.
    ExpectedBulk(u8),
    /// A bulk string's length is not a number in range.
    InvalidBulkLength,
    /// A longer string than a client may send before it authenticates.
    UnauthenticatedBulkLength,
    /// The line does not end.
    TooBigInline,
    /// A quote was not closed, or something follows it.
    UnbalancedQuotes,
    /// The words together are too large.
    TooBigRequest,
}

/// The text of the error reply, behind its `ERR `; the connection is closed after it.
impl fmt::Display for ProtocolError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Protocol error: ")?;
        formatter.write_str(match self {
            Self::InvalidMultibulkLength => "invalid multibulk length",
            Self::UnauthenticatedMultibulkLength => "unauthenticated multibulk length",
            Self::TooBigMultibulkCount => "too big mbulk count string",
            Self::TooBigBulkCount => "too big bulk count string",
            Self::ExpectedBulk(byte) => return write!(formatter, "expected '$', got '{}'", char::from(*byte)),
            Self::InvalidBulkLength => "invalid bulk length",
            Self::UnauthenticatedBulkLength => "unauthenticated bulk length",
            Self::TooBigInline => "too big inline request",
            Self::UnbalancedQuotes => "unbalanced quotes in request",
            Self::TooBigRequest => "too big request",
        })
    }
}

impl std::error::Error for ProtocolError {}

/// What the byte at the parser's position belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Expecting {
    /// The first byte of a request.
    #[default]
    Start,
    /// A line that is a request.
    Line,
    /// `*`, a count, and a line end.
    Count,
    /// `$`, a length, and a line end.
    Length,
    /// That many bytes and a line end.
    Bytes(usize),
}

/// Parses the requests of one connection.
///
/// ```text
///    input:  *2\r\n $3\r\n GET\r\n $4\r\n ci…
///                                      ▲   ▲
///                              position    the end of what has come: Incomplete, expecting Bytes(4)
/// ```
#[derive(Debug, Default)]
pub struct RequestParser {
    expecting: Expecting,
    /// Bytes of the input that are understood.
    position: usize,
    /// Bytes of the input in which the end of the line at `position` was looked for in vain.
    scanned: usize,
    /// Words that are still to come.
    words_left: usize,
    /// The words understood so far of a request that has not come in full.
    spans: Vec<Span>,
    /// Words of an inline request.
    line: Vec<u8>,
}

impl RequestParser {
    /// A parser at the start of a connection's stream. It allocates nothing until a request comes in pieces.
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses the first request of `input` into `spans`, which are cleared first.
    ///
    /// After [`Parsed::Incomplete`] the next input must begin with the same bytes; after any other answer, with the
    /// byte behind those consumed. `spans` need not be the same from call to call: a core's sessions may share one.
    pub fn parse(&mut self, input: &[u8], limits: &Limits, spans: &mut Vec<Span>) -> Result<Parsed, ProtocolError> {
        spans.clear();
        match self.expecting {
            Expecting::Start => match input.first() {
                None => return Ok(Parsed::Incomplete { need: 1 }),
                Some(b'*') => self.expecting = Expecting::Count,
                Some(_) => {
                    self.expecting = Expecting::Line;
                    return self.parse_line(input, spans);
                }
            },
            Expecting::Line => return self.parse_line(input, spans),
            Expecting::Count => {}
            Expecting::Length | Expecting::Bytes(_) => {
                if spans.capacity() > SPANS_KEPT_MAX {
                    *spans = Vec::new(); // else a session would keep another's largest request allocated
                }
                std::mem::swap(&mut self.spans, spans);
            }
        }
        self.parse_array(input, limits, spans)
    }

    /// Where the words of the last [`Parsed::Inline`] lie.
    pub fn line(&self) -> &[u8] {
        &self.line
    }

    /// True if no request has begun: what the connection sent so far has been answered for.
    pub fn is_idle(&self) -> bool {
        self.expecting == Expecting::Start
    }

    fn parse_array(&mut self, input: &[u8], limits: &Limits, spans: &mut Vec<Span>) -> Result<Parsed, ProtocolError> {
        // Kept in registers; written back only when the request ends or the input does.
        let mut position = self.position;
        let mut words_left = self.words_left;
        let mut expecting = self.expecting;

        if expecting == Expecting::Count {
            let count = match short_number(input, 1) {
                Some((count, next)) => {
                    position = next;
                    count
                }
                None => match self.long_number(input, 1)? {
                    Number::Incomplete if input.len() > LINE_BYTES_MAX => {
                        return Err(ProtocolError::TooBigMultibulkCount);
                    }
                    Number::Incomplete => return Ok(self.incomplete(input, input.len() + 1)),
                    Number::Malformed => return Err(ProtocolError::InvalidMultibulkLength),
                    Number::Value(value, next) => {
                        position = next;
                        value.max(0) as usize
                    }
                },
            };
            if count > limits.words_max {
                return Err(ProtocolError::InvalidMultibulkLength);
            }
            if count > UNAUTHENTICATED_WORDS_MAX && !limits.authenticated {
                return Err(ProtocolError::UnauthenticatedMultibulkLength);
            }
            if count == 0 {
                self.restart();
                return Ok(Parsed::Empty { consumed: position });
            }
            words_left = count;
            spans.reserve(count.min(SPANS_KEPT_MAX));
            expecting = Expecting::Length;
        }

        while words_left > 0 {
            let len = if let Expecting::Bytes(len) = expecting {
                expecting = Expecting::Length;
                len
            } else {
                let (len, next) = match input.get(position) {
                    Some(b'$') => match short_number(input, position + 1) {
                        Some(found) => found,
                        None => {
                            self.save(position, words_left, Expecting::Length);
                            match self.length_line(input)? {
                                Some(found) => found,
                                None => return Ok(self.suspend(input, input.len() + 1, spans)),
                            }
                        }
                    },
                    _ => {
                        self.save(position, words_left, Expecting::Length);
                        match self.length_line(input)? {
                            Some(found) => found,
                            None => return Ok(self.suspend(input, input.len() + 1, spans)),
                        }
                    }
                };
                if len > limits.bulk_bytes_max {
                    return Err(ProtocolError::InvalidBulkLength);
                }
                if len > UNAUTHENTICATED_BULK_BYTES_MAX && !limits.authenticated {
                    return Err(ProtocolError::UnauthenticatedBulkLength);
                }
                if len > limits.request_bytes_max.min(REQUEST_BYTES_MAX).saturating_sub(next + 2) {
                    return Err(ProtocolError::TooBigRequest);
                }
                position = next;
                len
            };
            // The two bytes behind a string are not looked at: Redis does not, and so there are clients that err.
            let end = position + len;
            if input.len() < end + 2 {
                self.save(position, words_left, Expecting::Bytes(len));
                return Ok(self.suspend(input, end + 2, spans));
            }
            spans.push(Span { start: position as u32, end: end as u32 });
            position = end + 2;
            words_left -= 1;
        }
        self.restart();
        Ok(Parsed::Request { consumed: position })
    }

    fn parse_line(&mut self, input: &[u8], spans: &mut Vec<Span>) -> Result<Parsed, ProtocolError> {
        // Redis looks for the line's end with strchr: a zero byte hides everything behind it.
        let searched = &input[..input.len().min(LINE_BYTES_MAX + 1)];
        let end = match memchr::memchr2(b'\n', 0, &searched[self.scanned.min(searched.len())..]) {
            Some(offset) if searched[self.scanned + offset] == b'\n' => self.scanned + offset,
            found => {
                if input.len() > LINE_BYTES_MAX {
                    return Err(ProtocolError::TooBigInline);
                }
                self.scanned = found.map_or(input.len(), |offset| self.scanned + offset);
                return Ok(self.incomplete(input, input.len() + 1));
            }
        };
        let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
        self.restart();
        if self.line.capacity() > RESERVE_BYTES_MAX / 16 {
            self.line = Vec::new();
        }
        split_words(line, &mut self.line, spans)?;
        if spans.is_empty() {
            return Ok(Parsed::Empty { consumed: end + 1 });
        }
        Ok(Parsed::Inline { consumed: end + 1 })
    }

    /// The length of the bulk string announced at `self.position` and the position behind the line; none if the line
    /// has not come in full. The careful twin of `short_number`.
    #[cold]
    fn length_line(&mut self, input: &[u8]) -> Result<Option<(usize, usize)>, ProtocolError> {
        match self.long_number(input, self.position + 1)? {
            Number::Incomplete if input.len() - self.position > LINE_BYTES_MAX => Err(ProtocolError::TooBigBulkCount),
            Number::Incomplete => Ok(None),
            _ if input[self.position] != b'$' => Err(ProtocolError::ExpectedBulk(input[self.position])),
            Number::Malformed | Number::Value(..0, _) => Err(ProtocolError::InvalidBulkLength),
            Number::Value(value, next) => Ok(Some((value as usize, next))),
        }
    }

    /// The number between `start` and the line's end.
    #[cold]
    fn long_number(&mut self, input: &[u8], start: usize) -> Result<Number, ProtocolError> {
        let line = start - 1;
        let from = self.scanned.max(line).min(input.len());
        match memchr::memchr2(b'\r', 0, &input[from..]) {
            Some(offset) if input[from + offset] == b'\r' => {
                let end = from + offset;
                if input.len() < end + 2 {
                    self.scanned = end;
                    return Ok(Number::Incomplete);
                }
                self.scanned = 0;
                // An end at `line` itself can only be where no `$` is.
                Ok(match input.get(start..end).and_then(strict_integer) {
                    Some(value) => Number::Value(value, end + 2),
                    None => Number::Malformed,
                })
            }
            found => {
                self.scanned = found.map_or(input.len(), |offset| from + offset);
                Ok(Number::Incomplete)
            }
        }
    }

    fn save(&mut self, position: usize, words_left: usize, expecting: Expecting) {
        self.position = position;
        self.words_left = words_left;
        self.expecting = expecting;
    }

    /// Keeps the words understood so far until more bytes have come.
    fn suspend(&mut self, input: &[u8], need: usize, spans: &mut Vec<Span>) -> Parsed {
        std::mem::swap(&mut self.spans, spans);
        spans.clear();
        self.incomplete(input, need)
    }

    fn incomplete(&self, input: &[u8], need: usize) -> Parsed {
        Parsed::Incomplete { need: need.min((input.len() * 2).max(RESERVE_BYTES_MAX)) }
    }

    fn restart(&mut self) {
        self.expecting = Expecting::Start;
        self.position = 0;
        self.scanned = 0;
    }
}

/// A request seen in passing: see [`glance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glance {
    /// Bytes it takes.
    pub consumed: usize,
    /// Its first words, as spans of the input; of one with fewer words the rest is empty.
    pub words: [Span; GLANCE_WORDS],
}

/// How many words of a request a [`Glance`] shows.
pub const GLANCE_WORDS: usize = 5;

/// Looks at the request at the start of `input` without taking it. None unless it has come in full, is an array of a
/// few words, and has at least two: anyone who wants to know more must parse.
#[inline]
pub fn glance(input: &[u8]) -> Option<Glance> {
    const WORDS: std::ops::RangeInclusive<usize> = 2..=16;
    if input.first() != Some(&b'*') {
        return None;
    }
    let (count, mut position) = short_number(input, 1).filter(|(count, _)| WORDS.contains(count))?;
    let mut words = [Span { start: 0, end: 0 }; GLANCE_WORDS];
    for word in 0..count {
        if input.get(position) != Some(&b'$') {
            return None;
        }
        let (len, start) = short_number(input, position + 1)?;
        let end = start + len;
        if input.len() < end + 2 {
            return None;
        }
        if let Some(span) = words.get_mut(word) {
            *span = Span { start: start as u32, end: end as u32 };
        }
        position = end + 2;
    }
    Some(Glance { consumed: position, words })
}

enum Number {
    Incomplete,
    Malformed,
    Value(i64, usize),
}

/// A number of at most nine digits that ends in `\r`, and the position two bytes on; none if there is anything else,
/// or too little, and the careful way must look.
///
/// One and two digits, which is what nearly every length has, are settled by one look at four bytes.
#[inline(always)]
fn short_number(input: &[u8], start: usize) -> Option<(usize, usize)> {
    if let Some(&[first, second, third, _]) = input.get(start..start + 4).and_then(|bytes| bytes.first_chunk()) {
        let (first, digit) = (first.wrapping_sub(b'0'), second.wrapping_sub(b'0'));
        if second == b'\r' && first <= 9 {
            return Some((usize::from(first), start + 3));
        }
        if third == b'\r' && first.wrapping_sub(1) < 9 && digit <= 9 {
            return Some((usize::from(first) * 10 + usize::from(digit), start + 4));
        }
    }
    middling_number(input, start)
}

fn middling_number(input: &[u8], start: usize) -> Option<(usize, usize)> {
    let bytes = input.get(start..)?;
    let mut value = 0;
    for (index, &byte) in bytes.iter().enumerate().take(10) {
        let digit = byte.wrapping_sub(b'0');
        if digit <= 9 {
            value = value * 10 + usize::from(digit);
        } else {
            let zero_leads = index == 0 || bytes[0] == b'0' && index > 1;
            let whole = byte == b'\r' && bytes.len() > index + 1;
            return (whole && !zero_leads).then_some((value, start + index + 2));
        }
    }
    None
}

/// An integer as Redis's `string2ll` takes it: no plus, no blank, no needless zero.
fn strict_integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    match digits {
        b"0" => return (digits.len() == text.len()).then_some(0),
        [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit) => {}
        _ => return None,
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// What C's `isspace` takes for a blank.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

/// Splits a line into words, quotes and escapes resolved, appending them to `words` (cleared first).
///
/// Inside double quotes `\n \r \t \b \a \xHH` mean what they do in C and any other escaped byte means itself; inside
/// single quotes only `\'` is an escape. A closing quote must end its word.
fn split_words(line: &[u8], words: &mut Vec<u8>, spans: &mut Vec<Span>) -> Result<(), ProtocolError> {
    words.clear();
    let byte_at = |index: usize| line.get(index).copied();
    let ends_word = |index: usize| byte_at(index).is_none_or(is_blank);
    let mut at = 0;
    loop {
        while byte_at(at).is_some_and(is_blank) {
            at += 1;
        }
        if at >= line.len() {
            return Ok(());
        }
        let start = words.len();
        let mut quote = None;
        loop {
            let byte = byte_at(at);
            at += 1;
            match (quote, byte) {
                (Some(_), None) => return Err(ProtocolError::UnbalancedQuotes),
                (Some(open), Some(close)) if open == close => {
                    if !ends_word(at) {
                        return Err(ProtocolError::UnbalancedQuotes);
                    }
                    break;
                }
                (Some(b'"'), Some(b'\\')) => match (byte_at(at), byte_at(at + 1), byte_at(at + 2)) {
                    (Some(b'x'), Some(high), Some(low)) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                        words.push(hex_digit(high) << 4 | hex_digit(low));
                        at += 3;
                    }
                    (Some(escaped), ..) => {
                        words.push(match escaped {
                            b'n' => b'\n',
                            b'r' => b'\r',
                            b't' => b'\t',
                            b'b' => 0x08,
                            b'a' => 0x07,
                            other => other,
                        });
                        at += 1;
                    }
                    (None, ..) => words.push(b'\\'),
                },
                (Some(b'\''), Some(b'\\')) if byte_at(at) == Some(b'\'') => {
                    words.push(b'\'');
                    at += 1;
                }
                (Some(_), Some(byte)) => words.push(byte),
                (None, None | Some(b' ' | b'\n' | b'\r' | b'\t')) => break,
                (None, Some(open @ (b'"' | b'\''))) => quote = Some(open),
                (None, Some(byte)) => words.push(byte),
            }
        }
        spans.push(Span { start: start as u32, end: words.len() as u32 });
    }
}

fn hex_digit(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

#[cfg(test)]
mod tests;
