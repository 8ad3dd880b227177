//! The far Redis: it says `REPLICAOF` to the far end, and gets from its disk what the near Redis would have sent.
//!
//! It hears nothing but empty lines until it is known how it goes on, as from a Redis that is busy. The name of the
//! stream and its places are those of the near Redis, so it can follow either.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::far::Far;
use super::history::{Ids, copy_path, is_id};
use super::line::{PIECE_BYTES, Want};
use super::store::Found;

/// A Redis that says nothing for so long is not there: it says how far it is each second, also while it loads.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Between empty lines for one that waits.
const CONSOLE_INTERVAL: Duration = Duration::from_secs(1);

/// Longest wait that does not look at what else has happened.
const GLANCE: Duration = Duration::from_millis(100);

/// More follow nobody.
const REPLICAS_MAX: u64 = 16;

const WORDS_MAX: usize = 16;
const WORD_BYTES_MAX: usize = 1_024;

/// How long an answer in the hand-shake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Lets Redis servers follow, each on a thread of its own, without end.
///
/// # Errors
/// If nobody can be accepted.
pub fn serve(far: &Arc<Far>, listener: &TcpListener, password: Option<&str>) -> Result<()> {
    static NUMBERS: AtomicU64 = AtomicU64::new(1);
    let there = Arc::new(AtomicU64::new(0));
    loop {
        let socket = match listener.accept() {
            Ok((socket, _)) => socket,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => continue,
            Err(error) => {
                end_log!("a Redis cannot be accepted: {error}");
                thread::sleep(CONSOLE_INTERVAL);
                continue;
            }
        };
        let (far, password, there) = (Arc::clone(far), password.map(str::to_owned), Arc::clone(&there));
        thread::spawn(move || {
            let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
            if there.fetch_add(1, Ordering::Relaxed) < REPLICAS_MAX {
                let ended = attend(&far, socket, number, password.as_deref());
                far.lock().replicas.remove(&number);
                if let Err(why) = ended {
                    far.replica_cuts.fetch_add(1, Ordering::Relaxed);
                    let text = format!("{why:#}");
                    end_log!("far Redis {number}: {text}");
                    far.lock().replica_fault = text;
                }
                far.changed.notify_all();
            }
            there.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// Requests of a Redis: words that are short, and few.
struct Requests {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Requests {
    /// The next request, if one comes in time; those of one word that is empty are left out.
    fn next(&mut self) -> Result<Vec<String>> {
        loop {
            let blank = self.buffer.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            self.buffer.drain(..blank);
            if let Some((words, length)) = parse_request(&self.buffer)? {
                self.buffer.drain(..length);
                return Ok(words);
            }
            let mut chunk = [0; 4_096];
            match self.socket.read(&mut chunk) {
                Ok(0) => bail!("it has hung up"),
                Ok(length) => self.buffer.extend_from_slice(&chunk[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    bail!("it has said nothing for too long")
                }
                Err(error) => return Err(error).context("its connection is broken"),
            }
        }
    }
}

/// The first request, and its length; nothing as long as it is not there in full.
fn parse_request(bytes: &[u8]) -> Result<Option<(Vec<String>, usize)>> {
    let mut at = 0;
    let line = |at: &mut usize| -> Result<Option<String>> {
        let rest = &bytes[*at..];
        let Some(length) = rest.iter().position(|byte| *byte == b'\n') else {
            ensure!(rest.len() <= WORD_BYTES_MAX, "it sends a line without an end");
            return Ok(None);
        };
        ensure!(length <= WORD_BYTES_MAX, "it sends too long a line");
        *at += length + 1;
        Ok(Some(String::from_utf8_lossy(&rest[..length]).trim_end().to_owned()))
    };
    let Some(first) = line(&mut at)? else { return Ok(None) };
    let Some(count) = first.strip_prefix('*') else {
        return Ok(Some((first.split_whitespace().map(str::to_owned).collect(), at)));
    };
    let count: usize = count
        .parse()
        .ok()
        .filter(|count| (1..=WORDS_MAX).contains(count))
        .with_context(|| format!("it sends {first} words"))?;
    let mut words = Vec::new();
    for _ in 0..count {
        let Some(length) = line(&mut at)? else { return Ok(None) };
        let size = length.strip_prefix('$').and_then(|text| text.parse().ok());
        let size: usize =
            size.filter(|size| *size <= WORD_BYTES_MAX).with_context(|| format!("it sends a word of {length}"))?;
        let Some(word) = bytes.get(at..at + size + 2) else { return Ok(None) };
        words.push(String::from_utf8_lossy(&word[..size]).into_owned());
        at += size + 2;
    }
    Ok(Some((words, at)))
}

/// How a Redis goes on.
enum Way {
    Stream { ids: Ids, offset: u64, epoch: u64 },
    Copy { ids: Ids, offset: u64, epoch: u64, file: File, bytes: u64 },
}

/// One Redis, until it is gone.
fn attend(far: &Arc<Far>, mut socket: TcpStream, number: u64, password: Option<&str>) -> Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(HANDSHAKE_MAX))?;
    socket.set_write_timeout(Some(HANDSHAKE_MAX))?;
    let mut requests = Requests { socket: socket.try_clone()?, buffer: Vec::new() };
    let mut is_in = password.is_none();
    let asked = loop {
        let words = requests.next()?;
        let Some(name) = words.first().map(|name| name.to_ascii_uppercase()) else { continue };
        let answer = match (name.as_str(), words.len()) {
            ("AUTH", 2 | 3) => match password {
                None => {
                    "-ERR AUTH <password> called without any password configured for the default user. \
                         Are you sure your configuration is correct?"
                }
                Some(password) if words.last().is_some_and(|word| word == password) => {
                    is_in = true;
                    "+OK"
                }
                Some(_) => "-WRONGPASS invalid username-password pair or user is disabled.",
            },
            _ if !is_in => "-NOAUTH Authentication required.",
            ("PING", _) => "+PONG",
            ("REPLCONF", _) => "+OK",
            ("PSYNC", 3) => break (words[1].clone(), words[2].parse::<i64>().unwrap_or(-1)),
            ("QUIT", _) => return Ok(()),
            _ => "-ERR this is the far end of a link, for REPLICAOF and nothing else",
        };
        socket.write_all(format!("{answer}\r\n").as_bytes())?;
    };
    let (id, offset) = (asked.0, u64::try_from(asked.1).ok().and_then(|next| next.checked_sub(1)));
    let position = offset.filter(|_| is_id(&id)).map(|offset| (id, offset));
    let way = find_way(far, &mut socket, position.as_ref())?;
    socket.set_write_timeout(None)?;
    socket.set_read_timeout(Some(SILENCE_MAX))?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let hearing = scope.spawn(|| {
            let heard = hear(far, &mut requests, number);
            is_over.store(true, Ordering::Relaxed);
            // The other thread may wait for it to take something.
            let _ = requests.socket.shutdown(std::net::Shutdown::Both);
            heard
        });
        let sent = send(far, &mut socket, number, way, &is_over);
        let _ = socket.shutdown(std::net::Shutdown::Both);
        let heard = hearing.join().expect("a thread that does not panic");
        if is_over.load(Ordering::Relaxed) && sent.is_ok() { heard } else { sent }
    })
}

/// Waits until it is known how a Redis goes on.
fn find_way(far: &Far, socket: &mut TcpStream, position: Option<&(String, u64)>) -> Result<Way> {
    let (mut consoled, mut is_told) = (Instant::now(), false);
    loop {
        let mut state = far.lock();
        let (epoch, end) = (state.epoch, far.store.range().1);
        match (state.ids.clone(), position) {
            (Some(ids), Some((id, offset))) if ids.covers(id, *offset) && far.store.reaches(*offset) => {
                end_log!("a far Redis goes on at byte {offset} of stream {}", ids.id);
                return Ok(Way::Stream { ids, offset: *offset, epoch });
            }
            // It had more than was synced here when the machine lost its power: that comes again.
            (Some(ids), Some((id, offset))) if ids.covers(id, *offset) && *offset > end => {}
            (Some(ids), _) => match state.copy.clone().filter(|copy| far.store.reaches(copy.offset)) {
                Some(copy) => {
                    let file = File::open(copy_path(far.directory())).context("the copy cannot be read")?;
                    end_log!("a far Redis gets the copy of {} bytes from this disk", copy.bytes);
                    return Ok(Way::Copy { ids, offset: copy.offset, epoch, file, bytes: copy.bytes });
                }
                None => state.needs_copy = true,
            },
            (None, Some((id, offset))) => state.ask = Some(Want::Stream(id.clone(), *offset)),
            (None, None) => state.ask = Some(Want::Copy),
        }
        if !is_told {
            end_log!("a far Redis waits for the first copy");
            is_told = true;
        }
        far.changed.notify_all();
        drop(far.changed.wait_timeout(state, GLANCE));
        if consoled.elapsed() >= CONSOLE_INTERVAL {
            consoled = Instant::now();
            socket.write_all(b"\n").context("it has hung up")?;
        }
    }
}

fn hear(far: &Far, requests: &mut Requests, number: u64) -> Result<()> {
    loop {
        let words = requests.next()?;
        let is_acknowledgement =
            words.len() >= 3 && words[0].eq_ignore_ascii_case("REPLCONF") && words[1].eq_ignore_ascii_case("ACK");
        if let Some(offset) = words.get(2).filter(|_| is_acknowledgement).and_then(|text| text.parse().ok()) {
            far.note_applied(number, offset);
        }
    }
}

/// Sends until the Redis is gone, or must ask again how to go on.
fn send(far: &Far, socket: &mut TcpStream, number: u64, way: Way, is_over: &AtomicBool) -> Result<()> {
    let (ids, mut at, epoch) = match way {
        Way::Stream { ids, offset, epoch } => {
            socket.write_all(format!("+CONTINUE {}\r\n", ids.id).as_bytes())?;
            // It has carried out what it does not ask for.
            far.lock().replicas.insert(number, offset);
            (ids, offset, epoch)
        }
        Way::Copy { ids, offset, epoch, mut file, bytes } => {
            socket.write_all(format!("+FULLRESYNC {} {offset}\r\n${bytes}\r\n", ids.id).as_bytes())?;
            let copied =
                std::io::copy(&mut (&mut file).take(bytes), socket).context("it has hung up during the copy")?;
            ensure!(copied == bytes, "the copy on disk has become shorter");
            far.lock().replicas.insert(number, 0);
            (ids, offset, epoch)
        }
    };
    let mut bytes = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let state = far.lock();
        if state.epoch != epoch {
            bail!("a copy of everything has come: it must ask again");
        }
        if state.ids.as_ref() != Some(&ids) {
            bail!("the stream has another name: it must ask again");
        }
        drop(state);
        bytes.clear();
        let found = far.store.read(at, PIECE_BYTES, &mut bytes).inspect_err(|error| {
            if error.kind() == ErrorKind::InvalidData {
                // Neither the stream nor the copy before it leads past this place.
                let mut state = far.lock();
                (state.needs_copy, state.copy) = (true, None);
            }
        });
        match found? {
            Found::Gone => bail!("it is too slow: byte {at} of the stream is no longer on disk"),
            Found::Bytes(0) => far.store.wait(at, GLANCE),
            Found::Bytes(count) => {
                socket.write_all(&bytes).context("it has hung up")?;
                at += count as u64;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_in_pieces_and_bounded() {
        let text = b"*3\r\n$8\r\nREPLCONF\r\n$3\r\nACK\r\n$2\r\n17\r\nPING\r\n";
        for length in 0..35 {
            assert!(parse_request(&text[..length]).expect("sound").is_none(), "{length}");
        }
        let (words, length) = parse_request(text).expect("sound").expect("whole");
        assert_eq!(words, ["REPLCONF", "ACK", "17"]);
        assert_eq!(parse_request(&text[length..]).expect("sound").expect("whole").0, ["PING"]);
        for hostile in ["*1000000000\r\n", "*-1\r\n", "*1\r\n$1000000000\r\n", "*1\r\n:5\r\n"] {
            assert!(parse_request(hostile.as_bytes()).is_err(), "{hostile}");
        }
        assert!(parse_request(&[b'x'; 2_000]).is_err());
    }
}
