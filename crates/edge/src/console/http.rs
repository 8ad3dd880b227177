//! As much of HTTP/1.1 as a browser needs to read a console: bounded requests, whole answers, connections that are used
//! again.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::limits::{
    CONSOLE_ANSWER_MAX, CONSOLE_BODY_BYTES_MAX, CONSOLE_CHANGE_BYTES_MAX, CONSOLE_HEAD_BYTES_MAX, CONSOLE_REQUEST_MAX,
};

/// The path of changes, which may be long: values are sent there.
pub const CHANGE: &str = "/api/change";

/// What is asked.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// `GET` or `POST`.
    pub method: String,
    /// Without the query.
    pub path: String,
    /// The query, decoded. Values are bytes: names of keys are.
    pub query: BTreeMap<String, Vec<u8>>,
    /// Header fields by their names in lower case; of several of one name the last.
    headers: BTreeMap<String, String>,
    /// What was sent behind the head.
    pub body: Vec<u8>,
    /// The connection will be used again.
    pub is_kept: bool,
}

/// Why a request is not answered as asked: a status and a sentence.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused(pub u16, pub &'static str);

impl Refused {
    /// As it is told.
    pub fn to_response(&self) -> Response {
        Response::error(self.0, self.1)
    }
}

impl Request {
    /// A header field, by its name in lower case; empty if it was not sent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// A word of the query as text; empty if it is not there.
    pub fn text(&self, name: &str) -> &str {
        self.query.get(name).and_then(|value| std::str::from_utf8(value).ok()).unwrap_or_default()
    }

    /// A cookie; empty if it was not sent.
    pub fn cookie(&self, name: &str) -> &str {
        let cookies = self.header("cookie").split(';').filter_map(|cookie| cookie.trim().split_once('='));
        cookies.filter(|(other, _)| *other == name).map(|(_, value)| value).next().unwrap_or_default()
    }

    /// Reads the head.
    fn parse(head: &[u8]) -> Result<Self, Refused> {
        const MALFORMED: Refused = Refused(400, "this port speaks HTTP");
        let head = std::str::from_utf8(head).map_err(|_| MALFORMED)?;
        let mut lines = head.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(MALFORMED);
        };
        if !version.starts_with("HTTP/1.") || !target.starts_with('/') {
            return Err(MALFORMED);
        }
        let mut headers = BTreeMap::new();
        for line in lines.filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':').ok_or(MALFORMED)?;
            // A name with a space before its colon means different things to different readers.
            if name.is_empty() || name.bytes().any(|byte| byte.is_ascii_whitespace()) {
                return Err(MALFORMED);
            }
            if headers.insert(name.to_ascii_lowercase(), value.trim().to_owned()).is_some()
                && matches!(name.to_ascii_lowercase().as_str(), "host" | "content-length")
            {
                return Err(MALFORMED);
            }
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let connection = headers.get("connection").map(|words| words.to_ascii_lowercase());
        let is_kept = version != "HTTP/1.0" && connection.as_deref() != Some("close");
        let (method, path) = (method.to_owned(), path.to_owned());
        Ok(Self { method, path, query: parse_form(query.as_bytes()), headers, body: Vec::new(), is_kept })
    }

    fn body_length(&self) -> Result<usize, Refused> {
        let bytes_max = if self.path == CHANGE { CONSOLE_CHANGE_BYTES_MAX } else { CONSOLE_BODY_BYTES_MAX };
        if !self.header("transfer-encoding").is_empty() {
            return Err(Refused(411, "bodies have a length"));
        }
        match self.header("content-length") {
            "" => Ok(0),
            text if !text.bytes().all(|byte| byte.is_ascii_digit()) => Err(Refused(400, "no length of a body")),
            text => match text.parse() {
                Ok(length) if length <= bytes_max => Ok(length),
                _ => Err(Refused(413, "nothing so long is asked for here")),
            },
        }
    }
}

/// Pairs as forms and queries have them: `a=b&c=d`, with `+` for a space and `%XX` for any byte.
pub fn parse_form(text: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let pairs = text.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()).map(|pair| {
        let place = pair.iter().position(|byte| *byte == b'=');
        let (name, value) = place.map_or((pair, &[][..]), |place| (&pair[..place], &pair[place + 1..]));
        (String::from_utf8_lossy(&decode(name)).into_owned(), decode(value))
    });
    pairs.collect()
}

