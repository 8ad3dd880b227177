//! The near Redis: asks it for its stream as a replica does, and reads what it sends.
//!
//! It understands both forms of a copy. A copy without a length known in advance ends with a mark; that it is found at
//! the end of what was read is sound because the source sends nothing behind it before it hears how far we are.

use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use resp::encode_request;

use super::history::is_id;
use crate::migrate::source::Address;
use crate::tls::Stream;

/// A source that says nothing for so long is not there; it sends a PING every ten seconds (`repl-ping-replica-period`).
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// How long a read waits, and with it what the source is told.
const PAUSE: Duration = Duration::from_millis(50);

const CHUNK_BYTES: usize = 256 << 10;

/// Longest line of the hand-shake.
const LINE_BYTES_MAX: usize = 1_024;

/// Bytes of the mark behind a copy of unknown length.
const MARK_BYTES: usize = 40;

/// How the source goes on.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// With a copy of everything, and then its stream from `offset` on.
    Copy { id: String, offset: u64 },
    /// With its stream, from where it was asked to, perhaps by another name.
    Stream { id: Option<String> },
}

/// A connection on which the source sends.
pub struct Feed {
    stream: Stream,
    buffer: Vec<u8>,
    position: usize,
    heard: Instant,
}

impl Feed {
    /// Asks the source for its stream behind a place, or for everything.
    ///
    /// # Errors
    /// If it is not there or refuses.
    pub fn open(address: &Address, behind: Option<(&str, u64)>) -> Result<(Self, Answer)> {
        let stream = address.dial(SILENCE_MAX)?;
        let mut feed = Self { stream, buffer: Vec::new(), position: 0, heard: Instant::now() };
        if let Some(words) = address.login() {
            let answer = feed.request(&words)?;
            ensure!(!answer.starts_with('-'), "the near Redis refuses AUTH: {}", &answer[1..]);
        }
        let answer = feed.request(&["PING"])?;
        ensure!(!answer.starts_with('-'), "the near Redis refuses PING: {}", &answer[1..]);
        // A source that does not know a word of this goes on without it, as Redis does.
        feed.request(&["REPLCONF", "capa", "eof", "capa", "psync2"])?;
        let (id, offset) = match behind {
            None => ("?".to_owned(), "-1".to_owned()),
            Some((id, offset)) => (id.to_owned(), (offset + 1).to_string()),
        };
        let answer = feed.request(&["PSYNC", &id, &offset])?;
        let parsed = parse_answer(&answer).with_context(|| format!("the near Redis answers PSYNC with '{answer}'"))?;
        ensure!(
            behind.is_some() || matches!(parsed, Answer::Copy { .. }),
            "the near Redis continues what was not begun"
        );
        Ok((feed, parsed))
    }

    /// The answer to a request of the hand-shake, a line.
    fn request(&mut self, words: &[&str]) -> Result<String> {
        let mut bytes = Vec::new();
        encode_request(&mut bytes, words);
        self.stream.write_all(&bytes).and_then(|()| self.stream.flush()).context("the near Redis has hung up")?;
        self.line()
    }

    fn fill(&mut self) -> Result<bool> {
        self.buffer.resize(CHUNK_BYTES, 0);
        let read = self.stream.read(&mut self.buffer);
        self.position = 0;
        self.buffer.truncate(*read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => bail!("the near Redis has hung up"),
            Ok(_) => self.heard = Instant::now(),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) =>
            {
                let silence = self.heard.elapsed();
                ensure!(silence < SILENCE_MAX, "the near Redis has said nothing for {} s", silence.as_secs());
                return Ok(false);
            }
            Err(error) => return Err(error).context("the connection to the near Redis is broken"),
        }
        Ok(true)
    }

    /// The next line that is not empty.
    fn line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        loop {
            while self.position == self.buffer.len() {
                self.fill()?;
            }
            let byte = self.buffer[self.position];
            self.position += 1;
            match byte {
                b'\n' if line.is_empty() => {}
                b'\n' => return Ok(String::from_utf8_lossy(line.trim_ascii_end()).into_owned()),
                _ if line.len() == LINE_BYTES_MAX => bail!("the near Redis answers with a line without an end"),
                byte => line.push(byte),
            }
        }
    }

    /// Reads the copy that follows, and hands it over piece by piece.
    ///
    /// # Errors
    /// If it does not come, or those of `take`.
    pub fn copy(&mut self, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let line = self.line().context("the near Redis makes a copy of its data")?;
        self.stream.set_read_timeout(PAUSE)?;
        if let Some(mark) = line.strip_prefix("$EOF:") {
            ensure!(mark.len() == MARK_BYTES, "the near Redis announces a copy with '{line}'");
            return self.marked_copy(mark.as_bytes(), take);
        }
        let length = line.strip_prefix('$').and_then(|text| text.parse().ok());
        let mut rest: u64 = length.with_context(|| format!("the near Redis announces a copy with '{line}'"))?;
        while rest > 0 {
            if self.position == self.buffer.len() {
                self.fill()?;
            }
            let there = self.buffer.len() - self.position;
            let count = there.min(usize::try_from(rest).unwrap_or(usize::MAX));
            take(&self.buffer[self.position..self.position + count])?;
            self.position += count;
            rest -= count as u64;
        }
        Ok(())
    }

    fn marked_copy(&mut self, mark: &[u8], mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut held = Vec::new();
        loop {
            held.extend_from_slice(&self.buffer[self.position..]);
            self.position = self.buffer.len();
            if held.len() >= MARK_BYTES {
                let before = held.len() - MARK_BYTES;
                take(&held[..before])?;
                held.drain(..before);
                if held == mark {
                    return Ok(());
                }
            }
            self.fill()?;
        }
    }

    /// What has come of the stream; nothing if there is a pause.
    ///
    /// # Errors
    /// If the source is gone.
    pub fn read(&mut self) -> Result<&[u8]> {
        if self.position == self.buffer.len() {
            self.stream.set_read_timeout(PAUSE)?;
            self.fill()?;
        }
        let from = self.position;
        self.position = self.buffer.len();
        Ok(&self.buffer[from..])
    }

    /// Tells the source how far its stream has been carried out.
    ///
    /// # Errors
    /// If the source is gone.
    pub fn acknowledge(&mut self, offset: u64) -> Result<()> {
        let mut bytes = Vec::new();
        encode_request(&mut bytes, &["REPLCONF", "ACK", &offset.to_string()]);
        self.stream.write_all(&bytes).and_then(|()| self.stream.flush()).context("the near Redis has hung up")
    }
}

