//! What the two ends of a link say to each other, and how it is carried: messages in one Zstandard stream for each
//! direction. Its window is kept for as long as the connection lasts.
//!
//! ```text
//!   in the clear, once:  "HFLINK01" · role · log2 of the window
//!   compressed:          kind · length (4) · crc32c (4) · payload …
//! ```
//!
//! Numbers are little endian. The far end asks with [`Message::Want`], the near end answers with [`Message::Begin`],
//! and then sends copy and stream, each piece with its place.

use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use edge::{LineReader, LineWriter};
use zstd::stream::raw::{CParameter, DParameter, Decoder, Encoder, InBuffer, Operation, OutBuffer};

use super::history::{ID_BYTES, Ids, is_id};

/// An end that says nothing for so long is not there; both say something each second.
pub const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Most bytes of a copy or a stream in a message.
pub const PIECE_BYTES: usize = 256 << 10;

/// Longest payload.
const PAYLOAD_BYTES_MAX: usize = PIECE_BYTES + 64;

const HEADER_BYTES: usize = 9;

const CHUNK_BYTES: usize = 64 << 10;

const MAGIC: &[u8; 8] = b"HFLINK01";

/// The largest window that is taken from the other end: 64 MiB of memory.
pub const WINDOW_LOG_MAX: u32 = 26;

/// Which end of the link this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Near,
    Far,
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Near: a copy or a stream begins, or goes on, here.
    Begin(Begin),
    /// Near: a piece of the copy and its place.
    Copy(u64, Vec<u8>),
    /// Near: the copy has so many bytes.
    CopyEnd(u64),
    /// Near: a piece of the stream and its place.
    Stream(u64, Vec<u8>),
    /// Near: the stream has other names now.
    Ids(Ids),
    /// Near, each second: how far the source is, and whether it is there.
    Heartbeat { end: u64, is_source_there: bool },
    /// Far: what it needs.
    Want(Want),
    /// Far: how far it is.
    Progress(Progress),
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    pub ids: Ids,
    /// Where the stream goes on.
    pub offset: u64,
    /// Number of the copy that comes before it, and how much of that is already there.
    pub copy: Option<(u64, u64)>,
}

/// What the far end needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// The stream by this name from here on.
    Stream(String, u64),
    /// The rest of this copy: so much of it is there.
    RestOfCopy(u64, u64),
    /// Everything.
    Copy,
}

/// How far the far end is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Up to here the stream is on the far end's disk.
    pub kept: u64,
    /// Up to here the far Redis has carried it out.
    pub applied: u64,
    /// Redis servers that follow the far end.
    pub replicas: u32,
    /// The far end has a copy, and all of it.
    pub is_copied: bool,
}

