//! The users that have logged in to the console. Behind each of them is a session at a core like that of any client,
//! with the same user: what a user may not ask for, the console cannot show.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use node::event::Peer;
use resp::{Frame, FrameDecoder};

use super::examination::Pattern;
use crate::connection::Stream;
use crate::entropy;
use crate::host::Host;
use crate::limits::{CONSOLE_IDLE_MAX, CONSOLE_PATIENCE, CONSOLE_REPLY_BYTES_MAX, CONSOLE_SESSIONS_MAX};
use crate::listener::Arrival;
use crate::mailbox::Mail;

/// Why there is no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The core has not answered in time. It may later.
    Busy,
    /// The session has ended: its user has gone, or was told to.
    Gone,
}

/// A client's session of the console.
pub struct Session {
    /// The user that it acts as.
    pub user: Vec<u8>,
    /// What a page shows that wants to change something; empty until somebody has logged in.
    pub token: String,
    address: String,
    local_address: String,
    stream: UnixStream,
    /// A request has been sent in part: whatever followed would be taken for the rest of it.
    is_broken: bool,
    decoder: FrameDecoder,
    /// Replies that are still to come and that nobody waits for any more.
    owed_count: usize,
    database: u64,
    /// When it was last found that the user may look.
    allowed_at: Instant,
}

/// What a user must be permitted, to see anything at all.
pub const LOOK: &[&[u8]] = &[b"HOLDFAST", b"CLUSTER"];

/// How long a user who was found to be permitted may go on looking at what no core is asked for. While none answers,
/// longer.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

