//! Runs command lines against a keyspace, for the tests of commands.

use resp::{Args, Protocol, Span, Writer};
use stdx::Level;

use crate::{Keyspace, Layout, Moment, Options, Tuning, as_of_level_1, resolve};

/// A keyspace and a clock that the test moves.
pub(crate) struct Harness {
    pub(crate) keyspace: Keyspace,
    /// Milliseconds since the epoch at which commands run.
    pub(crate) now: i64,
    pub(crate) database: u16,
    pub(crate) protocol: Protocol,
}

impl Harness {
    pub(crate) fn new() -> Self {
        let options = Options { databases: 16, hash_seed: 1, layout: Layout::Slots, tuning: Tuning::default() };
        let keyspace = Keyspace::new(options);
        Self { keyspace, now: 1_700_000_000_000, database: 0, protocol: Protocol::Resp2 }
    }

    /// The reply to a command line of words between blanks; `"…"` quotes a word, with `\n`, `\r`, `\t`, `\"`, `\\` and
    /// `\xHH` in it. The reply is as it goes over the wire, such as `+OK\r\n`; bytes that are no UTF-8 are replaced.
    pub(crate) fn run(&mut self, line: &str) -> String {
        let words = split(line);
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        String::from_utf8_lossy(&self.run_words(&words)).into_owned()
    }

    /// The reply to a command given as words.
    pub(crate) fn run_words(&mut self, words: &[&[u8]]) -> Vec<u8> {
        let (buffer, spans) = lay_out(words);
        let args = Args::new(&buffer, &spans);
        let mut writer = Writer::new(self.protocol);
        let Some(command) = resolve(args) else {
            panic!("no such command: {args:?}");
        };
        let command = if self.keyspace.level() == Level::FIRST { as_of_level_1(command) } else { command };
        if !command.accepts(args.len()) {
            writer.error(&format!("ERR wrong number of arguments for '{}' command", command.name));
            return writer.into_bytes();
        }
        let moment = Moment::at(self.now, 42);
        match command.body {
            crate::Body::Query(_) => self.keyspace.query(self.database, command, args, moment, &mut writer),
            _ => self.keyspace.mutate(self.database, command, args, moment, &mut writer),
        }
        writer.into_bytes()
    }
}

/// The words of a line, as [`Harness::run`] reads it, ready for [`Args::new`].
pub(crate) fn words_of(line: &str) -> (Vec<u8>, Vec<Span>) {
    let words = split(line);
    lay_out(&words.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

fn lay_out(words: &[&[u8]]) -> (Vec<u8>, Vec<Span>) {
    let mut buffer = Vec::new();
    let mut spans = Vec::new();
    for word in words {
        let start = buffer.len() as u32;
        buffer.extend_from_slice(word);
        spans.push(Span { start, end: buffer.len() as u32 });
    }
    (buffer, spans)
}

fn split(line: &str) -> Vec<Vec<u8>> {
    let mut words = vec![];
    let mut bytes = line.bytes().peekable();
    while let Some(first) = bytes.next() {
        if first == b' ' {
            continue;
        }
        let mut word = vec![];
        if first == b'"' {
            while let Some(byte) = bytes.next().filter(|&byte| byte != b'"') {
                word.push(if byte == b'\\' { escape(&mut bytes) } else { byte });
            }
        } else {
            word.push(first);
            while let Some(byte) = bytes.next_if(|&byte| byte != b' ') {
                word.push(byte);
            }
        }
        words.push(word);
    }
    words
}

fn escape(bytes: &mut impl Iterator<Item = u8>) -> u8 {
    match bytes.next().expect("something behind a backslash") {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'x' => {
            let digit = |byte: Option<u8>| (byte.expect("two digits") as char).to_digit(16).expect("hexadecimal") as u8;
            let high = digit(bytes.next());
            high << 4 | digit(bytes.next())
        }
        other => other,
    }
}
