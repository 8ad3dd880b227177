//! Replies to bytes.

/// Which version of the protocol a client asked for (HELLO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// RESP2, what a connection speaks until it says otherwise.
    #[default]
    Resp2,
    /// RESP3.
    Resp3,
}

/// How many digits a number with a fraction is answered with. Who writes its text goes by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Digits {
    /// As few as tell it from every other number: `0.1`.
    #[default]
    Shortest,
    /// Seventeen: `0.10000000000000001`.
    Seventeen,
}

/// Appends replies to a buffer in the protocol's form.
///
/// Aggregates are announced by their length and followed by that many elements (a map by twice as many); the caller
/// keeps count.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    protocol: Protocol,
    digits: Digits,
}

impl Writer {
    /// An empty writer.
    pub fn new(protocol: Protocol) -> Self {
        Self { bytes: Vec::new(), protocol, digits: Digits::default() }
    }

    /// A writer that goes on behind what `bytes` already holds.
    pub fn onto(bytes: Vec<u8>, protocol: Protocol) -> Self {
        Self { bytes, protocol, digits: Digits::default() }
    }

    /// The protocol in which replies are written.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Writes in another protocol from here on.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// How many digits numbers have.
    pub fn digits(&self) -> Digits {
        self.digits
    }

    /// Gives numbers so many digits from here on.
    #[inline]
    pub fn set_digits(&mut self, digits: Digits) {
        self.digits = digits;
    }

    /// What has been written.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Gives up the buffer.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Takes what has been written and starts afresh.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Takes what has been written and goes on with an empty buffer that reuses the memory of `spare`.
    pub fn replace(&mut self, spare: Vec<u8>) -> Vec<u8> {
        debug_assert!(spare.is_empty());
        std::mem::replace(&mut self.bytes, spare)
    }

    /// Bytes written so far; with [`Writer::truncate`], a point to return to.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if nothing has been written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Forgets everything behind `len`.
    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// `+OK`
    #[inline]
    pub fn ok(&mut self) {
        self.bytes.extend_from_slice(b"+OK\r\n");
    }

    /// A simple string; `text` must hold no line end.
    pub fn simple(&mut self, text: &str) {
        self.bytes.push(b'+');
        self.bytes.extend_from_slice(text.as_bytes());
        self.end_line();
    }

    /// An error: `text` begins with its code, as in `ERR syntax error`. Line ends become spaces, so that text taken
    /// from a client cannot forge a reply.
    pub fn error(&mut self, text: &str) {
        self.bytes.push(b'-');
        self.bytes.extend(text.bytes().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }));
        self.end_line();
    }

    /// A binary-safe string.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.bytes.reserve(bytes.len() + 16);
        self.header(b'$', bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
        self.end_line();
    }

    /// A string, or null.
    pub fn bulk_or_null(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    /// The absence of a string (`$-1` in RESP2).
    #[inline]
    pub fn null(&mut self) {
        self.bytes.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n".as_slice(),
            Protocol::Resp3 => b"_\r\n".as_slice(),
        });
    }

    /// The absence of an array (`*-1` in RESP2).
    pub fn null_array(&mut self) {
        self.bytes.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n".as_slice(),
            Protocol::Resp3 => b"_\r\n".as_slice(),
        });
    }

    /// An integer.
    #[inline]
    pub fn integer(&mut self, value: i64) {
        self.bytes.push(b':');
        if value < 0 {
            self.bytes.push(b'-');
        }
        self.decimal(value.unsigned_abs());
        self.end_line();
    }

    /// A count, as an integer.
    #[inline]
    pub fn count(&mut self, value: usize) {
        self.header(b':', value as u64);
    }

    /// Announces an array of `len` elements.
    pub fn array(&mut self, len: usize) {
        self.header(b'*', len as u64);
    }

    /// Announces a map of `len` pairs (a flat array in RESP2).
    pub fn map(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', len as u64 * 2),
            Protocol::Resp3 => self.header(b'%', len as u64),
        }
    }

    /// Announces a set of `len` elements (an array in RESP2).
    pub fn set(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', len as u64),
            Protocol::Resp3 => self.header(b'~', len as u64),
        }
    }

    /// Announces an out-of-band push of `len` elements (an array in RESP2).
    pub fn push(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', len as u64),
            Protocol::Resp3 => self.header(b'>', len as u64),
        }
    }

    /// Announces an attribute of `len` pairs, which comes before the reply it belongs to. RESP2 knows none: the caller
    /// leaves it out there.
    pub fn attribute(&mut self, len: usize) {
        debug_assert_eq!(self.protocol, Protocol::Resp3);
        self.header(b'|', len as u64);
    }

    /// A boolean (1 or 0 in RESP2).
    pub fn boolean(&mut self, value: bool) {
        self.bytes.extend_from_slice(match (self.protocol, value) {
            (Protocol::Resp2, true) => b":1\r\n".as_slice(),
            (Protocol::Resp2, false) => b":0\r\n".as_slice(),
            (Protocol::Resp3, true) => b"#t\r\n".as_slice(),
            (Protocol::Resp3, false) => b"#f\r\n".as_slice(),
        });
    }

    /// A double already written out as text (a string in RESP2).
    pub fn double_text(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => {
                self.bytes.push(b',');
                self.bytes.extend_from_slice(text.as_bytes());
                self.end_line();
            }
        }
    }

    /// Text with a three-letter format such as `txt` (a plain string in RESP2).
    pub fn verbatim(&mut self, format: &str, text: &[u8]) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text),
            Protocol::Resp3 => {
                self.header(b'=', text.len() as u64 + 4);
                self.bytes.extend_from_slice(format.as_bytes());
                self.bytes.push(b':');
                self.bytes.extend_from_slice(text);
                self.end_line();
            }
        }
    }

    /// Bytes that are already in the protocol's form.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn header(&mut self, kind: u8, number: u64) {
        self.bytes.push(kind);
        self.decimal(number);
        self.end_line();
    }

    fn end_line(&mut self) {
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn decimal(&mut self, mut number: u64) {
        if number < 10 {
            self.bytes.push(b'0' + number as u8);
            return;
        }
        let mut text = [0; 20];
        let mut start = text.len();
        while number > 0 {
            start -= 1;
            text[start] = b'0' + (number % 10) as u8;
            number /= 10;
        }
        self.bytes.extend_from_slice(&text[start..]);
    }
}