impl Message {
    fn kind(&self) -> u8 {
        match self {
            Self::Begin(_) => 1,
            Self::Copy(..) => 2,
            Self::CopyEnd(_) => 3,
            Self::Stream(..) => 4,
            Self::Ids(_) => 5,
            Self::Heartbeat { .. } => 6,
            Self::Want(_) => 16,
            Self::Progress(_) => 17,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let number = |out: &mut Vec<u8>, number: u64| out.extend_from_slice(&number.to_le_bytes());
        match self {
            Self::Begin(begin) => {
                number(&mut out, begin.offset);
                let (copy, bytes) = begin.copy.unwrap_or_default();
                out.push(u8::from(begin.copy.is_some()));
                number(&mut out, copy);
                number(&mut out, bytes);
                encode_ids(&mut out, &begin.ids);
            }
            Self::Copy(place, bytes) | Self::Stream(place, bytes) => {
                number(&mut out, *place);
                out.extend_from_slice(bytes);
            }
            Self::CopyEnd(total) => number(&mut out, *total),
            Self::Ids(ids) => encode_ids(&mut out, ids),
            Self::Heartbeat { end, is_source_there } => {
                number(&mut out, *end);
                out.push(u8::from(*is_source_there));
            }
            Self::Want(Want::Stream(id, offset)) => {
                out.push(0);
                number(&mut out, *offset);
                out.extend_from_slice(id.as_bytes());
            }
            Self::Want(Want::RestOfCopy(copy, bytes)) => {
                out.push(1);
                number(&mut out, *copy);
                number(&mut out, *bytes);
            }
            Self::Want(Want::Copy) => out.push(2),
            Self::Progress(progress) => {
                number(&mut out, progress.kept);
                number(&mut out, progress.applied);
                out.extend_from_slice(&progress.replicas.to_le_bytes());
                out.push(u8::from(progress.is_copied));
            }
        }
        out
    }

    /// Nothing, if that is no message.
    fn decode(kind: u8, payload: &[u8]) -> Option<Self> {
        let mut input = Input(payload);
        let message = match kind {
            1 => {
                let offset = input.number()?;
                let has_copy = input.flag()?;
                let copy = (input.number()?, input.number()?);
                Self::Begin(Begin { offset, copy: has_copy.then_some(copy), ids: input.ids()? })
            }
            2 => Self::Copy(input.number()?, input.rest().to_vec()),
            3 => Self::CopyEnd(input.number()?),
            4 => Self::Stream(input.number()?, input.rest().to_vec()),
            5 => Self::Ids(input.ids()?),
            6 => Self::Heartbeat { end: input.number()?, is_source_there: input.flag()? },
            16 => Self::Want(match input.take(1)?[0] {
                0 => {
                    let offset = input.number()?;
                    Want::Stream(input.id()?, offset)
                }
                1 => Want::RestOfCopy(input.number()?, input.number()?),
                2 => Want::Copy,
                _ => return None,
            }),
            17 => Self::Progress(Progress {
                kept: input.number()?,
                applied: input.number()?,
                replicas: u32::from_le_bytes(input.take(4)?.try_into().ok()?),
                is_copied: input.flag()?,
            }),
            _ => return None,
        };
        input.0.is_empty().then_some(message)
    }
}

fn encode_ids(out: &mut Vec<u8>, ids: &Ids) {
    out.extend_from_slice(ids.id.as_bytes());
    out.push(u8::from(ids.former.is_some()));
    if let Some((id, end)) = &ids.former {
        out.extend_from_slice(id.as_bytes());
        out.extend_from_slice(&end.to_le_bytes());
    }
}

/// What is left of a payload.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn flag(&mut self) -> Option<bool> {
        match self.take(1)? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }

    fn id(&mut self) -> Option<String> {
        let id = std::str::from_utf8(self.take(ID_BYTES)?).ok()?;
        is_id(id).then(|| id.to_owned())
    }

    fn ids(&mut self) -> Option<Ids> {
        let id = self.id()?;
        let former = if self.flag()? { Some((self.id()?, self.number()?)) } else { None };
        Some(Ids { id, former })
    }
}

/// How much has gone over lines.
#[derive(Debug, Default)]
pub struct Carried {
    /// Before compression.
    pub raw_bytes: AtomicU64,
    /// As it went over the line, without what TLS adds.
    pub line_bytes: AtomicU64,
}

/// The end of a line that is written.
pub struct Sender {
    writer: LineWriter,
    encoder: Encoder<'static>,
    packed: Vec<u8>,
    carried: Arc<Carried>,
}

/// The end of a line that is read.
pub struct Receiver {
    reader: LineReader,
    decoder: Decoder<'static>,
    raw: Vec<u8>,
    taken: usize,
    plain: Vec<u8>,
    piece: Vec<u8>,
    carried: Arc<Carried>,
}

/// How hard to compress.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    pub level: i32,
    pub window_log: u32,
}