fn decode(text: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut decoded = Vec::with_capacity(text.len());
    let mut place = 0;
    while let Some(byte) = text.get(place) {
        let pair = (digit(text.get(place + 1)), digit(text.get(place + 2)));
        match (byte, pair) {
            (b'%', (Some(high), Some(low))) => {
                decoded.push((high * 16 + low) as u8);
                place += 2;
            }
            (b'+', _) => decoded.push(b' '),
            (byte, _) => decoded.push(*byte),
        }
        place += 1;
    }
    decoded
}

/// One end of a connection, secured or not.
pub trait Wire: Read + Write {}

impl<T: Read + Write> Wire for T {}

/// A connection of a browser.
pub struct Connection {
    wire: Box<dyn Wire>,
    /// The same socket, to bound waits on it.
    socket: TcpStream,
    /// What has come and belongs to no request yet.
    buffer: Vec<u8>,
}

impl Connection {
    /// `socket` is what `wire` goes over.
    pub fn new(wire: Box<dyn Wire>, socket: TcpStream) -> Self {
        Self { wire, socket, buffer: Vec::new() }
    }

    /// The next request; `None` if the browser has gone, or asks for nothing in time.
    ///
    /// # Errors
    /// What to tell the browser; the connection ends after that.
    pub fn read(&mut self) -> Result<Option<Request>, Refused> {
        let deadline = Instant::now() + CONSOLE_REQUEST_MAX;
        let end = loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break end;
            }
            if self.buffer.len() >= CONSOLE_HEAD_BYTES_MAX {
                return Err(Refused(431, "the head is too long"));
            }
            if !self.read_some(deadline) {
                return Ok(None);
            }
        };
        let mut request = Request::parse(&self.buffer[..end])?;
        let length = request.body_length()?;
        let all = end + 4 + length;
        while self.buffer.len() < all {
            if !self.read_some(deadline) {
                return Ok(None);
            }
        }
        request.body = self.buffer[end + 4..all].to_vec();
        self.buffer.drain(..all);
        Ok(Some(request))
    }

    /// False if nothing more comes.
    fn read_some(&mut self, deadline: Instant) -> bool {
        let mut piece = [0; 4096];
        let count = self.within(deadline, |this| this.wire.read(&mut piece));
        let count = count.unwrap_or(0);
        self.buffer.extend_from_slice(&piece[..count]);
        count > 0
    }

    /// Writes an answer.
    ///
    /// # Errors
    /// If the browser does not take it in time.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let deadline = Instant::now() + CONSOLE_ANSWER_MAX;
        let mut rest = bytes;
        while !rest.is_empty() {
            let count = self.within(deadline, |this| this.wire.write(rest))?;
            if count == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            rest = &rest[count..];
        }
        self.within(deadline, |this| this.wire.flush())
    }

    fn within<T>(&mut self, deadline: Instant, mut step: impl FnMut(&mut Self) -> io::Result<T>) -> io::Result<T> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            let left = Some(left.max(Duration::from_millis(1)));
            self.socket.set_read_timeout(left)?;
            self.socket.set_write_timeout(left)?;
            match step(self) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }
}

/// What is answered.
#[derive(Debug)]
pub struct Response {
    /// As in `200`.
    pub status: u16,
    /// Of the body.
    pub content_type: &'static str,
    /// The page, or an object of JSON.
    pub body: Vec<u8>,
    /// A value for `Set-Cookie`.
    pub cookie: Option<String>,
}

impl Response {
    /// An object of JSON.
    pub fn json(status: u16, value: &serde_json::Value) -> Self {
        Self { status, content_type: "application/json", body: value.to_string().into_bytes(), cookie: None }
    }

    /// A refusal, as an object with the field `error`.
    pub fn error(status: u16, why: &str) -> Self {
        Self::json(status, &serde_json::json!({ "error": why }))
    }

