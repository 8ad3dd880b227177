//! The client's side of a connection: requests to bytes, bytes to replies.
//!
//! Two ways to read replies: [`ReplyScanner`] finds where each ends and what kind it is, without an allocation, for
//! those who only count; [`FrameDecoder`] builds each as a [`Frame`], for those who look inside.

use std::fmt;

/// How deep replies may nest; Redis itself sends no more than a handful of levels.
pub const NESTING_MAX: usize = 64;
/// Longest line of a reply, in bytes: simple strings, errors, numbers.
pub const REPLY_LINE_BYTES_MAX: usize = 1024 * 1024;
/// Largest string or aggregate that a reply may announce, in bytes or elements.
pub const REPLY_LENGTH_MAX: i64 = 1 << 32;

/// A reply of either version of the protocol.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// `+`: a status.
    Simple(Vec<u8>),
    /// `-` or `!`: an error, its code first.
    Error(Vec<u8>),
    /// `:`
    Integer(i64),
    /// `$`: a binary-safe string.
    Bulk(Vec<u8>),
    /// `_`, `$-1` or `*-1`: nothing.
    Null,
    /// `*`
    Array(Vec<Frame>),
    /// `%`: pairs, in the order sent.
    Map(Vec<(Frame, Frame)>),
    /// `~`: members, in the order sent.
    Set(Vec<Frame>),
    /// `>`: sent by the server unasked.
    Push(Vec<Frame>),
    /// `#`
    Boolean(bool),
    /// `,`
    Double(f64),
    /// `(`: an integer of any size, as digits.
    BigNumber(Vec<u8>),
    /// `=`: text and its three-letter format.
    Verbatim {
        /// Such as `txt` or `mkd`.
        format: [u8; 3],
        /// The text.
        text: Vec<u8>,
    },
}

impl Frame {
    /// True for an error reply.
    pub fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// The bytes of a status, string, verbatim text, big number or error.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Simple(bytes) | Self::Error(bytes) | Self::Bulk(bytes) | Self::BigNumber(bytes) => Some(bytes),
            Self::Verbatim { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The elements of an array, set or push.
    pub fn elements(&self) -> Option<&[Self]> {
        match self {
            Self::Array(elements) | Self::Set(elements) | Self::Push(elements) => Some(elements),
            _ => None,
        }
    }
}

/// The reply as redis-cli would show it on one line, for messages.
impl fmt::Display for Frame {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |formatter: &mut fmt::Formatter<'_>, open, frames: &[Self], close| {
            write!(formatter, "{open}")?;
            for (index, frame) in frames.iter().enumerate() {
                write!(formatter, "{}{frame}", if index > 0 { ", " } else { "" })?;
            }
            write!(formatter, "{close}")
        };
        match self {
            Self::Simple(text) | Self::BigNumber(text) => write!(formatter, "{}", String::from_utf8_lossy(text)),
            Self::Error(text) => write!(formatter, "(error) {}", String::from_utf8_lossy(text)),
            Self::Integer(number) => write!(formatter, "(integer) {number}"),
            Self::Bulk(bytes) | Self::Verbatim { text: bytes, .. } => write!(formatter, "\"{}\"", bytes.escape_ascii()),
            Self::Null => write!(formatter, "(nil)"),
            Self::Boolean(value) => write!(formatter, "({value})"),
            Self::Double(number) => write!(formatter, "(double) {number}"),
            Self::Array(frames) => list(formatter, '[', frames, ']'),
            Self::Set(frames) => list(formatter, '{', frames, '}'),
            Self::Push(frames) => list(formatter, '>', frames, '<'),
            Self::Map(pairs) => {
                write!(formatter, "{{")?;
                for (index, (key, value)) in pairs.iter().enumerate() {
                    write!(formatter, "{}{key}: {value}", if index > 0 { ", " } else { "" })?;
                }
                write!(formatter, "}}")
            }
        }
    }
}

/// Bytes that no server speaking the protocol sends; the connection is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// No reply begins with this byte.
    Kind(u8),
    /// A length or number is none, or out of range.
    Number,
    /// A line does not end.
    Line,
    /// The bytes behind a string are no line end.
    Ending,
    /// Nested deeper than [`NESTING_MAX`].
    Nesting,
}

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(byte) => write!(formatter, "no reply begins with '{}'", byte.escape_ascii()),
            Self::Number => formatter.write_str("a number in a reply is malformed or out of range"),
            Self::Line => formatter.write_str("a line of a reply does not end"),
            Self::Ending => formatter.write_str("a string in a reply is not followed by a line end"),
            Self::Nesting => formatter.write_str("a reply nests too deeply"),
        }
    }
}

impl std::error::Error for Malformed {}

/// A reply that has come in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Bytes it takes.
    pub len: usize,
    /// Its first byte behind any attributes: `+`, `-`, `:`, `$`, `*` and their younger siblings.
    pub kind: u8,
    /// True for nothing, in any of its three spellings.
    pub null: bool,
}