fn parse_answer(line: &str) -> Option<Answer> {
    let mut words = line.split(' ');
    let first = words.next()?;
    let id = words.next().filter(|id| is_id(id)).map(str::to_owned);
    match first {
        "+FULLRESYNC" => Some(Answer::Copy { id: id?, offset: words.next()?.parse().ok()? }),
        "+CONTINUE" => Some(Answer::Stream { id }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::migrate::source::SourceTls;

    /// What a feed makes of a source that answers the hand-shake and then sends this, in pieces of so many bytes.
    fn fed(answer: &str, then: &[u8], piece_bytes: usize) -> Result<(Vec<u8>, Vec<u8>)> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = format!("redis://{}", listener.local_addr().expect("an address"));
        let (answer, then) = (answer.to_owned(), then.to_vec());
        let source = thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("a replica");
            socket.set_nodelay(true).expect("a socket");
            let mut request = [0; 1_024];
            for answer in ["+PONG", "-ERR Unrecognized REPLCONF option: capa", &answer] {
                let _ = socket.read(&mut request).expect("a request");
                socket.write_all(format!("\n{answer}\r\n").as_bytes()).expect("sent");
            }
            for piece in then.chunks(piece_bytes) {
                if socket.write_all(piece).is_err() {
                    break;
                }
            }
        });
        let address = Address::parse(&place, None, &SourceTls::default()).expect("an address");
        let fed = Feed::open(&address, None).and_then(|(mut feed, _)| {
            let (mut copy, mut stream) = (Vec::new(), Vec::new());
            feed.copy(|bytes| {
                copy.extend_from_slice(bytes);
                Ok(())
            })?;
            while let Ok(bytes) = feed.read() {
                stream.extend_from_slice(bytes);
            }
            Ok((copy, stream))
        });
        source.join().expect("no panic");
        fed
    }

    #[test]
    fn copies_of_known_and_unknown_length_are_told_from_the_stream() {
        let answer = format!("+FULLRESYNC {} 17", "0a".repeat(20));
        for piece_bytes in [1, 7, 1_000] {
            let (copy, stream) = fed(&answer, b"\n\n$5\r\nREDIS*1\r\n$4\r\nPING\r\n", piece_bytes).expect("fed");
            assert_eq!((&copy[..], &stream[..]), (&b"REDIS"[..], &b"*1\r\n$4\r\nPING\r\n"[..]));
            let mark = "m".repeat(40);
            let text = format!("$EOF:{mark}\r\nREDIS and more{mark}");
            let (copy, _) = fed(&answer, text.as_bytes(), piece_bytes).expect("fed");
            assert_eq!(copy, b"REDIS and more");
        }
    }

    #[test]
    fn what_is_no_answer_is_told() {
        let why = |answer: &str, then: &[u8]| format!("{:#}", fed(answer, then, 100).expect_err("refused"));
        assert!(why("-NOMASTERLINK Can't SYNC", b"").contains("NOMASTERLINK"));
        assert!(why("+FULLRESYNC short 1", b"").contains("FULLRESYNC short"));
        assert!(why("+CONTINUE", b"").contains("not begun"));
        let answer = format!("+FULLRESYNC {} 17", "0a".repeat(20));
        assert!(why(&answer, b"$-1\r\n").contains("'$-1'"));
        assert!(why(&answer, b"$100\r\nREDIS").contains("hung up"));
        assert!(why(&answer, &[b'x'; 2_000]).contains("without an end"));
    }
}