/// Greets the other end, and makes of a line what messages are said through.
///
/// # Errors
/// If the other end is no link, or of the same role.
pub fn greet(
    (mut reader, mut writer): (LineReader, LineWriter),
    role: Role,
    effort: Effort,
    sent: &Arc<Carried>,
    received: &Arc<Carried>,
) -> Result<(Sender, Receiver)> {
    let mut greeting = MAGIC.to_vec();
    greeting.extend([role as u8, effort.window_log as u8]);
    writer.write_all(&greeting).context("the other end has hung up")?;
    let mut theirs = [0; MAGIC.len() + 2];
    reader.read_exact(&mut theirs).context("the other end did not greet")?;
    ensure!(theirs.starts_with(MAGIC), "the other end does not speak the protocol of links, or another version of it");
    ensure!(theirs[8] != role as u8, "both ends of the line are {role:?}: one needs --from, and the other one --serve");
    let window_log = u32::from(theirs[9]);
    ensure!((10..=WINDOW_LOG_MAX).contains(&window_log), "the other end wants a window of 2^{window_log} bytes");
    let mut encoder = Encoder::new(effort.level)?;
    encoder.set_parameter(CParameter::WindowLog(effort.window_log))?;
    if role == Role::Near {
        encoder.set_parameter(CParameter::EnableLongDistanceMatching(true))?;
    }
    let mut decoder = Decoder::new()?;
    decoder.set_parameter(DParameter::WindowLogMax(window_log))?;
    let sender = Sender { writer, encoder, packed: Vec::new(), carried: Arc::clone(sent) };
    let carried = Arc::clone(received);
    let (raw, plain, piece) = (Vec::new(), Vec::new(), vec![0; CHUNK_BYTES]);
    Ok((sender, Receiver { reader, decoder, raw, taken: 0, plain, piece, carried }))
}

impl Sender {
    /// Says something; it is on the line after [`Self::flush`] at the latest.
    ///
    /// # Errors
    /// If the line is cut.
    pub fn send(&mut self, message: &Message) -> io::Result<()> {
        let payload = message.encode();
        let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
        bytes.push(message.kind());
        bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(&payload).to_le_bytes());
        bytes.extend_from_slice(&payload);
        self.carried.raw_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let mut input = InBuffer::around(&bytes);
        while input.pos() < bytes.len() {
            self.step(|encoder, output| encoder.run(&mut input, output))?;
        }
        self.write()
    }

    /// Lets everything go.
    ///
    /// # Errors
    /// If the line is cut.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.step(Operation::flush)? > 0 {}
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        self.writer.write_all(&self.packed)?;
        self.carried.line_bytes.fetch_add(self.packed.len() as u64, Ordering::Relaxed);
        self.packed.clear();
        Ok(())
    }

    fn step<R>(
        &mut self,
        act: impl FnOnce(&mut Encoder<'static>, &mut OutBuffer<'_, [u8]>) -> io::Result<R>,
    ) -> io::Result<R> {
        let before = self.packed.len();
        self.packed.resize(before + CHUNK_BYTES, 0);
        let mut output = OutBuffer::around(&mut self.packed[before..]);
        let result = act(&mut self.encoder, &mut output);
        let made = output.pos();
        self.packed.truncate(before + made);
        result
    }
}

impl Receiver {
    /// What is said next.
    ///
    /// # Errors
    /// If the line is cut, nothing comes for [`SILENCE_MAX`], or what comes is no message.
    pub fn receive(&mut self) -> Result<Message> {
        self.fill(HEADER_BYTES)?;
        let kind = self.plain[0];
        let number = |at: usize| u32::from_le_bytes(self.plain[at..at + 4].try_into().expect("four bytes"));
        let (length, checksum) = (number(1) as usize, number(5));
        ensure!(length <= PAYLOAD_BYTES_MAX, "the other end announces a message of {length} bytes");
        self.fill(HEADER_BYTES + length)?;
        let payload = &self.plain[HEADER_BYTES..HEADER_BYTES + length];
        ensure!(crc32c::crc32c(payload) == checksum, "a message was changed on its way");
        let message = Message::decode(kind, payload);
        let message = message.with_context(|| format!("the other end sends a message {kind} that cannot be read"))?;
        self.plain.drain(..HEADER_BYTES + length);
        self.carried.raw_bytes.fetch_add((HEADER_BYTES + length) as u64, Ordering::Relaxed);
        Ok(message)
    }