/// Finds the end of each reply in a stream, looking at every byte once and allocating nothing.
#[derive(Debug, Default)]
pub struct ReplyScanner {
    /// Bytes of the reply that are understood.
    position: usize,
    /// Bytes in which the end of the line at `position` was looked for in vain.
    scanned: usize,
    /// Elements still to come, the reply itself being one; 0 before the first byte.
    pending: u64,
    /// What [`Scanned`] will say, once the outermost line has been seen.
    outer: Option<(u8, bool)>,
}

impl ReplyScanner {
    /// A scanner at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks for the end of the reply at the start of `input`. After `None`, call again with the same bytes and more
    /// behind them; after a reply, with the byte behind it.
    #[inline]
    pub fn scan(&mut self, input: &[u8]) -> Result<Option<Scanned>, Malformed> {
        if self.position == 0 {
            // What a server says most often, settled at a glance.
            if let [b'+', b'O', b'K', b'\r', b'\n', ..] = input {
                self.scanned = 0;
                return Ok(Some(Scanned { len: 5, kind: b'+', null: false }));
            }
        }
        self.scan_carefully(input)
    }

    fn scan_carefully(&mut self, input: &[u8]) -> Result<Option<Scanned>, Malformed> {
        if self.position == 0 {
            self.pending = 1;
        }
        while self.pending > 0 {
            let Some(Line { kind, text, next }) = self.next_line(input)? else { return Ok(None) };
            let mut null = false;
            let mut attribute = false;
            let mut elements = 0;
            let mut end = next;
            match kind {
                b'+' | b'-' | b':' | b',' | b'#' | b'(' => {}
                b'_' => null = true,
                b'$' | b'!' | b'=' => match length(text)? {
                    Some(len) => {
                        end = next + len as usize + 2;
                        if input.len() < end {
                            self.scanned = next - 1; // the line end: found again at once, never searched for
                            return Ok(None);
                        }
                        if &input[end - 2..end] != b"\r\n" {
                            return Err(Malformed::Ending);
                        }
                    }
                    None => null = true,
                },
                b'*' | b'~' | b'>' => match length(text)? {
                    Some(len) => elements = len,
                    None => null = true,
                },
                b'%' => elements = length(text)?.ok_or(Malformed::Number)? * 2,
                b'|' => {
                    elements = length(text)?.ok_or(Malformed::Number)? * 2;
                    attribute = true;
                }
                other => return Err(Malformed::Kind(other)),
            }
            self.position = end;
            self.scanned = end;
            // An attribute stands in front of an element and is none itself; its pairs are pending above that element,
            // so that one is left exactly when the reply proper begins.
            if self.pending == 1 && self.outer.is_none() && !attribute {
                self.outer = Some((kind, null));
            }
            self.pending = (self.pending - u64::from(!attribute)).checked_add(elements).ok_or(Malformed::Number)?;
        }
        let (kind, null) = self.outer.take().unwrap_or((b'*', false));
        let len = std::mem::take(&mut self.position);
        self.scanned = 0;
        Ok(Some(Scanned { len, kind, null }))
    }

    /// The line at the position.
    #[inline]
    fn next_line<'a>(&mut self, input: &'a [u8]) -> Result<Option<Line<'a>>, Malformed> {
        let from = self.scanned.max(self.position);
        match memchr::memchr(b'\n', input.get(from..).unwrap_or_default()) {
            Some(offset) => {
                let end = from + offset;
                let line = input[self.position..end].strip_suffix(b"\r").ok_or(Malformed::Line)?;
                let (&kind, text) = line.split_first().ok_or(Malformed::Line)?;
                Ok(Some(Line { kind, text, next: end + 1 }))
            }
            None if input.len().saturating_sub(self.position) > REPLY_LINE_BYTES_MAX => Err(Malformed::Line),
            None => {
                self.scanned = input.len().max(from);
                Ok(None)
            }
        }
    }
}

/// The first byte of a line, the rest of it, and the position behind its end.
struct Line<'a> {
    kind: u8,
    text: &'a [u8],
    next: usize,
}

/// A length in front of a string or an aggregate; none if it is -1.
#[inline]
fn length(text: &[u8]) -> Result<Option<u64>, Malformed> {
    match number(text)? {
        -1 => Ok(None),
        len @ 0..=REPLY_LENGTH_MAX => Ok(Some(len as u64)),
        _ => Err(Malformed::Number),
    }
}

#[inline]
fn number(text: &[u8]) -> Result<i64, Malformed> {
    if let [first @ b'0'..=b'9', rest @ ..] = text
        && rest.len() < 9
        && rest.iter().all(u8::is_ascii_digit)
    {
        return Ok(rest.iter().fold(i64::from(first - b'0'), |value, digit| value * 10 + i64::from(digit - b'0')));
    }
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or(Malformed::Number)
}

/// Builds replies from a stream that comes in pieces.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    buffer: Vec<u8>,
    /// Bytes at the buffer's start that have been given out as frames.
    taken: usize,
    scanner: ReplyScanner,
}