    /// As bytes. Nothing of it is kept by a browser, run from elsewhere, or shown within another page.
    pub fn to_bytes(&self, takes_gzip: bool, is_kept: bool) -> Vec<u8> {
        /// Less than a packet is not worth it.
        const GZIP_BYTES_MIN: usize = 1_024;
        let packed = (takes_gzip && self.body.len() >= GZIP_BYTES_MIN).then(|| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            // Memory takes everything.
            encoder.write_all(&self.body).and_then(|()| encoder.finish()).unwrap_or_default()
        });
        let packed = packed.filter(|packed| !packed.is_empty());
        let body = packed.as_ref().unwrap_or(&self.body);
        let mut head = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}; charset=utf-8\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
             Content-Security-Policy: default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; \
             object-src 'none'\r\nX-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\n\
             Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\
             Cross-Origin-Opener-Policy: same-origin\r\nVary: Accept-Encoding\r\n",
            self.status,
            reason(self.status),
            self.content_type,
            body.len()
        );
        if packed.is_some() {
            head.push_str("Content-Encoding: gzip\r\n");
        }
        if let Some(cookie) = &self.cookie {
            head.push_str(&format!("Set-Cookie: {cookie}\r\n"));
        }
        head.push_str(if is_kept { "Connection: keep-alive\r\n\r\n" } else { "Connection: close\r\n\r\n" });
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        bytes
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        _ => "Service Unavailable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_with_its_query_and_its_cookies() {
        let head = b"GET /api/key?name=a%00%ffb+c&db=3&flag HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\
                     Cookie: a=1; holdfast_console_1=xyz\r\nAccept-Encoding: br, gzip";
        let request = Request::parse(head).expect("a request");
        assert_eq!((request.method.as_str(), request.path.as_str(), request.is_kept), ("GET", "/api/key", true));
        assert_eq!(request.query["name"], b"a\0\xffb c");
        assert_eq!((request.text("db"), request.text("flag"), request.text("name")), ("3", "", ""));
        assert_eq!((request.cookie("holdfast_console_1"), request.cookie("b")), ("xyz", ""));
        assert_eq!(request.body_length(), Ok(0));
        let is_kept = |head: &str| Request::parse(head.as_bytes()).expect("a request").is_kept;
        assert!(!is_kept("GET / HTTP/1.0\r\nHost: a") && !is_kept("GET / HTTP/1.1\r\nConnection: Close"));
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let heads = [
            "",
            "GET /",
            "GET / HTTP/2",
            "GET http://a/ HTTP/1.1",
            "GET /  HTTP/1.1",
            "*1",
            "GET / HTTP/1.1\r\nHost a",
            "GET / HTTP/1.1\r\nHost : a",
            "GET / HTTP/1.1\r\nHost: a\r\nhost: b",
        ];
        for head in heads {
            assert_eq!(Request::parse(head.as_bytes()).map_err(|refused| refused.0), Err(400), "{head}");
        }
        let length = |line: &str| {
            let request = Request::parse(format!("POST /x HTTP/1.1\r\n{line}").as_bytes()).expect("a request");
            request.body_length().map_err(|refused| refused.0)
        };
        assert_eq!(length("Content-Length: 17"), Ok(17));
        assert_eq!(length("Content-Length: -1"), Err(400));
        assert_eq!(length("Content-Length: +1"), Err(400));
        assert_eq!(length("Content-Length: 99999999999999999999999"), Err(413));
        assert_eq!(length("Transfer-Encoding: chunked"), Err(411));
    }

    #[test]
    fn forms_are_decoded_and_what_is_malformed_stays_as_it_is() {
        let form = parse_form(b"user=a%26b&password=%zz%4&&=x&password=last%21");
        assert_eq!((form["user"].as_slice(), form["password"].as_slice()), (&b"a&b"[..], &b"last!"[..]));
        assert_eq!(decode(b"%zz%4%"), b"%zz%4%");
    }

    #[test]
    fn long_answers_are_compressed_for_who_takes_it() {
        let response = Response::json(200, &serde_json::json!({ "text": "x".repeat(10_000) }));
        let (plain, packed) = (response.to_bytes(false, true), response.to_bytes(true, true));
        assert!(plain.len() > 10_000 && packed.len() < 1_500);
        assert!(String::from_utf8_lossy(&packed).contains("Content-Encoding: gzip\r\n"));
        let head = String::from_utf8_lossy(&plain).into_owned();
        assert!(head.contains("default-src 'self'") && head.contains("no-store") && !head.contains("Set-Cookie"));
    }
}