impl Session {
    /// Opens a session at the core with the fewest clients, for a browser at this address.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn open(host: &Host, address: String, local_address: String, is_local: bool) -> io::Result<Self> {
        Self::open_as(host, Peer { address, local_address, is_local, ..Peer::default() })
    }

    /// Opens a session of the host itself, which may ask what users may do.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn open_of_host(host: &Host) -> io::Result<Self> {
        let address = "the host:0".to_owned();
        let peer = Peer { local_address: address.clone(), address, is_local: true, is_host: true, ..Peer::default() };
        Self::open_as(host, peer)
    }

    /// Opens another session for a user who has shown the password before: AUTH with any password makes it that user's.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn open_like(host: &Host, pattern: &Pattern) -> io::Result<Self> {
        let Pattern { address, local_address, .. } = pattern.clone();
        Self::open_as(host, Peer { address, local_address, is_local: true, is_host: true, ..Peer::default() })
    }

    /// What it takes to open another one like it.
    pub fn pattern(&self) -> Pattern {
        Pattern { user: self.user.clone(), address: self.address.clone(), local_address: self.local_address.clone() }
    }

    fn open_as(host: &Host, peer: Peer) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        theirs.set_nonblocking(true)?;
        let peer = Peer { descriptor: i64::from(theirs.as_raw_fd()), ..peer };
        let (address, local_address) = (peer.address.clone(), peer.local_address.clone());
        let stream = Stream::Unix(mio::net::UnixStream::from_std(theirs));
        let count = |core: &usize| host.desks[*core].client_count.load(Ordering::Relaxed);
        let core = (0..host.desks.len()).min_by_key(count).unwrap_or_default();
        let serial = host.next_serial.fetch_add(1, Ordering::Relaxed);
        host.desks[core].client_count.fetch_add(1, Ordering::Relaxed);
        host.desks[core].mailbox.post(Mail::Arrival(Box::new(Arrival { serial, stream, peer })));
        Ok(Self { address, local_address, ..Self::over(ours) })
    }

    fn over(stream: UnixStream) -> Self {
        Self {
            user: Vec::new(),
            token: String::new(),
            address: String::new(),
            local_address: String::new(),
            stream,
            is_broken: false,
            decoder: FrameDecoder::new(),
            owed_count: 0,
            database: 0,
            allowed_at: Instant::now(),
        }
    }

    /// Asks these requests, one after the other, and answers the replies in their order.
    ///
    /// # Errors
    /// If there are none.
    pub fn ask(&mut self, requests: &[Vec<&[u8]>]) -> Result<Vec<Frame>, Unanswered> {
        self.ask_within(requests, CONSOLE_PATIENCE)
    }

    /// The same, with another patience.
    ///
    /// # Errors
    /// If there are no replies.
    pub fn ask_within(&mut self, requests: &[Vec<&[u8]>], patience: Duration) -> Result<Vec<Frame>, Unanswered> {
        if self.is_broken {
            return Err(Unanswered::Gone);
        }
        let deadline = Instant::now() + patience;
        // What was not answered in time comes first.
        while self.owed_count > 0 {
            self.reply(deadline)?;
            self.owed_count -= 1;
        }
        let mut bytes = Vec::new();
        for words in requests {
            bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
            for word in words {
                bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                bytes.extend_from_slice(word);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        self.stream.set_write_timeout(Some(patience)).map_err(|_| Unanswered::Gone)?;
        // A client that has been turned away and cut finds out why: what was said before the cut can still be read.
        if self.send_bytes(&bytes).is_err() && self.is_broken {
            return Err(Unanswered::Gone);
        }
        self.owed_count = requests.len();
        let mut replies = Vec::new();
        for _ in requests {
            replies.push(self.reply(deadline)?);
            self.owed_count -= 1;
        }
        Ok(replies)
    }

    /// The same for one.
    ///
    /// # Errors
    /// If there is no reply.
    pub fn ask_one(&mut self, words: &[&[u8]]) -> Result<Frame, Unanswered> {
        let mut replies = self.ask(&[words.to_vec()])?;
        replies.pop().ok_or(Unanswered::Gone)
    }

    /// Makes a database the one that is asked. An error is the user's, who may not choose it.
    ///
    /// # Errors
    /// If there is no reply.
    pub fn select(&mut self, database: u64) -> Result<Option<Frame>, Unanswered> {
        if self.database == database {
            return Ok(None);
        }
        let reply = self.ask_one(&[b"SELECT", database.to_string().as_bytes()])?;
        if reply.is_error() {
            return Ok(Some(reply));
        }
        self.database = database;
        Ok(None)
    }

    /// Says whether the user may look, or what the user is told instead. A core that does not answer is what the user
    /// may want to look at: then the last answer counts.
    ///
    /// # Errors
    /// If the session has ended.
    pub fn may_look(&mut self) -> Result<Option<Frame>, Unanswered> {
        if self.allowed_at.elapsed() < LOOK_INTERVAL {
            return Ok(None);
        }
        match self.ask_one(LOOK) {
            Ok(reply) if reply.is_error() => Ok(Some(reply)),
            Ok(_) => {
                self.allowed_at = Instant::now();
                Ok(None)
            }
            Err(Unanswered::Busy) => Ok(None),
            Err(Unanswered::Gone) => Err(Unanswered::Gone),
        }
    }

    /// Sends requests. Those that read are small: a core that does not even read them leaves room for many.
    ///
    /// # Errors
    /// If the core has gone, or has not taken them in time: then the session is of no more use.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_broken {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let sent = self.stream.write_all(bytes);
        let is_late = |error: &io::Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        self.is_broken = sent.as_ref().is_err_and(is_late);
        sent
    }

    /// The next reply.
    ///
    /// # Errors
    /// If it has not come by then; it may be waited for again.
    pub fn reply(&mut self, deadline: Instant) -> Result<Frame, Unanswered> {
        let mut piece = vec![0; 64 << 10];
        loop {
            match self.decoder.next_frame() {
                // The console follows nothing that is pushed.
                Ok(Some(Frame::Push(_))) => continue,
                Ok(Some(frame)) => return Ok(frame),
                Ok(None) if self.decoder.pending_bytes() > CONSOLE_REPLY_BYTES_MAX => return Err(Unanswered::Gone),
                Ok(None) => {}
                Err(_) => return Err(Unanswered::Gone),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Unanswered::Busy);
            }
            let left = left.max(Duration::from_millis(1));
            self.stream.set_read_timeout(Some(left)).map_err(|_| Unanswered::Gone)?;
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(Unanswered::Gone),
                Ok(count) => self.decoder.extend(&piece[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Err(Unanswered::Busy);
                }
                Err(_) => return Err(Unanswered::Gone),
            }
        }
    }
}