impl FrameDecoder {
    /// A decoder at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes that have come.
    pub fn extend(&mut self, bytes: &[u8]) {
        if self.taken == self.buffer.len() {
            self.buffer.clear();
            self.taken = 0;
        } else if self.taken > self.buffer.len() / 2 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next reply, if it has come in full. Attributes are passed over.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, Malformed> {
        let input = &self.buffer[self.taken..];
        let Some(scanned) = self.scanner.scan(input)? else { return Ok(None) };
        let frame = Building { input: &input[..scanned.len], position: 0 }.frame(0)?;
        self.taken += scanned.len;
        Ok(Some(frame))
    }

    /// Bytes that have come and belong to no frame given out yet.
    pub fn pending_bytes(&self) -> usize {
        self.buffer.len() - self.taken
    }
}

/// A reply that the scanner has seen in full, so that nothing can be missing.
struct Building<'a> {
    input: &'a [u8],
    position: usize,
}

impl<'a> Building<'a> {
    fn frame(&mut self, depth: usize) -> Result<Frame, Malformed> {
        if depth > NESTING_MAX {
            return Err(Malformed::Nesting);
        }
        let (kind, text) = self.line()?;
        Ok(match kind {
            b'+' => Frame::Simple(text.to_vec()),
            b'-' => Frame::Error(text.to_vec()),
            b':' => Frame::Integer(number(text)?),
            b'_' => Frame::Null,
            b'#' => match text {
                b"t" => Frame::Boolean(true),
                b"f" => Frame::Boolean(false),
                _ => return Err(Malformed::Number),
            },
            b',' => {
                let text = std::str::from_utf8(text).map_err(|_| Malformed::Number)?;
                Frame::Double(text.parse().map_err(|_| Malformed::Number)?)
            }
            b'(' => {
                let digits = text.strip_prefix(b"-").unwrap_or(text);
                if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
                    return Err(Malformed::Number);
                }
                Frame::BigNumber(text.to_vec())
            }
            b'$' => match length(text)? {
                Some(len) => Frame::Bulk(self.bytes(len)?.to_vec()),
                None => Frame::Null,
            },
            b'!' => match length(text)? {
                Some(len) => Frame::Error(self.bytes(len)?.to_vec()),
                None => Frame::Null,
            },
            b'=' => match length(text)? {
                Some(len) => match self.bytes(len)? {
                    [a, b, c, b':', text @ ..] => Frame::Verbatim { format: [*a, *b, *c], text: text.to_vec() },
                    _ => return Err(Malformed::Number),
                },
                None => Frame::Null,
            },
            b'*' | b'~' | b'>' => match length(text)? {
                Some(len) => {
                    let elements = (0..len).map(|_| self.frame(depth + 1)).collect::<Result<_, _>>()?;
                    match kind {
                        b'*' => Frame::Array(elements),
                        b'~' => Frame::Set(elements),
                        _ => Frame::Push(elements),
                    }
                }
                None => Frame::Null,
            },
            b'%' => Frame::Map(self.pairs(length(text)?.ok_or(Malformed::Number)?, depth)?),
            b'|' => {
                self.pairs(length(text)?.ok_or(Malformed::Number)?, depth)?;
                self.frame(depth + 1)?
            }
            other => return Err(Malformed::Kind(other)),
        })
    }

    fn pairs(&mut self, len: u64, depth: usize) -> Result<Vec<(Frame, Frame)>, Malformed> {
        (0..len).map(|_| Ok((self.frame(depth + 1)?, self.frame(depth + 1)?))).collect()
    }

    fn line(&mut self) -> Result<(u8, &'a [u8]), Malformed> {
        let rest = &self.input[self.position..];
        let end = memchr::memchr(b'\n', rest).ok_or(Malformed::Line)?;
        let line = rest[..end].strip_suffix(b"\r").ok_or(Malformed::Line)?;
        self.position += end + 1;
        let (&kind, text) = line.split_first().ok_or(Malformed::Line)?;
        Ok((kind, text))
    }

    fn bytes(&mut self, len: u64) -> Result<&'a [u8], Malformed> {
        let end = self.position + len as usize;
        let bytes = self.input.get(self.position..end).ok_or(Malformed::Ending)?;
        self.position = end + 2;
        Ok(bytes)
    }
}

/// Appends a request of `words` to `out`, as an array of bulk strings.
///
/// ```
/// let mut out = Vec::new();
/// resp::encode_request(&mut out, &["GET", "city"]);
/// assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$4\r\ncity\r\n");
/// ```
pub fn encode_request<W: AsRef<[u8]>>(out: &mut Vec<u8>, words: &[W]) {
    header(out, b'*', words.len());
    for word in words {
        let word = word.as_ref();
        out.reserve(word.len() + 16);
        header(out, b'$', word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

fn header(out: &mut Vec<u8>, kind: u8, mut number: usize) {
    let mut line = [0; 23];
    let mut start = line.len() - 2;
    line[start..].copy_from_slice(b"\r\n");
    loop {
        start -= 1;
        line[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    start -= 1;
    line[start] = kind;
    out.extend_from_slice(&line[start..]);
}

#[cfg(test)]
mod tests;
