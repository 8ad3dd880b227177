//! One replica of another kind: what it is sent, and what it acknowledges.

use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use mio::event::Event;
use mio::{Registry, Token};
use node::event::{CopyContent, Follower, FollowerReport, Wish};
use resp::{Args, Limits, Parsed, RequestParser, Span};

use super::backlog::Backlog;
use super::copy::Copy;
use crate::connection::Stream;
use crate::limits::{FOLLOWER_INPUT_BYTES_MAX, FOLLOWER_TURN_BYTES_MAX, LINGER_MAX};

/// What it is about to get.
#[derive(Debug)]
enum Stage {
    /// A copy that has not been cut.
    Waiting,
    /// A copy that is being made, and then the stream from this offset on.
    Copying(u64),
    /// This copy, of which so many bytes have been sent.
    Sending { copy: Arc<Copy>, sent: u64, then: u64 },
    /// The stream from this offset on.
    Streaming(u64),
}

/// A replica and its connection.
pub struct Link {
    stream: Stream,
    follower: Follower,
    stage: Stage,
    /// What comes before everything else.
    head: Vec<u8>,
    head_sent: usize,
    is_writable: bool,
    is_readable: bool,
    input: Vec<u8>,
    parser: RequestParser,
    acknowledged: u64,
    /// What it has on its disk, if it says so.
    on_disk: u64,
    /// It has carried out its copy, or gone on where it was.
    is_heard: bool,
    /// When it had got all that it wanted.
    done: Option<Instant>,
    /// When it last acknowledged anything, or began to follow.
    pub heard: Instant,
}

impl Link {
    /// A replica that has just asked.
    pub fn new(stream: Stream, follower: Follower) -> Self {
        Self {
            stream,
            follower,
            stage: Stage::Waiting,
            head: Vec::new(),
            head_sent: 0,
            is_writable: true,
            is_readable: true,
            input: Vec::new(),
            parser: RequestParser::new(),
            acknowledged: 0,
            on_disk: 0,
            is_heard: false,
            done: None,
            heard: Instant::now(),
        }
    }