/// All who have logged in, by what their browsers show.
#[derive(Default)]
pub struct Sessions(Mutex<BTreeMap<String, Known>>);

struct Known {
    session: Arc<Mutex<Session>>,
    used_at: Instant,
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a session, and answers the token that its browser must show. If there are too many, the one goes that has
    /// asked for nothing for longest.
    ///
    /// # Errors
    /// If there is no chance to be had.
    pub fn keep(&self, mut session: Session) -> io::Result<String> {
        let token = entropy::random_hex::<32>()?;
        session.token = entropy::random_hex::<32>()?;
        self.forget_idle();
        let mut known = self.lock();
        while known.len() >= CONSOLE_SESSIONS_MAX {
            let oldest = known.iter().min_by_key(|(_, known)| known.used_at).map(|(token, _)| token.clone());
            oldest.and_then(|token| known.remove(&token));
        }
        let session = Arc::new(Mutex::new(session));
        known.insert(token.clone(), Known { session, used_at: Instant::now() });
        Ok(token)
    }

    /// The session of a token, if there is one. A session that has asked for nothing for too long is forgotten.
    pub fn of(&self, token: &str) -> Option<Arc<Mutex<Session>>> {
        self.forget_idle();
        let mut known = self.lock();
        let found = known.get_mut(token)?;
        found.used_at = Instant::now();
        Some(Arc::clone(&found.session))
    }

    /// Ends a session.
    pub fn end(&self, token: &str) {
        self.lock().remove(token);
    }

    /// Ends sessions of which nothing was asked for too long.
    fn forget_idle(&self) {
        self.lock().retain(|_, known| known.used_at.elapsed() < CONSOLE_IDLE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Session, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        (Session::over(ours), theirs)
    }

    #[test]
    fn what_was_sent_in_part_is_the_last_that_is_sent() {
        let (mut session, core) = pair();
        let value = vec![b'x'; 8 << 20];
        let patience = Duration::from_millis(50);
        let set: Vec<&[u8]> = vec![b"SET", b"key", &value];
        assert_eq!(session.ask_within(&[set], patience), Err(Unanswered::Gone), "nobody reads it");
        assert_eq!(session.ask_one(&[b"PING"]), Err(Unanswered::Gone));
        core.set_nonblocking(true).expect("a socket");
        let mut seen = Vec::new();
        let _ = (&core).read_to_end(&mut seen);
        assert!(!seen.is_empty() && !seen.windows(4).any(|four| four == b"PING"));
    }

    #[test]
    fn there_are_no_more_sessions_than_the_bound_and_tokens_are_not_guessed() {
        let sessions = Sessions::default();
        let mut tokens = Vec::new();
        for _ in 0..CONSOLE_SESSIONS_MAX + 3 {
            tokens.push(sessions.keep(pair().0).expect("chance"));
        }
        assert!(tokens.iter().all(|token| token.len() == 64));
        let known: Vec<bool> = tokens.iter().map(|token| sessions.of(token).is_some()).collect();
        assert_eq!(known.iter().filter(|known| **known).count(), CONSOLE_SESSIONS_MAX);
        assert!(!known[0] && known[CONSOLE_SESSIONS_MAX + 2]);
        sessions.end(&tokens[5]);
        assert!(sessions.of(&tokens[5]).is_none() && sessions.of("").is_none());
    }

    #[test]
    fn a_reply_that_came_too_late_is_not_taken_for_another() {
        let (mut session, mut core) = pair();
        assert_eq!(session.ask_one(&[b"PING"]), Err(Unanswered::Busy));
        core.write_all(b"+late\r\n").expect("room");
        core.write_all(b">2\r\n+news\r\n+x\r\n+in time\r\n").expect("room");
        assert_eq!(session.ask_one(&[b"PING"]), Ok(Frame::Simple(b"in time".to_vec())));
        drop(core);
        assert_eq!(session.ask_one(&[b"PING"]), Err(Unanswered::Gone));
    }
}