    fn fill(&mut self, count: usize) -> Result<()> {
        let mut has_more = false;
        while self.plain.len() < count {
            if self.taken == self.raw.len() && !has_more {
                self.raw.resize(CHUNK_BYTES, 0);
                self.taken = 0;
                let read = self.reader.read(&mut self.raw);
                self.raw.truncate(*read.as_ref().unwrap_or(&0));
                match read {
                    Ok(0) => bail!("the other end has hung up"),
                    Ok(length) => self.carried.line_bytes.fetch_add(length as u64, Ordering::Relaxed),
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                        bail!("the other end has said nothing for {} s", SILENCE_MAX.as_secs())
                    }
                    Err(error) => return Err(error).context("the line is cut"),
                };
            }
            let mut input = InBuffer::around(&self.raw[self.taken..]);
            let mut output = OutBuffer::around(&mut self.piece[..]);
            self.decoder.run(&mut input, &mut output).context("what comes is not compressed as agreed")?;
            let (taken, made) = (input.pos(), output.pos());
            self.taken += taken;
            has_more = made == CHUNK_BYTES;
            self.plain.extend_from_slice(&self.piece[..made]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use super::*;

    const EFFORT: Effort = Effort { level: 3, window_log: 20 };

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let one = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        (one, listener.accept().expect("a connection").0)
    }

    fn join(socket: TcpStream, role: Role) -> Result<(Sender, Receiver)> {
        greet(edge::plain_line(socket), role, EFFORT, &Arc::default(), &Arc::default())
    }

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let (one, two) = pair();
        let near = thread::spawn(move || join(one, Role::Near));
        let (mut answers, mut receiver) = join(two, Role::Far).expect("a line");
        let (mut sender, mut heard) = near.join().expect("no panic").expect("a line");
        let ids = Ids::new(&"0a".repeat(20)).renamed(&"0b".repeat(20), 12);
        let told = [
            Message::Begin(Begin { ids: ids.clone(), offset: 9, copy: Some((7, 0)) }),
            Message::Copy(3, vec![0; PIECE_BYTES]),
            Message::CopyEnd(4),
            Message::Stream(u64::MAX, b"*1".to_vec()),
            Message::Ids(ids.clone()),
            Message::Heartbeat { end: 1, is_source_there: true },
        ];
        for message in &told {
            sender.send(message).and_then(|()| sender.flush()).expect("sent");
            assert_eq!(&receiver.receive().expect("received"), message);
        }
        let progress = Progress { kept: 1, applied: 2, replicas: 3, is_copied: true };
        for want in [Want::Stream(ids.id, 1), Want::RestOfCopy(1, 2), Want::Copy] {
            for message in [Message::Want(want.clone()), Message::Progress(progress)] {
                answers.send(&message).and_then(|()| answers.flush()).expect("sent");
                assert_eq!(heard.receive().expect("received"), message);
            }
        }
    }

    #[test]
    fn who_is_no_other_end_is_turned_away_by_name() {
        let why = |bytes: &[u8]| {
            let (one, mut two) = pair();
            two.write_all(bytes).expect("sent");
            join(one, Role::Near).err().map(|why| format!("{why:#}")).unwrap_or_default()
        };
        assert!(why(b"GET / HTTP/1.1\r\n").contains("does not speak"));
        assert!(why(b"HFLINK01\x00\x14").contains("both ends"));
        assert!(why(b"HFLINK01\x01\xff").contains("2^255"));
    }

    #[test]
    fn a_hostile_message_ends_the_line_and_costs_nothing() {
        let hostile = |bytes: &[u8]| {
            let (one, mut two) = pair();
            let mut greeting = MAGIC.to_vec();
            greeting.extend([Role::Near as u8, 20]);
            two.write_all(&greeting).expect("sent");
            two.write_all(&zstd::bulk::compress(bytes, 1).expect("compressed")).expect("sent");
            let (_sender, mut receiver) = join(one, Role::Far).expect("a line");
            format!("{:#}", receiver.receive().expect_err("hostile"))
        };
        assert!(hostile(&[4, 255, 255, 255, 255, 0, 0, 0, 0]).contains("4294967295 bytes"));
        assert!(hostile(&[4, 1, 0, 0, 0, 9, 9, 9, 9, 1]).contains("changed on its way"));
        let payload = [9; 3];
        let mut bytes = vec![99, 3, 0, 0, 0];
        bytes.extend(crc32c::crc32c(&payload).to_le_bytes());
        bytes.extend(payload);
        assert!(hostile(&bytes).contains("message 99"));
        for kind in 0..20 {
            for length in 0..120 {
                let _ = Message::decode(kind, &vec![1; length]);
            }
        }
    }
}