    /// Watches its socket.
    ///
    /// # Errors
    /// Those of epoll.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.stream.register(registry, token)
    }

    /// What it has asked to go on with: the stream's name, and the offset as it counts, if not with a copy.
    pub fn wanted(&self) -> Option<(&str, u64)> {
        match &self.follower.wish {
            Some(Wish::Continue { id, offset }) => Some((id, *offset)),
            _ => None,
        }
    }

    /// For the log.
    pub fn name(&self) -> String {
        let Follower { host, port, address, .. } = &self.follower;
        match (host.as_str(), port) {
            (_, 0) => address.clone(),
            ("", port) => format!("{}:{port}", host_of(address)),
            (host, port) => format!("{host}:{port}"),
        }
    }

    /// Its version, which Valkey tells and Redis does not.
    pub fn version(&self) -> Option<&str> {
        Some(&*self.follower.version).filter(|version| !version.is_empty())
    }

    /// True if it wants nothing behind the copy.
    pub fn wants_copy_only(&self) -> bool {
        self.follower.wants_copy_only
    }

    /// It gets nothing, and may ask again later.
    pub fn turn_away(&mut self, why: &str) {
        // One that does not hear why asks again, and hears it in our log.
        let _ = self.stream.write(format!("-NOMASTERLINK {why}\r\n").as_bytes());
    }

    /// It goes on where it was.
    pub fn go_on(&mut self, id: &str, offset: u64) {
        self.head.extend_from_slice(format!("+CONTINUE {id}\r\n").as_bytes());
        (self.acknowledged, self.is_heard) = (offset, true);
        self.stage = Stage::Streaming(offset);
        self.heard = Instant::now();
    }

    /// True if it waits for a copy that is not cut yet.
    pub fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting)
    }

    /// The copy it waits for has been cut at this offset of the stream.
    pub fn be_cut(&mut self, id: &str, offset: u64) {
        if self.is_waiting() {
            if self.follower.wish != Some(Wish::OldCopy) {
                self.head.extend_from_slice(format!("+FULLRESYNC {id} {offset}\r\n").as_bytes());
            }
            self.stage = Stage::Copying(offset);
        }
    }

    /// The copy that was cut for it could not be made. False if it has been told of that copy, and must ask again.
    pub fn lose_copy(&mut self) -> bool {
        !matches!(self.stage, Stage::Copying(_))
    }

    /// Its copy is there.
    pub fn send_copy(&mut self, copy: &Arc<Copy>) {
        if let Stage::Copying(then) = self.stage {
            let bytes = self.part_of(copy).map_or(copy.bytes, |part| part.len() as u64);
            self.head.extend_from_slice(format!("${bytes}\r\n").as_bytes());
            self.stage = Stage::Sending { copy: Arc::clone(copy), sent: 0, then };
        }
    }

    /// What it wants of a copy, if that is in memory and not the whole file.
    fn part_of<'c>(&self, copy: &'c Copy) -> Option<&'c [u8]> {
        match self.follower.content {
            CopyContent::All => None,
            CopyContent::Functions => Some(&copy.functions),
            CopyContent::Nothing => Some(&copy.nothing),
        }
    }

    /// Lets it know that somebody is here, while it waits.
    pub fn console(&mut self) {
        if matches!(self.stage, Stage::Waiting | Stage::Copying(_)) && self.head.is_empty() {
            self.head.push(b'\n');
        }
    }

    /// True if it follows the stream, and says so now and then.
    pub fn is_to_acknowledge(&self) -> bool {
        matches!(self.stage, Stage::Streaming(_)) && self.follower.wish != Some(Wish::OldCopy)
    }

    /// True if it has acknowledged the stream up to here.
    pub fn has(&self, offset: u64) -> bool {
        self.is_heard && self.acknowledged >= offset
    }

    /// True if it has told that it has the stream up to here on its disk.
    pub fn has_on_disk(&self, offset: u64) -> bool {
        self.is_heard && self.on_disk >= offset && self.on_disk > 0
    }

    /// True if it has carried out its copy, or gone on where it was.
    pub fn is_heard(&self) -> bool {
        self.is_heard
    }

    /// What it has acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// True if it has had all that it wanted for a while, and does not go.
    pub fn is_done(&self) -> bool {
        self.done.is_some_and(|done| done.elapsed() > LINGER_MAX)
    }

    /// What may be done with its socket.
    pub fn note_edge(&mut self, event: &Event) {
        self.is_writable |= event.is_writable();
        self.is_readable |= event.is_readable() || event.is_read_closed() || event.is_error();
    }

    /// Writes what its socket takes. True if there is more, and the socket would take it.
    ///
    /// # Errors
    /// Why it must be cut off.
    pub fn flush(&mut self, backlog: Option<&Backlog>, buffer: &mut [u8]) -> Result<bool, String> {
        let mut budget = FOLLOWER_TURN_BYTES_MAX;
        while self.is_writable && budget > 0 {
            let count = match self.next(backlog, buffer)? {
                0 => return Ok(false),
                count => count,
            };
            let from_head = !self.head.is_empty();
            let written = match self.stream.write(&buffer[..count]) {
                Ok(0) => return Err("its connection takes nothing".to_owned()),
                Ok(written) => written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.is_writable = false;
                    return Ok(false);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.to_string()),
            };
            budget = budget.saturating_sub(written);
            if from_head {
                self.head_sent += written;
                if self.head_sent == self.head.len() {
                    (self.head, self.head_sent) = (Vec::new(), 0);
                }
                continue;
            }
            match &mut self.stage {
                Stage::Sending { sent, .. } => *sent += written as u64,
                Stage::Streaming(offset) => *offset += written as u64,
                Stage::Waiting | Stage::Copying(_) => unreachable!("a follower that waits is sent only the head"),
            }
        }
        Ok(self.is_writable)
    }

    /// Puts what comes next into the buffer: how much that is.
    fn next(&mut self, backlog: Option<&Backlog>, buffer: &mut [u8]) -> Result<usize, String> {
        if !self.head.is_empty() {
            let rest = &self.head[self.head_sent..];
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            return Ok(count);
        }
        loop {
            match &self.stage {
                Stage::Waiting | Stage::Copying(_) => return Ok(0),
                Stage::Sending { copy, sent, then } => {
                    let (copy, sent, then) = (Arc::clone(copy), *sent, *then);
                    let part = self.part_of(&copy);
                    let whole = part.map_or(copy.bytes, |part| part.len() as u64);
                    let count = buffer.len().min(usize::try_from(whole - sent).unwrap_or(usize::MAX));
                    if count == 0 && self.follower.wants_copy_only {
                        self.done.get_or_insert_with(Instant::now);
                        return Ok(0);
                    }
                    if count == 0 {
                        self.heard = Instant::now();
                        self.stage = Stage::Streaming(then);
                        continue;
                    }
                    match part {
                        Some(part) => buffer[..count].copy_from_slice(&part[sent as usize..][..count]),
                        None => {
                            let read = copy.file.read_exact_at(&mut buffer[..count], sent);
                            read.map_err(|error| format!("its copy cannot be read: {error}"))?;
                        }
                    }
                    return Ok(count);
                }
                Stage::Streaming(offset) => {
                    let backlog = backlog.ok_or_else(|| "there is no stream any more".to_owned())?;
                    if !backlog.reaches(*offset) {
                        return Err(format!(
                            "it lacks more than repl-backlog-size keeps ({} bytes), and must take a copy",
                            backlog.size()
                        ));
                    }
                    return backlog
                        .read(*offset, buffer)
                        .map_err(|error| format!("the stream cannot be read: {error}"));
                }
            }
        }
    }

    /// Reads some of what it says; `end` is where the stream ends. True if there may be more.
    ///
    /// # Errors
    /// Why it must be cut off.
    pub fn hear(&mut self, end: u64, buffer: &mut [u8]) -> Result<bool, String> {
        if !self.is_readable {
            return Ok(false);
        }
        let buffer = &mut buffer[..FOLLOWER_INPUT_BYTES_MAX];
        match self.stream.read(buffer) {
            Ok(0) if self.done.is_some() => return Err(DONE.to_owned()),
            Ok(0) => return Err("it has closed the connection".to_owned()),
            Ok(count) => self.input.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.is_readable = false;
                return Ok(false);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(true),
            Err(error) => return Err(error.to_string()),
        }
        self.parse(end)?;
        if self.input.len() > FOLLOWER_INPUT_BYTES_MAX {
            return Err("what it says is no acknowledgement".to_owned());
        }
        Ok(true)
    }

    fn parse(&mut self, end: u64) -> Result<(), String> {
        let limits = Limits { authenticated: false, ..Limits::default() };
        let mut spans: Vec<Span> = Vec::new();
        let mut taken = 0;
        loop {
            let rest = &self.input[taken..];
            match self.parser.parse(rest, &limits, &mut spans) {
                Ok(Parsed::Incomplete { .. }) => break,
                Ok(Parsed::Empty { consumed } | Parsed::Inline { consumed }) => taken += consumed,
                Ok(Parsed::Request { consumed }) => {
                    let told = acknowledged(Args::new(rest, &spans));
                    taken += consumed;
                    // Nobody has what has not been told, or acknowledges what it is yet to get.
                    let is_following = matches!(self.stage, Stage::Streaming(_));
                    if let Some((offset, on_disk)) = told.filter(|(offset, _)| is_following && *offset <= end) {
                        self.acknowledged = self.acknowledged.max(offset);
                        self.on_disk = self.on_disk.max(on_disk.min(end));
                        (self.heard, self.is_heard) = (Instant::now(), true);
                    }
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        self.input.drain(..taken);
        Ok(())
    }

    /// Figures for INFO.
    pub fn report(&self) -> FollowerReport {
        let Follower { host, port, address, .. } = &self.follower;
        FollowerReport {
            host: if host.is_empty() { host_of(address).to_owned() } else { host.clone() },
            port: *port,
            state: match self.stage {
                Stage::Waiting | Stage::Copying(_) => "wait_bgsave",
                Stage::Sending { .. } => "send_bulk",
                Stage::Streaming(_) => "online",
            },
            offset: self.acknowledged,
            // As in Redis, what is no replica yet does not lag.
            lag_s: if self.is_to_acknowledge() { self.heard.elapsed().as_secs() } else { 0 },
        }
    }
}

/// What is said of one that has got all that it wanted.
pub const DONE: &str = "it has its copy";

fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// The offset that a `REPLCONF ACK` tells, and that of what is on disk there, which not all tell.
fn acknowledged(args: Args<'_>) -> Option<(u64, u64)> {
    let is = |index: usize, word: &str| args.get(index).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()));
    if !is(0, "replconf") || !is(1, "ack") {
        return None;
    }
    let offset = |index: usize| std::str::from_utf8(args.get(index)?).ok()?.parse().ok();
    let on_disk = if is(3, "fack") { offset(4) } else { None };
    Some((offset(2)?, on_disk.unwrap_or(0)))
}
